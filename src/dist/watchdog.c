/*
 * The watchdog: one thread a rank. It ends the job when its own main thread neither beats nor waits for others, and when a
 * neighbour in the ring of ranks sends no heartbeats. It also keeps messages moving while the main thread computes.
 *
 * Time in which the thread itself did not run (a suspended job, a stopped process that goes on) is nobody's silence: not counted.
 */
#include "dist/internal.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "dist/link_nccl.h"

enum { HEARTBEATS = 8, NEIGHBOURS = 2, BUSY_REST = 100, IDLE_REST = 20000 }; /* heartbeats in a watchdog's time; microseconds */
static const double GAP = 0.25;   /* of the watchdog's time: a longer pause of this thread is not counted */
static const double NOTICE = 1.0; /* seconds: of a failure of NCCL or its GPU the main thread may speak first, it knows more */
static const double LATER = 2.0; /* seconds: of a lost rank's two neighbours one speaks, the other only if that one is lost too */

typedef struct h3_place {
    int64_t block;
    int32_t waiting, peer;
    char where[64], wait[32];
} h3_place;

typedef struct h3_heartbeat {
    int32_t last; /* the sender's last one */
    int32_t known;
    h3_place place;
} h3_heartbeat;

typedef struct h3_neighbour {
    int rank, last_sent, last_heard;
    double limit, heard;
    MPI_Request incoming, outgoing;
    h3_heartbeat in, out;
    h3_heartbeat latest;
} h3_neighbour;

struct h3_watchdog {
    MPI_Comm comm;
    pthread_t thread;
    int rank;
    double limit;
    atomic_int *under_way;
    atomic_int closing;
    struct h3_nccl *_Atomic nccl; /* NULL: none */
    pthread_mutex_t lock; /* of the next two */
    h3_place place;
    uint64_t beats;
    /* the thread's own */
    int neighbours;
    h3_neighbour neighbour[NEIGHBOURS];
    uint64_t beats_seen;
    double beaten, polled, told, nccl_failed;
    char nccl_failure[900];
};

/* --- the main thread's side ----------------------------------------------------------------------------------------- */

void h3_ranks_beat(h3_ranks *ranks, const char *where, int64_t block)
{
    struct h3_watchdog *dog = ranks->dog;
    if (dog == NULL) return;
    size_t length = strnlen(where, sizeof dog->place.where - 1);
    pthread_mutex_lock(&dog->lock);
    memcpy(dog->place.where, where, length);
    dog->place.where[length] = 0;
    dog->place.block = block;
    dog->beats++;
    pthread_mutex_unlock(&dog->lock);
}

void h3_watchdog_enter(struct h3_watchdog *dog, const char *what, int peer)
{
    pthread_mutex_lock(&dog->lock);
    dog->place.waiting = 1;
    dog->place.peer = peer;
    snprintf(dog->place.wait, sizeof dog->place.wait, "%s", what);
    dog->beats++;
    pthread_mutex_unlock(&dog->lock);
}

void h3_watchdog_leave(struct h3_watchdog *dog)
{
    pthread_mutex_lock(&dog->lock);
    dog->place.waiting = 0;
    dog->beats++;
    pthread_mutex_unlock(&dog->lock);
}

/* --- the thread's side ---------------------------------------------------------------------------------------------- */

static void spell_place(char out[200], const h3_place *place)
{
    char block[40] = "", with[40] = "";
    if (place->block >= 0) snprintf(block, sizeof block, " (block %lld)", (long long)place->block);
    if (place->waiting && place->peer >= 0) snprintf(with, sizeof with, " with rank %d", place->peer);
    if (place->waiting) snprintf(out, 200, "%s%s, waiting in %s%s", place->where, block, place->wait, with);
    else snprintf(out, 200, "%s%s", place->where, block);
}

/* Without the lock, which the thread that was interrupted may hold. */
void h3_watchdog_place(const struct h3_watchdog *dog, char out[200]) { spell_place(out, &dog->place); }

static void end_job(const char *message) { h3_ranks_end_job(H3_ENVIRONMENT, program_invocation_short_name, message); }

static void must(const struct h3_watchdog *dog, int code, int peer)
{
    char text[MPI_MAX_ERROR_STRING] = "", message[MPI_MAX_ERROR_STRING + 100];
    int length = 0;
    if (code == MPI_SUCCESS) return;
    MPI_Error_string(code, text, &length);
    snprintf(message, sizeof message, "rank %d has no heartbeat line to rank %d: %s", dog->rank, peer, text);
    end_job(message);
}

static void check_self(struct h3_watchdog *dog, double now)
{
    char place[200], message[300];
    pthread_mutex_lock(&dog->lock);
    h3_place latest = dog->place;
    uint64_t beats = dog->beats;
    pthread_mutex_unlock(&dog->lock);
    if (beats != dog->beats_seen || latest.waiting) {
        dog->beats_seen = beats;
        dog->beaten = now;
    }
    if (now - dog->beaten <= dog->limit) return;
    spell_place(place, &latest);
    snprintf(message, sizeof message, "rank %d silent for %g s in %s", dog->rank, dog->limit, place);
    end_job(message);
}

static void check_neighbour(const struct h3_watchdog *dog, const h3_neighbour *neighbour, double now)
{
    char place[200] = "unknown", message[300];
    if (neighbour->last_heard || now - neighbour->heard <= neighbour->limit) return;
    if (neighbour->latest.known) spell_place(place, &neighbour->latest.place);
    snprintf(message, sizeof message, "rank %d is lost: no heartbeat for %g s; last known place: %s", neighbour->rank, dog->limit,
             place);
    end_job(message);
}

static void listen_to(struct h3_watchdog *dog, h3_neighbour *neighbour)
{
    int from = neighbour->rank;
    must(dog, MPI_Irecv(&neighbour->in, sizeof neighbour->in, MPI_BYTE, from, 0, dog->comm, &neighbour->incoming), from);
}

static void hear(struct h3_watchdog *dog, h3_neighbour *neighbour, double now)
{
    int done = 1;
    while (!neighbour->last_heard) {
        must(dog, MPI_Test(&neighbour->incoming, &done, MPI_STATUS_IGNORE), neighbour->rank);
        if (!done) return;
        neighbour->latest = neighbour->in;
        neighbour->heard = now;
        neighbour->last_heard = neighbour->in.last;
        if (!neighbour->last_heard) listen_to(dog, neighbour);
    }
}

/* A heartbeat that a stopped neighbour has not taken yet is not followed by another. */
static void tell(struct h3_watchdog *dog, h3_neighbour *neighbour, int due, int last)
{
    int done, to = neighbour->rank;
    must(dog, MPI_Test(&neighbour->outgoing, &done, MPI_STATUS_IGNORE), to);
    if (!done || neighbour->last_sent || !(due || last)) return;
    pthread_mutex_lock(&dog->lock);
    neighbour->out = (h3_heartbeat){.last = last, .known = 1, .place = dog->place};
    pthread_mutex_unlock(&dog->lock);
    must(dog, MPI_Isend(&neighbour->out, sizeof neighbour->out, MPI_BYTE, to, 0, dog->comm, &neighbour->outgoing), to);
    neighbour->last_sent = last;
}

/* Moves all clocks on over a pause of this thread. */
static void forgive(struct h3_watchdog *dog, double now)
{
    double gap = now - dog->polled;
    dog->polled = now;
    if (gap <= GAP * dog->limit) return;
    dog->beaten += gap;
    for (int i = 0; i < dog->neighbours; i++) dog->neighbour[i].heard += gap;
}

/* One round; 1 when all good-byes are said and heard. */
static int round_of(struct h3_watchdog *dog)
{
    double now = h3_clock();
    int closing = atomic_load(&dog->closing), due = now - dog->told >= dog->limit / HEARTBEATS, ended = closing;
    forgive(dog, now);
    if (due) dog->told = now;
    for (int i = 0; i < dog->neighbours; i++) {
        h3_neighbour *neighbour = &dog->neighbour[i];
        tell(dog, neighbour, due, closing);
        hear(dog, neighbour, now);
        check_neighbour(dog, neighbour, now);
        ended = ended && neighbour->last_heard && neighbour->last_sent && neighbour->outgoing == MPI_REQUEST_NULL;
    }
    if (!closing) check_self(dog, now);
    return ended;
}

static void poll_nccl(struct h3_watchdog *dog)
{
    struct h3_nccl *nccl = atomic_load(&dog->nccl);
    if (nccl == NULL) return;
    h3_nccl_listen(nccl);
    if (dog->nccl_failure[0] == 0 && h3_nccl_poll(nccl) != H3_OK) {
        snprintf(dog->nccl_failure, sizeof dog->nccl_failure, "rank %d: %s", dog->rank, h3_error_text());
        dog->nccl_failed = h3_clock();
    }
    if (dog->nccl_failure[0] != 0 && h3_clock() - dog->nccl_failed > NOTICE) end_job(dog->nccl_failure);
}

static void *watch(void *user)
{
    struct h3_watchdog *dog = user;
    double longest = 1e6 * dog->limit / HEARTBEATS / 4;
    useconds_t idle = longest < IDLE_REST ? (useconds_t)longest : IDLE_REST;
    for (int i = 0; i < dog->neighbours; i++) listen_to(dog, &dog->neighbour[i]);
    while (!round_of(dog)) {
        poll_nccl(dog);
        usleep(atomic_load(&dog->closing) || atomic_load(dog->under_way) > 0 ? BUSY_REST : idle);
    }
    return NULL;
}

/* --- opening and closing -------------------------------------------------------------------------------------------- */

/* The ring: the rank before and the rank after, one and the same of two ranks. The rank after the lost one speaks first. */
static void know_neighbours(struct h3_watchdog *dog, int count, double now)
{
    dog->neighbours = count > 2 ? 2 : count - 1;
    for (int i = 0; i < dog->neighbours; i++) {
        int after = i == 1;
        dog->neighbour[i] = (h3_neighbour){
            .rank = (dog->rank + (after ? 1 : count - 1)) % count,
            .limit = dog->limit + (after ? LATER : 0),
            .heard = now,
            .incoming = MPI_REQUEST_NULL,
            .outgoing = MPI_REQUEST_NULL,
        };
    }
}

/* Signals are for the main thread. */
static int start_thread(struct h3_watchdog *dog)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(&dog->thread, NULL, watch, dog);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return code;
}

h3_status h3_watchdog_open(h3_ranks *ranks)
{
    double now;
    struct h3_watchdog *dog = calloc(1, sizeof *dog);
    if (dog == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for a watchdog; use fewer ranks on this machine");
    h3_status status = h3_ranks_check(ranks, MPI_Comm_dup(MPI_COMM_WORLD, &dog->comm), "start", -1);
    if (status != H3_OK) {
        free(dog);
        return status;
    }
    MPI_Comm_set_errhandler(dog->comm, MPI_ERRORS_RETURN);
    dog->rank = ranks->rank;
    dog->limit = ranks->watchdog;
    dog->under_way = &ranks->outbox->under_way;
    dog->place = (h3_place){.block = -1, .where = "the start"};
    pthread_mutex_init(&dog->lock, NULL);
    now = h3_clock();
    dog->beaten = dog->polled = now;
    dog->told = now - dog->limit;
    know_neighbours(dog, ranks->count, now);
    int code = start_thread(dog);
    if (code != 0) {
        free(dog);
        return h3_error(H3_ENVIRONMENT, "rank %d cannot start its watchdog: %s; allow more threads", ranks->rank, strerror(code));
    }
    ranks->dog = dog;
    return H3_OK;
}

void h3_watchdog_close(h3_ranks *ranks)
{
    struct h3_watchdog *dog = ranks->dog;
    atomic_store(&dog->closing, 1);
    pthread_join(dog->thread, NULL);
    pthread_mutex_destroy(&dog->lock);
    MPI_Comm_free(&dog->comm);
    free(dog);
    ranks->dog = NULL;
}

void h3_watchdog_poll_nccl(struct h3_watchdog *dog, struct h3_nccl *nccl) { atomic_store(&dog->nccl, nccl); }

MPI_Comm h3_watchdog_comm(const struct h3_watchdog *dog) { return dog->comm; }
