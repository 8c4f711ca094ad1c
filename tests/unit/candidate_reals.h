/*
 * The nodes in double without any inner rounding, straight from their formulas, and gradients of
 * sum(dout * out) by central differences: an opinion on the kernels that shares no order and no derivation with them.
 */
#ifndef H3_TESTS_CANDIDATE_REALS_H
#define H3_TESTS_CANDIDATE_REALS_H

#include "candidate_support.h"

typedef struct reals {
    const char *node;
    const h3_call *call;
    double *in[H3_MAX_IN], *param[2], *out, *cotangent;
} reals;

static inline double *widened(pool *p, const h3_tensor *t)
{
    if (t->rank == 0 || t->dtype == H3_I32) return NULL;
    double *values = take(p, (size_t)h3_tensor_count(t) * sizeof *values);
    for (int64_t i = 0; i < h3_tensor_count(t); i++) {
        if (t->dtype == H3_F32) values[i] = (double)((const float *)t->data)[i];
        else values[i] = (double)h3_bf16_to_f32(((const uint16_t *)t->data)[i]);
    }
    return values;
}

/* The gradient of each table element, from row gradients and their rows. */
static inline double *segment_sums(pool *p, const h3_tensor *table, const h3_tensor *row_index, const h3_tensor *rows, int chunk,
                                   double *sums)
{
    const int64_t width = table->shape[2];
    if (!sums) {
        sums = take(p, (size_t)h3_tensor_count(table) * sizeof *sums);
        for (int64_t i = 0; i < h3_tensor_count(table); i++) sums[i] = 0;
    }
    const double *values = widened(p, rows);
    for (int64_t i = 0; i < h3_tensor_count(rows); i++) {
        sums[(((const int32_t *)row_index->data)[i / width] * 6 + chunk) * width + i % width] += values[i];
    }
    return sums;
}

static inline reals reals_of(pool *p, const char *node, const h3_call *c)
{
    reals r = {.node = node, .call = c};
    for (int i = 0; i < H3_MAX_IN; i++) r.in[i] = widened(p, &c->in[i]);
    for (int i = 0; i < 2; i++) r.param[i] = widened(p, &c->param[i]);
    r.out = take(p, (size_t)h3_tensor_count(&c->out) * sizeof *r.out);
    if (c->dout.data) r.cotangent = widened(p, &c->dout);
    for (int i = 0; i < H3_ROW_GRADS && !c->dout.data; i++) {
        r.cotangent = segment_sums(p, &c->out, &c->row_index, &c->row_grad[i], i, r.cotangent);
    }
    return r;
}

static inline double real_silu(double x) { return x / (1 + exp(-x)); }

/* out [rows, outputs] = in [rows, inputs] weight^T + bias, the input through silu when `activate`. */
static inline void real_linear(reals *r, bool activate)
{
    const int64_t outputs = r->call->param[0].shape[0], inputs = r->call->param[0].shape[1];
    for (int64_t i = 0; i < r->call->in[0].shape[0] * outputs; i++) {
        double sum = r->param[1] ? r->param[1][i % outputs] : 0;
        for (int64_t k = 0; k < inputs; k++) {
            const double x = r->in[0][i / outputs * inputs + k];
            sum += (activate ? real_silu(x) : x) * r->param[0][i % outputs * inputs + k];
        }
        r->out[i] = sum;
    }
}

static inline double table_real(const reals *r, int table, int64_t row, int chunk, int64_t j)
{
    const int64_t index = ((const int32_t *)r->call->in[table + 1].data)[row];
    return r->in[table][(index * 6 + chunk) * r->call->in[table].shape[2] + j];
}

static inline void real_norm(reals *r)
{
    const int64_t width = r->call->param[0].shape[0], count = h3_tensor_count(&r->call->in[0]);
    for (int64_t start = 0; start < count; start += width) {
        double squares = 0;
        for (int64_t j = 0; j < width; j++) squares += r->in[0][start + j] * r->in[0][start + j];
        const double inverse = 1 / sqrt(squares / (double)width + (double)r->call->epsilon);
        for (int64_t j = 0; j < width; j++) {
            double y = r->in[0][start + j] * inverse * r->param[0][j];
            if (r->in[1]) {
                const int64_t row = start / width;
                y = y * (1 + table_real(r, 1, row, r->call->chunk + 1, j)) + table_real(r, 1, row, r->call->chunk, j);
            }
            r->out[start + j] = y;
        }
    }
}

/* The rotation of the plane (j, j + half) by the angle with that cosine and sine. */
static inline void real_rope(reals *r)
{
    const int64_t heads = r->call->in[0].shape[1], width = r->call->in[0].shape[2], half = r->call->in[1].shape[1];
    for (int64_t i = 0; i < h3_tensor_count(&r->call->in[0]); i++) {
        const int64_t j = i % width, row = i / width / heads;
        const int64_t angle = row * half + j % half;
        const double *x = r->in[0];
        if (j < half) r->out[i] = x[i] * r->in[1][angle] - x[i + half] * r->in[2][angle];
        else if (j < 2 * half) r->out[i] = x[i] * r->in[1][angle] + x[i - half] * r->in[2][angle];
        else r->out[i] = x[i];
    }
}

static inline void real_attention(pool *p, reals *r)
{
    const int64_t *q = r->call->in[0].shape, keys = r->call->in[1].shape[1];
    double *weight = take(p, (size_t)keys * sizeof *weight);
    for (int64_t i = 0; i < q[0] * q[1] * q[2]; i++) {
        const int64_t b = i / q[2] / q[1], n = i % q[2];
        double total = 0;
        for (int64_t j = 0; j < keys; j++) {
            double score = 0;
            for (int64_t d = 0; d < q[3]; d++) score += r->in[0][i * q[3] + d] * r->in[1][((b * keys + j) * q[2] + n) * q[3] + d];
            weight[j] = exp(score / sqrt((double)q[3]));
            total += weight[j];
        }
        for (int64_t d = 0; d < q[3]; d++) {
            double sum = 0;
            for (int64_t j = 0; j < keys; j++) sum += weight[j] * r->in[2][((b * keys + j) * q[2] + n) * q[3] + d];
            r->out[i * q[3] + d] = sum / total;
        }
    }
    p->count--;
    free(weight);
}

static inline void real_forward(pool *p, reals *r)
{
    const int64_t width = r->call->in[0].rank == 2 ? r->call->in[0].shape[1] : 0;
    if (is(r->node, "adaln") || is_linear(r->node)) real_linear(r, is(r->node, "adaln"));
    else if (is_norm(r->node)) real_norm(r);
    else if (is(r->node, "rope")) real_rope(r);
    else if (is(r->node, "attention")) real_attention(p, r);
    for (int64_t i = 0; is(r->node, "residual") && i < h3_tensor_count(&r->call->out); i++) {
        const double gate = r->in[2] ? table_real(r, 2, i / width, r->call->chunk, i % width) : 1;
        r->out[i] = r->in[0][i] + gate * r->in[1][i];
    }
    for (int64_t i = 0; is(r->node, "swiglu") && i < h3_tensor_count(&r->call->out); i++) {
        const int64_t at = 2 * i - i % (width / 2);
        r->out[i] = r->in[0][at] * real_silu(r->in[0][at + width / 2]);
    }
}

static inline double objective(pool *p, reals *r)
{
    double sum = 0;
    real_forward(p, r);
    for (int64_t i = 0; i < h3_tensor_count(&r->call->out); i++) sum += r->cotangent[i] * r->out[i];
    return sum;
}

/* d objective / d values, element by element. `values` is one of the arrays of `r`. */
static inline double *numeric_gradient(pool *p, reals *r, double *values, int64_t count)
{
    double *gradient = take(p, (size_t)count * sizeof *gradient);
    for (int64_t i = 0; i < count; i++) {
        const double old = values[i], step = 1e-4;
        values[i] = old + step;
        const double above = objective(p, r);
        values[i] = old - step;
        gradient[i] = (above - objective(p, r)) / (2 * step);
        values[i] = old;
    }
    return gradient;
}

/* ||x - g|| / ||g||; infinite for a NaN anywhere. */
static inline double error_of(const double *x, const double *g, int64_t count)
{
    double away = 0, norm = 0;
    for (int64_t i = 0; i < count; i++) {
        if (isnan(x[i]) || isnan(g[i])) return INFINITY;
        away += (x[i] - g[i]) * (x[i] - g[i]);
        norm += g[i] * g[i];
    }
    return norm > 0 ? sqrt(away / norm) : INFINITY;
}

#endif
