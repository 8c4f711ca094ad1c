/* Lanczos resampling of Pillow 13 (video-vae.md 4.1), bit for bit: weights in double, then as integers of 22 fraction bits; 8-bit rounding between
 * the two passes, whose order therefore shows. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "media/picture.h"

enum { FRACTION_BITS = 22, COLOURS = 3 };

/* Which pixels of the old axis make each pixel of the new one, and with what weight. */
typedef struct taps {
    int64_t *first, *count; /* [new size] */
    int32_t *weight;        /* [new size][room] */
    int64_t room;
} taps;

static double sinc(double x)
{
    if (x > 0.0 || x < 0.0) return sin(x * M_PI) / (x * M_PI);
    return 1.0;
}

static double lanczos(double x) { return x >= -3.0 && x < 3.0 ? sinc(x) * sinc(x / 3.0) : 0.0; }

static void taps_free(taps *t)
{
    free(t->first);
    free(t->count);
    free(t->weight);
    *t = (taps){0};
}

static void fill_taps(taps *t, double *exact, int64_t i, int64_t old, double scale)
{
    const double stretch = scale < 1.0 ? 1.0 : scale, support = 3.0 * stretch, centre = ((double)i + 0.5) * scale;
    int64_t first = (int64_t)(centre - support + 0.5), end = (int64_t)(centre + support + 0.5);
    if (first < 0) first = 0;
    if (end > old) end = old;
    double sum = 0.0;
    for (int64_t j = first; j < end; j++) {
        exact[j - first] = lanczos(((double)j - centre + 0.5) * (1.0 / stretch));
        sum += exact[j - first];
    }
    for (int64_t j = 0; j < end - first; j++) {
        if (sum > 0.0 || sum < 0.0) exact[j] /= sum;
        const double scaled = exact[j] * (double)(1 << FRACTION_BITS);
        t->weight[i * t->room + j] = (int32_t)(scaled < 0.0 ? scaled - 0.5 : scaled + 0.5);
    }
    t->first[i] = first;
    t->count[i] = end - first;
}

static h3_status taps_new(taps *t, int64_t old, int64_t size)
{
    const double scale = (double)old / (double)size, stretch = scale < 1.0 ? 1.0 : scale;
    void *first, *count, *weight, *exact;
    *t = (taps){.room = (int64_t)ceil(3.0 * stretch) * 2 + 1};
    h3_status status = h3_alloc(&first, (size_t)size, sizeof(int64_t), "resampling");
    t->first = first;
    if (status == H3_OK) status = h3_alloc(&count, (size_t)size, sizeof(int64_t), "resampling"), t->count = count;
    if (status == H3_OK) status = h3_alloc(&weight, (size_t)(size * t->room), sizeof(int32_t), "resampling"), t->weight = weight;
    if (status == H3_OK) status = h3_alloc(&exact, (size_t)t->room, sizeof(double), "resampling");
    if (status != H3_OK) {
        taps_free(t);
        return status;
    }
    for (int64_t i = 0; i < size; i++) fill_taps(t, exact, i, old, scale);
    free(exact);
    return H3_OK;
}

static unsigned char clip(int64_t sum)
{
    const int64_t value = sum >> FRACTION_BITS; /* of a negative sum: towards minus infinity, clipped anyway */
    return value < 0 ? 0 : value > 255 ? 255 : (unsigned char)value;
}

/* out pixel (line, i) = weighted pixels of `in`, `step` bytes apart; lines are `line_step` bytes apart in both. */
static void resample_pixel(unsigned char *out, const unsigned char *in, const taps *t, int64_t i, int64_t step)
{
    for (int c = 0; c < COLOURS; c++) {
        int64_t sum = 1 << (FRACTION_BITS - 1);
        for (int64_t j = 0; j < t->count[i]; j++) sum += (int64_t)t->weight[i * t->room + j] * in[(t->first[i] + j) * step + c];
        out[c] = clip(sum);
    }
}

static h3_status new_picture(h3_picture *out, int64_t width, int64_t height)
{
    void *rgb;
    H3_TRY(h3_alloc(&rgb, (size_t)(width * height), COLOURS, "a picture"));
    *out = (h3_picture){width, height, rgb};
    return H3_OK;
}

static h3_status copy_of(h3_picture *out, const h3_picture *in)
{
    H3_TRY(new_picture(out, in->width, in->height));
    memcpy(out->rgb, in->rgb, (size_t)(in->width * in->height) * COLOURS);
    return H3_OK;
}

static h3_status horizontal(h3_picture *out, const h3_picture *in, int64_t width)
{
    taps t;
    if (in->width == width) return copy_of(out, in);
    H3_TRY(taps_new(&t, in->width, width));
    h3_status status = new_picture(out, width, in->height);
    if (status == H3_OK) {
#pragma omp parallel for schedule(static)
        for (int64_t y = 0; y < in->height; y++)
            for (int64_t x = 0; x < width; x++) resample_pixel(out->rgb + (y * width + x) * COLOURS, in->rgb + y * in->width * COLOURS, &t, x, COLOURS);
    }
    taps_free(&t);
    return status;
}

static h3_status vertical(h3_picture *out, const h3_picture *in, int64_t height)
{
    taps t;
    if (in->height == height) return copy_of(out, in);
    H3_TRY(taps_new(&t, in->height, height));
    h3_status status = new_picture(out, in->width, height);
    if (status == H3_OK) {
#pragma omp parallel for schedule(static)
        for (int64_t y = 0; y < height; y++)
            for (int64_t x = 0; x < in->width; x++) resample_pixel(out->rgb + (y * in->width + x) * COLOURS, in->rgb + x * COLOURS, &t, y, in->width * COLOURS);
    }
    taps_free(&t);
    return status;
}

static h3_status check_size(int64_t width, int64_t height)
{
    if (width >= 1 && height >= 1 && width <= H3_PICTURE_SIDE_LIMIT && height <= H3_PICTURE_SIDE_LIMIT) return H3_OK;
    return h3_error(H3_USAGE, "a picture of %lld x %lld pixels; 1 to %d a side are possible", (long long)width, (long long)height, H3_PICTURE_SIDE_LIMIT);
}

h3_status h3_picture_resize(h3_picture *out, const h3_picture *in, int64_t width, int64_t height)
{
    h3_picture middle = {0};
    *out = middle;
    H3_TRY(check_size(width, height));
    H3_TRY(check_size(in->width, in->height));
    /* Before version 13 Pillow never began with the height. */
    const int height_first = in->height > height && in->height - height > 2 * (in->width - width);
    h3_status status = height_first ? vertical(&middle, in, height) : horizontal(&middle, in, width);
    if (status == H3_OK) status = height_first ? horizontal(out, &middle, width) : vertical(out, &middle, height);
    h3_picture_free(&middle);
    return status;
}

/* To the nearest, ties to even, as Python rounds. */
static int64_t nearest(double value) { return (int64_t)nearbyint(value); }

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

h3_status h3_picture_canvas(h3_picture *out, const h3_picture *in, int64_t width, int64_t height, int is_first)
{
    h3_picture whole;
    *out = (h3_picture){0};
    H3_TRY(check_size(width, height));
    H3_TRY(check_size(in->width, in->height));
    if (is_first) return h3_picture_resize(out, in, width, height);
    const double across = (double)width / (double)in->width, down = (double)height / (double)in->height, scale = across > down ? across : down;
    H3_TRY(h3_picture_resize(&whole, in, larger(width, nearest((double)in->width * scale)), larger(height, nearest((double)in->height * scale))));
    h3_status status = new_picture(out, width, height);
    const int64_t left = (whole.width - width) / 2, top = (whole.height - height) / 2;
    for (int64_t y = 0; status == H3_OK && y < height; y++)
        memcpy(out->rgb + y * width * COLOURS, whole.rgb + ((top + y) * whole.width + left) * COLOURS, (size_t)width * COLOURS);
    h3_picture_free(&whole);
    return status;
}
