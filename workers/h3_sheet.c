/* Sheets of generated frames, for people: h3_compare makes them of a run, this program of any folders. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "args.h"
#include "base/json.h"
#include "base/log.h"
#include "base/memory.h"
#include "media/sheet.h"
#include "report/curves.h"
#include "store/publish.h"
#include "tool.h"

static const char help[] =
    "h3_sheet - one picture of many frames, or of two videos beside each other with their difference\n"
    "\n"
    "  h3_sheet --provider DIR --candidate DIR --out FILE.png [options]\n"
    "      both videos and, amplified, what differs; a cell of the difference is black only where nothing differs\n"
    "  h3_sheet --clip DIR --out FILE.png [options]\n"
    "      a contact sheet\n"
    "  DIR holds frame_00000.png, ... or a folder frames/ of them\n"
    "\n"
    "  h3_sheet --run DIR [options]\n"
    "      of a run that was compared: DIR/previews/seed<N>.png of every seed that was decoded, and the comparison's figures as\n"
    "      curves, psnr.svg, ssim.svg, velocity.video.svg, velocity.audio.svg. The jobs call this; nothing reads it\n"
    "\n"
    "  --frames N    at most so many, evenly spread (12)\n"
    "  --columns N   frames a line (6)\n"
    "  --width N     largest width of a cell in pixels (256)\n"
    "  --factor N    of the difference, 1 to 255 (the largest power of two that cuts none off; the sheet states it)\n"
    "  --title TEXT  instead of one that says what is shown\n"
    "\n"
    "  exit codes: 0 written; 2 usage, 3 frames that are missing, damaged or not of the same number and size, 4 environment\n"
    "  example: bin/h3_sheet --provider evidence/demo/data/generate/provider/seed42 \\\n"
    "                        --candidate evidence/demo/data/generate/candidate/seed42 --out seed42.png\n";

typedef struct request {
    const char *clip[2]; /* the second: NULL for a contact sheet */
    const char *out, *title, *run;
    int64_t most, columns, width, factor;
} request;

typedef struct shown {
    int64_t count, total, height, width;
    int64_t numbers[H3_SHEET_FRAMES];
    h3_picture pictures[2][H3_SHEET_FRAMES];
    h3_sheet_frame frames[H3_SHEET_FRAMES];
} shown;

static h3_status frames_folder(char out[H3_PATH_MAX], const char *folder)
{
    struct stat info;
    H3_TRY(h3_path(out, "%s/frames", folder));
    return stat(out, &info) == 0 ? H3_OK : h3_path(out, "%s", folder);
}

/* The first clip says how many and how large, the second must be like it. */
static h3_status read_clip(shown *s, const request *r, int which)
{
    char folder[H3_PATH_MAX];
    int64_t total;
    H3_TRY(frames_folder(folder, r->clip[which]));
    H3_TRY(h3_frames_count(&total, folder));
    if (which == 1 && total != s->total)
        return h3_error(H3_INTEGRITY, "%s has %lld frames, %s has %lld; compare videos of one length", r->clip[0], (long long)s->total, r->clip[1], (long long)total);
    if (which == 0) s->total = total;
    if (which == 0) s->count = h3_sheet_choose(s->numbers, r->most, total);
    for (int64_t i = 0; i < s->count; i++) {
        h3_picture *picture = &s->pictures[which][i];
        H3_TRY(h3_frame_read(picture, folder, s->numbers[i], s->height, s->width));
        s->height = picture->height;
        s->width = picture->width;
        s->frames[i].number = s->numbers[i];
        *(which == 0 ? &s->frames[i].a : &s->frames[i].b) = picture->rgb;
    }
    return H3_OK;
}

static h3_status write_sheet(const h3_picture *sheet, const char *path)
{
    char *png;
    size_t size;
    H3_TRY(h3_picture_build(&png, &size, sheet->rgb, sheet->height, sheet->width));
    h3_status status = h3_publish(path, png, size);
    free(png);
    return status;
}

static h3_status make_sheet(shown *s, const request *r)
{
    char text[160];
    h3_picture picture;
    H3_TRY(read_clip(s, r, 0));
    if (r->clip[1] != NULL) H3_TRY(read_clip(s, r, 1));
    snprintf(text, sizeof text, "%lld of %lld frames, %lldx%lld", (long long)s->count, (long long)s->total, (long long)s->width, (long long)s->height);
    const h3_sheet sheet = {.title = r->title != NULL ? r->title : text, .names = {"provider", "candidate"}, .height = s->height, .width = s->width, .count = s->count,
                            .frames = s->frames, .columns = r->columns, .cell_width = r->width, .factor = r->factor};
    H3_TRY(r->clip[1] != NULL ? h3_sheet_compare(&picture, &sheet) : h3_sheet_contact(&picture, &sheet));
    h3_status status = write_sheet(&picture, r->out);
    if (status == H3_OK) h3_say("sheet    %s  %s, %lldx%lld pixels", r->out, text, (long long)picture.width, (long long)picture.height);
    h3_picture_free(&picture);
    return status;
}

static h3_status sheet_of(const request *r)
{
    void *memory;
    H3_TRY(h3_alloc(&memory, 1, sizeof(shown), "a sheet's frames"));
    shown *s = memory;
    h3_status status = make_sheet(s, r);
    for (int64_t i = 0; i < 2 * H3_SHEET_FRAMES; i++) h3_picture_free(&s->pictures[i / H3_SHEET_FRAMES][i % H3_SHEET_FRAMES]);
    free(s);
    return status;
}

/* --- a run ----------------------------------------------------------------------------------------------------------- */

static h3_status seed_sheet(const request *r, const cJSON *seed)
{
    char sides[2][H3_PATH_MAX], out[H3_PATH_MAX], title[80];
    struct stat info;
    const cJSON *number = cJSON_GetObjectItemCaseSensitive(seed, "seed");
    if (!cJSON_IsNumber(number) || number->valuedouble < 0 || number->valuedouble > 1e15) return h3_error(H3_INTEGRITY, "%s/compare.json has a seed without a number", r->run);
    const long long n = (long long)number->valuedouble;
    H3_TRY(h3_path(sides[0], "%s/data/generate/provider/seed%lld/frames", r->run, n));
    H3_TRY(h3_path(sides[1], "%s/data/generate/candidate/seed%lld/frames", r->run, n));
    H3_TRY(h3_path(out, "%s/previews/seed%lld.png", r->run, n));
    if (stat(sides[0], &info) != 0 && stat(sides[1], &info) != 0) { /* not decoded; what an earlier attempt left shows nothing of this one */
        unlink(out);
        return H3_OK;
    }
    snprintf(title, sizeof title, "seed %lld", n);
    request one = *r;
    one.clip[0] = sides[0];
    one.clip[1] = sides[1];
    one.out = out;
    if (one.title == NULL) one.title = title;
    return sheet_of(&one);
}

static h3_status write_curves(const request *r, const cJSON *compare)
{
    for (int k = 0; h3_curve_kinds[k] != NULL; k++) {
        char path[H3_PATH_MAX], *text;
        H3_TRY(h3_path(path, "%s/previews/%s.svg", r->run, h3_curve_kinds[k]));
        H3_TRY(h3_curves_file(&text, compare, h3_curve_kinds[k]));
        if (text == NULL) {
            unlink(path);
            continue;
        }
        h3_status status = h3_publish(path, text, strlen(text));
        free(text);
        H3_TRY(status);
        h3_say("curves   %s", path);
    }
    return H3_OK;
}

static h3_status of_a_run(const request *r)
{
    char path[H3_PATH_MAX];
    const cJSON *seeds = NULL;
    cJSON *compare;
    H3_TRY(h3_path(path, "%s/compare.json", r->run));
    H3_TRY(h3_json_read(&compare, path, H3_INTEGRITY));
    h3_status status = h3_json_array(&seeds, compare, "seeds", path, H3_INTEGRITY);
    if (status == H3_OK) status = h3_path(path, "%s/previews", r->run);
    if (status == H3_OK) status = h3_make_folders(path);
    if (status == H3_OK) status = write_curves(r, compare);
    for (int i = 0; status == H3_OK && i < cJSON_GetArraySize(seeds); i++) status = seed_sheet(r, cJSON_GetArrayItem(seeds, i));
    cJSON_Delete(compare);
    return status;
}

static h3_status parse(request *r, int argc, char **argv, int *done)
{
    const char *provider = NULL, *candidate = NULL, *clip = NULL, *frames = NULL, *columns = NULL, *width = NULL, *factor = NULL;
    const h3_option options[] = {{"--provider", &provider, NULL}, {"--candidate", &candidate, NULL}, {"--clip", &clip, NULL}, {"--out", &r->out, NULL}, {"--run", &r->run, NULL},
                                 {"--frames", &frames, NULL}, {"--columns", &columns, NULL}, {"--width", &width, NULL}, {"--factor", &factor, NULL}, {"--title", &r->title, NULL}};
    H3_TRY(h3_options_parse(options, sizeof options / sizeof *options, argc, argv, help, done));
    if (*done) return H3_OK;
    const int whole = r->run != NULL && r->out == NULL && clip == NULL && provider == NULL && candidate == NULL;
    if (!whole && (r->run != NULL || r->out == NULL || (clip != NULL ? provider != NULL || candidate != NULL : provider == NULL || candidate == NULL)))
        return h3_error(H3_USAGE, "--run alone, or --out with --clip or with --provider and --candidate, is needed; see h3_sheet --help");
    r->clip[0] = clip != NULL ? clip : provider;
    r->clip[1] = candidate;
    H3_TRY(h3_option_number(&r->most, frames, 12, H3_SHEET_FRAMES, "--frames"));
    H3_TRY(h3_option_number(&r->columns, columns, 0, H3_SHEET_FRAMES, "--columns"));
    H3_TRY(h3_option_number(&r->width, width, 0, H3_PICTURE_SIDE_LIMIT, "--width"));
    return h3_option_number(&r->factor, factor, 0, 255, "--factor");
}

int main(int argc, char **argv)
{
    request r = {0};
    int done;
    h3_status status = parse(&r, argc, argv, &done);
    if (status == H3_OK && !done) status = r.run != NULL ? of_a_run(&r) : sheet_of(&r);
    return h3_exit("h3_sheet", status);
}
