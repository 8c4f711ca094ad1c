/*
 * Attention of the video decoder on a GPU.
 *
 * The fast kernel: FP16 tensor cores, FP32 accumulators. A block takes QUERIES rows of one head of one tile, 32 a warp, and walks over the keys 64 at a time
 * with a running maximum (scores never leave the registers). Keys and values come by asynchronous copies, the next ones while these are multiplied.
 * Probabilities are rounded to FP16 for the product with the values; their sum is of the unrounded, as video_ops.h says.
 */
#include "video_device.cuh"

#ifndef H3_EMULATE
/* d += a b of half precision, one k16 step of the tensor core. */
__device__ __forceinline__ void h3_mma_half(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Four 8 x 8 matrices of 16-bit elements; lane l names row l % 8 of matrix l / 8. */
__device__ __forceinline__ void h3_ldmatrix(uint32_t (&r)[4], const uint16_t *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
}

__device__ __forceinline__ void h3_ldmatrix_transposed(uint32_t (&r)[4], const uint16_t *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
}

/* Starts copying 16 bytes to shared memory, or zeros when not `valid` (then `from` is not read). */
__device__ __forceinline__ void h3_copy16(uint16_t *to, const uint16_t *from, bool valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" : : "r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from), "r"(valid ? 16 : 0) : "memory");
}

__device__ __forceinline__ void h3_copy_commit() { asm volatile("cp.async.commit_group;" : : : "memory"); }
template <int N> __device__ __forceinline__ void h3_copy_wait() { asm volatile("cp.async.wait_group %0;" : : "n"(N) : "memory"); }
#endif

namespace {

constexpr int WARPS = 4, GROUPS = 2, QUERIES = WARPS * GROUPS * 16, KEYS = 64, STAGES = 2; /* GROUPS: of 16 rows, in a warp */

struct problem {
    uint16_t *out;
    const uint16_t *qkv;
    int64_t tokens, heads;
    float scale; /* log2(e) / sqrt(dim) */
};

/* Where the 16 bytes `piece` of a row of D elements start in a tile: turned, so that the eight rows of a fragment do not share banks. */
template <int D> H3_DEVICE int spot(int row, int piece)
{
    constexpr int PIECES = D / 8;
    const int turn = PIECES >= 8 ? row & 7 : row / (8 / PIECES) & (PIECES - 1);
    return (row * PIECES + (piece ^ turn)) * 8;
}

/* A thread's share of copying tiles: one 16-byte piece of every PASS-th row. Both its places move by constants, because `spot` turns alike every eight rows. */
template <int D> struct share {
    static constexpr int PIECES = D / 8, PASS = WARPS * WARP / PIECES;
    static_assert(PASS % 8 == 0 && KEYS % PASS == 0 && QUERIES % PASS == 0, "whole passes, whole turns");
    const uint16_t *head; /* q of this head and tile, row 0, the thread's piece; k and v lie heads * D and twice that behind */
    int row, place;
    int64_t step; /* elements of a row */
};

template <int D> H3_DEVICE share<D> share_of(const problem &p)
{
    share<D> t;
    const int piece = (int)threadIdx.x % t.PIECES;
    t.row = (int)threadIdx.x / t.PIECES;
    t.place = spot<D>(t.row, piece);
    t.step = 3 * p.heads * D;
    t.head = p.qkv + (int64_t)blockIdx.z * p.tokens * t.step + (int64_t)blockIdx.y * D + t.row * t.step + piece * 8;
    return t;
}

/* Rows first .. first + COUNT - 1 of part 0 (q), 1 (k) or 2 (v) into a tile, zeros behind the last token. */
template <int D, int COUNT> H3_DEVICE void copy_rows(uint16_t *tile, const problem &p, const share<D> &t, int64_t first, int part)
{
    const uint16_t *from = t.head + first * t.step + part * p.heads * D;
    const int64_t left = p.tokens - first;
    const int rows = left < COUNT ? (int)left : COUNT;
#pragma unroll
    for (int pass = 0; pass < COUNT / share<D>::PASS; pass++) {
        const bool there = t.row + pass * share<D>::PASS < rows;
        h3_copy16(tile + t.place + pass * share<D>::PASS * D, there ? from : p.qkv, there);
        from += share<D>::PASS * t.step;
    }
}

/* Left operand: 16 rows, one k16 step. */
template <int D> H3_DEVICE void load_rows(uint32_t (&a)[4], const uint16_t *tile, int row, int step, int lane)
{
    h3_ldmatrix(a, tile + spot<D>(row + lane % 16, 2 * step + lane / 16));
}

/* Right operands for 16 keys of a tile [key][d]: eight in b[0..1], eight in b[2..3]. */
template <int D> H3_DEVICE void load_keys(uint32_t (&b)[4], const uint16_t *tile, int key, int step, int lane)
{
    h3_ldmatrix(b, tile + spot<D>(key + lane % 8 + lane / 16 * 8, 2 * step + lane / 8 % 2));
}

/* Right operands for 16 channels of a tile [key][d], keys 16 * step .. */
template <int D> H3_DEVICE void load_values(uint32_t (&b)[4], const uint16_t *tile, int channel, int step, int lane)
{
    h3_ldmatrix_transposed(b, tile + spot<D>(16 * step + lane % 16, channel / 8 + lane / 16));
}

H3_DEVICE uint32_t pair_of(float low, float high) { return narrowed(low) | (uint32_t)narrowed(high) << 16; }

/* What a warp keeps of its rows: lane l has rows l / 4 and l / 4 + 8 of each group. */
template <int D> struct state {
    uint32_t q[GROUPS][D / 16][4];
    float out[GROUPS][D / 8][4];
    float most[GROUPS][2], sum[GROUPS][2];
};

/* Scores of all groups against the first COUNT keys of a tile. */
template <int D, int COUNT> H3_DEVICE void score(float (&s)[GROUPS][KEYS / 8][4], const state<D> &v, const uint16_t *keys, int lane)
{
#pragma unroll
    for (int step = 0; step < D / 16; step++)
#pragma unroll
        for (int n = 0; n < COUNT / 16; n++) {
            uint32_t b[4];
            load_keys<D>(b, keys, 16 * n, step, lane);
#pragma unroll
            for (int g = 0; g < GROUPS; g++) {
                h3_mma_half(s[g][2 * n], v.q[g][step], b[0], b[1]);
                h3_mma_half(s[g][2 * n + 1], v.q[g][step], b[2], b[3]);
            }
        }
}

/* Scores become probabilities against the new maximum; what has been gathered so far is scaled to it. */
template <int D, int COUNT> H3_DEVICE void weigh(float (&s)[KEYS / 8][4], state<D> &v, int g, float scale)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float most = v.most[g][r];
#pragma unroll
        for (int n = 0; n < COUNT / 8; n++) most = fmaxf(most, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
        most = most_of_four(most);
        const float kept = power_of_two(__fmul_rn(__fsub_rn(v.most[g][r], most), scale)), shift = -__fmul_rn(most, scale);
        float sum = __fmul_rn(v.sum[g][r], kept);
#pragma unroll
        for (int n = 0; n < COUNT / 8; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                s[n][2 * r + e] = power_of_two(fmaf(s[n][2 * r + e], scale, shift));
                sum += s[n][2 * r + e];
            }
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            v.out[g][n][2 * r] *= kept;
            v.out[g][n][2 * r + 1] *= kept;
        }
        v.sum[g][r] = sum;
        v.most[g][r] = most;
    }
}

template <int D, int COUNT> H3_DEVICE void gather(const float (&s)[GROUPS][KEYS / 8][4], state<D> &v, const uint16_t *values, int lane)
{
#pragma unroll
    for (int step = 0; step < COUNT / 16; step++) {
        uint32_t a[GROUPS][4];
#pragma unroll
        for (int g = 0; g < GROUPS; g++)
#pragma unroll
            for (int i = 0; i < 4; i++) a[g][i] = pair_of(s[g][2 * step + i / 2][2 * (i % 2)], s[g][2 * step + i / 2][2 * (i % 2) + 1]);
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            uint32_t b[4];
            load_values<D>(b, values, 16 * n, step, lane);
#pragma unroll
            for (int g = 0; g < GROUPS; g++) {
                h3_mma_half(v.out[g][2 * n], a[g], b[0], b[1]);
                h3_mma_half(v.out[g][2 * n + 1], a[g], b[2], b[3]);
            }
        }
    }
}

/* Keys behind the last token never count. */
template <int COUNT> H3_DEVICE void mask(float (&s)[KEYS / 8][4], int64_t first_key, int64_t tokens, int lane)
{
#pragma unroll
    for (int n = 0; n < COUNT / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (first_key + 8 * n + lane % 4 * 2 + e % 2 >= tokens) s[n][e] = -INFINITY;
}

/* The first COUNT keys of a tile; `last`: not all of them are tokens. */
template <int D, int COUNT> H3_DEVICE void attend(state<D> &v, const problem &p, const uint16_t *keys, const uint16_t *values, int64_t first_key, bool last, int lane)
{
    float s[GROUPS][KEYS / 8][4] = {};
    score<D, COUNT>(s, v, keys, lane);
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        if (last) mask<COUNT>(s[g], first_key, p.tokens, lane);
        weigh<D, COUNT>(s[g], v, g, p.scale);
    }
    gather<D, COUNT>(s, v, values, lane);
}

template <int D> H3_DEVICE void write_rows(const problem &p, const state<D> &v, int64_t first, int lane)
{
#pragma unroll
    for (int g = 0; g < GROUPS; g++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int64_t row = first + 16 * g + lane / 4 + 8 * r;
            const float sum = sum_of_four(v.sum[g][r]);
            if (row >= p.tokens) continue;
            uint16_t *to = p.out + (((int64_t)blockIdx.z * p.tokens + row) * p.heads + blockIdx.y) * D + lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < D / 8; n++) *(uint32_t *)(to + 8 * n) = pair_of(__fdiv_rn(v.out[g][n][2 * r], sum), __fdiv_rn(v.out[g][n][2 * r + 1], sum));
        }
}

H3_DEVICE uint16_t *shared_halves()
{
#ifdef H3_EMULATE
    return (uint16_t *)h3_shared_memory();
#else
    extern __shared__ __align__(16) uint16_t memory[];
    return memory;
#endif
}

template <int D> __global__ void __launch_bounds__(WARPS *WARP) attention_kernel(problem p)
{
    uint16_t *queries = shared_halves(), *keys = queries + QUERIES * D, *values = keys + STAGES * KEYS * D;
    const int lane = (int)(threadIdx.x % WARP), row = (int)(threadIdx.x / WARP) * GROUPS * 16;
    const int64_t first = (int64_t)blockIdx.x * QUERIES, rounds = (p.tokens + KEYS - 1) / KEYS;
    const share<D> own = share_of<D>(p);
    const bool useful = first + row < p.tokens; /* of the warp: the last block may have warps without a row, which only copy */
    state<D> v = {};
    copy_rows<D, QUERIES>(queries, p, own, first, 0);
    copy_rows<D, KEYS>(keys, p, own, 0, 1);
    copy_rows<D, KEYS>(values, p, own, 0, 2);
    h3_copy_commit();
    for (int g = 0; g < GROUPS; g++) v.most[g][0] = v.most[g][1] = -INFINITY;
    for (int64_t round = 0; round < rounds; round++) {
        const int now = (int)(round % STAGES) * KEYS * D, next = (int)((round + 1) % STAGES) * KEYS * D;
        h3_copy_wait<0>();
        __syncthreads(); /* this round's tiles are there, and nobody reads the last round's any more */
        if (round + 1 < rounds) {
            copy_rows<D, KEYS>(keys + next, p, own, (round + 1) * KEYS, 1);
            copy_rows<D, KEYS>(values + next, p, own, (round + 1) * KEYS, 2);
            h3_copy_commit();
        }
        if (!useful) continue;
        if (round == 0)
            for (int g = 0; g < GROUPS; g++)
#pragma unroll
                for (int step = 0; step < D / 16; step++) load_rows<D>(v.q[g][step], queries, row + 16 * g, step, lane);
        if (p.tokens - round * KEYS > KEYS / 4) attend<D, KEYS>(v, p, keys + now, values + now, round * KEYS, round + 1 == rounds, lane);
        else attend<D, KEYS / 4>(v, p, keys + now, values + now, round * KEYS, true, lane); /* the same bits: what it leaves out is all zeros */
    }
    if (useful) write_rows<D>(p, v, first + row, lane);
}

template <int D> int start(void *stream, const problem &p, int64_t tiles)
{
    const dim3 grid((unsigned)((p.tokens + QUERIES - 1) / QUERIES), (unsigned)p.heads, (unsigned)tiles);
    const size_t shared = (size_t)(QUERIES + 2 * STAGES * KEYS) * D * sizeof(uint16_t); /* at most 48 KiB */
#ifdef H3_EMULATE
    (void)stream;
    h3_emulate("attention", grid, WARPS * WARP, shared, [=] { attention_kernel<D>(p); });
#else
    attention_kernel<D><<<grid, WARPS * WARP, shared, (cudaStream_t)stream>>>(p);
#endif
    return (int)cudaGetLastError();
}

/* A warp a query row: three passes over the keys, each score made anew. For sizes that the fast one does not take, and as its twin in tests. */
template <bool Half> H3_DEVICE float simple_score(const void *qkv, int64_t q, int64_t k, int64_t dim, float scale)
{
    float sum = 0.0f;
    for (int64_t d = 0; d < dim; d++) sum = fmaf(load<Half>(qkv, q + d), load<Half>(qkv, k + d), sum);
    return __fmul_rn(sum, scale);
}

template <bool Half> __global__ void simple_kernel(void *out, const void *qkv, int64_t count, int64_t tokens, int64_t heads, int64_t dim, float scale)
{
    const int lane = (int)(threadIdx.x % WARP);
    for (int64_t task = first_element() / WARP; task < count; task += element_step() / WARP) {
        const int64_t row = task / heads, head = task % heads, step = 3 * heads * dim, tile = row / tokens * tokens;
        const int64_t q = row * step + head * dim, keys = tile * step + (heads + head) * dim, values = keys + heads * dim;
        float most = -INFINITY, sum = 0.0f;
        for (int64_t j = lane; j < tokens; j += WARP) most = fmaxf(most, simple_score<Half>(qkv, q, keys + j * step, dim, scale));
        for (int other = WARP / 2; other > 0; other /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, other));
        for (int64_t j = lane; j < tokens; j += WARP) sum += expf(simple_score<Half>(qkv, q, keys + j * step, dim, scale) - most);
        sum = sum_warp(sum);
        for (int64_t base = 0; base < dim; base += WARP) {
            float value = 0.0f;
            for (int64_t j = 0; j < tokens; j++) {
                const float p = rounded<Half>(expf(simple_score<Half>(qkv, q, keys + j * step, dim, scale) - most));
                if (base + lane < dim) value = fmaf(p, load<Half>(qkv, values + j * step + base + lane), value);
            }
            if (base + lane < dim) store<Half>(out, (row * heads + head) * dim + base + lane, __fdiv_rn(value, sum));
        }
    }
}

} // namespace

int h3_video_attention_fits(int half, int64_t dim) { return half && (dim == 16 || dim == 32 || dim == 64); }

int h3_video_start_attention(void *stream, uint16_t *out, const uint16_t *qkv, int64_t tiles, int64_t tokens, int64_t heads, int64_t dim)
{
    const problem p = {out, qkv, tokens, heads, (float)(1.4426950408889634 / sqrt((double)dim))};
    if (dim == 16) return start<16>(stream, p, tiles);
    if (dim == 32) return start<32>(stream, p, tiles);
    return start<64>(stream, p, tiles);
}

int h3_video_start_attention_simple(void *stream, void *out, const void *qkv, int half, int64_t tiles, int64_t tokens, int64_t heads, int64_t dim)
{
    const int64_t count = tiles * tokens * heads;
    return launch(stream, "attention_simple", half ? simple_kernel<true> : simple_kernel<false>, blocks_for(count * WARP), out, qkv, count, tokens, heads, dim,
                  (float)(1.0 / sqrt((double)dim)));
}
