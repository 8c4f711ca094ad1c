/* What the parts of the run directory share. */
#ifndef H3_STORE_RUN_INTERNAL_H
#define H3_STORE_RUN_INTERNAL_H

#include <sys/stat.h>

#include "store/run.h"

enum { H3_PLAN_LIMIT = 16 << 20, H3_STAGE_LIMIT = 16 << 20 }; /* bytes of plan.json, of a stage.json */
#define H3_STAGE_SCHEMA "h3-stage-v1"

/* A stage.json in memory. */
typedef struct h3_stage {
    int32_t index;
    char verdict[H3_RUN_VERDICT_SIZE];
    char plan_sha256[H3_SHA256_HEX];
    int32_t needed_count;
    h3_run_needed needed[H3_RUN_STAGES];
    h3_run_files inputs, outputs; /* sorted by path, no path twice */
} h3_stage;

/* Place in the order of stages; -1 for an unknown name. */
int32_t h3_stage_index(const char *name);
const char *h3_stage_name(int32_t index);
/* The command that runs it, for messages. */
const char *h3_stage_program(int32_t index);
int h3_verdict_known(const char *verdict);
int h3_verdict_passes(const char *verdict);

/* Whether there is a file at a relative path: not following symlinks anywhere below `folder`. H3_INTEGRITY when the path is
 * malformed or leads through or to anything but folders and a regular file. */
h3_status h3_run_lookup(char out[H3_PATH_MAX], int *present, struct stat *info, const char *folder, const char *path);
/* Whether a stage may list this path as an output. */
h3_status h3_run_check_output(const char *path, int32_t stage, const char *where);
/* The listed file is there and has the listed size and hash; if not, `program` is what to rerun. */
h3_status h3_run_verify_file(const char *folder, const h3_run_file *file, const char *program);
/* Who writes the files of a list, in words. */
const char *h3_run_writer(const h3_run_files *files);

/* SHA-256 of a stage.json's text without its last field, "sha256", which holds this. */
h3_status h3_stage_seal(char out[H3_SHA256_HEX], const cJSON *json);

/* H3_INTEGRITY with the next step when it is missing, damaged or of another plan (`plan_sha256`; NULL: any). Always free it. */
h3_status h3_stage_load(h3_stage *out, const char *folder, int32_t index, const char *plan_sha256);
void h3_stage_free(h3_stage *stage);
/* site.json of the running attempt; with a verdict (not NULL) it has finished. */
h3_status h3_run_write_site(const h3_run *run, const char *verdict);
/* The time now, UTC. */
void h3_run_time(char out[H3_RUN_TIME_SIZE]);

/* The number that the next attempt to be archived gets: 1 after none. `finished`: whether there is an attempt to archive. */
h3_status h3_run_next_archive(int32_t *number, int *finished, const char *folder, const char *stage);

/* The stages that it needs, directly or not, still are as it found them. */
h3_status h3_stage_fresh(const h3_stage *stage, const char *folder, const char *plan_sha256);

#endif
