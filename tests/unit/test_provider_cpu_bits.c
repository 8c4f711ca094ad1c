/* The CPU provider bit by bit: every published rounding point, the order of the RMS norm's sum, attention's BF16 choices. */
#include "provider_problem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Nearest bfloat16 by looking at both neighbours; ties go to the even one. */
static float bf(float value)
{
    if (isnan(value) || isinf(value)) return value;
    uint32_t low = bits_of(value) & 0xffff0000u;
    double below = fabs((double)value - (double)of_bits(low)), above;
    float next = of_bits(low + 0x10000u);
    above = isinf(next) ? ldexp(1.0, 128) - fabs((double)value) : fabs((double)next - (double)value);
    if (above < below || (above == below && (low & 0x10000u))) return next;
    return of_bits(low);
}

static float rounded(float value, int32_t dtype) { return dtype == H3_BF16 ? bf(value) : value; }
static float at(const h3_tensor *tensor, int64_t i) { return (float)tensor_value(tensor, i); }
static float table_at(const problem *p, int table, int64_t r, int64_t chunk, int64_t j)
{
    const h3_tensor *t = &p->call.in[table];
    int64_t row = ((const int32_t *)p->call.in[table + 1].data)[r];
    return at(t, (row * 6 + chunk) * t->shape[2] + j);
}

static int differing(const h3_tensor *x, const float *expected)
{
    int count = 0;
    for (int64_t i = 0; i < h3_tensor_count(x); i++) count += bits_of(at(x, i)) != bits_of(expected[i]);
    return count;
}

static void all_equal(const problem *p, const char *what, const h3_tensor *x, const float *expected)
{
    int count = differing(x, expected);
    if (count != 0) fail_msg("%s %s: %d of %lld elements differ", p->spec->node, what, count, (long long)h3_tensor_count(x));
}

static float *floats(problem *p, int64_t count) { return problem_block(p, (size_t)count * sizeof(float)); }

/* rmsnorm-v4x128-v1, every lane of every shuffle spelled out; `sequential` is the order it must not be. */
static float sum_of(const float *terms, int64_t n, int sequential)
{
    float thread[128], warp[4], plain = 0;
    for (int64_t j = 0; j < n; j++) plain += terms[j];
    if (sequential) return plain;
    for (int64_t t = 0; t < 128; t++) {
        thread[t] = 0;
        for (int64_t group = t; 4 * group < n; group += 128) {
            for (int64_t e = 4 * group; e < 4 * group + 4 && e < n; e++) thread[t] += terms[e];
        }
    }
    for (int w = 0; w < 4; w++) {
        float lane[32], shuffled[32];
        memcpy(lane, thread + 32 * w, sizeof lane);
        for (int offset = 16; offset >= 1; offset /= 2) {
            for (int i = 0; i < 32; i++) shuffled[i] = lane[i + offset < 32 ? i + offset : i];
            for (int i = 0; i < 32; i++) lane[i] = lane[i] + shuffled[i];
        }
        warp[w] = lane[0];
    }
    return (warp[0] + warp[2]) + (warp[1] + warp[3]);
}

static float reciprocal(const float *x, int64_t n, float epsilon, int sequential)
{
    float *squares = malloc((size_t)n * sizeof *squares);
    assert_non_null(squares);
    for (int64_t j = 0; j < n; j++) squares[j] = x[j] * x[j];
    float r = 1.0f / sqrtf(sum_of(squares, n, sequential) / (float)n + epsilon);
    free(squares);
    return r;
}

typedef struct norm_bits {
    float *y, *dx, *dweight, *dshift, *dscale;
} norm_bits;

/* A block norm and its backward with every rounding written out. */
static norm_bits norm_by_hand(problem *p, int sequential)
{
    int64_t rows = p->call.in[0].shape[0], n = p->call.in[0].shape[1], count = rows * n;
    int32_t t = p->dtype;
    int modulated = p->call.in[1].rank != 0;
    float *x = floats(p, n), *g = floats(p, n), *xh = floats(p, n), *gx = floats(p, n);
    double *wide = problem_block(p, (size_t)n * sizeof *wide); /* the FP32 provider adds rows in double */
    norm_bits e = {floats(p, count), floats(p, count), floats(p, n), floats(p, count), floats(p, count)};
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t j = 0; j < n; j++) x[j] = at(&p->call.in[0], r * n + j);
        float inverse = reciprocal(x, n, p->call.epsilon, sequential);
        for (int64_t j = 0; j < n; j++) {
            int64_t i = r * n + j;
            float w = at(&p->call.param[0], j), dm = at(&p->call.dout, i), dn = dm;
            xh[j] = inverse * x[j];
            e.y[i] = rounded(w * xh[j], t);
            if (modulated) {
                float gain = rounded(1.0f + table_at(p, 1, r, p->call.chunk + 1, j), t);
                e.dshift[i] = dm;
                e.dscale[i] = rounded(dm * e.y[i], t);
                dn = rounded(dm * gain, t);
                e.y[i] = rounded(rounded(e.y[i] * gain, t) + table_at(p, 1, r, p->call.chunk, j), t);
            }
            g[j] = w * dn;
            gx[j] = g[j] * xh[j];
            e.dweight[j] += dn * xh[j];
            wide[j] += (double)(dn * xh[j]);
        }
        float c = sum_of(gx, n, sequential) / (float)n;
        for (int64_t j = 0; j < n; j++) e.dx[r * n + j] = rounded(inverse * (g[j] - xh[j] * c), t);
    }
    for (int64_t j = 0; j < n; j++) e.dweight[j] = t == H3_BF16 ? bf(e.dweight[j]) : (float)wide[j];
    return e;
}

static void check_norm(int64_t width, int modulated, int32_t dtype)
{
    problem_spec spec = *problem_named("norm1");
    spec.in[0].shape[1] = spec.out.shape[1] = spec.param[0].shape[0] = spec.in[1].shape[2] = width;
    spec.chunk = 3;
    if (!modulated) {
        spec.in[1].kind = spec.in[2].kind = 0;
        spec.row_grads = 0;
    }
    problem *p = problem_new(&spec, dtype, 0);
    norm_bits e = norm_by_hand(p, 0);
    problem_forward(p, 0xff);
    problem_backward(p, 0xff);
    all_equal(p, "out", &p->call.out, e.y);
    all_equal(p, "dx", &p->call.din[0], e.dx);
    all_equal(p, "dweight", &p->call.dparam[0], e.dweight);
    if (modulated) {
        all_equal(p, "dshift", &p->call.row_grad[0], e.dshift);
        all_equal(p, "dscale", &p->call.row_grad[1], e.dscale);
    }
    if (dtype == H3_F32 && width > 500) assert_true(differing(&p->call.out, norm_by_hand(p, 1).y) > 0);
    problem_free(p);
}

static void norms(void **state)
{
    static const int64_t widths[] = {1, 3, 16, 22, 24, 128, 160, 511, 512, 516, 1030, 2600};
    (void)state;
    for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++) {
        for (int modulated = 0; modulated < 2; modulated++) {
            check_norm(widths[i], modulated, H3_F32);
            check_norm(widths[i], modulated, H3_BF16);
        }
    }
}

static void residuals(void **state)
{
    (void)state;
    problem *p = problem_new(problem_named("residual_attn"), H3_BF16, 0);
    int64_t width = p->call.in[0].shape[1], count = h3_tensor_count(&p->call.out);
    float *y = floats(p, count), *once = floats(p, count), *dbranch = floats(p, count), *dgate = floats(p, count);
    for (int64_t i = 0; i < count; i++) {
        float x = at(&p->call.in[0], i), a = at(&p->call.in[1], i), g = table_at(p, 2, i / width, 2, i % width),
              dy = at(&p->call.dout, i);
        y[i] = bf(x + bf(g * a));
        once[i] = bf(x + g * a);
        dbranch[i] = bf(dy * g);
        dgate[i] = bf(dy * a);
    }
    problem_forward(p, 0);
    problem_backward(p, 0);
    all_equal(p, "out", &p->call.out, y);
    assert_true(differing(&p->call.out, once) > 0);
    all_equal(p, "dbranch", &p->call.din[1], dbranch);
    all_equal(p, "dgate", &p->call.row_grad[0], dgate);
    problem_free(p);
    problem_spec plain = *problem_named("residual_mlp");
    plain.in[2].kind = plain.in[3].kind = 0;
    plain.row_grads = 0;
    p = problem_new(&plain, H3_BF16, 0);
    y = floats(p, h3_tensor_count(&p->call.out));
    for (int64_t i = 0; i < h3_tensor_count(&p->call.out); i++) y[i] = bf(at(&p->call.in[0], i) + at(&p->call.in[1], i));
    problem_forward(p, 0);
    problem_backward(p, 0);
    all_equal(p, "out", &p->call.out, y);
    assert_memory_equal(p->call.din[1].data, p->call.dout.data, h3_tensor_bytes(&p->call.dout));
    problem_free(p);
}

static void ropes(void **state)
{
    (void)state;
    problem *p = problem_new(problem_named("rope_q"), H3_BF16, 0);
    int64_t heads = p->call.in[0].shape[1], width = p->call.in[0].shape[2], half = p->call.in[1].shape[1],
            count = h3_tensor_count(&p->call.out);
    float *y = floats(p, count), *once = floats(p, count), *dx = floats(p, count);
    for (int64_t i = 0; i < count; i++) {
        int64_t j = i % width, k = j % half, row = i / (heads * width);
        y[i] = once[i] = at(&p->call.in[0], i);
        dx[i] = at(&p->call.dout, i);
        if (j >= 2 * half) continue;
        int64_t other = j < half ? i + half : i - half;
        float c = at(&p->call.in[1], row * half + k), s = at(&p->call.in[2], row * half + k), sign = j < half ? -1.0f : 1.0f;
        float x = at(&p->call.in[0], i), x2 = at(&p->call.in[0], other), d = at(&p->call.dout, i), d2 = at(&p->call.dout, other);
        y[i] = bf(bf(x * c) + bf(sign * x2 * s));
        once[i] = bf(x * c + sign * x2 * s);
        dx[i] = bf(bf(d * c) - sign * bf(d2 * s));
    }
    problem_forward(p, 0);
    problem_backward(p, 0);
    all_equal(p, "out", &p->call.out, y);
    assert_true(differing(&p->call.out, once) > 0);
    all_equal(p, "dx", &p->call.din[0], dx);
    problem_free(p);
}

static void swiglus(void **state)
{
    (void)state;
    problem *p = problem_new(problem_named("swiglu"), H3_BF16, 0);
    int64_t width = p->call.out.shape[1], count = h3_tensor_count(&p->call.out);
    for (int64_t i = 0; i < 2 * count; i++) tensor_nudge(&p->call.in[0], i, 3 * tensor_value(&p->call.in[0], i));
    float *y = floats(p, count), *once = floats(p, count), *dgu = floats(p, 2 * count);
    for (int64_t i = 0; i < count; i++) {
        int64_t v = i / width * 2 * width + i % width, g = v + width;
        float value = at(&p->call.in[0], v), gate = at(&p->call.in[0], g), ds = at(&p->call.dout, i);
        float silu = gate / (1.0f + expf(-gate)), sigmoid = 1.0f / (1.0f + expf(-gate));
        y[i] = bf(value * bf(silu));
        once[i] = bf(value * silu);
        dgu[v] = bf(ds * bf(silu));
        dgu[g] = bf(bf(ds * value) * sigmoid * (1.0f + gate * (1.0f - sigmoid)));
    }
    problem_forward(p, 0);
    problem_backward(p, 0);
    all_equal(p, "out", &p->call.out, y);
    assert_true(differing(&p->call.out, once) > 0);
    all_equal(p, "dgu", &p->call.din[0], dgu);
    problem_free(p);
}

/* Table, bias and timestep gradients add their rows in ascending order in float32 and round once; unused rows are +0. */
static void sums_over_rows(void **state)
{
    (void)state;
    problem *p = problem_new(problem_named("adaln_projection"), H3_BF16, 0);
    int64_t rows = p->call.row_index.shape[0], width = p->call.out.shape[2], count = h3_tensor_count(&p->call.out),
            outputs = p->call.param[1].shape[0];
    float *dtable = floats(p, count), *bf_sums = floats(p, count), *dbias = floats(p, outputs);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < 6 * width; i++) {
            int64_t k = ((const int32_t *)p->call.row_index.data)[r] * 6 * width + i;
            dtable[k] += at(&p->call.row_grad[i / width], r * width + i % width);
            bf_sums[k] = bf(bf_sums[k] + at(&p->call.row_grad[i / width], r * width + i % width));
        }
    }
    for (int64_t i = 0; i < count; i++) dtable[i] = bf(dtable[i]);
    for (int64_t i = 0; i < count; i++) dbias[i % outputs] += dtable[i];
    for (int64_t i = 0; i < outputs; i++) dbias[i] = bf(dbias[i]);
    problem_forward(p, 0);
    problem_backward(p, 0xff);
    all_equal(p, "dtable", &p->call.dtable, dtable);
    assert_true(differing(&p->call.dtable, bf_sums) > 0);
    all_equal(p, "dbias", &p->call.dparam[1], dbias);
    for (int64_t i = count - 6 * width; i < count; i++) assert_int_equal(((const uint16_t *)p->call.dtable.data)[i], 0);
    problem_free(p);
}

enum { KEYS = 24, DIM = 16 };

/* One head of BF16 attention by hand. `normalise`: round P after the division instead, which the provider must not do. */
static void attention_by_hand(problem *p, int normalise, float *o)
{
    float alpha = 1.0f / sqrtf((float)DIM), prob[KEYS], kept[KEYS];
    for (int64_t i = 0; i < p->call.in[0].shape[1]; i++) {
        float most = -INFINITY, sum = 0;
        for (int k = 0; k < KEYS; k++) {
            float score = 0;
            for (int d = 0; d < DIM; d++) score += at(&p->call.in[0], i * DIM + d) * at(&p->call.in[1], k * DIM + d);
            prob[k] = alpha * score;
            most = fmaxf(most, prob[k]);
        }
        for (int k = 0; k < KEYS; k++) sum += prob[k] = expf(prob[k] - most);
        for (int k = 0; k < KEYS; k++) kept[k] = normalise ? bf(prob[k] / sum) : bf(prob[k]);
        for (int d = 0; d < DIM; d++) {
            float value = 0;
            for (int k = 0; k < KEYS; k++) value += kept[k] * at(&p->call.in[2], k * DIM + d);
            o[i * DIM + d] = bf(normalise ? value : value / sum);
        }
    }
}

/* dV from P rounded, dQ and dK from dS rounded; with `exact`, neither is. */
static void attention_backward_by_hand(problem *p, int exact, float *dq, float *dk, float *dv)
{
    float alpha = 1.0f / sqrtf((float)DIM);
    for (int64_t i = 0; i < p->call.in[0].shape[1]; i++) {
        const float lse = at(&p->call.saved[0], i);
        float delta = 0;
        for (int d = 0; d < DIM; d++) delta += at(&p->call.dout, i * DIM + d) * at(&p->call.out, i * DIM + d);
        for (int k = 0; k < KEYS; k++) {
            float score = 0, dp = 0;
            for (int d = 0; d < DIM; d++) {
                score += at(&p->call.in[0], i * DIM + d) * at(&p->call.in[1], k * DIM + d);
                dp += at(&p->call.dout, i * DIM + d) * at(&p->call.in[2], k * DIM + d);
            }
            float prob = expf(alpha * score - lse), ds = prob * (dp - delta);
            for (int d = 0; d < DIM; d++) {
                dv[k * DIM + d] += (exact ? prob : bf(prob)) * at(&p->call.dout, i * DIM + d);
                dq[i * DIM + d] += (exact ? ds : bf(ds)) * at(&p->call.in[1], k * DIM + d);
                dk[k * DIM + d] += (exact ? ds : bf(ds)) * at(&p->call.in[0], i * DIM + d);
            }
        }
    }
    for (int64_t i = 0; i < p->call.in[0].shape[1] * DIM; i++) dq[i] = bf(alpha * dq[i]);
    for (int64_t i = 0; i < KEYS * DIM; i++) dk[i] = bf(alpha * dk[i]);
    for (int64_t i = 0; i < KEYS * DIM; i++) dv[i] = bf(dv[i]);
}

static problem *attention_problem(int32_t dtype)
{
    static problem_spec spec;
    spec = *problem_named("attention");
    spec.in[0] = spec.out = (problem_tensor){'a', 4, {1, 40, 1, DIM}, 0};
    spec.in[1] = spec.in[2] = (problem_tensor){'a', 4, {1, KEYS, 1, DIM}, 0};
    problem *p = problem_new(&spec, dtype, 0);
    for (int64_t i = 0; i < 40 * DIM; i++) tensor_nudge(&p->call.in[0], i, 4 * tensor_value(&p->call.in[0], i));
    return p;
}

/* The products' own order moves a result across a rounding boundary now and then (about 1 in 1000); another choice of roundings
 * moves a third of them. */
static void attention_choices(void **state)
{
    (void)state;
    problem *p = attention_problem(H3_BF16);
    int64_t count = 40 * DIM, few = 10, many = 100;
    float *o = floats(p, count), *other = floats(p, count), *grads[2][3];
    for (int e = 0; e < 2; e++) {
        for (int g = 0; g < 3; g++) grads[e][g] = floats(p, count);
    }
    problem_forward(p, 0xff);
    problem_backward(p, 0xff);
    attention_by_hand(p, 0, o);
    attention_by_hand(p, 1, other);
    assert_true(differing(&p->call.out, o) <= few);
    assert_true(differing(&p->call.out, other) > many);
    for (int e = 0; e < 2; e++) attention_backward_by_hand(p, e, grads[e][0], grads[e][1], grads[e][2]);
    for (int g = 0; g < 3; g++) {
        assert_true(differing(&p->call.din[g], grads[0][g]) <= few);
        assert_true(differing(&p->call.din[g], grads[1][g]) > many);
    }
    problem_free(p);
}

/* saved[0] is log(sum(exp(scores))), also where exp alone would overflow. */
static void log_sum_exp(void **state)
{
    (void)state;
    for (int32_t dtype = H3_F32; dtype <= H3_BF16; dtype++) {
        problem *p = attention_problem(dtype);
        for (int64_t i = 0; i < KEYS * DIM; i++) tensor_nudge(&p->call.in[1], i, 15 * tensor_value(&p->call.in[1], i));
        problem_forward(p, 0xff);
        double largest = 0;
        for (int64_t i = 0; i < 40; i++) {
            double scores[KEYS], most = -INFINITY, sum = 0;
            for (int k = 0; k < KEYS; k++) {
                scores[k] = 0;
                for (int d = 0; d < DIM; d++)
                    scores[k] += tensor_value(&p->call.in[0], i * DIM + d) * tensor_value(&p->call.in[1], k * DIM + d);
                scores[k] /= 4.0;
                most = fmax(most, scores[k]);
            }
            for (int k = 0; k < KEYS; k++) sum += exp(scores[k] - most);
            largest = fmax(largest, most);
            assert_true(fabs(tensor_value(&p->call.saved[0], i) - most - log(sum)) <= 2e-6 * (1 + fabs(most)));
        }
        assert_true(largest > 89);
        for (int64_t i = 0; i < h3_tensor_count(&p->call.out); i++) assert_true(isfinite(tensor_value(&p->call.out, i)));
        problem_free(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms),       cmocka_unit_test(residuals),      cmocka_unit_test(ropes),
        cmocka_unit_test(swiglus),     cmocka_unit_test(sums_over_rows), cmocka_unit_test(attention_choices),
        cmocka_unit_test(log_sum_exp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
