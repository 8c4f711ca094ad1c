/* The running softmax of attention's forward pass, for accumulators of m16n8 fragments or of a warp of wgmma, which hold the same places. The order stands in attention.cu. */
#ifndef H3_CANDIDATE_CUDA_SOFTMAX_CUH
#define H3_CANDIDATE_CUDA_SOFTMAX_CUH

#include "device.cuh"

namespace {

constexpr int KEYS = 64; /* of a tile */

/* Running state of the two rows (lane / 4 and + 8) that a lane works on. */
struct softmax_state {
    float largest[2], sums[2][2], rounded_sums[2][2]; /* of the probabilities' even and odd columns, before and after they are rounded */
};

__device__ __forceinline__ void begin_softmax(softmax_state &state)
{
    state = {{-INFINITY, -INFINITY}, {{0.0f, 0.0f}, {0.0f, 0.0f}}, {{0.0f, 0.0f}, {0.0f, 0.0f}}};
}

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
        turn[half] = h3_exp2(octaves * (state.largest[half] - largest));
        state.largest[half] = largest;
        const float offset = -(largest * octaves);
        float(&sums)[2] = state.sums[half], (&rounded)[2] = state.rounded_sums[half];
#pragma unroll
        for (int e = 0; e < 2; e++) {
            sums[e] = sums[e] * turn[half];
            rounded[e] = rounded[e] * turn[half];
        }
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++) {
            const float first = h3_exp2(fmaf(scores[j][2 * half], octaves, offset)), second = h3_exp2(fmaf(scores[j][2 * half + 1], octaves, offset));
            const uint32_t pair = h3_bf_pair(first, second);
            weights[j][half] = pair;
            sums[0] = sums[0] + first;
            sums[1] = sums[1] + second;
            rounded[0] = rounded[0] + __uint_as_float(pair << 16);
            rounded[1] = rounded[1] + __uint_as_float(pair & 0xffff0000u);
        }
    }
}

/* A row's sum of its parts, in all four lanes that share it. */
__device__ __forceinline__ float sum_of_parts(const float (&parts)[2])
{
    float sum = parts[0] + parts[1];
    sum = sum + __shfl_xor_sync(H3_FULL_WARP, sum, 1);
    return sum + __shfl_xor_sync(H3_FULL_WARP, sum, 2);
}

} // namespace

#endif
