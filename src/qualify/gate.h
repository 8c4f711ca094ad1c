/*
 * The candidate gate's judgements (qualification.md section 5): block 0 node by node, then the full model. Everything here is plain data
 * that ranks can send as bytes; the program in workers/ decides the order and prints.
 */
#ifndef H3_QUALIFY_GATE_H
#define H3_QUALIFY_GATE_H

#include "qualify/metrics.h"
#include "base/log.h"
#include "qualify/thresholds.h"

/* Checks of one node in one direction. */
typedef enum {
    H3_CHECK_EXECUTION, /* the bound operator ran, and says so */
    H3_CHECK_REPEAT,    /* same inputs, same bytes */
    H3_CHECK_BATCH,     /* a row's bytes do not depend on what is beside it */
    H3_CHECK_PROMISE,   /* forward equals the provider's bytes where promised */
    H3_CHECK_ERROR,     /* isolated error, bias and worst row against the isolated golden */
    H3_CHECK_BIAS,
    H3_CHECK_WORST_ROW,
    H3_CHECK_CHAINED,   /* error within the frozen bound, fed by candidate nodes */
    H3_CHECK_PROCESS,   /* a second, fresh process gives the same digests */
    H3_CHECK_KINDS
} h3_check_kind;
extern const char *const h3_check_names[H3_CHECK_KINDS];

typedef enum { H3_CELL_ABSENT, H3_CELL_NOT_RUN, H3_CELL_PASSED, H3_CELL_FAILED } h3_cell_state;

typedef struct h3_cell {
    int32_t state;        /* h3_cell_state */
    double value, bound;  /* of the tensor that comes closest to (or farthest beyond) its bound */
    double provider;      /* the provider's own figure */
    char detail[200];
} h3_cell;

typedef struct h3_node_record {
    h3_cell cell[2][H3_CHECK_KINDS]; /* [direction][kind] */
    int32_t drift[2];          /* chained output (or gradient) differs from the provider's bytes */
    int32_t isolated_drift[2], isolated_ran[2];
    h3_difference difference[2]; /* chained against the provider */
    int64_t first_row[2];      /* first differing packed row; -1 */
    char kernel[2][96];
    char digest[2][H3_SHA256_HEX]; /* chained output; chained gradient that reaches the node */
} h3_node_record;

typedef struct h3_layout_record {
    char name[64];
    int64_t rows;
    int32_t ran;
    int32_t permuted_rows_changed; /* control: packed rows whose output bits change when rows are permuted */
    double permuted_largest;
    char case_path[160];          /* minimal case of the first node that fails here, relative to the run; "" */
    char case_sha256[H3_SHA256_HEX];
    int64_t case_size;
    h3_node_record node[H3_NODE_COUNT];
} h3_layout_record;

/* "block0.<layout>.<node>.<forward|backward>.<kind>" */
void h3_check_name(char out[240], const char *layout, int32_t node, h3_direction direction, h3_check_kind kind);
/* 1 when the table has this check at all: promise is forward only, and only where the node promises on this kind of device (H3_DEVICE_*) or
 * its operator does. */
int h3_check_exists(int32_t device, int32_t node, h3_direction direction, h3_check_kind kind, const h3_operator *op);

/* What the block-0 section works with. */
typedef struct h3_gate {
    h3_ranks *ranks; /* NULL in the second process */
    const h3_plan *plan;
    const h3_weights *weights;
    const h3_device *device;
    int32_t device_kind; /* H3_DEVICE_*: what is promised there; also without an open device */
    const h3_library *provider;
    const h3_bindings *candidate;
    const h3_manifest *manifest;
    const h3_thresholds *thresholds;
    const char *run_folder;
    const char *only;   /* glob on check names; NULL: all */
    int64_t candidate_end; /* full model: candidate operators in blocks before this one only; 0: in all */
    char *digests;      /* lines "<layout> <where> <node> <tensor> <digest>" of all candidate tensors; grows; caller frees */
    size_t digests_size;
    double second_process; /* seconds that it kept the device busy */
} h3_gate;

/* Runs every wanted check of block 0 on one layout. A failed check is in the record, not in the status: a status says that the gate
 * itself could not work (H3_INTEGRITY: the provider does not reproduce the manifest's digests here). */
h3_status h3_gate_block0(h3_gate *gate, const h3_plan_layout *layout, h3_layout_record *out);
/* The second process: only the candidate's tensors, for their digests. */
h3_status h3_gate_block0_digests(h3_gate *gate, const h3_plan_layout *layout);

/* Notes one figure in a cell; the worst ratio value/bound stands. */
void h3_cell_note(h3_cell *cell, double value, double bound, double provider, const char *detail);
void h3_cell_fail(h3_cell *cell, const char *detail);
void h3_cell_pass(h3_cell *cell);
int h3_gate_wants(const h3_gate *gate, const char *layout, int32_t node, h3_direction direction, h3_check_kind kind);

/* A tensor of the full model against its bound. */
typedef struct h3_full_tensor {
    char name[240]; /* "<layout>/<tensor>" */
    double error, bound;
    int32_t equal;  /* to the BF16 provider's bytes */
    int32_t node;   /* that makes it; -1 for boundary tensors */
    int64_t block;
    int64_t layout, sequence; /* number of the layout in the plan; order within a block */
} h3_full_tensor;

typedef struct h3_full_record {
    int64_t calls[2][H3_NODE_COUNT];     /* executed through the bound operator */
    int64_t fallbacks[H3_NODE_COUNT];
    char problem[240];                   /* first execution problem; "" */
    int32_t problem_node;                /* the node that has it, when `problem` says one; else -1 */
    int64_t stopped;                     /* 1 + place in the order of one rank's work where an operator failed, which `problem` names; 0: ran to the end */
    size_t count, capacity;
    h3_full_tensor *tensors;             /* h3_gate_judge puts them in execution order, per layout */
} h3_full_record;

/* Collective: all blocks, forward and backward, every layout, candidate operators in the blocks. `progress` may be NULL. */
h3_status h3_gate_full(h3_gate *gate, h3_progress *progress, h3_full_record *out);

#endif
