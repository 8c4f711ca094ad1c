/* SHA-256 of much data: several ranges at once on all cores, with signs of life. */
#ifndef H3_BASE_HASH_MANY_H
#define H3_BASE_HASH_MANY_H

#include "base/text.h"

/* Told now and then how many bytes are done; the last call has done == total. Calls come from any thread, one at a time. */
typedef struct h3_watch {
    void (*tick)(void *user, int64_t done, int64_t total);
    void *user;
} h3_watch;

/* A range in memory and its plain SHA-256, which has to be made by one core from end to end. */
typedef struct h3_hash_job {
    const void *data;
    size_t size;
    char sha256[H3_SHA256_HEX];
} h3_hash_job;

/* Fills in `sha256` of every job: as many at once as there are threads. The result does not depend on how many. `watch` may be NULL.
 * H3_ENVIRONMENT when there is no SHA-256 or no memory. */
h3_status h3_sha256_many(h3_hash_job *jobs, size_t count, const h3_watch *watch);

#endif
