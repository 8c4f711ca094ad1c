/* What a device does with tensors: sums in their documented order, samples, digests, bytes. The GPU's side is compared with this one by tests/cuda/device_cuda.c. */
#include "golden_files.h"

#include <math.h>
#include <stdlib.h>

#include "base/log.h"
#include "graph/device.h"
#include "model/synth.h"
#include "qualify/metrics.h"

enum { ROWS = 3, WIDTH = 700 };

static float value_of(int64_t i, int salt) { return sinf((float)(i * 37 + salt)) * (float)(1 + i % 5); }

/* The order as device.h words it, one lane after another. */
static double lane_sum(const double *terms, int64_t count)
{
    double lane[H3_SUM_LANES] = {0};
    for (int l = 0; l < H3_SUM_LANES; l++)
        for (int64_t i = l; i < count; i += H3_SUM_LANES) lane[l] += terms[i];
    for (int step = H3_SUM_LANES / 2; step > 0; step /= 2)
        for (int l = 0; l < step; l++) lane[l] = lane[l] + lane[l + step];
    return lane[0];
}

static void test_order_of_sums(void **state)
{
    (void)state;
    static float x[ROWS * WIDTH], g[ROWS * WIDTH];
    h3_row_sum sums[ROWS];
    for (int64_t i = 0; i < ROWS * WIDTH; i++) {
        x[i] = value_of(i, 1);
        g[i] = value_of(i, 2);
    }
    h3_tensor tx = h3_tensor_view(x, H3_F32, 2, H3_SHAPE(ROWS, WIDTH)), tg = h3_tensor_view(g, H3_F32, 2, H3_SHAPE(ROWS, WIDTH));
    assert_good(h3_device_row_sums(sums, h3_device_cpu(), &tx, &tg, ROWS, 7));
    for (int row = 0; row < ROWS; row++) {
        double difference[WIDTH], norm[WIDTH], dot[WIDTH], squares[WIDTH / 7];
        for (int i = 0; i < WIDTH; i++) {
            double a = x[row * WIDTH + i], b = g[row * WIDTH + i], d = a - b;
            difference[i] = d * d;
            norm[i] = b * b;
            dot[i] = d * b;
        }
        for (int i = 0; i < WIDTH / 7; i++) {
            double q = 0.0;
            for (int j = 0; j < 7; j++) q += norm[7 * i + j];
            squares[i] = q * q;
        }
        assert_true(sums[row].difference == lane_sum(difference, WIDTH));
        assert_true(sums[row].norm == lane_sum(norm, WIDTH));
        assert_true(sums[row].dot == lane_sum(dot, WIDTH));
        assert_true(sums[row].squares == lane_sum(squares, WIDTH / 7));
        assert_true(sums[row].bad == 0.0);
    }
    x[WIDTH + 5] = NAN;
    g[2 * WIDTH] = INFINITY;
    assert_good(h3_device_row_sums(sums, h3_device_cpu(), &tx, &tg, ROWS, 1));
    assert_true(sums[0].bad == 0.0 && sums[1].bad == 1.0 && sums[2].bad == 1.0);
}

static void test_refusals(void **state)
{
    (void)state;
    float values[6] = {1, 2, 3, 4, 5, 6};
    h3_row_sum sums[6];
    h3_tensor six = h3_tensor_view(values, H3_F32, 1, H3_SHAPE(6)), five = h3_tensor_view(values, H3_F32, 1, H3_SHAPE(5)), none = {0};
    h3_tensor integers = h3_tensor_view(values, H3_I32, 1, H3_SHAPE(6));
    const h3_device *cpu = h3_device_cpu();
    assert_fails(h3_device_row_sums(sums, cpu, &six, &five, 1, 1), H3_FAILED, "cannot be compared");
    assert_fails(h3_device_row_sums(sums, cpu, &six, &none, 1, 1), H3_FAILED, "cannot be compared");
    assert_fails(h3_device_row_sums(sums, cpu, &integers, &six, 1, 1), H3_FAILED, "cannot be compared");
    assert_fails(h3_device_row_sums(sums, cpu, &six, &six, 4, 1), H3_FAILED, "divide");
    assert_fails(h3_device_row_sums(sums, cpu, &six, &six, 2, 2), H3_FAILED, "divide"); /* a group does not cross rows */
}

static void test_norm(void **state)
{
    (void)state;
    float values[4] = {1, -2, 4, 10};
    double norm;
    h3_tensor t = h3_tensor_view(values, H3_F32, 2, H3_SHAPE(2, 2));
    assert_good(h3_norm_on(&norm, h3_device_cpu(), &t));
    assert_true(norm == 11.0);
    values[3] = -INFINITY;
    assert_good(h3_norm_on(&norm, h3_device_cpu(), &t));
    assert_true(isnan(norm));
}

/* index_j = (j * 2654435761) mod N, as the goldens are sampled. */
static void test_samples(void **state)
{
    (void)state;
    static int64_t values[1000003];
    h3_tensor samples, t = h3_tensor_view(values, H3_I64, 1, H3_SHAPE(1000003)), few = h3_tensor_view(values, H3_I64, 1, H3_SHAPE(3));
    for (int64_t i = 0; i < 1000003; i++) values[i] = i;
    assert_good(h3_device_samples(&samples, h3_device_cpu(), &t, 512));
    assert_int_equal(h3_tensor_count(&samples), 512);
    for (int64_t j = 0; j < 512; j++) assert_int_equal(((int64_t *)samples.data)[j], (int64_t)((uint64_t)j * UINT64_C(2654435761) % 1000003));
    h3_tensor_free(&samples);
    assert_good(h3_device_samples(&samples, h3_device_cpu(), &few, 512));
    assert_int_equal(h3_tensor_count(&samples), 3);
    h3_tensor_free(&samples);
}

static void test_digest_job(void **state)
{
    (void)state;
    size_t size = (size_t)3 * H3_DIGEST_PIECE + 6;
    unsigned char *bytes = malloc(size);
    char expected[H3_SHA256_HEX], got[H3_SHA256_HEX];
    h3_digest_job *job;
    assert_non_null(bytes);
    for (size_t i = 0; i < size; i++) bytes[i] = (unsigned char)(i * 7 + i / 251);
    h3_tensor t = h3_tensor_view(bytes, H3_BF16, 1, H3_SHAPE((int64_t)(size / 2)));
    assert_good(h3_digest(expected, bytes, size));
    assert_good(h3_device_digest_start(&job, h3_device_cpu(), &t));
    bytes[0] ^= 1; /* what comes later does not matter */
    assert_good(h3_digest_job_wait(job, got));
    assert_string_equal(got, expected);
    assert_good(h3_device_digest(got, h3_device_cpu(), &t));
    assert_string_not_equal(got, expected);
    assert_good(h3_digest_job_wait(NULL, got));
    free(bytes);
}

static void test_equal(void **state)
{
    (void)state;
    float a[3] = {0.0f, 1.0f, 2.0f}, b[3] = {-0.0f, 1.0f, 2.0f};
    h3_tensor ta = h3_tensor_view(a, H3_F32, 1, H3_SHAPE(3)), tb = h3_tensor_view(b, H3_F32, 1, H3_SHAPE(3)), shorter = h3_tensor_view(a, H3_F32, 1, H3_SHAPE(2)), none = {0};
    int equal;
    assert_good(h3_device_equal(&equal, h3_device_cpu(), &ta, &ta));
    assert_true(equal);
    assert_good(h3_device_equal(&equal, h3_device_cpu(), &ta, &tb)); /* +0 and -0 are different bytes */
    assert_false(equal);
    assert_good(h3_device_equal(&equal, h3_device_cpu(), &ta, &shorter));
    assert_false(equal);
    assert_good(h3_device_equal(&equal, h3_device_cpu(), &none, &none));
    assert_false(equal);
}

/* F32 values of a BF16 stream are what BF16 holds. */
static void test_synth_through_bf16(void **state)
{
    (void)state;
    float widened[37], plain[37];
    uint16_t half[37];
    h3_tensor w = h3_tensor_view(widened, H3_F32, 1, H3_SHAPE(37)), p = h3_tensor_view(plain, H3_F32, 1, H3_SHAPE(37)), h = h3_tensor_view(half, H3_BF16, 1, H3_SHAPE(37));
    uint32_t key[2];
    assert_good(h3_synth_key(key, 0, "proj_in.weight"));
    assert_good(h3_device_cpu()->synth(&w, key, 0.0f, 0.3f, 1));
    assert_good(h3_device_cpu()->synth(&h, key, 0.0f, 0.3f, 1));
    assert_good(h3_synth_fill(&p, 0, "proj_in.weight", 0.0f, 0.3f));
    for (int i = 0; i < 37; i++) {
        assert_true(widened[i] == h3_bf16_to_f32(half[i]));
        assert_true(half[i] == h3_f32_to_bf16(plain[i]));
    }
}

static void nap(double seconds) { usleep((useconds_t)(1e6 * seconds)); }

static void test_spans(void **state)
{
    (void)state;
    const h3_device *cpu = h3_device_cpu();
    h3_device_work work;
    float values[2] = {1, 2};
    int equal;
    h3_tensor t = h3_tensor_view(values, H3_F32, 1, H3_SHAPE(2));
    assert_good(cpu->span_take(&work)); /* what other tests did */
    double before = h3_clock();
    for (int i = 0; i < 3; i++) {
        assert_good(cpu->span_begin());
        nap(0.02);
        assert_good(cpu->span_end());
        nap(0.03);
    }
    assert_good(cpu->span_begin()); /* its work fails: it is not ended, and nothing of it counts */
    nap(0.05);
    assert_good(h3_device_equal(&equal, cpu, &t, &t));
    double after = h3_clock();
    assert_good(cpu->span_take(&work));
    assert_int_equal(work.spans, 4);
    assert_true(work.start >= before && work.start + work.window <= after);
    assert_true(work.busy >= 0.06 && work.busy <= work.window - 0.13);
}

/* Taken is taken; the next window begins with the next work. */
static void test_spans_begin_anew(void **state)
{
    (void)state;
    const h3_device *cpu = h3_device_cpu();
    h3_device_work work;
    h3_row_sum sum;
    float values[2] = {1, 2};
    h3_tensor samples, t = h3_tensor_view(values, H3_F32, 1, H3_SHAPE(2)), none = {0};
    assert_good(h3_device_row_sums(&sum, cpu, &t, &t, 1, 1));
    assert_good(cpu->span_take(&work));
    assert_true(work.spans >= 1);
    assert_good(cpu->span_take(&work));
    assert_true(work.spans == 0 && work.busy == 0.0 && work.window == 0.0);
    nap(0.01);
    double before = h3_clock();
    assert_good(h3_device_row_sums(&sum, cpu, &t, &t, 1, 1));
    assert_good(h3_device_samples(&samples, cpu, &t, 2));
    assert_fails(h3_device_row_sums(&sum, cpu, &t, &none, 1, 1), H3_FAILED, "cannot be compared");
    h3_tensor_free(&samples);
    assert_good(cpu->span_take(&work));
    assert_true(work.spans == 2 && work.start >= before && work.busy > 0.0 && work.busy <= work.window);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_of_sums), cmocka_unit_test(test_refusals), cmocka_unit_test(test_norm),  cmocka_unit_test(test_samples),
        cmocka_unit_test(test_digest_job),    cmocka_unit_test(test_equal),    cmocka_unit_test(test_synth_through_bf16),
        cmocka_unit_test(test_spans),         cmocka_unit_test(test_spans_begin_anew),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
