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

/* Gates of the elements i, i + 1, ... of one row. */
template <bool Bf16, int Many> H3_DEVICE void load_gates(float (&gate)[Many], const gates &g, int64_t i)
{
    int64_t row = i / g.width;
    int32_t index = g.index[row];
    if (index >= 0 && index < g.limit)
        return h3_load_pack<Bf16, Many>(gate, g.table, (index * (int64_t)H3_CHUNKS + g.chunk) * g.width + i - row * g.width);
    for (int e = 0; e < Many; e++) gate[e] = NAN;
}

template <bool Bf16, int Many> static __global__ void residual(const void *x, const void *branch, gates g, void *out, int64_t count)
{
    for (int64_t i = h3_first() * Many; i < count; i += h3_stride() * Many) {
        float sum[Many], added[Many], gate[Many];
        h3_load_pack<Bf16, Many>(sum, x, i);
        h3_load_pack<Bf16, Many>(added, branch, i);
        if (g.table != nullptr) load_gates<Bf16, Many>(gate, g, i);
        for (int e = 0; e < Many; e++) {
            if (g.table != nullptr) added[e] = h3_round<Bf16>(__fmul_rn(gate[e], added[e]));
            sum[e] = __fadd_rn(sum[e], added[e]);
        }
        h3_store_pack<Bf16, Many>(out, i, sum);
    }
}

int h3_residual_forward(h3_call *call)
{
    residual_sizes sizes;
    h3_check check = h3_check_call(call);
    if (check_residual(check, sizes) || h3_want_like(check, "out", call->out, sizes.dtype, call->in[0])) return 1;
    int64_t count = sizes.rows * sizes.width;
    const gates g = gates_of(call, sizes);
    bool bf16 = sizes.dtype == H3_BF16, packs = bf16 && h3_in_packs(sizes.width, H3_PACK, {call->in[0].data, call->in[1].data, g.table, call->out.data});
    if (h3_launch(check, "residual", packs ? residual<true, H3_PACK> : bf16 ? residual<true, 1> : residual<false, 1>,
                  h3_blocks(count, packs ? H3_THREADS * H3_PACK : H3_THREADS), H3_THREADS, call->in[0].data, call->in[1].data, g, call->out.data, count))
        return 1;
    h3_ran(call, "residual", bf16);
    return 0;
}

template <bool Bf16>
static __global__ void residual_backward(const void *dout, const void *branch, gates g, void *dbranch, void *dgate, int64_t count)
{
    for (int64_t i = h3_first(); i < count; i += h3_stride()) {
        float up = h3_load<Bf16>(dout, i);
        float gate[1] = {1.0f};
        if (dbranch != nullptr && g.table != nullptr) load_gates<Bf16, 1>(gate, g, i);
        if (dbranch != nullptr) h3_store<Bf16>(dbranch, i, g.table != nullptr ? __fmul_rn(up, gate[0]) : up);
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
