/* What attention's two directions share; see attention.h. */
#include "attention.h"

#include <math.h>

#include "operators.h"

static const int64_t memory_limit = ((int64_t)1 << 30) - ((int64_t)64 << 20); /* with the products' workspace below 1 GiB */

int h3_attention_check(const h3_check &check, h3_attention_sizes &sizes)
{
    const h3_call *call = check.call;
    const h3_tensor &q = call->in[0], &k = call->in[1];
    if (h3_want_device(check) || h3_want_activation(check, "q", q)) return 1;
    if (h3_want(check, "q", q, q.dtype, {H3_ANY, H3_ANY, H3_ANY, H3_ANY})) return 1;
    if (h3_want(check, "k", k, q.dtype, {q.shape[0], H3_ANY, q.shape[2], q.shape[3]})) return 1;
    sizes = {q.shape[0], q.shape[1], k.shape[1], q.shape[2], q.shape[3], q.dtype, q.dtype == H3_BF16};
    return h3_want_like(check, "v", call->in[2], q.dtype, k);
}

int h3_attention_check_outputs(const h3_check &check, const h3_attention_sizes &sizes)
{
    if (h3_want_like(check, "out", check.call->out, sizes.dtype, check.call->in[0])) return 1;
    return h3_want(check, "saved[0]", check.call->saved[0], H3_F32, {sizes.batch, sizes.heads, sizes.queries});
}

float h3_attention_alpha(const h3_attention_sizes &sizes) { return 1.0f / sqrtf((float)sizes.head_dim); }

int64_t h3_attention_heads(const h3_attention_sizes &sizes, int64_t each)
{
    int64_t fit = memory_limit / each;
    return fit < 1 ? 1 : fit < sizes.heads ? fit : sizes.heads;
}

h3_operand h3_attention_operand(const h3_tensor &tensor, const h3_attention_part &part, int64_t first, bool across)
{
    int64_t heads = tensor.shape[2], head_dim = tensor.shape[3];
    int64_t start = ((part.item * tensor.shape[1] + first) * heads + part.head) * head_dim;
    bool bf16 = tensor.dtype == H3_BF16;
    return {h3_at(tensor.data, start, bf16), bf16, heads * head_dim, head_dim, across};
}

static int plan_call(const h3_call *call, h3_call_plan *plan, bool fused)
{
    h3_attention_sizes sizes;
    h3_check check = h3_check_plan(call, plan);
    if (h3_attention_check(check, sizes)) return 1;
    check.planning = false; /* cuDNN looks at the GPU to say what it needs; without that GPU the call itself will say so */
    fused = fused && h3_want_device(check) == 0;
    plan->forward_workspace = h3_attention_forward_workspace(check, sizes, fused);
    plan->backward_workspace = h3_attention_backward_workspace(sizes);
    h3_declare_saved(plan, 0, H3_F32, {sizes.batch, sizes.heads, sizes.queries});
    return 0;
}

int h3_attention_plan(const h3_call *call, h3_call_plan *plan) { return plan_call(call, plan, true); }
int h3_attention_chunked_plan(const h3_call *call, h3_call_plan *plan) { return plan_call(call, plan, false); }
