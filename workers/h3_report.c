/* Writes report.json, report.html and junit.xml of a run, however far it has come. No stage: nothing reads them, and no verdict
 * depends on them. */
#include "args.h"
#include "base/log.h"
#include "report/report.h"

static const char help[] =
    "h3_report - what a run has shown: report.json, report.html and junit.xml in its folder\n"
    "\n"
    "  h3_report --run DIR\n"
    "      reads plan.json and the outputs of the stages, each with its listed hash, and refuses what has changed\n"
    "      VALID       every stage passed\n"
    "      INVALID     the gate or the comparison failed; the report says where and by how much\n"
    "      PARTIAL     the gate passed, but with --only or --allow-dirty: no acceptance\n"
    "      INCOMPLETE  stages are missing or stale; the report says which\n"
    "  the files hold no times, hosts or paths: the same run gives the same bytes, and h3_verify run sees when they are out of "
    "date\n"
    "\n"
    "  exit codes: 0 written, whatever the verdict; 2 usage, 3 damaged run, 4 environment\n"
    "  example: bin/h3_report --run evidence/demo\n";

static h3_status write_report(const h3_args *args)
{
    h3_report report;
    if (args->run == NULL) return h3_error(H3_USAGE, "--run DIR is needed; see %s --help", args->program);
    H3_TRY(h3_report_make(&report, args->run));
    h3_status status = h3_report_write(&report, args->run);
    if (status == H3_OK) h3_say("%s: %s", report.verdict, report.sentence);
    if (status == H3_OK) h3_say("report   %s/report.html  digest %.8s", args->run, report.digest);
    h3_report_free(&report);
    return status;
}

int main(int argc, char **argv)
{
    h3_args args;
    int done;
    h3_status status = h3_args_parse(&args, argc, argv, H3_ARG_REPORT, help, &done);
    if (status == H3_OK && !done) status = write_report(&args);
    return h3_exit(args.program, status);
}
