/*
 * out = left right^T (+ bias) for halves or bfloat16 on a Hopper GPU, with whatever a writer makes of a finished tile on its way out.
 *
 * left [rows][depth] and right [columns][depth], or [depth][rows] and [depth][columns] where the contraction lies along them; a tile is 128 rows by Kind::COLUMNS columns. Every sum is
 * one FP32 accumulator over ascending k16 steps of the tensor core (contract gemm-tc-k16-ascending-v1, src/qualify/tensor_core.c), the last ones padded with zeros, which
 * change nothing, then + bias in FP32, then one rounding: the bits of a result depend on its row, its column and the contraction alone, not on tiles, stages or the grid.
 *
 * A block stays for many tiles. Its twelve warps are three groups: two multiply 64 rows each, and round what they have into a tile of shared memory, turned over where the Kind
 * says so. Of the first group one thread fetches 64 steps of the contraction of a tile's rows and columns at a time into STAGES places, and three warps take the rounded tile,
 * while the next one is multiplied.
 *
 * Blocks work alone or, Kind::BLOCKS 2, in pairs (a cluster) on two row tiles of the same columns: each fetches its own rows and half of the columns, these into both, so that
 * fewer bytes come from the L2 cache. Pairs change no bit either.
 */
#ifndef H3_HOPPER_MATMUL_CUH
#define H3_HOPPER_MATMUL_CUH

#include "hopper.cuh"
#include "tensor_map.cuh"

namespace {

struct matmul {
    static constexpr int ROWS = 128, DEPTH = 64;
    static constexpr int PANEL = 64 * 64;                                           /* elements of a tile of 64 rows */
    static constexpr int THREADS = 384, GROUP = 128, WARP = 32, ROWS_TOGETHER = 16; /* tiles of so many rows of tiles are neighbours in time */
    static constexpr int MULTIPLIERS = 8, WRITERS = 3;                              /* warps */
    static constexpr int MULTIPLYING = 200, WRITING = 104;                          /* registers a thread, of 168 that the launch gives */
    static_assert(2 * MULTIPLYING + WRITING <= 3 * 168, "registers of a multiprocessor");

    const void *left, *right;
    const uint16_t *bias; /* [columns], in whole 16 bytes with as many elements as a tile's columns need; read by kinds with BIAS */
    int64_t rows, columns, depth;
    int second; /* rows of `right` from a tile's first box to its second: matmul_second(columns of a tile), more where the two halves lie apart */
    int step;   /* rows of `right` from one tile to the next */
};

/* Where the second of two equal boxes starts that bring a tile's columns: at a multiple of 8, as the swizzle wants; where half of the columns is none, both bring the same 8. */
constexpr int matmul_second(int columns) { return columns / 2 / 8 * 8; }

/* What a kernel is made for: halves or bfloat16; how its operands lie; whether there is a bias; columns of a tile, which is written to shared memory as it is, or, TURNED, with columns
 * for rows (128 results to one); how many blocks share columns. */
template <bool HALF_, int LEFT_ALONG_, int RIGHT_ALONG_, bool BIAS_, int COLUMNS_ = 256, bool TURNED_ = false, int BLOCKS_ = 1> struct matmul_kind {
    typedef matmul_kind<HALF_, LEFT_ALONG_, RIGHT_ALONG_, BIAS_, COLUMNS_, TURNED_, 2> paired;
    static constexpr bool HALF = HALF_, BIAS = BIAS_, TURNED = TURNED_;
    static constexpr int LEFT_ALONG = LEFT_ALONG_, RIGHT_ALONG = RIGHT_ALONG_, COLUMNS = COLUMNS_, BLOCKS = BLOCKS_;
    static constexpr int WIDTH = TURNED ? matmul::ROWS : COLUMNS; /* of a row of the rounded tile */
    static constexpr int STAGE_BYTES = (matmul::ROWS + COLUMNS) * matmul::DEPTH * 2, ROOM = 227 * 1024 - matmul::ROWS * COLUMNS * 2 - 4096;
    static constexpr int STAGES = ROOM / STAGE_BYTES < 8 ? ROOM / STAGE_BYTES : 8, BIASES = BIAS ? STAGES + 1 : 1; /* a tile has at least one stage: so far ahead may the fetching thread be */
    static constexpr int BOXES = RIGHT_ALONG ? 4 : COLUMNS == 256 || BLOCKS == 2 ? 2 : 1; /* of `right` */
    static constexpr int BOX = RIGHT_ALONG ? 64 : BOXES == 1 ? COLUMNS : COLUMNS - matmul_second(COLUMNS); /* rows of it in one */
    static constexpr int SECOND = matmul_second(COLUMNS);
    static_assert(COLUMNS % 8 == 0 && STAGES >= 3 && (COLUMNS == 256 || (!RIGHT_ALONG && !BIAS)), "what is made");
};

/* Shared memory of a block. */
template <class Kind> struct matmul_memory {
    uint16_t left[Kind::STAGES][matmul::ROWS * matmul::DEPTH], right[Kind::STAGES][Kind::COLUMNS * matmul::DEPTH];
    uint16_t tile[matmul::ROWS * Kind::COLUMNS]; /* matmul_spot */
    uint16_t bias[Kind::BIASES][256];
    h3_barrier full[Kind::STAGES], empty[Kind::STAGES], filled, taken; /* of the stages; of the tile */
};

/* Where the 8 results `piece` of a rounded tile's row lie. */
template <class Kind> H3_DEVICE int matmul_spot(int row, int piece) { return h3_spot<Kind::WIDTH>(row, piece); }

/* --- tiles ------------------------------------------------------------------------------------------------------------ */

/* Whole pairs: the last tile may be none, of which zeros are fetched and nothing is written. */
template <class Kind> __host__ H3_DEVICE int matmul_row_tiles(const matmul &p)
{
    constexpr int ROWS = matmul::ROWS * Kind::BLOCKS;
    return (int)((p.rows + ROWS - 1) / ROWS) * Kind::BLOCKS;
}
template <class Kind> __host__ H3_DEVICE int matmul_column_tiles(const matmul &p) { return (int)((p.columns + Kind::COLUMNS - 1) / Kind::COLUMNS); }
template <class Kind> __host__ H3_DEVICE int matmul_tiles(const matmul &p) { return matmul_row_tiles<Kind>(p) * matmul_column_tiles<Kind>(p); }

/* Which tile comes as the t-th; a pair of blocks has t and t + 1, row tiles of the same columns. */
struct matmul_tile {
    int row, column; /* in tiles */
};

template <class Kind> H3_DEVICE matmul_tile matmul_tile_at(const matmul &p, int t)
{
    static_assert(matmul::ROWS_TOGETHER % Kind::BLOCKS == 0, "pairs stay together");
    const int all = matmul_row_tiles<Kind>(p), together = matmul::ROWS_TOGETHER * matmul_column_tiles<Kind>(p), first = t / together * matmul::ROWS_TOGETHER;
    const int count = all - first < matmul::ROWS_TOGETHER ? all - first : matmul::ROWS_TOGETHER;
    const matmul_tile tile = {first + t % together % count, t % together / count};
    return tile;
}

#ifdef H3_HOPPER_CODE
/* --- fetching --------------------------------------------------------------------------------------------------------- */

/* The i-th box of `right` for a tile's columns at `column` and 64 steps at k. */
template <class Kind> H3_DEVICE void matmul_fetch_right(uint16_t *to, const CUtensorMap *right, const matmul &p, int i, int k, int column, h3_barrier *full)
{
    constexpr unsigned BOTH = 3;
    uint16_t *place = to + i * (Kind::RIGHT_ALONG ? matmul::PANEL : Kind::SECOND * matmul::DEPTH);
    const int x = Kind::RIGHT_ALONG ? column + 64 * i : k, y = Kind::RIGHT_ALONG ? k : column + p.second * i;
    if (Kind::BLOCKS == 1) h3_load_box(place, right, x, y, full);
    else h3_load_box_into(BOTH, place, right, x, y, full);
}

template <class Kind> H3_DEVICE void matmul_fetch(matmul_memory<Kind> *m, const CUtensorMap *left, const CUtensorMap *right, const matmul &p)
{
    constexpr int OWN = Kind::BOXES / Kind::BLOCKS, HALF = Kind::COLUMNS / 2;
    constexpr unsigned STAGE = (unsigned)sizeof m->left[0] + Kind::BOXES * Kind::BOX * matmul::DEPTH * 2, BIAS = Kind::BIAS ? (unsigned)sizeof m->bias[0] : 0;
    const int tiles = matmul_tiles<Kind>(p), depth = (int)p.depth, first = (int)(blockIdx.x % Kind::BLOCKS) * OWN;
    int stage = 0, phase = 0, turn = 0;
    for (int t = (int)blockIdx.x; t < tiles; t += (int)gridDim.x, turn = (turn + 1) % Kind::BIASES) {
        const matmul_tile tile = matmul_tile_at<Kind>(p, t);
        const int row = tile.row * matmul::ROWS, column = tile.column * p.step;
        for (int k = 0; k < depth; k += matmul::DEPTH) {
            h3_barrier *full = &m->full[stage];
            h3_barrier_wait(&m->empty[stage], (unsigned)phase ^ 1u);
            h3_barrier_expect(full, k == 0 ? STAGE + BIAS : STAGE);
            if (Kind::LEFT_ALONG) {
                for (int i = 0; i < 2; i++) h3_load_box(m->left[stage] + i * matmul::PANEL, left, row + 64 * i, k, full);
            } else {
                h3_load_box(m->left[stage], left, k, row, full);
            }
            for (int i = 0; i < OWN; i++) matmul_fetch_right<Kind>(m->right[stage], right, p, first + i, k, column, full);
            if (Kind::BIAS && k == 0) {
                h3_load_bytes(m->bias[turn], p.bias + column, BIAS / 2, full);
                h3_load_bytes(m->bias[turn] + HALF, p.bias + column + p.second, BIAS / 2, full);
            }
            stage = stage + 1 == Kind::STAGES ? 0 : stage + 1;
            phase ^= stage == 0;
        }
    }
}

/* --- multiplying ------------------------------------------------------------------------------------------------------ */

/* The group's 64 rows, rounded, to their places in the tile, whose rows are the columns. */
template <class Kind> H3_DEVICE void matmul_round_turned(uint16_t *tile, const float (&d)[Kind::COLUMNS / 2], int group, int warp, int lane)
{
    const int piece = group * 8 + warp * 2 + lane / 8 % 2;
#pragma unroll
    for (int j = 0; j < Kind::COLUMNS / 8; j++) {
        const uint32_t r[2] = {h3_pair<Kind::HALF>(d[4 * j], d[4 * j + 1]), h3_pair<Kind::HALF>(d[4 * j + 2], d[4 * j + 3])};
        h3_store_matrices_turned(tile + matmul_spot<Kind>(8 * j + lane % 8, piece), r);
    }
}

/* The group's 64 rows, with the bias and rounded, to their places in the tile. */
template <class Kind> H3_DEVICE void matmul_round(uint16_t *tile, const float (&d)[Kind::COLUMNS / 2], const uint16_t *bias, int group, int warp, int lane)
{
    const int row = group * 64 + warp * 16 + lane % 16, second = lane / 16;
#pragma unroll
    for (int j = 0; j < Kind::COLUMNS / 8; j += 2) {
        uint32_t r[4];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float *from = d + 4 * (j + half);
            float sums[4] = {from[0], from[1], from[2], from[3]};
            if (Kind::BIAS) {
                const uint32_t b = *(const uint32_t *)(bias + 8 * (j + half) + 2 * (lane % 4));
#pragma unroll
                for (int e = 0; e < 4; e++) sums[e] += e % 2 == 0 ? h3_low<Kind::HALF>(b) : h3_high<Kind::HALF>(b);
            }
            r[2 * half] = h3_pair<Kind::HALF>(sums[0], sums[1]);
            r[2 * half + 1] = h3_pair<Kind::HALF>(sums[2], sums[3]);
        }
        h3_store_matrices(tile + matmul_spot<Kind>(row, j + second), r);
    }
}

/* This warp does not read a place any more, which is filled by this block and by the other one of the pair. */
template <class Kind> H3_DEVICE void matmul_give_back(h3_barrier *empty, int lane)
{
    if (Kind::BLOCKS == 1) {
        if (lane == 0) h3_barrier_arrive(empty);
    } else if (lane < Kind::BLOCKS) {
        h3_barrier_arrive_at(empty, lane);
    }
}

template <class Kind> H3_DEVICE void matmul_multiply(matmul_memory<Kind> *m, const matmul &p, int group, int warp, int lane)
{
    constexpr int LEFT_STAGE = sizeof m->left[0] / 16, RIGHT_STAGE = sizeof m->right[0] / 16; /* in a descriptor */
    constexpr int LEFT_STEP = Kind::LEFT_ALONG ? H3_STEP_ALONG : H3_STEP_ACROSS, RIGHT_STEP = Kind::RIGHT_ALONG ? H3_STEP_ALONG : H3_STEP_ACROSS;
    const uint64_t left = h3_operand(m->left[0] + group * matmul::PANEL), right = h3_operand(m->right[0]);
    const int tiles = matmul_tiles<Kind>(p), depth = (int)p.depth;
    float d[Kind::COLUMNS / 2];
    int stage = 0, phase = 0, turn = 0, filled = 0;
    for (int t = (int)blockIdx.x; t < tiles; t += (int)gridDim.x, turn = (turn + 1) % Kind::BIASES, filled ^= 1) {
        int last = 0;
        h3_steps_keep(d);
        for (int k = 0; k < depth; k += matmul::DEPTH) {
            h3_barrier_wait(&m->full[stage], (unsigned)phase);
            h3_steps_begin();
#pragma unroll
            for (int i = 0; i < matmul::DEPTH / 16; i++)
                h3_step<Kind::HALF, Kind::COLUMNS, Kind::LEFT_ALONG, Kind::RIGHT_ALONG>(d, left + (uint64_t)(stage * LEFT_STAGE + i * LEFT_STEP),
                                                                          right + (uint64_t)(stage * RIGHT_STAGE + i * RIGHT_STEP), k > 0 || i > 0);
            h3_steps_close();
            h3_steps_wait<1>();
            if (k > 0) matmul_give_back<Kind>(&m->empty[last], lane);
            last = stage;
            stage = stage + 1 == Kind::STAGES ? 0 : stage + 1;
            phase ^= stage == 0;
        }
        h3_steps_wait<0>();
        h3_steps_keep(d);
        matmul_give_back<Kind>(&m->empty[last], lane);
        h3_barrier_wait(&m->taken, (unsigned)filled ^ 1u);
        if constexpr (Kind::TURNED) matmul_round_turned<Kind>(m->tile, d, group, warp, lane);
        else matmul_round<Kind>(m->tile, d, m->bias[turn], group, warp, lane);
        __syncwarp();
        if (lane == 0) h3_barrier_arrive(&m->filled);
    }
}

/* --- writing ---------------------------------------------------------------------------------------------------------- */

/* `write`: a Writer; called by three warps with a rounded tile, the first of its rows, how many of them there are (none, or below, of one that a pair lacks), and which tile of the others it is. */
template <class Kind, class Writer> H3_DEVICE void matmul_write(matmul_memory<Kind> *m, const matmul &p, const Writer &write, int warp, int lane)
{
    const int tiles = matmul_tiles<Kind>(p);
    int filled = 0;
    for (int t = (int)blockIdx.x; t < tiles; t += (int)gridDim.x, filled ^= 1) {
        const matmul_tile tile = matmul_tile_at<Kind>(p, t);
        const int64_t first = Kind::TURNED ? (int64_t)tile.column * Kind::COLUMNS : (int64_t)tile.row * matmul::ROWS, left = (Kind::TURNED ? p.columns : p.rows) - first;
        const int most = Kind::TURNED ? Kind::COLUMNS : matmul::ROWS;
        h3_barrier_wait(&m->filled, (unsigned)filled);
        write(m->tile, first, (int)(left < most ? left : most), Kind::TURNED ? tile.row : tile.column, warp, lane);
        __syncwarp();
        if (lane == 0) h3_barrier_arrive(&m->taken);
    }
}
#endif

template <class Kind, class Writer>
__global__ void __launch_bounds__(matmul::THREADS, 1) matmul_kernel(const __grid_constant__ CUtensorMap left, const __grid_constant__ CUtensorMap right, matmul p, Writer write)
{
#ifdef H3_HOPPER_CODE
    H3_SHARED_1024
    matmul_memory<Kind> *m = (matmul_memory<Kind> *)shared;
    const int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / matmul::GROUP, 0), lane = (int)threadIdx.x % matmul::WARP;
    const int warp = (int)threadIdx.x % matmul::GROUP / matmul::WARP;
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < Kind::STAGES; stage++) {
            h3_barrier_set(&m->full[stage], 1);
            h3_barrier_set(&m->empty[stage], matmul::MULTIPLIERS * Kind::BLOCKS);
        }
        h3_barrier_set(&m->filled, matmul::MULTIPLIERS);
        h3_barrier_set(&m->taken, matmul::WRITERS);
        h3_barriers_are_set();
    }
    if (Kind::BLOCKS == 1) __syncthreads();
    else h3_cluster_meet();
    if (group == 0) {
        h3_registers_fewer<matmul::WRITING>();
        if (warp > 0) matmul_write<Kind>(m, p, write, warp - 1, lane);
        else if (lane == 0) matmul_fetch<Kind>(m, &left, &right, p);
    } else {
        h3_registers_more<matmul::MULTIPLYING>();
        matmul_multiply<Kind>(m, p, group - 1, warp, lane);
    }
    if (Kind::BLOCKS > 1) h3_cluster_meet(); /* the other block still arrives at this one's barriers */
#else
    (void)sizeof(write(nullptr, 0, 0, 0, 0, 0), 0);
    __trap();
#endif
}

/* --- starting: host code ---------------------------------------------------------------------------------------------- */

/* Whether the operands can be read by boxes, and this GPU is one. */
template <class Kind> bool matmul_fits(const matmul &p)
{
    const uintptr_t places = (uintptr_t)p.left | (uintptr_t)p.right | (Kind::BIAS ? (uintptr_t)p.bias : 0);
    const int64_t limit = (int64_t)1 << 30, left_pitch = Kind::LEFT_ALONG ? p.rows : p.depth, right_pitch = Kind::RIGHT_ALONG ? p.columns : p.depth;
    if (places % 16 != 0 || left_pitch % 8 != 0 || right_pitch % 8 != 0) return false;
    if (p.rows < 1 || p.columns < 1 || p.depth < 1 || p.rows > limit || p.columns > limit || p.depth > limit) return false;
    return (p.rows + matmul::ROWS - 1) / matmul::ROWS * ((p.columns + Kind::COLUMNS - 1) / Kind::COLUMNS) <= limit && hopper_processors() > 0;
}

template <class Kind> int matmul_grid(const matmul &p)
{
    const int tiles = matmul_tiles<Kind>(p), most = hopper_processors() / Kind::BLOCKS * Kind::BLOCKS;
    return tiles < most ? tiles : most;
}

template <class Kind, class Writer> int matmul_launch(void *stream, const char *name, const matmul &p, const Writer &write)
{
    static_assert(sizeof(matmul_memory<Kind>) <= 227 * 1024, "shared memory of a multiprocessor");
    const dim3 grid((unsigned)matmul_grid<Kind>(p));
    CUtensorMap left, right;
    int code = Kind::LEFT_ALONG ? make_tensor_map(&left, p.left, p.depth, p.rows, 64) : make_tensor_map(&left, p.left, p.rows, p.depth, matmul::ROWS);
    if (code != cudaSuccess) return code;
    code = Kind::RIGHT_ALONG ? make_tensor_map(&right, p.right, p.depth, p.columns, 64) : make_tensor_map(&right, p.right, p.columns, p.depth, Kind::BOX);
    if (code != cudaSuccess) return code;
#ifdef H3_EMULATE
    (void)stream;
    h3_emulate(name, grid, matmul::THREADS, sizeof(matmul_memory<Kind>), [=] { matmul_kernel<Kind, Writer>(left, right, p, write); }, Kind::BLOCKS);
#else
    (void)name;
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = Kind::BLOCKS, cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid, config.blockDim = dim3(matmul::THREADS), config.dynamicSmemBytes = sizeof(matmul_memory<Kind>), config.stream = (cudaStream_t)stream;
    config.attrs = &cluster, config.numAttrs = Kind::BLOCKS > 1;
    code = (int)cudaFuncSetAttribute(matmul_kernel<Kind, Writer>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(matmul_memory<Kind>));
    if (code != cudaSuccess) return code;
    code = (int)cudaLaunchKernelEx(&config, matmul_kernel<Kind, Writer>, left, right, p, write);
    if (code != cudaSuccess) return code;
#endif
    return (int)cudaGetLastError();
}

/* Whether pairs of blocks take no more waves over the multiprocessors than blocks alone: they need an even number of row tiles. */
template <class Kind> bool matmul_pairs(const matmul &p)
{
    typedef typename Kind::paired paired;
    if (p.rows <= matmul::ROWS || hopper_processors() < 2) return false;
    const int64_t tiles = matmul_tiles<Kind>(p), grid = matmul_grid<Kind>(p), paired_tiles = matmul_tiles<paired>(p), paired_grid = matmul_grid<paired>(p);
    return (paired_tiles + paired_grid - 1) / paired_grid <= (tiles + grid - 1) / grid;
}

/* A product that fits, on `stream`; a cudaError_t. */
template <class Kind, class Writer> int matmul_start(void *stream, const char *name, const matmul &p, const Writer &write)
{
    return matmul_pairs<Kind>(p) ? matmul_launch<typename Kind::paired>(stream, name, p, write) : matmul_launch<Kind>(stream, name, p, write);
}

} // namespace

#endif
