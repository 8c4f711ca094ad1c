/* The table of the CUDA provider's operators, and what this build is. */
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>

#include "operators.h"
#include "sdpa.h"

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
#define WORDS(text) #text
#define TEXT(text) WORDS(text)
#define COMPILER "nvcc for CUDA " TEXT(CUDART_VERSION) ", " __VERSION__

#define PRODUCT "cublaslt-f32-nosplit-v1"
#define NORM "rmsnorm-v4x128-v1"
#define ELEMENTWISE "elementwise-v1"
#define CHUNKED "attention-p-bf16-chunk256-v1"
#ifdef H3_CUDNN
#define ATTENTION "cudnn-sdpa-v1+" CHUNKED
#else
#define ATTENTION CHUNKED
#endif
#define TABLE PRODUCT "+rows-ascending-f32-v1"

/* An operator carries the name of the node it serves; the one exception comes after the node's own. */
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
    {"attention", "attention-chunked", "h3_full_attention", "reference", CHUNKED, H3_PROMISE_REPEAT, h3_attention_chunked_plan, h3_attention_chunked_forward,
     h3_attention_chunked_backward},
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

static char architectures[160];
static h3_operator_library library = {
    .interface_version = H3_OPERATOR_INTERFACE,
    .size = sizeof(h3_operator_library),
    .name = "provider_cuda",
    .revision = H3_BUILD_REVISION,
    .compiler = COMPILER,
    .flags = H3_BUILD_FLAGS,
    .architectures = architectures,
    .build = BUILD,
    .device = H3_DEVICE_CUDA,
    .operator_count = sizeof operators / sizeof operators[0],
    .operators = operators,
};

/* The GPU and the libraries whose kernels and heuristics decide the bits stand in the record. */
static void start(void)
{
    int device = 0, major = 0, minor = 0, processors = 0, runtime = 0;
    int found = cudaGetDevice(&device) == cudaSuccess && cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
                cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess &&
                cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device) == cudaSuccess;
    cudaGetLastError(); /* without a GPU the calls themselves will say so */
    cudaRuntimeGetVersion(&runtime);
    if (found) snprintf(architectures, sizeof architectures, "sm_%d%d, %d multiprocessors", major, minor, processors);
    else snprintf(architectures, sizeof architectures, "no GPU");
    size_t used = strlen(architectures);
    snprintf(architectures + used, sizeof architectures - used, ", cuda-%d cublasLt-%zu", runtime, cublasLtGetVersion());
    used = strlen(architectures);
    if (h3_sdpa_version() != 0) snprintf(architectures + used, sizeof architectures - used, " cudnn-%zu", h3_sdpa_version());
}

H3_EXPORT const h3_operator_library *h3_operator_library_get(void);

const h3_operator_library *h3_operator_library_get(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start);
    return &library;
}
