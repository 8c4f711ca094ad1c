/*
 * The part of cuDNN's backend API that attention uses (src/cudnn), on the host: the unified attention operation on BF16 or F16 tensors with four
 * dimensions, any strides, with or without log-sum-exp. What a descriptor lacks is found when it is finalized, as in the library. The heuristics offer three
 * configurations, and only the last is any good: the first has the note of being nondeterministic, and is, the second has no plan. Head sizes
 * that are no multiple of 8 have none at all. The workspace is written over, so that it must not be anything else.
 * H3_EMULATE_CUDNN breaks it, so that the tests can be tried: "log2" gives the log-sum-exp to base 2, "drift" other bytes in every run,
 * "coarse" rounds the probabilities to 4 bits, "refuse" has no plan for anything, "ill" fails to make plans and "lost" to run them.
 */
#ifdef H3_CUDNN

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <map>
#include <string>
#include <vector>

#include <cudnn.h>

#include "base/half.h"
#include "h3/operator.h"

#include "emulate.h"

void h3_emulated_memory(bool open); /* emulate_memory.cpp */

namespace {

constexpr int SDPA = 41, SDPA_FIRST = 2800, STATS = 4, WORKSPACE = 256;

struct attribute {
    int type;
    int64_t count;
    std::vector<char> bytes;
};

bool broken(const char *how)
{
    const char *text = getenv("H3_EMULATE_CUDNN");
    return text != nullptr && strcmp(text, how) == 0;
}

struct part {
    int type;
    bool finalized = false;
    int number = 0; /* of a configuration, its engine and its plan: 0, 1, 2 */
    std::map<int, attribute> attributes;
};

size_t size_of(int type)
{
    switch (type) {
    case CUDNN_TYPE_BOOLEAN: return sizeof(bool);
    case CUDNN_TYPE_INT64: return sizeof(int64_t);
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR: return sizeof(void *);
    case CUDNN_TYPE_DATA_TYPE:
    case CUDNN_TYPE_HEUR_MODE: return sizeof(int);
    default: return 0;
    }
}

part *part_of(cudnnBackendDescriptor_t descriptor) { return (part *)descriptor; }

/* Element i of an attribute, or `otherwise`. */
template <class T> T get(const part *p, int name, int64_t i = 0, T otherwise = T())
{
    auto found = p->attributes.find(name);
    T value = otherwise;
    if (found != p->attributes.end() && i < found->second.count && size_of(found->second.type) == sizeof value)
        memcpy(&value, found->second.bytes.data() + (size_t)i * sizeof value, sizeof value);
    return value;
}

/* The finalized descriptor that an attribute holds; NULL for none, or one of another type. */
part *inner(const part *p, int name, int type)
{
    part *found = part_of(get<cudnnBackendDescriptor_t>(p, name));
    return found != nullptr && found->type == type && found->finalized ? found : nullptr;
}

int64_t size(const part *tensor, int i) { return get<int64_t>(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, i); }
int64_t stride(const part *tensor, int i) { return get<int64_t>(tensor, CUDNN_ATTR_TENSOR_STRIDES, i); }

bool whole_tensor(const part *p)
{
    bool good = p->attributes.count(CUDNN_ATTR_TENSOR_DATA_TYPE) && get<int64_t>(p, CUDNN_ATTR_TENSOR_UNIQUE_ID) > 0;
    for (int i = 0; i < 4; i++) good = good && size(p, i) > 0 && stride(p, i) > 0;
    return good && get<int64_t>(p, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT) > 0 && !get<bool>(p, CUDNN_ATTR_TENSOR_IS_VIRTUAL);
}

bool has_sizes(const part *tensor, cudnnDataType_t type, int64_t a, int64_t b, int64_t c, int64_t d)
{
    return get<int>(tensor, CUDNN_ATTR_TENSOR_DATA_TYPE, 0, -1) == type && size(tensor, 0) == a && size(tensor, 1) == b && size(tensor, 2) == c &&
           size(tensor, 3) == d;
}

bool half_of(const part *tensor) { return get<int>(tensor, CUDNN_ATTR_TENSOR_DATA_TYPE, 0, -1) == CUDNN_DATA_HALF; }

bool whole_operation(const part *p)
{
    const part *t[6];
    for (int i = 0; i < 6; i++)
        if ((t[i] = inner(p, SDPA_FIRST + i, CUDNN_BACKEND_TENSOR_DESCRIPTOR)) == nullptr && (i != STATS || p->attributes.count(SDPA_FIRST + i))) return false;
    const cudnnDataType_t type = half_of(t[0]) ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16;
    int64_t batch = size(t[0], 0), heads = size(t[0], 1), queries = size(t[0], 2), width = size(t[0], 3), keys = size(t[1], 2);
    for (int i = 0; i < 4; i++)
        if (!has_sizes(t[i], type, batch, heads, i == 1 || i == 2 ? keys : queries, width) || get<bool>(t[i], CUDNN_ATTR_TENSOR_IS_BY_VALUE))
            return false;
    return (t[STATS] == nullptr || has_sizes(t[STATS], CUDNN_DATA_FLOAT, batch, heads, queries, 1)) && has_sizes(t[5], CUDNN_DATA_FLOAT, 1, 1, 1, 1) &&
           get<bool>(t[5], CUDNN_ATTR_TENSOR_IS_BY_VALUE);
}

cudnnStatus_t check(const part *p)
{
    bool good = false;
    switch (p->type) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR: good = whole_tensor(p); break;
    case SDPA: good = whole_operation(p); break;
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
        good = inner(p, CUDNN_ATTR_OPERATIONGRAPH_OPS, SDPA) != nullptr && get<void *>(p, CUDNN_ATTR_OPERATIONGRAPH_HANDLE) != nullptr;
        break;
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
        good = inner(p, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR) != nullptr &&
               get<int>(p, CUDNN_ATTR_ENGINEHEUR_MODE, 0, -1) == CUDNN_HEUR_MODE_A;
        break;
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR: {
        const part *configuration = inner(p, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
        good = configuration != nullptr && get<void *>(p, CUDNN_ATTR_EXECUTION_PLAN_HANDLE) != nullptr;
        if (broken("ill")) return CUDNN_STATUS_INTERNAL_ERROR;
        if (good && (configuration->number == 1 || broken("refuse"))) return CUDNN_STATUS_NOT_SUPPORTED;
        break;
    }
    case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR: good = get<void *>(p, CUDNN_ATTR_VARIANT_PACK_WORKSPACE) != nullptr; break;
    default: break;
    }
    return good ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}

/* The operation that a plan or a heuristic stands for. */
const part *operation_of(const part *p)
{
    const part *graph = inner(p, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    return graph != nullptr ? inner(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, SDPA) : nullptr;
}

float widened(uint16_t bits, bool half) { return half ? h3_f16_to_f32(bits) : h3_bf16_to_f32(bits); }
uint16_t narrowed(float value, bool half) { return half ? h3_f32_to_f16(value) : h3_f32_to_bf16(value); }

struct view {
    const part *tensor;
    void *data;
    int64_t at(int64_t a, int64_t b, int64_t c, int64_t d) const { return a * stride(tensor, 0) + b * stride(tensor, 1) + c * stride(tensor, 2) + d * stride(tensor, 3); }
    float load(int64_t a, int64_t b, int64_t c, int64_t d) const { return widened(((const uint16_t *)data)[at(a, b, c, d)], half_of(tensor)); }
};

/* One row of one head; p is rounded to the tensors' type before the product with v, and not divided yet. */
void attend(const view t[6], float scale, int64_t item, int64_t head, int64_t row)
{
    int64_t keys = size(t[1].tensor, 2), width = size(t[0].tensor, 3);
    const bool half = half_of(t[0].tensor);
    std::vector<float> score((size_t)keys), o((size_t)width, 0.0f);
    float most = -INFINITY, sum = 0;
    for (int64_t j = 0; j < keys; j++) {
        float s = 0;
        for (int64_t d = 0; d < width; d++) s += t[0].load(item, head, row, d) * t[1].load(item, head, j, d);
        score[(size_t)j] = s * scale;
        most = fmaxf(most, score[(size_t)j]);
    }
    for (int64_t j = 0; j < keys; j++) {
        float p = expf(score[(size_t)j] - most), rounded = widened(narrowed(p, half), half);
        if (broken("coarse")) rounded = ldexpf(rintf(ldexpf(p, 4)), -4);
        sum += p;
        for (int64_t d = 0; d < width; d++) o[(size_t)d] += rounded * t[2].load(item, head, j, d);
    }
    for (int64_t d = 0; d < width; d++) ((uint16_t *)t[3].data)[t[3].at(item, head, row, d)] = narrowed(o[(size_t)d] / sum, half);
    if (t[STATS].data != nullptr) ((float *)t[STATS].data)[t[STATS].at(item, head, row, 0)] = (most + logf(sum)) * (broken("log2") ? 1.442695f : 1.0f);
}

} // namespace

extern "C" {
size_t cudnnGetVersion(void) { return 91400; }
const char *cudnnGetErrorString(cudnnStatus_t status) { return status == CUDNN_STATUS_BAD_PARAM ? "bad parameter" : "emulated status"; }
void cudnnGetLastErrorString(char *message, size_t size) { if (size > 0) message[0] = 0; }

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle)
{
    static int one;
    *handle = (cudnnHandle_t)(void *)&one;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t) { return handle != nullptr ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM; }

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *out)
{
    part *made = new part;
    made->type = (int)type;
    *out = (cudnnBackendDescriptor_t)made;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor)
{
    delete part_of(descriptor);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t to, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                                       const void *values)
{
    if (to == nullptr || part_of(to)->finalized || size_of(type) == 0 || count < 1) return CUDNN_STATUS_BAD_PARAM;
    const char *bytes = (const char *)values;
    part_of(to)->attributes[(int)name] = {(int)type, count, std::vector<char>(bytes, bytes + (size_t)count * size_of(type))};
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor)
{
    part *p = part_of(descriptor);
    if (p == nullptr || p->finalized) return CUDNN_STATUS_BAD_PARAM;
    cudnnStatus_t status = check(p);
    p->finalized = status == CUDNN_STATUS_SUCCESS;
    return status;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                       int64_t wanted, int64_t *count, void *values)
{
    part *p = part_of(descriptor);
    if (p == nullptr || !p->finalized || wanted < 1) return CUDNN_STATUS_BAD_PARAM;
    *count = 1;
    switch ((int)name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS: {
        const part *operation = operation_of(p), *q = inner(operation, SDPA_FIRST, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
        *count = size(q, 3) % 8 != 0 ? 0 : wanted < 3 ? wanted : 3;
        for (int i = 0; i < *count; i++) {
            part *configuration = part_of(((cudnnBackendDescriptor_t *)values)[i]);
            configuration->finalized = true;
            configuration->number = i;
            configuration->attributes[CUDNN_ATTR_ENGINE_OPERATION_GRAPH] = p->attributes[CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH];
        }
        return CUDNN_STATUS_SUCCESS;
    }
    case CUDNN_ATTR_ENGINECFG_ENGINE:
        part_of(*(cudnnBackendDescriptor_t *)values)->finalized = true;
        part_of(*(cudnnBackendDescriptor_t *)values)->number = p->number;
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINECFG_KNOB_CHOICES: part_of(*(cudnnBackendDescriptor_t *)values)->finalized = true; return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE: *(int *)values = p->number == 0 ? CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC : CUDNN_NUMERICAL_NOTE_TENSOR_CORE; return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINE_GLOBAL_INDEX: *(int64_t *)values = p->number; return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE: *(int *)values = CUDNN_KNOB_TYPE_KERNEL_CFG; return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE: *(int64_t *)values = 7; return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE: *(int64_t *)values = WORKSPACE; return CUDNN_STATUS_SUCCESS;
    default: (void)type; return CUDNN_STATUS_BAD_PARAM;
    }
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t descriptor, cudnnBackendDescriptor_t variant)
{
    const part *plan = part_of(descriptor), *pack = part_of(variant);
    if (handle == nullptr || !plan->finalized || !pack->finalized) return CUDNN_STATUS_BAD_PARAM;
    if (broken("lost")) return CUDNN_STATUS_EXECUTION_FAILED;
    const part *configuration = inner(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    const part *graph = inner(configuration, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    const part *operation = inner(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, SDPA);
    view t[6] = {};
    for (int i = 0; i < 6; i++) {
        if (operation->attributes.count(SDPA_FIRST + i) == 0) continue; /* the log-sum-exp is not wanted */
        t[i] = {inner(operation, SDPA_FIRST + i, CUDNN_BACKEND_TENSOR_DESCRIPTOR), nullptr};
        for (int64_t n = 0; n < pack->attributes.at(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS).count; n++)
            if (get<int64_t>(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, n) == get<int64_t>(t[i].tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID))
                t[i].data = get<void *>(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, n);
        int64_t alignment = i == 5 ? 1 : get<int64_t>(t[i].tensor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
        if (t[i].data == nullptr || (uintptr_t)t[i].data % (uintptr_t)(i == STATS ? 4 : alignment) != 0) return CUDNN_STATUS_BAD_PARAM;
    }
    static int executions;
    float scale = *(const float *)t[5].data; /* by value: on the host */
    h3_emulated_memory(true);
    for (int64_t item = 0; item < size(t[0].tensor, 0); item++)
        for (int64_t head = 0; head < size(t[0].tensor, 1); head++)
            for (int64_t row = 0; row < size(t[0].tensor, 2); row++) attend(t, scale, item, head, row);
    memset(get<void *>(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE), 0xff, WORKSPACE);
    if (configuration->number == 0 || broken("drift")) *(uint16_t *)t[3].data ^= (uint16_t)(++executions & 1);
    h3_emulated_memory(false);
    return CUDNN_STATUS_SUCCESS;
}
}

#endif
