#include "qualify/conditioning.h"

#include <stdio.h>
#include <string.h>

#include "model/safetensors.h"
#include "qualify/metrics.h"

/* --- the file -------------------------------------------------------------------------------------------------------- */

static h3_status check_file_hash(const h3_safetensors *file, const char *expected)
{
    char sha256[H3_SHA256_HEX];
    H3_TRY(h3_sha256(sha256, file->image, file->size));
    if (strcmp(sha256, expected) == 0) return H3_OK;
    return h3_error(
        H3_INTEGRITY,
        "%s: SHA-256 differs (the plan expects %.12s..., found %.12s...); get the conditioning again or correct the plan",
        file->path, expected, sha256);
}

static h3_status read_finite(h3_tensor *out, const h3_safetensors *file, const char *name, int32_t dtype, int32_t rank,
                             const int64_t *shape)
{
    H3_TRY(h3_safetensors_read(out, file, name, dtype, rank, shape));
    if (h3_all_finite(out)) return H3_OK;
    return h3_error(H3_INTEGRITY, "%s: %s has values that are not finite; make the conditioning again", file->path, name);
}

/* Bytes [H,W,3]; they become the picture's own. */
static h3_status read_picture(h3_picture *out, const h3_safetensors *file, const char *name)
{
    const h3_tensor *stored = h3_safetensors_find(file, name);
    h3_tensor bytes;
    if (stored->dtype != H3_U8 || stored->rank != 3 || stored->shape[2] != 3 || stored->shape[0] < 1 || stored->shape[1] < 1 || stored->shape[0] > H3_PICTURE_SIDE_LIMIT ||
        stored->shape[1] > H3_PICTURE_SIDE_LIMIT)
        return h3_error(H3_INTEGRITY, "%s: %s is no picture; it must be U8 [height,width,3] of at most %d pixels a side", file->path, name, H3_PICTURE_SIDE_LIMIT);
    H3_TRY(h3_safetensors_read(&bytes, file, name, H3_U8, 0, NULL));
    *out = (h3_picture){bytes.shape[1], bytes.shape[0], bytes.data};
    return H3_OK;
}

static h3_status read_keyframe(h3_generation_inputs *out, const h3_safetensors *file, int32_t i, const h3_layout_args *args)
{
    char latents[32], image[32];
    snprintf(latents, sizeof latents, "condition.%d", i);
    snprintf(image, sizeof image, "image.%d", i);
    const int has_image = h3_safetensors_find(file, image) != NULL;
    if (has_image && h3_safetensors_find(file, latents) != NULL) return h3_error(H3_INTEGRITY, "%s holds both %s and %s; keep one", file->path, latents, image);
    if (has_image) return read_picture(&out->picture[i], file, image);
    return read_finite(&out->condition[i], file, latents, H3_F32, 5, H3_SHAPE(1, out->channels, 1, args->height, args->width));
}

/* A file names tensors beyond the expected ones only by mistake. */
static h3_status read_tensors(h3_generation_inputs *out, h3_tensor *tags, const h3_safetensors *file, const h3_layout_args *args,
                              const h3_config *config)
{
    size_t known = 1 + (size_t)out->condition_count;
    H3_TRY(read_finite(&out->text, file, "text", H3_BF16, 2, H3_SHAPE(args->text, config->text_dim)));
    for (int32_t i = 0; i < out->condition_count; i++) H3_TRY(read_keyframe(out, file, i, args));
    if (h3_safetensors_find(file, "text_tags") != NULL) {
        known++;
        H3_TRY(h3_safetensors_read(tags, file, "text_tags", H3_I64, 1, &args->text));
    }
    if (file->count != known)
        return h3_error(H3_INTEGRITY,
                        "%s holds %zu tensors where text, condition.<i> or image.<i> of %d keyframes and text_tags were expected", file->path,
                        file->count, out->condition_count);
    return H3_OK;
}

h3_status h3_conditioning_read(h3_generation_inputs *out, h3_tensor *tags, const h3_generation *generation, const h3_config *config)
{
    h3_safetensors file;
    H3_TRY(h3_safetensors_open(&file, generation->conditioning_file));
    h3_status status = check_file_hash(&file, generation->conditioning_sha256);
    if (status == H3_OK) status = read_tensors(out, tags, &file, &generation->layout, config);
    h3_safetensors_close(&file);
    return status;
}

/* --- pictures to latents --------------------------------------------------------------------------------------------- */

int h3_generation_has_pictures(const h3_generation_inputs *inputs)
{
    for (int32_t i = 0; i < inputs->condition_count; i++)
        if (inputs->condition[i].data == NULL) return 1;
    return 0;
}

h3_status h3_keyframe_encode(h3_tensor *latents, char *canvas_sha256, const h3_picture *picture, int is_first, h3_video_encoder *encoder, int64_t height, int64_t width)
{
    h3_picture canvas;
    *latents = (h3_tensor){0};
    H3_TRY(h3_picture_canvas(&canvas, picture, width, height, is_first));
    h3_status status = canvas_sha256 == NULL ? H3_OK : h3_sha256(canvas_sha256, canvas.rgb, (size_t)(height * width) * 3);
    if (status == H3_OK) status = h3_video_keyframe(latents, encoder, canvas.rgb, height, width);
    h3_picture_free(&canvas);
    if (status != H3_OK || h3_all_finite(latents)) return status;
    h3_tensor_free(latents);
    return h3_error(H3_FAILED, "the encoded keyframe holds values that are not finite; check the autoencoder's checkpoint");
}

static h3_status encode_all(h3_generation_inputs *inputs, h3_video_encoder *encoder, int64_t ratio)
{
    const h3_layout_args *args = &inputs->layout.args;
    for (int32_t i = 0; i < inputs->condition_count; i++) {
        if (inputs->condition[i].data != NULL) continue;
        H3_TRY(h3_keyframe_encode(&inputs->condition[i], inputs->canvas_sha256[i], &inputs->picture[i], i == 0, encoder, args->height * ratio, args->width * ratio));
        h3_picture_free(&inputs->picture[i]);
    }
    return H3_OK;
}

h3_status h3_generation_encode(h3_generation_inputs *inputs, const h3_video_weights *weights, const h3_video_tiling *tiling, const h3_device *device, const h3_video_ops *ops)
{
    h3_video_encoder *encoder;
    if (!h3_generation_has_pictures(inputs)) return H3_OK;
    if (weights->config.latent_channels != inputs->channels)
        return h3_error(H3_USAGE, "the video autoencoder makes %lld latent channels, the model takes %lld; name the model's own in the plan", (long long)weights->config.latent_channels,
                        (long long)inputs->channels);
    H3_TRY(h3_video_encoder_open(&encoder, weights, device, ops, tiling, 0));
    h3_status status = encode_all(inputs, encoder, h3_video_sizes_of(&weights->config).spatial_ratio);
    h3_video_encoder_close(encoder);
    return status;
}
