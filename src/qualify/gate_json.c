#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "qualify/gate_report.h"

static const char *const section_names[H3_SECTIONS] = {"build_identity", "hashes", "block0", "full_model"};
static const char *const section_states[] = {"not run", "passed", "failed", "left out"};
static const char *const cell_states[] = {"absent", "not run", "passed", "failed"};

static void add_text_or_null(cJSON *object, const char *key, const char *text)
{
    if (text[0] != 0) cJSON_AddStringToObject(object, key, text);
    else cJSON_AddNullToObject(object, key);
}

/* What did not run is neither true nor false. */
static void add_flag_or_null(cJSON *object, const char *key, int known, int value)
{
    if (known) cJSON_AddBoolToObject(object, key, value);
    else cJSON_AddNullToObject(object, key);
}

static cJSON *cell_json(const h3_cell *cell)
{
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "state", cell_states[cell->state]);
    if (cell->bound != 0.0 || cell->value != 0.0) {
        cJSON_AddNumberToObject(json, "value", cell->value);
        cJSON_AddNumberToObject(json, "bound", cell->bound);
        cJSON_AddNumberToObject(json, "provider", cell->provider);
    }
    if (cell->detail[0] != 0) cJSON_AddStringToObject(json, "detail", cell->detail);
    return json;
}

static cJSON *direction_json(const h3_node_record *record, h3_direction direction)
{
    cJSON *json = cJSON_CreateObject(), *checks = cJSON_AddObjectToObject(json, "checks"), *chained = cJSON_AddObjectToObject(json, "chained_against_provider");
    const h3_difference *difference = &record->difference[direction];
    for (int kind = 0; kind < H3_CHECK_KINDS; kind++)
        if (record->cell[direction][kind].state != H3_CELL_ABSENT) cJSON_AddItemToObject(checks, h3_check_names[kind], cell_json(&record->cell[direction][kind]));
    cJSON_AddStringToObject(json, "kernel", record->kernel[direction]);
    add_flag_or_null(json, "isolated_bitwise", record->isolated_ran[direction], !record->isolated_drift[direction]);
    add_flag_or_null(chained, "bitwise", record->digest[direction][0] != 0, !record->drift[direction]);
    h3_json_add_integer(chained, "differing", difference->differing);
    h3_json_add_integer(chained, "elements", difference->count);
    cJSON_AddNumberToObject(chained, "largest_difference", difference->largest);
    h3_json_add_integer(chained, "worst_ulp", difference->worst_ulp);
    h3_json_add_integer(chained, "first_row", record->first_row[direction]);
    add_text_or_null(chained, "sha256", record->digest[direction]);
    return json;
}

static cJSON *layout_json(const h3_layout_record *layout)
{
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "layout", layout->name);
    h3_json_add_integer(json, "rows", layout->rows);
    cJSON *control = cJSON_AddObjectToObject(json, "permutation_control");
    h3_json_add_integer(control, "rows_changed", layout->permuted_rows_changed);
    cJSON_AddNumberToObject(control, "largest_difference", layout->permuted_largest);
    cJSON *nodes = cJSON_AddArrayToObject(json, "nodes");
    for (int32_t node = 0; node < H3_NODE_COUNT; node++) {
        cJSON *item = cJSON_CreateObject();
        cJSON_AddStringToObject(item, "node", h3_nodes[node].name);
        cJSON_AddItemToObject(item, "forward", direction_json(&layout->node[node], H3_FORWARD));
        cJSON_AddItemToObject(item, "backward", direction_json(&layout->node[node], H3_BACKWARD));
        cJSON_AddItemToArray(nodes, item);
    }
    return json;
}

static cJSON *binding_json(int32_t node, const h3_bindings *candidate)
{
    const h3_operator *op = candidate->operators[node];
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "node", h3_nodes[node].name);
    if (op == NULL) {
        cJSON_AddNullToObject(json, "operator");
        return json;
    }
    cJSON_AddStringToObject(json, "library", candidate->libraries[candidate->library_of[node]].table->name);
    cJSON_AddStringToObject(json, "operator", op->name);
    cJSON_AddStringToObject(json, "row", op->row);
    cJSON_AddStringToObject(json, "label", op->label);
    cJSON_AddStringToObject(json, "contract", op->contract);
    cJSON *promises = cJSON_AddArrayToObject(json, "promises");
    if (op->promises & H3_PROMISE_REPEAT) cJSON_AddItemToArray(promises, cJSON_CreateString("repeat"));
    if (op->promises & H3_PROMISE_BATCH_ROW) cJSON_AddItemToArray(promises, cJSON_CreateString("batch row"));
    if (op->promises & H3_PROMISE_ISOLATED_BITWISE) cJSON_AddItemToArray(promises, cJSON_CreateString("isolated bitwise"));
    return json;
}

static h3_status libraries_json(cJSON *json, const h3_bindings *candidate, const h3_library *provider)
{
    cJSON *libraries = cJSON_AddArrayToObject(json, "libraries"), *identity;
    for (int32_t i = 0; i < candidate->library_count; i++) {
        const char *slash = strrchr(candidate->libraries[i].path, '/');
        H3_TRY(h3_library_identity(&candidate->libraries[i], &identity));
        cJSON_AddStringToObject(identity, "file", slash != NULL ? slash + 1 : candidate->libraries[i].path);
        cJSON_AddItemToArray(libraries, identity);
    }
    H3_TRY(h3_library_identity(provider, &identity));
    cJSON_AddItemToObject(json, "provider", identity);
    cJSON *bindings = cJSON_AddArrayToObject(json, "bindings");
    for (int32_t node = 0; node < H3_NODE_COUNT; node++) cJSON_AddItemToArray(bindings, binding_json(node, candidate));
    return H3_OK;
}

static cJSON *full_json(const h3_gate_result *result)
{
    const h3_full_record *full = &result->full;
    cJSON *json = cJSON_CreateObject(), *calls = cJSON_AddObjectToObject(json, "executed");
    h3_json_add_integer(json, "blocks", result->blocks);
    cJSON_AddStringToObject(json, "boundary_and_refiners", "provider");
    h3_json_add_integer(json, "bounds", result->bounds);
    h3_json_add_integer(json, "bounds_failed", result->bounds_failed);
    add_text_or_null(json, "first_drift_forward", result->full_drift[H3_FORWARD]);
    add_text_or_null(json, "first_drift_backward", result->full_drift[H3_BACKWARD]);
    for (int32_t node = 0; node < H3_NODE_COUNT; node++) {
        cJSON *item = cJSON_AddObjectToObject(calls, h3_nodes[node].name);
        h3_json_add_integer(item, "forward", full->calls[H3_FORWARD][node]);
        h3_json_add_integer(item, "backward", full->calls[H3_BACKWARD][node]);
        h3_json_add_integer(item, "fallbacks", full->fallbacks[node]);
    }
    cJSON *tensors = cJSON_AddArrayToObject(json, "tensors");
    for (size_t i = 0; i < full->count; i++) {
        cJSON *item = cJSON_CreateObject();
        cJSON_AddStringToObject(item, "tensor", full->tensors[i].name);
        cJSON_AddNumberToObject(item, "error", full->tensors[i].error);
        cJSON_AddNumberToObject(item, "bound", full->tensors[i].bound);
        cJSON_AddBoolToObject(item, "bitwise", full->tensors[i].equal != 0);
        cJSON_AddItemToArray(tensors, item);
    }
    return json;
}

static void verdict_json(cJSON *json, const h3_gate_result *result)
{
    cJSON_AddStringToObject(json, "verdict", result->verdict);
    cJSON_AddBoolToObject(json, "accepted", strcmp(result->verdict, "VALID") == 0);
    cJSON_AddBoolToObject(json, "dirty", result->dirty);
    if (result->only != NULL) cJSON_AddStringToObject(json, "only", result->only);
    cJSON *sections = cJSON_AddObjectToObject(json, "sections");
    for (int i = 0; i < H3_SECTIONS; i++) cJSON_AddStringToObject(sections, section_names[i], section_states[result->section[i]]);
    cJSON *counts = cJSON_AddObjectToObject(json, "counts");
    h3_json_add_integer(counts, "checks", result->checks);
    h3_json_add_integer(counts, "checks_failed", result->failed);
    h3_json_add_integer(counts, "checks_not_run", result->not_run);
    h3_json_add_integer(counts, "bounds", result->bounds);
    h3_json_add_integer(counts, "bounds_failed", result->bounds_failed);
    add_text_or_null(json, "first_failure", result->failure_node >= 0 ? h3_nodes[result->failure_node].name : "");
    add_text_or_null(json, "first_failed_check", result->first_failed_check);
    if (result->first_failed_check[0] != 0) {
        cJSON_AddNumberToObject(json, "first_failed_value", result->first_failed_value);
        cJSON_AddNumberToObject(json, "first_failed_bound", result->first_failed_bound);
        cJSON_AddStringToObject(json, "first_failed_detail", result->first_failed_detail);
    }
    for (int i = 0; i < 6; i++) add_text_or_null(json, h3_drift_names[i], result->drift[i]);
}

h3_status h3_gate_json(cJSON **out, const h3_gate_result *result, const h3_plan *plan, const h3_bindings *candidate, const h3_library *provider)
{
    cJSON *json = cJSON_CreateObject();
    if (json == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for gate.json");
    cJSON_AddStringToObject(json, "schema", "h3-gate-v1");
    cJSON_AddStringToObject(json, "plan_identity", plan->identity);
    verdict_json(json, result);
    h3_status status = libraries_json(json, candidate, provider);
    cJSON *layouts = cJSON_AddArrayToObject(json, "block0");
    for (size_t i = 0; i < result->layout_count; i++)
        if (result->layouts[i].ran) cJSON_AddItemToArray(layouts, layout_json(&result->layouts[i]));
    if (result->full.count > 0) cJSON_AddItemToObject(json, "full_model", full_json(result));
    if (status != H3_OK) cJSON_Delete(json);
    else *out = json;
    return status;
}
