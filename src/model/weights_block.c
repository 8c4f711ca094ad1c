/* One block of a checkpoint folder: what `h3_candidate_gate --only 'block0*'` needs of 66 GB. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "model/weights_internal.h"

static int in_block(const h3_parameter *parameter, int64_t block)
{
    char prefix[64];
    snprintf(prefix, sizeof prefix, "transformer_blocks.%lld.", (long long)block);
    return strncmp(parameter->name, prefix, strlen(prefix)) == 0;
}

static const h3_shard *shard_of(h3_weights *weights, const char *name)
{
    for (size_t i = 0; i < weights->shard_count; i++)
        if (strcmp(weights->shards[i].name, name) == 0) return &weights->shards[i];
    return NULL;
}

/* `map` NULL: the unsharded file has all. The shard is opened when its first tensor is wanted. */
static h3_status open_shard_of(h3_weights *weights, const char *folder, const cJSON *map, const char *tensor, const h3_shard **out)
{
    char path[H3_PATH_MAX];
    const char *name = H3_UNSHARDED_NAME;
    if (map != NULL) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(map, tensor);
        if (!cJSON_IsString(item))
            return h3_error(H3_INTEGRITY, "%s/" H3_INDEX_NAME " names no shard for %s; fetch index and shards of that block", folder, tensor);
        name = item->valuestring;
        H3_TRY(h3_check_shard_name(name, H3_INDEX_NAME));
    }
    if ((*out = shard_of(weights, name)) != NULL) return H3_OK;
    H3_TRY(h3_path(path, "%s/%s", folder, name));
    if (!h3_weights_has_file(path)) return h3_error(H3_INTEGRITY, "%s is missing, the shard that has %s; fetch it", path, tensor);
    H3_TRY(h3_weights_add_shard(weights, folder, name));
    *out = &weights->shards[weights->shard_count - 1];
    return H3_OK;
}

static h3_status open_tensors(h3_weights *weights, const char *folder, const cJSON *map)
{
    void *memory;
    size_t wanted = 0;
    for (size_t i = 0; i < weights->inventory.count; i++) wanted += (size_t)in_block(&weights->inventory.items[i], weights->only_block);
    if (wanted == 0) return h3_error(H3_USAGE, "%s: the model has no block %lld", folder, (long long)weights->only_block);
    H3_TRY(h3_alloc(&memory, weights->inventory.count, sizeof(h3_tensor *), "the tensors of a block"));
    weights->tensors = memory;
    H3_TRY(h3_alloc(&memory, wanted, sizeof(h3_shard), "the shards of a block"));
    weights->shards = memory;
    for (size_t i = 0; i < weights->inventory.count; i++) {
        const h3_parameter *parameter = &weights->inventory.items[i];
        const h3_shard *shard;
        if (!in_block(parameter, weights->only_block)) continue;
        H3_TRY(open_shard_of(weights, folder, map, parameter->name, &shard));
        const h3_tensor *tensor = h3_safetensors_find(&shard->file, parameter->name);
        if (tensor == NULL) return h3_error(H3_INTEGRITY, "%s: the tensor %s is missing; fetch that shard again", shard->file.path, parameter->name);
        H3_TRY(h3_check_stored(parameter, tensor, shard->file.path));
        weights->tensors[i] = tensor;
    }
    return H3_OK;
}

h3_status h3_weights_load_block(h3_weights *weights, const char *folder, int64_t block, const h3_weights_pins *pins)
{
    char index[H3_PATH_MAX];
    cJSON *root = NULL;
    const cJSON *map = NULL;
    weights->is_folder = 1;
    weights->only_block = block;
    H3_TRY(h3_path(index, "%s/" H3_INDEX_NAME, folder));
    H3_TRY(h3_weights_load_config(weights, folder));
    H3_TRY(h3_pins_check_text(pins, folder, "config.json", weights->config_sha256));
    h3_status status = h3_weights_has_file(index) ? h3_weights_read_index(weights, &root, &map, index) : H3_OK;
    if (status == H3_OK) status = open_tensors(weights, folder, map);
    cJSON_Delete(root);
    return status;
}

/* The next parameter of the block in the order of the names, from position *at on; NULL behind the last. */
static const h3_parameter *next_of_block(const h3_weights *weights, int64_t block, size_t *at)
{
    while (*at < weights->inventory.count) {
        const h3_parameter *parameter = &weights->inventory.items[weights->inventory.by_name[(*at)++]];
        if (in_block(parameter, block)) return parameter;
    }
    return NULL;
}

static h3_status digest_of(char digest[H3_SHA256_HEX], const h3_weights *weights, const h3_parameter *parameter)
{
    const h3_tensor *tensor = weights->is_folder ? weights->tensors[parameter - weights->inventory.items] : NULL;
    if (tensor == NULL) return h3_error(H3_INTEGRITY, "%s is not open in a checkpoint folder", parameter->name);
    return h3_digest(digest, tensor->data, h3_tensor_bytes(tensor));
}

h3_status h3_weights_block_tensors(const h3_weights *weights, int64_t block, cJSON **out)
{
    char digest[H3_SHA256_HEX];
    const h3_parameter *parameter;
    cJSON *json = cJSON_CreateObject();
    h3_status status = json != NULL ? H3_OK : h3_error(H3_ENVIRONMENT, "out of memory for the digests of a block");
    for (size_t at = 0; status == H3_OK && (parameter = next_of_block(weights, block, &at)) != NULL;) {
        status = digest_of(digest, weights, parameter);
        if (status == H3_OK && cJSON_AddStringToObject(json, parameter->name, digest) == NULL)
            status = h3_error(H3_ENVIRONMENT, "out of memory for the digests of a block");
    }
    *out = status == H3_OK ? json : NULL;
    if (status != H3_OK) cJSON_Delete(json);
    return status;
}

/* The path of the shard that a tensor is in. */
static const char *path_of(const h3_weights *weights, const char *tensor)
{
    for (size_t i = 0; i < weights->shard_count; i++)
        if (h3_safetensors_find(&weights->shards[i].file, tensor) != NULL) return weights->shards[i].file.path;
    return "the checkpoint";
}

h3_status h3_weights_require_block(const h3_weights *weights, int64_t block, const cJSON *digests, const char *where)
{
    char digest[H3_SHA256_HEX];
    const h3_parameter *parameter;
    int count = 0;
    for (size_t at = 0; (parameter = next_of_block(weights, block, &at)) != NULL; count++) {
        const char *expected = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(digests, parameter->name));
        if (expected == NULL) return h3_error(H3_INTEGRITY, "%s has no digest of %s; rerun h3_reference_pass", where, parameter->name);
        H3_TRY(digest_of(digest, weights, parameter));
        if (strcmp(digest, expected) != 0)
            return h3_error(H3_INTEGRITY, "%s: %s is not the tensor that %s was made with (expected %.12s..., found %.12s...); fetch it again",
                            path_of(weights, parameter->name), parameter->name, where, expected, digest);
    }
    if (count > 0 && cJSON_GetArraySize(digests) == count) return H3_OK;
    return h3_error(H3_INTEGRITY, "%s has digests of %d tensors where block %lld has %d; rerun h3_reference_pass", where, cJSON_GetArraySize(digests),
                    (long long)block, count);
}
