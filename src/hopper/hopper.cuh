/*
 * What Hopper GPUs (sm_90a) have for products: barriers in shared memory, boxes that a copy engine fetches, for several blocks at once too, tensor-core steps of four
 * warps whose operands lie in shared memory. Nothing here knows a problem.
 *
 * A tile in shared memory is rows of 64 elements of 16 bits (128 bytes), eight rows to 1024 bytes, and starts at a multiple of 1024. Its 16-byte piece p of row r lies
 * where piece p ^ (r % 8) would: the order that a box (tensor_map.cuh) arrives in and that a step reads. The contraction lies across an operand when its rows are the
 * operand's and 64 steps of the contraction are a row; along it, when rows are steps of the contraction and have 64 rows of the operand in them (more: tiles of 8 KB one
 * after the other).
 *
 * Tests run kernels on the host with other bodies for these functions (tests/cuda/emulate_hopper.cpp).
 */
#ifndef H3_HOPPER_CUH
#define H3_HOPPER_CUH

#ifdef H3_EMULATE
#include "emulate_hopper.h" /* tests run the kernels on the host */

#include "base/half.h"
#else
#include <cuda.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

/* Architectures before it compile, and must not be started. */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define H3_HOPPER_CODE 1
#endif

/* A kernel's shared memory, at 1024 bytes. */
#define H3_SHARED_1024 extern __shared__ __align__(1024) unsigned char shared[];

typedef uint64_t h3_barrier; /* in shared memory */

__device__ __forceinline__ uint32_t h3_shared_address(const void *place) { return (uint32_t)__cvta_generic_to_shared(place); }

/* Accumulators are read or written between two sets of steps: keeps the compiler from doing that earlier or later. (Declared for every architecture, since Kinds of attend.cuh
 * call it.) */
template <int N> __device__ __forceinline__ void h3_steps_keep(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i]) : : "memory");
}

template <int N> __device__ __forceinline__ void h3_steps_keep(uint32_t (&a)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+r"(a[i]) : : "memory");
}

#ifdef H3_HOPPER_CODE
/* --- barriers: a phase ends when `arrivals` threads have arrived and all expected bytes have landed ------------------- */

__device__ __forceinline__ void h3_barrier_set(h3_barrier *barrier, unsigned arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" : : "r"(h3_shared_address(barrier)), "r"(arrivals) : "memory");
}

/* After the last h3_barrier_set, by the thread that did it, before __syncthreads. */
__device__ __forceinline__ void h3_barriers_are_set() { asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory"); }

__device__ __forceinline__ void h3_barrier_arrive(h3_barrier *barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(h3_shared_address(barrier)) : "memory");
}

/* Arrives, and makes the phase wait for so many bytes besides. */
__device__ __forceinline__ void h3_barrier_expect(h3_barrier *barrier, unsigned bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" : : "r"(h3_shared_address(barrier)), "r"(bytes) : "memory");
}

/* Until the phase of that parity has ended; parity 1 of a barrier that was just set counts as ended. */
__device__ __forceinline__ void h3_barrier_wait(h3_barrier *barrier, unsigned parity)
{
    uint32_t ended = 0;
    while (!ended)
        asm volatile("{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}"
                     : "=r"(ended)
                     : "r"(h3_shared_address(barrier)), "r"(parity)
                     : "memory");
}

/* --- clusters: blocks that run at the same time and reach each other's shared memory; h3_cluster_meet before the first such reach, and before a block ends */

/* All threads of all blocks of the cluster. */
__device__ __forceinline__ void h3_cluster_meet() { asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" : : : "memory"); }

/*
 * h3_barrier_arrive at the barrier that the cluster's block `block` has at the same place: whatever this warp's steps read has been read. It publishes nothing that was written,
 * which would take a release at the scope of the cluster; that is a fence for the whole GPU each time (MEMBAR.GPU), and CCTL.IVALL where it is waited for.
 */
__device__ __forceinline__ void h3_barrier_arrive_at(h3_barrier *barrier, int block)
{
    asm volatile("{\n\t.reg .b32 there;\n\tmapa.shared::cluster.u32 there, %0, %1;\n\tmbarrier.arrive.shared::cluster.b64 _, [there];\n\t}"
                 :
                 : "r"(h3_shared_address(barrier)), "r"(block)
                 : "memory");
}

/* --- copies to shared memory, whose bytes count at `barrier` ---------------------------------------------------------- */

/* The box of `map` whose first element is (column, row); zeros beyond the tensor. */
__device__ __forceinline__ void h3_load_box(void *to, const CUtensorMap *map, int column, int row, h3_barrier *barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 :
                 : "r"(h3_shared_address(to)), "l"(map), "r"(column), "r"(row), "r"(h3_shared_address(barrier))
                 : "memory");
}

/* The same to that place of every block of the cluster whose bit is in `blocks`; in each its bytes count at its own barrier. */
__device__ __forceinline__ void h3_load_box_into(unsigned blocks, void *to, const CUtensorMap *map, int column, int row, h3_barrier *barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;"
                 :
                 : "r"(h3_shared_address(to)), "l"(map), "r"(column), "r"(row), "r"(h3_shared_address(barrier)), "h"((uint16_t)blocks)
                 : "memory");
}

/* h3_load_box of a map of items of such tensors. */
__device__ __forceinline__ void h3_load_box(void *to, const CUtensorMap *map, int column, int row, int item, h3_barrier *barrier)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];"
                 :
                 : "r"(h3_shared_address(to)), "l"(map), "r"(column), "r"(row), "r"(item), "r"(h3_shared_address(barrier))
                 : "memory");
}

/* Bytes in a row; both ends and the count at multiples of 16. */
__device__ __forceinline__ void h3_load_bytes(void *to, const void *from, unsigned bytes, h3_barrier *barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :
                 : "r"(h3_shared_address(to)), "l"(from), "r"(bytes), "r"(h3_shared_address(barrier))
                 : "memory");
}

/* --- steps of the tensor core, by the four warps of a group ----------------------------------------------------------- */

/* What a step reads at `tile`, a place that is a whole number of 1024 bytes behind a tile's start; + H3_STEP_ACROSS k or H3_STEP_ALONG k for the k-th 16 steps of the
 * contraction. A step asks again whether it lies across or along. */
__device__ __forceinline__ uint64_t h3_operand(const void *tile)
{
    const uint64_t between_tiles = 8192, between_eight_rows = 1024, swizzle_128_bytes = 1; /* the first is for what lies along alone */
    return (uint64_t)(h3_shared_address(tile) >> 4 & 0x3fff) | between_tiles >> 4 << 16 | between_eight_rows >> 4 << 32 | swizzle_128_bytes << 62;
}

/* Before the first step after the accumulators were touched. */
__device__ __forceinline__ void h3_steps_begin() { asm volatile("wgmma.fence.sync.aligned;" : : : "memory"); }

/* to = from. The assembler puts steps after each other when what one of them reads in registers comes from an instruction that stands among others' steps; it does not see
 * through this one. */
template <int N> __device__ __forceinline__ void h3_steps_define(uint32_t (&to)[N], const uint32_t (&from)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("prmt.b32 %0, %1, %1, 0x7610;" : "=r"(to[i]) : "r"(from[i]));
}

__device__ __forceinline__ void h3_steps_close() { asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory"); }

/* Waits for all but the N groups of steps closed last. */
template <int N> __device__ __forceinline__ void h3_steps_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(N) : "memory"); }

#define H3_TEN(at) "%" #at "0, %" #at "1, %" #at "2, %" #at "3, %" #at "4, %" #at "5, %" #at "6, %" #at "7, %" #at "8, %" #at "9, "
#define H3_FIRST_TEN "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, "
#define H3_LIST_64 H3_FIRST_TEN H3_TEN(1) H3_TEN(2) "%30, %31"
#define H3_LIST_88 H3_FIRST_TEN H3_TEN(1) H3_TEN(2) H3_TEN(3) "%40, %41, %42, %43"
#define H3_LIST_96 H3_FIRST_TEN H3_TEN(1) H3_TEN(2) H3_TEN(3) "%40, %41, %42, %43, %44, %45, %46, %47"
#define H3_LIST_128 H3_FIRST_TEN H3_TEN(1) H3_TEN(2) H3_TEN(3) H3_TEN(4) H3_TEN(5) "%60, %61, %62, %63"
#define H3_LIST_136 H3_FIRST_TEN H3_TEN(1) H3_TEN(2) H3_TEN(3) H3_TEN(4) H3_TEN(5) "%60, %61, %62, %63, %64, %65, %66, %67"
#define H3_LIST_160 H3_FIRST_TEN H3_TEN(1) H3_TEN(2) H3_TEN(3) H3_TEN(4) H3_TEN(5) H3_TEN(6) "%70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define H3_LIST_176 H3_FIRST_TEN H3_TEN(1) H3_TEN(2) H3_TEN(3) H3_TEN(4) H3_TEN(5) H3_TEN(6) H3_TEN(7) "%80, %81, %82, %83, %84, %85, %86, %87"
#define H3_LIST_232 H3_FIRST_TEN H3_TEN(1) H3_TEN(2) H3_TEN(3) H3_TEN(4) H3_TEN(5) H3_TEN(6) H3_TEN(7) H3_TEN(8) H3_TEN(9) H3_TEN(10) "%110, %111, %112, %113, %114, %115"
#define H3_LIST_256 H3_FIRST_TEN H3_TEN(1) H3_TEN(2) H3_TEN(3) H3_TEN(4) H3_TEN(5) H3_TEN(6) H3_TEN(7) H3_TEN(8) H3_TEN(9) H3_TEN(10) H3_TEN(11) "%120, %121, %122, %123, %124, %125, %126, %127"
#define H3_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define H3_D16(i) H3_D4(i), H3_D4(i + 4), H3_D4(i + 8), H3_D4(i + 12)
#define H3_D_64 H3_D16(0), H3_D16(16)
#define H3_D_88 H3_D16(0), H3_D16(16), H3_D4(32), H3_D4(36), H3_D4(40)
#define H3_D_96 H3_D16(0), H3_D16(16), H3_D16(32)
#define H3_D_128 H3_D16(0), H3_D16(16), H3_D16(32), H3_D16(48)
#define H3_D_136 H3_D16(0), H3_D16(16), H3_D16(32), H3_D16(48), H3_D4(64)
#define H3_D_160 H3_D16(0), H3_D16(16), H3_D16(32), H3_D16(48), H3_D16(64)
#define H3_D_176 H3_D16(0), H3_D16(16), H3_D16(32), H3_D16(48), H3_D16(64), H3_D4(80), H3_D4(84)
#define H3_D_232 H3_D16(0), H3_D16(16), H3_D16(32), H3_D16(48), H3_D16(64), H3_D16(80), H3_D16(96), H3_D4(112)
#define H3_D_256 H3_D16(0), H3_D16(16), H3_D16(32), H3_D16(48), H3_D16(64), H3_D16(80), H3_D16(96), H3_D16(112)
/* `add`, and what follows the accumulators, by their places in the list of operands. */
#define H3_STEP(n, types, add_place, left, right, turns, ...)                                                                          \
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.s32 p, " add_place ", 0;\n\twgmma.mma_async.sync.aligned.m64n" #n "k16.f32." types " {" \
                 H3_LIST_##n "}, " left ", " right ", p, 1, 1, " turns ";\n\t}"                                                          \
                 : H3_D_##n                                                                                                            \
                 : __VA_ARGS__                                                                                                         \
                 : "memory")
#define H3_SHARED_STEP(n, types, p0, p1, p2, p3, p4) \
    H3_STEP(n, types, p2, p0, p1, p3 ", " p4, "l"(a), "l"(b), "r"(add), "n"(A_ALONG), "n"(B_ALONG))
#define H3_REGISTER_STEP(n, types, p0, p1, p2, p3, p4, p5, p6) \
    H3_STEP(n, types, p5, "{" p0 ", " p1 ", " p2 ", " p3 "}", p4, p6, "r"(a[at]), "r"(a[at + 1]), "r"(a[at + 2]), "r"(a[at + 3]), "l"(b), "r"(add), "n"(B_ALONG))

/*
 * d [64][N] = a [64][16] b [N][16]^T, + d with `add`; halves or bfloat16, FP32 accumulators, one k16 step. Lane l of warp w of the group holds rows
 * 16 w + l / 4 in d[4 j] and d[4 j + 1], that + 8 in d[4 j + 2] and d[4 j + 3], columns 8 j + 2 (l % 4) + {0, 1}.
 */
template <bool HALF, int N, int A_ALONG, int B_ALONG> __device__ __forceinline__ void h3_step(float (&d)[N / 2], uint64_t a, uint64_t b, int add)
{
    static_assert(HALF ? N == 96 || N == 256 : N == 64 || N == 88 || N == 136 || N == 160 || N == 176 || N == 232 || N == 256, "a width that somebody asks for");
    if constexpr (HALF && N == 96) H3_SHARED_STEP(96, "f16.f16", "%48", "%49", "%50", "%51", "%52");
    else if constexpr (HALF) H3_SHARED_STEP(256, "f16.f16", "%128", "%129", "%130", "%131", "%132");
    else if constexpr (N == 64) H3_SHARED_STEP(64, "bf16.bf16", "%32", "%33", "%34", "%35", "%36");
    else if constexpr (N == 88) H3_SHARED_STEP(88, "bf16.bf16", "%44", "%45", "%46", "%47", "%48");
    else if constexpr (N == 136) H3_SHARED_STEP(136, "bf16.bf16", "%68", "%69", "%70", "%71", "%72");
    else if constexpr (N == 160) H3_SHARED_STEP(160, "bf16.bf16", "%80", "%81", "%82", "%83", "%84");
    else if constexpr (N == 176) H3_SHARED_STEP(176, "bf16.bf16", "%88", "%89", "%90", "%91", "%92");
    else if constexpr (N == 232) H3_SHARED_STEP(232, "bf16.bf16", "%116", "%117", "%118", "%119", "%120");
    else H3_SHARED_STEP(256, "bf16.bf16", "%128", "%129", "%130", "%131", "%132");
}

/* The same with a in registers `at` to at + 3 of many: pairs of rows 16 w + l / 4 and that + 8, columns 2 (l % 4) + {0, 1}, then both rows 8 columns on. They must stay until the step is done:
 * h3_steps_keep behind the wait. */
template <bool HALF, int N, int B_ALONG, int MANY> __device__ __forceinline__ void h3_step_of_registers(float (&d)[N / 2], const uint32_t (&a)[MANY], int at, uint64_t b, int add)
{
    static_assert((N == 128 && !HALF) || N == 64, "a width that somebody asks for");
    if constexpr (HALF) H3_REGISTER_STEP(64, "f16.f16", "%32", "%33", "%34", "%35", "%36", "%37", "%38");
    else if constexpr (N == 64) H3_REGISTER_STEP(64, "bf16.bf16", "%32", "%33", "%34", "%35", "%36", "%37", "%38");
    else H3_REGISTER_STEP(128, "bf16.bf16", "%64", "%65", "%66", "%67", "%68", "%69", "%70");
}

#undef H3_TEN
#undef H3_FIRST_TEN
#undef H3_LIST_64
#undef H3_LIST_88
#undef H3_LIST_96
#undef H3_LIST_128
#undef H3_LIST_136
#undef H3_LIST_160
#undef H3_LIST_176
#undef H3_LIST_232
#undef H3_LIST_256
#undef H3_D4
#undef H3_D16
#undef H3_D_64
#undef H3_D_88
#undef H3_D_96
#undef H3_D_128
#undef H3_D_136
#undef H3_D_160
#undef H3_D_176
#undef H3_D_232
#undef H3_D_256
#undef H3_STEP
#undef H3_SHARED_STEP
#undef H3_REGISTER_STEP

/* --- fragments and registers ------------------------------------------------------------------------------------------ */

/* Four 8 x 8 matrices of halves into shared memory; lane l names row l % 8 of matrix l / 8 and holds, of each, row l / 4, columns 2 (l % 4) + {0, 1}. */
__device__ __forceinline__ void h3_store_matrices(uint16_t *row, const uint32_t (&r)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 :
                 : "r"(h3_shared_address(row)), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}

/* Two such matrices turned over: lane l below 16 names row l % 8 of matrix l / 8, which gets column l % 8 of what the lanes hold. */
__device__ __forceinline__ void h3_store_matrices_turned(uint16_t *row, const uint32_t (&r)[2])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" : : "r"(h3_shared_address(row)), "r"(r[0]), "r"(r[1]) : "memory");
}

/* How many registers each thread of this group of four warps has from now on. */
template <int N> __device__ __forceinline__ void h3_registers_fewer() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"(N)); }
template <int N> __device__ __forceinline__ void h3_registers_more() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"(N)); }
#endif
#endif

#define H3_DEVICE static __device__ __forceinline__

/* Where, in a tile of rows of WIDTH elements that threads write and read, the 8 elements `piece` of a row lie: turned, so that eight rows do not share banks. */
template <int WIDTH> H3_DEVICE int h3_spot(int row, int piece) { return row * WIDTH + (piece ^ (row & 7)) * 8; }

/* How far a descriptor moves for 16 steps of the contraction. */
constexpr int H3_STEP_ACROSS = 2, H3_STEP_ALONG = 128;

/* --- 16 bits, two in a word: halves or bfloat16 ----------------------------------------------------------------------- */

#ifdef H3_EMULATE
template <bool HALF> H3_DEVICE uint32_t h3_pair(float low, float high)
{
    return HALF ? h3_f32_to_f16(low) | (uint32_t)h3_f32_to_f16(high) << 16 : h3_bf_pair(low, high);
}
template <bool HALF> H3_DEVICE float h3_low(uint32_t pair) { return HALF ? h3_f16_to_f32((uint16_t)pair) : __uint_as_float(pair << 16); }
#else
template <bool HALF> H3_DEVICE uint32_t h3_pair(float low, float high)
{
    uint32_t pair;
    if (HALF) asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    else asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
template <bool HALF> H3_DEVICE float h3_low(uint32_t pair)
{
    return HALF ? __half2float(__ushort_as_half((unsigned short)pair)) : __uint_as_float(pair << 16);
}
#endif
template <bool HALF> H3_DEVICE float h3_high(uint32_t pair) { return h3_low<HALF>(pair >> 16); }

#endif
