/*
 * Full attention, backward. With P_ij = exp(alpha s_ij - lse_i), dP_ij = do_i . v_j and delta_i = do_i . o_i, all FP32,
 *     dS_ij = P_ij (dP_ij - delta_i)
 *     dq_i = bf(alpha sum over j of dS_ij k_j)
 *     dk_j = bf(alpha sum over i of dS_ij q_i)
 *     dv_j = bf(sum over i of P_ij do_i)
 * s_ij and dP_ij are chains over d ascending of fused steps, the sums chains over j or i ascending of fused steps; delta
 * adds the channels d, d + 8, ... in lane d of eight by fused steps, lanes meeting as + 4, + 2, + 1.
 *
 * Query rows are walked in tiles against all keys for dq, then key rows in tiles against all queries for dk and dv. The
 * second walk computes P and dS again, to the same bits, so nothing is accumulated across threads and memory stays
 * linear in the number of rows.
 */
#include "attention.h"

#include <omp.h>

#include "vector.h"

/* Packed panels of one head, in order, and its two statistics per query row. */
enum { KEY_ACROSS, VALUE_ACROSS, KEY_ALONG, QUERY_ACROSS, DOUT_ACROSS, QUERY_ALONG, DOUT_ALONG, PACKINGS };

typedef struct head_pack {
    float *panels[PACKINGS];
    float *lse, *delta; /* [padded queries]; the padding is zero */
} head_pack;

/* One side's walk: a tile of `rows` rows against `columns` columns. */
typedef struct tile_side {
    const uint16_t *first, *second; /* q and do, or k and v: the tile's rows */
    const float *first_panels, *second_panels;
    int64_t rows, columns;
} tile_side;

static int64_t most_rows(const h3_attention_sizes *s) { return s->queries > s->keys ? s->queries : s->keys; }

/* Large enough for every packing: panels of rows or of channels. */
static int64_t pack_floats(const h3_attention_sizes *s) { return h3_padded(most_rows(s)) * h3_padded(s->head_dim); }

static int64_t head_bytes(const h3_attention_sizes *s)
{
    return PACKINGS * h3_float_bytes(pack_floats(s)) + 2 * h3_float_bytes(h3_padded(s->queries));
}

static int64_t scratch_floats(const h3_attention_sizes *s)
{
    return H3_TILE_ROWS * (2 * h3_padded(most_rows(s)) + 2 * h3_padded(s->head_dim));
}

size_t h3_attention_backward_bytes(const h3_attention_sizes *s)
{
    return (size_t)(h3_heads_at_a_time(s, head_bytes(s)) * head_bytes(s) +
                    h3_scratch_areas(s, most_rows(s)) * h3_float_bytes(scratch_floats(s)));
}

static head_pack head_areas(const h3_attention_sizes *s, char *packed, int64_t head)
{
    head_pack p;
    char *area = packed + head * head_bytes(s);
    for (int i = 0; i < PACKINGS; i++) p.panels[i] = h3_take(&area, pack_floats(s));
    p.lse = h3_take(&area, h3_padded(s->queries));
    p.delta = h3_take(&area, h3_padded(s->queries));
    return p;
}

static void row_statistics(const h3_call *call, const h3_attention_sizes *s, int64_t head, head_pack *p)
{
    const int64_t start = h3_head_start(s, head, s->queries), step = h3_row_step(s);
    const uint16_t *out = (const uint16_t *)call->out.data + start, *dout = (const uint16_t *)call->dout.data + start;
    const float *lse = (const float *)call->saved[0].data + head * s->queries;
    for (int64_t i = 0; i < h3_padded(s->queries); i++) p->lse[i] = i < s->queries ? lse[i] : 0.0f;
    for (int64_t i = 0; i < h3_padded(s->queries); i++) {
        __m256 dot = _mm256_setzero_ps();
        for (int64_t d = 0; d < s->head_dim && i < s->queries; d += 8) {
            const int64_t count = s->head_dim - d;
            dot = _mm256_fmadd_ps(h3_load8(dout + i * step + d, count), h3_load8(out + i * step + d, count), dot);
        }
        p->delta[i] = h3_sum8(dot);
    }
}

/* Packing `kind` of one head; the last kind is its statistics. */
static void prepare(const h3_call *call, const h3_attention_sizes *s, int64_t head, int kind, head_pack p)
{
    const int64_t at_query = h3_head_start(s, head, s->queries), at_key = h3_head_start(s, head, s->keys);
    const uint16_t *q = (const uint16_t *)call->in[0].data + at_query, *dout = (const uint16_t *)call->dout.data + at_query;
    const uint16_t *k = (const uint16_t *)call->in[1].data + at_key, *v = (const uint16_t *)call->in[2].data + at_key;
    if (kind == PACKINGS) {
        row_statistics(call, s, head, &p);
        return;
    }
    const uint16_t *from[PACKINGS] = {k, v, k, q, dout, q, dout};
    const int64_t rows = kind <= KEY_ALONG ? s->keys : s->queries;
    const bool along = kind == KEY_ALONG || kind == QUERY_ALONG || kind == DOUT_ALONG;
    const int64_t parts = h3_padded(along ? s->head_dim : rows) / H3_PANEL;
    for (int64_t part = 0; part < parts; part++) {
        if (along) h3_pack_head_along(p.panels[kind], from[kind], s, rows, part);
        else h3_pack_head_across(p.panels[kind], from[kind], s, rows, part);
    }
}

/* Scores and dP of a row of the tile become P and dS. The statistics are one value, or one a column when `step` is 1. */
static void differentiate(float *scores, float *dp, int64_t columns, float alpha, const float *lse, const float *delta,
                          int64_t step)
{
    const __m256 scale = _mm256_set1_ps(alpha);
    for (int64_t c = 0; c < columns; c += 8) {
        const __m256 l = step ? _mm256_loadu_ps(lse + c) : _mm256_broadcast_ss(lse);
        const __m256 d = step ? _mm256_loadu_ps(delta + c) : _mm256_broadcast_ss(delta);
        const __m256 p = h3_exp8(_mm256_sub_ps(_mm256_mul_ps(scale, _mm256_loadu_ps(scores + c)), l));
        _mm256_storeu_ps(scores + c, p);
        _mm256_storeu_ps(dp + c, _mm256_mul_ps(p, _mm256_sub_ps(_mm256_loadu_ps(dp + c), d)));
    }
}

/* P and dS of rows [row, row + rows) in scratch, dS behind P. */
static void tile_gradients(const h3_attention_sizes *s, const tile_side *side, int64_t row, int64_t rows, const head_pack *p,
                           bool by_query, float *scratch)
{
    const int64_t step = h3_padded(side->columns), channels = h3_padded(s->head_dim);
    float *scores = scratch, *dp = scores + H3_TILE_ROWS * step, *left = dp + H3_TILE_ROWS * step;
    h3_widen_rows(left, channels, side->first + row * h3_row_step(s), h3_row_step(s), rows, s->head_dim);
    h3_tile_product(scores, step, left, channels, rows, side->first_panels, side->columns, s->head_dim);
    h3_widen_rows(left, channels, side->second + row * h3_row_step(s), h3_row_step(s), rows, s->head_dim);
    h3_tile_product(dp, step, left, channels, rows, side->second_panels, side->columns, s->head_dim);
    for (int64_t r = 0; r < rows; r++) {
        const int64_t i = by_query ? row + r : 0;
        differentiate(scores + r * step, dp + r * step, step, s->alpha, p->lse + i, p->delta + i, by_query ? 0 : 1);
    }
}

/* gradient = bf(scale * (weights panels)) for the tile's rows; `scratch` holds the FP32 sums. */
static void contract(uint16_t *gradient, const float *weights, const float *panels, const h3_attention_sizes *s, int64_t rows,
                     int64_t columns, float scale, float *scratch)
{
    const int64_t channels = h3_padded(s->head_dim);
    h3_tile_product(scratch, channels, weights, h3_padded(columns), rows, panels, s->head_dim, columns);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t d = 0; d < s->head_dim; d += 8) {
            const __m256 sum = _mm256_loadu_ps(scratch + r * channels + d);
            h3_store8(gradient + r * h3_row_step(s) + d, _mm256_mul_ps(_mm256_set1_ps(scale), sum), s->head_dim - d);
        }
    }
}

static void run_tile(const h3_call *call, const h3_attention_sizes *s, int64_t head, int64_t row, const head_pack *p,
                     bool by_query, float *scratch)
{
    const int64_t at_query = h3_head_start(s, head, s->queries), at_key = h3_head_start(s, head, s->keys);
    const tile_side queries = {(const uint16_t *)call->in[0].data + at_query, (const uint16_t *)call->dout.data + at_query,
                          p->panels[KEY_ACROSS], p->panels[VALUE_ACROSS], s->queries, s->keys};
    const tile_side keys = {(const uint16_t *)call->in[1].data + at_key, (const uint16_t *)call->in[2].data + at_key,
                       p->panels[QUERY_ACROSS], p->panels[DOUT_ACROSS], s->keys, s->queries};
    const tile_side *side = by_query ? &queries : &keys;
    const int64_t rows = h3_smaller(H3_TILE_ROWS, side->rows - row), columns = side->columns;
    float *weights = scratch, *ds = weights + H3_TILE_ROWS * h3_padded(columns);
    float *sums = ds + H3_TILE_ROWS * (h3_padded(columns) + h3_padded(s->head_dim));
    uint16_t *dq = h3_wanted(&call->din[0]), *dk = h3_wanted(&call->din[1]), *dv = h3_wanted(&call->din[2]);
    const int64_t to = (by_query ? at_query : at_key) + row * h3_row_step(s);
    tile_gradients(s, side, row, rows, p, by_query, scratch);
    if (by_query) {
        contract(dq + to, ds, p->panels[KEY_ALONG], s, rows, columns, s->alpha, sums);
        return;
    }
    if (dk) contract(dk + to, ds, p->panels[QUERY_ALONG], s, rows, columns, s->alpha, sums);
    if (dv) contract(dv + to, weights, p->panels[DOUT_ALONG], s, rows, columns, 1.0f, sums);
}

static void run_heads(const h3_call *call, const h3_attention_sizes *s, int64_t first, int64_t heads, char *packed, char *scratch)
{
    const int64_t query_tiles = h3_wanted(&call->din[0]) ? h3_tiles(s->queries) : 0;
    const int64_t key_tiles = h3_wanted(&call->din[1]) || h3_wanted(&call->din[2]) ? h3_tiles(s->keys) : 0;
    const int64_t tiles = query_tiles + key_tiles;
#pragma omp for schedule(static)
    for (int64_t i = 0; i < heads * (PACKINGS + 1); i++) {
        const int64_t head = i / (PACKINGS + 1);
        prepare(call, s, first + head, (int)(i % (PACKINGS + 1)), head_areas(s, packed, head));
    }
#pragma omp for schedule(static)
    for (int64_t i = 0; i < heads * tiles; i++) {
        const int64_t head = i / tiles, tile = i % tiles;
        const bool by_query = tile < query_tiles;
        const head_pack p = head_areas(s, packed, head);
        run_tile(call, s, first + head, (by_query ? tile : tile - query_tiles) * H3_TILE_ROWS, &p, by_query,
                 (float *)(void *)(scratch + omp_get_thread_num() * h3_float_bytes(scratch_floats(s))));
    }
}

int h3_attention_backward(h3_call *call)
{
    h3_attention_sizes s = {0};
    h3_check check = h3_begin(call);
    h3_attention_check(&check, call, &s);
    const int64_t query_rows = s.batch * s.queries * s.heads, key_rows = s.batch * s.keys * s.heads;
    h3_need_rows(&check, &call->out, "out", H3_BF16, query_rows, s.head_dim);
    h3_need_rows(&check, &call->dout, "dout", H3_BF16, query_rows, s.head_dim);
    h3_need_rows(&check, &call->saved[0], "saved[0]", H3_F32, s.batch * s.heads, s.queries);
    h3_may_rows(&check, &call->din[0], "din[0]", H3_BF16, query_rows, s.head_dim);
    h3_may_rows(&check, &call->din[1], "din[1]", H3_BF16, key_rows, s.head_dim);
    h3_may_rows(&check, &call->din[2], "din[2]", H3_BF16, key_rows, s.head_dim);
    if (!check.problem) h3_need_workspace(&check, call, h3_attention_backward_bytes(&s));
    if (check.problem) return h3_refuse(call, &check);
    const int64_t heads = s.batch * s.heads, group = h3_heads_at_a_time(&s, head_bytes(&s));
    const int threads = (int)h3_smaller(omp_get_max_threads(), h3_scratch_areas(&s, most_rows(&s)));
    char *scratch = (char *)call->workspace + group * head_bytes(&s);
#pragma omp parallel num_threads(threads) if (h3_attention_is_large(&s))
    for (int64_t first = 0; first < heads; first += group) {
        run_heads(call, &s, first, h3_smaller(group, heads - first), call->workspace, scratch);
    }
    return h3_done(call, "attention_gradient_avx2_6x16");
}
