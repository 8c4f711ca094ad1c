/* The plan: what is qualified, on which layouts and seeds, with which operators (schema: docs/plan.md). */
#ifndef H3_QUALIFY_PLAN_H
#define H3_QUALIFY_PLAN_H

#include <cJSON.h>

#include "base/text.h"
#include "graph/library.h"
#include "graph/model.h"
#include "model/layout.h"
#include "model/weights.h"

typedef struct h3_plan_layout {
    char name[64];
    h3_layout_args args;
    double video_time, audio_time, condition_time;
    uint64_t input_seed;
} h3_plan_layout;

/* "preview": previews of the generated videos for people (bin/h3_preview), which no verdict depends on. */
enum { H3_PREVIEW_OFF, H3_PREVIEW_IF_AVAILABLE, H3_PREVIEW_REQUIRED };

typedef struct h3_plan {
    char path[H3_PATH_MAX];
    char *text; /* the file's bytes: stored in the run, hashed */
    size_t text_size;
    char sha256[H3_SHA256_HEX];
    char identity[H3_SHA256_HEX]; /* of the canonical JSON without "pins", "about" and the checkpoint's folder: what a manifest names */
    cJSON *json;
    char name[64];
    int synthetic;
    h3_config config;       /* synthetic only; otherwise the checkpoint's own */
    uint64_t weight_seed;
    char checkpoint[H3_PATH_MAX]; /* folder */
    const char *repository, *revision; /* where the checkpoint is said to come from; NULL: not said */
    h3_weights_pins checkpoint_pins;   /* what proves it */
    size_t layout_count;
    h3_plan_layout *layouts;
    int preview;            /* H3_PREVIEW_* */
    int recompute;          /* "artifacts": only what runs a block again is stored whole, see h3_reference_run */
    const char *provider;   /* library */
    const cJSON *candidate; /* bindings */
    const cJSON *generation; /* NULL: no generation in this plan; read by h3_generation_read */
    const cJSON *acceptance; /* NULL: the contract's */
    const cJSON *decoders;   /* NULL: generation ends with latents; read by h3_decoders_read */
    char decoder_folder[H3_PATH_MAX]; /* "" or where decoders named as folders lie instead (--decoders) */
    char pinned_manifest[H3_PATH_MAX], pinned_thresholds[H3_PATH_MAX]; /* "" when not pinned */
} h3_plan;

/* Reads and checks a plan file. Everything a person can get wrong is H3_USAGE with the file and field. Relative paths in it are
 * relative to the plan's folder's parent when the plan lies in a folder named "plans", else to the plan's folder. */
h3_status h3_plan_read(h3_plan *plan, const char *path);
void h3_plan_free(h3_plan *plan);

/* Libraries named with {device} become those of `device`, "cpu" or "cuda". The plan's identity stays the same. */
void h3_plan_for_device(h3_plan *plan, const char *device);

/* Resolves a path named in the plan as said above. */
h3_status h3_plan_path(char out[H3_PATH_MAX], const h3_plan *plan, const char *path);

/* The checkpoint lies in `folder` (--checkpoint DIR) and not where the plan says. The plan's identity stays the same. H3_USAGE for a plan of
 * synthetic weights. */
h3_status h3_plan_use_checkpoint(h3_plan *plan, const char *folder);
/* The folders of the decoders lie in `folder` (--decoders DIR) under their last names. The plan's identity stays the same. H3_USAGE for a plan without such
 * a folder. */
h3_status h3_plan_use_decoders(h3_plan *plan, const char *folder);

/* Opens the plan's weights; a checkpoint folder must be what the plan pins (h3_weights_open_pinned: `hash`, `watch`). */
h3_status h3_plan_weights(const h3_plan *plan, int hash, const h3_watch *watch, h3_weights **out);
/* The same for the work on one block: of a checkpoint folder that block alone, config.json as pinned. The tensors are proved by the
 * manifest (h3_inputs_block). */
h3_status h3_plan_weights_block(const h3_plan *plan, int64_t block, h3_weights **out);

/* The model as a manifest names it (caller deletes): h3_weights_identity; of a folder also "repository" and "revision" as the plan says, and
 * "block_tensors", the digests of block 0's tensors. Block 0 alone: it has a section of the gate to itself, and --only 'block0*' is the
 * one work that a part of a checkpoint is enough for; of the other blocks nobody would read them, and 65 GB would be hashed twice. */
h3_status h3_plan_model(const h3_plan *plan, h3_weights *weights, const h3_watch *watch, cJSON **out);

/* The packed layout of a plan with the model's patch size, its timestep plan, and seeded inputs and cotangents: all that a pass needs. */
typedef struct h3_plan_inputs {
    h3_layout layout;
    float timestep[H3_MAX_TIMESTEPS];
    int64_t *timestep_indices;
    h3_sequence sequence;
} h3_plan_inputs;
h3_status h3_plan_inputs_new(h3_plan_inputs *out, const h3_plan_layout *layout, const h3_config *config);
void h3_plan_inputs_free(h3_plan_inputs *inputs);

/* Reads layout arguments {"text","frames","h","w","audio","anchors","vision_rows"} from JSON (other keys ignored). */
h3_status h3_plan_layout_args(h3_layout_args *out, const cJSON *json, const char *where);

#endif
