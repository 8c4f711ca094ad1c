#include "media/audio_weights.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "model/synth.h"

enum { TAPS = 12, EDGE_KERNEL = 7 };

/* --- the inventory (audio-vae.md section 3) --- */

typedef struct listing {
    h3_audio_parameter *items; /* NULL: only counting */
    size_t count;
} listing;

__attribute__((format(printf, 4, 5))) static void add(listing *list, int32_t rank, const int64_t *shape, const char *format, ...)
{
    if (list->items != NULL) {
        h3_audio_parameter *item = &list->items[list->count];
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(item->name, sizeof item->name, format, arguments); /* at most 70 characters: every count in a name is below 129 */
        va_end(arguments);
        item->rank = rank;
        memcpy(item->shape, shape, (size_t)rank * sizeof *shape);
    }
    list->count++;
}

/* `biased` is the length of the bias, 0 for none; dimension 0 is the slices'. */
static void add_convolution(listing *list, const char *prefix, const int64_t shape[3], int64_t biased)
{
    add(list, 3, shape, "%sweight_v", prefix);
    add(list, 3, H3_SHAPE(shape[0], 1, 1), "%sweight_g", prefix);
    if (biased > 0) add(list, 1, &biased, "%sbias", prefix);
}

static void add_activation(listing *list, const char *prefix, int64_t channels)
{
    add(list, 1, &channels, "%sact.alpha", prefix);
    add(list, 1, &channels, "%sact.beta", prefix);
    add(list, 3, H3_SHAPE(1, 1, TAPS), "%supsample.filter", prefix);
    add(list, 3, H3_SHAPE(1, 1, TAPS), "%sdownsample.lowpass.filter", prefix);
}

static void add_branch(listing *list, int64_t block, int64_t channels, int64_t kernel, int64_t dilations)
{
    char prefix[96];
    for (int64_t m = 0; m < dilations; m++)
        for (int which = 1; which <= 2; which++) {
            snprintf(prefix, sizeof prefix, "decoder.resblocks.%lld.convs%d.%lld.", (long long)block, which, (long long)m);
            add_convolution(list, prefix, H3_SHAPE(channels, channels, kernel), channels);
        }
    for (int64_t a = 0; a < 2 * dilations; a++) {
        snprintf(prefix, sizeof prefix, "decoder.resblocks.%lld.activations.%lld.", (long long)block, (long long)a);
        add_activation(list, prefix, channels);
    }
}

static void add_all(listing *list, const h3_audio_config *config)
{
    char prefix[96];
    int64_t channels = config->decoder_dim;
    add(list, 3, H3_SHAPE(config->latent_dim, config->latent_channels, 1), "dec_in_proj.weight");
    add(list, 1, &config->latent_dim, "dec_in_proj.bias");
    add_convolution(list, "decoder.conv_pre.", H3_SHAPE(channels, config->latent_dim, EDGE_KERNEL), channels);
    for (int64_t i = 0; i < config->stages; i++) {
        int64_t half = h3_audio_stage_channels(config, i);
        snprintf(prefix, sizeof prefix, "decoder.ups.%lld.0.", (long long)i);
        add_convolution(list, prefix, H3_SHAPE(channels, half, config->kernels[i]), half);
        channels = half;
        for (int64_t b = 0; b < config->branches; b++)
            add_branch(list, i * config->branches + b, channels, config->branch_kernels[b], config->dilation_count[b]);
    }
    add_activation(list, "decoder.activation_post.", channels);
    add_convolution(list, "decoder.conv_post.", H3_SHAPE(1, channels, EDGE_KERNEL), 0);
}

static int compare_names(const void *a, const void *b) { return strcmp(((const h3_audio_parameter *)a)->name, ((const h3_audio_parameter *)b)->name); }

static h3_status make_inventory(h3_audio_weights *weights)
{
    listing list = {0};
    void *items;
    add_all(&list, &weights->config);
    H3_TRY(h3_alloc(&items, list.count, sizeof(h3_audio_parameter), "the parameters of the audio decoder"));
    weights->items = items;
    weights->count = list.count;
    list = (listing){items, 0};
    add_all(&list, &weights->config);
    qsort(items, weights->count, sizeof(h3_audio_parameter), compare_names);
    return H3_OK;
}

static const h3_audio_parameter *find(const h3_audio_weights *weights, const char *name)
{
    h3_audio_parameter key = {.rank = 0};
    if (strlen(name) >= sizeof key.name) return NULL;
    strcpy(key.name, name);
    return bsearch(&key, weights->items, weights->count, sizeof key, compare_names);
}

/* --- the filter --- */

/* As the published implementation stores it; its own arithmetic is float32, so that the formula below gives a few last bits otherwise. */
static const float PUBLISHED_FILTER[TAPS] = {0x1.09f0c2p-9f, 0x1.33ac8cp-7f, -0x1.a28108p-6f, -0x1.d8544cp-5f, 0x1.07511p-3f, 0x1.c5d8cap-2f, 0x1.c5d8cap-2f,
                                             0x1.07511p-3f,  -0x1.d8544cp-5f, -0x1.a28108p-6f, 0x1.33ac8cp-7f, 0x1.09f0c2p-9f};

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

static int ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

static int is_filter(const h3_audio_parameter *item) { return ends_with(item->name, ".filter"); }

static h3_status check_filters(const h3_audio_weights *weights)
{
    float design[TAPS], first[TAPS], taps[TAPS];
    int seen = 0;
    h3_audio_filter_design(design);
    for (size_t i = 0; i < weights->count; i++) {
        const h3_audio_parameter *item = &weights->items[i];
        if (!is_filter(item)) continue;
        memcpy(taps, h3_safetensors_find(&weights->file, item->name)->data, sizeof taps);
        if (!seen++) memcpy(first, taps, sizeof first);
        if (memcmp(first, taps, sizeof first) != 0) return h3_error(H3_INTEGRITY, "%s: %s differs from the other filters; the file is damaged", weights->file.path, item->name);
        for (int k = 0; k < TAPS; k++)
            if (!(fabsf(taps[k] - design[k]) <= 1e-6f))
                return h3_error(H3_INTEGRITY, "%s: tap %d of %s is %.9g where the design has %.9g; this decoder filters in another way", weights->file.path, k, item->name,
                                (double)taps[k], (double)design[k]);
    }
    return H3_OK;
}

/* --- opening --- */

static int is_decoders(const char *name) { return strncmp(name, "decoder.", 8) == 0 || strncmp(name, "dec_in_proj.", 12) == 0; }

static int is_encoders(const char *name)
{
    static const char *const PREFIXES[] = {"encoder.", "pre_block.", "mean_proj.", "logs_proj."};
    for (size_t i = 0; i < sizeof PREFIXES / sizeof *PREFIXES; i++)
        if (strncmp(name, PREFIXES[i], strlen(PREFIXES[i])) == 0) return 1;
    return 0;
}

static h3_status check_stored(const h3_audio_parameter *item, const h3_safetensors *file)
{
    const h3_tensor *stored = h3_safetensors_find(file, item->name);
    if (stored == NULL) return h3_error(H3_INTEGRITY, "%s: the parameter %s is missing; fetch the file again", file->path, item->name);
    if (stored->dtype != H3_F32) return h3_error(H3_INTEGRITY, "%s: %s is not F32; the audio decoder is not to be stored in less", file->path, item->name);
    int same = stored->rank == item->rank;
    for (int32_t i = 0; i < item->rank && same; i++) same = stored->shape[i] == item->shape[i];
    if (!same) return h3_error(H3_INTEGRITY, "%s: %s has another shape than config.json gives it", file->path, item->name);
    return H3_OK;
}

static h3_status check_file(const h3_audio_weights *weights)
{
    const h3_safetensors *file = &weights->file;
    for (size_t i = 0; i < file->count; i++) {
        const char *name = file->entries[i].name;
        if (is_decoders(name) ? find(weights, name) == NULL : !is_encoders(name))
            return h3_error(H3_INTEGRITY, "%s: unknown tensor %.200s; this is no audio autoencoder of that configuration", file->path, name);
    }
    for (size_t i = 0; i < weights->count; i++) H3_TRY(check_stored(&weights->items[i], file));
    return check_filters(weights);
}

h3_status h3_audio_weights_take(h3_audio_weights *out, const h3_audio_config *config, h3_safetensors *file)
{
    *out = (h3_audio_weights){.config = *config, .file = *file, .is_file = 1};
    *file = (h3_safetensors){0};
    h3_status status = make_inventory(out);
    if (status == H3_OK) status = check_file(out);
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
    H3_TRY(h3_safetensors_open(&file, path));
    H3_TRY(h3_audio_weights_take(out, &config, &file));
    memcpy(out->config_sha256, hash, sizeof hash);
    return H3_OK;
}

h3_status h3_audio_weights_synthetic(h3_audio_weights *out, const h3_audio_config *config, uint64_t seed)
{
    *out = (h3_audio_weights){.config = *config, .seed = seed};
    return make_inventory(out);
}

void h3_audio_weights_free(h3_audio_weights *weights)
{
    free(weights->items);
    h3_safetensors_close(&weights->file);
    *weights = (h3_audio_weights){0};
}

/* --- reading --- */

/* The rows "VAE tensors" of the golden README. */
static h3_status make_tensor(h3_tensor *out, const h3_audio_parameter *item, uint64_t seed)
{
    char stream[sizeof item->name + 16];
    float amp = ends_with(item->name, ".bias") ? 0.1f : 0.5f;
    if (item->rank > 1) amp = (float)sqrt(3.0 / (double)(item->shape[1] * item->shape[2]));
    snprintf(stream, sizeof stream, "audio-vae.%s", item->name);
    H3_TRY(h3_tensor_new(out, H3_F32, item->rank, item->shape));
    if (is_filter(item)) {
        memcpy(out->data, PUBLISHED_FILTER, sizeof PUBLISHED_FILTER);
        return H3_OK;
    }
    h3_status status = h3_synth_fill(out, seed, stream, 0, amp);
    if (status != H3_OK) {
        h3_tensor_free(out);
        return status;
    }
    if (strcmp(item->name, "decoder.conv_post.weight_g") == 0) *(float *)out->data *= 0.1f;
    return H3_OK;
}

h3_status h3_audio_weights_read(h3_tensor *out, const h3_audio_weights *weights, const char *prefix, const char *name)
{
    char full[256];
    *out = (h3_tensor){0};
    snprintf(full, sizeof full, "%.120s%.120s", prefix, name);
    const h3_audio_parameter *item = find(weights, full);
    if (item == NULL) return h3_error(H3_USAGE, "the audio decoder has no parameter \"%s\"; check the name", full);
    if (!weights->is_file) return make_tensor(out, item, weights->seed);
    H3_TRY(h3_safetensors_read(out, &weights->file, item->name, H3_F32, item->rank, item->shape));
    const float *values = out->data;
    for (int64_t i = 0; i < h3_tensor_count(out); i++)
        if (!isfinite(values[i])) {
            h3_tensor_free(out);
            return h3_error(H3_INTEGRITY, "%s: element %lld of %s is not finite; fetch the file again", weights->file.path, (long long)i, item->name);
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
