/* Sound files: every bit comes back, another library reads and writes the same samples, and damage is named. */
#include "golden_files.h"

#include <fcntl.h>
#include <math.h>
#include <sndfile.h>

#include "media/wav.h"

static char folder[] = "/tmp/h3-wav-XXXXXX";

static const char *in_folder(const char *name)
{
    static char path[200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state)
{
    (void)state;
    static const char *const NAMES[] = {"a.wav", "b.wav", "link.wav"};
    for (size_t i = 0; i < 3; i++) unlink(in_folder(NAMES[i]));
    return rmdir(folder);
}

/* Full-range samples and the ones that are easily lost: subnormal, negative zero, full scale, beyond it. */
static h3_sound make_sound(int64_t channels, int64_t frames, int64_t rate)
{
    static const float SPECIAL[] = {0.0f, -0.0f, 1.0f, -1.0f, 0x1p-149f, -0x1.8p-140f, 0x1.fffffep-1f, 1.5f, 0.1f, -3e38f};
    h3_sound sound;
    uint32_t random = 5;
    assert_good(h3_sound_new(&sound, channels, frames, rate));
    for (int64_t i = 0; i < channels * frames; i++) {
        random = random * 1664525u + 1013904223u;
        sound.samples[i] = i < 10 ? SPECIAL[i] : (float)(int32_t)random * 0x1p-31f;
    }
    return sound;
}

static void assert_equal_sounds(const h3_sound *a, const h3_sound *b)
{
    assert_int_equal(a->channels, b->channels);
    assert_int_equal(a->frames, b->frames);
    assert_int_equal(a->rate, b->rate);
    assert_memory_equal(a->samples, b->samples, (size_t)(a->channels * a->frames) * sizeof(float));
}

static void round_trips(void **state)
{
    static const int64_t SIZES[][3] = {{2, 165600, 32000}, {1, 1, 1}, {2, 1, 32000}, {8, 77, 192000}, {1, 1000, 44100}};
    (void)state;
    for (size_t i = 0; i < sizeof SIZES / sizeof *SIZES; i++) {
        h3_sound sound = make_sound(SIZES[i][0], SIZES[i][1], SIZES[i][2]), back;
        char *image, *again;
        size_t size, size_again;
        assert_good(h3_wav_build(&image, &size, &sound));
        assert_int_equal(size, 58 + 4 * SIZES[i][0] * SIZES[i][1]);
        assert_good(h3_wav_parse(&back, (unsigned char *)image, size, "image"));
        assert_equal_sounds(&sound, &back);
        assert_good(h3_wav_build(&again, &size_again, &back));
        assert_int_equal(size, size_again);
        assert_memory_equal(image, again, size);
        free(image);
        free(again);
        h3_sound_free(&sound);
        h3_sound_free(&back);
    }
}

/* The header byte for byte, and the order of the samples. */
static void the_bytes_are_these(void **state)
{
    static const unsigned char EXPECTED[] = {
        'R', 'I', 'F', 'F', 66, 0, 0, 0, 'W', 'A', 'V', 'E', 'f', 'm', 't', ' ', 18, 0, 0, 0, 3, 0, 2, 0, 0, 125, 0, 0, 0, 232, 3, 0, 8, 0, 32, 0, 0, 0,
        'f', 'a', 'c', 't', 4, 0, 0, 0, 2, 0, 0, 0, 'd', 'a', 't', 'a', 16, 0, 0, 0,
        0, 0, 128, 63, 0, 0, 0, 63, /* 1 left, 0.5 right */
        0, 0, 128, 191, 0, 0, 0, 191, /* -1, -0.5 */
    };
    float samples[] = {1, -1, 0.5f, -0.5f};
    h3_sound sound = {2, 2, 32000, samples};
    char *image;
    size_t size;
    (void)state;
    assert_good(h3_wav_build(&image, &size, &sound));
    assert_int_equal(size, sizeof EXPECTED);
    assert_memory_equal(image, EXPECTED, size);
    free(image);
    char hash[H3_SHA256_HEX], expected[H3_SHA256_HEX];
    static const unsigned char PLANAR[] = {0, 0, 128, 63, 0, 0, 128, 191, 0, 0, 0, 63, 0, 0, 0, 191};
    assert_good(h3_sound_sha256(hash, &sound));
    assert_good(h3_sha256(expected, PLANAR, sizeof PLANAR));
    assert_string_equal(hash, expected);
}

static void files_are_written_and_read(void **state)
{
    h3_sound sound = make_sound(2, 500, 32000), back;
    (void)state;
    assert_good(h3_wav_write(in_folder("a.wav"), &sound));
    assert_good(h3_wav_read(&back, in_folder("a.wav")));
    assert_equal_sounds(&sound, &back);
    h3_sound_free(&back);
    h3_sound_free(&sound);
    assert_int_equal(h3_wav_read(&back, in_folder("absent.wav")), H3_INTEGRITY);
    assert_int_equal(h3_wav_read(&back, folder), H3_INTEGRITY);
    assert_int_equal(symlink("a.wav", in_folder("link.wav")), 0);
    assert_int_equal(h3_wav_read(&back, in_folder("link.wav")), H3_INTEGRITY);
    assert_null(back.samples);
}

/* libsndfile reads what we write ... */
static void another_reader_sees_the_same(void **state)
{
    h3_sound sound = make_sound(2, 3000, 32000);
    SF_INFO info = {0};
    float frames[3000 * 2];
    (void)state;
    assert_good(h3_wav_write(in_folder("a.wav"), &sound));
    SNDFILE *file = sf_open(in_folder("a.wav"), SFM_READ, &info);
    if (file == NULL) fail_msg("%s", sf_strerror(NULL));
    assert_int_equal(info.channels, 2);
    assert_int_equal(info.frames, 3000);
    assert_int_equal(info.samplerate, 32000);
    assert_int_equal(info.format & SF_FORMAT_SUBMASK, SF_FORMAT_FLOAT);
    assert_int_equal(sf_readf_float(file, frames, 3000), 3000);
    sf_close(file);
    for (int n = 0; n < 3000; n++)
        for (int c = 0; c < 2; c++) assert_memory_equal(&frames[2 * n + c], &sound.samples[c * 3000 + n], sizeof(float));
    h3_sound_free(&sound);
}

static h3_status written_elsewhere(int format, h3_sound *out, const h3_sound *sound)
{
    float *frames = calloc((size_t)(sound->frames * sound->channels), sizeof *frames);
    for (int64_t i = 0; i < sound->frames * sound->channels; i++) frames[i] = sound->samples[i % sound->channels * sound->frames + i / sound->channels];
    SF_INFO info = {.channels = (int)sound->channels, .samplerate = (int)sound->rate, .format = format};
    SNDFILE *file = sf_open(in_folder("b.wav"), SFM_WRITE, &info);
    if (file == NULL) fail_msg("%s", sf_strerror(NULL));
    assert_int_equal(sf_writef_float(file, frames, sound->frames), sound->frames);
    sf_close(file);
    free(frames);
    return h3_wav_read(out, in_folder("b.wav"));
}

/* ... and we read what it writes: plain and extensible, with chunks of its own; but no integers and no doubles. */
static void another_writers_files_are_read(void **state)
{
    h3_sound sound = make_sound(2, 777, 32000), back;
    (void)state;
    assert_good(written_elsewhere(SF_FORMAT_WAV | SF_FORMAT_FLOAT, &back, &sound));
    assert_equal_sounds(&sound, &back);
    h3_sound_free(&back);
    assert_good(written_elsewhere(SF_FORMAT_WAVEX | SF_FORMAT_FLOAT, &back, &sound));
    assert_equal_sounds(&sound, &back);
    h3_sound_free(&back);
    for (int64_t i = 0; i < 10; i++) sound.samples[i] = 0;
    static const struct { int format; const char *word; } BAD[] = {
        {SF_FORMAT_WAV | SF_FORMAT_PCM_16, "integer"}, {SF_FORMAT_WAV | SF_FORMAT_PCM_24, "integer"}, {SF_FORMAT_WAV | SF_FORMAT_DOUBLE, "64 bits"},
        {SF_FORMAT_WAVEX | SF_FORMAT_PCM_16, "none of float"}, {SF_FORMAT_WAV | SF_FORMAT_ULAW, "format tag 7"}, {SF_FORMAT_AIFF | SF_FORMAT_FLOAT, "RIFF"},
        {SF_FORMAT_RF64 | SF_FORMAT_FLOAT, "RIFF"},
    };
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        h3_status status = written_elsewhere(BAD[i].format, &back, &sound);
        if (status != H3_INTEGRITY || strstr(h3_error_text(), BAD[i].word) == NULL) fail_msg("format %x: status %d, \"%s\"", (unsigned)BAD[i].format, status, h3_error_text());
    }
    h3_sound_free(&sound);
}

/* --- hostile files --- */

/* A good image of 2 channels and 3 samples: format at 12, fact at 38, data at 50. */
enum { FORMAT_AT = 12, FACT_AT = 38, DATA_AT = 50, SIZE = 58 + 24 };

static unsigned char *good_image(void)
{
    h3_sound sound = make_sound(2, 3, 32000);
    char *image;
    size_t size;
    assert_good(h3_wav_build(&image, &size, &sound));
    assert_int_equal(size, SIZE);
    h3_sound_free(&sound);
    return (unsigned char *)image;
}

/* Parses from memory of the exact size, so that the sanitizer build sees a read past its end. */
static h3_status parse_exact(const unsigned char *image, size_t size)
{
    unsigned char *exact = malloc(size ? size : 1);
    h3_sound sound;
    memcpy(exact, image, size);
    h3_status status = h3_wav_parse(&sound, exact, size, "image");
    assert_int_equal(status == H3_OK, sound.samples != NULL);
    h3_sound_free(&sound);
    free(exact);
    return status;
}

static void hostile_bytes(void **state)
{
    static const struct { int at, value; const char *word; } CASES[] = {
        {0, 'X', "RIFF"}, {3, 'X', "RIFF"}, {8, 'w', "WAVE"}, {4, 1, "speaks of"}, {7, 255, "speaks of"},
        {FORMAT_AT, 'x', "come before"}, {FORMAT_AT + 4, 14, ""}, {FORMAT_AT + 4, 255, "longer"}, {FORMAT_AT + 7, 255, "longer"},
        {FORMAT_AT + 8, 1, "integer"}, {FORMAT_AT + 8, 2, "tag 2"}, {FORMAT_AT + 9, 1, "tag 259"}, {FORMAT_AT + 10, 0, "0 channels"}, {FORMAT_AT + 10, 9, "9 channels"},
        {FORMAT_AT + 10, 3, "block size"}, {FORMAT_AT + 11, 255, "channels"}, {FORMAT_AT + 12, 1, "byte rate"}, {FORMAT_AT + 16, 1, "byte rate"}, {FORMAT_AT + 20, 4, "block size"},
        {FORMAT_AT + 22, 16, "16 bits"}, {FORMAT_AT + 22, 64, "64 bits"}, {FORMAT_AT + 24, 22, "another size"},
        {FACT_AT + 8, 4, "fact"}, {FACT_AT + 4, 2, ""}, {FACT_AT + 1, 'm', NULL},
        {DATA_AT, 'D', "no \"data\""}, {DATA_AT + 4, 25, "longer"}, {DATA_AT + 4, 16, ""}, {DATA_AT + 7, 255, "longer"},
    };
    unsigned char *image = good_image();
    (void)state;
    assert_good(parse_exact(image, SIZE));
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        unsigned char before = image[CASES[i].at];
        image[CASES[i].at] = (unsigned char)CASES[i].value;
        h3_status status = parse_exact(image, SIZE);
        if (CASES[i].word == NULL) assert_good(status); /* an unknown chunk is skipped */
        else if (status != H3_INTEGRITY || strstr(h3_error_text(), CASES[i].word) == NULL) fail_msg("byte %d = %d: status %d, \"%s\"", CASES[i].at, CASES[i].value, status, h3_error_text());
        image[CASES[i].at] = before;
    }
    for (size_t size = 0; size < SIZE; size++) assert_int_equal(parse_exact(image, size), H3_INTEGRITY);
    free(image);
}

/* Builds an image of the given chunks. */
typedef struct writing {
    unsigned char bytes[1000];
    size_t size;
} writing;

static void put_number(writing *w, uint32_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) w->bytes[w->size++] = (unsigned char)(value >> 8 * i);
}

static void put_chunk(writing *w, const char *name, const void *body, uint32_t size)
{
    memcpy(w->bytes + w->size, name, 4);
    w->size += 4;
    put_number(w, size, 4);
    memcpy(w->bytes + w->size, body, size);
    w->size += size;
    if (size % 2) w->bytes[w->size++] = 0;
}

static h3_status parse_chunks(const char *order, const unsigned char *format, uint32_t format_size, const void *data, uint32_t data_size)
{
    writing w = {.size = 0};
    memcpy(w.bytes, "RIFF....WAVE", 12);
    w.size = 12;
    for (; *order; order++)
        switch (*order) {
        case 'f': put_chunk(&w, "fmt ", format, format_size); break;
        case 'd': put_chunk(&w, "data", data, data_size); break;
        case 'u': put_chunk(&w, "LIST", "odd", 3); break; /* with its padding byte */
        default: put_chunk(&w, "junk", "", 0); break;
        }
    size_t end = w.size;
    w.size = 4;
    put_number(&w, (uint32_t)end - 8, 4);
    return parse_exact(w.bytes, end);
}

static void chunks_in_any_company(void **state)
{
    static const unsigned char PLAIN[] = {3, 0, 1, 0, 0, 125, 0, 0, 0, 244, 1, 0, 4, 0, 32, 0};
    unsigned char extensible[40] = {0xfe, 0xff, 1, 0, 0, 125, 0, 0, 0, 244, 1, 0, 4, 0, 32, 0, 22, 0, 32, 0, 4, 0, 0, 0, 3, 0, 0, 0, 0, 0, 16, 0, 0x80, 0, 0, 0xaa, 0, 0x38, 0x9b, 0x71};
    float samples[2] = {0.25f, -0.25f}, bad[2] = {0.25f, NAN};
    (void)state;
    assert_good(parse_chunks("fd", PLAIN, 16, samples, 8));
    assert_good(parse_chunks("ufujdu", PLAIN, 16, samples, 8));
    assert_good(parse_chunks("fd", extensible, 40, samples, 8));
    assert_int_equal(parse_chunks("ffd", PLAIN, 16, samples, 8), H3_INTEGRITY);
    assert_int_equal(parse_chunks("fdd", PLAIN, 16, samples, 8), H3_INTEGRITY);
    assert_int_equal(parse_chunks("df", PLAIN, 16, samples, 8), H3_INTEGRITY);
    assert_int_equal(parse_chunks("f", PLAIN, 16, samples, 8), H3_INTEGRITY);
    assert_int_equal(parse_chunks("", PLAIN, 16, samples, 8), H3_INTEGRITY);
    assert_int_equal(parse_chunks("fd", PLAIN, 14, samples, 8), H3_INTEGRITY);
    assert_int_equal(parse_chunks("fd", extensible, 38, samples, 8), H3_INTEGRITY);
    assert_int_equal(parse_chunks("fd", PLAIN, 16, samples, 6), H3_INTEGRITY);
    assert_int_equal(parse_chunks("fd", PLAIN, 16, samples, 0), H3_INTEGRITY);
    assert_non_null(strstr(h3_error_text(), "no sample"));
    assert_int_equal(parse_chunks("fd", PLAIN, 16, bad, 8), H3_FAILED);
    assert_non_null(strstr(h3_error_text(), "sample 1 of channel 0"));
    extensible[18] = 24;
    assert_int_equal(parse_chunks("fd", extensible, 40, samples, 8), H3_INTEGRITY);
    extensible[18] = 32;
    extensible[24] = 1;
    assert_int_equal(parse_chunks("fd", extensible, 40, samples, 8), H3_INTEGRITY);
}

static void mutations_never_crash(void **state)
{
    unsigned char *image = good_image();
    uint32_t random = 9;
    int accepted = 0;
    (void)state;
    for (int round = 0; round < 20000; round++) {
        unsigned char copy[SIZE];
        memcpy(copy, image, SIZE);
        for (int i = 0; i < 1 + round % 4; i++) {
            random = random * 1664525u + 1013904223u;
            copy[(random >> 8) % 58] = (unsigned char)(random >> 24);
        }
        h3_status status = parse_exact(copy, SIZE);
        assert_true(status == H3_OK || status == H3_INTEGRITY);
        accepted += status == H3_OK;
    }
    assert_true(accepted < 2000); /* "fact" may become an unknown chunk, and a byte may be changed into itself */
    free(image);
}

static void nothing_wrong_is_written(void **state)
{
    float samples[4] = {0, 1, 2, 3};
    char *image;
    size_t size;
    (void)state;
    static const h3_status EXPECTED[] = {H3_FAILED, H3_FAILED, H3_FAILED, H3_USAGE, H3_USAGE, H3_USAGE};
    const h3_sound bad[] = {{0}, {2, 0, 32000, samples}, {1, 4, 32000, NULL}, {1, 4, 0, samples}, {1, 4, 1LL << 40, samples}, {1, 4, 1LL << 31, samples}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(h3_wav_build(&image, &size, &bad[i]), EXPECTED[i]);
        assert_null(image);
    }
    h3_sound sound = {1, 4, 32000, samples};
    for (int i = 0; i < 2; i++) {
        samples[2] = i ? INFINITY : NAN;
        assert_int_equal(h3_wav_write(in_folder("bad.wav"), &sound), H3_FAILED);
        assert_non_null(strstr(h3_error_text(), "sample 2 of channel 0"));
        assert_int_not_equal(access(in_folder("bad.wav"), F_OK), 0);
    }
    h3_sound made;
    static const int64_t SIZES[][3] = {{0, 1, 1}, {9, 1, 1}, {1, 0, 1}, {1, -1, 1}, {1, 1, 0}, {8, INT64_MAX, 1}};
    for (size_t i = 0; i < sizeof SIZES / sizeof *SIZES; i++) assert_int_equal(h3_sound_new(&made, SIZES[i][0], SIZES[i][1], SIZES[i][2]), H3_INTEGRITY);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trips), cmocka_unit_test(the_bytes_are_these), cmocka_unit_test(files_are_written_and_read), cmocka_unit_test(another_reader_sees_the_same),
        cmocka_unit_test(another_writers_files_are_read), cmocka_unit_test(hostile_bytes), cmocka_unit_test(chunks_in_any_company), cmocka_unit_test(mutations_never_crash),
        cmocka_unit_test(nothing_wrong_is_written),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
