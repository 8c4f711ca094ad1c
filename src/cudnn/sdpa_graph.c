/* cuDNN's descriptors, from tensors to an execution plan; see sdpa_graph.h. */
#include "sdpa.h"

#ifdef H3_CUDNN

#include "sdpa_graph.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* The unified attention operation, since cuDNN 9.13. By number, because older headers lack the names; an older library refuses them. */
enum {
    SDPA_FORWARD = 41,
    SDPA_Q = 2800,
    SDPA_K = 2801,
    SDPA_V = 2802,
    SDPA_O = 2803,
    SDPA_STATS = 2804,
    SDPA_SCALE = 2805
};

enum { DIMENSIONS = 4, CONFIGURATIONS = 8, KNOBS = 32 };

/* The first failure stays in `status`, and what follows it does nothing. */
typedef struct builder {
    cudnnStatus_t status;
    h3_sdpa_parts *parts;
} builder;

static cudnnBackendDescriptor_t make(builder *b, int type)
{
    cudnnBackendDescriptor_t made = NULL;
    if (b->status != CUDNN_STATUS_SUCCESS) return NULL;
    if (b->parts->count == H3_SDPA_DESCRIPTORS) b->status = CUDNN_STATUS_INTERNAL_ERROR;
    else b->status = cudnnBackendCreateDescriptor((cudnnBackendDescriptorType_t)type, &made);
    if (b->status == CUDNN_STATUS_SUCCESS) b->parts->made[b->parts->count++] = made;
    return made;
}

static void set(builder *b, cudnnBackendDescriptor_t to, int name, cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
    if (b->status == CUDNN_STATUS_SUCCESS) b->status = cudnnBackendSetAttribute(to, (cudnnBackendAttributeName_t)name, type, count, values);
}

static void set_part(builder *b, cudnnBackendDescriptor_t to, int name, cudnnBackendDescriptor_t part)
{
    set(b, to, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &part);
}

static void finalize(builder *b, cudnnBackendDescriptor_t part)
{
    if (b->status == CUDNN_STATUS_SUCCESS) b->status = cudnnBackendFinalize(part);
}

void h3_sdpa_parts_free(h3_sdpa_parts *parts)
{
    while (parts->count > 0) cudnnBackendDestroyDescriptor(parts->made[--parts->count]);
}

/* --- the graph: one operation ----------------------------------------------------------------------------------------- */

static cudnnBackendDescriptor_t tensor(builder *b, int64_t id, cudnnDataType_t type, const int64_t *sizes, const int64_t *strides, bool by_value)
{
    const int64_t alignment = H3_SDPA_ALIGNMENT;
    cudnnBackendDescriptor_t made = make(b, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    set(b, made, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    set(b, made, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(b, made, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    set(b, made, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, DIMENSIONS, sizes);
    set(b, made, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, DIMENSIONS, strides);
    if (by_value) set(b, made, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
    finalize(b, made);
    return made;
}

/* [items, rows, heads, head_dim] in memory; cuDNN names the dimensions batch, head, row, channel. */
static cudnnBackendDescriptor_t rows_of_heads(builder *b, int64_t id, const h3_sdpa_shape *shape, int64_t rows, h3_sdpa_steps steps)
{
    const int64_t sizes[] = {shape->items, shape->heads, rows, shape->head_dim}, strides[] = {steps.item, shape->head_dim, steps.row, 1};
    return tensor(b, id, shape->dtype == H3_F16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16, sizes, strides, false);
}

static cudnnBackendDescriptor_t log_sum_exp(builder *b, const h3_sdpa_shape *shape)
{
    const int64_t sizes[] = {shape->items, shape->heads, shape->queries, 1}, strides[] = {shape->heads * shape->queries, shape->queries, 1, 1};
    return tensor(b, H3_SDPA_LSE, CUDNN_DATA_FLOAT, sizes, strides, false);
}

static cudnnBackendDescriptor_t attention(builder *b, const h3_sdpa_shape *shape)
{
    const int64_t one[] = {1, 1, 1, 1};
    cudnnBackendDescriptor_t q = rows_of_heads(b, H3_SDPA_Q, shape, shape->queries, shape->q), k = rows_of_heads(b, H3_SDPA_K, shape, shape->keys, shape->k);
    cudnnBackendDescriptor_t v = rows_of_heads(b, H3_SDPA_V, shape, shape->keys, shape->v), o = rows_of_heads(b, H3_SDPA_O, shape, shape->queries, shape->o);
    cudnnBackendDescriptor_t lse = shape->with_lse ? log_sum_exp(b, shape) : NULL;
    cudnnBackendDescriptor_t scale = tensor(b, H3_SDPA_SCALE, CUDNN_DATA_FLOAT, one, one, true);
    cudnnBackendDescriptor_t made = make(b, SDPA_FORWARD);
    set_part(b, made, SDPA_Q, q);
    set_part(b, made, SDPA_K, k);
    set_part(b, made, SDPA_V, v);
    set_part(b, made, SDPA_O, o);
    if (shape->with_lse) set_part(b, made, SDPA_STATS, lse);
    set_part(b, made, SDPA_SCALE, scale);
    finalize(b, made);
    return made;
}

static cudnnBackendDescriptor_t graph_of(builder *b, cudnnBackendDescriptor_t operation, cudnnHandle_t handle)
{
    cudnnBackendDescriptor_t made = make(b, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set_part(b, made, CUDNN_ATTR_OPERATIONGRAPH_OPS, operation);
    if (handle != NULL) set(b, made, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    finalize(b, made);
    return made;
}

/* --- the choice ------------------------------------------------------------------------------------------------------- */

/* The heuristics' first configurations, best first; returns how many. */
static int64_t configurations(builder *b, cudnnBackendDescriptor_t graph, cudnnBackendDescriptor_t properties, cudnnBackendDescriptor_t *found)
{
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    int64_t count = 0;
    cudnnBackendDescriptor_t heuristics = make(b, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    set_part(b, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    set(b, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    if (properties != NULL) set_part(b, heuristics, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, properties);
    finalize(b, heuristics);
    for (int i = 0; i < CONFIGURATIONS; i++) found[i] = make(b, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (b->status != CUDNN_STATUS_SUCCESS) return 0;
    b->status = cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, CONFIGURATIONS, &count, found);
    if (b->status != CUDNN_STATUS_SUCCESS || count < 0) return 0;
    return count < CONFIGURATIONS ? count : CONFIGURATIONS;
}

/* Whether the engine repeats its bytes. An engine that does not say what it is like is not taken. */
static bool repeats(cudnnBackendDescriptor_t engine)
{
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    int64_t count = 0;
    if (cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count, notes) !=
        CUDNN_STATUS_SUCCESS)
        return false;
    for (int64_t i = 0; i < count && i < CUDNN_NUMERICAL_NOTE_TYPE_COUNT; i++)
        if (notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) return false;
    return true;
}

/* Adds "-k24=7" for a knob. */
static void name_knob(h3_sdpa *out, cudnnBackendDescriptor_t choice)
{
    const size_t used = strlen(out->name);
    cudnnBackendKnobType_t type;
    int64_t value = 0, count = 0;
    if (cudnnBackendGetAttribute(choice, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &count, &type) != CUDNN_STATUS_SUCCESS) return;
    if (cudnnBackendGetAttribute(choice, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, &count, &value) != CUDNN_STATUS_SUCCESS) return;
    snprintf(out->name + used, sizeof out->name - used, "-k%d=%lld", (int)type, (long long)value);
}

static void name_plan(h3_sdpa *out, cudnnBackendDescriptor_t configuration, cudnnBackendDescriptor_t engine)
{
    const size_t version = cudnnGetVersion();
    cudnnBackendDescriptor_t knobs[KNOBS];
    h3_sdpa_parts parts = {0};
    builder b = {CUDNN_STATUS_SUCCESS, &parts};
    int64_t index = -1, count = 0;
    cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &count, &index);
    snprintf(out->name, sizeof out->name, "cudnn-%zu.%zu.%zu-eng%lld", version / 10000, version / 100 % 100, version % 100, (long long)index);
    for (int i = 0; i < KNOBS; i++) knobs[i] = make(&b, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
    if (b.status == CUDNN_STATUS_SUCCESS &&
        cudnnBackendGetAttribute(configuration, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR, KNOBS, &count, knobs) == CUDNN_STATUS_SUCCESS)
        for (int64_t i = 0; i < count && i < KNOBS; i++) name_knob(out, knobs[i]);
    h3_sdpa_parts_free(&parts);
}

/* Makes the plan of one configuration. A configuration that is not to be had leaves nothing behind but the reason. */
static cudnnStatus_t try_configuration(h3_sdpa *out, builder *b, cudnnBackendDescriptor_t configuration, cudnnHandle_t handle,
                                       cudnnBackendDescriptor_t properties)
{
    const int before = b->parts->count;
    int64_t count = 0, workspace = -1;
    cudnnBackendDescriptor_t engine = make(b, CUDNN_BACKEND_ENGINE_DESCRIPTOR), plan = make(b, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    if (b->status == CUDNN_STATUS_SUCCESS)
        b->status = cudnnBackendGetAttribute(configuration, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &engine);
    if (b->status == CUDNN_STATUS_SUCCESS && !repeats(engine)) b->status = CUDNN_STATUS_NOT_SUPPORTED;
    set_part(b, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration);
    if (handle != NULL) set(b, plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    else set_part(b, plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, properties);
    finalize(b, plan);
    if (b->status == CUDNN_STATUS_SUCCESS)
        b->status = cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count, &workspace);
    if (b->status == CUDNN_STATUS_SUCCESS && workspace < 0) b->status = CUDNN_STATUS_INTERNAL_ERROR;
    const cudnnStatus_t status = b->status;
    if (status == CUDNN_STATUS_SUCCESS) {
        out->plan = plan;
        out->workspace = (size_t)workspace;
        name_plan(out, configuration, engine);
    }
    b->status = CUDNN_STATUS_SUCCESS;
    while (status != CUDNN_STATUS_SUCCESS && b->parts->count > before) cudnnBackendDestroyDescriptor(b->parts->made[--b->parts->count]);
    return status;
}

/*
 * cuDNN opens NVRTC by its name, and NVRTC its headers, only where the loader looks by itself; CUDA may lie elsewhere. The object that this is linked
 * into knows where (its run path), and what it has opened is found by name from then on. Without them cuDNN says itself that it cannot compile.
 */
static void open_compiler(void)
{
    static bool tried;
    char name[40];
    if (tried) return;
    tried = true;
    snprintf(name, sizeof name, "libnvrtc.so.%d", CUDART_VERSION / 1000);
    dlopen(name, RTLD_NOW);
    snprintf(name, sizeof name, "libnvrtc-builtins.so.%d.%d", CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    dlopen(name, RTLD_NOW);
}

void h3_sdpa_build(h3_sdpa *out, h3_sdpa_parts *parts, const h3_sdpa_shape *shape, cudnnHandle_t handle, cudnnBackendDescriptor_t properties)
{
    cudnnBackendDescriptor_t found[CONFIGURATIONS];
    cudnnStatus_t last = CUDNN_STATUS_NOT_SUPPORTED; /* the heuristics know nothing */
    *out = (h3_sdpa){0};
    parts->count = 0;
    builder b = {CUDNN_STATUS_SUCCESS, parts};
    open_compiler();
    const cudnnBackendDescriptor_t graph = graph_of(&b, attention(&b, shape), handle);
    const int64_t count = configurations(&b, graph, handle == NULL ? properties : NULL, found);
    if (b.status != CUDNN_STATUS_SUCCESS) last = b.status;
    for (int64_t i = 0; i < count && out->plan == NULL; i++) last = try_configuration(out, &b, found[i], handle, properties);
    out->status = (int)last;
    if (out->plan == NULL) h3_sdpa_parts_free(parts);
}

#endif
