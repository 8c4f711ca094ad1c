/* Plans that were made, one a shape and GPU, and their execution; see sdpa.h. */
#include "sdpa.h"

#ifdef H3_CUDNN

#include <cuda_runtime_api.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sdpa_graph.h"

enum { DEVICES = 64 };

typedef struct entry {
    int device;
    h3_sdpa_shape shape;
    h3_sdpa sdpa;
    h3_sdpa_parts parts;
    struct entry *next;
} entry;

/* One lock for all: a handle serves one thread at a time. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static cudnnHandle_t handles[DEVICES];
static entry *entries;

size_t h3_sdpa_version(void) { return cudnnGetVersion(); }

static cudnnStatus_t find_handle(int device, cudnnHandle_t *out)
{
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    if (device < 0 || device >= DEVICES) return CUDNN_STATUS_NOT_SUPPORTED;
    if (handles[device] == NULL) {
        status = cudnnCreate(&handles[device]);
        if (status != CUDNN_STATUS_SUCCESS) handles[device] = NULL;
    }
    *out = handles[device];
    return status;
}

static const h3_sdpa *find(int device, const h3_sdpa_shape *shape)
{
    static const h3_sdpa no_memory = {.status = CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED};
    cudnnHandle_t handle = NULL;
    for (const entry *e = entries; e != NULL; e = e->next)
        if (e->device == device && memcmp(&e->shape, shape, sizeof *shape) == 0) return &e->sdpa;
    entry *made = calloc(1, sizeof *made);
    if (made == NULL) return &no_memory;
    made->device = device;
    made->shape = *shape;
    /* For one query row cuDNN 9.14 takes an engine whose repeats differ, and says nothing of it. */
    const cudnnStatus_t status = shape->queries > 1 ? find_handle(device, &handle) : CUDNN_STATUS_NOT_SUPPORTED;
    if (status == CUDNN_STATUS_SUCCESS) h3_sdpa_build(&made->sdpa, &made->parts, shape, handle, NULL);
    else made->sdpa.status = (int)status;
    cudaGetLastError(); /* what cuDNN tried in vain is no error of the next launch */
    made->next = entries;
    entries = made;
    return &made->sdpa;
}

const h3_sdpa *h3_sdpa_find(int device, const h3_sdpa_shape *shape)
{
    pthread_mutex_lock(&lock);
    const h3_sdpa *found = find(device, shape);
    pthread_mutex_unlock(&lock);
    return found;
}

int h3_sdpa_refused(const h3_sdpa *sdpa)
{
    enum { BAD_PARAM = 2, NOT_SUPPORTED = 3 }; /* categories; the first is how an older library meets an operation that it does not know */
    return sdpa->plan == NULL && (sdpa->status / 1000 == BAD_PARAM || sdpa->status / 1000 == NOT_SUPPORTED);
}

static cudnnStatus_t execute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack, const h3_sdpa_shape *shape,
                             const h3_sdpa_tensors *tensors, void *stream, void *workspace)
{
    static const int64_t ids[H3_SDPA_TENSORS] = {H3_SDPA_Q, H3_SDPA_K, H3_SDPA_V, H3_SDPA_O, H3_SDPA_SCALE, H3_SDPA_LSE};
    const int64_t count = shape->with_lse ? H3_SDPA_TENSORS : H3_SDPA_TENSORS - 1; /* the last one may be absent */
    float scale = 1.0f / sqrtf((float)shape->head_dim);
    void *pointers[H3_SDPA_TENSORS] = {tensors->q, tensors->k, tensors->v, tensors->o, &scale, tensors->lse};
    cudnnStatus_t status = cudnnSetStream(handle, (cudaStream_t)stream);
    if (status == CUDNN_STATUS_SUCCESS)
        status = cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, ids);
    if (status == CUDNN_STATUS_SUCCESS)
        status = cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, pointers);
    if (status == CUDNN_STATUS_SUCCESS)
        status = cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    if (status == CUDNN_STATUS_SUCCESS) status = cudnnBackendFinalize(pack);
    return status == CUDNN_STATUS_SUCCESS ? cudnnBackendExecute(handle, plan, pack) : status;
}

int h3_sdpa_run(int device, const h3_sdpa_shape *shape, const h3_sdpa_tensors *tensors, void *stream, void *workspace, char *message, size_t size)
{
    cudnnBackendDescriptor_t pack = NULL;
    char detail[96] = "";
    pthread_mutex_lock(&lock);
    const h3_sdpa *sdpa = find(device, shape);
    cudnnStatus_t status = sdpa->plan == NULL ? (cudnnStatus_t)sdpa->status : cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);
    if (status == CUDNN_STATUS_SUCCESS) {
        status = execute(handles[device], (cudnnBackendDescriptor_t)sdpa->plan, pack, shape, tensors, stream, workspace);
        if (status != CUDNN_STATUS_SUCCESS) cudnnGetLastErrorString(detail, sizeof detail);
        cudnnBackendDestroyDescriptor(pack);
    }
    pthread_mutex_unlock(&lock);
    if (status == CUDNN_STATUS_SUCCESS) return 0;
    snprintf(message, size, "cuDNN attention on GPU %d: %s%s%s", device, cudnnGetErrorString(status), detail[0] != 0 ? ", " : "", detail);
    return 1;
}

#else

size_t h3_sdpa_version(void) { return 0; }

const h3_sdpa *h3_sdpa_find(int device, const h3_sdpa_shape *shape)
{
    static const h3_sdpa none = {.status = -1};
    (void)device, (void)shape;
    return &none;
}

int h3_sdpa_refused(const h3_sdpa *sdpa) { return sdpa->plan == NULL; }

int h3_sdpa_run(int device, const h3_sdpa_shape *shape, const h3_sdpa_tensors *tensors, void *stream, void *workspace, char *message, size_t size)
{
    (void)device, (void)shape, (void)tensors, (void)stream, (void)workspace;
    if (size > 0) message[0] = 0;
    return 1;
}

#endif
