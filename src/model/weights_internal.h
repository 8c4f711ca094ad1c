/* What weights.c and weights_folder.c share. */
#ifndef H3_MODEL_WEIGHTS_INTERNAL_H
#define H3_MODEL_WEIGHTS_INTERNAL_H

#include "base/text.h"
#include "model/safetensors.h"
#include "model/weights.h"

#define H3_UNSHARDED_NAME "diffusion_pytorch_model.safetensors"
#define H3_INDEX_NAME H3_UNSHARDED_NAME ".index.json"

/* One file of a checkpoint folder. */
typedef struct h3_shard {
    char *name; /* relative to the folder */
    h3_safetensors file;
    char sha256[H3_SHA256_HEX]; /* "" until it is hashed */
} h3_shard;

struct h3_weights {
    h3_config config;
    h3_inventory inventory;
    int is_folder;
    uint64_t seed; /* synthetic */
    /* folder: */
    char config_sha256[H3_SHA256_HEX], index_sha256[H3_SHA256_HEX]; /* index: "" when unsharded */
    int64_t only_block; /* the one block that was opened; -1: all of the folder */
    size_t shard_count;
    h3_shard *shards;          /* by ascending name */
    const h3_tensor **tensors; /* [inventory.count], views into the shards; NULL: not opened */
};

/* Fill a zeroed `weights` from a folder; the caller frees it, also after a failure. */
h3_status h3_weights_load_folder(h3_weights *weights, const char *folder, const h3_weights_pins *pins, int hash, const h3_watch *watch);
h3_status h3_weights_load_block(h3_weights *weights, const char *folder, int64_t block, const h3_weights_pins *pins);

/* Parts of that which both share. */
h3_status h3_weights_load_config(h3_weights *weights, const char *folder);
h3_status h3_weights_read_index(h3_weights *weights, cJSON **root, const cJSON **map, const char *index);
int h3_weights_has_file(const char *path); /* or a link, wherever it leads */
h3_status h3_check_shard_name(const char *name, const char *index);
h3_status h3_weights_add_shard(h3_weights *weights, const char *folder, const char *name);
h3_status h3_check_stored(const h3_parameter *parameter, const h3_tensor *tensor, const char *path);

/* Pins: of files whose text has been read, then of the shards. */
h3_status h3_pins_check_text(const h3_weights_pins *pins, const char *folder, const char *name, const char *sha256);
h3_status h3_pins_check_shards(h3_weights *weights, const char *folder, const h3_weights_pins *pins, int hash, const h3_watch *watch);

#endif
