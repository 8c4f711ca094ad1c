/* A plan with small decoders, for several tests: the smoke plan's model, 22 frames of 40x32 pixels, 0.925 s of sound. */
#ifndef H3_TESTS_MEDIA_PLAN_H
#define H3_TESTS_MEDIA_PLAN_H

#include <cJSON.h>

#define MEDIA_VIDEO_CONFIG                                                                                                                               \
    "{\"in_channels\":3,\"out_channels\":3,\"latent_channels\":4,\"block_out_channels\":[16,32],\"layers_per_block\":1,\"spatial_downsample_factors\":[2,2]," \
    "\"temporal_downsample_factors\":[2,2],\"norm_num_groups\":8,\"decoder_num_layers\":2,\"decoder_num_attention_heads\":2,"                                 \
    "\"decoder_attention_head_dim\":16,\"decoder_num_register_tokens\":2,\"decoder_ffn_mult\":2,\"clip_length\":17,\"token_drop\":3,"                         \
    "\"latents_mean\":[0.25,-0.5,0.125,0],\"latents_std\":[1.5,1.25,0.75,1]}"
#define MEDIA_AUDIO_CONFIG                                                                                                                             \
    "{\"encoder_dim\":4,\"encoder_rates\":[2,4,4,5,5],\"latent_dim\":8,\"latent_channels\":6,\"num_attention_heads\":2,\"decoder_dim\":32,"                   \
    "\"decoder_rates\":[5,5,4,4,2],\"decoder_kernel_sizes\":[9,9,8,8,4],\"resblock_kernel_sizes\":[3],\"resblock_dilation_sizes\":[[1]],"                     \
    "\"sampling_rate\":32000,\"latents_mean\":[0.1,0.1,0.1,0.1,0.1,0.1],\"latents_std\":[0.5,0.5,0.5,0.5,0.5,0.5]}"
#define MEDIA_LAYOUT "{\"text\":5,\"frames\":7,\"h\":8,\"w\":10,\"audio\":37,\"anchors\":[\"first\"],\"vision_rows\":2}"
#define MEDIA_VIDEO "{\"synthetic\":{\"seed\":0,\"config\":" MEDIA_VIDEO_CONFIG "},\"tiling\":{\"tile\":16,\"overlap\":8}}"
#define MEDIA_AUDIO "{\"synthetic\":{\"seed\":0,\"config\":" MEDIA_AUDIO_CONFIG "}}"
#define MEDIA_DECODERS "{\"video\":" MEDIA_VIDEO ",\"audio\":" MEDIA_AUDIO "}"

#endif
