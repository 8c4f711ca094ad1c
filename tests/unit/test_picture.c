/* PNG files in and out, hostile ones too, and resampling as Pillow does it. */
#include "scratch_folder.h"

#include <png.h>

#include "media/picture.h"

/* The picture that golden resize.json describes. */
static h3_picture pattern(int64_t width, int64_t height)
{
    h3_picture p = {width, height, malloc((size_t)(width * height * 3))};
    for (int64_t i = 0; i < width * height * 3; i++) {
        const int64_t x = i / 3 % width, y = i / 3 / width;
        const uint32_t noise = (uint32_t)((uint64_t)i * 2654435761u) >> 24;
        p.rgb[i] = (unsigned char)((x + y) % 3 == 0 ? noise : 255 * (uint32_t)((x / 5 + y / 7 + i % 3) % 2));
    }
    return p;
}

/* --- a PNG maker of our own, so that every field can be wrong --------------------------------------------------------- */

typedef struct maker {
    unsigned char data[1 << 16];
    size_t size;
} maker;

static uint32_t crc(const unsigned char *data, size_t size)
{
    uint32_t value = 0xffffffffu;
    for (size_t i = 0; i < size; i++) {
        value ^= data[i];
        for (int bit = 0; bit < 8; bit++) value = value >> 1 ^ (value & 1 ? 0xedb88320u : 0);
    }
    return ~value;
}

static void put_chunk(maker *m, const char *type, const void *data, size_t size)
{
    unsigned char *at = m->data + m->size;
    memcpy(at + 4, type, 4);
    if (size > 0) memcpy(at + 8, data, size);
    const uint32_t sum = crc(at + 4, size + 4);
    for (int i = 0; i < 4; i++) {
        at[i] = (unsigned char)(size >> (24 - 8 * i));
        at[8 + size + (size_t)i] = (unsigned char)(sum >> (24 - 8 * i));
    }
    m->size += 12 + size;
}

static void start(maker *m, uint32_t width, uint32_t height, int depth, int type, int interlace)
{
    unsigned char header[13] = {0};
    memcpy(m->data, "\x89PNG\r\n\x1a\n", 8);
    m->size = 8;
    for (int i = 0; i < 4; i++) {
        header[i] = (unsigned char)(width >> (24 - 8 * i));
        header[4 + i] = (unsigned char)(height >> (24 - 8 * i));
    }
    header[8] = (unsigned char)depth;
    header[9] = (unsigned char)type;
    header[12] = (unsigned char)interlace;
    put_chunk(m, "IHDR", header, sizeof header);
}

/* The rows in one stored block of a zlib stream. */
static void finish(maker *m, const void *rows, size_t size)
{
    unsigned char packed[256] = {0x78, 0x01, 0x01, (unsigned char)size, 0, (unsigned char)~size, 0xff};
    uint32_t a = 1, b = 0;
    assert_true(size < 200);
    memcpy(packed + 7, rows, size);
    for (size_t i = 0; i < size; i++) {
        a = (a + ((const unsigned char *)rows)[i]) % 65521;
        b = (b + a) % 65521;
    }
    const unsigned char adler[] = {(unsigned char)(b >> 8), (unsigned char)b, (unsigned char)(a >> 8), (unsigned char)a};
    memcpy(packed + 7 + size, adler, sizeof adler);
    put_chunk(m, "IDAT", packed, size + 11);
    put_chunk(m, "IEND", NULL, 0);
}

static void assert_refused(const maker *m, h3_picture_kind kind, const char *word)
{
    h3_picture picture;
    assert_fails(h3_picture_parse(&picture, m->data, m->size, kind, "p.png"), H3_INTEGRITY, word);
    assert_null(picture.rgb);
}

static void assert_shows(const maker *m, const unsigned char *rgb, size_t size)
{
    h3_picture picture;
    assert_good(h3_picture_parse(&picture, m->data, m->size, H3_PICTURE_ANY, "p.png"));
    assert_int_equal(picture.width * picture.height * 3, size);
    assert_memory_equal(picture.rgb, rgb, size);
    h3_picture_free(&picture);
}

/* --- tests ----------------------------------------------------------------------------------------------------------- */

static void round_trip(void **state)
{
    static const int64_t SIZES[][2] = {{1, 1}, {3, 2}, {64, 48}, {257, 100}};
    (void)state;
    for (size_t i = 0; i < sizeof SIZES / sizeof *SIZES; i++) {
        h3_picture in = pattern(SIZES[i][0], SIZES[i][1]), out;
        char *png;
        size_t size;
        assert_good(h3_picture_build(&png, &size, in.rgb, in.height, in.width));
        assert_int_equal(png[24], 8); /* depth, colour type, interlacing in the file itself */
        assert_int_equal(png[25], 2);
        assert_int_equal(png[28], 0);
        for (int kind = 0; kind < 2; kind++) {
            assert_good(h3_picture_parse(&out, png, size, kind ? H3_PICTURE_ANY : H3_PICTURE_EVIDENCE, "p.png"));
            assert_int_equal(out.width, in.width);
            assert_int_equal(out.height, in.height);
            assert_memory_equal(out.rgb, in.rgb, (size_t)(in.width * in.height * 3));
            h3_picture_free(&out);
        }
        for (size_t cut = 0; cut < size; cut += cut < 60 ? 1 : 97) assert_true(h3_picture_parse(&out, png, cut, H3_PICTURE_EVIDENCE, "p.png") == H3_INTEGRITY);
        png[size / 2] ^= 1; /* a checksum sees it */
        assert_int_equal(h3_picture_parse(&out, png, size, H3_PICTURE_EVIDENCE, "p.png"), H3_INTEGRITY);
        free(png);
        h3_picture_free(&in);
    }
    char *png;
    size_t size;
    assert_fails(h3_picture_build(&png, &size, (const unsigned char *)"", 0, 5), H3_USAGE, "5 x 0");
    assert_fails(h3_picture_build(&png, &size, (const unsigned char *)"", 5, 20000), H3_USAGE, "20000 x 5");
}

/* Every kind of PNG as a reference picture; evidence takes one kind. */
static void kinds(void **state)
{
    (void)state;
    maker m;
    const unsigned char grey[] = {0, 10, 200}, rgb_of_grey[] = {10, 10, 10, 200, 200, 200};
    start(&m, 2, 1, 8, PNG_COLOR_TYPE_GRAY, 0);
    finish(&m, grey, sizeof grey);
    assert_shows(&m, rgb_of_grey, sizeof rgb_of_grey);
    assert_refused(&m, H3_PICTURE_EVIDENCE, "8-bit truecolour");
    const unsigned char bits[] = {0, 0x40};
    start(&m, 2, 1, 1, PNG_COLOR_TYPE_GRAY, 0);
    finish(&m, bits, sizeof bits);
    assert_shows(&m, (const unsigned char[]){0, 0, 0, 255, 255, 255}, 6);
    const unsigned char alpha[] = {0, 1, 2, 3, 0, 250, 251, 252, 128};
    start(&m, 2, 1, 8, PNG_COLOR_TYPE_RGB_ALPHA, 0);
    finish(&m, alpha, sizeof alpha);
    assert_shows(&m, (const unsigned char[]){1, 2, 3, 250, 251, 252}, 6);
    assert_refused(&m, H3_PICTURE_EVIDENCE, "8-bit truecolour");
    const unsigned char deep[] = {0, 17, 255, 18, 0, 19, 128};
    start(&m, 1, 1, 16, PNG_COLOR_TYPE_RGB, 0);
    finish(&m, deep, sizeof deep);
    assert_shows(&m, (const unsigned char[]){17, 18, 19}, 3);
    assert_refused(&m, H3_PICTURE_EVIDENCE, "8-bit truecolour");
    const unsigned char palette[] = {9, 8, 7, 90, 80, 70}, transparent[] = {0, 128}, index[] = {0, 1, 0};
    start(&m, 2, 1, 8, PNG_COLOR_TYPE_PALETTE, 0);
    put_chunk(&m, "PLTE", palette, sizeof palette);
    put_chunk(&m, "tRNS", transparent, sizeof transparent);
    finish(&m, index, sizeof index);
    assert_shows(&m, (const unsigned char[]){90, 80, 70, 9, 8, 7}, 6);
    assert_refused(&m, H3_PICTURE_EVIDENCE, "8-bit truecolour");
    const unsigned char plain[] = {0, 1, 2, 3};
    start(&m, 1, 1, 8, PNG_COLOR_TYPE_RGB, 1);
    finish(&m, plain, sizeof plain);
    assert_shows(&m, plain + 1, 3);
    assert_refused(&m, H3_PICTURE_EVIDENCE, "not interlaced");
}

/* The orientation as text: `chunk` is tEXt or iTXt, whose text comes after the keyword and its zero (and four fields more that are empty). */
static void with_text(maker *m, const char *chunk, const char *key, const char *text)
{
    char data[200] = "";
    const size_t fields = strcmp(chunk, "iTXt") == 0 ? 5 : 1;
    strcpy(data, key);
    strcpy(data + strlen(key) + fields, text);
    start(m, 1, 1, 8, PNG_COLOR_TYPE_RGB, 0);
    put_chunk(m, chunk, data, strlen(key) + fields + strlen(text));
    finish(m, (const unsigned char[]){0, 1, 2, 3}, 4);
}

static void texts(void)
{
    static const char XMP[] = "XML:com.adobe.xmp";
    const unsigned char pixel[] = {1, 2, 3};
    maker m;
    with_text(&m, "tEXt", "Raw profile type exif", "\nexif\n 2\n4949\n");
    assert_refused(&m, H3_PICTURE_ANY, "EXIF block as text");
    with_text(&m, "tEXt", "Raw profile type APP1", "\n");
    assert_refused(&m, H3_PICTURE_ANY, "EXIF block as text");
    with_text(&m, "iTXt", XMP, "<x tiff:Orientation=\"6\"/>");
    assert_refused(&m, H3_PICTURE_ANY, "its XMP packet turns the picture; save it upright");
    with_text(&m, "iTXt", XMP, "<tiff:Orientation>8</tiff:Orientation>");
    assert_refused(&m, H3_PICTURE_ANY, "its XMP packet turns the picture");
    static const char *const harmless[] = {"", "<x tiff:Orientation=\"1\"/>", "tiff:Orientation", "tiff:Orientation=", "tiff:Orientation>", "tiff:Orientation=\""};
    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++) {
        with_text(&m, "iTXt", XMP, harmless[i]);
        assert_shows(&m, pixel, 3);
        with_text(&m, "tEXt", "Raw profile type icc", harmless[i]);
        assert_shows(&m, pixel, 3);
    }
}

/* An EXIF block that turns the picture is no silent loss. */
static void exif_orientation(void **state)
{
    (void)state;
    maker m;
    const unsigned char plain[] = {0, 1, 2, 3};
    unsigned char little[] = {'I', 'I', 42, 0, 8, 0, 0, 0, 1, 0, 0x12, 1, 3, 0, 1, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0};
    unsigned char big[] = {'M', 'M', 0, 42, 0, 0, 0, 8, 0, 1, 1, 0x12, 0, 3, 0, 0, 0, 1, 0, 6, 0, 0, 0, 0, 0, 0};
    for (unsigned orientation = 0; orientation < 10; orientation++)
        for (int k = 0; k < 2; k++) {
            little[18] = big[19] = (unsigned char)orientation;
            start(&m, 1, 1, 8, PNG_COLOR_TYPE_RGB, 0);
            put_chunk(&m, "eXIf", k ? little : big, sizeof little);
            finish(&m, plain, sizeof plain);
            if (orientation >= 2 && orientation <= 8) assert_refused(&m, H3_PICTURE_ANY, "turns the picture");
            else assert_shows(&m, plain + 1, 3);
        }
    little[18] = 6; /* a writer may put the block behind the pixels */
    start(&m, 1, 1, 8, PNG_COLOR_TYPE_RGB, 0);
    finish(&m, plain, sizeof plain);
    m.size -= 12; /* IEND comes again */
    put_chunk(&m, "eXIf", little, sizeof little);
    put_chunk(&m, "IEND", NULL, 0);
    assert_refused(&m, H3_PICTURE_ANY, "turns the picture; save it upright");
    texts();
    for (size_t i = 4; i < sizeof little; i++) { /* whatever stands in it */
        little[i] ^= 0xff;
        start(&m, 1, 1, 8, PNG_COLOR_TYPE_RGB, 0);
        put_chunk(&m, "eXIf", little, i < 14 ? sizeof little : i);
        finish(&m, plain, sizeof plain);
        h3_picture picture;
        if (h3_picture_parse(&picture, m.data, m.size, H3_PICTURE_ANY, "p.png") == H3_OK) h3_picture_free(&picture);
    }
}

static void hostile_files(void **state)
{
    (void)state;
    maker m;
    const unsigned char plain[] = {0, 1, 2, 3};
    h3_picture picture;
    assert_fails(h3_picture_parse(&picture, "GIF89a--", 8, H3_PICTURE_ANY, "p.png"), H3_INTEGRITY, "no PNG");
    assert_fails(h3_picture_parse(&picture, "", 0, H3_PICTURE_ANY, "p.png"), H3_INTEGRITY, "no PNG");
    assert_fails(h3_picture_read(&picture, "/nowhere/p.png", H3_PICTURE_ANY), H3_INTEGRITY, "/nowhere/p.png");
    start(&m, 0x7fffffff, 0x7fffffff, 8, PNG_COLOR_TYPE_RGB, 0);
    finish(&m, plain, sizeof plain);
    assert_refused(&m, H3_PICTURE_EVIDENCE, "p.png has 2147483647 x 2147483647 pixels");
    start(&m, 16385, 1, 8, PNG_COLOR_TYPE_RGB, 0);
    finish(&m, plain, sizeof plain);
    assert_refused(&m, H3_PICTURE_EVIDENCE, "p.png has 16385 x 1 pixels; 1 to 16384 a side are possible, save it in another size");
    start(&m, 0, 1, 8, PNG_COLOR_TYPE_RGB, 0);
    finish(&m, plain, sizeof plain);
    assert_refused(&m, H3_PICTURE_EVIDENCE, "p.png has 0 x 1 pixels");
    start(&m, 2, 2, 8, PNG_COLOR_TYPE_RGB, 0);
    finish(&m, plain, sizeof plain); /* too few pixels */
    assert_refused(&m, H3_PICTURE_EVIDENCE, "p.png: ");
    assert_refused(&m, H3_PICTURE_EVIDENCE, "; generate it again");
    assert_refused(&m, H3_PICTURE_ANY, "; save the picture again");
    start(&m, 1, 1, 8, PNG_COLOR_TYPE_RGB, 0);
    put_chunk(&m, "IDAT", "rubbish", 7);
    put_chunk(&m, "IEND", NULL, 0);
    assert_refused(&m, H3_PICTURE_ANY, "p.png: ");
}

static void assert_resized(const cJSON *item, int cover)
{
    const cJSON *from = json_get(item, "from"), *to = json_get(item, "to");
    const int64_t size[] = {(int64_t)cJSON_GetArrayItem(from, 0)->valuedouble, (int64_t)cJSON_GetArrayItem(from, 1)->valuedouble,
                            (int64_t)cJSON_GetArrayItem(to, 0)->valuedouble, (int64_t)cJSON_GetArrayItem(to, 1)->valuedouble};
    h3_picture in = pattern(size[0], size[1]), out;
    if (cover) assert_good(h3_picture_canvas(&out, &in, size[2], size[3], 0));
    else assert_good(h3_picture_resize(&out, &in, size[2], size[3]));
    assert_int_equal(out.width, size[2]);
    assert_int_equal(out.height, size[3]);
    if (!sha256_is(out.rgb, (size_t)(size[2] * size[3] * 3), json_text(item, "sha256")))
        fail_msg("%lld x %lld to %lld x %lld differs from Pillow", (long long)size[0], (long long)size[1], (long long)size[2], (long long)size[3]);
    out.rgb[0] ^= 1;
    assert_false(sha256_is(out.rgb, (size_t)(size[2] * size[3] * 3), json_text(item, "sha256")));
    h3_picture_free(&in);
    h3_picture_free(&out);
}

static void as_pillow_resizes(void **state)
{
    (void)state;
    cJSON *golden = golden_json("resize.json");
    const cJSON *item;
    cJSON_ArrayForEach(item, json_get(golden, "resize")) assert_resized(item, 0);
    cJSON_ArrayForEach(item, json_get(golden, "cover")) assert_resized(item, 1);
    cJSON_Delete(golden);
}

static void canvas(void **state)
{
    (void)state;
    h3_picture in = pattern(97, 61), stretched, same, out;
    assert_good(h3_picture_canvas(&out, &in, 84, 48, 1)); /* the first one is stretched, whatever its proportions */
    assert_good(h3_picture_resize(&stretched, &in, 84, 48));
    assert_memory_equal(out.rgb, stretched.rgb, 84 * 48 * 3);
    assert_good(h3_picture_canvas(&same, &in, 97, 61, 1));
    assert_memory_equal(same.rgb, in.rgb, 97 * 61 * 3);
    h3_picture_free(&out);
    h3_picture_free(&same);
    h3_picture_free(&stretched);
    assert_fails(h3_picture_resize(&out, &in, 0, 5), H3_USAGE, "0 x 5");
    assert_fails(h3_picture_resize(&out, &in, 5, 16385), H3_USAGE, "5 x 16385");
    assert_fails(h3_picture_canvas(&out, &in, -1, 5, 0), H3_USAGE, "-1 x 5");
    assert_null(out.rgb);
    h3_picture_free(&in);
}

/* --- frames ---------------------------------------------------------------------------------------------------------- */

enum { FRAMES = 12, ROWS = 9, COLUMNS = 14, FRAME = ROWS * COLUMNS * 3 };

static void frames_round_trip(void **state)
{
    (void)state;
    unsigned char rgb[FRAMES * FRAME], *back;
    int64_t count, height, width;
    for (int i = 0; i < FRAMES * FRAME; i++) rgb[i] = (unsigned char)(i * 31 % 251);
    assert_good(h3_frames_write(folder, rgb, FRAMES, ROWS, COLUMNS));
    put("notes.txt", "ignored", 7);
    put("frame_1.png", "ignored", 7);
    assert_good(h3_frames_read(&back, &count, &height, &width, folder));
    assert_int_equal(count, FRAMES);
    assert_int_equal(height, ROWS);
    assert_int_equal(width, COLUMNS);
    assert_memory_equal(back, rgb, sizeof rgb);
    free(back);
    assert_good(h3_remove_tree(in_folder("frame_00004.png")));
    assert_fails(h3_frames_read(&back, &count, &height, &width, folder), H3_INTEGRITY, "11 frames but the last is number 11");
    put("frame_00004.png", "x", 1);
    assert_fails(h3_frames_read(&back, &count, &height, &width, folder), H3_INTEGRITY, "frame_00004.png is no PNG");
    char *png;
    size_t size;
    assert_good(h3_picture_build(&png, &size, rgb, COLUMNS, ROWS));
    put("frame_00004.png", png, size);
    free(png);
    assert_fails(h3_frames_read(&back, &count, &height, &width, folder), H3_INTEGRITY, "frame_00004.png is 9 x 14 pixels, the first frame 14 x 9");
    assert_null(back);
    assert_fails(h3_frames_write(in_folder("none"), rgb, 1, ROWS, COLUMNS), H3_ENVIRONMENT, "none");
    assert_fails(h3_frames_write(folder, rgb, 0, ROWS, COLUMNS), H3_USAGE, "0 frames");
    assert_fails(h3_frames_write(folder, rgb, FRAMES, -ROWS, COLUMNS), H3_USAGE, "14 x -9");
    assert_fails(h3_frames_read(&back, &count, &height, &width, in_folder("none")), H3_INTEGRITY, "none");
}

static void no_frames(void **state)
{
    (void)state;
    unsigned char *back;
    int64_t count, height, width;
    assert_fails(h3_frames_read(&back, &count, &height, &width, folder), H3_INTEGRITY, "holds no frames");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip), cmocka_unit_test(kinds), cmocka_unit_test(exif_orientation), cmocka_unit_test(hostile_files),
        cmocka_unit_test(as_pillow_resizes), cmocka_unit_test(canvas), cmocka_unit_test_setup_teardown(frames_round_trip, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(no_frames, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
