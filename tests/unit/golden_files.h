/* Golden files and small assertions that several unit tests share. */
#ifndef H3_TESTS_GOLDEN_FILES_H
#define H3_TESTS_GOLDEN_FILES_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/text.h"
#include "model/safetensors.h"

/* Path of the project's copy of a golden; good until the next call. */
static inline const char *golden_path(const char *name)
{
    static char path[H3_PATH_MAX];
    const char *folder = getenv("H3_GOLDEN");
    snprintf(path, sizeof path, "%s/%s", folder ? folder : "tests/golden", name);
    return path;
}

/* Path of a golden that is too large to be copied; NULL when the shared folder is not there. */
static inline const char *shared_golden_path(const char *name)
{
    static char path[H3_PATH_MAX];
    const char *folder = getenv("H3_GOLDEN_SHARED");
    snprintf(path, sizeof path, "%s/%s", folder ? folder : "../shared/golden", name);
    return access(path, R_OK) == 0 ? path : NULL;
}

static inline void assert_good(h3_status status)
{
    if (status != H3_OK) fail_msg("status %d: %s", status, h3_error_text());
}

/* The call failed with this status, and its message has `word` in it. */
static inline void assert_fails(h3_status status, h3_status expected, const char *word)
{
    if (status != expected) fail_msg("status %d instead of %d (wanted \"%s\"): %s", status, expected, word, h3_error_text());
    if (strstr(h3_error_text(), word) == NULL) fail_msg("\"%s\" is not in the message: %s", word, h3_error_text());
}

static inline cJSON *golden_json(const char *name)
{
    cJSON *value;
    assert_good(h3_json_read(&value, golden_path(name), H3_INTEGRITY));
    return value;
}

static inline h3_safetensors golden_tensors(const char *name)
{
    h3_safetensors file;
    assert_good(h3_safetensors_open(&file, golden_path(name)));
    return file;
}

static inline const cJSON *json_get(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    if (item == NULL) fail_msg("no field %s", key);
    return item;
}

static inline int64_t json_int(const cJSON *object, const char *key) { return (int64_t)json_get(object, key)->valuedouble; }

static inline const char *json_text(const cJSON *object, const char *key) { return json_get(object, key)->valuestring; }

static inline uint32_t float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline uint32_t hex_bits(const char *text) { return (uint32_t)strtoul(text, NULL, 16); }

static inline int sha256_is(const void *data, size_t size, const char *expected)
{
    char hash[H3_SHA256_HEX];
    assert_good(h3_sha256(hash, data, size));
    return strcmp(hash, expected) == 0;
}

#endif
