/* Stage 4. Needs: the reference pass; the candidate's side also a VALID gate of the same plan and the very libraries it qualified. Writes:
 * data/generate/<side>/seed<N>.h5 (noise, velocities, latents) and generate-<side>.json. Passes when all seeds finish, finite; with --repeat
 * every velocity digest must come out again. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "base/json.h"
#include "base/log.h"
#include "qualify/generation_store.h"
#include "qualify/manifest.h"
#include "store/run.h"

static const char help[] =
    "h3_generate - stage 4: sample the contract's seeds with the provider's or the candidate's operators\n"
    "\n"
    "  mpirun -n N h3_generate --side provider|candidate --plan FILE --run DIR [--repeat] [--resume] [--device cpu|cuda]\n"
    "                          [--watchdog SECONDS]\n"
    "      reads the plan's generation contract and conditioning, writes DIR/data/generate/SIDE/seed<N>.h5 and DIR/generate-SIDE.json\n"
    "      N from 1 to the number of blocks; the bytes written are the same for every N\n"
    "\n"
    "  --side provider   needs the reference pass\n"
    "  --side candidate  needs a VALID candidate gate, and runs only the libraries that it qualified\n"
    "  --repeat          samples every seed twice; all velocity digests must be equal\n"
    "  --resume          goes on after the last saved step of a run that was interrupted (SIGUSR1 or SIGTERM: exit 75), to the same bytes\n"
    "\n"
    "  exit codes: 0 passed, 1 not finite, not repeatable or a fallback, 2 usage or plan, 3 damaged input or no VALID gate, 4 environment,\n"
    "              75 stopped by a signal\n"
    "  example: mpirun -n 2 bin/h3_generate --side provider --repeat --plan plans/demo.json --run evidence/demo\n"
    "  next:    bin/h3_candidate_gate, then --side candidate, then bin/h3_compare\n";

typedef struct stage {
    h3_args args;
    h3_ranks ranks;
    h3_plan plan;
    h3_generation generation;
    h3_generation_inputs inputs;
    h3_weights *weights;
    cJSON *identity; /* of the weights */
    h3_library provider;
    h3_bindings bindings; /* the candidate's */
    h3_run run;
    h3_resume resume;
    h3_model model;
    h3_sampling sampling;
    h3_generation_record record;
} stage;

static int is_candidate(const stage *s) { return strcmp(s->args.side, "candidate") == 0; }
static int is_rank_0(const stage *s) { return s->ranks.rank == 0; }

/* Model and machine must be those of the reference. */
static h3_status check_reference(stage *s)
{
    h3_run_files listed = {0};
    h3_manifest manifest = {0};
    char path[H3_PATH_MAX], *text = NULL;
    size_t size;
    cJSON *fingerprint = NULL;
    h3_status status;
    H3_GOTO(h3_run_need(&s->run, "reference_pass", NULL, &listed), done);
    H3_GOTO(h3_run_verify(&s->run, &listed, "reference-manifest.json"), done);
    H3_GOTO(h3_run_locate(path, s->args.run, "reference-manifest.json"), done);
    H3_GOTO(h3_file_read(&text, &size, path, (size_t)1 << 30, H3_INTEGRITY), done);
    H3_GOTO(h3_manifest_parse(&manifest, text, size, path), done);
    H3_GOTO(h3_fingerprint(&fingerprint, &s->provider), done);
    H3_GOTO(h3_fingerprint_require(manifest.fingerprint, fingerprint, path), done);
    H3_GOTO(h3_weights_identity(s->weights, &s->identity), done);
    if (!cJSON_Compare(manifest.model, s->identity, 1))
        status = h3_error(H3_INTEGRITY, "%s is of another model than the plan's checkpoint is now; run h3_reference_pass again", path);
done:
    cJSON_Delete(fingerprint);
    h3_manifest_free(&manifest);
    free(text);
    h3_run_files_free(&listed);
    return status;
}

/* The gate's verdict counts for the libraries that it saw, and no others. */
static h3_status check_gate(stage *s)
{
    h3_run_files listed = {0};
    char path[H3_PATH_MAX];
    cJSON *gate = NULL;
    h3_status status;
    H3_GOTO(h3_run_need(&s->run, "candidate_gate", "VALID", &listed), done);
    H3_GOTO(h3_run_verify(&s->run, &listed, "gate.json"), done);
    H3_GOTO(h3_run_locate(path, s->args.run, "gate.json"), done);
    H3_GOTO(h3_json_read(&gate, path, H3_INTEGRITY), done);
    H3_GOTO(h3_generation_check_gate(gate, &s->bindings, &s->provider, path), done);
done:
    cJSON_Delete(gate);
    h3_run_files_free(&listed);
    return status;
}

static h3_status open_run(stage *s)
{
    H3_TRY(h3_run_open(&s->run, s->args.run, is_candidate(s) ? "generate_candidate" : "generate_provider", s->plan.text, s->plan.text_size));
    H3_TRY(check_reference(s));
    if (is_candidate(s)) H3_TRY(check_gate(s));
    H3_TRY(h3_generation_model(&s->generation, s->identity));
    return h3_generation_check_space(&s->generation, &s->inputs, s->args.run);
}

/* Every rank reads the plan; only rank 0 touches the run. */
static h3_status prepare(stage *s)
{
    if (s->args.plan == NULL || s->args.run == NULL || s->args.side == NULL)
        return h3_error(H3_USAGE, "--side provider|candidate, --plan FILE and --run DIR are needed; see h3_generate --help");
    if (s->args.device != NULL && strcmp(s->args.device, "cpu") != 0) return h3_error(H3_ENVIRONMENT, "no %s device in this build; use --device cpu", s->args.device);
    int64_t first, count;
    H3_TRY(h3_plan_read(&s->plan, s->args.plan));
    H3_TRY(h3_generation_read(&s->generation, &s->plan));
    H3_TRY(h3_plan_weights(&s->plan, &s->weights));
    H3_TRY(h3_block_range(s->ranks.rank, s->ranks.count, h3_weights_config(s->weights)->num_layers, &first, &count));
    H3_TRY(h3_library_open(&s->provider, s->plan.provider));
    if (is_candidate(s)) H3_TRY(h3_bindings_open(&s->bindings, s->plan.candidate, s->plan.path));
    H3_TRY(h3_generation_inputs_new(&s->inputs, &s->generation, h3_weights_config(s->weights)));
    return is_rank_0(s) ? open_run(s) : H3_OK;
}

static void beat(void *user, const char *where, int64_t block) { h3_ranks_beat(user, where, block); }

static h3_status open_model(stage *s)
{
    int64_t first, count;
    H3_TRY(h3_block_range(s->ranks.rank, s->ranks.count, h3_weights_config(s->weights)->num_layers, &first, &count));
    H3_TRY(h3_model_open(&s->model, s->weights, H3_BF16, &s->provider, is_candidate(s) ? s->bindings.operators : NULL, first, count));
    s->model.link = h3_ranks_link(&s->ranks, s->model.engine.device);
    s->model.engine.beat = beat;
    s->model.engine.beat_user = &s->ranks;
    return h3_sampling_new(&s->sampling, &s->generation, &s->inputs, &s->model, &s->ranks, s->args.repeat);
}

/* The state of an interrupted run is taken up or dropped; then the outputs of an earlier attempt make room. */
static h3_status begin(stage *s)
{
    const char *note = NULL;
    int64_t step;
    s->record = (h3_generation_record){s->args.side, s->args.run, &s->plan, &s->generation, s->identity, &s->provider, is_candidate(s) ? &s->bindings : NULL,
                                       s->model.operators, s->args.repeat};
    H3_TRY(h3_resume_open(&s->resume, &s->record, &s->run));
    if (!s->args.resume) H3_TRY(h3_resume_remove(&s->resume));
    else H3_TRY(h3_resume_load(&s->resume, &s->sampling, &step, &note));
    if (note != NULL) h3_say("resume   %s", note);
    else if (s->args.resume) h3_say("resume   %lld of %lld steps are done", (long long)step, (long long)s->sampling.steps);
    s->sampling.save = h3_resume_save;
    s->sampling.user = &s->resume;
    return h3_run_begin(&s->run);
}

/* All ranks start at the step that rank 0 found. */
static h3_status share_first_step(stage *s)
{
    void *data = &s->sampling.first_step;
    size_t size = sizeof s->sampling.first_step;
    H3_TRY(h3_ranks_broadcast(&s->ranks, 0, &data, &size));
    if (is_rank_0(s)) return H3_OK;
    memcpy(&s->sampling.first_step, data, sizeof s->sampling.first_step);
    free(data);
    return H3_OK;
}

static h3_status build_identity(const stage *s, cJSON **out)
{
    cJSON *identity, *build = cJSON_CreateObject();
    *out = build;
    H3_TRY(h3_library_identity(&s->provider, &identity));
    cJSON_AddItemToObject(build, "provider", identity);
    cJSON *libraries = cJSON_AddArrayToObject(build, "libraries");
    for (int32_t i = 0; i < s->bindings.library_count; i++) {
        H3_TRY(h3_library_identity(&s->bindings.libraries[i], &identity));
        cJSON_AddItemToArray(libraries, identity);
    }
    return H3_OK;
}

static h3_status finish(stage *s)
{
    cJSON *build = NULL;
    H3_TRY(h3_generation_publish(&s->record, &s->sampling, &s->run));
    H3_TRY(h3_resume_remove(&s->resume));
    h3_status status = build_identity(s, &build);
    if (status == H3_OK) return h3_run_finish(&s->run, "passed", build);
    cJSON_Delete(build);
    return status;
}

static void say_summary(const stage *s, double seconds)
{
    char seeds[H3_MAX_SEEDS * 12 + 1] = "";
    size_t used = 0;
    for (size_t i = 0; i < s->generation.seed_count; i++)
        used += (size_t)snprintf(seeds + used, sizeof seeds - used, " %lld", (long long)s->generation.seeds[i]);
    h3_say("stage 4  generate %-9s seeds%s  %lld/%lld steps%s  %.1f s", s->args.side, seeds, (long long)s->sampling.steps, (long long)s->sampling.steps,
           s->args.repeat ? "  repeat equal" : "", seconds);
}

static h3_status run_stage(stage *s)
{
    double start = h3_clock();
    H3_TRY(h3_ranks_agree(&s->ranks, prepare(s)));
    H3_TRY(h3_ranks_agree(&s->ranks, open_model(s)));
    H3_TRY(h3_ranks_agree(&s->ranks, is_rank_0(s) ? begin(s) : H3_OK));
    H3_TRY(share_first_step(s));
    s->sampling.title = is_candidate(s) ? "stage 4  generate candidate" : "stage 4  generate provider";
    H3_TRY(h3_sampling_run(&s->sampling));
    H3_TRY(h3_ranks_agree(&s->ranks, is_rank_0(s) ? finish(s) : H3_OK));
    say_summary(s, h3_clock() - start);
    return H3_OK;
}

static void close_stage(stage *s)
{
    h3_run_close(&s->run);
    h3_resume_close(&s->resume);
    h3_sampling_free(&s->sampling);
    h3_model_close(&s->model);
    h3_generation_inputs_free(&s->inputs);
    h3_generation_free(&s->generation);
    h3_weights_free(s->weights);
    cJSON_Delete(s->identity);
    h3_bindings_close(&s->bindings);
    h3_library_close(&s->provider);
    h3_plan_free(&s->plan);
}

int main(int argc, char **argv)
{
    stage s = {0};
    int done;
    h3_status status = h3_args_parse(&s.args, argc, argv, H3_ARG_PLAN | H3_ARG_SIDE, help, &done);
    if (status != H3_OK || done) return h3_exit(s.args.program, status);
    status = h3_ranks_start(&s.ranks, &argc, &argv, s.args.watchdog);
    if (status != H3_OK) return h3_exit(s.args.program, status);
    status = run_stage(&s);
    int code = is_rank_0(&s) ? h3_exit(s.args.program, status) : (int)status;
    close_stage(&s);
    h3_ranks_finish(&s.ranks);
    return code;
}
