/* Configurations of the video autoencoder, what follows from them, and checkpoints that are not what they should be. */
#include "scratch_folder.h"
#include "video_golden.h"

/* The released configuration, as published; latent statistics left out. */
#define RELEASED                                                                                                                       \
    "{\"_class_name\":\"AutoencoderKLMiniMaxH3\",\"in_channels\":3,\"out_channels\":3,\"latent_channels\":24,"                         \
    "\"block_out_channels\":[128,256,256,512,512,1024],\"layers_per_block\":2,\"spatial_downsample_factors\":[2,2,2,2,1,1],"            \
    "\"temporal_downsample_factors\":[1,2,2,1,1,1],\"norm_num_groups\":32,\"norm_eps\":1e-06,\"spatial_padding_mode\":\"reflect\","     \
    "\"decoder_num_layers\":36,\"decoder_num_attention_heads\":32,\"decoder_attention_head_dim\":64,\"decoder_num_register_tokens\":4," \
    "\"decoder_ffn_mult\":4,\"decoder_rope_theta\":100.0,\"decoder_rope_dim_ratio\":0.75,\"decoder_norm_eps\":1e-05,"                   \
    "\"clip_length\":17,\"token_drop\":3,\"latents_mean\":[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0],"                           \
    "\"latents_std\":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}"

static h3_video_config released(void)
{
    h3_video_config config;
    assert_good(h3_video_config_parse(&config, RELEASED, strlen(RELEASED), "released"));
    return config;
}

/* video-vae.md sections 1 and 2. */
static void released_sizes(void **state)
{
    (void)state;
    const h3_video_config config = released();
    const h3_video_sizes s = h3_video_sizes_of(&config);
    h3_parameter_list list;
    h3_parameter_source *source;
    h3_tensor tensor;
    assert_int_equal(s.spatial_ratio, 16);
    assert_int_equal(s.temporal_ratio, 4);
    assert_int_equal(s.chunk_latents, 5);
    assert_int_equal(s.clip_latents, 7);
    assert_int_equal(s.leading_frames, 3);
    assert_int_equal(s.overlap_frames, 5);
    assert_int_equal(s.width, 2048);
    assert_int_equal(s.ffn_width, 8192);
    assert_int_equal(6 * s.frequencies, 48);
    assert_int_equal(s.patch_values, 3072);
    assert_good(h3_video_parameters(&list, &config));
    assert_int_equal(list.count, 703);
    assert_good(h3_parameters_synthetic(&source, "video-vae", 0, &list));
    assert_int_equal(h3_parameters_count(source), 2603868984);
    assert_good(h3_parameters_read(&tensor, source, "decoder.transformer_blocks.35.ff.net.0.proj.bias"));
    assert_int_equal(tensor.shape[0], 16384);
    h3_tensor_free(&tensor);
    assert_fails(h3_parameters_read(&tensor, source, "decoder.mask_token"), H3_USAGE, "no parameter decoder.mask_token");
    h3_parameters_close(source);
}

/* The small golden's weights are h3synth-v1, stream "video-vae.<parameter>", seed 0: both sources give the same bits. */
static void synthetic_weights_are_the_goldens(void **state)
{
    (void)state;
    h3_video_weights stored = video_weights(), made;
    h3_parameter_list list;
    assert_good(h3_video_weights_synthetic(&made, &stored.config, 0));
    assert_good(h3_video_parameters(&list, &stored.config));
    assert_int_equal(h3_parameters_count(stored.source), 508112 / 4);
    for (size_t i = 0; i < list.count; i++) {
        h3_tensor a, b;
        assert_good(h3_parameters_read(&a, stored.source, list.items[i].name));
        assert_good(h3_parameters_read(&b, made.source, list.items[i].name));
        assert_int_equal(h3_tensor_bytes(&a), h3_tensor_bytes(&b));
        if (memcmp(a.data, b.data, h3_tensor_bytes(&a)) != 0) fail_msg("%s differs", list.items[i].name);
        h3_tensor_free(&a);
        h3_tensor_free(&b);
    }
    h3_parameters_free(&list);
    h3_video_weights_close(&stored);
    h3_video_weights_close(&made);
}

/* --- schedules ------------------------------------------------------------------------------------------------------- */

/* video-vae.md 3.2 and section 6. */
static void clips(void **state)
{
    static const struct { int64_t latents, clips, frames; } EXPECTED[] = {{3, 1, 9}, {6, 1, 18}, {7, 1, 22}, {8, 2, 26}, {11, 2, 35}, {12, 2, 39}, {37, 7, 124}};
    (void)state;
    const h3_video_config config = released();
    h3_video_clips plan;
    for (size_t i = 0; i < sizeof EXPECTED / sizeof *EXPECTED; i++) {
        assert_good(h3_video_clips_plan(&plan, &config, EXPECTED[i].latents));
        assert_int_equal(plan.count, EXPECTED[i].clips);
        assert_int_equal(plan.frames, EXPECTED[i].frames);
        assert_int_equal(plan.whole_frames, 17 * EXPECTED[i].clips + 5);
    }
    assert_fails(h3_video_clips_plan(&plan, &config, 2), H3_USAGE, "at least 3");
    assert_fails(h3_video_clips_plan(&plan, &config, -4), H3_USAGE, "at least 3");
    assert_fails(h3_video_clips_plan(&plan, &config, INT64_MAX), H3_USAGE, "cannot be decoded");
}

/* video-vae.md 3.3. */
static void tiles(void **state)
{
    static const int32_t ROWS[] = {0, 160, 336, 512}, COLUMNS[] = {0, 176, 352, 528, 704, 896, 1088};
    static const int32_t ROW_OVERLAPS[] = {96, 80, 80}, COLUMN_OVERLAPS[] = {80, 80, 80, 80, 64, 64};
    (void)state;
    h3_video_axis axis;
    assert_good(h3_video_axis_plan(&axis, 768, 256, 64, 16));
    assert_int_equal(axis.count, 4);
    assert_memory_equal(axis.start, ROWS, sizeof ROWS);
    assert_memory_equal(axis.overlap, ROW_OVERLAPS, sizeof ROW_OVERLAPS);
    assert_good(h3_video_axis_plan(&axis, 1344, 256, 64, 16));
    assert_int_equal(axis.count, 7);
    assert_memory_equal(axis.start, COLUMNS, sizeof COLUMNS);
    assert_memory_equal(axis.overlap, COLUMN_OVERLAPS, sizeof COLUMN_OVERLAPS);
    const h3_video_axis small = h3_video_axis_shrink(&axis, 16);
    assert_int_equal(small.size, 84);
    assert_int_equal(small.tile, 16);
    assert_int_equal(small.overlap[0], 5);
    assert_int_equal(small.start[6], 68);
    assert_good(h3_video_axis_plan(&axis, 256, 256, 64, 16));
    assert_int_equal(axis.count, 1);
    assert_good(h3_video_axis_plan(&axis, 48, 256, 64, 16));
    assert_int_equal(axis.tile, 48);
    for (int64_t size = 16; size < 5000; size += 16) { /* every axis is covered, and its last tile ends with it */
        assert_good(h3_video_axis_plan(&axis, size, 256, 64, 16));
        assert_int_equal(axis.start[axis.count - 1] + axis.tile, size);
        for (int32_t i = 0; i + 1 < axis.count; i++) assert_true(axis.overlap[i] >= 64 && axis.start[i] + axis.tile - axis.overlap[i] == axis.start[i + 1]);
    }
    assert_fails(h3_video_axis_plan(&axis, 770, 256, 64, 16), H3_USAGE, "multiple of 16");
    assert_fails(h3_video_axis_plan(&axis, 16 * 4000, 32, 16, 16), H3_USAGE, "use larger tiles");
}

/* The weights of an overlap: the first place is all the first, and half precision rounds p / E. */
static void blend_weights(void **state)
{
    static const int64_t EXTENTS[] = {5, 64, 80, 96, 112};
    (void)state;
    for (size_t i = 0; i < sizeof EXTENTS / sizeof *EXTENTS; i++)
        for (int64_t p = 0; p < EXTENTS[i]; p++) {
            const double exact = (double)p / (double)EXTENTS[i];
            assert_true(fabs((double)h3_video_blend_weight(p, EXTENTS[i], 0) - exact) <= 0x1p-23);
            assert_true(h3_video_blend_weight(p, EXTENTS[i], 1) == h3_round_f16((float)exact));
        }
}

/* --- hostile configurations ------------------------------------------------------------------------------------------ */

static void assert_refused(const char *from, const char *to, const char *word)
{
    h3_video_config config;
    const char *at = strstr(RELEASED, from);
    char *text;
    assert_non_null(at);
    assert_good(h3_format(&text, "%.*s%s%s", (int)(at - RELEASED), RELEASED, to, at + strlen(from)));
    assert_fails(h3_video_config_parse(&config, text, strlen(text), "config.json"), H3_INTEGRITY, word);
    assert_int_equal(config.latent_channels, 0);
    free(text);
}

static void hostile_configurations(void **state)
{
    (void)state;
    h3_video_config config;
    assert_refused("\"in_channels\":3", "\"in_channels\":4", "in_channels");
    assert_refused("\"in_channels\":3,", "", "\"in_channels\" is missing");
    assert_refused("\"layers_per_block\":2", "\"layers_per_block\":0", "layers_per_block");
    assert_refused("\"layers_per_block\":2", "\"layers_per_block\":2.5", "layers_per_block");
    assert_refused("\"layers_per_block\":2", "\"layers_per_block\":2,\"shortcut\":1", "unknown field \"shortcut\"");
    assert_refused("[128,256,256,512,512,1024]", "[]", "empty");
    assert_refused("[128,256,256,512,512,1024]", "[128,256]", "one length");
    assert_refused("[128,256,256,512,512,1024]", "[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]", "more than 16 levels");
    assert_refused("[128,256,256,512,512,1024]", "[128,256,256,512,512,1000]", "norm_num_groups");
    assert_refused("[128,256,256,512,512,1024]", "[128,256,256,512,512,1e99]", "block_out_channels");
    assert_refused("[1,2,2,1,1,1]", "[1,2,2,1,2,1]", "halves time");
    assert_refused("[2,2,2,2,1,1]", "[2,2,2,3,1,1]", "spatial_downsample_factors");
    assert_refused("\"reflect\"", "\"zeros\"", "\"zeros\"");
    assert_refused("\"decoder_rope_dim_ratio\":0.75", "\"decoder_rope_dim_ratio\":0.5", "rotates 0.75");
    assert_refused("\"decoder_attention_head_dim\":64", "\"decoder_attention_head_dim\":4", "head_dim");
    assert_refused("\"decoder_num_attention_heads\":32", "\"decoder_num_attention_heads\":1025", "heads");
    assert_refused("\"norm_eps\":1e-06", "\"norm_eps\":-1", "norm_eps");
    assert_refused("\"token_drop\":3", "\"token_drop\":5", "do not overlap");
    assert_refused("\"clip_length\":17", "\"clip_length\":4", "do not overlap");
    assert_refused("\"latents_std\":[1,", "\"latents_std\":[0,", "latents_std");
    assert_refused("\"latents_std\":[1,", "\"latents_std\":[", "23 values");
    assert_refused("\"latents_mean\":[0,", "\"latents_mean\":[\"x\",", "latents_mean");
    assert_fails(h3_video_config_parse(&config, "[]", 2, "config.json"), H3_INTEGRITY, "JSON object");
    assert_fails(h3_video_config_parse(&config, "", 0, "config.json"), H3_INTEGRITY, "config.json");
}

/* --- hostile checkpoints --------------------------------------------------------------------------------------------- */

static void put_golden_config(void)
{
    char *text;
    size_t size;
    assert_good(h3_file_read(&text, &size, golden_path("video-vae/config.json"), 1 << 20, H3_INTEGRITY));
    put("config.json", text, size);
    free(text);
}

/* `count` entries of the golden checkpoint from `first` on, after `change`, as file `name`. */
typedef void (*change_entries)(h3_safetensors_entry *entries, size_t count);
static void put_weights(const char *name, size_t first, size_t count, change_entries change)
{
    h3_safetensors file = golden_tensors("video-vae/diffusion_pytorch_model.safetensors");
    char *image;
    size_t size;
    h3_safetensors_entry *entries = malloc(file.count * sizeof *entries);
    if (count == 0) count = file.count - first;
    memcpy(entries, file.entries + first, count * sizeof *entries);
    if (change != NULL) change(entries, count);
    assert_good(h3_safetensors_build(&image, &size, entries, count, NULL));
    put(name, image, size);
    free(image);
    free(entries);
    h3_safetensors_close(&file);
}

#define WHOLE "diffusion_pytorch_model.safetensors"
static void renamed(h3_safetensors_entry *e, size_t count) { (void)count, e[3].name = (char *)(uintptr_t)"decoder.proj_in.wait"; }
static void transposed(h3_safetensors_entry *e, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(e[i].name, "decoder.proj_in.weight") == 0) e[i].tensor = h3_tensor_view(e[i].tensor.data, H3_F32, 2, H3_SHAPE(4, 32));
}
static void halved(h3_safetensors_entry *e, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(e[i].name, "decoder.proj_in.weight") == 0) e[i].tensor = h3_tensor_view(e[i].tensor.data, H3_F16, 2, H3_SHAPE(32, 4));
}

static void hostile_checkpoints(void **state)
{
    (void)state;
    h3_video_weights weights;
    assert_fails(h3_video_weights_open(&weights, folder), H3_INTEGRITY, "config.json");
    put_golden_config();
    assert_fails(h3_video_weights_open(&weights, folder), H3_INTEGRITY, "holds neither");
    put(WHOLE, "", 0);
    assert_fails(h3_video_weights_open(&weights, folder), H3_INTEGRITY, WHOLE);
    put_weights(WHOLE, 1, 0, NULL);
    assert_fails(h3_video_weights_open(&weights, folder), H3_INTEGRITY, "missing tensor decoder.norm_out.bias");
    put_weights(WHOLE, 0, 0, renamed);
    assert_fails(h3_video_weights_open(&weights, folder), H3_INTEGRITY, "missing tensor");
    put_weights(WHOLE, 0, 0, transposed);
    assert_fails(h3_video_weights_open(&weights, folder), H3_INTEGRITY, "decoder.proj_in.weight has the wrong shape");
    put_weights(WHOLE, 0, 0, halved);
    assert_fails(h3_video_weights_open(&weights, folder), H3_INTEGRITY, "decoder.proj_in.weight is not stored as F32");
    put_weights(WHOLE, 0, 0, NULL);
    put(WHOLE ".index.json", "{}", 2);
    assert_fails(h3_video_weights_open(&weights, folder), H3_INTEGRITY, "remove one");
    assert_null(weights.source);
}

/* In shards, as the released one; and what an index may not say. */
static void sharded_checkpoints(void **state)
{
    (void)state;
    h3_video_weights weights, whole = video_weights();
    h3_tensor a, b;
    put_golden_config();
    put_weights("a.safetensors", 0, 40, NULL);
    put_weights("b.safetensors", 40, 0, NULL);
    const char *index = "{\"metadata\":{},\"weight_map\":{\"x\":\"a.safetensors\",\"y\":\"b.safetensors\",\"z\":\"a.safetensors\"}}";
    put(WHOLE ".index.json", index, strlen(index));
    assert_good(h3_video_weights_open(&weights, folder));
    assert_good(h3_parameters_read(&a, weights.source, "quant_conv.weight"));
    assert_good(h3_parameters_read(&b, whole.source, "quant_conv.weight"));
    assert_memory_equal(a.data, b.data, h3_tensor_bytes(&a));
    h3_tensor_free(&a);
    h3_tensor_free(&b);
    h3_video_weights_close(&weights);
    h3_video_weights_close(&whole);
    put_weights("b.safetensors", 39, 0, NULL);
    assert_fails(h3_video_weights_open(&weights, folder), H3_INTEGRITY, "stored 2 times");
    index = "{\"weight_map\":{\"x\":\"../a.safetensors\"}}";
    put(WHOLE ".index.json", index, strlen(index));
    assert_fails(h3_video_weights_open(&weights, folder), H3_INTEGRITY, "no plain file name");
    index = "{\"weight_map\":{\"x\":7}}";
    put(WHOLE ".index.json", index, strlen(index));
    assert_fails(h3_video_weights_open(&weights, folder), H3_INTEGRITY, "must be a string");
    index = "{\"weight_map\":{\"x\":\"c.safetensors\"}}";
    put(WHOLE ".index.json", index, strlen(index));
    assert_fails(h3_video_weights_open(&weights, folder), H3_INTEGRITY, "c.safetensors");
}

/* Hashes of what was read; a hub cache's links are followed, one to nowhere is not. */
static void identities_and_links(void **state)
{
    (void)state;
    h3_video_weights weights;
    cJSON *identity;
    char target[2 * H3_PATH_MAX], link[2 * H3_PATH_MAX], sha256[H3_SHA256_HEX];
    int64_t size;
    put_golden_config();
    put_weights("blob", 0, 0, NULL);
    snprintf(target, sizeof target, "%s/blob", folder);
    snprintf(link, sizeof link, "%s/" WHOLE, folder);
    assert_int_equal(symlink("blob", link), 0);
    assert_good(h3_video_weights_open(&weights, folder));
    assert_good(h3_parameters_identity(&identity, weights.source, NULL));
    assert_good(h3_sha256_file(sha256, target, &size, H3_INTEGRITY));
    const cJSON *shard = cJSON_GetArrayItem(json_get(identity, "shards"), 0);
    assert_string_equal(json_text(identity, "kind"), "folder");
    assert_true(cJSON_IsNull(json_get(identity, "index_sha256")));
    assert_string_equal(json_text(shard, "path"), WHOLE);
    assert_string_equal(json_text(shard, "sha256"), sha256);
    assert_int_equal(json_int(shard, "size"), size);
    cJSON_Delete(identity);
    h3_video_config config = weights.config;
    h3_video_weights_close(&weights);
    assert_int_equal(unlink(target), 0);
    assert_fails(h3_video_weights_open(&weights, folder), H3_INTEGRITY, "holds neither");
    assert_good(h3_video_weights_synthetic(&weights, &config, 7));
    assert_good(h3_parameters_identity(&identity, weights.source, NULL));
    assert_string_equal(json_text(identity, "kind"), "synthetic");
    assert_string_equal(json_text(identity, "prefix"), "video-vae");
    assert_int_equal(json_int(identity, "seed"), 7);
    cJSON_Delete(identity);
    h3_video_weights_close(&weights);
}

static void additional(h3_safetensors_entry *e, size_t count)
{
    (void)count;
    e[0].name = (char *)(uintptr_t)"decoder.mask_token";
}

/* All that the model has, and one more. */
static void additional_tensor(void **state)
{
    (void)state;
    h3_video_weights weights;
    put_golden_config();
    put_weights("a.safetensors", 0, 0, NULL);
    put_weights("b.safetensors", 0, 1, additional);
    const char *index = "{\"weight_map\":{\"x\":\"a.safetensors\",\"y\":\"b.safetensors\"}}";
    put(WHOLE ".index.json", index, strlen(index));
    assert_fails(h3_video_weights_open(&weights, folder), H3_INTEGRITY, "additional tensor decoder.mask_token");
}

/* --- a decoder without blocks ---------------------------------------------------------------------------------------- */

static float zeros[65536];

static void no_branches(h3_safetensors_entry *e, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strstr(e[i].name, ".scale") != NULL) e[i].tensor.data = zeros;
}

static h3_tensor parameter(const h3_video_weights *weights, const char *name)
{
    h3_tensor tensor;
    assert_good(h3_parameters_read(&tensor, weights->source, name));
    return tensor;
}

/* y = W x + b in double. */
static void affine(double *y, const double *x, const h3_video_weights *weights, const char *name, int rows, int columns)
{
    char key[80];
    snprintf(key, sizeof key, "%s.weight", name);
    h3_tensor w = parameter(weights, key), b;
    snprintf(key, sizeof key, "%s.bias", name);
    b = parameter(weights, key);
    for (int r = 0; r < rows; r++) {
        y[r] = (double)((float *)b.data)[r];
        for (int c = 0; c < columns; c++) y[r] += (double)((float *)w.data)[r * columns + c] * x[c];
    }
    h3_tensor_free(&w);
    h3_tensor_free(&b);
}

/* With all block scales 0 a token is proj_out(LayerNorm(proj_in(post_quant(z)))): who becomes which pixel, computed by hand. */
static void blocks_switched_off(void **state)
{
    enum { C = 4, W = 32, V = 192, T = 7, Y = 3, X = 2 };
    (void)state;
    h3_video_weights weights;
    h3_video_decoder *decoder;
    h3_tensor z, video;
    put_golden_config();
    put_weights(WHOLE, 0, 0, no_branches);
    assert_good(h3_video_weights_open(&weights, folder));
    assert_good(h3_video_decoder_open(&decoder, &weights, h3_device_cpu(), h3_video_ops_cpu(), H3_F32, &H3_VIDEO_TILING, 0));
    assert_good(h3_tensor_new(&z, H3_F32, 4, H3_SHAPE(C, T, Y, X)));
    for (int i = 0; i < C * T * Y * X; i++) ((float *)z.data)[i] = (float)(i * 37 % 101) / 50.0f - 1.0f;
    assert_good(h3_video_decode(&video, decoder, &z));
    h3_tensor norm = parameter(&weights, "decoder.norm_out.weight"), bias = parameter(&weights, "decoder.norm_out.bias");
    for (int token = 0; token < T * Y * X; token++) {
        double latent[C], mixed[C], wide[W], values[V], mean = 0, variance = 0;
        for (int c = 0; c < C; c++) latent[c] = (double)((float *)z.data)[c * T * Y * X + token];
        affine(mixed, latent, &weights, "post_quant_conv", C, C);
        affine(wide, mixed, &weights, "decoder.proj_in", W, C);
        for (int i = 0; i < W; i++) mean += wide[i] / W;
        for (int i = 0; i < W; i++) variance += (wide[i] - mean) * (wide[i] - mean) / W;
        for (int i = 0; i < W; i++) wide[i] = (wide[i] - mean) / sqrt(variance + 1e-5) * (double)((float *)norm.data)[i] + (double)((float *)bias.data)[i];
        affine(values, wide, &weights, "decoder.proj_out", V, W);
        for (int i = 0; i < V; i++) { /* ((c * 4 + pt) * 4 + ph) * 4 + pw */
            const int c = i / 64, frame = token / (Y * X) * 4 + i / 16 % 4, y = token / X % Y * 4 + i / 4 % 4, x = token % X * 4 + i % 4;
            const int shown = frame >= 3 && frame < 20 ? frame - 3 : frame >= 23 ? frame - 6 : -1;
            if (shown < 0) continue;
            const double got = (double)((float *)video.data)[((shown * 3 + c) * 4 * Y + y) * 4 * X + x];
            assert_true(fabs(got - values[i]) <= 1e-5 * (1 + fabs(values[i])));
        }
    }
    assert_int_equal(video.shape[0], 22);
    h3_tensor_free(&norm);
    h3_tensor_free(&bias);
    h3_tensor_free(&z);
    h3_tensor_free(&video);
    h3_video_decoder_close(decoder);
    h3_video_weights_close(&weights);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(released_sizes), cmocka_unit_test(synthetic_weights_are_the_goldens), cmocka_unit_test(clips), cmocka_unit_test(tiles),
        cmocka_unit_test(blend_weights), cmocka_unit_test(hostile_configurations), cmocka_unit_test_setup_teardown(hostile_checkpoints, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(sharded_checkpoints, make_folder, remove_folder), cmocka_unit_test_setup_teardown(additional_tensor, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(identities_and_links, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(blocks_switched_off, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
