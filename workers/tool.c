#include "tool.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef H3_BUILD_REVISION
#define H3_BUILD_REVISION "unknown"
#endif

static const char *name_of(char **argv)
{
    const char *slash = strrchr(argv[0], '/');
    return slash != NULL ? slash + 1 : argv[0];
}

h3_status h3_options_parse(const h3_option *options, size_t count, int argc, char **argv, const char *help, int *done)
{
    const char *program = name_of(argv);
    signal(SIGXFSZ, SIG_IGN); /* a limit on file sizes is an error of write, and not a crash */
    *done = 0;
    for (int i = 1; i < argc; i++) {
        size_t j = 0;
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "--version") == 0) {
            if (argv[i][2] == 'h') fputs(help, stdout);
            else printf("%s %s\n", program, H3_BUILD_REVISION);
            *done = 1;
            return H3_OK;
        }
        while (j < count && strcmp(argv[i], options[j].name) != 0) j++;
        if (j == count) return h3_error(H3_USAGE, "unknown option \"%s\"; see %s --help", argv[i], program);
        if (options[j].flag != NULL) {
            *options[j].flag = 1;
            continue;
        }
        if (*options[j].text != NULL) return h3_error(H3_USAGE, "%s is given twice; see %s --help", argv[i], program);
        if (i + 1 >= argc || argv[i + 1][0] == 0) return h3_error(H3_USAGE, "%s needs a value; see %s --help", argv[i], program);
        *options[j].text = argv[++i];
    }
    return H3_OK;
}

h3_status h3_option_number(int64_t *out, const char *text, int64_t fallback, int64_t most, const char *name)
{
    char *end;
    *out = fallback;
    if (text == NULL) return H3_OK;
    errno = 0;
    const long long value = strtoll(text, &end, 10);
    if (*end != 0 || errno != 0 || value < 1 || value > most) return h3_error(H3_USAGE, "%s %s: give a number from 1 to %lld", name, text, (long long)most);
    *out = value;
    return H3_OK;
}
