/* Short texts in pictures: one small built-in font, every letter 5 x 8 points. */
#ifndef H3_MEDIA_LABEL_H
#define H3_MEDIA_LABEL_H

#include "media/picture.h"

enum { H3_LABEL_STEP = 6, H3_LABEL_HEIGHT = 8 }; /* points from letter to letter, and of a line */

typedef struct h3_colour {
    unsigned char rgb[3];
} h3_colour;

/* Pixels that `text` is wide when a point is `scale` pixels. */
int64_t h3_label_width(const char *text, int64_t scale);

/* Writes `text` with its upper left corner at x, y. What lies outside the picture is left out; letters that the font lacks become '?'. */
void h3_label_draw(h3_picture *picture, int64_t x, int64_t y, const char *text, int64_t scale, h3_colour colour);

/* A filled rectangle, clipped likewise. */
void h3_label_fill(h3_picture *picture, int64_t x, int64_t y, int64_t width, int64_t height, h3_colour colour);

#endif
