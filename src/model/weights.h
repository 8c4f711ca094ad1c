/* Where parameters come from: a checkpoint folder (index and shards) or the synthetic scheme h3synth-v1. */
#ifndef H3_MODEL_WEIGHTS_H
#define H3_MODEL_WEIGHTS_H

#include "base/hash_many.h"
#include "base/memory.h"
#include "model/config.h"

typedef struct cJSON cJSON;
typedef struct h3_weights h3_weights;

/* What the files of a checkpoint folder have to be. Known by content: a repository's or revision's name proves nothing. */
typedef struct h3_weights_pins {
    const cJSON *hashes; /* {"file": "sha256"}, any of config.json, index and shards; NULL: none */
    const cJSON *sizes;  /* {"shard": bytes}; NULL: none */
    int64_t total_size;  /* of the index; -1: any */
} h3_weights_pins;

/* Opens a checkpoint folder: config.json, diffusion_pytorch_model.safetensors.index.json (or one unsharded file, not both),
 * shards. Checks that the inventory is there exactly: no missing, additional or doubly stored tensor, no wrong dtype or shape,
 * total_size. A shard's name is a plain file name. Symbolic links are followed (h3_file_read_linked): hub caches are made of
 * them. H3_INTEGRITY for whatever is wrong. */
h3_status h3_weights_open(h3_weights **out, const char *folder);
/* The same, and every pinned file must have its hash and size; what differs is named before anything is made of it. `hash` 0 leaves out the
 * shards' hashes, which take long: for ranks beside the one that checks. `watch` as in h3_weights_hash. */
h3_status h3_weights_open_pinned(h3_weights **out, const char *folder, const h3_weights_pins *pins, int hash, const h3_watch *watch);
/* Only the tensors of one transformer block, and only the shards that the index names for them: the rest of the folder may be missing, index
 * and shards may be cut down to that block. Of the pins that of config.json counts. h3_weights_read of any other tensor is H3_INTEGRITY; there is no identity: the
 * tensors are known by their digests (h3_weights_block_tensors). */
h3_status h3_weights_open_block(h3_weights **out, const char *folder, int64_t block, const h3_weights_pins *pins);
/* Synthetic weights of a configuration. */
h3_status h3_weights_synthetic(h3_weights **out, const h3_config *config, uint64_t seed);
void h3_weights_free(h3_weights *weights);

const h3_config *h3_weights_config(const h3_weights *weights);
const h3_inventory *h3_weights_inventory(const h3_weights *weights);

/* A new host tensor in the stored dtype (caller frees). H3_USAGE for an unknown name. Safe to call from several threads. */
h3_status h3_weights_read(h3_tensor *out, const h3_weights *weights, const char *name);

/* The mapped bytes of a checkpoint folder's tensor, good as long as the weights are open. */
h3_status h3_weights_view(h3_tensor *out, const h3_weights *weights, const char *name);
/* 1 and the seed of synthetic weights; 0 for a folder. */
int h3_weights_seed(const h3_weights *weights, uint64_t *seed);
/* Hashes every shard of a folder, unless that was done before: all shards at once, on all cores. `watch` (may be NULL) is told how far it is. */
h3_status h3_weights_hash(h3_weights *weights, const h3_watch *watch);

/* Identity for manifests (caller deletes). Folder: {"kind":"folder","config_sha256","index_sha256",
 * "shards":[{"path","size","sha256"}...]} with relative names in ascending order and hashes of the very bytes that were parsed
 * and mapped (h3_weights_hash, if need be); index_sha256 is null for an unsharded folder. Synthetic: {"kind":"synthetic",
 * "scheme":"h3synth-v1","seed","config":{...},"sha256"} where sha256 is over "h3synth-v1\n<seed>\n<canonical config>". */
h3_status h3_weights_identity(h3_weights *weights, const h3_watch *watch, cJSON **out);

/* {"<tensor>": "<digest>"...} of one transformer block of a folder, names ascending (caller deletes): by h3_digest, over the stored bytes. */
h3_status h3_weights_block_tensors(const h3_weights *weights, int64_t block, cJSON **out);
/* H3_INTEGRITY, naming file and tensor, unless the block's tensors have these digests, and there are no others. */
h3_status h3_weights_require_block(const h3_weights *weights, int64_t block, const cJSON *digests, const char *where);
const char *h3_weights_config_sha256(const h3_weights *weights); /* of config.json; "" for synthetic weights */

#endif
