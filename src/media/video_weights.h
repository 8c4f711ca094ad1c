/* Putting parameters on a device, for the two drivers. */
#ifndef H3_MEDIA_VIDEO_WEIGHTS_H
#define H3_MEDIA_VIDEO_WEIGHTS_H

#include "media/video.h"

typedef struct h3_video_layer {
    h3_tensor weight, bias;
} h3_video_layer;

/* From where to where. */
typedef struct h3_video_placing {
    const h3_parameter_source *source;
    const h3_device *device;
    const h3_video_ops *ops;
} h3_video_placing;

/* Parameter `name` in `dtype` (F32, or F16 rounded once). The name is a format. What has been placed when a call fails is the caller's to free. */
h3_status h3_video_place(h3_tensor *out, const h3_video_placing *from, int32_t dtype, const char *name, ...) __attribute__((format(printf, 4, 5)));
/* "<name>.weight" and "<name>.bias". */
h3_status h3_video_place_layer(h3_video_layer *out, const h3_video_placing *from, int32_t dtype, const char *name, ...)
    __attribute__((format(printf, 4, 5)));
/* Layers of one input as one: the rows of `weight` and the elements of `bias` one after the other. `parts` ends with NULL; "<prefix>.<part>.weight". */
h3_status h3_video_place_joined(h3_video_layer *out, const h3_video_placing *from, int32_t dtype, const char *prefix, const char *const *parts);
void h3_video_free_layer(h3_video_layer *layer, const h3_device *device);

#endif
