/*
 * A library whose table or start-up is wrong; H3_BROKEN says how (the table's one operator serves norm1 and never runs):
 *   interface  another interface version     size      another size of the table     null      no table
 *   fields     a table without a compiler    operator  an operator without forward   label     an unknown label
 *   flags      flags that name fast math     fast      the build bit of fast math    dirty     the build bit of a dirty tree
 *   load       flush-to-zero set at load     entry     flush-to-zero set by the entry point
 *   rounding   another rounding mode set at load                             contract  an operator without the name of a contract
 */
#include <immintrin.h>
#include <stdlib.h>

#include "h3/operator.h"

H3_EXPORT const h3_operator_library *h3_operator_library_get(void);

static int plan(const h3_call *call, h3_call_plan *out)
{
    (void)call;
    memset(out, 0, sizeof *out);
    return 0;
}

static int refuse(h3_call *call)
{
    memcpy(call->message, "not meant to run", sizeof "not meant to run");
    return 1;
}

static int is(const char *what)
{
    const char *broken = getenv("H3_BROKEN");
    return broken != NULL && strcmp(broken, what) == 0;
}

__attribute__((constructor)) static void at_load(void)
{
    if (is("load")) _mm_setcsr(_mm_getcsr() | 0x8040u);
    if (is("rounding")) _mm_setcsr(_mm_getcsr() | 0x2000u);
}

const h3_operator_library *h3_operator_library_get(void)
{
    static h3_operator op;
    static h3_operator_library library;
    op = (h3_operator){.node = "norm1", .name = "broken_norm1", .row = "none", .label = is("label") ? "best" : "row", .contract = is("contract") ? "" : "none",
                       .plan = plan, .forward = is("operator") ? NULL : refuse, .backward = refuse};
    library = (h3_operator_library){.interface_version = H3_OPERATOR_INTERFACE + (is("interface") ? 1u : 0u),
                                    .size = (uint32_t)sizeof library - (is("size") ? 8u : 0u), .name = "h3_broken", .revision = "none",
                                    .compiler = is("fields") ? NULL : __VERSION__, .flags = is("flags") ? "-O2 -ffast-math" : "-O2",
                                    .architectures = "any", .device = H3_DEVICE_CPU, .operator_count = 1, .operators = &op};
    library.build = H3_BUILD_THIS | (is("fast") ? (uint32_t)H3_BUILD_FAST_MATH : 0u) | (is("dirty") ? (uint32_t)H3_BUILD_DIRTY : 0u);
    if (is("entry")) _mm_setcsr(_mm_getcsr() | 0x8040u);
    return is("null") ? NULL : &library;
}
