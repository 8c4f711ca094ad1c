/* Stage 1: the reference passes. FP32 golden and BF16 provider over all layouts, artifacts for every block, and a bitwise repeat. */
#ifndef H3_QUALIFY_REFERENCE_H
#define H3_QUALIFY_REFERENCE_H

#include "base/log.h"
#include "dist/ranks.h"
#include "qualify/manifest.h"

typedef struct h3_reference {
    h3_ranks *ranks;
    const h3_plan *plan;
    const h3_weights *weights;
    const h3_device *device;
    const h3_library *provider;
    const char *run_folder;
    h3_progress *progress; /* counts block passes; h3_reference_steps in all */
    h3_manifest *made;     /* this rank's files and tensors are added here */
} h3_reference;

/* Every rank: runs the passes on its range of blocks and publishes its artifacts below run_folder. H3_FAILED names a tensor that is not
 * finite or not repeated bitwise. */
h3_status h3_reference_run(h3_reference *reference);
int64_t h3_reference_steps(const h3_reference *reference);

/* Collective: brings the entries of all ranks together on rank 0 (`made` of the others is left as it is). */
h3_status h3_reference_gather(h3_ranks *ranks, h3_manifest *made);

#endif
