#include "qualify/inputs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

#define MANIFEST "reference-manifest.json"

/* The artifact and the manifest name the same tensors with the same digests. */
static h3_status check_tensors(const h3_artifact *artifact, const h3_manifest *manifest, const char *relative, const char *layout,
                               int32_t precision)
{
    size_t listed = 0;
    for (size_t i = 0; i < manifest->tensor_count; i++) listed += strcmp(manifest->tensors[i].file, relative) == 0;
    if (listed != artifact->count)
        return h3_error(H3_INTEGRITY, MANIFEST " lists %zu tensors of %s, which holds %zu; rerun h3_reference_pass", listed,
                        relative, artifact->count);
    char prefix[200];
    snprintf(prefix, sizeof prefix, "%s/%s/", layout, h3_precision_name(precision));
    for (size_t i = 0; i < artifact->count; i++) H3_TRY(h3_manifest_require_entry(manifest, prefix, relative, &artifact->entries[i], artifact->path));
    return H3_OK;
}

h3_status h3_inputs_artifact(h3_artifact *out, const h3_manifest *manifest, const char *run_folder, const char *layout,
                             int32_t precision, int64_t block)
{
    char relative[200], path[H3_PATH_MAX];
    H3_TRY(h3_reference_path(relative, layout, precision, block));
    const h3_manifest_file *file = h3_manifest_find_file(manifest, relative);
    if (file == NULL)
        return h3_error(H3_INTEGRITY, "reference-manifest.json does not list %s; rerun h3_reference_pass", relative);
    H3_TRY(h3_run_locate(path, run_folder, relative));
    H3_TRY(h3_artifact_open(out, path, file->sha256));
    h3_status status = check_tensors(out, manifest, relative, layout, precision);
    if (status != H3_OK) h3_artifact_close(out);
    return status;
}

static int same_field(const cJSON *a, const cJSON *b, const char *key)
{
    return cJSON_Compare(cJSON_GetObjectItemCaseSensitive(a, key), cJSON_GetObjectItemCaseSensitive(b, key), 1);
}

/* The first file of a checkpoint that differs; "the checkpoint" where no single one does. */
static const char *changed_file(const cJSON *recorded, const cJSON *now)
{
    const cJSON *shards = cJSON_GetObjectItemCaseSensitive(recorded, "shards"), *shard;
    int index = 0;
    if (!same_field(recorded, now, "kind")) return "the checkpoint";
    if (!same_field(recorded, now, "config_sha256")) return "config.json";
    cJSON_ArrayForEach(shard, cJSON_GetObjectItemCaseSensitive(now, "shards")) {
        const char *path = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(shard, "path"));
        if (path != NULL && !cJSON_Compare(shard, cJSON_GetArrayItem(shards, index), 1)) return path;
        index++;
    }
    return same_field(recorded, now, "index_sha256") ? "the checkpoint" : "diffusion_pytorch_model.safetensors.index.json";
}

h3_status h3_inputs_model(const h3_manifest *manifest, h3_weights *weights, const h3_watch *watch, cJSON **identity)
{
    cJSON *now;
    if (identity != NULL) *identity = NULL;
    H3_TRY(h3_weights_identity(weights, watch, &now));
    h3_status status = H3_OK;
    if (!h3_model_same(manifest->model, now))
        status =
            h3_error(H3_INTEGRITY,
                     "%s has changed since " MANIFEST " was written: that is of another model; restore it, or start a new run",
                     changed_file(manifest->model, now));
    cJSON_Delete(now);
    if (status != H3_OK || identity == NULL) return status;
    *identity = cJSON_Duplicate(manifest->model, 1);
    return *identity != NULL ? H3_OK : h3_error(H3_ENVIRONMENT, "out of memory for the identity of the weights");
}

h3_status h3_inputs_block(const h3_manifest *manifest, h3_weights *weights, int64_t block)
{
    const cJSON *kind = cJSON_GetObjectItemCaseSensitive(manifest->model, "kind"), *digests, *config;
    if (!cJSON_IsString(kind) || strcmp(kind->valuestring, "folder") != 0) return h3_inputs_model(manifest, weights, NULL, NULL);
    H3_TRY(h3_json_object(&digests, manifest->model, "block_tensors", MANIFEST ": model", H3_INTEGRITY));
    config = cJSON_GetObjectItemCaseSensitive(manifest->model, "config_sha256");
    if (!cJSON_IsString(config) || strcmp(config->valuestring, h3_weights_config_sha256(weights)) != 0)
        return h3_error(H3_INTEGRITY, "config.json has changed since " MANIFEST " was written: that is of another model; restore it, or start a new run");
    return h3_weights_require_block(weights, block, digests, MANIFEST);
}

static h3_status read_verified(h3_run *run, const char *stage, const char *file, char **text, size_t *size, h3_run_files *outputs)
{
    char path[H3_PATH_MAX], sha256[H3_SHA256_HEX];
    H3_TRY(h3_run_need(run, stage, NULL, outputs));
    H3_TRY(h3_run_locate(path, run->folder, file));
    H3_TRY(h3_file_read(text, size, path, (size_t)1 << 30, H3_INTEGRITY));
    /* The bytes that are parsed are the ones that are hashed. */
    h3_status status = h3_sha256(sha256, *text, *size);
    if (status == H3_OK) status = h3_run_record(run, outputs, file);
    for (size_t i = 0; i < outputs->count && status == H3_OK; i++)
        if (strcmp(outputs->items[i].path, file) == 0 && strcmp(outputs->items[i].sha256, sha256) != 0)
            status = h3_error(H3_INTEGRITY,
                              "%s: SHA-256 differs from what %s wrote (expected %.12s..., found %.12s...); rerun that stage",
                              path, stage, outputs->items[i].sha256, sha256);
    if (status != H3_OK) {
        free(*text);
        *text = NULL;
    }
    return status;
}

h3_status h3_inputs_file(h3_ranks *ranks, h3_run *run, const char *stage, const char *file, char **text, size_t *size,
                         char sha256[H3_SHA256_HEX], h3_run_files *outputs)
{
    h3_run_files own = {0};
    void *data = NULL;
    *text = NULL;
    *size = 0;
    h3_status status = ranks->rank == 0 ? read_verified(run, stage, file, text, size, outputs != NULL ? outputs : &own) : H3_OK;
    h3_run_files_free(&own);
    H3_TRY(h3_ranks_agree(ranks, status));
    data = *text;
    H3_TRY(h3_ranks_broadcast(ranks, 0, &data, size));
    *text = data;
    return h3_sha256(sha256, *text, *size);
}

static h3_status check_recorded(const cJSON *fingerprint, const char *identity, const h3_plan *plan, const h3_library *provider,
                                const char *where)
{
    cJSON *current;
    if (strcmp(identity, plan->identity) != 0)
        return h3_error(H3_INTEGRITY, "%s was made by another plan; start a new run", where);
    H3_TRY(h3_fingerprint(&current, provider));
    h3_status status = h3_fingerprint_require(fingerprint, current, where);
    cJSON_Delete(current);
    return status;
}

h3_status h3_inputs_manifest(h3_ranks *ranks, h3_run *run, const h3_plan *plan, const h3_library *provider, h3_manifest *out,
                             char sha256[H3_SHA256_HEX], h3_run_files *outputs)
{
    char *text;
    size_t size;
    memset(out, 0, sizeof *out);
    H3_TRY(h3_inputs_file(ranks, run, "reference_pass", "reference-manifest.json", &text, &size, sha256, outputs));
    h3_status status = h3_manifest_parse(out, text, size, "reference-manifest.json");
    free(text);
    if (status == H3_OK) status = check_recorded(out->fingerprint, out->plan_identity, plan, provider, "reference-manifest.json");
    return h3_ranks_agree(ranks, status);
}

h3_status h3_inputs_thresholds(h3_ranks *ranks, h3_run *run, const h3_plan *plan, const h3_library *provider,
                               const char *manifest_sha256, h3_thresholds *out)
{
    char *text, sha256[H3_SHA256_HEX];
    size_t size;
    memset(out, 0, sizeof *out);
    H3_TRY(h3_inputs_file(ranks, run, "threshold_freeze", "thresholds.json", &text, &size, sha256, NULL));
    h3_status status = h3_thresholds_parse(out, text, size, "thresholds.json");
    free(text);
    if (status == H3_OK) status = check_recorded(out->fingerprint, out->plan_identity, plan, provider, "thresholds.json");
    if (status == H3_OK && strcmp(out->manifest_sha256, manifest_sha256) != 0)
        status = h3_error(H3_INTEGRITY, "thresholds.json was frozen from another reference-manifest.json; start a new run");
    return h3_ranks_agree(ranks, status);
}
