/* Configurations: the released one's inventory to the byte, canonical text, and what no model can have. */
#include "golden_files.h"

#include "model/config.h"

static const char *const RELEASED =
    "{\"_class_name\":\"MiniMaxH3Transformer3DModel\",\"_diffusers_version\":\"0.36.0.dev0\",\"num_attention_heads\":56,"
    "\"attention_head_dim\":128,\"hidden_size\":5376,\"num_layers\":50,\"num_refiner_layers\":2,\"ffn_dim\":14336,\"in_"
    "channels\":24,"
    "\"audio_in_channels\":32,\"patch_size\":[1,2,2],\"text_dim\":5120,\"freq_dim\":256,\"time_embed_hidden_dim\":5376,"
    "\"time_embed_dim\":2688,\"rope_freq_dim\":16,\"rope_theta\":10000.0,\"norm_eps\":1e-05,\"qk_norm_eps\":1e-05,\"final_norm_"
    "eps\":1e-05}";

static const char *const RELEASED_CANONICAL =
    "{\"attention_head_dim\":128,\"audio_in_channels\":32,\"ffn_dim\":14336,\"final_norm_eps\":1.0000000000000001e-05,\"freq_"
    "dim\":256,"
    "\"hidden_size\":5376,\"in_channels\":24,\"norm_eps\":1.0000000000000001e-05,\"num_attention_heads\":56,\"num_layers\":50,"
    "\"num_refiner_layers\":2,\"patch_size\":[1,2,2],\"qk_norm_eps\":1.0000000000000001e-05,\"rope_freq_dim\":16,\"rope_theta\":"
    "10000,"
    "\"text_dim\":5120,\"time_embed_dim\":2688,\"time_embed_hidden_dim\":5376}";

static h3_config parse_good(const char *text)
{
    h3_config config;
    assert_good(h3_config_parse(&config, text, strlen(text), "config.json"));
    return config;
}

static void released_inventory(void **state)
{
    (void)state;
    h3_config config = parse_good(RELEASED);
    h3_inventory inventory;
    int64_t elements = 0, bytes = 0, wide = 0, wide_elements = 0, block_elements = 0, refiner_elements = 0;
    assert_int_equal(h3_config_inner_size(&config), 7168);
    assert_int_equal(h3_config_video_row(&config), 96);
    assert_good(h3_inventory_new(&inventory, &config));
    assert_int_equal(inventory.count, 638);
    for (size_t i = 0; i < inventory.count; i++) {
        const h3_parameter *item = &inventory.items[i];
        int64_t count = item->shape[0] * (item->rank == 2 ? item->shape[1] : 1);
        elements += count;
        bytes += count * (int64_t)h3_dtype_size(item->dtype);
        wide += item->dtype == H3_F32;
        wide_elements += item->dtype == H3_F32 ? count : 0;
        block_elements += strncmp(item->name, "transformer_blocks.49.", 22) == 0 ? count : 0;
        refiner_elements += strncmp(item->name, "token_refiner.refiner_blocks.1.", 31) == 0 ? count : 0;
        assert_ptr_equal(h3_inventory_find(&inventory, item->name), item);
    }
    assert_true(elements == 33122992896);
    assert_true(bytes == 66280430080);
    assert_int_equal(wide, 12);
    assert_int_equal(wide_elements, 17222144);
    assert_int_equal(block_elements, 645571840);
    assert_int_equal(refiner_elements, 385362688);
    assert_null(h3_inventory_find(&inventory, "transformer_blocks.50.norm1.weight"));
    assert_null(h3_inventory_find(&inventory, ""));
    assert_string_equal(inventory.items[0].name, "proj_in.weight");
    assert_string_equal(inventory.items[17].name, "token_refiner.refiner_blocks.0.norm1.weight");
    assert_string_equal(inventory.items[37].name, "token_refiner.final_norm.weight");
    assert_string_equal(inventory.items[38].name, "transformer_blocks.0.norm1.weight");
    assert_string_equal(inventory.items[637].name, "transformer_blocks.49.adaln_proj.linear.bias");
    h3_inventory_free(&inventory);
    assert_null(inventory.items);
}

/* The golden index and shards know the names, shapes and types that the tables give. */
static void golden_inventory(void **state)
{
    (void)state;
    char *text;
    size_t size, seen = 0;
    assert_good(h3_file_read(&text, &size, golden_path("nano/transformer/config.json"), 1 << 20, H3_INTEGRITY));
    h3_config config = parse_good(text);
    h3_inventory inventory;
    assert_good(h3_inventory_new(&inventory, &config));
    assert_int_equal(inventory.count, 62);
    for (int shard = 1; shard <= 2; shard++) {
        char name[100];
        snprintf(name, sizeof name, "nano/transformer/diffusion_pytorch_model-0000%d-of-00002.safetensors", shard);
        h3_safetensors file = golden_tensors(name);
        for (size_t i = 0; i < file.count; i++, seen++) {
            const h3_parameter *item = h3_inventory_find(&inventory, file.entries[i].name);
            assert_non_null(item);
            assert_int_equal(item->dtype, file.entries[i].tensor.dtype);
            assert_int_equal(item->rank, file.entries[i].tensor.rank);
            assert_memory_equal(item->shape, file.entries[i].tensor.shape, (size_t)item->rank * sizeof(int64_t));
        }
        h3_safetensors_close(&file);
    }
    assert_int_equal(seen, inventory.count);
    h3_inventory_free(&inventory);
    free(text);
}

static void canonical_text(void **state)
{
    (void)state;
    char *canonical, *again;
    h3_config config = parse_good(RELEASED);
    assert_good(h3_config_canonical(&config, &canonical));
    assert_string_equal(canonical, RELEASED_CANONICAL);
    h3_config parsed = parse_good(canonical);
    assert_memory_equal(&config, &parsed, sizeof config);
    parsed.norm_eps = 1e-6;
    assert_good(h3_config_canonical(&parsed, &again));
    assert_string_not_equal(canonical, again);
    free(canonical);
    free(again);
}

static void optional_fields_have_the_released_values(void **state)
{
    (void)state;
    char *text;
    size_t size;
    assert_good(h3_file_read(&text, &size, golden_path("nano/transformer/config.json"), 1 << 20, H3_INTEGRITY));
    h3_config config = parse_good(text);
    assert_true(config.rope_theta == 10000.0 && config.norm_eps == 1e-5 && config.qk_norm_eps == 1e-5 &&
                config.final_norm_eps == 1e-5);
    assert_int_equal(config.rope_freq_dim, 2);
    assert_int_equal(config.patch_size[2], 2);
    free(text);
}

/* A field of the released configuration put in the place of another value. */
static const struct { const char *from, *to, *word;
} BAD[] = {
    {"\"num_layers\":50,", "", "\"num_layers\" is missing"},
    {"\"num_layers\":50", "\"num_layers\":0", "num_layers"},
    {"\"num_layers\":50", "\"num_layers\":10001", "num_layers"},
    {"\"num_layers\":50", "\"num_layers\":\"50\"", "integer"},
    {"\"num_layers\":50", "\"num_layers\":1e300", "2^53"},
    {"\"num_layers\":50", "\"num_layers\":50,\"num_layers\":50", "duplicate key"},
    {"\"num_refiner_layers\":2", "\"num_refiner_layers\":-1", "num_refiner_layers"},
    {"\"hidden_size\":5376", "\"hidden_size\":5376.5", "integer"},
    {"\"hidden_size\":5376", "\"hidden_size\":16777217", "hidden_size"},
    {"\"hidden_size\":5376", "\"hidden_size\":-5376", "hidden_size"},
    {"\"hidden_size\"", "\"hidden_sizes\"", "unknown field"},
    {"\"rope_freq_dim\":16", "\"rope_freq_dim\":22", "rotary"},
    {"\"freq_dim\":256", "\"freq_dim\":255", "even"},
    {"[1,2,2]", "[2,2,2]", "start with 1"},
    {"[1,2,2]", "[1,2]", "three integers"},
    {"[1,2,2]", "[1,2,0]", "patch_size"},
    {"[1,2,2]", "[1,8388608,16777216]", "patch_size"},
    {"[1,2,2]", "2", "array"},
    {"\"in_channels\":24,\"audio_in_channels\":32,\"patch_size\":[1,2,2]", /* their product is 2^64 */
     "\"in_channels\":65536,\"audio_in_channels\":32,\"patch_size\":[1,16777216,16777216]", "in_channels * patch_size"},
    {"\"num_attention_heads\":56", "\"num_attention_heads\":16777216", "num_attention_heads * attention_head_dim"},
    {"\"norm_eps\":1e-05", "\"norm_eps\":0", "norm_eps"},
    {"\"qk_norm_eps\":1e-05", "\"qk_norm_eps\":2", "qk_norm_eps"},
    {"\"final_norm_eps\":1e-05", "\"final_norm_eps\":null", "finite number"},
    {"\"rope_theta\":10000.0", "\"rope_theta\":-1", "rope_theta"},
    {"\"rope_theta\":10000.0", "\"rope_theta\":1e31", "rope_theta"},
    {"{\"_class", "[{\"_class", "no valid JSON"},
};

static void impossible_configurations(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        char text[2048];
        h3_config config;
        const char *at = strstr(RELEASED, BAD[i].from);
        assert_non_null(at);
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - RELEASED), RELEASED, BAD[i].to, at + strlen(BAD[i].from));
        assert_fails(h3_config_parse(&config, text, strlen(text), "x/config.json"), H3_INTEGRITY, BAD[i].word);
        assert_non_null(strstr(h3_error_text(), "x/config.json"));
    }
    h3_config config;
    assert_fails(h3_config_parse(&config, "", 0, "c"), H3_INTEGRITY, "empty");
    assert_fails(h3_config_parse(&config, "[]", 2, "c"), H3_INTEGRITY, "object");
}

/* The largest accepted sizes overflow nowhere. */
static void largest_sizes(void **state)
{
    (void)state;
    h3_inventory inventory;
    h3_config config =
        parse_good("{\"num_attention_heads\":1,\"attention_head_dim\":16777216,\"hidden_size\":16777216,\"num_layers\":10000,"
                   "\"num_refiner_layers\":0,"
                   "\"ffn_dim\":16777216,\"in_channels\":1,\"audio_in_channels\":16777216,\"patch_size\":[1,4096,4096],\"text_"
                   "dim\":16777216,"
                   "\"freq_dim\":16777216,\"time_embed_hidden_dim\":16777216,\"time_embed_dim\":16777216,\"rope_freq_dim\":1}");
    assert_good(h3_inventory_new(&inventory, &config));
    assert_int_equal(inventory.count, 120018);
    const h3_parameter *last = h3_inventory_find(&inventory, "transformer_blocks.9999.adaln_proj.linear.weight");
    assert_non_null(last);
    assert_int_equal(last->shape[0], 18 * 16777216);
    h3_inventory_free(&inventory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(released_inventory),
        cmocka_unit_test(golden_inventory),
        cmocka_unit_test(canonical_text),
        cmocka_unit_test(optional_fields_have_the_released_values),
        cmocka_unit_test(impossible_configurations),
        cmocka_unit_test(largest_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
