/*
 * Gated residual additions, elementwise:
 *     forward   x1 = bf(x + bf(gate branch)), without a table bf(x + branch)
 *     backward  d_branch = bf(dout gate), without a table dout; the gate's row gradient is bf(dout branch)
 */
#include "common.h"
#include "vector.h"

typedef struct residual_sizes {
    int64_t rows, width;
    bool gated;
} residual_sizes;

static void check_sizes(h3_check *check, const h3_call *call, residual_sizes *s)
{
    h3_need(check, &call->in[0], "x", H3_BF16);
    if (check->problem) return;
    *s = (residual_sizes){h3_rows_of(&call->in[0]), h3_width_of(&call->in[0]), h3_present(&call->in[2])};
    h3_need_rows(check, &call->in[1], "branch", H3_BF16, s->rows, s->width);
    if (!s->gated) return;
    h3_need_table(check, &call->in[2], &call->in[3], s->rows, s->width);
    h3_require(check, call->chunk >= 0 && call->chunk < H3_ROW_GRADS, "chunk", "names no gate of the table");
}

int h3_residual_plan(const h3_call *call, h3_call_plan *plan)
{
    residual_sizes s;
    h3_check check = {0};
    check_sizes(&check, call, &s);
    if (check.problem) return 1;
    *plan = (h3_call_plan){0};
    return 0;
}

static const uint16_t *row_gate(const h3_call *call, const residual_sizes *s, int64_t row)
{
    const int32_t *index = call->in[3].data;
    const uint16_t *table = call->in[2].data;
    return table + ((int64_t)index[row] * H3_ROW_GRADS + call->chunk) * s->width;
}

static void forward_row(const h3_call *call, const residual_sizes *s, int64_t row)
{
    const int64_t start = row * s->width;
    const uint16_t *x = (const uint16_t *)call->in[0].data + start, *branch = (const uint16_t *)call->in[1].data + start;
    const uint16_t *gate = s->gated ? row_gate(call, s, row) : NULL;
    uint16_t *out = (uint16_t *)call->out.data + start;
    for (int64_t j = 0; j < s->width; j += 8) {
        const int64_t count = s->width - j;
        __m256 added = h3_load8(branch + j, count);
        if (gate) added = h3_round8(_mm256_mul_ps(h3_load8(gate + j, count), added));
        h3_store8(out + j, _mm256_add_ps(h3_load8(x + j, count), added), count);
    }
}

int h3_residual_forward(h3_call *call)
{
    residual_sizes s = {0};
    h3_check check = h3_begin(call);
    check_sizes(&check, call, &s);
    h3_need_rows(&check, &call->out, "out", H3_BF16, s.rows, s.width);
    if (check.problem) return h3_refuse(call, &check);
#pragma omp parallel for schedule(static) if (s.rows * s.width > H3_PARALLEL_ELEMENTS)
    for (int64_t row = 0; row < s.rows; row++) forward_row(call, &s, row);
    return h3_done(call, s.gated ? "residual_gated_avx2" : "residual_avx2");
}

/* to = bf(a b) for one row. */
static void multiply_row(uint16_t *to, const uint16_t *a, const uint16_t *b, int64_t width)
{
    for (int64_t j = 0; j < width; j += 8) {
        h3_store8(to + j, _mm256_mul_ps(h3_load8(a + j, width - j), h3_load8(b + j, width - j)), width - j);
    }
}

int h3_residual_backward(h3_call *call)
{
    residual_sizes s = {0};
    h3_check check = h3_begin(call);
    check_sizes(&check, call, &s);
    h3_need_rows(&check, &call->dout, "dout", H3_BF16, s.rows, s.width);
    h3_may_rows(&check, &call->din[1], "din[1]", H3_BF16, s.rows, s.width);
    h3_may_rows(&check, &call->row_grad[0], "row_grad[0]", H3_BF16, s.rows, s.width);
    if (check.problem) return h3_refuse(call, &check);
    const uint16_t *dout = call->dout.data, *branch = call->in[1].data;
    uint16_t *dbranch = h3_wanted(&call->din[1]), *dgate = s.gated ? h3_wanted(&call->row_grad[0]) : NULL;
#pragma omp parallel for schedule(static) if (s.rows * s.width > H3_PARALLEL_ELEMENTS)
    for (int64_t row = 0; row < s.rows; row++) {
        const int64_t start = row * s.width;
        if (dgate) multiply_row(dgate + start, dout + start, branch + start, s.width);
        if (!dbranch) continue;
        if (s.gated) multiply_row(dbranch + start, dout + start, row_gate(call, &s, row), s.width);
        else memcpy(dbranch + start, dout + start, (size_t)s.width * sizeof *dout);
    }
    return h3_done(call, s.gated ? "residual_gated_gradient_avx2" : "residual_gradient_avx2");
}
