/* How a GPU's copy engine sees a matrix. Host code. */
#ifndef H3_HOPPER_TENSOR_MAP_CUH
#define H3_HOPPER_TENSOR_MAP_CUH

#include <atomic>

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdint.h>

namespace {

typedef CUresult (*tensor_map_encode)(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *data, const cuuint64_t *sizes, const cuuint64_t *strides,
                                      const cuuint32_t *box, const cuuint32_t *steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                      CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill);

/* From the driver that is loaded, so that programs start where there is none; NULL where it has no such maps. */
inline tensor_map_encode find_tensor_map_encode()
{
    void *found = nullptr;
    cudaDriverEntryPointQueryResult result;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result) != cudaSuccess) return nullptr;
    return result == cudaDriverEntryPointSuccess ? (tensor_map_encode)found : nullptr;
}

inline tensor_map_encode known_tensor_map_encode()
{
    static const tensor_map_encode encode = find_tensor_map_encode();
    return encode;
}

/*
 * Matrices [items][rows][columns] of 16-bit elements in device memory, `pitch` elements from row to row, read in boxes of `box_rows` rows and 64 columns of one item; each row
 * of a box is 128 bytes in shared memory, swizzled (hopper.cuh). Data at 16 bytes, pitch a multiple of 8, box_rows 1 to 256, all sizes below 2^31, an item below 2^40 bytes.
 * A cudaError_t: cudaErrorNotSupported where the driver has no such maps, cudaErrorInvalidValue for what it does not take.
 */
inline int make_tensor_maps(CUtensorMap *out, const void *data, int64_t items, int64_t rows, int64_t columns, int64_t pitch, int box_rows, cuuint32_t rank)
{
    const tensor_map_encode encode = known_tensor_map_encode();
    const cuuint64_t sizes[] = {(cuuint64_t)columns, (cuuint64_t)rows, (cuuint64_t)items}, strides[] = {2 * (cuuint64_t)pitch, 2 * (cuuint64_t)pitch * (cuuint64_t)rows};
    const cuuint32_t box[] = {64, (cuuint32_t)box_rows, 1}, steps[] = {1, 1, 1};
    if (encode == nullptr) return cudaErrorNotSupported;
    const CUresult code = encode(out, CU_TENSOR_MAP_DATA_TYPE_UINT16, rank, const_cast<void *>(data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                 CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return code == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

/* One matrix whose rows follow each other, for boxes of two coordinates. */
inline int make_tensor_map(CUtensorMap *out, const void *data, int64_t rows, int64_t columns, int box_rows)
{
    return make_tensor_maps(out, data, 1, rows, columns, columns, box_rows, 2);
}

/* The current GPU's multiprocessors, 0 where kernels for sm_90a cannot run: another GPU, a driver without tensor maps, or a build without them. */
inline int hopper_processors()
{
#if defined(H3_HOPPER_BUILT) || defined(H3_EMULATE)
    static std::atomic<int> known[64]; /* of a GPU, and 1; 0: not asked yet */
    int device, major, minor, processors;
    if (cudaGetDevice(&device) != cudaSuccess || device < 0 || device >= 64) return 0;
    if (known[device] > 0) return known[device] - 1;
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess ||
        cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device) != cudaSuccess)
        return 0;
    if (major != 9 || minor != 0 || known_tensor_map_encode() == nullptr) processors = 0;
    known[device] = processors + 1;
    return processors;
#else
    return 0;
#endif
}

} // namespace

#endif
