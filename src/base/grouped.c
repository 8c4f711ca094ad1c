#include "base/grouped.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const char *h3_grouped(char out[H3_GROUPED_SIZE], int64_t value)
{
    char digits[24];
    snprintf(digits, sizeof digits, "%" PRId64, value);
    size_t sign = digits[0] == '-', count = strlen(digits) - sign, used = 0;
    if (sign) out[used++] = '-';
    for (size_t i = 0; i < count; i++) {
        if (i > 0 && (count - i) % 3 == 0) out[used++] = ',';
        out[used++] = digits[sign + i];
    }
    out[used] = 0;
    return out;
}
