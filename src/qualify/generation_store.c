#include "qualify/generation_store.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include "base/json.h"
#include "qualify/generation_media.h"
#include "qualify/manifest.h"
#include "store/artifact.h"
#include "store/publish.h"

/* Datasets of a seed's artifact, in their order. */
enum { CONDITION, VIDEO_0, AUDIO_0, VELOCITY_VIDEO, VELOCITY_AUDIO, VIDEO_END, AUDIO_END, DATASETS };
static const char *const dataset_names[DATASETS] = {"condition_rows", "video_rows0", "audio_rows0", "velocity.video",
                                                    "velocity.audio", "video_rows",  "audio_rows"};

typedef char seed_digests[DATASETS][H3_SHA256_HEX];

void h3_generation_report_path(char out[64], const char *side) { snprintf(out, 64, "generate-%s.json", side); }

void h3_generation_artifact_path(char out[96], const char *side, int64_t seed)
{
    snprintf(out, 96, "data/generate/%s/seed%lld.h5", side, (long long)seed);
}

/* Rows first .. first+count-1 of a matrix. */
static h3_tensor row_range(const h3_tensor *rows, int64_t first, int64_t count)
{
    float *data = (float *)rows->data + first * rows->shape[1];
    return h3_tensor_view(data, H3_F32, 2, H3_SHAPE(count, rows->shape[1]));
}

static void datasets_of(h3_tensor out[DATASETS], const h3_sampling *sampling, const h3_flow *flow)
{
    const h3_layout *layout = &sampling->inputs->layout;
    out[CONDITION] = row_range(&flow->start_video, 0, layout->condition_rows);
    out[VIDEO_0] = row_range(&flow->start_video, layout->condition_rows, layout->target_rows);
    out[AUDIO_0] = flow->start_audio;
    out[VELOCITY_VIDEO] = flow->velocity_video;
    out[VELOCITY_AUDIO] = flow->velocity_audio;
    out[VIDEO_END] = row_range(&flow->video, layout->condition_rows, layout->target_rows);
    out[AUDIO_END] = flow->audio;
}

static h3_status publish_seed(const h3_generation_record *record, const h3_sampling *sampling, const h3_flow *flow, h3_run *run,
                              seed_digests digests)
{
    h3_artifact_writer *writer;
    h3_tensor datasets[DATASETS];
    char relative[96], path[H3_PATH_MAX], producer[64], sha256[H3_SHA256_HEX];
    int64_t size;
    h3_status status = H3_OK;
    if (sampling->ranks != NULL) h3_ranks_beat(sampling->ranks, "publishing a seed", -1);
    datasets_of(datasets, sampling, flow);
    h3_generation_artifact_path(relative, record->side, flow->seed);
    snprintf(producer, sizeof producer, "h3_generate %s", record->side);
    H3_TRY(h3_run_place(path, record->run_folder, relative));
    H3_TRY(h3_artifact_create(&writer, producer));
    for (int i = 0; i < DATASETS && status == H3_OK; i++) {
        digests[i][0] = 0;
        if (h3_tensor_count(&datasets[i]) > 0) status = h3_artifact_add(writer, dataset_names[i], &datasets[i], digests[i]);
    }
    if (status != H3_OK) {
        h3_artifact_discard(writer);
        return status;
    }
    H3_TRY(h3_artifact_publish(writer, path, &size, sha256));
    return h3_run_output(run, relative, size, sha256);
}

static void add_digest(cJSON *object, const char *key, const char *digest)
{
    if (digest[0] != 0) cJSON_AddStringToObject(object, key, digest);
    else cJSON_AddNullToObject(object, key);
}

static cJSON *seed_json(const h3_sampling *sampling, const h3_flow *flow, const char *artifact, seed_digests digests)
{
    cJSON *json = cJSON_CreateObject();
    h3_json_add_integer(json, "seed", flow->seed);
    cJSON_AddStringToObject(json, "artifact", artifact);
    cJSON *noise = cJSON_AddObjectToObject(json, "noise");
    for (int i = CONDITION; i <= AUDIO_0; i++) add_digest(noise, dataset_names[i], digests[i]);
    cJSON *velocity = cJSON_AddObjectToObject(json, "velocity");
    cJSON *video = cJSON_AddArrayToObject(velocity, "video"), *audio = cJSON_AddArrayToObject(velocity, "audio");
    for (int64_t step = 0; step < sampling->steps; step++) {
        cJSON_AddItemToArray(video, cJSON_CreateString(flow->digests[step][0]));
        cJSON_AddItemToArray(audio, cJSON_CreateString(flow->digests[step][1]));
    }
    cJSON *final = cJSON_AddObjectToObject(json, "final");
    add_digest(final, "video_rows", digests[VIDEO_END]);
    add_digest(final, "audio_rows", digests[AUDIO_END]);
    return json;
}

static h3_status schedule_json(cJSON *sampling, const char *key, const h3_schedule *schedule, double shift)
{
    char sigma[H3_SHA256_HEX], timestep[H3_SHA256_HEX];
    H3_TRY(h3_schedule_sha256(sigma, timestep, schedule));
    cJSON *json = cJSON_AddObjectToObject(sampling, key);
    cJSON_AddNumberToObject(json, "shift", shift);
    cJSON_AddStringToObject(json, "sigma_sha256", sigma);
    cJSON_AddStringToObject(json, "timestep_sha256", timestep);
    return H3_OK;
}

static h3_status sampling_json(cJSON *report, const h3_generation *generation, const h3_sampling *s)
{
    cJSON *json = cJSON_AddObjectToObject(report, "sampling");
    h3_json_add_integer(json, "points", generation->points);
    h3_json_add_integer(json, "evaluations", s->steps);
    cJSON_AddNumberToObject(json, "condition_level", generation->condition_time);
    H3_TRY(schedule_json(json, "video", &s->inputs->video, generation->video_shift));
    return schedule_json(json, "audio", &s->inputs->audio, generation->audio_shift);
}

static h3_status conditioning_json(cJSON *report, const h3_generation *generation, const h3_generation_inputs *inputs)
{
    char digest[H3_SHA256_HEX];
    cJSON *json = cJSON_AddObjectToObject(report, "conditioning");
    if (generation->conditioning_file[0] != 0) {
        cJSON_AddStringToObject(json, "kind", "file");
        cJSON_AddStringToObject(json, "sha256", generation->conditioning_sha256);
    } else {
        cJSON_AddStringToObject(json, "kind", "synthetic");
        h3_json_add_integer(json, "seed", (int64_t)generation->conditioning_seed);
    }
    H3_TRY(h3_digest(digest, inputs->text.data, h3_tensor_bytes(&inputs->text)));
    cJSON_AddStringToObject(json, "text", digest);
    cJSON *latents = cJSON_AddArrayToObject(json, "condition");
    for (int32_t i = 0; i < inputs->condition_count; i++) {
        H3_TRY(h3_digest(digest, inputs->condition[i].data, h3_tensor_bytes(&inputs->condition[i])));
        cJSON_AddItemToArray(latents, cJSON_CreateString(digest));
    }
    if (inputs->canvas_sha256[0][0] == 0 && inputs->canvas_sha256[1][0] == 0) return H3_OK;
    cJSON *canvases = cJSON_AddArrayToObject(json, "canvas"); /* of keyframes that were pictures: their RGB bytes as they were encoded */
    for (int32_t i = 0; i < inputs->condition_count; i++)
        cJSON_AddItemToArray(canvases, inputs->canvas_sha256[i][0] != 0 ? cJSON_CreateString(inputs->canvas_sha256[i]) : cJSON_CreateNull());
    return H3_OK;
}

static void layout_json(cJSON *report, const h3_layout *layout)
{
    cJSON *json = cJSON_AddObjectToObject(report, "layout");
    h3_json_add_integer(json, "text", layout->args.text);
    h3_json_add_integer(json, "frames", layout->args.frames);
    h3_json_add_integer(json, "h", layout->args.height);
    h3_json_add_integer(json, "w", layout->args.width);
    h3_json_add_integer(json, "audio", layout->args.audio);
    h3_json_add_integer(json, "condition_rows", layout->condition_rows);
    h3_json_add_integer(json, "rows", layout->rows);
}

static cJSON *binding_json(const h3_generation_record *record, int32_t node)
{
    const h3_operator *op = record->operators[node];
    const h3_library *library =
        record->bindings != NULL ? &record->bindings->libraries[record->bindings->library_of[node]] : record->provider;
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "node", h3_nodes[node].name);
    cJSON_AddStringToObject(json, "operator", op->name);
    cJSON_AddStringToObject(json, "row", op->row);
    cJSON_AddStringToObject(json, "label", op->label);
    cJSON_AddStringToObject(json, "contract", op->contract);
    cJSON_AddStringToObject(json, "library_sha256", library->sha256);
    return json;
}

static h3_status operators_json(cJSON *report, const h3_generation_record *record)
{
    cJSON *identity;
    H3_TRY(h3_library_identity(record->provider, &identity));
    cJSON_AddItemToObject(report, "provider", identity);
    cJSON *libraries = cJSON_AddArrayToObject(report, "libraries");
    for (int32_t i = 0; record->bindings != NULL && i < record->bindings->library_count; i++) {
        H3_TRY(h3_library_identity(&record->bindings->libraries[i], &identity));
        cJSON_AddItemToArray(libraries, identity);
    }
    cJSON *bindings = cJSON_AddArrayToObject(report, "bindings");
    for (int32_t node = 0; node < H3_NODE_COUNT; node++) cJSON_AddItemToArray(bindings, binding_json(record, node));
    return H3_OK;
}

static h3_status identity_json(cJSON *report, const h3_generation_record *record)
{
    cJSON *fingerprint;
    cJSON_AddStringToObject(report, "schema", H3_GENERATION_SCHEMA);
    cJSON_AddStringToObject(report, "side", record->side);
    cJSON_AddStringToObject(report, "plan_sha256", record->plan->sha256);
    cJSON_AddStringToObject(report, "contract_sha256", record->generation->contract.sha256);
    cJSON_AddItemToObject(report, "overrides", cJSON_Duplicate(record->generation->overrides, 1));
    cJSON_AddItemToObject(report, "model", cJSON_Duplicate(record->model, 1));
    H3_TRY(h3_fingerprint(&fingerprint, record->provider));
    cJSON_AddItemToObject(report, "fingerprint", fingerprint);
    cJSON_AddStringToObject(report, "precision", "bf16");
    return operators_json(report, record);
}

/* What the repeats ended with: the comparison's control of the reference against itself. */
static h3_status repeat_rows_json(cJSON *list, const h3_sampling *sampling, const h3_flow *flow)
{
    h3_tensor rows[DATASETS];
    char digest[H3_SHA256_HEX];
    cJSON *json = cJSON_CreateObject();
    if (!cJSON_AddItemToArray(list, json)) return h3_error(H3_ENVIRONMENT, "out of memory for the report of a generation");
    datasets_of(rows, sampling, flow);
    h3_json_add_integer(json, "seed", flow->seed);
    for (int i = VIDEO_END; i <= AUDIO_END; i++) {
        H3_TRY(h3_digest(digest, rows[i].data, h3_tensor_bytes(&rows[i])));
        cJSON_AddStringToObject(json, dataset_names[i], digest);
    }
    return H3_OK;
}

/* How often each velocity digest was made again, and found equal. */
static h3_status repeat_json(cJSON *report, const h3_generation_record *record, const h3_sampling *sampling)
{
    cJSON *json = cJSON_AddObjectToObject(report, "repeat");
    cJSON_AddNumberToObject(json, "repeats", record->repeat ? 1 : 0);
    h3_json_add_integer(json, "equal_digests",
                        record->repeat ? (int64_t)record->generation->seed_count * sampling->steps * 2 : 0);
    if (record->media == NULL || !record->repeat) return H3_OK;
    cJSON *final = cJSON_AddArrayToObject(json, "final");
    for (size_t i = record->generation->seed_count; i < sampling->flow_count; i++) H3_TRY(repeat_rows_json(final, sampling, &sampling->flows[i]));
    return H3_OK;
}

/* A seed's pictures and sound: its facts go into the report, its files are outputs. */
static h3_status add_media(cJSON *json, const h3_generation_record *record, size_t index, h3_run *run)
{
    const h3_seed_media *media;
    char folder[96];
    cJSON *facts;
    if (record->media == NULL) return H3_OK;
    media = &record->media->seeds[index];
    h3_media_folder(folder, record->side, record->generation->seeds[index]);
    H3_TRY(h3_media_facts_json(&facts, &media->facts, folder));
    cJSON_AddItemToObject(json, "media", facts);
    for (size_t i = 0; i < media->files.count; i++) H3_TRY(h3_run_output(run, media->files.items[i].path, media->files.items[i].size, media->files.items[i].sha256));
    return H3_OK;
}

static h3_status fill_report(cJSON *report, const h3_generation_record *record, const h3_sampling *sampling, h3_run *run)
{
    H3_TRY(identity_json(report, record));
    layout_json(report, &sampling->inputs->layout);
    H3_TRY(sampling_json(report, record->generation, sampling));
    H3_TRY(conditioning_json(report, record->generation, sampling->inputs));
    if (record->decoders != NULL) cJSON_AddItemToObject(report, "decoders", cJSON_Duplicate(record->decoders, 1));
    H3_TRY(repeat_json(report, record, sampling));
    cJSON *seeds = cJSON_AddArrayToObject(report, "seeds");
    for (size_t i = 0; i < record->generation->seed_count; i++) {
        seed_digests digests;
        char artifact[96];
        H3_TRY(publish_seed(record, sampling, &sampling->flows[i], run, digests));
        h3_generation_artifact_path(artifact, record->side, sampling->flows[i].seed);
        cJSON *json = seed_json(sampling, &sampling->flows[i], artifact, digests);
        cJSON_AddItemToArray(seeds, json);
        H3_TRY(add_media(json, record, i, run));
    }
    return H3_OK;
}

h3_status h3_generation_publish(const h3_generation_record *record, const h3_sampling *sampling, h3_run *run)
{
    char relative[64], path[H3_PATH_MAX], sha256[H3_SHA256_HEX];
    int64_t size;
    cJSON *report = cJSON_CreateObject();
    if (report == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for the report of a generation");
    h3_status status = fill_report(report, record, sampling, run);
    h3_generation_report_path(relative, record->side);
    if (status == H3_OK) status = h3_run_place(path, record->run_folder, relative);
    if (status == H3_OK) status = h3_publish_json(path, report, &size, sha256);
    if (status == H3_OK) status = h3_run_output(run, relative, size, sha256);
    cJSON_Delete(report);
    return status;
}

h3_status h3_generation_check_space(const h3_generation *generation, const h3_generation_inputs *inputs, const h3_media_shape *shape,
                                    const char *run_folder)
{
    const h3_layout *layout = &inputs->layout;
    struct statvfs fs;
    size_t evaluations = (size_t)generation->points, needed;
    size_t row_bytes = (size_t)(layout->video_rows * inputs->video_row + layout->audio_rows * inputs->audio_row) * sizeof(float);
    /* Velocities and rows of a seed, once in its artifact and once in the state. */
    H3_TRY(h3_size_multiply(row_bytes, 2 * (evaluations + 16), &needed));
    if (shape != NULL && __builtin_add_overflow(needed, h3_media_disk(shape), &needed)) needed = SIZE_MAX / H3_MAX_SEEDS;
    H3_TRY(h3_size_multiply(needed, generation->seed_count, &needed));
    if (statvfs(run_folder, &fs) != 0)
        return h3_error(H3_ENVIRONMENT, "%s: %s; choose another run folder", run_folder, strerror(errno));
    size_t available = (size_t)fs.f_bavail * fs.f_frsize;
    if (available >= needed) return H3_OK;
    return h3_error(H3_ENVIRONMENT,
                    "%s: the generation needs about %zu MB of disk, %zu MB are free; free some or choose another run folder",
                    run_folder, needed >> 20, available >> 20);
}

static int lists_library(const cJSON *libraries, const char *sha256)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, libraries) {
        const cJSON *listed = cJSON_GetObjectItemCaseSensitive(item, "sha256");
        if (cJSON_IsString(listed) && strcmp(listed->valuestring, sha256) == 0) return 1;
    }
    return 0;
}

static int has_loaded(const h3_bindings *bindings, const char *sha256)
{
    for (int32_t i = 0; i < bindings->library_count; i++)
        if (strcmp(bindings->libraries[i].sha256, sha256) == 0) return 1;
    return 0;
}

h3_status h3_generation_check_gate(const cJSON *gate, const h3_bindings *bindings, const h3_library *provider, const char *where)
{
    const cJSON *libraries, *item, *qualified_with;
    const char *sha256, *file;
    H3_TRY(h3_json_array(&libraries, gate, "libraries", where, H3_INTEGRITY));
    for (int32_t i = 0; i < bindings->library_count; i++)
        if (!lists_library(libraries, bindings->libraries[i].sha256))
            return h3_error(
                H3_INTEGRITY,
                "%s did not qualify %s (SHA-256 %.12s...): the library is another one than then; run h3_candidate_gate again",
                where, bindings->libraries[i].path, bindings->libraries[i].sha256);
    cJSON_ArrayForEach(item, libraries) {
        H3_TRY(h3_json_string(&sha256, item, "sha256", where, H3_INTEGRITY));
        H3_TRY(h3_json_string(&file, item, "file", where, H3_INTEGRITY));
        if (!has_loaded(bindings, sha256))
            return h3_error(H3_INTEGRITY,
                            "%s qualified %s (SHA-256 %.12s...), which is not what runs now; run h3_candidate_gate again", where,
                            file, sha256);
    }
    H3_TRY(h3_json_object(&qualified_with, gate, "provider", where, H3_INTEGRITY));
    H3_TRY(h3_json_string(&sha256, qualified_with, "sha256", where, H3_INTEGRITY));
    if (strcmp(sha256, provider->sha256) == 0) return H3_OK;
    return h3_error(H3_INTEGRITY, "%s was made with another %s (SHA-256 %.12s..., now %.12s...); run h3_candidate_gate again",
                    where, provider->path, sha256, provider->sha256);
}
