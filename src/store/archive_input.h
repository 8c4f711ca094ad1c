/* The bytes of a .tar.zst or .tar, as a stream. */
#ifndef H3_STORE_ARCHIVE_INPUT_H
#define H3_STORE_ARCHIVE_INPUT_H

#include <sys/types.h>

#include "store/tar.h"

typedef struct h3_archive_input {
    h3_stream stream; /* `user` is the struct itself, which must stay where it is */
    int file, source; /* the archive; what is read: the file itself, or zstd's output */
    pid_t zstd;       /* 0: none */
} h3_archive_input;

/* `path` must live as long. Zstandard data are expanded by the zstd program, after a look at their frame: exactly one, with
 * checksum, and nothing behind it. H3_INTEGRITY for damage, H3_ENVIRONMENT when zstd cannot be started. */
h3_status h3_archive_input_open(h3_archive_input *out, const char *path);
void h3_archive_input_close(h3_archive_input *input);

/* What is wrong with a file of `size` bytes that should be one Zstandard frame as archive_evidence.sh makes it (window 8 MiB,
 * checksum); NULL when nothing is. */
const char *h3_zstd_frame_problem(int file, off_t size);

#endif
