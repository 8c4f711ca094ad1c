/* The plain tensor operators around the blocks: add, convert, scatter_rows. Contract elementwise-v1. */
#include "common.h"
#include "operators.h"

int h3_no_backward(h3_call *call)
{
    h3_check check = h3_check_call(call);
    return h3_refuse(&check, "this operator has no gradient; do not call its backward");
}

/* One tensor of rank 1 to 5, of an activation type, dense. */
static int check_any(const h3_check *check, const char *name, const h3_tensor *tensor)
{
    if (h3_want_activation(check, name, tensor)) return 1;
    if (tensor->rank < 1 || tensor->rank > H3_MAX_RANK)
        return h3_refuse(check, "%s has rank %d; expected 1 to %d", name, tensor->rank, H3_MAX_RANK);
    return h3_want(check, name, tensor, tensor->dtype, tensor->rank, H3_SHAPE(H3_ANY, H3_ANY, H3_ANY, H3_ANY, H3_ANY));
}

static int check_add(const h3_check *check)
{
    const h3_tensor *a = &check->call->in[0];
    if (h3_want_host(check) || check_any(check, "in[0]", a)) return 1;
    return h3_want(check, "in[1]", &check->call->in[1], a->dtype, a->rank, a->shape);
}

int h3_add_plan(const h3_call *call, h3_call_plan *plan)
{
    h3_check check = h3_check_plan(call);
    *plan = (h3_call_plan){0};
    return check_add(&check);
}

H3_INLINE void add(const void *a, const void *b, void *out, int64_t count, const int bf16)
{
    for (int64_t i = 0; i < count; i++) h3_store(out, i, h3_load(a, i, bf16) + h3_load(b, i, bf16), bf16);
}

int h3_add_forward(h3_call *call)
{
    const h3_tensor *a = &call->in[0];
    h3_check check = h3_check_call(call);
    if (check_add(&check) || h3_want(&check, "out", &call->out, a->dtype, a->rank, a->shape)) return 1;
    int bf16 = a->dtype == H3_BF16;
    if (bf16) add(a->data, call->in[1].data, call->out.data, h3_tensor_count(a), 1);
    else add(a->data, call->in[1].data, call->out.data, h3_tensor_count(a), 0);
    h3_ran(call, "add", bf16);
    return 0;
}

int h3_add_backward(h3_call *call) { return h3_no_backward(call); }

int h3_convert_plan(const h3_call *call, h3_call_plan *plan)
{
    h3_check check = h3_check_plan(call);
    *plan = (h3_call_plan){0};
    return h3_want_host(&check) || check_any(&check, "in[0]", &call->in[0]);
}

int h3_convert_forward(h3_call *call)
{
    const h3_tensor *from = &call->in[0], *to = &call->out;
    h3_check check = h3_check_call(call);
    if (h3_want_host(&check) || check_any(&check, "in[0]", from) || h3_want_activation(&check, "out", to)) return 1;
    if (h3_want(&check, "out", to, to->dtype, from->rank, from->shape)) return 1;
    int64_t count = h3_tensor_count(from);
    int from_bf16 = from->dtype == H3_BF16, to_bf16 = to->dtype == H3_BF16;
    if (from_bf16 == to_bf16) {
        memcpy(to->data, from->data, (size_t)count * h3_dtype_size(from->dtype));
    } else if (to_bf16) {
        for (int64_t i = 0; i < count; i++) h3_store(to->data, i, h3_load(from->data, i, 0), 1);
    } else {
        h3_load_row(to->data, from->data, count, 1);
    }
    h3_ran(call, "convert to", to_bf16);
    return 0;
}

int h3_convert_backward(h3_call *call) { return h3_no_backward(call); }

static int check_scatter(const h3_check *check, int64_t target_rows)
{
    const h3_tensor *rows = &check->call->in[0];
    if (h3_want_host(check) || h3_want_activation(check, "rows", rows)) return 1;
    if (h3_want(check, "rows", rows, rows->dtype, 2, H3_SHAPE(H3_ANY, H3_ANY))) return 1;
    return h3_want_index(check, "index", &check->call->in[1], rows->shape[0], target_rows);
}

int h3_scatter_rows_plan(const h3_call *call, h3_call_plan *plan)
{
    h3_check check = h3_check_plan(call);
    *plan = (h3_call_plan){0};
    return check_scatter(&check, 0);
}

/* forward: packed[index[i]] = rows[i]; backward: rows[i] = packed[index[i]]. */
static void move_rows(const h3_tensor *rows, const int32_t *index, const h3_tensor *packed, int back)
{
    size_t bytes = (size_t)rows->shape[1] * h3_dtype_size(rows->dtype);
    for (int64_t i = 0; i < rows->shape[0]; i++) {
        char *row = (char *)rows->data + (size_t)i * bytes, *place = (char *)packed->data + (size_t)index[i] * bytes;
        memcpy(back ? row : place, back ? place : row, bytes);
    }
}

int h3_scatter_rows_forward(h3_call *call)
{
    h3_check check = h3_check_call(call);
    const h3_tensor *rows = &call->in[0], *packed = &call->out;
    if (h3_want(&check, "out", packed, rows->dtype, 2, H3_SHAPE(H3_ANY, rows->shape[1])) ||
        check_scatter(&check, packed->shape[0]))
        return 1;
    move_rows(rows, call->in[1].data, packed, 0);
    h3_ran(call, "scatter_rows", rows->dtype == H3_BF16);
    return 0;
}

int h3_scatter_rows_backward(h3_call *call)
{
    h3_check check = h3_check_call(call);
    const h3_tensor *rows = &call->in[0], *drows = &call->din[0], *packed = &call->dout;
    if (h3_want(&check, "dout", packed, rows->dtype, 2, H3_SHAPE(H3_ANY, rows->shape[1])) ||
        check_scatter(&check, packed->shape[0]))
        return 1;
    if (h3_want_optional(&check, "din[0]", drows, rows->dtype, 2, rows->shape)) return 1;
    if (drows->data != NULL) move_rows(drows, call->in[1].data, packed, 1);
    h3_ran(call, "scatter_rows", packed->dtype == H3_BF16);
    return 0;
}
