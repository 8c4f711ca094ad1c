/* Cutting a video into tiles, joining tiles to a video, and its pixels, on the CPU. */
#include "media/video_cpu.h"

h3_status h3_video_cpu_cut(const h3_device *device, h3_tensor *out, const h3_tensor *x, const h3_video_window *window)
{
    const int64_t frames = out->shape[1], height = out->shape[2], width = out->shape[3], channels = out->shape[4];
    const int64_t last = x->shape[1] - 1;
    (void)device;
#pragma omp parallel for schedule(static)
    for (int64_t line = 0; line < out->shape[0] * frames * height; line++) {
        const int64_t y = line % height, t = line / height % frames, tile = window->tile + line / height / frames;
        const int64_t frame = window->frame + t < last ? window->frame + t : last;
        const int64_t row = window->rows.start[tile / window->columns.count] + y, column = window->columns.start[tile % window->columns.count];
        for (int64_t i = 0; i < width; i++)
            for (int64_t c = 0; c < channels; c++)
                h3_store(out, (line * width + i) * channels + c, h3_load(x, ((c * x->shape[1] + frame) * x->shape[2] + row) * x->shape[3] + column + i));
    }
    return H3_OK;
}

/* a * (1 - w) + b * w at place p of E. */
static float blend(float a, float b, int64_t p, int64_t extent, int32_t dtype)
{
    const float second = h3_video_blend_weight(p, extent, dtype == H3_F16), first = h3_rounded(dtype, 1.0f - second);
    return h3_rounded(dtype, h3_rounded(dtype, a * first) + h3_rounded(dtype, b * second));
}

/* The tile with the largest start at or before `place`. */
static int32_t tile_of(const h3_video_axis *axis, int64_t place)
{
    int32_t tile = axis->count - 1;
    while (axis->start[tile] > place) tile--;
    return tile;
}

/* The value that tile (i, j) itself has at its pixel (y, x). */
static float raw(const h3_tensor *rows, const h3_video_join *g, int32_t i, int32_t j, int64_t channel, int64_t frame, int64_t y, int64_t x)
{
    const int64_t tokens = (int64_t)g->token_frames * g->token_rows * g->token_columns, side = g->patch_side;
    const int64_t token = (frame / g->patch_frames * g->token_rows + y / side) * g->token_columns + x / side;
    const int64_t value = ((channel * g->patch_frames + frame % g->patch_frames) * side + y % side) * side + x % side;
    return h3_load(rows, (((int64_t)i * g->columns.count + j) * tokens + token) * g->channels * g->patch_frames * side * side + value);
}

/* Blended over rows: with the raw tile above. */
static float joined(const h3_tensor *rows, const h3_video_join *g, int64_t channel, int64_t frame, int64_t row, int64_t column)
{
    const int32_t i = tile_of(&g->rows, row), j = tile_of(&g->columns, column);
    const int64_t y = row - g->rows.start[i], x = column - g->columns.start[j];
    const int64_t above = i > 0 ? g->rows.overlap[i - 1] : 0, left = j > 0 ? g->columns.overlap[j - 1] : 0;
    float value = raw(rows, g, i, j, channel, frame, y, x);
    if (y < above) value = blend(raw(rows, g, i - 1, j, channel, frame, g->rows.tile - above + y, x), value, y, above, rows->dtype);
    if (x < left) value = blend(raw(rows, g, i, j - 1, channel, frame, y, g->columns.tile - left + x), value, x, left, rows->dtype);
    return value;
}

h3_status h3_video_cpu_join(const h3_device *device, h3_tensor *out, const h3_tensor *rows, const h3_video_join *g)
{
    const int64_t height = g->rows.size, width = g->columns.size;
    (void)device;
#pragma omp parallel for schedule(static)
    for (int64_t line = 0; line < (int64_t)g->frames * g->channels * height; line++) {
        const int64_t row = line % height, channel = line / height % g->channels, frame = line / height / g->channels;
        const int64_t to = (((g->target_frame + frame) * g->channels + channel) * height + row) * width;
        for (int64_t column = 0; column < width; column++) {
            float value = joined(rows, g, channel, g->source_frame + frame, row, column);
            if (frame < g->blend_frames) value = blend(h3_load(out, to + column), value, frame, g->blend_frames, rows->dtype);
            h3_store(out, to + column, value);
        }
    }
    return H3_OK;
}

h3_status h3_video_cpu_to_rgb(const h3_device *device, unsigned char *out, const h3_tensor *video, int64_t *bad)
{
    const int64_t height = video->shape[2], width = video->shape[3], lines = video->shape[0] * height;
    int64_t wrong = 0;
    (void)device;
#pragma omp parallel for schedule(static) reduction(+ : wrong)
    for (int64_t line = 0; line < lines; line++) {
        const int64_t frame = line / height, row = line % height;
        for (int64_t i = 0; i < width; i++)
            for (int64_t c = 0; c < H3_VIDEO_COLOURS; c++) {
                const float v = h3_load(video, ((frame * H3_VIDEO_COLOURS + c) * height + row) * width + i);
                const float scaled = v * h3_video_pixel_std[c], pixel = scaled + h3_video_pixel_mean[c];
                wrong += !isfinite(v);
                out[(line * width + i) * H3_VIDEO_COLOURS + c] = pixel >= 1.0f ? 255 : pixel > 0.0f ? (unsigned char)nearbyintf(pixel * 255.0f) : 0;
            }
    }
    *bad = wrong;
    return H3_OK;
}
