/* Latents to frames: clips of time, tiles of the picture, and the transformer that decodes a tile (video-vae.md section 3). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "media/video_weights.h"

typedef struct block {
    h3_tensor norm1, norm2, scale1, scale2;
    h3_video_layer qkv, out, gate_up, down;
} block;

struct h3_video_decoder {
    h3_video_config config;
    h3_video_sizes sizes;
    h3_video_tiling tiling;
    const h3_device *device;
    const h3_video_ops *ops;
    int32_t dtype;
    int64_t tiles_a_call;
    h3_video_layer post_quant, proj_in, proj_out, norm_out;
    h3_tensor registers; /* [G,W] F32; absent without register tokens */
    block *blocks;
    void (*beat)(void *user);
    void *user;
};

/* What decoding needs beside the weights; tensors of `tiles` tiles. */
typedef struct scratch {
    int64_t tiles, tokens, all_tokens; /* of a tile: latents, and with registers and zero token */
    h3_tensor latents, mixed, tokens_in;   /* [B,T,Y,X,C], the same, [B,n,W] */
    h3_tensor stream, normed;              /* [B,N,W] F32, a */
    h3_tensor qkv, gated;                  /* [B,N,3,H,D], [B*N,F] */
    h3_tensor kept;                        /* [B,n,W] */
    h3_tensor rows;                        /* [all tiles,n,patch values] */
    h3_tensor cosine, sine;                /* [N,3K] F32 */
} scratch;

/* --- weights --------------------------------------------------------------------------------------------------------- */

static h3_status place_block(h3_video_decoder *d, const h3_video_placing *from, int64_t i)
{
    static const char *const QKV[] = {"to_q", "to_k", "to_v", NULL};
    block *b = &d->blocks[i];
    char prefix[80];
    const int n = snprintf(prefix, sizeof prefix, "decoder.transformer_blocks.%lld", (long long)i);
    H3_TRY(h3_video_place(&b->norm1, from, H3_F32, "%s.norm1.weight", prefix));
    H3_TRY(h3_video_place(&b->norm2, from, H3_F32, "%s.norm2.weight", prefix));
    H3_TRY(h3_video_place(&b->scale1, from, H3_F32, "%s.scale1", prefix));
    H3_TRY(h3_video_place(&b->scale2, from, H3_F32, "%s.scale2", prefix));
    H3_TRY(h3_video_place_layer(&b->out, from, d->dtype, "%s.attn.to_out.0", prefix));
    H3_TRY(h3_video_place_layer(&b->gate_up, from, d->dtype, "%s.ff.net.0.proj", prefix));
    H3_TRY(h3_video_place_layer(&b->down, from, d->dtype, "%s.ff.net.2", prefix));
    snprintf(prefix + n, sizeof prefix - (size_t)n, ".attn");
    return h3_video_place_joined(&b->qkv, from, d->dtype, prefix, QKV);
}

static h3_status place_weights(h3_video_decoder *d, const h3_video_placing *from)
{
    void *memory;
    H3_TRY(h3_alloc(&memory, (size_t)d->config.decoder_layers, sizeof(block), "the video decoder's blocks"));
    d->blocks = memory;
    H3_TRY(h3_video_place_layer(&d->post_quant, from, d->dtype, "post_quant_conv"));
    H3_TRY(h3_video_place_layer(&d->proj_in, from, d->dtype, "decoder.proj_in"));
    H3_TRY(h3_video_place_layer(&d->norm_out, from, H3_F32, "decoder.norm_out"));
    H3_TRY(h3_video_place_layer(&d->proj_out, from, d->dtype, "decoder.proj_out"));
    if (d->config.register_tokens > 0) {
        H3_TRY(h3_video_place(&d->registers, from, H3_F32, "decoder.register_tokens"));
        d->registers = h3_tensor_view(d->registers.data, H3_F32, 2, H3_SHAPE(d->config.register_tokens, d->sizes.width));
    }
    for (int64_t i = 0; i < d->config.decoder_layers; i++) H3_TRY(place_block(d, from, i));
    return H3_OK;
}

h3_status h3_video_decoder_open(h3_video_decoder **out, const h3_video_weights *weights, const h3_device *device, const h3_video_ops *ops,
                                int32_t dtype, const h3_video_tiling *tiling, int64_t tiles_a_call)
{
    void *memory;
    *out = NULL;
    if (dtype != H3_F32 && dtype != H3_F16) return h3_error(H3_USAGE, "the video decoder computes in F32 or F16, not in dtype %d", dtype);
    H3_TRY(h3_alloc(&memory, 1, sizeof(h3_video_decoder), "the video decoder"));
    h3_video_decoder *d = memory;
    *d = (h3_video_decoder){.config = weights->config, .sizes = h3_video_sizes_of(&weights->config), .tiling = *tiling, .device = device, .ops = ops,
                            .dtype = dtype, .tiles_a_call = tiles_a_call};
    h3_status status = place_weights(d, &(h3_video_placing){weights->source, device, ops});
    if (status == H3_OK) *out = d;
    else h3_video_decoder_close(d);
    return status;
}

void h3_video_decoder_close(h3_video_decoder *d)
{
    if (d == NULL) return;
    for (int64_t i = 0; d->blocks != NULL && i < d->config.decoder_layers; i++) {
        block *b = &d->blocks[i];
        h3_tensor *vectors[] = {&b->norm1, &b->norm2, &b->scale1, &b->scale2};
        h3_video_layer *layers[] = {&b->qkv, &b->out, &b->gate_up, &b->down};
        for (int k = 0; k < 4; k++) {
            h3_device_free(vectors[k], d->device);
            h3_video_free_layer(layers[k], d->device);
        }
    }
    free(d->blocks);
    h3_video_free_layer(&d->post_quant, d->device);
    h3_video_free_layer(&d->proj_in, d->device);
    h3_video_free_layer(&d->proj_out, d->device);
    h3_video_free_layer(&d->norm_out, d->device);
    h3_device_free(&d->registers, d->device);
    free(d);
}

/* --- rotary table ---------------------------------------------------------------------------------------------------- */

/* Angles of one axis at place i of S: 2 pi g times the frequencies, FP32; g runs from -1 to 1. */
static void fill_axis(float *cosine, float *sine, int64_t i, int64_t size, const h3_video_decoder *d)
{
    const float g = 2.0f * (((float)i + 0.5f) / (float)size) - 1.0f, turn = 6.283185307179586f * g;
    for (int64_t k = 0; k < d->sizes.frequencies; k++) {
        const float frequency = (float)pow(d->config.rope_theta, -(double)k / (double)d->sizes.frequencies), angle = turn * frequency;
        cosine[k] = (float)cos((double)angle);
        sine[k] = (float)sin((double)angle);
        if (d->dtype == H3_F16) {
            cosine[k] = h3_round_f16(cosine[k]);
            sine[k] = h3_round_f16(sine[k]);
        }
    }
}

/* Latent tokens first; the others (registers, zero token) do not rotate. */
static void fill_table(float *cosine, float *sine, const h3_video_decoder *d, int64_t rows, int64_t columns, int64_t tokens, int64_t all_tokens)
{
    const int64_t k = d->sizes.frequencies, frames = d->sizes.clip_latents;
    for (int64_t token = 0; token < all_tokens; token++) {
        float *c = cosine + token * 3 * k, *s = sine + token * 3 * k;
        if (token < tokens) {
            fill_axis(c, s, token / columns / rows, frames, d);
            fill_axis(c + k, s + k, token / columns % rows, rows, d);
            fill_axis(c + 2 * k, s + 2 * k, token % columns, columns, d);
        }
        for (int64_t i = 0; token >= tokens && i < 3 * k; i++) c[i] = 1.0f; /* sines stay 0 */
    }
}

static h3_status make_table(scratch *s, const h3_video_decoder *d, int64_t rows, int64_t columns)
{
    h3_tensor cosine = {0}, sine = {0};
    const int64_t shape[] = {s->all_tokens, 3 * d->sizes.frequencies};
    h3_status status = h3_tensor_new(&cosine, H3_F32, 2, shape);
    if (status == H3_OK) status = h3_tensor_new(&sine, H3_F32, 2, shape);
    if (status == H3_OK) {
        fill_table(cosine.data, sine.data, d, rows, columns, s->tokens, s->all_tokens);
        status = h3_device_upload(&s->cosine, d->device, &cosine);
    }
    if (status == H3_OK) status = h3_device_upload(&s->sine, d->device, &sine);
    h3_tensor_free(&cosine);
    h3_tensor_free(&sine);
    return status;
}

/* --- one call: some tiles of a clip ---------------------------------------------------------------------------------- */

/* With registers and zero token. */
static int64_t all_tokens(const h3_video_config *config, int64_t latents) { return latents + config->register_tokens + 1; }

static h3_status scratch_new(scratch *s, const h3_video_decoder *d, const h3_video_axis *rows, const h3_video_axis *columns)
{
    const int64_t all = (int64_t)rows->count * columns->count, b = d->tiles_a_call > 0 && d->tiles_a_call < all ? d->tiles_a_call : all;
    const int64_t t = d->sizes.clip_latents, n = t * rows->tile * columns->tile, width = d->sizes.width, ffn = d->sizes.ffn_width;
    const int64_t everything = all_tokens(&d->config, n), c = d->config.latent_channels;
    const int32_t a = d->dtype;
    s->tiles = b;
    s->tokens = n;
    s->all_tokens = everything;
    H3_TRY(h3_device_tensor(&s->latents, d->device, a, 5, H3_SHAPE(b, t, rows->tile, columns->tile, c)));
    H3_TRY(h3_device_tensor(&s->mixed, d->device, a, 5, H3_SHAPE(b, t, rows->tile, columns->tile, c)));
    H3_TRY(h3_device_tensor(&s->tokens_in, d->device, a, 3, H3_SHAPE(b, n, width)));
    H3_TRY(h3_device_tensor(&s->stream, d->device, H3_F32, 3, H3_SHAPE(b, everything, width)));
    H3_TRY(h3_device_tensor(&s->normed, d->device, a, 3, H3_SHAPE(b, everything, width)));
    H3_TRY(h3_device_tensor(&s->qkv, d->device, a, 5, H3_SHAPE(b, everything, 3, d->config.heads, d->config.head_dim)));
    H3_TRY(h3_device_tensor(&s->gated, d->device, a, 2, H3_SHAPE(b * everything, ffn)));
    H3_TRY(h3_device_tensor(&s->kept, d->device, a, 3, H3_SHAPE(b, n, width)));
    H3_TRY(h3_device_tensor(&s->rows, d->device, a, 3, H3_SHAPE(all, n, d->sizes.patch_values)));
    return make_table(s, d, rows->tile, columns->tile);
}

static void scratch_free(scratch *s, const h3_device *device)
{
    h3_tensor *all[] = {&s->latents, &s->mixed, &s->tokens_in, &s->stream, &s->normed, &s->qkv,
                        &s->gated,   &s->kept,  &s->rows,      &s->cosine, &s->sine};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) h3_device_free(all[i], device);
}

/* The first `tiles` items of a tensor. */
static h3_tensor first_items(const h3_tensor *t, int64_t tiles, int64_t capacity)
{
    int64_t shape[H3_MAX_RANK];
    memcpy(shape, t->shape, sizeof shape);
    shape[0] = t->shape[0] / capacity * tiles;
    return h3_tensor_view(t->data, t->dtype, t->rank, shape);
}

/* Block b, whose input is normed already; the stream's sum with its second branch is normed for the block that follows, if any. */
static h3_status run_block(const h3_video_decoder *d, const block *b, const block *following, scratch *v)
{
    const h3_video_ops *ops = d->ops;
    const float epsilon = (float)d->config.decoder_norm_eps;
    h3_tensor none = {0};
    H3_TRY(ops->project_heads(d->device, &v->qkv, &v->normed, &b->qkv.weight, &b->qkv.bias, &v->cosine, &v->sine, epsilon));
    H3_TRY(ops->attention(d->device, &v->normed, &v->qkv));
    H3_TRY(ops->project_added(d->device, &v->normed, &v->stream, &v->normed, &b->out.weight, &b->out.bias, &b->scale1, &b->norm2, epsilon));
    H3_TRY(ops->project_gated(d->device, &v->gated, &v->normed, &b->gate_up.weight, &b->gate_up.bias));
    return ops->project_added(d->device, following != NULL ? &v->normed : &none, &v->stream, &v->gated, &b->down.weight, &b->down.bias, &b->scale2,
                              following != NULL ? &following->norm1 : &none, epsilon);
}

static h3_status run_blocks(const h3_video_decoder *d, scratch *v)
{
    const int64_t count = d->config.decoder_layers;
    H3_TRY(d->ops->rms_norm(d->device, &v->normed, &v->stream, &d->blocks[0].norm1, (float)d->config.decoder_norm_eps));
    for (int64_t i = 0; i < count; i++) {
        if (d->beat != NULL) d->beat(d->user);
        H3_TRY(run_block(d, &d->blocks[i], i + 1 < count ? &d->blocks[i + 1] : NULL, v));
    }
    return H3_OK;
}

/* Tiles first .. first + tiles - 1 of one clip, into their rows. */
static h3_status decode_tiles(const h3_video_decoder *d, const scratch *s, const h3_tensor *z, const h3_video_window *window, int64_t tiles)
{
    scratch v = *s;
    h3_tensor *views[] = {&v.latents, &v.mixed, &v.tokens_in, &v.stream, &v.normed, &v.qkv, &v.gated, &v.kept};
    for (size_t i = 0; i < sizeof views / sizeof *views; i++) *views[i] = first_items(views[i], tiles, s->tiles);
    const size_t tile_bytes = h3_tensor_bytes(&s->rows) / (size_t)s->rows.shape[0];
    h3_tensor rows = h3_tensor_view((char *)s->rows.data + tile_bytes * (size_t)window->tile, d->dtype, 3, H3_SHAPE(tiles, s->rows.shape[1], s->rows.shape[2]));
    H3_TRY(d->ops->cut(d->device, &v.latents, z, window));
    H3_TRY(d->ops->linear(d->device, &v.mixed, &v.latents, &d->post_quant.weight, &d->post_quant.bias, 1));
    H3_TRY(d->ops->linear(d->device, &v.tokens_in, &v.mixed, &d->proj_in.weight, &d->proj_in.bias, 1)); /* seen in the published results, as with post_quant */
    H3_TRY(d->ops->embed(d->device, &v.stream, &v.tokens_in, &d->registers));
    H3_TRY(run_blocks(d, &v));
    H3_TRY(d->ops->layer_norm(d->device, &v.kept, &v.stream, &d->norm_out.weight, &d->norm_out.bias, (float)d->config.decoder_norm_eps));
    return d->ops->linear(d->device, &rows, &v.kept, &d->proj_out.weight, &d->proj_out.bias, 0);
}

/* --- clips ----------------------------------------------------------------------------------------------------------- */

/* A clip's own frames, the first of them blended with the last clip's tail, and its tail, which waits in `out` for the next clip. */
static h3_status join_clip(h3_tensor *out, const h3_video_decoder *d, const scratch *s, h3_video_join *g, int64_t clip)
{
    const h3_video_sizes *sizes = &d->sizes;
    const int32_t length = (int32_t)d->config.clip_length, overlap = (int32_t)sizes->overlap_frames;
    g->source_frame = (int32_t)sizes->leading_frames;
    g->frames = length;
    g->target_frame = (int32_t)clip * length;
    g->blend_frames = clip > 0 ? overlap : 0;
    H3_TRY(d->ops->join(d->device, out, &s->rows, g));
    g->source_frame = (int32_t)(sizes->chunk_latents * sizes->temporal_ratio + sizes->leading_frames);
    g->frames = overlap;
    g->target_frame += length;
    g->blend_frames = 0;
    return d->ops->join(d->device, out, &s->rows, g);
}

static h3_status decode_clips(h3_tensor *out, const h3_video_decoder *d, const scratch *s, const h3_tensor *z, const h3_video_clips *clips,
                              h3_video_join *g)
{
    const int64_t all = s->rows.shape[0];
    h3_video_window window = {h3_video_axis_shrink(&g->rows, d->sizes.spatial_ratio), h3_video_axis_shrink(&g->columns, d->sizes.spatial_ratio), 0, 0};
    for (int64_t clip = 0; clip < clips->count; clip++) {
        window.frame = (int32_t)(clip * d->sizes.chunk_latents);
        for (int64_t tile = 0; tile < all; tile += s->tiles) {
            window.tile = (int32_t)tile;
            H3_TRY(decode_tiles(d, s, z, &window, all - tile < s->tiles ? all - tile : s->tiles));
        }
        H3_TRY(join_clip(out, d, s, g, clip));
    }
    return H3_OK;
}

/* Pixels of latents y x x, in tiles. */
static h3_status plan_axes(h3_video_axis *rows, h3_video_axis *columns, const h3_video_tiling *tiling, int64_t ratio, int64_t y, int64_t x)
{
    if (y > INT32_MAX / 4 / ratio || x > INT32_MAX / 4 / ratio) return h3_error(H3_USAGE, "latents of %lld x %lld are too large", (long long)y, (long long)x);
    H3_TRY(h3_video_axis_plan(rows, y * ratio, tiling->tile, tiling->overlap, ratio));
    return h3_video_axis_plan(columns, x * ratio, tiling->tile, tiling->overlap, ratio);
}

h3_status h3_video_decoder_tokens(int64_t *tiles, int64_t *tokens, const h3_video_config *config, const h3_video_tiling *tiling, int64_t rows, int64_t columns)
{
    const h3_video_sizes sizes = h3_video_sizes_of(config);
    const int64_t ratio = sizes.spatial_ratio;
    h3_video_axis y, x;
    H3_TRY(plan_axes(&y, &x, tiling, ratio, rows, columns));
    *tiles = (int64_t)y.count * x.count;
    *tokens = all_tokens(config, sizes.clip_latents * (y.tile / ratio) * (x.tile / ratio));
    return H3_OK;
}

/* The pixel axes, and how their tokens become pixels. */
static h3_status plan_join(h3_video_join *g, const h3_video_decoder *d, const h3_tensor *z)
{
    const int64_t ratio = d->sizes.spatial_ratio;
    *g = (h3_video_join){.channels = H3_VIDEO_COLOURS, .patch_frames = (int32_t)d->sizes.temporal_ratio, .patch_side = (int32_t)ratio};
    H3_TRY(plan_axes(&g->rows, &g->columns, &d->tiling, ratio, z->shape[2], z->shape[3]));
    g->token_frames = (int32_t)d->sizes.clip_latents;
    g->token_rows = g->rows.tile / (int32_t)ratio;
    g->token_columns = g->columns.tile / (int32_t)ratio;
    return H3_OK;
}

void h3_video_decoder_watch(h3_video_decoder *decoder, void (*beat)(void *user), void *user)
{
    decoder->beat = beat;
    decoder->user = user;
}

h3_status h3_video_decode(h3_tensor *out, h3_video_decoder *d, const h3_tensor *z)
{
    h3_video_join join;
    h3_video_clips clips;
    scratch s = {0};
    h3_tensor latents = {0}, video = {0};
    h3_status status;
    *out = (h3_tensor){0};
    if (z->dtype != H3_F32 || z->rank != 4 || z->shape[0] != d->config.latent_channels)
        return h3_error(H3_USAGE, "the video decoder takes latents [%lld, frames, rows, columns] in F32", (long long)d->config.latent_channels);
    H3_TRY(h3_video_clips_plan(&clips, &d->config, z->shape[1]));
    H3_TRY(plan_join(&join, d, z));
    H3_GOTO(h3_device_upload(&latents, d->device, z), done);
    H3_GOTO(scratch_new(&s, d, &(h3_video_axis){.count = join.rows.count, .tile = join.token_rows}, &(h3_video_axis){.count = join.columns.count, .tile = join.token_columns}), done);
    H3_GOTO(h3_device_tensor(&video, d->device, d->dtype, 4, H3_SHAPE(clips.whole_frames, H3_VIDEO_COLOURS, join.rows.size, join.columns.size)), done);
    H3_GOTO(decode_clips(&video, d, &s, &latents, &clips, &join), done);
    H3_GOTO(d->device->health(), done);
    video.shape[0] = clips.frames; /* frames lie one after the other, the surplus at the end */
    *out = video;
    video = (h3_tensor){0};
done:
    h3_device_free(&video, d->device);
    h3_device_free(&latents, d->device);
    scratch_free(&s, d->device);
    return status;
}

void h3_video_denormalize(h3_tensor *z, const h3_video_config *config)
{
    const int64_t plane = h3_tensor_count(z) / config->latent_channels;
    float *values = z->data;
    for (int64_t c = 0; c < config->latent_channels; c++)
        for (int64_t i = 0; i < plane; i++) {
            const float scaled = values[c * plane + i] * config->latents_std[c];
            values[c * plane + i] = scaled + config->latents_mean[c];
        }
}

h3_status h3_video_frames(unsigned char **out, const h3_video_decoder *d, const h3_tensor *video)
{
    const size_t bytes = (size_t)h3_tensor_count(video);
    void *codes = NULL, *host = NULL;
    int64_t bad = 0;
    h3_status status;
    *out = NULL;
    H3_GOTO(d->device->allocate(&codes, bytes), done);
    H3_GOTO(h3_alloc(&host, bytes, 1, "the frames of a video"), done);
    H3_GOTO(d->ops->to_rgb(d->device, codes, video, &bad), done);
    if (bad > 0) H3_GOTO(h3_error(H3_FAILED, "the decoded video holds %lld values that are no finite numbers; look at the latents that went in", (long long)bad), done);
    H3_GOTO(d->device->to_host(host, codes, bytes), done);
    *out = host;
    host = NULL;
done:
    free(host);
    if (codes != NULL) d->device->release(codes);
    return status;
}
