/* Pictures to latents: the convolutional encoder, its clips and tiles, and the keyframe (video-vae.md section 4). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "media/video_weights.h"
#include "model/noise.h"

typedef struct residual {
    h3_video_layer norm1, conv1, norm2, conv2, shortcut; /* shortcut absent where the channels stay */
} residual;

typedef struct level {
    residual *residuals;
    h3_video_layer down; /* absent where the size stays */
} level;

struct h3_video_encoder {
    h3_video_config config;
    h3_video_sizes sizes;
    h3_video_tiling tiling;
    const h3_device *device;
    const h3_video_ops *ops;
    int64_t tiles_a_call;
    h3_video_layer conv_in, norm_out, conv_out, quant;
    level levels[H3_VIDEO_LEVELS];
};

/* --- weights --------------------------------------------------------------------------------------------------------- */

static h3_status place_residual(residual *out, const h3_video_encoder *e, const h3_video_placing *from, int64_t i, int64_t j)
{
    char prefix[80];
    const int64_t before = e->config.level_channels[i > 0 ? i - 1 : 0];
    snprintf(prefix, sizeof prefix, "encoder.down_blocks.%lld.resnets.%lld", (long long)i, (long long)j);
    H3_TRY(h3_video_place_layer(&out->norm1, from, H3_F32, "%s.norm1", prefix));
    H3_TRY(h3_video_place_layer(&out->conv1, from, H3_F32, "%s.conv1", prefix));
    H3_TRY(h3_video_place_layer(&out->norm2, from, H3_F32, "%s.norm2", prefix));
    H3_TRY(h3_video_place_layer(&out->conv2, from, H3_F32, "%s.conv2", prefix));
    if (j > 0 || before == e->config.level_channels[i]) return H3_OK;
    return h3_video_place_layer(&out->shortcut, from, H3_F32, "%s.conv_shortcut", prefix);
}

static h3_status place_level(h3_video_encoder *e, const h3_video_placing *from, int64_t i)
{
    void *memory;
    H3_TRY(h3_alloc(&memory, (size_t)e->config.layers_per_level, sizeof(residual), "a level of the video encoder"));
    e->levels[i].residuals = memory;
    for (int64_t j = 0; j < e->config.layers_per_level; j++) H3_TRY(place_residual(&e->levels[i].residuals[j], e, from, i, j));
    if (e->config.spatial_stride[i] == 1) return H3_OK;
    return h3_video_place_layer(&e->levels[i].down, from, H3_F32, "encoder.down_blocks.%lld.downsamplers.0.conv", (long long)i);
}

static h3_status place_weights(h3_video_encoder *e, const h3_video_placing *from)
{
    H3_TRY(h3_video_place_layer(&e->conv_in, from, H3_F32, "encoder.conv_in"));
    for (int64_t i = 0; i < e->config.level_count; i++) H3_TRY(place_level(e, from, i));
    H3_TRY(h3_video_place_layer(&e->norm_out, from, H3_F32, "encoder.norm_out"));
    H3_TRY(h3_video_place_layer(&e->conv_out, from, H3_F32, "encoder.conv_out"));
    return h3_video_place_layer(&e->quant, from, H3_F32, "quant_conv");
}

h3_status h3_video_encoder_open(h3_video_encoder **out, const h3_video_weights *weights, const h3_device *device, const h3_video_ops *ops,
                                const h3_video_tiling *tiling, int64_t tiles_a_call)
{
    void *memory;
    *out = NULL;
    H3_TRY(h3_alloc(&memory, 1, sizeof(h3_video_encoder), "the video encoder"));
    h3_video_encoder *e = memory;
    *e = (h3_video_encoder){.config = weights->config, .sizes = h3_video_sizes_of(&weights->config), .tiling = *tiling, .device = device, .ops = ops,
                            .tiles_a_call = tiles_a_call};
    h3_status status = place_weights(e, &(h3_video_placing){weights->source, device, ops});
    if (status == H3_OK) *out = e;
    else h3_video_encoder_close(e);
    return status;
}

void h3_video_encoder_close(h3_video_encoder *e)
{
    if (e == NULL) return;
    for (int64_t i = 0; i < e->config.level_count; i++) {
        for (int64_t j = 0; e->levels[i].residuals != NULL && j < e->config.layers_per_level; j++) {
            residual *r = &e->levels[i].residuals[j];
            h3_video_layer *layers[] = {&r->norm1, &r->conv1, &r->norm2, &r->conv2, &r->shortcut};
            for (int k = 0; k < 5; k++) h3_video_free_layer(layers[k], e->device);
        }
        free(e->levels[i].residuals);
        h3_video_free_layer(&e->levels[i].down, e->device);
    }
    h3_video_layer *layers[] = {&e->conv_in, &e->norm_out, &e->conv_out, &e->quant};
    for (int k = 0; k < 4; k++) h3_video_free_layer(layers[k], e->device);
    free(e);
}

/* --- the network ----------------------------------------------------------------------------------------------------- */

/* `*x` becomes its convolution; the old tensor is released. */
static h3_status convolve(h3_tensor *x, const h3_video_encoder *e, const h3_video_layer *layer, int64_t temporal_stride, int64_t spatial_stride)
{
    const h3_video_conv geometry = {(int32_t)temporal_stride, (int32_t)spatial_stride};
    h3_tensor out;
    H3_TRY(h3_device_tensor(&out, e->device, H3_F32, 5, H3_SHAPE(x->shape[0], (x->shape[1] - 1) / temporal_stride + 1, x->shape[2] / spatial_stride,
                                                                 x->shape[3] / spatial_stride, layer->weight.shape[0])));
    h3_status status = e->ops->conv(e->device, &out, x, &layer->weight, &layer->bias, &geometry);
    h3_device_free(status == H3_OK ? x : &out, e->device);
    if (status == H3_OK) *x = out;
    return status;
}

static h3_status normalize(h3_tensor *x, const h3_video_encoder *e, const h3_video_layer *norm)
{
    return e->ops->group_norm_silu(e->device, x, x, &norm->weight, &norm->bias, e->config.norm_groups, (float)e->config.norm_eps);
}

static h3_status run_residual(h3_tensor *x, const h3_video_encoder *e, const residual *r)
{
    h3_tensor y;
    H3_TRY(h3_device_duplicate(&y, e->device, x));
    h3_status status;
    H3_GOTO(normalize(&y, e, &r->norm1), done);
    H3_GOTO(convolve(&y, e, &r->conv1, 1, 1), done);
    H3_GOTO(normalize(&y, e, &r->norm2), done);
    H3_GOTO(convolve(&y, e, &r->conv2, 1, 1), done);
    if (r->shortcut.weight.data != NULL) H3_GOTO(convolve(x, e, &r->shortcut, 1, 1), done);
    H3_GOTO(e->ops->add(e->device, x, &y), done);
done:
    h3_device_free(&y, e->device);
    return status;
}

/* x [B,T,Y,X,3] becomes the moments [B,T',Y',X',2C]. */
static h3_status run_network(h3_tensor *x, const h3_video_encoder *e)
{
    H3_TRY(convolve(x, e, &e->conv_in, 1, 1));
    for (int64_t i = 0; i < e->config.level_count; i++) {
        for (int64_t j = 0; j < e->config.layers_per_level; j++) H3_TRY(run_residual(x, e, &e->levels[i].residuals[j]));
        if (e->config.spatial_stride[i] > 1) H3_TRY(convolve(x, e, &e->levels[i].down, e->config.temporal_stride[i], e->config.spatial_stride[i]));
    }
    H3_TRY(normalize(x, e, &e->norm_out));
    H3_TRY(convolve(x, e, &e->conv_out, 1, 1));
    return convolve(x, e, &e->quant, 1, 1);
}

/* --- tiles and clips ------------------------------------------------------------------------------------------------- */

/* Moments of `count` tiles of the frames from window->frame on, copied behind the moments of the tiles before them. */
static h3_status encode_tiles(h3_tensor *rows, const h3_video_encoder *e, const h3_tensor *x, const h3_video_window *window, int64_t count, int64_t frames)
{
    const size_t bytes = h3_tensor_bytes(rows) / (size_t)rows->shape[0];
    h3_tensor tiles;
    H3_TRY(h3_device_tensor(&tiles, e->device, H3_F32, 5, H3_SHAPE(count, frames, window->rows.tile, window->columns.tile, H3_VIDEO_COLOURS)));
    h3_status status = e->ops->cut(e->device, &tiles, x, window);
    if (status == H3_OK) status = run_network(&tiles, e);
    if (status == H3_OK) status = e->device->copy((char *)rows->data + bytes * (size_t)window->tile, tiles.data, bytes * (size_t)count);
    h3_device_free(&tiles, e->device);
    return status;
}

/* One clip (or one frame) into frames target .. of `out` [T',2C,Y',X']. */
static h3_status encode_clip(h3_tensor *out, h3_tensor *rows, const h3_video_encoder *e, const h3_tensor *x, h3_video_window *window, int64_t frames,
                             h3_video_join *join)
{
    const int64_t all = rows->shape[0], call = e->tiles_a_call > 0 ? e->tiles_a_call : all;
    for (int64_t tile = 0; tile < all; tile += call) {
        window->tile = (int32_t)tile;
        H3_TRY(encode_tiles(rows, e, x, window, all - tile < call ? all - tile : call, frames));
    }
    return e->ops->join(e->device, out, rows, join);
}

/* [T,C,Y,X] on the device becomes [C,T,Y,X] on the host; of the frames the first `frames`. */
static h3_status channels_first(h3_tensor *out, const h3_device *device, const h3_tensor *x, int64_t frames)
{
    h3_tensor host;
    const int64_t channels = x->shape[1], plane = x->shape[2] * x->shape[3];
    H3_TRY(h3_device_borrow(&host, device, x));
    h3_status status = h3_tensor_new(out, H3_F32, 4, H3_SHAPE(channels, frames, x->shape[2], x->shape[3]));
    for (int64_t i = 0; status == H3_OK && i < channels * frames; i++)
        memcpy((float *)out->data + i * plane, (const float *)host.data + (i % frames * channels + i / frames) * plane, (size_t)plane * sizeof(float));
    h3_device_return(&host, device);
    return status;
}

typedef struct plan {
    int64_t clips, clip_frames, clip_latents, kept; /* kept: latent frames of the result */
    h3_video_window window;
    h3_video_join join;
} plan;

static h3_status plan_encode(plan *p, const h3_video_encoder *e, const h3_tensor *x)
{
    const int64_t ratio = e->sizes.spatial_ratio, frames = x->shape[1];
    *p = (plan){.clips = 1, .clip_frames = 1, .clip_latents = 1, .kept = 1};
    if (frames > 1) {
        p->clips = (frames + e->config.clip_length - 1) / e->config.clip_length;
        p->clip_frames = e->config.clip_length;
        p->clip_latents = e->sizes.chunk_latents;
        p->kept = p->clips * p->clip_latents - e->config.token_drop;
    }
    if (frames < 1 || frames > INT32_MAX / 64 || p->kept < 1) return h3_error(H3_USAGE, "a video of %lld frames cannot be encoded", (long long)frames);
    H3_TRY(h3_video_axis_plan(&p->window.rows, x->shape[2], e->tiling.tile, e->tiling.overlap, ratio));
    H3_TRY(h3_video_axis_plan(&p->window.columns, x->shape[3], e->tiling.tile, e->tiling.overlap, ratio));
    if (p->window.rows.tile < 2 * ratio || p->window.columns.tile < 2 * ratio)
        return h3_error(H3_USAGE, "pictures of %lld x %lld are too small to be padded by reflection; at least %lld x %lld are needed", (long long)x->shape[3],
                        (long long)x->shape[2], (long long)(2 * ratio), (long long)(2 * ratio));
    p->join = (h3_video_join){.rows = h3_video_axis_shrink(&p->window.rows, ratio), .columns = h3_video_axis_shrink(&p->window.columns, ratio),
                              .channels = (int32_t)(2 * e->config.latent_channels), .patch_frames = 1, .patch_side = 1,
                              .token_frames = (int32_t)p->clip_latents, .frames = (int32_t)p->clip_latents};
    p->join.token_rows = p->join.rows.tile;
    p->join.token_columns = p->join.columns.tile;
    return H3_OK;
}

h3_status h3_video_encode(h3_tensor *out, h3_video_encoder *e, const h3_tensor *x)
{
    plan p;
    h3_tensor pixels = {0}, rows = {0}, moments = {0};
    h3_status status;
    *out = (h3_tensor){0};
    if (x->dtype != H3_F32 || x->rank != 4 || x->shape[0] != H3_VIDEO_COLOURS)
        return h3_error(H3_USAGE, "the video encoder takes frames [3, frames, rows, columns] in F32");
    H3_TRY(plan_encode(&p, e, x));
    const int64_t tokens = p.clip_latents * p.join.token_rows * p.join.token_columns;
    H3_GOTO(h3_device_upload(&pixels, e->device, x), done);
    H3_GOTO(h3_device_tensor(&rows, e->device, H3_F32, 3, H3_SHAPE((int64_t)p.join.rows.count * p.join.columns.count, tokens, p.join.channels)), done);
    H3_GOTO(h3_device_tensor(&moments, e->device, H3_F32, 4, H3_SHAPE(p.clips * p.clip_latents, p.join.channels, p.join.rows.size, p.join.columns.size)), done);
    for (int64_t clip = 0; clip < p.clips; clip++) {
        p.window.frame = (int32_t)(clip * p.clip_frames);
        p.join.target_frame = (int32_t)(clip * p.clip_latents);
        H3_GOTO(encode_clip(&moments, &rows, e, &pixels, &p.window, p.clip_frames, &p.join), done);
    }
    H3_GOTO(e->device->health(), done);
    H3_GOTO(channels_first(out, e->device, &moments, p.kept), done);
done:
    h3_device_free(&pixels, e->device);
    h3_device_free(&rows, e->device);
    h3_device_free(&moments, e->device);
    return status;
}

/* --- posterior and keyframe ------------------------------------------------------------------------------------------ */

static int fill_sample(float *z, const float *mean, const float *log_variance, int64_t count)
{
    int finite = 1;
    for (int64_t i = 0; i < count; i++) {
        finite = finite && isfinite(mean[i]) && isfinite(log_variance[i]);
        const float clamped = fminf(fmaxf(log_variance[i], -30.0f), 20.0f), deviation = expf(0.5f * clamped), noise = deviation * z[i];
        z[i] = mean[i] + noise;
    }
    return finite;
}

h3_status h3_video_sample(h3_tensor *z, const h3_tensor *moments, uint64_t seed)
{
    h3_generator generator;
    const int64_t channels = moments->shape[0] / 2;
    H3_TRY(h3_tensor_new(z, H3_F32, 4, H3_SHAPE(channels, moments->shape[1], moments->shape[2], moments->shape[3])));
    const int64_t count = h3_tensor_count(z);
    h3_generator_seed(&generator, seed);
    h3_status status = h3_generator_normal(&generator, z->data, count);
    const float *mean = moments->data;
    if (status == H3_OK && !fill_sample(z->data, mean, mean + count, count))
        status = h3_error(H3_FAILED, "the encoded picture holds values that are no finite numbers; look at the picture and the checkpoint");
    if (status != H3_OK) h3_tensor_free(z);
    return status;
}

/* Colours of [0,1] as the model takes them: code * fl(1 / 255), as GPUs divide by a number that is known beforehand, minus mean, over deviation. */
static void normalize_pixels(float *x, const unsigned char *rgb, int64_t plane)
{
    for (int64_t i = 0; i < plane; i++)
        for (int64_t c = 0; c < H3_VIDEO_COLOURS; c++) {
            const float unit = (float)rgb[i * H3_VIDEO_COLOURS + c] * (1.0f / 255.0f);
            x[c * plane + i] = (unit - h3_video_pixel_mean[c]) / h3_video_pixel_std[c];
        }
}

/* In place: through half precision, then normalised. [C,1,Y,X] */
static void normalize_latents(h3_tensor *z, const h3_video_config *config)
{
    const int64_t plane = h3_tensor_count(z) / config->latent_channels;
    float *values = z->data;
    for (int64_t i = 0; i < h3_tensor_count(z); i++) {
        const int64_t c = i / plane;
        values[i] = (h3_round_f16(values[i]) - config->latents_mean[c]) / config->latents_std[c];
    }
}

h3_status h3_video_keyframe(h3_tensor *latents, h3_video_encoder *e, const unsigned char *rgb, int64_t height, int64_t width)
{
    h3_tensor pixels = {0}, moments = {0}, z = {0};
    *latents = z;
    h3_status status;
    if (height < 1 || width < 1) return h3_error(H3_USAGE, "a keyframe of %lld x %lld pixels", (long long)width, (long long)height);
    H3_GOTO(h3_tensor_new(&pixels, H3_F32, 4, H3_SHAPE(H3_VIDEO_COLOURS, 1, height, width)), done);
    normalize_pixels(pixels.data, rgb, height * width);
    H3_GOTO(h3_video_encode(&moments, e, &pixels), done);
    H3_GOTO(h3_video_sample(&z, &moments, H3_VIDEO_KEYFRAME_SEED), done);
    normalize_latents(&z, &e->config);
    *latents = h3_tensor_view(z.data, H3_F32, 5, H3_SHAPE(1, z.shape[0], z.shape[1], z.shape[2], z.shape[3]));
done:
    h3_tensor_free(&pixels);
    h3_tensor_free(&moments);
    return status;
}
