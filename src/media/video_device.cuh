/* What the video autoencoder's kernels share: half precision, launches, sums in a fixed order. */
#ifndef H3_MEDIA_VIDEO_DEVICE_CUH
#define H3_MEDIA_VIDEO_DEVICE_CUH

#ifdef H3_EMULATE
#include "emulate_provider.h" /* tests run the kernels on the host */
#else
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#endif
#include <stdint.h>

#include "../base/half.h"
#include "video_kernels.h"

#define H3_DEVICE static __device__ __forceinline__

namespace {

constexpr int THREADS = 256, WARP = 32;

/* Blocks of THREADS; every kernel strides over its grid. */
template <class... Parameters, class... Arguments>
int launch(void *stream, const char *name, void (*kernel)(Parameters...), int64_t blocks, Arguments... arguments)
{
    const int64_t most = 1 << 20;
    const unsigned grid = blocks < 1 ? 1u : blocks < most ? (unsigned)blocks : (unsigned)most;
#ifdef H3_EMULATE
    (void)stream;
    h3_emulate(name, dim3(grid), THREADS, 0, [=] { kernel(Parameters(arguments)...); });
#else
    (void)name;
    kernel<<<grid, THREADS, 0, (cudaStream_t)stream>>>(Parameters(arguments)...);
#endif
    return (int)cudaGetLastError();
}

inline int64_t blocks_for(int64_t elements) { return (elements + THREADS - 1) / THREADS; }

H3_DEVICE int64_t first_element() { return (int64_t)blockIdx.x * THREADS + threadIdx.x; }
H3_DEVICE int64_t element_step() { return (int64_t)gridDim.x * THREADS; }

#ifdef H3_EMULATE
H3_DEVICE float widened(uint16_t value) { return h3_f16_to_f32(value); }
H3_DEVICE uint16_t narrowed(float value) { return h3_f32_to_f16(value); }
#else
H3_DEVICE float widened(uint16_t value) { return __half2float(__ushort_as_half(value)); }
H3_DEVICE uint16_t narrowed(float value) { return __half_as_ushort(__float2half_rn(value)); }
#endif

template <bool Half> H3_DEVICE float load(const void *data, int64_t i)
{
    return Half ? widened(((const uint16_t *)data)[i]) : ((const float *)data)[i];
}

template <bool Half> H3_DEVICE void store(void *data, int64_t i, float value)
{
    if (Half) ((uint16_t *)data)[i] = narrowed(value);
    else ((float *)data)[i] = value;
}

/* The value as a tensor holds it. */
template <bool Half> H3_DEVICE float rounded(float value) { return Half ? widened(narrowed(value)) : value; }

H3_DEVICE float silu(float x) { return __fdiv_rn(x, __fadd_rn(1.0f, expf(-x))); }

/*
 * For what is rounded to half precision at once, whose last place is 2^-11: instructions with 2^-22 that have no way around them for subnormals, which keeps a
 * thread's other work waiting. 2^x is nothing where it would be subnormal, and vanishes in a sum that is at least 1.
 */
#ifdef H3_EMULATE
H3_DEVICE float power_of_two(float x) { return exp2f(x); }
H3_DEVICE float about_inverse(float x) { return 1.0f / x; }
H3_DEVICE float about_inverse_root(float x) { return 1.0f / sqrtf(x); }
#else
H3_DEVICE float power_of_two(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

H3_DEVICE float about_inverse(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

H3_DEVICE float about_inverse_root(float x)
{
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#endif

H3_DEVICE float about_silu(float x) { return __fmul_rn(x, about_inverse(__fadd_rn(1.0f, power_of_two(__fmul_rn(x, -1.44269504f))))); }

/* Over the four lanes that share a row of a tensor core's results, the same in each. */
H3_DEVICE float most_of_four(float value)
{
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
    return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}

H3_DEVICE float sum_of_four(float value)
{
    value += __shfl_xor_sync(0xffffffffu, value, 1);
    return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

/* Sum over a block: lanes i and i + 16, then 8, 4, 2, 1 of each warp, then warps ascending. Every thread gets it. */
H3_DEVICE double sum_block(double value)
{
    __shared__ double warps[THREADS / WARP];
    for (int offset = WARP / 2; offset > 0; offset /= 2) value += __shfl_down_sync(0xffffffffu, value, offset);
    if (threadIdx.x % WARP == 0) warps[threadIdx.x / WARP] = value;
    __syncthreads();
    double sum = warps[0];
    for (int w = 1; w < THREADS / WARP; w++) sum += warps[w];
    __syncthreads();
    return sum;
}

/* Sum over a warp, the same in every lane. */
H3_DEVICE float sum_warp(float value)
{
    for (int offset = WARP / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
}

} // namespace

#endif
