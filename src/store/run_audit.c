/* A whole run looked at afterwards. */
#include <dirent.h>
#include <errno.h>
#include <fts.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/publish.h"
#include "store/run_internal.h"

typedef struct audit {
    const char *folder;
    char plan_sha256[H3_SHA256_HEX];
    h3_run_files outputs; /* of all stages */
    int64_t stages, files, damaged;
    char first[H3_RUN_PATH_SIZE]; /* damaged file, and who writes it */
    const char *first_program;
    void (*tell)(void *user, const h3_run_file *file); /* NULL: the first damaged file ends the audit */
    void *user;
} audit;

static h3_status check_plan(audit *in)
{
    char path[H3_PATH_MAX];
    int64_t size;
    H3_TRY(h3_run_locate(path, in->folder, "plan.json"));
    H3_TRY(h3_sha256_file(in->plan_sha256, path, &size, H3_INTEGRITY));
    in->files++;
    return H3_OK;
}

static void note_damaged(audit *in, const h3_run_file *file, const char *program)
{
    if (in->damaged++ > 0) return;
    snprintf(in->first, sizeof in->first, "%s", file->path);
    in->first_program = program;
}

static h3_status check_stage(audit *in, const h3_stage *stage)
{
    H3_TRY(h3_stage_fresh(stage, in->folder, in->plan_sha256));
    for (size_t i = 0; i < stage->outputs.count; i++) {
        const h3_run_file *file = &stage->outputs.items[i];
        H3_TRY(h3_run_files_add(&in->outputs, file->path, file->size, file->sha256));
        h3_status status = h3_run_verify_file(in->folder, file, h3_stage_program(stage->index));
        if (status != H3_INTEGRITY || in->tell == NULL) H3_TRY(status);
        if (status == H3_OK) in->files++;
        else note_damaged(in, file, h3_stage_program(stage->index));
        if (status != H3_OK) in->tell(in->user, file);
    }
    in->stages++;
    in->files++;
    return H3_OK;
}

static h3_status check_stages(audit *in)
{
    for (int32_t i = 0; i < H3_RUN_STAGES; i++) {
        char relative[H3_PATH_MAX], path[H3_PATH_MAX];
        int present;
        struct stat info;
        h3_stage stage;
        H3_TRY(h3_path(relative, "stages/%s/stage.json", h3_stage_name(i)));
        H3_TRY(h3_run_lookup(path, &present, &info, in->folder, relative));
        if (!present) continue;
        h3_status status = h3_stage_load(&stage, in->folder, i, in->plan_sha256);
        if (status == H3_OK) status = check_stage(in, &stage);
        h3_stage_free(&stage);
        H3_TRY(status);
    }
    if (in->stages == 0) return h3_error(H3_INTEGRITY, "no stage has finished in %s; check the folder", in->folder);
    return H3_OK;
}

/* A stage.json that nobody knows would not be looked at. */
static h3_status check_stage_names(const audit *in)
{
    char path[H3_PATH_MAX];
    H3_TRY(h3_path(path, "%s/stages", in->folder));
    DIR *stages = opendir(path);
    if (stages == NULL) return h3_error(H3_ENVIRONMENT, "cannot look at %s: %s; check permissions", path, strerror(errno));
    h3_status status = H3_OK;
    for (struct dirent *entry; status == H3_OK && (entry = readdir(stages)) != NULL;)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 && h3_stage_index(entry->d_name) < 0)
            status = h3_error(H3_INTEGRITY, "%s/%s is not a stage; remove it", path, entry->d_name);
    closedir(stages);
    return status;
}

static h3_status check_no_path_twice(audit *in)
{
    h3_run_files_sort(&in->outputs);
    for (size_t i = 1; i < in->outputs.count; i++)
        if (strcmp(in->outputs.items[i - 1].path, in->outputs.items[i].path) == 0)
            return h3_error(H3_INTEGRITY, "%s/%s is listed by two stages; start a new run", in->folder,
                            in->outputs.items[i].path);
    return H3_OK;
}

static int compare_path(const void *path, const void *file) { return strcmp(path, ((const h3_run_file *)file)->path); }

h3_status h3_run_unlisted(const char *path)
{
    return h3_error(H3_INTEGRITY,
                    "%s is not listed by any stage (left by one that was stopped?); run that stage again (h3_generate --resume goes on) or remove the file", path);
}

static h3_status check_entry(const audit *in, const FTSENT *entry)
{
    const char *path = entry->fts_path + strlen(in->folder) + 1;
    if (entry->fts_info == FTS_D || entry->fts_info == FTS_DP) return H3_OK;
    if (entry->fts_info == FTS_DNR || entry->fts_info == FTS_ERR || entry->fts_info == FTS_NS)
        return h3_error(H3_ENVIRONMENT, "cannot look at %s: %s; check permissions", entry->fts_path, strerror(entry->fts_errno));
    if (entry->fts_info != FTS_F) return h3_error(H3_INTEGRITY, "%s is not a regular file; remove it", entry->fts_path);
    if (strncmp(entry->fts_name, H3_TEMPORARY_PREFIX, strlen(H3_TEMPORARY_PREFIX)) == 0) return H3_OK;
    if (in->outputs.count > 0 &&
        bsearch(path, in->outputs.items, in->outputs.count, sizeof *in->outputs.items, compare_path) != NULL)
        return H3_OK;
    return h3_run_unlisted(entry->fts_path);
}

static int by_name(const FTSENT **a, const FTSENT **b) { return strcmp((*a)->fts_name, (*b)->fts_name); }

static h3_status check_data(const audit *in)
{
    char path[H3_PATH_MAX];
    struct stat info;
    H3_TRY(h3_path(path, "%s/data", in->folder));
    if (lstat(path, &info) != 0 && errno == ENOENT) return H3_OK;
    FTS *tree = fts_open((char *const[]){path, NULL}, FTS_PHYSICAL | FTS_NOCHDIR, by_name);
    if (tree == NULL) return h3_error(H3_ENVIRONMENT, "cannot look at %s: %s; check permissions", path, strerror(errno));
    h3_status status = H3_OK;
    for (FTSENT *entry; status == H3_OK && (entry = fts_read(tree)) != NULL;) status = check_entry(in, entry);
    if (status == H3_OK && errno != 0)
        status = h3_error(H3_ENVIRONMENT, "cannot look at %s: %s; check permissions", path, strerror(errno));
    fts_close(tree);
    return status;
}

static h3_status run_audit(audit *in)
{
    h3_status status = check_plan(in);
    if (status == H3_OK) status = check_stages(in);
    if (status == H3_OK) status = check_stage_names(in);
    if (status == H3_OK) status = check_no_path_twice(in);
    if (status == H3_OK) status = check_data(in);
    if (status == H3_OK && in->damaged > 0)
        status = h3_error(H3_INTEGRITY, "%lld of %lld files not as listed, the first is %s; rerun %s", (long long)in->damaged,
                          (long long)(in->files + in->damaged), in->first, in->first_program);
    h3_run_files_free(&in->outputs);
    return status;
}

h3_status h3_run_audit(const char *folder, int64_t *files_checked)
{
    audit in = {.folder = folder};
    *files_checked = 0;
    h3_status status = run_audit(&in);
    if (status == H3_OK) *files_checked = in.files;
    return status;
}

h3_status h3_run_audit_each(const char *folder, void (*damaged)(void *user, const h3_run_file *file), void *user, int64_t *good,
                            int64_t *bad)
{
    audit in = {.folder = folder, .tell = damaged, .user = user};
    h3_status status = run_audit(&in);
    *good = in.files;
    *bad = in.damaged;
    return status;
}
