/* The CPU provider against a plain evaluation in double precision: forward values, and gradients by finite differences. */
#include "provider_problem.h"

#include <string.h>

static const char *const block_nodes[] = {
    "adaln_projection", "norm1",  "q_proj",        "k_proj", "v_proj",      "q_norm", "k_norm",   "rope_q",      "rope_k",
    "attention",        "o_proj", "residual_attn", "norm2",  "ffn_gate_up", "swiglu", "ffn_down", "residual_mlp"};
static const char *const boundary_nodes[] = {"linear_bias", "time_embedder", "rotary_table", "norm_out",
                                             "add",         "convert",       "scatter_rows"};
enum { BLOCK_NODES = 17, BOUNDARY_NODES = 7 };

/* FP32 errors reached 4e-7 here. One BF16 rounding is at most 2^-8 relative, and 0.0037 was the largest error of all. */
static double bound(int32_t dtype) { return dtype == H3_F32 ? 2e-6 : 0.005; }

typedef void (*problem_test)(const problem_spec *spec, int32_t dtype);

static void for_every_problem(problem_test test)
{
    for (int i = 0; i < provider_problem_count; i++) {
        test(&provider_problems[i], H3_F32);
        if (!provider_problems[i].fp32_only) test(&provider_problems[i], H3_BF16);
    }
}

static void says_what_it_is(void **state)
{
    (void)state;
    const h3_operator_library *library = provider_library();
    assert_int_equal(library->interface_version, H3_OPERATOR_INTERFACE);
    assert_int_equal(library->size, sizeof(h3_operator_library));
    assert_int_equal(library->device, H3_DEVICE_CPU);
    assert_int_equal(library->build & H3_BUILD_FAST_MATH, 0);
    assert_int_equal(library->operator_count, BLOCK_NODES + BOUNDARY_NODES);
    assert_non_null(strstr(library->architectures, "openblas-0."));
    assert_true(strlen(library->name) && strlen(library->revision) && strlen(library->compiler) && strlen(library->flags));
    for (int i = 0; i < BLOCK_NODES + BOUNDARY_NODES; i++) {
        const h3_operator *op = provider_operator(i < BLOCK_NODES ? block_nodes[i] : boundary_nodes[i - BLOCK_NODES]);
        assert_string_equal(op->label, "reference");
        assert_int_equal(op->promises, H3_PROMISE_REPEAT);
        assert_true(strlen(op->name) && strlen(op->row) && strlen(op->contract) && op->plan && op->forward && op->backward);
    }
}

static void within(const problem *p, const char *what, const h3_tensor *x, const double *golden)
{
    double error = relative_error(x, golden);
    if (!(error <= bound(p->dtype)))
        fail_msg("%s %s (%s): error %g", p->spec->node, what, p->dtype == H3_F32 ? "fp32" : "bf16", error);
}

static void beyond(const problem *p, const char *what, const h3_tensor *x, const double *golden)
{
    double error = relative_error(x, golden);
    if (!(error > bound(p->dtype))) fail_msg("%s %s: a wrong result passes, error %g", p->spec->node, what, error);
}

static void check_forward(const problem_spec *spec, int32_t dtype)
{
    problem *p = problem_new(spec, dtype, 0);
    spec->reference(p);
    problem_forward(p, 0xff);
    within(p, "out", &p->call.out, p->out_value);
    /* The same comparison must see one wrong element of the input. */
    tensor_nudge(&p->call.in[0], 0, 4.0);
    problem_forward(p, 0xff);
    beyond(p, "out", &p->call.out, p->out_value);
    problem_free(p);
}

static void forward_values(void **state)
{
    (void)state;
    for_every_problem(check_forward);
}

typedef void (*comparison)(const problem *p, const char *what, const h3_tensor *x, const double *golden);

/* Row gradients, summed by table row, against the table's gradient in the chunks that the node uses. */
static void compare_row_gradients(problem *p, const double *dtable, comparison compare)
{
    int input = p->spec->table;
    const int64_t *shape = p->call.in[input].shape;
    int64_t width = shape[2];
    for (int c = 0; c < p->spec->row_grads; c++) {
        h3_tensor sums = problem_tensor_new(p, H3_F32, 2, H3_SHAPE(shape[0], width), 0);
        double *golden = problem_block(p, (size_t)(shape[0] * width) * sizeof *golden);
        memset(sums.data, 0, h3_tensor_bytes(&sums));
        for (int64_t i = 0; i < p->call.dout.shape[0] * width; i++) {
            int64_t row = ((const int32_t *)p->call.in[input + 1].data)[i / width];
            ((float *)sums.data)[row * width + i % width] += (float)tensor_value(&p->call.row_grad[c], i);
        }
        for (int64_t i = 0; i < shape[0] * width; i++)
            golden[i] = dtable[(i / width * shape[1] + p->call.chunk + c) * width + i % width];
        compare(p, "row gradient", &sums, golden);
    }
}

static void compare_gradients(problem *p, double *const din[], double *const dparam[], const double *dtable, comparison compare)
{
    for (int i = 0; i < H3_MAX_IN; i++) {
        if (p->spec->gradient_in[i]) compare(p, "input gradient", &p->call.din[i], din[i]);
    }
    for (int i = 0; i < H3_MAX_PARAM; i++) {
        if (p->spec->param[i].kind) compare(p, "parameter gradient", &p->call.dparam[i], dparam[i]);
    }
    if (p->spec->row_grads < 0) compare(p, "table gradient", &p->call.dtable, p->dout_value);
    else if (p->spec->row_grads > 0) compare_row_gradients(p, dtable, compare);
}

static void check_backward(const problem_spec *spec, int32_t dtype)
{
    problem *p = problem_new(spec, dtype, 0);
    double *din[H3_MAX_IN] = {0}, *dparam[H3_MAX_PARAM] = {0}, *dtable = NULL;
    for (int i = 0; i < H3_MAX_IN; i++) {
        if (spec->gradient_in[i]) din[i] = finite_difference(p, p->in_value[i], h3_tensor_count(&p->call.in[i]));
    }
    for (int i = 0; i < H3_MAX_PARAM; i++) {
        if (spec->param[i].kind) dparam[i] = finite_difference(p, p->param_value[i], h3_tensor_count(&p->call.param[i]));
    }
    if (spec->row_grads > 0) dtable = finite_difference(p, p->in_value[spec->table], h3_tensor_count(&p->call.in[spec->table]));
    problem_forward(p, 0xff);
    problem_backward(p, 0xff);
    compare_gradients(p, din, dparam, dtable, within);
    /* Every one of these must notice a wrong upstream gradient, doubled here. */
    h3_tensor *upstream[] = {&p->call.dout, &p->call.row_grad[0], &p->call.row_grad[1], &p->call.row_grad[2],
                             &p->call.row_grad[3]};
    for (int u = 0; u < (spec->row_grads < 0 ? 5 : 1); u++) {
        for (int64_t i = 0; i < h3_tensor_count(upstream[u]); i++) tensor_nudge(upstream[u], i, tensor_value(upstream[u], i));
    }
    problem_backward(p, 0xff);
    compare_gradients(p, din, dparam, dtable, beyond);
    problem_free(p);
}

static void gradients(void **state)
{
    (void)state;
    for_every_problem(check_backward);
}

static void same_bytes(const problem *p, const char *what, const h3_tensor *a, const h3_tensor *b)
{
    if (a->data == NULL) return;
    if (memcmp(a->data, b->data, h3_tensor_bytes(a)) != 0) fail_msg("%s: %s differs between two runs", p->spec->node, what);
}

/* The same bytes at other addresses and with another workspace; and an absent gradient changes nothing else. */
static void check_repeat(const problem_spec *spec, int32_t dtype)
{
    problem *a = problem_new(spec, dtype, 0), *b = problem_new(spec, dtype, 1);
    problem_forward(a, 0xff);
    problem_backward(a, 0xff);
    problem_forward(b, 0x00);
    problem_backward(b, 0x3c);
    same_bytes(a, "out", &a->call.out, &b->call.out);
    for (int i = 0; i < H3_MAX_SAVED; i++) same_bytes(a, "saved", &a->call.saved[i], &b->call.saved[i]);
    for (int i = 0; i < H3_MAX_IN; i++) same_bytes(a, "din", &a->call.din[i], &b->call.din[i]);
    for (int i = 0; i < H3_MAX_PARAM; i++) same_bytes(a, "dparam", &a->call.dparam[i], &b->call.dparam[i]);
    for (int i = 0; i < H3_ROW_GRADS; i++) same_bytes(a, "row_grad", &a->call.row_grad[i], &b->call.row_grad[i]);
    same_bytes(a, "dtable", &a->call.dtable, &b->call.dtable);
    problem_free(a);
    problem_free(b);
}

static void repeats(void **state)
{
    (void)state;
    for_every_problem(check_repeat);
}

/* Each wanted gradient alone has the bytes it has among the others, and the absent ones are not missed. */
static void check_absent(const problem_spec *spec, int32_t dtype)
{
    problem *all = problem_new(spec, dtype, 0);
    problem_forward(all, 0xff);
    problem_backward(all, 0xff);
    for (int wanted = 0; wanted < H3_MAX_IN + H3_MAX_PARAM; wanted++) {
        problem *one = problem_new(spec, dtype, 0);
        h3_tensor *slots[H3_MAX_IN + H3_MAX_PARAM];
        for (int i = 0; i < H3_MAX_IN; i++) slots[i] = &one->call.din[i];
        for (int i = 0; i < H3_MAX_PARAM; i++) slots[H3_MAX_IN + i] = &one->call.dparam[i];
        for (int i = 0; i < H3_MAX_IN + H3_MAX_PARAM; i++) {
            if (i != wanted) *slots[i] = (h3_tensor){0};
        }
        for (int i = 0; i < spec->row_grads; i++) one->call.row_grad[i] = (h3_tensor){0};
        one->call.dtable = (h3_tensor){0};
        problem_forward(one, 0xff);
        problem_backward(one, 0xff);
        same_bytes(one, "a gradient alone", slots[wanted],
                   wanted < H3_MAX_IN ? &all->call.din[wanted] : &all->call.dparam[wanted - H3_MAX_IN]);
        problem_free(one);
    }
    problem_free(all);
}

static void absent_gradients(void **state)
{
    (void)state;
    for_every_problem(check_absent);
}

/* More query rows than one chunk, and a layer wider than one weight panel, against the sum over smaller problems' formulas. */
static void large_problems(void **state)
{
    (void)state;
    problem_spec attention = *problem_named("attention"), layer = *problem_named("linear_bias");
    attention.in[0] = attention.out = (problem_tensor){'a', 4, {1, 300, 1, 8}, 0};
    attention.in[1] = attention.in[2] = (problem_tensor){'a', 4, {1, 40, 1, 8}, 0};
    layer.in[0] = (problem_tensor){'a', 2, {3, 1100}, 0};
    layer.param[0] = (problem_tensor){'w', 2, {1100, 1100}, 0};
    layer.param[1] = (problem_tensor){'a', 1, {1100}, 0};
    layer.out = (problem_tensor){'a', 2, {3, 1100}, 0};
    for (int32_t dtype = H3_F32; dtype <= H3_BF16; dtype++) {
        check_forward(&attention, dtype);
        check_forward(&layer, dtype);
        problem *p = problem_new(&attention, dtype, 0);
        problem_forward(p, 0xff);
        problem_backward(p, 0xff);
        double *dk = finite_difference(p, p->in_value[1], 8);
        h3_tensor first = h3_tensor_view(p->call.din[1].data, dtype, 1, H3_SHAPE(8));
        within(p, "dk over two chunks", &first, dk);
        problem_free(p);
        p = problem_new(&layer, dtype, 0);
        problem_forward(p, 0xff);
        problem_backward(p, 0xff);
        int64_t last = 3 * 1100 - 8, last_weight = 1100 * 1100 - 8;
        h3_tensor dx = h3_tensor_view((char *)p->call.din[0].data + (size_t)last * h3_dtype_size(dtype), dtype, 1, H3_SHAPE(8));
        h3_tensor dweight =
            h3_tensor_view((char *)p->call.dparam[0].data + (size_t)last_weight * h3_dtype_size(dtype), dtype, 1, H3_SHAPE(8));
        within(p, "dx in the last panel", &dx, finite_difference(p, p->in_value[0] + last, 8));
        within(p, "dW in the last panel", &dweight, finite_difference(p, p->param_value[0] + last_weight, 8));
        problem_free(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(says_what_it_is), cmocka_unit_test(forward_values),   cmocka_unit_test(gradients),
        cmocka_unit_test(repeats),         cmocka_unit_test(absent_gradients), cmocka_unit_test(large_problems),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
