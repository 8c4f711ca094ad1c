/*
 * The audio decoder at the released dimensions on a device, against the golden samples: synthetic weights (seed 0), stereo, 207 latents.
 *
 *   audio_cuda [--device cpu|cuda] [--repeat N] [--host-too]
 *
 * Says how far the samples are, how long a decode takes, and the SHA-256 of the whole sound, which is the same on every device; --host-too decodes on the
 * CPU as well and compares every sample. H3_GOLDEN_SHARED names the folder of the large goldens. Exit code 0 when all holds, 1 when something
 * does not, 2 for a wrong command line, 4 for no device.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "golden.h"
#include "media/audio_decoder.h"
#include "model/safetensors.h"
#include "model/synth.h"

enum { WEIGHT_SEED = 0, INPUT_SEED = 7, LATENTS = 207 };
static const double BOUND = 1e-4;

typedef struct request {
    const char *device;
    int repeat, host_too;
} request;

static h3_status decode(h3_sound *out, const h3_audio_weights *weights, const h3_device *device, const h3_tensor *z, int repeat)
{
    const h3_audio_ops *ops;
    h3_audio_decoder *decoder;
    double start = h3_clock(), best = INFINITY;
    *out = (h3_sound){0};
    H3_TRY(h3_audio_ops_for(&ops, device));
    H3_TRY(h3_audio_decoder_open(&decoder, weights, ops));
    printf("%-4s weights folded and uploaded in %.2f s\n", h3_device_name(device->kind), h3_clock() - start);
    h3_status status = H3_OK;
    for (int i = 0; i < repeat && status == H3_OK; i++) {
        char hash[H3_SHA256_HEX];
        h3_sound_free(out);
        start = h3_clock();
        status = h3_audio_decode(out, decoder, z);
        double seconds = h3_clock() - start;
        if (seconds < best) best = seconds;
        if (status == H3_OK) status = h3_sound_sha256(hash, out);
        if (status == H3_OK) printf("%-4s decode %.4f s  sha256 %s\n", h3_device_name(device->kind), seconds, hash);
        fflush(stdout);
    }
    if (status == H3_OK) printf("%-4s best of %d: %.4f s\n", h3_device_name(device->kind), repeat, best);
    h3_audio_decoder_free(decoder);
    return status;
}

static h3_status compare_samples(const h3_sound *sound, int *good)
{
    char path[H3_PATH_MAX];
    h3_safetensors file;
    h3_tensor samples;
    double most = 0, difference = 0, norm = 0, l2 = 0;
    H3_TRY(h3_safetensors_open(&file, golden_folder(path, "released-dims/vae-samples.safetensors")));
    h3_status status = h3_safetensors_read(&samples, &file, "audio-vae.samples", H3_F32, 0, NULL);
    h3_safetensors_close(&file);
    H3_TRY(status);
    int64_t count = h3_tensor_count(&samples), all = sound->channels * sound->frames;
    for (int64_t j = 0; j < count; j++) {
        double g = (double)((const float *)samples.data)[j], d = fabs((double)sound->samples[(uint64_t)j * 2654435761u % (uint64_t)all] - g);
        if (!(d <= most)) most = d;
        difference += d * d;
        norm += g * g;
    }
    for (int64_t i = 0; i < all; i++) l2 += (double)sound->samples[i] * (double)sound->samples[i];
    *good = count > 0 && most <= BOUND;
    printf("%lld golden samples: largest difference %.3g, bound %.0e; relative %.3g; norm of the whole sound %.9g  %s\n", (long long)count, most, BOUND,
           sqrt(difference / norm), sqrt(l2), *good ? "ok" : "FAILED");
    h3_tensor_free(&samples);
    return H3_OK;
}

static int same(const h3_sound *a, const h3_sound *b)
{
    int64_t differing = 0, count = a->channels * a->frames;
    if (a->channels != b->channels || a->frames != b->frames) return 0;
    for (int64_t i = 0; i < count; i++) differing += memcmp(&a->samples[i], &b->samples[i], sizeof(float)) != 0;
    printf("against the CPU: %lld of %lld samples differ  %s\n", (long long)differing, (long long)count, differing == 0 ? "ok" : "FAILED");
    return differing == 0;
}

static h3_status run(const request *r, const h3_device *device, int *good)
{
    h3_audio_config config;
    h3_audio_weights weights;
    h3_tensor z = {0};
    h3_sound sound = {0}, host = {0};
    h3_status status;
    h3_audio_config_released(&config);
    H3_TRY(h3_audio_weights_synthetic(&weights, &config, WEIGHT_SEED));
    H3_GOTO(h3_tensor_new(&z, H3_F32, 3, H3_SHAPE(2, config.latent_channels, LATENTS)), done);
    H3_GOTO(h3_synth_fill(&z, INPUT_SEED, "audio-vae.z.release", 0, 0.17f), done);
    H3_GOTO(decode(&sound, &weights, device, &z, r->repeat), done);
    H3_GOTO(compare_samples(&sound, good), done);
    if (r->host_too) {
        H3_GOTO(decode(&host, &weights, h3_device_cpu(), &z, 1), done);
        *good &= same(&sound, &host);
    }
done:
    h3_sound_free(&host);
    h3_sound_free(&sound);
    h3_tensor_free(&z);
    h3_audio_weights_free(&weights);
    return status;
}

static int read_options(request *r, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--host-too") == 0) r->host_too = 1;
        else if (strcmp(argv[i], "--device") == 0 && i + 1 < argc) r->device = argv[++i];
        else if (strcmp(argv[i], "--repeat") == 0 && i + 1 < argc) r->repeat = atoi(argv[++i]);
        else return 0;
    }
    return r->repeat > 0;
}

int main(int argc, char **argv)
{
    request r = {"cuda", 5, 0};
    const h3_device *device;
    int good = 0;
    if (!read_options(&r, argc, argv)) {
        fprintf(stderr, "usage: audio_cuda [--device cpu|cuda] [--repeat N] [--host-too]\n");
        return 2;
    }
    if (h3_device_open(r.device, 0, &device) != H3_OK) {
        fprintf(stderr, "audio_cuda: %s\n", h3_error_text());
        return 4;
    }
    if (run(&r, device, &good) != H3_OK) {
        printf("FAILED  %s\n", h3_error_text());
        return 1;
    }
    printf("audio decoder on %s: %s\n", r.device, good ? "ok" : "FAILED");
    return !good;
}
