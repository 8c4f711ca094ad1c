/*
 * Full softmax attention, q [B,Rq,N,D] against k, v [B,S,N,D].
 *
 * Contract attention-p-bf16-chunk256-v1: 256 query rows at a time, as many heads together as fit the workspace (which changes no
 * bit). scores = alpha * (q k^T) in float32; p = exp(score - max) unnormalised; the row sum adds the unrounded p, thread t of
 * 256 the keys t, t+256, ..., then lanes and warps as in h3_sum_block; o = (round(p) v) / sum, one rounding.
 * saved[0] is the log-sum-exp, max + log(sum). Backward: P = exp(score - lse); delta = sum do * o in that same order over channels;
 * dS = round(P * (dP - delta)) with the unrounded P; dV += round(P)^T do and dK += dS^T q in float32 over chunks in ascending order;
 * alpha multiplies dQ and dK at the end.
 *
 * Two operators serve the node. "attention-chunked" does what stands above. "attention" gives the BF16 forward to cuDNN where that takes the
 * shape (sdpa.h: contract cudnn-sdpa-v1, one item at a time; the order of sums is the library's own, fixed by the engine that the report
 * names) and is "attention-chunked" otherwise, in FP32 and backward; both save the same log-sum-exp. The report says what ran.
 */
#ifndef H3_PROVIDER_CUDA_ATTENTION_H
#define H3_PROVIDER_CUDA_ATTENTION_H

#include "products.h"

static const int64_t h3_query_chunk = 256;

struct h3_attention_sizes {
    int64_t batch, queries, keys, heads, head_dim;
    int32_t dtype;
    bool bf16;
};

/* Heads head .. head + heads - 1 of one item, query rows first .. first + rows - 1. */
struct h3_attention_part {
    int64_t item, head, heads, first, rows;
};

int h3_attention_check(const h3_check &check, h3_attention_sizes &sizes);
int h3_attention_check_outputs(const h3_check &check, const h3_attention_sizes &sizes);
float h3_attention_alpha(const h3_attention_sizes &sizes);

/* Elements from one row of scores to the next: rows of BF16 probabilities stay aligned to 16 bytes. */
static inline int64_t h3_attention_pitch(const h3_attention_sizes &sizes) { return (sizes.keys + 7) / 8 * 8; }
static inline int64_t h3_attention_rows(const h3_attention_sizes &sizes)
{
    return sizes.queries < h3_query_chunk ? sizes.queries : h3_query_chunk;
}

/* How many heads go together so that `each` bytes a head stay within the limit. */
int64_t h3_attention_heads(const h3_attention_sizes &sizes, int64_t each);

/* The rows of a part's heads within a tensor [B,rows,N,D], as the operand of a product over heads. */
h3_operand h3_attention_operand(const h3_tensor &tensor, const h3_attention_part &part, int64_t first, bool across);

/* `fused`: of the operator that asks cuDNN first. */
size_t h3_attention_forward_workspace(const h3_check &check, const h3_attention_sizes &sizes, bool fused);
size_t h3_attention_backward_workspace(const h3_attention_sizes &sizes);

#endif
