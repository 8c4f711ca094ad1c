/* Growing HTML and XML text. Whatever comes from a file goes through h3_markup_text, which escapes it. */
#ifndef H3_REPORT_MARKUP_H
#define H3_REPORT_MARKUP_H

#include <stddef.h>

#include "base/error.h"

typedef struct h3_markup {
    char *text; /* owned; ends in 0 */
    size_t size, capacity;
    int failed; /* no memory: everything after is ignored */
} h3_markup;

/* Markup and numbers of our own; a %s must be a constant. */
void h3_markup_add(h3_markup *markup, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Text as content or as an attribute's value: & < > " ' are escaped, what XML does not allow becomes U+FFFD. NULL is nothing. */
void h3_markup_text(h3_markup *markup, const char *text);
/* In place: what is not UTF-8, or not part of one line, becomes '?'. */
void h3_markup_clean(char *text);
/* A number in four digits, "not a number" for a NaN. */
void h3_markup_number(h3_markup *markup, double value);
/* <tag class="class">text</tag>; class NULL: without. */
void h3_markup_element(h3_markup *markup, const char *tag, const char *class, const char *text);
/* Appends another one and empties it. */
void h3_markup_take(h3_markup *markup, h3_markup *other);
void h3_markup_free(h3_markup *markup);
/* The text becomes the caller's; H3_ENVIRONMENT when there was no memory for it. */
h3_status h3_markup_finish(h3_markup *markup, char **out);

#endif
