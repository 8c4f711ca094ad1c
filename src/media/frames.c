/* The frames of a video as numbered PNG files (media.md section 2). */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "media/picture.h"
#include "store/publish.h"

enum { FRAME_LIMIT = 100000 };

/* The first failure among the frames, by number: messages belong to the thread that failed, so the text is carried over. */
typedef struct failure {
    int64_t frame;
    h3_status status;
    char text[1024];
} failure;

static void note_failure(failure *f, int64_t frame, h3_status status)
{
#pragma omp critical(h3_frames)
    if (f->status == H3_OK || frame < f->frame) {
        f->frame = frame;
        f->status = status;
        snprintf(f->text, sizeof f->text, "%s", h3_error_text());
    }
}

static h3_status relay(const failure *f) { return f->status == H3_OK ? H3_OK : h3_error(f->status, "%s", f->text); }

static h3_status frame_path(char path[H3_PATH_MAX], const char *folder, int64_t frame) { return h3_path(path, "%s/frame_%05lld.png", folder, (long long)frame); }

static h3_status write_frame(const char *folder, int64_t frame, const unsigned char *rgb, int64_t height, int64_t width)
{
    char path[H3_PATH_MAX], *png;
    size_t size;
    H3_TRY(frame_path(path, folder, frame));
    H3_TRY(h3_picture_build(&png, &size, rgb, height, width));
    h3_status status = h3_publish(path, png, size);
    free(png);
    return status;
}

h3_status h3_frames_write(const char *folder, const unsigned char *rgb, int64_t count, int64_t height, int64_t width)
{
    failure failed = {0};
    if (height < 1 || width < 1 || height > H3_PICTURE_SIDE_LIMIT || width > H3_PICTURE_SIDE_LIMIT)
        return h3_error(H3_USAGE, "frames of %lld x %lld pixels; 1 to %d a side are possible", (long long)width, (long long)height, H3_PICTURE_SIDE_LIMIT);
    if (count < 1 || count > FRAME_LIMIT) return h3_error(H3_USAGE, "a video of %lld frames; 1 to %d can be written", (long long)count, FRAME_LIMIT);
#pragma omp parallel for schedule(dynamic)
    for (int64_t i = 0; i < count; i++) {
        h3_status status = write_frame(folder, i, rgb + (size_t)(i * height * width) * 3, height, width);
        if (status != H3_OK) note_failure(&failed, i, status);
    }
    return relay(&failed);
}

/* The number in "frame_00012.png", -1 for another name. */
static int64_t number_of(const char *name)
{
    int64_t number = 0;
    if (strlen(name) != 15 || strncmp(name, "frame_", 6) != 0 || strcmp(name + 11, ".png") != 0) return -1;
    for (int i = 6; i < 11; i++) {
        if (name[i] < '0' || name[i] > '9') return -1;
        number = 10 * number + name[i] - '0';
    }
    return number;
}

h3_status h3_frames_count(int64_t *count, const char *folder)
{
    DIR *entries = opendir(folder);
    int64_t last = -1;
    *count = 0;
    if (entries == NULL) return h3_error(H3_INTEGRITY, "cannot open the folder of frames %s; check the path", folder);
    for (const struct dirent *entry; (entry = readdir(entries)) != NULL;) {
        const int64_t number = number_of(entry->d_name);
        *count += number >= 0;
        last = number > last ? number : last;
    }
    closedir(entries);
    if (*count == 0) return h3_error(H3_INTEGRITY, "%s holds no frames (frame_00000.png, ...); check the path", folder);
    if (last + 1 != *count) return h3_error(H3_INTEGRITY, "%s holds %lld frames but the last is number %lld; frames are missing, get them again", folder, (long long)*count, (long long)last);
    return H3_OK;
}

h3_status h3_frame_read(h3_picture *out, const char *folder, int64_t frame, int64_t height, int64_t width)
{
    char path[H3_PATH_MAX];
    *out = (h3_picture){0};
    H3_TRY(frame_path(path, folder, frame));
    H3_TRY(h3_picture_read(out, path, H3_PICTURE_EVIDENCE));
    if (height == 0 || (out->height == height && out->width == width)) return H3_OK;
    h3_error(H3_INTEGRITY, "%s is %lld x %lld pixels, the first frame %lld x %lld; the frames of a video have one size", path, (long long)out->width, (long long)out->height,
             (long long)width, (long long)height);
    h3_picture_free(out);
    return H3_INTEGRITY;
}

static h3_status read_frame(unsigned char *to, const char *folder, int64_t frame, int64_t height, int64_t width)
{
    h3_picture picture;
    H3_TRY(h3_frame_read(&picture, folder, frame, height, width));
    memcpy(to, picture.rgb, (size_t)(height * width) * 3);
    h3_picture_free(&picture);
    return H3_OK;
}

h3_status h3_frames_read(unsigned char **rgb, int64_t *count, int64_t *height, int64_t *width, const char *folder)
{
    h3_picture first;
    failure failed = {0};
    void *all;
    *rgb = NULL;
    H3_TRY(h3_frames_count(count, folder));
    H3_TRY(h3_frame_read(&first, folder, 0, 0, 0));
    const int64_t h = first.height, w = first.width;
    h3_picture_free(&first);
    H3_TRY(h3_alloc(&all, (size_t)*count, (size_t)(h * w) * 3, "the frames of a video"));
    unsigned char *frames = all;
#pragma omp parallel for schedule(dynamic)
    for (int64_t i = 0; i < *count; i++) {
        h3_status status = read_frame(frames + (size_t)(i * h * w) * 3, folder, i, h, w);
        if (status != H3_OK) note_failure(&failed, i, status);
    }
    if (failed.status != H3_OK) {
        free(all);
        return relay(&failed);
    }
    *rgb = frames;
    *height = h;
    *width = w;
    return H3_OK;
}
