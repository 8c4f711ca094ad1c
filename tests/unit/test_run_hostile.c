/* A run directory that somebody else prepared: every malformed listing and every path trick is a named error. */
#include "run_chain.h"

#include <fcntl.h>

#define STAGE "run/stages/threshold_freeze/stage.json"
#define HASH "0123456789012345678901234567890123456789012345678901234567890123"

/* A stage.json with one part replaced (NULL: as it should be). */
static char *compose(const char *needs_text, const char *inputs, const char *outputs)
{
    char *text, plan[H3_SHA256_HEX];
    assert_good(h3_sha256(plan, chain_plan, sizeof chain_plan - 1));
    assert_good(h3_format(
        &text,
        "{\"schema\": \"h3-stage-v1\", \"stage\": \"threshold_freeze\", \"verdict\": \"passed\", \"plan_sha256\": \"%s\","
        "\"needs\": %s, \"inputs\": %s, \"outputs\": %s, \"build\": {}}",
        plan, needs_text ? needs_text : "[]", inputs ? inputs : "[]", outputs ? outputs : "[]"));
    return text;
}

static void refuses_text(const char *text, size_t size, const char *problem)
{
    write_file(in_scratch(STAGE), text, size);
    assert_fails(needs("candidate_gate", "threshold_freeze", NULL), H3_INTEGRITY, problem);
    assert_non_null(strstr(h3_error_text(), "threshold_freeze"));
    h3_status status = run_stage("threshold_freeze", "x", NULL); /* it is read when it is set aside, too */
    if (status != H3_INTEGRITY) fail_msg("status %d for %s", status, text);
    assert_non_null(strstr(h3_error_text(), STAGE));
}

static void refuses_parts(const char *needs_text, const char *inputs, const char *outputs, const char *problem)
{
    char *text = compose(needs_text, inputs, outputs);
    refuses_text(text, strlen(text), problem);
    free(text);
}

static void the_composed_listing_is_read(void **state)
{
    (void)state;
    run_chain(2);
    char *text = compose("[{\"stage\": \"reference_pass\", \"verdict\": \"passed\"}]", "[]",
                         "[{\"path\": \"a\", \"size\": 1, \"sha256\": \"" HASH "\"}]");
    write_text(in_scratch(STAGE), text);
    assert_fails(needs("candidate_gate", "threshold_freeze", NULL), H3_INTEGRITY, "SHA-256");
    write_sealed(in_scratch(STAGE), text);
    free(text);
    assert_good(needs("candidate_gate", "threshold_freeze", NULL));
}

static void malformed_listings_are_refused(void **state)
{
    (void)state;
    run_chain(2);
    refuses_text("", 0, "empty");
    refuses_text("{", 1, "JSON");
    refuses_text("[]", 2, "object");
    refuses_text("{}", 2, "schema");
    refuses_text("null\0x", 6, "JSON");
    char deep[20000];
    memset(deep, '[', sizeof deep);
    refuses_text(deep, sizeof deep, "JSON");
    size_t size;
    assert_good(h3_remove_tree(run_folder()));
    run_chain(2);
    char *good = read_file(in_scratch(STAGE), &size), *bad = malloc(size + 64);
    static const char *const changes[][3] = {
        {"h3-stage-v1", "h3-stage-v2", "schema"},
        {"threshold_freeze", "candidate_gate", "candidate_gate"},
        {"\"passed\"", "\"perfect\"", "verdict"},
        {"\"build\": {", "\"built\": {", "built"},
        {"\"build\": {", "\"build\": [], \"x\": {", "\"x\""},
        {"\"inputs\": [", "\"inputs\": 1, \"needs\": [", "needs"},
    };
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        char *at = strstr(good, changes[i][0]);
        assert_non_null(at);
        int length = sprintf(bad, "%.*s%s%s", (int)(at - good), good, changes[i][1], at + strlen(changes[i][0]));
        refuses_text(bad, (size_t)length, changes[i][2]);
    }
    free(good), free(bad);
}

static void hostile_lists_are_refused(void **state)
{
    static const char *const paths[] = {"/etc/passwd", "../outside", "data/../../outside", "", "a//b", "./a",
                                        "a/",          "a\\\\b",     "a\\u0001b"};
    char list[2048], longer[700];
    (void)state;
    run_chain(2);
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        snprintf(list, sizeof list, "[{\"path\": \"%s\", \"size\": 1, \"sha256\": \"" HASH "\"}]", paths[i]);
        refuses_parts(NULL, list, NULL, "is refused");
        refuses_parts(NULL, NULL, list, "is refused");
    }
    memset(longer, 'a', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    snprintf(list, sizeof list, "[{\"path\": \"%s\", \"size\": 1, \"sha256\": \"" HASH "\"}]", longer);
    refuses_parts(NULL, NULL, list, "511");
    static const char *const outputs[] = {"plan.json", "stages/reference_pass/stage.json", "attempts/x",
                                          "stages/threshold_freeze/.lock", "data/.tmp-1-2"};
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++) {
        snprintf(list, sizeof list, "[{\"path\": \"%s\", \"size\": 1, \"sha256\": \"" HASH "\"}]", outputs[i]);
        refuses_parts(NULL, NULL, list, "is not a path that threshold_freeze may write");
    }
    refuses_parts(NULL, "[{\"path\": \"a\", \"size\": -1, \"sha256\": \"" HASH "\"}]", NULL, "size");
    refuses_parts(NULL, "[{\"path\": \"a\", \"size\": 1.5, \"sha256\": \"" HASH "\"}]", NULL, "size");
    refuses_parts(NULL, "[{\"path\": \"a\", \"size\": 1e30, \"sha256\": \"" HASH "\"}]", NULL, "size");
    refuses_parts(NULL, "[{\"path\": \"a\", \"size\": 1, \"sha256\": \"0123\"}]", NULL, "malformed");
    refuses_parts(NULL, "[{\"path\": \"a\", \"size\": 1}]", NULL, "sha256");
    refuses_parts(NULL, "[{\"path\": \"a\", \"size\": 1, \"sha256\": \"" HASH "\", \"more\": 1}]", NULL, "more");
    refuses_parts(NULL, "[1]", NULL, "object");
    refuses_parts(NULL, "{}", NULL, "inputs");
    const char *twice =
        "[{\"path\": \"a\", \"size\": 1, \"sha256\": \"" HASH "\"}, {\"path\": \"a\", \"size\": 1, \"sha256\": \"" HASH "\"}]";
    const char *unsorted =
        "[{\"path\": \"b\", \"size\": 1, \"sha256\": \"" HASH "\"}, {\"path\": \"a\", \"size\": 1, \"sha256\": \"" HASH "\"}]";
    refuses_parts(NULL, NULL, twice, "listed twice");
    refuses_parts(NULL, NULL, unsorted, "out of order");
}

/* A circle of needs would never end: only earlier stages can be needed. */
static void hostile_needs_are_refused(void **state)
{
    (void)state;
    run_chain(2);
    refuses_parts("[{\"stage\": \"candidate_gate\", \"verdict\": \"passed\"}]", NULL, NULL, "is not a stage that it can need");
    refuses_parts("[{\"stage\": \"threshold_freeze\", \"verdict\": \"passed\"}]", NULL, NULL, "is not a stage that it can need");
    refuses_parts("[{\"stage\": \"nobody\", \"verdict\": \"passed\"}]", NULL, NULL, "is not a stage that it can need");
    refuses_parts("[{\"stage\": \"reference_pass\", \"verdict\": \"fine\"}]", NULL, NULL, "verdict");
    refuses_parts(
        "[{\"stage\": \"reference_pass\", \"verdict\": \"passed\"}, {\"stage\": \"reference_pass\", \"verdict\": \"passed\"}]",
        NULL, NULL, "out of order");
    refuses_parts("[{\"stage\": \"reference_pass\"}]", NULL, NULL, "verdict");
    refuses_parts("[\"reference_pass\"]", NULL, NULL, "object");
}

static void every_flip_in_a_listing_is_refused(void **state)
{
    (void)state;
    size_t size;
    run_chain(2);
    char *bytes = read_file(in_scratch(STAGE), &size);
    for (size_t i = 0; i < size; i++) {
        char kept = bytes[i];
        cJSON *json = NULL;
        bytes[i] = (char)(kept ^ (1 << i % 7));
        write_file(in_scratch(STAGE), bytes, size);
        assert_fails(h3_run_stage_read(&json, run_folder(), "threshold_freeze"), H3_INTEGRITY, STAGE);
        assert_null(json);
        bytes[i] = kept;
    }
    for (size_t length = 0; length < size; length++) {
        cJSON *json = NULL;
        write_file(in_scratch(STAGE), bytes, length);
        assert_fails(h3_run_stage_read(&json, run_folder(), "threshold_freeze"), H3_INTEGRITY, STAGE);
    }
    free(bytes);
}

/* Numbers that a double cannot hold: the hash is of the text and not of what it was read as. */
static void the_hash_in_a_listing_is_of_its_text(void **state)
{
    (void)state;
    h3_run run;
    cJSON *json, *build = cJSON_CreateObject();
    h3_json_add_integer(build, "seed", INT64_MAX);
    assert_good(h3_run_open(&run, run_folder(), "reference_pass", chain_plan, sizeof chain_plan - 1));
    assert_good(h3_run_begin(&run));
    assert_good(h3_run_finish(&run, "passed", build));
    h3_run_close(&run);
    assert_good(h3_run_stage_read(&json, run_folder(), "reference_pass"));
    assert_int_equal(strlen(cJSON_GetObjectItem(json, "sha256")->valuestring), 64);
    cJSON_Delete(json);
}

/* Something else than a file, at the place of each file that is read. */
static void refuses_what_is_no_file(const char *path, h3_status (*read)(void), const char *named)
{
    char kept[H3_PATH_MAX * 2];
    snprintf(kept, sizeof kept, "%s", in_scratch("kept"));
    assert_int_equal(rename(path, kept), 0);
    assert_int_equal(mkdir(path, 0777), 0);
    assert_fails(read(), H3_INTEGRITY, named);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(symlink(kept, path), 0);
    assert_fails(read(), H3_INTEGRITY, named);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("/dev/zero", path), 0);
    assert_fails(read(), H3_INTEGRITY, named);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0666), 0);
    assert_fails(read(), H3_INTEGRITY, named);
    assert_int_equal(unlink(path), 0);
    int holes = open(path, O_WRONLY | O_CREAT | O_EXCL, 0666);
    assert_true(holes >= 0);
    assert_int_equal(ftruncate(holes, (off_t)1 << 40), 0);
    close(holes);
    assert_fails(read(), H3_INTEGRITY, named);
    assert_int_equal(rename(kept, path), 0);
    assert_good(read());
}

static h3_status read_threshold_freeze(void) { return needs("candidate_gate", "threshold_freeze", NULL); }
static h3_status read_outputs(void) { return run_stage("threshold_freeze", "first", NULL); }
static h3_status audit(void)
{
    int64_t files;
    return h3_run_audit(run_folder(), &files);
}

static void what_is_no_file_is_refused(void **state)
{
    (void)state;
    char path[H3_PATH_MAX * 2];
    run_chain(2);
    snprintf(path, sizeof path, "%s", in_scratch(STAGE));
    refuses_what_is_no_file(path, read_threshold_freeze, STAGE);
    refuses_what_is_no_file(path, audit, STAGE);
    snprintf(path, sizeof path, "%s", in_run("plan.json"));
    refuses_what_is_no_file(path, read_threshold_freeze, "plan.json");
    snprintf(path, sizeof path, "%s", in_run("data/reference/block0.h5"));
    refuses_what_is_no_file(path, audit, "block0.h5");
    refuses_what_is_no_file(path, read_outputs, "block0.h5");
}

static void symlinks_on_the_way_are_refused(void **state)
{
    (void)state;
    char to[H3_PATH_MAX];
    run_chain(2);
    assert_int_equal(rename(in_run("data"), in_scratch("moved")), 0);
    assert_int_equal(symlink("../moved", in_run("data")), 0);
    assert_fails(run_stage("threshold_freeze", "x", NULL), H3_INTEGRITY, "data");
    assert_fails(audit(), H3_INTEGRITY, "data");
    assert_fails(h3_run_place(to, run_folder(), "data/new/file"), H3_INTEGRITY, "a symlink is not followed");
    assert_fails(h3_run_locate(to, run_folder(), "data/reference/block0.h5"), H3_INTEGRITY, "a symlink is not followed");
    assert_false(is_there(in_scratch("moved/new")));
    assert_int_equal(unlink(in_run("data")), 0);
    assert_int_equal(rename(in_scratch("moved"), in_run("data")), 0);
    assert_good(h3_run_locate(to, run_folder(), "data/reference/block0.h5"));
    assert_good(h3_run_place(to, run_folder(), "data/new/file"));
    assert_true(is_there(in_scratch("run/data/new")));
    assert_int_equal(rename(in_run("stages"), in_scratch("moved")), 0);
    assert_int_equal(symlink("../moved", in_run("stages")), 0);
    assert_fails(read_threshold_freeze(), H3_INTEGRITY, "stages");
    assert_int_equal(unlink(in_run("stages")), 0);
    assert_int_equal(rename(in_scratch("moved"), in_run("stages")), 0);
    assert_int_equal(symlink("..", in_run("attempts")), 0);
    assert_fails(read_threshold_freeze(), H3_INTEGRITY, "attempts");
}

/* Setting an attempt aside moves files, never what lies behind a symlink in their place. */
static void no_symlink_is_set_aside(void **state)
{
    (void)state;
    run_chain(2);
    assert_int_equal(rename(in_run("thresholds.json"), in_scratch("elsewhere.json")), 0);
    assert_int_equal(symlink("../elsewhere.json", in_run("thresholds.json")), 0);
    assert_fails(run_stage("threshold_freeze", "x", NULL), H3_INTEGRITY, "thresholds.json is not a regular file");
    assert_true(is_there(in_run("thresholds.json")));
    assert_true(is_there(in_scratch("elsewhere.json")));
    assert_true(is_there(in_scratch(STAGE)));
}

/* The run folder itself may be a link: runs are often kept on a larger disk. */
static void the_run_folder_may_be_a_symlink(void **state)
{
    (void)state;
    assert_int_equal(mkdir(in_scratch("elsewhere"), 0777), 0);
    assert_int_equal(symlink("elsewhere", in_scratch("run")), 0);
    run_chain(CHAIN_LENGTH);
    assert_true(is_there(in_scratch("elsewhere/plan.json")));
    assert_good(audit());
}

static void the_audit_finds_what_is_wrong(void **state)
{
    (void)state;
    int64_t files;
    assert_fails(h3_run_audit(in_scratch("absent"), &files), H3_INTEGRITY, "plan.json");
    assert_int_equal(mkdir(in_scratch("run"), 0777), 0);
    write_text(in_run("plan.json"), chain_plan);
    assert_fails(audit(), H3_INTEGRITY, "no stage has finished");
    run_chain(CHAIN_LENGTH);
    assert_good(audit());
    write_text(in_run("data/extra"), "x");
    assert_fails(audit(), H3_INTEGRITY, "data/extra is not listed by any stage");
    assert_int_equal(rename(in_run("data/extra"), in_run("data/.tmp-1-2")), 0);
    assert_good(audit());
    assert_int_equal(symlink("reference/block0.h5", in_run("data/link")), 0);
    assert_fails(audit(), H3_INTEGRITY, "data/link is not a regular file");
    assert_int_equal(unlink(in_run("data/link")), 0);
    assert_int_equal(mkdir(in_run("stages/strange"), 0777), 0);
    assert_fails(audit(), H3_INTEGRITY, "stages/strange is not a stage");
    assert_int_equal(rmdir(in_run("stages/strange")), 0);
    write_text(in_run("plan.json"), "{}");
    assert_fails(audit(), H3_INTEGRITY, "another plan");
    write_text(in_run("plan.json"), chain_plan);
    write_text(in_run("comparison.json"), "first of comparison.jso?\n");
    assert_fails(audit(), H3_INTEGRITY, "comparison.json");
    write_text(in_run("comparison.json"), "first of comparison.json\n");
    assert_good(audit());
}

static void the_audit_finds_a_file_with_two_writers(void **state)
{
    (void)state;
    h3_run run;
    run_chain(1);
    assert_good(h3_run_open(&run, run_folder(), "diagnose", chain_plan, sizeof chain_plan - 1));
    assert_good(h3_run_begin(&run));
    assert_good(put_output(&run, "data/reference/block0.h5", "first of data/reference/block0.h5\n"));
    assert_good(h3_run_finish(&run, "passed", NULL));
    h3_run_close(&run);
    assert_fails(audit(), H3_INTEGRITY, "data/reference/block0.h5 is listed by two stages");
}

#define SCRATCH_TEST(test) cmocka_unit_test_setup_teardown(test, make_scratch, remove_scratch)

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCRATCH_TEST(the_composed_listing_is_read),
        SCRATCH_TEST(malformed_listings_are_refused),
        SCRATCH_TEST(hostile_lists_are_refused),
        SCRATCH_TEST(hostile_needs_are_refused),
        SCRATCH_TEST(every_flip_in_a_listing_is_refused),
        SCRATCH_TEST(the_hash_in_a_listing_is_of_its_text),
        SCRATCH_TEST(what_is_no_file_is_refused),
        SCRATCH_TEST(symlinks_on_the_way_are_refused),
        SCRATCH_TEST(no_symlink_is_set_aside),
        SCRATCH_TEST(the_run_folder_may_be_a_symlink),
        SCRATCH_TEST(the_audit_finds_what_is_wrong),
        SCRATCH_TEST(the_audit_finds_a_file_with_two_writers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
