#include "qualify/thresholds.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/memory.h"
#include "qualify/inputs.h"
#include "qualify/metrics.h"

static h3_status add(h3_thresholds *thresholds, const char *name, double provider_error, double bound)
{
    if (thresholds->count == thresholds->capacity) {
        size_t capacity = thresholds->capacity ? 2 * thresholds->capacity : 256;
        void *larger = realloc(thresholds->items, capacity * sizeof *thresholds->items);
        if (larger == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for %zu bounds", capacity);
        thresholds->items = larger;
        thresholds->capacity = capacity;
    }
    h3_threshold *item = &thresholds->items[thresholds->count++];
    snprintf(item->name, sizeof item->name, "%s", name);
    item->provider_error = provider_error;
    item->bound = bound;
    return H3_OK;
}

static h3_status add_tensor(h3_thresholds *out, const h3_device *device, const char *layout, const char *name, const h3_tensor *golden,
                            const h3_tensor *provider)
{
    h3_figures figures;
    char full[240];
    snprintf(full, sizeof full, "%s/%s", layout, name);
    if (h3_error_on(&figures, device, provider, golden) != H3_OK) return h3_error_context(H3_INTEGRITY, "tensor %s", full);
    if (!isfinite(figures.error)) return h3_error(H3_FAILED, "tensor %s: the provider's error is not finite; no bound can be frozen", full);
    return add(out, full, figures.error, figures.golden_norm > 0.0 ? h3_frozen_bound(figures.error, h3_is_gradient(name)) : h3_frozen_formula.absolute);
}

/* One block, or boundary, in both precisions: the same tensors must be in both. */
static h3_status compute_block(h3_thresholds *out, h3_tensor_source *source, const char *layout, const h3_plan_inputs *inputs, int64_t block)
{
    const int all = H3_PART_FORWARD | H3_PART_BACKWARD;
    h3_block_tensors *golden = NULL, *provider = NULL;
    h3_status status = h3_block_tensors_open(&golden, source, layout, inputs, H3_F32, block, all);
    if (status == H3_OK) status = h3_block_tensors_open(&provider, source, layout, inputs, H3_BF16, block, all);
    size_t count = status == H3_OK ? h3_block_tensors_count(golden) : 0;
    if (status == H3_OK && (count == 0 || h3_block_tensors_count(provider) != count))
        status = h3_error(H3_INTEGRITY, "layout %s, block %lld: %zu tensors in BF16, %zu in FP32; rerun h3_reference_pass", layout, (long long)block,
                          h3_block_tensors_count(provider), count);
    for (size_t i = 0; i < count && status == H3_OK; i++) {
        const char *name = h3_block_tensors_name(golden, i);
        const h3_tensor *g, *p;
        status = h3_block_tensors_need(&g, golden, name);
        if (status == H3_OK) status = h3_block_tensors_need(&p, provider, name);
        if (status == H3_OK) status = add_tensor(out, source->device, layout, name, g, p);
    }
    h3_block_tensors_close(golden);
    h3_block_tensors_close(provider);
    return status;
}

static h3_status compute_layout(h3_thresholds *out, h3_tensor_source *source, const h3_plan_layout *layout, const h3_plan_inputs *inputs, int rank,
                                int ranks, h3_progress *progress)
{
    int64_t first, blocks;
    H3_TRY(h3_block_range(rank, ranks, h3_weights_config(source->weights)->num_layers, &first, &blocks));
    if (rank == 0) H3_TRY(compute_block(out, source, layout->name, inputs, H3_INPUT_SIDE));
    for (int64_t block = first; block < first + blocks; block++) {
        H3_TRY(compute_block(out, source, layout->name, inputs, block));
        if (progress != NULL) h3_progress_add(progress, 1);
    }
    return rank == ranks - 1 ? compute_block(out, source, layout->name, inputs, H3_OUTPUT_SIDE) : H3_OK;
}

h3_status h3_thresholds_compute(h3_thresholds *out, const h3_plan *plan, h3_tensor_source *source, int rank, int ranks, h3_progress *progress)
{
    for (size_t i = 0; i < plan->layout_count; i++) {
        h3_plan_inputs inputs;
        H3_TRY(h3_plan_inputs_new(&inputs, &plan->layouts[i], h3_weights_config(source->weights)));
        h3_status status = compute_layout(out, source, &plan->layouts[i], &inputs, rank, ranks, progress);
        h3_plan_inputs_free(&inputs);
        H3_TRY(status);
    }
    return H3_OK;
}

h3_status h3_thresholds_gather(h3_ranks *ranks, h3_thresholds *thresholds)
{
    void **all = NULL;
    size_t *sizes = NULL;
    h3_status status = h3_ranks_gather(ranks, thresholds->items, thresholds->count * sizeof *thresholds->items, &all, &sizes);
    for (int i = 0; all != NULL && i < ranks->count; i++) {
        const h3_threshold *items = all[i];
        for (size_t j = 0; i > 0 && status == H3_OK && j < sizes[i] / sizeof *items; j++)
            status = add(thresholds, items[j].name, items[j].provider_error, items[j].bound);
        free(all[i]);
    }
    free(all);
    free(sizes);
    return h3_ranks_agree(ranks, status);
}

static int by_name(const void *a, const void *b) { return strcmp(((const h3_threshold *)a)->name, ((const h3_threshold *)b)->name); }

static h3_status sort_items(h3_thresholds *thresholds, const char *where)
{
    if (thresholds->count == 0) return h3_error(H3_INTEGRITY, "%s holds no bound", where);
    qsort(thresholds->items, thresholds->count, sizeof *thresholds->items, by_name);
    for (size_t i = 1; i < thresholds->count; i++)
        if (by_name(&thresholds->items[i - 1], &thresholds->items[i]) == 0) return h3_error(H3_INTEGRITY, "%s: two bounds for %s", where, thresholds->items[i].name);
    return H3_OK;
}

/* Every tensor of the BF16 provider needs a bound. */
static h3_status check_complete(const h3_thresholds *thresholds, const h3_manifest *manifest)
{
    size_t needed = 0;
    for (size_t i = 0; i < manifest->tensor_count; i++) {
        char layout[200];
        const char *slash = strchr(manifest->tensors[i].name, '/');
        if (slash == NULL || strncmp(slash, "/bf16/", 6) != 0) continue;
        snprintf(layout, sizeof layout, "%.*s", (int)(slash - manifest->tensors[i].name), manifest->tensors[i].name);
        if (h3_thresholds_find(thresholds, layout, slash + 6) == NULL) return h3_error(H3_FAILED, "tensor %s has no bound", manifest->tensors[i].name);
        needed++;
    }
    if (needed != thresholds->count) return h3_error(H3_FAILED, "%zu bounds for %zu tensors of the manifest", thresholds->count, needed);
    return H3_OK;
}

static cJSON *formula_json(void)
{
    const h3_bound_formula *f = &h3_frozen_formula;
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "form", "bound = scale * provider_error + offset; absolute for a golden of zero norm");
    cJSON_AddNumberToObject(json, "forward_scale", f->forward_scale);
    cJSON_AddNumberToObject(json, "forward_offset", f->forward_offset);
    cJSON_AddNumberToObject(json, "gradient_scale", f->gradient_scale);
    cJSON_AddNumberToObject(json, "gradient_offset", f->gradient_offset);
    cJSON_AddNumberToObject(json, "absolute", f->absolute);
    return json;
}

h3_status h3_thresholds_print(char **out, h3_thresholds *thresholds, const h3_manifest *manifest)
{
    H3_TRY(sort_items(thresholds, "thresholds.json"));
    H3_TRY(check_complete(thresholds, manifest));
    cJSON *json = cJSON_CreateObject();
    if (json == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for thresholds");
    cJSON_AddStringToObject(json, "schema", "h3-thresholds-v1");
    cJSON_AddStringToObject(json, "plan_identity", thresholds->plan_identity);
    cJSON_AddStringToObject(json, "manifest_sha256", thresholds->manifest_sha256);
    cJSON_AddItemToObject(json, "fingerprint", cJSON_Duplicate(thresholds->fingerprint, 1));
    cJSON_AddItemToObject(json, "formula", formula_json());
    cJSON *bounds = cJSON_AddArrayToObject(json, "bounds");
    for (size_t i = 0; i < thresholds->count; i++) {
        cJSON *item = cJSON_CreateObject();
        cJSON_AddStringToObject(item, "tensor", thresholds->items[i].name);
        cJSON_AddNumberToObject(item, "provider_error", thresholds->items[i].provider_error);
        cJSON_AddNumberToObject(item, "bound", thresholds->items[i].bound);
        cJSON_AddItemToArray(bounds, item);
    }
    h3_status status = h3_json_print(out, json);
    cJSON_Delete(json);
    return status;
}

static h3_status check_bound(const h3_threshold *item, const char *where)
{
    const char *slash = strchr(item->name, '/');
    if (slash == NULL || !(item->provider_error >= 0.0) || !isfinite(item->provider_error))
        return h3_error(H3_INTEGRITY, "%s: malformed bound of %.120s", where, item->name);
    double bound = h3_frozen_bound(item->provider_error, h3_is_gradient(slash + 1));
    if (item->bound != bound && item->bound != h3_frozen_formula.absolute)
        return h3_error(H3_INTEGRITY, "%s: the bound of %.120s is not what the formula makes of its provider error; the file was edited", where, item->name);
    return H3_OK;
}

static h3_status read_bounds(h3_thresholds *out, const cJSON *json, const char *where)
{
    static const char *const keys[] = {"tensor", "provider_error", "bound", NULL};
    const cJSON *bounds, *item;
    H3_TRY(h3_json_array(&bounds, json, "bounds", where, H3_INTEGRITY));
    cJSON_ArrayForEach(item, bounds) {
        const char *name;
        double provider_error, bound;
        H3_TRY(h3_json_only_keys(item, keys, where, H3_INTEGRITY));
        H3_TRY(h3_json_string(&name, item, "tensor", where, H3_INTEGRITY));
        H3_TRY(h3_json_number(&provider_error, item, "provider_error", where, H3_INTEGRITY));
        H3_TRY(h3_json_number(&bound, item, "bound", where, H3_INTEGRITY));
        if (strlen(name) >= 240) return h3_error(H3_INTEGRITY, "%s: a tensor name is too long", where);
        H3_TRY(add(out, name, provider_error, bound));
        H3_TRY(check_bound(&out->items[out->count - 1], where));
    }
    return sort_items(out, where);
}

static int is_sha256(const char *text) { return strlen(text) == 64 && strspn(text, "0123456789abcdef") == 64; }

static h3_status read_thresholds(h3_thresholds *out, const cJSON *json, const char *where)
{
    static const char *const keys[] = {"schema", "plan_identity", "manifest_sha256", "fingerprint", "formula", "bounds", NULL};
    const char *schema, *identity, *manifest;
    const cJSON *fingerprint, *formula;
    H3_TRY(h3_json_only_keys(json, keys, where, H3_INTEGRITY));
    H3_TRY(h3_json_string(&schema, json, "schema", where, H3_INTEGRITY));
    H3_TRY(h3_json_string(&identity, json, "plan_identity", where, H3_INTEGRITY));
    H3_TRY(h3_json_string(&manifest, json, "manifest_sha256", where, H3_INTEGRITY));
    if (strcmp(schema, "h3-thresholds-v1") != 0 || !is_sha256(identity) || !is_sha256(manifest))
        return h3_error(H3_INTEGRITY, "%s is no thresholds file of this version", where);
    memcpy(out->plan_identity, identity, H3_SHA256_HEX);
    memcpy(out->manifest_sha256, manifest, H3_SHA256_HEX);
    H3_TRY(h3_json_object(&formula, json, "formula", where, H3_INTEGRITY));
    cJSON *expected = formula_json();
    int same = cJSON_Compare(formula, expected, 1);
    cJSON_Delete(expected);
    if (!same) return h3_error(H3_INTEGRITY, "%s was frozen with another formula; start a new run", where);
    H3_TRY(h3_json_object(&fingerprint, json, "fingerprint", where, H3_INTEGRITY));
    out->fingerprint = cJSON_Duplicate(fingerprint, 1);
    if (out->fingerprint == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for %s", where);
    return read_bounds(out, json, where);
}

h3_status h3_thresholds_parse(h3_thresholds *out, const char *text, size_t size, const char *where)
{
    cJSON *json = NULL;
    memset(out, 0, sizeof *out);
    h3_status status = h3_json_parse(&json, text, size, where, H3_INTEGRITY);
    if (status == H3_OK) status = read_thresholds(out, json, where);
    cJSON_Delete(json);
    if (status != H3_OK) h3_thresholds_free(out);
    return status;
}

void h3_thresholds_free(h3_thresholds *thresholds)
{
    cJSON_Delete(thresholds->fingerprint);
    free(thresholds->items);
    memset(thresholds, 0, sizeof *thresholds);
}

const h3_threshold *h3_thresholds_find(const h3_thresholds *thresholds, const char *layout, const char *tensor)
{
    h3_threshold key;
    if (thresholds->count == 0) return NULL;
    snprintf(key.name, sizeof key.name, "%s/%s", layout, tensor);
    return bsearch(&key, thresholds->items, thresholds->count, sizeof key, by_name);
}
