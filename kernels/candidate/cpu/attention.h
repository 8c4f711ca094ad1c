/* What attention's forward and backward share: sizes, the walk over heads and tiles, packing of a head. */
#ifndef H3_CANDIDATE_ATTENTION_H
#define H3_CANDIDATE_ATTENTION_H

#include "common.h"

#define H3_TILE_ROWS INT64_C(24) /* rows that share a pass over the packed panels, a multiple of H3_BLOCK */

typedef struct h3_attention_sizes {
    int64_t batch, queries, keys, heads, head_dim;
    float alpha; /* 1 / sqrt(head_dim) */
} h3_attention_sizes;

/* A packed row's distance in q, k, v, o. */
static inline int64_t h3_row_step(const h3_attention_sizes *s) { return s->heads * s->head_dim; }

/* Element (b, 0, n, 0) of a [B, rows, N, D] tensor; `head` counts b * N + n. */
static inline int64_t h3_head_start(const h3_attention_sizes *s, int64_t head, int64_t rows)
{
    return head / s->heads * rows * h3_row_step(s) + head % s->heads * s->head_dim;
}

void h3_attention_check(h3_check *check, const h3_call *call, h3_attention_sizes *s);

/* Workspace of the backward. */
size_t h3_attention_backward_bytes(const h3_attention_sizes *s);

/* How many heads are packed at a time, when one takes `bytes`. */
int64_t h3_heads_at_a_time(const h3_attention_sizes *s, int64_t bytes);

/* Scratch areas worth having: one a thread, at most 64, at most one a tile. The call runs on no more threads. */
int64_t h3_scratch_areas(const h3_attention_sizes *s, int64_t rows);

/* Whether threads pay off. */
static inline bool h3_attention_is_large(const h3_attention_sizes *s)
{
    return (double)(s->batch * s->queries * h3_row_step(s)) * (double)s->keys > (double)H3_PARALLEL_PRODUCTS;
}

static inline int64_t h3_tiles(int64_t rows) { return (rows + H3_TILE_ROWS - 1) / H3_TILE_ROWS; }

static inline int64_t h3_padded(int64_t count) { return h3_round_up(count, H3_PANEL); }

/* Panels of 16 rows: right side of products that contract over head_dim. `part` of h3_padded(rows) / 16. */
void h3_pack_head_across(float *panels, const uint16_t *head, const h3_attention_sizes *s, int64_t rows, int64_t part);

/* Panels of 16 channels: right side of products that contract over the rows. `part` of h3_padded(head_dim) / 16. */
void h3_pack_head_along(float *panels, const uint16_t *head, const h3_attention_sizes *s, int64_t rows, int64_t part);

/* out[r, c] = chain over depth of left[r, :] panels[:, c], for up to 24 rows and all `columns`, 6 x 16 at a time. */
void h3_tile_product(float *out, int64_t out_step, const float *left, int64_t left_step, int64_t rows, const float *panels,
                     int64_t columns, int64_t depth);

#endif
