#include "store/hash_list.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "store/publish.h"

enum { LIST_LIMIT = 64 << 20, HEX = H3_SHA256_HEX - 1 };

int h3_is_sha256(const char *text, size_t length) { return length == HEX && strspn(text, "0123456789abcdef") >= HEX; }

static h3_status add(h3_hash_list *list, const char *path, const char *sha256)
{
    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? 2 * list->capacity : 64;
        h3_hash_entry *larger = realloc(list->items, capacity * sizeof *larger);
        if (larger == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for a list of %zu hashes", capacity);
        list->items = larger;
        list->capacity = capacity;
    }
    list->items[list->count++] = (h3_hash_entry){path, sha256};
    return H3_OK;
}

/* Takes the line apart in place: the character behind the hash and the end of the line become 0. */
static h3_status add_line(h3_hash_list *list, char *line, size_t length, size_t number, const char *where, h3_status status)
{
    line[length] = 0;
    int good = length > HEX + 2 && strlen(line) == length && h3_is_sha256(line, HEX) && line[HEX] == ' ' &&
               (line[HEX + 1] == ' ' || line[HEX + 1] == '*');
    for (const char *c = line; *c; c++) good = good && *c >= 0x20 && *c < 0x7f; /* names are printed */
    if (!good) return h3_error(status, "%s: line %zu is not \"<SHA-256>  <path>\" in plain ASCII", where, number);
    line[HEX] = 0;
    if (h3_check_relative(line + HEX + 2, where) != H3_OK) return h3_error_context(status, "line %zu", number);
    return add(list, line + HEX + 2, line);
}

static h3_status add_lines(h3_hash_list *list, size_t size, const char *where, h3_status status)
{
    char *line = list->text;
    for (size_t number = 1; line < list->text + size; number++) {
        char *end = memchr(line, '\n', (size_t)(list->text + size - line));
        if (end == NULL) return h3_error(status, "%s: the last line does not end", where);
        H3_TRY(add_line(list, line, (size_t)(end - line), number, where, status));
        line = end + 1;
    }
    return H3_OK;
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const h3_hash_entry *)a)->path, ((const h3_hash_entry *)b)->path);
}

static h3_status check_no_path_twice(const h3_hash_list *list, const char *where, h3_status status)
{
    h3_hash_entry *sorted = malloc((list->count + 1) * sizeof *sorted);
    const char *twice = NULL;
    if (sorted == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for a list of %zu hashes", list->count);
    if (list->count > 0) memcpy(sorted, list->items, list->count * sizeof *sorted);
    if (list->count > 1) qsort(sorted, list->count, sizeof *sorted, by_path);
    for (size_t i = 1; i < list->count && twice == NULL; i++)
        if (by_path(&sorted[i - 1], &sorted[i]) == 0) twice = sorted[i].path;
    free(sorted);
    return twice == NULL ? H3_OK : h3_error(status, "%s: %s is listed twice", where, twice);
}

h3_status h3_hash_list_parse(h3_hash_list *out, const char *text, size_t size, const char *where, h3_status status)
{
    *out = (h3_hash_list){.text = malloc(size + 1)};
    if (out->text == NULL) return h3_error(H3_ENVIRONMENT, "out of memory: %zu bytes for %s", size, where);
    memcpy(out->text, text, size);
    out->text[size] = 0;
    h3_status result = add_lines(out, size, where, status);
    if (result == H3_OK) result = check_no_path_twice(out, where, status);
    if (result != H3_OK) h3_hash_list_free(out);
    return result;
}

/* As lines, so that both forms become the same. */
static h3_status to_lines(char **out, const cJSON *json, const char *where, h3_status status)
{
    const cJSON *item;
    size_t size = 1, used = 0;
    if (!cJSON_IsObject(json)) return h3_error(status, "%s is not a JSON object {\"file\": \"sha256\"}", where);
    cJSON_ArrayForEach(item, json) {
        if (!cJSON_IsString(item) || !h3_is_sha256(item->valuestring, strlen(item->valuestring)))
            return h3_error(status, "%s: \"%.80s\" has no SHA-256 (64 lower-case hexadecimal digits)", where, item->string);
        size += strlen(item->string) + HEX + 3;
    }
    *out = malloc(size);
    if (*out == NULL) return h3_error(H3_ENVIRONMENT, "out of memory: %zu bytes for %s", size, where);
    (*out)[0] = 0;
    cJSON_ArrayForEach(item, json) {
        char *line = *out + used;
        used += strlen(item->string) + HEX + 3;
        memcpy(line, item->valuestring, HEX);
        memcpy(line + HEX, "  ", 2);
        strcpy(line + HEX + 2, item->string);
        strcpy(*out + used - 1, "\n");
    }
    return H3_OK;
}

h3_status h3_hash_list_parse_json(h3_hash_list *out, const char *text, size_t size, const char *where, h3_status status)
{
    cJSON *json;
    char *lines = NULL;
    *out = (h3_hash_list){0};
    H3_TRY(h3_json_parse(&json, text, size, where, status));
    h3_status result = to_lines(&lines, json, where, status);
    cJSON_Delete(json);
    if (result == H3_OK) result = h3_hash_list_parse(out, lines, strlen(lines), where, status);
    free(lines);
    return result;
}

h3_status h3_hash_list_read(h3_hash_list *out, const char *path, h3_status status)
{
    char *text;
    size_t size;
    *out = (h3_hash_list){0};
    H3_TRY(h3_file_read(&text, &size, path, LIST_LIMIT, status));
    const char *first = text + strspn(text, " \t\r\n");
    h3_status result = *first == '{' ? h3_hash_list_parse_json(out, text, size, path, status)
                                     : h3_hash_list_parse(out, text, size, path, status);
    free(text);
    if (result == H3_OK && out->count == 0) result = h3_error(status, "%s lists no file", path);
    if (result != H3_OK) h3_hash_list_free(out);
    return result;
}

void h3_hash_list_free(h3_hash_list *list)
{
    free(list->text);
    free(list->items);
    *list = (h3_hash_list){0};
}

const h3_hash_entry *h3_hash_list_find(const h3_hash_list *list, const char *path)
{
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->items[i].path, path) == 0) return &list->items[i];
    return NULL;
}
