/*
 * The micro-kernel of every product, and the packing that feeds it.
 *
 * A product of two bfloat16 values is exact in float, so one fused step rounds once: fma(a, b, c) = bits of c + a * b.
 * The micro-kernel keeps one accumulator per result and walks the contraction upward. Blocking, packing and threads
 * decide only which results are computed when, never the order inside one.
 */
#include "common.h"
#include "vector.h"

#define INLINE static inline __attribute__((always_inline))

INLINE void micro(const int rows, int64_t depth, const float *left, int64_t row_step, int64_t depth_step, const float *panel,
                  float *out, int64_t out_step, bool resume)
{
    __m256 low[H3_BLOCK], high[H3_BLOCK];
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
        low[r] = resume ? _mm256_loadu_ps(out + r * out_step) : _mm256_setzero_ps();
        high[r] = resume ? _mm256_loadu_ps(out + r * out_step + 8) : _mm256_setzero_ps();
    }
    for (int64_t k = 0; k < depth; k++) {
        const __m256 b0 = _mm256_loadu_ps(panel);
        const __m256 b1 = _mm256_loadu_ps(panel + 8);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            const __m256 a = _mm256_broadcast_ss(left + r * row_step);
            low[r] = _mm256_fmadd_ps(a, b0, low[r]);
            high[r] = _mm256_fmadd_ps(a, b1, high[r]);
        }
        left += depth_step;
        panel += H3_PANEL;
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
        _mm256_storeu_ps(out + r * out_step, low[r]);
        _mm256_storeu_ps(out + r * out_step + 8, high[r]);
    }
}

void h3_micro(int64_t rows, int64_t depth, const float *left, int64_t row_step, int64_t depth_step, const float *panel,
              float *out, int64_t out_step, bool resume)
{
    switch (rows) {
    case 1: micro(1, depth, left, row_step, depth_step, panel, out, out_step, resume); break;
    case 2: micro(2, depth, left, row_step, depth_step, panel, out, out_step, resume); break;
    case 3: micro(3, depth, left, row_step, depth_step, panel, out, out_step, resume); break;
    case 4: micro(4, depth, left, row_step, depth_step, panel, out, out_step, resume); break;
    case 5: micro(5, depth, left, row_step, depth_step, panel, out, out_step, resume); break;
    default: micro(6, depth, left, row_step, depth_step, panel, out, out_step, resume); break;
    }
}

/* Transposes 8 x 8 dwords. */
INLINE void transpose8(__m256i v[8])
{
    __m256i a[8], b[8];
    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm256_unpacklo_epi32(v[i], v[i + 1]);
        a[i + 1] = _mm256_unpackhi_epi32(v[i], v[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        b[i] = _mm256_unpacklo_epi64(a[i], a[i + 2]);
        b[i + 1] = _mm256_unpackhi_epi64(a[i], a[i + 2]);
        b[i + 2] = _mm256_unpacklo_epi64(a[i + 1], a[i + 3]);
        b[i + 3] = _mm256_unpackhi_epi64(a[i + 1], a[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x20);
        v[i + 4] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x31);
    }
}

/* Columns first .. first + 7 of 16 steps: a dword holds steps k and k + 1, so one transposition of dwords serves both. */
INLINE void pack_across_8x16(float *panel, const uint16_t *from, int64_t step, const int first, int64_t columns)
{
    __m256i v[8];
    for (int c = 0; c < 8; c++) {
        const bool there = first + c < columns;
        v[c] = there ? _mm256_loadu_si256((const __m256i *)(const void *)(from + (first + c) * step)) : _mm256_setzero_si256();
    }
    transpose8(v);
    for (int i = 0; i < 8; i++) {
        const __m256i odd = _mm256_and_si256(v[i], _mm256_set1_epi32((int)0xffff0000u));
        float *to = panel + 2 * i * H3_PANEL + first;
        _mm256_storeu_ps(to, _mm256_castsi256_ps(_mm256_slli_epi32(v[i], 16)));
        _mm256_storeu_ps(to + H3_PANEL, _mm256_castsi256_ps(odd));
    }
}

void h3_pack_across(float *panel, const uint16_t *from, int64_t step, int64_t columns, int64_t depth)
{
    int64_t k = 0;
    for (; k + 16 <= depth; k += 16) {
        pack_across_8x16(panel + k * H3_PANEL, from + k, step, 0, columns);
        pack_across_8x16(panel + k * H3_PANEL, from + k, step, 8, columns);
    }
    for (; k < depth; k++) {
        for (int64_t c = 0; c < H3_PANEL; c++) panel[k * H3_PANEL + c] = c < columns ? h3_bf16_to_f32(from[c * step + k]) : 0.0f;
    }
}

void h3_pack_along(float *panel, const uint16_t *from, int64_t step, int64_t columns, int64_t depth)
{
    for (int64_t k = 0; k < depth; k++) {
        const uint16_t *row = from + k * step;
        _mm256_storeu_ps(panel + k * H3_PANEL, h3_load8(row, columns));
        _mm256_storeu_ps(panel + k * H3_PANEL + 8, columns > 8 ? h3_load8(row + 8, columns - 8) : _mm256_setzero_ps());
    }
}

void h3_widen_rows(float *to, int64_t to_step, const uint16_t *from, int64_t from_step, int64_t rows, int64_t count)
{
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t k = 0; k < count; k += 8) {
            h3_store8_f32(to + r * to_step + k, h3_load8(from + r * from_step + k, count - k), count - k);
        }
    }
}
