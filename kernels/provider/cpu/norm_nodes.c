/* The nodes norm1, norm2 (modulated when they get a table) and q_norm, k_norm (over the channels of each head). */
#include "norm.h"
#include "operators.h"

typedef struct norm_sizes {
    int64_t rows, width;
    int32_t dtype;
    int modulated;
} norm_sizes;

static int check_modulation(const h3_check *check, norm_sizes *sizes)
{
    const h3_call *call = check->call;
    const h3_tensor *table = &call->in[1], *index = &call->in[2];
    sizes->modulated = h3_present(check, table);
    if (!sizes->modulated)
        return h3_present(check, index) ? h3_refuse(check, "row_index comes without a table; pass both or neither") : 0;
    return h3_want_table(check, table, index, sizes->rows, sizes->width, 2);
}

/* Both kinds: x has `rank` dimensions, the last of which is normalised. */
static int check_norm(const h3_check *check, int32_t rank, norm_sizes *sizes)
{
    const h3_tensor *x = &check->call->in[0];
    *sizes = (norm_sizes){.dtype = x->dtype};
    if (h3_want_host(check) || h3_want_activation(check, "x", x)) return 1;
    if (h3_want(check, "x", x, x->dtype, rank, H3_SHAPE(H3_ANY, H3_ANY, H3_ANY))) return 1;
    sizes->width = x->shape[rank - 1];
    sizes->rows = rank == 3 ? x->shape[0] * x->shape[1] : x->shape[0];
    if (h3_want(check, "weight", &check->call->param[0], x->dtype, 1, H3_SHAPE(sizes->width))) return 1;
    return rank == 2 ? check_modulation(check, sizes) : 0;
}

static int plan_norm(const h3_call *call, h3_call_plan *plan, int32_t rank)
{
    norm_sizes sizes;
    h3_check check = h3_check_plan(call);
    *plan = (h3_call_plan){0};
    if (check_norm(&check, rank, &sizes)) return 1;
    plan->forward_workspace = plan->backward_workspace = h3_norm_workspace(sizes.width);
    return 0;
}

static h3_norm_rows rows_of(const h3_call *call, const norm_sizes *sizes)
{
    h3_norm_rows norm = {.rows = sizes->rows, .width = sizes->width, .epsilon = call->epsilon, .bf16 = sizes->dtype == H3_BF16};
    norm.x = call->in[0].data;
    norm.weight = call->param[0].data;
    if (sizes->modulated) {
        norm.table = call->in[1].data;
        norm.index = call->in[2].data;
        norm.stride = H3_CHUNKS * sizes->width;
        norm.shift = call->chunk * sizes->width;
        norm.scale = norm.shift + sizes->width;
    }
    return norm;
}

static int forward(h3_call *call, int32_t rank)
{
    norm_sizes sizes;
    h3_arena arena;
    h3_check check = h3_check_call(call);
    if (check_norm(&check, rank, &sizes) || h3_want(&check, "out", &call->out, sizes.dtype, rank, call->in[0].shape)) return 1;
    if (h3_open_workspace(&check, h3_norm_workspace(sizes.width), &arena)) return 1;
    h3_norm_rows norm = rows_of(call, &sizes);
    h3_norm_forward_rows(&norm, call->out.data, arena);
    h3_ran(call, "rmsnorm-v4x128", norm.bf16);
    return 0;
}

static int backward(h3_call *call, int32_t rank)
{
    norm_sizes sizes;
    h3_arena arena;
    h3_check check = h3_check_call(call);
    if (check_norm(&check, rank, &sizes)) return 1;
    const int64_t *shape = call->in[0].shape;
    if (h3_want(&check, "dout", &call->dout, sizes.dtype, rank, shape)) return 1;
    if (h3_want_optional(&check, "din[0]", &call->din[0], sizes.dtype, rank, shape)) return 1;
    if (h3_want_optional(&check, "dparam[0]", &call->dparam[0], sizes.dtype, 1, H3_SHAPE(sizes.width))) return 1;
    for (int i = 0; i < 2 && sizes.modulated; i++) {
        if (h3_want_optional(&check, i == 0 ? "row_grad[0]" : "row_grad[1]", &call->row_grad[i], sizes.dtype, 2, shape)) return 1;
    }
    if (h3_open_workspace(&check, h3_norm_workspace(sizes.width), &arena)) return 1;
    h3_norm_rows norm = rows_of(call, &sizes);
    h3_norm_gradients gradients = {.dy = call->dout.data, .dx = call->din[0].data, .dweight = call->dparam[0].data};
    if (sizes.modulated) {
        gradients.dshift = call->row_grad[0].data;
        gradients.dscale = call->row_grad[1].data;
    }
    h3_norm_backward_rows(&norm, &gradients, arena);
    h3_ran(call, "rmsnorm-v4x128", norm.bf16);
    return 0;
}

int h3_block_norm_plan(const h3_call *call, h3_call_plan *plan) { return plan_norm(call, plan, 2); }
int h3_block_norm_forward(h3_call *call) { return forward(call, 2); }
int h3_block_norm_backward(h3_call *call) { return backward(call, 2); }

int h3_head_norm_plan(const h3_call *call, h3_call_plan *plan) { return plan_norm(call, plan, 3); }
int h3_head_norm_forward(h3_call *call) { return forward(call, 3); }
int h3_head_norm_backward(h3_call *call) { return backward(call, 3); }
