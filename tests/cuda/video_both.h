/* What the checks of the video autoencoder's operations share: a GPU, the operations of both sides, and tensors that both have. */
#ifndef H3_TESTS_VIDEO_BOTH_H
#define H3_TESTS_VIDEO_BOTH_H

#include "video_cuda.h"

extern const h3_device *gpu;
extern const h3_video_ops *cpu_ops, *gpu_ops;

typedef struct both {
    h3_tensor host, device;
} both;

/* A tensor of made-up values on both sides; zeros without a name. */
both make(const char *name, int32_t dtype, int32_t rank, const int64_t *shape, float amp);
void release(both *b);
/* The GPU's result beside the CPU's: relative error over all elements, or "bytes differ" as an infinite one. */
double distance(const both *b, int bytes);
const char *type_name(int32_t dtype);

/* A variable of the environment for a while: what it was (for the second, which frees it; NULL when there was none). */
char *variable_for_now(const char *name, const char *value);
void variable_back(const char *name, char *before);

/* Our own products on a Hopper GPU; `large`: also the released shapes, with times beside the library's. */
void check_own_products(int large);

#endif
