/* A checkpoint folder against what is known of it. Only the bytes that were opened count, not the names under which they came. */
#include <string.h>

#include "base/json.h"
#include "model/weights_internal.h"

static h3_status hash_differs(const char *folder, const char *name, const char *expected, const char *found)
{
    return h3_error(H3_INTEGRITY, "%s/%s: SHA-256 differs (the plan expects %.12s..., found %.12s...); fetch the checkpoint again", folder, name,
                    expected, found);
}

h3_status h3_pins_check_text(const h3_weights_pins *pins, const char *folder, const char *name, const char *sha256)
{
    const cJSON *pin = cJSON_GetObjectItemCaseSensitive(pins->hashes, name);
    if (pin == NULL || (cJSON_IsString(pin) && strcmp(pin->valuestring, sha256) == 0)) return H3_OK;
    return hash_differs(folder, name, cJSON_IsString(pin) ? pin->valuestring : "nothing", sha256);
}

static const h3_shard *shard_named(const h3_weights *weights, const char *name)
{
    for (size_t i = 0; i < weights->shard_count; i++)
        if (strcmp(weights->shards[i].name, name) == 0) return &weights->shards[i];
    return NULL;
}

static h3_status no_such_file(const char *folder, const char *name)
{
    return h3_error(H3_INTEGRITY, "%s: the plan pins %s, which is no file of this checkpoint; fetch the checkpoint again", folder, name);
}

/* Sizes first: a file that is too short or too long is known at once. */
static h3_status check_sizes(const h3_weights *weights, const char *folder, const cJSON *sizes)
{
    const cJSON *pin;
    cJSON_ArrayForEach(pin, sizes) {
        int64_t size;
        const h3_shard *shard = shard_named(weights, pin->string);
        if (shard == NULL) return no_such_file(folder, pin->string);
        H3_TRY(h3_json_integer_value(&size, pin, pin->string, 0, INT64_MAX, "the plan's sizes", H3_USAGE));
        if ((int64_t)shard->file.size != size)
            return h3_error(H3_INTEGRITY, "%s has %zu bytes, the plan expects %lld; fetch the checkpoint again", shard->file.path, shard->file.size,
                            (long long)size);
    }
    return H3_OK;
}

static h3_status check_hashes(h3_weights *weights, const char *folder, const cJSON *hashes, const h3_watch *watch)
{
    const cJSON *pin;
    cJSON_ArrayForEach(pin, hashes) {
        const h3_shard *shard = shard_named(weights, pin->string);
        if (shard == NULL) continue; /* a text, checked when it was read */
        H3_TRY(h3_weights_hash(weights, watch));
        if (!cJSON_IsString(pin) || strcmp(pin->valuestring, shard->sha256) != 0)
            return hash_differs(folder, shard->name, cJSON_IsString(pin) ? pin->valuestring : "nothing", shard->sha256);
    }
    return H3_OK;
}

h3_status h3_pins_check_shards(h3_weights *weights, const char *folder, const h3_weights_pins *pins, int hash, const h3_watch *watch)
{
    const cJSON *pin;
    cJSON_ArrayForEach(pin, pins->hashes) {
        int text = strcmp(pin->string, "config.json") == 0 || (strcmp(pin->string, H3_INDEX_NAME) == 0 && weights->index_sha256[0] != 0);
        if (!text && shard_named(weights, pin->string) == NULL) return no_such_file(folder, pin->string);
    }
    H3_TRY(check_sizes(weights, folder, pins->sizes));
    return hash ? check_hashes(weights, folder, pins->hashes, watch) : H3_OK;
}
