/* Calls that the CPU provider must refuse: every tensor of every node in a wrong shape, type or place. Never a crash. */
#include "provider_problem.h"

#include <string.h>

/* The call must fail, with one line of text. */
static void refused(const problem *p, const char *what, int (*call)(h3_call *), h3_call *arguments)
{
    if (call(arguments) == 0) fail_msg("%s %s: %s is accepted", p->spec->node, p->dtype == H3_F32 ? "fp32" : "bf16", what);
    if (strlen(arguments->message) == 0 || strchr(arguments->message, '\n'))
        fail_msg("%s: %s: no one-line message", p->spec->node, what);
    if (strlen(arguments->report.kernel) != 0) fail_msg("%s: %s: refused, yet something ran", p->spec->node, what);
}

/* Every way to damage one tensor. Returns 0 when there are no more. */
static int damage(h3_tensor *tensor, int way, const char **what)
{
    static const char *const names[] = {"another type",  "an integer type", "rank + 1",      "rank - 1",  "rank 9",
                                        "negative rank", "zero size",       "negative size", "huge size", "wrong stride",
                                        "larger first",  "larger last",     "larger middle"};
    if (way >= (int)(sizeof names / sizeof names[0])) return 0;
    *what = names[way];
    int32_t last = tensor->rank - 1;
    switch (way) {
    case 0: tensor->dtype = H3_F64; break;
    case 1: tensor->dtype = tensor->dtype == H3_I32 ? H3_I64 : H3_I32; break;
    case 2: tensor->shape[tensor->rank] = tensor->stride[tensor->rank] = 1, tensor->rank++; break;
    case 3: tensor->rank--; break;
    case 4: tensor->rank = 9; break;
    case 5: tensor->rank = -1; break;
    case 6: tensor->shape[0] = 0; break;
    case 7: tensor->shape[last] = -1; break;
    case 8: tensor->shape[0] = (int64_t)1 << 62; break;
    case 9: tensor->stride[last] = 2; break;
    case 10: tensor->shape[0]++; break;
    case 11: tensor->shape[last]++; break;
    default: tensor->shape[last / 2]++; break;
    }
    if (way >= 10) { /* dense again, so that only the size is wrong */
        for (int32_t i = last; i >= 0; i--) tensor->stride[i] = i == last ? 1 : tensor->stride[i + 1] * tensor->shape[i + 1];
    }
    return 1;
}

/* Damages the tensor at `offset` in the call in every way. Sizes of a tensor that nothing else is measured against may be larger.
 */
static void check_tensor(problem *p, size_t offset, int (*call)(h3_call *), int required)
{
    const char *what = NULL;
    for (int way = 0;; way++) {
        h3_call broken = p->call;
        h3_tensor *tensor = (h3_tensor *)((char *)&broken + offset);
        if (tensor->data == NULL || !damage(tensor, way, &what)) break;
        refused(p, what, call, &broken);
    }
    h3_call without = p->call;
    h3_tensor *tensor = (h3_tensor *)((char *)&without + offset);
    if (tensor->data == NULL || !required) return;
    *tensor = (h3_tensor){0};
    refused(p, "an absent tensor", call, &without);
}

#define OFFSET(field) offsetof(h3_call, field)

static void check_indices(problem *p, int (*call)(h3_call *))
{
    h3_tensor *indices[] = {&p->call.in[1], &p->call.in[2], &p->call.in[3], &p->call.row_index};
    for (int i = 0; i < 4; i++) {
        if (indices[i]->data == NULL || indices[i]->dtype != H3_I32) continue;
        if (indices[i] == &p->call.row_index && call == p->op->forward) continue;
        int32_t *values = indices[i]->data, last = (int32_t)indices[i]->shape[0] - 1, kept = values[last];
        int32_t limit = i < 3 ? p->spec->in[i + 1].limit : (int32_t)p->call.out.shape[0];
        int32_t wrong[] = {-1, limit, INT32_MIN, INT32_MAX};
        for (int w = 0; w < 4; w++) {
            values[last] = wrong[w];
            h3_call broken = p->call;
            refused(p, "an index out of range", call, &broken);
        }
        values[last] = kept;
    }
}

static void check_frame(problem *p, int (*call)(h3_call *), size_t workspace)
{
    h3_call broken = p->call;
    broken.size = 8;
    refused(p, "a call of another size", call, &broken);
    broken = p->call;
    broken.device = H3_DEVICE_CUDA;
    refused(p, "another device", call, &broken);
    if (workspace > 0) {
        broken = p->call;
        broken.workspace_bytes = workspace - 1;
        refused(p, "a small workspace", call, &broken);
        broken = p->call;
        broken.workspace = NULL;
        refused(p, "no workspace", call, &broken);
        broken = p->call;
        broken.workspace = (char *)broken.workspace + 4;
        refused(p, "an unaligned workspace", call, &broken);
    }
    if (p->spec->table == 0) return;
    int32_t chunks[] = {-1, 6, 100};
    for (int i = 0; i < 3; i++) {
        broken = p->call;
        broken.chunk = chunks[i];
        refused(p, "a chunk out of range", call, &broken);
    }
    broken = p->call;
    broken.in[p->spec->table] = (h3_tensor){0};
    refused(p, "an index without a table", call, &broken);
}

static void check_plan(problem *p)
{
    for (int i = 0; i < H3_MAX_IN + H3_MAX_PARAM; i++) {
        size_t offset = i < H3_MAX_IN ? OFFSET(in) + (size_t)i * sizeof(h3_tensor)
                                      : OFFSET(param) + (size_t)(i - H3_MAX_IN) * sizeof(h3_tensor);
        h3_call_plan plan;
        h3_call broken = p->call;
        h3_tensor *tensor = (h3_tensor *)((char *)&broken + offset);
        if (tensor->data == NULL) continue;
        tensor->dtype = H3_F64;
        assert_int_not_equal(p->op->plan(&broken, &plan), 0);
        assert_int_equal(plan.saved_count + (int)plan.forward_workspace, 0);
    }
}

static void check_problem(const problem_spec *spec, int32_t dtype)
{
    problem *p = problem_new(spec, dtype, 0);
    h3_call_plan plan;
    problem_forward(p, 0);
    memset(&p->call.report, 0, sizeof p->call.report);
    assert_int_equal(p->op->plan(&p->call, &plan), 0);
    size_t workspace = plan.forward_workspace > plan.backward_workspace ? plan.forward_workspace : plan.backward_workspace;
    h3_tensor memory = problem_tensor_new(p, H3_F32, 1, H3_SHAPE((int64_t)workspace / 4 + 32), 0);
    p->call.workspace = (void *)(((uintptr_t)memory.data + 63) / 64 * 64);
    p->call.workspace_bytes = workspace;
    check_plan(p);
    for (int i = 0; i < H3_MAX_IN; i++) {
        size_t step = (size_t)i * sizeof(h3_tensor);
        check_tensor(p, OFFSET(in) + step, p->op->forward, 1);
        check_tensor(p, OFFSET(in) + step, p->op->backward, 1);
        check_tensor(p, OFFSET(param) + step, p->op->forward, 1);
        check_tensor(p, OFFSET(param) + step, p->op->backward, 1);
        check_tensor(p, OFFSET(din) + step, p->op->backward, 0);
        check_tensor(p, OFFSET(dparam) + step, p->op->backward, 0);
    }
    for (int i = 0; i < H3_MAX_SAVED; i++) {
        check_tensor(p, OFFSET(saved) + (size_t)i * sizeof(h3_tensor), p->op->forward, 1);
        check_tensor(p, OFFSET(saved) + (size_t)i * sizeof(h3_tensor), p->op->backward, 1);
    }
    for (int i = 0; i < H3_ROW_GRADS; i++)
        check_tensor(p, OFFSET(row_grad) + (size_t)i * sizeof(h3_tensor), p->op->backward, spec->row_grads < 0);
    check_tensor(p, OFFSET(out), p->op->forward, 1);
    check_tensor(p, OFFSET(dout), p->op->backward, 1);
    check_tensor(p, OFFSET(row_index), p->op->backward, 1);
    check_tensor(p, OFFSET(dtable), p->op->backward, 0);
    check_indices(p, p->op->forward);
    check_indices(p, p->op->backward);
    check_frame(p, p->op->forward, plan.forward_workspace);
    check_frame(p, p->op->backward, plan.backward_workspace);
    problem_backward(p, 0); /* the undamaged call still works */
    problem_free(p);
}

static void wrong_tensors(void **state)
{
    (void)state;
    for (int i = 0; i < provider_problem_count; i++) {
        check_problem(&provider_problems[i], H3_F32);
        if (!provider_problems[i].fp32_only) check_problem(&provider_problems[i], H3_BF16);
    }
}

/* Sizes that fit each other but not the formula. */
static void impossible_sizes(void **state)
{
    (void)state;
    float data[64] = {0};
    h3_call call = {.size = sizeof(h3_call)};
    call.in[0] = h3_tensor_view(data, H3_F32, 2, H3_SHAPE(2, 7)); /* an odd number of values and gates */
    call.out = h3_tensor_view(data, H3_F32, 2, H3_SHAPE(2, 3));
    assert_int_not_equal(provider_operator("swiglu")->forward(&call), 0);
    call.in[0] = call.out = h3_tensor_view(data, H3_F32, 3, H3_SHAPE(1, 1, 8)); /* ten rotary channels in a head of eight */
    call.in[1] = call.in[2] = h3_tensor_view(data, H3_F32, 2, H3_SHAPE(1, 5));
    assert_int_not_equal(provider_operator("rope_q")->forward(&call), 0);
    assert_non_null(strstr(call.message, "5 angles"));
    call.in[0] = h3_tensor_view(data, H3_F32, 2, H3_SHAPE(1, 2)); /* a projection that is no multiple of 18 */
    call.param[0] = h3_tensor_view(data, H3_F32, 2, H3_SHAPE(20, 2));
    call.param[1] = h3_tensor_view(data, H3_F32, 1, H3_SHAPE(20));
    call.out = h3_tensor_view(data, H3_F32, 3, H3_SHAPE(3, 6, 1));
    assert_int_not_equal(provider_operator("adaln_projection")->forward(&call), 0);
    call.in[0] = h3_tensor_view(data, H3_F32, 1, H3_SHAPE(1)); /* an odd number of sinusoid features */
    call.param[0] = h3_tensor_view(data, H3_F32, 2, H3_SHAPE(2, 3));
    call.param[1] = h3_tensor_view(data, H3_F32, 1, H3_SHAPE(2));
    call.param[2] = h3_tensor_view(data, H3_F32, 2, H3_SHAPE(2, 2));
    call.param[3] = h3_tensor_view(data, H3_F32, 1, H3_SHAPE(2));
    assert_int_not_equal(provider_operator("time_embedder")->forward(&call), 0);
}

static void boundary_calls(void **state)
{
    (void)state;
    float data[64] = {0};
    int32_t index[2] = {0, 9};
    h3_tensor two = h3_tensor_view(data, H3_F32, 2, H3_SHAPE(2, 4)), three = h3_tensor_view(data, H3_F32, 2, H3_SHAPE(3, 4));
    h3_call call = {.size = sizeof(h3_call)};
    call.in[0] = call.out = two;
    call.in[1] = three;
    assert_int_not_equal(provider_operator("add")->forward(&call), 0);
    assert_non_null(strstr(call.message, "[3,4]"));
    call.in[1] = two;
    call.out = three;
    assert_int_not_equal(provider_operator("add")->forward(&call), 0);
    assert_int_not_equal(provider_operator("convert")->forward(&call), 0);
    call.out = two;
    call.out.dtype = H3_I32;
    assert_int_not_equal(provider_operator("convert")->forward(&call), 0);
    call.in[1] = h3_tensor_view(index, H3_I32, 1, H3_SHAPE(2));
    call.out = call.dout = three;
    call.din[0] = two;
    assert_int_not_equal(provider_operator("scatter_rows")->forward(&call), 0);
    assert_non_null(strstr(call.message, "index[1] is 9"));
    assert_int_not_equal(provider_operator("scatter_rows")->backward(&call), 0);
    index[1] = 2;
    assert_int_equal(provider_operator("scatter_rows")->forward(&call), 0);
    assert_int_equal(provider_operator("scatter_rows")->backward(&call), 0);
    call.out.dtype = H3_BF16;
    assert_int_not_equal(provider_operator("scatter_rows")->forward(&call), 0);
    call.in[0] = h3_tensor_view(data, H3_F32, 2, H3_SHAPE(2, 3));
    call.in[1] = h3_tensor_view(data, H3_F32, 1, H3_SHAPE(2));
    call.out = h3_tensor_view(data, H3_F32, 3, H3_SHAPE(2, 2, 5));
    assert_int_not_equal(provider_operator("rotary_table")->forward(&call), 0);
    call.out = h3_tensor_view(data, H3_F32, 3, H3_SHAPE(2, 2, 6));
    assert_int_equal(provider_operator("rotary_table")->forward(&call), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(wrong_tensors), cmocka_unit_test(impossible_sizes),
                                       cmocka_unit_test(boundary_calls)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
