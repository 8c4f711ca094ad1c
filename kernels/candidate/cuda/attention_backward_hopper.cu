/*
 * Attention's backward pass for heads of 128 on a Hopper GPU, by its copy engine and wgmma: the contract and the bits of attention_backward.cu.
 *
 * A part of the work is 128 rows of one head, which walk the other side's, 64 at a time: keys walk the queries (dk, dv), queries the keys (dq). A block stays for many parts of both
 * kinds: one thread fetches, also the next part while this one is written; two groups of four warps multiply, 64 own rows each. Per tile a group makes the scores and dP = do v^T of
 * its rows, P and dS in registers, and adds their products with the tile to its sums. It has steps of the tensor core under way while it computes, and the other group has more.
 */
#include "attend.cuh"
#include "gradient.cuh"
#include "tile.cuh"

namespace {

constexpr int DEPTH = 128, PANELS = DEPTH / 64, OWN = attend::QUERIES, WALKED = 64, STAGES = 4, WARPS = attend::WARPS;
constexpr int PANEL = 64 * 64;         /* elements: 64 rows */
constexpr int STATISTICS = 2 * WALKED; /* of 64 queries: lse log2(e), then delta, each in the order of statistic_spot */

struct gradient_work {
    const float *statistics; /* [items * heads][tiles of queries][STATISTICS] */
    uint16_t *dq, *dk, *dv;
    int queries, keys, heads;           /* heads: of an item */
    unsigned whole_keys, whole_queries; /* parts of OWN rows that a head has and somebody wants */
    unsigned ends[4];                   /* of the parts: whole ones of keys, which take longest, of queries; those with less rows, of keys, of queries */
    float octaves, alpha;
};

struct gradient_maps { /* boxes of 64 rows */
    CUtensorMap q, dout, k, v;
};

struct gradient_memory {
    uint16_t own[2][PANELS][attend::GROUPS][PANEL]; /* k and v, or q and dout */
    uint16_t walked[STAGES][2][PANELS][PANEL];      /* q and dout, or k and v */
    uint16_t out[OWN * DEPTH];
    float statistics[STAGES][STATISTICS]; /* of walked queries */
    h3_barrier own_there, own_done, there[2][STAGES], done[STAGES];
    attend_place places[WARPS]; /* where warps are; not in registers, of which there are few */
};
static_assert(sizeof(gradient_memory) <= 227 * 1024, "shared memory of a multiprocessor");

/* Where a tile's statistics keep its query `i`: the four queries of sixteen whose columns a lane holds lie together. */
__device__ __forceinline__ int statistic_spot(int i) { return i / 16 * 16 + i % 8 / 2 * 4 + i / 8 % 2 * 2 + i % 2; }

/*
 * Statistics of one (item, row, head), eight lanes each, row-major like q; rows behind the last one, to whole tiles, get lse = +inf, so P = +0, and delta = 0. A lane holds what
 * four lanes of the contract do, four times its own place and up, and their sums meet in the same order.
 */
__global__ void __launch_bounds__(H3_THREADS) statistics_kernel(h3_attention a, int64_t rows)
{
    const int64_t index = h3_thread() / 8;
    const int part = (int)threadIdx.x % 8;
    int64_t row, head, item;
    h3_divide(index, a.heads, &row, &head);
    h3_divide(row, rows, &item, &row);
    const bool inside = item < a.batch && row < a.queries;
    float sums[4] = {};
    if (inside) {
        const int64_t first = ((item * a.queries + row) * a.heads + head) * DEPTH + 8 * part;
        h3_lanes<8> dout[PANELS], out[PANELS];
#pragma unroll
        for (int i = 0; i < PANELS; i++) dout[i] = h3_load<8>(a.dout + first + 64 * i), out[i] = h3_load<8>(a.out + first + 64 * i);
#pragma unroll
        for (int i = 0; i < 8 * PANELS; i++) sums[i % 8 / 2] = fmaf(dout[i / 8].v[i % 8], out[i / 8].v[i % 8], sums[i % 8 / 2]);
    }
#pragma unroll
    for (int other = 4; other > 0; other /= 2) {
#pragma unroll
        for (int i = 0; i < 4; i++) sums[i] = sums[i] + __shfl_xor_sync(H3_FULL_WARP, sums[i], other);
    }
    if (part > 0 || item >= a.batch) return;
    float *tile = a.statistics + ((item * a.heads + head) * (rows / WALKED) + row / WALKED) * STATISTICS + statistic_spot((int)(row % WALKED));
    tile[0] = inside ? a.lse[(item * a.heads + head) * a.queries + row] * H3_LOG2_E : INFINITY;
    tile[WALKED] = (sums[0] + sums[2]) + (sums[1] + sums[3]);
}

__device__ __forceinline__ bool part_of_keys(const gradient_work &w, unsigned part) { return part < w.ends[0] || (part >= w.ends[1] && part < w.ends[2]); }

__device__ __forceinline__ attend_place place_of(const gradient_work &w, unsigned part)
{
    const bool of_keys = part_of_keys(w, part), whole = part < w.ends[1];
    const unsigned before = whole ? (of_keys ? 0 : w.ends[0]) : of_keys ? w.ends[1] : w.ends[2], most = of_keys ? w.whole_keys : w.whole_queries, tiles = whole ? most : 1;
    attend_place at;
    at.head = (part - before) / tiles;
    at.item = (int)(at.head / w.heads);
    at.column = (int)(at.head % w.heads) * DEPTH;
    at.first = (int)(whole ? (part - before) % tiles : most) * OWN;
    return at;
}

#ifdef H3_HOPPER_CODE
constexpr int TILE_BYTES = PANELS * PANEL * 2, PANEL_STEP = PANEL * 2 / 16, STAGE_STEP = 2 * TILE_BYTES / 16; /* steps: in a descriptor */
constexpr int FETCHING = 24, WORKING = 240;                                                                   /* registers a thread, of 168 that the launch gives */
static_assert(FETCHING + attend::GROUPS * WORKING <= 3 * 168, "registers of a multiprocessor");

H3_DEVICE int tiles_of(int rows) { return (rows + WALKED - 1) / WALKED; }

/* Of a part: how many rows it has, and how many tiles they walk. */
H3_DEVICE int part_rows(const gradient_work &w, unsigned part) { return part < w.ends[1] ? OWN : (part_of_keys(w, part) ? w.keys : w.queries) % OWN; }
H3_DEVICE int part_steps(const gradient_work &w, unsigned part) { return tiles_of(part_of_keys(w, part) ? w.queries : w.keys); }

/* --- fetching --------------------------------------------------------------------------------------------------------- */

H3_DEVICE void fetch_tile(uint16_t *to, int apart, const CUtensorMap *map, const attend_place &at, int row, h3_barrier *there)
{
    for (int i = 0; i < PANELS; i++) h3_load_box(to + i * apart, map, at.column + i * 64, row, at.item, there);
}

/*
 * Every part begins with place 0 of the walked tiles. Which phase of a place's barriers its first tile waits for is a bit of `phases`, and whether a part of the block is the second,
 * the fourth and so on the bit STAGES.
 */
H3_DEVICE unsigned phase_of(unsigned phases, int step) { return (phases >> step % STAGES ^ (unsigned)(step / STAGES)) & 1u; }
H3_DEVICE unsigned phases_after(unsigned phases, int steps)
{
    const unsigned all = (1u << STAGES) - 1;
    return phases ^ 1u << STAGES ^ (steps / STAGES % 2 ? all : 0) ^ ((1u << steps % STAGES) - 1);
}

/* A part's own rows, and the tiles that they walk. */
H3_DEVICE void fetch_part(gradient_memory *m, const gradient_maps &maps, const gradient_work &w, unsigned part, unsigned phases)
{
    const attend_place at = place_of(w, part);
    const bool of_keys = part_of_keys(w, part);
    const CUtensorMap *own = of_keys ? &maps.k : &maps.q, *other_own = of_keys ? &maps.v : &maps.dout;
    const CUtensorMap *walked = of_keys ? &maps.q : &maps.k, *other_walked = of_keys ? &maps.dout : &maps.v;
    const int steps = part_steps(w, part), groups = part_rows(w, part) > attend::GROUP_ROWS ? 2 : 1;
    const unsigned extra = of_keys ? STATISTICS * sizeof(float) : 0;
    const float *statistics = w.statistics + at.head * steps * STATISTICS; /* when the steps are tiles of queries */
    h3_barrier_wait(&m->own_done, (phases >> STAGES & 1u) ^ 1u);
    h3_barrier_expect(&m->own_there, 2 * TILE_BYTES * (unsigned)groups);
    for (int group = 0; group < groups; group++) {
        fetch_tile(m->own[0][0][group], attend::GROUPS * PANEL, own, at, at.first + group * 64, &m->own_there);
        fetch_tile(m->own[1][0][group], attend::GROUPS * PANEL, other_own, at, at.first + group * 64, &m->own_there);
    }
    for (int step = 0; step < steps; step++) {
        const int stage = step % STAGES;
        h3_barrier_wait(&m->done[stage], phase_of(phases, step) ^ 1u);
        h3_barrier_expect(&m->there[0][stage], TILE_BYTES + extra);
        fetch_tile(m->walked[stage][0][0], PANEL, walked, at, step * WALKED, &m->there[0][stage]);
        if (extra) h3_load_bytes(m->statistics[stage], statistics + (int64_t)step * STATISTICS, extra, &m->there[0][stage]);
        h3_barrier_expect(&m->there[1][stage], TILE_BYTES);
        fetch_tile(m->walked[stage][1][0], PANEL, other_walked, at, step * WALKED, &m->there[1][stage]);
    }
}

H3_DEVICE void fetch(gradient_memory *m, const gradient_maps &maps, const gradient_work &w)
{
    unsigned phases = 0;
    for (unsigned part = blockIdx.x; part < w.ends[3]; part += gridDim.x) {
        fetch_part(m, maps, w, part, phases);
        phases = phases_after(phases, part_steps(w, part));
    }
}

/* --- multiplying ------------------------------------------------------------------------------------------------------ */

/* Who walks with how many own rows of the block's part. */
struct gradient_walk {
    int group, warp, lane; /* warp: of the group */
    int rows;
    unsigned phases;
};

/* Until the first (the scores') or the second (dP's) of a tile is there. */
H3_DEVICE void wait_for_tile(gradient_memory *m, int which, int step, unsigned phases) { h3_barrier_wait(&m->there[which][step % STAGES], phase_of(phases, step)); }

template <class... A> H3_DEVICE void keep(A &...registers) { (h3_steps_keep(registers), ...); }

/* Starts d = own rows walked rows^T, own rows in shared memory, */
H3_DEVICE void start_dots(float (&d)[WALKED / 2], uint64_t own, uint64_t walked) { attend_start_dots<false, DEPTH, WALKED>(d, own, walked); }

/* or in registers. */
H3_DEVICE void start_dots(float (&d)[WALKED / 2], const uint32_t (&own)[DEPTH / 4], uint64_t walked)
{
    h3_steps_begin();
#pragma unroll
    for (int i = 0; i < DEPTH / 16; i++) h3_step_of_registers<false, WALKED, 0>(d, own, 4 * i, walked + (uint64_t)(i / 4 * PANEL_STEP + i % 4 * H3_STEP_ACROSS), i > 0);
    h3_steps_close();
}

H3_DEVICE void start_sums(float (&sums)[DEPTH / 2], const uint32_t (&weights)[WALKED / 4], uint64_t walked) { attend_start_sums<false, DEPTH, WALKED>(sums, weights, walked); }

/* Writes the warp's sixteen rows. */
H3_DEVICE void write_sums(uint16_t *to, gradient_memory *m, const gradient_work &w, const gradient_walk &walk, const float (&sums)[DEPTH / 2], float scale, int item_rows)
{
    const attend_place &at = m->places[walk.group * 4 + walk.warp];
    const int own = walk.group * attend::GROUP_ROWS + walk.warp * 16;
    const int64_t pitch = (int64_t)w.heads * DEPTH;
    const float scales[2] = {scale, scale};
    attend_write<false, DEPTH>(to + ((int64_t)at.item * item_rows + at.first) * pitch + at.column, pitch, m->out, sums, scales, walk.rows, own, walk.lane);
}

/* P of a tile of queries, in FP32 where the scores were and as registers of steps. */
H3_DEVICE void make_probabilities(float (&scores)[WALKED / 2], uint32_t (&p)[WALKED / 4], const float *statistics, float octaves, int lane)
{
#pragma unroll
    for (int i = 0; i < WALKED / 2; i += 8) {
        const float4 lse = *(const float4 *)(statistics + 2 * i + lane % 4 * 4);
#pragma unroll
        for (int e = 0; e < 8; e += 2) {
            scores[i + e] = probability(scores[i + e], octaves, e < 4 ? lse.x : lse.z);
            scores[i + e + 1] = probability(scores[i + e + 1], octaves, e < 4 ? lse.y : lse.w);
            p[(i + e) / 2] = h3_bf_pair(scores[i + e], scores[i + e + 1]);
        }
    }
}

/* dS of a tile of queries, from P. */
H3_DEVICE void make_gradients(const float (&p)[WALKED / 2], const float (&dp)[WALKED / 2], uint32_t (&ds)[WALKED / 4], const float *statistics, int lane)
{
#pragma unroll
    for (int i = 0; i < WALKED / 2; i += 8) {
        const float4 delta = *(const float4 *)(statistics + WALKED + 2 * i + lane % 4 * 4);
#pragma unroll
        for (int e = 0; e < 8; e += 2)
            ds[(i + e) / 2] = h3_bf_pair(score_gradient(p[i + e], dp[i + e], e < 4 ? delta.x : delta.z), score_gradient(p[i + e + 1], dp[i + e + 1], e < 4 ? delta.y : delta.w));
    }
}

/* What steps read: of the group's rows, and of the first stage, the first and the second of what lies there. */
struct gradient_operands {
    uint64_t own[2], walked[2];
};

H3_DEVICE gradient_operands operands_of(const gradient_memory *m, int group)
{
    return {{h3_operand(m->own[0][0][group]), h3_operand(m->own[1][0][group])}, {h3_operand(m->walked[0][0][0]), h3_operand(m->walked[0][1][0])}};
}

/* With P and dP there and no steps under way: starts the steps of dv and dk. */
H3_DEVICE void start_tile_sums(float (&dk)[DEPTH / 2], float (&dv)[DEPTH / 2], const float (&scores)[WALKED / 2], const float (&dp)[WALKED / 2], const uint32_t (&p)[WALKED / 4],
                               uint32_t (&ds)[WALKED / 4], gradient_memory *m, const gradient_operands &operands, int step, bool more, const gradient_walk &walk)
{
    const int stage = step % STAGES;
    uint32_t fresh[WALKED / 4];
    start_sums(dv, p, operands.walked[1] + (uint64_t)(stage * STAGE_STEP));
    if (more) wait_for_tile(m, 1, step + 1, walk.phases); /* here, since the assembler leaves all steps of dv before a barrier's loop */
    make_gradients(scores, dp, fresh, m->statistics[stage], walk.lane);
    h3_steps_define(ds, fresh);
    start_sums(dk, ds, operands.walked[0] + (uint64_t)(stage * STAGE_STEP));
}

/* dk and dv. */
H3_DEVICE void walk_queries(gradient_memory *m, const gradient_work &w, const gradient_walk &walk)
{
    const gradient_operands operands = operands_of(m, walk.group);
    const int lane = walk.lane, steps = tiles_of(w.queries);
    int step = 0;
    float dk[DEPTH / 2] = {}, dv[DEPTH / 2] = {}, scores[WALKED / 2], dp[WALKED / 2];
    uint32_t p[WALKED / 4], ds[WALKED / 4];
    h3_barrier_wait(&m->own_there, walk.phases >> STAGES & 1u);
    wait_for_tile(m, 0, 0, walk.phases);
    start_dots(scores, operands.own[0], operands.walked[0]);
    wait_for_tile(m, 1, 0, walk.phases);
    start_dots(dp, operands.own[1], operands.walked[1]);
    h3_steps_wait<0>();
    keep(scores, dp);
    make_probabilities(scores, p, m->statistics[0], w.octaves, lane);
    if (steps > 1) wait_for_tile(m, 0, 1, walk.phases);
    for (; step + 1 < steps; step++) {
        const int stage = step % STAGES, next = (step + 1) % STAGES;
        h3_steps_keep(p);
        start_tile_sums(dk, dv, scores, dp, p, ds, m, operands, step, true, walk);
        start_dots(scores, operands.own[0], operands.walked[0] + (uint64_t)(next * STAGE_STEP));
        __syncwarp(); /* all lanes have read their statistics */
        h3_steps_wait<1>(); /* only the next scores are on their way */
        keep(dv, dk, p, ds);
        if (lane == 0) h3_barrier_arrive(&m->done[stage]);
        start_dots(dp, operands.own[1], operands.walked[1] + (uint64_t)(next * STAGE_STEP));
        h3_steps_wait<1>();
        h3_steps_keep(scores);
        make_probabilities(scores, p, m->statistics[next], w.octaves, lane);
        h3_steps_keep(p); /* all of it while dP is multiplied; and a barrier's loop before the wait, as in attend_rows */
        if (step + 2 < steps) wait_for_tile(m, 0, step + 2, walk.phases);
        h3_steps_wait<0>(); /* steps under way from one turn of a loop to the next the assembler puts after each other */
        h3_steps_keep(dp);
    }
    if (lane == 0) h3_barrier_arrive(&m->own_done);
    start_tile_sums(dk, dv, scores, dp, p, ds, m, operands, step, false, walk);
    __syncwarp();
    h3_steps_wait<0>();
    keep(dv, dk, p, ds);
    if (lane == 0) h3_barrier_arrive(&m->done[step % STAGES]);
    if (w.dk) write_sums(w.dk, m, w, walk, dk, w.alpha, w.keys);
    if (w.dv) write_sums(w.dv, m, w, walk, dv, 1.0f, w.keys);
}

/* dS of a tile of keys, the last one or another; lse and delta of both rows of a lane. */
H3_DEVICE void make_row_gradients(float (&scores)[WALKED / 2], const float (&dp)[WALKED / 2], uint32_t (&ds)[WALKED / 4], const float (&lse)[2], const float (&delta)[2], const gradient_work &w,
                                  bool last, int lane)
{
    if (last && w.keys % WALKED != 0) attend_mask(scores, w.keys % WALKED, lane);
#pragma unroll
    for (int i = 0; i < WALKED / 2; i += 2) {
        const int half = i % 4 / 2;
        ds[i / 2] = h3_bf_pair(score_gradient(probability(scores[i], w.octaves, lse[half]), dp[i], delta[half]), score_gradient(probability(scores[i + 1], w.octaves, lse[half]), dp[i + 1], delta[half]));
    }
}

/* The warp's sixteen own rows as registers of steps. */
H3_DEVICE void load_own(uint32_t (&to)[DEPTH / 4], const uint16_t (*panels)[attend::GROUPS][PANEL], const gradient_walk &walk)
{
#pragma unroll
    for (int i = 0; i < DEPTH / 16; i++) {
        uint32_t a[4];
        h3_load_left<8>(a, panels[i / 4][walk.group], walk.warp * 16, i % 4, walk.lane);
#pragma unroll
        for (int e = 0; e < 4; e++) to[4 * i + e] = a[e];
    }
}

/* dq. */
H3_DEVICE void walk_keys(gradient_memory *m, const gradient_work &w, const gradient_walk &walk)
{
    const gradient_operands operands = operands_of(m, walk.group);
    const attend_place &at = m->places[walk.group * 4 + walk.warp];
    const float *statistics = w.statistics + (at.head * tiles_of(w.queries) + at.first / WALKED + walk.group) * STATISTICS;
    const int lane = walk.lane, steps = tiles_of(w.keys);
    int step = 0;
    float dq[DEPTH / 2] = {}, scores[WALKED / 2], dp[WALKED / 2], lse[2], delta[2];
    uint32_t query[DEPTH / 4], dout[DEPTH / 4], ds[WALKED / 4];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int spot = statistic_spot(walk.warp * 16 + lane / 4 + half * 8);
        lse[half] = statistics[spot];
        delta[half] = statistics[WALKED + spot];
    }
    h3_barrier_wait(&m->own_there, walk.phases >> STAGES & 1u);
    load_own(query, m->own[0], walk);
    load_own(dout, m->own[1], walk);
    __syncwarp();
    if (lane == 0) h3_barrier_arrive(&m->own_done);
    wait_for_tile(m, 0, 0, walk.phases);
    start_dots(scores, query, operands.walked[0]);
    wait_for_tile(m, 1, 0, walk.phases);
    start_dots(dp, dout, operands.walked[1]);
    h3_steps_wait<0>();
    keep(scores, dp);
    make_row_gradients(scores, dp, ds, lse, delta, w, steps == 1, lane);
    if (steps > 1) wait_for_tile(m, 0, 1, walk.phases);
    for (; step + 1 < steps; step++) {
        const int stage = step % STAGES, next = (step + 1) % STAGES;
        uint32_t fresh[WALKED / 4];
        h3_steps_keep(ds); /* what the steps below read is there before the first of them */
        start_dots(scores, query, operands.walked[0] + (uint64_t)(next * STAGE_STEP));
        wait_for_tile(m, 1, step + 1, walk.phases);
        start_dots(dp, dout, operands.walked[1] + (uint64_t)(next * STAGE_STEP));
        start_sums(dq, ds, operands.walked[0] + (uint64_t)(stage * STAGE_STEP));
        h3_steps_wait<1>(); /* the next scores and dP are there, dq on its way */
        keep(scores, dp);
        make_row_gradients(scores, dp, fresh, lse, delta, w, step + 2 == steps, lane);
        h3_steps_keep(fresh); /* all of it while dq is multiplied; and a barrier's loop before the wait, as in attend_rows */
        if (step + 2 < steps) wait_for_tile(m, 0, step + 2, walk.phases);
        h3_steps_wait<0>();
        keep(dq, ds);
        if (lane == 0) h3_barrier_arrive(&m->done[stage]);
        h3_steps_define(ds, fresh);
    }
    start_sums(dq, ds, operands.walked[0] + (uint64_t)(step % STAGES * STAGE_STEP));
    h3_steps_wait<0>();
    keep(dq, ds);
    if (lane == 0) h3_barrier_arrive(&m->done[step % STAGES]);
    write_sums(w.dq, m, w, walk, dq, w.alpha, w.queries);
}

/* A group without rows lets the tiles pass; all its lanes, or the assembler no longer sees that those of the other walks are at the same step. */
H3_DEVICE void walk_nothing(gradient_memory *m, const gradient_walk &walk, int steps)
{
    h3_barrier_wait(&m->own_there, walk.phases >> STAGES & 1u);
    if (walk.lane == 0) h3_barrier_arrive(&m->own_done);
    for (int step = 0; step < steps; step++) {
        wait_for_tile(m, 0, step, walk.phases);
        if (walk.lane == 0) h3_barrier_arrive(&m->done[step % STAGES]);
    }
}

H3_DEVICE void multiply(gradient_memory *m, const gradient_work &w, int group, int warp, int lane)
{
    gradient_walk walk = {group, warp, lane, 0, 0};
    for (unsigned part = blockIdx.x; part < w.ends[3]; part += gridDim.x) {
        __syncwarp();
        if (lane == 0) m->places[group * 4 + warp] = place_of(w, part);
        __syncwarp();
        walk.rows = part_rows(w, part);
        if (walk.rows <= group * attend::GROUP_ROWS) walk_nothing(m, walk, part_steps(w, part));
        else if (part_of_keys(w, part)) walk_queries(m, w, walk);
        else walk_keys(m, w, walk);
        walk.phases = phases_after(walk.phases, part_steps(w, part));
    }
}
#endif

__global__ void __launch_bounds__(attend::THREADS, 1) attention_gradient_kernel(const __grid_constant__ gradient_maps maps, gradient_work w)
{
#ifdef H3_HOPPER_CODE
    H3_SHARED_1024
    gradient_memory *m = (gradient_memory *)shared;
    const int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / attend::GROUP_THREADS, 0), warp = (int)threadIdx.x % attend::GROUP_THREADS / 32, lane = (int)threadIdx.x % 32;
    if (threadIdx.x == 0) {
        h3_barrier_set(&m->own_there, 1);
        h3_barrier_set(&m->own_done, WARPS);
        for (int stage = 0; stage < STAGES; stage++) {
            h3_barrier_set(&m->there[0][stage], 1);
            h3_barrier_set(&m->there[1][stage], 1);
            h3_barrier_set(&m->done[stage], WARPS);
        }
        h3_barriers_are_set();
    }
    __syncthreads();
    if (group == 0) {
        h3_registers_fewer<FETCHING>();
        if (threadIdx.x == 0) fetch(m, maps, w);
    } else {
        h3_registers_more<WORKING>();
        multiply(m, w, group - 1, warp, lane);
    }
#else
    if (place_of(w, 0).first >= 0) __trap();
#endif
}

gradient_work work_of(const h3_attention &a)
{
    const unsigned heads = (unsigned)(a.batch * a.heads), keys = a.dk || a.dv ? (unsigned)a.keys : 0, queries = a.dq ? (unsigned)a.queries : 0;
    gradient_work w = {};
    w.statistics = a.statistics, w.dq = a.dq, w.dk = a.dk, w.dv = a.dv;
    w.heads = (int)a.heads, w.queries = (int)a.queries, w.keys = (int)a.keys;
    w.alpha = a.alpha, w.octaves = a.alpha * H3_LOG2_E;
    w.whole_keys = keys / OWN, w.whole_queries = queries / OWN;
    const unsigned parts[] = {w.whole_keys, w.whole_queries, keys % OWN > 0, queries % OWN > 0};
    for (int i = 0; i < 4; i++) w.ends[i] = heads * parts[i] + (i > 0 ? w.ends[i - 1] : 0);
    return w;
}

int make_maps(gradient_maps *maps, const h3_attention &a)
{
    const int64_t width = a.heads * DEPTH;
    int code = make_tensor_maps(&maps->q, a.q, a.batch, a.queries, width, width, 64, 3);
    if (code == cudaSuccess) code = make_tensor_maps(&maps->dout, a.dout, a.batch, a.queries, width, width, 64, 3);
    if (code == cudaSuccess) code = make_tensor_maps(&maps->k, a.k, a.batch, a.keys, width, width, 64, 3);
    return code == cudaSuccess ? make_tensor_maps(&maps->v, a.v, a.batch, a.keys, width, width, 64, 3) : code;
}

} // namespace

extern "C" bool h3_attention_hopper_backward_fits(const h3_attention *a)
{
    const int64_t limit = (int64_t)1 << 30;
    const void *const memory[] = {a->q, a->k, a->v, a->out, a->dout, a->dq, a->dk, a->dv};
    if (!h3_hopper_is_wanted() || a->head_dim != DEPTH || a->heads > limit / DEPTH || a->queries > limit || a->keys > limit) return false;
    for (const void *area : memory)
        if (!h3_aligned(area, 16)) return false;
    return a->batch <= limit / a->heads && a->batch * a->heads <= limit / (2 * h3_groups(a->queries > a->keys ? a->queries : a->keys, OWN)) && hopper_processors() > 0;
}

extern "C" int h3_attention_hopper_run_backward(h3_call *call, const h3_attention *a)
{
    static const char name[] = "attention_gradient_wgmma";
    const int64_t rows = h3_groups(a->queries, WALKED) * WALKED;
    const unsigned most = (unsigned)hopper_processors();
    const gradient_work w = work_of(*a);
    gradient_maps maps;
    if (h3_launch(call, "attention_statistics", statistics_kernel, h3_grid(a->batch * a->heads * rows * 8), H3_THREADS, 0, *a, rows)) return 1;
    if (h3_cuda_status(call, name, (cudaError_t)make_maps(&maps, *a))) return 1;
    return h3_launch(call, name, attention_gradient_kernel, dim3(w.ends[3] < most ? w.ends[3] : most), attend::THREADS, sizeof(gradient_memory), maps, w);
}
