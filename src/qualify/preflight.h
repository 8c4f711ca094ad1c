/* What later stages will need, looked at in the first seconds of the first stage and again before generation. */
#ifndef H3_QUALIFY_PREFLIGHT_H
#define H3_QUALIFY_PREFLIGHT_H

#include "qualify/decoders.h"
#include "qualify/plan.h"

/*
 * Before the run folder is touched: memory against an estimate from the plan's shapes, the pinned manifest and thresholds, the
 * generation contract, the conditioning, and the decoders, which must open, fit the model and have room on the device that will run the plan. Nothing large is allocated before it is known to fit. In one line: H3_ENVIRONMENT
 * saying needed and found; H3_USAGE for the plan and the contract; H3_INTEGRITY for a pinned file or a conditioning that is not
 * what it should be.
 */
h3_status h3_preflight_plan(const h3_plan *plan, const h3_config *config, const h3_device *device);

/* The part of it for "preview": "required": the plan decodes pictures and sound, and h3_preview is there ($H3_BIN, or beside this program) and has its
 * encoders. H3_USAGE for the plan, H3_ENVIRONMENT for the program. */
h3_status h3_preflight_preview(const h3_plan *plan);

/* In the run folder: write permission, and disk against the same estimate, frames and sound of both sides included. H3_ENVIRONMENT. */
h3_status h3_preflight_folder(const h3_plan *plan, const h3_config *config, const char *run_folder);

/* Memory for decoding one seed: on a CPU what is decoded and the decoders' weights, with a GPU the first on the host and the second on the GPU.
 * H3_ENVIRONMENT saying needed and found. */
h3_status h3_preflight_media(const h3_media_shape *shape, const h3_decoders *decoders, const h3_decoder_weights *weights, const h3_device *device);

/* Bytes that the reference artifacts of a plan take. */
h3_status h3_reference_bytes(const h3_plan *plan, const h3_config *config, size_t *bytes);

#endif
