#include "stage.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

h3_status h3_stage_plan(h3_stage *stage, const char *name)
{
    const h3_args *args = &stage->args;
    if (args->plan == NULL || args->run == NULL) return h3_error(H3_USAGE, "--plan FILE and --run DIR are needed; see %s --help", args->program);
    if (h3_device_count(h3_stage_device_name(args)) < 1) return h3_stage_device(args, &stage->device); /* says why there is none */
    if (stage->ranks.rank == 0) H3_TRY(h3_run_expect(args->run, name, args->plan));
    H3_TRY(h3_plan_read(&stage->plan, args->plan));
    h3_plan_for_device(&stage->plan, h3_stage_device_name(args));
    if (args->decoders != NULL) H3_TRY(h3_plan_use_decoders(&stage->plan, args->decoders));
    return args->checkpoint != NULL ? h3_plan_use_checkpoint(&stage->plan, args->checkpoint) : H3_OK;
}

const char *h3_stage_device_name(const h3_args *args) { return args->device != NULL ? args->device : h3_device_name(H3_DEVICE_CPU); }

/* Known before and without MPI: the gate's second process takes its parent's place. */
static int local_rank(void)
{
    static const char *const variables[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "PMIX_LOCAL_RANK", "SLURM_LOCALID"};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        const char *text = getenv(variables[i]);
        if (text != NULL && text[0] >= '0' && text[0] <= '9') return atoi(text);
    }
    return 0;
}

h3_status h3_stage_device(const h3_args *args, const h3_device **out)
{
    const char *name = h3_stage_device_name(args);
    int count = h3_device_count(name);
    return h3_device_open(name, count > 0 ? local_rank() % count : 0, out);
}

static void on_hashed(void *user, int64_t done, int64_t total)
{
    enum { MEGABYTE = 1000000 };
    h3_stage *stage = user;
    if (stage->hashing.title == NULL) h3_progress_start(&stage->hashing, "hash checkpoint", "MB", total / MEGABYTE);
    h3_ranks_beat(&stage->ranks, "hashing the checkpoint", -1);
    h3_progress_add(&stage->hashing, done / MEGABYTE - stage->hashing.done);
    if (done == total) h3_progress_end(&stage->hashing);
}

/* One rank hashes the shards for all, on all its cores; the others check what costs no time. */
static h3_status open_weights(h3_stage *stage)
{
    stage->watch = (h3_watch){on_hashed, stage};
    if (stage->block0_only) return h3_plan_weights_block(&stage->plan, 0, &stage->weights);
    return h3_plan_weights(&stage->plan, stage->ranks.rank == 0, &stage->watch, &stage->weights);
}

static h3_status open_local(h3_stage *stage, const char *name)
{
    const h3_args *args = &stage->args;
    int64_t first, count;
    H3_TRY(h3_stage_plan(stage, name));
    H3_TRY(h3_stage_device(args, &stage->device));
    H3_TRY(open_weights(stage));
    H3_TRY(h3_block_range(stage->ranks.rank, stage->ranks.count, h3_weights_config(stage->weights)->num_layers, &first, &count));
    H3_TRY(h3_library_open(&stage->provider, stage->plan.provider));
    H3_TRY(h3_library_require(&stage->provider, stage->device->kind));
    if (stage->ranks.rank == 0 && stage->preflight != NULL) H3_TRY(stage->preflight(stage));
    return stage->ranks.rank == 0 ? h3_run_open(&stage->run, args->run, name, stage->plan.text, stage->plan.text_size) : H3_OK;
}

/* How hidden states pass is a fact of the site: said, kept in site.json, and nowhere near what is hashed. */
static h3_status connect_ranks(h3_stage *stage)
{
    h3_ranks *ranks = &stage->ranks;
    H3_TRY(h3_stage_relay(stage, h3_ranks_connect(ranks, stage->device)));
    if (ranks->rank != 0 || ranks->hand_off[0] == 0) return H3_OK;
    snprintf(stage->run.hand_off, sizeof stage->run.hand_off, "%s", ranks->hand_off);
    h3_say("hand-off %s", ranks->hand_off);
    return H3_OK;
}

h3_status h3_stage_open(h3_stage *stage, const char *name)
{
    H3_TRY(h3_ranks_agree(&stage->ranks, open_local(stage, name)));
    return stage->hands_on ? connect_ranks(stage) : H3_OK;
}

h3_status h3_stage_relay(h3_stage *stage, h3_status status)
{
    if (status != H3_OK && stage->ranks.count > 1) h3_ranks_abort(&stage->ranks, stage->args.program, status);
    return status;
}

h3_status h3_stage_measure(h3_stage *stage) { return h3_stage_relay(stage, h3_meter_start(&stage->meter, &stage->ranks, stage->device)); }

h3_status h3_stage_measured(h3_stage *stage)
{
    int count = stage->ranks.count;
    h3_rank_work *work;
    h3_status status = h3_meter_stop(&stage->meter, &work);
    if (status == H3_OK && work != NULL && h3_work_window(work, count) > 0) {
        stage->run.devices = h3_work_json(work, count);
        status = h3_work_text(&stage->devices, work, count);
    }
    free(work);
    return h3_stage_relay(stage, status);
}

void h3_stage_say_devices(const h3_stage *stage)
{
    if (stage->devices != NULL) h3_say("devices  %s", stage->devices);
}

static void close_stage(h3_stage *stage)
{
    free(stage->devices);
    h3_run_close(&stage->run);
    h3_weights_free(stage->weights);
    h3_library_close(&stage->provider);
    h3_plan_free(&stage->plan);
}

static char stop_line[120]; /* of rank 0 */
static int alone;

/* With more ranks, SIGTERM comes from mpirun: it ends what is left when a rank has failed, which has said why. */
static void stop_at_once(int number)
{
    if (alone || number != SIGTERM) {
        ssize_t ignored = write(STDERR_FILENO, stop_line, strlen(stop_line));
        (void)ignored;
    }
    _exit(H3_STOPPED);
}

static void heed_signals(const h3_stage *stage)
{
    struct sigaction action = {.sa_handler = stop_at_once};
    if (stage->resumable) return;
    alone = stage->ranks.count == 1;
    if (stage->ranks.rank == 0) snprintf(stop_line, sizeof stop_line, "%.60s: stopped by a signal; run it again\n", stage->args.program);
    sigfillset(&action.sa_mask);
    sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

int h3_stage_main(h3_stage *stage, int argc, char **argv, h3_status (*run)(h3_stage *stage))
{
    stage->start = h3_clock();
    h3_status status = h3_ranks_start(&stage->ranks, &argc, &argv, stage->args.watchdog);
    if (status != H3_OK) return h3_exit(stage->args.program, status);
    heed_signals(stage);
    status = run(stage);
    int code = stage->ranks.rank == 0 ? h3_exit(stage->args.program, status) : (int)status;
    close_stage(stage);
    h3_ranks_finish(&stage->ranks);
    return code;
}
