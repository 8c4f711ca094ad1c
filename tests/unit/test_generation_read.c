/* The generation contract, what a plan says about generation, and the conditioning file. */
#include "generation_nano.h"
#include "scratch_folder.h"

#include <sys/stat.h>

#include "model/synth.h"
#include "qualify/generation_store.h"

/* --- contract ---------------------------------------------------------------------------------------------------------- */

static void the_committed_contract_says_what_it_must(void **state)
{
    h3_contract c;
    char *text, sha256[H3_SHA256_HEX];
    size_t size;
    (void)state;
    assert_good(h3_contract_read(&c, "generation-contract.json"));
    assert_string_equal(c.repository, "MiniMaxAI/MiniMax-H3");
    assert_string_equal(c.revision, "42ed227ee7df40d41602854ae760620d6eb651fe");
    assert_string_equal(c.variant, "fl2va");
    assert_true(c.prompt_sha256[0] == 0 && c.reference_image_sha256[0] == 0 && c.conditioning_sha256[0] == 0);
    assert_int_equal(c.seed_count, 3);
    for (int i = 0; i < 3; i++) assert_int_equal(c.seeds[i], 42 + i);
    assert_true(c.frames == 124 && c.width == 1344 && c.height == 768 && c.points == 50);
    assert_true(c.video_shift == 12.0 && c.audio_shift == 3.0 && c.condition_time == 0.999);
    static const double limits[H3_LIMIT_COUNT] = {34.0, 0.97, 20.0, 2.0, 0.05};
    for (int i = 0; i < H3_LIMIT_COUNT; i++) assert_true(c.acceptance.limit[i] == limits[i]);
    assert_good(h3_file_read(&text, &size, "generation-contract.json", 1 << 20, H3_USAGE));
    assert_good(h3_sha256(sha256, text, size));
    free(text);
    assert_string_equal(c.sha256, sha256);
}

/* The committed contract with one piece of text replaced. */
static h3_status read_changed(const char *from, const char *to)
{
    h3_contract contract;
    char *text, *changed;
    size_t size;
    assert_good(h3_file_read(&text, &size, "generation-contract.json", 1 << 20, H3_USAGE));
    char *at = strstr(text, from);
    assert_non_null(at);
    assert_good(h3_format(&changed, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from)));
    put("contract.json", changed, strlen(changed));
    free(text);
    free(changed);
    return h3_contract_read(&contract, in_folder("contract.json"));
}

static void a_wrong_contract_is_refused(void **state)
{
    static const char *const cases[][3] = {
        {"\"h3-generation-contract-v1\"", "\"h3-generation-contract-v2\"", "schema"},
        {"\"fl2va\"", "\"ref2va\"", "variant"},
        {"\"fl2va\"", "1", "variant"},
        {"\"prompt_sha256\": null", "\"prompt_sha256\": \"abc\"", "prompt_sha256"},
        {"\"prompt_sha256\": null,", "", "prompt_sha256"},
        {"\"config_sha256\": \"74", "\"config_sha256\": \"XY", "config_sha256"},
        {"[\"first\"]", "[\"middle\"]", "anchors"},
        {"[\"first\"]", "[\"first\", \"first\"]", "anchors"},
        {"0.999", "1.5", "level"},
        {"[42, 43, 44]", "[]", "seeds"},
        {"[42, 43, 44]", "[42, 42]", "twice"},
        {"[42, 43, 44]", "[4294967296]", "a seed"},
        {"[42, 43, 44]", "[0.5]", "a seed"},
        {"\"frames\": 124", "\"frames\": 125", "17 n + 5"},
        {"1344", "1340", "multiples of 32"},
        {"\"fps\": 24", "\"fps\": 25", "fps"},
        {"32000", "44100", "sample_rate"},
        {"\"points\": 50", "\"points\": 1", "points"},
        {"\"evaluations\": 49", "\"evaluations\": 50", "evaluations"},
        {"\"video_shift\": 12", "\"video_shift\": 0", "shift"},
        {"torch-cpu-generator", "cuda", "source"},
        {"[\"condition\", \"video\", \"audio\"]", "[\"video\", \"condition\", \"audio\"]", "draws"},
        {"[\"condition\", \"video\", \"audio\"]", "[\"condition\", \"video\"]", "draws"},
        {"[\"condition\", \"video\", \"audio\"]", "[\"condition\", \"video\", \"audio\", \"audio\"]", "draws"},
        {"\"latent_error\": 0.05", "\"latent_error\": -1", "latent_error"},
        {"\"ssim_mean\": 0.97,", "", "ssim_mean"},
        {"\"psnr_global_db\"", "\"psnr\": 1, \"psnr_global_db\"", "psnr"},
        {"\"seeds\"", "\"seed\": 1, \"seeds\"", "seed"},
        {"{", "", "JSON"},
    };
    (void)state;
    assert_good(read_changed("34", "35"));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_fails(read_changed(cases[i][0], cases[i][1]), H3_USAGE, cases[i][2]);
    h3_contract contract;
    assert_fails(h3_contract_read(&contract, in_folder("absent.json")), H3_USAGE, "absent.json");
}

static void limits_hold_on_their_own_side(void **state)
{
    h3_acceptance acceptance = {{34.0, 0.97, 20.0, 2.0, 0.05}};
    (void)state;
    assert_true(h3_limit_holds(&acceptance, H3_LIMIT_PSNR_GLOBAL, 34.0) &&
                !h3_limit_holds(&acceptance, H3_LIMIT_PSNR_GLOBAL, 33.9));
    assert_true(h3_limit_holds(&acceptance, H3_LIMIT_AUDIO_LSD, 2.0) && !h3_limit_holds(&acceptance, H3_LIMIT_AUDIO_LSD, 2.1));
    assert_true(h3_limit_holds(&acceptance, H3_LIMIT_LATENT_ERROR, 0.0) &&
                !h3_limit_holds(&acceptance, H3_LIMIT_LATENT_ERROR, 0.0500001));
    for (int i = 0; i < H3_LIMIT_COUNT; i++) assert_false(h3_limit_holds(&acceptance, i, strtod("nan", NULL)));
}

/* --- plan -------------------------------------------------------------------------------------------------------------- */

/* A plan of its own: only what h3_generation_read looks at. */
typedef struct fake_plan {
    h3_plan plan;
    cJSON *json;
} fake_plan;

static fake_plan plan_with(const char *generation, const char *acceptance, int synthetic)
{
    fake_plan f = {.json = cJSON_CreateObject()};
    cJSON_AddItemToObject(f.json, "generation", cJSON_Parse(generation));
    f.plan.generation = cJSON_GetObjectItemCaseSensitive(f.json, "generation");
    assert_non_null(f.plan.generation);
    if (acceptance != NULL) {
        cJSON_AddItemToObject(f.json, "acceptance", cJSON_Parse(acceptance));
        f.plan.acceptance = cJSON_GetObjectItemCaseSensitive(f.json, "acceptance");
    }
    f.plan.synthetic = synthetic;
    snprintf(f.plan.path, sizeof f.plan.path, "plans/test.json");
    return f;
}

#define LAYOUT(frames, h, w, audio)                                                                                              \
    "\"layout\": {\"text\": 5, \"frames\": " frames ", \"h\": " h ", \"w\": " w ", \"audio\": " audio                            \
    ", \"anchors\": [\"first\"], \"vision_rows\": 2}"
#define CONTRACT "\"contract\": \"generation-contract.json\""
#define SYNTHETIC "\"conditioning\": {\"synthetic\": {\"seed\": 7}}"
#define ZEROS "0000000000000000000000000000000000000000000000000000000000000000"
#define NANO_LAYOUT LAYOUT("7", "8", "10", "37")

static const cJSON *override_of(const h3_generation *g, const char *field)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, g->overrides)
        if (strcmp(json_text(item, "field"), field) == 0) return item;
    return NULL;
}

static void a_plan_that_follows_overrides_nothing(void **state)
{
    h3_generation g;
    (void)state;
    fake_plan f =
        plan_with("{" CONTRACT ", " LAYOUT("37", "48", "84",
                                           "207") ", \"seeds\": [42, 43, 44], \"points\": 50, "
                                                  "\"conditioning\": {\"file\": \"c.safetensors\", \"sha256\": \"" ZEROS "\"}}",
                  "{\"latent_error\": 0.05}", 0);
    assert_good(h3_generation_read(&g, &f.plan));
    assert_int_equal(cJSON_GetArraySize(g.overrides), 0);
    assert_string_equal(g.conditioning_sha256, ZEROS);
    assert_string_equal(g.conditioning_file, "./c.safetensors");
    assert_true(g.points == 50 && g.seed_count == 3 && g.seeds[2] == 44 && g.acceptance.limit[H3_LIMIT_LATENT_ERROR] == 0.05);
    h3_generation_free(&g);
    cJSON_Delete(f.json);
}

static void every_departure_is_listed(void **state)
{
    static const char *const fields[] = {"model",         "seeds",         "points",
                                         "latent_frames", "latent_height", "latent_width",
                                         "audio_latents", "conditioning",  "acceptance.latent_error"};
    h3_generation g;
    (void)state;
    fake_plan f =
        plan_with("{" CONTRACT ", " NANO_LAYOUT ", \"points\": 4, \"seeds\": [1], " SYNTHETIC "}", "{\"latent_error\": 0.1}", 1);
    assert_good(h3_generation_read(&g, &f.plan));
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (override_of(&g, fields[i]) == NULL) fail_msg("%s is not listed", fields[i]);
    assert_int_equal(cJSON_GetArraySize(g.overrides), sizeof fields / sizeof *fields);
    assert_int_equal(json_int(override_of(&g, "points"), "contract"), 50);
    assert_int_equal(json_int(override_of(&g, "points"), "plan"), 4);
    assert_true(json_get(override_of(&g, "acceptance.latent_error"), "plan")->valuedouble == 0.1);
    assert_true(g.acceptance.limit[H3_LIMIT_LATENT_ERROR] == 0.1 && g.acceptance.limit[H3_LIMIT_PSNR_GLOBAL] == 34.0);
    assert_true(g.contract.acceptance.limit[H3_LIMIT_LATENT_ERROR] == 0.05);
    h3_generation_free(&g);
    cJSON_Delete(f.json);
}

static void another_folder_than_the_contracts_is_listed(void **state)
{
    h3_generation g;
    char right[512];
    (void)state;
    fake_plan f = plan_with("{" CONTRACT ", " NANO_LAYOUT ", " SYNTHETIC "}", NULL, 0);
    assert_good(h3_generation_read(&g, &f.plan));
    snprintf(right, sizeof right, "{\"kind\": \"folder\", \"config_sha256\": \"%s\", \"index_sha256\": \"%s\"}",
             g.contract.config_sha256, g.contract.index_sha256);
    cJSON *identity = cJSON_Parse(right);
    assert_good(h3_generation_model(&g, identity));
    assert_null(override_of(&g, "model"));
    cJSON_ReplaceItemInObject(identity, "index_sha256", cJSON_CreateString(ZEROS));
    assert_good(h3_generation_model(&g, identity));
    assert_non_null(override_of(&g, "model"));
    cJSON_Delete(identity);
    h3_generation_free(&g);
    cJSON_Delete(f.json);
}

static void a_wrong_plan_is_refused(void **state)
{
    static const char *const cases[][2] = {
        {"{}", "contract"},
        {"{" CONTRACT "}", "layout"},
        {"{\"contract\": \"nowhere.json\", " NANO_LAYOUT ", " SYNTHETIC "}", "nowhere.json"},
        {"{" CONTRACT ", " NANO_LAYOUT "}", "conditioning"},
        {"{" CONTRACT ", " NANO_LAYOUT ", " SYNTHETIC ", \"point\": 4}", "\"point\""},
        {"{" CONTRACT ", " NANO_LAYOUT ", " SYNTHETIC ", \"points\": 1}", "points"},
        {"{" CONTRACT ", " NANO_LAYOUT ", " SYNTHETIC ", \"seeds\": [1, 1]}", "twice"},
        {"{" CONTRACT ", " NANO_LAYOUT ", " SYNTHETIC ", \"seeds\": 42}", "seeds"},
        {"{" CONTRACT ", " NANO_LAYOUT ", \"conditioning\": {\"synthetic\": {}}}", "seed"},
        {"{" CONTRACT ", " NANO_LAYOUT ", \"conditioning\": {\"synthetic\": {\"seed\": -1}}}", "seed"},
        {"{" CONTRACT ", " NANO_LAYOUT ", \"conditioning\": {\"synthetic\": {\"seed\": 1}, \"file\": \"x\"}}", "file"},
        {"{" CONTRACT ", " NANO_LAYOUT ", \"conditioning\": {\"file\": \"x.safetensors\"}}", "sha256"},
        {"{" CONTRACT ", " NANO_LAYOUT ", \"conditioning\": {\"file\": \"x.safetensors\", \"sha256\": \"12\"}}", "sha256"},
        {"{" CONTRACT ", \"layout\": {\"text\": 5}, " SYNTHETIC "}", "frames"},
    };
    h3_generation g;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fake_plan f = plan_with(cases[i][0], NULL, 1);
        assert_fails(h3_generation_read(&g, &f.plan), H3_USAGE, cases[i][1]);
        assert_null(g.overrides);
        cJSON_Delete(f.json);
    }
    fake_plan f = plan_with("{" CONTRACT ", " NANO_LAYOUT ", " SYNTHETIC "}", "{\"latent\": 1}", 1);
    assert_fails(h3_generation_read(&g, &f.plan), H3_USAGE, "latent");
    f.plan.generation = NULL;
    assert_fails(h3_generation_read(&g, &f.plan), H3_USAGE, "has no \"generation\"");
    cJSON_Delete(f.json);
}

/* --- conditioning file ------------------------------------------------------------------------------------------------- */

/* Writes nano's synthetic conditioning as a file, optionally with text_tags; gives its hash. */
static void write_conditioning(const char *name, const h3_generation_inputs *inputs, const char *tags, char sha256[H3_SHA256_HEX])
{
    size_t text_bytes = h3_tensor_bytes(&inputs->text), condition_bytes = h3_tensor_bytes(&inputs->condition[0]),
           tag_bytes = tags != NULL ? 5 * 8 : 0;
    size_t total = text_bytes + condition_bytes;
    char header[600], tag_entry[120] = "";
    if (tags != NULL)
        snprintf(tag_entry, sizeof tag_entry, ",\"%s\":{\"dtype\":\"I64\",\"shape\":[5],\"data_offsets\":[%zu,%zu]}", tags, total,
                 total + tag_bytes);
    snprintf(
        header, sizeof header,
        "{\"text\":{\"dtype\":\"BF16\",\"shape\":[5,8],\"data_offsets\":[0,%zu]},"
        "\"condition.0\":{\"dtype\":\"F32\",\"shape\":[1,4,1,8,10],"
        "\"data_offsets\":[%zu,%zu]}%s}",
        text_bytes, text_bytes, total, tag_entry);
    uint64_t length = strlen(header);
    int64_t values[5] = {0, 1, 0, 1, 1};
    unsigned char *bytes = malloc(8 + length + total + tag_bytes);
    assert_non_null(bytes);
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, header, length);
    memcpy(bytes + 8 + length, inputs->text.data, text_bytes);
    memcpy(bytes + 8 + length + text_bytes, inputs->condition[0].data, condition_bytes);
    memcpy(bytes + 8 + length + total, values, tag_bytes);
    put(name, bytes, 8 + length + total + tag_bytes);
    assert_good(h3_sha256(sha256, bytes, 8 + length + total + tag_bytes));
    free(bytes);
}

static void use_file(h3_generation *generation, const char *name, const char *sha256)
{
    snprintf(generation->conditioning_file, sizeof generation->conditioning_file, "%s", in_folder(name));
    snprintf(generation->conditioning_sha256, sizeof generation->conditioning_sha256, "%s", sha256);
}

static void a_file_stands_in_for_the_stream(void **state)
{
    h3_config config;
    h3_generation generation;
    h3_generation_inputs synthetic, read;
    char sha256[H3_SHA256_HEX];
    (void)state;
    nano_config(&config);
    nano_settings(&generation, 50, 1);
    assert_good(h3_generation_inputs_new(&synthetic, &generation, &config));
    write_conditioning("good.safetensors", &synthetic, NULL, sha256);
    use_file(&generation, "good.safetensors", sha256);
    assert_good(h3_generation_inputs_new(&read, &generation, &config));
    assert_memory_equal(read.text.data, synthetic.text.data, h3_tensor_bytes(&synthetic.text));
    assert_memory_equal(read.condition[0].data, synthetic.condition[0].data, h3_tensor_bytes(&synthetic.condition[0]));
    assert_memory_equal(read.layout.token_tags, synthetic.layout.token_tags, 5 * sizeof(int64_t));
    h3_generation_inputs_free(&read);
    write_conditioning("tagged.safetensors", &synthetic, "text_tags", sha256);
    use_file(&generation, "tagged.safetensors", sha256);
    assert_good(h3_generation_inputs_new(&read, &generation, &config));
    assert_memory_equal(read.layout.token_tags, ((const int64_t[]){0, 1, 0, 1, 1}), 5 * sizeof(int64_t));
    h3_generation_inputs_free(&read);
    h3_generation_inputs_free(&synthetic);
}

static void a_wrong_file_is_refused(void **state)
{
    h3_config config;
    h3_generation generation;
    h3_generation_inputs inputs, out;
    char sha256[H3_SHA256_HEX];
    (void)state;
    nano_config(&config);
    nano_settings(&generation, 50, 1);
    assert_good(h3_generation_inputs_new(&inputs, &generation, &config));
    write_conditioning("good.safetensors", &inputs, NULL, sha256);
    use_file(&generation, "good.safetensors", ZEROS);
    assert_fails(h3_generation_inputs_new(&out, &generation, &config), H3_INTEGRITY, "SHA-256 differs");
    use_file(&generation, "good.safetensors", sha256);
    generation.layout.anchors = H3_ANCHOR_FIRST | H3_ANCHOR_LAST;
    assert_fails(h3_generation_inputs_new(&out, &generation, &config), H3_INTEGRITY, "condition.1");
    generation.layout.anchors = H3_ANCHOR_FIRST;
    generation.layout.text = 6;
    assert_fails(h3_generation_inputs_new(&out, &generation, &config), H3_INTEGRITY, "text");
    generation.layout.text = 5;
    write_conditioning("more.safetensors", &inputs, "more", sha256);
    use_file(&generation, "more.safetensors", sha256);
    assert_fails(h3_generation_inputs_new(&out, &generation, &config), H3_INTEGRITY, "3 tensors");
    ((float *)inputs.condition[0].data)[5] = (float)strtod("inf", NULL);
    write_conditioning("inf.safetensors", &inputs, NULL, sha256);
    use_file(&generation, "inf.safetensors", sha256);
    assert_fails(h3_generation_inputs_new(&out, &generation, &config), H3_INTEGRITY,
                 "condition.0 has values that are not finite");
    use_file(&generation, "absent.safetensors", sha256);
    assert_fails(h3_generation_inputs_new(&out, &generation, &config), H3_INTEGRITY, "absent.safetensors");
    h3_generation_inputs_free(&inputs);
}

static void an_impossible_layout_is_refused(void **state)
{
    h3_config config;
    h3_generation generation;
    h3_generation_inputs out;
    (void)state;
    nano_config(&config);
    nano_settings(&generation, 50, 1);
    generation.layout.height = 7;
    assert_fails(h3_generation_inputs_new(&out, &generation, &config), H3_USAGE, "7");
    generation.layout.height = 8;
    generation.points = 1;
    assert_fails(h3_generation_inputs_new(&out, &generation, &config), H3_USAGE, "grid points");
}

/* --- the gate's libraries ---------------------------------------------------------------------------------------------- */

#define ONES "1111111111111111111111111111111111111111111111111111111111111111"

static h3_status check_gate(const char *text, const h3_bindings *bindings, const h3_library *provider)
{
    cJSON *gate = cJSON_Parse(text);
    assert_non_null(gate);
    h3_status status = h3_generation_check_gate(gate, bindings, provider, "gate.json");
    cJSON_Delete(gate);
    return status;
}

static void only_qualified_libraries_run(void **state)
{
    static h3_bindings bindings = {.library_count = 1, .libraries = {{.path = "libmine.so", .sha256 = ONES}}};
    static h3_library provider = {.path = "libprovider.so", .sha256 = ZEROS};
    (void)state;
    assert_good(check_gate("{\"libraries\": [{\"file\": \"libmine.so\", \"sha256\": \"" ONES
                           "\"}], \"provider\": {\"sha256\": \"" ZEROS "\"}}",
                           &bindings, &provider));
    assert_fails(check_gate("{\"libraries\": [{\"file\": \"libmine.so\", \"sha256\": \"" ZEROS
                            "\"}], \"provider\": {\"sha256\": \"" ZEROS "\"}}",
                            &bindings, &provider),
                 H3_INTEGRITY, "did not qualify libmine.so");
    assert_fails(check_gate("{\"libraries\": [{\"file\": \"libmine.so\", \"sha256\": \"" ONES
                            "\"}, {\"file\": \"libmore.so\", \"sha256\": \"" ZEROS "\"}], "
                            "\"provider\": {\"sha256\": \"" ZEROS "\"}}",
                            &bindings, &provider),
                 H3_INTEGRITY, "qualified libmore.so");
    assert_fails(check_gate("{\"libraries\": [{\"file\": \"libmine.so\", \"sha256\": \"" ONES
                            "\"}], \"provider\": {\"sha256\": \"" ONES "\"}}",
                            &bindings, &provider),
                 H3_INTEGRITY, "another libprovider.so");
    assert_fails(check_gate("{\"libraries\": [], \"provider\": {\"sha256\": \"" ZEROS "\"}}", &bindings, &provider), H3_INTEGRITY,
                 "did not qualify");
    assert_fails(check_gate("{}", &bindings, &provider), H3_INTEGRITY, "libraries");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_committed_contract_says_what_it_must),
        cmocka_unit_test_setup_teardown(a_wrong_contract_is_refused, make_folder, remove_folder),
        cmocka_unit_test(limits_hold_on_their_own_side),
        cmocka_unit_test(a_plan_that_follows_overrides_nothing),
        cmocka_unit_test(every_departure_is_listed),
        cmocka_unit_test(another_folder_than_the_contracts_is_listed),
        cmocka_unit_test(a_wrong_plan_is_refused),
        cmocka_unit_test_setup_teardown(a_file_stands_in_for_the_stream, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(a_wrong_file_is_refused, make_folder, remove_folder),
        cmocka_unit_test(an_impossible_layout_is_refused),
        cmocka_unit_test(only_qualified_libraries_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
