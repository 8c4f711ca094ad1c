#include "golden.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "model/safetensors.h"
#include "qualify/case.h"
#include "qualify/metrics.h"

typedef struct comparison {
    golden_result *result;
    const h3_device *device;
    golden_mode mode;
    double fp32_bound;
    const char *disturb;
    int sampled;
    h3_safetensors expected;
    cJSON *errors;
} comparison;

const char *golden_folder(char out[H3_PATH_MAX], const char *name)
{
    const char *shared = getenv("H3_GOLDEN_SHARED"), *own = getenv("H3_GOLDEN");
    if (shared != NULL && shared[0] != 0) {
        snprintf(out, H3_PATH_MAX, "%s/%s", shared, name);
        if (access(out, R_OK) == 0) return out;
    }
    snprintf(out, H3_PATH_MAX, "%s/%s", own != NULL && own[0] != 0 ? own : "tests/golden", name);
    return out;
}

static double value(const h3_tensor *t, int64_t i) { return t->dtype == H3_BF16 ? (double)h3_bf16_to_f32(((const uint16_t *)t->data)[i]) : (double)((const float *)t->data)[i]; }

static double golden_value(const h3_tensor *t, int64_t i)
{
    float f;
    memcpy(&f, (const char *)t->data + 4 * i, sizeof f); /* views of a file may be unaligned */
    return (double)f;
}

/* ||x - g|| / ||g||, in full or over samples against the norm that the full tensor has. */
static double error_of(const comparison *c, const char *name, const h3_tensor *x, const h3_tensor *golden, double scale)
{
    int64_t count = h3_tensor_count(x), k = h3_tensor_count(golden);
    double difference = 0.0, norm = 0.0;
    if (!c->sampled && k != count) return NAN;
    for (int64_t j = 0; j < k; j++) {
        int64_t i = c->sampled ? (int64_t)(((uint64_t)j * 2654435761u) % (uint64_t)count) : j;
        double g = golden_value(golden, j), d = value(x, i) * scale - g;
        difference += d * d;
        norm += g * g;
    }
    if (c->sampled) {
        char key[240];
        double l2[2];
        snprintf(key, sizeof key, "l2.fp64.%s", name);
        const h3_tensor *stored = h3_safetensors_find(&c->expected, key);
        if (stored == NULL) return NAN;
        memcpy(l2, stored->data, sizeof l2);
        if ((int64_t)l2[1] != count) return NAN;
        norm = l2[0] * l2[0] * (double)k / (double)count;
    }
    return sqrt(difference) / sqrt(norm);
}

static double bound_of(const comparison *c, const char *name)
{
    if (c->mode == GOLDEN_FP32) return c->sampled ? 1e-4 : c->fp32_bound;
    const cJSON *p = cJSON_GetObjectItemCaseSensitive(c->errors, name);
    if (!cJSON_IsNumber(p)) return NAN;
    double error = p->valuedouble * (c->sampled ? 2.0 : 1.0); /* sampled and full p differ by up to 2 */
    return h3_is_gradient(name) ? 1.5 * error + 5e-3 : 1.25 * error + 1e-3;
}

static h3_status compare_host(comparison *c, const char *name, const h3_tensor *tensor)
{
    char key[200];
    snprintf(key, sizeof key, "%s%.180s", c->sampled ? "fp64." : "", name);
    const h3_tensor *golden = h3_safetensors_find(&c->expected, key);
    if (golden == NULL) return H3_OK;
    double error = error_of(c, name, tensor, golden, strcmp(c->disturb, name) == 0 ? 1.02 : 1.0), bound = bound_of(c, name);
    c->result->compared++;
    if (!(error <= bound)) c->result->failed++;
    if (!(error / bound <= c->result->worst)) {
        c->result->worst = error / bound;
        c->result->worst_error = error;
        c->result->worst_bound = bound;
        snprintf(c->result->worst_name, sizeof c->result->worst_name, "%s", name);
    }
    return H3_OK;
}

static h3_status compare(void *user, int64_t block, const char *name, const h3_tensor *tensor)
{
    comparison *c = user;
    h3_tensor host;
    (void)block;
    H3_TRY(h3_device_borrow(&host, c->device, tensor));
    h3_status status = compare_host(c, name, &host);
    h3_device_return(&host, c->device);
    return status;
}

static int count_expected(const comparison *c)
{
    int count = 0;
    for (size_t i = 0; i < c->expected.count; i++) count += c->sampled ? strncmp(c->expected.entries[i].name, "fp64.", 5) == 0 : 1;
    return count;
}

static h3_status open_expected(comparison *c, const char *folder, const char *name)
{
    char path[H3_PATH_MAX];
    snprintf(path, sizeof path, "%.4000s/expected-fp64.safetensors", folder);
    if (access(path, R_OK) != 0) {
        char file[200];
        snprintf(file, sizeof file, "%s-samples.safetensors", name);
        golden_folder(path, file);
        c->sampled = 1;
    }
    H3_TRY(h3_safetensors_open(&c->expected, path));
    snprintf(path, sizeof path, "%.4000s/bf16-provider-errors.json", folder);
    return h3_json_read(&c->errors, path, H3_INTEGRITY);
}

static h3_status open_weights(h3_weights **out, const char *folder)
{
    char path[H3_PATH_MAX], *text;
    size_t size;
    h3_config config;
    snprintf(path, sizeof path, "%.4000s/transformer/diffusion_pytorch_model.safetensors.index.json", folder);
    if (access(path, R_OK) == 0) {
        snprintf(path, sizeof path, "%.4000s/transformer", folder);
        return h3_weights_open(out, path);
    }
    snprintf(path, sizeof path, "%.4000s/transformer/config.json", folder);
    H3_TRY(h3_file_read(&text, &size, path, 1 << 20, H3_INTEGRITY));
    h3_status status = h3_config_parse(&config, text, size, path);
    free(text);
    H3_TRY(status);
    return h3_weights_synthetic(out, &config, 0);
}

int golden_stream;

static h3_status run(comparison *c, const char *folder, h3_weights *weights, const h3_library *provider, const h3_bindings *bindings)
{
    char path[H3_PATH_MAX];
    h3_model model;
    h3_case item;
    h3_pass *pass = NULL;
    h3_sink sink = {compare, NULL, c};
    snprintf(path, sizeof path, "%.4000s/case.safetensors", folder);
    H3_TRY(h3_case_read(&item, path));
    h3_status status = h3_model_open(&model, weights, c->device, c->mode == GOLDEN_FP32 ? H3_F32 : H3_BF16, provider, bindings != NULL ? bindings->operators : NULL, 0,
                                     h3_weights_config(weights)->num_layers);
    if (status == H3_OK && golden_stream) h3_model_stream(&model);
    if (status == H3_OK) status = h3_model_forward(&model, &item.sequence, &sink, &pass, NULL, NULL);
    if (status == H3_OK) status = h3_model_backward(&model, pass, &sink);
    h3_pass_free(pass, &model);
    h3_model_close(&model);
    h3_case_free(&item);
    return status;
}

h3_status golden_run(golden_result *out, const char *name, golden_mode mode, double fp32_bound, const char *disturb)
{
    return golden_run_on(out, h3_device_cpu(), name, mode, fp32_bound, disturb);
}

h3_status golden_run_on(golden_result *out, const h3_device *device, const char *name, golden_mode mode, double fp32_bound, const char *disturb)
{
    char folder[H3_PATH_MAX], provider_name[] = "libh3_provider_{device}.so", candidate_name[] = "libh3_candidate_{device}.so";
    comparison c = {.result = out, .device = device, .mode = mode, .fp32_bound = fp32_bound, .disturb = disturb};
    h3_weights *weights = NULL;
    h3_library provider = {0};
    h3_bindings bindings = {0};
    memset(out, 0, sizeof *out);
    golden_folder(folder, name);
    h3_text_for_device(provider_name, h3_device_name(device->kind));
    h3_text_for_device(candidate_name, h3_device_name(device->kind));
    h3_status status = open_expected(&c, folder, name);
    if (status == H3_OK) status = open_weights(&weights, folder);
    if (status == H3_OK) status = h3_library_open(&provider, provider_name);
    if (status == H3_OK && mode == GOLDEN_CANDIDATE) status = h3_bindings_single(&bindings, candidate_name);
    if (status == H3_OK) status = run(&c, folder, weights, &provider, mode == GOLDEN_CANDIDATE ? &bindings : NULL);
    if (status == H3_OK) out->expected = count_expected(&c);
    h3_bindings_close(&bindings);
    h3_library_close(&provider);
    h3_weights_free(weights);
    h3_safetensors_close(&c.expected);
    cJSON_Delete(c.errors);
    return status;
}
