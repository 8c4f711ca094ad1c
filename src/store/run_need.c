/* What a stage reads: predecessors, staleness, verified inputs. */
#include <omp.h>
#include <string.h>

#include "store/run_internal.h"

/* One stage that `stage` needed: there, of this plan, with the verdict that it had then, and not stale itself. */
static h3_status check_needed(h3_stage *out, const h3_stage *stage, const h3_run_needed *needed, const char *folder,
                              const char *plan_sha256)
{
    const char *name = h3_stage_name(needed->stage);
    H3_TRY(h3_stage_load(out, folder, needed->stage, plan_sha256));
    if (strcmp(out->verdict, needed->verdict) != 0)
        return h3_error(H3_INTEGRITY, "%s was rerun and its verdict is now %s, not %s; rerun %s", name, out->verdict,
                        needed->verdict, h3_stage_program(h3_verdict_passes(out->verdict) ? stage->index : needed->stage));
    return h3_stage_fresh(out, folder, plan_sha256);
}

static h3_status check_input(const h3_stage *stage, const h3_run_file *input, const h3_stage *needed)
{
    const char *program = h3_stage_program(stage->index);
    for (int32_t i = 0; i < stage->needed_count; i++) {
        const h3_run_file *now = h3_run_files_find(&needed[i].outputs, input->path);
        if (now == NULL) continue;
        if (now->size == input->size && strcmp(now->sha256, input->sha256) == 0) return H3_OK;
        return h3_error(H3_INTEGRITY, "%s was rerun and %s changed; rerun %s", h3_stage_name(needed[i].index), input->path,
                        program);
    }
    return h3_error(H3_INTEGRITY, "%s, which it read, is no longer written by a stage that it needs; rerun %s", input->path,
                    program);
}

h3_status h3_stage_fresh(const h3_stage *stage, const char *folder, const char *plan_sha256)
{
    h3_stage needed[H3_RUN_STAGES] = {0};
    h3_status status = H3_OK;
    for (int32_t i = 0; i < stage->needed_count && status == H3_OK; i++)
        status = check_needed(&needed[i], stage, &stage->needed[i], folder, plan_sha256);
    for (size_t i = 0; i < stage->inputs.count && status == H3_OK; i++)
        status = check_input(stage, &stage->inputs.items[i], needed);
    for (int32_t i = 0; i < stage->needed_count; i++) h3_stage_free(&needed[i]);
    return status == H3_OK ? H3_OK : h3_error_context(status, "%s is stale", h3_stage_name(stage->index));
}

static h3_status check_verdict(const h3_stage *stage, const char *wanted)
{
    const char *name = h3_stage_name(stage->index), *program = h3_stage_program(stage->index);
    if (wanted == NULL ? h3_verdict_passes(stage->verdict) : strcmp(stage->verdict, wanted) == 0) return H3_OK;
    if (strcmp(stage->verdict, "PARTIAL") == 0)
        return h3_error(H3_INTEGRITY, "%s is only PARTIAL, which no later stage accepts; run %s without --only and --allow-dirty",
                        name, program);
    if (!h3_verdict_passes(stage->verdict))
        return h3_error(H3_INTEGRITY, "%s did not pass (%s); correct the cause and rerun %s", name, stage->verdict, program);
    return h3_error(H3_INTEGRITY, "%s has the verdict %s where %s is needed; rerun %s", name, stage->verdict, wanted, program);
}

/* Kept in the order of stages, each once. */
static void record_needed(h3_run *run, const h3_stage *stage)
{
    int32_t at = 0;
    while (at < run->needed_count && run->needed[at].stage < stage->index) at++;
    if (at == run->needed_count || run->needed[at].stage != stage->index) {
        memmove(&run->needed[at + 1], &run->needed[at], (size_t)(run->needed_count - at) * sizeof *run->needed);
        run->needed_count++;
    }
    run->needed[at].stage = stage->index;
    strcpy(run->needed[at].verdict, stage->verdict);
}

h3_status h3_run_need(h3_run *run, const char *predecessor, const char *verdict, h3_run_files *outputs)
{
    h3_stage stage;
    int32_t index = h3_stage_index(predecessor);
    *outputs = (h3_run_files){0};
    if (index < 0 || index >= h3_stage_index(run->stage))
        return h3_error(H3_USAGE, "%s cannot need the stage \"%.60s\"", run->stage, predecessor);
    h3_status status = h3_stage_load(&stage, run->folder, index, run->plan_sha256);
    if (status == H3_OK) status = check_verdict(&stage, verdict);
    if (status == H3_OK) status = h3_stage_fresh(&stage, run->folder, run->plan_sha256);
    if (status == H3_OK) {
        record_needed(run, &stage);
        *outputs = stage.outputs;
        outputs->program = h3_stage_program(index);
        stage.outputs = (h3_run_files){0};
    }
    h3_stage_free(&stage);
    return status;
}

static h3_status find_listed(const h3_run_file **out, const h3_run_files *listed, const char *path)
{
    *out = h3_run_files_find(listed, path);
    if (*out != NULL) return H3_OK;
    return h3_error(H3_INTEGRITY, "%s is not listed by the stage that should have written it; rerun %s", path,
                    h3_run_writer(listed));
}

static h3_status record_input(h3_run *run, const h3_run_file *file)
{
    const h3_run_file *earlier = h3_run_files_find(&run->inputs, file->path);
    if (earlier == NULL) return h3_run_files_add(&run->inputs, file->path, file->size, file->sha256);
    if (earlier->size == file->size && strcmp(earlier->sha256, file->sha256) == 0) return H3_OK;
    return h3_error(H3_INTEGRITY, "%s is listed by two stages with different hashes; start a new run", file->path);
}

static h3_status verify_and_record(h3_run *run, const h3_run_files *listed, const h3_run_file *file)
{
    H3_TRY(h3_run_verify_file(run->folder, file, h3_run_writer(listed)));
    return record_input(run, file);
}

h3_status h3_run_verify(h3_run *run, const h3_run_files *listed, const char *path)
{
    const h3_run_file *file;
    H3_TRY(find_listed(&file, listed, path));
    return verify_and_record(run, listed, file);
}

static int is_wanted(const h3_run_file *file, const char *prefix) { return strncmp(file->path, prefix, strlen(prefix)) == 0; }

/* Number of the first file that is not as listed; listed->count when all are. All cores hash, whatever OMP_NUM_THREADS says: the job's other ranks wait. */
static size_t first_changed(const h3_run *run, const h3_run_files *listed, const char *prefix)
{
    size_t first = listed->count;
#pragma omp parallel for schedule(dynamic) num_threads(omp_get_num_procs()) reduction(min : first)
    for (size_t i = 0; i < listed->count; i++)
        if (is_wanted(&listed->items[i], prefix) && h3_run_verify_file(run->folder, &listed->items[i], h3_run_writer(listed)) != H3_OK && i < first) first = i;
    return first;
}

h3_status h3_run_verify_all(h3_run *run, const h3_run_files *listed, const char *prefix)
{
    size_t verified = 0, changed = first_changed(run, listed, prefix);
    if (changed < listed->count) H3_TRY(h3_run_verify_file(run->folder, &listed->items[changed], h3_run_writer(listed))); /* again, for its words */
    for (size_t i = 0; i < listed->count; i++) {
        if (!is_wanted(&listed->items[i], prefix)) continue;
        H3_TRY(record_input(run, &listed->items[i]));
        verified++;
    }
    if (verified > 0) return H3_OK;
    return h3_error(H3_INTEGRITY, "no file \"%s*\" is listed by the stage that should have written it; rerun %s", prefix,
                    h3_run_writer(listed));
}

h3_status h3_run_record(h3_run *run, const h3_run_files *listed, const char *path)
{
    const h3_run_file *file;
    H3_TRY(find_listed(&file, listed, path));
    return record_input(run, file);
}
