/* Stage 4. Needs: the reference pass; the candidate's side also a VALID gate of the same plan, and the libraries it qualified.
 * Writes: data/generate/<side>/seed<N>.h5 (noise, velocities, latents), with a plan that has decoders data/generate/<side>/seed<N>/ (frames as PNG, audio.wav),
 * and generate-<side>.json. Passes when all seeds finish, finite; with --repeat every velocity digest must come out again. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "dist/attach.h"
#include "media/video_ops_cuda.h"
#include "qualify/generation_media.h"
#include "qualify/inputs.h"
#include "qualify/preflight.h"
#include "stage.h"

static const char help[] =
    "h3_generate - stage 4: sample the contract's seeds with the provider's or the candidate's operators\n"
    "\n"
    "  mpirun -n N h3_generate --side provider|candidate --plan FILE --run DIR [--repeat] [--resume] [--device cpu|cuda]\n"
    "                          [--checkpoint DIR] [--decoders DIR] [--watchdog SECONDS]\n"
    "      reads the plan's generation contract and conditioning, writes DIR/data/generate/SIDE/ and DIR/generate-SIDE.json\n"
    "      with decoders in the plan, latents become pictures and sound: frames as PNG, audio.wav\n"
    "      N from 1 to the number of blocks; the bytes written are the same for every N\n"
    "\n"
    "  --side provider   needs the reference pass\n"
    "  --side candidate  needs a VALID candidate gate, and runs only the libraries that it qualified\n"
    "  --repeat          samples every seed twice; all velocity digests must be equal\n"
    "  --resume          goes on after the last saved step of an interrupted run (SIGUSR1, SIGTERM: exit 75), to the same bytes;\n"
    "                    seeds that are decoded already stay\n"
    "  --decoders DIR    the folders of the plan's decoders lie in DIR\n"
    "\n"
    "  exit codes: 0 passed, 1 not finite, not repeatable or a fallback, 2 usage or plan, 3 damaged input or no VALID gate,\n"
    "              4 environment, 75 stopped by a signal\n"
    "  example: mpirun -n 2 bin/h3_generate --side provider --repeat --plan plans/demo.json --run evidence/demo\n"
    "  next:    bin/h3_candidate_gate, then --side candidate, then bin/h3_compare\n";

typedef struct generate {
    h3_stage *stage;
    h3_generation generation;
    h3_generation_inputs inputs;
    h3_bindings bindings; /* the candidate's */
    h3_manifest manifest;
    cJSON *identity;  /* of the weights; rank 0 */
    h3_resume resume; /* rank 0 */
    h3_model model;
    h3_sampling sampling;
    const h3_operator *operators[H3_NODE_COUNT]; /* the model's; it is closed before decoding */
    h3_decoder_weights decoder_weights;
    cJSON *decoders; /* identity; rank 0, NULL without decoders */
    h3_generation_media media;
    h3_generation_record record;
} generate;

static int is_candidate(const h3_stage *s) { return strcmp(s->args.side, "candidate") == 0; }
static int is_rank_0(const generate *g) { return g->stage->ranks.rank == 0; }

/* What the plan names, on every rank. */
static h3_status read_plan(generate *g)
{
    const h3_plan *plan = &g->stage->plan;
    if (is_rank_0(g)) H3_TRY(h3_contract_expect(plan, g->stage->args.run));
    if (is_rank_0(g)) H3_TRY(h3_preflight_preview(plan));
    H3_TRY(h3_generation_read(&g->generation, plan));
    if (is_candidate(g->stage)) H3_TRY(h3_bindings_open(&g->bindings, plan->candidate, plan->path));
    H3_TRY(h3_bindings_require(&g->bindings, g->stage->device->kind));
    return h3_generation_inputs_new(&g->inputs, &g->generation, h3_weights_config(g->stage->weights));
}

/* Collective. The reference manifest, and the run's copy of the contract. */
static h3_status check_reference(generate *g)
{
    h3_stage *s = g->stage;
    char sha256[H3_SHA256_HEX];
    h3_run_files listed = {0};
    h3_status status = h3_inputs_manifest(&s->ranks, &s->run, &s->plan, &s->provider, &g->manifest, sha256, &listed);
    if (status == H3_OK)
        status = h3_ranks_agree(&s->ranks, is_rank_0(g) ? h3_run_verify(&s->run, &listed, H3_CONTRACT_COPY) : H3_OK);
    h3_run_files_free(&listed);
    return status;
}

/* Collective. The gate's verdict counts for the libraries that it saw, and no others. */
static h3_status check_gate(generate *g)
{
    h3_stage *s = g->stage;
    cJSON *gate = NULL;
    char *text, sha256[H3_SHA256_HEX];
    const char *verdict = "";
    size_t size;
    H3_TRY(h3_inputs_file(&s->ranks, &s->run, "candidate_gate", "gate.json", &text, &size, sha256, NULL));
    h3_status status = h3_json_parse(&gate, text, size, "gate.json", H3_INTEGRITY);
    free(text);
    if (status == H3_OK) status = h3_json_string(&verdict, gate, "verdict", "gate.json", H3_INTEGRITY);
    if (status == H3_OK && strcmp(verdict, "VALID") != 0)
        status =
            h3_error(H3_INTEGRITY, "gate.json says %.20s, its stage.json that it passed; run h3_candidate_gate again", verdict);
    if (status == H3_OK) status = h3_generation_check_gate(gate, &g->bindings, &s->provider, "gate.json");
    cJSON_Delete(gate);
    return h3_ranks_agree(&s->ranks, status);
}

static int has_decoders(const generate *g) { return g->generation.decoders.present; }

/* On every rank: the decoders open and fit the model. */
static h3_status open_decoders(generate *g)
{
    if (!has_decoders(g)) return H3_OK;
    H3_TRY(h3_decoders_open(&g->decoder_weights, &g->generation.decoders));
    H3_TRY(h3_decoders_fit(&g->media.shape, &g->decoder_weights, h3_weights_config(g->stage->weights), &g->generation.layout));
    return h3_preflight_media(&g->media.shape, &g->generation.decoders, &g->decoder_weights, g->stage->device);
}

/* The model must be the one that the reference pass ran, the decoders those that the plan names. */
static h3_status check_model(generate *g)
{
    H3_TRY(h3_inputs_model(&g->manifest, g->stage->weights, &g->stage->watch, &g->identity));
    H3_TRY(h3_generation_model(&g->generation, g->identity));
    g->stage->hashing = (h3_progress){0};
    if (has_decoders(g))
        H3_TRY(h3_decoders_identity(&g->decoders, &g->generation.decoders, &g->decoder_weights, g->stage->device, &g->media.shape, &g->stage->watch));
    return h3_generation_check_space(&g->generation, &g->inputs, has_decoders(g) ? &g->media.shape : NULL, g->stage->args.run);
}

/* Rank 0, which draws the noise. Keyframes that the conditioning file has as pictures become latents. */
static h3_status encode_keyframes(generate *g)
{
    const h3_video_ops *ops;
    if (!h3_generation_has_pictures(&g->inputs) || !has_decoders(g)) return H3_OK; /* without decoders the start says so */
    H3_TRY(h3_video_ops_for(&ops, g->stage->device));
    return h3_generation_encode(&g->inputs, &g->decoder_weights.video, &g->generation.decoders.tiling, g->stage->device, ops);
}

static h3_status open_model(generate *g)
{
    h3_stage *s = g->stage;
    int64_t first, count;
    H3_TRY(h3_block_range(s->ranks.rank, s->ranks.count, h3_weights_config(s->weights)->num_layers, &first, &count));
    H3_TRY(h3_model_open(&g->model, s->weights, s->device, H3_BF16, &s->provider, is_candidate(s) ? g->bindings.operators : NULL, first, count));
    h3_ranks_attach(&s->ranks, &g->model);
    memcpy(g->operators, g->model.operators, sizeof g->operators);
    return h3_sampling_new(&g->sampling, &g->generation, &g->inputs, &g->model, &s->ranks, s->args.repeat);
}

/* Whatever is wrong with a saved state, what to do is the same. */
static h3_status resumed(h3_status status)
{
    return status == H3_INTEGRITY ? h3_error_context(status, "cannot resume (run without --resume to start again)") : status;
}

/* Rank 0. The state of an interrupted run is taken up or dropped; then the outputs of an earlier attempt make room. */
static h3_status begin(generate *g)
{
    h3_stage *s = g->stage;
    const char *note = NULL;
    int64_t step = 0;
    g->record = (h3_generation_record){
        s->args.side, s->args.run, &s->plan, &g->generation, g->identity, &s->provider, is_candidate(s) ? &g->bindings : NULL,
        g->operators, s->args.repeat, g->decoders, NULL};
    H3_TRY(h3_resume_open(&g->resume, &g->record, &s->run));
    if (!s->args.resume) H3_TRY(h3_resume_remove(&g->resume));
    else H3_TRY(resumed(h3_resume_load(&g->resume, &g->sampling, &step, &note)));
    if (note != NULL) h3_say("resume   %s", note);
    else if (s->args.resume) h3_say("resume   %lld of %lld steps are done", (long long)step, (long long)g->sampling.steps);
    g->sampling.save = h3_resume_save;
    g->sampling.user = &g->resume;
    return h3_run_begin(&s->run);
}

/* Rank 0. Which seeds an interrupted run has decoded already. */
static h3_status begin_media(generate *g)
{
    size_t taken;
    if (!g->stage->args.resume) return H3_OK;
    H3_TRY(resumed(h3_generation_media_resume(&g->media, &taken)));
    if (taken > 0) h3_say("resume   %zu of %zu seeds are decoded", taken, g->media.count);
    return H3_OK;
}

/* Where the time of decoding went; other ranks had about as much. */
static void say_spent(const generate *g)
{
    if (g->media.spent.seeds == 0) return;
    h3_say("decode   rank 0: %d seed%s, weights %.2f s, video %.2f s, sound %.2f s, files %.2f s beside", g->media.spent.seeds, g->media.spent.seeds == 1 ? "" : "s",
           g->media.spent.open, g->media.spent.video, g->media.spent.sound, g->media.spent.files);
}

/* Collective. Pictures and sound of every seed. The transformer makes room first. */
static h3_status decode(generate *g)
{
    h3_stage *s = g->stage;
    if (!has_decoders(g)) return H3_OK;
    h3_model_close(&g->model);
    g->media = (h3_generation_media){.generation = &g->generation, .sampling = &g->sampling, .weights = &g->decoder_weights, .device = s->device, .ranks = &s->ranks,
                                     .program = s->args.program, .run_folder = s->args.run, .side = s->args.side, .resume = is_rank_0(g) ? &g->resume : NULL,
                                     .shape = g->media.shape};
    h3_status status = h3_generation_media_new(&g->media, g->generation.seed_count);
    if (status == H3_OK && is_rank_0(g) && g->sampling.first_step < g->sampling.steps) status = h3_resume_save(&g->resume, &g->sampling, g->sampling.steps);
    if (status == H3_OK && is_rank_0(g)) status = begin_media(g);
    H3_TRY(h3_ranks_agree(&s->ranks, status));
    H3_TRY(h3_generation_media_run(&g->media));
    say_spent(g);
    g->record.media = &g->media;
    return H3_OK;
}

/* Collective. All ranks start at the step that rank 0 found. */
static h3_status share_first_step(generate *g)
{
    void *data = &g->sampling.first_step;
    size_t size = sizeof g->sampling.first_step;
    H3_TRY(h3_ranks_broadcast(&g->stage->ranks, 0, &data, &size));
    if (is_rank_0(g)) return H3_OK;
    memcpy(&g->sampling.first_step, data, sizeof g->sampling.first_step);
    free(data);
    return H3_OK;
}

static h3_status build_identity(const generate *g, cJSON *build)
{
    cJSON *identity;
    H3_TRY(h3_library_identity(&g->stage->provider, &identity));
    cJSON_AddItemToObject(build, "provider", identity);
    cJSON *libraries = cJSON_AddArrayToObject(build, "libraries");
    for (int32_t i = 0; i < g->bindings.library_count; i++) {
        H3_TRY(h3_library_identity(&g->bindings.libraries[i], &identity));
        cJSON_AddItemToArray(libraries, identity);
    }
    return H3_OK;
}

static h3_status finish(generate *g)
{
    cJSON *build = cJSON_CreateObject();
    if (build == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for a stage record");
    h3_status status = h3_generation_publish(&g->record, &g->sampling, &g->stage->run);
    if (status == H3_OK) status = h3_resume_remove(&g->resume);
    if (status == H3_OK) status = build_identity(g, build);
    if (status == H3_OK) return h3_run_finish(&g->stage->run, "passed", build);
    cJSON_Delete(build);
    return status;
}

static void say_summary(const generate *g)
{
    char seeds[H3_MAX_SEEDS * 12 + 1] = "";
    size_t used = 0;
    for (size_t i = 0; i < g->generation.seed_count; i++)
        used += (size_t)snprintf(seeds + used, sizeof seeds - used, " %lld", (long long)g->generation.seeds[i]);
    const h3_media_shape *shape = &g->media.shape;
    char media[120] = "";
    if (has_decoders(g))
        snprintf(media, sizeof media, "  %lld frames of %lldx%lld, %.3g s of sound", (long long)shape->frames, (long long)shape->width, (long long)shape->height,
                 (double)shape->samples / (double)shape->rate);
    h3_say_timed(h3_clock() - g->stage->start, "stage 4  generate %-9s seeds%s  %lld/%lld steps%s%s", g->stage->args.side, seeds,
                 (long long)g->sampling.steps, (long long)g->sampling.steps, g->stage->args.repeat ? "  repeat equal" : "", media);
}

static h3_status run_generate(generate *g)
{
    h3_stage *s = g->stage;
    H3_TRY(h3_stage_open(s, is_candidate(s) ? "generate_candidate" : "generate_provider"));
    H3_TRY(h3_ranks_agree(&s->ranks, read_plan(g)));
    H3_TRY(check_reference(g));
    if (is_candidate(s)) H3_TRY(check_gate(g));
    H3_TRY(h3_ranks_agree(&s->ranks, open_decoders(g)));
    H3_TRY(h3_ranks_agree(&s->ranks, is_rank_0(g) ? check_model(g) : H3_OK));
    H3_TRY(h3_ranks_agree(&s->ranks, is_rank_0(g) ? encode_keyframes(g) : H3_OK));
    H3_TRY(h3_ranks_agree(&s->ranks, open_model(g)));
    H3_TRY(h3_ranks_agree(&s->ranks, is_rank_0(g) ? begin(g) : H3_OK));
    H3_TRY(share_first_step(g));
    g->sampling.title = is_candidate(s) ? "stage 4  generate candidate" : "stage 4  generate provider";
    H3_TRY(h3_stage_measure(s));
    const double start = h3_clock();
    H3_TRY(h3_sampling_run(&g->sampling));
    if (has_decoders(g) && g->sampling.first_step < g->sampling.steps)
        h3_say("sample   %lld steps of %zu trajectories in %.2f s", (long long)(g->sampling.steps - g->sampling.first_step), g->sampling.flow_count, h3_clock() - start);
    H3_TRY(h3_stage_measured(s));
    H3_TRY(decode(g));
    H3_TRY(h3_ranks_agree(&s->ranks, is_rank_0(g) ? finish(g) : H3_OK));
    h3_stage_say_devices(s);
    say_summary(g);
    return H3_OK;
}

static h3_status run_stage(h3_stage *s)
{
    generate g = {.stage = s};
    h3_status status = run_generate(&g);
    h3_generation_media_free(&g.media);
    h3_decoders_close(&g.decoder_weights);
    cJSON_Delete(g.decoders);
    h3_resume_close(&g.resume);
    h3_sampling_free(&g.sampling);
    h3_model_close(&g.model);
    h3_manifest_free(&g.manifest);
    cJSON_Delete(g.identity);
    h3_generation_inputs_free(&g.inputs);
    h3_bindings_close(&g.bindings);
    h3_generation_free(&g.generation);
    return status;
}

int main(int argc, char **argv)
{
    h3_stage s = {.resumable = 1, .hands_on = 1};
    int done;
    h3_status status = h3_args_parse(&s.args, argc, argv, H3_ARG_PLAN | H3_ARG_SIDE, help, &done);
    if (status == H3_OK && !done && s.args.side == NULL)
        status = h3_error(H3_USAGE, "--side provider|candidate is needed; see h3_generate --help");
    if (status != H3_OK || done) return h3_exit(s.args.program, status);
    return h3_stage_main(&s, argc, argv, run_stage);
}
