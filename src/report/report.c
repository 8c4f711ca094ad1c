#include "report/report.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "report/data.h"
#include "store/publish.h"

const char *const h3_report_files[H3_REPORT_FILES] = {"report.json", "report.html", "junit.xml"};
enum { FILE_LIMIT = 256 << 20 };

static h3_status make(h3_report *out, const h3_report_data *data)
{
    strcpy(out->verdict, data->verdict);
    strcpy(out->sentence, data->sentence);
    H3_TRY(h3_report_json(&out->text[H3_REPORT_JSON], data));
    H3_TRY(h3_report_html(&out->text[H3_REPORT_HTML], data));
    H3_TRY(h3_report_junit(&out->text[H3_REPORT_JUNIT], data));
    return h3_sha256(out->digest, out->text[H3_REPORT_JSON], strlen(out->text[H3_REPORT_JSON]));
}

h3_status h3_report_make(h3_report *out, const char *run_folder)
{
    memset(out, 0, sizeof *out);
    h3_report_data *data = malloc(sizeof *data);
    if (data == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for a report");
    h3_status status = h3_report_gather(data, run_folder);
    if (status == H3_OK) status = make(out, data);
    h3_report_data_free(data);
    free(data);
    if (status != H3_OK) h3_report_free(out);
    return status;
}

void h3_report_free(h3_report *report)
{
    for (int i = 0; i < H3_REPORT_FILES; i++) free(report->text[i]);
    memset(report, 0, sizeof *report);
}

h3_status h3_report_write(const h3_report *report, const char *run_folder)
{
    char path[H3_PATH_MAX];
    for (int i = H3_REPORT_FILES - 1; i >= 0; i--) {
        H3_TRY(h3_path(path, "%s/%s", run_folder, h3_report_files[i]));
        H3_TRY(h3_publish(path, report->text[i], strlen(report->text[i])));
    }
    return H3_OK;
}

static h3_status check_file(const char *path, const char *expected, const char *run_folder)
{
    char *text;
    size_t size;
    H3_TRY(h3_file_read(&text, &size, path, FILE_LIMIT, H3_INTEGRITY));
    int same = size == strlen(expected) && memcmp(text, expected, size) == 0;
    free(text);
    return same ? H3_OK
                : h3_error(
                      H3_INTEGRITY,
                      "%s is not what the stages of this run give: changed, or out of date; h3_report --run %s writes it again",
                      path, run_folder);
}

h3_status h3_report_check(const h3_report *report, const char *run_folder, int *present)
{
    char path[H3_PATH_MAX];
    struct stat info;
    int there = 0;
    for (int i = 0; i < H3_REPORT_FILES; i++) {
        H3_TRY(h3_path(path, "%s/%s", run_folder, h3_report_files[i]));
        there += lstat(path, &info) == 0;
    }
    *present = there > 0;
    for (int i = 0; i < H3_REPORT_FILES && there > 0; i++) {
        H3_TRY(h3_path(path, "%s/%s", run_folder, h3_report_files[i]));
        H3_TRY(check_file(path, report->text[i], run_folder));
    }
    return H3_OK;
}
