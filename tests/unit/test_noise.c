/* Initial noise, bit for bit what torch's CPU generator draws. */
#include "golden_files.h"

#include <math.h>

#include "model/noise.h"
#include "model/scheduler.h"
#include "model/synth.h"

static void raw_stream_and_uniforms(void **state)
{
    (void)state;
    cJSON *root = golden_json("golden-layouts.json");
    const cJSON *seed;
    cJSON_ArrayForEach(seed, json_get(json_get(root, "noise_stream"), "seeds")) {
        const cJSON *raw = json_get(seed, "mt19937_first_16"), *uniforms = json_get(seed, "uniform24_first_16_bits");
        const cJSON *normals = json_get(seed, "normal_first_16_f64_reference");
        h3_generator generator, other;
        float drawn[16];
        h3_generator_seed(&generator, (uint64_t)json_int(seed, "seed"));
        other = generator;
        for (int i = 0; i < 16; i++) {
            uint32_t word = h3_generator_next(&generator);
            assert_int_equal(word, hex_bits(cJSON_GetArrayItem(raw, i)->valuestring));
            assert_int_equal(float_bits((float)(word & 0xffffff) * 0x1p-24f),
                             hex_bits(cJSON_GetArrayItem(uniforms, i)->valuestring));
        }
        assert_good(h3_generator_normal(&other, drawn, 16));
        for (int i = 0; i < 16; i++) {
            double reference = strtod(cJSON_GetArrayItem(normals, i)->valuestring, NULL);
            assert_true(fabs((double)drawn[i] - reference) < 1e-6);
        }
    }
    cJSON_Delete(root);
}

/* The 10,000th output for the standard's default seed: the state is regenerated many times on the way. */
static void ten_thousandth_output(void **state)
{
    (void)state;
    h3_generator generator;
    uint32_t word = 0;
    h3_generator_seed(&generator, 5489);
    for (int i = 0; i < 10000; i++) word = h3_generator_next(&generator);
    assert_int_equal(word, 4123659995u);
    h3_generator_seed(&generator, 0x500000000u + 5489); /* the low 32 bits of the seed count */
    for (int i = 0; i < 10000; i++) word = h3_generator_next(&generator);
    assert_int_equal(word, 4123659995u);
}

static void assert_draw(h3_generator *generator, const cJSON *golden, const char *part, int64_t count)
{
    char key[40];
    float *drawn = malloc((size_t)count * sizeof *drawn);
    assert_good(h3_generator_normal(generator, drawn, count));
    snprintf(key, sizeof key, "%s_sha256", part);
    if (!sha256_is(drawn, (size_t)count * sizeof *drawn, json_text(golden, key))) fail_msg("%s differs", key);
    snprintf(key, sizeof key, "%s_%s", part, strcmp(part, "audio") == 0 ? "last" : "first");
    const cJSON *values = json_get(golden, key);
    for (int i = 0; i < 8; i++) {
        float value = (float)cJSON_GetArrayItem(values, i)->valuedouble;
        assert_int_equal(float_bits(drawn[strcmp(part, "audio") == 0 ? count - 8 + i : i]), float_bits(value));
    }
    drawn[count - 1] = drawn[count - 1] > 0 ? -drawn[count - 1] : drawn[count - 1] + 1; /* one element suffices to be seen */
    snprintf(key, sizeof key, "%s_sha256", part);
    assert_false(sha256_is(drawn, (size_t)count * sizeof *drawn, json_text(golden, key)));
    free(drawn);
}

/* Condition, then video, then audio, from one generator a seed. */
static void assert_request(const char *size, int64_t condition, int64_t video, int64_t audio)
{
    cJSON *root = golden_json("noise.json");
    for (int seed = 42; seed <= 44; seed++) {
        char key[40];
        h3_generator generator;
        snprintf(key, sizeof key, "%s.%d", size, seed);
        const cJSON *golden = json_get(root, key);
        h3_generator_seed(&generator, (uint64_t)seed);
        assert_draw(&generator, golden, "cond", condition);
        assert_draw(&generator, golden, "video", video);
        assert_draw(&generator, golden, "audio", audio);
    }
    cJSON_Delete(root);
}

static void small_request(void **state)
{
    (void)state;
    assert_request("small", 24 * 8 * 10, 24 * 7 * 8 * 10, 2 * 37 * 32);
}

static void released_request(void **state)
{
    (void)state;
    assert_request("release", 24 * 48 * 84, 24 * 37 * 48 * 84, 2 * 207 * 32);
}

static int equals_list(const float *drawn, const cJSON *list)
{
    int same = 1;
    for (int i = 0; i < cJSON_GetArraySize(list); i++)
        same &= float_bits(drawn[i]) == float_bits((float)cJSON_GetArrayItem(list, i)->valuedouble);
    return same;
}

/* 15 elements take the pair path and leave a spare behind; 37 are no multiple of 16. */
static void odd_sizes(void **state)
{
    (void)state;
    cJSON *root = golden_json("noise.json");
    h3_generator generator;
    float few[15], more[37], again[1];
    h3_generator_seed(&generator, 42);
    assert_good(h3_generator_normal(&generator, few, 15));
    assert_true(equals_list(few, json_get(root, "randn_15")));
    assert_int_equal(generator.has_spare, 1);
    assert_good(h3_generator_normal(&generator, more, 37));
    assert_true(equals_list(more, json_get(root, "randn_37_after")));
    assert_good(h3_generator_normal(&generator, again, 1));
    assert_int_equal(generator.has_spare, 0); /* the block path left the spare alone */
    h3_generator_seed(&generator, 43);
    assert_good(h3_generator_normal(&generator, few, 15));
    assert_false(equals_list(few, json_get(root, "randn_15")));
    cJSON_Delete(root);
}

static void pair_path_is_one_stream(void **state)
{
    (void)state;
    h3_generator generator;
    float whole[15], parts[15];
    h3_generator_seed(&generator, 42);
    assert_good(h3_generator_normal(&generator, whole, 15));
    h3_generator_seed(&generator, 42);
    for (int i = 0; i < 15; i += 5) assert_good(h3_generator_normal(&generator, parts + i, 5));
    assert_memory_equal(whole, parts, sizeof whole);
    assert_good(h3_generator_normal(&generator, parts, 0));
    assert_memory_equal(whole, parts, sizeof whole);
    assert_fails(h3_generator_normal(&generator, parts, -1), H3_USAGE, "random numbers");
}

static void assert_rows(const h3_safetensors *file, int seed, const char *part, const float *rows, int64_t count, int64_t size)
{
    char name[60];
    h3_tensor golden;
    snprintf(name, sizeof name, "seed%d.%s", seed, part);
    assert_good(h3_safetensors_read(&golden, file, name, H3_F32, 2, H3_SHAPE(count, size)));
    assert_memory_equal(rows, golden.data, h3_tensor_bytes(&golden));
    h3_tensor_free(&golden);
}

/* The rows that the sampling loop starts from: the noised keyframe, video and audio noise, as rows. */
static void first_rows_of_a_generation(void **state)
{
    enum { CONDITION = 4 * 8 * 10, VIDEO = 7 * CONDITION, AUDIO = 2 * 37 * 6 };
    static float noise[VIDEO], noised[CONDITION], rows[VIDEO], back[VIDEO];
    (void)state;
    h3_safetensors file = golden_tensors("generation/nano.safetensors");
    h3_tensor keyframe;
    assert_good(h3_synth_input(&keyframe, 7, "input.condition.0", H3_F32, 5, H3_SHAPE(1, 4, 1, 8, 10)));
    for (int seed = 42; seed <= 44; seed++) {
        h3_generator generator;
        h3_generator_seed(&generator, (uint64_t)seed);
        assert_good(h3_generator_normal(&generator, noise, CONDITION));
        h3_forward_noise(noised, keyframe.data, noise, 0.999f, CONDITION);
        h3_patchify(rows, noised, 4, 1, 8, 10, 2, 2);
        assert_rows(&file, seed, "condition_rows", rows, 20, 16);
        assert_good(h3_generator_normal(&generator, noise, VIDEO));
        h3_patchify(rows, noise, 4, 7, 8, 10, 2, 2);
        assert_rows(&file, seed, "video_rows0", rows, 140, 16);
        h3_unpatchify(back, rows, 4, 7, 8, 10, 2, 2);
        assert_memory_equal(back, noise, sizeof noise);
        assert_memory_not_equal(rows, noise, sizeof noise);
        assert_good(h3_generator_normal(&generator, rows, AUDIO));
        assert_rows(&file, seed, "audio_rows0", rows, 74, 6);
    }
    h3_tensor_free(&keyframe);
    h3_safetensors_close(&file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(raw_stream_and_uniforms), cmocka_unit_test(ten_thousandth_output), cmocka_unit_test(small_request),
        cmocka_unit_test(released_request), cmocka_unit_test(odd_sizes), cmocka_unit_test(pair_path_is_one_stream),
        cmocka_unit_test(first_rows_of_a_generation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
