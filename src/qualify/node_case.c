#include "qualify/node_case.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "model/safetensors.h"
#include "store/publish.h"
#include "store/run.h"

enum { CASE_TENSORS = 16 };

static const char *value_name(int32_t value)
{
    static const char *const outside[] = {"x", "temb", "index", "cos", "sin"};
    return value < H3_NODE_COUNT ? h3_nodes[value].name : outside[value - H3_NODE_COUNT];
}

/* The values that a node needs: its inputs, and the index for its rows. */
static int needed_values(int32_t node, int32_t out[H3_MAX_IN + 1])
{
    int count = 0, has_index = 0;
    for (int i = 0; i < H3_MAX_IN && h3_nodes[node].in[i] != H3_VALUE_NONE; i++) {
        out[count++] = h3_nodes[node].in[i];
        has_index |= h3_nodes[node].in[i] == H3_VALUE_INDEX;
    }
    if (!has_index) out[count++] = H3_VALUE_INDEX;
    return count;
}

typedef struct case_entries {
    size_t count;
    h3_safetensors_entry items[CASE_TENSORS];
    char names[CASE_TENSORS][64];
} case_entries;

static void add_entry(case_entries *entries, const char *prefix, const char *name, const h3_tensor *tensor)
{
    char *text = entries->names[entries->count];
    snprintf(text, sizeof entries->names[0], "%s.%s", prefix, name);
    entries->items[entries->count++] = (h3_safetensors_entry){text, *tensor};
}

static void collect(const h3_gate_block *block, int32_t node, case_entries *entries)
{
    int32_t values[H3_MAX_IN + 1];
    int count = needed_values(node, values);
    entries->count = 0;
    for (int i = 0; i < count; i++) add_entry(entries, "value", value_name(values[i]), &block->provider.value[values[i]]);
    for (int i = 0; i < 2; i++)
        if (block->bf16.param[node][i].data != NULL) add_entry(entries, "param", i == 0 ? "0" : "1", &block->bf16.param[node][i]);
    if (node != H3_NODE_ADALN) add_entry(entries, "grad", "out", &block->provider.grad[node]);
    for (int i = 0; node == H3_NODE_ADALN && i < H3_ROW_GRADS; i++) {
        char number[4];
        snprintf(number, sizeof number, "%d", i);
        add_entry(entries, "row_grad", number, &block->provider.row_grad[i]);
    }
}

static h3_status describe(const h3_gate_block *block, int32_t node, cJSON **out)
{
    const h3_gate *gate = block->gate;
    const cJSON *entry = cJSON_GetObjectItemCaseSensitive(gate->plan->candidate, h3_nodes[node].name);
    if (entry == NULL) entry = cJSON_GetObjectItemCaseSensitive(gate->plan->candidate, "*");
    const cJSON *library = cJSON_GetObjectItemCaseSensitive(entry, "library");
    char *config;
    H3_TRY(h3_config_canonical(h3_weights_config(gate->weights), &config));
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "schema", "h3-node-case-v1");
    cJSON_AddStringToObject(json, "node", h3_nodes[node].name);
    cJSON_AddStringToObject(json, "layout", block->layout->name);
    cJSON_AddStringToObject(json, "provider", gate->plan->provider);
    cJSON_AddStringToObject(json, "library", cJSON_IsString(library) ? library->valuestring : "");
    cJSON_AddStringToObject(json, "operator", gate->candidate->operators[node]->name);
    cJSON *last = cJSON_AddStringToObject(json, "config", config);
    free(config);
    if (last == NULL) {
        cJSON_Delete(json);
        return h3_error(H3_ENVIRONMENT, "out of memory for a case");
    }
    *out = json;
    return H3_OK;
}

h3_status h3_node_case_write(h3_gate_block *block, int32_t node)
{
    h3_layout_record *record = block->record;
    case_entries entries;
    cJSON *metadata = NULL;
    char path[H3_PATH_MAX], *image = NULL;
    size_t size;
    collect(block, node, &entries);
    H3_TRY(describe(block, node, &metadata));
    h3_status status = h3_safetensors_build(&image, &size, entries.items, entries.count, metadata);
    cJSON_Delete(metadata);
    H3_TRY(status);
    snprintf(record->case_path, sizeof record->case_path, "cases/%s.%s.safetensors", block->layout->name, h3_nodes[node].name);
    record->case_size = (int64_t)size;
    status = h3_sha256(record->case_sha256, image, size);
    if (status == H3_OK) status = h3_run_place(path, block->gate->run_folder, record->case_path);
    if (status == H3_OK) status = h3_publish(path, image, size);
    free(image);
    return status;
}

/* A case being replayed: its texts and tensors, kept while the block's views point at them. */
typedef struct replay {
    h3_safetensors file;
    cJSON *metadata;
    const char *node, *layout, *provider, *library, *op;
    h3_config config;
    h3_library provider_library;
    h3_bindings bindings;
    h3_tensor values[H3_MAX_IN + 1];
    int value_count;
} replay;

static h3_status read_texts(replay *r, const char *path)
{
    const char *schema, *config;
    if (r->file.metadata == NULL) return h3_error(H3_INTEGRITY, "%s is no node case: it has no metadata", path);
    H3_TRY(h3_json_parse(&r->metadata, r->file.metadata, strlen(r->file.metadata), path, H3_INTEGRITY));
    H3_TRY(h3_json_string(&schema, r->metadata, "schema", path, H3_INTEGRITY));
    if (strcmp(schema, "h3-node-case-v1") != 0) return h3_error(H3_INTEGRITY, "%s is no node case of this version", path);
    H3_TRY(h3_json_string(&r->node, r->metadata, "node", path, H3_INTEGRITY));
    H3_TRY(h3_json_string(&r->layout, r->metadata, "layout", path, H3_INTEGRITY));
    H3_TRY(h3_json_string(&r->provider, r->metadata, "provider", path, H3_INTEGRITY));
    H3_TRY(h3_json_string(&r->library, r->metadata, "library", path, H3_INTEGRITY));
    H3_TRY(h3_json_string(&r->op, r->metadata, "operator", path, H3_INTEGRITY));
    H3_TRY(h3_json_string(&config, r->metadata, "config", path, H3_INTEGRITY));
    return h3_config_parse(&r->config, config, strlen(config), path);
}

static h3_status read_named(h3_tensor *out, const replay *r, const char *prefix, const char *name)
{
    char full[64];
    snprintf(full, sizeof full, "%s.%.48s", prefix, name);
    return h3_safetensors_read(out, &r->file, full, H3_NONE, 0, NULL);
}

static h3_status read_tensors(replay *r, h3_gate_block *block, int32_t node)
{
    int32_t values[H3_MAX_IN + 1];
    r->value_count = needed_values(node, values);
    block->provider.batch = 1;
    for (int i = 0; i < r->value_count; i++) {
        H3_TRY(read_named(&r->values[i], r, "value", value_name(values[i])));
        block->provider.value[values[i]] = r->values[i];
    }
    for (int i = 0; i < 2; i++) {
        if (h3_nodes[node].param[i].suffix == NULL) continue;
        H3_TRY(read_named(&block->bf16.param[node][i], r, "param", i == 0 ? "0" : "1"));
        if (block->bf16.param[node][i].dtype != H3_BF16)
            return h3_error(H3_INTEGRITY, "the case's param.%d is not bfloat16; make the case again", i);
        H3_TRY(h3_tensor_convert(&block->fp32.param[node][i], &block->bf16.param[node][i], H3_F32));
    }
    if (node != H3_NODE_ADALN) return read_named(&block->provider.grad[node], r, "grad", "out");
    for (int i = 0; i < H3_ROW_GRADS; i++) {
        char number[4];
        snprintf(number, sizeof number, "%d", i);
        H3_TRY(read_named(&block->provider.row_grad[i], r, "row_grad", number));
    }
    return h3_tensor_convert(&block->temb, &block->provider.value[H3_VALUE_TEMB], H3_F32);
}

/* --- a case comes from anywhere: what operators are given must have the shapes that they may rely on ----------------------- */

static h3_status wrong_shape(const char *path, const char *kind, const char *name)
{
    return h3_error(H3_INTEGRITY, "%s: %s.%s has not the type and shape that the node needs; make the case again", path, kind,
                    name);
}

static int is_shape(const h3_tensor *tensor, int32_t rank, const int64_t *shape)
{
    return tensor->rank == rank && memcmp(tensor->shape, shape, (size_t)rank * sizeof *shape) == 0;
}

/* Rows of a width; of heads, where that is what the width is made of: apart, or as one item. */
static int is_rows(const h3_tensor *tensor, int64_t rows, int64_t width, const h3_config *config)
{
    int64_t heads = config->num_attention_heads, head_dim = config->attention_head_dim;
    if (tensor->dtype != H3_BF16) return 0;
    if (is_shape(tensor, 2, H3_SHAPE(rows, width))) return 1;
    return width == heads * head_dim &&
           (is_shape(tensor, 3, H3_SHAPE(rows, heads, head_dim)) || is_shape(tensor, 4, H3_SHAPE(1, rows, heads, head_dim)));
}

static int good_value(const h3_tensor *tensor, int32_t value, int64_t rows, const h3_config *config)
{
    switch (value) {
    case H3_VALUE_X: return is_rows(tensor, rows, config->hidden_size, config);
    case H3_VALUE_TEMB:
        return tensor->dtype == H3_F32 && tensor->rank == 2 && tensor->shape[0] >= 1 &&
               tensor->shape[1] == config->time_embed_dim;
    case H3_VALUE_INDEX: return tensor->dtype == H3_I32 && tensor->rank == 1 && rows >= 1;
    case H3_VALUE_COS:
    case H3_VALUE_SIN: return tensor->dtype == H3_BF16 && is_shape(tensor, 2, H3_SHAPE(rows, 3 * config->rope_freq_dim));
    case H3_NODE_ADALN: /* [3T,6,H] */
        return tensor->dtype == H3_BF16 && tensor->rank == 3 && tensor->shape[0] >= 3 && tensor->shape[0] % 3 == 0 &&
               is_shape(tensor, 3, H3_SHAPE(tensor->shape[0], 6, config->hidden_size));
    default: return is_rows(tensor, rows, h3_node_width(value, config), config);
    }
}

static h3_status check_index(const h3_gate_block *block, const char *path)
{
    const h3_tensor *index = &block->provider.value[H3_VALUE_INDEX], *table = &block->provider.value[H3_NODE_ADALN];
    const int32_t *row = index->data;
    int64_t end = table->data != NULL ? table->shape[0] : INT32_MAX;
    for (int64_t i = 0; i < index->shape[0]; i++)
        if (row[i] < 0 || row[i] >= end)
            return h3_error(H3_INTEGRITY, "%s: value.index[%lld] is %d, which is no row of the table", path, (long long)i,
                            row[i]);
    return H3_OK;
}

static h3_status check_params(const replay *r, const h3_gate_block *block, int32_t node, const char *path)
{
    h3_inventory inventory;
    h3_status status = H3_OK;
    H3_TRY(h3_inventory_new(&inventory, &r->config));
    for (int i = 0; i < 2 && status == H3_OK; i++) {
        char name[96];
        const h3_tensor *param = &block->bf16.param[node][i];
        if (h3_nodes[node].param[i].suffix == NULL) continue;
        h3_node_param_name(name, node, i, 0, 0);
        const h3_parameter *wanted = h3_inventory_find(&inventory, name);
        if (wanted == NULL || param->dtype != wanted->dtype || !is_shape(param, wanted->rank, wanted->shape))
            status = wrong_shape(path, "param", i == 0 ? "0" : "1");
    }
    h3_inventory_free(&inventory);
    return status;
}

static h3_status check_shapes(const replay *r, const h3_gate_block *block, int32_t node, const char *path)
{
    int32_t values[H3_MAX_IN + 1];
    int count = needed_values(node, values);
    const h3_tensor *index = &block->provider.value[H3_VALUE_INDEX];
    int64_t rows = index->rank == 1 ? index->shape[0] : 0;
    for (int i = 0; i < count; i++)
        if (!good_value(&block->provider.value[values[i]], values[i], rows, &r->config))
            return wrong_shape(path, "value", value_name(values[i]));
    H3_TRY(check_index(block, path));
    H3_TRY(check_params(r, block, node, path));
    if (node != H3_NODE_ADALN && !is_rows(&block->provider.grad[node], rows, h3_node_width(node, &r->config), &r->config))
        return wrong_shape(path, "grad", "out");
    for (int i = 0; node == H3_NODE_ADALN && i < H3_ROW_GRADS; i++)
        if (!is_rows(&block->provider.row_grad[i], rows, r->config.hidden_size, &r->config))
            return wrong_shape(path, "row_grad", "of a chunk");
    return H3_OK;
}

static h3_status open_case(replay *r, const char *path, h3_gate_block *block, int32_t *node)
{
    H3_TRY(h3_safetensors_open(&r->file, path));
    H3_TRY(read_texts(r, path));
    *node = h3_node_find(r->node);
    if (*node < 0) return h3_error(H3_INTEGRITY, "%s names node \"%.40s\", which no block has", path, r->node);
    H3_TRY(read_tensors(r, block, *node));
    H3_TRY(check_shapes(r, block, *node, path));
    H3_TRY(h3_library_open(&r->provider_library, r->provider));
    H3_TRY(h3_library_open(&r->bindings.libraries[0], r->library));
    r->bindings.library_count = 1;
    H3_TRY(h3_library_find(&r->bindings.operators[*node], &r->bindings.libraries[0], r->node, r->op));
    for (int32_t i = 0; i < H3_NODE_COUNT; i++)
        H3_TRY(h3_library_find(&block->provider_operators[i], &r->provider_library, h3_nodes[i].name, NULL));
    return H3_OK;
}

static void mark_cells(h3_layout_record *record, int32_t node, const h3_operator *op)
{
    for (int direction = 0; direction < 2; direction++)
        for (int kind = 0; kind < H3_CHECK_KINDS; kind++)
            if (kind != H3_CHECK_CHAINED && kind != H3_CHECK_PROCESS && h3_check_exists(node, direction, kind, op))
                record->node[node].cell[direction][kind].state = H3_CELL_NOT_RUN;
}

static h3_status run(replay *r, h3_gate_block *block, int32_t node, h3_layout_record *record)
{
    snprintf(record->name, sizeof record->name, "%.63s", r->layout);
    record->rows = block->inputs.layout.rows = block->provider.value[H3_VALUE_INDEX].shape[0];
    block->only_node = node;
    block->bf16.dtype = H3_BF16;
    block->fp32.dtype = H3_F32;
    h3_engine_init(&block->engine, &r->config, h3_device_cpu(), &r->provider_library);
    mark_cells(record, node, r->bindings.operators[node]);
    record->ran = 1;
    return h3_gate_run_isolated(block);
}

h3_status h3_node_case_run(const char *path, h3_layout_record *record, int32_t *node)
{
    replay r = {0};
    h3_plan_layout layout = {.name = ""};
    h3_gate gate = {.provider = &r.provider_library, .candidate = &r.bindings};
    h3_gate_block block = {.gate = &gate, .layout = &layout, .record = record};
    memset(record, 0, sizeof *record);
    block.engine.device = h3_device_cpu();
    h3_status status = open_case(&r, path, &block, node);
    if (status == H3_OK) status = run(&r, &block, *node, record);
    free(gate.digests);
    h3_gate_block_free(&block);
    for (int i = 0; i < r.value_count; i++) h3_tensor_free(&r.values[i]);
    h3_bindings_close(&r.bindings);
    h3_library_close(&r.provider_library);
    cJSON_Delete(r.metadata);
    h3_safetensors_close(&r.file);
    return status;
}
