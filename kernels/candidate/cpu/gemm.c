/*
 * Products, contract gemm-f32-kasc-fma-v1: every result is one FP32 accumulator that starts at 0 and takes
 * fma(left, right, accumulator) over the contraction index in ascending order; the bias is added last, then one
 * rounding to BF16. The contraction of a linear node's output and input gradient is over features, that of its
 * weight gradient over packed rows.
 *
 * Both sides are widened to float and packed once into the workspace, a chunk of rows and columns at a time; tiles of
 * the result are then computed independently. A long contraction is walked in steps that fit the first cache: the
 * accumulators rest in memory between the steps, as floats, so they continue the very same chain.
 */
#include <omp.h>

#include "common.h"
#include "vector.h"

#define ROW_CHUNK INT64_C(480)     /* rows packed at a time, a multiple of H3_BLOCK */
#define COLUMN_CHUNK INT64_C(1024) /* columns packed at a time, a multiple of H3_PANEL */
#define DEPTH_STEP INT64_C(256)    /* a panel of this many steps is 16 KiB */
#define TILE_ROWS INT64_C(96)      /* a multiple of H3_BLOCK */
#define TILE_COLUMNS INT64_C(64)   /* a multiple of H3_PANEL */
#define TILE (H3_BLOCK * H3_PANEL)

/* One chunk of the result: packed operands and where the chunk lies. */
typedef struct chunk {
    const h3_gemm *gemm;
    int64_t row, rows, column, columns;
    float *left;  /* rows widened: [rows][left_step]; or, left_along, blocks [k][6] of left_step floats */
    float *right; /* panels [k][16] */
    int64_t left_step;
} chunk;

/* Distance between widened rows: padded, so that the six rows of a block do not fall into one cache set. */
static int64_t row_distance(int64_t depth) { return h3_round_up(depth, 8) + 8; }

static int64_t left_floats(int64_t rows, int64_t depth)
{
    return h3_round_up(h3_smaller(rows, ROW_CHUNK), H3_BLOCK) * row_distance(depth);
}

static int64_t right_floats(int64_t columns, int64_t depth)
{
    return h3_round_up(h3_smaller(columns, COLUMN_CHUNK), H3_PANEL) * depth;
}

size_t h3_gemm_workspace(int64_t rows, int64_t columns, int64_t depth)
{
    return (size_t)(h3_float_bytes(left_floats(rows, depth)) + h3_float_bytes(right_floats(columns, depth)));
}

/* block[k * 6 + r] = from[k * step + r], r < 6. Stores eight floats where there is room: the next step overwrites two. */
static void pack_block_along(float *block, const uint16_t *from, int64_t step, int64_t columns, int64_t depth)
{
    for (int64_t k = 0; k < depth; k++) {
        const uint16_t *row = from + k * step;
        if (columns >= 8) {
            _mm256_storeu_ps(block + k * H3_BLOCK, h3_load8(row, 8));
        } else {
            for (int64_t r = 0; r < h3_smaller(columns, H3_BLOCK); r++) block[k * H3_BLOCK + r] = h3_bf16_to_f32(row[r]);
        }
    }
}

static void pack_left(chunk *c)
{
    const h3_gemm *g = c->gemm;
    const int64_t blocks = h3_round_up(c->rows, H3_BLOCK) / H3_BLOCK;
#pragma omp for schedule(static)
    for (int64_t b = 0; b < blocks; b++) {
        const int64_t first = b * H3_BLOCK, row = c->row + first;
        if (g->left_along) {
            pack_block_along(c->left + b * c->left_step, g->left + row, g->rows, g->rows - row, g->depth);
        } else {
            h3_widen_rows(c->left + first * c->left_step, c->left_step, g->left + row * g->depth, g->depth,
                          h3_smaller(H3_BLOCK, c->rows - first), g->depth);
        }
    }
}

static void pack_right(chunk *c)
{
    const h3_gemm *g = c->gemm;
    const int64_t panels = h3_round_up(c->columns, H3_PANEL) / H3_PANEL;
#pragma omp for schedule(static)
    for (int64_t p = 0; p < panels; p++) {
        float *panel = c->right + p * H3_PANEL * g->depth;
        const int64_t column = c->column + p * H3_PANEL;
        const int64_t width = h3_smaller(H3_PANEL, c->column + c->columns - column);
        if (g->right_along) {
            h3_pack_along(panel, g->right + column, g->columns, width, g->depth);
        } else {
            h3_pack_across(panel, g->right + column * g->depth, g->depth, width, g->depth);
        }
    }
}

/* Adds the bias, rounds and stores one 6 x 16 block of accumulators. */
static void finish_block(const h3_gemm *g, const float *block, int64_t row, int64_t rows, int64_t column, int64_t columns)
{
    for (int64_t c = 0; c < columns; c += 8) {
        const int64_t width = h3_smaller(8, columns - c);
        const __m256 bias = g->bias ? h3_load8(g->bias + column + c, width) : _mm256_setzero_ps();
        for (int64_t r = 0; r < rows; r++) {
            __m256 sum = _mm256_loadu_ps(block + r * H3_PANEL + c);
            if (g->bias) sum = _mm256_add_ps(sum, bias);
            h3_store8(g->out + (row + r) * g->columns + column + c, sum, width);
        }
    }
}

/* Results [row, row + rows) x [column, column + columns) of the chunk. */
static void run_tile(const chunk *c, int64_t row, int64_t rows, int64_t column, int64_t columns)
{
    _Alignas(64) float sums[TILE_ROWS * TILE_COLUMNS];
    const h3_gemm *g = c->gemm;
    const int64_t row_step = g->left_along ? 1 : c->left_step, depth_step = g->left_along ? H3_BLOCK : 1;
    int64_t k = 0;
    do {
        const int64_t steps = h3_smaller(DEPTH_STEP, g->depth - k);
        float *block = sums;
        for (int64_t n = column; n < column + columns; n += H3_PANEL) {
            const float *panel = c->right + n * g->depth + k * H3_PANEL;
            for (int64_t m = row; m < row + rows; m += H3_BLOCK, block += TILE) {
                const float *left = c->left + (g->left_along ? m / H3_BLOCK : m) * c->left_step + k * depth_step;
                h3_micro(h3_smaller(H3_BLOCK, row + rows - m), steps, left, row_step, depth_step, panel, block, H3_PANEL, k > 0);
            }
        }
        k += steps;
    } while (k < g->depth);
    const float *block = sums;
    for (int64_t n = column; n < column + columns; n += H3_PANEL) {
        for (int64_t m = row; m < row + rows; m += H3_BLOCK, block += TILE) {
            finish_block(g, block, c->row + m, h3_smaller(H3_BLOCK, row + rows - m), c->column + n,
                         h3_smaller(H3_PANEL, column + columns - n));
        }
    }
}

/* Narrower tiles when there are too few of them to keep the threads busy. */
static int64_t tile_width(const chunk *c, int64_t threads)
{
    int64_t width = TILE_COLUMNS;
    const int64_t down = (c->rows + TILE_ROWS - 1) / TILE_ROWS;
    while (threads > 1 && width > H3_PANEL && down * ((c->columns + width - 1) / width) < 4 * threads) width /= 2;
    return width;
}

static void run_chunk(const chunk *c)
{
    const int64_t width = tile_width(c, omp_get_num_threads());
    const int64_t down = (c->rows + TILE_ROWS - 1) / TILE_ROWS, across = (c->columns + width - 1) / width;
#pragma omp for schedule(static)
    for (int64_t t = 0; t < down * across; t++) {
        const int64_t row = t % down * TILE_ROWS, column = t / down * width;
        run_tile(c, row, h3_smaller(TILE_ROWS, c->rows - row), column, h3_smaller(width, c->columns - column));
    }
}

void h3_gemm_run(const h3_gemm *g, void *workspace)
{
    char *area = workspace;
    float *left = h3_take(&area, left_floats(g->rows, g->depth));
    float *right = h3_take(&area, right_floats(g->columns, g->depth));
    const int64_t left_step = g->left_along ? H3_BLOCK * row_distance(g->depth) : row_distance(g->depth);
#pragma omp parallel if (g->rows * g->columns * g->depth > H3_PARALLEL_PRODUCTS)
    for (int64_t column = 0; column < g->columns; column += COLUMN_CHUNK) {
        for (int64_t row = 0; row < g->rows; row += ROW_CHUNK) {
            chunk c = {.gemm = g, .row = row, .column = column, .left = left, .right = right, .left_step = left_step};
            c.rows = h3_smaller(ROW_CHUNK, g->rows - row);
            c.columns = h3_smaller(COLUMN_CHUNK, g->columns - column);
            pack_left(&c);
            if (row == 0) pack_right(&c);
            run_chunk(&c);
        }
    }
}
