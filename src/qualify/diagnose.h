/* Diagnosis of a failing or drifting candidate: which node explains how much of the error. Can never turn a failure into a pass. */
#ifndef H3_QUALIFY_DIAGNOSE_H
#define H3_QUALIFY_DIAGNOSE_H

#include "qualify/gate.h"

/* One of the 34 substitutions: a node's provider inside the candidate graph, or its candidate inside the provider graph. */
typedef struct h3_substitution {
    int32_t node;
    int32_t provider_inside; /* 1: provider's node in the candidate graph; 0: candidate's node in the provider graph */
    double error;            /* of the target tensor */
    double explained;        /* share of the candidate's error that this one node takes away, or adds to the provider's */
} h3_substitution;

typedef struct h3_diagnosis {
    char target[240];        /* "<layout>/<tensor>": the tensor farthest beyond (or closest to) its bound */
    double bound, candidate_error, provider_error;
    h3_substitution substitutions[2 * H3_NODE_COUNT]; /* most explaining first */
    int64_t first_bad_block; /* with candidates in blocks 0..this the target is beyond its bound, with one block fewer it is not; -1: it never is */
    int32_t permuted_rows_changed;
    double permuted_largest;
} h3_diagnosis;

/* Collective. Works on the first layout of the gate's plan. */
h3_status h3_diagnose(h3_gate *gate, h3_progress *progress, h3_diagnosis *out);
enum { H3_DIAGNOSE_RUNS = 2 + 2 * H3_NODE_COUNT };

/* diagnose.json (caller deletes). */
h3_status h3_diagnosis_json(cJSON **out, const h3_diagnosis *diagnosis, const h3_plan *plan);

#endif
