/*
 * The part of NCCL that the hand-off uses, between processes of one machine: pipes with names in a folder of TMPDIR, made from the communicator's id.
 *
 * Strict where NCCL only hangs or is undefined: a call while the communicator is still at the one before, from a thread on another device, or
 * on a communicator that is gone ends the process or is refused; so are two ranks on one GPU, and a start without NCCL_NVLS_ENABLE=0. A send is done
 * when its bytes were taken. Aborts are noted in the file H3_EMULATE_LOG: "RANK abort".
 */
#if __has_include(<nccl.h>)
#include <nccl.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <deque>
#include <map>
#include <string>

#include "emulate_failure.h"
#include "emulate_stream.h"

void h3_emulated_memory(bool open); /* emulate_memory.cpp */

namespace {

struct operation {
    bool sends;
    char *memory;
    size_t size, done;
    int peer, failure;
    h3_emulated_stream *stream;
};

enum { LIVE = 0x1ea5, GONE = 0xdead };

} // namespace

struct ncclComm {
    int mark = LIVE, rank, count, device;
    std::string folder;
    std::deque<operation> queue;
    std::map<int, int> pipes; /* descriptors: by peer to send to, by ~peer to receive from */
    ncclResult_t state = ncclInProgress;
    int looks = 0; /* at the state, since the last call */
    bool starting = true, hangs = false;
};

namespace {

ncclComm_t comms[16]; /* of this process, from the first on */
const char *last_error = "";

void need_live(ncclComm_t comm, const char *call)
{
    if (comm != nullptr && comm->mark == LIVE) return;
    fprintf(stderr, "emulated NCCL: %s on a communicator that is gone\n", call);
    abort();
}

ncclResult_t refuse(const char *why)
{
    last_error = why;
    return ncclInvalidUsage;
}

std::string marker(const ncclComm_t comm, int rank) { return comm->folder + "/rank-" + std::to_string(rank); }

bool read_marker(const ncclComm_t comm, int rank, char bus[32])
{
    FILE *file = fopen(marker(comm, rank).c_str(), "r");
    if (file == nullptr) return false;
    bool read = fscanf(file, "%31s", bus) == 1;
    fclose(file);
    return read;
}

/* Everybody has come, each with a GPU of its own? */
ncclResult_t everybody(ncclComm_t comm)
{
    char bus[64][32];
    if (comm->hangs) return ncclInProgress;
    for (int i = 0; i < comm->count; i++)
        if (!read_marker(comm, i, bus[i])) return ncclInProgress;
    for (int i = 1; i < comm->count; i++)
        for (int j = 0; j < i; j++)
            if (strcmp(bus[i], bus[j]) == 0) return refuse("Duplicate GPU detected");
    return ncclSuccess;
}

int pipe_of(ncclComm_t comm, int peer, bool sends)
{
    auto known = comm->pipes.find(sends ? peer : ~peer);
    if (known != comm->pipes.end()) return known->second;
    int from = sends ? comm->rank : peer, to = sends ? peer : comm->rank;
    std::string path = comm->folder + "/" + std::to_string(from) + "-" + std::to_string(to);
    if (mkfifo(path.c_str(), 0600) != 0 && errno != EEXIST) abort();
    int descriptor = open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (descriptor < 0) abort();
    return comm->pipes[sends ? peer : ~peer] = descriptor;
}

/* 1 when the operation is done. */
int move(ncclComm_t comm, operation &o)
{
    int left = 0, descriptor = pipe_of(comm, o.peer, o.sends);
    if (o.failure == H3_EMULATED_HANG) return 0;
    h3_emulated_memory(true);
    for (ssize_t moved = 1; o.done < o.size && moved > 0; o.done += moved > 0 ? (size_t)moved : 0)
        moved = o.sends ? write(descriptor, o.memory + o.done, o.size - o.done) : read(descriptor, o.memory + o.done, o.size - o.done);
    if (o.done == o.size && !o.sends && o.failure == H3_EMULATED_FLIP) o.memory[o.size / 2] ^= 1;
    h3_emulated_memory(false);
    if (o.done < o.size) return 0;
    return !o.sends || (ioctl(descriptor, FIONREAD, &left) == 0 && left == 0);
}

ncclResult_t post(bool sends, const void *memory, size_t size, int peer, ncclComm_t comm, cudaStream_t stream)
{
    std::lock_guard<std::recursive_mutex> guard(h3_emulated_lock());
    need_live(comm, sends ? "ncclSend" : "ncclRecv");
    if (comm->state != ncclSuccess) return refuse("a call while the communicator is still at the one before");
    if (comm->device != h3_emulated_device()) return refuse("a call from a thread that is on another device");
    int failure = h3_emulated_failure(sends ? "ncclSend" : "ncclRecv");
    last_error = "";
    if (failure > 0 && failure < H3_EMULATED_HANG) {
        last_error = "injected failure";
        return (ncclResult_t)failure;
    }
    h3_emulated_stream *own = (h3_emulated_stream *)(void *)stream;
    own->issued++;
    comm->queue.push_back({sends, (char *)(uintptr_t)memory, size, 0, peer, failure, own});
    comm->state = ncclInProgress;
    comm->looks = 0;
    return ncclInProgress;
}

void log_abort()
{
    const char *path = getenv("H3_EMULATE_LOG");
    FILE *file = path != nullptr ? fopen(path, "a") : nullptr;
    if (file == nullptr) return;
    fprintf(file, "%d abort\n", h3_emulated_rank());
    fclose(file);
}

void leave(ncclComm_t comm)
{
    for (auto &item : comm->pipes) {
        close(item.second);
        if (item.first >= 0) unlink((comm->folder + "/" + std::to_string(comm->rank) + "-" + std::to_string(item.first)).c_str());
    }
    unlink(marker(comm, comm->rank).c_str());
    rmdir(comm->folder.c_str()); /* the last one succeeds */
    comm->mark = GONE; /* kept, so that whoever uses it after this is found out */
    comm->queue.clear();
}

} // namespace

void h3_emulated_progress()
{
    std::lock_guard<std::recursive_mutex> guard(h3_emulated_lock());
    for (ncclComm_t comm : comms) {
        while (comm != nullptr && !comm->queue.empty() && move(comm, comm->queue.front())) {
            operation &o = comm->queue.front();
            o.stream->completed++;
            if (o.failure == H3_EMULATED_ASYNC) {
                last_error = "injected asynchronous failure";
                comm->state = ncclRemoteError;
            }
            comm->queue.pop_front();
        }
    }
}

extern "C" {
ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    static int made;
    struct timespec t;
    const char *nvls = getenv("NCCL_NVLS_ENABLE"), *folder = getenv("TMPDIR");
    if (nvls == nullptr || strcmp(nvls, "0") != 0) return refuse("NVLink multicast is not off");
    clock_gettime(CLOCK_REALTIME, &t);
    memset(id, 0, sizeof *id);
    int length = snprintf(id->internal, sizeof id->internal, "%s/nccl-%d-%ld-%d", folder != nullptr ? folder : "/tmp", (int)getpid(), (long)t.tv_nsec, made++);
    return length < (int)sizeof id->internal ? ncclSuccess : refuse("TMPDIR is too long");
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int count, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    std::lock_guard<std::recursive_mutex> guard(h3_emulated_lock());
    char bus[32];
    const char *nvls = getenv("NCCL_NVLS_ENABLE");
    int failure = h3_emulated_failure("ncclCommInitRankConfig");
    if (nvls == nullptr || strcmp(nvls, "0") != 0) return refuse("NVLink multicast is not off");
    if (config->blocking != 0) return refuse("the emulated NCCL knows communicators that do not block");
    if (failure > 0 && failure < H3_EMULATED_HANG) return (ncclResult_t)failure;
    ncclComm_t comm = *out = new ncclComm();
    comm->rank = rank;
    comm->count = count;
    comm->device = h3_emulated_device();
    comm->folder = id.internal;
    comm->hangs = failure == H3_EMULATED_HANG;
    for (ncclComm_t &free_place : comms) {
        if (free_place != nullptr) continue;
        free_place = comm;
        break;
    }
    if (mkdir(comm->folder.c_str(), 0700) != 0 && errno != EEXIST) return ncclSystemError;
    h3_emulated_bus(bus, sizeof bus, comm->device);
    FILE *file = fopen((marker(comm, rank) + ".new").c_str(), "w");
    if (file == nullptr) return ncclSystemError;
    fprintf(file, "%s\n", bus);
    fclose(file);
    return comm->hangs || rename((marker(comm, rank) + ".new").c_str(), marker(comm, rank).c_str()) == 0 ? ncclInProgress : ncclSystemError;
}

/* Work is taken at the third look after the call, so that nobody gets away with one. */
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state)
{
    std::lock_guard<std::recursive_mutex> guard(h3_emulated_lock());
    need_live(comm, "ncclCommGetAsyncError");
    h3_emulated_progress();
    if (comm->state == ncclInProgress && comm->starting) {
        comm->state = everybody(comm);
        comm->starting = comm->state == ncclInProgress;
    } else if (comm->state == ncclInProgress && ++comm->looks > 2) comm->state = ncclSuccess;
    *state = comm->state;
    return ncclSuccess;
}

ncclResult_t ncclSend(const void *memory, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)
{
    return type == ncclUint8 ? post(true, memory, count, peer, comm, stream) : refuse("the emulated NCCL knows bytes");
}
ncclResult_t ncclRecv(void *memory, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)
{
    return type == ncclUint8 ? post(false, memory, count, peer, comm, stream) : refuse("the emulated NCCL knows bytes");
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    std::lock_guard<std::recursive_mutex> guard(h3_emulated_lock());
    need_live(comm, "ncclCommFinalize");
    if (comm->state != ncclSuccess || !comm->queue.empty()) return refuse("an end while something is under way");
    comm->state = ncclInProgress;
    comm->looks = 0;
    return ncclInProgress;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    std::lock_guard<std::recursive_mutex> guard(h3_emulated_lock());
    need_live(comm, "ncclCommDestroy");
    leave(comm);
    return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    std::lock_guard<std::recursive_mutex> guard(h3_emulated_lock());
    need_live(comm, "ncclCommAbort");
    log_abort();
    leave(comm);
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    const char *const names[] = {"no error", "unhandled cuda error", "unhandled system error", "internal error", "invalid argument", "invalid usage", "remote process exited or there was a network error", "NCCL operation in progress"};
    return result >= 0 && result < ncclNumResults ? names[result] : "unknown result code";
}
const char *ncclGetLastError(ncclComm_t) { return last_error; }
}

#else
void h3_emulated_progress() {}
#endif
