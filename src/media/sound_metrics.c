#include "media/sound_metrics.h"

#include <math.h>
#include <stdlib.h>

#include "base/json.h"
#include "base/memory.h"

enum { FRAME = 1024, HOP = 256, BINS = FRAME / 2 + 1 };
static const double FLOOR = 1e-10; /* -100 dB of full scale */
static const double PI = 3.14159265358979323846;

static h3_sound_figure known(double value) { return (h3_sound_figure){1, value}; }
static h3_sound_figure unknown(void) { return (h3_sound_figure){0, NAN}; }

/* --- in time --- */

/* Sums over samples; x is the reference, y the candidate. */
typedef struct sums {
    double count, x, y, xx, yy, difference;
} sums;

static void add_samples(sums *s, h3_sound_distance *d, const float *x, const float *y, int64_t frames, int64_t channel)
{
    for (int64_t n = 0; n < frames; n++) {
        double a = (double)x[n], b = (double)y[n], difference = fabs(a - b);
        s->x += a;
        s->y += b;
        s->xx += a * a;
        s->yy += b * b;
        s->difference += difference * difference;
        if (difference > d->max_abs_diff) {
            d->max_abs_diff = difference;
            d->max_channel = channel;
            d->max_frame = n;
        }
        if (fabs(a) > d->reference_peak) d->reference_peak = fabs(a);
        if (fabs(b) > d->candidate_peak) d->candidate_peak = fabs(b);
        d->reference_clipped += fabs(a) >= 1;
        d->candidate_clipped += fabs(b) >= 1;
    }
    s->count += (double)frames;
}

/* Second pass, with the means known: sums of products about them. */
typedef struct moments {
    double xx, yy, xy;
} moments;

static void add_moments(moments *m, const sums *s, const float *x, const float *y, int64_t frames)
{
    double mean_x = s->x / s->count, mean_y = s->y / s->count;
    for (int64_t n = 0; n < frames; n++) {
        double a = (double)x[n] - mean_x, b = (double)y[n] - mean_y;
        m->xx += a * a;
        m->yy += b * b;
        m->xy += a * b;
    }
}

static int is_constant(const float *x, int64_t count)
{
    for (int64_t i = 1; i < count; i++)
        if (x[i] < x[0] || x[i] > x[0]) return 0;
    return 1;
}

/* Figures of `channels` channels from `first` on, which lie one after the other. */
static void compare_in_time(h3_sound_distance *d, const h3_sound *reference, const h3_sound *candidate, int64_t first, int64_t channels)
{
    const float *x = reference->samples + first * reference->frames, *y = candidate->samples + first * reference->frames;
    int64_t frames = reference->frames;
    sums s = {0};
    moments m = {0};
    for (int64_t c = 0; c < channels; c++) add_samples(&s, d, x + c * frames, y + c * frames, frames, first + c);
    for (int64_t c = 0; c < channels; c++) add_moments(&m, &s, x + c * frames, y + c * frames, frames);
    d->identical = d->max_abs_diff == 0;
    d->silent_reference = !d->identical && d->reference_peak == 0;
    d->rmse = sqrt(s.difference / s.count);
    d->snr_db = d->identical || d->silent_reference ? unknown() : known(10 * log10(s.xx / s.difference));
    d->level_diff_db = d->reference_peak > 0 && d->candidate_peak > 0 ? known(10 * log10(s.yy / s.xx)) : unknown();
    if (d->identical) d->correlation = known(1);
    else if (is_constant(x, channels * frames) || is_constant(y, channels * frames)) d->correlation = unknown();
    else d->correlation = known(m.xy / sqrt(m.xx * m.yy));
}

/* --- in frequency --- */

/* Tables of the transform, made once for a comparison. */
typedef struct tables {
    double window[FRAME], window_sum;
    double cosine[FRAME / 2], sine[FRAME / 2];
    int reversed[FRAME];
} tables;

static void make_tables(tables *t)
{
    t->window_sum = 0;
    for (int n = 0; n < FRAME; n++) {
        t->window[n] = 0.5 - 0.5 * cos(2 * PI * n / FRAME);
        t->window_sum += t->window[n];
        t->reversed[n] = 0;
        for (int bit = 1; bit < FRAME; bit *= 2) t->reversed[n] = 2 * t->reversed[n] + (n & bit ? 1 : 0);
    }
    for (int n = 0; n < FRAME / 2; n++) {
        t->cosine[n] = cos(2 * PI * n / FRAME);
        t->sine[n] = -sin(2 * PI * n / FRAME);
    }
}

/* The discrete Fourier transform, in place, radix 2; the input stands in bit-reversed order. */
static void transform(const tables *t, double real[FRAME], double imaginary[FRAME])
{
    for (int half = 1; half < FRAME; half *= 2)
        for (int start = 0; start < FRAME; start += 2 * half)
            for (int i = 0; i < half; i++) {
                int a = start + i, b = a + half, turn = i * (FRAME / 2 / half);
                double re = real[b] * t->cosine[turn] - imaginary[b] * t->sine[turn], im = real[b] * t->sine[turn] + imaginary[b] * t->cosine[turn];
                real[b] = real[a] - re;
                imaginary[b] = imaginary[a] - im;
                real[a] += re;
                imaginary[a] += im;
            }
}

/* Decibels of the frame that begins at x; `left` samples are there, zeros follow. */
static void spectrum(double out[BINS], const tables *t, const float *x, int64_t left)
{
    double real[FRAME], imaginary[FRAME] = {0};
    for (int n = 0; n < FRAME; n++) real[t->reversed[n]] = n < left ? (double)x[n] * t->window[n] : 0;
    transform(t, real, imaginary);
    for (int k = 0; k < BINS; k++) {
        double power = (real[k] * real[k] + imaginary[k] * imaginary[k]) / (t->window_sum * t->window_sum);
        out[k] = 10 * log10(power + FLOOR);
    }
}

static int64_t count_spectra(int64_t frames) { return frames <= FRAME ? 1 : 1 + (frames - FRAME + HOP - 1) / HOP; }

static void compare_spectra(h3_sound_distance *d, const tables *t, const float *x, const float *y, int64_t frames, int64_t channel)
{
    double sum = 0;
    int64_t count = count_spectra(frames);
    d->worst_channel = channel;
    for (int64_t m = 0; m < count; m++) {
        double a[BINS], b[BINS], squares = 0;
        spectrum(a, t, x + m * HOP, frames - m * HOP);
        spectrum(b, t, y + m * HOP, frames - m * HOP);
        for (int k = 0; k < BINS; k++) squares += (a[k] - b[k]) * (a[k] - b[k]);
        double distance = sqrt(squares / BINS);
        sum += distance;
        if (distance > d->worst_lsd_db) {
            d->worst_lsd_db = distance;
            d->worst_frame = m;
        }
    }
    d->lsd_db = sum / (double)count;
}

static void pool_spectra(h3_sound_metrics *metrics)
{
    h3_sound_distance *pooled = &metrics->pooled;
    double sum = 0;
    for (int64_t c = 0; c < metrics->channels; c++) {
        const h3_sound_distance *d = &metrics->channel[c];
        sum += d->lsd_db;
        if (d->worst_lsd_db > pooled->worst_lsd_db) {
            pooled->worst_lsd_db = d->worst_lsd_db;
            pooled->worst_channel = c;
            pooled->worst_frame = d->worst_frame;
        }
    }
    pooled->lsd_db = sum / (double)metrics->channels;
}

/* --- all of it --- */

static h3_status check_format(const h3_sound *reference, const h3_sound *candidate)
{
    const struct { const char *what; int64_t a, b; } fields[] = {
        {"channels", reference->channels, candidate->channels}, {"samples a channel", reference->frames, candidate->frames}, {"samples a second", reference->rate, candidate->rate}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].a != fields[i].b)
            return h3_error(H3_INTEGRITY, "the reference's sound has %lld %s, the candidate's %lld; they cannot be compared", (long long)fields[i].a, fields[i].what, (long long)fields[i].b);
    return H3_OK;
}

h3_status h3_sound_compare(h3_sound_metrics *out, const h3_sound *reference, const h3_sound *candidate)
{
    void *memory;
    *out = (h3_sound_metrics){0};
    H3_TRY(h3_sound_check(reference, "the reference's sound"));
    H3_TRY(h3_sound_check(candidate, "the candidate's sound"));
    H3_TRY(check_format(reference, candidate));
    if (reference->channels > H3_SOUND_CHANNELS) return h3_error(H3_INTEGRITY, "sounds of %lld channels; at most %d are possible", (long long)reference->channels, H3_SOUND_CHANNELS);
    H3_TRY(h3_alloc(&memory, 1, sizeof(tables), "the spectra of sounds"));
    make_tables(memory);
    *out = (h3_sound_metrics){.channels = reference->channels, .frames = reference->frames, .rate = reference->rate, .spectra = count_spectra(reference->frames)};
    for (int64_t c = 0; c < out->channels; c++) {
        compare_in_time(&out->channel[c], reference, candidate, c, 1);
        compare_spectra(&out->channel[c], memory, reference->samples + c * out->frames, candidate->samples + c * out->frames, out->frames, c);
    }
    compare_in_time(&out->pooled, reference, candidate, 0, out->channels);
    pool_spectra(out);
    free(memory);
    return H3_OK;
}

int h3_sound_accepted(const h3_sound_metrics *metrics, double snr_min, double lsd_max)
{
    const h3_sound_distance *d = &metrics->pooled;
    if (metrics->frames < 1 || isnan(snr_min) || isnan(lsd_max)) return 0;
    int snr = d->identical || (d->snr_db.known && d->snr_db.value >= snr_min);
    return snr && d->lsd_db <= lsd_max;
}

/* --- report --- */

static void add_figure(cJSON *object, const char *key, h3_sound_figure figure)
{
    if (figure.known) cJSON_AddNumberToObject(object, key, figure.value);
    else cJSON_AddNullToObject(object, key);
}

static void add_distance(cJSON *object, const h3_sound_distance *d)
{
    cJSON_AddBoolToObject(object, "identical", d->identical);
    cJSON_AddBoolToObject(object, "silent_reference", d->silent_reference);
    add_figure(object, "snr_db", d->snr_db);
    cJSON_AddNumberToObject(object, "lsd_db", d->lsd_db);
    cJSON_AddNumberToObject(object, "rmse", d->rmse);
    add_figure(object, "level_diff_db", d->level_diff_db);
    add_figure(object, "correlation", d->correlation);
    cJSON_AddNumberToObject(object, "max_abs_diff", d->max_abs_diff);
    h3_json_add_integer(object, "max_abs_diff_channel", d->max_channel);
    h3_json_add_integer(object, "max_abs_diff_sample", d->max_frame);
    cJSON_AddNumberToObject(object, "worst_lsd_db", d->worst_lsd_db);
    h3_json_add_integer(object, "worst_lsd_channel", d->worst_channel);
    h3_json_add_integer(object, "worst_lsd_frame", d->worst_frame);
    cJSON_AddNumberToObject(object, "reference_peak", d->reference_peak);
    cJSON_AddNumberToObject(object, "candidate_peak", d->candidate_peak);
    h3_json_add_integer(object, "reference_clipped", d->reference_clipped);
    h3_json_add_integer(object, "candidate_clipped", d->candidate_clipped);
}

enum { DISTANCE_FIELDS = 17 };

/* cJSON adds nothing when memory ends; counting shows it. */
h3_status h3_sound_metrics_json(cJSON **out, const h3_sound_metrics *metrics)
{
    cJSON *object = cJSON_CreateObject(), *list;
    *out = NULL;
    cJSON_AddBoolToObject(object, "equal_format", 1);
    h3_json_add_integer(object, "sampling_rate", metrics->rate);
    h3_json_add_integer(object, "samples", metrics->frames);
    add_distance(object, &metrics->pooled);
    list = cJSON_AddArrayToObject(object, "per_channel");
    int good = cJSON_GetArraySize(object) == 3 + DISTANCE_FIELDS + 1;
    for (int64_t c = 0; c < metrics->channels && good; c++) {
        cJSON *item = cJSON_CreateObject();
        add_distance(item, &metrics->channel[c]);
        good = cJSON_GetArraySize(item) == DISTANCE_FIELDS;
        if (!cJSON_AddItemToArray(list, item)) {
            cJSON_Delete(item);
            good = 0;
        }
    }
    if (!good) {
        cJSON_Delete(object);
        return h3_error(H3_ENVIRONMENT, "out of memory for the report on a sound");
    }
    *out = object;
    return H3_OK;
}
