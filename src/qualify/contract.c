#include "qualify/contract.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "model/layout.h"

enum {
    CONTRACT_LIMIT = 1 << 20,
    CANVAS_STEP = 32,
    CANVAS_LIMIT = 1 << 16,
    FRAMES_LEAST = 124,
    FRAMES_MOST = 345,
    POINTS_LIMIT = 100000
};

const h3_limit_spec h3_limits[H3_LIMIT_COUNT] = {
    [H3_LIMIT_PSNR_GLOBAL] = {"psnr_global_db", 1}, [H3_LIMIT_SSIM_MEAN] = {"ssim_mean", 1},
    [H3_LIMIT_AUDIO_SNR] = {"audio_snr_db", 1},     [H3_LIMIT_AUDIO_LSD] = {"audio_lsd_db", 0},
    [H3_LIMIT_LATENT_ERROR] = {"latent_error", 0},
};

double h3_limit_margin(const h3_acceptance *acceptance, int limit, double value)
{
    return h3_limits[limit].at_least ? value - acceptance->limit[limit] : acceptance->limit[limit] - value;
}

int h3_limit_holds(const h3_acceptance *acceptance, int limit, double value)
{
    return h3_limit_margin(acceptance, limit, value) >= 0.0;
}

static int limit_named(const char *name)
{
    int limit = 0;
    while (limit < H3_LIMIT_COUNT && strcmp(h3_limits[limit].name, name) != 0) limit++;
    return limit;
}

h3_status h3_acceptance_read(h3_acceptance *acceptance, const cJSON *json, const char *where)
{
    const cJSON *item;
    if (!cJSON_IsObject(json)) return h3_error(H3_USAGE, "%s: acceptance must be an object of limits", where);
    cJSON_ArrayForEach(item, json) {
        int limit = limit_named(item->string);
        if (limit == H3_LIMIT_COUNT)
            return h3_error(H3_USAGE, "%s: acceptance has no limit named \"%.80s\"; see generation-contract.json", where,
                            item->string);
        if (!cJSON_IsNumber(item) || !isfinite(item->valuedouble) || item->valuedouble < 0.0)
            return h3_error(H3_USAGE, "%s: the acceptance limit %s must be a number of 0 or more", where, item->string);
        acceptance->limit[limit] = item->valuedouble;
    }
    return H3_OK;
}

h3_status h3_seeds_read(int64_t seeds[H3_MAX_SEEDS], size_t *count, const cJSON *json, const char *where)
{
    const cJSON *item;
    int size = cJSON_IsArray(json) ? cJSON_GetArraySize(json) : 0;
    *count = 0;
    if (size < 1 || size > H3_MAX_SEEDS)
        return h3_error(H3_USAGE, "%s: seeds must be a list of 1 to %d integers", where, H3_MAX_SEEDS);
    cJSON_ArrayForEach(item, json) {
        int64_t seed;
        H3_TRY(h3_json_integer_value(&seed, item, "a seed", 0, UINT32_MAX, where, H3_USAGE));
        for (size_t i = 0; i < *count; i++)
            if (seeds[i] == seed) return h3_error(H3_USAGE, "%s: seed %lld is given twice; remove one", where, (long long)seed);
        seeds[(*count)++] = seed;
    }
    return H3_OK;
}

h3_status h3_anchors_read(int32_t *anchors, const cJSON *json, const char *where)
{
    const cJSON *item;
    *anchors = 0;
    if (!cJSON_IsArray(json)) return h3_error(H3_USAGE, "%s: anchors must be a list of \"first\" and \"last\"", where);
    cJSON_ArrayForEach(item, json) {
        const char *name = cJSON_IsString(item) ? item->valuestring : "";
        int32_t bit = strcmp(name, "first") == 0 ? H3_ANCHOR_FIRST : strcmp(name, "last") == 0 ? H3_ANCHOR_LAST : 0;
        if (bit == 0 || (*anchors & bit) != 0)
            return h3_error(H3_USAGE, "%s: anchors may hold \"first\" and \"last\", each once", where);
        *anchors |= bit;
    }
    return H3_OK;
}

static h3_status read_word(char *out, size_t size, const cJSON *json, const char *key, const char *where)
{
    const char *text;
    H3_TRY(h3_json_string(&text, json, key, where, H3_USAGE));
    if (text[0] == 0 || strlen(text) >= size)
        return h3_error(H3_USAGE, "%s: %s must have 1 to %zu characters", where, key, size - 1);
    memcpy(out, text, strlen(text) + 1);
    return H3_OK;
}

static h3_status expect_word(const cJSON *json, const char *key, const char *word, const char *where)
{
    const char *text;
    H3_TRY(h3_json_string(&text, json, key, where, H3_USAGE));
    return strcmp(text, word) == 0
               ? H3_OK
               : h3_error(H3_USAGE, "%s: %s is \"%.80s\"; this version knows \"%s\" only", where, key, text, word);
}

/* A hash, or null (then "") where `optional` says that the contract may leave it open. */
static h3_status read_hash(char out[H3_SHA256_HEX], const cJSON *json, const char *key, int optional, const char *where)
{
    const char *text;
    out[0] = 0;
    if (optional && cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(json, key))) return H3_OK;
    H3_TRY(h3_json_string(&text, json, key, where, H3_USAGE));
    if (strlen(text) != H3_SHA256_HEX - 1 || strspn(text, "0123456789abcdef") != H3_SHA256_HEX - 1)
        return h3_error(H3_USAGE, "%s: %s must be a SHA-256 in lower-case hex%s", where, key, optional ? ", or null" : "");
    memcpy(out, text, H3_SHA256_HEX);
    return H3_OK;
}

/* A section of the contract: an object with exactly known keys. */
static h3_status section(const cJSON **out, const cJSON *json, const char *key, const char *const *keys, const char *where)
{
    H3_TRY(h3_json_object(out, json, key, where, H3_USAGE));
    return h3_json_only_keys(*out, keys, where, H3_USAGE);
}

static h3_status read_model(h3_contract *out, const cJSON *json)
{
    const cJSON *model;
    H3_TRY(section(&model, json, "model",
                   (const char *const[]){"repository", "revision", "variant", "config_sha256", "index_sha256", NULL}, out->path));
    H3_TRY(read_word(out->repository, sizeof out->repository, model, "repository", out->path));
    H3_TRY(read_word(out->revision, sizeof out->revision, model, "revision", out->path));
    H3_TRY(expect_word(model, "variant", "fl2va", out->path));
    H3_TRY(read_word(out->variant, sizeof out->variant, model, "variant", out->path));
    H3_TRY(read_hash(out->config_sha256, model, "config_sha256", 0, out->path));
    return read_hash(out->index_sha256, model, "index_sha256", 0, out->path);
}

static h3_status read_conditioning(h3_contract *out, const cJSON *json)
{
    static const char *const keys[] = {"about", "prompt_sha256", "reference_image_sha256", "file_sha256", "anchors", "level",
                                       NULL};
    const cJSON *conditioning;
    H3_TRY(section(&conditioning, json, "conditioning", keys, out->path));
    H3_TRY(read_hash(out->prompt_sha256, conditioning, "prompt_sha256", 1, out->path));
    H3_TRY(read_hash(out->reference_image_sha256, conditioning, "reference_image_sha256", 1, out->path));
    H3_TRY(read_hash(out->conditioning_sha256, conditioning, "file_sha256", 1, out->path));
    H3_TRY(h3_anchors_read(&out->anchors, cJSON_GetObjectItemCaseSensitive(conditioning, "anchors"), out->path));
    H3_TRY(h3_json_number(&out->condition_time, conditioning, "level", out->path, H3_USAGE));
    if (!(out->condition_time > 0.0 && out->condition_time <= 1.0))
        return h3_error(H3_USAGE, "%s: level must lie above 0 and be at most 1", out->path);
    return H3_OK;
}

static h3_status read_media(h3_contract *out, const cJSON *json)
{
    const cJSON *video, *audio;
    int64_t fixed;
    H3_TRY(section(&video, json, "video", (const char *const[]){"frames", "width", "height", "fps", NULL}, out->path));
    H3_TRY(h3_json_integer(&out->frames, video, "frames", FRAMES_LEAST, FRAMES_MOST, out->path, H3_USAGE));
    H3_TRY(h3_json_integer(&out->width, video, "width", CANVAS_STEP, CANVAS_LIMIT, out->path, H3_USAGE));
    H3_TRY(h3_json_integer(&out->height, video, "height", CANVAS_STEP, CANVAS_LIMIT, out->path, H3_USAGE));
    if (out->frames % 17 != 5) return h3_error(H3_USAGE, "%s: frames must be 17 n + 5", out->path);
    if (out->width % CANVAS_STEP != 0 || out->height % CANVAS_STEP != 0)
        return h3_error(H3_USAGE, "%s: width and height must be multiples of %d", out->path, CANVAS_STEP);
    H3_TRY(h3_json_integer(&fixed, video, "fps", 24, 24, out->path, H3_USAGE));
    H3_TRY(section(&audio, json, "audio", (const char *const[]){"sample_rate", "channels", NULL}, out->path));
    H3_TRY(h3_json_integer(&fixed, audio, "sample_rate", 32000, 32000, out->path, H3_USAGE));
    return h3_json_integer(&fixed, audio, "channels", 2, 2, out->path, H3_USAGE);
}

static h3_status read_sampling(h3_contract *out, const cJSON *json)
{
    const cJSON *sampling;
    int64_t evaluations;
    H3_TRY(section(&sampling, json, "sampling",
                   (const char *const[]){"points", "evaluations", "video_shift", "audio_shift", NULL}, out->path));
    H3_TRY(h3_json_integer(&out->points, sampling, "points", 2, POINTS_LIMIT, out->path, H3_USAGE));
    H3_TRY(h3_json_integer(&evaluations, sampling, "evaluations", out->points - 1, out->points - 1, out->path, H3_USAGE));
    H3_TRY(h3_json_number(&out->video_shift, sampling, "video_shift", out->path, H3_USAGE));
    H3_TRY(h3_json_number(&out->audio_shift, sampling, "audio_shift", out->path, H3_USAGE));
    if (!(out->video_shift > 0.0) || !(out->audio_shift > 0.0))
        return h3_error(H3_USAGE, "%s: a shift must be above 0", out->path);
    return H3_OK;
}

/* Every value here has one possible form; it is written out so that the contract says what it means. */
static h3_status read_noise(const h3_contract *contract, const cJSON *json)
{
    static const char *const order[] = {"condition", "video", "audio"};
    const cJSON *noise, *draws, *item;
    int i = 0;
    H3_TRY(section(&noise, json, "noise", (const char *const[]){"source", "draws", NULL}, contract->path));
    H3_TRY(expect_word(noise, "source", "torch-cpu-generator", contract->path));
    H3_TRY(h3_json_array(&draws, noise, "draws", contract->path, H3_USAGE));
    cJSON_ArrayForEach(item, draws) {
        if (i >= 3 || !cJSON_IsString(item) || strcmp(item->valuestring, order[i]) != 0) break;
        i++;
    }
    if (i != 3 || item != NULL)
        return h3_error(H3_USAGE, "%s: draws must be condition, video, audio: torch's pipeline draws in this order",
                        contract->path);
    return H3_OK;
}

static h3_status read_acceptance(h3_contract *out, const cJSON *json)
{
    const cJSON *acceptance;
    H3_TRY(h3_json_object(&acceptance, json, "acceptance", out->path, H3_USAGE));
    for (int i = 0; i < H3_LIMIT_COUNT; i++)
        H3_TRY(h3_json_number(&out->acceptance.limit[i], acceptance, h3_limits[i].name, out->path, H3_USAGE));
    return h3_acceptance_read(&out->acceptance, acceptance, out->path);
}

static h3_status read_contract(h3_contract *out, const cJSON *json)
{
    static const char *const keys[] = {"schema", "model",    "conditioning", "seeds",      "video",
                                       "audio",  "sampling", "noise",        "acceptance", NULL};
    H3_TRY(h3_json_only_keys(json, keys, out->path, H3_USAGE));
    H3_TRY(expect_word(json, "schema", "h3-generation-contract-v1", out->path));
    H3_TRY(read_model(out, json));
    H3_TRY(read_conditioning(out, json));
    H3_TRY(h3_seeds_read(out->seeds, &out->seed_count, cJSON_GetObjectItemCaseSensitive(json, "seeds"), out->path));
    H3_TRY(read_media(out, json));
    H3_TRY(read_sampling(out, json));
    H3_TRY(read_noise(out, json));
    return read_acceptance(out, json);
}

h3_status h3_contract_read(h3_contract *out, const char *path)
{
    char *text;
    size_t size;
    cJSON *json = NULL;
    memset(out, 0, sizeof *out);
    H3_TRY(h3_path(out->path, "%s", path));
    H3_TRY(h3_file_read(&text, &size, path, CONTRACT_LIMIT, H3_USAGE));
    h3_status status = h3_sha256(out->sha256, text, size);
    if (status == H3_OK) status = h3_json_parse(&json, text, size, path, H3_USAGE);
    free(text);
    if (status == H3_OK) status = read_contract(out, json);
    cJSON_Delete(json);
    return status;
}
