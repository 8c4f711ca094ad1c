#include "base/hash_many.h"

#include <openssl/evp.h>
#include <stdio.h>

enum { HASH_BYTES = 32, PIECE = 4 << 20 }; /* a sign of life every few milliseconds, on a slow disk every few tens */

typedef struct tally {
    const h3_watch *watch;
    int64_t done, total;
} tally;

static void note(tally *sum, size_t bytes)
{
    if (sum->watch == NULL) return;
#pragma omp critical(h3_hash_many_note)
    {
        sum->done += (int64_t)bytes;
        sum->watch->tick(sum->watch->user, sum->done, sum->total);
    }
}

static int hash_pieces(EVP_MD_CTX *context, unsigned char hash[HASH_BYTES], const h3_hash_job *job, tally *sum)
{
    if (!EVP_DigestInit_ex(context, EVP_sha256(), NULL)) return 0;
    for (size_t done = 0; done < job->size; done += PIECE) {
        size_t size = job->size - done < PIECE ? job->size - done : PIECE;
        if (!EVP_DigestUpdate(context, (const char *)job->data + done, size)) return 0;
        note(sum, size);
    }
    return EVP_DigestFinal_ex(context, hash, NULL);
}

static int hash_one(h3_hash_job *job, tally *sum)
{
    unsigned char hash[HASH_BYTES];
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    int good = context != NULL && hash_pieces(context, hash, job, sum);
    EVP_MD_CTX_free(context);
    for (int i = 0; good && i < HASH_BYTES; i++) snprintf(job->sha256 + 2 * i, 3, "%02x", hash[i]);
    return good;
}

h3_status h3_sha256_many(h3_hash_job *jobs, size_t count, const h3_watch *watch)
{
    tally sum = {.watch = watch};
    int failed = 0;
    for (size_t i = 0; i < count; i++) sum.total += (int64_t)jobs[i].size;
#pragma omp parallel for schedule(dynamic) reduction(| : failed) if (count > 1)
    for (size_t i = 0; i < count; i++) failed |= !hash_one(&jobs[i], &sum);
    return failed ? h3_error(H3_ENVIRONMENT, "SHA-256 is not available; check the installation of OpenSSL, and memory") : H3_OK;
}
