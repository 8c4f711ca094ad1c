/* Starts of the video autoencoder's CUDA kernels, as plain C. Each is queued on `stream` and returns a cudaError_t. `half`: tensors marked "a" in
 * video_ops.h are F16, else F32. What each computes stands in video_ops.h. */
#ifndef H3_MEDIA_VIDEO_KERNELS_H
#define H3_MEDIA_VIDEO_KERNELS_H

#include <stdint.h>

#include "video_planes.h"

#ifdef __cplusplus
extern "C" {
#endif

/* video_layers.cu: one row, one head or one element a thread or block */
int h3_video_start_round(void *stream, uint16_t *out, const float *x, int64_t count);
int h3_video_start_add_bias(void *stream, uint16_t *out, const uint16_t *bias, int64_t rows, int64_t width);
int h3_video_start_embed(void *stream, float *out, const void *tokens, const float *registers, int half, int64_t tiles, int64_t own, int64_t given, int64_t all,
                         int64_t width);
int h3_video_start_rms_norm(void *stream, void *out, const float *x, const float *weight, int half, int64_t rows, int64_t width, float epsilon);
int h3_video_start_rotate(void *stream, void *qkv, const float *cosine, const float *sine, int half, int64_t rows, int64_t tokens, int64_t heads, int64_t dim,
                          int64_t pairs, float epsilon);
int h3_video_start_swiglu(void *stream, void *out, const void *x, int half, int64_t rows, int64_t width);
/* out NULL: the sum alone */
int h3_video_start_add_norm(void *stream, void *out, float *x, const void *branch, const float *scale, const float *weight, int half, int64_t rows, int64_t width, float epsilon);
int h3_video_start_layer_norm(void *stream, void *out, const float *x, const float *weight, const float *bias, int half, int64_t tiles, int64_t kept, int64_t all,
                              int64_t width, float epsilon);
/* statistics [frames * groups][2]: mean and 1 / sqrt(variance + epsilon) */
int h3_video_start_group_statistics(void *stream, float *statistics, const float *x, int64_t frames, int64_t pixels, int64_t channels, int64_t groups, float epsilon);
int h3_video_start_group_apply(void *stream, float *out, const float *x, const float *statistics, const float *weight, const float *bias, int64_t frames, int64_t pixels,
                               int64_t channels, int64_t groups);
int h3_video_start_add(void *stream, float *x, const float *y, int64_t count);

/* video_planes.cu: cutting, joining, pixels */
typedef struct h3_video_cut {
    h3_video_axis rows, columns;
    int32_t tile, frame;
    int64_t tiles, frames, height, width, channels;   /* of the result */
    int64_t in_frames, in_height, in_width;           /* of x */
} h3_video_cut;
int h3_video_start_cut(void *stream, void *out, const float *x, int half, const h3_video_cut *cut);
int h3_video_start_join(void *stream, void *out, const void *rows, int half, const h3_video_join *join);
/* *bad, 0 before, counts what is no finite number. */
int h3_video_start_to_rgb(void *stream, unsigned char *out, const void *video, int half, int64_t frames, int64_t height, int64_t width, unsigned long long *bad);

/* video_conv.cu: products of either type in the CPU's order, so that the bits are the CPU's. A linear layer is a convolution with a kernel of 1 over one row of pixels. */
typedef struct h3_video_product {
    const void *x, *weight, *bias; /* a; weight packed [taps][channels][columns]: h3_video_start_pack */
    void *out;
    int64_t items, frames, height, width, channels;       /* x [items][frames][height][width][channels] */
    int64_t out_frames, out_height, out_width, columns;   /* out [items][out_frames][out_height][out_width][columns] */
    int32_t kernel, temporal_stride, spatial_stride, separate_bias;
} h3_video_product;
int h3_video_start_product(void *stream, const h3_video_product *product, int half);
/* out[tap][channel][column] = weight[column][channel][tap] */
int h3_video_start_pack(void *stream, void *out, const void *weight, int half, int64_t columns, int64_t channels, int64_t taps);

/* video_matmul.cu: F16 products on a Hopper GPU, out = x [rows][channels] weight [columns][channels]^T + bias [columns], each rounded once; then, by kind, on their way out:
 *   PLAIN   out [rows][columns]
 *   GATED   out [rows][columns / 2] = swiglu
 *   HEADS   out [rows][3][heads][64], q and k normed and rotated by the tables [tokens][24], whose row is the row modulo tokens
 *   ADDED   out [rows][columns] F32 += the product, rounded, * scale [columns] F32, as the first half of add_norm
 * Everything at 16 bytes. Which shapes, and whether this GPU: h3_video_matmul_fits. */
enum { H3_VIDEO_MATMUL_PLAIN, H3_VIDEO_MATMUL_GATED, H3_VIDEO_MATMUL_HEADS, H3_VIDEO_MATMUL_ADDED };
typedef struct h3_video_matmul {
    int32_t kind;
    float epsilon; /* of heads */
    const void *x, *weight, *bias;
    void *out;
    int64_t rows, channels, columns;
    int64_t tokens, heads;
    const float *cosine, *sine, *scale;
} h3_video_matmul;
int h3_video_matmul_fits(const h3_video_matmul *product);
int h3_video_start_matmul(void *stream, const h3_video_matmul *product);

/* video_attention_hopper.cu: the operation `attention` in F16 for heads of 64 on a Hopper GPU; everything at 16 bytes. */
int h3_video_attention_hopper_fits(const void *out, const void *qkv, int64_t tiles, int64_t tokens, int64_t heads, int64_t dim);
int h3_video_start_attention_hopper(void *stream, uint16_t *out, const uint16_t *qkv, int64_t tiles, int64_t tokens, int64_t heads, int64_t dim);

/* video_attention.cu. The fast one takes F16 and heads of 16, 32 or 64 (h3_video_attention_fits); the simple one anything. */
int h3_video_attention_fits(int half, int64_t dim);
int h3_video_start_attention(void *stream, uint16_t *out, const uint16_t *qkv, int64_t tiles, int64_t tokens, int64_t heads, int64_t dim);
int h3_video_start_attention_simple(void *stream, void *out, const void *qkv, int half, int64_t tiles, int64_t tokens, int64_t heads, int64_t dim);

#ifdef __cplusplus
}
#endif

#endif
