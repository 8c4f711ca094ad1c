/*
 * The whole transformer around the walker: input boundary with the refiners, a range of blocks, output boundary; forward and
 * backward (transformer.md sections 4 and 7). A rank holds one contiguous range of blocks; the first rank also holds the input
 * boundary, the last one the output boundary, and hidden states pass through links.
 *
 * Backward recomputes each block's forward from the block's input (bitwise repeatable), so that memory is one block's.
 */
#ifndef H3_GRAPH_MODEL_H
#define H3_GRAPH_MODEL_H

#include "graph/walk.h"
#include "model/layout.h"

/* Inputs of one evaluation: a packed layout and its rows. Nothing is owned. All of it on the host. */
typedef struct h3_sequence {
    int64_t rows, text_rows, video_rows, audio_rows, timestep_count;
    const double *position_ids;                 /* [rows,3] */
    const int64_t *token_tags, *timestep_indices; /* [rows] */
    const int64_t *video_indices, *audio_indices, *text_indices;
    const float *timestep;                      /* [timestep_count], ascending */
    h3_tensor video, audio;                     /* [video_rows,Cv], [audio_rows,Ca] f32 */
    h3_tensor text;                             /* [text_rows,X] bf16 */
    h3_tensor cot_video, cot_audio;             /* gradients of the outputs; backward only */
} h3_sequence;

/* Points a sequence at a layout. */
void h3_sequence_layout(h3_sequence *sequence, const h3_layout *layout);
/* H3_INTEGRITY unless the index sets are disjoint and cover all rows, tags and timestep indices are in range, shapes agree. */
h3_status h3_sequence_check(const h3_sequence *sequence, const h3_config *config);

/* Passing a tensor (on the device) to the next or from the previous rank. Receive fills a tensor that is allocated. */
typedef struct h3_link {
    h3_status (*send)(void *user, int to_next, const h3_tensor *tensor);
    h3_status (*receive)(void *user, int from_previous, h3_tensor *tensor);
    void *user;
} h3_link;

enum { H3_BOUNDARY_PARAMS = 18 };

typedef struct h3_model {
    h3_engine engine;
    const h3_weights *weights;
    int32_t precision;        /* H3_F32 or H3_BF16: the activations' type */
    int64_t first_block, block_count;
    int is_first, is_last;
    const h3_operator *const *operators;          /* of the blocks, [H3_NODE_COUNT] */
    int64_t operators_end;                        /* blocks from here on run the provider's instead; num_layers: none */
    const h3_operator *provider[H3_NODE_COUNT];   /* of the refiners */
    int resident;                                 /* all blocks' parameters stay; otherwise a block has them while it is walked */
    h3_block_params *blocks;                      /* [block_count] */
    h3_block_params *refiners;                    /* [num_refiner_layers]; first rank only */
    h3_tensor boundary[H3_BOUNDARY_PARAMS];
    h3_link link; /* unused functions may be NULL when is_first and is_last */
} h3_model;

/* Loads the parameters of the boundaries that blocks first .. first+count-1 touch onto `device` (NULL: the CPU), which both libraries must be for; those of
 * the blocks come when they are walked. `operators` NULL: the provider's own. */
h3_status h3_model_open(h3_model *model, const h3_weights *weights, const h3_device *device, int32_t precision, const h3_library *provider,
                        const h3_operator *const *operators, int64_t first_block, int64_t block_count);
void h3_model_close(h3_model *model);
/* From here on blocks' parameters are brought for each walk of a block and dropped behind it. h3_model_open chooses that by itself where they would
 * take more than 55 % of the device's free memory. */
void h3_model_stream(h3_model *model);

/* Everything named that a pass produces goes here: "node.block3.q_proj", "dnode.block3.q_proj", "grad.<parameter>", "dinput.block3.x",
 * "dinput.block3.temb", "node.refiner0.q_proj", "boundary.hidden", "boundary.temb", "out.video", ... block is -1 for boundary tensors
 * of the input side, -2 for those of the output side. Tensors are on the model's device, good until the function returns.
 * Calls (H3_TAP_CALL) of blocks go to `call` when it is set. */
typedef struct h3_sink {
    h3_status (*tensor)(void *user, int64_t block, const char *name, const h3_tensor *tensor);
    h3_status (*call)(void *user, const h3_tap_event *event);
    void *user;
} h3_sink;
enum { H3_INPUT_SIDE = -1, H3_OUTPUT_SIDE = -2 };

/* State between forward and backward of one sequence on this rank. */
typedef struct h3_pass h3_pass;

/* Forward on this rank. `pass` NULL: inference, nothing is kept. Last rank: out_video [video_rows,Cv], out_audio f32, allocated on the
 * device here (may be NULL pointers when not wanted). `sink` may be NULL. */
h3_status h3_model_forward(h3_model *model, const h3_sequence *sequence, const h3_sink *sink, h3_pass **pass, h3_tensor *out_video, h3_tensor *out_audio);
h3_status h3_model_backward(h3_model *model, h3_pass *pass, const h3_sink *sink);
void h3_pass_free(h3_pass *pass, h3_model *model);

/* A boundary by itself, forward and backward, for whoever makes its tensors again; a model that has that side. Gradients and hidden state are on the
 * device: of the packed input and of temb over all blocks; the output of the last block. */
h3_status h3_model_input_side(h3_model *model, const h3_sequence *sequence, const h3_sink *sink, const h3_tensor *dhidden, const h3_tensor *dtemb);
h3_status h3_model_output_side(h3_model *model, const h3_sequence *sequence, const h3_sink *sink, const h3_tensor *hidden);

/* The block's outside values (X is set by the caller), for walks of a single block: temb, index, cos, sin of a pass. */
void h3_pass_values(const h3_pass *pass, h3_block_state *state);
/* The input of a block of this rank, as the forward found it. */
const h3_tensor *h3_pass_block_input(const h3_pass *pass, const h3_model *model, int64_t block);

/* Name of a block tensor as above; "" for H3_TAP_CALL. */
void h3_event_name(char out[160], const h3_tap_event *event);
/* adaln_projection is shown as [T,18H], attention without its item dimension when there is one item. */
h3_tensor h3_event_view(const h3_tap_event *event);

#endif
