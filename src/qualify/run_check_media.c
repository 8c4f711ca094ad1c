/* Pictures and sound: the generation's files against its report, the comparison's figures against each other and its verdict. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "qualify/compare.h"
#include "qualify/generation_store.h"
#include "qualify/media_evidence.h"
#include "qualify/run_check_internal.h"

/* --- one side ---------------------------------------------------------------------------------------------------------- */

h3_status h3_check_seed_media(h3_run_check *check, int stage, const cJSON *report, const cJSON *seed, const char *where)
{
    const cJSON *json;
    const char *side = stage == H3_STAGE_PROVIDER ? "provider" : "candidate", *said;
    int64_t number;
    char folder[96];
    h3_media_facts facts;
    h3_media media;
    const cJSON *decoders = cJSON_GetObjectItemCaseSensitive(report, "decoders");
    if ((check->plan.decoders != NULL) != (decoders != NULL))
        return h3_error(H3_INTEGRITY, "%s %s decoders, its plan says otherwise; run h3_generate again", where, decoders != NULL ? "has" : "has no");
    if (decoders == NULL) return H3_OK;
    H3_TRY(h3_json_integer(&number, seed, "seed", 0, UINT32_MAX, where, H3_INTEGRITY));
    h3_media_folder(folder, side, number);
    H3_TRY(h3_json_object(&json, seed, "media", where, H3_INTEGRITY));
    H3_TRY(h3_json_string(&said, json, "folder", where, H3_INTEGRITY));
    if (strcmp(said, folder) != 0) return h3_error(H3_INTEGRITY, "%s: the media of seed %lld are said to lie in %.200s; run h3_generate again", where, (long long)number, said);
    H3_TRY(h3_media_facts_read(&facts, json, where));
    H3_TRY(h3_media_read(&media, check->view.folder, folder, &check->view.stages[stage].outputs, &facts, NULL));
    h3_media_free(&media);
    check->media++;
    return H3_OK;
}

/* --- the comparison -------------------------------------------------------------------------------------------------------- */

/* A judged figure and the number of the report that it is: the place of its value. */
static const struct { const char *part, *field, *inner;
} places[H3_MEDIA_LIMITS] = {[H3_LIMIT_PSNR_GLOBAL] = {"video", "psnr_global", NULL},
                             [H3_LIMIT_SSIM_MEAN] = {"video", "ssim", "mean"},
                             [H3_LIMIT_AUDIO_SNR] = {"audio", "snr_db", NULL},
                             [H3_LIMIT_AUDIO_LSD] = {"audio", "lsd_db", NULL}};

static h3_status disagrees(const char *what) { return h3_error(H3_INTEGRITY, "compare.json: %s; rerun h3_compare", what); }

/* Holds by its own numbers: value within limit, or null because there is no difference. */
static int figure_holds(const cJSON *media, int limit, double bound)
{
    const cJSON *part = cJSON_GetObjectItemCaseSensitive(media, places[limit].part), *value = cJSON_GetObjectItemCaseSensitive(part, places[limit].field);
    h3_acceptance acceptance = {{0}};
    acceptance.limit[limit] = bound;
    if (places[limit].inner != NULL) value = cJSON_GetObjectItemCaseSensitive(value, places[limit].inner);
    if (cJSON_IsNumber(value)) return h3_limit_holds(&acceptance, limit, value->valuedouble);
    return cJSON_IsNull(value) && h3_limits[limit].at_least && cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(part, "identical"));
}

static h3_status check_judged(const cJSON *media, const cJSON *limits, int holds[2])
{
    const cJSON *judged = cJSON_GetObjectItemCaseSensitive(media, "judged");
    holds[0] = holds[1] = 1;
    for (int i = 0; i < H3_MEDIA_LIMITS; i++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(judged, h3_limits[i].name), *part = cJSON_GetObjectItemCaseSensitive(media, places[i].part);
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(part, places[i].field);
        double bound;
        if (places[i].inner != NULL) value = cJSON_GetObjectItemCaseSensitive(value, places[i].inner);
        H3_TRY(h3_json_number(&bound, limits, h3_limits[i].name, "compare.json", H3_INTEGRITY));
        int ok = figure_holds(media, i, bound);
        if (!cJSON_Compare(cJSON_GetObjectItemCaseSensitive(item, "value"), value, 1) || h3_number_differs(item, "limit", bound) ||
            cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(item, "ok")) != ok)
            return disagrees("a judged figure of pictures or sound is not the one that was measured, or not within its limit as it says");
        holds[i > H3_LIMIT_SSIM_MEAN] &= ok;
    }
    return H3_OK;
}

/* The seed's own file has the same figures, and those of every frame. */
static h3_status check_seed_file(const h3_run_check *check, const cJSON *seed, const cJSON *media)
{
    static const char *const parts[] = {"judged", "controls", "picture_ok", "sound_ok", "audio"};
    char path[96];
    cJSON *own;
    int same = 1;
    h3_compare_seed_path(path, (int64_t)cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(seed, "seed")));
    H3_TRY(h3_run_view_json(&own, &check->view, H3_STAGE_COMPARE, path));
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        same = same && cJSON_Compare(cJSON_GetObjectItemCaseSensitive(own, parts[i]), cJSON_GetObjectItemCaseSensitive(media, parts[i]), 1);
    for (int i = 0; i < H3_LIMIT_AUDIO_SNR; i++)
        same = same && cJSON_Compare(cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(own, "video"), places[i].field),
                                     cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(media, "video"), places[i].field), 1);
    cJSON_Delete(own);
    return same ? H3_OK : h3_error(H3_INTEGRITY, "%s and compare.json do not say the same; rerun h3_compare", path);
}

int h3_number_differs(const cJSON *object, const char *key, double value)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return !cJSON_IsNumber(item) || !(item->valuedouble == value);
}

h3_status h3_check_compare_media(const h3_run_check *check, const cJSON *seed, const cJSON *limits, int *holds)
{
    const cJSON *media = cJSON_GetObjectItemCaseSensitive(seed, "media");
    int parts[2];
    *holds = 1;
    if (check->plan.decoders == NULL && media == NULL) return H3_OK;
    if (check->plan.decoders == NULL || media == NULL) return disagrees("its plan has decoders and a seed no media, or the other way round");
    H3_TRY(check_judged(media, limits, parts));
    if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(media, "picture_ok")) != parts[0] || cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(media, "sound_ok")) != parts[1])
        return disagrees("what it says of picture or sound disagrees with its figures");
    if (!cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(media, "controls"), "reference_itself"), "identical")))
        return disagrees("it has no self-control of the reference");
    *holds = parts[0] && parts[1];
    return check_seed_file(check, seed, media);
}
