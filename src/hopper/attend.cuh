/*
 * out = softmax(q k^T) v for every head, full, on a Hopper GPU; how scores become probabilities is the Kind's affair, and with it the order of those sums.
 *
 * A block owns 128 queries of one head. One thread fetches them, and then keys and values, Kind::KEYS at a time, into Kind::STAGES places each. Two groups of four warps work
 * on 64 queries each: while the tensor cores multiply the probabilities of one tile with its values, the group turns the next tile's scores into probabilities. Scores and sums
 * are chains of k16 steps of the tensor core, channels and keys ascending, in FP32; what was summed is multiplied by the Kind's turn after one tile and before the next.
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
    int tiles, steps;     /* of 128 queries, a head; of Kind::KEYS */
};

struct attend {
    static constexpr int GROUPS = 2, GROUP_ROWS = 64, GROUP_THREADS = 128, QUERIES = GROUPS * GROUP_ROWS, THREADS = (1 + GROUPS) * GROUP_THREADS;
    static constexpr int FETCHING = 40, WORKING = 232; /* registers a thread, of 168 that the launch gives */
    static_assert(FETCHING + GROUPS * WORKING <= 3 * 168, "registers of a multiprocessor");
};

template <class Kind> struct attend_memory {
    static constexpr int PANELS = Kind::DEPTH / 64; /* of 64 channels */
    uint16_t query[PANELS][attend::GROUPS][attend::GROUP_ROWS * 64];
    uint16_t key[Kind::STAGES][PANELS][Kind::KEYS * 64], value[Kind::STAGES][PANELS][Kind::KEYS * 64];
    uint16_t out[attend::QUERIES * Kind::DEPTH]; /* attend_spot */
    h3_barrier queries, keys_there[Kind::STAGES], keys_done[Kind::STAGES], values_there[Kind::STAGES], values_done[Kind::STAGES];
};

/* Where the 8 channels `piece` of a row lie: turned, so that eight rows do not share banks. */
template <class Kind> H3_DEVICE int attend_spot(int row, int piece) { return row * Kind::DEPTH + (piece ^ (row & 7)) * 8; }

/* Keys at and behind `count` of a tile get the score -inf, so the probability +0. */
template <int COUNT> H3_DEVICE void attend_mask(float (&scores)[COUNT], int64_t count, int lane)
{
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        if (i / 4 * 8 + lane % 4 * 2 + i % 2 >= count) scores[i] = -INFINITY;
}

#ifdef H3_HOPPER_CODE
/* Where a block works. */
struct attend_place {
    int64_t head;            /* of all items */
    int item, column, first; /* column: of the head's first channel */
};

template <class Kind> H3_DEVICE attend_place attend_place_of(const attend_work &w)
{
    attend_place at;
    at.head = blockIdx.x / (unsigned)w.tiles;
    at.first = (int)(blockIdx.x % (unsigned)w.tiles) * attend::QUERIES;
    at.item = (int)(at.head / w.heads);
    at.column = (int)(at.head % w.heads) * Kind::DEPTH;
    return at;
}

/* --- fetching --------------------------------------------------------------------------------------------------------- */

template <class Kind> H3_DEVICE void attend_fetch_tile(uint16_t (*to)[Kind::KEYS * 64], const CUtensorMap *map, const attend_place &at, int step, h3_barrier *done, h3_barrier *there)
{
    h3_barrier_wait(&done[step % Kind::STAGES], ((unsigned)(step / Kind::STAGES) & 1u) ^ 1u);
    h3_barrier_expect(&there[step % Kind::STAGES], Kind::KEYS * Kind::DEPTH * sizeof(uint16_t));
    for (int i = 0; i < Kind::DEPTH / 64; i++) h3_load_box(to[i], map, at.column + 64 * i, step * Kind::KEYS, at.item, &there[step % Kind::STAGES]);
}

template <class Kind> H3_DEVICE void attend_fetch(attend_memory<Kind> *m, const CUtensorMap *query, const CUtensorMap *key, const CUtensorMap *value, const attend_work &w)
{
    const attend_place at = attend_place_of<Kind>(w);
    h3_barrier_expect(&m->queries, (unsigned)sizeof m->query);
    for (int i = 0; i < Kind::DEPTH / 64; i++) h3_load_box(m->query[i], query, at.column + 64 * i, at.first, at.item, &m->queries);
    for (int step = 0; step < w.steps; step++) {
        attend_fetch_tile<Kind>(m->key[step % Kind::STAGES], key, at, step, m->keys_done, m->keys_there);
        attend_fetch_tile<Kind>(m->value[step % Kind::STAGES], value, at, step, m->values_done, m->values_there);
    }
}

/* --- multiplying ------------------------------------------------------------------------------------------------------ */

template <class Kind> H3_DEVICE void attend_wait_for_keys(attend_memory<Kind> *m, const attend_work &w, int step)
{
    if (step < w.steps) h3_barrier_wait(&m->keys_there[step % Kind::STAGES], (unsigned)(step / Kind::STAGES) & 1u);
}

/* What steps read: of the group's queries, of the first place of keys and of values. */
struct attend_operands {
    uint64_t query, key, value;
};

/* Starts the scores of the group's queries and the keys of a tile that is there. */
template <class Kind> H3_DEVICE void attend_start_scores(float (&scores)[Kind::KEYS / 2], const attend_operands &operands, int stage)
{
    constexpr int QUERY_PANEL = attend::QUERIES * 64 * 2 / 16, KEY_PANEL = Kind::KEYS * 64 * 2 / 16, STAGE = Kind::DEPTH / 64 * KEY_PANEL; /* in a descriptor */
    const uint64_t key = operands.key + (uint64_t)(stage * STAGE);
    h3_steps_begin();
#pragma unroll
    for (int i = 0; i < Kind::DEPTH / 16; i++)
        h3_step<Kind::HALF, Kind::KEYS, 0, 0>(scores, operands.query + (uint64_t)(i / 4 * QUERY_PANEL + i % 4 * H3_STEP_ACROSS), key + (uint64_t)(i / 4 * KEY_PANEL + i % 4 * H3_STEP_ACROSS),
                                              i > 0);
    h3_steps_close();
}

/* Starts out += probabilities times the values of a tile that is there. */
template <class Kind> H3_DEVICE void attend_start_values(float (&out)[Kind::DEPTH / 2], const uint32_t (&weights)[Kind::KEYS / 4], const attend_operands &operands, int stage)
{
    constexpr int STAGE = Kind::DEPTH * Kind::KEYS * 2 / 16;
    const uint64_t value = operands.value + (uint64_t)(stage * STAGE);
    static_assert(Kind::DEPTH == 64 || Kind::KEYS == 64, "panels of values lie 8192 bytes apart");
    h3_steps_begin();
#pragma unroll
    for (int i = 0; i < Kind::KEYS / 16; i++)
        h3_step_of_registers<Kind::HALF, Kind::DEPTH, 1>(out, weights, 4 * i, value + (uint64_t)(i * H3_STEP_ALONG), 1);
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

/* Writes the warp's sixteen rows, the first of them `own` of the block's, through its share of memory. */
template <class Kind>
H3_DEVICE void attend_write(const attend_work &w, const attend_place &at, uint16_t *staging, const float (&out)[Kind::DEPTH / 2], const float (&scale)[2], int own, int lane)
{
    constexpr int PIECES = Kind::DEPTH / 8;
    const int64_t pitch = w.heads * Kind::DEPTH, start = (int64_t)at.item * w.queries * pitch + at.column;
#pragma unroll
    for (int i = 0; i < Kind::DEPTH / 2; i += 2) {
        const float last = scale[i % 4 / 2];
        uint16_t *to = staging + attend_spot<Kind>(own + lane / 4 + i % 4 / 2 * 8, i / 4) + lane % 4 * 2;
        *(uint32_t *)to = h3_pair<Kind::HALF>(out[i] * last, out[i + 1] * last);
    }
    __syncwarp();
    for (int i = lane; i < 16 * PIECES; i += 32) {
        const int row = own + i / PIECES;
        if (at.first + row < w.queries) *(uint4 *)(w.out + start + (at.first + row) * pitch + i % PIECES * 8) = *(const uint4 *)(staging + attend_spot<Kind>(row, i % PIECES));
    }
}

template <class Kind> H3_DEVICE void attend_rows(attend_memory<Kind> *m, const attend_work &w, int group, int warp, int lane)
{
    constexpr int KEYS = Kind::KEYS, STAGES = Kind::STAGES;
    const attend_place at = attend_place_of<Kind>(w);
    const int own = group * attend::GROUP_ROWS + warp * 16;
    float out[Kind::DEPTH / 2] = {}, scores[KEYS / 2], turn[2];
    uint32_t weights[KEYS / 4];
    typename Kind::state state;
    const attend_operands operands = {h3_operand(m->query[0][group]), h3_operand(m->key[0][0]), h3_operand(m->value[0][0])};
    Kind::begin(state);
    h3_barrier_wait(&m->queries, 0);
    attend_wait_for_keys(m, w, 0);
    attend_start_scores<Kind>(scores, operands, 0);
    h3_steps_wait<0>();
    h3_steps_keep(scores);
    if (lane == 0) h3_barrier_arrive(&m->keys_done[0]);
    if (w.keys < KEYS) attend_mask(scores, w.keys, lane);
    Kind::update(state, scores, weights, turn, w.octaves);
    attend_wait_for_keys(m, w, 1);
    for (int step = 0; step + 1 < w.steps; step++) {
        const int stage = step % STAGES, next = (step + 1) % STAGES;
        uint32_t fresh[KEYS / 4];
        attend_multiply<Kind>(out, turn);
        h3_steps_keep(weights); /* what the steps below read is there before the first of them */
        attend_start_scores<Kind>(scores, operands, next);
        h3_barrier_wait(&m->values_there[stage], (unsigned)(step / STAGES) & 1u);
        attend_start_values<Kind>(out, weights, operands, stage);
        h3_steps_wait<1>(); /* the scores are there, the values on their way */
        h3_steps_keep(scores);
        if (lane == 0) h3_barrier_arrive(&m->keys_done[next]);
        if ((step + 2) * (int64_t)KEYS > w.keys) attend_mask(scores, w.keys - (step + 1) * (int64_t)KEYS, lane);
        Kind::update(state, scores, fresh, turn, w.octaves);
        h3_steps_keep(fresh); /* all of it while the values are multiplied; and the assembler, which would wait first, leaves it before a wait in a loop */
        Kind::keep(state);
        attend_wait_for_keys(m, w, step + 2);
        h3_steps_wait<0>();
        h3_steps_keep(out);
        h3_steps_keep(weights);
        if (lane == 0) h3_barrier_arrive(&m->values_done[stage]);
        h3_steps_define(weights, fresh);
    }
    const int last = (w.steps - 1) % STAGES;
    attend_multiply<Kind>(out, turn);
    h3_barrier_wait(&m->values_there[last], (unsigned)((w.steps - 1) / STAGES) & 1u);
    attend_start_values<Kind>(out, weights, operands, last);
    h3_steps_wait<0>();
    h3_steps_keep(out);
    h3_steps_keep(weights);
    Kind::finish(w, state, turn, at.head, at.first + own + lane / 4, lane);
    attend_write<Kind>(w, at, m->out, out, turn, own, lane);
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
    const unsigned groups = w.queries - attend_place_of<Kind>(w).first > attend::GROUP_ROWS ? 2 : 1; /* that have a query */
    if (threadIdx.x == 0) {
        h3_barrier_set(&m->queries, 1);
        for (int stage = 0; stage < Kind::STAGES; stage++) {
            h3_barrier_set(&m->keys_there[stage], 1);
            h3_barrier_set(&m->values_there[stage], 1);
            h3_barrier_set(&m->keys_done[stage], 4 * groups); /* warps */
            h3_barrier_set(&m->values_done[stage], 4 * groups);
        }
        h3_barriers_are_set();
    }
    __syncthreads();
    if (group == 0) {
        h3_registers_fewer<attend::FETCHING>();
        if (threadIdx.x == 0) attend_fetch<Kind>(m, &query, &key, &value, w);
    } else {
        h3_registers_more<attend::WORKING>();
        if ((unsigned)group <= groups) attend_rows<Kind>(m, w, group - 1, warp, lane);
    }
#else
    /* What a Kind has, named for compilers that miss a use of it. */
    typedef typename Kind::state state;
    float(*scores)[Kind::KEYS / 2], (*turn)[2];
    uint32_t(*weights)[Kind::KEYS / 4];
    (void)sizeof((Kind::begin(*(state *)0), Kind::keep(*(state *)0), Kind::update(*(state *)0, *scores, *weights, *turn, 0.0f), Kind::finish(w, *(state *)0, *turn, 0, 0, 0), Kind::HALF));
    if (w.tiles > 0) __trap();
#endif
}

/* --- starting: host code ---------------------------------------------------------------------------------------------- */

inline int64_t attend_tiles(const attend_work &w) { return (w.queries + attend::QUERIES - 1) / attend::QUERIES; }

/* Whether rows can be read by boxes and written 16 bytes at a time, and this GPU is one. */
template <class Kind> bool attend_fits(const attend_work &w)
{
    const int64_t limit = (int64_t)1 << 30;
    const uintptr_t places = (uintptr_t)w.q | (uintptr_t)w.k | (uintptr_t)w.v | (uintptr_t)w.out;
    if (places % 16 != 0 || w.pitch % 8 != 0 || w.items < 1 || w.queries < 1 || w.keys < 1 || w.heads < 1) return false;
    if (w.items > limit || w.queries > limit || w.keys > limit || w.heads > limit / Kind::DEPTH) return false;
    return w.items * w.heads <= limit / attend_tiles(w) && hopper_processors() > 0;
}

/* Attention that fits, on `stream`; a cudaError_t. */
template <class Kind> int attend_start(void *stream, const char *name, attend_work w)
{
    const int64_t width = w.heads * Kind::DEPTH;
    CUtensorMap query, key, value;
    static_assert(sizeof(attend_memory<Kind>) <= 227 * 1024, "shared memory of a multiprocessor");
    w.tiles = (int)attend_tiles(w);
    w.steps = (int)((w.keys + Kind::KEYS - 1) / Kind::KEYS);
    const unsigned blocks = (unsigned)(w.items * w.heads * w.tiles);
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
