#include "store/artifact_image.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/memory.h"

enum { PAGE = 4096, GROWTH = 1 << 20 }; /* step in which the memory of a file that is written grows */

/* Offsets of a version 2 superblock. */
enum { VERSION = 8, ADDRESS_SIZE = 9, LENGTH_SIZE = 10, FLAGS = 11, BASE = 12, EXTENSION = 20, END = 28, CHECKSUM = 44 };
enum { SUPERBLOCK_SIZE = 48 };

static uint32_t turn(uint32_t x, int bits) { return x << bits | x >> (32 - bits); }

/* Twelve bytes at a time are added to three words, which are then mixed; the last are mixed in another way. */
uint32_t h3_artifact_checksum(const unsigned char *bytes, size_t size)
{
    static const int mixing[6] = {4, 6, 8, 16, 19, 4}, last[7] = {14, 11, 25, 16, 4, 14, 24};
    uint32_t words[3];
    words[0] = words[1] = words[2] = 0xdeadbeefu + (uint32_t)size;
    for (size_t at = 0; at < size; at += 12) {
        for (size_t i = 0; i < 12 && at + i < size; i++) words[i / 4] += (uint32_t)bytes[at + i] << (8 * (i % 4));
        for (int i = 0; i < 6 && size - at > 12; i++) {
            uint32_t *x = &words[i % 3], *y = &words[(i + 2) % 3], *z = &words[(i + 1) % 3];
            *x = (*x - *y) ^ turn(*y, mixing[i]);
            *y += *z;
        }
    }
    for (int i = 0; i < 7; i++) {
        uint32_t *x = &words[(i + 2) % 3], *y = &words[(i + 1) % 3];
        *x = (*x ^ *y) - turn(*y, last[i]);
    }
    return words[2];
}

static uint64_t address_at(const h3_artifact_image *image, size_t offset)
{
    uint64_t value;
    memcpy(&value, image->bytes + offset, sizeof value);
    return value;
}

const char *h3_artifact_image_problem(const h3_artifact_image *image)
{
    const char *bytes = image->bytes;
    if (image->size < SUPERBLOCK_SIZE || memcmp(bytes, "\211HDF\r\n\032\n", 8) != 0) return "not an HDF5 file";
    if (bytes[VERSION] != 2 || bytes[ADDRESS_SIZE] != 8 || bytes[LENGTH_SIZE] != 8 || bytes[FLAGS] != 0)
        return "another HDF5 file format version";
    if (address_at(image, BASE) != 0 || address_at(image, EXTENSION) != UINT64_MAX) return "an HDF5 file with extensions";
    uint32_t checksum;
    memcpy(&checksum, bytes + CHECKSUM, sizeof checksum);
    if (checksum != h3_artifact_checksum((const unsigned char *)bytes, CHECKSUM))
        return "its first bytes do not have their checksum";
    if (address_at(image, END) != image->size) return "the size of the file is not the size that it says it has";
    return NULL;
}

int h3_artifact_image_trim(h3_artifact_image *image)
{
    if (image->size < SUPERBLOCK_SIZE || address_at(image, END) > image->size) return 1;
    image->size = (size_t)address_at(image, END);
    return h3_artifact_image_problem(image) != NULL;
}

/* Nothing can exist below /dev/null, so HDF5 finds no real file of this name; and the name is unique in the process, because HDF5
 * takes two open images of one name for one file. */
static void make_label(char out[64])
{
    static atomic_ullong serial;
    snprintf(out, 64, "/dev/null/artifact-%llu", atomic_fetch_add(&serial, 1ull));
}

/* Reading: HDF5 asks these for the copies that it would make of an image; each answer is the image itself. */
static void *lend(size_t size, H5FD_file_image_op_t operation, void *context)
{
    const h3_artifact_image *image = context;
    (void)operation;
    return size == image->size ? image->bytes : NULL;
}

static void *copy_nothing(void *to, const void *from, size_t size, H5FD_file_image_op_t operation, void *context)
{
    (void)size, (void)operation, (void)context;
    return to == from ? to : NULL;
}

static void *refuse_growth(void *bytes, size_t size, H5FD_file_image_op_t operation, void *context)
{
    (void)bytes, (void)size, (void)operation, (void)context;
    return NULL;
}

/* Writing: the memory is the kernel's own pages, zero when they are new so that chance does not get into the file. It grows without being copied, and is
 * left behind at the end. */
static void *grow(void *bytes, size_t size, H5FD_file_image_op_t operation, void *context)
{
    h3_artifact_image *image = context;
    (void)operation;
    size_t capacity = (size + PAGE - 1) / PAGE * PAGE;
    if (bytes != image->bytes) return NULL;
    if (capacity > image->capacity) {
        void *grown = bytes == NULL ? mmap(NULL, capacity, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                                    : mremap(bytes, image->capacity, capacity, MREMAP_MAYMOVE);
        if (grown == MAP_FAILED) return NULL;
        h3_large_pages(grown, capacity); /* all of it: what has two kinds of pages cannot grow */
        image->bytes = grown;
        image->capacity = capacity;
    }
    image->size = size;
    return image->bytes;
}

void h3_artifact_image_release(h3_artifact_image *image)
{
    if (image->bytes != NULL) munmap(image->bytes, image->capacity);
    *image = (h3_artifact_image){0};
}

static herr_t keep(void *bytes, H5FD_file_image_op_t operation, void *context)
{
    (void)bytes, (void)operation, (void)context;
    return 0;
}

static void *same_context(void *context) { return context; }
static herr_t keep_context(void *context) { return context == NULL ? -1 : 0; }

hid_t h3_artifact_image_open(h3_artifact_image *image)
{
    char label[64];
    H5FD_file_image_callbacks_t callbacks = {lend, copy_nothing, refuse_growth, keep, same_context, keep_context, image};
    hid_t file = H5I_INVALID_HID, access = H5Pcreate(H5P_FILE_ACCESS);
    if (access < 0) return access;
    make_label(label);
    if (H5Pset_fapl_core(access, GROWTH, 0) >= 0 && H5Pset_fclose_degree(access, H5F_CLOSE_STRONG) >= 0 &&
        H5Pset_file_image_callbacks(access, &callbacks) >= 0 && H5Pset_file_image(access, image->bytes, image->size) >= 0)
        file = H5Fopen(label, H5F_ACC_RDONLY, access);
    H5Pclose(access);
    return file;
}

/* Everything about the file that decides its bytes is said, whatever the library's defaults are. */
static int fix_access(hid_t access)
{
    return H5Pset_fapl_core(access, GROWTH, 0) < 0 || H5Pset_libver_bounds(access, H5F_LIBVER_V18, H5F_LIBVER_V18) < 0 ||
           H5Pset_fclose_degree(access, H5F_CLOSE_STRONG) < 0 || H5Pset_alignment(access, 1, 1) < 0 ||
           H5Pset_meta_block_size(access, 2048) < 0 || H5Pset_small_data_block_size(access, 2048) < 0;
}

hid_t h3_artifact_image_create(h3_artifact_image *image, hid_t creation)
{
    char label[64];
    H5FD_file_image_callbacks_t callbacks = {NULL, NULL, grow, keep, same_context, keep_context, image};
    hid_t file = H5I_INVALID_HID, access = H5Pcreate(H5P_FILE_ACCESS);
    *image = (h3_artifact_image){0};
    if (access < 0) return access;
    make_label(label);
    if (!fix_access(access) && H5Pset_file_image_callbacks(access, &callbacks) >= 0)
        file = H5Fcreate(label, H5F_ACC_TRUNC, creation, access);
    H5Pclose(access);
    return file;
}
