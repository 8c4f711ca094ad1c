/*
 * The shipped candidate with one node made wrong. H3_WRONG="NODE:MUTATION[:backward]" says which; unset, nothing is wrong. All other
 * nodes, and the other direction, are the shipped library's, found in the first folder of H3_LIB.
 *
 * Mutations of the arithmetic (mutation.h) run plain loops; these change a right result:
 *   nan       one element is a NaN           stale     the last column keeps the previous call's values
 *   counter   a bit depends on the call's number        process   a bit depends on the process's number
 *   rows      a bit depends on the number of rows       unwritten the last element is not written
 *   fallback  says that a fallback ran       nameless  does not say what ran          refuses   returns an error
 *   ftz       leaves flush-to-zero set       input     writes into its input       given     backward writes into the forward's output
 *   behind    writes behind the end          behind_odd   only where rows are odd  workspace writes behind its workspace
 *   prints    says something on stdout (right) crashes  in its first call          leaves    ends the process with exit(0)
 *   worn      a bit differs from the 20th call on
 *   rebuilt   adds a byte to the file H3_WRONG_FILE, this library's own, in its first call
 *   hidden    backward uses what the last forward left behind                      saved     plans a saved tensor of no type
 *   elsewhere   falls back where the weights are not those of the first call: in later blocks, which block 0's checks do not see
 *   elsewhere_nan   one element is a NaN there
 *   refuses_at   returns an error where H3_WRONG_AT="WEIGHT/ROWS ..." says: by the first half of its weights, in hex, and by its rows
 */
#include <dlfcn.h>
#include <immintrin.h>
#include <stdio.h>
#include <unistd.h>

#include "wrong_products.h"
#include "wrong_rows.h"

H3_EXPORT const h3_operator_library *h3_operator_library_get(void);

static struct {
    char node[32], what[32], direction[16];
    mutation arithmetic;
} wrong;
static const h3_operator *shipped; /* the right operator of the wrong node */

static void run_loops(const h3_call *call, bool backward)
{
    const char *node = wrong.node;
    const bool ropes = strncmp(node, "rope_", 5) == 0;
    if (ropes) rope(call, backward ? &call->dout : &call->in[0], backward ? &call->din[0] : &call->out, backward ? -1.0f : 1.0f);
    else if (strcmp(node, "adaln_projection") == 0) (backward ? adaln_backward : adaln_forward)(call);
    else if (strstr(node, "norm") != NULL) (backward ? norm_backward : norm_forward)(call);
    else if (strcmp(node, "attention") == 0) (backward ? attention_backward : attention_forward)(call);
    else if (strncmp(node, "residual_", 9) == 0) (backward ? residual_backward : residual_forward)(call);
    else if (strcmp(node, "swiglu") == 0) (backward ? swiglu_backward : swiglu_forward)(call);
    else (backward ? linear_backward : linear_forward)(call);
}

static bool is(const char *what) { return strcmp(wrong.what, what) == 0; }

/* The tensor that a mutation of results changes: the output, or the first gradient. */
static h3_tensor *target(h3_call *call, bool backward)
{
    if (!backward) return &call->out;
    return call->din[0].rank > 0 ? &call->din[0] : &call->din[1];
}

/* Whether the weights are others than in the first call. */
static bool is_elsewhere(const h3_call *call)
{
    static uint16_t first[16];
    static bool known;
    if (call->param[0].rank == 0) return false;
    if (!known) memcpy(first, call->param[0].data, sizeof first);
    known = true;
    return memcmp(first, call->param[0].data, sizeof first) != 0;
}

/* Whether H3_WRONG_AT has this block and layout. */
static bool is_listed(const h3_call *call)
{
    const char *list = getenv("H3_WRONG_AT");
    unsigned weight;
    long rows;
    int length;
    for (; list != NULL && sscanf(list, "%x/%ld %n", &weight, &rows, &length) == 2; list += length)
        if (call->param[0].rank > 0 && *(const uint16_t *)call->param[0].data == weight && rows_of(&call->in[0]) == rows) return true;
    return false;
}

static void change_own_file(void)
{
    static bool changed;
    const char *path = getenv("H3_WRONG_FILE");
    FILE *file = path != NULL && !changed ? fopen(path, "a") : NULL;
    changed = true;
    if (file != NULL) fputc(0, file), fclose(file);
}

/* Two bytes, which the C library's allocation has to spare. */
__attribute__((no_sanitize("address"))) static void write_behind(uint16_t *end) { *end = 0x3f80; }

static size_t workspace_planned;
static int64_t rows_of_forward;

static void spoil(h3_call *call, bool backward, int64_t number)
{
    static uint16_t *previous;
    static int64_t previous_count;
    h3_tensor *tensor = target(call, backward);
    const int64_t count = h3_tensor_count(tensor) * (int64_t)(h3_dtype_size(tensor->dtype) / 2), width = width_of(tensor);
    uint16_t *data = tensor->data; /* FP32 as pairs of halves, the upper one at odd places */
    if (is("nan") || (is("elsewhere_nan") && is_elsewhere(call))) data[count / 2 | 1] = 0x7fc0;
    if (is("counter")) data[count / 2] ^= (uint16_t)(number & 1);
    if (is("process")) data[(int64_t)getpid() % count] ^= 1;
    if (is("rows") && rows_of(&call->in[0]) % 31 == 2) data[count - 1] ^= 1;
    if (is("worn")) data[count / 2] ^= number >= 20;
    if (is("input")) ((uint16_t *)call->in[0].data)[0] ^= 1;
    if (is("rebuilt")) change_own_file();
    if (is("crashes")) __builtin_trap();
    if (is("leaves")) exit(0);
    if (is("prints")) printf("a line of the operator's own\n"), fflush(stdout);
    if (is("given")) ((uint16_t *)call->out.data)[0] ^= 1;
    if (is("behind") || (is("behind_odd") && rows_of(&call->in[0]) % 2 == 1)) write_behind(data + count);
    if (is("workspace")) write_behind((uint16_t *)((char *)call->workspace + workspace_planned));
    if (is("hidden")) data[0] ^= rows_of(&call->in[0]) != rows_of_forward;
    if (is("stale")) {
        uint16_t *mine = malloc((size_t)count * sizeof *mine);
        memcpy(mine, data, (size_t)count * sizeof *mine);
        for (int64_t i = width - 1; i < count; i += width) data[i] = previous_count == count ? previous[i] : 0;
        free(previous);
        previous = mine;
        previous_count = count;
    }
}

/* The shipped operator's plan, and 16 bytes of workspace more than it needs. */
static int plan(const h3_call *call, h3_call_plan *needs)
{
    if (shipped->plan(call, needs) != 0) return 1;
    workspace_planned = needs->forward_workspace += 16;
    if (is("saved")) needs->saved[needs->saved_count++] = (h3_tensor){.dtype = 99, .rank = 1, .shape = {4}};
    return 0;
}

static int run(h3_call *call, bool backward)
{
    static int64_t calls[2];
    const bool control = wrong.arithmetic == CONTROL, here = control || backward == (strcmp(wrong.direction, "backward") == 0);
    int (*right)(h3_call *) = backward ? shipped->backward : shipped->forward;
    const int64_t number = calls[backward]++;
    if (!backward) rows_of_forward = rows_of(&call->in[0]);
    if (!here) return right(call);
    if (is("refuses") || (is("refuses_at") && is_listed(call))) {
        snprintf(call->message, sizeof call->message, "this one does not work");
        return 1;
    }
    const h3_tensor *tensor = target(call, backward);
    const size_t bytes = (size_t)h3_tensor_count(tensor) * h3_dtype_size(tensor->dtype);
    uint16_t last = ((const uint16_t *)tensor->data)[bytes / 2 - 1];
    if (wrong.arithmetic == NOT_ARITHMETIC && right(call) != 0) return 1;
    if (wrong.arithmetic != NOT_ARITHMETIC) {
        active = wrong.arithmetic;
        run_loops(call, backward);
        snprintf(call->report.kernel, sizeof call->report.kernel, "plain loops");
    }
    if (is("unwritten")) ((uint16_t *)tensor->data)[bytes / 2 - 1] = last;
    else if (wrong.arithmetic == NOT_ARITHMETIC) spoil(call, backward, number);
    if (is("nameless")) call->report.kernel[0] = 0;
    call->report.fallback = is("fallback") || (is("elsewhere") && is_elsewhere(call));
    if (is("ftz")) _mm_setcsr(_mm_getcsr() | 0x8040u);
    return 0;
}

static int forward(h3_call *call) { return run(call, false); }
static int backward(h3_call *call) { return run(call, true); }

/* The shipped library's table, or NULL. */
static const h3_operator_library *shipped_library(void)
{
    char path[4096];
    const char *folders = getenv("H3_LIB");
    if (folders == NULL) return NULL;
    snprintf(path, sizeof path, "%.*s/libh3_candidate_cpu.so", (int)strcspn(folders, ":"), folders);
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL), *symbol = handle != NULL ? dlsym(handle, H3_OPERATOR_LIBRARY_SYMBOL) : NULL;
    h3_operator_library_get_fn get;
    if (symbol == NULL) return NULL;
    memcpy(&get, &symbol, sizeof get);
    return get();
}

const h3_operator_library *h3_operator_library_get(void)
{
    static h3_operator operators[32];
    static h3_operator_library library;
    const h3_operator_library *from = shipped_library();
    const char *text = getenv("H3_WRONG");
    if (from == NULL || from->operator_count > 32) return NULL;
    library = *from;
    library.name = "h3_wrong_on_purpose";
    library.operators = operators;
    memcpy(operators, from->operators, from->operator_count * sizeof *operators);
    if (text == NULL || sscanf(text, "%31[^:]:%31[^:]:%15s", wrong.node, wrong.what, wrong.direction) < 2) return &library;
    for (size_t i = 1; i < sizeof mutation_names / sizeof *mutation_names; i++)
        if (is(mutation_names[i])) wrong.arithmetic = (mutation)i;
    for (uint32_t i = 0; i < from->operator_count; i++) {
        if (strcmp(operators[i].node, wrong.node) != 0) continue;
        shipped = &from->operators[i];
        operators[i].forward = forward;
        operators[i].backward = backward;
        if (is("workspace") || is("saved")) operators[i].plan = plan;
    }
    return shipped != NULL ? &library : NULL;
}
