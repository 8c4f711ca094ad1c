/* h3synth-v1 against its known answers, the golden checkpoints and the golden inputs; every value, bit for bit. */
#include "golden_files.h"

#include "model/synth.h"
#include "model/weights.h"

static void philox_known_answers(void **state)
{
    static const struct { uint32_t counter[4], key[2], expected[4];
    } cases[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t out[4];
        h3_philox4x32(cases[i].counter, cases[i].key, out);
        assert_memory_equal(out, cases[i].expected, sizeof out);
    }
}

/* One value by the words of the scheme: the slow twin of h3_synth_fill. */
static float slow_value(const uint32_t key[2], int64_t i, float base, float amp)
{
    const uint32_t counter[4] = {(uint32_t)(i / 4), (uint32_t)((uint64_t)(i / 4) >> 32), 0, 0};
    uint32_t words[4];
    h3_philox4x32(counter, key, words);
    volatile float u = (float)(int32_t)words[i % 4] * 0x1p-31f;
    volatile float scaled = amp * u;
    volatile float sum = base + scaled;
    return sum;
}

static void key_of(uint32_t key[2], const char *text)
{
    char hash[H3_SHA256_HEX];
    assert_good(h3_sha256(hash, text, strlen(text)));
    for (int k = 0; k < 2; k++) {
        key[k] = 0;
        for (int b = 3; b >= 0; b--) {
            char digits[3] = {hash[8 * k + 2 * b], hash[8 * k + 2 * b + 1], 0};
            key[k] = key[k] << 8 | hex_bits(digits);
        }
    }
}

static void fast_fill_equals_slow_twin(void **state)
{
    static const int64_t counts[] = {1, 2, 3, 4, 5, 255, 256, 257, 1023, 5000};
    uint32_t key[2];
    (void)state;
    key_of(key, "h3synth-v1:18446744073709551615:some.name");
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        h3_tensor wide, narrow;
        assert_good(h3_tensor_new(&wide, H3_F32, 1, &counts[c]));
        assert_good(h3_tensor_new(&narrow, H3_BF16, 1, &counts[c]));
        assert_good(h3_synth_fill(&wide, UINT64_MAX, "some.name", 1.0f, 0.1f));
        assert_good(h3_synth_fill(&narrow, UINT64_MAX, "some.name", 1.0f, 0.1f));
        for (int64_t i = 0; i < counts[c]; i++) {
            float expected = slow_value(key, i, 1.0f, 0.1f);
            assert_int_equal(float_bits(((float *)wide.data)[i]), float_bits(expected));
            assert_int_equal(((uint16_t *)narrow.data)[i], h3_f32_to_bf16(expected));
        }
        h3_tensor_free(&wide);
        h3_tensor_free(&narrow);
    }
}

static void other_streams_differ(void **state)
{
    (void)state;
    h3_tensor a, b;
    assert_good(h3_synth_input(&a, 7, "input.video", H3_F32, 2, H3_SHAPE(3, 8)));
    assert_good(h3_synth_input(&b, 8, "input.video", H3_F32, 2, H3_SHAPE(3, 8)));
    assert_memory_not_equal(a.data, b.data, h3_tensor_bytes(&a));
    h3_tensor_free(&b);
    assert_good(h3_synth_input(&b, 7, "input.audio", H3_F32, 2, H3_SHAPE(3, 8)));
    assert_memory_not_equal(a.data, b.data, h3_tensor_bytes(&a));
    h3_tensor_free(&b);
    assert_fails(h3_synth_input(&b, 7, "input.video", H3_I64, 2, H3_SHAPE(3, 8)), H3_INTEGRITY, "F32 and BF16");
    assert_null(b.data);
    h3_tensor_free(&a);
}

/* Counts the tensors of a golden checkpoint whose bytes differ from those of the synthetic scheme. */
static int different_tensors(h3_weights *golden, uint64_t seed)
{
    const h3_inventory *inventory = h3_weights_inventory(golden);
    h3_weights *synthetic;
    int different = 0;
    assert_good(h3_weights_synthetic(&synthetic, h3_weights_config(golden), seed));
    assert_int_equal(h3_weights_inventory(synthetic)->count, inventory->count);
    for (size_t i = 0; i < inventory->count; i++) {
        h3_tensor stored, made;
        assert_good(h3_weights_read(&stored, golden, inventory->items[i].name));
        assert_good(h3_weights_read(&made, synthetic, inventory->items[i].name));
        assert_int_equal(stored.dtype, made.dtype);
        assert_int_equal(h3_tensor_bytes(&stored), h3_tensor_bytes(&made));
        different += memcmp(stored.data, made.data, h3_tensor_bytes(&made)) != 0;
        h3_tensor_free(&stored);
        h3_tensor_free(&made);
    }
    h3_weights_free(synthetic);
    h3_weights_free(golden);
    return different;
}

static h3_weights *open_weights(const char *path)
{
    h3_weights *weights;
    assert_good(h3_weights_open(&weights, path));
    return weights;
}

static void golden_checkpoints(void **state)
{
    (void)state;
    assert_int_equal(different_tensors(open_weights(golden_path("nano/transformer")), 0), 0);
    assert_int_equal(different_tensors(open_weights(golden_path("nano/transformer")), 1), 62);
    /* edge: norm_q and norm_k of block 1 were multiplied by 4, and proj_in.bias is zero */
    assert_int_equal(different_tensors(open_weights(golden_path("edge/transformer")), 0), 3);
}

/* tiny's checkpoint is too large to be copied: its tensors' hashes are. */
static void hashes_of_tiny(void **state)
{
    (void)state;
    char *text;
    size_t size;
    h3_config config;
    h3_weights *weights;
    assert_good(h3_file_read(&text, &size, golden_path("tiny/transformer/config.json"), 1 << 20, H3_INTEGRITY));
    assert_good(h3_config_parse(&config, text, size, "tiny"));
    assert_good(h3_weights_synthetic(&weights, &config, 0));
    cJSON *hashes = golden_json("tiny/weights-sha256.json");
    const h3_inventory *inventory = h3_weights_inventory(weights);
    assert_int_equal(cJSON_GetArraySize(hashes), inventory->count);
    for (size_t i = 0; i < inventory->count; i++) {
        h3_tensor tensor;
        assert_good(h3_weights_read(&tensor, weights, inventory->items[i].name));
        const char *expected = json_text(hashes, inventory->items[i].name);
        if (!sha256_is(tensor.data, h3_tensor_bytes(&tensor), expected)) fail_msg("%s differs", inventory->items[i].name);
        *(char *)tensor.data ^= 1;
        assert_false(sha256_is(tensor.data, h3_tensor_bytes(&tensor), expected));
        h3_tensor_free(&tensor);
    }
    cJSON_Delete(hashes);
    h3_weights_free(weights);
    free(text);
}

/* Tiny's own shards where the shared goldens are; a clone has their hashes (hashes_of_tiny), and looks at nano's shards again. */
static void large_golden_checkpoint(void **state)
{
    (void)state;
    const char *path = shared_golden_path("tiny/transformer");
    assert_int_equal(different_tensors(open_weights(path != NULL ? path : golden_path("nano/transformer")), 0), 0);
}

static void assert_stream(const h3_safetensors *file, const char *stored, const char *stream)
{
    h3_tensor golden, made;
    assert_good(h3_safetensors_read(&golden, file, stored, H3_NONE, 0, NULL));
    assert_good(h3_synth_input(&made, 7, stream, golden.dtype, golden.rank, golden.shape));
    assert_memory_equal(golden.data, made.data, h3_tensor_bytes(&made));
    h3_tensor_free(&golden);
    h3_tensor_free(&made);
}

static void golden_inputs(void **state)
{
    static const char *const cases[] = {"nano/case.safetensors", "tiny/case.safetensors"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        h3_safetensors file = golden_tensors(cases[i]);
        assert_stream(&file, "input.video", "input.video");
        assert_stream(&file, "input.audio", "input.audio");
        assert_stream(&file, "input.text", "input.text");
        assert_stream(&file, "input.cot_video", "cotangent.video");
        assert_stream(&file, "input.cot_audio", "cotangent.audio");
        h3_safetensors_close(&file);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_known_answers), cmocka_unit_test(fast_fill_equals_slow_twin),
        cmocka_unit_test(other_streams_differ), cmocka_unit_test(golden_checkpoints),
        cmocka_unit_test(hashes_of_tiny),       cmocka_unit_test(large_golden_checkpoint),
        cmocka_unit_test(golden_inputs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
