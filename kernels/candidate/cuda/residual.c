/* Gated residual additions, the host's part; the formulas stand in rows.cu. */
#include "common.h"

static void check_sizes(h3_check *check, const h3_call *call, h3_residual *p)
{
    const h3_tensor *x = &call->in[0];
    h3_need(check, x, "x", H3_BF16);
    if (check->problem) return;
    *p = (h3_residual){.rows = h3_rows_of(x), .width = h3_width_of(x), .x = x->data, .branch = call->in[1].data};
    h3_need_rows(check, &call->in[1], "branch", H3_BF16, p->rows, p->width);
    if (!h3_present(&call->in[2])) return;
    p->table_rows = h3_need_table(check, &call->in[2], &call->in[3], p->rows, p->width);
    h3_require(check, call->chunk >= 0 && call->chunk < H3_ROW_GRADS, "chunk", "names no gate of the table");
    if (check->problem || !check->with_data) return;
    p->gate = (const uint16_t *)call->in[2].data + call->chunk * p->width;
    p->row_index = call->in[3].data;
}

int h3_residual_plan(const h3_call *call, h3_call_plan *plan)
{
    h3_residual p;
    h3_check check = {0};
    check_sizes(&check, call, &p);
    if (check.problem) return 1;
    *plan = (h3_call_plan){0};
    return 0;
}

int h3_residual_forward(h3_call *call)
{
    h3_residual p = {0};
    h3_check check = h3_begin(call);
    check_sizes(&check, call, &p);
    h3_need_rows(&check, &call->out, "out", H3_BF16, p.rows, p.width);
    if (check.problem) return h3_refuse(call, &check);
    p.out = call->out.data;
    if (h3_residual_run_forward(call, &p)) return 1;
    return h3_done(call, p.gate ? "residual_gated" : "residual");
}

int h3_residual_backward(h3_call *call)
{
    h3_residual p = {0};
    h3_check check = h3_begin(call);
    check_sizes(&check, call, &p);
    h3_need_rows(&check, &call->dout, "dout", H3_BF16, p.rows, p.width);
    h3_may_rows(&check, &call->din[1], "din[1]", H3_BF16, p.rows, p.width);
    h3_may_rows(&check, &call->row_grad[0], "row_grad[0]", H3_BF16, p.rows, p.width);
    if (check.problem) return h3_refuse(call, &check);
    p.dout = call->dout.data;
    p.dbranch = h3_wanted(&call->din[1]);
    p.dgate = p.gate ? h3_wanted(&call->row_grad[0]) : NULL;
    if ((p.dbranch || p.dgate) && h3_residual_run_backward(call, &p)) return 1;
    return h3_done(call, p.gate ? "residual_gated_gradient" : "residual_gradient");
}
