/*
 * Matrix products through cublasLt, and the linear layers made of them: y = x W^T (+ b) with W [outputs, inputs].
 *
 * Contract cublaslt-f32-nosplit-v1: BF16 products are exact and summed in float32; FP32 products use no TF32. Reduction schemes are
 * masked out, so that no sum is split; workspace is fixed, the heuristic's first algorithm runs, and its numbers (algorithm,
 * tile, stages) stand in the report. A bias is added in float32 before the one rounding.
 */
#ifndef H3_PROVIDER_CUDA_PRODUCTS_H
#define H3_PROVIDER_CUDA_PRODUCTS_H

#include <cublasLt.h>

#include "call.h"

/* Row-major: `pitch` elements from row to row, `apart` from one matrix of a batch to the next. `across`: stored transposed. */
struct h3_operand {
    const void *data;
    bool bf16;
    int64_t pitch, apart;
    bool across;
};

/* c = alpha a b + beta c for `count` matrices: a [m,k], b [k,n], c [m,n]. */
struct h3_product {
    int64_t m, n, k, count;
    float alpha, beta;
    h3_operand a, b, c;
};

/* What the products of one call share. */
struct h3_products {
    const h3_check *check;
    cublasLtHandle_t handle;
    void *workspace;
    char note[64]; /* for the report: what ran */
};

int h3_products_open(h3_products &products, const h3_check &check, void *workspace);
int h3_multiply(h3_products &products, const h3_product &product);
void h3_products_ran(const h3_products &products, h3_call *call, bool bf16, const char *name = "cublasLt"); /* `name`, then the algorithms */

/* The workspace of one call's products. */
void *h3_take_products(h3_arena &arena);

/* Dense rows x columns in one of the two activation types. */
struct h3_matrix {
    void *data;
    int64_t rows, columns;
    bool bf16;
};

h3_matrix h3_matrix_of(const h3_tensor &tensor, int64_t rows, int64_t columns);

/* A biased BF16 layer needs float32 [rows, outputs] for its product; NULL otherwise. */
float *h3_take_biased(h3_arena &arena, int64_t rows, int64_t outputs, bool bf16);
int h3_layer_forward(h3_products &products, h3_matrix x, h3_matrix weight, const void *bias, h3_matrix y, float *biased); /* bias: NULL for none */
int h3_layer_input_gradient(h3_products &products, h3_matrix dy, h3_matrix weight, h3_matrix dx);                         /* dx = dy W */
int h3_layer_weight_gradient(h3_products &products, h3_matrix dy, h3_matrix x, h3_matrix dweight);                        /* dW = dy^T x */
int h3_layer_bias_gradient(const h3_check &check, h3_matrix dy, void *dbias); /* rows added in ascending order */

#endif
