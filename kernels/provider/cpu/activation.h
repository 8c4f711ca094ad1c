/* SiLU and its derivative in float32: silu(x) = x / (1 + exp(-x)). */
#ifndef H3_PROVIDER_CPU_ACTIVATION_H
#define H3_PROVIDER_CPU_ACTIVATION_H

#include <math.h>

#include "common.h"

H3_INLINE float h3_silu(float x) { return x / (1.0f + expf(-x)); }

/* dy * silu'(x), in the published order of products. */
H3_INLINE float h3_silu_gradient(float dy, float x)
{
    float sigmoid = 1.0f / (1.0f + expf(-x));
    return dy * sigmoid * (1.0f + x * (1.0f - sigmoid));
}

#endif
