#if defined(__x86_64__)
#pragma GCC target("avx2") /* as the operator libraries, which are built for x86-64-v3; no fused steps: the bits are SSE2's */
#endif
#pragma GCC optimize("O3") /* the loops below are over independent elements */
#include "media/ssim.h"

#include <math.h>

#include "media/picture_metrics.h"

enum { TAPS = H3_SSIM_WINDOW, MOMENTS = 5 }; /* a, b, a^2, b^2, ab */

static const double C1 = 6.5025, C2 = 58.5225; /* (0.01 * 255)^2, (0.03 * 255)^2 */

/* exp(-k^2 / (2 * 1.5^2)), k = -5..5, with sum 1 */
static void make_window(double window[TAPS])
{
    double sum = 0.0;
    for (int k = 0; k < TAPS; k++) {
        window[k] = exp(-(double)((k - TAPS / 2) * (k - TAPS / 2)) / 4.5);
        sum += window[k];
    }
    for (int k = 0; k < TAPS; k++) window[k] /= sum;
}

/* A ring of TAPS filtered rows of each moment, and MOMENTS rows for what is at hand. */
size_t h3_ssim_space(int64_t width) { return (size_t)(MOMENTS * (TAPS + 1) * width); }

/* out[x] = sum of window[k] * in[x + k] */
static void filter_row(double *restrict out, const double *restrict in, int64_t count, const double window[TAPS])
{
    for (int64_t x = 0; x < count; x++) out[x] = window[0] * in[x];
    for (int k = 1; k < TAPS; k++)
        for (int64_t x = 0; x < count; x++) out[x] += window[k] * in[x + k];
}

/* The five products of one row, filtered, into place `slot` of the ring. */
static void add_row(double *ring, double *products, const double *restrict a, const double *restrict b, int64_t width, int64_t slot, const double window[TAPS])
{
    double *restrict aa = products, *restrict bb = aa + width, *restrict ab = bb + width;
    for (int64_t x = 0; x < width; x++) {
        aa[x] = a[x] * a[x];
        bb[x] = b[x] * b[x];
        ab[x] = a[x] * b[x];
    }
    const double *const rows[MOMENTS] = {a, b, aa, bb, ab};
    for (int m = 0; m < MOMENTS; m++) filter_row(ring + (m * TAPS + slot) * width, rows[m], width - TAPS + 1, window);
}

/* Sum of the similarity of all windows whose first row is `top`. */
static double score_row(const double *ring, double *moments, int64_t width, int64_t top, const double window[TAPS])
{
    const int64_t count = width - TAPS + 1;
    for (int m = 0; m < MOMENTS; m++) {
        double *restrict sum = moments + m * width;
        for (int64_t x = 0; x < count; x++) sum[x] = 0.0;
        for (int k = 0; k < TAPS; k++) {
            const double *restrict row = ring + (m * TAPS + (top + k) % TAPS) * width;
            for (int64_t x = 0; x < count; x++) sum[x] += window[k] * row[x];
        }
    }
    double *restrict score = moments;
    const double *restrict mb = moments + width, *restrict aa = mb + width, *restrict bb = aa + width, *restrict ab = bb + width;
    for (int64_t x = 0; x < count; x++) {
        const double ma = score[x], saa = aa[x] - ma * ma, sbb = bb[x] - mb[x] * mb[x], sab = ab[x] - ma * mb[x];
        score[x] = (2.0 * (ma * mb[x]) + C1) * (2.0 * sab + C2) / ((ma * ma + mb[x] * mb[x] + C1) * (saa + sbb + C2));
    }
    double sum = 0.0;
    for (int64_t x = 0; x < count; x++) sum += score[x];
    return sum;
}

double h3_ssim(const double *a, const double *b, int64_t height, int64_t width, double *space)
{
    double window[TAPS], sum = 0.0, *products = space + MOMENTS * TAPS * width;
    make_window(window);
    for (int64_t y = 0; y < height; y++) {
        add_row(space, products, a + y * width, b + y * width, width, y % TAPS, window);
        if (y >= TAPS - 1) sum += score_row(space, products, width, y - TAPS + 1, window);
    }
    return sum / ((double)(height - TAPS + 1) * (double)(width - TAPS + 1));
}
