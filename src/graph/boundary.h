/* The boundary components of one pass: embeddings and refiners before the blocks, norm and heads behind them. */
#ifndef H3_GRAPH_BOUNDARY_H
#define H3_GRAPH_BOUNDARY_H

#include "graph/model.h"

/* Numbers of the boundary's parameters in h3_model.boundary. */
enum {
    H3_P_PROJ_IN, H3_P_PROJ_IN_BIAS, H3_P_AUDIO_IN, H3_P_AUDIO_IN_BIAS, H3_P_CONTEXT, H3_P_CONTEXT_BIAS,
    H3_P_TIME1, H3_P_TIME1_BIAS, H3_P_TIME2, H3_P_TIME2_BIAS, H3_P_FINAL_NORM,
    H3_P_OUT_NORM, H3_P_OUT_LINEAR, H3_P_OUT_LINEAR_BIAS,
    H3_P_PROJ_OUT, H3_P_PROJ_OUT_BIAS, H3_P_AUDIO_OUT, H3_P_AUDIO_OUT_BIAS,
};
extern const char *const h3_boundary_names[H3_BOUNDARY_PARAMS];

/* All tensors of one pass outside the blocks. Owned. */
struct h3_pass {
    const h3_sequence *sequence;
    h3_tensor timestep, temb, time_saved[2];     /* time embedder: every rank */
    h3_tensor rotary;                            /* [2,S,3K] */
    h3_tensor modulation_index, timestep_index;  /* [S] i32 */
    h3_tensor video_index, audio_index, text_index; /* i32 */
    h3_tensor video, audio, text;                /* inputs on the device */
    h3_tensor text_rows;                         /* after the context embedder */
    h3_block_state *refiner_states;
    h3_node_result final_norm;
    h3_tensor *block_inputs;                     /* [block_count]; [0] is the packed input on the first rank */
    h3_tensor hidden;                            /* output of the last block of this rank */
    h3_node_result norm_out;                     /* out, saved */
    h3_tensor y32, head_video, head_audio;       /* rows of y in float32 */
};

/* What every rank needs: time embedding, rotary table, indices. */
h3_status h3_boundary_prepare(h3_model *model, h3_pass *pass, const h3_sink *sink);
/* The rotary table [2,S,3K] of a sequence in the model's precision; a new device tensor. Needs no parameters. */
h3_status h3_boundary_rotary(h3_model *model, const h3_sequence *sequence, h3_tensor *out);
/* Input side: pass->block_inputs[0] becomes the packed hidden state. */
h3_status h3_boundary_input(h3_model *model, h3_pass *pass, const h3_sink *sink);
/* Output side: norm and heads over pass->hidden. */
h3_status h3_boundary_output(h3_model *model, h3_pass *pass, const h3_sink *sink, h3_tensor *out_video, h3_tensor *out_audio);
/* Gradients: of the heads down to dh (new tensor) and dtemb (new tensor); then, at the other end, of the input side and the time embedder. */
h3_status h3_boundary_output_backward(h3_model *model, h3_pass *pass, const h3_sink *sink, h3_tensor *dhidden, h3_tensor *dtemb);
h3_status h3_boundary_input_backward(h3_model *model, h3_pass *pass, const h3_sink *sink, const h3_tensor *dhidden, const h3_tensor *dtemb);

/* Hands a device tensor to the sink; NULL sink is fine. */
h3_status h3_sink_tensor(const h3_sink *sink, int64_t block, const char *name, const h3_tensor *tensor);
/* A tap that names a walk's events for a sink. */
typedef struct h3_sink_tap {
    const h3_sink *sink;
    h3_tap tap;
} h3_sink_tap;
const h3_tap *h3_sink_as_tap(h3_sink_tap *out, const h3_sink *sink);

#endif
