/* A run seen as a whole, without changing it: which stages have finished, whether they still hold, and their outputs, read
 * verified. */
#ifndef H3_STORE_RUN_VIEW_H
#define H3_STORE_RUN_VIEW_H

#include "store/run.h"

typedef struct h3_run_stage_view {
    int present;                       /* has a stage.json */
    int fresh;                         /* nothing that it read has changed since */
    char verdict[H3_RUN_VERDICT_SIZE]; /* "" when not present */
    char sha256[H3_SHA256_HEX];        /* of stage.json */
    char stale[512];                   /* why it is not fresh */
    h3_run_files outputs;
} h3_run_stage_view;

typedef struct h3_run_view {
    char folder[H3_PATH_MAX];
    char plan_sha256[H3_SHA256_HEX];
    h3_run_stage_view stages[H3_RUN_STAGES]; /* in the order of stages */
} h3_run_view;

/* H3_USAGE when there is no such folder, H3_INTEGRITY for a missing plan.json and for a damaged stage.json. A stage that has not
 * finished is no error. */
h3_status h3_run_view_open(h3_run_view *out, const char *folder);
void h3_run_view_close(h3_run_view *view);

/* An output that stage number `stage` lists: the bytes returned (caller frees) are those that were hashed. H3_INTEGRITY when it
 * is not listed or not as listed. */
h3_status h3_run_view_text(char **out, size_t *size, const h3_run_view *view, int stage, const char *path);
/* The same, parsed (caller deletes). */
h3_status h3_run_view_json(cJSON **out, const h3_run_view *view, int stage, const char *path);

/* Names and programs, in the order of stages; the number of a name, -1 when there is none. */
const char *h3_run_stage_name(int stage);
const char *h3_run_stage_program(int stage);
int h3_run_stage_number(const char *name);
/* "passed" or "VALID". */
int h3_run_verdict_passes(const char *verdict);

#endif
