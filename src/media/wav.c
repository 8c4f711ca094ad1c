#include "media/wav.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "store/publish.h"

enum {
    RIFF_BYTES = 12,  /* "RIFF", size, "WAVE" */
    CHUNK_BYTES = 8,  /* name, size */
    FORMAT_BYTES = 18, EXTENSIBLE_BYTES = 40,
    FACT_BYTES = 4,
    HEADER_BYTES = RIFF_BYTES + CHUNK_BYTES + FORMAT_BYTES + CHUNK_BYTES + FACT_BYTES + CHUNK_BYTES,
    TAG_INTEGER = 1, TAG_FLOAT = 3, TAG_EXTENSIBLE = 0xfffe,
    SAMPLE_BYTES = 4,
};

static const uint32_t SIZE_LIMIT = UINT32_MAX - HEADER_BYTES;

/* --- writing --- */

static char *put16(char *to, unsigned value)
{
    to[0] = (char)(value & 255u);
    to[1] = (char)(value >> 8 & 255u);
    return to + 2;
}

static char *put32(char *to, uint32_t value) { return put16(put16(to, value & 0xffffu), value >> 16); }

static char *put_name(char *to, const char *name)
{
    memcpy(to, name, 4);
    return to + 4;
}

static char *put_header(char *to, const h3_sound *sound, uint32_t data)
{
    unsigned channels = (unsigned)sound->channels, block = channels * SAMPLE_BYTES;
    to = put32(put_name(to, "RIFF"), HEADER_BYTES - CHUNK_BYTES + data);
    to = put_name(to, "WAVE");
    to = put32(put_name(to, "fmt "), FORMAT_BYTES);
    to = put16(put16(to, TAG_FLOAT), channels);
    to = put32(put32(to, (uint32_t)sound->rate), (uint32_t)sound->rate * block);
    to = put16(put16(put16(to, block), 8 * SAMPLE_BYTES), 0); /* nothing behind the format */
    to = put32(put32(put_name(to, "fact"), FACT_BYTES), (uint32_t)sound->frames);
    return put32(put_name(to, "data"), data);
}

h3_status h3_wav_build(char **out, size_t *size, const h3_sound *sound)
{
    void *memory;
    *out = NULL;
    *size = 0;
    H3_TRY(h3_sound_check(sound, "the sound to write"));
    if (sound->channels > H3_SOUND_CHANNELS || sound->frames > SIZE_LIMIT / (sound->channels * SAMPLE_BYTES) || sound->rate < 1 || sound->rate > UINT32_MAX / (sound->channels * SAMPLE_BYTES))
        return h3_error(H3_USAGE, "%lld channels of %lld samples at %lld Hz do not fit a WAV file; write less", (long long)sound->channels, (long long)sound->frames, (long long)sound->rate);
    uint32_t data = (uint32_t)(sound->frames * sound->channels * SAMPLE_BYTES);
    H3_TRY(h3_alloc(&memory, HEADER_BYTES + (size_t)data, 1, "a WAV file"));
    char *to = put_header(memory, sound, data);
    for (int64_t n = 0; n < sound->frames; n++)
        for (int64_t c = 0; c < sound->channels; c++) {
            uint32_t bits;
            memcpy(&bits, &sound->samples[c * sound->frames + n], sizeof bits);
            to = put32(to, bits);
        }
    *out = memory;
    *size = HEADER_BYTES + (size_t)data;
    return H3_OK;
}

h3_status h3_wav_write(const char *path, const h3_sound *sound)
{
    char *image;
    size_t size;
    H3_TRY(h3_wav_build(&image, &size, sound));
    h3_status status = h3_publish(path, image, size);
    free(image);
    return status;
}

/* --- reading --- */

static unsigned get16(const unsigned char *from) { return from[0] | (unsigned)from[1] << 8; }
static uint32_t get32(const unsigned char *from) { return get16(from) | (uint32_t)get16(from + 2) << 16; }

/* What the chunks said so far; NULL: not seen. */
typedef struct reading {
    const char *where;
    const unsigned char *format, *fact, *data;
    uint32_t format_size, fact_size, data_size;
} reading;

static h3_status damaged(const reading *r, const char *what) { return h3_error(H3_INTEGRITY, "%s: %s; this is no WAV file of evidence, or it is damaged", r->where, what); }

static h3_status take_chunk(reading *r, const unsigned char *name, const unsigned char *body, uint32_t size)
{
    const unsigned char **slot = NULL;
    uint32_t *slot_size = NULL;
    if (memcmp(name, "fmt ", 4) == 0) slot = &r->format, slot_size = &r->format_size;
    else if (memcmp(name, "fact", 4) == 0) slot = &r->fact, slot_size = &r->fact_size;
    else if (memcmp(name, "data", 4) == 0) slot = &r->data, slot_size = &r->data_size;
    if (slot == NULL) return H3_OK;
    if (*slot != NULL) return h3_error(H3_INTEGRITY, "%s: two \"%.4s\" chunks; which one is meant cannot be known", r->where, (const char *)name);
    if (slot == &r->data && r->format == NULL) return damaged(r, "the samples come before their format");
    *slot = body;
    *slot_size = size;
    return H3_OK;
}

static h3_status read_chunks(reading *r, const unsigned char *image, size_t size)
{
    if (size < RIFF_BYTES || memcmp(image, "RIFF", 4) != 0 || memcmp(image + 8, "WAVE", 4) != 0) return damaged(r, "it does not start with RIFF and WAVE");
    if ((uint64_t)get32(image + 4) + CHUNK_BYTES != size)
        return h3_error(H3_INTEGRITY, "%s: the header speaks of %llu bytes, the file has %zu; it was cut off or something was appended, get it again", r->where,
                        (unsigned long long)get32(image + 4) + CHUNK_BYTES, size);
    for (size_t at = RIFF_BYTES; at < size;) {
        if (size - at < CHUNK_BYTES) return damaged(r, "a chunk's header is cut off");
        uint32_t length = get32(image + at + 4);
        uint64_t padded = (uint64_t)length + length % 2;
        if (padded > size - at - CHUNK_BYTES) return damaged(r, "a chunk is longer than the file");
        H3_TRY(take_chunk(r, image + at, image + at + CHUNK_BYTES, length));
        at += CHUNK_BYTES + (size_t)padded;
    }
    if (r->format == NULL) return damaged(r, "there is no \"fmt \" chunk");
    return r->data != NULL ? H3_OK : damaged(r, "there is no \"data\" chunk");
}

static h3_status check_encoding(const reading *r)
{
    static const unsigned char FLOAT_GUID[16] = {3, 0, 0, 0, 0, 0, 16, 0, 0x80, 0, 0, 0xaa, 0, 0x38, 0x9b, 0x71};
    const unsigned char *format = r->format;
    if (r->format_size < 16) return damaged(r, "the \"fmt \" chunk is too short");
    unsigned tag = get16(format);
    if (tag == TAG_INTEGER) return h3_error(H3_INTEGRITY, "%s: integer samples, which have lost bits; evidence must be 32-bit float", r->where);
    if (tag == TAG_EXTENSIBLE) {
        if (r->format_size != EXTENSIBLE_BYTES || get16(format + 16) != EXTENSIBLE_BYTES - FORMAT_BYTES) return damaged(r, "the extensible format has another size than it must have");
        if (memcmp(format + 24, FLOAT_GUID, sizeof FLOAT_GUID) != 0) return damaged(r, "the extensible format is none of float samples");
        if (get16(format + 18) != 8 * SAMPLE_BYTES) return damaged(r, "not all 32 bits of a sample are valid");
    } else {
        if (tag != TAG_FLOAT) return h3_error(H3_INTEGRITY, "%s: format tag %u; evidence must be 32-bit float, tag 3", r->where, tag);
        if (r->format_size != 16 && (r->format_size != FORMAT_BYTES || get16(format + 16) != 0)) return damaged(r, "the float format has another size than it must have");
    }
    if (get16(format + 14) != 8 * SAMPLE_BYTES) return h3_error(H3_INTEGRITY, "%s: samples of %u bits; evidence must be 32-bit float", r->where, get16(format + 14));
    return H3_OK;
}

static h3_status check_sizes(const reading *r, int64_t *channels, int64_t *frames, int64_t *rate)
{
    *channels = get16(r->format + 2);
    *rate = get32(r->format + 4);
    int64_t block = *channels * SAMPLE_BYTES;
    if (*channels < 1 || *channels > H3_SOUND_CHANNELS) return h3_error(H3_INTEGRITY, "%s: %lld channels; 1 to %d are possible", r->where, (long long)*channels, H3_SOUND_CHANNELS);
    if (*rate < 1) return damaged(r, "the rate is 0");
    if (get16(r->format + 12) != block || get32(r->format + 8) != *rate * block) return damaged(r, "the block size or the byte rate does not follow from channels and rate");
    if (r->data_size == 0) return damaged(r, "there is no sample in it");
    if (r->data_size % block != 0) return damaged(r, "the last sample is cut off");
    *frames = r->data_size / block;
    if (r->fact != NULL && (r->fact_size < FACT_BYTES || get32(r->fact) != *frames)) return damaged(r, "the \"fact\" chunk counts other samples than there are");
    return H3_OK;
}

h3_status h3_wav_parse(h3_sound *out, const unsigned char *image, size_t size, const char *where)
{
    reading r = {.where = where};
    int64_t channels = 0, frames = 0, rate = 0;
    *out = (h3_sound){0};
    H3_TRY(read_chunks(&r, image, size));
    H3_TRY(check_encoding(&r));
    H3_TRY(check_sizes(&r, &channels, &frames, &rate));
    H3_TRY(h3_sound_new(out, channels, frames, rate));
    const unsigned char *from = r.data;
    for (int64_t n = 0; n < frames; n++)
        for (int64_t c = 0; c < channels; c++, from += SAMPLE_BYTES) {
            uint32_t bits = get32(from);
            memcpy(&out->samples[c * frames + n], &bits, sizeof bits);
        }
    h3_status status = h3_sound_check(out, where);
    if (status != H3_OK) h3_sound_free(out);
    return status;
}

h3_status h3_wav_read(h3_sound *out, const char *path)
{
    char *image;
    size_t size;
    *out = (h3_sound){0};
    H3_TRY(h3_file_read(&image, &size, path, UINT32_MAX, H3_INTEGRITY));
    h3_status status = h3_wav_parse(out, (unsigned char *)image, size, path);
    free(image);
    return status;
}
