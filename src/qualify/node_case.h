/* Minimal cases: one node's inputs, parameters and upstream gradient in one file, replayed in a fraction of a second. */
#ifndef H3_QUALIFY_NODE_CASE_H
#define H3_QUALIFY_NODE_CASE_H

#include "qualify/gate_internal.h"

/* Publishes <run>/cases/<layout>.<node>.safetensors from the block's provider values and notes it in the record. */
h3_status h3_node_case_write(h3_gate_block *block, int32_t node);

/* Replays a case: every isolated check of the node with the operator that the case names, on the device that its libraries are for. `record` gets the node's cells. H3_INTEGRITY for
 * a damaged case, H3_FAILED when the library is unavailable. */
h3_status h3_node_case_run(const char *path, h3_layout_record *record, int32_t *node);

#endif
