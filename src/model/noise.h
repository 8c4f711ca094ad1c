/* Initial noise, bit for bit torch's CPU generator (packed-layout.md section 7, video-vae.md appendix A). */
#ifndef H3_MODEL_NOISE_H
#define H3_MODEL_NOISE_H

#include <stdint.h>

#include "base/error.h"
#include "model/layout.h"

typedef struct h3_generator {
    uint32_t state[624];
    int32_t next;
    int32_t has_spare; /* the kept half of the pair path (fewer than 16 elements) */
    double spare;
} h3_generator;

void h3_generator_seed(h3_generator *generator, uint64_t seed);
uint32_t h3_generator_next(h3_generator *generator);
/* `count` standard normals, as one torch.randn call of that many elements. */
h3_status h3_generator_normal(h3_generator *generator, float *out, int64_t count);

#endif
