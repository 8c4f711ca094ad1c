#include "hopper/tensor_map.h"

#ifdef H3_CUDA
#include <cuda_runtime_api.h>

typedef CUresult (*encode)(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *data, const cuuint64_t *sizes, const cuuint64_t *strides,
                           const cuuint32_t *box, const cuuint32_t *steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                           CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill);

/* From the driver that is loaded, so that programs start where there is none. */
static encode find_encode(void)
{
    void *found = NULL;
    enum cudaDriverEntryPointQueryResult result;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result) != cudaSuccess) return NULL;
    return result == cudaDriverEntryPointSuccess ? (encode)(uintptr_t)found : NULL;
}

int h3_tensor_map(CUtensorMap *out, const void *data, int64_t rows, int64_t columns, int box_rows)
{
    static encode call; /* one thread of a process works with its GPU */
    const cuuint64_t sizes[] = {(cuuint64_t)columns, (cuuint64_t)rows}, strides[] = {2 * (cuuint64_t)columns};
    const cuuint32_t box[] = {64, (cuuint32_t)box_rows}, steps[] = {1, 1};
    if (call == NULL) call = find_encode();
    if (call == NULL) return cudaErrorNotSupported;
    const CUresult code = call(out, CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, (void *)(uintptr_t)data, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                               CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return code == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}
#else
typedef int h3_no_tensor_map; /* a translation unit may not be empty */
#endif
