/*
 * What adaln_projection and norm_out share: from the time embedding to a modulation table, u = round(silu(temb)),
 * Z = u W^T + b, and back. Contract rows-ascending-f32-v1: a table row's gradient adds its packed rows in ascending order in
 * float32 (double in FP32), rounded once.
 */
#ifndef H3_PROVIDER_CUDA_CONDITIONING_H
#define H3_PROVIDER_CUDA_CONDITIONING_H

#include "products.h"

struct h3_condition {
    const float *temb; /* [times, weight.columns] */
    int64_t times;
    h3_matrix weight;
};

struct h3_condition_gradients {
    void *dweight, *dbias; /* NULL: not wanted */
    float *dtemb;
};

struct h3_condition_workspace {
    void *products, *u;
    float *biased; /* forward */
    void *du;      /* backward */
};

h3_condition_workspace h3_take_condition(h3_arena &arena, int64_t times, int64_t inputs, int64_t outputs, bool bf16, bool forward);
int h3_condition_forward(h3_products &products, const h3_condition &condition, const void *bias, void *z, const h3_condition_workspace &workspace);
int h3_condition_backward(h3_products &products, const h3_condition &condition, void *dz, const h3_condition_gradients &gradients,
                          const h3_condition_workspace &workspace);

/* out[k * stride + j] = sum of rows[r, j] over the rows r with index[r] = k, ascending; segments without rows get zero. */
int h3_segment_sum(const h3_check &check, h3_matrix rows, const int32_t *index, int64_t segments, void *out, int64_t stride);

#endif
