/* Stage 2: frozen bounds. thresholds.json holds, for every layout and tensor, the provider's error and the bound made from it. */
#ifndef H3_QUALIFY_THRESHOLDS_H
#define H3_QUALIFY_THRESHOLDS_H

#include "base/log.h"
#include "dist/ranks.h"
#include "qualify/block_tensors.h"
#include "qualify/manifest.h"

typedef struct h3_threshold {
    char name[240];        /* "<layout>/<tensor>" */
    double provider_error; /* of the BF16 provider against the FP32 golden */
    double bound;          /* largest error that a candidate may have; absolute when the golden's norm is zero */
} h3_threshold;

typedef struct h3_thresholds {
    cJSON *fingerprint; /* owned */
    char plan_identity[H3_SHA256_HEX], manifest_sha256[H3_SHA256_HEX];
    size_t count, capacity;
    h3_threshold *items; /* sorted by name once read or printed */
} h3_thresholds;

/* Bounds of the blocks that rank `rank` of `ranks` answers for: its range, the first also the input side, the last the output side. `progress` (may be
 * NULL) counts blocks of its range in each layout. H3_INTEGRITY names what is damaged, missing or not reproduced. */
h3_status h3_thresholds_compute(h3_thresholds *out, const h3_plan *plan, h3_tensor_source *source, int rank, int ranks, h3_progress *progress);
/* Collective: brings all ranks' bounds together on rank 0. */
h3_status h3_thresholds_gather(h3_ranks *ranks, h3_thresholds *thresholds);
/* Deterministic text (caller frees). H3_FAILED when a tensor of the manifest has no bound. */
h3_status h3_thresholds_print(char **out, h3_thresholds *thresholds, const h3_manifest *manifest);
/* Strict reading; H3_INTEGRITY also when a bound is not what the recorded formula makes of its provider error. */
h3_status h3_thresholds_parse(h3_thresholds *out, const char *text, size_t size, const char *where);
void h3_thresholds_free(h3_thresholds *thresholds);
const h3_threshold *h3_thresholds_find(const h3_thresholds *thresholds, const char *layout, const char *tensor); /* NULL when absent */

#endif
