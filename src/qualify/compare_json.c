/* compare.json, and a report of its own for every seed. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "qualify/compare.h"
#include "qualify/compare_media.h"

static void add_latent(cJSON *parent, const char *key, const h3_compare_figures *figures, double limit)
{
    cJSON *json = cJSON_AddObjectToObject(parent, key);
    cJSON_AddNumberToObject(json, "error", figures->latent_error);
    cJSON_AddNumberToObject(json, "limit", limit);
    cJSON_AddNumberToObject(json, "margin", figures->margin);
    cJSON_AddBoolToObject(json, "ok", figures->ok);
}

static void add_velocity(cJSON *parent, const char *key, const h3_compare_figures *figures)
{
    cJSON *json = cJSON_AddObjectToObject(parent, key);
    h3_json_add_integer(json, "worst_step", figures->worst_step);
    cJSON_AddNumberToObject(json, "worst_error", figures->velocity_error[figures->worst_step]);
    cJSON *errors = cJSON_AddArrayToObject(json, "errors");
    for (int64_t step = 0; step < figures->steps; step++)
        cJSON_AddItemToArray(errors, cJSON_CreateNumber(figures->velocity_error[step]));
}

/* --- pictures and sound ------------------------------------------------------------------------------------------------- */

void h3_compare_seed_path(char out[96], int64_t seed) { snprintf(out, 96, "data/compare/seed%lld.json", (long long)seed); }

static h3_status add_made(cJSON *parent, const char *key, h3_status status, cJSON *made)
{
    if (status == H3_OK && !cJSON_AddItemToObject(parent, key, made)) {
        cJSON_Delete(made);
        return h3_error(H3_ENVIRONMENT, "out of memory for the comparison");
    }
    return status;
}

static h3_status add_judged(cJSON *parent, const h3_compare_media *media)
{
    cJSON *made;
    h3_status status = h3_judged_json(&made, media->judged);
    H3_TRY(add_made(parent, "judged", status, made));
    status = h3_compare_controls_json(&made, media);
    return add_made(parent, "controls", status, made);
}

static void add_hashes(cJSON *parent, const h3_compare_media *media)
{
    static const char *const sides[] = {"ref", "cand"};
    cJSON *json = cJSON_AddObjectToObject(parent, "hashes");
    for (int side = 0; side < 2; side++) {
        cJSON *item = cJSON_AddObjectToObject(json, sides[side]);
        cJSON_AddStringToObject(item, "video", media->sha256[side][0]);
        cJSON_AddStringToObject(item, "audio", media->sha256[side][1]);
    }
}

static h3_status fill_seed(cJSON *json, const h3_compare_seed *seed)
{
    const h3_compare_media *media = seed->media;
    cJSON_AddStringToObject(json, "schema", "h3-compare-seed-v1");
    h3_json_add_integer(json, "seed", seed->seed);
    cJSON_AddBoolToObject(json, "picture_ok", media->picture_ok);
    cJSON_AddBoolToObject(json, "sound_ok", media->sound_ok);
    cJSON *precondition = cJSON_AddObjectToObject(json, "precondition");
    cJSON_AddBoolToObject(precondition, "ok", 1);
    cJSON_AddArrayToObject(precondition, "mismatches");
    H3_TRY(add_judged(json, media));
    add_hashes(json, media);
    H3_TRY(add_made(json, "video", H3_OK, cJSON_Duplicate(media->video, 1)));
    return add_made(json, "audio", H3_OK, cJSON_Duplicate(media->audio, 1));
}

h3_status h3_compare_seed_json(cJSON **out, const h3_compare_seed *seed)
{
    cJSON *json = cJSON_CreateObject();
    *out = NULL;
    h3_status status = fill_seed(json, seed);
    if (status == H3_OK) *out = json;
    else cJSON_Delete(json);
    return status;
}

/* The same without every frame's figures: of these a curve. */
static h3_status add_media(cJSON *parent, const h3_compare_seed *seed)
{
    const h3_compare_media *media = seed->media;
    char path[96];
    const cJSON *frame;
    if (media == NULL) return H3_OK;
    cJSON *json = cJSON_AddObjectToObject(parent, "media");
    h3_compare_seed_path(path, seed->seed);
    cJSON_AddBoolToObject(json, "picture_ok", media->picture_ok);
    cJSON_AddBoolToObject(json, "sound_ok", media->sound_ok);
    cJSON_AddStringToObject(json, "report", path);
    H3_TRY(add_judged(json, media));
    cJSON *video = cJSON_Duplicate(media->video, 1);
    H3_TRY(add_made(json, "video", H3_OK, video));
    cJSON *frames = cJSON_DetachItemFromObjectCaseSensitive(video, "per_frame"), *psnr = cJSON_AddArrayToObject(video, "psnr"), *ssim = cJSON_AddArrayToObject(video, "ssim_frames");
    cJSON_ArrayForEach(frame, frames) {
        cJSON_AddItemToArray(psnr, cJSON_Duplicate(cJSON_GetObjectItemCaseSensitive(frame, "psnr"), 1));
        cJSON_AddItemToArray(ssim, cJSON_Duplicate(cJSON_GetObjectItemCaseSensitive(frame, "ssim"), 1));
    }
    cJSON_Delete(frames);
    return add_made(json, "audio", H3_OK, cJSON_Duplicate(media->audio, 1));
}

/* What else there is to be said of the worst: place of the number, whether more is better, the flag that makes its null the best. */
static const struct { const char *name, *part, *field, *inner;
    int more_is_better, null_is_best;
} summary_figures[] = {
    {"psnr_global", "video", "psnr_global", NULL, 1, 1},      {"psnr_min", "video", "psnr_min", NULL, 1, 1},
    {"psnr_mean_finite", "video", "psnr_mean_finite", NULL, 1, 1}, {"ssim_mean", "video", "ssim", "mean", 1, 0},
    {"ssim_min", "video", "ssim", "min", 1, 0},               {"ssim_luma_mean", "video", "ssim_luma", "mean", 1, 0},
    {"ssim_luma_min", "video", "ssim_luma", "min", 1, 0},     {"temporal_rmse", "video", "temporal_rmse", NULL, 0, 0},
    {"temporal_rmse_max", "video", "temporal_rmse_max", NULL, 0, 0}, {"max_abs_diff", "video", "max_abs_diff", NULL, 0, 0},
    {"frac_diff", "video", "frac_diff", NULL, 0, 0},          {"audio_snr_db", "audio", "snr_db", NULL, 1, 1},
    {"audio_lsd_db", "audio", "lsd_db", NULL, 0, 0},          {"audio_worst_lsd_db", "audio", "worst_lsd_db", NULL, 0, 0},
    {"audio_rmse", "audio", "rmse", NULL, 0, 0},              {"audio_max_abs_diff", "audio", "max_abs_diff", NULL, 0, 0},
    {"audio_correlation", "audio", "correlation", NULL, 1, 0},
};

/* How bad: NaN for a figure that does not exist, which is the worst. */
static double badness(const cJSON *report, int f)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(report, summary_figures[f].field);
    if (summary_figures[f].inner != NULL) item = cJSON_GetObjectItemCaseSensitive(item, summary_figures[f].inner);
    if (cJSON_IsNumber(item)) return summary_figures[f].more_is_better ? -item->valuedouble : item->valuedouble;
    return summary_figures[f].null_is_best && cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(report, "identical")) ? -INFINITY : NAN;
}

/* Of every figure the worst seed's. */
static void add_summary(cJSON *json, const h3_compare_seed *seeds, size_t count)
{
    cJSON *summary = cJSON_AddObjectToObject(json, "worst_figures");
    for (int f = 0; f < (int)(sizeof summary_figures / sizeof *summary_figures); f++) {
        size_t at = 0;
        double worst = 0.0;
        for (size_t i = 0; i < count; i++) {
            double bad = badness(strcmp(summary_figures[f].part, "video") == 0 ? seeds[i].media->video : seeds[i].media->audio, f);
            if (i > 0 && !(isnan(bad) ? !isnan(worst) : bad > worst)) continue;
            at = i;
            worst = bad;
        }
        cJSON *item = cJSON_AddObjectToObject(summary, summary_figures[f].name);
        h3_json_add_integer(item, "seed", seeds[at].seed);
        cJSON_AddNumberToObject(item, "value", summary_figures[f].more_is_better ? -worst : worst); /* NaN and infinity print as null */
        cJSON_AddBoolToObject(item, "identical", isinf(worst));
    }
}

static void add_worst_media(cJSON *json, const h3_compare_seed *seeds, size_t count)
{
    cJSON *worst = cJSON_AddObjectToObject(json, "worst_media");
    for (int i = 0; i < H3_MEDIA_LIMITS; i++) {
        const h3_compare_seed *seed = h3_compare_worst_media(seeds, count, i);
        const h3_judged *judged = &seed->media->judged[i];
        cJSON *item = cJSON_AddObjectToObject(worst, h3_limits[i].name);
        h3_json_add_integer(item, "seed", seed->seed);
        cJSON_AddStringToObject(item, "subject", h3_media_limit_subject(i));
        cJSON_AddNumberToObject(item, "value", judged->value);
        cJSON_AddBoolToObject(item, "identical", judged->identical);
        cJSON_AddNumberToObject(item, "limit", judged->limit);
        cJSON_AddNumberToObject(item, "margin", judged->margin);
        cJSON_AddBoolToObject(item, "ok", judged->ok);
    }
    add_summary(json, seeds, count);
}

/* --- compare.json -------------------------------------------------------------------------------------------------------- */

static cJSON *seed_json(const h3_compare_seed *seed, double limit)
{
    cJSON *json = cJSON_CreateObject();
    h3_json_add_integer(json, "seed", seed->seed);
    cJSON_AddBoolToObject(json, "ok", seed->ok);
    cJSON *latent = cJSON_AddObjectToObject(json, "latent"), *velocity = cJSON_AddObjectToObject(json, "velocity");
    add_latent(latent, "video", &seed->video, limit);
    add_latent(latent, "audio", &seed->audio, limit);
    add_velocity(velocity, "video", &seed->video);
    add_velocity(velocity, "audio", &seed->audio);
    return json;
}

/* What is known of the limits that this comparison has no figures for. */
static void add_limits(cJSON *json, const h3_acceptance *acceptance, int decoded)
{
    cJSON *limits = cJSON_AddObjectToObject(json, "limits"), *unjudged = cJSON_AddArrayToObject(json, "not_judged");
    for (int i = 0; i < H3_LIMIT_COUNT; i++) {
        if (i == H3_LIMIT_LATENT_ERROR || decoded) cJSON_AddNumberToObject(limits, h3_limits[i].name, acceptance->limit[i]);
        else cJSON_AddItemToArray(unjudged, cJSON_CreateString(h3_limits[i].name));
    }
}

static void add_worst(cJSON *json, const h3_compare_seed *seed, double limit)
{
    const h3_compare_figures *figures = seed->worst_is_audio ? &seed->audio : &seed->video;
    cJSON *worst = cJSON_AddObjectToObject(json, "worst");
    h3_json_add_integer(worst, "seed", seed->seed);
    cJSON_AddStringToObject(worst, "modality", seed->worst_is_audio ? "audio" : "video");
    cJSON_AddNumberToObject(worst, "latent_error", figures->latent_error);
    cJSON_AddNumberToObject(worst, "limit", limit);
    cJSON_AddNumberToObject(worst, "margin", figures->margin);
}

h3_status h3_compare_json(cJSON **out, int *ok, const h3_compare_seed *seeds, size_t count, const cJSON *report,
                          const h3_acceptance *acceptance)
{
    static const char *const repeated[] = {"plan_sha256", "contract_sha256", "overrides", "layout", "sampling", "conditioning", "decoders"};
    double limit = acceptance->limit[H3_LIMIT_LATENT_ERROR];
    if (count == 0) return h3_error(H3_FAILED, "an empty comparison: no seed was compared");
    cJSON *json = cJSON_CreateObject();
    if (json == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for the comparison");
    *ok = 1;
    int decoded = 1;
    for (size_t i = 0; i < count; i++) *ok = *ok && seeds[i].ok;
    for (size_t i = 0; i < count; i++) decoded = decoded && seeds[i].media != NULL;
    cJSON_AddStringToObject(json, "schema", "h3-compare-v1");
    cJSON_AddStringToObject(json, "verdict", *ok ? "passed" : "failed");
    add_worst(json, &seeds[0], limit);
    add_limits(json, acceptance, decoded);
    if (decoded) add_worst_media(json, seeds, count);
    for (size_t i = 0; i < sizeof repeated / sizeof *repeated; i++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(report, repeated[i]);
        if (item != NULL) cJSON_AddItemToObject(json, repeated[i], cJSON_Duplicate(item, 1));
    }
    cJSON *preconditions = cJSON_AddObjectToObject(json, "equal_on_both_sides");
    cJSON_AddBoolToObject(preconditions, "noise", 1);
    cJSON_AddBoolToObject(preconditions, "sigmas", 1);
    cJSON_AddBoolToObject(preconditions, "shapes", 1);
    cJSON *list = cJSON_AddArrayToObject(json, "seeds");
    h3_status status = H3_OK;
    for (size_t i = 0; i < count && status == H3_OK; i++) {
        cJSON *seed = seed_json(&seeds[i], limit);
        cJSON_AddItemToArray(list, seed);
        status = add_media(seed, &seeds[i]);
    }
    if (status == H3_OK) *out = json;
    else cJSON_Delete(json);
    return status;
}
