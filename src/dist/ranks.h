/*
 * Ranks: one MPI process each, blocks in contiguous ranges, hidden states handed along the chain, and a watchdog that ends a job whose
 * ranks die or hang (qualification.md section 6). A program that runs without mpirun is one rank.
 */
#ifndef H3_DIST_RANKS_H
#define H3_DIST_RANKS_H

#include <stddef.h>
#include <stdint.h>

#include "graph/model.h"

/* What has come over this rank's links, since the ranks started. */
typedef struct h3_received {
    double waited;  /* seconds from asking for a tensor until its sender had it and, by NCCL, this device was through with earlier work */
    double handing; /* seconds from there until it was on this device: the hand-off itself */
    int64_t bytes;
} h3_received;

typedef struct h3_ranks {
    int rank, count;
    double watchdog; /* seconds */
    struct h3_watchdog *dog;
    struct h3_outbox *outbox; /* sends under way */
    struct h3_nccl *nccl;     /* NULL: hidden states are staged through the host */
    h3_received received;
    char hand_off[200];       /* how hidden states pass, for people; "" before h3_ranks_connect */
} h3_ranks;

/* MPI_Init_thread, watchdog thread, handlers for SIGUSR1 and SIGTERM (which only set a flag). H3_ENVIRONMENT when MPI fails. Ranks
 * above 0 stay silent on stdout (h3_log_enable). */
h3_status h3_ranks_start(h3_ranks *ranks, int *argc, char ***argv, double watchdog_seconds);
/* Ends MPI; every rank must get here. */
void h3_ranks_finish(h3_ranks *ranks);

/* Ends the whole job at once with exit code `status`, after printing "program: message" of this rank (with its rank number). For
 * failures between matching sends and receives. Does not return. */
void h3_ranks_abort(h3_ranks *ranks, const char *program, h3_status status) __attribute__((noreturn));

/* Blocks first .. first+count-1 of rank r: contiguous, sizes differ by at most one; with more than two ranks the larger ranges are not on
 * the first or last rank as far as possible. H3_USAGE when there are more ranks than blocks. */
h3_status h3_block_range(int rank, int ranks, int64_t blocks, int64_t *first, int64_t *count);

/* Collective. Everybody gets the worst status (H3_OK only if all are) and the message of the lowest rank that has it, prefixed with
 * "rank N: " when there is more than one rank. Order of worth: H3_STOPPED < H3_FAILED < H3_USAGE < H3_INTEGRITY < H3_ENVIRONMENT. */
h3_status h3_ranks_agree(h3_ranks *ranks, h3_status status);

/* Collective. The bytes of rank `root` on every rank; others get them in a new buffer (caller frees), root's is left alone. */
h3_status h3_ranks_broadcast(h3_ranks *ranks, int root, void **data, size_t *size);
/* Collective. Each rank's bytes at rank 0, in rank order: `all` and `sizes` are arrays of `count` (caller frees each and both); NULL elsewhere. */
h3_status h3_ranks_gather(h3_ranks *ranks, const void *data, size_t size, void ***all, size_t **sizes);
/* Point to point of host bytes, any size, `to`/`from` a rank; tags 0..999. Send does not wait for the receiver (the bytes are copied). */
h3_status h3_ranks_send(h3_ranks *ranks, int to, int tag, const void *data, size_t size);
h3_status h3_ranks_receive(h3_ranks *ranks, int from, int tag, void *data, size_t size);

/* Collective, before a link on a GPU is used: makes hidden states pass from GPU to GPU by NCCL where that is possible (link_nccl.h), and says
 * in ranks->hand_off how they pass. On the CPU and with one rank there is nothing to do. H3_ENVIRONMENT, naming the GPU, when NCCL fails or
 * is not there within the watchdog's time: other ranks may then wait for this one, end the job. */
h3_status h3_ranks_connect(h3_ranks *ranks, const h3_device *device);

/* The link for h3_model: tensors to and from the neighbours in the chain, by MPI (a device tensor is staged by its device) or, once the
 * ranks are connected, by NCCL. */
h3_link h3_ranks_link(h3_ranks *ranks, const h3_device *device);

/* Collective, once this rank's work along its links is over, done or not: tells both neighbours that nothing more comes, and takes from the
 * lines what they still sent. A rank that waits in a link for one that has parted gets H3_FAILED there; it parts in its turn, and
 * so on along the chain, until everybody is here. Afterwards the lines are empty and may be used again. */
h3_status h3_ranks_part(h3_ranks *ranks);
/* Whether a neighbour has parted while this rank waited for it, so that the H3_FAILED from the link is that rank's. Until h3_ranks_part. */
int h3_ranks_deserted(const h3_ranks *ranks);

/* Says that this rank is alive and where it is ("block 31, backward"). Cheap: called before every operator call. Without a beat for
 * `watchdog` seconds outside a receive, or without a heartbeat from a neighbour, the job ends with exit code 4 and the rank's name. */
void h3_ranks_beat(h3_ranks *ranks, const char *where, int64_t block);

/* H3_STOPPED once SIGUSR1 or SIGTERM has come to any rank; collective, for safe points between steps. */
h3_status h3_ranks_stop_requested(h3_ranks *ranks);
/* The same question in two halves, for ranks that work one behind the other and should not wait for each other: what is asked before a piece of work is heard
 * behind it, when all have come to ask. *stop: whether a signal had come to any rank when it asked; with one rank, by now. Each question is heard once, also after a failure. Collective. */
h3_status h3_ranks_stop_ask(h3_ranks *ranks);
h3_status h3_ranks_stop_hear(h3_ranks *ranks, int *stop);

#endif
