/* IEEE half precision, rounded to nearest, ties to even. */
#ifndef H3_BASE_HALF_H
#define H3_BASE_HALF_H

#include <stdint.h>
#include <string.h>

/* Exact. */
static inline float h3_f16_to_f32(uint16_t value)
{
    uint32_t sign = (uint32_t)(value & 0x8000u) << 16, exponent = value >> 10 & 31u, fraction = value & 0x3ffu, bits;
    float result;
    if (exponent == 0) { /* zero or subnormal: fraction * 2^-24 */
        result = (float)fraction * 0x1p-24f;
        memcpy(&bits, &result, sizeof bits);
        bits |= sign;
    } else {
        bits = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112u) << 23) | fraction << 13;
    }
    memcpy(&result, &bits, sizeof result);
    return result;
}

/* From 65520 on infinity; a NaN stays a (quiet) NaN. */
static inline uint16_t h3_f32_to_f16(float value)
{
    uint32_t bits, sign, rest;
    memcpy(&bits, &value, sizeof bits);
    sign = bits >> 16 & 0x8000u;
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (bits >> 13 & 0x3ffu));
    if (bits >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);
    if (bits < 0x38800000u) { /* below 2^-14: a multiple of 2^-24, which adding 0.5 rounds to */
        float magnitude;
        memcpy(&magnitude, &bits, sizeof magnitude);
        magnitude += 0.5f;
        memcpy(&rest, &magnitude, sizeof rest);
        return (uint16_t)(sign | (rest - 0x3f000000u));
    }
    bits += 0xfffu + (bits >> 13 & 1u);
    return (uint16_t)(sign | (bits - 0x38000000u) >> 13);
}

/* The nearest half-precision value, as float. */
static inline float h3_round_f16(float value) { return h3_f16_to_f32(h3_f32_to_f16(value)); }

#endif
