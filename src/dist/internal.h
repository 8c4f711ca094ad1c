/* What the files of this folder share. Waits of the main thread go through h3_ranks_wait, so that the watchdog knows of them. */
#ifndef H3_DIST_INTERNAL_H
#define H3_DIST_INTERNAL_H

#include <mpi.h>
#include <stdatomic.h>

#include "dist/ranks.h"

/* Tags above those that callers may use. */
enum { H3_TAG_LIMIT = 1000, H3_TAG_TO_NEXT = H3_TAG_LIMIT, H3_TAG_TO_PREVIOUS, H3_TAG_GATHER };

/* A size that says: nothing more comes on this line (h3_ranks_part). */
#define H3_LINE_LAST UINT64_MAX

typedef struct h3_parcel h3_parcel; /* one message under way, with its bytes */

struct h3_outbox {
    h3_parcel *first;
    struct h3_link_end *ends;
    size_t piece;         /* bytes of the largest single MPI message, the same on every rank */
    atomic_int under_way; /* parcels in the list: the watchdog's thread moves their bytes while the main thread computes */
    int parted[2];        /* the neighbour before, the neighbour after: has said that nothing more comes (h3_ranks_part) */
    struct {
        MPI_Request request;
        int64_t mine, all;
    } question;           /* h3_ranks_stop_ask, until h3_ranks_stop_hear; MPI writes to it */
    char failure[400];    /* the first call of MPI that failed: the ranks can no longer end together */
};

/* H3_ENVIRONMENT, with both ranks' names, unless `code` is MPI_SUCCESS. `peer` -1: all ranks. */
h3_status h3_ranks_check(h3_ranks *ranks, int code, const char *what, int peer);
/* Polls until the request is done; `what` and `peer` as above. */
h3_status h3_ranks_wait(h3_ranks *ranks, MPI_Request *request, const char *what, int peer);
/* One line "program: message" on stderr, then the whole job ends with exit code `code`. The first caller in a process wins. */
void h3_ranks_end_job(int code, const char *program, const char *message) __attribute__((noreturn));
/* Another rank is ending the job and says so itself: this process is silent from now on and ends with `code` if nobody ends it in some
 * seconds. 0 when this process ends the job already. */
int h3_ranks_give_way(int code);
/* Waits a little, longer from turn to turn; and the status of a peer that cannot be, of NULL for a link. */
void h3_ranks_rest(int turn);
h3_status h3_ranks_check_peer(const h3_ranks *ranks, const char *what, int peer);

/* A tensor has come: it was asked for, and offered by its sender, when h3_clock said so. */
void h3_ranks_received(h3_ranks *ranks, double asked, double offered, size_t bytes);

/* Outbox. A parcel holds a copy of the bytes. Until it is posted, h3_parcel_free gets rid of it. */
h3_status h3_outbox_open(h3_ranks *ranks);
h3_status h3_parcel_copy(h3_parcel **out, const h3_ranks *ranks, const void *data, size_t size);
void h3_parcel_free(h3_parcel *parcel);
h3_status h3_parcel_post(h3_ranks *ranks, int to, int tag, h3_parcel *parcel);
/* The last message of a line (H3_TAG_TO_NEXT, H3_TAG_TO_PREVIOUS): nothing more comes. */
h3_status h3_parcel_post_last(h3_ranks *ranks, int to, int tag);
/* Takes the next message from a line and throws it away; notes it when it was the last. */
h3_status h3_parcel_skip(h3_ranks *ranks, int from, int tag);
/* H3_INTEGRITY when the sender's size is another one; its bytes are taken from the line nevertheless. H3_FAILED when it was the line's last
 * message. */
h3_status h3_parcel_receive(h3_ranks *ranks, int from, int tag, void *data, size_t size);
/* Frees what has been delivered. */
h3_status h3_outbox_reap(h3_ranks *ranks);
/* Waits until everything is delivered. */
h3_status h3_outbox_flush(h3_ranks *ranks);
void h3_outbox_free(h3_ranks *ranks);

/* Watchdog. Open is collective; leave and enter bracket a legitimate wait. */
h3_status h3_watchdog_open(h3_ranks *ranks);
void h3_watchdog_enter(struct h3_watchdog *dog, const char *what, int peer);
void h3_watchdog_leave(struct h3_watchdog *dog);
/* From now on its thread polls NCCL: moves tensors on while the main thread computes, and ends the job when a communicator has failed. */
void h3_watchdog_poll_nccl(struct h3_watchdog *dog, struct h3_nccl *nccl);
/* All ranks are known to be here: says good-bye to the neighbours, waits for theirs, ends the thread. */
void h3_watchdog_close(h3_ranks *ranks);
/* Where the main thread was last, in words; for signal handlers. */
void h3_watchdog_place(const struct h3_watchdog *dog, char out[200]);
/* The watchdog's own communicator, for the barrier before closing it. */
MPI_Comm h3_watchdog_comm(const struct h3_watchdog *dog);

/* From open to close a crash of this process, and a call of exit(), are said in one line with the last known place; the exit code is then 4. After MPI has
 * started, which has handlers of its own. Once a process. */
void h3_last_words_open(const h3_ranks *ranks);
void h3_last_words_close(void);

#endif
