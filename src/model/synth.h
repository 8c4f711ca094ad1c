/* h3synth-v1: reproducible values for weights and inputs, bit-exact on every machine (golden README). */
#ifndef H3_MODEL_SYNTH_H
#define H3_MODEL_SYNTH_H

#include "base/memory.h"
#include "model/config.h"

/* One Philox4x32-10 block. */
void h3_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* Fills `tensor` (F32 or BF16, dense) with base + amp * u of stream `name` and `seed`. */
h3_status h3_synth_fill(h3_tensor *tensor, uint64_t seed, const char *name, float base, float amp);

/* The same from a stream's key, which h3_synth_key makes of seed and name. `through_bf16`: an F32 tensor gets the values that BF16 would hold. */
h3_status h3_synth_key(uint32_t key[2], uint64_t seed, const char *name);
void h3_synth_values(h3_tensor *tensor, const uint32_t key[2], float base, float amp, int through_bf16);

/* base and amp of a transformer parameter, from its name and shape. */
void h3_synth_parameter_scale(const h3_parameter *parameter, float *base, float *amp);

/* A new tensor for an input stream: "input.video", "input.audio", "input.text", "cotangent.video", ... (amp sqrt(3), base 0). */
h3_status h3_synth_input(h3_tensor *out, uint64_t seed, const char *name, int32_t dtype, int32_t rank, const int64_t *shape);

#endif
