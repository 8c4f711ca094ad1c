#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/log.h"
#include "model/safetensors.h"
#include "qualify/generation.h"
#include "qualify/metrics.h"
#include "sampled.h"
#include "whole.h"

enum { SEED = 42 };

typedef struct comparison {
    golden_result *result;
    const char *disturb;
    h3_safetensors file;
    h3_generation generation;
    h3_generation_inputs inputs;
} comparison;

/* --- what the golden was made with ----------------------------------------------------------------------------------- */

/* Metadata are texts, numbers too. */
static h3_status text_number(int64_t *out, const cJSON *metadata, const char *key, const char *path)
{
    const char *text;
    char *end;
    H3_TRY(h3_json_string(&text, metadata, key, path, H3_INTEGRITY));
    *out = strtoll(text, &end, 10);
    if (end == text || *end != 0 || *out < 0) return h3_error(H3_INTEGRITY, "%s: \"%s\" is %s, no number", path, key, text);
    return H3_OK;
}

static h3_status read_layout(h3_layout_args *out, const cJSON *metadata, const char *path)
{
    const char *text;
    cJSON *layout;
    H3_TRY(h3_json_string(&text, metadata, "layout", path, H3_INTEGRITY));
    H3_TRY(h3_json_parse(&layout, text, strlen(text), path, H3_INTEGRITY));
    h3_status status = h3_plan_layout_args(out, layout, path);
    cJSON_Delete(layout);
    return status;
}

static h3_status read_settings(comparison *c, const char *path)
{
    cJSON *metadata;
    int64_t text_seed = 0, weight_seed = 0, points = 0;
    if (c->file.metadata == NULL) return h3_error(H3_INTEGRITY, "%s does not say how it was made", path);
    H3_TRY(h3_json_parse(&metadata, c->file.metadata, strlen(c->file.metadata), path, H3_INTEGRITY));
    h3_status status = read_layout(&c->generation.layout, metadata, path);
    if (status == H3_OK) status = text_number(&points, metadata, "steps", path);
    if (status == H3_OK) status = text_number(&text_seed, metadata, "text_seed", path);
    if (status == H3_OK) status = text_number(&weight_seed, metadata, "weight_seed", path);
    cJSON_Delete(metadata);
    H3_TRY(status);
    if (weight_seed != 0) return h3_error(H3_INTEGRITY, "%s is of weight seed %lld; 0 is what runs here", path, (long long)weight_seed);
    c->generation.points = points;
    c->generation.video_shift = 12;
    c->generation.audio_shift = 3;
    c->generation.condition_time = 0.999;
    c->generation.seed_count = 1;
    c->generation.seeds[0] = SEED;
    c->generation.conditioning_seed = (uint64_t)text_seed;
    return H3_OK;
}

/* --- comparing ------------------------------------------------------------------------------------------------------- */

static h3_status golden_of(const comparison *c, const char *precision, const char *name, int64_t count, const h3_tensor **out)
{
    char key[96];
    snprintf(key, sizeof key, "%sseed%d.%.48s", precision, SEED, name);
    *out = h3_safetensors_find(&c->file, key);
    if (*out == NULL || (*out)->dtype != H3_F32 || h3_tensor_count(*out) != count)
        return h3_error(H3_INTEGRITY, "%s has no %s of %lld float32 values", c->file.path, key, (long long)count);
    return H3_OK;
}

/* The same bytes as the golden's; the error is how many values differ. */
static h3_status must_equal(const comparison *c, const char *name, const float *values, int64_t count)
{
    const h3_tensor *golden;
    int64_t differing = 0;
    H3_TRY(golden_of(c, "", name, count, &golden));
    for (int64_t i = 0; i < count; i++) {
        const float x = i == count - 1 && strcmp(c->disturb, name) == 0 ? -values[i] : values[i];
        differing += memcmp((const char *)golden->data + 4 * i, &x, sizeof x) != 0;
    }
    sampled_note(c->result, name, count > 0 ? (double)differing : NAN, 0.5);
    return H3_OK;
}

static h3_status must_be_near(const comparison *c, const char *name, const float *values, int64_t count, double bound)
{
    const h3_tensor *golden;
    const double factor = strcmp(c->disturb, name) == 0 ? 1.2 : 1.0;
    double sum = 0.0, norm = 0.0;
    H3_TRY(golden_of(c, "bf16.", name, count, &golden));
    for (int64_t i = 0; i < count; i++) {
        double g = sampled_value(golden, i), d = (double)values[i] * factor - g;
        sum += d * d;
        norm += g * g;
    }
    double error = sqrt(sum) / sqrt(norm);
    h3_say("  generation %-18s distance %.4g%s", name, error, isinf(bound) ? ", reported only" : "");
    sampled_note(c->result, name, error, bound);
    return H3_OK;
}

static h3_status compare_start(const comparison *c, const h3_flow *flow)
{
    const h3_layout *layout = &c->inputs.layout;
    const int64_t conditions = layout->condition_rows * c->inputs.video_row;
    H3_TRY(must_equal(c, "condition_rows", flow->start_video.data, conditions));
    H3_TRY(must_equal(c, "video_rows0", (const float *)flow->start_video.data + conditions, layout->target_rows * c->inputs.video_row));
    return must_equal(c, "audio_rows0", flow->start_audio.data, layout->audio_rows * c->inputs.audio_row);
}

static h3_status compare_end(const comparison *c, const h3_flow *flow)
{
    static const int64_t steps[] = {0, 24, 48};
    const h3_layout *layout = &c->inputs.layout;
    const int64_t conditions = layout->condition_rows * c->inputs.video_row;
    const int64_t count[2] = {layout->target_rows * c->inputs.video_row, layout->audio_rows * c->inputs.audio_row};
    for (int i = 0; i < 3; i++) {
        char name[48];
        const double bound = steps[i] == 0 ? 0.02 : INFINITY;
        if (steps[i] >= c->inputs.video.points - 1) return h3_error(H3_INTEGRITY, "%s: %lld grid points do not reach step %lld", c->file.path, (long long)c->inputs.video.points, (long long)steps[i]);
        snprintf(name, sizeof name, "velocity%lld.video", (long long)steps[i]);
        H3_TRY(must_be_near(c, name, (const float *)flow->velocity_video.data + steps[i] * count[0], count[0], bound));
        snprintf(name, sizeof name, "velocity%lld.audio", (long long)steps[i]);
        H3_TRY(must_be_near(c, name, (const float *)flow->velocity_audio.data + steps[i] * count[1], count[1], bound));
    }
    H3_TRY(must_be_near(c, "video_rows49", (const float *)flow->video.data + conditions, count[0], 0.05));
    H3_TRY(must_be_near(c, "audio_rows49", flow->audio.data, count[1], 0.05));
    /* No step may touch the condition rows. */
    return must_equal(c, "condition_rows", flow->video.data, conditions);
}

static h3_status sample(comparison *c, whole *w, golden_mode mode)
{
    whole_model m;
    h3_sampling sampling;
    double start = h3_clock();
    H3_TRY(whole_model_open(&m, w, mode, w->config.num_layers));
    whole_say(w, "generation: opened", mode, h3_clock() - start);
    h3_status status = h3_sampling_new(&sampling, &c->generation, &c->inputs, &m.model, NULL, 0);
    if (status == H3_OK) {
        start = h3_clock();
        status = compare_start(c, &sampling.flows[0]);
        if (status == H3_OK) status = h3_sampling_run(&sampling);
        if (status == H3_OK) whole_say(w, "generation: all steps", mode, h3_clock() - start);
        if (status == H3_OK) status = compare_end(c, &sampling.flows[0]);
        h3_sampling_free(&sampling);
    }
    whole_model_close(&m);
    return status;
}

h3_status whole_generation(golden_result *out, whole *w, golden_mode mode, const char *disturb)
{
    char path[H3_PATH_MAX];
    comparison c = {.result = out, .disturb = disturb};
    memset(out, 0, sizeof *out);
    out->expected = 12; /* three of the start, three velocities and the last rows of both modalities, the condition rows at the end */
    if (mode == GOLDEN_FP32) return h3_error(H3_USAGE, "the generation golden is of BF16");
    H3_TRY(h3_safetensors_open(&c.file, golden_folder(path, "generation/released.safetensors")));
    h3_status status = read_settings(&c, path);
    if (status == H3_OK) status = h3_generation_inputs_new(&c.inputs, &c.generation, &w->config);
    if (status == H3_OK) status = sample(&c, w, mode);
    h3_generation_inputs_free(&c.inputs);
    h3_safetensors_close(&c.file);
    return status;
}
