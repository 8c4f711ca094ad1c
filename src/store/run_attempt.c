/* Attempts: setting the earlier one aside, and the facts about this one that stay outside all hashes. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/json.h"
#include "store/publish.h"
#include "store/run_internal.h"

/* An attempt that is being set aside is collected here, and gets its number when it is complete. */
#define MOVING ".moving"
enum { ATTEMPTS_MAX = 1000000 };

static h3_status is_there(int *present, const char *folder, const char *path)
{
    char full[H3_PATH_MAX];
    struct stat info;
    return h3_run_lookup(full, present, &info, folder, path);
}

h3_status h3_run_next_archive(int32_t *number, int *finished, const char *folder, const char *stage)
{
    char path[H3_PATH_MAX];
    int moved = 0;
    struct stat info;
    H3_TRY(h3_path(path, "stages/%s/stage.json", stage));
    H3_TRY(is_there(finished, folder, path));
    H3_TRY(h3_path(path, "attempts/%s/" MOVING "/stage.json", stage));
    H3_TRY(is_there(&moved, folder, path));
    *finished |= moved;
    for (*number = 1; *number < ATTEMPTS_MAX; ++*number) {
        H3_TRY(h3_path(path, "%s/attempts/%s/%d", folder, stage, *number));
        if (lstat(path, &info) != 0) return H3_OK;
    }
    return h3_error(H3_ENVIRONMENT, "%s has too many attempts in %s; start a new run", stage, folder);
}

static h3_status set_aside(const h3_run *run, const char *path, const char *name)
{
    char from[H3_PATH_MAX], aside[H3_PATH_MAX], to[H3_PATH_MAX];
    int present;
    struct stat info;
    H3_TRY(h3_run_lookup(from, &present, &info, run->folder, path));
    if (!present) return H3_OK; /* moved already by a move that was interrupted */
    H3_TRY(h3_path(aside, "attempts/%s/" MOVING "/%s", run->stage, name));
    H3_TRY(h3_run_place(to, run->folder, aside));
    if (rename(from, to) == 0) return H3_OK;
    return h3_error(H3_ENVIRONMENT, "cannot move %s to attempts/: %s; check permissions", from, strerror(errno));
}

static int is_kept(const h3_run *run, const char *path)
{
    for (int32_t i = 0; i < run->kept_count; i++)
        if (strcmp(run->kept[i], path) == 0) return 1;
    return 0;
}

/* stage.json goes last, so that an interrupted move can be continued. */
static h3_status set_stage_aside(const h3_run *run)
{
    char path[H3_PATH_MAX];
    int present;
    h3_stage stage;
    H3_TRY(h3_path(path, "stages/%s/stage.json", run->stage));
    H3_TRY(is_there(&present, run->folder, path));
    if (!present) return H3_OK;
    h3_status status = h3_stage_load(&stage, run->folder, h3_stage_index(run->stage), NULL);
    if (status != H3_OK)
        status = h3_error_context(status, "the earlier attempt cannot be set aside, move this file away and rerun");
    for (size_t i = 0; i < stage.outputs.count && status == H3_OK; i++)
        if (!is_kept(run, stage.outputs.items[i].path))
            status = set_aside(run, stage.outputs.items[i].path, stage.outputs.items[i].path);
    h3_stage_free(&stage);
    H3_TRY(status);
    char site[H3_PATH_MAX];
    H3_TRY(h3_path(site, "stages/%s/site.json", run->stage));
    H3_TRY(set_aside(run, site, "site.json"));
    return set_aside(run, path, "stage.json");
}

static h3_status number_attempt(const h3_run *run)
{
    char path[H3_PATH_MAX], from[H3_PATH_MAX], to[H3_PATH_MAX];
    int present, finished;
    int32_t number;
    H3_TRY(h3_path(path, "attempts/%s/" MOVING "/stage.json", run->stage));
    H3_TRY(is_there(&present, run->folder, path));
    if (!present) return H3_OK;
    H3_TRY(h3_run_next_archive(&number, &finished, run->folder, run->stage));
    H3_TRY(h3_path(from, "%s/attempts/%s/" MOVING, run->folder, run->stage));
    H3_TRY(h3_path(to, "%s/attempts/%s/%d", run->folder, run->stage, number));
    return rename(from, to) == 0 ? H3_OK
                                 : h3_error(H3_ENVIRONMENT, "cannot rename %s: %s; check permissions", from, strerror(errno));
}

static h3_status clean(const h3_run *run)
{
    char path[H3_PATH_MAX];
    H3_TRY(h3_clean_temporaries(run->folder, 0));
    H3_TRY(h3_path(path, "%s/stages/%s", run->folder, run->stage));
    H3_TRY(h3_clean_temporaries(path, 1));
    H3_TRY(h3_path(path, "%s/data", run->folder));
    return h3_clean_temporaries(path, 1);
}

h3_status h3_run_keep(h3_run *run, const char *path)
{
    H3_TRY(h3_run_check_output(path, h3_stage_index(run->stage), "an output to keep"));
    if (run->kept_count == H3_RUN_KEPT_MAX || strlen(path) >= H3_RUN_PATH_SIZE)
        return h3_error(H3_USAGE, "%s cannot keep \"%.60s\"", run->stage, path);
    strcpy(run->kept[run->kept_count++], path);
    return H3_OK;
}

h3_status h3_run_begin(h3_run *run)
{
    H3_TRY(set_stage_aside(run));
    H3_TRY(number_attempt(run));
    H3_TRY(clean(run));
    return h3_run_write_site(run, NULL);
}

void h3_run_time(char out[H3_RUN_TIME_SIZE])
{
    struct tm parts;
    time_t now = time(NULL);
    gmtime_r(&now, &parts);
    strftime(out, H3_RUN_TIME_SIZE, "%Y-%m-%dT%H:%M:%SZ", &parts);
}

static void add_environment(cJSON *json, const char *key, const char *variable)
{
    const char *value = getenv(variable);
    if (value != NULL) cJSON_AddStringToObject(json, key, value);
}

h3_status h3_run_write_site(const h3_run *run, const char *verdict)
{
    char path[H3_PATH_MAX], relative[96], host[256] = "", now[H3_RUN_TIME_SIZE];
    snprintf(relative, sizeof relative, "stages/%s/site.json", run->stage);
    H3_TRY(h3_run_place(path, run->folder, relative));
    gethostname(host, sizeof host - 1);
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "schema", "h3-site-v1");
    cJSON_AddStringToObject(json, "stage", run->stage);
    h3_json_add_integer(json, "attempt", run->attempt);
    cJSON_AddStringToObject(json, "host", host);
    add_environment(json, "user", "USER");
    add_environment(json, "job", "SLURM_JOB_ID");
    if (run->hand_off[0] != 0) cJSON_AddStringToObject(json, "hand_off", run->hand_off);
    if (run->devices != NULL) cJSON_AddItemReferenceToObject(json, "devices", run->devices);
    cJSON_AddStringToObject(json, "started", run->started);
    if (verdict != NULL) {
        h3_run_time(now);
        cJSON_AddStringToObject(json, "finished", now);
        cJSON_AddStringToObject(json, "verdict", verdict);
    }
    h3_status status = h3_publish_json(path, json, NULL, NULL);
    cJSON_Delete(json);
    return status;
}
