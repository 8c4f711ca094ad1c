/* The small video autoencoder's goldens, and how they are compared. */
#ifndef H3_TESTS_VIDEO_GOLDEN_H
#define H3_TESTS_VIDEO_GOLDEN_H

#include "golden_files.h"

#include <math.h>

#include "base/half.h"
#include "media/video.h"

static const h3_video_tiling SMALL_TILES = {16, 8};

static inline h3_video_weights video_weights(void)
{
    h3_video_weights weights;
    assert_good(h3_video_weights_open(&weights, golden_path("video-vae")));
    return weights;
}

/* Tensor `name` of the golden file without its leading batch of 1, as F32. The caller frees. */
static inline h3_tensor video_golden(const char *name)
{
    h3_safetensors file = golden_tensors("video-vae/golden.safetensors");
    const h3_tensor *stored = h3_safetensors_find(&file, name);
    h3_tensor out;
    if (stored == NULL) fail_msg("the golden %s is missing", name);
    assert_int_equal(stored->rank, 5);
    assert_int_equal(stored->shape[0], 1);
    assert_good(h3_tensor_new(&out, H3_F32, 4, stored->shape + 1));
    for (int64_t i = 0; i < h3_tensor_count(&out); i++) {
        uint16_t half;
        float *to = (float *)out.data + i;
        if (stored->dtype == H3_F32) {
            memcpy(to, (const char *)stored->data + 4 * i, 4);
        } else {
            assert_int_equal(stored->dtype, H3_F16);
            memcpy(&half, (const char *)stored->data + 2 * i, 2);
            *to = h3_f16_to_f32(half);
        }
    }
    h3_safetensors_close(&file);
    return out;
}

/* ||x - g|| / ||g||; NaN for shapes that differ. */
static inline double video_error(const h3_tensor *x, const h3_tensor *golden)
{
    double difference = 0.0, norm = 0.0;
    if (x->rank != golden->rank || x->dtype != H3_F32 || golden->dtype != H3_F32) return NAN;
    for (int32_t i = 0; i < x->rank; i++)
        if (x->shape[i] != golden->shape[i]) return NAN;
    for (int64_t i = 0; i < h3_tensor_count(x); i++) {
        const double g = (double)((const float *)golden->data)[i], d = (double)((const float *)x->data)[i] - g;
        difference += d * d;
        norm += g * g;
    }
    return sqrt(difference) / sqrt(norm);
}

/* A decoded video [frames,3,Y,X] of any type as the golden has it: F32 [3,frames,Y,X]. Takes the video over. */
static inline h3_tensor video_colours_first(h3_tensor *video)
{
    h3_tensor out;
    const int64_t frames = video->shape[0], plane = video->shape[2] * video->shape[3];
    assert_good(h3_tensor_new(&out, H3_F32, 4, H3_SHAPE(3, frames, video->shape[2], video->shape[3])));
    for (int64_t c = 0; c < 3; c++)
        for (int64_t f = 0; f < frames; f++)
            for (int64_t i = 0; i < plane; i++) {
                const int64_t from = (f * 3 + c) * plane + i;
                ((float *)out.data)[(c * frames + f) * plane + i] =
                    video->dtype == H3_F16 ? h3_f16_to_f32(((const uint16_t *)video->data)[from]) : ((const float *)video->data)[from];
            }
    h3_tensor_free(video);
    return out;
}

/* Golden latents "<name>.z" decoded on the CPU, as [3,frames,Y,X] F32. */
static inline h3_tensor video_decoded(const char *name, int32_t dtype, const h3_video_tiling *tiling, int64_t tiles_a_call)
{
    char key[40];
    h3_video_weights weights = video_weights();
    h3_video_decoder *decoder;
    h3_tensor video;
    assert_good(h3_video_decoder_open(&decoder, &weights, h3_device_cpu(), h3_video_ops_cpu(), dtype, tiling, tiles_a_call));
    h3_video_weights_close(&weights);
    snprintf(key, sizeof key, "%s.z", name);
    h3_tensor z = video_golden(key);
    assert_good(h3_video_decode(&video, decoder, &z));
    h3_tensor_free(&z);
    h3_video_decoder_close(decoder);
    return video_colours_first(&video);
}

/* The moments of golden frames "<name>.x". */
static inline h3_tensor video_moments(const char *name, const h3_video_tiling *tiling, int64_t tiles_a_call)
{
    char key[40];
    h3_video_weights weights = video_weights();
    h3_video_encoder *encoder;
    h3_tensor moments;
    assert_good(h3_video_encoder_open(&encoder, &weights, h3_device_cpu(), h3_video_ops_cpu(), tiling, tiles_a_call));
    h3_video_weights_close(&weights);
    snprintf(key, sizeof key, "%s.x", name);
    h3_tensor x = video_golden(key);
    assert_good(h3_video_encode(&moments, encoder, &x));
    h3_tensor_free(&x);
    h3_video_encoder_close(encoder);
    return moments;
}

/* The mean (half 0) or log-variance (half 1) of moments, a view. */
static inline h3_tensor video_moment(const h3_tensor *moments, int half)
{
    const int64_t channels = moments->shape[0] / 2;
    float *from = moments->data;
    return h3_tensor_view(from + half * h3_tensor_count(moments) / 2, H3_F32, 4, H3_SHAPE(channels, moments->shape[1], moments->shape[2], moments->shape[3]));
}

#endif
