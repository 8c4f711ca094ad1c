/* What the two halves of video_cuda share. */
#ifndef H3_TESTS_VIDEO_CUDA_H
#define H3_TESTS_VIDEO_CUDA_H

#include "media/video_ops_cuda.h"

/* Counts and prints one line: "ok" or "not ok". NaN fails. */
void check_bound(double error, double bound, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Ends the program (exit 4) when a call failed. */
void must(h3_status status);

/* Each operation beside the CPU's. `large`: also the released decoder's shapes, which take an emulated GPU too long. */
void check_operations(const h3_device *device, const h3_video_ops *ops, int large);

#endif
