/* A strict reader of safetensors files. Every violation is a named H3_INTEGRITY error; nothing in a file can crash it. */
#ifndef H3_MODEL_SAFETENSORS_H
#define H3_MODEL_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "base/memory.h"

typedef struct h3_safetensors_entry {
    char *name;
    h3_tensor tensor; /* a view into the file image; may be unaligned for its type: copy before arithmetic */
} h3_safetensors_entry;

typedef struct h3_safetensors {
    char *path;
    const unsigned char *image; /* memory mapped, or the caller's */
    size_t size;
    int mapped;                 /* the image is ours to unmap */
    size_t count;
    h3_safetensors_entry *entries; /* sorted by name */
    char *metadata;                /* "__metadata__" as JSON text; NULL when the file has none */
} h3_safetensors;

/* Maps and checks `path`: header length, JSON (duplicate keys, depth, size), dtypes, shapes, ranges without overlap, hole or
 * trailing byte. Accepted dtypes: F32, BF16, F16, I32, I64, F64, U8; any other is refused by name. A
 * tensor without dimensions is given as [1]. A symbolic link is not followed. */
h3_status h3_safetensors_open(h3_safetensors *out, const char *path);
/* The same over bytes in memory that the caller keeps; `name` stands in messages. For tests and fuzzing. */
h3_status h3_safetensors_parse(h3_safetensors *out, const unsigned char *image, size_t size, const char *name);
/* A file of a checkpoint folder: a symbolic link is followed to its end, as h3_file_read_linked does. */
h3_status h3_safetensors_open_linked(h3_safetensors *out, const char *path);
void h3_safetensors_close(h3_safetensors *file);
const h3_tensor *h3_safetensors_find(const h3_safetensors *file, const char *name); /* NULL when absent */
/* A new aligned tensor (caller frees) that must have this dtype (H3_NONE: any) and shape (rank 0: any). */
h3_status h3_safetensors_read(h3_tensor *out, const h3_safetensors *file, const char *name, int32_t dtype, int32_t rank,
                              const int64_t *shape);

/* A file image of `count` named tensors (host, dense) and metadata (an object of strings, or NULL): what h3_safetensors_parse accepts. Caller
 * frees. The names must differ. */
typedef struct cJSON cJSON;
h3_status h3_safetensors_build(char **out, size_t *size, const h3_safetensors_entry *entries, size_t count, const cJSON *metadata);

#endif
