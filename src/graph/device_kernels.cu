/*
 * Work on tensors that stay on the GPU: comparison, sums that decide (device.h fixes their order), synthetic values, widening. Each has a twin on the host:
 * memcmp, device_sums.c, model/synth.c, h3_bf16_to_f32.
 */
#include "device_kernels.h"

#ifdef H3_EMULATE
#include "emulate_provider.h" /* tests run the kernels on the host */
#else
#include <cuda_runtime.h>
#endif

namespace {

enum { LANES = 256 };

typedef unsigned long long wide;

template <class... Parameters, class... Arguments>
int launch(void *stream, const char *name, void (*kernel)(Parameters...), int64_t blocks, Arguments... arguments)
{
    const unsigned most = 1u << 20; /* every kernel strides over its grid */
    const unsigned grid = blocks < 1 ? 1u : blocks < most ? (unsigned)blocks : most;
#ifdef H3_EMULATE
    (void)stream;
    h3_emulate(name, dim3(grid), LANES, 0, [=] { kernel(Parameters(arguments)...); });
#else
    (void)name;
    kernel<<<grid, LANES, 0, (cudaStream_t)stream>>>(Parameters(arguments)...);
#endif
    return (int)cudaGetLastError();
}

__device__ __forceinline__ float widened(uint16_t value) { return __uint_as_float((uint32_t)value << 16); }

__device__ __forceinline__ uint16_t narrowed(float value)
{
    const uint32_t bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

__device__ __forceinline__ double element(const void *data, int bf16, int64_t i)
{
    return bf16 ? (double)widened(((const uint16_t *)data)[i]) : (double)((const float *)data)[i];
}

__global__ void compare_words(const uint32_t *a, const uint32_t *b, int64_t words, int *differs)
{
    for (int64_t i = (int64_t)blockIdx.x * LANES + threadIdx.x; i < words; i += (int64_t)gridDim.x * LANES)
        if (a[i] != b[i]) *differs = 1;
}

__global__ void compare_bytes(const unsigned char *a, const unsigned char *b, int64_t count, int *differs)
{
    for (int64_t i = (int64_t)blockIdx.x * LANES + threadIdx.x; i < count; i += (int64_t)gridDim.x * LANES)
        if (a[i] != b[i]) *differs = 1;
}

__device__ __forceinline__ int finite(double value) { return value - value == 0.0; }

/* One block a row: lanes, then folding in halves. */
__global__ void sum_rows(const void *x, int x_bf16, const void *g, int g_bf16, int64_t rows, int64_t width, int64_t group, double *out)
{
    __shared__ double lane[5][LANES];
    const int l = (int)threadIdx.x;
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const int64_t first = row * width;
        double difference = 0.0, norm = 0.0, dot = 0.0, squares = 0.0, bad = 0.0;
        for (int64_t i = l; i < width; i += LANES) {
            const double a = element(x, x_bf16, first + i), b = element(g, g_bf16, first + i), d = a - b;
            difference += d * d;
            norm += b * b;
            dot += d * b;
            bad += finite(a) && finite(b) ? 0.0 : 1.0;
        }
        for (int64_t i = l; i < width / group; i += LANES) {
            double q = 0.0;
            for (int64_t j = 0; j < group; j++) {
                const double value = element(g, g_bf16, first + i * group + j);
                q += value * value;
            }
            squares += q * q;
        }
        lane[0][l] = difference;
        lane[1][l] = norm;
        lane[2][l] = dot;
        lane[3][l] = squares;
        lane[4][l] = bad;
        for (int step = LANES / 2; step > 0; step /= 2) {
            __syncthreads();
            for (int k = 0; k < 5 && l < step; k++) lane[k][l] += lane[k][l + step];
        }
        if (l == 0)
            for (int k = 0; k < 5; k++) out[5 * row + k] = lane[k][0];
        __syncthreads();
    }
}

/* Philox4x32-10, one counter a thread and turn: four elements. */
__global__ void synthesize(void *out, int bf16, int through_bf16, int64_t count, uint32_t key0, uint32_t key1, float base, float amp)
{
    for (int64_t block = (int64_t)blockIdx.x * LANES + threadIdx.x; 4 * block < count; block += (int64_t)gridDim.x * LANES) {
        uint32_t c[4] = {(uint32_t)block, (uint32_t)((wide)block >> 32), 0, 0}, k0 = key0, k1 = key1;
        for (int round = 0; round < 10; round++) {
            const wide p0 = (wide)0xd2511f53u * c[0], p1 = (wide)0xcd9e8d57u * c[2];
            const uint32_t n0 = (uint32_t)(p1 >> 32) ^ c[1] ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c[3] ^ k1;
            c[1] = (uint32_t)p1;
            c[3] = (uint32_t)p0;
            c[0] = n0;
            c[2] = n2;
            k0 += 0x9e3779b9u;
            k1 += 0xbb67ae85u;
        }
        for (int i = 0; i < 4 && 4 * block + i < count; i++) {
            const float u = (float)(int32_t)c[i] * 0x1p-31f, scaled = amp * u, value = base + scaled; /* built without contraction */
            const uint16_t half = narrowed(value);
            if (bf16) ((uint16_t *)out)[4 * block + i] = half;
            else ((float *)out)[4 * block + i] = through_bf16 ? widened(half) : value;
        }
    }
}

__global__ void widen(float *out, const uint16_t *in, int64_t count)
{
    for (int64_t i = (int64_t)blockIdx.x * LANES + threadIdx.x; i < count; i += (int64_t)gridDim.x * LANES) out[i] = widened(in[i]);
}

template <class Element> __global__ void pick(Element *out, const Element *in, int64_t count, uint64_t step, uint64_t all)
{
    for (int64_t j = (int64_t)blockIdx.x * LANES + threadIdx.x; j < count; j += (int64_t)gridDim.x * LANES) out[j] = in[(uint64_t)j * step % all];
}

template <class Element> int launch_pick(void *stream, void *out, const void *in, int64_t count, uint64_t step, uint64_t all)
{
    return launch(stream, "pick", pick<Element>, (count + LANES - 1) / LANES, (Element *)out, (const Element *)in, count, step, all);
}

int64_t blocks_for(int64_t items) { return (items + LANES - 1) / LANES; }

} // namespace

extern "C" int h3_kernel_equal(void *stream, const void *a, const void *b, uint64_t bytes, int *differs)
{
    const bool words = bytes % 4 == 0 && ((uintptr_t)a | (uintptr_t)b) % 4 == 0;
    if (words)
        return launch(stream, "compare_words", compare_words, blocks_for((int64_t)(bytes / 4)), (const uint32_t *)a, (const uint32_t *)b, (int64_t)(bytes / 4), differs);
    return launch(stream, "compare_bytes", compare_bytes, blocks_for((int64_t)bytes), (const unsigned char *)a, (const unsigned char *)b, (int64_t)bytes, differs);
}

extern "C" int h3_kernel_row_sums(void *stream, const void *x, int x_bf16, const void *g, int g_bf16, int64_t rows, int64_t width, int64_t group, double *out)
{
    return launch(stream, "sum_rows", sum_rows, rows, x, x_bf16, g, g_bf16, rows, width, group, out);
}

extern "C" int h3_kernel_synth(void *stream, void *out, int bf16, int through_bf16, int64_t count, uint32_t key0, uint32_t key1, float base, float amp)
{
    return launch(stream, "synthesize", synthesize, blocks_for((count + 3) / 4), out, bf16, through_bf16, count, key0, key1, base, amp);
}

extern "C" int h3_kernel_widen(void *stream, float *out, const uint16_t *in, int64_t count)
{
    return launch(stream, "widen", widen, blocks_for(count), out, in, count);
}

extern "C" int h3_kernel_samples(void *stream, void *out, const void *in, int64_t count, uint64_t step, uint64_t all, int bytes)
{
    if (bytes == 1) return launch_pick<uint8_t>(stream, out, in, count, step, all);
    if (bytes == 2) return launch_pick<uint16_t>(stream, out, in, count, step, all);
    if (bytes == 4) return launch_pick<uint32_t>(stream, out, in, count, step, all);
    return launch_pick<uint64_t>(stream, out, in, count, step, all);
}
