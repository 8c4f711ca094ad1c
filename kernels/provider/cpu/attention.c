/*
 * Full softmax attention, q [B,Rq,N,D] against k, v [B,S,N,D], one (item, head) at a time, CHUNK query rows at a time.
 *
 * Contract attention-p-bf16-chunked-v1: scores = alpha * sgemm(q, k^T); p = exp(score - max) unnormalised; the row sum adds
 * the unrounded p in ascending key order; o = sgemm(round(p), v) / sum. saved[0] is the log-sum-exp, max + log(sum).
 * Backward: P = exp(score - lse); delta = sum do * o in ascending channel order; dS = round(P * (dP - delta)) with the
 * unrounded P; dV += round(P)^T do and dK += dS^T q over chunks in ascending order; alpha multiplies dQ and dK at the end.
 */
#include <math.h>

#include "gemm.h"
#include "operators.h"

enum { CHUNK = 256 };

typedef struct attention_sizes {
    int64_t batch, queries, keys, heads, head_dim;
    int32_t dtype;
    int bf16;
} attention_sizes;

static int check_attention(const h3_check *check, attention_sizes *sizes)
{
    const h3_call *call = check->call;
    const h3_tensor *q = &call->in[0], *k = &call->in[1];
    *sizes = (attention_sizes){.dtype = q->dtype, .bf16 = q->dtype == H3_BF16};
    if (h3_want_host(check) || h3_want_activation(check, "q", q)) return 1;
    if (h3_want(check, "q", q, q->dtype, 4, H3_SHAPE(H3_ANY, H3_ANY, H3_ANY, H3_ANY))) return 1;
    sizes->batch = q->shape[0];
    sizes->queries = q->shape[1];
    sizes->heads = q->shape[2];
    sizes->head_dim = q->shape[3];
    if (h3_want(check, "k", k, q->dtype, 4, H3_SHAPE(sizes->batch, H3_ANY, sizes->heads, sizes->head_dim))) return 1;
    sizes->keys = k->shape[1];
    return h3_want(check, "v", &call->in[2], q->dtype, 4, k->shape);
}

static int64_t chunk_rows(const attention_sizes *sizes) { return sizes->queries < CHUNK ? sizes->queries : CHUNK; }

static size_t forward_workspace(const attention_sizes *sizes)
{
    int64_t rows = chunk_rows(sizes);
    return 2 * h3_bytes(sizes->keys * sizes->head_dim, 4) + 2 * h3_bytes(rows * sizes->head_dim, 4) +
           h3_bytes(rows * sizes->keys, 4);
}

static size_t backward_workspace(const attention_sizes *sizes)
{
    int64_t rows = chunk_rows(sizes);
    return 4 * h3_bytes(sizes->keys * sizes->head_dim, 4) + 3 * h3_bytes(rows * sizes->head_dim, 4) +
           2 * h3_bytes(rows * sizes->keys, 4);
}

int h3_attention_plan(const h3_call *call, h3_call_plan *plan)
{
    attention_sizes sizes;
    h3_check check = h3_check_plan(call);
    *plan = (h3_call_plan){0};
    if (check_attention(&check, &sizes)) return 1;
    plan->forward_workspace = forward_workspace(&sizes);
    plan->backward_workspace = backward_workspace(&sizes);
    h3_declare_saved(plan, 0, H3_F32, 3, H3_SHAPE(sizes.batch, sizes.heads, sizes.queries));
    return 0;
}

/* Rows first .. first + rows - 1 of one head of one item, as contiguous floats, and back with one rounding. */
static void read_head(const h3_tensor *tensor, int64_t item, int64_t head, int64_t first, int64_t rows, float *to)
{
    int64_t heads = tensor->shape[2], head_dim = tensor->shape[3], start = (item * tensor->shape[1] + first) * heads + head;
    int bf16 = tensor->dtype == H3_BF16;
    for (int64_t row = 0; row < rows; row++)
        h3_widen(h3_at(tensor->data, (start + row * heads) * head_dim, bf16), head_dim, bf16, to + row * head_dim);
}

static void write_head(h3_tensor *tensor, int64_t item, int64_t head, int64_t first, int64_t rows, const float *from)
{
    int64_t heads = tensor->shape[2], head_dim = tensor->shape[3], start = (item * tensor->shape[1] + first) * heads + head;
    int bf16 = tensor->dtype == H3_BF16;
    for (int64_t row = 0; row < rows; row++)
        h3_narrow(from + row * head_dim, head_dim, bf16, h3_at(tensor->data, (start + row * heads) * head_dim, bf16));
}

/* Scores of one query row become rounded unnormalised probabilities. Returns their sum before rounding. */
H3_INLINE float softmax_row(float *row, int64_t keys, float alpha, float *largest, const int bf16)
{
    float most = -INFINITY, sum = 0.0f;
    double wide_sum = 0.0;
    for (int64_t j = 0; j < keys; j++) {
        row[j] = alpha * row[j];
        if (row[j] > most) most = row[j];
    }
    for (int64_t j = 0; j < keys; j++) {
        float p = expf(row[j] - most);
        if (bf16) sum += p;
        else wide_sum += (double)p;
        row[j] = h3_round(p, bf16);
    }
    *largest = most;
    return bf16 ? sum : (float)wide_sum;
}

typedef struct forward_buffers {
    float *k, *v, *q, *o, *p;
} forward_buffers;

static void attend(const h3_call *call, const attention_sizes *sizes, forward_buffers b, int64_t item, int64_t head,
                   int64_t first)
{
    int64_t rows = sizes->queries - first < CHUNK ? sizes->queries - first : CHUNK, width = sizes->head_dim;
    float alpha = 1.0f / sqrtf((float)width);
    float *lse = (float *)call->saved[0].data + (item * sizes->heads + head) * sizes->queries + first;
    h3_tensor out = call->out;
    read_head(&call->in[0], item, head, first, rows, b.q);
    h3_multiply(rows, sizes->keys, width, 1.0f, b.q, b.k, 1, 0.0f, b.p);
    for (int64_t row = 0; row < rows; row++) {
        float most, *p = b.p + row * sizes->keys;
        float sum = sizes->bf16 ? softmax_row(p, sizes->keys, alpha, &most, 1) : softmax_row(p, sizes->keys, alpha, &most, 0);
        lse[row] = most + logf(sum);
        b.q[row] = sum; /* q is spent: its first floats hold the rows' sums from here on */
    }
    h3_multiply(rows, width, sizes->keys, 1.0f, b.p, b.v, 0, 0.0f, b.o);
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t d = 0; d < width; d++) b.o[row * width + d] /= b.q[row];
    }
    write_head(&out, item, head, first, rows, b.o);
}

int h3_attention_forward(h3_call *call)
{
    attention_sizes sizes;
    h3_arena arena;
    h3_check check = h3_check_call(call);
    if (check_attention(&check, &sizes) || h3_want(&check, "out", &call->out, sizes.dtype, 4, call->in[0].shape)) return 1;
    if (h3_want(&check, "saved[0]", &call->saved[0], H3_F32, 3, H3_SHAPE(sizes.batch, sizes.heads, sizes.queries))) return 1;
    if (h3_open_workspace(&check, forward_workspace(&sizes), &arena)) return 1;
    int64_t rows = chunk_rows(&sizes);
    forward_buffers b = {.k = h3_take(&arena, sizes.keys * sizes.head_dim, 4),
                         .v = h3_take(&arena, sizes.keys * sizes.head_dim, 4),
                         .q = h3_take(&arena, rows * sizes.head_dim, 4),
                         .o = h3_take(&arena, rows * sizes.head_dim, 4),
                         .p = h3_take(&arena, rows * sizes.keys, 4)};
    for (int64_t item = 0; item < sizes.batch; item++) {
        for (int64_t head = 0; head < sizes.heads; head++) {
            read_head(&call->in[1], item, head, 0, sizes.keys, b.k);
            read_head(&call->in[2], item, head, 0, sizes.keys, b.v);
            for (int64_t first = 0; first < sizes.queries; first += CHUNK) attend(call, &sizes, b, item, head, first);
        }
    }
    h3_ran(call, h3_blas_kernel(), sizes.bf16);
    return 0;
}

typedef struct backward_buffers {
    float *k, *v, *dk, *dv; /* one head, all keys */
    float *q, *up, *o;      /* one chunk of queries; `up` is the gradient of o, `o` later holds dq */
    float *p, *ds;
} backward_buffers;

H3_INLINE float dot(const float *a, const float *b, int64_t count, const int bf16)
{
    float sum = 0.0f;
    double wide_sum = 0.0;
    for (int64_t i = 0; i < count; i++) {
        if (bf16) sum += a[i] * b[i];
        else wide_sum += (double)a[i] * (double)b[i];
    }
    return bf16 ? sum : (float)wide_sum;
}

/* Scores in p and dP in ds become the (rounded) P and dS. */
H3_INLINE void softmax_backward_row(float *p, float *ds, int64_t keys, float alpha, float lse, float delta, const int bf16)
{
    for (int64_t j = 0; j < keys; j++) {
        float probability = expf(alpha * p[j] - lse);
        ds[j] = h3_round(probability * (ds[j] - delta), bf16);
        p[j] = h3_round(probability, bf16);
    }
}

static void attend_backward(h3_call *call, const attention_sizes *sizes, backward_buffers b, int64_t item, int64_t head,
                            int64_t first)
{
    int64_t rows = sizes->queries - first < CHUNK ? sizes->queries - first : CHUNK, width = sizes->head_dim, keys = sizes->keys;
    float alpha = 1.0f / sqrtf((float)width);
    const float *lse = (const float *)call->saved[0].data + (item * sizes->heads + head) * sizes->queries + first;
    read_head(&call->in[0], item, head, first, rows, b.q);
    read_head(&call->out, item, head, first, rows, b.o);
    read_head(&call->dout, item, head, first, rows, b.up);
    h3_multiply(rows, keys, width, 1.0f, b.q, b.k, 1, 0.0f, b.p);
    h3_multiply(rows, keys, width, 1.0f, b.up, b.v, 1, 0.0f, b.ds);
    for (int64_t row = 0; row < rows; row++) {
        const float *up = b.up + row * width, *o = b.o + row * width;
        if (sizes->bf16)
            softmax_backward_row(b.p + row * keys, b.ds + row * keys, keys, alpha, lse[row], dot(up, o, width, 1), 1);
        else softmax_backward_row(b.p + row * keys, b.ds + row * keys, keys, alpha, lse[row], dot(up, o, width, 0), 0);
    }
    float beta = first == 0 ? 0.0f : 1.0f;
    h3_multiply_transposed(keys, width, rows, 1.0f, b.p, keys, b.up, beta, b.dv);
    h3_multiply_transposed(keys, width, rows, 1.0f, b.ds, keys, b.q, beta, b.dk);
    if (call->din[0].data == NULL) return;
    h3_multiply(rows, width, keys, 1.0f, b.ds, b.k, 0, 0.0f, b.o);
    for (int64_t i = 0; i < rows * width; i++) b.o[i] = alpha * b.o[i];
    write_head(&call->din[0], item, head, first, rows, b.o);
}

static void head_backward(h3_call *call, const attention_sizes *sizes, backward_buffers b, int64_t item, int64_t head)
{
    int64_t count = sizes->keys * sizes->head_dim;
    float alpha = 1.0f / sqrtf((float)sizes->head_dim);
    read_head(&call->in[1], item, head, 0, sizes->keys, b.k);
    read_head(&call->in[2], item, head, 0, sizes->keys, b.v);
    for (int64_t first = 0; first < sizes->queries; first += CHUNK) attend_backward(call, sizes, b, item, head, first);
    for (int64_t i = 0; i < count; i++) b.dk[i] = alpha * b.dk[i];
    if (call->din[1].data != NULL) write_head(&call->din[1], item, head, 0, sizes->keys, b.dk);
    if (call->din[2].data != NULL) write_head(&call->din[2], item, head, 0, sizes->keys, b.dv);
}

int h3_attention_backward(h3_call *call)
{
    static const char *const names[] = {"din[0]", "din[1]", "din[2]"};
    attention_sizes sizes;
    h3_arena arena;
    h3_check check = h3_check_call(call);
    if (check_attention(&check, &sizes) || h3_want(&check, "out", &call->out, sizes.dtype, 4, call->in[0].shape)) return 1;
    if (h3_want(&check, "saved[0]", &call->saved[0], H3_F32, 3, H3_SHAPE(sizes.batch, sizes.heads, sizes.queries))) return 1;
    if (h3_want(&check, "dout", &call->dout, sizes.dtype, 4, call->in[0].shape)) return 1;
    for (int i = 0; i < 3; i++) {
        if (h3_want_optional(&check, names[i], &call->din[i], sizes.dtype, 4, call->in[i].shape)) return 1;
    }
    if (h3_open_workspace(&check, backward_workspace(&sizes), &arena)) return 1;
    int64_t rows = chunk_rows(&sizes), head_floats = sizes.keys * sizes.head_dim, chunk_floats = rows * sizes.head_dim;
    backward_buffers b = {.k = h3_take(&arena, head_floats, 4),
                          .v = h3_take(&arena, head_floats, 4),
                          .dk = h3_take(&arena, head_floats, 4),
                          .dv = h3_take(&arena, head_floats, 4),
                          .q = h3_take(&arena, chunk_floats, 4),
                          .up = h3_take(&arena, chunk_floats, 4),
                          .o = h3_take(&arena, chunk_floats, 4),
                          .p = h3_take(&arena, rows * sizes.keys, 4),
                          .ds = h3_take(&arena, rows * sizes.keys, 4)};
    for (int64_t item = 0; item < sizes.batch; item++) {
        for (int64_t head = 0; head < sizes.heads; head++) head_backward(call, &sizes, b, item, head);
    }
    h3_ran(call, h3_blas_kernel(), sizes.bf16);
    return 0;
}
