/* Reports: the verdict of a run, and that nothing in a run can do harm in one. */
#include "store_files.h"

#include "base/json.h"
#include "report/markup.h"
#include "report/report.h"
#include "store/run.h"

/* --- a run in the making ------------------------------------------------------------------------------------------ */

static char *plan_text; /* plans/smoke.json */
static size_t plan_size;

static const char *folder(void) { return in_scratch("run"); }

static h3_status put_output(h3_run *run, const char *path, const char *text)
{
    char full[H3_PATH_MAX], sha256[H3_SHA256_HEX];
    H3_TRY(h3_run_place(full, run->folder, path));
    H3_TRY(h3_publish(full, text, strlen(text)));
    H3_TRY(h3_sha256(sha256, text, strlen(text)));
    return h3_run_output(run, path, (int64_t)strlen(text), sha256);
}

/* One stage with one output, after verifying those that it needs. */
static void stage(const char *name, const char *verdict, const char *path, const char *text, const char *need,
                  const char *other_need)
{
    h3_run run;
    const char *needs[] = {need, other_need};
    assert_good(h3_run_open(&run, folder(), name, plan_text, plan_size));
    for (int i = 0; i < 2 && needs[i] != NULL; i++) {
        h3_run_files listed;
        assert_good(h3_run_need(&run, needs[i], NULL, &listed));
        assert_good(h3_run_verify_all(&run, &listed, ""));
        h3_run_files_free(&listed);
    }
    assert_good(h3_run_begin(&run));
    assert_good(put_output(&run, path, text));
    assert_good(h3_run_finish(&run, verdict, NULL));
    h3_run_close(&run);
}

static const char manifest[] = "{\"fingerprint\": {\"libm\": \"2.36\"}, \"model\": {\"kind\": \"synthetic\", \"config\": "
                               "{\"num_layers\": 2}}, \"tensors\": [1, 2, 3]}";
static const char thresholds[] = "{\"bounds\": [{\"tensor\": \"s48/node.block1.attention\", \"provider_error\": 0.03}]}";

static void reference(void)
{
    stage("reference_pass", "passed", "reference-manifest.json", manifest, NULL, NULL);
    stage("threshold_freeze", "passed", "thresholds.json", thresholds, "reference_pass", NULL);
}

/* A gate.json of one node; `more` are further fields of it. */
static char *gate_text(const char *verdict, const char *node, const char *state, const char *numbers, const char *more)
{
    char *text;
    assert_good(h3_format(
        &text,
        "{\"verdict\": \"%s\", \"sections\": {\"build_identity\": \"passed\", \"block0\": \"%s\"}, \"counts\": {\"checks\": 3, "
        "\"bounds\": 1},"
        "\"libraries\": [{\"name\": \"%s\", \"revision\": \"abc\"}], \"bindings\": [{\"node\": \"%s\", \"label\": \"interim\"}],"
        "\"block0\": [{\"layout\": \"s48\", \"rows\": 29, \"nodes\": [{\"node\": \"%s\", \"forward\": {\"kernel\": \"%s\", "
        "\"isolated_bitwise\": false, \"checks\":"
        "{\"error\": {\"state\": \"%s\", %s, \"detail\": \"%s\"}, \"repeat\": {\"state\": \"passed\"}}}, \"backward\": "
        "{\"checks\": {\"batch\": {\"state\": \"not run\"}}}}]}],"
        "\"full_model\": {\"blocks\": 2, \"tensors\": [{\"tensor\": \"s48/node.block1.attention\", \"error\": 0.02, \"bound\": "
        "0.04, \"bitwise\": false}]}%s}",
        verdict, state, node, node, node, node, state, numbers, node, more));
    return text;
}

static void gate(const char *verdict, const char *node, const char *state, const char *numbers, const char *more)
{
    char *text = gate_text(verdict, node, state, numbers, more);
    stage("candidate_gate", verdict, "gate.json", text, "reference_pass", "threshold_freeze");
    free(text);
}

static void good_gate(void) { gate("VALID", "attention", "passed", "\"value\": 0.4, \"bound\": 1, \"provider\": 0.6", ""); }

static void sides(void)
{
    static const char report[] = "{\"seeds\": [{\"seed\": 42}], \"sampling\": {\"evaluations\": 3}}";
    stage("generate_provider", "passed", "generate-provider.json", report, "reference_pass", NULL);
    stage("generate_candidate", "passed", "generate-candidate.json", report, "reference_pass", "candidate_gate");
}

static void comparison(const char *verdict, const char *error)
{
    char *text;
    assert_good(h3_format(&text,
                          "{\"verdict\": \"%s\", \"worst\": {\"seed\": 42, \"modality\": \"audio\", \"latent_error\": %s}, "
                          "\"seeds\": [{\"seed\": 42, \"latent\": {"
                          "\"video\": {\"error\": 0.01, \"limit\": 0.05}, \"audio\": {\"error\": %s, \"limit\": 0.05}}, "
                          "\"velocity\": {\"video\": {\"errors\": [0.1, null, 0.2]}}}]}",
                          verdict, error, error));
    stage("compare", verdict, "compare.json", text, "generate_provider", "generate_candidate");
    free(text);
}

static h3_report made;

static void make(void)
{
    h3_report_free(&made);
    assert_good(h3_report_make(&made, folder()));
}

static void assert_has(int which, const char *part)
{
    if (strstr(made.text[which], part) == NULL) fail_msg("%s has no \"%s\"", h3_report_files[which], part);
}

static void assert_has_not(int which, const char *part)
{
    const char *at = strstr(made.text[which], part);
    if (at != NULL) fail_msg("%s has \"%.80s\"", h3_report_files[which], at);
}

/* --- verdicts ----------------------------------------------------------------------------------------------------- */

static void a_run_that_passed_is_valid(void **state)
{
    (void)state;
    reference();
    good_gate();
    sides();
    comparison("passed", "0.001");
    make();
    assert_string_equal(made.verdict, "VALID");
    assert_string_equal(made.sentence, "The candidate computes this model: all 3 checks and all 1 frozen bounds hold, and what "
                                       "it generates ends within 0.001 of the provider's latents.");
    assert_has(H3_REPORT_JSON, "\"name\": \"full.s48/node.block1.attention\",\n    \"words\": \"error of node.block1.attention "
                               "in the full model, layout s48\",\n"
                               "    \"value\": 0.02,\n    \"bound\": 0.04,\n    \"provider\": 0.03,\n    \"used\": 0.5");
    assert_has(H3_REPORT_JSON, "\"missing\": []");
    assert_has(H3_REPORT_HTML, "<body class=\"valid\">");
    assert_has(H3_REPORT_HTML, "1 interim");
    assert_has_not(H3_REPORT_HTML, "Not part of this report");
    assert_has(H3_REPORT_JUNIT, "<testcase classname=\"full_model\" name=\"s48/node.block1.attention\"/>");
    assert_has(H3_REPORT_JUNIT, "<testcase classname=\"compare\" name=\"seed42.audio.latent_error\"/>");
    assert_has(H3_REPORT_JUNIT, "name=\"attention.backward.batch\"><error message=\"not run "); /* never a pass */
}

static void what_is_missing_is_said(void **state)
{
    (void)state;
    reference();
    make();
    assert_string_equal(made.verdict, "INCOMPLETE");
    assert_string_equal(made.sentence,
                        "No verdict yet: still to be run: generate provider, candidate gate, generate candidate, compare.");
    assert_has(H3_REPORT_JSON, "\"decided_by\": null");
    assert_has(H3_REPORT_HTML, "candidate gate: has not finished; next: <code>h3_candidate_gate</code>");
    assert_has(H3_REPORT_JUNIT, "tests=\"6\" failures=\"0\" errors=\"4\" skipped=\"0\"");
    good_gate();
    make();
    assert_string_equal(made.verdict, "INCOMPLETE");
    assert_has_not(H3_REPORT_JSON, "\"decided_by\": null");
}

static void what_is_stale_does_not_count(void **state)
{
    (void)state;
    reference();
    good_gate();
    sides();
    comparison("passed", "0.001");
    stage("reference_pass", "passed", "reference-manifest.json", "{\"tensors\": [1]}", NULL, NULL);
    make();
    assert_string_equal(made.verdict, "INCOMPLETE");
    assert_non_null(strstr(made.sentence, "candidate gate (stale)"));
    assert_has(H3_REPORT_JSON, "\"gate\": null");
    assert_has(H3_REPORT_JUNIT, "<testcase classname=\"stages\" name=\"compare\"><error message=\"stale");
}

static void a_failed_gate_is_invalid(void **state)
{
    (void)state;
    reference();
    gate("INVALID", "attention", "failed", "\"value\": 2, \"bound\": 1, \"provider\": 0.6",
         ", \"first_failure\": \"attention\", \"first_failed_check\": \"block0.s48.attention.forward.error\", "
         "\"first_failed_value\": 2, \"first_failed_bound\": 1, \"first_failed_detail\": \"out\"");
    make();
    assert_string_equal(made.verdict, "INVALID");
    assert_string_equal(made.sentence, "The candidate is not qualified: attention is the first node that fails (isolated error "
                                       "of attention, forward, layout s48).");
    assert_has(H3_REPORT_JSON, "\"provider\": 0.6");
    assert_has(H3_REPORT_HTML, "<div class=\"big\">2 <small>beyond 1</small></div>");
    assert_has(H3_REPORT_JUNIT, "name=\"attention.forward.error\"><failure message=\"2, at most 1; attention\"/>");
}

static void a_failed_build_is_invalid(void **state)
{
    (void)state;
    reference();
    gate("INVALID", "attention", "failed", "\"value\": null, \"bound\": 0",
         ", \"first_failure\": null, \"first_failed_check\": \"build\", \"first_failed_value\": null, \"first_failed_bound\": 0, "
         "\"first_failed_detail\": \"fast math\"");
    make();
    assert_string_equal(made.sentence, "The candidate is not qualified: it fails the build identity of the candidate.");
    assert_has(H3_REPORT_HTML, "<div class=\"big\">fails</div>");
    assert_has(H3_REPORT_HTML, "fast math");
}

static void partial_is_no_acceptance(void **state)
{
    (void)state;
    reference();
    gate("PARTIAL", "attention", "passed", "\"value\": 0.5, \"bound\": 1", ", \"only\": \"block0*\"");
    make();
    assert_string_equal(made.verdict, "PARTIAL");
    assert_string_equal(made.sentence, "No acceptance: nothing failed, but only the checks block0* ran.");
    gate("PARTIAL", "attention", "passed", "\"value\": 0.5, \"bound\": 1", "");
    make();
    assert_non_null(strstr(made.sentence, "uncommitted"));
}

static void a_failed_comparison_is_invalid(void **state)
{
    (void)state;
    reference();
    good_gate();
    sides();
    comparison("failed", "0.07");
    make();
    assert_string_equal(made.verdict, "INVALID");
    assert_string_equal(made.sentence, "The candidate is not qualified: the distance of the final audio latents of seed 42 from "
                                       "the provider's is beyond its limit.");
    comparison("failed", "null");
    make();
    assert_string_equal(made.verdict, "INVALID");
    assert_has(H3_REPORT_JUNIT, "name=\"seed42.audio.latent_error\"><failure message=\"");
}

/* Latents that hold, a picture that holds, and a sound of `snr` (JSON) that does or does not. */
static void decoded_comparison(const char *verdict, const char *snr, const char *ok, const char *identical)
{
    static const char figures[] = "\"psnr_global_db\": {%s\"value\": 54, \"identical\": false, \"limit\": 34, \"margin\": 20, \"ok\": true}, "
                                  "\"ssim_mean\": {%s\"value\": 0.985, \"identical\": false, \"limit\": 0.97, \"margin\": 0.015, \"ok\": true}, "
                                  "\"audio_snr_db\": {%s\"value\": %s, \"identical\": %s, \"limit\": 20, \"margin\": 0, \"ok\": %s}, "
                                  "\"audio_lsd_db\": {%s\"value\": 0.5, \"identical\": false, \"limit\": 2, \"margin\": 1.5, \"ok\": true}";
    char *worst, *own, *text;
    const char *seed = "\"seed\": 42, ";
    assert_good(h3_format(&worst, figures, seed, seed, seed, snr, identical, ok, seed));
    assert_good(h3_format(&own, figures, "", "", "", snr, identical, ok, ""));
    assert_good(h3_format(&text,
                          "{\"verdict\": \"%s\", \"worst\": {\"seed\": 42, \"modality\": \"audio\", \"latent_error\": 0.001, \"margin\": 0.049}, \"worst_media\": {%s}, "
                          "\"worst_figures\": {\"psnr_min\": {\"seed\": 42, \"value\": 50, \"identical\": false}}, "
                          "\"seeds\": [{\"seed\": 42, \"latent\": {\"video\": {\"error\": 0.001, \"limit\": 0.05}, \"audio\": {\"error\": 0.001, \"limit\": 0.05}}, "
                          "\"velocity\": {\"video\": {\"errors\": [0.1]}}, \"media\": {\"judged\": {%s}, \"video\": {\"psnr\": [54, null], \"ssim_frames\": [0.985, 1]}}}]}",
                          verdict, worst, own));
    stage("compare", verdict, "compare.json", text, "generate_provider", "generate_candidate");
    free(worst);
    free(own);
    free(text);
}

static void a_good_picture_with_bad_sound_is_invalid(void **state)
{
    (void)state;
    reference();
    good_gate();
    sides();
    decoded_comparison("passed", "26.0206", "true", "false");
    make();
    assert_string_equal(made.verdict, "VALID");
    assert_non_null(strstr(made.sentence, "; its pictures and its sound hold every limit of the contract."));
    /* of what the limit leaves: 10^(-6.0206/20) of the amplitude; half of what similarity may miss */
    assert_has(H3_REPORT_JSON, "\"name\": \"compare.seed42.audio_snr_db\"");
    assert_has(H3_REPORT_JSON, "\"used\": 0.49999");
    assert_has(H3_REPORT_JSON, "\"at_least\": true");
    assert_has(H3_REPORT_HTML, "Frame by frame");
    assert_has(H3_REPORT_JUNIT, "name=\"seed42.audio_snr_db\"/>");
    assert_has(H3_REPORT_JUNIT, "name=\"seed42.psnr_global_db\"/>");
    decoded_comparison("passed", "null", "true", "true");
    make();
    assert_string_equal(made.verdict, "VALID");
    assert_has(H3_REPORT_JUNIT, "name=\"seed42.audio_snr_db\"/>");
    assert_has(H3_REPORT_HTML, "identical");
    decoded_comparison("failed", "6.5", "false", "false");
    make();
    assert_string_equal(made.verdict, "INVALID");
    assert_string_equal(made.sentence, "The candidate is not qualified: the signal-to-noise ratio of the sound (dB) of seed 42 is below its limit.");
    assert_has(H3_REPORT_HTML, "<div class=\"big\">6.5 <small>below 20</small></div>");
    assert_has(H3_REPORT_JUNIT, "name=\"seed42.audio_snr_db\"><failure message=\"6.5 is not at least 20\"/>");
    assert_has(H3_REPORT_JUNIT, "name=\"seed42.ssim_mean\"/>");
    /* no number is no pass */
    decoded_comparison("failed", "null", "false", "false");
    make();
    assert_string_equal(made.verdict, "INVALID");
    assert_has(H3_REPORT_JUNIT, "name=\"seed42.audio_snr_db\"><failure");
    assert_has(H3_REPORT_HTML, "not a number");
}

/* --- what is read is verified ------------------------------------------------------------------------------------- */

static void damage_is_refused(void **state)
{
    (void)state;
    h3_report report;
    reference();
    good_gate();
    static const char *const files[] = {"gate.json", "thresholds.json", "reference-manifest.json", "plan.json",
                                        "stages/candidate_gate/stage.json"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[H3_PATH_MAX];
        size_t size;
        snprintf(path, sizeof path, "%s/%s", folder(), files[i]);
        char *text = read_file(path, &size);
        text[size / 2] ^= 1;
        write_file(path, text, size);
        h3_status status = h3_report_make(&report, folder());
        assert_int_equal(status, H3_INTEGRITY);
        if (strstr(h3_error_text(), strcmp(files[i], "plan.json") == 0 ? "plan" : files[i]) == NULL)
            fail_msg("%s: %s", files[i], h3_error_text());
        text[size / 2] ^= 1;
        write_file(path, text, size);
        free(text);
    }
    assert_good(h3_report_make(&report, folder()));
    h3_report_free(&report);
    char *other = gate_text("INVALID", "attention", "passed", "\"value\": 0.5, \"bound\": 1", ""); /* stage.json says VALID */
    stage("candidate_gate", "VALID", "gate.json", other, "reference_pass", "threshold_freeze");
    free(other);
    assert_fails(h3_report_make(&report, folder()), H3_INTEGRITY, "gate.json has another verdict");
    assert_fails(h3_report_make(&report, in_scratch("none")), H3_USAGE, "no folder with a run");
}

static void a_written_report_is_checked(void **state)
{
    (void)state;
    int present;
    reference();
    make();
    assert_good(h3_report_check(&made, folder(), &present));
    assert_int_equal(present, 0);
    assert_good(h3_report_write(&made, folder()));
    assert_good(h3_report_check(&made, folder(), &present));
    assert_int_equal(present, 1);
    for (int i = 0; i < H3_REPORT_FILES; i++) {
        char path[H3_PATH_MAX];
        snprintf(path, sizeof path, "%s/%s", folder(), h3_report_files[i]);
        write_text(path, "");
        assert_fails(h3_report_check(&made, folder(), &present), H3_INTEGRITY, h3_report_files[i]);
        assert_int_equal(unlink(path), 0);
        assert_fails(h3_report_check(&made, folder(), &present), H3_INTEGRITY, h3_report_files[i]);
        write_text(path, made.text[i]);
    }
    assert_good(h3_report_check(&made, folder(), &present));
    good_gate();
    make();
    assert_fails(h3_report_check(&made, folder(), &present), H3_INTEGRITY, "out of date");
}

/* --- hostile names ------------------------------------------------------------------------------------------------ */

/* Tags closed in their order, attributes quoted, no character that XML excludes. */
static void assert_well_formed(const char *text)
{
    char open[16][32];
    int depth = 0;
    for (const char *c = text; (c = strchr(c, '<')) != NULL; c++) {
        char name[32] = "";
        const char *end = c;
        for (int quoted = 0; *end && (quoted || *end != '>'); end++) quoted ^= *end == '"';
        assert_int_equal(*end, '>');
        if (c[1] == '?') continue;
        assert_int_equal(sscanf(c + 1 + (c[1] == '/'), "%31[a-z]", name), 1);
        if (c[1] == '/') {
            assert_true(depth > 0);
            assert_string_equal(name, open[--depth]);
        } else if (end[-1] != '/') {
            assert_true(depth < 16);
            strcpy(open[depth++], name);
        }
    }
    assert_int_equal(depth, 0);
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) assert_true(*c >= 0x20 || *c == '\n');
}

static void hostile_names_do_no_harm(void **state)
{
    (void)state;
    static const char *const names[] = {"</title><script>alert(1)</script>",
                                        "\\\" onmouseover=\\\"alert(1)",
                                        "' style='x",
                                        "&lt;&#0;",
                                        "\\u0001\\u001b[2J\\u007f\\uffff\\ufffe",
                                        "]]>--><!--",
                                        "%s%n%d",
                                        "\\ud83d\\ude00"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char more[600];
        reference();
        snprintf(more, sizeof more,
                 ", \"first_failure\": \"%s\", \"first_failed_check\": \"%s\", \"first_failed_detail\": \"%s\", \"only\": \"%s\"",
                 names[i], names[i], names[i], names[i]);
        gate("INVALID", names[i], "failed", "\"value\": 2, \"bound\": 1", more);
        make();
        assert_has_not(H3_REPORT_HTML, "<script");
        assert_has_not(H3_REPORT_HTML, "<!--");
        assert_has_not(H3_REPORT_HTML, "\" onmouseover");
        assert_has_not(H3_REPORT_HTML, "' style='");
        assert_well_formed(made.text[H3_REPORT_JUNIT]);
        for (const char *c = made.sentence; *c; c++) assert_true((unsigned char)*c >= 0x20 && *c != 0x7f);
        for (const unsigned char *c = (const unsigned char *)made.text[H3_REPORT_HTML]; *c; c++)
            assert_true(*c >= 0x20 || *c == '\n');
        assert_good(h3_remove_tree(folder()));
    }
}

static void long_names_are_cut_between_characters(void **state)
{
    (void)state;
    char name[2001], more[4200];
    for (int i = 0; i < 1000; i++) memcpy(name + 2 * i, "\xc3\xa9", 3);
    reference();
    snprintf(more, sizeof more, ", \"first_failure\": \"a%s\", \"first_failed_check\": \"%s\"", name, name);
    gate("INVALID", name, "failed", "\"value\": 2, \"bound\": 1", more);
    make();
    cJSON *json;
    assert_good(h3_json_parse(&json, made.text[H3_REPORT_JSON], strlen(made.text[H3_REPORT_JSON]), "report",
                              H3_INTEGRITY)); /* is UTF-8 */
    cJSON_Delete(json);
    assert_well_formed(made.text[H3_REPORT_JUNIT]);
}

static void odd_numbers_do_no_harm(void **state)
{
    (void)state;
    static const char *const numbers[] = {"\"value\": null, \"bound\": null", "\"value\": -1, \"bound\": 0",
                                          "\"value\": 1e308, \"bound\": 5e-324", "\"value\": \"x\", \"bound\": [1]"};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        reference();
        gate("INVALID", "attention", "failed", numbers[i], ", \"full_model_unused\": 0");
        make();
        static const char *const odd[] = {">nan", "\"nan", ":nan", "-nan", ">inf<", "\"inf\"", ":inf", "-inf", "inf times"};
        for (size_t k = 0; k < sizeof odd / sizeof *odd; k++) assert_has_not(H3_REPORT_HTML, odd[k]);
        assert_well_formed(made.text[H3_REPORT_JUNIT]);
        assert_good(h3_remove_tree(folder()));
    }
    reference();
    stage("candidate_gate", "VALID", "gate.json",
          "{\"verdict\": \"VALID\", \"full_model\": {\"blocks\": 9e15, \"tensors\": {\"a\": 1}}, \"block0\": 7, \"counts\": []}",
          "reference_pass", "threshold_freeze");
    make();
    assert_string_equal(made.verdict, "INCOMPLETE");
}

static void the_same_run_gives_the_same_bytes_and_nothing_outside(void **state)
{
    (void)state;
    h3_report again;
    reference();
    good_gate();
    sides();
    comparison("passed", "0.001");
    make();
    assert_good(h3_report_make(&again, folder()));
    for (int i = 0; i < H3_REPORT_FILES; i++) {
        static const char *const outside[] = {"http:", "https:", "src=", "href=", "url(", "@import", "<script", "<link", "/tmp"};
        assert_string_equal(made.text[i], again.text[i]);
        for (size_t k = 0; k < sizeof outside / sizeof *outside; k++) assert_has_not(i, outside[k]);
        assert_has_not(i, scratch);
    }
    h3_report_free(&again);
}

static void markup_escapes(void **state)
{
    (void)state;
    static const struct {
        const char *text, *escaped;
    } cases[] = {{"a<b>&\"'c", "a&lt;b&gt;&amp;&quot;&#39;c"},
                 {"\x01\x1b\x7f", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
                 {"\t\n", "\t\n"},
                 {"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"},
                 {"\xc3", "\xef\xbf\xbd"},
                 {"\xc3(", "\xef\xbf\xbd("},
                 {"\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd"},
                 {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
                 {"\xef\xbf\xbf", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
                 {"\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        h3_markup markup = {0};
        char *text;
        h3_markup_add(&markup, "<%d>", 1);
        h3_markup_text(&markup, cases[i].text);
        assert_good(h3_markup_finish(&markup, &text));
        assert_string_equal(text + 3, cases[i].escaped);
        free(text);
    }
    char line[] = "a\nb\tc\xc3\xa9 \xff";
    h3_markup_clean(line);
    assert_string_equal(line, "a?b?c\xc3\xa9 ?");
}

static int read_the_plan(void **state)
{
    (void)state;
    plan_text = read_file("plans/smoke.json", &plan_size);
    return 0;
}

static int forget(void **state)
{
    (void)state;
    h3_report_free(&made);
    free(plan_text);
    return 0;
}

int main(void)
{
#define SCRATCH_TEST(f) cmocka_unit_test_setup_teardown(f, make_scratch, remove_scratch)
    const struct CMUnitTest tests[] = {
        SCRATCH_TEST(a_run_that_passed_is_valid),
        SCRATCH_TEST(what_is_missing_is_said),
        SCRATCH_TEST(what_is_stale_does_not_count),
        SCRATCH_TEST(a_failed_gate_is_invalid),
        SCRATCH_TEST(a_failed_build_is_invalid),
        SCRATCH_TEST(partial_is_no_acceptance),
        SCRATCH_TEST(a_failed_comparison_is_invalid),
        SCRATCH_TEST(a_good_picture_with_bad_sound_is_invalid),
        SCRATCH_TEST(damage_is_refused),
        SCRATCH_TEST(a_written_report_is_checked),
        SCRATCH_TEST(hostile_names_do_no_harm),
        SCRATCH_TEST(long_names_are_cut_between_characters),
        SCRATCH_TEST(odd_numbers_do_no_harm),
        SCRATCH_TEST(the_same_run_gives_the_same_bytes_and_nothing_outside),
        cmocka_unit_test(markup_escapes),
    };
    return cmocka_run_group_tests(tests, read_the_plan, forget);
}
