/* RMS norm over rows; the contract stands in norm.h. Every operation is rounded by itself. */
#include "device.h"
#include "norm.h"

enum { LANES = 128, GROUP = 4, CHUNK = 256 };

/*
 * Who works on a row. Wide: a block of 128 threads. Otherwise, for rows of at most 128 elements, one warp: the other three warps of
 * the contract have nothing to add.
 */
template <bool Wide> struct team {
    enum { threads = Wide ? 128 : 32 };
    int64_t row;
    int lane;
    H3_DEVICE team here()
    {
        if (Wide) return {(int64_t)blockIdx.x, (int)threadIdx.x};
        return {(int64_t)blockIdx.x * (LANES / H3_WARP) + threadIdx.x / H3_WARP, (int)(threadIdx.x % H3_WARP)};
    }
};

template <bool Wide> H3_DEVICE float contract_sum(float value)
{
    __shared__ float warps[LANES / H3_WARP];
    value = h3_sum_warp(value);
    if (!Wide) {
        value = __shfl_sync(0xffffffffu, value, 0);
        return __fadd_rn(__fadd_rn(value, 0.0f), 0.0f);
    }
    if (threadIdx.x % H3_WARP == 0) warps[threadIdx.x / H3_WARP] = value;
    __syncthreads();
    value = __fadd_rn(__fadd_rn(warps[0], warps[2]), __fadd_rn(warps[1], warps[3]));
    __syncthreads();
    return value;
}

/* Many: GROUP where rows are whole groups, which then are read at once; else 1. The order is the same. */
template <bool Bf16, bool Wide, int Many> H3_DEVICE float reciprocal_rms(const h3_norm_rows &norm, int64_t first, int lane)
{
    float sum = 0.0f;
    for (int64_t group = (int64_t)lane * GROUP; group < norm.width; group += LANES * GROUP) {
        for (int e = 0; e < GROUP && group + e < norm.width; e += Many) {
            float x[Many];
            h3_load_pack<Bf16, Many>(x, norm.x, first + group + e);
            for (int i = 0; i < Many; i++) sum = __fadd_rn(sum, __fmul_rn(x[i], x[i]));
        }
    }
    float mean = __fdiv_rn(contract_sum<Wide>(sum), (float)norm.width);
    return __frcp_rn(__fsqrt_rn(__fadd_rn(mean, norm.epsilon)));
}

/* The table element at which a row's chunks start; -1 when the row's index is none of the table's. */
H3_DEVICE int64_t table_row(const h3_norm_rows &norm, int64_t row)
{
    int32_t index = norm.index[row];
    return index >= 0 && index < norm.limit ? index * norm.stride : -1;
}

template <bool Bf16> H3_DEVICE float gain_from(float scale) { return h3_round<Bf16>(__fadd_rn(1.0f, scale)); }

template <bool Bf16> H3_DEVICE float gain_of(const h3_norm_rows &norm, int64_t table, int64_t j)
{
    return gain_from<Bf16>(table < 0 ? NAN : h3_load<Bf16>(norm.table, table + norm.scale + j));
}

/* n = bf(n * gain) + shift for the elements j, j + 1, ... of a row. */
template <bool Bf16, int Many> H3_DEVICE void modulate(float (&n)[Many], const h3_norm_rows &norm, int64_t table, int64_t j)
{
    float scale[Many], shift[Many];
    for (int e = 0; e < Many; e++) scale[e] = shift[e] = NAN;
    if (table >= 0) {
        h3_load_pack<Bf16, Many>(scale, norm.table, table + norm.scale + j);
        h3_load_pack<Bf16, Many>(shift, norm.table, table + norm.shift + j);
    }
    for (int e = 0; e < Many; e++) n[e] = __fadd_rn(h3_round<Bf16>(__fmul_rn(n[e], gain_from<Bf16>(scale[e]))), shift[e]);
}

template <bool Bf16, bool Wide, int Many> static __global__ void norm_forward(h3_norm_rows norm, void *y)
{
    team<Wide> us = team<Wide>::here();
    if (us.row >= norm.rows) return;
    int64_t first = us.row * norm.width, table = norm.index != nullptr ? table_row(norm, us.row) : 0;
    float r = reciprocal_rms<Bf16, Wide, Many>(norm, first, us.lane);
    for (int64_t j = us.lane * Many; j < norm.width; j += team<Wide>::threads * Many) {
        float n[Many], weight[Many];
        h3_load_pack<Bf16, Many>(n, norm.x, first + j);
        h3_load_pack<Bf16, Many>(weight, norm.weight, j);
        for (int e = 0; e < Many; e++) n[e] = h3_round<Bf16>(__fmul_rn(weight[e], __fmul_rn(r, n[e])));
        if (norm.index != nullptr) modulate<Bf16, Many>(n, norm, table, j);
        h3_store_pack<Bf16, Many>(y, first + j, n);
    }
}

/* The norm's own upstream gradient: dy behind the modulation. */
template <bool Bf16> H3_DEVICE float upstream(const h3_norm_rows &norm, const void *dy, int64_t i, int64_t table, int64_t j)
{
    float up = h3_load<Bf16>(dy, i);
    return norm.index != nullptr ? h3_round<Bf16>(__fmul_rn(up, gain_of<Bf16>(norm, table, j))) : up;
}

template <bool Bf16> H3_DEVICE void modulation_gradients(const h3_norm_rows &norm, const h3_norm_gradients &g, int64_t i, int64_t j, float xh)
{
    float up = h3_load<Bf16>(g.dy, i), n = h3_round<Bf16>(__fmul_rn(h3_load<Bf16>(norm.weight, j), xh));
    if (g.dshift != nullptr) h3_store<Bf16>(g.dshift, i, up);
    if (g.dscale != nullptr) h3_store<Bf16>(g.dscale, i, __fmul_rn(up, n));
}

template <bool Bf16, bool Wide> H3_DEVICE void input_gradient(const h3_norm_rows &norm, const h3_norm_gradients &g, team<Wide> us, float r, int64_t table)
{
    int64_t first = us.row * norm.width;
    float sum = 0.0f;
    for (int64_t group = (int64_t)us.lane * GROUP; group < norm.width; group += LANES * GROUP) {
        for (int64_t j = group; j < group + GROUP && j < norm.width; j++) {
            float weighted = __fmul_rn(upstream<Bf16>(norm, g.dy, first + j, table, j), h3_load<Bf16>(norm.weight, j));
            sum = __fadd_rn(sum, __fmul_rn(weighted, __fmul_rn(r, h3_load<Bf16>(norm.x, first + j))));
        }
    }
    float c = __fdiv_rn(contract_sum<Wide>(sum), (float)norm.width);
    for (int64_t j = us.lane; j < norm.width; j += team<Wide>::threads) {
        float weighted = __fmul_rn(upstream<Bf16>(norm, g.dy, first + j, table, j), h3_load<Bf16>(norm.weight, j));
        float xh = __fmul_rn(r, h3_load<Bf16>(norm.x, first + j));
        h3_store<Bf16>(g.dx, first + j, __fmul_rn(r, __fsub_rn(weighted, __fmul_rn(xh, c))));
    }
}

template <bool Bf16, bool Wide> static __global__ void norm_backward(h3_norm_rows norm, h3_norm_gradients g, float *reciprocals)
{
    team<Wide> us = team<Wide>::here();
    if (us.row >= norm.rows) return;
    int64_t first = us.row * norm.width, table = norm.index != nullptr ? table_row(norm, us.row) : 0;
    float r = reciprocal_rms<Bf16, Wide, 1>(norm, first, us.lane);
    if (us.lane == 0) reciprocals[us.row] = r;
    if (norm.index != nullptr) {
        for (int64_t j = us.lane; j < norm.width; j += team<Wide>::threads)
            modulation_gradients<Bf16>(norm, g, first + j, j, __fmul_rn(r, h3_load<Bf16>(norm.x, first + j)));
    }
    if (g.dx != nullptr) input_gradient<Bf16, Wide>(norm, g, us, r, table);
}

/* A thread adds one column over one chunk of rows. */
template <bool Bf16> static __global__ void weight_partials(h3_norm_rows norm, const void *dy, const float *reciprocals, void *partials, int64_t chunks)
{
    typedef typename h3_sum_of<Bf16>::type sum_type;
    for (int64_t i = h3_first(); i < chunks * norm.width; i += h3_stride()) {
        int64_t j = i % norm.width, begin = i / norm.width * CHUNK, end = begin + CHUNK < norm.rows ? begin + CHUNK : norm.rows;
        sum_type sum = 0;
        for (int64_t row = begin; row < end; row++) {
            int64_t element = row * norm.width + j, table = norm.index != nullptr ? table_row(norm, row) : 0;
            float xh = __fmul_rn(reciprocals[row], h3_load<Bf16>(norm.x, element));
            sum += __fmul_rn(upstream<Bf16>(norm, dy, element, table, j), xh);
        }
        ((sum_type *)partials)[i] = sum;
    }
}

template <bool Bf16> static __global__ void weight_gradient(const void *partials, void *dweight, int64_t chunks, int64_t width)
{
    typedef typename h3_sum_of<Bf16>::type sum_type;
    for (int64_t j = h3_first(); j < width; j += h3_stride()) {
        sum_type sum = 0;
        for (int64_t chunk = 0; chunk < chunks; chunk++) sum += ((const sum_type *)partials)[chunk * width + j];
        h3_store<Bf16>(dweight, j, (float)sum);
    }
}

h3_norm_workspace h3_take_norm(h3_arena &arena, int64_t rows, int64_t width, bool bf16)
{
    int64_t chunks = (rows + CHUNK - 1) / CHUNK;
    return {h3_take<float>(arena, rows), h3_take_bytes(arena, (size_t)(chunks * width) * (bf16 ? sizeof(float) : sizeof(double)))};
}

/* Blocks of 128 threads, one row or four rows each. */
static unsigned row_blocks(const h3_norm_rows &norm, bool wide) { return (unsigned)(wide ? norm.rows : (norm.rows + 3) / 4); }

int h3_norm_forward_rows(const h3_check &check, const h3_norm_rows &norm, void *y)
{
    bool wide = norm.width > LANES, packs = norm.bf16 && h3_in_packs(norm.width, GROUP, {norm.x, norm.weight, norm.table, y});
    auto kernel = packs       ? (wide ? norm_forward<true, true, GROUP> : norm_forward<true, false, GROUP>)
                  : norm.bf16 ? (wide ? norm_forward<true, true, 1> : norm_forward<true, false, 1>)
                              : (wide ? norm_forward<false, true, 1> : norm_forward<false, false, 1>);
    return h3_launch(check, "rmsnorm", kernel, row_blocks(norm, wide), LANES, norm, y);
}

int h3_norm_backward_rows(const h3_check &check, const h3_norm_rows &norm, const h3_norm_gradients &gradients, const h3_norm_workspace &workspace)
{
    enum { COLUMNS = 64 };
    bool wide = norm.width > LANES;
    auto kernel = norm.bf16 ? (wide ? norm_backward<true, true> : norm_backward<true, false>)
                            : (wide ? norm_backward<false, true> : norm_backward<false, false>);
    if (h3_launch(check, "rmsnorm backward", kernel, row_blocks(norm, wide), LANES, norm, gradients, workspace.reciprocals)) return 1;
    if (gradients.dweight == nullptr) return 0;
    int64_t chunks = (norm.rows + CHUNK - 1) / CHUNK;
    if (h3_launch(check, "rmsnorm weight sums", norm.bf16 ? weight_partials<true> : weight_partials<false>,
                  h3_blocks(chunks * norm.width, H3_THREADS), H3_THREADS, norm, gradients.dy, workspace.reciprocals, workspace.partials, chunks))
        return 1;
    return h3_launch(check, "rmsnorm weight gradient", norm.bf16 ? weight_gradient<true> : weight_gradient<false>,
                     h3_blocks(norm.width, COLUMNS), COLUMNS, workspace.partials, gradients.dweight, chunks, norm.width);
}
