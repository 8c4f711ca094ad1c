/*
 * Products of the video autoencoder on the CPU: linear layers, convolutions, attention.
 *
 * Order of every sum: one FP32 accumulator that starts at 0 and takes fma(left, right, accumulator) over the contraction in ascending order
 * (of a convolution: kernel frame, row, column, then channel); scale or bias comes last. Threads and blocks decide which results are
 * computed when, never the order inside one.
 */
#if defined(__x86_64__)
#pragma GCC target("avx2,fma") /* as the operator libraries, which are built for x86-64-v3 */
#include <immintrin.h>
#endif
#include <omp.h>
#include <stdlib.h>

#include "media/video_cpu.h"

enum { LANES = 16, ROWS = 6, ROW_CHUNK = 384 };

/* sums[r][l] += rows[r][k] * panel[k][l], k ascending. */
#if defined(__x86_64__)
static void multiply(float sums[ROWS][LANES], const float *const rows[ROWS], const float *panel, int64_t depth)
{
    __m256 low[ROWS], high[ROWS];
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; r++) {
        low[r] = _mm256_loadu_ps(sums[r]);
        high[r] = _mm256_loadu_ps(sums[r] + 8);
    }
    for (int64_t k = 0; k < depth; k++) {
        const __m256 b0 = _mm256_loadu_ps(panel + k * LANES), b1 = _mm256_loadu_ps(panel + k * LANES + 8);
#pragma GCC unroll 6
        for (int r = 0; r < ROWS; r++) {
            const __m256 a = _mm256_broadcast_ss(rows[r] + k);
            low[r] = _mm256_fmadd_ps(a, b0, low[r]);
            high[r] = _mm256_fmadd_ps(a, b1, high[r]);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; r++) {
        _mm256_storeu_ps(sums[r], low[r]);
        _mm256_storeu_ps(sums[r] + 8, high[r]);
    }
}
#else
static void multiply(float sums[ROWS][LANES], const float *const rows[ROWS], const float *panel, int64_t depth)
{
    for (int64_t k = 0; k < depth; k++)
        for (int r = 0; r < ROWS; r++)
            for (int l = 0; l < LANES; l++) sums[r][l] = fmaf(rows[r][k], panel[k * LANES + l], sums[r][l]);
}
#endif

static int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }
static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

static h3_status floats(float **out, int64_t count)
{
    void *memory;
    h3_status status = h3_alloc(&memory, (size_t)count, sizeof(float), "a product of the video autoencoder");
    *out = memory;
    return status;
}

/* F32 values of a tensor: its own, or a copy in *owned that the caller frees. */
static h3_status widen(const float **out, float **owned, const h3_tensor *t)
{
    const int64_t count = h3_tensor_count(t);
    *owned = NULL;
    *out = t->data;
    if (t->dtype == H3_F32) return H3_OK;
    H3_TRY(floats(owned, count));
    float *to = *owned;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < count; i++) to[i] = h3_f16_to_f32(((const uint16_t *)t->data)[i]);
    *out = to;
    return H3_OK;
}

/* panel[k][l] = values[(first + l) * step + k], 0 behind the last of `count` rows. */
static void pack(float *panel, const h3_tensor *values, int64_t first, int64_t count, int64_t step, int64_t offset, int64_t stride, int64_t depth)
{
    for (int64_t l = 0; l < LANES; l++)
        for (int64_t k = 0; k < depth; k++) panel[k * LANES + l] = first + l < count ? h3_load(values, (first + l) * step + offset + k * stride) : 0.0f;
}

/* --- linear ---------------------------------------------------------------------------------------------------------- */

typedef struct linear {
    h3_tensor *out;
    const float *x;
    const h3_tensor *weight, *bias;
    int64_t rows, depth, columns;
    int separate_bias;
} linear;

static void linear_block(const linear *p, const float *panel, int64_t first_column, int64_t row, int64_t end)
{
    const int32_t dtype = p->out->dtype;
    float sums[ROWS][LANES] = {{0}};
    const float *rows[ROWS];
    for (int64_t r = 0; r < ROWS; r++) rows[r] = p->x + smaller(row + r, end - 1) * p->depth;
    multiply(sums, rows, panel, p->depth);
    for (int64_t r = 0; r < smaller(ROWS, end - row); r++)
        for (int64_t l = 0; l < smaller(LANES, p->columns - first_column); l++) {
            const float sum = p->separate_bias ? h3_rounded(dtype, sums[r][l]) : sums[r][l];
            h3_store(p->out, (row + r) * p->columns + first_column + l, sum + h3_load(p->bias, first_column + l));
        }
}

h3_status h3_video_cpu_linear(const h3_device *device, h3_tensor *out, const h3_tensor *x, const h3_tensor *weight, const h3_tensor *bias,
                              int separate_bias)
{
    (void)device;
    linear p = {.out = out, .weight = weight, .bias = bias, .separate_bias = separate_bias, .columns = weight->shape[0]};
    p.depth = h3_tensor_count(weight) / p.columns;
    p.rows = h3_tensor_count(x) / p.depth;
    const int64_t panels = round_up(p.columns, LANES) / LANES, chunks = round_up(p.rows, ROW_CHUNK) / ROW_CHUNK;
    float *owned, *space;
    H3_TRY(widen(&p.x, &owned, x));
    h3_status status = floats(&space, omp_get_max_threads() * p.depth * LANES);
    if (status == H3_OK) {
#pragma omp parallel
        {
            float *panel = space + omp_get_thread_num() * p.depth * LANES;
            int64_t packed = -1;
#pragma omp for schedule(static)
            for (int64_t task = 0; task < panels * chunks; task++) {
                const int64_t first = task / chunks * LANES, row = task % chunks * ROW_CHUNK, end = smaller(row + ROW_CHUNK, p.rows);
                if (packed != first) pack(panel, weight, first, p.columns, p.depth, 0, 1, p.depth);
                packed = first;
                for (int64_t r = row; r < end; r += ROWS) linear_block(&p, panel, first, r, end);
            }
        }
    }
    free(space);
    free(owned);
    return status;
}

/* --- convolution ----------------------------------------------------------------------------------------------------- */

typedef struct conv {
    h3_tensor *out;
    const h3_tensor *x, *weight, *bias;
    int64_t kernel, taps, channels, columns; /* columns: output channels */
    int64_t temporal_stride, spatial_stride;
} conv;

/* The pixel that the padded picture has at `i` of `size` pixels. */
static int64_t reflected(int64_t i, int64_t size) { return i < 0 ? -i : i >= size ? 2 * size - 2 - i : i; }

/* Adds one tap to the sums of one output row. */
static void conv_tap(float (*sums)[LANES], const conv *p, const float *frame, const float *panel, int64_t y, int64_t tap_y, int64_t tap_x)
{
    const int64_t height = p->x->shape[2], width = p->x->shape[3], wide = p->out->shape[3];
    const int64_t before = p->kernel == 3 && p->spatial_stride == 1;
    const float *line = frame + reflected(y * p->spatial_stride + tap_y - before, height) * width * p->channels;
    for (int64_t first = 0; first < wide; first += ROWS) {
        const float *rows[ROWS];
        for (int64_t r = 0; r < ROWS; r++)
            rows[r] = line + reflected(smaller(first + r, wide - 1) * p->spatial_stride + tap_x - before, width) * p->channels;
        multiply(&sums[first], rows, panel, p->channels);
    }
}

/* One output row (item, frame, y) for the output channels of one panel. */
static void conv_row(const conv *p, float (*sums)[LANES], const float *panel, int64_t first_column, int64_t row)
{
    const int64_t wide = p->out->shape[3], y = row % p->out->shape[2], frames = p->x->shape[1];
    const int64_t frame = row / p->out->shape[2] % p->out->shape[1], item = row / p->out->shape[2] / p->out->shape[1];
    const int64_t frame_size = p->x->shape[2] * p->x->shape[3] * p->channels;
    memset(sums, 0, (size_t)round_up(wide, ROWS) * sizeof *sums);
    for (int64_t tap = 0; tap < p->taps; tap++) {
        const int64_t t = frame * p->temporal_stride + tap / (p->kernel * p->kernel) - (p->kernel - 1);
        if (t < 0) continue; /* a frame of zeros: adding it changes no bit */
        const float *from = (const float *)p->x->data + (item * frames + t) * frame_size;
        conv_tap(sums, p, from, panel + tap * p->channels * LANES, y, tap / p->kernel % p->kernel, tap % p->kernel);
    }
    for (int64_t x = 0; x < wide; x++)
        for (int64_t l = 0; l < smaller(LANES, p->columns - first_column); l++)
            h3_store(p->out, (row * wide + x) * p->columns + first_column + l, sums[x][l] + h3_load(p->bias, first_column + l));
}

h3_status h3_video_cpu_conv(const h3_device *device, h3_tensor *out, const h3_tensor *x, const h3_tensor *weight, const h3_tensor *bias,
                            const h3_video_conv *geometry)
{
    (void)device;
    const conv p = {out, x, weight, bias, weight->shape[2], weight->shape[2] * weight->shape[2] * weight->shape[2], weight->shape[1], weight->shape[0],
                    geometry->temporal_stride, geometry->spatial_stride};
    const int64_t panels = round_up(p.columns, LANES) / LANES, rows = out->shape[0] * out->shape[1] * out->shape[2];
    const int64_t panel_size = p.taps * p.channels * LANES, sum_size = round_up(out->shape[3], ROWS) * LANES;
    float *space;
    H3_TRY(floats(&space, omp_get_max_threads() * (panel_size + sum_size)));
#pragma omp parallel
    {
        float *panel = space + omp_get_thread_num() * (panel_size + sum_size);
        int64_t packed = -1;
#pragma omp for schedule(static)
        for (int64_t task = 0; task < panels * rows; task++) {
            const int64_t first = task / rows * LANES;
            for (int64_t tap = 0; packed != first && tap < p.taps; tap++)
                pack(panel + tap * p.channels * LANES, weight, first, p.columns, p.channels * p.taps, tap, p.taps, p.channels);
            packed = first;
            conv_row(&p, (float(*)[LANES])(void *)(panel + panel_size), panel, first, task % rows);
        }
    }
    free(space);
    return H3_OK;
}

/* --- attention ------------------------------------------------------------------------------------------------------- */

typedef struct heads {
    h3_tensor *out;
    const h3_tensor *qkv;
    const float *values; /* qkv, widened */
    int64_t tokens, heads, dim, step; /* step: values of one token, 3 * heads * dim */
    int64_t padded_tokens, padded_dim;
    float scale;
} heads;

/* Softmax of one row without the division: exp(score - largest), as `dtype` holds it, and the sum of them before that rounding, in ascending order. */
static float exponentiate(float *row, int64_t count, int32_t dtype)
{
    float largest = row[0], sum = 0.0f;
    for (int64_t j = 1; j < count; j++) largest = row[j] > largest ? row[j] : largest;
    for (int64_t j = 0; j < count; j++) {
        const float p = expf(row[j] - largest);
        sum += p;
        row[j] = h3_rounded(dtype, p);
    }
    return sum;
}

/* Six query rows of one head. `keys`, `values`: panels; `scores` [ROWS][padded_tokens]. */
static void attend_rows(const heads *p, const float *keys, const float *values, float *scores, int64_t item, int64_t head, int64_t query)
{
    const int64_t rows = smaller(ROWS, p->tokens - query);
    const float *left[ROWS];
    float sums[ROWS][LANES], total[ROWS];
    for (int64_t r = 0; r < ROWS; r++) left[r] = p->values + (item * p->tokens + smaller(query + r, p->tokens - 1)) * p->step + head * p->dim;
    for (int64_t first = 0; first < p->tokens; first += LANES) {
        memset(sums, 0, sizeof sums);
        multiply(sums, left, keys + first * p->dim, p->dim);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t l = 0; l < LANES; l++) scores[r * p->padded_tokens + first + l] = sums[r][l] * p->scale;
    }
    for (int64_t r = 0; r < rows; r++) total[r] = exponentiate(scores + r * p->padded_tokens, p->tokens, p->out->dtype);
    for (int64_t r = 0; r < ROWS; r++) left[r] = scores + smaller(r, rows - 1) * p->padded_tokens;
    for (int64_t first = 0; first < p->dim; first += LANES) {
        memset(sums, 0, sizeof sums);
        multiply(sums, left, values + first * p->tokens, p->tokens);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t l = 0; l < smaller(LANES, p->dim - first); l++)
                h3_store(p->out, ((item * p->tokens + query + r) * p->heads + head) * p->dim + first + l, sums[r][l] / total[r]);
    }
}

static void attend_head(const heads *p, float *space, int64_t item, int64_t head)
{
    float *keys = space, *values = keys + p->padded_tokens * p->dim, *scores = values + p->padded_dim * p->tokens;
    const int64_t key = item * p->tokens * p->step + (p->heads + head) * p->dim, value = key + p->heads * p->dim;
    const h3_tensor wide = {.data = (void *)(uintptr_t)p->values, .dtype = H3_F32};
    for (int64_t first = 0; first < p->tokens; first += LANES) pack(keys + first * p->dim, &wide, first, p->tokens, p->step, key, 1, p->dim);
    for (int64_t first = 0; first < p->dim; first += LANES) pack(values + first * p->tokens, &wide, first, p->dim, 1, value, p->step, p->tokens);
    for (int64_t query = 0; query < p->tokens; query += ROWS) attend_rows(p, keys, values, scores, item, head, query);
}

h3_status h3_video_cpu_attention(const h3_device *device, h3_tensor *out, const h3_tensor *qkv)
{
    (void)device;
    heads p = {.out = out, .qkv = qkv, .tokens = qkv->shape[1], .heads = qkv->shape[3], .dim = qkv->shape[4]};
    p.step = 3 * p.heads * p.dim;
    p.padded_tokens = round_up(p.tokens, LANES);
    p.padded_dim = round_up(p.dim, LANES);
    p.scale = (float)(1.0 / sqrt((double)p.dim));
    const int64_t size = p.padded_tokens * p.dim + p.padded_dim * p.tokens + ROWS * p.padded_tokens, tasks = qkv->shape[0] * p.heads;
    float *owned, *space;
    H3_TRY(widen(&p.values, &owned, qkv));
    h3_status status = floats(&space, omp_get_max_threads() * size);
    if (status == H3_OK) {
#pragma omp parallel for schedule(static)
        for (int64_t task = 0; task < tasks; task++) attend_head(&p, space + omp_get_thread_num() * size, task / p.heads, task % p.heads);
    }
    free(space);
    free(owned);
    return status;
}
