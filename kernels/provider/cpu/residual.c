/*
 * residual_attn, residual_mlp: x + gate * branch, the gate gathered from the table; without a table x + branch.
 * Contract elementwise-v1.
 */
#include "common.h"
#include "operators.h"

typedef struct residual_sizes {
    int64_t rows, width;
    int32_t dtype;
    int gated;
} residual_sizes;

static int check_residual(const h3_check *check, residual_sizes *sizes)
{
    const h3_call *call = check->call;
    const h3_tensor *x = &call->in[0], *table = &call->in[2], *index = &call->in[3];
    *sizes = (residual_sizes){.dtype = x->dtype, .gated = h3_present(check, table)};
    if (h3_want_host(check) || h3_want_activation(check, "x", x)) return 1;
    if (h3_want(check, "x", x, x->dtype, 2, H3_SHAPE(H3_ANY, H3_ANY))) return 1;
    sizes->rows = x->shape[0];
    sizes->width = x->shape[1];
    if (h3_want(check, "branch", &call->in[1], x->dtype, 2, x->shape)) return 1;
    if (!sizes->gated)
        return h3_present(check, index) ? h3_refuse(check, "row_index comes without a table; pass both or neither") : 0;
    return h3_want_table(check, table, index, sizes->rows, sizes->width, 1);
}

int h3_residual_plan(const h3_call *call, h3_call_plan *plan)
{
    residual_sizes sizes;
    h3_check check = h3_check_plan(call);
    *plan = (h3_call_plan){0};
    return check_residual(&check, &sizes);
}

H3_INLINE const void *gate_of(const h3_call *call, const residual_sizes *sizes, int64_t row, const int bf16)
{
    int64_t table_row = ((const int32_t *)call->in[3].data)[row];
    return h3_at(call->in[2].data, (table_row * H3_CHUNKS + call->chunk) * sizes->width, bf16);
}

H3_INLINE void forward_rows(const h3_call *call, const residual_sizes *sizes, const int bf16)
{
    for (int64_t row = 0; row < sizes->rows; row++) {
        int64_t first = row * sizes->width;
        const void *x = h3_at(call->in[0].data, first, bf16), *branch = h3_at(call->in[1].data, first, bf16);
        void *out = h3_at(call->out.data, first, bf16);
        if (!sizes->gated) {
            for (int64_t j = 0; j < sizes->width; j++) h3_store(out, j, h3_load(x, j, bf16) + h3_load(branch, j, bf16), bf16);
            continue;
        }
        const void *gate = gate_of(call, sizes, row, bf16);
        for (int64_t j = 0; j < sizes->width; j++) {
            float gated = h3_round(h3_load(gate, j, bf16) * h3_load(branch, j, bf16), bf16);
            h3_store(out, j, h3_load(x, j, bf16) + gated, bf16);
        }
    }
}

int h3_residual_forward(h3_call *call)
{
    residual_sizes sizes;
    h3_check check = h3_check_call(call);
    if (check_residual(&check, &sizes) || h3_want(&check, "out", &call->out, sizes.dtype, 2, call->in[0].shape)) return 1;
    int bf16 = sizes.dtype == H3_BF16;
    if (bf16) forward_rows(call, &sizes, 1);
    else forward_rows(call, &sizes, 0);
    h3_ran(call, "residual", bf16);
    return 0;
}

/* to = dout * factor, rounded once. */
H3_INLINE void product_row(void *to, const void *dout, const void *factor, int64_t width, const int bf16)
{
    for (int64_t j = 0; j < width; j++) h3_store(to, j, h3_load(dout, j, bf16) * h3_load(factor, j, bf16), bf16);
}

H3_INLINE void backward_rows(const h3_call *call, const residual_sizes *sizes, const int bf16)
{
    for (int64_t row = 0; row < sizes->rows; row++) {
        int64_t first = row * sizes->width;
        const void *dout = h3_at(call->dout.data, first, bf16);
        if (call->din[1].data != NULL) {
            void *dbranch = h3_at(call->din[1].data, first, bf16);
            if (sizes->gated) product_row(dbranch, dout, gate_of(call, sizes, row, bf16), sizes->width, bf16);
            else memcpy(dbranch, dout, (size_t)sizes->width * (bf16 ? 2 : 4));
        }
        if (sizes->gated && call->row_grad[0].data != NULL)
            product_row(h3_at(call->row_grad[0].data, first, bf16), dout, h3_at(call->in[1].data, first, bf16), sizes->width,
                        bf16);
    }
}

int h3_residual_backward(h3_call *call)
{
    residual_sizes sizes;
    h3_check check = h3_check_call(call);
    if (check_residual(&check, &sizes)) return 1;
    const int64_t *shape = call->in[0].shape;
    if (h3_want(&check, "dout", &call->dout, sizes.dtype, 2, shape)) return 1;
    if (h3_want_optional(&check, "din[1]", &call->din[1], sizes.dtype, 2, shape)) return 1;
    if (sizes.gated && h3_want_optional(&check, "row_grad[0]", &call->row_grad[0], sizes.dtype, 2, shape)) return 1;
    int bf16 = sizes.dtype == H3_BF16;
    if (bf16) backward_rows(call, &sizes, 1);
    else backward_rows(call, &sizes, 0);
    h3_ran(call, "residual", bf16);
    return 0;
}
