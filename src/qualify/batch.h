/* Batch transforms: the same rows in other company. A row-invariant operator gives a row the same bits in every one of them. */
#ifndef H3_QUALIFY_BATCH_H
#define H3_QUALIFY_BATCH_H

#include "graph/walk.h"

typedef struct h3_batch_variant {
    char name[80];
    int64_t items, position; /* population, and which of them is the item that is looked at */
    int64_t rows, offset;    /* rows of the item: offset, offset+1, ... modulo S; rows 0: all S */
    int32_t negated;         /* the neighbours' content has the other sign */
} h3_batch_variant;

/* All variants that the specification lists, for S packed rows; returns how many (at most `most`). */
int h3_batch_variants(h3_batch_variant *out, int most, int64_t rows);

/* 1 when the variant changes the number of rows of an item: attention then takes that many query rows against all keys. */
int h3_batch_partial(const h3_batch_variant *variant);

/* Values and gradients of `source` (one item) gathered as the variant says, on the device; owned by the result, which
 * h3_batch_state_free releases. With `attention` keys and values stay whole when the variant is partial. */
h3_status h3_batch_state(h3_block_state *out, const h3_device *device, const h3_block_state *source, const h3_batch_variant *variant, int attention);
void h3_batch_state_free(h3_block_state *state, const h3_device *device);

/* The item's rows of a result tensor against the rows of the original, both on the device: *row is the first packed row that differs, or
 * -1. Both tensors have one row per packed row (times items in `batched`), or per timestep for adaln_projection. */
h3_status h3_batch_first_difference(int64_t *row, const h3_device *device, const h3_tensor *original, const h3_tensor *batched,
                                    const h3_batch_variant *variant, int64_t original_rows);

#endif
