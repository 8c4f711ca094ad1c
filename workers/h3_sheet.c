/* Sheets of generated frames, for people: h3_compare makes them of a run, this program of any folders. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "args.h"
#include "base/log.h"
#include "base/memory.h"
#include "media/sheet.h"
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
    "  --frames N    at most so many, evenly spread (12)\n"
    "  --columns N   frames a line (6)\n"
    "  --width N     largest width of a cell in pixels (256)\n"
    "  --factor N    of the difference, 1 to 255 (8)\n"
    "  --title TEXT  instead of one that says what is shown\n"
    "\n"
    "  exit codes: 0 written; 2 usage, 3 frames that are missing, damaged or not of the same number and size, 4 environment\n"
    "  example: bin/h3_sheet --provider evidence/demo/data/generate/provider/seed42 \\\n"
    "                        --candidate evidence/demo/data/generate/candidate/seed42 --out seed42.png\n";

typedef struct request {
    const char *clip[2]; /* the second: NULL for a contact sheet */
    const char *out, *title;
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
    char title[160];
    h3_picture picture;
    H3_TRY(read_clip(s, r, 0));
    if (r->clip[1] != NULL) H3_TRY(read_clip(s, r, 1));
    snprintf(title, sizeof title, "%lld of %lld frames, %lldx%lld", (long long)s->count, (long long)s->total, (long long)s->width, (long long)s->height);
    const h3_sheet sheet = {.title = r->title != NULL ? r->title : title, .names = {"provider", "candidate"}, .height = s->height, .width = s->width, .count = s->count,
                            .frames = s->frames, .columns = r->columns, .cell_width = r->width, .factor = r->factor};
    H3_TRY(r->clip[1] != NULL ? h3_sheet_compare(&picture, &sheet) : h3_sheet_contact(&picture, &sheet));
    h3_status status = write_sheet(&picture, r->out);
    if (status == H3_OK) h3_say("sheet    %s  %s, %lldx%lld pixels", r->out, title, (long long)picture.width, (long long)picture.height);
    h3_picture_free(&picture);
    return status;
}

static h3_status run(const request *r)
{
    void *memory;
    H3_TRY(h3_alloc(&memory, 1, sizeof(shown), "a sheet's frames"));
    shown *s = memory;
    h3_status status = make_sheet(s, r);
    for (int64_t i = 0; i < 2 * H3_SHEET_FRAMES; i++) h3_picture_free(&s->pictures[i / H3_SHEET_FRAMES][i % H3_SHEET_FRAMES]);
    free(s);
    return status;
}

static h3_status parse(request *r, int argc, char **argv, int *done)
{
    const char *provider = NULL, *candidate = NULL, *clip = NULL, *frames = NULL, *columns = NULL, *width = NULL, *factor = NULL;
    const h3_option options[] = {{"--provider", &provider, NULL}, {"--candidate", &candidate, NULL}, {"--clip", &clip, NULL}, {"--out", &r->out, NULL},
                                 {"--frames", &frames, NULL}, {"--columns", &columns, NULL}, {"--width", &width, NULL}, {"--factor", &factor, NULL}, {"--title", &r->title, NULL}};
    H3_TRY(h3_options_parse(options, sizeof options / sizeof *options, argc, argv, help, done));
    if (*done) return H3_OK;
    if (r->out == NULL || (clip != NULL ? provider != NULL || candidate != NULL : provider == NULL || candidate == NULL))
        return h3_error(H3_USAGE, "--provider and --candidate, or --clip, and --out are needed; see h3_sheet --help");
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
    if (status == H3_OK && !done) status = run(&r);
    return h3_exit("h3_sheet", status);
}
