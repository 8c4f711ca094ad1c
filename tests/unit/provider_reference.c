/* The nodes in double precision, written down from their formulas, and a small problem for each. */
#include "provider_problem.h"

#include <math.h>

static double silu(double x) { return x / (1 + exp(-x)); }

/* Table element of packed row r. */
static double gathered(const problem *p, int table, int64_t r, int64_t chunk, int64_t j)
{
    const int64_t *shape = p->call.in[table].shape;
    int64_t row = ((const int32_t *)p->call.in[table + 1].data)[r];
    return p->in_value[table][(row * shape[1] + chunk) * shape[2] + j];
}

static void norm_row(const problem *p, const double *x, int64_t width, double *y)
{
    double sum = 0;
    for (int64_t j = 0; j < width; j++) sum += x[j] * x[j];
    double r = 1 / sqrt(sum / (double)width + (double)p->call.epsilon);
    for (int64_t j = 0; j < width; j++) y[j] = p->param_value[0][j] * r * x[j];
}

static void block_norm(problem *p)
{
    int64_t rows = p->call.in[0].shape[0], width = p->call.in[0].shape[1];
    for (int64_t r = 0; r < rows; r++) {
        double *y = p->out_value + r * width;
        norm_row(p, p->in_value[0] + r * width, width, y);
        if (p->call.in[1].rank == 0) continue;
        for (int64_t j = 0; j < width; j++)
            y[j] = y[j] * (1 + gathered(p, 1, r, p->call.chunk + 1, j)) + gathered(p, 1, r, p->call.chunk, j);
    }
}

static void head_norm(problem *p)
{
    const int64_t *shape = p->call.in[0].shape;
    for (int64_t r = 0; r < shape[0] * shape[1]; r++)
        norm_row(p, p->in_value[0] + r * shape[2], shape[2], p->out_value + r * shape[2]);
}

static void matrix(const double *x, const double *w, const double *bias, int64_t rows, int64_t inputs, int64_t outputs, double *y)
{
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t o = 0; o < outputs; o++) {
            double sum = bias != NULL ? bias[o] : 0;
            for (int64_t i = 0; i < inputs; i++) sum += x[r * inputs + i] * w[o * inputs + i];
            y[r * outputs + o] = sum;
        }
    }
}

static void linear(problem *p)
{
    matrix(p->in_value[0], p->param_value[0], p->param_value[1], p->call.in[0].shape[0], p->call.in[0].shape[1],
           p->call.param[0].shape[0], p->out_value);
}

static void rope(problem *p)
{
    const int64_t *shape = p->call.in[0].shape;
    int64_t half = p->call.in[1].shape[1];
    for (int64_t row = 0; row < shape[0] * shape[1]; row++) {
        const double *x = p->in_value[0] + row * shape[2], *c = p->in_value[1] + row / shape[1] * half,
                     *s = p->in_value[2] + row / shape[1] * half;
        double *y = p->out_value + row * shape[2];
        for (int64_t j = 0; j < shape[2]; j++) y[j] = x[j];
        for (int64_t j = 0; j < half; j++) {
            y[j] = x[j] * c[j] - x[j + half] * s[j];
            y[j + half] = x[j + half] * c[j] + x[j] * s[j];
        }
    }
}

static void attention(problem *p)
{
    const int64_t *q = p->call.in[0].shape;
    int64_t keys = p->call.in[1].shape[1], heads = q[2], width = q[3];
    double weight[64];
    assert_true(keys <= 64);
    for (int64_t n = 0; n < q[0] * q[1] * heads; n++) {
        int64_t item = n / (q[1] * heads), head = n % heads;
        const double *query = p->in_value[0] + n * width;
        double total = 0, *o = p->out_value + n * width;
        for (int64_t k = 0; k < keys; k++) {
            const double *key = p->in_value[1] + ((item * keys + k) * heads + head) * width;
            double score = 0;
            for (int64_t d = 0; d < width; d++) score += query[d] * key[d];
            total += weight[k] = exp(score / sqrt((double)width));
        }
        for (int64_t d = 0; d < width; d++) {
            o[d] = 0;
            for (int64_t k = 0; k < keys; k++)
                o[d] += weight[k] / total * p->in_value[2][((item * keys + k) * heads + head) * width + d];
        }
    }
}

static void residual(problem *p)
{
    int64_t width = p->call.in[0].shape[1];
    for (int64_t i = 0; i < h3_tensor_count(&p->call.out); i++) {
        double gate = p->call.in[2].rank == 0 ? 1 : gathered(p, 2, i / width, p->call.chunk, i % width);
        p->out_value[i] = p->in_value[0][i] + gate * p->in_value[1][i];
    }
}

static void swiglu(problem *p)
{
    int64_t width = p->call.out.shape[1];
    for (int64_t i = 0; i < h3_tensor_count(&p->call.out); i++) {
        const double *row = p->in_value[0] + i / width * 2 * width;
        p->out_value[i] = row[i % width] * silu(row[width + i % width]);
    }
}

/* silu(temb) W^T + b with temb in[input], W and b from param[first] on. */
static void condition(problem *p, int input, int first, double *z)
{
    const h3_tensor *temb = &p->call.in[input];
    double u[64];
    assert_true(h3_tensor_count(temb) <= 64);
    for (int64_t i = 0; i < h3_tensor_count(temb); i++) u[i] = silu(p->in_value[input][i]);
    matrix(u, p->param_value[first], p->param_value[first + 1], temb->shape[0], temb->shape[1], p->call.param[first].shape[0], z);
}

static void adaln_projection(problem *p) { condition(p, 0, 0, p->out_value); }

static void norm_out(problem *p)
{
    int64_t width = p->call.in[0].shape[1];
    double z[512];
    assert_true(p->call.in[1].shape[0] * 2 * width <= 512);
    condition(p, 1, 1, z);
    for (int64_t r = 0; r < p->call.in[0].shape[0]; r++) {
        const double *shift = z + ((const int32_t *)p->call.in[2].data)[r] * 2 * width;
        double *y = p->out_value + r * width;
        norm_row(p, p->in_value[0] + r * width, width, y);
        for (int64_t j = 0; j < width; j++) y[j] = y[j] * (1 + shift[width + j]) + shift[j];
    }
}

/* Angles are float32 in every precision of the model; what follows is double here. */
static void time_embedder(problem *p)
{
    int64_t times = p->call.in[0].shape[0], features = p->call.param[0].shape[1], hidden = p->call.param[0].shape[0],
            half = features / 2;
    double feature[64], a1[64];
    assert_true(times * features <= 64 && times * hidden <= 64);
    for (int64_t i = 0; i < times * half; i++) {
        float exponent = -9.21034049987793f * (float)(i % half);
        float angle = (float)p->in_value[0][i / half] * (float)exp((double)(exponent / (float)half));
        feature[i / half * features + i % half] = cos((double)angle);
        feature[i / half * features + half + i % half] = sin((double)angle);
    }
    matrix(feature, p->param_value[0], p->param_value[1], times, features, hidden, a1);
    for (int64_t i = 0; i < times * hidden; i++) a1[i] = silu(a1[i]);
    matrix(a1, p->param_value[2], p->param_value[3], times, hidden, p->call.param[2].shape[0], p->out_value);
}

#define ROWS(kind, r, c) {kind, 2, {r, c}, 0}
#define VECTOR(kind, n) {kind, 1, {n}, 0}
#define TABLE(rows, width) {'a', 3, {rows, 6, width}, 0}
#define INDEX(n, limit) {'i', 1, {n}, limit}
#define HEADS(r, n, d) {'a', 3, {r, n, d}, 0}
#define ITEMS(b, s, n, d) {'a', 4, {b, s, n, d}, 0}
#define LINEAR(node, r, i, o) \
    {node, .in = {ROWS('a', r, i)}, .param = {ROWS('w', o, i)}, .out = ROWS('a', r, o), .gradient_in = {1}, .reference = linear}

const problem_spec provider_problems[] = {
    {"adaln_projection", .in = {ROWS('f', 2, 10)}, .param = {ROWS('w', 18 * 5, 10), VECTOR('a', 18 * 5)}, .out = TABLE(6, 5),
     .gradient_in = {1}, .row_grads = -1, .reference = adaln_projection},
    {"norm1", .chunk = 0, .in = {ROWS('a', 7, 22), TABLE(6, 22), INDEX(7, 6)}, .param = {VECTOR('n', 22)},
     .out = ROWS('a', 7, 22), .gradient_in = {1}, .row_grads = 2, .table = 1, .reference = block_norm},
    LINEAR("q_proj", 7, 24, 32),
    LINEAR("k_proj", 1, 24, 16),
    LINEAR("v_proj", 33, 5, 3),
    {"q_norm", .in = {HEADS(5, 3, 16)}, .param = {VECTOR('n', 16)}, .out = HEADS(5, 3, 16), .gradient_in = {1},
     .reference = head_norm},
    {"k_norm", .in = {HEADS(3, 2, 10)}, .param = {VECTOR('n', 10)}, .out = HEADS(3, 2, 10), .gradient_in = {1},
     .reference = head_norm},
    {"rope_q", .in = {HEADS(5, 2, 16), ROWS('a', 5, 6), ROWS('a', 5, 6)}, .out = HEADS(5, 2, 16), .gradient_in = {1},
     .reference = rope},
    {"rope_k", .in = {HEADS(3, 1, 12), ROWS('a', 3, 6), ROWS('a', 3, 6)}, .out = HEADS(3, 1, 12), .gradient_in = {1},
     .reference = rope},
    {"attention", .in = {ITEMS(2, 3, 2, 8), ITEMS(2, 5, 2, 8), ITEMS(2, 5, 2, 8)}, .out = ITEMS(2, 3, 2, 8),
     .gradient_in = {1, 1, 1}, .reference = attention},
    LINEAR("o_proj", 7, 32, 24),
    {"residual_attn", .chunk = 2, .in = {ROWS('a', 7, 12), ROWS('a', 7, 12), TABLE(3, 12), INDEX(7, 3)}, .out = ROWS('a', 7, 12),
     .gradient_in = {0, 1}, .row_grads = 1, .table = 2, .reference = residual},
    {"norm2", .chunk = 3, .in = {ROWS('a', 6, 24), TABLE(9, 24), INDEX(6, 9)}, .param = {VECTOR('n', 24)},
     .out = ROWS('a', 6, 24), .gradient_in = {1}, .row_grads = 2, .table = 1, .reference = block_norm},
    {"norm2", .in = {ROWS('a', 4, 13)}, .param = {VECTOR('n', 13)}, .out = ROWS('a', 4, 13), .gradient_in = {1},
     .reference = block_norm},
    LINEAR("ffn_gate_up", 7, 24, 64),
    {"swiglu", .in = {ROWS('a', 5, 18)}, .out = ROWS('a', 5, 9), .gradient_in = {1}, .reference = swiglu},
    LINEAR("ffn_down", 7, 32, 24),
    {"residual_mlp", .chunk = 5, .in = {ROWS('a', 7, 9), ROWS('a', 7, 9), TABLE(6, 9), INDEX(7, 6)}, .out = ROWS('a', 7, 9),
     .gradient_in = {0, 1}, .row_grads = 1, .table = 2, .reference = residual},
    {"residual_mlp", .in = {ROWS('a', 4, 9), ROWS('a', 4, 9)}, .out = ROWS('a', 4, 9), .gradient_in = {0, 1},
     .reference = residual},
    {"linear_bias", .in = {ROWS('a', 6, 12)}, .param = {ROWS('w', 10, 12), VECTOR('a', 10)}, .out = ROWS('a', 6, 10),
     .gradient_in = {1}, .reference = linear},
    {"time_embedder", .in = {VECTOR('f', 3)}, .param = {ROWS('w', 12, 8), VECTOR('a', 12), ROWS('w', 6, 12), VECTOR('a', 6)},
     .out = ROWS('f', 3, 6), .fp32_only = 1, .reference = time_embedder},
    {"norm_out", .in = {ROWS('a', 7, 22), ROWS('f', 3, 10), INDEX(7, 3)},
     .param = {VECTOR('n', 22), ROWS('w', 44, 10), VECTOR('a', 44)}, .out = ROWS('a', 7, 22), .gradient_in = {1, 1},
     .reference = norm_out},
};
const int provider_problem_count = (int)(sizeof provider_problems / sizeof provider_problems[0]);
