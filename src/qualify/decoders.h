/*
 * The decoders of a plan: what makes pictures and sound of the latents that a generation ends with (video-vae.md, audio-vae.md). They are no
 * candidates: both sides of a generation use the same ones, and their identity stands in every output.
 */
#ifndef H3_QUALIFY_DECODERS_H
#define H3_QUALIFY_DECODERS_H

#include "media/audio_weights.h"
#include "media/video.h"
#include "model/config.h"
#include "model/layout.h"
#include "qualify/plan.h"

enum { H3_MEDIA_CHANNELS = 2, H3_MEDIA_FPS = 24, H3_MEDIA_RATE = 32000, H3_MEDIA_LATENT_RATE = 40 };

/* Which arithmetic the video decoder has. Published: as the published code, half precision on a GPU and FP32 on a CPU. Sound is FP32 always. */
typedef enum { H3_PROFILE_PUBLISHED, H3_PROFILE_FP32, H3_PROFILE_HALF } h3_video_profile;

/* Where one decoder's parameters come from. */
typedef struct h3_decoder_source {
    char folder[H3_PATH_MAX]; /* "": synthetic */
    const cJSON *hashes;      /* of the folder's files, {"file": "sha256"}; the plan's */
    uint64_t seed;            /* of synthetic ones */
} h3_decoder_source;

typedef struct h3_decoders {
    int present; /* 0: the plan has none, and generation ends with latents */
    h3_decoder_source video, audio;
    h3_video_config video_config; /* of synthetic ones; a folder has its own */
    h3_audio_config audio_config;
    h3_video_profile profile;
    h3_video_tiling tiling;
} h3_decoders;

/* Reads "decoders" of a plan (docs/plan.md). H3_USAGE, naming file and field. */
h3_status h3_decoders_read(h3_decoders *out, const h3_plan *plan);

/* What is decoded. */
typedef struct h3_media_shape {
    int64_t frames, height, width; /* pixels; 24 frames a second */
    int64_t channels, samples, rate; /* sound: samples a channel, samples a second */
} h3_media_shape;

/* Open weights. Files are mapped, so that opening costs little; names, types and shapes of all parameters have been looked at. */
typedef struct h3_decoder_weights {
    h3_video_weights video;
    h3_audio_weights audio;
} h3_decoder_weights;

/* H3_INTEGRITY, naming the file, for what is not there or not as it should be. Close in every case. */
h3_status h3_decoders_open(h3_decoder_weights *out, const h3_decoders *decoders);
void h3_decoders_close(h3_decoder_weights *weights);

/*
 * Whether these decoders take what the model makes for this layout: latent channels, a number of latent frames that is whole clips, as many audio
 * latents as the frames last (packed-layout.md section 1), 32 kHz, pictures that the comparison's window fits in. H3_USAGE, saying what does not fit;
 * else *shape is what comes out.
 */
h3_status h3_decoders_fit(h3_media_shape *shape, const h3_decoder_weights *weights, const h3_config *model, const h3_layout_args *layout);

/*
 * Who the decoders are (caller deletes): {"video": {"kind","config_sha256" or "config",...,"profile","tiling","attention","products"}, "audio": {...}}; as
 * h3_parameters_identity and h3_audio_weights_identity say. Hashes every byte of the files, and compares with the plan's hashes: H3_INTEGRITY naming the
 * file. `device` decides what the published profile is, and together with `shape` which kernels the half profile takes on a GPU (h3_video_attention_name,
 * h3_video_products_name; elsewhere there are no such fields). `watch` may be NULL.
 */
h3_status h3_decoders_identity(cJSON **out, const h3_decoders *decoders, const h3_decoder_weights *weights, const h3_device *device, const h3_media_shape *shape,
                               const h3_watch *watch);

/* H3_F16 or H3_F32. */
int32_t h3_decoders_dtype(const h3_decoders *decoders, int32_t device_kind);

/* Bytes that the weights of open decoders take on a device of this kind, by the sizes alone: no weight is read. Video in its profile's type (a half
 * profile's few vectors in F32 are not counted apart), without the encoder; sound in F32. */
size_t h3_decoders_memory(const h3_decoders *decoders, const h3_decoder_weights *weights, int32_t device_kind);

/* An upper bound of the bytes that one seed's PNG and WAV files take, and of the memory that its decoding takes on a host, weights apart. */
size_t h3_media_disk(const h3_media_shape *shape);
size_t h3_media_memory(const h3_media_shape *shape);

#endif
