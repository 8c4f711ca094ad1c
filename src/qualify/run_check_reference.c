/* Reference manifest and thresholds against the artifacts, the plan and each other. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "qualify/generation_store.h"
#include "qualify/run_check_internal.h"

#define MANIFEST "reference-manifest.json"
#define ARTIFACTS "data/reference/"

/* --- model -------------------------------------------------------------------------------------------------------- */

static const char *text_of(const cJSON *object, const char *key)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, key));
    return text != NULL ? text : "";
}

/* The hash that a manifest's model has for a file of the checkpoint; "" for none. */
static const char *recorded_hash(const cJSON *model, const char *file)
{
    const cJSON *shard;
    if (strcmp(file, "config.json") == 0) return text_of(model, "config_sha256");
    if (strstr(file, ".index.json") != NULL) return text_of(model, "index_sha256");
    cJSON_ArrayForEach(shard, cJSON_GetObjectItemCaseSensitive(model, "shards"))
        if (strcmp(text_of(shard, "path"), file) == 0) return text_of(shard, "sha256");
    return "";
}

static h3_status check_pinned(const h3_plan *plan, const cJSON *model)
{
    const cJSON *pin;
    cJSON_ArrayForEach(pin, plan->checkpoint_pins.hashes) {
        if (cJSON_IsString(pin) && strcmp(recorded_hash(model, pin->string), pin->valuestring) == 0) continue;
        return h3_error(H3_INTEGRITY, MANIFEST ": its model's %s is not the one that the plan pins; rerun h3_reference_pass",
                        pin->string);
    }
    return H3_OK;
}

static h3_status check_model(const h3_plan *plan, const cJSON *model)
{
    h3_weights *weights;
    cJSON *identity = NULL;
    if (!plan->synthetic) return check_pinned(plan, model);
    H3_TRY(h3_weights_synthetic(&weights, &plan->config, plan->weight_seed));
    h3_status status = h3_weights_identity(weights, NULL, &identity);
    if (status == H3_OK && !cJSON_Compare(identity, model, 1))
        status = h3_error(H3_INTEGRITY, MANIFEST ": its model is not the one that the plan describes; rerun h3_reference_pass");
    cJSON_Delete(identity);
    h3_weights_free(weights);
    return status;
}

/* --- files and tensors -------------------------------------------------------------------------------------------- */

/* The manifest and stage.json list the same files. */
static h3_status check_files(const h3_run_check *check, const h3_manifest *manifest)
{
    const h3_run_files *listed = &check->view.stages[H3_STAGE_REFERENCE].outputs;
    size_t others = 0;
    for (size_t i = 0; i < listed->count; i++) {
        const h3_run_file *file = &listed->items[i];
        if (strcmp(file->path, MANIFEST) == 0 || strcmp(file->path, H3_CONTRACT_COPY) == 0) {
            others++;
            continue;
        }
        const h3_manifest_file *recorded = h3_manifest_find_file(manifest, file->path);
        if (recorded == NULL || recorded->size != file->size || strcmp(recorded->sha256, file->sha256) != 0)
            return h3_error(H3_INTEGRITY, MANIFEST ": it and stage.json disagree on %s; rerun h3_reference_pass", file->path);
    }
    if (listed->count == manifest->file_count + others) return H3_OK;
    return h3_error(H3_INTEGRITY, MANIFEST ": it lists %zu files, stage.json %zu; rerun h3_reference_pass", manifest->file_count,
                    listed->count - others);
}

/* "data/reference/<layout>/<precision>/<file>" gives "<layout>/<precision>/". */
static h3_status tensor_prefix(char out[200], const char *path)
{
    const char *end = strrchr(path, '/');
    if (strncmp(path, ARTIFACTS, strlen(ARTIFACTS)) != 0 || end - path < (ptrdiff_t)strlen(ARTIFACTS) || strlen(path) >= 200)
        return h3_error(H3_INTEGRITY, MANIFEST ": %s is no artifact of a reference pass", path);
    snprintf(out, 200, "%.*s", (int)(end + 1 - path - (ptrdiff_t)strlen(ARTIFACTS)), path + strlen(ARTIFACTS));
    return H3_OK;
}

static h3_status check_tensors(h3_run_check *check, const h3_manifest *manifest, const char *path)
{
    char prefix[200];
    h3_artifact artifact;
    H3_TRY(tensor_prefix(prefix, path));
    H3_TRY(h3_check_open_artifact(&artifact, check, H3_STAGE_REFERENCE, path));
    h3_status status = H3_OK;
    for (size_t i = 0; i < artifact.count && status == H3_OK; i++) {
        status = h3_manifest_require_entry(manifest, prefix, path, &artifact.entries[i], artifact.path);
        check->tensors += status == H3_OK;
        check->sampled += strncmp(artifact.entries[i].name, H3_SAMPLES, strlen(H3_SAMPLES)) == 0;
    }
    h3_artifact_close(&artifact);
    return status;
}

static h3_status check_manifest(h3_run_check *check, const h3_manifest *manifest)
{
    if (strcmp(manifest->plan_identity, check->plan.identity) != 0)
        return h3_error(H3_INTEGRITY, MANIFEST " was made by another plan; start a new run");
    H3_TRY(check_model(&check->plan, manifest->model));
    H3_TRY(check_files(check, manifest));
    for (size_t i = 0; i < manifest->file_count; i++) H3_TRY(check_tensors(check, manifest, manifest->files[i].path));
    if (check->tensors == (int64_t)manifest->tensor_count) return H3_OK;
    return h3_error(H3_INTEGRITY, MANIFEST ": %zu tensors are listed, %lld are in the artifacts; rerun h3_reference_pass",
                    manifest->tensor_count, (long long)check->tensors);
}

h3_status h3_check_reference(h3_run_check *check, h3_run_facts *facts)
{
    char *text;
    size_t size;
    H3_TRY(h3_run_view_text(&text, &size, &check->view, H3_STAGE_REFERENCE, MANIFEST));
    h3_status status = h3_manifest_parse(&facts->manifest, text, size, MANIFEST);
    if (status == H3_OK) status = h3_sha256(facts->manifest_sha256, text, size);
    free(text);
    return status == H3_OK ? check_manifest(check, &facts->manifest) : status;
}

/* --- thresholds --------------------------------------------------------------------------------------------------- */

/* Every tensor of the BF16 provider has its bound, and there are no others. */
static h3_status check_bounds(const h3_thresholds *thresholds, const h3_manifest *manifest)
{
    size_t needed = 0;
    for (size_t i = 0; i < manifest->tensor_count; i++) {
        const char *name = manifest->tensors[i].name, *slash = strchr(name, '/');
        char layout[200];
        if (slash == NULL || strncmp(slash, "/bf16/", 6) != 0) continue;
        snprintf(layout, sizeof layout, "%.*s", (int)(slash - name), name);
        if (h3_thresholds_find(thresholds, layout, slash + 6) == NULL)
            return h3_error(H3_INTEGRITY, "thresholds.json: %s has no bound; start a new run", name);
        needed++;
    }
    if (needed == thresholds->count) return H3_OK;
    return h3_error(H3_INTEGRITY, "thresholds.json holds %zu bounds, %zu tensors need one; start a new run", thresholds->count,
                    needed);
}

h3_status h3_check_thresholds(h3_run_check *check, h3_run_facts *facts)
{
    char *text;
    size_t size;
    H3_TRY(h3_run_view_text(&text, &size, &check->view, H3_STAGE_FREEZE, "thresholds.json"));
    h3_status status = h3_thresholds_parse(&facts->thresholds, text, size, "thresholds.json");
    free(text);
    H3_TRY(status);
    const h3_thresholds *thresholds = &facts->thresholds;
    if (strcmp(thresholds->plan_identity, check->plan.identity) != 0)
        return h3_error(H3_INTEGRITY, "thresholds.json was made by another plan; start a new run");
    if (strcmp(thresholds->manifest_sha256, facts->manifest_sha256) != 0)
        return h3_error(H3_INTEGRITY, "thresholds.json was frozen from another " MANIFEST "; start a new run");
    H3_TRY(h3_fingerprint_require(thresholds->fingerprint, facts->manifest.fingerprint, "thresholds.json"));
    check->bounds = (int64_t)thresholds->count;
    return check_bounds(thresholds, &facts->manifest);
}
