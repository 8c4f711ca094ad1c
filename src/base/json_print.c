#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

typedef struct buffer {
    char *text;
    size_t size, capacity;
    int failed;
} buffer;

static void put(buffer *out, const char *text, size_t length)
{
    if (out->failed) return;
    if (out->capacity - out->size <= length) {
        size_t capacity = (out->size + length + 1) * 2;
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

static void put_text(buffer *out, const char *text) { put(out, text, strlen(text)); }

static void put_line(buffer *out, int depth)
{
    put_text(out, "\n");
    for (int i = 0; i < depth; i++) put_text(out, "  ");
}

static void put_string(buffer *out, const char *text)
{
    put_text(out, "\"");
    for (const char *c = text; *c; c++) {
        char escape[8];
        if (*c == '"' || *c == '\\') snprintf(escape, sizeof escape, "\\%c", *c);
        else if (*c == '\n') snprintf(escape, sizeof escape, "\\n");
        else if (*c == '\t') snprintf(escape, sizeof escape, "\\t");
        else if ((unsigned char)*c < 0x20 || *c == 0x7f) snprintf(escape, sizeof escape, "\\u%04x", (unsigned)*c);
        else snprintf(escape, sizeof escape, "%c", *c);
        put_text(out, escape);
    }
    put_text(out, "\"");
}

static void put_number(buffer *out, double value)
{
    char digits[40];
    if (!isfinite(value)) {
        put_text(out, "null");
        return;
    }
    if (value == floor(value) && fabs(value) < 0x1p53 && !(value == 0 && signbit(value))) {
        snprintf(digits, sizeof digits, "%.0f", value);
    } else {
        for (int precision = 1; precision <= 17; precision++) {
            snprintf(digits, sizeof digits, "%.*g", precision, value);
            if (strtod(digits, NULL) == value) break;
        }
    }
    put_text(out, digits);
}

static void put_value(buffer *out, const cJSON *value, int depth)
{
    if (cJSON_IsObject(value) || cJSON_IsArray(value)) {
        int is_object = cJSON_IsObject(value) ? 1 : 0;
        put_text(out, is_object ? "{" : "[");
        for (const cJSON *child = value->child; child != NULL; child = child->next) {
            put_line(out, depth + 1);
            if (is_object) {
                put_string(out, child->string);
                put_text(out, ": ");
            }
            put_value(out, child, depth + 1);
            if (child->next != NULL) put_text(out, ",");
        }
        if (value->child != NULL) put_line(out, depth);
        put_text(out, is_object ? "}" : "]");
    } else if (cJSON_IsString(value)) {
        put_string(out, value->valuestring);
    } else if (cJSON_IsNumber(value)) {
        put_number(out, value->valuedouble);
    } else if (cJSON_IsRaw(value)) {
        put_text(out, value->valuestring);
    } else {
        put_text(out, cJSON_IsTrue(value) ? "true" : cJSON_IsFalse(value) ? "false" : "null");
    }
}

h3_status h3_json_print(char **out, const cJSON *value)
{
    buffer text = {0};
    put_value(&text, value, 0);
    put_text(&text, "\n");
    *out = NULL;
    if (text.failed) {
        free(text.text);
        return h3_error(H3_ENVIRONMENT, "out of memory for a JSON text of more than %zu bytes", text.size);
    }
    *out = text.text;
    return H3_OK;
}

void h3_json_add_integer(cJSON *object, const char *key, int64_t value)
{
    char digits[24];
    if (value > -((int64_t)1 << 53) && value < (int64_t)1 << 53) {
        cJSON_AddNumberToObject(object, key, (double)value);
        return;
    }
    snprintf(digits, sizeof digits, "%" PRId64, value);
    cJSON_AddRawToObject(object, key, digits);
}

void h3_json_add_unsigned(cJSON *object, const char *key, uint64_t value)
{
    char digits[24];
    if (value <= INT64_MAX) {
        h3_json_add_integer(object, key, (int64_t)value);
        return;
    }
    snprintf(digits, sizeof digits, "%" PRIu64, value);
    cJSON_AddRawToObject(object, key, digits);
}
