#include "dist/internal.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory.h"
#include "dist/link_nccl.h"

enum { MESSAGE_SIZE = 1024, ABORT_SECONDS = 5 };
enum { YIELDS = 200, REST_STEP = 10, REST_STEPS = 20, LONG_WAIT = 4000, LONG_REST = 1000 }; /* rests in microseconds */
static const double SHORTEST_WATCHDOG = 0.1, LONGEST_WATCHDOG = 1e6;

/* --- signals -------------------------------------------------------------------------------------------------------- */

static volatile sig_atomic_t stop_signal;
static struct sigaction old_usr1, old_term;
static sigset_t old_mask;

static void note_signal(int number) { stop_signal = number; }

static void catch_signals(void)
{
    struct sigaction action = {.sa_handler = note_signal, .sa_flags = SA_RESTART};
    sigset_t both;
    sigemptyset(&action.sa_mask);
    sigaction(SIGUSR1, &action, &old_usr1);
    sigaction(SIGTERM, &action, &old_term);
    sigemptyset(&both);
    sigaddset(&both, SIGUSR1);
    sigaddset(&both, SIGTERM);
    pthread_sigmask(SIG_UNBLOCK, &both, &old_mask); /* whoever started this may have blocked them */
}

static void restore_signals(void)
{
    pthread_sigmask(SIG_SETMASK, &old_mask, NULL);
    sigaction(SIGUSR1, &old_usr1, NULL);
    sigaction(SIGTERM, &old_term, NULL);
}

/* The last resort around calls of MPI that may hang themselves: the process ends after `seconds`, with a line if there is one. */
static volatile sig_atomic_t guard_code;
static char guard_line[200];

static void end_now(int number)
{
    (void)number;
    ssize_t ignored = write(STDERR_FILENO, guard_line, strlen(guard_line));
    (void)ignored;
    _exit(guard_code);
}

static void guard(double seconds, int code)
{
    struct sigaction action = {.sa_handler = end_now};
    sigemptyset(&action.sa_mask);
    guard_code = code;
    sigaction(SIGALRM, &action, NULL);
    alarm((unsigned)ceil(seconds));
}

static void guard_off(void)
{
    alarm(0);
    signal(SIGALRM, SIG_DFL);
}

/* --- ending, waiting ------------------------------------------------------------------------------------------------ */

static atomic_flag ending = ATOMIC_FLAG_INIT; /* the first thread to come here ends the process, or waits for its end */

int h3_ranks_give_way(int code)
{
    if (atomic_flag_test_and_set(&ending)) return 0;
    h3_last_words_close();
    guard(2 * ABORT_SECONDS, code);
    return 1;
}

void h3_ranks_end_job(int code, const char *program, const char *message)
{
    char line[MESSAGE_SIZE + 100];
    int count = 1;
    if (atomic_flag_test_and_set(&ending))
        for (;;) pause();
    h3_last_words_close();
    guard(ABORT_SECONDS, code);
    int length = snprintf(line, sizeof line, "%s: %s\n", program, message);
    /* write, not stdio: a thread that hangs may hold stdio's lock. */
    ssize_t ignored = write(STDERR_FILENO, line, (size_t)length < sizeof line ? (size_t)length : sizeof line - 1);
    (void)ignored;
    h3_nccl_abort_all(code);
    MPI_Comm_size(MPI_COMM_WORLD, &count);
    if (count > 1) MPI_Abort(MPI_COMM_WORLD, code); /* which adds lines of its own; mpirun -q keeps them away */
    _exit(code);
}

void h3_ranks_abort(h3_ranks *ranks, const char *program, h3_status status)
{
    if (ranks->count > 1) h3_error_context(status, "rank %d", ranks->rank);
    h3_ranks_end_job(status == H3_OK ? H3_ENVIRONMENT : (int)status, program, h3_error_text());
}

h3_status h3_ranks_check(h3_ranks *ranks, int code, const char *what, int peer)
{
    char text[MPI_MAX_ERROR_STRING] = "", with[40] = "all ranks";
    int length = 0;
    if (code == MPI_SUCCESS) return H3_OK;
    if (peer >= 0) snprintf(with, sizeof with, "rank %d", peer);
    MPI_Error_string(code, text, &length);
    h3_error(H3_ENVIRONMENT, "MPI failed on rank %d in %s with %s: %s; start the stage again", ranks->rank, what, with, text);
    if (ranks->outbox != NULL && ranks->outbox->failure[0] == 0)
        snprintf(ranks->outbox->failure, sizeof ranks->outbox->failure, "%s", h3_error_text());
    return H3_ENVIRONMENT;
}

/* Yields a little, then sleeps 10 to 200 microseconds, in a long wait 1,000: many ranks can wait on few cores. */
void h3_ranks_rest(int turn)
{
    int sleeps = turn - YIELDS;
    if (sleeps < 0) sched_yield();
    else usleep(sleeps > LONG_WAIT ? LONG_REST : (useconds_t)(REST_STEP * (sleeps < REST_STEPS ? sleeps + 1 : REST_STEPS)));
}

h3_status h3_ranks_wait(h3_ranks *ranks, MPI_Request *request, const char *what, int peer)
{
    int done = 0, code;
    h3_watchdog_enter(ranks->dog, what, peer);
    for (int turn = 0;; turn += turn <= YIELDS + LONG_WAIT) {
        code = MPI_Test(request, &done, MPI_STATUS_IGNORE);
        if (code != MPI_SUCCESS || done) break;
        h3_ranks_rest(turn);
    }
    h3_watchdog_leave(ranks->dog);
    return h3_ranks_check(ranks, code, what, peer);
}

/* --- start and finish ----------------------------------------------------------------------------------------------- */

static h3_status check_unused(void)
{
    int begun = 0;
    MPI_Initialized(&begun); /* stays true after MPI_Finalize */
    if (begun) return h3_error(H3_ENVIRONMENT, "MPI was started before in this process; it can be started once only");
    return H3_OK;
}

/* Open MPI, for a program without mpirun: no daemon, and no folder in /tmp, whose name two such programs would share. */
static void start_alone(void)
{
    if (getenv("OMPI_COMM_WORLD_SIZE") != NULL || getenv("PMIX_RANK") != NULL || getenv("PMI_RANK") != NULL) return;
    setenv("OMPI_MCA_ess_singleton_isolated", "1", 0);
    setenv("OMPI_MCA_orte_create_session_dirs", "0", 0);
}

static h3_status start_mpi(h3_ranks *ranks, int *argc, char ***argv)
{
    int provided = 0;
    start_alone();
    if (MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &provided) != MPI_SUCCESS)
        return h3_error(H3_ENVIRONMENT, "MPI does not start; try the program without mpirun, then mpirun with a trivial program");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    if (provided < MPI_THREAD_MULTIPLE)
        return h3_error(H3_ENVIRONMENT, "this MPI has no MPI_THREAD_MULTIPLE, which the watchdog needs; use another MPI");
    H3_TRY(h3_ranks_check(ranks, MPI_Comm_rank(MPI_COMM_WORLD, &ranks->rank), "start", -1));
    return h3_ranks_check(ranks, MPI_Comm_size(MPI_COMM_WORLD, &ranks->count), "start", -1);
}

/* A failure after MPI has started leaves MPI running: the caller's non-zero exit then ends the other ranks too. */
h3_status h3_ranks_start(h3_ranks *ranks, int *argc, char ***argv, double watchdog_seconds)
{
    h3_status status;
    *ranks = (h3_ranks){.count = 1, .watchdog = watchdog_seconds};
    if (!(watchdog_seconds >= SHORTEST_WATCHDOG && watchdog_seconds <= LONGEST_WATCHDOG))
        return h3_error(H3_USAGE, "a watchdog of %g seconds; it must be %g to %.0f", watchdog_seconds, SHORTEST_WATCHDOG,
                        LONGEST_WATCHDOG);
    H3_TRY(check_unused());
    catch_signals();
    H3_GOTO(start_mpi(ranks, argc, argv), failed);
    H3_GOTO(h3_outbox_open(ranks), failed);
    H3_GOTO(h3_watchdog_open(ranks), failed);
    h3_last_words_open(ranks);
    h3_log_enable(ranks->rank == 0);
    return H3_OK;
failed:
    h3_outbox_free(ranks);
    restore_signals();
    return status;
}

static h3_status settle(h3_ranks *ranks)
{
    MPI_Request request;
    if (ranks->outbox->failure[0] != 0) return h3_error(H3_ENVIRONMENT, "%s", ranks->outbox->failure);
    H3_TRY(h3_outbox_flush(ranks));
    if (ranks->nccl != NULL) H3_TRY(h3_nccl_flush(ranks->nccl));
    H3_TRY(h3_ranks_check(ranks, MPI_Ibarrier(h3_watchdog_comm(ranks->dog), &request), "finish", -1));
    H3_TRY(h3_ranks_wait(ranks, &request, "finish", -1));
    return ranks->nccl != NULL ? h3_nccl_close(ranks) : H3_OK;
}

void h3_ranks_finish(h3_ranks *ranks)
{
    if (ranks->dog == NULL) return;
    if (settle(ranks) != H3_OK) h3_ranks_end_job(H3_ENVIRONMENT, program_invocation_short_name, h3_error_text());
    h3_last_words_close();
    h3_watchdog_close(ranks);
    h3_nccl_free(ranks);
    h3_outbox_free(ranks);
    snprintf(guard_line, sizeof guard_line, "%s: rank %d cannot end: MPI_Finalize waits for %g s; a rank is lost\n",
             program_invocation_short_name, ranks->rank, ranks->watchdog);
    guard(ranks->watchdog, H3_ENVIRONMENT);
    MPI_Finalize();
    guard_off();
    restore_signals();
}

h3_status h3_ranks_connect(h3_ranks *ranks, const h3_device *device)
{
    return device->kind == H3_DEVICE_CPU || ranks->count == 1 || ranks->nccl != NULL ? H3_OK : h3_nccl_open(ranks, device);
}

h3_status h3_block_range(int rank, int ranks, int64_t blocks, int64_t *first, int64_t *count)
{
    *first = *count = 0;
    if (ranks < 1 || rank < 0 || rank >= ranks || blocks < 1)
        return h3_error(H3_USAGE, "no block range for rank %d of %d and %lld blocks", rank, ranks, (long long)blocks);
    if (ranks > blocks)
        return h3_error(H3_USAGE, "%d ranks are too many for %lld blocks; start at most %lld", ranks, (long long)blocks,
                        (long long)blocks);
    /* The larger ranges are those of ranks 1 .. blocks mod ranks: the last rank comes last, the first rank never. */
    int64_t size = blocks / ranks, larger = blocks % ranks, larger_before = rank == 0 ? 0 : rank - 1 < larger ? rank - 1 : larger;
    *first = rank * size + larger_before;
    *count = size + (rank >= 1 && rank <= larger);
    return H3_OK;
}

/* --- collectives ---------------------------------------------------------------------------------------------------- */

static h3_status largest(h3_ranks *ranks, int64_t mine, int64_t *all, const char *what)
{
    MPI_Request request;
    H3_TRY(h3_outbox_reap(ranks));
    H3_TRY(h3_ranks_check(ranks, MPI_Iallreduce(&mine, all, 1, MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD, &request), what, -1));
    return h3_ranks_wait(ranks, &request, what, -1);
}

static h3_status spread(h3_ranks *ranks, int root, void *data, size_t size, const char *what)
{
    size_t piece = ranks->outbox->piece;
    for (size_t done = 0; done < size; done += piece) {
        MPI_Request request;
        int count = (int)(size - done < piece ? size - done : piece);
        H3_TRY(h3_ranks_check(ranks, MPI_Ibcast((char *)data + done, count, MPI_BYTE, root, MPI_COMM_WORLD, &request), what, -1));
        H3_TRY(h3_ranks_wait(ranks, &request, what, -1));
    }
    return H3_OK;
}

static const h3_status BY_WORTH[] = {H3_OK, H3_STOPPED, H3_FAILED, H3_USAGE, H3_INTEGRITY, H3_ENVIRONMENT};
enum { WORTHS = sizeof BY_WORTH / sizeof *BY_WORTH };

h3_status h3_ranks_agree(h3_ranks *ranks, h3_status status)
{
    char text[MESSAGE_SIZE] = "";
    int64_t worth = 0, key;
    if (ranks->count == 1) return status;
    while (worth < WORTHS - 1 && BY_WORTH[worth] != status) worth++;
    /* One number holds both: the worst status, and of its ranks the lowest. */
    H3_TRY(largest(ranks, worth * ranks->count + (ranks->count - 1 - ranks->rank), &key, "agree"));
    worth = key / ranks->count;
    if (worth == 0) return H3_OK;
    int speaker = ranks->count - 1 - (int)(key % ranks->count);
    if (speaker == ranks->rank) snprintf(text, sizeof text, "%s", h3_error_text());
    H3_TRY(spread(ranks, speaker, text, sizeof text, "agree"));
    text[sizeof text - 1] = 0;
    return h3_error(BY_WORTH[worth], "rank %d: %s", speaker, text);
}

h3_status h3_ranks_broadcast(h3_ranks *ranks, int root, void **data, size_t *size)
{
    int64_t bytes = 0;
    void *received = NULL;
    h3_status status = H3_OK;
    if (root < 0 || root >= ranks->count)
        return h3_error(H3_USAGE, "a broadcast from rank %d; there are %d ranks", root, ranks->count);
    H3_TRY(largest(ranks, ranks->rank == root ? (int64_t)*size : 0, &bytes, "broadcast"));
    if (ranks->rank != root) status = h3_alloc(&received, (size_t)bytes, 1, "a broadcast");
    /* Nobody may enter the broadcast unless all can. */
    status = h3_ranks_agree(ranks, status);
    if (status == H3_OK) status = spread(ranks, root, ranks->rank == root ? *data : received, (size_t)bytes, "broadcast");
    if (status != H3_OK) {
        free(received);
        return status;
    }
    if (ranks->rank != root) {
        *data = received;
        *size = (size_t)bytes;
    }
    return H3_OK;
}

/* What a gather holds while it may still fail. */
typedef struct h3_harvest {
    void **all;        /* rank 0 */
    size_t *sizes;     /* rank 0 */
    h3_parcel *parcel; /* other ranks */
} h3_harvest;
_Static_assert(sizeof(size_t) == sizeof(uint64_t), "sizes travel as MPI_UINT64_T");

static void harvest_free(const h3_ranks *ranks, h3_harvest *harvest)
{
    for (int i = 0; harvest->all != NULL && i < ranks->count; i++) free(harvest->all[i]);
    free(harvest->all);
    free(harvest->sizes);
    if (harvest->parcel != NULL) h3_parcel_free(harvest->parcel);
}

/* Room at rank 0 for what comes, a copy to send elsewhere. */
static h3_status harvest_prepare(h3_ranks *ranks, h3_harvest *harvest, const void *data, size_t size)
{
    if (ranks->rank != 0) return h3_parcel_copy(&harvest->parcel, ranks, data, size);
    for (int i = 0; i < ranks->count; i++) H3_TRY(h3_alloc(&harvest->all[i], harvest->sizes[i], 1, "gathered bytes"));
    if (size > 0) memcpy(harvest->all[0], data, size);
    return H3_OK;
}

static h3_status harvest_run(h3_ranks *ranks, h3_harvest *harvest, const void *data, size_t size)
{
    MPI_Request request;
    void *all = NULL, *sizes = NULL;
    size_t count = ranks->rank == 0 ? (size_t)ranks->count : 0;
    h3_status status = h3_alloc(&all, count, sizeof *harvest->all, "gathered bytes");
    if (status == H3_OK) status = h3_alloc(&sizes, count, sizeof *harvest->sizes, "gathered sizes");
    harvest->all = all;
    harvest->sizes = sizes;
    H3_TRY(h3_ranks_agree(ranks, status));
    int code = MPI_Igather(&size, 1, MPI_UINT64_T, sizes, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD, &request);
    H3_TRY(h3_ranks_check(ranks, code, "gather", -1));
    H3_TRY(h3_ranks_wait(ranks, &request, "gather", -1));
    H3_TRY(h3_ranks_agree(ranks, harvest_prepare(ranks, harvest, data, size)));
    if (ranks->rank != 0) {
        h3_parcel *parcel = harvest->parcel;
        harvest->parcel = NULL;
        return h3_parcel_post(ranks, 0, H3_TAG_GATHER, parcel);
    }
    for (int i = 1; i < ranks->count; i++) H3_TRY(h3_parcel_receive(ranks, i, H3_TAG_GATHER, harvest->all[i], harvest->sizes[i]));
    return H3_OK;
}

h3_status h3_ranks_gather(h3_ranks *ranks, const void *data, size_t size, void ***all, size_t **sizes)
{
    h3_harvest harvest = {0};
    *all = NULL;
    *sizes = NULL;
    h3_status status = harvest_run(ranks, &harvest, data, size);
    if (status == H3_OK) {
        *all = harvest.all;
        *sizes = harvest.sizes;
        harvest.all = NULL;
        harvest.sizes = NULL;
    }
    harvest_free(ranks, &harvest);
    return status;
}

h3_status h3_ranks_stop_ask(h3_ranks *ranks)
{
    H3_TRY(h3_outbox_reap(ranks));
    ranks->outbox->question.mine = stop_signal;
    return h3_ranks_check(ranks, MPI_Iallreduce(&ranks->outbox->question.mine, &ranks->outbox->question.all, 1, MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD,
                                                &ranks->outbox->question.request), "the stop request", -1);
}

h3_status h3_ranks_stop_hear(h3_ranks *ranks, int *stop)
{
    H3_TRY(h3_ranks_wait(ranks, &ranks->outbox->question.request, "the stop request", -1));
    *stop = ranks->outbox->question.all != 0 || (ranks->count == 1 && stop_signal != 0);
    return H3_OK;
}

h3_status h3_ranks_stop_requested(h3_ranks *ranks)
{
    int64_t number;
    H3_TRY(largest(ranks, stop_signal, &number, "the stop request"));
    if (number == 0) return H3_OK;
    return h3_error(H3_STOPPED, "stopped by signal %d (%s) between two steps; start it again to go on", (int)number,
                    strsignal((int)number));
}
