/* What keeps one candidate node from spoiling another's checks: its inputs are put back when it wrote into them, and its outputs start as
 * NaNs, so that an element nobody writes shows. */
#include <string.h>

#include "qualify/gate_internal.h"

static void add(h3_gate_snapshot *snapshot, const h3_tensor *tensor, h3_status *status)
{
    if (*status != H3_OK || tensor->data == NULL) return;
    *status = h3_tensor_convert(&snapshot->copies[snapshot->count], tensor, tensor->dtype);
    if (*status == H3_OK) snapshot->originals[snapshot->count++] = *tensor;
}

h3_status h3_gate_snapshot_take(h3_gate_snapshot *out, const h3_gate_block *block, int32_t node)
{
    h3_node_input input;
    h3_status status = H3_OK;
    h3_walk_input(&input, block->engine.config, &block->bf16, &block->provider, node);
    out->count = 0;
    for (int i = 0; i < H3_MAX_IN; i++) add(out, &input.in[i], &status);
    for (int i = 0; i < 2; i++) add(out, &input.param[i], &status);
    if (node != H3_NODE_ADALN) add(out, &block->provider.grad[node], &status);
    for (int i = 0; node == H3_NODE_ADALN && i < H3_ROW_GRADS; i++) add(out, &block->provider.row_grad[i], &status);
    if (status != H3_OK) h3_gate_snapshot_restore(out);
    return status;
}

int h3_gate_snapshot_restore(h3_gate_snapshot *snapshot)
{
    int written = 0;
    for (int i = 0; i < snapshot->count; i++) {
        size_t bytes = h3_tensor_bytes(&snapshot->copies[i]);
        if (memcmp(snapshot->originals[i].data, snapshot->copies[i].data, bytes) != 0) {
            memcpy(snapshot->originals[i].data, snapshot->copies[i].data, bytes);
            written = 1;
        }
        h3_tensor_free(&snapshot->copies[i]);
    }
    snapshot->count = 0;
    return written;
}

static h3_status allocate_nan(void **out, size_t bytes)
{
    H3_TRY(h3_device_cpu()->allocate(out, bytes));
    if (*out != NULL) memset(*out, 0xff, bytes); /* a NaN in every type */
    return H3_OK;
}

const h3_device *h3_gate_nan_device(void)
{
    static h3_device device;
    device = *h3_device_cpu();
    device.allocate = allocate_nan;
    return &device;
}
