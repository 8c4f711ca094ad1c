#include "qualify/tensor_core.h"

#include <string.h>

enum { TERMS = 17, GUARD = 25, LOWEST = -126, INFINITE = 0x7f800000, NOT_A_NUMBER = 0x7fffffff };

/* (-1)^negative significand 2^(exponent - point), not zero. */
typedef struct term {
    uint64_t significand;
    int exponent, negative;
} term;

static float from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t to_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static int is_nan(uint32_t bits) { return (bits & 0x7fffffffu) > INFINITE; }
static int is_infinite(uint32_t bits) { return (bits & 0x7fffffffu) == INFINITE; }
static int is_zero(uint32_t bits) { return (bits & 0x7fffffffu) == 0; }

/* Bits of a float: significand with `fraction` bits behind the point, and exponent. */
static term unpack(uint32_t bits, int fraction)
{
    const int field = (int)(bits >> 23 & 0xffu);
    term t = {(bits & 0x7fffffu) >> (23 - fraction), LOWEST, (int)(bits >> 31)};
    if (field != 0) {
        t.significand |= UINT64_C(1) << fraction;
        t.exponent = field - 127;
    }
    return t;
}

/* What stands for all of a step when an operand is no finite number; 0 when all are. Signs seen: bit 0 +inf, bit 1 -inf. */
static int special_step(const uint16_t a[16], const uint16_t b[16], float c, float *result)
{
    unsigned signs = is_infinite(to_bits(c)) ? 1u << (to_bits(c) >> 31) : 0;
    int broken = is_nan(to_bits(c));
    for (int k = 0; k < H3_TENSOR_CORE_STEP; k++) {
        const uint32_t left = (uint32_t)a[k] << 16, right = (uint32_t)b[k] << 16;
        if (is_nan(left) || is_nan(right)) broken = 1;
        else if (is_infinite(left) || is_infinite(right)) {
            if (is_zero(left) || is_zero(right)) broken = 1;
            else signs |= 1u << ((left ^ right) >> 31);
        }
    }
    if (!broken && signs == 0) return 0;
    if (broken || signs == 3) *result = from_bits(NOT_A_NUMBER);
    else *result = from_bits(signs == 1 ? (uint32_t)INFINITE : (uint32_t)INFINITE | 0x80000000u);
    return 1;
}

/* sum 2^(unit) cut to a float. */
static float cut_to_float(int64_t sum, int unit)
{
    if (sum == 0) return 0.0f;
    const uint32_t sign = sum < 0 ? 0x80000000u : 0;
    const uint64_t magnitude = sum < 0 ? (uint64_t)-sum : (uint64_t)sum;
    const int exponent = unit + 63 - __builtin_clzll(magnitude);
    if (exponent > 127) return from_bits(sign | (uint32_t)INFINITE);
    const int last = (exponent < LOWEST ? LOWEST : exponent) - 23; /* exponent of the last bit that stays */
    const int shift = last - unit;
    const uint64_t kept = shift >= 64 ? 0 : shift >= 0 ? magnitude >> shift : magnitude << -shift;
    if (kept == 0) return 0.0f;
    if (exponent < LOWEST) return from_bits(sign | (uint32_t)kept);
    return from_bits(sign | (uint32_t)(exponent + 127) << 23 | ((uint32_t)kept & 0x7fffffu));
}

float h3_tensor_core_step(const uint16_t a[16], const uint16_t b[16], float c)
{
    term terms[TERMS];
    int count = 0, largest = 0;
    float special;
    if (special_step(a, b, c, &special)) return special;
    for (int k = 0; k < H3_TENSOR_CORE_STEP; k++) {
        const term left = unpack((uint32_t)a[k] << 16, 7), right = unpack((uint32_t)b[k] << 16, 7);
        const term product = {left.significand * right.significand << (GUARD - 14), left.exponent + right.exponent, left.negative ^ right.negative};
        if (product.significand != 0) terms[count++] = product;
    }
    term accumulator = unpack(to_bits(c), 23);
    accumulator.significand <<= GUARD - 23;
    if (accumulator.significand != 0) terms[count++] = accumulator;
    for (int i = 0; i < count; i++)
        if (i == 0 || terms[i].exponent > largest) largest = terms[i].exponent;
    int64_t sum = 0;
    for (int i = 0; i < count; i++) {
        const int distance = largest - terms[i].exponent;
        const int64_t cut = distance >= 64 ? 0 : (int64_t)(terms[i].significand >> distance);
        sum += terms[i].negative ? -cut : cut;
    }
    return cut_to_float(sum, largest - GUARD);
}

float h3_tensor_core_chain(const uint16_t *a, int64_t a_stride, const uint16_t *b, int64_t b_stride, int64_t depth, float start)
{
    float sum = start;
    for (int64_t first = 0; first < depth; first += H3_TENSOR_CORE_STEP) {
        uint16_t left[H3_TENSOR_CORE_STEP] = {0}, right[H3_TENSOR_CORE_STEP] = {0};
        for (int64_t k = first; k < depth && k < first + H3_TENSOR_CORE_STEP; k++) {
            left[k - first] = a[k * a_stride];
            right[k - first] = b[k * b_stride];
        }
        sum = h3_tensor_core_step(left, right, sum);
    }
    return sum;
}
