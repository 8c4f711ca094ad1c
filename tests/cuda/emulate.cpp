/* The emulated GPU: coroutines, what threads do together, and asynchronous copies. */
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

#include <vector>

#include "base/half.h"
#include "h3/operator.h"

#include "emulate.h"
#include "emulate_failure.h"
#include "emulate_threads.h"

extern "C" float h3_tensor_core_step(const uint16_t a[16], const uint16_t b[16], float c);

/* Where there is a device memory apart (emulate_memory.cpp): opens it to kernels, and closes it. */
extern void h3_emulated_memory(bool open) __attribute__((weak));

h3_emulated_thread h3_emulated;
const emulated::part *emulated::hopper;

namespace {

using emulated::meet;
using emulated::stop;
using emulated::WARP;
constexpr size_t STACK = 256 * 1024;

/* H3_EMULATE_ORDER: a warp runs ahead as far as barriers let it, then the next one; or warps take short turns at random. Asynchronous copies land
 * when they are issued, or as late as when they are waited for. */
enum { FORWARD_EARLY, REVERSE_EARLY, FORWARD_LATE, REVERSE_LATE, RANDOM_LATE, ORDERS };

struct copy16 {
    uint16_t *to;
    const uint16_t *from;
    bool valid;
};

struct fiber {
    ucontext_t context; /* only for its first start; from then on jumps are enough, and cost no system call */
    jmp_buf place;
    std::vector<char> stack;
    std::vector<std::vector<copy16>> groups; /* of copies still to land; the last one is open */
    unsigned barrier = 0, meeting = 0, cluster = 0; /* how many this thread has passed */
    emulated::condition awaited = {};        /* without `ready`: none */
    bool started = false, done = false;
    const char *where = "";
};

/* What the lanes of a warp do together. */
struct warp_state {
    void *lanes[WARP];
    const char *what = nullptr;
    unsigned arrived = 0, meetings = 0;
};

/* One of the cluster's. */
struct block_state {
    uint3 index;
    std::vector<char> shared;
    unsigned barrier_arrived = 0, barriers = 0, ended = 0; /* ended: threads */
    unsigned reached = 0;                                  /* how often the cluster had met when another block last reached in here */
};

std::vector<fiber> fibers;    /* of the cluster: block after block */
std::vector<warp_state> warps;
std::vector<block_state> blocks;
jmp_buf scheduler;
unsigned current, thread_count, cluster_threads, cluster_arrived, cluster_meetings;
const std::function<void()> *body;
const char *kernel_name;
uint64_t random_state = 7;

int order()
{
    static const char *text = getenv("H3_EMULATE_ORDER");
    const int chosen = text ? atoi(text) : RANDOM_LATE;
    return chosen >= 0 && chosen < ORDERS ? chosen : RANDOM_LATE;
}


block_state &own_block() { return blocks[current / thread_count]; }

void give_way(const char *where)
{
    fiber &f = fibers[current];
    f.where = where;
    if (_setjmp(f.place) == 0) _longjmp(scheduler, 1);
}

/* Runs a thread until it gives way. */
__attribute__((noinline)) void go_on(fiber &f)
{
    if (_setjmp(scheduler) != 0) return;
    if (f.started) _longjmp(f.place, 1);
    f.started = true;
    setcontext(&f.context);
}

void run_fiber()
{
    (*body)();
    if (emulated::hopper != nullptr) emulated::hopper->end(current);
    for (const auto &group : fibers[current].groups)
        if (!group.empty()) stop("ends with a copy under way,", "it must wait for it");
    fibers[current].done = true;
    if (++own_block().ended == thread_count && own_block().reached > 0 && own_block().reached == cluster_meetings)
        stop("ends its block, into which another block may still reach:", "the cluster must meet first");
    _longjmp(scheduler, 1);
}

struct shuffle {
    float value, result;
    int lane; /* where the result comes from */
};

void act_shuffle(void *const *lanes)
{
    for (unsigned i = 0; i < WARP; i++) {
        shuffle *mine = static_cast<shuffle *>(lanes[i]);
        mine->result = static_cast<shuffle *>(lanes[mine->lane])->value;
    }
}

float exchange(const char *what, unsigned mask, float value, int lane)
{
    if (mask != 0xffffffffu) stop("shuffles with some lanes only", "");
    shuffle mine = {value, 0.0f, lane};
    meet(what, &mine, act_shuffle);
    return mine.result;
}

struct vote {
    int asked, any;
};

void act_vote(void *const *lanes)
{
    int any = 0;
    for (unsigned i = 0; i < WARP; i++) any |= static_cast<vote *>(lanes[i])->asked != 0;
    for (unsigned i = 0; i < WARP; i++) static_cast<vote *>(lanes[i])->any = any;
}

struct load {
    const uint16_t *row;
    uint32_t *result;
    bool transposed;
};

void act_load(void *const *lanes)
{
    for (unsigned i = 0; i < WARP; i++) {
        const load *mine = static_cast<load *>(lanes[i]);
        for (unsigned matrix = 0; matrix < 4; matrix++) {
            uint32_t pair = 0;
            for (unsigned e = 0; e < 2; e++) {
                const unsigned line = mine->transposed ? i % 4 * 2 + e : i / 4, place = mine->transposed ? i / 4 : i % 4 * 2 + e;
                pair |= (uint32_t) static_cast<load *>(lanes[matrix * 8 + line])->row[place] << 16 * e;
            }
            mine->result[matrix] = pair;
        }
    }
}

void load_matrix(const char *what, uint32_t *result, const uint16_t *row, bool transposed)
{
    const char *at = reinterpret_cast<const char *>(row), *base = own_block().shared.data();
    if (at < base || at + 16 > base + own_block().shared.size() || (at - base) % 16 != 0) stop("loads a fragment outside shared memory or unaligned", what);
    load mine = {row, result, transposed};
    meet(what, &mine, act_load);
}

struct multiply {
    float *d;
    const uint32_t *a;
    uint32_t b[2];
};

uint16_t half_of(uint32_t pair, unsigned which) { return (uint16_t)(pair >> 16 * which); }

void spread(uint16_t a[16][16], uint16_t b[8][16], void *const *lanes)
{
    for (unsigned i = 0; i < WARP; i++) {
        const multiply *mine = static_cast<multiply *>(lanes[i]);
        for (unsigned e = 0; e < 2; e++) {
            const unsigned k = i % 4 * 2 + e;
            for (unsigned part = 0; part < 4; part++) a[i / 4 + part % 2 * 8][k + part / 2 * 8] = half_of(mine->a[part], e);
            for (unsigned part = 0; part < 2; part++) b[i / 4][k + part * 8] = half_of(mine->b[part], e);
        }
    }
}

void act_multiply_half(void *const *lanes)
{
    uint16_t a[16][16], b[8][16];
    spread(a, b, lanes);
    for (unsigned i = 0; i < WARP; i++) {
        float *d = static_cast<multiply *>(lanes[i])->d;
        for (unsigned e = 0; e < 4; e++) {
            double sum = d[e];
            for (unsigned k = 0; k < 16; k++) sum += (double)h3_f16_to_f32(a[i / 4 + e / 2 * 8][k]) * (double)h3_f16_to_f32(b[i % 4 * 2 + e % 2][k]);
            d[e] = (float)sum;
        }
    }
}

void act_multiply(void *const *lanes)
{
    uint16_t a[16][16], b[8][16];
    spread(a, b, lanes);
    for (unsigned i = 0; i < WARP; i++) {
        float *d = static_cast<multiply *>(lanes[i])->d;
        for (unsigned e = 0; e < 4; e++) d[e] = h3_tensor_core_step(a[i / 4 + e / 2 * 8], b[i % 4 * 2 + e % 2], d[e]);
    }
}

void act_nothing(void *const *) {}

void land(const copy16 &copy)
{
    if (copy.valid) memcpy(copy.to, copy.from, 16);
    else memset(copy.to, 0, 16);
}

void start_fiber(fiber &f)
{
    f.stack.resize(STACK);
    f.groups.assign(1, {});
    f.barrier = f.meeting = f.cluster = 0;
    f.done = f.started = false;
    f.awaited = {};
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.data();
    f.context.uc_stack.ss_size = STACK;
    f.context.uc_link = nullptr;
    makecontext(&f.context, run_fiber, 0);
}

/* The blocks from the index-th on. */
void start_cluster(dim3 grid, uint64_t index, size_t shared)
{
    for (block_state &b : blocks) {
        b = block_state();
        b.index = {(unsigned)(index % grid.x), (unsigned)(index / grid.x % grid.y), (unsigned)(index / grid.x / grid.y)};
        b.shared.assign(shared, (char)0xff);
        b.shared.shrink_to_fit();
        index++;
    }
    warps.assign(cluster_threads / WARP, warp_state());
    cluster_arrived = cluster_meetings = 0;
    if (emulated::hopper != nullptr) emulated::hopper->start(cluster_threads);
    for (unsigned i = 0; i < cluster_threads; i++) start_fiber(fibers[i]);
}

bool can_run(const fiber &f, unsigned index)
{
    const emulated::condition &a = f.awaited;
    return !f.done && f.barrier <= blocks[index / thread_count].barriers && f.cluster <= cluster_meetings && f.meeting <= warps[index / WARP].meetings && (a.ready == nullptr || a.ready(a.what, a.detail));
}

/* Lets every lane of a warp go on once; how many could. */
unsigned turn_of(unsigned warp, bool backward)
{
    unsigned ran = 0;
    for (unsigned i = 0; i < WARP; i++) {
        const unsigned index = warp * WARP + (backward ? WARP - 1 - i : i);
        if (!can_run(fibers[index], index)) continue;
        current = index;
        h3_emulated.thread = {index % thread_count, 0, 0};
        h3_emulated.block = own_block().index;
        ran++;
        go_on(fibers[index]);
    }
    return ran;
}

bool all_done()
{
    for (unsigned i = 0; i < cluster_threads; i++)
        if (!fibers[i].done) return false;
    return true;
}

void run_cluster()
{
    const unsigned count = cluster_threads / WARP;
    const bool backward = order() == REVERSE_EARLY || order() == REVERSE_LATE, random = order() == RANDOM_LATE;
    while (!all_done()) {
        unsigned ran = 0;
        for (unsigned i = 0; i < count; i++) {
            const unsigned warp = random ? emulated::random_below(count) : backward ? count - 1 - i : i;
            unsigned turns = random ? 1 + emulated::random_below(8) : ~0u;
            for (unsigned lanes; turns-- > 0 && (lanes = turn_of(warp, random ? emulated::random_below(2) : backward)) > 0;) ran += lanes;
        }
        for (unsigned i = 0; i < count && ran == 0; i++) ran = turn_of(i, false);
        if (ran > 0 || (emulated::hopper != nullptr && emulated::hopper->land())) continue;
        for (current = 0; fibers[current].done;) current++;
        h3_emulated.block = own_block().index;
        stop("waits for threads that never come, at", fibers[current].where);
    }
    while (emulated::hopper != nullptr && emulated::hopper->land()) {}
}

} // namespace

/* --- what threads do together ----------------------------------------------------------------------------------------- */

[[noreturn]] void emulated::stop(const char *problem, const char *detail)
{
    fprintf(stderr, "emulated kernel %s, block %u %u %u, thread %u: %s %s\n", kernel_name, h3_emulated.block.x, h3_emulated.block.y, h3_emulated.block.z,
            current % thread_count, problem, detail);
    abort();
}

/* All lanes of the warp bring `mine`; the last one to come runs `act` for all. */
void emulated::meet(const char *what, void *mine, void (*act)(void *const *lanes))
{
    warp_state &warp = warps[current / WARP];
    if (warp.arrived > 0 && warp.what != what) stop("meets lanes that are at another place:", what);
    warp.what = what;
    warp.lanes[current % WARP] = mine;
    fiber &f = fibers[current];
    f.meeting++;
    if (++warp.arrived == WARP) {
        act(warp.lanes);
        warp.arrived = 0;
        warp.meetings++;
        return;
    }
    while (warp.meetings < f.meeting) give_way(what);
}

void emulated::wait_until(const char *where, const condition &awaited)
{
    fiber &f = fibers[current];
    f.awaited = awaited;
    while (!awaited.ready(awaited.what, awaited.detail)) give_way(where);
    f.awaited = {};
}

unsigned emulated::thread() { return current; }

bool emulated::land_late() { return order() >= FORWARD_LATE; }

bool emulated::land_now() { return order() == RANDOM_LATE ? random_below(2) == 0 : !land_late(); }

uint32_t emulated::random_below(unsigned limit)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(random_state >> 33) % limit;
}

unsigned emulated::block() { return current / thread_count; }
unsigned emulated::cluster() { return (unsigned)blocks.size(); }
bool emulated::has_ended(unsigned block) { return blocks[block].ended == thread_count; }

char *emulated::shared(unsigned block, size_t *bytes)
{
    *bytes = blocks[block].shared.size();
    return blocks[block].shared.data();
}

char *h3_shared_memory() { return own_block().shared.data(); }

void emulated::reach(unsigned block)
{
    if (block >= cluster()) stop("reaches into a block that the cluster does not have", "");
    if (block == emulated::block()) return;
    if (cluster_meetings == 0) stop("reaches into a block that may not have started:", "the cluster must meet first");
    if (has_ended(block)) stop("reaches into a block that has ended:", "the cluster must meet first");
    blocks[block].reached = cluster_meetings;
}

void emulated::meet_cluster()
{
    fiber &f = fibers[current];
    f.cluster++;
    if (++cluster_arrived == cluster_threads) {
        cluster_arrived = 0;
        cluster_meetings++;
        return;
    }
    while (cluster_meetings < f.cluster) give_way("a barrier of the cluster");
}

void __syncthreads()
{
    fiber &f = fibers[current];
    block_state &b = own_block();
    f.barrier++;
    if (++b.barrier_arrived == thread_count) {
        b.barrier_arrived = 0;
        b.barriers++;
        return;
    }
    while (b.barriers < f.barrier) give_way("a barrier");
}

void __syncwarp() { meet("__syncwarp", nullptr, act_nothing); }

float __shfl_sync(unsigned mask, float value, int lane) { return exchange("__shfl_sync", mask, value, lane); }

float __shfl_down_sync(unsigned mask, float value, int offset)
{
    const int lane = (int)(current % WARP), from = lane + offset < (int)WARP ? lane + offset : lane;
    return exchange("__shfl_down_sync", mask, value, from);
}

float __shfl_xor_sync(unsigned mask, float value, int other) { return exchange("__shfl_xor_sync", mask, value, (int)(current % WARP) ^ other); }

int __any_sync(unsigned mask, int asked)
{
    vote mine = {asked, 0};
    if (mask != 0xffffffffu) stop("votes with some lanes only", "");
    meet("__any_sync", &mine, act_vote);
    return mine.any;
}

void h3_ldmatrix(uint32_t (&r)[4], const uint16_t *row) { load_matrix("ldmatrix", r, row, false); }
void h3_ldmatrix_transposed(uint32_t (&r)[4], const uint16_t *row) { load_matrix("ldmatrix.trans", r, row, true); }

void h3_mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    multiply mine = {d, a, {b0, b1}};
    meet("mma", &mine, act_multiply);
}

void h3_mma_half(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    multiply mine = {d, a, {b0, b1}};
    meet("mma of half precision", &mine, act_multiply_half);
}

void h3_copy16(uint16_t *to, const uint16_t *from, bool valid)
{
    if ((uintptr_t)to % 16 != 0 || (valid && (uintptr_t)from % 16 != 0)) stop("copies 16 bytes", "from or to an unaligned address");
    const copy16 copy = {to, from, valid};
    if (emulated::land_late()) fibers[current].groups.back().push_back(copy);
    else land(copy);
}

void h3_copy_commit() { fibers[current].groups.push_back({}); }

void h3_copy_wait_for(int groups)
{
    auto &pending = fibers[current].groups;
    while ((int)pending.size() - 1 > groups) {
        for (const copy16 &copy : pending.front()) land(copy);
        pending.erase(pending.begin());
    }
}

void h3_emulate(const char *name, dim3 grid, unsigned threads, size_t shared, const std::function<void()> &kernel, unsigned cluster)
{
    const uint64_t count = (uint64_t)grid.x * grid.y * grid.z;
    if (h3_emulated_cuda("launch") != cudaSuccess) return; /* cudaGetLastError says so */
    kernel_name = name;
    thread_count = threads;
    cluster_threads = threads * cluster;
    blocks.resize(cluster);
    if (count == 0 || threads == 0 || threads % WARP != 0 || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535 || shared > 227 * 1024 || cluster > 8 || grid.x % cluster != 0)
        stop("cannot be launched:", "grid, threads, cluster or shared memory");
    if (fibers.size() < cluster_threads) fibers.resize(cluster_threads);
    h3_emulated.threads = dim3(threads);
    h3_emulated.grid = grid;
    h3_emulated.cluster = cluster;
    body = &kernel;
    if (h3_emulated_memory) h3_emulated_memory(true);
    for (uint64_t i = 0; i < count; i += cluster) {
        start_cluster(grid, i, shared);
        run_cluster();
    }
    if (h3_emulated_memory) h3_emulated_memory(false);
}
