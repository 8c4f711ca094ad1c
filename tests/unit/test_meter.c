/* What is said of the ranks' times. Measuring them on several ranks: tests/mpi/ranks_probe.c and tests/system/test_busy.sh. */
#include "golden_files.h"

#include "dist/meter.h"

static void expect_text(const h3_rank_work *work, int count, const char *wanted)
{
    char *text;
    assert_good(h3_work_text(&text, work, count));
    assert_string_equal(text, wanted);
    free(text);
}

static void test_window(void **state)
{
    (void)state;
    const h3_rank_work work[] = {{.spans = 3, .first = 1.5, .last = 4, .busy = 2}, {0}, {.spans = 1, .first = 0.5, .last = 2, .busy = 1}};
    assert_true(h3_work_window(work, 3) == 3.5);  /* from the first that any did to the last that any did */
    assert_true(h3_work_window(work, 2) == 2.5);  /* who has done nothing does not matter */
    assert_true(h3_work_window(&work[1], 1) == 0.0);
    const h3_rank_work early = {.spans = 1, .first = -0.25, .last = -0.125}; /* a clock that was started late */
    assert_true(h3_work_window(&early, 1) == 0.125);
}

static void test_text(void **state)
{
    (void)state;
    h3_rank_work work[] = {{.spans = 9, .first = 0, .last = 12, .busy = 11.93}, {.spans = 9, .first = 0.3, .last = 12.3, .busy = 11.562}, {0}};
    expect_text(work, 1, "busy 99 % of 12.00 s");
    expect_text(work, 3, "busy 97 %, 94 %, 0 % of 12.30 s");
    work[0].received = (h3_received){.waited = 5, .handing = 0.1, .bytes = 400000000};
    work[1].received = (h3_received){.waited = 5, .handing = 0.11, .bytes = 1000000000};
    expect_text(work, 2, "busy 97 %, 94 % of 12.30 s; hand-off 0.21 s, 1.4 GB");
    work[1].received.bytes = 12345;
    expect_text(work, 2, "busy 97 %, 94 % of 12.30 s; hand-off 0.21 s, 400.0 MB");
    work[0].received.bytes = 999;
    expect_text(work, 2, "busy 97 %, 94 % of 12.30 s; hand-off 0.21 s, 13.3 kB");
}

static double number_of(const cJSON *object, const char *key) { return cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(object, key)); }

static void test_json(void **state)
{
    (void)state;
    const h3_rank_work work[] = {{.spans = 9, .first = 1, .last = 3, .busy = 1, .received = {.waited = 0.5, .handing = 0.25, .bytes = 1 << 20}},
                                 {.spans = 9, .first = 2, .last = 5, .busy = 3}};
    cJSON *json = h3_work_json(work, 2);
    const cJSON *ranks = cJSON_GetObjectItemCaseSensitive(json, "ranks"), *rank = cJSON_GetArrayItem(ranks, 0);
    assert_int_equal(cJSON_GetArraySize(ranks), 2);
    assert_true(number_of(json, "seconds") == 4.0);
    assert_true(number_of(rank, "busy_share") == 0.25 && number_of(rank, "busy_seconds") == 1.0);
    assert_true(number_of(rank, "waited_seconds") == 0.5 && number_of(rank, "hand_off_seconds") == 0.25 && number_of(rank, "hand_off_bytes") == 1 << 20);
    assert_true(number_of(cJSON_GetArrayItem(ranks, 1), "busy_share") == 0.75);
    cJSON_Delete(json);
    const h3_rank_work idle = {0};
    json = h3_work_json(&idle, 1);
    assert_true(number_of(cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(json, "ranks"), 0), "busy_share") == 0.0);
    cJSON_Delete(json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_window), cmocka_unit_test(test_text), cmocka_unit_test(test_json)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
