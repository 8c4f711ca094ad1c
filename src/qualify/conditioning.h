/* The conditioning file: prompt embeddings, and keyframes as latents or as pictures. */
#ifndef H3_QUALIFY_CONDITIONING_H
#define H3_QUALIFY_CONDITIONING_H

#include "qualify/generation.h"

/* Fills text, condition or picture of `out` (condition_count and channels are set) and `tags` (data NULL: the file has none) from the plan's file. Errors as
 * said at h3_generation_inputs_new; what was read is the caller's to free. */
h3_status h3_conditioning_read(h3_generation_inputs *out, h3_tensor *tags, const h3_generation *generation, const h3_config *config);

#endif
