/* Full-model section: candidate operators in every block, forward and backward, every tensor against its frozen bound. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dist/attach.h"
#include "qualify/block_tensors.h"
#include "qualify/gate.h"
#include "qualify/inputs.h"

/* A record whose digest is on its way. */
typedef struct pending {
    size_t record;
    const char *expected; /* the provider's digest */
    h3_digest_job *job;
} pending;

/* One layout on this rank: the golden of the block that the pass is in, and where its comparisons go. */
typedef struct full_flow {
    h3_gate *gate;
    const h3_plan_layout *layout;
    h3_full_record *record;
    h3_tensor_source *source;
    h3_block_tensors *golden;
    int64_t golden_block;
    int golden_parts;
    h3_plan_inputs inputs;
    h3_sink sink;
    h3_pass *pass;
    size_t count, capacity, settled;
    pending *pending;
} full_flow;

/* The golden of a block and direction; blocks come one after another, so one is enough. */
static h3_status golden_of(full_flow *flow, int64_t block, const char *name, const h3_tensor **out)
{
    int parts = strncmp(name, "node.", 5) == 0 ? H3_PART_FORWARD : H3_PART_BACKWARD;
    if (block < 0) parts = H3_PART_FORWARD | H3_PART_BACKWARD;
    if (flow->golden == NULL || flow->golden_block != block || flow->golden_parts != parts) {
        h3_block_tensors_close(flow->golden);
        H3_TRY(h3_block_tensors_open(&flow->golden, flow->source, flow->layout->name, &flow->inputs, H3_F32, block, parts));
        flow->golden_block = block;
        flow->golden_parts = parts;
    }
    return h3_block_tensors_need(out, flow->golden, name);
}

static h3_full_tensor *next_record(h3_full_record *record)
{
    if (record->count == record->capacity) {
        size_t capacity = record->capacity ? 2 * record->capacity : 512;
        void *larger = realloc(record->tensors, capacity * sizeof *record->tensors);
        if (larger == NULL) return NULL;
        record->tensors = larger;
        record->capacity = capacity;
    }
    h3_full_tensor *tensor = &record->tensors[record->count++];
    memset(tensor, 0, sizeof *tensor);
    return tensor;
}

/* The node that a tensor is made by; -1 for boundary tensors and block inputs. */
static int32_t node_of(const char *name, int64_t block)
{
    const char *dot = strrchr(name, '.');
    if (strncmp(name, "node.block", 10) == 0 || strncmp(name, "dnode.block", 11) == 0) return dot != NULL ? h3_node_find(dot + 1) : -1;
    for (int32_t node = 0; block >= 0 && node < H3_NODE_COUNT; node++) {
        for (int32_t i = 0; i < 2 && h3_nodes[node].param[i].suffix != NULL; i++) {
            char parameter[96];
            h3_node_param_name(parameter, node, i, block, 0);
            if (strncmp(name, "grad.", 5) == 0 && strcmp(name + 5, parameter) == 0) return node;
        }
    }
    return -1;
}

/* Brings the digests that are still on their way: drift is a matter of bytes. */
static h3_status settle(full_flow *flow)
{
    for (; flow->settled < flow->count; flow->settled++) {
        pending *p = &flow->pending[flow->settled];
        char digest[H3_SHA256_HEX];
        h3_digest_job *job = p->job;
        p->job = NULL;
        H3_TRY(h3_digest_job_wait(job, digest));
        flow->record->tensors[p->record].equal = strcmp(digest, p->expected) == 0;
    }
    flow->count = flow->settled = 0;
    return H3_OK;
}

static h3_status expect_digest(full_flow *flow, size_t record, const char *expected, const h3_tensor *tensor)
{
    if (flow->count == 512) H3_TRY(settle(flow));
    if (flow->count == flow->capacity) {
        void *larger = realloc(flow->pending, 512 * sizeof *flow->pending);
        if (larger == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for the full model's records");
        flow->pending = larger;
        flow->capacity = 512;
    }
    pending *p = &flow->pending[flow->count];
    *p = (pending){.record = record, .expected = expected};
    H3_TRY(h3_device_digest_start(&p->job, flow->gate->device, tensor));
    flow->count++;
    return H3_OK;
}

static h3_status on_tensor(void *user, int64_t block, const char *name, const h3_tensor *tensor)
{
    full_flow *flow = user;
    char full[240];
    const h3_tensor *expected;
    h3_figures figures;
    H3_TRY(golden_of(flow, block, name, &expected));
    const h3_threshold *threshold = h3_thresholds_find(flow->gate->thresholds, flow->layout->name, name);
    snprintf(full, sizeof full, "%s/bf16/%s", flow->layout->name, name);
    const h3_manifest_tensor *listed = h3_manifest_find(flow->gate->manifest, full);
    if (threshold == NULL || listed == NULL) return h3_error(H3_INTEGRITY, "tensor %s/%s has no bound or no digest; start a new run", flow->layout->name, name);
    H3_TRY(h3_error_on(&figures, flow->gate->device, tensor, expected));
    h3_full_tensor *record = next_record(flow->record);
    if (record == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for the full model's records");
    snprintf(record->name, sizeof record->name, "%s", threshold->name);
    record->error = figures.error;
    record->bound = threshold->bound;
    record->node = node_of(name, block);
    record->block = block;
    record->layout = flow->layout - flow->gate->plan->layouts;
    return expect_digest(flow, flow->record->count - 1, listed->digest, tensor);
}

static h3_status on_call(void *user, const h3_tap_event *event)
{
    full_flow *flow = user;
    h3_full_record *record = flow->record;
    record->calls[event->direction][event->node]++;
    if (event->report->fallback == 0 && event->report->kernel[0] != 0) return H3_OK;
    record->fallbacks[event->node]++;
    if (record->problem[0] != 0) return H3_OK;
    record->problem_node = event->node;
    snprintf(record->problem, sizeof record->problem, "block %lld node %s: %s%.90s", (long long)event->block, h3_nodes[event->node].name,
                 event->report->fallback ? "fell back to " : "does not say which kernel ran", event->report->kernel);
    return H3_OK;
}

static void close_flow(full_flow *flow, h3_model *model)
{
    h3_pass_free(flow->pass, model);
    h3_block_tensors_close(flow->golden);
    for (size_t i = flow->settled; i < flow->count; i++) h3_digest_job_wait(flow->pending[i].job, NULL);
    free(flow->pending);
    h3_plan_inputs_free(&flow->inputs);
}

/* The golden is dropped where another flow goes on. */
static h3_status leave(full_flow *flow, h3_progress *progress, const h3_model *model)
{
    h3_block_tensors_close(flow->golden);
    flow->golden = NULL;
    H3_TRY(settle(flow));
    if (progress != NULL) h3_progress_add(progress, model->block_count);
    return H3_OK;
}

static h3_status run_flows(h3_model *model, full_flow *flows, size_t count, h3_progress *progress)
{
    for (size_t i = 0; i < count; i++) {
        H3_TRY(h3_model_forward(model, &flows[i].inputs.sequence, &flows[i].sink, &flows[i].pass, NULL, NULL));
        H3_TRY(leave(&flows[i], progress, model));
    }
    for (size_t i = 0; i < count; i++) {
        H3_TRY(h3_model_backward(model, flows[i].pass, &flows[i].sink));
        H3_TRY(leave(&flows[i], progress, model));
    }
    return H3_OK;
}

h3_status h3_gate_full(h3_gate *gate, h3_progress *progress, h3_full_record *out)
{
    int64_t first, blocks;
    void *memory;
    h3_model model = {0};
    size_t count = gate->plan->layout_count;
    h3_tensor_source source = {.ranks = gate->ranks, .device = gate->device, .provider = gate->provider, .weights = gate->weights, .manifest = gate->manifest,
                               .run_folder = gate->run_folder};
    H3_TRY(h3_block_range(gate->ranks->rank, gate->ranks->count, h3_weights_config(gate->weights)->num_layers, &first, &blocks));
    H3_TRY(h3_alloc(&memory, count, sizeof(full_flow), "passes"));
    full_flow *flows = memory;
    h3_status status = h3_model_open(&model, gate->weights, gate->device, H3_BF16, gate->provider, gate->candidate->operators, first, blocks);
    for (size_t i = 0; i < count && status == H3_OK; i++) {
        flows[i].gate = gate;
        flows[i].layout = &gate->plan->layouts[i];
        flows[i].record = out;
        flows[i].source = &source;
        flows[i].sink = (h3_sink){on_tensor, on_call, &flows[i]};
        status = h3_plan_inputs_new(&flows[i].inputs, flows[i].layout, h3_weights_config(gate->weights));
    }
    if (status == H3_OK) {
        h3_ranks_attach(gate->ranks, &model);
        if (gate->candidate_end > 0) model.operators_end = gate->candidate_end;
        status = run_flows(&model, flows, count, progress);
    }
    for (size_t i = 0; i < count; i++) close_flow(&flows[i], &model);
    h3_tensor_source_close(&source);
    h3_model_close(&model);
    free(flows);
    return status;
}
