/*
 * RMS norm over rows, with or without the modulation by a gathered table row.
 *
 * Contract rmsnorm-v4x128-v1: thread t of 128 adds the terms of the 4-element groups t, t+128, ... one after the other,
 * starting from 0 (a last group may be shorter); in each warp of 32 lane i adds lane i+16, then i+8, i+4, i+2, i+1; the warps
 * are added as (0+2) + (1+3). Forward, the terms are squares: r = 1/sqrt(sum/n + eps), y_j = w_j * (r * x_j), all float32.
 * The backward's c = (sum g_j xh_j)/n uses the same order; weight gradients add rows in ascending order.
 */
#ifndef H3_PROVIDER_CPU_NORM_H
#define H3_PROVIDER_CPU_NORM_H

#include "common.h"

/* Row r is shifted and scaled by table[index[r] * stride + shift], ... + scale; index NULL means no modulation. */
typedef struct h3_norm_rows {
    int64_t rows, width;
    float epsilon;
    int bf16;
    const void *x, *weight, *table;
    const int32_t *index;
    int64_t stride, shift, scale;
} h3_norm_rows;

/* Gradients; a NULL one is not computed. dscale is the per-row gradient bf(dy * n) [rows, width]. */
typedef struct h3_norm_gradients {
    const void *dy;
    void *dx, *dweight, *dshift, *dscale;
} h3_norm_gradients;

size_t h3_norm_workspace(int64_t width); /* enough for either direction */
void h3_norm_forward_rows(const h3_norm_rows *norm, void *y, h3_arena arena);
void h3_norm_backward_rows(const h3_norm_rows *norm, const h3_norm_gradients *gradients, h3_arena arena);

/* The contract's sum. */
float h3_sum_v4x128(const float *terms, int64_t count);

#endif
