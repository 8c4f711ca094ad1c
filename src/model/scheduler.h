/* Rectified-flow time grid and Euler update (scheduler.md): float32, one rounding per written operation. */
#ifndef H3_MODEL_SCHEDULER_H
#define H3_MODEL_SCHEDULER_H

#include <stdint.h>

#include "base/error.h"

typedef struct h3_schedule {
    int64_t points;   /* grid points after collapsing equal sigmas, terminal 0 included */
    float *sigma;     /* [points] */
    float *timestep;  /* [points - 1] = number of model evaluations */
} h3_schedule;

/* n >= 2 grid points with the "fma" linspace. H3_USAGE otherwise. */
h3_status h3_schedule_new(h3_schedule *out, int64_t n, float shift);
void h3_schedule_free(h3_schedule *schedule);

/* What step i multiplies with: sigma recovered from the timestep, ratio sigma[i+1]/sigma[i], and 1 - ratio. */
void h3_schedule_coefficients(const h3_schedule *schedule, int64_t i, float *sigma, float *ratio, float *rest);

/* One step, in place: x of `count` elements, velocity of the same, step index i. */
void h3_schedule_step(const h3_schedule *schedule, int64_t i, float *x, const float *velocity, int64_t count);

/* z = fl(fl(t*x) + fl(fl(1-t)*noise)), elementwise into z. */
void h3_forward_noise(float *z, const float *x, const float *noise, float t, int64_t count);

#endif
