/* The command line that all stage programs share. */
#ifndef H3_WORKERS_ARGS_H
#define H3_WORKERS_ARGS_H

#include "base/error.h"

typedef struct h3_args {
    const char *program;
    const char *plan, *run, *device;       /* --plan FILE --run DIR --device cpu|cuda */
    const char *decoders;                  /* --decoders DIR */
    const char *checkpoint, *case_file, *precision, *out, *operators; /* --checkpoint --case --precision --out --operators */
    const char *only, *side;               /* --only GLOB, --side provider|candidate */
    const char *hashes, *key;
    int resume, list, dry_run, allow_dirty, repeat;
    double watchdog;                       /* --watchdog SECONDS, default 60 */
    int positional_count;
    const char *positional[4];
    const char *internal;                  /* --internal-replay FILE: the gate's second process */
} h3_args;

/* Bits: which options a program takes besides --help and --version. */
enum {
    H3_ARG_PLAN = 1, H3_ARG_CASE = 2, H3_ARG_GATE = 4, H3_ARG_SIDE = 8, H3_ARG_VERIFY = 16, H3_ARG_REPORT = 32,
};

/* Parses; prints --help (the text `help`) or --version and sets *done. Unknown or incomplete options are H3_USAGE. */
h3_status h3_args_parse(h3_args *args, int argc, char **argv, int accepted, const char *help, int *done);

/* Ends a program: prints the message of a failure ("program: message") and gives the exit code. */
int h3_exit(const char *program, h3_status status);

#endif
