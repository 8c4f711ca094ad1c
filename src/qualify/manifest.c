#include "qualify/manifest.h"

#include <gnu/libc-version.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/memory.h"
#include "store/publish.h"

const char *h3_precision_name(int32_t precision) { return precision == H3_F32 ? "fp32" : "bf16"; }

h3_status h3_reference_path(char out[200], const char *layout, int32_t precision, int64_t block)
{
    const char *name = h3_precision_name(precision);
    int length = block == H3_INPUT_SIDE    ? snprintf(out, 200, "data/reference/%s/%s/boundary-input.h5", layout, name)
                 : block == H3_OUTPUT_SIDE ? snprintf(out, 200, "data/reference/%s/%s/boundary-output.h5", layout, name)
                                           : snprintf(out, 200, "data/reference/%s/%s/block-%03lld.h5", layout, name, (long long)block);
    return length < 200 ? H3_OK : h3_error(H3_USAGE, "layout name %s is too long for a path", layout);
}

h3_status h3_fingerprint(cJSON **out, const h3_library *provider)
{
    char isa[128];
#if defined(__x86_64__)
    /* What glibc and OpenBLAS choose their kernels by. */
    snprintf(isa, sizeof isa, "x86-64%s%s%s", __builtin_cpu_supports("avx2") ? " avx2" : "", __builtin_cpu_supports("fma") ? " fma" : "",
             __builtin_cpu_supports("avx512f") ? " avx512f" : "");
#else
    snprintf(isa, sizeof isa, "other");
#endif
    cJSON *json = cJSON_CreateObject();
    if (json == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for a fingerprint");
    cJSON_AddStringToObject(json, "instruction_set", isa);
    cJSON_AddStringToObject(json, "libm", gnu_get_libc_version());
    cJSON_AddStringToObject(json, "provider", provider->table->name);
    cJSON_AddStringToObject(json, "provider_libraries", provider->table->architectures);
    *out = json;
    return H3_OK;
}

h3_status h3_fingerprint_require(const cJSON *recorded, const cJSON *current, const char *where)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, recorded) {
        const cJSON *other = cJSON_GetObjectItemCaseSensitive(current, item->string);
        if (!cJSON_Compare(item, other, 1))
            return h3_error(H3_INTEGRITY, "%s is not comparable: made with %s \"%s\", here it is \"%s\"; start a new run on this machine", where, item->string,
                            cJSON_IsString(item) ? item->valuestring : "?", other != NULL && cJSON_IsString(other) ? other->valuestring : "absent");
    }
    if (!cJSON_Compare(recorded, current, 1)) return h3_error(H3_INTEGRITY, "%s is not comparable: its fingerprint has other fields; start a new run", where);
    return H3_OK;
}

static h3_status grow(void **items, size_t *capacity, size_t count, size_t size)
{
    if (count < *capacity) return H3_OK;
    size_t wanted = *capacity ? *capacity * 2 : 64, bytes;
    H3_TRY(h3_size_multiply(wanted, size, &bytes));
    void *larger = realloc(*items, bytes);
    if (larger == NULL) return h3_error(H3_ENVIRONMENT, "out of memory: %zu bytes for a manifest", bytes);
    *items = larger;
    *capacity = wanted;
    return H3_OK;
}

h3_status h3_manifest_add_file(h3_manifest *manifest, const char *path, int64_t size, const char *sha256)
{
    void *items = manifest->files;
    H3_TRY(grow(&items, &manifest->file_capacity, manifest->file_count, sizeof *manifest->files));
    manifest->files = items;
    h3_manifest_file *file = &manifest->files[manifest->file_count++];
    snprintf(file->path, sizeof file->path, "%s", path);
    snprintf(file->sha256, sizeof file->sha256, "%s", sha256);
    file->size = size;
    return H3_OK;
}

h3_status h3_manifest_add_tensor(h3_manifest *manifest, const char *name, const char *file, const char *digest)
{
    void *items = manifest->tensors;
    H3_TRY(grow(&items, &manifest->tensor_capacity, manifest->tensor_count, sizeof *manifest->tensors));
    manifest->tensors = items;
    h3_manifest_tensor *tensor = &manifest->tensors[manifest->tensor_count++];
    snprintf(tensor->name, sizeof tensor->name, "%s", name);
    snprintf(tensor->file, sizeof tensor->file, "%s", file);
    snprintf(tensor->digest, sizeof tensor->digest, "%s", digest);
    tensor->samples = 0;
    tensor->norm = 0.0;
    return H3_OK;
}

h3_status h3_manifest_add_samples(h3_manifest *manifest, const char *name, const char *file, const char *digest, double norm)
{
    H3_TRY(h3_manifest_add_tensor(manifest, name, file, digest));
    manifest->tensors[manifest->tensor_count - 1].samples = 1;
    manifest->tensors[manifest->tensor_count - 1].norm = norm;
    return H3_OK;
}

h3_status h3_manifest_require_entry(const h3_manifest *manifest, const char *prefix, const char *file, const h3_artifact_entry *entry, const char *where)
{
    char name[400];
    int samples = strncmp(entry->name, H3_SAMPLES, strlen(H3_SAMPLES)) == 0;
    snprintf(name, sizeof name, "%s%s", prefix, entry->name + (samples ? strlen(H3_SAMPLES) : 0));
    const h3_manifest_tensor *tensor = strlen(name) < sizeof tensor->name ? h3_manifest_find(manifest, name) : NULL;
    if (tensor == NULL || strcmp(tensor->file, file) != 0 || tensor->samples != samples || (!samples && strcmp(tensor->digest, entry->digest) != 0))
        return h3_error(H3_INTEGRITY, "reference-manifest.json does not list %s as %s has it; rerun h3_reference_pass", name, where);
    return H3_OK;
}

static int by_path(const void *a, const void *b) { return strcmp(((const h3_manifest_file *)a)->path, ((const h3_manifest_file *)b)->path); }
static int by_name(const void *a, const void *b) { return strcmp(((const h3_manifest_tensor *)a)->name, ((const h3_manifest_tensor *)b)->name); }

static h3_status sort_entries(h3_manifest *manifest, const char *where)
{
    if (manifest->file_count > 0) qsort(manifest->files, manifest->file_count, sizeof *manifest->files, by_path);
    if (manifest->tensor_count > 0) qsort(manifest->tensors, manifest->tensor_count, sizeof *manifest->tensors, by_name);
    for (size_t i = 1; i < manifest->file_count; i++)
        if (by_path(&manifest->files[i - 1], &manifest->files[i]) == 0) return h3_error(H3_INTEGRITY, "%s lists file %s twice", where, manifest->files[i].path);
    for (size_t i = 1; i < manifest->tensor_count; i++)
        if (by_name(&manifest->tensors[i - 1], &manifest->tensors[i]) == 0)
            return h3_error(H3_INTEGRITY, "%s lists tensor %s twice", where, manifest->tensors[i].name);
    return H3_OK;
}

static cJSON *file_json(const h3_manifest_file *file)
{
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "path", file->path);
    h3_json_add_integer(json, "size", file->size);
    cJSON_AddStringToObject(json, "sha256", file->sha256);
    return json;
}

static cJSON *tensor_json(const h3_manifest_tensor *tensor)
{
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "name", tensor->name);
    cJSON_AddStringToObject(json, "file", tensor->file);
    cJSON_AddStringToObject(json, "digest", tensor->digest);
    if (tensor->samples) {
        cJSON_AddStringToObject(json, "stored", "samples");
        cJSON_AddNumberToObject(json, "norm", tensor->norm);
    }
    return json;
}

h3_status h3_manifest_print(char **out, h3_manifest *manifest)
{
    H3_TRY(sort_entries(manifest, "the manifest"));
    cJSON *json = cJSON_CreateObject();
    if (json == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for a manifest");
    cJSON_AddStringToObject(json, "schema", "h3-reference-manifest-v1");
    cJSON_AddStringToObject(json, "plan_identity", manifest->plan_identity);
    cJSON_AddItemToObject(json, "fingerprint", cJSON_Duplicate(manifest->fingerprint, 1));
    cJSON_AddItemToObject(json, "model", cJSON_Duplicate(manifest->model, 1));
    cJSON *files = cJSON_AddArrayToObject(json, "files"), *tensors = cJSON_AddArrayToObject(json, "tensors");
    for (size_t i = 0; i < manifest->file_count; i++) cJSON_AddItemToArray(files, file_json(&manifest->files[i]));
    for (size_t i = 0; i < manifest->tensor_count; i++) cJSON_AddItemToArray(tensors, tensor_json(&manifest->tensors[i]));
    h3_status status = h3_json_print(out, json);
    cJSON_Delete(json);
    return status;
}

static int is_sha256(const char *text) { return strlen(text) == 64 && strspn(text, "0123456789abcdef") == 64; }

static h3_status read_files(h3_manifest *out, const cJSON *json, const char *where)
{
    static const char *const keys[] = {"path", "size", "sha256", NULL};
    const cJSON *files, *item;
    H3_TRY(h3_json_array(&files, json, "files", where, H3_INTEGRITY));
    cJSON_ArrayForEach(item, files) {
        const char *path, *sha256;
        int64_t size;
        H3_TRY(h3_json_only_keys(item, keys, where, H3_INTEGRITY));
        H3_TRY(h3_json_string(&path, item, "path", where, H3_INTEGRITY));
        H3_TRY(h3_json_string(&sha256, item, "sha256", where, H3_INTEGRITY));
        H3_TRY(h3_json_integer(&size, item, "size", 0, INT64_MAX, where, H3_INTEGRITY));
        if (strlen(path) >= 200 || !is_sha256(sha256)) return h3_error(H3_INTEGRITY, "%s: malformed file entry %.80s", where, path);
        H3_TRY(h3_check_relative(path, where));
        H3_TRY(h3_manifest_add_file(out, path, size, sha256));
    }
    return H3_OK;
}

/* "stored" and "norm" are there together or not at all. */
static h3_status read_samples(h3_manifest_tensor *tensor, const cJSON *item, const char *where)
{
    const char *stored;
    const cJSON *norm = cJSON_GetObjectItemCaseSensitive(item, "norm");
    if (norm == NULL && cJSON_GetObjectItemCaseSensitive(item, "stored") == NULL) return H3_OK;
    H3_TRY(h3_json_string(&stored, item, "stored", where, H3_INTEGRITY));
    if (strcmp(stored, "samples") != 0 || !cJSON_IsNumber(norm) || !(norm->valuedouble >= 0.0))
        return h3_error(H3_INTEGRITY, "%s: malformed tensor entry %.80s", where, tensor->name);
    tensor->samples = 1;
    tensor->norm = norm->valuedouble;
    return H3_OK;
}

static h3_status read_tensors(h3_manifest *out, const cJSON *json, const char *where)
{
    static const char *const keys[] = {"name", "file", "digest", "stored", "norm", NULL};
    const cJSON *tensors, *item;
    H3_TRY(h3_json_array(&tensors, json, "tensors", where, H3_INTEGRITY));
    cJSON_ArrayForEach(item, tensors) {
        const char *name, *file, *digest;
        H3_TRY(h3_json_only_keys(item, keys, where, H3_INTEGRITY));
        H3_TRY(h3_json_string(&name, item, "name", where, H3_INTEGRITY));
        H3_TRY(h3_json_string(&file, item, "file", where, H3_INTEGRITY));
        H3_TRY(h3_json_string(&digest, item, "digest", where, H3_INTEGRITY));
        if (strlen(name) >= 240 || strlen(file) >= 200 || !is_sha256(digest)) return h3_error(H3_INTEGRITY, "%s: malformed tensor entry %.80s", where, name);
        H3_TRY(h3_manifest_add_tensor(out, name, file, digest));
        H3_TRY(read_samples(&out->tensors[out->tensor_count - 1], item, where));
    }
    return H3_OK;
}

static h3_status read_manifest(h3_manifest *out, const cJSON *json, const char *where)
{
    static const char *const keys[] = {"schema", "plan_identity", "fingerprint", "model", "files", "tensors", NULL};
    const char *schema, *identity;
    const cJSON *fingerprint, *model;
    H3_TRY(h3_json_only_keys(json, keys, where, H3_INTEGRITY));
    H3_TRY(h3_json_string(&schema, json, "schema", where, H3_INTEGRITY));
    H3_TRY(h3_json_string(&identity, json, "plan_identity", where, H3_INTEGRITY));
    if (strcmp(schema, "h3-reference-manifest-v1") != 0 || !is_sha256(identity)) return h3_error(H3_INTEGRITY, "%s is no reference manifest of this version", where);
    snprintf(out->plan_identity, sizeof out->plan_identity, "%s", identity);
    H3_TRY(h3_json_object(&fingerprint, json, "fingerprint", where, H3_INTEGRITY));
    H3_TRY(h3_json_object(&model, json, "model", where, H3_INTEGRITY));
    out->fingerprint = cJSON_Duplicate(fingerprint, 1);
    out->model = cJSON_Duplicate(model, 1);
    if (out->fingerprint == NULL || out->model == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for %s", where);
    H3_TRY(read_files(out, json, where));
    H3_TRY(read_tensors(out, json, where));
    if (out->file_count == 0 || out->tensor_count == 0) return h3_error(H3_INTEGRITY, "%s lists no tensors", where);
    H3_TRY(sort_entries(out, where));
    for (size_t i = 0; i < out->tensor_count; i++)
        if (h3_manifest_find_file(out, out->tensors[i].file) == NULL)
            return h3_error(H3_INTEGRITY, "%s: tensor %.120s is in file %.120s, which is not listed", where, out->tensors[i].name, out->tensors[i].file);
    return H3_OK;
}

h3_status h3_manifest_parse(h3_manifest *out, const char *text, size_t size, const char *where)
{
    cJSON *json = NULL;
    memset(out, 0, sizeof *out);
    h3_status status = h3_json_parse(&json, text, size, where, H3_INTEGRITY);
    if (status == H3_OK) status = read_manifest(out, json, where);
    cJSON_Delete(json);
    if (status != H3_OK) h3_manifest_free(out);
    return status;
}

void h3_manifest_free(h3_manifest *manifest)
{
    cJSON_Delete(manifest->fingerprint);
    cJSON_Delete(manifest->model);
    free(manifest->files);
    free(manifest->tensors);
    memset(manifest, 0, sizeof *manifest);
}

const h3_manifest_tensor *h3_manifest_find(const h3_manifest *manifest, const char *name)
{
    h3_manifest_tensor key;
    if (manifest->tensor_count == 0) return NULL;
    snprintf(key.name, sizeof key.name, "%s", name);
    return bsearch(&key, manifest->tensors, manifest->tensor_count, sizeof key, by_name);
}

const h3_manifest_file *h3_manifest_find_file(const h3_manifest *manifest, const char *path)
{
    h3_manifest_file key;
    if (manifest->file_count == 0) return NULL;
    snprintf(key.path, sizeof key.path, "%s", path);
    return bsearch(&key, manifest->files, manifest->file_count, sizeof key, by_path);
}

static cJSON *content_of(const cJSON *model)
{
    static const char *const beside[] = {"repository", "revision", "block_tensors"};
    cJSON *copy = cJSON_Duplicate(model, 1);
    for (size_t i = 0; i < sizeof beside / sizeof *beside; i++) cJSON_DeleteItemFromObjectCaseSensitive(copy, beside[i]);
    return copy;
}

int h3_model_same(const cJSON *a, const cJSON *b)
{
    cJSON *content_a = content_of(a), *content_b = content_of(b);
    int same = content_a != NULL && content_b != NULL && cJSON_Compare(content_a, content_b, 1);
    cJSON_Delete(content_a);
    cJSON_Delete(content_b);
    return same;
}

h3_status h3_manifest_require_equal(const h3_manifest *pinned, const h3_manifest *made, const char *where)
{
    H3_TRY(h3_fingerprint_require(pinned->fingerprint, made->fingerprint, where));
    if (!h3_model_same(pinned->model, made->model)) return h3_error(H3_INTEGRITY, "%s pins another model; check the plan's checkpoint", where);
    for (size_t i = 0; i < pinned->tensor_count; i++) {
        const h3_manifest_tensor *tensor = h3_manifest_find(made, pinned->tensors[i].name);
        if (tensor == NULL || strcmp(tensor->digest, pinned->tensors[i].digest) != 0 || tensor->samples != pinned->tensors[i].samples)
            return h3_error(H3_INTEGRITY, "%s: tensor %s is not reproduced; the provider, a library or the machine has changed", where, pinned->tensors[i].name);
    }
    if (pinned->tensor_count != made->tensor_count) return h3_error(H3_INTEGRITY, "%s pins %zu tensors, this pass made %zu", where, pinned->tensor_count, made->tensor_count);
    for (size_t i = 0; i < pinned->file_count; i++) {
        const h3_manifest_file *file = h3_manifest_find_file(made, pinned->files[i].path);
        if (file == NULL || strcmp(file->sha256, pinned->files[i].sha256) != 0)
            return h3_error(H3_INTEGRITY, "%s: file %s is not reproduced byte for byte", where, pinned->files[i].path);
    }
    if (pinned->file_count != made->file_count) return h3_error(H3_INTEGRITY, "%s pins %zu files, this pass made %zu", where, pinned->file_count, made->file_count);
    return H3_OK;
}
