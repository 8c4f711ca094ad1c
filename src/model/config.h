/* The shape of an H3 transformer, and the names, shapes and types of its parameters (transformer.md sections 1 and 2). */
#ifndef H3_MODEL_CONFIG_H
#define H3_MODEL_CONFIG_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef struct h3_config {
    int64_t num_attention_heads, attention_head_dim, hidden_size, num_layers, num_refiner_layers, ffn_dim;
    int64_t in_channels, audio_in_channels, patch_size[3], text_dim, freq_dim;
    int64_t time_embed_hidden_dim, time_embed_dim, rope_freq_dim;
    double rope_theta, norm_eps, qk_norm_eps, final_norm_eps;
} h3_config;

/* Parses config.json text. Missing optional keys (rope_theta, the three eps) get the released defaults; unknown keys that
 * start with '_' are ignored, others are an error, as are sizes that the model cannot have (6K > D, odd freq_dim, pt != 1,
 * a dimension outside 1..2^24, more than 10,000 layers). `where` names the source in messages.
 * H3_INTEGRITY on malformed text or values. */
h3_status h3_config_parse(h3_config *out, const char *text, size_t length, const char *where);

/* Canonical JSON: all keys, sorted, no white space, numbers as %.17g; identifies a configuration. Caller frees. */
h3_status h3_config_canonical(const h3_config *config, char **out);

int64_t h3_config_inner_size(const h3_config *config); /* N * D */
int64_t h3_config_video_row(const h3_config *config);  /* in_channels * pt * ph * pw */

/* One parameter of the inventory. */
typedef struct h3_parameter {
    char name[96];
    int32_t dtype; /* stored type: H3_F32 or H3_BF16 */
    int32_t rank;  /* 1 or 2 */
    int64_t shape[2];
} h3_parameter;

typedef struct h3_inventory {
    size_t count; /* 12 L + 10 Lr + 1 + 17 */
    h3_parameter *items; /* boundary, refiners, final_norm, then the blocks; each in the order of the tables in transformer.md */
    uint32_t *by_name;   /* [count] positions in `items`, in the order of the names */
} h3_inventory;

h3_status h3_inventory_new(h3_inventory *out, const h3_config *config);
void h3_inventory_free(h3_inventory *inventory);
const h3_parameter *h3_inventory_find(const h3_inventory *inventory, const char *name); /* NULL when unknown */

#endif
