#include "graph/device_cuda.h"

#ifdef H3_CUDA
#include <cuda_runtime_api.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/device_hash.h"
#include "graph/device_kernels.h"
#include "graph/device_spans.h"

enum { STAGES = 2, STAGE = 32 << 20 };

/* One piece of GPU memory: in use, or waiting in the pool. */
typedef struct piece {
    void *memory;
    size_t bytes;
    int used;
} piece;

static struct {
    h3_device device;
    int opened;
    piece *pieces; /* in the order of their addresses */
    size_t count, capacity;
    size_t taken, most;
    char *staging[STAGES]; /* pinned, for what goes to the GPU */
    cudaEvent_t staged[STAGES];
} gpu;

__attribute__((format(printf, 1, 2))) static h3_status too_little_memory(const char *format, ...)
{
    char found[200];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(found, sizeof found, format, arguments);
    va_end(arguments);
    return h3_error(H3_ENVIRONMENT, "GPU %d has too little memory: %s; use a smaller layout, more ranks, or a GPU that nobody else uses", gpu.device.index, found);
}

static h3_status failed(cudaError_t code, const char *what)
{
    if (code == cudaErrorMemoryAllocation) return too_little_memory("%s: %s", what, cudaGetErrorString(code));
    return h3_error(H3_ENVIRONMENT, "GPU %d: %s: %s; look at the GPU with nvidia-smi and run again", gpu.device.index, what, cudaGetErrorString(code));
}

static h3_status succeeded(cudaError_t code, const char *what) { return code == cudaSuccess ? H3_OK : failed(code, what); }

static cudaStream_t stream(void) { return gpu.device.stream; }

static h3_status synchronize(const char *what) { return succeeded(cudaStreamSynchronize(stream()), what); }

/* Sizes repeat from block to block: nearby ones are made equal, so that a released piece fits the next request. */
static size_t round_up(size_t bytes)
{
    const size_t small = 512, large = (size_t)2 << 20, step = bytes < large / 2 ? small : large;
    return (bytes + step - 1) / step * step;
}

/* The number of the first piece at or behind an address. */
static size_t place_of(const void *memory)
{
    size_t low = 0, high = gpu.count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if ((uintptr_t)gpu.pieces[middle].memory < (uintptr_t)memory) low = middle + 1;
        else high = middle;
    }
    return low;
}

static h3_status make_room(void)
{
    if (gpu.count < gpu.capacity) return H3_OK;
    size_t capacity = gpu.capacity ? 2 * gpu.capacity : 256;
    piece *larger = realloc(gpu.pieces, capacity * sizeof *larger);
    if (larger == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for the list of %zu pieces of GPU memory", capacity);
    gpu.pieces = larger;
    gpu.capacity = capacity;
    return H3_OK;
}

/* The smallest piece of the pool that holds `bytes` and wastes at most an eighth. */
static piece *find_released(size_t bytes)
{
    piece *best = NULL;
    for (size_t i = 0; i < gpu.count; i++) {
        piece *p = &gpu.pieces[i];
        if (!p->used && p->bytes >= bytes && p->bytes <= bytes + bytes / 8 && (best == NULL || p->bytes < best->bytes)) best = p;
    }
    return best;
}

/* Returns the pool to the GPU. */
static h3_status empty_pool(void)
{
    size_t kept = 0;
    H3_TRY(synchronize("finishing before memory is returned"));
    for (size_t i = 0; i < gpu.count; i++) {
        piece p = gpu.pieces[i];
        if (p.used) gpu.pieces[kept++] = p;
        else if (cudaFree(p.memory) == cudaSuccess) gpu.taken -= p.bytes;
    }
    gpu.count = kept;
    return H3_OK;
}

static h3_status out_of_memory(size_t bytes)
{
    size_t available = 0, total = 0;
    cudaMemGetInfo(&available, &total);
    return too_little_memory("%zu bytes more are needed, %zu of %zu are free", bytes, available, total);
}

static h3_status take_new(void **out, size_t bytes)
{
    H3_TRY(make_room());
    cudaError_t code = cudaMalloc(out, bytes);
    if (code == cudaErrorMemoryAllocation) {
        cudaGetLastError(); /* it is dealt with here */
        H3_TRY(empty_pool());
        code = cudaMalloc(out, bytes);
    }
    if (code == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        return out_of_memory(bytes);
    }
    H3_TRY(succeeded(code, "cudaMalloc"));
    size_t place = place_of(*out);
    for (size_t i = gpu.count; i > place; i--) gpu.pieces[i] = gpu.pieces[i - 1];
    gpu.pieces[place] = (piece){*out, bytes, 1};
    gpu.count++;
    gpu.taken += bytes;
    if (gpu.taken > gpu.most) gpu.most = gpu.taken;
    return H3_OK;
}

static h3_status allocate(void **out, size_t bytes)
{
    *out = NULL;
    if (bytes == 0) return H3_OK;
    size_t rounded = round_up(bytes);
    if (rounded < bytes) return out_of_memory(bytes);
    piece *released = find_released(rounded);
    if (released == NULL) return take_new(out, rounded);
    released->used = 1;
    *out = released->memory;
    return H3_OK;
}

static void release(void *memory)
{
    size_t place = place_of(memory);
    if (memory != NULL && place < gpu.count && gpu.pieces[place].memory == memory) gpu.pieces[place].used = 0;
}

static h3_status transfer(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, const char *what)
{
    H3_TRY(succeeded(cudaMemcpyAsync(to, from, bytes, kind, stream()), what));
    return kind == cudaMemcpyDeviceToDevice ? H3_OK : synchronize(what);
}


static h3_status open_staging(void)
{
    void *memory;
    for (int i = 0; i < STAGES && gpu.staging[i] == NULL; i++) {
        H3_TRY(succeeded(cudaEventCreateWithFlags(&gpu.staged[i], cudaEventDisableTiming), "cudaEventCreate"));
        H3_TRY(succeeded(cudaMallocHost(&memory, STAGE), "pinned memory"));
        gpu.staging[i] = memory;
    }
    return H3_OK;
}

/* Between a pinned buffer and pageable memory, all cores. */
static void spread(char *to, const char *from, size_t bytes)
{
    const size_t part = (size_t)1 << 20;
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < bytes; i += part) memcpy(to + i, from + i, bytes - i < part ? bytes - i : part);
}

/* The GPU to pageable memory: while one pinned buffer fills, the other is emptied. */
static h3_status to_host(void *host, const void *device, size_t bytes)
{
    const size_t small = (size_t)1 << 20;
    if (bytes <= small) return transfer(host, device, bytes, cudaMemcpyDeviceToHost, "copy to the host");
    H3_TRY(open_staging());
    for (size_t start = 0, before = 0, turn = 0; before < bytes; start += STAGE, turn++) {
        if (start < bytes) {
            size_t length = bytes - start < STAGE ? bytes - start : STAGE;
            H3_TRY(succeeded(cudaMemcpyAsync(gpu.staging[turn % STAGES], (const char *)device + start, length, cudaMemcpyDeviceToHost, stream()), "copy to the host"));
            H3_TRY(succeeded(cudaEventRecord(gpu.staged[turn % STAGES], stream()), "copy to the host"));
        }
        if (turn == 0) continue;
        size_t length = bytes - before < STAGE ? bytes - before : STAGE;
        H3_TRY(succeeded(cudaEventSynchronize(gpu.staged[(turn - 1) % STAGES]), "copy to the host"));
        spread((char *)host + before, gpu.staging[(turn - 1) % STAGES], length);
        before += STAGE;
    }
    return H3_OK;
}

/* Pageable memory to the GPU: while one pinned buffer is on its way, all cores fill the other. */
static h3_status from_host(void *device, const void *host, size_t bytes)
{
    const size_t small = (size_t)1 << 20;
    if (bytes <= small) return transfer(device, host, bytes, cudaMemcpyHostToDevice, "copy from the host");
    H3_TRY(open_staging());
    for (size_t start = 0, turn = 0; start < bytes; start += STAGE, turn++) {
        size_t length = bytes - start < STAGE ? bytes - start : STAGE;
        char *buffer = gpu.staging[turn % STAGES];
        H3_TRY(succeeded(cudaEventSynchronize(gpu.staged[turn % STAGES]), "copy from the host"));
        spread(buffer, (const char *)host + start, length);
        H3_TRY(succeeded(cudaMemcpyAsync((char *)device + start, buffer, length, cudaMemcpyHostToDevice, stream()), "copy from the host"));
        H3_TRY(succeeded(cudaEventRecord(gpu.staged[turn % STAGES], stream()), "copy from the host"));
    }
    return H3_OK;
}
static h3_status copy(void *to, const void *from, size_t bytes) { return transfer(to, from, bytes, cudaMemcpyDeviceToDevice, "copy"); }
static h3_status fill(void *memory, int byte, size_t bytes) { return succeeded(cudaMemsetAsync(memory, byte, bytes, stream()), "fill"); }

static h3_status memory(size_t *available, size_t *total)
{
    H3_TRY(succeeded(cudaMemGetInfo(available, total), "cudaMemGetInfo"));
    for (size_t i = 0; i < gpu.count; i++)
        if (!gpu.pieces[i].used) *available += gpu.pieces[i].bytes;
    return H3_OK;
}

static h3_status equal(int *out, const void *a, const void *b, size_t bytes)
{
    void *differs;
    int host = 1;
    H3_TRY(allocate(&differs, sizeof host));
    h3_status status = fill(differs, 0, sizeof host);
    if (status == H3_OK) status = succeeded((cudaError_t)h3_kernel_equal(stream(), a, b, bytes, differs), "comparing bytes");
    if (status == H3_OK) status = to_host(&host, differs, sizeof host);
    release(differs);
    *out = host == 0;
    return status;
}

static h3_status row_sums(h3_row_sum *out, const h3_tensor *x, const h3_tensor *g, int64_t rows, int64_t group)
{
    void *sums;
    size_t bytes = (size_t)rows * sizeof *out;
    H3_TRY(allocate(&sums, bytes));
    h3_status status = succeeded((cudaError_t)h3_kernel_row_sums(stream(), x->data, x->dtype == H3_BF16, g->data, g->dtype == H3_BF16, rows,
                                                                 h3_tensor_count(x) / rows, group, sums), "row sums");
    if (status == H3_OK) status = to_host(out, sums, bytes);
    release(sums);
    return status;
}

static h3_status synth(h3_tensor *out, const uint32_t key[2], float base, float amp, int through_bf16)
{
    return succeeded((cudaError_t)h3_kernel_synth(stream(), out->data, out->dtype == H3_BF16, through_bf16, h3_tensor_count(out), key[0], key[1], base, amp),
                     "synthetic values");
}

static h3_status widen(h3_tensor *out, const h3_tensor *bf16)
{
    return succeeded((cudaError_t)h3_kernel_widen(stream(), out->data, bf16->data, h3_tensor_count(bf16)), "widening");
}

static h3_status samples(void *out, const h3_tensor *tensor, int64_t count)
{
    void *picked;
    size_t size = h3_dtype_size(tensor->dtype);
    H3_TRY(allocate(&picked, (size_t)count * size));
    h3_status status = succeeded((cudaError_t)h3_kernel_samples(stream(), picked, tensor->data, count, H3_SAMPLE_STEP, (uint64_t)h3_tensor_count(tensor), (int)size),
                                 "samples");
    if (status == H3_OK) status = to_host(out, picked, (size_t)count * size);
    release(picked);
    return status;
}

static h3_status digest_start(h3_digest_job **job, const void *data, size_t bytes)
{
    return h3_cuda_digest_start(job, stream(), gpu.device.index, data, bytes);
}

static h3_status span_begin(void) { return h3_cuda_span_begin(stream(), gpu.device.index); }
static h3_status span_end(void) { return h3_cuda_span_end(stream(), gpu.device.index); }
static h3_status span_take(h3_device_work *out) { return h3_cuda_span_take(gpu.device.index, out); }

/* With less than this the libraries that operators call find no room for their own needs. */
static const size_t LEAST_MEMORY = (size_t)64 << 20;

static h3_status health(void)
{
    size_t available = 0, total = 0;
    H3_TRY(synchronize("finishing what was started"));
    H3_TRY(succeeded(cudaMemGetInfo(&available, &total), "cudaMemGetInfo"));
    if (available >= LEAST_MEMORY) return H3_OK;
    return too_little_memory("%zu of %zu bytes are free", available, total);
}

h3_status h3_cuda_open(int index, const h3_device **out)
{
    int count = h3_cuda_count();
    cudaStream_t own;
    if (count == 0) return h3_error(H3_ENVIRONMENT, "this machine has no usable GPU; look with nvidia-smi, or use --device cpu");
    if (index < 0 || index >= count) return h3_error(H3_ENVIRONMENT, "this machine has no GPU %d, it has %d; start fewer ranks on it", index, count);
    if (gpu.opened && gpu.device.index != index) return h3_error(H3_USAGE, "this process works on GPU %d already; one process has one GPU", gpu.device.index);
    if (!gpu.opened) {
        gpu.device = (h3_device){.kind = H3_DEVICE_CUDA, .index = index, .allocate = allocate, .release = release, .to_host = to_host,
                                 .from_host = from_host, .copy = copy, .fill = fill, .health = health, .trim = empty_pool, .memory = memory, .equal = equal,
                                 .row_sums = row_sums, .synth = synth, .widen = widen, .samples = samples, .digest_start = digest_start,
                                 .span_begin = span_begin, .span_end = span_end, .span_take = span_take};
        H3_TRY(succeeded(cudaSetDevice(index), "cudaSetDevice"));
        H3_TRY(succeeded(cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking), "cudaStreamCreate"));
        gpu.device.stream = own;
        gpu.opened = 1;
    }
    *out = &gpu.device;
    return H3_OK;
}

int h3_cuda_count(void)
{
    int count = 0;
    if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
    cudaGetLastError();
    return 0;
}

void h3_cuda_memory(size_t *taken, size_t *most)
{
    *taken = gpu.taken;
    *most = gpu.most;
}

#else

h3_status h3_cuda_open(int index, const h3_device **out)
{
    (void)index;
    (void)out;
    return h3_error(H3_ENVIRONMENT, "this build has no CUDA; build with make CUDA=1 on a machine with the toolkit");
}

int h3_cuda_count(void) { return 0; }

void h3_cuda_memory(size_t *taken, size_t *most) { *taken = *most = 0; }

#endif
