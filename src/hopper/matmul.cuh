/*
 * out = x weight^T + bias for halves on a Hopper GPU, with whatever a writer makes of a finished tile on its way out.
 *
 * x [rows][channels], weight [columns][channels], bias [columns]; channels a multiple of 64, columns of 256. A tile is 128 rows by 256 columns. Every sum is one FP32
 * accumulator over ascending k16 steps of the tensor core (contract gemm-tc-k16-ascending-v1, src/qualify/tensor_core.c), then + bias in FP32, then one rounding:
 * the bits of a result depend on its row and its column alone, not on tiles, stages or the grid.
 *
 * A block stays for many tiles. Its twelve warps are three groups: two multiply 64 rows each, and round what they have into a tile of shared memory. Of the first group one
 * thread fetches 64 channels of 128 rows and 256 columns at a time into STAGES places, and three warps take the rounded tile, while the next one is multiplied.
 */
#ifndef H3_HOPPER_MATMUL_CUH
#define H3_HOPPER_MATMUL_CUH

#include "hopper.cuh"

namespace {

struct matmul {
    static constexpr int ROWS = 128, COLUMNS = 256, DEPTH = 64, STAGES = 3, BIASES = STAGES + 1; /* a tile has at least one stage: so far ahead may the fetching thread be */
    static constexpr int THREADS = 384, GROUP = 128, WARP = 32, ROWS_TOGETHER = 16;                        /* tiles of so many rows of tiles are neighbours in time */
    static constexpr int MULTIPLIERS = 8, WRITERS = 3;                                          /* warps */
    static constexpr int MULTIPLYING = 200, WRITING = 104;                                      /* registers a thread, of 168 that the launch gives */
    static_assert(2 * MULTIPLYING + WRITING <= 3 * 168, "registers of a multiprocessor");

    int64_t rows;
    int channels, columns;
    int second; /* rows of the weight from the first 128 columns of a tile to its other 128 */
    int step;   /* rows of the weight from one tile to the next */
    const uint16_t *bias;
};

/* Shared memory of a block. */
struct matmul_memory {
    uint16_t x[matmul::STAGES][matmul::ROWS * matmul::DEPTH], weight[matmul::STAGES][matmul::COLUMNS * matmul::DEPTH];
    uint16_t tile[matmul::ROWS * matmul::COLUMNS]; /* matmul_spot */
    uint16_t bias[matmul::BIASES][matmul::COLUMNS];
    h3_barrier full[matmul::STAGES], empty[matmul::STAGES], filled, taken; /* of the stages; of the tile */
};
static_assert(sizeof(matmul_memory) <= 227 * 1024, "shared memory of a multiprocessor");

/* Where the 8 columns `piece` of a tile's row lie: turned, so that eight rows do not share banks. */
H3_DEVICE int matmul_spot(int row, int piece) { return row * matmul::COLUMNS + (piece ^ (row & 7)) * 8; }

/* Which tile comes as the t-th. */
struct matmul_tile {
    int row, column; /* in tiles */
};

__host__ H3_DEVICE int matmul_row_tiles(const matmul &p) { return (int)((p.rows + matmul::ROWS - 1) / matmul::ROWS); }
__host__ H3_DEVICE int matmul_tiles(const matmul &p) { return matmul_row_tiles(p) * (p.columns / matmul::COLUMNS); }

H3_DEVICE matmul_tile matmul_tile_at(const matmul &p, int t)
{
    const int all = matmul_row_tiles(p), together = matmul::ROWS_TOGETHER * (p.columns / matmul::COLUMNS), first = t / together * matmul::ROWS_TOGETHER;
    const int count = all - first < matmul::ROWS_TOGETHER ? all - first : matmul::ROWS_TOGETHER;
    const matmul_tile tile = {first + t % together % count, t % together / count};
    return tile;
}

#ifdef H3_HOPPER_CODE
/* --- fetching --------------------------------------------------------------------------------------------------------- */

H3_DEVICE void matmul_fetch(matmul_memory *m, const CUtensorMap *x, const CUtensorMap *weight, const matmul &p)
{
    constexpr unsigned STAGE = (unsigned)(sizeof m->x[0] + sizeof m->weight[0]), BIAS = (unsigned)sizeof m->bias[0];
    int stage = 0, phase = 0, turn = 0;
    for (int t = (int)blockIdx.x; t < matmul_tiles(p); t += (int)gridDim.x, turn = (turn + 1) % matmul::BIASES) {
        const matmul_tile tile = matmul_tile_at(p, t);
        const int row = tile.row * matmul::ROWS, column = tile.column * p.step;
        for (int k = 0; k < p.channels; k += matmul::DEPTH) {
            h3_barrier *full = &m->full[stage];
            h3_barrier_wait(&m->empty[stage], (unsigned)phase ^ 1u);
            h3_barrier_expect(full, k == 0 ? STAGE + BIAS : STAGE);
            h3_load_box(m->x[stage], x, k, row, full);
            h3_load_box(m->weight[stage], weight, k, column, full);
            h3_load_box(m->weight[stage] + matmul::COLUMNS / 2 * matmul::DEPTH, weight, k, column + p.second, full);
            if (k == 0) {
                h3_load_bytes(m->bias[turn], p.bias + column, BIAS / 2, full);
                h3_load_bytes(m->bias[turn] + matmul::COLUMNS / 2, p.bias + column + p.second, BIAS / 2, full);
            }
            stage = stage + 1 == matmul::STAGES ? 0 : stage + 1;
            phase ^= stage == 0;
        }
    }
}

/* --- multiplying ------------------------------------------------------------------------------------------------------ */

/* The group's 64 rows, with the bias and rounded, to their places in the tile. */
H3_DEVICE void matmul_round(uint16_t *tile, const float (&d)[128], const uint16_t *bias, int group, int warp, int lane)
{
    const int row = group * 64 + warp * 16 + lane % 16, second = lane / 16;
#pragma unroll
    for (int j = 0; j < 32; j += 2) {
        uint32_t r[4];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint32_t b = *(const uint32_t *)(bias + 8 * (j + half) + 2 * (lane % 4));
            const float low = h3_half_low(b), high = h3_half_high(b);
            const float *from = d + 4 * (j + half);
            r[2 * half] = h3_half_pair(__fadd_rn(from[0], low), __fadd_rn(from[1], high));
            r[2 * half + 1] = h3_half_pair(__fadd_rn(from[2], low), __fadd_rn(from[3], high));
        }
        h3_store_matrices(tile + matmul_spot(row, j + second), r);
    }
}

H3_DEVICE void matmul_multiply(matmul_memory *m, const matmul &p, int group, int warp, int lane)
{
    const uint64_t x = h3_operand(m->x[0] + group * 64 * matmul::DEPTH), weight = h3_operand(m->weight[0]);
    constexpr int X_STAGE = sizeof m->x[0] / 16, WEIGHT_STAGE = sizeof m->weight[0] / 16;
    float d[128];
    int stage = 0, phase = 0, turn = 0, filled = 0;
    for (int t = (int)blockIdx.x; t < matmul_tiles(p); t += (int)gridDim.x, turn = (turn + 1) % matmul::BIASES, filled ^= 1) {
        int last = 0;
        h3_steps_keep(d);
        for (int k = 0; k < p.channels; k += matmul::DEPTH) {
            h3_barrier_wait(&m->full[stage], (unsigned)phase);
            h3_steps_begin();
#pragma unroll
            for (int step = 0; step < matmul::DEPTH / 16; step++)
                h3_step_half(d, x + (uint64_t)(stage * X_STAGE + 2 * step), weight + (uint64_t)(stage * WEIGHT_STAGE + 2 * step), k > 0 || step > 0);
            h3_steps_close();
            h3_steps_wait<1>();
            if (k > 0 && lane == 0) h3_barrier_arrive(&m->empty[last]);
            last = stage;
            stage = stage + 1 == matmul::STAGES ? 0 : stage + 1;
            phase ^= stage == 0;
        }
        h3_steps_wait<0>();
        h3_steps_keep(d);
        if (lane == 0) h3_barrier_arrive(&m->empty[last]);
        h3_barrier_wait(&m->taken, (unsigned)filled ^ 1u);
        matmul_round(m->tile, d, m->bias[turn], group, warp, lane);
        __syncwarp();
        if (lane == 0) h3_barrier_arrive(&m->filled);
    }
}

/* --- writing ---------------------------------------------------------------------------------------------------------- */

/* `write`: a Writer; called by three warps with a tile, how many of its rows there are, and its place. */
template <class Writer> H3_DEVICE void matmul_write(matmul_memory *m, const matmul &p, const Writer &write, int warp, int lane)
{
    int filled = 0;
    for (int t = (int)blockIdx.x; t < matmul_tiles(p); t += (int)gridDim.x, filled ^= 1) {
        const matmul_tile tile = matmul_tile_at(p, t);
        const int64_t row = (int64_t)tile.row * matmul::ROWS;
        h3_barrier_wait(&m->filled, (unsigned)filled);
        write(m->tile, row, (int)(p.rows - row < matmul::ROWS ? p.rows - row : matmul::ROWS), tile.column, warp, lane);
        __syncwarp();
        if (lane == 0) h3_barrier_arrive(&m->taken);
    }
}
#endif

template <class Writer>
__global__ void __launch_bounds__(matmul::THREADS, 1) matmul_kernel(const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap weight, matmul p, Writer write)
{
#ifdef H3_HOPPER_CODE
    H3_SHARED_1024
    matmul_memory *m = (matmul_memory *)shared;
    const int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / matmul::GROUP, 0), warp = (int)threadIdx.x % matmul::GROUP / matmul::WARP, lane = (int)threadIdx.x % matmul::WARP;
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < matmul::STAGES; stage++) {
            h3_barrier_set(&m->full[stage], 1);
            h3_barrier_set(&m->empty[stage], matmul::MULTIPLIERS);
        }
        h3_barrier_set(&m->filled, matmul::MULTIPLIERS);
        h3_barrier_set(&m->taken, matmul::WRITERS);
        h3_barriers_are_set();
    }
    __syncthreads();
    if (group == 0) {
        h3_registers_fewer<matmul::WRITING>();
        if (warp > 0) matmul_write(m, p, write, warp - 1, lane);
        else if (lane == 0) matmul_fetch(m, &x, &weight, p);
    } else {
        h3_registers_more<matmul::MULTIPLYING>();
        matmul_multiply(m, p, group - 1, warp, lane);
    }
#else
    (void)sizeof(write(nullptr, 0, 0, 0, 0, 0), 0);
    __trap();
#endif
}

} // namespace

#endif
