/*
 * Hidden states from GPU to GPU.
 *
 * A kernel of NCCL that waits for its other half keeps a part of the GPU busy, and whatever wants the whole GPU (memory that is returned, code that
 * is loaded) waits with it. So a tensor is first offered and asked for by MPI, and NCCL is called when both sides are there:
 *
 *   sender    copies the tensor on its stream; when the copy is there, offers its size           (the sender goes on computing)
 *   receiver  waits for the offer as for any message, lets its stream finish, answers, ncclRecv
 *   sender    on the answer: ncclSend, from the watchdog's thread if the main thread computes
 *
 * Communicators do not block: after a call their state is asked for until NCCL has taken the work, and then an event of CUDA until it is done. Each
 * look at the state also shows what went wrong elsewhere. A line carries one tensor after another, so order is the order of the sends.
 */
#include "dist/link_nccl.h"

#ifdef H3_NCCL
#include "dist/link_nccl_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"

static const double LATER = 0.5;  /* seconds a rank: what stands behind a transfer that hangs is complained about after it */
static const double PAUSE = 0.25; /* of the limit: a longer gap between two looks at the clock is not counted */

h3_status h3_nccl_check_cuda(const struct h3_nccl *nccl, cudaError_t code, const char *what)
{
    if (code == cudaSuccess) return H3_OK;
    return h3_error(H3_ENVIRONMENT, "GPU %d: %s: %s; "
                    "look at the GPU with nvidia-smi and run again", nccl->device->index, what, cudaGetErrorString(code));
}

h3_status h3_nccl_check(const struct h3_nccl *nccl, ncclResult_t code, const char *what, int peer)
{
    char with[40] = "all ranks";
    if (code == ncclSuccess || code == ncclInProgress) return H3_OK;
    if (peer >= 0) snprintf(with, sizeof with, "rank %d", peer);
    const char *last = ncclGetLastError(NULL), *more = last != NULL ? last : "";
    int length = (int)strcspn(more, "\n"); /* the message stays one line */
    return h3_error(H3_ENVIRONMENT, "GPU %d: NCCL failed in %s with %s: %s%s%.*s; "
                    "look at the GPUs with nvidia-smi, and start the stage again with NCCL_DEBUG=INFO",
                    nccl->device->index, what, with, ncclGetErrorString(code), length > 0 ? ": " : "", length < 200 ? length : 200, more);
}

h3_patience h3_nccl_patience(double limit) { return (h3_patience){.limit = limit, .last = h3_clock()}; }

int h3_nccl_expired(h3_patience *patience)
{
    double now = h3_clock(), gap = now - patience->last;
    patience->last = now;
    if (gap <= PAUSE * patience->limit) patience->spent += gap;
    return patience->spent > patience->limit;
}

/* --- what both threads do, under the lock ---------------------------------------------------------------------------- */

static h3_status event_done(const struct h3_nccl *nccl, const h3_transfer *transfer, int *done)
{
    cudaError_t code = cudaEventQuery(transfer->event);
    *done = code == cudaSuccess;
    if (code == cudaErrorNotReady) cudaGetLastError(); /* not an error to be found later */
    return code == cudaErrorNotReady ? H3_OK : h3_nccl_check_cuda(nccl, code, transfer->sends ? "sending a tensor" : "receiving a tensor");
}

static const char *work_of(const h3_transfer *transfer) { return transfer == NULL ? "earlier work" : transfer->sends ? "a send" : "a receive"; }

/* The communicator's state; work that it has taken gets its event. */
static h3_status look_at(const struct h3_nccl *nccl, h3_line *line)
{
    ncclResult_t state = ncclSuccess;
    h3_transfer *posted = line->posted;
    int peer = posted != NULL ? posted->peer : -1;
    if (line->comm == NULL) return H3_OK; /* aborted meanwhile, by a watchdog that could not wait for the lock: the job is at its end */
    H3_TRY(h3_nccl_check(nccl, ncclCommGetAsyncError(line->comm, &state), work_of(posted), peer));
    H3_TRY(h3_nccl_check(nccl, state, work_of(posted), peer));
    if (posted == NULL || state == ncclInProgress) return H3_OK;
    H3_TRY(h3_nccl_check_cuda(nccl, cudaEventRecord(posted->event, line->stream), "cudaEventRecord"));
    posted->step = H3_TRANSFER_RUNNING;
    line->posted = NULL;
    return H3_OK;
}

static h3_status post(const struct h3_nccl *nccl, h3_line *line, h3_transfer *transfer)
{
    ncclResult_t code;
    if (line->posted != NULL || line->comm == NULL) return H3_OK; /* in a moment; or never, see look_at */
    if (transfer->sends) code = ncclSend(transfer->memory, transfer->size, ncclUint8, transfer->peer, line->comm, line->stream);
    else code = ncclRecv(transfer->memory, transfer->size, ncclUint8, transfer->peer, line->comm, line->stream);
    H3_TRY(h3_nccl_check(nccl, code, work_of(transfer), transfer->peer));
    transfer->step = H3_TRANSFER_POSTED;
    line->posted = transfer;
    return look_at(nccl, line);
}

static h3_status offer(struct h3_nccl *nccl, int line, h3_transfer *transfer)
{
    int to = transfer->peer;
    H3_TRY(h3_ranks_check(nccl->ranks, MPI_Isend(&transfer->size, 1, MPI_UINT64_T, to, H3_TAG_OFFER + line, nccl->words, &transfer->offering), "send", to));
    H3_TRY(h3_ranks_check(nccl->ranks, MPI_Irecv(&transfer->answer, 1, MPI_INT32_T, to, H3_TAG_ANSWER + line, nccl->words, &transfer->answering), "send", to));
    transfer->step = H3_TRANSFER_OFFERED;
    return H3_OK;
}

static h3_status hear_answer(struct h3_nccl *nccl, h3_transfer *transfer)
{
    int offered = 0, answered = 0;
    H3_TRY(h3_ranks_check(nccl->ranks, MPI_Test(&transfer->offering, &offered, MPI_STATUS_IGNORE), "send", transfer->peer));
    H3_TRY(h3_ranks_check(nccl->ranks, MPI_Test(&transfer->answering, &answered, MPI_STATUS_IGNORE), "send", transfer->peer));
    if (offered && answered) transfer->step = transfer->answer ? H3_TRANSFER_WANTED : H3_TRANSFER_DONE;
    return H3_OK;
}

/* Takes the oldest send of a line as far as it goes. */
static h3_status advance(struct h3_nccl *nccl, int number, h3_transfer *transfer)
{
    int done;
    if (transfer->step == H3_TRANSFER_COPYING) {
        done = transfer->size == H3_LINE_LAST; /* which has nothing to copy */
        if (!done) H3_TRY(event_done(nccl, transfer, &done));
        if (done) H3_TRY(offer(nccl, number, transfer));
    }
    if (transfer->step == H3_TRANSFER_OFFERED) H3_TRY(hear_answer(nccl, transfer));
    if (transfer->step == H3_TRANSFER_WANTED) H3_TRY(post(nccl, &nccl->line[number], transfer));
    if (transfer->step == H3_TRANSFER_RUNNING) {
        H3_TRY(event_done(nccl, transfer, &done));
        if (done) transfer->step = H3_TRANSFER_DONE;
    }
    return H3_OK;
}

static h3_status move_on(struct h3_nccl *nccl)
{
    if (nccl->dead) return h3_error(H3_ENVIRONMENT, "%s", nccl->failure);
    for (int i = 0; i < H3_LINES; i++) {
        h3_line *line = &nccl->line[i];
        H3_TRY(look_at(nccl, line));
        while (line->sends != NULL) {
            h3_transfer *oldest = line->sends;
            H3_TRY(advance(nccl, i, oldest));
            if (oldest->step != H3_TRANSFER_DONE) break;
            line->sends = oldest->next;
            oldest->next = nccl->delivered;
            nccl->delivered = oldest;
            atomic_fetch_sub(&nccl->ranks->outbox->under_way, 1);
        }
    }
    return H3_OK;
}

/* After a failure nobody calls NCCL any more, and no transfer of a function that has returned is touched. */
static h3_status give_up(struct h3_nccl *nccl, h3_status status)
{
    if (status == H3_OK || nccl->dead) return status;
    nccl->dead = 1;
    snprintf(nccl->failure, sizeof nccl->failure, "%s", h3_error_text()); /* the other thread may be the one that tells it */
    for (int i = 0; i < H3_LINES; i++) nccl->line[i].posted = NULL;
    return status;
}

h3_status h3_nccl_poll(struct h3_nccl *nccl)
{
    if (pthread_mutex_trylock(&nccl->lock) != 0) return H3_OK; /* the main thread is at it */
    static _Thread_local int on_device; /* a thread has a device of its own */
    h3_status status = H3_OK;
    if (!nccl->dead) {
        if (!on_device) status = h3_nccl_check_cuda(nccl, cudaSetDevice(nccl->device->index), "cudaSetDevice");
        on_device = 1;
        if (status == H3_OK) status = move_on(nccl);
        give_up(nccl, status);
    }
    pthread_mutex_unlock(&nccl->lock);
    return status;
}

/* --- sending --------------------------------------------------------------------------------------------------------- */

static void free_transfer(const struct h3_nccl *nccl, h3_transfer *transfer)
{
    if (transfer->memory != NULL) nccl->device->release(transfer->memory);
    if (transfer->event != NULL) cudaEventDestroy(transfer->event);
    free(transfer);
}

void h3_nccl_reap(struct h3_nccl *nccl)
{
    pthread_mutex_lock(&nccl->lock);
    h3_transfer *delivered = nccl->delivered;
    nccl->delivered = NULL;
    pthread_mutex_unlock(&nccl->lock);
    while (delivered != NULL) {
        h3_transfer *next = delivered->next;
        free_transfer(nccl, delivered);
        delivered = next;
    }
}

/* A copy of the tensor, under way on the device's stream. */
static h3_status begin_copy(const struct h3_nccl *nccl, const h3_tensor *tensor, int to, h3_transfer **out)
{
    void *memory;
    size_t bytes = h3_tensor_bytes(tensor);
    h3_status status = h3_alloc(&memory, 1, sizeof **out, "a message");
    H3_TRY(status);
    h3_transfer *transfer = memory;
    *transfer = (h3_transfer){.sends = 1, .peer = to, .size = bytes, .offering = MPI_REQUEST_NULL, .answering = MPI_REQUEST_NULL};
    H3_GOTO(nccl->device->allocate(&transfer->memory, bytes), failed);
    H3_GOTO(nccl->device->copy(transfer->memory, tensor->data, bytes), failed);
    H3_GOTO(h3_nccl_check_cuda(nccl, cudaEventCreateWithFlags(&transfer->event, cudaEventDisableTiming), "cudaEventCreate"), failed);
    H3_GOTO(h3_nccl_check_cuda(nccl, cudaEventRecord(transfer->event, nccl->device->stream), "cudaEventRecord"), failed);
    *out = transfer;
    return H3_OK;
failed:
    free_transfer(nccl, transfer);
    return status;
}

/* Takes over the transfer. */
static h3_status enqueue(struct h3_nccl *nccl, int to_next, h3_transfer *transfer)
{
    h3_transfer **end;
    pthread_mutex_lock(&nccl->lock);
    for (end = &nccl->line[to_next ? H3_LINE_UP : H3_LINE_DOWN].sends; *end != NULL;) end = &(*end)->next;
    *end = transfer;
    atomic_fetch_add(&nccl->ranks->outbox->under_way, 1);
    h3_status status = give_up(nccl, move_on(nccl));
    pthread_mutex_unlock(&nccl->lock);
    return status;
}

h3_status h3_nccl_send(void *user, int to_next, const h3_tensor *tensor)
{
    h3_ranks *ranks = user;
    h3_transfer *transfer;
    int to = ranks->rank + (to_next ? 1 : -1);
    H3_TRY(h3_ranks_check_peer(ranks, "send to", to));
    h3_nccl_reap(ranks->nccl);
    H3_TRY(begin_copy(ranks->nccl, tensor, to, &transfer));
    return enqueue(ranks->nccl, to_next, transfer);
}

h3_status h3_nccl_post_last(struct h3_nccl *nccl, int side)
{
    void *memory;
    H3_TRY(h3_alloc(&memory, 1, sizeof(h3_transfer), "a message"));
    h3_transfer *transfer = memory;
    *transfer = (h3_transfer){.sends = 1, .peer = nccl->ranks->rank + (side ? 1 : -1), .size = H3_LINE_LAST, .offering = MPI_REQUEST_NULL,
                              .answering = MPI_REQUEST_NULL};
    return enqueue(nccl, side, transfer);
}

static int all_sent(struct h3_nccl *nccl, int *peer, h3_status *status)
{
    int empty = 1;
    pthread_mutex_lock(&nccl->lock);
    *status = give_up(nccl, move_on(nccl));
    for (int i = 0; i < H3_LINES; i++) {
        const h3_transfer *oldest = nccl->line[i].sends;
        if (oldest == NULL) continue;
        empty = 0;
        *peer = oldest->peer;
    }
    pthread_mutex_unlock(&nccl->lock);
    return empty;
}

/* Receivers may come late, so there is no limit of its own: the watchdog knows who is alive. */
h3_status h3_nccl_flush(struct h3_nccl *nccl)
{
    h3_status status;
    int peer = -1;
    for (int turn = 0; !all_sent(nccl, &peer, &status) && status == H3_OK; turn++) {
        h3_watchdog_enter(nccl->ranks->dog, "send", peer);
        h3_ranks_rest(turn);
        h3_watchdog_leave(nccl->ranks->dog); /* a call that hangs is this rank's own silence */
    }
    h3_nccl_reap(nccl);
    return status;
}

/* --- receiving ------------------------------------------------------------------------------------------------------- */

static h3_status take_offer(struct h3_nccl *nccl, int line, int from, uint64_t *size)
{
    MPI_Request request;
    h3_ranks *ranks = nccl->ranks;
    H3_TRY(h3_ranks_check(ranks, MPI_Irecv(size, 1, MPI_UINT64_T, from, H3_TAG_OFFER + line, nccl->words, &request), "receive", from));
    H3_TRY(h3_ranks_wait(ranks, &request, "receive", from));
    if (*size == H3_LINE_LAST) ranks->outbox->parted[line == H3_LINE_DOWN] = 1;
    return H3_OK;
}

static h3_status answer_offer(struct h3_nccl *nccl, int line, int to, int32_t wanted)
{
    MPI_Request request;
    h3_ranks *ranks = nccl->ranks;
    H3_TRY(h3_ranks_check(ranks, MPI_Isend(&wanted, 1, MPI_INT32_T, to, H3_TAG_ANSWER + line, nccl->words, &request), "receive", to));
    return h3_ranks_wait(ranks, &request, "receive", to);
}

h3_status h3_nccl_skip(struct h3_nccl *nccl, int side)
{
    uint64_t size = 0;
    int from = nccl->ranks->rank + (side ? 1 : -1), number = side ? H3_LINE_DOWN : H3_LINE_UP;
    H3_TRY(take_offer(nccl, number, from, &size));
    return answer_offer(nccl, number, from, 0);
}

static h3_status try_receive(struct h3_nccl *nccl, int number, h3_transfer *transfer, int *done)
{
    h3_status status;
    *done = 0;
    pthread_mutex_lock(&nccl->lock);
    status = move_on(nccl);
    if (status == H3_OK && transfer->step == H3_TRANSFER_WANTED) status = post(nccl, &nccl->line[number], transfer);
    if (status == H3_OK && transfer->step == H3_TRANSFER_RUNNING) status = event_done(nccl, transfer, done);
    give_up(nccl, status);
    pthread_mutex_unlock(&nccl->lock);
    return status;
}

/* Both sides are there: from here on it is NCCL's time alone, and that is limited. */
static h3_status run_receive(struct h3_nccl *nccl, int number, h3_transfer *transfer)
{
    int done = 0;
    h3_status status = H3_OK;
    int behind = number == H3_LINE_UP ? nccl->ranks->rank : nccl->ranks->count - 1 - nccl->ranks->rank; /* the line's first */
    h3_patience patience = h3_nccl_patience(nccl->ranks->watchdog + LATER * behind);
    for (int turn = 0; status == H3_OK; turn++) {
        h3_watchdog_leave(nccl->ranks->dog); /* a call that hangs is this rank's own silence */
        status = try_receive(nccl, number, transfer, &done);
        if (done) break;
        h3_watchdog_enter(nccl->ranks->dog, "receive", transfer->peer);
        if (status == H3_OK && h3_nccl_expired(&patience)) {
            status = h3_error(H3_ENVIRONMENT, "GPU %d: %llu bytes from the GPU of rank %d have not come within %g s; "
                              "look at both GPUs with nvidia-smi, and start the stage again with NCCL_DEBUG=INFO",
                              nccl->device->index, (unsigned long long)transfer->size, transfer->peer, nccl->ranks->watchdog);
            pthread_mutex_lock(&nccl->lock);
            give_up(nccl, status);
            pthread_mutex_unlock(&nccl->lock);
        }
        h3_ranks_rest(turn);
    }
    h3_watchdog_leave(nccl->ranks->dog);
    return status;
}

h3_status h3_nccl_receive(void *user, int from_previous, h3_tensor *tensor)
{
    h3_ranks *ranks = user;
    struct h3_nccl *nccl = ranks->nccl;
    int from = ranks->rank + (from_previous ? -1 : 1), number = from_previous ? H3_LINE_UP : H3_LINE_DOWN;
    h3_transfer transfer = {.step = H3_TRANSFER_WANTED, .peer = from, .memory = tensor->data, .size = h3_tensor_bytes(tensor)};
    uint64_t size = 0;
    double asked = h3_clock();
    H3_TRY(h3_ranks_check_peer(ranks, "receive from", from));
    h3_nccl_reap(nccl);
    H3_TRY(take_offer(nccl, number, from, &size));
    if (size != transfer.size) {
        H3_TRY(answer_offer(nccl, number, from, 0));
        if (size == H3_LINE_LAST) return h3_error(H3_FAILED, "rank %d has stopped; nothing more comes from it", from);
        return h3_error(H3_INTEGRITY, "rank %d expects %llu bytes and rank %d sent %llu; run the same program and plan on all ranks", ranks->rank,
                        (unsigned long long)transfer.size, from, (unsigned long long)size);
    }
    /* Earlier work on the stream may still read what was at this place. */
    H3_TRY(h3_nccl_check_cuda(nccl, cudaStreamSynchronize(nccl->device->stream), "finishing what was started"));
    double offered = h3_clock();
    H3_TRY(h3_nccl_check_cuda(nccl, cudaEventCreateWithFlags(&transfer.event, cudaEventDisableTiming), "cudaEventCreate"));
    h3_status status = answer_offer(nccl, number, from, 1);
    if (status == H3_OK) status = run_receive(nccl, number, &transfer);
    if (status == H3_OK) h3_ranks_received(ranks, asked, offered, h3_tensor_bytes(tensor));
    cudaEventDestroy(transfer.event);
    return status;
}

#endif
