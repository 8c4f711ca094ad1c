/* Sheets: what their cells show, in closed forms; sheets that cannot be; bin/h3_sheet on folders. */
#include "golden_files.h"

#include "media/label.h"
#include "media/sheet.h"
#include "store/publish.h"

static char folder[128];

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/h3-sheet-XXXXXX");
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state)
{
    (void)state;
    return h3_remove_tree(folder) != H3_OK;
}

enum { FRAMES = 3 };

/* Clips without a black pixel, so that all that is black in a sheet is a difference of nothing. */
typedef struct clips {
    int64_t height, width;
    unsigned char *a, *b;
    h3_sheet_frame frames[FRAMES];
} clips;

static clips new_clips(int64_t height, int64_t width)
{
    const size_t bytes = (size_t)(height * width) * 3;
    clips c = {height, width, malloc(FRAMES * bytes), malloc(FRAMES * bytes), {{0}}};
    for (size_t i = 0; i < FRAMES * bytes; i++) c.a[i] = (unsigned char)(40 + (uint32_t)(i * 2654435761u) % 60 + i / 3 % (size_t)width * 100 / (size_t)width);
    memcpy(c.b, c.a, FRAMES * bytes);
    for (size_t f = 0; f < FRAMES; f++) c.frames[f] = (h3_sheet_frame){(int64_t)f * 7, c.a + f * bytes, c.b + f * bytes};
    return c;
}

static void free_clips(clips *c)
{
    free(c->a);
    free(c->b);
}

static h3_sheet sheet_of(const clips *c) { return (h3_sheet){.height = c->height, .width = c->width, .count = FRAMES, .frames = c->frames}; }

static int64_t pixels_of(const h3_picture *p, int red, int green, int blue)
{
    int64_t count = 0;
    for (int64_t i = 0; i < p->height * p->width; i++) count += p->rgb[3 * i] == red && p->rgb[3 * i + 1] == green && p->rgb[3 * i + 2] == blue;
    return count;
}

/* Black pixels of the sheet of two clips. */
static int64_t black(const clips *c)
{
    h3_picture picture;
    const h3_sheet sheet = sheet_of(c);
    assert_good(h3_sheet_compare(&picture, &sheet));
    const int64_t count = pixels_of(&picture, 0, 0, 0);
    h3_picture_free(&picture);
    return count;
}

static void equal_clips_have_black_differences(void **state)
{
    (void)state;
    clips large = new_clips(300, 512), small = new_clips(16, 24);
    assert_int_equal(black(&large), FRAMES * 256 * 150);
    assert_int_equal(black(&small), FRAMES * 240 * 160); /* ten times as large */
    free_clips(&large);
    free_clips(&small);
}

/* One sample, one code away, in any frame: the one pixel of the cell that stands for it is not black, and no other changes. */
static void one_pixel_is_seen(void **state)
{
    (void)state;
    clips large = new_clips(300, 512), small = new_clips(16, 24);
    large.b[(size_t)(300 * 512 + 123 * 512 + 401) * 3 + 2] ^= 1;
    assert_int_equal(black(&large), FRAMES * 256 * 150 - 1);
    small.b[(size_t)(2 * 16 * 24) * 3 - 1] ^= 1;
    assert_int_equal(black(&small), FRAMES * 240 * 160 - 10 * 10);
    free_clips(&large);
    free_clips(&small);
}

static void every_pixel_counts_where_cells_are_smaller(void **state)
{
    (void)state;
    enum { ROWS = 7, COLUMNS = 11, BYTES = ROWS * COLUMNS * 3 };
    unsigned char a[BYTES] = {0}, b[BYTES] = {0};
    for (int64_t width = 1; width <= COLUMNS; width++)
        for (int i = 0; i < BYTES; i++) {
            h3_picture cell;
            int64_t sum = 0;
            b[i] = 3;
            assert_good(h3_sheet_difference(&cell, a, b, ROWS, COLUMNS, 2, width, 8));
            for (int64_t k = 0; k < 2 * width * 3; k++) sum += cell.rgb[k] == 0 ? 0 : cell.rgb[k] == 24 && k % 3 == i % 3 ? 1 : 100;
            assert_int_equal(sum, 1);
            h3_picture_free(&cell);
            b[i] = 0;
        }
}

static void the_largest_of_many_is_shown(void **state)
{
    const unsigned char a[12] = {0}, b[12] = {3, 0, 0, 5, 0, 0, 4, 0, 1, 0, 0, 0};
    h3_picture cell;
    (void)state;
    assert_good(h3_sheet_difference(&cell, a, b, 2, 2, 1, 1, 10));
    assert_memory_equal(cell.rgb, ((const unsigned char[]){50, 0, 10}), 3);
    h3_picture_free(&cell);
}

static void differences_are_amplified_and_cut(void **state)
{
    static const struct { unsigned char a, b; int64_t factor; unsigned char shown; } CASES[] = {
        {10, 13, 8, 24}, {13, 10, 8, 24}, {0, 255, 1, 255}, {0, 32, 8, 255}, {0, 31, 8, 248}, {7, 7, 255, 0}, {7, 8, 255, 255}};
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        h3_picture cell;
        const unsigned char a[3] = {CASES[i].a, 0, 0}, b[3] = {CASES[i].b, 0, 0};
        assert_good(h3_sheet_difference(&cell, a, b, 1, 1, 1, 1, CASES[i].factor));
        assert_int_equal(cell.rgb[0], CASES[i].shown);
        assert_int_equal(cell.rgb[1], 0);
        h3_picture_free(&cell);
    }
}

static void small_frames_grow_by_whole_numbers(void **state)
{
    (void)state;
    unsigned char rgb[] = {1, 200, 3, 4, 5, 206, 207, 8, 9, 10, 211, 12};
    const h3_sheet_frame frame = {5, rgb, NULL};
    const h3_sheet sheet = {.height = 2, .width = 2, .count = 1, .frames = &frame};
    h3_picture picture;
    assert_good(h3_sheet_contact(&picture, &sheet));
    for (int i = 0; i < 4; i++) assert_int_equal(pixels_of(&picture, rgb[3 * i], rgb[3 * i + 1], rgb[3 * i + 2]), 128 * 128);
    h3_picture_free(&picture);
}

static int same_picture(const h3_picture *a, const h3_picture *b)
{
    return a->width == b->width && a->height == b->height && memcmp(a->rgb, b->rgb, (size_t)(a->width * a->height) * 3) == 0;
}

static void what_is_written_depends_on_what_is_shown(void **state)
{
    (void)state;
    clips c = new_clips(16, 24);
    h3_picture first, other;
    h3_sheet sheet = sheet_of(&c);
    sheet.title = "seed 42";
    assert_good(h3_sheet_compare(&first, &sheet));
    assert_good(h3_sheet_compare(&other, &sheet));
    assert_true(same_picture(&first, &other));
    h3_picture_free(&other);
    c.frames[1].number = 8;
    assert_good(h3_sheet_compare(&other, &sheet));
    assert_false(same_picture(&first, &other));
    h3_picture_free(&other);
    c.frames[1].number = 7;
    sheet.factor = 9; /* nothing differs, but the factor is stated */
    assert_good(h3_sheet_compare(&other, &sheet));
    assert_false(same_picture(&first, &other));
    h3_picture_free(&other);
    h3_picture_free(&first);
    free_clips(&c);
}

/* Of a largest difference of 3 codes the factor is 64; of 1 it is 128, of 128 it is 1. Chosen or said, it makes the same sheet. */
static void the_factor_is_chosen(void **state)
{
    static const int64_t cases[][2] = {{1, 128}, {2, 64}, {3, 64}, {4, 32}, {127, 2}, {128, 1}, {200, 1}};
    (void)state;
    clips c = new_clips(16, 24);
    memset(c.a, 30, FRAMES * 16 * 24 * 3);
    memset(c.b, 30, FRAMES * 16 * 24 * 3);
    h3_sheet chosen = sheet_of(&c), said = sheet_of(&c);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        h3_picture a, b;
        c.b[(size_t)(2 * 16 * 24) * 3 - 1] = (unsigned char)(30 + cases[i][0]);
        said.factor = cases[i][1];
        assert_good(h3_sheet_compare(&a, &chosen));
        assert_good(h3_sheet_compare(&b, &said));
        assert_true(same_picture(&a, &b));
        assert_int_equal(pixels_of(&a, 0, 0, (int)(cases[i][0] * cases[i][1])), 10 * 10);
        h3_picture_free(&a);
        h3_picture_free(&b);
    }
    free_clips(&c);
}

static void frames_are_chosen_evenly(void **state)
{
    static const struct { int64_t most, count, chosen, numbers[6]; } CASES[] = {
        {6, 3, 3, {0, 1, 2}}, {6, 124, 6, {0, 25, 49, 74, 98, 123}}, {1, 124, 1, {0}}, {2, 124, 2, {0, 123}}, {5, 5, 5, {0, 1, 2, 3, 4}}, {3, 0, 0, {0}}};
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        int64_t numbers[6] = {0};
        assert_int_equal(h3_sheet_choose(numbers, CASES[i].most, CASES[i].count), CASES[i].chosen);
        assert_memory_equal(numbers, CASES[i].numbers, sizeof numbers);
    }
}

static void impossible_sheets_are_refused(void **state)
{
    (void)state;
    clips c = new_clips(16, 24);
    h3_picture p;
    h3_sheet sheets[8];
    static const char *const words[] = {"0 frames", "1025 frames", "24 x 0 pixels", "20000 x 16", "-1 columns", "factor 256", "-5 pixels a cell", "too large"};
    for (int i = 0; i < 8; i++) sheets[i] = sheet_of(&c);
    sheets[0].count = 0;
    sheets[1].count = 1025;
    sheets[2].height = 0;
    sheets[3].width = 20000;
    sheets[4].columns = -1;
    sheets[5].factor = 256;
    sheets[6].cell_width = -5;
    sheets[7].cell_width = 16384;
    h3_sheet_frame *many = calloc(1025, sizeof *many);
    for (int i = 0; i < 1025; i++) many[i] = c.frames[0];
    sheets[1].frames = many;
    for (int i = 0; i < 8; i++) {
        assert_fails(h3_sheet_compare(&p, &sheets[i]), H3_USAGE, words[i]);
        assert_null(p.rgb);
    }
    free(many);
    h3_sheet sheet = sheet_of(&c);
    assert_fails(h3_sheet_contact(&p, &sheet), H3_USAGE, "not of one clip");
    c.frames[2].b = NULL;
    assert_fails(h3_sheet_compare(&p, &sheet), H3_USAGE, "frame 2 of a sheet is not of two clips");
    assert_fails(h3_sheet_difference(&p, c.a, c.b, 4, 4, 5, 4, 8), H3_USAGE, "difference");
    assert_fails(h3_sheet_difference(&p, c.a, c.b, 4, 4, 4, 4, 0), H3_USAGE, "factor 0");
    sheet.title = "a very long title must not leave the picture, so the picture becomes as wide as it is";
    c.frames[2].b = c.b;
    sheet.cell_width = 1; /* the smallest cell: no room for words */
    assert_good(h3_sheet_compare(&p, &sheet));
    assert_true(p.width >= h3_label_width(sheet.title, 3));
    h3_picture_free(&p);
    free_clips(&c);
}

/* --- letters --------------------------------------------------------------------------------------------------------- */

static void letters_differ_and_stay_inside(void **state)
{
    static const char letters[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz.,:-+=/_()%|#? ";
    enum { BYTES = 6 * 8 * 3 };
    unsigned char drawn[sizeof letters][BYTES] = {{0}};
    const h3_colour white = {{255, 255, 255}};
    (void)state;
    for (size_t i = 0; i + 1 < sizeof letters; i++) {
        const char text[2] = {letters[i], 0};
        h3_picture p = {6, 8, drawn[i]};
        h3_label_draw(&p, 0, 0, text, 1, white);
        for (size_t k = 0; k < i; k++)
            if (memcmp(drawn[i], drawn[k], BYTES) == 0) fail_msg("%c looks like %c", letters[i], letters[k]);
    }
    unsigned char question[BYTES] = {0}, guarded[3 * BYTES] = {0};
    h3_picture p = {6, 8, question}, middle = {6, 8, guarded + BYTES};
    h3_label_draw(&p, 0, 0, "\xff", 1, white);
    assert_memory_equal(question, drawn[sizeof letters - 3], BYTES); /* '?' */
    for (int64_t x = -40; x < 40; x += 3)
        for (int64_t y = -40; y < 40; y += 3) h3_label_draw(&middle, x, y, "Wg", 3, white);
    for (int i = 0; i < BYTES; i++) assert_true(guarded[i] == 0 && guarded[2 * BYTES + i] == 0);
    assert_int_equal(h3_label_width("", 2), 0);
    assert_int_equal(h3_label_width("abc", 2), 34);
}

/* --- bin/h3_sheet ---------------------------------------------------------------------------------------------------- */

static void write_clip(const char *name, const unsigned char *rgb, int64_t count, int64_t height, int64_t width)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s/frames", folder, name);
    assert_good(h3_make_folders(path));
    assert_good(h3_frames_write(path, rgb, count, height, width));
}

/* The exit code; what it says, both streams, is in `said`. */
static int run(const char *options, char said[1000])
{
    char command[2000];
    const char *bin = getenv("H3_BIN");
    snprintf(command, sizeof command, "P=$PWD/%s/h3_sheet; case '%s' in /*) P=%s/h3_sheet;; esac; cd %s && \"$P\" %s 2>&1", bin ? bin : "bin", bin ? bin : "bin", bin ? bin : "bin", folder, options);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    const size_t size = fread(said, 1, 999, pipe);
    said[size] = 0;
    return pclose(pipe) >> 8;
}

static void the_program_makes_the_same_sheet(void **state)
{
    (void)state;
    char said[1000], path[256];
    clips c = new_clips(16, 24);
    c.b[5] ^= 64;
    write_clip("p", c.a, FRAMES, 16, 24);
    write_clip("c", c.b, FRAMES, 16, 24);
    assert_int_equal(run("--provider p --candidate c/frames --out s.png --title T --factor 3 --columns 2 --width 100", said), 0);
    assert_non_null(strstr(said, "3 of 3 frames, 24x16"));
    h3_sheet sheet = sheet_of(&c);
    for (int i = 0; i < FRAMES; i++) c.frames[i].number = i;
    sheet.title = "T";
    sheet.names[0] = "provider";
    sheet.names[1] = "candidate";
    sheet.factor = 3;
    sheet.columns = 2;
    sheet.cell_width = 100;
    h3_picture wanted, made;
    assert_good(h3_sheet_compare(&wanted, &sheet));
    snprintf(path, sizeof path, "%s/s.png", folder);
    assert_good(h3_picture_read(&made, path, H3_PICTURE_EVIDENCE));
    assert_true(same_picture(&wanted, &made));
    h3_picture_free(&made);
    h3_picture_free(&wanted);
    assert_int_equal(run("--clip p --frames 2 --out t.png", said), 0);
    assert_non_null(strstr(said, "2 of 3 frames"));
    free_clips(&c);
}

static int is_there(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return access(path, F_OK) == 0;
}

static void put_text(const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_good(h3_publish(path, text, strlen(text)));
}

/* Sheets of the seeds that were decoded, curves of the figures that there are; those of an earlier attempt go. */
static void a_run_gets_its_sheets_and_curves(void **state)
{
    (void)state;
    char said[1000], path[256];
    clips c = new_clips(16, 24);
    snprintf(path, sizeof path, "%s/r", folder);
    assert_good(h3_make_folders(path));
    put_text("r/compare.json", "{\"seeds\": [{\"seed\": 42, \"velocity\": {\"video\": {\"errors\": [0.1, 0.2]}}, \"media\": {\"video\": {\"psnr\": [40, null, 41], \"ssim_frames\": [1, 1, 1]}}}, {\"seed\": 43}]}");
    write_clip("r/data/generate/provider/seed42", c.a, FRAMES, 16, 24);
    write_clip("r/data/generate/candidate/seed42", c.b, FRAMES, 16, 24);
    snprintf(path, sizeof path, "%s/r/previews", folder);
    assert_good(h3_make_folders(path));
    put_text("r/previews/seed43.png", "old");
    put_text("r/previews/velocity.audio.svg", "old");
    assert_int_equal(run("--run r --frames 2", said), 0);
    assert_true(is_there("r/previews/seed42.png") && is_there("r/previews/psnr.svg") && is_there("r/previews/ssim.svg") && is_there("r/previews/velocity.video.svg"));
    assert_false(is_there("r/previews/seed43.png") || is_there("r/previews/velocity.audio.svg"));
    assert_non_null(strstr(said, "2 of 3 frames, 24x16"));
    snprintf(path, sizeof path, "%s/r/data/generate/candidate/seed42", folder);
    assert_good(h3_remove_tree(path));
    assert_int_equal(run("--run r", said), 3); /* one side alone is no comparison */
    put_text("r/compare.json", "{\"seeds\": [{\"seed\": \"../../x\"}]}");
    assert_int_equal(run("--run r", said), 3);
    put_text("r/compare.json", "{");
    assert_int_equal(run("--run r", said), 3);
    assert_int_equal(run("--run none", said), 3);
    assert_int_equal(run("--run r --out x.png", said), 2);
    free_clips(&c);
}

static void the_program_refuses(void **state)
{
    static const struct { const char *options; int code; const char *word; } CASES[] = {
        {"", 2, "needed; see h3_sheet --help"}, {"--clip p", 2, "--out"}, {"--provider p --out s.png", 2, "--candidate"}, {"--clip p --provider p --out s.png", 2, "--clip"}, {"--run p --clip p", 2, "--run alone"},
        {"--clip p --out s.png --frames 0", 2, "--frames 0: give a number from 1 to 1024"}, {"--clip p --out s.png --frames x", 2, "--frames x"},
        {"--clip p --out s.png --factor 256", 2, "--factor 256"}, {"--clip p --out s.png --width 99999999999999999999", 2, "--width"}, {"--clip p --clip p --out s.png", 2, "given twice"},
        {"--clip none --out s.png", 3, "cannot open the folder"}, {"--provider p --candidate short --out s.png", 3, "compare videos of one length"},
        {"--provider p --candidate wide --out s.png", 3, "the first frame 24 x 16"}, {"--clip broken --out s.png", 3, "frame_00001.png"}, {"--clip p --out none/s.png", 4, "none/s.png"}};
    (void)state;
    char said[1000];
    clips c = new_clips(16, 25);
    write_clip("p", c.a, FRAMES, 16, 24);
    write_clip("short", c.a, FRAMES - 1, 16, 24);
    write_clip("wide", c.a, FRAMES, 16, 25);
    write_clip("broken", c.a, FRAMES, 16, 24);
    snprintf(said, sizeof said, "%s/broken/frames/frame_00001.png", folder);
    assert_int_equal(truncate(said, 70), 0);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        const int code = run(CASES[i].options, said);
        if (code != CASES[i].code || strstr(said, CASES[i].word) == NULL) fail_msg("%s: exit %d: %s", CASES[i].options, code, said);
        assert_ptr_equal(strchr(said, '\n'), said + strlen(said) - 1); /* one line */
    }
    snprintf(said, sizeof said, "%s/s.png", folder);
    assert_int_not_equal(access(said, F_OK), 0);
    free_clips(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_clips_have_black_differences),
        cmocka_unit_test(one_pixel_is_seen),
        cmocka_unit_test(every_pixel_counts_where_cells_are_smaller),
        cmocka_unit_test(the_largest_of_many_is_shown),
        cmocka_unit_test(differences_are_amplified_and_cut),
        cmocka_unit_test(small_frames_grow_by_whole_numbers),
        cmocka_unit_test(what_is_written_depends_on_what_is_shown),
        cmocka_unit_test(the_factor_is_chosen),
        cmocka_unit_test(frames_are_chosen_evenly),
        cmocka_unit_test(impossible_sheets_are_refused),
        cmocka_unit_test(letters_differ_and_stay_inside),
        cmocka_unit_test_setup_teardown(the_program_makes_the_same_sheet, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(a_run_gets_its_sheets_and_curves, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(the_program_refuses, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
