/*
 * Rotary embedding of the first 6K channels of each head (half-split: channel j turns with j + 3K), and the table of
 * cosines and sines. Every product and every sum is rounded. Contract elementwise-v1.
 */
#include <math.h>

#include "common.h"
#include "operators.h"

enum { AXES = 3 };

typedef struct rope_sizes {
    int64_t rows, heads, head_dim, half; /* half = 3K */
    int32_t dtype;
} rope_sizes;

static int check_rope(const h3_check *check, rope_sizes *sizes)
{
    const h3_call *call = check->call;
    const h3_tensor *x = &call->in[0], *cosine = &call->in[1];
    *sizes = (rope_sizes){.dtype = x->dtype};
    if (h3_want_host(check) || h3_want_activation(check, "x", x)) return 1;
    if (h3_want(check, "x", x, x->dtype, 3, H3_SHAPE(H3_ANY, H3_ANY, H3_ANY))) return 1;
    sizes->rows = x->shape[0];
    sizes->heads = x->shape[1];
    sizes->head_dim = x->shape[2];
    if (h3_want(check, "cos", cosine, x->dtype, 2, H3_SHAPE(sizes->rows, H3_ANY))) return 1;
    sizes->half = cosine->shape[1];
    if (2 * sizes->half > sizes->head_dim)
        return h3_refuse(check, "cos has %lld angles; a head of %lld channels holds at most half", (long long)sizes->half,
                         (long long)sizes->head_dim);
    return h3_want(check, "sin", &call->in[2], x->dtype, 2, cosine->shape);
}

int h3_rope_plan(const h3_call *call, h3_call_plan *plan)
{
    rope_sizes sizes;
    h3_check check = h3_check_plan(call);
    *plan = (h3_call_plan){0};
    return check_rope(&check, &sizes);
}

/* Turns every head by its row's angles; the backward turns the other way round. */
H3_INLINE void rotate(const h3_call *call, const rope_sizes *sizes, const void *from, void *to, const int back, const int bf16)
{
    for (int64_t row = 0; row < sizes->rows; row++) {
        const void *cosine = h3_at(call->in[1].data, row * sizes->half, bf16),
                   *sine = h3_at(call->in[2].data, row * sizes->half, bf16);
        for (int64_t head = 0; head < sizes->heads; head++) {
            int64_t first = (row * sizes->heads + head) * sizes->head_dim;
            const void *x = h3_at(from, first, bf16), *x2 = h3_at(x, sizes->half, bf16);
            void *y = h3_at(to, first, bf16), *y2 = h3_at(y, sizes->half, bf16);
            for (int64_t j = 0; j < sizes->half; j++) {
                float a = h3_load(x, j, bf16), b = h3_load(x2, j, bf16), c = h3_load(cosine, j, bf16), s = h3_load(sine, j, bf16);
                if (back) s = -s;
                h3_store(y, j, h3_round(a * c, bf16) + h3_round(-b * s, bf16), bf16);
                h3_store(y2, j, h3_round(b * c, bf16) + h3_round(a * s, bf16), bf16);
            }
            int64_t rest = 2 * sizes->half;
            memcpy(h3_at(y, rest, bf16), h3_at(x, rest, bf16), (size_t)(sizes->head_dim - rest) * (bf16 ? 2 : 4));
        }
    }
}

int h3_rope_forward(h3_call *call)
{
    rope_sizes sizes;
    h3_check check = h3_check_call(call);
    if (check_rope(&check, &sizes) || h3_want(&check, "out", &call->out, sizes.dtype, 3, call->in[0].shape)) return 1;
    int bf16 = sizes.dtype == H3_BF16;
    if (bf16) rotate(call, &sizes, call->in[0].data, call->out.data, 0, 1);
    else rotate(call, &sizes, call->in[0].data, call->out.data, 0, 0);
    h3_ran(call, "rope", bf16);
    return 0;
}

int h3_rope_backward(h3_call *call)
{
    rope_sizes sizes;
    h3_check check = h3_check_call(call);
    if (check_rope(&check, &sizes) || h3_want(&check, "dout", &call->dout, sizes.dtype, 3, call->in[0].shape)) return 1;
    if (h3_want_optional(&check, "din[0]", &call->din[0], sizes.dtype, 3, call->in[0].shape)) return 1;
    int bf16 = sizes.dtype == H3_BF16;
    if (call->din[0].data != NULL) {
        if (bf16) rotate(call, &sizes, call->dout.data, call->din[0].data, 1, 1);
        else rotate(call, &sizes, call->dout.data, call->din[0].data, 1, 0);
    }
    h3_ran(call, "rope", bf16);
    return 0;
}

static int check_table(const h3_check *check)
{
    const h3_tensor *position = &check->call->in[0], *frequency = &check->call->in[1];
    if (h3_want_host(check) || h3_want(check, "position", position, H3_F32, 2, H3_SHAPE(H3_ANY, AXES))) return 1;
    return h3_want(check, "inverse frequency", frequency, H3_F32, 1, H3_SHAPE(H3_ANY));
}

int h3_rotary_table_plan(const h3_call *call, h3_call_plan *plan)
{
    h3_check check = h3_check_plan(call);
    *plan = (h3_call_plan){0};
    return check_table(&check);
}

int h3_rotary_table_forward(h3_call *call)
{
    h3_check check = h3_check_call(call);
    if (check_table(&check) || h3_want_activation(&check, "out", &call->out)) return 1;
    int64_t rows = call->in[0].shape[0], frequencies = call->in[1].shape[0], angles = AXES * frequencies;
    if (h3_want(&check, "out", &call->out, call->out.dtype, 3, H3_SHAPE(2, rows, angles))) return 1;
    const float *position = call->in[0].data, *frequency = call->in[1].data;
    int bf16 = call->out.dtype == H3_BF16;
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t i = 0; i < angles; i++) {
            float angle = position[row * AXES + i / frequencies] * frequency[i % frequencies];
            h3_store(call->out.data, row * angles + i, cosf(angle), bf16);
            h3_store(call->out.data, (rows + row) * angles + i, sinf(angle), bf16);
        }
    }
    h3_ran(call, "rotary table libm", bf16);
    return 0;
}

int h3_rotary_table_backward(h3_call *call) { return h3_no_backward(call); }
