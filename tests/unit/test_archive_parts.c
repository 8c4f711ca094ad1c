/* What archives and hashes are read with: lists of hashes, public keys, Zstandard frames. */
#include "store_files.h"

#include <openssl/evp.h>
#include <openssl/pem.h>

#include "base/grouped.h"
#include "store/archive_input.h"
#include "store/bag.h"
#include "store/hash_list.h"

static void keys_that_are_none_are_refused(void **state)
{
    (void)state;
    h3_public_key key;
    write_text(in_scratch("text.pem"), "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n");
    assert_fails(h3_public_key_read(&key, in_scratch("text.pem")), H3_USAGE, "text.pem");
    write_text(in_scratch("empty.pem"), "");
    assert_fails(h3_public_key_read(&key, in_scratch("empty.pem")), H3_USAGE, "empty.pem");
    assert_fails(h3_public_key_read(&key, in_scratch("none.pem")), H3_USAGE, "none.pem");
    EVP_PKEY *wrong = EVP_PKEY_Q_keygen(NULL, NULL, "EC", "P-256");
    FILE *file = fopen(in_scratch("ec.pem"), "w");
    assert_non_null(file);
    assert_int_equal(PEM_write_PUBKEY(file, wrong), 1);
    fclose(file);
    EVP_PKEY_free(wrong);
    assert_fails(h3_public_key_read(&key, in_scratch("ec.pem")), H3_USAGE, "Ed25519");
}

static void hash_lists_are_read(void **state)
{
    (void)state;
#define H "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
    static const struct {
        const char *text, *part;
    } bad[] = {{"x", "end"},
               {"x\n", "line 1"},
               {H " a\n", "line 1"},
               {H "  \n", "line 1"},
               {H "0 a\n", "line 1"},
               {H "  a\n" H "  a\n", "twice"},
               {H "  a\n" H "  b\n" H "  ../c\n", "line 3"},
               {H "  /a\n", "line 1"},
               {H "  a\\b\n", "line 1"},
               {H "  \xc3\xa9\n", "plain ASCII"},
               {H "  a\x1b[2J\n", "plain ASCII"},
               {"0123456789ABCDEF0123456789abcdef0123456789abcdef0123456789abcdef  a\n", "line 1"}};
    h3_hash_list list;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        h3_status status = h3_hash_list_parse(&list, bad[i].text, strlen(bad[i].text), "sums", H3_USAGE);
        assert_fails(status, H3_USAGE, bad[i].part);
        assert_null(list.items);
    }
    assert_fails(h3_hash_list_parse(&list, H "  a\0b\n", 70, "sums", H3_USAGE), H3_USAGE, "line 1");
    assert_good(h3_hash_list_parse(&list, H "  b\n" H " *a/c\n", 2 * 66 + 6, "sums", H3_USAGE));
    assert_int_equal(list.count, 2);
    assert_string_equal(list.items[0].path, "b");
    assert_string_equal(h3_hash_list_find(&list, "a/c")->sha256, H);
    assert_null(h3_hash_list_find(&list, "c"));
    h3_hash_list_free(&list);
    assert_good(h3_hash_list_parse(&list, "", 0, "sums", H3_USAGE));
    assert_int_equal(list.count, 0);
    h3_hash_list_free(&list);

    write_text(in_scratch("sums.json"), " {\"b\": \"" H "\", \"a\": \"" H "\"}");
    assert_good(h3_hash_list_read(&list, in_scratch("sums.json"), H3_USAGE));
    assert_int_equal(list.count, 2);
    assert_string_equal(list.items[1].path, "a");
    h3_hash_list_free(&list);
    static const char *const wrong[] = {"",
                                        "{}",
                                        "{\"a\": 1}",
                                        "{\"a\": \"12\"}",
                                        "{\"a\": \"" H "\", \"a\": \"" H "\"}",
                                        "{\"../a\": \"" H "\"}",
                                        "{\"a\": \"" H "\"",
                                        "{\"a\\nb\": \"" H "\"}",
                                        "[]"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        write_text(in_scratch("wrong.json"), wrong[i]);
        assert_int_equal(h3_hash_list_read(&list, in_scratch("wrong.json"), H3_USAGE), H3_USAGE);
    }
#undef H
}

/* A frame by hand: "hello" as zstd -19 --single-thread --zstd=wlog=23 writes it. */
static void zstandard_frames_are_looked_at(void **state)
{
    (void)state;
    static const unsigned char hello[] = {0x28, 0xb5, 0x2f, 0xfd, 0x04, 0x68, 0x29, 0x00, 0x00,
                                          'h',  'e',  'l',  'l',  'o',  0xa3, 0x6d, 0x9f, 0x88};
    static const struct {
        size_t at;
        unsigned char value;
        const char *problem;
    } cases[] = {{0, 0x29, "frame"},   {4, 0x14, "frame"}, {4, 0x00, "frame"},   {5, 0x60, "frame"},
                 {6, 0x28, "cut off"}, {6, 0x2f, "block"}, {6, 0x31, "cut off"}, {6, 0x21, "behind"}};
    unsigned char data[sizeof hello + 1];
    static h3_bag bag;
    for (size_t i = 0; i <= sizeof cases / sizeof *cases; i++) {
        memcpy(data, hello, sizeof hello);
        if (i > 0) data[cases[i - 1].at] = cases[i - 1].value;
        write_file(in_scratch("frame"), data, sizeof hello);
        FILE *file = fopen(in_scratch("frame"), "rb");
        assert_non_null(file);
        const char *problem = h3_zstd_frame_problem(fileno(file), sizeof hello);
        fclose(file);
        if (i == 0) assert_null(problem);
        else if (problem == NULL || strstr(problem, cases[i - 1].problem) == NULL)
            fail_msg("case %zu: %s", i, problem ? problem : "no problem");
    }
    memcpy(data, hello, sizeof hello);
    data[sizeof hello] = 0;
    write_file(in_scratch("frame"), data, sizeof data);
    assert_fails(h3_bag_verify(&bag, in_scratch("frame"), NULL), H3_INTEGRITY, "bytes behind its end");
    for (size_t size = 0; size < sizeof hello; size++) {
        write_file(in_scratch("frame"), hello, size);
        assert_int_equal(h3_bag_verify(&bag, in_scratch("frame"), NULL), H3_INTEGRITY);
    }
}

static void numbers_are_grouped(void **state)
{
    (void)state;
    char text[H3_GROUPED_SIZE];
    assert_string_equal(h3_grouped(text, 0), "0");
    assert_string_equal(h3_grouped(text, 999), "999");
    assert_string_equal(h3_grouped(text, 1000), "1,000");
    assert_string_equal(h3_grouped(text, -1234567), "-1,234,567");
    assert_string_equal(h3_grouped(text, INT64_MIN), "-9,223,372,036,854,775,808");
}

int main(void)
{
#define SCRATCH_TEST(f) cmocka_unit_test_setup_teardown(f, make_scratch, remove_scratch)
    const struct CMUnitTest tests[] = {
        SCRATCH_TEST(keys_that_are_none_are_refused),
        SCRATCH_TEST(hash_lists_are_read),
        SCRATCH_TEST(zstandard_frames_are_looked_at),
        cmocka_unit_test(numbers_are_grouped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
