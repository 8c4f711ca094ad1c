#include "graph/engine.h"

#include <string.h>

void h3_engine_init(h3_engine *engine, const h3_config *config, const h3_device *device, const h3_library *provider)
{
    *engine = (h3_engine){.config = config, .device = device, .provider = provider};
}

void h3_engine_free(h3_engine *engine)
{
    if (engine->workspace != NULL) engine->device->release(engine->workspace);
    engine->workspace = NULL;
    engine->workspace_bytes = 0;
}

h3_call h3_engine_new_call(const h3_engine *engine)
{
    return (h3_call){.size = sizeof(h3_call), .device = engine->device->kind, .device_index = engine->device->index, .stream = engine->device->stream};
}

static h3_status need_workspace(h3_engine *engine, const h3_operator *op, size_t bytes)
{
    if (bytes <= engine->workspace_bytes) return H3_OK;
    if (engine->workspace != NULL) engine->device->release(engine->workspace);
    engine->workspace = NULL;
    engine->workspace_bytes = 0;
    h3_status status = engine->device->allocate(&engine->workspace, bytes);
    if (status != H3_OK) return h3_error_context(status, "the workspace that operator %s plans", op->name);
    engine->workspace_bytes = bytes;
    return H3_OK;
}

/* Runs one entry of an operator, and restores what it may have done to the floating-point control state. A device that is lost or
 * full is no failure of the operator. */
static h3_status guarded(const h3_engine *engine, const h3_operator *op, h3_call *call, h3_call_plan *plan, int (*run)(h3_call *), const char *what)
{
    uint64_t before = h3_fp_state();
    call->message[0] = 0;
    int code = run != NULL ? run(call) : op->plan(call, plan);
    uint64_t after = h3_fp_state();
    h3_fp_restore(before);
    call->message[sizeof call->message - 1] = 0;
    if (code != 0 && engine->device->health() != H3_OK) return h3_error_context(H3_ENVIRONMENT, "operator %s failed in %s (%s)", op->name, what, call->message[0] ? call->message : "no message");
    if (code != 0) return h3_error(H3_FAILED, "operator %s failed in %s: %s", op->name, what, call->message[0] ? call->message : "no message");
    if (after != before) return h3_error(H3_FAILED, "operator %s changed the floating-point control state in %s; rebuild it without fast math", op->name, what);
    return H3_OK;
}

static h3_status check_saved(const h3_operator *op, const h3_tensor *saved)
{
    int possible = h3_dtype_size(saved->dtype) > 0 && saved->rank >= 1 && saved->rank <= H3_MAX_RANK;
    for (int32_t i = 0; possible && i < saved->rank; i++) possible = saved->shape[i] >= 1;
    return possible ? H3_OK : h3_error(H3_FAILED, "operator %s plans a saved tensor without a possible type and shape; set dtype, rank and shape", op->name);
}

h3_status h3_engine_plan(h3_engine *engine, const h3_operator *op, h3_call *call, h3_call_plan *plan)
{
    memset(plan, 0, sizeof *plan);
    H3_TRY(guarded(engine, op, call, plan, NULL, "plan"));
    if (plan->saved_count < 0 || plan->saved_count > H3_MAX_SAVED)
        return h3_error(H3_FAILED, "operator %s plans %d saved tensors; at most %d are possible", op->name, plan->saved_count, H3_MAX_SAVED);
    for (int i = 0; i < plan->saved_count; i++) H3_TRY(check_saved(op, &plan->saved[i]));
    return H3_OK;
}

h3_status h3_engine_call(h3_engine *engine, const h3_operator *op, h3_call *call, h3_direction direction)
{
    h3_call_plan plan;
    if (engine->beat != NULL) engine->beat(engine->beat_user, op->node, engine->beat_block);
    if (direction == H3_BACKWARD && op->backward == NULL) return h3_error(H3_FAILED, "operator %s has no backward", op->name);
    H3_TRY(h3_engine_plan(engine, op, call, &plan));
    H3_TRY(need_workspace(engine, op, direction == H3_FORWARD ? plan.forward_workspace : plan.backward_workspace));
    call->workspace = engine->workspace;
    call->workspace_bytes = engine->workspace_bytes;
    memset(&call->report, 0, sizeof call->report);
    H3_TRY(engine->device->span_begin());
    H3_TRY(guarded(engine, op, call, NULL, direction == H3_FORWARD ? op->forward : op->backward, direction == H3_FORWARD ? "forward" : "backward"));
    H3_TRY(engine->device->span_end());
    call->report.kernel[sizeof call->report.kernel - 1] = 0;
    return H3_OK;
}

void h3_node_result_free(h3_node_result *result, const h3_device *device)
{
    h3_device_free(&result->out, device);
    h3_device_free(&result->dtable, device);
    for (int i = 0; i < H3_MAX_SAVED; i++) h3_device_free(&result->saved[i], device);
    for (int i = 0; i < H3_MAX_IN; i++) h3_device_free(&result->din[i], device);
    for (int i = 0; i < 2; i++) {
        h3_device_free(&result->dparam[i], device);
        h3_device_free(&result->row_grad[i], device);
    }
}

static h3_call node_call(const h3_engine *engine, int32_t node, const h3_node_input *input)
{
    const h3_node_spec *spec = &h3_nodes[node];
    h3_call call = h3_engine_new_call(engine);
    call.chunk = spec->chunk;
    call.epsilon = (float)(spec->qk_epsilon ? engine->config->qk_norm_eps : engine->config->norm_eps);
    for (int i = 0; i < H3_MAX_IN; i++) call.in[i] = input->in[i];
    for (int i = 0; i < 2; i++) call.param[i] = input->param[i];
    return call;
}

/* The activation type of a node: its parameter's when it has one (adaln_projection reads a float32 temb), else its input's. */
static int32_t activation(const h3_node_input *input) { return input->param[0].data != NULL ? input->param[0].dtype : input->in[0].dtype; }

static h3_status new_output(h3_engine *engine, int32_t node, const h3_node_input *input, h3_tensor *out)
{
    const h3_config *config = engine->config;
    const h3_tensor *x = &input->in[0];
    int32_t dtype = activation(input);
    switch (h3_nodes[node].out_form) {
    case H3_FORM_TABLE: return h3_device_tensor(out, engine->device, dtype, 3, H3_SHAPE(3 * x->shape[0], 6, config->hidden_size));
    case H3_FORM_ITEMS:
    case H3_FORM_HEADS: return h3_device_tensor(out, engine->device, dtype, x->rank, x->shape);
    default: return h3_device_tensor(out, engine->device, dtype, 2, H3_SHAPE(x->shape[0], h3_node_width(node, config)));
    }
}

h3_status h3_node_forward(h3_engine *engine, int32_t node, const h3_operator *op, const h3_node_input *input, h3_node_result *result)
{
    h3_call_plan plan;
    h3_call call = node_call(engine, node, input);
    H3_TRY(new_output(engine, node, input, &result->out));
    call.out = result->out;
    H3_TRY(h3_engine_plan(engine, op, &call, &plan));
    for (int i = 0; i < plan.saved_count; i++) {
        H3_TRY(h3_device_tensor(&result->saved[i], engine->device, plan.saved[i].dtype, plan.saved[i].rank, plan.saved[i].shape));
        call.saved[i] = result->saved[i];
    }
    H3_TRY(h3_engine_call(engine, op, &call, H3_FORWARD));
    result->forward = call.report;
    return H3_OK;
}

static h3_status new_gradients(h3_engine *engine, int32_t node, const h3_node_input *input, h3_node_result *result)
{
    const h3_node_spec *spec = &h3_nodes[node];
    const h3_device *device = engine->device;
    int modulated = spec->row_grads > 0 && input->row_index.data != NULL;
    for (int i = 0; i < H3_MAX_IN; i++)
        if (spec->grad_in[i]) H3_TRY(h3_device_tensor(&result->din[i], device, input->in[i].dtype, input->in[i].rank, input->in[i].shape));
    for (int i = 0; i < 2; i++)
        if (input->param[i].data != NULL)
            H3_TRY(h3_device_tensor(&result->dparam[i], device, input->param[i].dtype, input->param[i].rank, input->param[i].shape));
    for (int i = 0; modulated && i < spec->row_grads; i++)
        H3_TRY(h3_device_tensor(&result->row_grad[i], device, input->dout.dtype, input->dout.rank, input->dout.shape));
    if (node == H3_NODE_ADALN) H3_TRY(h3_device_tensor(&result->dtable, device, result->out.dtype, result->out.rank, result->out.shape));
    return H3_OK;
}

h3_status h3_node_backward(h3_engine *engine, int32_t node, const h3_operator *op, const h3_node_input *input, h3_node_result *result)
{
    h3_call call = node_call(engine, node, input);
    H3_TRY(new_gradients(engine, node, input, result));
    call.out = result->out;
    call.dout = input->dout;
    call.dtable = result->dtable;
    for (int i = 0; i < H3_MAX_SAVED; i++) call.saved[i] = result->saved[i];
    for (int i = 0; i < H3_MAX_IN; i++) call.din[i] = result->din[i];
    for (int i = 0; i < 2; i++) {
        call.dparam[i] = result->dparam[i];
        call.row_grad[i] = result->row_grad[i];
    }
    if (node == H3_NODE_ADALN) {
        for (int i = 0; i < H3_ROW_GRADS; i++) call.row_grad[i] = input->row_grad[i];
        call.row_index = input->row_index;
    }
    H3_TRY(h3_engine_call(engine, op, &call, H3_BACKWARD));
    result->backward = call.report;
    return H3_OK;
}

h3_status h3_engine_add(h3_engine *engine, h3_tensor *out, const h3_tensor *a, const h3_tensor *b)
{
    const h3_operator *op;
    H3_TRY(h3_library_find(&op, engine->provider, "add", NULL));
    h3_call call = h3_engine_new_call(engine);
    call.in[0] = *a;
    call.in[1] = *b;
    call.out = *out;
    return h3_engine_call(engine, op, &call, H3_FORWARD);
}

h3_status h3_engine_convert(h3_engine *engine, h3_tensor *out, const h3_tensor *tensor, int32_t dtype)
{
    const h3_operator *op;
    if (tensor->dtype == dtype) return h3_device_duplicate(out, engine->device, tensor);
    H3_TRY(h3_library_find(&op, engine->provider, "convert", NULL));
    H3_TRY(h3_device_tensor(out, engine->device, dtype, tensor->rank, tensor->shape));
    h3_call call = h3_engine_new_call(engine);
    call.in[0] = *tensor;
    call.out = *out;
    h3_status status = h3_engine_call(engine, op, &call, H3_FORWARD);
    if (status != H3_OK) h3_device_free(out, engine->device);
    return status;
}
