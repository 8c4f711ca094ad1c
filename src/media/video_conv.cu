/*
 * Products of the video autoencoder on a GPU: convolutions, and linear layers that cublasLt does not take, as convolutions with a kernel of 1.
 *
 * Every result is one FP32 accumulator that starts at 0 and takes fma(x, weight, accumulator), taps ascending, channels ascending; the bias comes last: the CPU's
 * order (video_products.c), hence the CPU's bits. A block computes PIXELS x COLUMNS results, eight by four a thread, DEPTH channels of one tap at a time
 * from shared memory.
 */
#include "video_device.cuh"

namespace {

constexpr int PIXELS = 128, COLUMNS = 64, DEPTH = 8, PITCH = PIXELS + 4;
constexpr int DOWN = 8, ACROSS = 4; /* results of a thread */
static_assert(PIXELS / DOWN * (COLUMNS / ACROSS) == THREADS && PIXELS * 2 == THREADS, "a thread fetches half a pixel's channels");

/* Where an output pixel looks in x. */
struct place {
    int64_t item, frame, y, x; /* of the output */
    bool there;
};

H3_DEVICE place place_of(const h3_video_product &p, int64_t pixel)
{
    const int64_t all = p.items * p.out_frames * p.out_height * p.out_width;
    place at;
    at.there = pixel < all;
    at.x = pixel % p.out_width;
    at.y = pixel / p.out_width % p.out_height;
    at.frame = pixel / p.out_width / p.out_height % p.out_frames;
    at.item = pixel / p.out_width / p.out_height / p.out_frames;
    return at;
}

H3_DEVICE int64_t reflected(int64_t i, int64_t size) { return i < 0 ? -i : i >= size ? 2 * size - 2 - i : i; }

/* Where the channels of the pixel lie that tap `tap` sees; -1 for a frame of zeros and behind the last pixel. */
H3_DEVICE int64_t seen(const h3_video_product &p, const place &at, int tap)
{
    const int k = p.kernel, before = k == 3 && p.spatial_stride == 1 ? 1 : 0;
    const int64_t frame = at.frame * p.temporal_stride + tap / (k * k) - (k - 1);
    if (!at.there || frame < 0) return -1;
    const int64_t y = reflected(at.y * p.spatial_stride + tap / k % k - before, p.height), x = reflected(at.x * p.spatial_stride + tap % k - before, p.width);
    return (((at.item * p.frames + frame) * p.height + y) * p.width + x) * p.channels;
}

/* Channels channel .. + DEPTH - 1 of a block's pixels and of its columns into shared memory, zeros where there are none. */
template <bool Half>
H3_DEVICE void fetch(const h3_video_product &p, float (*xs)[PITCH], float (*ws)[COLUMNS], int64_t from, int tap, int64_t channel, int64_t first_column)
{
    const int pixel = (int)threadIdx.x / 2, half = (int)threadIdx.x % 2 * 4;
    float v[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (!Half && from >= 0 && p.channels % 4 == 0 && channel + half < p.channels) {
        const float4 four = *(const float4 *)((const float *)p.x + from + channel + half);
        v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
    } else if (from >= 0) {
        for (int i = 0; i < 4; i++) v[i] = channel + half + i < p.channels ? load<Half>(p.x, from + channel + half + i) : 0.0f;
    }
    for (int i = 0; i < 4; i++) xs[half + i][pixel] = v[i];
    for (int i = (int)threadIdx.x; i < DEPTH * COLUMNS; i += THREADS) {
        const int64_t c = channel + i / COLUMNS, column = first_column + i % COLUMNS;
        ws[i / COLUMNS][i % COLUMNS] = c < p.channels && column < p.columns ? load<Half>(p.weight, ((int64_t)tap * p.channels + c) * p.columns + column) : 0.0f;
    }
}

H3_DEVICE void multiply(float (&sums)[DOWN][ACROSS], const float (*xs)[PITCH], const float (*ws)[COLUMNS], int row, int column)
{
#pragma unroll
    for (int k = 0; k < DEPTH; k++) {
        const float4 low = *(const float4 *)&xs[k][row], high = *(const float4 *)&xs[k][row + 4], w = *(const float4 *)&ws[k][column];
        const float a[DOWN] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}, b[ACROSS] = {w.x, w.y, w.z, w.w};
#pragma unroll
        for (int i = 0; i < DOWN; i++)
#pragma unroll
            for (int j = 0; j < ACROSS; j++) sums[i][j] = fmaf(a[i], b[j], sums[i][j]);
    }
}

/* A tap whose frame is all zeros for every pixel of the launch adds nothing: with one frame of input that is two thirds of the taps. */
H3_DEVICE bool empty_tap(const h3_video_product &p, int tap)
{
    const int64_t latest = (p.out_frames - 1) * p.temporal_stride + tap / (p.kernel * p.kernel) - (p.kernel - 1);
    return latest < 0;
}

template <bool Half> __global__ void product_kernel(h3_video_product p, int64_t column_blocks, int64_t blocks)
{
    __shared__ __align__(16) float xs[DEPTH][PITCH];
    __shared__ __align__(16) float ws[DEPTH][COLUMNS];
    const int row = (int)threadIdx.x / (COLUMNS / ACROSS) * DOWN, column = (int)threadIdx.x % (COLUMNS / ACROSS) * ACROSS;
    for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
        const int64_t first_pixel = block / column_blocks * PIXELS, first_column = block % column_blocks * COLUMNS;
        const place at = place_of(p, first_pixel + threadIdx.x / 2);
        float sums[DOWN][ACROSS] = {};
        for (int tap = 0; tap < p.kernel * p.kernel * p.kernel; tap++) {
            if (empty_tap(p, tap)) continue;
            const int64_t from = seen(p, at, tap);
            for (int64_t channel = 0; channel < p.channels; channel += DEPTH) {
                __syncthreads();
                fetch<Half>(p, xs, ws, from, tap, channel, first_column);
                __syncthreads();
                multiply(sums, xs, ws, row, column);
            }
        }
        for (int i = 0; i < DOWN; i++)
            for (int j = 0; j < ACROSS; j++) {
                const int64_t pixel = first_pixel + row + i, c = first_column + column + j;
                if (pixel >= p.items * p.out_frames * p.out_height * p.out_width || c >= p.columns) continue;
                const float sum = p.separate_bias ? rounded<Half>(sums[i][j]) : sums[i][j];
                store<Half>(p.out, pixel * p.columns + c, __fadd_rn(sum, load<Half>(p.bias, c)));
            }
    }
}

template <class T> __global__ void pack_kernel(T *out, const T *weight, int64_t columns, int64_t channels, int64_t taps)
{
    for (int64_t i = first_element(); i < columns * channels * taps; i += element_step()) {
        const int64_t column = i % columns, channel = i / columns % channels, tap = i / columns / channels;
        out[i] = weight[(column * channels + channel) * taps + tap];
    }
}

} // namespace

int h3_video_start_product(void *stream, const h3_video_product *p, int half)
{
    const int64_t pixels = p->items * p->out_frames * p->out_height * p->out_width, column_blocks = (p->columns + COLUMNS - 1) / COLUMNS;
    const int64_t blocks = (pixels + PIXELS - 1) / PIXELS * column_blocks;
    return launch(stream, "product", half ? product_kernel<true> : product_kernel<false>, blocks, *p, column_blocks, blocks);
}

int h3_video_start_pack(void *stream, void *out, const void *weight, int half, int64_t columns, int64_t channels, int64_t taps)
{
    const int64_t blocks = blocks_for(columns * channels * taps);
    if (half) return launch(stream, "pack", pack_kernel<uint16_t>, blocks, (uint16_t *)out, (const uint16_t *)weight, columns, channels, taps);
    return launch(stream, "pack", pack_kernel<float>, blocks, (float *)out, (const float *)weight, columns, channels, taps);
}
