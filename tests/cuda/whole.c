#include "whole.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/log.h"
#include "graph/device_cuda.h"
#include "model/safetensors.h"
#include "qualify/metrics.h"
#include "released.h"
#include "sampled.h"

enum { WEIGHT_SEED = 0, INPUT_SEED = 7 };

const char *const golden_mode_names[] = {[GOLDEN_FP32] = "fp32", [GOLDEN_BF16] = "bf16", [GOLDEN_CANDIDATE] = "candidate"};

/* --- opening -------------------------------------------------------------------------------------------------------- */

static h3_status open_all(whole *w, const h3_config *config)
{
    char path[H3_PATH_MAX], name[] = "libh3_provider_{device}.so";
    if (config != NULL) w->config = *config;
    else H3_TRY(released_config(&w->config));
    h3_text_for_device(name, h3_device_name(w->device->kind));
    H3_TRY(h3_library_open(&w->provider, name));
    return h3_json_read(&w->layouts, golden_folder(path, "layouts.json"), H3_INTEGRITY);
}

h3_status whole_open(whole *out, const h3_device *device, const h3_config *config)
{
    memset(out, 0, sizeof *out);
    out->device = device;
    h3_status status = open_all(out, config);
    if (status != H3_OK) whole_close(out);
    return status;
}

void whole_close(whole *w)
{
    h3_bindings_close(&w->candidate);
    h3_library_close(&w->provider);
    cJSON_Delete(w->layouts);
    memset(w, 0, sizeof *w);
}

h3_status whole_model_open(whole_model *out, whole *w, golden_mode mode, int64_t layers)
{
    h3_config config = w->config;
    char name[] = "libh3_candidate_{device}.so";
    memset(out, 0, sizeof *out);
    h3_text_for_device(name, h3_device_name(w->device->kind));
    if (mode == GOLDEN_CANDIDATE && w->candidate.library_count == 0) H3_TRY(h3_bindings_single(&w->candidate, name));
    config.num_layers = layers;
    H3_TRY(h3_weights_synthetic(&out->weights, &config, WEIGHT_SEED));
    h3_status status = h3_model_open(&out->model, out->weights, w->device, mode == GOLDEN_FP32 ? H3_F32 : H3_BF16, &w->provider,
                                     mode == GOLDEN_CANDIDATE ? w->candidate.operators : NULL, 0, layers);
    if (status != H3_OK) whole_model_close(out);
    return status;
}

void whole_model_close(whole_model *m)
{
    h3_model_close(&m->model);
    h3_weights_free(m->weights);
    memset(m, 0, sizeof *m);
}

void whole_say(const whole *w, const char *what, golden_mode mode, double seconds)
{
    size_t taken, most;
    h3_cuda_memory(&taken, &most);
    if (w->device->kind == H3_DEVICE_CUDA) h3_say("  %s %s: %.1f s, GPU memory now %.1f GB, at most %.1f GB so far", what, golden_mode_names[mode], seconds, (double)taken / 1e9, (double)most / 1e9);
    else h3_say("  %s %s: %.1f s", what, golden_mode_names[mode], seconds);
}

h3_status whole_inputs(h3_plan_inputs *out, const whole *w, const char *name)
{
    h3_plan_layout layout = {.video_time = 0.25, .audio_time = 0.5625, .condition_time = 0.999, .input_seed = INPUT_SEED};
    memset(out, 0, sizeof *out);
    H3_TRY(h3_plan_layout_args(&layout.args, cJSON_GetObjectItemCaseSensitive(w->layouts, name), "layouts.json"));
    return h3_plan_inputs_new(out, &layout, &w->config);
}

int whole_block_output(const char *name, long long *block)
{
    int end = 0;
    return sscanf(name, "node.block%lld.residual_mlp%n", block, &end) == 1 && end > 0 && name[end] == 0;
}

/* --- deep ----------------------------------------------------------------------------------------------------------- */

typedef struct deep {
    whole *w;
    golden_result *result;
    golden_mode mode;
    const char *disturb;
    h3_safetensors samples;
    cJSON *report;
    h3_progress progress;
} deep;

static h3_status compare_deep(deep *d, const char *name, const h3_tensor *x)
{
    char key[200];
    snprintf(key, sizeof key, "fp32.%.180s", name);
    const h3_tensor *golden = h3_safetensors_find(&d->samples, key);
    snprintf(key, sizeof key, "bf16.%.180s", name);
    const h3_tensor *rounded = h3_safetensors_find(&d->samples, key);
    if (golden == NULL || rounded == NULL) return h3_error(H3_INTEGRITY, "the deep golden samples have no %s", name);
    const cJSON *entry = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(d->report, "tensors"), name);
    double scale = sampled_scale(entry, h3_tensor_count(x), h3_tensor_count(golden)), p = sampled_distance(rounded, golden, scale);
    double error = sampled_error(x, golden, scale, strcmp(d->disturb, name) == 0 ? 1.02 : 1.0);
    double bound = d->mode == GOLDEN_FP32 ? 1e-4 : h3_is_gradient(name) ? 1.5 * p + 5e-3 : 1.25 * p + 1e-3;
    sampled_note(d->result, name, error, bound);
    return H3_OK;
}

static h3_status deep_tensor(void *user, int64_t block, const char *name, const h3_tensor *tensor)
{
    deep *d = user;
    char own[200];
    long long number;
    h3_tensor host;
    (void)block;
    snprintf(own, sizeof own, "%.190s", name);
    if (whole_block_output(name, &number)) {
        snprintf(own, sizeof own, "block_out.%lld", number);
        h3_progress_add(&d->progress, 1);
    } else if (strncmp(name, "out.", 4) != 0 && strncmp(name, "grad.", 5) != 0) {
        return H3_OK;
    }
    H3_TRY(h3_device_borrow(&host, d->w->device, tensor));
    h3_status status = compare_deep(d, own, &host);
    h3_device_return(&host, d->w->device);
    return status;
}

static h3_status deep_run(deep *d, int64_t layers)
{
    whole_model m;
    h3_plan_inputs inputs;
    h3_pass *pass = NULL;
    h3_sink sink = {.tensor = deep_tensor, .user = d};
    double start = h3_clock();
    H3_TRY(whole_inputs(&inputs, d->w, "s264"));
    h3_status status = whole_model_open(&m, d->w, d->mode, layers);
    if (status == H3_OK) {
        whole_say(d->w, "deep: opened", d->mode, h3_clock() - start);
        h3_progress_start(&d->progress, "deep", "blocks", layers);
        start = h3_clock();
        status = h3_model_forward(&m.model, &inputs.sequence, &sink, &pass, NULL, NULL);
        if (status == H3_OK) status = h3_model_backward(&m.model, pass, &sink);
        h3_progress_end(&d->progress);
        if (status == H3_OK) whole_say(d->w, "deep: forward, backward and comparison", d->mode, h3_clock() - start);
        h3_pass_free(pass, &m.model);
        whole_model_close(&m);
    }
    h3_plan_inputs_free(&inputs);
    return status;
}

static int count_deep(const deep *d)
{
    int count = 0;
    for (size_t i = 0; i < d->samples.count; i++) count += strncmp(d->samples.entries[i].name, "fp32.", 5) == 0;
    return count;
}

h3_status whole_deep(golden_result *out, whole *w, golden_mode mode, const char *disturb)
{
    char path[H3_PATH_MAX];
    int64_t layers = 0;
    deep d = {.w = w, .result = out, .mode = mode, .disturb = disturb};
    memset(out, 0, sizeof *out);
    h3_status status = h3_safetensors_open(&d.samples, golden_folder(path, "released-dims/deep-samples.safetensors"));
    if (status == H3_OK) status = h3_json_read(&d.report, golden_folder(path, "released-dims/deep-report.json"), H3_INTEGRITY);
    if (status == H3_OK) status = h3_json_integer(&layers, d.report, "layers", 1, w->config.num_layers, path, H3_INTEGRITY);
    if (status == H3_OK) status = deep_run(&d, layers);
    out->expected = count_deep(&d);
    cJSON_Delete(d.report);
    h3_safetensors_close(&d.samples);
    return status;
}
