/* Curves along frames or steps, as SVG files: several in one plot, with a limit. */
#ifndef H3_REPORT_CURVES_H
#define H3_REPORT_CURVES_H

#include <cJSON.h>
#include <stdint.h>

#include "report/markup.h"

/* A value may be INFINITY (identical frames have no finite PSNR): a ring at the upper edge. NaN interrupts the line and is crossed out in red. */
typedef struct h3_curve {
    const char *name; /* for the key; escaped */
    const double *values;
    int64_t count;
} h3_curve;

typedef struct h3_plot {
    const char *title, *x_title; /* escaped */
    const h3_curve *curves;
    size_t count;
    double limit;     /* a dashed line; NaN: none */
    int from_zero;    /* errors begin at 0; otherwise the axis spans what there is */
    int minimum_good; /* the limit is a least value (PSNR, SSIM), and is labelled so */
} h3_plot;

/* One plot with its key as an SVG document, 960 x 296 units. Nothing is written of a plot without a value. */
void h3_plot_svg(h3_markup *out, const h3_plot *plot);

/* The kinds of curves that a comparison may have: "psnr", "ssim", "velocity.video", "velocity.audio", NULL. */
extern const char *const h3_curve_kinds[];

/*
 * The figures of one kind, a curve a seed, as a file's text (the caller's, free()). From the comparison's JSON: PSNR and SSIM of every frame in every seed's
 * "media": {"video": {"psnr": [...], "ssim_frames": [...]}}, or in the "per_frame" list of h3_picture_metrics_json in "video" or "media": {"video"}; a null PSNR is
 * that of an identical frame. Errors of velocities in "velocity": {"video": {"errors": [...]}, ...}. Limits in "limits": {"psnr_global_db", "ssim_mean"}.
 * `*out` is NULL when there is no such figure. H3_USAGE for another kind.
 */
h3_status h3_curves_file(char **out, const cJSON *compare, const char *kind);

#endif
