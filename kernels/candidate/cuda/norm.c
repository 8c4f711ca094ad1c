/* RMS norms, the host's part: norm1 and norm2 (optionally modulated, rows of hidden_size) and q_norm, k_norm (rows of head_dim). */
#include "common.h"

static void check_sizes(h3_check *check, const h3_call *call, h3_norm *n)
{
    const h3_tensor *x = &call->in[0];
    h3_need(check, x, "x", H3_BF16);
    if (check->problem) return;
    *n = (h3_norm){.rows = h3_rows_of(x), .width = h3_width_of(x), .epsilon = call->epsilon, .x = x->data, .weight = call->param[0].data};
    h3_need_vector(check, &call->param[0], "weight", H3_BF16, n->width);
    if (!h3_present(&call->in[1])) return;
    n->table_rows = h3_need_table(check, &call->in[1], &call->in[2], n->rows, n->width);
    h3_require(check, call->chunk >= 0 && call->chunk + 1 < H3_ROW_GRADS, "chunk", "names no shift and scale of the table");
    if (check->problem || !check->with_data) return;
    n->shift = (const uint16_t *)call->in[1].data + call->chunk * n->width;
    n->scale = n->shift + n->width;
    n->row_index = call->in[2].data;
}

static int64_t partial_count(const h3_norm *n) { return h3_groups(n->rows, H3_NORM_BLOCK) * n->width; }

static size_t backward_bytes(const h3_norm *n)
{
    return (size_t)(h3_area_bytes(n->rows, sizeof(float)) + h3_area_bytes(partial_count(n), sizeof(float)));
}

int h3_norm_plan(const h3_call *call, h3_call_plan *plan)
{
    h3_norm n;
    h3_check check = {0};
    check_sizes(&check, call, &n);
    if (check.problem) return 1;
    *plan = (h3_call_plan){.backward_workspace = backward_bytes(&n)};
    return 0;
}

int h3_norm_forward(h3_call *call)
{
    h3_norm n = {0};
    h3_check check = h3_begin(call);
    check_sizes(&check, call, &n);
    h3_need_rows(&check, &call->out, "out", H3_BF16, n.rows, n.width);
    if (check.problem) return h3_refuse(call, &check);
    n.out = call->out.data;
    if (h3_norm_run_forward(call, &n)) return 1;
    return h3_done(call, n.scale ? "rmsnorm_modulated_v4x128" : "rmsnorm_v4x128");
}

int h3_norm_backward(h3_call *call)
{
    h3_norm n = {0};
    h3_check check = h3_begin(call);
    check_sizes(&check, call, &n);
    h3_need_rows(&check, &call->dout, "dout", H3_BF16, n.rows, n.width);
    h3_may_rows(&check, &call->din[0], "din[0]", H3_BF16, n.rows, n.width);
    h3_may_rows(&check, &call->dparam[0], "dparam[0]", H3_BF16, 1, n.width);
    h3_may_rows(&check, &call->row_grad[0], "row_grad[0]", H3_BF16, n.rows, n.width);
    h3_may_rows(&check, &call->row_grad[1], "row_grad[1]", H3_BF16, n.rows, n.width);
    if (!check.problem) h3_need_workspace(&check, call, backward_bytes(&n));
    if (check.problem) return h3_refuse(call, &check);
    char *workspace = call->workspace;
    n.dout = call->dout.data;
    n.dx = h3_wanted(&call->din[0]);
    n.dweight = h3_wanted(&call->dparam[0]);
    n.dshift = h3_wanted(&call->row_grad[0]);
    n.dscale = h3_wanted(&call->row_grad[1]);
    n.inverse = h3_take(&workspace, n.rows, sizeof(float));
    n.partial = h3_take(&workspace, partial_count(&n), sizeof(float));
    if (h3_norm_run_backward(call, &n)) return 1;
    return h3_done(call, n.scale ? "rmsnorm_modulated_gradient_v4x128" : "rmsnorm_gradient_v4x128");
}
