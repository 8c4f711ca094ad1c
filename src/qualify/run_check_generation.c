/* Reports of the generation and of the comparison against artifacts, plan and gate. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "qualify/compare.h"
#include "qualify/generation_store.h"
#include "qualify/run_check_internal.h"

/* --- one side of the generation ----------------------------------------------------------------------------------- */

/* Digests of every step's velocity: slices of one dataset. */
static h3_status check_velocity(const h3_artifact *artifact, const cJSON *seed, const char *modality, const h3_tensor *velocity,
                                int64_t *tensors)
{
    const cJSON *digests, *digest;
    H3_TRY(h3_json_array(&digests, cJSON_GetObjectItemCaseSensitive(seed, "velocity"), modality, artifact->path, H3_INTEGRITY));
    int64_t steps = velocity->rank == 3 ? velocity->shape[0] : 0, step = 0;
    size_t bytes = steps > 0 ? h3_tensor_bytes(velocity) / (size_t)steps : 0;
    if (steps < 1 || steps != cJSON_GetArraySize(digests))
        return h3_error(H3_INTEGRITY, "%s: velocity.%s has not the %d steps of its report; run h3_generate again", artifact->path,
                        modality, cJSON_GetArraySize(digests));
    cJSON_ArrayForEach(digest, digests) {
        char found[H3_SHA256_HEX];
        H3_TRY(h3_digest(found, (const char *)velocity->data + (size_t)step * bytes, bytes));
        if (!cJSON_IsString(digest) || strcmp(digest->valuestring, found) != 0)
            return h3_error(H3_INTEGRITY, "%s: velocity.%s, step %lld, has not the digest of its report; run h3_generate again",
                            artifact->path, modality, (long long)step);
        step++;
    }
    *tensors += steps;
    return H3_OK;
}

static h3_status check_opened(h3_run_check *check, const h3_artifact *artifact, const cJSON *seed)
{
    h3_compare_tensors tensors;
    H3_TRY(h3_compare_tensors_of(&tensors, artifact, seed));
    check->tensors += (int64_t)artifact->count - 2;
    H3_TRY(check_velocity(artifact, seed, "video", tensors.velocity_video, &check->tensors));
    return check_velocity(artifact, seed, "audio", tensors.velocity_audio, &check->tensors);
}

static h3_status check_seed(h3_run_check *check, int stage, const cJSON *seed, const char *where)
{
    const char *path;
    h3_artifact artifact;
    H3_TRY(h3_json_string(&path, seed, "artifact", where, H3_INTEGRITY));
    H3_TRY(h3_check_open_artifact(&artifact, check, stage, path));
    h3_status status = check_opened(check, &artifact, seed);
    h3_artifact_close(&artifact);
    return status;
}

/* The candidate's side runs only what the gate qualified. */
static h3_status check_libraries(const cJSON *report, const cJSON *gate, const char *where)
{
    const cJSON *libraries, *library, *qualified;
    H3_TRY(h3_json_array(&libraries, report, "libraries", where, H3_INTEGRITY));
    cJSON_ArrayForEach(library, libraries) {
        const cJSON *sha256 = cJSON_GetObjectItemCaseSensitive(library, "sha256");
        int found = 0;
        cJSON_ArrayForEach(qualified, cJSON_GetObjectItemCaseSensitive(gate, "libraries"))
            found |= cJSON_Compare(cJSON_GetObjectItemCaseSensitive(qualified, "sha256"), sha256, 1);
        if (!found)
            return h3_error(H3_INTEGRITY,
                            "%s ran a library that gate.json did not qualify; run h3_generate --side candidate again", where);
    }
    return H3_OK;
}

static h3_status check_report(h3_run_check *check, const h3_run_facts *facts, int stage, const cJSON *report, const char *path)
{
    const char *side = stage == H3_STAGE_PROVIDER ? "provider" : "candidate", *schema, *said, *plan;
    const cJSON *seeds, *seed;
    H3_TRY(h3_json_string(&schema, report, "schema", path, H3_INTEGRITY));
    H3_TRY(h3_json_string(&said, report, "side", path, H3_INTEGRITY));
    H3_TRY(h3_json_string(&plan, report, "plan_sha256", path, H3_INTEGRITY));
    if (strcmp(schema, H3_GENERATION_SCHEMA) != 0 || strcmp(said, side) != 0)
        return h3_error(H3_INTEGRITY, "%s is no report of the %s's generation of this version", path, side);
    if (strcmp(plan, check->view.plan_sha256) != 0)
        return h3_error(H3_INTEGRITY, "%s was made by another plan; run h3_generate again", path);
    if (!cJSON_Compare(cJSON_GetObjectItemCaseSensitive(report, "model"), facts->manifest.model, 1))
        return h3_error(H3_INTEGRITY, "%s is of another model than reference-manifest.json; run h3_generate again", path);
    if (stage == H3_STAGE_CANDIDATE) H3_TRY(check_libraries(report, facts->gate, path));
    H3_TRY(h3_json_array(&seeds, report, "seeds", path, H3_INTEGRITY));
    if (cJSON_GetArraySize(seeds) == 0) return h3_error(H3_INTEGRITY, "%s has no seed; run h3_generate again", path);
    cJSON_ArrayForEach(seed, seeds) {
        H3_TRY(check_seed(check, stage, seed, path));
        H3_TRY(h3_check_seed_media(check, stage, report, seed, path));
    }
    return H3_OK;
}

h3_status h3_check_generation(h3_run_check *check, h3_run_facts *facts, int stage)
{
    char path[64];
    cJSON *report;
    h3_generation_report_path(path, stage == H3_STAGE_PROVIDER ? "provider" : "candidate");
    H3_TRY(h3_run_view_json(&report, &check->view, stage, path));
    h3_status status = check_report(check, facts, stage, report, path);
    cJSON_Delete(report);
    return status;
}

/* --- the comparison ----------------------------------------------------------------------------------------------- */

static h3_status disagrees(const char *what) { return h3_error(H3_INTEGRITY, "compare.json: %s; rerun h3_compare", what); }

static int all_numbers(const cJSON *velocity)
{
    const cJSON *errors = cJSON_GetObjectItemCaseSensitive(velocity, "errors"), *error;
    cJSON_ArrayForEach(error, errors)
        if (!cJSON_IsNumber(error)) return 0;
    return cJSON_GetArraySize(errors) > 0;
}

/* 1 when the figures of a seed hold, 0 when they do not. */
static int seed_holds(const cJSON *seed, double limit)
{
    static const char *const modalities[] = {"video", "audio"};
    for (int i = 0; i < 2; i++) {
        const cJSON *latent = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(seed, "latent"), modalities[i]);
        const cJSON *velocity =
            cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(seed, "velocity"), modalities[i]);
        const cJSON *error = cJSON_GetObjectItemCaseSensitive(latent, "error");
        if (!cJSON_IsNumber(error) || !(error->valuedouble <= limit) || !all_numbers(velocity)) return 0;
    }
    return 1;
}

static h3_status check_figures(const h3_run_check *check, const cJSON *report, const char *verdict)
{
    const cJSON *limits, *seeds, *seed;
    double limit;
    int all = 1;
    H3_TRY(h3_json_object(&limits, report, "limits", "compare.json", H3_INTEGRITY));
    H3_TRY(h3_json_number(&limit, limits, "latent_error", "compare.json", H3_INTEGRITY));
    H3_TRY(h3_json_array(&seeds, report, "seeds", "compare.json", H3_INTEGRITY));
    if (cJSON_GetArraySize(seeds) == 0) return disagrees("it has no seed");
    cJSON_ArrayForEach(seed, seeds) {
        int media_hold, holds = seed_holds(seed, limit);
        H3_TRY(h3_check_compare_media(check, seed, limits, &media_hold));
        holds = holds && media_hold;
        if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(seed, "ok")) != holds)
            return disagrees("a seed's verdict disagrees with its figures");
        all = all && holds;
    }
    return strcmp(verdict, all ? "passed" : "failed") == 0 ? H3_OK : disagrees("its verdict disagrees with its figures");
}

h3_status h3_check_compare(h3_run_check *check)
{
    cJSON *report;
    const char *schema = "", *plan = "", *verdict = "";
    H3_TRY(h3_run_view_json(&report, &check->view, H3_STAGE_COMPARE, "compare.json"));
    h3_status status = h3_json_string(&schema, report, "schema", "compare.json", H3_INTEGRITY);
    if (status == H3_OK) status = h3_json_string(&plan, report, "plan_sha256", "compare.json", H3_INTEGRITY);
    if (status == H3_OK) status = h3_json_string(&verdict, report, "verdict", "compare.json", H3_INTEGRITY);
    if (status == H3_OK && strcmp(schema, "h3-compare-v1") != 0) status = disagrees("it is no comparison of this version");
    if (status == H3_OK && strcmp(plan, check->view.plan_sha256) != 0) status = disagrees("it was made by another plan");
    if (status == H3_OK && strcmp(verdict, check->view.stages[H3_STAGE_COMPARE].verdict) != 0)
        status = disagrees("its verdict is not the one in stage.json");
    if (status == H3_OK) status = check_figures(check, report, verdict);
    cJSON_Delete(report);
    return status;
}
