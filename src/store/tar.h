/* Reading the one form of tar that an evidence archive has: ustar, regular files only, every field that is not name, size or
 * content fixed. So the names, their order and the contents determine every byte; but for the device numbers, which are all
 * zeros or all blank, as the version of GNU tar has it. */
#ifndef H3_STORE_TAR_H
#define H3_STORE_TAR_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum { H3_TAR_BLOCK = 512, H3_TAR_NAME_SIZE = 257 };

/* Where bytes come from. `read` fills `data` with `size` bytes; *got is less only at the end. */
typedef struct h3_stream {
    h3_status (*read)(void *user, void *data, size_t size, size_t *got);
    void *user;
    const char *name; /* for messages */
} h3_stream;

typedef struct h3_tar {
    h3_stream stream;
    int64_t position;      /* bytes read so far */
    int64_t left, padding; /* of the entry that is being read */
    int no_devices;        /* blank device numbers, as in the first header */
    char name[H3_TAR_NAME_SIZE];
    int64_t size;
} h3_tar;

/* Goes to the next file (what is left of the one before is skipped): name and size are in `tar`. *end is 1 after the last, when
 * only zeros follow. H3_INTEGRITY, naming the entry, for anything but a regular file at a plain relative path (h3_check_relative,
 * of letters, digits and ._+=@,~-), and for any other departure. */
h3_status h3_tar_next(h3_tar *tar, int *end);
/* Up to `size` bytes of the file; *got is 0 at its end. H3_INTEGRITY when the archive ends before. */
h3_status h3_tar_read(h3_tar *tar, void *data, size_t size, size_t *got);

/* The header of a file. `prefix` characters of the name stand in the prefix field (0: none), with the '/' behind them left out.
 */
void h3_tar_header(unsigned char out[H3_TAR_BLOCK], const char *name, size_t prefix, int64_t size);

#endif
