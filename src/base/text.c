#include "base/text.h"

#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HASH_BYTES = H3_SHA256_BYTES, CHUNK = 1 << 20, PIECE = H3_DIGEST_PIECE };

h3_status h3_format(char **out, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length = vasprintf(out, format, arguments);
    va_end(arguments);
    if (length >= 0) return H3_OK;
    *out = NULL;
    return h3_error(H3_ENVIRONMENT, "out of memory for a text");
}

h3_status h3_path(char out[H3_PATH_MAX], const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(out, H3_PATH_MAX, format, arguments);
    va_end(arguments);
    if (length >= 0 && length < H3_PATH_MAX) return H3_OK;
    return h3_error(H3_USAGE, "a path is too long: %.80s...; use a folder nearer to the root", out);
}

/* Why a file could not be opened. */
static const char *open_problem(int code, const char *path, int linked)
{
    struct stat info;
    if (code == ELOOP) return linked ? "symbolic links in a circle" : "a symbolic link, which is not followed";
    if (code == ENOENT && lstat(path, &info) == 0) return "a symbolic link to a file that is not there";
    return strerror(code);
}

/* A FIFO does not block. What kind of file it is, is asked of what was opened: nothing can be put in its place between the two. */
h3_status h3_open_regular(int *out, size_t *size, const char *path, int linked, h3_status status)
{
    struct stat info;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | (linked ? 0 : O_NOFOLLOW));
    if (file < 0)
        return h3_error(errno == EMFILE || errno == ENFILE ? H3_ENVIRONMENT : status, "cannot open %s: %s; check the path", path,
                        open_problem(errno, path, linked));
    if (fstat(file, &info) != 0 || !S_ISREG(info.st_mode)) {
        close(file);
        return h3_error(status, "%s is not a regular file; check the path", path);
    }
    *out = file;
    *size = (size_t)info.st_size;
    return H3_OK;
}

/* Reads until `size` bytes or the end of the file. */
static h3_status read_up_to(int file, void *data, size_t size, size_t *got, const char *path)
{
    *got = 0;
    while (*got < size) {
        ssize_t n = read(file, (char *)data + *got, size - *got);
        if (n == 0) break;
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return h3_error(H3_ENVIRONMENT, "cannot read %s: %s; check the disk", path, strerror(errno));
        *got += (size_t)n;
    }
    return H3_OK;
}

static h3_status read_opened(char **out, size_t *size, int file, size_t expected, const char *path, size_t limit, h3_status status)
{
    if (expected > limit) return h3_error(status, "%s is larger than the %zu bytes that it may have", path, limit);
    char *text = malloc(expected + 1); /* one more, so that a file that grows is noticed */
    if (text == NULL) return h3_error(H3_ENVIRONMENT, "out of memory: %zu bytes for %s", expected, path);
    h3_large_pages(text, expected + 1);
    h3_status result = read_up_to(file, text, expected + 1, size, path);
    if (result == H3_OK && *size != expected) result = h3_error(status, "%s changed while it was read; try again", path);
    if (result != H3_OK) {
        free(text);
        return result;
    }
    text[expected] = 0;
    *out = text;
    return H3_OK;
}

static h3_status read_file(char **out, size_t *size, const char *path, size_t limit, int linked, h3_status status)
{
    int file;
    size_t expected;
    *out = NULL;
    *size = 0;
    H3_TRY(h3_open_regular(&file, &expected, path, linked, status));
    h3_status result = read_opened(out, size, file, expected, path, limit, status);
    close(file);
    return result;
}

h3_status h3_file_read(char **out, size_t *size, const char *path, size_t limit, h3_status status)
{
    return read_file(out, size, path, limit, 0, status);
}

h3_status h3_file_read_linked(char **out, size_t *size, const char *path, size_t limit, h3_status status)
{
    return read_file(out, size, path, limit, 1, status);
}

static void to_hex(char out[H3_SHA256_HEX], const unsigned char hash[HASH_BYTES])
{
    for (int i = 0; i < HASH_BYTES; i++) snprintf(out + 2 * i, 3, "%02x", hash[i]);
}

static h3_status no_hash(void) { return h3_error(H3_ENVIRONMENT, "SHA-256 is not available; check the installation of OpenSSL"); }

h3_status h3_sha256(char out[H3_SHA256_HEX], const void *data, size_t size)
{
    unsigned char hash[HASH_BYTES];
    if (!EVP_Digest(data, size, hash, NULL, EVP_sha256(), NULL)) return no_hash();
    to_hex(out, hash);
    return H3_OK;
}

static h3_status hash_opened(unsigned char hash[HASH_BYTES], EVP_MD_CTX *context, int file, char *chunk, int64_t *size,
                             const char *path)
{
    size_t got;
    if (!EVP_DigestInit_ex(context, EVP_sha256(), NULL)) return no_hash();
    do {
        H3_TRY(read_up_to(file, chunk, CHUNK, &got, path));
        if (!EVP_DigestUpdate(context, chunk, got)) return no_hash();
        *size += (int64_t)got;
    } while (got == CHUNK);
    return EVP_DigestFinal_ex(context, hash, NULL) ? H3_OK : no_hash();
}

static h3_status hash_file(char out[H3_SHA256_HEX], const char *path, int64_t *size, int linked, h3_status status)
{
    int file;
    size_t expected;
    int64_t bytes = 0;
    unsigned char hash[HASH_BYTES];
    H3_TRY(h3_open_regular(&file, &expected, path, linked, status));
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    char *chunk = malloc(CHUNK);
    h3_status result = context == NULL || chunk == NULL ? h3_error(H3_ENVIRONMENT, "out of memory to hash %s", path)
                                                        : hash_opened(hash, context, file, chunk, &bytes, path);
    free(chunk);
    EVP_MD_CTX_free(context);
    close(file);
    if (result != H3_OK) return result;
    to_hex(out, hash);
    if (size != NULL) *size = bytes;
    return H3_OK;
}

h3_status h3_sha256_file(char out[H3_SHA256_HEX], const char *path, int64_t *size, h3_status status)
{
    return hash_file(out, path, size, 0, status);
}

h3_status h3_sha256_file_linked(char out[H3_SHA256_HEX], const char *path, int64_t *size, h3_status status)
{
    return hash_file(out, path, size, 1, status);
}

h3_status h3_digest(char out[H3_SHA256_HEX], const void *data, size_t size)
{
    size_t pieces = size / PIECE + (size % PIECE != 0);
    int failed = 0;
    unsigned char *hashes = malloc(pieces ? pieces * HASH_BYTES : 1);
    if (hashes == NULL) return h3_error(H3_ENVIRONMENT, "out of memory to hash %zu bytes", size);
    /* Pieces are hashed apart, so that all cores can; the digest does not depend on how many there are. */
#pragma omp parallel for schedule(dynamic) reduction(| : failed) if (pieces > 1)
    for (size_t i = 0; i < pieces; i++) {
        size_t start = i * PIECE, length = size - start < PIECE ? size - start : PIECE;
        failed |= !EVP_Digest((const char *)data + start, length, hashes + i * HASH_BYTES, NULL, EVP_sha256(), NULL);
    }
    h3_status result = failed ? no_hash() : h3_sha256(out, hashes, pieces * HASH_BYTES);
    free(hashes);
    return result;
}

int h3_glob(const char *pattern, const char *text)
{
    const char *star = NULL, *retry = NULL;
    while (*text) {
        if (*pattern == '*') {
            star = ++pattern;
            retry = text;
        } else if (*pattern == '?' || *pattern == *text) {
            pattern++;
            text++;
        } else if (star != NULL) {
            pattern = star;
            text = ++retry;
        } else {
            return 0;
        }
    }
    while (*pattern == '*') pattern++;
    return *pattern == 0;
}
