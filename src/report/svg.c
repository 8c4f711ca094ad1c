/* The pictures of report.html: inline SVG, made of numbers alone; every name in them is escaped. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report/data.h"

static const char *const palette[] = {"#0b62a8", "#c2570c", "#2b7a3d", "#7a3fa0", "#a3195b", "#6b6b00"};
enum { COLOURS = sizeof palette / sizeof *palette, DOTS_MOST = 64 };

/* --- a plot ------------------------------------------------------------------------------------------------------- */

typedef struct plot {
    double left, top, width, height;
    double x_low, x_high, y_high; /* y begins at 0 */
} plot;

static double place_x(const plot *p, double x)
{
    return p->x_high > p->x_low ? p->left + (x - p->x_low) / (p->x_high - p->x_low) * p->width : p->left + p->width / 2;
}
static double place_y(const plot *p, double y)
{
    return p->top + p->height - (p->y_high > 0.0 ? fmax(fmin(y / p->y_high, 1.0), 0.0) : 0.0) * p->height;
}

static void label(h3_markup *out, double x, double y, const char *anchor, const char *class, const char *text)
{
    h3_markup_add(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" class=\"%s\">", x, y, anchor, class);
    h3_markup_text(out, text);
    h3_markup_add(out, "</text>");
}

static void line(h3_markup *out, double x1, double y1, double x2, double y2, const char *class)
{
    h3_markup_add(out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"%s\"/>", x1, y1, x2, y2, class);
}

/* 1, 2 or 5 times a power of ten, so that there are two to five steps. */
static double step_for(double most)
{
    double power = pow(10.0, floor(log10(most)));
    double lead = most / power;
    return lead < 2.0 ? power / 2.0 : lead < 5.0 ? power : 2.0 * power;
}

static void frame(h3_markup *out, const plot *p, const char *title, const char *x_title)
{
    char text[40];
    label(out, p->left, p->top - 10, "start", "t", title);
    line(out, p->left, p->top + p->height, p->left + p->width, p->top + p->height, "a");
    double step = p->y_high > 0.0 ? step_for(p->y_high) : 0.0;
    for (int i = 0; step > 0.0 && i * step <= p->y_high * 1.0001; i++) {
        snprintf(text, sizeof text, "%.3g", i * step);
        if (i > 0) line(out, p->left, place_y(p, i * step), p->left + p->width, place_y(p, i * step), "g");
        label(out, p->left - 6, place_y(p, i * step) + 4, "end", "s", text);
    }
    int64_t span = (int64_t)(p->x_high - p->x_low), every = span > 40 ? 10 : span > 15 ? 5 : span > 7 ? 2 : 1;
    for (int64_t i = 0; i <= span; i += every) {
        snprintf(text, sizeof text, "%lld", (long long)(p->x_low + (double)i));
        label(out, place_x(p, p->x_low + (double)i), p->top + p->height + 15, "middle", "s", text);
    }
    label(out, p->left + p->width, p->top + p->height + 30, "end", "s", x_title);
}

/* A line through the values at x = 0, 1, ...; NaN interrupts it and is crossed out at the top. */
static void curve(h3_markup *out, const plot *p, const double *values, int64_t count, const char *colour, int dashed)
{
    int open = 0;
    for (int64_t i = 0; i < count; i++) {
        if (isnan(values[i])) {
            if (open) h3_markup_add(out, "\"/>");
            open = 0;
            continue;
        }
        if (!open)
            h3_markup_add(out, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"1.6\"%s points=\"", colour,
                          dashed ? " stroke-dasharray=\"4 3\" opacity=\"0.75\"" : "");
        h3_markup_add(out, "%s%.1f,%.1f", open ? " " : "", place_x(p, (double)i), place_y(p, values[i]));
        open = 1;
    }
    if (open) h3_markup_add(out, "\"/>");
    for (int64_t i = 0; !dashed && count <= DOTS_MOST && i < count; i++)
        if (isnan(values[i]))
            h3_markup_add(out, "<path d=\"M%.1f %.1fl8 8m0 -8l-8 8\" stroke=\"#cf222e\" stroke-width=\"1.8\"/>",
                          place_x(p, (double)i) - 4, p->top - 4);
        else
            h3_markup_add(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2.1\" fill=\"%s\"/>", place_x(p, (double)i),
                          place_y(p, values[i]), colour);
}

static void open_svg(h3_markup *out, double width, double height, const char *title)
{
    h3_markup_add(out, "<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\"><title>", width, height);
    h3_markup_text(out, title);
    h3_markup_add(out, "</title>");
}

static void key(h3_markup *out, double x, double y, const char *colour, int dashed, const char *text)
{
    h3_markup_add(out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" stroke-width=\"2\"%s/>", x, y - 4,
                  x + 22, y - 4, colour, dashed ? " stroke-dasharray=\"4 3\"" : "");
    label(out, x + 28, y, "start", "s", text);
}

/* --- nodes -------------------------------------------------------------------------------------------------------- */

enum { ROW = 22, NAMES = 150, PANEL = 380, GAP = 40, HEAD = 46 };
#define SHARE_MOST 1.25

static const struct {
    const char *kind, *colour, *words;
    int shape; /* 0 disc, 1 square, 2 diamond, 3 ring */
} marks[] = {{"error", "#0b62a8", "isolated error", 0},
             {"worst_row", "#7a3fa0", "worst row", 1},
             {"bias", "#c2570c", "bias", 2},
             {"chained", "#2b7a3d", "chained error", 3}};
enum { MARKS = sizeof marks / sizeof *marks };

static void shape(h3_markup *out, int kind, double x, double y, const char *colour)
{
    if (kind == 0) h3_markup_add(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"%s\"/>", x, y, colour);
    else if (kind == 1)
        h3_markup_add(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"6.4\" height=\"6.4\" fill=\"%s\"/>", x - 3.2, y - 3.2, colour);
    else if (kind == 2)
        h3_markup_add(out, "<path d=\"M%.1f %.1fl4.2 4.2l-4.2 4.2l-4.2 -4.2z\" fill=\"%s\"/>", x, y - 4.2, colour);
    else
        h3_markup_add(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.6\" fill=\"#fff\" stroke=\"%s\" stroke-width=\"1.7\"/>", x, y,
                      colour);
}

/* One figure of a node: its place, the provider's as a tick behind it, a red frame around it when it failed. */
static void mark(h3_markup *out, double left, double y, const cJSON *cell, int which, int own_bytes)
{
    double value = h3_number_of(cell, "value"), bound = h3_number_of(cell, "bound"),
           provider = fabs(h3_number_of(cell, "provider"));
    int failed = strcmp(h3_text_of(cell, "state"), "failed") == 0;
    if (!(bound > 0.0) && !failed) return;
    double share = value / bound;
    if (!(share <= SHARE_MOST)) share = SHARE_MOST; /* beyond the picture, or no number */
    if (share < 0.0) share = 0.0;
    double x = left + share / SHARE_MOST * PANEL;
    if (which == 0 && provider / bound <= SHARE_MOST)
        line(out, left + provider / bound / SHARE_MOST * PANEL, y - 7, left + provider / bound / SHARE_MOST * PANEL, y + 7, "p");
    shape(out, marks[which].shape, x, y, own_bytes && !failed && marks[which].shape != 3 ? "#b9bec4" : marks[which].colour);
    if (failed)
        h3_markup_add(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"8\" fill=\"none\" stroke=\"#cf222e\" stroke-width=\"2\"/>", x, y);
}

static void panel(h3_markup *out, double left, double bottom, const char *title)
{
    char text[16];
    label(out, left, HEAD - 22, "start", "t", title);
    for (int i = 0; i <= 4; i++) {
        double x = left + i * 0.25 / SHARE_MOST * PANEL;
        line(out, x, HEAD - 4, x, bottom, i == 4 ? "b" : "g");
        snprintf(text, sizeof text, "%d %%", 25 * i);
        label(out, x, HEAD - 8, "middle", "s", i == 4 ? "bound" : text);
    }
}

void h3_report_picture_nodes(h3_markup *out, const h3_report_data *data)
{
    static const char *const directions[] = {"forward", "backward"};
    const cJSON *layouts = h3_item_of(data->gate, "block0"), *layout, *node;
    int rows = cJSON_GetArraySize(h3_item_of(cJSON_GetArrayItem(layouts, 0), "nodes"));
    if (rows == 0) return;
    double bottom = HEAD + rows * ROW, y = HEAD + ROW / 2.0;
    open_svg(out, NAMES + 2 * PANEL + GAP + 20, bottom + 34, "Share of its bound that every node of block 0 uses");
    panel(out, NAMES, bottom, "forward");
    panel(out, NAMES + PANEL + GAP, bottom, "backward");
    for (int k = 0; k < MARKS; k++) {
        shape(out, marks[k].shape, NAMES + 6 + k * 125, bottom + 20, marks[k].colour);
        label(out, NAMES + 16 + k * 125, bottom + 24, "start", "s", marks[k].words);
    }
    line(out, NAMES + 506, bottom + 13, NAMES + 506, bottom + 27, "p");
    label(out, NAMES + 514, bottom + 24, "start", "s", "the provider's isolated error");
    shape(out, 0, NAMES + 686, bottom + 20, "#b9bec4");
    label(out, NAMES + 696, bottom + 24, "start", "s", "provider's own bytes");
    cJSON_ArrayForEach(node, h3_item_of(cJSON_GetArrayItem(layouts, 0), "nodes")) {
        label(out, NAMES - 12, y + 4, "end", "n", h3_text_of(node, "node"));
        line(out, NAMES, y + ROW / 2.0, NAMES + 2 * PANEL + GAP, y + ROW / 2.0, "h");
        y += ROW;
    }
    cJSON_ArrayForEach(layout, layouts) {
        y = HEAD + ROW / 2.0;
        cJSON_ArrayForEach(node, h3_item_of(layout, "nodes")) {
            for (int d = 0; d < 2; d++) {
                const cJSON *record = h3_item_of(node, directions[d]), *checks = h3_item_of(record, "checks");
                for (int k = MARKS - 1; k >= 0; k--)
                    if (h3_item_of(checks, marks[k].kind) != NULL)
                        mark(out, NAMES + d * (PANEL + GAP), y, h3_item_of(checks, marks[k].kind), k,
                             cJSON_IsTrue(h3_item_of(record, "isolated_bitwise")));
            }
            y += ROW;
        }
    }
    h3_markup_add(out, "</svg>\n");
}

/* --- blocks ------------------------------------------------------------------------------------------------------- */

enum { MOST_BLOCKS = 100000 };

/* Error and bound of one tensor of every block: "<layout>/<start><block>.residual_mlp". */
static void block_series(const h3_report_data *data, const char *layout, const char *start, int64_t blocks, double *error,
                         double *bound)
{
    const cJSON *tensor;
    char name[200];
    for (int64_t i = 0; i < blocks; i++) error[i] = bound[i] = NAN;
    cJSON_ArrayForEach(tensor, h3_item_of(h3_item_of(data->gate, "full_model"), "tensors")) {
        const char *full = h3_text_of(tensor, "tensor");
        int64_t block = h3_block_of(full);
        if (block < 0 || block >= blocks) continue;
        snprintf(name, sizeof name, "%s/%s%lld.residual_mlp", layout, start, (long long)block);
        if (strcmp(name, full) != 0) continue;
        error[block] = h3_number_of(tensor, "error");
        bound[block] = h3_number_of(tensor, "bound");
    }
}

static void raise_to(double *most, const double *values, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (values[i] > *most && isfinite(values[i])) *most = values[i];
}

static void block_panel(h3_markup *out, const h3_report_data *data, double left, const char *start, const char *title,
                        int64_t blocks, double *memory)
{
    plot p = {left, 40, 400, 190, 0, (double)(blocks - 1), 0};
    for (size_t i = 0; i < data->plan.layout_count; i++) {
        block_series(data, data->plan.layouts[i].name, start, blocks, memory, memory + blocks);
        raise_to(&p.y_high, memory, 2 * blocks);
    }
    p.y_high *= 1.08;
    frame(out, &p, title, "block");
    for (size_t i = 0; i < data->plan.layout_count; i++) {
        block_series(data, data->plan.layouts[i].name, start, blocks, memory, memory + blocks);
        if (isnan(memory[blocks])) continue; /* a layout that did not come so far */
        curve(out, &p, memory + blocks, blocks, palette[i % COLOURS], 1);
        curve(out, &p, memory, blocks, palette[i % COLOURS], 0);
    }
}

void h3_report_picture_blocks(h3_markup *out, const h3_report_data *data)
{
    int64_t blocks = h3_count_of(h3_item_of(data->gate, "full_model"), "blocks");
    if (blocks < 1 || blocks > MOST_BLOCKS) return;
    double *memory = malloc(2 * (size_t)blocks * sizeof *memory);
    if (memory == NULL) {
        out->failed = 1;
        return;
    }
    open_svg(out, 960, 296, "Errors along the blocks beside their bounds");
    block_panel(out, data, 60, "node.block", "error of each block's output (forward)", blocks, memory);
    block_panel(out, data, 540, "dnode.block", "error of the gradient that reaches it (backward)", blocks, memory);
    for (size_t i = 0; i < data->plan.layout_count && i < COLOURS; i++) {
        char text[120];
        snprintf(text, sizeof text, "layout %s", data->plan.layouts[i].name);
        key(out, 60 + 130 * (double)i, 286, palette[i], 0, text);
    }
    key(out, 60 + 130 * (double)(data->plan.layout_count < COLOURS ? data->plan.layout_count : COLOURS), 286, "#57606a", 1,
        "frozen bound");
    h3_markup_add(out, "</svg>\n");
    free(memory);
}

/* --- steps -------------------------------------------------------------------------------------------------------- */

enum { MOST_STEPS = 100000 };

static int64_t step_series(const cJSON *seed, const char *modality, double *values)
{
    const cJSON *error;
    int64_t count = 0;
    cJSON_ArrayForEach(error, h3_item_of(h3_item_of(h3_item_of(seed, "velocity"), modality), "errors"))
        if (count < MOST_STEPS) values[count++] = cJSON_IsNumber(error) ? error->valuedouble : NAN;
    return count;
}

/* One curve a seed: `series` reads a seed's values under `key_name`, at most MOST_STEPS of them. */
static void seed_panel(h3_markup *out, const h3_report_data *data, double left, int64_t (*series)(const cJSON *, const char *, double *),
                       const char *key_name, const char *title, const char *axis, double *memory)
{
    plot p = {left, 40, 400, 190, 0, 0, 0};
    const cJSON *seed;
    size_t i = 0;
    cJSON_ArrayForEach(seed, h3_item_of(data->compare, "seeds")) {
        int64_t count = series(seed, key_name, memory);
        raise_to(&p.y_high, memory, count);
        if ((double)(count - 1) > p.x_high) p.x_high = (double)(count - 1);
    }
    p.y_high *= 1.08;
    frame(out, &p, title, axis);
    cJSON_ArrayForEach(seed, h3_item_of(data->compare, "seeds")) {
        int64_t count = series(seed, key_name, memory);
        curve(out, &p, memory, count, palette[i++ % COLOURS], 0);
    }
}

void h3_report_picture_steps(h3_markup *out, const h3_report_data *data)
{
    const cJSON *seed;
    size_t i = 0;
    if (cJSON_GetArraySize(h3_item_of(data->compare, "seeds")) == 0) return;
    double *memory = malloc(MOST_STEPS * sizeof *memory);
    if (memory == NULL) {
        out->failed = 1;
        return;
    }
    open_svg(out, 960, 296, "Errors of the predicted velocities, step by step");
    seed_panel(out, data, 60, step_series, "video", "error of each step's video velocity", "step", memory);
    seed_panel(out, data, 540, step_series, "audio", "error of each step's audio velocity", "step", memory);
    cJSON_ArrayForEach(seed, h3_item_of(data->compare, "seeds")) {
        char text[60];
        snprintf(text, sizeof text, "seed %lld", (long long)h3_count_of(seed, "seed"));
        if (i < COLOURS) key(out, 60 + 130 * (double)i, 286, palette[i], 0, text);
        i++;
    }
    h3_markup_add(out, "</svg>\n");
    free(memory);
}

/* --- frames ------------------------------------------------------------------------------------------------------- */

/* Root mean squared error in codes, from the PSNR (null: no difference), or 1 - SSIM. */
static int64_t frame_series(const cJSON *seed, const char *key_name, double *values)
{
    const cJSON *item, *video = h3_item_of(h3_item_of(seed, "media"), "video");
    int is_psnr = strcmp(key_name, "psnr") == 0;
    int64_t count = 0;
    cJSON_ArrayForEach(item, h3_item_of(video, key_name)) {
        if (count == MOST_STEPS) break;
        double value = cJSON_IsNumber(item) ? item->valuedouble : NAN;
        values[count++] = !is_psnr ? 1.0 - value : isnan(value) ? 0.0 : 255.0 * pow(10.0, -value / 20.0);
    }
    return count;
}

void h3_report_picture_frames(h3_markup *out, const h3_report_data *data)
{
    const cJSON *seed;
    size_t i = 0;
    double *memory = malloc(MOST_STEPS * sizeof *memory);
    if (memory == NULL) {
        out->failed = 1;
        return;
    }
    open_svg(out, 960, 296, "Differences of the pictures, frame by frame");
    seed_panel(out, data, 60, frame_series, "psnr", "root mean squared difference (codes of 255)", "frame", memory);
    seed_panel(out, data, 540, frame_series, "ssim_frames", "1 - structural similarity", "frame", memory);
    cJSON_ArrayForEach(seed, h3_item_of(data->compare, "seeds")) {
        char text[60];
        snprintf(text, sizeof text, "seed %lld", (long long)h3_count_of(seed, "seed"));
        if (i < COLOURS) key(out, 60 + 130 * (double)i, 286, palette[i], 0, text);
        i++;
    }
    h3_markup_add(out, "</svg>\n");
    free(memory);
}
