/* The gate's judgement on records made by hand: what comes first, what counts as passed, which verdict. */
#include "golden_files.h"

#include <math.h>

#include "qualify/gate_report.h"

enum { LAYOUTS = 2 };

typedef struct scene {
    h3_layout_record layouts[LAYOUTS];
    h3_full_tensor tensors[16];
    h3_gate_result result;
} scene;

static void add_tensor(scene *s, const char *name, int64_t block, int64_t layout, int32_t node)
{
    h3_full_tensor *tensor = &s->tensors[s->result.full.count++];
    *tensor = (h3_full_tensor){.error = 0.001, .bound = 0.002, .equal = 1, .node = node, .block = block, .layout = layout};
    snprintf(tensor->name, sizeof tensor->name, "%s", name);
}

/* Everything ran and passed. The full model's tensors come as two ranks deliver them: block 0 with the input side, then the rest. */
static void make_scene(scene *s)
{
    memset(s, 0, sizeof *s);
    for (int l = 0; l < LAYOUTS; l++) {
        h3_layout_record *layout = &s->layouts[l];
        snprintf(layout->name, sizeof layout->name, "%s", l == 0 ? "a" : "b");
        layout->ran = 1;
        for (int32_t node = 0; node < H3_NODE_COUNT; node++)
            for (int direction = 0; direction < 2; direction++)
                for (int kind = 0; kind < H3_CHECK_KINDS; kind++)
                    if (h3_check_exists(H3_DEVICE_CPU, node, direction, kind, NULL)) layout->node[node].cell[direction][kind].state = H3_CELL_PASSED;
    }
    s->result = (h3_gate_result){.layout_count = LAYOUTS, .layouts = s->layouts, .blocks = 2};
    s->result.full.tensors = s->tensors;
    for (int i = 0; i < H3_SECTIONS; i++) s->result.section[i] = H3_SECTION_PASSED;
    add_tensor(s, "a/boundary.hidden", H3_INPUT_SIDE, 0, -1);
    add_tensor(s, "a/node.block0.norm1", 0, 0, H3_NODE_NORM1);
    add_tensor(s, "a/node.block0.swiglu", 0, 0, H3_NODE_SWIGLU);
    add_tensor(s, "a/dnode.block0.swiglu", 0, 0, H3_NODE_SWIGLU);
    add_tensor(s, "a/dnode.block0.norm1", 0, 0, H3_NODE_NORM1);
    add_tensor(s, "a/grad.proj_in.weight", H3_INPUT_SIDE, 0, -1);
    add_tensor(s, "a/node.block1.norm1", 1, 0, H3_NODE_NORM1);
    add_tensor(s, "a/out.video", H3_OUTPUT_SIDE, 0, -1);
    add_tensor(s, "a/grad.proj_out.weight", H3_OUTPUT_SIDE, 0, -1);
    add_tensor(s, "a/dnode.block1.norm1", 1, 0, H3_NODE_NORM1);
}

static h3_full_tensor *full(scene *s, const char *name)
{
    for (size_t i = 0; i < s->result.full.count; i++)
        if (strcmp(s->tensors[i].name, name) == 0) return &s->tensors[i];
    fail_msg("no tensor %s", name);
    return NULL;
}

static h3_cell *cell(scene *s, int layout, int32_t node, h3_direction direction, h3_check_kind kind)
{
    return &s->layouts[layout].node[node].cell[direction][kind];
}

static void assert_verdict(scene *s, const char *verdict)
{
    h3_gate_judge(&s->result);
    assert_string_equal(s->result.verdict, verdict);
}

static void assert_first(scene *s, int32_t node, const char *check)
{
    assert_verdict(s, "INVALID");
    assert_int_equal(s->result.failure_node, node);
    assert_string_equal(s->result.first_failed_check, check);
}

static void test_all_passed(void **state)
{
    (void)state;
    scene s;
    make_scene(&s);
    assert_verdict(&s, "VALID");
    assert_int_equal(s.result.failed, 0);
    assert_int_equal(s.result.not_run, 0);
    assert_int_equal(s.result.failure_node, -1);
    assert_string_equal(s.result.first_failed_check, "");
    /* 17 nodes, two directions, nine kinds, less promises where there are none and the projection's backward batch */
    assert_int_equal(s.result.checks, LAYOUTS * (2 * 17 * 9 - 17 - 9 - 1));
    assert_int_equal(s.result.bounds, 10);
}

static void test_partial(void **state)
{
    (void)state;
    scene s;
    make_scene(&s);
    s.result.allow_dirty = 1;
    assert_verdict(&s, "PARTIAL");
    make_scene(&s);
    s.result.only = "*"; /* everything, but asked for by a glob */
    assert_verdict(&s, "PARTIAL");
    make_scene(&s);
    s.result.only = "block0*";
    s.result.section[H3_SECTION_FULL] = H3_SECTION_LEFT_OUT;
    assert_verdict(&s, "PARTIAL");
    cell(&s, 0, H3_NODE_NORM1, H3_FORWARD, H3_CHECK_ERROR)->state = H3_CELL_FAILED;
    assert_verdict(&s, "INVALID");
}

/* A section that was to run and did not is no pass, whatever else was asked for. */
static void test_not_run_is_no_pass(void **state)
{
    (void)state;
    scene s;
    for (int i = 0; i < H3_SECTIONS; i++) {
        make_scene(&s);
        s.result.section[i] = H3_SECTION_NOT_RUN;
        assert_verdict(&s, "INVALID");
        make_scene(&s);
        s.result.section[i] = H3_SECTION_FAILED;
        assert_verdict(&s, "INVALID");
        make_scene(&s);
        s.result.section[i] = H3_SECTION_LEFT_OUT; /* without --only */
        assert_verdict(&s, "INVALID");
        make_scene(&s);
        s.result.section[i] = H3_SECTION_NOT_RUN;
        s.result.only = "block0*";
        assert_verdict(&s, "INVALID");
    }
    for (int allow = 0; allow < 2; allow++) {
        make_scene(&s);
        s.result.allow_dirty = allow;
        cell(&s, 1, H3_NODE_ATTENTION, H3_BACKWARD, H3_CHECK_BATCH)->state = H3_CELL_NOT_RUN;
        assert_verdict(&s, "INVALID");
        assert_int_equal(s.result.not_run, 1);
        assert_int_equal(s.result.failure_node, H3_NODE_ATTENTION);
        assert_string_equal(s.result.first_failed_check, "block0.b.attention.backward.batch");
        assert_int_equal(s.result.section[H3_SECTION_BLOCK0], H3_SECTION_FAILED);
    }
}

static void test_every_failing_cell_counts(void **state)
{
    (void)state;
    scene s;
    char name[240];
    for (int32_t node = 0; node < H3_NODE_COUNT; node++) {
        for (int direction = 0; direction < 2; direction++) {
            for (int kind = 0; kind < H3_CHECK_KINDS; kind++) {
                if (!h3_check_exists(H3_DEVICE_CPU, node, direction, kind, NULL)) continue;
                make_scene(&s);
                cell(&s, 1, node, direction, kind)->state = H3_CELL_FAILED;
                h3_check_name(name, "b", node, direction, kind);
                assert_first(&s, kind == H3_CHECK_CHAINED ? -1 : node, name);
                assert_int_equal(s.result.failed, 1);
                assert_int_equal(s.result.section[H3_SECTION_BLOCK0], H3_SECTION_FAILED);
            }
        }
    }
}

static void test_first_failure_is_first_in_execution(void **state)
{
    (void)state;
    scene s;
    make_scene(&s);
    cell(&s, 0, H3_NODE_ATTENTION, H3_BACKWARD, H3_CHECK_ERROR)->state = H3_CELL_FAILED;
    assert_first(&s, H3_NODE_ATTENTION, "block0.a.attention.backward.error");
    cell(&s, 0, H3_NODE_RESIDUAL_MLP, H3_BACKWARD, H3_CHECK_BIAS)->state = H3_CELL_FAILED; /* backward runs from the end */
    assert_first(&s, H3_NODE_RESIDUAL_MLP, "block0.a.residual_mlp.backward.bias");
    cell(&s, 0, H3_NODE_RESIDUAL_MLP, H3_FORWARD, H3_CHECK_WORST_ROW)->state = H3_CELL_FAILED;
    assert_first(&s, H3_NODE_RESIDUAL_MLP, "block0.a.residual_mlp.forward.worst_row");
    cell(&s, 1, H3_NODE_K_PROJ, H3_FORWARD, H3_CHECK_PROCESS)->state = H3_CELL_FAILED; /* another layout, an earlier node */
    assert_first(&s, H3_NODE_K_PROJ, "block0.b.k_proj.forward.process");
    cell(&s, 0, H3_NODE_NORM1, H3_FORWARD, H3_CHECK_CHAINED)->state = H3_CELL_FAILED; /* not its own doing, perhaps */
    assert_first(&s, H3_NODE_K_PROJ, "block0.b.k_proj.forward.process");
    cell(&s, 1, H3_NODE_K_PROJ, H3_FORWARD, H3_CHECK_REPEAT)->state = H3_CELL_FAILED;
    assert_first(&s, H3_NODE_K_PROJ, "block0.b.k_proj.forward.repeat");
    cell(&s, 0, H3_NODE_K_PROJ, H3_FORWARD, H3_CHECK_BATCH)->state = H3_CELL_FAILED; /* the plan's order of layouts within a node */
    assert_first(&s, H3_NODE_K_PROJ, "block0.a.k_proj.forward.batch");
}

static void test_nan_cell_fails(void **state)
{
    (void)state;
    scene s;
    make_scene(&s);
    h3_cell *c = cell(&s, 0, H3_NODE_NORM2, H3_FORWARD, H3_CHECK_ERROR);
    *c = (h3_cell){.state = H3_CELL_NOT_RUN};
    h3_cell_note(c, 0.001, 0.002, 0.0015, "out");
    assert_int_equal(c->state, H3_CELL_PASSED);
    h3_cell_note(c, NAN, 0.002, 0.0015, "din0");
    assert_int_equal(c->state, H3_CELL_FAILED);
    h3_cell_note(c, 0.0001, 0.002, 0.0015, "dparam0"); /* cannot be made good again */
    h3_cell_note(c, 0.003, 0.002, 0.0015, "dparam1");
    h3_cell_pass(c);
    assert_int_equal(c->state, H3_CELL_FAILED);
    assert_true(isnan(c->value));
    assert_string_equal(c->detail, "din0");
    assert_first(&s, H3_NODE_NORM2, "block0.a.norm2.forward.error");
    *c = (h3_cell){.state = H3_CELL_NOT_RUN};
    h3_cell_note(c, 0.0, NAN, NAN, "a bound that is no number");
    assert_int_equal(c->state, H3_CELL_FAILED);
}

static void test_cells_keep_the_worst(void **state)
{
    (void)state;
    h3_cell c = {.state = H3_CELL_NOT_RUN};
    h3_cell_note(&c, 0.5, 1.0, 0.4, "half");
    h3_cell_note(&c, 0.9, 1.0, 0.4, "most");
    h3_cell_note(&c, 0.1, 1.0, 0.4, "little");
    assert_int_equal(c.state, H3_CELL_PASSED);
    assert_string_equal(c.detail, "most");
    h3_cell_note(&c, 1.0, 1.0, 0.4, "equal"); /* value <= bound */
    assert_int_equal(c.state, H3_CELL_PASSED);
    h3_cell_note(&c, 0.011, 0.01, 0.4, "beyond");
    assert_int_equal(c.state, H3_CELL_FAILED);
    assert_string_equal(c.detail, "beyond");
    h3_cell_note(&c, 0.02, 0.01, 0.4, "farther");
    assert_string_equal(c.detail, "farther");
    h3_cell_note(&c, 0.999, 1.0, 0.4, "inside");
    assert_string_equal(c.detail, "farther");
    h3_cell absent = {.state = H3_CELL_ABSENT};
    h3_cell_pass(&absent); /* only what was to run can pass */
    assert_int_equal(absent.state, H3_CELL_ABSENT);
    h3_cell_note(NULL, 2.0, 1.0, 0.0, "");
    h3_cell_fail(NULL, "");
    h3_cell_pass(NULL);
}

static void test_build_failure_comes_first(void **state)
{
    (void)state;
    scene s;
    make_scene(&s);
    s.result.section[H3_SECTION_BUILD] = H3_SECTION_FAILED;
    snprintf(s.result.build_problem, sizeof s.result.build_problem, "built with fast math");
    cell(&s, 0, H3_NODE_ADALN, H3_FORWARD, H3_CHECK_EXECUTION)->state = H3_CELL_FAILED;
    assert_verdict(&s, "INVALID");
    assert_string_equal(s.result.first_failed_check, "build");
    assert_string_equal(s.result.first_failed_detail, "built with fast math");
}

static void test_drifts(void **state)
{
    (void)state;
    scene s;
    make_scene(&s);
    assert_verdict(&s, "VALID");
    for (int i = 0; i < 6; i++) assert_string_equal(s.result.drift[i], "");
    make_scene(&s);
    s.layouts[1].node[H3_NODE_ATTENTION].drift[H3_FORWARD] = 1; /* information: a right candidate drifts too */
    s.layouts[0].node[H3_NODE_FFN_DOWN].isolated_drift[H3_BACKWARD] = 1;
    s.layouts[0].node[H3_NODE_NORM1].isolated_drift[H3_BACKWARD] = 1;
    assert_verdict(&s, "VALID");
    assert_string_equal(s.result.drift[0], "attention");
    assert_string_equal(s.result.drift[1], "ffn_down backward");
    make_scene(&s);
    cell(&s, 0, H3_NODE_SWIGLU, H3_FORWARD, H3_CHECK_REPEAT)->state = H3_CELL_FAILED;
    cell(&s, 0, H3_NODE_O_PROJ, H3_FORWARD, H3_CHECK_BATCH)->state = H3_CELL_FAILED;
    cell(&s, 0, H3_NODE_Q_NORM, H3_BACKWARD, H3_CHECK_REPEAT)->state = H3_CELL_FAILED;
    cell(&s, 0, H3_NODE_SWIGLU, H3_BACKWARD, H3_CHECK_BATCH)->state = H3_CELL_FAILED;
    cell(&s, 0, H3_NODE_NORM1, H3_BACKWARD, H3_CHECK_BATCH)->state = H3_CELL_FAILED;
    assert_verdict(&s, "INVALID");
    static const char *const wanted[6] = {"", "", "swiglu", "o_proj", "q_norm backward", "swiglu backward"};
    for (int i = 0; i < 6; i++) assert_string_equal(s.result.drift[i], wanted[i]);
}

static void test_full_model_bounds(void **state)
{
    (void)state;
    scene s;
    make_scene(&s);
    full(&s, "a/node.block1.norm1")->error = 0.003;
    assert_first(&s, H3_NODE_NORM1, "full.a/node.block1.norm1");
    assert_int_equal(s.result.bounds_failed, 1);
    assert_int_equal(s.result.section[H3_SECTION_FULL], H3_SECTION_FAILED);
    assert_null(s.result.failure_layout);
    make_scene(&s);
    full(&s, "a/out.video")->error = NAN;
    assert_first(&s, -1, "full.a/out.video");
    make_scene(&s); /* forward before backward, whatever rank delivered it first */
    full(&s, "a/dnode.block0.swiglu")->error = 1.0;
    full(&s, "a/node.block1.norm1")->error = 1.0;
    assert_first(&s, H3_NODE_NORM1, "full.a/node.block1.norm1");
    assert_int_equal(s.result.bounds_failed, 2);
    make_scene(&s); /* backward from the output side on */
    full(&s, "a/dnode.block0.norm1")->error = 1.0;
    full(&s, "a/dnode.block1.norm1")->error = 1.0;
    full(&s, "a/grad.proj_in.weight")->error = 1.0;
    assert_first(&s, H3_NODE_NORM1, "full.a/dnode.block1.norm1");
    full(&s, "a/grad.proj_out.weight")->error = 1.0;
    assert_first(&s, -1, "full.a/grad.proj_out.weight");
    make_scene(&s); /* block 0 keeps the first failure when it has one */
    full(&s, "a/node.block0.norm1")->error = 1.0;
    cell(&s, 0, H3_NODE_SWIGLU, H3_BACKWARD, H3_CHECK_ERROR)->state = H3_CELL_FAILED;
    assert_first(&s, H3_NODE_SWIGLU, "block0.a.swiglu.backward.error");
}

static void test_full_model_order_and_drift(void **state)
{
    (void)state;
    static const char *const order[] = {"a/boundary.hidden",      "a/node.block0.norm1",  "a/node.block0.swiglu",  "a/node.block1.norm1",  "a/out.video",
                                        "a/grad.proj_out.weight", "a/dnode.block1.norm1", "a/dnode.block0.swiglu", "a/dnode.block0.norm1", "a/grad.proj_in.weight"};
    scene s;
    make_scene(&s);
    full(&s, "a/node.block1.norm1")->equal = 0;
    full(&s, "a/out.video")->equal = 0;
    full(&s, "a/dnode.block0.swiglu")->equal = 0;
    full(&s, "a/grad.proj_out.weight")->equal = 0;
    assert_verdict(&s, "VALID");
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) assert_string_equal(s.tensors[i].name, order[i]);
    assert_string_equal(s.result.full_drift[H3_FORWARD], "a/node.block1.norm1");
    assert_string_equal(s.result.full_drift[H3_BACKWARD], "a/grad.proj_out.weight");
}

static void test_full_model_execution(void **state)
{
    (void)state;
    scene s;
    make_scene(&s);
    snprintf(s.result.full.problem, sizeof s.result.full.problem, "block 1 node swiglu: fell back to x");
    s.result.full.problem_node = H3_NODE_SWIGLU;
    full(&s, "a/node.block0.norm1")->error = 1.0;
    assert_first(&s, H3_NODE_SWIGLU, "full.execution");
    assert_string_equal(s.result.first_failed_detail, "block 1 node swiglu: fell back to x");
    make_scene(&s);
    snprintf(s.result.full.problem, sizeof s.result.full.problem, "9 tensors were compared, 10 bounds are frozen");
    s.result.full.problem_node = -1;
    assert_first(&s, -1, "full.execution");
}

/* Judging is done after block 0 and again at the end: the second time finds the same. */
static void test_judging_twice(void **state)
{
    (void)state;
    scene s;
    make_scene(&s);
    cell(&s, 1, H3_NODE_ROPE_K, H3_FORWARD, H3_CHECK_PROMISE)->state = H3_CELL_FAILED;
    assert_first(&s, H3_NODE_ROPE_K, "block0.b.rope_k.forward.promise");
    h3_gate_result before = s.result;
    assert_first(&s, H3_NODE_ROPE_K, "block0.b.rope_k.forward.promise");
    assert_int_equal(before.checks, s.result.checks);
    assert_int_equal(before.bounds, s.result.bounds);
    assert_int_equal(before.failed, s.result.failed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_passed), cmocka_unit_test(test_partial), cmocka_unit_test(test_not_run_is_no_pass),
        cmocka_unit_test(test_every_failing_cell_counts), cmocka_unit_test(test_first_failure_is_first_in_execution), cmocka_unit_test(test_nan_cell_fails),
        cmocka_unit_test(test_cells_keep_the_worst), cmocka_unit_test(test_build_failure_comes_first), cmocka_unit_test(test_drifts),
        cmocka_unit_test(test_full_model_bounds), cmocka_unit_test(test_full_model_order_and_drift), cmocka_unit_test(test_full_model_execution),
        cmocka_unit_test(test_judging_twice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
