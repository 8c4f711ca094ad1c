/* Row sums on the host: the twin of the kernel in device_kernels.cu, in the same order. */
#include <math.h>
#include <string.h>

#include "graph/device_work.h"

typedef struct lanes {
    double difference[H3_SUM_LANES], norm[H3_SUM_LANES], dot[H3_SUM_LANES], squares[H3_SUM_LANES], bad[H3_SUM_LANES];
} lanes;

/* Elements first .. first+count-1 as doubles. */
static void load(double *out, const h3_tensor *tensor, int64_t first, int64_t count)
{
    const uint16_t *half = (const uint16_t *)tensor->data + first;
    const float *full = (const float *)tensor->data + first;
    if (tensor->dtype == H3_BF16)
        for (int64_t i = 0; i < count; i++) out[i] = (double)h3_bf16_to_f32(half[i]);
    else
        for (int64_t i = 0; i < count; i++) out[i] = (double)full[i];
}

static void add_elements(lanes *sum, const double *a, const double *b, int64_t count)
{
    for (int64_t l = 0; l < count; l++) {
        double d = a[l] - b[l], q = b[l] * b[l];
        sum->difference[l] += d * d;
        sum->norm[l] += q;
        sum->dot[l] += d * b[l];
        sum->bad[l] += isfinite(a[l]) && isfinite(b[l]) ? 0.0 : 1.0;
    }
}

static void add_groups(lanes *sum, const h3_tensor *g, int64_t first, int64_t width, int64_t group)
{
    for (int64_t i = 0; i < width / group; i++) {
        double q = 0.0;
        for (int64_t j = 0; j < group; j++) {
            double value;
            load(&value, g, first + i * group + j, 1);
            q += value * value;
        }
        sum->squares[i % H3_SUM_LANES] += q * q;
    }
}

static double fold(double *lane)
{
    for (int step = H3_SUM_LANES / 2; step > 0; step /= 2)
        for (int l = 0; l < step; l++) lane[l] += lane[l + step];
    return lane[0];
}

static h3_row_sum sum_row(const h3_tensor *x, const h3_tensor *g, int64_t first, int64_t width, int64_t group)
{
    lanes sum;
    memset(&sum, 0, sizeof sum);
    for (int64_t i = 0; i < width; i += H3_SUM_LANES) {
        double a[H3_SUM_LANES], b[H3_SUM_LANES];
        int64_t count = width - i < H3_SUM_LANES ? width - i : H3_SUM_LANES;
        load(a, x, first + i, count);
        load(b, g, first + i, count);
        add_elements(&sum, a, b, count);
    }
    add_groups(&sum, g, first, width, group);
    return (h3_row_sum){fold(sum.difference), fold(sum.norm), fold(sum.dot), fold(sum.squares), fold(sum.bad)};
}

h3_status h3_cpu_row_sums(h3_row_sum *out, const h3_tensor *x, const h3_tensor *g, int64_t rows, int64_t group)
{
    int64_t width = h3_tensor_count(x) / rows;
#pragma omp parallel for schedule(static) if (rows * width > 65536)
    for (int64_t row = 0; row < rows; row++) out[row] = sum_row(x, g, row * width, width, group);
    return H3_OK;
}
