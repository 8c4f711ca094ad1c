#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "qualify/gate_report.h"

/* "0.0031 / 0.0021 FAIL", "bitwise", "-" */
static void figure(char out[48], const h3_cell *cell, int bitwise)
{
    if (cell->state == H3_CELL_ABSENT || cell->state == H3_CELL_NOT_RUN) snprintf(out, 48, "-");
    else if (bitwise && cell->state == H3_CELL_PASSED) snprintf(out, 48, "bitwise");
    else if (cell->bound == 0.0 && cell->value == 0.0) snprintf(out, 48, "%s", cell->state == H3_CELL_PASSED ? "ok" : "FAIL");
    else snprintf(out, 48, "%.4f / %.4f%s", cell->value, cell->bound, cell->state == H3_CELL_PASSED ? "" : " FAIL");
}

static const char *mark(const h3_cell *cell, const char *failed)
{
    return cell->state == H3_CELL_PASSED ? "=" : cell->state == H3_CELL_FAILED ? failed : "-";
}

static int any_failed(const h3_node_record *record)
{
    for (int direction = 0; direction < 2; direction++)
        for (int kind = 0; kind < H3_CHECK_KINDS; kind++)
            if (record->cell[direction][kind].state == H3_CELL_FAILED) return 1;
    return 0;
}

/* The worse of a node's two directions in one column. */
static const h3_cell *worse(const h3_node_record *record, h3_check_kind kind)
{
    const h3_cell *forward = &record->cell[H3_FORWARD][kind], *backward = &record->cell[H3_BACKWARD][kind];
    if (forward->state == H3_CELL_FAILED || backward->state == H3_CELL_ABSENT) return forward;
    if (backward->state == H3_CELL_FAILED || forward->state == H3_CELL_ABSENT) return backward;
    return backward->value / backward->bound > forward->value / forward->bound ? backward : forward;
}

static void say_layout(const h3_layout_record *layout)
{
    h3_say("block 0  %-9s %lld rows", layout->name, (long long)layout->rows);
    h3_say("         %-16s %-24s %-24s %-24s %-8s %s", "node", "isolated  e / bound", "gradients e / bound", "chained   e / bound", "repeat", "batch row");
    for (int32_t node = 0; node < H3_NODE_COUNT; node++) {
        const h3_node_record *record = &layout->node[node];
        char forward[48], backward[48], chained[48];
        figure(forward, &record->cell[H3_FORWARD][H3_CHECK_ERROR], !record->isolated_drift[H3_FORWARD]);
        figure(backward, &record->cell[H3_BACKWARD][H3_CHECK_ERROR], !record->isolated_drift[H3_BACKWARD]);
        figure(chained, worse(record, H3_CHECK_CHAINED), 0);
        h3_say("      %s  %-16s %-24s %-24s %-24s %-8s %s", any_failed(record) ? ">" : " ", h3_nodes[node].name, forward, backward, chained,
               mark(worse(record, H3_CHECK_REPEAT), "differs"), mark(worse(record, H3_CHECK_BATCH), "differs"));
    }
}

static void say_failures(const h3_layout_record *layout, int32_t node)
{
    for (int direction = 0; direction < 2; direction++) {
        for (int kind = 0; kind < H3_CHECK_KINDS; kind++) {
            const h3_cell *cell = &layout->node[node].cell[direction][kind];
            char numbers[80] = "";
            if (cell->state != H3_CELL_FAILED) continue;
            if (cell->bound != 0.0) snprintf(numbers, sizeof numbers, "%.6g over bound %.6g (provider %.6g)  ", cell->value, cell->bound, cell->provider);
            h3_say("                   %s %s: %s%s", direction == H3_FORWARD ? "forward" : "backward", h3_check_names[kind], numbers, cell->detail);
        }
    }
}

void h3_gate_say_node(const h3_layout_record *layout, int32_t node)
{
    static const char *const states[] = {"", "not run", "ok", "FAIL"};
    h3_say("node     %s  layout %s, %lld rows", h3_nodes[node].name, layout->name, (long long)layout->rows);
    for (int direction = 0; direction < 2; direction++) {
        for (int kind = 0; kind < H3_CHECK_KINDS; kind++) {
            const h3_cell *cell = &layout->node[node].cell[direction][kind];
            char numbers[80] = "";
            if (cell->state == H3_CELL_ABSENT) continue;
            if (cell->bound != 0.0) snprintf(numbers, sizeof numbers, "%.6g / %.6g  (provider %.6g)  ", cell->value, cell->bound, cell->provider);
            h3_say("         %-8s %-9s %-4s %s%s", direction == H3_FORWARD ? "forward" : "backward", h3_check_names[kind], states[cell->state], numbers, cell->detail);
        }
    }
}

static void say_build(const h3_bindings *candidate)
{
    for (int32_t i = 0; i < candidate->library_count; i++) {
        const h3_library *library = &candidate->libraries[i];
        const char *slash = strrchr(library->path, '/');
        h3_say("build    %s %.8s%s  %s  %s", slash != NULL ? slash + 1 : library->path, library->sha256, (library->table->build & H3_BUILD_DIRTY) ? " (dirty)" : "",
               library->table->compiler, library->table->architectures);
    }
}

void h3_gate_say(const h3_gate_result *result, const h3_bindings *candidate)
{
    say_build(candidate);
    for (size_t i = 0; i < result->layout_count; i++)
        if (result->layouts[i].ran && (result->failed > 0 || result->only != NULL)) say_layout(&result->layouts[i]);
    if (result->failure_layout != NULL) {
        h3_say("first_failure      %s, layout %s", h3_nodes[result->failure_node].name, result->failure_layout->name);
        say_failures(result->failure_layout, result->failure_node);
    } else if (result->first_failed_check[0] != 0) {
        if (result->failure_node >= 0) h3_say("first_failure      %s, full model", h3_nodes[result->failure_node].name);
        char numbers[80] = "";
        if (result->first_failed_bound != 0.0) snprintf(numbers, sizeof numbers, "%.6g over bound %.6g  ", result->first_failed_value, result->first_failed_bound);
        h3_say("first failed check %s: %s%s", result->first_failed_check, numbers, result->first_failed_detail);
    }
    if (result->full.count > 0)
        h3_say("full model  %lld blocks, %lld bounds, %lld beyond; first drift forward %s, backward %s", (long long)result->blocks, (long long)result->bounds,
               (long long)result->bounds_failed, result->full_drift[0][0] ? result->full_drift[0] : "none", result->full_drift[1][0] ? result->full_drift[1] : "none");
}
