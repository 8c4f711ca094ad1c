/* How near one video is to another (media.md section 4): PSNR, SSIM, and the error of their motion, on 8-bit RGB. */
#ifndef H3_MEDIA_PICTURE_METRICS_H
#define H3_MEDIA_PICTURE_METRICS_H

#include <cJSON.h>
#include <stdint.h>

#include "base/error.h"

enum { H3_SSIM_WINDOW = 11 };

/* Frames a and b of one place. An infinite PSNR (identical frames) stands as INFINITY here and as null with "identical" in JSON. */
typedef struct h3_frame_metrics {
    int64_t squared_error; /* sum of (a - b)^2 over all samples, exact */
    int64_t differing;     /* samples that differ */
    int32_t max_abs_diff;  /* codes */
    double psnr;           /* 10 log10(255^2 / mean squared error), R, G and B pooled */
    double ssim;           /* mean of the three colours' */
    double ssim_luma;      /* of Y = .299 R + .587 G + .114 B, not rounded */
    double trmse;          /* root mean squared difference of the steps to the next frame; 0 for the last frame */
} h3_frame_metrics;

typedef struct h3_picture_metrics {
    int64_t count, height, width;
    h3_frame_metrics *frames;     /* [count], owned */
    int64_t identical_frames;
    int32_t max_abs_diff;
    double frac_diff;             /* share of samples that differ */
    double psnr_global;           /* from the mean squared error of all frames; INFINITY only if all are identical */
    double psnr_min;              /* of the frames that differ; INFINITY when none does */
    double psnr_mean_finite;      /* likewise, their mean */
    double ssim_mean, ssim_min, ssim_luma_mean, ssim_luma_min;
    double temporal_rmse, temporal_rmse_max, temporal_energy_ref; /* codes; NAN for one frame */
} h3_picture_metrics;

/* a (the reference) and b: bytes [count][height][width][3]. Sums of integers are exact, others in double in a fixed order: the same bits for any
 * number of threads. SSIM (Wang et al. 2004) with an 11 x 11 Gaussian window of deviation 1.5, windows wholly inside. H3_USAGE for no frames or
 * frames smaller than a window. */
h3_status h3_picture_metrics_compute(h3_picture_metrics *out, const unsigned char *a, const unsigned char *b, int64_t count, int64_t height, int64_t width);
void h3_picture_metrics_free(h3_picture_metrics *metrics);

/* The "video" object of the comparison's report (media.md section 7); infinite and absent numbers are null beside a flag. Caller deletes. */
h3_status h3_picture_metrics_json(cJSON **out, const h3_picture_metrics *metrics);

#endif
