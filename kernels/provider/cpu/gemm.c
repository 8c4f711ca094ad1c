/* Linear layers on OpenBLAS; see gemm.h. */
#include "gemm.h"

#include <cblas.h>
#include <stdio.h>

/* Widened weights pass through panels of about this many floats, which stay in cache. */
static const int64_t panel_floats = (int64_t)1 << 20;

const char *h3_blas_kernel(void)
{
    static _Thread_local char name[64];
    snprintf(name, sizeof name, "openblas-sgemm-%s", openblas_get_corename());
    return name;
}

h3_matrix h3_matrix_of(const h3_tensor *tensor, int64_t rows, int64_t columns)
{
    return (h3_matrix){.data = tensor->data, .rows = rows, .columns = columns, .bf16 = tensor->dtype == H3_BF16};
}

void h3_widen(const void *from, int64_t count, int bf16, float *restrict to)
{
    if (bf16) h3_load_row(to, from, count, 1);
    else memcpy(to, from, (size_t)count * sizeof *to);
}

void h3_narrow(const float *restrict from, int64_t count, int bf16, void *to)
{
    if (bf16) {
        uint16_t *restrict narrow = to;
        for (int64_t i = 0; i < count; i++) narrow[i] = h3_f32_to_bf16(from[i]);
    } else {
        memcpy(to, from, (size_t)count * sizeof *from);
    }
}

void h3_multiply(int64_t m, int64_t n, int64_t k, float alpha, const float *a, const float *b, int transpose_b, float beta,
                 float *c)
{
    cblas_sgemm(CblasRowMajor, CblasNoTrans, transpose_b ? CblasTrans : CblasNoTrans, (blasint)m, (blasint)n, (blasint)k, alpha,
                a, (blasint)k, b, (blasint)(transpose_b ? k : n), beta, c, (blasint)n);
}

void h3_multiply_transposed(int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda, const float *b, float beta,
                            float *c)
{
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (blasint)m, (blasint)n, (blasint)k, alpha, a, (blasint)lda, b,
                (blasint)n, beta, c, (blasint)n);
}

/* How many of `count` vectors of `length` floats make one panel. */
static int64_t panel(int64_t count, int64_t length)
{
    int64_t fit = panel_floats / length;
    if (fit < 16) fit = 16;
    return fit < count ? fit : count;
}

/* A panel's result is never wider than the layer, so rows * inputs and rows * outputs also hold the results. */
size_t h3_layer_workspace(int64_t rows, int64_t inputs, int64_t outputs, int bf16)
{
    if (!bf16) return h3_bytes(outputs, sizeof(double));
    return h3_bytes(rows * inputs, 4) + h3_bytes(rows * outputs, 4) + h3_bytes(panel(outputs, inputs) * inputs, 4) +
           h3_bytes(panel(inputs, outputs) * outputs, 4) + h3_bytes(outputs, 4);
}

static void store_panel(const float *product, const void *bias, h3_matrix y, int64_t first, int64_t width)
{
    uint16_t *out = y.data;
    for (int64_t row = 0; row < y.rows; row++) {
        const float *from = product + row * width;
        uint16_t *to = out + row * y.columns + first;
        if (bias == NULL) {
            h3_narrow(from, width, 1, to);
            continue;
        }
        const uint16_t *add = (const uint16_t *)bias + first;
        for (int64_t j = 0; j < width; j++) to[j] = h3_f32_to_bf16(from[j] + h3_bf16_to_f32(add[j]));
    }
}

static void add_bias(const float *bias, h3_matrix y)
{
    float *out = y.data;
    for (int64_t row = 0; row < y.rows; row++) {
        for (int64_t j = 0; j < y.columns; j++) out[row * y.columns + j] += bias[j];
    }
}

void h3_layer_forward(h3_matrix x, h3_matrix weight, const void *bias, h3_matrix y, h3_arena arena)
{
    int64_t inputs = weight.columns, outputs = weight.rows;
    if (!y.bf16) {
        h3_multiply(x.rows, outputs, inputs, 1.0f, x.data, weight.data, 1, 0.0f, y.data);
        if (bias != NULL) add_bias(bias, y);
        return;
    }
    int64_t step = panel(outputs, inputs);
    float *wide_x = h3_take(&arena, x.rows * inputs, 4);
    float *wide_weight = h3_take(&arena, step * inputs, 4);
    float *product = h3_take(&arena, x.rows * step, 4);
    h3_widen(x.data, x.rows * inputs, 1, wide_x);
    for (int64_t first = 0; first < outputs; first += step) {
        int64_t width = outputs - first < step ? outputs - first : step;
        h3_widen(h3_at(weight.data, first * inputs, 1), width * inputs, 1, wide_weight);
        h3_multiply(x.rows, width, inputs, 1.0f, wide_x, wide_weight, 1, 0.0f, product);
        store_panel(product, bias, y, first, width);
    }
}

void h3_layer_input_gradient(h3_matrix dy, h3_matrix weight, h3_matrix dx, h3_arena arena)
{
    int64_t inputs = weight.columns, outputs = weight.rows;
    if (!dx.bf16) {
        h3_multiply(dy.rows, inputs, outputs, 1.0f, dy.data, weight.data, 0, 0.0f, dx.data);
        return;
    }
    int64_t step = panel(inputs, outputs);
    float *wide_dy = h3_take(&arena, dy.rows * outputs, 4);
    float *wide_weight = h3_take(&arena, step * outputs, 4);
    float *product = h3_take(&arena, dy.rows * step, 4);
    h3_widen(dy.data, dy.rows * outputs, 1, wide_dy);
    for (int64_t first = 0; first < inputs; first += step) {
        int64_t width = inputs - first < step ? inputs - first : step;
        for (int64_t o = 0; o < outputs; o++)
            h3_widen(h3_at(weight.data, o * inputs + first, 1), width, 1, wide_weight + o * width);
        h3_multiply(dy.rows, width, outputs, 1.0f, wide_dy, wide_weight, 0, 0.0f, product);
        store_panel(product, NULL, dx, first, width);
    }
}

void h3_layer_weight_gradient(h3_matrix dy, h3_matrix x, h3_matrix dweight, h3_arena arena)
{
    int64_t inputs = dweight.columns, outputs = dweight.rows;
    if (!dweight.bf16) {
        h3_multiply_transposed(outputs, inputs, dy.rows, 1.0f, dy.data, outputs, x.data, 0.0f, dweight.data);
        return;
    }
    int64_t step = panel(outputs, inputs);
    float *wide_dy = h3_take(&arena, dy.rows * outputs, 4);
    float *wide_x = h3_take(&arena, dy.rows * inputs, 4);
    float *product = h3_take(&arena, step * inputs, 4);
    h3_widen(dy.data, dy.rows * outputs, 1, wide_dy);
    h3_widen(x.data, dy.rows * inputs, 1, wide_x);
    for (int64_t first = 0; first < outputs; first += step) {
        int64_t width = outputs - first < step ? outputs - first : step;
        h3_multiply_transposed(width, inputs, dy.rows, 1.0f, wide_dy + first, outputs, wide_x, 0.0f, product);
        h3_narrow(product, width * inputs, 1, h3_at(dweight.data, first * inputs, 1));
    }
}

H3_INLINE void sum_columns(h3_matrix dy, void *dbias, void *sums, const int bf16)
{
    for (int64_t row = 0; row < dy.rows; row++) {
        const void *from = h3_at(dy.data, row * dy.columns, bf16);
        for (int64_t j = 0; j < dy.columns; j++) h3_accumulate(sums, j, h3_load(from, j, bf16), bf16);
    }
    for (int64_t j = 0; j < dy.columns; j++) h3_store(dbias, j, h3_total(sums, j, bf16), bf16);
}

void h3_layer_bias_gradient(h3_matrix dy, void *dbias, h3_arena arena)
{
    void *sums = h3_take(&arena, dy.columns, sizeof(double));
    memset(sums, 0, (size_t)dy.columns * sizeof(double));
    if (dy.bf16) sum_columns(dy, dbias, sums, 1);
    else sum_columns(dy, dbias, sums, 0);
}
