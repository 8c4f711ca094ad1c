/*
 * What adaln_projection and norm_out share: from the time embedding to a modulation table, u = round(silu(temb)),
 * Z = u W^T + b, and back. Contract rows-ascending-f32-v1: a table row's gradient adds its packed rows in ascending order in
 * float32 (double in FP32), rounded once.
 */
#ifndef H3_PROVIDER_CPU_CONDITIONING_H
#define H3_PROVIDER_CPU_CONDITIONING_H

#include "gemm.h"

typedef struct h3_condition {
    const float *temb; /* [times, weight.columns] */
    int64_t times;
    h3_matrix weight;
} h3_condition;

typedef struct h3_condition_gradients {
    void *dweight, *dbias; /* NULL: not wanted */
    float *dtemb;
} h3_condition_gradients;

size_t h3_condition_workspace(int64_t times, int64_t inputs, int64_t outputs, int bf16);
void h3_condition_forward(const h3_condition *condition, const void *bias, void *z, h3_arena arena);
void h3_condition_backward(const h3_condition *condition, void *dz, const h3_condition_gradients *gradients, h3_arena arena);

/* out[k * stride + j] = sum of rows[r, j] over the rows r with index[r] = k, ascending; segments without rows get zero. */
size_t h3_segment_workspace(int64_t segments, int64_t width);
void h3_segment_sum(h3_matrix rows, const int32_t *index, int64_t segments, void *out, int64_t stride, h3_arena arena);

#endif
