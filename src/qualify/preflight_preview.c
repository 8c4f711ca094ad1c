/* A plan that requires previews must not find out after hours of generation that there is nothing to make them with. */
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "qualify/preflight.h"

extern char **environ;

#define NEXT "install FFmpeg (scripts/deps.sh --previews) and build again, or let the plan say \"preview\": \"if-available\""

/* $H3_BIN/h3_preview, or the one beside the running program. */
static h3_status find_program(char out[H3_PATH_MAX])
{
    char own[H3_PATH_MAX];
    const char *folder = getenv("H3_BIN");
    if (folder != NULL && folder[0] != 0) {
        H3_TRY(h3_path(out, "%s/h3_preview", folder));
        if (access(out, X_OK) == 0) return H3_OK;
    }
    const ssize_t length = readlink("/proc/self/exe", own, sizeof own - 1);
    if (length <= 0) return h3_error(H3_ENVIRONMENT, "cannot find this program's own file: %s; set H3_BIN", strerror(errno));
    own[length] = 0;
    char *slash = strrchr(own, '/');
    if (slash != NULL) *slash = 0;
    H3_TRY(h3_path(out, "%s/h3_preview", own));
    if (access(out, X_OK) == 0) return H3_OK;
    return h3_error(H3_ENVIRONMENT, "the plan requires previews, and there is no program %s; " NEXT, out);
}

/* Whether the program starts at all (its libraries are found) and has its encoders. */
static h3_status ask(const char *program)
{
    char *argv[] = {"h3_preview", "--check", NULL};
    posix_spawn_file_actions_t actions;
    pid_t child;
    int code = 0;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    const int failed = posix_spawn(&child, program, &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (failed != 0) return h3_error(H3_ENVIRONMENT, "the plan requires previews, and %s does not start: %s; " NEXT, program, strerror(failed));
    while (waitpid(child, &code, 0) < 0)
        if (errno != EINTR) return h3_error(H3_ENVIRONMENT, "%s --check is lost: %s", program, strerror(errno));
    if (WIFEXITED(code) && WEXITSTATUS(code) == 0) return H3_OK;
    return h3_error(H3_ENVIRONMENT, "the plan requires previews, and %s --check fails (run it to see why); " NEXT, program);
}

h3_status h3_preflight_preview(const h3_plan *plan)
{
    char program[H3_PATH_MAX];
    if (plan->preview != H3_PREVIEW_REQUIRED) return H3_OK;
    const cJSON *decoders = cJSON_GetObjectItemCaseSensitive(plan->json, "decoders");
    if (plan->generation == NULL || cJSON_GetObjectItemCaseSensitive(decoders, "video") == NULL || cJSON_GetObjectItemCaseSensitive(decoders, "audio") == NULL)
        return h3_error(H3_USAGE, "%s: \"preview\" is \"required\", but nothing is decoded; add \"generation\" and \"decoders\" for video and audio, or say \"if-available\"",
                        plan->path);
    H3_TRY(find_program(program));
    return ask(program);
}
