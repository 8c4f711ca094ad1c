#include "report/curves.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report/data.h"

enum { WIDTH = 960, HEIGHT = 296, LEFT = 60, TOP = 40, PLOT_WIDTH = 880, PLOT_HEIGHT = 190, KEY_STEP = 130, DOTS_MOST = 150, SEEDS_MOST = 64, VALUES_MOST = 100000 };

static const char *const palette[] = {"#0b62a8", "#c2570c", "#2b7a3d", "#7a3fa0", "#a3195b", "#6b6b00"};
enum { COLOURS = sizeof palette / sizeof *palette };

static const char style[] = "text{font:12px system-ui,sans-serif;fill:#1f2328}text.s{font-size:11px;fill:#57606a}text.t{font-weight:600;font-size:13px}"
                                  ".a{stroke:#8c959f}.g{stroke:#eaeef2}";

typedef struct axes {
    double x_high, low, high;
} axes;

/* --- axes ------------------------------------------------------------------------------------------------------------ */

/* What lies beyond every figure that there can be is drawn at the edge. */
static void widen(double *low, double *high, double value)
{
    if (!(fabs(value) < 1e9)) return;
    if (!(*low <= value)) *low = value;
    if (!(*high >= value)) *high = value;
}

/* 0 when there is no value to draw. */
static int find_axes(axes *a, const h3_plot *plot)
{
    int any = 0;
    *a = (axes){0, NAN, NAN};
    for (size_t i = 0; i < plot->count; i++)
        for (int64_t k = 0; k < plot->curves[i].count; k++) {
            any = 1;
            widen(&a->low, &a->high, plot->curves[i].values[k]);
            if ((double)k > a->x_high) a->x_high = (double)k;
        }
    widen(&a->low, &a->high, plot->limit);
    if (plot->from_zero) widen(&a->low, &a->high, 0.0);
    if (isnan(a->low)) a->low = 0.0, a->high = 1.0;
    const double room = a->high > a->low ? 0.08 * (a->high - a->low) : fmax(fabs(a->high) * 0.01, 1e-6);
    a->high += room;
    if (!plot->from_zero) a->low -= room;
    return any;
}

static double place_x(const axes *a, double x) { return a->x_high > 0.0 ? LEFT + x / a->x_high * PLOT_WIDTH : LEFT + PLOT_WIDTH / 2.0; }
static double place_y(const axes *a, double y) { return TOP + PLOT_HEIGHT - fmax(fmin((y - a->low) / (a->high - a->low), 1.0), 0.0) * PLOT_HEIGHT; }

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

/* 1, 2 or 5 times a power of ten, three to six of them. */
static double step_for(double span)
{
    const double power = pow(10.0, floor(log10(span))), lead = span / power;
    return lead < 2.0 ? power / 2.0 : lead < 5.0 ? power : 2.0 * power;
}

static void draw_axes(h3_markup *out, const axes *a, const h3_plot *plot)
{
    char text[40];
    const double step = step_for(a->high - a->low);
    const int64_t last = (int64_t)a->x_high, every = last > 400 ? (last + 39) / 40 * 5 : last > 80 ? 20 : last > 40 ? 10 : last > 15 ? 5 : last > 7 ? 2 : 1;
    label(out, LEFT, TOP - 14, "start", "t", plot->title);
    for (int64_t i = (int64_t)ceil(a->low / step); (double)i * step <= a->high && i < (int64_t)ceil(a->low / step) + 20; i++) {
        const double y = place_y(a, (double)i * step);
        snprintf(text, sizeof text, "%.4g", (double)i * step);
        line(out, LEFT, y, LEFT + PLOT_WIDTH, y, "g");
        label(out, LEFT - 6, y + 4, "end", "s", text);
    }
    line(out, LEFT, TOP + PLOT_HEIGHT, LEFT + PLOT_WIDTH, TOP + PLOT_HEIGHT, "a");
    for (int64_t i = 0; i <= last; i += every) {
        snprintf(text, sizeof text, "%lld", (long long)i);
        label(out, place_x(a, (double)i), TOP + PLOT_HEIGHT + 15, "middle", "s", text);
    }
    label(out, LEFT + PLOT_WIDTH, TOP + PLOT_HEIGHT + 30, "end", "s", plot->x_title);
}

/* --- curves ---------------------------------------------------------------------------------------------------------- */

static void draw_mark(h3_markup *out, const axes *a, int64_t at, double value, const char *colour)
{
    const double x = place_x(a, (double)at);
    if (isnan(value)) h3_markup_add(out, "<path d=\"M%.1f %dl8 8m0 -8l-8 8\" stroke=\"#cf222e\" stroke-width=\"1.8\"/>", x - 4, TOP - 4);
    else if (isinf(value)) h3_markup_add(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2.6\" fill=\"none\" stroke=\"%s\" stroke-width=\"1.3\"/>", x, place_y(a, value), colour);
    else h3_markup_add(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2.1\" fill=\"%s\"/>", x, place_y(a, value), colour);
}

static void draw_curve(h3_markup *out, const axes *a, const h3_curve *curve, const char *colour)
{
    int open = 0;
    for (int64_t i = 0; i < curve->count; i++) {
        const int drawn = isfinite(curve->values[i]);
        if (drawn && !open) h3_markup_add(out, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"1.6\" points=\"", colour);
        if (drawn) h3_markup_add(out, "%s%.1f,%.1f", open ? " " : "", place_x(a, (double)i), place_y(a, curve->values[i]));
        else if (open) h3_markup_add(out, "\"/>");
        open = drawn;
    }
    if (open) h3_markup_add(out, "\"/>");
    /* what is no finite number is marked on the longest curve too */
    for (int64_t i = 0; i < curve->count; i++)
        if (curve->count <= DOTS_MOST || !isfinite(curve->values[i])) draw_mark(out, a, i, curve->values[i], colour);
}

static void draw_limit(h3_markup *out, const axes *a, const h3_plot *plot)
{
    char text[60];
    if (!isfinite(plot->limit)) return;
    const double y = place_y(a, plot->limit);
    h3_markup_add(out, "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" stroke=\"#cf222e\" stroke-width=\"1.2\" stroke-dasharray=\"5 4\"/>", LEFT, y, LEFT + PLOT_WIDTH, y);
    snprintf(text, sizeof text, "%s %.4g", plot->minimum_good ? "at least" : "at most", plot->limit);
    label(out, LEFT + PLOT_WIDTH, y - 4, "end", "s", text);
}

void h3_plot_svg(h3_markup *out, const h3_plot *plot)
{
    axes a;
    if (!find_axes(&a, plot)) return;
    h3_markup_add(out, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" role=\"img\"><title>", WIDTH, HEIGHT);
    h3_markup_text(out, plot->title);
    h3_markup_add(out, "</title><style>%s</style><rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>", style, WIDTH, HEIGHT);
    draw_axes(out, &a, plot);
    draw_limit(out, &a, plot);
    for (size_t i = 0; i < plot->count; i++) {
        const double x = LEFT + KEY_STEP * (double)i;
        draw_curve(out, &a, &plot->curves[i], palette[i % COLOURS]);
        if (i >= COLOURS) continue; /* no more room for names */
        h3_markup_add(out, "<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\" stroke=\"%s\" stroke-width=\"2\"/>", x, HEIGHT - 14, x + 22, HEIGHT - 14, palette[i]);
        label(out, x + 28, HEIGHT - 10, "start", "s", plot->curves[i].name);
    }
    h3_markup_add(out, "</svg>\n");
}

/* --- figures of a comparison ----------------------------------------------------------------------------------------- */

typedef enum { PSNR, SSIM, VELOCITY_VIDEO, VELOCITY_AUDIO, KINDS } kind;

static const struct {
    const char *name, *title, *x_title, *limit, *list, *per_frame;
    int from_zero, minimum_good;
} kinds[KINDS] = {
    {"psnr", "PSNR of every frame, dB (a ring: identical)", "frame", "psnr_global_db", "psnr", "psnr", 0, 1},
    {"ssim", "SSIM of every frame", "frame", "ssim_mean", "ssim_frames", "ssim", 0, 1},
    {"velocity.video", "error of each step's video velocity", "step", NULL, "video", NULL, 1, 0},
    {"velocity.audio", "error of each step's audio velocity", "step", NULL, "audio", NULL, 1, 0},
};

const char *const h3_curve_kinds[] = {"psnr", "ssim", "velocity.video", "velocity.audio", NULL};

/* The list of values, or of frames with them; NULL when there is none. */
static const cJSON *list_of(const cJSON *seed, kind k, const char **field)
{
    *field = NULL;
    if (kinds[k].per_frame == NULL) return h3_item_of(h3_item_of(h3_item_of(seed, "velocity"), kinds[k].list), "errors");
    const cJSON *video = h3_item_of(h3_item_of(seed, "media"), "video");
    if (video == NULL) video = h3_item_of(seed, "video");
    const cJSON *list = h3_item_of(video, kinds[k].list);
    if (cJSON_IsArray(list)) return list;
    *field = kinds[k].per_frame;
    return h3_item_of(video, "per_frame");
}

static double value_of(const cJSON *item, const char *field, kind k)
{
    if (field != NULL) item = h3_item_of(item, field);
    if (cJSON_IsNumber(item)) return item->valuedouble;
    return k == PSNR && cJSON_IsNull(item) ? INFINITY : NAN;
}

typedef struct figures {
    size_t count;
    h3_curve curves[SEEDS_MOST];
    char names[SEEDS_MOST][32];
    double *values[SEEDS_MOST];
} figures;

static void free_figures(figures *f)
{
    for (size_t i = 0; f != NULL && i < f->count; i++) free(f->values[i]);
    free(f);
}

/* NULL: no memory. */
static figures *read_figures(const cJSON *compare, kind k)
{
    const cJSON *seed, *item;
    figures *f = calloc(1, sizeof *f);
    cJSON_ArrayForEach(seed, h3_item_of(compare, "seeds")) {
        const char *field;
        const cJSON *list = list_of(seed, k, &field);
        const int count = cJSON_GetArraySize(list);
        if (f == NULL || f->count == SEEDS_MOST) break;
        if (count < 1 || count > VALUES_MOST) continue;
        const size_t i = f->count;
        f->values[i] = malloc((size_t)count * sizeof(double));
        if (f->values[i] == NULL) {
            free_figures(f);
            return NULL;
        }
        f->count++;
        snprintf(f->names[i], sizeof f->names[i], "seed %lld", (long long)h3_count_of(seed, "seed"));
        f->curves[i] = (h3_curve){f->names[i], f->values[i], count};
        int64_t at = 0;
        cJSON_ArrayForEach(item, list) f->values[i][at++] = value_of(item, field, k);
    }
    return f;
}

h3_status h3_curves_file(char **out, const cJSON *compare, const char *name)
{
    h3_markup text = {0};
    int k = 0;
    *out = NULL;
    while (k < KINDS && strcmp(kinds[k].name, name) != 0) k++;
    if (k == KINDS) return h3_error(H3_USAGE, "no curve %s; use psnr, ssim, velocity.video or velocity.audio", name);
    figures *f = read_figures(compare, (kind)k);
    if (f == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for the figures of a curve");
    const double limit = kinds[k].limit != NULL ? h3_number_of(h3_item_of(compare, "limits"), kinds[k].limit) : NAN;
    const h3_plot plot = {kinds[k].title, kinds[k].x_title, f->curves, f->count, limit, kinds[k].from_zero, kinds[k].minimum_good};
    h3_plot_svg(&text, &plot);
    free_figures(f);
    return text.text == NULL && !text.failed ? H3_OK : h3_markup_finish(&text, out);
}
