/* The stages, and reading a stage.json strictly. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "store/run_internal.h"

static const struct {
    const char *name, *program;
} stages[H3_RUN_STAGES] = {
    {"reference_pass", "h3_reference_pass"},
    {"threshold_freeze", "h3_threshold_freeze"},
    {"generate_provider", "h3_generate --side provider"},
    {"candidate_gate", "h3_candidate_gate"},
    {"generate_candidate", "h3_generate --side candidate"},
    {"compare", "h3_compare"},
    {"diagnose", "h3_diagnose"},
};

int32_t h3_stage_index(const char *name)
{
    for (int32_t i = 0; i < H3_RUN_STAGES; i++)
        if (strcmp(stages[i].name, name) == 0) return i;
    return -1;
}

const char *h3_stage_name(int32_t index) { return stages[index].name; }
const char *h3_stage_program(int32_t index) { return stages[index].program; }

int h3_verdict_passes(const char *verdict) { return strcmp(verdict, "passed") == 0 || strcmp(verdict, "VALID") == 0; }

int h3_verdict_known(const char *verdict)
{
    return h3_verdict_passes(verdict) || strcmp(verdict, "failed") == 0 || strcmp(verdict, "INVALID") == 0 ||
           strcmp(verdict, "PARTIAL") == 0;
}

static h3_status read_verdict(char out[H3_RUN_VERDICT_SIZE], const cJSON *object, const char *where)
{
    const char *verdict;
    H3_TRY(h3_json_string(&verdict, object, "verdict", where, H3_INTEGRITY));
    if (!h3_verdict_known(verdict)) return h3_error(H3_INTEGRITY, "%s: \"%.40s\" is not a verdict", where, verdict);
    strcpy(out, verdict);
    return H3_OK;
}

/* Only earlier stages, each once and in order: whatever a file says, following the needs comes to an end. */
static h3_status read_needs(h3_stage *out, const cJSON *json, const char *where)
{
    static const char *const keys[] = {"stage", "verdict", NULL};
    const cJSON *array, *item;
    int32_t last = -1;
    H3_TRY(h3_json_array(&array, json, "needs", where, H3_INTEGRITY));
    cJSON_ArrayForEach(item, array) {
        const char *name;
        H3_TRY(h3_json_only_keys(item, keys, where, H3_INTEGRITY));
        H3_TRY(h3_json_string(&name, item, "stage", where, H3_INTEGRITY));
        int32_t index = h3_stage_index(name);
        if (index <= last || index >= out->index)
            return h3_error(H3_INTEGRITY, "%s: \"%.40s\" is not a stage that it can need, or out of order", where, name);
        h3_run_needed *needed = &out->needed[out->needed_count++];
        needed->stage = last = index;
        H3_TRY(read_verdict(needed->verdict, item, where));
    }
    return H3_OK;
}

static h3_status read_files(h3_run_files *out, const cJSON *json, const char *key, const char *where)
{
    static const char *const keys[] = {"path", "size", "sha256", NULL};
    const cJSON *array, *item;
    const char *last = NULL;
    H3_TRY(h3_json_array(&array, json, key, where, H3_INTEGRITY));
    cJSON_ArrayForEach(item, array) {
        const char *path, *sha256;
        int64_t size;
        H3_TRY(h3_json_only_keys(item, keys, where, H3_INTEGRITY));
        H3_TRY(h3_json_string(&path, item, "path", where, H3_INTEGRITY));
        H3_TRY(h3_json_integer(&size, item, "size", 0, INT64_MAX, where, H3_INTEGRITY));
        H3_TRY(h3_json_string(&sha256, item, "sha256", where, H3_INTEGRITY));
        h3_status status = h3_run_files_add(out, path, size, sha256);
        if (status != H3_OK) return h3_error_context(status, "%s", where);
        if (last != NULL && strcmp(last, path) >= 0)
            return h3_error(H3_INTEGRITY, "%s: \"%.200s\" is listed twice or out of order", where, path);
        last = path;
    }
    return H3_OK;
}

static h3_status read_stage(h3_stage *out, const cJSON *json, const char *where)
{
    static const char *const keys[] = {"schema", "stage",   "verdict", "plan_sha256", "needs",
                                       "inputs", "outputs", "build",   "sha256",      NULL};
    const char *schema, *stage, *plan_sha256;
    const cJSON *build;
    H3_TRY(h3_json_only_keys(json, keys, where, H3_INTEGRITY));
    H3_TRY(h3_json_string(&schema, json, "schema", where, H3_INTEGRITY));
    if (strcmp(schema, H3_STAGE_SCHEMA) != 0)
        return h3_error(H3_INTEGRITY, "%s: schema \"%.40s\" is not \"" H3_STAGE_SCHEMA "\"", where, schema);
    H3_TRY(h3_json_string(&stage, json, "stage", where, H3_INTEGRITY));
    if (strcmp(stage, h3_stage_name(out->index)) != 0)
        return h3_error(H3_INTEGRITY, "%s: it is of the stage \"%.40s\"", where, stage);
    H3_TRY(read_verdict(out->verdict, json, where));
    H3_TRY(h3_json_string(&plan_sha256, json, "plan_sha256", where, H3_INTEGRITY));
    if (strlen(plan_sha256) >= sizeof out->plan_sha256) return h3_error(H3_INTEGRITY, "%s: plan_sha256 is malformed", where);
    strcpy(out->plan_sha256, plan_sha256);
    H3_TRY(read_needs(out, json, where));
    H3_TRY(read_files(&out->inputs, json, "inputs", where));
    H3_TRY(read_files(&out->outputs, json, "outputs", where));
    for (size_t i = 0; i < out->outputs.count; i++) H3_TRY(h3_run_check_output(out->outputs.items[i].path, out->index, where));
    return h3_json_object(&build, json, "build", where, H3_INTEGRITY);
}

h3_status h3_stage_seal(char out[H3_SHA256_HEX], const cJSON *json)
{
    char *text;
    H3_TRY(h3_json_print(&text, json));
    h3_status status = h3_sha256(out, text, strlen(text));
    free(text);
    return status;
}

/* What h3_json_print makes of a last field "sha256" ends so; without the field the text would end in END. */
#define SEAL ",\n  \"sha256\": \""
#define SEAL_END "\"\n}\n"
#define END "\n}\n"
enum { SEAL_SIZE = sizeof SEAL - 1 + H3_SHA256_HEX - 1 + sizeof SEAL_END - 1 };

/* The bytes are those that were written. Asked of the text itself: printing the parsed numbers again might round them. */
static h3_status check_seal(char *text, size_t size, const char *path, const char *program)
{
    char found[H3_SHA256_HEX] = "", kept[SEAL_SIZE + 1] = "";
    if (size > SEAL_SIZE) {
        char *end = text + size - SEAL_SIZE;
        memcpy(kept, end, SEAL_SIZE);
        strcpy(end, END);
        H3_TRY(h3_sha256(found, text, size - SEAL_SIZE + sizeof END - 1));
    }
    char expected[SEAL_SIZE + 1];
    snprintf(expected, sizeof expected, SEAL "%s" SEAL_END, found);
    if (strcmp(kept, expected) == 0) return H3_OK;
    return h3_error(H3_INTEGRITY, "%s has not the SHA-256 that it says it has: it has changed; rerun %s", path, program);
}

static h3_status parse_stage(cJSON **json, h3_stage *out, const char *path)
{
    char *text;
    size_t size;
    H3_TRY(h3_file_read(&text, &size, path, H3_STAGE_LIMIT, H3_INTEGRITY));
    h3_status status = h3_json_parse(json, text, size, path, H3_INTEGRITY);
    if (status == H3_OK) status = read_stage(out, *json, path);
    if (status == H3_OK) status = check_seal(text, size, path, stages[out->index].program);
    free(text);
    return status;
}

/* Both forms of the same file: `json` for whoever wants the rest of it. */
static h3_status open_stage(cJSON **json, h3_stage *out, const char *folder, int32_t index)
{
    char relative[96], path[H3_PATH_MAX];
    int present;
    struct stat info;
    *json = NULL;
    *out = (h3_stage){.index = index};
    snprintf(relative, sizeof relative, "stages/%s/stage.json", stages[index].name);
    H3_TRY(h3_run_lookup(path, &present, &info, folder, relative));
    if (!present)
        return h3_error(H3_INTEGRITY, "%s has not finished (%s is missing); run %s", stages[index].name, path,
                        stages[index].program);
    if (info.st_size > H3_STAGE_LIMIT)
        return h3_error(H3_INTEGRITY, "%s is larger than a stage.json can be; rerun %s", path, stages[index].program);
    return parse_stage(json, out, path);
}

h3_status h3_run_stage_read(cJSON **out, const char *folder, const char *stage)
{
    h3_stage parsed;
    int32_t index = h3_stage_index(stage);
    *out = NULL;
    if (index < 0) return h3_error(H3_USAGE, "\"%.60s\" is not a stage", stage);
    h3_status status = open_stage(out, &parsed, folder, index);
    h3_stage_free(&parsed);
    if (status == H3_OK) return H3_OK;
    cJSON_Delete(*out);
    *out = NULL;
    return status;
}

h3_status h3_stage_load(h3_stage *out, const char *folder, int32_t index, const char *plan_sha256)
{
    cJSON *json;
    h3_status status = open_stage(&json, out, folder, index);
    cJSON_Delete(json);
    if (status == H3_OK && plan_sha256 != NULL && strcmp(out->plan_sha256, plan_sha256) != 0)
        status = h3_error(H3_INTEGRITY, "%s in %s was made with another plan; rerun %s, or start a new run", stages[index].name,
                          folder, stages[index].program);
    return status;
}

void h3_stage_free(h3_stage *stage)
{
    h3_run_files_free(&stage->inputs);
    h3_run_files_free(&stage->outputs);
}
