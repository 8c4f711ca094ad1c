/* Digests of GPU memory: pieces are copied to pinned host memory on the stream and hashed there by all cores, beside the GPU's work. */
#ifndef H3_GRAPH_DEVICE_HASH_H
#define H3_GRAPH_DEVICE_HASH_H

#include "graph/device_work.h"

/* Built with -DH3_CUDA. `stream`: the device's. The first call starts the threads, which last as long as the process. */
h3_status h3_cuda_digest_start(h3_digest_job **job, void *stream, int gpu, const void *data, size_t bytes);

#endif
