/*
 * A shipped library under another file: the provider when its own file name has "provider" in it, else the candidate, found in
 * the folders of H3_LIB. It does not say that it was built from uncommitted sources, so that a gate in a tree at work can be
 * VALID. Its attention's forward obeys, in the library whose file name has H3_RELAY in it:
 *   H3_RELAY_WAIT=FILE     on rank 0 the first call writes its process to FILE.reached and waits until FILE exists
 *   H3_RELAY_CALL=N        the N-th call instead of the first
 *   H3_RELAY_CHANGE=1      one bit of every output is another one
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "h3/operator.h"

H3_EXPORT const h3_operator_library *h3_operator_library_get(void);

enum { OPERATORS = 64, PATH_SIZE = 4096, TICK = 10000 }; /* microseconds */
static const h3_operator *shipped_attention;

static const char *own_name(void)
{
    static const char anchor;
    Dl_info info;
    return dladdr(&anchor, &info) != 0 && info.dli_fname != NULL ? info.dli_fname : "";
}

static const char *order(const char *name)
{
    const char *relay = getenv("H3_RELAY");
    return relay != NULL && strstr(own_name(), relay) != NULL ? getenv(name) : NULL;
}

static void wait_for(const char *file)
{
    char reached[PATH_SIZE], made[PATH_SIZE + 8];
    snprintf(reached, sizeof reached, "%s.reached", file);
    snprintf(made, sizeof made, "%s.new", reached);
    FILE *out = fopen(made, "w");
    if (out == NULL) abort();
    fprintf(out, "%ld\n", (long)getpid());
    if (fclose(out) != 0 || rename(made, reached) != 0) abort();
    while (access(file, F_OK) != 0) usleep(TICK);
}

static int forward(h3_call *call)
{
    static long calls;
    const char *file = order("H3_RELAY_WAIT"), *number = order("H3_RELAY_CALL"), *rank = getenv("OMPI_COMM_WORLD_RANK");
    calls++;
    if (file != NULL && calls == (number != NULL ? atol(number) : 1) && (rank == NULL || strcmp(rank, "0") == 0)) wait_for(file);
    int status = shipped_attention->forward(call);
    if (status == 0 && order("H3_RELAY_CHANGE") != NULL) *(unsigned char *)call->out.data ^= 1u;
    return status;
}

static const h3_operator_library *shipped_library(void)
{
    const char *name = strstr(own_name(), "provider") != NULL ? "libh3_provider_cpu.so" : "libh3_candidate_cpu.so";
    const char *folder = getenv("H3_LIB");
    h3_operator_library_get_fn get;
    void *handle = NULL;
    while (folder != NULL && *folder != 0 && handle == NULL) {
        char path[PATH_SIZE];
        size_t length = strcspn(folder, ":");
        snprintf(path, sizeof path, "%.*s/%s", (int)length, folder, name);
        if (access(path, R_OK) == 0) handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        folder += length + (folder[length] == ':');
    }
    void *symbol = handle != NULL ? dlsym(handle, H3_OPERATOR_LIBRARY_SYMBOL) : NULL;
    if (symbol == NULL) return NULL;
    memcpy(&get, &symbol, sizeof get);
    return get();
}

const h3_operator_library *h3_operator_library_get(void)
{
    static h3_operator operators[OPERATORS];
    static h3_operator_library library;
    const h3_operator_library *from = shipped_library();
    if (from == NULL || from->operator_count > OPERATORS) return NULL;
    shipped_attention = NULL;
    library = *from;
    library.revision = "relayed";
    library.build &= ~(uint32_t)H3_BUILD_DIRTY;
    library.operators = operators;
    memcpy(operators, from->operators, from->operator_count * sizeof *operators);
    for (uint32_t i = 0; i < from->operator_count; i++) {
        if (strcmp(operators[i].node, "attention") != 0 || shipped_attention != NULL) continue;
        shipped_attention = &from->operators[i];
        operators[i].forward = forward;
    }
    return &library;
}
