#include "model/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/text.h"

enum { DIMENSION_LIMIT = 1 << 24, LAYER_LIMIT = 10000 };

typedef enum { DIMENSION, LAYERS, REFINER_LAYERS, THETA, EPSILON, PATCH } field_kind;

/* Sorted by key: the order of the canonical text. */
static const struct field {
    const char *key;
    size_t offset;
    field_kind kind;
} FIELDS[] = {
#define FIELD(key, kind) {#key, offsetof(h3_config, key), kind}
    FIELD(attention_head_dim, DIMENSION),
    FIELD(audio_in_channels, DIMENSION),
    FIELD(ffn_dim, DIMENSION),
    FIELD(final_norm_eps, EPSILON),
    FIELD(freq_dim, DIMENSION),
    FIELD(hidden_size, DIMENSION),
    FIELD(in_channels, DIMENSION),
    FIELD(norm_eps, EPSILON),
    FIELD(num_attention_heads, DIMENSION),
    FIELD(num_layers, LAYERS),
    FIELD(num_refiner_layers, REFINER_LAYERS),
    FIELD(patch_size, PATCH),
    FIELD(qk_norm_eps, EPSILON),
    FIELD(rope_freq_dim, DIMENSION),
    FIELD(rope_theta, THETA),
    FIELD(text_dim, DIMENSION),
    FIELD(time_embed_dim, DIMENSION),
    FIELD(time_embed_hidden_dim, DIMENSION),
#undef FIELD
};
enum { FIELD_COUNT = sizeof FIELDS / sizeof *FIELDS };

int64_t h3_config_inner_size(const h3_config *config) { return config->num_attention_heads * config->attention_head_dim; }

int64_t h3_config_video_row(const h3_config *config)
{
    return config->in_channels * config->patch_size[0] * config->patch_size[1] * config->patch_size[2];
}

static h3_status read_patch(int64_t patch[3], const cJSON *object, const char *where)
{
    const cJSON *array;
    H3_TRY(h3_json_array(&array, object, "patch_size", where, H3_INTEGRITY));
    if (cJSON_GetArraySize(array) != 3) return h3_error(H3_INTEGRITY, "%s: patch_size must be three integers", where);
    for (int i = 0; i < 3; i++)
        H3_TRY(h3_json_integer_value(&patch[i], cJSON_GetArrayItem(array, i), "patch_size", 1, DIMENSION_LIMIT, where,
                                     H3_INTEGRITY));
    return H3_OK;
}

static h3_status read_real(double *out, const cJSON *object, const struct field *field, const char *where)
{
    int is_theta = field->kind == THETA;
    *out = is_theta ? 10000.0 : 1e-5; /* as released */
    if (cJSON_GetObjectItemCaseSensitive(object, field->key) == NULL) return H3_OK;
    H3_TRY(h3_json_number(out, object, field->key, where, H3_INTEGRITY));
    if (*out > 0 && *out <= (is_theta ? 1e30 : 1)) return H3_OK;
    return h3_error(H3_INTEGRITY, "%s: %s is %.17g but must be above 0 and at most %s", where, field->key, *out,
                    is_theta ? "1e30" : "1");
}

static h3_status read_field(h3_config *config, const cJSON *object, const struct field *field, const char *where)
{
    void *target = (char *)config + field->offset;
    switch (field->kind) {
    case DIMENSION: return h3_json_integer(target, object, field->key, 1, DIMENSION_LIMIT, where, H3_INTEGRITY);
    case LAYERS: return h3_json_integer(target, object, field->key, 1, LAYER_LIMIT, where, H3_INTEGRITY);
    case REFINER_LAYERS: return h3_json_integer(target, object, field->key, 0, LAYER_LIMIT, where, H3_INTEGRITY);
    case PATCH: return read_patch(target, object, where);
    default: return read_real(target, object, field, where);
    }
}

static h3_status check_sizes(const h3_config *config, const char *where)
{
    int64_t area = config->patch_size[1] * config->patch_size[2]; /* at most 2^48 */
    if (config->patch_size[0] != 1)
        return h3_error(H3_INTEGRITY, "%s: patch_size must start with 1: one latent frame a row", where);
    if (6 * config->rope_freq_dim > config->attention_head_dim)
        return h3_error(H3_INTEGRITY, "%s: 6 * rope_freq_dim exceeds attention_head_dim; the rotary channels do not fit", where);
    if (config->freq_dim % 2 != 0) return h3_error(H3_INTEGRITY, "%s: freq_dim must be even", where);
    if (h3_config_inner_size(config) > DIMENSION_LIMIT)
        return h3_error(H3_INTEGRITY, "%s: num_attention_heads * attention_head_dim exceeds %d", where, DIMENSION_LIMIT);
    if (area > DIMENSION_LIMIT || h3_config_video_row(config) > DIMENSION_LIMIT)
        return h3_error(H3_INTEGRITY, "%s: in_channels * patch_size exceeds %d", where, DIMENSION_LIMIT);
    return H3_OK;
}

static h3_status check_known(const cJSON *object, const char *where)
{
    const cJSON *child;
    if (!cJSON_IsObject(object)) return h3_error(H3_INTEGRITY, "%s: a configuration must be a JSON object", where);
    cJSON_ArrayForEach(child, object) {
        int known = child->string[0] == '_';
        for (int i = 0; i < FIELD_COUNT && !known; i++) known = strcmp(FIELDS[i].key, child->string) == 0;
        if (!known)
            return h3_error(H3_INTEGRITY, "%s: unknown field \"%.200s\"; this is no H3 transformer that we know", where,
                            child->string);
    }
    return H3_OK;
}

static h3_status read_fields(h3_config *config, const cJSON *object, const char *where)
{
    H3_TRY(check_known(object, where));
    for (int i = 0; i < FIELD_COUNT; i++) H3_TRY(read_field(config, object, &FIELDS[i], where));
    return check_sizes(config, where);
}

h3_status h3_config_parse(h3_config *out, const char *text, size_t length, const char *where)
{
    cJSON *object;
    h3_config config = {0};
    *out = config;
    H3_TRY(h3_json_parse(&object, text, length, where, H3_INTEGRITY));
    h3_status status = read_fields(&config, object, where);
    cJSON_Delete(object);
    if (status == H3_OK) *out = config;
    return status;
}

h3_status h3_config_canonical(const h3_config *config, char **out)
{
    char text[2048];
    size_t used = 0;
    for (int i = 0; i < FIELD_COUNT; i++) {
        const char *field = (const char *)config + FIELDS[i].offset;
        const int64_t *integer = (const void *)field;
        used += (size_t)snprintf(text + used, sizeof text - used, "%c\"%s\":", i ? ',' : '{', FIELDS[i].key);
        if (FIELDS[i].kind == PATCH)
            used += (size_t)snprintf(text + used, sizeof text - used, "[%lld,%lld,%lld]", (long long)integer[0],
                                     (long long)integer[1], (long long)integer[2]);
        else if (FIELDS[i].kind == THETA || FIELDS[i].kind == EPSILON)
            used += (size_t)snprintf(text + used, sizeof text - used, "%.17g", *(const double *)(const void *)field);
        else
            used += (size_t)snprintf(text + used, sizeof text - used, "%lld", (long long)*integer);
    }
    return h3_format(out, "%s}", text); /* 18 fields of at most 64 characters fit */
}
