/* Sound files of evidence: RIFF/WAVE with IEEE float samples of 32 bits (media.md section 2). Writing and reading keep every bit of every sample. */
#ifndef H3_MEDIA_WAV_H
#define H3_MEDIA_WAV_H

#include "media/sound.h"

/* The file's bytes (caller frees): format tag 3, samples interleaved, a fact chunk; the same sound gives the same bytes. H3_FAILED for an empty sound or
 * a sample that is no finite number, H3_USAGE for more than fits 4 GiB. */
h3_status h3_wav_build(char **out, size_t *size, const h3_sound *sound);
/* The same into a file, whole or not at all. */
h3_status h3_wav_write(const char *path, const h3_sound *sound);

/* Reads such bytes, and those of other writers: tag 3 or EXTENSIBLE with the float subformat; unknown chunks are skipped. H3_INTEGRITY, naming what and
 * where, for integer samples, other sizes, chunks that are missing, doubled, cut off or at odds with each other; H3_FAILED for a sample
 * that is no finite number. `where` names the source. */
h3_status h3_wav_parse(h3_sound *out, const unsigned char *image, size_t size, const char *where);
/* The same of a file of at most 4 GiB. */
h3_status h3_wav_read(h3_sound *out, const char *path);

#endif
