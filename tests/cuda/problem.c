#include "problem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

bool starts(const char *text, const char *prefix) { return !strncmp(text, prefix, strlen(prefix)); }
bool node_is_linear(const char *node) { return strstr(node, "_proj") == node + 1 || starts(node, "ffn"); }
int64_t tensor_bytes(const h3_tensor *tensor) { return h3_tensor_count(tensor) * (int64_t)h3_dtype_size(tensor->dtype); }

static bool is_qk_norm(const char *node) { return starts(node, "q_norm") || starts(node, "k_norm"); }
static bool is_plain(const char *node) { return strstr(node, "/plain") != NULL; }

void call_tensors(h3_call *call, h3_tensor *list[CALL_TENSORS], int written[CALL_TENSORS])
{
    int n = 0;
    const bool gathers = call->dtable.rank > 0; /* adaln_projection reads the row gradients */
    memset(written, 0, CALL_TENSORS * sizeof *written);
    for (int i = 0; i < H3_MAX_IN; i++) list[n++] = &call->in[i];
    for (int i = 0; i < H3_MAX_PARAM; i++) list[n++] = &call->param[i];
    written[n] = 1;
    list[n++] = &call->out;
    for (int i = 0; i < H3_MAX_SAVED; i++, n++) {
        list[n] = &call->saved[i];
        written[n] = 1;
    }
    list[n++] = &call->dout;
    for (int i = 0; i < H3_MAX_IN; i++, n++) {
        list[n] = &call->din[i];
        written[n] = 2;
    }
    for (int i = 0; i < H3_MAX_PARAM; i++, n++) {
        list[n] = &call->dparam[i];
        written[n] = 2;
    }
    for (int i = 0; i < H3_ROW_GRADS; i++, n++) {
        list[n] = &call->row_grad[i];
        written[n] = gathers ? 0 : 2;
    }
    list[n++] = &call->row_index;
    list[n] = &call->dtable;
    written[n] = 2;
}

static void *take(problem *p, int64_t bytes)
{
    void *area = NULL;
    if (p->area_count == PROBLEM_AREAS || posix_memalign(&area, 256, bytes > 0 ? (size_t)bytes : 1)) {
        fprintf(stderr, "no memory for a problem of %s\n", p->node);
        exit(4);
    }
    return p->areas[p->area_count++] = area;
}

static h3_tensor tensor(problem *p, int32_t dtype, int32_t rank, const int64_t *shape)
{
    h3_tensor t = {.dtype = dtype, .rank = rank};
    memcpy(t.shape, shape, (size_t)rank * sizeof *shape);
    t.stride[rank - 1] = 1;
    for (int32_t i = rank - 1; i > 0; i--) t.stride[i - 1] = t.stride[i] * t.shape[i];
    t.data = take(p, tensor_bytes(&t));
    return t;
}

#define SHAPE(...) (sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), ((const int64_t[]){__VA_ARGS__})
#define TENSOR(p, dtype, ...) tensor_of(p, dtype, SHAPE(__VA_ARGS__))
static h3_tensor tensor_of(problem *p, int32_t dtype, size_t rank, const int64_t *shape) { return tensor(p, dtype, (int32_t)rank, shape); }
static h3_tensor like(problem *p, const h3_tensor *t) { return tensor(p, t->dtype, t->rank, t->shape); }

/* Uniform in base +- amplitude. */
static h3_tensor fill(problem *p, h3_tensor t, float base, float amplitude)
{
    for (int64_t i = 0, count = h3_tensor_count(&t); i < count; i++) {
        p->random = p->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        const float value = base + amplitude * ((float)(p->random >> 40) / 8388608.0f - 1.0f);
        if (t.dtype == H3_F32) ((float *)t.data)[i] = value;
        else ((uint16_t *)t.data)[i] = h3_f32_to_bf16(value);
    }
    return t;
}

#define FILLED(p, base, amplitude, ...) fill(p, TENSOR(p, H3_BF16, __VA_ARGS__), base, amplitude)

/* temb whose silu is not near the middle between two bfloat16 values: there the last bit of exp would decide. */
static void avoid_ties(h3_tensor *temb)
{
    float *x = temb->data;
    for (int64_t i = 0; i < h3_tensor_count(temb); i++) {
        for (;; x[i] += 1e-3f) {
            const double silu = (double)x[i] / (1.0 + exp(-(double)x[i]));
            if (h3_f32_to_bf16((float)(silu * (1 - 1e-6))) == h3_f32_to_bf16((float)(silu * (1 + 1e-6)))) break;
        }
    }
}

static h3_tensor row_index(problem *p, int64_t rows, int64_t limit)
{
    h3_tensor t = TENSOR(p, H3_I32, rows);
    for (int64_t i = 0; i < rows; i++) ((int32_t *)t.data)[i] = (int32_t)((i * 7 + i / 3) % limit);
    return t;
}

static void build_adaln(problem *p, const dims *d, h3_call *c)
{
    p->rows = d->timesteps;
    c->in[0] = fill(p, TENSOR(p, H3_F32, d->timesteps, d->embed), 0, 3);
    avoid_ties(&c->in[0]);
    c->param[0] = FILLED(p, 0, 0.5f * sqrtf(3.0f / (float)d->embed), 18 * d->hidden, d->embed);
    c->param[1] = FILLED(p, 0, 0.1f, 18 * d->hidden);
    c->out = TENSOR(p, H3_BF16, 3 * d->timesteps, 6, d->hidden);
    for (int i = 0; i < H3_ROW_GRADS; i++) c->row_grad[i] = FILLED(p, 0, 1.7f, d->rows, d->hidden);
    c->row_index = row_index(p, d->rows, 3 * d->timesteps - 1); /* the last table row is not used */
    c->dtable = like(p, &c->out);
    c->din[0] = like(p, &c->in[0]);
    for (int i = 0; i < 2; i++) c->dparam[i] = like(p, &c->param[i]);
}

static void build_table(problem *p, const dims *d, h3_call *c, int first)
{
    if (is_plain(p->node)) return;
    c->in[first] = FILLED(p, 0, 0.8f, 3 * d->timesteps, 6, d->hidden);
    c->in[first + 1] = row_index(p, d->rows, 3 * d->timesteps);
}

static void build_linear(problem *p, const dims *d, h3_call *c)
{
    const char *node = p->node;
    const int64_t inner = d->heads * d->head_dim;
    const int64_t inputs = starts(node, "o_proj") ? inner : starts(node, "ffn_down") ? d->ffn : d->hidden;
    const int64_t outputs = starts(node, "ffn_gate_up") ? 2 * d->ffn : starts(node, "o_proj") || starts(node, "ffn_down") ? d->hidden : inner;
    c->in[0] = FILLED(p, 0, 1.7f, d->rows, inputs);
    c->param[0] = FILLED(p, 0, sqrtf(3.0f / (float)inputs), outputs, inputs);
    c->out = TENSOR(p, H3_BF16, d->rows, outputs);
}

static void build_attention(problem *p, const dims *d, h3_call *c)
{
    p->keys = d->rows;
    const float cold = strstr(p->node, "/cold") ? sqrtf(120 / sqrtf((float)d->head_dim)) : 0; /* scores around -120: exp(-lse) overflows */
    const float base[3] = {cold, -cold, 0.3f}, amplitude[3] = {cold > 0 ? 0.2f : 1.7f, cold > 0 ? 0.2f : 1.7f, 1.7f};
    for (int i = 0; i < 3; i++) c->in[i] = FILLED(p, base[i], amplitude[i], 1, d->rows, d->heads, d->head_dim);
    for (int i = 1; i < 3; i++) c->din[i] = like(p, &c->in[i]);
    c->out = like(p, &c->in[0]);
    c->saved[0] = TENSOR(p, H3_F32, 1, d->heads, d->rows);
}

static void build_norm(problem *p, const dims *d, h3_call *c)
{
    if (is_qk_norm(p->node)) {
        c->in[0] = FILLED(p, 0.1f, 1.7f, d->rows, d->heads, d->head_dim);
        c->param[0] = FILLED(p, 1, 0.25f, d->head_dim);
    } else {
        c->in[0] = FILLED(p, 0.1f, 1.7f, d->rows, d->hidden);
        c->param[0] = FILLED(p, 1, 0.25f, d->hidden);
        build_table(p, d, c, 1);
        for (int i = 0; i < 2 && !is_plain(p->node); i++) c->row_grad[i] = like(p, &c->in[0]);
    }
    c->out = like(p, &c->in[0]);
}

static void build_residual(problem *p, const dims *d, h3_call *c)
{
    for (int i = 0; i < 2; i++) c->in[i] = FILLED(p, 0, 1.7f, d->rows, d->hidden);
    build_table(p, d, c, 2);
    c->out = like(p, &c->in[0]);
    c->din[1] = like(p, &c->in[1]);
    if (!is_plain(p->node)) c->row_grad[0] = like(p, &c->in[0]);
}

static void build_rest(problem *p, const dims *d, h3_call *c)
{
    if (starts(p->node, "rope")) {
        c->in[0] = FILLED(p, 0, 1.7f, d->rows, d->heads, d->head_dim);
        for (int i = 1; i < 3; i++) c->in[i] = FILLED(p, 0, 1, d->rows, 3 * d->freq);
        c->out = like(p, &c->in[0]);
    } else { /* swiglu */
        c->in[0] = FILLED(p, 0, 3, d->rows, 2 * d->ffn);
        c->out = TENSOR(p, H3_BF16, d->rows, d->ffn);
    }
}

void problem_new(problem *out, const char *node, const dims *size)
{
    *out = (problem){.node = node, .size = *size, .items = 1, .rows = size->rows, .random = 1};
    h3_call *c = &out->call;
    *c = (h3_call){.size = sizeof *c, .epsilon = 1e-5f};
    c->chunk = starts(node, "norm2") ? 3 : starts(node, "residual_attn") ? 2 : starts(node, "residual_mlp") ? 5 : 0;
    if (starts(node, "adaln")) {
        build_adaln(out, size, c);
        return;
    }
    if (node_is_linear(node)) build_linear(out, size, c);
    else if (starts(node, "attention")) build_attention(out, size, c);
    else if (strstr(node, "norm")) build_norm(out, size, c);
    else if (starts(node, "residual")) build_residual(out, size, c);
    else build_rest(out, size, c);
    c->dout = fill(out, like(out, &c->out), 0, 1.7f);
    if (!starts(node, "residual")) c->din[0] = like(out, &c->in[0]);
    if (c->param[0].rank > 0) c->dparam[0] = like(out, &c->param[0]);
}

void problem_free(problem *p)
{
    for (int i = 0; i < p->area_count; i++) free(p->areas[i]);
    p->area_count = 0;
}

/* Which inputs have a row for each packed row. */
static unsigned row_inputs(const char *node)
{
    if (starts(node, "norm")) return is_plain(node) ? 1u : 5u;
    if (starts(node, "residual")) return is_plain(node) ? 3u : 11u;
    return starts(node, "rope") ? 7u : 1u;
}

/* Rows of a tensor for one packed row: three table rows for one timestep. */
static int64_t rows_each(const problem *p, const h3_tensor *t) { return starts(p->node, "adaln") && t->rank == 3 ? 3 : 1; }

static h3_tensor with_rows(problem *p, const h3_tensor *t, int64_t rows, int64_t each)
{
    int64_t shape[H3_MAX_RANK];
    memcpy(shape, t->shape, sizeof shape);
    if (t->rank == 4) {
        shape[0] = p->items;
        shape[1] = rows;
    } else {
        shape[0] = p->items * rows * each;
    }
    return tensor(p, t->dtype, t->rank, shape);
}

/* Fills `to` with rows of `from` for every item: the neighbours hold the same rows, turned by another amount each. */
static void copy_rows(const problem *p, const h3_tensor *to, const h3_tensor *from, int64_t rows, int64_t from_rows, const company *who, int64_t offset)
{
    const size_t bytes = (size_t)(tensor_bytes(from) / from_rows);
    for (int64_t item = 0; item < p->items; item++) {
        const int64_t turn = item == who->position ? offset : offset + who->turn * (item + 1);
        for (int64_t row = 0; row < rows; row++)
            memcpy((char *)to->data + (size_t)(item * rows + row) * bytes, (const char *)from->data + (size_t)((row + turn) % from_rows) * bytes, bytes);
    }
}

void problem_in_company(problem *out, const problem *base, const company *who)
{
    const h3_call *from = &base->call;
    *out = (problem){.node = base->node, .size = base->size, .items = who->items, .rows = who->rows, .keys = base->keys};
    out->call = *from;
    h3_call *c = &out->call;
    const unsigned inputs = row_inputs(base->node);
    for (int i = 0; i < H3_MAX_IN; i++) {
        if (from->in[i].rank == 0) continue;
        const bool keys = starts(base->node, "attention") && i > 0;
        if (keys || (inputs >> i & 1u)) {
            c->in[i] = with_rows(out, &from->in[i], keys ? base->keys : who->rows, 1);
            copy_rows(out, &c->in[i], &from->in[i], keys ? base->keys : who->rows, keys ? base->keys : base->rows, who, keys ? 0 : who->offset);
        }
        if (from->din[i].rank > 0) c->din[i] = like(out, &c->in[i]);
    }
    c->out = with_rows(out, &from->out, who->rows, rows_each(base, &from->out));
    if (from->dout.rank > 0) {
        c->dout = like(out, &c->out);
        copy_rows(out, &c->dout, &from->dout, who->rows, base->rows, who, who->offset);
    }
    if (from->saved[0].rank > 0) c->saved[0] = TENSOR(out, H3_F32, who->items, from->saved[0].shape[1], who->rows);
    for (int i = 0; i < 2; i++)
        if (from->dparam[i].rank > 0) c->dparam[i] = like(out, &from->dparam[i]);
    for (int i = 0; i < H3_ROW_GRADS && from->dout.rank > 0; i++)
        if (from->row_grad[i].rank > 0) c->row_grad[i] = like(out, &c->out);
}

static int64_t different_row(const problem *base, const problem *other, const h3_tensor *a, const h3_tensor *b, const company *who)
{
    if (a->rank == 0) return -1;
    const size_t bytes = (size_t)(tensor_bytes(a) / base->rows);
    for (int64_t row = 0; row < other->rows; row++) {
        const char *left = (const char *)a->data + (size_t)((who->offset + row) % base->rows) * bytes;
        if (memcmp(left, (const char *)b->data + (size_t)(who->position * other->rows + row) * bytes, bytes)) return row;
    }
    return -1;
}

static int64_t different_lse(const problem *base, const problem *other, const company *who)
{
    const h3_tensor *a = &base->call.saved[0], *b = &other->call.saved[0];
    for (int64_t head = 0; head < a->shape[1]; head++) {
        for (int64_t row = 0; row < other->rows; row++) {
            const uint32_t left = ((const uint32_t *)a->data)[head * base->rows + (who->offset + row) % base->rows];
            if (left != ((const uint32_t *)b->data)[(who->position * a->shape[1] + head) * other->rows + row]) return row;
        }
    }
    return -1;
}

int64_t first_different_row(const problem *base, const problem *other, const company *who, bool backward)
{
    int64_t row = -1;
    if (!backward) {
        row = different_row(base, other, &base->call.out, &other->call.out, who);
        return row < 0 && base->call.saved[0].rank > 0 ? different_lse(base, other, who) : row;
    }
    const int last = starts(base->node, "attention") ? 1 : H3_MAX_IN;
    for (int i = 0; i < last && row < 0; i++) row = different_row(base, other, &base->call.din[i], &other->call.din[i], who);
    for (int i = 0; i < H3_ROW_GRADS && row < 0; i++) row = different_row(base, other, &base->call.row_grad[i], &other->call.row_grad[i], who);
    return row;
}
