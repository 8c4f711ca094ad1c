/* Streams, events, time, and which GPU: H3_EMULATE_GPUS says how many there are (1), CUDA_VISIBLE_DEVICES how
 * many of them are seen. With H3_EMULATE_SHARED_GPU set all numbers mean one and the same. */
#include "emulate_stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "emulate_failure.h"

namespace {

struct event {
    double time = 0;
    h3_emulated_stream *stream = nullptr;
    uint64_t after = 0; /* done when the stream has completed so many */
};

thread_local int device; /* as in CUDA, a thread begins on device 0 */

int devices()
{
    const char *text = getenv("H3_EMULATE_GPUS"), *visible = getenv("CUDA_VISIBLE_DEVICES");
    int count = text != nullptr ? atoi(text) : 1, seen = 0;
    if (visible == nullptr) return count;
    for (const char *c = visible; *c; c++) seen += c == visible || c[-1] == ',';
    return seen < count ? seen : count;
}

double now()
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

} // namespace

std::recursive_mutex &h3_emulated_lock()
{
    static std::recursive_mutex lock;
    return lock;
}

int h3_emulated_device() { return device; }

void h3_emulated_bus(char *out, int length, int number)
{
    snprintf(out, (size_t)length, "0000:%02x:00.0", getenv("H3_EMULATE_SHARED_GPU") != nullptr ? 1 : number + 1);
}

extern "C" {
cudaError_t cudaGetDeviceCount(int *count)
{
    *count = devices();
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int *out)
{
    *out = device;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int number)
{
    if (number < 0 || number >= devices()) return cudaErrorInvalidDevice;
    device = number;
    return h3_emulated_cuda("cudaSetDevice");
}
cudaError_t cudaDeviceGetPCIBusId(char *out, int length, int number)
{
    h3_emulated_bus(out, length, number);
    return h3_emulated_cuda("cudaDeviceGetPCIBusId");
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned)
{
    *stream = (cudaStream_t)(void *)new h3_emulated_stream();
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    delete (h3_emulated_stream *)(void *)stream;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    h3_emulated_stream *own = (h3_emulated_stream *)(void *)stream;
    while (own != nullptr && own->completed < own->issued) h3_emulated_progress();
    return h3_emulated_cuda("cudaStreamSynchronize");
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned)
{
    *out = (cudaEvent_t)(void *)new event();
    return h3_emulated_cuda("cudaEventCreate");
}
cudaError_t cudaEventCreate(cudaEvent_t *out) { return cudaEventCreateWithFlags(out, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t done)
{
    delete (event *)(void *)done;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t at, cudaStream_t stream)
{
    std::lock_guard<std::recursive_mutex> guard(h3_emulated_lock());
    event *own = (event *)(void *)at;
    own->time = now();
    own->stream = (h3_emulated_stream *)(void *)stream;
    own->after = own->stream != nullptr ? own->stream->issued : 0;
    return h3_emulated_cuda("cudaEventRecord");
}
cudaError_t cudaEventQuery(cudaEvent_t at)
{
    std::lock_guard<std::recursive_mutex> guard(h3_emulated_lock());
    event *own = (event *)(void *)at;
    h3_emulated_progress();
    cudaError_t code = h3_emulated_cuda("cudaEventQuery");
    if (code != cudaSuccess) return code;
    return own->stream == nullptr || own->stream->completed >= own->after ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t at)
{
    while (cudaEventQuery(at) == cudaErrorNotReady) continue;
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end)
{
    *milliseconds = (float)(((event *)(void *)end)->time - ((event *)(void *)start)->time);
    return cudaSuccess;
}
}
