/* An evidence archive in memory, as archive_evidence.sh makes it, for tests that then spoil it. */
#ifndef H3_TESTS_BAG_MAKER_H
#define H3_TESTS_BAG_MAKER_H

#include "store_files.h"

#include <openssl/evp.h>
#include <openssl/pem.h>

#include "store/bag.h"
#include "store/tar.h"

typedef struct member {
    char name[200];
    char *data;
    size_t size;
} member;

enum { MEMBERS = 16, BAGIT = 0, INFO, MANIFEST, PIECES, TAGMANIFEST, FIRST_PAYLOAD };

typedef struct bag {
    member members[MEMBERS];
    size_t count;
    EVP_PKEY *key; /* NULL: not signed */
} bag;

typedef struct bytes {
    char *data;
    size_t size;
} bytes;

static void append(bytes *out, const void *data, size_t size)
{
    out->data = realloc(out->data, out->size + size + 1);
    assert_non_null(out->data);
    memcpy(out->data + out->size, data, size);
    out->size += size;
    out->data[out->size] = 0;
}

static void append_text(bytes *out, const char *text) { append(out, text, strlen(text)); }

static member *add(bag *out, const char *name, const void *data, size_t size)
{
    assert_true(out->count < MEMBERS);
    member *made = &out->members[out->count++];
    snprintf(made->name, sizeof made->name, "%s", name);
    bytes copy = {0};
    append(&copy, data, size);
    made->data = copy.data;
    made->size = copy.size;
    return made;
}

static void put(bag *out, int at, const char *text)
{
    free(out->members[at].data);
    out->members[at].data = NULL;
    bytes copy = {0};
    append_text(&copy, text);
    out->members[at].data = copy.data;
    out->members[at].size = copy.size;
}

static void list(bytes *out, const member *file)
{
    char line[400], sha256[H3_SHA256_HEX];
    assert_good(h3_sha256(sha256, file->data, file->size));
    snprintf(line, sizeof line, "%s  %s\n", sha256, strchr(file->name, '/') + 1);
    append_text(out, line);
}

/* The tag files as the script makes them, from the payload that is there. */
static void seal_lists(bag *out)
{
    bytes manifest = {0};
    char info[200];
    size_t octets = 0, payload = 0;
    append_text(&manifest, "");
    for (size_t i = FIRST_PAYLOAD; i < out->count; i++) {
        if (strstr(out->members[i].name, "/data/") == NULL) continue;
        list(&manifest, &out->members[i]);
        octets += out->members[i].size;
        payload++;
    }
    snprintf(info, sizeof info, "External-Identifier: test\nPayload-Oxum: %zu.%zu\nH3-Verdict: VALID\n", octets, payload);
    put(out, BAGIT, "BagIt-Version: 1.0\nTag-File-Character-Encoding: UTF-8\n");
    put(out, INFO, info);
    put(out, MANIFEST, manifest.data);
    free(manifest.data);
}

static void seal_tags(bag *out)
{
    bytes tags = {0};
    list(&tags, &out->members[INFO]);
    list(&tags, &out->members[BAGIT]);
    for (size_t i = FIRST_PAYLOAD; i < out->count; i++)
        if (strstr(out->members[i].name, "/history/") != NULL) list(&tags, &out->members[i]);
    list(&tags, &out->members[MANIFEST]);
    list(&tags, &out->members[PIECES]);
    put(out, TAGMANIFEST, tags.data);
    free(tags.data);
}

static void begin(bag *out)
{
    static const char *const names[] = {"run/bagit.txt", "run/bag-info.txt", "run/manifest-sha256.txt", "run/pieces-sha256.txt",
                                        "run/tagmanifest-sha256.txt"};
    memset(out, 0, sizeof *out);
    for (int i = 0; i < FIRST_PAYLOAD; i++) add(out, names[i], "", 0);
}

static void small_bag(bag *out)
{
    begin(out);
    add(out, "run/data/gate.json", "{\"verdict\": \"VALID\"}\n", 21);
    add(out, "run/data/plan.json", "{}\n", 3);
    add(out, "run/history/logs/gate.log", "all is well\n", 12);
    seal_lists(out);
    seal_tags(out);
}

static void leave_out(bag *from, size_t at)
{
    free(from->members[at].data);
    memmove(&from->members[at], &from->members[at + 1], (--from->count - at) * sizeof *from->members);
}

static void drop(bag *from)
{
    for (size_t i = 0; i < from->count; i++) free(from->members[i].data);
    EVP_PKEY_free(from->key);
    memset(from, 0, sizeof *from);
}

static void append_member(bytes *out, const char *name, const void *data, size_t size)
{
    static const char zeros[H3_TAR_BLOCK];
    unsigned char header[H3_TAR_BLOCK];
    h3_tar_header(header, name, 0, (int64_t)size);
    append(out, header, sizeof header);
    if (size > 0) append(out, data, size);
    append(out, zeros, (H3_TAR_BLOCK - size % H3_TAR_BLOCK) % H3_TAR_BLOCK);
}

static void append_signature(bytes *out, const bag *from)
{
    unsigned char signature[H3_SIGNATURE_SIZE];
    size_t size = sizeof signature;
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    assert_int_equal(EVP_DigestSignInit(context, NULL, NULL, NULL, from->key), 1);
    assert_int_equal(EVP_DigestSign(context, signature, &size, (const unsigned char *)from->members[TAGMANIFEST].data,
                                    from->members[TAGMANIFEST].size),
                     1);
    EVP_MD_CTX_free(context);
    append_member(out, "run/tagmanifest-sha256.txt.sig", signature, size);
}

static bytes tar_of(const bag *from)
{
    static const char zeros[20 * H3_TAR_BLOCK];
    bytes out = {0};
    for (size_t i = 0; i < from->count; i++) {
        append_member(&out, from->members[i].name, from->members[i].data, from->members[i].size);
        if (i == TAGMANIFEST && from->key != NULL) append_signature(&out, from);
    }
    append(&out, zeros, 2 * H3_TAR_BLOCK);
    append(&out, zeros, (sizeof zeros - out.size % sizeof zeros) % sizeof zeros);
    return out;
}

#endif
