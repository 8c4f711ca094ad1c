/* Chained check of block 0: candidate nodes feeding each other, against the frozen bounds; drift from the provider; the permutation control. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "qualify/gate_internal.h"

/* `host` is the event's tensor. */
static h3_status compare_golden(h3_gate_block *block, const h3_tap_event *event, const h3_tensor *host, h3_cell *cell)
{
    const h3_tensor *golden;
    char name[160];
    h3_figures figures;
    h3_event_name(name, event);
    H3_TRY(h3_artifact_need(&golden, &block->golden, name));
    const h3_threshold *threshold = h3_thresholds_find(block->gate->thresholds, block->layout->name, name);
    if (threshold == NULL) return h3_error(H3_INTEGRITY, "thresholds.json has no bound for %s/%s; start a new run", block->layout->name, name);
    H3_TRY(h3_figures_of(&figures, host, golden, 1, 1));
    h3_cell_note(cell, figures.error, threshold->bound, threshold->provider_error, name);
    return H3_OK;
}

/* Output or total gradient of a node beside the provider's. */
static h3_status note_drift(h3_gate_block *block, const h3_tap_event *event, const h3_tensor *host)
{
    h3_direction direction = event->kind == H3_TAP_OUTPUT ? H3_FORWARD : H3_BACKWARD;
    const h3_tensor *other = direction == H3_FORWARD ? &block->provider.value[event->node] : &block->provider.grad[event->node];
    h3_node_record *record = &block->record->node[event->node];
    h3_tensor provider;
    H3_TRY(h3_device_borrow(&provider, block->engine.device, other));
    h3_status status = h3_difference_of(&record->difference[direction], host, &provider);
    h3_device_return(&provider, block->engine.device);
    H3_TRY(status);
    H3_TRY(h3_digest(record->digest[direction], host->data, h3_tensor_bytes(host)));
    int64_t rows = event->node == H3_NODE_ADALN ? block->temb.shape[0] : block->inputs.layout.rows;
    record->drift[direction] = record->difference[direction].differing > 0;
    record->first_row[direction] = record->drift[direction] ? record->difference[direction].first / (record->difference[direction].count / rows) : -1;
    return H3_OK;
}

static h3_status on_event(void *user, const h3_tap_event *event)
{
    h3_gate_block *block = user;
    h3_direction direction = event->kind == H3_TAP_OUTPUT ? H3_FORWARD : H3_BACKWARD;
    if (event->kind == H3_TAP_CALL) block->chained_done[event->direction][event->node] = 1;
    if (event->kind == H3_TAP_CALL || block->record == NULL) return H3_OK;
    h3_tensor host;
    H3_TRY(h3_device_borrow(&host, block->engine.device, event->tensor));
    h3_status status = compare_golden(block, event, &host, h3_gate_cell(block, event->node, direction, H3_CHECK_CHAINED));
    if (status == H3_OK && (event->kind == H3_TAP_OUTPUT || event->kind == H3_TAP_GRADIENT)) status = note_drift(block, event, &host);
    h3_device_return(&host, block->engine.device);
    return status;
}

/* An operator that cannot run ends the chain; the nodes behind it stay not run. */
static void stop_chain(h3_gate_block *block)
{
    for (int32_t i = 0; i < 2 * H3_NODE_COUNT; i++) {
        h3_direction direction = i < H3_NODE_COUNT ? H3_FORWARD : H3_BACKWARD;
        int32_t node = direction == H3_FORWARD ? i : 2 * H3_NODE_COUNT - 1 - i;
        if (block->chained_done[direction][node]) continue;
        h3_cell_fail(h3_gate_cell(block, node, direction, H3_CHECK_CHAINED), h3_error_text());
        return;
    }
}

static h3_status run_chain(h3_gate_block *block)
{
    h3_tap tap = {on_event, block};
    h3_walk walk = {&block->engine, block->gate->candidate->operators, &block->bf16, &block->chained, NULL, &tap};
    H3_TRY(h3_walk_forward(&walk));
    H3_TRY(h3_device_duplicate(&block->chained.grad[H3_NODE_RESIDUAL_MLP], block->engine.device, &block->dx2));
    return h3_walk_backward(&walk);
}

/* Rows of one item in reverse order, positions and indices with them. */
static h3_status reverse_rows(h3_tensor *out, const h3_device *device, const h3_tensor *tensor)
{
    int64_t rows = tensor->shape[0];
    size_t bytes = h3_tensor_bytes(tensor) / (size_t)rows;
    H3_TRY(h3_device_tensor(out, device, tensor->dtype, tensor->rank, tensor->shape));
    for (int64_t row = 0; row < rows; row++)
        H3_TRY(device->copy((char *)out->data + (size_t)row * bytes, (const char *)tensor->data + (size_t)(rows - 1 - row) * bytes, bytes));
    return H3_OK;
}

static h3_status reversed_values(const h3_device *device, const h3_block_state *from, h3_block_state *to, h3_tensor owned[4])
{
    static const int32_t values[4] = {H3_VALUE_X, H3_VALUE_INDEX, H3_VALUE_COS, H3_VALUE_SIN};
    to->batch = 1;
    to->value[H3_VALUE_TEMB] = from->value[H3_VALUE_TEMB];
    for (int i = 0; i < 4; i++) {
        H3_TRY(reverse_rows(&owned[i], device, &from->value[values[i]]));
        to->value[values[i]] = owned[i];
    }
    return H3_OK;
}

static h3_status compare_rows(h3_gate_block *block, const h3_tensor *plain, const h3_tensor *reversed)
{
    int64_t rows = plain->shape[0];
    for (int64_t row = 0; row < rows; row++) {
        h3_tensor a = h3_tensor_view((uint16_t *)plain->data + row * plain->shape[1], H3_BF16, 1, &plain->shape[1]);
        h3_tensor b = h3_tensor_view((uint16_t *)reversed->data + (rows - 1 - row) * plain->shape[1], H3_BF16, 1, &plain->shape[1]);
        h3_difference difference;
        H3_TRY(h3_difference_of(&difference, &a, &b));
        if (difference.differing == 0) continue;
        block->record->permuted_rows_changed++;
        if (!(difference.largest <= block->record->permuted_largest) && !isnan(block->record->permuted_largest))
            block->record->permuted_largest = difference.largest;
    }
    return H3_OK;
}

static h3_status compare_reversed(h3_gate_block *block, const h3_tensor *reversed)
{
    const h3_device *device = block->engine.device;
    h3_tensor a, b;
    H3_TRY(h3_device_borrow(&a, device, &block->chained.value[H3_NODE_RESIDUAL_MLP]));
    h3_status status = h3_device_borrow(&b, device, reversed);
    if (status == H3_OK) {
        status = compare_rows(block, &a, &b);
        h3_device_return(&b, device);
    }
    h3_device_return(&a, device);
    return status;
}

/* Control, reported and never promised: attention sums over keys in packed order, so permuting the rows may change bits. */
static h3_status permutation_control(h3_gate_block *block)
{
    h3_tensor owned[4] = {{0}, {0}, {0}, {0}};
    h3_block_state state = {0};
    h3_walk walk = {&block->engine, block->gate->candidate->operators, &block->bf16, &state, NULL, NULL};
    h3_status status = reversed_values(block->engine.device, &block->provider, &state, owned);
    if (status == H3_OK) status = h3_walk_forward(&walk);
    if (status == H3_OK) status = compare_reversed(block, &state.value[H3_NODE_RESIDUAL_MLP]);
    h3_block_state_free(&state, block->engine.device);
    for (int i = 0; i < 4; i++) h3_device_free(&owned[i], block->engine.device);
    return status;
}

static int chain_wanted(h3_gate_block *block)
{
    if (block->record == NULL) return 1;
    for (int32_t node = 0; node < H3_NODE_COUNT; node++)
        for (int direction = 0; direction < 2; direction++)
            if (h3_gate_cell(block, node, direction, H3_CHECK_CHAINED) != NULL || h3_gate_cell(block, node, direction, H3_CHECK_PROCESS) != NULL) return 1;
    return 0;
}

h3_status h3_gate_chained(h3_gate_block *block)
{
    if (!chain_wanted(block)) return H3_OK;
    h3_status status = run_chain(block);
    if (status == H3_FAILED) {
        if (block->record != NULL) stop_chain(block);
        return H3_OK;
    }
    H3_TRY(status);
    H3_TRY(h3_gate_add_digests(block, "chained", &block->chained));
    return block->record != NULL ? permutation_control(block) : H3_OK;
}
