/* HDF5 files in memory, without a copy in either direction. */
#ifndef H3_STORE_ARTIFACT_IMAGE_H
#define H3_STORE_ARTIFACT_IMAGE_H

#include <stddef.h>

#include "store/artifact_types.h"

/* A file's bytes. The struct must stay where it is while the file is open. */
typedef struct h3_artifact_image {
    char *bytes;
    size_t size;
    size_t capacity; /* of an image that is written: mapped memory; h3_artifact_image_release */
} h3_artifact_image;

/* HDF5's checksum of metadata (Bob Jenkins' lookup3). */
uint32_t h3_artifact_checksum(const unsigned char *bytes, size_t size);

/* What is wrong with the first bytes, looked at without HDF5; NULL when nothing is. Only the form that the writer makes passes: a
 * version 2 superblock, its checksum right, without extension, whose end of file is the end of the image (no truncation, no
 * trailing bytes). */
const char *h3_artifact_image_problem(const h3_artifact_image *image);

/* Opens the image read-only; the bytes too must stay. Negative on failure. */
hid_t h3_artifact_image_open(h3_artifact_image *image);

/* A new file in memory, of the file creation settings `creation`. Once it is closed its bytes are in `image` (to be released
 * also on failure), rounded up in size until h3_artifact_image_trim. */
hid_t h3_artifact_image_create(h3_artifact_image *image, hid_t creation);

void h3_artifact_image_release(h3_artifact_image *image);

/* Cuts the image of a closed file at the file's end; non-zero when there is no such file in it. */
int h3_artifact_image_trim(h3_artifact_image *image);

#endif
