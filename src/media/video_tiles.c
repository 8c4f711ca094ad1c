#include "media/video_tiles.h"

#include "base/half.h"

h3_status h3_video_axis_plan(h3_video_axis *out, int64_t size, int64_t tile, int64_t overlap, int64_t unit)
{
    *out = (h3_video_axis){0};
    if (unit < 1 || size < unit || size % unit != 0 || size > INT32_MAX / 4)
        return h3_error(H3_USAGE, "a picture axis of %lld pixels; it must be a multiple of %lld", (long long)size, (long long)unit);
    if (tile < unit || tile % unit != 0 || overlap < 0 || overlap >= tile || overlap % unit != 0)
        return h3_error(H3_USAGE, "tiles of %lld pixels that overlap by %lld do not fit latents of %lld pixels; both must be multiples of those, and the overlap the smaller",
                        (long long)tile, (long long)overlap, (long long)unit);
    out->size = (int32_t)size;
    out->tile = (int32_t)(size < tile ? size : tile);
    out->count = 1;
    if (size <= tile) return H3_OK;
    int64_t count = (size + tile - 1) / tile;
    while (tile * count - overlap * (count - 1) < size) count++;
    if (count > H3_VIDEO_TILES) return h3_error(H3_USAGE, "%lld pixels need %lld tiles, more than %d; use larger tiles", (long long)size, (long long)count, H3_VIDEO_TILES);
    out->count = (int32_t)count;
    for (int64_t i = 0; i + 1 < count; i++) out->overlap[i] = (int32_t)overlap;
    int64_t slack = tile * count - overlap * (count - 1) - size;
    for (int64_t i = 0; slack > 0; i = (i + 1) % (count - 1), slack -= unit) out->overlap[i] += (int32_t)unit;
    for (int64_t i = 0; i + 1 < count; i++) {
        if (out->overlap[i] >= tile) return h3_error(H3_USAGE, "%lld pixels cannot be cut into tiles of %lld", (long long)size, (long long)tile);
        out->start[i + 1] = out->start[i] + (int32_t)tile - out->overlap[i];
    }
    return H3_OK;
}

h3_video_axis h3_video_axis_shrink(const h3_video_axis *axis, int64_t unit)
{
    const int32_t u = (int32_t)unit;
    h3_video_axis out = {.count = axis->count, .size = axis->size / u, .tile = axis->tile / u};
    for (int32_t i = 0; i < axis->count; i++) {
        out.start[i] = axis->start[i] / u;
        out.overlap[i] = axis->overlap[i] / u;
    }
    return out;
}

h3_status h3_video_clips_plan(h3_video_clips *out, const h3_video_config *config, int64_t latents)
{
    const h3_video_sizes s = h3_video_sizes_of(config);
    const int usable = latents > 0 && latents <= INT32_MAX / 64;
    const int64_t missing = usable ? (s.chunk_latents - (latents + config->token_drop) % s.chunk_latents) % s.chunk_latents : 0;
    *out = (h3_video_clips){.latents = latents};
    if (usable) out->count = (latents + config->token_drop + missing) / s.chunk_latents - 1;
    if (out->count < 1)
        return h3_error(H3_USAGE, "a video of %lld latent frames cannot be decoded; at least %lld are needed", (long long)latents,
                        (long long)(s.chunk_latents - config->token_drop + 1));
    out->frames = out->whole_frames = config->clip_length * out->count + s.overlap_frames;
    /* The copies that filled the last clip gave frames that nobody asked for. */
    for (int64_t q = 0; q < missing; q++)
        out->frames -= (latents + q) % s.chunk_latents == 0 ? config->clip_length - (s.chunk_latents - 1) * s.temporal_ratio : s.temporal_ratio;
    return H3_OK;
}

float h3_video_blend_weight(int64_t p, int64_t extent, int half)
{
    const float weight = (float)p * (1.0f / (float)extent);
    return half ? h3_round_f16(weight) : weight;
}
