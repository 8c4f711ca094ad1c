/* Time embedding to modulation table and back; see conditioning.h. */
#include "conditioning.h"

#include "activation.h"

size_t h3_condition_workspace(int64_t times, int64_t inputs, int64_t outputs, int bf16)
{
    return 2 * h3_bytes(times * inputs, 4) + h3_layer_workspace(times, inputs, outputs, bf16);
}

/* u = round(silu(temb)), in workspace. */
static h3_matrix activate(const h3_condition *condition, h3_arena *arena)
{
    int64_t count = condition->times * condition->weight.columns;
    int bf16 = condition->weight.bf16;
    h3_matrix u = {
        .data = h3_take(arena, count, 4), .rows = condition->times, .columns = condition->weight.columns, .bf16 = bf16};
    for (int64_t i = 0; i < count; i++) h3_store(u.data, i, h3_silu(condition->temb[i]), bf16);
    return u;
}

void h3_condition_forward(const h3_condition *condition, const void *bias, void *z, h3_arena arena)
{
    h3_matrix u = activate(condition, &arena);
    h3_matrix out = {.data = z, .rows = condition->times, .columns = condition->weight.rows, .bf16 = u.bf16};
    h3_layer_forward(u, condition->weight, bias, out, arena);
}

void h3_condition_backward(const h3_condition *condition, void *dz, const h3_condition_gradients *gradients, h3_arena arena)
{
    h3_matrix u = activate(condition, &arena), weight = condition->weight, du = u;
    h3_matrix up = {.data = dz, .rows = condition->times, .columns = weight.rows, .bf16 = u.bf16};
    du.data = h3_take(&arena, u.rows * u.columns, 4);
    if (gradients->dweight != NULL) {
        h3_matrix dweight = weight;
        dweight.data = gradients->dweight;
        h3_layer_weight_gradient(up, u, dweight, arena);
    }
    if (gradients->dbias != NULL) h3_layer_bias_gradient(up, gradients->dbias, arena);
    if (gradients->dtemb == NULL) return;
    h3_layer_input_gradient(up, weight, du, arena);
    for (int64_t i = 0; i < du.rows * du.columns; i++)
        gradients->dtemb[i] = h3_silu_gradient(h3_load(du.data, i, du.bf16), condition->temb[i]);
}

size_t h3_segment_workspace(int64_t segments, int64_t width) { return h3_bytes(segments * width, sizeof(double)); }

H3_INLINE void sum_segments(h3_matrix rows, const int32_t *index, int64_t segments, void *out, int64_t stride, void *sums,
                            const int bf16)
{
    for (int64_t row = 0; row < rows.rows; row++) {
        const void *from = h3_at(rows.data, row * rows.columns, bf16);
        int64_t first = index[row] * rows.columns;
        for (int64_t j = 0; j < rows.columns; j++) h3_accumulate(sums, first + j, h3_load(from, j, bf16), bf16);
    }
    for (int64_t k = 0; k < segments; k++) {
        for (int64_t j = 0; j < rows.columns; j++)
            h3_store(out, k * stride + j, h3_total(sums, k * rows.columns + j, bf16), bf16);
    }
}

void h3_segment_sum(h3_matrix rows, const int32_t *index, int64_t segments, void *out, int64_t stride, h3_arena arena)
{
    void *sums = h3_take(&arena, segments * rows.columns, sizeof(double));
    memset(sums, 0, (size_t)(segments * rows.columns) * sizeof(double));
    if (rows.bf16) sum_segments(rows, index, segments, out, stride, sums, 1);
    else sum_segments(rows, index, segments, out, stride, sums, 0);
}
