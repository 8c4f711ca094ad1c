/* gate.json against stage.json and the thresholds. A verdict is believed only when the figures under it say the same. */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "qualify/gate_report.h"
#include "qualify/run_check_internal.h"

static h3_status disagrees(const char *what, const char *with)
{
    return h3_error(H3_INTEGRITY, "gate.json: %s disagrees with %s; rerun h3_candidate_gate", what, with);
}

typedef struct tally {
    int64_t checks, failed, not_run;
} tally;

static h3_status count_direction(tally *out, const cJSON *direction)
{
    const cJSON *checks, *cell;
    H3_TRY(h3_json_object(&checks, direction, "checks", "gate.json", H3_INTEGRITY));
    cJSON_ArrayForEach(cell, checks) {
        const char *state;
        H3_TRY(h3_json_string(&state, cell, "state", "gate.json", H3_INTEGRITY));
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(cell, "value"),
                    *bound = cJSON_GetObjectItemCaseSensitive(cell, "bound");
        int passed = strcmp(state, "passed") == 0;
        if (passed && value != NULL &&
            !(cJSON_IsNumber(value) && cJSON_IsNumber(bound) && value->valuedouble <= bound->valuedouble))
            return disagrees("a passed check", "its figure");
        out->checks++;
        out->failed += strcmp(state, "failed") == 0;
        out->not_run += !passed && strcmp(state, "failed") != 0;
    }
    return H3_OK;
}

static h3_status count_checks(tally *out, const cJSON *gate)
{
    const cJSON *layouts, *layout, *nodes, *node, *direction;
    H3_TRY(h3_json_array(&layouts, gate, "block0", "gate.json", H3_INTEGRITY));
    cJSON_ArrayForEach(layout, layouts) {
        H3_TRY(h3_json_array(&nodes, layout, "nodes", "gate.json", H3_INTEGRITY));
        cJSON_ArrayForEach(node, nodes) {
            H3_TRY(h3_json_object(&direction, node, "forward", "gate.json", H3_INTEGRITY));
            H3_TRY(count_direction(out, direction));
            H3_TRY(h3_json_object(&direction, node, "backward", "gate.json", H3_INTEGRITY));
            H3_TRY(count_direction(out, direction));
        }
    }
    return H3_OK;
}

/* Each tensor's bound is the frozen one. */
static h3_status count_bounds(tally *out, const cJSON *gate, const h3_thresholds *thresholds)
{
    const cJSON *full = cJSON_GetObjectItemCaseSensitive(gate, "full_model"), *tensors, *tensor;
    if (full == NULL) return H3_OK;
    H3_TRY(h3_json_array(&tensors, full, "tensors", "gate.json", H3_INTEGRITY));
    cJSON_ArrayForEach(tensor, tensors) {
        const char *name;
        double bound;
        char layout[64];
        H3_TRY(h3_json_string(&name, tensor, "tensor", "gate.json", H3_INTEGRITY));
        H3_TRY(h3_json_number(&bound, tensor, "bound", "gate.json", H3_INTEGRITY));
        const char *slash = strchr(name, '/');
        if (slash == NULL || slash - name >= (ptrdiff_t)sizeof layout) return disagrees("a tensor's name", "thresholds.json");
        snprintf(layout, sizeof layout, "%.*s", (int)(slash - name), name);
        const h3_threshold *frozen = h3_thresholds_find(thresholds, layout, slash + 1);
        if (frozen == NULL || frozen->bound != bound)
            return h3_error(H3_INTEGRITY, "gate.json: the bound of %s is not the frozen one; rerun h3_candidate_gate", name);
        const cJSON *error = cJSON_GetObjectItemCaseSensitive(tensor, "error"); /* null: not a number */
        out->checks++;
        out->failed += !(cJSON_IsNumber(error) && error->valuedouble <= bound);
    }
    return H3_OK;
}

static h3_status same_count(const cJSON *counts, const char *key, int64_t counted)
{
    int64_t said;
    H3_TRY(h3_json_integer(&said, counts, key, 0, INT64_MAX, "gate.json", H3_INTEGRITY));
    return said == counted ? H3_OK : disagrees(key, "the records");
}

static int all_sections_passed(const cJSON *gate)
{
    const cJSON *sections = cJSON_GetObjectItemCaseSensitive(gate, "sections"), *section;
    int count = 0;
    cJSON_ArrayForEach(section, sections) {
        if (!cJSON_IsString(section) || strcmp(section->valuestring, "passed") != 0) return 0;
        count++;
    }
    return count == H3_SECTIONS;
}

/* A verdict that lets stage 4 go on needs everything: all sections, no failure, a bound met for every tensor. */
static h3_status check_valid(const cJSON *gate, const tally *checks, const tally *bounds, const h3_run_facts *facts)
{
    if (!all_sections_passed(gate)) return disagrees("VALID", "its sections");
    if (checks->checks == 0 || checks->failed > 0 || checks->not_run > 0) return disagrees("VALID", "its checks");
    if (bounds->failed > 0 || bounds->checks != (int64_t)facts->thresholds.count) return disagrees("VALID", "its bounds");
    return H3_OK;
}

static h3_status check_counts(h3_run_check *check, const h3_run_facts *facts, const char *verdict)
{
    const cJSON *counts;
    tally checks = {0}, bounds = {0};
    H3_TRY(count_checks(&checks, facts->gate));
    H3_TRY(count_bounds(&bounds, facts->gate, &facts->thresholds));
    H3_TRY(h3_json_object(&counts, facts->gate, "counts", "gate.json", H3_INTEGRITY));
    H3_TRY(same_count(counts, "checks", checks.checks));
    H3_TRY(same_count(counts, "checks_failed", checks.failed));
    H3_TRY(same_count(counts, "bounds", bounds.checks));
    H3_TRY(same_count(counts, "bounds_failed", bounds.failed));
    check->checks = checks.checks;
    if (strcmp(verdict, "PARTIAL") == 0 && checks.failed + bounds.failed > 0) return disagrees("PARTIAL", "a failed check");
    return strcmp(verdict, "VALID") == 0 ? check_valid(facts->gate, &checks, &bounds, facts) : H3_OK;
}

h3_status h3_check_gate(h3_run_check *check, h3_run_facts *facts)
{
    const char *schema, *identity, *verdict;
    H3_TRY(h3_run_view_json(&facts->gate, &check->view, H3_STAGE_GATE, "gate.json"));
    H3_TRY(h3_json_string(&schema, facts->gate, "schema", "gate.json", H3_INTEGRITY));
    H3_TRY(h3_json_string(&identity, facts->gate, "plan_identity", "gate.json", H3_INTEGRITY));
    H3_TRY(h3_json_string(&verdict, facts->gate, "verdict", "gate.json", H3_INTEGRITY));
    if (strcmp(schema, "h3-gate-v1") != 0) return h3_error(H3_INTEGRITY, "gate.json is no gate report of this version");
    if (strcmp(identity, check->plan.identity) != 0)
        return h3_error(H3_INTEGRITY, "gate.json was made by another plan; rerun h3_candidate_gate");
    if (strcmp(verdict, check->view.stages[H3_STAGE_GATE].verdict) != 0) return disagrees("its verdict", "stage.json");
    const cJSON *accepted = cJSON_GetObjectItemCaseSensitive(facts->gate, "accepted");
    if (!cJSON_IsBool(accepted) || cJSON_IsTrue(accepted) != (strcmp(verdict, "VALID") == 0))
        return disagrees("\"accepted\"", "its verdict");
    return check_counts(check, facts, verdict);
}
