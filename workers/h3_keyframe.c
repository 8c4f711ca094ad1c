/* Makes a conditioning file of prompt embeddings and reference pictures. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "args.h"
#include "base/log.h"
#include "base/memory.h"
#include "media/video_ops_cuda.h"
#include "model/safetensors.h"
#include "qualify/generation.h"
#include "qualify/metrics.h"
#include "store/publish.h"
#include "tool.h"

static const char help[] =
    "h3_keyframe - a conditioning file for generation: prompt embeddings, and reference pictures as keyframes\n"
    "\n"
    "  h3_keyframe --text FILE.safetensors [--first PNG] [--last PNG] --canvas WIDTHxHEIGHT --out FILE.safetensors\n"
    "              [--vae DIR] [--device cpu|cuda]\n"
    "      FILE holds \"text\" [rows,width] BF16 and optionally \"text_tags\" [rows] I64, as scripts/export_conditioning.py\n"
    "      writes them; whatever else it holds is left out. PNG files may be of any size and kind\n"
    "\n"
    "  The first picture given is stretched to the canvas, a second one covers it and is cropped at its middle.\n"
    "  --vae DIR   the video autoencoder (config.json, safetensors): the file gets latents \"condition.<i>\", sampled with\n"
    "              seed 42 as published. Without it: \"image.<i>\", the canvas itself, which generation encodes\n"
    "\n"
    "  Prints the file's SHA-256 and the line for the plan.\n"
    "  exit codes: 0 written; 1 latents that are not finite, 2 usage, 3 damaged input, 4 environment\n"
    "  example: bin/h3_keyframe --text prompt.safetensors --first fox.png --canvas 1344x768 --vae models/MiniMax-H3/vae \\\n"
    "                           --out conditioning.safetensors\n";

typedef struct request {
    const char *text, *first, *last, *canvas, *out, *vae, *device;
    int64_t width, height;
} request;

enum { ENTRIES = 4 };

typedef struct contents {
    h3_safetensors_entry entries[ENTRIES]; /* tensors are owned */
    char names[ENTRIES][32];
    size_t count;
    cJSON *metadata;
    h3_video_encoder *encoder; /* NULL: pictures stay pictures */
    int64_t ratio;
} contents;

static void add(contents *c, const char *name, const h3_tensor *tensor)
{
    snprintf(c->names[c->count], sizeof c->names[0], "%s", name);
    c->entries[c->count] = (h3_safetensors_entry){c->names[c->count], *tensor};
    c->count++;
}

static h3_status read_text(contents *c, const request *r)
{
    h3_safetensors file;
    h3_tensor text, tags;
    H3_TRY(h3_safetensors_open(&file, r->text));
    h3_status status = h3_safetensors_read(&text, &file, "text", H3_BF16, 0, NULL);
    if (status == H3_OK) add(c, "text", &text);
    else status = h3_error_context(status, "no prompt embeddings; scripts/export_conditioning.py makes them");
    if (status == H3_OK && (text.rank != 2 || h3_tensor_count(&text) == 0))
        status = h3_error(H3_INTEGRITY, "%s: text must have two dimensions, rows and width, of at least 1 each; make it again", r->text);
    if (status == H3_OK && !h3_all_finite(&text)) status = h3_error(H3_INTEGRITY, "%s: text has values that are not finite; make it again", r->text);
    if (status == H3_OK && h3_safetensors_find(&file, "text_tags") != NULL) {
        status = h3_safetensors_read(&tags, &file, "text_tags", H3_I64, 1, &text.shape[0]);
        if (status == H3_OK) add(c, "text_tags", &tags);
    }
    h3_safetensors_close(&file);
    return status;
}

static h3_status open_encoder(contents *c, const request *r)
{
    const h3_device *device;
    const h3_video_ops *ops;
    h3_video_weights weights;
    if (r->vae == NULL) return H3_OK;
    H3_TRY(h3_device_open(r->device != NULL ? r->device : "cpu", 0, &device));
    H3_TRY(h3_video_ops_for(&ops, device));
    H3_TRY(h3_video_weights_open(&weights, r->vae));
    c->ratio = h3_video_sizes_of(&weights.config).spatial_ratio;
    h3_status status = H3_OK;
    if (r->width % c->ratio != 0 || r->height % c->ratio != 0)
        status = h3_error(H3_USAGE, "--canvas %s: %s needs multiples of %lld pixels", r->canvas, r->vae, (long long)c->ratio);
    if (status == H3_OK) status = h3_video_encoder_open(&c->encoder, &weights, device, ops, &H3_VIDEO_TILING, 0);
    h3_video_weights_close(&weights);
    return status;
}

/* The picture on the canvas: as bytes, or as latents. */
static h3_status add_picture(contents *c, const request *r, const h3_picture *picture, int number)
{
    char name[32], sha256[H3_SHA256_HEX];
    h3_picture canvas;
    h3_tensor tensor;
    if (c->encoder != NULL) {
        H3_TRY(h3_keyframe_encode(&tensor, sha256, picture, number == 0, c->encoder, r->height, r->width));
    } else {
        H3_TRY(h3_picture_canvas(&canvas, picture, r->width, r->height, number == 0));
        tensor = h3_tensor_view(canvas.rgb, H3_U8, 3, H3_SHAPE(r->height, r->width, 3));
    }
    snprintf(name, sizeof name, "%s.%d", c->encoder != NULL ? "condition" : "image", number);
    add(c, name, &tensor);
    if (c->encoder == NULL) H3_TRY(h3_sha256(sha256, tensor.data, h3_tensor_bytes(&tensor)));
    snprintf(name, sizeof name, "canvas_sha256.%d", number);
    return cJSON_AddStringToObject(c->metadata, name, sha256) != NULL ? H3_OK : h3_error(H3_ENVIRONMENT, "out of memory for a conditioning file");
}

static h3_status add_pictures(contents *c, const request *r)
{
    const char *const paths[] = {r->first, r->last};
    int number = 0;
    for (int i = 0; i < 2; i++) {
        h3_picture picture;
        if (paths[i] == NULL) continue;
        H3_TRY(h3_picture_read(&picture, paths[i], H3_PICTURE_ANY));
        h3_status status = add_picture(c, r, &picture, number++);
        h3_picture_free(&picture);
        H3_TRY(status);
    }
    return H3_OK;
}

/* The line for the plan, as JSON has it. */
static h3_status say_plan(const char *path, const char *sha256)
{
    cJSON *name = cJSON_CreateString(path);
    char *text = cJSON_PrintUnformatted(name);
    cJSON_Delete(name);
    if (text == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for the plan's line");
    h3_say("plan     \"conditioning\": {\"file\": %s, \"sha256\": \"%s\"}", text, sha256);
    cJSON_free(text);
    return H3_OK;
}

static h3_status write_file(contents *c, const request *r)
{
    char *image, sha256[H3_SHA256_HEX];
    size_t size;
    H3_TRY(h3_safetensors_build(&image, &size, c->entries, c->count, c->metadata));
    h3_status status = h3_sha256(sha256, image, size);
    if (status == H3_OK) status = h3_publish(r->out, image, size);
    free(image);
    H3_TRY(status);
    h3_say("keyframe %s  %lld text rows, canvas %lldx%lld, %s", r->out, (long long)c->entries[0].tensor.shape[0], (long long)r->width, (long long)r->height,
           c->encoder != NULL ? "latents" : "pictures");
    return say_plan(r->out, sha256);
}

/* A file is never replaced by what was made of it. */
static h3_status check_out(const request *r)
{
    const char *const inputs[] = {r->text, r->first, r->last};
    struct stat out, in;
    if (stat(r->out, &out) != 0) return H3_OK;
    for (int i = 0; i < 3; i++)
        if (inputs[i] != NULL && stat(inputs[i], &in) == 0 && in.st_dev == out.st_dev && in.st_ino == out.st_ino)
            return h3_error(H3_USAGE, "--out %s is %s, which is read; give another name", r->out, inputs[i]);
    return H3_OK;
}

static h3_status run(const request *r)
{
    contents c = {.metadata = cJSON_CreateObject()};
    h3_status status = c.metadata != NULL ? H3_OK : h3_error(H3_ENVIRONMENT, "out of memory for a conditioning file");
    if (status == H3_OK) status = check_out(r);
    if (status == H3_OK) status = read_text(&c, r);
    if (status == H3_OK) status = open_encoder(&c, r);
    if (status == H3_OK) status = add_pictures(&c, r);
    if (status == H3_OK) status = write_file(&c, r);
    for (size_t i = 0; i < c.count; i++) h3_tensor_free(&c.entries[i].tensor);
    if (c.encoder != NULL) h3_video_encoder_close(c.encoder);
    cJSON_Delete(c.metadata);
    return status;
}

static h3_status parse(request *r, int argc, char **argv, int *done)
{
    int used = 0;
    long long width = 0, height = 0;
    const h3_option options[] = {{"--text", &r->text, NULL}, {"--first", &r->first, NULL}, {"--last", &r->last, NULL}, {"--canvas", &r->canvas, NULL},
                                 {"--out", &r->out, NULL}, {"--vae", &r->vae, NULL}, {"--device", &r->device, NULL}};
    H3_TRY(h3_options_parse(options, sizeof options / sizeof *options, argc, argv, help, done));
    if (*done) return H3_OK;
    if (r->text == NULL || r->out == NULL || r->canvas == NULL || (r->first == NULL && r->last == NULL))
        return h3_error(H3_USAGE, "--text, --first or --last, --canvas and --out are needed; see h3_keyframe --help");
    if (r->device != NULL && strcmp(r->device, "cpu") != 0 && strcmp(r->device, "cuda") != 0) return h3_error(H3_USAGE, "--device %s: use cpu or cuda", r->device);
    if (strlen(r->canvas) > 12 || sscanf(r->canvas, "%5lldx%5lld%n", &width, &height, &used) != 2 || r->canvas[used] != 0 || width < 1 || height < 1 || width > H3_PICTURE_SIDE_LIMIT ||
        height > H3_PICTURE_SIDE_LIMIT)
        return h3_error(H3_USAGE, "--canvas %s: give WIDTHxHEIGHT, 1 to %d each, for example 1344x768", r->canvas, H3_PICTURE_SIDE_LIMIT);
    r->width = width;
    r->height = height;
    return H3_OK;
}

int main(int argc, char **argv)
{
    request r = {0};
    int done;
    h3_status status = parse(&r, argc, argv, &done);
    if (status == H3_OK && !done) status = run(&r);
    return h3_exit("h3_keyframe", status);
}
