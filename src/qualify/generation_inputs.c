/* What a generation starts from: layout, schedules, conditioning, noise. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/noise.h"
#include "model/synth.h"
#include "qualify/conditioning.h"

h3_status h3_schedule_sha256(char sigma[H3_SHA256_HEX], char timestep[H3_SHA256_HEX], const h3_schedule *schedule)
{
    H3_TRY(h3_sha256(sigma, schedule->sigma, (size_t)schedule->points * sizeof *schedule->sigma));
    return h3_sha256(timestep, schedule->timestep, (size_t)(schedule->points - 1) * sizeof *schedule->timestep);
}

static h3_status new_schedules(h3_generation_inputs *out, const h3_generation *generation)
{
    H3_TRY(h3_schedule_new(&out->video, generation->points, (float)generation->video_shift));
    H3_TRY(h3_schedule_new(&out->audio, generation->points, (float)generation->audio_shift));
    if (out->video.points != out->audio.points)
        return h3_error(H3_USAGE, "%lld grid points give schedules of %lld video and %lld audio points; use fewer points",
                        (long long)generation->points, (long long)out->video.points, (long long)out->audio.points);
    return H3_OK;
}

static h3_status synthetic_conditioning(h3_generation_inputs *out, const h3_generation *generation, const h3_config *config)
{
    uint64_t seed = generation->conditioning_seed;
    H3_TRY(h3_synth_input(&out->text, seed, "input.text", H3_BF16, 2, H3_SHAPE(generation->layout.text, config->text_dim)));
    for (int32_t i = 0; i < out->condition_count; i++) {
        char name[32];
        snprintf(name, sizeof name, "input.condition.%d", i);
        H3_TRY(h3_synth_input(&out->condition[i], seed, name, H3_F32, 5,
                              H3_SHAPE(1, config->in_channels, 1, generation->layout.height, generation->layout.width)));
    }
    return H3_OK;
}

static h3_status fill_inputs(h3_generation_inputs *out, h3_tensor *tags, const h3_generation *generation, const h3_config *config)
{
    h3_layout_args args = generation->layout;
    args.patch_h = config->patch_size[1];
    args.patch_w = config->patch_size[2];
    out->channels = config->in_channels;
    out->video_row = h3_config_video_row(config);
    out->audio_row = config->audio_in_channels;
    out->condition_time = generation->condition_time;
    out->condition_count = ((args.anchors & H3_ANCHOR_FIRST) != 0) + ((args.anchors & H3_ANCHOR_LAST) != 0);
    H3_TRY(h3_layout_new(&out->layout, &args));
    H3_TRY(new_schedules(out, generation));
    if (generation->conditioning_file[0] != 0) {
        h3_status status = h3_conditioning_read(out, tags, generation, config);
        if (status != H3_OK) return h3_error_context(status, "the generation's conditioning");
    }
    else H3_TRY(synthetic_conditioning(out, generation, config));
    if (tags->data == NULL) return H3_OK;
    h3_layout_free(&out->layout);
    return h3_layout_new_tagged(&out->layout, &args, tags->data);
}

h3_status h3_generation_inputs_new(h3_generation_inputs *out, const h3_generation *generation, const h3_config *config)
{
    h3_tensor tags = {0};
    memset(out, 0, sizeof *out);
    h3_status status = fill_inputs(out, &tags, generation, config);
    h3_tensor_free(&tags);
    if (status != H3_OK) h3_generation_inputs_free(out);
    return status;
}

void h3_generation_inputs_free(h3_generation_inputs *inputs)
{
    h3_layout_free(&inputs->layout);
    h3_schedule_free(&inputs->video);
    h3_schedule_free(&inputs->audio);
    h3_tensor_free(&inputs->text);
    for (int i = 0; i < 2; i++) {
        h3_tensor_free(&inputs->condition[i]);
        h3_picture_free(&inputs->picture[i]);
    }
    memset(inputs, 0, sizeof *inputs);
}

static void to_rows(float *rows, const float *latent, const h3_generation_inputs *inputs, int64_t frames)
{
    const h3_layout_args *args = &inputs->layout.args;
    h3_patchify(rows, latent, inputs->channels, frames, args->height, args->width, args->patch_h, args->patch_w);
}

/* The draws, in the one order that gives torch's numbers: keyframes, video (as latents), audio (as rows). */
static h3_status draw(const h3_generation_inputs *inputs, int64_t seed, float *latent, float *video, float *audio)
{
    const h3_layout *layout = &inputs->layout;
    h3_generator generator;
    int64_t frame = inputs->channels * layout->args.height * layout->args.width;
    h3_generator_seed(&generator, (uint64_t)seed);
    for (int32_t i = 0; i < inputs->condition_count; i++) {
        H3_TRY(h3_generator_normal(&generator, latent, frame));
        h3_forward_noise(latent, inputs->condition[i].data, latent, (float)inputs->condition_time, frame);
        to_rows(video + i * layout->rows_per_frame * inputs->video_row, latent, inputs, 1);
    }
    H3_TRY(h3_generator_normal(&generator, latent, layout->args.frames * frame));
    to_rows(video + layout->condition_rows * inputs->video_row, latent, inputs, layout->args.frames);
    return h3_generator_normal(&generator, audio, layout->audio_rows * inputs->audio_row);
}

h3_status h3_generation_start(h3_tensor *video, h3_tensor *audio, const h3_generation_inputs *inputs, int64_t seed)
{
    const h3_layout *layout = &inputs->layout;
    h3_tensor latent = {0};
    h3_status status;
    *video = *audio = (h3_tensor){0};
    if (h3_generation_has_pictures(inputs))
        return h3_error(H3_USAGE, "a keyframe of the conditioning file is still a picture; name the video autoencoder in the plan (\"decoders\"), or make the file "
                                  "with bin/h3_keyframe --vae");
    H3_GOTO(h3_tensor_new(&latent, H3_F32, 4,
                          H3_SHAPE(inputs->channels, layout->args.frames, layout->args.height, layout->args.width)),
            done);
    H3_GOTO(h3_tensor_new(video, H3_F32, 2, H3_SHAPE(layout->video_rows, inputs->video_row)), done);
    H3_GOTO(h3_tensor_new(audio, H3_F32, 2, H3_SHAPE(layout->audio_rows, inputs->audio_row)), done);
    status = draw(inputs, seed, latent.data, video->data, audio->data);
done:
    h3_tensor_free(&latent);
    if (status != H3_OK) {
        h3_tensor_free(video);
        h3_tensor_free(audio);
    }
    return status;
}
