/* Putting parameters on a device, for the two drivers. */
#ifndef H3_MEDIA_VIDEO_WEIGHTS_H
#define H3_MEDIA_VIDEO_WEIGHTS_H

#include "media/video.h"

typedef struct h3_video_layer {
    h3_tensor weight, bias;
} h3_video_layer;

/* Parameter `name` in `dtype` (F32 or F16, rounded once) on the device. The name is a format. */
h3_status h3_video_place(h3_tensor *out, const h3_parameter_source *source, const h3_device *device, int32_t dtype, const char *name, ...)
    __attribute__((format(printf, 5, 6)));
/* "<name>.weight" and "<name>.bias". */
h3_status h3_video_place_layer(h3_video_layer *out, const h3_parameter_source *source, const h3_device *device, int32_t dtype, const char *name, ...)
    __attribute__((format(printf, 5, 6)));
/* Several layers of one input as one: rows of `weight` and elements of `bias` one after the other. `names` ends with NULL; `prefix` stands before each. */
h3_status h3_video_place_joined(h3_video_layer *out, const h3_parameter_source *source, const h3_device *device, int32_t dtype, const char *prefix,
                                const char *const *names);
void h3_video_free_layer(h3_video_layer *layer, const h3_device *device);

/* A host tensor in `dtype` on the device. */
h3_status h3_video_upload(h3_tensor *out, const h3_device *device, const h3_tensor *host, int32_t dtype);

#endif
