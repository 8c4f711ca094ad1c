/*
 * Tensor-core building blocks: the m16n8k16 step, fragment loads from swizzled shared-memory tiles, asynchronous copies.
 *
 * A tile is a matrix of bfloat16 with rows of CHUNKS pieces of 16 bytes; piece c of row r lies at h3_swizzle<CHUNKS>(r, c),
 * so that the eight rows of one fragment load never share a bank.
 *
 * Fragments, for lane l: row l / 4 (and + 8), columns 2 (l % 4) + {0, 1} (and + 8) of a 16 x 16 left operand; accumulators
 * d[0..1] in row l / 4 and d[2..3] in row l / 4 + 8, columns 2 (l % 4) + {0, 1} of 16 x 8.
 */
#ifndef H3_CANDIDATE_CUDA_TILE_CUH
#define H3_CANDIDATE_CUDA_TILE_CUH

#include "device.cuh"

#ifndef H3_EMULATE
/* d += a b, one k16 step of the tensor core. */
__device__ __forceinline__ void h3_mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Four 8 x 8 matrices; lane l names row l % 8 of matrix l / 8. */
__device__ __forceinline__ void h3_ldmatrix(uint32_t (&r)[4], const uint16_t *row)
{
    const uint32_t address = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ void h3_ldmatrix_transposed(uint32_t (&r)[4], const uint16_t *row)
{
    const uint32_t address = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

/* Starts copying 16 bytes to shared memory, or zeros when not `valid` (then `from` is not read). */
__device__ __forceinline__ void h3_copy16(uint16_t *to, const uint16_t *from, bool valid)
{
    const uint32_t address = (uint32_t)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" : : "r"(address), "l"(from), "r"(valid ? 16 : 0) : "memory");
}

/* Closes a group of copies; h3_copy_wait<N> waits for all but the N groups closed last. */
__device__ __forceinline__ void h3_copy_commit() { asm volatile("cp.async.commit_group;" : : : "memory"); }

template <int N> __device__ __forceinline__ void h3_copy_wait() { asm volatile("cp.async.wait_group %0;" : : "n"(N) : "memory"); }
#endif

/* Where piece `chunk` of `row` starts, in elements. CHUNKS is a power of two. */
template <int CHUNKS> __device__ __forceinline__ int h3_swizzle(int row, int chunk)
{
    const int turn = CHUNKS >= 8 ? row & 7 : (row / (8 / CHUNKS)) & (CHUNKS - 1);
    return (row * CHUNKS + (chunk ^ turn)) * 8;
}

/* Left operand [16 rows from `row`][k16 step `step`] of a tile with k along its rows. */
template <int CHUNKS> __device__ __forceinline__ void h3_load_left(uint32_t (&a)[4], const uint16_t *tile, int row, int step, int lane)
{
    h3_ldmatrix(a, tile + h3_swizzle<CHUNKS>(row + lane % 16, 2 * step + lane / 16));
}

/* The same operand of a tile [k][row]: row is a multiple of 16 in its columns. */
template <int CHUNKS> __device__ __forceinline__ void h3_load_left_along(uint32_t (&a)[4], const uint16_t *tile, int row, int step, int lane)
{
    h3_ldmatrix_transposed(a, tile + h3_swizzle<CHUNKS>(16 * step + lane % 8 + lane / 16 * 8, row / 8 + lane / 8 % 2));
}

/* Two right operands, columns [column, column + 8) in b[0..1] and the next eight in b[2..3], of a tile [column][k]. */
template <int CHUNKS> __device__ __forceinline__ void h3_load_right(uint32_t (&b)[4], const uint16_t *tile, int column, int step, int lane)
{
    h3_ldmatrix(b, tile + h3_swizzle<CHUNKS>(column + lane % 8 + lane / 16 * 8, 2 * step + lane / 8 % 2));
}

/* The same operands of a tile [k][column]. */
template <int CHUNKS> __device__ __forceinline__ void h3_load_right_along(uint32_t (&b)[4], const uint16_t *tile, int column, int step, int lane)
{
    h3_ldmatrix_transposed(b, tile + h3_swizzle<CHUNKS>(16 * step + lane % 16, column / 8 + lane / 16));
}

/* Eight elements to shared memory one by one: the first `count` (at most 8) from `from`, then zeros. */
__device__ __forceinline__ void h3_gather8(uint16_t *to, const uint16_t *from, int64_t count)
{
    uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t low = 2 * i < count ? from[2 * i] : 0u, high = 2 * i + 1 < count ? from[2 * i + 1] : 0u;
        pairs[i] = low | high << 16;
    }
    *reinterpret_cast<uint4 *>(to) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

/* Eight elements from shared to global memory: one store when `whole`, else the first `count` one by one. */
__device__ __forceinline__ void h3_scatter8(uint16_t *to, const uint16_t *from, int64_t count, bool whole)
{
    if (whole && count >= 8) {
        *reinterpret_cast<uint4 *>(to) = *reinterpret_cast<const uint4 *>(from);
        return;
    }
    for (int i = 0; i < 8 && i < count; i++) to[i] = from[i];
}

#endif
