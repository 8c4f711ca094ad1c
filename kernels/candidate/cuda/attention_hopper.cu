/*
 * Attention's forward pass for heads of 128 on a Hopper GPU: the contract and the bits of attention.cu, by the copy engine and wgmma.
 *
 * A block owns 128 queries of one head. One thread fetches them, and then keys and values, 64 at a time, into STAGES places each. Two groups of four warps work on 64
 * queries each: while the tensor cores multiply the probabilities of one tile with its values, the group turns the next tile's scores into probabilities. The older sums are
 * multiplied when that product is done and before the next begins, so the order is that of the contract.
 */
#include "attention.cuh"
#include "softmax.cuh"

#include "hopper.cuh"
#include "tensor_map.cuh"

namespace {

constexpr int DEPTH = 128, STAGES = 4, GROUPS = 2, GROUP_ROWS = 64, GROUP_THREADS = 128;
constexpr int PANEL = 64 * 64; /* elements of 64 rows and 64 channels */
constexpr int THREADS = (1 + GROUPS) * GROUP_THREADS;
constexpr int FETCHING = 40, WORKING = 232; /* registers a thread, of 168 that the launch gives */
static_assert(FETCHING + GROUPS * WORKING <= 3 * 168, "registers of a multiprocessor");

struct attention_memory {
    uint16_t query[2][GROUPS][PANEL]; /* by 64 channels: the operand lies across */
    uint16_t key[STAGES][2][PANEL], value[STAGES][2][PANEL];
    uint16_t out[GROUPS * GROUP_ROWS * DEPTH]; /* h3_swizzle */
    h3_barrier queries, keys_there[STAGES], keys_done[STAGES], values_there[STAGES], values_done[STAGES];
};
static_assert(sizeof(attention_memory) <= 227 * 1024, "shared memory of a multiprocessor");

struct attention_work {
    h3_attention a;
    int tiles, steps; /* of 128 queries, a head; of 64 keys */
    float octaves;
};

#ifdef H3_HOPPER_CODE
/* Where a block works. */
struct attention_place {
    int64_t head; /* of all items */
    int item, column, first; /* column: of the head's first channel */
};

__device__ __forceinline__ attention_place place_of(const attention_work &w)
{
    attention_place at;
    at.head = blockIdx.x / (unsigned)w.tiles;
    at.first = (int)(blockIdx.x % (unsigned)w.tiles) * GROUPS * GROUP_ROWS;
    at.item = (int)(at.head / w.a.heads);
    at.column = (int)(at.head % w.a.heads) * DEPTH;
    return at;
}

__device__ __forceinline__ void fetch_tile(uint16_t (*to)[PANEL], const CUtensorMap *map, const attention_place &at, int row, h3_barrier *done, h3_barrier *there, unsigned parity)
{
    h3_barrier_wait(done, parity ^ 1u);
    h3_barrier_expect(there, 2 * PANEL * sizeof(uint16_t));
    for (int half = 0; half < 2; half++) h3_load_box(to[half], map, at.column + 64 * half, row, at.item, there);
}

__device__ __forceinline__ void fetch(attention_memory *m, const CUtensorMap *query, const CUtensorMap *key, const CUtensorMap *value, const attention_work &w)
{
    const attention_place at = place_of(w);
    h3_barrier_expect(&m->queries, (unsigned)sizeof m->query);
    for (int half = 0; half < 2; half++) h3_load_box(m->query[half], query, at.column + 64 * half, at.first, at.item, &m->queries);
    for (int step = 0; step < w.steps; step++) {
        const int stage = step % STAGES;
        const unsigned parity = (unsigned)(step / STAGES) & 1u;
        fetch_tile(m->key[stage], key, at, step * KEYS, &m->keys_done[stage], &m->keys_there[stage], parity);
        fetch_tile(m->value[stage], value, at, step * KEYS, &m->values_done[stage], &m->values_there[stage], parity);
    }
}

__device__ __forceinline__ void wait_for_keys(attention_memory *m, const attention_work &w, int step)
{
    if (step < w.steps) h3_barrier_wait(&m->keys_there[step % STAGES], (unsigned)(step / STAGES) & 1u);
}

/* Starts the scores of the group's queries and the keys of a tile that is there. */
__device__ __forceinline__ void start_scores(float (&scores)[KEYS / 2], attention_memory *m, int group, int stage)
{
    h3_steps_begin();
#pragma unroll
    for (int i = 0; i < DEPTH / 16; i++)
        h3_step<false, KEYS, 0, 0>(scores, h3_operand(m->query[i / 4][group]) + (uint64_t)(i % 4 * H3_STEP_ACROSS), h3_operand(m->key[stage][i / 4]) + (uint64_t)(i % 4 * H3_STEP_ACROSS),
                                   i > 0);
    h3_steps_close();
}

/* Starts out += probabilities times the values of a tile that is there. */
__device__ __forceinline__ void start_values(float (&out)[DEPTH / 2], const uint32_t (&weights)[KEYS / 4], attention_memory *m, int stage)
{
    h3_steps_begin();
#pragma unroll
    for (int i = 0; i < KEYS / 16; i++) h3_step_of_registers<DEPTH, 1>(out, weights, 4 * i, h3_operand(m->value[stage][0]) + (uint64_t)(i * H3_STEP_ALONG), 1);
    h3_steps_close();
}

__device__ __forceinline__ void multiply_out(float (&out)[DEPTH / 2], const float (&turn)[2])
{
#pragma unroll
    for (int i = 0; i < DEPTH / 2; i++) out[i] = out[i] * turn[i % 4 / 2];
    h3_steps_keep(out);
}

/* Normalises, and writes the warp's sixteen rows through its share of memory. */
__device__ __forceinline__ void finish(const attention_work &w, const attention_place &at, uint16_t *staging, const softmax_state &state, const float (&out)[DEPTH / 2], int warp, int lane)
{
    constexpr int CHUNKS = DEPTH / 8;
    const int64_t pitch = w.a.heads * DEPTH, start = ((int64_t)at.item * w.a.queries) * pitch + at.column;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float sum = quad_sum(state.sum[half]), rounded_sum = quad_sum(state.rounded_sum[half]);
        const int own = warp * 16 + lane / 4 + 8 * half, row = at.first + own;
#pragma unroll
        for (int j = 0; j < CHUNKS; j++) {
            const uint32_t pair = h3_bf_pair(out[4 * j + 2 * half] / rounded_sum, out[4 * j + 2 * half + 1] / rounded_sum);
            *reinterpret_cast<uint32_t *>(staging + h3_swizzle<CHUNKS>(own, j) + lane % 4 * 2) = pair;
        }
        if (lane % 4 == 0 && row < w.a.queries) w.a.lse[at.head * w.a.queries + row] = w.a.alpha * state.largest[half] + logf(sum);
    }
    __syncwarp();
    for (int i = lane; i < 16 * CHUNKS; i += 32) {
        const int own = warp * 16 + i / CHUNKS, row = at.first + own;
        if (row < w.a.queries) *reinterpret_cast<uint4 *>(w.a.out + start + row * pitch + i % CHUNKS * 8) = *reinterpret_cast<const uint4 *>(staging + h3_swizzle<CHUNKS>(own, i % CHUNKS));
    }
}

__device__ __forceinline__ void attend(attention_memory *m, const attention_work &w, int group, int warp, int lane)
{
    const attention_place at = place_of(w);
    float out[DEPTH / 2] = {}, scores[KEYS / 2], turn[2];
    uint32_t weights[KEYS / 4];
    float(&fragments)[KEYS / 8][4] = reinterpret_cast<float(&)[KEYS / 8][4]>(scores);
    softmax_state state = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}, {0.0f, 0.0f}};
    h3_barrier_wait(&m->queries, 0);
    wait_for_keys(m, w, 0);
    start_scores(scores, m, group, 0);
    h3_steps_wait<0>();
    h3_steps_keep(scores);
    if (lane == 0) h3_barrier_arrive(&m->keys_done[0]);
    if (w.a.keys < KEYS) mask_keys(fragments, w.a.keys, lane);
    update_softmax(state, fragments, reinterpret_cast<uint32_t(&)[KEYS / 8][2]>(weights), turn, w.octaves);
    wait_for_keys(m, w, 1);
    for (int step = 0; step + 1 < w.steps; step++) {
        const int stage = step % STAGES, next = (step + 1) % STAGES;
        uint32_t fresh[KEYS / 4];
        multiply_out(out, turn);
        h3_steps_keep(weights); /* what the steps below read is there before the first of them */
        start_scores(scores, m, group, next);
        h3_barrier_wait(&m->values_there[stage], (unsigned)(step / STAGES) & 1u);
        start_values(out, weights, m, stage);
        h3_steps_wait<1>(); /* the scores are there, the values on their way */
        h3_steps_keep(scores);
        if (lane == 0) h3_barrier_arrive(&m->keys_done[next]);
        if ((step + 2) * (int64_t)KEYS > w.a.keys) mask_keys(fragments, w.a.keys - (step + 1) * (int64_t)KEYS, lane);
        update_softmax(state, fragments, reinterpret_cast<uint32_t(&)[KEYS / 8][2]>(fresh), turn, w.octaves);
        h3_steps_keep(fresh); /* all of it while the values are multiplied; and the assembler, which would wait first, leaves it before a wait in a loop */
        h3_steps_keep(state.sum);
        h3_steps_keep(state.rounded_sum);
        wait_for_keys(m, w, step + 2);
        h3_steps_wait<0>();
        h3_steps_keep(out);
        h3_steps_keep(weights);
        if (lane == 0) h3_barrier_arrive(&m->values_done[stage]);
        h3_steps_define(weights, fresh);
    }
    const int last = (w.steps - 1) % STAGES;
    multiply_out(out, turn);
    h3_barrier_wait(&m->values_there[last], (unsigned)((w.steps - 1) / STAGES) & 1u);
    start_values(out, weights, m, last);
    h3_steps_wait<0>();
    h3_steps_keep(out);
    h3_steps_keep(weights);
    finish(w, at, m->out, state, out, group * 4 + warp, lane);
}
#endif

__global__ void __launch_bounds__(THREADS, 1)
    attention_hopper_kernel(const __grid_constant__ CUtensorMap query, const __grid_constant__ CUtensorMap key, const __grid_constant__ CUtensorMap value, attention_work w)
{
#ifdef H3_HOPPER_CODE
    H3_SHARED_1024
    attention_memory *m = (attention_memory *)shared;
    const int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / GROUP_THREADS, 0), warp = (int)threadIdx.x % GROUP_THREADS / 32, lane = (int)threadIdx.x % 32;
    if (threadIdx.x == 0) {
        h3_barrier_set(&m->queries, 1);
        for (int stage = 0; stage < STAGES; stage++) {
            h3_barrier_set(&m->keys_there[stage], 1);
            h3_barrier_set(&m->values_there[stage], 1);
            h3_barrier_set(&m->keys_done[stage], 4 * GROUPS); /* warps */
            h3_barrier_set(&m->values_done[stage], 4 * GROUPS);
        }
        h3_barriers_are_set();
    }
    __syncthreads();
    if (group == 0) {
        h3_registers_fewer<FETCHING>();
        if (threadIdx.x == 0) fetch(m, &query, &key, &value, w);
    } else {
        h3_registers_more<WORKING>();
        attend(m, w, group - 1, warp, lane);
    }
#else
    __trap();
#endif
}

int start(h3_call *call, const CUtensorMap &query, const CUtensorMap &key, const CUtensorMap &value, const attention_work &w, unsigned blocks)
{
    static const char name[] = "attention_wgmma";
#ifdef H3_EMULATE
    h3_emulate(name, dim3(blocks), THREADS, sizeof(attention_memory), [=] { attention_hopper_kernel(query, key, value, w); });
#else
    const cudaError_t error = cudaFuncSetAttribute(attention_hopper_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(attention_memory));
    if (h3_cuda_status(call, name, error)) return 1;
    attention_hopper_kernel<<<dim3(blocks), THREADS, sizeof(attention_memory), (cudaStream_t)call->stream>>>(query, key, value, w);
#endif
    return h3_cuda_status(call, name, cudaGetLastError());
}

} // namespace

extern "C" bool h3_attention_hopper_fits(const h3_attention *a)
{
    const int64_t limit = (int64_t)1 << 30;
    const bool aligned = h3_aligned(a->q, 16) && h3_aligned(a->k, 16) && h3_aligned(a->v, 16) && h3_aligned(a->out, 16);
    if (!h3_hopper_is_wanted() || a->head_dim != DEPTH || !aligned || a->queries > limit || a->keys > limit || a->batch > limit || a->heads > limit / DEPTH) return false;
    return a->batch * a->heads <= limit / h3_groups(a->queries, GROUPS * GROUP_ROWS) && hopper_processors() > 0;
}

extern "C" int h3_attention_hopper_run(h3_call *call, const h3_attention *a)
{
    const int64_t width = a->heads * DEPTH;
    const attention_work w = {*a, (int)h3_groups(a->queries, GROUPS * GROUP_ROWS), (int)h3_groups(a->keys, KEYS), a->alpha * H3_LOG2_E};
    CUtensorMap query, key, value;
    int code = make_tensor_maps(&query, a->q, a->batch, a->queries, width, width, GROUPS * GROUP_ROWS, 3);
    if (code == cudaSuccess) code = make_tensor_maps(&key, a->k, a->batch, a->keys, width, width, KEYS, 3);
    if (code == cudaSuccess) code = make_tensor_maps(&value, a->v, a->batch, a->keys, width, width, KEYS, 3);
    if (h3_cuda_status(call, "attention_wgmma", (cudaError_t)code)) return 1;
    return start(call, query, key, value, w, (unsigned)(a->batch * a->heads * w.tiles));
}
