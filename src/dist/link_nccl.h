/*
 * Hand-off between GPUs: tensors go from device to device by NCCL, MPI carries only the words about them.
 *
 * NCCL is used when every rank has a GPU of its own; otherwise tensors are staged through the host and MPI (link.c). Bytes are the same
 * either way. NVLink multicast is off, always: it is not needed for this, and where it is broken it takes the GPUs down.
 *
 * Built with -DH3_NCCL (and -DH3_CUDA); without it there is no NCCL and everything is staged.
 */
#ifndef H3_DIST_LINK_NCCL_H
#define H3_DIST_LINK_NCCL_H

#include "dist/ranks.h"

/* For h3_ranks_connect. Collective: every rank's place, then NCCL's communicators if they can be had, with a first message over each.
 * ranks->nccl stays NULL when tensors are to be staged; ranks->hand_off says which it is and why. H3_ENVIRONMENT names the GPU. */
h3_status h3_nccl_open(h3_ranks *ranks, const h3_device *device);
/* Waits until every send has been received. */
h3_status h3_nccl_flush(struct h3_nccl *nccl);
/* All ranks are here and nothing is under way: gives the communicators back. */
h3_status h3_nccl_close(h3_ranks *ranks);
/* After the watchdog has ended; fine when there is nothing. */
void h3_nccl_free(h3_ranks *ranks);

/* The two functions of a link, `user` the h3_ranks. */
h3_status h3_nccl_send(void *user, int to_next, const h3_tensor *tensor);
h3_status h3_nccl_receive(void *user, int from_previous, h3_tensor *tensor);

/* For h3_ranks_part; `side` 0: the rank before this one, 1: the one after. Says, behind all that was sent there, that nothing more comes; takes the next
 * offer from there and lets its tensor go unsent, noting when it was the last. */
h3_status h3_nccl_post_last(struct h3_nccl *nccl, int side);
h3_status h3_nccl_skip(struct h3_nccl *nccl, int side);

/* Moves on what is under way and looks for errors of the communicators; never waits. The watchdog's thread calls it all the time. On
 * H3_ENVIRONMENT the job must end. */
h3_status h3_nccl_poll(struct h3_nccl *nccl);
/* The watchdog's thread, too: has another rank ended the job? Then the communicators are aborted and it does not return. */
void h3_nccl_listen(struct h3_nccl *nccl);
/* The process is about to end with `code`: has every rank abort its communicators, this one first; a rank that is lost is not waited for
 * longer than a second. Nothing happens where there are none. */
void h3_nccl_abort_all(int code);

#endif
