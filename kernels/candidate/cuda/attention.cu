/*
 * Full attention, forward: o = softmax(q k^T / sqrt(D)) v for every head, saved[0] = log-sum-exp [B, N, Rq].
 *
 * Contract attention-tc-k16-kv64-online-v2, for each query row by itself; tiles of 64 keys, ascending:
 *     s_j = chain of k16 tensor-core steps over d, starting at +0
 *     m' = max(m, max of the tile's s_j), m = -inf at first;  t = exp2(c (m - m')) with c = alpha log2(e)
 *     p_j = exp2(fma(s_j, c, -(m' c))), P_j = bf(p_j); exp2 is the GPU's instruction, and +0 where that would be subnormal
 *     the sums of p_j and of P_j in eight parts, the columns 8 i + e (e = 0..7), i ascending; each is multiplied by t and goes on with them
 *     o_d = t o_d, then the chain goes on with k16 steps over the tile's P_j v_jd, j ascending
 * At the end the parts meet as ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)); o_d = bf(o_d r), r = 1 / sum of P, lse = alpha m + log(sum of p).
 * The row is normalised by the sum of what was multiplied, so its weights add up to one: that error is smaller than with the
 * sum of p, at every sharpness. t is applied always (a kernel may leave it out where it is 1), so a row does not see its neighbours.
 */
#include "attention.cuh"
#include "softmax.cuh"

namespace {

template <int DEPTH> struct forward_memory {
    static constexpr int QUERY = H3_OWN_ROWS * DEPTH, TILE = KEYS * DEPTH; /* elements; keys and values in two buffers each */
    static constexpr size_t SHARED = (size_t)(QUERY + 4 * TILE) * sizeof(uint16_t);
};

/* Keys at and behind `count` of a tile get the score -inf, so the probability +0. */
__device__ __forceinline__ void mask_keys(float (&scores)[KEYS / 8][4], int64_t count, int lane)
{
#pragma unroll
    for (int j = 0; j < KEYS / 8; j++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            if (8 * j + lane % 4 * 2 + e % 2 >= count) scores[j][e] = -INFINITY;
        }
    }
}

template <int DEPTH> __device__ __forceinline__ void finish_rows(const h3_head_work &w, int64_t head, const h3_head_rows &queries, int64_t first,
                                                                 uint16_t *staging, const softmax_state &state, float (&out)[DEPTH / 8][4], int lane)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float sum = sum_of_parts(state.sums[half]), inverse = 1.0f / sum_of_parts(state.rounded_sums[half]);
        const int64_t row = first + (int)threadIdx.x / 32 * 16 + lane / 4 + 8 * half;
#pragma unroll
        for (int j = 0; j < DEPTH / 8; j++) {
            out[j][2 * half] = out[j][2 * half] * inverse;
            out[j][2 * half + 1] = out[j][2 * half + 1] * inverse;
        }
        if (lane % 4 == 0 && row < w.a.queries) w.a.lse[head * w.a.queries + row] = w.a.alpha * state.largest[half] + logf(sum);
    }
    h3_write_rows<DEPTH>(w.a.out, staging, queries, first, out, lane, w.whole_rows);
}

template <int DEPTH> __global__ void __launch_bounds__(H3_HEAD_THREADS, 1) attention_kernel(h3_head_work w)
{
    typedef forward_memory<DEPTH> memory;
    uint16_t *query = reinterpret_cast<uint16_t *>(h3_shared_memory());
    uint16_t *key = query + memory::QUERY, *value = key + 2 * memory::TILE;
    const int lane = (int)threadIdx.x % 32, own = (int)threadIdx.x / 32 * 16;
    int64_t head, tile;
    h3_divide(blockIdx.x, w.tiles, &head, &tile);
    const int64_t first = tile * H3_OWN_ROWS;
    const h3_head_rows queries(w.a, head, w.a.queries), keys(w.a, head, w.a.keys);
    const bool works = first + own < w.a.queries; /* a warp without rows only helps to load */
    const int64_t steps = (w.a.keys + KEYS - 1) / KEYS;

    h3_load_rows<H3_OWN_ROWS, DEPTH>(query, w.a.q, queries, first, w.whole_rows);
    h3_load_rows<KEYS, DEPTH>(key, w.a.k, keys, 0, w.whole_rows);
    h3_copy_commit();
    h3_load_rows<KEYS, DEPTH>(value, w.a.v, keys, 0, w.whole_rows);
    h3_copy_commit();
    uint32_t left[DEPTH / 16][4];
    float out[DEPTH / 8][4] = {};
    softmax_state state;
    begin_softmax(state);
    for (int64_t step = 0; step < steps; step++) {
        const int buffer = (int)(step % 2);
        uint32_t weights[KEYS / 8][2];
        h3_copy_wait<1>();
        __syncthreads(); /* this tile's keys have come; the other buffer's were used up before the values of the last tile */
        if (step == 0) {
#pragma unroll
            for (int i = 0; i < DEPTH / 16; i++) h3_load_left<DEPTH / 8>(left[i], query, own, i, lane);
        }
        if (step + 1 < steps) h3_load_rows<KEYS, DEPTH>(key + (1 - buffer) * memory::TILE, w.a.k, keys, (step + 1) * KEYS, w.whole_rows);
        h3_copy_commit();
        if (works) {
            float scores[KEYS / 8][4], turn[2];
            h3_dot_rows<DEPTH, KEYS>(scores, left, key + buffer * memory::TILE, lane);
            if ((step + 1) * KEYS > w.a.keys) mask_keys(scores, w.a.keys - step * KEYS, lane);
            update_softmax(state, scores, weights, turn, w.octaves);
#pragma unroll
            for (int j = 0; j < DEPTH / 8; j++) {
#pragma unroll
                for (int e = 0; e < 4; e++) out[j][e] = out[j][e] * turn[e / 2];
            }
        }
        h3_copy_wait<1>();
        __syncthreads(); /* this tile's values have come */
        if (step + 1 < steps) h3_load_rows<KEYS, DEPTH>(value + (1 - buffer) * memory::TILE, w.a.v, keys, (step + 1) * KEYS, w.whole_rows);
        h3_copy_commit();
        if (works) h3_add_rows<DEPTH, KEYS>(out, weights, value + buffer * memory::TILE, lane);
    }
    h3_copy_wait<0>();
    if (works) finish_rows<DEPTH>(w, head, queries, first, query, state, out, lane);
}

template <int DEPTH> int launch(h3_call *call, const h3_head_work &w, int64_t ctas)
{
    return h3_launch(call, "attention", attention_kernel<DEPTH>, dim3((unsigned)ctas), H3_HEAD_THREADS, forward_memory<DEPTH>::SHARED, w);
}

} // namespace

extern "C" int h3_attention_run_forward(h3_call *call, const h3_attention *a)
{
    if (h3_attention_hopper_fits(a)) return h3_attention_hopper_run(call, a);
    h3_head_work w;
    w.a = *a;
    w.tiles = h3_groups(a->queries, H3_OWN_ROWS);
    w.octaves = a->alpha * H3_LOG2_E;
    w.whole_rows = h3_whole_rows(a);
    const int64_t ctas = a->batch * a->heads * w.tiles;
    if (a->head_dim <= 16) return launch<16>(call, w, ctas);
    if (a->head_dim <= 32) return launch<32>(call, w, ctas);
    if (a->head_dim <= 64) return launch<64>(call, w, ctas);
    return launch<128>(call, w, ctas);
}
