/* A folder of its own for each test, and files in it. */
#ifndef H3_TESTS_SCRATCH_FOLDER_H
#define H3_TESTS_SCRATCH_FOLDER_H

#include "golden_files.h"

#include "store/publish.h"

static char folder[32];

/* Setup and teardown of a test. */
static inline int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/h3-test-XXXXXX");
    return mkdtemp(folder) == NULL;
}

static inline int remove_folder(void **state)
{
    (void)state;
    return h3_remove_tree(folder) != H3_OK;
}

/* Good until the next call. */
static inline const char *in_folder(const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static inline void put(const char *name, const void *data, size_t size)
{
    FILE *file = fopen(in_folder(name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

#endif
