#include "gate_process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "dist/ranks.h"
#include "qualify/inputs.h"
#include "stage.h"
#include "store/run.h"

extern char **environ;

#define BUSY "\nbusy " /* behind the digests: seconds, for dist/meter.h; then what was loaded */

/* What was loaded: one hash a line, the provider's first. */
typedef char library_hashes[(H3_MAX_LIBRARIES + 1) * (H3_SHA256_HEX + 1) + 1];

static void spell_libraries(library_hashes out, const h3_library *provider, const h3_bindings *candidate)
{
    size_t length = (size_t)snprintf(out, sizeof(library_hashes), "%s\n", provider->sha256);
    for (int32_t i = 0; i < candidate->library_count; i++)
        length += (size_t)snprintf(out + length, sizeof(library_hashes) - length, "%s\n", candidate->libraries[i].sha256);
}

h3_status h3_gate_same_libraries(h3_ranks *ranks, const h3_library *provider, const h3_bindings *candidate)
{
    library_hashes mine;
    spell_libraries(mine, provider, candidate);
    void *data = mine;
    size_t size = strlen(mine) + 1;
    H3_TRY(h3_ranks_broadcast(ranks, 0, &data, &size));
    int same = size == strlen(mine) + 1 && memcmp(data, mine, size) == 0;
    if (data != mine) free(data);
    return h3_ranks_agree(ranks, same ? H3_OK : h3_error(H3_INTEGRITY, "an operator library is another file here than on rank 0; build it for all ranks, then run h3_candidate_gate again"));
}

static h3_status wait_for(h3_gate *gate, pid_t child, double limit)
{
    double start = h3_clock();
    int code;
    for (;;) {
        pid_t done = waitpid(child, &code, WNOHANG);
        if (done == child) break;
        if (done < 0 && errno != EINTR) return h3_error(H3_ENVIRONMENT, "the gate's second process is lost: %s", strerror(errno));
        if (h3_clock() - start > limit) {
            kill(child, SIGKILL);
            waitpid(child, &code, 0);
            return h3_error(H3_ENVIRONMENT, "the gate's second process was still running after %.0f s; look for an operator that hangs in a fresh process", limit);
        }
        h3_ranks_beat(gate->ranks, "waiting for the second process", 0);
        usleep(5000);
    }
    if (WIFEXITED(code) && WEXITSTATUS(code) == 0) return H3_OK;
    if (WIFEXITED(code) && WEXITSTATUS(code) == H3_ENVIRONMENT) /* it has said what it lacks */
        return h3_error(H3_ENVIRONMENT, "the gate's second process (device %s %d) could not go on; run h3_candidate_gate again", h3_device_name(gate->device_kind), gate->device->index);
    if (WIFEXITED(code)) return h3_error(H3_FAILED, "the gate's second process ended with exit code %d", WEXITSTATUS(code));
    return h3_error(H3_FAILED, "the gate's second process was ended by signal %d", WTERMSIG(code));
}

static h3_status start(const h3_args *args, int rank, int ranks, const char *output, pid_t *child)
{
    char part[32], program[H3_PATH_MAX];
    posix_spawn_file_actions_t actions;
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length <= 0) return h3_error(H3_ENVIRONMENT, "cannot find this program's own file: %s", strerror(errno));
    program[length] = 0;
    snprintf(part, sizeof part, "%d/%d", rank, ranks);
    const char *const words[] = {args->program, "--plan", args->plan, "--run", args->run, "--device", h3_stage_device_name(args), "--internal-replay", part,
                                 args->checkpoint != NULL ? "--checkpoint" : NULL, args->checkpoint, NULL};
    char *argv[sizeof words / sizeof *words];
    memcpy(argv, words, sizeof words);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, output, O_WRONLY | O_TRUNC, 0600);
    int code = posix_spawn(child, program, &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    return code == 0 ? H3_OK : h3_error(H3_ENVIRONMENT, "the gate's second process cannot be started: %s", strerror(code));
}

/* Line `line` of both texts; a node whose line differs fails its process check. */
static void compare_lines(h3_gate *gate, char *mine, char *theirs, h3_layout_record *layouts)
{
    char *rest_mine = NULL, *rest_theirs = NULL;
    char *a = strtok_r(mine, "\n", &rest_mine), *b = strtok_r(theirs, "\n", &rest_theirs);
    for (; a != NULL; a = strtok_r(NULL, "\n", &rest_mine), b = b != NULL ? strtok_r(NULL, "\n", &rest_theirs) : NULL) {
        char layout[64], where[16], node_name[32], tensor[32], digest[H3_SHA256_HEX];
        if (sscanf(a, "%63s %15s %31s %31s %64s", layout, where, node_name, tensor, digest) != 5) continue;
        int32_t node = h3_node_find(node_name);
        h3_direction direction = strcmp(tensor, "out") == 0 ? H3_FORWARD : H3_BACKWARD;
        for (size_t l = 0; l < gate->plan->layout_count && node >= 0; l++) {
            h3_cell *cell = &layouts[l].node[node].cell[direction][H3_CHECK_PROCESS];
            if (strcmp(layouts[l].name, layout) != 0 || cell->state == H3_CELL_ABSENT) continue;
            char text[100];
            snprintf(text, sizeof text, "%s %s has other bytes in a second process", where, tensor);
            if (b == NULL || strcmp(a, b) != 0) h3_cell_fail(cell, text);
            else h3_cell_pass(cell);
        }
    }
}

static int wanted(const h3_gate *gate, const h3_layout_record *layouts)
{
    for (size_t l = 0; l < gate->plan->layout_count; l++)
        for (int32_t node = 0; node < H3_NODE_COUNT; node++)
            for (int direction = 0; direction < 2; direction++)
                if (layouts[l].node[node].cell[direction][H3_CHECK_PROCESS].state != H3_CELL_ABSENT) return 1;
    return 0;
}

static h3_status replay_in(h3_gate *gate, const h3_args *args, h3_layout_record *layouts, int rank, int ranks, const char *output, double seconds)
{
    pid_t child;
    char *theirs;
    size_t size;
    H3_TRY(start(args, rank, ranks, output, &child));
    H3_TRY(wait_for(gate, child, 10.0 * seconds + args->watchdog));
    H3_TRY(h3_file_read(&theirs, &size, output, (size_t)1 << 28, H3_ENVIRONMENT));
    const char *busy = strstr(theirs, BUSY);
    if (busy != NULL) gate->second_process += strtod(busy + strlen(BUSY), NULL);
    library_hashes libraries;
    spell_libraries(libraries, gate->provider, gate->candidate);
    if (strstr(theirs, libraries) == NULL) {
        free(theirs);
        return h3_error(H3_INTEGRITY, "an operator library has changed while the gate ran: its second process loaded another file; run h3_candidate_gate again");
    }
    char *mine = strdup(gate->digests);
    if (mine != NULL) compare_lines(gate, mine, theirs, layouts);
    free(mine);
    free(theirs);
    return mine == NULL ? h3_error(H3_ENVIRONMENT, "out of memory for digests") : H3_OK;
}

h3_status h3_gate_second_process(h3_gate *gate, const h3_args *args, h3_layout_record *layouts, int rank, int ranks, double seconds)
{
    char output[] = "/tmp/h3-gate-XXXXXX";
    if (gate->digests == NULL || !wanted(gate, layouts)) return H3_OK;
    H3_TRY(gate->device->trim()); /* it works on the same GPU */
    int file = mkstemp(output);
    if (file < 0) return h3_error(H3_ENVIRONMENT, "no temporary file in /tmp: %s", strerror(errno));
    close(file);
    h3_status status = replay_in(gate, args, layouts, rank, ranks, output, seconds);
    unlink(output);
    return status;
}

static h3_status read_manifest(const h3_args *args, h3_manifest *manifest)
{
    char path[H3_PATH_MAX], *text;
    size_t size;
    H3_TRY(h3_run_locate(path, args->run, "reference-manifest.json"));
    H3_TRY(h3_file_read(&text, &size, path, (size_t)1 << 30, H3_INTEGRITY));
    h3_status status = h3_manifest_parse(manifest, text, size, path);
    free(text);
    return status;
}

/* The parent reads what comes out of stdout; what an operator prints there goes to stderr instead. */
static h3_status own_output(FILE **out)
{
    int output = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    *out = output >= 0 && dup2(STDERR_FILENO, STDOUT_FILENO) >= 0 ? fdopen(output, "w") : NULL;
    return *out != NULL ? H3_OK : h3_error(H3_ENVIRONMENT, "the second process has no output for its digests: %s", strerror(errno));
}

static h3_status replay_layouts(h3_gate *gate, int rank, int ranks, FILE *output)
{
    for (size_t l = 0; l < gate->plan->layout_count; l++)
        if ((int)(l % (size_t)ranks) == rank) H3_TRY(h3_gate_block0_digests(gate, &gate->plan->layouts[l]));
    h3_device_work work;
    H3_TRY(gate->device->span_take(&work));
    library_hashes libraries;
    spell_libraries(libraries, gate->provider, gate->candidate);
    fprintf(output, "%s" BUSY "%a\n%s", gate->digests != NULL ? gate->digests : "", work.busy, libraries);
    return fflush(output) == 0 && !ferror(output) ? H3_OK : h3_error(H3_ENVIRONMENT, "cannot write the digests of the second process: %s; check space and permissions, then run again", strerror(errno));
}

h3_status h3_gate_replay(const h3_args *args)
{
    h3_plan plan = {0};
    h3_weights *weights = NULL;
    h3_library provider = {0};
    h3_bindings candidate = {0};
    h3_manifest manifest = {0};
    h3_gate gate = {.plan = &plan, .provider = &provider, .candidate = &candidate, .manifest = &manifest, .run_folder = args->run};
    FILE *output = NULL;
    int rank, ranks;
    h3_status status;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* nothing is left behind when the gate itself is ended */
    if (args->plan == NULL || args->run == NULL || sscanf(args->internal, "%d/%d", &rank, &ranks) != 2 || rank < 0 || ranks < 1)
        return h3_error(H3_USAGE, "--internal-replay is for the gate itself");
    H3_GOTO(own_output(&output), done);
    H3_GOTO(h3_plan_read(&plan, args->plan), done);
    h3_plan_for_device(&plan, h3_stage_device_name(args));
    if (args->checkpoint != NULL) H3_GOTO(h3_plan_use_checkpoint(&plan, args->checkpoint), done);
    H3_GOTO(h3_stage_device(args, &gate.device), done);
    gate.device_kind = gate.device->kind;
    H3_GOTO(h3_plan_weights_block(&plan, 0, &weights), done);
    H3_GOTO(h3_library_open(&provider, plan.provider), done);
    H3_GOTO(h3_bindings_open(&candidate, plan.candidate, plan.path), done);
    H3_GOTO(h3_library_require(&provider, gate.device_kind), done);
    H3_GOTO(h3_bindings_require(&candidate, gate.device_kind), done);
    H3_GOTO(read_manifest(args, &manifest), done);
    H3_GOTO(h3_inputs_block(&manifest, weights, 0), done);
    gate.weights = weights;
    status = replay_layouts(&gate, rank, ranks, output);
done:
    if (output != NULL) fclose(output);
    free(gate.digests);
    h3_bindings_close(&candidate);
    h3_library_close(&provider);
    h3_manifest_free(&manifest);
    h3_weights_free(weights);
    h3_plan_free(&plan);
    return status;
}
