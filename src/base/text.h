/* Small text and file helpers: growing strings, whole files, paths, SHA-256. */
#ifndef H3_BASE_TEXT_H
#define H3_BASE_TEXT_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum { H3_PATH_MAX = 4096, H3_SHA256_HEX = 65, H3_SHA256_BYTES = 32, H3_DIGEST_PIECE = 4 << 20 };

/* A formatted string that the caller frees. */
h3_status h3_format(char **out, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Formats into a path buffer of H3_PATH_MAX; H3_USAGE when it does not fit. */
h3_status h3_path(char out[H3_PATH_MAX], const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A whole regular file in memory, with a 0 byte behind it (not counted). Not following a final symlink. Errors carry `status`. Caller frees. */
h3_status h3_file_read(char **out, size_t *size, const char *path, size_t limit, h3_status status);

/* SHA-256 as lower-case hex. */
h3_status h3_sha256(char out[H3_SHA256_HEX], const void *data, size_t size);
h3_status h3_sha256_file(char out[H3_SHA256_HEX], const char *path, int64_t *size, h3_status status);

/* For files of a checkpoint folder, which hub caches keep as links to their blobs: the same three, but a final symbolic link is followed to
 * its end. What is opened there, once, must be a regular file, and is what is read; a link to nowhere, in a circle, to a folder
 * or to a device is refused. h3_open_regular gives a descriptor that the caller closes; `linked` 0 refuses links as above. */
h3_status h3_open_regular(int *out, size_t *size, const char *path, int linked, h3_status status);
h3_status h3_file_read_linked(char **out, size_t *size, const char *path, size_t limit, h3_status status);
h3_status h3_sha256_file_linked(char out[H3_SHA256_HEX], const char *path, int64_t *size, h3_status status);

/* Digest of a tensor's bytes: SHA-256 over the SHA-256s of its consecutive 4 MiB pieces (qualification.md section 4). */
h3_status h3_digest(char out[H3_SHA256_HEX], const void *data, size_t size);

/* fnmatch-like glob with * and ?, for --only. */
int h3_glob(const char *pattern, const char *text);

#endif
