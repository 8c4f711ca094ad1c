/*
 * NaNs where a library is about to write, for a program that is started with this library in LD_PRELOAD.
 *
 * compute-sanitizer's initcheck (2025.3.1) does not see all that kernels of cuBLASLt and cuDNN store, and then reports whoever reads it: 29,808 times in
 * nano's passes, always the same ones, in tensors that are right to the last bit. So the output of each of their calls is filled with NaNs first. That counts
 * as written; and an element that the library does leave out is a NaN, which no golden survives.
 *
 *   H3_POISON_SKIP=N    the Nth call of a library is left out: then a golden must fail
 *
 * Said at the end: how many calls were seen. None is a failure of the test that asked for it.
 */
#include <cublasLt.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef H3_CUDNN
#include <cudnn.h>
#include "cudnn/sdpa_graph.h"
#endif

typedef cublasStatus_t (*product_fn)(cublasLtHandle_t, cublasLtMatmulDesc_t, const void *, const void *, cublasLtMatrixLayout_t, const void *, cublasLtMatrixLayout_t,
                                     const void *, const void *, cublasLtMatrixLayout_t, void *, cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t *, void *, size_t,
                                     cudaStream_t);

static long calls, products, attentions;

static void give_up(const char *what)
{
    fprintf(stderr, "poison: %s\n", what);
    abort();
}

/* Copies the address of the real function to the pointer at `to`. */
static void find_real(const char *name, void *to)
{
    void *symbol = dlsym(RTLD_NEXT, name);
    if (symbol == NULL) give_up(dlerror());
    memcpy(to, &symbol, sizeof symbol);
}

static int is_left_out(void)
{
    const char *wish = getenv("H3_POISON_SKIP");
    return ++calls == (wish != NULL ? atol(wish) : 0);
}

__attribute__((destructor)) static void tell(void)
{
    if (calls > 0) fprintf(stderr, "poison: outputs of %ld products and %ld attentions were NaNs before\n", products, attentions);
}

/* --- cuBLASLt ------------------------------------------------------------------------------------------------------- */

static void get(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t name, void *value, size_t size)
{
    size_t written = 0;
    if (cublasLtMatrixLayoutGetAttribute(layout, name, value, size, &written) != CUBLAS_STATUS_SUCCESS || written != size) give_up("a layout of cuBLASLt that cannot be read");
}

static size_t size_of(uint32_t type)
{
    if (type == CUDA_R_32F) return 4;
    if (type != CUDA_R_16BF && type != CUDA_R_16F) give_up("a product of a type that nobody expected");
    return 2;
}

/* Column-major matrices, `stride` elements apart; what lies between the columns is not the product's. */
static void fill(void *data, cublasLtMatrixLayout_t layout, cudaStream_t stream)
{
    uint32_t type = 0;
    int32_t count = 0, order = 0;
    uint64_t rows = 0, columns = 0;
    int64_t step = 0, stride = 0;
    get(layout, CUBLASLT_MATRIX_LAYOUT_TYPE, &type, sizeof type);
    get(layout, CUBLASLT_MATRIX_LAYOUT_ORDER, &order, sizeof order);
    get(layout, CUBLASLT_MATRIX_LAYOUT_ROWS, &rows, sizeof rows);
    get(layout, CUBLASLT_MATRIX_LAYOUT_COLS, &columns, sizeof columns);
    get(layout, CUBLASLT_MATRIX_LAYOUT_LD, &step, sizeof step);
    get(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count);
    get(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride);
    const size_t size = size_of(type);
    if (order != CUBLASLT_ORDER_COL) give_up("a product in an order that nobody expected");
    for (int32_t i = 0; i < count; i++)
        if (cudaMemset2DAsync((char *)data + (size_t)(i * stride) * size, (size_t)step * size, 0xff, (size_t)rows * size, (size_t)columns, stream) != cudaSuccess)
            give_up("cannot fill a product's output");
}

/* Scalars are floats on the host here (kernels/provider/cuda/products.cu, src/media/video_ops_cuda.c). */
cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t description, const void *alpha, const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                              cublasLtMatrixLayout_t b_layout, const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t *algorithm, void *workspace, size_t bytes, cudaStream_t stream)
{
    product_fn real;
    float kept;
    memcpy(&kept, beta, sizeof kept);
    if (kept == 0.0f) {
        fill(d, d_layout, stream);
        products++;
    }
    if (is_left_out()) return CUBLAS_STATUS_SUCCESS;
    find_real("cublasLtMatmul", &real);
    return real(handle, description, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algorithm, workspace, bytes, stream);
}

/* --- cuDNN ---------------------------------------------------------------------------------------------------------- */

#ifdef H3_CUDNN

typedef CUresult (*range_fn)(CUdeviceptr *, size_t *, CUdeviceptr);
typedef cudnnStatus_t (*set_fn)(cudnnBackendDescriptor_t, cudnnBackendAttributeName_t, cudnnBackendAttributeType_t, int64_t, const void *);
typedef cudnnStatus_t (*execute_fn)(cudnnHandle_t, cudnnBackendDescriptor_t, cudnnBackendDescriptor_t);

/* What the next call is given; the library's own descriptors do not tell. */
static int64_t ids[H3_SDPA_TENSORS];
static void *pointers[H3_SDPA_TENSORS];

/* To the end of the allocation: items of a batch are written in ascending order, one call an item. */
static void fill_rest(void *data, cudaStream_t stream)
{
    range_fn range;
    CUdeviceptr first = 0;
    size_t bytes = 0;
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD), *symbol = driver != NULL ? dlsym(driver, "cuMemGetAddressRange_v2") : NULL;
    if (symbol == NULL) give_up(dlerror());
    memcpy(&range, &symbol, sizeof range);
    if (range(&first, &bytes, (CUdeviceptr)data) != CUDA_SUCCESS) give_up("an output of cuDNN outside all allocations");
    bytes -= (size_t)((CUdeviceptr)data - first);
    if (cudaMemsetAsync(data, 0xff, bytes, stream) != cudaSuccess) give_up("cannot fill an output of cuDNN");
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t to, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
    set_fn real;
    if (name == CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS || name == CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS) {
        if (count > H3_SDPA_TENSORS) give_up("a call of cuDNN with more tensors than attention has");
        if (name == CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS) memset(ids, 0, sizeof ids);
        memcpy(name == CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS ? (void *)ids : (void *)pointers, values, (size_t)count * 8);
    }
    find_real("cudnnBackendSetAttribute", &real);
    return real(to, name, type, count, values);
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack)
{
    execute_fn real;
    cudaStream_t stream;
    int filled = 0;
    if (cudnnGetStream(handle, &stream) != CUDNN_STATUS_SUCCESS) give_up("a call of cuDNN whose stream is not known");
    for (int i = 0; i < H3_SDPA_TENSORS; i++) {
        if (ids[i] != H3_SDPA_O && ids[i] != H3_SDPA_LSE) continue;
        fill_rest(pointers[i], stream);
        filled++;
    }
    if (filled == 0) give_up("a call of cuDNN without an output");
    attentions++;
    if (is_left_out()) return CUDNN_STATUS_SUCCESS;
    find_real("cudnnBackendExecute", &real);
    return real(handle, plan, pack);
}

#endif
