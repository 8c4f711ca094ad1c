/*
 * What the kernels of the CPU candidate share: shape checks, workspace layout, the product's micro-kernel and packing.
 *
 * Every operator takes BF16 activations and BF16 parameters, sums in FP32 in the order its contract names, and
 * partitions work over threads only along independent results, so no bit depends on the number of threads.
 */
#ifndef H3_CANDIDATE_COMMON_H
#define H3_CANDIDATE_COMMON_H

#include <stdbool.h>

#include "h3/operator.h"

/* Reduction contracts. */
#define H3_CONTRACT_GEMM "gemm-f32-kasc-fma-v1"
#define H3_CONTRACT_NORM "rmsnorm-v4x128-v1"
#define H3_CONTRACT_ATTENTION "attention-f32-twopass-kasc-v1"
#define H3_CONTRACT_ELEMENTWISE "elementwise-bf16-v1"

/* Work below this many multiply-adds (products) or elements (row-wise nodes) stays on the calling thread. */
#define H3_PARALLEL_PRODUCTS (INT64_C(1) << 20)
#define H3_PARALLEL_ELEMENTS (INT64_C(1) << 15)

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

/* Every index lies in [0, limit). */
void h3_need_index(h3_check *check, const h3_tensor *tensor, const char *what, int64_t rows, int64_t limit);

/* A table [3T, 6, width] and the index of its rows [rows]; returns 3T. */
int64_t h3_need_table(h3_check *check, const h3_tensor *table, const h3_tensor *row_index, int64_t rows, int64_t width);

void h3_need_workspace(h3_check *check, const h3_call *call, size_t bytes);

/* Starts the checks of a call with those of the call itself: interface and device. */
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

/* ---- workspace ---- */

static inline int64_t h3_round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

static inline int64_t h3_smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* Bytes of `count` floats, rounded up so that the next area starts on a cache line. */
static inline int64_t h3_float_bytes(int64_t count) { return h3_round_up(count * (int64_t)sizeof(float), 64); }

/* The next `count` floats of a workspace. */
static inline float *h3_take(char **workspace, int64_t count)
{
    float *area = (float *)(void *)*workspace;
    *workspace += h3_float_bytes(count);
    return area;
}

/* ---- products (micro.c, gemm.c) ---- */

#define H3_BLOCK 6  /* rows of one micro-kernel call */
#define H3_PANEL 16 /* columns of one micro-kernel call */

/*
 * out[r * out_step + c] = chain over k = 0 .. depth - 1, ascending, of fma(left[r * row_step + k * depth_step],
 * panel[k * 16 + c], chain); the chain starts at 0, or at out's old value when `resume`. rows 1..6, columns 16.
 * Each element's chain is the same for every number of rows.
 */
void h3_micro(int64_t rows, int64_t depth, const float *left, int64_t row_step, int64_t depth_step, const float *panel,
              float *out, int64_t out_step, bool resume);

/* panel[k * 16 + c] = from[c * step + k]: up to 16 rows of `depth` values become columns; missing columns are zero. */
void h3_pack_across(float *panel, const uint16_t *from, int64_t step, int64_t columns, int64_t depth);

/* panel[k * 16 + c] = from[k * step + c]: up to 16 columns of each of `depth` rows; missing columns are zero. */
void h3_pack_along(float *panel, const uint16_t *from, int64_t step, int64_t columns, int64_t depth);

/* to[r * to_step + k] = from[r * from_step + k]. */
void h3_widen_rows(float *to, int64_t to_step, const uint16_t *from, int64_t from_step, int64_t rows, int64_t count);

/* out[m, n] = bf(sum over k of left(m, k) right(k, n) [+ bias[n]]), contract gemm-f32-kasc-fma-v1. */
typedef struct h3_gemm {
    int64_t rows, columns, depth;
    const uint16_t *left;   /* [rows, depth], or [depth, rows] when left_along */
    const uint16_t *right;  /* [columns, depth], or [depth, columns] when right_along */
    const uint16_t *bias;   /* [columns] or NULL; added in FP32 after the chain */
    uint16_t *out;          /* [rows, columns] */
    bool left_along, right_along;
} h3_gemm;

size_t h3_gemm_workspace(int64_t rows, int64_t columns, int64_t depth);
void h3_gemm_run(const h3_gemm *gemm, void *workspace);

/* ---- operators ---- */

#define H3_OPERATOR_FUNCTIONS(subject)                                  \
    int h3_##subject##_plan(const h3_call *call, h3_call_plan *plan);    \
    int h3_##subject##_forward(h3_call *call);                           \
    int h3_##subject##_backward(h3_call *call);

H3_OPERATOR_FUNCTIONS(linear)
H3_OPERATOR_FUNCTIONS(norm)
H3_OPERATOR_FUNCTIONS(rope)
H3_OPERATOR_FUNCTIONS(residual)
H3_OPERATOR_FUNCTIONS(swiglu)
H3_OPERATOR_FUNCTIONS(attention)
H3_OPERATOR_FUNCTIONS(adaln)

#endif
