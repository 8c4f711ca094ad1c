/* The audio decoder against the published implementation, and that its bits depend on nothing but weights and latents. */
#include "golden_files.h"

#include <math.h>
#include <omp.h>

#include "media/audio_decoder.h"
#include "media/sound_metrics.h"
#include "media/wav.h"
#include "model/synth.h"

static const double BOUND = 1e-4; /* of the golden README, absolute */

typedef struct bench {
    h3_audio_weights weights;
    h3_safetensors file;
    h3_tensor z, decoded;
} bench;

static void open_bench(bench *b)
{
    assert_good(h3_audio_weights_open(&b->weights, golden_path("audio-vae")));
    assert_good(h3_safetensors_open(&b->file, golden_path("audio-vae/golden.safetensors")));
    assert_good(h3_safetensors_read(&b->z, &b->file, "z", H3_F32, 3, H3_SHAPE(2, 8, 37)));
    assert_good(h3_safetensors_read(&b->decoded, &b->file, "decoded", H3_F32, 3, H3_SHAPE(2, 1, 148)));
}

static void close_bench(bench *b)
{
    h3_tensor_free(&b->z);
    h3_tensor_free(&b->decoded);
    h3_safetensors_close(&b->file);
    h3_audio_weights_free(&b->weights);
}

static h3_status decode(h3_sound *out, const h3_audio_weights *weights, const h3_audio_ops *ops, const h3_tensor *z)
{
    h3_audio_decoder *decoder;
    *out = (h3_sound){0};
    H3_TRY(h3_audio_decoder_open(&decoder, weights, ops));
    h3_status status = h3_audio_decode(out, decoder, z);
    h3_audio_decoder_free(decoder);
    return status;
}

static double distance(const float *a, const float *b, int64_t count)
{
    double most = 0;
    for (int64_t i = 0; i < count; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        if (!(d <= most)) most = d; /* a NaN stays */
    }
    return most;
}

static void decodes_as_published(void **state)
{
    bench b;
    h3_sound sound;
    (void)state;
    open_bench(&b);
    assert_good(decode(&sound, &b.weights, h3_audio_ops_cpu(), &b.z));
    assert_int_equal(sound.channels, 2);
    assert_int_equal(sound.frames, 148);
    assert_int_equal(sound.rate, 32000);
    double error = distance(sound.samples, b.decoded.data, 296);
    print_message("# audio decoder: largest difference %.3g, bound %.0e\n", error, BOUND);
    assert_true(error <= BOUND);
    assert_true(error > 0 || memcmp(sound.samples, b.decoded.data, 296 * sizeof(float)) == 0);
    h3_sound_free(&sound);
    close_bench(&b);
}

/* One part of the decoder wrong in turn: the comparison must see it. The file's values are changed in a copy of its image. */
static void wrong_weights_are_seen(void **state)
{
    static const char *const NAMES[] = {
        "dec_in_proj.weight", "dec_in_proj.bias", "decoder.conv_pre.weight_g", "decoder.conv_pre.weight_v", "decoder.ups.0.0.weight_g", "decoder.ups.1.0.weight_v",
        "decoder.ups.1.0.bias", "decoder.resblocks.0.convs1.1.weight_v", "decoder.resblocks.3.convs2.1.bias", "decoder.resblocks.2.activations.3.act.alpha",
        "decoder.resblocks.1.activations.0.act.beta", "decoder.activation_post.act.alpha", "decoder.conv_post.weight_g",
    };
    static float kept[4096];
    char path[H3_PATH_MAX], *image;
    size_t size;
    bench b;
    (void)state;
    open_bench(&b);
    snprintf(path, sizeof path, "%s", golden_path("audio-vae/diffusion_pytorch_model.safetensors"));
    assert_good(h3_file_read(&image, &size, path, 1 << 20, H3_INTEGRITY));
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        h3_safetensors file;
        h3_audio_weights weights;
        h3_sound sound;
        assert_good(h3_safetensors_parse(&file, (unsigned char *)image, size, "image"));
        const h3_tensor *stored = h3_safetensors_find(&file, NAMES[i]);
        assert_non_null(stored);
        char *place = stored->data;
        int64_t count = h3_tensor_count(stored);
        memcpy(kept, place, (size_t)count * sizeof(float));
        for (int64_t j = 0; j < count; j++) {
            float value = kept[j] + 0.25f;
            memcpy(place + 4 * j, &value, sizeof value); /* may be unaligned */
        }
        assert_good(h3_audio_weights_take(&weights, &b.weights.config, &file));
        assert_good(decode(&sound, &weights, h3_audio_ops_cpu(), &b.z));
        double error = distance(sound.samples, b.decoded.data, 296);
        if (error <= BOUND) fail_msg("%s changed, and the sound is only %.3g away", NAMES[i], error);
        memcpy(place, kept, (size_t)count * sizeof(float));
        h3_sound_free(&sound);
        h3_audio_weights_free(&weights);
    }
    free(image);
    close_bench(&b);
}

static void assert_same_sound(const h3_sound *a, const h3_sound *b, const char *what)
{
    assert_int_equal(a->channels, b->channels);
    assert_int_equal(a->frames, b->frames);
    for (int64_t i = 0; i < a->channels * a->frames; i++)
        if (memcmp(&a->samples[i], &b->samples[i], sizeof(float)) != 0)
            fail_msg("%s: sample %lld is %.9g, expected %.9g", what, (long long)i, (double)b->samples[i], (double)a->samples[i]);
}

static void threads_change_no_bit(void **state)
{
    bench b;
    h3_sound first, other;
    int before = omp_get_max_threads();
    (void)state;
    open_bench(&b);
    omp_set_num_threads(1);
    assert_good(decode(&first, &b.weights, h3_audio_ops_cpu(), &b.z));
    for (int threads = 2; threads <= 7; threads++) {
        omp_set_num_threads(threads);
        assert_good(decode(&other, &b.weights, h3_audio_ops_cpu(), &b.z));
        assert_same_sound(&first, &other, "threads");
        h3_sound_free(&other);
    }
    omp_set_num_threads(before);
    h3_sound_free(&first);
    close_bench(&b);
}

static void plain_code_gives_the_same_bits(void **state)
{
    bench b;
    h3_sound wide, plain;
    (void)state;
    open_bench(&b);
    assert_good(decode(&wide, &b.weights, h3_audio_ops_cpu(), &b.z));
    assert_good(decode(&plain, &b.weights, h3_audio_ops_plain(), &b.z));
    assert_same_sound(&plain, &wide, "wide against plain");
    h3_sound_free(&wide);
    h3_sound_free(&plain);
    close_bench(&b);
}

static void gpu_gives_the_same_bits(void **state)
{
    const h3_device *gpu;
    const h3_audio_ops *ops = NULL;
    bench b;
    h3_sound host, device;
    (void)state;
    if (h3_device_count("cuda") == 0) { /* then at least the refusal is seen */
        assert_int_equal(h3_device_open("cuda", 0, &gpu), H3_ENVIRONMENT);
#ifndef H3_CUDA
        const h3_device none = {.kind = H3_DEVICE_CUDA};
        assert_int_equal(h3_audio_ops_for(&ops, &none), H3_ENVIRONMENT);
#endif
        return;
    }
    open_bench(&b);
    assert_good(h3_device_open("cuda", 0, &gpu));
    assert_good(h3_audio_ops_for(&ops, gpu));
    assert_good(decode(&host, &b.weights, h3_audio_ops_cpu(), &b.z));
    assert_good(decode(&device, &b.weights, ops, &b.z));
    assert_good(gpu->health());
    assert_same_sound(&host, &device, "GPU against CPU");
    print_message("# audio decoder: GPU and CPU agree in all %lld samples\n", (long long)(host.channels * host.frames));
    h3_sound_free(&host);
    h3_sound_free(&device);
    close_bench(&b);
}

/* Channels are items of a batch: alone or swapped they give the same samples. */
static void channels_do_not_mix(void **state)
{
    bench b;
    h3_sound both, swapped, alone;
    h3_tensor z;
    (void)state;
    open_bench(&b);
    size_t half = h3_tensor_bytes(&b.z) / 2;
    assert_good(h3_tensor_new(&z, H3_F32, 3, b.z.shape));
    memcpy(z.data, (char *)b.z.data + half, half);
    memcpy((char *)z.data + half, b.z.data, half);
    assert_good(decode(&both, &b.weights, h3_audio_ops_cpu(), &b.z));
    assert_good(decode(&swapped, &b.weights, h3_audio_ops_cpu(), &z));
    assert_memory_equal(both.samples, swapped.samples + 148, 148 * sizeof(float));
    assert_memory_equal(both.samples + 148, swapped.samples, 148 * sizeof(float));
    assert_memory_not_equal(both.samples, both.samples + 148, 148 * sizeof(float));
    h3_tensor second = h3_tensor_view((char *)b.z.data + half, H3_F32, 3, H3_SHAPE(1, 8, 37));
    assert_good(decode(&alone, &b.weights, h3_audio_ops_cpu(), &second));
    assert_memory_equal(alone.samples, both.samples + 148, 148 * sizeof(float));
    h3_sound_free(&both);
    h3_sound_free(&swapped);
    h3_sound_free(&alone);
    h3_tensor_free(&z);
    close_bench(&b);
}

static void one_latent_is_enough(void **state)
{
    bench b;
    (void)state;
    open_bench(&b);
    for (int64_t length = 1; length <= 3; length++) {
        h3_sound sound, plain;
        h3_tensor z;
        assert_good(h3_tensor_new(&z, H3_F32, 3, H3_SHAPE(1, 8, length))); /* zeros */
        assert_good(decode(&sound, &b.weights, h3_audio_ops_cpu(), &z));
        assert_good(decode(&plain, &b.weights, h3_audio_ops_plain(), &z));
        assert_int_equal(sound.frames, 4 * length);
        assert_same_sound(&plain, &sound, "short");
        h3_sound_free(&sound);
        h3_sound_free(&plain);
        h3_tensor_free(&z);
    }
    close_bench(&b);
}

static void bad_latents_are_refused(void **state)
{
    bench b;
    h3_sound sound;
    (void)state;
    open_bench(&b);
    float *values = b.z.data;
    for (int i = 0; i < 3; i++) {
        float keep = values[100];
        values[100] = i == 0 ? NAN : i == 1 ? INFINITY : -INFINITY;
        assert_int_equal(decode(&sound, &b.weights, h3_audio_ops_cpu(), &b.z), H3_FAILED);
        assert_non_null(strstr(h3_error_text(), "element 100"));
        assert_null(sound.samples);
        values[100] = keep;
    }
    const h3_tensor shapes[] = {
        {0},
        h3_tensor_view(values, H3_F32, 2, H3_SHAPE(8, 37)),
        h3_tensor_view(values, H3_F32, 3, H3_SHAPE(2, 37, 8)),
        h3_tensor_view(values, H3_F32, 3, H3_SHAPE(2, 8, 0)),
        h3_tensor_view(values, H3_F32, 3, H3_SHAPE(0, 8, 37)),
        h3_tensor_view(values, H3_F32, 3, H3_SHAPE(9, 8, 1)),
        h3_tensor_view(values, H3_BF16, 3, H3_SHAPE(2, 8, 37)),
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) assert_int_equal(decode(&sound, &b.weights, h3_audio_ops_cpu(), &shapes[i]), H3_INTEGRITY);
    /* too large inside: the decoder makes infinity, and does not clamp it into a sample */
    for (int64_t i = 0; i < h3_tensor_count(&b.z); i++) values[i] = i % 2 ? 3e38f : -3e38f;
    assert_int_equal(decode(&sound, &b.weights, h3_audio_ops_cpu(), &b.z), H3_FAILED);
    assert_non_null(strstr(h3_error_text(), "decoded sound"));
    close_bench(&b);
}

static void loud_sound_is_clamped(void **state)
{
    bench b;
    h3_sound sound;
    int full = 0;
    (void)state;
    open_bench(&b);
    for (int64_t i = 0; i < h3_tensor_count(&b.z); i++) ((float *)b.z.data)[i] *= 100.0f;
    assert_good(decode(&sound, &b.weights, h3_audio_ops_cpu(), &b.z));
    for (int64_t i = 0; i < 296; i++) {
        assert_true(fabsf(sound.samples[i]) <= 1.0f);
        full += fabsf(sound.samples[i]) == 1.0f;
    }
    assert_true(full > 0);
    h3_sound_free(&sound);
    close_bench(&b);
}

/* From rows to a file and back; and rows that were not denormalised make a sound that is not accepted. */
static void from_rows_to_a_file(void **state)
{
    bench b;
    h3_tensor rows, z, raw;
    h3_sound sound, back, wrong;
    h3_sound_metrics m;
    char *image;
    size_t size;
    (void)state;
    open_bench(&b);
    assert_good(h3_tensor_new(&rows, H3_F32, 2, H3_SHAPE(74, 8)));
    assert_good(h3_tensor_new(&raw, H3_F32, 3, H3_SHAPE(2, 8, 37)));
    for (int64_t i = 0; i < 74 * 8; i++) { /* the rows whose latents are the golden's */
        int64_t channel = i / (37 * 8), l = i / 8 % 37, c = i % 8, at = (channel * 8 + c) * 37 + l;
        ((float *)rows.data)[i] = (((float *)b.z.data)[at] - b.weights.config.latents_mean[c]) / b.weights.config.latents_std[c];
        ((float *)raw.data)[at] = ((float *)rows.data)[i];
    }
    assert_good(h3_audio_denormalise(&z, &b.weights.config, &rows, 2));
    assert_true(distance(z.data, b.z.data, 592) <= 1e-7);
    assert_good(decode(&sound, &b.weights, h3_audio_ops_cpu(), &z));
    assert_true(distance(sound.samples, b.decoded.data, 296) <= BOUND);
    assert_good(h3_wav_build(&image, &size, &sound));
    assert_good(h3_wav_parse(&back, (unsigned char *)image, size, "image"));
    assert_good(h3_sound_compare(&m, &sound, &back));
    assert_true(m.pooled.identical && h3_sound_accepted(&m, 20, 2));
    assert_good(decode(&wrong, &b.weights, h3_audio_ops_cpu(), &raw));
    assert_good(h3_sound_compare(&m, &sound, &wrong));
    assert_false(h3_sound_accepted(&m, 20, 2));
    h3_tensor *tensors[] = {&rows, &raw, &z};
    h3_sound *sounds[] = {&sound, &back, &wrong};
    for (int i = 0; i < 3; i++) {
        h3_tensor_free(tensors[i]);
        h3_sound_free(sounds[i]);
    }
    free(image);
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decodes_as_published), cmocka_unit_test(wrong_weights_are_seen), cmocka_unit_test(threads_change_no_bit), cmocka_unit_test(plain_code_gives_the_same_bits),
        cmocka_unit_test(gpu_gives_the_same_bits), cmocka_unit_test(channels_do_not_mix),  cmocka_unit_test(one_latent_is_enough),  cmocka_unit_test(bad_latents_are_refused),
        cmocka_unit_test(loud_sound_is_clamped), cmocka_unit_test(from_rows_to_a_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
