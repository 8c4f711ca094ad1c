/*
 * The arithmetic of the alias-free activation (audio-vae.md 2.4), written once for the CPU and for CUDA so that both give the same bits. Built without
 * contraction: every operation is rounded by itself, except where a fused step is named.
 */
#ifndef H3_MEDIA_AUDIO_SNAKE_H
#define H3_MEDIA_AUDIO_SNAKE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__CUDACC__)
#define H3_SNAKE static __device__ __forceinline__
#define H3_UNROLL _Pragma("unroll")
#else
#define H3_SNAKE static inline __attribute__((always_inline))
#define H3_UNROLL _Pragma("GCC unroll 12") /* or the loop around it becomes no vector code */
#endif

/* Above this magnitude h3_sine_near is not to be trusted. */
#define H3_SINE_NEAR 2097152.0f

/* sin(r) for |r| <= pi/2 by the Taylor polynomial of degree 15; relative error below 1e-11. */
H3_SNAKE double h3_sine_polynomial(double r)
{
    const double s = r * r;
    double p = -1.0 / 1307674368000.0;
    p = p * s + 1.0 / 6227020800.0;
    p = p * s - 1.0 / 39916800.0;
    p = p * s + 1.0 / 362880.0;
    p = p * s - 1.0 / 5040.0;
    p = p * s + 1.0 / 120.0;
    p = p * s - 1.0 / 6.0;
    return r + r * (s * p);
}

/* sin(t) or -sin(t), whose square is wanted: t - m pi for the nearest m, with pi in three parts whose products with m are exact. */
H3_SNAKE float h3_sine_near(float t)
{
    const double x = t, to_integer = 0x1.8p52;
    const double m = (x * 0x1.45f306dc9c883p-2 + to_integer) - to_integer;
    const double r = ((x - m * 0x1.921fb544p+1) - m * 0x1.0b4611a6p-33) - m * 0x1.3198a2e037073p-68;
    return (float)h3_sine_polynomial(r);
}

/* The same for any |t| >= 2^21: the fraction of t / pi from as many bits of 1 / pi as its exponent asks for. */
H3_SNAKE float h3_sine_far(float t)
{
    const uint32_t inverse[] = {0u, 0x517cc1b7u, 0x27220a94u, 0xfe13abe8u, 0xfa9a6ee0u, 0x6db14accu, 0x9e21c820u, 0xff28b1d5u};
    uint32_t bits, w[3];
    memcpy(&bits, &t, sizeof bits);
    const int exponent = (int)(bits >> 23 & 255u) - 150; /* |t| = mantissa * 2^exponent */
    if (exponent > 104) return t - t;                    /* infinite or no number: no number */
    const uint64_t mantissa = (bits & 0x7fffffu) | 0x800000u;
    const int start = exponent + 32, word = start / 32, shift = start % 32; /* a zero word stands first */
    for (int i = 0; i < 3; i++) w[i] = (uint32_t)((((uint64_t)inverse[word + i] << 32 | inverse[word + i + 1]) << shift) >> 32);
    const uint64_t low = mantissa * w[2], middle = mantissa * w[1] + (low >> 32), high = mantissa * w[0] + (middle >> 32);
    const int64_t fraction = (int64_t)(high << 32 | (middle & 0xffffffffu));
    return (float)h3_sine_polynomial((double)fraction * 0x1p-64 * 0x1.921fb54442d18p1);
}

/* up + sin(a up)^2 b, where a = e^alpha and b = 1 / (e^beta + 1e-9); `sine` is that of a * up. */
H3_SNAKE float h3_snake(float up, float sine, float b) { return up + sine * sine * b; }

/* One sample of the doubled signal: taps f[first], f[first-2], ... of six neighbours, ascending, fused; then times 2, which is exact. */
H3_SNAKE float h3_upsample(const float *f, int first, const float *x)
{
    float sum = f[first] * x[0];
    H3_UNROLL
    for (int k = 1; k < 6; k++) sum = fmaf(f[first - 2 * k], x[k], sum);
    return 2.0f * sum;
}

/* One sample of the halved signal: even taps meet odd samples and the other way round, k ascending, fused. `odd` and `even` point to sample n - 3 of
 * their half. */
H3_SNAKE float h3_downsample(const float *f, const float *odd, const float *even)
{
    float sum = f[0] * odd[0];
    H3_UNROLL
    for (int k = 1; k < 12; k++) sum = fmaf(f[k], k % 2 == 0 ? odd[k / 2] : even[(k + 1) / 2], sum);
    return sum;
}

#endif
