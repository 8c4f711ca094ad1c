/* Stage 5. Needs: both sides of the generation. Writes: compare.json, with decoders data/compare/seed<N>.json. Passes when noise, sigmas and shapes are
 * identical (else exit 3, and no metric is printed) and the final latents, pictures and sound are within the contract's limits (else 1). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "qualify/compare.h"
#include "qualify/generation_store.h"
#include "qualify/inputs.h"
#include "stage.h"
#include "store/publish.h"

static const char help[] =
    "h3_compare - stage 5: the candidate's generation beside the provider's\n"
    "\n"
    "  h3_compare --plan FILE --run DIR [--checkpoint DIR] [--decoders DIR] [--watchdog SECONDS]\n"
    "      reads what both sides of h3_generate wrote, writes DIR/compare.json\n"
    "      final latents of video and audio, seed by seed: ||candidate - provider|| / ||provider|| within latent_error\n"
    "      with decoders in the plan: PSNR and SSIM of the pictures, SNR and log-spectral distance of the sound, each within its limit\n"
    "      velocities of every step: reported\n"
    "\n"
    "  exit codes: 0 passed, 1 an error beyond its limit or not a number, 2 usage or plan, 3 damaged input, or noise, sigmas or\n"
    "              shapes that differ, 4 environment, 75 stopped by a signal\n"
    "  example: bin/h3_compare --plan plans/demo.json --run evidence/demo\n";

enum { PROVIDER, CANDIDATE, SIDES };
static const char *const side_names[SIDES] = {"provider", "candidate"};
static const char *const stage_names[SIDES] = {"generate_provider", "generate_candidate"};

typedef struct comparison {
    h3_stage *stage;
    h3_generation generation; /* for the limits */
    h3_run_files listed[SIDES];
    cJSON *report[SIDES];
    size_t count;
    h3_compare_seed *seeds;
} comparison;

/* Collective. One side's report, verified. */
static h3_status read_report(comparison *c, int side)
{
    h3_stage *s = c->stage;
    char relative[64], sha256[H3_SHA256_HEX], *text;
    const char *schema = "", *contract = "";
    size_t size;
    h3_generation_report_path(relative, side_names[side]);
    H3_TRY(h3_inputs_file(&s->ranks, &s->run, stage_names[side], relative, &text, &size, sha256, &c->listed[side]));
    h3_status status = h3_json_parse(&c->report[side], text, size, relative, H3_INTEGRITY);
    free(text);
    if (status == H3_OK) status = h3_json_string(&schema, c->report[side], "schema", relative, H3_INTEGRITY);
    if (status == H3_OK) status = h3_json_string(&contract, c->report[side], "contract_sha256", relative, H3_INTEGRITY);
    if (status == H3_OK && strcmp(schema, H3_GENERATION_SCHEMA) != 0)
        status = h3_error(H3_INTEGRITY, "%s is no generation report of this version; run h3_generate again", relative);
    if (status == H3_OK && strcmp(contract, c->generation.contract.sha256) != 0)
        status = h3_error(H3_INTEGRITY, "%s was made under another %s; run h3_generate again for both sides", relative,
                          c->generation.contract.path);
    return h3_ranks_agree(&s->ranks, status);
}

/* The artifact's bytes are hashed and parsed in one reading. */
static h3_status open_artifact(comparison *c, int side, int64_t seed, h3_artifact *out)
{
    char relative[96], path[H3_PATH_MAX];
    h3_generation_artifact_path(relative, side_names[side], seed);
    const h3_run_file *file = h3_run_files_find(&c->listed[side], relative);
    if (file == NULL)
        return h3_error(H3_INTEGRITY, "%s is not among the outputs of the %s's generation; run h3_generate again", relative,
                        side_names[side]);
    H3_TRY(h3_run_locate(path, c->stage->args.run, relative));
    h3_ranks_beat(&c->stage->ranks, "reading an artifact", -1);
    H3_TRY(h3_artifact_open(out, path, file->sha256));
    return h3_run_record(&c->stage->run, &c->listed[side], relative);
}

static void beat(void *user)
{
    comparison *c = user;
    h3_ranks_beat(&c->stage->ranks, "reading pictures and sound", -1);
}

static const cJSON *seed_report(const comparison *c, int side, int index)
{
    return cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(c->report[side], "seeds"), index);
}

/* One side's evidence; every file of it becomes an input. */
static h3_status read_media(comparison *c, int side, int index, int64_t seed, h3_media *media, h3_media_facts *facts)
{
    const h3_media_beat alive = {beat, c};
    char folder[96];
    h3_media_folder(folder, side_names[side], seed);
    H3_TRY(h3_media_facts_read(facts, cJSON_GetObjectItemCaseSensitive(seed_report(c, side, index), "media"), "the report of a generation"));
    H3_TRY(h3_media_read(media, c->stage->args.run, folder, &c->listed[side], facts, &alive));
    for (size_t i = 0; i < c->listed[side].count; i++) {
        const char *path = c->listed[side].items[i].path;
        if (strncmp(path, folder, strlen(folder)) == 0 && path[strlen(folder)] == '/') H3_TRY(h3_run_record(&c->stage->run, &c->listed[side], path));
    }
    return H3_OK;
}

static h3_status compare_media(comparison *c, h3_compare_media *out, int index, int64_t seed)
{
    h3_media media[SIDES] = {{0}};
    h3_media_facts facts[SIDES];
    h3_status status = H3_OK;
    for (int side = 0; side < SIDES && status == H3_OK; side++) status = read_media(c, side, index, seed, &media[side], &facts[side]);
    h3_ranks_beat(&c->stage->ranks, "comparing pictures and sound", -1);
    if (status == H3_OK) status = h3_compare_media_run(out, &media[PROVIDER], &media[CANDIDATE], facts, &c->generation.acceptance);
    if (status == H3_OK) status = h3_compare_media_repeat(&out->repeated, c->report[PROVIDER], index);
    for (int side = 0; side < SIDES; side++) h3_media_free(&media[side]);
    return status;
}

/* The pictures and the sound of the seed that was compared last. */
static h3_status add_media(comparison *c, int index)
{
    h3_compare_seed *seed = &c->seeds[c->count - 1];
    void *memory;
    if (!c->generation.decoders.present) return H3_OK;
    H3_TRY(h3_alloc(&memory, 1, sizeof(h3_compare_media), "figures"));
    h3_status status = compare_media(c, memory, index, seed->seed);
    if (status == H3_OK) h3_compare_seed_media(seed, memory);
    else free(memory);
    return status == H3_OK ? H3_OK : h3_error_context(status, "seed %lld", (long long)seed->seed);
}

static h3_status compare_seed(comparison *c, int index)
{
    h3_artifact artifact[SIDES] = {0};
    h3_compare_tensors tensors[SIDES];
    int64_t seed;
    h3_status status = H3_OK;
    for (int side = 0; side < SIDES && status == H3_OK; side++) {
        const cJSON *report = seed_report(c, side, index);
        status = h3_json_integer(&seed, report, "seed", 0, UINT32_MAX, "the report of a generation", H3_INTEGRITY);
        if (status == H3_OK) status = open_artifact(c, side, seed, &artifact[side]);
        if (status == H3_OK) status = h3_compare_tensors_of(&tensors[side], &artifact[side], report);
    }
    h3_ranks_beat(&c->stage->ranks, "comparing", -1);
    if (status == H3_OK)
        status =
            h3_compare_seed_run(&c->seeds[c->count], seed, &tensors[PROVIDER], &tensors[CANDIDATE], &c->generation.acceptance);
    if (status == H3_OK) c->count++;
    for (int side = 0; side < SIDES; side++) h3_artifact_close(&artifact[side]);
    return status == H3_OK ? add_media(c, index) : status;
}

static h3_status compare_all(comparison *c)
{
    void *memory;
    H3_TRY(h3_compare_reports(c->report[PROVIDER], c->report[CANDIDATE]));
    int count = cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(c->report[PROVIDER], "seeds"));
    H3_TRY(h3_alloc(&memory, (size_t)count, sizeof *c->seeds, "figures"));
    c->seeds = memory;
    for (int i = 0; i < count; i++) H3_TRY(compare_seed(c, i));
    h3_compare_sort(c->seeds, c->count);
    return H3_OK;
}

/* A seed's own report, with the figures of every frame. */
static h3_status publish_seed(comparison *c, const h3_compare_seed *seed)
{
    cJSON *json;
    char relative[96], path[H3_PATH_MAX], sha256[H3_SHA256_HEX];
    int64_t size;
    h3_compare_seed_path(relative, seed->seed);
    H3_TRY(h3_compare_seed_json(&json, seed));
    h3_status status = h3_run_place(path, c->stage->args.run, relative);
    if (status == H3_OK) status = h3_publish_json(path, json, &size, sha256);
    cJSON_Delete(json);
    return status == H3_OK ? h3_run_output(&c->stage->run, relative, size, sha256) : status;
}

static h3_status publish(comparison *c, int *ok)
{
    cJSON *json;
    char path[H3_PATH_MAX], sha256[H3_SHA256_HEX];
    int64_t size;
    H3_TRY(h3_run_begin(&c->stage->run));
    H3_TRY(h3_compare_json(&json, ok, c->seeds, c->count, c->report[PROVIDER], &c->generation.acceptance));
    h3_status status = h3_run_place(path, c->stage->args.run, "compare.json");
    if (status == H3_OK) status = h3_publish_json(path, json, &size, sha256);
    cJSON_Delete(json);
    H3_TRY(status);
    H3_TRY(h3_run_output(&c->stage->run, "compare.json", size, sha256));
    for (size_t i = 0; i < c->count; i++)
        if (c->seeds[i].media != NULL) H3_TRY(publish_seed(c, &c->seeds[i]));
    return h3_run_finish(&c->stage->run, *ok ? "passed" : "failed", NULL);
}

static void number_or_identical(char out[32], const h3_judged *judged)
{
    if (judged->identical) snprintf(out, 32, "identical");
    else snprintf(out, 32, "%.4g", judged->value);
}

/* The worst seeds' figures; nothing without decoders. */
static void say_media(const comparison *c)
{
    char text[H3_MEDIA_LIMITS][32];
    const double *limit = c->generation.acceptance.limit;
    if (!c->generation.decoders.present) return;
    for (int i = 0; i < H3_MEDIA_LIMITS; i++) number_or_identical(text[i], &h3_compare_worst_media(c->seeds, c->count, i)->media->judged[i]);
    h3_say("picture  worst PSNR %s dB (at least %.4g), SSIM %s (at least %.4g)", text[H3_LIMIT_PSNR_GLOBAL], limit[H3_LIMIT_PSNR_GLOBAL], text[H3_LIMIT_SSIM_MEAN],
           limit[H3_LIMIT_SSIM_MEAN]);
    h3_say("sound    worst SNR %s dB (at least %.4g), log-spectral distance %s dB (at most %.4g)", text[H3_LIMIT_AUDIO_SNR], limit[H3_LIMIT_AUDIO_SNR],
           text[H3_LIMIT_AUDIO_LSD], limit[H3_LIMIT_AUDIO_LSD]);
}

/* Pictures and sound are named apart: "the sound fails: audio_snr_db 6.02 of seed 44, at least 20". */
static h3_status media_failed(const comparison *c)
{
    char text[400] = "";
    size_t used = 0;
    int fails[2] = {0, 0}; /* picture, sound */
    for (int i = 0; i < H3_MEDIA_LIMITS; i++) {
        const h3_compare_seed *worst = h3_compare_worst_media(c->seeds, c->count, i);
        const h3_judged *judged = &worst->media->judged[i];
        if (judged->ok) continue;
        fails[i > H3_LIMIT_SSIM_MEAN] = 1;
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s %.4g of seed %lld, at %s %.4g", used > 0 ? "; " : "", h3_limits[i].name, judged->value,
                                 (long long)worst->seed, h3_limits[i].at_least ? "least" : "most", judged->limit);
    }
    return h3_error(H3_FAILED, "%s: %s%s; see compare.json, then h3_diagnose", fails[0] && fails[1] ? "picture and sound fail" : fails[1] ? "the sound fails" : "the picture fails",
                    text, fails[0] && fails[1] ? "" : fails[1] ? "; the picture holds" : "; the sound holds");
}

static int latents_hold(const comparison *c)
{
    for (size_t i = 0; i < c->count; i++)
        if (!c->seeds[i].video.ok || !c->seeds[i].audio.ok) return 0;
    return 1;
}

static h3_status conclude(const comparison *c, int ok)
{
    const h3_compare_seed *worst = &c->seeds[0];
    double limit = c->generation.acceptance.limit[H3_LIMIT_LATENT_ERROR], velocity = 0.0;
    for (size_t i = 0; i < c->count; i++) {
        const h3_compare_figures *figures[] = {&c->seeds[i].video, &c->seeds[i].audio};
        for (int m = 0; m < 2; m++)
            if (!(figures[m]->velocity_error[figures[m]->worst_step] <= velocity))
                velocity = figures[m]->velocity_error[figures[m]->worst_step];
    }
    say_media(c);
    h3_say_timed(h3_clock() - c->stage->start,
                 "stage 5  compare            worst seed %lld: latent error %.3g video, %.3g audio (limit %.3g)  velocities %.3g%s",
                 (long long)worst->seed, worst->video.latent_error, worst->audio.latent_error, limit, velocity, ok ? "" : "  FAILED");
    if (ok) return H3_OK;
    if (c->generation.decoders.present && latents_hold(c)) return media_failed(c);
    return h3_error(
        H3_FAILED,
        "seed %lld: the candidate's %s latents are %.4g from the provider's, limit %.4g; see compare.json, then h3_diagnose",
        (long long)worst->seed, worst->worst_is_audio ? "audio" : "video", worst->worst, limit);
}

/* Rank 0 alone has figures to make. */
static h3_status judge(comparison *c)
{
    int ok = 0;
    H3_TRY(compare_all(c));
    H3_TRY(publish(c, &ok));
    return conclude(c, ok);
}

/* Not h3_stage_open: a comparison needs neither checkpoint nor operators, so a run can be compared where they are not. */
static h3_status open_run(comparison *c)
{
    h3_stage *s = c->stage;
    H3_TRY(h3_stage_plan(s, "compare"));
    if (s->ranks.rank == 0) H3_TRY(h3_contract_expect(&s->plan, s->args.run));
    H3_TRY(h3_generation_read(&c->generation, &s->plan));
    return s->ranks.rank == 0 ? h3_run_open(&s->run, s->args.run, "compare", s->plan.text, s->plan.text_size) : H3_OK;
}

static h3_status compare(comparison *c)
{
    h3_stage *s = c->stage;
    H3_TRY(h3_ranks_agree(&s->ranks, open_run(c)));
    for (int side = 0; side < SIDES; side++) H3_TRY(read_report(c, side));
    return h3_ranks_agree(&s->ranks, s->ranks.rank == 0 ? judge(c) : H3_OK);
}

static h3_status run_stage(h3_stage *s)
{
    comparison c = {.stage = s};
    h3_status status = compare(&c);
    for (size_t i = 0; i < c.count; i++) h3_compare_seed_free(&c.seeds[i]);
    free(c.seeds);
    for (int side = 0; side < SIDES; side++) {
        cJSON_Delete(c.report[side]);
        h3_run_files_free(&c.listed[side]);
    }
    h3_generation_free(&c.generation);
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
