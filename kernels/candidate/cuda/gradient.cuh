/* Scores to probabilities and gradients, for every kernel of attention's backward pass: the same operations, each rounded. The formulas stand in attention_backward.cu. */
#ifndef H3_CANDIDATE_CUDA_GRADIENT_CUH
#define H3_CANDIDATE_CUDA_GRADIENT_CUH

#include "device.cuh"

namespace {

/* lse: times log2(e). */
__device__ __forceinline__ float probability(float score, float octaves, float lse) { return h3_exp2(fmaf(score, octaves, -lse)); }

__device__ __forceinline__ float score_gradient(float p, float dp, float delta) { return p * (dp - delta); }

} // namespace

#endif
