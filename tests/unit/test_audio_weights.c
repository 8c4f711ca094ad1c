/* Configuration and parameters of the audio decoder: what is read, and that nothing wrong passes. */
#include "golden_files.h"

#include <math.h>
#include <sys/stat.h>

#include "media/audio_weights.h"

/* --- configuration --- */

static h3_status parse_changed(h3_audio_config *out, const char *key, const char *value)
{
    char *text, *changed;
    size_t size;
    cJSON *object;
    assert_good(h3_file_read(&text, &size, golden_path("audio-vae/config.json"), 1 << 20, H3_INTEGRITY));
    assert_good(h3_json_parse(&object, text, size, "golden", H3_INTEGRITY));
    free(text);
    cJSON_DeleteItemFromObjectCaseSensitive(object, key);
    if (value != NULL) assert_true(cJSON_AddRawToObject(object, key, value) != NULL);
    changed = cJSON_PrintUnformatted(object);
    cJSON_Delete(object);
    h3_status status = h3_audio_config_parse(out, changed, strlen(changed), "config");
    free(changed);
    return status;
}

static void configuration_is_read(void **state)
{
    h3_audio_config config;
    (void)state;
    assert_good(h3_audio_config_read(&config, NULL, golden_path("audio-vae/config.json")));
    assert_int_equal(config.latent_channels, 8);
    assert_int_equal(config.latent_dim, 32);
    assert_int_equal(config.decoder_dim, 16);
    assert_int_equal(config.sampling_rate, 32000);
    assert_int_equal(config.stages, 2);
    assert_int_equal(config.rates[1], 2);
    assert_int_equal(config.kernels[1], 4);
    assert_int_equal(config.branches, 2);
    assert_int_equal(config.branch_kernels[1], 7);
    assert_int_equal(config.dilation_count[1], 2);
    assert_int_equal(config.dilations[1][1], 3);
    assert_true(config.latents_mean[7] == 0.1f && config.latents_std[7] == 1.5f);
    assert_int_equal(h3_audio_hop(&config), 4);
    assert_int_equal(h3_audio_stage_channels(&config, 0), 8);
    assert_int_equal(h3_audio_stage_channels(&config, 1), 4);
    assert_good(parse_changed(&config, "_anything", "[1]"));
}

static void hostile_configurations(void **state)
{
    static const struct { const char *key, *value, *word; } CASES[] = {
        {"latent_dim", NULL, "latent_dim"},
        {"latent_dim", "0", "latent_dim"},
        {"latent_dim", "-32", "latent_dim"},
        {"latent_dim", "32.5", "latent_dim"},
        {"latent_dim", "1e9", "latent_dim"},
        {"latent_dim", "\"32\"", "latent_dim"},
        {"latent_channels", "257", "latent_channels"},
        {"latent_channels", "9", "latents_mean"},
        {"decoder_dim", "18", "cannot be halved"},
        {"decoder_dim", "null", "decoder_dim"},
        {"decoder_rates", "[]", "decoder_rates"},
        {"decoder_rates", "[2]", "2 decoder_kernel_sizes for 1"},
        {"decoder_rates", "[2,0]", "decoder_rates"},
        {"decoder_rates", "[2,3]", "even and not negative"},
        {"decoder_rates", "[2,6]", "even and not negative"},
        {"decoder_rates", "{\"a\":2}", "decoder_rates"},
        {"decoder_rates", "[2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2]", "1 to 16"},
        {"decoder_kernel_sizes", "[4,[4]]", "decoder_kernel_sizes"},
        {"decoder_kernel_sizes", "[4,99999999999]", "decoder_kernel_sizes"},
        {"resblock_kernel_sizes", "[3,8]", "even"},
        {"resblock_kernel_sizes", "[3,7,11]", "2 lists for 3"},
        {"resblock_kernel_sizes", "[3,3,3,3,3,3,3,3,3]", "1 to 8"},
        {"resblock_dilation_sizes", "[[1,3]]", "1 lists for 2"},
        {"resblock_dilation_sizes", "[[1,3],[]]", "resblock_dilation_sizes"},
        {"resblock_dilation_sizes", "[[1,3],3]", "resblock_dilation_sizes"},
        {"resblock_dilation_sizes", "[[1,3],[1,0]]", "resblock_dilation_sizes"},
        {"sampling_rate", "0", "sampling_rate"},
        {"encoder_rates", "7", "encoder_rates"},
        {"encoder_dim", "true", "encoder_dim"},
        {"latents_mean", "[0,0,0,0,0,0,0]", "latents_mean"},
        {"latents_mean", "[0,0,0,0,0,0,0,\"0\"]", "numbers only"},
        {"latents_mean", "[0,0,0,0,0,0,0,1e39]", "beyond float32"},
        {"latents_std", "[1,1,1,1,1,1,1,0]", "not above 0"},
        {"latents_std", "[1,1,1,1,1,1,1,-1]", "not above 0"},
        {"latents_std", "[1,1,1,1,1,1,1,1e-60]", "not above 0"},
        {"extra", "1", "unknown field"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        h3_audio_config config;
        h3_status status = parse_changed(&config, CASES[i].key, CASES[i].value);
        if (status != H3_INTEGRITY || strstr(h3_error_text(), CASES[i].word) == NULL)
            fail_msg("%s = %s: status %d, \"%s\"", CASES[i].key, CASES[i].value, status, h3_error_text());
        assert_int_equal(config.stages, 0);
    }
    static const char *const TEXTS[] = {"", "[]", "7", "{", "{}", "null", "{\"latent_dim\":1,\"latent_dim\":1}"};
    for (size_t i = 0; i < sizeof TEXTS / sizeof *TEXTS; i++) {
        h3_audio_config config;
        assert_int_equal(h3_audio_config_parse(&config, TEXTS[i], strlen(TEXTS[i]), "text"), H3_INTEGRITY);
    }
}

static void released_constants(void **state)
{
    h3_audio_config config;
    cJSON *file;
    float design[12];
    (void)state;
    h3_audio_config_released(&config);
    assert_good(h3_json_read(&file, golden_path("vae-constants.json"), H3_INTEGRITY));
    const cJSON *audio = cJSON_GetObjectItemCaseSensitive(file, "audio"), *item;
    int c = 0;
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(audio, "latents_mean")) assert_true(config.latents_mean[c++] == (float)item->valuedouble);
    assert_int_equal(c, 32);
    c = 0;
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(audio, "latents_std")) assert_true(config.latents_std[c++] == (float)item->valuedouble);
    assert_int_equal(c, config.latent_channels);
    assert_int_equal(h3_audio_hop(&config), cJSON_GetObjectItemCaseSensitive(audio, "hop")->valueint);
    assert_int_equal(config.sampling_rate, cJSON_GetObjectItemCaseSensitive(audio, "sampling_rate")->valueint);
    h3_audio_filter_design(design);
    c = 0;
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(audio, "kaiser_filter12")) assert_true(fabs((double)design[c++] - item->valuedouble) < 1e-8);
    assert_int_equal(c, 12);
    cJSON_Delete(file);
}

/* --- latents --- */

static void rows_become_latents(void **state)
{
    h3_audio_config config;
    h3_tensor z;
    float data[2 * 3 * 32];
    (void)state;
    h3_audio_config_released(&config);
    for (int i = 0; i < 192; i++) data[i] = (float)i * 0.01f - 1.0f;
    h3_tensor rows = h3_tensor_view(data, H3_F32, 2, H3_SHAPE(6, 32));
    assert_good(h3_audio_denormalise(&z, &config, &rows, 2));
    assert_true(z.rank == 3 && z.shape[0] == 2 && z.shape[1] == 32 && z.shape[2] == 3);
    for (int channel = 0; channel < 2; channel++)
        for (int c = 0; c < 32; c++)
            for (int l = 0; l < 3; l++) {
                volatile float scaled = data[(channel * 3 + l) * 32 + c] * config.latents_std[c];
                assert_true(((float *)z.data)[(channel * 32 + c) * 3 + l] == scaled + config.latents_mean[c]);
            }
    h3_tensor_free(&z);
    const h3_tensor bad[] = {{0}, h3_tensor_view(data, H3_F32, 2, H3_SHAPE(5, 32)), h3_tensor_view(data, H3_F32, 2, H3_SHAPE(6, 16)), h3_tensor_view(data, H3_F32, 2, H3_SHAPE(0, 32)),
                             h3_tensor_view(data, H3_BF16, 2, H3_SHAPE(6, 32)), h3_tensor_view(data, H3_F32, 3, H3_SHAPE(6, 32, 1))};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_int_equal(h3_audio_denormalise(&z, &config, &bad[i], 2), H3_INTEGRITY);
    assert_int_equal(h3_audio_denormalise(&z, &config, &rows, 0), H3_INTEGRITY);
    data[40] = NAN;
    assert_int_equal(h3_audio_denormalise(&z, &config, &rows, 2), H3_FAILED);
    assert_non_null(strstr(h3_error_text(), "row 1, channel 8"));
    assert_null(z.data);
}

/* --- parameters --- */

static void inventory_is_the_released_one(void **state)
{
    h3_audio_config config;
    h3_audio_weights weights;
    (void)state;
    h3_audio_config_released(&config);
    assert_good(h3_audio_weights_synthetic(&weights, &config, 0));
    assert_int_equal(h3_parameters_listed(weights.source)->count, 914);
    assert_int_equal(h3_parameters_count(weights.source), 64939353);
    h3_audio_weights_free(&weights);
}

static void synthetic_weights_are_the_goldens(void **state)
{
    h3_audio_weights stored, made;
    (void)state;
    assert_good(h3_audio_weights_open(&stored, golden_path("audio-vae")));
    assert_good(h3_audio_weights_synthetic(&made, &stored.config, 0));
    const h3_parameter_list *list = h3_parameters_listed(stored.source);
    assert_int_equal(list->count, 129);
    for (size_t i = 0; i < list->count; i++) {
        h3_tensor a, b;
        assert_good(h3_audio_weights_read(&a, &stored, "", list->items[i].name));
        assert_good(h3_audio_weights_read(&b, &made, "", list->items[i].name));
        assert_int_equal(h3_tensor_bytes(&a), h3_tensor_bytes(&b));
        if (memcmp(a.data, b.data, h3_tensor_bytes(&a)) != 0) fail_msg("%s differs", list->items[i].name);
        h3_tensor_free(&a);
        h3_tensor_free(&b);
    }
    h3_audio_weights_free(&made);
    assert_good(h3_audio_weights_synthetic(&made, &stored.config, 1)); /* another seed is another model */
    h3_tensor a, b;
    assert_good(h3_audio_weights_read(&a, &stored, "dec_in_proj.", "weight"));
    assert_good(h3_audio_weights_read(&b, &made, "dec_in_proj.", "weight"));
    assert_memory_not_equal(a.data, b.data, h3_tensor_bytes(&a));
    h3_tensor_free(&a);
    assert_int_equal(h3_audio_weights_read(&a, &made, "dec_in_proj.", "weights"), H3_USAGE);
    assert_int_equal(h3_audio_weights_read(&a, &made, "encoder.block.0.", "bias"), H3_USAGE);
    h3_tensor_free(&b);
    h3_audio_weights_free(&made);
    h3_audio_weights_free(&stored);
}

static const char *text_of(const cJSON *object, const char *key)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, key));
    assert_non_null(text);
    return text;
}

/* All 64 bits of it. */
static void assert_seed(const cJSON *identity, const char *digits)
{
    char *text;
    assert_good(h3_json_print(&text, cJSON_GetObjectItemCaseSensitive(identity, "seed")));
    assert_memory_equal(text, digits, strlen(digits));
    free(text);
}

static void identities(void **state)
{
    h3_audio_weights weights, other;
    h3_audio_config released;
    cJSON *a, *b;
    char hash[H3_SHA256_HEX], *text;
    int64_t size;
    (void)state;
    assert_good(h3_audio_weights_open(&weights, golden_path("audio-vae")));
    assert_good(h3_audio_weights_identity(&a, &weights));
    assert_string_equal(text_of(a, "kind"), "file");
    assert_good(h3_sha256_file(hash, golden_path("audio-vae/diffusion_pytorch_model.safetensors"), &size, H3_INTEGRITY));
    assert_string_equal(text_of(a, "sha256"), hash);
    assert_true(cJSON_GetObjectItemCaseSensitive(a, "size")->valuedouble == (double)size);
    assert_good(h3_sha256_file(hash, golden_path("audio-vae/config.json"), &size, H3_INTEGRITY));
    assert_string_equal(text_of(a, "config_sha256"), hash);
    cJSON_Delete(a);
    assert_good(h3_audio_config_canonical(&weights.config, &text));
    assert_string_equal(text, "{\"decoder_dim\":16,\"decoder_kernel_sizes\":[4,4],\"decoder_rates\":[2,2],\"latent_channels\":8,\"latent_dim\":32,"
                              "\"latents_mean\":[0.100000001,0.100000001,0.100000001,0.100000001,0.100000001,0.100000001,0.100000001,0.100000001],"
                              "\"latents_std\":[1.5,1.5,1.5,1.5,1.5,1.5,1.5,1.5],\"resblock_dilation_sizes\":[[1,3],[1,3]],\"resblock_kernel_sizes\":[3,7],"
                              "\"sampling_rate\":32000}");
    free(text);
    /* synthetic: the seed and every part of the configuration change the hash */
    assert_good(h3_audio_weights_synthetic(&other, &weights.config, 3));
    assert_good(h3_audio_weights_identity(&a, &other));
    assert_string_equal(text_of(a, "kind"), "synthetic");
    assert_string_equal(text_of(a, "sha256"), "b6dcecae90ac02e53586e3f013c8aaa4733dce00c5ed23bbac9cdccc81f26a1c");
    assert_seed(a, "3");
    snprintf(hash, sizeof hash, "%s", text_of(a, "sha256"));
    cJSON_Delete(a);
    h3_audio_config_released(&released);
    for (int i = 0; i < 4; i++) {
        h3_audio_config config = weights.config;
        h3_audio_weights changed;
        if (i == 1) config.dilations[1][1]++;
        if (i == 2) config.latents_std[7] += 0x1p-22f;
        if (i == 3) config = released;
        assert_good(h3_audio_weights_synthetic(&changed, &config, i == 0 ? UINT64_MAX : 3));
        assert_good(h3_audio_weights_identity(&b, &changed));
        assert_string_not_equal(text_of(b, "sha256"), hash);
        if (i == 0) assert_seed(b, "18446744073709551615");
        cJSON_Delete(b);
        h3_audio_weights_free(&changed);
    }
    h3_audio_weights_free(&other);
    h3_audio_weights_free(&weights);
}

static void normalisation_is_folded(void **state)
{
    h3_audio_weights weights;
    h3_tensor w, v, g;
    (void)state;
    assert_good(h3_audio_weights_open(&weights, golden_path("audio-vae")));
    assert_good(h3_audio_weights_folded(&w, &weights, "decoder.ups.0.0."));
    assert_good(h3_audio_weights_read(&v, &weights, "decoder.ups.0.0.", "weight_v"));
    assert_good(h3_audio_weights_read(&g, &weights, "decoder.ups.0.0.", "weight_g"));
    for (int64_t a = 0; a < 16; a++) { /* dimension 0 is the input channel here: 16 slices of 8 x 4 */
        double norm = 0, along = 0;
        for (int64_t i = 0; i < 32; i++) {
            double x = (double)((float *)w.data)[a * 32 + i];
            norm += x * x;
            along += x * (double)((float *)v.data)[a * 32 + i];
        }
        double gain = (double)((float *)g.data)[a];
        assert_true(fabs(sqrt(norm) - fabs(gain)) <= 1e-6 * fabs(gain));
        assert_true(along * gain > 0);
    }
    h3_tensor *all[] = {&w, &v, &g};
    for (int i = 0; i < 3; i++) h3_tensor_free(all[i]);
    h3_audio_weights_free(&weights);
}

/* Opens the golden's file after `change` was done to its tensors. */
typedef void change(h3_safetensors_entry *entries, size_t *count);

static h3_status open_changed(h3_audio_weights *out, change *how)
{
    static char path[H3_PATH_MAX];
    h3_audio_config config;
    h3_safetensors file, changed;
    h3_safetensors_entry entries[300];
    char *image;
    size_t size, count;
    assert_good(h3_audio_config_read(&config, NULL, golden_path("audio-vae/config.json")));
    snprintf(path, sizeof path, "%s", golden_path("audio-vae/diffusion_pytorch_model.safetensors"));
    assert_good(h3_safetensors_open(&file, path));
    count = file.count;
    for (size_t i = 0; i < count; i++) {
        entries[i].name = file.entries[i].name;
        assert_good(h3_tensor_convert(&entries[i].tensor, &file.entries[i].tensor, H3_F32));
    }
    h3_safetensors_entry whole[300];
    size_t all = count;
    memcpy(whole, entries, sizeof entries);
    how(entries, &count);
    assert_good(h3_safetensors_build(&image, &size, entries, count, NULL));
    assert_good(h3_safetensors_parse(&changed, (unsigned char *)image, size, "changed"));
    h3_status status = h3_audio_weights_take(out, &config, &changed);
    if (status == H3_OK) { /* what opens must also be good to read */
        const h3_parameter_list *list = h3_parameters_listed(out->source);
        for (size_t i = 0; i < list->count && status == H3_OK; i++) {
            const char *name = list->items[i].name;
            char prefix[96];
            h3_tensor t;
            snprintf(prefix, sizeof prefix, "%.*s", (int)(strlen(name) - 8), name);
            status = strstr(name, "weight_v") != NULL ? h3_audio_weights_folded(&t, out, prefix) : h3_audio_weights_read(&t, out, "", name);
            h3_tensor_free(&t);
        }
        h3_audio_weights_free(out);
    }
    assert_null(out->source);
    for (size_t i = 0; i < all; i++) h3_tensor_free(&whole[i].tensor);
    h3_safetensors_close(&file);
    free(image);
    return status;
}

static h3_safetensors_entry *named(h3_safetensors_entry *entries, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(entries[i].name, name) == 0) return &entries[i];
    fail_msg("no %s", name);
    return NULL;
}

#define VALUES(name) ((float *)named(e, *n, name)->tensor.data)
static void unchanged(h3_safetensors_entry *e, size_t *n) { assert_true(*n == 218 && e != NULL); }
static void without_one(h3_safetensors_entry *e, size_t *n) { *named(e, *n, "decoder.ups.1.0.bias") = e[*n - 1], (*n)--; }
static void with_unknown(h3_safetensors_entry *e, size_t *n) { named(e, *n, "encoder.block.0.bias")->name = (char *)(uintptr_t) "decoder.more.bias"; }
static void with_foreign(h3_safetensors_entry *e, size_t *n) { named(e, *n, "encoder.block.0.bias")->name = (char *)(uintptr_t) "something.bias"; }
static void other_shape(h3_safetensors_entry *e, size_t *n) { named(e, *n, "decoder.ups.0.0.weight_v")->tensor = h3_tensor_view(VALUES("decoder.ups.0.0.weight_v"), H3_F32, 3, H3_SHAPE(8, 16, 4)); }
static void other_rank(h3_safetensors_entry *e, size_t *n) { named(e, *n, "decoder.conv_pre.bias")->tensor = h3_tensor_view(VALUES("decoder.conv_pre.bias"), H3_F32, 2, H3_SHAPE(16, 1)); }
static void in_bf16(h3_safetensors_entry *e, size_t *n) { named(e, *n, "decoder.conv_pre.bias")->tensor = h3_tensor_view(VALUES("decoder.conv_pre.bias"), H3_BF16, 1, H3_SHAPE(16)); }
static void with_nan(h3_safetensors_entry *e, size_t *n) { VALUES("decoder.resblocks.3.convs2.0.bias")[3] = NAN; }
static void with_infinity(h3_safetensors_entry *e, size_t *n) { VALUES("dec_in_proj.weight")[7] = -INFINITY; }
static void zero_slice(h3_safetensors_entry *e, size_t *n) { memset(VALUES("decoder.conv_pre.weight_v") + 5 * 32 * 7, 0, 32 * 7 * sizeof(float)); }
static void one_filter(h3_safetensors_entry *e, size_t *n) { VALUES("decoder.resblocks.2.activations.1.upsample.filter")[5] += 0x1p-24f; }
static void all_filters(h3_safetensors_entry *e, size_t *n)
{
    for (size_t i = 0; i < *n; i++)
        if (strstr(e[i].name, ".filter") != NULL) ((float *)e[i].tensor.data)[5] += 2e-6f;
}
static void nan_filters(h3_safetensors_entry *e, size_t *n)
{
    for (size_t i = 0; i < *n; i++)
        if (strstr(e[i].name, ".filter") != NULL) ((float *)e[i].tensor.data)[5] = NAN;
}

static void hostile_weights(void **state)
{
    static const struct { change *how; const char *word; } CASES[] = {
        {without_one, "missing tensor decoder.ups.1.0.bias"}, {with_unknown, "additional tensor decoder.more.bias"}, {with_foreign, "additional tensor something.bias"},
        {other_shape, "decoder.ups.0.0.weight_v has the wrong shape"}, {other_rank, "decoder.conv_pre.bias has the wrong shape"}, {in_bf16, "not stored as F32"},
        {with_nan, "element 3 of decoder.resblocks.3.convs2.0.bias"}, {with_infinity, "element 7 of dec_in_proj.weight"}, {zero_slice, "slice 5 of decoder.conv_pre."},
        {one_filter, "decoder.resblocks.2.activations.1.upsample.filter differs"}, {all_filters, "tap 5"}, {nan_filters, "tap 5"},
    };
    h3_audio_weights weights;
    (void)state;
    assert_good(open_changed(&weights, unchanged));
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        h3_status status = open_changed(&weights, CASES[i].how);
        if (status != H3_INTEGRITY || strstr(h3_error_text(), CASES[i].word) == NULL) fail_msg("case %zu: status %d, \"%s\"", i, status, h3_error_text());
    }
    assert_int_equal(h3_audio_weights_open(&weights, "/nowhere"), H3_INTEGRITY);
    assert_int_equal(h3_audio_weights_open(&weights, golden_path("nano/transformer")), H3_INTEGRITY);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(configuration_is_read), cmocka_unit_test(hostile_configurations), cmocka_unit_test(released_constants),
        cmocka_unit_test(rows_become_latents), cmocka_unit_test(inventory_is_the_released_one), cmocka_unit_test(synthetic_weights_are_the_goldens),
        cmocka_unit_test(identities), cmocka_unit_test(normalisation_is_folded), cmocka_unit_test(hostile_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
