/* What devices do with tensors besides moving them: the host's way, and the kernels of a GPU. */
#ifndef H3_GRAPH_DEVICE_WORK_H
#define H3_GRAPH_DEVICE_WORK_H

#include "graph/device.h"

#define H3_SAMPLE_STEP UINT64_C(2654435761)

/* h3_device_row_sums on the host; rows are shared out over the threads, which changes no bit. */
h3_status h3_cpu_row_sums(h3_row_sum *out, const h3_tensor *x, const h3_tensor *g, int64_t rows, int64_t group);

/* A digest job of host memory, done on return. */
h3_status h3_digest_now(h3_digest_job **job, const void *data, size_t bytes);
/* A job of `bytes` whose pieces somebody else hashes: piece i to h3_digest_job_slot(job, i), then h3_digest_job_done(job, failed) once for each piece. */
h3_status h3_digest_job_new(h3_digest_job **job, size_t bytes);
unsigned char *h3_digest_job_slot(h3_digest_job *job, size_t piece);
void h3_digest_job_done(h3_digest_job *job, int failed);

#endif
