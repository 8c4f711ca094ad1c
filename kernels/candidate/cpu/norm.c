/*
 * RMS norms: norm1 and norm2 (optionally modulated, rows of hidden_size) and q_norm, k_norm (rows of head_dim).
 *
 * Contract rmsnorm-v4x128-v1. The squares of a row are summed by 128 virtual threads: thread t adds those of the
 * four-element groups t, t + 128, ... one by one, starting at 0; threads of a warp of 32 meet as (i) + (i + 16), + 8,
 * + 4, + 2, + 1; warps as (0 + 2) + (1 + 3). Then divide by the width, add epsilon, r = 1 / sqrt.
 *     y = bf(w (r x)),  modulated  m = bf(bf(y bf(1 + scale)) + shift)
 *
 * Backward: r, xh = r x and y again; dn = bf(dm bf(1 + scale)) or dm itself; g = w dn; c = (sum g xh) / width with
 * eight lanes (lane l takes columns l, l + 8, ... by fused steps) that meet as + 4, + 2, + 1; dx = bf(r (g - xh c)).
 * The weight's gradient sums dn xh over rows by fused steps within blocks of 32 rows counted from row 0, and the
 * blocks' sums in ascending order.
 */
#include <math.h>

#include "common.h"
#include "vector.h"

#define ROWS_PER_BLOCK INT64_C(32)
#define VIRTUAL_THREADS 128

typedef struct norm_sizes {
    int64_t rows, width, table_rows;
    bool modulated;
} norm_sizes;

/* One row's operands of the modulation; NULL without a table. */
typedef struct modulation {
    const uint16_t *shift, *scale;
} modulation;

static void check_sizes(h3_check *check, const h3_call *call, norm_sizes *s)
{
    const h3_tensor *x = &call->in[0];
    h3_need(check, x, "x", H3_BF16);
    if (check->problem) return;
    *s = (norm_sizes){.rows = h3_rows_of(x), .width = h3_width_of(x), .modulated = h3_present(&call->in[1])};
    h3_need_vector(check, &call->param[0], "weight", H3_BF16, s->width);
    if (!s->modulated) return;
    s->table_rows = h3_need_table(check, &call->in[1], &call->in[2], s->rows, s->width);
    h3_require(check, call->chunk >= 0 && call->chunk + 1 < H3_ROW_GRADS, "chunk", "names no shift and scale of the table");
}

static int64_t block_count(const norm_sizes *s) { return (s->rows + ROWS_PER_BLOCK - 1) / ROWS_PER_BLOCK; }

static int64_t partial_step(const norm_sizes *s) { return h3_round_up(s->width, 16); }

static size_t backward_bytes(const norm_sizes *s) { return (size_t)h3_float_bytes(block_count(s) * partial_step(s)); }

int h3_norm_plan(const h3_call *call, h3_call_plan *plan)
{
    norm_sizes s;
    h3_check check = {0};
    check_sizes(&check, call, &s);
    if (check.problem) return 1;
    *plan = (h3_call_plan){.backward_workspace = backward_bytes(&s)};
    return 0;
}

/* Adds value * value of 32 elements, eight groups, to eight threads' sums. The sums of threads 8i .. 8i + 7 lie in the
 * order 0 1 4 5 2 3 6 7, the one that the shuffles give: lane sums below undo it. */
static inline __m256 add_squares32(__m256 sums, const uint16_t *x)
{
    const __m256 low = _mm256_loadu_ps((const float *)(const void *)x);
    const __m256 high = _mm256_loadu_ps((const float *)(const void *)(x + 16));
    const __m256i first = _mm256_castps_si256(_mm256_shuffle_ps(low, high, 0x88));  /* elements 0, 1 of each group */
    const __m256i second = _mm256_castps_si256(_mm256_shuffle_ps(low, high, 0xdd)); /* elements 2, 3 */
    const __m256i odd = _mm256_set1_epi32((int)0xffff0000u);
    const __m256 e[4] = {_mm256_castsi256_ps(_mm256_slli_epi32(first, 16)), _mm256_castsi256_ps(_mm256_and_si256(first, odd)),
                         _mm256_castsi256_ps(_mm256_slli_epi32(second, 16)), _mm256_castsi256_ps(_mm256_and_si256(second, odd))};
    for (int i = 0; i < 4; i++) sums = _mm256_add_ps(sums, _mm256_mul_ps(e[i], e[i]));
    return sums;
}

/* Sum of one warp's 32 threads in shuffle-down order. */
static float warp_sum(const float *threads)
{
    static const int place[8] = {0, 1, 4, 5, 2, 3, 6, 7};
    float lanes[8];
    const __m256 sum16a = _mm256_add_ps(_mm256_loadu_ps(threads), _mm256_loadu_ps(threads + 16));
    const __m256 sum16b = _mm256_add_ps(_mm256_loadu_ps(threads + 8), _mm256_loadu_ps(threads + 24));
    _mm256_storeu_ps(lanes, _mm256_add_ps(sum16a, sum16b));
    float four[4];
    for (int i = 0; i < 4; i++) four[i] = lanes[place[i]] + lanes[place[i + 4]];
    return (four[0] + four[2]) + (four[1] + four[3]);
}

/* 1 / sqrt(mean of squares + epsilon). */
static float inverse_rms(const uint16_t *x, int64_t width, float epsilon)
{
    static const int place[8] = {0, 1, 4, 5, 2, 3, 6, 7};
    float threads[VIRTUAL_THREADS] = {0};
    int64_t j = 0;
    for (; j + 32 <= width; j += 32) {
        float *eight = threads + j / 4 % VIRTUAL_THREADS;
        _mm256_storeu_ps(eight, add_squares32(_mm256_loadu_ps(eight), x + j));
    }
    for (; j < width; j++) {
        const int64_t thread = j / 4 % VIRTUAL_THREADS;
        const float value = h3_bf16_to_f32(x[j]);
        threads[thread / 8 * 8 + place[thread % 8]] += value * value;
    }
    const float even = warp_sum(threads) + warp_sum(threads + 64);
    const float odd = warp_sum(threads + 32) + warp_sum(threads + 96);
    const float mean = (even + odd) / (float)width;
    return 1.0f / sqrtf(mean + epsilon);
}

static modulation row_modulation(const h3_call *call, const norm_sizes *s, int64_t row)
{
    if (!s->modulated) return (modulation){0};
    const int32_t *index = call->in[2].data;
    const uint16_t *table = call->in[1].data;
    const uint16_t *shift = table + ((int64_t)index[row] * H3_ROW_GRADS + call->chunk) * s->width;
    return (modulation){shift, shift + s->width};
}

static inline __m256 one_plus(const uint16_t *scale, int64_t count)
{
    return h3_round8(_mm256_add_ps(_mm256_set1_ps(1.0f), h3_load8(scale, count)));
}

static void forward_row(const h3_call *call, const norm_sizes *s, int64_t row)
{
    const uint16_t *x = (const uint16_t *)call->in[0].data + row * s->width, *weight = call->param[0].data;
    uint16_t *out = (uint16_t *)call->out.data + row * s->width;
    const modulation m = row_modulation(call, s, row);
    const __m256 r = _mm256_set1_ps(inverse_rms(x, s->width, call->epsilon));
    for (int64_t j = 0; j < s->width; j += 8) {
        const int64_t count = s->width - j;
        __m256 y = _mm256_mul_ps(h3_load8(weight + j, count), _mm256_mul_ps(r, h3_load8(x + j, count)));
        if (s->modulated) {
            const __m256 scaled = h3_round8(_mm256_mul_ps(h3_round8(y), one_plus(m.scale + j, count)));
            y = _mm256_add_ps(scaled, h3_load8(m.shift + j, count));
        }
        h3_store8(out + j, y, count);
    }
}

int h3_norm_forward(h3_call *call)
{
    norm_sizes s = {0};
    h3_check check = h3_begin(call);
    check_sizes(&check, call, &s);
    h3_need_rows(&check, &call->out, "out", H3_BF16, s.rows, s.width);
    if (check.problem) return h3_refuse(call, &check);
#pragma omp parallel for schedule(static) if (s.rows * s.width > H3_PARALLEL_ELEMENTS)
    for (int64_t row = 0; row < s.rows; row++) forward_row(call, &s, row);
    return h3_done(call, s.modulated ? "rmsnorm_modulated_avx2" : "rmsnorm_avx2");
}

/* dn of eight columns: the gradient that reaches the norm's own output. */
static inline __m256 norm_gradient(const uint16_t *dout, const modulation *m, int64_t j, int64_t count)
{
    const __m256 dm = h3_load8(dout + j, count);
    return m->scale ? h3_round8(_mm256_mul_ps(dm, one_plus(m->scale + j, count))) : dm;
}

/* Gradient rows of one packed row; adds its dn xh to `partial` unless that is NULL. */
static void backward_row(const h3_call *call, const norm_sizes *s, int64_t row, float *partial)
{
    const int64_t start = row * s->width;
    const uint16_t *x = (const uint16_t *)call->in[0].data + start, *weight = call->param[0].data;
    const uint16_t *dout = (const uint16_t *)call->dout.data + start;
    uint16_t *dx = h3_wanted(&call->din[0]), *dshift = h3_wanted(&call->row_grad[0]), *dscale = h3_wanted(&call->row_grad[1]);
    const modulation m = row_modulation(call, s, row);
    const __m256 r = _mm256_set1_ps(inverse_rms(x, s->width, call->epsilon));
    __m256 dot = _mm256_setzero_ps();
    for (int64_t j = 0; j < s->width; j += 8) {
        const int64_t count = s->width - j;
        const __m256 w = h3_load8(weight + j, count), xh = _mm256_mul_ps(r, h3_load8(x + j, count));
        const __m256 dn = norm_gradient(dout, &m, j, count);
        dot = _mm256_fmadd_ps(_mm256_mul_ps(w, dn), xh, dot);
        if (partial) _mm256_storeu_ps(partial + j, _mm256_fmadd_ps(dn, xh, _mm256_loadu_ps(partial + j)));
        if (dscale) {
            const __m256 y = h3_round8(_mm256_mul_ps(w, xh));
            h3_store8(dscale + start + j, _mm256_mul_ps(h3_load8(dout + j, count), y), count);
        }
    }
    if (dshift) memcpy(dshift + start, dout, (size_t)s->width * sizeof *dout);
    if (!dx) return;
    const __m256 c = _mm256_set1_ps(h3_sum8(dot) / (float)s->width);
    for (int64_t j = 0; j < s->width; j += 8) {
        const int64_t count = s->width - j;
        const __m256 g = _mm256_mul_ps(h3_load8(weight + j, count), norm_gradient(dout, &m, j, count));
        const __m256 xh = _mm256_mul_ps(r, h3_load8(x + j, count));
        h3_store8(dx + start + j, _mm256_mul_ps(r, _mm256_sub_ps(g, _mm256_mul_ps(xh, c))), count);
    }
}

/* dw = bf(sum of the blocks' sums, ascending). */
static void sum_blocks(uint16_t *dweight, const float *partial, const norm_sizes *s)
{
    for (int64_t j = 0; j < s->width; j += 8) {
        __m256 sum = _mm256_setzero_ps();
        for (int64_t b = 0; b < block_count(s); b++) sum = _mm256_add_ps(sum, _mm256_loadu_ps(partial + b * partial_step(s) + j));
        h3_store8(dweight + j, sum, s->width - j);
    }
}

int h3_norm_backward(h3_call *call)
{
    norm_sizes s = {0};
    h3_check check = h3_begin(call);
    check_sizes(&check, call, &s);
    h3_need_rows(&check, &call->dout, "dout", H3_BF16, s.rows, s.width);
    h3_may_rows(&check, &call->din[0], "din[0]", H3_BF16, s.rows, s.width);
    h3_may_rows(&check, &call->dparam[0], "dparam[0]", H3_BF16, 1, s.width);
    h3_may_rows(&check, &call->row_grad[0], "row_grad[0]", H3_BF16, s.rows, s.width);
    h3_may_rows(&check, &call->row_grad[1], "row_grad[1]", H3_BF16, s.rows, s.width);
    if (!check.problem) h3_need_workspace(&check, call, backward_bytes(&s));
    if (check.problem) return h3_refuse(call, &check);
    uint16_t *dweight = h3_wanted(&call->dparam[0]);
    float *partial = dweight ? call->workspace : NULL;
#pragma omp parallel for schedule(static) if (s.rows * s.width > H3_PARALLEL_ELEMENTS)
    for (int64_t block = 0; block < block_count(&s); block++) {
        float *sums = partial ? partial + block * partial_step(&s) : NULL;
        if (sums) memset(sums, 0, (size_t)partial_step(&s) * sizeof *sums);
        const int64_t end = h3_smaller(s.rows, (block + 1) * ROWS_PER_BLOCK);
        for (int64_t row = block * ROWS_PER_BLOCK; row < end; row++) backward_row(call, &s, row, sums);
    }
    if (dweight) sum_blocks(dweight, partial, &s);
    return h3_done(call, s.modulated ? "rmsnorm_modulated_gradient_avx2" : "rmsnorm_gradient_avx2");
}
