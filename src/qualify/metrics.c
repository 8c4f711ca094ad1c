#include "qualify/metrics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

const h3_bound_formula h3_frozen_formula = {1.25, 1e-3, 1.5, 5e-3, 1e-6};

static double element(const h3_tensor *tensor, int64_t index)
{
    return tensor->dtype == H3_BF16 ? (double)h3_bf16_to_f32(((const uint16_t *)tensor->data)[index]) : (double)((const float *)tensor->data)[index];
}

static int comparable(const h3_tensor *x, const h3_tensor *g)
{
    int types = (x->dtype == H3_F32 || x->dtype == H3_BF16) && (g->dtype == H3_F32 || g->dtype == H3_BF16);
    return types && x->data != NULL && g->data != NULL && h3_tensor_count(x) == h3_tensor_count(g) && h3_tensor_count(x) > 0;
}

/* Norm of the difference of each row over that of the golden row, the largest of all. */
static void worst_row(h3_figures *out, const h3_row_sum *sums, int64_t rows)
{
    double floor = 1e-3 * out->golden_norm / sqrt((double)rows);
    out->worst_row = 0.0;
    for (int64_t r = 0; r < rows; r++) {
        double norm = sqrt(sums[r].norm), scale = norm > floor ? norm : floor;
        double value = sqrt(sums[r].difference) / (scale > 0.0 ? scale : 1.0);
        if (!(value <= out->worst_row)) { /* NaN wins */
            out->worst_row = value;
            out->worst_index = r;
            if (value != value) return;
        }
    }
}

static void figures_from(h3_figures *out, const h3_row_sum *sums, int64_t rows)
{
    h3_row_sum all = {0.0, 0.0, 0.0, 0.0, 0.0};
    for (int64_t r = 0; r < rows; r++) {
        all.difference += sums[r].difference;
        all.norm += sums[r].norm;
        all.dot += sums[r].dot;
        all.squares += sums[r].squares;
        all.bad += sums[r].bad;
    }
    out->golden_norm = sqrt(all.norm);
    out->error = all.norm > 0.0 ? sqrt(all.difference) / out->golden_norm : sqrt(all.difference);
    out->bias = all.norm > 0.0 ? all.dot / all.norm : 0.0;
    out->effective = all.squares > 0.0 ? all.norm * all.norm / all.squares : 1.0;
    worst_row(out, sums, rows);
    if (!(all.bad == 0.0)) out->error = out->bias = out->worst_row = NAN;
}

h3_status h3_figures_on(h3_figures *out, const h3_device *device, const h3_tensor *x, const h3_tensor *g, int64_t rows, int64_t group)
{
    void *memory;
    memset(out, 0, sizeof *out);
    H3_TRY(h3_alloc(&memory, rows > 0 ? (size_t)rows : 1, sizeof(h3_row_sum), "row sums"));
    h3_status status = h3_device_row_sums(memory, device, x, g, rows, group);
    if (status == H3_OK) {
        out->count = h3_tensor_count(x);
        figures_from(out, memory, rows);
    }
    free(memory);
    return status;
}

h3_status h3_figures_of(h3_figures *out, const h3_tensor *x, const h3_tensor *g, int64_t rows, int64_t group)
{
    return h3_figures_on(out, h3_device_cpu(), x, g, rows, group);
}

h3_status h3_error_on(h3_figures *out, const h3_device *device, const h3_tensor *x, const h3_tensor *g)
{
    return h3_figures_on(out, device, x, g, g->rank > 1 ? g->shape[0] : 1, 1);
}

h3_status h3_norm_on(double *norm, const h3_device *device, const h3_tensor *tensor)
{
    h3_figures figures;
    H3_TRY(h3_error_on(&figures, device, tensor, tensor));
    *norm = figures.error != figures.error ? NAN : figures.golden_norm;
    return H3_OK;
}

double h3_isolated_error_bound(const h3_figures *provider) { return (1.05 + 1.0 / sqrt((double)provider->count)) * provider->error + 1e-5; }

double h3_isolated_bias_bound(const h3_figures *provider)
{
    return fabs(provider->bias) + 3.0 * provider->error / sqrt(provider->effective) + 5e-5;
}

double h3_isolated_worst_bound(const h3_figures *provider) { return 2.0 * provider->worst_row + 1e-5; }

double h3_frozen_bound(double provider_error, int is_gradient)
{
    const h3_bound_formula *f = &h3_frozen_formula;
    return is_gradient ? f->gradient_scale * provider_error + f->gradient_offset : f->forward_scale * provider_error + f->forward_offset;
}

int h3_is_gradient(const char *tensor_name)
{
    static const char *const prefixes[] = {"dnode.", "grad.", "dinput.", "dboundary."};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (strncmp(tensor_name, prefixes[i], strlen(prefixes[i])) == 0) return 1;
    return 0;
}

/* Position of a float among all floats in ascending order, so that neighbours differ by one. */
static int64_t ordinal(const h3_tensor *tensor, int64_t index)
{
    if (tensor->dtype == H3_BF16) {
        int64_t bits = ((const uint16_t *)tensor->data)[index];
        return (bits & 0x8000) != 0 ? -(bits & 0x7fff) : bits;
    }
    uint32_t bits;
    memcpy(&bits, (const float *)tensor->data + index, sizeof bits);
    return (bits & 0x80000000u) != 0 ? -(int64_t)(bits & 0x7fffffffu) : (int64_t)bits;
}

h3_status h3_difference_of(h3_difference *out, const h3_tensor *a, const h3_tensor *b)
{
    *out = (h3_difference){.first = -1, .worst = -1};
    if (!comparable(a, b) || a->dtype != b->dtype) return h3_error(H3_FAILED, "two tensors' bytes cannot be compared: absent, empty, or of different sizes or types");
    size_t size = h3_dtype_size(a->dtype);
    out->count = h3_tensor_count(a);
    if (memcmp(a->data, b->data, (size_t)out->count * size) == 0) return H3_OK;
    for (int64_t i = 0; i < out->count; i++) {
        if (memcmp((const char *)a->data + (size_t)i * size, (const char *)b->data + (size_t)i * size, size) == 0) continue;
        int64_t ulp = llabs(ordinal(a, i) - ordinal(b, i));
        double distance = fabs(element(a, i) - element(b, i));
        if (out->first < 0) {
            out->first = i;
            out->first_ulp = ulp;
        }
        if (out->worst < 0 || ulp > out->worst_ulp) {
            out->worst = i;
            out->worst_ulp = ulp;
        }
        if (!(distance <= out->largest) && !isnan(out->largest)) out->largest = distance;
        out->differing++;
    }
    return H3_OK;
}

int h3_all_finite(const h3_tensor *tensor)
{
    int64_t count = h3_tensor_count(tensor);
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(element(tensor, i))) return 0;
    return 1;
}
