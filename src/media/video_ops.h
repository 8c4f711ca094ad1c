/*
 * What a device must be able to do for the video autoencoder. The drivers (video_decoder.c, video_encoder.c) know clips, tiles and the graph
 * of layers; these operations know a device. All tensors are dense, row-major and on `device`; they are checked by nobody, because only the
 * drivers make them. An operation on a GPU may return before it is done: the device's stream orders them.
 *
 * Two profiles (video-vae.md 3.7). FP32: everything F32. Half: tensors marked "a" are F16; products accumulate in FP32 and round once, and
 * where an operation makes several roundings its comment says so. Weights and biases come in the type of the product's input.
 *
 * Sizes: B tiles, n tokens of latents of a tile, N = n + register tokens + 1, W width, H heads, D head_dim, F ffn width, G register tokens,
 * K rotary frequencies an axis, C channels.
 */
#ifndef H3_MEDIA_VIDEO_OPS_H
#define H3_MEDIA_VIDEO_OPS_H

#include "graph/device.h"
#include "media/video_tiles.h"

/* A window of a [C,T,Y,X] tensor: tile `tile` + b of the two axes, frames `frame` .. `frame` + T' - 1. Beyond the last frame the last one
 * is repeated. */
typedef struct h3_video_window {
    h3_video_axis rows, columns;
    int32_t tile;
    int32_t frame;
} h3_video_window;

/* A 3-D convolution with a cubic kernel of 1 or 3. Kernel 3: two zero frames ahead; a spatial stride of 1 pads one reflected pixel on all four sides, 2 one
 * reflected pixel at the bottom and at the right. Kernel 1: no padding. */
typedef struct h3_video_conv {
    int32_t temporal_stride, spatial_stride;
} h3_video_conv;

typedef struct h3_video_ops {
    const char *name;

    /* --- products --- */

    /* out [R,O] = x [R,C] weight [O,C]^T + bias [O], all of one type. With `separate_bias` the product is rounded before the bias is added. */
    h3_status (*linear)(const h3_device *device, h3_tensor *out, const h3_tensor *x, const h3_tensor *weight, const h3_tensor *bias,
                        int separate_bias);
    /* out [B,T',Y',X',O] from x [B,T,Y,X,C], weight [O,C,k,k,k], bias [O]; F32. */
    h3_status (*conv)(const h3_device *device, h3_tensor *out, const h3_tensor *x, const h3_tensor *weight, const h3_tensor *bias,
                      const h3_video_conv *geometry);
    /* out [B,N,H,D] = softmax(q k^T / sqrt(D)) v over all N tokens of a tile; qkv [B,N,3,H,D] a. Softmax in FP32: exp(score - largest)
     * is rounded to `a` for the product with v, the sum that divides at the end is of the unrounded. */
    h3_status (*attention)(const h3_device *device, h3_tensor *out, const h3_tensor *qkv);

    /* out F16 = x F32 of the same shape, rounded. */
    h3_status (*round)(const h3_device *device, h3_tensor *out, const h3_tensor *x);

    /* --- the decoder's layers --- */

    /* out [B,N,W] F32: n tokens [B,n,W] a, then the register tokens [G,W] F32 (absent: none), then zeros. */
    h3_status (*embed)(const h3_device *device, h3_tensor *out, const h3_tensor *tokens, const h3_tensor *registers);
    /* out [B,N,W] a = x / sqrt(mean(x^2) + epsilon) * weight; x and weight F32. */
    h3_status (*rms_norm)(const h3_device *device, h3_tensor *out, const h3_tensor *x, const h3_tensor *weight, float epsilon);
    /* q and k of qkv [B,N,3,H,D] a, in place: RMS over D without weight (rounded), then pairs (d, d + 3K) rotate by the angles of
     * cosine and sine [N,3K] F32 (in the half profile half-precision values): each product and their sum rounded. */
    h3_status (*rotate)(const h3_device *device, h3_tensor *qkv, const h3_tensor *cosine, const h3_tensor *sine, float epsilon);
    /* out [R,F] a = value * silu(gate), x [R,2F] = [value | gate]; silu rounded, then the product. */
    h3_status (*swiglu)(const h3_device *device, h3_tensor *out, const h3_tensor *x);
    /* x [B,N,W] F32 += branch a * scale [W] F32, in FP32, product rounded first; then out = rms_norm of the new x, unless `out` is absent (data NULL). */
    h3_status (*add_norm)(const h3_device *device, h3_tensor *out, h3_tensor *x, const h3_tensor *branch, const h3_tensor *scale, const h3_tensor *weight,
                          float epsilon);
    /* qkv [B,N,3,H,D] a = linear of x [B,N,W] a, then rotate. A device may do both at once, to the same bytes. */
    h3_status (*project_heads)(const h3_device *device, h3_tensor *qkv, const h3_tensor *x, const h3_tensor *weight, const h3_tensor *bias, const h3_tensor *cosine,
                               const h3_tensor *sine, float epsilon);
    /* out [R,F] a = swiglu of linear of x [R,W] a, weight [2F,W]; likewise. */
    h3_status (*project_gated)(const h3_device *device, h3_tensor *out, const h3_tensor *x, const h3_tensor *weight, const h3_tensor *bias);
    /* x [B,N,W] F32 += linear of branch [B,N,C] a, weight [W,C], * scale, then out [B,N,W] a = its norm, as add_norm does; likewise. `out` may be `branch`. */
    h3_status (*project_added)(const h3_device *device, h3_tensor *out, h3_tensor *x, const h3_tensor *branch, const h3_tensor *weight, const h3_tensor *bias,
                               const h3_tensor *scale, const h3_tensor *norm, float epsilon);
    /* out [B,n,W] a = LayerNorm of the first n tokens of x [B,N,W] F32, biased variance. */
    h3_status (*layer_norm)(const h3_device *device, h3_tensor *out, const h3_tensor *x, const h3_tensor *weight, const h3_tensor *bias,
                            float epsilon);

    /* --- the encoder's layers, F32 --- */

    /* out = silu(GroupNorm(x)), x [B,T,Y,X,C]; statistics over one frame and one group of channels, biased variance. `out` may be `x`. */
    h3_status (*group_norm_silu)(const h3_device *device, h3_tensor *out, const h3_tensor *x, const h3_tensor *weight, const h3_tensor *bias,
                                 int64_t groups, float epsilon);
    /* x += y */
    h3_status (*add)(const h3_device *device, h3_tensor *x, const h3_tensor *y);

    /* --- cutting and joining --- */

    /* out [B,T',Y',X',C] a: tiles of x [C,T,Y,X] F32. */
    h3_status (*cut)(const h3_device *device, h3_tensor *out, const h3_tensor *x, const h3_video_window *window);
    /* out [frames,channels,Y,X] a from the rows [tiles of both axes, tokens, channels * patch_frames * patch_side^2] a of all tiles, blended
     * as video-vae.md 3.3 says: rows first, then columns with the raw neighbour; then in time with what `out` holds. Half profile: weights,
     * products and sums of a blend are rounded. */
    h3_status (*join)(const h3_device *device, h3_tensor *out, const h3_tensor *rows, const h3_video_join *geometry);
    /* out [frames,Y,X,3] bytes = code of video [frames,3,Y,X] a: clamp(v * std + mean, 0, 1) * 255 to the nearest, ties to even, in FP32.
     * `*bad` is the number of values that are no finite number (then `out` is worthless). Done on return. */
    h3_status (*to_rgb)(const h3_device *device, unsigned char *out, const h3_tensor *video, int64_t *bad);
} h3_video_ops;

/* project_heads, project_gated and project_added as two operations of `ops` after each other, for devices and shapes that do not have them at once. */
h3_status h3_video_heads_apart(const h3_video_ops *ops, const h3_device *device, h3_tensor *qkv, const h3_tensor *x, const h3_tensor *weight, const h3_tensor *bias,
                               const h3_tensor *cosine, const h3_tensor *sine, float epsilon);
h3_status h3_video_gated_apart(const h3_video_ops *ops, const h3_device *device, h3_tensor *out, const h3_tensor *x, const h3_tensor *weight, const h3_tensor *bias);
h3_status h3_video_added_apart(const h3_video_ops *ops, const h3_device *device, h3_tensor *out, h3_tensor *x, const h3_tensor *branch, const h3_tensor *weight,
                               const h3_tensor *bias, const h3_tensor *scale, const h3_tensor *norm, float epsilon);

/* The host's: plain loops over independent outputs, the same bits for any number of threads. */
const h3_video_ops *h3_video_ops_cpu(void);

/* Mean and deviation of the pixels of each colour in [0,1] (video-vae.md 3.6). */
extern const float h3_video_pixel_mean[H3_VIDEO_COLOURS], h3_video_pixel_std[H3_VIDEO_COLOURS];

#endif
