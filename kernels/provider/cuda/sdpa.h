/*
 * Scaled dot-product attention through cuDNN's C backend API: BF16 tensors, float32 inside, one item of a batch at a time.
 *
 * o = softmax(q k^T / sqrt(head_dim)) v and, in float32, the log-sum-exp of each row of scores (natural logarithm, scores scaled),
 * which is what the backward reads. q, o [queries, heads, head_dim] and k, v [keys, heads, head_dim] are dense, lse [heads, queries].
 *
 * One plan a shape and GPU: the first engine configuration of heuristics mode A that has no note of being nondeterministic and that
 * finalizes. The choice sees the shape, the GPU and the library's version, nothing else. Plans and handles live as long as the
 * process. A shape that cuDNN does not take is remembered as well, with the status that said so.
 *
 * Without cuDNN in the build (H3_CUDNN undefined), or with one older than 9.8, no shape is taken.
 */
#ifndef H3_PROVIDER_CUDA_SDPA_H
#define H3_PROVIDER_CUDA_SDPA_H

#include <stddef.h>
#include <stdint.h>

#ifdef H3_CUDNN
#include <cudnn.h>
#if CUDNN_VERSION < 90800 /* descriptors of a GPU's properties came then */
#undef H3_CUDNN
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum { H3_SDPA_ALIGNMENT = 16 }; /* bytes, of every tensor */

typedef struct h3_sdpa_shape {
    int64_t queries, keys, heads, head_dim;
} h3_sdpa_shape;

typedef struct h3_sdpa {
    void *plan;       /* cudnnBackendDescriptor_t; NULL: cuDNN does not take this shape, and `status` says why */
    int status;       /* cudnnStatus_t; -1 without cuDNN in the build */
    size_t workspace; /* bytes */
    char name[80];    /* library version, engine and its knobs */
} h3_sdpa;

/* One item's tensors on the GPU. */
typedef struct h3_sdpa_tensors {
    void *q, *k, *v; /* read */
    void *o;
    float *lse;
} h3_sdpa_tensors;

/* The version of cuDNN that runs, as it writes it itself (91400 is 9.14.0); 0 without cuDNN in the build. */
size_t h3_sdpa_version(void);

/* The plan for one shape on GPU `device`, which is the current one. The library keeps it; never NULL. May compile for a good part of a second
 * when it sees a shape for the first time. */
const h3_sdpa *h3_sdpa_find(int device, const h3_sdpa_shape *shape);

/* Starts one item on a stream (cudaStream_t); `workspace` has the plan's bytes. 0, else 1 with one line in `message`. */
int h3_sdpa_run(int device, const h3_sdpa_shape *shape, const h3_sdpa_tensors *tensors, void *stream, void *workspace, char *message, size_t size);

#ifdef __cplusplus
}
#endif
#endif
