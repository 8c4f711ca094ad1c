/*
 * norm_out: the final norm, modulated by a shift and a scale that depend on the timestep alone (in this order in Z [T,2H]).
 */
#include "conditioning.h"
#include "norm.h"
#include "operators.h"

struct norm_out_sizes {
    int64_t rows, width, times, inputs;
    int32_t dtype;
    bool bf16;
};

struct norm_out_workspace {
    h3_condition_workspace condition;
    h3_norm_workspace norm; /* the rest: backward only */
    void *dscale, *dz;
};

static int check_norm_out(const h3_check &check, norm_out_sizes &sizes)
{
    const h3_call *call = check.call;
    const h3_tensor &h = call->in[0], &temb = call->in[1];
    if (h3_want_device(check) || h3_want_activation(check, "h", h)) return 1;
    if (h3_want(check, "h", h, h.dtype, {H3_ANY, H3_ANY})) return 1;
    if (h3_want(check, "temb", temb, H3_F32, {H3_ANY, H3_ANY})) return 1;
    sizes = {h.shape[0], h.shape[1], temb.shape[0], temb.shape[1], h.dtype, h.dtype == H3_BF16};
    if (h3_want(check, "timestep index", call->in[2], H3_I32, {sizes.rows})) return 1;
    if (h3_want(check, "norm weight", call->param[0], h.dtype, {sizes.width})) return 1;
    if (h3_want(check, "weight", call->param[1], h.dtype, {2 * sizes.width, sizes.inputs})) return 1;
    return h3_want(check, "bias", call->param[2], h.dtype, {2 * sizes.width});
}

static int check_outputs(const h3_check &check, const norm_out_sizes &sizes, const h3_tensor &rows, const char *name)
{
    if (h3_want(check, name, rows, sizes.dtype, {sizes.rows, sizes.width})) return 1;
    return h3_want(check, "saved[0]", check.call->saved[0], sizes.dtype, {sizes.times, 2 * sizes.width});
}

static norm_out_workspace lay_out(const norm_out_sizes &sizes, h3_arena &arena, bool forward)
{
    norm_out_workspace w = {h3_take_condition(arena, sizes.times, sizes.inputs, 2 * sizes.width, sizes.bf16, forward), {}, nullptr, nullptr};
    if (forward) return w;
    w.norm = h3_take_norm(arena, sizes.rows, sizes.width, sizes.bf16);
    w.dscale = h3_take_bytes(arena, (size_t)(sizes.rows * sizes.width) * h3_size(sizes.bf16));
    w.dz = h3_take_bytes(arena, (size_t)(sizes.times * 2 * sizes.width) * h3_size(sizes.bf16));
    return w;
}

static size_t needed(const norm_out_sizes &sizes, bool forward)
{
    h3_arena arena = {nullptr, 0};
    lay_out(sizes, arena, forward);
    return arena.used;
}

int h3_norm_out_plan(const h3_call *call, h3_call_plan *plan)
{
    norm_out_sizes sizes;
    h3_check check = h3_check_plan(call, plan);
    if (check_norm_out(check, sizes)) return 1;
    plan->forward_workspace = needed(sizes, true);
    plan->backward_workspace = needed(sizes, false);
    h3_declare_saved(plan, 0, sizes.dtype, {sizes.times, 2 * sizes.width});
    return 0;
}

static h3_condition condition_of(const h3_call *call, const norm_out_sizes &sizes)
{
    return {(const float *)call->in[1].data, sizes.times, h3_matrix_of(call->param[1], 2 * sizes.width, sizes.inputs)};
}

static h3_norm_rows rows_of(const h3_call *call, const norm_out_sizes &sizes)
{
    h3_norm_rows norm = {};
    norm.rows = sizes.rows;
    norm.width = sizes.width;
    norm.epsilon = call->epsilon;
    norm.bf16 = sizes.bf16;
    norm.x = call->in[0].data;
    norm.weight = call->param[0].data;
    norm.table = call->saved[0].data;
    norm.index = (const int32_t *)call->in[2].data;
    norm.limit = sizes.times;
    norm.stride = 2 * sizes.width;
    norm.shift = 0;
    norm.scale = sizes.width;
    return norm;
}

int h3_norm_out_forward(h3_call *call)
{
    norm_out_sizes sizes;
    h3_arena arena;
    h3_products products;
    h3_check check = h3_check_call(call);
    if (check_norm_out(check, sizes) || check_outputs(check, sizes, call->out, "out")) return 1;
    if (h3_open_workspace(check, needed(sizes, true), arena)) return 1;
    norm_out_workspace w = lay_out(sizes, arena, true);
    if (h3_products_open(products, check, w.condition.products)) return 1;
    if (h3_condition_forward(products, condition_of(call, sizes), call->param[2].data, call->saved[0].data, w.condition)) return 1;
    if (h3_norm_forward_rows(check, rows_of(call, sizes), call->out.data)) return 1;
    h3_products_ran(products, call, sizes.bf16);
    return 0;
}

static int check_gradients(const h3_check &check, const norm_out_sizes &sizes)
{
    static const char *const names[] = {"dparam[0]", "dparam[1]", "dparam[2]"};
    const h3_call *call = check.call;
    if (check_outputs(check, sizes, call->dout, "dout")) return 1;
    if (h3_want_optional(check, "din[0]", call->din[0], sizes.dtype, call->in[0])) return 1;
    if (h3_want_optional(check, "din[1]", call->din[1], H3_F32, call->in[1])) return 1;
    for (int i = 0; i < 3; i++)
        if (h3_want_optional(check, names[i], call->dparam[i], sizes.dtype, call->param[i])) return 1;
    return 0;
}

int h3_norm_out_backward(h3_call *call)
{
    norm_out_sizes sizes;
    h3_arena arena;
    h3_products products;
    h3_check check = h3_check_call(call);
    if (check_norm_out(check, sizes) || check_gradients(check, sizes)) return 1;
    if (h3_open_workspace(check, needed(sizes, false), arena)) return 1;
    norm_out_workspace w = lay_out(sizes, arena, false);
    if (h3_products_open(products, check, w.condition.products)) return 1;
    h3_norm_rows norm = rows_of(call, sizes);
    h3_matrix dshift = h3_matrix_of(call->dout, sizes.rows, sizes.width), dscale = {w.dscale, sizes.rows, sizes.width, sizes.bf16};
    h3_norm_gradients gradients = {dshift.data, call->din[0].data, call->dparam[0].data, nullptr, dscale.data};
    if (h3_norm_backward_rows(check, norm, gradients, w.norm)) return 1;
    if (h3_segment_sum(check, dshift, norm.index, sizes.times, w.dz, 2 * sizes.width)) return 1;
    if (h3_segment_sum(check, dscale, norm.index, sizes.times, h3_at(w.dz, sizes.width, sizes.bf16), 2 * sizes.width)) return 1;
    h3_condition_gradients wanted = {call->dparam[1].data, call->dparam[2].data, (float *)call->din[1].data};
    if (h3_condition_backward(products, condition_of(call, sizes), w.dz, wanted, w.condition)) return 1;
    h3_products_ran(products, call, sizes.bf16);
    return 0;
}
