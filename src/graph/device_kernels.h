/* The GPU's side of device_work.h: launches on a stream, all asynchronous. They return a cudaError_t. */
#ifndef H3_GRAPH_DEVICE_KERNELS_H
#define H3_GRAPH_DEVICE_KERNELS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* *differs, which is 0 before, becomes 1 when a byte differs. */
int h3_kernel_equal(void *stream, const void *a, const void *b, uint64_t bytes, int *differs);
/* out[rows][5] as h3_row_sum, on the device. `x_bf16`, `g_bf16`: the tensors' types, else F32. */
int h3_kernel_row_sums(void *stream, const void *x, int x_bf16, const void *g, int g_bf16, int64_t rows, int64_t width, int64_t group, double *out);
/* Elements 0 .. count-1 of a stream of h3synth-v1, as BF16 or F32; F32 perhaps rounded to BF16 before. */
int h3_kernel_synth(void *stream, void *out, int bf16, int through_bf16, int64_t count, uint32_t key0, uint32_t key1, float base, float amp);
/* out[j] = in[(j * step) mod all], elements of 1, 2, 4 or 8 bytes. */
int h3_kernel_samples(void *stream, void *out, const void *in, int64_t count, uint64_t step, uint64_t all, int bytes);
int h3_kernel_widen(void *stream, float *out, const uint16_t *in, int64_t count);

#ifdef __cplusplus
}
#endif

#endif
