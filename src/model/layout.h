/* The packed sequence of text, keyframe, audio and video rows, and the timestep of every row (packed-layout.md). */
#ifndef H3_MODEL_LAYOUT_H
#define H3_MODEL_LAYOUT_H

#include <stdint.h>

#include "base/error.h"

enum { H3_ANCHOR_FIRST = 1, H3_ANCHOR_LAST = 2 };
enum { H3_TAG_VIDEO = 0, H3_TAG_TEXT = 1, H3_TAG_AUDIO = 2 };

/* Arguments as in layouts.json: text rows, latent frames, latent h and w, audio latents a channel, anchors, and the number of
 * text rows (from row 1 on) that carry the video tag. patch_h and patch_w from the model's patch_size. */
typedef struct h3_layout_args {
    int64_t text, frames, height, width, audio, vision_rows;
    int32_t anchors; /* H3_ANCHOR_* bits */
    int64_t patch_h, patch_w;
} h3_layout_args;

typedef struct h3_layout {
    h3_layout_args args;
    int64_t rows;            /* S */
    int64_t rows_per_frame;  /* R */
    int64_t condition_rows;  /* nc */
    int64_t audio_rows;      /* 2A */
    int64_t target_rows;     /* F * R */
    int64_t video_rows;      /* nc + F * R */
    int64_t condition_start, audio_start, video_start;
    double *position_ids;    /* [S,3] t,h,w */
    int64_t *token_tags;     /* [S] */
    int64_t *video_indices;  /* [video_rows], conditions first */
    int64_t *audio_indices;  /* [audio_rows] */
    int64_t *text_indices;   /* [text] */
} h3_layout;

/* Text rows, latent frames, latents of an axis and audio latents are at least 1; vision_rows is below text.
 * H3_USAGE for arguments that no layout has (negative, zero where rows are needed, h or w no multiple of the patch, S > 2^31). */
h3_status h3_layout_new(h3_layout *out, const h3_layout_args *args);
/* As above, but the text rows' tags are given one by one (each 0 or 1), length args->text. */
h3_status h3_layout_new_tagged(h3_layout *out, const h3_layout_args *args, const int64_t *text_tags);
void h3_layout_free(h3_layout *layout);
/* The same sizes and errors, but no arrays: nothing is allocated, whatever the arguments ask for. */
h3_status h3_layout_sizes(h3_layout *out, const h3_layout_args *args);

enum { H3_MAX_TIMESTEPS = 3 };

/* The distinct timesteps, ascending, and each row's position among them (int64 [S], caller's array): video and text rows
 * `video_time`, condition rows max(video_time, condition_time), audio rows `audio_time`. H3_USAGE when a time is not finite. */
h3_status h3_timestep_plan(const h3_layout *layout, float video_time, float audio_time, double condition_time,
                           float timestep[H3_MAX_TIMESTEPS], int64_t *timestep_count, int64_t *timestep_indices);

/* frames of a clip -> latent frames and audio latents a channel (section 1). */
int64_t h3_latent_frames(int64_t frames);
int64_t h3_audio_latents(int64_t frames);

/* Latents [C,F,h,w] to rows [F*(h/ph)*(w/pw), C*ph*pw] and back. Caller's arrays, float32. */
void h3_patchify(float *rows, const float *latent, int64_t channels, int64_t frames, int64_t height, int64_t width,
                 int64_t patch_h, int64_t patch_w);
void h3_unpatchify(float *latent, const float *rows, int64_t channels, int64_t frames, int64_t height, int64_t width,
                   int64_t patch_h, int64_t patch_w);

#endif
