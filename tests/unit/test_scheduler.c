/* Sigmas, timesteps and Euler steps against the published scheduler, bit for bit. */
#include "golden_files.h"

#include <math.h>

#include "model/scheduler.h"
#include "model/synth.h"

static h3_schedule new_schedule(int64_t n, float shift)
{
    h3_schedule schedule;
    assert_good(h3_schedule_new(&schedule, n, shift));
    return schedule;
}

static const float *golden_floats(const h3_safetensors *file, const char *name, int64_t count, h3_tensor *copy)
{
    assert_good(h3_safetensors_read(copy, file, name, H3_F32, 1, H3_SHAPE(count)));
    return copy->data;
}

static int same_bits(const float *a, const float *b, int64_t count) { return memcmp(a, b, (size_t)count * sizeof *a) == 0; }

static void grids_equal_the_published_ones(void **state)
{
    static const int64_t sizes[] = {2, 3, 8, 50, 1000};
    (void)state;
    h3_safetensors file = golden_tensors("scheduler.safetensors");
    for (int shift = 3; shift <= 12; shift += 9) {
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            char name[80];
            h3_tensor copy;
            h3_schedule schedule = new_schedule(sizes[i], (float)shift);
            assert_int_equal(schedule.points, sizes[i]);
            snprintf(name, sizeof name, "sigmas.shift%d.n%d", shift, (int)sizes[i]);
            assert_true(same_bits(schedule.sigma, golden_floats(&file, name, sizes[i], &copy), sizes[i]));
            h3_tensor_free(&copy);
            snprintf(name, sizeof name, "timesteps.shift%d.n%d", shift, (int)sizes[i]);
            assert_true(same_bits(schedule.timestep, golden_floats(&file, name, sizes[i] - 1, &copy), sizes[i] - 1));
            schedule.timestep[0] = -0.0f; /* the comparison sees a single bit */
            assert_false(same_bits(schedule.timestep, copy.data, sizes[i] - 1));
            h3_tensor_free(&copy);
            h3_schedule_free(&schedule);
        }
    }
    h3_safetensors_close(&file);
}

static void assert_bits(const cJSON *list, const float *values, int64_t count, const char *what)
{
    assert_int_equal(cJSON_GetArraySize(list), count);
    for (int i = 0; i < (int)count; i++)
        if (float_bits(values[i]) != hex_bits(cJSON_GetArrayItem(list, i)->valuestring)) fail_msg("%s differs at %d", what, i);
}

/* Whether `count` values differ from the listed bits exactly at `expected`. */
static void assert_differs_at(const cJSON *list, const float *values, const cJSON *expected, const char *what)
{
    int at = 0;
    for (int i = 0; i < cJSON_GetArraySize(list); i++) {
        if (float_bits(values[i]) == hex_bits(cJSON_GetArrayItem(list, i)->valuestring)) continue;
        const cJSON *wanted = cJSON_GetArrayItem(expected, at++);
        if (wanted == NULL || wanted->valueint != i) fail_msg("%s: unexpected difference at %d", what, i);
    }
    assert_int_equal(at, cJSON_GetArraySize(expected));
}

static void assert_modality(const cJSON *variant, const cJSON *plain, const cJSON *differ, const char *name, float shift)
{
    const cJSON *golden = json_get(variant, name);
    h3_schedule schedule = new_schedule(50, shift);
    float recovered[50], ratio[49], rest[49];
    char key[64];
    assert_bits(json_get(golden, "sigma_bits"), schedule.sigma, 50, "sigma");
    assert_bits(json_get(golden, "timestep_bits"), schedule.timestep, 49, "timestep");
    for (int i = 0; i < 49; i++) h3_schedule_coefficients(&schedule, i, &recovered[i], &ratio[i], &rest[i]);
    recovered[49] = 0;
    assert_bits(json_get(golden, "ratio_bits"), ratio, 49, "ratio");
    assert_bits(json_get(golden, "one_minus_ratio_bits"), rest, 49, "one_minus_ratio");
    assert_differs_at(json_get(golden, "sigma_bits"), recovered, json_get(golden, "sigma_from_timestep_differs_at"),
                      "recovered sigma");
    snprintf(key, sizeof key, "%s_sigma", name);
    assert_differs_at(json_get(json_get(plain, name), "sigma_bits"), schedule.sigma, json_get(differ, key), "plain sigma");
    snprintf(key, sizeof key, "%s_timestep", name);
    assert_differs_at(json_get(json_get(plain, name), "timestep_bits"), schedule.timestep, json_get(differ, key),
                      "plain timestep");
    h3_schedule_free(&schedule);
}

/* All of the fused variant; and the unfused variant differs from ours where, and only where, the file says. */
static void bits_of_the_fused_variant(void **state)
{
    (void)state;
    cJSON *root = golden_json("golden-scheduler.json");
    const cJSON *fused = json_get(json_get(root, "variants"), "fma"), *plain = json_get(json_get(root, "variants"), "plain");
    const cJSON *differ = json_get(root, "variants_differ_at");
    h3_schedule unshifted = new_schedule(50, 1.0f); /* with shift 1 a sigma is its base point */
    assert_bits(json_get(fused, "base_bits"), unshifted.sigma, 50, "base");
    assert_differs_at(json_get(plain, "base_bits"), unshifted.sigma, json_get(differ, "base"), "plain base");
    h3_schedule_free(&unshifted);
    assert_modality(fused, plain, differ, "video_shift12", 12.0f);
    assert_modality(fused, plain, differ, "audio_shift3", 3.0f);
    cJSON_Delete(root);
}

static h3_tensor stream(const char *name)
{
    h3_tensor tensor;
    assert_good(h3_tensor_new(&tensor, H3_F32, 1, H3_SHAPE(64)));
    assert_good(h3_synth_fill(&tensor, 7, name, 0.0f, 1.7f));
    return tensor;
}

/* The step with the multiplications and additions of two operands fused: what a contracting compiler makes of it. */
static void contracted_step(const h3_schedule *schedule, int64_t i, float *x, const float *velocity)
{
    float sigma, ratio, rest;
    h3_schedule_coefficients(schedule, i, &sigma, &ratio, &rest);
    for (int k = 0; k < 64; k++) x[k] = fmaf(ratio, x[k], rest * fmaf(sigma, velocity[k], x[k]));
}

static void euler_trajectories(void **state)
{
    (void)state;
    h3_safetensors file = golden_tensors("scheduler.safetensors");
    for (int shift = 3; shift <= 12; shift += 9) {
        h3_schedule schedule = new_schedule(50, (float)shift);
        h3_tensor x = stream("sched.x"), other = stream("sched.x"), golden;
        for (int i = 0; i < 49; i++) {
            char name[40];
            snprintf(name, sizeof name, "sched.v%d", i);
            h3_tensor velocity = stream(name);
            h3_schedule_step(&schedule, i, x.data, velocity.data, 64);
            contracted_step(&schedule, i, other.data, velocity.data);
            h3_tensor_free(&velocity);
            if (i != 0 && i != 1 && i != 24 && i != 48) continue;
            snprintf(name, sizeof name, "euler.shift%d.x%d", shift, i + 1);
            assert_true(same_bits(x.data, golden_floats(&file, name, 64, &golden), 64));
            if (i == 48) assert_false(same_bits(other.data, golden.data, 64));
            h3_tensor_free(&golden);
        }
        h3_tensor_free(&x);
        h3_tensor_free(&other);
        h3_schedule_free(&schedule);
    }
    h3_safetensors_close(&file);
}

static void forward_noise_rounds_each_operation(void **state)
{
    (void)state;
    const float t = 0.999f;
    assert_int_equal(float_bits(t), 0x3f7fbe77);
    assert_int_equal(float_bits(1.0f - t), 0x3a831200);
    h3_tensor x = stream("sched.x"), noise = stream("sched.v0");
    float z[64], *a = x.data, *b = noise.data;
    int fused_differs = 0;
    h3_forward_noise(z, a, b, t, 64);
    for (int i = 0; i < 64; i++) {
        volatile float kept = t * a[i], added = (1.0f - t) * b[i];
        volatile float sum = kept + added;
        assert_int_equal(float_bits(z[i]), float_bits(sum));
        fused_differs |= float_bits(fmaf(t, a[i], added)) != float_bits(z[i]);
    }
    assert_true(fused_differs);
    h3_tensor_free(&x);
    h3_tensor_free(&noise);
}

static void impossible_schedules(void **state)
{
    static const int64_t sizes[] = {1, 0, -5, INT64_MIN, INT64_MAX, (1 << 24) + 1};
    static const float shifts[] = {0, -1, NAN, INFINITY, 1e-30f};
    h3_schedule schedule;
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        assert_fails(h3_schedule_new(&schedule, sizes[i], 12), H3_USAGE, "grid points");
        assert_null(schedule.sigma);
    }
    for (size_t i = 0; i < sizeof shifts / sizeof *shifts; i++) {
        assert_fails(h3_schedule_new(&schedule, 50, shifts[i]), H3_USAGE, "shift");
        assert_null(schedule.sigma);
    }
}

/* A shift so large that neighbours become equal: they are collapsed, and the rest falls strictly. */
static void equal_sigmas_collapse(void **state)
{
    (void)state;
    h3_schedule schedule = new_schedule(1000, 1e6f);
    assert_true(schedule.points < 1000 && schedule.points > 2);
    for (int64_t i = 0; i + 1 < schedule.points; i++) {
        assert_true(schedule.sigma[i] > schedule.sigma[i + 1]);
        assert_int_equal(float_bits(schedule.timestep[i]), float_bits(1.0f - schedule.sigma[i]));
    }
    assert_true(schedule.sigma[schedule.points - 1] == 0);
    h3_schedule_free(&schedule);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grids_equal_the_published_ones),
        cmocka_unit_test(bits_of_the_fused_variant),
        cmocka_unit_test(euler_trajectories),
        cmocka_unit_test(forward_noise_rounds_each_operation),
        cmocka_unit_test(impossible_schedules),
        cmocka_unit_test(equal_sigmas_collapse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
