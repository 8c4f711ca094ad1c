/* Structural similarity of two planes (Wang et al. 2004; media.md section 4). */
#ifndef H3_MEDIA_SSIM_H
#define H3_MEDIA_SSIM_H

#include <stddef.h>
#include <stdint.h>

/* Doubles of working space that one call needs. */
size_t h3_ssim_space(int64_t width);
/* Mean over all windows that lie inside; height and width at least 11. Rows of a and b are `width` apart. Weighted moments are summed over a
 * row's 11 taps, then over 11 rows; windows of a row, then rows. */
double h3_ssim(const double *a, const double *b, int64_t height, int64_t width, double *space);

#endif
