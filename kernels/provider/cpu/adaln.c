/*
 * adaln_projection: temb [T,E] to the table [3T,6,H], which is the projection's output [T,18H] read as rows of
 * (timestep, modality), chunks and channels. The backward gathers the six row gradients into the table's gradient first.
 */
#include "conditioning.h"
#include "operators.h"

typedef struct adaln_sizes {
    int64_t times, inputs, outputs, width; /* outputs = 18 * width */
    int32_t dtype;
    int bf16;
} adaln_sizes;

static int check_adaln(const h3_check *check, adaln_sizes *sizes)
{
    const h3_call *call = check->call;
    const h3_tensor *temb = &call->in[0], *weight = &call->param[0];
    *sizes = (adaln_sizes){.dtype = weight->dtype, .bf16 = weight->dtype == H3_BF16};
    if (h3_want_host(check) || h3_want(check, "temb", temb, H3_F32, 2, H3_SHAPE(H3_ANY, H3_ANY))) return 1;
    sizes->times = temb->shape[0];
    sizes->inputs = temb->shape[1];
    if (h3_want_activation(check, "weight", weight)) return 1;
    if (h3_want(check, "weight", weight, sizes->dtype, 2, H3_SHAPE(H3_ANY, sizes->inputs))) return 1;
    sizes->outputs = weight->shape[0];
    sizes->width = sizes->outputs / (H3_CHUNKS * H3_MODALITIES);
    if (sizes->outputs % (H3_CHUNKS * H3_MODALITIES) != 0)
        return h3_refuse(check, "weight has %lld rows; expected a multiple of %d", (long long)sizes->outputs,
                         H3_CHUNKS * H3_MODALITIES);
    return h3_want(check, "bias", &call->param[1], sizes->dtype, 1, H3_SHAPE(sizes->outputs));
}

static size_t forward_workspace(const adaln_sizes *sizes)
{
    return h3_condition_workspace(sizes->times, sizes->inputs, sizes->outputs, sizes->bf16);
}

static size_t backward_workspace(const adaln_sizes *sizes)
{
    return h3_bytes(sizes->times * sizes->outputs, 4) + h3_segment_workspace(H3_MODALITIES * sizes->times, sizes->width) +
           forward_workspace(sizes);
}

int h3_adaln_projection_plan(const h3_call *call, h3_call_plan *plan)
{
    adaln_sizes sizes;
    h3_check check = h3_check_plan(call);
    *plan = (h3_call_plan){0};
    if (check_adaln(&check, &sizes)) return 1;
    plan->forward_workspace = forward_workspace(&sizes);
    plan->backward_workspace = backward_workspace(&sizes);
    return 0;
}

static h3_condition condition_of(const h3_call *call, const adaln_sizes *sizes)
{
    return (h3_condition){
        .temb = call->in[0].data, .times = sizes->times, .weight = h3_matrix_of(&call->param[0], sizes->outputs, sizes->inputs)};
}

int h3_adaln_projection_forward(h3_call *call)
{
    adaln_sizes sizes;
    h3_arena arena;
    h3_check check = h3_check_call(call);
    if (check_adaln(&check, &sizes)) return 1;
    if (h3_want(&check, "out", &call->out, sizes.dtype, 3, H3_SHAPE(H3_MODALITIES * sizes.times, H3_CHUNKS, sizes.width)))
        return 1;
    if (h3_open_workspace(&check, forward_workspace(&sizes), &arena)) return 1;
    h3_condition condition = condition_of(call, &sizes);
    h3_condition_forward(&condition, call->param[1].data, call->out.data, arena);
    h3_ran(call, h3_blas_kernel(), sizes.bf16);
    return 0;
}

static int check_gradients(const h3_check *check, const adaln_sizes *sizes, int64_t *rows)
{
    static const char *const names[H3_ROW_GRADS] = {"row_grad[0]", "row_grad[1]", "row_grad[2]",
                                                    "row_grad[3]", "row_grad[4]", "row_grad[5]"};
    const h3_call *call = check->call;
    int64_t table_rows = H3_MODALITIES * sizes->times;
    if (h3_want(check, "row_index", &call->row_index, H3_I32, 1, H3_SHAPE(H3_ANY))) return 1;
    *rows = call->row_index.shape[0];
    for (int c = 0; c < H3_ROW_GRADS; c++) {
        if (h3_want(check, names[c], &call->row_grad[c], sizes->dtype, 2, H3_SHAPE(*rows, sizes->width))) return 1;
    }
    if (h3_want_index(check, "row_index", &call->row_index, *rows, table_rows)) return 1;
    if (h3_want_optional(check, "dtable", &call->dtable, sizes->dtype, 3, H3_SHAPE(table_rows, H3_CHUNKS, sizes->width)))
        return 1;
    if (h3_want_optional(check, "din[0]", &call->din[0], H3_F32, 2, call->in[0].shape)) return 1;
    if (h3_want_optional(check, "dparam[0]", &call->dparam[0], sizes->dtype, 2, call->param[0].shape)) return 1;
    return h3_want_optional(check, "dparam[1]", &call->dparam[1], sizes->dtype, 1, call->param[1].shape);
}

int h3_adaln_projection_backward(h3_call *call)
{
    adaln_sizes sizes;
    int64_t rows;
    h3_arena arena;
    h3_check check = h3_check_call(call);
    if (check_adaln(&check, &sizes) || check_gradients(&check, &sizes, &rows)) return 1;
    if (h3_open_workspace(&check, backward_workspace(&sizes), &arena)) return 1;
    void *own_table = h3_take(&arena, sizes.times * sizes.outputs, 4);
    void *dtable = call->dtable.data != NULL ? call->dtable.data : own_table;
    for (int64_t c = 0; c < H3_CHUNKS; c++) {
        h3_matrix row_gradient = h3_matrix_of(&call->row_grad[c], rows, sizes.width);
        h3_segment_sum(row_gradient, call->row_index.data, H3_MODALITIES * sizes.times,
                       h3_at(dtable, c * sizes.width, sizes.bf16), H3_CHUNKS * sizes.width, arena);
    }
    h3_condition condition = condition_of(call, &sizes);
    h3_condition_gradients gradients = {
        .dweight = call->dparam[0].data, .dbias = call->dparam[1].data, .dtemb = call->din[0].data};
    h3_condition_backward(&condition, dtable, &gradients, arena);
    h3_ran(call, h3_blas_kernel(), sizes.bf16);
    return 0;
}
