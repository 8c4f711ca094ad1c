#include "media/video_ops_cuda.h"

h3_status h3_video_ops_for(const h3_video_ops **out, const h3_device *device)
{
    if (device->kind == H3_DEVICE_CUDA) return h3_video_ops_cuda(out);
    *out = h3_video_ops_cpu();
    return H3_OK;
}

#ifdef H3_CUDA
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cudnn/sdpa.h"
#include "media/video_kernels.h"

/* --- what was started ------------------------------------------------------------------------------------------------ */

static h3_status started(const h3_device *device, int code, const char *what)
{
    if (code == cudaSuccess) return H3_OK;
    return h3_error(H3_ENVIRONMENT, "GPU %d: video autoencoder, %s: %s; look at the GPU with nvidia-smi and run again", device->index, what,
                    cudaGetErrorString((cudaError_t)code));
}

static const h3_video_ops all_operations; /* at the end */

static int is_half(const h3_tensor *t) { return t->dtype == H3_F16; }

/* --- products -------------------------------------------------------------------------------------------------------- */

/* `weight` [columns][channels][taps] in the order that the kernel reads, then the product; the packed weight returns to the pool, which the stream orders. */
static h3_status multiply(const h3_device *device, h3_video_product *p, const h3_tensor *weight, int64_t taps)
{
    h3_tensor packed;
    const int half = is_half(weight);
    H3_TRY(h3_device_tensor(&packed, device, weight->dtype, 1, H3_SHAPE(h3_tensor_count(weight))));
    h3_status status = started(device, h3_video_start_pack(device->stream, packed.data, weight->data, half, p->columns, p->channels, taps), "weights");
    p->weight = packed.data;
    if (status == H3_OK) status = started(device, h3_video_start_product(device->stream, p, half), "product");
    h3_device_free(&packed, device);
    return status;
}

static h3_status conv(const h3_device *device, h3_tensor *out, const h3_tensor *x, const h3_tensor *weight, const h3_tensor *bias, const h3_video_conv *geometry)
{
    const int64_t k = weight->shape[2];
    h3_video_product p = {.x = x->data, .bias = bias->data, .out = out->data, .items = x->shape[0], .frames = x->shape[1], .height = x->shape[2],
                          .width = x->shape[3], .channels = x->shape[4], .out_frames = out->shape[1], .out_height = out->shape[2], .out_width = out->shape[3],
                          .columns = out->shape[4], .kernel = (int32_t)k, .temporal_stride = geometry->temporal_stride, .spatial_stride = geometry->spatial_stride};
    return multiply(device, &p, weight, k * k * k);
}

/* rows x channels times columns x channels, transposed, as one row of pixels. */
static h3_status plain_linear(const h3_device *device, h3_tensor *out, const h3_tensor *x, const h3_tensor *weight, const h3_tensor *bias, int separate_bias)
{
    const int64_t columns = weight->shape[0], channels = h3_tensor_count(weight) / columns, rows = h3_tensor_count(x) / channels;
    h3_video_product p = {.x = x->data, .bias = bias->data, .out = out->data, .items = 1, .frames = 1, .height = 1, .width = rows, .channels = channels,
                          .out_frames = 1, .out_height = 1, .out_width = rows, .columns = columns, .kernel = 1, .temporal_stride = 1, .spatial_stride = 1,
                          .separate_bias = separate_bias};
    return multiply(device, &p, weight, 1);
}

/* A product of cublasLt whose algorithm is known. Column-major: out^T [columns x rows] = weight [channels x columns]^T x [channels x rows]. */
typedef struct known_product {
    int64_t rows, columns, channels;
    int with_bias;
    uint32_t alignment; /* of all matrices */
    cublasLtMatmulDesc_t description;
    cublasLtMatrixLayout_t weight, x, out;
    cublasLtMatmulAlgo_t algorithm;
} known_product;

/* One GPU a process; products of one process follow each other. All of it lives as long as the process. */
static struct {
    cublasLtHandle_t handle;
    void *workspace;
    known_product products[64];
    int count;
} lt;
static const size_t WORKSPACE = (size_t)32 << 20;

#define LT_TRY(call)                                      \
    do {                                                  \
        cublasStatus_t code_ = (call);                    \
        if (code_ != CUBLAS_STATUS_SUCCESS) return code_; \
    } while (0)

static cublasStatus_t describe(known_product *p)
{
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    LT_TRY(cublasLtMatmulDescCreate(&p->description, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    LT_TRY(cublasLtMatmulDescSetAttribute(p->description, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed));
    if (p->with_bias) LT_TRY(cublasLtMatmulDescSetAttribute(p->description, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
    LT_TRY(cublasLtMatrixLayoutCreate(&p->weight, CUDA_R_16F, (uint64_t)p->channels, (uint64_t)p->columns, p->channels));
    LT_TRY(cublasLtMatrixLayoutCreate(&p->x, CUDA_R_16F, (uint64_t)p->channels, (uint64_t)p->rows, p->channels));
    return cublasLtMatrixLayoutCreate(&p->out, CUDA_R_16F, (uint64_t)p->columns, (uint64_t)p->rows, p->columns);
}

static cublasStatus_t prefer(cublasLtMatmulPreference_t preference, uint32_t alignment)
{
    static const cublasLtMatmulPreferenceAttributes_t ALIGNMENTS[] = {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                                                                      CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    const uint64_t workspace = WORKSPACE;
    const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_NONE;
    LT_TRY(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace));
    LT_TRY(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes));
    for (int i = 0; i < 4; i++) LT_TRY(cublasLtMatmulPreferenceSetAttribute(preference, ALIGNMENTS[i], &alignment, sizeof alignment));
    return CUBLAS_STATUS_SUCCESS;
}

/* The heuristic's first algorithm without split-K. */
static cublasStatus_t choose(known_product *p)
{
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t choice;
    int found = 0;
    LT_TRY(cublasLtMatmulPreferenceCreate(&preference));
    cublasStatus_t code = prefer(preference, p->alignment);
    if (code == CUBLAS_STATUS_SUCCESS)
        code = cublasLtMatmulAlgoGetHeuristic(lt.handle, p->description, p->weight, p->x, p->out, p->out, preference, 1, &choice, &found);
    cublasLtMatmulPreferenceDestroy(preference);
    LT_TRY(code);
    if (found < 1) return CUBLAS_STATUS_NOT_SUPPORTED;
    p->algorithm = choice.algo;
    return choice.state;
}

static void forget(known_product *p)
{
    if (p->out != NULL) cublasLtMatrixLayoutDestroy(p->out);
    if (p->x != NULL) cublasLtMatrixLayoutDestroy(p->x);
    if (p->weight != NULL) cublasLtMatrixLayoutDestroy(p->weight);
    if (p->description != NULL) cublasLtMatmulDescDestroy(p->description);
}

static int same_product(const known_product *a, const known_product *b)
{
    return a->rows == b->rows && a->columns == b->columns && a->channels == b->channels && a->with_bias == b->with_bias && a->alignment == b->alignment;
}

static cublasStatus_t know(known_product **out, const known_product *wanted)
{
    for (int i = 0; i < lt.count; i++) {
        *out = &lt.products[i];
        if (same_product(*out, wanted)) return CUBLAS_STATUS_SUCCESS;
    }
    if (lt.count == (int)(sizeof lt.products / sizeof *lt.products)) forget(&lt.products[--lt.count]);
    known_product fresh = *wanted;
    cublasStatus_t code = describe(&fresh);
    if (code == CUBLAS_STATUS_SUCCESS) code = choose(&fresh);
    if (code != CUBLAS_STATUS_SUCCESS) {
        forget(&fresh);
        return code;
    }
    *out = &lt.products[lt.count];
    lt.products[lt.count++] = fresh;
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t run(const h3_device *device, h3_tensor *out, const h3_tensor *x, const h3_tensor *weight, const h3_tensor *bias, int with_bias)
{
    known_product *p;
    const int64_t columns = weight->shape[0], channels = h3_tensor_count(weight) / columns;
    const float one = 1.0f, zero = 0.0f;
    const void *vector = bias->data;
    const uintptr_t places = (uintptr_t)out->data | (uintptr_t)x->data | (uintptr_t)weight->data;
    const known_product wanted = {.rows = h3_tensor_count(x) / channels, .columns = columns, .channels = channels, .with_bias = with_bias,
                                  .alignment = places % 256 == 0 ? 256 : 16}; /* rows are multiples of eight elements */
    if (lt.handle == NULL) LT_TRY(cublasLtCreate(&lt.handle));
    LT_TRY(know(&p, &wanted));
    if (with_bias) LT_TRY(cublasLtMatmulDescSetAttribute(p->description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &vector, sizeof vector));
    return cublasLtMatmul(lt.handle, p->description, &one, weight->data, p->weight, x->data, p->x, &zero, out->data, p->out, out->data, p->out, &p->algorithm,
                          lt.workspace, WORKSPACE, device->stream);
}

h3_status h3_video_cublas_linear(const h3_device *device, h3_tensor *out, const h3_tensor *x, const h3_tensor *weight, const h3_tensor *bias, int separate_bias)
{
    const int64_t columns = weight->shape[0], channels = h3_tensor_count(weight) / columns;
    if (!is_half(x) || columns % 8 != 0 || channels % 8 != 0) return plain_linear(device, out, x, weight, bias, separate_bias);
    if (lt.workspace == NULL) H3_TRY(device->allocate(&lt.workspace, WORKSPACE));
    const cublasStatus_t code = run(device, out, x, weight, bias, !separate_bias);
    if (code == CUBLAS_STATUS_NOT_SUPPORTED) return plain_linear(device, out, x, weight, bias, separate_bias);
    if (code != CUBLAS_STATUS_SUCCESS)
        return h3_error(H3_ENVIRONMENT, "GPU %d: cublasLt, %lld rows, %lld to %lld channels: %s; look at the GPU with nvidia-smi and run again", device->index,
                        (long long)(h3_tensor_count(x) / channels), (long long)channels, (long long)columns, cublasLtGetStatusString(code));
    if (!separate_bias) return H3_OK;
    return started(device, h3_video_start_add_bias(device->stream, out->data, bias->data, h3_tensor_count(out) / columns, columns), "bias");
}

/* Whether the environment has the libraries' kernels measured beside our own for Hopper GPUs: H3_VIDEO_KERNELS=library. */
static int libraries_are_wanted(void)
{
    const char *text = getenv("H3_VIDEO_KERNELS");
    return text != NULL && strcmp(text, "library") == 0;
}

/* The product of our own kernel; *done is 0 where it does not take it. `p` knows of the kind what is not told here. */
static h3_status own_product(int *done, const h3_device *device, h3_video_matmul *p, h3_tensor *out, const h3_tensor *x, const h3_tensor *weight, const h3_tensor *bias)
{
    p->x = x->data, p->weight = weight->data, p->bias = bias->data, p->out = out->data;
    p->columns = weight->shape[0];
    p->channels = h3_tensor_count(weight) / p->columns;
    p->rows = h3_tensor_count(x) / p->channels;
    *done = is_half(x) && !libraries_are_wanted() && h3_video_matmul_fits(p);
    return *done ? started(device, h3_video_start_matmul(device->stream, p), "product") : H3_OK;
}

static h3_status linear(const h3_device *device, h3_tensor *out, const h3_tensor *x, const h3_tensor *weight, const h3_tensor *bias, int separate_bias)
{
    h3_video_matmul p = {.kind = H3_VIDEO_MATMUL_PLAIN};
    int done = 0;
    if (!separate_bias) H3_TRY(own_product(&done, device, &p, out, x, weight, bias));
    return done ? H3_OK : h3_video_cublas_linear(device, out, x, weight, bias, separate_bias);
}

void h3_video_products_name(char out[H3_VIDEO_KERNEL_NAME], const h3_device *device, int32_t dtype, int64_t width, int64_t ffn)
{
    const int64_t channels[] = {width, width, width, ffn}, columns[] = {3 * width, width, 2 * ffn, width};
    int own = !libraries_are_wanted();
    out[0] = 0;
    if (device->kind != H3_DEVICE_CUDA || dtype != H3_F16) return;
    for (int i = 0; i < 4; i++) own &= h3_video_matmul_fits(&(h3_video_matmul){.kind = H3_VIDEO_MATMUL_PLAIN, .rows = 1, .channels = channels[i], .columns = columns[i]});
    snprintf(out, H3_VIDEO_KERNEL_NAME, "%scublaslt-%zu", own ? "gemm-tc-k16-ascending-v1+" : "", cublasLtGetVersion());
}

/* --- attention ------------------------------------------------------------------------------------------------------- */

/* cuDNN's plan; NULL where it does not take the shape. */
static h3_status find_plan(const h3_sdpa **out, const h3_device *device, const h3_sdpa_shape *shape)
{
    const h3_sdpa *found = h3_sdpa_find(device->index, shape);
    *out = found->plan != NULL ? found : NULL;
    if (found->plan != NULL || h3_sdpa_refused(found)) return H3_OK;
    return h3_error(H3_ENVIRONMENT, "GPU %d: cuDNN, attention over %lld tokens: no plan, status %d; look at the GPU with nvidia-smi and run again", device->index,
                    (long long)shape->keys, found->status);
}

/* qkv [B,N,3,H,D] as three tensors whose rows lie apart. */
static h3_status run_plan(const h3_device *device, const h3_sdpa *plan, const h3_sdpa_shape *shape, h3_tensor *out, const h3_tensor *qkv)
{
    uint16_t *q = qkv->data;
    const int64_t width = shape->heads * shape->head_dim;
    const h3_sdpa_tensors tensors = {.q = q, .k = q + width, .v = q + 2 * width, .o = out->data};
    char message[160];
    void *workspace;
    H3_TRY(device->allocate(&workspace, plan->workspace));
    const int failed = h3_sdpa_run(device->index, shape, &tensors, device->stream, workspace, message, sizeof message);
    device->release(workspace); /* to the pool, which the stream orders */
    return failed ? h3_error(H3_ENVIRONMENT, "%s; look at the GPU with nvidia-smi and run again", message) : H3_OK;
}

static h3_status own_attention(const h3_device *device, h3_tensor *out, const h3_tensor *qkv)
{
    const int64_t tiles = qkv->shape[0], tokens = qkv->shape[1], heads = qkv->shape[3], dim = qkv->shape[4];
    const int code = h3_video_attention_fits(is_half(qkv), dim)
                         ? h3_video_start_attention(device->stream, out->data, qkv->data, tiles, tokens, heads, dim)
                         : h3_video_start_attention_simple(device->stream, out->data, qkv->data, is_half(qkv), tiles, tokens, heads, dim);
    return started(device, code, "attention");
}

static h3_status attention(const h3_device *device, h3_tensor *out, const h3_tensor *qkv)
{
    const int64_t tiles = qkv->shape[0], tokens = qkv->shape[1], heads = qkv->shape[3], dim = qkv->shape[4];
    const h3_sdpa_shape shape = h3_sdpa_joined(tiles, tokens, heads, dim);
    const h3_sdpa *plan = NULL;
    if (is_half(qkv) && !libraries_are_wanted() && h3_video_attention_hopper_fits(out->data, qkv->data, tiles, tokens, heads, dim))
        return started(device, h3_video_start_attention_hopper(device->stream, out->data, qkv->data, tiles, tokens, heads, dim), "attention");
    if (is_half(qkv)) H3_TRY(find_plan(&plan, device, &shape));
    return plan != NULL ? run_plan(device, plan, &shape, out, qkv) : own_attention(device, out, qkv);
}

h3_status h3_video_attention_name(char out[H3_VIDEO_KERNEL_NAME], const h3_device *device, int32_t dtype, int64_t tiles, int64_t tokens, int64_t heads, int64_t dim)
{
    const h3_sdpa_shape shape = h3_sdpa_joined(tiles, tokens, heads, dim);
    const h3_sdpa *plan;
    out[0] = 0;
    if (device->kind != H3_DEVICE_CUDA || dtype != H3_F16) return H3_OK;
    if (!libraries_are_wanted() && h3_video_attention_hopper_fits(NULL, NULL, tiles, tokens, heads, dim)) {
        snprintf(out, H3_VIDEO_KERNEL_NAME, "own-wgmma-v2");
        return H3_OK;
    }
    H3_TRY(find_plan(&plan, device, &shape));
    snprintf(out, H3_VIDEO_KERNEL_NAME, "%s", plan != NULL ? plan->name : h3_video_attention_fits(1, dim) ? "own-mma-v1" : "own-simple-v1");
    return H3_OK;
}

/* --- layers ---------------------------------------------------------------------------------------------------------- */

static h3_status round_to_half(const h3_device *device, h3_tensor *out, const h3_tensor *x)
{
    return started(device, h3_video_start_round(device->stream, out->data, x->data, h3_tensor_count(x)), "rounding");
}

static h3_status embed(const h3_device *device, h3_tensor *out, const h3_tensor *tokens, const h3_tensor *registers)
{
    const int64_t given = registers->data == NULL ? 0 : registers->shape[0];
    return started(device, h3_video_start_embed(device->stream, out->data, tokens->data, registers->data, is_half(tokens), out->shape[0], tokens->shape[1], given,
                                                out->shape[1], out->shape[2]), "embedding");
}

static h3_status rms_norm(const h3_device *device, h3_tensor *out, const h3_tensor *x, const h3_tensor *weight, float epsilon)
{
    const int64_t width = weight->shape[0];
    return started(device, h3_video_start_rms_norm(device->stream, out->data, x->data, weight->data, is_half(out), h3_tensor_count(x) / width, width, epsilon), "norm");
}

static h3_status rotate(const h3_device *device, h3_tensor *qkv, const h3_tensor *cosine, const h3_tensor *sine, float epsilon)
{
    return started(device, h3_video_start_rotate(device->stream, qkv->data, cosine->data, sine->data, is_half(qkv), qkv->shape[0] * qkv->shape[1], qkv->shape[1],
                                                 qkv->shape[3], qkv->shape[4], cosine->shape[1], epsilon), "rotation");
}

static h3_status swiglu(const h3_device *device, h3_tensor *out, const h3_tensor *x)
{
    const int64_t width = out->shape[out->rank - 1];
    return started(device, h3_video_start_swiglu(device->stream, out->data, x->data, is_half(x), h3_tensor_count(out) / width, width), "swiglu");
}

static h3_status project_heads(const h3_device *device, h3_tensor *qkv, const h3_tensor *x, const h3_tensor *weight, const h3_tensor *bias, const h3_tensor *cosine,
                               const h3_tensor *sine, float epsilon)
{
    h3_video_matmul p = {.kind = H3_VIDEO_MATMUL_HEADS, .epsilon = epsilon, .tokens = qkv->shape[1], .heads = qkv->shape[3], .cosine = cosine->data, .sine = sine->data};
    int done = 0;
    if (qkv->shape[4] == 64 && cosine->shape[1] == 24) H3_TRY(own_product(&done, device, &p, qkv, x, weight, bias));
    return done ? H3_OK : h3_video_heads_apart(&all_operations, device, qkv, x, weight, bias, cosine, sine, epsilon);
}

static h3_status project_gated(const h3_device *device, h3_tensor *out, const h3_tensor *x, const h3_tensor *weight, const h3_tensor *bias)
{
    h3_video_matmul p = {.kind = H3_VIDEO_MATMUL_GATED};
    int done;
    H3_TRY(own_product(&done, device, &p, out, x, weight, bias));
    return done ? H3_OK : h3_video_gated_apart(&all_operations, device, out, x, weight, bias);
}

static h3_status add_norm(const h3_device *device, h3_tensor *out, h3_tensor *x, const h3_tensor *branch, const h3_tensor *scale, const h3_tensor *weight,
                          float epsilon)
{
    const int64_t width = scale->shape[0];
    return started(device, h3_video_start_add_norm(device->stream, out->data, x->data, branch->data, scale->data, weight->data, is_half(branch),
                                                   h3_tensor_count(x) / width, width, epsilon), "residual");
}

static h3_status project_added(const h3_device *device, h3_tensor *out, h3_tensor *x, const h3_tensor *branch, const h3_tensor *weight, const h3_tensor *bias,
                               const h3_tensor *scale, const h3_tensor *norm, float epsilon)
{
    h3_video_matmul p = {.kind = H3_VIDEO_MATMUL_ADDED, .scale = scale->data};
    int done;
    H3_TRY(own_product(&done, device, &p, x, branch, weight, bias));
    if (!done) return h3_video_added_apart(&all_operations, device, out, x, branch, weight, bias, scale, norm, epsilon);
    return out->data != NULL ? rms_norm(device, out, x, norm, epsilon) : H3_OK;
}

static h3_status layer_norm(const h3_device *device, h3_tensor *out, const h3_tensor *x, const h3_tensor *weight, const h3_tensor *bias, float epsilon)
{
    return started(device, h3_video_start_layer_norm(device->stream, out->data, x->data, weight->data, bias->data, is_half(out), out->shape[0], out->shape[1], x->shape[1],
                                                     x->shape[2], epsilon), "layer norm");
}

static h3_status group_norm_silu(const h3_device *device, h3_tensor *out, const h3_tensor *x, const h3_tensor *weight, const h3_tensor *bias, int64_t groups, float epsilon)
{
    const int64_t frames = x->shape[0] * x->shape[1], pixels = x->shape[2] * x->shape[3], channels = x->shape[4];
    h3_tensor statistics;
    H3_TRY(h3_device_tensor(&statistics, device, H3_F32, 2, H3_SHAPE(frames * groups, 2)));
    h3_status status = started(device, h3_video_start_group_statistics(device->stream, statistics.data, x->data, frames, pixels, channels, groups, epsilon), "group norm");
    if (status == H3_OK)
        status = started(device, h3_video_start_group_apply(device->stream, out->data, x->data, statistics.data, weight->data, bias->data, frames, pixels, channels, groups),
                         "group norm");
    h3_device_free(&statistics, device);
    return status;
}

static h3_status add(const h3_device *device, h3_tensor *x, const h3_tensor *y)
{
    return started(device, h3_video_start_add(device->stream, x->data, y->data, h3_tensor_count(x)), "sum");
}

/* --- planes ---------------------------------------------------------------------------------------------------------- */

static h3_status cut(const h3_device *device, h3_tensor *out, const h3_tensor *x, const h3_video_window *window)
{
    const h3_video_cut c = {.rows = window->rows, .columns = window->columns, .tile = window->tile, .frame = window->frame, .tiles = out->shape[0],
                            .frames = out->shape[1], .height = out->shape[2], .width = out->shape[3], .channels = out->shape[4], .in_frames = x->shape[1],
                            .in_height = x->shape[2], .in_width = x->shape[3]};
    return started(device, h3_video_start_cut(device->stream, out->data, x->data, is_half(out), &c), "cutting");
}

static h3_status join(const h3_device *device, h3_tensor *out, const h3_tensor *rows, const h3_video_join *geometry)
{
    return started(device, h3_video_start_join(device->stream, out->data, rows->data, is_half(rows), geometry), "joining");
}

static h3_status to_rgb(const h3_device *device, unsigned char *out, const h3_tensor *video, int64_t *bad)
{
    h3_tensor count;
    unsigned long long found = 0;
    H3_TRY(h3_device_zeros(&count, device, H3_I64, 1, H3_SHAPE(1)));
    h3_status status = started(device, h3_video_start_to_rgb(device->stream, out, video->data, is_half(video), video->shape[0], video->shape[2], video->shape[3], count.data),
                               "pixels");
    if (status == H3_OK) status = device->to_host(&found, count.data, sizeof found);
    h3_device_free(&count, device);
    *bad = (int64_t)found;
    return status;
}

static const h3_video_ops all_operations = {
    .name = "cuda", .linear = linear, .conv = conv, .attention = attention, .round = round_to_half, .embed = embed, .rms_norm = rms_norm, .rotate = rotate,
    .swiglu = swiglu, .add_norm = add_norm, .project_heads = project_heads, .project_gated = project_gated, .project_added = project_added,
    .layer_norm = layer_norm, .group_norm_silu = group_norm_silu, .add = add, .cut = cut, .join = join, .to_rgb = to_rgb,
};

h3_status h3_video_ops_cuda(const h3_video_ops **out)
{
    *out = &all_operations;
    return H3_OK;
}

#else

void h3_video_products_name(char out[H3_VIDEO_KERNEL_NAME], const h3_device *device, int32_t dtype, int64_t width, int64_t ffn)
{
    (void)device, (void)dtype, (void)width, (void)ffn;
    out[0] = 0;
}

h3_status h3_video_attention_name(char out[H3_VIDEO_KERNEL_NAME], const h3_device *device, int32_t dtype, int64_t tiles, int64_t tokens, int64_t heads, int64_t dim)
{
    (void)device, (void)dtype, (void)tiles, (void)tokens, (void)heads, (void)dim;
    out[0] = 0;
    return H3_OK;
}

h3_status h3_video_ops_cuda(const h3_video_ops **out)
{
    (void)out;
    return h3_error(H3_ENVIRONMENT, "this build has no video autoencoder for GPUs; build with make CUDA=1 on a machine with the toolkit");
}

#endif
