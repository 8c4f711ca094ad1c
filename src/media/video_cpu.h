/* What the CPU's operations of the video autoencoder share. */
#ifndef H3_MEDIA_VIDEO_CPU_H
#define H3_MEDIA_VIDEO_CPU_H

#include <math.h>

#include "base/half.h"
#include "media/video_ops.h"

static inline float h3_load(const h3_tensor *t, int64_t i)
{
    return t->dtype == H3_F16 ? h3_f16_to_f32(((const uint16_t *)t->data)[i]) : ((const float *)t->data)[i];
}

static inline void h3_store(h3_tensor *t, int64_t i, float value)
{
    if (t->dtype == H3_F16) ((uint16_t *)t->data)[i] = h3_f32_to_f16(value);
    else ((float *)t->data)[i] = value;
}

/* The value as a tensor of that type holds it. */
static inline float h3_rounded(int32_t dtype, float value) { return dtype == H3_F16 ? h3_round_f16(value) : value; }

static inline float h3_silu_f32(float x) { return x / (1.0f + expf(-x)); }

h3_status h3_video_cpu_linear(const h3_device *device, h3_tensor *out, const h3_tensor *x, const h3_tensor *weight, const h3_tensor *bias,
                              int separate_bias);
h3_status h3_video_cpu_conv(const h3_device *device, h3_tensor *out, const h3_tensor *x, const h3_tensor *weight, const h3_tensor *bias,
                            const h3_video_conv *geometry);
h3_status h3_video_cpu_attention(const h3_device *device, h3_tensor *out, const h3_tensor *qkv);
h3_status h3_video_cpu_cut(const h3_device *device, h3_tensor *out, const h3_tensor *x, const h3_video_window *window);
h3_status h3_video_cpu_join(const h3_device *device, h3_tensor *out, const h3_tensor *rows, const h3_video_join *geometry);
h3_status h3_video_cpu_to_rgb(const h3_device *device, unsigned char *out, const h3_tensor *video, int64_t *bad);

#endif
