/*
 * Sheets: one picture that shows frames of a clip, or of two clips beside each other with their difference. For people; no verdict depends on them.
 *
 * A cell shows a whole frame: smaller by Lanczos resampling, larger by whole numbers without smoothing. A difference cell shows |a - b| times a
 * stated factor, cut at 255; where it is smaller than the frame, each of its pixels is the largest of those it stands for, so that one differing
 * pixel is never averaged away. Equal frames give black, and nothing else does.
 */
#ifndef H3_MEDIA_SHEET_H
#define H3_MEDIA_SHEET_H

#include "media/picture.h"

enum { H3_SHEET_FRAMES = 1024, H3_SHEET_CELL = 256 };

/* A frame to show: its number in the clip and its bytes [height][width][3], of one clip, or of two (a the reference). Owned by the caller. */
typedef struct h3_sheet_frame {
    int64_t number;
    const unsigned char *a, *b;
} h3_sheet_frame;

typedef struct h3_sheet {
    const char *title;         /* ASCII; NULL: none */
    const char *names[2];      /* of the clips; NULL: "reference", "candidate" */
    int64_t height, width;     /* of the frames */
    int64_t count;             /* 1 to H3_SHEET_FRAMES frames, in the order in which they are shown */
    const h3_sheet_frame *frames;
    int64_t columns;           /* frames a line; 0: chosen */
    int64_t cell_width;        /* pixels at most; 0: H3_SHEET_CELL */
    int64_t factor;            /* of the difference, 1 to 255; 0: the largest power of two that cuts no difference of these frames, 8 when there is none */
} h3_sheet;

/* The numbers of at most `most` of `count` frames, evenly spread, first and last among them. Returns how many. */
int64_t h3_sheet_choose(int64_t *numbers, int64_t most, int64_t count);

/* Frames of clip a in lines, each with its number. The picture is the caller's. H3_USAGE for a sheet of no or too many frames, or too large. */
h3_status h3_sheet_contact(h3_picture *out, const h3_sheet *sheet);

/* Both clips and their difference below each other, for each frame with its number and its PSNR ("equal" when no sample differs). */
h3_status h3_sheet_compare(h3_picture *out, const h3_sheet *sheet);

/* What a difference cell shows, also alone: [height][width] from [from_height][from_width], both smaller or equal. Owned by the caller. */
h3_status h3_sheet_difference(h3_picture *out, const unsigned char *a, const unsigned char *b, int64_t from_height, int64_t from_width, int64_t height, int64_t width,
                              int64_t factor);

#endif
