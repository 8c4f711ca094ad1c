#include "graph/device.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "graph/device_cuda.h"
#include "graph/device_spans.h"
#include "graph/device_work.h"
#include "model/synth.h"

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
static h3_status cpu_trim(void) { return H3_OK; }

static h3_status cpu_memory(size_t *available, size_t *total)
{
    long page = sysconf(_SC_PAGESIZE), free_pages = sysconf(_SC_AVPHYS_PAGES), pages = sysconf(_SC_PHYS_PAGES);
    if (page <= 0 || free_pages < 0 || pages <= 0) return h3_error(H3_ENVIRONMENT, "the machine does not say how much memory it has");
    *available = (size_t)free_pages * (size_t)page;
    *total = (size_t)pages * (size_t)page;
    return H3_OK;
}

static h3_status cpu_equal(int *equal, const void *a, const void *b, size_t bytes)
{
    *equal = memcmp(a, b, bytes) == 0;
    return H3_OK;
}

static h3_status cpu_synth(h3_tensor *out, const uint32_t key[2], float base, float amp, int through_bf16)
{
    h3_synth_values(out, key, base, amp, through_bf16);
    return H3_OK;
}

static h3_status cpu_widen(h3_tensor *out, const h3_tensor *bf16)
{
    int64_t count = h3_tensor_count(bf16);
    for (int64_t i = 0; i < count; i++) ((float *)out->data)[i] = h3_bf16_to_f32(((const uint16_t *)bf16->data)[i]);
    return H3_OK;
}

static h3_status cpu_samples(void *out, const h3_tensor *tensor, int64_t count)
{
    size_t size = h3_dtype_size(tensor->dtype);
    uint64_t all = (uint64_t)h3_tensor_count(tensor);
    for (int64_t j = 0; j < count; j++)
        memcpy((char *)out + (size_t)j * size, (const char *)tensor->data + (size_t)((uint64_t)j * H3_SAMPLE_STEP % all) * size, size);
    return H3_OK;
}

const h3_device *h3_device_cpu(void)
{
    static const h3_device cpu = {.kind = H3_DEVICE_CPU,
                                  .allocate = cpu_allocate,
                                  .release = cpu_release,
                                  .to_host = cpu_copy,
                                  .from_host = cpu_copy,
                                  .copy = cpu_copy,
                                  .fill = cpu_fill,
                                  .health = cpu_health,
                                  .trim = cpu_trim,
                                  .memory = cpu_memory,
                                  .equal = cpu_equal,
                                  .row_sums = h3_cpu_row_sums,
                                  .synth = cpu_synth,
                                  .widen = cpu_widen,
                                  .samples = cpu_samples,
                                  .digest_start = h3_digest_now,
                                  .span_begin = h3_cpu_span_begin,
                                  .span_end = h3_cpu_span_end,
                                  .span_take = h3_cpu_span_take};
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
    void *memory = malloc(h3_tensor_bytes(tensor)); /* not zeroed: every byte is about to come */
    if (memory == NULL) return h3_error(H3_ENVIRONMENT, "out of memory: %zu bytes for a tensor on the host", h3_tensor_bytes(tensor));
    h3_large_pages(memory, h3_tensor_bytes(tensor));
    *out = h3_tensor_view(memory, tensor->dtype, tensor->rank, tensor->shape);
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
    *equal = 0;
    if (a->data == NULL || b->data == NULL || h3_tensor_bytes(a) != h3_tensor_bytes(b)) return H3_OK;
    H3_TRY(device->span_begin());
    H3_TRY(device->equal(equal, a->data, b->data, h3_tensor_bytes(a)));
    return device->span_end();
}

static int is_real(const h3_tensor *tensor) { return tensor->data != NULL && (tensor->dtype == H3_F32 || tensor->dtype == H3_BF16); }

h3_status h3_device_row_sums(h3_row_sum *out, const h3_device *device, const h3_tensor *x, const h3_tensor *g, int64_t rows, int64_t group)
{
    if (!is_real(x) || !is_real(g) || h3_tensor_count(x) != h3_tensor_count(g) || h3_tensor_count(x) < 1)
        return h3_error(H3_FAILED, "two tensors cannot be compared: absent, empty, or of different sizes");
    int64_t count = h3_tensor_count(x);
    if (rows < 1 || count % rows != 0 || group < 1 || count / rows % group != 0)
        return h3_error(H3_FAILED, "%lld elements do not divide into %lld rows and groups of %lld", (long long)count, (long long)rows, (long long)group);
    H3_TRY(device->span_begin());
    H3_TRY(device->row_sums(out, x, g, rows, group));
    return device->span_end();
}

h3_status h3_device_samples(h3_tensor *out, const h3_device *device, const h3_tensor *tensor, int64_t count)
{
    int64_t all = h3_tensor_count(tensor), taken = count < all ? count : all;
    H3_TRY(h3_tensor_new(out, tensor->dtype, 1, &taken));
    h3_status status = device->span_begin();
    if (status == H3_OK) status = device->samples(out->data, tensor, taken);
    if (status == H3_OK) status = device->span_end();
    if (status != H3_OK) h3_tensor_free(out);
    return status;
}

h3_status h3_device_digest_start(h3_digest_job **job, const h3_device *device, const h3_tensor *tensor)
{
    return device->digest_start(job, tensor->data, h3_tensor_bytes(tensor));
}

h3_status h3_device_digest(char out[H3_SHA256_HEX], const h3_device *device, const h3_tensor *tensor)
{
    h3_digest_job *job;
    H3_TRY(h3_device_digest_start(&job, device, tensor));
    return h3_digest_job_wait(job, out);
}
