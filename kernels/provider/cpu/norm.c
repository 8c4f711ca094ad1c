/* RMS norm over rows; the contract stands in norm.h. */
#include "norm.h"

#include <math.h>

enum { THREADS = 128, GROUP = 4, WARP = 32 };

static float sum_warp(float lanes[WARP])
{
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
        for (int lane = 0; lane < offset; lane++) lanes[lane] += lanes[lane + offset];
    }
    return lanes[0];
}

float h3_sum_v4x128(const float *terms, int64_t count)
{
    float threads[THREADS] = {0}, warps[THREADS / WARP] = {0};
    for (int64_t base = 0; base < count; base += THREADS * GROUP) {
        int64_t here = count - base < THREADS * GROUP ? count - base : THREADS * GROUP;
        for (int64_t t = 0; t < here / GROUP; t++) {
            for (int e = 0; e < GROUP; e++) threads[t] += terms[base + t * GROUP + e];
        }
        for (int64_t e = here / GROUP * GROUP; e < here; e++) threads[here / GROUP] += terms[base + e];
    }
    int64_t groups = (count + GROUP - 1) / GROUP;
    for (int w = 0; w < THREADS / WARP && w * WARP < groups; w++) warps[w] = sum_warp(threads + w * WARP);
    return (warps[0] + warps[2]) + (warps[1] + warps[3]);
}

H3_INLINE float reciprocal_rms(const h3_norm_rows *norm, const void *x, float *terms, const int bf16)
{
    for (int64_t j = 0; j < norm->width; j++) {
        float value = h3_load(x, j, bf16);
        terms[j] = value * value;
    }
    return 1.0f / sqrtf(h3_sum_v4x128(terms, norm->width) / (float)norm->width + norm->epsilon);
}

/* The table elements of a row's shift and scale. */
H3_INLINE const void *table_row(const h3_norm_rows *norm, int64_t row, int64_t offset, const int bf16)
{
    return h3_at(norm->table, (int64_t)norm->index[row] * norm->stride + offset, bf16);
}

H3_INLINE void forward_rows(const h3_norm_rows *norm, void *y, float *terms, const int bf16)
{
    for (int64_t row = 0; row < norm->rows; row++) {
        const void *x = h3_at(norm->x, row * norm->width, bf16);
        void *out = h3_at(y, row * norm->width, bf16);
        float r = reciprocal_rms(norm, x, terms, bf16);
        if (norm->index == NULL) {
            for (int64_t j = 0; j < norm->width; j++)
                h3_store(out, j, h3_load(norm->weight, j, bf16) * (r * h3_load(x, j, bf16)), bf16);
            continue;
        }
        const void *shift = table_row(norm, row, norm->shift, bf16), *scale = table_row(norm, row, norm->scale, bf16);
        for (int64_t j = 0; j < norm->width; j++) {
            float n = h3_round(h3_load(norm->weight, j, bf16) * (r * h3_load(x, j, bf16)), bf16);
            float gain = h3_round(1.0f + h3_load(scale, j, bf16), bf16);
            h3_store(out, j, h3_round(n * gain, bf16) + h3_load(shift, j, bf16), bf16);
        }
    }
}

void h3_norm_forward_rows(const h3_norm_rows *norm, void *y, h3_arena arena)
{
    float *terms = h3_take(&arena, norm->width, 4);
    if (norm->bf16) forward_rows(norm, y, terms, 1);
    else forward_rows(norm, y, terms, 0);
}

/* From dy to the norm's own upstream gradient dn, with the row gradients of shift and scale on the way. */
H3_INLINE void modulation_gradients(const h3_norm_rows *norm, const h3_norm_gradients *gradients, int64_t row, const float *xh,
                                    float *dn, const int bf16)
{
    int64_t first = row * norm->width;
    const void *dy = h3_at(gradients->dy, first, bf16), *scale = table_row(norm, row, norm->scale, bf16);
    if (gradients->dshift != NULL) memcpy(h3_at(gradients->dshift, first, bf16), dy, (size_t)norm->width * (bf16 ? 2 : 4));
    if (gradients->dscale != NULL) {
        void *dscale = h3_at(gradients->dscale, first, bf16);
        for (int64_t j = 0; j < norm->width; j++) {
            float n = h3_round(h3_load(norm->weight, j, bf16) * xh[j], bf16);
            h3_store(dscale, j, h3_load(dy, j, bf16) * n, bf16);
        }
    }
    for (int64_t j = 0; j < norm->width; j++) {
        float gain = h3_round(1.0f + h3_load(scale, j, bf16), bf16);
        dn[j] = h3_round(h3_load(dy, j, bf16) * gain, bf16);
    }
}

typedef struct backward_buffers {
    float *terms, *xh, *dn;
    void *sums; /* of the weight gradient */
} backward_buffers;

H3_INLINE void backward_rows(const h3_norm_rows *norm, const h3_norm_gradients *gradients, backward_buffers b, const int bf16)
{
    int64_t width = norm->width;
    for (int64_t row = 0; row < norm->rows; row++) {
        const void *x = h3_at(norm->x, row * width, bf16);
        float r = reciprocal_rms(norm, x, b.terms, bf16);
        for (int64_t j = 0; j < width; j++) b.xh[j] = r * h3_load(x, j, bf16);
        if (norm->index != NULL) modulation_gradients(norm, gradients, row, b.xh, b.dn, bf16);
        else h3_load_row(b.dn, h3_at(gradients->dy, row * width, bf16), width, bf16);
        for (int64_t j = 0; j < width; j++) h3_accumulate(b.sums, j, b.dn[j] * b.xh[j], bf16);
        if (gradients->dx == NULL) continue;
        for (int64_t j = 0; j < width; j++) {
            b.dn[j] *= h3_load(norm->weight, j, bf16);
            b.terms[j] = b.dn[j] * b.xh[j];
        }
        float c = h3_sum_v4x128(b.terms, width) / (float)width;
        void *dx = h3_at(gradients->dx, row * width, bf16);
        for (int64_t j = 0; j < width; j++) h3_store(dx, j, r * (b.dn[j] - b.xh[j] * c), bf16);
    }
    if (gradients->dweight == NULL) return;
    for (int64_t j = 0; j < width; j++) h3_store(gradients->dweight, j, h3_total(b.sums, j, bf16), bf16);
}

size_t h3_norm_workspace(int64_t width) { return 3 * h3_bytes(width, 4) + h3_bytes(width, sizeof(double)); }

void h3_norm_backward_rows(const h3_norm_rows *norm, const h3_norm_gradients *gradients, h3_arena arena)
{
    backward_buffers buffers = {.terms = h3_take(&arena, norm->width, 4),
                                .xh = h3_take(&arena, norm->width, 4),
                                .dn = h3_take(&arena, norm->width, 4),
                                .sums = h3_take(&arena, norm->width, sizeof(double))};
    memset(buffers.sums, 0, (size_t)norm->width * sizeof(double));
    if (norm->bf16) backward_rows(norm, gradients, buffers, 1);
    else backward_rows(norm, gradients, buffers, 0);
}
