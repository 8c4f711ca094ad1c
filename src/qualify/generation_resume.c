/* The state from which an interrupted generation goes on to the same bytes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "qualify/generation_store.h"
#include "qualify/manifest.h"
#include "store/artifact.h"
#include "store/publish.h"

static const char state_schema[] = "h3-generation-resume-v1";

/* --- identity ---------------------------------------------------------------------------------------------------------- */

/* SHA-256 of the running program: another build may compute other bytes. */
static h3_status program_sha256(char out[H3_SHA256_HEX])
{
    char path[H3_PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length <= 0) return h3_error(H3_ENVIRONMENT, "cannot find this program's own file; is /proc mounted?");
    path[length] = 0;
    return h3_sha256_file(out, path, NULL, H3_ENVIRONMENT);
}

static h3_status key_json(cJSON *json, const h3_generation_record *record, const h3_run *run)
{
    char sha256[H3_SHA256_HEX];
    cJSON *fingerprint;
    H3_TRY(program_sha256(sha256));
    cJSON_AddStringToObject(json, "program", sha256);
    cJSON_AddStringToObject(json, "side", record->side);
    cJSON_AddStringToObject(json, "plan", record->plan->sha256);
    cJSON_AddStringToObject(json, "contract", record->generation->contract.sha256);
    cJSON_AddItemToObject(json, "model", cJSON_Duplicate(record->model, 1));
    cJSON_AddStringToObject(json, "provider", record->provider->sha256);
    cJSON *libraries = cJSON_AddArrayToObject(json, "libraries");
    for (int32_t i = 0; record->bindings != NULL && i < record->bindings->library_count; i++)
        cJSON_AddItemToArray(libraries, cJSON_CreateString(record->bindings->libraries[i].sha256));
    cJSON_AddBoolToObject(json, "repeat", record->repeat);
    if (record->decoders != NULL) cJSON_AddItemToObject(json, "decoders", cJSON_Duplicate(record->decoders, 1));
    cJSON *inputs = cJSON_AddArrayToObject(json, "inputs");
    for (size_t i = 0; i < run->inputs.count; i++) cJSON_AddItemToArray(inputs, cJSON_CreateString(run->inputs.items[i].sha256));
    H3_TRY(h3_fingerprint(&fingerprint, record->provider));
    cJSON_AddItemToObject(json, "fingerprint", fingerprint);
    return H3_OK;
}

static h3_status make_key(char key[H3_SHA256_HEX], const h3_generation_record *record, const h3_run *run)
{
    char *text = NULL;
    cJSON *json = cJSON_CreateObject();
    if (json == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for the identity of a generation");
    h3_status status = key_json(json, record, run);
    if (status == H3_OK) status = h3_json_print(&text, json);
    if (status == H3_OK) status = h3_sha256(key, text, strlen(text));
    free(text);
    cJSON_Delete(json);
    return status;
}

h3_status h3_resume_open(h3_resume *out, const h3_generation_record *record, const h3_run *run)
{
    memset(out, 0, sizeof *out);
    snprintf(out->relative, sizeof out->relative, "data/generate/%s/resume", record->side);
    out->run_folder = record->run_folder;
    memcpy(out->plan_sha256, record->plan->sha256, sizeof out->plan_sha256);
    H3_TRY(h3_path(out->folder, "%s/%s", record->run_folder, out->relative));
    H3_TRY(make_key(out->key, record, run));
    out->files = cJSON_CreateArray();
    return out->files != NULL ? H3_OK : h3_error(H3_ENVIRONMENT, "out of memory for the state of a generation");
}

void h3_resume_close(h3_resume *resume)
{
    cJSON_Delete(resume->files);
    memset(resume, 0, sizeof *resume);
}

h3_status h3_resume_remove(h3_resume *resume)
{
    cJSON_Delete(resume->files);
    resume->files = cJSON_CreateArray();
    resume->saved = 0;
    return h3_remove_tree(resume->folder);
}

/* --- saving ------------------------------------------------------------------------------------------------------------ */

static void chunk_name(char out[32], int64_t step) { snprintf(out, 32, "steps-%06lld.h5", (long long)step); }

enum { PARTS = 4 };

/* The parts of one flow in a chunk that ends at `step`: rows reached, and the velocities of the `taken` steps since the chunk before. */
static void chunk_parts(h3_tensor part[PARTS], char name[PARTS][64], const h3_flow *flow, int64_t step, int64_t taken)
{
    static const char *const names[PARTS] = {"video_rows", "audio_rows", "velocity.video", "velocity.audio"};
    const h3_tensor *source[PARTS] = {&flow->video, &flow->audio, &flow->velocity_video, &flow->velocity_audio};
    for (int i = 0; i < PARTS; i++) {
        snprintf(name[i], 64, "%s%lld.%s", flow->repeat ? "repeat" : "seed", (long long)flow->seed, names[i]);
        part[i] = *source[i];
        if (i < 2 || flow->repeat) continue; /* a repeat keeps no velocities */
        int64_t size = source[i]->shape[1] * source[i]->shape[2];
        part[i] = h3_tensor_view((float *)source[i]->data + (step - taken) * size, H3_F32, 3,
                                 H3_SHAPE(taken, source[i]->shape[1], source[i]->shape[2]));
    }
}

/* A repeat keeps no velocities: they have been found equal. */
static int part_count(const h3_flow *flow) { return flow->repeat ? 2 : PARTS; }

/* The steps behind the `saved` ones, up to `step`. */
static h3_status add_chunk(h3_artifact_writer *writer, const h3_sampling *sampling, int64_t saved, int64_t step)
{
    for (size_t f = 0; f < sampling->flow_count; f++) {
        h3_tensor part[PARTS];
        char name[PARTS][64], digest[H3_SHA256_HEX];
        chunk_parts(part, name, &sampling->flows[f], step, step - saved);
        for (int i = 0; i < part_count(&sampling->flows[f]); i++) H3_TRY(h3_artifact_add(writer, name[i], &part[i], digest));
    }
    return H3_OK;
}

static h3_status publish_chunk(h3_resume *resume, const h3_sampling *sampling, int64_t step)
{
    h3_artifact_writer *writer;
    char name[32], relative[128], path[H3_PATH_MAX], sha256[H3_SHA256_HEX];
    int64_t size;
    chunk_name(name, step);
    snprintf(relative, sizeof relative, "%s/%s", resume->relative, name);
    H3_TRY(h3_run_place(path, resume->run_folder, relative));
    H3_TRY(h3_artifact_create(&writer, "h3_generate state"));
    h3_status status = add_chunk(writer, sampling, resume->saved, step);
    if (status != H3_OK) {
        h3_artifact_discard(writer);
        return status;
    }
    H3_TRY(h3_artifact_publish(writer, path, &size, sha256));
    cJSON *file = cJSON_CreateObject();
    cJSON_AddStringToObject(file, "path", name);
    h3_json_add_integer(file, "size", size);
    cJSON_AddStringToObject(file, "sha256", sha256);
    resume->saved = step;
    return cJSON_AddItemToArray(resume->files, file) ? H3_OK
                                                     : h3_error(H3_ENVIRONMENT, "out of memory for the state of a generation");
}

/* SHA-256 of the state as text without its last field, "sha256", which holds this. */
static h3_status seal_of(char out[H3_SHA256_HEX], const cJSON *state)
{
    char *text;
    H3_TRY(h3_json_print(&text, state));
    h3_status status = h3_sha256(out, text, strlen(text));
    free(text);
    return status;
}

h3_status h3_resume_save(void *user, const h3_sampling *sampling, int64_t step)
{
    h3_resume *resume = user;
    char path[H3_PATH_MAX], seal[H3_SHA256_HEX];
    H3_TRY(publish_chunk(resume, sampling, step));
    cJSON *json = cJSON_CreateObject();
    if (json == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for the state of a generation");
    cJSON_AddStringToObject(json, "schema", state_schema);
    cJSON_AddStringToObject(json, "plan_sha256", resume->plan_sha256);
    cJSON_AddStringToObject(json, "key", resume->key);
    h3_json_add_integer(json, "step", step);
    cJSON_AddItemReferenceToObject(json, "files", resume->files);
    h3_status status = seal_of(seal, json);
    if (status == H3_OK) cJSON_AddStringToObject(json, "sha256", seal);
    if (status == H3_OK) status = h3_path(path, "%s/state.json", resume->folder);
    if (status == H3_OK) status = h3_publish_json(path, json, NULL, NULL);
    cJSON_Delete(json);
    return status;
}

/* --- loading ----------------------------------------------------------------------------------------------------------- */

static h3_status copy_part(h3_tensor *to, const h3_artifact *chunk, const char *name)
{
    const h3_tensor *from;
    H3_TRY(h3_artifact_need(&from, chunk, name));
    if (from->dtype != to->dtype || from->rank != to->rank ||
        memcmp(from->shape, to->shape, (size_t)to->rank * sizeof *to->shape) != 0)
        return h3_error(H3_INTEGRITY, "%s: %s has another shape than this generation; run without --resume", chunk->path, name);
    memcpy(to->data, from->data, h3_tensor_bytes(to));
    return H3_OK;
}

static h3_status digest_steps(h3_flow *flow, int64_t first, int64_t end)
{
    const h3_tensor *store[2] = {&flow->velocity_video, &flow->velocity_audio};
    for (int64_t step = first; step < end; step++) {
        for (int m = 0; m < 2; m++) {
            size_t count = (size_t)(store[m]->shape[1] * store[m]->shape[2]);
            H3_TRY(
                h3_digest(flow->digests[step][m], (const float *)store[m]->data + (size_t)step * count, count * sizeof(float)));
        }
    }
    return H3_OK;
}

static h3_status load_flow(h3_sampling *sampling, h3_flow *flow, const h3_artifact *chunk, int64_t saved, int64_t step)
{
    h3_tensor part[PARTS];
    char name[PARTS][64];
    int64_t taken = step - saved;
    chunk_parts(part, name, flow, step, taken);
    for (int i = 0; i < part_count(flow); i++) H3_TRY(copy_part(&part[i], chunk, name[i]));
    flow->finished = step;
    if (!flow->repeat) return digest_steps(flow, step - taken, step);
    memcpy(flow->digests + step - taken, sampling->flows[flow->original].digests + step - taken,
           (size_t)taken * sizeof *flow->digests);
    return H3_OK;
}

static h3_status load_chunk(h3_resume *resume, h3_sampling *sampling, const char *name, const char *sha256, int64_t step, const char *where)
{
    h3_artifact chunk;
    char relative[H3_PATH_MAX], path[H3_PATH_MAX];
    if (sampling->ranks != NULL) h3_ranks_beat(sampling->ranks, "resuming", -1);
    H3_TRY(h3_path(relative, "%s/%s", resume->relative, name));
    H3_TRY(h3_run_locate(path, resume->run_folder, relative));
    if (h3_artifact_open(&chunk, path, sha256) != H3_OK)
        return h3_error_context(H3_INTEGRITY, "%s and %s do not agree", where, path);
    h3_status status = H3_OK;
    for (size_t f = 0; f < sampling->flow_count && status == H3_OK; f++)
        status = load_flow(sampling, &sampling->flows[f], &chunk, resume->saved, step);
    h3_artifact_close(&chunk);
    return status;
}

/* The next file of a state that has reached step `reached`. */
static h3_status load_file(h3_resume *resume, h3_sampling *sampling, const cJSON *file, int64_t reached, const char *where)
{
    const char *name, *sha256;
    char expected[32];
    int64_t step = resume->saved;
    H3_TRY(h3_json_string(&name, file, "path", where, H3_INTEGRITY));
    H3_TRY(h3_json_string(&sha256, file, "sha256", where, H3_INTEGRITY));
    do chunk_name(expected, ++step);
    while (step < reached && strcmp(name, expected) != 0);
    if (strcmp(name, expected) != 0)
        return h3_error(H3_INTEGRITY, "%s lists %.80s where a file of steps %lld to %lld was expected; run without --resume", where, name,
                        (long long)resume->saved + 1, (long long)reached);
    H3_TRY(load_chunk(resume, sampling, name, sha256, step, where));
    resume->saved = step;
    if (cJSON_AddItemToArray(resume->files, cJSON_Duplicate(file, 1))) return H3_OK;
    return h3_error(H3_ENVIRONMENT, "out of memory for the state of a generation");
}

static h3_status load_state(h3_resume *resume, h3_sampling *sampling, const cJSON *state, int64_t *step, const char *where)
{
    const cJSON *files, *file;
    int64_t reached;
    H3_TRY(h3_json_integer(&reached, state, "step", 1, sampling->steps, where, H3_INTEGRITY));
    H3_TRY(h3_json_array(&files, state, "files", where, H3_INTEGRITY));
    cJSON_ArrayForEach(file, files) {
        if (resume->saved >= reached) break;
        H3_TRY(load_file(resume, sampling, file, reached, where));
    }
    if (file != NULL || resume->saved != reached)
        return h3_error(H3_INTEGRITY, "%s lists other files than its step %lld needs; run without --resume", where,
                        (long long)reached);
    *step = reached;
    return H3_OK;
}

/* Whose state it is; *note says what is foreign about it, if anything. */
static h3_status check_state(const h3_resume *resume, const cJSON *state, const char **note, const char *where)
{
    const char *schema, *plan, *key;
    H3_TRY(h3_json_only_keys(state, (const char *const[]){"schema", "plan_sha256", "key", "step", "files", "sha256", NULL}, where,
                             H3_INTEGRITY));
    H3_TRY(h3_json_string(&schema, state, "schema", where, H3_INTEGRITY));
    H3_TRY(h3_json_string(&plan, state, "plan_sha256", where, H3_INTEGRITY));
    H3_TRY(h3_json_string(&key, state, "key", where, H3_INTEGRITY));
    if (strcmp(plan, resume->plan_sha256) != 0) *note = "the saved state is of another plan: starting from step 0";
    else if (strcmp(schema, state_schema) != 0 || strcmp(key, resume->key) != 0)
        *note = "the saved state is of another build, machine, input or kind of run: starting from step 0";
    return H3_OK;
}

/* Every byte is the one that was written: also those that nothing follows from. Takes the seal out of `state`. */
static h3_status check_seal(cJSON *state, const char *path)
{
    char seal[H3_SHA256_HEX], *text, *again = NULL;
    size_t size;
    cJSON_DeleteItemFromObjectCaseSensitive(state, "sha256");
    H3_TRY(seal_of(seal, state));
    cJSON_AddStringToObject(state, "sha256", seal);
    H3_TRY(h3_file_read(&text, &size, path, (size_t)1 << 28, H3_INTEGRITY));
    h3_status status = h3_json_print(&again, state);
    if (status == H3_OK && strcmp(text, again) != 0)
        status = h3_error(H3_INTEGRITY, "%s has not the SHA-256 that it says it has: it has changed; run without --resume", path);
    free(again);
    free(text);
    return status;
}

h3_status h3_resume_load(h3_resume *resume, h3_sampling *sampling, int64_t *step, const char **note)
{
    char path[H3_PATH_MAX], relative[128];
    cJSON *state;
    *step = 0;
    *note = NULL;
    H3_TRY(h3_path(path, "%s/state.json", resume->folder));
    if (access(path, F_OK) != 0) {
        *note = "there is no saved state: starting from step 0";
        return h3_resume_remove(resume);
    }
    snprintf(relative, sizeof relative, "%s/state.json", resume->relative);
    H3_TRY(h3_run_locate(path, resume->run_folder, relative));
    H3_TRY(h3_json_read(&state, path, H3_INTEGRITY));
    h3_status status = check_state(resume, state, note, path);
    if (status == H3_OK && *note == NULL) status = load_state(resume, sampling, state, step, path);
    if (status == H3_OK) status = check_seal(state, path);
    cJSON_Delete(state);
    if (status == H3_OK && *note != NULL) status = h3_resume_remove(resume);
    sampling->first_step = *step;
    return status;
}
