/* Folders: making, walking, cleaning; and the rule for relative paths. */
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/publish.h"

static h3_status cannot(const char *action, const char *path, int reason)
{
    return h3_error(H3_ENVIRONMENT, "cannot %s %s: %s; check the path and permissions", action, path, strerror(reason));
}

/* The new name is durable only when its folder is; a folder that we may not read cannot be synced. */
static void sync_parent(int parent)
{
    int readable = openat(parent, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (readable < 0) return;
    fsync(readable);
    close(readable);
}

/* Steps from `*folder` into `name`, making it where needed. O_PATH asks for no read permission on the way. */
static h3_status step_into(int *folder, const char *name, int *made, const char *path)
{
    int flags = O_PATH | O_DIRECTORY | O_CLOEXEC;
    int next = openat(*folder, name, *made ? flags | O_NOFOLLOW : flags);
    if (next < 0 && errno == ENOENT) {
        if (mkdirat(*folder, name, 0777) != 0 && errno != EEXIST) return cannot("make the folder", path, errno);
        *made = 1;
        sync_parent(*folder);
        next = openat(*folder, name, flags | O_NOFOLLOW);
    }
    if (next < 0) return cannot("make the folder", path, errno);
    close(*folder);
    *folder = next;
    return H3_OK;
}

h3_status h3_make_folders(const char *path)
{
    char copy[H3_PATH_MAX], *rest = NULL;
    int made = 0;
    if (*path == 0) return h3_error(H3_USAGE, "an empty folder name; give a folder");
    H3_TRY(h3_path(copy, "%s", path));
    int folder = open(*path == '/' ? "/" : ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) return cannot("make the folder", path, errno);
    h3_status status = H3_OK;
    for (char *name = strtok_r(copy, "/", &rest); name != NULL && status == H3_OK; name = strtok_r(NULL, "/", &rest))
        status = step_into(&folder, name, &made, path);
    close(folder);
    return status;
}

static h3_status remove_entry(const FTSENT *entry)
{
    switch (entry->fts_info) {
    case FTS_D: return H3_OK; /* comes again as FTS_DP */
    case FTS_DNR:
    case FTS_ERR:
    case FTS_NS: return entry->fts_errno == ENOENT ? H3_OK : cannot("remove", entry->fts_path, entry->fts_errno);
    case FTS_DP: return rmdir(entry->fts_accpath) == 0 || errno == ENOENT ? H3_OK : cannot("remove", entry->fts_path, errno);
    default: return unlink(entry->fts_accpath) == 0 || errno == ENOENT ? H3_OK : cannot("remove", entry->fts_path, errno);
    }
}

/* A temporary that can be locked has no living writer. */
static h3_status clean_entry(const FTSENT *entry)
{
    if (entry->fts_info != FTS_F || strncmp(entry->fts_name, H3_TEMPORARY_PREFIX, strlen(H3_TEMPORARY_PREFIX)) != 0) return H3_OK;
    int file = open(entry->fts_accpath, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (file < 0) return errno == ENOENT ? H3_OK : cannot("clean up", entry->fts_path, errno);
    h3_status status = H3_OK;
    if (flock(file, LOCK_EX | LOCK_NB) == 0 && unlink(entry->fts_accpath) != 0 && errno != ENOENT)
        status = cannot("clean up", entry->fts_path, errno);
    close(file);
    return status;
}

/* Visits everything at and below `path` down to `levels` folders deep, following no symlink. */
static h3_status walk(const char *path, int levels, h3_status (*visit)(const FTSENT *entry))
{
    char *copy = strdup(path);
    if (copy == NULL) return h3_error(H3_ENVIRONMENT, "out of memory to walk through %s", path);
    h3_status status = H3_OK;
    FTS *tree = fts_open((char *const[]){copy, NULL}, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    if (tree == NULL) status = cannot("walk through", path, errno);
    for (FTSENT *entry; status == H3_OK && (entry = fts_read(tree)) != NULL;) {
        if (entry->fts_info == FTS_D && entry->fts_level >= levels) fts_set(tree, entry, FTS_SKIP);
        status = visit(entry);
    }
    if (status == H3_OK && errno != 0) status = cannot("walk through", path, errno); /* fts_read says 0 at the end */
    if (tree != NULL) fts_close(tree);
    free(copy);
    return status;
}

h3_status h3_remove_tree(const char *path)
{
    struct stat info;
    if (lstat(path, &info) != 0) return errno == ENOENT ? H3_OK : cannot("remove", path, errno);
    return walk(path, INT32_MAX, remove_entry);
}

h3_status h3_clean_temporaries(const char *folder, int deep)
{
    struct stat info;
    if (lstat(folder, &info) != 0) return errno == ENOENT ? H3_OK : cannot("clean up", folder, errno);
    return walk(folder, deep ? INT32_MAX : 1, clean_entry);
}

h3_status h3_check_relative(const char *path, const char *where)
{
    const char *problem = NULL, *component = path;
    if (*path == 0) problem = "it is empty";
    if (*path == '/') problem = "it is absolute";
    for (const char *c = path; problem == NULL; c++) {
        if (*c == '\\' || ((unsigned char)*c < 0x20 && *c != 0) || *c == 0x7f)
            problem = "it has a backslash or control character";
        if (*c != '/' && *c != 0) continue;
        size_t length = (size_t)(c - component);
        if (length == 0) problem = "it has an empty component";
        else if (component[0] == '.' && (length == 1 || (length == 2 && component[1] == '.')))
            problem = "it has a \".\" or \"..\" component";
        component = c + 1;
        if (*c == 0) break;
    }
    return problem == NULL ? H3_OK : h3_error(H3_INTEGRITY, "%s: the path \"%.200s\" is refused: %s", where, path, problem);
}
