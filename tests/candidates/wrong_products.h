/* Plain loops for the nodes that are products: linear layers, the modulation's projection, attention. */
#ifndef H3_TESTS_WRONG_PRODUCTS_H
#define H3_TESTS_WRONG_PRODUCTS_H

#include "mutation.h"

/* out[m, n] = sum over k of left[m * left_row + k * left_step] right[n * right_row + k * right_step] (+ bias[n]). */
typedef struct product {
    int64_t rows, columns, depth;
    const uint16_t *left, *right, *bias;
    int64_t left_row, left_step, right_row, right_step;
} product;

static float element_of(const product *p, int64_t row, int64_t column)
{
    const bool down = descends(row, p->rows);
    float sum = 0.0f;
    for (int64_t i = 0; i < p->depth; i++) {
        const int64_t k = down ? p->depth - 1 - i : i;
        sum = fmaf(h3_bf16_to_f32(p->left[row * p->left_row + k * p->left_step]), h3_bf16_to_f32(p->right[column * p->right_row + k * p->right_step]), sum);
        sum = running(sum, i + 1, p->depth);
    }
    if (p->bias == NULL) return sum;
    return (active == EXTRA ? bf(sum) : sum) + h3_bf16_to_f32(p->bias[column]);
}

static void multiply(uint16_t *out, const product *p)
{
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < p->rows; row++)
        for (int64_t column = 0; column < p->columns; column++) out[row * p->columns + column] = result(element_of(p, row, column));
}

/* dW = dy^T x; TRANSPOSED exchanges two of its elements. */
static void weight_gradient(uint16_t *out, const uint16_t *dy, const uint16_t *x, int64_t rows, int64_t outputs, int64_t inputs)
{
    const product p = {outputs, inputs, rows - (active == DROPPED), dy, x, NULL, 1, outputs, 1, inputs};
    multiply(out, &p);
    if (active != TRANSPOSED) return;
    const uint16_t upper = out[1];
    out[1] = out[inputs];
    out[inputs] = upper;
}

static void linear_forward(const h3_call *call)
{
    const int64_t rows = rows_of(&call->in[0]), outputs = call->param[0].shape[0], inputs = call->param[0].shape[1];
    const product p = {rows, outputs, inputs, halves(&call->in[0]), halves(&call->param[0]), NULL, inputs, 1, inputs, 1};
    multiply(call->out.data, &p);
}

static void linear_backward(const h3_call *call)
{
    const int64_t rows = rows_of(&call->in[0]), outputs = call->param[0].shape[0], inputs = call->param[0].shape[1];
    const product p = {rows, inputs, outputs, halves(&call->dout), halves(&call->param[0]), NULL, outputs, 1, 1, inputs};
    if (wanted(&call->din[0])) multiply(call->din[0].data, &p);
    if (wanted(&call->dparam[0])) weight_gradient(call->dparam[0].data, halves(&call->dout), halves(&call->in[0]), rows, outputs, inputs);
}

static uint16_t *activated(const h3_tensor *temb)
{
    const int64_t count = h3_tensor_count(temb);
    const float *x = temb->data;
    uint16_t *u = malloc((size_t)count * sizeof *u);
    for (int64_t i = 0; i < count; i++) u[i] = h3_f32_to_bf16(x[i] * sigmoid(x[i]));
    return u;
}

static void adaln_forward(const h3_call *call)
{
    const int64_t times = rows_of(&call->in[0]), inputs = width_of(&call->in[0]), outputs = call->param[0].shape[0];
    uint16_t *u = activated(&call->in[0]);
    const product p = {times, outputs, inputs, u, halves(&call->param[0]), halves(&call->param[1]), inputs, 1, inputs, 1};
    multiply(call->out.data, &p);
    free(u);
}

/* The table's gradient: rows of one table row summed in ascending order. */
static void table_gradient(const h3_call *call, uint16_t *dz, int64_t outputs, int64_t times)
{
    const int64_t hidden = outputs / 18, rows = rows_of(&call->row_grad[0]);
    const int32_t *index = call->row_index.data;
    float *sums = calloc((size_t)(times * outputs), sizeof *sums);
    for (int64_t r = 0; r < rows - (active == DROPPED); r++) {
        for (int64_t c = 0; c < H3_ROW_GRADS; c++) {
            const int64_t from = active == CHUNK && c >= 4 ? 9 - c : c;
            for (int64_t j = 0; j < hidden; j++) sums[(index[r] * H3_ROW_GRADS + c) * hidden + j] += h3_bf16_to_f32(halves(&call->row_grad[from])[r * hidden + j]);
        }
    }
    for (int64_t i = 0; i < times * outputs; i++) dz[i] = result(sums[i]);
    free(sums);
}

static void adaln_backward(const h3_call *call)
{
    const int64_t times = rows_of(&call->in[0]), inputs = width_of(&call->in[0]), outputs = call->param[0].shape[0];
    uint16_t *u = activated(&call->in[0]), *dz = malloc((size_t)(times * outputs) * sizeof *dz);
    const float *x = call->in[0].data;
    table_gradient(call, dz, outputs, times);
    if (wanted(&call->dtable)) memcpy(call->dtable.data, dz, (size_t)(times * outputs) * sizeof *dz);
    for (int64_t o = 0; wanted(&call->dparam[1]) && o < outputs; o++) {
        float sum = 0.0f;
        for (int64_t t = 0; t < times; t++) sum += h3_bf16_to_f32(dz[t * outputs + o]);
        ((uint16_t *)call->dparam[1].data)[o] = result(sum);
    }
    const product weight = {outputs, inputs, times, dz, u, NULL, 1, outputs, 1, inputs};
    const product input = {times, inputs, outputs, dz, halves(&call->param[0]), NULL, outputs, 1, 1, inputs};
    if (wanted(&call->dparam[0])) multiply(call->dparam[0].data, &weight);
    for (int64_t i = 0; wanted(&call->din[0]) && i < times * inputs; i++) {
        const float du = h3_bf16_to_f32(result(element_of(&input, i / inputs, i % inputs))), sg = sigmoid(x[i]);
        ((float *)call->din[0].data)[i] = du * sg * (1.0f + x[i] * (1.0f - sg));
    }
    free(u);
    free(dz);
}

/* One head of one item: `step` elements from row to row. */
typedef struct head {
    int64_t queries, keys, dim, step;
    const uint16_t *q, *k, *v, *dout;
    float alpha, *p, *dp; /* [queries, keys] */
    float *lse;           /* [queries] */
} head;

static float along(const uint16_t *a, const uint16_t *b, int64_t dim, bool down)
{
    const product p = {1, 1, dim, a, b, NULL, 0, 1, 0, 1};
    float sum = 0.0f;
    if (!down) return element_of(&p, 0, 0);
    for (int64_t d = dim - 1; d >= 0; d--) sum = fmaf(h3_bf16_to_f32(a[d]), h3_bf16_to_f32(b[d]), sum);
    return sum;
}

/* Probabilities of all rows. */
static void probabilities(const head *h)
{
    for (int64_t i = 0; i < h->queries; i++) {
        float *p = h->p + i * h->keys, most = -INFINITY, total = 0.0f;
        const int64_t keys = h->keys - (active == MASK);
        for (int64_t j = 0; j < h->keys; j++) p[j] = h->alpha * along(h->q + i * h->step, h->k + j * h->step, h->dim, descends(i, h->queries));
        for (int64_t j = 0; j < keys; j++) most = p[j] > most ? p[j] : most;
        for (int64_t j = 0; j < h->keys; j++) p[j] = j < keys ? expf(p[j] - most) : 0.0f;
        for (int64_t j = 0; j < keys; j++) total += p[j];
        for (int64_t j = 0; j < keys; j++) p[j] /= total;
        for (int64_t j = 0; active == NORMALISED && j < keys; j++) p[j] = bf(p[j]);
        if (h->lse != NULL) h->lse[i] = most + logf(total);
    }
}

/* out[i] = scale times the sum over j of weights[i * row + j * column] other[j]. */
static void combine(const head *h, uint16_t *out, int64_t rows, int64_t terms, const float *weights, int64_t row, int64_t column, const uint16_t *other,
                    float scale)
{
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t d = 0; d < h->dim; d++) {
            float sum = 0.0f;
            for (int64_t j = 0; j < terms; j++) {
                const int64_t at = descends(i, rows) ? terms - 1 - j : j;
                sum = running(fmaf(weights[i * row + at * column], h3_bf16_to_f32(other[at * h->step + d]), sum), j + 1, terms);
            }
            out[i * h->step + d] = result(scale * sum);
        }
    }
}

static head head_of(const h3_call *call, int64_t item, int64_t number)
{
    const h3_tensor *q = &call->in[0], *k = &call->in[1];
    const int64_t heads = q->shape[2], dim = q->shape[3];
    head h = {.queries = q->shape[1], .keys = k->shape[1], .dim = dim, .step = heads * dim};
    const int64_t at_q = item * h.queries * h.step + number * dim, at_k = item * h.keys * h.step + number * dim;
    h.alpha = 1.0f / sqrtf((float)(active == ALPHA ? dim + 1 : dim));
    h.q = halves(q) + at_q;
    h.k = halves(k) + at_k;
    h.v = halves(&call->in[2]) + at_k;
    h.dout = call->dout.rank > 0 ? halves(&call->dout) + at_q : NULL;
    h.p = malloc((size_t)(2 * h.queries * h.keys) * sizeof *h.p);
    h.dp = h.p + h.queries * h.keys;
    return h;
}

static void attention_forward(const h3_call *call)
{
    for (int64_t i = 0; i < call->in[0].shape[0] * call->in[0].shape[2]; i++) {
        head h = head_of(call, i / call->in[0].shape[2], i % call->in[0].shape[2]);
        h.lse = (float *)call->saved[0].data + i * h.queries;
        probabilities(&h);
        combine(&h, (uint16_t *)call->out.data + (h.q - halves(&call->in[0])), h.queries, h.keys, h.p, h.keys, 1, h.v, 1.0f);
        free(h.p);
    }
}

static void head_backward(const h3_call *call, const head *h)
{
    const int64_t at_q = h->q - halves(&call->in[0]), at_k = h->k - halves(&call->in[1]);
    const uint16_t *out = halves(&call->out) + at_q;
    probabilities(h);
    combine(h, (uint16_t *)call->din[2].data + at_k, h->keys, h->queries - (active == DROPPED), h->p, 1, h->keys, h->dout, 1.0f);
    for (int64_t i = 0; i < h->queries; i++) {
        float delta = 0.0f;
        for (int64_t d = 0; d < h->dim; d++) delta = fmaf(h3_bf16_to_f32(h->dout[i * h->step + d]), h3_bf16_to_f32(out[i * h->step + d]), delta);
        for (int64_t j = 0; j < h->keys; j++)
            h->dp[i * h->keys + j] = h->p[i * h->keys + j] * (along(h->dout + i * h->step, h->v + j * h->step, h->dim, false) - delta);
    }
    combine(h, (uint16_t *)call->din[0].data + at_q, h->queries, h->keys, h->dp, h->keys, 1, h->k, h->alpha);
    combine(h, (uint16_t *)call->din[1].data + at_k, h->keys, h->queries - (active == DROPPED), h->dp, 1, h->keys, h->q, h->alpha);
}

static void attention_backward(const h3_call *call)
{
    for (int64_t i = 0; i < call->in[0].shape[0] * call->in[0].shape[2]; i++) {
        head h = head_of(call, i / call->in[0].shape[2], i % call->in[0].shape[2]);
        head_backward(call, &h);
        free(h.p);
    }
}

#endif
