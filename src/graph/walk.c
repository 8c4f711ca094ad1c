#include "graph/walk.h"

#include "graph/parameters.h"

#include <string.h>

h3_status h3_block_params_load(h3_block_params *out, const h3_device *device, const h3_weights *weights, int64_t block, int refiner, int32_t dtype)
{
    h3_status status = H3_OK;
    memset(out, 0, sizeof *out);
    out->block = block;
    out->refiner = refiner;
    out->dtype = dtype;
    for (int32_t node = 0; node < H3_NODE_COUNT && status == H3_OK; node++) {
        for (int32_t i = 0; i < 2 && status == H3_OK; i++) {
            char name[96];
            if (h3_nodes[node].param[i].suffix == NULL || !h3_walk_has(refiner, node)) continue;
            h3_node_param_name(name, node, i, block, refiner);
            status = h3_parameter_load(&out->param[node][i], device, weights, name, dtype);
        }
    }
    if (status != H3_OK) h3_block_params_free(out, device);
    return status;
}

void h3_block_params_free(h3_block_params *params, const h3_device *device)
{
    for (int32_t node = 0; node < H3_NODE_COUNT; node++)
        for (int32_t i = 0; i < 2; i++) h3_device_free(&params->param[node][i], device);
}

void h3_block_state_free(h3_block_state *state, const h3_device *device)
{
    for (int32_t i = 0; i < H3_VALUE_COUNT; i++) h3_device_free(&state->grad[i], device);
    for (int32_t i = 0; i < H3_ROW_GRADS; i++) h3_device_free(&state->row_grad[i], device);
    for (int32_t node = 0; node < H3_NODE_COUNT; node++) h3_node_result_free(&state->node[node], device);
    memset(state, 0, sizeof *state);
}

int h3_walk_has(int refiner, int32_t node)
{
    return !refiner || (node != H3_NODE_ADALN && node != H3_NODE_ROPE_Q && node != H3_NODE_ROPE_K);
}

/* A refiner block has no rotary: what would come from a rope comes from the norm before it. */
static int32_t wired(int refiner, int32_t value)
{
    if (refiner && value == H3_NODE_ROPE_Q) return H3_NODE_Q_NORM;
    if (refiner && value == H3_NODE_ROPE_K) return H3_NODE_K_NORM;
    return value;
}

/* The same bytes in another form. */
static h3_tensor reform(const h3_tensor *tensor, h3_form form, int64_t batch, const h3_config *config)
{
    int64_t rows = tensor->data == NULL ? 0 : h3_tensor_count(tensor);
    int64_t heads = config->num_attention_heads, head_dim = config->attention_head_dim;
    if (tensor->data == NULL) return *tensor;
    switch (form) {
    case H3_FORM_HEADS: return h3_tensor_view(tensor->data, tensor->dtype, 3, H3_SHAPE(rows / (heads * head_dim), heads, head_dim));
    case H3_FORM_ITEMS: return h3_tensor_view(tensor->data, tensor->dtype, 4, H3_SHAPE(batch, rows / (batch * heads * head_dim), heads, head_dim));
    case H3_FORM_ROWS:
        if (tensor->rank == 2) return *tensor;
        return h3_tensor_view(tensor->data, tensor->dtype, 2, H3_SHAPE(rows / (heads * head_dim), heads * head_dim));
    default: return *tensor;
    }
}

void h3_walk_input(h3_node_input *out, const h3_config *config, const h3_block_params *params, const h3_block_state *values, int32_t node)
{
    const h3_node_spec *spec = &h3_nodes[node];
    memset(out, 0, sizeof *out);
    for (int i = 0; i < H3_MAX_IN && spec->in[i] != H3_VALUE_NONE; i++) {
        int32_t value = wired(params->refiner, spec->in[i]);
        /* Only activations take the node's form; table, index, cos and sin keep theirs. */
        int activation = i == 0 || spec->in_form == H3_FORM_ITEMS || spec->grad_in[i];
        out->in[i] = activation && value != H3_VALUE_TEMB ? reform(&values->value[value], spec->in_form, values->batch, config) : values->value[value];
    }
    for (int i = 0; i < 2; i++) out->param[i] = params->param[node][i];
    out->row_index = values->value[H3_VALUE_INDEX];
}

static h3_status tap(const h3_walk *walk, h3_tap_kind kind, h3_direction direction, int32_t node, int32_t index, const h3_tensor *tensor,
                     const h3_call_report *report)
{
    if (walk->tap == NULL) return H3_OK;
    h3_tap_event event = {kind, direction, node, index, walk->params->block, walk->params->refiner, tensor, walk->operators[node], report};
    return walk->tap->event(walk->tap->user, &event);
}

/* Converts an isolated walk's inputs to this walk's type; the copies are kept in `owned` until the call is over. */
typedef struct conversions {
    h3_tensor items[H3_MAX_IN + 1 + H3_ROW_GRADS];
    int count;
} conversions;

static h3_status convert(h3_walk *walk, h3_tensor *tensor, int32_t dtype, conversions *owned)
{
    if (tensor->data == NULL || tensor->dtype == dtype || (tensor->dtype != H3_F32 && tensor->dtype != H3_BF16)) return H3_OK;
    H3_TRY(h3_engine_convert(walk->engine, &owned->items[owned->count], tensor, dtype));
    *tensor = owned->items[owned->count++];
    return H3_OK;
}

static void convert_free(h3_walk *walk, conversions *owned)
{
    for (int i = 0; i < owned->count; i++) h3_device_free(&owned->items[i], walk->engine->device);
    owned->count = 0;
}

static int32_t walk_dtype(const h3_walk *walk) { return walk->params->dtype; }

static h3_status node_context(const h3_walk *walk, h3_status status, int32_t node)
{
    return h3_error_context(status, "%s %lld node %s", walk->params->refiner ? "refiner block" : "block", (long long)walk->params->block, h3_nodes[node].name);
}

static h3_status gather_input(h3_walk *walk, int32_t node, h3_node_input *input, conversions *owned)
{
    walk->engine->beat_block = walk->params->block;
    h3_walk_input(input, walk->engine->config, walk->params, walk->source ? walk->source : walk->state, node);
    for (int i = 0; i < H3_MAX_IN && node != H3_NODE_ADALN; i++) H3_TRY(convert(walk, &input->in[i], walk_dtype(walk), owned));
    return H3_OK;
}

h3_status h3_walk_node_forward(h3_walk *walk, int32_t node)
{
    if (walk->operators[node] == NULL) return h3_error(H3_FAILED, "node %s is unavailable: no operator is bound to it", h3_nodes[node].name);
    h3_node_input input;
    conversions owned = {.count = 0};
    h3_node_result *result = &walk->state->node[node];
    h3_status status = gather_input(walk, node, &input, &owned);
    if (status == H3_OK) status = h3_node_forward(walk->engine, node, walk->operators[node], &input, result);
    convert_free(walk, &owned);
    if (status != H3_OK) return node_context(walk, status, node);
    walk->state->value[node] = result->out;
    H3_TRY(tap(walk, H3_TAP_CALL, H3_FORWARD, node, 0, NULL, &result->forward));
    return tap(walk, H3_TAP_OUTPUT, H3_FORWARD, node, 0, &result->out, &result->forward);
}

h3_status h3_walk_forward(h3_walk *walk)
{
    for (int32_t node = 0; node < H3_NODE_COUNT; node++) {
        if (h3_walk_has(walk->params->refiner, node)) H3_TRY(h3_walk_node_forward(walk, node));
    }
    return H3_OK;
}

/* Adds a contribution to a value's total gradient; the first one moves, later ones are added in the activation's type. */
static h3_status accumulate(h3_walk *walk, int32_t value, h3_tensor *contribution)
{
    h3_tensor *total = &walk->state->grad[value];
    if (total->data == NULL) {
        *total = *contribution;
        *contribution = (h3_tensor){0};
        return H3_OK;
    }
    h3_tensor view = *contribution; /* same bytes, perhaps another form */
    view.rank = total->rank;
    memcpy(view.shape, total->shape, sizeof view.shape);
    memcpy(view.stride, total->stride, sizeof view.stride);
    H3_TRY(h3_engine_add(walk->engine, total, total, &view));
    h3_device_free(contribution, walk->engine->device);
    return H3_OK;
}

/* Spreads a node's gradients to the values they belong to (chained walks only). */
static h3_status distribute(h3_walk *walk, int32_t node)
{
    const h3_node_spec *spec = &h3_nodes[node];
    h3_node_result *result = &walk->state->node[node];
    if (spec->pass_x) {
        h3_tensor copy;
        H3_TRY(h3_device_duplicate(&copy, walk->engine->device, &walk->state->grad[node]));
        H3_TRY(accumulate(walk, spec->in[0], &copy));
    }
    for (int i = 0; i < H3_MAX_IN; i++)
        if (result->din[i].data != NULL) H3_TRY(accumulate(walk, wired(walk->params->refiner, spec->in[i]), &result->din[i]));
    for (int i = 0; i < spec->row_grads; i++) {
        walk->state->row_grad[spec->chunk + i] = result->row_grad[i];
        result->row_grad[i] = (h3_tensor){0};
    }
    if (node == H3_NODE_ADALN) {
        walk->state->grad[node] = result->dtable;
        result->dtable = (h3_tensor){0};
    }
    return H3_OK;
}

/* The upstream gradient of a node in its output's form, and for the projection the six row gradients. */
static h3_status gather_gradient(h3_walk *walk, int32_t node, h3_node_input *input, conversions *owned)
{
    const h3_block_state *from = walk->source ? walk->source : walk->state;
    if (node == H3_NODE_ADALN) {
        for (int i = 0; i < H3_ROW_GRADS; i++) {
            input->row_grad[i] = from->row_grad[i];
            H3_TRY(convert(walk, &input->row_grad[i], walk_dtype(walk), owned));
        }
        return H3_OK;
    }
    input->dout = reform(&from->grad[node], h3_nodes[node].out_form, from->batch, walk->engine->config);
    return convert(walk, &input->dout, walk_dtype(walk), owned);
}

h3_status h3_walk_node_backward(h3_walk *walk, int32_t node)
{
    h3_node_input input;
    conversions owned = {.count = 0};
    h3_node_result *result = &walk->state->node[node];
    h3_status status = gather_input(walk, node, &input, &owned);
    if (status == H3_OK) status = gather_gradient(walk, node, &input, &owned);
    if (walk->source == NULL && node != H3_NODE_ADALN && status == H3_OK)
        status = tap(walk, H3_TAP_GRADIENT, H3_BACKWARD, node, 0, &walk->state->grad[node], NULL);
    if (status == H3_OK) status = h3_node_backward(walk->engine, node, walk->operators[node], &input, result);
    convert_free(walk, &owned);
    if (status != H3_OK) return node_context(walk, status, node);
    if (walk->source == NULL) H3_TRY(distribute(walk, node));
    H3_TRY(tap(walk, H3_TAP_CALL, H3_BACKWARD, node, 0, NULL, &result->backward));
    if (walk->source == NULL && node == H3_NODE_ADALN) H3_TRY(tap(walk, H3_TAP_GRADIENT, H3_BACKWARD, node, 0, &walk->state->grad[node], NULL));
    for (int i = 0; i < 2; i++)
        if (result->dparam[i].data != NULL) H3_TRY(tap(walk, H3_TAP_PARAM, H3_BACKWARD, node, i, &result->dparam[i], NULL));
    return H3_OK;
}

h3_status h3_walk_backward(h3_walk *walk)
{
    for (int32_t node = H3_NODE_COUNT - 1; node >= 0; node--)
        if (h3_walk_has(walk->params->refiner, node)) H3_TRY(h3_walk_node_backward(walk, node));
    if (walk->source != NULL) return H3_OK;
    H3_TRY(tap(walk, H3_TAP_INPUT, H3_BACKWARD, H3_NODE_NORM1, 0, &walk->state->grad[H3_VALUE_X], NULL));
    if (walk->params->refiner) return H3_OK;
    return tap(walk, H3_TAP_INPUT, H3_BACKWARD, H3_NODE_ADALN, 1, &walk->state->grad[H3_VALUE_TEMB], NULL);
}
