/* Eight lanes of float: bfloat16 loads, stores and rounding, a fixed-order lane sum, and exp. */
#ifndef H3_CANDIDATE_VECTOR_H
#define H3_CANDIDATE_VECTOR_H

#include <immintrin.h>

#include "h3/operator.h"

/* Loads min(count, 8) values; missing lanes are zero. A full vector and a tail take the same arithmetic afterwards,
 * so the bits of an element never depend on where a row ends. */
static inline __m256 h3_load8(const uint16_t *from, int64_t count)
{
    uint16_t lanes[8] = {0};
    if (count < 8) {
        memcpy(lanes, from, (size_t)count * sizeof *from);
        from = lanes;
    }
    const __m128i half = _mm_loadu_si128((const __m128i *)(const void *)from);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

static inline __m256 h3_load8_f32(const float *from, int64_t count)
{
    float lanes[8] = {0};
    if (count >= 8) return _mm256_loadu_ps(from);
    memcpy(lanes, from, (size_t)count * sizeof *from);
    return _mm256_loadu_ps(lanes);
}

static inline void h3_store8_f32(float *to, __m256 value, int64_t count)
{
    float lanes[8];
    if (count >= 8) {
        _mm256_storeu_ps(to, value);
        return;
    }
    _mm256_storeu_ps(lanes, value);
    memcpy(to, lanes, (size_t)count * sizeof *to);
}

/* bf(value), still as float: to nearest, ties to even, NaN stays a quiet NaN. The same bits as h3_f32_to_bf16. */
static inline __m256 h3_round8(__m256 value)
{
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256 unordered = _mm256_cmp_ps(value, value, _CMP_UNORD_Q);
    const __m256 chosen = _mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(quiet), unordered);
    return _mm256_and_ps(chosen, _mm256_castsi256_ps(_mm256_set1_epi32((int)0xffff0000u)));
}

/* Rounds to bfloat16 and stores min(count, 8) values. */
static inline void h3_store8(uint16_t *to, __m256 value, int64_t count)
{
    const __m256i high = _mm256_srli_epi32(_mm256_castps_si256(h3_round8(value)), 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0x08);
    const __m128i half = _mm256_castsi256_si128(packed);
    if (count >= 8) {
        _mm_storeu_si128((__m128i *)(void *)to, half);
        return;
    }
    uint16_t lanes[8];
    _mm_storeu_si128((__m128i *)(void *)lanes, half);
    memcpy(to, lanes, (size_t)count * sizeof *to);
}

/* Sum of the lanes: (i) + (i + 4), then + 2, then + 1. */
static inline float h3_sum8(__m256 value)
{
    __m128 sum = _mm_add_ps(_mm256_castps256_ps128(value), _mm256_extractf128_ps(value, 1));
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    sum = _mm_add_ss(sum, _mm_movehdup_ps(sum));
    return _mm_cvtss_f32(sum);
}

/*
 * exp, at most 1 ulp away for normal results; overflow gives infinity, underflow is gradual, NaN stays.
 * x = n ln 2 + r with |r| <= ln 2 / 2 (two-part ln 2, fused), Taylor polynomial of degree 7 by fused Horner steps,
 * then two multiplications by powers of two, so that results below the normal range round once more and no more.
 */
static inline __m256 h3_exp8(__m256 x)
{
    x = _mm256_min_ps(_mm256_set1_ps(89.0f), x);
    x = _mm256_max_ps(_mm256_set1_ps(-104.0f), x);
    const __m256 octaves = _mm256_mul_ps(x, _mm256_set1_ps(1.44269504f));
    const __m256 n = _mm256_round_ps(octaves, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
    __m256 p = _mm256_set1_ps(1.0f / 5040.0f);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 720.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 120.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 24.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 6.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.5f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    const __m256i exponent = _mm256_cvtps_epi32(n);
    const __m256i first = _mm256_srai_epi32(exponent, 1);
    const __m256i bias = _mm256_set1_epi32(127);
    const __m256i low = _mm256_slli_epi32(_mm256_add_epi32(first, bias), 23);
    const __m256i high = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(exponent, first), bias), 23);
    return _mm256_mul_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(low)), _mm256_castsi256_ps(high));
}

/* 1 / (1 + exp(-x)) and x / (1 + exp(-x)), every operation rounded to float. */
static inline __m256 h3_sigmoid8(__m256 x)
{
    const __m256 one = _mm256_set1_ps(1.0f);
    const __m256 minus = _mm256_xor_ps(x, _mm256_set1_ps(-0.0f));
    return _mm256_div_ps(one, _mm256_add_ps(one, h3_exp8(minus)));
}

static inline __m256 h3_silu8(__m256 x)
{
    const __m256 minus = _mm256_xor_ps(x, _mm256_set1_ps(-0.0f));
    return _mm256_div_ps(x, _mm256_add_ps(_mm256_set1_ps(1.0f), h3_exp8(minus)));
}

/* silu'(x) given s = sigmoid(x), times `upstream`: (upstream * s) * (1 + x * (1 - s)). */
static inline __m256 h3_silu_gradient8(__m256 upstream, __m256 x, __m256 s)
{
    const __m256 one = _mm256_set1_ps(1.0f);
    const __m256 slope = _mm256_add_ps(one, _mm256_mul_ps(x, _mm256_sub_ps(one, s)));
    return _mm256_mul_ps(_mm256_mul_ps(upstream, s), slope);
}

#endif
