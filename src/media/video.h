/*
 * The video autoencoder: latents to frames, and a keyframe to latents, for any configuration (video-vae.md). What computes is a table of
 * operations (video_ops.h) on a device; here are clips, tiles, and the graph of layers.
 */
#ifndef H3_MEDIA_VIDEO_H
#define H3_MEDIA_VIDEO_H

#include "media/video_ops.h"

/* In pixels; 256 and 64 as released. */
typedef struct h3_video_tiling {
    int64_t tile, overlap;
} h3_video_tiling;
#define H3_VIDEO_TILING ((h3_video_tiling){256, 64})

/* A configuration and its parameters. */
typedef struct h3_video_weights {
    h3_video_config config;
    h3_parameter_source *source;
} h3_video_weights;
/* A folder with config.json and the parameters in one safetensors file, or in an index and shards. H3_INTEGRITY. */
h3_status h3_video_weights_open(h3_video_weights *out, const char *folder);
/* Synthetic weights (h3synth-v1, streams "video-vae.<parameter>") of a configuration. */
h3_status h3_video_weights_synthetic(h3_video_weights *out, const h3_video_config *config, uint64_t seed);
void h3_video_weights_close(h3_video_weights *weights);

/* --- latents to frames --- */

typedef struct h3_video_decoder h3_video_decoder;

/* Puts the decoder's weights on `device`. dtype: H3_F32, or H3_F16 for the half-precision profile (video-vae.md 3.7). `tiles_a_call` tiles are decoded
 * together, 0 for all of a clip: it changes time and memory, and no bit but where cublasLt or cuDNN picks another algorithm for another number of rows
 * (F16 on a GPU). `weights` is not needed afterwards. */
h3_status h3_video_decoder_open(h3_video_decoder **out, const h3_video_weights *weights, const h3_device *device, const h3_video_ops *ops,
                                int32_t dtype, const h3_video_tiling *tiling, int64_t tiles_a_call);
void h3_video_decoder_close(h3_video_decoder *decoder);
/* `beat` is called now and then while a video is decoded: once a block of each call. For signs of life; NULL: nobody is told. */
void h3_video_decoder_watch(h3_video_decoder *decoder, void (*beat)(void *user), void *user);

/* The transformer's work for latents of `rows` x `columns`: tiles of a clip, and tokens of a tile with registers and zero token. H3_USAGE. */
h3_status h3_video_decoder_tokens(int64_t *tiles, int64_t *tokens, const h3_video_config *config, const h3_video_tiling *tiling, int64_t rows, int64_t columns);

/* z [C,L,Y,X] F32 on the host, as the transformer gives it: z * std + mean of each channel, in place. */
void h3_video_denormalize(h3_tensor *z, const h3_video_config *config);

/* z [C,L,Y,X] F32 on the host, denormalised, becomes `out` [frames,3,Y * ratio,X * ratio] in the profile's type on the device (released with
 * h3_device_free); ImageNet-normalised colours. H3_USAGE when the latents are too few for one clip. */
h3_status h3_video_decode(h3_tensor *out, h3_video_decoder *decoder, const h3_tensor *z);

/* A decoded video as bytes [frames,Y,X,3] on the host (free()). H3_FAILED when a value is no finite number. */
h3_status h3_video_frames(unsigned char **out, const h3_video_decoder *decoder, const h3_tensor *video);

/* --- a keyframe to latents --- */

typedef struct h3_video_encoder h3_video_encoder;

/* Puts the encoder's weights on `device`; FP32 throughout (video-vae.md 4.5). `tiles_a_call` as above. */
h3_status h3_video_encoder_open(h3_video_encoder **out, const h3_video_weights *weights, const h3_device *device, const h3_video_ops *ops,
                                const h3_video_tiling *tiling, int64_t tiles_a_call);
void h3_video_encoder_close(h3_video_encoder *encoder);

/* x [3,T,Y,X] F32 on the host, normalised colours, becomes the moments [2C,T',Y / ratio,X / ratio] F32 on the host (h3_tensor_free): means, then
 * log-variances as the network gives them. One frame is encoded as such; more are encoded in clips, the last frame repeated to fill the last,
 * and the last token_drop latents dropped (video-vae.md 4.2). */
h3_status h3_video_encode(h3_tensor *out, h3_video_encoder *encoder, const h3_tensor *x);

/* A sample z [C,T,Y,X] (h3_tensor_free) = mean + exp(clamp(logvar, -30, 20) / 2) * eps, eps from torch's CPU generator with this seed (video-vae.md
 * 4.4). H3_FAILED when a moment is no finite number. */
h3_status h3_video_sample(h3_tensor *z, const h3_tensor *moments, uint64_t seed);

enum { H3_VIDEO_KEYFRAME_SEED = 42 };

/* rgb bytes [Y,X,3] of a picture that has the canvas's size become a keyframe's latents [1,C,1,Y',X'] F32 (h3_tensor_free): colours normalised, encoded,
 * sampled with seed 42, rounded to half precision and back, normalised by the latents' mean and deviation. */
h3_status h3_video_keyframe(h3_tensor *latents, h3_video_encoder *encoder, const unsigned char *rgb, int64_t height, int64_t width);

#endif
