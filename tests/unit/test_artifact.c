/* HDF5 artifacts: what is written comes back bit for bit, equal content gives equal bytes, and no changed byte goes unnoticed. */
#include "store_files.h"

#include <hdf5.h>
#include <time.h>

#include "store/artifact.h"

/* 1, -2.5, 0.15625, infinity, the smallest, 3.140625 */
static const uint16_t bf16_values[6] = {0x3f80, 0xc020, 0x3e20, 0x7f80, 0x0001, 0x4049};
static uint32_t f32_bits[8] = {0x3f800000, 0x80000000, 0x7fc01234, 0xff800000, 0x00000001, 0x7f7fffff, 0x40490fdb, 0xbf000000};
static int32_t i32_values[3] = {INT32_MIN, -1, INT32_MAX};
static int64_t i64_values[4] = {INT64_MIN, 0, 1, INT64_MAX};
static double f64_values[2] = {-0.0, 1.0 / 3};

static void add(h3_artifact_writer *writer, const char *name, void *data, int32_t dtype, int32_t rank, const int64_t *shape)
{
    char digest[H3_SHA256_HEX], direct[H3_SHA256_HEX];
    h3_tensor tensor = h3_tensor_view(data, dtype, rank, shape);
    assert_good(h3_artifact_add(writer, name, &tensor, digest));
    assert_good(h3_digest(direct, data, h3_tensor_bytes(&tensor)));
    assert_string_equal(digest, direct);
}

/* Every dtype and rank, dots and groups. */
static void write_sample(const char *path, int64_t *size, char sha256[H3_SHA256_HEX])
{
    h3_artifact_writer *writer;
    uint16_t bf16[6];
    memcpy(bf16, bf16_values, sizeof bf16);
    assert_good(h3_artifact_create(&writer, "test provider"));
    add(writer, "node.block0.q_proj", bf16, H3_BF16, 2, H3_SHAPE(2, 3));
    add(writer, "out.video", f32_bits, H3_F32, 3, H3_SHAPE(2, 1, 4));
    add(writer, "grad/transformer_blocks.0.norm1.weight", i32_values, H3_I32, 1, H3_SHAPE(3));
    add(writer, "grad/deep/er", i64_values, H3_I64, 5, H3_SHAPE(1, 2, 1, 2, 1));
    add(writer, "a", f64_values, H3_F64, 4, H3_SHAPE(1, 1, 1, 2));
    for (int i = 0; i < 12; i++) { /* more than a compact group holds */
        char name[32];
        snprintf(name, sizeof name, "many/%d", i);
        add(writer, name, bf16, H3_BF16, 1, H3_SHAPE(1 + i % 6));
    }
    assert_good(h3_artifact_publish(writer, path, size, sha256));
}

static void assert_tensor(const h3_artifact *artifact, const char *name, const void *data, int32_t dtype, int32_t rank,
                          const int64_t *shape)
{
    const h3_tensor *tensor;
    h3_tensor wanted = h3_tensor_view(NULL, dtype, rank, shape);
    assert_good(h3_artifact_need(&tensor, artifact, name));
    assert_ptr_equal(tensor, h3_artifact_find(artifact, name));
    assert_int_equal(tensor->dtype, dtype);
    assert_int_equal(tensor->rank, rank);
    assert_memory_equal(tensor->shape, wanted.shape, sizeof wanted.shape);
    assert_memory_equal(tensor->stride, wanted.stride, sizeof wanted.stride);
    assert_int_equal((uintptr_t)tensor->data % 64, 0);
    assert_memory_equal(tensor->data, data, h3_tensor_bytes(tensor));
}

static void assert_sample(const h3_artifact *artifact)
{
    assert_int_equal(artifact->count, 17);
    assert_tensor(artifact, "node.block0.q_proj", bf16_values, H3_BF16, 2, H3_SHAPE(2, 3));
    assert_tensor(artifact, "out.video", f32_bits, H3_F32, 3, H3_SHAPE(2, 1, 4));
    assert_tensor(artifact, "grad/transformer_blocks.0.norm1.weight", i32_values, H3_I32, 1, H3_SHAPE(3));
    assert_tensor(artifact, "grad/deep/er", i64_values, H3_I64, 5, H3_SHAPE(1, 2, 1, 2, 1));
    assert_tensor(artifact, "a", f64_values, H3_F64, 4, H3_SHAPE(1, 1, 1, 2));
    for (int i = 0; i < 12; i++) {
        char name[32];
        snprintf(name, sizeof name, "many/%d", i);
        assert_tensor(artifact, name, bf16_values, H3_BF16, 1, H3_SHAPE(1 + i % 6));
    }
}

static void comes_back_bit_for_bit(void **state)
{
    (void)state;
    h3_artifact artifact;
    int64_t size;
    char sha256[H3_SHA256_HEX], direct[H3_SHA256_HEX];
    write_sample(in_scratch("a.h5"), &size, sha256);
    int64_t bytes;
    assert_good(h3_sha256_file(direct, in_scratch("a.h5"), &bytes, H3_INTEGRITY));
    assert_string_equal(sha256, direct);
    assert_int_equal(bytes, size);
    assert_good(h3_artifact_open(&artifact, in_scratch("a.h5"), sha256));
    assert_string_equal(artifact.sha256, sha256);
    assert_int_equal(artifact.size, size);
    assert_sample(&artifact);
    for (size_t i = 1; i < artifact.count; i++) assert_true(strcmp(artifact.entries[i - 1].name, artifact.entries[i].name) < 0);
    for (size_t i = 0; i < artifact.count; i++) {
        assert_good(h3_digest(direct, artifact.entries[i].tensor.data, h3_tensor_bytes(&artifact.entries[i].tensor)));
        assert_string_equal(direct, artifact.entries[i].digest);
    }
    const h3_tensor *tensor;
    assert_fails(h3_artifact_need(&tensor, &artifact, "out.audio"), H3_INTEGRITY, "out.audio");
    assert_null(tensor);
    assert_null(h3_artifact_find(&artifact, "grad"));
    h3_artifact_close(&artifact);
    h3_artifact_close(&artifact);
    assert_good(h3_artifact_open(&artifact, in_scratch("a.h5"), NULL));
    h3_artifact_close(&artifact);
    assert_int_equal(count_entries(scratch), 1);
    assert_int_equal(H5Fget_obj_count((hid_t)H5F_OBJ_ALL, H5F_OBJ_ALL), 0);
}

/* What h5dump prints of a dataset. */
static void dump(char *out, size_t size, const char *options)
{
    char command[H3_PATH_MAX * 2];
    snprintf(command, sizeof command, "h5dump %s %s 2>&1", options, in_scratch("a.h5"));
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    out[fread(out, 1, size - 1, pipe)] = 0;
    if (pclose(pipe) != 0) fail_msg("%s: %s", command, out);
}

static void other_programs_read_numbers(void **state)
{
    (void)state;
    char text[8192], sha256[H3_SHA256_HEX];
    int64_t size;
    write_sample(in_scratch("a.h5"), &size, sha256);
    dump(text, sizeof text, "-d /node.block0.q_proj");
    assert_non_null(strstr(text, "16-bit little-endian floating-point"));
    assert_non_null(strstr(text, "(0,0): 1, -2.5, 0.15625,"));
    assert_non_null(strstr(text, "(1,0): inf, 9.18355e-41, 3.14062"));
    assert_non_null(strstr(text, "\"BF16\""));
    assert_non_null(strstr(text, "\"test provider\""));
    assert_non_null(strstr(text, "(0): 2, 3"));
    dump(text, sizeof text, "-d /grad/deep/er");
    assert_non_null(strstr(text, "-9223372036854775808"));
    assert_non_null(strstr(text, "\"I64\""));
}

/* Another process, more than a second later: neither times nor addresses nor process ids are in the bytes. */
static void equal_content_gives_equal_bytes(void **state)
{
    (void)state;
    int64_t size;
    char sha256[H3_SHA256_HEX], other[H3_SHA256_HEX], program[H3_PATH_MAX];
    write_sample(in_scratch("a.h5"), &size, sha256);
    write_sample(in_scratch("b.h5"), &size, other);
    assert_string_equal(sha256, other);
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    assert_true(length > 0);
    program[length] = 0;
    nanosleep(&(struct timespec){.tv_sec = 1, .tv_nsec = 100000000}, NULL);
    pid_t child = fork();
    if (child == 0) {
        char filler[1000];
        memset(filler, 'x', sizeof filler - 1);
        filler[sizeof filler - 1] = 0;
        setenv("FILLER", filler, 1); /* moves the stack, too */
        execl(program, program, "--write", in_scratch("c.h5"), (char *)NULL);
        _exit(99);
    }
    int result;
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_true(WIFEXITED(result) && WEXITSTATUS(result) == 0);
    assert_good(h3_sha256_file(other, in_scratch("c.h5"), &size, H3_INTEGRITY));
    assert_string_equal(sha256, other);
}

static void one_writer(const char *path, const char *producer, const char *name, void *data, char sha256[H3_SHA256_HEX])
{
    h3_artifact_writer *writer;
    int64_t size;
    assert_good(h3_artifact_create(&writer, producer));
    add(writer, name, data, H3_F32, 1, H3_SHAPE(4));
    assert_good(h3_artifact_publish(writer, path, &size, sha256));
}

static void other_content_gives_other_bytes(void **state)
{
    (void)state;
    char first[H3_SHA256_HEX], other[H3_SHA256_HEX];
    float data[4] = {1, 2, 3, 4};
    one_writer(in_scratch("a.h5"), "p", "x", data, first);
    one_writer(in_scratch("b.h5"), "q", "x", data, other);
    assert_string_not_equal(first, other);
    one_writer(in_scratch("b.h5"), "p", "y", data, other);
    assert_string_not_equal(first, other);
    data[3] = -4;
    one_writer(in_scratch("b.h5"), "p", "x", data, other);
    assert_string_not_equal(first, other);
}

/* HDF5 takes two open files of one name for one: several at once must stay apart. */
static void several_at_once_stay_apart(void **state)
{
    (void)state;
    h3_artifact_writer *one, *two;
    h3_artifact first, second;
    float a[2] = {1, 2}, b[2] = {3, 4};
    int64_t size;
    char sha256[H3_SHA256_HEX];
    assert_good(h3_artifact_create(&one, "p"));
    assert_good(h3_artifact_create(&two, "p"));
    add(one, "x", a, H3_F32, 1, H3_SHAPE(2));
    add(two, "x", b, H3_F32, 1, H3_SHAPE(2));
    assert_good(h3_artifact_publish(two, in_scratch("two.h5"), &size, sha256));
    assert_good(h3_artifact_open(&second, in_scratch("two.h5"), sha256));
    assert_good(h3_artifact_publish(one, in_scratch("one.h5"), &size, sha256));
    assert_good(h3_artifact_open(&first, in_scratch("one.h5"), sha256));
    assert_tensor(&first, "x", a, H3_F32, 1, H3_SHAPE(2));
    assert_tensor(&second, "x", b, H3_F32, 1, H3_SHAPE(2));
    h3_artifact_close(&first);
    h3_artifact_close(&second);
}

/* More than one piece of the digest, and more than one step of the growing image. */
static void a_large_tensor(void **state)
{
    (void)state;
    h3_artifact_writer *writer;
    h3_artifact artifact;
    h3_tensor tensor;
    int64_t size;
    char sha256[H3_SHA256_HEX], digest[H3_SHA256_HEX];
    assert_good(h3_tensor_new(&tensor, H3_F32, 2, H3_SHAPE(1234, 1999)));
    float *data = tensor.data;
    for (int64_t i = 0; i < h3_tensor_count(&tensor); i++) data[i] = (float)(i % 65521);
    assert_good(h3_artifact_create(&writer, "p"));
    assert_good(h3_artifact_add(writer, "large", &tensor, digest));
    assert_good(h3_artifact_add(writer, "again", &tensor, digest));
    assert_good(h3_artifact_publish(writer, in_scratch("a.h5"), &size, sha256));
    assert_true(size > 2 * (int64_t)h3_tensor_bytes(&tensor) && size < 2 * (int64_t)h3_tensor_bytes(&tensor) + 8192);
    assert_good(h3_artifact_open(&artifact, in_scratch("a.h5"), sha256));
    assert_tensor(&artifact, "large", data, H3_F32, 2, H3_SHAPE(1234, 1999));
    assert_string_equal(artifact.entries[0].digest, digest);
    h3_artifact_close(&artifact);
    h3_tensor_free(&tensor);
}

static void an_empty_artifact_holds_nothing(void **state)
{
    (void)state;
    h3_artifact_writer *writer;
    h3_artifact artifact;
    const h3_tensor *tensor;
    int64_t size;
    char sha256[H3_SHA256_HEX];
    assert_good(h3_artifact_create(&writer, "p"));
    assert_good(h3_artifact_publish(writer, in_scratch("a.h5"), &size, sha256));
    assert_good(h3_artifact_open(&artifact, in_scratch("a.h5"), sha256));
    assert_int_equal(artifact.count, 0);
    assert_fails(h3_artifact_need(&tensor, &artifact, "x"), H3_INTEGRITY, "\"x\" is missing");
    h3_artifact_close(&artifact);
}

static void refuses_tensors_that_cannot_be_stored(void **state)
{
    (void)state;
    h3_artifact_writer *writer;
    float data[4] = {0};
    char digest[H3_SHA256_HEX], name[200];
    h3_tensor good = h3_tensor_view(data, H3_F32, 2, H3_SHAPE(2, 2)), bad;
    assert_fails(h3_artifact_create(&writer, ""), H3_USAGE, "producer");
    assert_null(writer);
    assert_good(h3_artifact_create(&writer, "p"));
    bad = h3_tensor_view(data, H3_F32, 2, H3_SHAPE(2, 0));
    assert_fails(h3_artifact_add(writer, "x", &bad, digest), H3_USAGE, "\"x\": dimension 1 is empty");
    bad = good, bad.stride[0] = 4;
    assert_fails(h3_artifact_add(writer, "x", &bad, digest), H3_USAGE, "not dense");
    bad = good, bad.dtype = H3_NONE;
    assert_fails(h3_artifact_add(writer, "x", &bad, digest), H3_USAGE, "dtype 0");
    bad = good, bad.rank = 0;
    assert_fails(h3_artifact_add(writer, "x", &bad, digest), H3_USAGE, "dimensions");
    bad = good, bad.rank = H3_MAX_RANK + 1;
    assert_fails(h3_artifact_add(writer, "x", &bad, digest), H3_USAGE, "dimensions");
    bad = good, bad.data = NULL;
    assert_fails(h3_artifact_add(writer, "x", &bad, digest), H3_USAGE, "no data");
    assert_fails(h3_artifact_add(writer, "../x", &good, digest), H3_INTEGRITY, "../x");
    assert_fails(h3_artifact_add(writer, "", &good, digest), H3_INTEGRITY, "empty");
    memset(name, 'n', sizeof name);
    name[H3_ARTIFACT_NAME_SIZE] = 0;
    assert_fails(h3_artifact_add(writer, name, &good, digest), H3_USAGE, "159");
    name[H3_ARTIFACT_NAME_SIZE - 1] = 0; /* the longest that is possible */
    assert_good(h3_artifact_add(writer, name, &good, digest));
    int64_t size;
    h3_artifact artifact;
    assert_good(h3_artifact_publish(writer, in_scratch("a.h5"), &size, digest)); /* a refusal harms nothing */
    assert_good(h3_artifact_open(&artifact, in_scratch("a.h5"), digest));
    assert_int_equal(artifact.count, 1);
    assert_string_equal(artifact.entries[0].name, name);
    h3_artifact_close(&artifact);
}

/* What HDF5 itself refuses spoils the artifact: nothing of it is published. */
static void a_broken_artifact_is_not_published(void **state)
{
    static const char *const pairs[][2] = {{"x", "x"}, {"x", "x/y"}, {"x/y", "x"}};
    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        h3_artifact_writer *writer;
        float data[1] = {1};
        char digest[H3_SHA256_HEX];
        int64_t size;
        h3_tensor tensor = h3_tensor_view(data, H3_F32, 1, H3_SHAPE(1));
        assert_good(h3_artifact_create(&writer, "p"));
        assert_good(h3_artifact_add(writer, pairs[i][0], &tensor, digest));
        assert_fails(h3_artifact_add(writer, pairs[i][1], &tensor, digest), H3_ENVIRONMENT, pairs[i][1]);
        assert_fails(h3_artifact_publish(writer, in_scratch("a.h5"), &size, digest), H3_ENVIRONMENT, "a.h5");
        assert_int_equal(count_entries(scratch), 0);
    }
    assert_int_equal(H5Fget_obj_count((hid_t)H5F_OBJ_ALL, H5F_OBJ_ALL), 0);
}

static void a_failed_publication_frees_and_leaves_nothing(void **state)
{
    (void)state;
    h3_artifact_writer *writer;
    int64_t size;
    char sha256[H3_SHA256_HEX];
    assert_good(h3_artifact_create(&writer, "p"));
    assert_fails(h3_artifact_publish(writer, in_scratch("absent/a.h5"), &size, sha256), H3_ENVIRONMENT, "absent/a.h5");
    assert_good(h3_artifact_create(&writer, "p"));
    h3_artifact_discard(writer);
    h3_artifact_discard(NULL);
    assert_int_equal(count_entries(scratch), 0);
    assert_int_equal(H5Fget_obj_count((hid_t)H5F_OBJ_ALL, H5F_OBJ_ALL), 0);
}

#define SCRATCH_TEST(test) cmocka_unit_test_setup_teardown(test, make_scratch, remove_scratch)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        SCRATCH_TEST(comes_back_bit_for_bit),
        SCRATCH_TEST(other_programs_read_numbers),
        SCRATCH_TEST(equal_content_gives_equal_bytes),
        SCRATCH_TEST(other_content_gives_other_bytes),
        SCRATCH_TEST(several_at_once_stay_apart),
        SCRATCH_TEST(a_large_tensor),
        SCRATCH_TEST(an_empty_artifact_holds_nothing),
        SCRATCH_TEST(refuses_tensors_that_cannot_be_stored),
        SCRATCH_TEST(a_broken_artifact_is_not_published),
        SCRATCH_TEST(a_failed_publication_frees_and_leaves_nothing),
    };
    if (argc == 3 && strcmp(argv[1], "--write") == 0) {
        int64_t size;
        char sha256[H3_SHA256_HEX];
        write_sample(argv[2], &size, sha256);
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
