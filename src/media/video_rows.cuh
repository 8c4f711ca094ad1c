/* Parts of rows that several of the video decoder's kernels compute: gated pairs, and heads that are normed and rotated. */
#ifndef H3_MEDIA_VIDEO_ROWS_CUH
#define H3_MEDIA_VIDEO_ROWS_CUH

#include "video_device.cuh"

namespace {

template <bool Half> H3_DEVICE float gated(float value, float gate) { return __fmul_rn(value, Half ? rounded<true>(about_silu(gate)) : silu(gate)); }

/* Two of half precision in a word. */
H3_DEVICE uint32_t gated_pair(uint32_t value, uint32_t gate)
{
    return narrowed(gated<true>(widened((uint16_t)value), widened((uint16_t)gate))) |
           (uint32_t)narrowed(gated<true>(widened((uint16_t)(value >> 16)), widened((uint16_t)(gate >> 16)))) << 16;
}

H3_DEVICE uint4 gated_eight(uint4 v, uint4 g)
{
    const uint4 eight = {gated_pair(v.x, g.x), gated_pair(v.y, g.y), gated_pair(v.z, g.z), gated_pair(v.w, g.w)};
    return eight;
}

H3_DEVICE float4 scaled_sum(float4 v, float4 b, float4 s)
{
    return make_float4(__fadd_rn(v.x, __fmul_rn(b.x, s.x)), __fadd_rn(v.y, __fmul_rn(b.y, s.y)), __fadd_rn(v.z, __fmul_rn(b.z, s.z)), __fadd_rn(v.w, __fmul_rn(b.w, s.w)));
}

/* Four of half precision in two words. */
H3_DEVICE float4 four_of(uint32_t low, uint32_t high)
{
    return make_float4(widened((uint16_t)low), widened((uint16_t)(low >> 16)), widened((uint16_t)high), widened((uint16_t)(high >> 16)));
}

/*
 * Heads of 64 in half precision by eight lanes each, eight neighbouring elements a lane, with rotate_head's sums and roundings. The sum of a head: l and l + 32 in lane
 * l, then the lanes 16, 8, 4, 2 and 1 apart. Element 8 p + j is lane p's j-th, so the first three steps are between lanes 4, 2 and 1 apart (each lane goes on
 * with half of what it has; in the end lane p has the sums of j = p), and the others as well. A lane's ROWS heads are independent: what one waits for, others fill.
 */
template <int ROWS> H3_DEVICE void head_squares(float (&sums)[ROWS], const float (&v)[ROWS][8], int part)
{
    float t[ROWS][8];
#pragma unroll
    for (int i = 0; i < ROWS * 8; i++) t[i / 8][i % 8] = __fmul_rn(v[i / 8][i % 8], v[i / 8][i % 8]);
#pragma unroll
    for (int apart = 4; apart > 0; apart /= 2)
#pragma unroll
        for (int j = 0; j < apart; j++)
#pragma unroll
            for (int i = 0; i < ROWS; i++) {
                const float kept = part & apart ? t[i][j + apart] : t[i][j], given = part & apart ? t[i][j] : t[i][j + apart];
                t[i][j] = __fadd_rn(kept, __shfl_xor_sync(0xffffffffu, given, apart));
            }
#pragma unroll
    for (int apart = 4; apart > 0; apart /= 2)
#pragma unroll
        for (int i = 0; i < ROWS; i++) t[i][0] = __fadd_rn(t[i][0], __shfl_xor_sync(0xffffffffu, t[i][0], apart));
#pragma unroll
    for (int i = 0; i < ROWS; i++) sums[i] = t[i][0];
}

/* The angles of a lane: of its elements as the first of their pairs, or as the second. */
struct turns {
    float4 cosine[2], sine[2];
};

/* The lanes' angles of one row of tables [tokens][24]. */
H3_DEVICE turns turns_at(const float *cosine, const float *sine, int64_t token, int part)
{
    const float4 *c = (const float4 *)(cosine + token * 24 + 8 * (part % 3)), *s = (const float4 *)(sine + token * 24 + 8 * (part % 3));
    const turns turn = {{c[0], c[1]}, {s[0], s[1]}};
    return turn;
}

/* Lane `part`'s elements of a head, normed by `inverse` and turned, but those behind the pairs, which are only normed. */
H3_DEVICE uint4 turned_eight(const float (&v)[8], float inverse, const turns &turn, int part)
{
    const float c[8] = {turn.cosine[0].x, turn.cosine[0].y, turn.cosine[0].z, turn.cosine[0].w, turn.cosine[1].x, turn.cosine[1].y, turn.cosine[1].z, turn.cosine[1].w};
    const float s[8] = {turn.sine[0].x, turn.sine[0].y, turn.sine[0].z, turn.sine[0].w, turn.sine[1].x, turn.sine[1].y, turn.sine[1].z, turn.sine[1].w};
    const int other = part < 3 ? part + 3 : part < 6 ? part - 3 : part;
    uint32_t result[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const uint32_t own = narrowed(__fmul_rn(v[2 * k], inverse)) | (uint32_t)narrowed(__fmul_rn(v[2 * k + 1], inverse)) << 16;
        const uint32_t pair = __float_as_uint(__shfl_sync(0xffffffffu, __uint_as_float(own), (int)threadIdx.x % WARP / 8 * 8 + other));
        uint32_t turned = 0;
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int j = 2 * k + e;
            const float a = widened((uint16_t)(own >> 16 * e)), b = widened((uint16_t)(pair >> 16 * e));
            const float x = __fadd_rn(rounded<true>(__fmul_rn(a, c[j])), rounded<true>(__fmul_rn(part < 3 ? -b : b, s[j])));
            turned |= (uint32_t)narrowed(x) << 16 * e;
        }
        result[k] = part < 6 ? turned : own;
    }
    const uint4 out = {result[0], result[1], result[2], result[3]};
    return out;
}

/* `words`: the elements of lane `part` of eight, of ROWS heads; all lanes of a warp come here together. */
template <int ROWS> H3_DEVICE void rotate_64(uint4 (&words)[ROWS], const turns (&turn)[ROWS], int part, float epsilon)
{
    float v[ROWS][8], sums[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const uint32_t w[4] = {words[i].x, words[i].y, words[i].z, words[i].w};
#pragma unroll
        for (int j = 0; j < 8; j++) v[i][j] = widened((uint16_t)(w[j / 2] >> 16 * (j % 2)));
    }
    head_squares<ROWS>(sums, v, part);
#pragma unroll
    for (int i = 0; i < ROWS; i++) words[i] = turned_eight(v[i], about_inverse_root(__fadd_rn(__fmul_rn(sums[i], 1.0f / 64.0f), epsilon)), turn[i], part);
}

} // namespace

#endif
