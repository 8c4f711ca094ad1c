/* What keeps one candidate node from spoiling another's checks: its inputs are put back when it wrote into them, its outputs start as NaNs, so
 * that an element nobody writes shows, and behind each lies a band that nobody may write. */
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

h3_status h3_gate_snapshot_take(h3_gate_snapshot *out, const h3_gate_block *block, const h3_node_result *forward, int32_t node)
{
    h3_node_input input;
    h3_status status = H3_OK;
    h3_walk_input(&input, block->engine.config, &block->bf16, &block->provider, node);
    *out = (h3_gate_snapshot){.device = block->engine.device};
    for (int i = 0; i < H3_MAX_IN; i++) add(out, &input.in[i], &status);
    for (int i = 0; i < 2; i++) add(out, &input.param[i], &status);
    if (forward != NULL) add(out, &forward->out, &status);
    for (int i = 0; forward != NULL && i < H3_MAX_SAVED; i++) add(out, &forward->saved[i], &status);
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

/* --- memory for one call --- */

enum { BAND = 4096, PIECES = 64 };

static struct {
    const h3_device *plain; /* the device below */
    int count;
    struct {
        char *data;
        size_t bytes;
    } piece[PIECES];
} memory; /* of the guard that is open */

static h3_status allocate_guarded(void **out, size_t bytes)
{
    size_t all;
    if (memory.count == PIECES) return h3_error(H3_ENVIRONMENT, "one call needs more than %d tensors, which is more than can be guarded", PIECES);
    if (__builtin_add_overflow(bytes, (size_t)BAND, &all)) all = bytes;
    H3_TRY(memory.plain->allocate(out, all));
    memory.piece[memory.count].data = *out;
    memory.piece[memory.count++].bytes = bytes;
    return memory.plain->fill(*out, 0xff, all); /* a NaN in every type */
}

static void release_guarded(void *data)
{
    int i = 0;
    while (i < memory.count && memory.piece[i].data != data) i++;
    if (i < memory.count) memory.piece[i] = memory.piece[--memory.count];
    memory.plain->release(data);
}

void h3_gate_guard_open(h3_gate_guard *guard, h3_engine *engine)
{
    h3_engine_free(engine); /* the workspace: a new one will be of the size that is planned */
    *guard = (h3_gate_guard){engine, engine->device, *engine->device};
    guard->device.allocate = allocate_guarded;
    guard->device.release = release_guarded;
    memory.plain = engine->device;
    memory.count = 0;
    engine->device = &guard->device;
}

static h3_status is_spoiled(int *spoiled, const char *behind)
{
    unsigned char band[BAND];
    *spoiled = 0;
    H3_TRY(memory.plain->to_host(band, behind, BAND));
    for (int i = 0; i < BAND; i++) *spoiled |= band[i] != 0xff;
    return H3_OK;
}

/* What lies at `data`, in words. */
static const char *name_of(const void *data, const h3_gate_guard *guard, const h3_node_result *result)
{
    const h3_tensor *tensor;
    const char *name;
    for (int direction = 0; direction < 2; direction++)
        for (int i = 0; (tensor = h3_gate_product(result, direction, i, &name)) != NULL; i++)
            if (tensor->data == data) return name;
    return data == guard->engine->workspace ? "its workspace" : "a saved tensor";
}

h3_status h3_gate_guard_close(h3_gate_guard *guard, const h3_node_result *result, const char **spoiled)
{
    h3_status status = H3_OK;
    *spoiled = NULL;
    for (int i = 0; i < memory.count && *spoiled == NULL && status == H3_OK; i++) {
        int written;
        status = is_spoiled(&written, memory.piece[i].data + memory.piece[i].bytes);
        if (status == H3_OK && written) *spoiled = name_of(memory.piece[i].data, guard, result);
    }
    h3_engine_free(guard->engine);
    guard->engine->device = guard->plain;
    return status;
}
