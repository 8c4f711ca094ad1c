#include "qualify/diagnose.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

/* The value of rank 0 on every rank. */
static h3_status share(h3_ranks *ranks, void *value, size_t bytes)
{
    void *data = value;
    size_t size = bytes;
    H3_TRY(h3_ranks_broadcast(ranks, 0, &data, &size));
    if (data == value) return H3_OK;
    memcpy(value, data, bytes);
    free(data);
    return H3_OK;
}

/* One tensor out of all ranks' records: the named one, or with an empty name the one with the largest error over bound. */
static h3_status pick(h3_ranks *ranks, const h3_full_record *record, const char *name, h3_full_tensor *out)
{
    h3_full_tensor best = {.error = -1.0, .bound = 1.0};
    void **all = NULL;
    size_t *sizes = NULL;
    for (size_t i = 0; i < record->count; i++) {
        const h3_full_tensor *tensor = &record->tensors[i];
        int wanted = name[0] != 0 ? strcmp(tensor->name, name) == 0 : !(tensor->error / tensor->bound <= best.error / best.bound);
        if (wanted) best = *tensor;
    }
    H3_TRY(h3_ranks_gather(ranks, &best, sizeof best, &all, &sizes));
    for (int rank = 0; all != NULL && rank < ranks->count; rank++) {
        h3_full_tensor tensor;
        memcpy(&tensor, all[rank], sizeof tensor);
        if (tensor.name[0] != 0 && !(tensor.error / tensor.bound <= best.error / best.bound)) best = tensor;
        free(all[rank]);
    }
    free(all);
    free(sizes);
    H3_TRY(share(ranks, &best, sizeof best));
    if (best.name[0] == 0) return h3_error(H3_INTEGRITY, "no tensor was compared; rerun h3_reference_pass");
    *out = best;
    return H3_OK;
}

/* One full-model run with these operators; the target's record. */
static h3_status run(const h3_gate *gate, const h3_operator *const operators[H3_NODE_COUNT], int64_t end, const char *name, h3_progress *progress,
                     h3_full_tensor *out)
{
    h3_bindings bindings = *gate->candidate; /* a view: nothing of it is owned */
    h3_gate one = *gate;
    h3_full_record record = {0};
    memcpy(bindings.operators, operators, sizeof bindings.operators);
    one.candidate = &bindings;
    one.candidate_end = end;
    h3_status status = h3_gate_full(&one, NULL, &record);
    if (status == H3_OK) status = pick(gate->ranks, &record, name, out);
    free(record.tensors);
    h3_progress_add(progress, 1);
    return status;
}

static int more_explaining(const void *a, const void *b)
{
    const h3_substitution *x = a, *y = b;
    if (x->explained != y->explained) return x->explained > y->explained ? -1 : 1;
    return x->node != y->node ? x->node - y->node : x->provider_inside - y->provider_inside;
}

static h3_status substitute(const h3_gate *gate, const h3_operator *const provider[H3_NODE_COUNT], h3_diagnosis *out, h3_progress *progress)
{
    for (int32_t i = 0; i < 2 * H3_NODE_COUNT; i++) {
        h3_substitution *s = &out->substitutions[i];
        const h3_operator *operators[H3_NODE_COUNT];
        h3_full_tensor target;
        s->node = i / 2;
        s->provider_inside = i % 2;
        memcpy(operators, s->provider_inside ? (const void *)gate->candidate->operators : (const void *)provider, sizeof operators);
        operators[s->node] = s->provider_inside ? provider[s->node] : gate->candidate->operators[s->node];
        H3_TRY(run(gate, operators, 0, out->target, progress, &target));
        s->error = target.error;
        double change = s->provider_inside ? out->candidate_error - s->error : s->error - out->provider_error;
        s->explained = out->candidate_error != 0.0 ? change / out->candidate_error : 0.0;
    }
    qsort(out->substitutions, 2 * H3_NODE_COUNT, sizeof *out->substitutions, more_explaining);
    return H3_OK;
}

/* The shortest prefix of candidate blocks that breaks the bound, by bisection. */
static h3_status bisect(const h3_gate *gate, int64_t blocks, h3_diagnosis *out, h3_progress *progress)
{
    int64_t good = 0, bad = blocks;
    out->first_bad_block = -1;
    if (out->candidate_error <= out->bound) return H3_OK;
    while (bad - good > 1) {
        int64_t middle = (good + bad) / 2;
        h3_full_tensor target;
        H3_TRY(run(gate, gate->candidate->operators, middle, out->target, progress, &target));
        if (target.error <= out->bound) good = middle;
        else bad = middle;
    }
    out->first_bad_block = bad - 1;
    return H3_OK;
}

static h3_status permutation(const h3_gate *gate, h3_diagnosis *out)
{
    h3_gate one = *gate;
    h3_layout_record *record = calloc(1, sizeof *record);
    if (record == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for a layout record");
    one.only = "block0.*.residual_mlp.forward.chained";
    one.digests = NULL;
    one.digests_size = 0;
    h3_status status = gate->ranks->rank == 0 ? h3_gate_block0(&one, &gate->plan->layouts[0], record) : H3_OK;
    out->permuted_rows_changed = record->permuted_rows_changed;
    out->permuted_largest = record->permuted_largest;
    free(one.digests);
    free(record);
    return h3_ranks_agree(gate->ranks, status);
}

h3_status h3_diagnose(h3_gate *gate, h3_progress *progress, h3_diagnosis *out)
{
    h3_plan first = *gate->plan; /* a view with one layout */
    h3_gate one = *gate;
    h3_full_tensor target;
    const h3_operator *provider[H3_NODE_COUNT];
    memset(out, 0, sizeof *out);
    first.layout_count = 1;
    one.plan = &first;
    for (int32_t node = 0; node < H3_NODE_COUNT; node++) H3_TRY(h3_library_find(&provider[node], gate->provider, h3_nodes[node].name, NULL));
    H3_TRY(run(&one, gate->candidate->operators, 0, "", progress, &target));
    memcpy(out->target, target.name, sizeof out->target);
    out->candidate_error = target.error;
    out->bound = target.bound;
    H3_TRY(run(&one, provider, 0, out->target, progress, &target));
    out->provider_error = target.error;
    H3_TRY(substitute(&one, provider, out, progress));
    H3_TRY(bisect(&one, h3_weights_config(gate->weights)->num_layers, out, progress));
    return permutation(&one, out);
}

h3_status h3_diagnosis_json(cJSON **out, const h3_diagnosis *diagnosis, const h3_plan *plan)
{
    cJSON *json = cJSON_CreateObject();
    if (json == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for diagnose.json");
    cJSON_AddStringToObject(json, "schema", "h3-diagnosis-v1");
    cJSON_AddStringToObject(json, "plan_identity", plan->identity);
    cJSON_AddStringToObject(json, "target", diagnosis->target);
    cJSON_AddNumberToObject(json, "bound", diagnosis->bound);
    cJSON_AddNumberToObject(json, "candidate_error", diagnosis->candidate_error);
    cJSON_AddNumberToObject(json, "provider_error", diagnosis->provider_error);
    h3_json_add_integer(json, "first_bad_block", diagnosis->first_bad_block);
    cJSON *control = cJSON_AddObjectToObject(json, "permutation_control");
    h3_json_add_integer(control, "rows_changed", diagnosis->permuted_rows_changed);
    cJSON_AddNumberToObject(control, "largest_difference", diagnosis->permuted_largest);
    cJSON *list = cJSON_AddArrayToObject(json, "substitutions");
    for (int i = 0; i < 2 * H3_NODE_COUNT; i++) {
        const h3_substitution *s = &diagnosis->substitutions[i];
        cJSON *item = cJSON_CreateObject();
        cJSON_AddStringToObject(item, "node", h3_nodes[s->node].name);
        cJSON_AddStringToObject(item, "substitution", s->provider_inside ? "provider in candidate graph" : "candidate in provider graph");
        cJSON_AddNumberToObject(item, "error", s->error);
        cJSON_AddNumberToObject(item, "explained", s->explained);
        cJSON_AddItemToArray(list, item);
    }
    *out = json;
    return H3_OK;
}
