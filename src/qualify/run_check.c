#include "qualify/run_check.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "qualify/run_check_internal.h"

static void tell(h3_run_check *check, const char *line)
{
    if (check->tell != NULL) check->tell(check->user, line);
}

static int ends_with(const char *path, const char *end)
{
    size_t length = strlen(path), size = strlen(end);
    return length > size && strcmp(path + length - size, end) == 0;
}

static int is_artifact(const char *path) { return ends_with(path, ".h5"); }

/* What scripts/archive_evidence.sh leaves out unless it is told otherwise. */
static int is_left_out(const char *path) { return is_artifact(path) || ends_with(path, ".png") || ends_with(path, ".wav"); }

static int is_absent(const h3_run_check *check, const char *path)
{
    char full[H3_PATH_MAX];
    struct stat info;
    return h3_path(full, "%s/%s", check->view.folder, path) == H3_OK && lstat(full, &info) != 0 && errno == ENOENT;
}

/* A damaged artifact may say itself which dataset it is: each has its digest beside it. */
static void on_damaged(void *user, const h3_run_file *file)
{
    h3_run_check *check = user;
    h3_artifact artifact;
    char line[1400], path[H3_PATH_MAX], first[1024];
    snprintf(first, sizeof first, "%s", h3_error_text());
    tell(check, first);
    if (is_left_out(file->path) && is_absent(check, file->path)) check->absent++;
    if (!is_artifact(file->path) || h3_run_locate(path, check->view.folder, file->path) != H3_OK) return;
    if (h3_artifact_open(&artifact, path, NULL) == H3_OK)
        snprintf(line, sizeof line, "%s is a whole artifact in itself, but another one", file->path);
    else snprintf(line, sizeof line, "%s", h3_error_text());
    h3_artifact_close(&artifact);
    tell(check, line);
    h3_error(H3_INTEGRITY, "%s", first);
}

h3_status h3_check_open_artifact(h3_artifact *out, const h3_run_check *check, int stage, const char *path)
{
    char full[H3_PATH_MAX];
    const h3_run_file *listed = h3_run_files_find(&check->view.stages[stage].outputs, path);
    *out = (h3_artifact){0};
    if (listed == NULL)
        return h3_error(H3_INTEGRITY, "%s: %s does not list %s; rerun %s", check->view.folder, h3_run_stage_name(stage), path,
                        h3_run_stage_program(stage));
    H3_TRY(h3_run_locate(full, check->view.folder, path));
    return h3_artifact_open(out, full, listed->sha256);
}

/* Reports that no stage lists would be believed by a reader, and hashed by nobody. */
static h3_status check_name(const h3_run_check *check, const char *name)
{
    char path[H3_PATH_MAX];
    size_t length = strlen(name);
    if (name[0] == '.' || length < 5 || strcmp(name + length - 5, ".json") != 0) return H3_OK;
    if (strcmp(name, "plan.json") == 0 || strcmp(name, "report.json") == 0) return H3_OK;
    for (int i = 0; i < H3_RUN_STAGES; i++)
        if (h3_run_files_find(&check->view.stages[i].outputs, name) != NULL) return H3_OK;
    H3_TRY(h3_path(path, "%s/%s", check->view.folder, name));
    return h3_run_unlisted(path);
}

static h3_status check_names(const h3_run_check *check)
{
    DIR *entries = opendir(check->view.folder);
    if (entries == NULL)
        return h3_error(H3_ENVIRONMENT, "cannot look at %s: %s; check permissions", check->view.folder, strerror(errno));
    h3_status status = H3_OK;
    for (struct dirent *entry; status == H3_OK && (entry = readdir(entries)) != NULL;) status = check_name(check, entry->d_name);
    closedir(entries);
    return status;
}

static h3_status read_plan(h3_run_check *check)
{
    char path[H3_PATH_MAX];
    H3_TRY(h3_run_locate(path, check->view.folder, "plan.json"));
    h3_status status = h3_plan_read(&check->plan, path);
    if (status == H3_USAGE) return h3_error_context(H3_INTEGRITY, "the plan of this run");
    return status;
}

static h3_status check_contents(h3_run_check *check, h3_run_facts *facts)
{
    const h3_run_stage_view *stages = check->view.stages;
    if (stages[H3_STAGE_REFERENCE].present) H3_TRY(h3_check_reference(check, facts));
    if (stages[H3_STAGE_FREEZE].present) H3_TRY(h3_check_thresholds(check, facts));
    if (stages[H3_STAGE_GATE].present) H3_TRY(h3_check_gate(check, facts));
    if (stages[H3_STAGE_PROVIDER].present) H3_TRY(h3_check_generation(check, facts, H3_STAGE_PROVIDER));
    if (stages[H3_STAGE_CANDIDATE].present) H3_TRY(h3_check_generation(check, facts, H3_STAGE_CANDIDATE));
    return stages[H3_STAGE_COMPARE].present ? h3_check_compare(check) : H3_OK;
}

/* The run of an archive without artifacts is no damaged one; who unpacked it should know that nothing else is wrong. */
static h3_status explain_absent(const h3_run_check *check, h3_status audited)
{
    int64_t left_out = 0;
    for (int i = 0; i < H3_RUN_STAGES; i++)
        for (size_t k = 0; k < check->view.stages[i].outputs.count; k++)
            left_out += is_left_out(check->view.stages[i].outputs.items[k].path);
    if (audited != H3_INTEGRITY || check->absent == 0 || check->absent != check->bad || check->absent != left_out) return audited;
    return h3_error(H3_INTEGRITY,
                    "none of the %lld artifacts, frames and sounds is here, as in an archive made without --with-artifacts; everything else is "
                    "as listed: h3_verify archive checks such a one, h3_report makes its report again",
                    (long long)left_out);
}

h3_status h3_run_check_all(h3_run_check *check, const char *folder)
{
    h3_run_facts facts = {0};
    h3_run_check asked = {.tell = check->tell, .user = check->user};
    *check = asked;
    H3_TRY(h3_run_view_open(&check->view, folder));
    H3_TRY(explain_absent(check, h3_run_audit_each(folder, on_damaged, check, &check->good, &check->bad)));
    H3_TRY(check_names(check));
    H3_TRY(read_plan(check));
    h3_status status = check_contents(check, &facts);
    h3_manifest_free(&facts.manifest);
    h3_thresholds_free(&facts.thresholds);
    cJSON_Delete(facts.gate);
    return status;
}

void h3_run_check_free(h3_run_check *check)
{
    h3_run_view_close(&check->view);
    h3_plan_free(&check->plan);
}
