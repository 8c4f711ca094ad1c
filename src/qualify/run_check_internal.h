/* Parts of looking at a run: each takes one stage whose files have their hashes, and sees whether their contents agree. */
#ifndef H3_QUALIFY_RUN_CHECK_INTERNAL_H
#define H3_QUALIFY_RUN_CHECK_INTERNAL_H

#include "qualify/manifest.h"
#include "qualify/run_check.h"
#include "qualify/thresholds.h"
#include "store/artifact.h"

enum { H3_STAGE_REFERENCE, H3_STAGE_FREEZE, H3_STAGE_PROVIDER, H3_STAGE_GATE, H3_STAGE_CANDIDATE, H3_STAGE_COMPARE };

/* What later stages are compared with. */
typedef struct h3_run_facts {
    h3_manifest manifest;
    h3_thresholds thresholds;
    char manifest_sha256[H3_SHA256_HEX];
    cJSON *gate;
} h3_run_facts;

h3_status h3_check_reference(h3_run_check *check, h3_run_facts *facts);
h3_status h3_check_thresholds(h3_run_check *check, h3_run_facts *facts);
h3_status h3_check_gate(h3_run_check *check, h3_run_facts *facts);
h3_status h3_check_generation(h3_run_check *check, h3_run_facts *facts, int stage);
h3_status h3_check_compare(h3_run_check *check);

/* Frames and sound of one seed of a side's report; nothing for a plan without decoders. */
h3_status h3_check_seed_media(h3_run_check *check, int stage, const cJSON *report, const cJSON *seed, const char *where);
/* What compare.json says of one seed's pictures and sound; *holds: they are within their limits. */
h3_status h3_check_compare_media(const h3_run_check *check, const cJSON *seed, const cJSON *limits, int *holds);
/* Whether a field is anything but this number. */
int h3_number_differs(const cJSON *object, const char *key, double value);

/* Opens an artifact that a stage lists. */
h3_status h3_check_open_artifact(h3_artifact *out, const h3_run_check *check, int stage, const char *path);

#endif
