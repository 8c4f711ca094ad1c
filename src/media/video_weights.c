#include "media/video_weights.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "base/text.h"

enum { NAME = 112 };

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

h3_status h3_video_upload(h3_tensor *out, const h3_device *device, const h3_tensor *host, int32_t dtype)
{
    h3_tensor rounded;
    if (dtype == H3_F32) return h3_device_upload(out, device, host);
    H3_TRY(h3_tensor_new(&rounded, dtype, host->rank, host->shape));
    const float *from = host->data;
    uint16_t *to = rounded.data;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < h3_tensor_count(host); i++) to[i] = h3_f32_to_f16(from[i]);
    h3_status status = h3_device_upload(out, device, &rounded);
    h3_tensor_free(&rounded);
    return status;
}

static h3_status place_named(h3_tensor *out, const h3_parameter_source *source, const h3_device *device, int32_t dtype, const char *name)
{
    h3_tensor host;
    H3_TRY(h3_parameters_read(&host, source, name));
    h3_status status = h3_video_upload(out, device, &host, dtype);
    h3_tensor_free(&host);
    return status;
}

h3_status h3_video_place(h3_tensor *out, const h3_parameter_source *source, const h3_device *device, int32_t dtype, const char *name, ...)
{
    char text[NAME];
    va_list arguments;
    va_start(arguments, name);
    vsnprintf(text, sizeof text, name, arguments);
    va_end(arguments);
    return place_named(out, source, device, dtype, text);
}

h3_status h3_video_place_layer(h3_video_layer *out, const h3_parameter_source *source, const h3_device *device, int32_t dtype, const char *name, ...)
{
    char text[NAME], part[NAME + 8];
    va_list arguments;
    va_start(arguments, name);
    vsnprintf(text, sizeof text, name, arguments);
    va_end(arguments);
    snprintf(part, sizeof part, "%s.weight", text);
    H3_TRY(place_named(&out->weight, source, device, dtype, part));
    snprintf(part, sizeof part, "%s.bias", text);
    return place_named(&out->bias, source, device, dtype, part);
}

/* One kind of parameter of several layers, one after the other. */
static h3_status joined(h3_tensor *out, const h3_parameter_source *source, const char *prefix, const char *const *names, const char *kind)
{
    int64_t rows = 0;
    for (int part = 0; names[part] != NULL; part++) {
        char name[NAME];
        h3_tensor host, larger;
        snprintf(name, sizeof name, "%s.%s.%s", prefix, names[part], kind);
        H3_TRY(h3_parameters_read(&host, source, name));
        int64_t shape[H3_MAX_RANK];
        memcpy(shape, host.shape, sizeof shape);
        shape[0] += rows;
        h3_status status = h3_tensor_new(&larger, H3_F32, host.rank, shape);
        if (status == H3_OK) {
            const size_t before = out->data == NULL ? 0 : h3_tensor_bytes(out);
            if (before > 0) memcpy(larger.data, out->data, before);
            memcpy((char *)larger.data + before, host.data, h3_tensor_bytes(&host));
            h3_tensor_free(out);
            *out = larger;
            rows = shape[0];
        }
        h3_tensor_free(&host);
        H3_TRY(status);
    }
    return H3_OK;
}

h3_status h3_video_place_joined(h3_video_layer *out, const h3_parameter_source *source, const h3_device *device, int32_t dtype, const char *prefix,
                                const char *const *names)
{
    h3_tensor weight = {0}, bias = {0};
    h3_status status = joined(&weight, source, prefix, names, "weight");
    if (status == H3_OK) status = joined(&bias, source, prefix, names, "bias");
    if (status == H3_OK) status = h3_video_upload(&out->weight, device, &weight, dtype);
    if (status == H3_OK) status = h3_video_upload(&out->bias, device, &bias, dtype);
    h3_tensor_free(&weight);
    h3_tensor_free(&bias);
    return status;
}

void h3_video_free_layer(h3_video_layer *layer, const h3_device *device)
{
    h3_device_free(&layer->weight, device);
    h3_device_free(&layer->bias, device);
}
