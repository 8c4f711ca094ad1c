/* A checkpoint folder as hub caches keep it, as plans pin it, and cut down to one block; and the hashing of large ones. */
#include "checkpoint_folder.h"

#include <fcntl.h>

#include "base/hash_many.h"

#define BLOCK0 "transformer_blocks.0."

static h3_status open_only(const char *path)
{
    h3_weights *weights;
    h3_status status = h3_weights_open(&weights, path);
    assert_true((weights == NULL) == (status != H3_OK));
    h3_weights_free(weights);
    return status;
}

/* --- links ---------------------------------------------------------------------------------------------------------- */

static const char *const FILES[] = {"config.json", INDEX, SHARD1, SHARD2};

/* snapshots/main/NAME -> ../../blobs/NAME, as in a hub's cache. */
static void make_cache(char snapshot[H3_PATH_MAX])
{
    char target[H3_PATH_MAX], link[2 * H3_PATH_MAX], blob[200];
    mkdir(in_folder("blobs"), 0700);
    mkdir(in_folder("snapshots"), 0700);
    mkdir(in_folder("snapshots/main"), 0700);
    snprintf(snapshot, H3_PATH_MAX, "%.4000s/snapshots/main", folder);
    for (size_t i = 0; i < 4; i++) {
        snprintf(blob, sizeof blob, "blobs/%s", FILES[i]);
        move(FILES[i], blob);
        snprintf(target, sizeof target, "../../blobs/%s", FILES[i]);
        snprintf(link, sizeof link, "%s/%s", snapshot, FILES[i]);
        assert_int_equal(symlink(target, link), 0);
    }
}

static char *identity_of(const char *path)
{
    h3_weights *weights;
    cJSON *identity;
    char *text;
    assert_good(h3_weights_open(&weights, path));
    assert_good(h3_weights_identity(weights, NULL, &identity));
    assert_good(h3_json_print(&text, identity));
    cJSON_Delete(identity);
    h3_weights_free(weights);
    return text;
}

static void links_to_files_are_followed(void **state)
{
    (void)state;
    char snapshot[H3_PATH_MAX], *plain = identity_of(folder);
    make_cache(snapshot);
    char *linked = identity_of(snapshot);
    assert_string_equal(plain, linked); /* names and hashes, not places */
    free(plain);
    free(linked);
    size_t size;
    char *content = get(in_folder("blobs/" SHARD2), &size); /* what is hashed is what the link leads to */
    content[size - 1] ^= 1;
    put("blobs/" SHARD2, content, size);
    free(content);
    char *changed = identity_of(snapshot), *again = identity_of(snapshot);
    assert_string_equal(changed, again);
    free(changed);
    free(again);
}

/* Whatever else a link leads to is refused, at once, and the message names the link. */
static void other_links_are_refused(void **state)
{
    (void)state;
    static const struct { const char *target, *word; } bad[] = {
        {"nowhere", "a symbolic link to a file that is not there"}, {".", "not a regular file"},   {"/dev/zero", "not a regular file"},
        {"/dev/tty", ""},                                          {"self", "symbolic links in a circle"}, {"pipe", "not a regular file"},
        {"/proc/self/mem/x", ""},
    };
    assert_int_equal(mkfifo(in_folder("pipe"), 0600), 0);
    assert_int_equal(symlink("other", in_folder("self")), 0);
    assert_int_equal(symlink("self", in_folder("other")), 0);
    for (size_t f = 0; f < 4; f++) {
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
            unlink(in_folder(FILES[f]));
            assert_int_equal(symlink(bad[i].target, in_folder(FILES[f])), 0);
            assert_fails(open_only(folder), H3_INTEGRITY, bad[i].word);
            assert_non_null(strstr(h3_error_text(), FILES[f]));
        }
        unlink(in_folder(FILES[f]));
        copy_golden(FILES[f]);
        assert_good(open_only(folder));
    }
}

/* Everything but a checkpoint stays strict. */
static void other_readers_follow_no_link(void **state)
{
    (void)state;
    char *text, hash[H3_SHA256_HEX], direct[H3_SHA256_HEX];
    size_t size;
    int64_t bytes;
    h3_safetensors file;
    assert_int_equal(symlink(SHARD1, in_folder("link")), 0);
    assert_fails(h3_file_read(&text, &size, in_folder("link"), 1 << 24, H3_INTEGRITY), H3_INTEGRITY, "which is not followed");
    assert_fails(h3_sha256_file(hash, in_folder("link"), NULL, H3_INTEGRITY), H3_INTEGRITY, "which is not followed");
    assert_fails(h3_safetensors_open(&file, in_folder("link")), H3_INTEGRITY, "which is not followed");
    assert_good(h3_sha256_file_linked(hash, in_folder("link"), &bytes, H3_INTEGRITY));
    assert_good(h3_sha256_file(direct, in_folder(SHARD1), NULL, H3_INTEGRITY));
    assert_string_equal(hash, direct);
    assert_good(h3_file_read_linked(&text, &size, in_folder("link"), 1 << 24, H3_INTEGRITY));
    assert_int_equal((int64_t)size, bytes);
    free(text);
}

/* --- pins ----------------------------------------------------------------------------------------------------------- */

static h3_status open_pinned(const cJSON *hashes, const cJSON *sizes, int64_t total, int hash)
{
    h3_weights *weights;
    const h3_weights_pins pins = {hashes, sizes, total};
    h3_status status = h3_weights_open_pinned(&weights, folder, &pins, hash, NULL);
    assert_true((weights == NULL) == (status != H3_OK));
    h3_weights_free(weights);
    return status;
}

static cJSON *pins_of_all(void)
{
    cJSON *hashes = cJSON_CreateObject();
    char hash[H3_SHA256_HEX];
    for (size_t i = 0; i < 4; i++) {
        assert_good(h3_sha256_file(hash, in_folder(FILES[i]), NULL, H3_INTEGRITY));
        cJSON_AddStringToObject(hashes, FILES[i], hash);
    }
    return hashes;
}

/* One bit anywhere in any pinned file, and the file is named, be it that the header no longer parses or names a tensor anew. */
static void a_bit_of_a_pinned_file(void **state)
{
    (void)state;
    cJSON *hashes = pins_of_all();
    assert_good(open_pinned(hashes, NULL, -1, 1));
    for (size_t f = 0; f < 4; f++) {
        size_t size;
        char *content = get(in_folder(FILES[f]), &size);
        for (size_t i = 0; i < 40; i++) {
            size_t at = i < 20 ? i * 7 % size : size - 1 - i * 131 % size;
            content[at] ^= 1;
            put(FILES[f], content, size);
            assert_fails(open_pinned(hashes, NULL, -1, 1), H3_INTEGRITY, FILES[f]);
            content[at] ^= 1;
        }
        put(FILES[f], content, size);
        free(content);
    }
    assert_good(open_pinned(hashes, NULL, -1, 1));
    cJSON_Delete(hashes);
}

/* Beside the rank that hashes, others see what costs nothing: texts and sizes. */
static void pins_without_hashing(void **state)
{
    (void)state;
    cJSON *hashes = pins_of_all();
    size_t size;
    char *content = get(in_folder(SHARD2), &size);
    content[size - 1] ^= 1;
    put(SHARD2, content, size);
    assert_fails(open_pinned(hashes, NULL, -1, 1), H3_INTEGRITY, SHARD2 ": SHA-256 differs");
    assert_good(open_pinned(hashes, NULL, -1, 0));
    cJSON_ReplaceItemInObjectCaseSensitive(hashes, "config.json", cJSON_CreateString("00"));
    assert_fails(open_pinned(hashes, NULL, -1, 0), H3_INTEGRITY, "config.json: SHA-256 differs");
    cJSON_Delete(hashes);
    free(content);
}

static void sizes_and_strangers(void **state)
{
    (void)state;
    size_t size;
    free(get(in_folder(SHARD1), &size));
    cJSON *sizes = cJSON_CreateObject(), *hashes = cJSON_CreateObject();
    cJSON_AddNumberToObject(sizes, SHARD1, (double)size);
    assert_good(open_pinned(NULL, sizes, 82152, 0));
    assert_fails(open_pinned(NULL, sizes, 82151, 0), H3_INTEGRITY, "total_size is 82152, the plan expects 82151");
    cJSON_ReplaceItemInObjectCaseSensitive(sizes, SHARD1, cJSON_CreateNumber((double)size + 1));
    assert_fails(open_pinned(NULL, sizes, -1, 0), H3_INTEGRITY, SHARD1 " has ");
    cJSON_AddStringToObject(hashes, "other.safetensors", "00");
    assert_fails(open_pinned(hashes, NULL, -1, 0), H3_INTEGRITY, "pins other.safetensors, which is no file of this checkpoint");
    cJSON_DeleteItemFromObjectCaseSensitive(sizes, SHARD1);
    cJSON_AddNumberToObject(sizes, "other.safetensors", 1);
    assert_fails(open_pinned(NULL, sizes, -1, 0), H3_INTEGRITY, "pins other.safetensors, which is no file of this checkpoint");
    cJSON_Delete(sizes);
    cJSON_Delete(hashes);
}

/* --- one block ------------------------------------------------------------------------------------------------------ */

static h3_status open_block(h3_weights **weights, int64_t block)
{
    const h3_weights_pins none = {.total_size = -1};
    h3_status status = h3_weights_open_block(weights, folder, block, &none);
    assert_true((*weights == NULL) == (status != H3_OK));
    return status;
}

static cJSON *digests_of_block0(void)
{
    h3_weights *weights;
    cJSON *digests;
    assert_good(h3_weights_open(&weights, folder));
    assert_good(h3_weights_block_tensors(weights, 0, &digests));
    h3_weights_free(weights);
    return digests;
}

/* Writes the block's tensors, read from the whole folder, as SHARD2 alone. */
static void cut_to_block0(int index)
{
    h3_weights *weights;
    h3_safetensors_entry entries[12] = {0};
    size_t count = 0, size;
    char *image;
    cJSON *root = cJSON_CreateObject(), *metadata = cJSON_AddObjectToObject(root, "metadata"), *map = cJSON_AddObjectToObject(root, "weight_map");
    assert_good(h3_weights_open(&weights, folder));
    for (size_t i = 0; i < h3_weights_inventory(weights)->count; i++) {
        const char *name = h3_weights_inventory(weights)->items[i].name;
        if (strncmp(name, BLOCK0, strlen(BLOCK0)) != 0) continue;
        assert_true(count < 12);
        entries[count].name = strdup(name);
        assert_good(h3_weights_read(&entries[count++].tensor, weights, name));
        cJSON_AddStringToObject(map, name, SHARD2);
    }
    h3_weights_free(weights);
    assert_int_equal(count, 12);
    assert_good(h3_safetensors_build(&image, &size, entries, count, NULL));
    put(SHARD2, image, size);
    free(image);
    for (size_t i = 0; i < count; i++) {
        free(entries[i].name);
        h3_tensor_free(&entries[i].tensor);
    }
    cJSON_AddNumberToObject(metadata, "total_size", 0);
    assert_good(h3_json_print(&image, root));
    if (index) put(INDEX, image, strlen(image)); /* a partial index; else the whole one stays */
    free(image);
    cJSON_Delete(root);
    unlink(in_folder(SHARD1));
}

static void assert_block0(const cJSON *digests)
{
    h3_weights *weights;
    h3_tensor tensor;
    cJSON *identity;
    assert_good(open_block(&weights, 0));
    assert_good(h3_weights_require_block(weights, 0, digests, "the manifest"));
    assert_good(h3_weights_read(&tensor, weights, BLOCK0 "attn.to_q.weight"));
    h3_tensor_free(&tensor);
    assert_fails(h3_weights_read(&tensor, weights, "proj_in.weight"), H3_INTEGRITY, "open for block 0 alone");
    assert_fails(h3_weights_read(&tensor, weights, "transformer_blocks.1.norm1.weight"), H3_INTEGRITY, "open for block 0 alone");
    assert_null(tensor.data);
    assert_fails(h3_weights_identity(weights, NULL, &identity), H3_INTEGRITY, "no identity");
    assert_null(identity);
    h3_weights_free(weights);
}

static void a_block_from_parts(void **state)
{
    (void)state;
    cJSON *digests = digests_of_block0();
    assert_int_equal(cJSON_GetArraySize(digests), 12);
    assert_block0(digests); /* of a whole folder */
    cut_to_block0(0);
    assert_block0(digests);
    assert_fails(open_only(folder), H3_INTEGRITY, "names the shard " SHARD1);
    copy_golden(SHARD2);
    copy_golden(SHARD1);
    cut_to_block0(1);
    assert_block0(digests);
    assert_fails(open_only(folder), H3_INTEGRITY, "missing tensor");
    move(SHARD2, "cut");
    assert_int_equal(symlink("cut", in_folder(SHARD2)), 0);
    assert_block0(digests);
    unlink(in_folder(INDEX));
    move("cut", UNSHARDED);
    assert_block0(digests);
    cJSON_Delete(digests);
}

static void a_block_that_is_not_there(void **state)
{
    (void)state;
    h3_weights *weights;
    assert_fails(open_block(&weights, 2), H3_USAGE, "no block 2");
    unlink(in_folder(SHARD2));
    assert_fails(open_block(&weights, 0), H3_INTEGRITY, SHARD2 " is missing, the shard that has " BLOCK0);
    copy_golden(SHARD2);
    edit(INDEX, "\"" BLOCK0 "attn.to_k.weight\"", "\"" BLOCK0 "attn.to_x.weight\"");
    assert_fails(open_block(&weights, 0), H3_INTEGRITY, "names no shard for " BLOCK0 "attn.to_k.weight");
    copy_golden(INDEX);
    edit(INDEX, "\"" BLOCK0 "norm1.weight\": \"" SHARD2, "\"" BLOCK0 "norm1.weight\": \"../" SHARD2);
    assert_fails(open_block(&weights, 0), H3_INTEGRITY, "no plain file name");
    copy_golden(INDEX);
    edit(SHARD2, BLOCK0 "norm1.weight", BLOCK0 "norn1.weight");
    assert_fails(open_block(&weights, 0), H3_INTEGRITY, "the tensor " BLOCK0 "norm1.weight is missing");
    copy_golden(SHARD2);
    edit("config.json", "\"attention_head_dim\": 16", "\"attention_head_dim\": 12");
    assert_fails(open_block(&weights, 0), H3_INTEGRITY, "wrong shape");
}

/* A bit of each tensor in turn, and digests that are missing or too many. */
static void a_changed_block(void **state)
{
    (void)state;
    h3_weights *weights;
    h3_safetensors file;
    cJSON *digests = digests_of_block0(), *digest;
    cut_to_block0(0);
    cJSON_ArrayForEach(digest, digests) {
        size_t size;
        char *content = get(in_folder(SHARD2), &size);
        assert_good(h3_safetensors_parse(&file, (unsigned char *)content, size, "the part"));
        const h3_tensor *tensor = h3_safetensors_find(&file, digest->string);
        ((unsigned char *)tensor->data)[h3_tensor_bytes(tensor) - 1] ^= 1;
        put(SHARD2, content, size);
        assert_good(open_block(&weights, 0));
        assert_fails(h3_weights_require_block(weights, 0, digests, "the manifest"), H3_INTEGRITY, digest->string);
        assert_non_null(strstr(h3_error_text(), SHARD2));
        h3_weights_free(weights);
        ((unsigned char *)tensor->data)[h3_tensor_bytes(tensor) - 1] ^= 1;
        put(SHARD2, content, size);
        h3_safetensors_close(&file);
        free(content);
    }
    assert_block0(digests);
    assert_good(open_block(&weights, 0));
    cJSON_AddStringToObject(digests, "transformer_blocks.1.norm1.weight", "00");
    assert_fails(h3_weights_require_block(weights, 0, digests, "the manifest"), H3_INTEGRITY, "digests of 13 tensors where block 0 has 12");
    cJSON_DeleteItemFromObjectCaseSensitive(digests, "transformer_blocks.1.norm1.weight");
    cJSON_DeleteItemFromObjectCaseSensitive(digests, BLOCK0 "norm2.weight");
    assert_fails(h3_weights_require_block(weights, 0, digests, "the manifest"), H3_INTEGRITY, "no digest of " BLOCK0 "norm2.weight");
    assert_fails(h3_weights_require_block(weights, 0, NULL, "the manifest"), H3_INTEGRITY, "no digest");
    h3_weights_free(weights);
    cJSON_Delete(digests);
}

/* --- hashing -------------------------------------------------------------------------------------------------------- */

typedef struct ticks {
    int count, backward;
    int64_t done, total;
} ticks;

static void on_tick(void *user, int64_t done, int64_t total)
{
    ticks *seen = user;
    seen->count++;
    seen->backward += done <= seen->done;
    seen->done = done;
    seen->total = total;
}

/* Signs of life come often and rise to the end, whatever the number of threads; the hashes are those of the files. */
static void hashing_shows_life(void **state)
{
    (void)state;
    enum { MEGABYTE = 1 << 20 };
    static const size_t sizes[] = {9 * MEGABYTE + 1, 0, 4 * MEGABYTE, 1};
    h3_hash_job jobs[4] = {0};
    ticks seen = {0};
    const h3_watch watch = {on_tick, &seen};
    int64_t total = 0;
    char hash[H3_SHA256_HEX];
    unsigned char *data = malloc(sizes[0]);
    for (size_t i = 0; i < sizes[0]; i++) data[i] = (unsigned char)(i * 2654435761u >> 13);
    for (int i = 0; i < 4; i++) {
        jobs[i] = (h3_hash_job){.data = data, .size = sizes[i]};
        total += (int64_t)sizes[i];
    }
    assert_good(h3_sha256_many(jobs, 4, &watch));
    for (int i = 0; i < 4; i++) {
        assert_good(h3_sha256(hash, data, sizes[i]));
        assert_string_equal(jobs[i].sha256, hash);
    }
    assert_int_equal(seen.count, 3 + 0 + 1 + 1);
    assert_int_equal(seen.backward, 0);
    assert_int_equal(seen.done, total);
    assert_int_equal(seen.total, total);
    assert_good(h3_sha256_many(jobs, 1, NULL));
    assert_good(h3_sha256_many(NULL, 0, &watch));
    free(data);
}

static void shards_are_hashed_once(void **state)
{
    (void)state;
    h3_weights *weights;
    cJSON *identity;
    ticks seen = {0};
    const h3_watch watch = {on_tick, &seen};
    cJSON *hashes = pins_of_all();
    const h3_weights_pins pins = {hashes, NULL, -1};
    assert_good(h3_weights_open_pinned(&weights, folder, &pins, 1, &watch));
    assert_int_equal(seen.count, 2);
    assert_int_equal(seen.done, seen.total);
    assert_good(h3_weights_identity(weights, &watch, &identity));
    assert_int_equal(seen.count, 2);
    cJSON_Delete(identity);
    h3_weights_free(weights);
    assert_good(h3_weights_open(&weights, folder));
    assert_good(h3_weights_identity(weights, &watch, &identity));
    assert_int_equal(seen.count, 4);
    cJSON_Delete(identity);
    h3_weights_free(weights);
    cJSON_Delete(hashes);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, remove_folder)
    const struct CMUnitTest tests[] = {
        TEST(links_to_files_are_followed),
        TEST(other_links_are_refused),
        TEST(other_readers_follow_no_link),
        TEST(a_bit_of_a_pinned_file),
        TEST(pins_without_hashing),
        TEST(sizes_and_strangers),
        TEST(a_block_from_parts),
        TEST(a_block_that_is_not_there),
        TEST(a_changed_block),
        TEST(hashing_shows_life),
        TEST(shards_are_hashed_once),
    };
#undef TEST
    return cmocka_run_group_tests(tests, NULL, NULL);
}
