#include "store/artifact_guard.h"

#include <stdlib.h>
#include <string.h>

#include "store/publish.h"

enum { OBJECTS_MAX = 65536, ADDRESS_BYTES = 8, ROOT_ADDRESS = 36 };

/* Kinds of object header messages. */
enum {
    NIL = 0x00, SHAPE = 0x01, LINKS = 0x02, TYPE = 0x03, FILL = 0x05, LINK = 0x06, EXTERNAL = 0x07, LAYOUT = 0x08, GROUP = 0x0a,
    FILTERS = 0x0b, ATTRIBUTE = 0x0c, CONTINUATION = 0x10, ATTRIBUTES = 0x15, REFERENCES = 0x16,
};

#define BIT(kind) (1u << (kind))
#define GROUP_KINDS (BIT(LINKS) | BIT(GROUP))
#define DATASET_KINDS (BIT(SHAPE) | BIT(TYPE) | BIT(FILL) | BIT(LAYOUT) | BIT(ATTRIBUTES))

/* Bytes being read; running past the end is remembered and gives zeros. */
typedef struct cursor {
    const unsigned char *next;
    size_t left;
    int short_of_bytes;
} cursor;

typedef struct chunk {
    size_t offset, size;
} chunk;

typedef struct guard {
    const h3_artifact_image *image;
    uint64_t *visited; /* addresses of the headers and continuations seen */
    size_t visited_count;
    chunk *pending; /* continuations still to be looked at, of all objects being walked through */
    size_t pending_count;
    char *name; /* of the object being looked at */
} guard;

static const char *check_object(guard *in, uint64_t address);

static const unsigned char *take(cursor *from, size_t size)
{
    if (size > from->left) {
        from->short_of_bytes = 1;
        return NULL;
    }
    const unsigned char *bytes = from->next;
    from->next += size;
    from->left -= size;
    return bytes;
}

static uint64_t take_number(cursor *from, size_t size)
{
    const unsigned char *bytes = take(from, size);
    uint64_t value = 0;
    for (size_t i = 0; bytes != NULL && i < size; i++) value |= (uint64_t)bytes[i] << (8 * i);
    return value;
}

static int is_used_up(const cursor *from) { return from->left == 0 && !from->short_of_bytes; }

static int is_exactly(cursor *from, const void *wanted, size_t size)
{
    const unsigned char *bytes = take(from, size);
    return bytes != NULL && memcmp(bytes, wanted, size) == 0;
}

/* Within the image, and not met before: so every walk ends, and nothing has two links. */
static const char *visit(guard *in, uint64_t address, uint64_t size)
{
    if (address > in->image->size || size > in->image->size - address) return "it reaches beyond the file";
    if (in->visited_count == OBJECTS_MAX) return "there are too many objects";
    for (size_t i = 0; i < in->visited_count; i++)
        if (in->visited[i] == address) return "it is linked more than once";
    in->visited[in->visited_count++] = address;
    return NULL;
}

/* The four bytes behind some metadata. HDF5 finds it out as well when they are wrong, but leaks memory then. */
static int has_checksum(const guard *in, size_t offset, size_t size)
{
    uint32_t stored;
    memcpy(&stored, in->image->bytes + offset + size, sizeof stored);
    return stored == h3_artifact_checksum((const unsigned char *)in->image->bytes + offset, size);
}

/* The five element types, as HDF5 encodes them, and fixed-length strings. */
static int is_known_type(cursor *from, size_t *size)
{
    static const struct {
        unsigned char length, bytes[20];
    } types[] = {
        {20, {0x11, 0x20, 31, 0, 4, 0, 0, 0, 0, 0, 32, 0, 23, 8, 0, 23, 127, 0, 0, 0}},    /* float32 */
        {20, {0x11, 0x20, 15, 0, 2, 0, 0, 0, 0, 0, 16, 0, 7, 8, 0, 7, 127, 0, 0, 0}},      /* bfloat16 */
        {20, {0x11, 0x20, 63, 0, 8, 0, 0, 0, 0, 0, 64, 0, 52, 11, 0, 52, 0xff, 3, 0, 0}},  /* float64 */
        {12, {0x10, 8, 0, 0, 4, 0, 0, 0, 0, 0, 32, 0}},                                    /* int32 */
        {12, {0x10, 8, 0, 0, 8, 0, 0, 0, 0, 0, 64, 0}},                                    /* int64 */
    };
    static const unsigned char string[4] = {0x13, 1, 0, 0};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (from->left != types[i].length || memcmp(from->next, types[i].bytes, types[i].length) != 0) continue;
        *size = types[i].bytes[4];
        return 1;
    }
    if (from->left != 8 || !is_exactly(from, string, sizeof string)) return 0;
    *size = (size_t)take_number(from, 4);
    return *size > 0 && *size <= H3_ARTIFACT_TEXT_MAX;
}

/* A simple shape of at most 5 dimensions (a scalar: of none) that cannot grow; its number of elements. */
static int is_simple_shape(cursor *from, uint64_t *count)
{
    uint64_t shape[H3_MAX_RANK];
    uint64_t version = take_number(from, 1), rank = take_number(from, 1), has_maximum = take_number(from, 1),
             kind = take_number(from, 1);
    *count = 1;
    if (version != 2 || rank > H3_MAX_RANK || has_maximum != (rank > 0) || kind != (rank > 0)) return 0;
    for (uint64_t i = 0; i < rank; i++) {
        shape[i] = take_number(from, ADDRESS_BYTES);
        if (shape[i] == 0 || __builtin_mul_overflow(*count, shape[i], count)) return 0;
    }
    for (uint64_t i = 0; i < rank; i++)
        if (take_number(from, ADDRESS_BYTES) != shape[i]) return 0;
    return is_used_up(from);
}

/* Limits (flag 1) and estimates (flag 2) for the links of a group: two 16-bit numbers each. */
static int is_group_information(cursor *from)
{
    uint64_t version = take_number(from, 1), flags = take_number(from, 1);
    return version == 0 && flags <= 3 && from->left == (flags & 1) * 4 + (flags >> 1) * 4 && !from->short_of_bytes;
}

/* Version, flags, two addresses of further storage that is not there. */
static int is_nothing_elsewhere(cursor *from)
{
    uint64_t version = take_number(from, 1), flags = take_number(from, 1);
    uint64_t heap = take_number(from, ADDRESS_BYTES), tree = take_number(from, ADDRESS_BYTES);
    return version == 0 && flags == 0 && heap == UINT64_MAX && tree == UINT64_MAX && is_used_up(from);
}

static int is_without_fill_value(cursor *from)
{
    uint64_t version = take_number(from, 1), flags = take_number(from, 1);
    return version == 3 && (flags & 0x20) == 0 && is_used_up(from);
}

static const char *check_layout(cursor *from)
{
    uint64_t version = take_number(from, 1), kind = take_number(from, 1);
    if (version == 3 && kind == 1) return from->left == 2 * ADDRESS_BYTES ? NULL : "its storage is malformed";
    return version == 3 || version == 4 ? "it is not stored contiguously (chunked, compact or virtual)"
                                        : "its storage is malformed";
}

static const char *check_attribute(cursor *from)
{
    static const unsigned char start[2] = {3, 0}; /* version, nothing shared */
    static const char malformed[] = "an attribute is malformed";
    size_t element;
    uint64_t count;
    if (!is_exactly(from, start, sizeof start)) return malformed;
    size_t name_size = (size_t)take_number(from, 2), type_size = (size_t)take_number(from, 2),
           shape_size = (size_t)take_number(from, 2);
    uint64_t character_set = take_number(from, 1);
    const unsigned char *name = take(from, name_size), *type = take(from, type_size), *shape = take(from, shape_size);
    if (name == NULL || type == NULL || shape == NULL || character_set != 0) return malformed;
    if (name_size == 0 || strnlen((const char *)name, name_size) != name_size - 1) return malformed;
    if (!is_known_type(&(cursor){.next = type, .left = type_size}, &element)) return "an attribute has a type that none has";
    if (!is_simple_shape(&(cursor){.next = shape, .left = shape_size}, &count)) return malformed;
    return count <= from->left && count * element == from->left ? NULL : malformed;
}

/* The link's object, under its name behind the group's. */
static const char *check_linked(guard *in, const unsigned char *link, size_t length, uint64_t address)
{
    size_t prefix = strlen(in->name), start = prefix + (prefix > 0);
    if (start + length >= H3_ARTIFACT_NAME_SIZE) return "a name in it is too long";
    if (memchr(link, 0, length) != NULL || memchr(link, '/', length) != NULL) return "a name in it is malformed";
    if (prefix > 0) in->name[prefix] = '/';
    memcpy(in->name + start, link, length);
    in->name[start + length] = 0;
    const char *problem =
        h3_check_relative(in->name, "a link") == H3_OK ? check_object(in, address) : "its name is refused as a path";
    if (problem == NULL) in->name[prefix] = 0;
    return problem;
}

/* Version 1; the flags say how long the length is, and what else there is: 4 an order, 8 a kind (hard without it), 16 a set of
 * characters. */
static const char *check_link(guard *in, cursor *from)
{
    uint64_t version = take_number(from, 1), flags = take_number(from, 1);
    if (version != 1 || (flags & ~(uint64_t)0xb) != 0) return "a link in it is malformed";
    uint64_t kind = flags & 8 ? take_number(from, 1) : 0;
    size_t length = (size_t)take_number(from, (size_t)1 << (flags & 3));
    const unsigned char *link = take(from, length);
    if (link == NULL || length == 0) return "a link in it is malformed";
    if (kind != 0) return "a link in it is soft or external";
    uint64_t address = take_number(from, ADDRESS_BYTES);
    return is_used_up(from) ? check_linked(in, link, length, address) : "a link in it is malformed";
}

static const char *check_continuation(guard *in, cursor *from)
{
    uint64_t address = take_number(from, ADDRESS_BYTES), size = take_number(from, ADDRESS_BYTES);
    if (!is_used_up(from) || size < 8) return "its header is malformed";
    const char *problem = visit(in, address, size);
    if (problem != NULL) return problem;
    if (in->pending_count == OBJECTS_MAX || memcmp(in->image->bytes + address, "OCHK", 4) != 0) return "its header is malformed";
    if (!has_checksum(in, (size_t)address, (size_t)size - 4)) return "its header does not have its checksum";
    in->pending[in->pending_count++] = (chunk){(size_t)address + 4, (size_t)size - 8};
    return NULL;
}

static const char *check_message(guard *in, uint64_t kind, cursor *body)
{
    size_t element;
    uint64_t count;
    switch (kind) {
    case NIL: return NULL;
    case SHAPE: return is_simple_shape(body, &count) ? NULL : "it does not have 1 to 5 dimensions that are fixed and not empty";
    case TYPE: return is_known_type(body, &element) ? NULL : "its type is none of F32, BF16, I32, I64, F64";
    case FILL: return is_without_fill_value(body) ? NULL : "it has a fill value";
    case LAYOUT: return check_layout(body);
    case ATTRIBUTE: return check_attribute(body);
    case LINK: return check_link(in, body);
    case CONTINUATION: return check_continuation(in, body);
    case LINKS: return is_nothing_elsewhere(body) ? NULL : "its links are not in its header";
    case ATTRIBUTES: return is_nothing_elsewhere(body) ? NULL : "its attributes are not in its header";
    case GROUP: return is_group_information(body) ? NULL : "its header is malformed";
    case EXTERNAL: return "its data lie in an external file";
    case FILTERS: return "it has filters";
    case REFERENCES: return "it is linked more than once";
    default: return "its header has a part that none has";
    }
}

/* The messages of one chunk of a header. Less than a message's own four bytes at the end is a gap. */
static const char *check_chunk(guard *in, chunk at, unsigned *kinds, size_t *attributes)
{
    cursor from = {.next = (const unsigned char *)in->image->bytes + at.offset, .left = at.size};
    while (from.left >= 4) {
        uint64_t kind = take_number(&from, 1), size = take_number(&from, 2), flags = take_number(&from, 1);
        const unsigned char *bytes = take(&from, (size_t)size);
        if (bytes == NULL || (flags & ~(uint64_t)5) != 0) return "its header is malformed"; /* 1: constant, 4: not to be shared */
        const char *problem = check_message(in, kind, &(cursor){.next = bytes, .left = (size_t)size});
        if (problem != NULL) return problem;
        if (kind == ATTRIBUTE) ++*attributes;
        if (!((GROUP_KINDS | DATASET_KINDS | BIT(LINK)) & BIT(kind))) continue;
        if (kind != LINK && *kinds & BIT(kind)) return "a part of its header is there twice";
        *kinds |= BIT(kind);
    }
    return NULL;
}

/* A version 2 header: signature, version, flags (only the width of the size that follows), first chunk, checksum. */
static const char *check_object(guard *in, uint64_t address)
{
    static const unsigned char start[5] = {'O', 'H', 'D', 'R', 2};
    const char *problem = visit(in, address, 11);
    if (problem != NULL) return problem;
    cursor from = {.next = (const unsigned char *)in->image->bytes + address, .left = in->image->size - (size_t)address};
    if (!is_exactly(&from, start, sizeof start)) return "its header is malformed";
    uint64_t flags = take_number(&from, 1);
    if ((flags & ~(uint64_t)3) != 0) return "its header has times or other additions";
    uint64_t size = take_number(&from, (size_t)1 << flags);
    if (from.short_of_bytes || size > from.left || from.left - (size_t)size < 4) return "it reaches beyond the file";
    size_t messages = in->image->size - from.left;
    if (!has_checksum(in, (size_t)address, messages + (size_t)size - (size_t)address))
        return "its header does not have its checksum";
    unsigned kinds = 0;
    size_t attributes = 0, first = in->pending_count;
    problem = check_chunk(in, (chunk){messages, (size_t)size}, &kinds, &attributes);
    while (problem == NULL && in->pending_count > first)
        problem = check_chunk(in, in->pending[--in->pending_count], &kinds, &attributes);
    if (problem != NULL) return problem;
    if (kinds != DATASET_KINDS && (kinds & ~(BIT(LINK) | BIT(ATTRIBUTES))) != GROUP_KINDS)
        return "it is neither a dataset nor a group";
    return attributes == (kinds == DATASET_KINDS ? H3_ATTRIBUTE_COUNT : 0) ? NULL : "it has other attributes than it should";
}

h3_status h3_artifact_guard(const h3_artifact_image *image, const char **problem, char name[H3_ARTIFACT_NAME_SIZE])
{
    guard in = {.image = image, .name = name};
    uint64_t root;
    name[0] = 0;
    *problem = h3_artifact_image_problem(image);
    if (*problem != NULL) return H3_OK;
    in.visited = malloc(OBJECTS_MAX * sizeof *in.visited);
    in.pending = malloc(OBJECTS_MAX * sizeof *in.pending);
    memcpy(&root, image->bytes + ROOT_ADDRESS, sizeof root);
    int enough = in.visited != NULL && in.pending != NULL;
    if (enough) *problem = check_object(&in, root);
    free(in.visited);
    free(in.pending);
    return enough ? H3_OK : h3_error(H3_ENVIRONMENT, "out of memory to look at an artifact");
}
