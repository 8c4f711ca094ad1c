/* The shape of a video autoencoder, what follows from it, and its parameters (video-vae.md sections 1 and 2). */
#ifndef H3_MEDIA_VIDEO_CONFIG_H
#define H3_MEDIA_VIDEO_CONFIG_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "media/parameters.h"
#include "media/video_planes.h"

enum { H3_VIDEO_LEVELS = 16, H3_VIDEO_LATENT_CHANNELS = 256 };

typedef struct h3_video_config {
    int64_t latent_channels;
    int64_t level_count; /* of the encoder */
    int64_t level_channels[H3_VIDEO_LEVELS], spatial_stride[H3_VIDEO_LEVELS], temporal_stride[H3_VIDEO_LEVELS];
    int64_t layers_per_level, norm_groups;
    int64_t decoder_layers, heads, head_dim, register_tokens, ffn_multiple;
    int64_t clip_length, token_drop;
    double norm_eps, decoder_norm_eps, rope_theta;
    float latents_mean[H3_VIDEO_LATENT_CHANNELS], latents_std[H3_VIDEO_LATENT_CHANNELS];
} h3_video_config;

/* Parses config.json text. Keys that the small published configuration leaves out (norm_eps, spatial_padding_mode, decoder_rope_theta,
 * decoder_rope_dim_ratio, decoder_norm_eps) get the released values; unknown keys that start with '_' are ignored, others are an
 * error, as is whatever this decoder and encoder cannot compute. `where` names the source in messages. H3_INTEGRITY. */
h3_status h3_video_config_parse(h3_video_config *out, const char *text, size_t length, const char *where);
h3_status h3_video_config_read(h3_video_config *out, const char *path);

/* What follows from a configuration; in brackets the released values. */
typedef struct h3_video_sizes {
    int64_t spatial_ratio, temporal_ratio; /* [16, 4] pixels, frames of one latent */
    int64_t chunk_latents;                 /* [5] latents of one clip of clip_length frames */
    int64_t clip_latents;                  /* [7] latents decoded together */
    int64_t leading_frames;                /* [3] decoded frames ahead of a chunk that do not exist */
    int64_t overlap_frames;                /* [5] frames blended with the next clip */
    int64_t width;                         /* [2048] heads * head_dim */
    int64_t ffn_width;                     /* [8192] */
    int64_t frequencies;                   /* [8] rotary frequencies an axis: 6 times as many channels rotate */
    int64_t patch_values;                  /* [3072] values that one latent becomes */
} h3_video_sizes;
h3_video_sizes h3_video_sizes_of(const h3_video_config *config);

/* Names and shapes of all parameters, in no particular order; release with h3_parameters_free. */
h3_status h3_video_parameters(h3_parameter_list *out, const h3_video_config *config);

#endif
