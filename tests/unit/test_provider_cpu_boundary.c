/* The CPU provider's plain boundary operators: rotary table, features, add, convert, scatter_rows. Exact. */
#include "provider_problem.h"

#include <math.h>
#include <string.h>

/* A call of `node` on tensors that the test made; expects success. */
static void run(const char *node, h3_call *call, int backward)
{
    const h3_operator *op = provider_operator(node);
    h3_call_plan plan;
    call->size = sizeof *call;
    assert_int_equal(op->plan(call, &plan), 0);
    assert_int_equal(plan.saved_count, 0);
    assert_int_equal(plan.forward_workspace + plan.backward_workspace, 0);
    if ((backward ? op->backward : op->forward)(call) != 0) fail_msg("%s: %s", node, call->message);
}

static void rotary(int32_t dtype)
{
    enum { ROWS = 5, FREQUENCIES = 4, ANGLES = 3 * FREQUENCIES };
    float position[ROWS * 3], frequency[FREQUENCIES] = {1.0f, 0.1f, 0.01f, 0.001f}, wide[2 * ROWS * ANGLES];
    uint16_t narrow[2 * ROWS * ANGLES];
    uint64_t random = 5;
    for (int i = 0; i < ROWS * 3; i++) position[i] = (float)((double)test_random(&random) / 2147483648.0 * 4000 - 1000);
    h3_call call = {0};
    call.in[0] = h3_tensor_view(position, H3_F32, 2, H3_SHAPE(ROWS, 3));
    call.in[1] = h3_tensor_view(frequency, H3_F32, 1, H3_SHAPE(FREQUENCIES));
    call.out = h3_tensor_view(dtype == H3_F32 ? (void *)wide : (void *)narrow, dtype, 3, H3_SHAPE(2, ROWS, ANGLES));
    run("rotary_table", &call, 0);
    for (int i = 0; i < ROWS * ANGLES; i++) {
        float angle = position[i / ANGLES * 3 + i % ANGLES / FREQUENCIES] * frequency[i % FREQUENCIES];
        double expected[2] = {cos((double)angle), sin((double)angle)};
        for (int part = 0; part < 2; part++) {
            int at = part * ROWS * ANGLES + i;
            /* float32 within one unit in the last place; BF16 is that, rounded */
            if (dtype == H3_F32) assert_true(fabs((double)wide[at] - expected[part]) <= ldexp(fabs(expected[part]), -23));
            else assert_int_equal(narrow[at], h3_f32_to_bf16(part == 0 ? cosf(angle) : sinf(angle)));
        }
        /* and each axis has its own angle */
        if (dtype == H3_F32 && i % ANGLES / FREQUENCIES == 0) assert_true(wide[i] != wide[i + FREQUENCIES]);
    }
}

static void rotary_tables(void **state)
{
    (void)state;
    rotary(H3_F32);
    rotary(H3_BF16);
}

static void sinusoid_features(void **state)
{
    (void)state;
    problem *p = problem_new(problem_named("time_embedder"), H3_F32, 0);
    int64_t half = p->call.param[0].shape[1] / 2;
    uint32_t bits = 0xc1135d8eu;
    float log_period;
    memcpy(&log_period, &bits, sizeof log_period);
    problem_forward(p, 0xff);
    for (int64_t i = 0; i < p->call.in[0].shape[0] * half; i++) {
        float exponent = log_period * (float)(i % half);
        float angle = ((const float *)p->call.in[0].data)[i / half] * expf(exponent / (float)half);
        const float *row = (const float *)p->call.saved[0].data + i / half * 2 * half;
        assert_true(row[i % half] == cosf(angle) && row[half + i % half] == sinf(angle));
    }
    assert_true(((const float *)p->call.saved[0].data)[0] != ((const float *)p->call.saved[0].data)[half]);
    problem_free(p);
}

static void adds_round_once(void **state)
{
    (void)state;
    float a[3] = {1.0f, 1.0f, -0.0f}, b[3] = {0x1p-24f, 0x1.8p-23f, -0.0f}, sum[3];
    uint16_t a16[4] = {0x3f80, 0x3f80, 0x3f81, 0x8000}, b16[4] = {0x3b80, 0x3b81, 0x3b80, 0x8000},
             sum16[4]; /* 1 + 2^-8 is a tie, to even */
    h3_call call = {0};
    call.in[0] = h3_tensor_view(a, H3_F32, 1, H3_SHAPE(3));
    call.in[1] = h3_tensor_view(b, H3_F32, 1, H3_SHAPE(3));
    call.out = h3_tensor_view(sum, H3_F32, 1, H3_SHAPE(3));
    run("add", &call, 0);
    assert_true(sum[0] == 1.0f && sum[1] == 0x1.000004p+0f && sum[2] == 0 && signbit(sum[2]));
    call.in[0] = h3_tensor_view(a16, H3_BF16, 4, H3_SHAPE(1, 2, 1, 2));
    call.in[1] = h3_tensor_view(b16, H3_BF16, 4, H3_SHAPE(1, 2, 1, 2));
    call.out = h3_tensor_view(sum16, H3_BF16, 4, H3_SHAPE(1, 2, 1, 2));
    run("add", &call, 0);
    assert_int_equal(sum16[0], 0x3f80);
    assert_int_equal(sum16[1], 0x3f81);
    assert_int_equal(sum16[2], 0x3f82);
    assert_int_equal(sum16[3], 0x8000);
}

static void converts(void **state)
{
    (void)state;
    static uint16_t narrow[65536], back[65536];
    static float wide[65536];
    h3_call call = {0};
    for (uint32_t i = 0; i < 65536; i++) narrow[i] = (uint16_t)i;
    call.in[0] = h3_tensor_view(narrow, H3_BF16, 2, H3_SHAPE(256, 256));
    call.out = h3_tensor_view(wide, H3_F32, 2, H3_SHAPE(256, 256));
    run("convert", &call, 0);
    for (uint32_t i = 0; i < 65536; i++) {
        uint32_t bits;
        memcpy(&bits, &wide[i], sizeof bits);
        assert_int_equal(bits, i << 16);
    }
    call.in[0] = h3_tensor_view(wide, H3_F32, 2, H3_SHAPE(256, 256));
    call.out = h3_tensor_view(back, H3_BF16, 2, H3_SHAPE(256, 256));
    run("convert", &call, 0);
    for (uint32_t i = 0; i < 65536; i++) {
        int nan = (i & 0x7f80) == 0x7f80 && (i & 0x7f) != 0;
        assert_int_equal(back[i], nan ? i | 0x40 : i);
    }
    float between[4] = {0x1.01p+0f, 0x1.03p+0f, 0x1.010002p+0f, 3.4e38f}; /* two ties, just above one, beyond the largest */
    call.in[0] = h3_tensor_view(between, H3_F32, 1, H3_SHAPE(4));
    call.out = h3_tensor_view(back, H3_BF16, 1, H3_SHAPE(4));
    run("convert", &call, 0);
    assert_int_equal(back[0], 0x3f80);
    assert_int_equal(back[1], 0x3f82);
    assert_int_equal(back[2], 0x3f81);
    assert_int_equal(back[3], 0x7f80);
}

static void scatters(void **state)
{
    (void)state;
    uint16_t rows[6] = {1, 2, 3, 4, 5, 6}, packed[10] = {90, 91, 92, 93, 94, 95, 96, 97, 98, 99}, gradient[6] = {0};
    const uint16_t expected[10] = {90, 91, 3, 4, 94, 95, 5, 6, 1, 2};
    int32_t index[3] = {4, 1, 3};
    h3_call call = {0};
    call.in[0] = h3_tensor_view(rows, H3_BF16, 2, H3_SHAPE(3, 2));
    call.in[1] = h3_tensor_view(index, H3_I32, 1, H3_SHAPE(3));
    call.out = h3_tensor_view(packed, H3_BF16, 2, H3_SHAPE(5, 2));
    run("scatter_rows", &call, 0);
    assert_memory_equal(packed, expected, sizeof packed);
    call.dout = call.out;
    call.din[0] = h3_tensor_view(gradient, H3_BF16, 2, H3_SHAPE(3, 2));
    run("scatter_rows", &call, 1);
    assert_memory_equal(gradient, rows, sizeof rows);
    float wide_rows[2] = {1, 2}, wide_packed[4] = {7, 8, 9, 10};
    int32_t last = 1;
    call = (h3_call){0};
    call.in[0] = h3_tensor_view(wide_rows, H3_F32, 2, H3_SHAPE(1, 2));
    call.in[1] = h3_tensor_view(&last, H3_I32, 1, H3_SHAPE(1));
    call.out = h3_tensor_view(wide_packed, H3_F32, 2, H3_SHAPE(2, 2));
    run("scatter_rows", &call, 0);
    assert_true(wide_packed[0] == 7 && wide_packed[1] == 8 && wide_packed[2] == 1 && wide_packed[3] == 2);
}

static void no_gradient(void **state)
{
    static const char *const nodes[] = {"rotary_table", "add", "convert"};
    (void)state;
    for (int i = 0; i < 3; i++) {
        h3_call call = {.size = sizeof(h3_call)};
        assert_int_not_equal(provider_operator(nodes[i])->backward(&call), 0);
        assert_true(strlen(call.message) > 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rotary_tables), cmocka_unit_test(sinusoid_features), cmocka_unit_test(adds_round_once),
        cmocka_unit_test(converts),      cmocka_unit_test(scatters),          cmocka_unit_test(no_gradient),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
