/* Attention backward in chunks of query rows; the contract stands in attention.h. */
#include "attention.h"
#include "device.h"
#include "operators.h"

/* A group of heads. In FP32 P and dS take the places of the scores and of dP. */
struct backward_workspace {
    void *products;
    float *scores, *dp; /* [heads, rows, pitch] of one chunk */
    void *p, *ds;       /* likewise */
    float *dk, *dv;     /* [heads, keys, head_dim] over all chunks */
};

static int64_t head_bytes(const h3_attention_sizes &sizes)
{
    int64_t score = 2 * (int64_t)(sizes.bf16 ? sizeof(float) + sizeof(uint16_t) : sizeof(float));
    return h3_attention_rows(sizes) * h3_attention_pitch(sizes) * score + 2 * sizes.keys * sizes.head_dim * (int64_t)sizeof(float);
}

static backward_workspace lay_out(const h3_attention_sizes &sizes, h3_arena &arena)
{
    int64_t heads = h3_attention_heads(sizes, head_bytes(sizes)), scores = heads * h3_attention_rows(sizes) * h3_attention_pitch(sizes);
    backward_workspace w = {h3_take_products(arena), h3_take<float>(arena, scores), h3_take<float>(arena, scores), nullptr, nullptr, nullptr, nullptr};
    w.p = sizes.bf16 ? h3_take<uint16_t>(arena, scores) : (void *)w.scores;
    w.ds = sizes.bf16 ? h3_take<uint16_t>(arena, scores) : (void *)w.dp;
    w.dk = h3_take<float>(arena, heads * sizes.keys * sizes.head_dim);
    w.dv = h3_take<float>(arena, heads * sizes.keys * sizes.head_dim);
    return w;
}

size_t h3_attention_backward_workspace(const h3_attention_sizes &sizes)
{
    h3_arena arena = {nullptr, 0};
    lay_out(sizes, arena);
    return arena.used;
}

/* The part's rows of o and of its gradient, [rows, pitch] from the first head on. */
struct output_rows {
    const void *o, *up;
    int64_t pitch, head_dim;
};

/* A block takes one row: scores and dP become the (rounded) P and dS. */
template <bool Bf16>
static __global__ void softmax_backward(const float *scores, const float *dp, void *p, void *ds, const float *lse, output_rows out, int64_t keys,
                                        int64_t pitch, int64_t rows, int64_t queries)
{
    typedef typename h3_sum_of<Bf16>::type sum_type;
    int64_t row = blockIdx.x, first = row * pitch, head = row / rows, start = row % rows * out.pitch + head * out.head_dim;
    float log_sum = lse[head * queries + row % rows];
    sum_type sum = 0;
    for (int64_t d = threadIdx.x; d < out.head_dim; d += H3_THREADS)
        sum += (sum_type)h3_load<Bf16>(out.up, start + d) * (sum_type)h3_load<Bf16>(out.o, start + d);
    float delta = (float)h3_sum_block(sum);
    for (int64_t j = threadIdx.x; j < keys; j += H3_THREADS) {
        float probability = expf(__fsub_rn(scores[first + j], log_sum));
        h3_store<Bf16>(ds, first + j, __fmul_rn(probability, __fsub_rn(dp[first + j], delta)));
        h3_store<Bf16>(p, first + j, probability);
    }
}

/* Sums over queries become rows of a gradient: times alpha, rounded once. `to` is the part's first element. */
template <bool Bf16>
static __global__ void finish(const float *sums, void *to, float alpha, int64_t keys, int64_t head_dim, int64_t heads, int64_t pitch)
{
    for (int64_t i = h3_first(); i < heads * keys * head_dim; i += h3_stride()) {
        int64_t key = i / head_dim;
        h3_store<Bf16>(to, key % keys * pitch + key / keys * head_dim + i % head_dim, __fmul_rn(alpha, sums[i]));
    }
}

static int scores_and_dp(h3_products &products, const h3_attention_sizes &sizes, const backward_workspace &w, const h3_attention_part &part)
{
    const h3_check &check = *products.check;
    const h3_call *call = check.call;
    int64_t pitch = h3_attention_pitch(sizes), matrix = part.rows * pitch, width = sizes.head_dim;
    const float *lse = (const float *)call->saved[0].data + (part.item * sizes.heads + part.head) * sizes.queries + part.first;
    h3_operand up = h3_attention_operand(call->dout, part, part.first, false);
    output_rows out = {h3_attention_operand(call->out, part, part.first, false).data, up.data, up.pitch, width};
    if (h3_multiply(products, {part.rows, sizes.keys, width, part.heads, h3_attention_alpha(sizes), 0.0f,
                               h3_attention_operand(call->in[0], part, part.first, false), h3_attention_operand(call->in[1], part, 0, true),
                               {w.scores, false, pitch, matrix, false}}))
        return 1;
    if (h3_multiply(products, {part.rows, sizes.keys, width, part.heads, 1.0f, 0.0f, up, h3_attention_operand(call->in[2], part, 0, true),
                               {w.dp, false, pitch, matrix, false}}))
        return 1;
    return h3_launch(check, "softmax backward", sizes.bf16 ? softmax_backward<true> : softmax_backward<false>, (unsigned)(part.heads * part.rows),
                     H3_THREADS, w.scores, w.dp, w.p, w.ds, lse, out, sizes.keys, pitch, part.rows, sizes.queries);
}

static int attend_backward(h3_products &products, const h3_attention_sizes &sizes, const backward_workspace &w, const h3_attention_part &part)
{
    const h3_call *call = products.check->call;
    int64_t pitch = h3_attention_pitch(sizes), matrix = part.rows * pitch, width = sizes.head_dim;
    float beta = part.first == 0 ? 0.0f : 1.0f;
    h3_operand p_across = {w.p, sizes.bf16, pitch, matrix, true}, ds = {w.ds, sizes.bf16, pitch, matrix, false}, ds_across = ds;
    h3_operand dk = {w.dk, false, width, sizes.keys * width, false}, dv = dk;
    ds_across.across = true;
    dv.data = w.dv;
    if (scores_and_dp(products, sizes, w, part)) return 1;
    if (call->din[2].data != nullptr && h3_multiply(products, {sizes.keys, width, part.rows, part.heads, 1.0f, beta, p_across,
                                                               h3_attention_operand(call->dout, part, part.first, false), dv}))
        return 1;
    if (call->din[1].data != nullptr && h3_multiply(products, {sizes.keys, width, part.rows, part.heads, 1.0f, beta, ds_across,
                                                               h3_attention_operand(call->in[0], part, part.first, false), dk}))
        return 1;
    if (call->din[0].data == nullptr) return 0;
    return h3_multiply(products, {part.rows, width, sizes.keys, part.heads, h3_attention_alpha(sizes), 0.0f, ds,
                                  h3_attention_operand(call->in[1], part, 0, false), h3_attention_operand(call->din[0], part, part.first, false)});
}

static int write_gradient(const h3_check &check, const h3_attention_sizes &sizes, const float *sums, const h3_tensor &to, float alpha,
                          const h3_attention_part &part)
{
    if (to.data == nullptr) return 0;
    h3_operand out = h3_attention_operand(to, part, 0, false);
    return h3_launch(check, "attention gradient", sizes.bf16 ? finish<true> : finish<false>,
                     h3_blocks(part.heads * sizes.keys * sizes.head_dim, H3_THREADS), H3_THREADS, sums, const_cast<void *>(out.data), alpha, sizes.keys,
                     sizes.head_dim, part.heads, out.pitch);
}

static int group_backward(h3_products &products, const h3_attention_sizes &sizes, const backward_workspace &w, h3_attention_part part)
{
    const h3_call *call = products.check->call;
    for (part.first = 0; part.first < sizes.queries; part.first += h3_query_chunk) {
        part.rows = sizes.queries - part.first < h3_query_chunk ? sizes.queries - part.first : h3_query_chunk;
        if (attend_backward(products, sizes, w, part)) return 1;
    }
    if (write_gradient(*products.check, sizes, w.dk, call->din[1], h3_attention_alpha(sizes), part)) return 1;
    return write_gradient(*products.check, sizes, w.dv, call->din[2], 1.0f, part);
}

int h3_attention_backward(h3_call *call)
{
    static const char *const names[] = {"din[0]", "din[1]", "din[2]"};
    h3_attention_sizes sizes;
    h3_arena arena;
    h3_products products;
    h3_check check = h3_check_call(call);
    if (h3_attention_check(check, sizes) || h3_attention_check_outputs(check, sizes)) return 1;
    if (h3_want_like(check, "dout", call->dout, sizes.dtype, call->in[0])) return 1;
    for (int i = 0; i < 3; i++)
        if (h3_want_optional(check, names[i], call->din[i], sizes.dtype, call->in[i])) return 1;
    if (h3_open_workspace(check, h3_attention_backward_workspace(sizes), arena)) return 1;
    backward_workspace w = lay_out(sizes, arena);
    if (h3_products_open(products, check, w.products)) return 1;
    int64_t together = h3_attention_heads(sizes, head_bytes(sizes));
    for (int64_t item = 0; item < sizes.batch; item++) {
        for (int64_t head = 0; head < sizes.heads; head += together) {
            int64_t heads = sizes.heads - head < together ? sizes.heads - head : together;
            if (group_backward(products, sizes, w, {item, head, heads, 0, 0})) return 1;
        }
    }
    h3_products_ran(products, call, sizes.bf16, "cublas-chunked");
    return 0;
}

int h3_attention_chunked_backward(h3_call *call) { return h3_attention_backward(call); }
