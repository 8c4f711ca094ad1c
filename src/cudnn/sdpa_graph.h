/* From a shape to an execution plan; see sdpa.h. Apart from sdpa.c so that it can be tried without a GPU, on a GPU's properties alone. */
#ifndef H3_CUDNN_SDPA_GRAPH_H
#define H3_CUDNN_SDPA_GRAPH_H

#include <cudnn.h>

#include "sdpa.h"

/* Names of the graph's tensors in an execution. */
enum { H3_SDPA_Q = 1, H3_SDPA_K, H3_SDPA_V, H3_SDPA_O, H3_SDPA_LSE, H3_SDPA_SCALE, H3_SDPA_TENSORS = 6 };

enum { H3_SDPA_DESCRIPTORS = 40 };

/* What was made for one plan, in order. The descriptors that a plan was made of live as long as it does. */
typedef struct h3_sdpa_parts {
    int count;
    cudnnBackendDescriptor_t made[H3_SDPA_DESCRIPTORS];
} h3_sdpa_parts;

/*
 * Builds the plan for one shape, for the GPU of `handle`, or with handle NULL for the one that `properties` (a finalized descriptor of
 * device properties) describes. Fills *out and *parts; out->plan is NULL when nothing was found, and then there are no parts.
 */
void h3_sdpa_build(h3_sdpa *out, h3_sdpa_parts *parts, const h3_sdpa_shape *shape, cudnnHandle_t handle, cudnnBackendDescriptor_t properties);
void h3_sdpa_parts_free(h3_sdpa_parts *parts);

#endif
