/*
 * What the tests of the CPU candidate share: opening the library, memory, random tensors, a complete call of any node,
 * running it, and comparing bytes. The folder of the library comes from H3_LIB, else lib/h3.
 */
#ifndef H3_TESTS_CANDIDATE_SUPPORT_H
#define H3_TESTS_CANDIDATE_SUPPORT_H

#include <dlfcn.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "h3/operator.h"

#define TENSORS (H3_MAX_IN * 2 + H3_MAX_PARAM * 2 + H3_MAX_SAVED + H3_ROW_GRADS + 4)

static const char *const node_names[] = {"adaln_projection", "norm1", "q_proj", "k_proj", "v_proj", "q_norm",
                                         "k_norm", "rope_q", "rope_k", "attention", "o_proj", "residual_attn",
                                         "norm2", "ffn_gate_up", "swiglu", "ffn_down", "residual_mlp"};
#define NODES (sizeof node_names / sizeof node_names[0])

/* Sizes of one test: `rows` are the packed rows of an item, `queries` attention's query rows. */
typedef struct dims {
    int64_t batch, rows, queries, hidden, heads, head_dim, ffn, embed, timesteps, freq;
    bool modulated;
} dims;

#define NANO(row_count) ((dims){1, row_count, row_count, 24, 2, 16, 32, 16, 2, 2, true})
#define TINY(row_count) ((dims){1, row_count, row_count, 160, 2, 128, 320, 96, 3, 16, true})
#define ODD(row_count) ((dims){2, row_count, row_count, 37, 3, 21, 13, 11, 3, 3, true})

/* Memory that a test gives back as one. */
typedef struct pool {
    void *areas[2048];
    size_t count;
    uint64_t state;
} pool;

static inline void *take(pool *p, size_t bytes)
{
    assert_true(p->count < sizeof p->areas / sizeof p->areas[0]);
    const size_t rounded = (bytes + 63) / 64 * 64 + 64;
    void *area = aligned_alloc(64, rounded);
    assert_non_null(area);
    memset(area, 0xff, rounded);
    p->areas[p->count++] = area;
    return area;
}

static inline void give_back(pool *p)
{
    for (size_t i = 0; i < p->count; i++) free(p->areas[i]);
    p->count = 0;
}

static inline void *library_handle(void)
{
    static void *handle;
    if (handle) return handle;
    char path[4096];
    const char *folder = getenv("H3_LIB");
    snprintf(path, sizeof path, "%s/libh3_candidate_cpu.so", folder ? folder : "lib/h3");
    handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) fail_msg("%s", dlerror());
    return handle;
}

static inline const h3_operator_library *library(void)
{
    h3_operator_library_get_fn get;
    void *symbol = dlsym(library_handle(), H3_OPERATOR_LIBRARY_SYMBOL);
    assert_non_null(symbol);
    memcpy(&get, &symbol, sizeof get);
    const h3_operator_library *found = get();
    assert_non_null(found);
    return found;
}

static inline const h3_operator *operator_of(const char *node)
{
    const h3_operator_library *lib = library();
    for (uint32_t i = 0; i < lib->operator_count; i++) {
        if (!strcmp(lib->operators[i].node, node)) return &lib->operators[i];
    }
    fail_msg("no operator for %s", node);
    return NULL;
}

/* ---- tensors ---- */

static inline h3_tensor tensor(pool *p, int32_t dtype, int32_t rank, int64_t a, int64_t b, int64_t c, int64_t d)
{
    h3_tensor t = {.dtype = dtype, .rank = rank, .shape = {a, b, c, d}};
    t.stride[rank - 1] = 1;
    for (int32_t i = rank - 1; i > 0; i--) t.stride[i - 1] = t.stride[i] * t.shape[i];
    for (int32_t i = rank; i < H3_MAX_RANK; i++) t.shape[i] = 0;
    t.data = take(p, (size_t)h3_tensor_count(&t) * h3_dtype_size(dtype));
    return t;
}

static inline size_t tensor_bytes(const h3_tensor *t) { return (size_t)h3_tensor_count(t) * h3_dtype_size(t->dtype); }

/* Uniform in [-1, 1). */
static inline double uniform(pool *p)
{
    p->state = p->state * 6364136223846793005u + 1442695040888963407u;
    return (double)(p->state >> 33) / 1073741824.0 - 1.0;
}

static inline void fill(pool *p, h3_tensor *t, double base, double amplitude)
{
    for (int64_t i = 0; i < h3_tensor_count(t); i++) {
        const float value = (float)(base + amplitude * uniform(p));
        if (t->dtype == H3_F32) ((float *)t->data)[i] = value;
        else ((uint16_t *)t->data)[i] = h3_f32_to_bf16(value);
    }
}

static inline h3_tensor filled(pool *p, double base, double amplitude, int32_t rank, int64_t a, int64_t b, int64_t c, int64_t d)
{
    h3_tensor t = tensor(p, H3_BF16, rank, a, b, c, d);
    fill(p, &t, base, amplitude);
    return t;
}

static inline h3_tensor like(pool *p, const h3_tensor *t)
{
    return tensor(p, t->dtype, t->rank, t->shape[0], t->shape[1], t->shape[2], t->shape[3]);
}

static inline h3_tensor index_tensor(pool *p, int64_t rows, int64_t limit)
{
    h3_tensor t = tensor(p, H3_I32, 1, rows, 0, 0, 0);
    for (int64_t i = 0; i < rows; i++) ((int32_t *)t.data)[i] = (int32_t)((uint64_t)(i * 7 + i / 3) % (uint64_t)limit);
    return t;
}

/* Every tensor of a call, always in the same order. */
static inline void tensors_of(h3_call *call, h3_tensor *list[TENSORS])
{
    int n = 0;
    for (int i = 0; i < H3_MAX_IN; i++) list[n++] = &call->in[i];
    for (int i = 0; i < H3_MAX_PARAM; i++) list[n++] = &call->param[i];
    list[n++] = &call->out;
    for (int i = 0; i < H3_MAX_SAVED; i++) list[n++] = &call->saved[i];
    list[n++] = &call->dout;
    for (int i = 0; i < H3_MAX_IN; i++) list[n++] = &call->din[i];
    for (int i = 0; i < H3_MAX_PARAM; i++) list[n++] = &call->dparam[i];
    for (int i = 0; i < H3_ROW_GRADS; i++) list[n++] = &call->row_grad[i];
    list[n++] = &call->row_index;
    list[n++] = &call->dtable;
    assert_int_equal(n, TENSORS);
}

/* ---- complete calls ---- */

static inline bool is(const char *node, const char *prefix) { return !strncmp(node, prefix, strlen(prefix)); }

static inline bool is_norm(const char *node) { return strstr(node, "norm") != NULL; }
static inline bool is_linear(const char *node) { return strstr(node, "_proj") == node + 1 || is(node, "ffn"); }

static inline void linear_sizes_of(const char *node, const dims *d, int64_t *inputs, int64_t *outputs)
{
    const int64_t inner = d->heads * d->head_dim;
    *inputs = is(node, "o_proj") ? inner : is(node, "ffn_down") ? d->ffn : d->hidden;
    *outputs = is(node, "ffn_gate_up") ? 2 * d->ffn : is(node, "o_proj") || is(node, "ffn_down") ? d->hidden : inner;
}

static inline void build_adaln(pool *p, const dims *d, h3_call *c)
{
    const int64_t outputs = 18 * d->hidden, rows = d->batch * d->rows;
    c->in[0] = tensor(p, H3_F32, 2, d->timesteps, d->embed, 0, 0);
    fill(p, &c->in[0], 0, 3);
    c->param[0] = filled(p, 0, 0.5 * sqrt(3.0 / (double)d->embed), 2, outputs, d->embed, 0, 0);
    c->param[1] = filled(p, 0, 0.1, 1, outputs, 0, 0, 0);
    c->out = tensor(p, H3_BF16, 3, 3 * d->timesteps, 6, d->hidden, 0);
    for (int i = 0; i < H3_ROW_GRADS; i++) c->row_grad[i] = filled(p, 0, 1.7, 2, rows, d->hidden, 0, 0);
    c->row_index = index_tensor(p, rows, 3 * d->timesteps - 1);
    c->dtable = like(p, &c->out);
    c->din[0] = like(p, &c->in[0]);
    c->dparam[1] = like(p, &c->param[1]);
}

static inline void build_table(pool *p, const dims *d, h3_call *c, int first)
{
    if (!d->modulated) return;
    c->in[first] = filled(p, 0, 0.8, 3, 3 * d->timesteps, 6, d->hidden, 0);
    c->in[first + 1] = index_tensor(p, d->batch * d->rows, 3 * d->timesteps);
}

/* The gradients that every row-wise node shares, once in[0], param[0] and out stand. */
static inline void build_gradients(pool *p, h3_call *c)
{
    if (!c->dout.data) c->dout = like(p, &c->out);
    fill(p, &c->dout, 0, 1.7);
    if (!c->din[0].data) c->din[0] = like(p, &c->in[0]);
    if (c->param[0].data) c->dparam[0] = like(p, &c->param[0]);
}

static inline void build_attention(pool *p, const dims *d, h3_call *c)
{
    c->in[0] = filled(p, 0, 1.7, 4, d->batch, d->queries, d->heads, d->head_dim);
    for (int i = 1; i < 3; i++) c->in[i] = filled(p, 0, 1.7, 4, d->batch, d->rows, d->heads, d->head_dim);
    c->out = like(p, &c->in[0]);
    for (int i = 1; i < 3; i++) c->din[i] = like(p, &c->in[i]);
    c->saved[0] = tensor(p, H3_F32, 3, d->batch, d->heads, d->queries, 0);
}

static inline h3_call build(pool *p, const char *node, const dims *d)
{
    const int64_t rows = d->batch * d->rows;
    int64_t inputs, outputs;
    h3_call c = {.size = sizeof(h3_call), .epsilon = 1e-5f};
    c.chunk = is(node, "norm2") ? 3 : is(node, "residual_attn") ? 2 : is(node, "residual_mlp") ? 5 : 0;
    p->state = 1;
    if (is(node, "adaln")) {
        build_adaln(p, d, &c);
        c.dparam[0] = like(p, &c.param[0]);
        return c;
    }
    if (is_linear(node)) {
        linear_sizes_of(node, d, &inputs, &outputs);
        c.in[0] = filled(p, 0, 1.7, 2, rows, inputs, 0, 0);
        c.param[0] = filled(p, 0, sqrt(3.0 / (double)inputs), 2, outputs, inputs, 0, 0);
        c.out = tensor(p, H3_BF16, 2, rows, outputs, 0, 0);
    } else if (is(node, "norm")) {
        c.in[0] = filled(p, 0.1, 1.7, 2, rows, d->hidden, 0, 0);
        c.param[0] = filled(p, 1, 0.25, 1, d->hidden, 0, 0, 0);
        build_table(p, d, &c, 1);
        c.out = like(p, &c.in[0]);
        for (int i = 0; i < 2 && d->modulated; i++) c.row_grad[i] = like(p, &c.in[0]);
    } else if (is_norm(node)) {
        c.in[0] = filled(p, 0.1, 1.7, 3, rows, d->heads, d->head_dim, 0);
        c.param[0] = filled(p, 1, 0.25, 1, d->head_dim, 0, 0, 0);
        c.out = like(p, &c.in[0]);
    } else if (is(node, "rope")) {
        c.in[0] = filled(p, 0, 1.7, 3, rows, d->heads, d->head_dim, 0);
        for (int i = 1; i < 3; i++) c.in[i] = filled(p, 0, 1, 2, rows, 3 * d->freq, 0, 0);
        c.out = like(p, &c.in[0]);
    } else if (is(node, "attention")) {
        build_attention(p, d, &c);
    } else if (is(node, "residual")) {
        for (int i = 0; i < 2; i++) c.in[i] = filled(p, 0, 1.7, 2, rows, d->hidden, 0, 0);
        build_table(p, d, &c, 2);
        c.out = like(p, &c.in[0]);
        c.din[1] = like(p, &c.in[1]);
        if (d->modulated) c.row_grad[0] = like(p, &c.in[0]);
    } else {
        c.in[0] = filled(p, 0, 3, 2, rows, 2 * d->ffn, 0, 0);
        c.out = tensor(p, H3_BF16, 2, rows, d->ffn, 0, 0);
    }
    build_gradients(p, &c);
    if (is(node, "residual")) c.din[0] = (h3_tensor){0};
    return c;
}

/* ---- running ---- */

/* Plans and calls one direction with exactly the planned workspace, its contents undefined. Returns the call's status. */
static inline int attempt(pool *p, const char *node, h3_call *c, bool backward)
{
    const h3_operator *op = operator_of(node);
    h3_call_plan plan;
    assert_int_equal(op->plan(c, &plan), 0);
    c->workspace_bytes = backward ? plan.backward_workspace : plan.forward_workspace;
    c->workspace = take(p, c->workspace_bytes);
    memset(&c->report, 0x5a, sizeof c->report);
    return backward ? op->backward(c) : op->forward(c);
}

static inline void run(pool *p, const char *node, h3_call *c, bool backward)
{
    if (attempt(p, node, c, backward)) fail_msg("%s: %s", node, c->message);
    assert_int_equal(c->report.fallback, 0);
    assert_true(strlen(c->report.kernel) > 0 && strlen(c->report.kernel) < sizeof c->report.kernel);
}

static inline void run_both(pool *p, const char *node, h3_call *c)
{
    run(p, node, c, false);
    run(p, node, c, true);
}

/* The same call with outputs of its own: everything that a call writes is fresh memory. */
static inline h3_call with_fresh_outputs(pool *p, const h3_call *call)
{
    h3_call c = *call;
    h3_tensor *list[TENSORS];
    tensors_of(&c, list);
    for (int i = 0; i < TENSORS; i++) {
        const bool written = list[i] == &c.out || (list[i] >= c.saved && list[i] < c.saved + H3_MAX_SAVED) ||
                             (list[i] >= c.din && list[i] < c.din + H3_MAX_IN) || list[i] == &c.dtable ||
                             (list[i] >= c.dparam && list[i] < c.dparam + H3_MAX_PARAM) ||
                             (list[i] >= c.row_grad && list[i] < c.row_grad + H3_ROW_GRADS && c.dout.data);
        if (written && list[i]->data) *list[i] = like(p, list[i]);
    }
    return c;
}

/* Number of the first of the call's tensors whose bytes differ, or -1. */
static inline int first_difference(h3_call *a, h3_call *b)
{
    h3_tensor *left[TENSORS], *right[TENSORS];
    tensors_of(a, left);
    tensors_of(b, right);
    for (int i = 0; i < TENSORS; i++) {
        if (left[i]->rank == 0 && right[i]->rank == 0) continue;
        if (left[i]->rank == 0 || right[i]->rank == 0 || tensor_bytes(left[i]) != tensor_bytes(right[i])) return i;
        if (memcmp(left[i]->data, right[i]->data, tensor_bytes(left[i]))) return i;
    }
    return -1;
}

#endif
