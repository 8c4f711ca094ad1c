/*
 * What every file of the CPU provider shares: loading and rounding, checks of a call, workspace, reports.
 *
 * Precision: a kernel is written once with a constant `bf16`. With bf16 = 1 tensors are bfloat16 and h3_round() is the
 * published rounding point; with bf16 = 0 tensors are float32 and h3_round() does nothing. Arithmetic between two rounding
 * points is float32 in both. Sums over rows and keys use float32 in BF16 and double in FP32, whose results serve as golden.
 */
#ifndef H3_PROVIDER_CPU_COMMON_H
#define H3_PROVIDER_CPU_COMMON_H

#include "h3/operator.h"

#define H3_INLINE static inline __attribute__((always_inline))
#define H3_SHAPE(...) ((const int64_t[]){__VA_ARGS__})
#define H3_ANY 0 /* in an expected shape: any size from 1 on */

enum { H3_CHUNKS = 6, H3_MODALITIES = 3 }; /* of a modulation table */

H3_INLINE float h3_round(float value, int bf16) { return bf16 ? h3_bf16_to_f32(h3_f32_to_bf16(value)) : value; }

H3_INLINE float h3_load(const void *data, int64_t i, int bf16)
{
    return bf16 ? h3_bf16_to_f32(((const uint16_t *)data)[i]) : ((const float *)data)[i];
}

/* Stores with one rounding. */
H3_INLINE void h3_store(void *data, int64_t i, float value, int bf16)
{
    if (bf16) ((uint16_t *)data)[i] = h3_f32_to_bf16(value);
    else ((float *)data)[i] = value;
}

/* The element at which a row starts, whatever its type. */
H3_INLINE void *h3_at(const void *data, int64_t i, int bf16) { return (char *)(uintptr_t)data + i * (bf16 ? 2 : 4); }

/* A row as floats (exact). */
H3_INLINE void h3_load_row(float *restrict to, const void *restrict from, int64_t count, int bf16)
{
    for (int64_t j = 0; j < count; j++) to[j] = h3_load(from, j, bf16);
}

/* A running sum: float in BF16, double in FP32. */
H3_INLINE void h3_accumulate(void *sums, int64_t i, float value, int bf16)
{
    if (bf16) ((float *)sums)[i] += value;
    else ((double *)sums)[i] += (double)value;
}

H3_INLINE float h3_total(const void *sums, int64_t i, int bf16)
{
    return bf16 ? ((const float *)sums)[i] : (float)((const double *)sums)[i];
}

/* One call under check. While planning, tensors have shapes but no data, and there is no room for a message. */
typedef struct h3_check {
    const h3_call *call;
    char *message;
    int planning;
} h3_check;

h3_check h3_check_plan(const h3_call *call);
h3_check h3_check_call(h3_call *call);

/* These return 0 when all is well, else 1 with the message written. */
int h3_refuse(const h3_check *check, const char *format, ...) __attribute__((format(printf, 2, 3)));
int h3_want_host(const h3_check *check);
int h3_want(const h3_check *check, const char *name, const h3_tensor *tensor, int32_t dtype, int32_t rank, const int64_t *shape);
int h3_want_optional(const h3_check *check, const char *name, const h3_tensor *tensor, int32_t dtype, int32_t rank,
                     const int64_t *shape);
int h3_want_activation(const h3_check *check, const char *name, const h3_tensor *tensor); /* F32 or BF16 */
/* table [3T,6,width], row_index [rows] below 3T, and a call's chunk such that `used` chunks from there on exist. */
int h3_want_table(const h3_check *check, const h3_tensor *table, const h3_tensor *index, int64_t rows, int64_t width, int used);
int h3_want_index(const h3_check *check, const char *name, const h3_tensor *tensor, int64_t rows, int64_t limit);

int h3_present(const h3_check *check, const h3_tensor *tensor);

/* Workspace is taken front to back in 64-byte steps; a copy of the arena gives back what the copy took. */
typedef struct h3_arena {
    char *next;
} h3_arena;

size_t h3_bytes(int64_t count, size_t size); /* what taking this much uses */
int h3_open_workspace(const h3_check *check, size_t needed, h3_arena *arena);
void *h3_take(h3_arena *arena, int64_t count, size_t size);

void h3_declare_saved(h3_call_plan *plan, int32_t slot, int32_t dtype, int32_t rank, const int64_t *shape);

/* Fills the report: what ran, and in which precision. */
void h3_ran(h3_call *call, const char *kernel, int bf16);
const char *h3_blas_kernel(void); /* "openblas-sgemm-<core>" */

#endif
