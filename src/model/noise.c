#include "model/noise.h"

#include <math.h>

enum { STATE = 624, SHIFT = 397, BLOCK = 16 };

void h3_generator_seed(h3_generator *generator, uint64_t seed)
{
    *generator = (h3_generator){.next = STATE};
    generator->state[0] = (uint32_t)seed;
    for (uint32_t i = 1; i < STATE; i++) {
        uint32_t previous = generator->state[i - 1];
        generator->state[i] = 1812433253u * (previous ^ previous >> 30) + i;
    }
}

static void regenerate(uint32_t state[STATE])
{
    for (int i = 0; i < STATE; i++) {
        uint32_t joined = (state[i] & 0x80000000u) | (state[(i + 1) % STATE] & 0x7fffffffu);
        state[i] = state[(i + SHIFT) % STATE] ^ joined >> 1 ^ (joined & 1 ? 0x9908b0dfu : 0);
    }
}

uint32_t h3_generator_next(h3_generator *generator)
{
    if (generator->next >= STATE) {
        regenerate(generator->state);
        generator->next = 0;
    }
    uint32_t word = generator->state[generator->next++];
    word ^= word >> 11;
    word ^= word << 7 & 0x9d2c5680u;
    word ^= word << 15 & 0xefc60000u;
    return word ^ word >> 18;
}

/* Natural logarithm of v in (0, 1], the single-precision polynomial of Cephes with fused steps. */
static float log_cephes(float v)
{
    static const float COEFFICIENT[] = {7.0376836292e-2f,  -1.1514610310e-1f, 1.1676998740e-1f,
                                        -1.2420140846e-1f, 1.4249322787e-1f,  -1.6668057665e-1f,
                                        2.0000714765e-1f,  -2.4999993993e-1f, 3.3333331174e-1f};
    int exponent;
    float m = frexpf(v, &exponent), x = m - 1.0f;
    if (m < 0.707106781186547524f) {
        exponent--;
        x += m;
    }
    float e = (float)exponent, z = x * x, y = COEFFICIENT[0];
    for (int i = 1; i < 9; i++) y = fmaf(y, x, COEFFICIENT[i]);
    y *= x;
    y = fmaf(y, z, e * -2.12194440e-4f);
    y = fmaf(-z, 0.5f, y);
    return fmaf(e, 0.693359375f, x + y);
}

/* Sine and cosine of a >= 0, likewise. */
static void sincos_cephes(float a, float *sine, float *cosine)
{
    int32_t octant = ((int32_t)(a * 1.27323954473516f) + 1) & ~1;
    float j = (float)octant, x = a;
    x = fmaf(j, -0.78515625f, x);
    x = fmaf(j, -2.4187564849853515625e-4f, x);
    x = fmaf(j, -3.77489497744594108e-8f, x);
    float z = x * x;
    float c = fmaf(fmaf(2.443315711809948e-5f, z, -1.388731625493765e-3f), z, 4.166664568298827e-2f) * z;
    c = fmaf(c, z, -(z * 0.5f)) + 1.0f;
    float s = fmaf(fmaf(-1.9515295891e-4f, z, 8.3321608736e-3f), z, -1.6666654611e-1f) * z;
    s = fmaf(s, x, x);
    switch (octant >> 1 & 3) {
    case 0: *sine = s, *cosine = c; break;
    case 1: *sine = c, *cosine = -s; break;
    case 2: *sine = -s, *cosine = -c; break;
    default: *sine = -c, *cosine = s; break;
    }
}

static void draw_uniforms(h3_generator *generator, float *out, int64_t count)
{
    for (int64_t i = 0; i < count; i++) out[i] = (float)(h3_generator_next(generator) & 0xffffffu) * 0x1p-24f;
}

/* Sixteen uniforms become sixteen normals: element j pairs with element j + 8. */
static void transform_block(float block[BLOCK])
{
    for (int j = 0; j < BLOCK / 2; j++) {
        float radius = sqrtf(-2.0f * log_cephes(1.0f - block[j])), angle = 6.283185307179586f * block[j + 8], sine, cosine;
        sincos_cephes(angle, &sine, &cosine);
        block[j] = radius * cosine;
        block[j + 8] = radius * sine;
    }
}

static double draw_double(h3_generator *generator)
{
    uint64_t high = h3_generator_next(generator), low = h3_generator_next(generator);
    return (double)((high << 32 | low) & 0x1fffffffffffffu) * 0x1p-53;
}

/* One normal of the pair path; the second of a pair waits in the generator. */
static float draw_single(h3_generator *generator)
{
    if (generator->has_spare) {
        generator->has_spare = 0;
        return (float)generator->spare;
    }
    double u1 = draw_double(generator), u2 = draw_double(generator);
    double radius = sqrt(-2.0 * log1p(-u2)), angle = 2.0 * 3.14159265358979323846 * u1;
    generator->spare = radius * sin(angle);
    generator->has_spare = 1;
    return (float)(radius * cos(angle));
}

h3_status h3_generator_normal(h3_generator *generator, float *out, int64_t count)
{
    if (count < 0)
        return h3_error(H3_USAGE, "%lld random numbers were asked for; check the sizes of the layout", (long long)count);
    if (count < BLOCK) {
        for (int64_t i = 0; i < count; i++) out[i] = draw_single(generator);
        return H3_OK;
    }
    draw_uniforms(generator, out, count);
    for (int64_t i = 0; i + BLOCK <= count; i += BLOCK) transform_block(out + i);
    if (count % BLOCK != 0) {
        draw_uniforms(generator, out + count - BLOCK, BLOCK);
        transform_block(out + count - BLOCK);
    }
    return H3_OK;
}
