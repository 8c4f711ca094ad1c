/* The GPU behind h3_device_open("cuda"): one a process, one stream, memory from a pool. */
#ifndef H3_GRAPH_DEVICE_CUDA_H
#define H3_GRAPH_DEVICE_CUDA_H

#include "graph/device.h"

/*
 * Built with -DH3_CUDA; without it H3_ENVIRONMENT and a count of 0.
 *
 * Released memory goes to the pool and is given out again to whatever comes next on the stream, so neither waits for the GPU. When the GPU is
 * full the pool is returned to it first; after that H3_ENVIRONMENT names needed and free bytes. to_host returns when the copy is
 * done, from_host when the host's memory may change. Not for several threads.
 */
h3_status h3_cuda_open(int index, const h3_device **out);
int h3_cuda_count(void);

/* Bytes of GPU memory that this process has taken from the GPU, now and at most so far. */
void h3_cuda_memory(size_t *taken, size_t *most);

#endif
