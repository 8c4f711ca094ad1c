#include "media/sheet.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "media/label.h"

static const h3_colour PAPER = {{18, 20, 25}}, INK = {{232, 235, 240}}, FAINT = {{139, 148, 160}}, EDGE = {{58, 63, 73}}, EQUAL = {{110, 190, 130}}, DIFFERS = {{240, 176, 92}};

enum { MARGIN = 24, GAP = 10, LINE = 18, BAND_GAP = 22, TITLE_SCALE = 3, TEXT_SCALE = 2, CHOSEN_COLUMNS = 6, EQUAL_FACTOR = 8 };

/* Where things are; pixels. */
typedef struct plan {
    int64_t columns, bands, rows;  /* frames a line, lines, pictures of a frame */
    int64_t cell_height, cell_width;
    int64_t names_width;           /* of the column with the names of the clips */
    int64_t top, band_height, height, width;
    int64_t factor;
} plan;

int64_t h3_sheet_choose(int64_t *numbers, int64_t most, int64_t count)
{
    const int64_t chosen = count < most ? count : most;
    for (int64_t i = 0; i < chosen; i++) numbers[i] = chosen == 1 ? 0 : (i * (count - 1) + (chosen - 1) / 2) / (chosen - 1);
    return chosen > 0 ? chosen : 0;
}

static const char *name_of(const h3_sheet *s, int which) { return s->names[which] != NULL ? s->names[which] : which == 0 ? "reference" : "candidate"; }

/* A small frame is shown larger by a whole number, a large one as wide as allowed. */
static void choose_cell(plan *p, const h3_sheet *s)
{
    const int64_t most = s->cell_width > 0 ? s->cell_width : H3_SHEET_CELL;
    if (s->width <= most) {
        const int64_t times = most / s->width;
        p->cell_width = s->width * times;
        p->cell_height = s->height * times;
    } else {
        p->cell_width = most;
        p->cell_height = (s->height * most + s->width / 2) / s->width;
        if (p->cell_height < 1) p->cell_height = 1;
    }
}

static int64_t choose_factor(const h3_sheet *s)
{
    int64_t most = 0, factor = 1;
    for (int64_t f = 0; f < s->count; f++)
        for (int64_t i = 0; i < s->height * s->width * 3; i++) {
            const int64_t difference = llabs((long long)s->frames[f].a[i] - (long long)s->frames[f].b[i]);
            if (difference > most) most = difference;
        }
    if (most == 0) return EQUAL_FACTOR;
    while (2 * factor * most <= 255) factor *= 2;
    return factor;
}

static h3_status make_plan(plan *p, const h3_sheet *s, int rows)
{
    *p = (plan){.rows = rows, .factor = s->factor};
    if (s->count < 1 || s->count > H3_SHEET_FRAMES) return h3_error(H3_USAGE, "a sheet of %lld frames; 1 to %d can be shown", (long long)s->count, H3_SHEET_FRAMES);
    if (s->height < 1 || s->width < 1 || s->height > H3_PICTURE_SIDE_LIMIT || s->width > H3_PICTURE_SIDE_LIMIT)
        return h3_error(H3_USAGE, "a sheet of frames of %lld x %lld pixels; 1 to %d a side are possible", (long long)s->width, (long long)s->height, H3_PICTURE_SIDE_LIMIT);
    if (s->cell_width < 0 || s->cell_width > H3_PICTURE_SIDE_LIMIT || s->columns < 0 || s->factor < 0 || s->factor > 255)
        return h3_error(H3_USAGE, "a sheet of %lld columns, %lld pixels a cell, factor %lld; see h3_sheet --help", (long long)s->columns, (long long)s->cell_width, (long long)s->factor);
    choose_cell(p, s);
    if (rows > 1 && p->factor == 0) p->factor = choose_factor(s);
    p->columns = s->columns > 0 ? s->columns : CHOSEN_COLUMNS;
    if (p->columns > s->count) p->columns = s->count;
    p->bands = (s->count + p->columns - 1) / p->columns;
    if (rows > 1) {
        const int64_t a = h3_label_width(name_of(s, 0), TEXT_SCALE), b = h3_label_width(name_of(s, 1), TEXT_SCALE), c = h3_label_width("difference", TEXT_SCALE);
        p->names_width = (a > b && a > c ? a : b > c ? b : c) + 2 * GAP;
    }
    p->top = MARGIN + (s->title != NULL ? TITLE_SCALE * H3_LABEL_HEIGHT + LINE : 0);
    p->band_height = rows * (p->cell_height + GAP) + LINE;
    p->height = p->top + p->bands * p->band_height + (p->bands - 1) * BAND_GAP + MARGIN - GAP;
    p->width = 2 * MARGIN + p->names_width + p->columns * (p->cell_width + GAP) - GAP;
    const int64_t title = s->title != NULL ? h3_label_width(s->title, TITLE_SCALE) + 2 * MARGIN : 0;
    if (p->width < title) p->width = title;
    if (p->height <= H3_PICTURE_SIDE_LIMIT && p->width <= H3_PICTURE_SIDE_LIMIT) return H3_OK;
    return h3_error(H3_USAGE, "a sheet of %lld x %lld pixels is too large; show fewer frames (--frames) or smaller ones (--width), or a shorter title", (long long)p->width, (long long)p->height);
}

/* --- cells ----------------------------------------------------------------------------------------------------------- */

static void put(h3_picture *on, const h3_picture *cell, int64_t x, int64_t y, int64_t width, int64_t height)
{
    h3_label_fill(on, x - 1, y - 1, width + 2, height + 2, EDGE);
    for (int64_t row = 0; row < height; row++)
        for (int64_t column = 0; column < width; column++)
            memcpy(on->rgb + ((y + row) * on->width + x + column) * 3, cell->rgb + (row * cell->height / height * cell->width + column * cell->width / width) * 3, 3);
}

static h3_status put_frame(h3_picture *on, const plan *p, const h3_sheet *s, const unsigned char *rgb, int64_t x, int64_t y)
{
    h3_picture whole = {s->width, s->height, (unsigned char *)(uintptr_t)rgb}, small = {0};
    if (p->cell_width >= s->width) {
        put(on, &whole, x, y, p->cell_width, p->cell_height);
        return H3_OK;
    }
    H3_TRY(h3_picture_resize(&small, &whole, p->cell_width, p->cell_height));
    put(on, &small, x, y, p->cell_width, p->cell_height);
    h3_picture_free(&small);
    return H3_OK;
}

/* The largest difference among the pixels that one pixel of the cell stands for. */
static unsigned char largest(const unsigned char *a, const unsigned char *b, int64_t width, int64_t top, int64_t bottom, int64_t left, int64_t right, int64_t colour, int64_t factor)
{
    int64_t most = 0;
    for (int64_t y = top; y < bottom; y++)
        for (int64_t x = left; x < right; x++) {
            const int64_t i = (y * width + x) * 3 + colour, difference = llabs((long long)a[i] - (long long)b[i]);
            if (difference > most) most = difference;
        }
    return (unsigned char)(most * factor < 255 ? most * factor : 255);
}

h3_status h3_sheet_difference(h3_picture *out, const unsigned char *a, const unsigned char *b, int64_t from_height, int64_t from_width, int64_t height, int64_t width,
                              int64_t factor)
{
    void *memory;
    *out = (h3_picture){0};
    if (height < 1 || width < 1 || height > from_height || width > from_width || factor < 1 || factor > 255)
        return h3_error(H3_USAGE, "a difference of %lld x %lld pixels from %lld x %lld, factor %lld", (long long)width, (long long)height, (long long)from_width, (long long)from_height,
                        (long long)factor);
    H3_TRY(h3_alloc(&memory, (size_t)(height * width), 3, "a difference"));
    *out = (h3_picture){width, height, memory};
    for (int64_t y = 0; y < height; y++)
        for (int64_t x = 0; x < width; x++)
            for (int64_t c = 0; c < 3; c++) {
                const int64_t top = y * from_height / height, bottom = (y + 1) * from_height / height;
                const int64_t left = x * from_width / width, right = (x + 1) * from_width / width;
                out->rgb[(y * width + x) * 3 + c] = largest(a, b, from_width, top, bottom, left, right, c, factor);
            }
    return H3_OK;
}

static h3_status put_difference(h3_picture *on, const plan *p, const h3_sheet *s, const h3_sheet_frame *frame, int64_t x, int64_t y)
{
    h3_picture cell;
    const int smaller = p->cell_width < s->width;
    H3_TRY(h3_sheet_difference(&cell, frame->a, frame->b, s->height, s->width, smaller ? p->cell_height : s->height, smaller ? p->cell_width : s->width, p->factor));
    put(on, &cell, x, y, p->cell_width, p->cell_height);
    h3_picture_free(&cell);
    return H3_OK;
}

/* "12", and of two clips "12  38.21 dB" or "12  equal", as far as there is room. */
static void put_words(h3_picture *on, const h3_sheet *s, const h3_sheet_frame *frame, int64_t x, int64_t y, int64_t width)
{
    char number[24], words[32] = "equal";
    const int64_t samples = s->height * s->width * 3;
    int64_t squares = 0;
    snprintf(number, sizeof number, "%lld", (long long)frame->number);
    const int64_t used = h3_label_width(number, TEXT_SCALE) + GAP;
    if (used <= width) h3_label_draw(on, x, y, number, TEXT_SCALE, INK);
    if (frame->b == NULL) return;
    for (int64_t i = 0; i < samples; i++) squares += ((int64_t)frame->a[i] - frame->b[i]) * ((int64_t)frame->a[i] - frame->b[i]);
    if (squares > 0) snprintf(words, sizeof words, "%.2f dB", 10.0 * log10(255.0 * 255.0 * (double)samples / (double)squares));
    for (int64_t scale = TEXT_SCALE; scale > 0; scale--) {
        if (used + h3_label_width(words, scale) > width) continue;
        h3_label_draw(on, x + used, y + (TEXT_SCALE - scale) * H3_LABEL_HEIGHT / 2, words, scale, squares > 0 ? DIFFERS : EQUAL);
        return;
    }
}

/* --- sheets ---------------------------------------------------------------------------------------------------------- */

static void put_names(h3_picture *on, const plan *p, const h3_sheet *s, int64_t y)
{
    char factor[24];
    const int64_t step = p->cell_height + GAP, middle = (p->cell_height - H3_LABEL_HEIGHT * TEXT_SCALE) / 2;
    for (int i = 0; i < 2; i++) h3_label_draw(on, MARGIN, y + i * step + middle, name_of(s, i), TEXT_SCALE, FAINT);
    snprintf(factor, sizeof factor, "x %lld", (long long)p->factor);
    h3_label_draw(on, MARGIN, y + 2 * step + middle, "difference", TEXT_SCALE, FAINT);
    h3_label_draw(on, MARGIN, y + 2 * step + middle + H3_LABEL_HEIGHT * TEXT_SCALE + GAP / 2, factor, TEXT_SCALE, FAINT);
}

static h3_status put_all(h3_picture *on, const plan *p, const h3_sheet *s)
{
    h3_label_fill(on, 0, 0, p->width, p->height, PAPER);
    if (s->title != NULL) h3_label_draw(on, MARGIN, MARGIN, s->title, TITLE_SCALE, INK);
    for (int64_t i = 0; i < s->count; i++) {
        const h3_sheet_frame *frame = &s->frames[i];
        const int64_t x = MARGIN + p->names_width + i % p->columns * (p->cell_width + GAP), step = p->cell_height + GAP;
        const int64_t top = p->top + i / p->columns * (p->band_height + BAND_GAP), y = top + LINE;
        put_words(on, s, frame, x, top, p->cell_width);
        H3_TRY(put_frame(on, p, s, frame->a, x, y));
        if (p->rows == 1) continue;
        H3_TRY(put_frame(on, p, s, frame->b, x, y + step));
        H3_TRY(put_difference(on, p, s, frame, x, y + 2 * step));
        if (i % p->columns == 0) put_names(on, p, s, y);
    }
    return H3_OK;
}

static h3_status make(h3_picture *out, const h3_sheet *s, int rows)
{
    plan p;
    void *memory;
    *out = (h3_picture){0};
    H3_TRY(make_plan(&p, s, rows));
    H3_TRY(h3_alloc(&memory, (size_t)(p.height * p.width), 3, "a sheet"));
    *out = (h3_picture){p.width, p.height, memory};
    h3_status status = put_all(out, &p, s);
    if (status != H3_OK) h3_picture_free(out);
    return status;
}

h3_status h3_sheet_contact(h3_picture *out, const h3_sheet *sheet)
{
    *out = (h3_picture){0};
    for (int64_t i = 0; i < sheet->count; i++)
        if (sheet->frames[i].a == NULL || sheet->frames[i].b != NULL) return h3_error(H3_USAGE, "frame %lld of a contact sheet is not of one clip", (long long)i);
    return make(out, sheet, 1);
}

h3_status h3_sheet_compare(h3_picture *out, const h3_sheet *sheet)
{
    *out = (h3_picture){0};
    for (int64_t i = 0; i < sheet->count; i++)
        if (sheet->frames[i].a == NULL || sheet->frames[i].b == NULL) return h3_error(H3_USAGE, "frame %lld of a sheet is not of two clips", (long long)i);
    return make(out, sheet, 3);
}
