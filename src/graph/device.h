/* Where tensors live. The walker allocates and moves through this table and knows no device by name. */
#ifndef H3_GRAPH_DEVICE_H
#define H3_GRAPH_DEVICE_H

#include "base/memory.h"

typedef struct h3_device {
    int32_t kind; /* H3_DEVICE_* */
    int32_t index;
    void *stream;
    h3_status (*allocate)(void **out, size_t bytes);
    void (*release)(void *memory);
    h3_status (*to_host)(void *host, const void *device, size_t bytes);
    h3_status (*from_host)(void *device, const void *host, size_t bytes);
    h3_status (*copy)(void *to, const void *from, size_t bytes); /* within the device */
} h3_device;

/* The host itself. */
const h3_device *h3_device_cpu(void);

/* A dense tensor on the device, contents undefined except on the CPU where they are zero. Released with h3_device_free. */
h3_status h3_device_tensor(h3_tensor *out, const h3_device *device, int32_t dtype, int32_t rank, const int64_t *shape);
void h3_device_free(h3_tensor *tensor, const h3_device *device);
/* A new tensor with the same bytes, on the same device. */
h3_status h3_device_duplicate(h3_tensor *out, const h3_device *device, const h3_tensor *tensor);
/* A device copy of a host tensor, and a host copy (h3_tensor_free) of a device tensor. */
h3_status h3_device_upload(h3_tensor *out, const h3_device *device, const h3_tensor *host);
h3_status h3_device_download(h3_tensor *out, const h3_device *device, const h3_tensor *tensor);

#endif
