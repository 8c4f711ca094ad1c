#include "model/safetensors.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/json.h"
#include "base/text.h"

/* Layout of a file: a little-endian 64-bit header length, the header (a JSON object), the data without gaps. */
enum { LENGTH_BYTES = 8, HEADER_LIMIT = 100 * 1024 * 1024, NAME_LIMIT = 512 };

static const struct { const char *name; int32_t dtype; } DTYPES[] = {
    {"F32", H3_F32}, {"BF16", H3_BF16}, {"F16", H3_F16}, {"I32", H3_I32}, {"I64", H3_I64}, {"F64", H3_F64}, {"U8", H3_U8},
};

/* An entry while the file is checked. */
typedef struct span {
    const char *name;
    uint64_t begin, end;
} span;

static h3_status read_dtype(int32_t *out, const cJSON *item, const char *where)
{
    const char *name;
    H3_TRY(h3_json_string(&name, item, "dtype", where, H3_INTEGRITY));
    for (size_t i = 0; i < sizeof DTYPES / sizeof *DTYPES; i++)
        if (strcmp(DTYPES[i].name, name) == 0) {
            *out = DTYPES[i].dtype;
            return H3_OK;
        }
    return h3_error(H3_INTEGRITY, "%s: dtype \"%.40s\" is not supported; store the tensor as F32, BF16 or F16", where, name);
}

static h3_status read_shape(int64_t shape[H3_MAX_RANK], int32_t *rank, const cJSON *item, const char *where)
{
    const cJSON *array, *size;
    H3_TRY(h3_json_array(&array, item, "shape", where, H3_INTEGRITY));
    *rank = 0;
    cJSON_ArrayForEach(size, array) {
        if (*rank == H3_MAX_RANK) return h3_error(H3_INTEGRITY, "%s: the shape has more than %d dimensions", where, H3_MAX_RANK);
        H3_TRY(h3_json_integer_value(&shape[(*rank)++], size, "a size in the shape", 0, INT64_MAX, where, H3_INTEGRITY));
    }
    if (*rank == 0) shape[(*rank)++] = 1;
    return H3_OK;
}

static h3_status read_range(span *out, const cJSON *item, size_t data_size, const char *where)
{
    const cJSON *array;
    int64_t ends[2];
    H3_TRY(h3_json_array(&array, item, "data_offsets", where, H3_INTEGRITY));
    if (cJSON_GetArraySize(array) != 2) return h3_error(H3_INTEGRITY, "%s: data_offsets must be two integers", where);
    for (int i = 0; i < 2; i++)
        H3_TRY(h3_json_integer_value(&ends[i], cJSON_GetArrayItem(array, i), "one of the data_offsets", 0, INT64_MAX, where,
                                     H3_INTEGRITY));
    out->begin = (uint64_t)ends[0];
    out->end = (uint64_t)ends[1];
    if (out->begin > out->end) return h3_error(H3_INTEGRITY, "%s: data_offsets run backward", where);
    if (out->end > data_size)
        return h3_error(H3_INTEGRITY, "%s: the file is truncated: the tensor ends at data byte %lld of %zu", where,
                        (long long)ends[1], data_size);
    return H3_OK;
}

static h3_status check_name(const char *name, const char *file)
{
    size_t length = strlen(name);
    if (length == 0 || length > NAME_LIMIT) return h3_error(H3_INTEGRITY, "%s: a tensor name of %zu characters", file, length);
    for (const char *c = name; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            return h3_error(H3_INTEGRITY, "%s: a control character in the tensor name %.80s", file, name);
    return H3_OK;
}

/* Bytes of a shape, or H3_INTEGRITY when they overflow. */
static h3_status shape_bytes(size_t *out, const int64_t *shape, int32_t rank, int32_t dtype)
{
    *out = h3_dtype_size(dtype);
    int empty = 0;
    for (int32_t i = 0; i < rank; i++) {
        empty |= shape[i] == 0;
        if (shape[i] != 0)
            H3_TRY(h3_size_multiply(*out, (size_t)shape[i], out)); /* a later 0 must not hide an overflow: strides */
    }
    if (empty) *out = 0;
    return H3_OK;
}

static h3_status read_entry(h3_safetensors_entry *entry, span *range, const cJSON *item, const unsigned char *data,
                            size_t data_size, const char *file)
{
    static const char *const KEYS[] = {"dtype", "shape", "data_offsets", NULL};
    char where[H3_PATH_MAX + NAME_LIMIT + 8];
    int64_t shape[H3_MAX_RANK];
    int32_t dtype = H3_NONE, rank;
    size_t bytes;
    H3_TRY(check_name(item->string, file));
    snprintf(where, sizeof where, "%s: %s", file, item->string);
    H3_TRY(h3_json_only_keys(item, KEYS, where, H3_INTEGRITY));
    H3_TRY(read_dtype(&dtype, item, where));
    H3_TRY(read_shape(shape, &rank, item, where));
    H3_TRY(read_range(range, item, data_size, where));
    if (shape_bytes(&bytes, shape, rank, dtype) != H3_OK)
        return h3_error_context(H3_INTEGRITY, "%s: the shape is too large", where);
    if (bytes != range->end - range->begin)
        return h3_error(H3_INTEGRITY, "%s: data_offsets span %llu bytes but the shape needs %zu", where,
                        (unsigned long long)(range->end - range->begin), bytes);
    range->name = item->string;
    entry->name = strdup(item->string);
    if (entry->name == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for the tensor names of %s", file);
    /* The image is read-only; nobody writes through a view. */
    entry->tensor = h3_tensor_view((void *)(uintptr_t)(data + range->begin), dtype, rank, shape);
    return H3_OK;
}

static int compare_spans(const void *a, const void *b)
{
    const span *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

/* The tensors must tile the data. */
static h3_status check_spans(span *spans, size_t count, size_t data_size, const char *file)
{
    uint64_t end = 0;
    if (count > 0) qsort(spans, count, sizeof *spans, compare_spans);
    for (size_t i = 0; i < count; i++) {
        if (spans[i].begin < end)
            return h3_error(H3_INTEGRITY, "%s: overlap: the bytes of %s belong to another tensor too", file, spans[i].name);
        if (spans[i].begin > end)
            return h3_error(H3_INTEGRITY, "%s: hole of %llu bytes before %s", file, (unsigned long long)(spans[i].begin - end),
                            spans[i].name);
        end = spans[i].end;
    }
    if (end != data_size)
        return h3_error(H3_INTEGRITY, "%s: %llu trailing bytes behind the last tensor", file,
                        (unsigned long long)(data_size - end));
    return H3_OK;
}

static h3_status check_metadata(const cJSON *item, const char *file)
{
    const cJSON *text;
    if (!cJSON_IsObject(item)) return h3_error(H3_INTEGRITY, "%s: __metadata__ must be an object of strings", file);
    cJSON_ArrayForEach(text, item)
        if (!cJSON_IsString(text)) return h3_error(H3_INTEGRITY, "%s: __metadata__ must hold strings only", file);
    return H3_OK;
}

static int compare_entries(const void *a, const void *b)
{
    return strcmp(((const h3_safetensors_entry *)a)->name, ((const h3_safetensors_entry *)b)->name);
}

static h3_status read_entries(h3_safetensors *out, const cJSON *header, span *spans, const unsigned char *data, size_t data_size)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, header) {
        if (strcmp(item->string, "__metadata__") == 0) {
            H3_TRY(check_metadata(item, out->path));
            out->metadata = cJSON_PrintUnformatted(item);
            if (out->metadata == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for the metadata of %s", out->path);
            continue;
        }
        H3_TRY(read_entry(&out->entries[out->count], &spans[out->count], item, data, data_size, out->path));
        out->count++;
    }
    H3_TRY(check_spans(spans, out->count, data_size, out->path));
    if (out->count > 0) qsort(out->entries, out->count, sizeof *out->entries, compare_entries);
    return H3_OK;
}

static h3_status read_header(h3_safetensors *out, const cJSON *header, const unsigned char *data, size_t data_size)
{
    void *entries, *spans;
    size_t capacity = (size_t)cJSON_GetArraySize(header);
    if (!cJSON_IsObject(header)) return h3_error(H3_INTEGRITY, "%s: the header must be a JSON object", out->path);
    H3_TRY(h3_alloc(&entries, capacity, sizeof *out->entries, "the tensors of a file"));
    out->entries = entries;
    H3_TRY(h3_alloc(&spans, capacity, sizeof(span), "the tensors of a file"));
    h3_status status = read_entries(out, header, spans, data, data_size);
    free(spans);
    return status;
}

static h3_status read_image(h3_safetensors *out)
{
    uint64_t length = 0;
    cJSON *header;
    if (out->size < LENGTH_BYTES)
        return h3_error(H3_INTEGRITY, "%s: truncated: %zu bytes are no safetensors file", out->path, out->size);
    for (int i = LENGTH_BYTES; i-- > 0;) length = length << 8 | out->image[i];
    if (length > HEADER_LIMIT)
        return h3_error(H3_INTEGRITY, "%s: oversized header of %llu bytes; at most %d are possible", out->path,
                        (unsigned long long)length, HEADER_LIMIT);
    if (length > out->size - LENGTH_BYTES)
        return h3_error(H3_INTEGRITY, "%s: truncated header: %llu bytes of %zu in the file", out->path,
                        (unsigned long long)length, out->size);
    const char *text = (const char *)out->image + LENGTH_BYTES;
    if (length == 0 || *text != '{')
        return h3_error(H3_INTEGRITY, "%s: the header does not start with {; no safetensors file", out->path);
    H3_TRY(h3_json_parse_plain(&header, text, (size_t)length, out->path, H3_INTEGRITY));
    h3_status status = read_header(out, header, out->image + LENGTH_BYTES + length, out->size - LENGTH_BYTES - (size_t)length);
    cJSON_Delete(header);
    return status;
}

/* Takes over the image, also on failure. */
static h3_status parse(h3_safetensors *out, const unsigned char *image, size_t size, int mapped, const char *name)
{
    h3_safetensors file = {.image = image, .size = size, .mapped = mapped};
    h3_status status = h3_format(&file.path, "%s", name);
    if (status == H3_OK) status = read_image(&file);
    if (status != H3_OK) h3_safetensors_close(&file);
    *out = file;
    return status;
}

h3_status h3_safetensors_parse(h3_safetensors *out, const unsigned char *image, size_t size, const char *name)
{
    return parse(out, image, size, 0, name);
}

static h3_status map_file(void **image, size_t size, int file, const char *path)
{
    *image = NULL;
    if (size == 0) return H3_OK; /* nothing to map; the parser refuses it */
    *image = mmap(NULL, size, PROT_READ, MAP_PRIVATE, file, 0);
    if (*image == MAP_FAILED) return h3_error(H3_ENVIRONMENT, "cannot map %s: %s", path, strerror(errno));
    return H3_OK;
}

static h3_status open_file(h3_safetensors *out, const char *path, int linked)
{
    void *image;
    size_t size = 0;
    int file;
    *out = (h3_safetensors){0};
    H3_TRY(h3_open_regular(&file, &size, path, linked, H3_INTEGRITY));
    h3_status status = map_file(&image, size, file, path);
    close(file);
    return status == H3_OK ? parse(out, image, size, image != NULL, path) : status;
}

h3_status h3_safetensors_open(h3_safetensors *out, const char *path) { return open_file(out, path, 0); }

h3_status h3_safetensors_open_linked(h3_safetensors *out, const char *path) { return open_file(out, path, 1); }

void h3_safetensors_close(h3_safetensors *file)
{
    for (size_t i = 0; i < file->count; i++) free(file->entries[i].name);
    free(file->entries);
    free(file->path);
    cJSON_free(file->metadata);
    if (file->mapped) munmap((void *)(uintptr_t)file->image, file->size);
    *file = (h3_safetensors){0};
}

const h3_tensor *h3_safetensors_find(const h3_safetensors *file, const char *name)
{
    size_t low = 0, high = file->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(name, file->entries[middle].name);
        if (order == 0) return &file->entries[middle].tensor;
        if (order < 0) high = middle;
        else low = middle + 1;
    }
    return NULL;
}

h3_status h3_safetensors_read(h3_tensor *out, const h3_safetensors *file, const char *name, int32_t dtype, int32_t rank,
                              const int64_t *shape)
{
    *out = (h3_tensor){0};
    const h3_tensor *stored = h3_safetensors_find(file, name);
    if (stored == NULL) return h3_error(H3_INTEGRITY, "%s: the tensor %s is missing", file->path, name);
    if (dtype != H3_NONE && stored->dtype != dtype)
        return h3_error(H3_INTEGRITY, "%s: %s has dtype %d where %d was expected", file->path, name, stored->dtype, dtype);
    int same = rank == 0 || stored->rank == rank;
    for (int32_t i = 0; i < rank && same; i++) same = stored->shape[i] == shape[i];
    if (!same) return h3_error(H3_INTEGRITY, "%s: %s has another shape than expected", file->path, name);
    return h3_tensor_convert(out, stored, stored->dtype);
}
