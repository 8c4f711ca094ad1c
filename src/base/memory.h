/* Checked memory: sizes are multiplied with care, failures say how much was asked for. */
#ifndef H3_BASE_MEMORY_H
#define H3_BASE_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "h3/operator.h"

/* Asks for large pages below memory that is about to be filled for the first time: gigabytes of small ones take seconds to appear. */
void h3_large_pages(void *memory, size_t bytes);

/* Zeroed, 64-byte aligned; `*out` is NULL for count 0. Free with free(). `what` names the thing in the message. */
h3_status h3_alloc(void **out, size_t count, size_t size, const char *what);

/* Product of two sizes; H3_INTEGRITY when it overflows. */
h3_status h3_size_multiply(size_t a, size_t b, size_t *out);

/* A dense, zeroed host tensor of `rank` dimensions that the caller owns; release with h3_tensor_free. */
h3_status h3_tensor_new(h3_tensor *out, int32_t dtype, int32_t rank, const int64_t *shape);
void h3_tensor_free(h3_tensor *tensor);

/* A dense view on memory that somebody else owns. */
h3_tensor h3_tensor_view(void *data, int32_t dtype, int32_t rank, const int64_t *shape);

size_t h3_tensor_bytes(const h3_tensor *tensor);

/* `out` becomes a new dense tensor with `tensor`'s shape in `dtype`: F32 <-> BF16, or a copy. */
h3_status h3_tensor_convert(h3_tensor *out, const h3_tensor *tensor, int32_t dtype);

/* Shorthand for shapes. */
#define H3_SHAPE(...) ((const int64_t[]){__VA_ARGS__})

#endif
