/* Checks of a call's tensors, its workspace and its report. */
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>

#include "common.h"

static const int64_t count_limit = (int64_t)1 << 48;

h3_check h3_check_plan(const h3_call *call) { return (h3_check){.call = call, .message = NULL, .planning = 1}; }

h3_check h3_check_call(h3_call *call)
{
    memset(&call->report, 0, sizeof call->report);
    call->message[0] = '\0';
    return (h3_check){.call = call, .message = call->message, .planning = 0};
}

int h3_refuse(const h3_check *check, const char *format, ...)
{
    if (check->message != NULL) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(check->message, sizeof check->call->message, format, arguments);
        va_end(arguments);
    }
    return 1;
}

int h3_want_host(const h3_check *check)
{
    if (check->call->size < sizeof(h3_call))
        return h3_refuse(check, "the call has %u bytes where %zu are expected; rebuild the caller", check->call->size,
                         sizeof(h3_call));
    if (check->call->device != H3_DEVICE_CPU)
        return h3_refuse(check, "the call is for device %d; this library runs on the CPU", check->call->device);
    return 0;
}

int h3_present(const h3_check *check, const h3_tensor *tensor)
{
    return check->planning ? tensor->rank != 0 : tensor->data != NULL;
}

static const char *dtype_name(int32_t dtype)
{
    static const char *const names[] = {"nothing", "F32", "BF16", "I32", "I64", "F64"};
    return dtype >= 0 && dtype < (int32_t)(sizeof names / sizeof names[0]) ? names[dtype] : "an unknown type";
}

static void shape_text(char *text, size_t size, int32_t rank, const int64_t *shape)
{
    size_t used = (size_t)snprintf(text, size, "[");
    for (int32_t i = 0; i < rank && i < H3_MAX_RANK && used < size; i++) {
        const char *comma = i > 0 ? "," : "";
        if (shape[i] == H3_ANY) used += (size_t)snprintf(text + used, size - used, "%s*", comma);
        else used += (size_t)snprintf(text + used, size - used, "%s%lld", comma, (long long)shape[i]);
    }
    if (used < size) snprintf(text + used, size - used, "]");
}

/* Every dimension fits the int of a BLAS call, and products of dimensions stay far from overflow. */
static int shape_fits(const h3_tensor *tensor, int32_t rank, const int64_t *shape)
{
    int64_t count = 1, stride = 1;
    if (tensor->rank != rank) return 0;
    for (int32_t i = 0; i < rank; i++) {
        int64_t size = tensor->shape[i];
        if (size < 1 || size > INT_MAX || (shape[i] != H3_ANY && size != shape[i]) || count > count_limit / size) return 0;
        count *= size;
    }
    for (int32_t i = rank - 1; i >= 0; i--) {
        if (tensor->shape[i] != 1 && tensor->stride[i] != stride) return 0;
        stride *= tensor->shape[i];
    }
    return 1;
}

int h3_want(const h3_check *check, const char *name, const h3_tensor *tensor, int32_t dtype, int32_t rank, const int64_t *shape)
{
    char is[56], expected[56];
    if (!h3_present(check, tensor)) return h3_refuse(check, "%s is absent; it is needed", name);
    if (tensor->dtype == dtype && shape_fits(tensor, rank, shape)) return 0;
    shape_text(is, sizeof is, tensor->rank, tensor->shape);
    shape_text(expected, sizeof expected, rank, shape);
    return h3_refuse(check, "%s is %s %s; expected dense %s %s", name, dtype_name(tensor->dtype), is, dtype_name(dtype),
                     expected);
}

int h3_want_optional(const h3_check *check, const char *name, const h3_tensor *tensor, int32_t dtype, int32_t rank,
                     const int64_t *shape)
{
    return h3_present(check, tensor) ? h3_want(check, name, tensor, dtype, rank, shape) : 0;
}

int h3_want_activation(const h3_check *check, const char *name, const h3_tensor *tensor)
{
    if (!h3_present(check, tensor)) return h3_refuse(check, "%s is absent; it is needed", name);
    if (tensor->dtype == H3_F32 || tensor->dtype == H3_BF16) return 0;
    return h3_refuse(check, "%s is %s; expected F32 or BF16", name, dtype_name(tensor->dtype));
}

int h3_want_index(const h3_check *check, const char *name, const h3_tensor *tensor, int64_t rows, int64_t limit)
{
    if (h3_want(check, name, tensor, H3_I32, 1, H3_SHAPE(rows))) return 1;
    if (check->planning) return 0;
    const int32_t *index = tensor->data;
    for (int64_t row = 0; row < rows; row++) {
        if (index[row] < 0 || index[row] >= limit)
            return h3_refuse(check, "%s[%lld] is %d; expected 0 to %lld", name, (long long)row, index[row], (long long)limit - 1);
    }
    return 0;
}

int h3_want_table(const h3_check *check, const h3_tensor *table, const h3_tensor *index, int64_t rows, int64_t width, int used)
{
    int32_t chunk = check->call->chunk;
    if (h3_want(check, "table", table, check->call->in[0].dtype, 3, H3_SHAPE(H3_ANY, H3_CHUNKS, width))) return 1;
    if (table->shape[0] % H3_MODALITIES != 0)
        return h3_refuse(check, "table has %lld rows; expected a multiple of %d", (long long)table->shape[0], H3_MODALITIES);
    if (chunk < 0 || chunk > H3_CHUNKS - used) return h3_refuse(check, "chunk is %d; expected 0 to %d", chunk, H3_CHUNKS - used);
    return h3_want_index(check, "row_index", index, rows, table->shape[0]);
}

size_t h3_bytes(int64_t count, size_t size) { return ((size_t)count * size + 63) / 64 * 64; }

int h3_open_workspace(const h3_check *check, size_t needed, h3_arena *arena)
{
    const h3_call *call = check->call;
    arena->next = call->workspace;
    if (needed == 0) return 0;
    if (call->workspace == NULL || call->workspace_bytes < needed)
        return h3_refuse(check, "the workspace has %zu bytes; the plan asks for %zu",
                         call->workspace == NULL ? 0 : call->workspace_bytes, needed);
    if ((uintptr_t)call->workspace % 64 != 0) return h3_refuse(check, "the workspace is not aligned to 64 bytes");
    return 0;
}

void *h3_take(h3_arena *arena, int64_t count, size_t size)
{
    void *memory = arena->next;
    arena->next += h3_bytes(count, size);
    return memory;
}

void h3_declare_saved(h3_call_plan *plan, int32_t slot, int32_t dtype, int32_t rank, const int64_t *shape)
{
    h3_tensor *saved = &plan->saved[slot];
    int64_t stride = 1;
    saved->dtype = dtype;
    saved->rank = rank;
    for (int32_t i = rank - 1; i >= 0; i--) {
        saved->shape[i] = shape[i];
        saved->stride[i] = stride;
        stride *= shape[i];
    }
    if (plan->saved_count <= slot) plan->saved_count = slot + 1;
}

void h3_ran(h3_call *call, const char *kernel, int bf16)
{
    snprintf(call->report.kernel, sizeof call->report.kernel, "%s %s", kernel, bf16 ? "bf16" : "fp32");
    call->report.fallback = 0;
}
