/* Half precision: every one of its 65,536 values, and the rounding of what lies between. */
#include "golden_files.h"

#include <math.h>

#include "base/half.h"

/* The value by the definition of the format, in double. */
static double value_of(uint16_t h)
{
    const int exponent = h >> 10 & 31, fraction = h & 0x3ff;
    const double magnitude = exponent == 0 ? ldexp(fraction, -24) : exponent == 31 ? INFINITY : ldexp(1024 + fraction, exponent - 25);
    return h & 0x8000 ? -magnitude : magnitude;
}

static void every_value(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        const float wide = h3_f16_to_f32((uint16_t)h);
        if ((h & 0x7fff) > 0x7c00) {
            assert_true(isnan(wide));
            assert_true(isnan(h3_f16_to_f32(h3_f32_to_f16(wide))));
            continue;
        }
        assert_true((double)wide == value_of((uint16_t)h));
        assert_int_equal(signbit(wide) != 0, h >> 15);
        assert_int_equal(h3_f32_to_f16(wide), h);
    }
}

/* Between two neighbours: the middle goes to the even one, a float off the middle to the nearer one. */
static void between_neighbours(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x7bff; h++) {
        const float low = h3_f16_to_f32((uint16_t)h), high = h3_f16_to_f32((uint16_t)(h + 1)), middle = low + (high - low) / 2;
        assert_int_equal(h3_f32_to_f16(middle), h + (h & 1));
        assert_int_equal(h3_f32_to_f16(nextafterf(middle, 0)), h);
        assert_int_equal(h3_f32_to_f16(nextafterf(middle, INFINITY)), h + 1);
        assert_int_equal(h3_f32_to_f16(-middle), 0x8000u + h + (h & 1));
    }
    assert_int_equal(h3_f32_to_f16(65519.0f), 0x7bff);
    assert_int_equal(h3_f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(h3_f32_to_f16(-3e38f), 0xfc00);
    assert_int_equal(h3_f32_to_f16(0x1p-149f), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_value), cmocka_unit_test(between_neighbours)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
