/* A plan's model: synthetic weights, or a checkpoint folder and what is known of it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/json.h"
#include "qualify/plan_internal.h"

static h3_status read_synthetic(h3_plan *plan, const cJSON *synthetic)
{
    const cJSON *config;
    int64_t seed;
    char *text;
    H3_TRY(h3_json_only_keys(synthetic, (const char *const[]){"seed", "config", NULL}, plan->path, H3_USAGE));
    H3_TRY(h3_json_integer(&seed, synthetic, "seed", 0, INT64_MAX, plan->path, H3_USAGE));
    H3_TRY(h3_json_object(&config, synthetic, "config", plan->path, H3_USAGE));
    H3_TRY(h3_json_print(&text, config));
    h3_status status = h3_config_parse(&plan->config, text, strlen(text), plan->path);
    free(text);
    plan->synthetic = 1;
    plan->weight_seed = (uint64_t)seed;
    return status == H3_INTEGRITY ? h3_error_context(H3_USAGE, "the plan's synthetic config") : status;
}

/* A name of the place that a checkpoint was fetched from: for people, and one line of a manifest. */
static h3_status read_origin(const char **out, const h3_plan *plan, const cJSON *checkpoint, const char *key)
{
    if (cJSON_GetObjectItemCaseSensitive(checkpoint, key) == NULL) return H3_OK;
    H3_TRY(h3_json_string(out, checkpoint, key, plan->path, H3_USAGE));
    size_t length = strlen(*out);
    if (length == 0 || length > 200 || strspn(*out, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/") != length || **out == '/')
        return h3_error(H3_USAGE, "%s: checkpoint %s may hold letters, digits and ._-/ (1 to 200)", plan->path, key);
    return H3_OK;
}

static h3_status read_hashes(h3_plan *plan, const cJSON *checkpoint)
{
    const cJSON *pin;
    H3_TRY(h3_json_object(&plan->checkpoint_pins.hashes, checkpoint, "hashes", plan->path, H3_USAGE));
    cJSON_ArrayForEach(pin, plan->checkpoint_pins.hashes) {
        const char *sha256 = cJSON_IsString(pin) ? pin->valuestring : "";
        if (strchr(pin->string, '/') != NULL || strlen(sha256) != H3_SHA256_HEX - 1 || strspn(sha256, "0123456789abcdef") != H3_SHA256_HEX - 1)
            return h3_error(H3_USAGE, "%s: checkpoint hashes must be {\"file\": \"sha256\"} with plain file names and lower-case hex", plan->path);
    }
    return H3_OK;
}

static h3_status read_sizes(h3_plan *plan, const cJSON *checkpoint)
{
    const cJSON *pin;
    int64_t size;
    plan->checkpoint_pins.total_size = -1;
    if (cJSON_GetObjectItemCaseSensitive(checkpoint, "total_size") != NULL)
        H3_TRY(h3_json_integer(&plan->checkpoint_pins.total_size, checkpoint, "total_size", 0, INT64_MAX, plan->path, H3_USAGE));
    if (cJSON_GetObjectItemCaseSensitive(checkpoint, "sizes") == NULL) return H3_OK;
    H3_TRY(h3_json_object(&plan->checkpoint_pins.sizes, checkpoint, "sizes", plan->path, H3_USAGE));
    cJSON_ArrayForEach(pin, plan->checkpoint_pins.sizes) H3_TRY(h3_json_integer_value(&size, pin, pin->string, 0, INT64_MAX, plan->path, H3_USAGE));
    return H3_OK;
}

h3_status h3_plan_read_checkpoint(h3_plan *plan)
{
    static const char *const keys[] = {"folder", "repository", "revision", "hashes", "sizes", "total_size", NULL};
    const cJSON *checkpoint;
    const char *folder;
    H3_TRY(h3_json_object(&checkpoint, plan->json, "checkpoint", plan->path, H3_USAGE));
    const cJSON *synthetic = cJSON_GetObjectItemCaseSensitive(checkpoint, "synthetic");
    if (synthetic != NULL) {
        H3_TRY(h3_json_only_keys(checkpoint, (const char *const[]){"synthetic", NULL}, plan->path, H3_USAGE));
        return read_synthetic(plan, synthetic);
    }
    H3_TRY(h3_json_only_keys(checkpoint, keys, plan->path, H3_USAGE));
    H3_TRY(h3_json_string(&folder, checkpoint, "folder", plan->path, H3_USAGE));
    H3_TRY(h3_plan_path(plan->checkpoint, plan, folder));
    H3_TRY(read_origin(&plan->repository, plan, checkpoint, "repository"));
    H3_TRY(read_origin(&plan->revision, plan, checkpoint, "revision"));
    H3_TRY(read_hashes(plan, checkpoint));
    return read_sizes(plan, checkpoint);
}

h3_status h3_plan_use_checkpoint(h3_plan *plan, const char *folder)
{
    if (plan->synthetic) return h3_error(H3_USAGE, "%s has synthetic weights; leave --checkpoint out, or name another plan", plan->path);
    return h3_path(plan->checkpoint, "%s", folder);
}

h3_status h3_plan_use_decoders(h3_plan *plan, const char *folder)
{
    const cJSON *decoder;
    int folders = 0;
    cJSON_ArrayForEach(decoder, plan->decoders) folders += cJSON_GetObjectItemCaseSensitive(decoder, "folder") != NULL;
    if (folders == 0) return h3_error(H3_USAGE, "%s names no folder of a decoder; leave --decoders out, or name another plan", plan->path);
    return h3_path(plan->decoder_folder, "%s", folder);
}

static h3_status need_folder(const h3_plan *plan)
{
    struct stat info;
    if (stat(plan->checkpoint, &info) == 0 && S_ISDIR(info.st_mode)) return H3_OK;
    return h3_error(H3_INTEGRITY, "%s: no such folder; put the checkpoint there, or say where it is with --checkpoint DIR", plan->checkpoint);
}

h3_status h3_plan_weights(const h3_plan *plan, int hash, const h3_watch *watch, h3_weights **out)
{
    if (plan->synthetic) return h3_weights_synthetic(out, &plan->config, plan->weight_seed);
    H3_TRY(need_folder(plan));
    return h3_weights_open_pinned(out, plan->checkpoint, &plan->checkpoint_pins, hash, watch);
}

h3_status h3_plan_weights_block(const h3_plan *plan, int64_t block, h3_weights **out)
{
    if (plan->synthetic) return h3_weights_synthetic(out, &plan->config, plan->weight_seed);
    H3_TRY(need_folder(plan));
    return h3_weights_open_block(out, plan->checkpoint, block, &plan->checkpoint_pins);
}

static h3_status add_folder_facts(cJSON *model, const h3_plan *plan, const h3_weights *weights)
{
    cJSON *tensors;
    H3_TRY(h3_weights_block_tensors(weights, 0, &tensors));
    int good = cJSON_AddItemToObject(model, "block_tensors", tensors);
    if (!good) cJSON_Delete(tensors);
    if (plan->repository != NULL) good = good && cJSON_AddStringToObject(model, "repository", plan->repository) != NULL;
    if (plan->revision != NULL) good = good && cJSON_AddStringToObject(model, "revision", plan->revision) != NULL;
    return good ? H3_OK : h3_error(H3_ENVIRONMENT, "out of memory for the identity of the weights");
}

h3_status h3_plan_model(const h3_plan *plan, h3_weights *weights, const h3_watch *watch, cJSON **out)
{
    *out = NULL;
    cJSON *model;
    H3_TRY(h3_weights_identity(weights, watch, &model));
    h3_status status = plan->synthetic ? H3_OK : add_folder_facts(model, plan, weights);
    if (status == H3_OK) *out = model;
    else cJSON_Delete(model);
    return status;
}
