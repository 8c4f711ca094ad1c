/*
 * The part of cublasLt that the provider uses, on the host: column-major D = alpha op(A) op(B) + beta C, strided batches, BF16, FP16 or float32, a bias behind the product,
 * one float32 sum over ascending k. Algorithms have made-up numbers. Leading dimensions and batches are checked as the library does.
 */
#include <string.h>

#include <cublasLt.h>

#include "base/half.h"
#include "h3/operator.h"

#include "emulate.h"
#include "emulate_failure.h"

void h3_emulated_memory(bool open); /* emulate_memory.cpp */

struct description {
    cublasComputeType_t compute;
    cublasOperation_t first, second;
    cublasLtEpilogue_t epilogue;
    const void *bias;
};

struct layout {
    cudaDataType_t type;
    uint64_t rows, columns;
    int64_t pitch, apart;
    int32_t count;
};

struct preference {
    uint64_t workspace;
    uint32_t schemes;
};

template <class T> static cublasStatus_t take(T &to, const void *from, size_t size)
{
    if (size != sizeof to) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(&to, from, size);
    return CUBLAS_STATUS_SUCCESS;
}

static float load(const void *data, cudaDataType_t type, int64_t i)
{
    if (type == CUDA_R_16F) return h3_f16_to_f32(((const uint16_t *)data)[i]);
    return type == CUDA_R_16BF ? __uint_as_float((uint32_t)((const uint16_t *)data)[i] << 16) : ((const float *)data)[i];
}

static void store(void *data, cudaDataType_t type, int64_t i, float value)
{
    if (type == CUDA_R_16BF) ((uint16_t *)data)[i] = (uint16_t)h3_bf_pair(value, 0.0f);
    else if (type == CUDA_R_16F) ((uint16_t *)data)[i] = h3_f32_to_f16(value);
    else ((float *)data)[i] = value;
}

/* Element (i, j) of op(matrix). */
static float element(const void *data, const layout &l, cublasOperation_t operation, int64_t i, int64_t j, int64_t item)
{
    int64_t row = operation == CUBLAS_OP_N ? i : j, column = operation == CUBLAS_OP_N ? j : i;
    return load(data, l.type, item * l.apart + column * l.pitch + row);
}

static bool agree(const description &d, const layout &a, const layout &b, const layout &c)
{
    uint64_t m = d.first == CUBLAS_OP_N ? a.rows : a.columns, ka = d.first == CUBLAS_OP_N ? a.columns : a.rows;
    uint64_t kb = d.second == CUBLAS_OP_N ? b.rows : b.columns, n = d.second == CUBLAS_OP_N ? b.columns : b.rows;
    bool pitches = (uint64_t)a.pitch >= a.rows && (uint64_t)b.pitch >= b.rows && (uint64_t)c.pitch >= c.rows;
    return m == c.rows && n == c.columns && ka == kb && a.type == b.type && pitches && a.count == b.count && b.count == c.count;
}

extern "C" {
cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    static int one;
    *handle = (cublasLtHandle_t)(void *)&one;
    return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion(void) { return 0; }
const char *cublasLtGetStatusString(cublasStatus_t status) { return status == CUBLAS_STATUS_INVALID_VALUE ? "invalid value" : "emulated status"; }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute, cudaDataType_t scale)
{
    if (scale != CUDA_R_32F || (compute != CUBLAS_COMPUTE_32F && compute != CUBLAS_COMPUTE_32F_PEDANTIC)) return CUBLAS_STATUS_INVALID_VALUE;
    *out = (cublasLtMatmulDesc_t)(void *)new description{compute, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, nullptr};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d)
{
    delete (description *)(void *)d;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t name, const void *value, size_t size)
{
    description *own = (description *)(void *)d;
    if (name == CUBLASLT_MATMUL_DESC_TRANSA) return take(own->first, value, size);
    if (name == CUBLASLT_MATMUL_DESC_EPILOGUE) return take(own->epilogue, value, size);
    if (name == CUBLASLT_MATMUL_DESC_BIAS_POINTER) return take(own->bias, value, size);
    return name == CUBLASLT_MATMUL_DESC_TRANSB ? take(own->second, value, size) : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type, uint64_t rows, uint64_t columns, int64_t pitch)
{
    if (type != CUDA_R_16BF && type != CUDA_R_16F && type != CUDA_R_32F) return CUBLAS_STATUS_INVALID_VALUE;
    *out = (cublasLtMatrixLayout_t)(void *)new layout{type, rows, columns, pitch, 0, 1};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
    delete (layout *)(void *)l;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l, cublasLtMatrixLayoutAttribute_t name, const void *value, size_t size)
{
    layout *own = (layout *)(void *)l;
    if (name == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) return take(own->count, value, size);
    return name == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET ? take(own->apart, value, size) : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out)
{
    *out = (cublasLtMatmulPreference_t)(void *)new preference{0, CUBLASLT_REDUCTION_SCHEME_MASK};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
    delete (preference *)(void *)p;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p, cublasLtMatmulPreferenceAttributes_t name, const void *value, size_t size)
{
    preference *own = (preference *)(void *)p;
    uint32_t alignment = 0;
    if (name == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) return take(own->workspace, value, size);
    if (name == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) return take(own->schemes, value, size);
    if (take(alignment, value, size) != CUBLAS_STATUS_SUCCESS || alignment < 2) return CUBLAS_STATUS_INVALID_VALUE;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t, cublasLtMatmulPreference_t p, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int *found)
{
    *found = 0;
    if (wanted < 1 || ((preference *)(void *)p)->schemes != CUBLASLT_REDUCTION_SCHEME_NONE) return CUBLAS_STATUS_INVALID_VALUE;
    if (!agree(*(description *)(void *)d, *(layout *)(void *)a, *(layout *)(void *)b, *(layout *)(void *)c)) return CUBLAS_STATUS_INVALID_VALUE;
    memset(results, 0, sizeof *results);
    results->state = CUBLAS_STATUS_SUCCESS;
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *, cublasLtMatmulAlgoConfigAttributes_t, void *value, size_t size, size_t *written)
{
    memset(value, 0, size);
    *written = size;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t d, const void *alpha, const void *first, cublasLtMatrixLayout_t a,
                              const void *second, cublasLtMatrixLayout_t b, const void *beta, const void *from, cublasLtMatrixLayout_t c, void *to,
                              cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t *, void *, size_t, cudaStream_t)
{
    const cudaError_t code = h3_emulated_cuda("cublasLtMatmul");
    if (code != cudaSuccess) return code == cudaErrorMemoryAllocation ? CUBLAS_STATUS_ALLOC_FAILED : CUBLAS_STATUS_EXECUTION_FAILED;
    const description &own = *(description *)(void *)d;
    const layout &la = *(layout *)(void *)a, &lb = *(layout *)(void *)b, &lc = *(layout *)(void *)c;
    const float scale = *(const float *)alpha, kept = *(const float *)beta;
    int64_t depth = (int64_t)(own.first == CUBLAS_OP_N ? la.columns : la.rows);
    h3_emulated_memory(true);
    for (int64_t item = 0; item < lc.count; item++) {
        for (int64_t j = 0; j < (int64_t)lc.columns; j++) {
            for (int64_t i = 0; i < (int64_t)lc.rows; i++) {
                float sum = 0.0f;
                int64_t place = item * lc.apart + j * lc.pitch + i;
                for (int64_t k = 0; k < depth; k++) sum += element(first, la, own.first, i, k, item) * element(second, lb, own.second, k, j, item);
                sum *= scale;
                if (own.epilogue == CUBLASLT_EPILOGUE_BIAS) sum += load(own.bias, lc.type, i);
                store(to, lc.type, place, kept == 0.0f ? sum : sum + kept * load(from, lc.type, place));
            }
        }
    }
    h3_emulated_memory(false);
    return CUBLAS_STATUS_SUCCESS;
}
}
