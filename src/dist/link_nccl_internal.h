/* What the two files about NCCL share: link_nccl.c moves tensors, link_nccl_open.c starts and ends. Only in builds with NCCL. */
#ifndef H3_DIST_LINK_NCCL_INTERNAL_H
#define H3_DIST_LINK_NCCL_INTERNAL_H

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <pthread.h>

#include "dist/internal.h"
#include "dist/link_nccl.h"

/* One communicator a direction. What is to be sent up the chain then never stands behind what comes down it, and within one direction
 * the last rank only receives: no order of calls can lock the ranks. */
enum { H3_LINE_UP, H3_LINE_DOWN, H3_LINES };

/* Messages about tensors, on a communicator of MPI of their own. Offers and answers: one tag a line. */
enum { H3_TAG_OFFER, H3_TAG_ANSWER = H3_TAG_OFFER + H3_LINES, H3_TAG_NOTICE = H3_TAG_ANSWER + H3_LINES, H3_TAG_NOTED };

/* The way of a tensor. A sender's: copied, offered, wanted, posted, running; a receiver's begins where it is wanted. */
typedef enum { H3_TRANSFER_COPYING, H3_TRANSFER_OFFERED, H3_TRANSFER_WANTED, H3_TRANSFER_POSTED, H3_TRANSFER_RUNNING, H3_TRANSFER_DONE } h3_transfer_step;

typedef struct h3_transfer {
    struct h3_transfer *next;
    h3_transfer_step step;
    int sends, peer;
    void *memory; /* on the device */
    uint64_t size;
    cudaEvent_t event; /* after the copy, then after NCCL's work */
    int32_t answer;
    MPI_Request offering, answering;
} h3_transfer;

typedef struct h3_line {
    ncclComm_t comm;
    cudaStream_t stream;
    h3_transfer *sends;  /* oldest first; only the oldest is beyond its copy */
    h3_transfer *posted; /* NCCL is still at taking it: the communicator may only be asked for its state */
} h3_line;

struct h3_nccl {
    h3_ranks *ranks;
    const h3_device *device;
    MPI_Comm words;
    pthread_mutex_t lock; /* of all that follows: the watchdog's thread polls */
    h3_line line[H3_LINES];
    h3_transfer *delivered; /* their memory is released by the main thread */
    int dead;               /* not yet open, failed, aborted or closed: NCCL is not called for a transfer */
    char failure[700];      /* the first one */
    MPI_Request notice;     /* from a rank that ends the job */
    int32_t notice_code;
};

/* H3_ENVIRONMENT, naming the GPU, unless NCCL has succeeded or is at it; the same for CUDA. `peer` -1: all ranks. */
h3_status h3_nccl_check(const struct h3_nccl *nccl, ncclResult_t code, const char *what, int peer);
h3_status h3_nccl_check_cuda(const struct h3_nccl *nccl, cudaError_t code, const char *what);

/* Releases what has been delivered. Main thread. */
void h3_nccl_reap(struct h3_nccl *nccl);

/* A time limit that does not count pauses of this process (a suspended job). */
typedef struct h3_patience {
    double limit, spent, last;
} h3_patience;
h3_patience h3_nccl_patience(double limit);
int h3_nccl_expired(h3_patience *patience);

#endif
