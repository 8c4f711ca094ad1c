/* The small video autoencoder's goldens, and how they are compared. */
#ifndef H3_TESTS_VIDEO_GOLDEN_H
#define H3_TESTS_VIDEO_GOLDEN_H

#include "golden_files.h"

#include <math.h>

#include "base/half.h"
#include "media/video.h"

#define SMALL_TILES ((h3_video_tiling){16, 8})

h3_video_weights video_weights(void);

/* Tensor `name` of the golden file without its leading batch of 1, as F32. The caller frees. */
h3_tensor video_golden(const char *name);

/* ||x - g|| / ||g||; NaN for shapes that differ. */
double video_error(const h3_tensor *x, const h3_tensor *golden);

/* A decoded video [frames,3,Y,X] of any type as the golden has it: F32 [3,frames,Y,X]. Takes the video over. */
h3_tensor video_colours_first(h3_tensor *video);

/* Golden latents "<name>.z" decoded on the CPU, as [3,frames,Y,X] F32. */
h3_tensor video_decoded(const char *name, int32_t dtype, const h3_video_tiling *tiling, int64_t tiles_a_call);

/* The moments of golden frames "<name>.x". */
h3_tensor video_moments(const char *name, const h3_video_tiling *tiling, int64_t tiles_a_call);

/* The mean (half 0) or log-variance (half 1) of moments, a view. */
h3_tensor video_moment(const h3_tensor *moments, int half);

/* The error against golden `key` is at most `bound`; prints both. */
void assert_near_golden(const char *key, const h3_tensor *x, double bound);

/* What must not depend on the number of threads and of tiles a call: `make(what, tiles)` gives a new host tensor, the same bytes each time. */
typedef h3_tensor (*video_maker)(const void *what, int64_t tiles_a_call);
typedef struct video_how {
    int threads;
    int64_t tiles_a_call;
} video_how;
void assert_same_bytes(video_maker make, const void *what, const video_how *how, size_t count);

/* Red and blue of colours-first planes, exchanged: a mistake that every comparison must see. */
void video_swap_colours(h3_tensor *x);

#endif
