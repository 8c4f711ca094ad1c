/* How a GPU's copy engine sees a matrix. */
#ifndef H3_HOPPER_TENSOR_MAP_H
#define H3_HOPPER_TENSOR_MAP_H

#include <cuda.h>
#include <stdint.h>

/*
 * A matrix [rows][columns] of 16-bit elements in device memory whose rows follow each other, read in boxes of 64 columns and `box_rows` rows; each row of a box is 128 bytes
 * in shared memory, swizzled (hopper.cuh). Data at 16 bytes, columns a multiple of 8, box_rows 1 to 256, rows and columns below 2^31.
 * A cudaError_t: cudaErrorNotSupported where the driver has no such maps, cudaErrorInvalidValue for what it does not take.
 */
#ifdef __cplusplus
extern "C"
#endif
int h3_tensor_map(CUtensorMap *out, const void *data, int64_t rows, int64_t columns, int box_rows);

#endif
