/* For tests/system/test_preview.sh, which sets FFmpeg beside it: our figures of two clips in the words of FFmpeg's psnr filter, and our writers.
 *
 *   media_probe psnr FRAMES FRAMES     a line "n:1 psnr_avg:..." a frame, then "average:... min:..."
 *   media_probe rewrite FROM TO        frames/ and audio.wav of FROM, read and written again to TO, whose folder frames/ is there */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "media/picture.h"
#include "media/picture_metrics.h"
#include "media/wav.h"

static h3_status print_psnr(const char *first, const char *second)
{
    unsigned char *a = NULL, *b = NULL;
    int64_t count[2], height[2], width[2];
    h3_picture_metrics metrics = {0};
    h3_status status;
    H3_GOTO(h3_frames_read(&a, &count[0], &height[0], &width[0], first), done);
    H3_GOTO(h3_frames_read(&b, &count[1], &height[1], &width[1], second), done);
    if (count[0] != count[1] || height[0] != height[1] || width[0] != width[1]) status = h3_error(H3_INTEGRITY, "clips of two sizes");
    if (status == H3_OK) status = h3_picture_metrics_compute(&metrics, a, b, count[0], height[0], width[0]);
    for (int64_t i = 0; i < metrics.count; i++) printf("n:%lld psnr_avg:%0.2f\n", (long long)i + 1, metrics.frames[i].psnr);
    if (status == H3_OK) printf("average:%f min:%f\n", metrics.psnr_global, metrics.psnr_min);
done:
    h3_picture_metrics_free(&metrics);
    free(a);
    free(b);
    return status;
}

static h3_status rewrite(const char *from, const char *to)
{
    char path[H3_PATH_MAX];
    unsigned char *rgb;
    int64_t count, height, width;
    h3_sound sound;
    H3_TRY(h3_path(path, "%s/frames", from));
    H3_TRY(h3_frames_read(&rgb, &count, &height, &width, path));
    h3_status status = h3_path(path, "%s/frames", to);
    if (status == H3_OK) status = h3_frames_write(path, rgb, count, height, width);
    free(rgb);
    H3_TRY(status);
    H3_TRY(h3_path(path, "%s/audio.wav", from));
    H3_TRY(h3_wav_read(&sound, path));
    status = h3_path(path, "%s/audio.wav", to);
    if (status == H3_OK) status = h3_wav_write(path, &sound);
    h3_sound_free(&sound);
    return status;
}

int main(int argc, char **argv)
{
    h3_status status = H3_USAGE;
    if (argc == 4 && strcmp(argv[1], "psnr") == 0) status = print_psnr(argv[2], argv[3]);
    else if (argc == 4 && strcmp(argv[1], "rewrite") == 0) status = rewrite(argv[2], argv[3]);
    if (status != H3_OK) fprintf(stderr, "media_probe: %s\n", h3_error_text());
    return (int)status;
}
