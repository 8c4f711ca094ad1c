#include "media/video_config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/text.h"

enum { CHANNEL_LIMIT = 1 << 16, LAYER_LIMIT = 1000, CONFIG_LIMIT = 1 << 20 };

typedef struct reader {
    const cJSON *object;
    const char *where;
} reader;

static const char *const KEYS[] = {
    "in_channels", "out_channels", "latent_channels", "block_out_channels", "layers_per_block", "spatial_downsample_factors",
    "temporal_downsample_factors", "norm_num_groups", "norm_eps", "spatial_padding_mode", "decoder_num_layers",
    "decoder_num_attention_heads", "decoder_attention_head_dim", "decoder_num_register_tokens", "decoder_ffn_mult", "decoder_rope_theta",
    "decoder_rope_dim_ratio", "decoder_norm_eps", "clip_length", "token_drop", "latents_mean", "latents_std",
};

static h3_status check_keys(const reader *in)
{
    const cJSON *child;
    if (!cJSON_IsObject(in->object)) return h3_error(H3_INTEGRITY, "%s: a configuration must be a JSON object", in->where);
    cJSON_ArrayForEach(child, in->object) {
        int known = child->string[0] == '_';
        for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS && !known; i++) known = strcmp(KEYS[i], child->string) == 0;
        if (!known) return h3_error(H3_INTEGRITY, "%s: unknown field \"%.200s\"; this is no video autoencoder that we know", in->where, child->string);
    }
    return H3_OK;
}

static h3_status integer(int64_t *out, const reader *in, const char *key, int64_t low, int64_t high)
{
    return h3_json_integer(out, in->object, key, low, high, in->where, H3_INTEGRITY);
}

static h3_status integers(int64_t out[H3_VIDEO_LEVELS], int64_t *count, const reader *in, const char *key, int64_t high)
{
    const cJSON *array, *item;
    H3_TRY(h3_json_array(&array, in->object, key, in->where, H3_INTEGRITY));
    *count = 0;
    cJSON_ArrayForEach(item, array) {
        if (*count == H3_VIDEO_LEVELS) return h3_error(H3_INTEGRITY, "%s: %s has more than %d levels", in->where, key, H3_VIDEO_LEVELS);
        H3_TRY(h3_json_integer_value(&out[(*count)++], item, key, 1, high, in->where, H3_INTEGRITY));
    }
    return *count > 0 ? H3_OK : h3_error(H3_INTEGRITY, "%s: %s is empty", in->where, key);
}

/* A number above 0 and at most `high`; `released` when the key is absent. */
static h3_status positive(double *out, const reader *in, const char *key, double released, double high)
{
    *out = released;
    if (cJSON_GetObjectItemCaseSensitive(in->object, key) == NULL) return H3_OK;
    H3_TRY(h3_json_number(out, in->object, key, in->where, H3_INTEGRITY));
    if (*out > 0 && *out <= high) return H3_OK;
    return h3_error(H3_INTEGRITY, "%s: %s is %.17g but must be above 0 and at most %g", in->where, key, *out, high);
}

static h3_status statistics(float *out, const reader *in, const char *key, int64_t count, int is_deviation)
{
    const cJSON *array, *item;
    int64_t i = 0;
    H3_TRY(h3_json_array(&array, in->object, key, in->where, H3_INTEGRITY));
    if (cJSON_GetArraySize(array) != (int)count)
        return h3_error(H3_INTEGRITY, "%s: %s has %d values but there are %lld latent channels", in->where, key, cJSON_GetArraySize(array), (long long)count);
    cJSON_ArrayForEach(item, array) {
        if (!cJSON_IsNumber(item) || !(fabs(item->valuedouble) <= 1e6) || (is_deviation && !(item->valuedouble >= 1e-6)))
            return h3_error(H3_INTEGRITY, "%s: a value of %s is no usable number", in->where, key);
        out[i++] = (float)item->valuedouble;
    }
    return H3_OK;
}

static h3_status read_levels(h3_video_config *c, const reader *in)
{
    int64_t spatial, temporal;
    H3_TRY(integers(c->level_channels, &c->level_count, in, "block_out_channels", CHANNEL_LIMIT));
    H3_TRY(integers(c->spatial_stride, &spatial, in, "spatial_downsample_factors", 2));
    H3_TRY(integers(c->temporal_stride, &temporal, in, "temporal_downsample_factors", 2));
    if (spatial != c->level_count || temporal != c->level_count)
        return h3_error(H3_INTEGRITY, "%s: block_out_channels and the two lists of downsample factors must have one length", in->where);
    for (int64_t i = 0; i < c->level_count; i++) {
        if (c->level_channels[i] % c->norm_groups != 0)
            return h3_error(H3_INTEGRITY, "%s: %lld channels do not divide into norm_num_groups", in->where, (long long)c->level_channels[i]);
        if (c->temporal_stride[i] > c->spatial_stride[i])
            return h3_error(H3_INTEGRITY, "%s: level %lld halves time and not space, which this encoder cannot compute", in->where, (long long)i);
    }
    return H3_OK;
}

static h3_status read_fixed(const reader *in)
{
    int64_t colours;
    double ratio;
    const char *padding;
    H3_TRY(integer(&colours, in, "in_channels", H3_VIDEO_COLOURS, H3_VIDEO_COLOURS));
    H3_TRY(integer(&colours, in, "out_channels", H3_VIDEO_COLOURS, H3_VIDEO_COLOURS));
    H3_TRY(positive(&ratio, in, "decoder_rope_dim_ratio", 0.75, 1));
    if (ratio < 0.75 || ratio > 0.75) return h3_error(H3_INTEGRITY, "%s: decoder_rope_dim_ratio is %g; this decoder rotates 0.75 of a head", in->where, ratio);
    if (cJSON_GetObjectItemCaseSensitive(in->object, "spatial_padding_mode") == NULL) return H3_OK;
    H3_TRY(h3_json_string(&padding, in->object, "spatial_padding_mode", in->where, H3_INTEGRITY));
    if (strcmp(padding, "reflect") == 0) return H3_OK;
    return h3_error(H3_INTEGRITY, "%s: spatial_padding_mode is \"%.40s\"; this encoder pads by \"reflect\"", in->where, padding);
}

static h3_status check_time(const h3_video_config *c, const char *where)
{
    const h3_video_sizes s = h3_video_sizes_of(c);
    if (s.clip_latents - s.chunk_latents < 1 || s.leading_frames < 0 || s.overlap_frames < 1 || s.overlap_frames > c->clip_length)
        return h3_error(H3_INTEGRITY, "%s: clip_length %lld and token_drop %lld leave clips that do not overlap as they must", where,
                        (long long)c->clip_length, (long long)c->token_drop);
    return H3_OK;
}

static h3_status read_all(h3_video_config *c, const reader *in)
{
    H3_TRY(check_keys(in));
    H3_TRY(read_fixed(in));
    H3_TRY(integer(&c->latent_channels, in, "latent_channels", 1, H3_VIDEO_LATENT_CHANNELS));
    H3_TRY(integer(&c->layers_per_level, in, "layers_per_block", 1, LAYER_LIMIT));
    H3_TRY(integer(&c->norm_groups, in, "norm_num_groups", 1, CHANNEL_LIMIT));
    H3_TRY(read_levels(c, in));
    H3_TRY(integer(&c->decoder_layers, in, "decoder_num_layers", 1, LAYER_LIMIT));
    H3_TRY(integer(&c->heads, in, "decoder_num_attention_heads", 1, 1024));
    H3_TRY(integer(&c->head_dim, in, "decoder_attention_head_dim", 8, 1024)); /* 6 * (D / 8) channels rotate */
    H3_TRY(integer(&c->register_tokens, in, "decoder_num_register_tokens", 0, 1024));
    H3_TRY(integer(&c->ffn_multiple, in, "decoder_ffn_mult", 1, 64));
    H3_TRY(integer(&c->clip_length, in, "clip_length", 1, 4096));
    H3_TRY(integer(&c->token_drop, in, "token_drop", 0, 4096));
    H3_TRY(positive(&c->norm_eps, in, "norm_eps", 1e-6, 1));
    H3_TRY(positive(&c->decoder_norm_eps, in, "decoder_norm_eps", 1e-5, 1));
    H3_TRY(positive(&c->rope_theta, in, "decoder_rope_theta", 100, 1e30));
    H3_TRY(statistics(c->latents_mean, in, "latents_mean", c->latent_channels, 0));
    H3_TRY(statistics(c->latents_std, in, "latents_std", c->latent_channels, 1));
    if (c->heads * c->head_dim > CHANNEL_LIMIT) return h3_error(H3_INTEGRITY, "%s: the decoder is more than %d wide", in->where, CHANNEL_LIMIT);
    return check_time(c, in->where);
}

h3_status h3_video_config_parse(h3_video_config *out, const char *text, size_t length, const char *where)
{
    cJSON *object;
    h3_video_config config = {0};
    *out = config;
    H3_TRY(h3_json_parse(&object, text, length, where, H3_INTEGRITY));
    h3_status status = read_all(&config, &(reader){object, where});
    cJSON_Delete(object);
    if (status == H3_OK) *out = config;
    return status;
}

h3_status h3_video_config_read(h3_video_config *out, const char *path)
{
    char *text;
    size_t size;
    H3_TRY(h3_file_read_linked(&text, &size, path, CONFIG_LIMIT, H3_INTEGRITY));
    h3_status status = h3_video_config_parse(out, text, size, path);
    free(text);
    return status;
}

h3_video_sizes h3_video_sizes_of(const h3_video_config *c)
{
    h3_video_sizes s = {.spatial_ratio = 1, .temporal_ratio = 1};
    for (int64_t i = 0; i < c->level_count; i++) {
        s.spatial_ratio *= c->spatial_stride[i];
        s.temporal_ratio *= c->temporal_stride[i];
    }
    s.chunk_latents = (c->clip_length + s.temporal_ratio - 1) / s.temporal_ratio;
    const int64_t overlap_latents = s.chunk_latents - c->token_drop;
    s.clip_latents = s.chunk_latents + overlap_latents;
    s.leading_frames = s.chunk_latents * s.temporal_ratio - c->clip_length;
    s.overlap_frames = overlap_latents * s.temporal_ratio - s.leading_frames;
    s.width = c->heads * c->head_dim;
    s.ffn_width = s.width * c->ffn_multiple;
    s.frequencies = c->head_dim / 8;
    s.patch_values = H3_VIDEO_COLOURS * s.temporal_ratio * s.spatial_ratio * s.spatial_ratio;
    return s;
}

/* --- parameters ----------------------------------------------------------------------------------------------------- */

static h3_status add_linear(h3_parameter_list *list, const char *name, int64_t out, int64_t in)
{
    H3_TRY(h3_parameters_add(list, 2, H3_SHAPE(out, in), "%s.weight", name));
    return h3_parameters_add(list, 1, H3_SHAPE(out), "%s.bias", name);
}

static h3_status add_conv(h3_parameter_list *list, const char *name, int64_t out, int64_t in, int64_t kernel)
{
    H3_TRY(h3_parameters_add(list, 5, H3_SHAPE(out, in, kernel, kernel, kernel), "%s.weight", name));
    return h3_parameters_add(list, 1, H3_SHAPE(out), "%s.bias", name);
}

static h3_status add_norm(h3_parameter_list *list, const char *name, int64_t width)
{
    H3_TRY(h3_parameters_add(list, 1, H3_SHAPE(width), "%s.weight", name));
    return h3_parameters_add(list, 1, H3_SHAPE(width), "%s.bias", name);
}

static h3_status add_block(h3_parameter_list *list, int64_t i, const h3_video_sizes *s)
{
    static const char *const PROJECTIONS[] = {"attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0"};
    static const char *const VECTORS[] = {"norm1.weight", "norm2.weight", "scale1", "scale2"};
    char name[100];
    for (int k = 0; k < 4; k++) {
        snprintf(name, sizeof name, "decoder.transformer_blocks.%lld.%s", (long long)i, PROJECTIONS[k]);
        H3_TRY(add_linear(list, name, s->width, s->width));
        H3_TRY(h3_parameters_add(list, 1, H3_SHAPE(s->width), "decoder.transformer_blocks.%lld.%s", (long long)i, VECTORS[k]));
    }
    snprintf(name, sizeof name, "decoder.transformer_blocks.%lld.ff.net.0.proj", (long long)i);
    H3_TRY(add_linear(list, name, 2 * s->ffn_width, s->width));
    snprintf(name, sizeof name, "decoder.transformer_blocks.%lld.ff.net.2", (long long)i);
    return add_linear(list, name, s->width, s->ffn_width);
}

static h3_status add_decoder(h3_parameter_list *list, const h3_video_config *c, const h3_video_sizes *s)
{
    H3_TRY(add_conv(list, "post_quant_conv", c->latent_channels, c->latent_channels, 1));
    H3_TRY(add_linear(list, "decoder.proj_in", s->width, c->latent_channels));
    if (c->register_tokens > 0) H3_TRY(h3_parameters_add(list, 3, H3_SHAPE(1, c->register_tokens, s->width), "decoder.register_tokens"));
    for (int64_t i = 0; i < c->decoder_layers; i++) H3_TRY(add_block(list, i, s));
    H3_TRY(add_norm(list, "decoder.norm_out", s->width));
    return add_linear(list, "decoder.proj_out", s->patch_values, s->width);
}

static h3_status add_level(h3_parameter_list *list, const h3_video_config *c, int64_t level)
{
    const int64_t out = c->level_channels[level], before = level == 0 ? c->level_channels[0] : c->level_channels[level - 1];
    char name[100];
    for (int64_t j = 0; j < c->layers_per_level; j++) {
        const int64_t in = j == 0 ? before : out;
        const int start = snprintf(name, sizeof name, "encoder.down_blocks.%lld.resnets.%lld.", (long long)level, (long long)j);
        char *end = name + start;
        const size_t room = sizeof name - (size_t)start;
        snprintf(end, room, "norm1");
        H3_TRY(add_norm(list, name, in));
        snprintf(end, room, "conv1");
        H3_TRY(add_conv(list, name, out, in, 3));
        snprintf(end, room, "norm2");
        H3_TRY(add_norm(list, name, out));
        snprintf(end, room, "conv2");
        H3_TRY(add_conv(list, name, out, out, 3));
        snprintf(end, room, "conv_shortcut");
        if (in != out) H3_TRY(add_conv(list, name, out, in, 1));
    }
    if (c->spatial_stride[level] == 1) return H3_OK;
    snprintf(name, sizeof name, "encoder.down_blocks.%lld.downsamplers.0.conv", (long long)level);
    return add_conv(list, name, out, out, 3);
}

static h3_status add_encoder(h3_parameter_list *list, const h3_video_config *c)
{
    const int64_t last = c->level_channels[c->level_count - 1], moments = 2 * c->latent_channels;
    H3_TRY(add_conv(list, "encoder.conv_in", c->level_channels[0], H3_VIDEO_COLOURS, 3));
    for (int64_t i = 0; i < c->level_count; i++) H3_TRY(add_level(list, c, i));
    H3_TRY(add_norm(list, "encoder.norm_out", last));
    H3_TRY(add_conv(list, "encoder.conv_out", moments, last, 3));
    return add_conv(list, "quant_conv", moments, moments, 1);
}

h3_status h3_video_parameters(h3_parameter_list *out, const h3_video_config *config)
{
    const h3_video_sizes sizes = h3_video_sizes_of(config);
    *out = (h3_parameter_list){0};
    h3_status status = add_decoder(out, config, &sizes);
    if (status == H3_OK) status = add_encoder(out, config);
    if (status != H3_OK) h3_parameters_free(out);
    return status;
}
