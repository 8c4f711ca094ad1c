/* The block-0 section: prepares every walk of one layout, in the order of the specification. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dist/attach.h"
#include "graph/boundary.h"
#include "qualify/gate_internal.h"
#include "qualify/inputs.h"
#include "qualify/node_case.h"

const char *const h3_check_names[H3_CHECK_KINDS] = {"execution", "repeat", "batch", "promise", "error", "bias", "worst_row", "chained", "process"};

void h3_check_name(char out[240], const char *layout, int32_t node, h3_direction direction, h3_check_kind kind)
{
    snprintf(out, 240, "block0.%s.%s.%s.%s", layout, h3_nodes[node].name, direction == H3_FORWARD ? "forward" : "backward", h3_check_names[kind]);
}

int h3_check_exists(int32_t device, int32_t node, h3_direction direction, h3_check_kind kind, const h3_operator *op)
{
    int bitwise = device == H3_DEVICE_CUDA ? h3_nodes[node].bitwise_cuda : h3_nodes[node].bitwise_cpu;
    if (kind == H3_CHECK_PROMISE) return direction == H3_FORWARD && (bitwise || (op != NULL && (op->promises & H3_PROMISE_ISOLATED_BITWISE)));
    /* Table and time gradients of adaln_projection sum over rows: no row of theirs stands alone. */
    if (kind == H3_CHECK_BATCH) return direction == H3_FORWARD || node != H3_NODE_ADALN;
    return 1;
}

int h3_gate_wants(const h3_gate *gate, const char *layout, int32_t node, h3_direction direction, h3_check_kind kind)
{
    char name[240];
    if (!h3_check_exists(gate->device_kind, node, direction, kind, gate->candidate->operators[node])) return 0;
    if (gate->only == NULL) return 1;
    h3_check_name(name, layout, node, direction, kind);
    return h3_glob(gate->only, name);
}

h3_cell *h3_gate_cell(h3_gate_block *block, int32_t node, h3_direction direction, h3_check_kind kind)
{
    h3_cell *cell = block->record != NULL ? &block->record->node[node].cell[direction][kind] : NULL;
    return cell != NULL && cell->state != H3_CELL_ABSENT ? cell : NULL;
}

void h3_cell_fail(h3_cell *cell, const char *detail)
{
    if (cell == NULL) return;
    if (cell->state != H3_CELL_FAILED) snprintf(cell->detail, sizeof cell->detail, "%s", detail);
    cell->state = H3_CELL_FAILED;
}

void h3_cell_pass(h3_cell *cell)
{
    if (cell != NULL && cell->state == H3_CELL_NOT_RUN) cell->state = H3_CELL_PASSED;
}

void h3_cell_note(h3_cell *cell, double value, double bound, double provider, const char *detail)
{
    if (cell == NULL) return;
    int ok = value <= bound; /* so that NaN fails */
    if (cell->state == H3_CELL_FAILED && cell->value != cell->value) return; /* nothing is worse than a NaN */
    int worse = cell->state == H3_CELL_NOT_RUN || (!ok && cell->state == H3_CELL_PASSED) ||
                (ok == (cell->state == H3_CELL_PASSED) && !(value / bound <= cell->value / cell->bound));
    if (worse) {
        cell->value = value;
        cell->bound = bound;
        cell->provider = provider;
        snprintf(cell->detail, sizeof cell->detail, "%s", detail);
    }
    cell->state = ok && cell->state != H3_CELL_FAILED ? H3_CELL_PASSED : H3_CELL_FAILED;
}

const h3_tensor *h3_gate_product(const h3_node_result *result, h3_direction direction, int index, const char **name)
{
    static const char *const din[] = {"din0", "din1", "din2", "din3"}, *const dparam[] = {"dparam0", "dparam1"}, *const row[] = {"row_grad0", "row_grad1"};
    if (direction == H3_FORWARD) {
        *name = "out";
        return index == 0 ? &result->out : NULL;
    }
    if (index < H3_MAX_IN) return *name = din[index], &result->din[index];
    index -= H3_MAX_IN;
    if (index < 2) return *name = dparam[index], &result->dparam[index];
    index -= 2;
    if (index < 2) return *name = row[index], &result->row_grad[index];
    *name = "dtable";
    return index == 2 ? &result->dtable : NULL;
}

int64_t h3_gate_product_rows(const h3_tensor *tensor, const char *name, int32_t node)
{
    (void)node;
    if (tensor->rank == 1) return 1;
    if (strcmp(name, "dparam0") != 0 && tensor->rank == 4) return tensor->shape[0] * tensor->shape[1];
    return tensor->shape[0];
}

/* Of a device tensor; "" when it is absent. */
static h3_status digest_of(char digest[H3_SHA256_HEX], const h3_device *device, const h3_tensor *tensor)
{
    digest[0] = 0;
    return tensor->data != NULL ? h3_device_digest(digest, device, tensor) : H3_OK;
}

/* One line for each tensor of a walk. */
static h3_status print_digests(FILE *stream, const h3_gate_block *block, const char *where, const h3_block_state *state)
{
    for (int32_t node = 0; node < H3_NODE_COUNT; node++) {
        for (int direction = 0; direction < 2; direction++) {
            const char *name;
            const h3_tensor *tensor;
            for (int i = 0; (tensor = h3_gate_product(&state->node[node], direction, i, &name)) != NULL; i++) {
                char digest[H3_SHA256_HEX];
                H3_TRY(digest_of(digest, block->engine.device, tensor));
                if (digest[0] != 0) fprintf(stream, "%s %s %s %s %s\n", block->layout->name, where, h3_nodes[node].name, name, digest);
            }
        }
    }
    return H3_OK;
}

h3_status h3_gate_add_digests(h3_gate_block *block, const char *where, const h3_block_state *state)
{
    h3_gate *gate = block->gate;
    char *text = NULL;
    size_t size = 0;
    FILE *stream = open_memstream(&text, &size);
    if (stream == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for digests");
    h3_status status = print_digests(stream, block, where, state);
    if (fclose(stream) != 0 && status == H3_OK) status = h3_error(H3_ENVIRONMENT, "out of memory for digests");
    if (status != H3_OK) {
        free(text);
        return status;
    }
    char *larger = realloc(gate->digests, gate->digests_size + size + 1);
    if (larger == NULL) {
        free(text);
        return h3_error(H3_ENVIRONMENT, "out of memory for digests");
    }
    memcpy(larger + gate->digests_size, text, size + 1);
    gate->digests = larger;
    gate->digests_size += size;
    free(text);
    return H3_OK;
}

static h3_status reference(const h3_gate_block *block, int32_t precision, int64_t number, h3_artifact *out)
{
    return h3_inputs_artifact(out, block->gate->manifest, block->gate->run_folder, block->layout->name, precision, number);
}

static h3_status copy_tensor(h3_gate_block *block, h3_tensor *out, const h3_artifact *artifact, const char *name)
{
    const h3_tensor *tensor;
    H3_TRY(h3_artifact_need(&tensor, artifact, name));
    return h3_device_upload(out, block->engine.device, tensor);
}

static h3_status read_artifacts(h3_gate_block *block)
{
    h3_artifact input = {0}, own = {0};
    h3_status status;
    H3_GOTO(reference(block, H3_BF16, H3_INPUT_SIDE, &input), done);
    H3_GOTO(reference(block, H3_BF16, 0, &own), done);
    H3_GOTO(copy_tensor(block, &block->x, &input, "boundary.hidden"), done);
    H3_GOTO(copy_tensor(block, &block->temb, &input, "boundary.temb"), done);
    H3_GOTO(copy_tensor(block, &block->dx2, &own, "dnode.block0.residual_mlp"), done);
    H3_GOTO(reference(block, H3_F32, 0, &block->golden), done);
done:
    h3_artifact_close(&input);
    h3_artifact_close(&own);
    return status;
}

/* Index and rotary table as the model makes them, without its boundary parameters. */
static h3_status outside_values(h3_gate_block *block, h3_block_state *state)
{
    const h3_sequence *sequence = &block->inputs.sequence;
    h3_model shell = {.engine = block->engine, .precision = H3_BF16};
    h3_tensor index;
    H3_TRY(h3_boundary_rotary(&shell, sequence, &block->outside[1]));
    H3_TRY(h3_tensor_new(&index, H3_I32, 1, &sequence->rows));
    for (int64_t i = 0; i < sequence->rows; i++) ((int32_t *)index.data)[i] = (int32_t)(3 * sequence->timestep_indices[i] + sequence->token_tags[i]);
    h3_status status = h3_device_upload(&block->outside[0], block->engine.device, &index);
    h3_tensor_free(&index);
    H3_TRY(status);
    h3_pass view = {.rotary = block->outside[1], .temb = block->temb, .modulation_index = block->outside[0]};
    h3_pass_values(&view, state);
    state->value[H3_VALUE_X] = block->x;
    return H3_OK;
}

static void share_outside(h3_block_state *to, const h3_block_state *from)
{
    to->batch = from->batch;
    for (int32_t i = H3_NODE_COUNT; i < H3_VALUE_COUNT; i++) to->value[i] = from->value[i];
}

static h3_status require_digest(h3_gate_block *block, const char *name, const h3_tensor *tensor)
{
    char full[240], digest[H3_SHA256_HEX];
    snprintf(full, sizeof full, "%s/bf16/%s", block->layout->name, name);
    const h3_manifest_tensor *listed = h3_manifest_find(block->gate->manifest, full);
    if (listed == NULL) return h3_error(H3_INTEGRITY, "reference-manifest.json does not list tensor %s; rerun h3_reference_pass", full);
    H3_TRY(digest_of(digest, block->engine.device, tensor));
    if (strcmp(digest, listed->digest) != 0)
        return h3_error(H3_INTEGRITY, "the BF16 provider does not reproduce tensor %s of reference-manifest.json; its library has changed, rerun h3_reference_pass", full);
    return H3_OK;
}

static h3_status require_event(void *user, const h3_tap_event *event)
{
    char name[160];
    if (event->kind == H3_TAP_CALL) return H3_OK;
    h3_event_name(name, event);
    return require_digest(user, name, event->tensor);
}

h3_status h3_gate_run_provider(h3_gate_block *block)
{
    h3_tap tap = {require_event, block};
    H3_TRY(outside_values(block, &block->provider));
    h3_walk walk = {&block->engine, block->provider_operators, &block->bf16, &block->provider, NULL, block->gate->manifest != NULL ? &tap : NULL};
    H3_TRY(h3_walk_forward(&walk));
    H3_TRY(h3_device_duplicate(&block->provider.grad[H3_NODE_RESIDUAL_MLP], block->engine.device, &block->dx2));
    return h3_walk_backward(&walk);
}

int h3_gate_has_node(const h3_gate_block *block, int32_t node) { return block->only_node < 0 || block->only_node == node; }

static h3_status isolated_reference(h3_gate_block *block, const h3_block_params *params, h3_block_state *state)
{
    share_outside(state, &block->provider);
    h3_walk walk = {&block->engine, block->provider_operators, params, state, &block->provider, NULL};
    for (int32_t node = 0; node < H3_NODE_COUNT; node++) {
        if (!h3_gate_has_node(block, node)) continue;
        H3_TRY(h3_walk_node_forward(&walk, node));
        H3_TRY(h3_walk_node_backward(&walk, node));
    }
    return H3_OK;
}

h3_status h3_gate_references(h3_gate_block *block)
{
    H3_TRY(isolated_reference(block, &block->bf16, &block->provider_isolated));
    return isolated_reference(block, &block->fp32, &block->golden_isolated);
}

h3_status h3_gate_run_isolated(h3_gate_block *block)
{
    share_outside(&block->isolated, &block->provider);
    share_outside(&block->repeat, &block->provider);
    H3_TRY(h3_gate_references(block));
    H3_TRY(h3_gate_isolated(block));
    return h3_gate_batch(block);
}

static h3_status prepare(h3_gate_block *block)
{
    const h3_gate *gate = block->gate;
    const h3_config *config = h3_weights_config(gate->weights);
    h3_engine_init(&block->engine, config, gate->device, gate->provider);
    h3_ranks_watch(gate->ranks, &block->engine);
    for (int32_t node = 0; node < H3_NODE_COUNT; node++)
        H3_TRY(h3_library_find(&block->provider_operators[node], gate->provider, h3_nodes[node].name, NULL));
    H3_TRY(h3_plan_inputs_new(&block->inputs, block->layout, config));
    H3_TRY(read_artifacts(block));
    H3_TRY(h3_block_params_load(&block->bf16, block->engine.device, gate->weights, 0, 0, H3_BF16));
    H3_TRY(h3_block_params_load(&block->fp32, block->engine.device, gate->weights, 0, 0, H3_F32));
    return h3_gate_run_provider(block);
}

void h3_gate_block_free(h3_gate_block *block)
{
    const h3_device *device = block->engine.device;
    h3_block_state *states[] = {&block->provider, &block->provider_isolated, &block->golden_isolated, &block->isolated, &block->repeat, &block->chained};
    for (size_t i = 0; i < sizeof states / sizeof *states; i++) h3_block_state_free(states[i], device);
    h3_block_params_free(&block->bf16, device);
    h3_block_params_free(&block->fp32, device);
    for (int i = 0; i < 2; i++) h3_device_free(&block->outside[i], device);
    h3_device_free(&block->x, device);
    h3_device_free(&block->temb, device);
    h3_device_free(&block->dx2, device);
    h3_artifact_close(&block->golden);
    h3_plan_inputs_free(&block->inputs);
    h3_engine_free(&block->engine);
}

int32_t h3_gate_first_failing(const h3_layout_record *record)
{
    for (int32_t i = 0; i < 2 * H3_NODE_COUNT; i++) {
        int direction = i < H3_NODE_COUNT ? H3_FORWARD : H3_BACKWARD;
        int32_t node = direction == H3_FORWARD ? i : 2 * H3_NODE_COUNT - 1 - i;
        for (int kind = 0; kind < H3_CHECK_KINDS; kind++)
            if (kind != H3_CHECK_CHAINED && record->node[node].cell[direction][kind].state == H3_CELL_FAILED) return node;
    }
    return -1;
}

static void mark_wanted(const h3_gate *gate, h3_layout_record *record)
{
    for (int32_t node = 0; node < H3_NODE_COUNT; node++)
        for (int direction = 0; direction < 2; direction++)
            for (int kind = 0; kind < H3_CHECK_KINDS; kind++)
                if (h3_gate_wants(gate, record->name, node, direction, kind)) record->node[node].cell[direction][kind].state = H3_CELL_NOT_RUN;
}

h3_status h3_gate_block0(h3_gate *gate, const h3_plan_layout *layout, h3_layout_record *out)
{
    h3_gate_block block = {.gate = gate, .layout = layout, .record = out, .only_node = -1};
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "%s", layout->name);
    mark_wanted(gate, out);
    h3_status status = prepare(&block);
    out->rows = block.inputs.layout.rows;
    share_outside(&block.chained, &block.provider);
    if (status == H3_OK) status = h3_gate_run_isolated(&block);
    if (status == H3_OK && h3_gate_first_failing(out) >= 0) status = h3_node_case_write(&block, h3_gate_first_failing(out));
    if (status == H3_OK) status = h3_gate_chained(&block);
    out->ran = status == H3_OK;
    h3_gate_block_free(&block);
    return status;
}

h3_status h3_gate_block0_digests(h3_gate *gate, const h3_plan_layout *layout)
{
    h3_gate_block block = {.gate = gate, .layout = layout, .only_node = -1};
    h3_status status = prepare(&block);
    share_outside(&block.isolated, &block.provider);
    share_outside(&block.chained, &block.provider);
    if (status == H3_OK) status = h3_gate_isolated(&block);
    if (status == H3_OK) status = h3_gate_chained(&block);
    h3_gate_block_free(&block);
    return status;
}
