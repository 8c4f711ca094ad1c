#include "args.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

#ifndef H3_BUILD_REVISION
#define H3_BUILD_REVISION "unknown"
#endif

typedef struct option {
    const char *name;
    int accepted_by;
    const char **text; /* takes a value */
    int *flag;         /* or sets a flag */
} option;

static h3_status take_value(const h3_args *args, int argc, char **argv, int *i, const char **out)
{
    if (*i + 1 >= argc || argv[*i + 1][0] == 0) return h3_error(H3_USAGE, "%s needs a value; see %s --help", argv[*i], args->program);
    *out = argv[++*i];
    return H3_OK;
}

static h3_status check_values(const h3_args *args, const char *watchdog, double *seconds)
{
    if (args->device != NULL && strcmp(args->device, "cpu") != 0 && strcmp(args->device, "cuda") != 0)
        return h3_error(H3_USAGE, "--device %s: use cpu or cuda", args->device);
    if (args->precision != NULL && strcmp(args->precision, "fp32") != 0 && strcmp(args->precision, "bf16") != 0)
        return h3_error(H3_USAGE, "--precision %s: use fp32 or bf16", args->precision);
    if (args->side != NULL && strcmp(args->side, "provider") != 0 && strcmp(args->side, "candidate") != 0)
        return h3_error(H3_USAGE, "--side %s: use provider or candidate", args->side);
    *seconds = 60.0;
    if (watchdog != NULL) {
        char *end;
        *seconds = strtod(watchdog, &end);
        if (*end != 0 || !(*seconds >= 1.0 && *seconds <= 86400.0)) return h3_error(H3_USAGE, "--watchdog %s: give seconds from 1 to 86400", watchdog);
    }
    return H3_OK;
}

h3_status h3_args_parse(h3_args *args, int argc, char **argv, int accepted, const char *help, int *done)
{
    const char *watchdog = NULL;
    const char *slash = strrchr(argv[0], '/');
    memset(args, 0, sizeof *args);
    signal(SIGXFSZ, SIG_IGN); /* a limit on file sizes is an error of write, with its exit code, and not a crash */
    args->program = slash != NULL ? slash + 1 : argv[0];
    const option options[] = {
        {"--plan", H3_ARG_PLAN, &args->plan, NULL}, {"--run", H3_ARG_PLAN | H3_ARG_REPORT, &args->run, NULL}, {"--device", H3_ARG_PLAN | H3_ARG_CASE, &args->device, NULL},
        {"--resume", H3_ARG_PLAN, NULL, &args->resume}, {"--watchdog", H3_ARG_PLAN, &watchdog, NULL}, {"--checkpoint", H3_ARG_PLAN | H3_ARG_CASE, &args->checkpoint, NULL},
        {"--decoders", H3_ARG_PLAN, &args->decoders, NULL},
        {"--case", H3_ARG_CASE | H3_ARG_GATE, &args->case_file, NULL}, {"--precision", H3_ARG_CASE, &args->precision, NULL},
        {"--out", H3_ARG_CASE, &args->out, NULL}, {"--operators", H3_ARG_CASE, &args->operators, NULL}, {"--only", H3_ARG_GATE, &args->only, NULL},
        {"--list", H3_ARG_GATE, NULL, &args->list}, {"--dry-run", H3_ARG_GATE, NULL, &args->dry_run}, {"--allow-dirty", H3_ARG_GATE, NULL, &args->allow_dirty},
        {"--internal-replay", H3_ARG_GATE, &args->internal, NULL}, {"--side", H3_ARG_SIDE, &args->side, NULL}, {"--repeat", H3_ARG_SIDE, NULL, &args->repeat},
        {"--hashes", H3_ARG_VERIFY, &args->hashes, NULL}, {"--key", H3_ARG_VERIFY, &args->key, NULL},
    };
    *done = 0;
    for (int i = 1; i < argc; i++) {
        size_t j, count = sizeof options / sizeof *options;
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "--version") == 0) {
            if (argv[i][2] == 'h') fputs(help, stdout);
            else printf("%s %s\n", args->program, H3_BUILD_REVISION);
            *done = 1;
            return H3_OK;
        }
        for (j = 0; j < count && (strcmp(argv[i], options[j].name) != 0 || (options[j].accepted_by & accepted) == 0); j++)
            continue;
        if (j < count && options[j].flag != NULL) {
            *options[j].flag = 1;
        } else if (j < count) {
            if (*options[j].text != NULL) return h3_error(H3_USAGE, "%s is given twice; see %s --help", argv[i], args->program);
            H3_TRY(take_value(args, argc, argv, &i, options[j].text));
        } else if (argv[i][0] != '-' && (accepted & H3_ARG_VERIFY) && args->positional_count < 4) {
            args->positional[args->positional_count++] = argv[i];
        } else {
            return h3_error(H3_USAGE, "unknown option \"%s\"; see %s --help", argv[i], args->program);
        }
    }
    return check_values(args, watchdog, &args->watchdog);
}

int h3_exit(const char *program, h3_status status)
{
    if (status != H3_OK && h3_error_text()[0] != 0) h3_complain(program, h3_error_text());
    return (int)status;
}
