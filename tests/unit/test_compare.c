/* The comparison of two generations: figures that can be said beforehand, and everything that must not pass. */
#include "golden_files.h"

#include <math.h>

#include "model/noise.h"
#include "model/scheduler.h"
#include "qualify/compare.h"
#include "qualify/generation.h"

static const h3_acceptance acceptance = {{34.0, 0.97, 20.0, 2.0, 0.05}};

enum { STEPS = 3, ROWS = 4, WIDTH = 4, AUDIO_ROWS = 2, COUNT = ROWS * WIDTH, AUDIO_COUNT = AUDIO_ROWS * WIDTH };

/* One seed of one side, with memory of its own. */
typedef struct side {
    float condition[WIDTH], video0[COUNT], audio0[AUDIO_COUNT], velocity_video[STEPS * COUNT],
        velocity_audio[STEPS * AUDIO_COUNT], video[COUNT], audio[AUDIO_COUNT];
    h3_tensor tensor[7];
    h3_compare_tensors tensors;
} side;

static void fill(float *out, int count, uint64_t seed)
{
    h3_generator generator;
    h3_generator_seed(&generator, seed);
    assert_good(h3_generator_normal(&generator, out, count));
}

static void point(side *s)
{
    s->tensor[0] = h3_tensor_view(s->condition, H3_F32, 2, H3_SHAPE(1, WIDTH));
    s->tensor[1] = h3_tensor_view(s->video0, H3_F32, 2, H3_SHAPE(ROWS, WIDTH));
    s->tensor[2] = h3_tensor_view(s->audio0, H3_F32, 2, H3_SHAPE(AUDIO_ROWS, WIDTH));
    s->tensor[3] = h3_tensor_view(s->velocity_video, H3_F32, 3, H3_SHAPE(STEPS, ROWS, WIDTH));
    s->tensor[4] = h3_tensor_view(s->velocity_audio, H3_F32, 3, H3_SHAPE(STEPS, AUDIO_ROWS, WIDTH));
    s->tensor[5] = h3_tensor_view(s->video, H3_F32, 2, H3_SHAPE(ROWS, WIDTH));
    s->tensor[6] = h3_tensor_view(s->audio, H3_F32, 2, H3_SHAPE(AUDIO_ROWS, WIDTH));
    s->tensors = (h3_compare_tensors){&s->tensor[0], &s->tensor[1], &s->tensor[2], &s->tensor[3],
                                      &s->tensor[4], &s->tensor[5], &s->tensor[6]};
}

static void make_pair(side *p, side *c)
{
    memset(p, 0, sizeof *p);
    fill(p->condition, WIDTH, 1);
    fill(p->video0, COUNT, 2);
    fill(p->audio0, AUDIO_COUNT, 3);
    fill(p->velocity_video, STEPS * COUNT, 4);
    fill(p->velocity_audio, STEPS * AUDIO_COUNT, 5);
    fill(p->video, COUNT, 6);
    fill(p->audio, AUDIO_COUNT, 7);
    *c = *p;
    point(p);
    point(c);
}

static void scale(float *values, int count, float factor)
{
    for (int i = 0; i < count; i++) values[i] *= factor;
}

static h3_compare_seed run(const side *p, const side *c)
{
    h3_compare_seed out;
    assert_good(h3_compare_seed_run(&out, 42, &p->tensors, &c->tensors, &acceptance));
    return out;
}

/* --- figures ----------------------------------------------------------------------------------------------------------- */

static void equal_sides_have_no_error(void **state)
{
    side p, c;
    (void)state;
    make_pair(&p, &c);
    h3_compare_seed seed = run(&p, &c);
    assert_true(seed.ok && seed.worst == 0.0 && seed.video.margin == 0.05 && seed.audio.margin == 0.05);
    assert_int_equal(seed.video.steps, STEPS);
    for (int i = 0; i < STEPS; i++) assert_true(seed.video.velocity_error[i] == 0.0 && seed.audio.velocity_error[i] == 0.0);
    h3_compare_seed_free(&seed);
}

/* x = s g has error |s - 1|: powers of two keep every product exact. */
static void a_scaled_side_has_its_factor(void **state)
{
    side p, c;
    (void)state;
    make_pair(&p, &c);
    scale(c.video, COUNT, 1.03125f);
    scale(c.audio, AUDIO_COUNT, 1.0625f);
    scale(c.velocity_video + 2 * COUNT, COUNT, 1.5f);
    scale(c.velocity_audio, AUDIO_COUNT, 0.5f);
    h3_compare_seed seed = run(&p, &c);
    assert_true(fabs(seed.video.latent_error - 0.03125) < 1e-7 && seed.video.ok);
    assert_true(fabs(seed.video.margin - (0.05 - 0.03125)) < 1e-7);
    assert_true(fabs(seed.audio.latent_error - 0.0625) < 1e-7 && !seed.audio.ok && !seed.ok);
    assert_true(seed.worst_is_audio && seed.worst == seed.audio.latent_error);
    assert_true(fabs(seed.video.velocity_error[2] - 0.5) < 1e-7 && seed.video.velocity_error[1] == 0.0);
    assert_int_equal(seed.video.worst_step, 2);
    assert_int_equal(seed.audio.worst_step, 0);
    assert_true(fabs(seed.audio.velocity_error[0] - 0.5) < 1e-7);
    h3_compare_seed_free(&seed);
}

static void nan_fails(void **state)
{
    (void)state;
    for (int where = 0; where < 3; where++) {
        side p, c;
        make_pair(&p, &c);
        if (where == 0) c.video[5] = NAN;
        if (where == 1) c.velocity_audio[AUDIO_COUNT] = INFINITY;
        if (where == 2) p.audio[0] = NAN;
        h3_compare_seed seed = run(&p, &c);
        assert_false(seed.ok);
        if (where == 0) assert_true(isnan(seed.worst) && !seed.worst_is_audio && !seed.video.ok);
        if (where == 1) assert_true(!seed.audio.ok && seed.audio.worst_step == 1 && seed.video.ok);
        if (where == 2) assert_true(isnan(seed.worst) && seed.worst_is_audio);
        h3_compare_seed_free(&seed);
    }
}

static void nothing_to_compare_fails(void **state)
{
    side p, c;
    h3_compare_seed seed;
    cJSON *json;
    int ok;
    (void)state;
    make_pair(&p, &c);
    p.tensor[5].shape[0] = c.tensor[5].shape[0] = 0;
    assert_fails(h3_compare_seed_run(&seed, 42, &p.tensors, &c.tensors, &acceptance), H3_FAILED, "empty");
    make_pair(&p, &c);
    for (int i = 3; i <= 4; i++) p.tensor[i].shape[0] = c.tensor[i].shape[0] = 0;
    assert_fails(h3_compare_seed_run(&seed, 42, &p.tensors, &c.tensors, &acceptance), H3_FAILED, "empty");
    assert_fails(h3_compare_json(&json, &ok, NULL, 0, NULL, &acceptance), H3_FAILED, "no seed");
}

/* --- preconditions of a seed ------------------------------------------------------------------------------------------- */

static void expect_unequal(const side *p, const side *c, const char *word)
{
    h3_compare_seed seed;
    assert_fails(h3_compare_seed_run(&seed, 42, &p->tensors, &c->tensors, &acceptance), H3_INTEGRITY, word);
    assert_null(seed.video.velocity_error);
}

static void other_noise_is_not_compared(void **state)
{
    side p, c;
    (void)state;
    make_pair(&p, &c);
    c.video0[3] = nextafterf(c.video0[3], 9.0f);
    expect_unequal(&p, &c, "video_rows0");
    make_pair(&p, &c);
    c.audio0[0] = -c.audio0[0];
    expect_unequal(&p, &c, "audio_rows0");
    make_pair(&p, &c);
    c.condition[1] += 1.0f;
    expect_unequal(&p, &c, "condition_rows");
    make_pair(&p, &c);
    c.tensors.condition_rows = NULL;
    expect_unequal(&p, &c, "one side only");
    /* +0 and -0 are different bytes. */
    make_pair(&p, &c);
    p.video0[0] = 0.0f;
    c.video0[0] = -0.0f;
    expect_unequal(&p, &c, "video_rows0");
}

static void other_shapes_are_not_compared(void **state)
{
    static const char *const names[] = {"condition_rows", "video_rows0", "audio_rows0", "velocity.video",
                                        "velocity.audio", "video_rows",  "audio_rows"};
    (void)state;
    for (int i = 0; i < 7; i++) {
        side p, c;
        make_pair(&p, &c);
        c.tensor[i].shape[c.tensor[i].rank - 1] /= 2;
        expect_unequal(&p, &c, names[i]);
    }
    side p, c;
    make_pair(&p, &c);
    p.tensor[4].shape[0] = c.tensor[4].shape[0] = STEPS - 1;
    expect_unequal(&p, &c, "equal steps");
}

/* --- preconditions of the reports -------------------------------------------------------------------------------------- */

static void add_digest(cJSON *object, const char *key, const float *values, size_t count)
{
    char digest[H3_SHA256_HEX];
    assert_good(h3_digest(digest, values, count * sizeof *values));
    cJSON_AddStringToObject(object, key, digest);
}

/* Noise of 16 condition, 32 video and 16 audio elements from one generator; `swapped`: video first. */
static cJSON *noise_of(int64_t seed, int swapped)
{
    float condition[16], video[32], audio[16];
    h3_generator generator;
    h3_generator_seed(&generator, (uint64_t)seed);
    if (!swapped) assert_good(h3_generator_normal(&generator, condition, 16));
    assert_good(h3_generator_normal(&generator, video, 32));
    if (swapped) assert_good(h3_generator_normal(&generator, condition, 16));
    assert_good(h3_generator_normal(&generator, audio, 16));
    cJSON *noise = cJSON_CreateObject();
    add_digest(noise, "condition_rows", condition, 16);
    add_digest(noise, "video_rows0", video, 32);
    add_digest(noise, "audio_rows0", audio, 16);
    return noise;
}

/* The part of a report that the comparison looks at. `ulp`: this many video sigmas are one unit in the last place off. */
static cJSON *report_of(int ulp, int swapped)
{
    static const char *const rest[] = {"contract_sha256", "overrides", "model",       "fingerprint",
                                       "precision",       "layout",    "conditioning"};
    h3_schedule schedule;
    char sigma[H3_SHA256_HEX], timestep[H3_SHA256_HEX];
    cJSON *report = cJSON_CreateObject(), *sampling, *video, *seeds;
    cJSON_AddStringToObject(report, "schema", "h3-generation-v1");
    cJSON_AddStringToObject(report, "plan_sha256", "p");
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++)
        cJSON_AddNumberToObject(cJSON_AddObjectToObject(report, rest[i]), "x", 1);
    assert_good(h3_schedule_new(&schedule, 50, 12));
    if (ulp) schedule.sigma[17] = nextafterf(schedule.sigma[17], 0.0f);
    assert_good(h3_schedule_sha256(sigma, timestep, &schedule));
    h3_schedule_free(&schedule);
    sampling = cJSON_AddObjectToObject(report, "sampling");
    cJSON_AddNumberToObject(sampling, "evaluations", 49);
    video = cJSON_AddObjectToObject(sampling, "video");
    cJSON_AddStringToObject(video, "sigma_sha256", sigma);
    cJSON_AddStringToObject(video, "timestep_sha256", timestep);
    seeds = cJSON_AddArrayToObject(report, "seeds");
    for (int64_t seed = 42; seed <= 43; seed++) {
        cJSON *item = cJSON_CreateObject();
        cJSON_AddNumberToObject(item, "seed", (double)seed);
        cJSON_AddItemToObject(item, "noise", noise_of(seed, swapped && seed == 43));
        cJSON_AddItemToArray(seeds, item);
    }
    return report;
}

static void expect_refused(cJSON *provider, cJSON *candidate, h3_status status, const char *word)
{
    assert_fails(h3_compare_reports(provider, candidate), status, word);
    cJSON_Delete(provider);
    cJSON_Delete(candidate);
}

static void equal_reports_are_comparable(void **state)
{
    cJSON *provider = report_of(0, 0), *candidate = report_of(0, 0);
    (void)state;
    /* What the operators make may differ. */
    cJSON_AddStringToObject(provider, "bindings", "a");
    cJSON_AddStringToObject(candidate, "bindings", "b");
    assert_good(h3_compare_reports(provider, candidate));
    cJSON_Delete(provider);
    cJSON_Delete(candidate);
}

static void unequal_reports_are_not(void **state)
{
    static const char *const fields[] = {"schema",      "plan_sha256", "contract_sha256", "overrides", "model",
                                         "fingerprint", "precision",   "layout",          "sampling",  "conditioning"};
    (void)state;
    expect_refused(report_of(0, 0), report_of(1, 0), H3_INTEGRITY, "differ in sampling.video.sigma_sha256");
    expect_refused(report_of(0, 1), report_of(0, 0), H3_INTEGRITY, "seed 43 noise.condition_rows");
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        cJSON *changed = report_of(0, 0), *missing = report_of(0, 0);
        cJSON_ReplaceItemInObject(changed, fields[i], cJSON_CreateString("other"));
        expect_refused(report_of(0, 0), changed, H3_INTEGRITY, fields[i]);
        cJSON_DeleteItemFromObject(missing, fields[i]);
        expect_refused(missing, report_of(0, 0), H3_INTEGRITY, fields[i]);
    }
}

/* Decoders and, for both seeds, what they made. */
static cJSON *decoded_report(const char *profile, int64_t rate, int64_t frames)
{
    cJSON *report = report_of(0, 0), *seed;
    cJSON_AddStringToObject(cJSON_AddObjectToObject(report, "decoders"), "profile", profile);
    cJSON_ArrayForEach(seed, cJSON_GetObjectItem(report, "seeds"))
    {
        const h3_media_facts facts = {.shape = {frames, 16, 24, 2, 29600, rate}, .rgb_sha256 = "of this side", .sound_sha256 = "of this side too"};
        cJSON *json;
        assert_good(h3_media_facts_json(&json, &facts, "somewhere"));
        cJSON_AddItemToObject(seed, "media", json);
    }
    return report;
}

static void other_decoders_or_formats_are_not_comparable(void **state)
{
    cJSON *provider = decoded_report("half", 32000, 22), *candidate = decoded_report("half", 32000, 22);
    (void)state;
    /* what was decoded may differ, and where it lies */
    cJSON *media = cJSON_GetObjectItem(cJSON_GetArrayItem(cJSON_GetObjectItem(candidate, "seeds"), 1), "media");
    cJSON_ReplaceItemInObject(media, "folder", cJSON_CreateString("elsewhere"));
    cJSON_ReplaceItemInObject(cJSON_GetObjectItem(media, "video"), "sha256", cJSON_CreateString("another"));
    assert_good(h3_compare_reports(provider, candidate));
    cJSON_DeleteItemFromObject(media, "video");
    expect_refused(provider, candidate, H3_INTEGRITY, "candidate has no seed 43 media.video.frames");
    expect_refused(decoded_report("half", 32000, 22), decoded_report("fp32", 32000, 22), H3_INTEGRITY, "differ in decoders.profile");
    expect_refused(decoded_report("half", 32000, 22), report_of(0, 0), H3_INTEGRITY, "candidate has no decoders");
    cJSON *fused = decoded_report("half", 32000, 22), *own = decoded_report("half", 32000, 22);
    cJSON_AddStringToObject(cJSON_GetObjectItem(fused, "decoders"), "attention", "cudnn-9.14.0-eng5-k24=7");
    cJSON_AddStringToObject(cJSON_GetObjectItem(own, "decoders"), "attention", "own-mma-v1");
    expect_refused(fused, own, H3_INTEGRITY, "differ in decoders.attention");
    expect_refused(decoded_report("half", 32000, 22), decoded_report("half", 44100, 22), H3_INTEGRITY, "differ in seed 42 media.audio.rate");
    expect_refused(decoded_report("half", 32000, 22), decoded_report("half", 32000, 39), H3_INTEGRITY, "differ in seed 42 media.video.frames");
}

static void other_seeds_are_not_comparable(void **state)
{
    cJSON *fewer = report_of(0, 0), *other = report_of(0, 0), *none = report_of(0, 0), *empty = report_of(0, 0),
          *still = report_of(0, 0), *too = report_of(0, 0);
    (void)state;
    cJSON_DeleteItemFromArray(cJSON_GetObjectItem(fewer, "seeds"), 1);
    expect_refused(report_of(0, 0), fewer, H3_INTEGRITY, "2 seeds, the candidate 1");
    cJSON_SetNumberValue(cJSON_GetObjectItem(cJSON_GetArrayItem(cJSON_GetObjectItem(other, "seeds"), 1), "seed"), 44);
    expect_refused(report_of(0, 0), other, H3_INTEGRITY, "seeds[1].seed");
    cJSON_ReplaceItemInObject(none, "seeds", cJSON_CreateArray());
    cJSON_ReplaceItemInObject(empty, "seeds", cJSON_CreateArray());
    expect_refused(none, empty, H3_FAILED, "empty");
    cJSON_SetNumberValue(cJSON_GetObjectItem(cJSON_GetObjectItem(still, "sampling"), "evaluations"), 0);
    cJSON_SetNumberValue(cJSON_GetObjectItem(cJSON_GetObjectItem(too, "sampling"), "evaluations"), 0);
    expect_refused(still, too, H3_FAILED, "empty");
}

/* --- artifacts against reports, and the result ------------------------------------------------------------------------- */

static void an_artifact_must_be_the_reports(void **state)
{
    static h3_artifact_entry entries[] = {{.name = "audio_rows", .digest = "a"},
                                          {.name = "audio_rows0", .digest = "b"},
                                          {.name = "velocity.audio"},
                                          {.name = "velocity.video"},
                                          {.name = "video_rows", .digest = "c"},
                                          {.name = "video_rows0", .digest = "d"}};
    h3_artifact artifact = {.path = "x.h5", .count = 6, .entries = entries};
    h3_compare_tensors tensors;
    cJSON *report = cJSON_Parse("{\"noise\": {\"condition_rows\": null, \"video_rows0\": \"d\", \"audio_rows0\": \"b\"}, "
                                "\"final\": {\"video_rows\": \"c\", \"audio_rows\": \"a\"}}");
    (void)state;
    assert_good(h3_compare_tensors_of(&tensors, &artifact, report));
    assert_null(tensors.condition_rows);
    assert_ptr_equal(tensors.video_rows, &entries[4].tensor);
    cJSON_ReplaceItemInObject(cJSON_GetObjectItem(report, "final"), "audio_rows", cJSON_CreateString("z"));
    assert_fails(h3_compare_tensors_of(&tensors, &artifact, report), H3_INTEGRITY, "audio_rows has not the digest");
    artifact.count = 5;
    assert_fails(h3_compare_tensors_of(&tensors, &artifact, report), H3_INTEGRITY, "video_rows0");
    cJSON_DeleteItemFromObject(report, "final");
    assert_fails(h3_compare_tensors_of(&tensors, &artifact, report), H3_INTEGRITY, "no digests");
    cJSON_Delete(report);
}

static void the_worst_seed_comes_first(void **state)
{
    side p, c;
    h3_compare_seed seeds[4];
    static const float factors[] = {1.0f, 1.0625f, 1.03125f, 1.0625f};
    cJSON *json, *report = report_of(0, 0);
    int ok;
    (void)state;
    for (int i = 0; i < 4; i++) {
        make_pair(&p, &c);
        scale(c.video, COUNT, factors[i]);
        seeds[i] = run(&p, &c);
        seeds[i].seed = 42 + i;
    }
    h3_compare_sort(seeds, 4);
    static const int64_t order[] = {43, 45, 44, 42};
    for (int i = 0; i < 4; i++) assert_int_equal(seeds[i].seed, order[i]);
    assert_good(h3_compare_json(&json, &ok, seeds, 4, report, &acceptance));
    assert_false(ok);
    assert_string_equal(json_text(json, "verdict"), "failed");
    assert_true(fabs(json_get(json_get(json, "worst"), "margin")->valuedouble - (0.05 - 0.0625)) < 1e-7);
    assert_int_equal(cJSON_GetArraySize(json_get(json, "seeds")), 4);
    assert_int_equal(cJSON_GetArraySize(json_get(json, "not_judged")), H3_LIMIT_COUNT - 1);
    cJSON_Delete(json);
    /* Without the two bad ones it passes; a NaN comes before everything. */
    assert_good(h3_compare_json(&json, &ok, seeds + 2, 2, report, &acceptance));
    assert_true(ok);
    assert_string_equal(json_text(json, "verdict"), "passed");
    cJSON_Delete(json);
    seeds[3].worst = NAN;
    h3_compare_sort(seeds, 4);
    assert_int_equal(seeds[0].seed, 42);
    for (int i = 0; i < 4; i++) h3_compare_seed_free(&seeds[i]);
    cJSON_Delete(report);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_sides_have_no_error),
        cmocka_unit_test(a_scaled_side_has_its_factor),
        cmocka_unit_test(nan_fails),
        cmocka_unit_test(nothing_to_compare_fails),
        cmocka_unit_test(other_noise_is_not_compared),
        cmocka_unit_test(other_shapes_are_not_compared),
        cmocka_unit_test(equal_reports_are_comparable),
        cmocka_unit_test(unequal_reports_are_not),
        cmocka_unit_test(other_decoders_or_formats_are_not_comparable),
        cmocka_unit_test(other_seeds_are_not_comparable),
        cmocka_unit_test(an_artifact_must_be_the_reports),
        cmocka_unit_test(the_worst_seed_comes_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
