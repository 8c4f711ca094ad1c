/* The shape of an H3 audio autoencoder, as its config.json says it. Only the decoder's half is used; the rest is checked all the same. */
#ifndef H3_MEDIA_AUDIO_CONFIG_H
#define H3_MEDIA_AUDIO_CONFIG_H

#include <stddef.h>
#include <stdint.h>

#include "base/memory.h"
#include "base/text.h"

enum { H3_AUDIO_STAGES = 16, H3_AUDIO_BRANCHES = 8, H3_AUDIO_DILATIONS = 8, H3_AUDIO_LATENT_CHANNELS = 256 };

typedef struct h3_audio_config {
    int64_t latent_channels; /* of a latent */
    int64_t latent_dim;      /* behind dec_in_proj */
    int64_t decoder_dim;     /* behind conv_pre; every stage halves it */
    int64_t sampling_rate;
    int64_t stages;
    int64_t rates[H3_AUDIO_STAGES], kernels[H3_AUDIO_STAGES]; /* of the transposed convolutions */
    int64_t branches;                                         /* blocks of a stage, whose mean is taken */
    int64_t branch_kernels[H3_AUDIO_BRANCHES];
    int64_t dilation_count[H3_AUDIO_BRANCHES];
    int64_t dilations[H3_AUDIO_BRANCHES][H3_AUDIO_DILATIONS];
    float latents_mean[H3_AUDIO_LATENT_CHANNELS], latents_std[H3_AUDIO_LATENT_CHANNELS];
} h3_audio_config;

/* Parses config.json text. Keys that start with '_' are ignored, other unknown ones are an error, as are sizes that a decoder cannot have (an
 * even kernel, a transposed convolution that does not multiply the length exactly, a decoder_dim that cannot be halved so often).
 * `where` names the source in messages. H3_INTEGRITY for whatever is wrong. */
h3_status h3_audio_config_parse(h3_audio_config *out, const char *text, size_t length, const char *where);
/* The same of a file; `sha256` of its bytes, NULL when nobody asks. */
h3_status h3_audio_config_read(h3_audio_config *out, char sha256[H3_SHA256_HEX], const char *path);

/* The released autoencoder: mono at 32 kHz, 40 latents of 32 channels a second. */
void h3_audio_config_released(h3_audio_config *out);

/* Canonical JSON of the decoder's half: keys sorted, no white space, float32 numbers as %.9g; identifies a configuration. Caller frees. */
h3_status h3_audio_config_canonical(const h3_audio_config *config, char **out);

/* Samples per latent: the product of the rates. */
int64_t h3_audio_hop(const h3_audio_config *config);
/* Channels of stage i's output. */
int64_t h3_audio_stage_channels(const h3_audio_config *config, int64_t stage);

/* What the decoder takes, from the rows that generation gives: `rows` [channels * L, latent_channels] F32 on the host, all latents of
 * channel 0 before those of channel 1, become a new host tensor z [channels, latent_channels, L] (caller frees) of
 * row * std[c] + mean[c], two float32 operations. H3_INTEGRITY for another shape or type, H3_FAILED for a row that is no number. */
h3_status h3_audio_denormalise(h3_tensor *out, const h3_audio_config *config, const h3_tensor *rows, int64_t channels);

#endif
