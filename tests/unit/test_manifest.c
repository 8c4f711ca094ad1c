/* reference-manifest.json: writing and reading back, every field damaged, pinned manifests, fingerprints. */
#include "golden_files.h"

#include "qualify/manifest.h"

#define HASH_A "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define HASH_B "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"

static void make(h3_manifest *m)
{
    memset(m, 0, sizeof *m);
    m->fingerprint = cJSON_Parse("{\"instruction_set\": \"x86-64 avx2\", \"libm\": \"2.36\"}");
    m->model = cJSON_Parse("{\"kind\": \"synthetic\", \"seed\": 0}");
    memcpy(m->plan_identity, HASH_A, H3_SHA256_HEX);
    assert_good(h3_manifest_add_file(m, "data/b.h5", 20, HASH_B));
    assert_good(h3_manifest_add_file(m, "data/a.h5", 10, HASH_A));
    assert_good(h3_manifest_add_tensor(m, "s/fp32/out", "data/b.h5", HASH_B));
    assert_good(h3_manifest_add_tensor(m, "s/bf16/out", "data/a.h5", HASH_A));
}

/* The sample as text; the caller frees it. */
static char *printed(void)
{
    static char *text;
    h3_manifest m;
    make(&m);
    assert_good(h3_manifest_print(&text, &m));
    h3_manifest_free(&m);
    return text;
}

static h3_status parse(h3_manifest *out, const char *text) { return h3_manifest_parse(out, text, strlen(text), "reference-manifest.json"); }

static void test_round_trip(void **state)
{
    (void)state;
    h3_manifest m;
    char *first = printed(), *second;
    assert_good(parse(&m, first));
    assert_int_equal(m.file_count, 2);
    assert_int_equal(m.tensor_count, 2);
    assert_string_equal(m.files[0].path, "data/a.h5"); /* sorted */
    assert_string_equal(m.plan_identity, HASH_A);
    const h3_manifest_tensor *tensor = h3_manifest_find(&m, "s/fp32/out");
    assert_non_null(tensor);
    assert_string_equal(tensor->digest, HASH_B);
    assert_string_equal(tensor->file, "data/b.h5");
    assert_int_equal(h3_manifest_find_file(&m, "data/b.h5")->size, 20);
    assert_null(h3_manifest_find(&m, "s/fp32/in"));
    assert_null(h3_manifest_find_file(&m, "data/c.h5"));
    assert_good(h3_manifest_print(&second, &m));
    assert_string_equal(first, second);
    free(first);
    free(second);
    h3_manifest_free(&m);
    assert_null(h3_manifest_find(&m, "s/fp32/out")); /* an empty manifest has nothing */
}

/* No hosts, users, times, absolute paths. */
static void test_deterministic_text(void **state)
{
    (void)state;
    char *text = printed();
    cJSON *json;
    assert_good(h3_json_parse(&json, text, strlen(text), "manifest", H3_INTEGRITY));
    static const char *const keys[] = {"schema", "plan_identity", "fingerprint", "model", "files", "tensors"};
    int count = 0;
    for (const cJSON *child = json->child; child != NULL; child = child->next) assert_string_equal(child->string, keys[count++]);
    assert_int_equal(count, 6);
    cJSON_Delete(json);
    free(text);
}

static void test_duplicates(void **state)
{
    (void)state;
    h3_manifest m;
    char *text;
    make(&m);
    assert_good(h3_manifest_add_tensor(&m, "s/bf16/out", "data/b.h5", HASH_B));
    assert_fails(h3_manifest_print(&text, &m), H3_INTEGRITY, "lists tensor s/bf16/out twice");
    h3_manifest_free(&m);
    make(&m);
    assert_good(h3_manifest_add_file(&m, "data/a.h5", 10, HASH_A));
    assert_fails(h3_manifest_print(&text, &m), H3_INTEGRITY, "lists file data/a.h5 twice");
    h3_manifest_free(&m);
}

/* The printed text with the first `from` replaced. */
static char *edited(const char *from, const char *to)
{
    char *text = printed(), *out;
    const char *at = strstr(text, from);
    if (at == NULL) fail_msg("no \"%s\" to edit", from);
    const int before = (int)(at - text);
    assert_good(h3_format(&out, "%.*s%s%s", before, text, to, text + before + strlen(from)));
    free(text);
    return out;
}

static void assert_damaged(const char *from, const char *to, const char *word)
{
    h3_manifest m;
    char *text = edited(from, to);
    assert_fails(parse(&m, text), H3_INTEGRITY, word);
    assert_non_null(strstr(h3_error_text(), "reference-manifest.json"));
    assert_true(m.files == NULL && m.tensors == NULL && m.fingerprint == NULL && m.model == NULL); /* nothing left behind */
    free(text);
}

static void test_each_field_damaged(void **state)
{
    (void)state;
    assert_damaged("\"schema\"", "\"schemas\"", "schemas");
    assert_damaged("h3-reference-manifest-v1", "h3-reference-manifest-v2", "version");
    assert_damaged("\"h3-reference-manifest-v1\"", "1", "schema");
    assert_damaged("\"plan_identity\": \"a", "\"plan_identity\": \"", "version");
    assert_damaged("\"plan_identity\": \"a", "\"plan_identity\": \"A", "version");
    assert_damaged("\"plan_identity\": \"" HASH_A "\"", "\"plan_identity\": null", "plan_identity");
    assert_damaged("\"fingerprint\": {", "\"fingerprint\": 1, \"x\": {", "x");
    assert_damaged("\"schema\": ", "\"schema\": \"h3-reference-manifest-v1\", \"schema\": ", "schema"); /* twice */
    assert_damaged("\"path\": \"data/a.h5\"", "\"path\": \"/data/a.h5\"", "/data/a.h5");
    assert_damaged("\"path\": \"data/a.h5\"", "\"path\": \"data/../../a.h5\"", "data/../../a.h5");
    assert_damaged("\"path\": \"data/a.h5\"", "\"path\": 7", "path");
    assert_damaged("\"path\": \"data/a.h5\"", "\"path\": \"data/b.h5\"", "twice");
    assert_damaged("\"path\": \"data/a.h5\"", "\"path\": \"data/z.h5\"", "not listed");
    assert_damaged("\"path\": \"data/a.h5\",", "\"path\": \"data/a.h5\", \"mode\": 7,", "mode");
    assert_damaged("\"size\": 10", "\"size\": -10", "size");
    assert_damaged("\"size\": 10", "\"size\": 1.5", "size");
    assert_damaged("\"size\": 10", "\"size\": 1e300", "size");
    assert_damaged("\"size\": 10,", "", "size");
    assert_damaged("\"sha256\": \"" HASH_A, "\"sha256\": \"" HASH_A "a", "data/a.h5");
    assert_damaged("\"sha256\": \"aa", "\"sha256\": \"gg", "data/a.h5");
    assert_damaged("\"sha256\": \"" HASH_A "\"", "\"sha256\": []", "sha256");
    assert_damaged("\"name\": \"s/bf16/out\"", "\"name\": \"s/fp32/out\"", "twice");
    assert_damaged("\"name\": \"s/bf16/out\",", "", "name");
    assert_damaged("\"name\": \"s/bf16/out\",", "\"name\": \"s/bf16/out\", \"norm\": 1,", "stored");
    assert_damaged("\"name\": \"s/bf16/out\",", "\"name\": \"s/bf16/out\", \"stored\": \"samples\",", "s/bf16/out");
    assert_damaged("\"name\": \"s/bf16/out\",", "\"name\": \"s/bf16/out\", \"stored\": \"all\", \"norm\": 1,", "s/bf16/out");
    assert_damaged("\"name\": \"s/bf16/out\",", "\"name\": \"s/bf16/out\", \"stored\": \"samples\", \"norm\": -1,", "s/bf16/out");
    assert_damaged("\"name\": \"s/bf16/out\",", "\"name\": \"s/bf16/out\", \"stored\": \"samples\", \"norm\": \"1\",", "s/bf16/out");
    assert_damaged("\"file\": \"data/a.h5\"", "\"file\": \"data/c.h5\"", "not listed");
    assert_damaged("\"file\": \"data/a.h5\",", "", "file");
    assert_damaged("\"digest\": \"aaaa", "\"digest\": \"aaa", "s/bf16/out");
    assert_damaged("\"digest\": \"" HASH_A "\"", "\"digest\": true", "digest");
    assert_damaged("\"files\": [", "\"files\": [3, ", "object");
    assert_damaged("\"tensors\": [", "\"tensors\": [[], ", "object");
    assert_damaged("\"tensors\": [", "\"tensors\": {\"a\": [", "");
}

static void test_empty_and_truncated(void **state)
{
    (void)state;
    h3_manifest m;
    char *text = printed();
    const size_t length = strlen(text);
    for (size_t cut = 0; cut < length - 2; cut++) { /* without its last brace it is nothing */
        if (h3_manifest_parse(&m, text, cut, "reference-manifest.json") == H3_OK) fail_msg("%zu of %zu bytes are a manifest", cut, length);
    }
    free(text);
    assert_fails(parse(&m, "{}"), H3_INTEGRITY, "schema");
    assert_fails(parse(&m, "[]"), H3_INTEGRITY, "");
    assert_damaged("\"tensors\": [", "\"tensors\": [], \"rest\": [", "rest");
}

static void test_long_names(void **state)
{
    (void)state;
    char name[600];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = 0;
    char *to;
    assert_good(h3_format(&to, "\"name\": \"%.240s\"", name));
    assert_damaged("\"name\": \"s/bf16/out\"", to, "malformed tensor");
    free(to);
    assert_good(h3_format(&to, "\"path\": \"%.200s\"", name));
    assert_damaged("\"path\": \"data/a.h5\"", to, "malformed file");
    free(to);
}

static h3_status compare_edited(const char *from, const char *to)
{
    h3_manifest pinned, made;
    char *pin = printed(), *text = edited(from, to);
    assert_good(parse(&pinned, pin));
    assert_good(parse(&made, text));
    h3_status status = h3_manifest_require_equal(&pinned, &made, "pinned.json");
    free(pin);
    free(text);
    h3_manifest_free(&pinned);
    h3_manifest_free(&made);
    return status;
}

static void test_pinned(void **state)
{
    (void)state;
    assert_good(compare_edited("data/a.h5", "data/a.h5"));
    assert_good(compare_edited("\"plan_identity\": \"a", "\"plan_identity\": \"b")); /* a pinned plan differs by its pins */
    assert_fails(compare_edited("\"libm\": \"2.36\"", "\"libm\": \"2.37\""), H3_INTEGRITY, "not comparable");
    assert_non_null(strstr(h3_error_text(), "libm \"2.36\", here it is \"2.37\""));
    assert_fails(compare_edited("\"libm\": \"2.36\"", "\"blas\": \"2.36\""), H3_INTEGRITY, "not comparable");
    assert_fails(compare_edited("\"libm\": \"2.36\"", "\"libm\": \"2.36\", \"gpu\": \"sm_90\""), H3_INTEGRITY, "not comparable");
    assert_fails(compare_edited("\"seed\": 0", "\"seed\": 1"), H3_INTEGRITY, "another model");
    assert_fails(compare_edited("\"digest\": \"a", "\"digest\": \"b"), H3_INTEGRITY, "s/bf16/out is not reproduced");
    assert_fails(compare_edited("\"name\": \"s/bf16/out\"", "\"name\": \"s/bf16/in\""), H3_INTEGRITY, "s/bf16/out is not reproduced");
    assert_fails(compare_edited("\"sha256\": \"a", "\"sha256\": \"b"), H3_INTEGRITY, "data/a.h5 is not reproduced");
    assert_fails(compare_edited("\"tensors\": [", "\"tensors\": [{\"name\": \"s/bf16/more\", \"file\": \"data/a.h5\", \"digest\": \"" HASH_A "\"}, "), H3_INTEGRITY,
                 "pins 2 tensors, this pass made 3");
    assert_fails(compare_edited("\"files\": [", "\"files\": [{\"path\": \"data/0.h5\", \"size\": 1, \"sha256\": \"" HASH_A "\"}, "), H3_INTEGRITY,
                 "pins 2 files, this pass made 3");
}

static void test_fingerprint(void **state)
{
    (void)state;
    h3_library provider;
    cJSON *own, *again, *empty = cJSON_CreateObject();
    assert_good(h3_library_open(&provider, "libh3_provider_cpu.so"));
    assert_good(h3_fingerprint(&own, &provider));
    assert_good(h3_fingerprint(&again, &provider));
    assert_good(h3_fingerprint_require(own, again, "thresholds.json"));
    static const char *const keys[] = {"instruction_set", "libm", "provider_libraries"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        assert_true(cJSON_IsString(cJSON_GetObjectItemCaseSensitive(again, keys[i])));
        cJSON_SetValuestring(cJSON_GetObjectItemCaseSensitive(again, keys[i]), "another");
        assert_fails(h3_fingerprint_require(own, again, "thresholds.json"), H3_INTEGRITY, keys[i]);
        assert_non_null(strstr(h3_error_text(), "thresholds.json is not comparable"));
        cJSON_Delete(again);
        assert_good(h3_fingerprint(&again, &provider));
    }
    assert_fails(h3_fingerprint_require(empty, own, "x"), H3_INTEGRITY, "not comparable");
    assert_fails(h3_fingerprint_require(own, empty, "x"), H3_INTEGRITY, "not comparable");
    cJSON_Delete(own);
    cJSON_Delete(again);
    cJSON_Delete(empty);
    h3_library_close(&provider);
}

static void test_paths(void **state)
{
    (void)state;
    char path[200], name[300];
    assert_good(h3_reference_path(path, "s78", H3_F32, 7));
    assert_string_equal(path, "data/reference/s78/fp32/block-007.h5");
    assert_good(h3_reference_path(path, "s78", H3_BF16, H3_INPUT_SIDE));
    assert_string_equal(path, "data/reference/s78/bf16/boundary-input.h5");
    assert_good(h3_reference_path(path, "s78", H3_BF16, H3_OUTPUT_SIDE));
    assert_string_equal(path, "data/reference/s78/bf16/boundary-output.h5");
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = 0;
    assert_fails(h3_reference_path(path, name, H3_F32, 0), H3_USAGE, "too long");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_deterministic_text), cmocka_unit_test(test_duplicates),
        cmocka_unit_test(test_each_field_damaged), cmocka_unit_test(test_empty_and_truncated), cmocka_unit_test(test_long_names),
        cmocka_unit_test(test_pinned), cmocka_unit_test(test_fingerprint), cmocka_unit_test(test_paths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
