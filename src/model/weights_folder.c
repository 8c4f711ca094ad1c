/* Opening a checkpoint folder and proving that it holds the inventory, no less and no more. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/json.h"
#include "model/weights_internal.h"

enum { CONFIG_LIMIT = 1 << 20, INDEX_LIMIT = 64 << 20, SHARD_NAME_LIMIT = 200 };

/* A stored tensor and the shard that has it. */
typedef struct stored {
    const h3_safetensors_entry *entry;
    const h3_shard *shard;
} stored;

/* How a folder is opened. */
typedef struct h3_opening {
    const char *folder;
    const h3_weights_pins *pins;
    int hash;
    const h3_watch *watch;
} h3_opening;

int h3_weights_has_file(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0;
}

h3_status h3_weights_load_config(h3_weights *weights, const char *folder)
{
    char path[H3_PATH_MAX], *text;
    size_t size;
    H3_TRY(h3_path(path, "%s/config.json", folder));
    H3_TRY(h3_file_read_linked(&text, &size, path, CONFIG_LIMIT, H3_INTEGRITY));
    h3_status status = h3_sha256(weights->config_sha256, text, size);
    if (status == H3_OK) status = h3_config_parse(&weights->config, text, size, path);
    free(text);
    return status == H3_OK ? h3_inventory_new(&weights->inventory, &weights->config) : status;
}

/* A plain file name inside the folder. */
h3_status h3_check_shard_name(const char *name, const char *index)
{
    size_t length = strlen(name);
    int plain =
        length > 0 && length <= SHARD_NAME_LIMIT && name[0] != '.' && strchr(name, '/') == NULL && strchr(name, '\\') == NULL;
    for (const char *c = name; *c; c++) plain = plain && (unsigned char)*c >= 0x20 && *c != 0x7f;
    if (plain) return H3_OK;
    return h3_error(H3_INTEGRITY, "%s: the shard path \"%.200s\" is no plain file name; shards lie beside the index", index,
                    name);
}

static int compare_text(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

h3_status h3_weights_add_shard(h3_weights *weights, const char *folder, const char *name)
{
    char path[H3_PATH_MAX];
    h3_shard *shard = &weights->shards[weights->shard_count];
    H3_TRY(h3_path(path, "%s/%s", folder, name));
    H3_TRY(h3_safetensors_open_linked(&shard->file, path));
    weights->shard_count++;
    return h3_format(&shard->name, "%s", name);
}

/* Opens every file that the map names, once. `names` has room for them. */
static h3_status open_named(h3_weights *weights, const cJSON *map, const char **names, const char *folder, const char *index)
{
    const cJSON *item;
    size_t count = 0;
    cJSON_ArrayForEach(item, map) {
        if (!cJSON_IsString(item))
            return h3_error(H3_INTEGRITY, "%s: the shard of \"%.200s\" must be a string", index, item->string);
        H3_TRY(h3_check_shard_name(item->valuestring, index));
        names[count++] = item->valuestring;
    }
    if (count == 0) return h3_error(H3_INTEGRITY, "%s: the weight_map is empty; fetch the index again", index);
    qsort(names, count, sizeof *names, compare_text);
    void *shards;
    H3_TRY(h3_alloc(&shards, count, sizeof(h3_shard), "the shards of a checkpoint"));
    weights->shards = shards;
    for (size_t i = 0; i < count; i++) {
        char path[H3_PATH_MAX];
        if (i > 0 && strcmp(names[i - 1], names[i]) == 0) continue;
        H3_TRY(h3_path(path, "%s/%s", folder, names[i]));
        if (!h3_weights_has_file(path))
            return h3_error(H3_INTEGRITY, "%s names the shard %s, and cannot open %s: No such file or directory", index, names[i], path);
        H3_TRY(h3_weights_add_shard(weights, folder, names[i]));
    }
    return H3_OK;
}

static h3_status open_shards(h3_weights *weights, const cJSON *map, const char *folder, const char *index)
{
    void *names;
    H3_TRY(h3_alloc(&names, (size_t)cJSON_GetArraySize(map), sizeof(char *), "the shard names of a checkpoint"));
    h3_status status = open_named(weights, map, names, folder, index);
    free(names);
    return status;
}

static int compare_stored(const void *a, const void *b)
{
    return strcmp(((const stored *)a)->entry->name, ((const stored *)b)->entry->name);
}

/* All tensors of all shards in the order of their names; the caller frees. */
static h3_status list_stored(stored **out, size_t *count, const h3_weights *weights)
{
    void *memory;
    size_t total = 0, filled = 0;
    for (size_t i = 0; i < weights->shard_count; i++) total += weights->shards[i].file.count;
    H3_TRY(h3_alloc(&memory, total, sizeof(stored), "the tensors of a checkpoint"));
    stored *list = memory;
    for (size_t i = 0; i < weights->shard_count; i++)
        for (size_t k = 0; k < weights->shards[i].file.count; k++)
            list[filled++] = (stored){&weights->shards[i].file.entries[k], &weights->shards[i]};
    if (total > 0) qsort(list, total, sizeof *list, compare_stored);
    *out = list;
    *count = total;
    return H3_OK;
}

h3_status h3_check_stored(const h3_parameter *parameter, const h3_tensor *tensor, const char *path)
{
    int same = tensor->rank == parameter->rank;
    if (tensor->dtype != parameter->dtype)
        return h3_error(H3_INTEGRITY, "%s: %s has the wrong dtype; %s was expected", path, parameter->name,
                        parameter->dtype == H3_F32 ? "F32" : "BF16");
    for (int32_t i = 0; i < parameter->rank && same; i++) same = tensor->shape[i] == parameter->shape[i];
    if (same) return H3_OK;
    if (parameter->rank == 1)
        return h3_error(H3_INTEGRITY, "%s: %s has the wrong shape; [%lld] follows from config.json", path, parameter->name,
                        (long long)parameter->shape[0]);
    return h3_error(H3_INTEGRITY, "%s: %s has the wrong shape; [%lld, %lld] follows from config.json", path, parameter->name,
                    (long long)parameter->shape[0], (long long)parameter->shape[1]);
}

/* Walks the stored names and the inventory's names side by side. */
static h3_status match_inventory(h3_weights *weights, const stored *list, size_t count, const char *folder)
{
    const h3_inventory *inventory = &weights->inventory;
    for (size_t i = 1; i < count; i++)
        if (compare_stored(&list[i - 1], &list[i]) == 0)
            return h3_error(H3_INTEGRITY, "%s: %s is stored twice, in %s and in %s", folder, list[i].entry->name,
                            list[i - 1].shard->name, list[i].shard->name);
    for (size_t i = 0, k = 0; i < inventory->count || k < count;) {
        const h3_parameter *parameter = i < inventory->count ? &inventory->items[inventory->by_name[i]] : NULL;
        int order = parameter == NULL ? 1 : k == count ? -1 : strcmp(parameter->name, list[k].entry->name);
        if (order < 0)
            return h3_error(H3_INTEGRITY, "%s: missing tensor %s; fetch the checkpoint again", folder, parameter->name);
        if (order > 0)
            return h3_error(H3_INTEGRITY, "%s: additional tensor %s, which the model does not have", folder, list[k].entry->name);
        H3_TRY(h3_check_stored(parameter, &list[k].entry->tensor, list[k].shard->file.path));
        weights->tensors[inventory->by_name[i++]] = &list[k++].entry->tensor;
    }
    return H3_OK;
}

/* Every tensor must be in the very shard that the index names. The names are known to be the inventory's. */
static h3_status check_map(const cJSON *map, const stored *list, size_t count, const char *index)
{
    const cJSON *item;
    if ((size_t)cJSON_GetArraySize(map) != count)
        return h3_error(H3_INTEGRITY, "%s: the weight_map has %d names but the shards hold %zu tensors", index,
                        cJSON_GetArraySize(map), count);
    cJSON_ArrayForEach(item, map) {
        h3_safetensors_entry key = {.name = item->string};
        const stored wanted = {.entry = &key}, *found = bsearch(&wanted, list, count, sizeof *list, compare_stored);
        if (found == NULL)
            return h3_error(H3_INTEGRITY, "%s: no shard holds the tensor \"%.200s\" of the weight_map", index, item->string);
        if (strcmp(found->shard->name, item->valuestring) != 0)
            return h3_error(H3_INTEGRITY, "%s: %s lies in %s, not in %s", index, item->string, found->shard->name,
                            item->valuestring);
    }
    return H3_OK;
}

static h3_status check_total(const cJSON *root, const stored *list, size_t count, int64_t pinned, const char *index)
{
    static const char *const KEYS[] = {"metadata", "weight_map", NULL};
    const cJSON *metadata;
    int64_t total, sum = 0;
    H3_TRY(h3_json_only_keys(root, KEYS, index, H3_INTEGRITY));
    H3_TRY(h3_json_object(&metadata, root, "metadata", index, H3_INTEGRITY));
    H3_TRY(h3_json_integer(&total, metadata, "total_size", 0, INT64_MAX, index, H3_INTEGRITY));
    for (size_t i = 0; i < count; i++) sum += (int64_t)h3_tensor_bytes(&list[i].entry->tensor); /* mapped, so that it fits */
    if (sum == total && pinned >= 0 && pinned != total)
        return h3_error(H3_INTEGRITY, "%s: total_size is %lld, the plan expects %lld; fetch the checkpoint again", index, (long long)total,
                        (long long)pinned);
    if (sum == total) return H3_OK;
    return h3_error(H3_INTEGRITY, "%s: total_size is %lld but the tensors have %lld bytes", index, (long long)total,
                    (long long)sum);
}

/* `root` is the parsed index; NULL for the unsharded file. */
static h3_status check_contents(h3_weights *weights, const cJSON *root, const cJSON *map, const h3_opening *opening, const char *index)
{
    stored *list;
    size_t count;
    void *tensors;
    H3_TRY(h3_pins_check_shards(weights, opening->folder, opening->pins, opening->hash, opening->watch));
    H3_TRY(h3_alloc(&tensors, weights->inventory.count, sizeof(h3_tensor *), "the tensors of a checkpoint"));
    weights->tensors = tensors;
    H3_TRY(list_stored(&list, &count, weights));
    h3_status status = match_inventory(weights, list, count, opening->folder);
    if (status == H3_OK && root != NULL) status = check_map(map, list, count, index);
    if (status == H3_OK && root != NULL) status = check_total(root, list, count, opening->pins->total_size, index);
    free(list);
    return status;
}

h3_status h3_weights_read_index(h3_weights *weights, cJSON **root, const cJSON **map, const char *index)
{
    char *text;
    size_t size;
    *root = NULL;
    H3_TRY(h3_file_read_linked(&text, &size, index, INDEX_LIMIT, H3_INTEGRITY));
    h3_status status = h3_sha256(weights->index_sha256, text, size);
    if (status == H3_OK) status = h3_json_parse(root, text, size, index, H3_INTEGRITY);
    free(text);
    if (status == H3_OK) status = h3_json_object(map, *root, "weight_map", index, H3_INTEGRITY);
    return status;
}

static h3_status load_sharded(h3_weights *weights, const h3_opening *opening, const char *index)
{
    cJSON *root;
    const cJSON *map;
    h3_status status = h3_weights_read_index(weights, &root, &map, index);
    if (status == H3_OK) status = h3_pins_check_text(opening->pins, opening->folder, H3_INDEX_NAME, weights->index_sha256);
    if (status == H3_OK) status = open_shards(weights, map, opening->folder, index);
    if (status == H3_OK) status = check_contents(weights, root, map, opening, index);
    cJSON_Delete(root);
    return status;
}

static h3_status load_unsharded(h3_weights *weights, const h3_opening *opening)
{
    void *shards;
    H3_TRY(h3_alloc(&shards, 1, sizeof(h3_shard), "the shard of a checkpoint"));
    weights->shards = shards;
    H3_TRY(h3_weights_add_shard(weights, opening->folder, H3_UNSHARDED_NAME));
    return check_contents(weights, NULL, NULL, opening, NULL);
}

h3_status h3_weights_load_folder(h3_weights *weights, const char *folder, const h3_weights_pins *pins, int hash, const h3_watch *watch)
{
    const h3_opening opening = {folder, pins, hash, watch};
    char index[H3_PATH_MAX], unsharded[H3_PATH_MAX];
    weights->is_folder = 1;
    weights->only_block = -1;
    H3_TRY(h3_path(index, "%s/" H3_INDEX_NAME, folder));
    H3_TRY(h3_path(unsharded, "%s/" H3_UNSHARDED_NAME, folder));
    H3_TRY(h3_weights_load_config(weights, folder));
    H3_TRY(h3_pins_check_text(pins, folder, "config.json", weights->config_sha256));
    if (!h3_weights_has_file(index) && !h3_weights_has_file(unsharded))
        return h3_error(H3_INTEGRITY, "%s holds neither %s nor %s; fetch the checkpoint", folder, H3_INDEX_NAME, H3_UNSHARDED_NAME);
    if (!h3_weights_has_file(index)) return load_unsharded(weights, &opening);
    if (h3_weights_has_file(unsharded)) return h3_error(H3_INTEGRITY, "%s holds both an index and an unsharded file; remove one", folder);
    return load_sharded(weights, &opening, index);
}
