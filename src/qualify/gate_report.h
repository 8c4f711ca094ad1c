/* What the gate found, put in order: first failure, first drifts, verdict, gate.json, and the table for people. */
#ifndef H3_QUALIFY_GATE_REPORT_H
#define H3_QUALIFY_GATE_REPORT_H

#include "qualify/gate.h"

typedef enum { H3_SECTION_BUILD, H3_SECTION_HASHES, H3_SECTION_BLOCK0, H3_SECTION_FULL, H3_SECTIONS } h3_section;
typedef enum { H3_SECTION_NOT_RUN, H3_SECTION_PASSED, H3_SECTION_FAILED, H3_SECTION_LEFT_OUT /* by --only */ } h3_section_state;

typedef struct h3_gate_result {
    h3_section_state section[H3_SECTIONS];
    char build_problem[1024];
    size_t layout_count;
    h3_layout_record *layouts;
    h3_full_record full;       /* of all ranks, in rank order */
    int64_t blocks;
    const char *only;
    int allow_dirty, dirty;
    /* filled by h3_gate_judge */
    int64_t checks, failed, not_run, bounds, bounds_failed;
    char first_failed_check[280]; /* "" when none */
    double first_failed_value, first_failed_bound;
    char first_failed_detail[1024];
    int32_t failure_node;         /* first_failure; -1 */
    h3_direction failure_direction;
    const h3_layout_record *failure_layout; /* NULL when the full model has it */
    char drift[6][64];            /* first_drift, first_isolated_drift, first_repeat_drift, first_batch_drift and the two of gradients; "" */
    char full_drift[2][240];      /* first tensor of the full model, forward and backward, that is not the provider's bytes */
    const char *verdict;          /* "VALID", "INVALID", "PARTIAL" */
} h3_gate_result;
extern const char *const h3_drift_names[6];

/* Orders everything and decides. A section that was to run and did not is no pass. */
void h3_gate_judge(h3_gate_result *result);

/* gate.json (caller deletes). Deterministic: no times, hosts or paths. */
h3_status h3_gate_json(cJSON **out, const h3_gate_result *result, const h3_plan *plan, const h3_bindings *candidate, const h3_library *provider);

/* All checks of one node, a line each. */
void h3_gate_say_node(const h3_layout_record *layout, int32_t node);

/* The table and the first failure, as lines on stdout. */
void h3_gate_say(const h3_gate_result *result, const h3_bindings *candidate);

#endif
