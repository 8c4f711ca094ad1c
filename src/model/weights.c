#include "model/weights.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "model/synth.h"
#include "model/weights_internal.h"

static h3_status new_weights(h3_weights **out)
{
    void *memory;
    *out = NULL;
    H3_TRY(h3_alloc(&memory, 1, sizeof(h3_weights), "the weights"));
    *out = memory;
    return H3_OK;
}

h3_status h3_weights_open(h3_weights **out, const char *folder)
{
    const h3_weights_pins none = {.total_size = -1};
    return h3_weights_open_pinned(out, folder, &none, 0, NULL);
}

static h3_status keep_or_free(h3_weights **out, h3_weights *weights, h3_status status)
{
    if (status != H3_OK) h3_weights_free(weights);
    else *out = weights;
    return status;
}

h3_status h3_weights_open_pinned(h3_weights **out, const char *folder, const h3_weights_pins *pins, int hash, const h3_watch *watch)
{
    h3_weights *weights;
    *out = NULL;
    H3_TRY(new_weights(&weights));
    return keep_or_free(out, weights, h3_weights_load_folder(weights, folder, pins, hash, watch));
}

h3_status h3_weights_open_block(h3_weights **out, const char *folder, int64_t block, const h3_weights_pins *pins)
{
    h3_weights *weights;
    *out = NULL;
    H3_TRY(new_weights(&weights));
    return keep_or_free(out, weights, h3_weights_load_block(weights, folder, block, pins));
}

h3_status h3_weights_synthetic(h3_weights **out, const h3_config *config, uint64_t seed)
{
    h3_weights *weights;
    *out = NULL;
    H3_TRY(new_weights(&weights));
    weights->config = *config;
    weights->seed = seed;
    return keep_or_free(out, weights, h3_inventory_new(&weights->inventory, config));
}

void h3_weights_free(h3_weights *weights)
{
    if (weights == NULL) return;
    for (size_t i = 0; i < weights->shard_count; i++) {
        free(weights->shards[i].name);
        h3_safetensors_close(&weights->shards[i].file);
    }
    free(weights->shards);
    free(weights->tensors);
    h3_inventory_free(&weights->inventory);
    free(weights);
}

const h3_config *h3_weights_config(const h3_weights *weights) { return &weights->config; }

const h3_inventory *h3_weights_inventory(const h3_weights *weights) { return &weights->inventory; }

const char *h3_weights_config_sha256(const h3_weights *weights) { return weights->config_sha256; }

static h3_status make_tensor(h3_tensor *out, const h3_weights *weights, const h3_parameter *parameter)
{
    float base, amp;
    h3_tensor tensor;
    H3_TRY(h3_tensor_new(&tensor, parameter->dtype, parameter->rank, parameter->shape));
    h3_synth_parameter_scale(parameter, &base, &amp);
    h3_status status = h3_synth_fill(&tensor, weights->seed, parameter->name, base, amp);
    if (status != H3_OK) h3_tensor_free(&tensor);
    else *out = tensor;
    return status;
}

h3_status h3_weights_read(h3_tensor *out, const h3_weights *weights, const char *name)
{
    *out = (h3_tensor){0};
    const h3_parameter *parameter = h3_inventory_find(&weights->inventory, name);
    if (parameter == NULL) return h3_error(H3_USAGE, "the model has no parameter \"%.200s\"; check the name", name);
    if (!weights->is_folder) return make_tensor(out, weights, parameter);
    const h3_tensor *stored = weights->tensors[parameter - weights->inventory.items];
    if (stored == NULL)
        return h3_error(H3_INTEGRITY, "%s was not opened: the checkpoint is open for block %lld alone", name, (long long)weights->only_block);
    return h3_tensor_convert(out, stored, parameter->dtype);
}

h3_status h3_weights_hash(h3_weights *weights, const h3_watch *watch)
{
    void *memory;
    if (weights->shard_count == 0 || weights->shards[0].sha256[0] != 0) return H3_OK;
    H3_TRY(h3_alloc(&memory, weights->shard_count, sizeof(h3_hash_job), "the hashes of a checkpoint"));
    h3_hash_job *jobs = memory;
    for (size_t i = 0; i < weights->shard_count; i++)
        jobs[i] = (h3_hash_job){.data = weights->shards[i].file.image, .size = weights->shards[i].file.size};
    h3_status status = h3_sha256_many(jobs, weights->shard_count, watch);
    for (size_t i = 0; i < weights->shard_count && status == H3_OK; i++)
        memcpy(weights->shards[i].sha256, jobs[i].sha256, sizeof jobs[i].sha256);
    free(jobs);
    return status;
}

h3_status h3_weights_view(h3_tensor *out, const h3_weights *weights, const char *name)
{
    *out = (h3_tensor){0};
    const h3_parameter *parameter = h3_inventory_find(&weights->inventory, name);
    if (parameter == NULL) return h3_error(H3_USAGE, "the model has no parameter \"%.200s\"; check the name", name);
    if (!weights->is_folder) return h3_error(H3_USAGE, "synthetic weights have no bytes to look at");
    const h3_tensor *stored = weights->tensors[parameter - weights->inventory.items];
    if (stored == NULL)
        return h3_error(H3_INTEGRITY, "%s was not opened: the checkpoint is open for block %lld alone", name, (long long)weights->only_block);
    *out = *stored;
    return H3_OK;
}

int h3_weights_seed(const h3_weights *weights, uint64_t *seed)
{
    *seed = weights->seed;
    return !weights->is_folder;
}

/* cJSON's builders return NULL for want of memory only; `good` collects that. */
static void shard_identity(cJSON *list, const h3_shard *shard, int *good)
{
    cJSON *item = cJSON_CreateObject();
    if (!cJSON_AddItemToArray(list, item)) {
        cJSON_Delete(item);
        *good = 0;
        return;
    }
    *good &= cJSON_AddStringToObject(item, "path", shard->name) != NULL;
    h3_json_add_integer(item, "size", (int64_t)shard->file.size);
    *good &= cJSON_GetObjectItemCaseSensitive(item, "size") != NULL;
    *good &= cJSON_AddStringToObject(item, "sha256", shard->sha256) != NULL;
}

static h3_status folder_identity(cJSON *object, h3_weights *weights, const h3_watch *watch, int *good)
{
    if (weights->only_block >= 0)
        return h3_error(H3_INTEGRITY, "a checkpoint that is open for block %lld alone has no identity", (long long)weights->only_block);
    H3_TRY(h3_weights_hash(weights, watch));
    *good &= cJSON_AddStringToObject(object, "kind", "folder") != NULL;
    *good &= cJSON_AddStringToObject(object, "config_sha256", weights->config_sha256) != NULL;
    if (weights->index_sha256[0] != 0) *good &= cJSON_AddStringToObject(object, "index_sha256", weights->index_sha256) != NULL;
    else *good &= cJSON_AddNullToObject(object, "index_sha256") != NULL;
    cJSON *list = cJSON_AddArrayToObject(object, "shards");
    *good &= list != NULL;
    for (size_t i = 0; i < weights->shard_count && *good; i++) shard_identity(list, &weights->shards[i], good);
    return H3_OK;
}

static h3_status synthetic_identity(cJSON *object, const h3_weights *weights, int *good)
{
    char *config, *text = NULL, hash[H3_SHA256_HEX], seed[24];
    cJSON *parsed = NULL;
    h3_status status;
    snprintf(seed, sizeof seed, "%" PRIu64, weights->seed);
    H3_TRY(h3_config_canonical(&weights->config, &config));
    H3_GOTO(h3_format(&text, "h3synth-v1\n%s\n%s", seed, config), done);
    H3_GOTO(h3_sha256(hash, text, strlen(text)), done);
    H3_GOTO(h3_json_parse(&parsed, config, strlen(config), "the canonical configuration", H3_INTEGRITY), done);
    *good &= cJSON_AddStringToObject(object, "kind", "synthetic") != NULL;
    *good &= cJSON_AddStringToObject(object, "scheme", "h3synth-v1") != NULL;
    h3_json_add_unsigned(object, "seed", weights->seed);
    *good &= cJSON_GetObjectItemCaseSensitive(object, "seed") != NULL;
    if (cJSON_AddItemToObject(object, "config", parsed)) parsed = NULL;
    else *good = 0;
    *good &= cJSON_AddStringToObject(object, "sha256", hash) != NULL;
done:
    cJSON_Delete(parsed);
    free(text);
    free(config);
    return status;
}

h3_status h3_weights_identity(h3_weights *weights, const h3_watch *watch, cJSON **out)
{
    cJSON *object = cJSON_CreateObject();
    int good = object != NULL;
    h3_status status = H3_OK;
    *out = NULL;
    if (good) status = weights->is_folder ? folder_identity(object, weights, watch, &good) : synthetic_identity(object, weights, &good);
    if (status == H3_OK && !good) status = h3_error(H3_ENVIRONMENT, "out of memory for the identity of the weights");
    if (status != H3_OK) cJSON_Delete(object);
    else *out = object;
    return status;
}
