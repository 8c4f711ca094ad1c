/* Reference pictures as conditioning: through resize, encoder and seeded sample to a generation's first rows; bin/h3_keyframe. */
#include "generation_nano.h"
#include "video_golden.h"

#include "store/publish.h"

enum { HEIGHT = 8 * 4, WIDTH = 10 * 4 }; /* nano's layout, the small autoencoder's ratio: one tile, and four channels like nano */

static char folder[128];

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/h3-conditioning-XXXXXX");
    h3_log_enable(0);
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state)
{
    (void)state;
    return h3_remove_tree(folder) != H3_OK;
}

static const char *in_folder(const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/* Another picture for another seed. */
static h3_picture picture_of(int64_t width, int64_t height, uint32_t seed)
{
    h3_picture p = {width, height, malloc((size_t)(width * height) * 3)};
    assert_non_null(p.rgb);
    for (int64_t i = 0; i < width * height * 3; i++)
        p.rgb[i] = (unsigned char)((i / 3 % width * 200 / width + i / 3 / width * 50 / height + (int64_t)((uint32_t)(i + seed) * 2654435761u >> 27)) & 255);
    return p;
}

/* A file of nano's text and these tensors; `generation` names it. */
static void write_file(h3_generation *generation, const char *name, const h3_safetensors_entry *more, size_t count)
{
    h3_safetensors_entry entries[5];
    h3_config config;
    h3_tensor text;
    char *image;
    size_t size;
    nano_config(&config);
    nano_settings(generation, 50, 1);
    assert_good(h3_tensor_new(&text, H3_BF16, 2, H3_SHAPE(5, config.text_dim)));
    for (int64_t i = 0; i < 5 * config.text_dim; i++) ((uint16_t *)text.data)[i] = (uint16_t)(0x3f00 + i);
    entries[0] = (h3_safetensors_entry){(char *)(uintptr_t)"text", text};
    for (size_t i = 0; i < count; i++) entries[1 + i] = more[i];
    assert_good(h3_safetensors_build(&image, &size, entries, count + 1, NULL));
    assert_good(h3_publish(in_folder(name), image, size));
    snprintf(generation->conditioning_file, sizeof generation->conditioning_file, "%s", in_folder(name));
    assert_good(h3_sha256(generation->conditioning_sha256, image, size));
    free(image);
    h3_tensor_free(&text);
}

static h3_safetensors_entry image_entry(const char *name, const h3_picture *p)
{
    return (h3_safetensors_entry){(char *)(uintptr_t)name, h3_tensor_view(p->rgb, H3_U8, 3, H3_SHAPE(p->height, p->width, 3))};
}

/* The published way, step by step. */
static h3_tensor latents_of(const h3_picture *p, int is_first, char sha256[H3_SHA256_HEX])
{
    h3_video_weights weights = video_weights();
    h3_video_encoder *encoder;
    h3_picture canvas;
    h3_tensor latents;
    assert_good(h3_picture_canvas(&canvas, p, WIDTH, HEIGHT, is_first));
    assert_good(h3_sha256(sha256, canvas.rgb, HEIGHT * WIDTH * 3));
    assert_good(h3_video_encoder_open(&encoder, &weights, h3_device_cpu(), h3_video_ops_cpu(), &H3_VIDEO_TILING, 0));
    assert_good(h3_video_keyframe(&latents, encoder, canvas.rgb, HEIGHT, WIDTH));
    h3_video_encoder_close(encoder);
    h3_video_weights_close(&weights);
    h3_picture_free(&canvas);
    return latents;
}

static h3_status encode(h3_generation_inputs *inputs)
{
    h3_video_weights weights = video_weights();
    h3_status status = h3_generation_encode(inputs, &weights, &H3_VIDEO_TILING, h3_device_cpu(), h3_video_ops_cpu());
    h3_video_weights_close(&weights);
    return status;
}

static void assert_same(const h3_tensor *a, const h3_tensor *b)
{
    assert_int_equal(a->rank, b->rank);
    for (int32_t i = 0; i < a->rank; i++) assert_int_equal(a->shape[i], b->shape[i]);
    assert_memory_equal(a->data, b->data, h3_tensor_bytes(a));
}

/* A picture of any size gives the rows that its latents give. */
static void a_picture_is_encoded(void **state)
{
    static const int64_t sizes[][2] = {{WIDTH, HEIGHT}, {97, 61}, {7, 90}, {1, 1}};
    (void)state;
    h3_config config;
    nano_config(&config);
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        h3_generation generation;
        h3_generation_inputs inputs, direct;
        h3_tensor video, audio, wanted_video, wanted_audio;
        char sha256[H3_SHA256_HEX];
        h3_picture p = picture_of(sizes[k][0], sizes[k][1], 1);
        const h3_safetensors_entry image = image_entry("image.0", &p);
        write_file(&generation, "image.safetensors", &image, 1);
        assert_good(h3_generation_inputs_new(&inputs, &generation, &config));
        assert_true(h3_generation_has_pictures(&inputs));
        assert_fails(h3_generation_start(&video, &audio, &inputs, 43), H3_USAGE, "still a picture");
        assert_null(video.data);
        assert_good(encode(&inputs));
        assert_false(h3_generation_has_pictures(&inputs));
        h3_tensor latents = latents_of(&p, 1, sha256);
        assert_same(&inputs.condition[0], &latents);
        assert_string_equal(inputs.canvas_sha256[0], sha256);
        assert_null(inputs.picture[0].rgb);
        assert_good(h3_generation_start(&video, &audio, &inputs, 43));

        const h3_safetensors_entry entry = {(char *)(uintptr_t)"condition.0", latents};
        write_file(&generation, "latents.safetensors", &entry, 1);
        assert_good(h3_generation_inputs_new(&direct, &generation, &config));
        assert_false(h3_generation_has_pictures(&direct));
        assert_good(h3_generation_encode(&direct, NULL, NULL, NULL, NULL)); /* nothing to do */
        assert_string_equal(direct.canvas_sha256[0], "");
        assert_good(h3_generation_start(&wanted_video, &wanted_audio, &direct, 43));
        assert_same(&video, &wanted_video);
        assert_same(&audio, &wanted_audio);
        h3_tensor *const made[] = {&video, &audio, &wanted_video, &wanted_audio, &latents};
        for (int i = 0; i < 5; i++) h3_tensor_free(made[i]);
        h3_generation_inputs_free(&inputs);
        h3_generation_inputs_free(&direct);
        h3_picture_free(&p);
    }
}

/* The first is stretched, the second covers; each by its place among those given, not by its anchor's name. */
static void two_pictures_have_two_rules(void **state)
{
    (void)state;
    h3_config config;
    h3_generation generation;
    h3_generation_inputs inputs;
    char sha256[3][H3_SHA256_HEX];
    nano_config(&config);
    h3_picture a = picture_of(97, 61, 1), b = picture_of(50, 90, 2);
    h3_tensor stretched = latents_of(&a, 1, sha256[0]), covered = latents_of(&b, 0, sha256[1]), other = latents_of(&b, 1, sha256[2]);
    assert_string_not_equal(sha256[1], sha256[2]);
    const h3_safetensors_entry both[] = {image_entry("image.0", &a), image_entry("image.1", &b)};
    write_file(&generation, "two.safetensors", both, 2);
    generation.layout.anchors = H3_ANCHOR_FIRST | H3_ANCHOR_LAST;
    assert_good(h3_generation_inputs_new(&inputs, &generation, &config));
    assert_good(encode(&inputs));
    assert_same(&inputs.condition[0], &stretched);
    assert_same(&inputs.condition[1], &covered);
    assert_string_equal(inputs.canvas_sha256[1], sha256[1]);
    h3_generation_inputs_free(&inputs);
    /* latents and a picture together; the picture is second */
    const h3_safetensors_entry mixed[] = {{(char *)(uintptr_t)"condition.0", other}, image_entry("image.1", &b)};
    write_file(&generation, "mixed.safetensors", mixed, 2);
    generation.layout.anchors = H3_ANCHOR_FIRST | H3_ANCHOR_LAST;
    assert_good(h3_generation_inputs_new(&inputs, &generation, &config));
    assert_true(h3_generation_has_pictures(&inputs));
    assert_good(encode(&inputs));
    assert_same(&inputs.condition[0], &other);
    assert_same(&inputs.condition[1], &covered);
    h3_generation_inputs_free(&inputs);
    /* the last picture alone is the first one given */
    const h3_safetensors_entry last = image_entry("image.0", &b);
    write_file(&generation, "last.safetensors", &last, 1);
    generation.layout.anchors = H3_ANCHOR_LAST;
    assert_good(h3_generation_inputs_new(&inputs, &generation, &config));
    assert_good(encode(&inputs));
    assert_same(&inputs.condition[0], &other);
    h3_generation_inputs_free(&inputs);
    h3_tensor_free(&stretched);
    h3_tensor_free(&covered);
    h3_tensor_free(&other);
    h3_picture_free(&a);
    h3_picture_free(&b);
}

static void wrong_files_are_refused(void **state)
{
    (void)state;
    h3_config config;
    h3_generation generation;
    h3_generation_inputs inputs;
    nano_config(&config);
    h3_picture p = picture_of(20, 10, 1);
    h3_tensor latents;
    assert_good(h3_tensor_new(&latents, H3_F32, 5, H3_SHAPE(1, 4, 1, 8, 10)));
    const h3_safetensors_entry right = image_entry("image.0", &p), also = {(char *)(uintptr_t)"condition.0", latents};
    h3_safetensors_entry wrong[6];
    for (int i = 0; i < 6; i++) wrong[i] = right;
    wrong[0].tensor = h3_tensor_view(p.rgb, H3_U8, 3, H3_SHAPE(10, 15, 4));
    wrong[1].tensor = h3_tensor_view(latents.data, H3_F32, 3, H3_SHAPE(4, 4, 3));
    wrong[2].tensor = h3_tensor_view(p.rgb, H3_U8, 2, H3_SHAPE(10, 3));
    wrong[3].tensor = h3_tensor_view(p.rgb, H3_U8, 3, H3_SHAPE(0, 10, 3));
    h3_picture wide = {20000, 1, calloc(1, 60000)};
    wrong[4] = image_entry("image.0", &wide);
    wrong[5].tensor = h3_tensor_view(p.rgb, H3_U8, 4, H3_SHAPE(1, 10, 20, 3));
    for (int i = 0; i < 6; i++) {
        write_file(&generation, "wrong.safetensors", &wrong[i], 1);
        assert_fails(h3_generation_inputs_new(&inputs, &generation, &config), H3_INTEGRITY, "image.0 is no picture");
    }
    const h3_safetensors_entry twice[] = {right, also};
    write_file(&generation, "twice.safetensors", twice, 2);
    assert_fails(h3_generation_inputs_new(&inputs, &generation, &config), H3_INTEGRITY, "holds both condition.0 and image.0");
    h3_safetensors_entry more[] = {right, right};
    more[1].name = (char *)(uintptr_t)"image.1"; /* of an anchor that the plan has not */
    write_file(&generation, "more.safetensors", more, 2);
    assert_fails(h3_generation_inputs_new(&inputs, &generation, &config), H3_INTEGRITY, "holds 3 tensors");
    write_file(&generation, "good.safetensors", &right, 1);
    generation.layout.anchors = H3_ANCHOR_FIRST | H3_ANCHOR_LAST;
    assert_fails(h3_generation_inputs_new(&inputs, &generation, &config), H3_INTEGRITY, "condition.1 is missing");
    free(wide.rgb);
    h3_tensor_free(&latents);
    h3_picture_free(&p);
}

/* An autoencoder of another model is no help. */
static void another_autoencoder_is_refused(void **state)
{
    (void)state;
    h3_config config;
    h3_generation generation;
    h3_generation_inputs inputs;
    nano_config(&config);
    h3_picture p = picture_of(20, 10, 1);
    const h3_safetensors_entry image = image_entry("image.0", &p);
    write_file(&generation, "good.safetensors", &image, 1);
    assert_good(h3_generation_inputs_new(&inputs, &generation, &config));
    inputs.channels = 5;
    assert_fails(encode(&inputs), H3_USAGE, "makes 4 latent channels, the model takes 5");
    assert_true(h3_generation_has_pictures(&inputs));
    inputs.channels = 4;
    assert_good(encode(&inputs));
    h3_generation_inputs_free(&inputs);
    h3_picture_free(&p);
}

/* Means of 0 and log-variances of 0 leave the sample's noise itself: the published generator's at the released size, by hash. */
static void the_released_noise(void **state)
{
    (void)state;
    cJSON *constants = golden_json("vae-constants.json");
    const char *posterior = json_text(json_get(constants, "video"), "posterior_noise_sha256_seed42_1x24x1x48x84");
    const cJSON *noise = json_get(json_get(constants, "generation_124x768x1344"), "noise_sha256");
    h3_tensor moments, z;
    assert_good(h3_tensor_new(&moments, H3_F32, 4, H3_SHAPE(48, 1, 48, 84)));
    assert_good(h3_video_sample(&z, &moments, H3_VIDEO_KEYFRAME_SEED));
    assert_true(sha256_is(z.data, h3_tensor_bytes(&z), posterior));
    assert_string_equal(posterior, cJSON_GetArrayItem(json_get(noise, "42"), 0)->valuestring);
    h3_tensor_free(&z);
    assert_good(h3_video_sample(&z, &moments, 43));
    assert_true(sha256_is(z.data, h3_tensor_bytes(&z), cJSON_GetArrayItem(json_get(noise, "43"), 0)->valuestring));
    assert_false(sha256_is(z.data, h3_tensor_bytes(&z), posterior));
    h3_tensor_free(&z);
    h3_tensor_free(&moments);
    cJSON_Delete(constants);
}

/* --- bin/h3_keyframe ------------------------------------------------------------------------------------------------- */

static int run(const char *options, char said[2000])
{
    char command[3000], here[H3_PATH_MAX];
    const char *bin = getenv("H3_BIN");
    assert_non_null(getcwd(here, sizeof here));
    snprintf(command, sizeof command, "cd '%s' && '%.1000s%s%.500s/h3_keyframe' %s 2>&1", folder, bin && bin[0] == '/' ? "" : here, bin && bin[0] == '/' ? "" : "/", bin ? bin : "bin", options);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    const size_t size = fread(said, 1, 1999, pipe);
    said[size] = 0;
    return pclose(pipe) >> 8;
}

static void write_png(const char *name, const h3_picture *p)
{
    char *png;
    size_t size;
    assert_good(h3_picture_build(&png, &size, p->rgb, p->height, p->width));
    assert_good(h3_publish(in_folder(name), png, size));
    free(png);
}

/* The file that the program said it wrote, as a plan would take it. */
static h3_generation_inputs inputs_of(const char *name, const char *said, const h3_config *config)
{
    h3_generation generation;
    h3_generation_inputs inputs;
    nano_settings(&generation, 50, 1);
    generation.layout.anchors = H3_ANCHOR_FIRST | H3_ANCHOR_LAST;
    snprintf(generation.conditioning_file, sizeof generation.conditioning_file, "%s", in_folder(name));
    const char *hash = strstr(said, "\"sha256\": \"");
    assert_non_null(hash);
    memcpy(generation.conditioning_sha256, hash + 11, 64);
    assert_good(h3_generation_inputs_new(&inputs, &generation, config));
    return inputs;
}

static void the_program_makes_both_kinds(void **state)
{
    (void)state;
    h3_config config;
    h3_generation generation;
    char said[2000], options[2000], here[H3_PATH_MAX], sha256[H3_SHA256_HEX];
    nano_config(&config);
    h3_picture a = picture_of(97, 61, 1), b = picture_of(50, 90, 2);
    const h3_safetensors_entry ignored = image_entry("image.0", &a);
    write_file(&generation, "text.safetensors", &ignored, 1);
    write_png("a.png", &a);
    write_png("b.png", &b);
    assert_int_equal(run("--text text.safetensors --first a.png --last b.png --canvas 40x32 --out images.safetensors", said), 0);
    h3_generation_inputs images = inputs_of("images.safetensors", said, &config);
    assert_true(h3_generation_has_pictures(&images));
    assert_good(encode(&images));
    assert_non_null(getcwd(here, sizeof here));
    snprintf(options, sizeof options, "--text text.safetensors --first a.png --last b.png --canvas 40x32 --out latents.safetensors --vae '%.1000s/%.500s'", here, golden_path("video-vae"));
    assert_int_equal(run(options, said), 0);
    h3_generation_inputs latents = inputs_of("latents.safetensors", said, &config);
    assert_false(h3_generation_has_pictures(&latents));
    h3_tensor wanted[] = {latents_of(&a, 1, sha256), latents_of(&b, 0, sha256)};
    for (int i = 0; i < 2; i++) {
        assert_same(&images.condition[i], &wanted[i]); /* a picture on the canvas stays as it is */
        assert_same(&latents.condition[i], &wanted[i]);
        h3_tensor_free(&wanted[i]);
    }
    h3_safetensors file;
    assert_good(h3_safetensors_open(&file, in_folder("latents.safetensors")));
    assert_non_null(strstr(file.metadata, sha256));
    h3_safetensors_close(&file);
    h3_generation_inputs_free(&images);
    h3_generation_inputs_free(&latents);
    h3_picture_free(&a);
    h3_picture_free(&b);
}

static void the_program_refuses(void **state)
{
    static const struct { const char *options; int code; const char *word; } CASES[] = {
        {"", 2, "are needed; see h3_keyframe --help"},
        {"--text text.safetensors --canvas 40x32 --out o", 2, "--first or --last"},
        {"--text text.safetensors --first a.png --out o --canvas 40", 2, "give WIDTHxHEIGHT"},
        {"--text text.safetensors --first a.png --out o --canvas 40x32x", 2, "give WIDTHxHEIGHT"},
        {"--text text.safetensors --first a.png --out o --canvas 0x32", 2, "give WIDTHxHEIGHT"},
        {"--text text.safetensors --first a.png --out o --canvas 99999x32", 2, "give WIDTHxHEIGHT"},
        {"--text text.safetensors --first a.png --out o --canvas -40x32", 2, "give WIDTHxHEIGHT"},
        {"--text text.safetensors --first a.png --out o --canvas 40x32 --device tpu", 2, "use cpu or cuda"},
        {"--text none.safetensors --first a.png --out o --canvas 40x32", 3, "none.safetensors"},
        {"--text a.png --first a.png --out o --canvas 40x32", 3, "a.png"},
        {"--text text.safetensors --first text.safetensors --out o --canvas 40x32", 3, "is no PNG file"},
        {"--text text.safetensors --first a.png --out o --canvas 40x32 --vae .", 3, "config.json"},
        {"--text text.safetensors --first a.png --out none/o --canvas 40x32", 4, "none/o"},
        {"--text flat.safetensors --first a.png --out o --canvas 40x32", 3, "two dimensions"},
        {"--text tags.safetensors --first a.png --out o --canvas 40x32", 3, "text_tags has another shape"},
    };
    (void)state;
    char said[2000], options[2000], here[H3_PATH_MAX];
    h3_generation generation;
    h3_picture a = picture_of(9, 9, 1);
    int64_t tags[4] = {0};
    uint16_t values[5] = {0};
    char *image;
    size_t size;
    const h3_safetensors_entry wrong_tags = {(char *)(uintptr_t)"text_tags", h3_tensor_view(tags, H3_I64, 1, H3_SHAPE(4))},
                               flat = {(char *)(uintptr_t)"text", h3_tensor_view(values, H3_BF16, 1, H3_SHAPE(5))};
    write_file(&generation, "text.safetensors", NULL, 0);
    write_file(&generation, "tags.safetensors", &wrong_tags, 1);
    assert_good(h3_safetensors_build(&image, &size, &flat, 1, NULL));
    assert_good(h3_publish(in_folder("flat.safetensors"), image, size));
    free(image);
    write_png("a.png", &a);
    h3_picture_free(&a);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        const int code = run(CASES[i].options, said);
        if (code != CASES[i].code || strstr(said, CASES[i].word) == NULL) fail_msg("%s: exit %d: %s", CASES[i].options, code, said);
        assert_ptr_equal(strchr(said, '\n'), said + strlen(said) - 1); /* one line */
    }
    assert_non_null(getcwd(here, sizeof here));
    snprintf(options, sizeof options, "--text text.safetensors --first a.png --out o --canvas 41x32 --vae '%.1000s/%.500s'", here, golden_path("video-vae"));
    assert_int_equal(run(options, said), 2);
    assert_non_null(strstr(said, "multiples of 4 pixels"));
    assert_int_not_equal(access(in_folder("o"), F_OK), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_picture_is_encoded, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(two_pictures_have_two_rules, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(wrong_files_are_refused, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(another_autoencoder_is_refused, make_folder, remove_folder),
        cmocka_unit_test(the_released_noise),
        cmocka_unit_test_setup_teardown(the_program_makes_both_kinds, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(the_program_refuses, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
