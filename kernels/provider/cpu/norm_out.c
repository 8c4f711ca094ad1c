/*
 * norm_out: the final norm, modulated by a shift and a scale that depend on the timestep alone (in this order in Z [T,2H]).
 */
#include "conditioning.h"
#include "norm.h"
#include "operators.h"

typedef struct norm_out_sizes {
    int64_t rows, width, times, inputs;
    int32_t dtype;
    int bf16;
} norm_out_sizes;

static int check_norm_out(const h3_check *check, norm_out_sizes *sizes)
{
    const h3_call *call = check->call;
    const h3_tensor *h = &call->in[0], *temb = &call->in[1];
    *sizes = (norm_out_sizes){.dtype = h->dtype, .bf16 = h->dtype == H3_BF16};
    if (h3_want_host(check) || h3_want_activation(check, "h", h)) return 1;
    if (h3_want(check, "h", h, h->dtype, 2, H3_SHAPE(H3_ANY, H3_ANY))) return 1;
    if (h3_want(check, "temb", temb, H3_F32, 2, H3_SHAPE(H3_ANY, H3_ANY))) return 1;
    sizes->rows = h->shape[0];
    sizes->width = h->shape[1];
    sizes->times = temb->shape[0];
    sizes->inputs = temb->shape[1];
    if (h3_want_index(check, "timestep index", &call->in[2], sizes->rows, sizes->times)) return 1;
    if (h3_want(check, "norm weight", &call->param[0], h->dtype, 1, H3_SHAPE(sizes->width))) return 1;
    if (h3_want(check, "weight", &call->param[1], h->dtype, 2, H3_SHAPE(2 * sizes->width, sizes->inputs))) return 1;
    return h3_want(check, "bias", &call->param[2], h->dtype, 1, H3_SHAPE(2 * sizes->width));
}

static int check_outputs(const h3_check *check, const norm_out_sizes *sizes, const h3_tensor *rows, const char *name)
{
    if (h3_want(check, name, rows, sizes->dtype, 2, H3_SHAPE(sizes->rows, sizes->width))) return 1;
    return h3_want(check, "saved[0]", &check->call->saved[0], sizes->dtype, 2, H3_SHAPE(sizes->times, 2 * sizes->width));
}

static size_t forward_workspace(const norm_out_sizes *sizes)
{
    size_t condition = h3_condition_workspace(sizes->times, sizes->inputs, 2 * sizes->width, sizes->bf16),
           norm = h3_norm_workspace(sizes->width);
    return condition > norm ? condition : norm;
}

static size_t backward_workspace(const norm_out_sizes *sizes)
{
    return h3_bytes(sizes->rows * sizes->width, 4) + h3_bytes(sizes->times * 2 * sizes->width, 4) +
           h3_segment_workspace(sizes->times, sizes->width) + forward_workspace(sizes);
}

int h3_norm_out_plan(const h3_call *call, h3_call_plan *plan)
{
    norm_out_sizes sizes;
    h3_check check = h3_check_plan(call);
    *plan = (h3_call_plan){0};
    if (check_norm_out(&check, &sizes)) return 1;
    plan->forward_workspace = forward_workspace(&sizes);
    plan->backward_workspace = backward_workspace(&sizes);
    h3_declare_saved(plan, 0, sizes.dtype, 2, H3_SHAPE(sizes.times, 2 * sizes.width));
    return 0;
}

static h3_condition condition_of(const h3_call *call, const norm_out_sizes *sizes)
{
    return (h3_condition){.temb = call->in[1].data,
                          .times = sizes->times,
                          .weight = h3_matrix_of(&call->param[1], 2 * sizes->width, sizes->inputs)};
}

static h3_norm_rows rows_of(const h3_call *call, const norm_out_sizes *sizes)
{
    return (h3_norm_rows){.rows = sizes->rows,
                          .width = sizes->width,
                          .epsilon = call->epsilon,
                          .bf16 = sizes->bf16,
                          .x = call->in[0].data,
                          .weight = call->param[0].data,
                          .table = call->saved[0].data,
                          .index = call->in[2].data,
                          .stride = 2 * sizes->width,
                          .shift = 0,
                          .scale = sizes->width};
}

int h3_norm_out_forward(h3_call *call)
{
    norm_out_sizes sizes;
    h3_arena arena;
    h3_check check = h3_check_call(call);
    if (check_norm_out(&check, &sizes) || check_outputs(&check, &sizes, &call->out, "out")) return 1;
    if (h3_open_workspace(&check, forward_workspace(&sizes), &arena)) return 1;
    h3_condition condition = condition_of(call, &sizes);
    h3_condition_forward(&condition, call->param[2].data, call->saved[0].data, arena);
    h3_norm_rows norm = rows_of(call, &sizes);
    h3_norm_forward_rows(&norm, call->out.data, arena);
    h3_ran(call, h3_blas_kernel(), sizes.bf16);
    return 0;
}

static int check_gradients(const h3_check *check, const norm_out_sizes *sizes)
{
    static const char *const names[] = {"dparam[0]", "dparam[1]", "dparam[2]"};
    const h3_call *call = check->call;
    if (check_outputs(check, sizes, &call->dout, "dout")) return 1;
    if (h3_want_optional(check, "din[0]", &call->din[0], sizes->dtype, 2, call->in[0].shape)) return 1;
    if (h3_want_optional(check, "din[1]", &call->din[1], H3_F32, 2, call->in[1].shape)) return 1;
    for (int i = 0; i < 3; i++) {
        if (h3_want_optional(check, names[i], &call->dparam[i], sizes->dtype, call->param[i].rank, call->param[i].shape))
            return 1;
    }
    return 0;
}

int h3_norm_out_backward(h3_call *call)
{
    norm_out_sizes sizes;
    h3_arena arena;
    h3_check check = h3_check_call(call);
    if (check_norm_out(&check, &sizes) || check_gradients(&check, &sizes)) return 1;
    if (h3_open_workspace(&check, backward_workspace(&sizes), &arena)) return 1;
    h3_norm_rows norm = rows_of(call, &sizes);
    h3_matrix dshift = h3_matrix_of(&call->dout, sizes.rows, sizes.width), dscale = dshift;
    dscale.data = h3_take(&arena, sizes.rows * sizes.width, 4);
    h3_norm_gradients gradients = {
        .dy = dshift.data, .dx = call->din[0].data, .dweight = call->dparam[0].data, .dscale = dscale.data};
    h3_norm_backward_rows(&norm, &gradients, arena);
    void *dz = h3_take(&arena, sizes.times * 2 * sizes.width, 4);
    h3_segment_sum(dshift, norm.index, sizes.times, dz, 2 * sizes.width, arena);
    h3_segment_sum(dscale, norm.index, sizes.times, h3_at(dz, sizes.width, sizes.bf16), 2 * sizes.width, arena);
    h3_condition condition = condition_of(call, &sizes);
    h3_condition_gradients wanted = {.dweight = call->dparam[1].data, .dbias = call->dparam[2].data, .dtemb = call->din[1].data};
    h3_condition_backward(&condition, dz, &wanted, arena);
    h3_ran(call, h3_blas_kernel(), sizes.bf16);
    return 0;
}
