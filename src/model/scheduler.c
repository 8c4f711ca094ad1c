#include "model/scheduler.h"

#include <math.h>
#include <stdlib.h>

#include "base/memory.h"

enum { POINT_LIMIT = 1 << 24 }; /* a float counts exactly up to here */

/* Point i of linspace(1, 0, n): built from both ends, the first half with one rounding. */
static float base_point(int64_t i, int64_t n)
{
    float step = -1.0f / (float)(n - 1);
    if (i < n / 2) return fmaf(step, (float)i, 1.0f);
    return -step * (float)(n - 1 - i);
}

static float shifted_sigma(float base, float shift)
{
    float numerator = shift * base;
    float scaled = (shift - 1.0f) * base;
    float denominator = 1.0f + scaled;
    return numerator / denominator;
}

h3_status h3_schedule_new(h3_schedule *out, int64_t n, float shift)
{
    *out = (h3_schedule){0};
    if (n < 2 || n > POINT_LIMIT)
        return h3_error(H3_USAGE, "a schedule of %lld grid points; 2 to %d are possible", (long long)n, POINT_LIMIT);
    if (!isfinite(shift) || shift <= 0) return h3_error(H3_USAGE, "a schedule shift of %g; it must be above 0", (double)shift);
    void *sigma, *timestep;
    H3_TRY(h3_alloc(&sigma, (size_t)n, sizeof(float), "the sigmas"));
    h3_status status = h3_alloc(&timestep, (size_t)n, sizeof(float), "the timesteps");
    if (status != H3_OK) {
        free(sigma);
        return status;
    }
    *out = (h3_schedule){.sigma = sigma, .timestep = timestep};
    for (int64_t i = 0; i < n; i++) {
        float value = shifted_sigma(base_point(i, n), shift);
        if (out->points == 0 || value != out->sigma[out->points - 1]) out->sigma[out->points++] = value;
    }
    int falling = out->sigma[0] == 1 && out->sigma[out->points - 1] == 0;
    for (int64_t i = 0; i + 1 < out->points; i++) {
        out->timestep[i] = 1.0f - out->sigma[i];
        falling = falling && out->sigma[i] > out->sigma[i + 1];
    }
    if (falling) return H3_OK;
    h3_schedule_free(out);
    return h3_error(H3_USAGE, "a schedule shift of %g leaves no falling sigmas; take one nearer to 1", (double)shift);
}

void h3_schedule_free(h3_schedule *schedule)
{
    free(schedule->sigma);
    free(schedule->timestep);
    *schedule = (h3_schedule){0};
}

void h3_schedule_coefficients(const h3_schedule *schedule, int64_t i, float *sigma, float *ratio, float *rest)
{
    *sigma = 1.0f - schedule->timestep[i];
    *ratio = schedule->sigma[i + 1] / schedule->sigma[i];
    *rest = 1.0f - *ratio;
}

void h3_schedule_step(const h3_schedule *schedule, int64_t i, float *x, const float *velocity, int64_t count)
{
    float sigma, ratio, rest;
    h3_schedule_coefficients(schedule, i, &sigma, &ratio, &rest);
    for (int64_t k = 0; k < count; k++) {
        float move = sigma * velocity[k];
        float clean = x[k] + move;
        float kept = ratio * x[k];
        float added = rest * clean;
        x[k] = kept + added;
    }
}

void h3_forward_noise(float *z, const float *x, const float *noise, float t, int64_t count)
{
    float rest = 1.0f - t;
    for (int64_t k = 0; k < count; k++) {
        float kept = t * x[k];
        float added = rest * noise[k];
        z[k] = kept + added;
    }
}
