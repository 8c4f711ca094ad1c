/* The CPU candidate library: identity, its exp, every node against scalar twins and double formulas, refusals. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>

#pragma GCC target("avx2,fma")

#include "../../kernels/candidate/cpu/vector.h"

#include "candidate_reals.h"
#include "candidate_support.h"
#include "candidate_twins.h"

/* ---- identity ---- */

static void library_says_what_it_is(void **state)
{
    (void)state;
    static const char *const rows[NODES] = {
        "adaln_projection_3mod", "h3_rmsnorm", "h3_qkv_gemm", "h3_qkv_gemm", "h3_qkv_gemm", "h3_qk_rmsnorm_d128",
        "h3_qk_rmsnorm_d128", "h3_mm_rope_3axis_partial", "h3_mm_rope_3axis_partial", "h3_full_attention",
        "h3_attention_o_gemm", "adaln_gate_residual", "h3_rmsnorm", "h3_ffn_gate_up_gemm", "h3_swiglu",
        "h3_ffn_down_gemm", "adaln_gate_residual"};
    const h3_operator_library *lib = library();
    assert_int_equal(lib->interface_version, H3_OPERATOR_INTERFACE);
    assert_int_equal(lib->size, sizeof *lib);
    assert_int_equal(lib->device, H3_DEVICE_CPU);
    assert_int_equal(lib->build & (uint32_t)H3_BUILD_FAST_MATH, 0);
    assert_int_equal(lib->operator_count, NODES);
    for (size_t i = 0; i < NODES; i++) {
        const h3_operator *op = &lib->operators[i];
        const char *node = node_names[i];
        const bool bitwise = is_norm(node) || is(node, "rope") || is(node, "residual");
        assert_string_equal(op->node, node);
        assert_string_equal(op->row, rows[i]);
        assert_string_equal(op->label, "row");
        assert_int_equal(op->promises, bitwise ? 7 : 3);
        if (is_norm(node)) assert_string_equal(op->contract, "rmsnorm-v4x128-v1");
        if (is_linear(node)) assert_string_equal(op->contract, "gemm-f32-kasc-fma-v1");
        for (size_t j = 0; j < i; j++) assert_string_not_equal(op->name, lib->operators[j].name);
    }
    assert_null(dlsym(library_handle(), "h3_gemm_run"));
}

/* ---- exp ---- */

static void exp_is_accurate_and_has_its_twins_bits(void **state)
{
    (void)state;
    double worst = 0;
    for (int i = 0; i < 400000; i++) {
        float x[8], y[8];
        for (int l = 0; l < 8; l++) x[l] = -106.0f + (float)(i * 8 + l) * (197.0f / 3200000.0f);
        _mm256_storeu_ps(y, h3_exp8(_mm256_loadu_ps(x)));
        for (int l = 0; l < 8; l++) {
            const float twin = twin_exp(x[l]);
            if (memcmp(&y[l], &twin, sizeof twin)) fail_msg("exp(%a): %a, twin %a", (double)x[l], (double)y[l], (double)twin);
            const double exact = exp((double)x[l]);
            if (exact > 0x1.fffffep127 || exact < 0x1p-126) continue;
            const double ulps = fabs((double)y[l] - exact) / ldexp(1.0, ilogb(exact) - 23);
            if (ulps > worst) worst = ulps;
        }
    }
    print_message("exp: at most %.3f ulp from the exact value\n", worst);
    assert_true(worst <= 1.0);
    assert_true(worst > 0.3); /* the sweep does meet inexact values */
}

static void exp_is_safe_at_the_ends(void **state)
{
    (void)state;
    float x[8] = {INFINITY, -INFINITY, NAN, 0.0f, 88.7228f, 88.73f, -103.9f, -87.5f}, y[8];
    _mm256_storeu_ps(y, h3_exp8(_mm256_loadu_ps(x)));
    assert_true(isinf(y[0]) && isinf(y[5]) && !isinf(y[4]));
    assert_true(y[1] == 0.0f && y[6] > 0.0f && y[6] < 0x1p-126f && y[3] == 1.0f);
    assert_true(isnan(y[2]));
    assert_true(fabsf(y[7] - expf(-87.5f)) <= 0x1p-149f);
}

static void rounding_is_the_headers(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 65536u * 8; i++) {
        float x[8];
        uint16_t y[8];
        for (uint32_t l = 0; l < 8; l++) {
            const uint32_t bits = (i << 13) ^ (l * 0x3fffu) ^ (i >> 7);
            memcpy(&x[l], &bits, sizeof bits);
        }
        h3_store8(y, _mm256_loadu_ps(x), 8);
        for (int l = 0; l < 8; l++) assert_int_equal(y[l], h3_f32_to_bf16(x[l]));
    }
}

/* ---- twins ---- */

/* Runs kernels and twins of a node, both directions; returns the number of the first tensor that differs, or -1. */
static int compare_with_twin(const char *node, const dims *d)
{
    pool p = {0};
    h3_call c = build(&p, node, d);
    run_both(&p, node, &c);
    h3_call twin = with_fresh_outputs(&p, &c);
    run_twin(&p, node, &twin, false);
    run_twin(&p, node, &twin, true);
    const int result = first_difference(&c, &twin);
    give_back(&p);
    return result;
}

static void check_twins(const char *node, const dims *list, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        dims d = list[i];
        for (int modulated = 0; modulated < 2; modulated++) {
            d.modulated = modulated;
            const int differs = compare_with_twin(node, &d);
            if (differs >= 0) {
                fail_msg("%s, %d x %d rows, hidden %d, modulated %d: tensor %d differs from its twin", node, (int)d.batch,
                         (int)d.rows, (int)d.hidden, modulated, differs);
            }
            if (!is(node, "norm") && !is(node, "residual")) break;
        }
    }
}

static void nodes_equal_their_twins(void **state)
{
    (void)state;
    const dims list[] = {NANO(1), NANO(5), NANO(29), NANO(257), ODD(1), ODD(31), TINY(5), TINY(33), TINY(78)};
    for (size_t i = 0; i < NODES; i++) check_twins(node_names[i], list, sizeof list / sizeof list[0]);
}

/* Contractions past one step of the first cache, rows past one packed chunk, columns past one packed chunk, wide rows. */
static void large_nodes_equal_their_twins(void **state)
{
    (void)state;
    const dims deep = {1, 7, 7, 1037, 1, 24, 13, 9, 1, 2, true};
    const dims tall = {1, 997, 997, 21, 1, 24, 9, 9, 3, 2, true};
    const dims wide = {1, 7, 7, 19, 1, 1058, 9, 9, 1, 2, true};
    check_twins("q_proj", &deep, 1);
    check_twins("q_proj", &tall, 1);
    check_twins("q_proj", &wide, 1);
    check_twins("norm1", &deep, 1);
    check_twins("norm2", &tall, 1);
    check_twins("adaln_projection", &deep, 1);
    check_twins("rope_q", &wide, 1);
    check_twins("swiglu", &tall, 1);
}

/* Fewer and more query rows than keys. */
static void attention_of_unequal_sides_equals_its_twin(void **state)
{
    (void)state;
    dims d = ODD(50);
    for (d.queries = 1; d.queries < 80; d.queries += 13) assert_int_equal(compare_with_twin("attention", &d), -1);
}

static void a_changed_input_changes_every_twin(void **state)
{
    (void)state;
    const dims d = NANO(5);
    for (size_t i = 0; i < NODES; i++) {
        pool p = {0};
        h3_call c = build(&p, node_names[i], &d);
        run_both(&p, node_names[i], &c);
        h3_call twin = with_fresh_outputs(&p, &c);
        ((uint16_t *)c.in[is(node_names[i], "residual") ? 1 : 0].data)[1] ^= 0x0080;
        run_twin(&p, node_names[i], &twin, false);
        if (!memcmp(twin.out.data, c.out.data, tensor_bytes(&c.out))) {
            fail_msg("%s: a changed input goes unnoticed", node_names[i]);
        }
        if (c.dout.data) ((uint16_t *)c.dout.data)[2] ^= 0x0080;
        else ((uint16_t *)c.row_grad[3].data)[2] ^= 0x0080;
        run_twin(&p, node_names[i], &twin, true);
        h3_tensor *mine = c.dtable.data ? &c.dtable : c.din[0].data ? &c.din[0] : &c.din[1];
        h3_tensor *its = twin.dtable.data ? &twin.dtable : twin.din[0].data ? &twin.din[0] : &twin.din[1];
        if (!memcmp(mine->data, its->data, tensor_bytes(mine))) fail_msg("%s: a changed gradient goes unnoticed", node_names[i]);
        give_back(&p);
    }
}

/* ---- double formulas ---- */

/* Largest error of the forward and of all gradients against the double formulas and their numeric gradients. */
static void errors_of(const char *node, const dims *d, double wrong, double *forward, double *backward)
{
    pool p = {0};
    h3_call c = build(&p, node, d);
    run_both(&p, node, &c);
    reals r = reals_of(&p, node, &c);
    r.in[0][3] += wrong;
    if (is(node, "residual") && d->modulated) {
        r.in[2][3 + (((int32_t *)c.in[3].data)[0] * 6 + c.chunk) * d->hidden] += wrong; /* the gradients do not read x */
    }
    real_forward(&p, &r);
    *forward = error_of(widened(&p, &c.out), r.out, h3_tensor_count(&c.out));
    *backward = 0;
    for (int i = 0; i < H3_MAX_IN + 2; i++) {
        const h3_tensor *mine = i < H3_MAX_IN ? &c.din[i] : &c.dparam[i - H3_MAX_IN];
        if (!mine->data) continue;
        double *values = i < H3_MAX_IN ? r.in[i] : r.param[i - H3_MAX_IN];
        const double *exact = numeric_gradient(&p, &r, values, h3_tensor_count(mine));
        const double e = error_of(widened(&p, mine), exact, h3_tensor_count(mine));
        if (e > *backward) *backward = e;
    }
    const int table = is(node, "residual") ? 2 : 1;
    if (c.dout.data && c.row_grad[0].data) {
        double *sums = NULL;
        for (int i = 0; i < H3_ROW_GRADS && c.row_grad[i].data; i++) {
            sums = segment_sums(&p, &c.in[table], &c.in[table + 1], &c.row_grad[i], c.chunk + i, sums);
        }
        const double *exact = numeric_gradient(&p, &r, r.in[table], h3_tensor_count(&c.in[table]));
        const double e = error_of(sums, exact, h3_tensor_count(&c.in[table]));
        if (e > *backward) *backward = e;
    } else if (c.dtable.data) {
        const double e = error_of(widened(&p, &c.dtable), r.cotangent, h3_tensor_count(&c.dtable));
        if (e > *backward) *backward = e;
    }
    give_back(&p);
}

static void nodes_follow_the_double_formulas(void **state)
{
    (void)state;
    for (size_t i = 0; i < NODES; i++) {
        double worst_forward = 0, worst_backward = 0;
        const dims list[] = {NANO(5), ODD(3)};
        for (int k = 0; k < 4; k++) {
            dims d = list[k % 2];
            double forward, backward;
            d.modulated = k < 2;
            if (k >= 2 && !is(node_names[i], "norm") && !is(node_names[i], "residual")) continue;
            if (is(node_names[i], "adaln") && k == 0) d.hidden = 5;
            if (is(node_names[i], "adaln") && k == 1) continue;
            errors_of(node_names[i], &d, 0, &forward, &backward);
            worst_forward = forward > worst_forward ? forward : worst_forward;
            worst_backward = backward > worst_backward ? backward : worst_backward;
        }
        print_message("%-17s error forward %.2e backward %.2e\n", node_names[i], worst_forward, worst_backward);
        if (!(worst_forward <= 5e-3)) fail_msg("%s: forward error %g", node_names[i], worst_forward);
        if (!(worst_backward <= 8e-3)) fail_msg("%s: backward error %g", node_names[i], worst_backward);
    }
}

static void a_wrong_value_exceeds_the_error_bounds(void **state)
{
    (void)state;
    for (size_t i = 0; i < NODES; i++) {
        dims d = NANO(3);
        double forward, backward;
        if (is(node_names[i], "adaln")) d.hidden = 3;
        errors_of(node_names[i], &d, 8.0, &forward, &backward);
        if (forward <= 5e-3) fail_msg("%s: forward error stays %g", node_names[i], forward);
        if (!is(node_names[i], "rope") && backward <= 8e-3) fail_msg("%s: backward error stays %g", node_names[i], backward);
    }
}

/* Scores far past exp's range, one-hot rows, equal scores: finite, and a sum of probabilities of one. */
static void attention_survives_extreme_scores(void **state)
{
    (void)state;
    pool p = {0};
    const dims d = ODD(33);
    h3_call c = build(&p, "attention", &d);
    for (int64_t i = 0; i < h3_tensor_count(&c.in[0]); i++) put(&c.in[0], i, at(&c.in[0], i) * (i % 2 ? 64.0f : 0.0f));
    for (int64_t i = 0; i < h3_tensor_count(&c.in[2]); i++) put(&c.in[2], i, 1.0f);
    run_both(&p, "attention", &c);
    for (int64_t i = 0; i < h3_tensor_count(&c.out); i++) assert_true(at(&c.out, i) == 1.0f);
    for (int i = 0; i < 3; i++) {
        for (int64_t k = 0; k < h3_tensor_count(&c.din[i]); k++) assert_true(isfinite(at(&c.din[i], k)));
    }
    ((uint16_t *)c.in[2].data)[0] = h3_f32_to_bf16(NAN);
    run(&p, "attention", &c, false);
    assert_true(isnan(at(&c.out, 0))); /* a NaN is not swallowed */
    give_back(&p);
}

/* ---- optional gradients and refusals ---- */

static void absent_gradients_change_nothing(void **state)
{
    (void)state;
    const dims d = ODD(9);
    for (size_t i = 0; i < NODES; i++) {
        pool p = {0};
        h3_call full = build(&p, node_names[i], &d);
        run_both(&p, node_names[i], &full);
        h3_tensor *optional[] = {&full.din[0], &full.din[1], &full.din[2], &full.dparam[0], &full.dparam[1], &full.dtable,
                                 &full.row_grad[0], &full.row_grad[1]};
        for (size_t k = 0; k < sizeof optional / sizeof optional[0]; k++) {
            if (!optional[k]->data || (k > 5 && !full.dout.data)) continue;
            h3_call one = with_fresh_outputs(&p, &full);
            h3_tensor *kept = (h3_tensor *)(void *)((char *)&one + ((char *)optional[k] - (char *)&full));
            const h3_tensor wanted = *kept;
            memset(one.din, 0, sizeof one.din);
            memset(one.dparam, 0, sizeof one.dparam);
            one.dtable = (h3_tensor){0};
            if (full.dout.data) memset(one.row_grad, 0, sizeof one.row_grad);
            *kept = wanted;
            one.out = full.out;
            one.saved[0] = full.saved[0];
            run(&p, node_names[i], &one, true);
            assert_memory_equal(wanted.data, optional[k]->data, tensor_bytes(&wanted));
        }
        give_back(&p);
    }
}

/* One way to spoil a call. Returns false where it does not apply. */
static bool spoil(h3_call *c, int kind)
{
    h3_tensor *list[TENSORS];
    tensors_of(c, list);
    if (kind < 5 * TENSORS) {
        h3_tensor *t = list[kind / 5];
        if (!t->data) return false;
        switch (kind % 5) {
        case 0: t->shape[t->rank - 1] += 1; return true;
        case 1: t->shape[0] = INT64_MAX / 2; return true;
        case 2: t->shape[0] += 1; return true;
        case 3: t->dtype = t->dtype == H3_F32 ? H3_BF16 : H3_F32; return true;
        default:
            if (t >= c->din && t < c->din + H3_MAX_IN) return false;
            if (t >= c->dparam && t < c->dparam + H3_MAX_PARAM) return false;
            if (t == &c->dtable) return false;
            t->data = NULL;
            return !(t >= c->row_grad && t < c->row_grad + H3_ROW_GRADS && c->dout.data);
        }
    }
    switch (kind - 5 * TENSORS) {
    case 0: c->size -= 1; return true;
    case 1: c->device = H3_DEVICE_CUDA; return true;
    case 2: c->workspace_bytes -= 1; return c->workspace_bytes < SIZE_MAX;
    case 3: c->workspace = (char *)c->workspace + 4; return c->workspace_bytes > 0;
    case 4: c->chunk = 6; return c->in[1].rank == 3 && c->in[1].shape[1] == 6;
    default:
        for (int i = 1; i < H3_MAX_IN; i++) {
            if (c->in[i].dtype != H3_I32 || !c->in[i].data) continue;
            ((int32_t *)c->in[i].data)[0] = kind % 2 ? -1 : 1 << 20;
            return true;
        }
        return false;
    }
}

/* Whether the forward reads this tensor at all. */
static bool concerns(const h3_call *c, int kind, bool backward)
{
    h3_call copy = *c;
    h3_tensor *list[TENSORS];
    tensors_of(&copy, list);
    if (kind >= 5 * TENSORS) return true;
    const h3_tensor *t = list[kind / 5];
    const bool forward_only = t == &copy.out || (t >= copy.saved && t < copy.saved + H3_MAX_SAVED);
    const bool attention = copy.saved[0].data != NULL;
    if (backward) return !forward_only || attention;
    return t <= &copy.param[H3_MAX_PARAM - 1] || forward_only;
}

static void spoiled_calls_are_refused(void **state)
{
    (void)state;
    const dims d = NANO(5);
    int tried = 0;
    for (size_t i = 0; i < NODES; i++) {
        const h3_operator *op = operator_of(node_names[i]);
        for (int kind = 0; kind < 5 * TENSORS + 7; kind++) {
            for (int backward = 0; backward < 2; backward++) {
                pool p = {0};
                h3_call c = build(&p, node_names[i], &d);
                run(&p, node_names[i], &c, false);
                if (backward) run(&p, node_names[i], &c, true);
                memset(c.message, 0, sizeof c.message);
                if (concerns(&c, kind, backward) && spoil(&c, kind)) {
                    h3_call_plan plan;
                    op->plan(&c, &plan);
                    if (!(backward ? op->backward : op->forward)(&c)) fail_msg("%s accepts spoil %d", node_names[i], kind);
                    assert_true(strlen(c.message) > 5 && strlen(c.message) < sizeof c.message);
                    tried++;
                }
                give_back(&p);
            }
        }
    }
    print_message("%d spoiled calls refused\n", tried);
    assert_true(tried > 500);
}

static void float_activations_are_refused_in_words(void **state)
{
    (void)state;
    pool p = {0};
    const dims d = NANO(5);
    for (size_t i = 1; i < NODES; i++) {
        h3_call_plan plan;
        h3_call c = build(&p, node_names[i], &d);
        c.in[0].dtype = H3_F32;
        assert_int_not_equal(operator_of(node_names[i])->plan(&c, &plan), 0);
        assert_int_not_equal(operator_of(node_names[i])->forward(&c), 0);
        assert_non_null(strstr(c.message, "supports BF16 only"));
    }
    give_back(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(library_says_what_it_is),
        cmocka_unit_test(exp_is_accurate_and_has_its_twins_bits),
        cmocka_unit_test(exp_is_safe_at_the_ends),
        cmocka_unit_test(rounding_is_the_headers),
        cmocka_unit_test(nodes_equal_their_twins),
        cmocka_unit_test(large_nodes_equal_their_twins),
        cmocka_unit_test(attention_of_unequal_sides_equals_its_twin),
        cmocka_unit_test(a_changed_input_changes_every_twin),
        cmocka_unit_test(nodes_follow_the_double_formulas),
        cmocka_unit_test(a_wrong_value_exceeds_the_error_bounds),
        cmocka_unit_test(attention_survives_extreme_scores),
        cmocka_unit_test(absent_gradients_change_nothing),
        cmocka_unit_test(spoiled_calls_are_refused),
        cmocka_unit_test(float_activations_are_refused_in_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
