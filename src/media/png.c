/* PNG files through libpng, in memory. Its errors come back by longjmp: each function that it may leave so keeps what it owns in a struct. */
#include <png.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "media/picture.h"

enum { COMPRESSION = 3, FILE_LIMIT = 1 << 30 };

void h3_picture_free(h3_picture *picture)
{
    free(picture->rgb);
    *picture = (h3_picture){0};
}

/* --- reading --------------------------------------------------------------------------------------------------------- */

typedef struct reader {
    const unsigned char *data;
    size_t size, at;
    h3_picture_kind kind;
    const char *where;
    png_structp png;
    png_infop info;
    h3_picture picture;
    png_bytep *rows;
    h3_status status; /* of a failure that was not libpng's */
    char reason[160];
    const char *advice;
} reader;

static void read_some(png_structp png, png_bytep to, png_size_t count)
{
    reader *r = png_get_io_ptr(png);
    if (count > r->size - r->at) png_error(png, "the file is truncated");
    memcpy(to, r->data + r->at, count);
    r->at += count;
}

static void on_read_error(png_structp png, png_const_charp text)
{
    reader *r = png_get_error_ptr(png);
    snprintf(r->reason, sizeof r->reason, "%s", text);
    png_longjmp(png, 1);
}

static void on_warning(png_structp png, png_const_charp text)
{
    (void)png;
    (void)text; /* about chunks that are ignored anyway */
}

/* The EXIF orientation of a TIFF block, 1 (upright) when it says nothing. */
static unsigned orientation_of(const unsigned char *exif, size_t size)
{
    if (size < 14 || (memcmp(exif, "II*\0", 4) != 0 && memcmp(exif, "MM\0*", 4) != 0)) return 1;
    const int little = exif[0] == 'I';
#define BYTE(i) ((unsigned)exif[i])
#define U16(i) (little ? BYTE(i) | BYTE((i) + 1) << 8 : BYTE(i) << 8 | BYTE((i) + 1))
    const size_t high = U16(little ? 6 : 4), low = U16(little ? 4 : 6), start = high << 16 | low;
    if (start > size - 2) return 1;
    const size_t count = U16(start);
    for (size_t i = 0; i < count; i++) {
        const size_t entry = start + 2 + 12 * i;
        if (entry + 12 > size) return 1;
        if (U16(entry) == 0x0112) return U16(entry + 8);
    }
#undef U16
#undef BYTE
    return 1;
}

static void refuse_turned(reader *r, const char *what)
{
    r->advice = "save it upright and without that";
    png_error(r->png, what);
}

/* Some writers put it into text: an XMP packet, or the block in hexadecimal, which is not worth reading. */
static void check_texts(reader *r)
{
    static const char XMP[] = "tiff:Orientation";
    png_textp texts = NULL;
    int count = 0;
    png_get_text(r->png, r->info, &texts, &count);
    for (int i = 0; i < count; i++) {
        const char *key = texts[i].key, *at = strstr(texts[i].text, XMP);
        if (strcmp(key, "Raw profile type exif") == 0 || strcmp(key, "Raw profile type APP1") == 0)
            refuse_turned(r, "an EXIF block as text may turn the picture");
        if (at == NULL) continue;
        at += sizeof XMP - 1;
        at += strncmp(at, "=\"", 2) == 0 ? 2 : *at == '>';
        if (*at >= '2' && *at <= '8') refuse_turned(r, "its XMP packet turns the picture");
    }
}

static void check_upright(reader *r)
{
    png_bytep exif = NULL;
    png_uint_32 size = 0;
    check_texts(r);
    if (png_get_eXIf_1(r->png, r->info, &size, &exif) == 0 || exif == NULL) return;
    const unsigned orientation = orientation_of(exif, size);
    if (orientation >= 2 && orientation <= 8) refuse_turned(r, "its EXIF block turns the picture");
}

/* Makes libpng give 8-bit RGB, or refuses. */
static void choose_form(reader *r)
{
    const int type = png_get_color_type(r->png, r->info), depth = png_get_bit_depth(r->png, r->info);
    if (r->kind == H3_PICTURE_EVIDENCE) {
        if (type != PNG_COLOR_TYPE_RGB || depth != 8 || png_get_interlace_type(r->png, r->info) != PNG_INTERLACE_NONE)
            png_error(r->png, "frames are 8-bit truecolour, without transparency and not interlaced");
        return;
    }
    png_set_palette_to_rgb(r->png);
    if (!(type & PNG_COLOR_MASK_COLOR)) {
        if (depth < 8) png_set_expand_gray_1_2_4_to_8(r->png);
        png_set_gray_to_rgb(r->png);
    }
    png_set_strip_16(r->png);
    png_set_strip_alpha(r->png);
    if (type == PNG_COLOR_TYPE_PALETTE) png_set_strip_alpha(r->png);
    png_set_interlace_handling(r->png);
}

static void make_room(reader *r)
{
    const png_uint_32 width = png_get_image_width(r->png, r->info), height = png_get_image_height(r->png, r->info);
    void *rgb, *rows;
    r->picture = (h3_picture){.width = width, .height = height};
    if (png_get_rowbytes(r->png, r->info) != (png_size_t)width * 3) png_error(r->png, "it does not become 8-bit RGB");
    r->status = h3_alloc(&rgb, (size_t)width * height, 3, "a picture");
    r->picture.rgb = rgb;
    if (r->status != H3_OK) png_error(r->png, "no memory");
    r->status = h3_alloc(&rows, height, sizeof(png_bytep), "a picture's rows");
    r->rows = rows;
    if (r->status != H3_OK) png_error(r->png, "no memory");
    for (png_uint_32 y = 0; y < height; y++) r->rows[y] = r->picture.rgb + (size_t)y * width * 3;
}

/* 0, or 1 with the reason set. */
static int decode(reader *r)
{
    if (setjmp(png_jmpbuf(r->png))) return 1;
    png_set_read_fn(r->png, r, read_some);
    png_set_user_limits(r->png, H3_PICTURE_SIDE_LIMIT, H3_PICTURE_SIDE_LIMIT);
    png_read_info(r->png, r->info);
    choose_form(r);
    png_read_update_info(r->png, r->info);
    make_room(r);
    png_read_image(r->png, r->rows);
    png_read_end(r->png, r->info); /* an EXIF block may stand behind the pixels */
    if (r->kind == H3_PICTURE_ANY) check_upright(r);
    return 0;
}

static png_uint_32 size_at(const unsigned char *data) { return (png_uint_32)data[0] << 24 | (png_uint_32)data[1] << 16 | (png_uint_32)data[2] << 8 | data[3]; }

/* Said here because libpng would only call the header invalid. What is no header at all is left to it. */
static h3_status check_size(const reader *r)
{
    if (r->size < 24 || memcmp(r->data + 12, "IHDR", 4) != 0) return H3_OK;
    const png_uint_32 width = size_at(r->data + 16), height = size_at(r->data + 20);
    if (width >= 1 && height >= 1 && width <= H3_PICTURE_SIDE_LIMIT && height <= H3_PICTURE_SIDE_LIMIT) return H3_OK;
    return h3_error(H3_INTEGRITY, "%s has %lu x %lu pixels; 1 to %d a side are possible, save it in another size", r->where, (unsigned long)width, (unsigned long)height,
                    H3_PICTURE_SIDE_LIMIT);
}

h3_status h3_picture_parse(h3_picture *out, const void *png, size_t size, h3_picture_kind kind, const char *where)
{
    reader r = {.data = png, .size = size, .kind = kind, .where = where, .advice = kind == H3_PICTURE_EVIDENCE ? "generate it again" : "save the picture again"};
    *out = (h3_picture){0};
    if (size < 8 || png_sig_cmp(r.data, 0, 8) != 0) return h3_error(H3_INTEGRITY, "%s is no PNG file; convert the picture to PNG", where);
    H3_TRY(check_size(&r));
    r.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &r, on_read_error, on_warning);
    r.info = r.png == NULL ? NULL : png_create_info_struct(r.png);
    if (r.info == NULL) {
        png_destroy_read_struct(&r.png, NULL, NULL);
        return h3_error(H3_ENVIRONMENT, "out of memory for reading %s", where);
    }
    const int failed = decode(&r);
    png_destroy_read_struct(&r.png, &r.info, NULL);
    free(r.rows);
    if (!failed) {
        *out = r.picture;
        return H3_OK;
    }
    h3_picture_free(&r.picture);
    if (r.status != H3_OK) return h3_error_context(r.status, "%s", where);
    return h3_error(H3_INTEGRITY, "%s: %s; %s", where, r.reason, r.advice);
}

h3_status h3_picture_read(h3_picture *out, const char *path, h3_picture_kind kind)
{
    char *data;
    size_t size;
    *out = (h3_picture){0};
    H3_TRY(h3_file_read(&data, &size, path, FILE_LIMIT, H3_INTEGRITY));
    h3_status status = h3_picture_parse(out, data, size, kind, path);
    free(data);
    return status;
}

/* --- writing --------------------------------------------------------------------------------------------------------- */

typedef struct writer {
    char *data;
    size_t size, capacity;
    png_structp png;
    png_infop info;
} writer;

static void write_some(png_structp png, png_bytep from, png_size_t count)
{
    writer *w = png_get_io_ptr(png);
    if (count > w->capacity - w->size) {
        const size_t capacity = 2 * w->capacity + count;
        char *larger = realloc(w->data, capacity);
        if (larger == NULL) png_error(png, "no memory");
        w->data = larger;
        w->capacity = capacity;
    }
    memcpy(w->data + w->size, from, count);
    w->size += count;
}

static void flush_nothing(png_structp png) { (void)png; }

static void on_write_error(png_structp png, png_const_charp text)
{
    (void)text;
    png_longjmp(png, 1);
}

static int encode(writer *w, const unsigned char *rgb, png_uint_32 height, png_uint_32 width)
{
    if (setjmp(png_jmpbuf(w->png))) return 1;
    png_set_write_fn(w->png, w, write_some, flush_nothing);
    png_set_compression_level(w->png, COMPRESSION);
    png_set_IHDR(w->png, w->info, width, height, 8, PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    png_write_info(w->png, w->info);
    for (png_uint_32 y = 0; y < height; y++) png_write_row(w->png, rgb + (size_t)y * width * 3);
    png_write_end(w->png, NULL);
    return 0;
}

h3_status h3_picture_build(char **png, size_t *size, const unsigned char *rgb, int64_t height, int64_t width)
{
    writer w = {0};
    *png = NULL;
    *size = 0;
    if (height < 1 || width < 1 || height > H3_PICTURE_SIDE_LIMIT || width > H3_PICTURE_SIDE_LIMIT)
        return h3_error(H3_USAGE, "a picture of %lld x %lld pixels; 1 to %d a side are possible", (long long)width, (long long)height, H3_PICTURE_SIDE_LIMIT);
    w.png = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, on_write_error, on_warning);
    w.info = w.png == NULL ? NULL : png_create_info_struct(w.png);
    const int failed = w.info == NULL || encode(&w, rgb, (png_uint_32)height, (png_uint_32)width);
    png_destroy_write_struct(&w.png, &w.info);
    if (failed) {
        free(w.data);
        return h3_error(H3_ENVIRONMENT, "out of memory for a PNG file of %lld x %lld pixels", (long long)width, (long long)height);
    }
    *png = w.data;
    *size = w.size;
    return H3_OK;
}
