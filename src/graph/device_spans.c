#include "graph/device_spans.h"

#include "base/log.h"

static struct {
    h3_device_work work;
    double begun;
} host;

h3_status h3_cpu_span_begin(void)
{
    host.begun = h3_clock();
    if (host.work.spans == 0) host.work.start = host.begun;
    return H3_OK;
}

h3_status h3_cpu_span_end(void)
{
    double now = h3_clock();
    host.work.spans++;
    host.work.busy += now - host.begun;
    host.work.window = now - host.work.start;
    return H3_OK;
}

h3_status h3_cpu_span_take(h3_device_work *out)
{
    *out = host.work;
    host.work = (h3_device_work){0};
    return H3_OK;
}

#ifdef H3_CUDA
#include <cuda_runtime_api.h>

enum { SPANS = 1024 };

/* A ring of spans on their way, the oldest first. */
static struct {
    cudaEvent_t begun[SPANS], ended[SPANS];
    cudaEvent_t first; /* where the first span begins: its own slot may be used again before the window is known */
    size_t made, oldest, count;
    h3_device_work work;
} ring;

static h3_status succeeded(int gpu, cudaError_t code, const char *what)
{
    if (code == cudaSuccess) return H3_OK;
    return h3_error(H3_ENVIRONMENT, "GPU %d: %s: %s; look at the GPU with nvidia-smi and run again", gpu, what, cudaGetErrorString(code));
}

static h3_status make_events(int gpu, size_t slot)
{
    if (slot < ring.made) return H3_OK;
    if (ring.made == 0) H3_TRY(succeeded(gpu, cudaEventCreate(&ring.first), "cudaEventCreate"));
    H3_TRY(succeeded(gpu, cudaEventCreate(&ring.begun[slot]), "cudaEventCreate"));
    H3_TRY(succeeded(gpu, cudaEventCreate(&ring.ended[slot]), "cudaEventCreate"));
    ring.made = slot + 1;
    return H3_OK;
}

/* Adds the oldest span to the sum. */
static h3_status reap(int gpu)
{
    float milliseconds;
    size_t slot = ring.oldest;
    H3_TRY(succeeded(gpu, cudaEventSynchronize(ring.ended[slot]), "finishing what was started"));
    H3_TRY(succeeded(gpu, cudaEventElapsedTime(&milliseconds, ring.begun[slot], ring.ended[slot]), "cudaEventElapsedTime"));
    ring.work.busy += 1e-3 * (double)milliseconds;
    ring.oldest = (slot + 1) % SPANS;
    ring.count--;
    return H3_OK;
}

h3_status h3_cuda_span_begin(void *stream, int gpu)
{
    if (ring.count == SPANS) H3_TRY(reap(gpu));
    size_t slot = (ring.oldest + ring.count) % SPANS;
    H3_TRY(make_events(gpu, slot));
    if (ring.work.spans == 0) {
        ring.work.start = h3_clock();
        H3_TRY(succeeded(gpu, cudaEventRecord(ring.first, stream), "cudaEventRecord"));
    }
    return succeeded(gpu, cudaEventRecord(ring.begun[slot], stream), "cudaEventRecord");
}

h3_status h3_cuda_span_end(void *stream, int gpu)
{
    H3_TRY(succeeded(gpu, cudaEventRecord(ring.ended[(ring.oldest + ring.count) % SPANS], stream), "cudaEventRecord"));
    ring.count++;
    ring.work.spans++;
    return H3_OK;
}

h3_status h3_cuda_span_take(int gpu, h3_device_work *out)
{
    float milliseconds = 0;
    size_t newest = (ring.oldest + ring.count + SPANS - 1) % SPANS;
    while (ring.count > 0) H3_TRY(reap(gpu));
    if (ring.work.spans > 0) H3_TRY(succeeded(gpu, cudaEventElapsedTime(&milliseconds, ring.first, ring.ended[newest]), "cudaEventElapsedTime"));
    ring.work.window = 1e-3 * (double)milliseconds;
    *out = ring.work;
    ring.work = (h3_device_work){0};
    ring.oldest = 0;
    return H3_OK;
}
#endif
