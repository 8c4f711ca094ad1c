/* A scratch folder and small assertions for the tests of src/store. */
#ifndef H3_TESTS_STORE_FILES_H
#define H3_TESTS_STORE_FILES_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/text.h"
#include "store/publish.h"

static char scratch[H3_PATH_MAX]; /* of the running test */

static inline void assert_good(h3_status status)
{
    if (status != H3_OK) fail_msg("status %d: %s", status, h3_error_text());
}

/* The status, and a one-line message that has `part` in it. */
static inline void assert_fails(h3_status status, h3_status expected, const char *part)
{
    if (status != expected) fail_msg("status %d instead of %d (%s): %s", status, expected, part, h3_error_text());
    if (strstr(h3_error_text(), part) == NULL) fail_msg("\"%s\" is not in \"%s\"", part, h3_error_text());
}

static inline int make_scratch(void **state)
{
    const char *base = getenv("TMPDIR");
    (void)state;
    if (base == NULL)
        base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp"; /* thousands of small files: in memory where possible */
    snprintf(scratch, sizeof scratch, "%s/h3-store-XXXXXX", base);
    return mkdtemp(scratch) == NULL;
}

static inline int remove_scratch(void **state)
{
    (void)state;
    return h3_remove_tree(scratch) != H3_OK;
}

/* A path below the scratch folder; four of them are good at a time. */
static inline const char *in_scratch(const char *name)
{
    static char paths[4][H3_PATH_MAX * 2];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", scratch, name);
    return path;
}

static inline void write_file(const char *path, const void *data, size_t size)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static inline void write_text(const char *path, const char *text) { write_file(path, text, strlen(text)); }

/* Not inlined: gcc 12 then warns of a dangling pointer that there is not. */
static __attribute__((noinline, unused)) char *read_file(const char *path, size_t *size)
{
    char *data = NULL;
    assert_good(h3_file_read(&data, size, path, (size_t)1 << 30, H3_INTEGRITY));
    return data;
}

static inline int is_there(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0;
}

static inline int count_entries(const char *folder)
{
    int count = -2; /* . and .. */
    DIR *entries = opendir(folder);
    assert_non_null(entries);
    while (readdir(entries) != NULL) count++;
    closedir(entries);
    return count;
}

static inline int count_descriptors(void) { return count_entries("/proc/self/fd"); }

#endif
