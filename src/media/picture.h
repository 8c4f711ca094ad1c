/* Pictures of 8-bit RGB: PNG files in and out, and the published model's way to bring a reference picture to the canvas. */
#ifndef H3_MEDIA_PICTURE_H
#define H3_MEDIA_PICTURE_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum { H3_PICTURE_SIDE_LIMIT = 16384 };

typedef struct h3_picture {
    int64_t width, height;
    unsigned char *rgb; /* [height][width][3], owned */
} h3_picture;
void h3_picture_free(h3_picture *picture);

/* What a PNG file may be. Evidence (media.md section 2): 8-bit truecolour, not interlaced, nothing else. Any: palettes and greys become RGB, 16 bits
 * keep the high 8, transparency is dropped; a picture that its EXIF block or XMP packet turns is refused, for it would come out turned. Colour profiles are ignored by both. */
typedef enum { H3_PICTURE_EVIDENCE, H3_PICTURE_ANY } h3_picture_kind;

/* H3_INTEGRITY for whatever is wrong with the file; at most H3_PICTURE_SIDE_LIMIT pixels a side. `where` names the source in messages. */
h3_status h3_picture_parse(h3_picture *out, const void *png, size_t size, h3_picture_kind kind, const char *where);
h3_status h3_picture_read(h3_picture *out, const char *path, h3_picture_kind kind);
/* A PNG file of the evidence kind in memory (free()). */
h3_status h3_picture_build(char **png, size_t *size, const unsigned char *rgb, int64_t height, int64_t width);

/* Lanczos resampling of Pillow 13, bit for bit (video-vae.md 4.1; but the height first where Pillow 13 begins with it). H3_USAGE for a size outside 1..H3_PICTURE_SIDE_LIMIT. */
h3_status h3_picture_resize(h3_picture *out, const h3_picture *in, int64_t width, int64_t height);
/* The first keyframe is stretched to the canvas, a later one covers it and is cropped at its middle. */
h3_status h3_picture_canvas(h3_picture *out, const h3_picture *in, int64_t width, int64_t height, int is_first);

/* Frames as frame_00000.png, frame_00001.png, ... in a folder that exists; rgb bytes [count][height][width][3]. Each file appears whole or not at all. */
h3_status h3_frames_write(const char *folder, const unsigned char *rgb, int64_t count, int64_t height, int64_t width);
/* All of them: numbered from 0 without a gap, of one size. `*rgb` is the caller's (free()). Other files in the folder are ignored. H3_INTEGRITY. */
h3_status h3_frames_read(unsigned char **rgb, int64_t *count, int64_t *height, int64_t *width, const char *folder);
/* One at a time, for programs that need not hold all: how many there are, numbered without a gap, and each; a frame of another size than the given one
 * (height 0: any) is H3_INTEGRITY. */
h3_status h3_frames_count(int64_t *count, const char *folder);
h3_status h3_frame_read(h3_picture *out, const char *folder, int64_t frame, int64_t height, int64_t width);

#endif
