/* Artifacts that are damaged, by chance or with the checksums put right: no crash, no leaked handle, nothing wrong accepted. */
#include "store_files.h"

#include <fcntl.h>
#include <hdf5.h>

#include "store/artifact.h"
#include "store/artifact_image.h"

/* The sample: three datasets, one in a group. */
static float f32_values[6] = {1, 2, 3, 4, 5, 6};
static uint16_t bf16_values[64];

static void add(h3_artifact_writer *writer, const char *name, void *data, int32_t dtype, int64_t count)
{
    char digest[H3_SHA256_HEX];
    h3_tensor tensor = h3_tensor_view(data, dtype, 1, &count);
    assert_good(h3_artifact_add(writer, name, &tensor, digest));
}

static char *write_sample(const char *path, size_t *size, char sha256[H3_SHA256_HEX])
{
    h3_artifact_writer *writer;
    int64_t bytes;
    for (int i = 0; i < 64; i++) bf16_values[i] = (uint16_t)(0x3f80 + i);
    assert_good(h3_artifact_create(&writer, "producer"));
    add(writer, "out.video", f32_values, H3_F32, 6);
    add(writer, "grad/weight", bf16_values, H3_BF16, 64);
    add(writer, "x", f32_values, H3_F32, 4);
    assert_good(h3_artifact_publish(writer, path, &bytes, sha256));
    return read_file(path, size);
}

static ssize_t count_handles(void) { return H5Fget_obj_count((hid_t)H5F_OBJ_ALL, H5F_OBJ_ALL); }
static void assert_no_handles(void) { assert_int_equal(count_handles(), 0); }

/* Accepted means equal: same names, same values. */
static void assert_is_sample(const h3_artifact *artifact)
{
    assert_int_equal(artifact->count, 3);
    assert_memory_equal(h3_artifact_find(artifact, "out.video")->data, f32_values, 24);
    assert_memory_equal(h3_artifact_find(artifact, "x")->data, f32_values, 16);
    assert_memory_equal(h3_artifact_find(artifact, "grad/weight")->data, bf16_values, 128);
}

static void every_flip_is_found_by_the_hash(void **state)
{
    (void)state;
    size_t size, flips = 0;
    char sha256[H3_SHA256_HEX];
    h3_artifact artifact;
    char *bytes = write_sample(in_scratch("a.h5"), &size, sha256);
    for (size_t i = 0; i < size; i += 1 + size / 2000, flips++) {
        bytes[i] = (char)(bytes[i] ^ (1 << i % 8));
        write_file(in_scratch("b.h5"), bytes, size);
        assert_fails(h3_artifact_open(&artifact, in_scratch("b.h5"), sha256), H3_INTEGRITY, "b.h5 has another SHA-256");
        assert_int_equal(artifact.count, 0);
        bytes[i] = (char)(bytes[i] ^ (1 << i % 8));
    }
    assert_true(flips >= 1000);
    write_file(in_scratch("b.h5"), bytes, size);
    assert_good(h3_artifact_open(&artifact, in_scratch("b.h5"), sha256)); /* each flip was undone */
    assert_is_sample(&artifact);
    h3_artifact_close(&artifact);
    free(bytes);
}

/* Without a hash most flips are found too (checksums, digests); those accepted changed nothing that is read. */
static void no_flip_crashes_without_the_hash(void **state)
{
    static const char masks[] = {0x01, 0x40, (char)0xff};
    (void)state;
    size_t size, found = 0, flips = 0;
    char sha256[H3_SHA256_HEX];
    char *bytes = write_sample(in_scratch("a.h5"), &size, sha256);
    int descriptors = count_descriptors();
    for (size_t i = 0; i < size; i += 1 + size / 2000, flips++) {
        h3_artifact artifact;
        char mask = masks[i % sizeof masks];
        bytes[i] = (char)(bytes[i] ^ mask);
        write_file(in_scratch("b.h5"), bytes, size);
        h3_status status = h3_artifact_open(&artifact, in_scratch("b.h5"), NULL);
        if (status == H3_OK) assert_is_sample(&artifact);
        else assert_fails(status, H3_INTEGRITY, "b.h5");
        found += status != H3_OK;
        h3_artifact_close(&artifact);
        bytes[i] = (char)(bytes[i] ^ mask);
    }
    assert_no_handles();
    assert_int_equal(count_descriptors(), descriptors);
    assert_true(flips >= 1000 && found > flips / 4);
    free(bytes);
}

static void no_truncation_or_addition_passes(void **state)
{
    (void)state;
    size_t size;
    char sha256[H3_SHA256_HEX];
    h3_artifact artifact;
    char *bytes = write_sample(in_scratch("a.h5"), &size, sha256);
    char *longer = calloc(1, size + 100);
    memcpy(longer, bytes, size);
    for (size_t length = 0; length < size; length += 1 + size / 300) {
        write_file(in_scratch("b.h5"), bytes, length);
        assert_fails(h3_artifact_open(&artifact, in_scratch("b.h5"), NULL), H3_INTEGRITY, "b.h5");
        assert_fails(h3_artifact_open(&artifact, in_scratch("b.h5"), sha256), H3_INTEGRITY, "b.h5");
    }
    write_file(in_scratch("b.h5"), longer, size + 1);
    assert_fails(h3_artifact_open(&artifact, in_scratch("b.h5"), NULL), H3_INTEGRITY, "size");
    write_file(in_scratch("b.h5"), longer, size + 100);
    assert_fails(h3_artifact_open(&artifact, in_scratch("b.h5"), sha256), H3_INTEGRITY, "b.h5 has another SHA-256");
    free(longer);
    free(bytes);
    assert_no_handles();
}

static void what_is_no_file_is_refused(void **state)
{
    (void)state;
    h3_artifact artifact;
    size_t size;
    char sha256[H3_SHA256_HEX];
    free(write_sample(in_scratch("a.h5"), &size, sha256));
    assert_fails(h3_artifact_open(&artifact, in_scratch("absent.h5"), NULL), H3_INTEGRITY, "absent.h5");
    assert_fails(h3_artifact_open(&artifact, scratch, NULL), H3_INTEGRITY, scratch);
    assert_fails(h3_artifact_open(&artifact, "/dev/zero", NULL), H3_INTEGRITY, "/dev/zero");
    assert_int_equal(mkfifo(in_scratch("fifo"), 0666), 0);
    assert_fails(h3_artifact_open(&artifact, in_scratch("fifo"), NULL), H3_INTEGRITY, "fifo");
    assert_int_equal(symlink("a.h5", in_scratch("link.h5")), 0);
    assert_fails(h3_artifact_open(&artifact, in_scratch("link.h5"), sha256), H3_INTEGRITY, "link.h5");
    write_text(in_scratch("text.h5"), "{\"this\": \"is no HDF5 file, but long enough to have been one\"}");
    assert_fails(h3_artifact_open(&artifact, in_scratch("text.h5"), NULL), H3_INTEGRITY, "not an HDF5 file");
    int holes = open(in_scratch("holes.h5"), O_WRONLY | O_CREAT, 0666);
    assert_true(holes >= 0);
    assert_int_equal(ftruncate(holes, (off_t)1 << 42), 0); /* larger than the memory of any machine here */
    close(holes);
    assert_fails(h3_artifact_open(&artifact, in_scratch("holes.h5"), NULL), H3_INTEGRITY, "holes.h5 is larger");
    assert_fails(h3_artifact_open(&artifact, in_scratch("a.h5"), "0123"), H3_INTEGRITY, "a.h5");
}

/* Puts the checksum of metadata right again after a change. */
static void put_checksum(unsigned char *bytes, size_t size)
{
    uint32_t sum = h3_artifact_checksum(bytes, size);
    memcpy(bytes + size, &sum, 4);
}

static size_t number_at(const unsigned char *bytes, size_t width)
{
    uint64_t value = 0;
    memcpy(&value, bytes, width);
    return (size_t)value;
}

/* Superblock, object headers, and their continuations as far as the messages that name them can be found. */
static void repair_checksums(unsigned char *bytes, size_t size)
{
    put_checksum(bytes, 44);
    for (size_t i = 48; i + 24 < size; i++) {
        if (memcmp(bytes + i, "OHDR", 4) == 0) {
            size_t width = (size_t)1 << (bytes[i + 5] & 3), start = 6 + width, length = number_at(bytes + i + 6, width);
            if (length < size && i + start + length + 4 <= size) put_checksum(bytes + i, start + length);
        } else if (bytes[i] == 0x10 && bytes[i + 1] == 0x10 && bytes[i + 2] == 0) {
            size_t at = number_at(bytes + i + 4, 8), length = number_at(bytes + i + 12, 8);
            if (length >= 8 && length < size && at <= size - length && memcmp(bytes + at, "OCHK", 4) == 0)
                put_checksum(bytes + at, length - 4);
        }
    }
}

/* The control: repairing what is not broken changes nothing, so the checksum is HDF5's. */
static void repairing_changes_nothing(void **state)
{
    (void)state;
    size_t size;
    char sha256[H3_SHA256_HEX], after[H3_SHA256_HEX];
    char *bytes = write_sample(in_scratch("a.h5"), &size, sha256);
    unsigned char kept[4];
    memcpy(kept, bytes + 44, 4);
    memset(bytes + 44, 0, 4);
    repair_checksums((unsigned char *)bytes, size);
    assert_memory_equal(kept, bytes + 44, 4);
    assert_good(h3_sha256(after, bytes, size));
    assert_string_equal(sha256, after);
    free(bytes);
}

static void no_crafted_change_crashes(void **state)
{
    (void)state;
    size_t size, refused = 0;
    char sha256[H3_SHA256_HEX];
    char *good = write_sample(in_scratch("a.h5"), &size, sha256), *bytes = malloc(size);
    int descriptors = count_descriptors();
    srand(20);
    for (int round = 0; round < 4000; round++) {
        h3_artifact artifact;
        memcpy(bytes, good, size);
        for (int changes = 1 + rand() % 3; changes > 0; changes--) {
            static const int values[] = {0, 1, 2, 4, 8, 0x10, 0x7f, 0xff};
            bytes[(size_t)rand() % size] = (char)(rand() % 2 ? values[rand() % 8] : rand());
        }
        repair_checksums((unsigned char *)bytes, size);
        write_file(in_scratch("b.h5"), bytes, size);
        h3_status status = h3_artifact_open(&artifact, in_scratch("b.h5"), NULL);
        if (status != H3_OK) assert_fails(status, H3_INTEGRITY, "b.h5");
        refused += status != H3_OK;
        h3_artifact_close(&artifact);
    }
    assert_no_handles();
    assert_int_equal(count_descriptors(), descriptors);
    assert_in_range(refused, 2000, 3999); /* most, and not because nothing is ever accepted */
    free(bytes);
    free(good);
}

/* One byte behind a text that the file has, changed with all checksums right. */
static void refuses_crafted(const char *text, size_t text_size, size_t offset, unsigned char value, const char *problem)
{
    size_t size;
    char sha256[H3_SHA256_HEX];
    h3_artifact artifact;
    char *bytes = write_sample(in_scratch("a.h5"), &size, sha256), *at = memmem(bytes, size, text, text_size);
    assert_non_null(at);
    assert_int_not_equal((unsigned char)at[text_size + offset], value);
    at[text_size + offset] = (char)value;
    repair_checksums((unsigned char *)bytes, size);
    write_file(in_scratch("b.h5"), bytes, size);
    free(bytes);
    assert_fails(h3_artifact_open(&artifact, in_scratch("b.h5"), NULL), H3_INTEGRITY, problem);
}

static void crafted_metadata_are_refused_by_name(void **state)
{
    (void)state;
    refuses_crafted("producer", 9, 4, 200, "an attribute is malformed"); /* a string of 200 bytes where there are 8 */
    refuses_crafted("producer", 9, 4, 0, "an attribute has a type that none has");
    refuses_crafted("producer", 9, 0, 0x19, "an attribute has a type that none has"); /* of variable length */
    refuses_crafted("shape", 6, 13, 6, "an attribute is malformed");                  /* six dimensions */
    refuses_crafted("shape", 6, 13, 0, "an attribute is malformed");
    refuses_crafted("grad", 4, 7, 1, "\"grad\": it reaches beyond the file"); /* the link's address */
    refuses_crafted("grad", 4, 0, 0x31, "\"grad\": its header is malformed");
    refuses_crafted("OHDR", 4, 0, 1, "its header is malformed");
}

/* Every 64-bit `from` becomes `to`; how many there were. */
static int replace_numbers(char *bytes, size_t size, uint64_t from, uint64_t to)
{
    int count = 0;
    for (size_t i = 0; i + 8 <= size; i++) {
        if (memcmp(bytes + i, &from, 8) != 0) continue;
        memcpy(bytes + i, &to, 8);
        count++;
    }
    return count;
}

/* A small dataset that says it is the large one's data once more: a few such could ask for any amount of memory. */
static void datasets_cannot_share_their_bytes(void **state)
{
    enum { LARGE = 16384, SMALL = 1237 };
    (void)state;
    static float values[LARGE];
    char sha256[H3_SHA256_HEX], large[H3_SHA256_HEX], small[H3_SHA256_HEX];
    h3_artifact_writer *writer;
    h3_artifact artifact;
    int64_t bytes_written;
    size_t size;
    for (int i = 0; i < LARGE; i++) values[i] = (float)i;
    assert_good(h3_artifact_create(&writer, "producer"));
    add(writer, "large", values, H3_F32, LARGE);
    add(writer, "small", values, H3_F32, SMALL);
    assert_good(h3_artifact_publish(writer, in_scratch("a.h5"), &bytes_written, sha256));
    char *bytes = read_file(in_scratch("a.h5"), &size);
    char *data = memmem(bytes, size, values, sizeof values), *first = memmem(bytes, size, values, SMALL * sizeof *values);
    char *second = memmem(first + 1, size - (size_t)(first + 1 - bytes), values, SMALL * sizeof *values);
    assert_true(data != NULL && second != NULL);
    assert_int_equal(replace_numbers(bytes, size, SMALL, LARGE), 3); /* shape, its maximum, the attribute */
    assert_int_equal(replace_numbers(bytes, size, SMALL * sizeof *values, sizeof values), 1);
    assert_int_equal(replace_numbers(bytes, size, (uint64_t)((data == first ? second : first) - bytes), (uint64_t)(data - bytes)),
                     1);
    assert_good(h3_digest(large, values, sizeof values));
    assert_good(h3_digest(small, values, SMALL * sizeof *values));
    char *text = memmem(bytes, size, small, 64);
    assert_non_null(text);
    memcpy(text, large, 64);
    repair_checksums((unsigned char *)bytes, size);
    write_file(in_scratch("b.h5"), bytes, size);
    assert_fails(h3_artifact_open(&artifact, in_scratch("b.h5"), NULL), H3_INTEGRITY,
                 "\"small\": its data reach beyond the file");
    free(bytes);
}

#define SCRATCH_TEST(test) cmocka_unit_test_setup_teardown(test, make_scratch, remove_scratch)

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCRATCH_TEST(every_flip_is_found_by_the_hash),
        SCRATCH_TEST(no_flip_crashes_without_the_hash),
        SCRATCH_TEST(no_truncation_or_addition_passes),
        SCRATCH_TEST(what_is_no_file_is_refused),
        SCRATCH_TEST(repairing_changes_nothing),
        SCRATCH_TEST(no_crafted_change_crashes),
        SCRATCH_TEST(crafted_metadata_are_refused_by_name),
        SCRATCH_TEST(datasets_cannot_share_their_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
