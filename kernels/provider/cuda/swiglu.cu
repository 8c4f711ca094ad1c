/* swiglu: gu [R,2F] holds values and gates side by side, s = value * silu(gate) [R,F]. Contract elementwise-v1. */
#include "device.h"
#include "operators.h"

struct swiglu_sizes {
    int64_t rows, width;
    int32_t dtype;
};

static int check_swiglu(const h3_check &check, swiglu_sizes &sizes)
{
    const h3_tensor &gu = check.call->in[0];
    if (h3_want_device(check) || h3_want_activation(check, "gu", gu)) return 1;
    if (h3_want(check, "gu", gu, gu.dtype, {H3_ANY, H3_ANY})) return 1;
    if (gu.shape[1] % 2 != 0)
        return h3_refuse(check, "gu has %lld columns; values and gates need an even number", (long long)gu.shape[1]);
    sizes = {gu.shape[0], gu.shape[1] / 2, gu.dtype};
    return 0;
}

int h3_swiglu_plan(const h3_call *call, h3_call_plan *plan)
{
    swiglu_sizes sizes;
    h3_check check = h3_check_plan(call, plan);
    return check_swiglu(check, sizes);
}

template <bool Bf16, int Many> static __global__ void swiglu(const void *gu, void *out, int64_t count, int64_t width)
{
    for (int64_t i = h3_first() * Many; i < count; i += h3_stride() * Many) {
        int64_t row = i / width, first = row * width + i; /* i - row * width elements behind the start of row `row` of gu */
        float value[Many], gate[Many];
        h3_load_pack<Bf16, Many>(value, gu, first);
        h3_load_pack<Bf16, Many>(gate, gu, first + width);
        for (int e = 0; e < Many; e++) value[e] = __fmul_rn(value[e], h3_round<Bf16>(h3_silu(gate[e])));
        h3_store_pack<Bf16, Many>(out, i, value);
    }
}

int h3_swiglu_forward(h3_call *call)
{
    swiglu_sizes sizes;
    h3_check check = h3_check_call(call);
    if (check_swiglu(check, sizes) || h3_want(check, "out", call->out, sizes.dtype, {sizes.rows, sizes.width})) return 1;
    int64_t count = sizes.rows * sizes.width;
    bool bf16 = sizes.dtype == H3_BF16, packs = bf16 && h3_in_packs(sizes.width, H3_PACK, {call->in[0].data, call->out.data});
    if (h3_launch(check, "swiglu", packs ? swiglu<true, H3_PACK> : bf16 ? swiglu<true, 1> : swiglu<false, 1>,
                  h3_blocks(count, packs ? H3_THREADS * H3_PACK : H3_THREADS), H3_THREADS, call->in[0].data, call->out.data, count, sizes.width))
        return 1;
    h3_ran(call, "swiglu", bf16);
    return 0;
}

template <bool Bf16> static __global__ void swiglu_backward(const void *gu, const void *ds, void *dgu, int64_t count, int64_t width)
{
    for (int64_t i = h3_first(); i < count; i += h3_stride()) {
        int64_t value = i / width * 2 * width + i % width;
        float gate = h3_load<Bf16>(gu, value + width), up = h3_load<Bf16>(ds, i);
        float dact = h3_round<Bf16>(__fmul_rn(up, h3_load<Bf16>(gu, value)));
        h3_store<Bf16>(dgu, value, __fmul_rn(up, h3_round<Bf16>(h3_silu(gate))));
        h3_store<Bf16>(dgu, value + width, h3_silu_gradient(dact, gate));
    }
}

int h3_swiglu_backward(h3_call *call)
{
    swiglu_sizes sizes;
    h3_check check = h3_check_call(call);
    if (check_swiglu(check, sizes) || h3_want(check, "dout", call->dout, sizes.dtype, {sizes.rows, sizes.width})) return 1;
    if (h3_want_optional(check, "din[0]", call->din[0], sizes.dtype, call->in[0])) return 1;
    int64_t count = sizes.rows * sizes.width;
    bool bf16 = sizes.dtype == H3_BF16;
    if (call->din[0].data != nullptr &&
        h3_launch(check, "swiglu backward", bf16 ? swiglu_backward<true> : swiglu_backward<false>, h3_blocks(count, H3_THREADS), H3_THREADS,
                  call->in[0].data, call->dout.data, call->din[0].data, count, sizes.width))
        return 1;
    h3_ran(call, "swiglu", bf16);
    return 0;
}
