/* Distances between sounds: closed forms of media.md, and what has no figure or no right to one. */
#include "golden_files.h"

#include <math.h>

#include "media/sound_metrics.h"

enum { FRAMES = 165600, RATE = 32000 };

static h3_sound make(int64_t channels, int64_t frames)
{
    h3_sound sound;
    assert_good(h3_sound_new(&sound, channels, frames, RATE));
    return sound;
}

/* Noise, other in every channel. Samples are multiples of 2^-12, so that halves and sums of them are exact. */
static h3_sound noise(int64_t channels, int64_t frames, uint32_t seed)
{
    h3_sound sound = make(channels, frames);
    for (int64_t i = 0; i < channels * frames; i++) {
        seed = seed * 1664525u + 1013904223u;
        sound.samples[i] = (float)((int32_t)(seed >> 20) - 2048) * 0x1p-12f;
    }
    return sound;
}

static h3_sound scaled(const h3_sound *from, float factor)
{
    h3_sound sound = make(from->channels, from->frames);
    for (int64_t i = 0; i < from->channels * from->frames; i++) sound.samples[i] = from->samples[i] * factor;
    return sound;
}

static h3_sound_metrics compare(const h3_sound *reference, const h3_sound *candidate)
{
    h3_sound_metrics m;
    assert_good(h3_sound_compare(&m, reference, candidate));
    return m;
}

static void assert_close(double value, double expected, double bound)
{
    if (!(fabs(value - expected) <= bound)) fail_msg("%.17g, expected %.17g within %g", value, expected, bound);
}

static void assert_known(h3_sound_figure figure, double expected, double bound)
{
    assert_true(figure.known);
    assert_close(figure.value, expected, bound);
}

static void assert_unknown(h3_sound_figure figure)
{
    assert_false(figure.known);
    assert_true(isnan(figure.value));
}

static void a_sound_is_itself(void **state)
{
    h3_sound r = noise(2, FRAMES, 1), c = scaled(&r, 1);
    (void)state;
    h3_sound_metrics m = compare(&r, &c);
    assert_int_equal(m.spectra, 644); /* media.md section 5 */
    for (int i = -1; i < 2; i++) {
        const h3_sound_distance *d = i < 0 ? &m.pooled : &m.channel[i];
        assert_true(d->identical && !d->silent_reference);
        assert_unknown(d->snr_db);
        assert_known(d->correlation, 1, 0);
        assert_known(d->level_diff_db, 0, 0);
        assert_true(d->rmse == 0 && d->max_abs_diff == 0 && d->lsd_db == 0 && d->worst_lsd_db == 0);
        assert_true(d->reference_peak == d->candidate_peak && d->reference_peak > 0.49);
    }
    assert_true(h3_sound_accepted(&m, 20, 2));
    h3_sound_free(&c);
    h3_sound_free(&r);
}

static void half_as_loud(void **state)
{
    h3_sound r = noise(2, FRAMES, 1), c = scaled(&r, 0.5f);
    (void)state;
    h3_sound_metrics m = compare(&r, &c);
    double decibel = 10 * log10(4.0);
    assert_known(m.pooled.snr_db, decibel, 0);        /* all sums are exact here */
    assert_known(m.pooled.level_diff_db, -decibel, 1e-15);
    assert_known(m.pooled.correlation, 1, 1e-12);
    assert_known(m.channel[0].snr_db, decibel, 0);
    assert_known(m.channel[1].level_diff_db, -decibel, 1e-15);
    assert_close(m.pooled.lsd_db, decibel, 1e-2); /* the floor under the power is little against noise */
    assert_true(m.pooled.lsd_db < decibel);
    assert_false(m.pooled.identical);
    assert_false(h3_sound_accepted(&m, 20, 20));
    assert_false(h3_sound_accepted(&m, 0, 2));
    assert_true(h3_sound_accepted(&m, 6, 7));
    h3_sound_free(&c);
    h3_sound_free(&r);
}

static void nine_tenths_as_loud(void **state)
{
    h3_sound r = noise(2, FRAMES, 2), c = scaled(&r, 0.9f);
    (void)state;
    h3_sound_metrics m = compare(&r, &c);
    assert_known(m.pooled.snr_db, 20, 1e-5); /* 0.9 is no float */
    assert_known(m.pooled.correlation, 1, 1e-12);
    assert_known(m.pooled.level_diff_db, 20 * log10(0.9), 1e-6);
    assert_close(m.pooled.lsd_db, 0.9151, 1e-3);
    h3_sound_free(&c);
    h3_sound_free(&r);
}

static void turned_over(void **state)
{
    h3_sound r = noise(2, FRAMES, 3), c = scaled(&r, -1);
    (void)state;
    h3_sound_metrics m = compare(&r, &c);
    assert_known(m.pooled.snr_db, -10 * log10(4.0), 1e-15);
    assert_known(m.pooled.correlation, -1, 0);
    assert_known(m.pooled.level_diff_db, 0, 0);
    assert_true(m.pooled.lsd_db == 0); /* the phase is not in it */
    h3_sound_free(&c);
    h3_sound_free(&r);
}

/* One sample differs in one channel: everything names that channel and place. */
static void one_sample(void **state)
{
    h3_sound r = noise(2, 5000, 4), c = scaled(&r, 1);
    (void)state;
    c.samples[5000 + 3000] += 0.25f;
    h3_sound_metrics m = compare(&r, &c);
    assert_true(m.channel[0].identical && m.channel[0].lsd_db == 0);
    assert_false(m.channel[1].identical);
    assert_true(m.pooled.max_abs_diff == 0.25 && m.pooled.max_channel == 1 && m.pooled.max_frame == 3000);
    assert_close(m.channel[1].rmse, 0.25 / sqrt(5000), 1e-15);
    assert_close(m.pooled.rmse, 0.25 / sqrt(10000), 1e-15);
    double power = 0, all = 0;
    for (int i = 0; i < 10000; i++) {
        double square = (double)r.samples[i] * (double)r.samples[i];
        all += square;
        if (i >= 5000) power += square;
    }
    assert_known(m.channel[1].snr_db, 10 * log10(power * 16), 1e-12);
    assert_known(m.pooled.snr_db, 10 * log10(all * 16), 1e-12);
    assert_int_equal(m.pooled.worst_channel, 1);
    int64_t first = m.pooled.worst_frame * 256;
    assert_true(first <= 3000 && 3000 < first + 1024);
    assert_true(m.pooled.worst_lsd_db == m.channel[1].worst_lsd_db && m.pooled.worst_lsd_db > 0);
    assert_close(m.pooled.lsd_db, m.channel[1].lsd_db / 2, 1e-15);
    h3_sound_free(&c);
    h3_sound_free(&r);
}

static void silence(void **state)
{
    h3_sound zero = make(1, 3000), r = noise(1, 3000, 5), constant = make(1, 3000);
    (void)state;
    for (int i = 0; i < 3000; i++) constant.samples[i] = 0.5f;
    h3_sound_metrics m = compare(&zero, &r); /* a silent reference */
    assert_true(m.pooled.silent_reference && !m.pooled.identical);
    assert_unknown(m.pooled.snr_db);
    assert_unknown(m.pooled.level_diff_db);
    assert_unknown(m.pooled.correlation);
    assert_false(h3_sound_accepted(&m, -1000, 1000));
    m = compare(&r, &zero); /* a silent candidate */
    assert_known(m.pooled.snr_db, 0, 0);
    assert_unknown(m.pooled.level_diff_db);
    assert_unknown(m.pooled.correlation);
    assert_true(m.pooled.lsd_db > 30);
    m = compare(&zero, &zero); /* both */
    assert_true(m.pooled.identical && !m.pooled.silent_reference);
    assert_known(m.pooled.correlation, 1, 0);
    assert_unknown(m.pooled.level_diff_db);
    assert_true(m.pooled.lsd_db == 0 && h3_sound_accepted(&m, 20, 2));
    m = compare(&constant, &r);
    assert_unknown(m.pooled.correlation);
    m = compare(&constant, &constant);
    assert_known(m.pooled.correlation, 1, 0);
    h3_sound_free(&zero);
    h3_sound_free(&r);
    h3_sound_free(&constant);
}

/* A cosine on bin k of the transform: with the Hann window its power is (a/2)^2 in bin k, a quarter of that beside it. A tone
 * beside silence then has a distance that can be written down. */
static void a_tone_against_silence(void **state)
{
    h3_sound tone = make(1, 1024), zero = make(1, 1024);
    const double amplitude = 0.5, pi = 3.14159265358979323846;
    double squares = 0, floor_db = -100;
    (void)state;
    for (int n = 0; n < 1024; n++) tone.samples[n] = (float)(amplitude * cos(2 * pi * 64 * n / 1024));
    h3_sound_metrics m = compare(&tone, &zero);
    assert_int_equal(m.spectra, 1);
    for (int k = 0; k < 513; k++) {
        double power = k == 64 ? amplitude * amplitude / 4 : k == 63 || k == 65 ? amplitude * amplitude / 16 : 0;
        double level = 10 * log10(power + 1e-10) - floor_db;
        squares += level * level;
    }
    assert_close(m.pooled.lsd_db, sqrt(squares / 513), 1e-4);
    assert_true(m.pooled.worst_lsd_db == m.pooled.lsd_db);
    h3_sound_free(&tone);
    h3_sound_free(&zero);
}

/* The transform against its definition, through the distance to silence of noise, at lengths around a frame. */
static double defined_lsd(const h3_sound *r, const h3_sound *c, int64_t spectra)
{
    const double pi = 3.14159265358979323846;
    double total = 0, weight = 0;
    for (int n = 0; n < 1024; n++) weight += 0.5 - 0.5 * cos(2 * pi * n / 1024);
    for (int64_t m = 0; m < spectra; m++) {
        double squares = 0;
        for (int k = 0; k < 513; k++) {
            double level[2];
            for (int side = 0; side < 2; side++) {
                const h3_sound *s = side ? c : r;
                double re = 0, im = 0;
                for (int n = 0; n < 1024 && m * 256 + n < s->frames; n++) {
                    double x = (double)s->samples[m * 256 + n] * (0.5 - 0.5 * cos(2 * pi * n / 1024));
                    re += x * cos(2 * pi * (k * n % 1024) / 1024);
                    im += x * sin(2 * pi * (k * n % 1024) / 1024);
                }
                level[side] = 10 * log10((re * re + im * im) / (weight * weight) + 1e-10);
            }
            squares += (level[0] - level[1]) * (level[0] - level[1]);
        }
        total += sqrt(squares / 513);
    }
    return total / (double)spectra;
}

static void spectra_as_defined(void **state)
{
    static const int64_t LENGTHS[][2] = {{1, 1}, {100, 1}, {1023, 1}, {1024, 1}, {1025, 2}, {1280, 2}, {1281, 3}};
    (void)state;
    for (size_t i = 0; i < sizeof LENGTHS / sizeof *LENGTHS; i++) {
        h3_sound r = noise(1, LENGTHS[i][0], 6), c = noise(1, LENGTHS[i][0], 7);
        h3_sound_metrics m = compare(&r, &c);
        assert_int_equal(m.spectra, LENGTHS[i][1]);
        assert_close(m.pooled.lsd_db, defined_lsd(&r, &c, LENGTHS[i][1]), 1e-8);
        h3_sound_free(&r);
        h3_sound_free(&c);
    }
}

/* What a broken decoder or writer makes must not be accepted; what only rounds must be. */
static void bad_sounds_are_not_accepted(void **state)
{
    h3_sound r = noise(2, 20000, 11), bad[5];
    (void)state;
    for (int i = 0; i < 5; i++) bad[i] = scaled(&r, 1);
    for (int64_t n = 0; n < 20000; n++) {
        bad[0].samples[n] = r.samples[20000 + n]; /* channels exchanged */
        bad[0].samples[20000 + n] = r.samples[n];
        if (n > 0) bad[1].samples[n] = r.samples[n - 1]; /* the left one a sample late */
        if (n >= 10000 && n < 14000) bad[2].samples[n] = 0; /* a hole */
        bad[3].samples[20000 + n] = -r.samples[20000 + n]; /* the right one turned over */
        for (int c = 0; c < 2; c++) bad[4].samples[c * 20000 + n] = rintf(r.samples[c * 20000 + n] * 128) / 128; /* eight bits */
    }
    for (int i = 0; i < 5; i++) {
        h3_sound_metrics m = compare(&r, &bad[i]);
        if (h3_sound_accepted(&m, 20, 2) != (i == 4)) fail_msg("sound %d: snr %g, lsd %g", i, m.pooled.snr_db.value, m.pooled.lsd_db);
        h3_sound_free(&bad[i]);
    }
    h3_sound_free(&r);
}

static void clipping_is_counted(void **state)
{
    h3_sound r = noise(2, 100, 8), c = scaled(&r, 1);
    (void)state;
    r.samples[5] = 1;
    r.samples[150] = -1;
    c.samples[7] = -1;
    h3_sound_metrics m = compare(&r, &c);
    assert_int_equal(m.pooled.reference_clipped, 2);
    assert_int_equal(m.pooled.candidate_clipped, 1);
    assert_int_equal(m.channel[1].reference_clipped, 1);
    assert_true(m.pooled.reference_peak == 1 && m.channel[1].candidate_peak < 1);
    h3_sound_free(&c);
    h3_sound_free(&r);
}

static void what_cannot_be_compared(void **state)
{
    h3_sound r = noise(2, 1000, 9), mono = noise(1, 1000, 9), shorter = noise(2, 999, 9), other = noise(2, 1000, 9), empty = {0};
    h3_sound_metrics m;
    (void)state;
    other.rate = 44100;
    static const char *const WORDS[] = {"has 2 channels, the candidate's 1", "has 1000 samples a channel, the candidate's 999", "has 32000 samples a second, the candidate's 44100"};
    const h3_sound *const list[] = {&mono, &shorter, &other};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(h3_sound_compare(&m, &r, list[i]), H3_INTEGRITY);
        assert_non_null(strstr(h3_error_text(), WORDS[i]));
        assert_false(h3_sound_accepted(&m, -1000, 1000)); /* nothing was compared */
    }
    assert_int_equal(h3_sound_compare(&m, &r, &empty), H3_FAILED);
    assert_int_equal(h3_sound_compare(&m, &empty, &r), H3_FAILED);
    assert_int_equal(h3_sound_compare(&m, &empty, &empty), H3_FAILED);
    other.rate = RATE;
    for (int i = 0; i < 4; i++) {
        h3_sound *bad = i % 2 ? &r : &other;
        bad->samples[1234] = i / 2 ? -INFINITY : NAN;
        assert_int_equal(h3_sound_compare(&m, &r, &other), H3_FAILED);
        assert_non_null(strstr(h3_error_text(), i % 2 ? "reference's sound: sample 234 of channel 1" : "candidate's sound: sample 234 of channel 1"));
        assert_false(h3_sound_accepted(&m, -1000, 1000));
        bad->samples[1234] = 0;
    }
    m = compare(&r, &other);
    assert_true(h3_sound_accepted(&m, 20, 2));
    assert_false(h3_sound_accepted(&m, NAN, 2));
    assert_false(h3_sound_accepted(&m, 20, NAN));
    h3_sound *all[] = {&r, &mono, &shorter, &other};
    for (int i = 0; i < 4; i++) h3_sound_free(all[i]);
}

static void the_report_has_every_figure(void **state)
{
    h3_sound r = noise(2, 2000, 10), c = scaled(&r, 0.5f);
    cJSON *json;
    (void)state;
    c.samples[0] = r.samples[0];
    h3_sound_metrics m = compare(&r, &c);
    assert_good(h3_sound_metrics_json(&json, &m));
    static const char *const KEYS[] = {"equal_format", "snr_db", "max_abs_diff", "rmse", "level_diff_db", "correlation", "lsd_db", "per_channel"}; /* media.md section 7 */
    for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS; i++) assert_non_null(cJSON_GetObjectItemCaseSensitive(json, KEYS[i]));
    assert_true(cJSON_GetObjectItemCaseSensitive(json, "snr_db")->valuedouble == m.pooled.snr_db.value);
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(json, "per_channel");
    assert_int_equal(cJSON_GetArraySize(list), 2);
    assert_true(cJSON_GetObjectItemCaseSensitive(cJSON_GetArrayItem(list, 1), "lsd_db")->valuedouble == m.channel[1].lsd_db);
    cJSON_Delete(json);
    m = compare(&r, &r);
    assert_good(h3_sound_metrics_json(&json, &m));
    assert_true(cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(json, "snr_db")));
    assert_true(cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(json, "identical")));
    cJSON_Delete(json);
    h3_sound_free(&c);
    h3_sound_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sound_is_itself), cmocka_unit_test(half_as_loud), cmocka_unit_test(nine_tenths_as_loud), cmocka_unit_test(turned_over), cmocka_unit_test(one_sample),
        cmocka_unit_test(silence), cmocka_unit_test(a_tone_against_silence), cmocka_unit_test(spectra_as_defined), cmocka_unit_test(bad_sounds_are_not_accepted),
        cmocka_unit_test(clipping_is_counted),
        cmocka_unit_test(what_cannot_be_compared), cmocka_unit_test(the_report_has_every_figure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
