#include "media/picture_metrics.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>

#include "base/memory.h"
#include "media/ssim.h"

enum { COLOURS = 3, PLANES = 4 }; /* R, G, B and luma */

typedef struct pair {
    const unsigned char *a, *b;
    int64_t count, height, width, samples; /* samples of a frame */
} pair;

static void compare_frame(h3_frame_metrics *out, const pair *p, int64_t t)
{
    const unsigned char *a = p->a + t * p->samples, *b = p->b + t * p->samples;
    for (int64_t i = 0; i < p->samples; i++) {
        const int difference = a[i] - b[i], size = abs(difference);
        out->squared_error += difference * difference;
        out->differing += size > 0;
        if (size > out->max_abs_diff) out->max_abs_diff = size;
    }
}

/* Sums over one step from a frame to the next: of the squared difference of the two steps, and of the reference's squared step. */
static void compare_step(int64_t *error, int64_t *energy, const pair *p, int64_t t)
{
    const unsigned char *a = p->a + t * p->samples, *b = p->b + t * p->samples;
    for (int64_t i = 0; i < p->samples; i++) {
        const int step = a[p->samples + i] - a[i], other = b[p->samples + i] - b[i];
        *error += (step - other) * (step - other);
        *energy += step * step;
    }
}

/* One plane of a frame as doubles: a colour, or luma. */
static void extract(double *out, const unsigned char *rgb, int64_t pixels, int plane)
{
    for (int64_t i = 0; i < pixels; i++)
        out[i] = plane < COLOURS ? (double)rgb[i * COLOURS + plane]
                                 : 0.299 * (double)rgb[i * COLOURS] + 0.587 * (double)rgb[i * COLOURS + 1] + 0.114 * (double)rgb[i * COLOURS + 2];
}

/* ssim [count][PLANES] */
static h3_status compare_structure(double *ssim, const pair *p)
{
    const int64_t pixels = p->height * p->width, room = 2 * pixels + (int64_t)h3_ssim_space(p->width);
    void *memory;
    H3_TRY(h3_alloc(&memory, (size_t)(omp_get_max_threads() * room), sizeof(double), "comparing pictures"));
    double *space = memory;
#pragma omp parallel for schedule(dynamic)
    for (int64_t task = 0; task < p->count * PLANES; task++) {
        double *a = space + omp_get_thread_num() * room, *b = a + pixels;
        extract(a, p->a + task / PLANES * p->samples, pixels, (int)(task % PLANES));
        extract(b, p->b + task / PLANES * p->samples, pixels, (int)(task % PLANES));
        ssim[task] = h3_ssim(a, b, p->height, p->width, b + pixels);
    }
    free(memory);
    return H3_OK;
}

static double psnr(double mean_squared_error) { return mean_squared_error > 0.0 ? 10.0 * log10(255.0 * 255.0 / mean_squared_error) : INFINITY; }

static void summarize_errors(h3_picture_metrics *m, int64_t samples)
{
    double total = 0.0, finite = 0.0;
    int64_t differing = 0;
    m->psnr_min = m->psnr_mean_finite = INFINITY;
    for (int64_t t = 0; t < m->count; t++) {
        h3_frame_metrics *f = &m->frames[t];
        const double mean = (double)f->squared_error / (double)samples;
        f->psnr = psnr(mean);
        total += mean;
        differing += f->differing;
        if (f->max_abs_diff > m->max_abs_diff) m->max_abs_diff = f->max_abs_diff;
        if (f->squared_error == 0) {
            m->identical_frames++;
            continue;
        }
        finite += f->psnr;
        if (f->psnr < m->psnr_min) m->psnr_min = f->psnr;
    }
    m->psnr_global = psnr(total / (double)m->count);
    m->frac_diff = (double)differing / ((double)samples * (double)m->count);
    if (m->identical_frames < m->count) m->psnr_mean_finite = finite / (double)(m->count - m->identical_frames);
}

static void summarize_structure(h3_picture_metrics *m, const double *ssim)
{
    double sum = 0.0, luma = 0.0;
    m->ssim_min = m->ssim_luma_min = INFINITY;
    for (int64_t t = 0; t < m->count; t++) {
        h3_frame_metrics *f = &m->frames[t];
        const double *s = ssim + t * PLANES;
        f->ssim = (s[0] + s[1] + s[2]) / 3.0;
        f->ssim_luma = s[3];
        sum += f->ssim;
        luma += f->ssim_luma;
        m->ssim_min = fmin(m->ssim_min, f->ssim);
        m->ssim_luma_min = fmin(m->ssim_luma_min, f->ssim_luma);
    }
    m->ssim_mean = sum / (double)m->count;
    m->ssim_luma_mean = luma / (double)m->count;
}

/* steps [count - 1][2]: error and energy of each. */
static void summarize_motion(h3_picture_metrics *m, const int64_t (*steps)[2], int64_t samples)
{
    double error = 0.0, energy = 0.0;
    m->temporal_rmse = m->temporal_rmse_max = m->temporal_energy_ref = m->count > 1 ? 0.0 : NAN;
    for (int64_t t = 0; t + 1 < m->count; t++) {
        const double mean = (double)steps[t][0] / (double)samples;
        m->frames[t].trmse = sqrt(mean);
        error += mean;
        energy += (double)steps[t][1] / (double)samples;
        m->temporal_rmse_max = fmax(m->temporal_rmse_max, m->frames[t].trmse);
    }
    if (m->count < 2) return;
    m->temporal_rmse = sqrt(error / (double)(m->count - 1));
    m->temporal_energy_ref = sqrt(energy / (double)(m->count - 1));
}

static h3_status compute(h3_picture_metrics *m, const pair *p)
{
    void *memory;
    H3_TRY(h3_alloc(&memory, (size_t)p->count, sizeof *m->frames, "the metrics of a video"));
    m->frames = memory;
    H3_TRY(h3_alloc(&memory, (size_t)p->count, 2 * sizeof(int64_t) + PLANES * sizeof(double), "the metrics of a video"));
    double *ssim = memory;
    int64_t(*steps)[2] = (int64_t(*)[2])(void *)(ssim + p->count * PLANES);
#pragma omp parallel for schedule(static)
    for (int64_t t = 0; t < p->count; t++) {
        compare_frame(&m->frames[t], p, t);
        if (t + 1 < p->count) compare_step(&steps[t][0], &steps[t][1], p, t);
    }
    h3_status status = compare_structure(ssim, p);
    if (status == H3_OK) {
        summarize_errors(m, p->samples);
        summarize_structure(m, ssim);
        summarize_motion(m, (const int64_t(*)[2])steps, p->samples);
    }
    free(memory);
    return status;
}

h3_status h3_picture_metrics_compute(h3_picture_metrics *out, const unsigned char *a, const unsigned char *b, int64_t count, int64_t height, int64_t width)
{
    const int64_t limit = 1 << 20;
    *out = (h3_picture_metrics){.count = count, .height = height, .width = width};
    if (count < 1 || count > limit || height > limit || width > limit || height < H3_SSIM_WINDOW || width < H3_SSIM_WINDOW)
        return h3_error(H3_USAGE, "%lld frames of %lld x %lld pixels cannot be compared; at least one of %d x %d is needed", (long long)count,
                        (long long)width, (long long)height, H3_SSIM_WINDOW, H3_SSIM_WINDOW);
    const pair p = {a, b, count, height, width, height * width * COLOURS};
    h3_status status = compute(out, &p);
    if (status != H3_OK) h3_picture_metrics_free(out);
    return status;
}

void h3_picture_metrics_free(h3_picture_metrics *metrics)
{
    free(metrics->frames);
    *metrics = (h3_picture_metrics){0};
}

/* --- report ---------------------------------------------------------------------------------------------------------- */

static void add_real(cJSON *object, const char *key, double value)
{
    if (isfinite(value)) cJSON_AddNumberToObject(object, key, value);
    else cJSON_AddNullToObject(object, key);
}

static void add_pair(cJSON *object, const char *key, double mean, double least)
{
    cJSON *both = cJSON_AddObjectToObject(object, key);
    add_real(both, "mean", mean);
    add_real(both, "min", least);
}

static void add_frame(cJSON *list, const h3_frame_metrics *f, int is_last)
{
    cJSON *item = cJSON_CreateObject();
    cJSON_AddItemToArray(list, item);
    add_real(item, "psnr", f->psnr);
    cJSON_AddBoolToObject(item, "identical", f->squared_error == 0);
    add_real(item, "ssim", f->ssim);
    add_real(item, "ssim_luma", f->ssim_luma);
    cJSON_AddNumberToObject(item, "max_abs_diff", f->max_abs_diff);
    add_real(item, "trmse", is_last ? NAN : f->trmse); /* to the next frame */
}

h3_status h3_picture_metrics_json(cJSON **out, const h3_picture_metrics *m)
{
    cJSON *object = cJSON_CreateObject();
    *out = NULL;
    if (object == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for a report");
    cJSON_AddBoolToObject(object, "identical", m->identical_frames == m->count);
    add_real(object, "psnr_global", m->psnr_global);
    add_real(object, "psnr_min", m->psnr_min);
    add_real(object, "psnr_mean_finite", m->psnr_mean_finite);
    cJSON_AddNumberToObject(object, "identical_frames", (double)m->identical_frames);
    cJSON_AddNumberToObject(object, "max_abs_diff", m->max_abs_diff);
    add_real(object, "frac_diff", m->frac_diff);
    add_pair(object, "ssim", m->ssim_mean, m->ssim_min);
    add_pair(object, "ssim_luma", m->ssim_luma_mean, m->ssim_luma_min);
    cJSON_AddBoolToObject(object, "single_frame", m->count == 1);
    add_real(object, "temporal_rmse", m->temporal_rmse);
    add_real(object, "temporal_rmse_norm", m->temporal_rmse / 255.0);
    add_real(object, "temporal_rmse_max", m->temporal_rmse_max);
    add_real(object, "temporal_energy_ref", m->temporal_energy_ref);
    cJSON *list = cJSON_AddArrayToObject(object, "per_frame");
    for (int64_t t = 0; t < m->count; t++) add_frame(list, &m->frames[t], t + 1 == m->count);
    *out = object;
    return H3_OK;
}
