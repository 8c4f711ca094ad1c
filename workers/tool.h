/* The command line of the small programs that are no stages: a table of options, --help and --version. */
#ifndef H3_WORKERS_TOOL_H
#define H3_WORKERS_TOOL_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef struct h3_option {
    const char *name;
    const char **text; /* takes a value, once */
    int *flag;         /* or sets a flag */
} h3_option;

/* Parses; prints --help (the text `help`) or --version and sets *done. Unknown, incomplete or doubled options are H3_USAGE. */
h3_status h3_options_parse(const h3_option *options, size_t count, int argc, char **argv, const char *help, int *done);

/* A number of 1 to `most` in an option's value; NULL gives `fallback`. H3_USAGE naming the option. */
h3_status h3_option_number(int64_t *out, const char *text, int64_t fallback, int64_t most, const char *name);

#endif
