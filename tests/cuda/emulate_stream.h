/* Streams and events of the emulated GPU. Kernels and copies are done when they are called; only NCCL's work is not, and moves when somebody asks. */
#ifndef H3_TESTS_CUDA_EMULATE_STREAM_H
#define H3_TESTS_CUDA_EMULATE_STREAM_H

#include <stdint.h>

#include <mutex>

#include <cuda_runtime_api.h>

struct h3_emulated_stream {
    uint64_t issued, completed; /* NCCL's operations, in order */
};

/* Of everything that the watchdog's thread and the main thread share. */
std::recursive_mutex &h3_emulated_lock();
/* Moves NCCL's operations. */
void h3_emulated_progress();
/* The device that the calling thread works on. */
int h3_emulated_device();
void h3_emulated_bus(char *out, int length, int device);

#endif
