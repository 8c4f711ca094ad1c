/* Evidence archives: what h3_verify accepts is exactly what archive_evidence.sh writes. */
#include "bag_maker.h"

/* --- judging it --------------------------------------------------------------------------------------------------- */

static h3_bag found;

static h3_status verify_bytes(const bytes *tar, const h3_public_key *key)
{
    write_file(in_scratch("bag.tar"), tar->data, tar->size);
    return h3_bag_verify(&found, in_scratch("bag.tar"), key);
}

static h3_status verify(const bag *from, const h3_public_key *key)
{
    bytes tar = tar_of(from);
    h3_status status = verify_bytes(&tar, key);
    free(tar.data);
    return status;
}

/* It is refused, with `part` in the message or in the list of problems. */
static void refuses(const bag *from, const char *part)
{
    h3_status status = verify(from, NULL);
    if (status != H3_INTEGRITY) fail_msg("status %d instead of %d (%s)", status, H3_INTEGRITY, part);
    int named = strstr(h3_error_text(), part) != NULL;
    for (int64_t i = 0; i < found.shown; i++) named |= strstr(found.problems[i], part) != NULL;
    if (!named) fail_msg("\"%s\" is neither in \"%s\" nor in \"%s\"", part, h3_error_text(), found.problems[0]);
}

static void a_bag_verifies(void **state)
{
    (void)state;
    bag b;
    char digest[H3_SHA256_HEX];
    small_bag(&b);
    assert_good(verify(&b, NULL));
    assert_int_equal(found.files, 2);
    assert_int_equal(found.good, 2);
    assert_int_equal(found.bytes, 24);
    assert_int_equal(found.signature, H3_BAG_UNSIGNED);
    assert_string_equal(found.name, "run");
    assert_string_equal(found.plan, "test");
    assert_string_equal(found.verdict, "VALID");
    assert_good(h3_sha256(digest, b.members[TAGMANIFEST].data, b.members[TAGMANIFEST].size));
    assert_string_equal(found.digest, digest);
    drop(&b);
}

static void every_changed_byte_is_refused(void **state)
{
    (void)state;
    bag b;
    small_bag(&b);
    bytes tar = tar_of(&b);
    for (size_t i = 0; i < tar.size; i++) {
        tar.data[i] = (char)(tar.data[i] ^ (1 << i % 8));
        h3_status status = verify_bytes(&tar, NULL);
        if (status != H3_INTEGRITY) fail_msg("status %d with byte %zu changed", status, i);
        for (const char *c = h3_error_text(); *c; c++) assert_in_range((unsigned char)*c, 0x20, 0x7e);
        tar.data[i] = (char)(tar.data[i] ^ (1 << i % 8));
    }
    assert_good(verify_bytes(&tar, NULL));
    free(tar.data);
    drop(&b);
}

static void every_truncation_is_refused(void **state)
{
    (void)state;
    bag b;
    small_bag(&b);
    bytes tar = tar_of(&b);
    size_t whole = tar.size;
    for (tar.size = 0; tar.size < whole; tar.size += tar.size < 2048 ? 37 : 256)
        assert_int_equal(verify_bytes(&tar, NULL), H3_INTEGRITY);
    tar.size = whole;
    append(&tar, "x", 1);
    assert_fails(verify_bytes(&tar, NULL), H3_INTEGRITY, "does not end as it should");
    free(tar.data);
    drop(&b);
}

/* What is not as it was when it was listed. */
static void changed_missing_and_added_files_are_named(void **state)
{
    (void)state;
    bag b;
    small_bag(&b);
    b.members[FIRST_PAYLOAD].data[3] ^= 1;
    refuses(&b, "data/gate.json: SHA-256 differs");
    assert_int_equal(found.good, 1);
    assert_int_equal(found.problem_count, 1);
    drop(&b);

    small_bag(&b);
    b.members[FIRST_PAYLOAD + 2].data[3] ^= 1;
    refuses(&b, "history/logs/gate.log: SHA-256 differs");
    drop(&b);

    small_bag(&b);
    leave_out(&b, FIRST_PAYLOAD + 2);
    refuses(&b, "history/logs/gate.log: missing");
    drop(&b);

    small_bag(&b);
    leave_out(&b, FIRST_PAYLOAD + 1);
    refuses(&b, "data/plan.json: missing");
    drop(&b);

    begin(&b);
    add(&b, "run/data/plan.json", "{}\n", 3);
    seal_lists(&b);
    put(&b, INFO, "Payload-Oxum: 100.9\n");
    seal_tags(&b);
    add(&b, "run/data/report.json", "{}\n", 3);
    refuses(&b, "data/report.json: not listed");
    drop(&b);
}

static void lists_that_do_not_hold_are_refused(void **state)
{
    (void)state;
    static const struct {
        int member;
        const char *text, *part;
    } cases[] = {
        {BAGIT, "BagIt-Version: 0.97\nTag-File-Character-Encoding: UTF-8\n", "bagit.txt"},
        {INFO, "External-Identifier: x\n", "Payload-Oxum"},
        {INFO, "Payload-Oxum: 24\n", "Payload-Oxum"},
        {INFO, "Payload-Oxum: 24.2x\n", "Payload-Oxum"},
        {INFO, "Payload-Oxum: -1.2\n", "Payload-Oxum"},
        {INFO, "Payload-Oxum: 25.2\n", "Payload-Oxum does not hold"},
        {INFO, "Payload-Oxum: 24.3\n", "Payload-Oxum does not hold"},
        {INFO, "Payload-Oxum: 20.2\n", "more bytes than"},
        {MANIFEST, "", "holds no payload"},
        {MANIFEST, "nonsense\n", "line 1"},
        {PIECES, "nonsense\n", "malformed"},
        {PIECES, "no end", "does not end"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bag b;
        small_bag(&b);
        put(&b, cases[i].member, cases[i].text);
        seal_tags(&b);
        refuses(&b, cases[i].part);
        drop(&b);
    }
    bag b;
    small_bag(&b);
    put(&b, INFO, "Payload-Oxum: 24.2\nadded: later\n"); /* the seal is of another one */
    refuses(&b, "bag-info.txt has changed");
    drop(&b);
    small_bag(&b);
    put(&b, TAGMANIFEST, "");
    refuses(&b, "does not list bagit.txt");
    drop(&b);
}

/* A manifest whose every hash holds, of files that have no business in an archive. */
static void sealed_with(const char *name, const char *part)
{
    bag b;
    begin(&b);
    add(&b, "run/data/gate.json", "{}\n", 3);
    seal_lists(&b);
    seal_tags(&b);
    add(&b, name, "x", 1);
    refuses(&b, part);
    drop(&b);
}

static void unsafe_places_are_refused(void **state)
{
    (void)state;
    sealed_with("/etc/passwd", "absolute");
    sealed_with("run/data/../../x", "..");
    sealed_with("../x", "..");
    sealed_with("run/data/./x", ".");
    sealed_with("run/data//x", "run/data//x");
    sealed_with("run/data/x/", "run/data/x/");
    sealed_with("run/data/a\\b", "unsafe name");
    sealed_with("run/data/a\nb", "unsafe name");
    sealed_with("run/data/a b", "unsafe name");
    sealed_with("run/data/\xc3\xa9", "unsafe name");
    sealed_with("elsewhere/data/x", "outside the folder run/");
    sealed_with("running/data/x", "outside the folder run/");
    sealed_with("run/other.txt", "other.txt");
    sealed_with("run/data/gate.json", "twice or out of order");
    sealed_with("run/data/a", "twice or out of order");
    sealed_with("run/bagit.txt", "twice or out of order");
}

/* A header's checksum after a change. */
static void sum_again(char *header)
{
    unsigned sum = 0;
    memset(header + 148, ' ', 8);
    for (int k = 0; k < H3_TAR_BLOCK; k++) sum += (unsigned char)header[k];
    snprintf(header + 148, 8, "%06o", sum);
    header[155] = ' ';
}

/* Blanks the device numbers, two fields of eight bytes from byte 329 on, of the headers whose bit is set; how many headers there are. */
static int blank_devices(bytes *tar, uint32_t which, size_t from, size_t size)
{
    int count = 0;
    for (size_t at = 0; tar->data[at] != 0; count++) {
        char *header = tar->data + at;
        size_t length = strtoul(header + 124, NULL, 8);
        if (which >> count & 1) memset(header + from, 0, size);
        sum_again(header);
        at += H3_TAR_BLOCK + (length + H3_TAR_BLOCK - 1) / H3_TAR_BLOCK * H3_TAR_BLOCK;
    }
    return count;
}

/* GNU tar up to 1.34 writes zeros there, from 1.35 on nothing: an archive is the one or the other, in every header. */
static void device_numbers_of_either_kind_but_not_both(void **state)
{
    (void)state;
    bag b;
    small_bag(&b);
    bytes tar = tar_of(&b);
    int headers = blank_devices(&tar, 0, 329, 16);
    uint32_t all = (1u << headers) - 1;
    assert_int_equal(headers, 8);
    assert_good(verify_bytes(&tar, NULL)); /* zeros */
    free(tar.data);
    for (int i = -1; i < headers; i++) { /* all blank; then all but one, and one alone */
        tar = tar_of(&b);
        blank_devices(&tar, i < 0 ? all : all ^ 1u << i, 329, 16);
        if (i < 0) assert_good(verify_bytes(&tar, NULL));
        else assert_fails(verify_bytes(&tar, NULL), H3_INTEGRITY, "header of run/");
        free(tar.data);
        if (i < 0) continue;
        tar = tar_of(&b);
        blank_devices(&tar, 1u << i, 329, 16);
        assert_fails(verify_bytes(&tar, NULL), H3_INTEGRITY, "header of run/");
        free(tar.data);
    }
    for (int i = 0; i < 3; i++) { /* half of the fields, or one byte of them */
        static const size_t part[3][2] = {{329, 8}, {337, 8}, {329, 1}};
        tar = tar_of(&b);
        blank_devices(&tar, all, part[i][0], part[i][1]);
        assert_fails(verify_bytes(&tar, NULL), H3_INTEGRITY, "header of run/");
        free(tar.data);
    }
    drop(&b);
}

/* The same header with another type, mode, owner, time or link. */
static void unusual_headers_are_refused(void **state)
{
    (void)state;
    static const struct {
        size_t offset;
        const char *text, *part;
    } cases[] = {{156, "1", "a hard link"},    {156, "2", "a symbolic link"},  {156, "3", "a device"},
                 {156, "4", "a device"},       {156, "5", "a folder"},         {156, "6", "a pipe"},
                 {156, "x", "an extension"},   {156, "g", "an extension"},     {156, "L", "an extension"},
                 {156, "S", "an extension"},   {100, "0000755", "header"},     {108, "0000001", "header"},
                 {116, "0000001", "header"},   {136, "00000000001", "header"}, {157, "gate.json", "header"},
                 {265, "root", "header"},      {297, "root", "header"},        {263, "01", "header"},
                 {257, "ustar  ", "header"},   {500, "x", "header"},           {124, "77777777777", "more bytes than"},
                 {124, "\x80\0\0\1", "header"}};
    bag b;
    small_bag(&b);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bytes tar = tar_of(&b);
        char *header = strstr(tar.data, "run/data/gate.json");
        for (size_t at = 0; header == NULL && at < tar.size; at += H3_TAR_BLOCK)
            if (strcmp(tar.data + at, "run/data/gate.json") == 0) header = tar.data + at;
        assert_non_null(header);
        memcpy(header + cases[i].offset, cases[i].text, cases[i].text[0] == '\x80' ? 4 : strlen(cases[i].text));
        sum_again(header);
        assert_fails(verify_bytes(&tar, NULL), H3_INTEGRITY, cases[i].part);
        free(tar.data);
    }
    drop(&b);
}

static void an_oversized_list_is_not_read(void **state)
{
    (void)state;
    bag b;
    small_bag(&b);
    bytes tar = tar_of(&b);
    h3_tar_header((unsigned char *)tar.data, "run/bagit.txt", 0, (int64_t)1 << 32);
    assert_fails(verify_bytes(&tar, NULL), H3_INTEGRITY, "larger than it can be");
    free(tar.data);
    drop(&b);
}

static void damage_in_a_large_file_has_a_place(void **state)
{
    (void)state;
    enum { MIB = 1 << 20, SIZE = 9 * MIB + 5 };
    static const int64_t ends[][2] = {{0, 4 * MIB}, {4 * MIB, 8 * MIB}, {8 * MIB, SIZE}};
    bag b;
    bytes pieces = {0};
    char *large = malloc(SIZE);
    assert_non_null(large);
    for (size_t i = 0; i < SIZE; i++) large[i] = (char)(i * 2654435761u >> 13);
    begin(&b);
    member *file = add(&b, "run/data/a.h5", large, SIZE);
    for (int i = 0; i < 3; i++) {
        char sha256[H3_SHA256_HEX], line[200];
        assert_good(h3_sha256(sha256, large + ends[i][0], (size_t)(ends[i][1] - ends[i][0])));
        snprintf(line, sizeof line, "%s %lld-%lld  data/a.h5\n", sha256, (long long)ends[i][0], (long long)ends[i][1] - 1);
        append_text(&pieces, line);
    }
    seal_lists(&b);
    put(&b, PIECES, pieces.data);
    seal_tags(&b);
    assert_good(verify(&b, NULL));
    file->data[5 * MIB] ^= 1;
    refuses(&b, "data/a.h5: SHA-256 differs at byte range 4,194,304-8,388,607 (expected ");
    file->data[5 * MIB] ^= 1;
    file->data[SIZE - 1] ^= 1;
    refuses(&b, "at byte range 8,388,608-9,437,188");
    drop(&b);
    free(pieces.data);
    free(large);
}

/* --- signatures --------------------------------------------------------------------------------------------------- */

static EVP_PKEY *new_key(const char *name, h3_public_key *public)
{
    EVP_PKEY *key = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
    FILE *file = fopen(in_scratch(name), "w");
    assert_non_null(key);
    assert_non_null(file);
    assert_int_equal(PEM_write_PUBKEY(file, key), 1);
    fclose(file);
    assert_good(h3_public_key_read(public, in_scratch(name)));
    return key;
}

static void signatures_are_checked(void **state)
{
    (void)state;
    bag b;
    h3_public_key good, other;
    small_bag(&b);
    b.key = new_key("good.pem", &good);
    EVP_PKEY *another = new_key("other.pem", &other);
    assert_string_not_equal(good.fingerprint, other.fingerprint);
    assert_int_equal(strlen(good.fingerprint), 23);
    assert_good(verify(&b, &good));
    assert_int_equal(found.signature, H3_BAG_GOOD);
    assert_string_equal(found.fingerprint, good.fingerprint);
    assert_good(verify(&b, NULL));
    assert_int_equal(found.signature, H3_BAG_NOT_CHECKED);
    assert_fails(verify(&b, &other), H3_INTEGRITY, other.fingerprint);
    assert_int_equal(found.signature, H3_BAG_BAD);

    bytes tar = tar_of(&b);
    for (size_t at = 0; at < tar.size; at += H3_TAR_BLOCK)
        if (strcmp(tar.data + at, "run/tagmanifest-sha256.txt.sig") == 0) tar.data[at + H3_TAR_BLOCK + 9] ^= 1;
    assert_fails(verify_bytes(&tar, &good), H3_INTEGRITY, "the signature is not of the key");
    free(tar.data);

    /* all hashes made again after a change, by somebody without the key */
    tar = tar_of(&b);
    bag forged;
    begin(&forged);
    add(&forged, "run/data/gate.json", "{\"verdict\": \"VALID\"}\n", 21);
    add(&forged, "run/data/plan.json", "[]\n", 3);
    seal_lists(&forged);
    seal_tags(&forged);
    assert_good(verify(&forged, NULL));
    assert_fails(verify(&forged, &good), H3_INTEGRITY, "is not signed");
    forged.key = another;
    assert_fails(verify(&forged, &good), H3_INTEGRITY, "the signature is not of the key");
    assert_good(verify(&forged, &other));
    free(tar.data);
    drop(&forged);
    drop(&b);
    h3_public_key_free(&good);
    h3_public_key_free(&other);
}

int main(void)
{
#define SCRATCH_TEST(f) cmocka_unit_test_setup_teardown(f, make_scratch, remove_scratch)
    const struct CMUnitTest tests[] = {
        SCRATCH_TEST(a_bag_verifies),
        SCRATCH_TEST(every_changed_byte_is_refused),
        SCRATCH_TEST(every_truncation_is_refused),
        SCRATCH_TEST(changed_missing_and_added_files_are_named),
        SCRATCH_TEST(lists_that_do_not_hold_are_refused),
        SCRATCH_TEST(unsafe_places_are_refused),
        SCRATCH_TEST(unusual_headers_are_refused),
        SCRATCH_TEST(device_numbers_of_either_kind_but_not_both),
        SCRATCH_TEST(an_oversized_list_is_not_read),
        SCRATCH_TEST(damage_in_a_large_file_has_a_place),
        SCRATCH_TEST(signatures_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
