/*
 * Hopper's instructions on the emulated GPU: barriers that count bytes, boxes, for several blocks too, steps of the tensor core that read shared memory by descriptor.
 *
 * Asynchronous work is done when it is issued, or (H3_EMULATE_ORDER) as late as it may be: some copies land when they are issued, the others when no thread can run without
 * them, in any order; steps are multiplied when they are waited for. So a place that is filled again too early, or read without a wait, gives other values. Addresses and descriptors are those of the
 * hardware, with shared memory at 0: bits 4 to 6 of an address are turned by bits 7 to 9.
 */
#include <stdio.h>
#include <stdlib.h>

#include <vector>

#include <cuda_runtime_api.h>

#include "base/half.h"
#include "h3/operator.h"

#include "emulate_failure.h"
#include "emulate_hopper.h"
#include "emulate_threads.h"

extern "C" float h3_tensor_core_step(const uint16_t a[16], const uint16_t b[16], float c);

using emulated::stop;
using emulated::WARP;

namespace {

/* --- shared memory ---------------------------------------------------------------------------------------------------- */

/* Of the block that runs. */
size_t offset_of(const void *place, size_t bytes, size_t alignment)
{
    size_t size;
    const char *base = emulated::shared(emulated::block(), &size), *at = static_cast<const char *>(place);
    if (at < base || at + bytes > base + size || (size_t)(at - base) % alignment != 0) stop("uses a place outside shared memory or unaligned", "");
    return (size_t)(at - base);
}

char *place_at(unsigned block, size_t offset, size_t bytes)
{
    size_t size;
    char *base = emulated::shared(block, &size);
    if (offset + bytes > size) stop("reads beyond shared memory", "");
    return base + offset;
}

size_t turned(size_t offset) { return offset ^ (offset >> 7 & 7) << 4; }

/* --- barriers --------------------------------------------------------------------------------------------------------- */

/* `bytes` that are missing: below 0 where some from another block came before this one expected them. */
struct barrier_state {
    uint64_t arrivals : 10, missing : 10;
    int64_t bytes : 40;
    uint64_t parity : 1, set : 1;
};
static_assert(sizeof(barrier_state) == sizeof(h3_barrier), "a barrier's size");

size_t offset_of(const h3_barrier *barrier) { return offset_of(barrier, sizeof *barrier, sizeof *barrier); }

barrier_state *state_at(unsigned block, size_t offset)
{
    barrier_state *state = reinterpret_cast<barrier_state *>(place_at(block, offset, sizeof *state));
    if (!state->set || state->arrivals == 0 || state->arrivals == 1023) stop("uses a barrier that is not set", "");
    return state;
}

void advance(barrier_state *state)
{
    if (state->missing > 0 || state->bytes != 0) return;
    state->parity ^= 1u;
    state->missing = state->arrivals;
}

void arrive(barrier_state *state, unsigned bytes)
{
    if (state->missing == 0) stop("arrives once too often at a barrier", "");
    state->bytes += bytes;
    state->missing--;
    advance(state);
}

bool has_ended(const void *state, unsigned parity) { return static_cast<const barrier_state *>(state)->parity != parity; }

/* --- copies ----------------------------------------------------------------------------------------------------------- */

/* What a map holds; its 128 bytes are the driver's own affair. */
struct map_fields {
    const uint16_t *data;
    int64_t items, rows, columns, pitch;
    uint32_t box_rows, rank;
    uint32_t magic;
};
constexpr uint32_t MAGIC = 0x683374;

struct copy {
    unsigned block, from_block; /* of the cluster: whose memory it goes to, whose thread started it */
    size_t barrier, to;
    const char *from; /* of bytes in a row; NULL for a box */
    size_t bytes;
    map_fields map;
    int64_t column, row, item;
};
std::vector<copy> copies; /* on their way */

void land_box(const copy &c)
{
    for (int64_t r = 0; r < c.map.box_rows; r++)
        for (int64_t i = 0; i < 64; i++) {
            const int64_t row = c.row + r, column = c.column + i;
            const bool there = c.item >= 0 && c.item < c.map.items && row >= 0 && row < c.map.rows && column >= 0 && column < c.map.columns;
            const uint16_t value = there ? c.map.data[(c.item * c.map.rows + row) * c.map.pitch + column] : (uint16_t)0;
            memcpy(place_at(c.block, turned(c.to + (size_t)(r * 128 + i * 2)), 2), &value, 2);
        }
}

void land(const copy &c)
{
    if (emulated::has_ended(c.block)) stop("copies into a block that has ended", "");
    if (c.from == nullptr) land_box(c);
    else memcpy(place_at(c.block, c.to, c.bytes), c.from, c.bytes);
    barrier_state *state = state_at(c.block, c.barrier);
    state->bytes -= (int64_t)c.bytes;
    if (state->bytes < 0 && (c.block == c.from_block || state->missing == 0)) stop("copies more bytes than a barrier expects", "");
    advance(state);
}

void issue(const copy &c)
{
    if (emulated::land_now()) land(c);
    else copies.push_back(c);
}

/* --- steps ------------------------------------------------------------------------------------------------------------ */

struct step {
    h3_emulated_step asked; /* of the first lane */
    float *d[WARP];
    const uint32_t *registers[WARP];
    unsigned row; /* of the 64 that this warp has */
};
struct warp_steps {
    std::vector<std::vector<step>> groups; /* the last one is open */
    bool begun = false;
};
std::vector<warp_steps> warps;

/* What a descriptor names: [rows][16], from `row`. */
struct operand {
    std::vector<uint16_t> bits;
    std::vector<float> halves;
};

void read_operand(operand &out, uint64_t descriptor, bool along, unsigned row, unsigned rows)
{
    const size_t start = (size_t)(descriptor & 0x3fff) << 4, tile = (size_t)(descriptor >> 16 & 0x3fff) << 4, eight = (size_t)(descriptor >> 32 & 0x3fff) << 4;
    if (descriptor >> 61 != 2 || eight != 1024 || (along && tile != 8192)) stop("multiplies with a descriptor that is not one of swizzled tiles", "");
    out.bits.resize((size_t)rows * 16);
    out.halves.resize((size_t)rows * 16);
    for (unsigned i = 0; i < rows; i++)
        for (unsigned k = 0; k < 16; k++) {
            const unsigned r = row + i;
            const size_t place = along ? r / 64 * tile + k / 8 * eight + k % 8 * 128 + r % 64 * 2 : r / 8 * eight + r % 8 * 128 + k * 2;
            memcpy(&out.bits[i * 16 + k], place_at(emulated::block(), turned(start + place), 2), 2);
            out.halves[i * 16 + k] = h3_f16_to_f32(out.bits[i * 16 + k]);
        }
}

float step_of_halves(const float *a, const float *b, float sum)
{
    double exact = sum;
    for (unsigned k = 0; k < 16; k++) exact += (double)a[k] * (double)b[k];
    return (float)exact;
}

/* A fragment of registers as [16][16]; what they hold when the step is done, so that a register which is changed too early shows. */
void read_registers(operand &out, const uint32_t *const *lanes)
{
    out.bits.resize(256);
    for (unsigned lane = 0; lane < WARP; lane++)
        for (unsigned part = 0; part < 4; part++)
            for (unsigned e = 0; e < 2; e++) out.bits[(lane / 4 + part % 2 * 8) * 16 + lane % 4 * 2 + e + part / 2 * 8] = (uint16_t)(lanes[lane][part] >> 16 * e);
    out.halves.resize(256);
    for (unsigned i = 0; i < 256; i++) out.halves[i] = h3_f16_to_f32(out.bits[i]);
}

void multiply(const step &s)
{
    operand a, b;
    if (s.asked.registers != nullptr) read_registers(a, s.registers);
    else read_operand(a, s.asked.a, s.asked.a_along, s.row, 16);
    read_operand(b, s.asked.b, s.asked.b_along, 0, (unsigned)s.asked.columns);
    for (unsigned lane = 0; lane < WARP; lane++)
        for (unsigned i = 0; i < (unsigned)s.asked.columns / 2; i++) {
            const unsigned left = (lane / 4 + i % 4 / 2 * 8) * 16, right = (i / 4 * 8 + lane % 4 * 2 + i % 2) * 16;
            const float sum = s.asked.add ? s.d[lane][i] : 0.0f;
            s.d[lane][i] = s.asked.half ? step_of_halves(&a.halves[left], &b.halves[right], sum) : h3_tensor_core_step(&a.bits[left], &b.bits[right], sum);
        }
}

warp_steps &own() { return warps[emulated::thread() / WARP]; }

void act_step(void *const *lanes)
{
    step s = {*static_cast<h3_emulated_step *>(lanes[0]), {}, {}, emulated::thread() / WARP % 4 * 16};
    for (unsigned i = 0; i < WARP; i++) {
        const h3_emulated_step *mine = static_cast<h3_emulated_step *>(lanes[i]);
        if (mine->a != s.asked.a || mine->b != s.asked.b || mine->add != s.asked.add) stop("multiplies other tiles in one lane than in another", "");
        s.d[i] = mine->d;
        s.registers[i] = mine->registers;
    }
    if (!own().begun) stop("multiplies before h3_steps_begin", "");
    own().groups.back().push_back(s);
    if (!emulated::land_late()) multiply(s), own().groups.back().pop_back();
}

void act_begin(void *const *) { own().begun = true; }

void act_close(void *const *)
{
    own().begun = false;
    own().groups.push_back({});
}

void act_wait(void *const *lanes)
{
    const size_t kept = (size_t)*static_cast<int *>(lanes[0]);
    auto &groups = own().groups;
    while (groups.size() - 1 > kept) {
        for (const step &s : groups.front()) multiply(s);
        groups.erase(groups.begin());
    }
}

struct fragment {
    uint16_t *row;
    const uint32_t *r;
};

void act_store(void *const *lanes)
{
    for (unsigned matrix = 0; matrix < 4; matrix++)
        for (unsigned line = 0; line < 8; line++) {
            uint16_t *row = static_cast<fragment *>(lanes[matrix * 8 + line])->row;
            offset_of(row, 16, 16);
            for (unsigned i = 0; i < 4; i++) memcpy(row + 2 * i, &static_cast<fragment *>(lanes[line * 4 + i])->r[matrix], 4);
        }
}

void act_store_turned(void *const *lanes)
{
    for (unsigned matrix = 0; matrix < 2; matrix++)
        for (unsigned line = 0; line < 8; line++) {
            uint16_t *row = static_cast<fragment *>(lanes[matrix * 8 + line])->row;
            offset_of(row, 16, 16);
            for (unsigned i = 0; i < 8; i++) row[i] = (uint16_t)(static_cast<fragment *>(lanes[i * 4 + line / 2])->r[matrix] >> 16 * (line % 2));
        }
}

/* --- a block ---------------------------------------------------------------------------------------------------------- */

void start(unsigned threads)
{
    copies.clear();
    warps.assign(threads / WARP, warp_steps());
    for (warp_steps &w : warps) w.groups.assign(1, {});
}

bool land_one()
{
    if (copies.empty()) return false;
    const size_t chosen = emulated::random_below((unsigned)copies.size());
    const copy c = copies[chosen];
    copies.erase(copies.begin() + (ptrdiff_t)chosen);
    land(c);
    return true;
}

void end(unsigned thread)
{
    for (const auto &group : warps[thread / WARP].groups)
        if (!group.empty()) stop("ends with steps under way,", "it must wait for them");
}

const emulated::part part = {start, land_one, end};
const bool known = (emulated::hopper = &part, true);

CUresult encode(CUtensorMap *out, CUtensorMapDataType type, cuuint32_t rank, void *data, const cuuint64_t *sizes, const cuuint64_t *strides, const cuuint32_t *box,
                const cuuint32_t *steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill)
{
    bool taken = type == CU_TENSOR_MAP_DATA_TYPE_UINT16 && (rank == 2 || rank == 3) && (uintptr_t)data % 16 == 0 && strides[0] >= 2 * sizes[0] && box[0] == 64 &&
                 box[1] >= 1 && box[1] <= 256 && interleave == CU_TENSOR_MAP_INTERLEAVE_NONE && swizzle == CU_TENSOR_MAP_SWIZZLE_128B && fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE;
    for (cuuint32_t i = 0; i < rank; i++) taken = taken && steps[i] == 1 && sizes[i] >= 1 && sizes[i] < (cuuint64_t)1 << 32;
    for (cuuint32_t i = 0; i + 1 < rank; i++) taken = taken && strides[i] % 16 == 0;
    if (rank == 3) taken = taken && box[2] == 1 && strides[1] == strides[0] * sizes[1];
    if (!taken) return CUDA_ERROR_INVALID_VALUE;
    const map_fields fields = {static_cast<const uint16_t *>(data), rank == 3 ? (int64_t)sizes[2] : 1, (int64_t)sizes[1], (int64_t)sizes[0], (int64_t)strides[0] / 2, box[1], rank, MAGIC};
    static_assert(sizeof fields <= sizeof *out, "a map's size");
    memcpy(out, &fields, sizeof fields);
    return CUDA_SUCCESS;
}

} // namespace

/* --- instructions ----------------------------------------------------------------------------------------------------- */

void h3_barrier_set(h3_barrier *barrier, unsigned arrivals)
{
    offset_of(barrier, sizeof *barrier, sizeof *barrier);
    const barrier_state state = {arrivals, arrivals, 0, 0, 1};
    memcpy(barrier, &state, sizeof state);
}

void h3_barrier_arrive(h3_barrier *barrier) { arrive(state_at(emulated::block(), offset_of(barrier)), 0); }
void h3_barrier_expect(h3_barrier *barrier, unsigned bytes) { arrive(state_at(emulated::block(), offset_of(barrier)), bytes); }
void h3_barrier_wait(h3_barrier *barrier, unsigned parity)
{
    emulated::wait_until("a barrier of the copies", {has_ended, state_at(emulated::block(), offset_of(barrier)), parity});
}

void h3_cluster_meet() { emulated::meet_cluster(); }

void h3_barrier_arrive_at(h3_barrier *barrier, int block)
{
    emulated::reach((unsigned)block);
    arrive(state_at((unsigned)block, offset_of(barrier)), 0);
}

static void load_box(unsigned blocks, void *to, const CUtensorMap *map, uint32_t rank, int column, int row, int item, h3_barrier *barrier)
{
    copy c = {0, emulated::block(), offset_of(barrier), 0, nullptr, 0, {}, column, row, item};
    memcpy(&c.map, map, sizeof c.map);
    if (c.map.magic != MAGIC || c.map.rank != rank) stop("loads a box of no such tensor map", "");
    c.bytes = (size_t)c.map.box_rows * 128;
    c.to = offset_of(to, c.bytes, 1024);
    for (; blocks >> c.block > 0; c.block++) {
        if ((blocks >> c.block & 1) == 0) continue;
        emulated::reach(c.block);
        issue(c);
    }
}

void h3_load_box_into(unsigned blocks, void *to, const CUtensorMap *map, int column, int row, h3_barrier *barrier) { load_box(blocks, to, map, 2, column, row, 0, barrier); }
void h3_load_box(void *to, const CUtensorMap *map, int column, int row, h3_barrier *barrier) { load_box(1u << emulated::block(), to, map, 2, column, row, 0, barrier); }
void h3_load_box(void *to, const CUtensorMap *map, int column, int row, int item, h3_barrier *barrier)
{
    load_box(1u << emulated::block(), to, map, 3, column, row, item, barrier);
}

void h3_load_bytes(void *to, const void *from, unsigned bytes, h3_barrier *barrier)
{
    if ((uintptr_t)from % 16 != 0 || bytes % 16 != 0) stop("copies bytes that are not whole 16s", "");
    issue({emulated::block(), emulated::block(), offset_of(barrier), offset_of(to, bytes, 16), static_cast<const char *>(from), bytes, {}, 0, 0, 0});
}

uint64_t h3_operand(const void *tile) { return (uint64_t)offset_of(tile, 1024, 1024) >> 4 | 512ull << 16 | 64ull << 32 | 1ull << 62; }

void h3_steps_begin() { emulated::meet("wgmma.fence", nullptr, act_begin); }

void h3_step_of(const h3_emulated_step &asked)
{
    h3_emulated_step mine = asked;
    emulated::meet("wgmma", &mine, act_step);
}

void h3_steps_close() { emulated::meet("wgmma.commit_group", nullptr, act_close); }
void h3_steps_wait_for(int groups) { emulated::meet("wgmma.wait_group", &groups, act_wait); }

void h3_store_matrices(uint16_t *row, const uint32_t (&r)[4])
{
    fragment mine = {row, r};
    emulated::meet("stmatrix", &mine, act_store);
}

void h3_store_matrices_turned(uint16_t *row, const uint32_t (&r)[2])
{
    fragment mine = {row, r};
    emulated::meet("stmatrix.trans", &mine, act_store_turned);
}

extern "C" cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **out, unsigned, unsigned long long, cudaDriverEntryPointQueryResult *result)
{
    *out = nullptr;
    *result = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t code = h3_emulated_cuda("cudaGetDriverEntryPointByVersion");
    if (code != cudaSuccess) return code;
    if (strcmp(symbol, "cuTensorMapEncodeTiled") != 0) return cudaSuccess;
    *out = (void *)encode;
    *result = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}
