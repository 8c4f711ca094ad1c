/* The decoders of a plan: what may be said of them, who they are, and what fits a model. */
#include "golden_files.h"
#include "media_plan.h"

#include "qualify/generation.h"
#include "qualify/preflight.h"
#include "store/publish.h"

static char folder[128];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/h3-decoders-XXXXXX");
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state)
{
    (void)state;
    return h3_remove_tree(folder) != H3_OK;
}

/* The smoke plan with another layout and these decoders (NULL: none), in a file of its own. */
static h3_status read_plan(h3_plan *plan, const char *layout, const char *decoders)
{
    char path[200], *text;
    cJSON *json;
    assert_good(h3_json_read(&json, "plans/smoke.json", H3_USAGE));
    cJSON *generation = cJSON_GetObjectItem(json, "generation");
    cJSON_ReplaceItemInObject(generation, "layout", cJSON_Parse(layout));
    cJSON_ReplaceItemInObject(generation, "contract", cJSON_CreateString("contract.json"));
    if (decoders != NULL) {
        cJSON *parsed = cJSON_Parse(decoders);
        assert_non_null(parsed);
        cJSON_AddItemToObject(json, "decoders", parsed);
    }
    assert_good(h3_json_print(&text, json));
    snprintf(path, sizeof path, "%s/plan.json", folder);
    assert_good(h3_publish(path, text, strlen(text)));
    free(text);
    cJSON_Delete(json);
    assert_good(h3_file_read(&text, &(size_t){0}, "generation-contract.json", 1 << 20, H3_USAGE));
    snprintf(path, sizeof path, "%s/contract.json", folder);
    assert_good(h3_publish(path, text, strlen(text)));
    free(text);
    snprintf(path, sizeof path, "%s/plan.json", folder);
    return h3_plan_read(plan, path);
}

/* Reading the decoders of such a plan, and nothing else of it. */
static h3_status read_decoders(const char *decoders)
{
    h3_plan plan;
    h3_decoders out;
    H3_TRY(read_plan(&plan, MEDIA_LAYOUT, decoders));
    h3_status status = h3_decoders_read(&out, &plan);
    h3_plan_free(&plan);
    return status;
}

static void a_plan_says_what_decodes(void **state)
{
    h3_plan plan;
    h3_decoders d;
    (void)state;
    assert_good(read_plan(&plan, MEDIA_LAYOUT, MEDIA_DECODERS));
    assert_good(h3_decoders_read(&d, &plan));
    assert_true(d.present && d.video.folder[0] == 0 && d.audio.folder[0] == 0);
    assert_int_equal(d.tiling.tile, 16);
    assert_int_equal(d.tiling.overlap, 8);
    assert_int_equal(d.video_config.latent_channels, 4);
    assert_int_equal(d.audio_config.latent_channels, 6);
    assert_int_equal(d.profile, H3_PROFILE_PUBLISHED);
    assert_int_equal(h3_decoders_dtype(&d, H3_DEVICE_CPU), H3_F32);
    assert_int_equal(h3_decoders_dtype(&d, H3_DEVICE_CUDA), H3_F16);
    d.profile = H3_PROFILE_HALF;
    assert_int_equal(h3_decoders_dtype(&d, H3_DEVICE_CPU), H3_F16);
    d.profile = H3_PROFILE_FP32;
    assert_int_equal(h3_decoders_dtype(&d, H3_DEVICE_CUDA), H3_F32);
    h3_plan_free(&plan);
    assert_good(read_plan(&plan, MEDIA_LAYOUT, NULL));
    assert_good(h3_decoders_read(&d, &plan));
    assert_false(d.present);
    h3_plan_free(&plan);
}

#define ZERO "0000000000000000000000000000000000000000000000000000000000000000"

static void what_is_wrong_is_named(void **state)
{
    static const char *const cases[][2] = {
        {"{\"video\":" MEDIA_VIDEO "}", "audio"},
        {"{\"audio\":" MEDIA_AUDIO "}", "video"},
        {"{\"video\":" MEDIA_VIDEO ",\"audio\":" MEDIA_AUDIO ",\"sound\":{}}", "sound"},
        {"{\"video\":{\"folder\":\"vae\"},\"audio\":" MEDIA_AUDIO "}", "hashes"},
        {"{\"video\":{\"folder\":\"\",\"hashes\":{}},\"audio\":" MEDIA_AUDIO "}", "no name"},
        {"{\"video\":{\"folder\":\"vae\",\"hashes\":{\"config.json\":\"00\"}},\"audio\":" MEDIA_AUDIO "}", "lower-case hex"},
        {"{\"video\":{\"folder\":\"vae\",\"hashes\":{\"../config.json\":\"" ZERO "\"}},\"audio\":" MEDIA_AUDIO "}", "plain file names"},
        {"{\"video\":{\"folder\":\"vae\",\"hashes\":{},\"synthetic\":{}},\"audio\":" MEDIA_AUDIO "}", "either"},
        {"{\"video\":{\"synthetic\":{\"seed\":0}},\"audio\":" MEDIA_AUDIO "}", "config"},
        {"{\"video\":{\"synthetic\":{\"seed\":-1,\"config\":" MEDIA_VIDEO_CONFIG "}},\"audio\":" MEDIA_AUDIO "}", "seed"},
        {"{\"video\":{\"synthetic\":{\"seed\":0,\"config\":{}}},\"audio\":" MEDIA_AUDIO "}", "decoders"},
        {"{\"video\":{\"synthetic\":{\"seed\":0,\"config\":" MEDIA_VIDEO_CONFIG "},\"profile\":\"bf16\"},\"audio\":" MEDIA_AUDIO "}", "published, fp32 or half"},
        {"{\"video\":{\"synthetic\":{\"seed\":0,\"config\":" MEDIA_VIDEO_CONFIG "},\"tiling\":{\"tile\":16,\"overlap\":16}},\"audio\":" MEDIA_AUDIO "}", "overlap"},
        {"{\"video\":" MEDIA_VIDEO ",\"audio\":{\"synthetic\":{\"seed\":0,\"config\":" MEDIA_AUDIO_CONFIG "},\"profile\":\"fp32\"}}", "profile"},
    };
    (void)state;
    assert_good(read_decoders(MEDIA_DECODERS));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) assert_fails(read_decoders(cases[i][0]), H3_USAGE, cases[i][1]);
}

/* Where a site keeps its decoders is no part of the plan's identity; what proves them is. */
static void identity_without_places(void **state)
{
    static const char *const decoders[] = {"{\"video\":{\"folder\":\"a/vae\",\"hashes\":{}},\"audio\":" MEDIA_AUDIO "}",
                                           "{\"video\":{\"folder\":\"b/vae\",\"hashes\":{}},\"audio\":" MEDIA_AUDIO "}",
                                           "{\"video\":{\"folder\":\"a/vae\",\"hashes\":{\"config.json\":\"" ZERO "\"}},\"audio\":" MEDIA_AUDIO "}", MEDIA_DECODERS};
    h3_plan plan[4];
    h3_decoders read;
    char expected[200];
    (void)state;
    for (int i = 0; i < 4; i++) assert_good(read_plan(&plan[i], MEDIA_LAYOUT, decoders[i]));
    assert_string_equal(plan[0].identity, plan[1].identity);
    assert_string_not_equal(plan[0].identity, plan[2].identity);
    assert_string_not_equal(plan[0].identity, plan[3].identity);
    assert_good(h3_decoders_read(&read, &plan[0]));
    snprintf(expected, sizeof expected, "%s/a/vae", folder);
    assert_string_equal(read.video.folder, expected);
    assert_good(h3_plan_use_decoders(&plan[0], "/elsewhere"));
    assert_good(h3_decoders_read(&read, &plan[0]));
    assert_string_equal(read.video.folder, "/elsewhere/vae");
    assert_string_equal(plan[0].identity, plan[1].identity);
    assert_fails(h3_plan_use_decoders(&plan[3], "/elsewhere"), H3_USAGE, "no folder of a decoder");
    for (int i = 0; i < 4; i++) h3_plan_free(&plan[i]);
}

/* --- what fits ------------------------------------------------------------------------------------------------------- */

static h3_status fit(h3_media_shape *shape, const char *layout, const char *decoders, int64_t channels)
{
    h3_plan plan;
    h3_decoders d;
    h3_decoder_weights weights = {0};
    h3_layout_args args;
    H3_TRY(read_plan(&plan, layout, decoders));
    h3_config model = plan.config;
    if (channels > 0) model.in_channels = channels;
    assert_good(h3_plan_layout_args(&args, cJSON_GetObjectItem(plan.generation, "layout"), "the test"));
    h3_status status = h3_decoders_read(&d, &plan);
    if (status == H3_OK) status = h3_decoders_open(&weights, &d);
    if (status == H3_OK) status = h3_decoders_fit(shape, &weights, &model, &args);
    h3_decoders_close(&weights);
    h3_plan_free(&plan);
    return status;
}

static void decoders_fit_model_and_layout(void **state)
{
    h3_media_shape s;
    (void)state;
    assert_good(fit(&s, MEDIA_LAYOUT, MEDIA_DECODERS, 0));
    assert_true(s.frames == 22 && s.height == 32 && s.width == 40 && s.channels == 2 && s.samples == 29600 && s.rate == 32000);
    assert_fails(fit(&s, MEDIA_LAYOUT, MEDIA_DECODERS, 5), H3_USAGE, "latent channels of video");
    assert_fails(fit(&s, "{\"text\":5,\"frames\":7,\"h\":8,\"w\":10,\"audio\":36,\"anchors\":[\"first\"],\"vision_rows\":2}", MEDIA_DECODERS, 0), H3_USAGE,
                 "37 for them and 36");
    assert_fails(fit(&s, "{\"text\":5,\"frames\":2,\"h\":8,\"w\":10,\"audio\":3,\"anchors\":[\"first\"],\"vision_rows\":2}", MEDIA_DECODERS, 0), H3_USAGE, "2 latent frames");
    assert_fails(fit(&s, "{\"text\":5,\"frames\":7,\"h\":2,\"w\":10,\"audio\":37,\"anchors\":[\"first\"],\"vision_rows\":2}", MEDIA_DECODERS, 0), H3_USAGE,
                 "smaller than the comparison's window");
    /* 400 samples a latent are 80 latents a second */
    assert_fails(fit(&s, MEDIA_LAYOUT,
                     "{\"video\":" MEDIA_VIDEO ",\"audio\":{\"synthetic\":{\"seed\":0,\"config\":{\"encoder_dim\":4,\"encoder_rates\":[4,4,5,5],\"latent_dim\":8,"
                     "\"latent_channels\":6,\"num_attention_heads\":2,\"decoder_dim\":32,\"decoder_rates\":[5,5,4,4],\"decoder_kernel_sizes\":[9,9,8,8],"
                     "\"resblock_kernel_sizes\":[3],\"resblock_dilation_sizes\":[[1]],\"sampling_rate\":32000,\"latents_mean\":[0,0,0,0,0,0],"
                     "\"latents_std\":[1,1,1,1,1,1]}}}}", 0), H3_USAGE, "samples an audio latent are 400");
}

static size_t gpu_memory;

static h3_status tell_memory(size_t *available, size_t *total)
{
    *available = *total = gpu_memory;
    return H3_OK;
}

/* The released ones by their configuration: 2,423,530,496 scalars of the video decoder and 600 of its first convolution, 64,939,353 of sound. */
static void released_weights_are_counted(h3_decoders *decoders, const h3_decoder_weights *weights, const h3_media_shape *shape)
{
    const size_t video = 2423530496 + 600, sound = 64939353;
    const h3_device gpu = {.kind = H3_DEVICE_CUDA, .index = 3, .memory = tell_memory};
    assert_int_equal(h3_decoders_memory(decoders, weights, H3_DEVICE_CPU), 4 * video + 4 * sound);
    assert_int_equal(h3_decoders_memory(decoders, weights, H3_DEVICE_CUDA), 2 * video + 4 * sound);
    gpu_memory = (size_t)6 << 30;
    assert_good(h3_preflight_media(shape, decoders, weights, &gpu));
    gpu_memory = (size_t)5 << 30;
    assert_fails(h3_preflight_media(shape, decoders, weights, &gpu), H3_ENVIRONMENT,
                 "the weights of the plan's decoders needs about 5358 MB of memory, GPU 3 has 5120 MB; use");
    decoders->profile = H3_PROFILE_FP32;
    gpu_memory = (size_t)6 << 30;
    assert_fails(h3_preflight_media(shape, decoders, weights, &gpu), H3_ENVIRONMENT, "GPU 3 has 6144 MB");
    decoders->profile = H3_PROFILE_PUBLISHED;
}

/* Those of the shipped plans do; the contract's video is what its plan decodes to. */
static void shipped_decoders_fit(void **state)
{
    static const struct { const char *path; h3_media_shape shape;
    } plans[] = {{"plans/demo.json", {22, 64, 96, 2, 29600, 32000}},
                 {"plans/release-synthetic.json", {22, 128, 160, 2, 29600, 32000}},
                 {"plans/release-synthetic-video.json", {124, 768, 1344, 2, 165600, 32000}}};
    (void)state;
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
        h3_plan plan;
        h3_generation generation;
        h3_decoder_weights weights = {0};
        h3_media_shape shape;
        assert_good(h3_plan_read(&plan, plans[i].path));
        assert_good(h3_generation_read(&generation, &plan));
        assert_true(generation.decoders.present);
        assert_good(h3_decoders_open(&weights, &generation.decoders));
        assert_good(h3_decoders_fit(&shape, &weights, &plan.config, &generation.layout));
        assert_memory_equal(&shape, &plans[i].shape, sizeof shape);
        /* as many scalars, and tensors of sound, as the released ones have */
        if (i > 0) assert_int_equal(h3_parameters_count(weights.video.source), 2603868984);
        if (i > 0) assert_int_equal(h3_parameters_listed(weights.audio.source)->count, 914);
        if (i > 0) released_weights_are_counted(&generation.decoders, &weights, &shape);
        h3_decoders_close(&weights);
        h3_generation_free(&generation);
        h3_plan_free(&plan);
    }
    /* the smallest plan ends with latents, as ever */
    h3_plan plan;
    assert_good(h3_plan_read(&plan, "plans/smoke.json"));
    assert_null(plan.decoders);
    h3_plan_free(&plan);
}

static void a_decoder_that_is_not_there_is_named(void **state)
{
    h3_media_shape s;
    (void)state;
    assert_fails(fit(&s, MEDIA_LAYOUT, "{\"video\":{\"folder\":\"nowhere\",\"hashes\":{}},\"audio\":" MEDIA_AUDIO "}", 0), H3_INTEGRITY, "nowhere");
    assert_fails(fit(&s, MEDIA_LAYOUT, "{\"video\":" MEDIA_VIDEO ",\"audio\":{\"folder\":\"nowhere\",\"hashes\":{}}}", 0), H3_INTEGRITY, "nowhere");
}

/* Before the first stage computes anything. */
static void preflight_opens_the_decoders(void **state)
{
    static const char nowhere[] = "{\"video\":{\"folder\":\"nowhere\",\"hashes\":{}},\"audio\":" MEDIA_AUDIO "}";
    h3_plan plan;
    (void)state;
    for (int i = 0; i < 3; i++) {
        assert_good(read_plan(&plan, i == 2 ? "{\"text\":5,\"frames\":7,\"h\":8,\"w\":10,\"audio\":9,\"anchors\":[\"first\"],\"vision_rows\":2}" : MEDIA_LAYOUT,
                              i == 1 ? nowhere : MEDIA_DECODERS));
        if (i == 0) {
            assert_good(h3_preflight_plan(&plan, &plan.config, h3_device_cpu()));
            assert_good(h3_preflight_folder(&plan, &plan.config, folder));
        } else {
            assert_fails(h3_preflight_plan(&plan, &plan.config, h3_device_cpu()), i == 1 ? H3_INTEGRITY : H3_USAGE, i == 1 ? "nowhere" : "audio latents a channel");
        }
        h3_plan_free(&plan);
    }
}

/* The weights alone are more than any machine has. */
static void preflight_counts_the_weights(void **state)
{
    char *video = strdup(MEDIA_VIDEO), *decoders, *wide = NULL;
    const char *small = "\"decoder_num_layers\":2,\"decoder_num_attention_heads\":2,\"decoder_attention_head_dim\":16,";
    h3_plan plan;
    (void)state;
    char *at = strstr(video, small);
    assert_non_null(at);
    assert_good(h3_format(&wide, "%.*s\"decoder_num_layers\":1000,\"decoder_num_attention_heads\":1024,\"decoder_attention_head_dim\":64,%s", (int)(at - video), video,
                          at + strlen(small)));
    assert_good(h3_format(&decoders, "{\"video\":%s,\"audio\":" MEDIA_AUDIO "}", wide));
    assert_good(read_plan(&plan, MEDIA_LAYOUT, decoders));
    /* 4 bytes of 1000 blocks with 10 squares and 13 lines of 65536, and 201 lines beside them */
    assert_fails(h3_preflight_plan(&plan, &plan.config, h3_device_cpu()), H3_ENVIRONMENT,
                 "decoding the plan's generation (163843301 MB for the decoders' weights) needs about 180227648 MB of memory, this machine has");
    h3_plan_free(&plan);
    free(video);
    free(decoders);
    free(wide);
}

/* --- identity -------------------------------------------------------------------------------------------------------- */

/* Goldens as decoders; `hashes` of the video's folder, `audio_hashes` of the sound's. */
static h3_status identify(cJSON **out, const char *hashes, const char *audio_hashes)
{
    h3_plan plan;
    h3_decoders d;
    h3_decoder_weights weights = {0};
    char here[H3_PATH_MAX], *text;
    assert_non_null(getcwd(here, sizeof here));
    assert_good(h3_format(&text, "{\"video\":{\"folder\":\"%s/tests/golden/video-vae\",\"hashes\":%s},\"audio\":{\"folder\":\"%s/tests/golden/audio-vae\",\"hashes\":%s}}", here,
                          hashes, here, audio_hashes));
    h3_status status = read_plan(&plan, MEDIA_LAYOUT, text);
    free(text);
    H3_TRY(status);
    *out = NULL;
    status = h3_decoders_read(&d, &plan);
    if (status == H3_OK) status = h3_decoders_open(&weights, &d);
    if (status == H3_OK) status = h3_decoders_identity(out, &d, &weights, h3_device_cpu(), &(h3_media_shape){.frames = 22, .height = 64, .width = 80}, NULL);
    h3_decoders_close(&weights);
    h3_plan_free(&plan);
    return status;
}

static void decoders_are_known_by_content(void **state)
{
    static const char file[] = "diffusion_pytorch_model.safetensors";
    char sha256[3][H3_SHA256_HEX], *good, *bad;
    cJSON *identity;
    (void)state;
    assert_good(h3_sha256_file(sha256[0], golden_path("video-vae/config.json"), NULL, H3_INTEGRITY));
    assert_good(h3_sha256_file(sha256[1], golden_path("video-vae/diffusion_pytorch_model.safetensors"), NULL, H3_INTEGRITY));
    assert_good(h3_sha256_file(sha256[2], golden_path("audio-vae/diffusion_pytorch_model.safetensors"), NULL, H3_INTEGRITY));
    assert_good(h3_format(&good, "{\"config.json\":\"%s\",\"%s\":\"%s\"}", sha256[0], file, sha256[1]));
    assert_good(identify(&identity, good, "{}"));
    const cJSON *video = cJSON_GetObjectItem(identity, "video"), *audio = cJSON_GetObjectItem(identity, "audio");
    assert_string_equal(json_text(video, "config_sha256"), sha256[0]);
    assert_string_equal(json_text(cJSON_GetArrayItem(cJSON_GetObjectItem(video, "shards"), 0), "sha256"), sha256[1]);
    assert_string_equal(json_text(video, "profile"), "fp32");
    assert_int_equal(json_int(cJSON_GetObjectItem(video, "tiling"), "tile"), 256);
    assert_null(cJSON_GetObjectItem(video, "attention")); /* a CPU has one only */
    assert_null(cJSON_GetObjectItem(video, "products"));
    assert_string_equal(json_text(audio, "sha256"), sha256[2]);
    cJSON_Delete(identity);
    free(good);
    assert_good(h3_format(&bad, "{\"%s\":\"" ZERO "\"}", file));
    assert_fails(identify(&identity, bad, "{}"), H3_INTEGRITY, "video-vae/diffusion_pytorch_model.safetensors: SHA-256 differs");
    assert_fails(identify(&identity, "{}", bad), H3_INTEGRITY, "audio-vae/diffusion_pytorch_model.safetensors: SHA-256 differs");
    free(bad);
    assert_fails(identify(&identity, "{\"config.json\":\"" ZERO "\"}", "{}"), H3_INTEGRITY, "video-vae/config.json: SHA-256 differs");
    assert_fails(identify(&identity, "{\"other.safetensors\":\"" ZERO "\"}", "{}"), H3_INTEGRITY, "no file of this decoder");
    assert_fails(identify(&identity, "{}", "{\"diffusion_pytorch_model.safetensors.index.json\":\"" ZERO "\"}"), H3_INTEGRITY, "no file of this decoder");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_plan_says_what_decodes, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(what_is_wrong_is_named, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(identity_without_places, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(decoders_fit_model_and_layout, make_folder, remove_folder),
        cmocka_unit_test(shipped_decoders_fit),
        cmocka_unit_test_setup_teardown(a_decoder_that_is_not_there_is_named, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(preflight_opens_the_decoders, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(preflight_counts_the_weights, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(decoders_are_known_by_content, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
