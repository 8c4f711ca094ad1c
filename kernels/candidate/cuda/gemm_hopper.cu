/*
 * The larger products of gemm.cu on a Hopper GPU, by its copy engine and wgmma (src/hopper/matmul.cuh). The same contract and the same bits: a result takes the same k16 steps in
 * the same order, whichever instruction does them and whatever the tile is.
 *
 * So the tile follows the shape. Plain ones are 128 rows by 256 columns. Few rows would leave them half empty: then the operands change places, 128 columns are the tile's rows and
 * the rows its columns, of which wgmma takes any number of eights, and the tile is turned over on its way out. Which one costs least is what a model says: the waves of tiles over the
 * multiprocessors, times what a stage costs the tensor cores or the shared memory, whichever is more.
 */
#include <stdlib.h>
#include <string.h>

#include "device.cuh"
#include "matmul.cuh"

namespace {

/* Rows of the result, 16 bytes a lane; `WIDTH` columns of it a row of the tile. */
template <class Kind> struct write_rows {
    uint16_t *out;
    int64_t columns;

    __device__ __forceinline__ void operator()(const uint16_t *tile, int64_t first, int count, int other, int warp, int lane) const
    {
        constexpr int PIECES = Kind::WIDTH / 8, TOGETHER = 32 / PIECES; /* rows of a warp at a time */
        const int64_t own = (int64_t)other * Kind::WIDTH + lane % PIECES * 8;
        if (own >= columns) return;
        for (int row = warp * TOGETHER + lane / PIECES; row < count; row += matmul::WRITERS * TOGETHER)
            *(uint4 *)(out + (first + row) * columns + own) = *(const uint4 *)(tile + matmul_spot<Kind>(row, lane % PIECES));
    }
};

/* Columns of the turned tiles; 0 for the plain one. */
constexpr int TILES[] = {0, 88, 136, 160, 176, 232};

/* Clocks of one multiprocessor for a stage of 64 steps: the tensor cores', or the shared memory's, which they read and the copy engine writes. */
int64_t stage_cost(int64_t columns)
{
    const int64_t tensor = 128 * columns / 32, memory = (4 * 2 * (2048 + 32 * columns) + 128 * (128 + columns)) / 128;
    return tensor > memory ? tensor : memory;
}

int64_t cost(const h3_gemm &gemm, int columns)
{
    const int64_t plain = h3_groups(gemm.rows, 128) * h3_groups(gemm.columns, 256), tiles = columns == 0 ? plain : h3_groups(gemm.columns, 128) * h3_groups(gemm.rows, columns);
    return h3_groups(tiles, hopper_processors()) * stage_cost(columns == 0 ? 256 : columns);
}

/* The gradient of a weight, whose operands both lie along the contraction, has many rows and columns: plain tiles. */
int choose_tile(const h3_gemm &gemm)
{
    int best = 0;
    if (gemm.left_along) return 0;
    for (int columns : TILES)
        if (cost(gemm, columns) < cost(gemm, best)) best = columns;
    return best;
}

matmul plain_of(const h3_gemm &gemm)
{
    matmul p = {};
    p.left = gemm.left, p.right = gemm.right;
    p.rows = gemm.rows, p.columns = gemm.columns, p.depth = gemm.depth;
    p.second = matmul_second(256), p.step = 256;
    return p;
}

matmul turned_of(const h3_gemm &gemm, int columns)
{
    matmul p = {};
    p.left = gemm.right, p.right = gemm.left;
    p.rows = gemm.columns, p.columns = gemm.rows, p.depth = gemm.depth;
    p.second = matmul_second(columns), p.step = columns;
    return p;
}

template <int LEFT_ALONG, int RIGHT_ALONG> int start_plain(void *stream, const char *name, const h3_gemm &gemm)
{
    typedef matmul_kind<false, LEFT_ALONG, RIGHT_ALONG, false> kind;
    return matmul_start<kind>(stream, name, plain_of(gemm), write_rows<kind>{gemm.out, gemm.columns});
}

template <int COLUMNS> int start_turned(void *stream, const char *name, const h3_gemm &gemm)
{
    typedef matmul_kind<false, 0, 0, false, COLUMNS, true> across;
    typedef matmul_kind<false, 1, 0, false, COLUMNS, true> along;
    const matmul p = turned_of(gemm, COLUMNS);
    return gemm.right_along ? matmul_start<along>(stream, name, p, write_rows<along>{gemm.out, gemm.columns})
                            : matmul_start<across>(stream, name, p, write_rows<across>{gemm.out, gemm.columns});
}

int start(void *stream, const char *name, const h3_gemm &gemm)
{
    switch (choose_tile(gemm)) {
    case 88: return start_turned<88>(stream, name, gemm);
    case 136: return start_turned<136>(stream, name, gemm);
    case 160: return start_turned<160>(stream, name, gemm);
    case 176: return start_turned<176>(stream, name, gemm);
    case 232: return start_turned<232>(stream, name, gemm);
    default: break;
    }
    if (gemm.left_along) return start_plain<1, 1>(stream, name, gemm);
    return gemm.right_along ? start_plain<0, 1>(stream, name, gemm) : start_plain<0, 0>(stream, name, gemm);
}

} // namespace

extern "C" bool h3_hopper_is_wanted(void)
{
    const char *text = getenv("H3_CANDIDATE_PRODUCTS");
    return text == NULL || strcmp(text, "mma") != 0;
}

extern "C" bool h3_gemm_hopper_fits(const h3_gemm *gemm)
{
    const matmul p = plain_of(*gemm);
    if (!h3_hopper_is_wanted() || gemm->bias || gemm->partial || gemm->columns % 8 != 0 || !h3_aligned(gemm->out, 16)) return false;
    if (gemm->left_along) return matmul_fits<matmul_kind<false, 1, 1, false>>(p);
    return gemm->right_along ? matmul_fits<matmul_kind<false, 0, 1, false>>(p) : matmul_fits<matmul_kind<false, 0, 0, false>>(p);
}

extern "C" const char *h3_gemm_hopper_kernel(const h3_gemm *gemm)
{
    switch (choose_tile(*gemm)) {
    case 88: return "wgmma_m64n88k16";
    case 136: return "wgmma_m64n136k16";
    case 160: return "wgmma_m64n160k16";
    case 176: return "wgmma_m64n176k16";
    case 232: return "wgmma_m64n232k16";
    default: return "wgmma_m64n256k16";
    }
}

extern "C" int h3_gemm_hopper_run(h3_call *call, const h3_gemm *gemm)
{
    static const char name[] = "gemm_wgmma";
    return h3_cuda_status(call, name, (cudaError_t)start(call->stream, name, *gemm));
}
