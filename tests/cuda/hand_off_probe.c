/*
 * What tests/system/test_hand_off.sh starts under mpirun: hand_off_probe MODE WATCHDOG [RANK]. The links between the ranks run on the emulated
 * GPU and NCCL (tests/cuda/emulate*.cpp). A rank that finds something wrong says what and ends the job with exit code 1.
 */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory.h"
#include "dist/internal.h"
#include "graph/device_cuda.h"

enum { FLOWS = 3, SHAPES = 3 };

static h3_ranks ranks;
static const h3_device *gpu;
static h3_link link_of;
static double watchdog;
static int number;

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            h3_error(H3_FAILED, "line %d: %s; last error: %s", __LINE__, #condition, h3_error_text()); \
            h3_ranks_abort(&ranks, "hand_off_probe", H3_FAILED);                                   \
        }                                                                                          \
    } while (0)

/* What the library says has failed ends the job as a stage does it. */
static void relay(h3_status status)
{
    if (status != H3_OK) h3_ranks_abort(&ranks, "hand_off_probe", status);
}

/* --- tensors whose bytes say whose they are ---------------------------------------------------------------------------- */

static const int64_t ROWS[SHAPES] = {1, 77, 901}, WIDTHS[SHAPES] = {3, 512, 640}; /* 6 bytes to 1.1 MB */

static unsigned char byte_of(size_t i, int from, int flow) { return (unsigned char)(i * 31 + (i >> 9) + (size_t)from * 7 + (size_t)flow * 13 + 1); }

static h3_tensor new_tensor(int flow)
{
    h3_tensor tensor;
    relay(h3_device_tensor(&tensor, gpu, H3_BF16, 2, H3_SHAPE(ROWS[flow % SHAPES], WIDTHS[flow % SHAPES])));
    return tensor;
}

static void send_one(int up, int flow)
{
    h3_tensor tensor = new_tensor(flow);
    size_t bytes = h3_tensor_bytes(&tensor);
    unsigned char *host = malloc(bytes);
    EXPECT(host != NULL);
    for (size_t i = 0; i < bytes; i++) host[i] = byte_of(i, ranks.rank, flow);
    relay(gpu->from_host(tensor.data, host, bytes));
    relay(link_of.send(link_of.user, up, &tensor));
    relay(gpu->fill(tensor.data, 0xee, bytes)); /* the send has its copy */
    h3_device_free(&tensor, gpu);
    free(host);
}

static h3_status receive_or_not(int up, int flow)
{
    h3_tensor tensor = new_tensor(flow);
    size_t bytes = h3_tensor_bytes(&tensor);
    unsigned char *host = malloc(bytes);
    EXPECT(host != NULL);
    relay(gpu->fill(tensor.data, 0x55, bytes));
    h3_received before = ranks.received;
    h3_status status = link_of.receive(link_of.user, up, &tensor);
    EXPECT(ranks.received.bytes == before.bytes + (status == H3_OK ? (int64_t)bytes : 0));
    EXPECT((ranks.received.handing > before.handing) == (status == H3_OK) && (ranks.received.waited > before.waited) == (status == H3_OK));
    relay(gpu->to_host(host, tensor.data, bytes));
    for (size_t i = 0; i < bytes && status == H3_OK; i++) EXPECT(host[i] == byte_of(i, ranks.rank + (up ? -1 : 1), flow));
    h3_device_free(&tensor, gpu);
    free(host);
    return status;
}

static void receive_one(int up, int flow) { relay(receive_or_not(up, flow)); }

static int has_neighbour(int next) { return next ? ranks.rank + 1 < ranks.count : ranks.rank > 0; }

/* --- what works -------------------------------------------------------------------------------------------------------- */

/* As a model does it: all flows up the chain, then all down; a rank sends on before it takes the next. */
static void pass(void)
{
    for (int up = 1; up >= 0; up--)
        for (int flow = 0; flow < FLOWS; flow++) {
            if (has_neighbour(!up)) receive_one(up, flow);
            if (has_neighbour(up)) send_one(up, flow);
        }
}

/* As no model does it: everybody sends everything in both directions before anybody receives, and receives the directions by turns. */
static void cross(void)
{
    for (int flow = 0; flow < FLOWS; flow++)
        for (int up = 0; up < 2; up++)
            if (has_neighbour(up)) send_one(up, flow);
    for (int flow = 0; flow < FLOWS; flow++)
        for (int up = 1; up >= 0; up--)
            if (has_neighbour(!up)) receive_one(up, flow);
}

/* A tensor of another size is refused, and the next ones arrive. */
static void refuse(void)
{
    if (has_neighbour(1)) {
        send_one(1, 1);
        send_one(1, 2);
    }
    if (!has_neighbour(0)) return;
    char expected[100];
    h3_tensor tensor = new_tensor(0);
    snprintf(expected, sizeof expected, "rank %d expects 6 bytes and rank %d sent %d", ranks.rank, ranks.rank - 1, 77 * 512 * 2);
    EXPECT(link_of.receive(link_of.user, 1, &tensor) == H3_INTEGRITY && strstr(h3_error_text(), expected) != NULL);
    h3_device_free(&tensor, gpu);
    receive_one(1, 2);
}

static void edges(void)
{
    h3_tensor tensor = new_tensor(0);
    if (ranks.rank == 0) EXPECT(link_of.send(link_of.user, 0, &tensor) == H3_USAGE && link_of.receive(link_of.user, 1, &tensor) == H3_USAGE);
    if (ranks.rank + 1 == ranks.count) EXPECT(link_of.send(link_of.user, 1, &tensor) == H3_USAGE && link_of.receive(link_of.user, 0, &tensor) == H3_USAGE);
    h3_device_free(&tensor, gpu);
}

/* The first rank sends and computes on; the second has the tensor long before the first looks up again. */
static void overlap(void)
{
    relay(h3_ranks_agree(&ranks, H3_OK));
    double start = h3_clock();
    if (ranks.rank == 0) {
        send_one(1, 2);
        while (h3_clock() < start + 3) {
            h3_ranks_beat(&ranks, "forward", 7);
            usleep(50000);
        }
    } else if (ranks.rank == 1) {
        receive_one(1, 2);
        fprintf(stderr, "overlap: %.2f s\n", h3_clock() - start);
        EXPECT(h3_clock() - start < 2.5);
    }
}

/* The memory that was sent from comes back: the GPU holds no more after a hundred sends than after ten. */
static void reuse(void)
{
    size_t taken, early = 0, most;
    for (int i = 0; i < 100; i++) {
        pass();
        h3_cuda_memory(&taken, &most);
        if (i == 9) early = taken;
    }
    EXPECT(taken <= early + ((size_t)8 << 20));
}

/* A rank is slower than the watchdog's time, but alive: nobody minds. */
static void patience(void)
{
    if (ranks.rank == 0)
        for (double end = h3_clock() + 1.5 * watchdog; h3_clock() < end; usleep(50000)) h3_ranks_beat(&ranks, "forward", 7);
    pass();
}

/* As pass, but rank `who` stops before its piece of work number `when`. */
static h3_status pass_until(int who, int when)
{
    for (int piece = 0; piece < 2 * FLOWS; piece++) {
        int up = piece < FLOWS, flow = piece % FLOWS;
        if (ranks.rank == who && piece == when) return h3_error(H3_FAILED, "rank %d stops", who);
        if (has_neighbour(!up)) H3_TRY(receive_or_not(up, flow));
        if (has_neighbour(up)) send_one(up, flow);
    }
    return H3_OK;
}

/* Any rank stops at any point: nobody is left waiting, whoever could not go on knows that it was not its own fault, and the lines are as new. */
static void part(void)
{
    for (int who = 0; who < ranks.count; who++)
        for (int when = 0; when < 2 * FLOWS; when++) {
            h3_status status = pass_until(who, when);
            int waits = ranks.rank != who && (when < FLOWS || ranks.rank < who);
            EXPECT(h3_ranks_deserted(&ranks) == waits && (status == H3_FAILED) == (waits || ranks.rank == who));
            if (waits) EXPECT(strstr(h3_error_text(), "has stopped; nothing more comes from it") != NULL);
            relay(h3_ranks_part(&ranks));
            relay(h3_ranks_agree(&ranks, H3_OK));
        }
    pass();
    cross();
    relay(h3_ranks_part(&ranks));
}

/* --- what does not ----------------------------------------------------------------------------------------------------- */

static void misbehave(const char *mode)
{
    volatile int forever = 1;
    h3_ranks_beat(&ranks, "backward attention", 31);
    if (ranks.rank == number && strcmp(mode, "hang") == 0)
        while (forever) continue;
    if (ranks.rank == number && strcmp(mode, "error") == 0) relay(h3_error(H3_INTEGRITY, "block 31 is damaged; make it again"));
    pass();
    /* where it is the last one that fails, the others are at something else by then */
    for (double end = h3_clock() + 3 * watchdog; h3_clock() < end; usleep(20000)) h3_ranks_beat(&ranks, "forward", 7);
}

static void run(const char *mode)
{
    if (strcmp(mode, "exchange") == 0) {
        for (int round = 0; round < 3; round++) {
            pass();
            cross();
            refuse();
        }
        edges();
    } else if (strcmp(mode, "pass") == 0) pass();
    else if (strcmp(mode, "patience") == 0) patience();
    else if (strcmp(mode, "overlap") == 0) overlap();
    else if (strcmp(mode, "reuse") == 0) reuse();
    else if (strcmp(mode, "part") == 0) part();
    else misbehave(mode);
}

int main(int argc, char **argv)
{
    const char *local = getenv("OMPI_COMM_WORLD_LOCAL_RANK");
    if (argc < 3) {
        h3_complain("hand_off_probe", "usage: hand_off_probe MODE WATCHDOG [RANK]");
        return H3_USAGE;
    }
    watchdog = atof(argv[2]);
    number = argc > 3 ? atoi(argv[3]) : -1;
    if (h3_ranks_start(&ranks, &argc, &argv, watchdog) != H3_OK) {
        h3_complain("hand_off_probe", h3_error_text());
        return H3_ENVIRONMENT;
    }
    relay(h3_device_open("cuda", (local != NULL ? atoi(local) : 0) % (h3_cuda_count() > 0 ? h3_cuda_count() : 1), &gpu));
    relay(h3_ranks_connect(&ranks, gpu));
    if (ranks.rank == 0) printf("hand-off %s\n", ranks.hand_off);
    fflush(stdout);
    link_of = h3_ranks_link(&ranks, gpu);
    run(argv[1]);
    h3_ranks_finish(&ranks);
    return 0;
}
