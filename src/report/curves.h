/* Curves along frames or steps, as SVG: several in one plot, with a limit. For report.html and for files of their own. */
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

/* One plot as a whole <svg> with its key, 960 x 296 units. `alone` 1: a document of its own, with name space and style; 0: for report.html, whose style
 * it uses. Nothing is drawn of a plot without a value. */
void h3_plot_svg(h3_markup *out, const h3_plot *plot, int alone);

/* PSNR and SSIM of every frame, from the comparison's JSON: in every seed "media": {"video": {"psnr": [...], "ssim_frames": [...]}}, or in "video" (or in
 * "media": {"video"}) the "per_frame" list of h3_picture_metrics_json; limits from "limits": {"psnr_global_db", "ssim_mean"}. A null PSNR is that of an identical
 * frame. Two plots; nothing when nothing was decoded. */
void h3_report_picture_frames(h3_markup *out, const cJSON *compare);

/* The same figures of one kind as a file: `kind` "psnr", "ssim", "velocity.video" or "velocity.audio". The text is the caller's (free()). H3_FAILED when there
 * is no such figure. */
h3_status h3_curves_file(char **out, const cJSON *compare, const char *kind);

#endif
