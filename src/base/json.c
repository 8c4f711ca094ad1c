#include "base/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_scan.h"
#include "base/text.h"

enum { FILE_LIMIT = 256 * 1024 * 1024 };
static const double EXACT_LIMIT = 9007199254740992.0; /* 2^53: from here on a double may stand for several integers */

static int compare_keys(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

static h3_status check_own_keys(const cJSON *object, const char *where, h3_status status)
{
    size_t count = 0;
    const cJSON *child;
    cJSON_ArrayForEach(child, object) count++;
    if (count < 2) return H3_OK;
    const char **keys = malloc(count * sizeof *keys);
    if (keys == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for the %zu keys of an object in %s", count, where);
    count = 0;
    cJSON_ArrayForEach(child, object) keys[count++] = child->string;
    qsort(keys, count, sizeof *keys, compare_keys);
    h3_status result = H3_OK;
    for (size_t i = 1; i < count && result == H3_OK; i++)
        if (strcmp(keys[i - 1], keys[i]) == 0)
            result = h3_error(status, "%s: duplicate key \"%.200s\"; keep only one", where, keys[i]);
    free(keys);
    return result;
}

/* The scan has bounded the depth of this recursion. */
static h3_status check_keys(const cJSON *value, const char *where, h3_status status)
{
    const cJSON *child;
    if (cJSON_IsObject(value)) H3_TRY(check_own_keys(value, where, status));
    cJSON_ArrayForEach(child, value) H3_TRY(check_keys(child, where, status));
    return H3_OK;
}

static h3_status syntax_error(const char *text, size_t offset, const char *problem, const char *where, h3_status status)
{
    size_t line = 1, column = 1;
    for (size_t i = 0; i < offset; i++) {
        if (text[i] == '\n') line++, column = 0;
        column++;
    }
    return h3_error(status, "%s: no valid JSON at line %zu column %zu: %s; correct it", where, line, column, problem);
}

static h3_status parse(cJSON **out, const char *text, size_t length, int plain_integers, const char *where, h3_status status)
{
    size_t offset;
    *out = NULL;
    if (length == 0) return h3_error(status, "%s: empty where JSON was expected; write it again", where);
    if (length >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) return h3_error(status, "%s: begins with a byte order mark; save it as UTF-8 without one", where);
    const char *problem = h3_json_scan(text, length, plain_integers, &offset);
    if (problem != NULL) return syntax_error(text, offset, problem, where, status);
    cJSON *value = cJSON_ParseWithLength(text, length);
    /* The grammar has been checked, so that only memory can be missing. */
    if (value == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for the JSON of %s", where);
    h3_status result = check_keys(value, where, status);
    if (result != H3_OK) cJSON_Delete(value);
    else *out = value;
    return result;
}

h3_status h3_json_parse(cJSON **out, const char *text, size_t length, const char *where, h3_status status)
{
    return parse(out, text, length, 0, where, status);
}

h3_status h3_json_parse_plain(cJSON **out, const char *text, size_t length, const char *where, h3_status status)
{
    return parse(out, text, length, 1, where, status);
}

h3_status h3_json_read(cJSON **out, const char *path, h3_status status)
{
    char *text;
    size_t size;
    *out = NULL;
    H3_TRY(h3_file_read(&text, &size, path, FILE_LIMIT, status));
    h3_status result = h3_json_parse(out, text, size, path, status);
    free(text);
    return result;
}

static h3_status field(const cJSON **out, const cJSON *object, const char *key, const char *where, h3_status status)
{
    *out = NULL;
    if (!cJSON_IsObject(object)) return h3_error(status, "%s: an object with the field \"%s\" was expected", where, key);
    *out = cJSON_GetObjectItemCaseSensitive(object, key);
    if (*out == NULL) return h3_error(status, "%s: the field \"%s\" is missing; add it", where, key);
    return H3_OK;
}

static h3_status wrong_kind(const char *key, const char *kind, const char *where, h3_status status)
{
    return h3_error(status, "%s: the field \"%s\" must be %s", where, key, kind);
}

h3_status h3_json_object(const cJSON **out, const cJSON *object, const char *key, const char *where, h3_status status)
{
    H3_TRY(field(out, object, key, where, status));
    return cJSON_IsObject(*out) ? H3_OK : wrong_kind(key, "an object", where, status);
}

h3_status h3_json_array(const cJSON **out, const cJSON *object, const char *key, const char *where, h3_status status)
{
    H3_TRY(field(out, object, key, where, status));
    return cJSON_IsArray(*out) ? H3_OK : wrong_kind(key, "an array", where, status);
}

h3_status h3_json_string(const char **out, const cJSON *object, const char *key, const char *where, h3_status status)
{
    const cJSON *item;
    *out = NULL;
    H3_TRY(field(&item, object, key, where, status));
    if (!cJSON_IsString(item)) return wrong_kind(key, "a string", where, status);
    *out = item->valuestring;
    return H3_OK;
}

h3_status h3_json_integer_value(int64_t *out, const cJSON *item, const char *what, int64_t low, int64_t high, const char *where,
                                h3_status status)
{
    *out = 0;
    if (cJSON_IsRaw(item)) { /* from h3_json_add_integer, in a tree that was built and not parsed */
        *out = strtoll(item->valuestring, NULL, 10);
    } else if (cJSON_IsNumber(item)) {
        double value = item->valuedouble;
        if (value != floor(value)) return h3_error(status, "%s: %s must be an integer, not %.17g", where, what, value);
        if (fabs(value) >= EXACT_LIMIT) return h3_error(status, "%s: %s is too large to be exact: 2^53 or more", where, what);
        *out = (int64_t)value;
    } else {
        return h3_error(status, "%s: %s must be an integer", where, what);
    }
    if (*out >= low && *out <= high) return H3_OK;
    return h3_error(status, "%s: %s is %lld but must be %lld to %lld", where, what, (long long)*out, (long long)low,
                    (long long)high);
}

h3_status h3_json_integer(int64_t *out, const cJSON *object, const char *key, int64_t low, int64_t high, const char *where,
                          h3_status status)
{
    const cJSON *item;
    char what[128];
    *out = 0;
    H3_TRY(field(&item, object, key, where, status));
    snprintf(what, sizeof what, "the field \"%.100s\"", key);
    return h3_json_integer_value(out, item, what, low, high, where, status);
}

h3_status h3_json_number(double *out, const cJSON *object, const char *key, const char *where, h3_status status)
{
    const cJSON *item;
    *out = 0;
    H3_TRY(field(&item, object, key, where, status));
    if (!cJSON_IsNumber(item) || !isfinite(item->valuedouble)) return wrong_kind(key, "a finite number", where, status);
    *out = item->valuedouble;
    return H3_OK;
}

h3_status h3_json_only_keys(const cJSON *object, const char *const *keys, const char *where, h3_status status)
{
    const cJSON *child;
    if (!cJSON_IsObject(object)) return h3_error(status, "%s: an object was expected", where);
    cJSON_ArrayForEach(child, object) {
        size_t i = 0;
        while (keys[i] != NULL && strcmp(keys[i], child->string) != 0) i++;
        if (keys[i] == NULL)
            return h3_error(status, "%s: unknown field \"%.200s\"; remove it or correct its spelling", where, child->string);
    }
    return H3_OK;
}
