/* Stage 2. Needs: stage 1. Writes: thresholds.json. Passes when every tensor has a bound. Thresholds are written once a run. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "qualify/inputs.h"
#include "stage.h"
#include "store/publish.h"

static const char help[] =
    "h3_threshold_freeze - stage 2: turn the BF16 provider's own errors into the bounds that a candidate must keep\n"
    "\n"
    "  mpirun -n N h3_threshold_freeze --plan FILE --run DIR [--checkpoint DIR] [--decoders DIR] [--watchdog SECONDS]\n"
    "      forward tensors: 1.25 * provider error + 0.001; gradients: 1.5 * provider error + 0.005\n"
    "      reads DIR/data/reference/ and DIR/reference-manifest.json of h3_reference_pass, writes DIR/thresholds.json\n"
    "      thresholds are written once a run: running again recomputes them, and anything but the same bytes is exit 3\n"
    "\n"
    "  exit codes: 0 passed, 1 a tensor without a bound, 2 usage or plan, 3 damaged or missing input, 4 environment, 75 stopped by a signal\n"
    "  example: mpirun -n 2 bin/h3_threshold_freeze --plan plans/demo.json --run evidence/demo\n";

#define ONCE "the recomputed thresholds differ; they are written once a run, start a new run"

/* Equal to the file that is already there, if one is. */
static h3_status require_same(const char *path, const char *text)
{
    char *other;
    size_t size;
    struct stat info;
    if (lstat(path, &info) != 0 && errno == ENOENT) return H3_OK;
    H3_TRY(h3_file_read(&other, &size, path, (size_t)1 << 30, H3_INTEGRITY));
    int same = size == strlen(text) && memcmp(other, text, size) == 0;
    free(other);
    return same ? H3_OK : h3_error(H3_INTEGRITY, "%s: " ONCE, path);
}

/* Equal to what an earlier attempt listed, also when somebody took the file away. */
static h3_status require_listed(const h3_stage *s, const char *sha256)
{
    char path[H3_PATH_MAX];
    cJSON *stage;
    const cJSON *output;
    H3_TRY(h3_path(path, "%s/stages/threshold_freeze/stage.json", s->args.run));
    if (access(path, F_OK) != 0) return H3_OK;
    H3_TRY(h3_run_stage_read(&stage, s->args.run, "threshold_freeze"));
    h3_status status = H3_OK;
    cJSON_ArrayForEach(output, cJSON_GetObjectItemCaseSensitive(stage, "outputs")) {
        const char *listed = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(output, "sha256"));
        if (listed == NULL || strcmp(listed, sha256) != 0)
            status = h3_error(H3_INTEGRITY, "%s/thresholds.json: " ONCE, s->args.run);
    }
    cJSON_Delete(stage);
    return status;
}

/* The pinned file's own bytes, but for the plan and the manifest that it names: those that froze it. */
static h3_status require_pinned_text(const char *path, const char *pinned_text, const h3_thresholds *pinned,
                                     const h3_thresholds *made, const h3_manifest *manifest)
{
    h3_thresholds named = *made; /* a view */
    char *text;
    memcpy(named.plan_identity, pinned->plan_identity, sizeof named.plan_identity);
    memcpy(named.manifest_sha256, pinned->manifest_sha256, sizeof named.manifest_sha256);
    H3_TRY(h3_thresholds_print(&text, &named, manifest));
    int same = strcmp(text, pinned_text) == 0;
    free(text);
    return same ? H3_OK
                : h3_error(H3_INTEGRITY, "%s: the pinned thresholds are not what this reference gives; the reference has changed",
                           path);
}

/* Pinned thresholds count for this manifest's tensors, whatever plan text froze them: bounds and fingerprint must agree. */
static h3_status require_pinned(const char *path, const h3_thresholds *made, const h3_manifest *manifest)
{
    char *text;
    size_t size;
    h3_thresholds pinned;
    H3_TRY(h3_file_read(&text, &size, path, (size_t)1 << 30, H3_INTEGRITY));
    h3_status status = h3_thresholds_parse(&pinned, text, size, path);
    if (status == H3_OK) status = h3_fingerprint_require(pinned.fingerprint, made->fingerprint, path);
    for (size_t i = 0; i < pinned.count && status == H3_OK; i++)
        if (i >= made->count || strcmp(pinned.items[i].name, made->items[i].name) != 0 ||
            pinned.items[i].bound != made->items[i].bound)
            status =
                h3_error(H3_INTEGRITY, "%s: the pinned bound of %s is not what this reference gives; the reference has changed",
                         path, pinned.items[i].name);
    if (status == H3_OK && pinned.count != made->count)
        status = h3_error(H3_INTEGRITY, "%s pins %zu bounds, this reference gives %zu", path, pinned.count, made->count);
    if (status == H3_OK) status = require_pinned_text(path, text, &pinned, made, manifest);
    free(text);
    h3_thresholds_free(&pinned);
    return status;
}

static h3_status publish(h3_stage *s, const char *text)
{
    char path[H3_PATH_MAX], sha256[H3_SHA256_HEX];
    H3_TRY(h3_path(path, "%s/thresholds.json", s->args.run));
    H3_TRY(require_same(path, text));
    H3_TRY(h3_sha256(sha256, text, strlen(text)));
    H3_TRY(require_listed(s, sha256));
    H3_TRY(h3_run_keep(&s->run, "thresholds.json"));
    H3_TRY(h3_run_begin(&s->run));
    if (access(path, F_OK) != 0) H3_TRY(h3_publish(path, text, strlen(text)));
    H3_TRY(h3_run_output(&s->run, "thresholds.json", (int64_t)strlen(text), sha256));
    cJSON *build = cJSON_CreateObject();
    if (build == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for a stage record");
    return h3_run_finish(&s->run, "passed", build);
}

static h3_status finish(h3_stage *s, h3_thresholds *made, const h3_manifest *manifest, const h3_run_files *listed)
{
    char *text;
    for (size_t i = 0; i < manifest->file_count; i++) H3_TRY(h3_run_record(&s->run, listed, manifest->files[i].path));
    H3_TRY(h3_thresholds_print(&text, made, manifest));
    h3_status status = s->plan.pinned_thresholds[0] != 0 ? require_pinned(s->plan.pinned_thresholds, made, manifest) : H3_OK;
    if (status == H3_OK) status = publish(s, text);
    free(text);
    return status;
}

static h3_status compute(h3_stage *s, const h3_manifest *manifest, h3_thresholds *made)
{
    h3_tensor_source source = {.ranks = &s->ranks, .device = s->device, .provider = &s->provider, .weights = s->weights, .manifest = manifest,
                               .run_folder = s->args.run};
    h3_progress progress;
    int64_t first, blocks;
    H3_TRY(h3_block_range(s->ranks.rank, s->ranks.count, h3_weights_config(s->weights)->num_layers, &first, &blocks));
    h3_progress_start(&progress, "stage 2  threshold freeze", "blocks", blocks * (int64_t)s->plan.layout_count);
    h3_status status = h3_thresholds_compute(made, &s->plan, &source, s->ranks.rank, s->ranks.count, &progress);
    h3_progress_end(&progress);
    h3_tensor_source_close(&source);
    return status;
}

static h3_status freeze(h3_stage *s, h3_manifest *manifest, h3_thresholds *made, h3_run_files *listed)
{
    char sha256[H3_SHA256_HEX];
    H3_TRY(h3_inputs_manifest(&s->ranks, &s->run, &s->plan, &s->provider, manifest, sha256, listed));
    H3_TRY(h3_ranks_agree(&s->ranks, s->ranks.rank == 0 ? h3_inputs_model(manifest, s->weights, &s->watch, NULL) : H3_OK));
    H3_TRY(h3_stage_measure(s));
    H3_TRY(h3_ranks_agree(&s->ranks, compute(s, manifest, made)));
    H3_TRY(h3_stage_measured(s));
    H3_TRY(h3_thresholds_gather(&s->ranks, made));
    made->fingerprint = cJSON_Duplicate(manifest->fingerprint, 1);
    memcpy(made->plan_identity, s->plan.identity, sizeof made->plan_identity);
    memcpy(made->manifest_sha256, sha256, sizeof made->manifest_sha256);
    return h3_ranks_agree(&s->ranks, s->ranks.rank == 0 ? finish(s, made, manifest, listed) : H3_OK);
}

static h3_status run_stage(h3_stage *s)
{
    h3_manifest manifest = {0};
    h3_thresholds made = {0};
    h3_run_files listed = {0};
    H3_TRY(h3_stage_open(s, "threshold_freeze"));
    h3_status status = freeze(s, &manifest, &made, &listed);
    if (status == H3_OK) h3_stage_say_devices(s);
    if (status == H3_OK) h3_say_timed(h3_clock() - s->start, "stage 2  threshold freeze   %zu bounds", made.count);
    h3_manifest_free(&manifest);
    h3_thresholds_free(&made);
    h3_run_files_free(&listed);
    return status;
}

int main(int argc, char **argv)
{
    h3_stage s = {0};
    int done;
    h3_status status = h3_args_parse(&s.args, argc, argv, H3_ARG_PLAN, help, &done);
    if (status != H3_OK || done) return h3_exit(s.args.program, status);
    return h3_stage_main(&s, argc, argv, run_stage);
}
