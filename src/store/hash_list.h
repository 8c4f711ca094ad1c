/* Lists of files and their SHA-256, as sha256sum prints and BagIt keeps them. */
#ifndef H3_STORE_HASH_LIST_H
#define H3_STORE_HASH_LIST_H

#include <stddef.h>

#include "base/text.h"

typedef struct h3_hash_entry {
    const char *path;   /* relative, h3_check_relative */
    const char *sha256; /* lower-case hex */
} h3_hash_entry;

typedef struct h3_hash_list {
    char *text; /* owned: the entries point into it */
    size_t count, capacity;
    h3_hash_entry *items; /* as listed */
} h3_hash_list;

/* Reads lines "<sha256>  <path>" (or " *<path>"); an empty text is an empty list. A malformed line, a path that h3_check_relative
 * refuses or that is not plain ASCII, and a path listed twice carry `status`, naming `where`. On failure `out` is empty. */
h3_status h3_hash_list_parse(h3_hash_list *out, const char *text, size_t size, const char *where, h3_status status);
/* The same from JSON {"path": "sha256"}. */
h3_status h3_hash_list_parse_json(h3_hash_list *out, const char *text, size_t size, const char *where, h3_status status);
/* Either form from a file of at most 64 MiB. */
h3_status h3_hash_list_read(h3_hash_list *out, const char *path, h3_status status);
void h3_hash_list_free(h3_hash_list *list);

const h3_hash_entry *h3_hash_list_find(const h3_hash_list *list, const char *path); /* NULL when absent */

/* 1 for 64 lower-case hexadecimal digits in the first `length` characters. */
int h3_is_sha256(const char *text, size_t length);

#endif
