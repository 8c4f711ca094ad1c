#include "media/video_weights.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"

enum { NAME = 112, PARTS = 3 };

h3_status h3_video_weights_open(h3_video_weights *out, const char *folder)
{
    char path[H3_PATH_MAX];
    h3_parameter_list list;
    *out = (h3_video_weights){0};
    H3_TRY(h3_path(path, "%s/config.json", folder));
    H3_TRY(h3_video_config_read(&out->config, path));
    H3_TRY(h3_video_parameters(&list, &out->config));
    return h3_parameters_open(&out->source, folder, &list);
}

h3_status h3_video_weights_synthetic(h3_video_weights *out, const h3_video_config *config, uint64_t seed)
{
    h3_parameter_list list;
    *out = (h3_video_weights){.config = *config};
    H3_TRY(h3_video_parameters(&list, config));
    return h3_parameters_synthetic(&out->source, "video-vae", seed, &list);
}

void h3_video_weights_close(h3_video_weights *weights)
{
    h3_parameters_close(weights->source);
    *weights = (h3_video_weights){0};
}

/* Parameters of the same row size one after the other, `count` of them, in F32. */
static h3_status fill_joined(h3_tensor *out, const h3_video_placing *from, char (*names)[NAME], int count)
{
    int64_t shape[H3_MAX_RANK] = {0}, rows = 0, done = 0;
    int32_t rank = 0;
    for (int i = 0; i < count; i++) {
        const h3_parameter_shape *item = h3_parameters_shape(from->source, names[i]);
        if (item == NULL) return h3_error(H3_USAGE, "the autoencoder has no parameter %.200s", names[i]);
        memcpy(shape, item->shape, sizeof shape);
        rank = item->rank;
        rows += shape[0];
    }
    const int64_t own = shape[0];
    shape[0] = rows;
    H3_TRY(h3_device_tensor(out, from->device, H3_F32, rank, shape));
    shape[0] = own;
    for (int i = 0; i < count; i++) {
        h3_tensor part = h3_tensor_view((float *)out->data + done, H3_F32, rank, shape);
        h3_status status = h3_parameters_fill(&part, from->source, from->device, names[i]);
        if (status != H3_OK) {
            h3_device_free(out, from->device);
            return status;
        }
        done += h3_tensor_count(&part);
    }
    return H3_OK;
}

static h3_status place_named(h3_tensor *out, const h3_video_placing *from, int32_t dtype, char (*names)[NAME], int count)
{
    h3_tensor wide;
    if (dtype == H3_F32) return fill_joined(out, from, names, count);
    H3_TRY(fill_joined(&wide, from, names, count));
    h3_status status = h3_device_tensor(out, from->device, dtype, wide.rank, wide.shape);
    if (status == H3_OK) status = from->ops->round(from->device, out, &wide);
    h3_device_free(&wide, from->device);
    return status;
}

h3_status h3_video_place(h3_tensor *out, const h3_video_placing *from, int32_t dtype, const char *name, ...)
{
    char text[1][NAME];
    va_list arguments;
    va_start(arguments, name);
    vsnprintf(text[0], sizeof text[0], name, arguments);
    va_end(arguments);
    return place_named(out, from, dtype, text, 1);
}

h3_status h3_video_place_layer(h3_video_layer *out, const h3_video_placing *from, int32_t dtype, const char *name, ...)
{
    char text[NAME - 8], part[1][NAME];
    va_list arguments;
    va_start(arguments, name);
    vsnprintf(text, sizeof text, name, arguments);
    va_end(arguments);
    snprintf(part[0], sizeof part[0], "%s.weight", text);
    H3_TRY(place_named(&out->weight, from, dtype, part, 1));
    snprintf(part[0], sizeof part[0], "%s.bias", text);
    return place_named(&out->bias, from, dtype, part, 1);
}

h3_status h3_video_place_joined(h3_video_layer *out, const h3_video_placing *from, int32_t dtype, const char *prefix, const char *const *parts)
{
    char weights[PARTS][NAME], biases[PARTS][NAME];
    int count = 0;
    for (; count < PARTS && parts[count] != NULL; count++) {
        snprintf(weights[count], sizeof weights[count], "%.60s.%.30s.weight", prefix, parts[count]);
        snprintf(biases[count], sizeof biases[count], "%.60s.%.30s.bias", prefix, parts[count]);
    }
    H3_TRY(place_named(&out->weight, from, dtype, weights, count));
    return place_named(&out->bias, from, dtype, biases, count);
}

void h3_video_free_layer(h3_video_layer *layer, const h3_device *device)
{
    h3_device_free(&layer->weight, device);
    h3_device_free(&layer->bias, device);
}
