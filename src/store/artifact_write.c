#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/artifact.h"
#include "store/artifact_image.h"
#include "store/artifact_types.h"
#include "store/publish.h"

struct h3_artifact_writer {
    hid_t file, group_settings, dataset_settings;
    h3_artifact_image image; /* filled while the file is open, complete when it is closed */
    int broken;              /* an addition failed: what is in the image must not be published */
    char producer[H3_ARTIFACT_TEXT_MAX + 1];
};

/* What would let time or chance into the bytes is fixed here, whatever the library's defaults are. */
static int fix_object(hid_t settings)
{
    return H5Pset_obj_track_times(settings, 0) < 0 || H5Pset_attr_creation_order(settings, 0) < 0 ||
           H5Pset_attr_phase_change(settings, 8, 6) < 0;
}

/* All links stay in the group's header, however many: the reader's guard need not know fractal heaps and B-trees. */
static int fix_group(hid_t settings)
{
    return fix_object(settings) || H5Pset_link_creation_order(settings, 0) < 0 ||
           H5Pset_link_phase_change(settings, 65535, 0) < 0 || H5Pset_est_link_info(settings, 4, 8) < 0;
}

static int fix_dataset(hid_t settings)
{
    return fix_object(settings) || H5Pset_layout(settings, H5D_CONTIGUOUS) < 0 ||
           H5Pset_alloc_time(settings, H5D_ALLOC_TIME_EARLY) < 0 || H5Pset_fill_time(settings, H5D_FILL_TIME_NEVER) < 0;
}

static int open_file(h3_artifact_writer *writer)
{
    hid_t creation = H5Pcreate(H5P_FILE_CREATE);
    writer->group_settings = H5Pcreate(H5P_GROUP_CREATE);
    writer->dataset_settings = H5Pcreate(H5P_DATASET_CREATE);
    int failed = creation < 0 || writer->group_settings < 0 || writer->dataset_settings < 0 || fix_group(creation) ||
                 fix_group(writer->group_settings) || fix_dataset(writer->dataset_settings);
    if (!failed) writer->file = h3_artifact_image_create(&writer->image, creation);
    if (creation >= 0) H5Pclose(creation);
    return failed || writer->file < 0;
}

h3_status h3_artifact_create(h3_artifact_writer **out, const char *producer)
{
    *out = NULL;
    if (*producer == 0 || strlen(producer) > H3_ARTIFACT_TEXT_MAX)
        return h3_error(H3_USAGE, "the producer of an artifact needs 1 to %d characters", H3_ARTIFACT_TEXT_MAX);
    h3_artifact_writer *writer = calloc(1, sizeof *writer);
    if (writer == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for an artifact");
    h3_artifact_silence();
    strcpy(writer->producer, producer);
    writer->file = writer->group_settings = writer->dataset_settings = H5I_INVALID_HID;
    if (open_file(writer)) {
        h3_artifact_discard(writer);
        return h3_error(H3_ENVIRONMENT, "HDF5 could not make a file in memory; check free memory");
    }
    *out = writer;
    return H3_OK;
}

void h3_artifact_discard(h3_artifact_writer *writer)
{
    if (writer == NULL) return;
    h3_artifact_silence();
    if (writer->file >= 0) H5Fclose(writer->file);
    if (writer->group_settings >= 0) H5Pclose(writer->group_settings);
    if (writer->dataset_settings >= 0) H5Pclose(writer->dataset_settings);
    h3_artifact_image_release(&writer->image);
    free(writer);
}

static h3_status check_tensor(const char *name, const h3_tensor *tensor)
{
    H3_TRY(h3_check_relative(name, "the name of a dataset"));
    if (strlen(name) >= H3_ARTIFACT_NAME_SIZE)
        return h3_error(H3_USAGE, "dataset \"%.60s...\": the name has more than %d characters", name, H3_ARTIFACT_NAME_SIZE - 1);
    if (h3_artifact_dtype_name(tensor->dtype) == NULL)
        return h3_error(H3_USAGE, "dataset \"%s\": dtype %d cannot be stored", name, tensor->dtype);
    if (tensor->rank < 1 || tensor->rank > H3_MAX_RANK)
        return h3_error(H3_USAGE, "dataset \"%s\": a tensor of %d dimensions; 1 to %d are possible", name, tensor->rank,
                        H3_MAX_RANK);
    h3_tensor dense = h3_tensor_view(tensor->data, tensor->dtype, tensor->rank, tensor->shape);
    for (int32_t i = 0; i < tensor->rank; i++) {
        if (tensor->shape[i] < 1)
            return h3_error(H3_USAGE, "dataset \"%s\": dimension %d is empty; only tensors with elements are stored", name, i);
        if (tensor->stride[i] != dense.stride[i])
            return h3_error(H3_USAGE, "dataset \"%s\": the tensor is not dense; store a dense copy", name);
    }
    if (tensor->data == NULL) return h3_error(H3_USAGE, "dataset \"%s\": the tensor has no data", name);
    return H3_OK;
}

/* Groups are made one by one: those that HDF5 makes on the way would carry times. */
static int make_groups(const h3_artifact_writer *writer, const char *name)
{
    char path[H3_ARTIFACT_NAME_SIZE];
    for (const char *slash = strchr(name, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        memcpy(path, name, (size_t)(slash - name));
        path[slash - name] = 0;
        htri_t there = H5Lexists(writer->file, path, H5P_DEFAULT);
        if (there < 0) return 1;
        if (there > 0) continue;
        hid_t group = H5Gcreate2(writer->file, path, H5P_DEFAULT, writer->group_settings, H5P_DEFAULT);
        if (group < 0 || H5Gclose(group) < 0) return 1;
    }
    return 0;
}

static int put_attribute(hid_t dataset, const char *key, hid_t type, hid_t space, const void *value)
{
    hid_t attribute = H5Acreate2(dataset, key, type, space, H5P_DEFAULT, H5P_DEFAULT);
    int failed = attribute < 0 || H5Awrite(attribute, type, value) < 0;
    if (attribute >= 0 && H5Aclose(attribute) < 0) failed = 1;
    return failed;
}

static int put_text(hid_t dataset, const char *key, const char *text)
{
    hid_t type = H5Tcopy(H5T_C_S1), space = H5Screate(H5S_SCALAR);
    int failed = type < 0 || space < 0 || H5Tset_size(type, strlen(text)) < 0 || H5Tset_strpad(type, H5T_STR_NULLPAD) < 0 ||
                 put_attribute(dataset, key, type, space, text);
    if (type >= 0) H5Tclose(type);
    if (space >= 0) H5Sclose(space);
    return failed;
}

static int put_shape(hid_t dataset, const h3_tensor *tensor)
{
    hsize_t count = (hsize_t)tensor->rank;
    hid_t space = H5Screate_simple(1, &count, NULL);
    int failed = space < 0 || put_attribute(dataset, H3_ATTRIBUTE_SHAPE, H5T_STD_I64LE, space, tensor->shape);
    if (space >= 0) H5Sclose(space);
    return failed;
}

static int put_dataset(const h3_artifact_writer *writer, const char *name, const h3_tensor *tensor, const char *digest)
{
    hsize_t shape[H3_MAX_RANK];
    for (int32_t i = 0; i < tensor->rank; i++) shape[i] = (hsize_t)tensor->shape[i];
    hid_t dataset = H5I_INVALID_HID, type = h3_artifact_type(tensor->dtype), space = H5Screate_simple(tensor->rank, shape, NULL);
    if (type >= 0 && space >= 0)
        dataset = H5Dcreate2(writer->file, name, type, space, H5P_DEFAULT, writer->dataset_settings, H5P_DEFAULT);
    int failed = dataset < 0 || H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, tensor->data) < 0 ||
                 put_text(dataset, H3_ATTRIBUTE_DTYPE, h3_artifact_dtype_name(tensor->dtype)) || put_shape(dataset, tensor) ||
                 put_text(dataset, H3_ATTRIBUTE_DIGEST, digest) || put_text(dataset, H3_ATTRIBUTE_PRODUCER, writer->producer);
    if (dataset >= 0 && H5Dclose(dataset) < 0) failed = 1;
    if (space >= 0) H5Sclose(space);
    if (type >= 0) H5Tclose(type);
    return failed;
}

h3_status h3_artifact_add(h3_artifact_writer *writer, const char *name, const h3_tensor *tensor, char digest[H3_SHA256_HEX])
{
    H3_TRY(check_tensor(name, tensor));
    H3_TRY(h3_digest(digest, tensor->data, h3_tensor_bytes(tensor)));
    h3_artifact_silence();
    if (!make_groups(writer, name) && !put_dataset(writer, name, tensor, digest)) return H3_OK;
    writer->broken = 1;
    return h3_error(H3_ENVIRONMENT,
                    "HDF5 could not store the dataset \"%s\"; check free memory and that no other dataset has this name", name);
}

/* H5Fget_file_image is not used: in HDF5 1.10 its superblock has a wrong checksum. That of a closed file is right. */
static h3_status finish(h3_artifact_writer *writer, const char *path)
{
    if (writer->broken) return h3_error(H3_ENVIRONMENT, "%s is not published: a dataset could not be added to it", path);
    int failed = H5Fflush(writer->file, H5F_SCOPE_GLOBAL) < 0;
    failed |= H5Fclose(writer->file) < 0;
    writer->file = H5I_INVALID_HID;
    if (failed || h3_artifact_image_trim(&writer->image))
        return h3_error(H3_ENVIRONMENT, "HDF5 could not finish %s; check free memory", path);
    return H3_OK;
}

/* A publication: the file is closed, its bytes are hashed and written by a thread of its own. */
struct h3_publication {
    pthread_t thread;
    int threaded;
    h3_artifact_writer *writer;
    char path[H3_PATH_MAX], sha256[H3_SHA256_HEX], problem[1024];
    h3_status status;
};

static void *hash_and_write(void *context)
{
    h3_publication *p = context;
    const h3_artifact_image *image = &p->writer->image;
    p->status = h3_sha256(p->sha256, image->bytes, image->size);
    if (p->status == H3_OK) p->status = h3_publish(p->path, image->bytes, image->size);
    if (p->status != H3_OK) snprintf(p->problem, sizeof p->problem, "%s", h3_error_text());
    return NULL;
}

h3_status h3_artifact_publish_start(h3_publication **out, h3_artifact_writer *writer, const char *path)
{
    h3_publication *p = calloc(1, sizeof *p);
    h3_artifact_silence();
    h3_status status = p == NULL ? h3_error(H3_ENVIRONMENT, "out of memory to publish %s", path) : h3_path(p->path, "%s", path);
    if (status == H3_OK) status = finish(writer, path);
    if (status != H3_OK) {
        h3_artifact_discard(writer);
        free(p);
        return status;
    }
    p->writer = writer;
    p->threaded = pthread_create(&p->thread, NULL, hash_and_write, p) == 0;
    if (!p->threaded) hash_and_write(p);
    *out = p;
    return H3_OK;
}

h3_status h3_publication_wait(h3_publication *p, int64_t *size, char sha256[H3_SHA256_HEX])
{
    if (p->threaded) pthread_join(p->thread, NULL);
    h3_status status = p->status;
    *size = (int64_t)p->writer->image.size;
    memcpy(sha256, p->sha256, H3_SHA256_HEX);
    if (status != H3_OK) h3_error(status, "%s", p->problem);
    h3_artifact_discard(p->writer);
    free(p);
    return status;
}

h3_status h3_artifact_publish(h3_artifact_writer *writer, const char *path, int64_t *size, char sha256[H3_SHA256_HEX])
{
    h3_publication *publication;
    H3_TRY(h3_artifact_publish_start(&publication, writer, path));
    return h3_publication_wait(publication, size, sha256);
}
