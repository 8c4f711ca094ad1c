/*
 * What the operators of the CUDA candidate share. Host code is C (*.c), kernels are CUDA C++ (*.cu); both read this.
 *
 * Every operator takes BF16 activations and parameters, sums in FP32 in the order its contract names, and gives each
 * result to one place of the grid, so no bit depends on tiles, grid, batch or other rows. Calls are asynchronous on the
 * call's stream and allocate nothing.
 */
#ifndef H3_CANDIDATE_CUDA_COMMON_H
#define H3_CANDIDATE_CUDA_COMMON_H

#include <stdbool.h>

#include <cuda_runtime_api.h>

#include "h3/operator.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Reduction contracts; the files that implement them say what they fix. */
#define H3_CONTRACT_GEMM "gemm-tc-k16-ascending-v1"
#define H3_CONTRACT_ADALN "gemm-tc-k16-ascending-v1, table sums rows512-v1, du k2048-v1"
#define H3_CONTRACT_NORM "rmsnorm-v4x128-v1"
#define H3_CONTRACT_ATTENTION "attention-tc-k16-kv64-online-v2"
#define H3_CONTRACT_ELEMENTWISE "elementwise-bf16-v1"

/* ---- checks (check.c) ---- */

/* The first problem of a call. `with_data` is false while planning, when tensors have shapes only. */
typedef struct h3_check {
    bool with_data;
    const char *what;
    const char *problem;
} h3_check;

void h3_require(h3_check *check, bool holds, const char *what, const char *problem);

/* A present tensor of this type with sane dimensions and, with_data, memory behind it. */
void h3_need(h3_check *check, const h3_tensor *tensor, const char *what, int32_t dtype);

/* As h3_need, and exactly `rows` rows of `width` elements: the last dimension is `width`, the others multiply to `rows`. */
void h3_need_rows(h3_check *check, const h3_tensor *tensor, const char *what, int32_t dtype, int64_t rows, int64_t width);

/* As h3_need, and this one dimension. */
void h3_need_vector(h3_check *check, const h3_tensor *tensor, const char *what, int32_t dtype, int64_t length);

/* A gradient that the caller may leave out: absent, or as h3_need_rows. */
void h3_may_rows(h3_check *check, const h3_tensor *tensor, const char *what, int32_t dtype, int64_t rows, int64_t width);

/* Row indices [rows]. Their values lie on the device: kernels check each one and answer a bad one with NaN. */
void h3_need_index(h3_check *check, const h3_tensor *tensor, const char *what, int64_t rows);

/* A table [3T, 6, width] and the index of its rows [rows]; returns 3T. */
int64_t h3_need_table(h3_check *check, const h3_tensor *table, const h3_tensor *row_index, int64_t rows, int64_t width);

void h3_need_workspace(h3_check *check, const h3_call *call, size_t bytes);

/* Starts the checks of a call with those of the call itself, and makes its device the thread's current one. */
h3_check h3_begin(const h3_call *call);

static inline bool h3_present(const h3_tensor *tensor) { return tensor->rank > 0; }

/* The memory of a gradient, or NULL when it is not wanted. */
static inline void *h3_wanted(const h3_tensor *tensor) { return tensor->rank > 0 ? tensor->data : NULL; }

/* Product of all dimensions but the last. */
int64_t h3_rows_of(const h3_tensor *tensor);
static inline int64_t h3_width_of(const h3_tensor *tensor) { return tensor->shape[tensor->rank - 1]; }

/* Ends a call: writes the problem to call->message and returns 1, or names the kernel and returns 0. */
int h3_refuse(h3_call *call, const h3_check *check);
int h3_done(h3_call *call, const char *kernel);

/* 0 for cudaSuccess; else 1 with "kernel: what CUDA says" as the message. */
int h3_cuda_status(h3_call *call, const char *kernel, cudaError_t error);

/* ---- workspace: areas of 256 bytes' alignment, one after the other ---- */

static inline int64_t h3_area_bytes(int64_t count, int64_t size) { return (count * size + 255) / 256 * 256; }

/* The next `count` elements of `size` bytes. */
static inline void *h3_take(char **workspace, int64_t count, int64_t size)
{
    char *area = *workspace;
    *workspace += h3_area_bytes(count, size);
    return area;
}

static inline int64_t h3_groups(int64_t count, int64_t size) { return (count + size - 1) / size; }

/* Whether 16 bytes (or `bytes`) at a time may be read or written at this address. */
static inline bool h3_aligned(const void *pointer, size_t bytes) { return (uintptr_t)pointer % bytes == 0; }

/* ---- launches; each returns 0, or 1 with call->message set ---- */

#define H3_GEMM_CHUNK 2048 /* contraction steps of one partial sum, a multiple of 32 */

/* out[m, n] = bf(sum over k of left(m, k) right(k, n) [+ bias[n]]), one ascending chain of k16 tensor-core steps each. */
typedef struct h3_gemm {
    int64_t rows, columns, depth;
    const uint16_t *left;  /* [rows, depth], or [depth, rows] when left_along */
    const uint16_t *right; /* [columns, depth], or [depth, columns] when right_along */
    const uint16_t *bias;  /* [columns] or NULL; added in FP32 after the chain */
    uint16_t *out;         /* [rows, columns] */
    float *partial;        /* not NULL: no out; [chunks, rows, columns] FP32 chains over H3_GEMM_CHUNK steps each */
    bool left_along, right_along;
} h3_gemm;

/* left_along without right_along, and partial sums other than !left_along with right_along, are not made. */
int h3_gemm_run(h3_call *call, const h3_gemm *gemm);

/* Which kernel a product takes, for what a call says it ran. */
const char *h3_gemm_kernel(const h3_gemm *gemm);

/* Whether the kernels for Hopper GPUs may be taken: not with H3_CANDIDATE_PRODUCTS=mma in the environment, which is how the others are measured and compared on one. */
bool h3_hopper_is_wanted(void);

/* gemm_hopper.cu: whether it takes this product (they may be taken, a Hopper GPU, operands that start at 16 bytes with rows of whole 16 bytes,
 * no bias, no partial sums), and the product. */
bool h3_gemm_hopper_fits(const h3_gemm *gemm);
const char *h3_gemm_hopper_kernel(const h3_gemm *gemm); /* of a product that fits */
int h3_gemm_hopper_run(h3_call *call, const h3_gemm *gemm);

/* Rows of a norm. Without a table, table == NULL. `inverse` [rows] gets r when not NULL. */
typedef struct h3_norm {
    int64_t rows, width, table_rows;
    float epsilon;
    const uint16_t *x, *weight, *shift, *scale; /* shift and scale of table row 0, or NULL */
    const int32_t *row_index;
    uint16_t *out;
    const uint16_t *dout; /* backward from here on; absent gradients are NULL */
    uint16_t *dx, *dshift, *dscale, *dweight;
    float *inverse, *partial; /* workspace: [rows] and [blocks, width], both NULL when dweight is */
} h3_norm;

#define H3_NORM_BLOCK 32 /* rows of one partial sum of the weight's gradient */

int h3_norm_run_forward(h3_call *call, const h3_norm *norm);
int h3_norm_run_backward(h3_call *call, const h3_norm *norm);

/* The rotation of rows; `transposed` is the backward's. */
typedef struct h3_rope {
    int64_t rows, heads, head_dim, angles;
    const uint16_t *from, *cosine, *sine;
    uint16_t *to;
    bool transposed;
} h3_rope;

int h3_rope_run(h3_call *call, const h3_rope *rope);

typedef struct h3_residual {
    int64_t rows, width, table_rows;
    const uint16_t *x, *branch, *gate; /* gate of table row 0, or NULL */
    const int32_t *row_index;
    uint16_t *out;
    const uint16_t *dout;
    uint16_t *dbranch, *dgate;
} h3_residual;

int h3_residual_run_forward(h3_call *call, const h3_residual *residual);
int h3_residual_run_backward(h3_call *call, const h3_residual *residual);

int h3_swiglu_run_forward(h3_call *call, const uint16_t *in, uint16_t *out, int64_t rows, int64_t width);
int h3_swiglu_run_backward(h3_call *call, const uint16_t *in, const uint16_t *dout, uint16_t *din, int64_t rows, int64_t width);

#define H3_MOST_HEAD_DIM 128

typedef struct h3_attention {
    int64_t batch, queries, keys, heads, head_dim;
    float alpha; /* 1 / sqrt(head_dim) */
    const uint16_t *q, *k, *v;
    uint16_t *out;
    float *lse; /* [batch, heads, queries] */
    const uint16_t *dout;
    uint16_t *dq, *dk, *dv;
    float *delta; /* workspace [batch, heads, queries] */
} h3_attention;

int h3_attention_run_forward(h3_call *call, const h3_attention *attention);
int h3_attention_run_backward(h3_call *call, const h3_attention *attention);

/* attention_hopper.cu: whether it takes this forward pass (asked for as products are; heads of 128), and the pass. */
bool h3_attention_hopper_fits(const h3_attention *attention);
int h3_attention_hopper_run(h3_call *call, const h3_attention *attention);

#define H3_TABLE_BLOCK 512 /* rows of one partial sum of the table's gradient */

/* u = bf(silu(temb)) */
int h3_adaln_run_activate(h3_call *call, const float *temb, uint16_t *u, int64_t count);

/* dz [segments, 6, hidden] = bf of the segment sums of the six row gradients; dtable (or NULL) gets the same;
 * partial [blocks of rows, segments, 6, hidden]. */
int h3_adaln_run_table(h3_call *call, float *partial, uint16_t *dz, uint16_t *dtable, int64_t rows, int64_t hidden, int64_t segments);

/* dbias[o] = bf(sum over t, ascending, of dz[t, o]) */
int h3_adaln_run_bias(h3_call *call, const uint16_t *dz, uint16_t *dbias, int64_t timesteps, int64_t outputs);

/* dtemb = (du sg) (1 + temb (1 - sg)) with du = bf(sum of the chunks' partial sums, ascending). */
int h3_adaln_run_time(h3_call *call, const float *partial, const float *temb, float *dtemb, int64_t chunks, int64_t count);

/* ---- operators ---- */

#define H3_OPERATOR_FUNCTIONS(subject)                                \
    int h3_##subject##_plan(const h3_call *call, h3_call_plan *plan); \
    int h3_##subject##_forward(h3_call *call);                        \
    int h3_##subject##_backward(h3_call *call);

H3_OPERATOR_FUNCTIONS(linear)
H3_OPERATOR_FUNCTIONS(norm)
H3_OPERATOR_FUNCTIONS(rope)
H3_OPERATOR_FUNCTIONS(residual)
H3_OPERATOR_FUNCTIONS(swiglu)
H3_OPERATOR_FUNCTIONS(attention)
H3_OPERATOR_FUNCTIONS(adaln)

#ifdef __cplusplus
}
#endif
#endif
