/*
 * The layers y = x W^T of a block (q_proj, k_proj, v_proj, o_proj, ffn_gate_up, ffn_down) and, with a bias, the
 * boundary's linear_bias.
 */
#include "gemm.h"
#include "operators.h"

typedef struct linear_sizes {
    int64_t rows, inputs, outputs;
    int32_t dtype;
    int bf16;
} linear_sizes;

static int check_linear(const h3_check *check, int biased, linear_sizes *sizes)
{
    const h3_call *call = check->call;
    const h3_tensor *x = &call->in[0], *weight = &call->param[0];
    *sizes = (linear_sizes){.dtype = x->dtype, .bf16 = x->dtype == H3_BF16};
    if (h3_want_host(check) || h3_want_activation(check, "x", x)) return 1;
    if (h3_want(check, "x", x, x->dtype, 2, H3_SHAPE(H3_ANY, H3_ANY))) return 1;
    sizes->rows = x->shape[0];
    sizes->inputs = x->shape[1];
    if (h3_want(check, "weight", weight, x->dtype, 2, H3_SHAPE(H3_ANY, sizes->inputs))) return 1;
    sizes->outputs = weight->shape[0];
    return biased ? h3_want(check, "bias", &call->param[1], x->dtype, 1, H3_SHAPE(sizes->outputs)) : 0;
}

static size_t workspace(const linear_sizes *sizes)
{
    return h3_layer_workspace(sizes->rows, sizes->inputs, sizes->outputs, sizes->bf16);
}

static int plan_linear(const h3_call *call, h3_call_plan *plan, int biased)
{
    linear_sizes sizes;
    h3_check check = h3_check_plan(call);
    *plan = (h3_call_plan){0};
    if (check_linear(&check, biased, &sizes)) return 1;
    plan->forward_workspace = plan->backward_workspace = workspace(&sizes);
    return 0;
}

static int forward(h3_call *call, int biased)
{
    linear_sizes sizes;
    h3_arena arena;
    h3_check check = h3_check_call(call);
    if (check_linear(&check, biased, &sizes)) return 1;
    if (h3_want(&check, "out", &call->out, sizes.dtype, 2, H3_SHAPE(sizes.rows, sizes.outputs))) return 1;
    if (h3_open_workspace(&check, workspace(&sizes), &arena)) return 1;
    h3_layer_forward(h3_matrix_of(&call->in[0], sizes.rows, sizes.inputs),
                     h3_matrix_of(&call->param[0], sizes.outputs, sizes.inputs), biased ? call->param[1].data : NULL,
                     h3_matrix_of(&call->out, sizes.rows, sizes.outputs), arena);
    h3_ran(call, h3_blas_kernel(), sizes.bf16);
    return 0;
}

static int backward(h3_call *call, int biased)
{
    linear_sizes sizes;
    h3_arena arena;
    h3_check check = h3_check_call(call);
    h3_tensor *dx = &call->din[0], *dweight = &call->dparam[0], *dbias = &call->dparam[1];
    if (check_linear(&check, biased, &sizes)) return 1;
    if (h3_want(&check, "dout", &call->dout, sizes.dtype, 2, H3_SHAPE(sizes.rows, sizes.outputs))) return 1;
    if (h3_want_optional(&check, "din[0]", dx, sizes.dtype, 2, call->in[0].shape)) return 1;
    if (h3_want_optional(&check, "dparam[0]", dweight, sizes.dtype, 2, call->param[0].shape)) return 1;
    if (biased && h3_want_optional(&check, "dparam[1]", dbias, sizes.dtype, 1, call->param[1].shape)) return 1;
    if (h3_open_workspace(&check, workspace(&sizes), &arena)) return 1;
    h3_matrix dy = h3_matrix_of(&call->dout, sizes.rows, sizes.outputs);
    h3_matrix x = h3_matrix_of(&call->in[0], sizes.rows, sizes.inputs),
              weight = h3_matrix_of(&call->param[0], sizes.outputs, sizes.inputs);
    if (dx->data != NULL) h3_layer_input_gradient(dy, weight, h3_matrix_of(dx, sizes.rows, sizes.inputs), arena);
    if (dweight->data != NULL) h3_layer_weight_gradient(dy, x, h3_matrix_of(dweight, sizes.outputs, sizes.inputs), arena);
    if (biased && dbias->data != NULL) h3_layer_bias_gradient(dy, dbias->data, arena);
    h3_ran(call, h3_blas_kernel(), sizes.bf16);
    return 0;
}

int h3_linear_plan(const h3_call *call, h3_call_plan *plan) { return plan_linear(call, plan, 0); }
int h3_linear_forward(h3_call *call) { return forward(call, 0); }
int h3_linear_backward(h3_call *call) { return backward(call, 0); }

int h3_linear_bias_plan(const h3_call *call, h3_call_plan *plan) { return plan_linear(call, plan, 1); }
int h3_linear_bias_forward(h3_call *call) { return forward(call, 1); }
int h3_linear_bias_backward(h3_call *call) { return backward(call, 1); }
