/* The parameter tables of transformer.md section 2. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "model/config.h"

/* A dimension as the tables name it: F2 is 2 * ffn_dim, H18 is 18 * hidden_size. NO_SIZE: the tensor has one dimension. */
typedef enum { NO_SIZE, H, H2, H18, I, D, F, F2, E, EH, Q, X, CV, CA } size_symbol;

typedef struct parameter_row {
    const char *name;
    int32_t dtype;
    size_symbol size[2];
} parameter_row;

static const parameter_row BOUNDARY[] = {
    {"proj_in.weight", H3_F32, {H, CV}},
    {"proj_in.bias", H3_F32, {H}},
    {"audio_proj_in.weight", H3_F32, {H, CA}},
    {"audio_proj_in.bias", H3_F32, {H}},
    {"context_embedder.weight", H3_BF16, {H, X}},
    {"context_embedder.bias", H3_BF16, {H}},
    {"time_embedder.linear_1.weight", H3_F32, {EH, Q}},
    {"time_embedder.linear_1.bias", H3_F32, {EH}},
    {"time_embedder.linear_2.weight", H3_F32, {E, EH}},
    {"time_embedder.linear_2.bias", H3_F32, {E}},
    {"norm_out.norm.weight", H3_BF16, {H}},
    {"norm_out.linear.weight", H3_BF16, {H2, E}},
    {"norm_out.linear.bias", H3_BF16, {H2}},
    {"proj_out.weight", H3_F32, {CV, H}},
    {"proj_out.bias", H3_F32, {CV}},
    {"audio_proj_out.weight", H3_F32, {CA, H}},
    {"audio_proj_out.bias", H3_F32, {CA}},
};

static const parameter_row FINAL_NORM = {"token_refiner.final_norm.weight", H3_BF16, {H}};

/* A refiner block has all but the last two. */
static const parameter_row BLOCK[] = {
    {"norm1.weight", H3_BF16, {H}},
    {"attn.to_q.weight", H3_BF16, {I, H}},
    {"attn.to_k.weight", H3_BF16, {I, H}},
    {"attn.to_v.weight", H3_BF16, {I, H}},
    {"attn.norm_q.weight", H3_BF16, {D}},
    {"attn.norm_k.weight", H3_BF16, {D}},
    {"attn.to_out.0.weight", H3_BF16, {H, I}},
    {"norm2.weight", H3_BF16, {H}},
    {"ff.net.0.proj.weight", H3_BF16, {F2, H}},
    {"ff.net.2.weight", H3_BF16, {H, F}},
    {"adaln_proj.linear.weight", H3_BF16, {H18, E}},
    {"adaln_proj.linear.bias", H3_BF16, {H18}},
};

enum {
    BOUNDARY_COUNT = sizeof BOUNDARY / sizeof *BOUNDARY,
    BLOCK_COUNT = sizeof BLOCK / sizeof *BLOCK,
    REFINER_COUNT = BLOCK_COUNT - 2,
};

static int64_t resolve(const h3_config *config, size_symbol symbol)
{
    switch (symbol) {
    case H: return config->hidden_size;
    case H2: return 2 * config->hidden_size;
    case H18: return 18 * config->hidden_size;
    case I: return h3_config_inner_size(config);
    case D: return config->attention_head_dim;
    case F: return config->ffn_dim;
    case F2: return 2 * config->ffn_dim;
    case E: return config->time_embed_dim;
    case EH: return config->time_embed_hidden_dim;
    case Q: return config->freq_dim;
    case X: return config->text_dim;
    case CV: return h3_config_video_row(config);
    case CA: return config->audio_in_channels;
    default: return 0;
    }
}

/* Appends one parameter; `prefix` names the stack of block `index`, or is NULL. */
static void append(h3_inventory *inventory, const h3_config *config, const parameter_row *row, const char *prefix, int64_t index)
{
    h3_parameter *item = &inventory->items[inventory->count++];
    if (prefix == NULL) snprintf(item->name, sizeof item->name, "%s", row->name);
    else snprintf(item->name, sizeof item->name, "%s.%lld.%s", prefix, (long long)index, row->name);
    item->dtype = row->dtype;
    item->rank = row->size[1] == NO_SIZE ? 1 : 2;
    for (int i = 0; i < item->rank; i++) item->shape[i] = resolve(config, row->size[i]);
}

static int compare_names(const void *a, const void *b, void *context)
{
    const h3_parameter *items = context;
    return strcmp(items[*(const uint32_t *)a].name, items[*(const uint32_t *)b].name);
}

h3_status h3_inventory_new(h3_inventory *out, const h3_config *config)
{
    h3_inventory inventory = {0};
    size_t count = (size_t)(BLOCK_COUNT * config->num_layers + REFINER_COUNT * config->num_refiner_layers + 1 + BOUNDARY_COUNT);
    void *items, *by_name;
    *out = inventory;
    H3_TRY(h3_alloc(&items, count, sizeof(h3_parameter), "the parameter inventory"));
    h3_status status = h3_alloc(&by_name, count, sizeof(uint32_t), "the parameter inventory");
    if (status != H3_OK) {
        free(items);
        return status;
    }
    inventory.items = items;
    inventory.by_name = by_name;
    for (int i = 0; i < BOUNDARY_COUNT; i++) append(&inventory, config, &BOUNDARY[i], NULL, 0);
    for (int64_t block = 0; block < config->num_refiner_layers; block++)
        for (int i = 0; i < REFINER_COUNT; i++) append(&inventory, config, &BLOCK[i], "token_refiner.refiner_blocks", block);
    append(&inventory, config, &FINAL_NORM, NULL, 0);
    for (int64_t block = 0; block < config->num_layers; block++)
        for (int i = 0; i < BLOCK_COUNT; i++) append(&inventory, config, &BLOCK[i], "transformer_blocks", block);
    for (size_t i = 0; i < count; i++) inventory.by_name[i] = (uint32_t)i;
    qsort_r(inventory.by_name, count, sizeof *inventory.by_name, compare_names, inventory.items);
    *out = inventory;
    return H3_OK;
}

void h3_inventory_free(h3_inventory *inventory)
{
    free(inventory->items);
    free(inventory->by_name);
    *inventory = (h3_inventory){0};
}

const h3_parameter *h3_inventory_find(const h3_inventory *inventory, const char *name)
{
    size_t low = 0, high = inventory->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const h3_parameter *item = &inventory->items[inventory->by_name[middle]];
        int order = strcmp(name, item->name);
        if (order == 0) return item;
        if (order < 0) high = middle;
        else low = middle + 1;
    }
    return NULL;
}
