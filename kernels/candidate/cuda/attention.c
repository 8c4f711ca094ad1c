/* Full attention, the host's part; the contract stands in attention.cu and attention_backward.cu. */
#include "common.h"

#include <math.h>

static void check_sizes(h3_check *check, const h3_call *call, h3_attention *a)
{
    const h3_tensor *q = &call->in[0], *k = &call->in[1], *v = &call->in[2];
    h3_need(check, q, "q", H3_BF16);
    h3_need(check, k, "k", H3_BF16);
    if (check->problem) return;
    h3_require(check, q->rank == 4 && k->rank == 4, "q and k", "are not [batch, rows, heads, head_dim]");
    if (check->problem) return;
    *a = (h3_attention){.batch = q->shape[0], .queries = q->shape[1], .keys = k->shape[1], .heads = q->shape[2], .head_dim = q->shape[3],
                        .q = q->data, .k = k->data, .v = v->data};
    a->alpha = 1.0f / sqrtf((float)a->head_dim);
    h3_require(check, a->batch > 0 && a->queries > 0 && a->heads > 0, "q", "has no rows");
    h3_require(check, a->keys > 0, "k", "has no rows");
    h3_require(check, a->head_dim <= H3_MOST_HEAD_DIM, "q", "has a head_dim above 128, which these kernels do not serve");
    h3_require(check, k->shape[0] == a->batch && k->shape[2] == a->heads && k->shape[3] == a->head_dim, "k",
               "differs from q in batch, heads or head_dim");
    h3_need(check, v, "v", H3_BF16);
    h3_require(check, v->rank == 4 && !memcmp(v->shape, k->shape, 4 * sizeof *k->shape), "v", "has another shape than k");
}

static int64_t query_rows(const h3_attention *a) { return a->batch * a->heads * a->queries; }

/* Of the backward: two numbers of every query, for whole tiles of 64; one serves where products are not for Hopper GPUs. */
static size_t backward_bytes(const h3_attention *a) { return (size_t)h3_area_bytes(a->batch * a->heads * h3_groups(a->queries, 64) * 64, 2 * sizeof(float)); }

int h3_attention_plan(const h3_call *call, h3_call_plan *plan)
{
    h3_attention a;
    h3_check check = {0};
    check_sizes(&check, call, &a);
    if (check.problem) return 1;
    *plan = (h3_call_plan){.backward_workspace = backward_bytes(&a), .saved_count = 1};
    plan->saved[0] = (h3_tensor){.dtype = H3_F32, .rank = 3, .shape = {a.batch, a.heads, a.queries}, .stride = {a.heads * a.queries, a.queries, 1}};
    return 0;
}

int h3_attention_forward(h3_call *call)
{
    h3_attention a = {0};
    h3_check check = h3_begin(call);
    check_sizes(&check, call, &a);
    h3_need_rows(&check, &call->out, "out", H3_BF16, query_rows(&a), a.head_dim);
    h3_need_rows(&check, &call->saved[0], "saved[0]", H3_F32, a.batch * a.heads, a.queries);
    if (check.problem) return h3_refuse(call, &check);
    a.out = call->out.data;
    a.lse = call->saved[0].data;
    if (h3_attention_run_forward(call, &a)) return 1;
    return h3_done(call, h3_attention_hopper_fits(&a) ? "attention_wgmma_m64_kv64" : "attention_mma_m16n8k16_kv64");
}

int h3_attention_backward(h3_call *call)
{
    h3_attention a = {0};
    h3_check check = h3_begin(call);
    check_sizes(&check, call, &a);
    const int64_t key_rows = a.batch * a.heads * a.keys;
    h3_need_rows(&check, &call->out, "out", H3_BF16, query_rows(&a), a.head_dim);
    h3_need_rows(&check, &call->dout, "dout", H3_BF16, query_rows(&a), a.head_dim);
    h3_need_rows(&check, &call->saved[0], "saved[0]", H3_F32, a.batch * a.heads, a.queries);
    h3_may_rows(&check, &call->din[0], "din[0]", H3_BF16, query_rows(&a), a.head_dim);
    h3_may_rows(&check, &call->din[1], "din[1]", H3_BF16, key_rows, a.head_dim);
    h3_may_rows(&check, &call->din[2], "din[2]", H3_BF16, key_rows, a.head_dim);
    if (!check.problem) h3_need_workspace(&check, call, backward_bytes(&a));
    if (check.problem) return h3_refuse(call, &check);
    a.out = call->out.data;
    a.dout = call->dout.data;
    a.lse = call->saved[0].data;
    a.dq = h3_wanted(&call->din[0]);
    a.dk = h3_wanted(&call->din[1]);
    a.dv = h3_wanted(&call->din[2]);
    a.delta = a.statistics = call->workspace;
    if ((a.dq || a.dk || a.dv) && h3_attention_run_backward(call, &a)) return 1;
    return h3_done(call, h3_attention_hopper_backward_fits(&a) ? "attention_gradient_wgmma_m64" : "attention_gradient_mma_m16n8k16");
}
