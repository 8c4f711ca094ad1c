/* Status codes, which are also the exit codes of every program, and the one-line message that goes with them. */
#ifndef H3_BASE_ERROR_H
#define H3_BASE_ERROR_H

typedef enum {
    H3_OK = 0,
    H3_FAILED = 1,      /* qualified, and failed: a number out of bounds, a broken promise, an unavailable library */
    H3_USAGE = 2,       /* usage, bad plan, unknown operator, wrong interface version */
    H3_INTEGRITY = 3,   /* hash, format, truncated or stale input, missing predecessor */
    H3_ENVIRONMENT = 4, /* no memory, no space, no device, lost rank */
    H3_STOPPED = 75,    /* stopped by a signal, safe to requeue */
} h3_status;

/* Records the message of this thread's failure ("what, where; what to do next") and returns `status`. */
h3_status h3_error(h3_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Puts "context: " before the message recorded last, and returns `status`. */
h3_status h3_error_context(h3_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The message recorded last in this thread; "" when there was none. */
const char *h3_error_text(void);

/* Relays a failure upward. */
#define H3_TRY(call)                        \
    do {                                    \
        h3_status h3_try_status_ = (call);  \
        if (h3_try_status_ != H3_OK) return h3_try_status_; \
    } while (0)

/* Relays a failure through a clean-up label; needs a local `h3_status status`. */
#define H3_GOTO(call, label)          \
    do {                              \
        status = (call);              \
        if (status != H3_OK) goto label; \
    } while (0)

#endif
