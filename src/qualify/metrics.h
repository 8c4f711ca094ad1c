/* Numbers that decide: errors against a golden, bounds, differences of bytes (qualification.md sections 1 and 5). */
#ifndef H3_QUALIFY_METRICS_H
#define H3_QUALIFY_METRICS_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "graph/device.h"

/* Figures of x against the golden g. Any NaN or infinity in x or g makes `error`, `bias` and `worst_row` NaN, which no bound accepts. */
typedef struct h3_figures {
    int64_t count;        /* N */
    double golden_norm;   /* ||g|| */
    double error;         /* ||x-g|| / ||g||; ||x-g|| when ||g|| = 0 */
    double bias;          /* <x-g,g> / <g,g>; 0 when ||g|| = 0 */
    double effective;     /* Neff = (sum q)^2 / sum q^2 */
    double worst_row;     /* max over rows of ||x_r-g_r|| / max(||g_r||, 1e-3 ||g|| / sqrt(R)) */
    int64_t worst_index;  /* that row */
} h3_figures;

/*
 * x and g: F32 or BF16 host tensors of equal element count (H3_FAILED otherwise, and for an empty comparison). Rows are the
 * first dimension (a 1-d tensor is one row). `group` elements in sequence share one q: 1, or head_dim for attention's tensors.
 * All sums in double: rows as h3_device_row_sums adds them, then the rows ascending.
 */
h3_status h3_figures_of(h3_figures *out, const h3_tensor *x, const h3_tensor *g, int64_t rows, int64_t group);

/* The same for tensors on a device. */
h3_status h3_figures_on(h3_figures *out, const h3_device *device, const h3_tensor *x, const h3_tensor *g, int64_t rows, int64_t group);
/* The same with the first dimension as rows and no groups: what `error` needs. */
h3_status h3_error_on(h3_figures *out, const h3_device *device, const h3_tensor *x, const h3_tensor *g);
/* ||tensor||; NaN unless every element is finite. */
h3_status h3_norm_on(double *norm, const h3_device *device, const h3_tensor *tensor);

/* Bounds of an isolated node from the provider's own figures. `ok = value <= bound` everywhere. */
double h3_isolated_error_bound(const h3_figures *provider);  /* (1.05 + 1/sqrt(N)) p + 1e-5 */
double h3_isolated_bias_bound(const h3_figures *provider);   /* |b_p| + 3 p / sqrt(Neff) + 5e-5 */
double h3_isolated_worst_bound(const h3_figures *provider);  /* 2 r_p + 1e-5 */

/* Frozen bounds: forward 1.25 e + 1e-3, gradients 1.5 e + 5e-3; a zero-norm golden has the absolute bound 1e-6. */
typedef struct h3_bound_formula {
    double forward_scale, forward_offset, gradient_scale, gradient_offset, absolute;
} h3_bound_formula;
extern const h3_bound_formula h3_frozen_formula;
double h3_frozen_bound(double provider_error, int is_gradient);
/* Gradients are "dnode.", "grad.", "dinput." and "dboundary." tensors. */
int h3_is_gradient(const char *tensor_name);

/* Where two tensors' bytes differ. */
typedef struct h3_difference {
    int64_t count;        /* elements */
    int64_t differing;    /* elements whose bytes differ */
    int64_t first, worst; /* flat index of the first and of the largest difference (in ulp); -1 when none */
    int64_t worst_ulp, first_ulp;
    double largest;       /* largest absolute difference; NaN when a NaN takes part */
} h3_difference;
/* Tensors of one dtype (F32 or BF16) and element count; H3_FAILED otherwise or when empty. */
h3_status h3_difference_of(h3_difference *out, const h3_tensor *a, const h3_tensor *b);

/* 1 when every element is finite (F32, BF16). */
int h3_all_finite(const h3_tensor *tensor);

#endif
