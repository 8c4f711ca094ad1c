/* nano, tiny and edge: our FP32, BF16 provider and CPU candidate against the published implementation, every output, node and gradient. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "golden.h"

static void must_hold(const char *name, golden_mode mode, double fp32_bound)
{
    golden_result r;
    if (golden_run(&r, name, mode, fp32_bound, "") != H3_OK) fail_msg("%s: %s", name, h3_error_text());
    print_message("# %s %s: %d tensors, %d beyond their bound, worst %s %.3g / %.3g\n", name, mode == GOLDEN_FP32 ? "fp32" : mode == GOLDEN_BF16 ? "bf16" : "candidate",
                  r.compared, r.failed, r.worst_name, r.worst_error, r.worst_bound);
    assert_int_equal(r.failed, 0);
    assert_int_equal(r.compared, r.expected);
    assert_true(r.compared > 100);
}

static void nano_fp32(void **state) { (void)state; must_hold("nano", GOLDEN_FP32, 1e-5); }
static void nano_bf16(void **state) { (void)state; must_hold("nano", GOLDEN_BF16, 0.0); }
static void nano_candidate(void **state) { (void)state; must_hold("nano", GOLDEN_CANDIDATE, 0.0); }
static void tiny_fp32(void **state) { (void)state; must_hold("tiny", GOLDEN_FP32, 1e-5); }
static void tiny_bf16(void **state) { (void)state; must_hold("tiny", GOLDEN_BF16, 0.0); }
static void tiny_candidate(void **state) { (void)state; must_hold("tiny", GOLDEN_CANDIDATE, 0.0); }
static void edge_fp32(void **state) { (void)state; must_hold("edge", GOLDEN_FP32, 1e-4); }

/* A clone has no shared goldens: the project's own samples must be enough, and must bite as well. */
static void tiny_from_samples(void **state)
{
    golden_result r;
    const char *shared = getenv("H3_GOLDEN_SHARED");
    char *kept = shared != NULL ? strdup(shared) : NULL;
    (void)state;
    unsetenv("H3_GOLDEN_SHARED");
    must_hold("tiny", GOLDEN_FP32, 1e-5);
    must_hold("tiny", GOLDEN_BF16, 0.0);
    assert_int_equal(golden_run(&r, "tiny", GOLDEN_FP32, 1e-5, "grad.transformer_blocks.1.ff.net.2.weight"), H3_OK);
    assert_int_equal(r.failed, 1);
    if (kept != NULL) setenv("H3_GOLDEN_SHARED", kept, 1);
    free(kept);
}

/* Where memory is short a block's parameters come and go; nothing changes by that. */
static void one_block_at_a_time(void **state)
{
    (void)state;
    golden_stream = 1;
    must_hold("nano", GOLDEN_FP32, 1e-5);
    must_hold("nano", GOLDEN_CANDIDATE, 0.0);
    golden_stream = 0;
}

/* Two percent on one tensor must be seen in each mode. */
static void a_disturbed_tensor_fails(void **state)
{
    golden_result r;
    (void)state;
    assert_int_equal(golden_run(&r, "nano", GOLDEN_FP32, 1e-5, "node.block1.swiglu"), H3_OK);
    assert_int_equal(r.failed, 1);
    assert_string_equal(r.worst_name, "node.block1.swiglu");
    assert_int_equal(golden_run(&r, "nano", GOLDEN_BF16, 0.0, "out.video"), H3_OK);
    assert_int_equal(r.failed, 1);
    assert_int_equal(golden_run(&r, "nano", GOLDEN_CANDIDATE, 0.0, "grad.proj_out.weight"), H3_OK);
    assert_int_equal(r.failed, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nano_fp32),  cmocka_unit_test(nano_bf16),      cmocka_unit_test(nano_candidate),    cmocka_unit_test(tiny_fp32),
        cmocka_unit_test(tiny_bf16),  cmocka_unit_test(tiny_candidate), cmocka_unit_test(edge_fp32),         cmocka_unit_test(tiny_from_samples),
        cmocka_unit_test(one_block_at_a_time),
        cmocka_unit_test(a_disturbed_tensor_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
