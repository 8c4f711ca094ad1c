/*
 * The comparison with the sampled goldens of the whole model (tests/cuda/whole.h), on nano: its expected values, which are the published implementation's,
 * are sampled into files of the same form as the large goldens', and nano runs on the CPU in the released model's place.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../cuda/sampled.h"
#include "../cuda/whole.h"
#include "base/json.h"
#include "base/log.h"
#include "golden_files.h"

enum { SAMPLES = 64, MOST = 400, BLOCKS = 2 };

/* A set of named tensors that becomes a file. */
typedef struct collection {
    h3_safetensors_entry entries[MOST];
    size_t count;
} collection;

static char folder[] = "/tmp/h3-whole-XXXXXX";
static h3_config config;
static h3_device device;

static void add_view(collection *c, const char *prefix, const char *name, h3_tensor tensor)
{
    char key[200];
    snprintf(key, sizeof key, "%s%.150s", prefix, name);
    assert_true(c->count < MOST);
    c->entries[c->count++] = (h3_safetensors_entry){.name = strdup(key), .tensor = tensor};
}

/* Elements (j * 2654435761) mod N, as the golden README has them. */
static void add_samples(collection *c, const char *prefix, const char *name, const h3_tensor *whole_tensor)
{
    h3_tensor t;
    int64_t count = h3_tensor_count(whole_tensor), k = count < SAMPLES ? count : SAMPLES;
    assert_good(h3_tensor_new(&t, H3_F32, 1, &k));
    for (int64_t j = 0; j < k; j++) ((float *)t.data)[j] = (float)sampled_value(whole_tensor, (int64_t)((uint64_t)j * 2654435761u % (uint64_t)count));
    add_view(c, prefix, name, t);
}

static void free_collection(collection *c)
{
    for (size_t i = 0; i < c->count; i++) {
        free(c->entries[i].name);
        h3_tensor_free(&c->entries[i].tensor);
    }
    c->count = 0;
}

static void write_file(const char *name, const char *text, size_t size)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static void write_tensors(const char *name, const collection *c, const cJSON *metadata)
{
    char *image;
    size_t size;
    assert_good(h3_safetensors_build(&image, &size, c->entries, c->count, metadata));
    write_file(name, image, size);
    free(image);
}

static void write_json(const char *name, const cJSON *json)
{
    char *text;
    assert_good(h3_json_print(&text, json));
    write_file(name, text, strlen(text));
    free(text);
}

static double norm(const h3_tensor *t)
{
    double sum = 0.0;
    for (int64_t i = 0; i < h3_tensor_count(t); i++) sum += sampled_value(t, i) * sampled_value(t, i);
    return sqrt(sum);
}

/* The name that a tensor of nano has in the deep golden; "" when it has none. */
static void deep_name(char out[200], const char *name)
{
    long long block;
    out[0] = 0;
    if (whole_block_output(name, &block)) snprintf(out, 200, "block_out.%lld", block);
    else if (strncmp(name, "out.", 4) == 0 || strncmp(name, "grad.", 5) == 0) snprintf(out, 200, "%.190s", name);
}

static void add_shape(cJSON *entry, const h3_tensor *t)
{
    cJSON *shape = cJSON_AddArrayToObject(entry, "shape");
    for (int32_t i = 0; i < t->rank; i++) cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)t->shape[i]));
    cJSON_AddNumberToObject(entry, "l2", norm(t));
}

static int write_deep(const h3_safetensors *exact, const h3_safetensors *rounded)
{
    collection c = {.count = 0};
    int written = 0;
    cJSON *report = cJSON_CreateObject(), *tensors = cJSON_AddObjectToObject(report, "tensors");
    cJSON_AddNumberToObject(report, "layers", BLOCKS);
    for (size_t i = 0; i < exact->count; i++) {
        char name[200];
        deep_name(name, exact->entries[i].name);
        if (name[0] == 0) continue;
        const h3_tensor *bf16 = h3_safetensors_find(rounded, exact->entries[i].name);
        assert_non_null(bf16);
        add_samples(&c, "fp32.", name, &exact->entries[i].tensor);
        add_samples(&c, "bf16.", name, bf16);
        add_shape(cJSON_AddObjectToObject(tensors, name), &exact->entries[i].tensor);
        written++;
    }
    write_tensors("released-dims/deep-samples.safetensors", &c, NULL);
    write_json("released-dims/deep-report.json", report);
    cJSON_Delete(report);
    free_collection(&c);
    return written;
}

/* As layouts "s264" and "release", of which both have nano's size here. */
static void write_full(const h3_safetensors *rounded)
{
    static const char *const layouts[] = {"s264", "release"};
    collection c = {.count = 0};
    cJSON *report = cJSON_CreateObject();
    for (int i = 0; i < 2; i++) {
        char prefix[32], name[64];
        cJSON *entry = cJSON_AddObjectToObject(report, layouts[i]), *norms = cJSON_CreateObject();
        const h3_tensor *video = h3_safetensors_find(rounded, "out.video"), *audio = h3_safetensors_find(rounded, "out.audio");
        snprintf(prefix, sizeof prefix, "%s.", layouts[i]);
        add_samples(&c, prefix, "video", video);
        add_samples(&c, prefix, "audio", audio);
        cJSON_AddNumberToObject(entry, "video_l2", norm(video));
        cJSON_AddNumberToObject(entry, "audio_l2", norm(audio));
        cJSON_AddItemToObject(entry, "block_out_l2", norms);
        for (int block = 0; block < BLOCKS; block++) {
            snprintf(name, sizeof name, "node.block%d.residual_mlp", block);
            const h3_tensor *output = h3_safetensors_find(rounded, name);
            assert_non_null(output);
            snprintf(name, sizeof name, "%d", block);
            cJSON_AddNumberToObject(norms, name, norm(output));
        }
    }
    write_tensors("released-dims/full-samples.safetensors", &c, NULL);
    write_json("released-dims/full-report.json", report);
    cJSON_Delete(report);
    free_collection(&c);
}

/* nano's own loop, with the metadata that the released one has. */
static void write_generation(void)
{
    char *image;
    size_t size;
    h3_safetensors file = golden_tensors("generation/nano.safetensors");
    cJSON *metadata = cJSON_CreateObject();
    cJSON_AddStringToObject(metadata, "layout", "{\"text\": 5, \"frames\": 7, \"h\": 8, \"w\": 10, \"audio\": 37, \"anchors\": [\"first\"], \"vision_rows\": 2}");
    cJSON_AddStringToObject(metadata, "steps", "50");
    cJSON_AddStringToObject(metadata, "text_seed", "7");
    cJSON_AddStringToObject(metadata, "weight_seed", "0");
    assert_good(h3_safetensors_build(&image, &size, file.entries, file.count, metadata));
    write_file("generation/released.safetensors", image, size);
    free(image);
    cJSON_Delete(metadata);
    h3_safetensors_close(&file);
}

static void write_layouts(void)
{
    cJSON *layouts, *copy = cJSON_CreateObject();
    assert_good(h3_json_read(&layouts, golden_path("layouts.json"), H3_INTEGRITY));
    const cJSON *s48 = cJSON_GetObjectItemCaseSensitive(layouts, "s48");
    assert_non_null(s48);
    cJSON_AddItemToObject(copy, "s264", cJSON_Duplicate(s48, 1));
    cJSON_AddItemToObject(copy, "release", cJSON_Duplicate(s48, 1));
    write_json("layouts.json", copy);
    cJSON_Delete(layouts);
    cJSON_Delete(copy);
}

static void make_folder(const char *name)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(mkdir(path, 0700), 0);
}

static int expected_deep;

static int set_up(void **state)
{
    char *text;
    size_t size;
    h3_safetensors exact = golden_tensors("nano/expected-fp64.safetensors"), rounded = golden_tensors("nano/expected-bf16.safetensors");
    (void)state;
    h3_log_enable(0);
    device = *h3_device_cpu();
    assert_good(h3_file_read(&text, &size, golden_path("nano/transformer/config.json"), 1 << 20, H3_INTEGRITY));
    assert_good(h3_config_parse(&config, text, size, "nano"));
    free(text);
    assert_non_null(mkdtemp(folder));
    make_folder("released-dims");
    make_folder("generation");
    write_layouts();
    expected_deep = write_deep(&exact, &rounded);
    write_full(&rounded);
    write_generation();
    h3_safetensors_close(&exact);
    h3_safetensors_close(&rounded);
    assert_int_equal(setenv("H3_GOLDEN_SHARED", folder, 1), 0);
    return 0;
}

static int tear_down(void **state)
{
    char command[400];
    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

static whole open_whole(void)
{
    whole w;
    assert_good(whole_open(&w, &device, &config));
    return w;
}

static void must_hold(h3_status status, const golden_result *r, int expected, const char *what)
{
    assert_good(status);
    print_message("# %s: %d tensors, %d beyond their bound, worst %s %.3g / %.3g\n", what, r->compared, r->failed, r->worst_name, r->worst_error, r->worst_bound);
    assert_int_equal(r->failed, 0);
    assert_int_equal(r->compared, expected);
    assert_int_equal(r->expected, expected);
}

static void must_fail(h3_status status, const golden_result *r, const char *name)
{
    assert_good(status);
    assert_int_equal(r->failed, 1);
    assert_string_equal(r->worst_name, name);
}

/* p of one tensor, from the two sets of samples. */
static double sampled_p(const char *name)
{
    char key[200];
    double sum = 0.0, l2;
    h3_safetensors file = golden_tensors("nano/expected-fp64.safetensors"), other = golden_tensors("nano/expected-bf16.safetensors");
    snprintf(key, sizeof key, "%.190s", name);
    const h3_tensor *a = h3_safetensors_find(&file, key), *b = h3_safetensors_find(&other, key);
    int64_t count = h3_tensor_count(a), k = count < SAMPLES ? count : SAMPLES;
    for (int64_t j = 0; j < k; j++) {
        int64_t i = (int64_t)((uint64_t)j * 2654435761u % (uint64_t)count);
        double d = (double)(float)sampled_value(a, i) - (double)(float)sampled_value(b, i);
        sum += d * d;
    }
    l2 = norm(a);
    h3_safetensors_close(&file);
    h3_safetensors_close(&other);
    return sqrt(sum) / (l2 * sqrt((double)k / (double)count));
}

/* --- deep ----------------------------------------------------------------------------------------------------------- */

static void deep_holds(void **state)
{
    golden_result r;
    whole w = open_whole();
    (void)state;
    assert_true(expected_deep > 60);
    must_hold(whole_deep(&r, &w, GOLDEN_FP32, ""), &r, expected_deep, "deep fp32");
    assert_true(r.worst_bound == 1e-4);
    must_hold(whole_deep(&r, &w, GOLDEN_BF16, ""), &r, expected_deep, "deep bf16");
    /* Our BF16 forward is the golden's, so that the error is p. */
    assert_string_equal(r.worst_name, "out.audio");
    assert_true(fabs(r.worst_bound - (1.25 * r.worst_error + 1e-3)) < 1e-5);
    must_hold(whole_deep(&r, &w, GOLDEN_CANDIDATE, ""), &r, expected_deep, "deep candidate");
    whole_close(&w);
}

static void deep_sees_a_disturbed_tensor(void **state)
{
    static const char *const names[] = {"out.audio", "block_out.1", "grad.proj_in.bias", "grad.transformer_blocks.1.ff.net.2.weight"};
    whole w = open_whole();
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        golden_result r;
        must_fail(whole_deep(&r, &w, GOLDEN_FP32, names[i]), &r, names[i]);
        assert_true(r.worst_bound == 1e-4);
    }
    golden_result r;
    must_fail(whole_deep(&r, &w, GOLDEN_BF16, "block_out.0"), &r, "block_out.0");
    must_fail(whole_deep(&r, &w, GOLDEN_BF16, "grad.proj_in.bias"), &r, "grad.proj_in.bias");
    assert_true(fabs(r.worst_bound - (1.5 * sampled_p("grad.proj_in.bias") + 5e-3)) < 1e-7);
    whole_close(&w);
}

/* Weights of fewer blocks leave tensors of the golden without a counterpart. */
static void deep_counts_what_was_compared(void **state)
{
    golden_result r;
    whole w = open_whole();
    cJSON *report;
    char path[300];
    (void)state;
    snprintf(path, sizeof path, "%s/released-dims/deep-report.json", folder);
    assert_good(h3_json_read(&report, path, H3_INTEGRITY));
    cJSON_SetNumberValue(cJSON_GetObjectItemCaseSensitive(report, "layers"), 1);
    write_json("released-dims/deep-report.json", report);
    assert_good(whole_deep(&r, &w, GOLDEN_FP32, ""));
    assert_true(r.compared < r.expected);
    cJSON_SetNumberValue(cJSON_GetObjectItemCaseSensitive(report, "layers"), BLOCKS);
    /* A shape that is not the tensor's: the samples would be of other elements. */
    cJSON *shape = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(report, "tensors"), "out.video"), "shape");
    double rows = cJSON_GetArrayItem(shape, 0)->valuedouble;
    cJSON_SetNumberValue(cJSON_GetArrayItem(shape, 0), rows - 1);
    write_json("released-dims/deep-report.json", report);
    must_fail(whole_deep(&r, &w, GOLDEN_FP32, ""), &r, "out.video");
    assert_true(isnan(r.worst));
    cJSON_SetNumberValue(cJSON_GetArrayItem(shape, 0), rows);
    write_json("released-dims/deep-report.json", report);
    cJSON_Delete(report);
    must_hold(whole_deep(&r, &w, GOLDEN_FP32, ""), &r, expected_deep, "deep again");
    whole_close(&w);
}

/* --- full ----------------------------------------------------------------------------------------------------------- */

static void full_holds(void **state)
{
    golden_result r;
    whole w = open_whole();
    (void)state;
    must_hold(whole_full(&r, &w, "s264", GOLDEN_CANDIDATE, ""), &r, 2 + BLOCKS, "full candidate");
    assert_true(w.full[0].known && w.full[0].p[0] > 1e-3 && w.full[0].p[0] < 0.1);
    must_hold(whole_full(&r, &w, "s264", GOLDEN_BF16, ""), &r, 2 + BLOCKS, "full bf16");
    whole_close(&w);
}

static void full_sees_a_disturbed_tensor(void **state)
{
    static const char *const names[] = {"out.video", "out.audio", "block_out.0", "block_out.1"};
    whole w = open_whole();
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        golden_result r;
        must_fail(whole_full(&r, &w, "s264", GOLDEN_BF16, names[i]), &r, names[i]);
        assert_true(r.worst_bound == (i < 2 ? 1.5 * w.full[0].p[i] + 1e-3 : 1e-3));
        must_fail(whole_full(&r, &w, "s264", GOLDEN_CANDIDATE, names[i]), &r, names[i]);
        assert_true(r.worst_bound == (i < 2 ? 1.5 * w.full[0].p[i] + 1e-3 : 1e-3));
        must_fail(whole_full(&r, &w, "release", GOLDEN_BF16, names[i]), &r, names[i]);
        assert_true(r.worst_bound == (i < 2 ? 0.03 : 1e-3));
    }
    whole_close(&w);
}

/* Our own FP32 makes the bound: a wrong one must not loosen it. */
static void full_refuses_a_large_p(void **state)
{
    golden_result r;
    whole w = open_whole();
    (void)state;
    w.full[0] = (whole_layout){1, {0.2, 0.01}};
    must_fail(whole_full(&r, &w, "s264", GOLDEN_BF16, ""), &r, "out.video");
    w.full[0] = (whole_layout){1, {NAN, 0.1}};
    must_fail(whole_full(&r, &w, "s264", GOLDEN_BF16, ""), &r, "out.video");
    w.full[0] = (whole_layout){1, {0.1, 1e-7}}; /* and a small one makes it narrow */
    must_fail(whole_full(&r, &w, "s264", GOLDEN_CANDIDATE, ""), &r, "out.audio");
    whole_close(&w);
}

static void full_refuses_what_has_no_golden(void **state)
{
    golden_result r;
    whole w = open_whole();
    (void)state;
    assert_fails(whole_full(&r, &w, "s264", GOLDEN_FP32, ""), H3_USAGE, "fp32");
    assert_fails(whole_full(&r, &w, "s3160", GOLDEN_BF16, ""), H3_USAGE, "s3160");
    assert_fails(whole_full(&r, &w, "s925", GOLDEN_BF16, ""), H3_INTEGRITY, "s925");
    whole_close(&w);
}

/* --- generation ------------------------------------------------------------------------------------------------------ */

static void generation_compares_everything(void **state)
{
    static const char *const near[] = {"velocity0.video", "velocity0.audio", "video_rows49", "audio_rows49"}, *const equal[] = {"video_rows0", "audio_rows0"};
    golden_result r;
    whole w = open_whole();
    (void)state;
    must_hold(whole_generation(&r, &w, GOLDEN_BF16, ""), &r, 12, "generation bf16");
    for (size_t i = 0; i < sizeof near / sizeof *near; i++) {
        must_fail(whole_generation(&r, &w, GOLDEN_BF16, near[i]), &r, near[i]);
        assert_true(r.worst_bound == (i < 2 ? 0.02 : 0.05));
    }
    for (size_t i = 0; i < sizeof equal / sizeof *equal; i++) must_fail(whole_generation(&r, &w, GOLDEN_BF16, equal[i]), &r, equal[i]);
    assert_good(whole_generation(&r, &w, GOLDEN_BF16, "condition_rows"));
    assert_int_equal(r.failed, 2); /* before and after */
    must_hold(whole_generation(&r, &w, GOLDEN_CANDIDATE, ""), &r, 12, "generation candidate");
    assert_fails(whole_generation(&r, &w, GOLDEN_FP32, ""), H3_USAGE, "BF16");
    whole_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(deep_holds),
        cmocka_unit_test(deep_sees_a_disturbed_tensor),
        cmocka_unit_test(deep_counts_what_was_compared),
        cmocka_unit_test(full_holds),
        cmocka_unit_test(full_sees_a_disturbed_tensor),
        cmocka_unit_test(full_refuses_a_large_p),
        cmocka_unit_test(full_refuses_what_has_no_golden),
        cmocka_unit_test(generation_compares_everything),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
