#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MESSAGE_SIZE = 1024 };
static _Thread_local char message[MESSAGE_SIZE];

/* A message is one line whatever file it quotes: control characters become '?'. */
static void keep_one_line(void)
{
    for (char *c = message; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
}

h3_status h3_error(h3_status status, const char *format, ...)
{
    char text[MESSAGE_SIZE]; /* the arguments may point into the old message */
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    memcpy(message, text, sizeof text);
    keep_one_line();
    return status;
}

h3_status h3_error_context(h3_status status, const char *format, ...)
{
    char context[MESSAGE_SIZE], text[MESSAGE_SIZE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(context, sizeof context, format, arguments);
    va_end(arguments);
    memcpy(text, message, sizeof text);
    snprintf(message, sizeof message, "%.500s: %.500s", context, text);
    keep_one_line();
    return status;
}

const char *h3_error_text(void) { return message; }
