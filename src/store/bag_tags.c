/* Tag files of a bag. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/bag_internal.h"
#include "store/publish.h"

enum { TEXT_LIMIT = 256 << 20, INFO_LIMIT = 1 << 20 };

static const char bagit_text[] = "BagIt-Version: 1.0\nTag-File-Character-Encoding: UTF-8\n";

typedef struct tag_file {
    const char *name;
    size_t limit;
    char *text; /* with a 0 behind it */
    size_t size;
    char sha256[H3_SHA256_HEX];
} tag_file;

enum { BAGIT, INFO, MANIFEST, PIECES, TAGMANIFEST, TAG_FILES };
#define SIGNATURE_NAME "tagmanifest-sha256.txt.sig"

/* --- reading them ------------------------------------------------------------------------------------------------- */

h3_status h3_bag_inside(const char **out, const h3_bag *bag, const h3_tar *tar)
{
    size_t length = strlen(bag->name);
    *out = tar->name + length + 1;
    if (strncmp(tar->name, bag->name, length) == 0 && tar->name[length] == '/') return H3_OK;
    return h3_error(H3_INTEGRITY, "%s: %s lies outside the folder %s/; this is no evidence archive", tar->stream.name, tar->name,
                    bag->name);
}

static h3_status read_text(tag_file *file, h3_tar *tar)
{
    size_t got;
    if (tar->size > (int64_t)file->limit)
        return h3_error(H3_INTEGRITY, "%s: %s is larger than it can be", tar->stream.name, tar->name);
    file->size = (size_t)tar->size;
    file->text = malloc(file->size + 1);
    if (file->text == NULL) return h3_error(H3_ENVIRONMENT, "out of memory: %zu bytes for %s", file->size, tar->name);
    H3_TRY(h3_tar_read(tar, file->text, file->size, &got));
    file->text[file->size] = 0;
    return h3_sha256(file->sha256, file->text, file->size);
}

/* The first entry names the top folder. */
static h3_status read_top(h3_bag *bag, const h3_tar *tar)
{
    const char *slash = strchr(tar->name, '/');
    if (slash == NULL || strcmp(slash + 1, "bagit.txt") != 0 || (size_t)(slash - tar->name) >= sizeof bag->name)
        return h3_error(H3_INTEGRITY, "%s begins with %s instead of <name>/bagit.txt; this is no evidence archive",
                        tar->stream.name, tar->name);
    memcpy(bag->name, tar->name, (size_t)(slash - tar->name));
    return H3_OK;
}

static h3_status read_files(tag_file files[TAG_FILES], h3_bag *bag, h3_tar *tar)
{
    int end;
    for (int i = 0; i < TAG_FILES; i++) {
        const char *name;
        H3_TRY(h3_tar_next(tar, &end));
        if (end) return h3_error(H3_INTEGRITY, "%s has no %s; this is no evidence archive", tar->stream.name, files[i].name);
        if (i == 0) H3_TRY(read_top(bag, tar));
        H3_TRY(h3_bag_inside(&name, bag, tar));
        if (strcmp(name, files[i].name) != 0)
            return h3_error(H3_INTEGRITY, "%s: %s comes where %s/%s should; this is no evidence archive", tar->stream.name,
                            tar->name, bag->name, files[i].name);
        H3_TRY(read_text(&files[i], tar));
    }
    return H3_OK;
}

/* --- what they say ------------------------------------------------------------------------------------------------ */

static h3_status check_ascending(const h3_hash_list *list, const char *start, const char *where)
{
    for (size_t i = 0; i < list->count; i++) {
        if (i > 0 && strcmp(list->items[i - 1].path, list->items[i].path) >= 0)
            return h3_error(H3_INTEGRITY, "%s: %s is out of order", where, list->items[i].path);
        if (strncmp(list->items[i].path, start, strlen(start)) != 0)
            return h3_error(H3_INTEGRITY, "%s: %s does not lie in %s", where, list->items[i].path, start);
    }
    return H3_OK;
}

/* Beside the tag files only history/ may be listed. */
static h3_status check_known(const h3_hash_list *others, const tag_file files[TAG_FILES])
{
    for (size_t i = 0; i < others->count; i++) {
        const char *path = others->items[i].path;
        int known = strncmp(path, "history/", 8) == 0;
        for (int k = 0; k < TAGMANIFEST; k++) known |= strcmp(path, files[k].name) == 0;
        if (!known) return h3_error(H3_INTEGRITY, "tagmanifest-sha256.txt: %s is not part of an evidence archive", path);
    }
    return H3_OK;
}

/* The value of a line "Key: value" of bag-info.txt; 0 when there is none that fits. */
static int info_value(char *out, size_t size, const tag_file *info, const char *key)
{
    size_t length = strlen(key);
    out[0] = 0;
    for (const char *line = info->text; line != NULL && *line; line = strchr(line, '\n'), line += line != NULL) {
        if (strncmp(line, key, length) != 0 || strncmp(line + length, ": ", 2) != 0) continue;
        size_t value = strcspn(line + length + 2, "\n");
        if (value >= size) return 0;
        memcpy(out, line + length + 2, value);
        out[value] = 0;
        for (char *c = out; *c; c++)
            if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?'; /* it will be printed */
        return 1;
    }
    return 0;
}

static h3_status read_info(h3_bag_tags *out, h3_bag *bag, const tag_file *info, const char *where)
{
    char oxum[64];
    int used = -1;
    info_value(bag->plan, sizeof bag->plan, info, "External-Identifier");
    info_value(bag->verdict, sizeof bag->verdict, info, "H3-Verdict");
    int found = info_value(oxum, sizeof oxum, info, "Payload-Oxum") &&
                sscanf(oxum, "%18" SCNd64 ".%18" SCNd64 "%n", &out->octets, &out->count, &used) == 2;
    if (found && used == (int)strlen(oxum) && strspn(oxum, "0123456789.") == strlen(oxum)) return H3_OK;
    return h3_error(H3_INTEGRITY, "%s: bag-info.txt has no Payload-Oxum: <bytes>.<files>", where);
}

static h3_status read_piece(h3_bag_piece *out, char *line)
{
    int used = -1;
    size_t length = strlen(line);
    *out = (h3_bag_piece){.sha256 = line};
    int good = length > H3_SHA256_HEX && h3_is_sha256(line, H3_SHA256_HEX - 1) && line[H3_SHA256_HEX - 1] == ' ' &&
               sscanf(line + H3_SHA256_HEX, "%18" SCNd64 "-%18" SCNd64 "  %n", &out->first, &out->last, &used) == 2 && used > 0;
    if (!good || out->first < 0 || out->first % H3_BAG_PIECE != 0 || out->last < out->first ||
        out->last - out->first >= H3_BAG_PIECE)
        return h3_error(H3_INTEGRITY, "pieces-sha256.txt: the line \"%.100s\" is malformed", line);
    out->path = line + H3_SHA256_HEX + used;
    line[H3_SHA256_HEX - 1] = 0;
    return H3_OK;
}

static h3_status read_pieces(h3_bag_tags *out, tag_file *file)
{
    size_t lines = 0;
    for (size_t i = 0; i < file->size; i++) lines += file->text[i] == '\n';
    if (file->size > 0 && file->text[file->size - 1] != '\n')
        return h3_error(H3_INTEGRITY, "pieces-sha256.txt: the last line does not end");
    out->pieces = malloc((lines + 1) * sizeof *out->pieces);
    if (out->pieces == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for %zu pieces", lines);
    out->pieces_text = file->text; /* the pieces point into it */
    file->text = NULL;
    char *line = out->pieces_text;
    for (size_t i = 0; i < lines; i++) {
        char *end = strchr(line, '\n');
        if (end == NULL) return h3_error(H3_INTEGRITY, "pieces-sha256.txt: a line holds a 0 byte");
        *end = 0;
        H3_TRY(read_piece(&out->pieces[i], line));
        const h3_bag_piece *piece = &out->pieces[i], *before = &out->pieces[i > 0 ? i - 1 : 0];
        int order = i > 0 ? strcmp(before->path, piece->path) : -1;
        if (order > 0 || (order == 0 && before->first >= piece->first))
            return h3_error(H3_INTEGRITY, "pieces-sha256.txt: %s is out of order", piece->path);
        line = end + 1;
    }
    out->piece_count = lines;
    return H3_OK;
}

/* --- whether they hold -------------------------------------------------------------------------------------------- */

static h3_status check_tag_hashes(const h3_bag_tags *tags, const tag_file files[TAG_FILES], const char *where)
{
    for (int i = 0; i < TAGMANIFEST; i++) {
        const h3_hash_entry *listed = h3_hash_list_find(&tags->others, files[i].name);
        if (listed == NULL) return h3_error(H3_INTEGRITY, "%s: tagmanifest-sha256.txt does not list %s", where, files[i].name);
        if (strcmp(listed->sha256, files[i].sha256) != 0)
            return h3_error(H3_INTEGRITY, "%s: %s has changed since it was sealed (SHA-256 %.12s..., expected %.12s...)", where,
                            files[i].name, files[i].sha256, listed->sha256);
    }
    return H3_OK;
}

static h3_status check_signature(h3_bag *bag, h3_tar *tar, const tag_file *signed_text, const h3_public_key *key, int *end)
{
    const char *name;
    unsigned char signature[H3_SIGNATURE_SIZE];
    size_t got;
    H3_TRY(h3_tar_next(tar, end));
    if (*end == 0) H3_TRY(h3_bag_inside(&name, bag, tar));
    if (*end || strcmp(name, SIGNATURE_NAME) != 0) {
        if (key == NULL) return H3_OK;
        bag->signature = H3_BAG_BAD;
        return h3_error(H3_INTEGRITY, "%s is not signed, and a signature of %s is asked for", tar->stream.name, key->fingerprint);
    }
    if (tar->size != sizeof signature) return h3_error(H3_INTEGRITY, "%s: %s is not a signature", tar->stream.name, tar->name);
    H3_TRY(h3_tar_read(tar, signature, sizeof signature, &got));
    bag->signature = H3_BAG_NOT_CHECKED;
    if (key != NULL) {
        bag->signature = H3_BAG_BAD;
        H3_TRY(h3_signature_check(key, signed_text->text, signed_text->size, signature, sizeof signature, tar->stream.name));
        bag->signature = H3_BAG_GOOD;
    }
    return h3_tar_next(tar, end);
}

static h3_status judge(h3_bag_tags *out, h3_bag *bag, h3_tar *tar, tag_file files[TAG_FILES], const h3_public_key *key, int *end)
{
    const char *where = tar->stream.name;
    memcpy(bag->digest, files[TAGMANIFEST].sha256, sizeof bag->digest);
    H3_TRY(h3_hash_list_parse(&out->others, files[TAGMANIFEST].text, files[TAGMANIFEST].size, "tagmanifest-sha256.txt",
                              H3_INTEGRITY));
    H3_TRY(check_ascending(&out->others, "", "tagmanifest-sha256.txt"));
    H3_TRY(check_known(&out->others, files));
    H3_TRY(check_signature(bag, tar, &files[TAGMANIFEST], key, end));
    H3_TRY(check_tag_hashes(out, files, where));
    if (strcmp(files[BAGIT].text, bagit_text) != 0)
        return h3_error(H3_INTEGRITY, "%s: bagit.txt is not of BagIt 1.0 in UTF-8", where);
    H3_TRY(read_info(out, bag, &files[INFO], where));
    H3_TRY(h3_hash_list_parse(&out->payload, files[MANIFEST].text, files[MANIFEST].size, "manifest-sha256.txt", H3_INTEGRITY));
    H3_TRY(check_ascending(&out->payload, "data/", "manifest-sha256.txt"));
    if (out->payload.count == 0) return h3_error(H3_INTEGRITY, "%s holds no payload", where);
    bag->files = (int64_t)out->payload.count;
    return read_pieces(out, &files[PIECES]);
}

h3_status h3_bag_tags_read(h3_bag_tags *out, h3_bag *bag, h3_tar *tar, const h3_public_key *key, int *end)
{
    tag_file files[TAG_FILES] = {{.name = "bagit.txt", .limit = sizeof bagit_text},
                                 {.name = "bag-info.txt", .limit = INFO_LIMIT},
                                 {.name = "manifest-sha256.txt", .limit = TEXT_LIMIT},
                                 {.name = "pieces-sha256.txt", .limit = TEXT_LIMIT},
                                 {.name = "tagmanifest-sha256.txt", .limit = TEXT_LIMIT}};
    memset(out, 0, sizeof *out);
    h3_status status = read_files(files, bag, tar);
    if (status == H3_OK) status = judge(out, bag, tar, files, key, end);
    for (int i = 0; i < TAG_FILES; i++) free(files[i].text);
    return status;
}

void h3_bag_tags_free(h3_bag_tags *tags)
{
    h3_hash_list_free(&tags->payload);
    h3_hash_list_free(&tags->others);
    free(tags->pieces_text);
    free(tags->pieces);
    memset(tags, 0, sizeof *tags);
}
