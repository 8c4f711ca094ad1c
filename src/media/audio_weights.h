/* Parameters of the audio autoencoder's decoder: from its one safetensors file, or synthetic (h3synth-v1). */
#ifndef H3_MEDIA_AUDIO_WEIGHTS_H
#define H3_MEDIA_AUDIO_WEIGHTS_H

#include "media/audio_config.h"
#include "media/parameters.h"

typedef struct h3_audio_weights {
    h3_audio_config config;
    h3_parameter_source *source;
    char config_sha256[H3_SHA256_HEX]; /* of config.json's bytes; "" when there was no such file */
} h3_audio_weights;

/* Opens a folder with config.json and diffusion_pytorch_model.safetensors. The decoder's parameters must be there exactly: none missing, none
 * unknown, F32, in the shapes that the configuration gives; every stored filter must be the others' equal and within 1e-6 of the design. The encoder's
 * parameters (encoder, pre_block, mean_proj, logs_proj) may be there.
 * H3_INTEGRITY for whatever is wrong. */
h3_status h3_audio_weights_open(h3_audio_weights *out, const char *folder);
/* The same of a parsed file, which is taken over, also on failure. */
h3_status h3_audio_weights_take(h3_audio_weights *out, const h3_audio_config *config, h3_safetensors *file);
/* Streams "audio-vae.<name>"; decoder.conv_post.weight_g is multiplied by 0.1. The filters are no parameters: they have the published values. */
h3_status h3_audio_weights_synthetic(h3_audio_weights *out, const h3_audio_config *config, uint64_t seed);
void h3_audio_weights_free(h3_audio_weights *weights);

/* Identity for manifests (caller deletes). File: {"kind":"file","config_sha256" (null without),"size","sha256"} of the very bytes that are mapped.
 * Synthetic: {"kind":"synthetic","scheme":"h3synth-v1","seed","config":{...},"sha256"}, the hash being over "h3synth-v1\naudio-vae\n<seed>\n<config>", the
 * configuration as h3_audio_config_canonical writes it. */
h3_status h3_audio_weights_identity(cJSON **out, const h3_audio_weights *weights);

/* A new host tensor (caller frees) of parameter "<prefix><name>". H3_USAGE when the decoder has none of that name, H3_INTEGRITY when a value in it is not
 * finite. */
h3_status h3_audio_weights_read(h3_tensor *out, const h3_audio_weights *weights, const char *prefix, const char *name);

/* Weight normalisation (audio-vae.md 2.2): slice a of dimension 0 of "<prefix>weight_v" becomes v[a] * (g[a] / ||v[a]||). The squares are added in
 * double in ascending order, the factor is rounded to float32 once, each product once. New host tensor (caller frees). H3_INTEGRITY for a
 * slice whose norm is 0 or whose factor is beyond float32. */
h3_status h3_audio_weights_folded(h3_tensor *out, const h3_audio_weights *weights, const char *prefix);

/* The one low-pass filter of all alias-free steps (audio-vae.md 2.5: Kaiser window, cutoff 0.25, half-width 0.3, 12 taps), computed from its formula. */
void h3_audio_filter_design(float out[12]);

#endif
