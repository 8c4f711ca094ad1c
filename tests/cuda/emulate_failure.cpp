/* Failures on demand; see emulate_failure.h. */
#include "emulate_failure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <atomic>

namespace {

struct order {
    int rank = -1, number = 0, what = 0;
    char call[64] = "";
};

/* Has this program been given that argument? */
bool has_argument(const char *wanted)
{
    char text[4096] = "";
    FILE *file = fopen("/proc/self/cmdline", "r");
    size_t length = file != nullptr ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file != nullptr) fclose(file);
    for (const char *argument = text; argument < text + length; argument += strlen(argument) + 1)
        if (strcmp(argument, wanted) == 0) return true;
    return false;
}

order read_order()
{
    order o;
    char word[16] = "", argument[32] = "";
    const char *text = getenv("H3_EMULATE_FAIL");
    if (text == nullptr || text[0] == 0) return o;
    if (sscanf(text, "%d %63s %d %15s %31s", &o.rank, o.call, &o.number, word, argument) < 4 || o.number < 1) {
        fprintf(stderr, "H3_EMULATE_FAIL=\"%s\": expected RANK CALL NUMBER WHAT [ARGUMENT]\n", text);
        abort();
    }
    const char *const words[] = {"hang", "async", "flip", "stop"};
    for (int i = 0; i < 4; i++)
        if (strcmp(word, words[i]) == 0) o.what = H3_EMULATED_HANG + i;
    if (o.what == 0) o.what = atoi(word);
    if (argument[0] != 0 && !has_argument(argument)) o.rank = -1;
    return o;
}

std::atomic<int> seen, lost;
std::atomic<bool> full;
thread_local cudaError_t last = cudaSuccess;

} // namespace

int h3_emulated_rank()
{
    const char *text = getenv("OMPI_COMM_WORLD_RANK");
    return text != nullptr ? atoi(text) : 0;
}

int h3_emulated_failure(const char *call)
{
    static const order wanted = read_order();
    static const bool here = wanted.rank == h3_emulated_rank();
    if (!here || strcmp(call, wanted.call) != 0 || ++seen < wanted.number) return 0;
    while (wanted.what == H3_EMULATED_STOP) pause();
    return wanted.what;
}

cudaError_t h3_emulated_cuda(const char *call)
{
    if (lost != 0) return last = (cudaError_t)(int)lost;
    int code = h3_emulated_failure(call);
    if (code != 0 && code != cudaErrorMemoryAllocation && code != cudaErrorNotReady) lost = code;
    if (code == cudaErrorMemoryAllocation) full = true;
    if (code != 0) last = (cudaError_t)code;
    return (cudaError_t)code;
}

bool h3_emulated_full() { return full; }

extern "C" {
cudaError_t cudaGetLastError(void)
{
    cudaError_t code = lost != 0 ? (cudaError_t)(int)lost : last;
    last = cudaSuccess;
    return code;
}
const char *cudaGetErrorString(cudaError_t error)
{
    switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorDevicesUnavailable: return "CUDA-capable device(s) is/are busy or unavailable";
    case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
    default: return "emulated error";
    }
}
}
