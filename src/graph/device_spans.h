/* Spans of the host and of the GPU (graph/device.h, "How busy a device is"). */
#ifndef H3_GRAPH_DEVICE_SPANS_H
#define H3_GRAPH_DEVICE_SPANS_H

#include "graph/device.h"

h3_status h3_cpu_span_begin(void);
h3_status h3_cpu_span_end(void);
h3_status h3_cpu_span_take(h3_device_work *out);

/* Built with -DH3_CUDA. Of the process's one stream; `gpu` is named in messages. */
h3_status h3_cuda_span_begin(void *stream, int gpu);
h3_status h3_cuda_span_end(void *stream, int gpu);
h3_status h3_cuda_span_take(int gpu, h3_device_work *out);

#endif
