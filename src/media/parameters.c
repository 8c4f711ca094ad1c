#include "media/parameters.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/text.h"
#include "model/synth.h"

#define FILE_NAME "diffusion_pytorch_model.safetensors"
#define INDEX_NAME FILE_NAME ".index.json"
enum { FILE_LIMIT = 1000, INDEX_LIMIT = 64 << 20 };

struct h3_parameter_source {
    h3_parameter_list list; /* sorted by name */
    char *prefix;           /* synthetic; NULL for a folder */
    uint64_t seed;
    size_t file_count;
    h3_safetensors *files; /* by ascending path once they are checked */
    char index_sha256[H3_SHA256_HEX]; /* "" for one file */
};

h3_status h3_parameters_add(h3_parameter_list *list, int32_t rank, const int64_t *shape, const char *name, ...)
{
    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? 2 * list->capacity : 128;
        h3_parameter_shape *larger = realloc(list->items, capacity * sizeof *larger);
        if (larger == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for the list of %zu parameters", capacity);
        list->items = larger;
        list->capacity = capacity;
    }
    h3_parameter_shape *item = &list->items[list->count];
    *item = (h3_parameter_shape){.rank = rank};
    memcpy(item->shape, shape, (size_t)rank * sizeof *shape);
    va_list arguments;
    va_start(arguments, name);
    int length = vsnprintf(item->name, sizeof item->name, name, arguments);
    va_end(arguments);
    if (length < 0 || (size_t)length >= sizeof item->name) return h3_error(H3_INTEGRITY, "the parameter name %.60s... is too long", item->name);
    list->count++;
    return H3_OK;
}

void h3_parameters_free(h3_parameter_list *list)
{
    free(list->items);
    *list = (h3_parameter_list){0};
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const h3_parameter_shape *)a)->name, ((const h3_parameter_shape *)b)->name);
}

static h3_status new_source(h3_parameter_source **out, h3_parameter_list *list)
{
    void *memory;
    *out = NULL;
    h3_status status = h3_alloc(&memory, 1, sizeof **out, "an autoencoder's parameters");
    if (status != H3_OK) {
        h3_parameters_free(list);
        return status;
    }
    *out = memory;
    (*out)->list = *list;
    *list = (h3_parameter_list){0};
    if ((*out)->list.count > 0) qsort((*out)->list.items, (*out)->list.count, sizeof *(*out)->list.items, compare_names);
    return H3_OK;
}

void h3_parameters_close(h3_parameter_source *source)
{
    if (source == NULL) return;
    for (size_t i = 0; i < source->file_count; i++) h3_safetensors_close(&source->files[i]);
    free(source->files);
    free(source->prefix);
    h3_parameters_free(&source->list);
    free(source);
}

/* The source, unless something was wrong. */
static h3_status finish(h3_parameter_source **out, h3_status status)
{
    if (status == H3_OK) return H3_OK;
    h3_parameters_close(*out);
    *out = NULL;
    return status;
}

h3_status h3_parameters_synthetic(h3_parameter_source **out, const char *prefix, uint64_t seed, h3_parameter_list *list)
{
    H3_TRY(new_source(out, list));
    (*out)->seed = seed;
    return finish(out, h3_format(&(*out)->prefix, "%s", prefix));
}

/* A plain file name, so that a folder's index cannot reach outside the folder. */
static h3_status check_file_name(const char *name, const char *index)
{
    int plain = name[0] != 0 && name[0] != '.' && strlen(name) <= 200;
    for (const char *c = name; *c; c++) plain = plain && (unsigned char)*c >= 0x20 && *c != 0x7f && *c != '/' && *c != '\\';
    if (plain) return H3_OK;
    return h3_error(H3_INTEGRITY, "%s: the shard path \"%.200s\" is no plain file name; shards lie beside the index", index, name);
}

static h3_status open_file(h3_parameter_source *source, const char *folder, const char *name)
{
    char path[H3_PATH_MAX];
    H3_TRY(h3_path(path, "%s/%s", folder, name));
    for (size_t i = 0; i < source->file_count; i++)
        if (strcmp(source->files[i].path, path) == 0) return H3_OK;
    if (source->file_count == FILE_LIMIT) return h3_error(H3_INTEGRITY, "%s: more than %d shards", folder, FILE_LIMIT);
    h3_safetensors *larger = realloc(source->files, (source->file_count + 1) * sizeof *larger);
    if (larger == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for the shards of %s", folder);
    source->files = larger;
    H3_TRY(h3_safetensors_open_linked(&source->files[source->file_count], path));
    source->file_count++;
    return H3_OK;
}

static h3_status open_shards(h3_parameter_source *source, const cJSON *root, const char *folder, const char *index)
{
    const cJSON *map, *item;
    H3_TRY(h3_json_object(&map, root, "weight_map", index, H3_INTEGRITY));
    cJSON_ArrayForEach(item, map) {
        if (!cJSON_IsString(item)) return h3_error(H3_INTEGRITY, "%s: the shard of \"%.200s\" must be a string", index, item->string);
        H3_TRY(check_file_name(item->valuestring, index));
        H3_TRY(open_file(source, folder, item->valuestring));
    }
    return H3_OK;
}

static h3_status check_shape(const h3_parameter_shape *wanted, const h3_tensor *found, const char *path)
{
    int same = found->rank == wanted->rank;
    if (found->dtype != H3_F32) return h3_error(H3_INTEGRITY, "%s: %s is not stored as F32, as autoencoders are released", path, wanted->name);
    for (int32_t i = 0; i < wanted->rank && same; i++) same = found->shape[i] == wanted->shape[i];
    if (same) return H3_OK;
    return h3_error(H3_INTEGRITY, "%s: %s has the wrong shape: rank %d, first size %lld, where config.json asks for rank %d, first size %lld", path,
                    wanted->name, found->rank, (long long)found->shape[0], wanted->rank, (long long)wanted->shape[0]);
}

static const h3_tensor *find(const h3_parameter_source *source, const char *name, const char **path, int *times)
{
    const h3_tensor *found = NULL;
    *times = 0;
    for (size_t i = 0; i < source->file_count; i++) {
        const h3_tensor *tensor = h3_safetensors_find(&source->files[i], name);
        if (tensor == NULL) continue;
        found = tensor;
        *path = source->files[i].path;
        ++*times;
    }
    return found;
}

static int is_beside(const h3_parameter_list *list, const char *name)
{
    for (size_t i = 0; list->beside != NULL && list->beside[i] != NULL; i++)
        if (strncmp(name, list->beside[i], strlen(list->beside[i])) == 0) return 1;
    return 0;
}

static h3_status check_contents(const h3_parameter_source *source, const char *folder)
{
    size_t stored = 0;
    for (size_t i = 0; i < source->list.count; i++) {
        const h3_parameter_shape *wanted = &source->list.items[i];
        const char *path = "";
        int times;
        const h3_tensor *found = find(source, wanted->name, &path, &times);
        if (found == NULL) return h3_error(H3_INTEGRITY, "%s: missing tensor %s; fetch the checkpoint again", folder, wanted->name);
        if (times > 1) return h3_error(H3_INTEGRITY, "%s: %s is stored %d times; fetch the checkpoint again", folder, wanted->name, times);
        H3_TRY(check_shape(wanted, found, path));
    }
    for (size_t i = 0; i < source->file_count; i++) stored += source->files[i].count;
    for (size_t i = 0; stored != source->list.count && i < source->file_count; i++)
        for (size_t k = 0; k < source->files[i].count; k++) {
            const char *name = source->files[i].entries[k].name;
            if (h3_parameters_shape(source, name) == NULL && !is_beside(&source->list, name))
                return h3_error(H3_INTEGRITY, "%s: additional tensor %.200s, which the model does not have", source->files[i].path, name);
        }
    return H3_OK;
}

static int compare_files(const void *a, const void *b) { return strcmp(((const h3_safetensors *)a)->path, ((const h3_safetensors *)b)->path); }

static h3_status open_index(h3_parameter_source *source, const char *folder, const char *index)
{
    char *text;
    size_t size;
    cJSON *root = NULL;
    H3_TRY(h3_file_read_linked(&text, &size, index, INDEX_LIMIT, H3_INTEGRITY));
    h3_status status = h3_sha256(source->index_sha256, text, size);
    if (status == H3_OK) status = h3_json_parse(&root, text, size, index, H3_INTEGRITY);
    free(text);
    if (status == H3_OK) status = open_shards(source, root, folder, index);
    cJSON_Delete(root);
    if (status == H3_OK && source->file_count > 0) qsort(source->files, source->file_count, sizeof *source->files, compare_files);
    return status == H3_OK ? check_contents(source, folder) : status;
}

static h3_status open_folder(h3_parameter_source *source, const char *folder)
{
    char index[H3_PATH_MAX], single[H3_PATH_MAX];
    H3_TRY(h3_path(index, "%s/" INDEX_NAME, folder));
    H3_TRY(h3_path(single, "%s/" FILE_NAME, folder));
    int sharded = access(index, F_OK) == 0, whole = access(single, F_OK) == 0;
    if (sharded && whole) return h3_error(H3_INTEGRITY, "%s holds both an index and an unsharded file; remove one", folder);
    if (!sharded && !whole) return h3_error(H3_INTEGRITY, "%s holds neither %s nor %s; fetch the checkpoint", folder, INDEX_NAME, FILE_NAME);
    if (whole) {
        H3_TRY(open_file(source, folder, FILE_NAME));
        return check_contents(source, folder);
    }
    return open_index(source, folder, index);
}

h3_status h3_parameters_open(h3_parameter_source **out, const char *folder, h3_parameter_list *list)
{
    H3_TRY(new_source(out, list));
    return finish(out, open_folder(*out, folder));
}

h3_status h3_parameters_take(h3_parameter_source **out, h3_safetensors *file, h3_parameter_list *list)
{
    void *memory = NULL;
    h3_status status = new_source(out, list);
    if (status == H3_OK) {
        status = h3_alloc(&memory, 1, sizeof *file, "the file of an autoencoder");
        if (status != H3_OK) finish(out, status);
    }
    if (status != H3_OK) {
        h3_safetensors_close(file);
        return status;
    }
    (*out)->files = memory;
    (*out)->files[(*out)->file_count++] = *file;
    *file = (h3_safetensors){0};
    return finish(out, check_contents(*out, (*out)->files[0].path));
}

static int64_t count_of(const h3_parameter_shape *item)
{
    int64_t count = 1;
    for (int32_t i = 0; i < item->rank; i++) count *= item->shape[i];
    return count;
}

static int ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

static h3_status make_stream(h3_tensor *out, const h3_parameter_source *source, const h3_device *device, const h3_parameter_shape *item)
{
    float base = 0.0f, amp = 0.5f;
    uint32_t key[2];
    char *stream;
    if (item->rank > 1) {
        double inputs = 1.0;
        for (int32_t i = 1; i < item->rank; i++) inputs *= (double)item->shape[i];
        amp = (float)sqrt(3.0 / inputs);
    } else if (ends_with(item->name, ".weight")) {
        base = 1.0f;
        amp = 0.25f;
    } else if (ends_with(item->name, ".bias")) {
        amp = 0.1f;
    }
    H3_TRY(h3_format(&stream, "%s.%s", source->prefix, item->name));
    h3_status status = h3_synth_key(key, source->seed, stream);
    free(stream);
    return status == H3_OK ? device->synth(out, key, base, amp, 0) : status;
}

/* The few that are not simply a stream are made on the host. */
static h3_status make(h3_tensor *out, const h3_parameter_source *source, const h3_device *device, const h3_parameter_shape *item)
{
    h3_tensor host;
    if (item->fixed != NULL) return device->from_host(out->data, item->fixed, h3_tensor_bytes(out));
    if (item->factor == 0.0f) return make_stream(out, source, device, item);
    H3_TRY(h3_tensor_new(&host, H3_F32, out->rank, out->shape));
    h3_status status = make_stream(&host, source, h3_device_cpu(), item);
    for (int64_t i = 0; status == H3_OK && i < h3_tensor_count(&host); i++) ((float *)host.data)[i] *= item->factor;
    if (status == H3_OK) status = device->from_host(out->data, host.data, h3_tensor_bytes(&host));
    h3_tensor_free(&host);
    return status;
}

const h3_parameter_list *h3_parameters_listed(const h3_parameter_source *source) { return &source->list; }

const h3_parameter_shape *h3_parameters_shape(const h3_parameter_source *source, const char *name)
{
    h3_parameter_shape key;
    if (source->list.count == 0 || strlen(name) >= sizeof key.name) return NULL;
    strcpy(key.name, name);
    return bsearch(&key, source->list.items, source->list.count, sizeof key, compare_names);
}

h3_status h3_parameters_fill(h3_tensor *out, const h3_parameter_source *source, const h3_device *device, const char *name)
{
    const h3_parameter_shape *item = h3_parameters_shape(source, name);
    if (item == NULL) return h3_error(H3_USAGE, "the autoencoder has no parameter %.200s", name);
    if (h3_tensor_count(out) != count_of(item) || out->dtype != H3_F32)
        return h3_error(H3_USAGE, "parameter %s has %lld elements in F32, not %lld", name, (long long)count_of(item), (long long)h3_tensor_count(out));
    if (source->prefix != NULL) return make(out, source, device, item);
    const char *path;
    int times;
    return device->from_host(out->data, find(source, name, &path, &times)->data, h3_tensor_bytes(out));
}

h3_status h3_parameters_read(h3_tensor *out, const h3_parameter_source *source, const char *name)
{
    *out = (h3_tensor){0};
    const h3_parameter_shape *item = h3_parameters_shape(source, name);
    if (item == NULL) return h3_error(H3_USAGE, "the autoencoder has no parameter %.200s", name);
    H3_TRY(h3_tensor_new(out, H3_F32, item->rank, item->shape));
    h3_status status = h3_parameters_fill(out, source, h3_device_cpu(), name);
    if (status != H3_OK) h3_tensor_free(out);
    return status;
}

const char *h3_parameters_path(const h3_parameter_source *source, const char *name)
{
    const char *path = source->prefix;
    int times;
    if (path == NULL) find(source, name, &path, &times);
    return path != NULL ? path : "";
}

uint64_t h3_parameters_seed(const h3_parameter_source *source) { return source->seed; }

int64_t h3_parameters_count(const h3_parameter_source *source)
{
    int64_t count = 0;
    for (size_t i = 0; i < source->list.count; i++) count += count_of(&source->list.items[i]);
    return count;
}

static const char *name_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

static h3_status describe_files(cJSON *object, const h3_parameter_source *source, const h3_watch *watch)
{
    void *memory;
    H3_TRY(h3_alloc(&memory, source->file_count, sizeof(h3_hash_job), "the digests of an autoencoder"));
    h3_hash_job *jobs = memory;
    for (size_t i = 0; i < source->file_count; i++) jobs[i] = (h3_hash_job){.data = source->files[i].image, .size = source->files[i].size};
    h3_status status = h3_sha256_many(jobs, source->file_count, watch);
    cJSON_AddStringToObject(object, "kind", "folder");
    if (source->index_sha256[0] == 0) cJSON_AddNullToObject(object, "index_sha256");
    else cJSON_AddStringToObject(object, "index_sha256", source->index_sha256);
    cJSON *shards = cJSON_AddArrayToObject(object, "shards");
    for (size_t i = 0; i < source->file_count; i++) {
        cJSON *item = cJSON_CreateObject();
        cJSON_AddItemToArray(shards, item);
        cJSON_AddStringToObject(item, "path", name_of(source->files[i].path));
        h3_json_add_integer(item, "size", (int64_t)source->files[i].size);
        cJSON_AddStringToObject(item, "sha256", jobs[i].sha256);
    }
    free(memory);
    return status;
}

h3_status h3_parameters_identity(cJSON **out, const h3_parameter_source *source, const h3_watch *watch)
{
    cJSON *object = cJSON_CreateObject();
    h3_status status = H3_OK;
    *out = NULL;
    if (object == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for the identity of an autoencoder");
    if (source->prefix == NULL) {
        status = describe_files(object, source, watch);
    } else {
        cJSON_AddStringToObject(object, "kind", "synthetic");
        cJSON_AddStringToObject(object, "scheme", "h3synth-v1");
        cJSON_AddStringToObject(object, "prefix", source->prefix);
        h3_json_add_unsigned(object, "seed", source->seed);
    }
    if (status == H3_OK) *out = object;
    else cJSON_Delete(object);
    return status;
}
