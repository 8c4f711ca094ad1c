/*
 * RMS norm over rows, with or without the modulation by a gathered table row.
 *
 * Contract rmsnorm-v4x128-v1: thread t of 128 adds the terms of the 4-element groups t, t+128, ... one after the other,
 * starting from 0 (a last group may be shorter); in each warp of 32 lane i adds lane i+16, then i+8, i+4, i+2, i+1; the warps
 * are added as (0+2) + (1+3). Forward, the terms are squares: r = 1/sqrt(sum/n + eps), y_j = w_j * (r * x_j), all float32.
 * The backward's c = (sum g_j xh_j)/n uses the same order. Weight gradients add 256 rows at a time in ascending order, then those
 * sums in ascending order.
 */
#ifndef H3_PROVIDER_CUDA_NORM_H
#define H3_PROVIDER_CUDA_NORM_H

#include "call.h"

/* Row r is shifted and scaled by table[index[r] * stride + shift], ... + scale; index NULL means no modulation. */
struct h3_norm_rows {
    int64_t rows, width;
    float epsilon;
    bool bf16;
    const void *x, *weight, *table;
    const int32_t *index;
    int64_t limit; /* table rows */
    int64_t stride, shift, scale;
};

/* Gradients; a NULL one is not computed. dscale is the per-row gradient bf(dy * n) [rows, width]. */
struct h3_norm_gradients {
    const void *dy;
    void *dx, *dweight, *dshift, *dscale;
};

/* What the backward needs. */
struct h3_norm_workspace {
    float *reciprocals; /* r of every row */
    void *partials;     /* of the weight gradient */
};

h3_norm_workspace h3_take_norm(h3_arena &arena, int64_t rows, int64_t width, bool bf16);
int h3_norm_forward_rows(const h3_check &check, const h3_norm_rows &norm, void *y);
int h3_norm_backward_rows(const h3_check &check, const h3_norm_rows &norm, const h3_norm_gradients &gradients, const h3_norm_workspace &workspace);

#endif
