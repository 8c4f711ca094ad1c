/*
 * Matrix products of the linear layers, y = x W^T (+ b) with W [outputs, inputs], and their gradients, through one-thread
 * OpenBLAS. bfloat16 operands are widened (exactly), the product is float32, the bias is added in float32, one rounding ends it.
 * Contract openblas-sgemm-1thread-v1: one sgemm over the whole contraction for every element.
 */
#ifndef H3_PROVIDER_CPU_GEMM_H
#define H3_PROVIDER_CPU_GEMM_H

#include "common.h"

/* Dense rows x columns in one of the two activation types. */
typedef struct h3_matrix {
    void *data;
    int64_t rows, columns;
    int bf16;
} h3_matrix;

h3_matrix h3_matrix_of(const h3_tensor *tensor, int64_t rows, int64_t columns);

/* Enough for any one of the four calls below on a layer of these sizes. */
size_t h3_layer_workspace(int64_t rows, int64_t inputs, int64_t outputs, int bf16);

void h3_layer_forward(h3_matrix x, h3_matrix weight, const void *bias, h3_matrix y, h3_arena arena); /* bias: NULL for none */
void h3_layer_input_gradient(h3_matrix dy, h3_matrix weight, h3_matrix dx, h3_arena arena);          /* dx = dy W */
void h3_layer_weight_gradient(h3_matrix dy, h3_matrix x, h3_matrix dweight, h3_arena arena);         /* dW = dy^T x */
void h3_layer_bias_gradient(h3_matrix dy, void *dbias, h3_arena arena); /* rows added in ascending order */

/* c [m,n] = alpha a [m,k] op(b) + beta c, all float32 and dense; `transpose_b`: b is [n,k], otherwise [k,n]. */
void h3_multiply(int64_t m, int64_t n, int64_t k, float alpha, const float *a, const float *b, int transpose_b, float beta,
                 float *c);
/* c [m,n] = alpha a^T b + beta c with a [k,lda] (its first m columns), b [k,n]. */
void h3_multiply_transposed(int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda, const float *b, float beta,
                            float *c);

/* `count` elements of `from` as floats. */
void h3_widen(const void *from, int64_t count, int bf16, float *to);
/* Floats into `to`, rounded once. */
void h3_narrow(const float *from, int64_t count, int bf16, void *to);

#endif
