/*
 * time_embedder: timestep [T] to sinusoid features [T,Q] (cosines, then sines), linear_1, SiLU, linear_2. All float32.
 */
#include "activation.h"
#include "gemm.h"
#include "operators.h"

/* -ln(10000) in float32, bits c1135d8e. */
static const float minus_log_period = -0x1.26bb1cp+3f;

typedef struct time_sizes {
    int64_t times, features, hidden, width; /* T, Q, Eh, E */
} time_sizes;

static int check_time(const h3_check *check, time_sizes *sizes)
{
    const h3_call *call = check->call;
    const h3_tensor *first = &call->param[0], *second = &call->param[2];
    if (h3_want_host(check) || h3_want(check, "timestep", &call->in[0], H3_F32, 1, H3_SHAPE(H3_ANY))) return 1;
    if (h3_want(check, "linear_1 weight", first, H3_F32, 2, H3_SHAPE(H3_ANY, H3_ANY))) return 1;
    *sizes = (time_sizes){.times = call->in[0].shape[0], .features = first->shape[1], .hidden = first->shape[0]};
    if (sizes->features % 2 != 0)
        return h3_refuse(check, "linear_1 weight has %lld columns; expected an even number", (long long)sizes->features);
    if (h3_want(check, "linear_1 bias", &call->param[1], H3_F32, 1, H3_SHAPE(sizes->hidden))) return 1;
    if (h3_want(check, "linear_2 weight", second, H3_F32, 2, H3_SHAPE(H3_ANY, sizes->hidden))) return 1;
    sizes->width = second->shape[0];
    return h3_want(check, "linear_2 bias", &call->param[3], H3_F32, 1, H3_SHAPE(sizes->width));
}

static int check_outputs(const h3_check *check, const time_sizes *sizes, const h3_tensor *rows, const char *name)
{
    if (h3_want(check, name, rows, H3_F32, 2, H3_SHAPE(sizes->times, sizes->width))) return 1;
    if (h3_want(check, "saved[0]", &check->call->saved[0], H3_F32, 2, H3_SHAPE(sizes->times, sizes->features))) return 1;
    return h3_want(check, "saved[1]", &check->call->saved[1], H3_F32, 2, H3_SHAPE(sizes->times, sizes->hidden));
}

static size_t forward_workspace(const time_sizes *sizes) { return h3_bytes(sizes->times * sizes->hidden, 4); }

static size_t backward_workspace(const time_sizes *sizes)
{
    int64_t widest = sizes->width > sizes->hidden ? sizes->width : sizes->hidden;
    return 2 * h3_bytes(sizes->times * sizes->hidden, 4) + h3_layer_workspace(sizes->times, widest, widest, 0);
}

int h3_time_embedder_plan(const h3_call *call, h3_call_plan *plan)
{
    time_sizes sizes;
    h3_check check = h3_check_plan(call);
    *plan = (h3_call_plan){0};
    if (check_time(&check, &sizes)) return 1;
    plan->forward_workspace = forward_workspace(&sizes);
    plan->backward_workspace = backward_workspace(&sizes);
    h3_declare_saved(plan, 0, H3_F32, 2, H3_SHAPE(sizes.times, sizes.features));
    h3_declare_saved(plan, 1, H3_F32, 2, H3_SHAPE(sizes.times, sizes.hidden));
    return 0;
}

static void sinusoid(const float *timestep, const time_sizes *sizes, float *features)
{
    int64_t half = sizes->features / 2;
    for (int64_t k = 0; k < half; k++) {
        float exponent = minus_log_period * (float)k;
        float frequency = expf(exponent / (float)half);
        for (int64_t t = 0; t < sizes->times; t++) {
            float angle = timestep[t] * frequency;
            features[t * sizes->features + k] = cosf(angle);
            features[t * sizes->features + half + k] = sinf(angle);
        }
    }
}

static h3_matrix matrix(void *data, int64_t rows, int64_t columns)
{
    return (h3_matrix){.data = data, .rows = rows, .columns = columns};
}

int h3_time_embedder_forward(h3_call *call)
{
    time_sizes sizes;
    h3_arena arena;
    h3_check check = h3_check_call(call);
    if (check_time(&check, &sizes) || check_outputs(&check, &sizes, &call->out, "out")) return 1;
    if (h3_open_workspace(&check, forward_workspace(&sizes), &arena)) return 1;
    float *z1 = call->saved[1].data, *a1 = h3_take(&arena, sizes.times * sizes.hidden, 4);
    sinusoid(call->in[0].data, &sizes, call->saved[0].data);
    h3_layer_forward(matrix(call->saved[0].data, sizes.times, sizes.features),
                     matrix(call->param[0].data, sizes.hidden, sizes.features), call->param[1].data,
                     matrix(z1, sizes.times, sizes.hidden), arena);
    for (int64_t i = 0; i < sizes.times * sizes.hidden; i++) a1[i] = h3_silu(z1[i]);
    h3_layer_forward(matrix(a1, sizes.times, sizes.hidden), matrix(call->param[2].data, sizes.width, sizes.hidden),
                     call->param[3].data, matrix(call->out.data, sizes.times, sizes.width), arena);
    h3_ran(call, h3_blas_kernel(), 0);
    return 0;
}

static int check_gradients(const h3_check *check, const time_sizes *sizes)
{
    static const char *const names[] = {"dparam[0]", "dparam[1]", "dparam[2]", "dparam[3]"};
    const h3_call *call = check->call;
    if (check_outputs(check, sizes, &call->dout, "dout")) return 1;
    for (int i = 0; i < 4; i++) {
        if (h3_want_optional(check, names[i], &call->dparam[i], H3_F32, call->param[i].rank, call->param[i].shape)) return 1;
    }
    return 0;
}

int h3_time_embedder_backward(h3_call *call)
{
    time_sizes sizes;
    h3_arena arena;
    h3_check check = h3_check_call(call);
    if (check_time(&check, &sizes) || check_gradients(&check, &sizes)) return 1;
    if (h3_open_workspace(&check, backward_workspace(&sizes), &arena)) return 1;
    int64_t count = sizes.times * sizes.hidden;
    float *z1 = call->saved[1].data, *a1 = h3_take(&arena, count, 4), *dz1 = h3_take(&arena, count, 4);
    h3_matrix up = matrix(call->dout.data, sizes.times, sizes.width), inner = matrix(dz1, sizes.times, sizes.hidden);
    for (int64_t i = 0; i < count; i++) a1[i] = h3_silu(z1[i]);
    if (call->dparam[2].data != NULL)
        h3_layer_weight_gradient(up, matrix(a1, sizes.times, sizes.hidden),
                                 matrix(call->dparam[2].data, sizes.width, sizes.hidden), arena);
    if (call->dparam[3].data != NULL) h3_layer_bias_gradient(up, call->dparam[3].data, arena);
    h3_layer_input_gradient(up, matrix(call->param[2].data, sizes.width, sizes.hidden), inner, arena);
    for (int64_t i = 0; i < count; i++) dz1[i] = h3_silu_gradient(dz1[i], z1[i]);
    if (call->dparam[0].data != NULL)
        h3_layer_weight_gradient(inner, matrix(call->saved[0].data, sizes.times, sizes.features),
                                 matrix(call->dparam[0].data, sizes.hidden, sizes.features), arena);
    if (call->dparam[1].data != NULL) h3_layer_bias_gradient(inner, call->dparam[1].data, arena);
    h3_ran(call, h3_blas_kernel(), 0);
    return 0;
}
