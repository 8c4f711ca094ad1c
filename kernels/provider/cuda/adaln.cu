/*
 * adaln_projection: temb [T,E] to the table [3T,6,H], which is the projection's output [T,18H] read as rows of
 * (timestep, modality), chunks and channels. The backward gathers the six row gradients into the table's gradient first.
 */
#include "conditioning.h"
#include "operators.h"

struct adaln_sizes {
    int64_t times, inputs, outputs, width; /* outputs = 18 * width */
    int32_t dtype;
    bool bf16;
};

struct adaln_workspace {
    h3_condition_workspace condition;
    void *table; /* backward: the table's gradient when the caller does not want it */
};

static int check_adaln(const h3_check &check, adaln_sizes &sizes)
{
    const h3_call *call = check.call;
    const h3_tensor &temb = call->in[0], &weight = call->param[0];
    const int64_t parts = H3_CHUNKS * H3_MODALITIES;
    if (h3_want_device(check) || h3_want(check, "temb", temb, H3_F32, {H3_ANY, H3_ANY})) return 1;
    if (h3_want_activation(check, "weight", weight)) return 1;
    if (h3_want(check, "weight", weight, weight.dtype, {H3_ANY, temb.shape[1]})) return 1;
    sizes = {temb.shape[0], temb.shape[1], weight.shape[0], weight.shape[0] / parts, weight.dtype, weight.dtype == H3_BF16};
    if (sizes.outputs % parts != 0)
        return h3_refuse(check, "weight has %lld rows; expected a multiple of %lld", (long long)sizes.outputs, (long long)parts);
    return h3_want(check, "bias", call->param[1], sizes.dtype, {sizes.outputs});
}

static adaln_workspace lay_out(const adaln_sizes &sizes, h3_arena &arena, bool forward)
{
    adaln_workspace w = {h3_take_condition(arena, sizes.times, sizes.inputs, sizes.outputs, sizes.bf16, forward), nullptr};
    if (!forward) w.table = h3_take_bytes(arena, (size_t)(sizes.times * sizes.outputs) * h3_size(sizes.bf16));
    return w;
}

static size_t needed(const adaln_sizes &sizes, bool forward)
{
    h3_arena arena = {nullptr, 0};
    lay_out(sizes, arena, forward);
    return arena.used;
}

int h3_adaln_projection_plan(const h3_call *call, h3_call_plan *plan)
{
    adaln_sizes sizes;
    h3_check check = h3_check_plan(call, plan);
    if (check_adaln(check, sizes)) return 1;
    plan->forward_workspace = needed(sizes, true);
    plan->backward_workspace = needed(sizes, false);
    return 0;
}

static h3_condition condition_of(const h3_call *call, const adaln_sizes &sizes)
{
    return {(const float *)call->in[0].data, sizes.times, h3_matrix_of(call->param[0], sizes.outputs, sizes.inputs)};
}

int h3_adaln_projection_forward(h3_call *call)
{
    adaln_sizes sizes;
    h3_arena arena;
    h3_products products;
    h3_check check = h3_check_call(call);
    if (check_adaln(check, sizes)) return 1;
    if (h3_want(check, "out", call->out, sizes.dtype, {H3_MODALITIES * sizes.times, H3_CHUNKS, sizes.width})) return 1;
    if (h3_open_workspace(check, needed(sizes, true), arena)) return 1;
    adaln_workspace w = lay_out(sizes, arena, true);
    if (h3_products_open(products, check, w.condition.products)) return 1;
    if (h3_condition_forward(products, condition_of(call, sizes), call->param[1].data, call->out.data, w.condition)) return 1;
    h3_products_ran(products, call, sizes.bf16);
    return 0;
}

static int check_gradients(const h3_check &check, const adaln_sizes &sizes)
{
    static const char *const names[H3_ROW_GRADS] = {"row_grad[0]", "row_grad[1]", "row_grad[2]", "row_grad[3]", "row_grad[4]", "row_grad[5]"};
    const h3_call *call = check.call;
    int64_t table_rows = H3_MODALITIES * sizes.times;
    if (h3_want(check, "row_index", call->row_index, H3_I32, {H3_ANY})) return 1;
    for (int c = 0; c < H3_ROW_GRADS; c++)
        if (h3_want(check, names[c], call->row_grad[c], sizes.dtype, {call->row_index.shape[0], sizes.width})) return 1;
    if (h3_present(check, call->dtable) && h3_want(check, "dtable", call->dtable, sizes.dtype, {table_rows, H3_CHUNKS, sizes.width})) return 1;
    if (h3_want_optional(check, "din[0]", call->din[0], H3_F32, call->in[0])) return 1;
    if (h3_want_optional(check, "dparam[0]", call->dparam[0], sizes.dtype, call->param[0])) return 1;
    return h3_want_optional(check, "dparam[1]", call->dparam[1], sizes.dtype, call->param[1]);
}

int h3_adaln_projection_backward(h3_call *call)
{
    adaln_sizes sizes;
    h3_arena arena;
    h3_products products;
    h3_check check = h3_check_call(call);
    if (check_adaln(check, sizes) || check_gradients(check, sizes)) return 1;
    if (h3_open_workspace(check, needed(sizes, false), arena)) return 1;
    adaln_workspace w = lay_out(sizes, arena, false);
    if (h3_products_open(products, check, w.condition.products)) return 1;
    void *dtable = call->dtable.data != nullptr ? call->dtable.data : w.table;
    for (int64_t c = 0; c < H3_CHUNKS; c++) {
        h3_matrix row_gradient = h3_matrix_of(call->row_grad[c], call->row_index.shape[0], sizes.width);
        if (h3_segment_sum(check, row_gradient, (const int32_t *)call->row_index.data, H3_MODALITIES * sizes.times,
                           h3_at(dtable, c * sizes.width, sizes.bf16), H3_CHUNKS * sizes.width))
            return 1;
    }
    h3_condition_gradients gradients = {call->dparam[0].data, call->dparam[1].data, (float *)call->din[0].data};
    if (h3_condition_backward(products, condition_of(call, sizes), dtable, gradients, w.condition)) return 1;
    h3_products_ran(products, call, sizes.bf16);
    return 0;
}
