/* Plans: those that are shipped, and what a plan may say of a checkpoint. */
#include "checkpoint_folder.h"

#include <glob.h>

#include "qualify/generation.h"
#include "qualify/manifest.h"
#include "qualify/plan.h"
#include "qualify/preflight.h"

/* --- shipped plans -------------------------------------------------------------------------------------------------- */

static void every_shipped_plan_is_read(void **state)
{
    (void)state;
    glob_t found;
    assert_int_equal(glob("plans/*.json", 0, NULL, &found), 0);
    assert_true(found.gl_pathc >= 6);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        h3_plan plan;
        h3_generation generation;
        char name[100];
        assert_good(h3_plan_read(&plan, found.gl_pathv[i]));
        snprintf(name, sizeof name, "plans/%s.json", plan.name);
        assert_string_equal(name, found.gl_pathv[i]);
        if (plan.generation != NULL) {
            assert_good(h3_generation_read(&generation, &plan));
            h3_generation_free(&generation);
        }
        if (strcmp(plan.name, "release-synthetic") == 0) assert_good(h3_preflight_plan(&plan, &plan.config, h3_device_cpu())); /* pinned files that belong together */
        else assert_true(plan.pinned_manifest[0] == 0 && plan.pinned_thresholds[0] == 0);
        assert_int_equal(plan.pinned_manifest[0] != 0, strcmp(plan.name, "release-synthetic") == 0);
        h3_plan_free(&plan);
    }
    globfree(&found);
}

/* Paths are read from the project's root, or from the plan's own folder. */
static void paths_are_relative_to_the_plan(void **state)
{
    static const char *const rows[][2] = {
        {"plans/x.json", "./file"},       {"/a/plans/x.json", "/a/file"}, {"/plans/x.json", "/file"}, {"../plans/x.json", "../file"},
        {"/a/other/x.json", "/a/other/file"}, {"x.json", "file"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        static h3_plan plan;
        char path[H3_PATH_MAX];
        snprintf(plan.path, sizeof plan.path, "%s", rows[i][0]);
        assert_good(h3_plan_path(path, &plan, "file"));
        assert_string_equal(path, rows[i][1]);
    }
}

/* The layouts are those of the goldens. */
static void assert_layout(const h3_plan_layout *layout, const char *name)
{
    cJSON *goldens = golden_json("layouts.json"), *golden = cJSON_GetObjectItemCaseSensitive(goldens, name);
    assert_non_null(golden);
    assert_string_equal(layout->name, name);
    assert_int_equal(layout->args.text, json_int(golden, "text"));
    assert_int_equal(layout->args.frames, json_int(golden, "frames"));
    assert_int_equal(layout->args.height, json_int(golden, "h"));
    assert_int_equal(layout->args.width, json_int(golden, "w"));
    assert_int_equal(layout->args.audio, json_int(golden, "audio"));
    assert_int_equal(layout->args.vision_rows, json_int(golden, "vision_rows"));
    assert_int_equal(layout->args.anchors, H3_ANCHOR_FIRST);
    assert_true(layout->video_time == 0.25 && layout->audio_time == 0.5625 && layout->condition_time == 0.999);
    assert_int_equal(layout->input_seed, 7);
    cJSON_Delete(goldens);
}

/* Identity of the released FL2VA transformer: hashes of config and index computed from the published files; shard hash, size and
 * revision published by another qualification of the same model. */
#define SHARD_1_OF_14 "diffusion_pytorch_model-00001-of-00014.safetensors"
static const struct { const char *file, *sha256;
} RELEASED[] = {
    {"config.json", "74c11bff524336576096993cbfcdcdc2ef4fa2fa4409df693bdcbc6c666282ae"},
    {"diffusion_pytorch_model.safetensors.index.json", "ac30a3b58963f2e735d493475fbb81853a5735ec947619648b3e045acda6783e"},
    {SHARD_1_OF_14, "2d847200c45c09dd7f973c1b096663068408ef851ee0b3711d059b6dc5dcd028"},
};

static void the_released_model_is_known_by_content(void **state)
{
    (void)state;
    h3_plan plan;
    h3_generation generation;
    cJSON *identity = cJSON_CreateObject();
    assert_good(h3_plan_read(&plan, "plans/release.json"));
    assert_false(plan.synthetic);
    assert_true(plan.recompute);
    assert_int_equal(cJSON_GetArraySize(plan.checkpoint_pins.hashes), 3);
    for (size_t i = 0; i < 3; i++) assert_string_equal(json_text(plan.checkpoint_pins.hashes, RELEASED[i].file), RELEASED[i].sha256);
    assert_int_equal(cJSON_GetArraySize(plan.checkpoint_pins.sizes), 1);
    assert_int_equal(json_int(plan.checkpoint_pins.sizes, SHARD_1_OF_14), 4825958704);
    assert_int_equal(plan.checkpoint_pins.total_size, 66280430080);
    assert_string_equal(plan.repository, "MiniMaxAI/MiniMax-H3");
    assert_string_equal(plan.revision, "42ed227ee7df40d41602854ae760620d6eb651fe");
    assert_int_equal(plan.layout_count, 2);
    assert_layout(&plan.layouts[0], "s264");
    assert_layout(&plan.layouts[1], "s925");
    /* The generation is the contract's in everything but the conditioning, for which no file is published. */
    assert_good(h3_generation_read(&generation, &plan));
    cJSON_AddStringToObject(identity, "kind", "folder");
    cJSON_AddStringToObject(identity, "config_sha256", RELEASED[0].sha256);
    cJSON_AddStringToObject(identity, "index_sha256", RELEASED[1].sha256);
    assert_good(h3_generation_model(&generation, identity));
    assert_int_equal(cJSON_GetArraySize(generation.overrides), 1);
    assert_string_equal(json_text(cJSON_GetArrayItem(generation.overrides, 0), "field"), "conditioning");
    h3_generation_free(&generation);
    h3_plan_free(&plan);
    cJSON_Delete(identity);
}

static void synthetic_weights_of_the_released_shape(void **state)
{
    (void)state;
    static const struct { const char *path; size_t layouts; int generation;
    } plans[] = {{"plans/release-synthetic.json", 2, 1}, {"plans/release-synthetic-s3160.json", 1, 0}};
    for (int i = 0; i < 2; i++) {
        h3_plan plan;
        h3_inventory inventory;
        int64_t bytes = 0;
        assert_good(h3_plan_read(&plan, plans[i].path));
        assert_true(plan.synthetic && plan.recompute && plan.weight_seed == 0);
        assert_int_equal(plan.layout_count, plans[i].layouts);
        assert_layout(&plan.layouts[0], i == 0 ? "s264" : "s3160");
        if (i == 0) assert_layout(&plan.layouts[1], "s925");
        assert_int_equal(plan.generation != NULL, plans[i].generation);
        /* The same sum of bytes as the released index has: the configuration is that of the released model. */
        assert_good(h3_inventory_new(&inventory, &plan.config));
        for (size_t k = 0; k < inventory.count; k++) {
            const h3_parameter *item = &inventory.items[k];
            bytes += item->shape[0] * (item->rank == 2 ? item->shape[1] : 1) * (int64_t)h3_dtype_size(item->dtype);
        }
        assert_int_equal(inventory.count, 638);
        assert_int_equal(bytes, 66280430080);
        h3_inventory_free(&inventory);
        h3_plan_free(&plan);
    }
}

/* --- plans of a checkpoint folder ----------------------------------------------------------------------------------- */

/* The smoke plan with another "checkpoint" and "artifacts", beside the checkpoint. */
static const char *write_plan(const char *checkpoint, const char *artifacts)
{
    char *text;
    cJSON *json, *value;
    assert_good(h3_json_read(&json, "plans/smoke.json", H3_USAGE));
    assert_good(h3_json_parse(&value, checkpoint, strlen(checkpoint), "the test", H3_USAGE));
    cJSON_ReplaceItemInObjectCaseSensitive(json, "checkpoint", value);
    cJSON_ReplaceItemInObjectCaseSensitive(json, "artifacts", cJSON_CreateString(artifacts));
    cJSON_DeleteItemFromObjectCaseSensitive(json, "generation");
    assert_good(h3_json_print(&text, json));
    put("plan.json", text, strlen(text));
    free(text);
    cJSON_Delete(json);
    return in_folder("plan.json");
}

#define ZERO "0000000000000000000000000000000000000000000000000000000000000000"

static void what_a_plan_may_say_of_a_checkpoint(void **state)
{
    (void)state;
    static const struct { const char *checkpoint, *word; } bad[] = {
        {"{\"folder\":\".\"}", "\"hashes\" is missing"},
        {"{\"folder\":\".\",\"hashes\":{\"config.json\":\"00\"}}", "lower-case hex"},
        {"{\"folder\":\".\",\"hashes\":{\"config.json\":7}}", "lower-case hex"},
        {"{\"folder\":\".\",\"hashes\":{\"../config.json\":\"" ZERO "\"}}", "plain file names"},
        {"{\"folder\":\".\",\"hashes\":{},\"sizes\":[]}", "\"sizes\" must be an object"},
        {"{\"folder\":\".\",\"hashes\":{},\"sizes\":{\"a\":-1}}", "a"},
        {"{\"folder\":\".\",\"hashes\":{},\"sizes\":{\"a\":\"1\"}}", "a must be an integer"},
        {"{\"folder\":\".\",\"hashes\":{},\"total_size\":0.5}", "total_size"},
        {"{\"folder\":\".\",\"hashes\":{},\"repository\":\"\"}", "repository"},
        {"{\"folder\":\".\",\"hashes\":{},\"repository\":\"/home/me\"}", "repository"},
        {"{\"folder\":\".\",\"hashes\":{},\"revision\":\"a b\"}", "revision"},
        {"{\"folder\":\".\",\"hashes\":{},\"revision\":7}", "revision"},
        {"{\"folder\":\".\",\"hashes\":{},\"branch\":\"main\"}", "unknown field \"branch\""},
        {"{\"hashes\":{}}", "\"folder\" is missing"},
    };
    h3_plan plan;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_fails(h3_plan_read(&plan, write_plan(bad[i].checkpoint, "full")), H3_USAGE, bad[i].word);
    assert_fails(h3_plan_read(&plan, write_plan("{\"folder\":\".\",\"hashes\":{}}", "some")), H3_USAGE, "use full or recompute");
    assert_good(h3_plan_read(&plan, write_plan("{\"folder\":\".\",\"hashes\":{}}", "full")));
    assert_false(plan.recompute);
    assert_null(plan.repository);
    assert_int_equal(plan.checkpoint_pins.total_size, -1);
    h3_plan_free(&plan);
    assert_good(h3_plan_read(&plan, write_plan("{\"folder\":\".\",\"hashes\":{}}", "recompute")));
    assert_true(plan.recompute);
    h3_plan_free(&plan);
}

/* Where a site keeps its checkpoint is no part of the plan's identity; what proves it is. */
static void identity_without_places(void **state)
{
    (void)state;
    static const char *const checkpoints[] = {"{\"folder\":\"here\",\"hashes\":{}}", "{\"folder\":\"there\",\"hashes\":{}}",
                                              "{\"folder\":\"here\",\"hashes\":{\"config.json\":\"" ZERO "\"}}"};
    h3_plan plan[3];
    for (int i = 0; i < 3; i++) assert_good(h3_plan_read(&plan[i], write_plan(checkpoints[i], "full")));
    assert_string_equal(plan[0].identity, plan[1].identity);
    assert_string_not_equal(plan[0].sha256, plan[1].sha256);
    assert_string_not_equal(plan[0].identity, plan[2].identity);
    assert_good(h3_plan_use_checkpoint(&plan[0], "elsewhere"));
    assert_string_equal(plan[0].checkpoint, "elsewhere");
    assert_string_equal(plan[0].identity, plan[1].identity);
    for (int i = 0; i < 3; i++) h3_plan_free(&plan[i]);
    assert_good(h3_plan_read(&plan[0], "plans/smoke.json"));
    assert_fails(h3_plan_use_checkpoint(&plan[0], "elsewhere"), H3_USAGE, "synthetic weights");
    h3_plan_free(&plan[0]);
}

static void read_pinned_plan(h3_plan *plan)
{
    static const char *const files[] = {"config.json", INDEX, SHARD1, SHARD2};
    char checkpoint[2000], hash[H3_SHA256_HEX];
    int used = snprintf(checkpoint, sizeof checkpoint, "{\"folder\":\".\",\"repository\":\"some/where\",\"revision\":\"r1\",\"hashes\":{");
    for (int i = 0; i < 4; i++) {
        assert_good(h3_sha256_file(hash, in_folder(files[i]), NULL, H3_INTEGRITY));
        used += snprintf(checkpoint + used, sizeof checkpoint - (size_t)used, "%s\"%s\":\"%s\"", i ? "," : "", files[i], hash);
    }
    snprintf(checkpoint + used, sizeof checkpoint - (size_t)used, "},\"total_size\":82152}");
    assert_good(h3_plan_read(plan, write_plan(checkpoint, "full")));
}

static h3_status open_plan(const h3_plan *plan)
{
    h3_weights *weights;
    h3_status status = h3_plan_weights(plan, 1, NULL, &weights);
    if (status == H3_OK) h3_weights_free(weights);
    return status;
}

static void one_byte_of_a_plans_checkpoint(void **state)
{
    (void)state;
    static const char *const files[] = {"config.json", INDEX, SHARD1, SHARD2};
    h3_plan plan;
    h3_weights *weights;
    read_pinned_plan(&plan);
    assert_good(open_plan(&plan));
    for (int i = 0; i < 4; i++) {
        size_t size;
        char *content = get(in_folder(files[i]), &size);
        content[size - 3] ^= 2;
        put(files[i], content, size);
        assert_fails(open_plan(&plan), H3_INTEGRITY, files[i]);
        if (i == 0) assert_fails(h3_plan_weights_block(&plan, 0, &weights), H3_INTEGRITY, "config.json");
        content[size - 3] ^= 2;
        put(files[i], content, size);
        free(content);
    }
    assert_good(open_plan(&plan));
    assert_good(h3_plan_use_checkpoint(&plan, "/nonexistent"));
    assert_fails(open_plan(&plan), H3_INTEGRITY, "--checkpoint DIR");
    h3_plan_free(&plan);
}

/* What a manifest keeps of the model. */
static void the_model_of_a_manifest(void **state)
{
    (void)state;
    h3_plan plan;
    h3_weights *weights;
    cJSON *model, *identity;
    read_pinned_plan(&plan);
    assert_good(h3_plan_weights(&plan, 1, NULL, &weights));
    assert_good(h3_plan_model(&plan, weights, NULL, &model));
    assert_string_equal(json_text(model, "repository"), "some/where");
    assert_string_equal(json_text(model, "revision"), "r1");
    assert_int_equal(cJSON_GetArraySize(json_get(model, "block_tensors")), 12);
    assert_int_equal(cJSON_GetArraySize(json_get(model, "shards")), 2);
    assert_good(h3_weights_identity(weights, NULL, &identity));
    assert_true(h3_model_same(model, identity)); /* names are nothing */
    cJSON_ReplaceItemInObjectCaseSensitive(identity, "config_sha256", cJSON_CreateString(ZERO));
    assert_false(h3_model_same(model, identity));
    assert_false(h3_model_same(model, NULL));
    assert_false(h3_model_same(NULL, NULL));
    cJSON_Delete(identity);
    cJSON_Delete(model);
    h3_weights_free(weights);
    h3_plan_free(&plan);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, remove_folder)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_shipped_plan_is_read), cmocka_unit_test(paths_are_relative_to_the_plan),
        cmocka_unit_test(the_released_model_is_known_by_content),
        cmocka_unit_test(synthetic_weights_of_the_released_shape),
        TEST(what_a_plan_may_say_of_a_checkpoint),
        TEST(identity_without_places),
        TEST(one_byte_of_a_plans_checkpoint),
        TEST(the_model_of_a_manifest),
    };
#undef TEST
    return cmocka_run_group_tests(tests, NULL, NULL);
}
