/* The one walker: runs the node table over a block, forward or backward, and hands every tensor to the tap. */
#ifndef H3_GRAPH_WALK_H
#define H3_GRAPH_WALK_H

#include "graph/engine.h"
#include "model/weights.h"

/* A block's parameters on the device, in one activation type. */
typedef struct h3_block_params {
    int64_t block;
    int refiner; /* a refiner block: no modulation, no rotary */
    int32_t dtype; /* of the activations that go with these parameters */
    h3_tensor param[H3_NODE_COUNT][2];
} h3_block_params;

/* Reads a block's parameters, widened to F32 when `dtype` says so. */
h3_status h3_block_params_load(h3_block_params *out, const h3_device *device, const h3_weights *weights, int64_t block, int refiner, int32_t dtype);
void h3_block_params_free(h3_block_params *params, const h3_device *device);

/* All tensors of one walk. Outside values (X, TEMB, INDEX, COS, SIN) are views that the caller keeps alive. */
typedef struct h3_block_state {
    int64_t batch; /* items that attend apart; every row-wise value holds batch * S rows */
    h3_tensor value[H3_VALUE_COUNT];
    h3_tensor grad[H3_VALUE_COUNT];    /* total gradient of each value; [X] and [TEMB] are the block's results; owned, but see below */
    h3_tensor row_grad[H3_ROW_GRADS];  /* row gradients of the six chunks; owned */
    h3_node_result node[H3_NODE_COUNT]; /* what each node's calls produced; value[node] is a view of node[node].out */
} h3_block_state;
/* Frees everything the walk made, grad[] included. */
void h3_block_state_free(h3_block_state *state, const h3_device *device);

typedef enum {
    H3_TAP_CALL,        /* a call returned: node, direction, report */
    H3_TAP_OUTPUT,      /* node's output */
    H3_TAP_GRADIENT,    /* total gradient that reaches the node's output, all consumers added (adaln_projection: of the table) */
    H3_TAP_PARAM,       /* gradient of the node's parameter `index` */
    H3_TAP_INPUT,       /* total gradient of the block input (index 0) or contribution to temb's (index 1) */
} h3_tap_kind;

typedef struct h3_tap_event {
    h3_tap_kind kind;
    h3_direction direction;
    int32_t node, index;
    int64_t block;
    int refiner;
    const h3_tensor *tensor; /* on the device; NULL for H3_TAP_CALL */
    const h3_operator *op;
    const h3_call_report *report;
} h3_tap_event;

typedef struct h3_tap {
    h3_status (*event)(void *user, const h3_tap_event *event);
    void *user;
} h3_tap;

/*
 * One walk. Operators: one for each node (refiner blocks skip adaln_projection and the two ropes).
 * `source` NULL: chained, every node is fed this walk's own values. Otherwise isolated: every node is fed the source's values
 * (converted to this walk's type when they differ), backward also the source's upstream gradients, and nothing is accumulated:
 * grad[] stays empty, node[] holds what each node made of the source's inputs.
 */
typedef struct h3_walk {
    h3_engine *engine;
    const h3_operator *const *operators; /* [H3_NODE_COUNT] */
    const h3_block_params *params;
    h3_block_state *state;
    const h3_block_state *source;
    const h3_tap *tap; /* may be NULL */
} h3_walk;

h3_status h3_walk_forward(h3_walk *walk);
/* After forward. Chained: state->grad[H3_NODE_RESIDUAL_MLP] (the gradient of the block's output) is set by the caller and owned by
 * the state from then on. */
h3_status h3_walk_backward(h3_walk *walk);
/* One node of an isolated walk, whose nodes do not depend on each other; backward after forward of the same node. */
h3_status h3_walk_node_forward(h3_walk *walk, int32_t node);
h3_status h3_walk_node_backward(h3_walk *walk, int32_t node);

/* 1 when a block of this kind has the node. */
int h3_walk_has(int refiner, int32_t node);
/* The inputs of a node as the walk would pass them: views of `values` in the table's forms; `batch` items. */
void h3_walk_input(h3_node_input *out, const h3_config *config, const h3_block_params *params, const h3_block_state *values, int32_t node);

#endif
