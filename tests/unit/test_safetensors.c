/* The safetensors reader: what it gives, and that nothing in a file passes unseen or crashes it. */
#include "golden_files.h"

#include <sys/stat.h>

/* An exactly sized image of header and zeroed data, so that the sanitizer build sees a read past its end. */
static unsigned char *new_image(const char *header, size_t header_length, size_t data_size, size_t *size)
{
    *size = 8 + header_length + data_size;
    unsigned char *image = calloc(*size, 1);
    for (int i = 0; i < 8; i++) image[i] = (unsigned char)((uint64_t)header_length >> (8 * i));
    memcpy(image + 8, header, header_length);
    return image;
}

static h3_status parse_text(h3_safetensors *file, unsigned char **image, const char *header, size_t data_size)
{
    size_t size;
    *image = new_image(header, strlen(header), data_size, &size);
    return h3_safetensors_parse(file, *image, size, "image");
}

#define TENSOR(name, dtype, shape, begin, end) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" begin "," end "]}"

/* Header, bytes of data, and what the message must say. */
static const struct hostile { const char *header; size_t data; const char *word; } HOSTILE[] = {
    {"{" TENSOR("a", "F32", "[2]", "0", "8") "}", 7, "truncated"},
    {"{" TENSOR("a", "F32", "[2]", "0", "8") "}", 0, "truncated"},
    {"{" TENSOR("a", "F32", "[2]", "0", "8") "}", 9, "trailing"},
    {"{}", 1, "trailing"},
    {"{" TENSOR("a", "F32", "[2]", "0", "8") "," TENSOR("b", "F32", "[2]", "4", "12") "}", 12, "overlap"},
    {"{" TENSOR("a", "F32", "[2]", "0", "8") "," TENSOR("b", "F32", "[2]", "0", "8") "}", 8, "overlap"},
    {"{" TENSOR("a", "F32", "[2]", "0", "8") "," TENSOR("b", "F32", "[0]", "4", "4") "}", 8, "overlap"},
    {"{" TENSOR("a", "F32", "[2]", "0", "8") "," TENSOR("b", "F32", "[2]", "12", "20") "}", 20, "hole"},
    {"{" TENSOR("a", "F32", "[2]", "4", "12") "}", 12, "hole"},
    {"{" TENSOR("a", "F32", "[2]", "0", "8") "," TENSOR("a", "F32", "[2]", "8", "16") "}", 16, "duplicate key \"a\""},
    {"{" TENSOR("a", "F32", "[2]", "0", "8") "," TENSOR("\\u0061", "F32", "[2]", "8", "16") "}", 16, "duplicate key \"a\""},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "duplicate key"},
    {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "duplicate key \"dtype\""},
    {"{" TENSOR("a", "F8_E4M3", "[2]", "0", "2") "}", 2, "dtype \"F8_E4M3\" is not supported"},
    {"{" TENSOR("a", "f32", "[2]", "0", "8") "}", 8, "dtype \"f32\""},
    {"{" TENSOR("a", "", "[2]", "0", "8") "}", 8, "dtype \"\""},
    {"{\"a\":{\"dtype\":7,\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "\"dtype\" must be a string"},
    {"{\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "\"dtype\" is missing"},
    {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", 8, "\"shape\" is missing"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, "\"data_offsets\" is missing"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"x\":1}}", 8, "unknown field \"x\""},
    {"{\"a\":7}", 0, "object"},
    {"{\"a\":null}", 0, "object"},
    {"{\"a\":[]}", 0, "object"},
    {"{" TENSOR("a", "F32", "2", "0", "8") "}", 8, "\"shape\" must be an array"},
    {"{" TENSOR("a", "F32", "[3]", "0", "8") "}", 8, "shape needs 12"},
    {"{" TENSOR("a", "F32", "[1,1,1,1,1,2]", "0", "8") "}", 8, "more than 5 dimensions"},
    {"{" TENSOR("a", "F32", "[\"2\"]", "0", "8") "}", 8, "shape must be an integer"},
    {"{" TENSOR("a", "F32", "[null]", "0", "8") "}", 8, "shape must be an integer"},
    {"{" TENSOR("a", "F32", "[-2]", "0", "8") "}", 8, "plain integer"},
    {"{" TENSOR("a", "F32", "[2.0]", "0", "8") "}", 8, "plain integer"},
    {"{" TENSOR("a", "F32", "[2e0]", "0", "8") "}", 8, "plain integer"},
    {"{" TENSOR("a", "F32", "[9007199254740993]", "0", "8") "}", 8, "2^53"},
    {"{" TENSOR("a", "F32", "[18446744073709551618]", "0", "8") "}", 8, "2^53"},
    {"{" TENSOR("a", "F32", "[4611686018427387906]", "0", "8") "}", 8, "2^53"},
    {"{" TENSOR("a", "F32", "[4294967296,4294967296]", "0", "0") "}", 0, "shape is too large"},
    {"{" TENSOR("a", "F32", "[4294967296,4294967296,0]", "0", "0") "}", 0, "shape is too large"},
    {"{" TENSOR("a", "F32", "[0,4294967296,4294967296]", "0", "0") "}", 0, "shape is too large"},
    {"{" TENSOR("a", "F32", "[4503599627370496,2048,1024]", "0", "8") "}", 8, "shape is too large"},
    {"{" TENSOR("a", "F32", "[2]", "8", "0") "}", 8, "backward"},
    {"{" TENSOR("a", "F32", "[2]", "0", "4") "}", 8, "span 4 bytes"},
    {"{" TENSOR("a", "F32", "[0]", "0", "8") "}", 8, "shape needs 0"},
    {"{" TENSOR("a", "F32", "[2]", "0", "8,8") "}", 8, "two integers"},
    {"{" TENSOR("a", "F32", "[2]", "-8", "0") "}", 8, "plain integer"},
    {"{" TENSOR("a", "F32", "[2]", "0", "9223372036854775808") "}", 8, "2^53"},
    {"{" TENSOR("a", "F32", "[2]", "18446744073709551608", "8") "}", 8, "2^53"},
    {"{" TENSOR("a", "F32", "[2]", "9007199254740983", "9007199254740991") "}", 8, "truncated"},
    {"{" TENSOR("a", "F32", "[2]", "\"0\"", "8") "}", 8, "integer"},
    {"{" TENSOR("a\\n", "F32", "[2]", "0", "8") "}", 8, "control character"},
    {"{" TENSOR("a\x7f", "F32", "[2]", "0", "8") "}", 8, "control character"},
    {"{" TENSOR("a\n", "F32", "[2]", "0", "8") "}", 8, "control character"},
    {"{" TENSOR("a\\u0000b", "F32", "[2]", "0", "8") "}", 8, "zero character"},
    {"{" TENSOR("\xff", "F32", "[2]", "0", "8") "}", 8, "UTF-8"},
    {"{" TENSOR("", "F32", "[2]", "0", "8") "}", 8, "name of 0 characters"},
    {"{\"__metadata__\":{\"a\":1}}", 0, "strings only"},
    {"{\"__metadata__\":\"x\"}", 0, "__metadata__ must be an object"},
    {"[]", 0, "does not start with {"},
    {" {}", 0, "does not start with {"},
    {"", 0, "does not start with {"},
    {"{}x", 0, "behind the value"},
    {"{", 0, "no valid JSON"},
    {"{}\n{}", 0, "behind the value"},
    {"{" TENSOR("a", "F32", "[2]", "0", "8") ",}", 8, "no valid JSON"},
};

static void hostile_headers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof HOSTILE / sizeof *HOSTILE; i++) {
        h3_safetensors file;
        unsigned char *image;
        assert_fails(parse_text(&file, &image, HOSTILE[i].header, HOSTILE[i].data), H3_INTEGRITY, HOSTILE[i].word);
        assert_non_null(strstr(h3_error_text(), "image"));
        assert_null(file.entries);
        assert_null(file.path);
        free(image);
    }
}

static void hostile_lengths(void **state)
{
    static const struct { unsigned char bytes[10]; size_t size; const char *word;
    } cases[] = {
        {{0}, 0, "truncated"},
        {{2}, 7, "truncated"},
        {{0}, 8, "does not start with {"},
        {{2, 0, 0, 0, 0, 0, 0, 0, '{'}, 9, "truncated header"},
        {{3, 0, 0, 0, 0, 0, 0, 0, '{', '}'}, 10, "truncated header"},
        {{0, 0, 0x40, 6}, 8, "truncated header"},
        {{1, 0, 0x40, 6}, 8, "oversized header"},
        {{0, 0, 0, 0, 0, 0, 0, 0x80}, 8, "oversized header"},
        {{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, 8, "oversized header"},
        {{0xf8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, 10, "oversized header"},
    };
    h3_safetensors file;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        unsigned char *exact = malloc(cases[i].size ? cases[i].size : 1);
        memcpy(exact, cases[i].bytes, cases[i].size);
        assert_fails(h3_safetensors_parse(&file, exact, cases[i].size, "image"), H3_INTEGRITY, cases[i].word);
        free(exact);
    }
}

static void hostile_nesting(void **state)
{
    enum { DEPTH = 500000 };
    static char header[2 * DEPTH + 16];
    h3_safetensors file;
    unsigned char *image;
    (void)state;
    memcpy(header, "{\"a\":", 5);
    memset(header + 5, '[', DEPTH);
    memset(header + 5 + DEPTH, ']', DEPTH);
    strcpy(header + 5 + 2 * DEPTH, "}");
    assert_fails(parse_text(&file, &image, header, 0), H3_INTEGRITY, "nested too deeply");
    free(image);
    char name[600]; /* a tensor name beyond all reason */
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = 0;
    snprintf(header, sizeof header, "{\"%s\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", name);
    assert_fails(parse_text(&file, &image, header, 8), H3_INTEGRITY, "name of 599 characters");
    free(image);
}

static void a_message_is_one_line(void **state)
{
    h3_safetensors file;
    unsigned char *image;
    (void)state;
    assert_fails(parse_text(&file, &image, "{\"a\":{\"dtype\":\"x\\n\\u001b[31m\",\"shape\":[],\"data_offsets\":[0,4]}}", 4),
                 H3_INTEGRITY, "dtype");
    for (const char *c = h3_error_text(); *c; c++) assert_true((unsigned char)*c >= 0x20);
    free(image);
}

static void good_files(void **state)
{
    h3_safetensors file;
    unsigned char *image;
    h3_tensor copy;
    (void)state;
    assert_good(parse_text(&file, &image, "{}", 0));
    assert_int_equal(file.count, 0);
    assert_null(h3_safetensors_find(&file, "a"));
    h3_safetensors_close(&file);
    free(image);
    const char *header = "{\"__metadata__\":{\"format\":\"pt\"}," TENSOR("z", "BF16", "[3,1]", "0", "6") "," TENSOR(
        "scalar", "I32", "[]", "6", "10") "," TENSOR("e", "F64", "[4,0]", "10",
                                                     "10") "," TENSOR("a.b", "I64", "[2]", "10",
                                                                      "26") "," TENSOR("f", "F64", "[1]", "26", "34") "," TENSOR("u", "U8", "[2]", "34", "36") "}    ";
    assert_good(parse_text(&file, &image, header, 36));
    assert_int_equal(file.count, 6);
    for (size_t i = 1; i < file.count; i++) assert_true(strcmp(file.entries[i - 1].name, file.entries[i].name) < 0);
    const h3_tensor *scalar = h3_safetensors_find(&file, "scalar");
    assert_int_equal(scalar->rank, 1);
    assert_int_equal(scalar->shape[0], 1);
    assert_int_equal(h3_tensor_count(h3_safetensors_find(&file, "e")), 0);
    memcpy(image + file.size - 10, &(double){2.5}, 8);
    memcpy(image + file.size - 2, "hi", 2);
    assert_good(h3_safetensors_read(&copy, &file, "u", H3_U8, 1, H3_SHAPE(2)));
    assert_memory_equal(copy.data, "hi", 2);
    h3_tensor_free(&copy);
    assert_good(h3_safetensors_read(&copy, &file, "f", H3_F64, 1, H3_SHAPE(1)));
    assert_true(*(double *)copy.data == 2.5);
    assert_int_equal((uintptr_t)copy.data % 64, 0);
    h3_tensor_free(&copy);
    assert_fails(h3_safetensors_read(&copy, &file, "none", H3_F64, 1, H3_SHAPE(1)), H3_INTEGRITY, "the tensor none is missing");
    assert_fails(h3_safetensors_read(&copy, &file, "f", H3_F32, 1, H3_SHAPE(1)), H3_INTEGRITY, "dtype");
    assert_fails(h3_safetensors_read(&copy, &file, "f", H3_F64, 1, H3_SHAPE(2)), H3_INTEGRITY, "shape");
    assert_fails(h3_safetensors_read(&copy, &file, "f", H3_F64, 2, H3_SHAPE(1, 1)), H3_INTEGRITY, "shape");
    assert_null(copy.data);
    h3_safetensors_close(&file);
    free(image);
}

static void golden_file(void **state)
{
    (void)state;
    h3_safetensors file = golden_tensors("nano/case.safetensors");
    h3_tensor timestep;
    assert_int_equal(file.count, 12);
    assert_good(h3_safetensors_read(&timestep, &file, "layout.timestep", H3_F32, 1, H3_SHAPE(3)));
    assert_true(((float *)timestep.data)[0] == 0.25f && ((float *)timestep.data)[1] == 0.5625f);
    h3_tensor_free(&timestep);
    h3_safetensors_close(&file);
    assert_int_equal(file.size, 0);
}

static void files_that_are_none(void **state)
{
    char folder[] = "/tmp/h3-test-safetensors-XXXXXX", path[H3_PATH_MAX];
    h3_safetensors file;
    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/x", folder);
    assert_fails(h3_safetensors_open(&file, path), H3_INTEGRITY, "No such file");
    fclose(fopen(path, "w"));
    assert_fails(h3_safetensors_open(&file, path), H3_INTEGRITY, "truncated");
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_fails(h3_safetensors_open(&file, path), H3_INTEGRITY, "not a regular file");
    unlink(path);
    assert_int_equal(symlink("/dev/null", path), 0);
    assert_fails(h3_safetensors_open(&file, path), H3_INTEGRITY, "symbolic link");
    unlink(path);
    assert_fails(h3_safetensors_open(&file, folder), H3_INTEGRITY, "not a regular file");
    assert_fails(h3_safetensors_open(&file, "/dev/zero"), H3_INTEGRITY, "not a regular file");
    rmdir(folder);
}

static uint64_t random_state = 20240607;

static size_t random_below(size_t limit)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (size_t)(random_state >> 33) % limit;
}

/* One of four kinds of damage, most of it in the header, where it hurts. */
static size_t mutate(unsigned char *image, size_t size, size_t header_end)
{
    static const char *const pieces[] = {
        "{", "}", "[", "]", ",", ":", "\"", "0", "9", "-", "\\u0000", "null", "1e9", "[[[[", "99999999999999999999"};
    size_t at = random_below(random_below(8) ? header_end : size), length;
    if (at >= size) at = size - 1;
    switch (random_below(4)) {
    case 0: image[at] ^= (unsigned char)(1u << random_below(8)); return size;
    case 1: {
        const char *piece = pieces[random_below(sizeof pieces / sizeof *pieces)];
        length = strlen(piece);
        memmove(image + at + length, image + at, size - at);
        memcpy(image + at, piece, length);
        return size + length;
    }
    case 2:
        length = 1 + random_below(40);
        if (length > size - at) length = size - at;
        memmove(image + at, image + at + length, size - at - length);
        return size - length;
    default: return random_below(4) ? size : at;
    }
}

/* Whatever survives the checks must be consistent: every view inside the file, and readable to the last byte. */
static void assert_consistent(const h3_safetensors *file)
{
    size_t bytes = 0;
    for (size_t i = 0; i < file->count; i++) {
        const h3_tensor *tensor = &file->entries[i].tensor;
        const unsigned char *data = tensor->data;
        size_t length = h3_tensor_bytes(tensor);
        assert_true(data >= file->image + 8 && length <= (size_t)(file->image + file->size - data));
        bytes += length;
        h3_tensor copy;
        assert_good(h3_safetensors_read(&copy, file, file->entries[i].name, H3_NONE, 0, NULL));
        h3_tensor_free(&copy);
    }
    assert_true(bytes <= file->size);
}

static void mutations_never_crash(void **state)
{
    (void)state;
    size_t size;
    char *original;
    int accepted = 0, rounds = 4000;
    assert_good(h3_file_read(&original, &size, golden_path("nano/transformer/diffusion_pytorch_model-00001-of-00002.safetensors"),
                             1 << 20, H3_INTEGRITY));
    size_t header_end = 8 + (size_t)((unsigned char)original[0] | (unsigned char)original[1] << 8);
    for (int round = 0; round < rounds; round++) {
        unsigned char *image = malloc(size + 200);
        h3_safetensors file;
        size_t length = size;
        memcpy(image, original, size);
        for (size_t n = 1 + random_below(3); n > 0 && length > 0; n--) length = mutate(image, length, header_end);
        if (round % 2 && length > 8) { /* half of them with a header length that fits what was done to the header */
            uint64_t header = header_end - 8 + length - size;
            for (int i = 0; i < 8; i++) image[i] = (unsigned char)(header >> (8 * i));
        }
        unsigned char *exact = realloc(image, length ? length : 1);
        h3_status status = h3_safetensors_parse(&file, exact, length, "mutation");
        assert_true(status == H3_OK || status == H3_INTEGRITY);
        if (status == H3_OK) {
            assert_consistent(&file);
            accepted++;
        } else {
            assert_true(strncmp(h3_error_text(), "mutation", 8) == 0);
        }
        h3_safetensors_close(&file);
        free(exact);
    }
    assert_true(accepted > 0 && accepted < rounds / 2); /* data bits may flip unseen; damage to the header is found */
    free(original);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hostile_headers),     cmocka_unit_test(hostile_lengths),
        cmocka_unit_test(hostile_nesting),     cmocka_unit_test(a_message_is_one_line),
        cmocka_unit_test(good_files),          cmocka_unit_test(golden_file),
        cmocka_unit_test(files_that_are_none), cmocka_unit_test(mutations_never_crash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
