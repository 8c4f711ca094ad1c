/* HDF5 artifacts: equal content gives equal bytes, and the bytes hashed are the bytes parsed (qualification.md section 4). */
#ifndef H3_STORE_ARTIFACT_H
#define H3_STORE_ARTIFACT_H

#include "base/memory.h"
#include "base/text.h"

enum { H3_ARTIFACT_NAME_SIZE = 160 }; /* with the final 0 */

/* What a manifest says about one tensor. */
typedef struct h3_artifact_entry {
    char name[H3_ARTIFACT_NAME_SIZE];
    h3_tensor tensor; /* written: the caller's tensor; read: owned by the artifact */
    char digest[H3_SHA256_HEX];
} h3_artifact_entry;

/* An artifact being written: built in memory (core driver), published in one step. */
typedef struct h3_artifact_writer h3_artifact_writer;

/* `producer` (1 to 255 characters) is stored as an attribute of every dataset; no times, hosts or paths may be in it. */
h3_status h3_artifact_create(h3_artifact_writer **out, const char *producer);
/* Adds a dataset at the path that `name` gives; dots stay dots, '/' makes groups. F32, BF16 (a 16-bit HDF5 float), I32, I64, F64.
 * Attributes: dtype, shape, digest, producer. Duplicate names and NaN-free are the caller's concern; an empty tensor is an error.
 * The bytes are the same for the same additions in the same order; another order may place them differently. */
h3_status h3_artifact_add(h3_artifact_writer *writer, const char *name, const h3_tensor *tensor, char digest[H3_SHA256_HEX]);
/* Publishes to `path` (temporary name, fsync, rename, directory fsync); gives size and SHA-256 of the very bytes. Frees the
 * writer in every case. Refuses when HDF5 failed in an h3_artifact_add before. */
h3_status h3_artifact_publish(h3_artifact_writer *writer, const char *path, int64_t *size, char sha256[H3_SHA256_HEX]);
void h3_artifact_discard(h3_artifact_writer *writer);
/* The same beside whatever comes next: hashing and writing go on in a thread until the publication, which is freed, has been waited for. The writer is
 * gone in every case. */
typedef struct h3_publication h3_publication;
h3_status h3_artifact_publish_start(h3_publication **out, h3_artifact_writer *writer, const char *path);
h3_status h3_publication_wait(h3_publication *publication, int64_t *size, char sha256[H3_SHA256_HEX]);

/* An artifact read whole: the file is read once, hashed, and parsed from that memory. */
typedef struct h3_artifact {
    char path[H3_PATH_MAX];
    int64_t size;
    char sha256[H3_SHA256_HEX];
    size_t count;
    h3_artifact_entry *entries; /* sorted by name; digests recomputed and equal to the attribute */
} h3_artifact;

/* `expected_sha256` NULL: not compared. Any mismatch or damage is H3_INTEGRITY naming the file (and dataset). The hash is
 * compared before anything is parsed. Accepted is only what h3_artifact_publish writes: plain contiguous datasets of the five
 * types with their four attributes, in groups, each linked once and hard. On failure `out` is empty. */
h3_status h3_artifact_open(h3_artifact *out, const char *path, const char *expected_sha256);
/* Also fine on a closed, zeroed or failed one. */
void h3_artifact_close(h3_artifact *artifact);
const h3_tensor *h3_artifact_find(const h3_artifact *artifact, const char *name);      /* NULL when absent */
h3_status h3_artifact_need(const h3_tensor **out, const h3_artifact *artifact, const char *name); /* H3_INTEGRITY when absent */

#endif
