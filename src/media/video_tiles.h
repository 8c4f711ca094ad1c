/* How a video is cut and joined: tiles of the picture, clips of time, and the weights of their overlaps (video-vae.md 3.2, 3.3). */
#ifndef H3_MEDIA_VIDEO_TILES_H
#define H3_MEDIA_VIDEO_TILES_H

#include <stdint.h>

#include "media/video_config.h"
#include "media/video_planes.h"

/* Tiles of `tile` pixels (a multiple of `unit`, the spatial ratio) that overlap by at least `overlap`; the fewest that cover `size`, the slack
 * handed out in units round-robin from the first overlap. An axis no longer than a tile is one tile. H3_USAGE for sizes that do not go. */
h3_status h3_video_axis_plan(h3_video_axis *out, int64_t size, int64_t tile, int64_t overlap, int64_t unit);
/* The same axis with every length divided by `unit`. */
h3_video_axis h3_video_axis_shrink(const h3_video_axis *axis, int64_t unit);

/* The temporal schedule of `latents` latents. */
typedef struct h3_video_clips {
    int64_t latents;
    int64_t count;         /* clips */
    int64_t whole_frames;  /* frames that the clips give */
    int64_t frames;        /* of them, from the front, that belong to the video */
} h3_video_clips;
/* H3_USAGE when there are too few latents for one clip. */
h3_status h3_video_clips_plan(h3_video_clips *out, const h3_video_config *config, int64_t latents);

/* Weight of the second of two values that are blended at place p of E: p * fl(1 / E) in FP32; with `half` rounded to half precision.
 * The first weighs 1 - that, rounded likewise. */
float h3_video_blend_weight(int64_t p, int64_t extent, int half);

#endif
