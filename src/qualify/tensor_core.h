/*
 * The tensor core's k16 step on bfloat16 with an FP32 accumulator, exactly, as measured on the Hopper generation
 * (mma.sync m16n8k16 and wgmma alike). This is what stands behind the contract gemm-tc-k16-ascending-v1: any output of a product
 * can be recomputed on the host, bit for bit. Other generations of GPUs group and cut differently.
 *
 * A step adds 17 terms: 16 exact products and the accumulator. A product has the sum of its factors' exponents, its significand in
 * [1, 4) is not normalised. With E the largest exponent among the nonzero terms, each term is cut toward zero to a multiple of
 * 2^(E-25), the sum is exact, and it is cut toward zero to 24 bits (or to a multiple of 2^-149 when it is that small). An exact zero
 * is +0; too large a sum is infinite; whatever is no number is 0x7fffffff. Denormal factors count with their value, at exponent -126.
 */
#ifndef H3_QUALIFY_TENSOR_CORE_H
#define H3_QUALIFY_TENSOR_CORE_H

#include <stdint.h>

enum { H3_TENSOR_CORE_STEP = 16 };

/* c + sum over k of a[k] b[k] */
float h3_tensor_core_step(const uint16_t a[16], const uint16_t b[16], float c);

/*
 * The ascending chain: starts at `start` and takes depth / 16 steps over a[k * a_stride] and b[k * b_stride], the last one padded
 * with zeros, which changes nothing. A depth of 0 gives `start`. A product's output is the chain from +0.
 */
float h3_tensor_core_chain(const uint16_t *a, int64_t a_stride, const uint16_t *b, int64_t b_stride, int64_t depth, float start);

#endif
