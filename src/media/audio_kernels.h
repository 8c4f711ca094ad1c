/* Starts of the audio decoder's CUDA kernels (audio_kernels.cu), as plain C. Each is queued on `stream` and returns cudaError_t. */
#ifndef H3_MEDIA_AUDIO_KERNELS_H
#define H3_MEDIA_AUDIO_KERNELS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Sample q of x's grid becomes sample first + q * stride of an output row: the bias, then channels ascending, taps ascending, tap k at q + offset + k * step,
 * where nothing is read as 0. `weight` is [out_channels][in][taps]. The order of audio_ops.h. */
typedef struct h3_audio_convolution {
    const float *x, *weight, *bias, *residual; /* bias, residual: NULL for none */
    float *out;
    int64_t batch, in, out_channels, length, out_length;
    int64_t taps, step, offset, first, stride;
} h3_audio_convolution;

int h3_audio_start_convolve(const h3_audio_convolution *v, void *stream);
/* One thread a sample, nothing shared: any size, slow; the twin that tests compare with, and what runs when the other one's tiles do not fit. */
int h3_audio_start_convolve_simple(const h3_audio_convolution *v, void *stream);

int h3_audio_start_activate(float *out, const float *x, const float *filter, const float *curve, int64_t batch, int64_t channels, int64_t length, void *stream);

enum { H3_AUDIO_MEAN_OF = 8 };
typedef struct h3_audio_mean {
    const float *x[H3_AUDIO_MEAN_OF];
    float *out;
    int64_t count, elements;
} h3_audio_mean;
int h3_audio_start_mean(const h3_audio_mean *v, void *stream);

#ifdef __cplusplus
}
#endif

#endif
