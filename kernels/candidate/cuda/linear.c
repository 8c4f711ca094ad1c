/*
 * The six linear nodes: y = x W^T with x [R, C] and W [O, C]; backward dx = dy W and dW = dy^T x.
 * Contract gemm-tc-k16-ascending-v1 (gemm.cu): y sums over C, dx over O, dW over the rows, each one ascending chain.
 */
#include <stdio.h>
#include <string.h>

#include "common.h"

typedef struct linear_sizes {
    int64_t rows, inputs, outputs;
} linear_sizes;

static void check_sizes(h3_check *check, const h3_call *call, linear_sizes *s)
{
    const h3_tensor *x = &call->in[0], *weight = &call->param[0];
    h3_need(check, x, "x", H3_BF16);
    h3_need(check, weight, "weight", H3_BF16);
    if (check->problem) return;
    h3_require(check, weight->rank == 2, "weight", "is no matrix");
    h3_require(check, weight->rank != 2 || weight->shape[0] > 0, "weight", "has no outputs");
    if (check->problem) return;
    *s = (linear_sizes){h3_rows_of(x), weight->shape[1], weight->shape[0]};
    h3_require(check, h3_width_of(x) == s->inputs, "x", "is not as wide as the weight");
}

int h3_linear_plan(const h3_call *call, h3_call_plan *plan)
{
    linear_sizes s;
    h3_check check = {0};
    check_sizes(&check, call, &s);
    if (check.problem) return 1;
    *plan = (h3_call_plan){0};
    return 0;
}

int h3_linear_forward(h3_call *call)
{
    linear_sizes s = {0};
    h3_check check = h3_begin(call);
    check_sizes(&check, call, &s);
    h3_need_rows(&check, &call->out, "out", H3_BF16, s.rows, s.outputs);
    if (check.problem) return h3_refuse(call, &check);
    const h3_gemm product = {.rows = s.rows, .columns = s.outputs, .depth = s.inputs, .left = call->in[0].data,
                             .right = call->param[0].data, .out = call->out.data};
    char name[64];
    if (h3_gemm_run(call, &product)) return 1;
    snprintf(name, sizeof name, "linear_%s", h3_gemm_kernel(&product));
    return h3_done(call, name);
}

int h3_linear_backward(h3_call *call)
{
    linear_sizes s = {0};
    h3_check check = h3_begin(call);
    check_sizes(&check, call, &s);
    h3_need_rows(&check, &call->dout, "dout", H3_BF16, s.rows, s.outputs);
    h3_may_rows(&check, &call->din[0], "din[0]", H3_BF16, s.rows, s.inputs);
    h3_may_rows(&check, &call->dparam[0], "dparam[0]", H3_BF16, s.outputs, s.inputs);
    if (check.problem) return h3_refuse(call, &check);
    const h3_gemm input = {.rows = s.rows, .columns = s.inputs, .depth = s.outputs, .left = call->dout.data,
                           .right = call->param[0].data, .right_along = true, .out = h3_wanted(&call->din[0])};
    const h3_gemm weight = {.rows = s.outputs, .columns = s.inputs, .depth = s.rows, .left = call->dout.data, .left_along = true,
                            .right = call->in[0].data, .right_along = true, .out = h3_wanted(&call->dparam[0])};
    char name[96] = "linear_gradient";
    size_t used = strlen(name);
    if (input.out && h3_gemm_run(call, &input)) return 1;
    if (weight.out && h3_gemm_run(call, &weight)) return 1;
    if (input.out) used += (size_t)snprintf(name + used, sizeof name - used, "_dx_%s", h3_gemm_kernel(&input));
    if (weight.out) snprintf(name + used, sizeof name - used, "_dw_%s", h3_gemm_kernel(&weight));
    return h3_done(call, name);
}
