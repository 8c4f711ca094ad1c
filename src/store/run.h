/*
 * The run directory: stages, what each one read and wrote, and whether that still holds.
 *
 *   <run>/plan.json                          the plan as first used; another plan in the same run is refused
 *   <run>/stages/<stage>/stage.json          written last, so a stage without it did not happen:
 *                                             {"schema":"h3-stage-v1","stage","verdict","plan_sha256",
 *                                             "needs":[{"stage","verdict"}],"inputs":[{"path","size","sha256"}],"outputs":[...],
 *                                             "build":{...},"sha256"}. No time, attempt or host: an identical rerun gives
 *                                             identical bytes. "sha256" is of its own text without that field: a byte that
 *                                             changed in it is noticed by whoever reads it
 *   <run>/stages/<stage>/site.json           attempt, host, user, job, hand-off, times, how busy devices were: outside all hashes
 *   <run>/stages/<stage>/.lock               held while the stage runs
 *   <run>/data/<...>, <run>/<file>.json      outputs, at paths that the stage chooses (h3_run_output says which it may not)
 *   <run>/attempts/<stage>/<n>/              stage.json, site.json of an earlier attempt; its outputs below their relative paths
 *
 * Stages, in order: reference_pass, threshold_freeze, generate_provider, candidate_gate, generate_candidate, compare, diagnose. A
 * stage can only need earlier ones.
 *
 * Stale: the inputs of a stage are outputs of the stages that it needs. It is stale when one of those inputs has not the size and
 * SHA-256 that the needed stage's stage.json lists now, when a needed stage has another verdict than it had, or when a needed
 * stage is stale itself. A stage.json is never an input, so a rerun that gives the same outputs makes nothing stale. The bytes on
 * disk are verified by whoever reads them.
 *
 * Everything found in a run is untrusted: a path that is absolute, has "..", or leads through a symlink or to a device, and a
 * damaged stage.json or plan.json, is H3_INTEGRITY naming the file. The run directory itself may be reached through a symlink.
 */
#ifndef H3_STORE_RUN_H
#define H3_STORE_RUN_H

#include <cJSON.h>

#include "base/error.h"
#include "base/text.h"

enum { H3_RUN_STAGES = 7, H3_RUN_PATH_SIZE = 512, H3_RUN_KEPT_MAX = 4, H3_RUN_VERDICT_SIZE = 16, H3_RUN_TIME_SIZE = 32 };

typedef struct h3_run_file {
    char path[H3_RUN_PATH_SIZE]; /* relative to the run directory */
    int64_t size;
    char sha256[H3_SHA256_HEX];
} h3_run_file;

typedef struct h3_run_files {
    size_t count, capacity;
    h3_run_file *items;
    const char *program; /* the command that writes these files, for messages; NULL when that is unknown */
} h3_run_files;
/* H3_INTEGRITY when the path (h3_check_relative), size or hash is malformed. */
h3_status h3_run_files_add(h3_run_files *files, const char *path, int64_t size, const char *sha256);
void h3_run_files_sort(h3_run_files *files); /* by path */
void h3_run_files_free(h3_run_files *files);
const h3_run_file *h3_run_files_find(const h3_run_files *files, const char *path); /* NULL when absent */

/* A stage that was needed, and the verdict that it had then. */
typedef struct h3_run_needed {
    int32_t stage; /* place in the order of stages, from 0 */
    char verdict[H3_RUN_VERDICT_SIZE];
} h3_run_needed;

typedef struct h3_run {
    char folder[H3_PATH_MAX];
    char stage[64];
    char plan_sha256[H3_SHA256_HEX];
    int32_t attempt;       /* of this stage, from 1: one more than the finished attempts before it */
    h3_run_files inputs;   /* verified so far */
    h3_run_files outputs;  /* declared so far */
    int32_t kept_count;    /* outputs of the earlier attempt that h3_run_begin leaves in place */
    char kept[H3_RUN_KEPT_MAX][H3_RUN_PATH_SIZE];
    int32_t needed_count;  /* in the order of stages */
    h3_run_needed needed[H3_RUN_STAGES];
    int lock;              /* descriptor of .lock, closed on exec */
    char started[H3_RUN_TIME_SIZE];
    char hand_off[200];    /* for site.json, set before h3_run_begin: how hidden states pass between ranks; "": not at all */
    cJSON *devices;        /* for site.json, set before h3_run_finish, owned: how busy they were; NULL: not measured */
} h3_run;

/* Asked before a stage reads anything else; makes nothing. H3_INTEGRITY when `stage` is not the first one and `folder` holds no run,
 * or when the run there was made with another plan than the file `plan`, whatever else is wrong with that file as long as it can be
 * read. */
h3_status h3_run_expect(const char *folder, const char *stage, const char *plan);

/* Opens (creates) the run for `stage`: checks or stores the plan text, takes an exclusive lock on the stage (a second process of
 * the same stage: H3_ENVIRONMENT naming it). `plan_text` is the plan's bytes; a run made with others is H3_INTEGRITY. Rank 0
 * only. On failure `run` is empty; h3_run_close is fine on it. */
h3_status h3_run_open(h3_run *run, const char *folder, const char *stage, const char *plan_text, size_t plan_size);
void h3_run_close(h3_run *run);

/* Requires that the stage `predecessor` has a stage.json of this plan, with `verdict` (NULL: any passing, i.e. "passed" or
 * "VALID"), and that neither it nor any stage that it needs, directly or not, is stale. Its output list, sorted, is returned so
 * that the caller verifies what it reads (free with h3_run_files_free). H3_INTEGRITY with the next step in words otherwise. The
 * predecessor is recorded with its verdict in "needs". */
h3_status h3_run_need(h3_run *run, const char *predecessor, const char *verdict, h3_run_files *outputs);

/* Verifies one listed file byte for byte and records it as an input. H3_INTEGRITY naming it. */
h3_status h3_run_verify(h3_run *run, const h3_run_files *listed, const char *path);
/* All listed files whose path starts with `prefix` ("" for all); H3_INTEGRITY when there is none. */
h3_status h3_run_verify_all(h3_run *run, const h3_run_files *listed, const char *prefix);
/* Records an input that was verified by reading it (h3_artifact_open with the listed hash). */
h3_status h3_run_record(h3_run *run, const h3_run_files *listed, const char *path);

/* The full path of a file of the run that exists: regular, no symlink on the way. H3_INTEGRITY naming it otherwise. Any rank. */
h3_status h3_run_locate(char out[H3_PATH_MAX], const char *folder, const char *path);
/* The full path for a new file of the run; makes its folders, refusing a symlink on the way (H3_INTEGRITY). Any rank. */
h3_status h3_run_place(char out[H3_PATH_MAX], const char *folder, const char *path);

/* Before h3_run_begin: the output at `path` of an earlier attempt stays in place, for a stage that must reproduce it
 * (threshold_freeze: thresholds are written once a run). Only the listing of it moves. */
h3_status h3_run_keep(h3_run *run, const char *path);
/* Before writing: moves the outputs, stage.json and site.json of an earlier attempt to attempts/<stage>/<n>/, except those kept;
 * removes the temporaries that killed writers left; writes site.json. A stage that was killed before its stage.json has no listed
 * outputs: what it published stays, to be resumed or overwritten. Killed in here, the next h3_run_begin finishes the move. */
h3_status h3_run_begin(h3_run *run);
/* Declares an output (path relative). Not allowed: plan.json, stage.json, site.json, attempts/, stages/ outside the stage's own
 * folder, its stage.json, site.json and .lock, names of temporaries, a path declared already. */
h3_status h3_run_output(h3_run *run, const char *path, int64_t size, const char *sha256);
/* Writes stage.json, after looking that every output is there with its size. `build` (NULL: {}) is moved into it, also on
 * failure; `verdict` "passed", "failed", "VALID", "INVALID" or "PARTIAL". */
h3_status h3_run_finish(h3_run *run, const char *verdict, cJSON *build);

/* Reads a stage.json (strictly) of any stage of a run. */
h3_status h3_run_stage_read(cJSON **out, const char *folder, const char *stage);

/* Every stage.json, every output, every recorded input of a run, and that nothing lies below data/ that no stage lists; says what
 * is missing or changed (H3_INTEGRITY). For h3_verify run. Counts plan.json, the stage.json files and the outputs. Earlier
 * attempts are not looked at. */
h3_status h3_run_audit(const char *folder, int64_t *files_checked);
/* H3_INTEGRITY: no stage lists this file. */
h3_status h3_run_unlisted(const char *path);
/* The same, but it tells `damaged` of every output that is not as listed (h3_error_text says what is wrong with it) and goes on;
 * H3_INTEGRITY at the end when there was one. *good counts what holds. */
h3_status h3_run_audit_each(const char *folder, void (*damaged)(void *user, const h3_run_file *file), void *user, int64_t *good,
                            int64_t *bad);

#endif
