/* The nodes norm1, norm2 (modulated when they get a table) and q_norm, k_norm (over the channels of each head). */
#include "norm.h"
#include "operators.h"

struct norm_sizes {
    int64_t rows, width;
    int32_t dtype;
    bool modulated;
};

static int check_modulation(const h3_check &check, norm_sizes &sizes)
{
    const h3_tensor &table = check.call->in[1], &index = check.call->in[2];
    sizes.modulated = h3_present(check, table);
    if (!sizes.modulated) return h3_present(check, index) ? h3_refuse(check, "row_index comes without a table; pass both or neither") : 0;
    return h3_want_table(check, table, index, sizes.rows, sizes.width, 2);
}

/* Both kinds: x has `rank` dimensions, the last of which is normalised. */
static int check_norm(const h3_check &check, int32_t rank, norm_sizes &sizes)
{
    const h3_tensor &x = check.call->in[0];
    if (h3_want_device(check) || h3_want_activation(check, "x", x)) return 1;
    if (rank == 2 ? h3_want(check, "x", x, x.dtype, {H3_ANY, H3_ANY}) : h3_want(check, "x", x, x.dtype, {H3_ANY, H3_ANY, H3_ANY})) return 1;
    sizes = {rank == 3 ? x.shape[0] * x.shape[1] : x.shape[0], x.shape[rank - 1], x.dtype, false};
    if (sizes.rows > INT32_MAX) return h3_refuse(check, "x has %lld rows; at most %d are possible", (long long)sizes.rows, INT32_MAX);
    if (h3_want(check, "weight", check.call->param[0], x.dtype, {sizes.width})) return 1;
    return rank == 2 ? check_modulation(check, sizes) : 0;
}

static size_t backward_workspace(const norm_sizes &sizes)
{
    h3_arena arena = {nullptr, 0};
    h3_take_norm(arena, sizes.rows, sizes.width, sizes.dtype == H3_BF16);
    return arena.used;
}

static int plan_norm(const h3_call *call, h3_call_plan *plan, int32_t rank)
{
    norm_sizes sizes;
    h3_check check = h3_check_plan(call, plan);
    if (check_norm(check, rank, sizes)) return 1;
    plan->backward_workspace = backward_workspace(sizes);
    return 0;
}

static h3_norm_rows rows_of(const h3_call *call, const norm_sizes &sizes)
{
    h3_norm_rows norm = {};
    norm.rows = sizes.rows;
    norm.width = sizes.width;
    norm.epsilon = call->epsilon;
    norm.bf16 = sizes.dtype == H3_BF16;
    norm.x = call->in[0].data;
    norm.weight = call->param[0].data;
    if (sizes.modulated) {
        norm.table = call->in[1].data;
        norm.index = (const int32_t *)call->in[2].data;
        norm.limit = call->in[1].shape[0];
        norm.stride = H3_CHUNKS * sizes.width;
        norm.shift = call->chunk * sizes.width;
        norm.scale = norm.shift + sizes.width;
    }
    return norm;
}

static int forward(h3_call *call, int32_t rank)
{
    norm_sizes sizes;
    h3_check check = h3_check_call(call);
    if (check_norm(check, rank, sizes) || h3_want_like(check, "out", call->out, sizes.dtype, call->in[0])) return 1;
    h3_norm_rows norm = rows_of(call, sizes);
    if (h3_norm_forward_rows(check, norm, call->out.data)) return 1;
    h3_ran(call, "rmsnorm-v4x128", norm.bf16);
    return 0;
}

static int backward(h3_call *call, int32_t rank)
{
    static const char *const names[] = {"row_grad[0]", "row_grad[1]"};
    norm_sizes sizes;
    h3_arena arena;
    h3_check check = h3_check_call(call);
    if (check_norm(check, rank, sizes)) return 1;
    if (h3_want_like(check, "dout", call->dout, sizes.dtype, call->in[0])) return 1;
    if (h3_want_optional(check, "din[0]", call->din[0], sizes.dtype, call->in[0])) return 1;
    if (h3_want_optional(check, "dparam[0]", call->dparam[0], sizes.dtype, call->param[0])) return 1;
    for (int i = 0; i < 2 && sizes.modulated; i++)
        if (h3_want_optional(check, names[i], call->row_grad[i], sizes.dtype, call->in[0])) return 1;
    if (h3_open_workspace(check, backward_workspace(sizes), arena)) return 1;
    h3_norm_rows norm = rows_of(call, sizes);
    h3_norm_gradients gradients = {call->dout.data, call->din[0].data, call->dparam[0].data, nullptr, nullptr};
    if (sizes.modulated) {
        gradients.dshift = call->row_grad[0].data;
        gradients.dscale = call->row_grad[1].data;
    }
    if (h3_norm_backward_rows(check, norm, gradients, h3_take_norm(arena, sizes.rows, sizes.width, norm.bf16))) return 1;
    h3_ran(call, "rmsnorm-v4x128", norm.bf16);
    return 0;
}

int h3_block_norm_plan(const h3_call *call, h3_call_plan *plan) { return plan_norm(call, plan, 2); }
int h3_block_norm_forward(h3_call *call) { return forward(call, 2); }
int h3_block_norm_backward(h3_call *call) { return backward(call, 2); }

int h3_head_norm_plan(const h3_call *call, h3_call_plan *plan) { return plan_norm(call, plan, 3); }
int h3_head_norm_forward(h3_call *call) { return forward(call, 3); }
int h3_head_norm_backward(h3_call *call) { return backward(call, 3); }
