/* The functions behind the operator table, one triple a kind of node. */
#ifndef H3_PROVIDER_CUDA_OPERATORS_H
#define H3_PROVIDER_CUDA_OPERATORS_H

#include "h3/operator.h"

#ifdef __cplusplus
#define H3_C extern "C"
#else
#define H3_C extern
#endif

#define H3_DECLARE_OPERATOR(name)                                       \
    H3_C int h3_##name##_plan(const h3_call *call, h3_call_plan *plan); \
    H3_C int h3_##name##_forward(h3_call *call);                        \
    H3_C int h3_##name##_backward(h3_call *call)

H3_DECLARE_OPERATOR(adaln_projection);
H3_DECLARE_OPERATOR(block_norm);
H3_DECLARE_OPERATOR(head_norm);
H3_DECLARE_OPERATOR(linear);
H3_DECLARE_OPERATOR(rope);
H3_DECLARE_OPERATOR(attention);
H3_DECLARE_OPERATOR(attention_chunked);
H3_DECLARE_OPERATOR(residual);
H3_DECLARE_OPERATOR(swiglu);
H3_DECLARE_OPERATOR(linear_bias);
H3_DECLARE_OPERATOR(time_embedder);
H3_DECLARE_OPERATOR(rotary_table);
H3_DECLARE_OPERATOR(norm_out);
H3_DECLARE_OPERATOR(add);
H3_DECLARE_OPERATOR(convert);
H3_DECLARE_OPERATOR(scatter_rows);

#endif
