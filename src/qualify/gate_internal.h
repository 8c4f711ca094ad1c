/* What the parts of the block-0 section share. */
#ifndef H3_QUALIFY_GATE_INTERNAL_H
#define H3_QUALIFY_GATE_INTERNAL_H

#include "qualify/gate.h"
#include "store/artifact.h"

/* All walks of block 0 on one layout. */
typedef struct h3_gate_block {
    h3_gate *gate;
    const h3_plan_layout *layout;
    h3_layout_record *record; /* NULL in the second process */
    int32_t only_node;        /* -1: all nodes; a case holds one node's inputs only */
    const h3_operator *provider_operators[H3_NODE_COUNT];
    h3_engine engine;
    h3_plan_inputs inputs;
    h3_block_params bf16, fp32;
    h3_tensor x, temb, dx2;            /* BF16 block input, float32 temb, gradient of the block's output; from the artifacts, on the device */
    h3_artifact golden;                /* FP32 artifact of block 0 */
    h3_tensor outside[2];              /* modulation index, rotary tables of both precisions; owned */
    h3_block_state provider;           /* BF16 provider, chained: the source of all isolated walks */
    h3_block_state provider_isolated;  /* BF16 provider's nodes on those inputs */
    h3_block_state golden_isolated;    /* FP32 nodes on those inputs */
    h3_block_state isolated, repeat;   /* candidate */
    h3_block_state chained;            /* candidate */
    int32_t chained_done[2][H3_NODE_COUNT];
    int32_t unusable[2][H3_NODE_COUNT]; /* the candidate's isolated call failed */
} h3_gate_block;

/* A tensor that a node's call makes in one direction: forward 0 is the output; backward the gradients. NULL past the last one. `name`
 * is "out", "din0".., "dparam0", "row_grad0", "dtable"; `rows` counts its rows for the worst-row figure. */
const h3_tensor *h3_gate_product(const h3_node_result *result, h3_direction direction, int index, const char **name);
enum { H3_GATE_PRODUCTS = H3_MAX_IN + 2 + 2 + 1 };
int64_t h3_gate_product_rows(const h3_tensor *tensor, const char *name, int32_t node);

h3_cell *h3_gate_cell(h3_gate_block *block, int32_t node, h3_direction direction, h3_check_kind kind); /* NULL when not wanted */

/* Parts of the section; each fills its cells. */
h3_status h3_gate_isolated(h3_gate_block *block);
h3_status h3_gate_batch(h3_gate_block *block);
h3_status h3_gate_chained(h3_gate_block *block);

/* The BF16 provider, chained, on x, temb and dx2 of this block: fills block->provider, the source of every isolated walk. With a manifest its
 * digests are required. */
h3_status h3_gate_run_provider(h3_gate_block *block);
/* The provider's isolated nodes in BF16 and FP32 on block->provider's values: figures are measured against these. */
h3_status h3_gate_references(h3_gate_block *block);
/* Everything but the chained check, on values that are in block->provider already. */
h3_status h3_gate_run_isolated(h3_gate_block *block);
void h3_gate_block_free(h3_gate_block *block);
/* The first node, in execution order, that fails on its own inputs; -1 when none does. */
int32_t h3_gate_first_failing(const h3_layout_record *record);
int h3_gate_has_node(const h3_gate_block *block, int32_t node);

/* Copies of what one node's calls read; with `forward`, what forward made and backward reads as well. */
enum { H3_GATE_INPUTS = H3_MAX_IN + 2 + H3_ROW_GRADS + 1 + H3_MAX_SAVED };
typedef struct h3_gate_snapshot {
    const h3_device *device;
    int count;
    h3_tensor originals[H3_GATE_INPUTS], copies[H3_GATE_INPUTS];
} h3_gate_snapshot;
h3_status h3_gate_snapshot_take(h3_gate_snapshot *out, const h3_gate_block *block, const h3_node_result *forward, int32_t node);
/* Puts back what was changed since, and releases the copies; *written is 1 when something was. */
h3_status h3_gate_snapshot_restore(h3_gate_snapshot *snapshot, int *written);

/* While it is open, what the engine's calls make is full of NaNs and has a band behind it; one at a time. Tensors made meanwhile outlive it. */
typedef struct h3_gate_guard {
    h3_engine *engine;
    const h3_device *plain;
    h3_device device;
} h3_gate_guard;
void h3_gate_guard_open(h3_gate_guard *guard, h3_engine *engine);
/* *spoiled names what of `result` has something written behind its end; NULL when nothing has. */
h3_status h3_gate_guard_close(h3_gate_guard *guard, const h3_node_result *result, const char **spoiled);

/* Adds digest lines of a walk. */
h3_status h3_gate_add_digests(h3_gate_block *block, const char *where, const h3_block_state *state);

#endif
