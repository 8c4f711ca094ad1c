/* Cutting a video into tiles, joining tiles to a video, and its pixels, on a GPU, each element of the result by itself. The same bits as video_join.c. */
#include "video_device.cuh"

namespace {

template <bool Half> __global__ void cut_kernel(void *out, const float *x, h3_video_cut cut, int64_t count)
{
    for (int64_t i = first_element(); i < count; i += element_step()) {
        int64_t rest = i / cut.channels;
        const int64_t channel = i % cut.channels, dx = rest % cut.width;
        rest /= cut.width;
        const int64_t dy = rest % cut.height, dt = rest / cut.height % cut.frames, tile = cut.tile + rest / cut.height / cut.frames;
        const int64_t last = cut.in_frames - 1, frame = cut.frame + dt < last ? cut.frame + dt : last;
        const int64_t row = cut.rows.start[tile / cut.columns.count] + dy, column = cut.columns.start[tile % cut.columns.count] + dx;
        store<Half>(out, i, x[((channel * cut.in_frames + frame) * cut.in_height + row) * cut.in_width + column]);
    }
}

template <bool Half> H3_DEVICE float blend(float a, float b, int64_t p, int64_t extent)
{
    const float second = rounded<Half>(__fmul_rn((float)p, __fdiv_rn(1.0f, (float)extent))), first = rounded<Half>(__fsub_rn(1.0f, second));
    return rounded<Half>(__fadd_rn(rounded<Half>(__fmul_rn(a, first)), rounded<Half>(__fmul_rn(b, second))));
}

H3_DEVICE int32_t tile_of(const h3_video_axis &axis, int64_t place)
{
    int32_t tile = axis.count - 1;
    while (axis.start[tile] > place) tile--;
    return tile;
}

template <bool Half> H3_DEVICE float raw(const void *rows, const h3_video_join &g, int32_t i, int32_t j, int32_t channel, int32_t frame, int32_t y, int32_t x)
{
    const int32_t side = g.patch_side;
    const int64_t tokens = (int64_t)g.token_frames * g.token_rows * g.token_columns;
    const int32_t token = (frame / g.patch_frames * g.token_rows + y / side) * g.token_columns + x / side;
    const int32_t value = ((channel * g.patch_frames + frame % g.patch_frames) * side + y % side) * side + x % side;
    return load<Half>(rows, (((int64_t)i * g.columns.count + j) * tokens + token) * g.channels * g.patch_frames * side * side + value);
}

template <bool Half> H3_DEVICE float joined(const void *rows, const h3_video_join &g, int32_t channel, int32_t frame, int32_t row, int32_t column)
{
    const int32_t i = tile_of(g.rows, row), j = tile_of(g.columns, column), y = row - g.rows.start[i], x = column - g.columns.start[j];
    const int32_t above = i > 0 ? g.rows.overlap[i - 1] : 0, left = j > 0 ? g.columns.overlap[j - 1] : 0;
    float value = raw<Half>(rows, g, i, j, channel, frame, y, x);
    if (y < above) value = blend<Half>(raw<Half>(rows, g, i - 1, j, channel, frame, g.rows.tile - above + y, x), value, y, above);
    if (x < left) value = blend<Half>(raw<Half>(rows, g, i, j - 1, channel, frame, y, g.columns.tile - left + x), value, x, left);
    return value;
}

/* A block a line of the picture. */
template <bool Half> __global__ void join_kernel(void *out, const void *rows, h3_video_join g, int64_t lines)
{
    for (int64_t line = blockIdx.x; line < lines; line += gridDim.x) {
        const int32_t row = (int32_t)(line % g.rows.size);
        const int64_t rest = line / g.rows.size, channel = rest % g.channels, frame = rest / g.channels;
        const int64_t to = (((g.target_frame + frame) * g.channels + channel) * g.rows.size + row) * g.columns.size;
        for (int32_t column = (int32_t)threadIdx.x; column < g.columns.size; column += THREADS) {
            float value = joined<Half>(rows, g, (int32_t)channel, g.source_frame + (int32_t)frame, row, column);
            if (frame < g.blend_frames) value = blend<Half>(load<Half>(out, to + column), value, frame, g.blend_frames);
            store<Half>(out, to + column, value);
        }
    }
}

template <bool Half> __global__ void to_rgb_kernel(unsigned char *out, const void *video, int64_t count, int64_t plane, unsigned long long *bad)
{
    const float mean[] = {0.485f, 0.456f, 0.406f}, deviation[] = {0.229f, 0.224f, 0.225f}; /* as video_ops.c */
    for (int64_t i = first_element(); i < count; i += element_step()) {
        const int64_t c = i % H3_VIDEO_COLOURS, pixel = i / H3_VIDEO_COLOURS % plane, frame = i / H3_VIDEO_COLOURS / plane;
        const float v = load<Half>(video, (frame * H3_VIDEO_COLOURS + c) * plane + pixel), p = __fadd_rn(__fmul_rn(v, deviation[c]), mean[c]);
        if (!(fabsf(v) < INFINITY)) atomicAdd(bad, 1ull);
        out[i] = p >= 1.0f ? 255 : p > 0.0f ? (unsigned char)rintf(__fmul_rn(p, 255.0f)) : 0;
    }
}

} // namespace

#define EITHER(kernel) (half ? kernel<true> : kernel<false>)

int h3_video_start_cut(void *stream, void *out, const float *x, int half, const h3_video_cut *cut)
{
    const int64_t count = cut->tiles * cut->frames * cut->height * cut->width * cut->channels;
    return launch(stream, "cut", EITHER(cut_kernel), blocks_for(count), out, x, *cut, count);
}

int h3_video_start_join(void *stream, void *out, const void *rows, int half, const h3_video_join *join)
{
    const int64_t lines = (int64_t)join->frames * join->channels * join->rows.size;
    return launch(stream, "join", EITHER(join_kernel), lines, out, rows, *join, lines);
}

int h3_video_start_to_rgb(void *stream, unsigned char *out, const void *video, int half, int64_t frames, int64_t height, int64_t width, unsigned long long *bad)
{
    const int64_t count = frames * height * width * H3_VIDEO_COLOURS;
    return launch(stream, "to_rgb", EITHER(to_rgb_kernel), blocks_for(count), out, video, count, height * width, bad);
}
