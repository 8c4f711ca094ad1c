/* Cases: somebody else's inputs, run forward and backward through the whole model (qualification.md section 3). */
#ifndef H3_QUALIFY_CASE_H
#define H3_QUALIFY_CASE_H

#include "graph/model.h"

/* The tensors of a case file; names as in the golden case.safetensors. Owned. */
typedef struct h3_case {
    h3_tensor timestep, timestep_indices, token_tags, position_ids, video_indices, audio_indices, text_indices;
    h3_tensor video, audio, text, cot_video, cot_audio;
    h3_sequence sequence;
} h3_case;

h3_status h3_case_read(h3_case *out, const char *path);
void h3_case_free(h3_case *item);

/* Runs the case on a model that holds all blocks and publishes every tensor to `path` (case.h5). H3_FAILED names the first tensor that is
 * not finite. */
h3_status h3_case_run(h3_model *model, const h3_case *item, const char *path);

#endif
