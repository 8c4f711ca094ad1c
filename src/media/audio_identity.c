/* What names a configuration and its weights in manifests. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "media/audio_weights.h"

/* Text that grows; `failed` once memory has ended. */
typedef struct growing {
    char *text;
    size_t used, room;
    int failed;
} growing;

__attribute__((format(printf, 2, 3))) static void append(growing *g, const char *format, ...)
{
    char piece[64];
    va_list arguments;
    va_start(arguments, format);
    size_t length = (size_t)vsnprintf(piece, sizeof piece, format, arguments); /* a key or a number: always below 64 */
    va_end(arguments);
    if (g->failed) return;
    if (g->used + length + 1 > g->room) {
        char *larger = realloc(g->text, 2 * g->room + sizeof piece);
        if (larger == NULL) {
            g->failed = 1;
            return;
        }
        g->text = larger;
        g->room = 2 * g->room + sizeof piece;
    }
    memcpy(g->text + g->used, piece, length + 1);
    g->used += length;
}

static void append_integers(growing *g, const int64_t *values, int64_t count)
{
    for (int64_t i = 0; i < count; i++) append(g, "%c%" PRId64, i ? ',' : '[', values[i]);
    append(g, "]");
}

static void append_floats(growing *g, const float *values, int64_t count)
{
    for (int64_t i = 0; i < count; i++) append(g, "%c%.9g", i ? ',' : '[', (double)values[i]);
    append(g, "]");
}

h3_status h3_audio_config_canonical(const h3_audio_config *config, char **out)
{
    growing g = {0};
    *out = NULL;
    append(&g, "{\"decoder_dim\":%" PRId64 ",\"decoder_kernel_sizes\":", config->decoder_dim);
    append_integers(&g, config->kernels, config->stages);
    append(&g, ",\"decoder_rates\":");
    append_integers(&g, config->rates, config->stages);
    append(&g, ",\"latent_channels\":%" PRId64, config->latent_channels);
    append(&g, ",\"latent_dim\":%" PRId64 ",\"latents_mean\":", config->latent_dim);
    append_floats(&g, config->latents_mean, config->latent_channels);
    append(&g, ",\"latents_std\":");
    append_floats(&g, config->latents_std, config->latent_channels);
    append(&g, ",\"resblock_dilation_sizes\":");
    for (int64_t b = 0; b < config->branches; b++) {
        append(&g, "%c", b ? ',' : '[');
        append_integers(&g, config->dilations[b], config->dilation_count[b]);
    }
    append(&g, "],\"resblock_kernel_sizes\":");
    append_integers(&g, config->branch_kernels, config->branches);
    append(&g, ",\"sampling_rate\":%" PRId64 "}", config->sampling_rate);
    if (g.failed) {
        free(g.text);
        return h3_error(H3_ENVIRONMENT, "out of memory for the text of the audio decoder's configuration");
    }
    *out = g.text;
    return H3_OK;
}

/* The fields of `from` under those names; what h3_parameters_identity could not build for want of memory is missing here. */
static int move_fields(cJSON *object, cJSON *from, const char *const *names)
{
    int good = 1;
    for (; *names != NULL; names++) good = good && cJSON_AddItemToObject(object, *names, cJSON_DetachItemFromObjectCaseSensitive(from, *names));
    return good;
}

/* The one file of `known`, h3_parameters_identity's answer. */
static int file_identity(cJSON *object, const h3_audio_weights *weights, const cJSON *known)
{
    int good = cJSON_AddStringToObject(object, "kind", "file") != NULL;
    if (weights->config_sha256[0] != 0) good = good && cJSON_AddStringToObject(object, "config_sha256", weights->config_sha256) != NULL;
    else good = good && cJSON_AddNullToObject(object, "config_sha256") != NULL;
    return good && move_fields(object, cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(known, "shards"), 0), (const char *const[]){"size", "sha256", NULL});
}

static h3_status synthetic_identity(cJSON *object, const h3_audio_weights *weights, cJSON *known, int *good)
{
    char *config, *text = NULL, hash[H3_SHA256_HEX];
    cJSON *parsed = NULL;
    h3_status status;
    *good = move_fields(object, known, (const char *const[]){"kind", "scheme", "seed", NULL});
    H3_TRY(h3_audio_config_canonical(&weights->config, &config));
    H3_GOTO(h3_format(&text, "h3synth-v1\naudio-vae\n%" PRIu64 "\n%s", h3_parameters_seed(weights->source), config), done);
    H3_GOTO(h3_sha256(hash, text, strlen(text)), done);
    H3_GOTO(h3_json_parse(&parsed, config, strlen(config), "the canonical configuration", H3_INTEGRITY), done);
    if (cJSON_AddItemToObject(object, "config", parsed)) parsed = NULL;
    else *good = 0;
    *good &= cJSON_AddStringToObject(object, "sha256", hash) != NULL;
done:
    cJSON_Delete(parsed);
    free(text);
    free(config);
    return status;
}

h3_status h3_audio_weights_identity(cJSON **out, const h3_audio_weights *weights)
{
    cJSON *known, *object = cJSON_CreateObject();
    int good = object != NULL;
    *out = NULL;
    h3_status status = h3_parameters_identity(&known, weights->source, NULL);
    if (status == H3_OK && good) {
        const char *kind = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(known, "kind"));
        if (kind != NULL && strcmp(kind, "synthetic") == 0) status = synthetic_identity(object, weights, known, &good);
        else good = file_identity(object, weights, known);
    }
    if (status == H3_OK && !good) status = h3_error(H3_ENVIRONMENT, "out of memory for the identity of the audio decoder's weights");
    cJSON_Delete(known);
    if (status != H3_OK) cJSON_Delete(object);
    else *out = object;
    return status;
}
