/*
 * The audio decoder on a GPU: float32, the sums in the CPU's order, so that the bits are the CPU's.
 */
#ifdef H3_EMULATE
#include "emulate_provider.h" /* tests run the kernels on the host */
#else
#include <cuda_runtime.h>
#endif

#include "audio_kernels.h"
#include "audio_snake.h"

namespace {

constexpr int THREADS = 256, SAMPLES = 4; /* a thread keeps 4 samples of 8 channels, or of 4 */
constexpr int WARPS = THREADS / 32;
constexpr int CHANNELS = 8;                  /* input channels that are in shared memory at a time, at most */
constexpr int64_t SHARED = 48 * 1024, GRID = 65535;

template <typename... P, typename... A> int start(const char *name, void (*kernel)(P...), dim3 grid, int64_t shared, void *stream, A... arguments)
{
#ifdef H3_EMULATE
    (void)stream;
    h3_emulate(name, grid, THREADS, (size_t)shared, [=] { kernel(P(arguments)...); });
#else
    (void)name;
    kernel<<<grid, THREADS, (size_t)shared, (cudaStream_t)stream>>>(P(arguments)...);
#endif
    return (int)cudaGetLastError();
}

__device__ __forceinline__ float *shared_floats()
{
#ifdef H3_EMULATE
    return (float *)h3_shared_memory();
#else
    extern __shared__ __align__(16) float memory[];
    return memory;
#endif
}

__device__ __forceinline__ void store(const h3_audio_convolution &v, int64_t batch, int64_t channel, int64_t q, float sum)
{
    const int64_t at = (batch * v.out_channels + channel) * v.out_length + v.first + q * v.stride;
    v.out[at] = v.residual != nullptr ? sum + v.residual[at] : sum;
}

__global__ void convolve_simple(h3_audio_convolution v)
{
    const int64_t count = v.batch * v.out_channels * v.length, threads = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += threads) {
        const int64_t q = i % v.length, channel = i / v.length % v.out_channels, batch = i / v.length / v.out_channels;
        const float *weight = v.weight + channel * v.in * v.taps;
        float sum = v.bias != nullptr ? v.bias[channel] : 0.0f;
        for (int64_t c = 0; c < v.in; c++)
            for (int64_t k = 0; k < v.taps; k++) {
                const int64_t n = q + v.offset + k * v.step;
                sum = fmaf(weight[c * v.taps + k], n >= 0 && n < v.length ? v.x[(batch * v.in + c) * v.length + n] : 0.0f, sum);
            }
        store(v, batch, channel, q, sum);
    }
}

/* A block's tile: Rows output channels of COLUMNS samples; more samples when there are fewer channels. */
template <int Rows> struct tile {
    static constexpr int EACH = Rows < 8 ? Rows : 8; /* channels of a thread */
    static constexpr int GROUPS = Rows / EACH, ACROSS = THREADS / GROUPS, COLUMNS = ACROSS * SAMPLES;
    static constexpr int PITCH = Rows + 4; /* of a tap's weights in shared memory; keeps float4 alignment and spreads the banks */
};

template <int Each> __device__ __forceinline__ void load_weights(float (&w)[Each], const float *from)
{
#pragma unroll
    for (int i = 0; i < Each; i += 4) {
        const float4 four = *(const float4 *)(from + i);
        w[i] = four.x, w[i + 1] = four.y, w[i + 2] = four.z, w[i + 3] = four.w;
    }
}

/* Shared memory: weights [channels][taps][PITCH], then samples [channels][width] from `lowest` on; width = COLUMNS + reach. */
template <int Rows> __global__ void convolve(h3_audio_convolution v, int channels, int width, int lowest)
{
    typedef tile<Rows> T;
    const int taps = (int)v.taps, step = (int)v.step, group = (int)threadIdx.x / T::ACROSS, across = (int)threadIdx.x % T::ACROSS;
    const int64_t batch = blockIdx.z, row = (int64_t)blockIdx.y * Rows, q0 = (int64_t)blockIdx.x * T::COLUMNS;
    float *weights = shared_floats(), *samples = weights + channels * taps * T::PITCH;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    float sum[T::EACH][SAMPLES];

#pragma unroll
    for (int i = 0; i < T::EACH; i++) {
        const int64_t channel = row + group * T::EACH + i;
        const float bias = v.bias != nullptr && channel < v.out_channels ? v.bias[channel] : 0.0f;
#pragma unroll
        for (int j = 0; j < SAMPLES; j++) sum[i][j] = bias;
    }
    for (int64_t c0 = 0; c0 < v.in; c0 += channels) {
        const int count = v.in - c0 < channels ? (int)(v.in - c0) : channels;
        __syncthreads(); /* the chunk before is used up */
        for (int r = warp; r < Rows; r += WARPS) /* a warp reads a row, coalesced */
            for (int term = lane; term < count * taps; term += 32)
                weights[term * T::PITCH + r] = row + r < v.out_channels ? v.weight[((row + r) * v.in + c0) * taps + term] : 0.0f;
        for (int c = warp; c < count; c += WARPS)
            for (int i = lane; i < width; i += 32) {
                const int64_t n = q0 + v.offset + lowest + i;
                samples[c * width + i] = n >= 0 && n < v.length ? v.x[(batch * v.in + c0 + c) * v.length + n] : 0.0f;
            }
        __syncthreads();
        const float *weight = weights + group * T::EACH;
        for (int c = 0; c < count; c++) {
            const float *x = samples + c * width - lowest + across;
            for (int k = 0; k < taps; k++, x += step, weight += T::PITCH) {
                float w[T::EACH], near[SAMPLES];
                load_weights(w, weight);
#pragma unroll
                for (int j = 0; j < SAMPLES; j++) near[j] = x[j * T::ACROSS];
#pragma unroll
                for (int i = 0; i < T::EACH; i++)
#pragma unroll
                    for (int j = 0; j < SAMPLES; j++) sum[i][j] = fmaf(w[i], near[j], sum[i][j]);
            }
        }
    }
    for (int i = 0; i < T::EACH; i++)
        for (int j = 0; j < SAMPLES; j++) {
            const int64_t channel = row + group * T::EACH + i, q = q0 + across + j * T::ACROSS;
            if (channel < v.out_channels && q < v.length) store(v, batch, channel, q, sum[i][j]);
        }
}

template <int Rows> int start_convolve(const h3_audio_convolution *v, void *stream)
{
    typedef tile<Rows> T;
    const int64_t reach = (v->taps - 1) * (v->step < 0 ? -v->step : v->step), width = T::COLUMNS + reach;
    const int64_t each = (v->taps * T::PITCH + width) * (int64_t)sizeof(float), fitting = SHARED / each, channels = fitting < CHANNELS ? fitting : CHANNELS;
    const int64_t across = (v->length + T::COLUMNS - 1) / T::COLUMNS, down = (v->out_channels + Rows - 1) / Rows;
    if (channels < 1 || across > INT32_MAX || down > GRID || v->batch > GRID) return h3_audio_start_convolve_simple(v, stream);
    return start("audio convolve", convolve<Rows>, dim3((unsigned)across, (unsigned)down, (unsigned)v->batch), channels * each, stream, *v, (int)channels, (int)width,
                 v->step < 0 ? -(int)reach : 0);
}

/* Sample i of the doubled signal, its ends repeated. */
__device__ __forceinline__ float doubled(const float *x, int64_t length, const float *filter, float a, float b, int64_t i)
{
    const int64_t inside = i < 0 ? 0 : i < 2 * length ? i : 2 * length - 1, p = inside / 2;
    const int odd = (int)(inside % 2);
    float near[6];
#pragma unroll
    for (int k = 0; k < 6; k++) {
        const int64_t n = p - 3 + odd + k;
        near[k] = x[n < 0 ? 0 : n < length ? n : length - 1];
    }
    const float up = h3_upsample(filter, 11 - odd, near), t = a * up;
    const float sine = fabsf(t) < H3_SINE_NEAR ? h3_sine_near(t) : h3_sine_far(t);
    return h3_snake(up, sine, b);
}

__global__ void activate(float *out, const float *x, const float *filter, const float *curve, int64_t channels, int64_t length)
{
    constexpr int HALF = THREADS + 6;
    __shared__ float even[HALF], odd[HALF], taps[12];
    const int64_t channel = blockIdx.y, row = blockIdx.z * channels + channel, begin = (int64_t)blockIdx.x * THREADS;
    const float a = curve[channel], b = curve[channels + channel];
    if (threadIdx.x < 12) taps[threadIdx.x] = filter[threadIdx.x];
    __syncthreads();
    for (int i = (int)threadIdx.x; i < HALF; i += THREADS) {
        even[i] = doubled(x + row * length, length, taps, a, b, 2 * (begin - 3 + i));
        odd[i] = doubled(x + row * length, length, taps, a, b, 2 * (begin - 3 + i) + 1);
    }
    __syncthreads();
    const int64_t n = begin + threadIdx.x;
    if (n < length) out[row * length + n] = h3_downsample(taps, odd + threadIdx.x, even + threadIdx.x);
}

__global__ void mean(h3_audio_mean v)
{
    const int64_t threads = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < v.elements; i += threads) {
        float sum = v.x[0][i];
        for (int64_t j = 1; j < v.count; j++) sum = sum + v.x[j][i];
        v.out[i] = sum / (float)v.count;
    }
}

dim3 striding(int64_t items)
{
    const int64_t blocks = (items + THREADS - 1) / THREADS;
    return dim3((unsigned)(blocks < GRID ? blocks : GRID));
}

} // namespace

int h3_audio_start_convolve_simple(const h3_audio_convolution *v, void *stream)
{
    return start("audio convolve, simple", convolve_simple, striding(v->batch * v->out_channels * v->length), 0, stream, *v);
}

int h3_audio_start_convolve(const h3_audio_convolution *v, void *stream)
{
    if (v->out_channels > 32) return start_convolve<64>(v, stream);
    if (v->out_channels > 16) return start_convolve<32>(v, stream);
    if (v->out_channels > 8) return start_convolve<16>(v, stream);
    return v->out_channels > 4 ? start_convolve<8>(v, stream) : start_convolve<4>(v, stream);
}

int h3_audio_start_activate(float *out, const float *x, const float *filter, const float *curve, int64_t batch, int64_t channels, int64_t length, void *stream)
{
    const dim3 grid((unsigned)((length + THREADS - 1) / THREADS), (unsigned)channels, (unsigned)batch);
    return start("audio activate", activate, grid, 0, stream, out, x, filter, curve, channels, length);
}

int h3_audio_start_mean(const h3_audio_mean *v, void *stream) { return start("audio mean", mean, striding(v->elements), 0, stream, *v); }
