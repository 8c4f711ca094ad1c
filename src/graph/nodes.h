/* The block as a table of 17 nodes (transformer.md section 5). Order, names, wiring and promises come from here alone. */
#ifndef H3_GRAPH_NODES_H
#define H3_GRAPH_NODES_H

#include <stdint.h>

#include "model/config.h"

enum {
    H3_NODE_ADALN,
    H3_NODE_NORM1,
    H3_NODE_Q_PROJ,
    H3_NODE_K_PROJ,
    H3_NODE_V_PROJ,
    H3_NODE_Q_NORM,
    H3_NODE_K_NORM,
    H3_NODE_ROPE_Q,
    H3_NODE_ROPE_K,
    H3_NODE_ATTENTION,
    H3_NODE_O_PROJ,
    H3_NODE_RESIDUAL_ATTN,
    H3_NODE_NORM2,
    H3_NODE_FFN_GATE_UP,
    H3_NODE_SWIGLU,
    H3_NODE_FFN_DOWN,
    H3_NODE_RESIDUAL_MLP,
    H3_NODE_COUNT
};

/* Values of a block: the nodes' outputs, under the nodes' numbers, and what comes from outside. */
enum {
    H3_VALUE_X = H3_NODE_COUNT, /* block input [B*S,H] */
    H3_VALUE_TEMB,              /* [T,E] f32 */
    H3_VALUE_INDEX,             /* modulation row of every packed row [B*S] i32 */
    H3_VALUE_COS,               /* [B*S,3K] */
    H3_VALUE_SIN,
    H3_VALUE_COUNT,
    H3_VALUE_NONE = -1
};

/* How a tensor of a node is laid out over packed rows. */
typedef enum {
    H3_FORM_TABLE, /* [3T,6,H] */
    H3_FORM_ROWS,  /* [R,width] */
    H3_FORM_HEADS, /* [R,N,D] */
    H3_FORM_ITEMS, /* [B,R/B,N,D] */
} h3_form;

typedef struct h3_param_spec {
    const char *suffix; /* after the block's prefix; NULL: no parameter */
    int32_t rank;
} h3_param_spec;

typedef struct h3_node_spec {
    const char *name;
    int32_t in[4];      /* value numbers; H3_VALUE_NONE ends */
    h3_form in_form;    /* of in[0] (attention: of q, k and v) */
    h3_form out_form;
    h3_param_spec param[2];
    int32_t grad_in[4]; /* 1: din[i] is produced and flows to value in[i] */
    int32_t pass_x;     /* 1: dout also flows unchanged to in[0] */
    int32_t chunk;      /* first modulation chunk */
    int32_t row_grads;  /* row gradients produced, from chunk on */
    int32_t qk_epsilon; /* 1: qk_norm_eps instead of norm_eps */
    int32_t bitwise_cpu, bitwise_cuda; /* isolated forward must equal the provider's bytes */
} h3_node_spec;

extern const h3_node_spec h3_nodes[H3_NODE_COUNT];

/* The node of this name, or -1. */
int32_t h3_node_find(const char *name);
/* Width of the node's output rows (the product over the trailing dimensions). */
int64_t h3_node_width(int32_t node, const h3_config *config);
/* "transformer_blocks.<i>." or "token_refiner.refiner_blocks.<i>." + the suffix. */
void h3_node_param_name(char out[96], int32_t node, int32_t param, int64_t block, int refiner);

#endif
