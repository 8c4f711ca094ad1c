/*
 * adaln_projection: u = bf(silu(temb)), table = bf(u W^T + b), temb [T, E] F32, W [18H, E], table [3T, 6, H].
 *
 * Backward starts from the six row gradients R_c [R, H] of the chunks c:
 *     table gradient [k, c, :] = bf(FP32 sum of R_c[r, :] over the rows r with row_index[r] = k, ascending); unused rows 0
 *     dZ = the table gradient as [T, 18H];  dW = bf(dZ^T u),  db = bf(sum of dZ over t, ascending),  du = bf(dZ W)
 *     dtemb = (du sg) (1 + temb (1 - sg)),  sg = 1 / (1 + exp(-temb)),  in FP32
 * The products follow gemm-f32-kasc-fma-v1.
 */
#include "common.h"
#include "vector.h"

#define CHUNKS H3_ROW_GRADS
#define COLUMNS_PER_TASK INT64_C(64)

typedef struct adaln_sizes {
    int64_t timesteps, embedding, hidden, outputs, rows; /* outputs = 18 hidden */
} adaln_sizes;

/* The areas of the workspace; a BF16 area takes half of its floats. */
typedef struct adaln_areas {
    uint16_t *u, *dz, *du;
    float *table;
    void *product;
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
    h3_need_vector(check, &call->param[1], "bias", H3_BF16, s->outputs);
}

static size_t forward_bytes(const adaln_sizes *s)
{
    return (size_t)h3_float_bytes(s->timesteps * s->embedding) + h3_gemm_workspace(s->timesteps, s->outputs, s->embedding);
}

static size_t backward_bytes(const adaln_sizes *s)
{
    const size_t input = h3_gemm_workspace(s->timesteps, s->embedding, s->outputs);
    const size_t weight = h3_gemm_workspace(s->outputs, s->embedding, s->timesteps);
    const int64_t areas = 2 * h3_float_bytes(s->timesteps * s->embedding) + 2 * h3_float_bytes(s->timesteps * s->outputs);
    return (size_t)areas + (input > weight ? input : weight);
}

static adaln_areas backward_areas(const adaln_sizes *s, char *workspace)
{
    adaln_areas a;
    a.u = (void *)h3_take(&workspace, s->timesteps * s->embedding);
    a.du = (void *)h3_take(&workspace, s->timesteps * s->embedding);
    a.dz = (void *)h3_take(&workspace, s->timesteps * s->outputs);
    a.table = h3_take(&workspace, s->timesteps * s->outputs);
    a.product = workspace;
    return a;
}

int h3_adaln_plan(const h3_call *call, h3_call_plan *plan)
{
    adaln_sizes s;
    h3_check check = {0};
    check_sizes(&check, call, &s);
    if (check.problem) return 1;
    *plan = (h3_call_plan){.forward_workspace = forward_bytes(&s), .backward_workspace = backward_bytes(&s)};
    return 0;
}

static void activate(uint16_t *u, const float *temb, int64_t count)
{
    for (int64_t i = 0; i < count; i += 8) h3_store8(u + i, h3_silu8(h3_load8_f32(temb + i, count - i)), count - i);
}

int h3_adaln_forward(h3_call *call)
{
    adaln_sizes s = {0};
    h3_check check = h3_begin(call);
    check_sizes(&check, call, &s);
    h3_need_rows(&check, &call->out, "table", H3_BF16, 3 * s.timesteps * CHUNKS, s.hidden);
    if (!check.problem) h3_need_workspace(&check, call, forward_bytes(&s));
    if (check.problem) return h3_refuse(call, &check);
    char *area = call->workspace;
    uint16_t *u = (void *)h3_take(&area, s.timesteps * s.embedding);
    activate(u, call->in[0].data, s.timesteps * s.embedding);
    const h3_gemm product = {.rows = s.timesteps, .columns = s.outputs, .depth = s.embedding, .left = u,
                             .right = call->param[0].data, .bias = call->param[1].data, .out = call->out.data};
    h3_gemm_run(&product, area);
    return h3_done(call, "adaln_projection_avx2_6x16");
}

/* Columns [column, column + width) of one chunk: the segment sums, rows ascending. */
static void sum_segments(float *table, const h3_call *call, const adaln_sizes *s, int64_t chunk, int64_t column, int64_t width)
{
    const int32_t *index = call->row_index.data;
    const uint16_t *gradient = (const uint16_t *)call->row_grad[chunk].data + column;
    float *segments = table + chunk * s->hidden + column;
    const int64_t step = CHUNKS * s->hidden;
    for (int64_t k = 0; k < 3 * s->timesteps; k++) memset(segments + k * step, 0, (size_t)width * sizeof *segments);
    for (int64_t r = 0; r < s->rows; r++) {
        float *sum = segments + index[r] * step;
        const uint16_t *row = gradient + r * s->hidden;
        for (int64_t j = 0; j < width; j += 8) {
            const __m256 added = _mm256_add_ps(h3_load8_f32(sum + j, width - j), h3_load8(row + j, width - j));
            h3_store8_f32(sum + j, added, width - j);
        }
    }
}

static void table_gradient(const h3_call *call, const adaln_sizes *s, const adaln_areas *a)
{
    const int64_t tasks = (s->hidden + COLUMNS_PER_TASK - 1) / COLUMNS_PER_TASK, count = s->timesteps * s->outputs;
#pragma omp parallel for schedule(static) if (CHUNKS * s->rows * s->hidden > H3_PARALLEL_ELEMENTS)
    for (int64_t t = 0; t < CHUNKS * tasks; t++) {
        const int64_t column = t % tasks * COLUMNS_PER_TASK;
        sum_segments(a->table, call, s, t / tasks, column, h3_smaller(COLUMNS_PER_TASK, s->hidden - column));
    }
    for (int64_t i = 0; i < count; i += 8) h3_store8(a->dz + i, h3_load8_f32(a->table + i, count - i), count - i);
}

static void bias_gradient(uint16_t *dbias, const uint16_t *dz, const adaln_sizes *s)
{
    for (int64_t o = 0; o < s->outputs; o += 8) {
        __m256 sum = _mm256_setzero_ps();
        for (int64_t t = 0; t < s->timesteps; t++) sum = _mm256_add_ps(sum, h3_load8(dz + t * s->outputs + o, s->outputs - o));
        h3_store8(dbias + o, sum, s->outputs - o);
    }
}

static void time_gradient(float *dtemb, const uint16_t *du, const float *temb, int64_t count)
{
    for (int64_t i = 0; i < count; i += 8) {
        const __m256 x = h3_load8_f32(temb + i, count - i);
        h3_store8_f32(dtemb + i, h3_silu_gradient8(h3_load8(du + i, count - i), x, h3_sigmoid8(x)), count - i);
    }
}

static void check_backward(h3_check *check, const h3_call *call, adaln_sizes *s)
{
    check_sizes(check, call, s);
    h3_need(check, &call->row_grad[0], "row_grad[0]", H3_BF16);
    if (check->problem) return;
    s->rows = h3_rows_of(&call->row_grad[0]);
    for (int c = 0; c < CHUNKS; c++) h3_need_rows(check, &call->row_grad[c], "row_grad", H3_BF16, s->rows, s->hidden);
    h3_need_index(check, &call->row_index, "row_index", s->rows, 3 * s->timesteps);
    h3_may_rows(check, &call->dtable, "dtable", H3_BF16, 3 * s->timesteps * CHUNKS, s->hidden);
    h3_may_rows(check, &call->din[0], "din[0]", H3_F32, s->timesteps, s->embedding);
    h3_may_rows(check, &call->dparam[0], "dparam[0]", H3_BF16, s->outputs, s->embedding);
    h3_may_rows(check, &call->dparam[1], "dparam[1]", H3_BF16, 1, s->outputs);
    if (!check->problem) h3_need_workspace(check, call, backward_bytes(s));
}

int h3_adaln_backward(h3_call *call)
{
    adaln_sizes s = {0};
    h3_check check = h3_begin(call);
    check_backward(&check, call, &s);
    if (check.problem) return h3_refuse(call, &check);
    const int64_t embedded = s.timesteps * s.embedding;
    const adaln_areas a = backward_areas(&s, call->workspace);
    uint16_t *dtable = h3_wanted(&call->dtable), *dweight = h3_wanted(&call->dparam[0]), *dbias = h3_wanted(&call->dparam[1]);
    float *dtemb = h3_wanted(&call->din[0]);
    table_gradient(call, &s, &a);
    if (dtable) memcpy(dtable, a.dz, (size_t)(s.timesteps * s.outputs) * sizeof *dtable);
    if (dbias) bias_gradient(dbias, a.dz, &s);
    if (dweight) {
        activate(a.u, call->in[0].data, embedded);
        const h3_gemm weight = {.rows = s.outputs, .columns = s.embedding, .depth = s.timesteps, .left = a.dz, .left_along = true,
                                .right = a.u, .right_along = true, .out = dweight};
        h3_gemm_run(&weight, a.product);
    }
    if (dtemb) {
        const h3_gemm input = {.rows = s.timesteps, .columns = s.embedding, .depth = s.outputs, .left = a.dz,
                               .right = call->param[0].data, .right_along = true, .out = a.du};
        h3_gemm_run(&input, a.product);
        time_gradient(dtemb, a.du, call->in[0].data, embedded);
    }
    return h3_done(call, "adaln_projection_gradient_avx2_6x16");
}
