/* The reference's tensors of one block, or of a boundary, on the device: read from the artifact, or, where that has samples only, made again by the
 * provider from the stored input and gradient. Either way every tensor has the digest of the manifest. */
#ifndef H3_QUALIFY_BLOCK_TENSORS_H
#define H3_QUALIFY_BLOCK_TENSORS_H

#include "dist/ranks.h"
#include "qualify/manifest.h"

/* An artifact that was read and stays for a while: neighbours need it too, and block 0's is large. */
typedef struct h3_kept {
    h3_artifact artifact;
    int users;  /* h3_block_tensors that look at it */
    int stays;  /* until the source is closed */
} h3_kept;

enum { H3_KEPT = 24 };

/* What it takes. Nothing is owned but `kept`: h3_tensor_source_close frees it. */
typedef struct h3_tensor_source {
    h3_ranks *ranks; /* for signs of life; NULL is fine */
    const h3_device *device;
    const h3_library *provider;
    const h3_weights *weights;
    const h3_manifest *manifest;
    const char *run_folder;
    h3_kept kept[H3_KEPT];
    int turn;
} h3_tensor_source;
void h3_tensor_source_close(h3_tensor_source *source);

enum { H3_PART_FORWARD = 1, H3_PART_BACKWARD = 2 }; /* "node." tensors; all others */

typedef struct h3_block_tensors h3_block_tensors;

/* `inputs`: of `layout`. block as in h3_reference_path; the boundaries, and artifacts that have everything, give all parts. H3_INTEGRITY names a file that
 * is damaged, or the first tensor that the provider does not reproduce. */
h3_status h3_block_tensors_open(h3_block_tensors **out, h3_tensor_source *source, const char *layout, const h3_plan_inputs *inputs, int32_t precision,
                                int64_t block, int parts);
void h3_block_tensors_close(h3_block_tensors *tensors);

size_t h3_block_tensors_count(const h3_block_tensors *tensors);
const char *h3_block_tensors_name(const h3_block_tensors *tensors, size_t i);
/* A device tensor, good until close; H3_INTEGRITY when it is not there. */
h3_status h3_block_tensors_need(const h3_tensor **out, h3_block_tensors *tensors, const char *name);

#endif
