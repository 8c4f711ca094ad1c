/*
 * time_embedder: timestep [T] to sinusoid features [T,Q] (cosines, then sines), linear_1, SiLU, linear_2. All float32.
 */
#include "device.h"
#include "operators.h"
#include "products.h"

struct time_sizes {
    int64_t times, features, hidden, width; /* T, Q, Eh, E */
};

struct time_workspace {
    void *products;
    float *a1, *dz1; /* dz1: backward only */
};

static int check_time(const h3_check &check, time_sizes &sizes)
{
    const h3_call *call = check.call;
    const h3_tensor &first = call->param[0], &second = call->param[2];
    if (h3_want_device(check) || h3_want(check, "timestep", call->in[0], H3_F32, {H3_ANY})) return 1;
    if (h3_want(check, "linear_1 weight", first, H3_F32, {H3_ANY, H3_ANY})) return 1;
    sizes = {call->in[0].shape[0], first.shape[1], first.shape[0], second.shape[0]};
    if (sizes.features % 2 != 0)
        return h3_refuse(check, "linear_1 weight has %lld columns; expected an even number", (long long)sizes.features);
    if (h3_want(check, "linear_1 bias", call->param[1], H3_F32, {sizes.hidden})) return 1;
    if (h3_want(check, "linear_2 weight", second, H3_F32, {H3_ANY, sizes.hidden})) return 1;
    return h3_want(check, "linear_2 bias", call->param[3], H3_F32, {sizes.width});
}

static int check_outputs(const h3_check &check, const time_sizes &sizes, const h3_tensor &rows, const char *name)
{
    if (h3_want(check, name, rows, H3_F32, {sizes.times, sizes.width})) return 1;
    if (h3_want(check, "saved[0]", check.call->saved[0], H3_F32, {sizes.times, sizes.features})) return 1;
    return h3_want(check, "saved[1]", check.call->saved[1], H3_F32, {sizes.times, sizes.hidden});
}

static time_workspace lay_out(const time_sizes &sizes, h3_arena &arena, bool forward)
{
    time_workspace w = {h3_take_products(arena), h3_take<float>(arena, sizes.times * sizes.hidden), nullptr};
    if (!forward) w.dz1 = h3_take<float>(arena, sizes.times * sizes.hidden);
    return w;
}

static size_t needed(const time_sizes &sizes, bool forward)
{
    h3_arena arena = {nullptr, 0};
    lay_out(sizes, arena, forward);
    return arena.used;
}

int h3_time_embedder_plan(const h3_call *call, h3_call_plan *plan)
{
    time_sizes sizes;
    h3_check check = h3_check_plan(call, plan);
    if (check_time(check, sizes)) return 1;
    plan->forward_workspace = needed(sizes, true);
    plan->backward_workspace = needed(sizes, false);
    h3_declare_saved(plan, 0, H3_F32, {sizes.times, sizes.features});
    h3_declare_saved(plan, 1, H3_F32, {sizes.times, sizes.hidden});
    return 0;
}

static __global__ void sinusoid(const float *timestep, float *features, int64_t times, int64_t pairs)
{
    const float minus_log_period = __uint_as_float(0xc1135d8eu); /* -ln(10000) in float32 */
    for (int64_t i = h3_first(); i < times * pairs; i += h3_stride()) {
        int64_t t = i / pairs, k = i % pairs;
        float frequency = expf(__fdiv_rn(__fmul_rn(minus_log_period, (float)k), (float)pairs));
        float angle = __fmul_rn(timestep[t], frequency);
        features[t * 2 * pairs + k] = cosf(angle);
        features[t * 2 * pairs + pairs + k] = sinf(angle);
    }
}

static __global__ void silu(const float *z, float *a, int64_t count)
{
    for (int64_t i = h3_first(); i < count; i += h3_stride()) a[i] = h3_silu(z[i]);
}

static __global__ void silu_gradient(float *dz, const float *z, int64_t count)
{
    for (int64_t i = h3_first(); i < count; i += h3_stride()) dz[i] = h3_silu_gradient(dz[i], z[i]);
}

/* The matrices of one call. */
struct time_matrices {
    h3_matrix features, z1, a1, dz1, first, second;
};

static time_matrices matrices_of(const h3_call *call, const time_sizes &sizes, const time_workspace &w)
{
    return {h3_matrix_of(call->saved[0], sizes.times, sizes.features),
            h3_matrix_of(call->saved[1], sizes.times, sizes.hidden),
            {w.a1, sizes.times, sizes.hidden, false},
            {w.dz1, sizes.times, sizes.hidden, false},
            h3_matrix_of(call->param[0], sizes.hidden, sizes.features),
            h3_matrix_of(call->param[2], sizes.width, sizes.hidden)};
}

int h3_time_embedder_forward(h3_call *call)
{
    time_sizes sizes;
    h3_arena arena;
    h3_products products;
    h3_check check = h3_check_call(call);
    if (check_time(check, sizes) || check_outputs(check, sizes, call->out, "out")) return 1;
    if (h3_open_workspace(check, needed(sizes, true), arena)) return 1;
    time_workspace w = lay_out(sizes, arena, true);
    time_matrices m = matrices_of(call, sizes, w);
    int64_t pairs = sizes.features / 2, count = sizes.times * sizes.hidden;
    if (h3_products_open(products, check, w.products)) return 1;
    if (h3_launch(check, "sinusoid", sinusoid, h3_blocks(sizes.times * pairs, H3_THREADS), H3_THREADS, (const float *)call->in[0].data,
                  (float *)m.features.data, sizes.times, pairs))
        return 1;
    if (h3_layer_forward(products, m.features, m.first, call->param[1].data, m.z1, nullptr)) return 1;
    if (h3_launch(check, "silu", silu, h3_blocks(count, H3_THREADS), H3_THREADS, (const float *)m.z1.data, w.a1, count)) return 1;
    if (h3_layer_forward(products, m.a1, m.second, call->param[3].data, h3_matrix_of(call->out, sizes.times, sizes.width), nullptr)) return 1;
    h3_products_ran(products, call, false);
    return 0;
}

static int check_gradients(const h3_check &check, const time_sizes &sizes)
{
    static const char *const names[] = {"dparam[0]", "dparam[1]", "dparam[2]", "dparam[3]"};
    const h3_call *call = check.call;
    if (check_outputs(check, sizes, call->dout, "dout")) return 1;
    for (int i = 0; i < 4; i++)
        if (h3_want_optional(check, names[i], call->dparam[i], H3_F32, call->param[i])) return 1;
    return 0;
}

/* One layer's weight and bias gradients, where wanted. */
static int layer_gradients(h3_products &products, h3_matrix up, h3_matrix x, const h3_tensor *dparam)
{
    if (dparam[0].data != nullptr && h3_layer_weight_gradient(products, up, x, h3_matrix_of(dparam[0], up.columns, x.columns))) return 1;
    return dparam[1].data != nullptr ? h3_layer_bias_gradient(*products.check, up, dparam[1].data) : 0;
}

int h3_time_embedder_backward(h3_call *call)
{
    time_sizes sizes;
    h3_arena arena;
    h3_products products;
    h3_check check = h3_check_call(call);
    if (check_time(check, sizes) || check_gradients(check, sizes)) return 1;
    if (h3_open_workspace(check, needed(sizes, false), arena)) return 1;
    time_workspace w = lay_out(sizes, arena, false);
    time_matrices m = matrices_of(call, sizes, w);
    h3_matrix up = h3_matrix_of(call->dout, sizes.times, sizes.width);
    int64_t count = sizes.times * sizes.hidden;
    const float *z1 = (const float *)m.z1.data;
    if (h3_products_open(products, check, w.products)) return 1;
    if (h3_launch(check, "silu", silu, h3_blocks(count, H3_THREADS), H3_THREADS, z1, w.a1, count)) return 1;
    if (layer_gradients(products, up, m.a1, &call->dparam[2])) return 1;
    if (h3_layer_input_gradient(products, up, m.second, m.dz1)) return 1;
    if (h3_launch(check, "silu gradient", silu_gradient, h3_blocks(count, H3_THREADS), H3_THREADS, w.dz1, z1, count)) return 1;
    if (layer_gradients(products, m.dz1, m.features, &call->dparam[0])) return 1;
    h3_products_ran(products, call, false);
    return 0;
}
