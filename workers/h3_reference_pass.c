/* Stage 1. Needs: checkpoint, plan. Writes: FP32 and BF16 artifacts, reference-manifest.json. Passes when both passes finish, all
 * tensors are finite, and a repeat of the BF16 pass is bitwise equal. With --case: the whole model on somebody else's inputs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "qualify/case.h"
#include "qualify/generation_store.h"
#include "qualify/preflight.h"
#include "qualify/reference.h"
#include "stage.h"
#include "store/publish.h"

static const char help[] =
    "h3_reference_pass - stage 1: run the model as published, FP32 and BF16, and keep what every node computed\n"
    "\n"
    "  mpirun -n N h3_reference_pass --plan FILE --run DIR [--checkpoint DIR] [--decoders DIR] [--device cpu|cuda] [--watchdog SECONDS]\n"
    "      reads the plan's checkpoint (with --checkpoint from that folder), writes DIR/data/reference/ and DIR/reference-manifest.json\n"
    "      N from 1 to the number of blocks; the bytes written are the same for every N\n"
    "\n"
    "  h3_reference_pass --checkpoint DIR --case FILE.safetensors --precision fp32|bf16 --out DIR [--operators provider|FILE.json]\n"
    "                    [--device cpu|cuda]\n"
    "      one forward and backward pass of the whole model on FILE's inputs; writes DIR/case.h5 with out.*, node.*, dnode.*, grad.*\n"
    "      FILE.json binds candidate operators to nodes: {\"*\": {\"library\": \"libmine.so\"}}\n"
    "\n"
    "  exit codes: 0 passed, 1 not finite, not repeatable or no operator library, 2 usage or plan, 3 damaged input,\n"
    "              4 environment, 75 stopped by a signal\n"
    "  example: mpirun -n 2 bin/h3_reference_pass --plan plans/demo.json --run evidence/demo\n";

static h3_status open_operators(const h3_args *args, const char *provider, h3_bindings *bindings)
{
    cJSON *json;
    if (args->operators == NULL || strcmp(args->operators, "provider") == 0) return h3_bindings_single(bindings, provider);
    H3_TRY(h3_json_read(&json, args->operators, H3_USAGE));
    h3_bindings_for_device(json, h3_stage_device_name(args));
    h3_status status = h3_bindings_open(bindings, json, args->operators);
    cJSON_Delete(json);
    return status;
}

static h3_status run_case(const h3_args *args)
{
    h3_weights *weights = NULL;
    h3_library provider = {0};
    h3_bindings bindings = {0};
    h3_model model = {0};
    h3_case item = {0};
    const h3_device *device;
    char path[H3_PATH_MAX], library[] = "libh3_provider_{device}.so";
    int existed = 1;
    h3_status status;
    if (args->checkpoint == NULL || args->case_file == NULL || args->precision == NULL || args->out == NULL)
        return h3_error(H3_USAGE, "--case FILE, --checkpoint DIR, --precision fp32|bf16 and --out DIR go together; see %s --help", args->program);
    if (args->plan != NULL || args->run != NULL || args->resume)
        return h3_error(H3_USAGE, "--case goes without --plan, --run and --resume; see %s --help", args->program);
    h3_text_for_device(library, h3_stage_device_name(args));
    H3_GOTO(h3_stage_device(args, &device), done);
    H3_GOTO(h3_path(path, "%s/case.h5", args->out), done);
    H3_GOTO(h3_weights_open(&weights, args->checkpoint), done);
    H3_GOTO(h3_case_read(&item, args->case_file), done);
    H3_GOTO(h3_sequence_check(&item.sequence, h3_weights_config(weights)), done);
    H3_GOTO(open_operators(args, library, &bindings), done);
    H3_GOTO(h3_bindings_require(&bindings, device->kind), done);
    H3_GOTO(h3_library_open(&provider, library), done);
    H3_GOTO(h3_model_open(&model, weights, device, strcmp(args->precision, "fp32") == 0 ? H3_F32 : H3_BF16, &provider, bindings.operators, 0,
                          h3_weights_config(weights)->num_layers), done);
    existed = access(args->out, F_OK) == 0;
    H3_GOTO(h3_make_folders(args->out), done);
    H3_GOTO(h3_case_run(&model, &item, path), done);
    h3_say("case     %s  %s  %lld rows  wrote %s", args->case_file, args->precision, (long long)item.sequence.rows, path);
done:
    if (status != H3_OK && !existed) rmdir(args->out);
    h3_model_close(&model);
    h3_case_free(&item);
    h3_bindings_close(&bindings);
    h3_library_close(&provider);
    h3_weights_free(weights);
    return status;
}

static h3_status read_pin(const h3_stage *s, h3_manifest *pinned, char **text)
{
    size_t size;
    H3_TRY(h3_file_read(text, &size, s->plan.pinned_manifest, (size_t)1 << 30, H3_INTEGRITY));
    h3_status status = h3_manifest_parse(pinned, *text, size, s->plan.pinned_manifest);
    if (status != H3_OK) free(*text);
    return status;
}

/* On another machine the pinned manifest can only fail: better now than after the passes. */
static h3_status check_pin_fingerprint(const h3_stage *s)
{
    char *text;
    cJSON *here;
    h3_manifest pinned;
    if (s->plan.pinned_manifest[0] == 0) return H3_OK;
    H3_TRY(read_pin(s, &pinned, &text));
    free(text);
    h3_status status = h3_fingerprint(&here, &s->provider);
    if (status == H3_OK) {
        status = h3_fingerprint_require(pinned.fingerprint, here, s->plan.pinned_manifest);
        cJSON_Delete(here);
    }
    h3_manifest_free(&pinned);
    return status;
}

/* Looks ahead to what the later stages will need before anything is touched. */
static h3_status preflight(h3_stage *s)
{
    H3_TRY(h3_contract_expect(&s->plan, s->args.run));
    return h3_preflight_plan(&s->plan, h3_weights_config(s->weights), s->device);
}

static h3_status prepare(h3_stage *s)
{
    if (s->ranks.rank != 0) return H3_OK;
    H3_TRY(check_pin_fingerprint(s));
    H3_TRY(h3_preflight_folder(&s->plan, h3_weights_config(s->weights), s->args.run));
    return h3_run_begin(&s->run);
}

/* The model of this pass under the names that the pinned manifest has for it: where the same bytes came from is no difference. */
static cJSON *renamed_model(const cJSON *made, const cJSON *pinned)
{
    static const char *const names[] = {"repository", "revision"};
    cJSON *model = cJSON_Duplicate(made, 1);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(pinned, names[i]));
        cJSON_DeleteItemFromObjectCaseSensitive(model, names[i]);
        if (name != NULL) cJSON_AddStringToObject(model, names[i], name);
    }
    return model;
}

/* The pinned file's own bytes, but for the plan that it names: the one that made it. */
static h3_status check_pin_text(const char *path, const char *pinned_text, const h3_manifest *pinned, const h3_manifest *made)
{
    h3_manifest named = *made; /* a view */
    char *text;
    memcpy(named.plan_identity, pinned->plan_identity, sizeof named.plan_identity);
    named.model = renamed_model(made->model, pinned->model);
    h3_status status = h3_manifest_print(&text, &named);
    cJSON_Delete(named.model);
    H3_TRY(status);
    int same = strcmp(text, pinned_text) == 0;
    free(text);
    return same ? H3_OK : h3_error(H3_INTEGRITY, "%s is not the manifest of this pass, though it has its digests: the file has changed", path);
}

static h3_status check_pin(const h3_stage *s, const h3_manifest *made)
{
    char *text;
    h3_manifest pinned;
    if (s->plan.pinned_manifest[0] == 0) return H3_OK;
    H3_TRY(read_pin(s, &pinned, &text));
    h3_status status = h3_manifest_require_equal(&pinned, made, s->plan.pinned_manifest);
    if (status == H3_OK) status = check_pin_text(s->plan.pinned_manifest, text, &pinned, made);
    free(text);
    h3_manifest_free(&pinned);
    return status;
}

static h3_status finish(h3_stage *s, h3_manifest *made)
{
    char *text, path[H3_PATH_MAX], sha256[H3_SHA256_HEX];
    cJSON *build;
    H3_TRY(h3_fingerprint(&made->fingerprint, &s->provider));
    H3_TRY(h3_plan_model(&s->plan, s->weights, &s->watch, &made->model));
    snprintf(made->plan_identity, sizeof made->plan_identity, "%s", s->plan.identity);
    H3_TRY(h3_manifest_print(&text, made));
    h3_status status = check_pin(s, made);
    if (status == H3_OK) status = h3_path(path, "%s/reference-manifest.json", s->args.run);
    if (status == H3_OK) status = h3_publish(path, text, strlen(text));
    if (status == H3_OK) status = h3_sha256(sha256, text, strlen(text));
    int64_t size = (int64_t)strlen(text);
    free(text);
    H3_TRY(status);
    for (size_t i = 0; i < made->file_count; i++) H3_TRY(h3_run_output(&s->run, made->files[i].path, made->files[i].size, made->files[i].sha256));
    H3_TRY(h3_run_output(&s->run, "reference-manifest.json", size, sha256));
    H3_TRY(h3_contract_keep(&s->plan, &s->run));
    H3_TRY(h3_library_identity(&s->provider, &build));
    return h3_run_finish(&s->run, "passed", build);
}

static h3_status run_passes(h3_stage *s, h3_manifest *made)
{
    h3_progress progress;
    h3_reference reference = {&s->ranks, &s->plan, s->weights, s->device, &s->provider, s->args.run, &progress, made};
    H3_TRY(h3_ranks_agree(&s->ranks, prepare(s)));
    H3_TRY(h3_stage_measure(s));
    h3_progress_start(&progress, "stage 1  reference pass", "blocks", h3_reference_steps(&reference));
    H3_TRY(h3_stage_relay(s, h3_reference_run(&reference)));
    h3_progress_end(&progress);
    H3_TRY(h3_stage_measured(s));
    H3_TRY(h3_reference_gather(&s->ranks, made));
    return h3_ranks_agree(&s->ranks, s->ranks.rank == 0 ? finish(s, made) : H3_OK);
}

static h3_status run_stage(h3_stage *s)
{
    h3_manifest made = {0};
    H3_TRY(h3_stage_open(s, "reference_pass"));
    h3_status status = run_passes(s, &made);
    if (status == H3_OK) h3_stage_say_devices(s);
    if (status == H3_OK)
        h3_say_timed(h3_clock() - s->start, "stage 1  reference pass     %d rank%s, %lld blocks, %zu layout%s  FP32 + BF16 + repeat  %zu tensors",
                     s->ranks.count, s->ranks.count == 1 ? "" : "s", (long long)h3_weights_config(s->weights)->num_layers, s->plan.layout_count,
                     s->plan.layout_count == 1 ? "" : "s", made.tensor_count);
    h3_manifest_free(&made);
    return status;
}

int main(int argc, char **argv)
{
    h3_stage s = {.hands_on = 1, .preflight = preflight};
    int done;
    h3_status status = h3_args_parse(&s.args, argc, argv, H3_ARG_PLAN | H3_ARG_CASE, help, &done);
    if (status != H3_OK || done) return h3_exit(s.args.program, status);
    int alone = s.args.case_file != NULL || (s.args.checkpoint != NULL && s.args.plan == NULL) || s.args.precision != NULL || s.args.out != NULL || s.args.operators != NULL;
    if (alone) return h3_exit(s.args.program, run_case(&s.args));
    return h3_stage_main(&s, argc, argv, run_stage);
}
