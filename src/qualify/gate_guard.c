/* What keeps one candidate node from spoiling another's checks: its inputs are put back when it wrote into them, and its outputs start as
 * NaNs, so that an element nobody writes shows. */
#include "qualify/gate_internal.h"

static void add(h3_gate_snapshot *snapshot, const h3_tensor *tensor, h3_status *status)
{
    if (*status != H3_OK || tensor->data == NULL) return;
    *status = h3_device_duplicate(&snapshot->copies[snapshot->count], snapshot->device, tensor);
    if (*status == H3_OK) snapshot->originals[snapshot->count++] = *tensor;
}

static void release(h3_gate_snapshot *snapshot)
{
    for (int i = 0; i < snapshot->count; i++) h3_device_free(&snapshot->copies[i], snapshot->device);
    snapshot->count = 0;
}

h3_status h3_gate_snapshot_take(h3_gate_snapshot *out, const h3_gate_block *block, int32_t node)
{
    h3_node_input input;
    h3_status status = H3_OK;
    h3_walk_input(&input, block->engine.config, &block->bf16, &block->provider, node);
    *out = (h3_gate_snapshot){.device = block->engine.device};
    for (int i = 0; i < H3_MAX_IN; i++) add(out, &input.in[i], &status);
    for (int i = 0; i < 2; i++) add(out, &input.param[i], &status);
    if (node != H3_NODE_ADALN) add(out, &block->provider.grad[node], &status);
    for (int i = 0; node == H3_NODE_ADALN && i < H3_ROW_GRADS; i++) add(out, &block->provider.row_grad[i], &status);
    if (status != H3_OK) release(out);
    return status;
}

h3_status h3_gate_snapshot_restore(h3_gate_snapshot *snapshot, int *written)
{
    const h3_device *device = snapshot->device;
    h3_status status = H3_OK;
    *written = 0;
    for (int i = 0; i < snapshot->count && status == H3_OK; i++) {
        const h3_tensor *original = &snapshot->originals[i], *copy = &snapshot->copies[i];
        int equal;
        status = h3_device_equal(&equal, device, original, copy);
        if (status != H3_OK || equal) continue;
        *written = 1;
        status = device->copy(original->data, copy->data, h3_tensor_bytes(copy));
    }
    release(snapshot);
    return status;
}

static const h3_device *plain; /* the device below the one with NaNs */

static h3_status allocate_nan(void **out, size_t bytes)
{
    H3_TRY(plain->allocate(out, bytes));
    return *out != NULL ? plain->fill(*out, 0xff, bytes) : H3_OK; /* a NaN in every type */
}

const h3_device *h3_gate_nan_device(const h3_device *device)
{
    static h3_device with_nans;
    plain = device;
    with_nans = *device;
    with_nans.allocate = allocate_nan;
    return &with_nans;
}
