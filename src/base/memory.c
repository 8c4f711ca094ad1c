#include "base/memory.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

h3_status h3_size_multiply(size_t a, size_t b, size_t *out)
{
    if (__builtin_mul_overflow(a, b, out)) return h3_error(H3_INTEGRITY, "a size overflows: %zu times %zu; the file or plan is damaged", a, b);
    return H3_OK;
}

void h3_large_pages(void *memory, size_t bytes)
{
    const uintptr_t page = (uintptr_t)1 << 12, start = ((uintptr_t)memory + page - 1) / page * page, end = ((uintptr_t)memory + bytes) / page * page;
    if (bytes >= (size_t)8 << 20 && end > start) madvise((void *)start, (size_t)(end - start), MADV_HUGEPAGE); /* advice: it may be refused */
}

h3_status h3_alloc(void **out, size_t count, size_t size, const char *what)
{
    size_t bytes, rounded;
    *out = NULL;
    H3_TRY(h3_size_multiply(count, size, &bytes));
    if (bytes == 0) return H3_OK;
    if (__builtin_add_overflow(bytes, (size_t)63, &rounded)) return h3_error(H3_INTEGRITY, "a size overflows: %zu bytes for %s", bytes, what);
    void *memory = aligned_alloc(64, rounded / 64 * 64);
    if (memory == NULL) return h3_error(H3_ENVIRONMENT, "out of memory: %zu bytes for %s; use a smaller layout or more ranks", bytes, what);
    h3_large_pages(memory, bytes);
    memset(memory, 0, rounded / 64 * 64);
    *out = memory;
    return H3_OK;
}

h3_tensor h3_tensor_view(void *data, int32_t dtype, int32_t rank, const int64_t *shape)
{
    h3_tensor tensor = {.data = data, .dtype = dtype, .rank = rank};
    int64_t stride = 1;
    for (int32_t i = rank - 1; i >= 0; i--) {
        tensor.shape[i] = shape[i];
        tensor.stride[i] = stride;
        stride *= shape[i];
    }
    return tensor;
}

h3_status h3_tensor_new(h3_tensor *out, int32_t dtype, int32_t rank, const int64_t *shape)
{
    size_t count = 1;
    *out = (h3_tensor){0};
    if (rank < 1 || rank > H3_MAX_RANK) return h3_error(H3_INTEGRITY, "a tensor of %d dimensions; 1 to %d are possible", rank, H3_MAX_RANK);
    for (int32_t i = 0; i < rank; i++) {
        if (shape[i] < 0) return h3_error(H3_INTEGRITY, "a negative tensor dimension %lld", (long long)shape[i]);
        H3_TRY(h3_size_multiply(count, (size_t)shape[i], &count));
    }
    void *data;
    /* An empty tensor still gets an address: NULL means absent. */
    H3_TRY(h3_alloc(&data, count ? count : 1, h3_dtype_size(dtype), "a tensor"));
    *out = h3_tensor_view(data, dtype, rank, shape);
    return H3_OK;
}

void h3_tensor_free(h3_tensor *tensor)
{
    free(tensor->data);
    *tensor = (h3_tensor){0};
}

size_t h3_tensor_bytes(const h3_tensor *tensor) { return (size_t)h3_tensor_count(tensor) * h3_dtype_size(tensor->dtype); }

h3_status h3_tensor_convert(h3_tensor *out, const h3_tensor *tensor, int32_t dtype)
{
    h3_tensor result;
    int64_t count = h3_tensor_count(tensor);
    if (tensor->dtype != dtype && !((tensor->dtype == H3_F32 && dtype == H3_BF16) || (tensor->dtype == H3_BF16 && dtype == H3_F32)))
        return h3_error(H3_INTEGRITY, "no conversion from dtype %d to %d", tensor->dtype, dtype);
    H3_TRY(h3_tensor_new(&result, dtype, tensor->rank, tensor->shape));
    if (tensor->dtype == dtype) {
        memcpy(result.data, tensor->data, h3_tensor_bytes(tensor));
    } else if (dtype == H3_F32) {
        const uint16_t *from = tensor->data;
        float *to = result.data;
        for (int64_t i = 0; i < count; i++) to[i] = h3_bf16_to_f32(from[i]);
    } else {
        const float *from = tensor->data;
        uint16_t *to = result.data;
        for (int64_t i = 0; i < count; i++) to[i] = h3_f32_to_bf16(from[i]);
    }
    *out = result;
    return H3_OK;
}
