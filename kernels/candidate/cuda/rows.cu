/*
 * The elementwise nodes: rotary embedding, gated residual, SwiGLU. Each thread serves eight neighbouring channels where rows
 * and addresses allow 16-byte accesses, else one; the arithmetic of an element is the same.
 */
#include "device.cuh"

namespace {

/* Rotary embedding: the first 2h channels of every head, h angles, turn in pairs (j, j + h); the rest passes through. `low` and
 * `high` are +1 or -1 on the sine's product: a sign is exact, so bf(-x s) = -bf(x s).
 *     forward   y[j] = bf(bf(x[j] C) + bf(-x[j+h] S))      y[j+h] = bf(bf(x[j+h] C) + bf(x[j] S))
 *     backward dx[j] = bf(bf(dy[j] C) + bf(dy[j+h] S))    dx[j+h] = bf(bf(dy[j+h] C) - bf(dy[j] S)) */
template <int WIDTH> __global__ void __launch_bounds__(H3_THREADS) rope_kernel(h3_rope p, int64_t turned, int64_t units)
{
    int64_t head, unit, row, ignored;
    h3_divide(h3_thread(), units, &head, &unit);
    if (head >= p.rows * p.heads) return;
    h3_divide(head, p.heads, &row, &ignored);
    const uint16_t *from = p.from + head * p.head_dim;
    uint16_t *to = p.to + head * p.head_dim;
    if (unit >= turned) {
        const int64_t at = 2 * p.angles + (unit - turned) * WIDTH;
        h3_store<WIDTH>(to + at, h3_load<WIDTH>(from + at));
        return;
    }
    const int64_t j = unit * WIDTH;
    const h3_lanes<WIDTH> a = h3_load<WIDTH>(from + j), b = h3_load<WIDTH>(from + p.angles + j);
    const h3_lanes<WIDTH> c = h3_load<WIDTH>(p.cosine + row * p.angles + j), s = h3_load<WIDTH>(p.sine + row * p.angles + j);
    const float low = p.transposed ? 1.0f : -1.0f, high = -low;
    h3_lanes<WIDTH> first, second;
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        first.v[i] = h3_round(a.v[i] * c.v[i]) + h3_round(low * b.v[i] * s.v[i]);
        second.v[i] = h3_round(b.v[i] * c.v[i]) + h3_round(high * a.v[i] * s.v[i]);
    }
    h3_store<WIDTH>(to + j, first);
    h3_store<WIDTH>(to + p.angles + j, second);
}

/* x1 = bf(x + bf(gate branch)), without a table bf(x + branch) */
template <int WIDTH> __global__ void __launch_bounds__(H3_THREADS) residual_kernel(h3_residual p, int64_t units)
{
    int64_t row, unit;
    h3_divide(h3_thread(), units, &row, &unit);
    if (row >= p.rows) return;
    const int64_t at = row * p.width + unit * WIDTH;
    const h3_lanes<WIDTH> x = h3_load<WIDTH>(p.x + at);
    h3_lanes<WIDTH> added = h3_load<WIDTH>(p.branch + at);
    if (p.gate) {
        const h3_lanes<WIDTH> gate = h3_load_or_nan<WIDTH>(h3_table_row(p.gate, p.row_index, row, p.table_rows, p.width), unit * WIDTH);
#pragma unroll
        for (int i = 0; i < WIDTH; i++) added.v[i] = h3_round(gate.v[i] * added.v[i]);
    }
#pragma unroll
    for (int i = 0; i < WIDTH; i++) added.v[i] = x.v[i] + added.v[i];
    h3_store<WIDTH>(p.out + at, added);
}

/* d_branch = bf(dout gate), without a table dout; the gate's row gradient is bf(dout branch) */
template <int WIDTH> __global__ void __launch_bounds__(H3_THREADS) residual_gradient_kernel(h3_residual p, int64_t units)
{
    int64_t row, unit;
    h3_divide(h3_thread(), units, &row, &unit);
    if (row >= p.rows) return;
    const int64_t at = row * p.width + unit * WIDTH;
    const h3_lanes<WIDTH> dout = h3_load<WIDTH>(p.dout + at);
    if (p.dgate) {
        h3_lanes<WIDTH> dgate = h3_load<WIDTH>(p.branch + at);
#pragma unroll
        for (int i = 0; i < WIDTH; i++) dgate.v[i] = dout.v[i] * dgate.v[i];
        h3_store<WIDTH>(p.dgate + at, dgate);
    }
    if (!p.dbranch) return;
    h3_lanes<WIDTH> dbranch = dout;
    if (p.gate) {
        const h3_lanes<WIDTH> gate = h3_load_or_nan<WIDTH>(h3_table_row(p.gate, p.row_index, row, p.table_rows, p.width), unit * WIDTH);
#pragma unroll
        for (int i = 0; i < WIDTH; i++) dbranch.v[i] = dout.v[i] * gate.v[i];
    }
    h3_store<WIDTH>(p.dbranch + at, dbranch);
}

/* act = bf(gate / (1 + exp(-gate))),  s = bf(value act) */
template <int WIDTH> __global__ void __launch_bounds__(H3_THREADS) swiglu_kernel(const uint16_t *in, uint16_t *out, int64_t rows, int64_t width)
{
    int64_t row, unit;
    h3_divide(h3_thread(), width / WIDTH, &row, &unit);
    if (row >= rows) return;
    const uint16_t *from = in + 2 * row * width + unit * WIDTH;
    h3_lanes<WIDTH> value = h3_load<WIDTH>(from);
    const h3_lanes<WIDTH> gate = h3_load<WIDTH>(from + width);
#pragma unroll
    for (int i = 0; i < WIDTH; i++) value.v[i] = value.v[i] * h3_round(h3_silu(gate.v[i]));
    h3_store<WIDTH>(out + row * width + unit * WIDTH, value);
}

/* dvalue = bf(ds act),  dact = bf(ds value),  sg = 1 / (1 + exp(-gate)),  dgate = bf((dact sg) (1 + gate (1 - sg))) */
template <int WIDTH> __global__ void __launch_bounds__(H3_THREADS)
    swiglu_gradient_kernel(const uint16_t *in, const uint16_t *dout, uint16_t *din, int64_t rows, int64_t width)
{
    int64_t row, unit;
    h3_divide(h3_thread(), width / WIDTH, &row, &unit);
    if (row >= rows) return;
    const int64_t at = 2 * row * width + unit * WIDTH;
    const h3_lanes<WIDTH> ds = h3_load<WIDTH>(dout + row * width + unit * WIDTH);
    h3_lanes<WIDTH> value = h3_load<WIDTH>(in + at), gate = h3_load<WIDTH>(in + at + width);
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        const float dact = h3_round(ds.v[i] * value.v[i]);
        value.v[i] = ds.v[i] * h3_round(h3_silu(gate.v[i]));
        gate.v[i] = h3_silu_gradient(dact, gate.v[i], h3_sigmoid(gate.v[i]));
    }
    h3_store<WIDTH>(din + at, value);
    h3_store<WIDTH>(din + at + width, gate);
}

bool eight_at_a_time(const h3_residual *p)
{
    const void *const memory[] = {p->x, p->branch, p->gate, p->out, p->dout, p->dbranch, p->dgate};
    bool aligned = p->width % 8 == 0;
    for (const void *area : memory) aligned = aligned && h3_aligned(area, 16);
    return aligned;
}

} // namespace

extern "C" int h3_rope_run(h3_call *call, const h3_rope *p)
{
    const bool eight = p->angles % 8 == 0 && p->head_dim % 8 == 0 && h3_aligned(p->from, 16) && h3_aligned(p->to, 16) &&
                       h3_aligned(p->cosine, 16) && h3_aligned(p->sine, 16);
    const int64_t width = eight ? 8 : 1, turned = p->angles / width, units = turned + (p->head_dim - 2 * p->angles) / width;
    if (p->rows == 0) return 0;
    const dim3 grid = h3_grid(p->rows * p->heads * units);
    return eight ? h3_launch(call, "rope", rope_kernel<8>, grid, H3_THREADS, 0, *p, turned, units)
                 : h3_launch(call, "rope_single", rope_kernel<1>, grid, H3_THREADS, 0, *p, turned, units);
}

extern "C" int h3_residual_run_forward(h3_call *call, const h3_residual *p)
{
    const int64_t units = eight_at_a_time(p) ? p->width / 8 : p->width;
    if (p->rows == 0) return 0;
    const dim3 grid = h3_grid(p->rows * units);
    return units < p->width ? h3_launch(call, "residual", residual_kernel<8>, grid, H3_THREADS, 0, *p, units)
                            : h3_launch(call, "residual_single", residual_kernel<1>, grid, H3_THREADS, 0, *p, units);
}

extern "C" int h3_residual_run_backward(h3_call *call, const h3_residual *p)
{
    const int64_t units = eight_at_a_time(p) ? p->width / 8 : p->width;
    if (p->rows == 0) return 0;
    const dim3 grid = h3_grid(p->rows * units);
    return units < p->width ? h3_launch(call, "residual_gradient", residual_gradient_kernel<8>, grid, H3_THREADS, 0, *p, units)
                            : h3_launch(call, "residual_gradient_single", residual_gradient_kernel<1>, grid, H3_THREADS, 0, *p, units);
}

extern "C" int h3_swiglu_run_forward(h3_call *call, const uint16_t *in, uint16_t *out, int64_t rows, int64_t width)
{
    const bool eight = width % 8 == 0 && h3_aligned(in, 16) && h3_aligned(out, 16);
    if (rows == 0) return 0;
    return eight ? h3_launch(call, "swiglu", swiglu_kernel<8>, h3_grid(rows * width / 8), H3_THREADS, 0, in, out, rows, width)
                 : h3_launch(call, "swiglu_single", swiglu_kernel<1>, h3_grid(rows * width), H3_THREADS, 0, in, out, rows, width);
}

extern "C" int h3_swiglu_run_backward(h3_call *call, const uint16_t *in, const uint16_t *dout, uint16_t *din, int64_t rows, int64_t width)
{
    const bool eight = width % 8 == 0 && h3_aligned(in, 16) && h3_aligned(dout, 16) && h3_aligned(din, 16);
    if (rows == 0) return 0;
    return eight ? h3_launch(call, "swiglu_gradient", swiglu_gradient_kernel<8>, h3_grid(rows * width / 8), H3_THREADS, 0, in, dout, din, rows, width)
                 : h3_launch(call, "swiglu_gradient_single", swiglu_gradient_kernel<1>, h3_grid(rows * width), H3_THREADS, 0, in, dout, din, rows, width);
}
