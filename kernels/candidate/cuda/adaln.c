/*
 * adaln_projection, the host's part: u = bf(silu(temb)), table = bf(u W^T + b), temb [T, E] F32, W [18H, E], table [3T, 6, H].
 *
 * Backward starts from the six row gradients R_c [R, H] of the chunks c:
 *     table gradient [k, c, :] = bf(FP32 sum of R_c[r, :] over the rows r with row_index[r] = k) (order: adaln.cu); unused rows 0
 *     dZ = the table gradient as [T, 18H];  dW = bf(dZ^T u),  db = bf(sum of dZ over t, ascending),  du = bf(dZ W)
 *     dtemb = (du sg) (1 + temb (1 - sg)),  sg = 1 / (1 + exp(-temb)),  in FP32
 * table and dW follow gemm-tc-k16-ascending-v1. du contracts over 18H: chunks of 2048 are such chains, and their sums are added
 * in ascending order in FP32, which fills the machine without depending on its size.
 */
#include "common.h"

#define CHUNKS H3_ROW_GRADS

typedef struct adaln_sizes {
    int64_t timesteps, embedding, hidden, outputs, rows; /* outputs = 18 hidden */
} adaln_sizes;

/* The areas of the backward's workspace. */
typedef struct adaln_areas {
    uint16_t *u, *dz;
    float *table, *du;
} adaln_areas;

static void check_sizes(h3_check *check, const h3_call *call, adaln_sizes *s)
{
    const h3_tensor *temb = &call->in[0], *weight = &call->param[0];
    h3_need(check, temb, "temb", H3_F32);
    h3_need(check, weight, "weight", H3_BF16);
    if (check->problem) return;
    h3_require(check, weight->rank == 2 && weight->shape[0] > 0 && weight->shape[0] % (3 * CHUNKS) == 0, "weight",
               "is not [18 * hidden_size, time_embed_dim]");
    h3_require(check, h3_width_of(temb) == h3_width_of(weight), "temb", "is not as wide as the weight");
    if (check->problem) return;
    *s = (adaln_sizes){.timesteps = h3_rows_of(temb), .embedding = h3_width_of(temb), .outputs = weight->shape[0]};
    s->hidden = s->outputs / (3 * CHUNKS);
    h3_require(check, h3_groups(s->outputs, H3_GEMM_CHUNK) < 65536, "weight", "has too many outputs for one grid");
    h3_need_vector(check, &call->param[1], "bias", H3_BF16, s->outputs);
}

static size_t forward_bytes(const adaln_sizes *s) { return (size_t)h3_area_bytes(s->timesteps * s->embedding, sizeof(uint16_t)); }

static int64_t table_partials(const adaln_sizes *s) { return h3_groups(s->rows, H3_TABLE_BLOCK) * s->timesteps * s->outputs; }

static int64_t du_partials(const adaln_sizes *s) { return h3_groups(s->outputs, H3_GEMM_CHUNK) * s->timesteps * s->embedding; }

static size_t backward_bytes(const adaln_sizes *s)
{
    return (size_t)(h3_area_bytes(s->timesteps * s->embedding, sizeof(uint16_t)) + h3_area_bytes(s->timesteps * s->outputs, sizeof(uint16_t)) +
                    h3_area_bytes(table_partials(s), sizeof(float)) + h3_area_bytes(du_partials(s), sizeof(float)));
}

static adaln_areas backward_areas(const adaln_sizes *s, char *workspace)
{
    adaln_areas a;
    a.u = h3_take(&workspace, s->timesteps * s->embedding, sizeof(uint16_t));
    a.dz = h3_take(&workspace, s->timesteps * s->outputs, sizeof(uint16_t));
    a.table = h3_take(&workspace, table_partials(s), sizeof(float));
    a.du = h3_take(&workspace, du_partials(s), sizeof(float));
    return a;
}

int h3_adaln_plan(const h3_call *call, h3_call_plan *plan)
{
    adaln_sizes s;
    h3_check check = {0};
    check_sizes(&check, call, &s);
    if (check.problem) return 1;
    if (h3_present(&call->row_grad[0])) s.rows = h3_rows_of(&call->row_grad[0]);
    *plan = (h3_call_plan){.forward_workspace = forward_bytes(&s), .backward_workspace = backward_bytes(&s)};
    return 0;
}

int h3_adaln_forward(h3_call *call)
{
    adaln_sizes s = {0};
    h3_check check = h3_begin(call);
    check_sizes(&check, call, &s);
    h3_need_rows(&check, &call->out, "out", H3_BF16, 3 * s.timesteps * CHUNKS, s.hidden);
    if (!check.problem) h3_need_workspace(&check, call, forward_bytes(&s));
    if (check.problem) return h3_refuse(call, &check);
    uint16_t *u = call->workspace;
    const h3_gemm product = {.rows = s.timesteps, .columns = s.outputs, .depth = s.embedding, .left = u, .right = call->param[0].data,
                             .bias = call->param[1].data, .out = call->out.data};
    if (h3_adaln_run_activate(call, call->in[0].data, u, s.timesteps * s.embedding)) return 1;
    if (h3_gemm_run(call, &product)) return 1;
    return h3_done(call, "adaln_projection_mma_m16n8k16");
}

static void check_backward(h3_check *check, const h3_call *call, adaln_sizes *s)
{
    check_sizes(check, call, s);
    h3_need(check, &call->row_grad[0], "row_grad[0]", H3_BF16);
    if (check->problem) return;
    s->rows = h3_rows_of(&call->row_grad[0]);
    for (int c = 0; c < CHUNKS; c++) h3_need_rows(check, &call->row_grad[c], "row_grad", H3_BF16, s->rows, s->hidden);
    h3_need_index(check, &call->row_index, "row_index", s->rows);
    h3_may_rows(check, &call->dtable, "dtable", H3_BF16, 3 * s->timesteps * CHUNKS, s->hidden);
    h3_may_rows(check, &call->din[0], "din[0]", H3_F32, s->timesteps, s->embedding);
    h3_may_rows(check, &call->dparam[0], "dparam[0]", H3_BF16, s->outputs, s->embedding);
    h3_may_rows(check, &call->dparam[1], "dparam[1]", H3_BF16, 1, s->outputs);
    if (!check->problem) h3_need_workspace(check, call, backward_bytes(s));
}

static int weight_gradient(h3_call *call, const adaln_sizes *s, const adaln_areas *a, uint16_t *dweight)
{
    const h3_gemm product = {.rows = s->outputs, .columns = s->embedding, .depth = s->timesteps, .left = a->dz, .left_along = true,
                             .right = a->u, .right_along = true, .out = dweight};
    if (h3_adaln_run_activate(call, call->in[0].data, a->u, s->timesteps * s->embedding)) return 1;
    return h3_gemm_run(call, &product);
}

static int time_gradient(h3_call *call, const adaln_sizes *s, const adaln_areas *a, float *dtemb)
{
    const h3_gemm product = {.rows = s->timesteps, .columns = s->embedding, .depth = s->outputs, .left = a->dz,
                             .right = call->param[0].data, .right_along = true, .partial = a->du};
    if (h3_gemm_run(call, &product)) return 1;
    return h3_adaln_run_time(call, a->du, call->in[0].data, dtemb, h3_groups(s->outputs, H3_GEMM_CHUNK), s->timesteps * s->embedding);
}

int h3_adaln_backward(h3_call *call)
{
    adaln_sizes s = {0};
    h3_check check = h3_begin(call);
    check_backward(&check, call, &s);
    if (check.problem) return h3_refuse(call, &check);
    const adaln_areas a = backward_areas(&s, call->workspace);
    uint16_t *dtable = h3_wanted(&call->dtable), *dweight = h3_wanted(&call->dparam[0]), *dbias = h3_wanted(&call->dparam[1]);
    float *dtemb = h3_wanted(&call->din[0]);
    if (h3_adaln_run_table(call, a.table, a.dz, dtable, s.rows, s.hidden, 3 * s.timesteps)) return 1;
    if (dbias && h3_adaln_run_bias(call, a.dz, dbias, s.timesteps, s.outputs)) return 1;
    if (dweight && weight_gradient(call, &s, &a, dweight)) return 1;
    if (dtemb && time_gradient(call, &s, &a, dtemb)) return 1;
    return h3_done(call, "adaln_projection_gradient_mma_m16n8k16");
}
