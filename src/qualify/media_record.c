#include "qualify/media_record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "store/publish.h"

static const char record_schema[] = "h3-media-record-v1";

h3_status h3_media_record_json(cJSON **out, const h3_seed_media *seed, int64_t number, const char *folder)
{
    cJSON *facts, *json;
    *out = NULL;
    H3_TRY(h3_media_facts_json(&facts, &seed->facts, folder));
    json = cJSON_CreateObject();
    h3_json_add_integer(json, "seed", number);
    if (!cJSON_AddItemToObject(json, "media", facts)) cJSON_Delete(facts);
    cJSON *files = cJSON_AddArrayToObject(json, "files");
    for (size_t i = 0; i < seed->files.count; i++) {
        cJSON *item = cJSON_CreateObject();
        cJSON_AddStringToObject(item, "path", seed->files.items[i].path);
        h3_json_add_integer(item, "size", seed->files.items[i].size);
        cJSON_AddStringToObject(item, "sha256", seed->files.items[i].sha256);
        if (!cJSON_AddItemToArray(files, item)) cJSON_Delete(item);
    }
    *out = json;
    if (cJSON_GetArraySize(json) == 3 && cJSON_GetArraySize(files) == (int)seed->files.count) return H3_OK;
    cJSON_Delete(json);
    *out = NULL;
    return h3_error(H3_ENVIRONMENT, "out of memory for the record of a seed's media");
}

static h3_status read_files(h3_run_files *out, const cJSON *json, const char *folder, const char *where)
{
    const cJSON *files, *item;
    H3_TRY(h3_json_array(&files, json, "files", where, H3_INTEGRITY));
    cJSON_ArrayForEach(item, files) {
        const char *path, *sha256;
        int64_t size;
        H3_TRY(h3_json_string(&path, item, "path", where, H3_INTEGRITY));
        H3_TRY(h3_json_integer(&size, item, "size", 0, INT64_MAX, where, H3_INTEGRITY));
        H3_TRY(h3_json_string(&sha256, item, "sha256", where, H3_INTEGRITY));
        if (strncmp(path, folder, strlen(folder)) != 0 || path[strlen(folder)] != '/')
            return h3_error(H3_INTEGRITY, "%s: %.200s does not lie in %s; run without --resume", where, path, folder);
        H3_TRY(h3_run_files_add(out, path, size, sha256));
    }
    return H3_OK;
}

h3_status h3_media_record_read(h3_seed_media *out, int64_t *number, const cJSON *json, const char *folder, const char *where)
{
    const cJSON *facts;
    *out = (h3_seed_media){0};
    H3_TRY(h3_json_integer(number, json, "seed", 0, UINT32_MAX, where, H3_INTEGRITY));
    H3_TRY(h3_json_object(&facts, json, "media", where, H3_INTEGRITY));
    H3_TRY(h3_media_facts_read(&out->facts, facts, where));
    h3_status status = read_files(&out->files, json, folder, where);
    if (status != H3_OK) h3_run_files_free(&out->files);
    out->done = status == H3_OK;
    return status;
}

/* SHA-256 of the record as text without its last field, "sha256", which holds this. */
static h3_status seal(cJSON *json)
{
    char *text, sha256[H3_SHA256_HEX];
    H3_TRY(h3_json_print(&text, json));
    h3_status status = h3_sha256(sha256, text, strlen(text));
    free(text);
    if (status == H3_OK) cJSON_AddStringToObject(json, "sha256", sha256);
    return status;
}

h3_status h3_media_record_save(const char *path, const char *key, const h3_seed_media *seed, int64_t number, const char *folder)
{
    cJSON *json;
    H3_TRY(h3_media_record_json(&json, seed, number, folder));
    cJSON_AddStringToObject(json, "schema", record_schema);
    cJSON_AddStringToObject(json, "key", key);
    h3_status status = seal(json);
    if (status == H3_OK) status = h3_publish_json(path, json, NULL, NULL);
    cJSON_Delete(json);
    return status;
}

/* Printed again with a seal of its own it is the same text. */
static h3_status check_seal(cJSON *json, const char *text, const char *path)
{
    char *again;
    cJSON_DeleteItemFromObjectCaseSensitive(json, "sha256");
    H3_TRY(seal(json));
    H3_TRY(h3_json_print(&again, json));
    int same = strcmp(again, text) == 0;
    free(again);
    return same ? H3_OK : h3_error(H3_INTEGRITY, "%s has not the SHA-256 that it says it has: it has changed; run without --resume", path);
}

static h3_status take(h3_seed_media *out, int *foreign, const cJSON *json, const char *path, const char *key, int64_t number, const char *folder)
{
    const char *schema, *found;
    int64_t seed;
    H3_TRY(h3_json_string(&schema, json, "schema", path, H3_INTEGRITY));
    H3_TRY(h3_json_string(&found, json, "key", path, H3_INTEGRITY));
    *foreign = strcmp(schema, record_schema) != 0 || strcmp(found, key) != 0;
    if (*foreign) return H3_OK;
    H3_TRY(h3_media_record_read(out, &seed, json, folder, path));
    if (seed == number) return H3_OK;
    h3_run_files_free(&out->files);
    out->done = 0;
    return h3_error(H3_INTEGRITY, "%s is of seed %lld; run without --resume", path, (long long)seed);
}

h3_status h3_media_record_load(h3_seed_media *out, int *foreign, const char *path, const char *key, int64_t number, const char *folder)
{
    enum { MOST = 1 << 28 };
    char *text;
    size_t size;
    cJSON *json = NULL;
    *out = (h3_seed_media){0};
    *foreign = 0;
    H3_TRY(h3_file_read(&text, &size, path, MOST, H3_INTEGRITY));
    h3_status status = h3_json_parse(&json, text, size, path, H3_INTEGRITY);
    if (status == H3_OK) status = check_seal(json, text, path);
    if (status == H3_OK) status = take(out, foreign, json, path, key, number, folder);
    cJSON_Delete(json);
    free(text);
    return status;
}
