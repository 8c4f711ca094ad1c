#include "qualify/media_evidence.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "media/picture.h"
#include "media/wav.h"
#include "store/publish.h"

void h3_media_folder(char out[96], const char *side, int64_t seed) { snprintf(out, 96, "data/generate/%.20s/seed%lld", side, (long long)seed); }
void h3_media_frame_path(char out[160], const char *folder, int64_t frame) { snprintf(out, 160, "%.120s/frames/frame_%05lld.png", folder, (long long)frame); }
void h3_media_sound_path(char out[160], const char *folder) { snprintf(out, 160, "%.120s/audio.wav", folder); }

void h3_media_free(h3_media *media)
{
    free(media->rgb);
    h3_sound_free(&media->sound);
    *media = (h3_media){0};
}

/* --- facts ------------------------------------------------------------------------------------------------------------ */

h3_status h3_media_facts_json(cJSON **out, const h3_media_facts *facts, const char *folder)
{
    const h3_media_shape *shape = &facts->shape;
    cJSON *json = cJSON_CreateObject();
    *out = NULL;
    if (json == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for the report of a seed's media");
    cJSON_AddStringToObject(json, "folder", folder);
    cJSON *video = cJSON_AddObjectToObject(json, "video"), *audio = cJSON_AddObjectToObject(json, "audio");
    h3_json_add_integer(video, "frames", shape->frames);
    h3_json_add_integer(video, "height", shape->height);
    h3_json_add_integer(video, "width", shape->width);
    h3_json_add_integer(video, "fps", H3_MEDIA_FPS);
    cJSON_AddStringToObject(video, "pixel_format", "rgb8");
    cJSON_AddStringToObject(video, "sha256", facts->rgb_sha256);
    h3_json_add_integer(audio, "channels", shape->channels);
    h3_json_add_integer(audio, "samples", shape->samples);
    h3_json_add_integer(audio, "rate", shape->rate);
    cJSON_AddStringToObject(audio, "sample_format", "f32");
    cJSON_AddStringToObject(audio, "sha256", facts->sound_sha256);
    *out = json;
    return H3_OK;
}

static h3_status read_hash(char out[H3_SHA256_HEX], const cJSON *json, const char *where)
{
    const char *sha256;
    H3_TRY(h3_json_string(&sha256, json, "sha256", where, H3_INTEGRITY));
    if (strlen(sha256) != H3_SHA256_HEX - 1) return h3_error(H3_INTEGRITY, "%s: the sha256 of its media is malformed; run h3_generate again", where);
    memcpy(out, sha256, H3_SHA256_HEX);
    return H3_OK;
}

h3_status h3_media_facts_read(h3_media_facts *out, const cJSON *json, const char *where)
{
    enum { MOST = 1 << 30 };
    const cJSON *video, *audio;
    *out = (h3_media_facts){0};
    H3_TRY(h3_json_object(&video, json, "video", where, H3_INTEGRITY));
    H3_TRY(h3_json_object(&audio, json, "audio", where, H3_INTEGRITY));
    H3_TRY(h3_json_integer(&out->shape.frames, video, "frames", 0, MOST, where, H3_INTEGRITY));
    H3_TRY(h3_json_integer(&out->shape.height, video, "height", 1, H3_PICTURE_SIDE_LIMIT, where, H3_INTEGRITY));
    H3_TRY(h3_json_integer(&out->shape.width, video, "width", 1, H3_PICTURE_SIDE_LIMIT, where, H3_INTEGRITY));
    H3_TRY(h3_json_integer(&out->shape.channels, audio, "channels", 1, H3_SOUND_CHANNELS, where, H3_INTEGRITY));
    H3_TRY(h3_json_integer(&out->shape.samples, audio, "samples", 0, MOST, where, H3_INTEGRITY));
    H3_TRY(h3_json_integer(&out->shape.rate, audio, "rate", 1, MOST, where, H3_INTEGRITY));
    H3_TRY(read_hash(out->rgb_sha256, video, where));
    return read_hash(out->sound_sha256, audio, where);
}

/* --- the first failure of many threads: messages belong to the thread that failed, so the text is carried over ------------ */

typedef struct failure {
    int64_t number;
    h3_status status;
    char text[1024];
} failure;

static void note(failure *f, int64_t number, h3_status status)
{
    if (status == H3_OK) return;
#pragma omp critical(h3_media_failure)
    if (f->status == H3_OK || number < f->number) {
        f->number = number;
        f->status = status;
        snprintf(f->text, sizeof f->text, "%s", h3_error_text());
    }
}

static h3_status relay(const failure *f) { return f->status == H3_OK ? H3_OK : h3_error(f->status, "%s", f->text); }

static void tick(const h3_media_beat *beat)
{
    if (beat != NULL && beat->beat != NULL) beat->beat(beat->user);
}

/* --- writing ---------------------------------------------------------------------------------------------------------- */

static h3_status publish(h3_run_file *out, const char *run_folder, const char *relative, const char *data, size_t size)
{
    char path[H3_PATH_MAX];
    snprintf(out->path, sizeof out->path, "%s", relative);
    out->size = (int64_t)size;
    H3_TRY(h3_sha256(out->sha256, data, size));
    H3_TRY(h3_path(path, "%s/%s", run_folder, relative));
    return h3_publish(path, data, size);
}

static h3_status write_frame(h3_run_file *out, const char *run_folder, const char *folder, const h3_media *media, int64_t frame)
{
    char relative[160], *png;
    size_t size, pixels = (size_t)(media->height * media->width) * H3_VIDEO_COLOURS;
    h3_media_frame_path(relative, folder, frame);
    H3_TRY(h3_picture_build(&png, &size, media->rgb + (size_t)frame * pixels, media->height, media->width));
    h3_status status = publish(out, run_folder, relative, png, size);
    free(png);
    return status;
}

h3_status h3_media_write_frames(h3_run_files *files, const char *run_folder, const char *folder, const h3_media *media, const h3_media_beat *beat)
{
    enum { MOST = 100000 };
    char path[H3_PATH_MAX], first[160];
    void *memory;
    failure failed = {0};
    if (media->frames < 1 || media->frames > MOST) return h3_error(H3_FAILED, "%s: a video of %lld frames; 1 to %d can be written", folder, (long long)media->frames, MOST);
    h3_media_frame_path(first, folder, 0);
    H3_TRY(h3_run_place(path, run_folder, first)); /* makes the folders */
    H3_TRY(h3_alloc(&memory, (size_t)media->frames, sizeof(h3_run_file), "a list of frames"));
    h3_run_file *written = memory;
#pragma omp parallel for schedule(dynamic)
    for (int64_t i = 0; i < media->frames; i++) {
        note(&failed, i, write_frame(&written[i], run_folder, folder, media, i));
        tick(beat);
    }
    h3_status status = relay(&failed);
    for (int64_t i = 0; i < media->frames && status == H3_OK; i++) status = h3_run_files_add(files, written[i].path, written[i].size, written[i].sha256);
    free(memory);
    return status;
}

h3_status h3_media_write_sound(h3_run_files *files, const char *run_folder, const char *folder, const h3_sound *sound)
{
    char path[H3_PATH_MAX], relative[160], *wav;
    size_t size;
    h3_run_file written;
    h3_media_sound_path(relative, folder);
    H3_TRY(h3_run_place(path, run_folder, relative));
    H3_TRY(h3_wav_build(&wav, &size, sound));
    h3_status status = publish(&written, run_folder, relative, wav, size);
    free(wav);
    return status == H3_OK ? h3_run_files_add(files, written.path, written.size, written.sha256) : status;
}

/* --- reading ---------------------------------------------------------------------------------------------------------- */

/* The bytes of a listed file (caller frees). */
static h3_status read_listed(char **out, size_t *size, const char *run_folder, const h3_run_files *listed, const char *relative)
{
    enum { MOST = INT32_MAX };
    char path[H3_PATH_MAX], sha256[H3_SHA256_HEX];
    const h3_run_file *file = h3_run_files_find(listed, relative);
    if (file == NULL) return h3_error(H3_INTEGRITY, "%s/%s is not among the outputs of its generation; run h3_generate again", run_folder, relative);
    H3_TRY(h3_run_locate(path, run_folder, relative));
    H3_TRY(h3_file_read(out, size, path, MOST, H3_INTEGRITY));
    h3_status status = h3_sha256(sha256, *out, *size);
    if (status == H3_OK && strcmp(sha256, file->sha256) != 0)
        status = h3_error(H3_INTEGRITY, "%s has not the listed SHA-256: it has changed, or is another one; run h3_generate again", path);
    if (status != H3_OK) free(*out);
    return status;
}

static h3_status read_frame(h3_media *out, const char *run_folder, const char *folder, const h3_run_files *listed, int64_t frame)
{
    char relative[160], where[H3_PATH_MAX], *png;
    size_t size, pixels = (size_t)(out->height * out->width) * H3_VIDEO_COLOURS;
    h3_picture picture;
    h3_media_frame_path(relative, folder, frame);
    H3_TRY(h3_path(where, "%s/%s", run_folder, relative));
    H3_TRY(read_listed(&png, &size, run_folder, listed, relative));
    h3_status status = h3_picture_parse(&picture, png, size, H3_PICTURE_EVIDENCE, where);
    free(png);
    H3_TRY(status);
    if (picture.height == out->height && picture.width == out->width) memcpy(out->rgb + (size_t)frame * pixels, picture.rgb, pixels);
    else
        status = h3_error(H3_INTEGRITY, "%s is %lld x %lld pixels, its report says %lld x %lld; run h3_generate again", where, (long long)picture.width,
                          (long long)picture.height, (long long)out->width, (long long)out->height);
    h3_picture_free(&picture);
    return status;
}

static h3_status read_sound(h3_media *out, const char *run_folder, const char *folder, const h3_run_files *listed, const h3_media_shape *shape)
{
    char relative[160], where[H3_PATH_MAX], *wav;
    size_t size;
    h3_media_sound_path(relative, folder);
    H3_TRY(h3_path(where, "%s/%s", run_folder, relative));
    H3_TRY(read_listed(&wav, &size, run_folder, listed, relative));
    h3_status status = h3_wav_parse(&out->sound, (const unsigned char *)wav, size, where);
    free(wav);
    H3_TRY(status);
    if (out->sound.channels == shape->channels && out->sound.frames == shape->samples && out->sound.rate == shape->rate) return H3_OK;
    return h3_error(H3_INTEGRITY, "%s has %lld channels of %lld samples at %lld Hz, its report says %lld of %lld at %lld; run h3_generate again", where,
                    (long long)out->sound.channels, (long long)out->sound.frames, (long long)out->sound.rate, (long long)shape->channels, (long long)shape->samples,
                    (long long)shape->rate);
}

static h3_status check_hashes(const h3_media *media, const h3_media_facts *facts, const char *folder)
{
    char sha256[H3_SHA256_HEX];
    H3_TRY(h3_sha256(sha256, media->rgb, (size_t)(media->frames * media->height * media->width) * H3_VIDEO_COLOURS));
    if (strcmp(sha256, facts->rgb_sha256) != 0)
        return h3_error(H3_INTEGRITY, "%s: its frames are not the pictures whose hash its report has; run h3_generate again", folder);
    H3_TRY(h3_sound_sha256(sha256, &media->sound));
    if (strcmp(sha256, facts->sound_sha256) == 0) return H3_OK;
    return h3_error(H3_INTEGRITY, "%s: its audio.wav is not the sound whose hash its report has; run h3_generate again", folder);
}

static h3_status read_all(h3_media *out, const char *run_folder, const char *folder, const h3_run_files *listed, const h3_media_facts *facts, const h3_media_beat *beat)
{
    const h3_media_shape *shape = &facts->shape;
    char surplus[160];
    void *memory;
    failure failed = {0};
    if (shape->frames < 1 || shape->samples < 1) return h3_error(H3_FAILED, "%s: its report speaks of no frame or no sample; there is nothing to look at", folder);
    h3_media_frame_path(surplus, folder, shape->frames);
    if (h3_run_files_find(listed, surplus) != NULL)
        return h3_error(H3_INTEGRITY, "%s has more frames than the %lld of its report; run h3_generate again", folder, (long long)shape->frames);
    H3_TRY(h3_alloc(&memory, (size_t)shape->frames, (size_t)(shape->height * shape->width) * H3_VIDEO_COLOURS, "the frames of a video"));
    *out = (h3_media){.rgb = memory, .frames = shape->frames, .height = shape->height, .width = shape->width};
#pragma omp parallel for schedule(dynamic)
    for (int64_t i = 0; i < out->frames; i++) {
        note(&failed, i, read_frame(out, run_folder, folder, listed, i));
        tick(beat);
    }
    H3_TRY(relay(&failed));
    H3_TRY(read_sound(out, run_folder, folder, listed, shape));
    return check_hashes(out, facts, folder);
}

h3_status h3_media_read(h3_media *out, const char *run_folder, const char *folder, const h3_run_files *listed, const h3_media_facts *facts, const h3_media_beat *beat)
{
    *out = (h3_media){0};
    h3_status status = read_all(out, run_folder, folder, listed, facts, beat);
    if (status != H3_OK) h3_media_free(out);
    return status;
}

h3_status h3_media_verify(const char *run_folder, const h3_run_files *files, const h3_media_beat *beat)
{
    failure failed = {0};
#pragma omp parallel for schedule(dynamic)
    for (size_t i = 0; i < files->count; i++) {
        char *data;
        size_t size;
        h3_status status = read_listed(&data, &size, run_folder, files, files->items[i].path);
        if (status == H3_OK) free(data);
        note(&failed, (int64_t)i, status);
        tick(beat);
    }
    return relay(&failed);
}
