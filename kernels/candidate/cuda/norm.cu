/*
 * RMS norms, contract rmsnorm-v4x128-v1: the sum over a row is taken by 128 threads; thread t adds the terms of the
 * four-element groups t, t + 128, ... one by one, starting at 0; lanes of a warp meet as (i) + (i + 16), + 8, + 4, + 2, + 1;
 * warps as (0 + 2) + (1 + 3). Then divide by the width, add epsilon, r = 1 / sqrt, every operation rounded to nearest.
 *     y = bf(w (r x)),  modulated  m = bf(bf(y bf(1 + scale)) + shift)
 * Rows of at most 128 elements leave three of the four warps without terms, so one warp computes them.
 *
 * Backward: r and xh = r x again; dn = bf(dm bf(1 + scale)) or dm itself; g = w dn; c = (sum of g xh in the same order) / width;
 * dx = bf(r (g - xh c)); row gradients dm and bf(dm y). The weight's gradient sums dn xh by fused steps within blocks of 32 rows
 * counted from row 0, and the blocks' sums in ascending order.
 */
#include "device.cuh"

namespace {

constexpr int KEPT = 12; /* groups of a row that a thread of 128 keeps in registers: rows up to 6144 are read once */

/* Group g of a row: four elements, or what is left of them, padded with zeros. */
struct groups {
    int64_t width;
    bool vector;

    __device__ __forceinline__ uint2 load_bits(const uint16_t *row, int64_t g) const
    {
        if (vector) return *reinterpret_cast<const uint2 *>(row + 4 * g);
        uint32_t e[4];
#pragma unroll
        for (int i = 0; i < 4; i++) e[i] = 4 * g + i < width ? row[4 * g + i] : 0u;
        return make_uint2(e[0] | e[1] << 16, e[2] | e[3] << 16);
    }

    __device__ __forceinline__ h3_lanes<4> load(const uint16_t *row, int64_t g) const { return widen(load_bits(row, g)); }

    static __device__ __forceinline__ h3_lanes<4> widen(uint2 bits)
    {
        h3_lanes<4> lanes;
        lanes.v[0] = __uint_as_float(bits.x << 16);
        lanes.v[1] = __uint_as_float(bits.x & 0xffff0000u);
        lanes.v[2] = __uint_as_float(bits.y << 16);
        lanes.v[3] = __uint_as_float(bits.y & 0xffff0000u);
        return lanes;
    }

    __device__ __forceinline__ h3_lanes<4> load_or_nan(const uint16_t *row, int64_t g) const
    {
        if (row) return load(row, g);
        return h3_load_or_nan<4>(NULL, 0);
    }

    __device__ __forceinline__ void store(uint16_t *row, int64_t g, const h3_lanes<4> &lanes) const
    {
        if (vector) {
            h3_store<4>(row + 4 * g, lanes);
            return;
        }
        for (int i = 0; i < 4 && 4 * g + i < width; i++) row[4 * g + i] = h3_bf(lanes.v[i]);
    }
};

/* The contract's sum of the threads' sums, on every thread of the row. `warps` is shared by the row's four warps. */
template <int THREADS> __device__ __forceinline__ float row_sum(float sum, float *warps, int thread)
{
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) sum = sum + __shfl_down_sync(H3_FULL_WARP, sum, offset);
    if (THREADS == 32) return (__shfl_sync(H3_FULL_WARP, sum, 0) + 0.0f) + 0.0f;
    if (thread % 32 == 0) warps[thread / 32] = sum;
    __syncthreads();
    return (warps[0] + warps[2]) + (warps[1] + warps[3]);
}

/* r of a row: one thread's part of the sum of squares goes through row_sum. */
__device__ __forceinline__ float inverse_rms(float sum, int64_t width, float epsilon)
{
    return 1.0f / sqrtf(sum / (float)width + epsilon);
}

__device__ __forceinline__ float add_squares(float sum, const h3_lanes<4> &x)
{
#pragma unroll
    for (int i = 0; i < 4; i++) sum = sum + x.v[i] * x.v[i];
    return sum;
}

__device__ __forceinline__ h3_lanes<4> one_plus(h3_lanes<4> scale)
{
#pragma unroll
    for (int i = 0; i < 4; i++) scale.v[i] = h3_round(1.0f + scale.v[i]);
    return scale;
}

__device__ __forceinline__ void finish_group(const h3_norm &n, const groups &shape, int64_t row, const uint16_t *scale, const uint16_t *shift,
                                             int64_t g, const h3_lanes<4> &x, float r)
{
    const h3_lanes<4> w = shape.load(n.weight, g);
    h3_lanes<4> y;
#pragma unroll
    for (int i = 0; i < 4; i++) y.v[i] = w.v[i] * (r * x.v[i]);
    if (n.scale) {
        const h3_lanes<4> gain = one_plus(shape.load_or_nan(scale, g)), add = shape.load_or_nan(shift, g);
#pragma unroll
        for (int i = 0; i < 4; i++) y.v[i] = h3_round(h3_round(y.v[i]) * gain.v[i]) + add.v[i];
    }
    shape.store(n.out + row * n.width, g, y);
}

template <int THREADS> __global__ void __launch_bounds__(H3_THREADS) norm_kernel(h3_norm n, groups shape)
{
    __shared__ float warps[H3_THREADS / 32];
    constexpr int KEEP = THREADS == 32 ? 1 : KEPT;
    const int thread = (int)threadIdx.x % THREADS, place = (int)threadIdx.x / THREADS;
    const int64_t row = (int64_t)blockIdx.x * (H3_THREADS / THREADS) + place;
    const bool inside = row < n.rows; /* the others only keep the barrier company */
    const uint16_t *x = n.x + (inside ? row : 0) * n.width;
    uint2 kept[KEEP];
#pragma unroll
    for (int i = 0; i < KEEP; i++) {
        const int64_t g = thread + i * THREADS;
        kept[i] = 4 * g < n.width ? shape.load_bits(x, g) : make_uint2(0, 0); /* zeros leave a sum of squares as it is */
    }
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < KEEP; i++) sum = add_squares(sum, groups::widen(kept[i]));
    for (int64_t g = thread + KEEP * THREADS; 4 * g < n.width; g += THREADS) sum = add_squares(sum, shape.load(x, g));
    const float r = inverse_rms(row_sum<THREADS>(sum, warps + place * 4, thread), n.width, n.epsilon);
    if (!inside) return;
    const uint16_t *scale = n.scale ? h3_table_row(n.scale, n.row_index, row, n.table_rows, n.width) : NULL;
    const uint16_t *shift = n.scale ? h3_table_row(n.shift, n.row_index, row, n.table_rows, n.width) : NULL;
#pragma unroll
    for (int i = 0; i < KEEP; i++) {
        const int64_t g = thread + i * THREADS;
        if (4 * g < n.width) finish_group(n, shape, row, scale, shift, g, groups::widen(kept[i]), r);
    }
    for (int64_t g = thread + KEEP * THREADS; 4 * g < n.width; g += THREADS) finish_group(n, shape, row, scale, shift, g, shape.load(x, g), r);
}

/* dn: the gradient that reaches the norm's own output. */
__device__ __forceinline__ h3_lanes<4> norm_gradient(const h3_norm &n, const groups &shape, const uint16_t *scale, h3_lanes<4> dm, int64_t g)
{
    if (!n.scale) return dm;
    const h3_lanes<4> gain = one_plus(shape.load_or_nan(scale, g));
#pragma unroll
    for (int i = 0; i < 4; i++) dm.v[i] = h3_round(dm.v[i] * gain.v[i]);
    return dm;
}

/* Row gradients of a group, and its terms of the sum for dx. */
__device__ __forceinline__ float gradient_terms(const h3_norm &n, const groups &shape, int64_t row, const uint16_t *scale, int64_t g, float r, float sum)
{
    const int64_t start = row * n.width;
    const h3_lanes<4> x = shape.load(n.x + start, g), w = shape.load(n.weight, g), dm = shape.load(n.dout + start, g);
    const h3_lanes<4> dn = norm_gradient(n, shape, scale, dm, g);
    h3_lanes<4> dscale;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float xh = r * x.v[i];
        dscale.v[i] = dm.v[i] * h3_round(w.v[i] * xh);
        sum = sum + (w.v[i] * dn.v[i]) * xh;
    }
    if (n.dscale) shape.store(n.dscale + start, g, dscale);
    if (n.dshift) shape.store(n.dshift + start, g, dm);
    return sum;
}

template <int THREADS> __global__ void __launch_bounds__(H3_THREADS) norm_gradient_kernel(h3_norm n, groups shape)
{
    __shared__ float square_warps[H3_THREADS / 32], term_warps[H3_THREADS / 32];
    const int thread = (int)threadIdx.x % THREADS, place = (int)threadIdx.x / THREADS;
    const int64_t row = (int64_t)blockIdx.x * (H3_THREADS / THREADS) + place;
    const bool inside = row < n.rows;
    const int64_t width = inside ? n.width : 0, start = inside ? row * n.width : 0;
    float sum = 0.0f;
    for (int64_t g = thread; 4 * g < width; g += THREADS) sum = add_squares(sum, shape.load(n.x + start, g));
    const float r = inverse_rms(row_sum<THREADS>(sum, square_warps + place * 4, thread), n.width, n.epsilon);
    const uint16_t *scale = inside && n.scale ? h3_table_row(n.scale, n.row_index, row, n.table_rows, n.width) : NULL;
    sum = 0.0f;
    for (int64_t g = thread; 4 * g < width; g += THREADS) sum = gradient_terms(n, shape, row, scale, g, r, sum);
    const float c = row_sum<THREADS>(sum, term_warps + place * 4, thread) / (float)n.width;
    if (!inside) return;
    if (n.inverse && thread == 0) n.inverse[row] = r;
    if (!n.dx) return;
    for (int64_t g = thread; 4 * g < width; g += THREADS) {
        const h3_lanes<4> x = shape.load(n.x + start, g), w = shape.load(n.weight, g);
        h3_lanes<4> d = norm_gradient(n, shape, scale, shape.load(n.dout + start, g), g);
#pragma unroll
        for (int i = 0; i < 4; i++) d.v[i] = r * (w.v[i] * d.v[i] - (r * x.v[i]) * c);
        shape.store(n.dx + start, g, d);
    }
}

/* One column of one block of rows: the sum of dn xh. */
__global__ void __launch_bounds__(H3_THREADS) norm_weight_kernel(h3_norm n)
{
    int64_t block, column;
    h3_divide(h3_thread(), n.width, &block, &column);
    const int64_t first = block * H3_NORM_BLOCK;
    if (first >= n.rows) return;
    const int64_t end = first + H3_NORM_BLOCK < n.rows ? first + H3_NORM_BLOCK : n.rows;
    float sum = 0.0f;
#pragma unroll 8
    for (int64_t row = first; row < end; row++) {
        const int64_t at = row * n.width + column;
        float dn = h3_float(n.dout[at]);
        if (n.scale) {
            const uint16_t *scale = h3_table_row(n.scale, n.row_index, row, n.table_rows, n.width);
            dn = h3_round(dn * h3_round(1.0f + h3_load_or_nan<1>(scale, column).v[0]));
        }
        sum = fmaf(dn, n.inverse[row] * h3_float(n.x[at]), sum);
    }
    n.partial[block * n.width + column] = sum;
}

/* dw = bf(sum of the blocks' sums, ascending). */
__global__ void __launch_bounds__(H3_THREADS) norm_weight_sum_kernel(h3_norm n, int64_t blocks)
{
    const int64_t column = h3_thread();
    if (column >= n.width) return;
    float sum = 0.0f;
#pragma unroll 16
    for (int64_t block = 0; block < blocks; block++) sum = sum + n.partial[block * n.width + column];
    n.dweight[column] = h3_bf(sum);
}

bool four_at_a_time(const h3_norm *n)
{
    const void *const memory[] = {n->x, n->weight, n->shift, n->scale, n->out, n->dout, n->dx, n->dshift, n->dscale};
    bool aligned = n->width % 4 == 0;
    for (const void *area : memory) aligned = aligned && h3_aligned(area, 8);
    return aligned;
}

} // namespace

extern "C" int h3_norm_run_forward(h3_call *call, const h3_norm *n)
{
    const groups shape = {n->width, four_at_a_time(n)};
    if (n->rows == 0) return 0;
    if (n->width <= 128) return h3_launch(call, "norm_warp", norm_kernel<32>, dim3((unsigned)h3_groups(n->rows, 8)), H3_THREADS, 0, *n, shape);
    return h3_launch(call, "norm", norm_kernel<128>, dim3((unsigned)h3_groups(n->rows, 2)), H3_THREADS, 0, *n, shape);
}

extern "C" int h3_norm_run_backward(h3_call *call, const h3_norm *n)
{
    const groups shape = {n->width, four_at_a_time(n)};
    const int64_t blocks = h3_groups(n->rows, H3_NORM_BLOCK);
    int failed = 0;
    if (n->rows > 0 && n->width <= 128)
        failed = h3_launch(call, "norm_gradient_warp", norm_gradient_kernel<32>, dim3((unsigned)h3_groups(n->rows, 8)), H3_THREADS, 0, *n, shape);
    else if (n->rows > 0)
        failed = h3_launch(call, "norm_gradient", norm_gradient_kernel<128>, dim3((unsigned)h3_groups(n->rows, 2)), H3_THREADS, 0, *n, shape);
    if (failed || !n->dweight) return failed;
    if (blocks > 0 && h3_launch(call, "norm_weight", norm_weight_kernel, h3_grid(blocks * n->width), H3_THREADS, 0, *n)) return 1;
    return h3_launch(call, "norm_weight_sum", norm_weight_sum_kernel, h3_grid(n->width), H3_THREADS, 0, *n, blocks);
}
