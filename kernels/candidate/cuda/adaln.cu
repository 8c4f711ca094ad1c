/*
 * The small kernels of adaln_projection: activation, gradient of the modulation table, bias and temb; the products are gemm.cu's.
 *
 * The table's gradient [3T, 6, H] sums the six row gradients over the rows that use a table row, in FP32: within blocks of 512 packed
 * rows counted from row 0 in ascending order, starting at 0, then the blocks' sums in ascending order, then one rounding.
 */
#include "device.cuh"

namespace {

constexpr int SEGMENTS = 16; /* table rows that one walk over the rows serves */

__global__ void __launch_bounds__(H3_THREADS) activate_kernel(const float *temb, uint16_t *u, int64_t count)
{
    const int64_t i = h3_thread();
    if (i < count) u[i] = h3_bf(h3_silu(temb[i]));
}

struct table_work {
    const uint16_t *gradient[H3_ROW_GRADS];
    const int32_t *row_index;
    float *partial;
    int64_t rows, hidden, segments;
};

/* 256 columns of one chunk (blockIdx.y) over one block of rows (blockIdx.x); each thread keeps its own column of sums. */
__global__ void __launch_bounds__(H3_THREADS) table_kernel(table_work w)
{
    __shared__ float sums[SEGMENTS][H3_THREADS];
    const int64_t column = (int64_t)blockIdx.z * H3_THREADS + threadIdx.x, first = (int64_t)blockIdx.x * H3_TABLE_BLOCK;
    if (column >= w.hidden) return;
    const int64_t end = first + H3_TABLE_BLOCK < w.rows ? first + H3_TABLE_BLOCK : w.rows;
    const uint16_t *gradient = w.gradient[blockIdx.y] + column;
    for (int64_t from = 0; from < w.segments; from += SEGMENTS) {
        for (int k = 0; k < SEGMENTS; k++) sums[k][threadIdx.x] = 0.0f;
#pragma unroll 8
        for (int64_t row = first; row < end; row++) {
            const int64_t k = w.row_index[row] - from;
            const float value = h3_float(gradient[row * w.hidden]);
            if (k >= 0 && k < SEGMENTS) sums[k][threadIdx.x] = sums[k][threadIdx.x] + value;
        }
        for (int64_t k = 0; k < SEGMENTS && from + k < w.segments; k++) {
            const int64_t at = ((int64_t)blockIdx.x * w.segments + from + k) * H3_ROW_GRADS + blockIdx.y;
            w.partial[at * w.hidden + column] = sums[k][threadIdx.x];
        }
    }
}

__global__ void __launch_bounds__(H3_THREADS) table_sum_kernel(const float *partial, uint16_t *dz, uint16_t *dtable, int64_t blocks, int64_t count)
{
    const int64_t i = h3_thread();
    if (i >= count) return;
    float sum = 0.0f;
#pragma unroll 4
    for (int64_t block = 0; block < blocks; block++) sum = sum + partial[block * count + i];
    dz[i] = h3_bf(sum);
    if (dtable) dtable[i] = h3_bf(sum);
}

__global__ void __launch_bounds__(H3_THREADS) bias_kernel(const uint16_t *dz, uint16_t *dbias, int64_t timesteps, int64_t outputs)
{
    const int64_t o = h3_thread();
    if (o >= outputs) return;
    float sum = 0.0f;
    for (int64_t t = 0; t < timesteps; t++) sum = sum + h3_float(dz[t * outputs + o]);
    dbias[o] = h3_bf(sum);
}

__global__ void __launch_bounds__(H3_THREADS) time_kernel(const float *partial, const float *temb, float *dtemb, int64_t chunks, int64_t count)
{
    const int64_t i = h3_thread();
    if (i >= count) return;
    float sum = 0.0f;
#pragma unroll 8
    for (int64_t chunk = 0; chunk < chunks; chunk++) sum = sum + partial[chunk * count + i];
    dtemb[i] = h3_silu_gradient(h3_round(sum), temb[i], h3_sigmoid(temb[i]));
}

} // namespace

extern "C" int h3_adaln_run_activate(h3_call *call, const float *temb, uint16_t *u, int64_t count)
{
    return count == 0 ? 0 : h3_launch(call, "adaln_activate", activate_kernel, h3_grid(count), H3_THREADS, 0, temb, u, count);
}

extern "C" int h3_adaln_run_table(h3_call *call, float *partial, uint16_t *dz, uint16_t *dtable, int64_t rows, int64_t hidden, int64_t segments)
{
    table_work w;
    for (int c = 0; c < H3_ROW_GRADS; c++) w.gradient[c] = (const uint16_t *)call->row_grad[c].data;
    w.row_index = (const int32_t *)call->row_index.data;
    w.partial = partial;
    w.rows = rows;
    w.hidden = hidden;
    w.segments = segments;
    const int64_t blocks = h3_groups(rows, H3_TABLE_BLOCK), count = segments * H3_ROW_GRADS * hidden;
    const dim3 grid((unsigned)blocks, H3_ROW_GRADS, (unsigned)h3_groups(hidden, H3_THREADS));
    if (count == 0) return 0;
    if (blocks > 0 && h3_launch(call, "adaln_table", table_kernel, grid, H3_THREADS, 0, w)) return 1;
    return h3_launch(call, "adaln_table_sum", table_sum_kernel, h3_grid(count), H3_THREADS, 0, (const float *)partial, dz, dtable, blocks, count);
}

extern "C" int h3_adaln_run_bias(h3_call *call, const uint16_t *dz, uint16_t *dbias, int64_t timesteps, int64_t outputs)
{
    return h3_launch(call, "adaln_bias", bias_kernel, h3_grid(outputs), H3_THREADS, 0, dz, dbias, timesteps, outputs);
}

extern "C" int h3_adaln_run_time(h3_call *call, const float *partial, const float *temb, float *dtemb, int64_t chunks, int64_t count)
{
    return count == 0 ? 0 : h3_launch(call, "adaln_time", time_kernel, h3_grid(count), H3_THREADS, 0, partial, temb, dtemb, chunks, count);
}
