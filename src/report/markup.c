#include "report/markup.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REPLACEMENT "\xef\xbf\xbd"

static void put(h3_markup *out, const char *text, size_t length)
{
    if (out->failed) return;
    if (out->capacity - out->size <= length) {
        size_t capacity = 2 * (out->size + length + 1);
        char *grown = realloc(out->text, capacity);
        if (grown == NULL) {
            out->failed = 1;
            return;
        }
        out->text = grown;
        out->capacity = capacity;
    }
    memcpy(out->text + out->size, text, length);
    out->size += length;
    out->text[out->size] = 0;
}

void h3_markup_add(h3_markup *markup, const char *format, ...)
{
    char *text;
    va_list arguments;
    va_start(arguments, format);
    int length = vasprintf(&text, format, arguments);
    va_end(arguments);
    if (length < 0) {
        markup->failed = 1;
        return;
    }
    put(markup, text, (size_t)length);
    free(text);
}

/* Bytes of the UTF-8 character at `c` that XML allows; 0 when there is none. */
static size_t character(const unsigned char *c)
{
    if (c[0] < 0x80) return (c[0] >= 0x20 && c[0] != 0x7f) || c[0] == '\t' || c[0] == '\n';
    size_t length = c[0] >= 0xc2 && c[0] < 0xe0 ? 2 : c[0] >= 0xe0 && c[0] < 0xf0 ? 3 : c[0] >= 0xf0 && c[0] < 0xf5 ? 4 : 0;
    for (size_t i = 1; i < length; i++)
        if ((c[i] & 0xc0) != 0x80) return 0;
    if (length == 3 && ((c[0] == 0xe0 && c[1] < 0xa0) || (c[0] == 0xed && c[1] >= 0xa0)))
        return 0; /* too long a form, a surrogate */
    if (length == 4 && ((c[0] == 0xf0 && c[1] < 0x90) || (c[0] == 0xf4 && c[1] >= 0x90)))
        return 0; /* too long a form, beyond Unicode */
    if (length == 3 && c[0] == 0xef && c[1] == 0xbf && c[2] >= 0xbe) return 0;                            /* U+FFFE, U+FFFF */
    return length;
}

void h3_markup_clean(char *text)
{
    for (unsigned char *c = (unsigned char *)text; *c;) {
        size_t length = *c == '\t' || *c == '\n' ? 0 : character(c);
        if (length == 0) *c = '?';
        c += length > 0 ? length : 1;
    }
}

void h3_markup_text(h3_markup *markup, const char *text)
{
    if (text == NULL) return;
    for (const unsigned char *c = (const unsigned char *)text; *c;) {
        size_t length = character(c);
        if (*c == '&') put(markup, "&amp;", 5);
        else if (*c == '<') put(markup, "&lt;", 4);
        else if (*c == '>') put(markup, "&gt;", 4);
        else if (*c == '"') put(markup, "&quot;", 6);
        else if (*c == '\'') put(markup, "&#39;", 5);
        else if (length == 0) put(markup, REPLACEMENT, 3);
        else put(markup, (const char *)c, length);
        c += length > 0 ? length : 1;
    }
}

void h3_markup_number(h3_markup *markup, double value)
{
    if (isnan(value)) h3_markup_add(markup, "not a number");
    else h3_markup_add(markup, "%.4g", value);
}

void h3_markup_element(h3_markup *markup, const char *tag, const char *class, const char *text)
{
    if (class != NULL) h3_markup_add(markup, "<%s class=\"%s\">", tag, class);
    else h3_markup_add(markup, "<%s>", tag);
    h3_markup_text(markup, text);
    h3_markup_add(markup, "</%s>", tag);
}

void h3_markup_take(h3_markup *markup, h3_markup *other)
{
    if (other->failed) markup->failed = 1;
    else if (other->size > 0) put(markup, other->text, other->size);
    h3_markup_free(other);
}

void h3_markup_free(h3_markup *markup)
{
    free(markup->text);
    *markup = (h3_markup){0};
}

h3_status h3_markup_finish(h3_markup *markup, char **out)
{
    *out = NULL;
    if (markup->failed || markup->text == NULL) {
        h3_markup_free(markup);
        return h3_error(H3_ENVIRONMENT, "out of memory for a report");
    }
    *out = markup->text;
    *markup = (h3_markup){0};
    return H3_OK;
}
