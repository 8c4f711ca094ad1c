#include "media/audio_weights.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { TAPS = 12, EDGE_KERNEL = 7 };

/* --- the inventory (audio-vae.md section 3) --- */

/* As the published implementation stores it; its own arithmetic is float32, so that the formula of h3_audio_filter_design gives a few last bits otherwise. */
static const float PUBLISHED_FILTER[TAPS] = {0x1.09f0c2p-9f, 0x1.33ac8cp-7f, -0x1.a28108p-6f, -0x1.d8544cp-5f, 0x1.07511p-3f, 0x1.c5d8cap-2f, 0x1.c5d8cap-2f,
                                             0x1.07511p-3f,  -0x1.d8544cp-5f, -0x1.a28108p-6f, 0x1.33ac8cp-7f, 0x1.09f0c2p-9f};

/* The encoder's half, which nobody here reads. */
static const char *const ENCODERS[] = {"encoder.", "pre_block.", "mean_proj.", "logs_proj.", NULL};

/* `biased` is the length of the bias, 0 for none; dimension 0 is the slices'. */
static h3_status add_convolution(h3_parameter_list *list, const char *prefix, const int64_t shape[3], int64_t biased)
{
    if (biased > 0) H3_TRY(h3_parameters_add(list, 1, &biased, "%sbias", prefix));
    H3_TRY(h3_parameters_add(list, 3, shape, "%sweight_v", prefix));
    return h3_parameters_add(list, 3, H3_SHAPE(shape[0], 1, 1), "%sweight_g", prefix);
}

static h3_status add_filter(h3_parameter_list *list, const char *prefix, const char *name)
{
    H3_TRY(h3_parameters_add(list, 3, H3_SHAPE(1, 1, TAPS), "%s%s", prefix, name));
    list->items[list->count - 1].fixed = PUBLISHED_FILTER;
    return H3_OK;
}

static h3_status add_activation(h3_parameter_list *list, const char *prefix, int64_t channels)
{
    H3_TRY(h3_parameters_add(list, 1, &channels, "%sact.alpha", prefix));
    H3_TRY(h3_parameters_add(list, 1, &channels, "%sact.beta", prefix));
    H3_TRY(add_filter(list, prefix, "upsample.filter"));
    return add_filter(list, prefix, "downsample.lowpass.filter");
}

static h3_status add_branch(h3_parameter_list *list, int64_t block, int64_t channels, int64_t kernel, int64_t dilations)
{
    char prefix[96];
    for (int64_t m = 0; m < dilations; m++)
        for (int which = 1; which <= 2; which++) {
            snprintf(prefix, sizeof prefix, "decoder.resblocks.%lld.convs%d.%lld.", (long long)block, which, (long long)m);
            H3_TRY(add_convolution(list, prefix, H3_SHAPE(channels, channels, kernel), channels));
        }
    for (int64_t a = 0; a < 2 * dilations; a++) {
        snprintf(prefix, sizeof prefix, "decoder.resblocks.%lld.activations.%lld.", (long long)block, (long long)a);
        H3_TRY(add_activation(list, prefix, channels));
    }
    return H3_OK;
}

static h3_status add_all(h3_parameter_list *list, const h3_audio_config *config)
{
    char prefix[96];
    int64_t channels = config->decoder_dim;
    H3_TRY(h3_parameters_add(list, 3, H3_SHAPE(config->latent_dim, config->latent_channels, 1), "dec_in_proj.weight"));
    H3_TRY(h3_parameters_add(list, 1, &config->latent_dim, "dec_in_proj.bias"));
    H3_TRY(add_convolution(list, "decoder.conv_pre.", H3_SHAPE(channels, config->latent_dim, EDGE_KERNEL), channels));
    for (int64_t i = 0; i < config->stages; i++) {
        int64_t half = h3_audio_stage_channels(config, i);
        snprintf(prefix, sizeof prefix, "decoder.ups.%lld.0.", (long long)i);
        H3_TRY(add_convolution(list, prefix, H3_SHAPE(channels, half, config->kernels[i]), half));
        channels = half;
        for (int64_t b = 0; b < config->branches; b++)
            H3_TRY(add_branch(list, i * config->branches + b, channels, config->branch_kernels[b], config->dilation_count[b]));
    }
    H3_TRY(add_activation(list, "decoder.activation_post.", channels));
    H3_TRY(add_convolution(list, "decoder.conv_post.", H3_SHAPE(1, channels, EDGE_KERNEL), 0));
    list->items[list->count - 1].factor = 0.1f; /* its weight_g; the README of the goldens: a quiet end */
    return H3_OK;
}

static h3_status make_list(h3_parameter_list *list, const h3_audio_config *config)
{
    *list = (h3_parameter_list){.beside = ENCODERS};
    h3_status status = add_all(list, config);
    if (status != H3_OK) h3_parameters_free(list);
    return status;
}

/* --- the filter --- */

/* Modified Bessel function I0 by its power series; arguments here are below 5. */
static double bessel_i0(double x)
{
    double sum = 1, term = 1;
    for (int k = 1; k < 40; k++) {
        term *= x / (2 * k) * (x / (2 * k));
        sum += term;
    }
    return sum;
}

void h3_audio_filter_design(float out[12])
{
    const double pi = 3.14159265358979323846, beta = 0.1102 * (2.285 * (TAPS / 2 - 1) * pi * (4 * 0.3) + 7.95 - 8.7), middle = (TAPS - 1) / 2.0;
    double taps[TAPS], sum = 0;
    for (int n = 0; n < TAPS; n++) {
        double t = n - middle, u = 0.5 * t;
        taps[n] = 0.5 * bessel_i0(beta * sqrt(1 - t / middle * (t / middle))) / bessel_i0(beta) * sin(pi * u) / (pi * u);
        sum += taps[n];
    }
    for (int n = 0; n < TAPS; n++) out[n] = (float)(taps[n] / sum);
}

static int is_filter(const h3_parameter_shape *item) { return item->fixed != NULL; }

static h3_status check_filters(const h3_audio_weights *weights)
{
    const h3_parameter_list *list = h3_parameters_listed(weights->source);
    float design[TAPS], first[TAPS], taps[TAPS];
    int seen = 0;
    h3_audio_filter_design(design);
    for (size_t i = 0; i < list->count; i++) {
        const h3_parameter_shape *item = &list->items[i];
        h3_tensor view = h3_tensor_view(taps, H3_F32, item->rank, item->shape);
        if (!is_filter(item)) continue;
        const char *path = h3_parameters_path(weights->source, item->name);
        H3_TRY(h3_parameters_fill(&view, weights->source, h3_device_cpu(), item->name));
        if (!seen++) memcpy(first, taps, sizeof first);
        if (memcmp(first, taps, sizeof first) != 0) return h3_error(H3_INTEGRITY, "%s: %s differs from the other filters; the file is damaged", path, item->name);
        for (int k = 0; k < TAPS; k++)
            if (!(fabsf(taps[k] - design[k]) <= 1e-6f))
                return h3_error(H3_INTEGRITY, "%s: tap %d of %s is %.9g where the design has %.9g; this decoder filters in another way", path, k, item->name,
                                (double)taps[k], (double)design[k]);
    }
    return H3_OK;
}

/* --- opening --- */

h3_status h3_audio_weights_take(h3_audio_weights *out, const h3_audio_config *config, h3_safetensors *file)
{
    h3_parameter_list list;
    *out = (h3_audio_weights){.config = *config};
    h3_status status = make_list(&list, config);
    if (status != H3_OK) h3_safetensors_close(file);
    else status = h3_parameters_take(&out->source, file, &list);
    if (status == H3_OK) status = check_filters(out);
    if (status != H3_OK) h3_audio_weights_free(out);
    return status;
}

h3_status h3_audio_weights_open(h3_audio_weights *out, const char *folder)
{
    char path[H3_PATH_MAX], hash[H3_SHA256_HEX];
    h3_audio_config config;
    h3_safetensors file;
    *out = (h3_audio_weights){0};
    H3_TRY(h3_path(path, "%s/config.json", folder));
    H3_TRY(h3_audio_config_read(&config, hash, path));
    H3_TRY(h3_path(path, "%s/diffusion_pytorch_model.safetensors", folder));
    H3_TRY(h3_safetensors_open_linked(&file, path));
    H3_TRY(h3_audio_weights_take(out, &config, &file));
    memcpy(out->config_sha256, hash, sizeof hash);
    return H3_OK;
}

h3_status h3_audio_weights_synthetic(h3_audio_weights *out, const h3_audio_config *config, uint64_t seed)
{
    h3_parameter_list list;
    *out = (h3_audio_weights){.config = *config};
    H3_TRY(make_list(&list, config));
    return h3_parameters_synthetic(&out->source, "audio-vae", seed, &list);
}

void h3_audio_weights_free(h3_audio_weights *weights)
{
    h3_parameters_close(weights->source);
    *weights = (h3_audio_weights){0};
}

/* --- reading --- */

h3_status h3_audio_weights_read(h3_tensor *out, const h3_audio_weights *weights, const char *prefix, const char *name)
{
    char full[256];
    snprintf(full, sizeof full, "%.120s%.120s", prefix, name);
    H3_TRY(h3_parameters_read(out, weights->source, full));
    const float *values = out->data;
    for (int64_t i = 0; i < h3_tensor_count(out); i++)
        if (!isfinite(values[i])) {
            h3_tensor_free(out);
            return h3_error(H3_INTEGRITY, "%s: element %lld of %s is not finite; fetch the file again", h3_parameters_path(weights->source, full), (long long)i, full);
        }
    return H3_OK;
}

static h3_status fold(h3_tensor *v, const h3_tensor *g, const char *prefix)
{
    const float *scales = g->data;
    int64_t slices = v->shape[0], width = v->shape[1] * v->shape[2];
    for (int64_t a = 0; a < slices; a++) {
        float *slice = (float *)v->data + a * width;
        double sum = 0;
        for (int64_t i = 0; i < width; i++) sum += (double)slice[i] * (double)slice[i];
        float factor = (float)((double)scales[a] / sqrt(sum));
        if (!isfinite(factor)) return h3_error(H3_INTEGRITY, "slice %lld of %sweight_v cannot be normalised: its norm is %g; the weights are damaged", (long long)a, prefix, sqrt(sum));
        for (int64_t i = 0; i < width; i++) slice[i] *= factor;
    }
    return H3_OK;
}

h3_status h3_audio_weights_folded(h3_tensor *out, const h3_audio_weights *weights, const char *prefix)
{
    h3_tensor g;
    H3_TRY(h3_audio_weights_read(out, weights, prefix, "weight_v"));
    h3_status status = h3_audio_weights_read(&g, weights, prefix, "weight_g");
    if (status == H3_OK) status = fold(out, &g, prefix);
    h3_tensor_free(&g);
    if (status != H3_OK) h3_tensor_free(out);
    return status;
}
