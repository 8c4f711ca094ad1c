#include "qualify/compare.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "qualify/metrics.h"

/* --- preconditions ----------------------------------------------------------------------------------------------------- */

enum { FIELD_SIZE = 200 };

/* Puts the path of the first place where two values differ behind `path`; 0 when they are equal. */
static int differ(char path[FIELD_SIZE], const cJSON *a, const cJSON *b)
{
    size_t length = strlen(path);
    const cJSON *item;
    int index = 0;
    if (cJSON_Compare(a, b, 1)) return 0;
    cJSON_ArrayForEach(item, a) {
        const cJSON *other = cJSON_IsArray(a) ? cJSON_GetArrayItem(b, index) : cJSON_GetObjectItemCaseSensitive(b, item->string);
        path[length] = 0;
        if (cJSON_IsArray(a)) snprintf(path + length, FIELD_SIZE - length, "[%d]", index++);
        else snprintf(path + length, FIELD_SIZE - length, "%s%.60s", length ? "." : "", item->string);
        if (differ(path, item, other)) return 1;
    }
    path[length] = 0; /* of two containers the second has more, or these are plain values */
    return 1;
}

static h3_status require_equal(const char *field, const cJSON *provider, const cJSON *candidate)
{
    char path[FIELD_SIZE];
    snprintf(path, sizeof path, "%s", field);
    if (provider == NULL || candidate == NULL)
        return h3_error(H3_INTEGRITY, "the report of the %s has no %s; run h3_generate --side %s again",
                        provider == NULL ? "provider" : "candidate", field, provider == NULL ? "provider" : "candidate");
    if (!differ(path, provider, candidate)) return H3_OK;
    return h3_error(
        H3_INTEGRITY,
        "provider and candidate differ in %s, so nothing is comparable; run h3_generate again for the side that is out of date",
        path);
}

static h3_status compare_field(const cJSON *provider, const cJSON *candidate, const char *field, const char *name)
{
    return require_equal(name, cJSON_GetObjectItemCaseSensitive(provider, field),
                         cJSON_GetObjectItemCaseSensitive(candidate, field));
}

/* Sizes and formats of one seed's pictures and sound; what they show may differ. */
static h3_status compare_media_reports(const cJSON *provider, const cJSON *candidate, double seed)
{
    static const char *const fields[][2] = {{"video", "frames"},   {"video", "height"},  {"video", "width"}, {"video", "fps"},          {"video", "pixel_format"},
                                            {"audio", "channels"}, {"audio", "samples"}, {"audio", "rate"},  {"audio", "sample_format"}};
    const cJSON *p = cJSON_GetObjectItemCaseSensitive(provider, "media"), *c = cJSON_GetObjectItemCaseSensitive(candidate, "media");
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        char name[96];
        snprintf(name, sizeof name, "seed %.0f media.%s.%s", seed, fields[i][0], fields[i][1]);
        H3_TRY(compare_field(cJSON_GetObjectItemCaseSensitive(p, fields[i][0]), cJSON_GetObjectItemCaseSensitive(c, fields[i][0]), fields[i][1], name));
    }
    return H3_OK;
}

static h3_status compare_seed_reports(const cJSON *provider, const cJSON *candidate, int index, int decoded)
{
    char name[64];
    const double seed = cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(provider, "seed"));
    snprintf(name, sizeof name, "seeds[%d].seed", index);
    H3_TRY(compare_field(provider, candidate, "seed", name));
    snprintf(name, sizeof name, "seed %.0f noise", seed);
    H3_TRY(compare_field(provider, candidate, "noise", name));
    return decoded ? compare_media_reports(provider, candidate, seed) : H3_OK;
}

h3_status h3_compare_reports(const cJSON *provider, const cJSON *candidate)
{
    static const char *const fields[] = {"schema",      "plan_sha256", "contract_sha256", "overrides", "model",
                                         "fingerprint", "precision",   "layout",          "sampling",  "conditioning"};
    const cJSON *seeds, *others;
    int64_t evaluations;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) H3_TRY(compare_field(provider, candidate, fields[i], fields[i]));
    const int decoded = cJSON_GetObjectItemCaseSensitive(provider, "decoders") != NULL || cJSON_GetObjectItemCaseSensitive(candidate, "decoders") != NULL;
    if (decoded) H3_TRY(compare_field(provider, candidate, "decoders", "decoders"));
    H3_TRY(h3_json_array(&seeds, provider, "seeds", "the provider's report", H3_INTEGRITY));
    H3_TRY(h3_json_array(&others, candidate, "seeds", "the candidate's report", H3_INTEGRITY));
    int count = cJSON_GetArraySize(seeds);
    if (count != cJSON_GetArraySize(others))
        return h3_error(H3_INTEGRITY,
                        "the provider has %d seeds, the candidate %d, so nothing is comparable; run h3_generate again", count,
                        cJSON_GetArraySize(others));
    for (int i = 0; i < count; i++) H3_TRY(compare_seed_reports(cJSON_GetArrayItem(seeds, i), cJSON_GetArrayItem(others, i), i, decoded));
    const cJSON *sampling = cJSON_GetObjectItemCaseSensitive(provider, "sampling");
    H3_TRY(h3_json_integer(&evaluations, sampling, "evaluations", 0, INT64_MAX, "the provider's report", H3_INTEGRITY));
    if (count == 0 || evaluations == 0)
        return h3_error(H3_FAILED, "an empty comparison: %d seeds, %lld steps", count, (long long)evaluations);
    return H3_OK;
}

static h3_status find_dataset(const h3_tensor **out, const h3_artifact *artifact, const char *name, const cJSON *digests)
{
    const cJSON *digest = cJSON_GetObjectItemCaseSensitive(digests, name);
    H3_TRY(h3_artifact_need(out, artifact, name));
    if (digests == NULL) return H3_OK;
    for (size_t i = 0; i < artifact->count; i++) {
        if (strcmp(artifact->entries[i].name, name) != 0) continue;
        if (cJSON_IsString(digest) && strcmp(digest->valuestring, artifact->entries[i].digest) == 0) return H3_OK;
    }
    return h3_error(H3_INTEGRITY, "%s: %s has not the digest of its report; run h3_generate again", artifact->path, name);
}

h3_status h3_compare_tensors_of(h3_compare_tensors *out, const h3_artifact *artifact, const cJSON *report)
{
    const cJSON *noise = cJSON_GetObjectItemCaseSensitive(report, "noise"),
                *final = cJSON_GetObjectItemCaseSensitive(report, "final");
    memset(out, 0, sizeof *out);
    if (!cJSON_IsObject(noise) || !cJSON_IsObject(final))
        return h3_error(H3_INTEGRITY, "%s: its report has no digests; run h3_generate again", artifact->path);
    if (!cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(noise, "condition_rows")))
        H3_TRY(find_dataset(&out->condition_rows, artifact, "condition_rows", noise));
    H3_TRY(find_dataset(&out->video_rows0, artifact, "video_rows0", noise));
    H3_TRY(find_dataset(&out->audio_rows0, artifact, "audio_rows0", noise));
    H3_TRY(find_dataset(&out->velocity_video, artifact, "velocity.video", NULL));
    H3_TRY(find_dataset(&out->velocity_audio, artifact, "velocity.audio", NULL));
    H3_TRY(find_dataset(&out->video_rows, artifact, "video_rows", final));
    return find_dataset(&out->audio_rows, artifact, "audio_rows", final);
}

/* --- one seed ---------------------------------------------------------------------------------------------------------- */

static int same_shape(const h3_tensor *a, const h3_tensor *b)
{
    return a->dtype == b->dtype && a->rank == b->rank && memcmp(a->shape, b->shape, (size_t)a->rank * sizeof *a->shape) == 0;
}

static h3_status need_same_shape(int64_t seed, const char *name, const h3_tensor *a, const h3_tensor *b)
{
    if (same_shape(a, b)) return H3_OK;
    return h3_error(H3_INTEGRITY,
                    "seed %lld: %s has another shape on the two sides, so nothing is comparable; run h3_generate again",
                    (long long)seed, name);
}

static h3_status need_same_bytes(int64_t seed, const char *name, const h3_tensor *a, const h3_tensor *b)
{
    if ((a == NULL) != (b == NULL))
        return h3_error(H3_INTEGRITY, "seed %lld: %s is there on one side only; run h3_generate again", (long long)seed, name);
    if (a == NULL) return H3_OK;
    H3_TRY(need_same_shape(seed, name, a, b));
    if (memcmp(a->data, b->data, (size_t)h3_tensor_count(a) * h3_dtype_size(a->dtype)) == 0) return H3_OK;
    return h3_error(H3_INTEGRITY,
                    "seed %lld: provider and candidate start from other %s, so nothing is comparable; run h3_generate again",
                    (long long)seed, name);
}

static h3_status check_seed(int64_t seed, const h3_compare_tensors *p, const h3_compare_tensors *c)
{
    H3_TRY(need_same_bytes(seed, "condition_rows", p->condition_rows, c->condition_rows));
    H3_TRY(need_same_bytes(seed, "video_rows0", p->video_rows0, c->video_rows0));
    H3_TRY(need_same_bytes(seed, "audio_rows0", p->audio_rows0, c->audio_rows0));
    H3_TRY(need_same_shape(seed, "velocity.video", p->velocity_video, c->velocity_video));
    H3_TRY(need_same_shape(seed, "velocity.audio", p->velocity_audio, c->velocity_audio));
    H3_TRY(need_same_shape(seed, "video_rows", p->video_rows, c->video_rows));
    H3_TRY(need_same_shape(seed, "audio_rows", p->audio_rows, c->audio_rows));
    if (p->velocity_video->rank == 3 && p->velocity_audio->rank == 3 &&
        p->velocity_video->shape[0] == p->velocity_audio->shape[0])
        return H3_OK;
    return h3_error(H3_INTEGRITY,
                    "seed %lld: video and audio velocities are not [steps,rows,row] of equal steps; run h3_generate again",
                    (long long)seed);
}

static h3_status error_of(double *out, const h3_tensor *x, const h3_tensor *g)
{
    h3_figures figures;
    H3_TRY(h3_figures_of(&figures, x, g, 1, 1));
    *out = figures.error;
    return H3_OK;
}

/* Whether a is worse than b; NaN is worse than any number. */
static int worse(double a, double b) { return isnan(a) ? !isnan(b) : a > b; }

static h3_tensor step_of(const h3_tensor *velocity, int64_t step)
{
    int64_t count = velocity->shape[1] * velocity->shape[2];
    return h3_tensor_view((float *)velocity->data + step * count, velocity->dtype, 2, &velocity->shape[1]);
}

static h3_status compare_modality(h3_compare_figures *out, const h3_tensor *velocity, const h3_tensor *golden_velocity,
                                  const h3_tensor *rows, const h3_tensor *golden_rows, const h3_acceptance *acceptance)
{
    void *memory;
    if (golden_velocity->shape[0] < 1 || h3_tensor_count(golden_rows) < 1)
        return h3_error(H3_FAILED, "an empty comparison: no steps or no rows");
    H3_TRY(h3_alloc(&memory, (size_t)golden_velocity->shape[0], sizeof *out->velocity_error, "velocity errors"));
    out->velocity_error = memory;
    out->steps = golden_velocity->shape[0];
    H3_TRY(error_of(&out->latent_error, rows, golden_rows));
    out->margin = h3_limit_margin(acceptance, H3_LIMIT_LATENT_ERROR, out->latent_error);
    out->ok = h3_limit_holds(acceptance, H3_LIMIT_LATENT_ERROR, out->latent_error);
    for (int64_t step = 0; step < out->steps; step++) {
        h3_tensor x = step_of(velocity, step), g = step_of(golden_velocity, step);
        H3_TRY(error_of(&out->velocity_error[step], &x, &g));
        if (worse(out->velocity_error[step], out->velocity_error[out->worst_step])) out->worst_step = step;
        if (!isfinite(out->velocity_error[step])) out->ok = 0;
    }
    return H3_OK;
}

h3_status h3_compare_seed_run(h3_compare_seed *out, int64_t seed, const h3_compare_tensors *provider,
                              const h3_compare_tensors *candidate, const h3_acceptance *acceptance)
{
    memset(out, 0, sizeof *out);
    out->seed = seed;
    H3_TRY(check_seed(seed, provider, candidate));
    h3_status status = compare_modality(&out->video, candidate->velocity_video, provider->velocity_video, candidate->video_rows,
                                        provider->video_rows, acceptance);
    if (status == H3_OK)
        status = compare_modality(&out->audio, candidate->velocity_audio, provider->velocity_audio, candidate->audio_rows,
                                  provider->audio_rows, acceptance);
    if (status != H3_OK) {
        h3_compare_seed_free(out);
        return h3_error_context(status, "seed %lld", (long long)seed);
    }
    out->worst_is_audio = worse(out->audio.latent_error, out->video.latent_error);
    out->worst = out->worst_is_audio ? out->audio.latent_error : out->video.latent_error;
    out->ok = out->video.ok && out->audio.ok;
    return H3_OK;
}

void h3_compare_seed_media(h3_compare_seed *seed, h3_compare_media *media)
{
    seed->media = media;
    seed->ok = seed->ok && media->picture_ok && media->sound_ok;
}

void h3_compare_seed_free(h3_compare_seed *seed)
{
    if (seed->media != NULL) h3_compare_media_free(seed->media);
    free(seed->media);
    free(seed->video.velocity_error);
    free(seed->audio.velocity_error);
    memset(seed, 0, sizeof *seed);
}

void h3_compare_sort(h3_compare_seed *seeds, size_t count)
{
    for (size_t i = 1; i < count; i++) {
        h3_compare_seed moved = seeds[i];
        size_t k = i;
        for (; k > 0 && worse(moved.worst, seeds[k - 1].worst); k--) seeds[k] = seeds[k - 1];
        seeds[k] = moved;
    }
}

const h3_compare_seed *h3_compare_worst_media(const h3_compare_seed *seeds, size_t count, int limit)
{
    const h3_compare_seed *worst = NULL;
    for (size_t i = 0; i < count; i++)
        if (seeds[i].media != NULL && (worst == NULL || worse(-seeds[i].media->judged[limit].margin, -worst->media->judged[limit].margin))) worst = &seeds[i];
    return worst;
}
