#include "qualify/decoders.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "media/picture_metrics.h"
#include "media/video_ops_cuda.h"

static const char *const profile_names[] = {[H3_PROFILE_PUBLISHED] = "published", [H3_PROFILE_FP32] = "fp32", [H3_PROFILE_HALF] = "half"};

/* --- the plan --------------------------------------------------------------------------------------------------------- */

static h3_status read_hashes(h3_decoder_source *out, const cJSON *json, const char *where)
{
    const cJSON *pin;
    H3_TRY(h3_json_object(&out->hashes, json, "hashes", where, H3_USAGE));
    cJSON_ArrayForEach(pin, out->hashes) {
        const char *sha256 = cJSON_IsString(pin) ? pin->valuestring : "";
        if (strchr(pin->string, '/') != NULL || strlen(sha256) != H3_SHA256_HEX - 1 || strspn(sha256, "0123456789abcdef") != H3_SHA256_HEX - 1)
            return h3_error(H3_USAGE, "%s: hashes must be {\"file\": \"sha256\"} with plain file names and lower-case hex", where);
    }
    return H3_OK;
}

static h3_status read_folder(h3_decoder_source *out, const cJSON *json, const h3_plan *plan, const char *where)
{
    const char *folder;
    H3_TRY(h3_json_string(&folder, json, "folder", where, H3_USAGE));
    if (folder[0] == 0) return h3_error(H3_USAGE, "%s: the folder has no name", where);
    H3_TRY(read_hashes(out, json, where));
    if (plan->decoder_folder[0] == 0) return h3_plan_path(out->folder, plan, folder);
    const char *slash = strrchr(folder, '/'); /* --decoders: the same folders elsewhere */
    return h3_path(out->folder, "%s/%s", plan->decoder_folder, slash != NULL ? slash + 1 : folder);
}

/* *config is the text of a synthetic decoder's configuration (free()), NULL for a folder. */
static h3_status read_source(h3_decoder_source *out, char **config, const cJSON *json, const h3_plan *plan, const char *where)
{
    const cJSON *synthetic, *object;
    int64_t seed;
    *config = NULL;
    if (cJSON_GetObjectItemCaseSensitive(json, "synthetic") == NULL) return read_folder(out, json, plan, where);
    if (cJSON_GetObjectItemCaseSensitive(json, "folder") != NULL || cJSON_GetObjectItemCaseSensitive(json, "hashes") != NULL)
        return h3_error(H3_USAGE, "%s: either \"folder\" with \"hashes\", or \"synthetic\"", where);
    H3_TRY(h3_json_object(&synthetic, json, "synthetic", where, H3_USAGE));
    H3_TRY(h3_json_only_keys(synthetic, (const char *const[]){"seed", "config", NULL}, where, H3_USAGE));
    H3_TRY(h3_json_integer(&seed, synthetic, "seed", 0, INT64_MAX, where, H3_USAGE));
    H3_TRY(h3_json_object(&object, synthetic, "config", where, H3_USAGE));
    out->seed = (uint64_t)seed;
    return h3_json_print(config, object);
}

static h3_status usage(h3_status status) { return status == H3_INTEGRITY ? h3_error_context(H3_USAGE, "the plan's decoders") : status; }

static h3_status read_profile(h3_video_profile *out, const cJSON *json, const char *where)
{
    const char *name;
    *out = H3_PROFILE_PUBLISHED;
    if (cJSON_GetObjectItemCaseSensitive(json, "profile") == NULL) return H3_OK;
    H3_TRY(h3_json_string(&name, json, "profile", where, H3_USAGE));
    for (size_t i = 0; i < sizeof profile_names / sizeof *profile_names; i++) {
        if (strcmp(name, profile_names[i]) != 0) continue;
        *out = (h3_video_profile)i;
        return H3_OK;
    }
    return h3_error(H3_USAGE, "%s: profile is \"%.40s\"; use published, fp32 or half", where, name);
}

static h3_status read_tiling(h3_video_tiling *out, const cJSON *json, const char *where)
{
    enum { MOST = 1 << 16 };
    const cJSON *tiling;
    *out = H3_VIDEO_TILING;
    if (cJSON_GetObjectItemCaseSensitive(json, "tiling") == NULL) return H3_OK;
    H3_TRY(h3_json_object(&tiling, json, "tiling", where, H3_USAGE));
    H3_TRY(h3_json_only_keys(tiling, (const char *const[]){"tile", "overlap", NULL}, where, H3_USAGE));
    H3_TRY(h3_json_integer(&out->tile, tiling, "tile", 1, MOST, where, H3_USAGE));
    return h3_json_integer(&out->overlap, tiling, "overlap", 0, out->tile - 1, where, H3_USAGE);
}

static h3_status read_video(h3_decoders *out, const cJSON *json, const h3_plan *plan)
{
    char where[H3_PATH_MAX + 32], *config;
    snprintf(where, sizeof where, "%s: decoders.video", plan->path);
    H3_TRY(h3_json_only_keys(json, (const char *const[]){"folder", "hashes", "synthetic", "profile", "tiling", NULL}, where, H3_USAGE));
    H3_TRY(read_source(&out->video, &config, json, plan, where));
    h3_status status = config != NULL ? h3_video_config_parse(&out->video_config, config, strlen(config), where) : H3_OK;
    free(config);
    H3_TRY(usage(status));
    H3_TRY(read_profile(&out->profile, json, where));
    return read_tiling(&out->tiling, json, where);
}

static h3_status read_audio(h3_decoders *out, const cJSON *json, const h3_plan *plan)
{
    char where[H3_PATH_MAX + 32], *config;
    snprintf(where, sizeof where, "%s: decoders.audio", plan->path);
    H3_TRY(h3_json_only_keys(json, (const char *const[]){"folder", "hashes", "synthetic", NULL}, where, H3_USAGE));
    H3_TRY(read_source(&out->audio, &config, json, plan, where));
    h3_status status = config != NULL ? h3_audio_config_parse(&out->audio_config, config, strlen(config), where) : H3_OK;
    free(config);
    return usage(status);
}

h3_status h3_decoders_read(h3_decoders *out, const h3_plan *plan)
{
    const cJSON *video, *audio;
    char where[H3_PATH_MAX + 32];
    *out = (h3_decoders){0};
    if (plan->decoders == NULL) return H3_OK;
    if (plan->generation == NULL) return h3_error(H3_USAGE, "%s has \"decoders\" but no \"generation\" that they could decode; leave them out", plan->path);
    snprintf(where, sizeof where, "%s: decoders", plan->path);
    H3_TRY(h3_json_only_keys(plan->decoders, (const char *const[]){"video", "audio", NULL}, where, H3_USAGE));
    H3_TRY(h3_json_object(&video, plan->decoders, "video", where, H3_USAGE));
    H3_TRY(h3_json_object(&audio, plan->decoders, "audio", where, H3_USAGE));
    out->present = 1;
    H3_TRY(read_video(out, video, plan));
    return read_audio(out, audio, plan);
}

/* --- weights ---------------------------------------------------------------------------------------------------------- */

h3_status h3_decoders_open(h3_decoder_weights *out, const h3_decoders *decoders)
{
    *out = (h3_decoder_weights){0};
    if (decoders->video.folder[0] != 0) H3_TRY(h3_video_weights_open(&out->video, decoders->video.folder));
    else H3_TRY(h3_video_weights_synthetic(&out->video, &decoders->video_config, decoders->video.seed));
    if (decoders->audio.folder[0] != 0) return h3_audio_weights_open(&out->audio, decoders->audio.folder);
    return h3_audio_weights_synthetic(&out->audio, &decoders->audio_config, decoders->audio.seed);
}

void h3_decoders_close(h3_decoder_weights *weights)
{
    h3_video_weights_close(&weights->video);
    h3_audio_weights_free(&weights->audio);
    *weights = (h3_decoder_weights){0};
}

static h3_status need(const char *what, int64_t decoders, int64_t model)
{
    if (decoders == model) return H3_OK;
    return h3_error(H3_USAGE, "the decoders do not fit: %s are %lld for them and %lld for the plan's model and layout; correct the plan", what, (long long)decoders,
                    (long long)model);
}

h3_status h3_decoders_fit(h3_media_shape *shape, const h3_decoder_weights *weights, const h3_config *model, const h3_layout_args *layout)
{
    const h3_video_sizes sizes = h3_video_sizes_of(&weights->video.config);
    h3_video_clips clips;
    H3_TRY(need("latent channels of video", weights->video.config.latent_channels, model->in_channels));
    H3_TRY(need("latent channels of audio", weights->audio.config.latent_channels, model->audio_in_channels));
    H3_TRY(h3_video_clips_plan(&clips, &weights->video.config, layout->frames));
    H3_TRY(need("samples of sound a second", weights->audio.config.sampling_rate, H3_MEDIA_RATE));
    H3_TRY(need("samples an audio latent", h3_audio_hop(&weights->audio.config), H3_MEDIA_RATE / H3_MEDIA_LATENT_RATE));
    H3_TRY(need("audio latents a channel (as long as the frames last)", h3_audio_latents(clips.frames), layout->audio));
    *shape = (h3_media_shape){clips.frames,
                              layout->height * sizes.spatial_ratio,
                              layout->width * sizes.spatial_ratio,
                              H3_MEDIA_CHANNELS,
                              layout->audio * h3_audio_hop(&weights->audio.config),
                              weights->audio.config.sampling_rate};
    if (shape->height >= H3_SSIM_WINDOW && shape->width >= H3_SSIM_WINDOW) return H3_OK;
    return h3_error(H3_USAGE, "pictures of %lld x %lld pixels are smaller than the comparison's window of %d x %d; use a larger layout", (long long)shape->width,
                    (long long)shape->height, H3_SSIM_WINDOW, H3_SSIM_WINDOW);
}

int32_t h3_decoders_dtype(const h3_decoders *decoders, int32_t device_kind)
{
    if (decoders->profile == H3_PROFILE_PUBLISHED) return device_kind == H3_DEVICE_CPU ? H3_F32 : H3_F16;
    return decoders->profile == H3_PROFILE_HALF ? H3_F16 : H3_F32;
}

/* --- identity --------------------------------------------------------------------------------------------------------- */

static const char *text_of(const cJSON *object, const char *key)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, key));
    return text != NULL ? text : "";
}

/* `files` {"file": "sha256"}: what was opened. Every file that the plan names is among them, with its hash. */
static h3_status check_pins(const h3_decoder_source *source, const cJSON *files)
{
    const cJSON *pin;
    cJSON_ArrayForEach(pin, source->hashes) {
        const char *found = text_of(files, pin->string);
        if (found[0] == 0)
            return h3_error(H3_INTEGRITY, "%s/%s is in the plan's hashes but no file of this decoder; get the decoder again or correct the plan", source->folder, pin->string);
        if (strcmp(pin->valuestring, found) != 0)
            return h3_error(H3_INTEGRITY, "%s/%s: SHA-256 differs (the plan expects %.12s..., found %.12s...); get the decoder again or correct the plan", source->folder,
                            pin->string, pin->valuestring, found);
    }
    return H3_OK;
}

static void add_file(cJSON *files, const char *name, const char *sha256)
{
    if (sha256[0] != 0) cJSON_AddStringToObject(files, name, sha256);
}

static h3_status check_files(const h3_decoder_source *source, const cJSON *identity, const char *one_file)
{
    const cJSON *shard;
    cJSON *files = cJSON_CreateObject();
    add_file(files, "config.json", text_of(identity, "config_sha256"));
    if (one_file != NULL) add_file(files, one_file, text_of(identity, "sha256"));
    else add_file(files, "diffusion_pytorch_model.safetensors.index.json", text_of(identity, "index_sha256"));
    cJSON_ArrayForEach(shard, cJSON_GetObjectItemCaseSensitive(identity, "shards")) add_file(files, text_of(shard, "path"), text_of(shard, "sha256"));
    h3_status status = check_pins(source, files);
    cJSON_Delete(files);
    return status;
}

static h3_status add_config_sha256(cJSON *identity, const h3_decoder_source *source)
{
    char path[H3_PATH_MAX], sha256[H3_SHA256_HEX];
    H3_TRY(h3_path(path, "%s/config.json", source->folder));
    H3_TRY(h3_sha256_file_linked(sha256, path, NULL, H3_INTEGRITY));
    cJSON_AddStringToObject(identity, "config_sha256", sha256);
    return H3_OK;
}

/* What of the configuration decides a decoded bit. */
static h3_status add_video_config(cJSON *identity, const h3_video_config *config)
{
    char sha256[H3_SHA256_HEX];
    cJSON *json = cJSON_AddObjectToObject(identity, "config");
    h3_json_add_integer(json, "latent_channels", config->latent_channels);
    h3_json_add_integer(json, "spatial_ratio", h3_video_sizes_of(config).spatial_ratio);
    h3_json_add_integer(json, "temporal_ratio", h3_video_sizes_of(config).temporal_ratio);
    h3_json_add_integer(json, "decoder_layers", config->decoder_layers);
    h3_json_add_integer(json, "heads", config->heads);
    h3_json_add_integer(json, "head_dim", config->head_dim);
    h3_json_add_integer(json, "register_tokens", config->register_tokens);
    h3_json_add_integer(json, "ffn_multiple", config->ffn_multiple);
    h3_json_add_integer(json, "clip_length", config->clip_length);
    h3_json_add_integer(json, "token_drop", config->token_drop);
    cJSON_AddNumberToObject(json, "decoder_norm_eps", config->decoder_norm_eps);
    cJSON_AddNumberToObject(json, "rope_theta", config->rope_theta);
    size_t bytes = (size_t)config->latent_channels * sizeof(float);
    H3_TRY(h3_sha256(sha256, config->latents_mean, bytes));
    cJSON_AddStringToObject(json, "latents_mean_sha256", sha256);
    H3_TRY(h3_sha256(sha256, config->latents_std, bytes));
    cJSON_AddStringToObject(json, "latents_std_sha256", sha256);
    return H3_OK;
}

/* Other kernels give other bits, so that sides decoded by either are not to be compared. */
static h3_status add_kernels(cJSON *identity, const h3_video_config *config, const h3_video_tiling *tiling, const h3_device *device, int32_t dtype, const h3_media_shape *shape)
{
    char name[H3_VIDEO_KERNEL_NAME];
    int64_t tiles, tokens;
    const h3_video_sizes sizes = h3_video_sizes_of(config);
    const int64_t ratio = sizes.spatial_ratio;
    H3_TRY(h3_video_decoder_tokens(&tiles, &tokens, config, tiling, shape->height / ratio, shape->width / ratio));
    H3_TRY(h3_video_attention_name(name, device, dtype, tiles, tokens, config->heads, config->head_dim));
    if (name[0] != 0) cJSON_AddStringToObject(identity, "attention", name);
    h3_video_products_name(name, device, dtype, sizes.width, sizes.ffn_width);
    if (name[0] != 0) cJSON_AddStringToObject(identity, "products", name);
    return H3_OK;
}

static h3_status video_identity(cJSON **out, const h3_decoders *decoders, const h3_decoder_weights *weights, const h3_device *device, const h3_media_shape *shape,
                                const h3_watch *watch)
{
    const int32_t dtype = h3_decoders_dtype(decoders, device->kind);
    const int is_folder = decoders->video.folder[0] != 0;
    H3_TRY(h3_parameters_identity(out, weights->video.source, watch));
    if (is_folder) H3_TRY(add_config_sha256(*out, &decoders->video));
    else H3_TRY(add_video_config(*out, &weights->video.config));
    if (is_folder) H3_TRY(check_files(&decoders->video, *out, NULL));
    cJSON_AddStringToObject(*out, "profile", profile_names[dtype == H3_F16 ? H3_PROFILE_HALF : H3_PROFILE_FP32]);
    cJSON *tiling = cJSON_AddObjectToObject(*out, "tiling");
    h3_json_add_integer(tiling, "tile", decoders->tiling.tile);
    h3_json_add_integer(tiling, "overlap", decoders->tiling.overlap);
    return add_kernels(*out, &weights->video.config, &decoders->tiling, device, dtype, shape);
}

h3_status h3_decoders_identity(cJSON **out, const h3_decoders *decoders, const h3_decoder_weights *weights, const h3_device *device, const h3_media_shape *shape,
                               const h3_watch *watch)
{
    cJSON *video = NULL, *audio = NULL, *both = NULL;
    h3_status status;
    *out = NULL;
    H3_GOTO(video_identity(&video, decoders, weights, device, shape, watch), done);
    H3_GOTO(h3_audio_weights_identity(&audio, &weights->audio), done);
    if (decoders->audio.folder[0] != 0) H3_GOTO(check_files(&decoders->audio, audio, "diffusion_pytorch_model.safetensors"), done);
    both = cJSON_CreateObject();
    if (both == NULL) H3_GOTO(h3_error(H3_ENVIRONMENT, "out of memory for the identity of the decoders"), done);
    cJSON_AddItemToObject(both, "video", video);
    cJSON_AddItemToObject(both, "audio", audio);
    *out = both;
    return H3_OK;
done:
    cJSON_Delete(video);
    cJSON_Delete(audio);
    return status;
}

/* --- sizes ------------------------------------------------------------------------------------------------------------ */

static size_t product(size_t a, size_t b)
{
    size_t result;
    return __builtin_mul_overflow(a, b, &result) ? SIZE_MAX / 4 : result;
}

static size_t samples_of(const h3_media_shape *s) { return product(product((size_t)s->frames, (size_t)s->height), product((size_t)s->width, H3_VIDEO_COLOURS)); }

/* Of the video autoencoder the encoder's half stays where it is. */
static size_t video_decoder_scalars(const h3_parameter_list *list)
{
    size_t total = 0;
    for (size_t i = 0; i < list->count; i++) {
        const h3_parameter_shape *item = &list->items[i];
        size_t scalars = 1;
        if (strncmp(item->name, "decoder.", 8) != 0 && strncmp(item->name, "post_quant_conv.", 16) != 0) continue;
        for (int32_t k = 0; k < item->rank; k++) scalars = product(scalars, (size_t)item->shape[k]);
        total += scalars;
    }
    return total;
}

size_t h3_decoders_memory(const h3_decoders *decoders, const h3_decoder_weights *weights, int32_t device_kind)
{
    const size_t video = video_decoder_scalars(h3_parameters_listed(weights->video.source)), audio = (size_t)h3_parameters_count(weights->audio.source);
    return product(video, h3_dtype_size(h3_decoders_dtype(decoders, device_kind))) + product(audio, sizeof(float));
}

/* Noise does not shrink: a picture may take a little more than its samples. */
size_t h3_media_disk(const h3_media_shape *s)
{
    enum { HEADERS = 4096 };
    size_t pixels = samples_of(s);
    return pixels + pixels / 64 + product((size_t)s->frames, HEADERS) + product((size_t)(s->channels * s->samples), sizeof(float)) + HEADERS;
}

/* Decoded values, the rows of a clip's tiles, two videos of codes. */
size_t h3_media_memory(const h3_media_shape *s)
{
    return product(samples_of(s), 3 * sizeof(float) + 2) + product((size_t)(s->channels * s->samples), 64 * sizeof(float));
}
