#include "store/run.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "store/publish.h"
#include "store/run_internal.h"

static h3_status other_plan(const char *folder)
{
    return h3_error(H3_INTEGRITY,
                    "%s was made with another plan than this one (see its plan.json); use another --run folder for this plan",
                    folder);
}

static h3_status same_as_stored(const char *stored, const char *plan)
{
    char *theirs, *mine;
    size_t size, own_size;
    if (h3_file_read(&mine, &own_size, plan, H3_PLAN_LIMIT, H3_USAGE) != H3_OK) return H3_OK; /* whoever reads it says so */
    h3_status status = h3_file_read(&theirs, &size, stored, H3_PLAN_LIMIT, H3_INTEGRITY);
    int same = status == H3_OK && size == own_size && memcmp(theirs, mine, size) == 0;
    free(mine);
    free(theirs);
    if (status != H3_OK || same) return status;
    return h3_error(H3_INTEGRITY,
                    "%s is another plan than %s, with which that run was made; use that one, or another --run folder", plan,
                    stored);
}

h3_status h3_run_expect(const char *folder, const char *stage, const char *plan)
{
    char path[H3_PATH_MAX];
    int present;
    struct stat info;
    int found = stat(folder, &info) == 0;
    if (!found && errno != ENOENT)
        return h3_error(H3_ENVIRONMENT, "cannot look at %s: %s; choose another run folder", folder, strerror(errno));
    if (found && !S_ISDIR(info.st_mode)) return h3_error(H3_ENVIRONMENT, "%s is not a folder; choose another run folder", folder);
    H3_TRY(h3_run_lookup(path, &present, &info, folder, "plan.json"));
    if (present) return same_as_stored(path, plan);
    if (h3_stage_index(stage) <= 0) return H3_OK;
    return h3_error(H3_INTEGRITY, "%s holds no run (%s is missing); run %s first", folder, path, h3_stage_program(0));
}

/* The first stage stores the plan; every other finds the same bytes. */
static h3_status check_plan(h3_run *run, const char *plan_text, size_t plan_size)
{
    char path[H3_PATH_MAX], *stored;
    int present;
    struct stat info;
    size_t size;
    H3_TRY(h3_run_lookup(path, &present, &info, run->folder, "plan.json"));
    if (!present) H3_TRY(h3_publish(path, plan_text, plan_size));
    H3_TRY(h3_file_read(&stored, &size, path, H3_PLAN_LIMIT, H3_INTEGRITY));
    int same = size == plan_size && memcmp(stored, plan_text, size) == 0;
    free(stored);
    return same ? h3_sha256(run->plan_sha256, plan_text, plan_size) : other_plan(run->folder);
}

static h3_status take_lock(h3_run *run)
{
    char relative[96], path[H3_PATH_MAX];
    snprintf(relative, sizeof relative, "stages/%s/.lock", run->stage);
    H3_TRY(h3_run_place(path, run->folder, relative));
    run->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (run->lock < 0) return h3_error(H3_ENVIRONMENT, "cannot open %s: %s; check permissions", path, strerror(errno));
    if (flock(run->lock, LOCK_EX | LOCK_NB) == 0) return H3_OK;
    if (errno != EWOULDBLOCK)
        return h3_error(H3_ENVIRONMENT, "cannot lock %s: %s; use a file system with locks", path, strerror(errno));
    return h3_error(H3_ENVIRONMENT, "%s is running in %s already; wait for it or stop it", run->stage, run->folder);
}

static h3_status open_run(h3_run *run, const char *plan_text, size_t plan_size)
{
    int32_t earlier;
    int finished;
    H3_TRY(h3_make_folders(run->folder));
    H3_TRY(check_plan(run, plan_text, plan_size));
    H3_TRY(take_lock(run));
    H3_TRY(h3_run_next_archive(&earlier, &finished, run->folder, run->stage));
    run->attempt = finished ? earlier + 1 : earlier;
    h3_run_time(run->started);
    return H3_OK;
}

h3_status h3_run_open(h3_run *run, const char *folder, const char *stage, const char *plan_text, size_t plan_size)
{
    *run = (h3_run){.lock = -1};
    if (h3_stage_index(stage) < 0) return h3_error(H3_USAGE, "\"%.60s\" is not a stage", stage);
    if (plan_size == 0 || plan_size > H3_PLAN_LIMIT)
        return h3_error(H3_USAGE, "the plan has %zu bytes; 1 to %d are possible", plan_size, H3_PLAN_LIMIT);
    H3_TRY(h3_path(run->folder, "%s", folder));
    strcpy(run->stage, stage);
    h3_status status = open_run(run, plan_text, plan_size);
    if (status != H3_OK) h3_run_close(run);
    return status;
}

void h3_run_close(h3_run *run)
{
    if (run->folder[0] != 0 && run->lock >= 0) close(run->lock);
    h3_run_files_free(&run->inputs);
    h3_run_files_free(&run->outputs);
    cJSON_Delete(run->devices);
    *run = (h3_run){.lock = -1};
}

h3_status h3_run_output(h3_run *run, const char *path, int64_t size, const char *sha256)
{
    H3_TRY(h3_run_check_output(path, h3_stage_index(run->stage), "an output"));
    if (h3_run_files_find(&run->outputs, path) != NULL)
        return h3_error(H3_INTEGRITY, "%s writes \"%s\" twice; give each output a path of its own", run->stage, path);
    return h3_run_files_add(&run->outputs, path, size, sha256);
}

static h3_status check_outputs(const h3_run *run)
{
    char path[H3_PATH_MAX];
    int present;
    struct stat info;
    for (size_t i = 0; i < run->outputs.count; i++) {
        const h3_run_file *file = &run->outputs.items[i];
        H3_TRY(h3_run_lookup(path, &present, &info, run->folder, file->path));
        if (!present || info.st_size != file->size)
            return h3_error(H3_INTEGRITY, "%s is not there as it was written (%lld bytes); rerun %s", path, (long long)file->size,
                            run->stage);
    }
    return H3_OK;
}

/* Without memory cJSON adds nothing and goes on, so what must be there is counted. */
static int add_files(cJSON *json, const char *key, const h3_run_files *files)
{
    cJSON *array = cJSON_AddArrayToObject(json, key);
    for (size_t i = 0; i < files->count; i++) {
        cJSON *item = cJSON_CreateObject();
        cJSON_AddStringToObject(item, "path", files->items[i].path);
        h3_json_add_integer(item, "size", files->items[i].size);
        cJSON_AddStringToObject(item, "sha256", files->items[i].sha256);
        if (!cJSON_AddItemToArray(array, item)) cJSON_Delete(item);
        else if (cJSON_GetArraySize(item) != 3) return 1;
    }
    return cJSON_GetArraySize(array) != (int)files->count;
}

static int add_needs(cJSON *json, const h3_run *run)
{
    cJSON *array = cJSON_AddArrayToObject(json, "needs");
    for (int32_t i = 0; i < run->needed_count; i++) {
        cJSON *item = cJSON_CreateObject();
        cJSON_AddStringToObject(item, "stage", h3_stage_name(run->needed[i].stage));
        cJSON_AddStringToObject(item, "verdict", run->needed[i].verdict);
        if (!cJSON_AddItemToArray(array, item)) cJSON_Delete(item);
        else if (cJSON_GetArraySize(item) != 2) return 1;
    }
    return cJSON_GetArraySize(array) != run->needed_count;
}

/* The stage.json; takes `build` in every case. */
static h3_status describe(cJSON **out, h3_run *run, const char *verdict, cJSON *build)
{
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "schema", H3_STAGE_SCHEMA);
    cJSON_AddStringToObject(json, "stage", run->stage);
    cJSON_AddStringToObject(json, "verdict", verdict);
    cJSON_AddStringToObject(json, "plan_sha256", run->plan_sha256);
    h3_run_files_sort(&run->inputs);
    h3_run_files_sort(&run->outputs);
    int failed = add_needs(json, run) | add_files(json, "inputs", &run->inputs) | add_files(json, "outputs", &run->outputs);
    if (build == NULL) build = cJSON_CreateObject();
    if (!cJSON_AddItemToObject(json, "build", build)) cJSON_Delete(build);
    char seal[H3_SHA256_HEX];
    failed |= h3_stage_seal(seal, json) != H3_OK;
    if (!failed) cJSON_AddStringToObject(json, "sha256", seal);
    if (failed || cJSON_GetArraySize(json) != 9) {
        cJSON_Delete(json);
        return h3_error(H3_ENVIRONMENT, "out of memory for the stage.json of %s", run->stage);
    }
    *out = json;
    return H3_OK;
}

static h3_status publish_stage(const h3_run *run, const cJSON *json)
{
    char relative[96], path[H3_PATH_MAX];
    snprintf(relative, sizeof relative, "stages/%s/stage.json", run->stage);
    H3_TRY(h3_run_place(path, run->folder, relative));
    return h3_publish_json(path, json, NULL, NULL);
}

static h3_status finish(h3_run *run, const char *verdict, const cJSON *json)
{
    H3_TRY(check_outputs(run));
    H3_TRY(h3_run_write_site(run, verdict));
    return publish_stage(run, json); /* last: before it nothing has happened */
}

h3_status h3_run_finish(h3_run *run, const char *verdict, cJSON *build)
{
    cJSON *json = NULL;
    if (!h3_verdict_known(verdict)) {
        cJSON_Delete(build);
        return h3_error(H3_USAGE, "\"%.40s\" is not a verdict", verdict);
    }
    H3_TRY(describe(&json, run, verdict, build));
    h3_status status = finish(run, verdict, json);
    cJSON_Delete(json);
    return status;
}
