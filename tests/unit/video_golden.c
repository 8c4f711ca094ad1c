#include "video_golden.h"

#include <omp.h>

h3_video_weights video_weights(void)
{
    h3_video_weights weights;
    assert_good(h3_video_weights_open(&weights, golden_path("video-vae")));
    return weights;
}

h3_tensor video_golden(const char *name)
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

double video_error(const h3_tensor *x, const h3_tensor *golden)
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

h3_tensor video_colours_first(h3_tensor *video)
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

h3_tensor video_decoded(const char *name, int32_t dtype, const h3_video_tiling *tiling, int64_t tiles_a_call)
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

h3_tensor video_moments(const char *name, const h3_video_tiling *tiling, int64_t tiles_a_call)
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

h3_tensor video_moment(const h3_tensor *moments, int half)
{
    const int64_t channels = moments->shape[0] / 2;
    float *from = moments->data;
    return h3_tensor_view(from + half * h3_tensor_count(moments) / 2, H3_F32, 4, H3_SHAPE(channels, moments->shape[1], moments->shape[2], moments->shape[3]));
}

void assert_near_golden(const char *key, const h3_tensor *x, double bound)
{
    h3_tensor golden = video_golden(key);
    const double error = video_error(x, &golden);
    printf("# %s: error %.3g, bound %.3g\n", key, error, bound);
    if (!(error <= bound)) fail_msg("%s: error %g", key, error);
    h3_tensor_free(&golden);
}

void assert_same_bytes(video_maker make, const void *what, const video_how *how, size_t count)
{
    const int before = omp_get_max_threads();
    h3_tensor first = {0};
    for (size_t i = 0; i < count; i++) {
        omp_set_num_threads(how[i].threads);
        h3_tensor x = make(what, how[i].tiles_a_call);
        if (i == 0) {
            first = x;
            continue;
        }
        assert_int_equal(h3_tensor_bytes(&x), h3_tensor_bytes(&first));
        if (memcmp(x.data, first.data, h3_tensor_bytes(&first)) != 0) fail_msg("%d threads, %lld tiles a call give other bits", how[i].threads, (long long)how[i].tiles_a_call);
        h3_tensor_free(&x);
    }
    h3_tensor_free(&first);
    omp_set_num_threads(before);
}

void video_swap_colours(h3_tensor *x)
{
    const size_t plane = h3_tensor_bytes(x) / 3;
    char *red = malloc(plane), *values = x->data;
    assert_non_null(red);
    memcpy(red, values, plane);
    memcpy(values, values + 2 * plane, plane);
    memcpy(values + 2 * plane, red, plane);
    free(red);
}
