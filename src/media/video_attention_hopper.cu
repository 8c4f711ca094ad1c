/* Attention of the video decoder in half precision for heads of 64 on a Hopper GPU (src/hopper/attend.cuh): a running maximum over tiles of 96 keys; the sum is of the probabilities
 * before they are rounded, as video_ops.h says. 1,797 tokens are 19 such tiles with 27 keys to spare. */
#include "../hopper/attend.cuh"
#include "video_device.cuh"

namespace {

struct kind {
    static constexpr bool HALF = true;
    static constexpr int DEPTH = 64, KEYS = 96, STAGES = 4;
    struct state {
        float largest[2], sum[2];
    };

    static __device__ __forceinline__ void begin(state &s) { s = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}}; }
    static __device__ __forceinline__ void keep(state &s) { h3_steps_keep(s.sum); }

    /* scores[4 j + 2 r + e]: row r, column 8 j + e; weights[2 j + r] holds both columns */
    static __device__ __forceinline__ void update(state &s, float (&scores)[KEYS / 2], uint32_t (&weights)[KEYS / 4], float (&turn)[2], float octaves)
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float largest = s.largest[r];
#pragma unroll
            for (int j = 0; j < KEYS / 8; j++) largest = fmaxf(largest, fmaxf(scores[4 * j + 2 * r], scores[4 * j + 2 * r + 1]));
            largest = most_of_four(largest);
            turn[r] = power_of_two(__fmul_rn(octaves, __fsub_rn(s.largest[r], largest)));
            s.largest[r] = largest;
            const float offset = -__fmul_rn(largest, octaves);
            float sums[2] = {__fmul_rn(s.sum[r], turn[r]), 0.0f}; /* two chains, since one would be waited for */
#pragma unroll
            for (int j = 0; j < KEYS / 8; j++) {
                const float first = power_of_two(fmaf(scores[4 * j + 2 * r], octaves, offset)), second = power_of_two(fmaf(scores[4 * j + 2 * r + 1], octaves, offset));
                sums[0] = __fadd_rn(sums[0], first);
                sums[1] = __fadd_rn(sums[1], second);
                weights[2 * j + r] = h3_pair<true>(first, second);
            }
            s.sum[r] = __fadd_rn(sums[0], sums[1]);
        }
    }

    static __device__ __forceinline__ void finish(const attend_work &, const state &s, float (&inverse)[2], int64_t, int, int)
    {
        for (int r = 0; r < 2; r++) inverse[r] = about_inverse(sum_of_four(s.sum[r]));
    }
};

attend_work work_of(void *out, const void *qkv, int64_t tiles, int64_t tokens, int64_t heads)
{
    const int64_t width = heads * kind::DEPTH;
    attend_work w = {};
    w.q = (const uint16_t *)qkv, w.out = (uint16_t *)out;
    if (qkv != nullptr) w.k = w.q + width, w.v = w.k + width;
    w.items = tiles, w.queries = w.keys = tokens, w.heads = heads, w.pitch = 3 * width;
    w.octaves = 1.44269504088896340736f / 8.0f;
    return w;
}

} // namespace

int h3_video_attention_hopper_fits(const void *out, const void *qkv, int64_t tiles, int64_t tokens, int64_t heads, int64_t dim)
{
    return dim == kind::DEPTH && attend_fits<kind>(work_of((void *)(uintptr_t)out, qkv, tiles, tokens, heads));
}

int h3_video_start_attention_hopper(void *stream, uint16_t *out, const uint16_t *qkv, int64_t tiles, int64_t tokens, int64_t heads, int64_t)
{
    return attend_start<kind>(stream, "attention_hopper", work_of(out, qkv, tiles, tokens, heads));
}
