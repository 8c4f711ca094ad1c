/* The video autoencoder's row-wise layers on a GPU. Between two rounding points arithmetic is float32, every operation rounded by itself. Four or eight neighbours
 * share a thread where rows allow it. */
#include "video_rows.cuh"

namespace {

/* Four elements from a multiple of four. */
template <bool Half> H3_DEVICE float4 load4(const void *data, int64_t i)
{
    if (!Half) return *(const float4 *)((const float *)data + i);
    const uint2 pairs = *(const uint2 *)((const uint16_t *)data + i);
    return four_of(pairs.x, pairs.y);
}

template <bool Half> H3_DEVICE void store4(void *data, int64_t i, float4 v)
{
    if (Half) {
        const uint2 pairs = make_uint2(narrowed(v.x) | (uint32_t)narrowed(v.y) << 16, narrowed(v.z) | (uint32_t)narrowed(v.w) << 16);
        *(uint2 *)((uint16_t *)data + i) = pairs;
    } else {
        *(float4 *)((float *)data + i) = v;
    }
}

__global__ void round_kernel(uint16_t *out, const float *x, int64_t count)
{
    for (int64_t i = first_element(); i < count; i += element_step()) out[i] = narrowed(x[i]);
}

/* Kernels over rows: a block a row, so that no thread divides by a width. */
__global__ void add_bias_kernel(uint16_t *out, const uint16_t *bias, int64_t rows, int64_t width)
{
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x)
        for (int64_t i = threadIdx.x; i < width; i += THREADS) out[row * width + i] = narrowed(__fadd_rn(widened(out[row * width + i]), widened(bias[i])));
}

template <bool Half>
__global__ void embed_kernel(float *out, const void *tokens, const float *registers, int64_t rows, int64_t own, int64_t given, int64_t all, int64_t width)
{
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const int64_t token = row % all, from = (row / all * own + token) * width;
        for (int64_t i = threadIdx.x; i < width; i += THREADS) {
            float value = 0.0f;
            if (token < own) value = load<Half>(tokens, from + i);
            else if (token < own + given) value = registers[(token - own) * width + i];
            out[row * width + i] = value;
        }
    }
}

H3_DEVICE float inverse_root(double squares, int64_t width, float epsilon)
{
    return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn((float)(squares / (double)width), epsilon)));
}

H3_DEVICE double square(float value) { return (double)value * (double)value; }

H3_DEVICE float4 normed4(float4 v, float4 w, float inverse)
{
    return make_float4(__fmul_rn(__fmul_rn(v.x, inverse), w.x), __fmul_rn(__fmul_rn(v.y, inverse), w.y), __fmul_rn(__fmul_rn(v.z, inverse), w.z),
                       __fmul_rn(__fmul_rn(v.w, inverse), w.w));
}

/* A row of `width` scaled by 1 / root mean square and the weight; `squares` is this thread's share of the sum, whose elements it also writes. */
template <bool Half> H3_DEVICE void write_normed(void *out, const float *from, const float *weight, int64_t row, int64_t width, double squares, float epsilon)
{
    const float inverse = inverse_root(sum_block(squares), width, epsilon);
    if (width % 4 == 0) {
        for (int64_t i = 4 * threadIdx.x; i < width; i += 4 * THREADS) {
            const float4 v = load4<false>(from, i), w = load4<false>(weight, i);
            store4<Half>(out, row * width + i, normed4(v, w, inverse));
        }
        return;
    }
    for (int64_t i = threadIdx.x; i < width; i += THREADS) store<Half>(out, row * width + i, __fmul_rn(__fmul_rn(from[i], inverse), weight[i]));
}

template <bool Half> __global__ void rms_norm_kernel(void *out, const float *x, const float *weight, int64_t rows, int64_t width, float epsilon)
{
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const float *from = x + row * width;
        double sum = 0.0;
        if (width % 4 == 0) {
            for (int64_t i = 4 * threadIdx.x; i < width; i += 4 * THREADS) {
                const float4 v = load4<false>(from, i);
                sum += square(v.x) + square(v.y) + square(v.z) + square(v.w);
            }
        } else {
            for (int64_t i = threadIdx.x; i < width; i += THREADS) sum += square(from[i]);
        }
        write_normed<Half>(out, from, weight, row, width, sum, epsilon);
    }
}

/* What a thread of a row's block holds of a row that is narrow enough: HELD times four elements. */
constexpr int HELD = 2;

/* x += branch * scale where a block holds the row; the thread's share of the sum of squares. */
template <bool Half> H3_DEVICE double add_held(float4 (&held)[HELD], float *own, const void *branch, const float *scale, int64_t start, int width)
{
    double sum = 0.0;
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        const int i = 4 * ((int)threadIdx.x + k * THREADS);
        if (i >= width) break;
        held[k] = scaled_sum(load4<false>(own, i), load4<Half>(branch, start + i), load4<false>(scale, i));
        store4<false>(own, i, held[k]);
        sum += square(held[k].x) + square(held[k].y) + square(held[k].z) + square(held[k].w);
    }
    return sum;
}

H3_DEVICE double read_held(float4 (&held)[HELD], const float *own, int width)
{
    double sum = 0.0;
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        const int i = 4 * ((int)threadIdx.x + k * THREADS);
        if (i >= width) break;
        held[k] = load4<false>(own, i);
        sum += square(held[k].x) + square(held[k].y) + square(held[k].z) + square(held[k].w);
    }
    return sum;
}

template <bool Half> H3_DEVICE void write_held(void *out, const float4 (&held)[HELD], const float *weight, int64_t start, int width, float inverse)
{
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        const int i = 4 * ((int)threadIdx.x + k * THREADS);
        if (i < width) store4<Half>(out, start + i, normed4(held[k], load4<false>(weight, i), inverse));
    }
}

/* x += branch * scale, and out = the new x normed: a residual stream is read once, */
template <bool Half>
__global__ void add_norm_held_kernel(void *out, float *x, const void *branch, const float *scale, const float *weight, int64_t rows, int width, float epsilon)
{
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        float4 held[HELD] = {};
        const double sum = add_held<Half>(held, x + row * width, branch, scale, row * width, width);
        if (out != nullptr) write_held<Half>(out, held, weight, row * width, width, inverse_root(sum_block(sum), width, epsilon));
    }
}

template <bool Half> __global__ void rms_norm_held_kernel(void *out, const float *x, const float *weight, int64_t rows, int width, float epsilon)
{
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        float4 held[HELD] = {};
        const double sum = read_held(held, x + row * width, width);
        write_held<Half>(out, held, weight, row * width, width, inverse_root(sum_block(sum), width, epsilon));
    }
}

/* and for rows of any width, with the same sums. */
template <bool Half>
__global__ void add_norm_kernel(void *out, float *x, const void *branch, const float *scale, const float *weight, int64_t rows, int64_t width, float epsilon)
{
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        float *own = x + row * width;
        double sum = 0.0;
        for (int64_t i = 4 * threadIdx.x; width % 4 == 0 && i < width; i += 4 * THREADS) {
            const float4 v = scaled_sum(load4<false>(own, i), load4<Half>(branch, row * width + i), load4<false>(scale, i));
            store4<false>(own, i, v);
            sum += square(v.x) + square(v.y) + square(v.z) + square(v.w);
        }
        for (int64_t i = threadIdx.x; width % 4 != 0 && i < width; i += THREADS) {
            own[i] = __fadd_rn(own[i], __fmul_rn(load<Half>(branch, row * width + i), scale[i]));
            sum += square(own[i]);
        }
        if (out != nullptr) write_normed<Half>(out, own, weight, row, width, sum, epsilon); /* each thread reads what it wrote itself */
    }
}

/* One head, by a warp. A pair belongs to one lane, which reads both before it writes them; the sum has read everything by then. */
template <bool Half> H3_DEVICE void rotate_head(void *qkv, int64_t start, const float *cosine, const float *sine, int lane, int dim, int pairs, float epsilon)
{
    float sum = 0.0f;
    for (int d = lane; d < dim; d += WARP) {
        const float value = load<Half>(qkv, start + d);
        sum = __fadd_rn(sum, __fmul_rn(value, value));
    }
    sum = sum_warp(sum);
    const float inverse = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(sum, (float)dim), epsilon)));
    for (int d = lane; d < dim - pairs; d += WARP) {
        if (d >= pairs) { /* behind the pairs: not rotated */
            store<Half>(qkv, start + pairs + d, __fmul_rn(load<Half>(qkv, start + pairs + d), inverse));
            continue;
        }
        const float a = rounded<Half>(__fmul_rn(load<Half>(qkv, start + d), inverse)), b = rounded<Half>(__fmul_rn(load<Half>(qkv, start + pairs + d), inverse));
        const float c = cosine[d], s = sine[d];
        store<Half>(qkv, start + d, __fadd_rn(rounded<Half>(__fmul_rn(a, c)), rounded<Half>(__fmul_rn(-b, s))));
        store<Half>(qkv, start + pairs + d, __fadd_rn(rounded<Half>(__fmul_rn(b, c)), rounded<Half>(__fmul_rn(a, s))));
    }
}

/* A block a row, four heads a warp. */
__global__ void rotate_64_kernel(uint16_t *qkv, const float *cosine, const float *sine, int64_t rows, int64_t tokens, int heads, float epsilon)
{
    const int part = (int)threadIdx.x % 8;
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const turns turn[1] = {turns_at(cosine, sine, row % tokens, part)};
        for (int first = 0; first < 2 * heads; first += THREADS / 8) {
            const int head = first + (int)threadIdx.x / 8;
            uint4 *own = (uint4 *)(qkv + (row * 3 * heads + head) * 64 + 8 * part), words[1] = {{0, 0, 0, 0}};
            if (head < 2 * heads) words[0] = *own;
            rotate_64<1>(words, turn, part, epsilon);
            if (head < 2 * heads) *own = words[0];
        }
    }
}

/* q's heads, then k's, shared out over the warps of the row's block. */
template <bool Half>
__global__ void rotate_kernel(void *qkv, const float *cosine, const float *sine, int64_t rows, int64_t tokens, int heads, int dim, int pairs, float epsilon)
{
    const int lane = (int)threadIdx.x % WARP;
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const int64_t angle = row % tokens * pairs, start = row * 3 * heads * dim;
        for (int head = (int)threadIdx.x / WARP; head < 2 * heads; head += THREADS / WARP)
            rotate_head<Half>(qkv, start + (int64_t)head * dim, cosine + angle, sine + angle, lane, dim, pairs, epsilon);
    }
}

template <bool Half> __global__ void swiglu_kernel(void *out, const void *x, int64_t rows, int64_t width)
{
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const int64_t from = 2 * row * width;
        if (Half && width % 8 == 0) {
            for (int64_t i = 8 * threadIdx.x; i < width; i += 8 * THREADS) {
                const uint4 v = *(const uint4 *)((const uint16_t *)x + from + i), g = *(const uint4 *)((const uint16_t *)x + from + width + i);
                *(uint4 *)((uint16_t *)out + row * width + i) = gated_eight(v, g);
            }
        } else if (width % 4 == 0) {
            for (int64_t i = 4 * threadIdx.x; i < width; i += 4 * THREADS) {
                const float4 v = load4<Half>(x, from + i), g = load4<Half>(x, from + width + i);
                store4<Half>(out, row * width + i, make_float4(gated<Half>(v.x, g.x), gated<Half>(v.y, g.y), gated<Half>(v.z, g.z), gated<Half>(v.w, g.w)));
            }
        } else {
            for (int64_t i = threadIdx.x; i < width; i += THREADS)
                store<Half>(out, row * width + i, gated<Half>(load<Half>(x, from + i), load<Half>(x, from + width + i)));
        }
    }
}

template <bool Half>
__global__ void layer_norm_kernel(void *out, const float *x, const float *weight, const float *bias, int64_t rows, int64_t kept, int64_t all, int64_t width, float epsilon)
{
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const float *from = x + (row / kept * all + row % kept) * width;
        double sum = 0.0, squares = 0.0;
        for (int64_t i = threadIdx.x; i < width; i += THREADS) sum += (double)from[i];
        const double mean = sum_block(sum) / (double)width;
        for (int64_t i = threadIdx.x; i < width; i += THREADS) squares += ((double)from[i] - mean) * ((double)from[i] - mean);
        squares = sum_block(squares);
        const float inverse = inverse_root(squares, width, epsilon);
        for (int64_t i = threadIdx.x; i < width; i += THREADS)
            store<Half>(out, row * width + i, __fadd_rn(__fmul_rn(__fmul_rn(__fsub_rn(from[i], (float)mean), inverse), weight[i]), bias[i]));
    }
}

/* A block a frame and group. */
__global__ void group_statistics_kernel(float *statistics, const float *x, int64_t tasks, int64_t pixels, int64_t channels, int64_t groups, float epsilon)
{
    const int64_t count = channels / groups, size = pixels * count;
    for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
        const float *from = x + task / groups * pixels * channels + task % groups * count;
        double sum = 0.0, squares = 0.0;
        for (int64_t i = threadIdx.x; i < size; i += THREADS) sum += (double)from[i / count * channels + i % count];
        const double mean = sum_block(sum) / (double)size;
        for (int64_t i = threadIdx.x; i < size; i += THREADS) {
            const double d = (double)from[i / count * channels + i % count] - mean;
            squares += d * d;
        }
        squares = sum_block(squares);
        if (threadIdx.x != 0) continue;
        statistics[2 * task] = (float)mean;
        statistics[2 * task + 1] = inverse_root(squares, size, epsilon);
    }
}

__global__ void group_apply_kernel(float *out, const float *x, const float *statistics, const float *weight, const float *bias, int64_t total, int64_t pixels, int64_t channels,
                                   int64_t groups)
{
    for (int64_t i = first_element(); i < total; i += element_step()) {
        const int64_t channel = i % channels, task = i / channels / pixels * groups + channel / (channels / groups);
        out[i] = silu(__fadd_rn(__fmul_rn(__fmul_rn(__fsub_rn(x[i], statistics[2 * task]), statistics[2 * task + 1]), weight[channel]), bias[channel]));
    }
}

__global__ void add_kernel(float *x, const float *y, int64_t count)
{
    for (int64_t i = first_element(); i < count; i += element_step()) x[i] = __fadd_rn(x[i], y[i]);
}

} // namespace

/* The kernel for the profile. */
#define EITHER(kernel) (half ? kernel<true> : kernel<false>)

int h3_video_start_round(void *stream, uint16_t *out, const float *x, int64_t count) { return launch(stream, "round", round_kernel, blocks_for(count), out, x, count); }

int h3_video_start_add_bias(void *stream, uint16_t *out, const uint16_t *bias, int64_t rows, int64_t width)
{
    return launch(stream, "add_bias", add_bias_kernel, rows, out, bias, rows, width);
}

int h3_video_start_embed(void *stream, float *out, const void *tokens, const float *registers, int half, int64_t tiles, int64_t own, int64_t given, int64_t all, int64_t width)
{
    return launch(stream, "embed", EITHER(embed_kernel), tiles * all, out, tokens, registers, tiles * all, own, given, all, width);
}

int h3_video_start_rms_norm(void *stream, void *out, const float *x, const float *weight, int half, int64_t rows, int64_t width, float epsilon)
{
    if (width % 4 == 0 && width <= 4 * THREADS * HELD) return launch(stream, "rms_norm_held", EITHER(rms_norm_held_kernel), rows, out, x, weight, rows, (int)width, epsilon);
    return launch(stream, "rms_norm", EITHER(rms_norm_kernel), rows, out, x, weight, rows, width, epsilon);
}

int h3_video_start_rotate(void *stream, void *qkv, const float *cosine, const float *sine, int half, int64_t rows, int64_t tokens, int64_t heads, int64_t dim, int64_t pairs,
                          float epsilon)
{
    if (half && dim == 64 && pairs == 24) return launch(stream, "rotate_64", rotate_64_kernel, rows, (uint16_t *)qkv, cosine, sine, rows, tokens, (int)heads, epsilon);
    return launch(stream, "rotate", EITHER(rotate_kernel), rows, qkv, cosine, sine, rows, tokens, heads, dim, pairs, epsilon);
}

int h3_video_start_swiglu(void *stream, void *out, const void *x, int half, int64_t rows, int64_t width)
{
    return launch(stream, "swiglu", EITHER(swiglu_kernel), rows, out, x, rows, width);
}

int h3_video_start_add_norm(void *stream, void *out, float *x, const void *branch, const float *scale, const float *weight, int half, int64_t rows, int64_t width, float epsilon)
{
    if (width % 4 == 0 && width <= 4 * THREADS * HELD)
        return launch(stream, "add_norm_held", EITHER(add_norm_held_kernel), rows, out, x, branch, scale, weight, rows, (int)width, epsilon);
    return launch(stream, "add_norm", EITHER(add_norm_kernel), rows, out, x, branch, scale, weight, rows, width, epsilon);
}

int h3_video_start_layer_norm(void *stream, void *out, const float *x, const float *weight, const float *bias, int half, int64_t tiles, int64_t kept, int64_t all, int64_t width,
                              float epsilon)
{
    return launch(stream, "layer_norm", EITHER(layer_norm_kernel), tiles * kept, out, x, weight, bias, tiles * kept, kept, all, width, epsilon);
}

int h3_video_start_group_statistics(void *stream, float *statistics, const float *x, int64_t frames, int64_t pixels, int64_t channels, int64_t groups, float epsilon)
{
    return launch(stream, "group_statistics", group_statistics_kernel, frames * groups, statistics, x, frames * groups, pixels, channels, groups, epsilon);
}

int h3_video_start_group_apply(void *stream, float *out, const float *x, const float *statistics, const float *weight, const float *bias, int64_t frames, int64_t pixels,
                               int64_t channels, int64_t groups)
{
    const int64_t total = frames * pixels * channels;
    return launch(stream, "group_apply", group_apply_kernel, blocks_for(total), out, x, statistics, weight, bias, total, pixels, channels, groups);
}

int h3_video_start_add(void *stream, float *x, const float *y, int64_t count) { return launch(stream, "add", add_kernel, blocks_for(count), x, y, count); }
