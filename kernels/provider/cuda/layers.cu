/* Linear layers made of products; see products.h. */
#include "device.h"
#include "products.h"

h3_matrix h3_matrix_of(const h3_tensor &tensor, int64_t rows, int64_t columns)
{
    return {tensor.data, rows, columns, tensor.dtype == H3_BF16};
}

static h3_operand operand(const h3_matrix &matrix, bool across) { return {matrix.data, matrix.bf16, matrix.columns, 0, across}; }

float *h3_take_biased(h3_arena &arena, int64_t rows, int64_t outputs, bool bf16)
{
    return bf16 ? h3_take<float>(arena, rows * outputs) : nullptr;
}

/* y = round(product + bias), column by column of `width`; product may be y itself in FP32. */
template <bool Bf16> static __global__ void add_bias(const float *product, const void *bias, void *y, int64_t count, int64_t width)
{
    for (int64_t i = h3_first(); i < count; i += h3_stride())
        h3_store<Bf16>(y, i, __fadd_rn(product[i], h3_load<Bf16>(bias, i % width)));
}

int h3_layer_forward(h3_products &products, h3_matrix x, h3_matrix weight, const void *bias, h3_matrix y, float *biased)
{
    int64_t outputs = weight.rows, inputs = weight.columns, count = x.rows * outputs;
    h3_product product = {x.rows, outputs, inputs, 1, 1.0f, 0.0f, operand(x, false), operand(weight, true), operand(y, false)};
    if (bias == nullptr) return h3_multiply(products, product);
    if (y.bf16) product.c = {biased, false, outputs, 0, false};
    if (h3_multiply(products, product)) return 1;
    const float *sums = y.bf16 ? biased : (const float *)y.data;
    return h3_launch(*products.check, "bias", y.bf16 ? add_bias<true> : add_bias<false>, h3_blocks(count, H3_THREADS), H3_THREADS, sums, bias,
                     y.data, count, outputs);
}

int h3_layer_input_gradient(h3_products &products, h3_matrix dy, h3_matrix weight, h3_matrix dx)
{
    return h3_multiply(products, {dy.rows, weight.columns, weight.rows, 1, 1.0f, 0.0f, operand(dy, false), operand(weight, false),
                                  operand(dx, false)});
}

int h3_layer_weight_gradient(h3_products &products, h3_matrix dy, h3_matrix x, h3_matrix dweight)
{
    return h3_multiply(products, {dweight.rows, dweight.columns, dy.rows, 1, 1.0f, 0.0f, operand(dy, true), operand(x, false),
                                  operand(dweight, false)});
}

/* A thread adds one column; eight rows are loaded ahead of their additions. */
template <bool Bf16> static __global__ void sum_columns(const void *dy, void *dbias, int64_t rows, int64_t width)
{
    enum { AHEAD = 8 };
    for (int64_t j = h3_first(); j < width; j += h3_stride()) {
        typename h3_sum_of<Bf16>::type sum = 0;
        float ahead[AHEAD];
        for (int64_t row = 0; row < rows; row += AHEAD) {
            for (int i = 0; i < AHEAD; i++) ahead[i] = row + i < rows ? h3_load<Bf16>(dy, (row + i) * width + j) : 0.0f;
            for (int i = 0; i < AHEAD; i++)
                if (row + i < rows) sum += ahead[i];
        }
        h3_store<Bf16>(dbias, j, (float)sum);
    }
}

int h3_layer_bias_gradient(const h3_check &check, h3_matrix dy, void *dbias)
{
    enum { COLUMNS = 64 }; /* a block's: small, so that few columns still use many multiprocessors */
    return h3_launch(check, "bias gradient", dy.bf16 ? sum_columns<true> : sum_columns<false>, h3_blocks(dy.columns, COLUMNS), COLUMNS, dy.data,
                     dbias, dy.rows, dy.columns);
}
