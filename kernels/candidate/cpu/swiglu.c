/*
 * SwiGLU on rows [value | gate], elementwise; exp as in vector.h, everything else one rounded operation at a time.
 *     forward   act = bf(gate / (1 + exp(-gate))),  s = bf(value act)
 *     backward  dvalue = bf(ds act),  dact = bf(ds value),  sg = 1 / (1 + exp(-gate)),
 *               dgate = bf((dact sg) (1 + gate (1 - sg)))
 */
#include "common.h"
#include "vector.h"

typedef struct swiglu_sizes {
    int64_t rows, width;
} swiglu_sizes;

static void check_sizes(h3_check *check, const h3_call *call, swiglu_sizes *s)
{
    h3_need(check, &call->in[0], "gu", H3_BF16);
    if (check->problem) return;
    h3_require(check, h3_width_of(&call->in[0]) % 2 == 0, "gu", "has an odd last dimension, it holds value and gate");
    *s = (swiglu_sizes){h3_rows_of(&call->in[0]), h3_width_of(&call->in[0]) / 2};
}

int h3_swiglu_plan(const h3_call *call, h3_call_plan *plan)
{
    swiglu_sizes s;
    h3_check check = {0};
    check_sizes(&check, call, &s);
    if (check.problem) return 1;
    *plan = (h3_call_plan){0};
    return 0;
}

int h3_swiglu_forward(h3_call *call)
{
    swiglu_sizes s = {0};
    h3_check check = h3_begin(call);
    check_sizes(&check, call, &s);
    h3_need_rows(&check, &call->out, "out", H3_BF16, s.rows, s.width);
    if (check.problem) return h3_refuse(call, &check);
    const uint16_t *in = call->in[0].data;
    uint16_t *out = call->out.data;
#pragma omp parallel for schedule(static) if (s.rows * s.width > H3_PARALLEL_ELEMENTS)
    for (int64_t row = 0; row < s.rows; row++) {
        const uint16_t *value = in + 2 * row * s.width, *gate = value + s.width;
        for (int64_t j = 0; j < s.width; j += 8) {
            const int64_t count = s.width - j;
            const __m256 act = h3_round8(h3_silu8(h3_load8(gate + j, count)));
            h3_store8(out + row * s.width + j, _mm256_mul_ps(h3_load8(value + j, count), act), count);
        }
    }
    return h3_done(call, "swiglu_avx2");
}

static void backward_row(uint16_t *dvalue, uint16_t *dgate, const uint16_t *value, const uint16_t *gate, const uint16_t *ds,
                         int64_t width)
{
    for (int64_t j = 0; j < width; j += 8) {
        const int64_t count = width - j;
        const __m256 g = h3_load8(gate + j, count), upstream = h3_load8(ds + j, count);
        const __m256 act = h3_round8(h3_silu8(g));
        const __m256 dact = h3_round8(_mm256_mul_ps(upstream, h3_load8(value + j, count)));
        h3_store8(dvalue + j, _mm256_mul_ps(upstream, act), count);
        h3_store8(dgate + j, h3_silu_gradient8(dact, g, h3_sigmoid8(g)), count);
    }
}

int h3_swiglu_backward(h3_call *call)
{
    swiglu_sizes s = {0};
    h3_check check = h3_begin(call);
    check_sizes(&check, call, &s);
    h3_need_rows(&check, &call->dout, "dout", H3_BF16, s.rows, s.width);
    h3_may_rows(&check, &call->din[0], "din[0]", H3_BF16, s.rows, 2 * s.width);
    if (check.problem) return h3_refuse(call, &check);
    const uint16_t *in = call->in[0].data, *dout = call->dout.data;
    uint16_t *din = h3_wanted(&call->din[0]);
    if (!din) return h3_done(call, "swiglu_gradient_avx2");
#pragma omp parallel for schedule(static) if (s.rows * s.width > H3_PARALLEL_ELEMENTS)
    for (int64_t row = 0; row < s.rows; row++) {
        const int64_t start = 2 * row * s.width;
        backward_row(din + start, din + start + s.width, in + start, in + start + s.width, dout + row * s.width, s.width);
    }
    return h3_done(call, "swiglu_gradient_avx2");
}
