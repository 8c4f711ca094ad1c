/* Sampled tensors (golden README, "How to compare"): k elements of a tensor stand for all of it, measured by the norm of the whole. */
#ifndef H3_TESTS_CUDA_SAMPLED_H
#define H3_TESTS_CUDA_SAMPLED_H

#include "golden.h"

/* Element i of a host tensor, F32 or BF16, as a number. The data may be unaligned, as views of a file are. */
double sampled_value(const h3_tensor *tensor, int64_t i);

/* l2 * sqrt(k / count): what an error over k samples of a tensor of `count` elements is measured by. `entry` is the report's: {"shape", "l2"}. NaN unless
 * its shape has `count` elements. */
double sampled_scale(const cJSON *entry, int64_t count, int64_t k);

/* ||x * factor - golden|| / scale over the samples `golden` of the whole tensor x, accumulated in double in the order of the samples. NaN for an empty tensor. */
double sampled_error(const h3_tensor *x, const h3_tensor *golden, double scale, double factor);
/* The same between two sets of samples; NaN unless they are equally many. */
double sampled_distance(const h3_tensor *a, const h3_tensor *b, double scale);

/* Counts one comparison, ok = error <= bound, and keeps the worst; a NaN is worse than any number. */
void sampled_note(golden_result *result, const char *name, double error, double bound);

#endif
