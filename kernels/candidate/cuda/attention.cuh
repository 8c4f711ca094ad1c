/*
 * What attention's kernels share. A CTA of eight warps owns 128 rows of one head, 16 a warp; the other side's rows come in
 * tiles through two buffers. Channels are padded with zeros to DEPTH = 16, 32, 64 or 128, which changes no bit of a sum.
 */
#ifndef H3_CANDIDATE_CUDA_ATTENTION_CUH
#define H3_CANDIDATE_CUDA_ATTENTION_CUH

#include "tile.cuh"

enum { H3_HEAD_THREADS = 256, H3_OWN_ROWS = 128 };

struct h3_head_work {
    h3_attention a;
    int64_t tiles;   /* of H3_OWN_ROWS rows, a head */
    float octaves;   /* alpha log2(e): exp(alpha s) = exp2(octaves s) */
    bool whole_rows; /* rows may be read and written 16 bytes at a time */
};

/* A head's rows in memory: [rows, N, D] of one item. */
struct h3_head_rows {
    int64_t start, pitch; /* element of row 0, and from row to row */
    int64_t rows;
    int depth;

    __device__ h3_head_rows(const h3_attention &a, int64_t head, int64_t count)
        : start(head / a.heads * count * a.heads * a.head_dim + head % a.heads * a.head_dim), pitch(a.heads * a.head_dim), rows(count),
          depth((int)a.head_dim)
    {
    }
};

/* Loads rows [first, first + ROWS) into a tile; rows and channels that are not there become zeros. */
template <int ROWS, int DEPTH> __device__ __forceinline__ void h3_load_rows(uint16_t *tile, const uint16_t *data, const h3_head_rows &head, int64_t first,
                                                                            bool whole_rows)
{
    constexpr int CHUNKS = DEPTH / 8;
#pragma unroll 4
    for (int i = (int)threadIdx.x; i < ROWS * CHUNKS; i += H3_HEAD_THREADS) {
        const int row = i / CHUNKS, chunk = i % CHUNKS;
        const int channels = first + row < head.rows ? head.depth - chunk * 8 : 0;
        const uint16_t *from = data + head.start + (first + row) * head.pitch + chunk * 8;
        uint16_t *to = tile + h3_swizzle<CHUNKS>(row, chunk);
        if (whole_rows) h3_copy16(to, channels > 0 ? from : data, channels > 0);
        else h3_gather8(to, from, channels);
    }
}

/* Writes 16 rows of sums, scaled and rounded, through `staging` (a tile of H3_OWN_ROWS rows of which this warp's 16 are its own). */
template <int DEPTH> __device__ __forceinline__ void h3_write_rows(uint16_t *data, uint16_t *staging, const h3_head_rows &head, int64_t first,
                                                                   const float (&sums)[DEPTH / 8][4], int lane, bool whole_rows)
{
    constexpr int CHUNKS = DEPTH / 8;
    const int own = (int)threadIdx.x / 32 * 16;
    __syncwarp();
#pragma unroll
    for (int j = 0; j < CHUNKS; j++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint16_t *to = staging + h3_swizzle<CHUNKS>(own + lane / 4 + 8 * half, j) + lane % 4 * 2;
            *reinterpret_cast<uint32_t *>(to) = h3_bf_pair(sums[j][2 * half], sums[j][2 * half + 1]);
        }
    }
    __syncwarp();
    for (int i = lane; i < 16 * CHUNKS; i += 32) {
        const int64_t row = first + own + i / CHUNKS;
        const int chunk = i % CHUNKS, channels = head.depth - chunk * 8;
        if (row >= head.rows || channels <= 0) continue;
        h3_scatter8(data + head.start + row * head.pitch + chunk * 8, staging + h3_swizzle<CHUNKS>(own + i / CHUNKS, chunk), channels, whole_rows);
    }
}

/* scores[j] = chain over the channels of left row . right row, for the warp's 16 rows and COLUMNS rows of `right`. */
template <int DEPTH, int COLUMNS> __device__ __forceinline__ void h3_dot_rows(float (&scores)[COLUMNS / 8][4], const uint32_t (&left)[DEPTH / 16][4],
                                                                              const uint16_t *right, int lane)
{
#pragma unroll
    for (int j = 0; j < COLUMNS / 8; j++) {
#pragma unroll
        for (int e = 0; e < 4; e++) scores[j][e] = 0.0f;
    }
#pragma unroll
    for (int step = 0; step < DEPTH / 16; step++) {
#pragma unroll
        for (int j = 0; j < COLUMNS / 16; j++) {
            uint32_t b[4];
            h3_load_right<DEPTH / 8>(b, right, 16 * j, step, lane);
            h3_mma(scores[2 * j], left[step], b[0], b[1]);
            h3_mma(scores[2 * j + 1], left[step], b[2], b[3]);
        }
    }
}

/* sums += weights rows: weights [16][COLUMNS] as fragment pairs (rows lane / 4 in [j][0], + 8 in [j][1]), rows [COLUMNS][DEPTH]. */
template <int DEPTH, int COLUMNS> __device__ __forceinline__ void h3_add_rows(float (&sums)[DEPTH / 8][4], const uint32_t (&weights)[COLUMNS / 8][2],
                                                                              const uint16_t *rows, int lane)
{
#pragma unroll
    for (int step = 0; step < COLUMNS / 16; step++) {
        const uint32_t a[4] = {weights[2 * step][0], weights[2 * step][1], weights[2 * step + 1][0], weights[2 * step + 1][1]};
#pragma unroll
        for (int j = 0; j < DEPTH / 16; j++) {
            uint32_t b[4];
            h3_load_right_along<DEPTH / 8>(b, rows, 16 * j, step, lane);
            h3_mma(sums[2 * j], a, b[0], b[1]);
            h3_mma(sums[2 * j + 1], a, b[2], b[3]);
        }
    }
}

inline bool h3_whole_rows(const h3_attention *a)
{
    const void *const memory[] = {a->q, a->k, a->v, a->out, a->dout, a->dq, a->dk, a->dv};
    bool aligned = a->head_dim % 8 == 0;
    for (const void *area : memory) aligned = aligned && h3_aligned(area, 16);
    return aligned;
}

#endif
