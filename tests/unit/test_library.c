/*
 * Operator libraries: what is refused, what a library may not do to the process, and bindings. H3_LIB finds the shipped libraries,
 * H3_BUILD the ones that are wrong on purpose (tests/candidates).
 */
#include "golden_files.h"

#include <immintrin.h>

#include "base/memory.h"
#include "graph/engine.h"
#include "store/publish.h"

static char folder[32] = "/tmp/h3-library-XXXXXX";

static const char *built(const char *name)
{
    static char path[H3_PATH_MAX];
    const char *build = getenv("H3_BUILD");
    snprintf(path, sizeof path, "%s/tests/%s", build ? build : "build", name);
    return path;
}

/* A copy under a name of its own: start-up code runs once for each file. */
static const char *fresh_copy(const char *name)
{
    static char path[H3_PATH_MAX];
    static int number;
    char *image;
    size_t size;
    snprintf(path, sizeof path, "%s/%d.so", folder, number++);
    assert_good(h3_file_read(&image, &size, built(name), 1 << 28, H3_ENVIRONMENT));
    assert_good(h3_publish(path, image, size));
    free(image);
    return path;
}

static int setup(void **state)
{
    (void)state;
    return mkdtemp(folder) == NULL;
}

static int teardown(void **state)
{
    (void)state;
    return h3_remove_tree(folder) != H3_OK;
}

/* What the BF16 provider makes of denormal numbers: flush-to-zero would show in every one of them. */
static void provider_bytes(const h3_library *provider, uint16_t out[64])
{
    const h3_config config = {.hidden_size = 64};
    const h3_operator *op;
    uint16_t a[64], b[64];
    h3_engine engine;
    h3_engine_init(&engine, &config, h3_device_cpu(), provider);
    assert_good(h3_library_find(&op, provider, "add", NULL));
    for (int i = 0; i < 64; i++) {
        a[i] = (uint16_t)(1 + i); /* 2^-133 and on: denormal */
        b[i] = (uint16_t)(2 * i);
    }
    h3_call call = h3_engine_new_call(&engine);
    call.in[0] = h3_tensor_view(a, H3_BF16, 1, H3_SHAPE(64));
    call.in[1] = h3_tensor_view(b, H3_BF16, 1, H3_SHAPE(64));
    call.out = h3_tensor_view(out, H3_BF16, 1, H3_SHAPE(64));
    assert_good(h3_engine_call(&engine, op, &call, H3_FORWARD));
    h3_engine_free(&engine);
}

static void test_fast_math_leaves_the_provider_alone(void **state)
{
    (void)state;
    h3_library provider, library;
    uint16_t before[64], after[64], flushed[64];
    assert_good(h3_library_open(&provider, "libh3_provider_cpu.so"));
    provider_bytes(&provider, before);
    for (int i = 0; i < 64; i++) assert_int_equal(before[i], 1 + 3 * i); /* exact sums */
    const uint64_t fp = h3_fp_state();
    const unsigned control = _mm_getcsr() & 0xffc0u;
    assert_fails(h3_library_open(&library, fresh_copy("libfastmath.so")), H3_FAILED, "fast math");
    assert_null(library.handle);
    assert_int_equal(_mm_getcsr() & 0xffc0u, control);
    assert_true(h3_fp_state() == fp);
    provider_bytes(&provider, after);
    assert_memory_equal(before, after, sizeof before);
    /* and these bytes would tell: with flush-to-zero they are others */
    _mm_setcsr(_mm_getcsr() | 0x8040u);
    provider_bytes(&provider, flushed);
    h3_fp_restore(fp);
    assert_memory_not_equal(before, flushed, sizeof before);
    h3_library_close(&provider);
}

static void assert_refused(const char *how, h3_status status, const char *word)
{
    h3_library library;
    const uint64_t fp = h3_fp_state();
    setenv("H3_BROKEN", how, 1);
    assert_fails(h3_library_open(&library, fresh_copy("libbroken.so")), status, word);
    assert_true(h3_fp_state() == fp);
    assert_null(library.handle);
    unsetenv("H3_BROKEN");
}

static void test_refusals(void **state)
{
    (void)state;
    assert_refused("interface", H3_USAGE, "interface version 2, this program has 1");
    assert_refused("size", H3_USAGE, "interface version");
    assert_refused("null", H3_USAGE, "returned nothing");
    assert_refused("fields", H3_USAGE, "fill every field of h3_operator_library");
    assert_refused("operator", H3_USAGE, "operator 0 is incomplete");
    assert_refused("label", H3_USAGE, "has label \"best\"");
    assert_refused("flags", H3_FAILED, "fast math");
    assert_refused("fast", H3_FAILED, "fast math");
    assert_refused("load", H3_FAILED, "control state at load");
    assert_refused("rounding", H3_FAILED, "control state at load");
    assert_refused("entry", H3_FAILED, "control state in its entry point");
}

static void test_what_is_no_library(void **state)
{
    (void)state;
    h3_library library;
    char path[H3_PATH_MAX];
    assert_fails(h3_library_open(&library, built("libno_symbol.so")), H3_USAGE, "exports no h3_operator_library_get");
    assert_fails(h3_library_open(&library, "libh3_nowhere.so"), H3_FAILED, "is unavailable");
    snprintf(path, sizeof path, "%s/text.so", folder);
    assert_good(h3_publish(path, "not a library", 13));
    assert_fails(h3_library_open(&library, path), H3_FAILED, "unavailable");
    assert_good(h3_publish(path, "", 0));
    assert_fails(h3_library_open(&library, path), H3_FAILED, "unavailable");
}

static void test_good_library(void **state)
{
    (void)state;
    h3_library library;
    const h3_operator *op = NULL;
    cJSON *identity;
    char sha256[H3_SHA256_HEX], path[H3_PATH_MAX];
    snprintf(path, sizeof path, "%s", fresh_copy("libbroken.so")); /* nothing is wrong with it unless asked for */
    assert_good(h3_library_open(&library, path));
    assert_good(h3_sha256_file(sha256, path, NULL, H3_FAILED));
    assert_string_equal(library.sha256, sha256);
    assert_good(h3_library_find(&op, &library, "norm1", NULL));
    assert_string_equal(op->name, "broken_norm1");
    assert_good(h3_library_find(&op, &library, "norm1", "broken_norm1"));
    assert_fails(h3_library_find(&op, &library, "norm1", "better_norm1"), H3_USAGE, "no operator \"better_norm1\" for node norm1");
    assert_fails(h3_library_find(&op, &library, "norm2", NULL), H3_FAILED, "node norm2 is unavailable");
    assert_good(h3_library_identity(&library, &identity));
    static const char *const keys[] = {"name", "revision", "compiler", "flags", "architectures", "sha256"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) assert_true(cJSON_IsString(cJSON_GetObjectItemCaseSensitive(identity, keys[i])));
    assert_true(cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(identity, "dirty")));
    cJSON_Delete(identity);
    h3_library_close(&library);
}

static h3_status bindings(h3_bindings *out, const char *text, int available)
{
    cJSON *json;
    assert_good(h3_json_parse(&json, text, strlen(text), "bindings", H3_USAGE));
    h3_status status = available ? h3_bindings_open_available(out, json, "plan") : h3_bindings_open(out, json, "plan");
    cJSON_Delete(json);
    return status;
}

static void test_bindings(void **state)
{
    (void)state;
    h3_bindings b;
    char text[2 * H3_PATH_MAX];
    assert_good(bindings(&b, "{\"*\": {\"library\": \"libh3_candidate_cpu.so\"}}", 0));
    assert_int_equal(b.library_count, 1);
    for (int32_t node = 0; node < H3_NODE_COUNT; node++) assert_string_equal(b.operators[node]->node, h3_nodes[node].name);
    h3_bindings_close(&b);
    snprintf(text, sizeof text, "{\"*\": {\"library\": \"libh3_candidate_cpu.so\"}, \"norm1\": {\"library\": \"%s\", \"operator\": \"broken_norm1\"}}",
             built("libbroken.so"));
    assert_good(bindings(&b, text, 0));
    assert_int_equal(b.library_count, 2);
    assert_string_equal(b.operators[H3_NODE_NORM1]->name, "broken_norm1");
    assert_int_equal(b.library_of[H3_NODE_NORM1], 1);
    assert_int_equal(b.library_of[H3_NODE_NORM2], 0);
    h3_bindings_close(&b);
}

static void test_wrong_bindings(void **state)
{
    (void)state;
    h3_bindings b;
    assert_fails(bindings(&b, "[]", 0), H3_USAGE, "must be an object");
    assert_fails(bindings(&b, "{}", 0), H3_USAGE, "no binding for node adaln_projection");
    assert_fails(bindings(&b, "{\"norm3\": {\"library\": \"x\"}}", 0), H3_USAGE, "\"norm3\", which is no node");
    assert_fails(bindings(&b, "{\"*\": \"libh3_candidate_cpu.so\"}", 0), H3_USAGE, "the binding of \"*\" must be");
    assert_fails(bindings(&b, "{\"*\": {}}", 0), H3_USAGE, "library");
    assert_fails(bindings(&b, "{\"*\": {\"library\": 3}}", 0), H3_USAGE, "library");
    assert_fails(bindings(&b, "{\"*\": {\"library\": \"libh3_candidate_cpu.so\", \"speed\": 1}}", 0), H3_USAGE, "speed");
    assert_fails(bindings(&b, "{\"*\": {\"library\": \"libh3_candidate_cpu.so\", \"operator\": \"cpu_norm1\"}}", 1), H3_USAGE, "no operator \"cpu_norm1\"");
    assert_fails(bindings(&b, "{\"*\": {\"library\": \"libh3_nowhere.so\"}}", 0), H3_FAILED, "unavailable");
}

/* Every node without an operator is named, and why the first one has none. */
static void test_unavailable_nodes(void **state)
{
    (void)state;
    h3_bindings b;
    char text[2 * H3_PATH_MAX], all[512] = "; unavailable nodes: ";
    for (int32_t node = 0; node < H3_NODE_COUNT; node++) {
        strcat(all, node > 0 ? ", " : "");
        strcat(all, h3_nodes[node].name);
    }
    assert_good(bindings(&b, "{\"*\": {\"library\": \"libh3_nowhere.so\"}}", 1));
    assert_non_null(strstr(h3_error_text(), "libh3_nowhere.so is unavailable"));
    assert_string_equal(strstr(h3_error_text(), "; unavailable nodes"), all);
    for (int32_t node = 0; node < H3_NODE_COUNT; node++) assert_null(b.operators[node]);
    h3_bindings_close(&b);
    snprintf(text, sizeof text, "{\"*\": {\"library\": \"libh3_candidate_cpu.so\"}, \"rope_q\": {\"library\": \"%s\"}, \"swiglu\": {\"library\": \"libh3_nowhere.so\"}}",
             built("libbroken.so"));
    assert_good(bindings(&b, text, 1));
    assert_non_null(strstr(h3_error_text(), "node rope_q is unavailable"));
    assert_string_equal(strstr(h3_error_text(), "; unavailable"), "; unavailable nodes: rope_q, swiglu");
    assert_non_null(b.operators[H3_NODE_ROPE_K]);
    assert_null(b.operators[H3_NODE_SWIGLU]);
    h3_bindings_close(&b);
}

/* Where no node is named, a library's own folder is found through $H3_LIB. */
static void test_search_path(void **state)
{
    (void)state;
    h3_library library;
    char *before = getenv("H3_LIB") ? strdup(getenv("H3_LIB")) : NULL, text[3 * H3_PATH_MAX];
    snprintf(text, sizeof text, "/nonexistent::%s/tests", getenv("H3_BUILD") ? getenv("H3_BUILD") : "build");
    setenv("H3_LIB", text, 1);
    assert_good(h3_library_open(&library, "libbroken.so"));
    h3_library_close(&library);
    setenv("H3_LIB", "/nonexistent", 1);
    assert_fails(h3_library_open(&library, "libbroken.so"), H3_FAILED, "libbroken.so is unavailable");
    if (before != NULL) setenv("H3_LIB", before, 1);
    else unsetenv("H3_LIB");
    free(before);
}

/* ---- calls: the engine's guard ---- */

static int spoil_state(h3_call *call)
{
    (void)call;
    _mm_setcsr(_mm_getcsr() | 0x8040u);
    return 0;
}

static int behave(h3_call *call)
{
    snprintf(call->report.kernel, sizeof call->report.kernel, "none");
    return 0;
}

static int fail_quietly(h3_call *call)
{
    memset(call->message, 'x', sizeof call->message); /* no end */
    return 7;
}

static int plan_nothing(const h3_call *call, h3_call_plan *plan)
{
    (void)call;
    (void)plan;
    return 0;
}

static int plan_too_much(const h3_call *call, h3_call_plan *plan)
{
    (void)call;
    plan->saved_count = H3_MAX_SAVED + 1;
    return 0;
}

static int plan_badly(const h3_call *call, h3_call_plan *plan)
{
    (void)plan;
    _mm_setcsr(_mm_getcsr() | 0x2000u);
    return call == NULL;
}

static void test_calls_are_guarded(void **state)
{
    (void)state;
    const h3_config config = {.hidden_size = 8};
    const uint64_t fp = h3_fp_state();
    h3_operator op = {.node = "norm1", .name = "test", .plan = plan_nothing, .forward = spoil_state, .backward = behave};
    h3_engine engine;
    h3_engine_init(&engine, &config, h3_device_cpu(), NULL);
    h3_call call = h3_engine_new_call(&engine);
    assert_fails(h3_engine_call(&engine, &op, &call, H3_FORWARD), H3_FAILED, "changed the floating-point control state in forward");
    assert_true(h3_fp_state() == fp);
    assert_good(h3_engine_call(&engine, &op, &call, H3_BACKWARD));
    op.forward = fail_quietly;
    assert_fails(h3_engine_call(&engine, &op, &call, H3_FORWARD), H3_FAILED, "operator test failed in forward: xxx");
    op.plan = plan_badly;
    assert_fails(h3_engine_call(&engine, &op, &call, H3_FORWARD), H3_FAILED, "control state in plan");
    assert_true(h3_fp_state() == fp);
    op.plan = plan_too_much;
    assert_fails(h3_engine_call(&engine, &op, &call, H3_FORWARD), H3_FAILED, "saved tensors");
    op = (h3_operator){.node = "norm1", .name = "test", .plan = plan_nothing, .forward = behave};
    assert_fails(h3_engine_call(&engine, &op, &call, H3_BACKWARD), H3_FAILED, "has no backward");
    h3_engine_free(&engine);
}

int main(void)
{
    unsetenv("H3_BROKEN");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fast_math_leaves_the_provider_alone), cmocka_unit_test(test_refusals), cmocka_unit_test(test_what_is_no_library),
        cmocka_unit_test(test_good_library), cmocka_unit_test(test_bindings), cmocka_unit_test(test_wrong_bindings),
        cmocka_unit_test(test_unavailable_nodes), cmocka_unit_test(test_search_path), cmocka_unit_test(test_calls_are_guarded),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
