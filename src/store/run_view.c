#include "store/run_view.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "store/run_internal.h"

enum { OUTPUT_LIMIT = 256 << 20 };

const char *h3_run_stage_name(int stage) { return h3_stage_name(stage); }
const char *h3_run_stage_program(int stage) { return h3_stage_program(stage); }
int h3_run_stage_number(const char *name) { return h3_stage_index(name); }
int h3_run_verdict_passes(const char *verdict) { return h3_verdict_passes(verdict); }

static int holds(const char *folder, const char *name)
{
    char path[H3_PATH_MAX];
    struct stat info;
    return h3_path(path, "%s/%s", folder, name) == H3_OK && lstat(path, &info) == 0;
}

static h3_status check_folder(const char *folder)
{
    if (holds(folder, "plan.json") || holds(folder, "stages")) return H3_OK;
    if (holds(folder, "bagit.txt")) return h3_error(H3_USAGE, "%s is an unpacked archive: its run is %s/data", folder, folder);
    return h3_error(H3_USAGE, "%s is no folder with a run; check the path", folder);
}

static h3_status view_stage(h3_run_view *view, int32_t index)
{
    char relative[96], path[H3_PATH_MAX];
    int present;
    struct stat info;
    h3_stage stage;
    h3_run_stage_view *out = &view->stages[index];
    snprintf(relative, sizeof relative, "stages/%s/stage.json", h3_stage_name(index));
    H3_TRY(h3_run_lookup(path, &present, &info, view->folder, relative));
    if (!present) return H3_OK;
    h3_status status = h3_stage_load(&stage, view->folder, index, view->plan_sha256);
    if (status == H3_OK) status = h3_sha256_file(out->sha256, path, NULL, H3_INTEGRITY);
    if (status == H3_OK) {
        out->present = 1;
        strcpy(out->verdict, stage.verdict);
        out->outputs = stage.outputs;
        stage.outputs = (h3_run_files){0};
        out->outputs.program = h3_stage_program(index);
    }
    h3_stage_free(&stage);
    return status;
}

/* After all listings have been read: what fails now is stale, not damaged. */
static h3_status look_for_changes(h3_run_view *view, int32_t index)
{
    h3_stage stage;
    h3_run_stage_view *out = &view->stages[index];
    if (!out->present) return H3_OK;
    h3_status status = h3_stage_load(&stage, view->folder, index, view->plan_sha256);
    if (status == H3_OK) {
        h3_status fresh = h3_stage_fresh(&stage, view->folder, view->plan_sha256);
        out->fresh = fresh == H3_OK;
        if (fresh == H3_INTEGRITY) snprintf(out->stale, sizeof out->stale, "%s", h3_error_text());
        else status = fresh;
    }
    h3_stage_free(&stage);
    return status;
}

static h3_status open_view(h3_run_view *out)
{
    char path[H3_PATH_MAX];
    H3_TRY(check_folder(out->folder));
    H3_TRY(h3_run_locate(path, out->folder, "plan.json"));
    H3_TRY(h3_sha256_file(out->plan_sha256, path, NULL, H3_INTEGRITY));
    for (int32_t i = 0; i < H3_RUN_STAGES; i++) H3_TRY(view_stage(out, i));
    for (int32_t i = 0; i < H3_RUN_STAGES; i++) H3_TRY(look_for_changes(out, i));
    return H3_OK;
}

h3_status h3_run_view_open(h3_run_view *out, const char *folder)
{
    memset(out, 0, sizeof *out);
    h3_status status = h3_path(out->folder, "%s", folder);
    if (status == H3_OK) status = open_view(out);
    if (status != H3_OK) h3_run_view_close(out);
    return status;
}

void h3_run_view_close(h3_run_view *view)
{
    for (int i = 0; i < H3_RUN_STAGES; i++) h3_run_files_free(&view->stages[i].outputs);
    memset(view, 0, sizeof *view);
}

h3_status h3_run_view_text(char **out, size_t *size, const h3_run_view *view, int stage, const char *path)
{
    char full[H3_PATH_MAX], sha256[H3_SHA256_HEX];
    const h3_run_file *listed = h3_run_files_find(&view->stages[stage].outputs, path);
    *out = NULL;
    if (listed == NULL)
        return h3_error(H3_INTEGRITY, "%s: %s does not list %s; rerun %s", view->folder, h3_stage_name(stage), path,
                        h3_stage_program(stage));
    H3_TRY(h3_run_locate(full, view->folder, path));
    H3_TRY(h3_file_read(out, size, full, OUTPUT_LIMIT, H3_INTEGRITY));
    h3_status status = h3_sha256(sha256, *out, *size);
    if (status == H3_OK && strcmp(sha256, listed->sha256) != 0)
        status = h3_error(H3_INTEGRITY, "%s has not the listed SHA-256: it has changed; rerun %s", full, h3_stage_program(stage));
    if (status == H3_OK) return H3_OK;
    free(*out);
    *out = NULL;
    return status;
}

h3_status h3_run_view_json(cJSON **out, const h3_run_view *view, int stage, const char *path)
{
    char *text, where[H3_PATH_MAX];
    size_t size;
    *out = NULL;
    H3_TRY(h3_path(where, "%s/%s", view->folder, path));
    H3_TRY(h3_run_view_text(&text, &size, view, stage, path));
    h3_status status = h3_json_parse(out, text, size, where, H3_INTEGRITY);
    free(text);
    return status;
}
