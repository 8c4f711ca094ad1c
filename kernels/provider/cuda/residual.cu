/*
 * residual_attn, residual_mlp: x + gate * branch, the gate gathered from the table; without a table x + branch.
 * Contract elementwise-v1.
 */
#include "device.h"
#include "operators.h"

struct residual_sizes {
    int64_t rows, width;
    int32_t dtype;
    bool gated;
};

/* Where a row's gate is; table NULL: no gate. */
struct gates {
    const void *table;
    const int32_t *index;
    int64_t limit, width, chunk;
};

static int check_residual(const h3_check &check, residual_sizes &sizes)
{
    const h3_call *call = check.call;
    const h3_tensor &x = call->in[0], &table = call->in[2], &index = call->in[3];
    if (h3_want_device(check) || h3_want_activation(check, "x", x)) return 1;
    if (h3_want(check, "x", x, x.dtype, {H3_ANY, H3_ANY})) return 1;
    sizes = {x.shape[0], x.shape[1], x.dtype, h3_present(check, table)};
    if (h3_want_like(check, "branch", call->in[1], x.dtype, x)) return 1;
    if (!sizes.gated) return h3_present(check, index) ? h3_refuse(check, "row_index comes without a table; pass both or neither") : 0;
    return h3_want_table(check, table, index, sizes.rows, sizes.width, 1);
}

int h3_residual_plan(const h3_call *call, h3_call_plan *plan)
{
    residual_sizes sizes;
    h3_check check = h3_check_plan(call, plan);
    return check_residual(check, sizes);
}

static gates gates_of(const h3_call *call, const residual_sizes &sizes)
{
    if (!sizes.gated) return {};
    return {call->in[2].data, (const int32_t *)call->in[3].data, call->in[2].shape[0], sizes.width, call->chunk};
}

template <bool Bf16> H3_DEVICE float gate_of(const gates &g, int64_t i)
{
    int32_t index = g.index[i / g.width];
    if (index < 0 || index >= g.limit) return NAN;
    return h3_load<Bf16>(g.table, (index * (int64_t)H3_CHUNKS + g.chunk) * g.width + i % g.width);
}

template <bool Bf16> static __global__ void residual(const void *x, const void *branch, gates g, void *out, int64_t count)
{
    for (int64_t i = h3_first(); i < count; i += h3_stride()) {
        float added = h3_load<Bf16>(branch, i);
        if (g.table != nullptr) added = h3_round<Bf16>(__fmul_rn(gate_of<Bf16>(g, i), added));
        h3_store<Bf16>(out, i, __fadd_rn(h3_load<Bf16>(x, i), added));
    }
}

int h3_residual_forward(h3_call *call)
{
    residual_sizes sizes;
    h3_check check = h3_check_call(call);
    if (check_residual(check, sizes) || h3_want_like(check, "out", call->out, sizes.dtype, call->in[0])) return 1;
    int64_t count = sizes.rows * sizes.width;
    bool bf16 = sizes.dtype == H3_BF16;
    if (h3_launch(check, "residual", bf16 ? residual<true> : residual<false>, h3_blocks(count, H3_THREADS), H3_THREADS, call->in[0].data,
                  call->in[1].data, gates_of(call, sizes), call->out.data, count))
        return 1;
    h3_ran(call, "residual", bf16);
    return 0;
}

template <bool Bf16>
static __global__ void residual_backward(const void *dout, const void *branch, gates g, void *dbranch, void *dgate, int64_t count)
{
    for (int64_t i = h3_first(); i < count; i += h3_stride()) {
        float up = h3_load<Bf16>(dout, i);
        if (dbranch != nullptr) h3_store<Bf16>(dbranch, i, g.table != nullptr ? __fmul_rn(up, gate_of<Bf16>(g, i)) : up);
        if (dgate != nullptr) h3_store<Bf16>(dgate, i, __fmul_rn(up, h3_load<Bf16>(branch, i)));
    }
}

int h3_residual_backward(h3_call *call)
{
    residual_sizes sizes;
    h3_check check = h3_check_call(call);
    if (check_residual(check, sizes)) return 1;
    if (h3_want_like(check, "dout", call->dout, sizes.dtype, call->in[0])) return 1;
    if (h3_want_optional(check, "din[1]", call->din[1], sizes.dtype, call->in[0])) return 1;
    if (sizes.gated && h3_want_optional(check, "row_grad[0]", call->row_grad[0], sizes.dtype, call->in[0])) return 1;
    int64_t count = sizes.rows * sizes.width;
    bool bf16 = sizes.dtype == H3_BF16;
    void *dgate = sizes.gated ? call->row_grad[0].data : nullptr;
    if (h3_launch(check, "residual backward", bf16 ? residual_backward<true> : residual_backward<false>, h3_blocks(count, H3_THREADS), H3_THREADS,
                  call->dout.data, call->in[1].data, gates_of(call, sizes), call->din[1].data, dgate, count))
        return 1;
    h3_ran(call, "residual", bf16);
    return 0;
}
