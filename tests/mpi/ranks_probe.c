/*
 * What tests/system/test_ranks.sh starts under mpirun: ranks_probe MODE WATCHDOG [RANK or other number].
 * A rank that finds something wrong says what and ends the job with exit code 1; misbehaving modes end as the watchdog ends them.
 */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory.h"
#include "dist/internal.h"
#include "dist/meter.h"
#include "graph/device.h"

static h3_ranks ranks;
static double watchdog;
static int number; /* the third argument */

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            h3_error(H3_FAILED, "line %d: %s; last error: %s", __LINE__, #condition, h3_error_text()); \
            h3_ranks_abort(&ranks, "ranks_probe", H3_FAILED);                                      \
        }                                                                                          \
    } while (0)
#define EXPECT_OK(call) EXPECT((call) == H3_OK)

/* --- calls of MPI that misbehave on one rank, put in MPI's place ------------------------------------------------------ */

static int fail_allreduce, hang_finalize;

int MPI_Iallreduce(const void *from, void *to, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm, MPI_Request *request)
{
    if (fail_allreduce) return MPI_ERR_OTHER;
    return PMPI_Iallreduce(from, to, count, type, op, comm, request);
}

int MPI_Finalize(void)
{
    while (hang_finalize) pause();
    return PMPI_Finalize();
}

/* --- helpers -------------------------------------------------------------------------------------------------------- */

static void fill(unsigned char *bytes, size_t size, int seed)
{
    for (size_t i = 0; i < size; i++) bytes[i] = (unsigned char)((i * 31 + (i >> 8) + (size_t)seed * 7 + 1) & 255);
}

static int filled(const unsigned char *bytes, size_t size, int seed)
{
    for (size_t i = 0; i < size; i++)
        if (bytes[i] != (unsigned char)((i * 31 + (i >> 8) + (size_t)seed * 7 + 1) & 255)) return 0;
    return 1;
}

static unsigned char *new_bytes(size_t size, int seed)
{
    unsigned char *bytes = malloc(size + 1);
    EXPECT(bytes != NULL);
    fill(bytes, size, seed);
    return bytes;
}

/* Busy for some seconds, as a rank that computes is, with a beat every 50 ms. */
static void compute(double seconds)
{
    double end = h3_clock() + seconds;
    while (h3_clock() < end) {
        h3_ranks_beat(&ranks, "forward", 7);
        usleep(50000);
    }
}

/* --- what works ----------------------------------------------------------------------------------------------------- */

static const size_t SIZES[] = {0, 1, 999, 1000, 1001, 300007};
enum { SIZE_COUNT = sizeof SIZES / sizeof *SIZES };

/* A device that keeps its tensors inverted and counts what passes, so that a link which forgets to stage is found out. */
static int passed;

static h3_status invert(void *to, const void *from, size_t bytes)
{
    passed++;
    for (size_t i = 0; i < bytes; i++) ((unsigned char *)to)[i] = (unsigned char)~((const unsigned char *)from)[i];
    return H3_OK;
}

/* Down the chain, every rank adding its number, and back; two tensors are in flight in each direction. */
static void chain(const h3_device *device)
{
    h3_link link = h3_ranks_link(&ranks, device);
    int inverted = device->kind != H3_DEVICE_CPU, last = ranks.count - 1, to_pass = 0;
    passed = 0;
    for (int direction = 1; direction >= 0; direction--) {
        int source = direction ? 0 : last, sink = direction ? last : 0, sum = 0;
        for (int item = 0; item < 2; item++) {
            h3_tensor tensor;
            EXPECT_OK(h3_tensor_new(&tensor, H3_BF16, 2, H3_SHAPE(501, 7 + item)));
            uint16_t *value = tensor.data;
            int64_t count = h3_tensor_count(&tensor);
            if (ranks.rank != source) EXPECT_OK(link.receive(link.user, direction, &tensor));
            else if (inverted) memset(value, 0xff, h3_tensor_bytes(&tensor));
            for (int64_t i = 0; i < count; i++) {
                uint16_t plain = inverted ? (uint16_t)~value[i] : value[i];
                if (ranks.rank == source) plain = (uint16_t)(i * 3 + item);
                plain = (uint16_t)(plain + ranks.rank + 1);
                value[i] = inverted ? (uint16_t)~plain : plain;
            }
            if (ranks.rank != sink) EXPECT_OK(link.send(link.user, direction, &tensor));
            sum = ranks.count * (ranks.count + 1) / 2;
            for (int64_t i = 0; i < count && ranks.rank == sink; i++) {
                uint16_t plain = inverted ? (uint16_t)~value[i] : value[i];
                EXPECT(plain == (uint16_t)(i * 3 + item + sum));
            }
            h3_tensor_free(&tensor);
            to_pass += inverted * ((ranks.rank != source) + (ranks.rank != sink));
        }
    }
    EXPECT(passed == to_pass);
    h3_tensor edge = h3_tensor_view(&number, H3_I32, 1, H3_SHAPE(1));
    if (ranks.rank == 0) EXPECT(link.send(link.user, 0, &edge) == H3_USAGE && link.receive(link.user, 1, &edge) == H3_USAGE);
    if (ranks.rank == last) EXPECT(link.send(link.user, 1, &edge) == H3_USAGE && link.receive(link.user, 0, &edge) == H3_USAGE);
}

/* Every rank sends all sizes to every rank, itself too, before anybody receives, and they are received in another order. */
static void crossing(void)
{
    for (int to = 0; to < ranks.count; to++)
        for (int i = 0; i < SIZE_COUNT; i++) {
            unsigned char *bytes = new_bytes(SIZES[i], ranks.rank * 100 + i);
            EXPECT_OK(h3_ranks_send(&ranks, to, i, bytes, SIZES[i]));
            memset(bytes, 0, SIZES[i]); /* the send has its copy */
            free(bytes);
        }
    for (int from = ranks.count - 1; from >= 0; from--)
        for (int i = SIZE_COUNT - 1; i >= 0; i--) {
            unsigned char *bytes = new_bytes(SIZES[i], 9999);
            EXPECT_OK(h3_ranks_receive(&ranks, from, i, bytes, SIZES[i]));
            EXPECT(filled(bytes, SIZES[i], from * 100 + i));
            free(bytes);
        }
}

static void collectives(void)
{
    for (int i = 0; i < SIZE_COUNT; i++) {
        for (int root = 0; root < ranks.count; root++) {
            unsigned char *own = new_bytes(SIZES[i], root);
            void *data = ranks.rank == root ? own : NULL;
            size_t size = ranks.rank == root ? SIZES[i] : 77;
            EXPECT_OK(h3_ranks_broadcast(&ranks, root, &data, &size));
            EXPECT(size == SIZES[i] && filled(data, size, root));
            EXPECT((data == own) == (ranks.rank == root));
            if (data != own) free(data);
            free(own);
        }
        size_t size = SIZES[(i + ranks.rank) % SIZE_COUNT], *sizes = NULL;
        unsigned char *own = new_bytes(size, ranks.rank + 5);
        void **all = NULL;
        EXPECT_OK(h3_ranks_gather(&ranks, own, size, &all, &sizes));
        EXPECT((all != NULL) == (ranks.rank == 0) && (sizes != NULL) == (ranks.rank == 0));
        for (int rank = 0; rank < ranks.count && ranks.rank == 0; rank++) {
            EXPECT(sizes[rank] == SIZES[(i + rank) % SIZE_COUNT] && filled(all[rank], sizes[rank], rank + 5));
            free(all[rank]);
        }
        free(own);
        free(all);
        free(sizes);
    }
}

/* `mine` of each rank; the expected status and, when it is not H3_OK, whose message. */
static void agreement(h3_status mine, h3_status expected, int speaker)
{
    char text[60];
    h3_error(mine, "fault of %d", ranks.rank);
    EXPECT(h3_ranks_agree(&ranks, mine) == expected);
    if (ranks.count > 1) snprintf(text, sizeof text, "rank %d: fault of %d", speaker, speaker);
    else snprintf(text, sizeof text, "fault of 0");
    if (expected != H3_OK) EXPECT(strcmp(h3_error_text(), text) == 0);
}

static void agreements(void)
{
    static const h3_status worth[] = {H3_STOPPED, H3_FAILED, H3_USAGE, H3_INTEGRITY, H3_ENVIRONMENT};
    int last = ranks.count - 1;
    agreement(H3_OK, H3_OK, 0);
    for (int i = 0; i < 5; i++) {
        agreement(worth[i], worth[i], 0);
        agreement(ranks.rank == last ? worth[i] : H3_OK, worth[i], last);
        if (last > 0 && i > 0) agreement(ranks.rank == last ? worth[i] : worth[i - 1], worth[i], last);
        if (last > 0 && i > 0) agreement(ranks.rank == last ? worth[i - 1] : worth[i], worth[i], 0);
    }
    EXPECT_OK(h3_ranks_stop_requested(&ranks));
}

static void wrong_sizes(void)
{
    char expected[100];
    unsigned char bytes[64], *large = new_bytes(5000, 1);
    int from = (ranks.rank + ranks.count - 1) % ranks.count, to = (ranks.rank + 1) % ranks.count;
    snprintf(expected, sizeof expected, "rank %d expects 32 bytes and rank %d sent 5000", ranks.rank, from);
    EXPECT_OK(h3_ranks_send(&ranks, to, 999, large, 5000));
    EXPECT_OK(h3_ranks_send(&ranks, to, 999, large, 64));
    EXPECT(h3_ranks_receive(&ranks, from, 999, bytes, 32) == H3_INTEGRITY);
    EXPECT(strstr(h3_error_text(), expected) != NULL);
    EXPECT_OK(h3_ranks_receive(&ranks, from, 999, bytes, 64)); /* the line is still in order */
    EXPECT(filled(bytes, 64, 1));
    EXPECT(h3_ranks_send(&ranks, ranks.count, 0, bytes, 1) == H3_USAGE && h3_ranks_receive(&ranks, -1, 0, bytes, 1) == H3_USAGE);
    EXPECT(h3_ranks_send(&ranks, 0, 1000, bytes, 1) == H3_USAGE && h3_ranks_receive(&ranks, 0, -1, bytes, 1) == H3_USAGE);
    free(large);
}

static void exchange(void)
{
    h3_device inverted = *h3_device_cpu();
    inverted.kind = H3_DEVICE_CUDA;
    inverted.to_host = inverted.from_host = invert;
    h3_say("only rank %d says this", ranks.rank);
    EXPECT(h3_ranks_connect(&ranks, h3_device_cpu()) == H3_OK && ranks.hand_off[0] == 0);
#ifndef H3_NCCL
    EXPECT(h3_ranks_connect(&ranks, &inverted) == H3_OK && ranks.nccl == NULL);
    EXPECT(strcmp(ranks.hand_off, ranks.count > 1 ? "through the host by MPI: this build has no NCCL" : "") == 0);
#endif
    for (int round = 0; round < 2; round++) {
        chain(h3_device_cpu());
        chain(&inverted);
        crossing();
        collectives();
        agreements();
        wrong_sizes();
        ranks.outbox->piece = 1000; /* the second time in pieces */
    }
}

/* Rank 0 computes for three watchdog times; the others wait in a receive, a collective and finish meanwhile. */
static void patience(void)
{
    char byte = 0;
    if (ranks.rank == 0) compute(1.5 * watchdog);
    if (ranks.rank == 0 && ranks.count > 1) EXPECT_OK(h3_ranks_send(&ranks, 1, 0, &byte, 1));
    if (ranks.rank == 1) EXPECT_OK(h3_ranks_receive(&ranks, 0, 0, &byte, 1));
    EXPECT_OK(h3_ranks_agree(&ranks, H3_OK));
    if (ranks.rank == ranks.count - 1) compute(1.5 * watchdog);
}

/* A large message arrives while its sender computes. */
static void overlap(void)
{
    size_t size = (size_t)64 << 20;
    unsigned char *bytes = new_bytes(size, 3);
    EXPECT_OK(h3_ranks_agree(&ranks, H3_OK));
    double start = h3_clock();
    if (ranks.rank == 0) {
        EXPECT_OK(h3_ranks_send(&ranks, 1, 0, bytes, size));
        compute(7);
    } else if (ranks.rank == 1) {
        EXPECT_OK(h3_ranks_receive(&ranks, 0, 0, bytes, size));
        double took = h3_clock() - start;
        EXPECT(filled(bytes, size, 3));
        fprintf(stderr, "overlap: %.2f s for 64 MiB\n", took);
        EXPECT(took < 6); /* busy machines are slow; without help from the watchdog's thread it is more than 7 */
    }
    free(bytes);
}

/* Three tensors one way along the chain, then three the other way; rank `who` stops before its piece of work number `when`. Everybody else
 * gets as far as that lets it, is told whose fault it is not, and afterwards the lines are as new. */
static h3_status work(int who, int when)
{
    h3_link link = h3_ranks_link(&ranks, h3_device_cpu());
    int last = ranks.count - 1;
    for (int piece = 0; piece < 6; piece++) {
        int onward = piece < 3, value = piece * 1000;
        h3_tensor tensor = h3_tensor_view(&value, H3_I32, 1, H3_SHAPE(1));
        if (ranks.rank == who && piece == when) return h3_error(H3_FAILED, "rank %d stops", who);
        if (ranks.rank != (onward ? 0 : last)) H3_TRY(link.receive(link.user, onward, &tensor));
        EXPECT(value == piece * 1000 + (onward ? ranks.rank : last - ranks.rank));
        value++;
        if (ranks.rank != (onward ? last : 0)) H3_TRY(link.send(link.user, onward, &tensor));
    }
    return H3_OK;
}

static void parting(void)
{
    for (int who = -1; who < ranks.count; who++) {
        for (int when = 0; when < 6 && (who >= 0 || when == 0); when++) {
            h3_status status = work(who, when);
            int own = status == H3_FAILED && !h3_ranks_deserted(&ranks);
            /* Whoever stops on the way there keeps those behind it from getting there and those before it from coming back; whoever stops on
             * the way back only those before it. */
            int waits = who >= 0 && ranks.rank != who && (when < 3 || ranks.rank < who);
            EXPECT(own == (ranks.rank == who) && (status == H3_FAILED) == (own || waits));
            if (own) EXPECT(strstr(h3_error_text(), "stops") != NULL);
            else if (status != H3_OK) EXPECT(strstr(h3_error_text(), "has stopped; nothing more comes from it") != NULL);
            EXPECT_OK(h3_ranks_part(&ranks));
            EXPECT(!h3_ranks_deserted(&ranks));
            EXPECT_OK(h3_ranks_agree(&ranks, H3_OK));
        }
    }
    chain(h3_device_cpu());
    EXPECT_OK(h3_ranks_part(&ranks));
    EXPECT_OK(h3_ranks_part(&ranks));
    crossing();
}

/* Down the chain, each rank at work for a while before it hands on: who comes later waits longer, and everybody's share is a part of the whole. */
static void meter(void)
{
    const h3_device *cpu = h3_device_cpu();
    const double work = 0.3;
    h3_meter watched;
    h3_rank_work *all;
    h3_link link = h3_ranks_link(&ranks, cpu);
    int last = ranks.count - 1;
    static float values[1000];
    h3_tensor tensor = h3_tensor_view(values, H3_F32, 1, H3_SHAPE(1000)), other = h3_tensor_view(values, H3_F32, 1, H3_SHAPE(10));
    for (int round = 0; round < 2; round++) {
        EXPECT_OK(h3_ranks_agree(&ranks, H3_OK));
        EXPECT_OK(h3_meter_start(&watched, &ranks, cpu));
        if (ranks.rank > 0) EXPECT(link.receive(link.user, 1, &tensor) == H3_OK);
        EXPECT_OK(cpu->span_begin());
        compute(work);
        EXPECT_OK(cpu->span_end());
        if (ranks.rank < last) EXPECT_OK(link.send(link.user, 1, &tensor));
        if (ranks.rank < last) EXPECT_OK(link.send(link.user, 1, &tensor));
        if (ranks.rank > 0) EXPECT(link.receive(link.user, 1, &other) == H3_INTEGRITY); /* of a wrong size: handed nothing on */
        watched.elsewhere = ranks.rank == last ? 10 : 0;
        EXPECT_OK(h3_meter_stop(&watched, &all));
        EXPECT((all != NULL) == (ranks.rank == 0));
        for (int rank = 0; all != NULL && rank < ranks.count; rank++) {
            const h3_rank_work *w = &all[rank];
            double busy = w->busy - (rank == last ? 10 : 0);
            EXPECT(w->spans == 1 && busy >= work && busy <= w->last - w->first + 1e-9 && w->first >= 0.5 * rank * work);
            EXPECT(w->received.waited >= 0.5 * rank * work && (w->received.handing > 0) == (rank > 0));
            EXPECT(w->received.bytes == (rank > 0 ? 4000 : 0));
        }
        EXPECT(all == NULL || h3_work_window(all, ranks.count) >= 0.9 * ranks.count * work);
        free(all);
    }
}

/* Goes on until a signal stops it, or for some seconds. */
static h3_status steps(double seconds)
{
    double end = h3_clock() + seconds;
    h3_status status = H3_OK;
    printf("pid %d\n", (int)getpid());
    fflush(stdout);
    EXPECT_OK(h3_ranks_agree(&ranks, H3_OK));
    while (status == H3_OK && h3_clock() < end) {
        compute(0.05);
        status = h3_ranks_stop_requested(&ranks);
    }
    return status;
}

/* --- what does not -------------------------------------------------------------------------------------------------- */

static double wall_clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* What rank `number` does while the others wait for it. */
static void misbehave(const char *mode)
{
    volatile int forever = 1;
    h3_ranks_beat(&ranks, "backward attention", 31);
    if (ranks.rank != number) return;
    printf("fault %d %.3f\n", (int)getpid(), wall_clock());
    fflush(stdout);
    if (strcmp(mode, "hang") == 0)
        while (forever) continue;
    if (strcmp(mode, "halt") == 0) {
        usleep(500000); /* a heartbeat takes the place along */
        raise(SIGSTOP);
    }
    if (strcmp(mode, "kill") == 0) raise(SIGKILL);
    if (strcmp(mode, "leave") == 0) exit(0);
    if (strcmp(mode, "abort") == 0) {
        h3_error(H3_INTEGRITY, "block 31 is damaged; make it again");
        h3_ranks_abort(&ranks, "h3_probe", H3_INTEGRITY);
    }
    fail_allreduce = strcmp(mode, "fail") == 0;
    hang_finalize = strcmp(mode, "finalize") == 0;
}

static h3_status run(const char *mode)
{
    int64_t first, count;
    h3_status status = H3_OK;
    if (strcmp(mode, "exchange") == 0) exchange();
    else if (strcmp(mode, "patience") == 0) patience();
    else if (strcmp(mode, "overlap") == 0) overlap();
    else if (strcmp(mode, "parting") == 0) parting();
    else if (strcmp(mode, "meter") == 0) meter();
    else if (strcmp(mode, "steps") == 0) status = steps(number);
    else if (strcmp(mode, "range") == 0)
        status = h3_ranks_agree(&ranks, h3_block_range(ranks.rank, ranks.count, number, &first, &count));
    else {
        misbehave(mode);
        status = h3_ranks_agree(&ranks, H3_OK);
    }
    if (status != H3_OK && ranks.rank == 0) h3_complain("ranks_probe", h3_error_text());
    return status;
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        h3_complain("ranks_probe", "usage: ranks_probe MODE WATCHDOG NUMBER");
        return H3_USAGE;
    }
    watchdog = atof(argv[2]);
    number = atoi(argv[3]);
    h3_status status = h3_ranks_start(&ranks, &argc, &argv, watchdog);
    if (status != H3_OK) {
        h3_complain("ranks_probe", h3_error_text());
        return (int)status;
    }
    status = run(argv[1]);
    h3_ranks_finish(&ranks);
    return (int)status;
}
