/* junit.xml: one test case for each stage, gate section, check, bound and comparison. No times: the same run gives the same
 * bytes. What did not run is an error, never a pass; only what --only left out is skipped. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "report/data.h"

typedef struct test_suite {
    h3_markup body;
    int64_t tests, failures, errors, skipped;
} test_suite;

typedef enum { CASE_PASSED, CASE_FAILED, CASE_ERROR, CASE_SKIPPED } case_state;

static void open_case(test_suite *out, const char *class, const char *name)
{
    out->tests++;
    h3_markup_add(&out->body, "    <testcase classname=\"");
    h3_markup_text(&out->body, class);
    h3_markup_add(&out->body, "\" name=\"");
    h3_markup_text(&out->body, name);
    h3_markup_add(&out->body, "\"");
}

static void add_case(test_suite *out, const char *class, const char *name, case_state state, const char *message)
{
    static const char *const elements[] = {"", "failure", "error", "skipped"};
    open_case(out, class, name);
    out->failures += state == CASE_FAILED;
    out->errors += state == CASE_ERROR;
    out->skipped += state == CASE_SKIPPED;
    if (state == CASE_PASSED) {
        h3_markup_add(&out->body, "/>\n");
        return;
    }
    h3_markup_add(&out->body, "><%s message=\"", elements[state]);
    h3_markup_text(&out->body, message);
    h3_markup_add(&out->body, "\"/></testcase>\n");
}

/* A figure and its bound: passed only when value <= bound. */
static void add_figure(test_suite *out, const char *class, const char *name, double value, double bound)
{
    char message[120];
    snprintf(message, sizeof message, "%.6g is not at most %.6g", value, bound);
    add_case(out, class, name, value <= bound ? CASE_PASSED : CASE_FAILED, message);
}

typedef struct junit {
    h3_markup all;
    int64_t tests, failures, errors, skipped;
} junit;

static void end_suite(junit *out, test_suite *suite, const char *name)
{
    if (suite->tests == 0) return;
    h3_markup_add(&out->all, "  <testsuite name=\"");
    h3_markup_text(&out->all, name);
    h3_markup_add(&out->all, "\" tests=\"%lld\" failures=\"%lld\" errors=\"%lld\" skipped=\"%lld\">\n", (long long)suite->tests,
                  (long long)suite->failures, (long long)suite->errors, (long long)suite->skipped);
    out->tests += suite->tests;
    out->failures += suite->failures;
    out->errors += suite->errors;
    out->skipped += suite->skipped;
    h3_markup_take(&out->all, &suite->body);
    h3_markup_add(&out->all, "  </testsuite>\n");
    *suite = (test_suite){0};
}

/* --- suites ------------------------------------------------------------------------------------------------------- */

static void stages(junit *out, const h3_report_data *data)
{
    test_suite suite = {0};
    for (int i = 0; i < H3_RUN_STAGES; i++) {
        const h3_run_stage_view *stage = &data->view.stages[i];
        if (!data->needed[i]) continue;
        const char *message = !stage->present ? "it has not run"
                              : !stage->fresh ? "stale: what it read has changed since"
                                              : stage->verdict;
        case_state state = !data->usable[i]                         ? CASE_ERROR
                           : h3_run_verdict_passes(stage->verdict)  ? CASE_PASSED
                           : strcmp(stage->verdict, "PARTIAL") == 0 ? CASE_SKIPPED
                                                                    : CASE_FAILED;
        add_case(&suite, "stages", h3_run_stage_name(i), state, message);
    }
    end_suite(out, &suite, "stages");
}

static case_state state_of(const char *state)
{
    if (strcmp(state, "passed") == 0) return CASE_PASSED;
    if (strcmp(state, "failed") == 0) return CASE_FAILED;
    return strcmp(state, "left out") == 0 ? CASE_SKIPPED : CASE_ERROR;
}

static void sections(junit *out, const h3_report_data *data)
{
    test_suite suite = {0};
    const cJSON *section;
    cJSON_ArrayForEach(section, h3_item_of(data->gate, "sections")) {
        const char *state = cJSON_IsString(section) ? section->valuestring : "missing";
        add_case(&suite, "gate", section->string, state_of(state), state);
    }
    end_suite(out, &suite, "gate sections");
}

static void cell_case(test_suite *suite, const char *class, const char *name, const cJSON *cell)
{
    const char *state = h3_text_of(cell, "state");
    double value = h3_number_of(cell, "value"), bound = h3_number_of(cell, "bound");
    char message[400];
    if (isnan(value) && isnan(bound)) snprintf(message, sizeof message, "%s %.300s", state, h3_text_of(cell, "detail"));
    else snprintf(message, sizeof message, "%.6g, at most %.6g; %.300s", value, bound, h3_text_of(cell, "detail"));
    add_case(suite, class, name, state_of(state), message);
}

static void layouts(junit *out, const h3_report_data *data)
{
    static const char *const directions[] = {"forward", "backward"};
    const cJSON *layout, *node, *cell;
    cJSON_ArrayForEach(layout, h3_item_of(data->gate, "block0")) {
        test_suite suite = {0};
        char class[128], name[200];
        snprintf(class, sizeof class, "block0.%.100s", h3_text_of(layout, "layout"));
        cJSON_ArrayForEach(node, h3_item_of(layout, "nodes")) {
            for (int i = 0; i < 2; i++) {
                cJSON_ArrayForEach(cell, h3_item_of(h3_item_of(node, directions[i]), "checks")) {
                    snprintf(name, sizeof name, "%.60s.%s.%.60s", h3_text_of(node, "node"), directions[i], cell->string);
                    cell_case(&suite, class, name, cell);
                }
            }
        }
        end_suite(out, &suite, class);
    }
}

static void bounds(junit *out, const h3_report_data *data)
{
    test_suite suite = {0};
    const cJSON *tensor;
    cJSON_ArrayForEach(tensor, h3_item_of(h3_item_of(data->gate, "full_model"), "tensors")) add_figure(
        &suite, "full_model", h3_text_of(tensor, "tensor"), h3_number_of(tensor, "error"), h3_number_of(tensor, "bound"));
    end_suite(out, &suite, "full model, frozen bounds");
}

/* Identical pictures or sounds hold every limit; a figure that is missing holds none. */
static void media_cases(test_suite *suite, const cJSON *seed)
{
    const cJSON *judged;
    cJSON_ArrayForEach(judged, h3_item_of(h3_item_of(seed, "media"), "judged")) {
        h3_figure f;
        char message[120];
        h3_report_media_figure(&f, judged->string, h3_count_of(seed, "seed"), judged);
        int holds = f.at_least ? f.value >= f.bound || cJSON_IsTrue(h3_item_of(judged, "identical")) : f.value <= f.bound;
        snprintf(message, sizeof message, "%.6g is not at %s %.6g", f.value, f.at_least ? "least" : "most", f.bound);
        add_case(suite, "compare", f.name + strlen("compare."), holds ? CASE_PASSED : CASE_FAILED, message);
    }
}

static void comparison(junit *out, const h3_report_data *data)
{
    static const char *const modalities[] = {"video", "audio"};
    test_suite suite = {0};
    const cJSON *seed;
    cJSON_ArrayForEach(seed, h3_item_of(data->compare, "seeds")) {
        for (int i = 0; i < 2; i++) {
            const cJSON *latent = h3_item_of(h3_item_of(seed, "latent"), modalities[i]);
            char name[80];
            snprintf(name, sizeof name, "seed%lld.%s.latent_error", (long long)h3_count_of(seed, "seed"), modalities[i]);
            add_figure(&suite, "compare", name, h3_number_of(latent, "error"), h3_number_of(latent, "limit"));
        }
        media_cases(&suite, seed);
    }
    end_suite(out, &suite, "compare");
}

h3_status h3_report_junit(char **out, const h3_report_data *data)
{
    junit all = {0};
    h3_markup text = {0};
    stages(&all, data);
    sections(&all, data);
    layouts(&all, data);
    bounds(&all, data);
    comparison(&all, data);
    h3_markup_add(&text, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"");
    h3_markup_text(&text, data->plan.name);
    h3_markup_add(&text, "\" tests=\"%lld\" failures=\"%lld\" errors=\"%lld\" skipped=\"%lld\">\n", (long long)all.tests,
                  (long long)all.failures, (long long)all.errors, (long long)all.skipped);
    h3_markup_take(&text, &all.all);
    h3_markup_add(&text, "</testsuites>\n");
    return h3_markup_finish(&text, out);
}
