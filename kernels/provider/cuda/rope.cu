/*
 * Rotary embedding of the first 6K channels of each head (half-split: channel j turns with j + 3K), and the table of
 * cosines and sines. Every product and every sum is rounded. Contract elementwise-v1.
 */
#include "device.h"
#include "operators.h"

enum { AXES = 3 };

struct rope_sizes {
    int64_t rows, heads, head_dim, half; /* half = 3K */
    int32_t dtype;
};

static int check_rope(const h3_check &check, rope_sizes &sizes)
{
    const h3_call *call = check.call;
    const h3_tensor &x = call->in[0], &cosine = call->in[1];
    if (h3_want_device(check) || h3_want_activation(check, "x", x)) return 1;
    if (h3_want(check, "x", x, x.dtype, {H3_ANY, H3_ANY, H3_ANY})) return 1;
    if (h3_want(check, "cos", cosine, x.dtype, {x.shape[0], H3_ANY})) return 1;
    sizes = {x.shape[0], x.shape[1], x.shape[2], cosine.shape[1], x.dtype};
    if (2 * sizes.half > sizes.head_dim)
        return h3_refuse(check, "cos has %lld angles; a head of %lld channels holds at most half", (long long)sizes.half,
                         (long long)sizes.head_dim);
    return h3_want_like(check, "sin", call->in[2], x.dtype, cosine);
}

int h3_rope_plan(const h3_call *call, h3_call_plan *plan)
{
    rope_sizes sizes;
    h3_check check = h3_check_plan(call, plan);
    return check_rope(check, sizes);
}

/* Work item i of a head, `Many` channels: the pairs (i, i + half) and so on, or behind the pairs channels that pass through. */
template <bool Bf16, int Many> static __global__ void rotate(const void *from, void *to, const void *cosine, const void *sine, rope_sizes sizes, bool back)
{
    int64_t items = sizes.head_dim - sizes.half;
    for (int64_t n = h3_first() * Many; n < sizes.rows * sizes.heads * items; n += h3_stride() * Many) {
        int64_t head = n / items, i = n - head * items, x = head * sizes.head_dim + i;
        float a[Many], b[Many], c[Many], s[Many];
        h3_load_pack<Bf16, Many>(b, from, x + sizes.half);
        if (i < sizes.half) {
            int64_t angle = head / sizes.heads * sizes.half + i;
            h3_load_pack<Bf16, Many>(a, from, x);
            h3_load_pack<Bf16, Many>(c, cosine, angle);
            h3_load_pack<Bf16, Many>(s, sine, angle);
            for (int e = 0; e < Many; e++) {
                float first = a[e], second = b[e], turned = back ? -s[e] : s[e];
                a[e] = __fadd_rn(h3_round<Bf16>(__fmul_rn(first, c[e])), h3_round<Bf16>(__fmul_rn(-second, turned)));
                b[e] = __fadd_rn(h3_round<Bf16>(__fmul_rn(second, c[e])), h3_round<Bf16>(__fmul_rn(first, turned)));
            }
            h3_store_pack<Bf16, Many>(to, x, a);
        }
        h3_store_pack<Bf16, Many>(to, x + sizes.half, b);
    }
}

static int turn(const h3_check &check, const rope_sizes &sizes, const void *from, void *to, bool back)
{
    int64_t items = sizes.rows * sizes.heads * (sizes.head_dim - sizes.half);
    const void *cosine = check.call->in[1].data, *sine = check.call->in[2].data;
    bool bf16 = sizes.dtype == H3_BF16, packs = bf16 && h3_in_packs(sizes.head_dim, H3_PACK, {from, to}) && h3_in_packs(sizes.half, H3_PACK, {cosine, sine});
    return h3_launch(check, "rope", packs ? rotate<true, H3_PACK> : bf16 ? rotate<true, 1> : rotate<false, 1>,
                     h3_blocks(items, packs ? H3_THREADS * H3_PACK : H3_THREADS), H3_THREADS, from, to, cosine, sine, sizes, back);
}

int h3_rope_forward(h3_call *call)
{
    rope_sizes sizes;
    h3_check check = h3_check_call(call);
    if (check_rope(check, sizes) || h3_want_like(check, "out", call->out, sizes.dtype, call->in[0])) return 1;
    if (turn(check, sizes, call->in[0].data, call->out.data, false)) return 1;
    h3_ran(call, "rope", sizes.dtype == H3_BF16);
    return 0;
}

int h3_rope_backward(h3_call *call)
{
    rope_sizes sizes;
    h3_check check = h3_check_call(call);
    if (check_rope(check, sizes) || h3_want_like(check, "dout", call->dout, sizes.dtype, call->in[0])) return 1;
    if (h3_want_optional(check, "din[0]", call->din[0], sizes.dtype, call->in[0])) return 1;
    if (call->din[0].data != nullptr && turn(check, sizes, call->dout.data, call->din[0].data, true)) return 1;
    h3_ran(call, "rope", sizes.dtype == H3_BF16);
    return 0;
}

static int check_table(const h3_check &check)
{
    const h3_tensor &position = check.call->in[0], &frequency = check.call->in[1];
    if (h3_want_device(check) || h3_want(check, "position", position, H3_F32, {H3_ANY, AXES})) return 1;
    return h3_want(check, "inverse frequency", frequency, H3_F32, {H3_ANY});
}

int h3_rotary_table_plan(const h3_call *call, h3_call_plan *plan)
{
    h3_check check = h3_check_plan(call, plan);
    return check_table(check);
}

template <bool Bf16> static __global__ void rotary_table(const float *position, const float *frequency, void *out, int64_t rows, int64_t frequencies)
{
    int64_t angles = AXES * frequencies;
    for (int64_t i = h3_first(); i < rows * angles; i += h3_stride()) {
        int64_t row = i / angles, column = i % angles;
        float angle = __fmul_rn(position[row * AXES + column / frequencies], frequency[column % frequencies]);
        h3_store<Bf16>(out, i, cosf(angle));
        h3_store<Bf16>(out, rows * angles + i, sinf(angle));
    }
}

int h3_rotary_table_forward(h3_call *call)
{
    h3_check check = h3_check_call(call);
    if (check_table(check) || h3_want_activation(check, "out", call->out)) return 1;
    int64_t rows = call->in[0].shape[0], frequencies = call->in[1].shape[0];
    if (h3_want(check, "out", call->out, call->out.dtype, {2, rows, AXES * frequencies})) return 1;
    bool bf16 = call->out.dtype == H3_BF16;
    if (h3_launch(check, "rotary table", bf16 ? rotary_table<true> : rotary_table<false>, h3_blocks(rows * AXES * frequencies, H3_THREADS),
                  H3_THREADS, (const float *)call->in[0].data, (const float *)call->in[1].data, call->out.data, rows, frequencies))
        return 1;
    h3_ran(call, "rotary table", bf16);
    return 0;
}

int h3_rotary_table_backward(h3_call *call) { return h3_no_backward(call); }
