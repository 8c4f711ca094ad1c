/* The running softmax of attention's forward pass, for accumulators of m16n8 fragments or of a warp of wgmma, which hold the same places. The order stands in attention.cu. */
#ifndef H3_CANDIDATE_CUDA_SOFTMAX_CUH
#define H3_CANDIDATE_CUDA_SOFTMAX_CUH

#include "device.cuh"

namespace {

constexpr int KEYS = 64; /* of a tile */

/* Running state of the two rows (lane / 4 and + 8) that a lane works on. */
struct softmax_state {
    float largest[2], sum[2], rounded_sum[2];
};

/* Scores of a tile become rounded probabilities; returns in `turn` what the older sums are multiplied by. */
__device__ __forceinline__ void update_softmax(softmax_state &state, float (&scores)[KEYS / 8][4], uint32_t (&weights)[KEYS / 8][2], float (&turn)[2],
                                               float octaves)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float largest = state.largest[half];
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++) largest = fmaxf(largest, fmaxf(scores[j][2 * half], scores[j][2 * half + 1]));
        largest = fmaxf(largest, __shfl_xor_sync(H3_FULL_WARP, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(H3_FULL_WARP, largest, 2));
        turn[half] = exp2f(octaves * (state.largest[half] - largest));
        state.largest[half] = largest;
        const float offset = -(largest * octaves);
        float sum = state.sum[half] * turn[half], rounded_sum = state.rounded_sum[half] * turn[half];
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++) {
            const float first = exp2f(fmaf(scores[j][2 * half], octaves, offset)), second = exp2f(fmaf(scores[j][2 * half + 1], octaves, offset));
            const uint32_t pair = h3_bf_pair(first, second);
            weights[j][half] = pair;
            sum = sum + first;
            sum = sum + second;
            rounded_sum = rounded_sum + __uint_as_float(pair << 16);
            rounded_sum = rounded_sum + __uint_as_float(pair & 0xffff0000u);
        }
        state.sum[half] = sum;
        state.rounded_sum[half] = rounded_sum;
    }
}

__device__ __forceinline__ float quad_sum(float sum)
{
    sum = sum + __shfl_xor_sync(H3_FULL_WARP, sum, 1);
    return sum + __shfl_xor_sync(H3_FULL_WARP, sum, 2);
}

} // namespace

#endif
