/* A stranger's operator: SwiGLU for the gate to qualify, written against include/h3/operator.h alone.
 *
 *   cc -std=c11 -O2 -ffp-contract=off -fPIC -shared -Iinclude docs/example/my_swiglu.c -o build/libmine.so -lm
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "h3/operator.h"

/* out [R,F] from in[0] [R,2F] = [value | gate], both BF16. */
static int check(const h3_call *call)
{
    const h3_tensor *gu = &call->in[0], *out = &call->out;
    if (call->size != sizeof *call || call->device != H3_DEVICE_CPU) return 1;
    if (gu->dtype != H3_BF16 || out->dtype != H3_BF16 || gu->rank != 2 || out->rank != 2) return 1;
    return gu->shape[0] != out->shape[0] || gu->shape[1] != 2 * out->shape[1];
}

static int plan(const h3_call *call, h3_call_plan *needs)
{
    memset(needs, 0, sizeof *needs); /* no workspace, nothing saved */
    return check(call);
}

static int refuse(h3_call *call)
{
    snprintf(call->message, sizeof call->message, "my_swiglu needs BF16 tensors [R,2F] and [R,F] on the CPU");
    return 1;
}

static float silu(float x) { return x / (1.0f + expf(-x)); }

static int forward(h3_call *call)
{
    if (check(call) != 0) return refuse(call);
    int64_t rows = call->out.shape[0], width = call->out.shape[1];
    const uint16_t *gu = call->in[0].data;
    uint16_t *out = call->out.data;
    for (int64_t row = 0; row < rows; row++) {
        const uint16_t *value = gu + row * 2 * width, *gate = value + width;
        for (int64_t j = 0; j < width; j++) {
            uint16_t act = h3_f32_to_bf16(silu(h3_bf16_to_f32(gate[j])));
            out[row * width + j] = h3_f32_to_bf16(h3_bf16_to_f32(value[j]) * h3_bf16_to_f32(act));
        }
    }
    snprintf(call->report.kernel, sizeof call->report.kernel, "my_swiglu scalar");
    return 0;
}

static int backward(h3_call *call)
{
    if (check(call) != 0) return refuse(call);
    int64_t rows = call->out.shape[0], width = call->out.shape[1];
    const uint16_t *gu = call->in[0].data, *dout = call->dout.data;
    uint16_t *din = call->din[0].data;
    for (int64_t row = 0; row < rows && din != NULL; row++) {
        const uint16_t *value = gu + row * 2 * width, *gate = value + width, *ds = dout + row * width;
        for (int64_t j = 0; j < width; j++) {
            float g = h3_bf16_to_f32(gate[j]), sigmoid = 1.0f / (1.0f + expf(-g)), upstream = h3_bf16_to_f32(ds[j]);
            uint16_t act = h3_f32_to_bf16(silu(g));
            float dact = h3_bf16_to_f32(h3_f32_to_bf16(upstream * h3_bf16_to_f32(value[j])));
            din[row * 2 * width + j] = h3_f32_to_bf16(upstream * h3_bf16_to_f32(act));
            din[row * 2 * width + width + j] = h3_f32_to_bf16(dact * sigmoid * (1.0f + g * (1.0f - sigmoid)));
        }
    }
    snprintf(call->report.kernel, sizeof call->report.kernel, "my_swiglu scalar");
    return 0;
}

H3_EXPORT const h3_operator_library *h3_operator_library_get(void);
H3_EXPORT const h3_operator_library *h3_operator_library_get(void)
{
    static const h3_operator operators[] = {{
        .node = "swiglu", .name = "my_swiglu", .row = "h3_swiglu", .label = "row", .contract = "elementwise-bf16-v1",
        .promises = H3_PROMISE_REPEAT | H3_PROMISE_BATCH_ROW, .plan = plan, .forward = forward, .backward = backward,
    }};
    static const h3_operator_library library = {
        .interface_version = H3_OPERATOR_INTERFACE, .size = sizeof library, .name = "mine", .revision = "example", .compiler = __VERSION__,
        .flags = "-O2 -ffp-contract=off", .architectures = "generic", .build = H3_BUILD_THIS, .device = H3_DEVICE_CPU,
        .operator_count = 1, .operators = operators,
    };
    return &library;
}
