#include "store/publish.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"

enum { WRITE_PIECE = 1 << 30, ATTEMPTS = 1000 };

static h3_status cannot(const char *action, const char *path)
{
    int reason = errno;
    return h3_error(H3_ENVIRONMENT, "cannot %s %s: %s; check space and permissions, then run again", action, path,
                    strerror(reason));
}

static h3_status open_folder_of(int *out, const char **name, const char *path)
{
    char folder[H3_PATH_MAX];
    const char *slash = strrchr(path, '/');
    *name = slash == NULL ? path : slash + 1;
    if (**name == 0) return h3_error(H3_USAGE, "\"%s\" does not name a file; give a file name", path);
    if (slash == NULL) H3_TRY(h3_path(folder, "."));
    else H3_TRY(h3_path(folder, "%.*s", slash == path ? 1 : (int)(slash - path), path));
    *out = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return *out < 0 ? cannot("open the folder of", path) : H3_OK;
}

/* A killed writer of the same process id, or one on another host, may hold a name: take the next. The lock tells a cleaner that
 * the writer lives; a temporary that a cleaner was faster to remove has no links left. */
static h3_status create_temporary(h3_pending *file)
{
    static atomic_uint serial;
    struct stat info;
    for (int i = 0; i < ATTEMPTS; i++) {
        snprintf(file->temporary, sizeof file->temporary, H3_TEMPORARY_PREFIX "%ld-%u", (long)getpid(),
                 atomic_fetch_add(&serial, 1u));
        file->file = openat(file->folder, file->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (file->file < 0 && errno == EEXIST) continue;
        if (file->file < 0) return cannot("create", file->target);
        if (flock(file->file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) info.st_nlink = 0;
        else if (fstat(file->file, &info) != 0) info.st_nlink = 0;
        if (info.st_nlink > 0) return H3_OK;
        close(file->file);
        unlinkat(file->folder, file->temporary, 0);
    }
    return h3_error(H3_ENVIRONMENT,
                    "cannot create %s: no free temporary name; remove the " H3_TEMPORARY_PREFIX "* files beside it", file->target);
}

static h3_status write_all(int file, const void *data, size_t size, const char *path)
{
    const char *next = data;
    while (size > 0) {
        ssize_t n = write(file, next, size < WRITE_PIECE ? size : WRITE_PIECE);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return cannot("write", path);
        if (n == 0)
            return h3_error(H3_ENVIRONMENT, "cannot write %s: nothing more is accepted; check space, then run again", path);
        next += n;
        size -= (size_t)n;
    }
    return H3_OK;
}

/* A file system that cannot fsync a folder says EINVAL; there is nothing more to do then. */
static h3_status sync_folder(int folder, const char *path)
{
    return fsync(folder) == 0 || errno == EINVAL ? H3_OK : cannot("make durable", path);
}

/* As root a rename would put a file in the place of a device. */
static h3_status check_kind(const char *path)
{
    struct stat info;
    if (stat(path, &info) != 0 || S_ISREG(info.st_mode) || S_ISDIR(info.st_mode)) return H3_OK; /* rename refuses a folder itself */
    return h3_error(H3_USAGE, "%s is a device, pipe or socket; give the name of a file", path);
}

h3_status h3_pending_open(h3_pending *out, const char *path)
{
    out->target = path;
    H3_TRY(check_kind(path));
    H3_TRY(open_folder_of(&out->folder, &out->name, path));
    h3_status status = create_temporary(out);
    if (status != H3_OK) close(out->folder);
    return status;
}

h3_status h3_pending_path(char out[H3_PATH_MAX], const h3_pending *pending)
{
    return h3_path(out, "%.*s%s", (int)(pending->name - pending->target), pending->target, pending->temporary);
}

h3_status h3_pending_publish(h3_pending *pending)
{
    h3_status status = fsync(pending->file) == 0 ? H3_OK : cannot("write", pending->target);
    if (status == H3_OK && renameat(pending->folder, pending->temporary, pending->folder, pending->name) != 0)
        status = cannot("put in place", pending->target);
    if (status != H3_OK) {
        h3_pending_abandon(pending);
        return status;
    }
    close(pending->file);
    status = sync_folder(pending->folder, pending->target);
    close(pending->folder);
    return status;
}

void h3_pending_abandon(h3_pending *pending)
{
    unlinkat(pending->folder, pending->temporary, 0);
    close(pending->file);
    close(pending->folder);
}

h3_status h3_publish(const char *path, const void *data, size_t size)
{
    h3_pending pending;
    H3_TRY(h3_pending_open(&pending, path));
    h3_status status = write_all(pending.file, data, size, path);
    if (status == H3_OK) return h3_pending_publish(&pending);
    h3_pending_abandon(&pending);
    return status;
}

h3_status h3_publish_json(const char *path, const cJSON *value, int64_t *size, char sha256[H3_SHA256_HEX])
{
    char *text;
    H3_TRY(h3_json_print(&text, value));
    size_t length = strlen(text);
    h3_status status = H3_OK;
    if (sha256 != NULL) status = h3_sha256(sha256, text, length);
    if (status == H3_OK) status = h3_publish(path, text, length);
    if (status == H3_OK && size != NULL) *size = (int64_t)length;
    free(text);
    return status;
}
