/* Block 0 at the released dimensions against the golden samples (golden README, "released-dims"). */
#ifndef H3_TESTS_CUDA_RELEASED_H
#define H3_TESTS_CUDA_RELEASED_H

#include "golden.h"

/* The released model's configuration. */
h3_status released_config(h3_config *out);

/* Weights of block 0 on the device and the files of the goldens. */
typedef struct released released;

h3_status released_open(released **out, const h3_device *device);
void released_close(released *r);

/*
 * Forward and backward of block 0 on layout "s264" or "s925"; every node, gradient reaching a node, and gradient of input, temb and
 * parameters: the samples within 1e-4 in FP32; else within 1.25 p + 1e-3 or 1.5 p + 5e-3, p being the golden BF16's error on the same samples.
 * `disturb` as in golden_run.
 */
h3_status released_block(golden_result *out, released *r, const char *layout, golden_mode mode, const char *disturb);

/*
 * Single nodes on the golden's own first 48 rows of layout s264. A provider: rope_q, residual_attn and swiglu bitwise, norm1, norm2 and
 * q_norm with at most 8 other elements. A candidate: the nodes that it promises bitwise. `worst` tells elements over their bound.
 */
h3_status released_rows48(golden_result *out, released *r, golden_mode mode);

#endif
