/* Rotary position embedding on three axes, the host's part; the formulas stand in rows.cu. */
#include "common.h"

static void check_sizes(h3_check *check, const h3_call *call, h3_rope *p)
{
    const h3_tensor *x = &call->in[0], *cosine = &call->in[1];
    h3_need(check, x, "x", H3_BF16);
    h3_need(check, cosine, "cos", H3_BF16);
    if (check->problem) return;
    h3_require(check, x->rank >= 3 && cosine->rank >= 2, x->rank >= 3 ? "cos" : "x", "has too few dimensions");
    if (check->problem) return;
    *p = (h3_rope){.heads = x->shape[x->rank - 2], .head_dim = h3_width_of(x), .angles = h3_width_of(cosine),
                   .cosine = cosine->data, .sine = call->in[2].data};
    h3_require(check, p->heads > 0, "x", "has no heads");
    h3_require(check, 2 * p->angles <= p->head_dim, "cos", "has more angles than half of head_dim");
    if (check->problem) return;
    p->rows = h3_rows_of(x) / p->heads;
    h3_need_rows(check, cosine, "cos", H3_BF16, p->rows, p->angles);
    h3_need_rows(check, &call->in[2], "sin", H3_BF16, p->rows, p->angles);
}

int h3_rope_plan(const h3_call *call, h3_call_plan *plan)
{
    h3_rope p;
    h3_check check = {0};
    check_sizes(&check, call, &p);
    if (check.problem) return 1;
    *plan = (h3_call_plan){0};
    return 0;
}

int h3_rope_forward(h3_call *call)
{
    h3_rope p = {0};
    h3_check check = h3_begin(call);
    check_sizes(&check, call, &p);
    h3_need_rows(&check, &call->out, "out", H3_BF16, p.rows * p.heads, p.head_dim);
    if (check.problem) return h3_refuse(call, &check);
    p.from = call->in[0].data;
    p.to = call->out.data;
    if (h3_rope_run(call, &p)) return 1;
    return h3_done(call, "rope");
}

int h3_rope_backward(h3_call *call)
{
    h3_rope p = {0};
    h3_check check = h3_begin(call);
    check_sizes(&check, call, &p);
    h3_need_rows(&check, &call->dout, "dout", H3_BF16, p.rows * p.heads, p.head_dim);
    h3_may_rows(&check, &call->din[0], "din[0]", H3_BF16, p.rows * p.heads, p.head_dim);
    if (check.problem) return h3_refuse(call, &check);
    p.from = call->dout.data;
    p.to = h3_wanted(&call->din[0]);
    p.transposed = true;
    if (p.to && h3_rope_run(call, &p)) return 1;
    return h3_done(call, "rope_gradient");
}
