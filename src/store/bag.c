#include "store/bag.h"

#include <openssl/evp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/grouped.h"
#include "store/archive_input.h"
#include "store/bag_internal.h"

typedef struct check {
    h3_bag *bag;
    h3_bag_tags tags;
    h3_tar tar;
    char *piece; /* H3_BAG_PIECE bytes */
    EVP_MD_CTX *hash;
    size_t next_payload, next_other; /* in the two lists */
    int64_t octets;                  /* of listed payload files met so far */
} check;

void h3_bag_problem(h3_bag *bag, const char *format, ...)
{
    va_list arguments;
    bag->problem_count++;
    if (bag->shown == H3_BAG_SHOWN) return;
    char *line = bag->problems[bag->shown++];
    va_start(arguments, format);
    vsnprintf(line, H3_BAG_LINE, format, arguments);
    va_end(arguments);
    for (; *line; line++)
        if ((unsigned char)*line < 0x20 || (unsigned char)*line > 0x7e) *line = '?'; /* it will be printed */
}

/* --- one file ----------------------------------------------------------------------------------------------------- */

typedef struct found {
    char sha256[H3_SHA256_HEX];
    const h3_bag_piece *bad; /* the first piece that is not as listed; NULL */
    char bad_sha256[H3_SHA256_HEX];
} found;

/* The pieces of a path; *count is 0 when it has none. */
static const h3_bag_piece *pieces_of(const h3_bag_tags *tags, const char *path, size_t *count)
{
    size_t low = 0, high = tags->piece_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(tags->pieces[middle].path, path) < 0) low = middle + 1;
        else high = middle;
    }
    for (*count = 0; low + *count < tags->piece_count && strcmp(tags->pieces[low + *count].path, path) == 0; ++*count) continue;
    return tags->pieces + low;
}

static h3_status no_hash(void) { return h3_error(H3_ENVIRONMENT, "SHA-256 is not available; check the installation of OpenSSL"); }

static h3_status check_piece(found *out, const h3_bag_piece *piece, const char *data, size_t size)
{
    char sha256[H3_SHA256_HEX];
    H3_TRY(h3_sha256(sha256, data, size));
    if (strcmp(sha256, piece->sha256) == 0 && piece->last - piece->first + 1 == (int64_t)size) return H3_OK;
    out->bad = piece;
    memcpy(out->bad_sha256, sha256, sizeof sha256);
    return H3_OK;
}

static h3_status hash_file(found *out, check *in, const char *path)
{
    unsigned char hash[EVP_MAX_MD_SIZE];
    size_t count, got;
    const h3_bag_piece *pieces = pieces_of(&in->tags, path, &count);
    memset(out, 0, sizeof *out);
    if (!EVP_DigestInit_ex(in->hash, EVP_sha256(), NULL)) return no_hash();
    for (size_t i = 0;; i++) {
        H3_TRY(h3_tar_read(&in->tar, in->piece, H3_BAG_PIECE, &got));
        if (got == 0) break;
        if (!EVP_DigestUpdate(in->hash, in->piece, got)) return no_hash();
        if (i < count && out->bad == NULL) H3_TRY(check_piece(out, &pieces[i], in->piece, got));
    }
    if (!EVP_DigestFinal_ex(in->hash, hash, NULL)) return no_hash();
    for (int i = 0; i < 32; i++) snprintf(out->sha256 + 2 * i, 3, "%02x", hash[i]);
    return H3_OK;
}

static void judge_file(check *in, const h3_hash_entry *listed, const found *file)
{
    char first[H3_GROUPED_SIZE], last[H3_GROUPED_SIZE];
    if (strcmp(file->sha256, listed->sha256) == 0 && file->bad == NULL) {
        in->bag->good += strncmp(listed->path, "data/", 5) == 0;
    } else if (file->bad != NULL) {
        h3_bag_problem(in->bag, "%s: SHA-256 differs at byte range %s-%s (expected %.12s..., found %.12s...)", listed->path,
                       h3_grouped(first, file->bad->first), h3_grouped(last, file->bad->last), file->bad->sha256,
                       file->bad_sha256);
    } else {
        h3_bag_problem(in->bag, "%s: SHA-256 differs (expected %.12s..., found %.12s...)", listed->path, listed->sha256,
                       file->sha256);
    }
}

/* --- all files ---------------------------------------------------------------------------------------------------- */

/* Both the archive and its lists ascend: what is passed over in the list is missing. NULL: `path` is not listed. */
static const h3_hash_entry *advance(check *in, const h3_hash_list *list, size_t *next, const char *path)
{
    for (; *next < list->count; ++*next) {
        const h3_hash_entry *listed = &list->items[*next];
        int order = path != NULL ? strcmp(listed->path, path) : -1;
        if (order > 0) return NULL;
        if (order == 0) return &list->items[(*next)++];
        if (list == &in->tags.payload || strncmp(listed->path, "history/", 8) == 0)
            h3_bag_problem(in->bag, "%s: missing", listed->path);
    }
    return NULL;
}

static h3_status count_octets(check *in)
{
    const h3_bag_tags *tags = &in->tags;
    in->octets += in->tar.size;
    in->bag->bytes = in->octets;
    if (in->octets <= tags->octets) return H3_OK;
    return h3_error(H3_INTEGRITY, "%s: up to %s there are more bytes than bag-info.txt announces", in->tar.stream.name,
                    in->tar.name);
}

static h3_status check_file(check *in, char last[H3_TAR_NAME_SIZE])
{
    const char *path;
    found file;
    H3_TRY(h3_bag_inside(&path, in->bag, &in->tar));
    if (strcmp(last, path) >= 0)
        return h3_error(H3_INTEGRITY, "%s: %s comes twice or out of order", in->tar.stream.name, in->tar.name);
    strcpy(last, path);
    int payload = strncmp(path, "data/", 5) == 0;
    if (!payload && strncmp(path, "history/", 8) != 0) {
        h3_bag_problem(in->bag, "%s: not part of an evidence archive", path);
        return H3_OK;
    }
    const h3_hash_entry *listed =
        advance(in, payload ? &in->tags.payload : &in->tags.others, payload ? &in->next_payload : &in->next_other, path);
    if (listed == NULL) {
        h3_bag_problem(in->bag, "%s: not listed by %s", path, payload ? "manifest-sha256.txt" : "tagmanifest-sha256.txt");
        return H3_OK;
    }
    if (payload) H3_TRY(count_octets(in));
    h3_status status = hash_file(&file, in, path);
    if (status != H3_OK) return h3_error_context(status, "in %s", path);
    judge_file(in, listed, &file);
    return H3_OK;
}

static h3_status check_files(check *in, int end)
{
    char last[H3_TAR_NAME_SIZE] = "";
    while (!end) {
        H3_TRY(check_file(in, last));
        H3_TRY(h3_tar_next(&in->tar, &end));
    }
    advance(in, &in->tags.payload, &in->next_payload, NULL);
    advance(in, &in->tags.others, &in->next_other, NULL);
    if (in->bag->problem_count == 0 && (in->octets != in->tags.octets || in->bag->files != in->tags.count))
        h3_bag_problem(in->bag, "bag-info.txt: Payload-Oxum does not hold");
    if (in->bag->problem_count == 0) return H3_OK;
    return h3_error(H3_INTEGRITY, "%lld file%s changed since it was sealed; fetch the archive again",
                    (long long)in->bag->problem_count, in->bag->problem_count == 1 ? "" : "s");
}

static h3_status verify(check *in, const h3_public_key *key)
{
    int end;
    in->piece = malloc(H3_BAG_PIECE);
    in->hash = EVP_MD_CTX_new();
    if (in->piece == NULL || in->hash == NULL) return h3_error(H3_ENVIRONMENT, "out of memory to check an archive");
    H3_TRY(h3_bag_tags_read(&in->tags, in->bag, &in->tar, key, &end));
    return check_files(in, end);
}

h3_status h3_bag_verify(h3_bag *out, const char *path, const h3_public_key *key)
{
    h3_archive_input input;
    check in = {.bag = out};
    memset(out, 0, sizeof *out);
    if (key != NULL) memcpy(out->fingerprint, key->fingerprint, sizeof out->fingerprint);
    H3_TRY(h3_archive_input_open(&input, path));
    in.tar.stream = input.stream;
    h3_status status = verify(&in, key);
    h3_bag_tags_free(&in.tags);
    free(in.piece);
    EVP_MD_CTX_free(in.hash);
    h3_archive_input_close(&input);
    return status;
}
