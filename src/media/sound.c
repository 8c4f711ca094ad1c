#include "media/sound.h"

#include <math.h>
#include <stdlib.h>

#include "base/memory.h"

h3_status h3_sound_new(h3_sound *out, int64_t channels, int64_t frames, int64_t rate)
{
    void *samples;
    size_t count;
    *out = (h3_sound){0};
    if (channels < 1 || channels > H3_SOUND_CHANNELS || frames < 1 || rate < 1)
        return h3_error(H3_INTEGRITY, "a sound of %lld channels of %lld samples at %lld Hz; 1 to %d channels and at least one sample are needed", (long long)channels, (long long)frames,
                        (long long)rate, H3_SOUND_CHANNELS);
    H3_TRY(h3_size_multiply((size_t)channels, (size_t)frames, &count));
    H3_TRY(h3_alloc(&samples, count, sizeof(float), "a sound"));
    *out = (h3_sound){channels, frames, rate, samples};
    return H3_OK;
}

void h3_sound_free(h3_sound *sound)
{
    free(sound->samples);
    *sound = (h3_sound){0};
}

h3_status h3_sound_check(const h3_sound *sound, const char *what)
{
    if (sound->samples == NULL || sound->channels < 1 || sound->frames < 1) return h3_error(H3_FAILED, "%s is empty; generate it again", what);
    for (int64_t i = 0; i < sound->channels * sound->frames; i++)
        if (!isfinite(sound->samples[i]))
            return h3_error(H3_FAILED, "%s: sample %lld of channel %lld is no finite number; the generation before it failed", what, (long long)(i % sound->frames),
                            (long long)(i / sound->frames));
    return H3_OK;
}

h3_status h3_sound_sha256(char out[H3_SHA256_HEX], const h3_sound *sound)
{
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "float32 in memory must be little-endian"
#endif
    return h3_sha256(out, sound->samples, (size_t)(sound->channels * sound->frames) * sizeof(float));
}
