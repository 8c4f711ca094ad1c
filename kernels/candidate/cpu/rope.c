/*
 * Rotary position embedding on three axes: the first 2h = 6K channels of every head turn by the row's h = 3K angles in
 * half-split pairs (j, j + h), the rest passes through. Elementwise, every product and sum rounded to BF16:
 *     forward   y[j] = bf(bf(x[j] C[j]) + bf(-x[j+h] S[j]))      y[j+h] = bf(bf(x[j+h] C[j]) + bf(x[j] S[j]))
 *     backward dx[j] = bf(bf(dy[j] C[j]) + bf(dy[j+h] S[j]))    dx[j+h] = bf(bf(dy[j+h] C[j]) - bf(dy[j] S[j]))
 */
#include "common.h"
#include "vector.h"

typedef struct rope_sizes {
    int64_t rows, heads, head_dim, angles;
} rope_sizes;

static void check_sizes(h3_check *check, const h3_call *call, rope_sizes *s)
{
    const h3_tensor *x = &call->in[0], *cosine = &call->in[1];
    h3_need(check, x, "x", H3_BF16);
    h3_need(check, cosine, "cos", H3_BF16);
    if (check->problem) return;
    h3_require(check, x->rank >= 3 && cosine->rank >= 2, x->rank >= 3 ? "cos" : "x", "has too few dimensions");
    if (check->problem) return;
    *s = (rope_sizes){.heads = x->shape[x->rank - 2], .head_dim = h3_width_of(x), .angles = h3_width_of(cosine)};
    h3_require(check, s->heads > 0, "x", "has no heads");
    h3_require(check, 2 * s->angles <= s->head_dim, "cos", "has more angles than half of head_dim");
    if (check->problem) return;
    s->rows = h3_rows_of(x) / s->heads;
    h3_need_rows(check, cosine, "cos", H3_BF16, s->rows, s->angles);
    h3_need_rows(check, &call->in[2], "sin", H3_BF16, s->rows, s->angles);
}

int h3_rope_plan(const h3_call *call, h3_call_plan *plan)
{
    rope_sizes s;
    h3_check check = {0};
    check_sizes(&check, call, &s);
    if (check.problem) return 1;
    *plan = (h3_call_plan){0};
    return 0;
}

/* bf(a b) negated when `sign` is -0: the product with -a. */
static inline __m256 signed_product(__m256 a, __m256 b, __m256 sign)
{
    return h3_round8(_mm256_mul_ps(_mm256_xor_ps(a, sign), b));
}

/* One row. `low_sign` goes with x[j + h] in the first half, `high_sign` with x[j] in the second. */
static void rotate_row(uint16_t *to, const uint16_t *from, const uint16_t *cosine, const uint16_t *sine, const rope_sizes *s,
                       float low_sign, float high_sign)
{
    const int64_t half = s->angles;
    const __m256 plus = _mm256_setzero_ps(), low = _mm256_set1_ps(low_sign), high = _mm256_set1_ps(high_sign);
    for (int64_t head = 0; head < s->heads; head++, from += s->head_dim, to += s->head_dim) {
        for (int64_t j = 0; j < half; j += 8) {
            const int64_t count = half - j;
            const __m256 c = h3_load8(cosine + j, count), sn = h3_load8(sine + j, count);
            const __m256 a = h3_load8(from + j, count), b = h3_load8(from + half + j, count);
            h3_store8(to + j, _mm256_add_ps(signed_product(a, c, plus), signed_product(b, sn, low)), count);
            h3_store8(to + half + j, _mm256_add_ps(signed_product(b, c, plus), signed_product(a, sn, high)), count);
        }
        memcpy(to + 2 * half, from + 2 * half, (size_t)(s->head_dim - 2 * half) * sizeof *to);
    }
}

static void rotate(const h3_call *call, const rope_sizes *s, uint16_t *to, const uint16_t *from, float low_sign, float high_sign)
{
    const uint16_t *cosine = call->in[1].data, *sine = call->in[2].data;
    const int64_t row_size = s->heads * s->head_dim;
#pragma omp parallel for schedule(static) if (s->rows * row_size > H3_PARALLEL_ELEMENTS)
    for (int64_t r = 0; r < s->rows; r++) {
        rotate_row(to + r * row_size, from + r * row_size, cosine + r * s->angles, sine + r * s->angles, s, low_sign, high_sign);
    }
}

int h3_rope_forward(h3_call *call)
{
    rope_sizes s = {0};
    h3_check check = h3_begin(call);
    check_sizes(&check, call, &s);
    h3_need_rows(&check, &call->out, "out", H3_BF16, s.rows * s.heads, s.head_dim);
    if (check.problem) return h3_refuse(call, &check);
    rotate(call, &s, call->out.data, call->in[0].data, -0.0f, 0.0f);
    return h3_done(call, "rope_avx2");
}

/* a - b is a + (-b): the transposed rotation only moves the sign. */
int h3_rope_backward(h3_call *call)
{
    rope_sizes s = {0};
    h3_check check = h3_begin(call);
    check_sizes(&check, call, &s);
    h3_need_rows(&check, &call->dout, "dout", H3_BF16, s.rows * s.heads, s.head_dim);
    h3_may_rows(&check, &call->din[0], "din[0]", H3_BF16, s.rows * s.heads, s.head_dim);
    if (check.problem) return h3_refuse(call, &check);
    if (h3_wanted(&call->din[0])) rotate(call, &s, call->din[0].data, call->dout.data, 0.0f, -0.0f);
    return h3_done(call, "rope_gradient_avx2");
}
