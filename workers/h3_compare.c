/* Stage 5. Needs: both sides of the generation. Writes: compare.json. Passes when noise, sigmas and shapes are identical (else exit 3, and
 * no metric is printed) and the final latents are within the contract's limit (else 1). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "base/json.h"
#include "base/log.h"
#include "dist/ranks.h"
#include "qualify/compare.h"
#include "qualify/generation_store.h"
#include "store/publish.h"
#include "store/run.h"

static const char help[] =
    "h3_compare - stage 5: the candidate's generation beside the provider's\n"
    "\n"
    "  h3_compare --plan FILE --run DIR [--watchdog SECONDS]\n"
    "      reads what both sides of h3_generate wrote, writes DIR/compare.json\n"
    "      final latents of video and audio, each seed: ||candidate - provider|| / ||provider|| within the contract's latent_error\n"
    "      velocities of every step: reported\n"
    "\n"
    "  exit codes: 0 passed, 1 an error beyond its limit or not a number, 2 usage or plan, 3 damaged input, or noise, sigmas or shapes that\n"
    "              differ, 4 environment\n"
    "  example: bin/h3_compare --plan plans/demo.json --run evidence/demo\n";

enum { PROVIDER, CANDIDATE, SIDES };
static const char *const side_names[SIDES] = {"provider", "candidate"}, *const stage_names[SIDES] = {"generate_provider", "generate_candidate"};

typedef struct stage {
    h3_args args;
    h3_ranks ranks;
    h3_plan plan;
    h3_generation generation;
    h3_run run;
    h3_run_files listed[SIDES];
    cJSON *report[SIDES];
    size_t count;
    h3_compare_seed *seeds;
} stage;

/* Verifies and reads one side's report. */
static h3_status read_report(stage *s, int side)
{
    char relative[64], path[H3_PATH_MAX];
    const char *schema, *contract;
    h3_generation_report_path(relative, side_names[side]);
    H3_TRY(h3_run_need(&s->run, stage_names[side], NULL, &s->listed[side]));
    H3_TRY(h3_run_verify(&s->run, &s->listed[side], relative));
    H3_TRY(h3_run_locate(path, s->args.run, relative));
    H3_TRY(h3_json_read(&s->report[side], path, H3_INTEGRITY));
    H3_TRY(h3_json_string(&schema, s->report[side], "schema", path, H3_INTEGRITY));
    H3_TRY(h3_json_string(&contract, s->report[side], "contract_sha256", path, H3_INTEGRITY));
    if (strcmp(schema, H3_GENERATION_SCHEMA) != 0) return h3_error(H3_INTEGRITY, "%s is no generation report of this version; run h3_generate again", path);
    if (strcmp(contract, s->generation.contract.sha256) != 0)
        return h3_error(H3_INTEGRITY, "%s was made under another %s; run h3_generate again for both sides", path, s->generation.contract.path);
    return H3_OK;
}

/* The artifact's bytes are hashed and parsed in one reading. */
static h3_status open_artifact(stage *s, int side, int64_t seed, h3_artifact *out)
{
    char relative[96], path[H3_PATH_MAX];
    h3_generation_artifact_path(relative, side_names[side], seed);
    const h3_run_file *file = h3_run_files_find(&s->listed[side], relative);
    if (file == NULL) return h3_error(H3_INTEGRITY, "%s is not among the outputs of the %s's generation; run h3_generate again", relative, side_names[side]);
    H3_TRY(h3_run_locate(path, s->args.run, relative));
    h3_ranks_beat(&s->ranks, relative, -1);
    H3_TRY(h3_artifact_open(out, path, file->sha256));
    return h3_run_record(&s->run, &s->listed[side], relative);
}

static h3_status compare_seed(stage *s, int index)
{
    h3_artifact artifact[SIDES] = {0};
    h3_compare_tensors tensors[SIDES];
    int64_t seed;
    h3_status status = H3_OK;
    for (int side = 0; side < SIDES && status == H3_OK; side++) {
        const cJSON *report = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(s->report[side], "seeds"), index);
        status = h3_json_integer(&seed, report, "seed", 0, UINT32_MAX, "the report of a generation", H3_INTEGRITY);
        if (status == H3_OK) status = open_artifact(s, side, seed, &artifact[side]);
        if (status == H3_OK) status = h3_compare_tensors_of(&tensors[side], &artifact[side], report);
    }
    h3_ranks_beat(&s->ranks, "comparing", -1);
    if (status == H3_OK) status = h3_compare_seed_run(&s->seeds[s->count], seed, &tensors[PROVIDER], &tensors[CANDIDATE], &s->generation.acceptance);
    if (status == H3_OK) s->count++;
    for (int side = 0; side < SIDES; side++) h3_artifact_close(&artifact[side]);
    return status;
}

static h3_status compare_all(stage *s)
{
    void *memory;
    H3_TRY(h3_compare_reports(s->report[PROVIDER], s->report[CANDIDATE]));
    int count = cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(s->report[PROVIDER], "seeds"));
    H3_TRY(h3_alloc(&memory, (size_t)count, sizeof *s->seeds, "figures"));
    s->seeds = memory;
    for (int i = 0; i < count; i++) H3_TRY(compare_seed(s, i));
    h3_compare_sort(s->seeds, s->count);
    return H3_OK;
}

static h3_status publish(stage *s, int *ok)
{
    cJSON *json;
    char path[H3_PATH_MAX], sha256[H3_SHA256_HEX];
    int64_t size;
    H3_TRY(h3_run_begin(&s->run));
    H3_TRY(h3_compare_json(&json, ok, s->seeds, s->count, s->report[PROVIDER], &s->generation.acceptance));
    h3_status status = h3_run_place(path, s->args.run, "compare.json");
    if (status == H3_OK) status = h3_publish_json(path, json, &size, sha256);
    cJSON_Delete(json);
    H3_TRY(status);
    H3_TRY(h3_run_output(&s->run, "compare.json", size, sha256));
    return h3_run_finish(&s->run, *ok ? "passed" : "failed", NULL);
}

static h3_status conclude(const stage *s, int ok, double seconds)
{
    const h3_compare_seed *worst = &s->seeds[0];
    double limit = s->generation.acceptance.limit[H3_LIMIT_LATENT_ERROR], velocity = 0.0;
    for (size_t i = 0; i < s->count; i++) {
        const h3_compare_figures *figures[] = {&s->seeds[i].video, &s->seeds[i].audio};
        for (int m = 0; m < 2; m++)
            if (!(figures[m]->velocity_error[figures[m]->worst_step] <= velocity)) velocity = figures[m]->velocity_error[figures[m]->worst_step];
    }
    h3_say("stage 5  compare            worst seed %lld: latent error %.4g video, %.4g audio (limit %.4g)  velocities %.4g at most%s  %.1f s", (long long)worst->seed,
           worst->video.latent_error, worst->audio.latent_error, limit, velocity, ok ? "" : "  FAILED", seconds);
    if (ok) return H3_OK;
    return h3_error(H3_FAILED, "seed %lld: the candidate's %s latents are %.4g from the provider's, the limit is %.4g; see compare.json, then h3_diagnose",
                    (long long)worst->seed, worst->worst_is_audio ? "audio" : "video", worst->worst, limit);
}

static h3_status run_stage(stage *s)
{
    double start = h3_clock();
    int ok = 0;
    if (s->args.plan == NULL || s->args.run == NULL) return h3_error(H3_USAGE, "--plan FILE and --run DIR are needed; see h3_compare --help");
    H3_TRY(h3_plan_read(&s->plan, s->args.plan));
    H3_TRY(h3_generation_read(&s->generation, &s->plan));
    H3_TRY(h3_run_open(&s->run, s->args.run, "compare", s->plan.text, s->plan.text_size));
    for (int side = 0; side < SIDES; side++) H3_TRY(read_report(s, side));
    H3_TRY(compare_all(s));
    H3_TRY(publish(s, &ok));
    return conclude(s, ok, h3_clock() - start);
}

static void close_stage(stage *s)
{
    for (size_t i = 0; i < s->count; i++) h3_compare_seed_free(&s->seeds[i]);
    free(s->seeds);
    for (int side = 0; side < SIDES; side++) {
        cJSON_Delete(s->report[side]);
        h3_run_files_free(&s->listed[side]);
    }
    h3_run_close(&s->run);
    h3_generation_free(&s->generation);
    h3_plan_free(&s->plan);
}

int main(int argc, char **argv)
{
    stage s = {0};
    int done;
    h3_status status = h3_args_parse(&s.args, argc, argv, H3_ARG_PLAN, help, &done);
    if (status != H3_OK || done) return h3_exit(s.args.program, status);
    status = h3_ranks_start(&s.ranks, &argc, &argv, s.args.watchdog);
    if (status != H3_OK) return h3_exit(s.args.program, status);
    status = h3_ranks_agree(&s.ranks, s.ranks.rank == 0 ? run_stage(&s) : H3_OK);
    int code = s.ranks.rank == 0 ? h3_exit(s.args.program, status) : (int)status;
    close_stage(&s);
    h3_ranks_finish(&s.ranks);
    return code;
}
