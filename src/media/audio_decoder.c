#include "media/audio_decoder.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the decoder is made of; everything is on the operations' device. */
typedef struct layer {
    h3_tensor weight, bias; /* a transposed convolution's weight in phases */
} layer;

typedef struct branch {
    layer first[H3_AUDIO_DILATIONS], second[H3_AUDIO_DILATIONS]; /* convs1, convs2 */
    h3_tensor curves[2 * H3_AUDIO_DILATIONS];                    /* of the activations before them */
} branch;

typedef struct stage {
    layer up;
    branch branches[H3_AUDIO_BRANCHES];
} stage;

struct h3_audio_decoder {
    h3_audio_config config;
    const h3_audio_ops *ops;
    layer project, before, after; /* dec_in_proj, conv_pre, conv_post */
    h3_tensor filter, last; /* of every activation; the curve of activation_post */
    stage stages[H3_AUDIO_STAGES];
    void (*beat)(void *user);
    void *user;
};

/* --- opening --- */

typedef struct loader {
    const h3_audio_weights *weights;
    const h3_device *device;
} loader;

/* Takes over the host tensor, also on failure. */
static h3_status put(h3_tensor *out, const loader *load, h3_tensor *host)
{
    h3_status status = h3_device_upload(out, load->device, host);
    h3_tensor_free(host);
    return status;
}

static h3_status load_plain(h3_tensor *out, const loader *load, const char *prefix, const char *name)
{
    h3_tensor host;
    H3_TRY(h3_audio_weights_read(&host, load->weights, prefix, name));
    return put(out, load, &host);
}

/* `rate` above 0: a transposed convolution. */
static h3_status load_layer(layer *out, const loader *load, const char *prefix, int64_t rate)
{
    h3_tensor folded, phases;
    H3_TRY(h3_audio_weights_folded(&folded, load->weights, prefix));
    if (rate > 0) {
        h3_status status = h3_audio_phases(&phases, &folded, rate);
        h3_tensor_free(&folded);
        H3_TRY(status);
        folded = phases;
    }
    H3_TRY(put(&out->weight, load, &folded));
    return strcmp(prefix, "decoder.conv_post.") == 0 ? H3_OK : load_plain(&out->bias, load, prefix, "bias");
}

/* e^alpha and 1 / (e^beta + 1e-9) are made once, here on the host, so that every device has the same. */
static h3_status fill_curve(float *curve, const h3_tensor *alpha, const h3_tensor *beta, const char *prefix)
{
    int64_t channels = alpha->shape[0];
    for (int64_t c = 0; c < channels; c++) {
        curve[c] = (float)exp((double)((const float *)alpha->data)[c]);
        curve[channels + c] = (float)(1 / ((double)(float)exp((double)((const float *)beta->data)[c]) + 1e-9));
        if (!isfinite(curve[c]) || !isfinite(curve[channels + c]))
            return h3_error(H3_INTEGRITY, "%sact: alpha or beta of channel %lld is beyond float32; the weights are damaged", prefix, (long long)c);
    }
    return H3_OK;
}

static h3_status load_curve(h3_tensor *out, const loader *load, const char *prefix)
{
    h3_tensor alpha, beta = {0}, curve = {0};
    h3_status status;
    H3_TRY(h3_audio_weights_read(&alpha, load->weights, prefix, "act.alpha"));
    H3_GOTO(h3_audio_weights_read(&beta, load->weights, prefix, "act.beta"), done);
    H3_GOTO(h3_tensor_new(&curve, H3_F32, 2, H3_SHAPE(2, alpha.shape[0])), done);
    H3_GOTO(fill_curve(curve.data, &alpha, &beta, prefix), done);
    status = h3_device_upload(out, load->device, &curve);
done:
    h3_tensor_free(&curve);
    h3_tensor_free(&beta);
    h3_tensor_free(&alpha);
    return status;
}

/* Every activation's up and down filters are the same (h3_audio_weights_open has seen to it). */
static h3_status load_filter(h3_tensor *out, const loader *load)
{
    h3_tensor filter;
    H3_TRY(h3_audio_weights_read(&filter, load->weights, "decoder.activation_post.", "upsample.filter"));
    filter = h3_tensor_view(filter.data, H3_F32, 1, H3_SHAPE(H3_AUDIO_TAPS));
    return put(out, load, &filter);
}

static h3_status load_branch(branch *out, const loader *load, int64_t block, int64_t dilations)
{
    char prefix[96];
    for (int64_t m = 0; m < dilations; m++) {
        snprintf(prefix, sizeof prefix, "decoder.resblocks.%lld.convs1.%lld.", (long long)block, (long long)m);
        H3_TRY(load_layer(&out->first[m], load, prefix, 0));
        snprintf(prefix, sizeof prefix, "decoder.resblocks.%lld.convs2.%lld.", (long long)block, (long long)m);
        H3_TRY(load_layer(&out->second[m], load, prefix, 0));
    }
    for (int64_t a = 0; a < 2 * dilations; a++) {
        snprintf(prefix, sizeof prefix, "decoder.resblocks.%lld.activations.%lld.", (long long)block, (long long)a);
        H3_TRY(load_curve(&out->curves[a], load, prefix));
    }
    return H3_OK;
}

static h3_status load_all(h3_audio_decoder *decoder, const loader *load)
{
    const h3_audio_config *config = &decoder->config;
    char prefix[96];
    H3_TRY(load_plain(&decoder->project.weight, load, "dec_in_proj.", "weight"));
    H3_TRY(load_plain(&decoder->project.bias, load, "dec_in_proj.", "bias"));
    H3_TRY(load_layer(&decoder->before, load, "decoder.conv_pre.", 0));
    for (int64_t i = 0; i < config->stages; i++) {
        snprintf(prefix, sizeof prefix, "decoder.ups.%lld.0.", (long long)i);
        H3_TRY(load_layer(&decoder->stages[i].up, load, prefix, config->rates[i]));
        for (int64_t b = 0; b < config->branches; b++)
            H3_TRY(load_branch(&decoder->stages[i].branches[b], load, i * config->branches + b, config->dilation_count[b]));
    }
    H3_TRY(load_curve(&decoder->last, load, "decoder.activation_post."));
    H3_TRY(load_filter(&decoder->filter, load));
    return load_layer(&decoder->after, load, "decoder.conv_post.", 0);
}

h3_status h3_audio_decoder_open(h3_audio_decoder **out, const h3_audio_weights *weights, const h3_audio_ops *ops)
{
    void *memory;
    loader load = {weights, ops->device};
    *out = NULL;
    H3_TRY(h3_alloc(&memory, 1, sizeof(h3_audio_decoder), "the audio decoder"));
    h3_audio_decoder *decoder = memory;
    decoder->config = weights->config;
    decoder->ops = ops;
    h3_status status = load_all(decoder, &load);
    if (status != H3_OK) h3_audio_decoder_free(decoder);
    else *out = decoder;
    return status;
}

static void free_layer(layer *item, const h3_device *device)
{
    h3_device_free(&item->weight, device);
    h3_device_free(&item->bias, device);
}

static void free_branch(branch *item, const h3_device *device)
{
    for (int m = 0; m < H3_AUDIO_DILATIONS; m++) {
        free_layer(&item->first[m], device);
        free_layer(&item->second[m], device);
        h3_device_free(&item->curves[2 * m], device);
        h3_device_free(&item->curves[2 * m + 1], device);
    }
}

void h3_audio_decoder_free(h3_audio_decoder *decoder)
{
    if (decoder == NULL) return;
    const h3_device *device = decoder->ops->device;
    free_layer(&decoder->project, device);
    free_layer(&decoder->before, device);
    free_layer(&decoder->after, device);
    h3_device_free(&decoder->filter, device);
    h3_device_free(&decoder->last, device);
    for (int i = 0; i < H3_AUDIO_STAGES; i++) {
        free_layer(&decoder->stages[i].up, device);
        for (int b = 0; b < H3_AUDIO_BRANCHES; b++) free_branch(&decoder->stages[i].branches[b], device);
    }
    free(decoder);
}

/* --- decoding --- */

static h3_status new_tensor(h3_tensor *out, const h3_audio_decoder *decoder, int64_t batch, int64_t channels, int64_t length)
{
    return h3_device_tensor(out, decoder->ops->device, H3_F32, 3, H3_SHAPE(batch, channels, length));
}

static void drop(h3_tensor *tensor, const h3_audio_decoder *decoder) { h3_device_free(tensor, decoder->ops->device); }

/* x becomes the convolution of x. */
static h3_status step(h3_tensor *x, const h3_audio_decoder *decoder, const layer *item)
{
    const h3_audio_ops *ops = decoder->ops;
    h3_tensor out;
    H3_TRY(new_tensor(&out, decoder, x->shape[0], item->weight.shape[0], x->shape[2]));
    h3_status status = ops->convolve(ops, &out, x, &item->weight, &item->bias, 1, NULL);
    drop(x, decoder);
    *x = out;
    return status;
}

/* An AMP block (audio-vae.md 2.3): for every dilation, out = conv2(act(conv1(act(in)))) + in. a and b are room of u's size. */
static h3_status run_branch(const h3_tensor *out, const h3_tensor *u, const h3_tensor *a, const h3_tensor *b, const h3_audio_decoder *decoder, const branch *item, int64_t index)
{
    const h3_audio_ops *ops = decoder->ops;
    const h3_tensor *in = u;
    for (int64_t m = 0; m < decoder->config.dilation_count[index]; m++, in = out) {
        const layer *first = &item->first[m], *second = &item->second[m];
        H3_TRY(ops->activate(ops, a, in, &decoder->filter, &item->curves[2 * m]));
        H3_TRY(ops->convolve(ops, b, a, &first->weight, &first->bias, decoder->config.dilations[index][m], NULL));
        H3_TRY(ops->activate(ops, a, b, &decoder->filter, &item->curves[2 * m + 1]));
        H3_TRY(ops->convolve(ops, out, a, &second->weight, &second->bias, 1, in));
    }
    return H3_OK;
}

/* u becomes the mean of the stage's blocks over u. */
static h3_status run_branches(h3_tensor *u, const h3_audio_decoder *decoder, const stage *item)
{
    const h3_audio_ops *ops = decoder->ops;
    h3_tensor a = {0}, b = {0}, results[H3_AUDIO_BRANCHES] = {{0}};
    const h3_tensor *list[H3_AUDIO_BRANCHES];
    int64_t count = decoder->config.branches;
    h3_status status;
    H3_GOTO(new_tensor(&a, decoder, u->shape[0], u->shape[1], u->shape[2]), done);
    H3_GOTO(new_tensor(&b, decoder, u->shape[0], u->shape[1], u->shape[2]), done);
    for (int64_t i = 0; i < count; i++) {
        if (decoder->beat != NULL) decoder->beat(decoder->user);
        list[i] = &results[i];
        H3_GOTO(new_tensor(&results[i], decoder, u->shape[0], u->shape[1], u->shape[2]), done);
        H3_GOTO(run_branch(&results[i], u, &a, &b, decoder, &item->branches[i], i), done);
    }
    status = ops->mean(ops, u, list, count);
done:
    for (int64_t i = 0; i < count; i++) drop(&results[i], decoder);
    drop(&b, decoder);
    drop(&a, decoder);
    return status;
}

static h3_status run_stage(h3_tensor *x, const h3_audio_decoder *decoder, int64_t i)
{
    const h3_audio_ops *ops = decoder->ops;
    const stage *item = &decoder->stages[i];
    int64_t rate = decoder->config.rates[i];
    h3_tensor u;
    H3_TRY(new_tensor(&u, decoder, x->shape[0], h3_audio_stage_channels(&decoder->config, i), x->shape[2] * rate));
    h3_status status = ops->convolve_up(ops, &u, x, &item->up.weight, &item->up.bias, rate);
    drop(x, decoder);
    *x = u;
    return status == H3_OK ? run_branches(x, decoder, item) : status;
}

static h3_status run_last(h3_tensor *x, const h3_audio_decoder *decoder)
{
    const h3_audio_ops *ops = decoder->ops;
    h3_tensor out;
    H3_TRY(new_tensor(&out, decoder, x->shape[0], x->shape[1], x->shape[2]));
    h3_status status = ops->activate(ops, &out, x, &decoder->filter, &decoder->last);
    drop(x, decoder);
    *x = out;
    return status == H3_OK ? step(x, decoder, &decoder->after) : status;
}

/* x, the latents, becomes the sound before it is clamped. */
static h3_status run(h3_tensor *x, const h3_audio_decoder *decoder)
{
    H3_TRY(step(x, decoder, &decoder->project));
    H3_TRY(step(x, decoder, &decoder->before));
    for (int64_t i = 0; i < decoder->config.stages; i++) H3_TRY(run_stage(x, decoder, i));
    return run_last(x, decoder);
}

static h3_status check_latents(const h3_audio_decoder *decoder, const h3_tensor *z)
{
    int64_t width = decoder->config.latent_channels;
    if (z->data == NULL || z->dtype != H3_F32 || z->rank != 3 || z->shape[0] < 1 || z->shape[0] > H3_SOUND_CHANNELS || z->shape[1] != width || z->shape[2] < 1)
        return h3_error(H3_INTEGRITY, "the audio latents must be float32 [channels, %lld, length], not empty; check which tensor was passed", (long long)width);
    for (int64_t i = 0; i < h3_tensor_count(z); i++)
        if (!isfinite(((const float *)z->data)[i]))
            return h3_error(H3_FAILED, "element %lld of the audio latents is no finite number; the generation before it failed", (long long)i);
    return H3_OK;
}

/* Full scale ends at 1; what is no number was refused before. */
static h3_status fetch(h3_sound *out, const h3_audio_decoder *decoder, const h3_tensor *x)
{
    const h3_device *device = decoder->ops->device;
    H3_TRY(h3_sound_new(out, x->shape[0], x->shape[2], decoder->config.sampling_rate));
    h3_status status = device->to_host(out->samples, x->data, h3_tensor_bytes(x));
    if (status == H3_OK) status = h3_sound_check(out, "the decoded sound");
    for (int64_t i = 0; status == H3_OK && i < out->channels * out->frames; i++) out->samples[i] = fminf(fmaxf(out->samples[i], -1.0f), 1.0f);
    if (status != H3_OK) h3_sound_free(out);
    return status;
}

void h3_audio_decoder_watch(h3_audio_decoder *decoder, void (*beat)(void *user), void *user)
{
    decoder->beat = beat;
    decoder->user = user;
}

h3_status h3_audio_decode(h3_sound *out, const h3_audio_decoder *decoder, const h3_tensor *z)
{
    h3_tensor x;
    *out = (h3_sound){0};
    H3_TRY(check_latents(decoder, z));
    H3_TRY(h3_device_upload(&x, decoder->ops->device, z));
    h3_status status = run(&x, decoder);
    if (status == H3_OK) status = fetch(out, decoder, &x);
    drop(&x, decoder);
    return status;
}
