/* The HDF5 side of artifacts that the writer and the reader share. */
#ifndef H3_STORE_ARTIFACT_TYPES_H
#define H3_STORE_ARTIFACT_TYPES_H

#define H5_USE_110_API /* the signatures used here, also with a newer HDF5 */
#include <hdf5.h>
#include <stdint.h>

/* What is hashed and copied as raw bytes is little-endian, in memory and in the file. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "artifacts are written and read as little-endian bytes");

enum { H3_ARTIFACT_TEXT_MAX = 255 }; /* longest text of an attribute */

/* The attributes that every dataset has, and no other. */
#define H3_ATTRIBUTE_DTYPE "dtype"
#define H3_ATTRIBUTE_SHAPE "shape"
#define H3_ATTRIBUTE_DIGEST "digest"
#define H3_ATTRIBUTE_PRODUCER "producer"
enum { H3_ATTRIBUTE_COUNT = 4 };

/* "F32", "BF16", "I32", "I64" or "F64"; NULL for any other. */
const char *h3_artifact_dtype_name(int32_t dtype);
/* The HDF5 type of a dtype, as a new handle to be closed with H5Tclose; negative when HDF5 fails or the dtype has none. */
hid_t h3_artifact_type(int32_t dtype);
/* Errors become h3_error lines; HDF5 itself stays silent in this thread. */
void h3_artifact_silence(void);

#endif
