/*
 * The layers y = x W^T of a block (q_proj, k_proj, v_proj, o_proj, ffn_gate_up, ffn_down) and, with a bias, the
 * boundary's linear_bias.
 */
#include "operators.h"
#include "products.h"

struct linear_sizes {
    int64_t rows, inputs, outputs;
    int32_t dtype;
    bool bf16, biased;
};

struct linear_workspace {
    void *products;
    float *biased;
};

static int check_linear(const h3_check &check, bool biased, linear_sizes &sizes)
{
    const h3_call *call = check.call;
    const h3_tensor &x = call->in[0], &weight = call->param[0];
    if (h3_want_device(check) || h3_want_activation(check, "x", x)) return 1;
    if (h3_want(check, "x", x, x.dtype, {H3_ANY, H3_ANY})) return 1;
    if (h3_want(check, "weight", weight, x.dtype, {H3_ANY, x.shape[1]})) return 1;
    sizes = {x.shape[0], x.shape[1], weight.shape[0], x.dtype, x.dtype == H3_BF16, biased};
    return biased ? h3_want(check, "bias", call->param[1], x.dtype, {sizes.outputs}) : 0;
}

static linear_workspace lay_out(const linear_sizes &sizes, h3_arena &arena, bool forward)
{
    linear_workspace w = {h3_take_products(arena), nullptr};
    if (sizes.biased && forward) w.biased = h3_take_biased(arena, sizes.rows, sizes.outputs, sizes.bf16);
    return w;
}

static size_t needed(const linear_sizes &sizes, bool forward)
{
    h3_arena arena = {nullptr, 0};
    lay_out(sizes, arena, forward);
    return arena.used;
}

static int plan_linear(const h3_call *call, h3_call_plan *plan, bool biased)
{
    linear_sizes sizes;
    h3_check check = h3_check_plan(call, plan);
    if (check_linear(check, biased, sizes)) return 1;
    plan->forward_workspace = needed(sizes, true);
    plan->backward_workspace = needed(sizes, false);
    return 0;
}

static int forward(h3_call *call, bool biased)
{
    linear_sizes sizes;
    h3_arena arena;
    h3_products products;
    h3_check check = h3_check_call(call);
    if (check_linear(check, biased, sizes)) return 1;
    if (h3_want(check, "out", call->out, sizes.dtype, {sizes.rows, sizes.outputs})) return 1;
    if (h3_open_workspace(check, needed(sizes, true), arena)) return 1;
    linear_workspace w = lay_out(sizes, arena, true);
    if (h3_products_open(products, check, w.products)) return 1;
    if (h3_layer_forward(products, h3_matrix_of(call->in[0], sizes.rows, sizes.inputs), h3_matrix_of(call->param[0], sizes.outputs, sizes.inputs),
                         biased ? call->param[1].data : nullptr, h3_matrix_of(call->out, sizes.rows, sizes.outputs), w.biased))
        return 1;
    h3_products_ran(products, call, sizes.bf16);
    return 0;
}

static int check_gradients(const h3_check &check, const linear_sizes &sizes)
{
    const h3_call *call = check.call;
    if (h3_want(check, "dout", call->dout, sizes.dtype, {sizes.rows, sizes.outputs})) return 1;
    if (h3_want_optional(check, "din[0]", call->din[0], sizes.dtype, call->in[0])) return 1;
    if (h3_want_optional(check, "dparam[0]", call->dparam[0], sizes.dtype, call->param[0])) return 1;
    return sizes.biased ? h3_want_optional(check, "dparam[1]", call->dparam[1], sizes.dtype, call->param[1]) : 0;
}

static int backward(h3_call *call, bool biased)
{
    linear_sizes sizes;
    h3_arena arena;
    h3_products products;
    h3_check check = h3_check_call(call);
    if (check_linear(check, biased, sizes) || check_gradients(check, sizes)) return 1;
    if (h3_open_workspace(check, needed(sizes, false), arena)) return 1;
    if (h3_products_open(products, check, lay_out(sizes, arena, false).products)) return 1;
    h3_matrix dy = h3_matrix_of(call->dout, sizes.rows, sizes.outputs), x = h3_matrix_of(call->in[0], sizes.rows, sizes.inputs),
              weight = h3_matrix_of(call->param[0], sizes.outputs, sizes.inputs);
    h3_matrix dx = h3_matrix_of(call->din[0], sizes.rows, sizes.inputs), dweight = h3_matrix_of(call->dparam[0], sizes.outputs, sizes.inputs);
    if (dx.data != nullptr && h3_layer_input_gradient(products, dy, weight, dx)) return 1;
    if (dweight.data != nullptr && h3_layer_weight_gradient(products, dy, x, dweight)) return 1;
    if (biased && call->dparam[1].data != nullptr && h3_layer_bias_gradient(check, dy, call->dparam[1].data)) return 1;
    h3_products_ran(products, call, sizes.bf16);
    return 0;
}

int h3_linear_plan(const h3_call *call, h3_call_plan *plan) { return plan_linear(call, plan, false); }
int h3_linear_forward(h3_call *call) { return forward(call, false); }
int h3_linear_backward(h3_call *call) { return backward(call, false); }

int h3_linear_bias_plan(const h3_call *call, h3_call_plan *plan) { return plan_linear(call, plan, true); }
int h3_linear_bias_forward(h3_call *call) { return forward(call, true); }
int h3_linear_bias_backward(h3_call *call) { return backward(call, true); }
