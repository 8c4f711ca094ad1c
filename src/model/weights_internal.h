/* What weights.c and weights_folder.c share. */
#ifndef H3_MODEL_WEIGHTS_INTERNAL_H
#define H3_MODEL_WEIGHTS_INTERNAL_H

#include "base/text.h"
#include "model/safetensors.h"
#include "model/weights.h"

/* One file of a checkpoint folder. */
typedef struct h3_shard {
    char *name; /* relative to the folder */
    h3_safetensors file;
} h3_shard;

struct h3_weights {
    h3_config config;
    h3_inventory inventory;
    int is_folder;
    uint64_t seed; /* synthetic */
    /* folder: */
    char config_sha256[H3_SHA256_HEX], index_sha256[H3_SHA256_HEX]; /* index: "" when unsharded */
    size_t shard_count;
    h3_shard *shards;          /* by ascending name */
    const h3_tensor **tensors; /* [inventory.count], views into the shards */
};

/* Fills a zeroed `weights` from a folder; the caller frees it, also after a failure. */
h3_status h3_weights_load_folder(h3_weights *weights, const char *folder);

#endif
