#include "whole.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/log.h"
#include "graph/device_cuda.h"
#include "model/safetensors.h"
#include "qualify/metrics.h"
#include "sampled.h"

enum { H200_GIGABYTES = 141 };

static const char *const output_names[WHOLE_OUTPUTS] = {"video", "audio"};
static const char *const full_layouts[WHOLE_LAYOUTS] = {"s264", "s925", "release"};

typedef struct full {
    whole *w;
    golden_result *result; /* NULL: nothing is compared, the outputs are what counts */
    const char *layout, *disturb;
    h3_safetensors samples;
    cJSON *report;
    const cJSON *entry; /* the layout's in the report */
    h3_progress progress;
} full;

typedef struct outputs {
    h3_tensor host[WHOLE_OUTPUTS];
} outputs;

static void free_outputs(outputs *o)
{
    for (int i = 0; i < WHOLE_OUTPUTS; i++) h3_tensor_free(&o->host[i]);
}

/* The norm, in double: each row in ascending order, then the rows in theirs; threads change nothing. NaN without memory. */
static double norm_of(const h3_tensor *t)
{
    const int64_t rows = t->shape[0], width = h3_tensor_count(t) / (rows > 0 ? rows : 1);
    double total = 0.0, *sums;
    void *memory;
    if (rows < 1 || h3_alloc(&memory, (size_t)rows, sizeof *sums, "sums of rows") != H3_OK) return NAN;
    sums = memory;
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        double sum = 0.0;
        for (int64_t i = row * width; i < (row + 1) * width; i++) {
            double x = sampled_value(t, i);
            sum += x * x;
        }
        sums[row] = sum;
    }
    for (int64_t row = 0; row < rows; row++) total += sums[row];
    free(memory);
    return sqrt(total);
}

static void compare_norm(const full *f, long long block, const h3_tensor *x)
{
    char key[32], name[48];
    snprintf(key, sizeof key, "%lld", block);
    snprintf(name, sizeof name, "block_out.%lld", block);
    const cJSON *golden = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(f->entry, "block_out_l2"), key);
    double norm = norm_of(x) * (strcmp(f->disturb, name) == 0 ? 1.02 : 1.0);
    sampled_note(f->result, name, cJSON_IsNumber(golden) ? fabs(norm / golden->valuedouble - 1.0) : NAN, 1e-3);
}

static h3_status full_tensor(void *user, int64_t block, const char *name, const h3_tensor *tensor)
{
    full *f = user;
    long long number;
    h3_tensor host;
    (void)block;
    if (!whole_block_output(name, &number)) return H3_OK;
    h3_progress_add(&f->progress, 1);
    if (f->result == NULL) return H3_OK;
    H3_TRY(h3_device_borrow(&host, f->w->device, tensor));
    compare_norm(f, number, &host);
    h3_device_return(&host, f->w->device);
    return H3_OK;
}

/* A forward of all blocks; the outputs come to the host. */
static h3_status full_forward(full *f, golden_mode mode, outputs *out)
{
    whole_model m;
    h3_plan_inputs inputs;
    const h3_device *device = f->w->device;
    h3_tensor output[WHOLE_OUTPUTS] = {{0}, {0}};
    h3_sink sink = {.tensor = full_tensor, .user = f};
    double start = h3_clock();
    H3_TRY(whole_inputs(&inputs, f->w, f->layout));
    h3_status status = whole_model_open(&m, f->w, mode, f->w->config.num_layers);
    if (status == H3_OK) {
        whole_say(f->w, "full: opened", mode, h3_clock() - start);
        h3_progress_start(&f->progress, f->layout, "blocks", f->w->config.num_layers);
        start = h3_clock();
        status = h3_model_forward(&m.model, &inputs.sequence, &sink, NULL, &output[0], &output[1]);
        h3_progress_end(&f->progress);
        for (int i = 0; i < WHOLE_OUTPUTS; i++) {
            if (status == H3_OK) status = h3_device_download(&out->host[i], device, &output[i]);
            h3_device_free(&output[i], device);
        }
        if (status == H3_OK) whole_say(f->w, f->result != NULL ? "full: forward and norms" : "full: forward", mode, h3_clock() - start);
        whole_model_close(&m);
    }
    h3_plan_inputs_free(&inputs);
    return status;
}

/* p of both outputs: our BF16 provider against our FP32. `bf16` NULL: it runs here. */
static h3_status need_errors(const full *f, whole_layout *known, const outputs *bf16)
{
    full silent = *f;
    outputs exact = {0}, own = {0};
    silent.result = NULL;
    if (known->known) return H3_OK;
    h3_status status = full_forward(&silent, GOLDEN_FP32, &exact);
    if (status == H3_OK && bf16 == NULL) status = full_forward(&silent, GOLDEN_BF16, &own);
    for (int i = 0; i < WHOLE_OUTPUTS && status == H3_OK; i++) {
        h3_figures figures;
        status = h3_figures_of(&figures, bf16 != NULL ? &bf16->host[i] : &own.host[i], &exact.host[i], 1, 1);
        if (status == H3_OK) known->p[i] = figures.error;
    }
    known->known = status == H3_OK;
    free_outputs(&exact);
    free_outputs(&own);
    return status;
}

static h3_status compare_output(const full *f, int which, const h3_tensor *x, const whole_layout *known)
{
    char key[64], name[32];
    snprintf(key, sizeof key, "%.16s.%s", f->layout, output_names[which]);
    snprintf(name, sizeof name, "out.%s", output_names[which]);
    const h3_tensor *golden = h3_safetensors_find(&f->samples, key);
    if (golden == NULL) return h3_error(H3_INTEGRITY, "the full golden samples have no %s", key);
    snprintf(key, sizeof key, "%s_l2", output_names[which]);
    const cJSON *l2 = cJSON_GetObjectItemCaseSensitive(f->entry, key);
    double scale = cJSON_IsNumber(l2) ? l2->valuedouble * sqrt((double)h3_tensor_count(golden) / (double)h3_tensor_count(x)) : NAN;
    double error = sampled_error(x, golden, scale, strcmp(f->disturb, name) == 0 ? 1.2 : 1.0), bound = 0.03;
    if (known != NULL) bound = known->p[which] <= 0.1 ? 1.5 * known->p[which] + 1e-3 : NAN;
    if (known != NULL) h3_say("  %s %s: p %.4g, distance %.4g of %.4g", f->layout, name, known->p[which], error, bound);
    else h3_say("  %s %s: distance %.4g of %.4g", f->layout, name, error, bound);
    sampled_note(f->result, name, error, bound);
    return H3_OK;
}

/* The release must fit an H200, whatever GPU this is. */
static int measures_memory(const full *f) { return f->w->device->kind == H3_DEVICE_CUDA && strcmp(f->layout, "release") == 0; }

static h3_status run_full(full *f, golden_mode mode, whole_layout *known)
{
    outputs own = {0};
    int release = strcmp(f->layout, "release") == 0;
    h3_status status = full_forward(f, mode, &own);
    if (status == H3_OK && !release) status = need_errors(f, known, mode == GOLDEN_BF16 ? &own : NULL);
    for (int i = 0; i < WHOLE_OUTPUTS && status == H3_OK; i++) status = compare_output(f, i, &own.host[i], release ? NULL : known);
    if (measures_memory(f)) {
        size_t taken, most;
        h3_cuda_memory(&taken, &most);
        sampled_note(f->result, "GPU memory in GB", most > 0 ? (double)most / 1e9 : NAN, H200_GIGABYTES);
    }
    free_outputs(&own);
    return status;
}

h3_status whole_full(golden_result *out, whole *w, const char *layout, golden_mode mode, const char *disturb)
{
    char path[H3_PATH_MAX];
    whole_layout *known = NULL;
    full f = {.w = w, .result = out, .layout = layout, .disturb = disturb};
    memset(out, 0, sizeof *out);
    for (int i = 0; i < WHOLE_LAYOUTS; i++)
        if (strcmp(layout, full_layouts[i]) == 0) known = &w->full[i];
    if (known == NULL || mode == GOLDEN_FP32) return h3_error(H3_USAGE, "the full goldens are of BF16 and layouts s264, s925 and release; not of %s %s", layout, golden_mode_names[mode]);
    h3_status status = h3_safetensors_open(&f.samples, golden_folder(path, "released-dims/full-samples.safetensors"));
    if (status == H3_OK) status = h3_json_read(&f.report, golden_folder(path, "released-dims/full-report.json"), H3_INTEGRITY);
    if (status == H3_OK) status = h3_json_object(&f.entry, f.report, layout, path, H3_INTEGRITY);
    if (status == H3_OK) status = run_full(&f, mode, known);
    out->expected = WHOLE_OUTPUTS + (int)w->config.num_layers + measures_memory(&f);
    cJSON_Delete(f.report);
    h3_safetensors_close(&f.samples);
    return status;
}
