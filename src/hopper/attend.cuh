/*
 * out = softmax(q k^T) v for every head, full, on a Hopper GPU; how scores become probabilities is the Kind's affair, and with it the order of those sums.
 *
 * A part of the work is 128 queries of one head, which walk the keys and values, a tile of Kind::KEYS at a time. A block stays for many parts: one thread fetches a part's queries and
 * tiles, these into Kind::STAGES places, and goes on with the next part while this one is finished and written. Two groups of four warps work on 64 queries each: while the tensor
 * cores multiply the probabilities of one tile with its values, the group turns the next tile's scores into probabilities. Scores and sums are chains of k16 steps of the tensor
 * core, channels and keys ascending, in FP32; what was summed is multiplied by the Kind's turn after one tile and before the next.
 *
 * A Kind has
 *   HALF, DEPTH (64 or 128), KEYS (64, or where DEPTH is 64 96), STAGES
 *   state            what a lane keeps of its rows lane / 4 and that + 8: Kind::begin(state), Kind::keep(state) (h3_steps_keep of what it sums)
 *   update(state, scores, weights, turn, octaves)   the tile's scores to probabilities as a lane holds them, and for both rows what older sums are multiplied by
 *   finish(work, state, turn, head, first, lane)    after the last tile, in turn: for both rows what the sums are multiplied by at last; first: the lane's first row
 */
#ifndef H3_HOPPER_ATTEND_CUH
#define H3_HOPPER_ATTEND_CUH

#include <math.h>

#include "hopper.cuh"
#include "tensor_map.cuh"

namespace {

/* [items][queries or keys][heads][DEPTH]; from row to row of q, k and v `pitch` elements, of out heads * DEPTH. */
struct attend_work {
    const uint16_t *q, *k, *v;
    uint16_t *out;
    float *lse; /* [items][heads][queries], for Kinds that want it */
    int64_t items, queries, keys, heads, pitch;
    float octaves, alpha; /* exp(alpha s) = exp2(octaves s) */
    int whole, steps;     /* parts of 128 queries, a head; tiles of Kind::KEYS */
    unsigned ends[2];     /* of the parts: whole ones, a head's after each other; those with fewer queries */
};

struct attend {
    static constexpr int GROUPS = 2, GROUP_ROWS = 64, GROUP_THREADS = 128, WARPS = 4 * GROUPS, QUERIES = GROUPS * GROUP_ROWS, THREADS = (1 + GROUPS) * GROUP_THREADS;
    static constexpr int FETCHING = 40, WORKING = 232; /* registers a thread, of 168 that the launch gives */
    static_assert(FETCHING + GROUPS * WORKING <= 3 * 168, "registers of a multiprocessor");
};

/* Places that are filled and read in turn. The `count`-th filling of all of a block's is that of place count % PLACES; a count may overflow. */
template <unsigned PLACES> struct attend_ring {
    static_assert((PLACES & (PLACES - 1)) == 0, "counts that may overflow");
    h3_barrier there[PLACES], done[PLACES];
};

template <class Kind> struct attend_memory {
    static constexpr int PANELS = Kind::DEPTH / 64; /* of 64 channels */
    uint16_t query[2][PANELS][attend::GROUPS][attend::GROUP_ROWS * 64]; /* of this part and of the next */
    uint16_t key[Kind::STAGES][PANELS][Kind::KEYS * 64], value[Kind::STAGES][PANELS][Kind::KEYS * 64];
    uint16_t out[attend::QUERIES * Kind::DEPTH]; /* h3_spot */
    attend_ring<2> queries;
    attend_ring<Kind::STAGES> keys, values;
};

/* Where a part of the work is: 128 rows of one head. */
struct attend_place {
    int64_t head;            /* of all items */
    int item, column, first; /* column: of the head's first channel; first: of the rows */
};

/* Keys at and behind `count` of a tile get the score -inf, so the probability +0. */
template <int COUNT> H3_DEVICE void attend_mask(float (&scores)[COUNT], int64_t count, int lane)
{
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        if (i / 4 * 8 + lane % 4 * 2 + i % 2 >= count) scores[i] = -INFINITY;
}

#ifdef H3_HOPPER_CODE
template <class Kind> H3_DEVICE attend_place attend_place_of(const attend_work &w, unsigned part)
{
    const bool is_whole = part < w.ends[0];
    const unsigned whole = (unsigned)w.whole, heads = (unsigned)w.heads, head = is_whole ? part / whole : part - w.ends[0];
    attend_place at;
    at.head = head;
    at.item = (int)(head / heads);
    at.column = (int)(head % heads) * Kind::DEPTH;
    at.first = (int)(is_whole ? part % whole : whole) * attend::QUERIES;
    return at;
}

/* --- rings ------------------------------------------------------------------------------------------------------------ */

template <unsigned PLACES> H3_DEVICE unsigned attend_phase(unsigned count) { return count / PLACES & 1u; }

template <unsigned PLACES> H3_DEVICE void attend_set(attend_ring<PLACES> &ring)
{
    for (unsigned place = 0; place < PLACES; place++) {
        h3_barrier_set(&ring.there[place], 1);
        h3_barrier_set(&ring.done[place], attend::WARPS);
    }
}

/* Waits until a place may be filled; where `bytes` for it count. */
template <unsigned PLACES> H3_DEVICE h3_barrier *attend_fill(attend_ring<PLACES> &ring, unsigned count, unsigned bytes)
{
    h3_barrier *there = &ring.there[count % PLACES];
    h3_barrier_wait(&ring.done[count % PLACES], attend_phase<PLACES>(count) ^ 1u);
    h3_barrier_expect(there, bytes);
    return there;
}

template <unsigned PLACES> H3_DEVICE void attend_wait(attend_ring<PLACES> &ring, unsigned count) { h3_barrier_wait(&ring.there[count % PLACES], attend_phase<PLACES>(count)); }

/* The warp has read it. */
template <unsigned PLACES> H3_DEVICE void attend_done(attend_ring<PLACES> &ring, unsigned count, int lane)
{
    if (lane == 0) h3_barrier_arrive(&ring.done[count % PLACES]);
}

/* --- fetching --------------------------------------------------------------------------------------------------------- */

template <class Kind> H3_DEVICE void attend_fetch(attend_memory<Kind> *m, const CUtensorMap *query, const CUtensorMap *key, const CUtensorMap *value, const attend_work &w)
{
    constexpr unsigned STEP = Kind::KEYS * Kind::DEPTH * sizeof(uint16_t);
    unsigned number = 0, count = 0;
    for (unsigned part = blockIdx.x; part < w.ends[1]; part += gridDim.x, number++) {
        const attend_place at = attend_place_of<Kind>(w, part);
        h3_barrier *there = attend_fill(m->queries, number, sizeof m->query[0]);
        for (int i = 0; i < Kind::DEPTH / 64; i++) h3_load_box(m->query[number % 2][i], query, at.column + 64 * i, at.first, at.item, there);
        for (int step = 0; step < w.steps; step++, count++) {
            there = attend_fill(m->keys, count, STEP);
            for (int i = 0; i < Kind::DEPTH / 64; i++) h3_load_box(m->key[count % Kind::STAGES][i], key, at.column + 64 * i, step * Kind::KEYS, at.item, there);
            there = attend_fill(m->values, count, STEP);
            for (int i = 0; i < Kind::DEPTH / 64; i++) h3_load_box(m->value[count % Kind::STAGES][i], value, at.column + 64 * i, step * Kind::KEYS, at.item, there);
        }
    }
}

/* --- multiplying ------------------------------------------------------------------------------------------------------ */

/* What steps read: of the group's queries, of the first places of keys and of values. */
struct attend_operands {
    uint64_t query, key, value;
};

/* Starts d = own rows walked rows^T: 64 own rows of a part and COLUMNS walked ones of a tile, both in panels of 64 channels. */
template <bool HALF, int DEPTH, int COLUMNS> H3_DEVICE void attend_start_dots(float (&d)[COLUMNS / 2], uint64_t own, uint64_t walked)
{
    constexpr int OWN_PANEL = attend::QUERIES * 64 * 2 / 16, PANEL = COLUMNS * 64 * 2 / 16; /* in a descriptor */
    h3_steps_begin();
#pragma unroll
    for (int i = 0; i < DEPTH / 16; i++)
        h3_step<HALF, COLUMNS, 0, 0>(d, own + (uint64_t)(i / 4 * OWN_PANEL + i % 4 * H3_STEP_ACROSS), walked + (uint64_t)(i / 4 * PANEL + i % 4 * H3_STEP_ACROSS), i > 0);
    h3_steps_close();
}

/* Starts sums += weights walked rows: of a tile of ROWS. */
template <bool HALF, int DEPTH, int ROWS> H3_DEVICE void attend_start_sums(float (&sums)[DEPTH / 2], const uint32_t (&weights)[ROWS / 4], uint64_t walked)
{
    static_assert(DEPTH == 64 || ROWS == 64, "panels lie 8192 bytes apart");
    h3_steps_begin();
#pragma unroll
    for (int i = 0; i < ROWS / 16; i++) h3_step_of_registers<HALF, DEPTH, 1>(sums, weights, 4 * i, walked + (uint64_t)(i * H3_STEP_ALONG), 1);
    h3_steps_close();
}

/* Where every row of the warp has kept its largest score there is nothing to do: nothing changes by 1. */
template <class Kind> H3_DEVICE void attend_multiply(float (&out)[Kind::DEPTH / 2], const float (&turn)[2])
{
    if (!__any_sync(0xffffffffu, turn[0] != 1.0f || turn[1] != 1.0f)) return;
#pragma unroll
    for (int i = 0; i < Kind::DEPTH / 2; i++) out[i] = out[i] * turn[i % 4 / 2];
    h3_steps_keep(out);
}

/* Writes the warp's sixteen rows, `own` and up of a part's `rows`, times `scale` of both of a lane's, through its share of memory; to: the part's first row, from row to row `pitch` elements. */
template <bool HALF, int DEPTH>
H3_DEVICE void attend_write(uint16_t *to, int64_t pitch, uint16_t *staging, const float (&sums)[DEPTH / 2], const float (&scale)[2], int rows, int own, int lane)
{
    constexpr int PIECES = DEPTH / 8;
    __syncwarp(); /* who still copies the part before */
#pragma unroll
    for (int i = 0; i < DEPTH / 2; i += 2) {
        const float last = scale[i % 4 / 2];
        *(uint32_t *)(staging + h3_spot<DEPTH>(own + lane / 4 + i % 4 / 2 * 8, i / 4) + lane % 4 * 2) = h3_pair<HALF>(sums[i] * last, sums[i + 1] * last);
    }
    __syncwarp();
    for (int i = lane; i < 16 * PIECES; i += 32) {
        const int row = own + i / PIECES, piece = i % PIECES;
        if (row < rows) *(uint4 *)(to + row * pitch + piece * 8) = *(const uint4 *)(staging + h3_spot<DEPTH>(row, piece));
    }
}

/* The group's rows of a part, the `number`-th of the block's. */
template <class Kind> H3_DEVICE void attend_rows(attend_memory<Kind> *m, const attend_work &w, unsigned part, unsigned number, int group, int warp, int lane)
{
    constexpr int KEYS = Kind::KEYS, DEPTH = Kind::DEPTH, STAGE = KEYS * DEPTH * 2 / 16; /* in a descriptor */
    const int own = group * attend::GROUP_ROWS + warp * 16;
    float out[DEPTH / 2] = {}, scores[KEYS / 2], turn[2];
    uint32_t weights[KEYS / 4];
    typename Kind::state state;
    const attend_operands operands = {h3_operand(m->query[number % 2][0][group]), h3_operand(m->key[0][0]), h3_operand(m->value[0][0])};
    unsigned count = number * (unsigned)w.steps; /* of the keys and values whose probabilities there are */
    Kind::begin(state);
    attend_wait(m->queries, number);
    attend_wait(m->keys, count);
    attend_start_dots<Kind::HALF, DEPTH, KEYS>(scores, operands.query, operands.key + (uint64_t)(count % Kind::STAGES * STAGE));
    h3_steps_wait<0>();
    h3_steps_keep(scores);
    attend_done(m->keys, count, lane);
    if (w.keys < KEYS) attend_mask(scores, w.keys, lane);
    Kind::update(state, scores, weights, turn, w.octaves);
    if (w.steps > 1) attend_wait(m->keys, count + 1);
    for (int step = 0; step + 1 < w.steps; step++, count++) {
        uint32_t fresh[KEYS / 4];
        attend_multiply<Kind>(out, turn);
        h3_steps_keep(weights); /* what the steps below read is there before the first of them */
        attend_start_dots<Kind::HALF, DEPTH, KEYS>(scores, operands.query, operands.key + (uint64_t)((count + 1) % Kind::STAGES * STAGE));
        attend_wait(m->values, count);
        attend_start_sums<Kind::HALF, DEPTH, KEYS>(out, weights, operands.value + (uint64_t)(count % Kind::STAGES * STAGE));
        h3_steps_wait<1>(); /* the scores are there, the values on their way */
        h3_steps_keep(scores);
        attend_done(m->keys, count + 1, lane);
        if ((step + 2) * (int64_t)KEYS > w.keys) attend_mask(scores, w.keys - (step + 1) * (int64_t)KEYS, lane);
        Kind::update(state, scores, fresh, turn, w.octaves);
        h3_steps_keep(fresh); /* all of it while the values are multiplied; and the assembler, which would wait first, leaves it before a wait in a loop */
        Kind::keep(state);
        if (step + 2 < w.steps) attend_wait(m->keys, count + 2);
        h3_steps_wait<0>();
        h3_steps_keep(out);
        h3_steps_keep(weights);
        attend_done(m->values, count, lane);
        h3_steps_define(weights, fresh);
    }
    attend_done(m->queries, number, lane);
    attend_multiply<Kind>(out, turn);
    attend_wait(m->values, count);
    attend_start_sums<Kind::HALF, DEPTH, KEYS>(out, weights, operands.value + (uint64_t)(count % Kind::STAGES * STAGE));
    h3_steps_wait<0>();
    h3_steps_keep(out);
    h3_steps_keep(weights);
    attend_done(m->values, count, lane);
    const attend_place at = attend_place_of<Kind>(w, part); /* here, since it would take registers above */
    const int64_t pitch = w.heads * DEPTH;
    Kind::finish(w, state, turn, at.head, at.first + own + lane / 4, lane);
    attend_write<Kind::HALF, DEPTH>(w.out + ((int64_t)at.item * w.queries + at.first) * pitch + at.column, pitch, m->out, out, turn, (int)w.queries - at.first, own, lane);
}

/* A group without rows lets a part pass; no part with rows of its own follows in a launch, since shorter parts come last and are alike. Where values are there, nobody still
 * reads what had the places of their keys and queries before. */
template <class Kind> H3_DEVICE void attend_nothing(attend_memory<Kind> *m, const attend_work &w, unsigned number, int lane)
{
    unsigned count = number * (unsigned)w.steps;
    for (int step = 0; step < w.steps; step++, count++) {
        attend_wait(m->values, count);
        attend_done(m->keys, count, lane);
        attend_done(m->values, count, lane);
    }
    attend_done(m->queries, number, lane);
}

template <class Kind> H3_DEVICE void attend_parts(attend_memory<Kind> *m, const attend_work &w, int group, int warp, int lane)
{
    unsigned number = 0;
    for (unsigned part = blockIdx.x; part < w.ends[1]; part += gridDim.x, number++) {
        if (part < w.ends[0] || w.queries % attend::QUERIES > group * attend::GROUP_ROWS) attend_rows<Kind>(m, w, part, number, group, warp, lane);
        else attend_nothing<Kind>(m, w, number, lane);
    }
}
#endif

template <class Kind>
__global__ void __launch_bounds__(attend::THREADS, 1)
    attend_kernel(const __grid_constant__ CUtensorMap query, const __grid_constant__ CUtensorMap key, const __grid_constant__ CUtensorMap value, attend_work w)
{
#ifdef H3_HOPPER_CODE
    H3_SHARED_1024
    attend_memory<Kind> *m = (attend_memory<Kind> *)shared;
    const int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / attend::GROUP_THREADS, 0), warp = (int)threadIdx.x % attend::GROUP_THREADS / 32, lane = (int)threadIdx.x % 32;
    if (threadIdx.x == 0) {
        attend_set(m->queries);
        attend_set(m->keys);
        attend_set(m->values);
        h3_barriers_are_set();
    }
    __syncthreads();
    if (group == 0) {
        h3_registers_fewer<attend::FETCHING>();
        if (threadIdx.x == 0) attend_fetch<Kind>(m, &query, &key, &value, w);
    } else {
        h3_registers_more<attend::WORKING>();
        attend_parts<Kind>(m, w, group - 1, warp, lane);
    }
#else
    /* What a Kind has, named for compilers that miss a use of it. */
    typedef typename Kind::state state;
    float(*scores)[Kind::KEYS / 2], (*turn)[2];
    uint32_t(*weights)[Kind::KEYS / 4];
    (void)sizeof((Kind::begin(*(state *)0), Kind::keep(*(state *)0), Kind::update(*(state *)0, *scores, *weights, *turn, 0.0f), Kind::finish(w, *(state *)0, *turn, 0, 0, 0), Kind::HALF));
    if (w.steps > 0) __trap();
#endif
}

/* --- starting: host code ---------------------------------------------------------------------------------------------- */

/* Whether rows can be read by boxes and written 16 bytes at a time, and this GPU is one. */
template <class Kind> bool attend_fits(const attend_work &w)
{
    const int64_t limit = (int64_t)1 << 30;
    const uintptr_t places = (uintptr_t)w.q | (uintptr_t)w.k | (uintptr_t)w.v | (uintptr_t)w.out;
    if (places % 16 != 0 || w.pitch % 8 != 0 || w.items < 1 || w.queries < 1 || w.keys < 1 || w.heads < 1) return false;
    if (w.items > limit || w.queries > limit || w.keys > limit || w.heads > limit / Kind::DEPTH) return false;
    return w.items * w.heads <= limit / ((w.queries + attend::QUERIES - 1) / attend::QUERIES) && hopper_processors() > 0;
}

/* Attention that fits, on `stream`; a cudaError_t. */
template <class Kind> int attend_start(void *stream, const char *name, attend_work w)
{
    const int64_t width = w.heads * Kind::DEPTH;
    CUtensorMap query, key, value;
    static_assert(sizeof(attend_memory<Kind>) <= 227 * 1024, "shared memory of a multiprocessor");
    const unsigned heads = (unsigned)(w.items * w.heads), most = (unsigned)hopper_processors();
    w.whole = (int)(w.queries / attend::QUERIES);
    w.steps = (int)((w.keys + Kind::KEYS - 1) / Kind::KEYS);
    w.ends[0] = heads * (unsigned)w.whole;
    w.ends[1] = w.ends[0] + (w.queries % attend::QUERIES > 0 ? heads : 0);
    const unsigned blocks = w.ends[1] < most ? w.ends[1] : most;
    int code = make_tensor_maps(&query, w.q, w.items, w.queries, width, w.pitch, attend::QUERIES, 3);
    if (code == cudaSuccess) code = make_tensor_maps(&key, w.k, w.items, w.keys, width, w.pitch, Kind::KEYS, 3);
    if (code == cudaSuccess) code = make_tensor_maps(&value, w.v, w.items, w.keys, width, w.pitch, Kind::KEYS, 3);
    if (code != cudaSuccess) return code;
#ifdef H3_EMULATE
    (void)stream;
    h3_emulate(name, dim3(blocks), attend::THREADS, sizeof(attend_memory<Kind>), [=] { attend_kernel<Kind>(query, key, value, w); });
#else
    (void)name;
    code = (int)cudaFuncSetAttribute(attend_kernel<Kind>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(attend_memory<Kind>));
    if (code != cudaSuccess) return code;
    attend_kernel<Kind><<<dim3(blocks), attend::THREADS, sizeof(attend_memory<Kind>), (cudaStream_t)stream>>>(query, key, value, w);
#endif
    return (int)cudaGetLastError();
}

} // namespace

#endif
