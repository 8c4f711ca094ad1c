/* What every stage program does around its own work: arguments, ranks, plan, weights, provider, run directory. */
#ifndef H3_WORKERS_STAGE_H
#define H3_WORKERS_STAGE_H

#include "args.h"
#include "base/log.h"
#include "dist/meter.h"
#include "dist/ranks.h"
#include "qualify/plan.h"
#include "store/run.h"

typedef struct h3_stage {
    h3_args args;
    h3_ranks ranks;
    h3_plan plan;
    h3_weights *weights;
    const h3_device *device; /* of this rank */
    h3_library provider;
    h3_run run; /* rank 0 only */
    double start;
    h3_meter meter;
    char *devices; /* rank 0: how busy they were, for people */
    h3_watch watch;      /* for the hashing of a checkpoint: progress, and signs of life of this rank */
    h3_progress hashing;
    /* Set before h3_stage_main: */
    int resumable;                             /* heeds signals itself (h3_ranks_stop_requested); others end at once, exit code 75 */
    int block0_only;                           /* opens no more of a checkpoint than block 0 (h3_plan_weights_block) */
    int hands_on;                              /* hidden states pass between its ranks */
    h3_status (*preflight)(struct h3_stage *); /* rank 0, before the run directory is touched; NULL: nothing */
} h3_stage;

/* Reads the plan; on rank 0 asks first whether the run and the plan belong together and whether `name` may begin there. */
h3_status h3_stage_plan(h3_stage *stage, const char *name);

/* Collective. Reads the plan, opens weights and provider on every rank, and on rank 0 the run directory for the stage `name`. Then
 * connects the GPUs of the ranks, if hidden states are to pass between them. */
h3_status h3_stage_open(h3_stage *stage, const char *name);

/* The device of --device (default: the CPU) for this rank: the GPUs of a machine are dealt out to its ranks. */
h3_status h3_stage_device(const h3_args *args, const h3_device **out);
const char *h3_stage_device_name(const h3_args *args);

/* A failure while other ranks may be waiting for this one: ends the job when there are others, else just relays. */
h3_status h3_stage_relay(h3_stage *stage, h3_status status);

/* How busy the ranks' devices are from h3_stage_measure, called right after a collective call, to h3_stage_measured, which is collective (dist/meter.h): kept
 * on rank 0 for site.json, and said by h3_stage_say_devices, where there was anything to do. */
h3_status h3_stage_measure(h3_stage *stage);
h3_status h3_stage_measured(h3_stage *stage);
void h3_stage_say_devices(const h3_stage *stage);

/* main() of a stage: starts the ranks, runs, prints the one-line failure once, ends the ranks, gives the exit code. `args` are
 * parsed. A stage that cannot resume is ended by SIGUSR1 and SIGTERM on the spot: nobody accepts what it left, and it can be run
 * again. */
int h3_stage_main(h3_stage *stage, int argc, char **argv, h3_status (*run)(h3_stage *stage));

#endif
