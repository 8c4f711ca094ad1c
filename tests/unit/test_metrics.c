/* Figures, bounds and differences, against plain loops in long double and numbers done by hand. */
#include "golden_files.h"

#include <math.h>

#include "base/memory.h"
#include "qualify/metrics.h"

enum { ROWS = 7, WIDTH = 12, COUNT = ROWS * WIDTH };

/* Values of wide range, the same in every run. */
static float value_at(int i, int which)
{
    uint32_t state = (uint32_t)(i * 2 + which) * 2654435761u + 12345u;
    state ^= state >> 15;
    state *= 2246822519u;
    state ^= state >> 13;
    return ((float)(state & 0xffff) / 32768.0f - 1.0f) * ldexpf(1.0f, (i % 5) - 2);
}

static h3_tensor vector(float *data, int64_t count) { return h3_tensor_view(data, H3_F32, 1, &count); }

static void fill(float *x, float *g)
{
    for (int i = 0; i < COUNT; i++) {
        g[i] = value_at(i, 0);
        x[i] = g[i] * (1.0f + 0.01f * value_at(i, 1));
    }
}

static void assert_close(double got, long double wanted)
{
    if (!(fabsl((long double)got - wanted) <= 1e-13L * fabsl(wanted))) fail_msg("%.17g instead of %.17Lg", got, wanted);
}

static void test_figures_by_hand(void **state)
{
    (void)state;
    float x[COUNT], g[COUNT];
    fill(x, g);
    long double difference = 0, norm = 0, dot = 0, squares = 0, worst = 0;
    for (int i = 0; i < COUNT; i++) {
        long double a = x[i], b = g[i];
        difference += (a - b) * (a - b);
        norm += b * b;
        dot += (a - b) * b;
    }
    for (int group = 0; group < COUNT / 4; group++) {
        long double q = 0;
        for (int i = 0; i < 4; i++) q += (long double)g[group * 4 + i] * (long double)g[group * 4 + i];
        squares += q * q;
    }
    for (int r = 0; r < ROWS; r++) {
        long double e = 0, n = 0;
        for (int j = 0; j < WIDTH; j++) {
            long double a = x[r * WIDTH + j], b = g[r * WIDTH + j];
            e += (a - b) * (a - b);
            n += b * b;
        }
        long double ratio = sqrtl(e) / fmaxl(sqrtl(n), 1e-3L * sqrtl(norm) / sqrtl(ROWS));
        worst = ratio > worst ? ratio : worst;
    }
    h3_figures f;
    h3_tensor tx = vector(x, COUNT), tg = vector(g, COUNT);
    assert_good(h3_figures_of(&f, &tx, &tg, ROWS, 4));
    assert_int_equal(f.count, COUNT);
    assert_close(f.golden_norm, sqrtl(norm));
    assert_close(f.error, sqrtl(difference / norm));
    assert_close(f.bias, dot / norm);
    assert_close(f.effective, norm * norm / squares);
    assert_close(f.worst_row, worst);
}

static void test_figures_of_halves(void **state)
{
    (void)state;
    float x[COUNT], g[COUNT];
    uint16_t hx[COUNT], hg[COUNT];
    int64_t count = COUNT;
    fill(x, g);
    for (int i = 0; i < COUNT; i++) {
        hx[i] = h3_f32_to_bf16(x[i]);
        hg[i] = h3_f32_to_bf16(g[i]);
        x[i] = h3_bf16_to_f32(hx[i]);
        g[i] = h3_bf16_to_f32(hg[i]);
    }
    h3_figures wide, half, mixed;
    h3_tensor tx = vector(x, COUNT), tg = vector(g, COUNT);
    h3_tensor bx = h3_tensor_view(hx, H3_BF16, 1, &count), bg = h3_tensor_view(hg, H3_BF16, 1, &count);
    assert_good(h3_figures_of(&wide, &tx, &tg, ROWS, 1));
    assert_good(h3_figures_of(&half, &bx, &bg, ROWS, 1));
    assert_good(h3_figures_of(&mixed, &bx, &tg, ROWS, 1));
    assert_memory_equal(&wide, &half, sizeof wide);
    assert_memory_equal(&wide, &mixed, sizeof wide);
}

static void test_equal_tensors_have_no_error(void **state)
{
    (void)state;
    float g[COUNT], unused[COUNT];
    fill(unused, g);
    h3_figures f;
    h3_tensor t = vector(g, COUNT);
    assert_good(h3_figures_of(&f, &t, &t, ROWS, 1));
    assert_true(f.error == 0.0 && f.bias == 0.0 && f.worst_row == 0.0);
}

/* A scale of 1.001 is a bias of exactly that size. */
static void test_bias_measures_scale(void **state)
{
    (void)state;
    float x[4] = {2.0f, -4.0f, 8.0f, 16.0f}, g[4] = {1.0f, -2.0f, 4.0f, 8.0f};
    h3_figures f;
    h3_tensor tx = vector(x, 4), tg = vector(g, 4);
    assert_good(h3_figures_of(&f, &tx, &tg, 1, 1));
    assert_true(f.bias == 1.0 && f.error == 1.0);
}

static void assert_no_bound_accepts(float spoiled, int in_golden)
{
    float x[COUNT], g[COUNT];
    fill(x, g);
    (in_golden ? g : x)[COUNT / 2] = spoiled;
    h3_figures f;
    h3_tensor tx = vector(x, COUNT), tg = vector(g, COUNT);
    assert_good(h3_figures_of(&f, &tx, &tg, ROWS, 1));
    assert_true(isnan(f.error) && isnan(f.bias) && isnan(f.worst_row));
    assert_false(f.error <= INFINITY || f.bias <= INFINITY || fabs(f.bias) <= INFINITY || f.worst_row <= INFINITY);
}

static void test_not_finite(void **state)
{
    (void)state;
    for (int in_golden = 0; in_golden < 2; in_golden++) {
        assert_no_bound_accepts(NAN, in_golden);
        assert_no_bound_accepts(INFINITY, in_golden);
        assert_no_bound_accepts(-INFINITY, in_golden);
    }
}

static void test_not_comparable(void **state)
{
    (void)state;
    float x[COUNT], g[COUNT];
    int64_t count = COUNT;
    fill(x, g);
    h3_figures f;
    h3_difference d;
    h3_tensor tx = vector(x, COUNT), tg = vector(g, COUNT), shorter = vector(g, COUNT - 1), absent = {0}, empty = vector(g, 0);
    h3_tensor integers = h3_tensor_view(g, H3_I32, 1, &count), no_data = vector(NULL, COUNT);
    const h3_tensor *others[] = {&shorter, &absent, &empty, &integers, &no_data};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        assert_fails(h3_figures_of(&f, &tx, others[i], 1, 1), H3_FAILED, "cannot be compared");
        assert_fails(h3_figures_of(&f, others[i], &tx, 1, 1), H3_FAILED, "cannot be compared");
        assert_fails(h3_difference_of(&d, &tx, others[i]), H3_FAILED, "cannot be compared");
    }
    assert_fails(h3_figures_of(&f, &empty, &empty, 1, 1), H3_FAILED, "empty");
    assert_fails(h3_difference_of(&d, &empty, &empty), H3_FAILED, "empty");
    assert_fails(h3_figures_of(&f, &tx, &tg, 5, 1), H3_FAILED, "divide");
    assert_fails(h3_figures_of(&f, &tx, &tg, 0, 1), H3_FAILED, "divide");
    assert_fails(h3_figures_of(&f, &tx, &tg, ROWS, 5), H3_FAILED, "divide");
}

static void test_zero_golden(void **state)
{
    (void)state;
    float x[4] = {3e-7f, 0.0f, -4e-7f, 0.0f}, g[4] = {0.0f};
    h3_figures f;
    h3_tensor tx = vector(x, 4), tg = vector(g, 4);
    assert_good(h3_figures_of(&f, &tx, &tg, 2, 1));
    assert_true(f.golden_norm == 0.0 && f.bias == 0.0);
    assert_true(fabs(f.error - 5e-7) < 1e-13 && f.error <= h3_frozen_formula.absolute);
    x[1] = 1e-6f;
    assert_good(h3_figures_of(&f, &tx, &tg, 2, 1));
    assert_false(f.error <= h3_frozen_formula.absolute);
    assert_good(h3_figures_of(&f, &tg, &tg, 2, 1));
    assert_true(f.error == 0.0 && f.worst_row == 0.0);
}

/* A row of zeros in the golden counts against the floor of 1e-3 ||g|| / sqrt(R), not against zero. */
static void test_worst_row_floor(void **state)
{
    (void)state;
    float g[4] = {3.0f, 4.0f, 0.0f, 0.0f}, x[4] = {3.0f, 4.0f, 0.001f, 0.0f};
    h3_figures f;
    h3_tensor tx = vector(x, 4), tg = vector(g, 4);
    assert_good(h3_figures_of(&f, &tx, &tg, 2, 1));
    assert_close(f.worst_row, (long double)0.001f / (1e-3L * 5.0L / sqrtl(2.0L)));
    assert_int_equal(f.worst_index, 1);
}

static void test_isolated_bounds(void **state)
{
    (void)state;
    h3_figures p = {.count = 400, .error = 0.002, .bias = -0.0003, .effective = 900.0, .worst_row = 0.01};
    assert_close(h3_isolated_error_bound(&p), (1.05L + 1.0L / 20.0L) * 0.002L + 1e-5L);
    assert_close(h3_isolated_bias_bound(&p), 0.0003L + 3.0L * 0.002L / 30.0L + 5e-5L);
    assert_close(h3_isolated_worst_bound(&p), 2.0L * 0.01L + 1e-5L);
    p.error = p.bias = p.worst_row = NAN;
    assert_false(0.0 <= h3_isolated_error_bound(&p) || 0.0 <= h3_isolated_bias_bound(&p) || 0.0 <= h3_isolated_worst_bound(&p));
}

static void test_published_check_value(void **state)
{
    (void)state;
    const double bound = h3_frozen_bound(0.016962182839382958, 1);
    assert_true(bound == 0.03044327425907444);
    assert_false(0.03398705939217804 <= bound);
    assert_true(h3_frozen_bound(0.0, 0) == 1e-3 && h3_frozen_bound(0.0, 1) == 5e-3);
    assert_true(h3_frozen_bound(0.8, 0) == 1.25 * 0.8 + 1e-3);
    assert_false(0.0 <= h3_frozen_bound(NAN, 0));
}

static void test_gradient_names(void **state)
{
    (void)state;
    static const char *const yes[] = {"dnode.block0.norm1", "grad.proj_in.weight", "dinput.block3.x", "dboundary.hidden"};
    static const char *const no[] = {"node.block0.norm1", "out.video", "boundary.hidden", "gradient", "graduation", "dnode"};
    for (size_t i = 0; i < sizeof yes / sizeof *yes; i++) assert_true(h3_is_gradient(yes[i]));
    for (size_t i = 0; i < sizeof no / sizeof *no; i++) assert_false(h3_is_gradient(no[i]));
}

static void test_differences_in_ulp(void **state)
{
    (void)state;
    uint16_t a[6] = {0x3f80, 0x3f80, 0x0001, 0x0000, 0xbf80, 0x4000}, b[6] = {0x3f80, 0x3f82, 0x8001, 0x8000, 0xbf7f, 0x4000};
    int64_t count = 6;
    h3_tensor ta = h3_tensor_view(a, H3_BF16, 1, &count), tb = h3_tensor_view(b, H3_BF16, 1, &count);
    h3_difference d;
    assert_good(h3_difference_of(&d, &ta, &tb));
    assert_int_equal(d.count, 6);
    assert_int_equal(d.differing, 4); /* +0 and -0 differ */
    assert_int_equal(d.first, 1);
    assert_int_equal(d.first_ulp, 2);
    assert_int_equal(d.worst_ulp, 2);
    assert_int_equal(d.worst, 1);
    assert_true(d.largest == 0.015625);
    assert_good(h3_difference_of(&d, &ta, &ta));
    assert_true(d.differing == 0 && d.first == -1 && d.worst == -1 && d.largest == 0.0);
}

static void test_difference_with_nan(void **state)
{
    (void)state;
    float a[3] = {1.0f, NAN, 2.0f}, b[3] = {1.0f, 3.0f, 2.5f};
    h3_difference d;
    h3_tensor ta = vector(a, 3), tb = vector(b, 3);
    assert_good(h3_difference_of(&d, &ta, &tb));
    assert_int_equal(d.differing, 2);
    assert_true(isnan(d.largest));
    uint16_t halves[3] = {0};
    int64_t count = 3;
    h3_tensor other = h3_tensor_view(halves, H3_BF16, 1, &count);
    assert_fails(h3_difference_of(&d, &ta, &other), H3_FAILED, "types");
    assert_false(h3_all_finite(&ta));
    assert_true(h3_all_finite(&tb));
    b[2] = -INFINITY;
    assert_false(h3_all_finite(&tb));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_figures_by_hand), cmocka_unit_test(test_figures_of_halves), cmocka_unit_test(test_equal_tensors_have_no_error),
        cmocka_unit_test(test_bias_measures_scale), cmocka_unit_test(test_not_finite), cmocka_unit_test(test_not_comparable),
        cmocka_unit_test(test_zero_golden), cmocka_unit_test(test_worst_row_floor), cmocka_unit_test(test_isolated_bounds),
        cmocka_unit_test(test_published_check_value), cmocka_unit_test(test_gradient_names), cmocka_unit_test(test_differences_in_ulp),
        cmocka_unit_test(test_difference_with_nan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
