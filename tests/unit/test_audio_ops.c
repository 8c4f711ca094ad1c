/* The audio decoder's operations against their definitions: bit for bit where the order is promised, on every device that is here. */
#include "golden_files.h"

#include <math.h>

#include "media/audio_ops.h"
#include "media/audio_snake.h"
#include "media/audio_weights.h"
#include "model/synth.h"

enum { TABLES = 3 };

/* The tables of operations that this machine has. */
static int tables(const h3_audio_ops *list[TABLES])
{
    const h3_device *gpu;
    int count = 2;
    list[0] = h3_audio_ops_plain();
    list[1] = h3_audio_ops_cpu();
    if (h3_device_count("cuda") == 0) return count;
    assert_good(h3_device_open("cuda", 0, &gpu));
    assert_good(h3_audio_ops_for(&list[count++], gpu));
    return count;
}

static h3_tensor random_tensor(const char *name, float amp, int32_t rank, const int64_t *shape)
{
    h3_tensor t;
    assert_good(h3_tensor_new(&t, H3_F32, rank, shape));
    assert_good(h3_synth_fill(&t, 11, name, 0, amp));
    return t;
}

/* Operations take device tensors; these go there and back. Absent stays absent. */
static h3_tensor up(const h3_audio_ops *ops, const h3_tensor *host)
{
    h3_tensor t = {0};
    if (host->data != NULL) assert_good(h3_device_upload(&t, ops->device, host));
    return t;
}

static void assert_result(const h3_audio_ops *ops, const h3_tensor *result, const float *expected, const char *what)
{
    h3_tensor host;
    assert_good(h3_device_download(&host, ops->device, result));
    const float *x = host.data;
    for (int64_t i = 0; i < h3_tensor_count(&host); i++)
        if (memcmp(&x[i], &expected[i], sizeof(float)) != 0)
            fail_msg("%s on %s: element %lld is %.9g, expected %.9g", what, h3_device_name(ops->device->kind), (long long)i, (double)x[i], (double)expected[i]);
    h3_tensor_free(&host);
}

static float at(const h3_tensor *x, int64_t b, int64_t c, int64_t n)
{
    return n < 0 || n >= x->shape[2] ? 0.0f : ((const float *)x->data)[(b * x->shape[1] + c) * x->shape[2] + n];
}

/* --- convolution --- */

static void expect_convolve(float *out, const h3_tensor *x, const h3_tensor *w, const h3_tensor *bias, int64_t dilation, const h3_tensor *residual)
{
    int64_t kernel = w->shape[2];
    for (int64_t b = 0; b < x->shape[0]; b++)
        for (int64_t o = 0; o < w->shape[0]; o++)
            for (int64_t n = 0; n < x->shape[2]; n++) {
                float sum = bias->data != NULL ? ((const float *)bias->data)[o] : 0.0f;
                for (int64_t c = 0; c < x->shape[1]; c++)
                    for (int64_t k = 0; k < kernel; k++) sum = fmaf(at(w, o, c, k), at(x, b, c, n + dilation * (k - (kernel - 1) / 2)), sum);
                *out++ = residual != NULL ? sum + at(residual, b, o, n) : sum;
            }
}

static void try_convolve(const h3_audio_ops *ops, int64_t batch, int64_t in, int64_t out, int64_t length, int64_t kernel, int64_t dilation, int biased, int added)
{
    h3_tensor x = random_tensor("x", 1, 3, H3_SHAPE(batch, in, length)), w = random_tensor("w", 0.3f, 3, H3_SHAPE(out, in, kernel)), bias = {0};
    h3_tensor residual = random_tensor("r", 1, 3, H3_SHAPE(batch, out, length)), y;
    if (biased) bias = random_tensor("b", 1, 1, &out);
    float *expected = calloc((size_t)(batch * out * length), sizeof *expected);
    expect_convolve(expected, &x, &w, &bias, dilation, added ? &residual : NULL);
    h3_tensor dx = up(ops, &x), dw = up(ops, &w), db = up(ops, &bias), dr = up(ops, &residual);
    assert_good(h3_device_tensor(&y, ops->device, H3_F32, 3, H3_SHAPE(batch, out, length)));
    assert_good(ops->convolve(ops, &y, &dx, &dw, &db, dilation, added ? &dr : NULL));
    assert_result(ops, &y, expected, "convolve");
    if (added) { /* the residual may be the output */
        assert_good(ops->convolve(ops, &dr, &dx, &dw, &db, dilation, &dr));
        assert_result(ops, &dr, expected, "convolve in place");
    }
    h3_tensor *device[] = {&dx, &dw, &db, &dr, &y}, *host[] = {&x, &w, &bias, &residual};
    for (int i = 0; i < 5; i++) h3_device_free(device[i], ops->device);
    for (int i = 0; i < 4; i++) h3_tensor_free(host[i]);
    free(expected);
}

static void convolutions(void **state)
{
    static const int64_t CASES[][6] = {
        /* batch in out length kernel dilation */
        {1, 1, 1, 1, 1, 1},   {2, 3, 4, 1, 7, 1},   {1, 2, 5, 23, 3, 1},  {1, 2, 3, 24, 3, 3},  {2, 2, 6, 25, 11, 5},  {1, 9, 7, 49, 7, 5}, {1, 4, 1, 200, 7, 1},
        {2, 17, 8, 193, 3, 1}, {1, 3, 33, 70, 3, 1}, {1, 8, 65, 66, 1, 1}, {1, 1, 17, 9, 3, 9},  {1, 1, 2, 40, 101, 200}, {1, 2, 3, 5, 255, 2}, {1, 1, 12, 1500, 3, 1},
    };
    const h3_audio_ops *list[TABLES];
    int count = tables(list);
    (void)state;
    for (int t = 0; t < count; t++)
        for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
            const int64_t *c = CASES[i];
            try_convolve(list[t], c[0], c[1], c[2], c[3], c[4], c[5], i % 2 == 0, i % 3 == 0);
        }
}

/* --- transposed convolution --- */

/* The definition in double, by scattering: x[m] adds w[k] to out[rate * m + k - p]. */
static void scatter(double *out, const h3_tensor *x, const h3_tensor *w, const h3_tensor *bias, int64_t rate)
{
    int64_t channels = w->shape[1], kernel = w->shape[2], length = x->shape[2] * rate, p = (kernel - rate) / 2;
    for (int64_t b = 0; b < x->shape[0]; b++)
        for (int64_t o = 0; o < channels; o++) {
            double *row = out + (b * channels + o) * length;
            for (int64_t n = 0; n < length; n++) row[n] = (double)((const float *)bias->data)[o];
            for (int64_t c = 0; c < x->shape[1]; c++)
                for (int64_t m = 0; m < x->shape[2]; m++)
                    for (int64_t k = 0; k < kernel; k++) {
                        int64_t n = rate * m + k - p;
                        if (n >= 0 && n < length) row[n] += (double)at(w, c, o, k) * (double)at(x, b, c, m);
                    }
        }
}

/* The promised order of the sums. */
static float expect_up(const h3_tensor *x, const h3_tensor *w, const h3_tensor *bias, int64_t rate, int64_t b, int64_t o, int64_t n)
{
    int64_t kernel = w->shape[2], p = (kernel - rate) / 2;
    float sum = ((const float *)bias->data)[o];
    for (int64_t c = 0; c < x->shape[1]; c++)
        for (int64_t k = (n + p) % rate; k < kernel; k += rate) sum = fmaf(at(w, c, o, k), at(x, b, c, (n + p - k) / rate), sum);
    return sum;
}

static void try_convolve_up(const h3_audio_ops *ops, int64_t batch, int64_t in, int64_t out, int64_t length, int64_t kernel, int64_t rate)
{
    h3_tensor x = random_tensor("x", 1, 3, H3_SHAPE(batch, in, length)), w = random_tensor("w", 0.3f, 3, H3_SHAPE(in, out, kernel)), bias = random_tensor("b", 1, 1, &out);
    h3_tensor phases, y;
    size_t count = (size_t)(batch * out * length * rate);
    float *expected = calloc(count, sizeof *expected);
    double *defined = calloc(count, sizeof *defined);
    assert_good(h3_audio_phases(&phases, &w, rate));
    scatter(defined, &x, &w, &bias, rate);
    for (size_t i = 0; i < count; i++) {
        int64_t n = (int64_t)i % (length * rate), row = (int64_t)i / (length * rate);
        expected[i] = expect_up(&x, &w, &bias, rate, row / out, row % out, n);
        assert_true(fabs((double)expected[i] - defined[i]) <= 1e-5);
    }
    h3_tensor dx = up(ops, &x), dw = up(ops, &phases), db = up(ops, &bias);
    assert_good(h3_device_tensor(&y, ops->device, H3_F32, 3, H3_SHAPE(batch, out, length * rate)));
    assert_good(ops->convolve_up(ops, &y, &dx, &dw, &db, rate));
    assert_result(ops, &y, expected, "convolve_up");
    h3_tensor *device[] = {&dx, &dw, &db, &y}, *host[] = {&x, &w, &bias, &phases};
    for (int i = 0; i < 4; i++) h3_device_free(device[i], ops->device);
    for (int i = 0; i < 4; i++) h3_tensor_free(host[i]);
    free(expected);
    free(defined);
}

static void transposed_convolutions(void **state)
{
    static const int64_t SHAPES[][2] = {{9, 5}, {4, 2}, {5, 5}, {1, 1}, {3, 1}, {16, 4}, {12, 2}, {2, 2}, {7, 3}}; /* kernel, rate */
    const h3_audio_ops *list[TABLES];
    int count = tables(list);
    (void)state;
    for (int t = 0; t < count; t++)
        for (size_t i = 0; i < sizeof SHAPES / sizeof *SHAPES; i++) {
            for (int64_t length = 1; length <= 3; length++) try_convolve_up(list[t], 2, 3, 5, length, SHAPES[i][0], SHAPES[i][1]);
            try_convolve_up(list[t], 1, 6, 3, 51, SHAPES[i][0], SHAPES[i][1]);
        }
}

/* --- activation --- */

static double near(const float *x, int64_t length, int64_t i) { return (double)x[i < 0 ? 0 : i < length ? i : length - 1]; }

static double doubled(const float *x, int64_t length, const float *f, double a, double b, int64_t i)
{
    i = i < 0 ? 0 : i < 2 * length ? i : 2 * length - 1;
    double sum = 0;
    int64_t p = i / 2;
    for (int k = 0; k < 6; k++) sum += i % 2 == 0 ? (double)f[11 - 2 * k] * near(x, length, p - 3 + k) : (double)f[10 - 2 * k] * near(x, length, p - 2 + k);
    double v = 2 * sum, s = sin(a * v);
    return v + s * s * b;
}

/* The formulas of audio-vae.md 2.4 in double. The filter here is not symmetric, so that a turned one shows. */
static void try_activate(const h3_audio_ops *ops, int64_t batch, int64_t channels, int64_t length, float alpha)
{
    h3_tensor x = random_tensor("x", 1, 3, H3_SHAPE(batch, channels, length)), f = random_tensor("f", 0.5f, 1, H3_SHAPE(12)), curve, y, host;
    assert_good(h3_tensor_new(&curve, H3_F32, 2, H3_SHAPE(2, channels)));
    float *curves = curve.data;
    for (int64_t c = 0; c < channels; c++) {
        curves[c] = alpha + 0.25f * (float)c;
        curves[channels + c] = 0.5f + (float)c;
    }
    h3_tensor dx = up(ops, &x), df = up(ops, &f), dc = up(ops, &curve);
    assert_good(h3_device_tensor(&y, ops->device, H3_F32, 3, x.shape));
    assert_good(ops->activate(ops, &y, &dx, &df, &dc));
    assert_good(h3_device_download(&host, ops->device, &y));
    for (int64_t i = 0; i < h3_tensor_count(&x); i++) {
        int64_t n = i % length, c = i / length % channels;
        const float *row = (const float *)x.data + (i - n), *filter = f.data;
        double sum = 0, got = (double)((const float *)host.data)[i];
        for (int k = 0; k < 12; k++) sum += (double)filter[k] * doubled(row, length, filter, (double)curves[c], (double)curves[channels + c], 2 * n + k - 5);
        double bound = 1e-6 * (double)(4 + alpha) * (double)curves[channels + c] + 1e-5;
        if (!(fabs(got - sum) <= bound)) fail_msg("activate, alpha %g: sample %lld of %lld is %.9g, expected %.9g", (double)alpha, (long long)n, (long long)length, got, sum);
    }
    h3_tensor *device[] = {&dx, &df, &dc, &y}, *hosts[] = {&x, &f, &curve, &host};
    for (int i = 0; i < 4; i++) h3_device_free(device[i], ops->device);
    for (int i = 0; i < 4; i++) h3_tensor_free(hosts[i]);
}

static void activations(void **state)
{
    static const int64_t LENGTHS[] = {1, 2, 3, 4, 5, 6, 7, 255, 256, 257, 511, 512, 513, 514, 1030};
    const h3_audio_ops *list[TABLES];
    int count = tables(list);
    (void)state;
    for (int t = 0; t < count; t++)
        for (size_t i = 0; i < sizeof LENGTHS / sizeof *LENGTHS; i++) try_activate(list[t], 2, 3, LENGTHS[i], i % 2 ? 1.0f : 300.0f);
    for (int t = 0; t < count; t++) try_activate(list[t], 1, 128, 7, 1.0f); /* ends where a guarded piece of memory ends */
}

/* A constant passes the filters, which have gain 1, and meets the curve alone, at both ends too (audio-vae.md section 7). */
static void a_constant_passes(void **state)
{
    const h3_audio_ops *list[TABLES];
    int count = tables(list);
    float filter[12], curves[2] = {3, 0.7f}, x[40];
    (void)state;
    h3_audio_filter_design(filter);
    for (int i = 0; i < 40; i++) x[i] = 0.8f;
    for (int t = 0; t < count; t++) {
        const h3_tensor hx = h3_tensor_view(x, H3_F32, 3, H3_SHAPE(1, 1, 40)), hf = h3_tensor_view(filter, H3_F32, 1, H3_SHAPE(12)), hc = h3_tensor_view(curves, H3_F32, 2, H3_SHAPE(2, 1));
        h3_tensor dx = up(list[t], &hx), df = up(list[t], &hf), dc = up(list[t], &hc), y, host;
        assert_good(h3_device_tensor(&y, list[t]->device, H3_F32, 3, hx.shape));
        assert_good(list[t]->activate(list[t], &y, &dx, &df, &dc));
        assert_good(h3_device_download(&host, list[t]->device, &y));
        for (int i = 0; i < 40; i++) assert_true(fabs((double)((float *)host.data)[i] - (0.8 + pow(sin(2.4), 2) * 0.7)) < 1e-6);
        h3_tensor *device[] = {&dx, &df, &dc, &y};
        for (int i = 0; i < 4; i++) h3_device_free(device[i], list[t]->device);
        h3_tensor_free(&host);
    }
}

/* Every table gives the plain one's bits, near and far arguments alike. */
static void activations_have_the_same_bits(void **state)
{
    const h3_audio_ops *list[TABLES];
    int count = tables(list);
    h3_tensor x = random_tensor("x", 1, 3, H3_SHAPE(2, 4, 700)), f = random_tensor("f", 0.5f, 1, H3_SHAPE(12)), curve, expected = {0};
    (void)state;
    assert_good(h3_tensor_new(&curve, H3_F32, 2, H3_SHAPE(2, 4)));
    for (int c = 0; c < 4; c++) {
        ((float *)curve.data)[c] = ((const float[]){1, 1000, 3e6f, 1e30f})[c]; /* the third meets both kinds of sine */
        ((float *)curve.data)[4 + c] = 0.75f;
    }
    for (int t = 0; t < count; t++) {
        h3_tensor dx = up(list[t], &x), df = up(list[t], &f), dc = up(list[t], &curve), y;
        assert_good(h3_device_tensor(&y, list[t]->device, H3_F32, 3, x.shape));
        assert_good(list[t]->activate(list[t], &y, &dx, &df, &dc));
        if (t == 0) assert_good(h3_device_download(&expected, list[t]->device, &y));
        assert_result(list[t], &y, expected.data, "activate");
        h3_tensor *device[] = {&dx, &df, &dc, &y};
        for (int i = 0; i < 4; i++) h3_device_free(device[i], list[t]->device);
    }
    h3_tensor *hosts[] = {&x, &f, &curve, &expected};
    for (int i = 0; i < 4; i++) h3_tensor_free(hosts[i]);
}

/* The squared sine against the system's double one; within one last place of float. */
static void assert_sine(float t)
{
    float ours = fabsf(t) < H3_SINE_NEAR ? h3_sine_near(t) : h3_sine_far(t);
    double true_sine = fabs(sin((double)t)), error = fabs(fabs((double)ours) - true_sine);
    if (!(error <= 0.501 * ldexp(1, ilogb(true_sine + 1e-300) - 23) + 1e-45)) fail_msg("sine of %a is %.9g, expected %.17g", (double)t, (double)ours, true_sine);
}

static void sines(void **state)
{
    uint32_t random = 1;
    (void)state;
    assert_sine(0);
    for (int i = 0; i < 400000; i++) {
        random = random * 1664525u + 1013904223u;
        uint32_t bits = random;
        float t;
        memcpy(&t, &bits, sizeof t);
        if (isfinite(t)) assert_sine(t);
        assert_sine((float)(random >> 8) * 1e-4f);
    }
    for (int m = 1; m < 3000; m++) { /* where a multiple of pi is near */
        float t = (float)(3.14159265358979323846 * m * (m < 1500 ? 1 : 1e4));
        assert_sine(t);
        assert_sine(nextafterf(t, 0));
    }
    assert_sine(nextafterf(H3_SINE_NEAR, 0));
    assert_sine(H3_SINE_NEAR);
    assert_sine(0x1.fffffep127f);
    assert_true(isnan(h3_sine_far(INFINITY)) && isnan(h3_sine_far(NAN)));
}

/* --- mean, and refusals --- */

static void means(void **state)
{
    const h3_audio_ops *list[TABLES];
    int count = tables(list);
    (void)state;
    for (int t = 0; t < count; t++)
        for (int64_t many = 1; many <= 8; many++) {
            h3_tensor host[8], device[8], out;
            const h3_tensor *pointers[8];
            float expected[1000];
            for (int64_t i = 0; i < many; i++) {
                char name[] = {'m', (char)('0' + i), 0};
                host[i] = random_tensor(name, 1, 3, H3_SHAPE(2, 5, 100));
                device[i] = up(list[t], &host[i]);
                pointers[i] = &device[i];
            }
            for (int64_t e = 0; e < 1000; e++) {
                float sum = ((float *)host[0].data)[e];
                for (int64_t i = 1; i < many; i++) sum += ((float *)host[i].data)[e];
                expected[e] = sum / (float)many;
            }
            assert_good(h3_device_tensor(&out, list[t]->device, H3_F32, 3, host[0].shape));
            assert_good(list[t]->mean(list[t], &out, pointers, many));
            assert_result(list[t], &out, expected, "mean");
            assert_good(list[t]->mean(list[t], &device[0], pointers, many));
            assert_result(list[t], &device[0], expected, "mean in place");
            h3_device_free(&out, list[t]->device);
            for (int64_t i = 0; i < many; i++) {
                h3_tensor_free(&host[i]);
                h3_device_free(&device[i], list[t]->device);
            }
        }
}

static void misfits_are_refused(void **state)
{
    const h3_audio_ops *ops = h3_audio_ops_cpu();
    float data[4000] = {0}, other[4000];
#define T(memory, ...) h3_tensor_view(memory, H3_F32, (int32_t)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), H3_SHAPE(__VA_ARGS__))
    const h3_tensor x = T(data, 1, 4, 10), y = T(other, 1, 4, 10), w = T(data, 4, 4, 3), none = {0}, bias = T(data, 4);
    const h3_tensor wrong[] = {T(data, 4, 4, 2), T(data, 4, 3, 3), T(data, 5, 4, 3), T(data, 4, 4), {0}, h3_tensor_view(data, H3_BF16, 3, H3_SHAPE(4, 4, 3))};
    const h3_tensor short_bias = T(data, 3), longer = T(data, 1, 4, 11), two = T(other, 1, 4, 20), filter = T(data, 12), bad_filter = T(data, 11), curve = T(data, 2, 4), bad_curve = T(data, 2, 3);
    const h3_tensor *means[] = {&x, &longer};
    (void)state;
    assert_good(ops->convolve(ops, &y, &x, &w, &bias, 1, NULL));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) assert_int_equal(ops->convolve(ops, &y, &x, &wrong[i], &none, 1, NULL), H3_INTEGRITY);
    assert_int_equal(ops->convolve(ops, &y, &x, &w, &short_bias, 1, NULL), H3_INTEGRITY);
    assert_int_equal(ops->convolve(ops, &y, &x, &w, &bias, 0, NULL), H3_INTEGRITY);
    assert_int_equal(ops->convolve(ops, &y, &x, &w, &bias, 1, &longer), H3_INTEGRITY);
    assert_int_equal(ops->convolve(ops, &longer, &x, &w, &bias, 1, NULL), H3_INTEGRITY);
    assert_int_equal(ops->convolve(ops, &x, &x, &w, &bias, 1, NULL), H3_INTEGRITY); /* its input is overwritten */
    const h3_tensor w4 = T(data, 4, 4, 4);
    assert_good(ops->convolve_up(ops, &two, &x, &w4, &bias, 2));
    assert_int_equal(ops->convolve_up(ops, &two, &x, &w, &bias, 2), H3_INTEGRITY);
    assert_int_equal(ops->convolve_up(ops, &y, &x, &w4, &bias, 2), H3_INTEGRITY);
    assert_int_equal(ops->convolve_up(ops, &two, &x, &w4, &bias, 5), H3_INTEGRITY);
    assert_good(ops->activate(ops, &y, &x, &filter, &curve));
    assert_int_equal(ops->activate(ops, &x, &x, &filter, &curve), H3_INTEGRITY);
    assert_int_equal(ops->activate(ops, &y, &x, &bad_filter, &curve), H3_INTEGRITY);
    assert_int_equal(ops->activate(ops, &y, &x, &filter, &bad_curve), H3_INTEGRITY);
    assert_int_equal(ops->mean(ops, &y, means, 0), H3_INTEGRITY);
    assert_int_equal(ops->mean(ops, &y, means, 2), H3_INTEGRITY);
    h3_tensor phases;
    assert_int_equal(h3_audio_phases(&phases, &w, 2), H3_INTEGRITY);
    assert_null(phases.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(convolutions), cmocka_unit_test(transposed_convolutions), cmocka_unit_test(activations), cmocka_unit_test(a_constant_passes),
        cmocka_unit_test(activations_have_the_same_bits), cmocka_unit_test(sines), cmocka_unit_test(means), cmocka_unit_test(misfits_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
