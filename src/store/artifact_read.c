#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "store/artifact.h"
#include "store/artifact_guard.h"
#include "store/artifact_image.h"
#include "store/artifact_types.h"

/* One walk through a file. HDF5's callbacks say only "stop": the reason is kept here. */
typedef struct reader {
    h3_artifact *artifact;
    size_t capacity; /* of artifact->entries */
    size_t budget;   /* bytes that the remaining datasets may have: they cannot overlap, so together they fit into the file */
    const char *group; /* path of the group being walked, "" for the root */
    h3_status status;
} reader;

static h3_status damaged(const reader *in, const char *name, const char *problem)
{
    return h3_error(H3_INTEGRITY, "%s: \"%s\": %s; the file is damaged or not an artifact, write it again", in->artifact->path,
                    name, problem);
}

/* A zeroed entry behind the last. */
static h3_status next_entry(h3_artifact_entry **out, reader *in)
{
    h3_artifact *artifact = in->artifact;
    if (artifact->count == in->capacity) {
        size_t capacity = in->capacity ? in->capacity * 2 : 32;
        h3_artifact_entry *grown = realloc(artifact->entries, capacity * sizeof *grown);
        if (grown == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for the %zu datasets of %s", capacity, artifact->path);
        artifact->entries = grown;
        in->capacity = capacity;
    }
    *out = &artifact->entries[artifact->count];
    memset(*out, 0, sizeof **out);
    return H3_OK;
}

/* A text attribute: one fixed-length string. */
static int get_text(hid_t dataset, const char *key, char out[H3_ARTIFACT_TEXT_MAX + 1])
{
    memset(out, 0, H3_ARTIFACT_TEXT_MAX + 1);
    hid_t attribute = H5Aopen(dataset, key, H5P_DEFAULT), type = H5I_INVALID_HID, space = H5I_INVALID_HID;
    if (attribute >= 0) type = H5Aget_type(attribute);
    if (attribute >= 0) space = H5Aget_space(attribute);
    int failed = type < 0 || space < 0 || H5Tget_class(type) != H5T_STRING || H5Tis_variable_str(type) != 0 ||
                 H5Tget_size(type) > H3_ARTIFACT_TEXT_MAX || H5Sget_simple_extent_npoints(space) != 1 ||
                 H5Aread(attribute, type, out) < 0;
    if (space >= 0) H5Sclose(space);
    if (type >= 0) H5Tclose(type);
    if (attribute >= 0) H5Aclose(attribute);
    return failed;
}

/* The shape attribute must say what the dataset itself says. */
static int check_shape(hid_t dataset, const h3_tensor *tensor)
{
    int64_t shape[H3_MAX_RANK];
    hid_t attribute = H5Aopen(dataset, H3_ATTRIBUTE_SHAPE, H5P_DEFAULT), type = H5I_INVALID_HID, space = H5I_INVALID_HID;
    if (attribute >= 0) type = H5Aget_type(attribute);
    if (attribute >= 0) space = H5Aget_space(attribute);
    int failed = type < 0 || space < 0 || H5Tequal(type, H5T_STD_I64LE) <= 0 ||
                 H5Sget_simple_extent_npoints(space) != tensor->rank || H5Aread(attribute, H5T_STD_I64LE, shape) < 0;
    for (int32_t i = 0; i < tensor->rank && !failed; i++) failed = shape[i] != tensor->shape[i];
    if (space >= 0) H5Sclose(space);
    if (type >= 0) H5Tclose(type);
    if (attribute >= 0) H5Aclose(attribute);
    return failed;
}

static const char *describe_shape(hid_t dataset, h3_tensor *tensor)
{
    hsize_t shape[H5S_MAX_RANK];
    hid_t space = H5Dget_space(dataset);
    if (space < 0) return "its shape cannot be read";
    int rank = H5Sget_simple_extent_ndims(space);
    const char *problem = rank < 1 || rank > H3_MAX_RANK ? "it does not have 1 to 5 dimensions" : NULL;
    if (problem == NULL && H5Sget_simple_extent_dims(space, shape, NULL) != rank) problem = "its shape cannot be read";
    for (int i = 0; i < rank && problem == NULL; i++) {
        if (shape[i] == 0 || shape[i] > INT64_MAX) problem = "a dimension is empty or too large";
        else tensor->shape[i] = (int64_t)shape[i];
    }
    tensor->rank = rank;
    H5Sclose(space);
    return problem;
}

static const char *describe_dtype(hid_t dataset, h3_tensor *tensor)
{
    static const int32_t dtypes[] = {H3_F32, H3_BF16, H3_I32, H3_I64, H3_F64};
    hid_t type = H5Dget_type(dataset);
    if (type < 0) return "its type cannot be read";
    tensor->dtype = H3_NONE;
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes && tensor->dtype == H3_NONE; i++) {
        hid_t wanted = h3_artifact_type(dtypes[i]);
        if (wanted >= 0 && H5Tequal(type, wanted) > 0) tensor->dtype = dtypes[i];
        if (wanted >= 0) H5Tclose(wanted);
    }
    H5Tclose(type);
    return tensor->dtype == H3_NONE ? "its type is none of F32, BF16, I32, I64, F64" : NULL;
}

/* The bytes that the shape asks for must be the bytes that the file has. */
static const char *describe(const reader *in, hid_t dataset, h3_tensor *tensor)
{
    const char *problem = describe_shape(dataset, tensor);
    if (problem == NULL) problem = describe_dtype(dataset, tensor);
    if (problem != NULL) return problem;
    size_t bytes = h3_dtype_size(tensor->dtype);
    for (int32_t i = 0; i < tensor->rank; i++)
        if (__builtin_mul_overflow(bytes, (size_t)tensor->shape[i], &bytes)) return "its size overflows";
    haddr_t offset = H5Dget_offset(dataset), size = (haddr_t)in->artifact->size;
    if (bytes > in->budget || offset == HADDR_UNDEF || offset > size || bytes > size - offset)
        return "its data reach beyond the file";
    if (H5Dget_storage_size(dataset) != bytes) return "its data have another size than its shape asks for";
    return NULL;
}

static h3_status check_attributes(const reader *in, hid_t dataset, h3_artifact_entry *entry)
{
    char text[H3_ARTIFACT_TEXT_MAX + 1];
    if (get_text(dataset, H3_ATTRIBUTE_DTYPE, text) || strcmp(text, h3_artifact_dtype_name(entry->tensor.dtype)) != 0)
        return damaged(in, entry->name, "its dtype attribute does not hold");
    if (check_shape(dataset, &entry->tensor)) return damaged(in, entry->name, "its shape attribute does not hold");
    if (get_text(dataset, H3_ATTRIBUTE_PRODUCER, text) || text[0] == 0)
        return damaged(in, entry->name, "its producer attribute is missing");
    H3_TRY(h3_digest(entry->digest, entry->tensor.data, h3_tensor_bytes(&entry->tensor)));
    if (get_text(dataset, H3_ATTRIBUTE_DIGEST, text) || strcmp(text, entry->digest) != 0)
        return damaged(in, entry->name, "its data do not have the digest that its attribute says");
    return H3_OK;
}

static h3_status load(reader *in, hid_t dataset, h3_artifact_entry *entry)
{
    h3_tensor described = {0};
    const char *problem = describe(in, dataset, &described);
    if (problem != NULL) return damaged(in, entry->name, problem);
    H3_TRY(h3_tensor_new(&entry->tensor, described.dtype, described.rank, described.shape));
    hid_t type = h3_artifact_type(described.dtype);
    int failed = type < 0 || H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, entry->tensor.data) < 0;
    if (type >= 0) H5Tclose(type);
    if (failed) return damaged(in, entry->name, "its data cannot be read");
    H3_TRY(check_attributes(in, dataset, entry));
    in->budget -= h3_tensor_bytes(&entry->tensor);
    return H3_OK;
}

static h3_status read_dataset(reader *in, hid_t parent, const char *link, const char *name)
{
    h3_artifact_entry *entry = NULL;
    H3_TRY(next_entry(&entry, in));
    strcpy(entry->name, name);
    hid_t dataset = H5Dopen2(parent, link, H5P_DEFAULT);
    if (dataset < 0) return damaged(in, name, "it cannot be opened");
    h3_status status = load(in, dataset, entry);
    H5Dclose(dataset);
    if (status == H3_OK) in->artifact->count++;
    else h3_tensor_free(&entry->tensor);
    return status;
}

static h3_status walk_group(reader *in, hid_t group, const char *path);

static h3_status read_object(reader *in, hid_t parent, const char *link, const char *name)
{
    H5O_info_t info;
    if (H5Oget_info_by_name2(parent, link, &info, H5O_INFO_BASIC, H5P_DEFAULT) < 0) return damaged(in, name, "it cannot be read");
    if (info.type == H5O_TYPE_DATASET) return read_dataset(in, parent, link, name);
    hid_t group = H5Gopen2(parent, link, H5P_DEFAULT);
    if (group < 0) return damaged(in, name, "it cannot be opened");
    h3_status status = walk_group(in, group, name);
    H5Gclose(group);
    return status;
}

static herr_t visit_link(hid_t group, const char *link, const H5L_info_t *info, void *context)
{
    reader *in = context;
    char name[H3_ARTIFACT_NAME_SIZE];
    size_t prefix = strlen(in->group), length = strlen(link);
    (void)info; /* hard, says the guard */
    if (prefix + (prefix > 0) + length >= sizeof name) {
        in->status = damaged(in, in->group, "a name in it is too long");
        return -1;
    }
    memcpy(name, in->group, prefix);
    if (prefix > 0) name[prefix++] = '/';
    memcpy(name + prefix, link, length + 1);
    in->status = read_object(in, group, link, name);
    return in->status == H3_OK ? 0 : -1;
}

static h3_status walk_group(reader *in, hid_t group, const char *path)
{
    const char *parent = in->group;
    in->group = path;
    herr_t result = H5Literate(group, H5_INDEX_NAME, H5_ITER_INC, NULL, visit_link, in);
    in->group = parent;
    if (result < 0 && in->status == H3_OK) in->status = damaged(in, path, "this group cannot be listed");
    return in->status;
}

static int compare_entries(const void *a, const void *b)
{
    return strcmp(((const h3_artifact_entry *)a)->name, ((const h3_artifact_entry *)b)->name);
}

static h3_status parse(h3_artifact *out, h3_artifact_image *image)
{
    reader in = {.artifact = out, .budget = image->size, .group = ""};
    const char *problem;
    char name[H3_ARTIFACT_NAME_SIZE];
    H3_TRY(h3_artifact_guard(image, &problem, name));
    if (problem != NULL) return damaged(&in, name, problem);
    h3_artifact_silence();
    hid_t file = h3_artifact_image_open(image);
    if (file < 0) return damaged(&in, "", "HDF5 cannot open it");
    h3_status status = walk_group(&in, file, "");
    H5Fclose(file);
    if (status == H3_OK && out->count > 1) qsort(out->entries, out->count, sizeof *out->entries, compare_entries);
    return status;
}

/* The file and what is read from it must both fit into memory: a file of holes would otherwise take it all. */
static size_t size_limit(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (size_t)pages / 2 * (size_t)page : (size_t)1 << 32;
}

h3_status h3_artifact_open(h3_artifact *out, const char *path, const char *expected_sha256)
{
    h3_artifact_image image;
    *out = (h3_artifact){0};
    H3_TRY(h3_path(out->path, "%s", path));
    H3_TRY(h3_file_read(&image.bytes, &image.size, path, size_limit(), H3_INTEGRITY));
    out->size = (int64_t)image.size;
    h3_status status = h3_sha256(out->sha256, image.bytes, image.size);
    if (status == H3_OK && expected_sha256 != NULL && strcmp(expected_sha256, out->sha256) != 0)
        status =
            h3_error(H3_INTEGRITY,
                     "%s has another SHA-256 (%.12s...) than expected (%.12s...): it has changed; rerun the stage that wrote it",
                     path, out->sha256, expected_sha256);
    if (status == H3_OK) status = parse(out, &image);
    free(image.bytes);
    if (status != H3_OK) h3_artifact_close(out);
    return status;
}

void h3_artifact_close(h3_artifact *artifact)
{
    for (size_t i = 0; i < artifact->count; i++) h3_tensor_free(&artifact->entries[i].tensor);
    free(artifact->entries);
    *artifact = (h3_artifact){0};
}

static int compare_name(const void *name, const void *entry) { return strcmp(name, ((const h3_artifact_entry *)entry)->name); }

const h3_tensor *h3_artifact_find(const h3_artifact *artifact, const char *name)
{
    if (artifact->count == 0) return NULL;
    const h3_artifact_entry *entry = bsearch(name, artifact->entries, artifact->count, sizeof *artifact->entries, compare_name);
    return entry == NULL ? NULL : &entry->tensor;
}

h3_status h3_artifact_need(const h3_tensor **out, const h3_artifact *artifact, const char *name)
{
    *out = h3_artifact_find(artifact, name);
    return *out != NULL
               ? H3_OK
               : h3_error(H3_INTEGRITY, "%s: the dataset \"%s\" is missing; write the artifact again", artifact->path, name);
}
