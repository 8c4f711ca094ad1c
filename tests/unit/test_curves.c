/* Curves of a comparison's figures: what stands where, and figures that are none. */
#include "golden_files.h"

#include <math.h>

#include "report/curves.h"

static char *plot_of(const h3_plot *plot)
{
    h3_markup text = {0};
    char *out;
    h3_plot_svg(&text, plot);
    assert_false(text.failed);
    if (text.text == NULL) return NULL;
    assert_good(h3_markup_finish(&text, &out));
    return out;
}

static int count_of(const char *text, const char *word)
{
    int count = 0;
    for (; (text = strstr(text, word)) != NULL; text += strlen(word)) count++;
    return count;
}

/* Values 0, 5, 10 from zero: the axis ends at 10.8, the plot is 190 high from 40 and 880 wide from 60. */
static void values_stand_where_they_belong(void **state)
{
    (void)state;
    const double values[] = {0.0, 5.0, 10.0};
    const h3_curve curve = {"a <b>", values, 3};
    const h3_plot plot = {"t & u", "step", &curve, 1, 8.0, 1, 0};
    char *text = plot_of(&plot);
    assert_non_null(strstr(text, "points=\"60.0,230.0 500.0,142.0 940.0,54.1\""));
    assert_non_null(strstr(text, "y1=\"89.3\" x2=\"940\" y2=\"89.3\" stroke=\"#cf222e\""));
    assert_non_null(strstr(text, ">at most 8<"));
    assert_non_null(strstr(text, "t &amp; u"));
    assert_non_null(strstr(text, "a &lt;b&gt;"));
    free(text);
}

/* From zero even when no value is there; and wide enough for a limit that lies apart: 34 below 40 to 42 gives an axis of 33.36 to 42.64. */
static void axes_hold_zero_and_the_limit(void **state)
{
    (void)state;
    const double values[] = {40.0, 42.0};
    const h3_curve curve = {"x", values, 2};
    h3_plot plot = {"t", "frame", &curve, 1, NAN, 1, 0};
    char *text = plot_of(&plot);
    assert_non_null(strstr(text, "points=\"60.0,62.5 940.0,54.1\"")); /* of 0 to 45.36 */
    free(text);
    plot = (h3_plot){"t", "frame", &curve, 1, 34.0, 0, 1};
    text = plot_of(&plot);
    assert_non_null(strstr(text, "y1=\"216.9\" x2=\"940\" y2=\"216.9\" stroke=\"#cf222e\""));
    assert_non_null(strstr(text, "points=\"60.0,94.1 940.0,53.1\""));
    free(text);
}

static void what_is_no_number_is_marked(void **state)
{
    (void)state;
    double values[400];
    for (int i = 0; i < 400; i++) values[i] = 40.0 + 0.01 * i;
    values[3] = NAN;
    values[200] = INFINITY;
    const h3_curve curve = {"seed 42", values, 400};
    const h3_plot plot = {"t", "frame", &curve, 1, NAN, 0, 1};
    char *text = plot_of(&plot);
    assert_int_equal(count_of(text, "<path"), 1);      /* crossed out */
    assert_int_equal(count_of(text, "fill=\"none\" stroke=\"#0b62a8\" stroke-width=\"1.3\""), 1); /* a ring */
    assert_int_equal(count_of(text, "<polyline"), 3);  /* and the line interrupted twice */
    assert_non_null(strstr(text, "xmlns=\"http://www.w3.org/2000/svg\""));
    assert_null(strstr(text, "nan"));
    assert_null(strstr(text, "inf"));
    free(text);
    const h3_curve empty = {"seed 42", values, 0};
    const h3_plot nothing = {"t", "frame", &empty, 1, 5.0, 0, 1};
    assert_null(plot_of(&nothing));
}

static void odd_values_break_nothing(void **state)
{
    static const double cases[][3] = {{1e300, -1e300, 0}, {1, 1, 1}, {0, 0, 0}, {INFINITY, INFINITY, INFINITY}, {NAN, NAN, NAN}, {-INFINITY, 1e-320, 1}, {1, 1 + 2.3e-16, 1}, {9.99e8, -9.99e8, 1e-9}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int zero = 0; zero < 2; zero++) {
            const h3_curve curve = {"x", cases[i], 3};
            const h3_plot plot = {"t", "frame", &curve, 1, cases[i][0], zero, 1};
            char *text = plot_of(&plot);
            assert_non_null(text);
            assert_true(strlen(text) < 10000);
            assert_null(strstr(text, "nan"));
            assert_null(strstr(text, "inf"));
            free(text);
        }
}

static cJSON *comparison(const char *text)
{
    cJSON *json = cJSON_Parse(text);
    assert_non_null(json);
    return json;
}

/* The frame's figures in both forms, and of a comparison without pictures none. */
static void a_comparison_is_drawn(void **state)
{
    static const char *const forms[] = {
        "{\"limits\":{\"psnr_global_db\":34,\"ssim_mean\":0.97},\"seeds\":[{\"seed\":42,\"media\":{\"video\":{\"psnr\":[40,null,42],\"ssim_frames\":[0.99,1,0.98]}},"
        "\"velocity\":{\"video\":{\"errors\":[0.1,null]},\"audio\":{\"errors\":[0.2]}}},{\"seed\":43}]}",
        "{\"limits\":{\"psnr_global_db\":34,\"ssim_mean\":0.97},\"seeds\":[{\"seed\":42,\"video\":{\"per_frame\":[{\"psnr\":40,\"ssim\":0.99},{\"psnr\":null,\"ssim\":1},{\"psnr\":42,\"ssim\":0.98}]},"
        "\"velocity\":{\"video\":{\"errors\":[0.1,null]},\"audio\":{\"errors\":[0.2]}}}]}"};
    (void)state;
    char *psnr[2], *text;
    for (int i = 0; i < 2; i++) {
        cJSON *json = comparison(forms[i]);
        assert_good(h3_curves_file(&text, json, "ssim"));
        assert_int_equal(count_of(text, "seed 42"), 1);
        assert_non_null(strstr(text, ">at least 0.97<"));
        free(text);
        assert_good(h3_curves_file(&psnr[i], json, "psnr"));
        assert_non_null(strstr(psnr[i], ">at least 34<"));
        assert_int_equal(count_of(psnr[i], "stroke-width=\"1.3\""), 1); /* the identical frame */
        assert_good(h3_curves_file(&text, json, "velocity.video"));
        assert_int_equal(count_of(text, "<path"), 1); /* a null error is no number */
        free(text);
        assert_good(h3_curves_file(&text, json, "velocity.audio"));
        free(text);
        assert_fails(h3_curves_file(&text, json, "velocity"), H3_USAGE, "no curve velocity");
        cJSON_Delete(json);
    }
    assert_string_equal(psnr[0], psnr[1]);
    free(psnr[0]);
    free(psnr[1]);
}

static void without_figures_there_is_no_curve(void **state)
{
    static const char *const others[] = {"{}", "[]", "5", "{\"seeds\":5}", "{\"seeds\":[5,{},{\"media\":7},{\"video\":{\"per_frame\":{}}},{\"video\":{\"per_frame\":[]}},{\"media\":{\"video\":{\"psnr\":\"x\"}}}]}"};
    (void)state;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        cJSON *json = comparison(others[i]);
        char *out;
        for (int k = 0; h3_curve_kinds[k] != NULL; k++) {
            assert_good(h3_curves_file(&out, json, h3_curve_kinds[k]));
            assert_null(out);
        }
        cJSON_Delete(json);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_stand_where_they_belong), cmocka_unit_test(axes_hold_zero_and_the_limit), cmocka_unit_test(what_is_no_number_is_marked), cmocka_unit_test(odd_values_break_nothing),
        cmocka_unit_test(a_comparison_is_drawn),          cmocka_unit_test(without_figures_there_is_no_curve),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
