#include "store/tar.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "store/publish.h"

/* Fields of a ustar header. */
enum {
    NAME = 0,
    MODE = 100,
    UID = 108,
    GID = 116,
    SIZE = 124,
    MTIME = 136,
    CHECKSUM = 148,
    TYPE = 156,
    MAGIC = 257,
    MAJOR = 329,
    MINOR = 337,
    PREFIX = 345
};
enum { NAME_SIZE = 100, PREFIX_SIZE = 155, RECORD = 20 * H3_TAR_BLOCK };

static void put_checksum(unsigned char header[H3_TAR_BLOCK])
{
    char text[24];
    unsigned sum = 0;
    memcpy(header + CHECKSUM, "        ", 8);
    for (size_t i = 0; i < H3_TAR_BLOCK; i++) sum += header[i];
    snprintf(text, sizeof text, "%06o", sum);
    memcpy(header + CHECKSUM, text, 7);
}

void h3_tar_header(unsigned char out[H3_TAR_BLOCK], const char *name, size_t prefix, int64_t size)
{
    char text[24];
    memset(out, 0, H3_TAR_BLOCK);
    memcpy(out + PREFIX, name, prefix);
    if (prefix > 0) name += prefix + 1;
    memcpy(out + NAME, name, strnlen(name, NAME_SIZE));
    memcpy(out + MODE, "0000644", 8);
    memcpy(out + UID, "0000000", 8);
    memcpy(out + GID, "0000000", 8);
    snprintf(text, sizeof text, "%011" PRIo64, (uint64_t)size);
    memcpy(out + SIZE, text, 12);
    memcpy(out + MTIME, "00000000000", 12);
    out[TYPE] = '0';
    memcpy(out + MAGIC, "ustar\00000", 8);
    memcpy(out + MAJOR, "0000000", 8);
    memcpy(out + MINOR, "0000000", 8);
    put_checksum(out);
}

/* GNU tar from 1.35 on leaves the device numbers of regular files blank. */
static void blank_devices(unsigned char header[H3_TAR_BLOCK])
{
    memset(header + MAJOR, 0, PREFIX - MAJOR);
    put_checksum(header);
}

static h3_status read_exactly(h3_tar *tar, void *data, size_t size)
{
    size_t got;
    H3_TRY(tar->stream.read(tar->stream.user, data, size, &got));
    tar->position += (int64_t)got;
    return got == size ? H3_OK
                       : h3_error(H3_INTEGRITY, "%s is cut off at byte %" PRId64 " of its tar; fetch it again", tar->stream.name,
                                  tar->position);
}

static int all_zero(const unsigned char *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (bytes[i] != 0) return 0;
    return 1;
}

static h3_status skip_rest(h3_tar *tar)
{
    unsigned char piece[8 * H3_TAR_BLOCK];
    while (tar->left > 0) {
        size_t size = tar->left < (int64_t)sizeof piece ? (size_t)tar->left : sizeof piece;
        H3_TRY(read_exactly(tar, piece, size));
        tar->left -= (int64_t)size;
    }
    H3_TRY(read_exactly(tar, piece, (size_t)tar->padding));
    int clean = all_zero(piece, (size_t)tar->padding);
    tar->padding = 0;
    return clean
               ? H3_OK
               : h3_error(H3_INTEGRITY, "%s: there are bytes behind the end of %s; it has changed", tar->stream.name, tar->name);
}

/* After one zero block: another one, and zeros up to a whole record. */
static h3_status read_end(h3_tar *tar)
{
    unsigned char rest[RECORD];
    size_t expected = (size_t)((RECORD - tar->position % RECORD) % RECORD), got;
    if (expected == 0) expected = RECORD; /* the second zero block has a record of its own */
    H3_TRY(tar->stream.read(tar->stream.user, rest, expected, &got));
    int good = got == expected && all_zero(rest, got);
    unsigned char more;
    H3_TRY(tar->stream.read(tar->stream.user, &more, 1, &got));
    return good && got == 0
               ? H3_OK
               : h3_error(H3_INTEGRITY, "%s does not end as it should behind %s; it has changed", tar->stream.name, tar->name);
}

static const char *type_name(unsigned char type)
{
    switch (type) {
    case '1': return "a hard link";
    case '2': return "a symbolic link";
    case '3':
    case '4': return "a device";
    case '5': return "a folder";
    case '6': return "a pipe";
    default: return "an extension or of unknown type";
    }
}

/* What an archive may be unpacked to anywhere, and what may be printed. */
static int is_safe(const char *name)
{
    return strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._+=@,~/-") == strlen(name);
}

static h3_status read_name(h3_tar *tar, const unsigned char *header, size_t *prefix)
{
    size_t length = strnlen((const char *)header + NAME, NAME_SIZE);
    *prefix = strnlen((const char *)header + PREFIX, PREFIX_SIZE);
    memcpy(tar->name, header + PREFIX, *prefix);
    if (*prefix > 0) tar->name[*prefix] = '/';
    size_t start = *prefix > 0 ? *prefix + 1 : 0;
    memcpy(tar->name + start, header + NAME, length);
    tar->name[start + length] = 0;
    if (!is_safe(tar->name)) {
        tar->name[0] = 0;
        return h3_error(H3_INTEGRITY,
                        "%s: the file at byte %" PRId64
                        " of its tar has an unsafe name; it has changed, or is no evidence archive",
                        tar->stream.name, tar->position - H3_TAR_BLOCK);
    }
    return h3_check_relative(tar->name, tar->stream.name);
}

static h3_status read_header(h3_tar *tar, const unsigned char *header)
{
    unsigned char expected[H3_TAR_BLOCK];
    size_t prefix;
    H3_TRY(read_name(tar, header, &prefix));
    if (header[TYPE] != '0')
        return h3_error(H3_INTEGRITY, "%s: %s is %s; only regular files are in an evidence archive", tar->stream.name, tar->name,
                        type_name(header[TYPE]));
    tar->size = 0;
    for (size_t i = SIZE; i < SIZE + 11; i++) tar->size = 8 * tar->size + (header[i] & 7);
    h3_tar_header(expected, tar->name, prefix, tar->size);
    if (tar->position == H3_TAR_BLOCK) tar->no_devices = header[MAJOR] == 0; /* one version writes all of an archive */
    if (tar->no_devices) blank_devices(expected);
    if (memcmp(header, expected, H3_TAR_BLOCK) != 0)
        return h3_error(H3_INTEGRITY, "%s: the header of %s is not as archive_evidence.sh writes it; it has changed",
                        tar->stream.name, tar->name);
    tar->left = tar->size;
    tar->padding = (H3_TAR_BLOCK - tar->size % H3_TAR_BLOCK) % H3_TAR_BLOCK;
    return H3_OK;
}

h3_status h3_tar_next(h3_tar *tar, int *end)
{
    unsigned char header[H3_TAR_BLOCK];
    *end = 0;
    H3_TRY(skip_rest(tar));
    H3_TRY(read_exactly(tar, header, sizeof header));
    if (!all_zero(header, sizeof header)) return read_header(tar, header);
    *end = 1;
    return read_end(tar);
}

h3_status h3_tar_read(h3_tar *tar, void *data, size_t size, size_t *got)
{
    *got = tar->left < (int64_t)size ? (size_t)tar->left : size;
    H3_TRY(read_exactly(tar, data, *got));
    tar->left -= (int64_t)*got;
    return H3_OK;
}
