/* Packed layouts and timestep plans against every hash and value of the two golden files. */
#include "golden_files.h"

#include <math.h>

#include "model/layout.h"
#include "model/scheduler.h"

static int32_t anchors_of(const cJSON *list)
{
    int32_t anchors = 0;
    const cJSON *name;
    cJSON_ArrayForEach(name, list) anchors |= strcmp(name->valuestring, "first") == 0 ? H3_ANCHOR_FIRST : H3_ANCHOR_LAST;
    return anchors;
}

static void assert_hash(const cJSON *hashes, const char *key, const void *data, int64_t count, size_t size)
{
    if (!sha256_is(data, (size_t)count * size, json_text(hashes, key))) fail_msg("%s differs", key);
}

static void assert_rows_are(const h3_layout *layout, int64_t first, const cJSON *rows)
{
    for (int i = 0; i < cJSON_GetArraySize(rows); i++)
        for (int axis = 0; axis < 3; axis++) {
            double expected = cJSON_GetArrayItem(cJSON_GetArrayItem(rows, i), axis)->valuedouble;
            assert_true(layout->position_ids[3 * (first + i) + axis] == expected);
        }
}

static void assert_layout_entry(const cJSON *entry)
{
    h3_layout_args args = {
        .text = json_int(entry, "text"),
        .frames = json_int(entry, "frames"),
        .height = json_int(entry, "h"),
        .width = json_int(entry, "w"),
        .audio = json_int(entry, "audio"),
        .vision_rows = json_int(entry, "vision_rows"),
        .anchors = anchors_of(json_get(entry, "anchors")),
        .patch_h = 2,
        .patch_w = 2,
    };
    h3_layout layout;
    float timestep[H3_MAX_TIMESTEPS];
    int64_t times;
    assert_good(h3_layout_new(&layout, &args));
    assert_int_equal(layout.rows, json_int(entry, "S"));
    assert_int_equal(layout.condition_rows, json_int(entry, "cond_rows"));
    assert_hash(entry, "sha256.position_ids", layout.position_ids, 3 * layout.rows, sizeof(double));
    assert_hash(entry, "sha256.token_tags", layout.token_tags, layout.rows, sizeof(int64_t));
    assert_hash(entry, "sha256.video_indices", layout.video_indices, layout.video_rows, sizeof(int64_t));
    assert_hash(entry, "sha256.audio_indices", layout.audio_indices, layout.audio_rows, sizeof(int64_t));
    assert_hash(entry, "sha256.text_indices", layout.text_indices, args.text, sizeof(int64_t));
    assert_rows_are(&layout, 0, json_get(entry, "first_rows"));
    assert_rows_are(&layout, layout.rows - 2, json_get(entry, "last_rows"));
    int64_t *indices = malloc((size_t)layout.rows * sizeof *indices);
    assert_good(h3_timestep_plan(&layout, 0.25f, 0.5625f, 0.999, timestep, &times, indices));
    assert_hash(entry, "sha256.timestep", timestep, times, sizeof *timestep);
    assert_hash(entry, "sha256.timestep_indices", indices, layout.rows, sizeof *indices);
    assert_int_equal(times, cJSON_GetArraySize(json_get(entry, "timestep")));
    for (int i = 0; i < (int)times; i++)
        assert_true((double)timestep[i] == cJSON_GetArrayItem(json_get(entry, "timestep"), i)->valuedouble);
    free(indices);
    h3_layout_free(&layout);
}

static void layouts_json(void **state)
{
    (void)state;
    cJSON *root = golden_json("layouts.json");
    const cJSON *entry;
    int count = 0;
    cJSON_ArrayForEach(entry, root) {
        assert_layout_entry(entry);
        count++;
    }
    assert_int_equal(count, 8);
    cJSON_Delete(root);
}

/* float32 positions and rotary angles as the model derives them. */
static void assert_float_positions(const h3_layout *layout, const cJSON *entry, const cJSON *frequencies)
{
    const cJSON *hashes = json_get(entry, "sha256");
    float *positions = malloc((size_t)layout->rows * 3 * sizeof *positions),
          *angles = malloc((size_t)layout->rows * 48 * sizeof *angles);
    for (int64_t i = 0; i < 3 * layout->rows; i++) positions[i] = (float)layout->position_ids[i];
    for (int k = 0; k < 16; k++) {
        uint32_t bits = hex_bits(cJSON_GetArrayItem(frequencies, k)->valuestring);
        float frequency;
        memcpy(&frequency, &bits, sizeof frequency);
        for (int64_t i = 0; i < 3 * layout->rows; i++) angles[i / 3 * 48 + i % 3 * 16 + k] = positions[i] * frequency;
    }
    assert_hash(hashes, "position_ids_f32", positions, 3 * layout->rows, sizeof *positions);
    assert_hash(hashes, "angles48_f32", angles, 48 * layout->rows, sizeof *angles);
    free(positions);
    free(angles);
}

static void assert_plan(const h3_layout *layout, const cJSON *plan, const h3_schedule *video, const h3_schedule *audio)
{
    int64_t step = json_int(plan, "step"), times, counts[9] = {0};
    float timestep[H3_MAX_TIMESTEPS];
    int64_t *indices = malloc((size_t)layout->rows * sizeof *indices);
    assert_good(h3_timestep_plan(layout, video->timestep[step], audio->timestep[step], 0.999, timestep, &times, indices));
    assert_int_equal(times, cJSON_GetArraySize(json_get(plan, "distinct_bits")));
    for (int i = 0; i < (int)times; i++) {
        assert_int_equal(float_bits(timestep[i]), hex_bits(cJSON_GetArrayItem(json_get(plan, "distinct_bits"), i)->valuestring));
        assert_true((double)timestep[i] == strtod(cJSON_GetArrayItem(json_get(plan, "distinct_dec"), i)->valuestring, NULL));
    }
    assert_hash(plan, "timestep_indices_sha256", indices, layout->rows, sizeof *indices);
    for (int64_t row = 0; row < layout->rows; row++) {
        indices[row] = 3 * indices[row] + layout->token_tags[row];
        counts[indices[row]]++;
    }
    assert_hash(plan, "adaln_indices_sha256", indices, layout->rows, sizeof *indices);
    const cJSON *golden = json_get(plan, "adaln_row_counts");
    for (int i = 0; i < 9; i++) {
        char key[2] = {(char)('0' + i), 0};
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(golden, key);
        assert_int_equal(counts[i], item != NULL ? item->valueint : 0);
    }
    free(indices);
}

static h3_layout tagged_layout(const cJSON *entry)
{
    const char *tags = json_text(entry, "text_token_tags");
    int64_t text_tags[64];
    h3_layout_args args = {
        .text = (int64_t)strlen(tags), .frames = json_int(entry, "num_latent_frames"), .height = json_int(entry, "latent_height"),
        .width = json_int(entry, "latent_width"), .audio = json_int(entry, "num_audio_latents"),
        .anchors = anchors_of(json_get(entry, "keyframe_anchors")), .patch_h = 2, .patch_w = 2,
    };
    h3_layout layout;
    for (int64_t i = 0; i < args.text; i++) text_tags[i] = tags[i] - '0';
    assert_good(h3_layout_new_tagged(&layout, &args, text_tags));
    return layout;
}

static void assert_counts(const h3_layout *layout, const cJSON *entry)
{
    const cJSON *starts = json_get(entry, "starts");
    assert_int_equal(layout->rows, json_int(entry, "sequence_length"));
    assert_int_equal(layout->rows_per_frame, json_int(entry, "rows_per_frame"));
    assert_int_equal(layout->args.text, json_int(entry, "num_text_rows"));
    assert_int_equal(layout->condition_rows, json_int(entry, "num_condition_video_rows"));
    assert_int_equal(layout->audio_rows, json_int(entry, "num_audio_rows"));
    assert_int_equal(layout->target_rows, json_int(entry, "num_target_video_rows"));
    assert_int_equal(layout->video_rows, json_int(entry, "num_video_rows"));
    assert_int_equal(layout->condition_start, json_int(starts, "condition"));
    assert_int_equal(layout->audio_start, json_int(starts, "audio"));
    assert_int_equal(layout->video_start, json_int(starts, "video"));
}

static void assert_sample_rows(const h3_layout *layout, const cJSON *entry)
{
    const cJSON *sample;
    cJSON_ArrayForEach(sample, json_get(entry, "rows")) {
        int64_t row = json_int(sample, "row");
        assert_int_equal(layout->token_tags[row], json_int(sample, "tag"));
        for (int axis = 0; axis < 3; axis++) {
            double value = layout->position_ids[3 * row + axis];
            assert_true(value == strtod(cJSON_GetArrayItem(json_get(sample, "hex"), axis)->valuestring, NULL));
            assert_true(value == strtod(cJSON_GetArrayItem(json_get(sample, "dec"), axis)->valuestring, NULL));
        }
    }
}

static void golden_layouts_json(void **state)
{
    (void)state;
    cJSON *root = golden_json("golden-layouts.json");
    const cJSON *entry, *plan, *frequencies = json_get(json_get(root, "constants"), "inv_freq_bits");
    h3_schedule video, audio;
    int entries = 0, plans = 0;
    assert_good(h3_schedule_new(&video, 50, 12));
    assert_good(h3_schedule_new(&audio, 50, 3));
    cJSON_ArrayForEach(entry, json_get(root, "layouts")) {
        h3_layout layout = tagged_layout(entry);
        const cJSON *hashes = json_get(entry, "sha256");
        assert_counts(&layout, entry);
        assert_hash(hashes, "position_ids", layout.position_ids, 3 * layout.rows, sizeof(double));
        assert_hash(hashes, "token_tags", layout.token_tags, layout.rows, sizeof(int64_t));
        assert_hash(hashes, "video_indices", layout.video_indices, layout.video_rows, sizeof(int64_t));
        assert_hash(hashes, "audio_indices", layout.audio_indices, layout.audio_rows, sizeof(int64_t));
        assert_hash(hashes, "text_indices", layout.text_indices, layout.args.text, sizeof(int64_t));
        assert_float_positions(&layout, entry, frequencies);
        assert_sample_rows(&layout, entry);
        cJSON_ArrayForEach(plan, json_get(entry, "timestep_plan")) {
            assert_plan(&layout, plan, &video, &audio);
            plans++;
        }
        /* the hash notices the smallest step of one position */
        layout.position_ids[3 * (layout.rows - 1)] = nextafter(layout.position_ids[3 * (layout.rows - 1)], 0);
        assert_false(sha256_is(layout.position_ids, (size_t)layout.rows * 3 * sizeof(double), json_text(hashes, "position_ids")));
        h3_layout_free(&layout);
        entries++;
    }
    assert_int_equal(entries, 7);
    assert_int_equal(plans, 21);
    h3_schedule_free(&video);
    h3_schedule_free(&audio);
    cJSON_Delete(root);
}

static void frame_arithmetic(void **state)
{
    (void)state;
    cJSON *root = golden_json("golden-layouts.json");
    const cJSON *entry;
    cJSON_ArrayForEach(entry, json_get(root, "frame_arithmetic")) {
        assert_int_equal(h3_latent_frames(json_int(entry, "frames")), json_int(entry, "latent_frames"));
        assert_int_equal(h3_audio_latents(json_int(entry, "frames")), json_int(entry, "audio_latents_per_channel"));
    }
    cJSON_Delete(root);
}

/* The clock of the "last" anchor is paired, that of the frames is sequential: at 37 frames they differ in the last bits. */
static void both_clocks(void **state)
{
    (void)state;
    h3_layout layout;
    h3_layout_args args = {
        .text = 64, .frames = 37, .height = 2, .width = 2, .audio = 1, .anchors = H3_ANCHOR_LAST, .patch_h = 2, .patch_w = 2};
    assert_good(h3_layout_new(&layout, &args));
    double last_anchor = layout.position_ids[3 * 64], last_frame = layout.position_ids[3 * (layout.rows - 1)];
    assert_true(last_anchor == 0x1.0cfffffffffffp+8);
    assert_true(last_frame == 263.9999999999999);
    double sequential = 0;
    for (int f = 0; f < 37; f++) sequential += 5.0 / 3.0 * (f % 5 == 0 ? 1 : 4);
    assert_true(sequential == 0x1.9d55555555552p+7);
    assert_true(64 + sequential - 5.0 / 3.0 != last_anchor);
    h3_layout_free(&layout);
    /* Beyond 128 frames the sum splits at a multiple of 8, here into 64 + 73. Without a split it ends in 56p+9, in the middle in 57p+9. */
    args.text = 2;
    args.frames = 137;
    assert_good(h3_layout_new(&layout, &args));
    assert_true(layout.position_ids[3 * 2] == 0x1.82d5555555555p+9);
    h3_layout_free(&layout);
}

/* The golden cases carry their layout as tensors. */
static void layouts_of_the_cases(void **state)
{
    static const struct { const char *file; int64_t text, frames, audio, vision; } cases[] = {
        {"nano/case.safetensors", 5, 2, 3, 2}, {"edge/case.safetensors", 5, 2, 3, 2}, {"tiny/case.safetensors", 12, 7, 9, 3}};
    (void)state;
    for (int i = 0; i < 3; i++) {
        h3_safetensors file = golden_tensors(cases[i].file);
        h3_layout_args args = {.text = cases[i].text, .frames = cases[i].frames, .height = 4, .width = 6, .audio = cases[i].audio,
                               .vision_rows = cases[i].vision, .anchors = H3_ANCHOR_FIRST, .patch_h = 2, .patch_w = 2};
        h3_layout layout;
        int64_t times, indices[100];
        float timestep[H3_MAX_TIMESTEPS];
        assert_good(h3_layout_new(&layout, &args));
        assert_good(h3_timestep_plan(&layout, 0.25f, 0.5625f, 0.999, timestep, &times, indices));
        const struct { const char *name; const void *data;
        } arrays[] = {{"layout.position_ids", layout.position_ids},
                      {"layout.token_tags", layout.token_tags},
                      {"layout.video_indices", layout.video_indices},
                      {"layout.audio_indices", layout.audio_indices},
                      {"layout.text_indices", layout.text_indices},
                      {"layout.timestep_indices", indices},
                      {"layout.timestep", timestep}};
        for (size_t k = 0; k < sizeof arrays / sizeof *arrays; k++) {
            const h3_tensor *golden = h3_safetensors_find(&file, arrays[k].name);
            assert_non_null(golden);
            assert_memory_equal(golden->data, arrays[k].data, h3_tensor_bytes(golden));
        }
        h3_layout_free(&layout);
        h3_safetensors_close(&file);
    }
}

static void timestep_plans(void **state)
{
    (void)state;
    h3_layout_args args = {
        .text = 2, .frames = 1, .height = 2, .width = 2, .audio = 1, .anchors = H3_ANCHOR_FIRST, .patch_h = 2, .patch_w = 2};
    h3_layout layout;
    float timestep[H3_MAX_TIMESTEPS];
    int64_t times, indices[6];
    assert_good(h3_layout_new(&layout, &args));
    assert_int_equal(layout.rows, 6);
    assert_good(h3_timestep_plan(&layout, 0.75f, 0.5f, 0.999, timestep, &times, indices)); /* audio behind video */
    assert_int_equal(times, 3);
    assert_true(timestep[0] == 0.5f && timestep[1] == 0.75f && float_bits(timestep[2]) == 0x3f7fbe77);
    assert_memory_equal(indices, ((int64_t[]){1, 1, 2, 0, 0, 1}), sizeof indices);
    assert_good(h3_timestep_plan(&layout, 1.0f, 1.0f, 0.999, timestep, &times, indices)); /* video past the condition */
    assert_int_equal(times, 1);
    assert_memory_equal(indices, ((int64_t[]){0, 0, 0, 0, 0, 0}), sizeof indices);
    assert_fails(h3_timestep_plan(&layout, NAN, 0.5f, 0.999, timestep, &times, indices), H3_USAGE, "finite");
    assert_fails(h3_timestep_plan(&layout, 0.5f, 0.5f, INFINITY, timestep, &times, indices), H3_USAGE, "finite");
    h3_layout_free(&layout);
}

static void impossible_layouts(void **state)
{
    const h3_layout_args good = {
        .text = 5, .frames = 2, .height = 4, .width = 6, .audio = 3, .vision_rows = 2, .anchors = 1, .patch_h = 2, .patch_w = 2};
    static const struct { size_t field; int64_t value; const char *word;
    } cases[] = {
        {offsetof(h3_layout_args, text), 0, "text rows"},
        {offsetof(h3_layout_args, text), -1, "text rows"},
        {offsetof(h3_layout_args, text), INT64_MAX, "text rows"},
        {offsetof(h3_layout_args, text), (int64_t)1 << 31, "rows"},
        {offsetof(h3_layout_args, frames), 0, "frames"},
        {offsetof(h3_layout_args, frames), (int64_t)1 << 31, "rows"},
        {offsetof(h3_layout_args, height), 0, "height"},
        {offsetof(h3_layout_args, height), 5, "divide"},
        {offsetof(h3_layout_args, width), 7, "divide"},
        {offsetof(h3_layout_args, width), INT64_MIN, "width"},
        {offsetof(h3_layout_args, width), (int64_t)1 << 31, "rows"},
        {offsetof(h3_layout_args, audio), 0, "audio"},
        {offsetof(h3_layout_args, audio), (int64_t)1 << 31, "rows"},
        {offsetof(h3_layout_args, vision_rows), 5, "vision rows"},
        {offsetof(h3_layout_args, vision_rows), -1, "vision rows"},
        {offsetof(h3_layout_args, patch_h), 0, "patch"},
        {offsetof(h3_layout_args, patch_w), 4, "divide"},
    };
    h3_layout layout;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        h3_layout_args args = good;
        memcpy((char *)&args + cases[i].field, &cases[i].value, sizeof(int64_t));
        assert_fails(h3_layout_new(&layout, &args), H3_USAGE, cases[i].word);
        assert_null(layout.position_ids);
    }
    h3_layout_args args = good;
    args.anchors = 4;
    assert_fails(h3_layout_new(&layout, &args), H3_USAGE, "anchors");
    assert_fails(h3_layout_new_tagged(&layout, &good, (int64_t[]){1, 1, 2, 1, 1}), H3_USAGE, "tag 2");
}

/* Rows of another patch size than the released one: feature = (c * ph + dy) * pw + dx. */
static void patches_of_any_size(void **state)
{
    float latent[2 * 2 * 4 * 6], rows[96], back[96];
    (void)state;
    for (int i = 0; i < 96; i++) latent[i] = (float)i;
    h3_patchify(rows, latent, 2, 2, 4, 6, 4, 3);
    for (int f = 0; f < 2; f++)
        for (int x = 0; x < 2; x++)
            for (int c = 0; c < 2; c++)
                for (int dy = 0; dy < 4; dy++)
                    for (int dx = 0; dx < 3; dx++)
                        assert_true(rows[(f * 2 + x) * 24 + (c * 4 + dy) * 3 + dx] ==
                                    (float)(((c * 2 + f) * 4 + dy) * 6 + x * 3 + dx));
    h3_unpatchify(back, rows, 2, 2, 4, 6, 4, 3);
    assert_memory_equal(back, latent, sizeof latent);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layouts_json),       cmocka_unit_test(golden_layouts_json),  cmocka_unit_test(frame_arithmetic),
        cmocka_unit_test(both_clocks),        cmocka_unit_test(layouts_of_the_cases), cmocka_unit_test(timestep_plans),
        cmocka_unit_test(impossible_layouts), cmocka_unit_test(patches_of_any_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
