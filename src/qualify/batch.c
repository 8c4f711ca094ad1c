#include "qualify/batch.h"

#include <stdio.h>
#include <string.h>

static void add(h3_batch_variant *out, int *count, int most, h3_batch_variant variant)
{
    if (*count < most) out[(*count)++] = variant;
}

int h3_batch_variants(h3_batch_variant *out, int most, int64_t rows)
{
    static const int64_t populations[] = {1, 2, 3, 5, 8, 17, 45}, edges[] = {1, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 257};
    int count = 0;
    for (size_t i = 0; i < sizeof populations / sizeof *populations; i++) {
        h3_batch_variant v = {.items = populations[i]};
        snprintf(v.name, sizeof v.name, "%lld items", (long long)v.items);
        add(out, &count, most, v);
    }
    for (int64_t position = 1; position <= 2; position++) {
        h3_batch_variant v = {.items = 3, .position = position};
        snprintf(v.name, sizeof v.name, "position %lld of 3 items", (long long)position);
        add(out, &count, most, v);
    }
    add(out, &count, most, (h3_batch_variant){.name = "3 items, other neighbours", .items = 3, .position = 1, .negated = 1});
    for (size_t i = 0; i < sizeof edges / sizeof *edges; i++) {
        h3_batch_variant v = {.items = 1, .rows = edges[i]};
        snprintf(v.name, sizeof v.name, "%lld rows", (long long)v.rows);
        add(out, &count, most, v);
    }
    int64_t chunk = rows / 3 + 1;
    for (int64_t offset = 0; offset < rows; offset += chunk) {
        h3_batch_variant v = {.items = 1, .rows = offset + chunk <= rows ? chunk : rows - offset, .offset = offset};
        snprintf(v.name, sizeof v.name, "chunk of rows %lld to %lld", (long long)offset, (long long)(offset + v.rows - 1));
        add(out, &count, most, v);
    }
    return count;
}

int h3_batch_partial(const h3_batch_variant *variant) { return variant->rows != 0; }

/* The source row that stands at place `row` of item `item`: neighbours are the same rows, rolled by a different amount each. */
static int64_t source_row(const h3_batch_variant *variant, int64_t item, int64_t row, int64_t rows)
{
    int64_t roll = item == variant->position ? variant->offset : variant->offset + 7 * (item + 1);
    return (row + roll) % rows;
}

static void negate(char *row, size_t bytes, int32_t dtype)
{
    if (dtype == H3_BF16)
        for (size_t i = 1; i < bytes; i += 2) row[i] = (char)(row[i] ^ 0x80);
    if (dtype == H3_F32)
        for (size_t i = 3; i < bytes; i += 4) row[i] = (char)(row[i] ^ 0x80);
}

/* Copies within the device: the rows of an item follow each other but where they wrap around. */
static h3_status copy_rows(const h3_tensor *out, const h3_device *device, const h3_tensor *source, const h3_batch_variant *variant, int64_t source_rows,
                           int64_t length)
{
    size_t row_bytes = h3_tensor_bytes(source) / (size_t)source_rows;
    for (int64_t item = 0; item < variant->items; item++) {
        for (int64_t row = 0, run; row < length; row += run) {
            int64_t from = source_row(variant, item, row, source_rows);
            run = length - row < source_rows - from ? length - row : source_rows - from;
            H3_TRY(device->copy((char *)out->data + (size_t)(item * length + row) * row_bytes, (const char *)source->data + (size_t)from * row_bytes,
                                (size_t)run * row_bytes));
        }
    }
    return H3_OK;
}

/* The neighbours' rows with the other sign, by way of the host. */
static h3_status negate_neighbours(const h3_tensor *out, const h3_device *device, const h3_batch_variant *variant)
{
    h3_tensor host;
    size_t item_bytes = h3_tensor_bytes(out) / (size_t)variant->items;
    H3_TRY(h3_device_download(&host, device, out));
    for (int64_t item = 0; item < variant->items; item++)
        if (item != variant->position) negate((char *)host.data + (size_t)item * item_bytes, item_bytes, out->dtype);
    h3_status status = device->from_host(out->data, host.data, h3_tensor_bytes(out));
    h3_tensor_free(&host);
    return status;
}

static h3_status gather(h3_tensor *out, const h3_device *device, const h3_tensor *source, const h3_batch_variant *variant, int64_t source_rows)
{
    int64_t length = variant->rows != 0 ? variant->rows : source_rows;
    int64_t shape[H3_MAX_RANK];
    memcpy(shape, source->shape, sizeof shape);
    shape[0] = source->rank == 4 ? variant->items : variant->items * length;
    if (source->rank == 4) shape[1] = length;
    H3_TRY(h3_device_tensor(out, device, source->dtype, source->rank, shape));
    H3_TRY(copy_rows(out, device, source, variant, source_rows, length));
    return variant->negated ? negate_neighbours(out, device, variant) : H3_OK;
}

/* The table belongs to all rows; temb is gathered by timesteps, so that adaln_projection meets other row counts too. */
static h3_status gather_all(h3_block_state *out, const h3_device *device, const h3_block_state *source, const h3_batch_variant *variant, int attention)
{
    h3_batch_variant whole = *variant;
    int64_t rows = source->value[H3_VALUE_INDEX].shape[0];
    whole.rows = whole.offset = 0;
    for (int32_t i = 0; i < H3_VALUE_COUNT; i++) {
        const h3_tensor *value = &source->value[i], *grad = &source->grad[i];
        int keys = attention && (i == H3_NODE_ROPE_K || i == H3_NODE_V_PROJ);
        int table = i == H3_NODE_ADALN;
        if (value->data != NULL && table) H3_TRY(h3_device_duplicate(&out->value[i], device, value));
        if (value->data != NULL && !table)
            H3_TRY(gather(&out->value[i], device, value, keys ? &whole : variant, i == H3_VALUE_TEMB ? value->shape[0] : rows));
        if (grad->data != NULL && i < H3_NODE_COUNT && !table) H3_TRY(gather(&out->grad[i], device, grad, variant, rows));
    }
    return H3_OK;
}

h3_status h3_batch_state(h3_block_state *out, const h3_device *device, const h3_block_state *source, const h3_batch_variant *variant, int attention)
{
    memset(out, 0, sizeof *out);
    out->batch = variant->items;
    h3_status status = gather_all(out, device, source, variant, attention);
    if (status != H3_OK) h3_batch_state_free(out, device);
    return status;
}

void h3_batch_state_free(h3_block_state *state, const h3_device *device)
{
    for (int32_t i = 0; i < H3_VALUE_COUNT; i++) {
        h3_device_free(&state->value[i], device);
        h3_device_free(&state->grad[i], device);
    }
    memset(state, 0, sizeof *state);
}

static int64_t first_difference(const h3_tensor *original, const h3_tensor *item, const h3_batch_variant *variant, int64_t original_rows, int64_t length)
{
    size_t row_bytes = h3_tensor_bytes(original) / (size_t)original_rows;
    for (int64_t row = 0; row < length; row++) {
        int64_t from = source_row(variant, variant->position, row, original_rows);
        if (memcmp((const char *)item->data + (size_t)row * row_bytes, (const char *)original->data + (size_t)from * row_bytes, row_bytes) != 0) return from;
    }
    return -1;
}

/* The same question without the place, answered on the device: source rows follow each other but where they wrap around. */
static h3_status same_rows(int *same, const h3_device *device, const h3_tensor *original, const h3_tensor *item, const h3_batch_variant *variant,
                           int64_t original_rows, int64_t length)
{
    size_t row_bytes = h3_tensor_bytes(original) / (size_t)original_rows;
    *same = 1;
    for (int64_t row = 0; row < length && *same;) {
        int64_t from = source_row(variant, variant->position, row, original_rows), run = original_rows - from;
        if (run > length - row) run = length - row;
        const int64_t count = h3_tensor_count(original) / original_rows * run;
        const h3_tensor mine = h3_tensor_view((char *)item->data + (size_t)row * row_bytes, item->dtype, 1, &count);
        const h3_tensor theirs = h3_tensor_view((char *)original->data + (size_t)from * row_bytes, original->dtype, 1, &count);
        H3_TRY(h3_device_equal(same, device, &mine, &theirs));
        row += run;
    }
    return H3_OK;
}

h3_status h3_batch_first_difference(int64_t *row, const h3_device *device, const h3_tensor *original, const h3_tensor *batched,
                                    const h3_batch_variant *variant, int64_t original_rows)
{
    h3_tensor whole, item;
    int64_t length = variant->rows != 0 ? variant->rows : original_rows, elements = h3_tensor_count(original) / original_rows;
    char *first = (char *)batched->data + (size_t)(variant->position * length * elements) * h3_dtype_size(batched->dtype);
    h3_tensor rows = h3_tensor_view(first, batched->dtype, 2, H3_SHAPE(length, elements)); /* no more than these are looked at */
    int same;
    *row = -1;
    H3_TRY(same_rows(&same, device, original, &rows, variant, original_rows, length));
    if (same) return H3_OK;
    H3_TRY(h3_device_borrow(&whole, device, original));
    h3_status status = h3_device_borrow(&item, device, &rows);
    if (status == H3_OK) {
        *row = first_difference(&whole, &item, variant, original_rows, length);
        h3_device_return(&item, device);
    }
    h3_device_return(&whole, device);
    return status;
}
