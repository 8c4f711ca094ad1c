/*
 * The audio decoder's operations on the CPU. Each inner loop exists twice, plain and with eight lanes; both compute every sample by the same steps, so the
 * bits are the same. Threads share out independent samples.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#define WIDE __attribute__((target("avx2,fma")))
#endif

#include "media/audio_ops.h"
#include "media/audio_snake.h"

#define INLINE static inline __attribute__((always_inline))

enum {
    ROWS = 4,           /* output channels of a tile */
    TILE = 24,          /* samples of a tile: three vectors; four rows of them fill the registers */
    TASK = 8 * TILE,    /* samples of a piece of work */
    CHUNK = 512,        /* samples of an activation's piece of work: all that it needs stays in the nearest cache */
    REACH = 3,          /* samples of the doubled signal's halves that a chunk needs on each side */
    HALF = CHUNK + 2 * REACH,
    SOURCE = HALF + 2 * REACH,
};

/* --- convolutions --- */

/* Sums of `rows` channels for TILE samples: tap k of channel c starts at x + c * row + k * step. */
typedef struct sums {
    const float *x, *weight, *bias; /* weight of the first row; bias NULL: 0 */
    int64_t row, step, in, taps;
    int rows;
} sums;

typedef void sum_tile(float out[ROWS][TILE], const sums *s);

static void sum_plain(float out[ROWS][TILE], const sums *s)
{
    for (int o = 0; o < s->rows; o++) {
        const float *weight = s->weight + o * s->in * s->taps;
        for (int n = 0; n < TILE; n++) out[o][n] = s->bias != NULL ? s->bias[o] : 0.0f;
        for (int64_t c = 0; c < s->in; c++)
            for (int64_t k = 0; k < s->taps; k++) {
                const float w = weight[c * s->taps + k], *x = s->x + c * s->row + k * s->step;
                for (int n = 0; n < TILE; n++) out[o][n] = fmaf(w, x[n], out[o][n]);
            }
    }
}

#ifdef WIDE
INLINE WIDE void sum_rows(float out[ROWS][TILE], const sums *s, const int rows)
{
    __m256 a[ROWS][3];
    const float *w[ROWS];
#pragma GCC unroll 4
    for (int o = 0; o < rows; o++) {
        w[o] = s->weight + o * s->in * s->taps;
        a[o][0] = a[o][1] = a[o][2] = _mm256_set1_ps(s->bias != NULL ? s->bias[o] : 0.0f);
    }
    int64_t term = 0;
    for (int64_t c = 0; c < s->in; c++) {
        const float *x = s->x + c * s->row;
        for (int64_t k = 0; k < s->taps; k++, x += s->step, term++) {
            const __m256 x0 = _mm256_loadu_ps(x), x1 = _mm256_loadu_ps(x + 8), x2 = _mm256_loadu_ps(x + 16);
#pragma GCC unroll 4
            for (int o = 0; o < rows; o++) {
                const __m256 weight = _mm256_broadcast_ss(w[o] + term);
                a[o][0] = _mm256_fmadd_ps(weight, x0, a[o][0]);
                a[o][1] = _mm256_fmadd_ps(weight, x1, a[o][1]);
                a[o][2] = _mm256_fmadd_ps(weight, x2, a[o][2]);
            }
        }
    }
#pragma GCC unroll 4
    for (int o = 0; o < rows; o++) {
        _mm256_storeu_ps(out[o], a[o][0]);
        _mm256_storeu_ps(out[o] + 8, a[o][1]);
        _mm256_storeu_ps(out[o] + 16, a[o][2]);
    }
}

static WIDE void sum_wide(float out[ROWS][TILE], const sums *s)
{
    switch (s->rows) {
    case 1: sum_rows(out, s, 1); break;
    case 2: sum_rows(out, s, 2); break;
    case 3: sum_rows(out, s, 3); break;
    default: sum_rows(out, s, ROWS); break;
    }
}
#endif

static int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

/* x with zeros around it, so that no tap and no tile looks where nothing is. */
typedef struct plane {
    float *data;
    int64_t row, left;
} plane;

static h3_status make_plane(plane *out, const h3_tensor *x, int64_t reach)
{
    void *data;
    size_t rows, count;
    int64_t length = x->shape[2];
    *out = (plane){NULL, round_up(length, TILE) + 2 * reach, reach};
    H3_TRY(h3_size_multiply((size_t)x->shape[0], (size_t)x->shape[1], &rows));
    H3_TRY(h3_size_multiply(rows, (size_t)out->row, &count));
    H3_TRY(h3_alloc(&data, count, sizeof(float), "the padded input of a convolution"));
    out->data = data;
    const float *from = x->data;
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < rows; i++) memcpy(out->data + i * (size_t)out->row + out->left, from + i * (size_t)length, (size_t)length * sizeof(float));
    return H3_OK;
}

/* One convolution of a plane: sample q of the input's grid becomes sample first + q * stride of an output row. */
typedef struct convolution {
    plane in;
    h3_audio_sizes sizes;
    const float *weight, *bias, *residual; /* bias, residual: NULL for none */
    float *out;
    int64_t taps, step, offset; /* tap k of sample q is at q + offset + k * step of a plane's row */
    int64_t first, stride, out_length;
    sum_tile *sum;
} convolution;

static void store_tile(const convolution *v, float tile[ROWS][TILE], int64_t batch, int64_t channel, int rows, int64_t q, int64_t count)
{
    for (int o = 0; o < rows; o++) {
        int64_t at = (batch * v->sizes.out + channel + o) * v->out_length + v->first + q * v->stride;
        for (int64_t n = 0; n < count; n++, at += v->stride) v->out[at] = v->residual != NULL ? tile[o][n] + v->residual[at] : tile[o][n];
    }
}

static void convolve_task(const convolution *v, int64_t batch, int64_t channel, int64_t q, int64_t end)
{
    float tile[ROWS][TILE];
    const float *input = v->in.data + batch * v->sizes.in * v->in.row + v->offset;
    int rows = (int)(v->sizes.out - channel < ROWS ? v->sizes.out - channel : ROWS);
    sums s = {NULL, v->weight + channel * v->sizes.in * v->taps, v->bias != NULL ? v->bias + channel : NULL, v->in.row, v->step, v->sizes.in, v->taps, rows};
    for (; q < end; q += TILE) {
        s.x = input + q;
        v->sum(tile, &s);
        store_tile(v, tile, batch, channel, rows, q, end - q < TILE ? end - q : TILE);
    }
}

static void convolve_all(const convolution *v)
{
    int64_t length = v->sizes.length, tasks = (length + TASK - 1) / TASK;
#pragma omp parallel for collapse(3) schedule(dynamic)
    for (int64_t batch = 0; batch < v->sizes.batch; batch++)
        for (int64_t task = 0; task < tasks; task++)
            for (int64_t channel = 0; channel < v->sizes.out; channel += ROWS)
                convolve_task(v, batch, channel, task * TASK, (task + 1) * TASK < length ? (task + 1) * TASK : length);
}

static h3_status convolve_with(sum_tile *sum, const h3_tensor *out, const h3_tensor *x, const h3_tensor *weight, const h3_tensor *bias, int64_t dilation,
                               const h3_tensor *residual)
{
    convolution v = {.weight = weight->data, .bias = bias->data, .residual = residual != NULL ? residual->data : NULL, .out = out->data, .stride = 1, .sum = sum};
    H3_TRY(h3_audio_check_convolve(&v.sizes, out, x, weight, bias, dilation, residual));
    H3_TRY(make_plane(&v.in, x, dilation * (v.sizes.kernel / 2)));
    v.taps = v.sizes.kernel;
    v.step = dilation;
    v.out_length = v.sizes.length;
    convolve_all(&v);
    free(v.in.data);
    return H3_OK;
}

static h3_status convolve_up_with(sum_tile *sum, const h3_tensor *out, const h3_tensor *x, const h3_tensor *phases, const h3_tensor *bias, int64_t rate)
{
    convolution v = {.weight = phases->data, .bias = bias->data, .out = out->data, .step = -1, .stride = rate, .sum = sum};
    H3_TRY(h3_audio_check_convolve_up(&v.sizes, out, x, phases, bias, rate));
    H3_TRY(make_plane(&v.in, x, v.sizes.kernel / rate + 1));
    v.out_length = v.sizes.length * rate;
    for (int64_t r = 0; r < rate; r++) {
        h3_audio_phase phase = h3_audio_phase_of(v.sizes.kernel, rate, r);
        v.taps = phase.taps;
        v.offset = v.in.left + phase.shift;
        v.first = r;
        convolve_all(&v);
        v.weight += v.sizes.out * v.sizes.in * phase.taps;
    }
    free(v.in.data);
    return H3_OK;
}

/* --- the alias-free activation --- */

/* One chunk of a channel, its samples behind and before it, and both halves of the doubled signal: sample i is number `begin` - REACH + i of its half. */
typedef struct chunk {
    float source[SOURCE], even[HALF], odd[HALF];
    int64_t begin, count;
} chunk;

static int64_t clamp_index(int64_t i, int64_t length) { return i < 0 ? 0 : i < length ? i : length - 1; }

static void load_chunk(chunk *c, const float *x, int64_t length)
{
    int64_t count = c->count + 4 * REACH, first = c->begin - 2 * REACH;
    if (first >= 0 && first + count <= length) memcpy(c->source, x + first, (size_t)count * sizeof *x);
    else
        for (int64_t i = 0; i < count; i++) c->source[i] = x[clamp_index(first + i, length)];
}

INLINE void snake_half(float *half, int64_t count, float a, float b)
{
    int far = 0;
    float sine[HALF];
#pragma omp simd reduction(| : far)
    for (int64_t i = 0; i < count; i++) {
        const float t = a * half[i];
        far |= !(fabsf(t) < H3_SINE_NEAR);
        sine[i] = h3_sine_near(t);
    }
    for (int64_t i = 0; far && i < count; i++)
        if (!(fabsf(a * half[i]) < H3_SINE_NEAR)) sine[i] = h3_sine_far(a * half[i]);
#pragma omp simd
    for (int64_t i = 0; i < count; i++) half[i] = h3_snake(half[i], sine[i], b);
}

/* Beyond its ends the doubled signal repeats its first and last sample, which belong to different halves. */
static void extend_ends(chunk *c, int64_t length)
{
    int64_t start = c->begin - REACH, count = c->count + 2 * REACH;
    for (int64_t i = 0; i < -start; i++) c->even[i] = c->odd[i] = c->even[-start];
    for (int64_t i = length - start; i < count; i++) c->even[i] = c->odd[i] = c->odd[length - start - 1];
}

INLINE void activate_chunk(chunk *c, float *out, int64_t length, const float *filter, float a, float b)
{
    int64_t count = c->count + 2 * REACH;
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        c->even[i] = h3_upsample(filter, 11, c->source + i);
        c->odd[i] = h3_upsample(filter, 10, c->source + i + 1);
    }
    snake_half(c->even, count, a, b);
    snake_half(c->odd, count, a, b);
    extend_ends(c, length);
#pragma omp simd
    for (int64_t i = 0; i < c->count; i++) out[i] = h3_downsample(filter, c->odd + i, c->even + i);
}

typedef void activate_some(chunk *c, float *out, int64_t length, const float *filter, float a, float b);

static void activate_plain(chunk *c, float *out, int64_t length, const float *filter, float a, float b) { activate_chunk(c, out, length, filter, a, b); }
#ifdef WIDE
static WIDE void activate_wide(chunk *c, float *out, int64_t length, const float *filter, float a, float b) { activate_chunk(c, out, length, filter, a, b); }
#endif

static h3_status activate_with(activate_some *some, const h3_tensor *out, const h3_tensor *x, const h3_tensor *filter, const h3_tensor *curve)
{
    h3_audio_sizes sizes;
    H3_TRY(h3_audio_check_activate(&sizes, out, x, filter, curve));
    const float *from = x->data, *curves = curve->data;
    float *to = out->data;
    int64_t rows = sizes.batch * sizes.in, length = sizes.length;
#pragma omp parallel for collapse(2) schedule(static)
    for (int64_t row = 0; row < rows; row++)
        for (int64_t begin = 0; begin < length; begin += CHUNK) {
            chunk c;
            c.begin = begin;
            c.count = length - begin < CHUNK ? length - begin : CHUNK;
            load_chunk(&c, from + row * length, length);
            some(&c, to + row * length + begin, length, filter->data, curves[row % sizes.in], curves[sizes.in + row % sizes.in]);
        }
    return H3_OK;
}

/* --- the tables --- */

static h3_status mean(const h3_audio_ops *ops, const h3_tensor *out, const h3_tensor *const *x, int64_t count)
{
    (void)ops;
    H3_TRY(h3_audio_check_mean(out, x, count));
    int64_t elements = h3_tensor_count(out);
    float *to = out->data;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < elements; i++) {
        float sum = ((const float *)x[0]->data)[i];
        for (int64_t j = 1; j < count; j++) sum += ((const float *)x[j]->data)[i];
        to[i] = sum / (float)count;
    }
    return H3_OK;
}

#define TABLE(kind)                                                                                                                                                   \
    static h3_status convolve_##kind(const h3_audio_ops *ops, const h3_tensor *out, const h3_tensor *x, const h3_tensor *weight, const h3_tensor *bias,              \
                                     int64_t dilation, const h3_tensor *residual)                                                                                    \
    {                                                                                                                                                                 \
        (void)ops;                                                                                                                                                    \
        return convolve_with(sum_##kind, out, x, weight, bias, dilation, residual);                                                                                   \
    }                                                                                                                                                                 \
    static h3_status convolve_up_##kind(const h3_audio_ops *ops, const h3_tensor *out, const h3_tensor *x, const h3_tensor *phases, const h3_tensor *bias, int64_t rate) \
    {                                                                                                                                                                 \
        (void)ops;                                                                                                                                                    \
        return convolve_up_with(sum_##kind, out, x, phases, bias, rate);                                                                                              \
    }                                                                                                                                                                 \
    static h3_status activate_##kind##_all(const h3_audio_ops *ops, const h3_tensor *out, const h3_tensor *x, const h3_tensor *filter, const h3_tensor *curve)      \
    {                                                                                                                                                                 \
        (void)ops;                                                                                                                                                    \
        return activate_with(activate_##kind, out, x, filter, curve);                                                                                                \
    }

TABLE(plain)
#ifdef WIDE
TABLE(wide)
#endif

const h3_audio_ops *h3_audio_ops_plain(void)
{
    static h3_audio_ops ops = {NULL, convolve_plain, convolve_up_plain, activate_plain_all, mean};
    ops.device = h3_device_cpu();
    return &ops;
}

const h3_audio_ops *h3_audio_ops_cpu(void)
{
#ifdef WIDE
    static h3_audio_ops ops = {NULL, convolve_wide, convolve_up_wide, activate_wide_all, mean};
    ops.device = h3_device_cpu();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &ops;
#endif
    return h3_audio_ops_plain();
}
