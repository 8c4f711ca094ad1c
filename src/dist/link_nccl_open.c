/* NCCL's start and end: which rank has which GPU, the communicators, a first message over each line, and aborting them on all ranks. */
#include "dist/link_nccl.h"

#include <stdio.h>

#ifdef H3_NCCL
#include "dist/link_nccl_internal.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory.h"

enum { LINE_CTAS = 8 };                /* at most so many blocks of the GPU move a tensor: compute goes on beside it */
enum { FIRST_MESSAGE = 1 << 20 };      /* bytes */
static const double NOTED = 1.0;       /* seconds for the other ranks to abort their communicators */
static const double LATER = 2.0;       /* seconds: where all ranks wait in vain, the first one says so */
enum { PLACE_SIZE = 128, STILL = 1000 }; /* microseconds between two looks */

static struct h3_nccl *_Atomic opened; /* of this process, for its end */

/* --- who has which GPU ------------------------------------------------------------------------------------------------ */

/* What the ranks are told. */
typedef struct h3_choice {
    int32_t use;
    char text[200];
    ncclUniqueId id[H3_LINES];
} h3_choice;

/* The machine (since its start) and the GPU's place in it: equal for two ranks that share a GPU, whatever number each of them gives it. */
static h3_status find_place(const struct h3_nccl *nccl, char place[PLACE_SIZE])
{
    char bus[32] = "";
    memset(place, 0, PLACE_SIZE);
    H3_TRY(h3_nccl_check_cuda(nccl, cudaDeviceGetPCIBusId(bus, sizeof bus, nccl->device->index), "cudaDeviceGetPCIBusId"));
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (file == NULL || fscanf(file, "%63s", place) != 1) gethostname(place, 63);
    if (file != NULL) fclose(file);
    size_t length = strlen(place);
    snprintf(place + length, PLACE_SIZE - length, " %s", bus);
    return H3_OK;
}

static void choose(h3_choice *choice, void *const *places, int count)
{
    choice->use = 1;
    snprintf(choice->text, sizeof choice->text, "from GPU to GPU by NCCL");
    for (int i = 1; i < count; i++)
        for (int j = 0; j < i && choice->use; j++) {
            if (memcmp(places[i], places[j], PLACE_SIZE) != 0) continue;
            choice->use = 0;
            snprintf(choice->text, sizeof choice->text, "through the host by MPI: ranks %d and %d share a GPU, and NCCL needs one a rank", j, i);
        }
}

/* Rank 0 decides; everybody learns it. */
static h3_status agree_on(struct h3_nccl *nccl, h3_choice *choice)
{
    char place[PLACE_SIZE];
    void **places, *data = choice;
    size_t *sizes, size = sizeof *choice;
    h3_ranks *ranks = nccl->ranks;
    H3_TRY(h3_ranks_agree(ranks, find_place(nccl, place)));
    H3_TRY(h3_ranks_gather(ranks, place, sizeof place, &places, &sizes));
    h3_status status = H3_OK;
    if (ranks->rank == 0) choose(choice, places, ranks->count);
    for (int i = 0; places != NULL && i < ranks->count; i++) free(places[i]);
    free(places);
    free(sizes);
    for (int i = 0; i < H3_LINES && ranks->rank == 0 && choice->use && status == H3_OK; i++)
        status = h3_nccl_check(nccl, ncclGetUniqueId(&choice->id[i]), "making an id", -1);
    H3_TRY(h3_ranks_agree(ranks, status));
    H3_TRY(h3_ranks_broadcast(ranks, 0, &data, &size));
    if (data != choice) {
        if (size == sizeof *choice) memcpy(choice, data, size);
        free(data);
    }
    return size == sizeof *choice ? H3_OK : h3_error(H3_ENVIRONMENT, "rank 0 is another build; start one program on all ranks");
}

/* --- communicators ---------------------------------------------------------------------------------------------------- */

/* The state of a communicator that is being started or ended; an error when it was aborted meanwhile. */
static h3_status ask(struct h3_nccl *nccl, const h3_line *line, const char *what, ncclResult_t *state)
{
    pthread_mutex_lock(&nccl->lock);
    h3_status status = h3_nccl_check(nccl, line->comm != NULL ? ncclCommGetAsyncError(line->comm, state) : ncclInvalidUsage, what, -1);
    if (status == H3_OK) status = h3_nccl_check(nccl, *state, what, -1);
    pthread_mutex_unlock(&nccl->lock);
    return status;
}

static h3_status wait_for_state(struct h3_nccl *nccl, const h3_line *line, const char *what)
{
    ncclResult_t state = ncclInProgress;
    h3_status status = H3_OK;
    h3_patience patience = h3_nccl_patience(nccl->ranks->watchdog + (nccl->ranks->rank > 0 ? LATER : 0));
    for (int turn = 0;; turn++) {
        h3_watchdog_leave(nccl->ranks->dog); /* a call that hangs is this rank's own silence */
        status = ask(nccl, line, what, &state);
        h3_watchdog_enter(nccl->ranks->dog, what, -1);
        if (status != H3_OK || state != ncclInProgress) break;
        if (h3_nccl_expired(&patience)) {
            status = h3_error(H3_ENVIRONMENT, "GPU %d: NCCL is not through with %s within %g s; "
                              "look at the GPUs of all ranks with nvidia-smi, and start the stage again with NCCL_DEBUG=INFO",
                              nccl->device->index, what, nccl->ranks->watchdog);
            break;
        }
        h3_ranks_rest(turn);
    }
    h3_watchdog_leave(nccl->ranks->dog);
    return status;
}

static h3_status open_line(struct h3_nccl *nccl, h3_line *line, ncclUniqueId id)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.maxCTAs = LINE_CTAS;
    H3_TRY(h3_nccl_check_cuda(nccl, cudaStreamCreateWithFlags(&line->stream, cudaStreamNonBlocking), "cudaStreamCreate"));
    pthread_mutex_lock(&nccl->lock);
    h3_status status = h3_nccl_check(nccl, ncclCommInitRankConfig(&line->comm, nccl->ranks->count, id, nccl->ranks->rank, &config), "its start", -1);
    pthread_mutex_unlock(&nccl->lock);
    H3_TRY(status);
    return wait_for_state(nccl, line, "its start");
}

static h3_status check_first(const struct h3_nccl *nccl, const unsigned char *bytes, int from)
{
    for (int i = 0; i < FIRST_MESSAGE; i++)
        if (bytes[i] != (unsigned char)(i * 7 + (i >> 8) + from))
            return h3_error(H3_ENVIRONMENT, "GPU %d: byte %d of the first message from rank %d is %d, sent was %d; "
                            "look at the links between the GPUs with nvidia-smi nvlink -e",
                            nccl->device->index, i, from, bytes[i], (unsigned char)(i * 7 + (i >> 8) + from));
    return H3_OK;
}

/* A known message to each neighbour: NCCL takes the memory that it wants while there is some, and what does not work says so here. */
static h3_status first_messages(struct h3_nccl *nccl, unsigned char *bytes, h3_tensor *tensor)
{
    h3_ranks *ranks = nccl->ranks;
    const h3_device *device = nccl->device;
    for (int i = 0; i < FIRST_MESSAGE; i++) bytes[i] = (unsigned char)(i * 7 + (i >> 8) + ranks->rank);
    H3_TRY(device->from_host(tensor->data, bytes, FIRST_MESSAGE));
    for (int up = 0; up < 2; up++)
        if (up ? ranks->rank + 1 < ranks->count : ranks->rank > 0) H3_TRY(h3_nccl_send(ranks, up, tensor));
    for (int up = 0; up < 2; up++) {
        if (up ? ranks->rank == 0 : ranks->rank + 1 == ranks->count) continue;
        H3_TRY(device->fill(tensor->data, 0, FIRST_MESSAGE));
        H3_TRY(h3_nccl_receive(ranks, up, tensor));
        H3_TRY(device->to_host(bytes, tensor->data, FIRST_MESSAGE));
        H3_TRY(check_first(nccl, bytes, ranks->rank + (up ? -1 : 1)));
    }
    return h3_nccl_flush(nccl);
}

static h3_status greet(struct h3_nccl *nccl)
{
    void *bytes;
    h3_tensor tensor;
    H3_TRY(h3_alloc(&bytes, FIRST_MESSAGE, 1, "a first message"));
    h3_status status = h3_device_tensor(&tensor, nccl->device, H3_BF16, 1, H3_SHAPE(FIRST_MESSAGE / 2));
    if (status == H3_OK) status = first_messages(nccl, bytes, &tensor);
    h3_device_free(&tensor, nccl->device);
    free(bytes);
    return status;
}

static h3_status open_words(struct h3_nccl *nccl)
{
    h3_ranks *ranks = nccl->ranks;
    H3_TRY(h3_ranks_check(ranks, MPI_Comm_dup(MPI_COMM_WORLD, &nccl->words), "start", -1));
    MPI_Comm_set_errhandler(nccl->words, MPI_ERRORS_RETURN);
    return h3_ranks_check(ranks, MPI_Irecv(&nccl->notice_code, 1, MPI_INT32_T, MPI_ANY_SOURCE, H3_TAG_NOTICE, nccl->words, &nccl->notice), "start", -1);
}

static h3_status open_all(struct h3_nccl *nccl, const h3_choice *choice)
{
    h3_ranks *ranks = nccl->ranks;
    H3_TRY(open_words(nccl));
    atomic_store(&opened, nccl); /* from here on there is something to abort, and somebody listens for it */
    h3_watchdog_poll_nccl(ranks->dog, nccl);
    for (int i = 0; i < H3_LINES; i++) H3_TRY(open_line(nccl, &nccl->line[i], choice->id[i]));
    ranks->nccl = nccl;
    pthread_mutex_lock(&nccl->lock);
    nccl->dead = 0;
    pthread_mutex_unlock(&nccl->lock);
    return greet(nccl);
}

h3_status h3_nccl_open(h3_ranks *ranks, const h3_device *device)
{
    void *memory;
    h3_choice choice = {0};
    setenv("NCCL_NVLS_ENABLE", "0", 1); /* read by NCCL when it is called first */
    H3_TRY(h3_ranks_agree(ranks, h3_alloc(&memory, 1, sizeof(struct h3_nccl), "NCCL")));
    struct h3_nccl *nccl = memory;
    nccl->ranks = ranks;
    nccl->device = device;
    nccl->words = MPI_COMM_NULL;
    nccl->dead = 1;
    pthread_mutex_init(&nccl->lock, NULL);
    h3_status status = agree_on(nccl, &choice);
    if (status == H3_OK) snprintf(ranks->hand_off, sizeof ranks->hand_off, "%s", choice.text);
    if (status != H3_OK || !choice.use) {
        free(nccl);
        return status;
    }
    return open_all(nccl, &choice); /* after a failure the job ends, and with it what is open */
}

static h3_status close_line(struct h3_nccl *nccl, h3_line *line)
{
    H3_TRY(h3_nccl_check(nccl, ncclCommFinalize(line->comm), "its end", -1));
    H3_TRY(wait_for_state(nccl, line, "its end"));
    ncclComm_t comm = line->comm;
    line->comm = NULL;
    H3_TRY(h3_nccl_check(nccl, ncclCommDestroy(comm), "its end", -1));
    return h3_nccl_check_cuda(nccl, cudaStreamDestroy(line->stream), "cudaStreamDestroy");
}

h3_status h3_nccl_close(h3_ranks *ranks)
{
    struct h3_nccl *nccl = ranks->nccl;
    h3_status status = H3_OK;
    pthread_mutex_lock(&nccl->lock);
    nccl->dead = 1; /* the watchdog's thread looks at it no more */
    pthread_mutex_unlock(&nccl->lock);
    for (int i = 0; i < H3_LINES && status == H3_OK; i++) status = close_line(nccl, &nccl->line[i]);
    return status;
}

void h3_nccl_free(h3_ranks *ranks)
{
    struct h3_nccl *nccl = ranks->nccl;
    if (nccl == NULL) return;
    atomic_store(&opened, NULL);
    MPI_Cancel(&nccl->notice);
    MPI_Wait(&nccl->notice, MPI_STATUS_IGNORE);
    MPI_Comm_free(&nccl->words);
    pthread_mutex_destroy(&nccl->lock);
    free(nccl);
    ranks->nccl = NULL;
}

/* --- aborting --------------------------------------------------------------------------------------------------------- */

/* Without the lock after two seconds: whoever holds it hangs in a call of NCCL, and that call must end too. */
static void abort_here(struct h3_nccl *nccl)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 2;
    int locked = pthread_mutex_timedlock(&nccl->lock, &until) == 0;
    nccl->dead = 1;
    cudaSetDevice(nccl->device->index);
    for (int i = 0; i < H3_LINES; i++) {
        ncclComm_t comm = nccl->line[i].comm;
        nccl->line[i].comm = NULL;
        nccl->line[i].posted = NULL;
        if (comm != NULL) ncclCommAbort(comm);
    }
    if (locked) pthread_mutex_unlock(&nccl->lock);
}

static int all_noted(MPI_Request *requests, int count)
{
    for (int i = 0; i < count; i++) {
        int done = 0;
        if (requests[i] == MPI_REQUEST_NULL) continue;
        if (MPI_Test(&requests[i], &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) requests[i] = MPI_REQUEST_NULL; /* it is gone */
        else if (!done) return 0;
    }
    return 1;
}

static void tell_others(struct h3_nccl *nccl, int32_t code)
{
    int count = nccl->ranks->count;
    MPI_Request *requests = calloc(2 * (size_t)count, sizeof *requests), ignored;
    int32_t *answers = calloc((size_t)count, sizeof *answers);
    if (requests == NULL || answers == NULL) return; /* the end of the job will do */
    for (int i = 0; i < count; i++) {
        requests[i] = MPI_REQUEST_NULL;
        if (i == nccl->ranks->rank) continue;
        MPI_Isend(&code, 1, MPI_INT32_T, i, H3_TAG_NOTICE, nccl->words, &ignored);
        MPI_Irecv(&answers[i], 1, MPI_INT32_T, i, H3_TAG_NOTED, nccl->words, &requests[i]);
    }
    for (double end = h3_clock() + NOTED; !all_noted(requests, count) && h3_clock() < end;) usleep(STILL);
    /* Neither buffers nor requests are freed: MPI may still use them until the process ends, which is now. */
}

void h3_nccl_abort_all(int code)
{
    struct h3_nccl *nccl = atomic_load(&opened);
    if (nccl == NULL) return;
    abort_here(nccl);
    tell_others(nccl, code);
}

void h3_nccl_listen(struct h3_nccl *nccl)
{
    int told = 0;
    MPI_Status sender;
    MPI_Request ignored;
    if (nccl->notice == MPI_REQUEST_NULL || MPI_Test(&nccl->notice, &told, &sender) != MPI_SUCCESS || !told) return;
    if (!h3_ranks_give_way(nccl->notice_code)) return;
    abort_here(nccl);
    MPI_Isend(&nccl->notice_code, 1, MPI_INT32_T, sender.MPI_SOURCE, H3_TAG_NOTED, nccl->words, &ignored);
    for (;;) { /* until the other one ends the job; what was sent wants to be moved meanwhile */
        int done;
        MPI_Iprobe(MPI_ANY_SOURCE, H3_TAG_NOTED, nccl->words, &done, MPI_STATUS_IGNORE);
        usleep(STILL);
    }
}

#else

h3_status h3_nccl_open(h3_ranks *ranks, const h3_device *device)
{
    (void)device;
    snprintf(ranks->hand_off, sizeof ranks->hand_off, "through the host by MPI: this build has no NCCL");
    return H3_OK;
}

/* There is nothing that these could be asked for. */
h3_status h3_nccl_flush(struct h3_nccl *nccl)
{
    (void)nccl;
    return H3_OK;
}

h3_status h3_nccl_close(h3_ranks *ranks) { return h3_error(H3_ENVIRONMENT, "rank %d has no NCCL to close", ranks->rank); }
void h3_nccl_free(h3_ranks *ranks) { (void)ranks; }

h3_status h3_nccl_send(void *user, int to_next, const h3_tensor *tensor)
{
    (void)user, (void)to_next, (void)tensor;
    return h3_error(H3_ENVIRONMENT, "this build has no NCCL");
}

h3_status h3_nccl_receive(void *user, int from_previous, h3_tensor *tensor)
{
    (void)user, (void)from_previous, (void)tensor;
    return h3_error(H3_ENVIRONMENT, "this build has no NCCL");
}

h3_status h3_nccl_post_last(struct h3_nccl *nccl, int side)
{
    (void)nccl, (void)side;
    return h3_error(H3_ENVIRONMENT, "this build has no NCCL");
}

h3_status h3_nccl_skip(struct h3_nccl *nccl, int side) { return h3_nccl_post_last(nccl, side); }

h3_status h3_nccl_poll(struct h3_nccl *nccl)
{
    (void)nccl;
    return H3_OK;
}

void h3_nccl_listen(struct h3_nccl *nccl) { (void)nccl; }
void h3_nccl_abort_all(int code) { (void)code; }

#endif
