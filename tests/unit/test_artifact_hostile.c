/* Files that HDF5 itself made, and that are no artifacts: a named error each, no leaked handle, no look outside the file. */
#include "store_files.h"

#include <hdf5.h>

#include "store/artifact.h"
#include "store/artifact_types.h"

static float f32_values[4] = {1, 2, 3, 4};

static ssize_t count_handles(void) { return H5Fget_obj_count((hid_t)H5F_OBJ_ALL, H5F_OBJ_ALL); }

/* The other way of writing HDF5: straight to a file, with whatever a stranger may put there. */
static hid_t without_times(hid_t of)
{
    hid_t settings = H5Pcreate(of);
    assert_true(H5Pset_obj_track_times(settings, 0) >= 0);
    return settings;
}

static hid_t create_foreign(H5F_libver_t format)
{
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    assert_true(H5Pset_libver_bounds(access, format, H5F_LIBVER_LATEST) >= 0);
    hid_t creation = without_times(H5P_FILE_CREATE);
    hid_t file = H5Fcreate(in_scratch("foreign.h5"), H5F_ACC_TRUNC, creation, access);
    H5Pclose(creation), H5Pclose(access);
    assert_true(file >= 0);
    return file;
}

static void put_text(hid_t object, const char *key, const char *text)
{
    hid_t type = H5Tcopy(H5T_C_S1), space = H5Screate(H5S_SCALAR);
    H5Tset_size(type, strlen(text)), H5Tset_strpad(type, H5T_STR_NULLPAD);
    hid_t attribute = H5Acreate2(object, key, type, space, H5P_DEFAULT, H5P_DEFAULT);
    assert_true(H5Awrite(attribute, type, text) >= 0);
    H5Aclose(attribute), H5Sclose(space), H5Tclose(type);
}

static void put_shape(hid_t object, const int64_t *shape, hsize_t rank, hid_t type)
{
    hid_t space = H5Screate_simple(1, &rank, NULL);
    hid_t attribute = H5Acreate2(object, "shape", type, space, H5P_DEFAULT, H5P_DEFAULT);
    assert_true(H5Awrite(attribute, H5T_STD_I64LE, shape) >= 0);
    H5Aclose(attribute), H5Sclose(space);
}

/* What a dataset of four floats may have wrong; zero is right. */
typedef struct deviation {
    const char *problem; /* expected in the message */
    hid_t settings;      /* dataset creation settings, 0: default */
    hid_t type;          /* 0: float32 */
    hid_t space;         /* 0: four elements */
    const char *dtype, *digest;
    int unwritten, no_producer, no_shape, wrong_shape, short_shape, float_shape, one_more, variable_dtype, timed;
} deviation;

static void put_variable_text(hid_t dataset)
{
    const char *text = "F32";
    hid_t type = H5Tcopy(H5T_C_S1), space = H5Screate(H5S_SCALAR);
    H5Tset_size(type, H5T_VARIABLE);
    hid_t attribute = H5Acreate2(dataset, "dtype", type, space, H5P_DEFAULT, H5P_DEFAULT);
    assert_true(H5Awrite(attribute, type, &text) >= 0);
    H5Aclose(attribute), H5Sclose(space), H5Tclose(type);
}

static void put_attributes(hid_t dataset, const deviation *bad)
{
    char digest[H3_SHA256_HEX];
    int64_t shape[2] = {bad->wrong_shape ? 5 : 4, 1};
    assert_good(h3_digest(digest, f32_values, 16));
    if (bad->variable_dtype) put_variable_text(dataset);
    else put_text(dataset, "dtype", bad->dtype ? bad->dtype : "F32");
    put_text(dataset, "digest", bad->digest ? bad->digest : digest);
    put_text(dataset, bad->no_producer ? "producers" : "producer", "p");
    if (!bad->no_shape) put_shape(dataset, shape, bad->short_shape ? 2 : 1, bad->float_shape ? H5T_IEEE_F64LE : H5T_STD_I64LE);
    if (bad->one_more) put_text(dataset, "more", "than four");
}

static void put_dataset(hid_t file, const char *name, const deviation *bad)
{
    hid_t type = bad->type ? bad->type : H5T_IEEE_F32LE,
          settings = bad->settings ? H5Pcopy(bad->settings) : H5Pcreate(H5P_DATASET_CREATE);
    assert_true(H5Pset_obj_track_times(settings, bad->timed) >= 0);
    hid_t space = bad->space ? bad->space : H5Screate_simple(1, (const hsize_t[]){4}, NULL);
    hid_t dataset = H5Dcreate2(file, name, type, space, H5P_DEFAULT, settings, H5P_DEFAULT);
    assert_true(dataset >= 0);
    if (!bad->unwritten) assert_true(H5Dwrite(dataset, H5T_IEEE_F32LE, H5S_ALL, H5S_ALL, H5P_DEFAULT, f32_values) >= 0);
    put_attributes(dataset, bad);
    H5Dclose(dataset);
    H5Pclose(settings);
    if (!bad->space) H5Sclose(space);
}

static void assert_foreign_refused(const char *problem)
{
    h3_artifact artifact;
    int descriptors = count_descriptors();
    ssize_t handles = count_handles(); /* a test's own types count as well */
    assert_fails(h3_artifact_open(&artifact, in_scratch("foreign.h5"), NULL), H3_INTEGRITY, problem);
    assert_non_null(strstr(h3_error_text(), "foreign.h5"));
    assert_int_equal(artifact.count, 0);
    assert_int_equal(count_handles(), handles);
    assert_int_equal(count_descriptors(), descriptors);
}

static void refuses(const deviation *bad)
{
    hid_t file = create_foreign(H5F_LIBVER_V18);
    put_dataset(file, "strange", bad);
    H5Fclose(file);
    assert_foreign_refused(bad->problem);
    assert_non_null(strstr(h3_error_text(), "\"strange\""));
}

/* The control: a stranger's file that does everything right is read, so each refusal below has its own cause. */
static void a_foreign_file_that_is_right_is_read(void **state)
{
    (void)state;
    h3_artifact artifact;
    hid_t file = create_foreign(H5F_LIBVER_V18);
    put_dataset(file, "strange", &(deviation){0});
    H5Fclose(file);
    assert_good(h3_artifact_open(&artifact, in_scratch("foreign.h5"), NULL));
    assert_memory_equal(h3_artifact_find(&artifact, "strange")->data, f32_values, 16);
    h3_artifact_close(&artifact);
}

static void refuses_other_storage(void **state)
{
    (void)state;
    hid_t settings = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(settings, 1, (const hsize_t[]){2});
    refuses(&(deviation){.problem = "not stored contiguously", .settings = settings});
    H5Pset_deflate(settings, 6);
    refuses(&(deviation){.problem = "it has filters", .settings = settings});
    H5Pclose(settings);
    settings = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_layout(settings, H5D_COMPACT);
    refuses(&(deviation){.problem = "not stored contiguously", .settings = settings});
    H5Pclose(settings);
    settings = H5Pcreate(H5P_DATASET_CREATE);
    write_file(in_scratch("outside.bin"), f32_values, 16);
    H5Pset_external(settings, in_scratch("outside.bin"), 0, 16);
    refuses(&(deviation){.problem = "external file", .settings = settings});
    H5Pclose(settings);
    settings = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_alloc_time(settings, H5D_ALLOC_TIME_LATE);
    refuses(&(deviation){.problem = "reach beyond", .settings = settings, .unwritten = 1});
    H5Pclose(settings);
}

static void refuses_a_virtual_dataset(void **state)
{
    (void)state;
    hid_t file = create_foreign(H5F_LIBVER_V18), settings = without_times(H5P_DATASET_CREATE),
          space = H5Screate_simple(1, (const hsize_t[]){4}, NULL);
    put_dataset(file, "plain", &(deviation){0});
    H5Pset_virtual(settings, space, in_scratch("elsewhere.h5"), "plain", space);
    hid_t dataset = H5Dcreate2(file, "virtual", H5T_IEEE_F32LE, space, H5P_DEFAULT, settings, H5P_DEFAULT);
    if (dataset >= 0) put_attributes(dataset, &(deviation){0});
    H5Pclose(settings), H5Sclose(space);
    if (dataset >= 0) H5Dclose(dataset);
    H5Fclose(file);
    assert_true(dataset >= 0);
    assert_foreign_refused("\"virtual\": it is not stored contiguously");
}

static void refuses_other_types_and_shapes(void **state)
{
    (void)state;
    hid_t half = H5Tcopy(H5T_IEEE_F32LE), bias = h3_artifact_type(H3_BF16),
          array = H5Tarray_create2(H5T_IEEE_F32LE, 1, (const hsize_t[]){1});
    H5Tset_fields(half, 15, 10, 5, 0, 10), H5Tset_size(half, 2), H5Tset_ebias(half, 15);
    H5Tset_ebias(bias, 126);
    const hid_t types[] = {half, bias, H5T_IEEE_F32BE, H5T_STD_U8LE, H5T_STD_I32BE, H5T_STD_U32LE, H5T_STD_U64LE, H5T_STD_I16LE};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        refuses(&(deviation){.problem = "its type is none of", .type = types[i]});
    refuses(&(deviation){.problem = "its type is none of", .type = array, .unwritten = 1});
    H5Tclose(half), H5Tclose(bias), H5Tclose(array);
    const hsize_t six[6] = {1, 1, 1, 1, 2, 2};
    const hid_t spaces[] = {H5Screate(H5S_SCALAR), H5Screate_simple(6, six, NULL), H5Screate(H5S_NULL)};
    for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++) {
        refuses(&(deviation){.problem = "1 to 5 dimensions", .space = spaces[i], .unwritten = i == 2});
        H5Sclose(spaces[i]);
    }
    hid_t space = H5Screate_simple(2, (const hsize_t[]){4, 0}, NULL);
    refuses(&(deviation){.problem = "fixed and not empty", .space = space});
    H5Sclose(space);
}

static void refuses_other_attributes(void **state)
{
    (void)state;
    const char *other = "0000000000000000000000000000000000000000000000000000000000000000";
    char longer[400];
    memset(longer, 'F', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    refuses(&(deviation){.problem = "digest", .digest = other});
    refuses(&(deviation){.problem = "digest", .digest = "short"});
    refuses(&(deviation){.problem = "an attribute has a type that none has", .digest = longer});
    refuses(&(deviation){.problem = "dtype", .dtype = "F64"});
    refuses(&(deviation){.problem = "an attribute has a type that none has", .dtype = longer});
    refuses(&(deviation){.problem = "an attribute has a type that none has", .variable_dtype = 1});
    refuses(&(deviation){.problem = "times", .timed = 1});
    refuses(&(deviation){.problem = "producer", .no_producer = 1});
    refuses(&(deviation){.problem = "other attributes", .no_shape = 1});
    refuses(&(deviation){.problem = "other attributes", .one_more = 1});
    refuses(&(deviation){.problem = "shape", .wrong_shape = 1});
    refuses(&(deviation){.problem = "shape", .short_shape = 1});
    refuses(&(deviation){.problem = "shape", .float_shape = 1});
}

static void refuses_other_links(void **state)
{
    (void)state;
    for (int kind = 0; kind < 8; kind++) {
        static const char *const problems[] = {"soft or external",      "soft or external",
                                               "linked more than once", "linked more than once",
                                               "linked more than once", "neither a dataset nor a group",
                                               "other attributes",      "too long"};
        char name[200];
        hid_t file = create_foreign(H5F_LIBVER_V18);
        put_dataset(file, "plain", &(deviation){0});
        hid_t settings = without_times(H5P_GROUP_CREATE), types = without_times(H5P_DATATYPE_CREATE);
        hid_t group = H5Gcreate2(file, "group", H5P_DEFAULT, settings, H5P_DEFAULT), type = H5Tcopy(H5T_IEEE_F32LE);
        memset(name, 'n', sizeof name);
        name[sizeof name - 1] = 0;
        if (kind == 0) H5Lcreate_soft("/plain", file, "link", H5P_DEFAULT, H5P_DEFAULT);
        if (kind == 1) H5Lcreate_external("/etc/passwd", "/", file, "link", H5P_DEFAULT, H5P_DEFAULT);
        if (kind == 2) H5Lcreate_hard(file, "plain", file, "link", H5P_DEFAULT, H5P_DEFAULT);
        if (kind == 3) H5Lcreate_hard(file, "/", group, "circle", H5P_DEFAULT, H5P_DEFAULT);
        if (kind == 4) H5Lcreate_hard(group, ".", group, "circle", H5P_DEFAULT, H5P_DEFAULT);
        if (kind == 5) H5Tcommit2(file, "type", type, H5P_DEFAULT, types, H5P_DEFAULT);
        if (kind == 6) put_text(group, "more", "than none");
        if (kind == 7) put_dataset(group, name, &(deviation){0});
        H5Tclose(type), H5Gclose(group), H5Pclose(settings), H5Pclose(types), H5Fclose(file);
        assert_foreign_refused(problems[kind]);
    }
}

static void refuses_names_that_are_no_paths(void **state)
{
    static const char *const names[] = {"..", "a\\b", "a\nb"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        hid_t file = create_foreign(H5F_LIBVER_V18);
        put_dataset(file, names[i], &(deviation){0});
        H5Fclose(file);
        assert_foreign_refused("is refused");
    }
}

static void refuses_other_file_formats(void **state)
{
    static const H5F_libver_t formats[] = {H5F_LIBVER_EARLIEST, H5F_LIBVER_V110};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        hid_t file = create_foreign(formats[i]);
        put_dataset(file, "plain", &(deviation){0});
        H5Fclose(file);
        assert_foreign_refused("another HDF5 file format version");
    }
}

/* Deep nesting is bounded by the length of a name. */
static void deep_groups_end(void **state)
{
    (void)state;
    char name[200] = "";
    hid_t file = create_foreign(H5F_LIBVER_V18), settings = without_times(H5P_GROUP_CREATE);
    for (int i = 0; i < 90; i++) {
        strcat(name, i ? "/g" : "g");
        hid_t group = H5Gcreate2(file, name, H5P_DEFAULT, settings, H5P_DEFAULT);
        assert_true(group >= 0);
        H5Gclose(group);
    }
    H5Pclose(settings), H5Fclose(file);
    assert_foreign_refused("too long");
}

static int silence(void **state)
{
    h3_artifact_silence();
    return make_scratch(state);
}

#define SCRATCH_TEST(test) cmocka_unit_test_setup_teardown(test, silence, remove_scratch)

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCRATCH_TEST(a_foreign_file_that_is_right_is_read),
        SCRATCH_TEST(refuses_other_storage),
        SCRATCH_TEST(refuses_a_virtual_dataset),
        SCRATCH_TEST(refuses_other_types_and_shapes),
        SCRATCH_TEST(refuses_other_attributes),
        SCRATCH_TEST(refuses_other_links),
        SCRATCH_TEST(refuses_names_that_are_no_paths),
        SCRATCH_TEST(refuses_other_file_formats),
        SCRATCH_TEST(deep_groups_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
