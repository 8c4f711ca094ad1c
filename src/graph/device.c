#include "graph/device.h"

#include <stdlib.h>
#include <string.h>

static h3_status cpu_allocate(void **out, size_t bytes) { return h3_alloc(out, bytes, 1, "a tensor"); }
static void cpu_release(void *memory) { free(memory); }

static h3_status cpu_copy(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
    return H3_OK;
}

const h3_device *h3_device_cpu(void)
{
    static const h3_device cpu = {H3_DEVICE_CPU, 0, NULL, cpu_allocate, cpu_release, cpu_copy, cpu_copy, cpu_copy};
    return &cpu;
}

h3_status h3_device_tensor(h3_tensor *out, const h3_device *device, int32_t dtype, int32_t rank, const int64_t *shape)
{
    size_t bytes = h3_dtype_size(dtype);
    *out = (h3_tensor){0};
    if (rank < 1 || rank > H3_MAX_RANK) return h3_error(H3_INTEGRITY, "a tensor of %d dimensions; 1 to %d are possible", rank, H3_MAX_RANK);
    for (int32_t i = 0; i < rank; i++) {
        if (shape[i] < 1) return h3_error(H3_INTEGRITY, "a tensor dimension of %lld; at least 1 is needed", (long long)shape[i]);
        H3_TRY(h3_size_multiply(bytes, (size_t)shape[i], &bytes));
    }
    void *data;
    H3_TRY(device->allocate(&data, bytes));
    *out = h3_tensor_view(data, dtype, rank, shape);
    return H3_OK;
}

void h3_device_free(h3_tensor *tensor, const h3_device *device)
{
    if (tensor->data != NULL) device->release(tensor->data);
    *tensor = (h3_tensor){0};
}

h3_status h3_device_upload(h3_tensor *out, const h3_device *device, const h3_tensor *host)
{
    H3_TRY(h3_device_tensor(out, device, host->dtype, host->rank, host->shape));
    h3_status status = device->from_host(out->data, host->data, h3_tensor_bytes(host));
    if (status != H3_OK) h3_device_free(out, device);
    return status;
}

h3_status h3_device_download(h3_tensor *out, const h3_device *device, const h3_tensor *tensor)
{
    H3_TRY(h3_tensor_new(out, tensor->dtype, tensor->rank, tensor->shape));
    h3_status status = device->to_host(out->data, tensor->data, h3_tensor_bytes(tensor));
    if (status != H3_OK) h3_tensor_free(out);
    return status;
}

h3_status h3_device_duplicate(h3_tensor *out, const h3_device *device, const h3_tensor *tensor)
{
    H3_TRY(h3_device_tensor(out, device, tensor->dtype, tensor->rank, tensor->shape));
    h3_status status = device->copy(out->data, tensor->data, h3_tensor_bytes(tensor));
    if (status != H3_OK) h3_device_free(out, device);
    return status;
}
