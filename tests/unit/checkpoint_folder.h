/* A fresh copy of nano's checkpoint for each test, and edits of its files. */
#ifndef H3_TESTS_CHECKPOINT_FOLDER_H
#define H3_TESTS_CHECKPOINT_FOLDER_H

#include "scratch_folder.h"

#include <sys/stat.h>

#include "model/weights.h"

#define SHARD1 "diffusion_pytorch_model-00001-of-00002.safetensors"
#define SHARD2 "diffusion_pytorch_model-00002-of-00002.safetensors"
#define UNSHARDED "diffusion_pytorch_model.safetensors"
#define INDEX UNSHARDED ".index.json"

static inline char *get(const char *path, size_t *size)
{
    char *content;
    assert_good(h3_file_read(&content, size, path, 1 << 24, H3_INTEGRITY));
    return content;
}

static inline void copy_golden(const char *name)
{
    char golden[200];
    size_t size;
    snprintf(golden, sizeof golden, "nano/transformer/%s", name);
    char *content = get(golden_path(golden), &size);
    put(name, content, size);
    free(content);
}

/* A fresh copy of nano's checkpoint. */
static inline int set_up(void **state)
{
    if (make_folder(state) != 0) return -1;
    copy_golden("config.json");
    copy_golden(INDEX);
    copy_golden(SHARD1);
    copy_golden(SHARD2);
    return 0;
}

static inline void move(const char *from, const char *to)
{
    char path[2 * H3_PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", folder, from);
    assert_int_equal(rename(path, in_folder(to)), 0);
}

/* Replaces the first `from` in a file by `to`. */
static inline void edit(const char *name, const char *from, const char *to)
{
    size_t size;
    char *content = get(in_folder(name), &size), *at = memmem(content, size, from, strlen(from));
    assert_non_null(at);
    size_t head = (size_t)(at - content), tail = size - head - strlen(from), length = strlen(to);
    char *edited = malloc(head + length + tail + 1);
    memcpy(edited, content, head);
    memcpy(edited + head, to, length);
    memcpy(edited + head + length, at + strlen(from), tail);
    put(name, edited, head + length + tail);
    free(edited);
    free(content);
}

#endif
