/* Full-model section: candidate operators in every block, forward and backward, every tensor against its frozen bound. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dist/attach.h"
#include "qualify/gate.h"
#include "qualify/inputs.h"

/* One layout's golden artifacts on this rank, and where its comparisons go. */
typedef struct full_flow {
    h3_gate *gate;
    const h3_plan_layout *layout;
    h3_full_record *record;
    int64_t first_block, block_count;
    h3_artifact input, output, *blocks;
    h3_plan_inputs inputs;
    h3_sink sink;
    h3_pass *pass;
} full_flow;

static h3_status golden(const full_flow *flow, int64_t block, h3_artifact *out)
{
    return h3_inputs_artifact(out, flow->gate->manifest, flow->gate->run_folder, flow->layout->name, H3_F32, block);
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

static h3_status on_tensor(void *user, int64_t block, const char *name, const h3_tensor *tensor)
{
    full_flow *flow = user;
    char full[240], digest[H3_SHA256_HEX];
    const h3_tensor *expected;
    h3_figures figures;
    const h3_artifact *artifact = block == H3_INPUT_SIDE ? &flow->input : block == H3_OUTPUT_SIDE ? &flow->output : &flow->blocks[block - flow->first_block];
    H3_TRY(h3_artifact_need(&expected, artifact, name));
    const h3_threshold *threshold = h3_thresholds_find(flow->gate->thresholds, flow->layout->name, name);
    snprintf(full, sizeof full, "%s/bf16/%s", flow->layout->name, name);
    const h3_manifest_tensor *listed = h3_manifest_find(flow->gate->manifest, full);
    if (threshold == NULL || listed == NULL) return h3_error(H3_INTEGRITY, "tensor %s/%s has no bound or no digest; start a new run", flow->layout->name, name);
    H3_TRY(h3_figures_of(&figures, tensor, expected, 1, 1));
    H3_TRY(h3_digest(digest, tensor->data, h3_tensor_bytes(tensor)));
    h3_full_tensor *record = next_record(flow->record);
    if (record == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for the full model's records");
    snprintf(record->name, sizeof record->name, "%s", threshold->name);
    record->error = figures.error;
    record->bound = threshold->bound;
    record->equal = strcmp(digest, listed->digest) == 0;
    record->node = node_of(name, block);
    record->block = block;
    record->layout = flow->layout - flow->gate->plan->layouts;
    return H3_OK;
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

static h3_status open_flow(full_flow *flow, const h3_model *model)
{
    void *memory;
    flow->sink = (h3_sink){on_tensor, on_call, flow};
    flow->first_block = model->first_block;
    flow->block_count = model->block_count;
    H3_TRY(h3_plan_inputs_new(&flow->inputs, flow->layout, h3_weights_config(flow->gate->weights)));
    if (model->is_first) H3_TRY(golden(flow, H3_INPUT_SIDE, &flow->input));
    if (model->is_last) H3_TRY(golden(flow, H3_OUTPUT_SIDE, &flow->output));
    H3_TRY(h3_alloc(&memory, (size_t)model->block_count, sizeof *flow->blocks, "golden artifacts"));
    flow->blocks = memory;
    for (int64_t i = 0; i < model->block_count; i++) H3_TRY(golden(flow, model->first_block + i, &flow->blocks[i]));
    return H3_OK;
}

static void close_flow(full_flow *flow, h3_model *model)
{
    h3_pass_free(flow->pass, model);
    h3_artifact_close(&flow->input);
    h3_artifact_close(&flow->output);
    for (int64_t i = 0; flow->blocks != NULL && i < flow->block_count; i++) h3_artifact_close(&flow->blocks[i]);
    free(flow->blocks);
    h3_plan_inputs_free(&flow->inputs);
}

static h3_status run_flows(h3_model *model, full_flow *flows, size_t count, h3_progress *progress)
{
    for (size_t i = 0; i < count; i++) {
        H3_TRY(h3_model_forward(model, &flows[i].inputs.sequence, &flows[i].sink, &flows[i].pass, NULL, NULL));
        if (progress != NULL) h3_progress_add(progress, model->block_count);
    }
    for (size_t i = 0; i < count; i++) {
        H3_TRY(h3_model_backward(model, flows[i].pass, &flows[i].sink));
        if (progress != NULL) h3_progress_add(progress, model->block_count);
    }
    return H3_OK;
}

h3_status h3_gate_full(h3_gate *gate, h3_progress *progress, h3_full_record *out)
{
    int64_t first, blocks;
    void *memory;
    h3_model model = {0};
    size_t count = gate->plan->layout_count;
    H3_TRY(h3_block_range(gate->ranks->rank, gate->ranks->count, h3_weights_config(gate->weights)->num_layers, &first, &blocks));
    H3_TRY(h3_alloc(&memory, count, sizeof(full_flow), "passes"));
    full_flow *flows = memory;
    h3_status status = h3_model_open(&model, gate->weights, gate->device, H3_BF16, gate->provider, gate->candidate->operators, first, blocks);
    for (size_t i = 0; i < count && status == H3_OK; i++) {
        flows[i].gate = gate;
        flows[i].layout = &gate->plan->layouts[i];
        flows[i].record = out;
        status = open_flow(&flows[i], &model);
    }
    if (status == H3_OK) {
        h3_ranks_attach(gate->ranks, &model);
        if (gate->candidate_end > 0) model.operators_end = gate->candidate_end;
        status = run_flows(&model, flows, count, progress);
    }
    for (size_t i = 0; i < count; i++) close_flow(&flows[i], &model);
    h3_model_close(&model);
    free(flows);
    return status;
}
