/* Attention forward, through cuDNN or in chunks of query rows; the contracts stand in attention.h. */
#include <stdio.h>

#include "attention.h"
#include "device.h"
#include "operators.h"
#include "sdpa.h"

/* One chunk of a group of heads. In FP32 the probabilities take the place of their scores. */
struct forward_workspace {
    void *products;
    float *scores; /* [heads, rows, pitch] */
    void *p;       /* likewise */
    float *sums;   /* [heads, rows] */
    float *o;      /* [heads, rows, head_dim] */
};

static int64_t head_bytes(const h3_attention_sizes &sizes)
{
    int64_t rows = h3_attention_rows(sizes), score = sizes.bf16 ? sizeof(float) + sizeof(uint16_t) : sizeof(float);
    return rows * (h3_attention_pitch(sizes) * score + (sizes.head_dim + 1) * (int64_t)sizeof(float));
}

static forward_workspace lay_out(const h3_attention_sizes &sizes, h3_arena &arena)
{
    int64_t rows = h3_attention_heads(sizes, head_bytes(sizes)) * h3_attention_rows(sizes), scores = rows * h3_attention_pitch(sizes);
    forward_workspace w = {h3_take_products(arena), h3_take<float>(arena, scores), nullptr, nullptr, nullptr};
    w.p = sizes.bf16 ? h3_take<uint16_t>(arena, scores) : (void *)w.scores;
    w.sums = h3_take<float>(arena, rows);
    w.o = h3_take<float>(arena, rows * sizes.head_dim);
    return w;
}

static size_t chunked_workspace(const h3_attention_sizes &sizes)
{
    h3_arena arena = {nullptr, 0};
    lay_out(sizes, arena);
    return arena.used;
}

/* A block takes one row of scores: rounded unnormalised probabilities, their sum before rounding, the row's log-sum-exp. */
template <bool Bf16>
static __global__ void softmax(const float *scores, void *p, float *sums, float *lse, int64_t keys, int64_t pitch, int64_t rows, int64_t queries)
{
    int64_t row = blockIdx.x, first = row * pitch;
    float most = -INFINITY;
    for (int64_t j = threadIdx.x; j < keys; j += H3_THREADS) most = fmaxf(most, scores[first + j]);
    most = h3_max_block(most);
    typename h3_sum_of<Bf16>::type sum = 0;
    for (int64_t j = threadIdx.x; j < keys; j += H3_THREADS) {
        float value = expf(__fsub_rn(scores[first + j], most));
        sum += value;
        h3_store<Bf16>(p, first + j, value);
    }
    float total = (float)h3_sum_block(sum);
    if (threadIdx.x != 0) return;
    sums[row] = total;
    lse[row / rows * queries + row % rows] = __fadd_rn(most, logf(total));
}

/* Sums over keys become rows of the output: divided by the row's sum and rounded once. `to` is the part's first element. */
template <bool Bf16>
static __global__ void finish(const float *o, const float *sums, void *to, int64_t rows, int64_t head_dim, int64_t heads, int64_t pitch)
{
    for (int64_t i = h3_first(); i < heads * rows * head_dim; i += h3_stride()) {
        int64_t row = i / head_dim, head = row / rows;
        h3_store<Bf16>(to, row % rows * pitch + head * head_dim + i % head_dim, __fdiv_rn(o[i], sums[row]));
    }
}

static int attend(h3_products &products, const h3_attention_sizes &sizes, const forward_workspace &w, const h3_attention_part &part)
{
    const h3_check &check = *products.check;
    const h3_call *call = check.call;
    int64_t pitch = h3_attention_pitch(sizes), matrix = part.rows * pitch, width = sizes.head_dim, count = part.heads * part.rows;
    float *lse = (float *)call->saved[0].data + (part.item * sizes.heads + part.head) * sizes.queries + part.first;
    h3_operand scores = {w.scores, false, pitch, matrix, false}, p = {w.p, sizes.bf16, pitch, matrix, false};
    h3_operand sums = {w.o, false, width, part.rows * width, false}, out = h3_attention_operand(call->out, part, part.first, false);
    if (h3_multiply(products, {part.rows, sizes.keys, width, part.heads, h3_attention_alpha(sizes), 0.0f,
                               h3_attention_operand(call->in[0], part, part.first, false), h3_attention_operand(call->in[1], part, 0, true), scores}))
        return 1;
    if (h3_launch(check, "softmax", sizes.bf16 ? softmax<true> : softmax<false>, (unsigned)count, H3_THREADS, w.scores, w.p, w.sums, lse, sizes.keys,
                  pitch, part.rows, sizes.queries))
        return 1;
    if (h3_multiply(products, {part.rows, width, sizes.keys, part.heads, 1.0f, 0.0f, p, h3_attention_operand(call->in[2], part, 0, false), sums}))
        return 1;
    return h3_launch(check, "attention output", sizes.bf16 ? finish<true> : finish<false>, h3_blocks(count * width, H3_THREADS), H3_THREADS, w.o, w.sums,
                     const_cast<void *>(out.data), part.rows, width, part.heads, out.pitch);
}

static int attend_item(h3_products &products, const h3_attention_sizes &sizes, const forward_workspace &w, int64_t item)
{
    int64_t together = h3_attention_heads(sizes, head_bytes(sizes));
    for (int64_t head = 0; head < sizes.heads; head += together) {
        int64_t heads = sizes.heads - head < together ? sizes.heads - head : together;
        for (int64_t first = 0; first < sizes.queries; first += h3_query_chunk) {
            int64_t rows = sizes.queries - first < h3_query_chunk ? sizes.queries - first : h3_query_chunk;
            if (attend(products, sizes, w, {item, head, heads, first, rows})) return 1;
        }
    }
    return 0;
}

/* `why`: the status with which cuDNN refused the shape, 0 where it was not asked. */
static int attend_in_chunks(h3_call *call, const h3_check &check, const h3_attention_sizes &sizes, int why)
{
    h3_arena arena;
    h3_products products;
    char name[48] = "cublas-chunked";
    if (h3_open_workspace(check, chunked_workspace(sizes), arena)) return 1;
    forward_workspace w = lay_out(sizes, arena);
    if (h3_products_open(products, check, w.products)) return 1;
    for (int64_t item = 0; item < sizes.batch; item++)
        if (attend_item(products, sizes, w, item)) return 1;
    if (why > 0) snprintf(name, sizeof name, "cublas-chunked (cudnn status %d)", why);
    h3_products_ran(products, call, sizes.bf16, name);
    return 0;
}

/* --- cuDNN ------------------------------------------------------------------------------------------------------------ */

static h3_sdpa_shape shape_of(const h3_attention_sizes &sizes) { return h3_sdpa_dense(sizes.queries, sizes.keys, sizes.heads, sizes.head_dim); }

/* The plan that serves these sizes: by shape alone, so that a shape always runs the same kernel. NULL: FP32 is the golden and never cuDNN's. */
static const h3_sdpa *find_fused(const h3_check &check, const h3_attention_sizes &sizes)
{
    h3_sdpa_shape shape = shape_of(sizes);
    return sizes.bf16 ? h3_sdpa_find(check.call->device_index, &shape) : nullptr;
}

static int want_aligned(const h3_check &check, const char *name, const void *data)
{
    if ((uintptr_t)data % H3_SDPA_ALIGNMENT == 0) return 0;
    return h3_refuse(check, "%s is not aligned to %d bytes, which cuDNN needs", name, (int)H3_SDPA_ALIGNMENT);
}

static int attend_fused(h3_call *call, const h3_check &check, const h3_attention_sizes &sizes, const h3_sdpa &sdpa)
{
    h3_sdpa_shape shape = shape_of(sizes);
    h3_arena arena;
    int64_t width = sizes.heads * sizes.head_dim;
    if (want_aligned(check, "q", call->in[0].data) || want_aligned(check, "k", call->in[1].data) || want_aligned(check, "v", call->in[2].data)) return 1;
    if (want_aligned(check, "out", call->out.data) || h3_open_workspace(check, sdpa.workspace, arena)) return 1;
    for (int64_t item = 0; item < sizes.batch; item++) {
        int64_t queries = item * sizes.queries, keys = item * sizes.keys;
        h3_sdpa_tensors tensors = {h3_at(call->in[0].data, queries * width, true), h3_at(call->in[1].data, keys * width, true),
                                   h3_at(call->in[2].data, keys * width, true), h3_at(call->out.data, queries * width, true),
                                   (float *)call->saved[0].data + queries * sizes.heads};
        if (h3_sdpa_run(call->device_index, &shape, &tensors, call->stream, arena.base, call->message, sizeof call->message)) return 1;
    }
    h3_ran(call, sdpa.name, true);
    return 0;
}

/* --- the two operators ------------------------------------------------------------------------------------------------ */

size_t h3_attention_forward_workspace(const h3_check &check, const h3_attention_sizes &sizes, bool fused)
{
    const h3_sdpa *sdpa = fused ? find_fused(check, sizes) : nullptr;
    return sdpa != nullptr && sdpa->plan != nullptr ? sdpa->workspace : chunked_workspace(sizes);
}

static int forward(h3_call *call, bool fused)
{
    h3_attention_sizes sizes;
    h3_check check = h3_check_call(call);
    if (h3_attention_check(check, sizes) || h3_attention_check_outputs(check, sizes)) return 1;
    const h3_sdpa *sdpa = fused ? find_fused(check, sizes) : nullptr;
    if (sdpa != nullptr && sdpa->plan != nullptr) return attend_fused(call, check, sizes, *sdpa);
    return attend_in_chunks(call, check, sizes, sdpa != nullptr ? sdpa->status : 0);
}

int h3_attention_forward(h3_call *call) { return forward(call, true); }
int h3_attention_chunked_forward(h3_call *call) { return forward(call, false); }
