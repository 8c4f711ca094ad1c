/* Time embedding to modulation table and back; see conditioning.h. */
#include "conditioning.h"
#include "device.h"

h3_condition_workspace h3_take_condition(h3_arena &arena, int64_t times, int64_t inputs, int64_t outputs, bool bf16, bool forward)
{
    size_t bytes = (size_t)(times * inputs) * h3_size(bf16);
    h3_condition_workspace w = {h3_take_products(arena), h3_take_bytes(arena, bytes), nullptr, nullptr};
    if (forward) w.biased = h3_take_biased(arena, times, outputs, bf16);
    else w.du = h3_take_bytes(arena, bytes);
    return w;
}

template <bool Bf16> static __global__ void activate(const float *temb, void *u, int64_t count)
{
    for (int64_t i = h3_first(); i < count; i += h3_stride()) h3_store<Bf16>(u, i, h3_silu(temb[i]));
}

/* u = round(silu(temb)). */
static int make_u(h3_products &products, const h3_condition &condition, void *memory, h3_matrix &u)
{
    u = {memory, condition.times, condition.weight.columns, condition.weight.bf16};
    int64_t count = u.rows * u.columns;
    return h3_launch(*products.check, "silu", u.bf16 ? activate<true> : activate<false>, h3_blocks(count, H3_THREADS), H3_THREADS, condition.temb,
                     u.data, count);
}

int h3_condition_forward(h3_products &products, const h3_condition &condition, const void *bias, void *z, const h3_condition_workspace &workspace)
{
    h3_matrix u;
    if (make_u(products, condition, workspace.u, u)) return 1;
    return h3_layer_forward(products, u, condition.weight, bias, {z, condition.times, condition.weight.rows, u.bf16}, workspace.biased);
}

template <bool Bf16> static __global__ void time_gradient(const void *du, const float *temb, float *dtemb, int64_t count)
{
    for (int64_t i = h3_first(); i < count; i += h3_stride()) dtemb[i] = h3_silu_gradient(h3_load<Bf16>(du, i), temb[i]);
}

int h3_condition_backward(h3_products &products, const h3_condition &condition, void *dz, const h3_condition_gradients &gradients,
                          const h3_condition_workspace &workspace)
{
    h3_matrix u, weight = condition.weight, up = {dz, condition.times, weight.rows, weight.bf16};
    if (make_u(products, condition, workspace.u, u)) return 1;
    if (gradients.dweight != nullptr &&
        h3_layer_weight_gradient(products, up, u, {gradients.dweight, weight.rows, weight.columns, weight.bf16}))
        return 1;
    if (gradients.dbias != nullptr && h3_layer_bias_gradient(*products.check, up, gradients.dbias)) return 1;
    if (gradients.dtemb == nullptr) return 0;
    h3_matrix du = {workspace.du, u.rows, u.columns, u.bf16};
    int64_t count = u.rows * u.columns;
    if (h3_layer_input_gradient(products, up, weight, du)) return 1;
    return h3_launch(*products.check, "time gradient", u.bf16 ? time_gradient<true> : time_gradient<false>, h3_blocks(count, H3_THREADS),
                     H3_THREADS, du.data, condition.temb, gradients.dtemb, count);
}

/* A thread adds one column of one segment; eight rows are looked at ahead of their additions. */
template <bool Bf16>
static __global__ void segment_sum(const void *rows, const int32_t *index, int64_t count, int64_t width, int64_t segments, void *out, int64_t stride)
{
    enum { AHEAD = 8 };
    for (int64_t i = h3_first(); i < segments * width; i += h3_stride()) {
        int64_t segment = i / width, j = i % width;
        typename h3_sum_of<Bf16>::type sum = 0;
        for (int64_t row = 0; row < count; row += AHEAD) {
            float ahead[AHEAD];
            bool mine[AHEAD];
            for (int a = 0; a < AHEAD; a++) mine[a] = row + a < count && index[row + a] == segment;
            for (int a = 0; a < AHEAD; a++) ahead[a] = mine[a] ? h3_load<Bf16>(rows, (row + a) * width + j) : 0.0f;
            for (int a = 0; a < AHEAD; a++)
                if (mine[a]) sum += ahead[a];
        }
        h3_store<Bf16>(out, segment * stride + j, (float)sum);
    }
}

int h3_segment_sum(const h3_check &check, h3_matrix rows, const int32_t *index, int64_t segments, void *out, int64_t stride)
{
    enum { COLUMNS = 64 };
    return h3_launch(check, "segment sum", rows.bf16 ? segment_sum<true> : segment_sum<false>, h3_blocks(segments * rows.columns, COLUMNS), COLUMNS,
                     rows.data, index, rows.rows, rows.columns, segments, out, stride);
}
