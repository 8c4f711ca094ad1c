/* Lists of files and their paths. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/publish.h"
#include "store/run_internal.h"

static int is_sha256(const char *text)
{
    return strlen(text) == H3_SHA256_HEX - 1 && strspn(text, "0123456789abcdef") == H3_SHA256_HEX - 1;
}

h3_status h3_run_files_add(h3_run_files *files, const char *path, int64_t size, const char *sha256)
{
    H3_TRY(h3_check_relative(path, "a list of files"));
    if (strlen(path) >= H3_RUN_PATH_SIZE)
        return h3_error(H3_INTEGRITY, "the path \"%.60s...\" has more than %d characters", path, H3_RUN_PATH_SIZE - 1);
    if (size < 0 || !is_sha256(sha256)) return h3_error(H3_INTEGRITY, "%s: its listed size or SHA-256 is malformed", path);
    if (files->count == files->capacity) {
        size_t capacity = files->capacity ? files->capacity * 2 : 32;
        h3_run_file *grown = realloc(files->items, capacity * sizeof *grown);
        if (grown == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for a list of %zu files", capacity);
        files->items = grown;
        files->capacity = capacity;
    }
    h3_run_file *file = &files->items[files->count++];
    strcpy(file->path, path);
    file->size = size;
    strcpy(file->sha256, sha256);
    return H3_OK;
}

static int compare_paths(const void *a, const void *b)
{
    return strcmp(((const h3_run_file *)a)->path, ((const h3_run_file *)b)->path);
}

void h3_run_files_sort(h3_run_files *files)
{
    if (files->count > 1) qsort(files->items, files->count, sizeof *files->items, compare_paths);
}

void h3_run_files_free(h3_run_files *files)
{
    free(files->items);
    *files = (h3_run_files){0};
}

const h3_run_file *h3_run_files_find(const h3_run_files *files, const char *path)
{
    for (size_t i = 0; i < files->count; i++)
        if (strcmp(files->items[i].path, path) == 0) return &files->items[i];
    return NULL;
}

const char *h3_run_writer(const h3_run_files *files)
{
    return files->program != NULL ? files->program : "the stage that writes it";
}

/* Looks at each component in turn, so that no symlink on the way is followed. */
h3_status h3_run_lookup(char out[H3_PATH_MAX], int *present, struct stat *info, const char *folder, const char *path)
{
    *present = 0;
    H3_TRY(h3_check_relative(path, folder));
    H3_TRY(h3_path(out, "%s/%s", folder, path));
    char *slash = strchr(out + strlen(folder) + 1, '/');
    for (;; slash = strchr(slash + 1, '/')) {
        if (slash != NULL) *slash = 0;
        int found = lstat(out, info), reason = errno;
        if (slash != NULL) *slash = '/';
        if (found != 0 && reason == ENOENT) return H3_OK;
        if (found != 0)
            return h3_error(reason == EACCES ? H3_ENVIRONMENT : H3_INTEGRITY, "cannot look at %s: %s; check the path", out,
                            strerror(reason));
        if (slash == NULL) break;
        if (!S_ISDIR(info->st_mode))
            return h3_error(H3_INTEGRITY, "%s: a part of this path is no folder (a symlink is not followed); remove it", out);
    }
    if (!S_ISREG(info->st_mode))
        return h3_error(H3_INTEGRITY, "%s is not a regular file (a symlink is not followed); remove it", out);
    *present = 1;
    return H3_OK;
}

h3_status h3_run_locate(char out[H3_PATH_MAX], const char *folder, const char *path)
{
    int present;
    struct stat info;
    H3_TRY(h3_run_lookup(out, &present, &info, folder, path));
    return present ? H3_OK : h3_error(H3_INTEGRITY, "%s is missing; rerun the stage that wrote it", out);
}

h3_status h3_run_place(char out[H3_PATH_MAX], const char *folder, const char *path)
{
    int present;
    struct stat info;
    char parent[H3_PATH_MAX];
    H3_TRY(h3_run_lookup(out, &present, &info, folder, path));
    if (present) return H3_OK;
    H3_TRY(h3_path(parent, "%.*s", (int)(strrchr(out, '/') - out), out));
    return h3_make_folders(parent);
}

static int starts_with(const char *text, const char *start) { return strncmp(text, start, strlen(start)) == 0; }

static int is_temporary(const char *path)
{
    for (const char *component = path; component != NULL; component = strchr(component, '/'), component += component != NULL)
        if (starts_with(component, H3_TEMPORARY_PREFIX)) return 1;
    return 0;
}

h3_status h3_run_check_output(const char *path, int32_t stage, const char *where)
{
    char own[96];
    H3_TRY(h3_check_relative(path, where));
    snprintf(own, sizeof own, "stages/%s/", h3_stage_name(stage));
    int reserved = strcmp(path, "plan.json") == 0 || strcmp(path, "stage.json") == 0 || strcmp(path, "site.json") == 0 ||
                   strcmp(path, "attempts") == 0 || strcmp(path, "stages") == 0 || starts_with(path, "attempts/") ||
                   is_temporary(path);
    if (starts_with(path, own)) {
        const char *name = path + strlen(own);
        reserved |= strcmp(name, "stage.json") == 0 || strcmp(name, "site.json") == 0 || strcmp(name, ".lock") == 0;
    } else if (starts_with(path, "stages/")) {
        reserved = 1;
    }
    return reserved ? h3_error(H3_INTEGRITY, "%s: \"%s\" is not a path that %s may write", where, path, h3_stage_name(stage))
                    : H3_OK;
}

h3_status h3_run_verify_file(const char *folder, const h3_run_file *file, const char *program)
{
    char path[H3_PATH_MAX], sha256[H3_SHA256_HEX];
    int present;
    struct stat info;
    int64_t size = -1;
    H3_TRY(h3_run_lookup(path, &present, &info, folder, file->path));
    if (!present) return h3_error(H3_INTEGRITY, "%s is missing; rerun %s", path, program);
    if (info.st_size == file->size) H3_TRY(h3_sha256_file(sha256, path, &size, H3_INTEGRITY));
    if (size != file->size)
        return h3_error(H3_INTEGRITY, "%s has %lld bytes but %lld are listed: it has changed; rerun %s", path,
                        (long long)info.st_size, (long long)file->size, program);
    if (strcmp(sha256, file->sha256) != 0)
        return h3_error(H3_INTEGRITY, "%s has not the listed SHA-256: it has changed; rerun %s", path, program);
    return H3_OK;
}
