/* Last words: of a process that crashes, or that something ends with exit() in the midst of its work. An operator runs inside the process. */
#include "dist/internal.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct {
    int number;
    const char *name;
} crashes[] = {
#ifndef __SANITIZE_ADDRESS__ /* which has more to say about these */
    {SIGSEGV, "segmentation fault"}, {SIGBUS, "bus error"}, {SIGFPE, "arithmetic exception"},
#endif
    {SIGILL, "illegal instruction"}, {SIGABRT, "abort"},
};
enum { CRASHES = sizeof crashes / sizeof *crashes };

static struct sigaction old[CRASHES];
static stack_t old_stack;
static char stack[1 << 16]; /* the thread's own may be what is full */
static const h3_ranks *speaker; /* NULL: nothing is said */
static pid_t process;

/* In a signal handler: nothing that allocates. */
static void say_and_end(const char *how, const char *advice)
{
    char place[200], line[500];
    h3_watchdog_place(speaker->dog, place);
    int length = snprintf(line, sizeof line, "%s: rank %d %s, last known place %s; %s\n", program_invocation_short_name, speaker->rank, how, place, advice);
    ssize_t ignored = write(STDERR_FILENO, line, (size_t)length < sizeof line ? (size_t)length : sizeof line - 1);
    (void)ignored;
    _exit(H3_ENVIRONMENT);
}

static void on_crash(int number)
{
    char how[60] = "";
    for (int i = 0; i < CRASHES; i++)
        if (crashes[i].number == number) snprintf(how, sizeof how, "crashed (%s)", crashes[i].name);
    if (speaker != NULL && getpid() == process) say_and_end(how, "look first at the operator that runs there");
    raise(number); /* the default, since the handler is gone */
}

static void on_exit_call(void)
{
    if (speaker != NULL && getpid() == process) say_and_end("is ended by a call of exit()", "an operator library must not end the process");
}

void h3_last_words_open(const h3_ranks *ranks)
{
    static int registered;
    struct sigaction action = {.sa_handler = on_crash, .sa_flags = (int)(SA_ONSTACK | SA_RESETHAND | SA_NODEFER)};
    stack_t mine = {.ss_sp = stack, .ss_size = sizeof stack};
    if (!registered) atexit(on_exit_call);
    registered = 1;
    process = getpid();
    speaker = ranks;
    sigemptyset(&action.sa_mask);
    sigaltstack(&mine, &old_stack);
    for (int i = 0; i < CRASHES; i++) sigaction(crashes[i].number, &action, &old[i]);
}

void h3_last_words_close(void)
{
    if (speaker == NULL) return;
    speaker = NULL;
    for (int i = 0; i < CRASHES; i++) sigaction(crashes[i].number, &old[i], NULL);
    sigaltstack(&old_stack, NULL);
}
