/* Lines for people: results on stdout, progress on stderr. Only rank 0 speaks unless a rank has something of its own to say. */
#ifndef H3_BASE_LOG_H
#define H3_BASE_LOG_H

#include <stdint.h>

/* 0: this process prints nothing but errors (ranks above 0). */
void h3_log_enable(int enabled);

/* One line to stdout, flushed. */
void h3_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The same, with `seconds` in a column of their own at the end of the line. */
void h3_say_timed(double seconds, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* One line "program: message" to stderr, always. */
void h3_complain(const char *program, const char *message);

/* Progress of long work. On a terminal one line that is redrawn, with rate and time left, and gone at the end; otherwise a plain line
 * at most every 10 s. */
typedef struct h3_progress {
    const char *title, *unit;
    int64_t total, done, before; /* before: done when it started, by an earlier attempt */
    double start, last;
    int terminal;
} h3_progress;
void h3_progress_start(h3_progress *progress, const char *title, const char *unit, int64_t total);
/* So much was done before: it counts, but not in the rate. */
void h3_progress_resume(h3_progress *progress, int64_t before);
void h3_progress_add(h3_progress *progress, int64_t count);
void h3_progress_end(h3_progress *progress);

/* Monotonic seconds. */
double h3_clock(void);

#endif
