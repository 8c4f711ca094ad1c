#include "store/archive_input.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const unsigned char magic[4] = {0x28, 0xb5, 0x2f, 0xfd};
enum {
    FRAME_HEADER = 6,
    CHECKSUM_ONLY = 0x04,
    WINDOW_8_MIB = 13 << 3,
    BLOCK_HEADER = 3,
    BLOCK_RAW = 0,
    BLOCK_REPEATED = 1,
    BLOCK_RESERVED = 3,
    CHECKSUM = 4
};

/* A frame: header, blocks of 3 bytes of header and a size, checksum. Frames with another header could expand to the same bytes.
 */
const char *h3_zstd_frame_problem(int file, off_t size)
{
    unsigned char header[FRAME_HEADER];
    off_t at = FRAME_HEADER;
    if (pread(file, header, sizeof header, 0) != sizeof header) return "it is cut off";
    if (memcmp(header, magic, sizeof magic) != 0 || header[4] != CHECKSUM_ONLY || header[5] != WINDOW_8_MIB)
        return "its frame is not as archive_evidence.sh makes it";
    for (int last = 0; !last;) {
        unsigned char block[BLOCK_HEADER];
        if (pread(file, block, sizeof block, at) != sizeof block) return "it is cut off";
        unsigned value = block[0] | (unsigned)block[1] << 8 | (unsigned)block[2] << 16, type = value >> 1 & 3;
        last = value & 1;
        if (type == BLOCK_RESERVED) return "one of its blocks is damaged";
        at += BLOCK_HEADER + (type == BLOCK_REPEATED ? 1 : (off_t)(value >> 3));
        if (at > size) return "it is cut off, or one of its blocks is damaged";
    }
    at += CHECKSUM;
    return at == size ? NULL : at > size ? "it is cut off" : "there are bytes behind its end";
}

static h3_status read_all(h3_archive_input *input, void *data, size_t size, size_t *got)
{
    *got = 0;
    while (*got < size) {
        ssize_t n = read(input->source, (char *)data + *got, size - *got);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return h3_error(H3_ENVIRONMENT, "cannot read %s: %s; check the disk", input->stream.name, strerror(errno));
        if (n == 0) break;
        *got += (size_t)n;
    }
    return H3_OK;
}

/* At the end of its output zstd says whether that is all. */
static h3_status join(h3_archive_input *input)
{
    int state;
    pid_t ended;
    do ended = waitpid(input->zstd, &state, 0);
    while (ended < 0 && errno == EINTR);
    input->zstd = 0;
    if (ended > 0 && WIFEXITED(state) && WEXITSTATUS(state) == 0) return H3_OK;
    if (ended > 0 && WIFEXITED(state) && WEXITSTATUS(state) == 127)
        return h3_error(H3_ENVIRONMENT, "zstd cannot be started; install it (make deps)");
    return h3_error(H3_INTEGRITY, "%s: its compressed data are damaged; fetch it again", input->stream.name);
}

static h3_status read_stream(void *user, void *data, size_t size, size_t *got)
{
    h3_archive_input *input = user;
    H3_TRY(read_all(input, data, size, got));
    return *got < size && input->zstd > 0 ? join(input) : H3_OK;
}

static h3_status start_zstd(h3_archive_input *input)
{
    extern char **environ;
    char *const arguments[] = {"zstd", "-q", "-d", "-c", "--memory=16MB", NULL};
    int ends[2];
    posix_spawn_file_actions_t actions;
    if (pipe2(ends, O_CLOEXEC) != 0) return h3_error(H3_ENVIRONMENT, "cannot make a pipe: %s", strerror(errno));
    input->source = ends[0];
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, input->file, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    int reason = posix_spawnp(&input->zstd, arguments[0], &actions, NULL, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    if (reason == 0) return H3_OK;
    input->zstd = 0;
    return h3_error(H3_ENVIRONMENT, "zstd cannot be started: %s; install it (make deps)", strerror(reason));
}

static h3_status open_input(h3_archive_input *input)
{
    const char *path = input->stream.name;
    struct stat info;
    unsigned char first[sizeof magic];
    input->file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (input->file < 0) return h3_error(H3_INTEGRITY, "cannot open %s: %s; check the path", path, strerror(errno));
    if (fstat(input->file, &info) != 0 || !S_ISREG(info.st_mode))
        return h3_error(H3_INTEGRITY, "%s is not a regular file; check the path", path);
    input->source = input->file;
    if (pread(input->file, first, sizeof first, 0) != sizeof first)
        return h3_error(H3_INTEGRITY, "%s is empty or cut off; fetch it again", path);
    if (memcmp(first, magic, sizeof magic) != 0) return H3_OK;
    const char *problem = h3_zstd_frame_problem(input->file, info.st_size);
    if (problem != NULL) return h3_error(H3_INTEGRITY, "%s: %s; fetch it again", path, problem);
    return start_zstd(input);
}

h3_status h3_archive_input_open(h3_archive_input *out, const char *path)
{
    *out = (h3_archive_input){.file = -1, .source = -1};
    out->stream = (h3_stream){read_stream, out, path};
    h3_status status = open_input(out);
    if (status != H3_OK) h3_archive_input_close(out);
    return status;
}

void h3_archive_input_close(h3_archive_input *input)
{
    if (input->source >= 0 && input->source != input->file) close(input->source);
    if (input->file >= 0) close(input->file);
    if (input->zstd > 0) {
        kill(input->zstd, SIGTERM);
        while (waitpid(input->zstd, NULL, 0) < 0 && errno == EINTR) continue;
    }
    *input = (h3_archive_input){.file = -1, .source = -1};
}
