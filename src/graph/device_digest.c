/* Digest jobs: pieces are hashed by whoever can, the digest over their hashes is made when the job is waited for. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "graph/device_work.h"

struct h3_digest_job {
    pthread_mutex_t lock;
    pthread_cond_t finished;
    size_t pieces, left; /* to be hashed, still to come */
    int failed;
    int ready; /* `text` is the digest already */
    char text[H3_SHA256_HEX];
    unsigned char *hashes;
};

h3_status h3_digest_job_new(h3_digest_job **out, size_t bytes)
{
    size_t pieces = bytes / H3_DIGEST_PIECE + (bytes % H3_DIGEST_PIECE != 0);
    h3_digest_job *job = calloc(1, sizeof *job);
    if (job != NULL) job->hashes = malloc(pieces ? pieces * H3_SHA256_BYTES : 1);
    if (job == NULL || job->hashes == NULL) {
        free(job);
        return h3_error(H3_ENVIRONMENT, "out of memory to hash %zu bytes", bytes);
    }
    pthread_mutex_init(&job->lock, NULL);
    pthread_cond_init(&job->finished, NULL);
    job->pieces = job->left = pieces;
    *out = job;
    return H3_OK;
}

unsigned char *h3_digest_job_slot(h3_digest_job *job, size_t piece) { return job->hashes + piece * H3_SHA256_BYTES; }

void h3_digest_job_done(h3_digest_job *job, int failed)
{
    pthread_mutex_lock(&job->lock);
    job->failed |= failed;
    if (--job->left == 0) pthread_cond_signal(&job->finished);
    pthread_mutex_unlock(&job->lock);
}

h3_status h3_digest_now(h3_digest_job **out, const void *data, size_t bytes)
{
    h3_digest_job *job;
    H3_TRY(h3_digest_job_new(&job, 0));
    h3_status status = h3_digest(job->text, data, bytes);
    job->ready = 1;
    if (status == H3_OK) *out = job;
    else h3_digest_job_wait(job, NULL);
    return status;
}

h3_status h3_digest_job_wait(h3_digest_job *job, char out[H3_SHA256_HEX])
{
    h3_status status = H3_OK;
    if (job == NULL) return H3_OK;
    pthread_mutex_lock(&job->lock);
    while (job->left > 0) pthread_cond_wait(&job->finished, &job->lock);
    pthread_mutex_unlock(&job->lock);
    if (job->failed) status = h3_error(H3_ENVIRONMENT, "a tensor could not be copied and hashed; look at the GPU with nvidia-smi and run again");
    else if (out != NULL && job->ready) memcpy(out, job->text, H3_SHA256_HEX);
    else if (out != NULL) status = h3_sha256(out, job->hashes, job->pieces * H3_SHA256_BYTES);
    pthread_cond_destroy(&job->finished);
    pthread_mutex_destroy(&job->lock);
    free(job->hashes);
    free(job);
    return status;
}
