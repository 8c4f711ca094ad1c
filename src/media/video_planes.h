/* Tiles of a picture, as plain data that the CPU's and the GPU's operations share. */
#ifndef H3_MEDIA_VIDEO_PLANES_H
#define H3_MEDIA_VIDEO_PLANES_H

#include <stdint.h>

enum { H3_VIDEO_TILES = 64, H3_VIDEO_COLOURS = 3 };

/* One axis of the picture, in any unit. */
typedef struct h3_video_axis {
    int32_t count;                    /* tiles */
    int32_t size, tile;               /* of the axis, of each tile */
    int32_t start[H3_VIDEO_TILES];
    int32_t overlap[H3_VIDEO_TILES];  /* of tile i with tile i + 1 */
} h3_video_axis;

/* How the tokens of all tiles become planes of a picture: which tile a place belongs to, what is blended with it. Latents: `patch_*` are 1. */
typedef struct h3_video_join {
    h3_video_axis rows, columns;            /* of the output picture */
    int32_t channels;
    int32_t patch_frames, patch_side;       /* frames and side of the block that one token becomes */
    int32_t token_frames, token_rows, token_columns; /* tokens of a tile */
    int32_t source_frame, frames;           /* frames of the tiles that are taken */
    int32_t target_frame;                   /* where they go */
    int32_t blend_frames;                   /* of them, from the front: blended with what is there */
} h3_video_join;

#endif
