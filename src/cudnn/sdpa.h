/*
 * Scaled dot-product attention through cuDNN's C backend API: BF16 or F16 tensors, float32 inside. Part of the programs and, compiled once more, of the
 * CUDA provider's library, so it knows nothing of either.
 *
 * o = softmax(q k^T / sqrt(head_dim)) v and, when wanted, in float32 the log-sum-exp of each row of scores (natural logarithm, scores scaled),
 * which is what a backward reads. q, o [items, queries, heads, head_dim], k, v [items, keys, heads, head_dim], lse [items, heads, queries] dense.
 *
 * One plan a shape and GPU: the first engine configuration of heuristics mode A that has no note of being nondeterministic and that
 * finalizes. The choice sees the shape, the GPU and the library's version, nothing else. Plans and handles live as long as the
 * process. A shape that cuDNN does not take is remembered as well, with the status that said so.
 *
 * Without cuDNN in the build (H3_CUDNN undefined), or with one older than 9.8, no shape is taken.
 */
#ifndef H3_CUDNN_SDPA_H
#define H3_CUDNN_SDPA_H

#include <stddef.h>
#include <stdint.h>

#include "h3/operator.h"

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

/* Elements from an item of a tensor, and from a row, to the next; in bytes they are multiples of H3_SDPA_ALIGNMENT. A row's heads have no gap. */
typedef struct h3_sdpa_steps {
    int64_t item, row;
} h3_sdpa_steps;

/* No padding: shapes are compared by their bytes. */
typedef struct h3_sdpa_shape {
    int64_t queries, keys, heads, head_dim, items;
    int64_t dtype;    /* H3_BF16 or H3_F16 */
    int64_t with_lse; /* 0, 1 */
    h3_sdpa_steps q, k, v, o;
} h3_sdpa_shape;

typedef struct h3_sdpa {
    void *plan;       /* cudnnBackendDescriptor_t; NULL: cuDNN does not take this shape, and `status` says why */
    int status;       /* cudnnStatus_t; -1 without cuDNN in the build */
    size_t workspace; /* bytes */
    char name[80];    /* library version, engine and its knobs */
} h3_sdpa;

/* On the GPU. */
typedef struct h3_sdpa_tensors {
    void *q, *k, *v; /* read */
    void *o;
    float *lse; /* only with_lse */
} h3_sdpa_tensors;

/* The provider's shape: one item, BF16, no gaps, with log-sum-exp. */
static inline h3_sdpa_shape h3_sdpa_dense(int64_t queries, int64_t keys, int64_t heads, int64_t head_dim)
{
    const int64_t row = heads * head_dim;
    const h3_sdpa_steps query = {queries * row, row}, key = {keys * row, row};
    const h3_sdpa_shape shape = {queries, keys, heads, head_dim, 1, H3_BF16, 1, query, key, key, query};
    return shape;
}

/* The video decoder's: F16, q, k and v in one tensor [items, rows, 3, heads, head_dim], o without gaps, no log-sum-exp. */
static inline h3_sdpa_shape h3_sdpa_joined(int64_t items, int64_t rows, int64_t heads, int64_t head_dim)
{
    const int64_t row = heads * head_dim;
    const h3_sdpa_steps joined = {3 * rows * row, 3 * row}, dense = {rows * row, row};
    const h3_sdpa_shape shape = {rows, rows, heads, head_dim, items, H3_F16, 0, joined, joined, joined, dense};
    return shape;
}

/* The version of cuDNN that runs, as it writes it itself (91400 is 9.14.0); 0 without cuDNN in the build. */
size_t h3_sdpa_version(void);

/* The plan for one shape on GPU `device`, which is the current one. The library keeps it; never NULL. May compile for a good part of a second
 * when it sees a shape for the first time. */
const h3_sdpa *h3_sdpa_find(int device, const h3_sdpa_shape *shape);

/* Whether a missing plan means that cuDNN does not take the shape, or is not there; else something has failed. */
int h3_sdpa_refused(const h3_sdpa *sdpa);

/* Starts all items on a stream (cudaStream_t); `workspace` has the plan's bytes. 0, else 1 with one line in `message`. */
int h3_sdpa_run(int device, const h3_sdpa_shape *shape, const h3_sdpa_tensors *tensors, void *stream, void *workspace, char *message, size_t size);

#ifdef __cplusplus
}
#endif
#endif
