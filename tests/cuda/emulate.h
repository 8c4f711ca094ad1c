/*
 * A GPU for tests: runs the candidate's CUDA kernels on the host, so that every index, bound, barrier and fragment is exercised
 * without one. Kernels are compiled by a C++ compiler with -DH3_EMULATE and this header in place of <cuda_runtime.h>.
 *
 * One CTA runs at a time, or those of one cluster, each thread as a coroutine. Barriers, shuffles, fragment loads and tensor-core steps are met by all
 * threads concerned or the run ends with a message. The tensor core is the exact model of qualify/tensor_core.h. Shared memory is
 * allocated for each CTA with its exact size (the address sanitizer sees its edges) and filled with NaN. H3_EMULATE_ORDER chooses
 * in which order threads run and when asynchronous copies land (see emulate.cpp), so that a missing barrier or wait shows.
 */
#ifndef H3_TESTS_CUDA_EMULATE_H
#define H3_TESTS_CUDA_EMULATE_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <functional>

#include <cuda_runtime_api.h>
#include <vector_functions.h>

#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __global__
#define __global__
#undef __device__
#define __device__
#undef __forceinline__
#define __forceinline__ inline
#undef __shared__
#define __shared__ static /* one CTA at a time */

extern "C" int h3_cuda_status(h3_call *call, const char *kernel, cudaError_t error); /* of the candidate */

struct h3_emulated_thread {
    uint3 thread, block;
    dim3 threads, grid;
    unsigned cluster; /* of the last launch */
};
extern h3_emulated_thread h3_emulated;

#define threadIdx (h3_emulated.thread)
#define blockIdx (h3_emulated.block)
#define blockDim (h3_emulated.threads)
#define gridDim (h3_emulated.grid)

char *h3_shared_memory();
void __syncthreads();
void __syncwarp();
float __shfl_sync(unsigned mask, float value, int lane);
float __shfl_down_sync(unsigned mask, float value, int offset);
float __shfl_xor_sync(unsigned mask, float value, int other);
int __any_sync(unsigned mask, int asked);

inline uint32_t __float_as_uint(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

template <class T> inline T atomicAdd(T *to, T value) /* one thread at a time */
{
    const T before = *to;
    *to += value;
    return before;
}

inline float __uint_as_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* As the hardware converts: to nearest even, any NaN becomes 0x7fff. */
inline uint32_t h3_bf_pair(float low, float high)
{
    const float values[2] = {low, high};
    uint32_t pair = 0;
    for (int i = 0; i < 2; i++) {
        const uint32_t bits = __float_as_uint(values[i]);
        const uint32_t half = values[i] != values[i] ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
        pair |= half << 16 * i;
    }
    return pair;
}

/* Tensor-core building blocks; tile.cuh says what they do. */
void h3_mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
void h3_mma_half(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1); /* of half precision; sums in double, rounded once */
void h3_ldmatrix(uint32_t (&r)[4], const uint16_t *row);
void h3_ldmatrix_transposed(uint32_t (&r)[4], const uint16_t *row);
void h3_copy16(uint16_t *to, const uint16_t *from, bool valid);
void h3_copy_commit();
void h3_copy_wait_for(int groups);
template <int N> inline void h3_copy_wait() { h3_copy_wait_for(N); }

/* `cluster`: how many blocks, of those that follow each other in x, run at the same time. */
void h3_emulate(const char *name, dim3 grid, unsigned threads, size_t shared, const std::function<void()> &body, unsigned cluster = 1);

template <typename... P, typename... A>
int h3_launch(h3_call *call, const char *name, void (*kernel)(P...), dim3 grid, unsigned threads, size_t shared, A... arguments)
{
    h3_emulate(name, grid, threads, shared, [=] { kernel(arguments...); });
    return h3_cuda_status(call, name, cudaGetLastError());
}

#endif
