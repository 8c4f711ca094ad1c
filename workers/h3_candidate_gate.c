/* Stage 3. Needs: stages 1 and 2, operator libraries. Writes: node reports, drift, gate.json. Passes when all checks hold: build
 * identity, hashes, block 0 node by node, all blocks; the first failing section stops the gate. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gate_process.h"
#include "qualify/gate_report.h"
#include "qualify/inputs.h"
#include "qualify/node_case.h"
#include "stage.h"
#include "store/publish.h"

static const char help[] =
    "h3_candidate_gate - stage 3: does the candidate compute the model, node by node, bit by bit where it promised?\n"
    "\n"
    "  mpirun -n N h3_candidate_gate --plan FILE --run DIR [--device cpu|cuda] [--only GLOB] [--allow-dirty]\n"
    "                             [--checkpoint DIR] [--decoders DIR] [--watchdog SECONDS]\n"
    "      build identity, hashes, block 0 (17 nodes, forward and backward, every layout), then all blocks\n"
    "      writes DIR/gate.json; the last line is VALID, INVALID or PARTIAL\n"
    "  --only GLOB      runs the checks whose name matches, 'block0*' or 'block0.*.attention.*'; never accepted by stage 4;\n"
    "                   for checks of block 0 a folder with config.json, index and the shards of that block is enough\n"
    "  --checkpoint DIR the plan's checkpoint lies there and not where the plan says\n"
    "  --allow-dirty    accepts a library built from uncommitted sources; never accepted by stage 4\n"
    "  --case FILE      replays one node on a minimal case that a failed gate left in DIR/cases/\n"
    "  --list           names every check of the plan\n"
    "  --dry-run        says what would run, and runs nothing\n"
    "\n"
    "  exit codes: 0 VALID or PARTIAL, 1 INVALID, 2 usage, plan or bindings, 3 damaged or missing input, 4 environment, 75 stopped by a signal\n"
    "  example: mpirun -n 2 bin/h3_candidate_gate --plan plans/demo.json --run evidence/demo\n";

typedef struct gate_stage {
    h3_stage *stage;
    h3_manifest manifest;
    h3_thresholds thresholds;
    h3_run_files listed;
    h3_bindings candidate;
    h3_gate gate;
    h3_gate_result result;
} gate_stage;

/* Every check by name, for --list and to see that --only names some. */
static h3_status list_checks(const h3_plan *plan, const h3_bindings *candidate, int32_t device, const char *only, int print, int64_t *count)
{
    h3_gate gate = {.plan = plan, .candidate = candidate, .device_kind = device, .only = only};
    *count = 0;
    for (size_t l = 0; l < plan->layout_count; l++) {
        for (int i = 0; i < 2 * H3_NODE_COUNT; i++) {
            h3_direction direction = i < H3_NODE_COUNT ? H3_FORWARD : H3_BACKWARD;
            int32_t node = direction == H3_FORWARD ? i : 2 * H3_NODE_COUNT - 1 - i;
            for (int kind = 0; kind < H3_CHECK_KINDS; kind++) {
                char name[240];
                if (!h3_gate_wants(&gate, plan->layouts[l].name, node, direction, kind)) continue;
                h3_check_name(name, plan->layouts[l].name, node, direction, kind);
                (*count)++;
                if (print) h3_say("%s", name);
            }
        }
    }
    if (only == NULL || h3_glob(only, "full")) (*count)++;
    if (print && (only == NULL || h3_glob(only, "full"))) h3_say("full");
    if (*count == 0) return h3_error(H3_USAGE, "--only %s matches no check; see --list", only);
    return H3_OK;
}

/* --list and --dry-run look at the plan alone. */
static h3_status describe(const h3_args *args)
{
    h3_plan plan;
    h3_bindings candidate;
    int64_t count;
    if (args->plan == NULL) return h3_error(H3_USAGE, "--plan FILE is needed; see h3_candidate_gate --help");
    H3_TRY(h3_plan_read(&plan, args->plan));
    h3_plan_for_device(&plan, h3_stage_device_name(args));
    h3_status status = args->checkpoint != NULL ? h3_plan_use_checkpoint(&plan, args->checkpoint) : H3_OK;
    if (status == H3_OK) status = h3_bindings_open_available(&candidate, plan.candidate, plan.path);
    int32_t device = strcmp(h3_stage_device_name(args), "cuda") == 0 ? H3_DEVICE_CUDA : H3_DEVICE_CPU;
    if (status == H3_OK) status = list_checks(&plan, &candidate, device, args->only, args->list, &count);
    if (status == H3_OK && args->dry_run) {
        for (int32_t node = 0; node < H3_NODE_COUNT; node++)
            h3_say("node     %-18s %s", h3_nodes[node].name, candidate.operators[node] != NULL ? candidate.operators[node]->name : "unavailable");
        h3_say("would run %lld checks over %zu layout%s%s%s; nothing was run", (long long)count, plan.layout_count, plan.layout_count == 1 ? "" : "s",
               args->only != NULL ? ", only " : "", args->only != NULL ? args->only : "");
    }
    if (status == H3_OK) h3_bindings_close(&candidate);
    h3_plan_free(&plan);
    return status;
}

/* One node's isolated checks on a minimal case. */
static h3_status replay_case(const h3_args *args)
{
    int32_t node;
    h3_layout_record *record = calloc(1, sizeof *record);
    if (record == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for a case");
    h3_status status = h3_node_case_run(args->case_file, record, &node);
    if (status == H3_OK) {
        int failed = h3_gate_first_failing(record) >= 0;
        h3_gate_say_node(record, node);
        h3_say("%s  %s, replayed alone", failed ? "INVALID" : "PARTIAL", h3_nodes[node].name);
        if (failed) status = h3_error(H3_FAILED, "%s", "");
    }
    free(record);
    return status;
}

/* Section 1. A library that cannot be accepted is a failed section; a wrong interface or unknown operator is a usage error. */
static h3_status check_build(gate_stage *g)
{
    h3_stage *s = g->stage;
    const char *dirty = "";
    int64_t count;
    h3_error(H3_OK, "%s", "");
    h3_status status = h3_bindings_open_available(&g->candidate, s->plan.candidate, s->plan.path);
    if (status != H3_OK && status != H3_FAILED) return status;
    H3_TRY(h3_bindings_require(&g->candidate, s->device->kind));
    g->result.section[H3_SECTION_BUILD] = H3_SECTION_PASSED;
    for (int32_t i = g->candidate.library_count - 1; i >= 0; i--) {
        if ((g->candidate.libraries[i].table->build & H3_BUILD_DIRTY) == 0) continue;
        g->result.dirty = 1;
        const char *slash = strrchr(g->candidate.libraries[i].path, '/');
        dirty = slash != NULL ? slash + 1 : g->candidate.libraries[i].path;
    }
    if (h3_error_text()[0] != 0) snprintf(g->result.build_problem, sizeof g->result.build_problem, "%.1000s", h3_error_text());
    else if (g->result.dirty && !s->args.allow_dirty)
        snprintf(g->result.build_problem, sizeof g->result.build_problem, "operator library %.200s was built from uncommitted sources; commit and rebuild, or use --allow-dirty", dirty);
    if (g->result.build_problem[0] != 0) g->result.section[H3_SECTION_BUILD] = H3_SECTION_FAILED;
    return g->result.build_problem[0] != 0 ? H3_OK : list_checks(&s->plan, &g->candidate, s->device->kind, s->args.only, 0, &count);
}

/* Section 2, rank 0: every byte that this run reads. */
static h3_status check_hashes(gate_stage *g)
{
    h3_stage *s = g->stage;
    if (s->ranks.rank == 0) {
        H3_TRY(h3_run_verify_all(&s->run, &g->listed, ""));
        H3_TRY(s->block0_only ? h3_inputs_block(&g->manifest, s->weights, 0) : h3_inputs_model(&g->manifest, s->weights, &s->watch, NULL));
    }
    g->result.section[H3_SECTION_HASHES] = H3_SECTION_PASSED;
    return H3_OK;
}

/* Whether --only leaves anything of section 3. */
static int wants_block0(const gate_stage *g)
{
    const char *only = g->stage->args.only;
    int64_t count = 0;
    if (only == NULL) return 1;
    return list_checks(&g->stage->plan, &g->candidate, g->stage->device->kind, only, 0, &count) == H3_OK && count > (h3_glob(only, "full") ? 1 : 0);
}

/* Section 3: the layouts are shared out over the ranks; records come back as bytes. */
static h3_status check_block0(gate_stage *g)
{
    h3_stage *s = g->stage;
    double start = h3_clock();
    h3_gate_result *result = &g->result;
    void **all = NULL;
    size_t *sizes = NULL;
    h3_status status = H3_OK;
    if (!wants_block0(g)) {
        result->section[H3_SECTION_BLOCK0] = H3_SECTION_LEFT_OUT;
        return H3_OK;
    }
    for (size_t l = 0; l < result->layout_count && status == H3_OK; l++) {
        if ((int)(l % (size_t)s->ranks.count) != s->ranks.rank) continue;
        status = h3_gate_block0(&g->gate, &s->plan.layouts[l], &result->layouts[l]);
    }
    if (status == H3_OK) status = h3_gate_second_process(&g->gate, &s->args, result->layouts, s->ranks.rank, s->ranks.count, h3_clock() - start);
    if (status == H3_ENVIRONMENT) h3_stage_relay(s, status); /* the others may be at their layouts for long */
    H3_TRY(h3_ranks_agree(&s->ranks, status));
    H3_TRY(h3_ranks_gather(&s->ranks, result->layouts, result->layout_count * sizeof *result->layouts, &all, &sizes));
    for (int rank = 0; all != NULL && rank < s->ranks.count; rank++) {
        const h3_layout_record *records = all[rank];
        for (size_t l = 0; l < result->layout_count; l++)
            if ((int)(l % (size_t)s->ranks.count) == rank) result->layouts[l] = records[l];
        free(all[rank]);
    }
    free(all);
    free(sizes);
    result->section[H3_SECTION_BLOCK0] = H3_SECTION_PASSED;
    h3_gate_judge(result);
    /* Only rank 0 has all records; everybody follows its judgement. */
    int32_t state = (int32_t)result->section[H3_SECTION_BLOCK0];
    void *data = &state;
    size_t size = sizeof state;
    H3_TRY(h3_ranks_broadcast(&s->ranks, 0, &data, &size));
    if (data != &state) {
        memcpy(&state, data, sizeof state);
        free(data);
    }
    result->section[H3_SECTION_BLOCK0] = (h3_section_state)state;
    return H3_OK;
}

/* Adds another rank's part of the full model. */
static h3_status merge_full(h3_full_record *to, const h3_full_record *head, const h3_full_tensor *tensors)
{
    void *larger = realloc(to->tensors, (to->count + head->count) * sizeof *to->tensors);
    if (larger == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for the full model's records");
    to->tensors = larger;
    memcpy(to->tensors + to->count, tensors, head->count * sizeof *tensors);
    to->count += head->count;
    for (int32_t node = 0; node < H3_NODE_COUNT; node++) {
        to->calls[0][node] += head->calls[0][node];
        to->calls[1][node] += head->calls[1][node];
        to->fallbacks[node] += head->fallbacks[node];
    }
    int earlier = head->stopped != 0 && (to->stopped == 0 || head->stopped < to->stopped);
    if (earlier || (to->stopped == 0 && to->problem[0] == 0)) {
        memcpy(to->problem, head->problem, sizeof to->problem);
        to->problem_node = head->problem_node;
        to->stopped = head->stopped;
    }
    return H3_OK;
}

static h3_status gather_full(gate_stage *g)
{
    h3_ranks *ranks = &g->stage->ranks;
    h3_full_record *full = &g->result.full;
    size_t bytes = full->count * sizeof *full->tensors, *sizes = NULL;
    void **all = NULL;
    char *packed = malloc(sizeof *full + bytes);
    h3_status status = packed == NULL ? h3_error(H3_ENVIRONMENT, "out of memory for the full model's records") : H3_OK;
    H3_TRY(h3_ranks_agree(ranks, status));
    memcpy(packed, full, sizeof *full);
    if (bytes > 0) memcpy(packed + sizeof *full, full->tensors, bytes);
    status = h3_ranks_gather(ranks, packed, sizeof *full + bytes, &all, &sizes);
    free(packed);
    for (int rank = 0; all != NULL && rank < ranks->count; rank++) {
        h3_full_record head;
        if (rank > 0 && status == H3_OK) {
            memcpy(&head, all[rank], sizeof head);
            status = merge_full(full, &head, (const h3_full_tensor *)(const void *)((const char *)all[rank] + sizeof head));
        }
        free(all[rank]);
    }
    free(all);
    free(sizes);
    return h3_ranks_agree(ranks, status);
}

/* Every node of every block in every layout, once forward and once backward; every frozen bound met by a tensor. */
static void check_counts(gate_stage *g)
{
    h3_full_record *full = &g->result.full;
    int64_t expected = g->result.blocks * (int64_t)g->result.layout_count;
    if (full->stopped != 0) { /* how far the others came then depends on how many there were */
        full->count = 0;
        memset(full->calls, 0, sizeof full->calls);
        memset(full->fallbacks, 0, sizeof full->fallbacks);
    }
    for (int32_t node = 0; node < H3_NODE_COUNT && full->problem[0] == 0; node++)
        if (full->calls[0][node] != expected || full->calls[1][node] != expected) {
            full->problem_node = node;
            snprintf(full->problem, sizeof full->problem, "node %s ran %lld times forward and %lld backward; %lld are needed", h3_nodes[node].name,
                     (long long)full->calls[0][node], (long long)full->calls[1][node], (long long)expected);
        }
    if (full->problem[0] == 0 && full->count != g->thresholds.count) {
        full->problem_node = -1;
        snprintf(full->problem, sizeof full->problem, "%zu tensors were compared, %zu bounds are frozen", full->count, g->thresholds.count);
    }
}

/* An operator has failed on this rank: notes what, and where it stands in the order in which one rank alone would have worked: layout by layout
 * forward, then layout by layout backward. Of several ranks' failures the first in this order is the one that a rank alone
 * would have met, and the others that come before it have not kept it from being met: a rank waits only for what comes earlier. */
static void note_stop(gate_stage *g, int64_t first, int64_t blocks)
{
    h3_full_record *full = &g->result.full;
    char node[32] = "";
    long long block;
    int64_t layouts = (int64_t)g->result.layout_count, all = g->result.blocks;
    int64_t forward = full->calls[H3_FORWARD][H3_NODE_RESIDUAL_MLP], backward = full->calls[H3_BACKWARD][H3_NODE_ADALN];
    int back = forward >= layouts * blocks; /* finished blocks: their last nodes have run */
    int64_t done = back ? backward : forward, place = back ? all - first - blocks + done % blocks : first + done % blocks;
    full->stopped = 1 + (back * layouts + done / blocks) * all + place;
    snprintf(full->problem, sizeof full->problem, "%.239s", h3_error_text());
    full->problem_node = sscanf(full->problem, "block %lld node %31[a-z0-9_]", &block, node) == 2 ? h3_node_find(node) : -1;
}

/* Section 4. */
static h3_status check_full(gate_stage *g)
{
    h3_stage *s = g->stage;
    h3_progress progress;
    if (s->args.only != NULL && !h3_glob(s->args.only, "full")) {
        g->result.section[H3_SECTION_FULL] = H3_SECTION_LEFT_OUT;
        return H3_OK;
    }
    if (g->result.section[H3_SECTION_BLOCK0] != H3_SECTION_PASSED && g->result.section[H3_SECTION_BLOCK0] != H3_SECTION_LEFT_OUT) return H3_OK;
    int64_t first, blocks;
    H3_TRY(h3_block_range(s->ranks.rank, s->ranks.count, g->result.blocks, &first, &blocks));
    h3_progress_start(&progress, "stage 3  full model", "blocks", 2 * blocks * (int64_t)g->result.layout_count);
    h3_status status = h3_gate_full(&g->gate, &progress, &g->result.full);
    if (status == H3_FAILED && !h3_ranks_deserted(&s->ranks)) note_stop(g, first, blocks);
    if (status == H3_FAILED) status = H3_OK;
    if (status == H3_OK) status = h3_ranks_part(&s->ranks);
    H3_TRY(h3_stage_relay(s, status));
    h3_progress_end(&progress);
    H3_TRY(gather_full(g));
    if (s->ranks.rank == 0) check_counts(g);
    g->result.section[H3_SECTION_FULL] = H3_SECTION_PASSED;
    return H3_OK;
}

static h3_status build_json(const gate_stage *g, cJSON **out)
{
    cJSON *build = cJSON_CreateObject(), *candidates = cJSON_AddArrayToObject(build, "candidate"), *identity;
    if (candidates == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for a build identity");
    for (int32_t i = 0; i < g->candidate.library_count; i++) {
        H3_TRY(h3_library_identity(&g->candidate.libraries[i], &identity));
        cJSON_AddItemToArray(candidates, identity);
    }
    H3_TRY(h3_library_identity(&g->stage->provider, &identity));
    cJSON_AddItemToObject(build, "provider", identity);
    *out = build;
    return H3_OK;
}

static h3_status publish(gate_stage *g)
{
    h3_stage *s = g->stage;
    cJSON *json, *build = NULL;
    char path[H3_PATH_MAX], sha256[H3_SHA256_HEX];
    int64_t size;
    H3_TRY(h3_gate_json(&json, &g->result, &s->plan, &g->candidate, &s->provider));
    h3_status status = h3_path(path, "%s/gate.json", s->args.run);
    if (status == H3_OK) status = h3_publish_json(path, json, &size, sha256);
    cJSON_Delete(json);
    H3_TRY(status);
    H3_TRY(h3_run_output(&s->run, "gate.json", size, sha256));
    for (size_t l = 0; l < g->result.layout_count; l++) {
        const h3_layout_record *layout = &g->result.layouts[l];
        if (layout->case_path[0] != 0) H3_TRY(h3_run_output(&s->run, layout->case_path, layout->case_size, layout->case_sha256));
    }
    H3_TRY(build_json(g, &build));
    return h3_run_finish(&s->run, g->result.verdict, build);
}

static void say_verdict(const gate_stage *g)
{
    const h3_gate_result *r = &g->result;
    char checks[64];
    if (r->only == NULL) snprintf(checks, sizeof checks, "%d nodes x %lld", H3_NODE_COUNT, (long long)(r->checks / H3_NODE_COUNT));
    else snprintf(checks, sizeof checks, "%lld", (long long)r->checks);
    h3_gate_say(r, &g->candidate);
    h3_stage_say_devices(g->stage);
    if (r->checks > 0)
        h3_say_timed(h3_clock() - g->stage->start, "stage 3  candidate gate     %s checks, %lld blocks, %lld bounds", checks, (long long)r->blocks, (long long)r->bounds);
    if (strcmp(r->verdict, "VALID") == 0) h3_say("VALID    %lld checks and %lld bounds hold", (long long)r->checks, (long long)r->bounds);
    else if (strcmp(r->verdict, "PARTIAL") == 0) h3_say("PARTIAL  %lld checks and %lld bounds hold; %s, so this is no acceptance", (long long)r->checks, (long long)r->bounds,
                                                        r->only != NULL ? "not everything ran" : "a dirty library was allowed");
    else if (r->failure_layout != NULL && r->failure_layout->case_path[0] != 0) {
        h3_say("replay             bin/h3_candidate_gate --case %s/%s", g->stage->args.run, r->failure_layout->case_path);
        h3_say("INVALID  %s: %s", h3_nodes[r->failure_node].name, r->first_failed_check);
    } else if (r->failure_node >= 0) h3_say("INVALID  %s: %s", h3_nodes[r->failure_node].name, r->first_failed_check);
    else h3_say("INVALID  %s: %s", r->first_failed_check[0] ? r->first_failed_check : "not everything ran", r->first_failed_detail);
}

static h3_status judge(gate_stage *g)
{
    h3_stage *s = g->stage;
    h3_status status = H3_OK;
    int32_t invalid = 0;
    void *data = &invalid;
    size_t size = sizeof invalid;
    if (s->ranks.rank == 0) {
        h3_gate_judge(&g->result);
        invalid = strcmp(g->result.verdict, "INVALID") == 0;
        status = publish(g);
        if (status == H3_OK) say_verdict(g);
    }
    H3_TRY(h3_ranks_agree(&s->ranks, status));
    H3_TRY(h3_ranks_broadcast(&s->ranks, 0, &data, &size));
    if (data != &invalid) {
        memcpy(&invalid, data, sizeof invalid);
        free(data);
    }
    return invalid ? h3_error(H3_FAILED, "%s", "") : H3_OK; /* the verdict line has said it */
}

static h3_status run_gate(gate_stage *g)
{
    h3_stage *s = g->stage;
    char sha256[H3_SHA256_HEX];
    void *memory;
    H3_TRY(h3_inputs_manifest(&s->ranks, &s->run, &s->plan, &s->provider, &g->manifest, sha256, &g->listed));
    H3_TRY(h3_inputs_thresholds(&s->ranks, &s->run, &s->plan, &s->provider, sha256, &g->thresholds));
    H3_TRY(h3_alloc(&memory, s->plan.layout_count, sizeof *g->result.layouts, "layout records"));
    g->result.layouts = memory;
    g->result.blocks = h3_weights_config(s->weights)->num_layers;
    g->result.only = s->args.only;
    g->result.allow_dirty = s->args.allow_dirty;
    H3_TRY(h3_ranks_agree(&s->ranks, check_build(g)));
    H3_TRY(h3_gate_same_libraries(&s->ranks, &s->provider, &g->candidate)); /* else one section more may run here than there */
    int built = g->result.section[H3_SECTION_BUILD] == H3_SECTION_PASSED;
    if (built) H3_TRY(h3_ranks_agree(&s->ranks, check_hashes(g)));
    H3_TRY(h3_ranks_agree(&s->ranks, s->ranks.rank == 0 ? h3_run_begin(&s->run) : H3_OK)); /* nothing moves before all is verified */
    if (built) {
        g->result.layout_count = s->plan.layout_count;
        g->gate = (h3_gate){.ranks = &s->ranks, .plan = &s->plan, .weights = s->weights, .device = s->device, .device_kind = s->device->kind,
                            .provider = &s->provider, .candidate = &g->candidate, .manifest = &g->manifest, .thresholds = &g->thresholds, .run_folder = s->args.run, .only = s->args.only};
        H3_TRY(h3_stage_measure(s));
        H3_TRY(check_block0(g));
        H3_TRY(check_full(g));
        s->meter.elsewhere = g->gate.second_process;
        H3_TRY(h3_stage_measured(s));
    }
    return judge(g);
}

static h3_status run_stage(h3_stage *s)
{
    gate_stage g = {.stage = s};
    H3_TRY(h3_stage_open(s, "candidate_gate"));
    h3_status status = run_gate(&g);
    free(g.result.layouts);
    free(g.result.full.tensors);
    free(g.gate.digests);
    h3_bindings_close(&g.candidate);
    h3_manifest_free(&g.manifest);
    h3_thresholds_free(&g.thresholds);
    h3_run_files_free(&g.listed);
    return status;
}

int main(int argc, char **argv)
{
    h3_stage s = {.hands_on = 1};
    int done;
    h3_status status = h3_args_parse(&s.args, argc, argv, H3_ARG_PLAN | H3_ARG_GATE, help, &done);
    if (status != H3_OK || done) return h3_exit(s.args.program, status);
    if (s.args.list || s.args.dry_run) return h3_exit(s.args.program, describe(&s.args));
    if (s.args.case_file != NULL) return h3_exit(s.args.program, replay_case(&s.args));
    s.block0_only = s.args.only != NULL && !h3_glob(s.args.only, "full");
    if (s.args.internal != NULL) return h3_exit(s.args.program, h3_gate_replay(&s.args));
    return h3_stage_main(&s, argc, argv, run_stage);
}
