/*
 * The runtime of the emulated GPU, with a memory of its own. New memory is NaN (its first 4 MiB). H3_EMULATE_MEMORY says what is guarded:
 *   host   (default) the host cannot touch device memory but through copies: a program that does dies of it, as it would with a GPU
 *   edges  every piece ends at a page that is never there: a kernel that goes beyond it dies
 * and H3_EMULATE_PROCESSORS how many multiprocessors it says that it has (4).
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <map>

#include "h3/operator.h"

#include "emulate.h"
#include "emulate_failure.h"
#include "emulate_stream.h"

void h3_emulated_memory(bool open); /* emulate.cpp knows it when it is there */

namespace {

constexpr size_t PAGE = 4096, ALIGNED = 256, TOTAL = (size_t)8 << 30, FILLED = (size_t)4 << 20, ADDRESSES = (size_t)256 << 30;

struct piece {
    size_t bytes; /* asked for */
    char *base;   /* first page; the pages end where the piece ends */
    size_t whole;
};

std::map<char *, piece> memory; /* by the address given out */
char *arena, *top;              /* addresses are never given out twice */
size_t used;
int open_scopes;

bool guards_edges()
{
    static const char *text = getenv("H3_EMULATE_MEMORY");
    return text != nullptr && strcmp(text, "edges") == 0;
}

bool is_device(const void *address)
{
    auto next = memory.upper_bound((char *)address);
    if (next == memory.begin()) return false;
    --next;
    return (char *)address < next->first + next->second.bytes;
}

} // namespace

void h3_emulated_memory(bool open)
{
    std::lock_guard<std::recursive_mutex> guard(h3_emulated_lock());
    open_scopes += open ? 1 : -1;
    if (guards_edges() || top == arena || open_scopes != (open ? 1 : 0)) return;
    if (mprotect(arena, (size_t)(top - arena), open ? PROT_READ | PROT_WRITE : PROT_NONE) != 0) abort();
}

/* To and from must lie where the kind says. */
static cudaError_t move(void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
    std::lock_guard<std::recursive_mutex> guard(h3_emulated_lock());
    cudaError_t code = h3_emulated_cuda("cudaMemcpyAsync");
    if (code != cudaSuccess) return code;
    bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (bytes > 0 && (is_device(to) != to_device || is_device(from) != from_device)) return cudaErrorInvalidValue;
    h3_emulated_memory(true);
    memcpy(to, from, bytes);
    h3_emulated_memory(false);
    return cudaSuccess;
}

extern "C" {
cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = 0;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int)
{
    const char *processors = getenv("H3_EMULATE_PROCESSORS");
    *value = attribute == cudaDevAttrComputeCapabilityMajor ? 9 : attribute != cudaDevAttrMultiProcessorCount ? 0 : processors ? atoi(processors) : 4;
    return cudaSuccess;
}
cudaError_t cudaMalloc(void **out, size_t bytes)
{
    size_t rounded = (bytes + ALIGNED - 1) / ALIGNED * ALIGNED, whole = (rounded + PAGE - 1) / PAGE * PAGE;
    *out = nullptr;
    std::lock_guard<std::recursive_mutex> guard(h3_emulated_lock());
    cudaError_t code = h3_emulated_cuda("cudaMalloc");
    if (code != cudaSuccess) return code;
    if (arena == nullptr) {
        void *reserved = mmap(nullptr, ADDRESSES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (reserved == MAP_FAILED) return cudaErrorMemoryAllocation;
        arena = top = (char *)reserved;
    }
    if (bytes == 0 || used + bytes > TOTAL || (size_t)(top - arena) + whole + PAGE > ADDRESSES) return cudaErrorMemoryAllocation;
    char *base = top;
    top += whole + PAGE;
    mprotect(base, whole, PROT_READ | PROT_WRITE);
    memset(base, 0xff, whole < FILLED ? whole : FILLED);
    if (!guards_edges() && open_scopes == 0) mprotect(base, whole, PROT_NONE);
    *out = base + whole - rounded;
    memory[(char *)*out] = {bytes, base, whole};
    used += bytes;
    return cudaSuccess;
}

cudaError_t cudaFree(void *address)
{
    std::lock_guard<std::recursive_mutex> guard(h3_emulated_lock());
    auto item = memory.find((char *)address);
    if (item == memory.end()) return cudaErrorInvalidValue;
    madvise(item->second.base, item->second.whole, MADV_DONTNEED);
    mprotect(item->second.base, item->second.whole, PROT_NONE);
    used -= item->second.bytes;
    memory.erase(item);
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **out, size_t bytes) /* pinned memory is the host's */
{
    *out = malloc(bytes);
    return *out != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    *available = h3_emulated_full() ? 0 : TOTAL - used;
    *total = TOTAL;
    return h3_emulated_cuda("cudaMemGetInfo");
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) { return move(to, from, bytes, kind); }
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t) { return move(to, from, bytes, kind); }
cudaError_t cudaMemsetAsync(void *address, int value, size_t bytes, cudaStream_t)
{
    std::lock_guard<std::recursive_mutex> guard(h3_emulated_lock());
    cudaError_t code = h3_emulated_cuda("cudaMemsetAsync");
    if (code != cudaSuccess) return code;
    if (!is_device(address)) return cudaErrorInvalidValue;
    h3_emulated_memory(true);
    memset(address, value, bytes);
    h3_emulated_memory(false);
    return cudaSuccess;
}
}
