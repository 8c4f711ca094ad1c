#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "qualify/gate_report.h"

const char *const h3_drift_names[6] = {"first_drift",        "first_isolated_drift",    "first_repeat_drift",
                                       "first_batch_drift", "first_grad_repeat_drift", "first_grad_batch_drift"};

/* Real execution order: forward nodes ascending, then backward nodes descending. */
static void place(int i, int32_t *node, h3_direction *direction)
{
    *direction = i < H3_NODE_COUNT ? H3_FORWARD : H3_BACKWARD;
    *node = *direction == H3_FORWARD ? i : 2 * H3_NODE_COUNT - 1 - i;
}

/* first_failure looks at what a node does on its own inputs; a chained error may come from the nodes before. */
static int is_own(h3_check_kind kind) { return kind != H3_CHECK_CHAINED; }

static void note_failed(h3_gate_result *result, const char *name, const h3_cell *cell)
{
    if (result->first_failed_check[0] != 0) return;
    snprintf(result->first_failed_check, sizeof result->first_failed_check, "%s", name);
    snprintf(result->first_failed_detail, sizeof result->first_failed_detail, "%s", cell->detail);
    result->first_failed_value = cell->value;
    result->first_failed_bound = cell->bound;
}

static void count_cells(h3_gate_result *result, const h3_layout_record *layout, int32_t node, h3_direction direction, int own)
{
    for (int kind = 0; kind < H3_CHECK_KINDS; kind++) {
        const h3_cell *cell = &layout->node[node].cell[direction][kind];
        char name[240];
        if (cell->state == H3_CELL_ABSENT || is_own(kind) != own) continue;
        result->checks++;
        result->not_run += cell->state == H3_CELL_NOT_RUN;
        result->failed += cell->state == H3_CELL_FAILED;
        h3_check_name(name, layout->name, node, direction, kind);
        if (cell->state == H3_CELL_FAILED) note_failed(result, name, cell);
        if (cell->state == H3_CELL_FAILED && own && result->failure_node < 0) {
            result->failure_node = node;
            result->failure_direction = direction;
            result->failure_layout = layout;
        }
    }
}

/* Nothing failed, but not everything ran: the first check that did not is what fails. */
static void note_not_run(h3_gate_result *result)
{
    for (int i = 0; i < 2 * H3_NODE_COUNT && result->not_run > 0 && result->failed == 0; i++) {
        int32_t node;
        h3_direction direction;
        place(i, &node, &direction);
        for (size_t l = 0; l < result->layout_count; l++) {
            for (int kind = 0; kind < H3_CHECK_KINDS; kind++) {
                char name[240];
                if (result->layouts[l].node[node].cell[direction][kind].state != H3_CELL_NOT_RUN) continue;
                h3_check_name(name, result->layouts[l].name, node, direction, kind);
                note_failed(result, name, &result->layouts[l].node[node].cell[direction][kind]);
                result->failure_node = node;
                result->failure_direction = direction;
                result->failure_layout = &result->layouts[l];
                return;
            }
        }
    }
}

static void judge_block0(h3_gate_result *result)
{
    /* The earliest node of any layout comes first; within a node the layouts in the plan's order. */
    for (int own = 1; own >= 0; own--) {
        for (int i = 0; i < 2 * H3_NODE_COUNT; i++) {
            int32_t node;
            h3_direction direction;
            place(i, &node, &direction);
            for (size_t l = 0; l < result->layout_count; l++) count_cells(result, &result->layouts[l], node, direction, own);
        }
    }
}

static int drifted(const h3_node_record *record, int which, h3_direction direction)
{
    static const h3_check_kind kinds[6] = {0, 0, H3_CHECK_REPEAT, H3_CHECK_BATCH, H3_CHECK_REPEAT, H3_CHECK_BATCH};
    if (which == 0) return record->drift[direction];
    if (which == 1) return record->isolated_drift[direction];
    if ((which >= 4) != (direction == H3_BACKWARD)) return 0;
    return record->cell[direction][kinds[which]].state == H3_CELL_FAILED;
}

static void find_drifts(h3_gate_result *result)
{
    for (int which = 0; which < 6; which++) {
        for (int i = 0; i < 2 * H3_NODE_COUNT && result->drift[which][0] == 0; i++) {
            int32_t node;
            h3_direction direction;
            place(i, &node, &direction);
            for (size_t l = 0; l < result->layout_count && result->drift[which][0] == 0; l++)
                if (drifted(&result->layouts[l].node[node], which, direction))
                    snprintf(result->drift[which], sizeof result->drift[which], "%s%s", h3_nodes[node].name, direction == H3_BACKWARD ? " backward" : "");
        }
    }
}

/* Where a tensor of the full model stands in execution order: forward input side, blocks, output side; backward the other way round. */
static int64_t full_place(const h3_full_tensor *tensor)
{
    const char *slash = strchr(tensor->name, '/');
    int64_t block = tensor->block == H3_INPUT_SIDE ? -1 : tensor->block == H3_OUTPUT_SIDE ? INT32_MAX - 1 : tensor->block;
    return slash != NULL && h3_is_gradient(slash + 1) ? 2 * (int64_t)INT32_MAX - block : block;
}

static int by_execution(const void *a, const void *b)
{
    const h3_full_tensor *x = a, *y = b;
    int64_t place_x = full_place(x), place_y = full_place(y);
    if (x->layout != y->layout) return x->layout < y->layout ? -1 : 1;
    if (place_x != place_y) return place_x < place_y ? -1 : 1;
    return x->sequence < y->sequence ? -1 : x->sequence > y->sequence;
}

/* Tensors of all ranks in execution order, so that nothing depends on how many ranks there were; and the first in each direction that
 * is not the provider's bytes. */
static void order_full(h3_gate_result *result)
{
    h3_full_record *full = &result->full;
    for (size_t i = 0; i < full->count; i++) full->tensors[i].sequence = (int64_t)i; /* within a block the order is already right */
    if (full->count > 0) qsort(full->tensors, full->count, sizeof *full->tensors, by_execution);
    for (size_t i = 0; i < full->count; i++) {
        const h3_full_tensor *tensor = &full->tensors[i];
        h3_direction direction = full_place(tensor) > INT32_MAX ? H3_BACKWARD : H3_FORWARD;
        if (!tensor->equal && result->full_drift[direction][0] == 0)
            snprintf(result->full_drift[direction], sizeof result->full_drift[direction], "%s", tensor->name);
    }
}

/* The full model's failing node counts only when block 0 has none. */
static void note_failed_node(h3_gate_result *result, int32_t node)
{
    if (result->failure_node < 0) result->failure_node = node;
}

static void judge_full(h3_gate_result *result)
{
    order_full(result);
    if (result->full.problem[0] != 0) {
        h3_cell cell = {.value = NAN, .bound = 0.0};
        snprintf(cell.detail, sizeof cell.detail, "%.199s", result->full.problem);
        note_failed(result, "full.execution", &cell);
        note_failed_node(result, result->full.problem_node);
    }
    for (size_t i = 0; i < result->full.count; i++) {
        const h3_full_tensor *tensor = &result->full.tensors[i];
        result->bounds++;
        if (tensor->error <= tensor->bound) continue;
        h3_cell cell = {.value = tensor->error, .bound = tensor->bound};
        char name[260];
        result->bounds_failed++;
        snprintf(name, sizeof name, "full.%s", tensor->name);
        if (result->first_failed_check[0] == 0) note_failed_node(result, tensor->node);
        note_failed(result, name, &cell);
    }
}

void h3_gate_judge(h3_gate_result *result)
{
    int complete = 1, failed = 0;
    result->checks = result->failed = result->not_run = result->bounds = result->bounds_failed = 0;
    result->first_failed_check[0] = 0;
    result->failure_node = -1;
    result->failure_layout = NULL;
    if (result->section[H3_SECTION_BUILD] == H3_SECTION_FAILED) {
        h3_cell cell = {.value = NAN, .bound = 0.0};
        note_failed(result, "build", &cell);
        snprintf(result->first_failed_detail, sizeof result->first_failed_detail, "%s", result->build_problem);
    }
    judge_block0(result);
    note_not_run(result);
    find_drifts(result);
    judge_full(result);
    if (result->section[H3_SECTION_BLOCK0] == H3_SECTION_PASSED && (result->failed > 0 || result->not_run > 0)) result->section[H3_SECTION_BLOCK0] = H3_SECTION_FAILED;
    if (result->section[H3_SECTION_FULL] == H3_SECTION_PASSED && (result->bounds_failed > 0 || result->full.problem[0] != 0))
        result->section[H3_SECTION_FULL] = H3_SECTION_FAILED;
    for (int i = 0; i < H3_SECTIONS; i++) {
        complete &= result->section[i] == H3_SECTION_PASSED;
        failed |= result->section[i] == H3_SECTION_FAILED || result->section[i] == H3_SECTION_NOT_RUN;
    }
    int partial = result->only != NULL || result->allow_dirty;
    result->verdict = failed || (!complete && !partial) ? "INVALID" : partial ? "PARTIAL" : "VALID";
}
