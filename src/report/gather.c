/* Reading what a report is made from, and the small readers of JSON that the parts of the report share. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "report/data.h"

const cJSON *h3_item_of(const cJSON *object, const char *key) { return cJSON_GetObjectItemCaseSensitive(object, key); }

const char *h3_text_of(const cJSON *object, const char *key)
{
    const char *text = cJSON_GetStringValue(h3_item_of(object, key));
    return text != NULL ? text : "";
}

double h3_number_of(const cJSON *object, const char *key)
{
    const cJSON *item = h3_item_of(object, key);
    return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

int64_t h3_count_of(const cJSON *object, const char *key)
{
    double value = h3_number_of(object, key);
    return value >= 0.0 && value < 0x1p53 ? (int64_t)value : 0;
}

void h3_words_of(char *out, size_t size, const char *name)
{
    snprintf(out, size, "%s", name);
    for (char *c = out; *c; c++)
        if (*c == '_') *c = ' ';
}

const char *h3_check_words(const char *kind)
{
    static const char *const words[][2] = {{"execution", "execution by the bound operator"},
                                           {"repeat", "repeat, bit for bit"},
                                           {"batch", "independence of neighbouring rows"},
                                           {"promise", "promised equality with the provider"},
                                           {"error", "isolated error"},
                                           {"bias", "isolated bias"},
                                           {"worst_row", "worst row"},
                                           {"chained", "chained error"},
                                           {"process", "same bits in a second process"}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(words[i][0], kind) == 0) return words[i][1];
    return kind;
}

int64_t h3_block_of(const char *tensor)
{
    static const char *const marks[] = {".block", "transformer_blocks."};
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
        const char *found = strstr(tensor, marks[i]);
        if (found == NULL) continue;
        const char *digits = found + strlen(marks[i]);
        size_t length = strspn(digits, "0123456789");
        if (length > 0 && length < 7 && digits[length] == '.') return strtol(digits, NULL, 10);
    }
    return -1;
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

static h3_status read_plan(h3_report_data *out)
{
    char path[H3_PATH_MAX];
    H3_TRY(h3_run_locate(path, out->view.folder, "plan.json"));
    h3_status status = h3_plan_read(&out->plan, path);
    if (status == H3_USAGE) return h3_error_context(H3_INTEGRITY, "the plan of this run");
    return status;
}

static h3_status read_outputs(h3_report_data *out)
{
    static const struct {
        int stage;
        const char *path;
        size_t offset;
    } files[] = {{0, "reference-manifest.json", offsetof(h3_report_data, manifest)},
                 {1, "thresholds.json", offsetof(h3_report_data, thresholds)},
                 {2, "generate-provider.json", offsetof(h3_report_data, provider)},
                 {3, "gate.json", offsetof(h3_report_data, gate)},
                 {4, "generate-candidate.json", offsetof(h3_report_data, candidate)},
                 {5, "compare.json", offsetof(h3_report_data, compare)}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (out->usable[files[i].stage])
            H3_TRY(
                h3_run_view_json((cJSON **)(void *)((char *)out + files[i].offset), &out->view, files[i].stage, files[i].path));
    return H3_OK;
}

static h3_status check_verdict(const h3_report_data *data, int stage, const cJSON *report, const char *path)
{
    if (report == NULL || strcmp(h3_text_of(report, "verdict"), data->view.stages[stage].verdict) == 0) return H3_OK;
    return h3_error(H3_INTEGRITY, "%s/%s has another verdict than its stage.json; rerun %s", data->view.folder, path,
                    h3_run_stage_program(stage));
}

static h3_status gather(h3_report_data *out, const char *run_folder)
{
    H3_TRY(h3_run_view_open(&out->view, run_folder));
    H3_TRY(read_plan(out));
    for (int i = 0; i < H3_RUN_STAGES; i++) {
        const char *name = h3_run_stage_name(i);
        int generates = strncmp(name, "generate", 8) == 0 || strcmp(name, "compare") == 0;
        out->needed[i] = strcmp(name, "diagnose") != 0 && (!generates || out->plan.generation != NULL);
        out->usable[i] = out->view.stages[i].present && out->view.stages[i].fresh;
    }
    H3_TRY(read_outputs(out));
    H3_TRY(check_verdict(out, H3_REPORT_STAGE_GATE, out->gate, "gate.json"));
    H3_TRY(check_verdict(out, H3_REPORT_STAGE_COMPARE, out->compare, "compare.json"));
    h3_report_judge(out);
    return H3_OK;
}

h3_status h3_report_gather(h3_report_data *out, const char *run_folder)
{
    memset(out, 0, sizeof *out);
    return gather(out, run_folder);
}

void h3_report_data_free(h3_report_data *data)
{
    cJSON_Delete(data->manifest);
    cJSON_Delete(data->thresholds);
    cJSON_Delete(data->gate);
    cJSON_Delete(data->compare);
    cJSON_Delete(data->provider);
    cJSON_Delete(data->candidate);
    h3_plan_free(&data->plan);
    h3_run_view_close(&data->view);
    memset(data, 0, sizeof *data);
}
