/* The plain tensor operators around the blocks: add, convert, scatter_rows. Contract elementwise-v1. */
#include "device.h"
#include "operators.h"

/* One tensor of rank 1 to 5, of an activation type, dense. */
static int check_any(const h3_check &check, const char *name, const h3_tensor &tensor)
{
    if (h3_want_activation(check, name, tensor)) return 1;
    if (tensor.rank < 1 || tensor.rank > H3_MAX_RANK)
        return h3_refuse(check, "%s has rank %d; expected 1 to %d", name, tensor.rank, H3_MAX_RANK);
    return h3_want_like(check, name, tensor, tensor.dtype, tensor);
}

static int check_add(const h3_check &check)
{
    const h3_tensor &a = check.call->in[0];
    if (h3_want_device(check) || check_any(check, "in[0]", a)) return 1;
    return h3_want_like(check, "in[1]", check.call->in[1], a.dtype, a);
}

int h3_add_plan(const h3_call *call, h3_call_plan *plan)
{
    h3_check check = h3_check_plan(call, plan);
    return check_add(check);
}

/* out may be a or b. */
template <bool Bf16> static __global__ void add(const void *a, const void *b, void *out, int64_t count)
{
    for (int64_t i = h3_first(); i < count; i += h3_stride()) h3_store<Bf16>(out, i, __fadd_rn(h3_load<Bf16>(a, i), h3_load<Bf16>(b, i)));
}

int h3_add_forward(h3_call *call)
{
    const h3_tensor &a = call->in[0];
    h3_check check = h3_check_call(call);
    if (check_add(check) || h3_want_like(check, "out", call->out, a.dtype, a)) return 1;
    int64_t count = h3_tensor_count(&a);
    bool bf16 = a.dtype == H3_BF16;
    if (h3_launch(check, "add", bf16 ? add<true> : add<false>, h3_blocks(count, H3_THREADS), H3_THREADS, a.data, call->in[1].data, call->out.data,
                  count))
        return 1;
    h3_ran(call, "add", bf16);
    return 0;
}

int h3_add_backward(h3_call *call) { return h3_no_backward(call); }

int h3_convert_plan(const h3_call *call, h3_call_plan *plan)
{
    h3_check check = h3_check_plan(call, plan);
    return h3_want_device(check) || check_any(check, "in[0]", call->in[0]);
}

template <bool From, bool To> static __global__ void convert(const void *from, void *to, int64_t count)
{
    for (int64_t i = h3_first(); i < count; i += h3_stride()) h3_store<To>(to, i, h3_load<From>(from, i));
}

int h3_convert_forward(h3_call *call)
{
    const h3_tensor &from = call->in[0], &to = call->out;
    h3_check check = h3_check_call(call);
    if (h3_want_device(check) || check_any(check, "in[0]", from) || h3_want_activation(check, "out", to)) return 1;
    if (h3_want_like(check, "out", to, to.dtype, from)) return 1;
    int64_t count = h3_tensor_count(&from);
    bool to_bf16 = to.dtype == H3_BF16;
    int failed = from.dtype == to.dtype ? h3_copy(check, "convert", to.data, from.data, (size_t)count * h3_dtype_size(from.dtype))
                                        : h3_launch(check, "convert", to_bf16 ? convert<false, true> : convert<true, false>,
                                                    h3_blocks(count, H3_THREADS), H3_THREADS, from.data, to.data, count);
    if (failed) return 1;
    h3_ran(call, "convert to", to_bf16);
    return 0;
}

int h3_convert_backward(h3_call *call) { return h3_no_backward(call); }

static int check_scatter(const h3_check &check, const char *name, const h3_tensor &packed)
{
    const h3_tensor &rows = check.call->in[0];
    if (h3_want_device(check) || h3_want_activation(check, "rows", rows)) return 1;
    if (h3_want(check, "rows", rows, rows.dtype, {H3_ANY, H3_ANY})) return 1;
    if (!check.planning && h3_want(check, name, packed, rows.dtype, {H3_ANY, rows.shape[1]})) return 1;
    return h3_want(check, "index", check.call->in[1], H3_I32, {rows.shape[0]});
}

int h3_scatter_rows_plan(const h3_call *call, h3_call_plan *plan)
{
    h3_check check = h3_check_plan(call, plan);
    return check_scatter(check, "out", call->out);
}

/* forward: packed[index[i]] = rows[i]; backward: rows[i] = packed[index[i]]. Indices are distinct. A bad one moves nothing, or NaN. */
template <bool Bf16>
static __global__ void move_rows(void *rows, const int32_t *index, void *packed, int64_t count, int64_t width, int64_t limit, bool back)
{
    for (int64_t i = h3_first(); i < count * width; i += h3_stride()) {
        int32_t to = index[i / width];
        bool good = to >= 0 && to < limit;
        int64_t place = to * width + i % width;
        if (back) h3_store<Bf16>(rows, i, good ? h3_load<Bf16>(packed, place) : NAN);
        else if (good) h3_store<Bf16>(packed, place, h3_load<Bf16>(rows, i));
    }
}

static int move(const h3_check &check, const h3_tensor &rows, const h3_tensor &packed, bool back)
{
    int64_t count = h3_tensor_count(&rows);
    return h3_launch(check, "scatter_rows", rows.dtype == H3_BF16 ? move_rows<true> : move_rows<false>, h3_blocks(count, H3_THREADS), H3_THREADS,
                     rows.data, (const int32_t *)check.call->in[1].data, packed.data, rows.shape[0], rows.shape[1], packed.shape[0], back);
}

int h3_scatter_rows_forward(h3_call *call)
{
    h3_check check = h3_check_call(call);
    if (check_scatter(check, "out", call->out) || move(check, call->in[0], call->out, false)) return 1;
    h3_ran(call, "scatter_rows", call->in[0].dtype == H3_BF16);
    return 0;
}

int h3_scatter_rows_backward(h3_call *call)
{
    h3_check check = h3_check_call(call);
    if (check_scatter(check, "dout", call->dout)) return 1;
    if (h3_want_optional(check, "din[0]", call->din[0], call->in[0].dtype, call->in[0])) return 1;
    if (call->din[0].data != nullptr && move(check, call->din[0], call->dout, true)) return 1;
    h3_ran(call, "scatter_rows", call->in[0].dtype == H3_BF16);
    return 0;
}
