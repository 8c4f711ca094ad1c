/* Pictures and sound of two sides: what is wrong with a decode is caught, and named; evidence on disk is what its report says. */
#include "video_golden.h"

#include "media/picture.h"
#include "media/wav.h"
#include "qualify/compare.h"
#include "store/publish.h"

static const h3_acceptance acceptance = {{34.0, 0.97, 20.0, 2.0, 0.05}};

static char folder[128];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/h3-media-XXXXXX");
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state)
{
    (void)state;
    return h3_remove_tree(folder) != H3_OK;
}

/* The golden's latents, decoded in tiles; `turned`: another seed's, with every sign turned. And a sound: two tones that fade. */
static h3_media decoded(int turned)
{
    h3_video_weights weights = video_weights();
    h3_video_decoder *decoder;
    h3_tensor z = video_golden("tiled.z"), video;
    h3_media out = {0};
    if (turned)
        for (int64_t i = 0; i < h3_tensor_count(&z); i++) ((float *)z.data)[i] *= -1.0f;
    assert_good(h3_video_decoder_open(&decoder, &weights, h3_device_cpu(), h3_video_ops_cpu(), H3_F32, &SMALL_TILES, 0));
    assert_good(h3_video_decode(&video, decoder, &z));
    assert_good(h3_video_frames(&out.rgb, decoder, &video));
    out.frames = video.shape[0];
    out.height = video.shape[2];
    out.width = video.shape[3];
    assert_good(h3_sound_new(&out.sound, 2, 4000, 32000));
    for (int64_t i = 0; i < 8000; i++) out.sound.samples[i] = 0.5f * sinf((float)(i % 4000) * (i < 4000 ? 0.05f : 0.11f)) * (float)(4000 - i % 4000) / 4000.0f;
    h3_tensor_free(&video);
    h3_tensor_free(&z);
    h3_video_decoder_close(decoder);
    h3_video_weights_close(&weights);
    return out;
}

static h3_media copy(const h3_media *of)
{
    h3_media out = *of;
    void *memory;
    const size_t bytes = (size_t)(of->frames * of->height * of->width) * 3;
    assert_good(h3_alloc(&memory, bytes, 1, "a copy"));
    out.rgb = memory;
    memcpy(out.rgb, of->rgb, bytes);
    assert_good(h3_sound_new(&out.sound, of->sound.channels, of->sound.frames, of->sound.rate));
    memcpy(out.sound.samples, of->sound.samples, (size_t)(of->sound.channels * of->sound.frames) * sizeof(float));
    return out;
}

static h3_media_facts facts_of(const h3_media *m)
{
    h3_media_facts facts = {.shape = {m->frames, m->height, m->width, m->sound.channels, m->sound.frames, m->sound.rate}};
    assert_good(h3_sha256(facts.rgb_sha256, m->rgb, (size_t)(m->frames * m->height * m->width) * 3));
    assert_good(h3_sound_sha256(facts.sound_sha256, &m->sound));
    return facts;
}

static unsigned char *pixel(const h3_media *m, int64_t t, int64_t y, int64_t x) { return m->rgb + ((t * m->height + y) * m->width + x) * 3; }

static h3_compare_media compared(const h3_media *r, const h3_media *c)
{
    const h3_media_facts facts[2] = {facts_of(r), facts_of(c)};
    h3_compare_media out;
    assert_good(h3_compare_media_run(&out, r, c, facts, &acceptance));
    return out;
}

/* --- what is wrong with a decode --------------------------------------------------------------------------------------- */

static void swap_channels(h3_media *m, const h3_media *other)
{
    (void)other;
    for (int64_t i = 0; i < m->frames * m->height * m->width; i++) {
        unsigned char red = m->rgb[3 * i];
        m->rgb[3 * i] = m->rgb[3 * i + 2];
        m->rgb[3 * i + 2] = red;
    }
}

/* From the second tile on everything stands one pixel to the right. */
static void shift_seam(h3_media *m, const h3_media *other)
{
    const int64_t start = 8;
    (void)other;
    for (int64_t t = 0; t < m->frames; t++)
        for (int64_t y = 0; y < m->height; y++) memmove(pixel(m, t, y, start + 1), pixel(m, t, y, start), (size_t)(m->width - start - 1) * 3);
}

static void stale_frame(h3_media *m, const h3_media *other)
{
    const size_t frame = (size_t)(m->height * m->width) * 3;
    memcpy(m->rgb + 5 * frame, other->rgb + 5 * frame, frame);
}

static void quiet_sound(h3_media *m, const h3_media *other)
{
    (void)other;
    for (int64_t i = 0; i < m->sound.channels * m->sound.frames; i++) m->sound.samples[i] *= 0.5f;
}

static void swap_sides(h3_media *m, const h3_media *other)
{
    const size_t bytes = (size_t)m->sound.frames * sizeof(float);
    memcpy(m->sound.samples, other->sound.samples + m->sound.frames, bytes);
    memcpy(m->sound.samples + m->sound.frames, other->sound.samples, bytes);
}

static void silence(h3_media *m, const h3_media *other)
{
    (void)other;
    memset(m->sound.samples, 0, (size_t)(m->sound.channels * m->sound.frames) * sizeof(float));
}

static void what_is_wrong_is_caught_and_named(void **state)
{
    static const struct { void (*break_it)(h3_media *m, const h3_media *other);
        int picture, sound;
    } cases[] = {{swap_channels, 0, 1}, {shift_seam, 0, 1}, {stale_frame, 0, 1}, {quiet_sound, 1, 0}, {swap_sides, 1, 0}, {silence, 1, 0}};
    h3_media reference = decoded(0), other = decoded(1);
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        h3_media wrong = copy(&reference);
        cases[i].break_it(&wrong, &other);
        h3_compare_media out = compared(&reference, &wrong);
        if (out.picture_ok != cases[i].picture || out.sound_ok != cases[i].sound)
            fail_msg("case %zu: picture %d, sound %d; PSNR %g SSIM %g SNR %g LSD %g", i, out.picture_ok, out.sound_ok, out.judged[0].value, out.judged[1].value, out.judged[2].value,
                     out.judged[3].value);
        h3_compare_seed seed = {.ok = 1};
        h3_compare_seed_media(&seed, &out);
        assert_false(seed.ok);
        h3_compare_media_free(&out);
        h3_media_free(&wrong);
    }
    h3_media_free(&reference);
    h3_media_free(&other);
}

static void equal_media_hold_every_limit(void **state)
{
    h3_media reference = decoded(0);
    cJSON *json;
    (void)state;
    h3_compare_media out = compared(&reference, &reference);
    assert_true(out.picture_ok && out.sound_ok);
    assert_true(out.judged[H3_LIMIT_PSNR_GLOBAL].identical && isinf(out.judged[H3_LIMIT_PSNR_GLOBAL].margin));
    assert_true(out.judged[H3_LIMIT_SSIM_MEAN].value == 1.0 && out.judged[H3_LIMIT_AUDIO_LSD].value == 0.0);
    assert_good(h3_judged_json(&json, out.judged));
    const cJSON *psnr = cJSON_GetObjectItem(json, "psnr_global_db");
    assert_true(cJSON_IsNull(cJSON_GetObjectItem(psnr, "value")) && cJSON_IsTrue(cJSON_GetObjectItem(psnr, "identical")) && cJSON_IsTrue(cJSON_GetObjectItem(psnr, "ok")));
    cJSON_Delete(json);
    h3_compare_media_free(&out);
    h3_media_free(&reference);
}

/* B = A + 1: 48.1308 dB; c = 0.9 r: 20 dB, level aside. */
static void known_distances(void **state)
{
    h3_media reference = decoded(0), c;
    (void)state;
    for (int64_t i = 0; i < reference.frames * reference.height * reference.width * 3; i++)
        if (reference.rgb[i] == 255) reference.rgb[i] = 254;
    c = copy(&reference);
    for (int64_t i = 0; i < c.frames * c.height * c.width * 3; i++) c.rgb[i]++;
    for (int64_t i = 0; i < 8000; i++) c.sound.samples[i] *= 0.875f; /* exact: SNR 20 log10 8 */
    h3_compare_media out = compared(&reference, &c);
    assert_true(fabs(out.judged[H3_LIMIT_PSNR_GLOBAL].value - 48.1308) < 1e-4 && fabs(out.judged[H3_LIMIT_AUDIO_SNR].value - 18.0618) < 1e-4);
    assert_true(fabs(out.judged[H3_LIMIT_AUDIO_SNR].margin - (18.0618 - 20.0)) < 1e-4);
    assert_true(out.picture_ok && !out.sound_ok && !out.judged[H3_LIMIT_AUDIO_SNR].ok && out.judged[H3_LIMIT_AUDIO_LSD].ok);
    h3_compare_media_free(&out);
    h3_media_free(&reference);
    h3_media_free(&c);
}

/* --- what cannot be compared --------------------------------------------------------------------------------------------- */

static void other_sizes_are_not_compared(void **state)
{
    static const char *const words[] = {"frames", "rows of pixels", "columns of pixels", "channels of sound", "samples of sound", "samples a second"};
    h3_media reference = decoded(0);
    const h3_media_facts facts[2] = {facts_of(&reference), facts_of(&reference)};
    (void)state;
    for (int i = 0; i < 6; i++) {
        h3_media other = reference; /* a view */
        h3_compare_media out;
        int64_t *sizes[] = {&other.frames, &other.height, &other.width, &other.sound.channels, &other.sound.frames, &other.sound.rate};
        *sizes[i] -= 1;
        assert_fails(h3_compare_media_run(&out, &reference, &other, facts, &acceptance), H3_INTEGRITY, words[i]);
        assert_null(out.video);
    }
    h3_media_free(&reference);
}

static void nothing_and_no_number_fail(void **state)
{
    h3_media reference = decoded(0), other;
    const h3_media_facts facts[2] = {facts_of(&reference), facts_of(&reference)};
    h3_compare_media out;
    h3_media none = {0};
    (void)state;
    assert_fails(h3_compare_media_run(&out, &none, &none, facts, &acceptance), H3_FAILED, "no frame");
    none = (h3_media){.rgb = reference.rgb, .frames = reference.frames, .height = reference.height, .width = reference.width};
    assert_fails(h3_compare_media_run(&out, &none, &none, facts, &acceptance), H3_FAILED, "no sample");
    other = copy(&reference);
    other.sound.samples[17] = NAN;
    assert_fails(h3_compare_media_run(&out, &reference, &other, facts, &acceptance), H3_FAILED, "the candidate's sound");
    assert_fails(h3_compare_media_run(&out, &other, &reference, facts, &acceptance), H3_FAILED, "sound");
    h3_media_free(&other);
    h3_media_free(&reference);
}

static void the_repeat_is_a_control(void **state)
{
    static const char good[] = "{\"repeat\":{\"repeats\":1,\"final\":[{\"seed\":42,\"video_rows\":\"v\",\"audio_rows\":\"a\"}]},"
                               "\"seeds\":[{\"seed\":42,\"final\":{\"video_rows\":\"v\",\"audio_rows\":\"a\"}}]}";
    static const char *const changes[][2] = {{"\"v\",\"audio_rows\":\"a\"}]", "\"w\",\"audio_rows\":\"a\"}]"}, {"\"a\"}]}", "\"b\"}]}"}, {"\"final\":[", "\"last\":["}};
    int repeated;
    (void)state;
    cJSON *report = cJSON_Parse(good), *without = cJSON_Parse("{\"repeat\":{\"repeats\":0},\"seeds\":[{\"seed\":42}]}");
    assert_good(h3_compare_media_repeat(&repeated, report, 0));
    assert_int_equal(repeated, 1);
    assert_good(h3_compare_media_repeat(&repeated, without, 0));
    assert_int_equal(repeated, 0);
    for (size_t i = 0; i < 3; i++) {
        char *text;
        const char *at = strstr(good, changes[i][0]);
        assert_non_null(at);
        assert_good(h3_format(&text, "%.*s%s%s", (int)(at - good), good, changes[i][1], at + strlen(changes[i][0])));
        cJSON *changed = cJSON_Parse(text);
        assert_non_null(changed);
        assert_fails(h3_compare_media_repeat(&repeated, changed, 0), H3_FAILED, "repeat of seed number 0 ended with other latents");
        cJSON_Delete(changed);
        free(text);
    }
    cJSON_Delete(report);
    cJSON_Delete(without);
}

/* The worst of three seeds, of each limit; a figure that is no number is the worst. */
static void the_worst_seed_of_every_limit(void **state)
{
    h3_compare_media media[3] = {{.judged = {{.margin = 5}, {.margin = 0.01}, {.margin = 3}, {.margin = 1}}},
                                 {.judged = {{.margin = 4}, {.margin = 0.02}, {.margin = NAN}, {.margin = 1}}},
                                 {.judged = {{.margin = INFINITY}, {.margin = 0.03}, {.margin = -7}, {.margin = 1}}}};
    h3_compare_seed seeds[3] = {{.seed = 42, .media = &media[0]}, {.seed = 43, .media = &media[1]}, {.seed = 44, .media = &media[2]}};
    static const int64_t worst[] = {43, 42, 43, 42};
    (void)state;
    for (int i = 0; i < H3_MEDIA_LIMITS; i++) assert_int_equal(h3_compare_worst_media(seeds, 3, i)->seed, worst[i]);
    seeds[0].media = NULL;
    assert_null(h3_compare_worst_media(seeds, 1, 0));
}

/* --- evidence on disk ---------------------------------------------------------------------------------------------------- */

#define SIDE "data/generate/candidate/seed42"

static h3_run_files written(const h3_media *m)
{
    h3_run_files files = {0};
    assert_good(h3_media_write_frames(&files, folder, SIDE, m, NULL));
    assert_good(h3_media_write_sound(&files, folder, SIDE, &m->sound));
    assert_int_equal(files.count, m->frames + 1);
    assert_string_equal(files.items[3].path, SIDE "/frames/frame_00003.png");
    assert_string_equal(files.items[m->frames].path, SIDE "/audio.wav");
    return files;
}

static void evidence_reads_back(void **state)
{
    h3_media media = decoded(0), back;
    const h3_media_facts facts = facts_of(&media);
    h3_media_facts parsed;
    cJSON *json;
    (void)state;
    h3_run_files files = written(&media);
    assert_good(h3_media_read(&back, folder, SIDE, &files, &facts, NULL));
    assert_memory_equal(back.rgb, media.rgb, (size_t)(media.frames * media.height * media.width) * 3);
    assert_memory_equal(back.sound.samples, media.sound.samples, 8000 * sizeof(float));
    h3_media_free(&back);
    assert_good(h3_media_verify(folder, &files, NULL));
    assert_good(h3_media_facts_json(&json, &facts, SIDE));
    assert_good(h3_media_facts_read(&parsed, json, "a report"));
    assert_memory_equal(&parsed, &facts, sizeof facts);
    cJSON_DeleteItemFromObject(cJSON_GetObjectItem(json, "audio"), "rate");
    assert_fails(h3_media_facts_read(&parsed, json, "a report"), H3_INTEGRITY, "rate");
    cJSON_Delete(json);
    h3_run_files_free(&files);
    h3_media_free(&media);
}

static void expect_refused(const h3_run_files *files, const h3_media_facts *facts, h3_status status, const char *word)
{
    h3_media back;
    assert_fails(h3_media_read(&back, folder, SIDE, files, facts, NULL), status, word);
    assert_null(back.rgb);
    assert_null(back.sound.samples);
}

static void put_file(const char *relative, const char *data, size_t size)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", folder, relative);
    assert_good(h3_publish(path, data, size));
}

static void a_stale_frame_is_named(void **state)
{
    h3_media media = decoded(0), other = decoded(1);
    const h3_media_facts facts = facts_of(&media);
    char *png;
    size_t size;
    (void)state;
    h3_run_files files = written(&media);
    assert_good(h3_picture_build(&png, &size, pixel(&other, 4, 0, 0), other.height, other.width));
    put_file(SIDE "/frames/frame_00004.png", png, size);
    expect_refused(&files, &facts, H3_INTEGRITY, "frame_00004.png has not the listed SHA-256");
    assert_fails(h3_media_verify(folder, &files, NULL), H3_INTEGRITY, "frame_00004.png");
    /* listed so, it is still not what the report has the hash of */
    files.items[4].size = (int64_t)size;
    assert_good(h3_sha256(files.items[4].sha256, png, size));
    free(png);
    expect_refused(&files, &facts, H3_INTEGRITY, "its frames are not the pictures");
    h3_run_files_free(&files);
    h3_media_free(&media);
    h3_media_free(&other);
}

static void one_sample_is_enough(void **state)
{
    h3_media media = decoded(0);
    const h3_media_facts facts = facts_of(&media);
    char *wav;
    size_t size;
    (void)state;
    h3_run_files files = written(&media);
    media.sound.samples[1234] = nextafterf(media.sound.samples[1234], 1.0f);
    assert_good(h3_wav_build(&wav, &size, &media.sound));
    put_file(SIDE "/audio.wav", wav, size);
    expect_refused(&files, &facts, H3_INTEGRITY, "audio.wav has not the listed SHA-256");
    assert_good(h3_sha256(files.items[media.frames].sha256, wav, size));
    free(wav);
    expect_refused(&files, &facts, H3_INTEGRITY, "its audio.wav is not the sound");
    h3_run_files_free(&files);
    h3_media_free(&media);
}

static void what_is_missing_or_too_much_is_named(void **state)
{
    h3_media media = decoded(0);
    h3_media_facts facts = facts_of(&media);
    char path[300];
    (void)state;
    h3_run_files files = written(&media);
    facts.shape.frames--;
    expect_refused(&files, &facts, H3_INTEGRITY, "more frames");
    facts.shape.frames += 2;
    expect_refused(&files, &facts, H3_INTEGRITY, "is not among the outputs");
    facts.shape.frames = 0;
    expect_refused(&files, &facts, H3_FAILED, "no frame or no sample");
    facts = facts_of(&media);
    facts.shape.rate = 48000;
    expect_refused(&files, &facts, H3_INTEGRITY, "at 48000");
    facts = facts_of(&media);
    facts.shape.width++;
    expect_refused(&files, &facts, H3_INTEGRITY, "pixels, its report says");
    facts = facts_of(&media);
    snprintf(path, sizeof path, "%s/" SIDE "/frames/frame_00002.png", folder);
    assert_int_equal(unlink(path), 0);
    expect_refused(&files, &facts, H3_INTEGRITY, "frame_00002.png is missing");
    h3_run_files_free(&files);
    h3_media_free(&media);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_wrong_is_caught_and_named),
        cmocka_unit_test(equal_media_hold_every_limit),
        cmocka_unit_test(known_distances),
        cmocka_unit_test(other_sizes_are_not_compared),
        cmocka_unit_test(nothing_and_no_number_fail),
        cmocka_unit_test(the_repeat_is_a_control),
        cmocka_unit_test(the_worst_seed_of_every_limit),
        cmocka_unit_test_setup_teardown(evidence_reads_back, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(a_stale_frame_is_named, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(one_sample_is_enough, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(what_is_missing_or_too_much_is_named, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
