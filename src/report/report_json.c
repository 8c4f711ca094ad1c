/* report.json; its schema is in docs/report.md. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "qualify/metrics.h"
#include "report/data.h"

static void add_copy(cJSON *object, const char *key, const cJSON *value)
{
    if (value != NULL) cJSON_AddItemToObject(object, key, cJSON_Duplicate(value, 1));
    else cJSON_AddNullToObject(object, key);
}

static void add_text_or_null(cJSON *object, const char *key, const char *text)
{
    if (text[0] != 0) cJSON_AddStringToObject(object, key, text);
    else cJSON_AddNullToObject(object, key);
}

static cJSON *figure_json(const h3_figure *figure)
{
    if (figure->name[0] == 0) return cJSON_CreateNull();
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "name", figure->name);
    cJSON_AddStringToObject(json, "words", figure->words);
    cJSON_AddNumberToObject(json, "value", figure->value); /* NaN prints as null */
    cJSON_AddNumberToObject(json, "bound", figure->bound);
    cJSON_AddNumberToObject(json, "provider", figure->provider);
    cJSON_AddNumberToObject(json, "used", figure->used);
    if (figure->at_least) cJSON_AddBoolToObject(json, "at_least", 1);
    if (figure->detail[0] != 0) cJSON_AddStringToObject(json, "detail", figure->detail);
    return json;
}

/* --- stages ------------------------------------------------------------------------------------------------------- */

static cJSON *stage_json(const h3_report_data *data, int i)
{
    const h3_run_stage_view *stage = &data->view.stages[i];
    cJSON *json = cJSON_CreateObject();
    int64_t bytes = 0;
    cJSON_AddStringToObject(json, "stage", h3_run_stage_name(i));
    cJSON_AddStringToObject(json, "state", !stage->present ? "missing" : !stage->fresh ? "stale" : stage->verdict);
    add_text_or_null(json, "stage_json_sha256", stage->sha256);
    for (size_t k = 0; k < stage->outputs.count; k++) bytes += stage->outputs.items[k].size;
    h3_json_add_integer(json, "outputs", (int64_t)stage->outputs.count);
    h3_json_add_integer(json, "bytes", bytes);
    if (!data->usable[i]) cJSON_AddStringToObject(json, "next", h3_run_stage_program(i));
    return json;
}

static void add_stages(cJSON *json, const h3_report_data *data)
{
    cJSON *stages = cJSON_AddArrayToObject(json, "stages"), *missing = cJSON_AddArrayToObject(json, "missing");
    for (int i = 0; i < H3_RUN_STAGES; i++) {
        if (data->needed[i] || data->view.stages[i].present) cJSON_AddItemToArray(stages, stage_json(data, i));
        if (data->needed[i] && !data->usable[i]) cJSON_AddItemToArray(missing, cJSON_CreateString(h3_run_stage_name(i)));
    }
}

/* --- what was qualified ------------------------------------------------------------------------------------------- */

static void add_layouts(cJSON *json, const h3_report_data *data)
{
    cJSON *layouts = cJSON_AddArrayToObject(json, "layouts");
    for (size_t i = 0; i < data->plan.layout_count; i++) {
        const h3_plan_layout *layout = &data->plan.layouts[i];
        const cJSON *ran;
        cJSON *item = cJSON_CreateObject();
        cJSON_AddStringToObject(item, "name", layout->name);
        cJSON_ArrayForEach(ran, h3_item_of(data->gate, "block0"))
            if (strcmp(h3_text_of(ran, "layout"), layout->name) == 0) h3_json_add_integer(item, "rows", h3_count_of(ran, "rows"));
        cJSON_AddItemToArray(layouts, item);
    }
}

static cJSON *generation_json(const h3_report_data *data)
{
    const cJSON *side = data->candidate != NULL ? data->candidate : data->provider, *seed;
    if (side == NULL) return cJSON_CreateNull();
    cJSON *json = cJSON_CreateObject(), *seeds = cJSON_AddArrayToObject(json, "seeds");
    cJSON_ArrayForEach(seed, h3_item_of(side, "seeds"))
        cJSON_AddItemToArray(seeds, cJSON_CreateNumber((double)h3_count_of(seed, "seed")));
    add_copy(json, "evaluations", h3_item_of(h3_item_of(side, "sampling"), "evaluations"));
    add_copy(json, "contract_sha256", h3_item_of(side, "contract_sha256"));
    add_copy(json, "overrides", h3_item_of(side, "overrides"));
    add_copy(json, "provider_repeat", h3_item_of(data->provider, "repeat"));
    if (h3_item_of(side, "decoders") != NULL) add_copy(json, "decoders", h3_item_of(side, "decoders"));
    return json;
}

static void add_qualified(cJSON *json, const h3_report_data *data)
{
    cJSON *qualified = cJSON_AddObjectToObject(json, "qualified");
    add_copy(qualified, "model", h3_item_of(data->manifest, "model"));
    add_layouts(qualified, data);
    add_copy(qualified, "libraries", h3_item_of(data->gate, "libraries"));
    add_copy(qualified, "bindings", h3_item_of(data->gate, "bindings"));
    add_copy(qualified, "provider", h3_item_of(data->gate, "provider"));
    add_copy(qualified, "fingerprint", h3_item_of(data->manifest, "fingerprint"));
    cJSON_AddItemToObject(qualified, "generation", generation_json(data));
}

/* --- the gate ----------------------------------------------------------------------------------------------------- */

static cJSON *gate_json(const h3_report_data *data)
{
    static const char *const keys[] = {"verdict",
                                       "accepted",
                                       "dirty",
                                       "only",
                                       "sections",
                                       "counts",
                                       "first_failure",
                                       "first_failed_check",
                                       "first_drift",
                                       "first_isolated_drift",
                                       "first_repeat_drift",
                                       "first_batch_drift",
                                       "first_grad_repeat_drift",
                                       "first_grad_batch_drift"};
    const cJSON *full = h3_item_of(data->gate, "full_model");
    if (data->gate == NULL) return cJSON_CreateNull();
    cJSON *json = cJSON_CreateObject();
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (h3_item_of(data->gate, keys[i]) != NULL) add_copy(json, keys[i], h3_item_of(data->gate, keys[i]));
    add_copy(json, "blocks", h3_item_of(full, "blocks"));
    add_copy(json, "boundary_and_refiners", h3_item_of(full, "boundary_and_refiners"));
    return json;
}

/* One node in one direction: each check's state, and figures where it has some. */
static cJSON *node_json(const char *layout, const cJSON *node, const char *direction)
{
    const cJSON *record = h3_item_of(node, direction), *cell;
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "layout", layout);
    cJSON_AddStringToObject(json, "node", h3_text_of(node, "node"));
    cJSON_AddStringToObject(json, "direction", direction);
    cJSON_AddStringToObject(json, "kernel", h3_text_of(record, "kernel"));
    add_copy(json, "isolated_bitwise", h3_item_of(record, "isolated_bitwise"));
    cJSON *checks = cJSON_AddObjectToObject(json, "checks");
    cJSON_ArrayForEach(cell, h3_item_of(record, "checks")) add_copy(checks, cell->string, cell);
    return json;
}

static void add_nodes(cJSON *json, const h3_report_data *data)
{
    const cJSON *layout, *node;
    cJSON *nodes = cJSON_AddArrayToObject(json, "nodes");
    cJSON_ArrayForEach(layout, h3_item_of(data->gate, "block0")) {
        cJSON_ArrayForEach(node, h3_item_of(layout, "nodes")) {
            cJSON_AddItemToArray(nodes, node_json(h3_text_of(layout, "layout"), node, "forward"));
            cJSON_AddItemToArray(nodes, node_json(h3_text_of(layout, "layout"), node, "backward"));
        }
    }
}

/* --- the blocks --------------------------------------------------------------------------------------------------- */

/* The tensor of a block that comes closest to (or goes farthest beyond) its bound; a NaN is the worst. */
static int is_worse(double error, double bound, const cJSON *worst)
{
    double used = h3_number_of(worst, "error") / h3_number_of(worst, "bound");
    return worst == NULL || isnan(error) || error / bound > used;
}

static void note_worst(const cJSON **worst, const cJSON *tensor)
{
    if (is_worse(h3_number_of(tensor, "error"), h3_number_of(tensor, "bound"), *worst)) *worst = tensor;
}

static cJSON *worst_json(const cJSON *tensor)
{
    if (tensor == NULL) return cJSON_CreateNull();
    cJSON *json = cJSON_CreateObject();
    const char *name = h3_text_of(tensor, "tensor"), *slash = strchr(name, '/');
    cJSON_AddStringToObject(json, "tensor", slash != NULL ? slash + 1 : name);
    add_copy(json, "error", h3_item_of(tensor, "error"));
    add_copy(json, "bound", h3_item_of(tensor, "bound"));
    cJSON_AddNumberToObject(json, "used", h3_number_of(tensor, "error") / h3_number_of(tensor, "bound"));
    return json;
}

static void add_blocks(cJSON *json, const h3_report_data *data)
{
    const cJSON *tensors = h3_item_of(h3_item_of(data->gate, "full_model"), "tensors"), *tensor;
    int64_t blocks = h3_count_of(h3_item_of(data->gate, "full_model"), "blocks");
    cJSON *list = cJSON_AddArrayToObject(json, "blocks");
    if (blocks > 100000) return; /* no such model; a file that says so is not believed */
    size_t places = (size_t)blocks * 2;
    const cJSON **worst = calloc(places + 1, sizeof *worst);
    for (size_t layout = 0; worst != NULL && layout < data->plan.layout_count; layout++) {
        const char *name = data->plan.layouts[layout].name;
        memset(worst, 0, (places + 1) * sizeof *worst);
        cJSON_ArrayForEach(tensor, tensors) {
            const char *full = h3_text_of(tensor, "tensor");
            int64_t block = h3_block_of(full);
            if (block < 0 || block >= blocks || strncmp(full, name, strlen(name)) != 0 || full[strlen(name)] != '/') continue;
            note_worst(&worst[2 * block + h3_is_gradient(full + strlen(name) + 1)], tensor);
        }
        for (int64_t block = 0; block < blocks; block++) {
            cJSON *item = cJSON_CreateObject();
            cJSON_AddStringToObject(item, "layout", name);
            h3_json_add_integer(item, "block", block);
            cJSON_AddItemToObject(item, "forward", worst_json(worst[2 * block]));
            cJSON_AddItemToObject(item, "backward", worst_json(worst[2 * block + 1]));
            cJSON_AddItemToArray(list, item);
        }
    }
    free(worst);
}

/* ------------------------------------------------------------------------------------------------------------------ */

static cJSON *comparison_json(const h3_report_data *data)
{
    static const char *const keys[] = {"verdict", "worst", "limits", "not_judged", "equal_on_both_sides", "seeds"};
    if (data->compare == NULL) return cJSON_CreateNull();
    cJSON *json = cJSON_CreateObject();
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) add_copy(json, keys[i], h3_item_of(data->compare, keys[i]));
    if (h3_item_of(data->compare, "worst_media") == NULL) return json;
    add_copy(json, "worst_media", h3_item_of(data->compare, "worst_media"));
    add_copy(json, "worst_figures", h3_item_of(data->compare, "worst_figures"));
    return json;
}

static void add_plan(cJSON *json, const h3_report_data *data)
{
    cJSON *plan = cJSON_AddObjectToObject(json, "plan");
    cJSON_AddStringToObject(plan, "name", data->plan.name);
    add_text_or_null(plan, "about", h3_text_of(data->plan.json, "about"));
    cJSON_AddStringToObject(plan, "sha256", data->plan.sha256);
    cJSON_AddStringToObject(plan, "identity", data->plan.identity);
    cJSON_AddBoolToObject(plan, "pinned", data->plan.pinned_manifest[0] != 0 || data->plan.pinned_thresholds[0] != 0);
}

h3_status h3_report_json(char **out, const h3_report_data *data)
{
    cJSON *json = cJSON_CreateObject();
    *out = NULL;
    if (json == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for a report");
    cJSON_AddStringToObject(json, "schema", "h3-report-v1");
    cJSON_AddStringToObject(json, "verdict", data->verdict);
    cJSON_AddStringToObject(json, "sentence", data->sentence);
    cJSON_AddItemToObject(json, "decided_by", figure_json(&data->decided));
    add_plan(json, data);
    add_stages(json, data);
    add_qualified(json, data);
    h3_json_add_integer(json, "tensors", cJSON_GetArraySize(h3_item_of(data->manifest, "tensors")));
    h3_json_add_integer(json, "bounds_frozen", cJSON_GetArraySize(h3_item_of(data->thresholds, "bounds")));
    cJSON_AddItemToObject(json, "gate", gate_json(data));
    cJSON *closest = cJSON_AddArrayToObject(json, "closest");
    for (size_t i = 0; i < data->closest_count; i++) cJSON_AddItemToArray(closest, figure_json(&data->closest[i]));
    add_nodes(json, data);
    add_blocks(json, data);
    cJSON_AddItemToObject(json, "comparison", comparison_json(data));
    h3_status status = h3_json_print(out, json);
    cJSON_Delete(json);
    return status;
}
