/* Isolated checks of block 0: every candidate node on the BF16 provider's inputs, alone, again, and in other company. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "qualify/batch.h"
#include "qualify/gate_internal.h"

/* A GPU that fails, or has too little memory, is not the operator's failure. */
static int is_lost(const h3_gate_block *block, h3_status status) { return status == H3_ENVIRONMENT && block->engine.device->kind != H3_DEVICE_CPU; }

/* Calls one candidate node; an operator's failure is a failed check, not a failure of the gate. */
static h3_status call_operator(h3_gate_block *block, h3_block_state *state, int32_t node, h3_direction direction)
{
    h3_walk walk = {&block->engine, block->gate->candidate->operators, &block->bf16, state, &block->provider, NULL};
    h3_status status = block->unusable[H3_FORWARD][node] ? H3_FAILED : H3_OK;
    if (status == H3_OK) status = direction == H3_FORWARD ? h3_walk_node_forward(&walk, node) : h3_walk_node_backward(&walk, node);
    else h3_error(H3_FAILED, "its forward did not run");
    if (status == H3_OK || is_lost(block, status)) return status;
    block->unusable[direction][node] = 1;
    h3_cell_fail(h3_gate_cell(block, node, direction, H3_CHECK_EXECUTION), h3_error_text());
    for (int kind = 0; kind < H3_CHECK_KINDS; kind++) { /* the others say why they cannot run */
        h3_cell *cell = h3_gate_cell(block, node, direction, kind);
        if (cell != NULL && cell->state == H3_CELL_NOT_RUN) snprintf(cell->detail, sizeof cell->detail, "not run: %.180s", h3_error_text());
    }
    return H3_OK;
}

/* The same, and an operator that writes into its inputs must not decide about the nodes that read them after it. */
static h3_status call_node(h3_gate_block *block, h3_block_state *state, int32_t node, h3_direction direction)
{
    h3_gate_snapshot snapshot;
    int written;
    H3_TRY(h3_gate_snapshot_take(&snapshot, block, direction == H3_BACKWARD ? &state->node[node] : NULL, node));
    h3_status status = call_operator(block, state, node, direction);
    H3_TRY(h3_gate_snapshot_restore(&snapshot, &written));
    H3_TRY(status);
    if (written) h3_cell_fail(h3_gate_cell(block, node, direction, H3_CHECK_EXECUTION), "the operator writes into its inputs");
    return H3_OK;
}

/* What an operator says about one of its calls. */
static void check_report(h3_gate_block *block, int32_t node, h3_direction direction, const h3_node_result *result, const char *where)
{
    const h3_call_report *report = direction == H3_FORWARD ? &result->forward : &result->backward;
    h3_cell *cell = h3_gate_cell(block, node, direction, H3_CHECK_EXECUTION);
    char text[200];
    snprintf(text, sizeof text, "the operator does not say which kernel ran%.90s", where);
    if (report->kernel[0] == 0) h3_cell_fail(cell, text);
    snprintf(text, sizeof text, "fallback%.80s: %.60s ran instead of the bound operator's own kernel", where, report->kernel);
    if (report->fallback != 0) h3_cell_fail(cell, text);
}

static void check_execution(h3_gate_block *block, int32_t node, h3_direction direction)
{
    const h3_node_result *result = &block->isolated.node[node];
    h3_node_record *record = &block->record->node[node];
    if (block->unusable[direction][node]) return;
    snprintf(record->kernel[direction], sizeof record->kernel[direction], "%.95s", (direction == H3_FORWARD ? &result->forward : &result->backward)->kernel);
    check_report(block, node, direction, result, "");
    check_report(block, node, direction, &block->repeat.node[node], " in a repeat");
    h3_cell_pass(h3_gate_cell(block, node, direction, H3_CHECK_EXECUTION));
}

/* Element i of a node's tensor, in words: packed row, head and channel where there are heads. */
static void place_in_words(char out[96], const h3_tensor *tensor, int64_t index)
{
    int64_t inner = tensor->shape[tensor->rank - 1];
    if (tensor->rank >= 3)
        snprintf(out, 96, "row %lld head %lld channel %lld", (long long)(index / (inner * tensor->shape[tensor->rank - 2])),
                 (long long)(index / inner % tensor->shape[tensor->rank - 2]), (long long)(index % inner));
    else
        snprintf(out, 96, "row %lld channel %lld", (long long)(index / inner), (long long)(index % inner));
}

/* Between two device tensors. */
static h3_status difference_between(h3_difference *out, const h3_device *device, const h3_tensor *a, const h3_tensor *b)
{
    h3_tensor x, y;
    H3_TRY(h3_device_borrow(&x, device, a));
    h3_status status = h3_device_borrow(&y, device, b);
    if (status == H3_OK) {
        status = h3_difference_of(out, &x, &y);
        h3_device_return(&y, device);
    }
    h3_device_return(&x, device);
    return status;
}

/* `first` is what the operator made on the same inputs before; `when` says when it made `second`. */
static h3_status compare_again(h3_gate_block *block, h3_cell *cell, const h3_tensor *first, const h3_tensor *second, const char *name, const char *when)
{
    const h3_device *device = block->engine.device;
    h3_difference difference;
    char place[96], text[200];
    int equal;
    if (first->data == NULL) return H3_OK;
    H3_TRY(h3_device_equal(&equal, device, first, second));
    if (equal) return H3_OK;
    snprintf(text, sizeof text, "%s: other bytes %s", name, when);
    if ((first->dtype == H3_BF16 || first->dtype == H3_F32) && h3_tensor_bytes(first) == h3_tensor_bytes(second)) {
        H3_TRY(difference_between(&difference, device, first, second));
        place_in_words(place, first, difference.first);
        snprintf(text, sizeof text, "%s: other bytes %s, first at %s", name, when, place);
    }
    h3_cell_fail(cell, text);
    return H3_OK;
}

static h3_status compare_products(h3_gate_block *block, h3_cell *cell, const h3_node_result *first, const h3_node_result *second, h3_direction direction,
                                  const char *when)
{
    const h3_tensor *tensor;
    const char *name;
    for (int i = 0; (tensor = h3_gate_product(first, direction, i, &name)) != NULL; i++)
        H3_TRY(compare_again(block, cell, tensor, h3_gate_product(second, direction, i, &name), name, when));
    return H3_OK;
}

static h3_status check_repeat(h3_gate_block *block, int32_t node, h3_direction direction)
{
    static const char when[] = "a second time";
    const h3_node_result *isolated = &block->isolated.node[node], *repeat = &block->repeat.node[node];
    h3_cell *cell = h3_gate_cell(block, node, direction, H3_CHECK_REPEAT);
    if (cell == NULL || block->unusable[direction][node]) return H3_OK;
    H3_TRY(compare_products(block, cell, isolated, repeat, direction, when));
    for (int i = 0; direction == H3_FORWARD && i < H3_MAX_SAVED; i++)
        H3_TRY(compare_again(block, cell, &isolated->saved[i], &repeat->saved[i], "saved tensor", when));
    h3_cell_pass(cell);
    return H3_OK;
}

/* Attention's tensors share one q over a head vector. */
static int64_t group_of(const h3_gate_block *block, int32_t node) { return node == H3_NODE_ATTENTION ? block->engine.config->attention_head_dim : 1; }

/* One tensor of the candidate (x), the provider (p) and the isolated golden (g), all on the device. */
static h3_status note_figures(h3_gate_block *block, int32_t node, h3_direction direction, const char *name, const h3_tensor *x, const h3_tensor *p,
                              const h3_tensor *g)
{
    h3_figures candidate, provider;
    int equal;
    char row[60];
    const h3_device *device = block->engine.device;
    int64_t rows = h3_gate_product_rows(g, name, node), group = group_of(block, node);
    H3_TRY(h3_figures_on(&candidate, device, x, g, rows, group));
    H3_TRY(h3_figures_on(&provider, device, p, g, rows, group));
    h3_cell_note(h3_gate_cell(block, node, direction, H3_CHECK_ERROR), candidate.error, h3_isolated_error_bound(&provider), provider.error, name);
    h3_cell_note(h3_gate_cell(block, node, direction, H3_CHECK_BIAS), fabs(candidate.bias), h3_isolated_bias_bound(&provider), provider.bias, name);
    snprintf(row, sizeof row, "%s row %lld", name, (long long)candidate.worst_index);
    h3_cell_note(h3_gate_cell(block, node, direction, H3_CHECK_WORST_ROW), candidate.worst_row, h3_isolated_worst_bound(&provider), provider.worst_row, row);
    H3_TRY(h3_device_equal(&equal, device, x, p));
    if (!equal) block->record->node[node].isolated_drift[direction] = 1;
    return H3_OK;
}

static h3_status check_figures(h3_gate_block *block, int32_t node, h3_direction direction)
{
    const h3_tensor *golden;
    const char *name;
    const h3_node_result *candidate = &block->isolated.node[node], *provider = &block->provider_isolated.node[node];
    if (block->unusable[direction][node]) return H3_OK;
    for (int i = 0; (golden = h3_gate_product(&block->golden_isolated.node[node], direction, i, &name)) != NULL; i++) {
        if (golden->data == NULL) continue;
        const h3_tensor *x = h3_gate_product(candidate, direction, i, &name), *p = h3_gate_product(provider, direction, i, &name);
        H3_TRY(note_figures(block, node, direction, name, x, p, golden));
    }
    block->record->node[node].isolated_ran[direction] = 1;
    return H3_OK;
}

static h3_status check_promise(h3_gate_block *block, int32_t node)
{
    h3_cell *cell = h3_gate_cell(block, node, H3_FORWARD, H3_CHECK_PROMISE);
    const h3_tensor *x = &block->isolated.node[node].out, *p = &block->provider_isolated.node[node].out;
    h3_difference difference;
    char text[200], place[96];
    if (cell == NULL || block->unusable[H3_FORWARD][node]) return H3_OK;
    int equal;
    H3_TRY(h3_device_equal(&equal, block->engine.device, x, p));
    difference = (h3_difference){0};
    if (!equal) H3_TRY(difference_between(&difference, block->engine.device, x, p));
    cell->value = (double)difference.differing;
    cell->bound = 0.0;
    if (difference.differing == 0) {
        h3_cell_pass(cell);
        return H3_OK;
    }
    place_in_words(place, x, difference.first);
    snprintf(text, sizeof text, "not the provider's bytes: %lld of %lld elements differ, first at %.60s, worst %lld ulp", (long long)difference.differing,
             (long long)difference.count, place, (long long)difference.worst_ulp);
    h3_cell_fail(cell, text);
    return H3_OK;
}

/* Ends a guarded call of a candidate node. */
static h3_status close_guard(h3_gate_block *block, h3_gate_guard *guard, const h3_node_result *result, int32_t node, h3_direction direction, const char *where)
{
    const char *spoiled;
    char text[200];
    H3_TRY(h3_gate_guard_close(guard, result, &spoiled));
    if (spoiled == NULL) return H3_OK;
    snprintf(text, sizeof text, "the operator writes behind the end of %s%.90s", spoiled, where);
    h3_cell_fail(h3_gate_cell(block, node, direction, H3_CHECK_EXECUTION), text);
    return H3_OK;
}

/* Again, into memory full of NaNs: what an operator leaves unwritten differs. */
static h3_status repeat_node(h3_gate_block *block, int32_t node, h3_direction direction)
{
    h3_gate_guard guard;
    h3_gate_guard_open(&guard, &block->engine);
    h3_status status = call_node(block, &block->repeat, node, direction);
    h3_status closed = close_guard(block, &guard, &block->repeat.node[node], node, direction, "");
    return status != H3_OK ? status : closed;
}

h3_status h3_gate_isolated(h3_gate_block *block)
{
    for (int32_t node = 0; node < H3_NODE_COUNT; node++)
        for (int direction = 0; direction < 2 && h3_gate_has_node(block, node); direction++) H3_TRY(call_node(block, &block->isolated, node, direction));
    H3_TRY(h3_gate_add_digests(block, "isolated", &block->isolated));
    if (block->record == NULL) return H3_OK;
    for (int32_t node = 0; node < H3_NODE_COUNT; node++) {
        if (!h3_gate_has_node(block, node)) continue;
        for (int direction = 0; direction < 2; direction++) {
            if (!block->unusable[direction][node]) H3_TRY(repeat_node(block, node, direction));
            check_execution(block, node, direction);
            H3_TRY(check_repeat(block, node, direction));
            H3_TRY(check_figures(block, node, direction));
        }
        H3_TRY(check_promise(block, node));
    }
    return H3_OK;
}

/* One node in one variant: forward and backward on the gathered inputs, compared with the isolated result row by row. */
static h3_status compare_rows(h3_gate_block *block, const h3_batch_variant *variant, const h3_node_result *result, int32_t node, h3_direction direction)
{
    const h3_tensor *original;
    const char *name;
    h3_cell *cell = h3_gate_cell(block, node, direction, H3_CHECK_BATCH);
    int64_t rows = node == H3_NODE_ADALN ? block->temb.shape[0] : block->inputs.layout.rows;
    for (int i = 0; (original = h3_gate_product(&block->isolated.node[node], direction, i, &name)) != NULL; i++) {
        const h3_tensor *batched = h3_gate_product(result, direction, i, &name);
        int sums_rows = strncmp(name, "dparam", 6) == 0 || (node == H3_NODE_ATTENTION && h3_batch_partial(variant) && i > 0);
        char text[200];
        int64_t row;
        if (original->data == NULL || sums_rows) continue;
        H3_TRY(h3_batch_first_difference(&row, block->engine.device, original, batched, variant, rows));
        if (row < 0) continue;
        snprintf(text, sizeof text, "%.20s: row %lld changes with %.80s", name, (long long)row, variant->name);
        h3_cell_fail(cell, text);
    }
    return H3_OK;
}

static h3_status run_variant_node(h3_gate_block *block, const h3_batch_variant *variant, const h3_block_state *source, int32_t node)
{
    h3_block_state state = {.batch = source->batch};
    h3_walk walk = {&block->engine, block->gate->candidate->operators, &block->bf16, &state, source, NULL};
    h3_status compared = H3_OK;
    for (int direction = 0; direction < 2 && compared == H3_OK; direction++) {
        h3_cell *cell = h3_gate_cell(block, node, direction, H3_CHECK_BATCH);
        h3_gate_guard guard;
        char text[200], where[100];
        snprintf(where, sizeof where, " with %.78s", variant->name);
        if (direction == H3_BACKWARD && node == H3_NODE_ADALN) break;
        h3_gate_guard_open(&guard, &block->engine);
        h3_status status = direction == H3_FORWARD ? h3_walk_node_forward(&walk, node) : h3_walk_node_backward(&walk, node);
        compared = close_guard(block, &guard, &state.node[node], node, direction, where);
        if (is_lost(block, status)) compared = status;
        if (status != H3_OK) {
            snprintf(text, sizeof text, "fails with %.60s: %.120s", variant->name, h3_error_text());
            h3_cell_fail(cell, text);
            break;
        }
        check_report(block, node, direction, &state.node[node], where);
        if (compared == H3_OK) compared = compare_rows(block, variant, &state.node[node], node, direction);
    }
    h3_block_state_free(&state, block->engine.device);
    return compared;
}

static int wants_batch(h3_gate_block *block, int32_t node)
{
    int wanted = h3_gate_has_node(block, node) && (h3_gate_cell(block, node, H3_FORWARD, H3_CHECK_BATCH) != NULL || h3_gate_cell(block, node, H3_BACKWARD, H3_CHECK_BATCH) != NULL);
    return wanted && !block->unusable[H3_FORWARD][node] && !block->unusable[H3_BACKWARD][node];
}

static h3_status run_variant(h3_gate_block *block, const h3_batch_variant *variant, int attention)
{
    h3_block_state source;
    int any = 0;
    for (int32_t node = 0; node < H3_NODE_COUNT; node++) any |= (node == H3_NODE_ATTENTION) == attention && wants_batch(block, node);
    if (!any) return H3_OK;
    H3_TRY(h3_batch_state(&source, block->engine.device, &block->provider, variant, attention));
    h3_status status = H3_OK;
    for (int32_t node = 0; node < H3_NODE_COUNT && status == H3_OK; node++)
        if ((node == H3_NODE_ATTENTION) == attention && wants_batch(block, node)) status = run_variant_node(block, variant, &source, node);
    h3_batch_state_free(&source, block->engine.device);
    return status;
}

/* Block 0's own inputs once more, after calls on others: an operator may use what it is given, and nothing that calls have left behind. */
static h3_status once_more(h3_gate_block *block, int32_t node, h3_direction direction)
{
    const h3_device *device = block->engine.device;
    const h3_node_result *first = &block->isolated.node[node];
    h3_block_state state = {.batch = block->isolated.batch};
    h3_walk walk = {&block->engine, block->gate->candidate->operators, &block->bf16, &state, &block->provider, NULL};
    h3_node_result *again = &state.node[node];
    h3_cell *cell = h3_gate_cell(block, node, direction, H3_CHECK_REPEAT);
    h3_status status = direction == H3_BACKWARD ? h3_device_duplicate(&again->out, device, &first->out) : H3_OK;
    for (int i = 0; i < H3_MAX_SAVED && status == H3_OK; i++)
        if (direction == H3_BACKWARD && first->saved[i].data != NULL) status = h3_device_duplicate(&again->saved[i], device, &first->saved[i]);
    if (status == H3_OK) {
        status = direction == H3_FORWARD ? h3_walk_node_forward(&walk, node) : h3_walk_node_backward(&walk, node);
        if (status == H3_OK) {
            status = compare_products(block, cell, first, again, direction, "after calls on other inputs");
        } else if (!is_lost(block, status)) {
            h3_cell_fail(cell, h3_error_text());
            status = H3_OK;
        }
    }
    h3_block_state_free(&state, device);
    return status;
}

h3_status h3_gate_batch(h3_gate_block *block)
{
    h3_batch_variant variants[64];
    int count = h3_batch_variants(variants, 64, block->inputs.layout.rows);
    for (int i = 0; i < count; i++)
        for (int attention = 0; attention < 2; attention++) H3_TRY(run_variant(block, &variants[i], attention));
    for (int32_t node = 0; node < H3_NODE_COUNT; node++) {
        if (!wants_batch(block, node)) continue;
        for (int direction = 0; direction < 2; direction++) h3_cell_pass(h3_gate_cell(block, node, direction, H3_CHECK_BATCH));
        H3_TRY(once_more(block, node, H3_BACKWARD)); /* first: the last forward was on other inputs */
        H3_TRY(once_more(block, node, H3_FORWARD));
    }
    return H3_OK;
}
