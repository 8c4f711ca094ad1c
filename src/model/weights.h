/* Where parameters come from: a checkpoint folder (index and shards) or the synthetic scheme h3synth-v1. */
#ifndef H3_MODEL_WEIGHTS_H
#define H3_MODEL_WEIGHTS_H

#include "base/memory.h"
#include "model/config.h"

typedef struct cJSON cJSON;
typedef struct h3_weights h3_weights;

/* Opens a checkpoint folder: config.json, diffusion_pytorch_model.safetensors.index.json (or one unsharded file, not both),
 * shards. Checks that the inventory is there exactly: no missing, additional or doubly stored tensor, no wrong dtype or shape,
 * total_size. A shard's name is a plain file name; symbolic links are not followed. H3_INTEGRITY for whatever is wrong. */
h3_status h3_weights_open(h3_weights **out, const char *folder);
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

/* Identity for manifests (caller deletes). Folder: {"kind":"folder","config_sha256","index_sha256",
 * "shards":[{"path","size","sha256"}...]} with relative names in ascending order and hashes of the very bytes that were parsed
 * and mapped; index_sha256 is null for an unsharded folder. Synthetic: {"kind":"synthetic","scheme":"h3synth-v1","seed",
 * "config":{...},"sha256"} where sha256 is over "h3synth-v1\n<seed>\n<canonical config>". */
h3_status h3_weights_identity(const h3_weights *weights, cJSON **out);

#endif
