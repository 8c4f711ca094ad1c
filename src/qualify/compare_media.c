#include "qualify/compare_media.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "media/picture_metrics.h"
#include "media/sound_metrics.h"

const char *h3_media_limit_subject(int limit) { return limit == H3_LIMIT_PSNR_GLOBAL || limit == H3_LIMIT_SSIM_MEAN ? "picture" : "sound"; }

static void judge(h3_compare_media *out, int limit, double value, int identical, const h3_acceptance *acceptance)
{
    h3_judged *judged = &out->judged[limit];
    *judged = (h3_judged){value, acceptance->limit[limit], h3_limit_margin(acceptance, limit, value), identical, h3_limit_holds(acceptance, limit, value)};
}

/* --- preconditions ----------------------------------------------------------------------------------------------------- */

static h3_status need_equal(const char *what, int64_t reference, int64_t candidate)
{
    if (reference == candidate) return H3_OK;
    return h3_error(H3_INTEGRITY, "the provider has %lld %s, the candidate %lld, so nothing is comparable; run h3_generate again for the side that is out of date",
                    (long long)reference, what, (long long)candidate);
}

static h3_status check(const h3_media *r, const h3_media *c)
{
    H3_TRY(need_equal("frames", r->frames, c->frames));
    H3_TRY(need_equal("rows of pixels", r->height, c->height));
    H3_TRY(need_equal("columns of pixels", r->width, c->width));
    H3_TRY(need_equal("channels of sound", r->sound.channels, c->sound.channels));
    H3_TRY(need_equal("samples of sound", r->sound.frames, c->sound.frames));
    H3_TRY(need_equal("samples a second", r->sound.rate, c->sound.rate));
    if (r->frames < 1 || r->rgb == NULL || c->rgb == NULL) return h3_error(H3_FAILED, "an empty comparison: there is no frame");
    if (r->sound.frames < 1 || r->sound.samples == NULL || c->sound.samples == NULL) return h3_error(H3_FAILED, "an empty comparison: there is no sample of sound");
    return H3_OK;
}

/* --- the reference against itself ---------------------------------------------------------------------------------------- */

static h3_status control_failed(const char *what)
{
    return h3_error(H3_FAILED, "self-control: the %s metrics find a difference between the reference and itself; nothing that they say counts", what);
}

static h3_status control(const h3_media *r)
{
    h3_picture_metrics picture;
    h3_sound_metrics sound;
    H3_TRY(h3_picture_metrics_compute(&picture, r->rgb, r->rgb, r->frames, r->height, r->width));
    const int moving = picture.count < 2 || (picture.temporal_rmse == 0.0 && picture.temporal_rmse_max == 0.0);
    const int same = picture.identical_frames == r->frames && isinf(picture.psnr_global) && picture.ssim_mean == 1.0 && picture.ssim_min == 1.0 && moving &&
                     picture.max_abs_diff == 0;
    h3_picture_metrics_free(&picture);
    if (!same) return control_failed("picture");
    H3_TRY(h3_sound_compare(&sound, &r->sound, &r->sound));
    const h3_sound_distance *d = &sound.pooled;
    return d->identical && d->lsd_db == 0.0 && d->max_abs_diff == 0.0 && d->correlation.value == 1.0 ? H3_OK : control_failed("sound");
}

h3_status h3_compare_media_repeat(int *repeated, const cJSON *provider, int index)
{
    static const char *const names[] = {"video_rows", "audio_rows"};
    const cJSON *repeat = cJSON_GetObjectItemCaseSensitive(provider, "repeat"), *final = cJSON_GetObjectItemCaseSensitive(repeat, "final");
    const cJSON *seed = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(provider, "seeds"), index), *again = cJSON_GetArrayItem(final, index);
    *repeated = 0;
    if (!(cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(repeat, "repeats")) >= 1.0)) return H3_OK;
    int same = cJSON_Compare(cJSON_GetObjectItemCaseSensitive(seed, "seed"), cJSON_GetObjectItemCaseSensitive(again, "seed"), 1);
    for (int i = 0; i < 2; i++)
        same = same && cJSON_Compare(cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(seed, "final"), names[i]),
                                     cJSON_GetObjectItemCaseSensitive(again, names[i]), 1);
    if (!same) return h3_error(H3_FAILED, "self-control: the provider's repeat of seed number %d ended with other latents; run h3_generate --side provider --repeat again", index);
    *repeated = 1;
    return H3_OK;
}

/* --- one seed ------------------------------------------------------------------------------------------------------------ */

/* Frames that are blended of two clips (17k .. 17k+4): where a seam would show first. */
static void add_seams(cJSON *video, int64_t count)
{
    enum { CLIP = 17, BLENDED = 5 };
    cJSON *list = cJSON_AddArrayToObject(video, "seam_frames");
    for (int64_t t = CLIP; t < count; t++)
        if (t % CLIP < BLENDED) cJSON_AddItemToArray(list, cJSON_CreateNumber((double)t));
}

static h3_status compare_pictures(h3_compare_media *out, const h3_media *r, const h3_media *c, const h3_acceptance *acceptance)
{
    h3_picture_metrics m;
    H3_TRY(h3_picture_metrics_compute(&m, r->rgb, c->rgb, r->frames, r->height, r->width));
    judge(out, H3_LIMIT_PSNR_GLOBAL, m.psnr_global, m.identical_frames == m.count, acceptance);
    judge(out, H3_LIMIT_SSIM_MEAN, m.ssim_mean, m.identical_frames == m.count, acceptance);
    h3_status status = h3_picture_metrics_json(&out->video, &m);
    h3_picture_metrics_free(&m);
    if (status == H3_OK) add_seams(out->video, r->frames);
    return status;
}

static h3_status compare_sounds(h3_compare_media *out, const h3_media *r, const h3_media *c, const h3_acceptance *acceptance)
{
    h3_sound_metrics m;
    H3_TRY(h3_sound_compare(&m, &r->sound, &c->sound));
    const h3_sound_distance *d = &m.pooled;
    judge(out, H3_LIMIT_AUDIO_SNR, d->identical ? INFINITY : d->snr_db.known ? d->snr_db.value : NAN, d->identical, acceptance);
    judge(out, H3_LIMIT_AUDIO_LSD, d->lsd_db, d->identical, acceptance);
    return h3_sound_metrics_json(&out->audio, &m);
}

static h3_status compare_all(h3_compare_media *out, const h3_media *r, const h3_media *c, const h3_acceptance *acceptance)
{
    H3_TRY(control(r));
    H3_TRY(compare_pictures(out, r, c, acceptance));
    H3_TRY(compare_sounds(out, r, c, acceptance));
    out->picture_ok = out->judged[H3_LIMIT_PSNR_GLOBAL].ok && out->judged[H3_LIMIT_SSIM_MEAN].ok;
    out->sound_ok = out->judged[H3_LIMIT_AUDIO_SNR].ok && out->judged[H3_LIMIT_AUDIO_LSD].ok;
    return H3_OK;
}

h3_status h3_compare_media_run(h3_compare_media *out, const h3_media *reference, const h3_media *candidate, const h3_media_facts facts[2],
                               const h3_acceptance *acceptance)
{
    *out = (h3_compare_media){0};
    H3_TRY(check(reference, candidate));
    for (int side = 0; side < 2; side++) {
        memcpy(out->sha256[side][0], facts[side].rgb_sha256, H3_SHA256_HEX);
        memcpy(out->sha256[side][1], facts[side].sound_sha256, H3_SHA256_HEX);
    }
    h3_status status = compare_all(out, reference, candidate, acceptance);
    if (status != H3_OK) h3_compare_media_free(out);
    return status;
}

void h3_compare_media_free(h3_compare_media *media)
{
    cJSON_Delete(media->video);
    cJSON_Delete(media->audio);
    *media = (h3_compare_media){0};
}

/* --- JSON ------------------------------------------------------------------------------------------------------------------ */

static void add_real(cJSON *object, const char *key, double value)
{
    if (isfinite(value)) cJSON_AddNumberToObject(object, key, value);
    else cJSON_AddNullToObject(object, key);
}

h3_status h3_judged_json(cJSON **out, const h3_judged judged[H3_MEDIA_LIMITS])
{
    cJSON *json = cJSON_CreateObject();
    for (int i = 0; i < H3_MEDIA_LIMITS; i++) {
        cJSON *item = cJSON_AddObjectToObject(json, h3_limits[i].name);
        add_real(item, "value", judged[i].value);
        cJSON_AddBoolToObject(item, "identical", judged[i].identical);
        cJSON_AddNumberToObject(item, "limit", judged[i].limit);
        add_real(item, "margin", judged[i].margin);
        cJSON_AddBoolToObject(item, "ok", judged[i].ok);
        if (cJSON_GetArraySize(item) == 5) continue;
        cJSON_Delete(json);
        return h3_error(H3_ENVIRONMENT, "out of memory for the comparison");
    }
    *out = json;
    return H3_OK;
}

h3_status h3_compare_controls_json(cJSON **out, const h3_compare_media *media)
{
    cJSON *json = cJSON_CreateObject(), *itself = cJSON_AddObjectToObject(json, "reference_itself");
    cJSON_AddBoolToObject(itself, "identical", 1);
    cJSON_AddNumberToObject(itself, "ssim", 1);
    cJSON_AddNumberToObject(itself, "temporal_rmse", 0);
    cJSON_AddNumberToObject(itself, "lsd_db", 0);
    if (media->repeated) {
        cJSON *repeat = cJSON_AddObjectToObject(json, "reference_repeat");
        cJSON_AddStringToObject(repeat, "compared", "digests of the latents that are decoded");
        cJSON_AddBoolToObject(repeat, "identical", 1);
    } else {
        cJSON_AddNullToObject(json, "reference_repeat");
    }
    *out = json;
    if (cJSON_GetArraySize(json) == 2 && cJSON_GetArraySize(itself) == 4) return H3_OK;
    cJSON_Delete(json);
    return h3_error(H3_ENVIRONMENT, "out of memory for the comparison");
}
