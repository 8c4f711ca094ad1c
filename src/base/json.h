/* JSON in and out. Reading is strict: one value, no trailing text, no duplicate keys, UTF-8, at most 64 levels and 4,000,000
 * values. Field getters name the field and the file in their error. Writing is deterministic. */
#ifndef H3_BASE_JSON_H
#define H3_BASE_JSON_H

#include <cJSON.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* Parses text; errors carry `status` (H3_USAGE for what a person wrote, H3_INTEGRITY for what a stage wrote) and `where`. */
h3_status h3_json_parse(cJSON **out, const char *text, size_t length, const char *where, h3_status status);
/* The same, and every number in it must be digits alone, without sign, point or exponent. */
h3_status h3_json_parse_plain(cJSON **out, const char *text, size_t length, const char *where, h3_status status);
/* Reads and parses a file of at most 256 MiB. Missing, empty, not a regular file: `status` too. */
h3_status h3_json_read(cJSON **out, const char *path, h3_status status);

/* Required fields of an object. */
h3_status h3_json_object(const cJSON **out, const cJSON *object, const char *key, const char *where, h3_status status);
h3_status h3_json_array(const cJSON **out, const cJSON *object, const char *key, const char *where, h3_status status);
h3_status h3_json_string(const char **out, const cJSON *object, const char *key, const char *where, h3_status status);
h3_status h3_json_integer(int64_t *out, const cJSON *object, const char *key, int64_t low, int64_t high, const char *where,
                          h3_status status);
/* The same check of a value that stands alone, an array's element for instance; `what` names it. Integers are exact: a
 * fraction, or 2^53 and more in parsed text, is an error. */
h3_status h3_json_integer_value(int64_t *out, const cJSON *item, const char *what, int64_t low, int64_t high, const char *where,
                                h3_status status);
h3_status h3_json_number(double *out, const cJSON *object, const char *key, const char *where, h3_status status);

/* Fails unless every key of `object` is one of the NULL-terminated `keys`. */
h3_status h3_json_only_keys(const cJSON *object, const char *const *keys, const char *where, h3_status status);

/* Text with two-space indent and a final newline, doubles as the shortest %.17g that reads back equal, NaN and infinity as null.
 * Keys stay in insertion order. Caller frees. */
h3_status h3_json_print(char **out, const cJSON *value);

/* An integer that prints as its digits. Below 2^53 it is a cJSON number, equal to the same number read from a file; beyond, where
 * cJSON's doubles are not exact, a raw item, which no reader here takes back. */
void h3_json_add_integer(cJSON *object, const char *key, int64_t value);
void h3_json_add_unsigned(cJSON *object, const char *key, uint64_t value); /* the same for seeds, which have 64 bits */

#endif
