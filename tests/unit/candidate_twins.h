/*
 * Scalar twins of the CPU candidate: plain loops in the documented order of every sum. The kernels must give their bytes.
 */
#ifndef H3_TESTS_CANDIDATE_TWINS_H
#define H3_TESTS_CANDIDATE_TWINS_H

#include "candidate_support.h"

static inline float bf(float value) { return h3_bf16_to_f32(h3_f32_to_bf16(value)); }
static inline float at(const h3_tensor *t, int64_t i) { return h3_bf16_to_f32(((const uint16_t *)t->data)[i]); }
static inline void put(h3_tensor *t, int64_t i, float value) { ((uint16_t *)t->data)[i] = h3_f32_to_bf16(value); }

static inline float twin_exp(float x)
{
    if (x > 89.0f) x = 89.0f;
    if (x < -104.0f) x = -104.0f;
    const float n = rintf(x * 1.44269504f);
    float r = fmaf(-n, 0.693359375f, x);
    r = fmaf(-n, -2.12194440e-4f, r);
    float p = 1.0f / 5040.0f;
    const float coefficients[7] = {1.0f / 720.0f, 1.0f / 120.0f, 1.0f / 24.0f, 1.0f / 6.0f, 0.5f, 1.0f, 1.0f};
    for (int i = 0; i < 7; i++) p = fmaf(p, r, coefficients[i]);
    const int exponent = (int)n, first = exponent >= 0 ? exponent / 2 : -((1 - exponent) / 2);
    return p * ldexpf(1.0f, first) * ldexpf(1.0f, exponent - first);
}

static inline float twin_sigmoid(float x) { return 1.0f / (1.0f + twin_exp(-x)); }
static inline float twin_silu(float x) { return x / (1.0f + twin_exp(-x)); }

static inline float twin_silu_gradient(float upstream, float x)
{
    const float s = twin_sigmoid(x);
    return upstream * s * (1.0f + x * (1.0f - s));
}

static inline float sum_lanes(const float lanes[8])
{
    float four[4];
    for (int i = 0; i < 4; i++) four[i] = lanes[i] + lanes[i + 4];
    return (four[0] + four[2]) + (four[1] + four[3]);
}

/* One ascending chain: sum over k of left[k * left_step] right[k * right_step]. */
static inline float chain(const h3_tensor *left, int64_t left_at, int64_t left_step, const h3_tensor *right, int64_t right_at,
                          int64_t right_step, int64_t depth)
{
    float sum = 0.0f;
    for (int64_t k = 0; k < depth; k++) sum = fmaf(at(left, left_at + k * left_step), at(right, right_at + k * right_step), sum);
    return sum;
}

static inline void twin_linear(h3_call *c, bool backward)
{
    const int64_t outputs = c->param[0].shape[0], inputs = c->param[0].shape[1], rows = c->in[0].shape[0];
    for (int64_t r = 0; r < rows && !backward; r++) {
        for (int64_t o = 0; o < outputs; o++) {
            put(&c->out, r * outputs + o, chain(&c->in[0], r * inputs, 1, &c->param[0], o * inputs, 1, inputs));
        }
    }
    if (!backward) return;
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < inputs; i++) {
            put(&c->din[0], r * inputs + i, chain(&c->dout, r * outputs, 1, &c->param[0], i, inputs, outputs));
        }
    }
    for (int64_t o = 0; o < outputs; o++) {
        for (int64_t i = 0; i < inputs; i++) {
            put(&c->dparam[0], o * inputs + i, chain(&c->dout, o, outputs, &c->in[0], i, inputs, rows));
        }
    }
}

/* 128 virtual threads, groups of four, shuffle-down, warps (0 + 2) + (1 + 3). */
static inline float twin_inverse_rms(const h3_tensor *x, int64_t start, int64_t width, float epsilon)
{
    float thread[128] = {0}, warp[4];
    for (int64_t t = 0; t < 128; t++) {
        for (int64_t group = t; 4 * group < width; group += 128) {
            for (int64_t j = 4 * group; j < 4 * group + 4 && j < width; j++) {
                const float value = at(x, start + j);
                const float square = value * value;
                thread[t] += square;
            }
        }
    }
    for (int w = 0; w < 4; w++) {
        float *lane = thread + 32 * w;
        for (int offset = 16; offset > 0; offset /= 2) {
            for (int i = 0; i + offset < 32; i++) lane[i] = lane[i] + lane[i + offset];
        }
        warp[w] = lane[0];
    }
    const float sum = (warp[0] + warp[2]) + (warp[1] + warp[3]);
    return 1.0f / sqrtf(sum / (float)width + epsilon);
}

static inline float table_value(const h3_call *c, int table, int64_t row, int chunk, int64_t j)
{
    const int64_t index = ((const int32_t *)c->in[table + 1].data)[row];
    return at(&c->in[table], (index * 6 + chunk) * c->in[table].shape[2] + j);
}

static inline void twin_norm_forward(h3_call *c)
{
    const int64_t width = c->param[0].shape[0], rows = h3_tensor_count(&c->in[0]) / width;
    for (int64_t r = 0; r < rows; r++) {
        const float inverse = twin_inverse_rms(&c->in[0], r * width, width, c->epsilon);
        for (int64_t j = 0; j < width; j++) {
            const float scaled = inverse * at(&c->in[0], r * width + j);
            float y = bf(at(&c->param[0], j) * scaled);
            if (c->in[1].data) {
                const float factor = bf(1.0f + table_value(c, 1, r, c->chunk + 1, j));
                y = bf(y * factor) + table_value(c, 1, r, c->chunk, j);
            }
            put(&c->out, r * width + j, y);
        }
    }
}

static inline float twin_dn(const h3_call *c, int64_t width, int64_t r, int64_t j)
{
    const float dm = at(&c->dout, r * width + j);
    if (!c->in[1].data) return dm;
    return bf(dm * bf(1.0f + table_value(c, 1, r, c->chunk + 1, j)));
}

static inline void twin_norm_backward(pool *p, h3_call *c)
{
    const int64_t width = c->param[0].shape[0], rows = h3_tensor_count(&c->in[0]) / width;
    float *inverse = take(p, (size_t)rows * sizeof *inverse);
    for (int64_t r = 0; r < rows; r++) {
        inverse[r] = twin_inverse_rms(&c->in[0], r * width, width, c->epsilon);
        float lanes[8] = {0};
        for (int64_t j = 0; j < width; j++) {
            const float xh = inverse[r] * at(&c->in[0], r * width + j), dn = twin_dn(c, width, r, j);
            const float g = at(&c->param[0], j) * dn;
            lanes[j % 8] = fmaf(g, xh, lanes[j % 8]);
            if (!c->in[1].data) continue;
            put(&c->row_grad[0], r * width + j, at(&c->dout, r * width + j));
            put(&c->row_grad[1], r * width + j, at(&c->dout, r * width + j) * bf(at(&c->param[0], j) * xh));
        }
        const float mean = sum_lanes(lanes) / (float)width;
        for (int64_t j = 0; j < width; j++) {
            const float xh = inverse[r] * at(&c->in[0], r * width + j);
            const float g = at(&c->param[0], j) * twin_dn(c, width, r, j);
            const float away = xh * mean;
            put(&c->din[0], r * width + j, inverse[r] * (g - away));
        }
    }
    for (int64_t j = 0; j < width; j++) {
        float total = 0.0f;
        for (int64_t block = 0; block < rows; block += 32) {
            float sum = 0.0f;
            for (int64_t r = block; r < rows && r < block + 32; r++) {
                sum = fmaf(twin_dn(c, width, r, j), inverse[r] * at(&c->in[0], r * width + j), sum);
            }
            total += sum;
        }
        put(&c->dparam[0], j, total);
    }
}

static inline void twin_rope(h3_call *c, bool backward)
{
    const h3_tensor *x = backward ? &c->dout : &c->in[0];
    h3_tensor *y = backward ? &c->din[0] : &c->out;
    const int64_t heads = x->shape[1], width = x->shape[2], half = c->in[1].shape[1];
    for (int64_t i = 0; i < x->shape[0] * heads; i++) {
        const int64_t row = i / heads * half, start = i * width;
        for (int64_t j = 0; j < half; j++) {
            const float a = at(x, start + j), b = at(x, start + half + j);
            const float co = at(&c->in[1], row + j), si = at(&c->in[2], row + j);
            put(y, start + j, backward ? bf(a * co) + bf(b * si) : bf(a * co) + bf(-b * si));
            put(y, start + half + j, backward ? bf(b * co) - bf(a * si) : bf(b * co) + bf(a * si));
        }
        for (int64_t j = 2 * half; j < width; j++) put(y, start + j, at(x, start + j));
    }
}

static inline void twin_residual(h3_call *c, bool backward)
{
    const int64_t width = c->in[0].shape[1];
    for (int64_t i = 0; i < h3_tensor_count(&c->in[0]); i++) {
        const float gate = c->in[2].data ? table_value(c, 2, i / width, c->chunk, i % width) : 1.0f;
        const float branch = at(&c->in[1], i);
        if (!backward) {
            put(&c->out, i, at(&c->in[0], i) + bf(gate * branch));
            continue;
        }
        put(&c->din[1], i, at(&c->dout, i) * gate);
        if (c->in[2].data) put(&c->row_grad[0], i, at(&c->dout, i) * branch);
    }
}

static inline void twin_swiglu(h3_call *c, bool backward)
{
    const int64_t width = c->in[0].shape[1] / 2;
    for (int64_t i = 0; i < h3_tensor_count(&c->in[0]) / 2; i++) {
        const int64_t value_at = i / width * 2 * width + i % width, gate_at = value_at + width;
        const float value = at(&c->in[0], value_at), gate = at(&c->in[0], gate_at), act = bf(twin_silu(gate));
        if (!backward) {
            put(&c->out, i, value * act);
            continue;
        }
        const float ds = at(&c->dout, i);
        put(&c->din[0], value_at, ds * act);
        put(&c->din[0], gate_at, twin_silu_gradient(bf(ds * value), gate));
    }
}

/* ---- attention ---- */

/* Where (b, row, n, 0) lies, and the score of two rows. */
static inline int64_t head_row(const h3_tensor *t, int64_t b, int64_t row, int64_t n)
{
    return ((b * t->shape[1] + row) * t->shape[2] + n) * t->shape[3];
}

static inline float twin_score(const h3_call *c, int64_t b, int64_t n, int64_t i, int64_t j)
{
    const int64_t depth = c->in[0].shape[3];
    return 1.0f / sqrtf((float)depth) *
           chain(&c->in[0], head_row(&c->in[0], b, i, n), 1, &c->in[1], head_row(&c->in[1], b, j, n), 1, depth);
}

static inline void twin_attention_forward(pool *p, h3_call *c)
{
    const int64_t batch = c->in[0].shape[0], queries = c->in[0].shape[1], heads = c->in[0].shape[2], depth = c->in[0].shape[3];
    const int64_t keys = c->in[1].shape[1];
    float *prob = take(p, (size_t)keys * sizeof *prob);
    for (int64_t row = 0; row < batch * heads * queries; row++) {
        const int64_t b = row / queries / heads, n = row / queries % heads, i = row % queries;
        float largest = -INFINITY, lanes[8] = {0};
        for (int64_t j = 0; j < keys; j++) {
            prob[j] = twin_score(c, b, n, i, j);
            if (prob[j] > largest) largest = prob[j];
        }
        for (int64_t j = 0; j < keys; j++) {
            prob[j] = twin_exp(prob[j] - largest);
            lanes[j % 8] += prob[j];
        }
        const float total = sum_lanes(lanes);
        ((float *)c->saved[0].data)[row] = largest + (float)log((double)total);
        for (int64_t d = 0; d < depth; d++) {
            float sum = 0.0f;
            for (int64_t j = 0; j < keys; j++) sum = fmaf(prob[j], at(&c->in[2], head_row(&c->in[2], b, j, n) + d), sum);
            put(&c->out, head_row(&c->out, b, i, n) + d, sum / total);
        }
    }
}

/* dq, or dk and dv, of one head from its P and dS [queries, keys]. */
static inline void twin_attention_sums(h3_call *c, const float *prob, const float *ds, int64_t b, int64_t n)
{
    const int64_t queries = c->in[0].shape[1], depth = c->in[0].shape[3], keys = c->in[1].shape[1];
    const float alpha = 1.0f / sqrtf((float)depth);
    for (int64_t i = 0; i < queries; i++) {
        for (int64_t d = 0; d < depth; d++) {
            float sum = 0.0f;
            for (int64_t j = 0; j < keys; j++) sum = fmaf(ds[i * keys + j], at(&c->in[1], head_row(&c->in[1], b, j, n) + d), sum);
            put(&c->din[0], head_row(&c->in[0], b, i, n) + d, alpha * sum);
        }
    }
    for (int64_t j = 0; j < keys; j++) {
        for (int64_t d = 0; d < depth; d++) {
            float dk = 0.0f, dv = 0.0f;
            for (int64_t i = 0; i < queries; i++) {
                const int64_t from = head_row(&c->in[0], b, i, n) + d;
                dk = fmaf(ds[i * keys + j], at(&c->in[0], from), dk);
                dv = fmaf(prob[i * keys + j], at(&c->dout, from), dv);
            }
            put(&c->din[1], head_row(&c->in[1], b, j, n) + d, alpha * dk);
            put(&c->din[2], head_row(&c->in[1], b, j, n) + d, dv);
        }
    }
}

static inline void twin_attention_backward(pool *p, h3_call *c)
{
    const int64_t batch = c->in[0].shape[0], queries = c->in[0].shape[1], heads = c->in[0].shape[2], depth = c->in[0].shape[3];
    const int64_t keys = c->in[1].shape[1];
    float *prob = take(p, (size_t)(queries * keys) * sizeof *prob), *ds = take(p, (size_t)(queries * keys) * sizeof *ds);
    for (int64_t h = 0; h < batch * heads; h++) {
        const int64_t b = h / heads, n = h % heads;
        for (int64_t i = 0; i < queries; i++) {
            const int64_t row = head_row(&c->out, b, i, n);
            float lanes[8] = {0};
            for (int64_t d = 0; d < depth; d++) lanes[d % 8] = fmaf(at(&c->dout, row + d), at(&c->out, row + d), lanes[d % 8]);
            const float delta = sum_lanes(lanes), lse = ((const float *)c->saved[0].data)[h * queries + i];
            for (int64_t j = 0; j < keys; j++) {
                const float dp = chain(&c->dout, row, 1, &c->in[2], head_row(&c->in[2], b, j, n), 1, depth);
                prob[i * keys + j] = twin_exp(twin_score(c, b, n, i, j) - lse);
                ds[i * keys + j] = prob[i * keys + j] * (dp - delta);
            }
        }
        twin_attention_sums(c, prob, ds, b, n);
    }
}

/* ---- the modulation table's projection ---- */

static inline h3_tensor twin_activation(pool *p, const h3_call *c)
{
    h3_tensor u = tensor(p, H3_BF16, 2, c->in[0].shape[0], c->in[0].shape[1], 0, 0);
    for (int64_t i = 0; i < h3_tensor_count(&u); i++) put(&u, i, twin_silu(((const float *)c->in[0].data)[i]));
    return u;
}

static inline void twin_adaln_forward(pool *p, h3_call *c)
{
    const h3_tensor u = twin_activation(p, c);
    const int64_t outputs = c->param[0].shape[0], width = c->param[0].shape[1];
    for (int64_t i = 0; i < u.shape[0] * outputs; i++) {
        const int64_t t = i / outputs, o = i % outputs;
        put(&c->out, i, chain(&u, t * width, 1, &c->param[0], o * width, 1, width) + at(&c->param[1], o));
    }
}

static inline void twin_adaln_backward(pool *p, h3_call *c)
{
    const h3_tensor u = twin_activation(p, c);
    const int64_t steps = u.shape[0], outputs = c->param[0].shape[0], width = c->param[0].shape[1], hidden = outputs / 18;
    const int64_t rows = c->row_index.shape[0];
    for (int64_t i = 0; i < 3 * steps * 6 * hidden; i++) {
        float sum = 0.0f;
        for (int64_t r = 0; r < rows; r++) {
            if (((const int32_t *)c->row_index.data)[r] != i / (6 * hidden)) continue;
            sum += at(&c->row_grad[i / hidden % 6], r * hidden + i % hidden);
        }
        put(&c->dtable, i, sum);
    }
    for (int64_t o = 0; o < outputs; o++) {
        float sum = 0.0f;
        for (int64_t t = 0; t < steps; t++) sum += at(&c->dtable, t * outputs + o);
        put(&c->dparam[1], o, sum);
        for (int64_t e = 0; e < width; e++) put(&c->dparam[0], o * width + e, chain(&c->dtable, o, outputs, &u, e, width, steps));
    }
    for (int64_t i = 0; i < steps * width; i++) {
        const float du = bf(chain(&c->dtable, i / width * outputs, 1, &c->param[0], i % width, width, outputs));
        ((float *)c->din[0].data)[i] = twin_silu_gradient(du, ((const float *)c->in[0].data)[i]);
    }
}

static inline void run_twin(pool *p, const char *node, h3_call *c, bool backward)
{
    if (is(node, "adaln")) (backward ? twin_adaln_backward : twin_adaln_forward)(p, c);
    else if (is_linear(node)) twin_linear(c, backward);
    else if (is(node, "rope")) twin_rope(c, backward);
    else if (is(node, "residual")) twin_residual(c, backward);
    else if (is(node, "swiglu")) twin_swiglu(c, backward);
    else if (is(node, "attention")) (backward ? twin_attention_backward : twin_attention_forward)(p, c);
    else if (backward) twin_norm_backward(p, c);
    else twin_norm_forward(c);
}

#endif
