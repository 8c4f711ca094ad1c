/* The table of the CUDA candidate's operators, and the one function that the library exports. */
#include "common.h"

#ifndef H3_BUILD_REVISION
#define H3_BUILD_REVISION "unknown"
#endif
#ifndef H3_BUILD_FLAGS
#define H3_BUILD_FLAGS "unknown"
#endif
#ifndef H3_BUILD_ARCHITECTURES
#define H3_BUILD_ARCHITECTURES "unknown"
#endif
#if defined(H3_BUILD_IS_DIRTY) && H3_BUILD_IS_DIRTY
#define BUILD (H3_BUILD_THIS | (uint32_t)H3_BUILD_DIRTY)
#else
#define BUILD H3_BUILD_THIS
#endif
#define TEXT(value) TEXT_OF(value)
#define TEXT_OF(value) #value

#define STABLE ((uint32_t)H3_PROMISE_REPEAT | (uint32_t)H3_PROMISE_BATCH_ROW)
#define BITWISE (STABLE | (uint32_t)H3_PROMISE_ISOLATED_BITWISE)

#define OPERATOR(node_name, subject, row_name, contract_id, promised)                                           \
    {                                                                                                          \
        .node = node_name, .name = "cuda_" node_name, .row = row_name, .label = "row", .contract = contract_id, \
        .promises = promised, .plan = h3_##subject##_plan, .forward = h3_##subject##_forward,                    \
        .backward = h3_##subject##_backward                                                                     \
    }

/* Fast math replaces division, square root and the exact roundings of exp, so a build with it leaves out what needs them. */
static const h3_operator operators[] = {
#ifndef H3_FAST_MATH_BUILD
    OPERATOR("adaln_projection", adaln, "adaln_projection_3mod", H3_CONTRACT_ADALN, BITWISE),
    OPERATOR("norm1", norm, "h3_rmsnorm", H3_CONTRACT_NORM, BITWISE),
#endif
    OPERATOR("q_proj", linear, "h3_qkv_gemm", H3_CONTRACT_GEMM, BITWISE),
    OPERATOR("k_proj", linear, "h3_qkv_gemm", H3_CONTRACT_GEMM, BITWISE),
    OPERATOR("v_proj", linear, "h3_qkv_gemm", H3_CONTRACT_GEMM, BITWISE),
#ifndef H3_FAST_MATH_BUILD
    OPERATOR("q_norm", norm, "h3_qk_rmsnorm_d128", H3_CONTRACT_NORM, BITWISE),
    OPERATOR("k_norm", norm, "h3_qk_rmsnorm_d128", H3_CONTRACT_NORM, BITWISE),
    OPERATOR("rope_q", rope, "h3_mm_rope_3axis_partial", H3_CONTRACT_ELEMENTWISE, BITWISE),
    OPERATOR("rope_k", rope, "h3_mm_rope_3axis_partial", H3_CONTRACT_ELEMENTWISE, BITWISE),
    OPERATOR("attention", attention, "h3_full_attention", H3_CONTRACT_ATTENTION, STABLE),
#endif
    OPERATOR("o_proj", linear, "h3_attention_o_gemm", H3_CONTRACT_GEMM, BITWISE),
#ifndef H3_FAST_MATH_BUILD
    OPERATOR("residual_attn", residual, "adaln_gate_residual", H3_CONTRACT_ELEMENTWISE, BITWISE),
    OPERATOR("norm2", norm, "h3_rmsnorm", H3_CONTRACT_NORM, BITWISE),
#endif
    OPERATOR("ffn_gate_up", linear, "h3_ffn_gate_up_gemm", H3_CONTRACT_GEMM, BITWISE),
#ifndef H3_FAST_MATH_BUILD
    OPERATOR("swiglu", swiglu, "h3_swiglu", H3_CONTRACT_ELEMENTWISE, STABLE),
#endif
    OPERATOR("ffn_down", linear, "h3_ffn_down_gemm", H3_CONTRACT_GEMM, BITWISE),
#ifndef H3_FAST_MATH_BUILD
    OPERATOR("residual_mlp", residual, "adaln_gate_residual", H3_CONTRACT_ELEMENTWISE, BITWISE),
#endif
};

static const h3_operator_library library = {
    .interface_version = H3_OPERATOR_INTERFACE,
    .size = sizeof(h3_operator_library),
    .name = "h3_candidate_cuda",
    .revision = H3_BUILD_REVISION,
    .compiler = __VERSION__ ", CUDA " TEXT(CUDART_VERSION),
    .flags = H3_BUILD_FLAGS,
    .architectures = H3_BUILD_ARCHITECTURES,
    .build = BUILD,
    .device = H3_DEVICE_CUDA,
    .operator_count = sizeof operators / sizeof operators[0],
    .operators = operators,
};

H3_EXPORT const h3_operator_library *h3_operator_library_get(void);

const h3_operator_library *h3_operator_library_get(void) { return &library; }
