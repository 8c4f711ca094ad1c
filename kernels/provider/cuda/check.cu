/* Checks of a call's tensors, its workspace, its launches and its report. Host code only. */
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>

#include "call.h"

static const int64_t count_limit = (int64_t)1 << 48;
static const size_t step = 256;

h3_check h3_check_plan(const h3_call *call, h3_call_plan *plan)
{
    memset(plan, 0, sizeof *plan);
    return {call, nullptr, true};
}

h3_check h3_check_call(h3_call *call)
{
    memset(&call->report, 0, sizeof call->report);
    call->message[0] = '\0';
    return {call, call->message, false};
}

int h3_refuse(const h3_check &check, const char *format, ...)
{
    if (check.message != nullptr) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(check.message, sizeof check.call->message, format, arguments);
        va_end(arguments);
    }
    return 1;
}

int h3_no_backward(h3_call *call)
{
    h3_check check = h3_check_call(call);
    return h3_refuse(check, "this operator has no gradient; do not call its backward");
}

int h3_want_device(const h3_check &check)
{
    const h3_call *call = check.call;
    if (call->size < sizeof(h3_call))
        return h3_refuse(check, "the call has %u bytes where %zu are expected; rebuild the caller", call->size, sizeof(h3_call));
    if (call->device != H3_DEVICE_CUDA)
        return h3_refuse(check, "the call is for device %d; this library runs on CUDA", call->device);
    return check.planning ? 0 : h3_succeeded(check, "cudaSetDevice", cudaSetDevice(call->device_index));
}

bool h3_present(const h3_check &check, const h3_tensor &tensor) { return check.planning ? tensor.rank != 0 : tensor.data != nullptr; }

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

/* Products of dimensions stay far from overflow, and rows fit a grid. */
static bool shape_fits(const h3_tensor &tensor, int32_t rank, const int64_t *shape)
{
    int64_t count = 1, stride = 1;
    if (tensor.rank != rank) return false;
    for (int32_t i = 0; i < rank; i++) {
        int64_t size = tensor.shape[i];
        if (size < 1 || size > INT_MAX || (shape[i] != H3_ANY && size != shape[i]) || count > count_limit / size) return false;
        count *= size;
    }
    for (int32_t i = rank - 1; i >= 0; i--) {
        if (tensor.shape[i] != 1 && tensor.stride[i] != stride) return false;
        stride *= tensor.shape[i];
    }
    return true;
}

static int want(const h3_check &check, const char *name, const h3_tensor &tensor, int32_t dtype, int32_t rank, const int64_t *shape)
{
    char is[56], expected[56];
    if (!h3_present(check, tensor)) return h3_refuse(check, "%s is absent; it is needed", name);
    if (tensor.dtype == dtype && shape_fits(tensor, rank, shape)) return 0;
    shape_text(is, sizeof is, tensor.rank, tensor.shape);
    shape_text(expected, sizeof expected, rank, shape);
    return h3_refuse(check, "%s is %s %s; expected dense %s %s", name, dtype_name(tensor.dtype), is, dtype_name(dtype), expected);
}

int h3_want(const h3_check &check, const char *name, const h3_tensor &tensor, int32_t dtype, std::initializer_list<int64_t> shape)
{
    return want(check, name, tensor, dtype, (int32_t)shape.size(), shape.begin());
}

int h3_want_like(const h3_check &check, const char *name, const h3_tensor &tensor, int32_t dtype, const h3_tensor &like)
{
    return want(check, name, tensor, dtype, like.rank, like.shape);
}

int h3_want_optional(const h3_check &check, const char *name, const h3_tensor &tensor, int32_t dtype, const h3_tensor &like)
{
    return h3_present(check, tensor) ? h3_want_like(check, name, tensor, dtype, like) : 0;
}

int h3_want_activation(const h3_check &check, const char *name, const h3_tensor &tensor)
{
    if (!h3_present(check, tensor)) return h3_refuse(check, "%s is absent; it is needed", name);
    if (tensor.dtype == H3_F32 || tensor.dtype == H3_BF16) return 0;
    return h3_refuse(check, "%s is %s; expected F32 or BF16", name, dtype_name(tensor.dtype));
}

int h3_want_table(const h3_check &check, const h3_tensor &table, const h3_tensor &index, int64_t rows, int64_t width, int used)
{
    int32_t chunk = check.call->chunk;
    if (h3_want(check, "table", table, check.call->in[0].dtype, {H3_ANY, H3_CHUNKS, width})) return 1;
    if (table.shape[0] % H3_MODALITIES != 0)
        return h3_refuse(check, "table has %lld rows; expected a multiple of %d", (long long)table.shape[0], H3_MODALITIES);
    if (chunk < 0 || chunk > H3_CHUNKS - used) return h3_refuse(check, "chunk is %d; expected 0 to %d", chunk, H3_CHUNKS - used);
    return h3_want(check, "row_index", index, H3_I32, {rows});
}

void *h3_take_bytes(h3_arena &arena, size_t bytes)
{
    void *memory = arena.base != nullptr ? arena.base + arena.used : nullptr;
    arena.used += (bytes + step - 1) / step * step;
    return memory;
}

int h3_open_workspace(const h3_check &check, size_t needed, h3_arena &arena)
{
    const h3_call *call = check.call;
    arena = {(char *)call->workspace, 0};
    if (needed == 0) return 0;
    if (call->workspace == nullptr || call->workspace_bytes < needed)
        return h3_refuse(check, "the workspace has %zu bytes; the plan asks for %zu", call->workspace == nullptr ? 0 : call->workspace_bytes,
                         needed);
    if ((uintptr_t)call->workspace % step != 0) return h3_refuse(check, "the workspace is not aligned to %zu bytes", step);
    return 0;
}

void h3_declare_saved(h3_call_plan *plan, int32_t slot, int32_t dtype, std::initializer_list<int64_t> shape)
{
    h3_tensor *saved = &plan->saved[slot];
    int64_t stride = 1;
    saved->dtype = dtype;
    saved->rank = (int32_t)shape.size();
    for (int32_t i = saved->rank - 1; i >= 0; i--) {
        saved->shape[i] = shape.begin()[i];
        saved->stride[i] = stride;
        stride *= saved->shape[i];
    }
    if (plan->saved_count <= slot) plan->saved_count = slot + 1;
}

int h3_succeeded(const h3_check &check, const char *what, cudaError_t code)
{
    return code == cudaSuccess ? 0 : h3_refuse(check, "%s on GPU %d: %s", what, check.call->device_index, cudaGetErrorString(code));
}

int h3_copy(const h3_check &check, const char *what, void *to, const void *from, size_t bytes)
{
    return h3_succeeded(check, what, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, h3_stream(check)));
}

bool h3_in_packs(int64_t width, int many, std::initializer_list<const void *> tensors)
{
    const uintptr_t bytes = (uintptr_t)many * sizeof(uint16_t);
    for (const void *tensor : tensors)
        if ((uintptr_t)tensor % bytes != 0) return false;
    return width % many == 0;
}

unsigned h3_blocks(int64_t items, int64_t each)
{
#ifdef H3_EMULATE
    const int64_t most = 3; /* so that striding over the grid is met with small tensors */
#else
    const int64_t most = 1 << 20;
#endif
    int64_t blocks = (items + each - 1) / each;
    return (unsigned)(blocks < most ? blocks : most);
}

void h3_ran(h3_call *call, const char *kernel, bool bf16)
{
    snprintf(call->report.kernel, sizeof call->report.kernel, "%.80s %s", kernel, bf16 ? "bf16" : "fp32");
    call->report.fallback = 0;
}
