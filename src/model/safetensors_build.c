#include <cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "model/safetensors.h"

static const char *dtype_name(int32_t dtype)
{
    static const char *const names[] = {NULL, "F32", "BF16", "I32", "I64", "F64", "F16", "U8"};
    return dtype >= H3_F32 && dtype <= H3_U8 ? names[dtype] : NULL;
}

static h3_status describe(cJSON *header, const h3_safetensors_entry *entry, size_t *offset)
{
    const h3_tensor *tensor = &entry->tensor;
    if (dtype_name(tensor->dtype) == NULL) return h3_error(H3_INTEGRITY, "tensor %s has a type that safetensors lacks", entry->name);
    cJSON *item = cJSON_AddObjectToObject(header, entry->name), *shape, *offsets;
    cJSON_AddStringToObject(item, "dtype", dtype_name(tensor->dtype));
    shape = cJSON_AddArrayToObject(item, "shape");
    for (int32_t i = 0; i < tensor->rank; i++) cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)tensor->shape[i]));
    offsets = cJSON_AddArrayToObject(item, "data_offsets");
    cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)*offset));
    *offset += h3_tensor_bytes(tensor);
    cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)*offset));
    return H3_OK;
}

/* Header length, header padded with blanks to a multiple of 8, data. */
static h3_status assemble(char **out, size_t *size, const char *header, const h3_safetensors_entry *entries, size_t count, size_t data_size)
{
    size_t length = strlen(header), padded = (length + 7) / 8 * 8, at = 8 + padded;
    void *memory;
    H3_TRY(h3_alloc(&memory, at + data_size, 1, "a safetensors image"));
    char *image = memory;
    for (int i = 0; i < 8; i++) image[i] = (char)(padded >> (8 * i));
    memcpy(image + 8, header, length);
    memset(image + 8 + length, ' ', padded - length);
    for (size_t i = 0; i < count; i++) {
        size_t bytes = h3_tensor_bytes(&entries[i].tensor);
        memcpy(image + at, entries[i].tensor.data, bytes);
        at += bytes;
    }
    *out = image;
    *size = at;
    return H3_OK;
}

h3_status h3_safetensors_build(char **out, size_t *size, const h3_safetensors_entry *entries, size_t count, const cJSON *metadata)
{
    size_t offset = 0;
    h3_status status = H3_OK;
    cJSON *header = cJSON_CreateObject();
    if (header == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for a safetensors header");
    if (metadata != NULL) cJSON_AddItemToObject(header, "__metadata__", cJSON_Duplicate(metadata, 1));
    for (size_t i = 0; i < count && status == H3_OK; i++) status = describe(header, &entries[i], &offset);
    char *text = status == H3_OK ? cJSON_PrintUnformatted(header) : NULL;
    cJSON_Delete(header);
    if (status != H3_OK) return status;
    if (text == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for a safetensors header");
    status = assemble(out, size, text, entries, count, offset);
    cJSON_free(text);
    return status;
}
