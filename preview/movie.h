/* An MP4 file for people, by FFmpeg (media.md section 3): H.264 or MPEG-4 pictures, AAC sound. Nothing is ever measured on it. */
#ifndef H3_PREVIEW_MOVIE_H
#define H3_PREVIEW_MOVIE_H

#include "media/sound.h"

enum { H3_MOVIE_FPS = 24 };

typedef struct h3_movie h3_movie;

/* The name of the video encoder that will be used: `wanted` ("libx264", "mpeg4"; NULL: the first of the two that there is). H3_ENVIRONMENT when this
 * FFmpeg has none, or no AAC. */
h3_status h3_movie_encoder(const char **out, const char *wanted);

/* Begins a movie in the file `path`, which is made or emptied; messages call it `name`. Both names and the sound must stay until the end; its rate must be one that AAC knows. Frames have even sizes. H3_USAGE for sizes and rates that cannot be, H3_ENVIRONMENT for files and encoders. */
h3_status h3_movie_open(h3_movie **out, const char *path, const char *name, const char *encoder, int64_t height, int64_t width, const h3_sound *sound);
/* The next frame, bytes [height][width][3], and the sound that goes with it. */
h3_status h3_movie_add(h3_movie *movie, const unsigned char *rgb);
/* The rest of the sound, however long, `comment` for the file's list of tags, and the end of the file. */
h3_status h3_movie_finish(h3_movie *movie, const char *comment);
/* Releases everything; NULL is fine. A movie that was not finished leaves a file of no use. */
void h3_movie_close(h3_movie *movie);

#endif
