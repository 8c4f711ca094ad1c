/* Diagnosis. Needs: stages 1 and 2. Writes: diagnose.json. 34 single-node substitutions, bisection over blocks, permutation control.
 * Diagnostic only: it can never turn a failure into a pass. */

#include "qualify/diagnose.h"
#include "qualify/inputs.h"
#include "stage.h"
#include "store/publish.h"

static const char help[] =
    "h3_diagnose - which node explains the candidate's error?\n"
    "\n"
    "  mpirun -n N h3_diagnose --plan FILE --run DIR [--checkpoint DIR] [--decoders DIR] [--device cpu|cuda] [--watchdog SECONDS]\n"
    "      runs all blocks of the plan's first layout again and again: with one node of the candidate replaced by the provider's, and\n"
    "      with one node of the provider replaced by the candidate's (34 runs), then bisects over the blocks if a bound is broken\n"
    "      reads stages 1 and 2, writes DIR/diagnose.json; changes no verdict\n"
    "\n"
    "  exit codes: 0 done, 1 an operator cannot run, 2 usage or plan, 3 damaged or missing input, 4 environment, 75 stopped by a signal\n"
    "  example: mpirun -n 2 bin/h3_diagnose --plan plans/demo.json --run evidence/demo\n";

static h3_status publish(h3_stage *s, const h3_diagnosis *diagnosis)
{
    cJSON *json;
    char path[H3_PATH_MAX], sha256[H3_SHA256_HEX];
    int64_t size;
    H3_TRY(h3_run_begin(&s->run));
    H3_TRY(h3_diagnosis_json(&json, diagnosis, &s->plan));
    h3_status status = h3_path(path, "%s/diagnose.json", s->args.run);
    if (status == H3_OK) status = h3_publish_json(path, json, &size, sha256);
    cJSON_Delete(json);
    H3_TRY(status);
    H3_TRY(h3_run_output(&s->run, "diagnose.json", size, sha256));
    return h3_run_finish(&s->run, "passed", NULL);
}

static void say(const h3_stage *s, const h3_diagnosis *d)
{
    h3_say("target   %s  candidate %.6g  provider %.6g  bound %.6g%s", d->target, d->candidate_error, d->provider_error, d->bound,
           d->candidate_error <= d->bound ? "" : "  BEYOND");
    for (int i = 0; i < 8; i++)
        h3_say("         %-18s %-28s error %.6g  explains %6.1f %%", h3_nodes[d->substitutions[i].node].name,
               d->substitutions[i].provider_inside ? "provider in candidate graph" : "candidate in provider graph", d->substitutions[i].error,
               100.0 * d->substitutions[i].explained);
    if (d->first_bad_block >= 0) h3_say("bisection  candidates in blocks 0 to %lld break the bound, one block fewer does not", (long long)d->first_bad_block);
    h3_say("control  permuting the packed rows changes %d rows, by at most %.6g", d->permuted_rows_changed, d->permuted_largest);
    h3_say("diagnose 34 substitutions  %.1f s  %s/diagnose.json", h3_clock() - s->start, s->args.run);
}

static h3_status diagnose(h3_stage *s, h3_manifest *manifest, h3_thresholds *thresholds, h3_run_files *listed, h3_bindings *candidate)
{
    char sha256[H3_SHA256_HEX];
    h3_diagnosis diagnosis;
    h3_progress progress;
    H3_TRY(h3_inputs_manifest(&s->ranks, &s->run, &s->plan, &s->provider, manifest, sha256, listed));
    H3_TRY(h3_inputs_thresholds(&s->ranks, &s->run, &s->plan, &s->provider, sha256, thresholds));
    H3_TRY(h3_ranks_agree(&s->ranks, h3_bindings_open(candidate, s->plan.candidate, s->plan.path)));
    H3_TRY(h3_ranks_agree(&s->ranks, h3_bindings_require(candidate, s->device->kind)));
    H3_TRY(h3_ranks_agree(&s->ranks, s->ranks.rank == 0 ? h3_run_verify_all(&s->run, listed, "") : H3_OK));
    H3_TRY(h3_ranks_agree(&s->ranks, s->ranks.rank == 0 ? h3_inputs_model(manifest, s->weights, &s->watch, NULL) : H3_OK));
    h3_gate gate = {.ranks = &s->ranks, .plan = &s->plan, .weights = s->weights, .device = s->device, .device_kind = s->device->kind,
                    .provider = &s->provider, .candidate = candidate, .manifest = manifest, .thresholds = thresholds, .run_folder = s->args.run};
    h3_progress_start(&progress, "diagnose", "runs", H3_DIAGNOSE_RUNS);
    H3_TRY(h3_stage_relay(s, h3_diagnose(&gate, &progress, &diagnosis)));
    h3_progress_end(&progress);
    H3_TRY(h3_ranks_agree(&s->ranks, s->ranks.rank == 0 ? publish(s, &diagnosis) : H3_OK));
    say(s, &diagnosis);
    return H3_OK;
}

static h3_status run_stage(h3_stage *s)
{
    h3_manifest manifest = {0};
    h3_thresholds thresholds = {0};
    h3_run_files listed = {0};
    h3_bindings candidate = {0};
    H3_TRY(h3_stage_open(s, "diagnose"));
    h3_status status = diagnose(s, &manifest, &thresholds, &listed, &candidate);
    h3_bindings_close(&candidate);
    h3_manifest_free(&manifest);
    h3_thresholds_free(&thresholds);
    h3_run_files_free(&listed);
    return status;
}

int main(int argc, char **argv)
{
    h3_stage s = {.hands_on = 1};
    int done;
    h3_status status = h3_args_parse(&s.args, argc, argv, H3_ARG_PLAN, help, &done);
    if (status != H3_OK || done) return h3_exit(s.args.program, status);
    return h3_stage_main(&s, argc, argv, run_stage);
}
