/* Calling one operator: shapes, workspace, floating-point state, report. Walker, boundary and gate all call through here. */
#ifndef H3_GRAPH_ENGINE_H
#define H3_GRAPH_ENGINE_H

#include "graph/device.h"
#include "graph/library.h"

typedef struct h3_engine {
    const h3_config *config;
    const h3_device *device;
    const h3_library *provider; /* boundary operators, sums and conversions */
    void *workspace;
    size_t workspace_bytes;
    void (*beat)(void *user, const char *where, int64_t block); /* sign of life before every call; may be NULL */
    void *beat_user;
    int64_t beat_block;
} h3_engine;

void h3_engine_init(h3_engine *engine, const h3_config *config, const h3_device *device, const h3_library *provider);
void h3_engine_free(h3_engine *engine);

typedef enum { H3_FORWARD, H3_BACKWARD } h3_direction;

/* Runs `op` on a call whose tensors are set; plans, gives workspace, checks that the floating-point control state survived.
 * H3_FAILED with the operator's message when it fails or breaks the state. The operator's part is a span of the device's work. */
h3_status h3_engine_call(h3_engine *engine, const h3_operator *op, h3_call *call, h3_direction direction);
/* The tensors that op wants to save for these inputs (dtype and shape only). */
h3_status h3_engine_plan(h3_engine *engine, const h3_operator *op, h3_call *call, h3_call_plan *plan);
/* A call structure for this engine. */
h3_call h3_engine_new_call(const h3_engine *engine);

/* Everything that one node's calls produce; tensors are owned, absent ones empty. */
typedef struct h3_node_result {
    h3_tensor out, saved[H3_MAX_SAVED];
    h3_tensor din[H3_MAX_IN], dparam[2], row_grad[2], dtable;
    h3_call_report forward, backward;
} h3_node_result;
void h3_node_result_free(h3_node_result *result, const h3_device *device);

/* What goes into a node: inputs and parameters as views in the forms of the table, all of one activation type. */
typedef struct h3_node_input {
    h3_tensor in[H3_MAX_IN], param[2];
    h3_tensor dout;                    /* backward; absent for adaln_projection */
    h3_tensor row_grad[H3_ROW_GRADS];  /* backward of adaln_projection */
    h3_tensor row_index;
} h3_node_input;

/* Forward allocates result->out and saved; backward (after forward of the same inputs) allocates the gradients. */
h3_status h3_node_forward(h3_engine *engine, int32_t node, const h3_operator *op, const h3_node_input *input, h3_node_result *result);
h3_status h3_node_backward(h3_engine *engine, int32_t node, const h3_operator *op, const h3_node_input *input, h3_node_result *result);

/* out = a + b, rounded once, through the provider; out may be a. */
h3_status h3_engine_add(h3_engine *engine, h3_tensor *out, const h3_tensor *a, const h3_tensor *b);
/* A new tensor in another type. */
h3_status h3_engine_convert(h3_engine *engine, h3_tensor *out, const h3_tensor *tensor, int32_t dtype);

#endif
