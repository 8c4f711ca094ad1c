/* thresholds.json: bounds made from artifacts, writing and reading back, every field damaged, edited bounds. */
#include "golden_files.h"

#include <math.h>

#include "base/memory.h"
#include "qualify/metrics.h"
#include "qualify/thresholds.h"
#include "store/artifact.h"
#include "store/publish.h"
#include "store/run.h"

#define HASH_A "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

static char folder[32] = "/tmp/h3-thresholds-XXXXXX";

static int setup(void **state)
{
    (void)state;
    return mkdtemp(folder) == NULL;
}

static int teardown(void **state)
{
    (void)state;
    return h3_remove_tree(folder) != H3_OK;
}

/* Tensors of one artifact; the provider's are the golden's times 1 + step. */
static const struct part {
    int64_t block;
    const char *names[3];
} parts[] = {{H3_INPUT_SIDE, {"boundary.hidden", "grad.proj_in.weight", NULL}},
             {0, {"node.block0.norm1", "dnode.block0.norm1", "grad.zero"}},
             {H3_OUTPUT_SIDE, {"out.video", NULL, NULL}}};

static void publish_part(h3_manifest *manifest, const struct part *part, int32_t precision, float step, int spoiled)
{
    h3_artifact_writer *writer;
    char path[H3_PATH_MAX], relative[200], name[240], sha256[H3_SHA256_HEX], digest[H3_SHA256_HEX];
    int64_t size;
    assert_good(h3_reference_path(relative, "s", precision, part->block));
    assert_good(h3_artifact_create(&writer, "test"));
    for (int i = 0; i < 3 && part->names[i] != NULL; i++) {
        float values[4] = {1.0f, -2.0f, 3.0f, 4.0f};
        for (int j = 0; j < 4; j++) values[j] *= strcmp(part->names[i], "grad.zero") == 0 ? 0.0f : precision == H3_BF16 ? 1.0f + step : 1.0f;
        if (spoiled && precision == H3_BF16) values[1] = NAN;
        h3_tensor tensor = h3_tensor_view(values, H3_F32, 1, H3_SHAPE(4));
        assert_good(h3_artifact_add(writer, part->names[i], &tensor, digest));
        snprintf(name, sizeof name, "s/%s/%s", h3_precision_name(precision), part->names[i]);
        assert_good(h3_manifest_add_tensor(manifest, name, relative, digest));
    }
    assert_good(h3_run_place(path, folder, relative));
    assert_good(h3_artifact_publish(writer, path, &size, sha256));
    assert_good(h3_manifest_add_file(manifest, relative, size, sha256));
}

static void publish_all(h3_manifest *manifest, float step, int spoiled)
{
    h3_manifest unsorted = {.fingerprint = cJSON_Parse("{\"libm\": \"2.36\"}"), .model = cJSON_Parse("{\"kind\": \"synthetic\"}")};
    char *text;
    memcpy(unsorted.plan_identity, HASH_A, H3_SHA256_HEX);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        publish_part(&unsorted, &parts[i], H3_F32, step, spoiled);
        publish_part(&unsorted, &parts[i], H3_BF16, step, spoiled);
    }
    assert_good(h3_manifest_print(&text, &unsorted));
    h3_manifest_free(&unsorted);
    assert_good(h3_manifest_parse(manifest, text, strlen(text), "manifest"));
    free(text);
}

static h3_status compute(h3_thresholds *out, const h3_manifest *manifest)
{
    static const char text[] = "{\"num_attention_heads\":2,\"attention_head_dim\":16,\"hidden_size\":24,\"num_layers\":1,\"num_refiner_layers\":1,"
                               "\"ffn_dim\":32,\"in_channels\":4,\"audio_in_channels\":6,\"patch_size\":[1,2,2],\"text_dim\":8,\"freq_dim\":8,"
                               "\"time_embed_hidden_dim\":24,\"time_embed_dim\":16,\"rope_freq_dim\":2}";
    h3_plan_layout layout = {.name = "s", .args = {.text = 5, .frames = 2, .height = 4, .width = 6, .audio = 3, .vision_rows = 2}, .video_time = 0.25, .audio_time = 0.5,
                             .condition_time = 0.999};
    h3_plan plan = {.layout_count = 1, .layouts = &layout};
    h3_config config;
    h3_weights *weights;
    assert_good(h3_config_parse(&config, text, strlen(text), "a configuration"));
    assert_good(h3_weights_synthetic(&weights, &config, 0));
    h3_tensor_source source = {.device = h3_device_cpu(), .weights = weights, .manifest = manifest, .run_folder = folder};
    memset(out, 0, sizeof *out);
    out->fingerprint = cJSON_Duplicate(manifest->fingerprint, 1);
    memcpy(out->plan_identity, HASH_A, H3_SHA256_HEX);
    memcpy(out->manifest_sha256, HASH_A, H3_SHA256_HEX);
    h3_status status = h3_thresholds_compute(out, &plan, &source, 0, 1, NULL);
    h3_tensor_source_close(&source);
    h3_weights_free(weights);
    return status;
}

static char *printed(void)
{
    h3_manifest manifest;
    h3_thresholds t;
    char *text;
    publish_all(&manifest, 0.0625f, 0);
    assert_good(compute(&t, &manifest));
    assert_good(h3_thresholds_print(&text, &t, &manifest));
    h3_manifest_free(&manifest);
    h3_thresholds_free(&t);
    return text;
}

static h3_status parse(h3_thresholds *out, const char *text) { return h3_thresholds_parse(out, text, strlen(text), "thresholds.json"); }

static void test_bounds_from_artifacts(void **state)
{
    (void)state;
    h3_thresholds t;
    char *text = printed();
    assert_good(parse(&t, text));
    assert_int_equal(t.count, 6);
    static const char *const forward[] = {"boundary.hidden", "node.block0.norm1", "out.video"}, *const gradients[] = {"grad.proj_in.weight", "dnode.block0.norm1"};
    for (size_t i = 0; i < 3; i++) {
        const h3_threshold *item = h3_thresholds_find(&t, "s", forward[i]);
        assert_non_null(item);
        assert_true(item->provider_error == 0.0625 && item->bound == 1.25 * 0.0625 + 1e-3);
    }
    for (size_t i = 0; i < 2; i++) {
        const h3_threshold *item = h3_thresholds_find(&t, "s", gradients[i]);
        assert_non_null(item);
        assert_true(item->provider_error == 0.0625 && item->bound == 1.5 * 0.0625 + 5e-3);
    }
    const h3_threshold *zero = h3_thresholds_find(&t, "s", "grad.zero");
    assert_true(zero->provider_error == 0.0 && zero->bound == 1e-6);
    assert_null(h3_thresholds_find(&t, "s", "node.block0.norm2"));
    assert_null(h3_thresholds_find(&t, "t", "out.video"));
    free(text);
    h3_thresholds_free(&t);
    assert_null(h3_thresholds_find(&t, "s", "out.video"));
}

static void test_round_trip(void **state)
{
    (void)state;
    h3_manifest manifest;
    h3_thresholds t;
    char *first = printed(), *second;
    publish_all(&manifest, 0.0625f, 0);
    assert_good(parse(&t, first));
    assert_string_equal(t.manifest_sha256, HASH_A);
    assert_good(h3_thresholds_print(&second, &t, &manifest));
    assert_string_equal(first, second);
    free(first);
    free(second);
    h3_manifest_free(&manifest);
    h3_thresholds_free(&t);
}

static void test_not_finite_gives_no_bound(void **state)
{
    (void)state;
    h3_manifest manifest;
    h3_thresholds t;
    publish_all(&manifest, 0.0625f, 1);
    assert_fails(compute(&t, &manifest), H3_FAILED, "not finite");
    h3_thresholds_free(&t);
    h3_manifest_free(&manifest);
}

static void test_damaged_artifact(void **state)
{
    (void)state;
    h3_manifest manifest;
    h3_thresholds t;
    char path[H3_PATH_MAX], *image;
    size_t size;
    publish_all(&manifest, 0.0625f, 0);
    snprintf(path, sizeof path, "%s/data/reference/s/bf16/block-000.h5", folder);
    assert_good(h3_file_read(&image, &size, path, 1 << 24, H3_ENVIRONMENT));
    image[size / 2] ^= 1;
    assert_good(h3_publish(path, image, size));
    free(image);
    assert_fails(compute(&t, &manifest), H3_INTEGRITY, "block-000.h5");
    h3_thresholds_free(&t);
    assert_int_equal(unlink(path), 0);
    assert_fails(compute(&t, &manifest), H3_INTEGRITY, "block-000.h5");
    h3_thresholds_free(&t);
    h3_manifest_free(&manifest);
}

/* A tensor without a bound, and a bound without a tensor. */
static void test_incomplete(void **state)
{
    (void)state;
    h3_manifest manifest;
    h3_thresholds t;
    char *text;
    publish_all(&manifest, 0.0625f, 0);
    assert_good(compute(&t, &manifest));
    t.count--;
    assert_fails(h3_thresholds_print(&text, &t, &manifest), H3_FAILED, "has no bound");
    t.count++;
    assert_good(h3_manifest_add_tensor(&manifest, "s/bf16/node.block0.norm2", "data/x.h5", HASH_A));
    assert_fails(h3_thresholds_print(&text, &t, &manifest), H3_FAILED, "node.block0.norm2 has no bound");
    manifest.tensor_count -= 1;
    for (size_t i = 0; i < manifest.tensor_count; i++)
        if (strcmp(manifest.tensors[i].name, "s/bf16/out.video") == 0) memcpy(manifest.tensors[i].name, "s/fp33/", 7);
    assert_fails(h3_thresholds_print(&text, &t, &manifest), H3_FAILED, "6 bounds for 5 tensors");
    h3_thresholds_free(&t);
    h3_manifest_free(&manifest);
}

static char *edited(const char *from, const char *to)
{
    char *text = printed(), *at = strstr(text, from), *out;
    if (at == NULL) fail_msg("no \"%s\" to edit in %s", from, text);
    assert_good(h3_format(&out, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from)));
    free(text);
    return out;
}

static void assert_damaged(const char *from, const char *to, const char *word)
{
    h3_thresholds t;
    char *text = edited(from, to);
    assert_fails(parse(&t, text), H3_INTEGRITY, word);
    assert_non_null(strstr(h3_error_text(), "thresholds.json"));
    assert_true(t.items == NULL && t.fingerprint == NULL);
    free(text);
}

static void test_edited_bounds(void **state)
{
    (void)state;
    assert_damaged("\"bound\": 0.079125", "\"bound\": 0.079126", "the file was edited");
    assert_damaged("\"bound\": 0.079125", "\"bound\": 0.0791250000000001", "the file was edited");
    assert_damaged("\"bound\": 0.079125", "\"bound\": 1", "the file was edited");
    assert_damaged("\"bound\": 0.09875", "\"bound\": 0.079125", "the file was edited"); /* a gradient with a forward's bound */
    assert_damaged("\"provider_error\": 0.0625", "\"provider_error\": 0.0626", "the file was edited");
    assert_damaged("\"provider_error\": 0.0625", "\"provider_error\": -0.0625", "malformed bound");
    assert_damaged("\"forward_scale\": 1.25", "\"forward_scale\": 1.3", "another formula");
    assert_damaged("\"absolute\": 1e-06", "\"absolute\": 1", "another formula");
    assert_damaged("\"gradient_offset\": 0.005,", "", "another formula");
}

static void test_each_field_damaged(void **state)
{
    (void)state;
    assert_damaged("\"schema\": ", "\"scheme\": ", "scheme");
    assert_damaged("h3-thresholds-v1", "h3-thresholds-v0", "version");
    assert_damaged("\"schema\": ", "\"schema\": \"h3-thresholds-v1\", \"schema\": ", "schema");
    assert_damaged("\"plan_identity\": \"a", "\"plan_identity\": \"g", "version");
    assert_damaged("\"plan_identity\": \"aa", "\"plan_identity\": \"", "version");
    assert_damaged("\"manifest_sha256\": \"aa", "\"manifest_sha256\": \"", "version");
    assert_damaged("\"manifest_sha256\": \"" HASH_A "\"", "\"manifest_sha256\": 5", "manifest_sha256");
    assert_damaged("\"fingerprint\": {", "\"fingerprint\": [], \"x\": {", "x");
    assert_damaged("\"formula\": {", "\"formula\": [], \"x\": {", "x");
    assert_damaged("\"tensor\": \"s/boundary.hidden\"", "\"tensor\": \"s/out.video\"", "two bounds");
    assert_damaged("\"tensor\": \"s/boundary.hidden\"", "\"tensor\": \"boundary.hidden\"", "malformed bound");
    assert_damaged("\"tensor\": \"s/boundary.hidden\",", "", "tensor");
    assert_damaged("\"tensor\": \"s/boundary.hidden\",", "\"tensor\": \"s/boundary.hidden\", \"note\": 1,", "note");
    assert_damaged("\"provider_error\": 0.0625", "\"provider_error\": null", "provider_error");
    assert_damaged("\"bound\": 0.079125", "\"bound\": \"0.079125\"", "bound");
    assert_damaged("\"bound\": 0.079125", "\"bound\": NaN", "");
    assert_damaged("\"bounds\": [", "\"bounds\": [1, ", "object");
    assert_damaged("\"bounds\": [", "\"bounds\": [], \"rest\": [", "rest");
    h3_thresholds t;
    assert_fails(parse(&t, "{}"), H3_INTEGRITY, "schema");
    assert_fails(parse(&t, ""), H3_INTEGRITY, "");
    assert_fails(parse(&t, "7"), H3_INTEGRITY, "");
}

static void test_no_bounds(void **state)
{
    (void)state;
    h3_thresholds t;
    char *text = printed(), *at = strstr(text, "\"bounds\": ["), *cut;
    assert_good(h3_format(&cut, "%.*s\"bounds\": []}", (int)(at - text), text));
    assert_fails(parse(&t, cut), H3_INTEGRITY, "holds no bound");
    free(cut);
    for (size_t length = 0; length < strlen(text) - 2; length += 7)
        if (h3_thresholds_parse(&t, text, length, "thresholds.json") == H3_OK) fail_msg("%zu bytes are thresholds", length);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bounds_from_artifacts), cmocka_unit_test(test_round_trip), cmocka_unit_test(test_not_finite_gives_no_bound),
        cmocka_unit_test(test_damaged_artifact), cmocka_unit_test(test_incomplete), cmocka_unit_test(test_edited_bounds),
        cmocka_unit_test(test_each_field_damaged), cmocka_unit_test(test_no_bounds),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
