/* The table of the CPU provider's operators, and what this build is. */
#include <cblas.h>
#include <pthread.h>
#include <stdio.h>

#include "operators.h"

#ifndef H3_BUILD_REVISION
#define H3_BUILD_REVISION "unknown"
#endif
#ifndef H3_BUILD_FLAGS
#define H3_BUILD_FLAGS "unknown"
#endif
#ifdef H3_BUILD_IS_DIRTY
#define BUILD (H3_BUILD_THIS | (uint32_t)H3_BUILD_DIRTY)
#else
#define BUILD H3_BUILD_THIS
#endif

#ifdef __clang__
#define COMPILER __VERSION__
#else
#define COMPILER "gcc " __VERSION__
#endif
#ifdef __AVX2__
#define OWN_CODE "x86-64-v3"
#else
#define OWN_CODE "baseline"
#endif

#define PRODUCT "openblas-sgemm-1thread-v1"
#define NORM "rmsnorm-v4x128-v1"
#define ELEMENTWISE "elementwise-v1"
#define ATTENTION "attention-p-bf16-chunked-v1"
#define TABLE "openblas-sgemm-1thread-v1+rows-ascending-f32-v1"

/* An operator carries the name of the node it serves. */
#define OPERATOR(node, row, contract, kind) \
    {node, node, row, "reference", contract, H3_PROMISE_REPEAT, h3_##kind##_plan, h3_##kind##_forward, h3_##kind##_backward}

static const h3_operator operators[] = {
    OPERATOR("adaln_projection", "adaln_projection_3mod", TABLE, adaln_projection),
    OPERATOR("norm1", "h3_rmsnorm", NORM, block_norm),
    OPERATOR("q_proj", "h3_qkv_gemm", PRODUCT, linear),
    OPERATOR("k_proj", "h3_qkv_gemm", PRODUCT, linear),
    OPERATOR("v_proj", "h3_qkv_gemm", PRODUCT, linear),
    OPERATOR("q_norm", "h3_qk_rmsnorm_d128", NORM, head_norm),
    OPERATOR("k_norm", "h3_qk_rmsnorm_d128", NORM, head_norm),
    OPERATOR("rope_q", "h3_mm_rope_3axis_partial", ELEMENTWISE, rope),
    OPERATOR("rope_k", "h3_mm_rope_3axis_partial", ELEMENTWISE, rope),
    OPERATOR("attention", "h3_full_attention", ATTENTION, attention),
    OPERATOR("o_proj", "h3_attention_o_gemm", PRODUCT, linear),
    OPERATOR("residual_attn", "adaln_gate_residual", ELEMENTWISE, residual),
    OPERATOR("norm2", "h3_rmsnorm", NORM, block_norm),
    OPERATOR("ffn_gate_up", "h3_ffn_gate_up_gemm", PRODUCT, linear),
    OPERATOR("swiglu", "h3_swiglu", ELEMENTWISE, swiglu),
    OPERATOR("ffn_down", "h3_ffn_down_gemm", PRODUCT, linear),
    OPERATOR("residual_mlp", "adaln_gate_residual", ELEMENTWISE, residual),
    OPERATOR("linear_bias", "boundary_linear", PRODUCT, linear_bias),
    OPERATOR("time_embedder", "timestep_mlp", PRODUCT, time_embedder),
    OPERATOR("rotary_table", "h3_mm_rope_3axis_partial", ELEMENTWISE, rotary_table),
    OPERATOR("norm_out", "final_adaln_out", NORM "+" TABLE, norm_out),
    OPERATOR("add", "boundary_add", ELEMENTWISE, add),
    OPERATOR("convert", "boundary_convert", ELEMENTWISE, convert),
    OPERATOR("scatter_rows", "boundary_scatter", ELEMENTWISE, scatter_rows),
};

static char architectures[128];
static h3_operator_library library = {
    .interface_version = H3_OPERATOR_INTERFACE,
    .size = sizeof(h3_operator_library),
    .name = "provider_cpu",
    .revision = H3_BUILD_REVISION,
    .compiler = COMPILER,
    .flags = H3_BUILD_FLAGS,
    .architectures = architectures,
    .build = BUILD,
    .device = H3_DEVICE_CPU,
    .operator_count = sizeof operators / sizeof operators[0],
    .operators = operators,
};

/* One thread, so that no product depends on the machine's size; the version and the core chosen stand in the record. */
static void start(void)
{
    char version[32] = "unknown";
    openblas_set_num_threads(1);
    if (sscanf(openblas_get_config(), "OpenBLAS %31s", version) != 1) snprintf(version, sizeof version, "unknown");
    snprintf(architectures, sizeof architectures, OWN_CODE " openblas-%s-%s", version, openblas_get_corename());
}

H3_EXPORT const h3_operator_library *h3_operator_library_get(void);

const h3_operator_library *h3_operator_library_get(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start);
    return &library;
}
