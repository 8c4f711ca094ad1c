/* Numbers for people. */
#ifndef H3_BASE_GROUPED_H
#define H3_BASE_GROUPED_H

#include <stdint.h>

enum { H3_GROUPED_SIZE = 32 };

/* 12345678 as "12,345,678". Returns `out`. */
const char *h3_grouped(char out[H3_GROUPED_SIZE], int64_t value);

#endif
