/* HDF5 1.10 can be made to crash by a file whose metadata are wrong in the right way, checksums included. This looks at an image
 * before HDF5 does. */
#ifndef H3_STORE_ARTIFACT_GUARD_H
#define H3_STORE_ARTIFACT_GUARD_H

#include "store/artifact.h"
#include "store/artifact_image.h"

/*
 * Follows every structure that HDF5 will follow, from the superblock over groups, links and object headers to attributes, and
 * lets through only the few forms that the writer makes: version 2 object headers without times; groups whose links are hard and
 * in the header; datasets of a simple shape, a number type and contiguous storage; attributes that are fixed-length strings or
 * integers. Each object is linked once, and each piece has its checksum. Whether values, shapes and digests hold is for the
 * reader to see. `problem` is NULL when all is well; otherwise it says what is wrong with `name`. Returns H3_ENVIRONMENT when
 * there is no memory.
 */
h3_status h3_artifact_guard(const h3_artifact_image *image, const char **problem, char name[H3_ARTIFACT_NAME_SIZE]);

#endif
