/*
 * Point to point: the outbox of messages under way, and the link that hands hidden states along the chain by MPI (by NCCL: link_nccl.c).
 *
 * A message travels as its size (8 bytes) and then its bytes in pieces of at most `piece`, all with one tag; MPI keeps messages
 * of one sender and tag in order, so pieces never mix.
 */
#include "dist/internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "dist/link_nccl.h"

static const size_t PIECE = (size_t)1 << 30; /* MPI counts are ints */

struct h3_parcel {
    h3_parcel *next;
    int to;
    uint64_t size;
    char *data;
    size_t requests;
    MPI_Request request[];
};

struct h3_link_end {
    struct h3_link_end *next;
    h3_ranks *ranks;
    const h3_device *device;
};

/* --- outbox --------------------------------------------------------------------------------------------------------- */

h3_status h3_outbox_open(h3_ranks *ranks)
{
    ranks->outbox = calloc(1, sizeof *ranks->outbox);
    if (ranks->outbox == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for an outbox; use fewer ranks on this machine");
    ranks->outbox->piece = PIECE;
    return H3_OK;
}

void h3_parcel_free(h3_parcel *parcel)
{
    free(parcel->data);
    free(parcel);
}

/* Not zeroed as h3_alloc's: messages are large, and every byte is written next. */
static h3_status room_for(void **out, size_t size)
{
    *out = malloc(size > 0 ? size : 1);
    if (*out == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for a message of %zu bytes; use a smaller layout", size);
    return H3_OK;
}

/* Takes over `data`, also when it fails. */
static h3_status new_parcel(h3_parcel **out, const h3_ranks *ranks, void *data, size_t size)
{
    size_t requests = 1 + size / ranks->outbox->piece + (size % ranks->outbox->piece != 0);
    void *memory;
    h3_status status = room_for(&memory, sizeof **out + requests * sizeof(MPI_Request));
    if (status != H3_OK) {
        free(data);
        return status;
    }
    *out = memory;
    **out = (h3_parcel){.data = data, .size = size, .requests = requests};
    for (size_t i = 0; i < requests; i++) (*out)->request[i] = MPI_REQUEST_NULL;
    return H3_OK;
}

h3_status h3_parcel_copy(h3_parcel **out, const h3_ranks *ranks, const void *data, size_t size)
{
    void *copy;
    H3_TRY(room_for(&copy, size));
    if (size > 0) memcpy(copy, data, size);
    return new_parcel(out, ranks, copy, size);
}

h3_status h3_parcel_post(h3_ranks *ranks, int to, int tag, h3_parcel *parcel)
{
    size_t piece = ranks->outbox->piece;
    int code = MPI_Isend(&parcel->size, 1, MPI_UINT64_T, to, tag, MPI_COMM_WORLD, &parcel->request[0]);
    for (size_t i = 1; i < parcel->requests && code == MPI_SUCCESS; i++) {
        size_t done = (i - 1) * piece;
        int count = (int)(parcel->size - done < piece ? parcel->size - done : piece);
        code = MPI_Isend(parcel->data + done, count, MPI_BYTE, to, tag, MPI_COMM_WORLD, &parcel->request[i]);
    }
    /* Even after an error: what was sent before it is still read by MPI. */
    parcel->to = to;
    parcel->next = ranks->outbox->first;
    ranks->outbox->first = parcel;
    atomic_fetch_add(&ranks->outbox->under_way, 1);
    return h3_ranks_check(ranks, code, "send", to);
}

h3_status h3_parcel_post_last(h3_ranks *ranks, int to, int tag)
{
    h3_parcel *parcel;
    H3_TRY(h3_parcel_copy(&parcel, ranks, NULL, 0));
    parcel->size = H3_LINE_LAST;
    return h3_parcel_post(ranks, to, tag, parcel);
}

static void take_out(h3_ranks *ranks, h3_parcel **place)
{
    h3_parcel *parcel = *place;
    *place = parcel->next;
    h3_parcel_free(parcel);
    atomic_fetch_sub(&ranks->outbox->under_way, 1);
}

h3_status h3_outbox_reap(h3_ranks *ranks)
{
    h3_parcel **place = &ranks->outbox->first;
    h3_watchdog_leave(ranks->dog); /* a call that does not wait is a sign of life too */
    while (*place != NULL) {
        h3_parcel *parcel = *place;
        int done = 1;
        for (size_t i = 0; i < parcel->requests && done; i++)
            H3_TRY(h3_ranks_check(ranks, MPI_Test(&parcel->request[i], &done, MPI_STATUS_IGNORE), "send", parcel->to));
        if (done) take_out(ranks, place);
        else place = &parcel->next;
    }
    return H3_OK;
}

h3_status h3_outbox_flush(h3_ranks *ranks)
{
    while (ranks->outbox->first != NULL) {
        h3_parcel *parcel = ranks->outbox->first;
        for (size_t i = 0; i < parcel->requests; i++) H3_TRY(h3_ranks_wait(ranks, &parcel->request[i], "send", parcel->to));
        take_out(ranks, &ranks->outbox->first);
    }
    return H3_OK;
}

void h3_outbox_free(h3_ranks *ranks)
{
    if (ranks->outbox == NULL) return;
    while (ranks->outbox->ends != NULL) {
        struct h3_link_end *end = ranks->outbox->ends;
        ranks->outbox->ends = end->next;
        free(end);
    }
    free(ranks->outbox);
    ranks->outbox = NULL;
}

/* --- send and receive ----------------------------------------------------------------------------------------------- */

static h3_status receive_pieces(h3_ranks *ranks, int from, int tag, char *data, size_t size, int keep)
{
    size_t piece = ranks->outbox->piece;
    for (size_t done = 0; done < size; done += piece) {
        MPI_Request request;
        int count = (int)(size - done < piece ? size - done : piece);
        char *to = keep ? data + done : data;
        H3_TRY(h3_ranks_check(ranks, MPI_Irecv(to, count, MPI_BYTE, from, tag, MPI_COMM_WORLD, &request), "receive", from));
        H3_TRY(h3_ranks_wait(ranks, &request, "receive", from));
    }
    return H3_OK;
}

/* Takes a message that does not fit from the line, so that its sender can go on and end. */
static h3_status discard(h3_ranks *ranks, int from, int tag, size_t size)
{
    void *scratch;
    H3_TRY(room_for(&scratch, size < ranks->outbox->piece ? size : ranks->outbox->piece));
    h3_status status = receive_pieces(ranks, from, tag, scratch, size, 0);
    free(scratch);
    return status;
}

/* The size of the next message. */
static h3_status receive_size(h3_ranks *ranks, int from, int tag, uint64_t *sent)
{
    MPI_Request request;
    *sent = 0;
    H3_TRY(h3_ranks_check(ranks, MPI_Irecv(sent, 1, MPI_UINT64_T, from, tag, MPI_COMM_WORLD, &request), "receive", from));
    H3_TRY(h3_ranks_wait(ranks, &request, "receive", from));
    if (*sent == H3_LINE_LAST) ranks->outbox->parted[tag == H3_TAG_TO_PREVIOUS] = 1;
    return H3_OK;
}

h3_status h3_parcel_skip(h3_ranks *ranks, int from, int tag)
{
    uint64_t sent;
    H3_TRY(receive_size(ranks, from, tag, &sent));
    return sent == H3_LINE_LAST ? H3_OK : discard(ranks, from, tag, (size_t)sent);
}

/* `offered`: when the message was there to be taken. */
static h3_status receive_parcel(h3_ranks *ranks, int from, int tag, void *data, size_t size, double *offered)
{
    uint64_t sent;
    H3_TRY(receive_size(ranks, from, tag, &sent));
    *offered = h3_clock();
    if (sent == H3_LINE_LAST) return h3_error(H3_FAILED, "rank %d has stopped; nothing more comes from it", from);
    if (sent == size) return receive_pieces(ranks, from, tag, data, size, 1);
    H3_TRY(discard(ranks, from, tag, (size_t)sent));
    return h3_error(H3_INTEGRITY, "rank %d expects %zu bytes and rank %d sent %llu; run the same program and plan on all ranks",
                    ranks->rank, size, from, (unsigned long long)sent);
}

h3_status h3_parcel_receive(h3_ranks *ranks, int from, int tag, void *data, size_t size)
{
    double offered;
    return receive_parcel(ranks, from, tag, data, size, &offered);
}

h3_status h3_ranks_check_peer(const h3_ranks *ranks, const char *what, int peer)
{
    if (peer >= 0 && peer < ranks->count) return H3_OK;
    return h3_error(H3_USAGE, "rank %d cannot %s rank %d: there are %d ranks", ranks->rank, what, peer, ranks->count);
}

static h3_status check_tag(int tag)
{
    if (tag >= 0 && tag < H3_TAG_LIMIT) return H3_OK;
    return h3_error(H3_USAGE, "a message with tag %d; tags are 0 to %d", tag, H3_TAG_LIMIT - 1);
}

static h3_status send_copy(h3_ranks *ranks, int to, int tag, const void *data, size_t size)
{
    h3_parcel *parcel;
    H3_TRY(h3_outbox_reap(ranks));
    H3_TRY(h3_parcel_copy(&parcel, ranks, data, size));
    return h3_parcel_post(ranks, to, tag, parcel);
}

h3_status h3_ranks_send(h3_ranks *ranks, int to, int tag, const void *data, size_t size)
{
    H3_TRY(h3_ranks_check_peer(ranks, "send to", to));
    H3_TRY(check_tag(tag));
    return send_copy(ranks, to, tag, data, size);
}

h3_status h3_ranks_receive(h3_ranks *ranks, int from, int tag, void *data, size_t size)
{
    H3_TRY(h3_ranks_check_peer(ranks, "receive from", from));
    H3_TRY(check_tag(tag));
    H3_TRY(h3_outbox_reap(ranks));
    return h3_parcel_receive(ranks, from, tag, data, size);
}

void h3_ranks_received(h3_ranks *ranks, double asked, double offered, size_t bytes)
{
    ranks->received.waited += offered - asked;
    ranks->received.handing += h3_clock() - offered;
    ranks->received.bytes += (int64_t)bytes;
}

/* --- link ----------------------------------------------------------------------------------------------------------- */

static h3_status send_staged(const struct h3_link_end *end, int to, int tag, const void *data, size_t bytes)
{
    void *host;
    h3_parcel *parcel;
    H3_TRY(h3_outbox_reap(end->ranks));
    H3_TRY(room_for(&host, bytes));
    h3_status status = end->device->to_host(host, data, bytes);
    if (status != H3_OK) {
        free(host);
        return status;
    }
    H3_TRY(new_parcel(&parcel, end->ranks, host, bytes));
    return h3_parcel_post(end->ranks, to, tag, parcel);
}

static h3_status receive_staged(const struct h3_link_end *end, int from, int tag, void *data, size_t bytes, double *offered)
{
    void *host;
    H3_TRY(room_for(&host, bytes));
    h3_status status = receive_parcel(end->ranks, from, tag, host, bytes, offered);
    if (status == H3_OK) status = end->device->from_host(data, host, bytes);
    free(host);
    return status;
}

static h3_status check_end(const struct h3_link_end *end)
{
    return end != NULL ? H3_OK : h3_error(H3_ENVIRONMENT, "out of memory for a link; use fewer ranks on this machine");
}

static h3_status link_send(void *user, int to_next, const h3_tensor *tensor)
{
    const struct h3_link_end *end = user;
    H3_TRY(check_end(end));
    int to = end->ranks->rank + (to_next ? 1 : -1), tag = to_next ? H3_TAG_TO_NEXT : H3_TAG_TO_PREVIOUS;
    size_t bytes = h3_tensor_bytes(tensor);
    H3_TRY(h3_ranks_check_peer(end->ranks, "send to", to));
    if (end->device->kind == H3_DEVICE_CPU) return send_copy(end->ranks, to, tag, tensor->data, bytes);
    return send_staged(end, to, tag, tensor->data, bytes);
}

static h3_status link_receive(void *user, int from_previous, h3_tensor *tensor)
{
    const struct h3_link_end *end = user;
    H3_TRY(check_end(end));
    int from = end->ranks->rank + (from_previous ? -1 : 1), tag = from_previous ? H3_TAG_TO_NEXT : H3_TAG_TO_PREVIOUS;
    size_t bytes = h3_tensor_bytes(tensor);
    double asked = h3_clock(), offered;
    H3_TRY(h3_ranks_check_peer(end->ranks, "receive from", from));
    H3_TRY(h3_outbox_reap(end->ranks));
    if (end->device->kind == H3_DEVICE_CPU) H3_TRY(receive_parcel(end->ranks, from, tag, tensor->data, bytes, &offered));
    else H3_TRY(receive_staged(end, from, tag, tensor->data, bytes, &offered));
    h3_ranks_received(end->ranks, asked, offered, bytes);
    return H3_OK;
}

h3_link h3_ranks_link(h3_ranks *ranks, const h3_device *device)
{
    if (ranks->nccl != NULL && device->kind != H3_DEVICE_CPU) return (h3_link){.send = h3_nccl_send, .receive = h3_nccl_receive, .user = ranks};
    struct h3_link_end *end = malloc(sizeof *end);
    if (end != NULL) {
        *end = (struct h3_link_end){.next = ranks->outbox->ends, .ranks = ranks, .device = device};
        ranks->outbox->ends = end;
    }
    return (h3_link){.send = link_send, .receive = link_receive, .user = end};
}
