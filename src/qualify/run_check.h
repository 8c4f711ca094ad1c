/* A run looked at whole by somebody who did not make it: every hash, and that what the files say agrees with each other
 * (qualification.md section 2). */
#ifndef H3_QUALIFY_RUN_CHECK_H
#define H3_QUALIFY_RUN_CHECK_H

#include "qualify/plan.h"
#include "store/run_view.h"

typedef struct h3_run_check {
    h3_run_view view;
    h3_plan plan;
    int64_t good, bad;              /* files: plan.json, the stage.json and the outputs */
    int64_t absent;                 /* of `bad`: artifacts, frames and sounds that are not there */
    int64_t tensors, bounds, checks; /* tensors that are as the manifest lists them; bounds and gate checks that agree with the verdict */
    int64_t media;                   /* seeds whose frames and sound are those of their report, decoded and hashed */
    int64_t sampled;                 /* of `tensors`: those with samples only */
    /* Told of every file that is not as listed, with what is wrong and, where it can be seen, the dataset. May be NULL. */
    void (*tell)(void *user, const char *line);
    void *user;
} h3_run_check;

/* Fills all but `tell` and `user`, which are the caller's. H3_OK: everything holds, whatever the verdicts are. H3_INTEGRITY: the
 * message names the file. Free in every case. */
h3_status h3_run_check_all(h3_run_check *check, const char *folder);
void h3_run_check_free(h3_run_check *check);

#endif
