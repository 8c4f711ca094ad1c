/* Picture metrics: closed forms, a brute-force double loop, and the same bits for any number of threads. */
#include "golden_files.h"

#include <math.h>
#include <omp.h>

#include "media/picture_metrics.h"

enum { FRAMES = 4, ROWS = 23, COLUMNS = 31, FRAME = ROWS * COLUMNS * 3, ALL = FRAMES * FRAME };

static unsigned char a[ALL], b[ALL];

/* Smooth pictures that move, codes within 20..235. */
static void paint(void)
{
    for (int i = 0; i < ALL; i++) {
        const int t = i / FRAME, y = i % FRAME / 3 / COLUMNS, x = i / 3 % COLUMNS, c = i % 3;
        a[i] = (unsigned char)(128 + (int)(100.0 * sin(0.31 * x + 0.4 * t + c) * cos(0.23 * y - 0.2 * t)));
    }
    memcpy(b, a, sizeof a);
}

static h3_picture_metrics measure(const unsigned char *x, const unsigned char *y)
{
    h3_picture_metrics m;
    assert_good(h3_picture_metrics_compute(&m, x, y, FRAMES, ROWS, COLUMNS));
    return m;
}

static void assert_near(double got, double wanted, double bound)
{
    if (!(fabs(got - wanted) <= bound)) fail_msg("%.15g instead of %.15g", got, wanted);
}

static void identical(void **state)
{
    (void)state;
    paint();
    h3_picture_metrics m = measure(a, b);
    assert_int_equal(m.identical_frames, FRAMES);
    assert_int_equal(m.max_abs_diff, 0);
    assert_true(isinf(m.psnr_global) && isinf(m.psnr_min) && isinf(m.psnr_mean_finite));
    assert_true(m.ssim_mean == 1.0 && m.ssim_min == 1.0 && m.ssim_luma_mean == 1.0 && m.ssim_luma_min == 1.0);
    assert_true(m.frac_diff == 0.0 && m.temporal_rmse == 0.0 && m.temporal_rmse_max == 0.0);
    assert_true(m.temporal_energy_ref > 1.0);
    h3_picture_metrics_free(&m);
}

/* A constant shift: motion is the same. */
static void one_code_brighter(void **state)
{
    (void)state;
    paint();
    for (int i = 0; i < ALL; i++) b[i]++;
    h3_picture_metrics m = measure(a, b);
    const double expected = 10.0 * log10(255.0 * 255.0);
    assert_near(expected, 48.1308, 5e-5);
    assert_near(m.psnr_global, expected, 1e-12);
    assert_near(m.psnr_min, expected, 1e-12);
    assert_near(m.psnr_mean_finite, expected, 1e-12);
    assert_true(m.frac_diff == 1.0 && m.max_abs_diff == 1 && m.identical_frames == 0);
    assert_true(m.temporal_rmse == 0.0);
    assert_true(m.ssim_mean < 1.0 && m.ssim_mean > 0.99);
    h3_picture_metrics_free(&m);
}

/* Flicker of one code: every step is wrong by 2. */
static void flicker(void **state)
{
    (void)state;
    paint();
    for (int i = 0; i < ALL; i++) b[i] = (unsigned char)(i / FRAME % 2 ? b[i] - 1 : b[i] + 1);
    h3_picture_metrics m = measure(a, b);
    assert_near(m.psnr_global, 48.1308, 5e-5);
    assert_true(m.temporal_rmse == 2.0 && m.temporal_rmse_max == 2.0);
    h3_picture_metrics_free(&m);
}

/* One sample of one frame. */
static void a_single_sample(void **state)
{
    (void)state;
    paint();
    b[2 * FRAME + 700] = (unsigned char)(b[2 * FRAME + 700] - 7);
    h3_picture_metrics m = measure(a, b);
    assert_int_equal(m.identical_frames, FRAMES - 1);
    assert_int_equal(m.max_abs_diff, 7);
    assert_true(isinf(m.frames[1].psnr));
    assert_near(m.psnr_min, 10.0 * log10(65025.0 * FRAME / 49.0), 1e-10);
    assert_near(m.psnr_mean_finite, m.psnr_min, 0);
    assert_near(m.psnr_global, 10.0 * log10(65025.0 * FRAME * FRAMES / 49.0), 1e-10);
    assert_near(m.frac_diff, 1.0 / ALL, 1e-18);
    assert_near(m.frames[1].trmse, 7.0 / sqrt(FRAME), 1e-12);
    assert_near(m.temporal_rmse, sqrt(2.0 * 49.0 / FRAME / (FRAMES - 1)), 1e-12);
    h3_picture_metrics_free(&m);
}

/* The definition: for each window 121 weighted values, moments, one quotient. */
static double brute_force_ssim(const unsigned char *x, const unsigned char *y, int plane)
{
    double weight[11][11], total = 0, sum = 0;
    for (int i = 0; i < 11; i++)
        for (int j = 0; j < 11; j++) total += weight[i][j] = exp(-((i - 5) * (i - 5) + (j - 5) * (j - 5)) / 4.5);
    for (int row = 0; row + 10 < ROWS; row++)
        for (int column = 0; column + 10 < COLUMNS; column++) {
            double ma = 0, mb = 0, aa = 0, bb = 0, ab = 0;
            for (int i = 0; i < 11; i++)
                for (int j = 0; j < 11; j++) {
                    const unsigned char *p = x + ((row + i) * COLUMNS + column + j) * 3, *q = y + ((row + i) * COLUMNS + column + j) * 3;
                    const double w = weight[i][j] / total, u = plane < 3 ? p[plane] : 0.299 * p[0] + 0.587 * p[1] + 0.114 * p[2],
                                 v = plane < 3 ? q[plane] : 0.299 * q[0] + 0.587 * q[1] + 0.114 * q[2];
                    ma += w * u, mb += w * v, aa += w * u * u, bb += w * v * v, ab += w * u * v;
                }
            sum += (2 * ma * mb + 6.5025) * (2 * (ab - ma * mb) + 58.5225) / ((ma * ma + mb * mb + 6.5025) * (aa - ma * ma + bb - mb * mb + 58.5225));
        }
    return sum / ((ROWS - 10) * (COLUMNS - 10));
}

static void brute_force(void **state)
{
    (void)state;
    paint();
    for (int i = 0; i < ALL; i++) b[i] = (unsigned char)(b[i] + (int)((uint32_t)i * 2654435761u >> 28) - 8 + (i / FRAME == 3 ? 12 : 0));
    h3_picture_metrics m = measure(a, b);
    double mean = 0, least = 2;
    for (int t = 0; t < FRAMES; t++) {
        double s[4], squares = 0, step = 0;
        for (int plane = 0; plane < 4; plane++) s[plane] = brute_force_ssim(a + t * FRAME, b + t * FRAME, plane);
        assert_near(m.frames[t].ssim, (s[0] + s[1] + s[2]) / 3, 1e-12);
        assert_near(m.frames[t].ssim_luma, s[3], 1e-12);
        mean += (s[0] + s[1] + s[2]) / 3 / FRAMES;
        least = fmin(least, (s[0] + s[1] + s[2]) / 3);
        for (int i = t * FRAME; i < (t + 1) * FRAME; i++) squares += (a[i] - b[i]) * (a[i] - b[i]);
        assert_near(m.frames[t].psnr, 20 * log10(255 / sqrt(squares / FRAME)), 1e-10);
        for (int i = t * FRAME; i < (t + 1) * FRAME && t + 1 < FRAMES; i++) {
            const double d = (double)(a[i + FRAME] - a[i]) - (double)(b[i + FRAME] - b[i]);
            step += d * d;
        }
        assert_near(m.frames[t].trmse, sqrt(step / FRAME), 1e-12);
    }
    assert_near(m.ssim_mean, mean, 1e-12);
    assert_near(m.ssim_min, least, 1e-12);
    assert_true(m.ssim_mean < 0.99);
    h3_picture_metrics_free(&m);
}

/* Swapped colours: luma hardly sees it, the headline does. */
static void swapped_colours(void **state)
{
    (void)state;
    paint();
    for (int i = 0; i < ALL; i += 3) {
        b[i] = a[i + 2];
        b[i + 2] = a[i];
    }
    h3_picture_metrics m = measure(a, b);
    assert_true(m.ssim_mean < 0.97 && m.psnr_global < 34.0);
    h3_picture_metrics_free(&m);
}

static void any_number_of_threads(void **state)
{
    (void)state;
    paint();
    for (int i = 0; i < ALL; i++) b[i] = (unsigned char)(b[i] + (int)((uint32_t)i * 2654435761u >> 28) - 8);
    const int before = omp_get_max_threads();
    h3_picture_metrics first = {0};
    for (int threads = 1; threads < 8; threads += 2) {
        omp_set_num_threads(threads);
        h3_picture_metrics m = measure(a, b);
        if (threads == 1) {
            first = m;
            continue;
        }
        assert_memory_equal(m.frames, first.frames, FRAMES * sizeof *m.frames);
        assert_true(m.ssim_mean == first.ssim_mean && m.psnr_global == first.psnr_global && m.temporal_rmse == first.temporal_rmse);
        h3_picture_metrics_free(&m);
    }
    h3_picture_metrics_free(&first);
    omp_set_num_threads(before);
}

static void refused(void **state)
{
    (void)state;
    h3_picture_metrics m;
    assert_fails(h3_picture_metrics_compute(&m, a, b, 0, ROWS, COLUMNS), H3_USAGE, "0 frames");
    assert_fails(h3_picture_metrics_compute(&m, a, b, 1, 10, COLUMNS), H3_USAGE, "31 x 10");
    assert_fails(h3_picture_metrics_compute(&m, a, b, 1, ROWS, 10), H3_USAGE, "10 x 23");
    assert_fails(h3_picture_metrics_compute(&m, a, b, INT64_MAX, ROWS, 11), H3_USAGE, "cannot be compared");
    assert_null(m.frames);
}

static void reported(void **state)
{
    (void)state;
    cJSON *json;
    paint();
    b[5] ^= 1;
    h3_picture_metrics m = measure(a, b);
    assert_good(h3_picture_metrics_json(&json, &m));
    assert_near(json_get(json, "psnr_global")->valuedouble, m.psnr_global, 0);
    assert_near(json_get(json_get(json, "ssim"), "mean")->valuedouble, m.ssim_mean, 0);
    assert_false(cJSON_IsTrue(json_get(json, "identical")));
    const cJSON *list = json_get(json, "per_frame");
    assert_int_equal(cJSON_GetArraySize(list), FRAMES);
    assert_true(cJSON_IsNull(json_get(cJSON_GetArrayItem(list, 1), "psnr")) && cJSON_IsTrue(json_get(cJSON_GetArrayItem(list, 1), "identical")));
    assert_true(cJSON_IsNumber(json_get(cJSON_GetArrayItem(list, 0), "psnr")));
    assert_true(cJSON_IsNull(json_get(cJSON_GetArrayItem(list, FRAMES - 1), "trmse")));
    cJSON_Delete(json);
    h3_picture_metrics_free(&m);
    assert_good(h3_picture_metrics_compute(&m, a, a, 1, ROWS, COLUMNS));
    assert_good(h3_picture_metrics_json(&json, &m));
    assert_true(cJSON_IsNull(json_get(json, "psnr_global")) && cJSON_IsTrue(json_get(json, "identical")));
    assert_true(cJSON_IsNull(json_get(json, "temporal_rmse")) && cJSON_IsTrue(json_get(json, "single_frame")));
    cJSON_Delete(json);
    h3_picture_metrics_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(identical), cmocka_unit_test(one_code_brighter), cmocka_unit_test(flicker), cmocka_unit_test(a_single_sample),
        cmocka_unit_test(brute_force), cmocka_unit_test(swapped_colours), cmocka_unit_test(any_number_of_threads), cmocka_unit_test(refused),
        cmocka_unit_test(reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
