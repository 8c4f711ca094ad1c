/* The grammar check that stands before cJSON, which takes more than JSON allows: bare control characters, bad UTF-8, "01",
 * "1e999". */
#ifndef H3_BASE_JSON_SCAN_H
#define H3_BASE_JSON_SCAN_H

#include <stddef.h>

enum { H3_JSON_DEPTH = 64, H3_JSON_VALUES = 4000000, H3_JSON_NUMBER = 48 };

/* NULL when `text` is exactly one strict JSON value (at most H3_JSON_DEPTH levels, H3_JSON_VALUES values, numbers of at most
 * H3_JSON_NUMBER characters and finite); otherwise what is wrong, and its byte offset. With `plain_integers` every number must
 * be digits alone: no sign, point or exponent. */
const char *h3_json_scan(const char *text, size_t length, int plain_integers, size_t *offset);

#endif
