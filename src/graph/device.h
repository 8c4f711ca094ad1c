/* Where tensors live. The walker allocates and moves through this table and knows no device by name. */
#ifndef H3_GRAPH_DEVICE_H
#define H3_GRAPH_DEVICE_H

#include "base/memory.h"

typedef struct h3_device {
    int32_t kind; /* H3_DEVICE_* */
    int32_t index;
    void *stream; /* all work of the process, in order */
    h3_status (*allocate)(void **out, size_t bytes);
    void (*release)(void *memory);
    h3_status (*to_host)(void *host, const void *device, size_t bytes);
    h3_status (*from_host)(void *device, const void *host, size_t bytes);
    h3_status (*copy)(void *to, const void *from, size_t bytes); /* within the device */
    h3_status (*fill)(void *memory, int byte, size_t bytes);     /* on the device */
    h3_status (*health)(void); /* asked after a failure: H3_ENVIRONMENT when the device itself has failed or is full, whoever noticed */
} h3_device;

/* The host itself. */
const h3_device *h3_device_cpu(void);

/* Device `name` ("cpu" or "cuda") number `index`; it stays open as long as the process. One GPU a process. H3_ENVIRONMENT when this build or
 * this machine has none, H3_USAGE for another name. */
h3_status h3_device_open(const char *name, int index, const h3_device **out);
/* How many devices of that name this machine has; 0 when there is none. */
int h3_device_count(const char *name);
const char *h3_device_name(int32_t kind);

/* A dense tensor on the device, contents undefined except on the CPU where they are zero. Released with h3_device_free. */
h3_status h3_device_tensor(h3_tensor *out, const h3_device *device, int32_t dtype, int32_t rank, const int64_t *shape);
void h3_device_free(h3_tensor *tensor, const h3_device *device);
/* The same, all zeros on every device. */
h3_status h3_device_zeros(h3_tensor *out, const h3_device *device, int32_t dtype, int32_t rank, const int64_t *shape);
/* A new tensor with the same bytes, on the same device. */
h3_status h3_device_duplicate(h3_tensor *out, const h3_device *device, const h3_tensor *tensor);
/* A device copy of a host tensor, and a host copy (h3_tensor_free) of a device tensor. */
h3_status h3_device_upload(h3_tensor *out, const h3_device *device, const h3_tensor *host);
h3_status h3_device_download(h3_tensor *out, const h3_device *device, const h3_tensor *tensor);

/* A device tensor for the host to read: on the CPU the very memory, elsewhere a copy. Given back with h3_device_return. */
h3_status h3_device_borrow(h3_tensor *out, const h3_device *device, const h3_tensor *tensor);
void h3_device_return(h3_tensor *borrowed, const h3_device *device);
/* Whether two device tensors of one size have the same bytes; never when one is absent. */
h3_status h3_device_equal(int *equal, const h3_device *device, const h3_tensor *a, const h3_tensor *b);

#endif
