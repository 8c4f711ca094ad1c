#include "base/json_scan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct scanner {
    const unsigned char *at, *end;
    size_t values;
    int plain_integers;
    const char *problem;
} scanner;

static int fail(scanner *scan, const char *problem)
{
    if (scan->problem == NULL) scan->problem = problem;
    return 0;
}

/* The byte `ahead` places on; 0 at the end, which no grammar rule accepts. */
static unsigned char peek(const scanner *scan, size_t ahead)
{
    return (size_t)(scan->end - scan->at) > ahead ? scan->at[ahead] : 0;
}

static void skip_space(scanner *scan)
{
    while (scan->at < scan->end && (*scan->at == ' ' || *scan->at == '\t' || *scan->at == '\n' || *scan->at == '\r')) scan->at++;
}

static int is_digit(unsigned char c) { return c >= '0' && c <= '9'; }

static size_t digits_from(const scanner *scan, size_t i)
{
    while (is_digit(peek(scan, i))) i++;
    return i;
}

static int scan_number(scanner *scan)
{
    size_t i = peek(scan, 0) == '-', first = i;
    i = digits_from(scan, i);
    if (i == first) return fail(scan, "a value was expected");
    if (peek(scan, first) == '0' && i > first + 1) return fail(scan, "a number starts with 0");
    if (peek(scan, i) == '.') {
        size_t fraction = digits_from(scan, i + 1);
        if (fraction == i + 1) return fail(scan, "a number has no digit behind its point");
        i = fraction;
    }
    if (peek(scan, i) == 'e' || peek(scan, i) == 'E') {
        size_t exponent = i + 1 + (peek(scan, i + 1) == '+' || peek(scan, i + 1) == '-');
        i = digits_from(scan, exponent);
        if (i == exponent) return fail(scan, "a number has no digit in its exponent");
    }
    if (scan->plain_integers && digits_from(scan, 0) != i) return fail(scan, "a number that is no plain integer");
    if (i > H3_JSON_NUMBER) return fail(scan, "a number is too long");
    char copy[H3_JSON_NUMBER + 1];
    memcpy(copy, scan->at, i);
    copy[i] = 0;
    if (!isfinite(strtod(copy, NULL))) return fail(scan, "a number is too large");
    scan->at += i;
    return 1;
}

/* Four hex digits at `ahead`; -1 when they are not. */
static long hex4(const scanner *scan, size_t ahead)
{
    long value = 0;
    for (size_t i = ahead; i < ahead + 4; i++) {
        unsigned char c = peek(scan, i), lower = c | 0x20;
        if (is_digit(c)) value = value * 16 + (c - '0');
        else if (lower >= 'a' && lower <= 'f') value = value * 16 + (lower - 'a' + 10);
        else return -1;
    }
    return value;
}

static int scan_escape(scanner *scan)
{
    unsigned char kind = peek(scan, 1);
    if (kind != 'u') {
        if (kind == 0 || strchr("\"\\/bfnrt", kind) == NULL) return fail(scan, "an unknown escape in a string");
        scan->at += 2;
        return 1;
    }
    long code = hex4(scan, 2);
    if (code < 0) return fail(scan, "a broken \\u escape in a string");
    if (code == 0) return fail(scan, "a zero character in a string");
    if (code < 0xd800 || code > 0xdfff) {
        scan->at += 6;
        return 1;
    }
    long low = peek(scan, 6) == '\\' && peek(scan, 7) == 'u' ? hex4(scan, 8) : -1;
    if (code > 0xdbff || low < 0xdc00 || low > 0xdfff) return fail(scan, "half a surrogate pair in a string");
    scan->at += 12;
    return 1;
}

/* One character of two to four bytes: shortest form, no surrogate, at most U+10FFFF. */
static int scan_utf8(scanner *scan)
{
    unsigned char lead = peek(scan, 0);
    size_t more = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
    long code = lead & (0x3f >> more), smallest = more == 1 ? 0x80 : more == 2 ? 0x800 : 0x10000;
    if (lead < 0xc2 || lead > 0xf4) return fail(scan, "a string is not UTF-8");
    for (size_t i = 1; i <= more; i++) {
        if ((peek(scan, i) & 0xc0) != 0x80) return fail(scan, "a string is not UTF-8");
        code = code << 6 | (peek(scan, i) & 0x3f);
    }
    if (code < smallest || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) return fail(scan, "a string is not UTF-8");
    scan->at += more + 1;
    return 1;
}

static int scan_string(scanner *scan)
{
    if (peek(scan, 0) != '"') return fail(scan, "a string in double quotes was expected");
    scan->at++;
    while (scan->at < scan->end && *scan->at != '"') {
        int good = 1;
        if (*scan->at < 0x20) return fail(scan, "a control character in a string");
        if (*scan->at == '\\') good = scan_escape(scan);
        else if (*scan->at >= 0x80) good = scan_utf8(scan);
        else scan->at++;
        if (!good) return 0;
    }
    if (scan->at == scan->end) return fail(scan, "the text ends inside a string");
    scan->at++;
    return 1;
}

static int scan_word(scanner *scan, const char *word)
{
    size_t length = strlen(word);
    if ((size_t)(scan->end - scan->at) < length || memcmp(scan->at, word, length) != 0) return fail(scan, "a value was expected");
    scan->at += length;
    return 1;
}

static int scan_value(scanner *scan, int depth);

/* The members of an object or the elements of an array, opening bracket included. */
static int scan_list(scanner *scan, int depth, int is_object)
{
    unsigned char close = is_object ? '}' : ']';
    if (depth >= H3_JSON_DEPTH) return fail(scan, "nested too deeply");
    scan->at++;
    skip_space(scan);
    if (peek(scan, 0) == close) {
        scan->at++;
        return 1;
    }
    for (;;) {
        if (is_object) {
            skip_space(scan);
            if (!scan_string(scan)) return 0;
            skip_space(scan);
            if (peek(scan, 0) != ':') return fail(scan, "a colon was expected");
            scan->at++;
        }
        if (!scan_value(scan, depth + 1)) return 0;
        if (peek(scan, 0) == close) break;
        if (peek(scan, 0) != ',') return fail(scan, is_object ? "a comma or } was expected" : "a comma or ] was expected");
        scan->at++;
    }
    scan->at++;
    return 1;
}

/* A value with the white space around it. */
static int scan_value(scanner *scan, int depth)
{
    int good;
    if (++scan->values > H3_JSON_VALUES) return fail(scan, "too many values");
    skip_space(scan);
    switch (peek(scan, 0)) {
    case '{': good = scan_list(scan, depth, 1); break;
    case '[': good = scan_list(scan, depth, 0); break;
    case '"': good = scan_string(scan); break;
    case 't': good = scan_word(scan, "true"); break;
    case 'f': good = scan_word(scan, "false"); break;
    case 'n': good = scan_word(scan, "null"); break;
    default: good = scan_number(scan); break;
    }
    skip_space(scan);
    return good;
}

const char *h3_json_scan(const char *text, size_t length, int plain_integers, size_t *offset)
{
    const unsigned char *start = (const unsigned char *)text;
    scanner scan = {.at = start, .end = start + length, .plain_integers = plain_integers};
    if (scan_value(&scan, 0) && scan.at != scan.end) fail(&scan, "something stands behind the value");
    *offset = (size_t)(scan.at - start);
    return scan.problem;
}
