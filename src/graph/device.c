#include "graph/device.h"

#include <stdlib.h>
#include <string.h>

#include "graph/device_cuda.h"

static h3_status cpu_allocate(void **out, size_t bytes) { return h3_alloc(out, bytes, 1, "a tensor"); }
static void cpu_release(void *memory) { free(memory); }

static h3_status cpu_copy(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
    return H3_OK;
}

static h3_status cpu_fill(void *memory, int byte, size_t bytes)
{
    memset(memory, byte, bytes);
    return H3_OK;
}

static h3_status cpu_health(void) { return H3_OK; }

const h3_device *h3_device_cpu(void)
{
    static const h3_device cpu = {H3_DEVICE_CPU, 0, NULL, cpu_allocate, cpu_release, cpu_copy, cpu_copy, cpu_copy, cpu_fill, cpu_health};
    return &cpu;
}

static const char *const names[] = {[H3_DEVICE_CPU] = "cpu", [H3_DEVICE_CUDA] = "cuda"};

const char *h3_device_name(int32_t kind) { return kind == H3_DEVICE_CPU || kind == H3_DEVICE_CUDA ? names[kind] : "unknown"; }

h3_status h3_device_open(const char *name, int index, const h3_device **out)
{
    if (strcmp(name, names[H3_DEVICE_CUDA]) == 0) return h3_cuda_open(index, out);
    if (strcmp(name, names[H3_DEVICE_CPU]) != 0) return h3_error(H3_USAGE, "no device is called \"%.40s\"; use cpu or cuda", name);
    *out = h3_device_cpu();
    return H3_OK;
}

int h3_device_count(const char *name) { return strcmp(name, names[H3_DEVICE_CUDA]) == 0 ? h3_cuda_count() : strcmp(name, names[H3_DEVICE_CPU]) == 0; }

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

h3_status h3_device_zeros(h3_tensor *out, const h3_device *device, int32_t dtype, int32_t rank, const int64_t *shape)
{
    H3_TRY(h3_device_tensor(out, device, dtype, rank, shape));
    if (device->kind == H3_DEVICE_CPU) return H3_OK;
    h3_status status = device->fill(out->data, 0, h3_tensor_bytes(out));
    if (status != H3_OK) h3_device_free(out, device);
    return status;
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

h3_status h3_device_borrow(h3_tensor *out, const h3_device *device, const h3_tensor *tensor)
{
    if (device->kind != H3_DEVICE_CPU && tensor->data != NULL) return h3_device_download(out, device, tensor);
    *out = *tensor;
    return H3_OK;
}

void h3_device_return(h3_tensor *borrowed, const h3_device *device)
{
    if (device->kind != H3_DEVICE_CPU) h3_tensor_free(borrowed);
    else *borrowed = (h3_tensor){0};
}

h3_status h3_device_equal(int *equal, const h3_device *device, const h3_tensor *a, const h3_tensor *b)
{
    h3_tensor x, y;
    *equal = 0;
    if (a->data == NULL || b->data == NULL || h3_tensor_bytes(a) != h3_tensor_bytes(b)) return H3_OK;
    H3_TRY(h3_device_borrow(&x, device, a));
    h3_status status = h3_device_borrow(&y, device, b);
    if (status == H3_OK) {
        *equal = memcmp(x.data, y.data, h3_tensor_bytes(&x)) == 0;
        h3_device_return(&y, device);
    }
    h3_device_return(&x, device);
    return status;
}
