/*
 * Products on tensor cores, contract gemm-tc-k16-ascending-v1: every result has one FP32 accumulator that starts at +0 and
 * takes the k16 steps of the contraction in ascending order; the last one is padded with zeros, which change nothing. Then
 * the bias, if any, is added in FP32 and the sum is rounded to BF16 once. No sum is split, so tiles are free to follow the
 * shape: a result's bits depend on its row, its column and the contraction only.
 *
 * A CTA computes a tile of WARPS_M * WARP_M rows by WARPS_N * WARP_N columns. Panels of 32 contraction steps of both
 * operands travel through STAGES buffers in shared memory. An operand is stored with the contraction along its rows
 * ("across" the operand) or with its own index along its rows ("along"); transposing fragment loads serve the latter, so
 * nothing is transposed in memory.
 */
#include "tile.cuh"

#ifndef H3_GEMM_FULL_GRID
#define H3_GEMM_FULL_GRID 120 /* tiles of 128 x 256 that keep a GPU busy; tests lower it */
#endif
#ifndef H3_GEMM_HOPPER_GRID
#define H3_GEMM_HOPPER_GRID 16 /* that are worth it by wgmma, whose tiles may be smaller */
#endif

namespace {

constexpr int PANEL = 32; /* contraction steps of a stage */
constexpr int STAGES = 4;
constexpr int GROUP = 8; /* row tiles that share their weights in the L2 cache */

static_assert(H3_GEMM_CHUNK % PANEL == 0, "a chunk must be whole panels");

/* What a kernel is made for. VECTOR: all rows of both operands start at multiples of 16 bytes. */
template <int WARPS_M_, int WARPS_N_, int WARP_M_, int WARP_N_, bool LEFT_ALONG_, bool RIGHT_ALONG_, bool VECTOR_, bool PARTIAL_> struct shape {
    static constexpr int WARPS_M = WARPS_M_, WARPS_N = WARPS_N_, WARP_M = WARP_M_, WARP_N = WARP_N_;
    static constexpr bool LEFT_ALONG = LEFT_ALONG_, RIGHT_ALONG = RIGHT_ALONG_, VECTOR = VECTOR_, PARTIAL = PARTIAL_;
    static constexpr int THREADS = 32 * WARPS_M * WARPS_N, ROWS = WARPS_M * WARP_M, COLUMNS = WARPS_N * WARP_N;
    static constexpr int STAGE = (ROWS + COLUMNS) * PANEL; /* elements */
    static constexpr int PITCH = COLUMNS + 8;              /* of the staged results: eight rows hit different banks */
    static constexpr size_t PANEL_BYTES = (size_t)STAGES * STAGE * sizeof(uint16_t);
    static constexpr size_t RESULT_BYTES = PARTIAL ? 0 : (size_t)ROWS * PITCH * sizeof(uint16_t);
    static constexpr size_t SHARED = PANEL_BYTES > RESULT_BYTES ? PANEL_BYTES : RESULT_BYTES;
};

struct work {
    h3_gemm gemm;
    int64_t row_tiles, column_tiles;
    bool whole_rows; /* rows of the result may be written 16 bytes at a time */
};

/* One operand of a CTA: SIZE of its rows from `first` on, by panels. */
template <int SIZE, bool ALONG, bool VECTOR, int THREADS> struct operand {
    static constexpr int CHUNKS = ALONG ? SIZE / 8 : PANEL / 8;   /* 16-byte pieces of a stored row */
    static constexpr int STORED = ALONG ? PANEL : SIZE;           /* stored rows of a panel */
    static constexpr int STEP = THREADS / CHUNKS;                 /* stored rows that the CTA loads at a time */
    static_assert(THREADS % CHUNKS == 0 && STORED % STEP == 0, "every thread loads the same number of pieces");

    const uint16_t *base, *start;
    int64_t pitch, left; /* left: rows (across) or columns (along) from this thread's first one on */
    int row, chunk;

    __device__ operand(const uint16_t *data, int64_t first, int64_t count, int64_t depth)
    {
        row = (int)threadIdx.x / CHUNKS;
        chunk = (int)threadIdx.x % CHUNKS;
        base = data;
        pitch = ALONG ? count : depth;
        left = ALONG ? count - first - chunk * 8 : count - first - row;
        start = ALONG ? data + row * pitch + first + chunk * 8 : data + (first + row) * pitch + chunk * 8;
    }

    /* Loads contraction steps [k, k + 32) before `end` into `panel`. */
    __device__ __forceinline__ void load(uint16_t *panel, int64_t k, int64_t end) const
    {
#pragma unroll
        for (int i = 0; i < STORED / STEP; i++) {
            uint16_t *to = panel + h3_swizzle<CHUNKS>(row + i * STEP, chunk);
            const int64_t steps = ALONG ? end - k - row - i * STEP : end - k - chunk * 8; /* contraction steps left */
            const int64_t others = ALONG ? left : left - i * STEP;
            const uint16_t *from = start + (ALONG ? (k + i * STEP) * pitch : k + i * STEP * pitch);
            const bool inside = steps > 0 && others > 0;
            if (VECTOR) h3_copy16(to, inside ? from : base, inside);
            else h3_gather8(to, from, inside ? (ALONG ? others : steps) : 0);
        }
    }
};

/* The accumulators of a warp take one panel's two steps. */
template <typename S> __device__ __forceinline__ void multiply(float (&sums)[S::WARP_M / 16][S::WARP_N / 8][4], const uint16_t *panel, int lane,
                                                               int warp_row, int warp_column)
{
    const uint16_t *right = panel + S::ROWS * PANEL;
#pragma unroll
    for (int step = 0; step < PANEL / 16; step++) {
        uint32_t a[S::WARP_M / 16][4], b[S::WARP_N / 16][4];
#pragma unroll
        for (int i = 0; i < S::WARP_M / 16; i++) {
            if (S::LEFT_ALONG) h3_load_left_along<S::ROWS / 8>(a[i], panel, warp_row + 16 * i, step, lane);
            else h3_load_left<PANEL / 8>(a[i], panel, warp_row + 16 * i, step, lane);
        }
#pragma unroll
        for (int j = 0; j < S::WARP_N / 16; j++) {
            if (S::RIGHT_ALONG) h3_load_right_along<S::COLUMNS / 8>(b[j], right, warp_column + 16 * j, step, lane);
            else h3_load_right<PANEL / 8>(b[j], right, warp_column + 16 * j, step, lane);
        }
#pragma unroll
        for (int i = 0; i < S::WARP_M / 16; i++) {
#pragma unroll
            for (int j = 0; j < S::WARP_N / 8; j++) h3_mma(sums[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
        }
    }
}

/* FP32 sums of a chunk, as they are. */
template <typename S> __device__ __forceinline__ void write_partial(const h3_gemm &gemm, const float (&sums)[S::WARP_M / 16][S::WARP_N / 8][4],
                                                                    int64_t row, int64_t column)
{
    float *out = gemm.partial + blockIdx.y * gemm.rows * gemm.columns;
#pragma unroll
    for (int i = 0; i < S::WARP_M / 16; i++) {
#pragma unroll
        for (int j = 0; j < S::WARP_N / 8; j++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int64_t m = row + 16 * i + e / 2 * 8, n = column + 8 * j + e % 2;
                if (m < gemm.rows && n < gemm.columns) out[m * gemm.columns + n] = sums[i][j][e];
            }
        }
    }
}

/* Rounds the warp's results into the staging tile; (row, column) is the lane's first one. */
template <typename S> __device__ __forceinline__ void stage_results(uint16_t *staged, const float (&sums)[S::WARP_M / 16][S::WARP_N / 8][4],
                                                                    const h3_gemm &gemm, int64_t first_column, int row, int column)
{
#pragma unroll
    for (int j = 0; j < S::WARP_N / 8; j++) {
        const int64_t n = first_column + column + 8 * j;
        const bool biased = gemm.bias != NULL;
        const float low = biased && n < gemm.columns ? h3_float(gemm.bias[n]) : 0.0f;
        const float high = biased && n + 1 < gemm.columns ? h3_float(gemm.bias[n + 1]) : 0.0f;
#pragma unroll
        for (int i = 0; i < S::WARP_M / 16; i++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float first = sums[i][j][2 * half], second = sums[i][j][2 * half + 1];
                if (biased) {
                    first = first + low;
                    second = second + high;
                }
                uint16_t *to = staged + (row + 16 * i + 8 * half) * S::PITCH + column + 8 * j;
                *reinterpret_cast<uint32_t *>(to) = h3_bf_pair(first, second);
            }
        }
    }
}

template <typename S> __device__ __forceinline__ void write_results(const work &w, const uint16_t *staged, int64_t first_row, int64_t first_column)
{
    constexpr int PIECES = S::COLUMNS / 8;
    for (int i = (int)threadIdx.x; i < S::ROWS * PIECES; i += S::THREADS) {
        const int64_t row = first_row + i / PIECES, column = first_column + i % PIECES * 8;
        if (row >= w.gemm.rows || column >= w.gemm.columns) continue;
        h3_scatter8(w.gemm.out + row * w.gemm.columns + column, staged + i / PIECES * S::PITCH + i % PIECES * 8, w.gemm.columns - column, w.whole_rows);
    }
}

/* Tiles of GROUP rows of tiles, rows fastest, then the next group. */
__device__ __forceinline__ void place_tile(const work &w, int64_t *row_tile, int64_t *column_tile)
{
    int64_t group, inside;
    h3_divide(blockIdx.x, GROUP * w.column_tiles, &group, &inside);
    const int64_t height = w.row_tiles - group * GROUP < GROUP ? w.row_tiles - group * GROUP : GROUP;
    h3_divide(inside, height, column_tile, row_tile);
    *row_tile += group * GROUP;
}

template <typename S> __global__ void __launch_bounds__(S::THREADS, S::THREADS > 128 ? 1 : 3) gemm_kernel(work w)
{
    uint16_t *panels = reinterpret_cast<uint16_t *>(h3_shared_memory());
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int warp_row = warp / S::WARPS_N * S::WARP_M, warp_column = warp % S::WARPS_N * S::WARP_N;
    int64_t row_tile, column_tile;
    place_tile(w, &row_tile, &column_tile);
    const int64_t first_row = row_tile * S::ROWS, first_column = column_tile * S::COLUMNS;
    const int64_t begin = S::PARTIAL ? (int64_t)blockIdx.y * H3_GEMM_CHUNK : 0;
    const int64_t end = S::PARTIAL && begin + H3_GEMM_CHUNK < w.gemm.depth ? begin + H3_GEMM_CHUNK : w.gemm.depth;
    const int64_t count = (end - begin + PANEL - 1) / PANEL;
    const operand<S::ROWS, S::LEFT_ALONG, S::VECTOR, S::THREADS> left(w.gemm.left, first_row, w.gemm.rows, w.gemm.depth);
    const operand<S::COLUMNS, S::RIGHT_ALONG, S::VECTOR, S::THREADS> right(w.gemm.right, first_column, w.gemm.columns, w.gemm.depth);
    float sums[S::WARP_M / 16][S::WARP_N / 8][4] = {};

    for (int64_t p = 0; p < STAGES - 1; p++) {
        if (p < count) {
            left.load(panels + p * S::STAGE, begin + p * PANEL, end);
            right.load(panels + p * S::STAGE + S::ROWS * PANEL, begin + p * PANEL, end);
        }
        h3_copy_commit();
    }
    int stage = 0;
    for (int64_t p = 0; p < count; p++) {
        h3_copy_wait<STAGES - 2>();
        __syncthreads(); /* panel p has come, and everyone is done with panel p - 1, whose buffer is filled next */
        const int64_t next = p + STAGES - 1;
        if (next < count) {
            uint16_t *buffer = panels + (stage == 0 ? STAGES - 1 : stage - 1) * S::STAGE;
            left.load(buffer, begin + next * PANEL, end);
            right.load(buffer + S::ROWS * PANEL, begin + next * PANEL, end);
        }
        h3_copy_commit();
        multiply<S>(sums, panels + stage * S::STAGE, lane, warp_row, warp_column);
        stage = stage == STAGES - 1 ? 0 : stage + 1;
    }
    const int row = warp_row + lane / 4, column = warp_column + lane % 4 * 2;
    if (S::PARTIAL) {
        write_partial<S>(w.gemm, sums, first_row + row, first_column + column);
        return;
    }
    h3_copy_wait<0>();
    __syncthreads(); /* the panels make room for the results */
    stage_results<S>(panels, sums, w.gemm, first_column, row, column);
    __syncthreads();
    write_results<S>(w, panels, first_row, first_column);
}

template <typename S> int launch(h3_call *call, const h3_gemm &gemm)
{
    work w;
    w.gemm = gemm;
    w.row_tiles = h3_groups(gemm.rows, S::ROWS);
    w.column_tiles = h3_groups(gemm.columns, S::COLUMNS);
    w.whole_rows = gemm.columns % 8 == 0 && h3_aligned(gemm.out, 16);
    const dim3 grid((unsigned)(w.row_tiles * w.column_tiles), S::PARTIAL ? (unsigned)h3_groups(gemm.depth, H3_GEMM_CHUNK) : 1u);
    return h3_launch(call, S::PARTIAL ? "gemm_chunks" : "gemm", gemm_kernel<S>, grid, S::THREADS, S::SHARED, w);
}

/* Whether there are so many tiles of 128 x 256, most of them well filled. */
bool has_tiles(const h3_gemm &gemm, int64_t count)
{
    return gemm.rows > 64 && gemm.columns > 128 && h3_groups(gemm.rows, 128) * h3_groups(gemm.columns, 256) >= count;
}

bool takes_wgmma(const h3_gemm &gemm) { return has_tiles(gemm, H3_GEMM_HOPPER_GRID) && h3_gemm_hopper_fits(&gemm); }

template <bool LEFT_ALONG, bool RIGHT_ALONG> int launch_ascending(h3_call *call, const h3_gemm &gemm, bool vector)
{
    if (!vector) return launch<shape<2, 2, 32, 64, LEFT_ALONG, RIGHT_ALONG, false, false>>(call, gemm);
    if (has_tiles(gemm, H3_GEMM_FULL_GRID)) return launch<shape<2, 4, 64, 64, LEFT_ALONG, RIGHT_ALONG, true, false>>(call, gemm);
    return launch<shape<2, 2, 32, 64, LEFT_ALONG, RIGHT_ALONG, true, false>>(call, gemm);
}

} // namespace

extern "C" const char *h3_gemm_kernel(const h3_gemm *gemm) { return takes_wgmma(*gemm) ? h3_gemm_hopper_kernel(gemm) : "mma_m16n8k16"; }

extern "C" int h3_gemm_run(h3_call *call, const h3_gemm *gemm)
{
    if (gemm->rows == 0 || gemm->columns == 0) return 0;
    if (takes_wgmma(*gemm)) return h3_gemm_hopper_run(call, gemm);
    const int64_t left_pitch = gemm->left_along ? gemm->rows : gemm->depth, right_pitch = gemm->right_along ? gemm->columns : gemm->depth;
    const bool vector = left_pitch % 8 == 0 && right_pitch % 8 == 0 && h3_aligned(gemm->left, 16) && h3_aligned(gemm->right, 16);
    if (gemm->partial) {
        if (vector) return launch<shape<2, 2, 32, 64, false, true, true, true>>(call, *gemm);
        return launch<shape<2, 2, 32, 64, false, true, false, true>>(call, *gemm);
    }
    if (gemm->left_along) return launch_ascending<true, true>(call, *gemm, vector);
    if (gemm->right_along) return launch_ascending<false, true>(call, *gemm, vector);
    return launch_ascending<false, false>(call, *gemm, vector);
}
