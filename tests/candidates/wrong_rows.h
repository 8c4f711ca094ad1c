/* Plain loops for the row-wise nodes: norms, rotary embedding, gated residuals, SwiGLU. */
#ifndef H3_TESTS_WRONG_ROWS_H
#define H3_TESTS_WRONG_ROWS_H

#include "mutation.h"

/* rmsnorm-v4x128-v1: 128 threads take groups of four, warps meet by halves, then (0 + 2) + (1 + 3). */
static float mean_square(const uint16_t *x, int64_t width, bool down)
{
    float thread[128] = {0.0f}, sum = 0.0f;
    for (int64_t j = 0; j < width; j++) {
        const float value = h3_bf16_to_f32(x[down ? width - 1 - j : j]);
        thread[j / 4 % 128] += value * value;
        sum = running(sum + value * value, j + 1, width);
    }
    for (int warp = 0; warp < 128; warp += 32)
        for (int reach = 16; reach > 0; reach /= 2)
            for (int i = 0; i < reach; i++) thread[warp + i] += thread[warp + i + reach];
    return (active == PARTIAL ? sum : (thread[0] + thread[64]) + (thread[32] + thread[96])) / (float)width;
}

/* A norm's operands for one row. */
typedef struct norm_row {
    const uint16_t *x, *weight, *shift, *scale; /* shift and scale NULL: unmodulated */
    int64_t width;
    float r;
} norm_row;

static norm_row norm_row_of(const h3_call *call, int64_t row)
{
    norm_row n = {.width = width_of(&call->in[0]), .weight = halves(&call->param[0])};
    const float epsilon = active == EPSILON ? 1e-3f : call->epsilon;
    n.x = halves(&call->in[0]) + row * n.width;
    n.r = 1.0f / sqrtf(mean_square(n.x, n.width, descends(row, rows_of(&call->in[0]))) + epsilon);
    if (call->in[1].rank == 0) return n;
    const uint16_t *chunk = halves(&call->in[1]) + (((const int32_t *)call->in[2].data)[row] * H3_ROW_GRADS + call->chunk) * n.width;
    n.shift = active == CHUNK ? chunk + n.width : chunk;
    n.scale = active == CHUNK ? chunk : chunk + n.width;
    return n;
}

static float normed(const norm_row *n, int64_t j)
{
    const float xh = n->r * h3_bf16_to_f32(n->x[j]);
    return h3_bf16_to_f32(n->weight[j]) * (active == EXTRA ? bf(xh) : xh);
}

static void norm_forward(const h3_call *call)
{
    uint16_t *out = call->out.data;
    for (int64_t row = 0; row < rows_of(&call->in[0]); row++) {
        const norm_row n = norm_row_of(call, row);
        for (int64_t j = 0; j < n.width; j++) {
            float value = normed(&n, j);
            if (n.scale != NULL) value = bf((active == FUSED ? value : bf(value)) * bf(1.0f + h3_bf16_to_f32(n.scale[j]))) + h3_bf16_to_f32(n.shift[j]);
            out[row * n.width + j] = result(value);
        }
    }
}

/* Gradient that reaches the norm's own output. */
static float dnorm(const norm_row *n, const uint16_t *dout, int64_t j)
{
    const float dm = h3_bf16_to_f32(dout[j]);
    return n->scale != NULL ? bf(dm * bf(1.0f + h3_bf16_to_f32(n->scale[j]))) : dm;
}

static void norm_row_gradients(const h3_call *call, const norm_row *n, int64_t row)
{
    uint16_t *dshift = wanted(&call->row_grad[0]), *dscale = wanted(&call->row_grad[1]);
    const uint16_t *dout = halves(&call->dout) + row * n->width;
    for (int64_t j = 0; dshift != NULL && dscale != NULL && j < n->width; j++) {
        const uint16_t shift = dout[j], scale = result(h3_bf16_to_f32(dout[j]) * bf(normed(n, j)));
        dshift[row * n->width + j] = active == CHUNK ? scale : shift;
        dscale[row * n->width + j] = active == CHUNK ? shift : active == DROPPED ? 0 : scale;
    }
}

static void norm_backward(const h3_call *call)
{
    const int64_t width = width_of(&call->in[0]), rows = rows_of(&call->in[0]);
    float *sums = calloc((size_t)width, sizeof *sums);
    uint16_t *dx = call->din[0].data, *dweight = wanted(&call->dparam[0]);
    for (int64_t row = 0; row < rows; row++) {
        const norm_row n = norm_row_of(call, row);
        const uint16_t *dout = halves(&call->dout) + row * width;
        float dot = 0.0f;
        for (int64_t j = 0; j < width; j++) {
            const float dn = dnorm(&n, dout, j), xh = n.r * h3_bf16_to_f32(n.x[j]);
            dot = running(dot + h3_bf16_to_f32(n.weight[j]) * dn * xh, j + 1, width);
            if (active != DROPPED || row + 1 < rows) sums[j] += dn * xh;
        }
        for (int64_t j = 0; j < width; j++) {
            const float g = h3_bf16_to_f32(n.weight[j]) * dnorm(&n, dout, j), xh = n.r * h3_bf16_to_f32(n.x[j]);
            dx[row * width + j] = result(n.r * (g - xh * (dot / (float)width)));
        }
        norm_row_gradients(call, &n, row);
    }
    for (int64_t j = 0; dweight != NULL && j < width; j++) dweight[j] = result(sums[j]);
    free(sums);
}

/* Half-split rotary of the first 2 h channels of a head; `turn` -1 is the backward's other way round. */
static void rope_head(uint16_t *out, const uint16_t *in, const uint16_t *cosines, const uint16_t *sines, int64_t half, int64_t width, float turn)
{
    for (int64_t j = 0; j < width; j++) {
        if (j >= 2 * half) {
            out[j] = active == SCALE ? result(h3_bf16_to_f32(in[j])) : in[j];
            continue;
        }
        const int64_t angle = active == CHANNEL ? (j + 1) % half : j % half;
        const float sine = (j < half ? -turn : turn) * h3_bf16_to_f32(sines[angle]);
        const float a = h3_bf16_to_f32(in[j]) * h3_bf16_to_f32(cosines[angle]), b = h3_bf16_to_f32(in[j < half ? j + half : j - half]) * sine;
        out[j] = active == FUSED ? result(a + b) : result(bf(a) + bf(b));
    }
}

static void rope(const h3_call *call, const h3_tensor *from, const h3_tensor *to, float turn)
{
    const int64_t half = width_of(&call->in[1]), heads = from->shape[1], width = from->shape[2];
    for (int64_t i = 0; i < from->shape[0] * heads; i++)
        rope_head((uint16_t *)to->data + i * width, halves(from) + i * width, halves(&call->in[1]) + i / heads * half, halves(&call->in[2]) + i / heads * half,
                  half, width, active == SIGN ? -turn : turn);
}

static const uint16_t *gate_of(const h3_call *call, int64_t row, int64_t width)
{
    const int64_t chunk = active == CHUNK ? 7 - call->chunk : call->chunk; /* 2 and 5 exchanged */
    return halves(&call->in[2]) + (((const int32_t *)call->in[3].data)[row] * H3_ROW_GRADS + chunk) * width;
}

static void residual_forward(const h3_call *call)
{
    const int64_t width = width_of(&call->in[0]);
    uint16_t *out = call->out.data;
    for (int64_t i = 0; i < h3_tensor_count(&call->in[0]); i++) {
        const float x = h3_bf16_to_f32(halves(&call->in[0])[i]), branch = h3_bf16_to_f32(halves(&call->in[1])[i]);
        const float gated = call->in[2].rank > 0 ? h3_bf16_to_f32(gate_of(call, i / width, width)[i % width]) * branch : branch;
        out[i] = result(x + (active == FUSED ? gated : bf(gated)));
    }
}

static void residual_backward(const h3_call *call)
{
    const int64_t width = width_of(&call->in[0]), count = h3_tensor_count(&call->in[0]);
    uint16_t *dbranch = call->din[1].data, *dgate = wanted(&call->row_grad[0]);
    for (int64_t i = 0; i < count; i++) {
        const float dx = h3_bf16_to_f32(halves(&call->dout)[i]);
        dbranch[i] = call->in[2].rank > 0 ? result(dx * h3_bf16_to_f32(gate_of(call, i / width, width)[i % width])) : halves(&call->dout)[i];
        if (dgate != NULL) dgate[i] = active == DROPPED && i / width == count / width - 1 ? 0 : result(dx * h3_bf16_to_f32(halves(&call->in[1])[i]));
    }
}

static void swiglu_forward(const h3_call *call)
{
    const int64_t width = width_of(&call->out);
    uint16_t *out = call->out.data;
    for (int64_t i = 0; i < h3_tensor_count(&call->out); i++) {
        const uint16_t *row = halves(&call->in[0]) + i / width * 2 * width;
        const int64_t value_at = active == CHANNEL ? i % width + width : i % width, gate_at = active == CHANNEL ? i % width : i % width + width;
        const float gate = h3_bf16_to_f32(row[gate_at]), act = gate * sigmoid(gate);
        out[i] = result(h3_bf16_to_f32(row[value_at]) * (active == FUSED ? act : bf(active == EXTRA ? gate * bf(sigmoid(gate)) : act)));
    }
}

static void swiglu_backward(const h3_call *call)
{
    const int64_t width = width_of(&call->dout);
    uint16_t *din = call->din[0].data;
    for (int64_t i = 0; i < h3_tensor_count(&call->dout); i++) {
        const int64_t at = i / width * 2 * width + i % width;
        const float value = h3_bf16_to_f32(halves(&call->in[0])[at]), gate = h3_bf16_to_f32(halves(&call->in[0])[at + width]);
        const float ds = h3_bf16_to_f32(halves(&call->dout)[i]), sg = active == EXTRA ? bf(sigmoid(gate)) : sigmoid(gate);
        din[active == CHANNEL ? at + width : at] = result(ds * bf(gate * sg));
        din[active == CHANNEL ? at : at + width] = result(bf(ds * value) * sg * (1.0f + gate * (1.0f - sg)));
    }
}

#endif
