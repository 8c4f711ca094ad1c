#include "graph/device_hash.h"

#ifdef H3_CUDA
#include <cuda_runtime_api.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

enum { SLOTS = 96, MOST_THREADS = 32 };

/* A piece on its way: pinned memory, the event behind its copy, and whose it is. */
typedef struct slot {
    char *memory;
    cudaEvent_t copied;
    h3_digest_job *job;
    size_t piece, bytes;
} slot;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t freed, filled;
    slot slots[SLOTS];
    slot *free[SLOTS], *queue[SLOTS]; /* a stack, and a ring in the order of the copies */
    size_t free_count, head, queued;
    int gpu, opened;
} service = {.lock = PTHREAD_MUTEX_INITIALIZER, .freed = PTHREAD_COND_INITIALIZER, .filled = PTHREAD_COND_INITIALIZER};

static slot *next_filled(void)
{
    pthread_mutex_lock(&service.lock);
    while (service.queued == 0) pthread_cond_wait(&service.filled, &service.lock);
    slot *s = service.queue[service.head];
    service.head = (service.head + 1) % SLOTS;
    service.queued--;
    pthread_mutex_unlock(&service.lock);
    return s;
}

static void give_back(slot *s)
{
    pthread_mutex_lock(&service.lock);
    service.free[service.free_count++] = s;
    pthread_cond_signal(&service.freed);
    pthread_mutex_unlock(&service.lock);
}

static void *hash_pieces(void *unused)
{
    (void)unused;
    cudaSetDevice(service.gpu);
    for (;;) {
        slot *s = next_filled();
        int failed = cudaEventSynchronize(s->copied) != cudaSuccess;
        if (!failed) failed = !EVP_Digest(s->memory, s->bytes, h3_digest_job_slot(s->job, s->piece), NULL, EVP_sha256(), NULL);
        h3_digest_job *job = s->job;
        give_back(s);
        h3_digest_job_done(job, failed);
    }
    return NULL;
}

static int cores(void)
{
    cpu_set_t set;
    int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return count < 1 ? 1 : count > MOST_THREADS ? MOST_THREADS : count;
}

static h3_status failed(int gpu, cudaError_t code, const char *what)
{
    return h3_error(H3_ENVIRONMENT, "GPU %d: %s: %s; look at the GPU with nvidia-smi and run again", gpu, what, cudaGetErrorString(code));
}

static h3_status open_service(int gpu)
{
    pthread_t thread;
    if (service.opened) return H3_OK;
    service.gpu = gpu;
    for (int i = 0; i < SLOTS; i++) {
        void *memory;
        cudaError_t code = cudaMallocHost(&memory, H3_DIGEST_PIECE);
        if (code == cudaSuccess) code = cudaEventCreateWithFlags(&service.slots[i].copied, cudaEventDisableTiming | cudaEventBlockingSync);
        if (code != cudaSuccess) return failed(gpu, code, "pinned memory for digests");
        service.slots[i].memory = memory;
        service.free[service.free_count++] = &service.slots[i];
    }
    for (int i = 0; i < cores(); i++) {
        if (pthread_create(&thread, NULL, hash_pieces, NULL) == 0) pthread_detach(thread);
        else if (i == 0) return h3_error(H3_ENVIRONMENT, "no thread can be started to hash tensors");
    }
    service.opened = 1;
    return H3_OK;
}

static slot *take_free(void)
{
    pthread_mutex_lock(&service.lock);
    while (service.free_count == 0) pthread_cond_wait(&service.freed, &service.lock);
    slot *s = service.free[--service.free_count];
    pthread_mutex_unlock(&service.lock);
    return s;
}

static void put_filled(slot *s)
{
    pthread_mutex_lock(&service.lock);
    service.queue[(service.head + service.queued++) % SLOTS] = s;
    pthread_cond_signal(&service.filled);
    pthread_mutex_unlock(&service.lock);
}

static h3_status start_piece(h3_digest_job *job, cudaStream_t stream, const char *data, size_t piece, size_t bytes)
{
    slot *s = take_free();
    s->job = job;
    s->piece = piece;
    s->bytes = bytes;
    cudaError_t code = cudaMemcpyAsync(s->memory, data, bytes, cudaMemcpyDeviceToHost, stream);
    if (code == cudaSuccess) code = cudaEventRecord(s->copied, stream);
    if (code == cudaSuccess) {
        put_filled(s);
        return H3_OK;
    }
    give_back(s);
    return failed(service.gpu, code, "copy for a digest");
}

h3_status h3_cuda_digest_start(h3_digest_job **out, void *stream, int gpu, const void *data, size_t bytes)
{
    h3_digest_job *job;
    h3_status status = H3_OK;
    H3_TRY(open_service(gpu));
    H3_TRY(h3_digest_job_new(&job, bytes));
    size_t pieces = bytes / H3_DIGEST_PIECE + (bytes % H3_DIGEST_PIECE != 0);
    for (size_t i = 0; i < pieces; i++) {
        size_t start = i * H3_DIGEST_PIECE, length = bytes - start < H3_DIGEST_PIECE ? bytes - start : H3_DIGEST_PIECE;
        if (status == H3_OK) status = start_piece(job, stream, (const char *)data + start, i, length);
        if (status != H3_OK) h3_digest_job_done(job, 1); /* the pieces that did not start */
    }
    if (status == H3_OK) *out = job;
    else h3_digest_job_wait(job, NULL);
    return status;
}

#else
typedef int h3_device_hash_is_empty;
#endif
