/*
 * Full attention, backward. With P_ij = exp2(fma(s_ij, c, -(lse_i log2(e)))), c = alpha log2(e), dP_ij = do_i . v_j,
 * delta_i = do_i . o_i and dS_ij = P_ij (dP_ij - delta_i), all FP32, then rounded to BF16 for their products (exp2 as in attention.cu):
 *     dv_j = bf(sum over i of bf(P_ij) do_i)
 *     dk_j = bf(alpha sum over i of bf(dS_ij) q_i)
 *     dq_i = bf(alpha sum over j of bf(dS_ij) k_j)
 * s and dP are chains of k16 tensor-core steps over d, the sums chains of k16 steps over i or j, ascending, in one accumulator.
 * delta adds the channels 64 n + 2 l and 64 n + 2 l + 1, n ascending, by fused steps in lane l of a warp; lanes meet as i + (i xor 16),
 * 8, 4, 2, 1.
 *
 * One pass walks the queries for 128 keys at a time (dk, dv), one the keys for 128 queries (dq). Each computes P and dS anew: nothing is
 * added across CTAs, and memory is linear in the number of rows. Every result's bits are independent of the tiles.
 */
#include "attention.cuh"
#include "gradient.cuh"

namespace {

constexpr int WALKED = 32; /* rows of the walked side in a buffer */

template <int DEPTH> struct backward_memory {
    static constexpr int OWN = H3_OWN_ROWS * DEPTH, TILE = WALKED * DEPTH; /* elements; two own tiles, two walked ones in two buffers */
    static constexpr size_t SHARED = (size_t)(2 * OWN + 4 * TILE) * sizeof(uint16_t) + 4 * WALKED * sizeof(float);
};

/* delta of one (item, row, head); a warp each. Row-major like q, so that neighbours read neighbours. */
__global__ void __launch_bounds__(H3_THREADS) delta_kernel(h3_attention a)
{
    const int64_t index = h3_thread() / 32;
    const int lane = (int)threadIdx.x % 32;
    if (index >= a.batch * a.queries * a.heads) return;
    int64_t row, head, item;
    h3_divide(index, a.heads, &row, &head);
    h3_divide(row, a.queries, &item, &row);
    const uint16_t *dout = a.dout + index * a.head_dim, *out = a.out + index * a.head_dim;
    float sum = 0.0f;
    for (int d = 2 * lane; d < a.head_dim; d += 64) {
        sum = fmaf(h3_float(dout[d]), h3_float(out[d]), sum);
        if (d + 1 < a.head_dim) sum = fmaf(h3_float(dout[d + 1]), h3_float(out[d + 1]), sum);
    }
#pragma unroll
    for (int other = 16; other > 0; other /= 2) sum = sum + __shfl_xor_sync(H3_FULL_WARP, sum, other);
    if (lane == 0) a.delta[(item * a.heads + head) * a.queries + row] = sum;
}

/* The probability, and its rounded pair with the rounded pair of P (dP - delta). */
struct pair_gradient {
    uint32_t p, ds;
};

__device__ __forceinline__ pair_gradient differentiate(float score0, float score1, float dp0, float dp1, float octaves, float lse0, float lse1,
                                                       float delta0, float delta1)
{
    const float p0 = probability(score0, octaves, lse0), p1 = probability(score1, octaves, lse1);
    pair_gradient g;
    g.p = h3_bf_pair(p0, p1);
    g.ds = h3_bf_pair(score_gradient(p0, dp0, delta0), score_gradient(p1, dp1, delta1));
    return g;
}

/* lse log2(e) and delta of the walked queries; a query that is not there gets +inf, so P = +0, and 0. */
__device__ __forceinline__ void load_statistics(float *lse, float *delta, const h3_attention &a, int64_t head, int64_t first)
{
    const int i = (int)threadIdx.x;
    if (i >= WALKED) return;
    const bool inside = first + i < a.queries;
    lse[i] = inside ? a.lse[head * a.queries + first + i] * H3_LOG2_E : INFINITY;
    delta[i] = inside ? a.delta[head * a.queries + first + i] : 0.0f;
}

template <int DEPTH> __device__ __forceinline__ void scale_sums(float (&sums)[DEPTH / 8][4], float scale)
{
#pragma unroll
    for (int j = 0; j < DEPTH / 8; j++) {
#pragma unroll
        for (int e = 0; e < 4; e++) sums[j][e] = scale * sums[j][e];
    }
}

/* scores[j] as h3_dot_rows, with the left operand read from its tile step by step. */
template <int DEPTH> __device__ __forceinline__ void dot_tiles(float (&scores)[WALKED / 8][4], const uint16_t *left, const uint16_t *right, int own, int lane)
{
#pragma unroll
    for (int j = 0; j < WALKED / 8; j++) {
#pragma unroll
        for (int e = 0; e < 4; e++) scores[j][e] = 0.0f;
    }
#pragma unroll
    for (int step = 0; step < DEPTH / 16; step++) {
        uint32_t a[4], b[4];
        h3_load_left<DEPTH / 8>(a, left, own, step, lane);
#pragma unroll
        for (int j = 0; j < WALKED / 16; j++) {
            h3_load_right<DEPTH / 8>(b, right, 16 * j, step, lane);
            h3_mma(scores[2 * j], a, b[0], b[1]);
            h3_mma(scores[2 * j + 1], a, b[2], b[3]);
        }
    }
}

/* dk and dv of 128 keys: rows are keys, columns queries. */
template <int DEPTH> __global__ void __launch_bounds__(H3_HEAD_THREADS, 1) attention_key_kernel(h3_head_work w)
{
    typedef backward_memory<DEPTH> memory;
    uint16_t *key = reinterpret_cast<uint16_t *>(h3_shared_memory());
    uint16_t *value = key + memory::OWN, *query = value + memory::OWN, *dout = query + 2 * memory::TILE;
    float *lse = reinterpret_cast<float *>(dout + 2 * memory::TILE), *delta = lse + 2 * WALKED;
    const int lane = (int)threadIdx.x % 32, own = (int)threadIdx.x / 32 * 16;
    int64_t head, tile;
    h3_divide(blockIdx.x, w.tiles, &head, &tile);
    const int64_t first = tile * H3_OWN_ROWS, steps = (w.a.queries + WALKED - 1) / WALKED;
    const h3_head_rows queries(w.a, head, w.a.queries), keys(w.a, head, w.a.keys);
    const bool works = first + own < w.a.keys;

    h3_load_rows<H3_OWN_ROWS, DEPTH>(key, w.a.k, keys, first, w.whole_rows);
    h3_load_rows<H3_OWN_ROWS, DEPTH>(value, w.a.v, keys, first, w.whole_rows);
    h3_load_rows<WALKED, DEPTH>(query, w.a.q, queries, 0, w.whole_rows);
    h3_load_rows<WALKED, DEPTH>(dout, w.a.dout, queries, 0, w.whole_rows);
    load_statistics(lse, delta, w.a, head, 0);
    h3_copy_commit();
    float dk[DEPTH / 8][4] = {}, dv[DEPTH / 8][4] = {};
    for (int64_t step = 0; step < steps; step++) {
        const int buffer = (int)(step % 2), other = 1 - buffer;
        h3_copy_wait<0>();
        __syncthreads(); /* this tile has come, and everyone is done with the last one, whose buffer is filled next */
        if (step + 1 < steps) {
            h3_load_rows<WALKED, DEPTH>(query + other * memory::TILE, w.a.q, queries, (step + 1) * WALKED, w.whole_rows);
            h3_load_rows<WALKED, DEPTH>(dout + other * memory::TILE, w.a.dout, queries, (step + 1) * WALKED, w.whole_rows);
            load_statistics(lse + other * WALKED, delta + other * WALKED, w.a, head, (step + 1) * WALKED);
        }
        h3_copy_commit();
        if (!works) continue;
        float scores[WALKED / 8][4], dp[WALKED / 8][4];
        uint32_t p[WALKED / 8][2], ds[WALKED / 8][2];
        dot_tiles<DEPTH>(scores, key, query + buffer * memory::TILE, own, lane);
        dot_tiles<DEPTH>(dp, value, dout + buffer * memory::TILE, own, lane);
#pragma unroll
        for (int j = 0; j < WALKED / 8; j++) {
            const int column = buffer * WALKED + 8 * j + lane % 4 * 2;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const pair_gradient g = differentiate(scores[j][2 * half], scores[j][2 * half + 1], dp[j][2 * half], dp[j][2 * half + 1], w.octaves,
                                                      lse[column], lse[column + 1], delta[column], delta[column + 1]);
                p[j][half] = g.p;
                ds[j][half] = g.ds;
            }
        }
        h3_add_rows<DEPTH, WALKED>(dv, p, dout + buffer * memory::TILE, lane);
        h3_add_rows<DEPTH, WALKED>(dk, ds, query + buffer * memory::TILE, lane);
    }
    h3_copy_wait<0>();
    if (!works) return;
    scale_sums<DEPTH>(dk, w.a.alpha);
    if (w.a.dk) h3_write_rows<DEPTH>(w.a.dk, key, keys, first, dk, lane, w.whole_rows);
    if (w.a.dv) h3_write_rows<DEPTH>(w.a.dv, value, keys, first, dv, lane, w.whole_rows);
}

/* dq of 128 queries: rows are queries, columns keys. */
template <int DEPTH> __global__ void __launch_bounds__(H3_HEAD_THREADS, 1) attention_query_kernel(h3_head_work w)
{
    typedef backward_memory<DEPTH> memory;
    uint16_t *query = reinterpret_cast<uint16_t *>(h3_shared_memory());
    uint16_t *dout = query + memory::OWN, *key = dout + memory::OWN, *value = key + 2 * memory::TILE;
    const int lane = (int)threadIdx.x % 32, own = (int)threadIdx.x / 32 * 16;
    int64_t head, tile;
    h3_divide(blockIdx.x, w.tiles, &head, &tile);
    const int64_t first = tile * H3_OWN_ROWS, steps = (w.a.keys + WALKED - 1) / WALKED;
    const h3_head_rows queries(w.a, head, w.a.queries), keys(w.a, head, w.a.keys);
    const bool works = first + own < w.a.queries;
    float lse[2], delta[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int64_t row = first + own + lane / 4 + 8 * half;
        lse[half] = row < w.a.queries ? w.a.lse[head * w.a.queries + row] * H3_LOG2_E : INFINITY;
        delta[half] = row < w.a.queries ? w.a.delta[head * w.a.queries + row] : 0.0f;
    }

    h3_load_rows<H3_OWN_ROWS, DEPTH>(query, w.a.q, queries, first, w.whole_rows);
    h3_load_rows<H3_OWN_ROWS, DEPTH>(dout, w.a.dout, queries, first, w.whole_rows);
    h3_load_rows<WALKED, DEPTH>(key, w.a.k, keys, 0, w.whole_rows);
    h3_load_rows<WALKED, DEPTH>(value, w.a.v, keys, 0, w.whole_rows);
    h3_copy_commit();
    float dq[DEPTH / 8][4] = {};
    for (int64_t step = 0; step < steps; step++) {
        const int buffer = (int)(step % 2), other = 1 - buffer;
        h3_copy_wait<0>();
        __syncthreads(); /* as above */
        if (step + 1 < steps) {
            h3_load_rows<WALKED, DEPTH>(key + other * memory::TILE, w.a.k, keys, (step + 1) * WALKED, w.whole_rows);
            h3_load_rows<WALKED, DEPTH>(value + other * memory::TILE, w.a.v, keys, (step + 1) * WALKED, w.whole_rows);
        }
        h3_copy_commit();
        if (!works) continue;
        float scores[WALKED / 8][4], dp[WALKED / 8][4];
        uint32_t ds[WALKED / 8][2];
        dot_tiles<DEPTH>(scores, query, key + buffer * memory::TILE, own, lane);
        dot_tiles<DEPTH>(dp, dout, value + buffer * memory::TILE, own, lane);
#pragma unroll
        for (int j = 0; j < WALKED / 8; j++) {
            const int64_t column = step * WALKED + 8 * j + lane % 4 * 2; /* keys that are not there: P would be exp(-lse) */
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const pair_gradient g = differentiate(column < w.a.keys ? scores[j][2 * half] : -INFINITY,
                                                      column + 1 < w.a.keys ? scores[j][2 * half + 1] : -INFINITY, dp[j][2 * half],
                                                      dp[j][2 * half + 1], w.octaves, lse[half], lse[half], delta[half], delta[half]);
                ds[j][half] = g.ds;
            }
        }
        h3_add_rows<DEPTH, WALKED>(dq, ds, key + buffer * memory::TILE, lane);
    }
    h3_copy_wait<0>();
    if (!works) return;
    scale_sums<DEPTH>(dq, w.a.alpha);
    h3_write_rows<DEPTH>(w.a.dq, query, queries, first, dq, lane, w.whole_rows);
}

template <int DEPTH> int launch(h3_call *call, h3_head_work w)
{
    const int64_t heads = w.a.batch * w.a.heads, deltas = heads * w.a.queries;
    if (h3_launch(call, "attention_delta", delta_kernel, h3_grid(deltas * 32), H3_THREADS, 0, w.a)) return 1;
    w.tiles = h3_groups(w.a.keys, H3_OWN_ROWS);
    if ((w.a.dk || w.a.dv) && h3_launch(call, "attention_key_gradient", attention_key_kernel<DEPTH>, dim3((unsigned)(heads * w.tiles)), H3_HEAD_THREADS,
                                        backward_memory<DEPTH>::SHARED, w))
        return 1;
    w.tiles = h3_groups(w.a.queries, H3_OWN_ROWS);
    if (!w.a.dq) return 0;
    return h3_launch(call, "attention_query_gradient", attention_query_kernel<DEPTH>, dim3((unsigned)(heads * w.tiles)), H3_HEAD_THREADS,
                     backward_memory<DEPTH>::SHARED, w);
}

} // namespace

extern "C" int h3_attention_run_backward(h3_call *call, const h3_attention *a)
{
    if (h3_attention_hopper_backward_fits(a)) return h3_attention_hopper_run_backward(call, a);
    h3_head_work w;
    w.a = *a;
    w.octaves = a->alpha * H3_LOG2_E;
    w.whole_rows = h3_whole_rows(a);
    if (a->head_dim <= 16) return launch<16>(call, w);
    if (a->head_dim <= 32) return launch<32>(call, w);
    if (a->head_dim <= 64) return launch<64>(call, w);
    return launch<128>(call, w);
}
