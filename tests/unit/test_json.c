/* JSON reading and writing: what is accepted, what is refused and how, exact integers, deterministic text. */
#include "golden_files.h"

#include <math.h>
#include <sys/stat.h>

#include "base/json_scan.h"

static const char *const GOOD[] = {
    "null",
    " true ",
    "[]",
    "{}",
    "-0",
    "0.5e-3",
    "1E+2",
    "\"\"",
    "\"\\u00e9\\ud83d\\ude00\\/\\\\\"",
    "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"",
    "{\"a\":[1,2,{\"b\":null}],\"c\":\"\x7f\"}",
    "\t[\r\n1 , 2 ]\n",
};

/* Text and a piece of the message. */
static const struct { const char *text, *word;
} BAD[] = {
    {"", "empty"},
    {" ", "value was expected"},
    {"{", "double quotes"},
    {"[1,", "value was expected"},
    {"[1,]", "value was expected"},
    {"{\"a\":1,}", "double quotes"},
    {"{a:1}", "double quotes"},
    {"{\"a\" 1}", "colon"},
    {"[1 2]", "comma or ]"},
    {"{\"a\":1 \"b\":2}", "comma or }"},
    {"1 2", "behind the value"},
    {"{}x", "behind the value"},
    {"01", "starts with 0"},
    {"-", "value was expected"},
    {"+1", "value was expected"},
    {".5", "value was expected"},
    {"1.", "behind its point"},
    {"1e", "exponent"},
    {"1e+", "exponent"},
    {"NaN", "value was expected"},
    {"Infinity", "value was expected"},
    {"1e999", "too large"},
    {"-1e999", "too large"},
    {"0x10", "behind the value"},
    {"tru", "value was expected"},
    {"nulll", "behind the value"},
    {"\"abc", "inside a string"},
    {"\"\\", "escape"},
    {"\"\\x\"", "unknown escape"},
    {"\"\\u12g4\"", "\\u escape"},
    {"\"\\u0000\"", "zero character"},
    {"\"\\ud800\"", "surrogate"},
    {"\"\\udc00\"", "surrogate"},
    {"\"\\ud800\\u0041\"", "surrogate"},
    {"\"\n\"", "control character"},
    {"\"\x80\"", "UTF-8"},
    {"\"\xc0\xaf\"", "UTF-8"},
    {"\"\xe0\x80\x80\"", "UTF-8"},
    {"\"\xed\xa0\x80\"", "UTF-8"},
    {"\"\xf4\x90\x80\x80\"", "UTF-8"},
    {"\"\xe2\x82\"", "UTF-8"},
    {"\xef\xbb\xbf{}", "begins with a byte order mark"},
    {"'a'", "value was expected"},
    {"[1]//x", "behind the value"},
    {"{\"a\":1,\"a\":2}", "duplicate key \"a\""},
    {"[{\"x\":{\"a\":1,\"b\":2,\"\\u0061\":3}}]", "duplicate key \"a\""},
    {"1234567890123456789012345678901234567890123456789", "too long"},
};

static void accepts_json(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof GOOD / sizeof *GOOD; i++) {
        cJSON *value;
        assert_good(h3_json_parse(&value, GOOD[i], strlen(GOOD[i]), "text", H3_USAGE));
        assert_non_null(value);
        cJSON_Delete(value);
    }
}

static void refuses_the_rest(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        cJSON *value = (cJSON *)(uintptr_t)1;
        assert_fails(h3_json_parse(&value, BAD[i].text, strlen(BAD[i].text), "plan", i % 2 ? H3_USAGE : H3_INTEGRITY),
                     i % 2 ? H3_USAGE : H3_INTEGRITY, BAD[i].word);
        assert_null(value);
        assert_non_null(strstr(h3_error_text(), "plan"));
    }
    cJSON *value;
    assert_fails(h3_json_parse(&value, "{\n \"a\": ?}", 10, "plan", H3_USAGE), H3_USAGE, "line 2 column 7");
    assert_fails(h3_json_parse(&value, "[0\0]", 4, "plan", H3_USAGE), H3_USAGE, "comma");
}

/* Text that ends where the buffer ends: nothing behind it is read (the sanitizer build sees to that). */
static void every_prefix_is_refused(void **state)
{
    (void)state;
    const char *text = "{\"k\\u00e9\xc3\xa9\":[-1.5e+3,true,null,{\"\\ud83d\\ude00\":\"\\n\"}]}";
    for (size_t length = 0; length < strlen(text); length++) {
        char *copy = malloc(length + 1);
        cJSON *value;
        memcpy(copy, text, length);
        char *exact = realloc(copy, length ? length : 1);
        assert_int_equal(h3_json_parse(&value, exact, length, "prefix", H3_INTEGRITY), H3_INTEGRITY);
        free(exact);
    }
}

static void depth_is_bounded(void **state)
{
    (void)state;
    for (int depth = H3_JSON_DEPTH - 1; depth <= 1000000; depth = depth < H3_JSON_DEPTH + 1 ? depth + 1 : depth * 100) {
        char *text = malloc((size_t)depth * 2);
        cJSON *value;
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        h3_status status = h3_json_parse(&value, text, (size_t)depth * 2, "deep", H3_INTEGRITY);
        if (depth <= H3_JSON_DEPTH) assert_good(status);
        else assert_fails(status, H3_INTEGRITY, "nested too deeply");
        cJSON_Delete(value);
        free(text);
    }
}

static void number_of_values_is_bounded(void **state)
{
    (void)state;
    size_t length = 2 * (size_t)H3_JSON_VALUES + 1;
    char *text = malloc(length);
    size_t offset;
    for (size_t i = 0; i < length; i++) text[i] = i % 2 ? '0' : ',';
    text[0] = '[';
    text[length - 1] = ']';
    assert_string_equal(h3_json_scan(text, length, 0, &offset), "too many values");
    text[1] = text[2] = ' ';
    assert_null(h3_json_scan(text, length, 0, &offset));
    free(text);
}

static void plain_integers_only(void **state)
{
    static const char *const refused[] = {"[-1]", "[1.0]", "[1e2]", "[-0]", "{\"a\":[0,0.5]}"};
    cJSON *value;
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        assert_fails(h3_json_parse_plain(&value, refused[i], strlen(refused[i]), "header", H3_INTEGRITY), H3_INTEGRITY,
                     "plain integer");
        assert_good(h3_json_parse(&value, refused[i], strlen(refused[i]), "header", H3_INTEGRITY));
        cJSON_Delete(value);
    }
    assert_good(h3_json_parse_plain(&value, "[0,17,{\"a\":\"-1.5\"}]", 19, "header", H3_INTEGRITY));
    cJSON_Delete(value);
}

static void integers_are_exact(void **state)
{
    static const struct { const char *text; int64_t expected; const char *word;
    } cases[] = {
        {"0", 0, NULL},
        {"-17", -17, NULL},
        {"1e3", 1000, NULL},
        {"9007199254740991", 9007199254740991, NULL},
        {"-9007199254740991", -9007199254740991, NULL},
        {"9007199254740992", 0, "2^53"},
        {"9007199254740993", 0, "2^53"},
        {"18446744073709551616", 0, "2^53"},
        {"-9223372036854775809", 0, "2^53"},
        {"1e300", 0, "2^53"},
        {"0.5", 0, "integer"},
        {"2251799813685248.5", 0, "integer"},
        {"\"1\"", 0, "integer"},
        {"true", 0, "integer"},
        {"[1]", 0, "integer"},
        {"null", 0, "integer"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[80];
        cJSON *value;
        int64_t result;
        snprintf(text, sizeof text, "{\"n\":%s}", cases[i].text);
        assert_good(h3_json_parse(&value, text, strlen(text), "plan", H3_USAGE));
        h3_status status = h3_json_integer(&result, value, "n", INT64_MIN, INT64_MAX, "plan", H3_USAGE);
        if (cases[i].word != NULL) assert_fails(status, H3_USAGE, cases[i].word);
        else assert_good(status);
        assert_int_equal(result, cases[i].expected);
        cJSON_Delete(value);
    }
}

static void getters_name_field_and_file(void **state)
{
    static const char *const known[] = {"o", "a", "s", "n", NULL}, *const fewer[] = {"o", "a", "s", NULL};
    const char *source = "{\"o\":{},\"a\":[],\"s\":\"x\",\"n\":1.5}", *string;
    const cJSON *item;
    cJSON *value;
    double number;
    int64_t integer;
    (void)state;
    assert_good(h3_json_parse(&value, source, strlen(source), "p.json", H3_USAGE));
    assert_good(h3_json_object(&item, value, "o", "p.json", H3_USAGE));
    assert_good(h3_json_array(&item, value, "a", "p.json", H3_USAGE));
    assert_good(h3_json_string(&string, value, "s", "p.json", H3_USAGE));
    assert_string_equal(string, "x");
    assert_good(h3_json_number(&number, value, "n", "p.json", H3_USAGE));
    assert_true(number == 1.5);
    assert_fails(h3_json_object(&item, value, "a", "p.json", H3_USAGE), H3_USAGE, "p.json: the field \"a\" must be an object");
    assert_fails(h3_json_array(&item, value, "o", "p.json", H3_INTEGRITY), H3_INTEGRITY,
                 "p.json: the field \"o\" must be an array");
    assert_fails(h3_json_string(&string, value, "n", "p.json", H3_USAGE), H3_USAGE, "a string");
    assert_fails(h3_json_number(&number, value, "s", "p.json", H3_USAGE), H3_USAGE, "a finite number");
    assert_fails(h3_json_integer(&integer, value, "n", 0, 9, "p.json", H3_USAGE), H3_USAGE, "\"n\" must be an integer, not 1.5");
    assert_fails(h3_json_string(&string, value, "S", "p.json", H3_USAGE), H3_USAGE, "p.json: the field \"S\" is missing");
    assert_fails(h3_json_string(&string, NULL, "S", "p.json", H3_USAGE), H3_USAGE, "an object with the field \"S\"");
    assert_good(h3_json_only_keys(value, known, "p.json", H3_USAGE));
    assert_fails(h3_json_only_keys(value, fewer, "p.json", H3_USAGE), H3_USAGE, "unknown field \"n\"");
    cJSON_Delete(value);
    assert_good(h3_json_parse(&value, "{\"n\":7}", 7, "p.json", H3_USAGE));
    assert_fails(h3_json_integer(&integer, value, "n", 0, 6, "p.json", H3_USAGE), H3_USAGE, "is 7 but must be 0 to 6");
    assert_fails(h3_json_integer(&integer, value, "n", 8, 9, "p.json", H3_USAGE), H3_USAGE, "is 7 but must be 8 to 9");
    cJSON_Delete(value);
}

static void printing_is_exact_and_stable(void **state)
{
    char *text, *again;
    cJSON *value = cJSON_CreateObject(), *list, *parsed;
    (void)state;
    h3_json_add_integer(value, "big", 9223372036854775807);
    h3_json_add_integer(value, "small", INT64_MIN);
    h3_json_add_integer(value, "exact", 9007199254740991);
    cJSON_AddStringToObject(value, "text", "a\"\\\n\t\x01\x7f\xc3\xa9/");
    list = cJSON_AddArrayToObject(value, "list");
    const double numbers[] = {0, -0.0, 0.1, 1e-5, 1.0 / 3, 5e-324, 1.7976931348623157e308, 123456789, 1e22, -2.5, NAN, INFINITY};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) cJSON_AddItemToArray(list, cJSON_CreateNumber(numbers[i]));
    cJSON_AddArrayToObject(value, "none");
    cJSON_AddBoolToObject(cJSON_AddObjectToObject(value, "inner"), "yes", 1);
    assert_good(h3_json_print(&text, value));
    assert_string_equal(
        text, "{\n  \"big\": 9223372036854775807,\n  \"small\": -9223372036854775808,\n  \"exact\": 9007199254740991,\n"
              "  \"text\": \"a\\\"\\\\\\n\\t\\u0001\\u007f\xc3\xa9/\",\n  \"list\": [\n    0,\n    -0,\n    0.1,\n    1e-05,\n"
              "    0.3333333333333333,\n    5e-324,\n    1.7976931348623157e+308,\n    123456789,\n    1e+22,\n    -2.5,\n    "
              "null,\n    null\n"
              "  ],\n  \"none\": [],\n  \"inner\": {\n    \"yes\": true\n  }\n}\n");
    int64_t big;
    assert_good(h3_json_integer(&big, value, "big", 0, INT64_MAX, "built", H3_USAGE));
    assert_true(big == INT64_MAX);
    assert_true(cJSON_IsNumber(json_get(value, "exact")));
    assert_good(h3_json_parse(&parsed, text, strlen(text), "own text", H3_INTEGRITY));
    assert_fails(h3_json_integer(&big, parsed, "big", 0, INT64_MAX, "own text", H3_INTEGRITY), H3_INTEGRITY, "2^53");
    cJSON_ReplaceItemInObjectCaseSensitive(parsed, "big", cJSON_CreateRaw("9223372036854775807"));
    cJSON_ReplaceItemInObjectCaseSensitive(parsed, "small", cJSON_CreateRaw("-9223372036854775808"));
    assert_good(h3_json_print(&again, parsed));
    assert_string_equal(text, again);
    free(text);
    free(again);
    cJSON_Delete(value);
    cJSON_Delete(parsed);
}

static void files_are_regular_and_whole(void **state)
{
    char folder[] = "/tmp/h3-test-json-XXXXXX", path[H3_PATH_MAX], link_path[H3_PATH_MAX];
    cJSON *value;
    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/a.json", folder);
    snprintf(link_path, sizeof link_path, "%s/link", folder);
    assert_fails(h3_json_read(&value, path, H3_USAGE), H3_USAGE, "No such file");
    FILE *file = fopen(path, "w");
    assert_fails(h3_json_read(&value, path, H3_INTEGRITY), H3_INTEGRITY, "empty");
    fputs("{\"a\": 1}\n", file);
    fclose(file);
    assert_good(h3_json_read(&value, path, H3_USAGE));
    assert_int_equal(json_int(value, "a"), 1);
    cJSON_Delete(value);
    assert_int_equal(symlink("a.json", link_path), 0);
    assert_fails(h3_json_read(&value, link_path, H3_USAGE), H3_USAGE, "symbolic link");
    unlink(link_path);
    assert_int_equal(mkfifo(link_path, 0600), 0);
    assert_fails(h3_json_read(&value, link_path, H3_USAGE), H3_USAGE, "not a regular file");
    assert_fails(h3_json_read(&value, folder, H3_USAGE), H3_USAGE, "not a regular file");
    assert_fails(h3_json_read(&value, "/dev/zero", H3_USAGE), H3_USAGE, "not a regular file");
    assert_int_equal(truncate(path, 300 * 1024 * 1024), 0);
    assert_fails(h3_json_read(&value, path, H3_USAGE), H3_USAGE, "larger than");
    unlink(path);
    unlink(link_path);
    rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepts_json),
        cmocka_unit_test(refuses_the_rest),
        cmocka_unit_test(every_prefix_is_refused),
        cmocka_unit_test(depth_is_bounded),
        cmocka_unit_test(number_of_values_is_bounded),
        cmocka_unit_test(plain_integers_only),
        cmocka_unit_test(integers_are_exact),
        cmocka_unit_test(getters_name_field_and_file),
        cmocka_unit_test(printing_is_exact_and_stable),
        cmocka_unit_test(files_are_regular_and_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
