/*
 * The host side that every file of the CUDA provider shares: checks of a call, workspace, launches, reports.
 *
 * Tensors are device memory and calls are asynchronous, so an index cannot be looked at here: kernels guard it themselves
 * (device.h). Launch and library failures are returned with the kernel's name.
 */
#ifndef H3_PROVIDER_CUDA_CALL_H
#define H3_PROVIDER_CUDA_CALL_H

#include <initializer_list>

#ifdef H3_EMULATE
#include "emulate_provider.h" /* tests run the kernels on the host */
#else
#include <cuda_runtime.h>
#endif

#include "h3/operator.h"

enum { H3_ANY = 0 }; /* in an expected shape: any size from 1 on */
enum { H3_CHUNKS = 6, H3_MODALITIES = 3 }; /* of a modulation table */

/* One call under check. While planning, tensors have shapes but no data, and there is no room for a message. */
struct h3_check {
    const h3_call *call;
    char *message;
    bool planning;
};

h3_check h3_check_plan(const h3_call *call, h3_call_plan *plan); /* empties the plan */
h3_check h3_check_call(h3_call *call);

/* These return 0 when all is well, else 1 with the message written. */
int h3_refuse(const h3_check &check, const char *format, ...) __attribute__((format(printf, 2, 3)));
int h3_want_device(const h3_check &check); /* and makes the call's device the current one */
int h3_want(const h3_check &check, const char *name, const h3_tensor &tensor, int32_t dtype, std::initializer_list<int64_t> shape);
int h3_want_like(const h3_check &check, const char *name, const h3_tensor &tensor, int32_t dtype, const h3_tensor &like);
int h3_want_activation(const h3_check &check, const char *name, const h3_tensor &tensor); /* F32 or BF16 */
/* As h3_want_like, or absent. */
int h3_want_optional(const h3_check &check, const char *name, const h3_tensor &tensor, int32_t dtype, const h3_tensor &like);
/* table [3T,6,width], row_index [rows], and a call's chunk such that `used` chunks from there on exist. */
int h3_want_table(const h3_check &check, const h3_tensor &table, const h3_tensor &index, int64_t rows, int64_t width, int used);

bool h3_present(const h3_check &check, const h3_tensor &tensor);

/*
 * Workspace is taken front to back in 256-byte steps. One function lays out what an operator needs; run on an arena without
 * memory it measures, for the plan. A copy of the arena gives back what the copy took.
 */
struct h3_arena {
    char *base; /* NULL: measuring */
    size_t used;
};

void *h3_take_bytes(h3_arena &arena, size_t bytes);
template <class T> T *h3_take(h3_arena &arena, int64_t count) { return (T *)h3_take_bytes(arena, (size_t)count * sizeof(T)); }
int h3_open_workspace(const h3_check &check, size_t needed, h3_arena &arena);

/* For operators that have no gradient: fails with a message. */
int h3_no_backward(h3_call *call);

void h3_declare_saved(h3_call_plan *plan, int32_t slot, int32_t dtype, std::initializer_list<int64_t> shape);

static inline cudaStream_t h3_stream(const h3_check &check) { return (cudaStream_t)check.call->stream; }
static inline size_t h3_size(bool bf16) { return bf16 ? sizeof(uint16_t) : sizeof(float); }
static inline void *h3_at(const void *data, int64_t i, bool bf16) { return (char *)data + i * (int64_t)h3_size(bf16); }

/* 0, or 1 with a message that says which kernel or function failed. */
int h3_succeeded(const h3_check &check, const char *what, cudaError_t code);
int h3_copy(const h3_check &check, const char *what, void *to, const void *from, size_t bytes); /* within the device */

/* Whether BF16 rows of `width` elements are whole packs of `many`, at places that a pack can be read from; absent tensors are. */
bool h3_in_packs(int64_t width, int many, std::initializer_list<const void *> tensors);

/* Blocks for `items` of work, `each` a block; kernels that take more items than blocks stride over the grid. */
unsigned h3_blocks(int64_t items, int64_t each);

/* Starts kernel(arguments...) on the call's stream. */
template <class... Parameters, class... Arguments>
int h3_launch(const h3_check &check, const char *name, void (*kernel)(Parameters...), unsigned blocks, unsigned threads, Arguments... arguments)
{
#ifdef H3_EMULATE
    h3_emulate(name, dim3(blocks), threads, 0, [=] { kernel(Parameters(arguments)...); });
#else
    kernel<<<blocks, threads, 0, h3_stream(check)>>>(Parameters(arguments)...);
#endif
    return h3_succeeded(check, name, cudaGetLastError());
}

/* Fills the report: what ran, and in which precision. */
void h3_ran(h3_call *call, const char *kernel, bool bf16);

#endif
