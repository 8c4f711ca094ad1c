/* Text and file helpers, hashes, and the lines for people. */
#include "golden_files.h"

#include <fcntl.h>

#include "base/log.h"

static void formats_and_paths(void **state)
{
    char *text, path[H3_PATH_MAX], *longer = malloc(H3_PATH_MAX + 1);
    (void)state;
    assert_good(h3_format(&text, "%s-%d", "a", 7));
    assert_string_equal(text, "a-7");
    free(text);
    memset(longer, 'x', H3_PATH_MAX);
    longer[H3_PATH_MAX - 1] = 0;
    assert_good(h3_path(path, "%s", longer));
    longer[H3_PATH_MAX - 1] = 'x';
    longer[H3_PATH_MAX] = 0;
    assert_fails(h3_path(path, "%s", longer), H3_USAGE, "too long");
    free(longer);
}

static void hashes_are_sha256(void **state)
{
    (void)state;
    assert_true(sha256_is("", 0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"));
    assert_true(sha256_is("abc", 3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"));
    assert_false(sha256_is("abd", 3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"));
    char hash[H3_SHA256_HEX], direct[H3_SHA256_HEX], *content;
    size_t size;
    int64_t bytes;
    const char *path = golden_path("noise.json");
    assert_good(h3_sha256_file(hash, path, &bytes, H3_INTEGRITY));
    assert_good(h3_file_read(&content, &size, path, 1 << 20, H3_INTEGRITY));
    assert_int_equal(bytes, size);
    assert_int_equal(content[size], 0);
    assert_good(h3_sha256(direct, content, size));
    assert_string_equal(hash, direct);
    free(content);
    assert_fails(h3_file_read(&content, &size, path, 100, H3_USAGE), H3_USAGE, "larger than the 100 bytes");
    assert_null(content);
    assert_fails(h3_sha256_file(hash, "tests", &bytes, H3_USAGE), H3_USAGE, "not a regular file");
    assert_fails(h3_sha256_file(hash, "tests/none", &bytes, H3_INTEGRITY), H3_INTEGRITY, "tests/none");
}

static unsigned char nibble(char c) { return (unsigned char)(c <= '9' ? c - '0' : c - 'a' + 10); }

/* The digest by its definition: the hash of the pieces' 32-byte hashes. */
static void slow_digest(char out[H3_SHA256_HEX], const unsigned char *data, size_t size)
{
    unsigned char hashes[8][32];
    size_t pieces = 0;
    for (size_t start = 0; start < size; start += 4194304, pieces++) {
        char hex[H3_SHA256_HEX];
        assert_good(h3_sha256(hex, data + start, size - start < 4194304 ? size - start : 4194304));
        for (int i = 0; i < 32; i++) hashes[pieces][i] = (unsigned char)(nibble(hex[2 * i]) << 4 | nibble(hex[2 * i + 1]));
    }
    assert_good(h3_sha256(out, hashes, pieces * 32));
}

static void digest_is_a_hash_of_piece_hashes(void **state)
{
    static const size_t sizes[] = {0, 1, 4194303, 4194304, 4194305, 3 * 4194304 + 17};
    unsigned char *data = malloc(3 * 4194304 + 17);
    (void)state;
    for (size_t i = 0; i < 3 * 4194304 + 17; i++) data[i] = (unsigned char)(i * 2654435761u >> 24);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char fast[H3_SHA256_HEX], slow[H3_SHA256_HEX];
        assert_good(h3_digest(fast, data, sizes[i]));
        slow_digest(slow, data, sizes[i]);
        assert_string_equal(fast, slow);
        if (sizes[i] == 0) continue;
        data[sizes[i] - 1] ^= 1;
        assert_good(h3_digest(slow, data, sizes[i]));
        assert_string_not_equal(fast, slow);
    }
    free(data);
}

static void globs(void **state)
{
    static const struct { const char *pattern, *text; int matches;
    } cases[] = {
        {"*", "", 1},
        {"", "", 1},
        {"", "a", 0},
        {"a?c", "abc", 1},
        {"a?c", "ac", 0},
        {"block0*", "block0.norm1", 1},
        {"block0*", "block10", 0},
        {"*norm*", "block0.q_norm", 1},
        {"*.norm?", "block0.norm12", 0},
        {"a*b*c", "aXbYbZc", 1},
        {"a*b*c", "aXbYbZ", 0},
        {"[a]", "a", 0},
        {"**a**", "a", 1},
        {"a", "ab", 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(h3_glob(cases[i].pattern, cases[i].text), cases[i].matches);
    char pattern[400], text[2000]; /* must not take exponential time */
    for (int i = 0; i < 398; i += 2) memcpy(pattern + i, "*a", 2);
    pattern[398] = 'b';
    pattern[399] = 0;
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = 0;
    assert_int_equal(h3_glob(pattern, text), 0);
}

/* Runs `work` with a stream's descriptor turned to a file; returns what it wrote. */
static char *captured(int descriptor, void (*work)(void))
{
    char path[] = "/tmp/h3-test-text-XXXXXX", *content;
    size_t size;
    int file = mkstemp(path), kept = dup(descriptor);
    fflush(NULL);
    dup2(file, descriptor);
    work();
    fflush(NULL);
    dup2(kept, descriptor);
    close(kept);
    close(file);
    assert_good(h3_file_read(&content, &size, path, 1 << 16, H3_INTEGRITY));
    unlink(path);
    return content;
}

static void say_two(void)
{
    h3_log_enable(0);
    h3_say("quiet");
    h3_log_enable(1);
    h3_say("VALID %d", 7);
}

static void say_timed(void)
{
    h3_log_enable(0);
    h3_say_timed(1, "quiet");
    h3_log_enable(1);
    h3_say_timed(12.34, "stage %d", 1);
    h3_say_timed(0.06, "%0100d", 7);
}

static void complain_once(void)
{
    h3_log_enable(0);
    h3_complain("h3_test", "something; do this");
    h3_log_enable(1);
}

static void make_progress(void)
{
    h3_progress progress;
    h3_progress_start(&progress, "reference pass", "blocks", 8);
    for (int i = 0; i < 8; i++) h3_progress_add(&progress, 1);
    progress.last -= 11;
    progress.start -= 11;
    progress.done = 4;
    h3_progress_add(&progress, 0);
    progress.done = 8;
    h3_progress_end(&progress);
    h3_progress_start(&progress, "generate", "steps", 100);
    h3_progress_resume(&progress, 78);
    progress.last -= 11;
    progress.start -= 11;
    h3_progress_add(&progress, 11);
    h3_progress_end(&progress);
}

static void lines_for_people(void **state)
{
    (void)state;
    char *text = captured(STDOUT_FILENO, say_two);
    assert_string_equal(text, "VALID 7\n");
    free(text);
    text = captured(STDOUT_FILENO, say_timed);
    char expected[300];
    snprintf(expected, sizeof expected, "%-96s   12.3 s\n%0100d    0.1 s\n", "stage 1", 7);
    assert_string_equal(text, expected);
    free(text);
    text = captured(STDERR_FILENO, complain_once);
    assert_string_equal(text, "h3_test: something; do this\n");
    free(text);
    text = captured(STDERR_FILENO, make_progress);
    assert_string_equal(text, "reference pass 4/8 blocks  0.364/s  11 s left\ngenerate 89/100 steps  1/s  11 s left\n");
    free(text);
    double start = h3_clock();
    assert_true(start > 0 && h3_clock() >= start);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(formats_and_paths),
        cmocka_unit_test(hashes_are_sha256),
        cmocka_unit_test(digest_is_a_hash_of_piece_hashes),
        cmocka_unit_test(globs),
        cmocka_unit_test(lines_for_people),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
