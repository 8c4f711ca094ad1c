/*
 * What the kernels share: loads, stores, the published rounding points, sums in a fixed order.
 *
 * A kernel is written once with a constant `Bf16`. With it tensors are bfloat16 and h3_round() is a rounding point; without it
 * tensors are float32 and h3_round() does nothing. Arithmetic between two rounding points is float32, every operation rounded by
 * itself. Sums over rows and keys use float32 in BF16 and double in FP32, whose results serve as golden.
 *
 * A row index outside its table makes the row NaN instead of reading elsewhere.
 */
#ifndef H3_PROVIDER_CUDA_DEVICE_H
#define H3_PROVIDER_CUDA_DEVICE_H

#include <math.h>

#include "call.h"

#define H3_DEVICE static __device__ __forceinline__

enum { H3_WARP = 32, H3_THREADS = 256, H3_PACK = 8 /* elements, in elementwise kernels */ };

H3_DEVICE uint16_t h3_to_bf16(float value)
{
    uint32_t bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

H3_DEVICE float h3_from_bf16(uint16_t value) { return __uint_as_float((uint32_t)value << 16); }

template <bool Bf16> H3_DEVICE float h3_round(float value) { return Bf16 ? h3_from_bf16(h3_to_bf16(value)) : value; }

template <bool Bf16> H3_DEVICE float h3_load(const void *data, int64_t i)
{
    return Bf16 ? h3_from_bf16(((const uint16_t *)data)[i]) : ((const float *)data)[i];
}

/* Stores with one rounding. */
template <bool Bf16> H3_DEVICE void h3_store(void *data, int64_t i, float value)
{
    if (Bf16) ((uint16_t *)data)[i] = h3_to_bf16(value);
    else ((float *)data)[i] = value;
}

/*
 * `Many` consecutive elements at once: 1, or 4 or 8 where h3_in_packs() says that whole packs fit. How many are taken changes no bit,
 * because elementwise kernels treat each element by itself.
 */
template <bool Bf16, int Many> H3_DEVICE void h3_load_pack(float (&values)[Many], const void *data, int64_t i)
{
    if (Many == 1 || !Bf16) {
        for (int e = 0; e < Many; e++) values[e] = h3_load<Bf16>(data, i + e);
        return;
    }
    uint32_t words[4];
    if (Many == 8) {
        const uint4 all = *(const uint4 *)((const uint16_t *)data + i);
        words[0] = all.x, words[1] = all.y, words[2] = all.z, words[3] = all.w;
    } else {
        const uint2 all = *(const uint2 *)((const uint16_t *)data + i);
        words[0] = all.x, words[1] = all.y;
    }
#pragma unroll
    for (int e = 0; e < Many; e++) values[e] = h3_from_bf16((uint16_t)(words[e / 2] >> e % 2 * 16));
}

template <bool Bf16, int Many> H3_DEVICE void h3_store_pack(void *data, int64_t i, const float (&values)[Many])
{
    if (Many == 1 || !Bf16) {
        for (int e = 0; e < Many; e++) h3_store<Bf16>(data, i + e, values[e]);
        return;
    }
    uint32_t words[4] = {};
#pragma unroll
    for (int e = 0; e < Many; e++) words[e / 2] |= (uint32_t)h3_to_bf16(values[e]) << e % 2 * 16;
    if (Many == 8) *(uint4 *)((uint16_t *)data + i) = make_uint4(words[0], words[1], words[2], words[3]);
    else *(uint2 *)((uint16_t *)data + i) = make_uint2(words[0], words[1]);
}

/* A running sum's type. */
template <bool Bf16> struct h3_sum_of;
template <> struct h3_sum_of<true> { typedef float type; };
template <> struct h3_sum_of<false> { typedef double type; };

H3_DEVICE int64_t h3_first() { return (int64_t)blockIdx.x * blockDim.x + threadIdx.x; }
H3_DEVICE int64_t h3_stride() { return (int64_t)gridDim.x * blockDim.x; }

/* Lane 0's result adds lane i+16, then i+8, i+4, i+2, i+1. */
template <class T> H3_DEVICE T h3_sum_warp(T value)
{
    for (int offset = H3_WARP / 2; offset > 0; offset /= 2) value += __shfl_down_sync(0xffffffffu, value, offset);
    return value;
}

/* Adds over a block of H3_THREADS: within warps, then the warps' results in ascending order. Every thread gets the sum. */
template <class T> H3_DEVICE T h3_sum_block(T value)
{
    __shared__ T warps[H3_THREADS / H3_WARP];
    value = h3_sum_warp(value);
    if (threadIdx.x % H3_WARP == 0) warps[threadIdx.x / H3_WARP] = value;
    __syncthreads();
    T sum = warps[0];
    for (int w = 1; w < H3_THREADS / H3_WARP; w++) sum += warps[w];
    __syncthreads();
    return sum;
}

H3_DEVICE float h3_max_block(float value)
{
    __shared__ float warps[H3_THREADS / H3_WARP];
    for (int offset = H3_WARP / 2; offset > 0; offset /= 2) value = fmaxf(value, __shfl_down_sync(0xffffffffu, value, offset));
    if (threadIdx.x % H3_WARP == 0) warps[threadIdx.x / H3_WARP] = value;
    __syncthreads();
    float most = warps[0];
    for (int w = 1; w < H3_THREADS / H3_WARP; w++) most = fmaxf(most, warps[w]);
    __syncthreads();
    return most;
}

/* silu(x) = x / (1 + exp(-x)). */
H3_DEVICE float h3_silu(float x) { return __fdiv_rn(x, __fadd_rn(1.0f, expf(-x))); }

/* dy * silu'(x), in the published order of products. */
H3_DEVICE float h3_silu_gradient(float dy, float x)
{
    float sigmoid = __fdiv_rn(1.0f, __fadd_rn(1.0f, expf(-x)));
    return __fmul_rn(__fmul_rn(dy, sigmoid), __fadd_rn(1.0f, __fmul_rn(x, __fsub_rn(1.0f, sigmoid))));
}

#endif
