/* What later stages will need, looked at in the first seconds of the first stage and again before generation. */
#ifndef H3_QUALIFY_PREFLIGHT_H
#define H3_QUALIFY_PREFLIGHT_H

#include "qualify/plan.h"

/* Disk and memory against an estimate from the plan's shapes, write permission in the run folder, the generation contract and conditioning
 * file. H3_ENVIRONMENT (or H3_USAGE for the plan's files) in one line saying needed and found. */
h3_status h3_preflight(const h3_plan *plan, const h3_config *config, const char *run_folder);

/* Bytes that the reference artifacts of a plan take. */
h3_status h3_reference_bytes(const h3_plan *plan, const h3_config *config, size_t *bytes);

#endif
