/* Checkpoint folders: the inventory must be there exactly, shards lie beside the index, identities hash what was read. */
#include "checkpoint_folder.h"

#include <pthread.h>

static void assert_refused(const char *word)
{
    h3_weights *weights;
    assert_fails(h3_weights_open(&weights, folder), H3_INTEGRITY, word);
    assert_null(weights);
    assert_non_null(strstr(h3_error_text(), folder)); /* every message says where */
}

static void assert_accepted(void)
{
    h3_weights *weights;
    assert_good(h3_weights_open(&weights, folder));
    h3_weights_free(weights);
}

static void reads_what_is_stored(void **state)
{
    (void)state;
    h3_weights *weights;
    h3_tensor tensor;
    assert_good(h3_weights_open(&weights, folder));
    assert_int_equal(h3_weights_config(weights)->hidden_size, 24);
    assert_int_equal(h3_weights_inventory(weights)->count, 62);
    h3_safetensors file;
    assert_good(h3_safetensors_open(&file, in_folder(SHARD2)));
    for (size_t i = 0; i < file.count; i++) {
        assert_good(h3_weights_read(&tensor, weights, file.entries[i].name));
        assert_int_equal(tensor.dtype, file.entries[i].tensor.dtype);
        assert_memory_equal(tensor.data, file.entries[i].tensor.data, h3_tensor_bytes(&tensor));
        h3_tensor_free(&tensor);
    }
    h3_safetensors_close(&file);
    assert_fails(h3_weights_read(&tensor, weights, "transformer_blocks.2.norm1.weight"), H3_USAGE, "no parameter");
    assert_null(tensor.data);
    h3_weights_free(weights);
    h3_weights_free(NULL);
}

/* Edits of the index that must not pass. */
static const struct { const char *from, *to, *word;
} BAD_INDEX[] = {
    {"\"proj_in.weight\": \"" SHARD1, "\"proj_in.weight\": \"../" SHARD1, "no plain file name"},
    {"\"proj_in.weight\": \"" SHARD1, "\"proj_in.weight\": \"/tmp/" SHARD1, "no plain file name"},
    {"\"proj_in.weight\": \"" SHARD1, "\"proj_in.weight\": \"./" SHARD1, "no plain file name"},
    {"\"proj_in.weight\": \"" SHARD1, "\"proj_in.weight\": \"a\\\\b", "no plain file name"},
    {"\"proj_in.weight\": \"" SHARD1, "\"proj_in.weight\": \"a\\nb", "no plain file name"},
    {"\"proj_in.weight\": \"" SHARD1, "\"proj_in.weight\": \"..", "no plain file name"},
    {"\"proj_in.weight\": \"" SHARD1, "\"proj_in.weight\": \".", "no plain file name"},
    {"\"proj_in.weight\": \"" SHARD1, "\"proj_in.weight\": \"", "no plain file name"},
    {"\"proj_in.weight\": \"" SHARD1, "\"proj_in.weight\": \"other.safetensors", "other.safetensors: No such file"},
    {"\"proj_in.weight\": \"" SHARD1 "\"", "\"proj_in.weight\": 1", "must be a string"},
    {"\"proj_in.weight\": \"" SHARD1, "\"proj_in.weight\": \"" SHARD2, "lies in " SHARD1},
    {"\"proj_in.weight\"", "\"proj_in.weigh\"", "no shard holds the tensor \"proj_in.weigh\""},
    {"\"proj_in.weight\": \"" SHARD1 "\",", "", "61 names but the shards hold 62"},
    {"\"proj_in.weight\": \"" SHARD1 "\",", "\"proj_in.weight\": \"" SHARD1 "\",\"proj_in.weight\": \"" SHARD1 "\",",
     "duplicate key"},
    {"\"proj_in.weight\": \"" SHARD1 "\",", "\"proj_in.weight\": \"" SHARD1 "\",\"more\": \"" SHARD1 "\",", "63 names"},
    {"82152", "82151", "total_size is 82151 but the tensors have 82152"},
    {"82152", "-1", "total_size"},
    {"82152", "82152.5", "total_size"},
    {"82152", "1e300", "total_size"},
    {"\"total_size\"", "\"size\"", "\"total_size\" is missing"},
    {"\"metadata\"", "\"metadatum\"", "unknown field \"metadatum\""},
    {"\"weight_map\"", "\"weights\"", "\"weight_map\" is missing"},
    {"\"metadata\": {", "\"metadata\": {\"total_size\": 82152,", "duplicate key"},
    {"{", "", "no valid JSON"},
    {"{", "[", "no valid JSON"},
};

static void hostile_index(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof BAD_INDEX / sizeof *BAD_INDEX; i++) {
        copy_golden(INDEX);
        assert_accepted();
        edit(INDEX, BAD_INDEX[i].from, BAD_INDEX[i].to);
        assert_refused(BAD_INDEX[i].word);
    }
    const char *no_map = "{\"metadata\":{\"total_size\":0},\"weight_map\":{}}";
    put(INDEX, no_map, strlen(no_map));
    assert_refused("weight_map is empty");
    put(INDEX, "", 0);
    assert_refused("empty");
}

static void wrong_tensors(void **state)
{
    static const struct { const char *file, *from, *to, *word; } edits[] = {
        /* of the same length, so that the shard stays a valid file */
        {SHARD1, "proj_in.weight", "proj_in.weighs", "additional tensor"},
        {SHARD1, "norm1.weight", "norn1.weight", "missing tensor"},
        {SHARD1, "\"dtype\":\"F32\",\"shape\":[24,16]", "\"dtype\":\"F32\",\"shape\":[16,24]", "wrong shape"},
        {SHARD1, "\"dtype\":\"F32\",\"shape\":[24,16]", "\"dtype\":\"I32\",\"shape\":[24,16]", "wrong dtype"},
        {SHARD1, "\"dtype\":\"BF16\",", "\"dtype\":\"F16\", ", "wrong dtype; BF16 was expected"},
        {"config.json", "\"num_layers\": 2", "\"num_layers\": 3", "missing tensor transformer_blocks.2"},
        {"config.json", "\"num_layers\": 2", "\"num_layers\": 1", "additional tensor transformer_blocks.1"},
        {"config.json", "\"text_dim\": 8", "\"text_dim\": 9", "[24, 9] follows from config.json"},
        {"config.json", "\"attention_head_dim\": 16", "\"attention_head_dim\": 12", "wrong shape"},
        {"config.json", "{", "", "config.json: no valid JSON"},
        {"config.json", "\"num_layers\": 2", "\"num_layers\": -2", "num_layers"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        edit(edits[i].file, edits[i].from, edits[i].to);
        assert_refused(edits[i].word);
        copy_golden(edits[i].file);
        assert_accepted();
    }
}

static void damaged_files(void **state)
{
    size_t size;
    char *content = get(in_folder(SHARD2), &size);
    (void)state;
    put(SHARD2, content, size - 1);
    assert_refused("truncated");
    put(SHARD2, content, 100);
    assert_refused("truncated header");
    put(SHARD2, content, size + 1); /* h3_file_read leaves a 0 behind the content */
    assert_refused("trailing");
    unlink(in_folder(SHARD2));
    assert_refused("No such file");
    mkdir(in_folder(SHARD2), 0700);
    assert_refused("not a regular file");
    rmdir(in_folder(SHARD2));
    put(SHARD2, content, size);
    assert_accepted();
    put("config.json", "", 0);
    assert_refused("config.json: empty");
    unlink(in_folder("config.json"));
    assert_refused("config.json: No such file");
    copy_golden("config.json");
    unlink(in_folder(INDEX));
    assert_refused("neither");
    h3_weights *weights;
    assert_fails(h3_weights_open(&weights, "/nonexistent/folder"), H3_INTEGRITY, "/nonexistent/folder");
    free(content);
}

/* The same tensors in a third shard: each is there, but not once. */
static void stored_twice(void **state)
{
    (void)state;
    size_t size;
    char *content = get(in_folder(SHARD1), &size);
    put("extra.safetensors", content, size);
    assert_accepted(); /* a file that the index does not name is none of its shards */
    edit(INDEX, "\"proj_in.weight\": \"" SHARD1, "\"proj_in.weight\": \"extra.safetensors");
    assert_refused("stored twice, in " SHARD1 " and in extra.safetensors");
    free(content);
}

static char *identity_text(h3_weights *weights)
{
    cJSON *identity;
    char *text;
    assert_good(h3_weights_identity(weights, NULL, &identity));
    assert_good(h3_json_print(&text, identity));
    cJSON_Delete(identity);
    return text;
}

static void identity_of_a_folder(void **state)
{
    (void)state;
    static const char *const names[] = {SHARD1, SHARD2};
    h3_weights *weights;
    cJSON *identity;
    char hash[H3_SHA256_HEX];
    int64_t size;
    assert_good(h3_weights_open(&weights, folder));
    assert_good(h3_weights_identity(weights, NULL, &identity));
    assert_string_equal(json_text(identity, "kind"), "folder");
    assert_good(h3_sha256_file(hash, in_folder("config.json"), NULL, H3_INTEGRITY));
    assert_string_equal(json_text(identity, "config_sha256"), hash);
    assert_good(h3_sha256_file(hash, in_folder(INDEX), NULL, H3_INTEGRITY));
    assert_string_equal(json_text(identity, "index_sha256"), hash);
    const cJSON *shards = json_get(identity, "shards");
    assert_int_equal(cJSON_GetArraySize(shards), 2);
    for (int i = 0; i < 2; i++) {
        int64_t stated;
        const cJSON *shard = cJSON_GetArrayItem(shards, i);
        assert_good(h3_sha256_file(hash, in_folder(names[i]), &size, H3_INTEGRITY));
        assert_string_equal(json_text(shard, "path"), names[i]);
        assert_string_equal(json_text(shard, "sha256"), hash);
        assert_good(h3_json_integer(&stated, shard, "size", 0, INT64_MAX, "identity", H3_INTEGRITY));
        assert_int_equal(stated, size);
    }
    cJSON_Delete(identity);
    char *before = identity_text(weights);
    h3_weights_free(weights);
    size_t length;
    char *content = get(in_folder(SHARD1), &length);
    content[length - 1] ^= 1; /* one bit of one weight */
    put(SHARD1, content, length);
    assert_good(h3_weights_open(&weights, folder));
    char *after = identity_text(weights);
    assert_string_not_equal(before, after);
    h3_weights_free(weights);
    free(content);
    free(before);
    free(after);
}

static h3_config nano_config(void)
{
    h3_config config;
    size_t size;
    char *text = get(in_folder("config.json"), &size);
    assert_good(h3_config_parse(&config, text, size, "config.json"));
    free(text);
    return config;
}

static void identity_of_synthetic_weights(void **state)
{
    (void)state;
    h3_config config = nano_config();
    h3_weights *weights;
    cJSON *identity, *again;
    char *canonical, *source, hash[H3_SHA256_HEX];
    assert_good(h3_weights_synthetic(&weights, &config, 17));
    assert_good(h3_weights_identity(weights, NULL, &identity));
    assert_string_equal(json_text(identity, "kind"), "synthetic");
    assert_string_equal(json_text(identity, "scheme"), "h3synth-v1");
    assert_int_equal(json_int(identity, "seed"), 17);
    assert_int_equal(json_int(json_get(identity, "config"), "hidden_size"), 24);
    assert_good(h3_config_canonical(&config, &canonical));
    assert_good(h3_format(&source, "h3synth-v1\n17\n%s", canonical));
    assert_good(h3_sha256(hash, source, strlen(source)));
    assert_string_equal(json_text(identity, "sha256"), hash);
    h3_weights_free(weights);
    assert_good(h3_weights_synthetic(&weights, &config, 18));
    assert_good(h3_weights_identity(weights, NULL, &again));
    assert_string_not_equal(json_text(again, "sha256"), hash);
    char *text, *again_text;
    cJSON *parsed; /* what a manifest gives back is the same identity */
    assert_good(h3_json_print(&text, identity));
    assert_good(h3_json_parse(&parsed, text, strlen(text), "manifest", H3_INTEGRITY));
    assert_true(cJSON_Compare(identity, parsed, 1));
    assert_false(cJSON_Compare(again, parsed, 1));
    assert_good(h3_json_print(&again_text, parsed));
    assert_string_equal(text, again_text);
    free(text);
    free(again_text);
    cJSON_Delete(parsed);
    h3_tensor tensor;
    assert_fails(h3_weights_read(&tensor, weights, "proj_in"), H3_USAGE, "no parameter");
    h3_weights_free(weights);
    cJSON_Delete(identity);
    cJSON_Delete(again);
    free(canonical);
    free(source);
}

/* Writes all parameters of `weights` as one file. */
static void write_unsharded(const h3_weights *weights)
{
    const h3_inventory *inventory = h3_weights_inventory(weights);
    char *header = calloc(1 << 16, 1), *data = calloc(1 << 20, 1), *whole = malloc((1 << 20) + (1 << 17));
    size_t used = 0, offset = 0;
    for (size_t i = 0; i < inventory->count; i++) {
        const h3_parameter *item = &inventory->items[i];
        h3_tensor tensor;
        assert_good(h3_weights_read(&tensor, weights, item->name));
        size_t bytes = h3_tensor_bytes(&tensor);
        used += (size_t)sprintf(header + used, "%c\"%s\":{\"dtype\":\"%s\",\"shape\":[%d", i ? ',' : '{', item->name,
                                item->dtype == H3_F32 ? "F32" : "BF16", (int)item->shape[0]);
        if (item->rank == 2) used += (size_t)sprintf(header + used, ",%d", (int)item->shape[1]);
        used += (size_t)sprintf(header + used, "],\"data_offsets\":[%zu,%zu]}", offset, offset + bytes);
        memcpy(data + offset, tensor.data, bytes);
        offset += bytes;
        h3_tensor_free(&tensor);
    }
    header[used++] = '}';
    for (int i = 0; i < 8; i++) whole[i] = (char)(used >> (8 * i));
    memcpy(whole + 8, header, used);
    memcpy(whole + 8 + used, data, offset);
    put(UNSHARDED, whole, 8 + used + offset);
    free(header);
    free(data);
    free(whole);
}

static void unsharded_folder(void **state)
{
    (void)state;
    h3_config config = nano_config();
    h3_weights *synthetic, *weights;
    cJSON *identity;
    assert_good(h3_weights_synthetic(&synthetic, &config, 0));
    write_unsharded(synthetic);
    assert_refused("both an index and an unsharded file");
    unlink(in_folder(INDEX));
    assert_good(h3_weights_open(&weights, folder));
    for (size_t i = 0; i < h3_weights_inventory(weights)->count; i++) {
        h3_tensor a, b;
        assert_good(h3_weights_read(&a, weights, h3_weights_inventory(weights)->items[i].name));
        assert_good(h3_weights_read(&b, synthetic, h3_weights_inventory(weights)->items[i].name));
        assert_memory_equal(a.data, b.data, h3_tensor_bytes(&b));
        h3_tensor_free(&a);
        h3_tensor_free(&b);
    }
    assert_good(h3_weights_identity(weights, NULL, &identity));
    assert_true(cJSON_IsNull(json_get(identity, "index_sha256")));
    assert_int_equal(cJSON_GetArraySize(json_get(identity, "shards")), 1);
    cJSON_Delete(identity);
    h3_weights_free(weights);
    h3_weights_free(synthetic);
    edit(UNSHARDED, "proj_in.weight", "proj_in.weighs");
    assert_refused("additional tensor");
}

/* Every thread reads every parameter and sums the bytes; all sums agree. */
static void *sum_bytes(void *argument)
{
    const h3_weights *weights = argument;
    const h3_inventory *inventory = h3_weights_inventory(weights);
    uintptr_t sum = 0;
    for (size_t i = 0; i < inventory->count; i++) {
        h3_tensor tensor;
        if (h3_weights_read(&tensor, weights, inventory->items[i].name) != H3_OK) return NULL;
        for (size_t k = 0; k < h3_tensor_bytes(&tensor); k++) sum = sum * 31 + ((unsigned char *)tensor.data)[k];
        h3_tensor_free(&tensor);
    }
    return (void *)sum;
}

static void several_threads_read(void **state)
{
    (void)state;
    h3_config config = nano_config();
    h3_weights *sources[2];
    void *sums[2][3], *alone = NULL;
    assert_good(h3_weights_open(&sources[0], folder));
    assert_good(h3_weights_synthetic(&sources[1], &config, 0));
    alone = sum_bytes(sources[0]);
    assert_non_null(alone);
    for (int s = 0; s < 2; s++) {
        pthread_t threads[3];
        for (int i = 0; i < 3; i++) assert_int_equal(pthread_create(&threads[i], NULL, sum_bytes, sources[s]), 0);
        for (int i = 0; i < 3; i++) pthread_join(threads[i], &sums[s][i]);
        for (int i = 0; i < 3; i++) assert_ptr_equal(sums[s][i], alone);
        h3_weights_free(sources[s]);
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, remove_folder)
    const struct CMUnitTest tests[] = {
        TEST(reads_what_is_stored),
        TEST(hostile_index),
        TEST(wrong_tensors),
        TEST(damaged_files),
        TEST(stored_twice),
        TEST(identity_of_a_folder),
        TEST(identity_of_synthetic_weights),
        TEST(unsharded_folder),
        TEST(several_threads_read),
    };
#undef TEST
    return cmocka_run_group_tests(tests, NULL, NULL);
}
