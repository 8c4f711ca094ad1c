/* Sound in memory. */
#ifndef H3_MEDIA_SOUND_H
#define H3_MEDIA_SOUND_H

#include "base/text.h"

enum { H3_SOUND_CHANNELS = 8 };

typedef struct h3_sound {
    int64_t channels, frames, rate; /* 1..H3_SOUND_CHANNELS; samples a channel; samples a second */
    float *samples;                 /* [channels][frames], full scale 1, channel 0 is left; owned */
} h3_sound;

/* Silence. H3_INTEGRITY for a size below 1 or too many channels. */
h3_status h3_sound_new(h3_sound *out, int64_t channels, int64_t frames, int64_t rate);
void h3_sound_free(h3_sound *sound);

/* H3_FAILED, naming the first, when there is no sample or one is not finite; `what` names the sound. */
h3_status h3_sound_check(const h3_sound *sound, const char *what);

/* SHA-256 of the samples, channel by channel, as little-endian float32 (media.md section 2). */
h3_status h3_sound_sha256(char out[H3_SHA256_HEX], const h3_sound *sound);

#endif
