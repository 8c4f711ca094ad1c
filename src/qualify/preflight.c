#include "qualify/preflight.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "graph/nodes.h"
#include "qualify/generation.h"
#include "qualify/manifest.h"
#include "qualify/thresholds.h"

enum { PIN_LIMIT = 1 << 30 };

static h3_status too_large(void)
{
    return h3_error(H3_USAGE, "the plan's shapes are beyond all sizes that can be counted; correct its layouts or config");
}

/* *total += a * b * c */
static h3_status add_product(size_t *total, size_t a, size_t b, size_t c)
{
    size_t product;
    if (__builtin_mul_overflow(a, b, &product) || __builtin_mul_overflow(product, c, &product) ||
        __builtin_add_overflow(*total, product, total))
        return too_large();
    return H3_OK;
}

/* Elements of all node outputs of one packed row in one block. */
static size_t row_elements(const h3_config *config)
{
    size_t total = 0;
    for (int32_t node = 0; node < H3_NODE_COUNT; node++)
        if (node != H3_NODE_ADALN) total += (size_t)h3_node_width(node, config);
    return total;
}

static h3_status parameter_elements(const h3_config *config, size_t *elements)
{
    h3_inventory inventory;
    h3_status status = H3_OK;
    H3_TRY(h3_inventory_new(&inventory, config));
    *elements = 0;
    for (size_t i = 0; i < inventory.count && status == H3_OK; i++) {
        const h3_parameter *parameter = &inventory.items[i];
        status = add_product(elements, (size_t)parameter->shape[0], (size_t)(parameter->rank == 2 ? parameter->shape[1] : 1), 1);
    }
    h3_inventory_free(&inventory);
    return status;
}

static h3_status sizes_of(h3_layout *sizes, const h3_layout_args *wanted, const h3_config *config)
{
    h3_layout_args args = *wanted;
    args.patch_h = config->patch_size[1];
    args.patch_w = config->patch_size[2];
    return h3_layout_sizes(sizes, &args);
}

enum { BYTES_BOTH = 4 + 2 }; /* FP32 and BF16 */

/* Elements of one block's parameters: what a model of two blocks has more than one of one block. */
static h3_status block_parameters(const h3_config *config, size_t *elements)
{
    h3_config one = *config, two = *config;
    size_t less;
    one.num_layers = 1;
    two.num_layers = 2;
    H3_TRY(parameter_elements(&one, &less));
    H3_TRY(parameter_elements(&two, elements));
    *elements -= less;
    return H3_OK;
}

/* Elements of block 0 in a layout: outputs, gradients, parameters' gradients. */
static h3_status block_elements(const h3_config *config, size_t rows, size_t *elements)
{
    H3_TRY(block_parameters(config, elements));
    return add_product(elements, rows, 2, row_elements(config));
}

/* Elements of a layout's tensors that are stored: everything; under "recompute" block 0, the refiners' outputs and gradients, and of every other block three
 * rows of hidden size. */
static h3_status layout_elements(const h3_plan *plan, const h3_config *config, size_t rows, size_t parameters, size_t *elements)
{
    size_t blocks = (size_t)config->num_layers;
    if (!plan->recompute) {
        H3_TRY(add_product(elements, rows, blocks, 2 * row_elements(config)));
        return add_product(elements, parameters, 1, 1);
    }
    H3_TRY(block_elements(config, rows, elements));
    H3_TRY(add_product(elements, rows, (size_t)config->num_refiner_layers, 2 * row_elements(config)));
    return add_product(elements, rows, blocks, 3 * (size_t)config->hidden_size);
}

h3_status h3_reference_bytes(const h3_plan *plan, const h3_config *config, size_t *bytes)
{
    size_t parameters;
    H3_TRY(parameter_elements(config, &parameters));
    *bytes = 0;
    for (size_t i = 0; i < plan->layout_count; i++) {
        h3_layout sizes;
        size_t elements = 0;
        h3_status status = sizes_of(&sizes, &plan->layouts[i].args, config);
        if (status != H3_OK) return h3_error_context(status, "layout %s", plan->layouts[i].name);
        H3_TRY(layout_elements(plan, config, (size_t)sizes.rows, parameters, &elements));
        H3_TRY(add_product(bytes, elements, BYTES_BOTH, 1));
    }
    return H3_OK;
}

/* Memory that stage 1 takes: all that is stored, until it is; under "recompute", where blocks are written one by one, block 0 of the largest layout in FP32 on
 * its way from the device, in its file and in the file before it. */
static h3_status reference_memory(const h3_plan *plan, const h3_config *config, size_t *bytes)
{
    size_t most = 0;
    if (!plan->recompute) return h3_reference_bytes(plan, config, bytes);
    for (size_t i = 0; i < plan->layout_count; i++) {
        h3_layout sizes;
        size_t elements = 0;
        H3_TRY(sizes_of(&sizes, &plan->layouts[i].args, config));
        H3_TRY(block_elements(config, (size_t)sizes.rows, &elements));
        if (elements > most) most = elements;
    }
    *bytes = 0;
    return add_product(bytes, most, sizeof(float), 3);
}

/* Rounded up: what is needed is never 0. */
static size_t megabytes(size_t bytes) { return (bytes >> 20) + ((bytes & ((1u << 20) - 1)) != 0); }

static h3_status check_disk(const char *folder, size_t needed)
{
    struct statvfs fs;
    if (statvfs(folder, &fs) != 0) return h3_error(H3_ENVIRONMENT, "%s: %s; choose another run folder", folder, strerror(errno));
    size_t available = (size_t)fs.f_bavail * fs.f_frsize;
    if (available < needed)
        return h3_error(H3_ENVIRONMENT,
                        "%s: this plan needs about %zu MB of disk, %zu MB are free; free some or choose another run folder",
                        folder, megabytes(needed), available >> 20);
    return H3_OK;
}

/* All the memory that a device has against `bytes`, and a tenth more for the rest. */
static h3_status check_memory(const h3_device *device, const char *what, size_t bytes, const char *advice)
{
    char place[32] = "this machine";
    size_t available, total, needed = bytes > SIZE_MAX - bytes / 10 ? SIZE_MAX : bytes + bytes / 10;
    H3_TRY(device->memory(&available, &total));
    if (total >= needed) return H3_OK;
    if (device->kind != H3_DEVICE_CPU) snprintf(place, sizeof place, "GPU %d", (int)device->index);
    return h3_error(H3_ENVIRONMENT, "%s needs about %zu MB of memory, %s has %zu MB; use %s", what, megabytes(needed), place, total >> 20, advice);
}

static h3_status check_layout_memory(const char *what, size_t bytes) { return check_memory(h3_device_cpu(), what, bytes, "fewer or smaller layouts"); }

static h3_status check_writable(const char *folder)
{
    char path[H3_PATH_MAX];
    H3_TRY(h3_path(path, "%s/.tmp-preflight-%ld", folder, (long)getpid()));
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0) return h3_error(H3_ENVIRONMENT, "%s: cannot write (%s); choose another run folder", folder, strerror(errno));
    close(file);
    unlink(path);
    return H3_OK;
}

/* A seed keeps the velocities of all steps, and its rows; a repeat its rows. */
static h3_status check_generation_memory(const h3_generation *generation, const h3_config *config)
{
    h3_layout sizes;
    size_t row_bytes = 0, bytes = 0;
    h3_status status = sizes_of(&sizes, &generation->layout, config);
    if (status != H3_OK) return h3_error_context(status, "the generation's layout");
    H3_TRY(add_product(&row_bytes, (size_t)sizes.video_rows, (size_t)h3_config_video_row(config), sizeof(float)));
    H3_TRY(add_product(&row_bytes, (size_t)sizes.audio_rows, (size_t)config->audio_in_channels, sizeof(float)));
    H3_TRY(add_product(&bytes, row_bytes, (size_t)generation->points + 4, generation->seed_count));
    H3_TRY(add_product(&bytes, (size_t)sizes.rows, 2 * row_elements(config), sizeof(float)));
    return check_layout_memory("the plan's generation", bytes);
}

h3_status h3_preflight_media(const h3_media_shape *shape, const h3_decoders *decoders, const h3_decoder_weights *weights, const h3_device *device)
{
    static const char advice[] = "a smaller layout, more memory, or a plan without decoders";
    char what[100];
    const size_t media = h3_media_memory(shape), held = h3_decoders_memory(decoders, weights, device->kind), both = media + held;
    if (device->kind != H3_DEVICE_CPU) H3_TRY(check_memory(device, "holding the weights of the plan's decoders", held, advice));
    if (device->kind != H3_DEVICE_CPU) return check_memory(h3_device_cpu(), "decoding the plan's generation", media, advice);
    snprintf(what, sizeof what, "decoding the plan's generation (%zu MB for the decoders' weights)", megabytes(held));
    return check_memory(device, what, both < media ? SIZE_MAX : both, advice);
}

/* Keyframes that are pictures need the encoder of the plan's video autoencoder. */
static h3_status check_pictures(const h3_plan *plan, const h3_generation_inputs *inputs)
{
    const cJSON *decoders = cJSON_GetObjectItemCaseSensitive(plan->json, "decoders");
    if (!h3_generation_has_pictures(inputs) || cJSON_GetObjectItemCaseSensitive(decoders, "video") != NULL) return H3_OK;
    return h3_error(H3_USAGE, "%s: the conditioning file has a keyframe as a picture, and the plan names no video autoencoder; add \"decoders\", or make the file with "
                              "bin/h3_keyframe --vae",
                    plan->path);
}

static h3_status check_tiling(const h3_generation *generation, const h3_decoder_weights *weights)
{
    const h3_layout_args *layout = &generation->layout;
    int64_t tiles, tokens;
    h3_status status = h3_video_decoder_tokens(&tiles, &tokens, &weights->video.config, &generation->decoders.tiling, layout->height, layout->width);
    return status == H3_OK ? H3_OK : h3_error_context(status, "the plan's decoders.video");
}

/* Decoders are opened, so that one that is missing or does not fit is known before anything runs; their bytes are hashed when they are used. */
static h3_status check_decoders(const h3_generation *generation, const h3_config *config, const h3_device *device)
{
    h3_decoder_weights weights;
    h3_media_shape shape = {0};
    if (!generation->decoders.present) return H3_OK;
    h3_status status = h3_decoders_open(&weights, &generation->decoders);
    if (status == H3_OK) status = h3_decoders_fit(&shape, &weights, config, &generation->layout);
    if (status == H3_OK) status = check_tiling(generation, &weights);
    if (status == H3_OK) status = h3_preflight_media(&shape, &generation->decoders, &weights, device);
    h3_decoders_close(&weights);
    return status;
}

/* The files that generation will read are read now, hours before they are needed. */
static h3_status check_generation(const h3_plan *plan, const h3_config *config, const h3_device *device)
{
    h3_generation generation;
    h3_generation_inputs inputs = {0};
    if (plan->generation == NULL) return H3_OK;
    H3_TRY(h3_generation_read(&generation, plan));
    h3_status status = check_generation_memory(&generation, config);
    if (status == H3_OK) status = h3_generation_inputs_new(&inputs, &generation, config);
    if (status == H3_OK) status = check_pictures(plan, &inputs);
    if (status == H3_OK) status = check_decoders(&generation, config, device);
    h3_generation_inputs_free(&inputs);
    h3_generation_free(&generation);
    return status;
}

static h3_status read_pinned_manifest(h3_manifest *out, char sha256[H3_SHA256_HEX], const char *path)
{
    char *text;
    size_t size;
    H3_TRY(h3_file_read(&text, &size, path, PIN_LIMIT, H3_INTEGRITY));
    h3_status status = h3_sha256(sha256, text, size);
    if (status == H3_OK) status = h3_manifest_parse(out, text, size, path);
    free(text);
    return status;
}

static h3_status read_pinned_thresholds(h3_thresholds *out, const char *path)
{
    char *text;
    size_t size;
    H3_TRY(h3_file_read(&text, &size, path, PIN_LIMIT, H3_INTEGRITY));
    h3_status status = h3_thresholds_parse(out, text, size, path);
    free(text);
    return status;
}

/* Thresholds are those of the manifest beside which they are pinned. */
static h3_status check_pair(const h3_plan *plan, const h3_manifest *manifest, const char *manifest_sha256,
                            h3_thresholds *thresholds)
{
    char *text, sha256[H3_SHA256_HEX], printed[H3_SHA256_HEX];
    int same = strcmp(thresholds->manifest_sha256, manifest_sha256) == 0 &&
               strcmp(thresholds->plan_identity, manifest->plan_identity) == 0;
    H3_TRY(h3_sha256_file(sha256, plan->pinned_thresholds, NULL, H3_INTEGRITY));
    if (same && h3_thresholds_print(&text, thresholds, manifest) == H3_OK) {
        same = h3_sha256(printed, text, strlen(text)) == H3_OK && strcmp(printed, sha256) == 0;
        free(text);
        if (same) return H3_OK;
    }
    return h3_error(H3_INTEGRITY, "%s is not what was frozen from %s: one of the two has changed; pin files of one run",
                    plan->pinned_thresholds, plan->pinned_manifest);
}

/* Each is sound by itself, and they belong together. */
static h3_status check_pins(const h3_plan *plan)
{
    h3_manifest manifest = {0};
    h3_thresholds thresholds = {0};
    char sha256[H3_SHA256_HEX];
    int both = plan->pinned_manifest[0] != 0 && plan->pinned_thresholds[0] != 0;
    h3_status status = H3_OK;
    if (plan->pinned_manifest[0] != 0) status = read_pinned_manifest(&manifest, sha256, plan->pinned_manifest);
    if (status != H3_OK) h3_error_context(status, "pins.manifest");
    if (status == H3_OK && plan->pinned_thresholds[0] != 0) {
        status = read_pinned_thresholds(&thresholds, plan->pinned_thresholds);
        if (status != H3_OK) h3_error_context(status, "pins.thresholds");
    }
    if (status == H3_OK && both) status = check_pair(plan, &manifest, sha256, &thresholds);
    h3_manifest_free(&manifest);
    h3_thresholds_free(&thresholds);
    return status;
}

static h3_status check_plan(const h3_plan *plan, const h3_config *config, const h3_device *device)
{
    size_t bytes;
    H3_TRY(reference_memory(plan, config, &bytes));
    H3_TRY(check_layout_memory("this plan", bytes));
    H3_TRY(check_pins(plan));
    H3_TRY(h3_preflight_preview(plan));
    return check_generation(plan, config, device);
}

/* What is wrong with a plan is said with its name, whoever found it. */
h3_status h3_preflight_plan(const h3_plan *plan, const h3_config *config, const h3_device *device)
{
    h3_status status = check_plan(plan, config, device);
    int wrong = status == H3_USAGE || status == H3_INTEGRITY;
    return wrong && strstr(h3_error_text(), plan->path) == NULL ? h3_error_context(status, "%s", plan->path) : status;
}

/* What the frames and the sound of both sides will take. */
static h3_status media_bytes(const h3_plan *plan, const h3_config *config, size_t *bytes)
{
    h3_generation generation;
    h3_decoder_weights weights = {0};
    h3_media_shape shape = {0};
    *bytes = 0;
    if (plan->decoders == NULL) return H3_OK;
    H3_TRY(h3_generation_read(&generation, plan));
    h3_status status = h3_decoders_open(&weights, &generation.decoders);
    if (status == H3_OK) status = h3_decoders_fit(&shape, &weights, config, &generation.layout);
    if (status == H3_OK) status = add_product(bytes, h3_media_disk(&shape), generation.seed_count, 2);
    h3_decoders_close(&weights);
    h3_generation_free(&generation);
    return status;
}

h3_status h3_preflight_folder(const h3_plan *plan, const h3_config *config, const char *run_folder)
{
    size_t bytes, media;
    H3_TRY(h3_reference_bytes(plan, config, &bytes));
    H3_TRY(media_bytes(plan, config, &media));
    H3_TRY(add_product(&bytes, media, 1, 1));
    H3_TRY(check_writable(run_folder));
    return check_disk(run_folder, bytes);
}
