/* SwiGLU on rows [value | gate], the host's part; the formulas stand in rows.cu. */
#include "common.h"

typedef struct swiglu_sizes {
    int64_t rows, width;
} swiglu_sizes;

static void check_sizes(h3_check *check, const h3_call *call, swiglu_sizes *s)
{
    h3_need(check, &call->in[0], "gu", H3_BF16);
    if (check->problem) return;
    h3_require(check, h3_width_of(&call->in[0]) % 2 == 0, "gu", "has an odd last dimension, it holds value and gate");
    *s = (swiglu_sizes){h3_rows_of(&call->in[0]), h3_width_of(&call->in[0]) / 2};
}

int h3_swiglu_plan(const h3_call *call, h3_call_plan *plan)
{
    swiglu_sizes s;
    h3_check check = {0};
    check_sizes(&check, call, &s);
    if (check.problem) return 1;
    *plan = (h3_call_plan){0};
    return 0;
}

int h3_swiglu_forward(h3_call *call)
{
    swiglu_sizes s = {0};
    h3_check check = h3_begin(call);
    check_sizes(&check, call, &s);
    h3_need_rows(&check, &call->out, "out", H3_BF16, s.rows, s.width);
    if (check.problem) return h3_refuse(call, &check);
    if (h3_swiglu_run_forward(call, call->in[0].data, call->out.data, s.rows, s.width)) return 1;
    return h3_done(call, "swiglu");
}

int h3_swiglu_backward(h3_call *call)
{
    swiglu_sizes s = {0};
    h3_check check = h3_begin(call);
    check_sizes(&check, call, &s);
    h3_need_rows(&check, &call->dout, "dout", H3_BF16, s.rows, s.width);
    h3_may_rows(&check, &call->din[0], "din[0]", H3_BF16, s.rows, 2 * s.width);
    if (check.problem) return h3_refuse(call, &check);
    uint16_t *din = h3_wanted(&call->din[0]);
    if (din && h3_swiglu_run_backward(call, call->in[0].data, call->dout.data, din, s.rows, s.width)) return 1;
    return h3_done(call, "swiglu_gradient");
}
