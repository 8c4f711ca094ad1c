/*
 * The products of gemm.cu that fill a Hopper GPU, by its copy engine and wgmma (src/hopper/matmul.cuh). The same contract and the same bits: a result takes the same k16 steps in
 * the same order, whichever instruction does them.
 */
#include <stdlib.h>
#include <string.h>

#include "device.cuh"
#include "matmul.cuh"

namespace {

/* Rows of the result, 16 bytes a lane. */
struct write_rows {
    uint16_t *out;
    int64_t columns;

    __device__ __forceinline__ void operator()(const uint16_t *tile, int64_t first, int count, int column, int warp, int lane) const
    {
        const int64_t own = (int64_t)column * matmul::COLUMNS + 8 * lane;
        if (own >= columns) return;
        for (int row = warp; row < count; row += matmul::WRITERS)
            *(uint4 *)(out + (first + row) * columns + own) = *(const uint4 *)(tile + matmul_spot(row, lane));
    }
};

typedef matmul_kind<false, 0, 0, false> across;
typedef matmul_kind<false, 0, 1, false> right_along;
typedef matmul_kind<false, 1, 1, false> both_along;

matmul shape_of(const h3_gemm &gemm)
{
    matmul p = {};
    p.left = gemm.left, p.right = gemm.right;
    p.rows = gemm.rows, p.columns = gemm.columns, p.depth = gemm.depth;
    p.second = matmul::COLUMNS / 2, p.step = matmul::COLUMNS;
    return p;
}

} // namespace

extern "C" bool h3_hopper_is_wanted(void)
{
    const char *text = getenv("H3_CANDIDATE_PRODUCTS");
    return text != NULL && strcmp(text, "wgmma") == 0;
}

extern "C" bool h3_gemm_hopper_fits(const h3_gemm *gemm)
{
    const matmul p = shape_of(*gemm);
    if (!h3_hopper_is_wanted() || gemm->bias || gemm->partial || gemm->columns % 8 != 0 || !h3_aligned(gemm->out, 16)) return false;
    if (gemm->left_along) return matmul_fits<both_along>(p);
    return gemm->right_along ? matmul_fits<right_along>(p) : matmul_fits<across>(p);
}

extern "C" int h3_gemm_hopper_run(h3_call *call, const h3_gemm *gemm)
{
    static const char name[] = "gemm_wgmma";
    const matmul p = shape_of(*gemm);
    const write_rows write = {gemm->out, gemm->columns};
    int code;
    if (gemm->left_along) code = matmul_start<both_along>(call->stream, name, p, write);
    else if (gemm->right_along) code = matmul_start<right_along>(call->stream, name, p, write);
    else code = matmul_start<across>(call->stream, name, p, write);
    return h3_cuda_status(call, name, (cudaError_t)code);
}
