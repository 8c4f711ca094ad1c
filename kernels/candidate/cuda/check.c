/* What every operator refuses, and in which words: a call is checked completely before anything is launched. */
#include <stdio.h>

#include "common.h"

#define LARGEST_DIMENSION (INT64_C(1) << 31)
#define LARGEST_COUNT (INT64_C(1) << 38)

void h3_require(h3_check *check, bool holds, const char *what, const char *problem)
{
    if (holds || check->problem) return;
    check->what = what;
    check->problem = problem;
}

static bool sane_dimensions(const h3_tensor *tensor)
{
    if (tensor->rank < 1 || tensor->rank > H3_MAX_RANK) return false;
    int64_t count = 1;
    bool empty = false;
    for (int32_t i = 0; i < tensor->rank; i++) {
        const int64_t size = tensor->shape[i];
        if (size < 0 || size > LARGEST_DIMENSION) return false;
        if (size == 0) empty = true;
        else if (count > LARGEST_COUNT / size) return false;
        else count *= size;
    }
    return !empty || tensor->shape[tensor->rank - 1] > 0;
}

void h3_need(h3_check *check, const h3_tensor *tensor, const char *what, int32_t dtype)
{
    if (check->problem) return;
    h3_require(check, tensor->rank != 0, what, "is absent");
    h3_require(check, sane_dimensions(tensor), what, "has impossible dimensions");
    h3_require(check, dtype != H3_BF16 || tensor->dtype == H3_BF16, what, "has another type, this library supports BF16 only");
    h3_require(check, dtype != H3_F32 || tensor->dtype == H3_F32, what, "has another type than F32");
    h3_require(check, dtype != H3_I32 || tensor->dtype == H3_I32, what, "has another type than I32");
    if (check->problem || !check->with_data) return;
    h3_require(check, tensor->data || h3_tensor_count(tensor) == 0, what, "has no memory");
    h3_require(check, h3_aligned(tensor->data, h3_dtype_size(dtype)), what, "is not aligned to its elements");
}

int64_t h3_rows_of(const h3_tensor *tensor)
{
    int64_t rows = 1;
    for (int32_t i = 0; i + 1 < tensor->rank; i++) rows *= tensor->shape[i];
    return rows;
}

void h3_need_rows(h3_check *check, const h3_tensor *tensor, const char *what, int32_t dtype, int64_t rows, int64_t width)
{
    h3_need(check, tensor, what, dtype);
    if (check->problem) return;
    h3_require(check, h3_width_of(tensor) == width, what, "has the wrong last dimension");
    h3_require(check, h3_rows_of(tensor) == rows, what, "has the wrong number of rows");
}

void h3_need_vector(h3_check *check, const h3_tensor *tensor, const char *what, int32_t dtype, int64_t length)
{
    h3_need_rows(check, tensor, what, dtype, 1, length);
    h3_require(check, check->problem || tensor->rank == 1, what, "is no vector");
}

void h3_may_rows(h3_check *check, const h3_tensor *tensor, const char *what, int32_t dtype, int64_t rows, int64_t width)
{
    if (h3_present(tensor)) h3_need_rows(check, tensor, what, dtype, rows, width);
}

void h3_need_index(h3_check *check, const h3_tensor *tensor, const char *what, int64_t rows)
{
    if (check->problem) return;
    /* An index of no rows is the one vector without elements. */
    const bool none = rows == 0 && tensor->rank == 1 && tensor->shape[0] == 0 && tensor->dtype == H3_I32;
    if (!none) h3_need_vector(check, tensor, what, H3_I32, rows);
}

int64_t h3_need_table(h3_check *check, const h3_tensor *table, const h3_tensor *row_index, int64_t rows, int64_t width)
{
    h3_need(check, table, "modulation table", H3_BF16);
    if (check->problem) return 0;
    h3_require(check, table->rank == 3 && table->shape[1] == H3_ROW_GRADS && table->shape[2] == width && table->shape[0] % 3 == 0,
               "modulation table", "is not [3T, 6, hidden_size]");
    if (check->problem) return 0;
    h3_need_index(check, row_index, "row_index", rows);
    return table->shape[0];
}

h3_check h3_begin(const h3_call *call)
{
    h3_check check = {.with_data = true};
    int current = -1;
    h3_require(&check, call->size >= sizeof(h3_call), "call", "is of another interface version");
    if (!check.problem) h3_require(&check, call->device == H3_DEVICE_CUDA, "device", "is no CUDA device");
    if (check.problem) return check;
    h3_require(&check, cudaGetDevice(&current) == cudaSuccess, "device", "is unavailable: CUDA does not start on this machine");
    if (check.problem || current == call->device_index) return check;
    h3_require(&check, cudaSetDevice(call->device_index) == cudaSuccess, "device_index", "names no usable CUDA device");
    return check;
}

void h3_need_workspace(h3_check *check, const h3_call *call, size_t bytes)
{
    if (bytes == 0) return;
    h3_require(check, call->workspace_bytes >= bytes, "workspace", "is smaller than planned");
    h3_require(check, call->workspace, "workspace", "has no memory");
    h3_require(check, h3_aligned(call->workspace, 256), "workspace", "is not aligned to 256 bytes");
}

int h3_refuse(h3_call *call, const h3_check *check)
{
    snprintf(call->message, sizeof call->message, "%s %s", check->what, check->problem);
    return 1;
}

int h3_done(h3_call *call, const char *kernel)
{
    snprintf(call->report.kernel, sizeof call->report.kernel, "%s", kernel);
    call->report.fallback = 0;
    return 0;
}

int h3_cuda_status(h3_call *call, const char *kernel, cudaError_t error)
{
    if (error == cudaSuccess) return 0;
    snprintf(call->message, sizeof call->message, "kernel %s: %s", kernel, cudaGetErrorString(error));
    return 1;
}
