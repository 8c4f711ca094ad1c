/*
 * Full attention, forward: o = softmax(q k^T / sqrt(D)) v for every head; saved[0] = log-sum-exp [B, N, Rq].
 *
 * Contract attention-f32-twopass-kasc-v1, for each query row by itself:
 *     s_j = alpha * chain over d ascending of fma(q_d, k_jd, .)
 *     m = max s_j;  p_j = exp(s_j - m), exp as in vector.h, kept in FP32
 *     l = sum p_j: lane i of eight adds the keys i, i + 8, ... in turn; the lanes meet as + 4, + 2, + 1
 *     o_d = bf((chain over j ascending of fma(p_j, v_jd, .)) / l);  lse = m + (float)log((double)l)
 * A tile of 24 query rows holds its scores against all keys: memory is linear in the number of keys. Tiles and heads
 * are independent, so rows keep their bits in any company and on any number of threads.
 */
#include "attention.h"

#include <math.h>
#include <omp.h>

#include "vector.h"

#define MOST_AREAS 64
#define PACKED_BYTES (INT64_C(32) << 20)

void h3_attention_check(h3_check *check, const h3_call *call, h3_attention_sizes *s)
{
    const h3_tensor *q = &call->in[0], *k = &call->in[1], *v = &call->in[2];
    h3_need(check, q, "q", H3_BF16);
    h3_need(check, k, "k", H3_BF16);
    if (check->problem) return;
    h3_require(check, q->rank == 4 && k->rank == 4, "q and k", "are not [batch, rows, heads, head_dim]");
    if (check->problem) return;
    *s = (h3_attention_sizes){q->shape[0], q->shape[1], k->shape[1], q->shape[2], q->shape[3], 0.0f};
    s->alpha = 1.0f / sqrtf((float)s->head_dim);
    h3_require(check, s->batch > 0 && s->queries > 0 && s->heads > 0, "q", "has no rows");
    h3_require(check, s->keys > 0, "k", "has no rows");
    h3_require(check, k->shape[0] == s->batch && k->shape[2] == s->heads && k->shape[3] == s->head_dim, "k",
               "differs from q in batch, heads or head_dim");
    h3_need(check, v, "v", H3_BF16);
    h3_require(check, v->rank == 4 && !memcmp(v->shape, k->shape, 4 * sizeof *k->shape), "v", "has another shape than k");
}

int64_t h3_heads_at_a_time(const h3_attention_sizes *s, int64_t bytes)
{
    const int64_t fit = PACKED_BYTES / bytes;
    return fit < 1 ? 1 : h3_smaller(fit, s->batch * s->heads);
}

int64_t h3_scratch_areas(const h3_attention_sizes *s, int64_t rows)
{
    return h3_smaller(MOST_AREAS, s->batch * s->heads * h3_tiles(rows));
}

void h3_pack_head_across(float *panels, const uint16_t *head, const h3_attention_sizes *s, int64_t rows, int64_t part)
{
    const int64_t row = part * H3_PANEL;
    h3_pack_across(panels + row * s->head_dim, head + row * h3_row_step(s), h3_row_step(s), h3_smaller(H3_PANEL, rows - row),
                   s->head_dim);
}

void h3_pack_head_along(float *panels, const uint16_t *head, const h3_attention_sizes *s, int64_t rows, int64_t part)
{
    const int64_t channel = part * H3_PANEL;
    h3_pack_along(panels + channel * rows, head + channel, h3_row_step(s), h3_smaller(H3_PANEL, s->head_dim - channel), rows);
}

void h3_tile_product(float *out, int64_t out_step, const float *left, int64_t left_step, int64_t rows, const float *panels,
                     int64_t columns, int64_t depth)
{
    for (int64_t c = 0; c < columns; c += H3_PANEL) {
        for (int64_t r = 0; r < rows; r += H3_BLOCK) {
            h3_micro(h3_smaller(H3_BLOCK, rows - r), depth, left + r * left_step, left_step, 1, panels + c * depth,
                     out + r * out_step + c, out_step, false);
        }
    }
}

/* Scratch of one thread and the packed panels of one head. */
static int64_t scratch_floats(const h3_attention_sizes *s)
{
    return H3_TILE_ROWS * (h3_padded(s->keys) + 2 * h3_padded(s->head_dim));
}

static int64_t key_floats(const h3_attention_sizes *s) { return h3_padded(s->keys) * s->head_dim; }

static int64_t value_floats(const h3_attention_sizes *s) { return h3_padded(s->head_dim) * s->keys; }

static int64_t head_bytes(const h3_attention_sizes *s) { return h3_float_bytes(key_floats(s)) + h3_float_bytes(value_floats(s)); }

static size_t forward_bytes(const h3_attention_sizes *s)
{
    return (size_t)(h3_heads_at_a_time(s, head_bytes(s)) * head_bytes(s) +
                    h3_scratch_areas(s, s->queries) * h3_float_bytes(scratch_floats(s)));
}

int h3_attention_plan(const h3_call *call, h3_call_plan *plan)
{
    h3_attention_sizes s;
    h3_check check = {0};
    h3_attention_check(&check, call, &s);
    if (check.problem) return 1;
    *plan = (h3_call_plan){.forward_workspace = forward_bytes(&s), .saved_count = 1};
    plan->backward_workspace = h3_attention_backward_bytes(&s);
    plan->saved[0] = (h3_tensor){.dtype = H3_F32, .rank = 3, .shape = {s.batch, s.heads, s.queries},
                                 .stride = {s.heads * s.queries, s.queries, 1}};
    return 0;
}

/* Raw scores of one query row become unnormalised probabilities; returns their sum, the largest score in *largest. */
static float exponentiate(float *scores, const h3_attention_sizes *s, float *largest)
{
    const int64_t padded = h3_padded(s->keys);
    const __m256 alpha = _mm256_set1_ps(s->alpha);
    for (int64_t j = s->keys; j < padded; j++) scores[j] = -INFINITY;
    __m256 top = _mm256_set1_ps(-INFINITY);
    for (int64_t j = 0; j < padded; j += 8) {
        const __m256 score = _mm256_mul_ps(alpha, _mm256_loadu_ps(scores + j));
        _mm256_storeu_ps(scores + j, score);
        top = _mm256_max_ps(score, top);
    }
    float lanes[8];
    _mm256_storeu_ps(lanes, top);
    float maximum = lanes[0];
    for (int i = 1; i < 8; i++) maximum = lanes[i] > maximum ? lanes[i] : maximum;
    __m256 sum = _mm256_setzero_ps();
    for (int64_t j = 0; j < padded; j += 8) {
        const __m256 p = h3_exp8(_mm256_sub_ps(_mm256_loadu_ps(scores + j), _mm256_set1_ps(maximum)));
        _mm256_storeu_ps(scores + j, p);
        sum = _mm256_add_ps(sum, p);
    }
    *largest = maximum;
    return h3_sum8(sum);
}

/* Query rows [row, row + rows) of one head. */
static void run_tile(const h3_call *call, const h3_attention_sizes *s, int64_t head, int64_t row, int64_t rows, const float *keys,
                     const float *values, float *scratch)
{
    const int64_t score_step = h3_padded(s->keys), channel_step = h3_padded(s->head_dim), step = h3_row_step(s);
    const int64_t start = h3_head_start(s, head, s->queries) + row * step;
    float *scores = scratch, *query = scores + H3_TILE_ROWS * score_step, *sums = query + H3_TILE_ROWS * channel_step;
    float *lse = (float *)call->saved[0].data + head * s->queries + row;
    uint16_t *out = (uint16_t *)call->out.data + start;
    h3_widen_rows(query, channel_step, (const uint16_t *)call->in[0].data + start, step, rows, s->head_dim);
    h3_tile_product(scores, score_step, query, channel_step, rows, keys, s->keys, s->head_dim);
    float total[H3_TILE_ROWS];
    for (int64_t r = 0; r < rows; r++) {
        float largest;
        total[r] = exponentiate(scores + r * score_step, s, &largest);
        lse[r] = largest + (float)log((double)total[r]);
    }
    h3_tile_product(sums, channel_step, scores, score_step, rows, values, s->head_dim, s->keys);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t d = 0; d < s->head_dim; d += 8) {
            const __m256 sum = _mm256_loadu_ps(sums + r * channel_step + d);
            h3_store8(out + r * step + d, _mm256_div_ps(sum, _mm256_set1_ps(total[r])), s->head_dim - d);
        }
    }
}

/* Heads first .. first + heads - 1: packs their keys and values, then computes all their tiles. */
static void run_heads(const h3_call *call, const h3_attention_sizes *s, int64_t first, int64_t heads, char *packed, char *scratch)
{
    const int64_t key_parts = h3_padded(s->keys) / H3_PANEL, parts = key_parts + h3_padded(s->head_dim) / H3_PANEL;
    const int64_t values_at = h3_float_bytes(key_floats(s)), tiles = h3_tiles(s->queries);
#pragma omp for schedule(static)
    for (int64_t i = 0; i < heads * parts; i++) {
        const int64_t head = i / parts, part = i % parts, start = h3_head_start(s, first + head, s->keys);
        char *area = packed + head * head_bytes(s);
        if (part < key_parts) {
            h3_pack_head_across((float *)(void *)area, (const uint16_t *)call->in[1].data + start, s, s->keys, part);
        } else {
            h3_pack_head_along((float *)(void *)(area + values_at), (const uint16_t *)call->in[2].data + start, s, s->keys,
                               part - key_parts);
        }
    }
#pragma omp for schedule(static)
    for (int64_t i = 0; i < heads * tiles; i++) {
        const int64_t row = i % tiles * H3_TILE_ROWS;
        const char *area = packed + i / tiles * head_bytes(s);
        run_tile(call, s, first + i / tiles, row, h3_smaller(H3_TILE_ROWS, s->queries - row), (const float *)(const void *)area,
                 (const float *)(const void *)(area + values_at),
                 (float *)(void *)(scratch + omp_get_thread_num() * h3_float_bytes(scratch_floats(s))));
    }
}

int h3_attention_forward(h3_call *call)
{
    h3_attention_sizes s = {0};
    h3_check check = h3_begin(call);
    h3_attention_check(&check, call, &s);
    h3_need_rows(&check, &call->out, "out", H3_BF16, s.batch * s.queries * s.heads, s.head_dim);
    h3_need_rows(&check, &call->saved[0], "saved[0]", H3_F32, s.batch * s.heads, s.queries);
    if (!check.problem) h3_need_workspace(&check, call, forward_bytes(&s));
    if (check.problem) return h3_refuse(call, &check);
    const int64_t heads = s.batch * s.heads, group = h3_heads_at_a_time(&s, head_bytes(&s));
    const int threads = (int)h3_smaller(omp_get_max_threads(), h3_scratch_areas(&s, s.queries));
    char *scratch = (char *)call->workspace + group * head_bytes(&s);
#pragma omp parallel num_threads(threads) if (h3_attention_is_large(&s))
    for (int64_t first = 0; first < heads; first += group) {
        run_heads(call, &s, first, h3_smaller(group, heads - first), call->workspace, scratch);
    }
    return h3_done(call, "attention_twopass_avx2_6x16");
}
