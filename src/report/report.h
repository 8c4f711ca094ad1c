/*
 * What a run has shown, for people and for machines: report.json (docs/report.md), report.html (one file, nothing outside it) and
 * junit.xml, beside the plan in the run directory. They are made from the outputs of the stages alone: no times, hosts or paths,
 * the same run gives the same bytes. They are no stage's outputs: nothing reads them, and h3_verify makes them again to see
 * whether they still say what the stages say.
 */
#ifndef H3_REPORT_REPORT_H
#define H3_REPORT_REPORT_H

#include "base/text.h"

enum { H3_REPORT_JSON, H3_REPORT_HTML, H3_REPORT_JUNIT, H3_REPORT_FILES };
extern const char *const h3_report_files[H3_REPORT_FILES];

typedef struct h3_report {
    char verdict[16]; /* "VALID", "INVALID", "PARTIAL" (a gate that is no acceptance), "INCOMPLETE" (stages missing or stale) */
    char sentence[600];         /* the verdict in words, one line */
    char digest[H3_SHA256_HEX]; /* SHA-256 of report.json */
    char *text[H3_REPORT_FILES]; /* owned */
} h3_report;

/* Reads what it needs from the run, verified against the stages' listings: H3_INTEGRITY names what is damaged. A run that is not
 * complete has a report too, which says what is missing. H3_USAGE when there is no run in the folder. On failure `out` is empty.
 */
h3_status h3_report_make(h3_report *out, const char *run_folder);
void h3_report_free(h3_report *report);

/* Publishes the three files; report.json comes last. */
h3_status h3_report_write(const h3_report *report, const char *run_folder);
/* H3_INTEGRITY, naming the file, unless the three files in the run are these or (*present is 0) none of them is there. */
h3_status h3_report_check(const h3_report *report, const char *run_folder, int *present);

#endif
