/* swiglu: gu [R,2F] holds values and gates side by side, s = value * silu(gate) [R,F]. Contract elementwise-v1. */
#include "activation.h"
#include "operators.h"

typedef struct swiglu_sizes {
    int64_t rows, width;
    int32_t dtype;
} swiglu_sizes;

static int check_swiglu(const h3_check *check, swiglu_sizes *sizes)
{
    const h3_tensor *gu = &check->call->in[0];
    *sizes = (swiglu_sizes){.dtype = gu->dtype};
    if (h3_want_host(check) || h3_want_activation(check, "gu", gu)) return 1;
    if (h3_want(check, "gu", gu, gu->dtype, 2, H3_SHAPE(H3_ANY, H3_ANY))) return 1;
    if (gu->shape[1] % 2 != 0)
        return h3_refuse(check, "gu has %lld columns; values and gates need an even number", (long long)gu->shape[1]);
    sizes->rows = gu->shape[0];
    sizes->width = gu->shape[1] / 2;
    return 0;
}

int h3_swiglu_plan(const h3_call *call, h3_call_plan *plan)
{
    swiglu_sizes sizes;
    h3_check check = h3_check_plan(call);
    *plan = (h3_call_plan){0};
    return check_swiglu(&check, &sizes);
}

H3_INLINE void forward_rows(const swiglu_sizes *sizes, const void *gu, void *out, const int bf16)
{
    for (int64_t row = 0; row < sizes->rows; row++) {
        const void *value = h3_at(gu, row * 2 * sizes->width, bf16), *gate = h3_at(value, sizes->width, bf16);
        void *to = h3_at(out, row * sizes->width, bf16);
        for (int64_t j = 0; j < sizes->width; j++) {
            float act = h3_round(h3_silu(h3_load(gate, j, bf16)), bf16);
            h3_store(to, j, h3_load(value, j, bf16) * act, bf16);
        }
    }
}

int h3_swiglu_forward(h3_call *call)
{
    swiglu_sizes sizes;
    h3_check check = h3_check_call(call);
    if (check_swiglu(&check, &sizes)) return 1;
    if (h3_want(&check, "out", &call->out, sizes.dtype, 2, H3_SHAPE(sizes.rows, sizes.width))) return 1;
    int bf16 = sizes.dtype == H3_BF16;
    if (bf16) forward_rows(&sizes, call->in[0].data, call->out.data, 1);
    else forward_rows(&sizes, call->in[0].data, call->out.data, 0);
    h3_ran(call, "swiglu", bf16);
    return 0;
}

H3_INLINE void backward_rows(const swiglu_sizes *sizes, const void *gu, const void *ds, void *dgu, const int bf16)
{
    for (int64_t row = 0; row < sizes->rows; row++) {
        const void *value = h3_at(gu, row * 2 * sizes->width, bf16), *gate = h3_at(value, sizes->width, bf16);
        const void *up = h3_at(ds, row * sizes->width, bf16);
        void *dvalue = h3_at(dgu, row * 2 * sizes->width, bf16), *dgate = h3_at(dvalue, sizes->width, bf16);
        for (int64_t j = 0; j < sizes->width; j++) {
            float g = h3_load(gate, j, bf16), dy = h3_load(up, j, bf16);
            float dact = h3_round(dy * h3_load(value, j, bf16), bf16);
            h3_store(dvalue, j, dy * h3_round(h3_silu(g), bf16), bf16);
            h3_store(dgate, j, h3_silu_gradient(dact, g), bf16);
        }
    }
}

int h3_swiglu_backward(h3_call *call)
{
    swiglu_sizes sizes;
    h3_check check = h3_check_call(call);
    if (check_swiglu(&check, &sizes)) return 1;
    if (h3_want(&check, "dout", &call->dout, sizes.dtype, 2, H3_SHAPE(sizes.rows, sizes.width))) return 1;
    if (h3_want_optional(&check, "din[0]", &call->din[0], sizes.dtype, 2, call->in[0].shape)) return 1;
    int bf16 = sizes.dtype == H3_BF16;
    if (call->din[0].data != NULL) {
        if (bf16) backward_rows(&sizes, call->in[0].data, call->dout.data, call->din[0].data, 1);
        else backward_rows(&sizes, call->in[0].data, call->dout.data, call->din[0].data, 0);
    }
    h3_ran(call, "swiglu", bf16);
    return 0;
}
