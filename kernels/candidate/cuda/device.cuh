/*
 * Device-side basics: launching, bfloat16, rows of several elements, the sigmoid family.
 *
 * Compiled by nvcc for a GPU, or by a plain C++ compiler with H3_EMULATE for the tests that run every kernel on the host.
 * Separate operations round separately (built with -fmad=false); a fused step is written fmaf.
 */
#ifndef H3_CANDIDATE_CUDA_DEVICE_CUH
#define H3_CANDIDATE_CUDA_DEVICE_CUH

#include "common.h"

#ifdef H3_EMULATE
#include "emulate.h"

/* 2^x, and +0 where that is subnormal. */
__device__ __forceinline__ float h3_exp2(float x) { return x < -126.0f ? 0.0f : exp2f(x); }
#else
#include <cuda_runtime.h>

/* The dynamic shared memory of a CTA. */
__device__ __forceinline__ char *h3_shared_memory()
{
    extern __shared__ __align__(1024) char memory[];
    return memory;
}

/* A pair of floats as bfloat16, `low` in the lower half. */
__device__ __forceinline__ uint32_t h3_bf_pair(float low, float high)
{
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

__device__ __forceinline__ float h3_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Launches and reports as the launches of common.h do. */
template <typename... P, typename... A>
int h3_launch(h3_call *call, const char *name, void (*kernel)(P...), dim3 grid, unsigned threads, size_t shared, A... arguments)
{
    if (shared > 48 * 1024) {
        const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
        if (h3_cuda_status(call, name, error)) return 1;
    }
    kernel<<<grid, threads, shared, (cudaStream_t)call->stream>>>(arguments...);
    return h3_cuda_status(call, name, cudaGetLastError());
}
#endif

#define H3_LOG2_E 1.44269504088896340736f

enum { H3_THREADS = 256 }; /* of a CTA of the row-wise kernels */

#define H3_FULL_WARP 0xffffffffu

__device__ __forceinline__ int64_t h3_thread() { return (int64_t)blockIdx.x * blockDim.x + threadIdx.x; }

/* CTAs for `count` threads. */
inline dim3 h3_grid(int64_t count) { return dim3((unsigned)h3_groups(count, H3_THREADS)); }

/* index = quotient * divisor + remainder, in 32 bits where that suffices. */
__device__ __forceinline__ void h3_divide(int64_t index, int64_t divisor, int64_t *quotient, int64_t *remainder)
{
    if (((uint64_t)index | (uint64_t)divisor) >> 32) {
        *quotient = index / divisor;
        *remainder = index % divisor;
    } else {
        *quotient = (uint32_t)index / (uint32_t)divisor;
        *remainder = (uint32_t)index % (uint32_t)divisor;
    }
}

__device__ __forceinline__ float h3_float(uint32_t bits) { return __uint_as_float(bits << 16); }
__device__ __forceinline__ uint16_t h3_bf(float value) { return (uint16_t)h3_bf_pair(value, 0.0f); }
__device__ __forceinline__ float h3_round(float value) { return h3_float(h3_bf_pair(value, 0.0f) & 0xffffu); }

__device__ __forceinline__ float h3_nan() { return __uint_as_float(0x7fffffffu); }

/* WIDTH neighbouring elements of a row as floats: 8, 4 or 1. The address is aligned to them. */
template <int WIDTH> struct h3_lanes {
    float v[WIDTH];
};

template <int WIDTH> struct h3_word;
template <> struct h3_word<8> { typedef uint4 type; };
template <> struct h3_word<4> { typedef uint2 type; };
template <> struct h3_word<1> { typedef uint16_t type; };

template <int WIDTH> __device__ __forceinline__ h3_lanes<WIDTH> h3_load(const uint16_t *from)
{
    h3_lanes<WIDTH> lanes;
    if (WIDTH == 1) {
        lanes.v[0] = h3_float(*from);
    } else {
        const typename h3_word<WIDTH>::type word = *reinterpret_cast<const typename h3_word<WIDTH>::type *>(from);
        const uint32_t *pairs = reinterpret_cast<const uint32_t *>(&word);
#pragma unroll
        for (int i = 0; i < WIDTH / 2; i++) {
            lanes.v[2 * i] = __uint_as_float(pairs[i] << 16);
            lanes.v[2 * i + 1] = __uint_as_float(pairs[i] & 0xffff0000u);
        }
    }
    return lanes;
}

/* Rounds to bfloat16 and stores. */
template <int WIDTH> __device__ __forceinline__ void h3_store(uint16_t *to, const h3_lanes<WIDTH> &lanes)
{
    if (WIDTH == 1) {
        *to = h3_bf(lanes.v[0]);
    } else {
        typename h3_word<WIDTH>::type word;
        uint32_t *pairs = reinterpret_cast<uint32_t *>(&word);
#pragma unroll
        for (int i = 0; i < WIDTH / 2; i++) pairs[i] = h3_bf_pair(lanes.v[2 * i], lanes.v[2 * i + 1]);
        *reinterpret_cast<typename h3_word<WIDTH>::type *>(to) = word;
    }
}

/* A row of the modulation table, or NULL when the index selects none: the result is NaN then. */
__device__ __forceinline__ const uint16_t *h3_table_row(const uint16_t *row0, const int32_t *index, int64_t row, int64_t table_rows,
                                                        int64_t width)
{
    const int32_t k = index[row];
    return k >= 0 && k < table_rows ? row0 + (int64_t)k * H3_ROW_GRADS * width : NULL;
}

/* Elements of such a row. */
template <int WIDTH> __device__ __forceinline__ h3_lanes<WIDTH> h3_load_or_nan(const uint16_t *row, int64_t at)
{
    if (row) return h3_load<WIDTH>(row + at);
    h3_lanes<WIDTH> lanes;
#pragma unroll
    for (int i = 0; i < WIDTH; i++) lanes.v[i] = h3_nan();
    return lanes;
}

/* 1 / (1 + exp(-x)) and x / (1 + exp(-x)): CUDA's accurate expf, every operation rounded, as the model's own kernels do. */
__device__ __forceinline__ float h3_sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ __forceinline__ float h3_silu(float x) { return x / (1.0f + expf(-x)); }

/* silu'(x) given s = sigmoid(x), times `upstream`: (upstream s) (1 + x (1 - s)). */
__device__ __forceinline__ float h3_silu_gradient(float upstream, float x, float s)
{
    return (upstream * s) * (1.0f + x * (1.0f - s));
}

#endif
