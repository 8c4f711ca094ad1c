/* A video with sound for people, made from the evidence of a generated seed. The one program that links FFmpeg; nothing reads what it writes. */
#include <math.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "args.h"
#include "base/log.h"
#include "media/picture.h"
#include "media/wav.h"
#include "movie.h"
#include "qualify/generation.h"
#include "store/publish.h"
#include "tool.h"

static const char help[] =
    "h3_preview - an MP4 file for people of a generated seed; never evidence, never measured\n"
    "\n"
    "  h3_preview --evidence DIR --out FILE.mp4 [--encoder libx264|mpeg4]\n"
    "      DIR holds frames/frame_00000.png, ... and audio.wav\n"
    "  h3_preview --plan FILE --run DIR --side provider|candidate\n"
    "      as the plan's \"preview\" says: DIR/previews/SIDE-seed<N>.mp4 of every seed; with \"off\" nothing. The jobs call this\n"
    "  h3_preview --check\n"
    "      says which encoders there are\n"
    "\n"
    "  H.264 (libx264, CRF 18; without it MPEG-4), yuv420p, BT.709, 24 frames a second; AAC, 192 kb/s; the sound is not cut.\n"
    "  The file's comment has the SHA-256 of the samples that it shows.\n"
    "\n"
    "  exit codes: 0 written, or nothing to write; 1 sound that is not finite, 2 usage or plan, 3 damaged or missing evidence, 4 environment\n"
    "  example: bin/h3_preview --evidence evidence/demo/data/generate/provider/seed42 --out seed42.mp4\n";

typedef struct preview {
    const char *evidence, *out, *encoder, *plan, *run, *side;
    int check;
} preview;

/* --- one movie ------------------------------------------------------------------------------------------------------- */

typedef struct source {
    char frames[H3_PATH_MAX]; /* folder */
    int64_t count, height, width;
    h3_sound sound;
    EVP_MD_CTX *hash; /* of all frames */
} source;

static h3_status add_frame(h3_movie *movie, source *from, int64_t number)
{
    h3_picture picture;
    H3_TRY(h3_frame_read(&picture, from->frames, number, from->height, from->width));
    h3_status status = h3_movie_add(movie, picture.rgb);
    if (EVP_DigestUpdate(from->hash, picture.rgb, (size_t)(from->height * from->width) * 3) != 1) status = h3_error(H3_ENVIRONMENT, "cannot hash a frame");
    h3_picture_free(&picture);
    return status;
}

static h3_status comment_of(char out[256], source *from)
{
    unsigned char frames[EVP_MAX_MD_SIZE];
    char sound[H3_SHA256_HEX];
    int used = snprintf(out, 256, "frames ");
    H3_TRY(h3_sound_sha256(sound, &from->sound));
    if (EVP_DigestFinal_ex(from->hash, frames, NULL) != 1) return h3_error(H3_ENVIRONMENT, "cannot hash the frames");
    for (int i = 0; i < H3_SHA256_BYTES; i++) used += snprintf(out + used, 256 - (size_t)used, "%02x", frames[i]);
    snprintf(out + used, 256 - (size_t)used, " sound %s", sound);
    return H3_OK;
}

static h3_status fill_movie(h3_movie *movie, source *from)
{
    char comment[256];
    h3_progress progress;
    h3_status status = H3_OK;
    h3_progress_start(&progress, "preview", "frames", from->count);
    for (int64_t i = 0; i < from->count && status == H3_OK; i++) {
        status = add_frame(movie, from, i);
        h3_progress_add(&progress, 1);
    }
    h3_progress_end(&progress);
    H3_TRY(status);
    H3_TRY(comment_of(comment, from));
    return h3_movie_finish(movie, comment);
}

/* Decoders clamp to [-1, 1]. A little more can be heard, and is shown; what is far beyond no encoder takes. */
static h3_status check_loudness(const h3_sound *sound, const char *path)
{
    static const float loudest = 1000;
    for (int64_t i = 0; i < sound->channels * sound->frames; i++)
        if (isfinite(sound->samples[i]) && fabsf(sound->samples[i]) > loudest)
            return h3_error(H3_INTEGRITY, "%s: sample %lld of channel %lld is %.3g, and sound lies in [-1, 1]; the file is damaged, generate it again", path,
                            (long long)(i % sound->frames), (long long)(i / sound->frames), (double)sound->samples[i]);
    return H3_OK;
}

static h3_status open_source(source *from, const char *evidence)
{
    char path[H3_PATH_MAX];
    h3_picture first;
    H3_TRY(h3_path(from->frames, "%s/frames", evidence));
    H3_TRY(h3_frames_count(&from->count, from->frames));
    H3_TRY(h3_frame_read(&first, from->frames, 0, 0, 0));
    from->height = first.height;
    from->width = first.width;
    h3_picture_free(&first);
    H3_TRY(h3_path(path, "%s/audio.wav", evidence));
    H3_TRY(h3_wav_read(&from->sound, path));
    H3_TRY(check_loudness(&from->sound, path));
    from->hash = EVP_MD_CTX_new();
    if (from->hash == NULL || EVP_DigestInit_ex(from->hash, EVP_sha256(), NULL) != 1) return h3_error(H3_ENVIRONMENT, "cannot hash frames; no memory?");
    return H3_OK;
}

static h3_status write_movie(source *from, const char *temporary, const char *out, const char *encoder)
{
    h3_movie *movie;
    H3_TRY(h3_movie_open(&movie, temporary, out, encoder, from->height, from->width, &from->sound));
    h3_status status = fill_movie(movie, from);
    h3_movie_close(movie);
    return status;
}

/* The finished movie gets its name; until then its lock tells another preview of the same run, which clears the folder, that this one lives. */
static h3_status make_movie(source *from, const char *evidence, const char *out, const char *encoder)
{
    char temporary[H3_PATH_MAX];
    h3_pending pending;
    const double start = h3_clock();
    H3_TRY(open_source(from, evidence));
    H3_TRY(h3_pending_open(&pending, out));
    h3_status status = h3_pending_path(temporary, &pending);
    if (status == H3_OK) status = write_movie(from, temporary, out, encoder);
    if (status != H3_OK) h3_pending_abandon(&pending);
    else status = h3_pending_publish(&pending);
    H3_TRY(status);
    h3_say_timed(h3_clock() - start, "preview  %s  %lld frames %lldx%lld %s, %lld samples aac", out, (long long)from->count, (long long)from->width, (long long)from->height,
                 encoder, (long long)from->sound.frames);
    return H3_OK;
}

static h3_status preview_one(const char *evidence, const char *out, const char *encoder)
{
    source from = {0};
    h3_status status = make_movie(&from, evidence, out, encoder);
    h3_sound_free(&from.sound);
    EVP_MD_CTX_free(from.hash);
    return status;
}

/* --- a run ----------------------------------------------------------------------------------------------------------- */

/* Of a run whose plan decodes nothing there is nothing to show. */
static h3_status preview_seed(const preview *p, int64_t seed, int required, const char *encoder)
{
    char evidence[H3_PATH_MAX], out[H3_PATH_MAX], frames[H3_PATH_MAX];
    struct stat info;
    H3_TRY(h3_path(evidence, "%s/data/generate/%s/seed%lld", p->run, p->side, (long long)seed));
    H3_TRY(h3_path(frames, "%s/frames", evidence));
    H3_TRY(h3_path(out, "%s/previews/%s-seed%lld.mp4", p->run, p->side, (long long)seed));
    if (stat(frames, &info) != 0) {
        unlink(out); /* of an earlier attempt */
        if (required) return h3_error(H3_INTEGRITY, "%s is not there, and the plan requires a preview; run h3_generate --side %s first", frames, p->side);
        h3_say("preview  seed %lld of %s has no pictures", (long long)seed, p->side);
        return H3_OK;
    }
    H3_TRY(h3_path(frames, "%s/previews", p->run));
    H3_TRY(h3_make_folders(frames));
    H3_TRY(h3_clean_temporaries(frames, 0));
    return preview_one(evidence, out, encoder);
}

static h3_status preview_plan(const preview *p, const h3_plan *plan)
{
    const char *encoder;
    h3_generation generation;
    if (plan->preview == H3_PREVIEW_OFF || (plan->generation == NULL && plan->preview != H3_PREVIEW_REQUIRED)) return H3_OK;
    H3_TRY(h3_movie_encoder(&encoder, p->encoder));
    H3_TRY(h3_generation_read(&generation, plan));
    h3_status status = H3_OK;
    for (size_t i = 0; i < generation.seed_count && status == H3_OK; i++)
        status = preview_seed(p, generation.seeds[i], plan->preview == H3_PREVIEW_REQUIRED, encoder);
    h3_generation_free(&generation);
    return status;
}

/* What the plan wants only if it can be had fails no job. */
static h3_status preview_run(const preview *p)
{
    h3_plan plan;
    H3_TRY(h3_plan_read(&plan, p->plan));
    h3_status status = preview_plan(p, &plan);
    if (status != H3_OK && plan.preview == H3_PREVIEW_IF_AVAILABLE) {
        h3_complain("h3_preview", h3_error_text());
        h3_say("preview  not available (see above); the plan does not require it");
        status = H3_OK;
    }
    h3_plan_free(&plan);
    return status;
}

/* --- */

static h3_status run(const preview *p)
{
    const char *encoder;
    const int one = p->evidence != NULL && p->out != NULL, whole = p->plan != NULL && p->run != NULL && p->side != NULL;
    if (one + whole + p->check != 1 || (one ? p->plan || p->run || p->side : p->evidence || p->out) || (p->check && (p->plan || p->run || p->side)))
        return h3_error(H3_USAGE, "--evidence and --out, or --plan, --run and --side, or --check is needed; see h3_preview --help");
    if (whole && strcmp(p->side, "provider") != 0 && strcmp(p->side, "candidate") != 0) return h3_error(H3_USAGE, "--side %s: use provider or candidate", p->side);
    if (whole) return preview_run(p);
    H3_TRY(h3_movie_encoder(&encoder, p->encoder));
    if (one) return preview_one(p->evidence, p->out, encoder);
    h3_say("preview  video %s, sound aac", encoder);
    return H3_OK;
}

int main(int argc, char **argv)
{
    preview p = {0};
    int done;
    const h3_option options[] = {{"--evidence", &p.evidence, NULL}, {"--out", &p.out, NULL}, {"--encoder", &p.encoder, NULL}, {"--plan", &p.plan, NULL},
                                 {"--run", &p.run, NULL}, {"--side", &p.side, NULL}, {"--check", NULL, &p.check}};
    h3_status status = h3_options_parse(options, sizeof options / sizeof *options, argc, argv, help, &done);
    if (status == H3_OK && !done) status = run(&p);
    return h3_exit("h3_preview", status);
}
