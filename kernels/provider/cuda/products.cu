/* Products on cublasLt; see products.h. */
#include <stdio.h>

#include <mutex>

#include "products.h"

enum { DEVICES = 64, MOST_ALIGNED = 256 };
static const size_t workspace_bytes = (size_t)32 << 20;

/* Handles are made when a device is first used and live as long as the process. */
static int find_handle(const h3_check &check, cublasLtHandle_t *out)
{
    static std::mutex lock;
    static cublasLtHandle_t handles[DEVICES];
    int device = check.call->device_index;
    if (device < 0 || device >= DEVICES) return h3_refuse(check, "GPU %d; this library counts to %d", device, DEVICES - 1);
    std::lock_guard<std::mutex> guard(lock);
    if (handles[device] == nullptr) {
        cublasStatus_t code = cublasLtCreate(&handles[device]);
        if (code != CUBLAS_STATUS_SUCCESS) {
            handles[device] = nullptr;
            return h3_refuse(check, "cublasLtCreate on GPU %d: %s", device, cublasLtGetStatusString(code));
        }
    }
    *out = handles[device];
    return 0;
}

void *h3_take_products(h3_arena &arena) { return h3_take_bytes(arena, workspace_bytes); }

int h3_products_open(h3_products &products, const h3_check &check, void *workspace)
{
    products = {&check, nullptr, workspace, " "};
    return find_handle(check, &products.handle);
}

/* cublasLt's objects for one product. Row-major c = a b is its column-major c^T = b^T a^T: b comes first. */
struct objects {
    cublasLtMatmulDesc_t description = nullptr;
    cublasLtMatrixLayout_t first = nullptr, second = nullptr, result = nullptr;
    cublasLtMatmulPreference_t preference = nullptr;
    ~objects()
    {
        if (preference != nullptr) cublasLtMatmulPreferenceDestroy(preference);
        if (result != nullptr) cublasLtMatrixLayoutDestroy(result);
        if (second != nullptr) cublasLtMatrixLayoutDestroy(second);
        if (first != nullptr) cublasLtMatrixLayoutDestroy(first);
        if (description != nullptr) cublasLtMatmulDescDestroy(description);
    }
};

#define LT_TRY(call)                                             \
    do {                                                         \
        cublasStatus_t code_ = (call);                           \
        if (code_ != CUBLAS_STATUS_SUCCESS) return code_;        \
    } while (0)

template <class T> static cublasStatus_t set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t name, T value)
{
    return cublasLtMatmulPreferenceSetAttribute(preference, name, &value, sizeof value);
}

/* `rows` x `columns` as stored. */
static cublasStatus_t make_layout(cublasLtMatrixLayout_t *out, const h3_operand &operand, int64_t rows, int64_t columns, int64_t count)
{
    if (operand.across) {
        int64_t swapped = rows;
        rows = columns;
        columns = swapped;
    }
    LT_TRY(cublasLtMatrixLayoutCreate(out, operand.bf16 ? CUDA_R_16BF : CUDA_R_32F, (uint64_t)columns, (uint64_t)rows, operand.pitch));
    if (count == 1) return CUBLAS_STATUS_SUCCESS;
    int32_t batch = (int32_t)count;
    LT_TRY(cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch));
    return cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &operand.apart, sizeof operand.apart);
}

/* The largest power of two, up to 256, that divides the addresses of all matrices of a batch. */
static uint32_t alignment_of(const h3_operand &operand, int64_t count)
{
    uint64_t bits = (uint64_t)(uintptr_t)operand.data | MOST_ALIGNED;
    if (count > 1) bits |= (uint64_t)operand.apart * h3_size(operand.bf16);
    return (uint32_t)(bits & (~bits + 1));
}

static cublasStatus_t describe(objects &o, const h3_product &p, cublasComputeType_t compute)
{
    cublasOperation_t transposed = CUBLAS_OP_T;
    LT_TRY(cublasLtMatmulDescCreate(&o.description, compute, CUDA_R_32F));
    if (p.b.across) LT_TRY(cublasLtMatmulDescSetAttribute(o.description, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed));
    if (p.a.across) LT_TRY(cublasLtMatmulDescSetAttribute(o.description, CUBLASLT_MATMUL_DESC_TRANSB, &transposed, sizeof transposed));
    LT_TRY(make_layout(&o.first, p.b, p.k, p.n, p.count));
    LT_TRY(make_layout(&o.second, p.a, p.m, p.k, p.count));
    LT_TRY(make_layout(&o.result, p.c, p.m, p.n, p.count));
    LT_TRY(cublasLtMatmulPreferenceCreate(&o.preference));
    LT_TRY(set(o.preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, (uint64_t)workspace_bytes));
    LT_TRY(set(o.preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, (uint32_t)CUBLASLT_REDUCTION_SCHEME_NONE));
    LT_TRY(set(o.preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(p.b, p.count)));
    LT_TRY(set(o.preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(p.a, p.count)));
    LT_TRY(set(o.preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(p.c, p.count)));
    return set(o.preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(p.c, p.count));
}

/* "algorithm/tile/stages" of each kind of product, in the order in which they first ran. */
static void note(h3_products &products, const cublasLtMatmulAlgo_t &algorithm)
{
    char text[40]; /* between blanks */
    int32_t id = -1;
    uint32_t tile = 0, stages = 0;
    size_t written;
    cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_ID, &id, sizeof id, &written);
    cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID, &tile, sizeof tile, &written);
    cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_STAGES_ID, &stages, sizeof stages, &written);
    snprintf(text, sizeof text, " %d/%u/%u ", id, tile, stages);
    size_t used = strlen(products.note);
    if (strstr(products.note, text) == nullptr && used + strlen(text) <= sizeof products.note) strcpy(products.note + used, text + 1);
}

static cublasStatus_t run(h3_products &products, const h3_product &p, cublasComputeType_t compute)
{
    objects o;
    cublasLtMatmulHeuristicResult_t choice;
    int found = 0;
    LT_TRY(describe(o, p, compute));
    LT_TRY(cublasLtMatmulAlgoGetHeuristic(products.handle, o.description, o.first, o.second, o.result, o.result, o.preference, 1, &choice, &found));
    if (found < 1) return CUBLAS_STATUS_NOT_SUPPORTED;
    LT_TRY(choice.state);
    note(products, choice.algo);
    void *c = const_cast<void *>(p.c.data);
    return cublasLtMatmul(products.handle, o.description, &p.alpha, p.b.data, o.first, p.a.data, o.second, &p.beta, c, o.result, c, o.result,
                          &choice.algo, products.workspace, workspace_bytes, h3_stream(*products.check));
}

int h3_multiply(h3_products &products, const h3_product &p)
{
    /* Neither uses TF32; "pedantic" is besides that the one that no setting of the environment turns into an emulation. */
    cublasStatus_t code = p.a.bf16 ? CUBLAS_STATUS_NOT_SUPPORTED : run(products, p, CUBLAS_COMPUTE_32F_PEDANTIC);
    if (code == CUBLAS_STATUS_NOT_SUPPORTED) code = run(products, p, CUBLAS_COMPUTE_32F);
    if (code == CUBLAS_STATUS_SUCCESS) return 0;
    return h3_refuse(*products.check, "cublasLt %s m %lld n %lld k %lld x %lld on GPU %d: %s", p.a.bf16 ? "bf16" : "fp32", (long long)p.m,
                     (long long)p.n, (long long)p.k, (long long)p.count, products.check->call->device_index, cublasLtGetStatusString(code));
}

void h3_products_ran(const h3_products &products, h3_call *call, bool bf16, const char *name)
{
    char kernel[112];
    snprintf(kernel, sizeof kernel, "%s%.*s", name, (int)strlen(products.note) - 1, products.note);
    h3_ran(call, kernel, bf16);
}
