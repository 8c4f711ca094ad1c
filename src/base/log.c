#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static int enabled = 1;
enum { LINE_SIZE = 500, TIME_COLUMN = 96 }; /* as mk/build_line.sh */
static const double PLAIN_INTERVAL = 10.0, TERMINAL_INTERVAL = 0.1;

void h3_log_enable(int enable) { enabled = enable; }

double h3_clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void h3_say(const char *format, ...)
{
    if (!enabled) return;
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
    fflush(stdout);
}

void h3_say_timed(double seconds, const char *format, ...)
{
    char text[LINE_SIZE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    h3_say("%-*s %6.1f s", TIME_COLUMN, text, seconds);
}

void h3_complain(const char *program, const char *message)
{
    fprintf(stderr, "%s: %s\n", program, message);
    fflush(stderr);
}

/* "1 h 05 min", "3 min 20 s", "12 s" */
static void spell_time(char *out, size_t size, double seconds)
{
    long whole = seconds < 0 ? 0 : seconds > 1e8 ? 100000000 : (long)(seconds + 0.5);
    if (whole >= 3600) snprintf(out, size, "%ld h %02ld min", whole / 3600, whole / 60 % 60);
    else if (whole >= 60) snprintf(out, size, "%ld min %02ld s", whole / 60, whole % 60);
    else snprintf(out, size, "%ld s", whole);
}

/* Where progress is redrawn: stderr when that is a terminal; under mpirun, whose ranks see a pipe, the terminal itself if $H3_TERMINAL says
 * that somebody watches. NULL: nowhere, plain lines instead. */
static FILE *terminal(void)
{
    static FILE *stream;
    if (stream == NULL && isatty(STDERR_FILENO)) stream = stderr;
    if (stream == NULL && getenv("H3_TERMINAL") != NULL) stream = fopen("/dev/tty", "we");
    return stream;
}

static void show(const h3_progress *progress, double now)
{
    double elapsed = now - progress->start, rate = elapsed > 0 ? (double)(progress->done - progress->before) / elapsed : 0;
    char time_text[40] = "unknown time", rate_text[40];
    FILE *stream = progress->terminal ? terminal() : stderr;
    if (rate > 0) spell_time(time_text, sizeof time_text, (double)(progress->total - progress->done) / rate);
    snprintf(rate_text, sizeof rate_text, rate < 999.5 ? "%.3g" : "%.0f", rate);
    fprintf(stream, progress->terminal ? "\r%s %lld/%lld %s  %s/s  %s left\033[K" : "%s %lld/%lld %s  %s/s  %s left\n", progress->title,
            (long long)progress->done, (long long)progress->total, progress->unit, rate_text, time_text);
    fflush(stream);
}

void h3_progress_start(h3_progress *progress, const char *title, const char *unit, int64_t total)
{
    double now = h3_clock();
    *progress = (h3_progress){.title = title, .unit = unit, .total = total, .start = now, .last = now};
    progress->terminal = enabled && terminal() != NULL;
}

void h3_progress_resume(h3_progress *progress, int64_t before) { progress->done = progress->before = before; }

void h3_progress_add(h3_progress *progress, int64_t count)
{
    double now = h3_clock();
    progress->done += count;
    if (!enabled || now - progress->last < (progress->terminal ? TERMINAL_INTERVAL : PLAIN_INTERVAL)) return;
    progress->last = now;
    show(progress, now);
}

void h3_progress_end(h3_progress *progress)
{
    if (!progress->terminal) return;
    fputs("\r\033[K", terminal()); /* the stage's own line says the rest */
    fflush(terminal());
}
