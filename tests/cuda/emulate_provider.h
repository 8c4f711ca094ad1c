/*
 * What the provider's kernels need of the emulated GPU besides emulate.h: roundings by name and sums of doubles.
 */
#ifndef H3_TESTS_CUDA_EMULATE_PROVIDER_H
#define H3_TESTS_CUDA_EMULATE_PROVIDER_H

#include "h3/operator.h"

#include "emulate.h"

/* Built without contraction, so every operation is rounded by itself. */
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline float __frcp_rn(float a) { return 1.0f / a; }

inline double __shfl_down_sync(unsigned mask, double value, int offset)
{
    float halves[2];
    memcpy(halves, &value, sizeof value);
    for (float &half : halves) half = __shfl_down_sync(mask, half, offset);
    memcpy(&value, halves, sizeof value);
    return value;
}

#endif
