#include "graph/parameters.h"

#include "model/synth.h"

/* The values that the stored type holds, in `dtype`. */
static h3_status make(h3_tensor *out, const h3_device *device, uint64_t seed, const h3_parameter *parameter, int32_t dtype)
{
    float base, amp;
    uint32_t key[2];
    H3_TRY(h3_synth_key(key, seed, parameter->name));
    h3_synth_parameter_scale(parameter, &base, &amp);
    H3_TRY(h3_device_tensor(out, device, dtype, parameter->rank, parameter->shape));
    h3_status status = device->span_begin();
    if (status == H3_OK) status = device->synth(out, key, base, amp, parameter->dtype == H3_BF16);
    if (status == H3_OK) status = device->span_end();
    if (status != H3_OK) h3_device_free(out, device);
    return status;
}

static h3_status bring(h3_tensor *out, const h3_device *device, const h3_tensor *stored, int32_t dtype)
{
    h3_tensor narrow;
    if (stored->dtype == dtype) return h3_device_upload(out, device, stored);
    H3_TRY(h3_device_upload(&narrow, device, stored));
    h3_status status = h3_device_tensor(out, device, dtype, stored->rank, stored->shape);
    if (status == H3_OK) status = device->span_begin();
    if (status == H3_OK) status = device->widen(out, &narrow);
    if (status == H3_OK) status = device->span_end();
    h3_device_free(&narrow, device);
    if (status != H3_OK) h3_device_free(out, device);
    return status;
}

h3_status h3_parameter_load(h3_tensor *out, const h3_device *device, const h3_weights *weights, const char *name, int32_t dtype)
{
    h3_tensor stored;
    uint64_t seed;
    *out = (h3_tensor){0};
    const h3_parameter *parameter = h3_inventory_find(h3_weights_inventory(weights), name);
    if (parameter == NULL) return h3_error(H3_USAGE, "the model has no parameter \"%.200s\"; check the name", name);
    if (dtype != parameter->dtype && !(parameter->dtype == H3_BF16 && dtype == H3_F32))
        return h3_error(H3_USAGE, "parameter %s is stored as %s; only BF16 can be widened", name, parameter->dtype == H3_F32 ? "F32" : "BF16");
    if (h3_weights_seed(weights, &seed)) return make(out, device, seed, parameter, dtype);
    H3_TRY(h3_weights_view(&stored, weights, name));
    return bring(out, device, &stored, dtype);
}
