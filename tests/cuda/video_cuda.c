/*
 * The video autoencoder on a GPU: each operation beside the CPU's, the small goldens, and with "released" the released one with synthetic weights: a whole
 * decode and a keyframe against the published implementation's samples, with times.
 *
 *   video_cuda [--profile] [operations|golden|large|released]...    without a name: operations, golden
 *
 * --profile: after the checks of released (else of golden) one more decode with a table of the seconds of each kind of operation. One line a check; exit 1
 * when one fails, 4 when something is missing.
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "base/json.h"
#include "base/log.h"
#include "golden.h"
#include "media/video.h"
#include "model/safetensors.h"
#include "model/synth.h"
#include "video_cuda.h"
#include "video_profile.h"

static int passed, failed, profiled;

void check_bound(double error, double bound, const char *format, ...)
{
    const int good = error <= bound;
    va_list arguments;
    printf("%s ", good ? "ok    " : "not ok");
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf(": %.3g of %.3g\n", error, bound);
    fflush(stdout);
    if (good) passed++;
    else failed++;
}

void must(h3_status status)
{
    if (status == H3_OK) return;
    fprintf(stderr, "video_cuda: %s\n", h3_error_text());
    exit(4);
}

/* One more decode, each operation measured, beside a decode `video`; `used` are the operations that the decoder calls, which are `ops` before and after. */
static void profile_decode(h3_video_ops *used, const h3_video_ops *ops, const h3_device *device, h3_video_decoder *decoder, const h3_tensor *z, const h3_tensor *video)
{
    h3_tensor again;
    int equal;
    *used = *video_profile_start(ops, device);
    const double start = h3_clock();
    must(h3_video_decode(&again, decoder, z));
    const double wall = h3_clock() - start, sum = video_profile_print(wall);
    *used = *ops;
    check_bound(sum > 0.0 ? sum / wall : NAN, 1.01, "share of a decode in its operations");
    must(h3_device_equal(&equal, device, video, &again));
    check_bound(equal ? 0.0 : INFINITY, 0.0, "a measured decode has the bytes of another");
    h3_device_free(&again, device);
}

/* --- small goldens --------------------------------------------------------------------------------------------------- */

static h3_tensor stored_tensor(const h3_safetensors *file, const char *name)
{
    h3_tensor stored, out;
    must(h3_safetensors_read(&stored, file, name, H3_NONE, 0, NULL));
    must(h3_tensor_new(&out, H3_F32, stored.rank, stored.shape));
    for (int64_t i = 0; i < h3_tensor_count(&out); i++)
        ((float *)out.data)[i] = stored.dtype == H3_F16 ? h3_f16_to_f32(((const uint16_t *)stored.data)[i]) : ((const float *)stored.data)[i];
    h3_tensor_free(&stored);
    if (out.rank == 5) { /* the batch of 1 */
        h3_tensor flat = h3_tensor_view(out.data, H3_F32, 4, out.shape + 1);
        return flat;
    }
    return out;
}

static float element(const h3_tensor *t, int64_t i) { return t->dtype == H3_F16 ? h3_f16_to_f32(((const uint16_t *)t->data)[i]) : ((const float *)t->data)[i]; }

/* Element `i` of [3,frames,Y,X] in a video [frames,3,Y,X]. */
static float colours_first(const h3_tensor *video, int64_t i)
{
    const int64_t plane = video->shape[2] * video->shape[3], frame = i / plane % video->shape[0], colour = i / plane / video->shape[0];
    return element(video, (frame * 3 + colour) * plane + i % plane);
}

static double video_error(const h3_tensor *video, const h3_tensor *golden)
{
    double difference = 0.0, norm = 0.0;
    if (h3_tensor_count(video) != h3_tensor_count(golden)) return NAN;
    for (int64_t i = 0; i < h3_tensor_count(golden); i++) {
        const double g = (double)((const float *)golden->data)[i], d = (double)colours_first(video, i) - g;
        difference += d * d;
        norm += g * g;
    }
    return sqrt(difference) / sqrt(norm);
}

static void decode_golden(const h3_device *device, const h3_video_ops *ops, const h3_safetensors *file, const h3_video_weights *weights, const char *name, int32_t dtype, double bound)
{
    char key[60];
    h3_video_decoder *decoder;
    h3_tensor video, again, host;
    const h3_video_tiling tiling = strcmp(name, "tiled") == 0 ? (h3_video_tiling){16, 8} : H3_VIDEO_TILING;
    snprintf(key, sizeof key, "%s.z", name);
    h3_tensor z = stored_tensor(file, key);
    snprintf(key, sizeof key, "%s.decoded%s", name, dtype == H3_F16 ? "_fp16" : "");
    h3_tensor golden = stored_tensor(file, key);
    h3_video_ops used = *ops;
    must(h3_video_decoder_open(&decoder, weights, device, &used, dtype, &tiling, 0));
    must(h3_video_decode(&video, decoder, &z));
    must(h3_video_decode(&again, decoder, &z));
    must(h3_device_download(&host, device, &video));
    check_bound(video_error(&host, &golden), bound, "%s", key);
    int equal;
    must(h3_device_equal(&equal, device, &video, &again));
    check_bound(equal ? 0.0 : INFINITY, 0.0, "%s repeats", key);
    if (profiled) profile_decode(&used, ops, device, decoder, &z, &video);
    h3_device_free(&video, device);
    h3_device_free(&again, device);
    h3_tensor_free(&host);
    h3_tensor_free(&z);
    h3_tensor_free(&golden);
    h3_video_decoder_close(decoder);
}

static void compare_moment(const h3_safetensors *file, const char *key, const h3_tensor *moments, int half)
{
    h3_tensor golden = stored_tensor(file, key);
    const int64_t count = h3_tensor_count(&golden);
    const float *got = (const float *)moments->data + half * count;
    double difference = 0.0, norm = 0.0;
    for (int64_t i = 0; i < count; i++) {
        const double g = (double)((const float *)golden.data)[i], d = (double)got[i] - g;
        difference += d * d;
        norm += g * g;
    }
    check_bound(2 * count == h3_tensor_count(moments) ? sqrt(difference) / sqrt(norm) : NAN, 1e-4, "%s", key);
    h3_tensor_free(&golden);
}

static void encode_golden(const h3_device *device, const h3_video_ops *ops, const h3_safetensors *file, const h3_video_weights *weights)
{
    h3_video_encoder *encoder;
    h3_tensor moments, x = stored_tensor(file, "image.x");
    must(h3_video_encoder_open(&encoder, weights, device, ops, &(h3_video_tiling){16, 8}, 0));
    must(h3_video_encode(&moments, encoder, &x));
    compare_moment(file, "image.mean", &moments, 0);
    compare_moment(file, "image.logvar", &moments, 1);
    h3_tensor_free(&moments);
    h3_tensor_free(&x);
    h3_video_encoder_close(encoder);
    x = stored_tensor(file, "clip.x");
    must(h3_video_encoder_open(&encoder, weights, device, ops, &H3_VIDEO_TILING, 0));
    must(h3_video_encode(&moments, encoder, &x));
    compare_moment(file, "clip.mean", &moments, 0);
    h3_tensor_free(&moments);
    h3_tensor_free(&x);
    h3_video_encoder_close(encoder);
}

static void check_golden(const h3_device *device, const h3_video_ops *ops)
{
    char path[H3_PATH_MAX];
    h3_safetensors file;
    h3_video_weights weights;
    must(h3_video_weights_open(&weights, golden_folder(path, "video-vae")));
    must(h3_safetensors_open(&file, golden_folder(path, "video-vae/golden.safetensors")));
    for (int k = 0; k < 2; k++) {
        decode_golden(device, ops, &file, &weights, "plain", k ? H3_F16 : H3_F32, k ? 2e-3 : 1e-4);
        decode_golden(device, ops, &file, &weights, "tiled", k ? H3_F16 : H3_F32, k ? 2e-3 : 1e-4);
    }
    encode_golden(device, ops, &file, &weights);
    h3_safetensors_close(&file);
    h3_video_weights_close(&weights);
}

/* --- the released sizes ---------------------------------------------------------------------------------------------- */

static const h3_video_config RELEASED = {
    .latent_channels = 24, .level_count = 6, .level_channels = {128, 256, 256, 512, 512, 1024}, .spatial_stride = {2, 2, 2, 2, 1, 1}, .temporal_stride = {1, 2, 2, 1, 1, 1},
    .layers_per_level = 2, .norm_groups = 32, .decoder_layers = 36, .heads = 32, .head_dim = 64, .register_tokens = 4, .ffn_multiple = 4, .clip_length = 17, .token_drop = 3,
    .norm_eps = 1e-6, .decoder_norm_eps = 1e-5, .rope_theta = 100.0,
};

static h3_tensor made_input(const char *name, int64_t channels, int64_t frames, int64_t rows, int64_t columns)
{
    h3_tensor x;
    must(h3_tensor_new(&x, H3_F32, 4, H3_SHAPE(channels, frames, rows, columns)));
    must(h3_synth_fill(&x, 7, name, 0.0f, 1.7f));
    return x;
}

/* Samples against the published ones, relative to the full tensor's norm; mean and deviation of every frame. */
static void compare_released(const h3_tensor *video, const h3_safetensors *file, double l2)
{
    h3_tensor samples = stored_tensor(file, "video-vae.samples"), means = stored_tensor(file, "video-vae.frame_mean"), deviations = stored_tensor(file, "video-vae.frame_std");
    const int64_t all = h3_tensor_count(video), count = h3_tensor_count(&samples), frame = all / video->shape[0];
    double difference = 0.0, worst_mean = 0.0, worst_deviation = 0.0;
    for (int64_t j = 0; j < count; j++) {
        const int64_t i = (int64_t)((uint64_t)j * 2654435761u % (uint64_t)all);
        const double d = (double)colours_first(video, i) - (double)((float *)samples.data)[j];
        difference += d * d;
    }
    check_bound(sqrt(difference) / (l2 * sqrt((double)count / (double)all)), 2e-3, "released decode, %lld samples", (long long)count);
    for (int64_t f = 0; f < video->shape[0]; f++) {
        double sum = 0.0, squares = 0.0;
        for (int64_t i = 0; i < frame; i++) {
            const double v = (double)element(video, f * frame + i);
            sum += v;
            squares += v * v;
        }
        const double mean = sum / (double)frame, deviation = sqrt(squares / (double)frame - mean * mean);
        worst_mean = fmax(worst_mean, fabs(mean - (double)((float *)means.data)[f]));
        worst_deviation = fmax(worst_deviation, fabs(deviation - (double)((float *)deviations.data)[f]));
    }
    check_bound(worst_mean, 1e-3, "released decode, worst mean of a frame");
    check_bound(worst_deviation, 1e-3, "released decode, worst deviation of a frame");
    h3_tensor_free(&samples);
    h3_tensor_free(&means);
    h3_tensor_free(&deviations);
}

static void released_decode(const h3_device *device, const h3_video_ops *ops, const h3_video_weights *weights, const h3_safetensors *file, double l2)
{
    h3_video_decoder *decoder;
    h3_tensor z = made_input("video-vae.z.release", 24, 37, 48, 84), video, host;
    unsigned char *rgb;
    double start = h3_clock();
    h3_video_ops used = *ops;
    must(h3_video_decoder_open(&decoder, weights, device, &used, H3_F16, &H3_VIDEO_TILING, 0));
    must(device->health());
    printf("       decoder's weights made in %.2f s\n", h3_clock() - start);
    for (int run = 0; run < 3; run++) { /* the first one finds memory and algorithms */
        start = h3_clock();
        must(h3_video_decode(&video, decoder, &z));
        printf("       released decode %d: %.3f s\n", run, h3_clock() - start);
        fflush(stdout);
        if (run < 2) h3_device_free(&video, device);
    }
    start = h3_clock();
    must(h3_video_frames(&rgb, decoder, &video));
    printf("       pixels: %.3f s\n", h3_clock() - start);
    free(rgb);
    must(h3_device_download(&host, device, &video));
    compare_released(&host, file, l2);
    if (profiled) profile_decode(&used, ops, device, decoder, &z, &video);
    h3_device_free(&video, device);
    h3_tensor_free(&host);
    h3_tensor_free(&z);
    h3_video_decoder_close(decoder);
}

static void released_encode(const h3_device *device, const h3_video_ops *ops, const h3_video_weights *weights, const h3_safetensors *file)
{
    h3_video_encoder *encoder;
    h3_tensor x = made_input("video-vae.image.release", 3, 1, 768, 1344), moments;
    must(h3_video_encoder_open(&encoder, weights, device, ops, &H3_VIDEO_TILING, 0));
    must(device->health());
    for (int run = 0; run < 2; run++) {
        const double start = h3_clock();
        must(h3_video_encode(&moments, encoder, &x));
        printf("       released keyframe %d: %.3f s\n", run, h3_clock() - start);
        if (run == 0) h3_tensor_free(&moments);
    }
    compare_moment(file, "image.mean", &moments, 0);
    compare_moment(file, "image.logvar", &moments, 1);
    h3_tensor_free(&moments);
    h3_tensor_free(&x);
    h3_video_encoder_close(encoder);
}

static void check_released(const h3_device *device, const h3_video_ops *ops)
{
    char path[H3_PATH_MAX];
    h3_safetensors file;
    h3_video_weights weights;
    cJSON *report;
    const cJSON *item;
    double l2;
    must(h3_safetensors_open(&file, golden_folder(path, "released-dims/vae-samples.safetensors")));
    must(h3_json_read(&report, golden_folder(path, "released-dims/vae-report.json"), H3_INTEGRITY));
    must(h3_json_object(&item, report, "video-vae", path, H3_INTEGRITY));
    must(h3_json_number(&l2, item, "l2", path, H3_INTEGRITY));
    cJSON_Delete(report);
    must(h3_video_weights_synthetic(&weights, &RELEASED, 0));
    released_encode(device, ops, &weights, &file);
    released_decode(device, ops, &weights, &file, l2);
    h3_video_weights_close(&weights);
    h3_safetensors_close(&file);
}

/* Takes --profile out of the arguments. */
static void read_options(int *count, char **names)
{
    int kept = 0;
    for (int i = 0; i < *count; i++) {
        if (i > 0 && strcmp(names[i], "--profile") == 0) profiled = 1;
        else names[kept++] = names[i];
    }
    *count = kept;
}

static int wanted(int count, char **names, const char *name)
{
    if (count < 2) return strcmp(name, "operations") == 0 || strcmp(name, "golden") == 0;
    for (int i = 1; i < count; i++)
        if (strcmp(names[i], name) == 0) return 1;
    return 0;
}

int main(int count, char **names)
{
    const h3_device *device;
    const h3_video_ops *ops;
    read_options(&count, names);
    must(h3_device_open("cuda", 0, &device));
    must(h3_video_ops_for(&ops, device));
    if (wanted(count, names, "operations") || wanted(count, names, "large")) check_operations(device, ops, wanted(count, names, "large"));
    if (wanted(count, names, "golden")) check_golden(device, ops);
    if (wanted(count, names, "released")) check_released(device, ops);
    must(device->health());
    printf("%d passed, %d failed\n", passed, failed);
    return passed == 0 || failed > 0;
}
