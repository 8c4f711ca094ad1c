/* The host's model of the tensor core's k16 step, against a brute force in long double and against what was measured. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>

#include <cmocka.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "h3/operator.h"
#include "qualify/tensor_core.h"

enum { STEP = H3_TENSOR_CORE_STEP };

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint64_t random_state = 1;

static uint32_t random_bits(void)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(random_state >> 32);
}

static double uniform(void) { return ((double)random_bits() + 0.5) / 4294967296.0; }

static uint16_t normal(void) { return h3_f32_to_bf16((float)(sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform()))); }

/* A step with these products first and zeros behind them. */
static float step(int count, const float (*pairs)[2], float c)
{
    uint16_t a[STEP] = {0}, b[STEP] = {0};
    for (int i = 0; i < count; i++) {
        a[i] = h3_f32_to_bf16(pairs[i][0]);
        b[i] = h3_f32_to_bf16(pairs[i][1]);
        assert_true(h3_bf16_to_f32(a[i]) == pairs[i][0] && h3_bf16_to_f32(b[i]) == pairs[i][1]);
    }
    return h3_tensor_core_step(a, b, c);
}

static int exponent_of(float value) { return ilogbf(value) < -126 ? -126 : ilogbf(value); }

/* The rule once more: long double holds every product, every cut term and the sum exactly. `guard` is 25 in the rule. */
static float brute_step(const uint16_t a[STEP], const uint16_t b[STEP], float c, int guard)
{
    long double terms[STEP + 1], sum = 0;
    int exponents[STEP + 1], count = 0, largest = -1000;
    for (int k = 0; k <= STEP; k++) {
        const float left = k < STEP ? h3_bf16_to_f32(a[k]) : c, right = k < STEP ? h3_bf16_to_f32(b[k]) : 1.0f;
        if (left == 0 || right == 0) continue;
        terms[count] = (long double)left * (long double)right;
        exponents[count] = exponent_of(left) + exponent_of(right);
        if (exponents[count] > largest) largest = exponents[count];
        count++;
    }
    for (int i = 0; i < count; i++) sum += truncl(ldexpl(terms[i], guard - largest));
    if (sum == 0) return 0.0f;
    const long double value = ldexpl(sum, largest - guard);
    const int last = (ilogbl(value) < -126 ? -126 : ilogbl(value)) - 23;
    const long double kept = ldexpl(truncl(ldexpl(value, -last)), last);
    return fabsl(kept) > FLT_MAX ? (value > 0 ? INFINITY : -INFINITY) : (float)kept;
}

/* One operand: exponents within `spread`, now and then zero or denormal. */
static uint16_t random_operand(int spread, int centre)
{
    const uint32_t r = random_bits(), kind = r >> 27;
    if (kind == 0) return (uint16_t)(r & 0x8000u);
    if (kind == 1) return (uint16_t)(r & 0x807fu);
    const uint32_t exponent = (uint32_t)(centre + (int)(random_bits() % (uint32_t)(2 * spread + 1)) - spread);
    return (uint16_t)((r & 0x807fu) | exponent << 7);
}

static int disagreements(int cases, int guard)
{
    static const int spreads[] = {0, 1, 3, 8, 24, 60}, centres[] = {127, 127, 66, 185};
    int wrong = 0;
    for (int i = 0; i < cases; i++) {
        uint16_t a[STEP], b[STEP];
        const int spread = spreads[random_bits() % 6], centre = centres[random_bits() % 4];
        for (int k = 0; k < STEP; k++) {
            a[k] = random_operand(spread, centre);
            b[k] = random_operand(spread, centre);
            if (random_bits() % 4 == 0 && k > 0) { /* cancellation */
                a[k] = a[k - 1] ^ 0x8000u;
                b[k] = b[k - 1];
            }
        }
        float c = float_of(((uint32_t)random_operand(spread, centre) << 16) | (random_bits() & 0xffffu));
        if (random_bits() % 8 == 0) c = -h3_bf16_to_f32(a[3]) * h3_bf16_to_f32(b[3]);
        if (!isfinite(c)) c = 0;
        wrong += bits_of(h3_tensor_core_step(a, b, c)) != bits_of(brute_step(a, b, c, guard));
    }
    return wrong;
}

static void equals_the_brute_force(void **state)
{
    (void)state;
    assert_int_equal(disagreements(100000, 25), 0);
    assert_true(disagreements(20000, 24) > 20); /* one guard bit less, or more, is another machine */
    assert_true(disagreements(20000, 26) > 20);
}

static void cuts_and_signs(void **state)
{
    (void)state;
    const float tiny = ldexpf(1, -25), tinier = ldexpf(1, -26);
    assert_true(step(3, (const float[][2]){{1.5f, 1.5f}, {-1.5f, 1.5f}, {tiny, 1}}, 0) == tiny);   /* 2.25 has exponent 0 */
    assert_true(step(3, (const float[][2]){{1.5f, 1.5f}, {-1.5f, 1.5f}, {tinier, 1}}, 0) == 0);    /* cut */
    assert_true(step(3, (const float[][2]){{1, 2}, {-1, 2}, {tiny, 1}}, 0) == 0);                  /* 2 has exponent 1 */
    assert_true(step(2, (const float[][2]){{1, 1}, {ldexpf(1, -24), 1}}, 0) == 1);                 /* cut, not rounded */
    assert_true(step(2, (const float[][2]){{1, 1}, {ldexpf(1.9921875f, -24), 1}}, 0) == 1);        /* to nearest it would go up */
    assert_true(step(2, (const float[][2]){{-1, 1}, {ldexpf(-1.9921875f, -24), 1}}, 0) == -1);     /* toward zero on both sides */
    assert_true(step(2, (const float[][2]){{1, 1}, {ldexpf(-1, -25), 1}}, 0) == 1 - ldexpf(1, -24)); /* below 1 bits are finer */
    assert_true(step(1, (const float[][2]){{-tiny, 1}}, 1) == 1 - ldexpf(1, -24));                 /* the accumulator is a term like others */
    const uint32_t plus_zero = 0;
    assert_int_equal(bits_of(step(1, (const float[][2]){{-0.0f, 1}}, -0.0f)), plus_zero);
    assert_int_equal(bits_of(step(2, (const float[][2]){{1, 1}, {-1, 1}}, -0.0f)), plus_zero);
    assert_int_equal(bits_of(step(0, NULL, -0.0f)), plus_zero);
}

static void ranges(void **state)
{
    (void)state;
    const float big = ldexpf(1, 127), denormal = ldexpf(3, -133);
    assert_true(step(1, (const float[][2]){{denormal, 4}}, 0) == denormal * 4);                       /* denormal factor */
    assert_true(step(1, (const float[][2]){{ldexpf(1, -100), ldexpf(3, -49)}}, 0) == ldexpf(3, -149)); /* denormal result */
    assert_true(step(1, (const float[][2]){{ldexpf(1, -100), ldexpf(3, -50)}}, 0) == ldexpf(1, -149)); /* cut */
    assert_true(step(0, NULL, ldexpf(5, -149)) == ldexpf(5, -149));
    assert_true(step(1, (const float[][2]){{big, 2}}, 0) == INFINITY);
    assert_true(step(2, (const float[][2]){{-big, 1}, {-big, 1}}, 0) == -INFINITY);
    assert_true(step(2, (const float[][2]){{big, 2}, {-big, 1.9921875f}}, 0) == ldexpf(1, 120)); /* only the sum overflows */
    assert_true(step(1, (const float[][2]){{INFINITY, -2}}, big) == -INFINITY);
    assert_true(step(1, (const float[][2]){{1, 1}}, INFINITY) == INFINITY);
    const uint32_t nan = 0x7fffffffu;
    assert_int_equal(bits_of(step(1, (const float[][2]){{INFINITY, 0}}, 1)), nan);
    assert_int_equal(bits_of(step(2, (const float[][2]){{INFINITY, 1}, {-INFINITY, 1}}, 1)), nan);
    assert_int_equal(bits_of(step(1, (const float[][2]){{INFINITY, 1}}, -INFINITY)), nan);
    assert_int_equal(bits_of(step(1, (const float[][2]){{1, 1}}, -NAN)), nan);
    const uint16_t one[STEP] = {0x3f80}, broken[STEP] = {0xffc1};
    assert_int_equal(bits_of(h3_tensor_core_step(one, broken, 0)), nan);
}

enum { OUTPUTS = 200, DEPTH = 5376 };

typedef struct operands {
    uint16_t a[OUTPUTS][DEPTH], b[OUTPUTS][DEPTH];
} operands;

static operands *new_operands(void)
{
    operands *o = malloc(sizeof *o);
    assert_non_null(o);
    for (int i = 0; i < OUTPUTS; i++) {
        for (int k = 0; k < DEPTH; k++) {
            o->a[i][k] = normal();
            o->b[i][k] = normal();
        }
    }
    return o;
}

static void order_inside_a_step_is_free_and_order_of_steps_is_not(void **state)
{
    (void)state;
    operands *o = new_operands();
    int permuted = 0, descending = 0, split = 0;
    for (int i = 0; i < OUTPUTS; i++) {
        const float chain = h3_tensor_core_chain(o->a[i], 1, o->b[i], 1, DEPTH, 0);
        float shuffled = 0, backward = 0;
        for (int k = 0; k < DEPTH; k += STEP) {
            uint16_t a[STEP], b[STEP];
            for (int j = 0; j < STEP; j++) {
                a[j] = o->a[i][k + (5 * j + 3) % STEP];
                b[j] = o->b[i][k + (5 * j + 3) % STEP];
            }
            shuffled = h3_tensor_core_step(a, b, shuffled);
            const int turned = k / 64 * 64 + 48 - k % 64;
            backward = h3_tensor_core_step(o->a[i] + turned, o->b[i] + turned, backward);
        }
        const float half = h3_tensor_core_chain(o->a[i], 1, o->b[i], 1, DEPTH / 2, 0);
        const float rest = h3_tensor_core_chain(o->a[i] + DEPTH / 2, 1, o->b[i] + DEPTH / 2, 1, DEPTH / 2, 0);
        permuted += bits_of(shuffled) != bits_of(chain);
        descending += bits_of(backward) != bits_of(chain);
        split += bits_of(half + rest) != bits_of(chain);
        assert_int_equal(bits_of(h3_tensor_core_chain(o->a[i] + DEPTH / 2, 1, o->b[i] + DEPTH / 2, 1, DEPTH / 2, half)), bits_of(chain));
    }
    assert_int_equal(permuted, 0);
    assert_true(descending > OUTPUTS * 75 / 100); /* 87 % were measured */
    assert_true(split > OUTPUTS * 97 / 100);      /* 99.4 % */
    free(o);
}

static void padding_and_strides(void **state)
{
    (void)state;
    uint16_t a[320] = {0}, b[320] = {0}, wide[3 * 264];
    for (int k = 0; k < 264; k++) {
        a[k] = normal();
        b[k] = normal();
        wide[3 * k] = b[k];
        wide[3 * k + 1] = wide[3 * k + 2] = 0x7fc0; /* never read */
    }
    for (int depth = 1; depth <= 264; depth++) {
        uint16_t cut[320] = {0};
        memcpy(cut, a, (size_t)depth * sizeof *cut);
        const float whole = h3_tensor_core_chain(cut, 1, b, 1, 320, 0);
        assert_int_equal(bits_of(h3_tensor_core_chain(a, 1, b, 1, depth, 0)), bits_of(whole));
        assert_int_equal(bits_of(h3_tensor_core_chain(a, 1, wide, 3, depth, 0)), bits_of(whole));
    }
    assert_int_equal(bits_of(h3_tensor_core_chain(a, 1, b, 1, 0, 0)), 0);
    assert_true(h3_tensor_core_chain(a, 1, b, 1, 0, 7) == 7);
    a[100] ^= 1; /* one bit shows */
    assert_int_not_equal(bits_of(h3_tensor_core_chain(a, 1, b, 1, 264, 0)), bits_of(h3_tensor_core_chain(a, 1, wide, 3, 0, 0)));
}

static void chain_drifts_toward_zero_as_measured(void **state)
{
    (void)state;
    operands *o = new_operands();
    double wrong = 0, fused_wrong = 0, power = 0, drift = 0;
    for (int i = 0; i < OUTPUTS; i++) {
        double exact = 0;
        float fused = 0;
        for (int k = 0; k < DEPTH; k++) {
            exact += (double)h3_bf16_to_f32(o->a[i][k]) * (double)h3_bf16_to_f32(o->b[i][k]);
            fused = fmaf(h3_bf16_to_f32(o->a[i][k]), h3_bf16_to_f32(o->b[i][k]), fused);
        }
        const double error = (double)h3_tensor_core_chain(o->a[i], 1, o->b[i], 1, DEPTH, 0) - exact;
        wrong += error * error;
        fused_wrong += ((double)fused - exact) * ((double)fused - exact);
        power += exact * exact;
        drift += exact > 0 ? -error : error;
    }
    const double relative = sqrt(wrong / power), shift = drift / OUTPUTS / sqrt(power / OUTPUTS);
    print_message("# error %.2e (measured 5.8e-6), FMA chain %.2e (7.2e-7), shift toward zero %.2e (4e-6)\n", relative, sqrt(fused_wrong / power), shift);
    assert_true(relative > 4e-6 && relative < 8e-6);
    assert_true(sqrt(fused_wrong / power) < 1.2e-6);
    assert_true(shift > 2.5e-6 && shift < 6e-6);
    free(o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_the_brute_force),
        cmocka_unit_test(cuts_and_signs),
        cmocka_unit_test(ranges),
        cmocka_unit_test(order_inside_a_step_is_free_and_order_of_steps_is_not),
        cmocka_unit_test(padding_and_strides),
        cmocka_unit_test(chain_drifts_toward_zero_as_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
