/* What stages after the first have in common: the verified manifest, and the thresholds, of their run on every rank. */
#ifndef H3_QUALIFY_INPUTS_H
#define H3_QUALIFY_INPUTS_H

#include "dist/ranks.h"
#include "qualify/manifest.h"
#include "qualify/thresholds.h"
#include "store/artifact.h"
#include "store/run.h"

/* Any rank. A reference artifact with the hash that the manifest lists, and the tensors with the digests that it lists; block as
 * in h3_reference_path. */
h3_status h3_inputs_artifact(h3_artifact *out, const h3_manifest *manifest, const char *run_folder, const char *layout,
                             int32_t precision, int64_t block);

/* Any rank. H3_INTEGRITY, naming the file of the checkpoint, unless the weights are those of the manifest: hashes every shard, with signs of
 * life to `watch` (may be NULL). `identity` (may be NULL) receives the model as the manifest has it; the caller deletes. */
h3_status h3_inputs_model(const h3_manifest *manifest, h3_weights *weights, const h3_watch *watch, cJSON **identity);
/* Any rank. The same for the work on one block (h3_plan_weights_block): config.json, and the block's tensors by their digests in the
 * manifest's section block_tensors, which has block 0. H3_INTEGRITY names file and tensor. */
h3_status h3_inputs_block(const h3_manifest *manifest, h3_weights *weights, int64_t block);

/* Collective. Rank 0 requires the passed stage `stage` and verifies `file` among its outputs; every rank gets its bytes (caller
 * frees) and their SHA-256. `outputs` (may be NULL) receives the stage's listing on rank 0. */
h3_status h3_inputs_file(h3_ranks *ranks, h3_run *run, const char *stage, const char *file, char **text, size_t *size,
                         char sha256[H3_SHA256_HEX], h3_run_files *outputs);
/* Collective. The reference manifest of this plan and this machine's fingerprint. */
h3_status h3_inputs_manifest(h3_ranks *ranks, h3_run *run, const h3_plan *plan, const h3_library *provider, h3_manifest *out,
                             char sha256[H3_SHA256_HEX], h3_run_files *outputs);
/* Collective. The thresholds, made from that manifest. */
h3_status h3_inputs_thresholds(h3_ranks *ranks, h3_run *run, const h3_plan *plan, const h3_library *provider,
                               const char *manifest_sha256, h3_thresholds *out);

#endif
