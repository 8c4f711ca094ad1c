/* The run directory: order, staleness, attempts, locks, killed stages. */
#include "run_chain.h"

#include <fcntl.h>
#include <signal.h>

static void a_chain_passes(void **state)
{
    (void)state;
    int descriptors = count_descriptors();
    int64_t files;
    run_chain(CHAIN_LENGTH);
    assert_good(h3_run_audit(run_folder(), &files));
    assert_int_equal(files, 1 + 6 + 9); /* plan, stages, outputs */
    assert_int_equal(count_descriptors(), descriptors);
    assert_false(is_there(in_run("attempts")));
}

static void stage_json_says_what_was_read_and_written(void **state)
{
    (void)state;
    cJSON *json;
    const cJSON *inputs, *outputs, *build, *listed;
    char text[H3_SHA256_HEX];
    run_chain(2);
    assert_good(h3_run_stage_read(&json, run_folder(), "threshold_freeze"));
    assert_string_equal(cJSON_GetObjectItem(json, "verdict")->valuestring, "passed");
    assert_good(h3_sha256(text, chain_plan, sizeof chain_plan - 1));
    assert_string_equal(cJSON_GetObjectItem(json, "plan_sha256")->valuestring, text);
    inputs = cJSON_GetObjectItem(json, "inputs"), outputs = cJSON_GetObjectItem(json, "outputs"),
    build = cJSON_GetObjectItem(json, "build");
    assert_int_equal(cJSON_GetArraySize(inputs), 3);
    listed = cJSON_GetArrayItem(inputs, 2);
    assert_string_equal(cJSON_GetObjectItem(listed, "path")->valuestring, "reference-manifest.json");
    assert_good(h3_sha256(text, "first of reference-manifest.json\n", 33));
    assert_string_equal(cJSON_GetObjectItem(listed, "sha256")->valuestring, text);
    assert_int_equal(cJSON_GetObjectItem(listed, "size")->valueint, 33);
    assert_int_equal(cJSON_GetArraySize(outputs), 1);
    assert_string_equal(cJSON_GetObjectItem(build, "revision")->valuestring, "abc");
    cJSON_Delete(json);
    assert_fails(h3_run_stage_read(&json, run_folder(), "candidate_gate"), H3_INTEGRITY, "run h3_candidate_gate");
    assert_null(json);
    assert_fails(h3_run_stage_read(&json, run_folder(), "no_stage"), H3_USAGE, "no_stage");
}

static void out_of_order_is_refused(void **state)
{
    (void)state;
    for (size_t i = 1; i < CHAIN_LENGTH; i++) {
        assert_fails(run_stage(chain[i].stage, "x", NULL), H3_INTEGRITY, "has not finished");
        assert_false(is_there(in_run(chain[i].outputs[0])));
    }
    assert_fails(run_stage("threshold_freeze", "x", NULL), H3_INTEGRITY, "run h3_reference_pass");
    run_chain(1);
    assert_fails(run_stage("candidate_gate", "x", NULL), H3_INTEGRITY, "run h3_threshold_freeze");
    assert_fails(run_stage("compare", "x", NULL), H3_INTEGRITY, "run h3_generate --side provider");
    assert_fails(needs("threshold_freeze", "candidate_gate", NULL), H3_USAGE, "cannot need"); /* no stage needs a later one */
    assert_fails(needs("threshold_freeze", "threshold_freeze", NULL), H3_USAGE, "cannot need");
    assert_fails(needs("threshold_freeze", "nobody", NULL), H3_USAGE, "cannot need");
}

static void what_did_not_pass_is_refused(void **state)
{
    (void)state;
    assert_good(run_stage("reference_pass", "x", "failed"));
    assert_fails(run_stage("threshold_freeze", "x", NULL), H3_INTEGRITY,
                 "reference_pass did not pass (failed); correct the cause and rerun h3_reference_pass");
    run_chain(3);
    assert_good(run_stage("candidate_gate", "x", "INVALID"));
    assert_fails(run_stage("generate_candidate", "x", NULL), H3_INTEGRITY, "candidate_gate did not pass (INVALID)");
    assert_good(run_stage("candidate_gate", "x", "PARTIAL"));
    assert_fails(run_stage("generate_candidate", "x", NULL), H3_INTEGRITY, "only PARTIAL");
    assert_good(run_stage("candidate_gate", "x", "passed"));
    assert_fails(run_stage("generate_candidate", "x", NULL), H3_INTEGRITY, "where VALID is needed");
    assert_good(needs("generate_candidate", "candidate_gate", NULL));
    assert_good(run_stage("candidate_gate", "x", "VALID"));
    assert_good(run_stage("generate_candidate", "x", NULL));
}

static void another_plan_is_refused(void **state)
{
    (void)state;
    h3_run run;
    char *text;
    size_t size;
    run_chain(1);
    assert_fails(h3_run_open(&run, run_folder(), "threshold_freeze", "{\"plan\": \"two\"}\n", 16), H3_INTEGRITY, "another plan");
    assert_fails(h3_run_open(&run, run_folder(), "threshold_freeze", chain_plan, sizeof chain_plan - 2), H3_INTEGRITY,
                 "another plan");
    h3_run_close(&run);
    assert_false(is_there(in_run("stages/threshold_freeze")));
    text = read_file(in_run("stages/reference_pass/stage.json"), &size);
    char *hash = strstr(text, "plan_sha256") + 15;
    hash[0] = hash[0] == '0' ? '1' : '0';
    write_text(in_run("stages/reference_pass/stage.json"), text);
    assert_fails(run_stage("threshold_freeze", "x", NULL), H3_INTEGRITY, "reference_pass/stage.json has not the SHA-256");
    write_sealed(in_run("stages/reference_pass/stage.json"), text);
    free(text);
    assert_fails(run_stage("threshold_freeze", "x", NULL), H3_INTEGRITY, "another plan; rerun h3_reference_pass");
    assert_good(run_stage("reference_pass", "first", NULL)); /* which is possible */
    assert_good(run_stage("threshold_freeze", "x", NULL));
}

static void open_refuses_nonsense(void **state)
{
    (void)state;
    h3_run run;
    assert_fails(h3_run_open(&run, run_folder(), "no_stage", chain_plan, 5), H3_USAGE, "no_stage");
    assert_fails(h3_run_open(&run, run_folder(), "compare", "", 0), H3_USAGE, "plan");
    assert_false(is_there(run_folder()));
    write_text(in_scratch("file"), "x");
    assert_fails(h3_run_open(&run, in_scratch("file"), "compare", chain_plan, 5), H3_ENVIRONMENT, "file");
    assert_fails(h3_run_open(&run, in_scratch("file/below"), "compare", chain_plan, 5), H3_ENVIRONMENT, "file/below");
    h3_run_close(&run);
    h3_run_close(&run);
}

static void assert_same_file(const char *a, const char *b)
{
    size_t size_a, size_b;
    char *bytes_a = read_file(a, &size_a), *bytes_b = read_file(b, &size_b);
    assert_int_equal(size_a, size_b);
    assert_memory_equal(bytes_a, bytes_b, size_a);
    free(bytes_a), free(bytes_b);
}

static void a_rerun_with_the_same_bytes_makes_nothing_stale(void **state)
{
    (void)state;
    int64_t files;
    run_chain(CHAIN_LENGTH);
    assert_good(run_stage("reference_pass", "first", NULL));
    assert_good(run_stage("reference_pass", "first", NULL));
    assert_good(needs("compare", "generate_candidate", NULL));
    assert_good(h3_run_audit(run_folder(), &files));
    assert_int_equal(files, 16);
    assert_same_file(in_run("stages/reference_pass/stage.json"), in_run("attempts/reference_pass/1/stage.json"));
    assert_same_file(in_run("stages/reference_pass/stage.json"), in_run("attempts/reference_pass/2/stage.json"));
    assert_same_file(in_run("data/reference/block1.h5"), in_run("attempts/reference_pass/1/data/reference/block1.h5"));
    assert_false(is_there(in_run("attempts/reference_pass/3")));
    assert_false(is_there(in_run("attempts/reference_pass/.moving")));
}

static void a_changed_file_makes_its_readers_stale(void **state)
{
    (void)state;
    int64_t files;
    run_chain(CHAIN_LENGTH);
    assert_good(run_stage("threshold_freeze", "second", NULL));
    assert_fails(needs("generate_candidate", "candidate_gate", "VALID"), H3_INTEGRITY,
                 "candidate_gate is stale: threshold_freeze was rerun and thresholds.json changed; rerun h3_candidate_gate");
    assert_fails(run_stage("compare", "x", NULL), H3_INTEGRITY,
                 "generate_candidate is stale: candidate_gate is stale: threshold_freeze was rerun");
    assert_fails(h3_run_audit(run_folder(), &files), H3_INTEGRITY,
                 "candidate_gate is stale: threshold_freeze was rerun and thresholds.json changed");
    assert_good(needs("compare", "generate_provider", NULL)); /* it has not read them */
    assert_good(run_stage("candidate_gate", "first", NULL));  /* the same bytes: what follows is good again */
    assert_good(run_stage("compare", "x", NULL));
    assert_good(h3_run_audit(run_folder(), &files));
}

static void staleness_reaches_through_the_chain(void **state)
{
    (void)state;
    run_chain(CHAIN_LENGTH);
    assert_good(run_stage("reference_pass", "second", NULL));
    assert_fails(needs("compare", "generate_provider", NULL), H3_INTEGRITY,
                 "generate_provider is stale: reference_pass was rerun and data/reference/block0.h5 changed");
    assert_fails(needs("generate_candidate", "candidate_gate", NULL), H3_INTEGRITY,
                 "rerun h3_threshold_freeze"); /* the first to rerun */
    assert_good(run_stage("threshold_freeze", "first", NULL));
    assert_fails(needs("generate_candidate", "candidate_gate", NULL), H3_INTEGRITY, "rerun h3_candidate_gate");
    assert_good(run_stage("candidate_gate", "first", NULL));
    assert_good(needs("generate_candidate", "candidate_gate", NULL));
    assert_fails(needs("compare", "generate_candidate", NULL), H3_INTEGRITY, "rerun h3_generate --side candidate");
}

static void a_stage_that_is_running_or_gone_makes_its_readers_stale(void **state)
{
    (void)state;
    run_chain(4);
    assert_int_equal(unlink(in_run("stages/threshold_freeze/stage.json")), 0);
    assert_fails(needs("generate_candidate", "candidate_gate", NULL), H3_INTEGRITY,
                 "candidate_gate is stale: threshold_freeze has not finished");
    assert_good(run_stage("threshold_freeze", "first", NULL));
    assert_good(needs("generate_candidate", "candidate_gate", NULL));
}

static void another_verdict_makes_its_readers_stale(void **state)
{
    (void)state;
    run_chain(5);
    assert_good(run_stage("candidate_gate", "first", "PARTIAL")); /* the same bytes */
    assert_fails(needs("compare", "generate_candidate", NULL), H3_INTEGRITY,
                 "candidate_gate was rerun and its verdict is now PARTIAL, not VALID; rerun h3_candidate_gate");
    assert_good(run_stage("candidate_gate", "first", "passed"));
    assert_fails(needs("compare", "generate_candidate", NULL), H3_INTEGRITY,
                 "now passed, not VALID; rerun h3_generate --side candidate");
    assert_good(run_stage("candidate_gate", "first", NULL));
    assert_good(needs("compare", "generate_candidate", NULL));
}

static void an_output_that_is_no_longer_written_makes_its_readers_stale(void **state)
{
    (void)state;
    h3_run run;
    run_chain(2);
    assert_good(h3_run_open(&run, run_folder(), "reference_pass", chain_plan, sizeof chain_plan - 1));
    assert_good(h3_run_begin(&run));
    assert_good(put_output(&run, "data/reference/block0.h5", "first of data/reference/block0.h5\n"));
    assert_good(h3_run_finish(&run, "passed", NULL));
    h3_run_close(&run);
    assert_fails(needs("candidate_gate", "threshold_freeze", NULL), H3_INTEGRITY,
                 "data/reference/block1.h5, which it read, is no longer written");
}

static void attempts_are_counted_and_kept(void **state)
{
    (void)state;
    h3_run run;
    cJSON *site;
    for (int attempt = 1; attempt <= 3; attempt++) {
        assert_good(h3_run_open(&run, run_folder(), "reference_pass", chain_plan, sizeof chain_plan - 1));
        assert_int_equal(run.attempt, attempt);
        h3_run_close(&run); /* opened only: does not count */
        assert_good(run_stage("reference_pass", attempt == 1 ? "one" : "more", attempt == 1 ? "failed" : NULL));
        assert_good(h3_json_read(&site, in_run("stages/reference_pass/site.json"), H3_INTEGRITY));
        assert_int_equal(cJSON_GetObjectItem(site, "attempt")->valueint, attempt);
        assert_int_equal(strlen(cJSON_GetObjectItem(site, "finished")->valuestring), 20);
        cJSON_Delete(site);
    }
    size_t size;
    char *text = read_file(in_run("attempts/reference_pass/1/data/reference/block0.h5"), &size);
    assert_string_equal(text, "one of data/reference/block0.h5\n");
    free(text);
    assert_true(is_there(in_run("attempts/reference_pass/2/site.json")));
}

static void kept_outputs_stay_in_place(void **state)
{
    (void)state;
    h3_run run;
    int64_t size;
    char before[H3_SHA256_HEX], after[H3_SHA256_HEX];
    run_chain(2);
    assert_good(h3_sha256_file(before, in_run("thresholds.json"), &size, H3_INTEGRITY));
    assert_good(h3_run_open(&run, run_folder(), "threshold_freeze", chain_plan, sizeof chain_plan - 1));
    assert_fails(h3_run_keep(&run, "../thresholds.json"), H3_INTEGRITY, "..");
    assert_good(h3_run_keep(&run, "thresholds.json"));
    assert_good(h3_run_begin(&run));
    h3_run_close(&run);
    assert_good(h3_sha256_file(after, in_run("thresholds.json"), &size, H3_INTEGRITY));
    assert_string_equal(before, after);
    assert_true(is_there(in_run("attempts/threshold_freeze/1/stage.json")));
    assert_false(is_there(in_run("stages/threshold_freeze/stage.json"))); /* until it has finished again */
    assert_false(is_there(in_run("attempts/threshold_freeze/1/thresholds.json")));
}

/* Every place at which setting an attempt aside can be cut off. */
static void an_interrupted_move_is_finished(void **state)
{
    static const char *const moved[][2] = {{"data/reference/block0.h5", "data/reference/block0.h5"},
                                           {"data/reference/block1.h5", "data/reference/block1.h5"},
                                           {"reference-manifest.json", "reference-manifest.json"},
                                           {"stages/reference_pass/site.json", "site.json"},
                                           {"stages/reference_pass/stage.json", "stage.json"}};
    (void)state;
    for (size_t cut = 1; cut <= 5; cut++) {
        h3_run run;
        char to[H3_PATH_MAX], name[256];
        assert_good(run_stage("reference_pass", "x", NULL));
        for (size_t i = 0; i < cut; i++) {
            snprintf(name, sizeof name, "attempts/reference_pass/.moving/%s", moved[i][1]);
            assert_good(h3_run_place(to, run_folder(), name));
            assert_int_equal(rename(in_run(moved[i][0]), to), 0);
        }
        assert_good(h3_run_open(&run, run_folder(), "reference_pass", chain_plan, sizeof chain_plan - 1));
        assert_int_equal(run.attempt, 2);
        assert_good(h3_run_begin(&run));
        h3_run_close(&run);
        for (size_t i = 0; i < 5; i++) {
            snprintf(name, sizeof name, "attempts/reference_pass/1/%s", moved[i][1]);
            assert_true(is_there(in_run(name)));
        }
        assert_false(is_there(in_run("attempts/reference_pass/.moving")));
        assert_good(h3_remove_tree(run_folder()));
    }
}

static void every_read_file_is_verified(void **state)
{
    (void)state;
    h3_run run;
    h3_run_files listed;
    run_chain(1);
    assert_good(h3_run_open(&run, run_folder(), "threshold_freeze", chain_plan, sizeof chain_plan - 1));
    assert_good(h3_run_need(&run, "reference_pass", NULL, &listed));
    assert_int_equal(listed.count, 3);
    assert_int_equal(run.inputs.count, 0);
    assert_good(h3_run_verify(&run, &listed, "reference-manifest.json"));
    assert_good(h3_run_record(&run, &listed, "data/reference/block0.h5"));
    assert_good(h3_run_record(&run, &listed, "data/reference/block0.h5")); /* once in the list */
    assert_int_equal(run.inputs.count, 2);
    assert_fails(h3_run_verify(&run, &listed, "data/reference/block7.h5"), H3_INTEGRITY,
                 "data/reference/block7.h5 is not listed");
    assert_fails(h3_run_record(&run, &listed, "gate.json"), H3_INTEGRITY, "rerun h3_reference_pass");
    assert_fails(h3_run_verify_all(&run, &listed, "data/other/"), H3_INTEGRITY, "data/other/");
    assert_good(h3_run_verify_all(&run, &listed, "data/reference/"));
    assert_int_equal(run.inputs.count, 3);
    const char *path = in_run("data/reference/block1.h5");
    write_text(path, "first of data/reference/block1.h6\n"); /* the same size */
    assert_fails(h3_run_verify_all(&run, &listed, ""), H3_INTEGRITY, "data/reference/block1.h5 has not the listed SHA-256");
    write_text(path, "shorter");
    assert_fails(h3_run_verify(&run, &listed, "data/reference/block1.h5"), H3_INTEGRITY, "has 7 bytes but 34 are listed");
    assert_int_equal(unlink(path), 0);
    assert_fails(h3_run_verify(&run, &listed, "data/reference/block1.h5"), H3_INTEGRITY, "is missing; rerun h3_reference_pass");
    assert_int_equal(symlink("block0.h5", path), 0);
    assert_fails(h3_run_verify(&run, &listed, "data/reference/block1.h5"), H3_INTEGRITY, "not a regular file");
    h3_run_files_free(&listed);
    h3_run_close(&run);
}

static void one_changed_byte_anywhere_stops_the_reader(void **state)
{
    (void)state;
    run_chain(1);
    char path[H3_PATH_MAX * 2];
    size_t size;
    strcpy(path, in_run("reference-manifest.json"));
    char *bytes = read_file(path, &size);
    for (size_t i = 0; i < size; i++) {
        bytes[i] ^= 1;
        write_file(path, bytes, size);
        assert_fails(run_stage("threshold_freeze", "x", NULL), H3_INTEGRITY, "reference-manifest.json");
        assert_false(is_there(in_run("thresholds.json")));
        bytes[i] ^= 1;
    }
    write_file(path, bytes, size);
    free(bytes);
    assert_good(run_stage("threshold_freeze", "x", NULL));
}

static void a_stage_runs_once_at_a_time(void **state)
{
    (void)state;
    h3_run first, second, other;
    assert_good(h3_run_open(&first, run_folder(), "reference_pass", chain_plan, sizeof chain_plan - 1));
    assert_fails(h3_run_open(&second, run_folder(), "reference_pass", chain_plan, sizeof chain_plan - 1), H3_ENVIRONMENT,
                 "reference_pass is running");
    assert_good(h3_run_open(&other, run_folder(), "diagnose", chain_plan, sizeof chain_plan - 1));
    assert_int_equal(fcntl(first.lock, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    h3_run_close(&other);
    h3_run_close(&first);
    assert_good(h3_run_open(&second, run_folder(), "reference_pass", chain_plan, sizeof chain_plan - 1));
    h3_run_close(&second);
}

/* A stage in another process, killed when it has written its outputs but no stage.json, and with a file half written. */
static void kill_a_writer(void)
{
    int ready[2];
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        h3_run run;
        char byte = 0;
        if (h3_run_open(&run, run_folder(), "reference_pass", chain_plan, sizeof chain_plan - 1) != H3_OK ||
            h3_run_begin(&run) != H3_OK)
            _exit(1);
        if (put_output(&run, "data/reference/block0.h5", "half a stage\n") != H3_OK) _exit(1);
        write_text(in_run("data/reference/.tmp-12-0"), "half a file");
        if (write(ready[1], &byte, 1) != 1) _exit(1);
        for (;;) pause();
    }
    char byte;
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    close(ready[0]), close(ready[1]);
}

static void a_killed_stage_leaves_nothing_that_verifies(void **state)
{
    (void)state;
    int64_t files;
    run_chain(2);
    kill_a_writer();
    assert_fails(needs("threshold_freeze", "reference_pass", NULL), H3_INTEGRITY, "reference_pass has not finished");
    assert_fails(needs("candidate_gate", "threshold_freeze", NULL), H3_INTEGRITY, "threshold_freeze is stale");
    assert_fails(h3_run_audit(run_folder(), &files), H3_INTEGRITY, "stale");
    assert_true(is_there(in_run("data/reference/.tmp-12-0")));
    assert_good(run_stage("reference_pass", "first", NULL)); /* its lock died with it */
    assert_false(is_there(in_run("data/reference/.tmp-12-0")));
    assert_good(h3_run_audit(run_folder(), &files));
    assert_good(needs("candidate_gate", "threshold_freeze", NULL));
    assert_false(is_there(in_run("attempts/reference_pass/2"))); /* the killed one is no attempt */
}

static void finish_refuses_what_is_not_there(void **state)
{
    (void)state;
    h3_run run;
    char sha256[H3_SHA256_HEX];
    assert_good(h3_run_open(&run, run_folder(), "reference_pass", chain_plan, sizeof chain_plan - 1));
    assert_good(h3_run_begin(&run));
    assert_good(put_output(&run, "data/a", "four"));
    assert_fails(h3_run_finish(&run, "good", cJSON_CreateObject()), H3_USAGE, "\"good\" is not a verdict");
    write_text(in_run("data/a"), "three");
    assert_fails(h3_run_finish(&run, "passed", cJSON_CreateObject()), H3_INTEGRITY, "data/a");
    assert_int_equal(unlink(in_run("data/a")), 0);
    assert_fails(h3_run_finish(&run, "passed", NULL), H3_INTEGRITY, "data/a");
    assert_false(is_there(in_run("stages/reference_pass/stage.json")));
    assert_good(h3_sha256(sha256, "", 0));
    static const char *const refused[] = {"plan.json",
                                          "stage.json",
                                          "site.json",
                                          "attempts",
                                          "attempts/x/1",
                                          "stages",
                                          "",
                                          "stages/compare/x",
                                          "stages/reference_pass/stage.json",
                                          "stages/reference_pass/site.json",
                                          "stages/reference_pass/.lock",
                                          "data/../x",
                                          "data/.tmp-1",
                                          ".tmp-x/y",
                                          "/etc/x"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (h3_run_output(&run, refused[i], 0, sha256) != H3_INTEGRITY) fail_msg("%s is accepted", refused[i]);
    assert_fails(h3_run_output(&run, "data/a", 0, sha256), H3_INTEGRITY, "twice");
    assert_fails(h3_run_output(&run, "data/b", -1, sha256), H3_INTEGRITY, "data/b");
    assert_fails(h3_run_output(&run, "data/b", 0, "ABC"), H3_INTEGRITY, "data/b");
    assert_good(h3_run_output(&run, "stages/reference_pass/log.txt", 0, sha256));
    h3_run_close(&run);
}

#define SCRATCH_TEST(test) cmocka_unit_test_setup_teardown(test, make_scratch, remove_scratch)

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCRATCH_TEST(a_chain_passes),
        SCRATCH_TEST(stage_json_says_what_was_read_and_written),
        SCRATCH_TEST(out_of_order_is_refused),
        SCRATCH_TEST(what_did_not_pass_is_refused),
        SCRATCH_TEST(another_plan_is_refused),
        SCRATCH_TEST(open_refuses_nonsense),
        SCRATCH_TEST(a_rerun_with_the_same_bytes_makes_nothing_stale),
        SCRATCH_TEST(a_changed_file_makes_its_readers_stale),
        SCRATCH_TEST(staleness_reaches_through_the_chain),
        SCRATCH_TEST(a_stage_that_is_running_or_gone_makes_its_readers_stale),
        SCRATCH_TEST(another_verdict_makes_its_readers_stale),
        SCRATCH_TEST(an_output_that_is_no_longer_written_makes_its_readers_stale),
        SCRATCH_TEST(attempts_are_counted_and_kept),
        SCRATCH_TEST(kept_outputs_stay_in_place),
        SCRATCH_TEST(an_interrupted_move_is_finished),
        SCRATCH_TEST(every_read_file_is_verified),
        SCRATCH_TEST(one_changed_byte_anywhere_stops_the_reader),
        SCRATCH_TEST(a_stage_runs_once_at_a_time),
        SCRATCH_TEST(a_killed_stage_leaves_nothing_that_verifies),
        SCRATCH_TEST(finish_refuses_what_is_not_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
