/* Random problems for one node: complete calls in host memory, and the same rows in other company. */
#ifndef H3_TESTS_CUDA_PROBLEM_H
#define H3_TESTS_CUDA_PROBLEM_H

#include <stdbool.h>

#include "h3/operator.h"

/* Sizes of a model and of one test: `rows` packed rows of the one item of a base problem. */
typedef struct dims {
    const char *name;
    int64_t rows, hidden, heads, head_dim, ffn, embed, timesteps, freq;
} dims;

enum { PROBLEM_AREAS = 64 };

/* A call of a node with all its tensors, forward and backward, in host memory that the problem owns. */
typedef struct problem {
    const char *node; /* a node's name; with "/plain" behind it unmodulated, with "/cold" very negative scores */
    dims size;
    int64_t items, rows, keys; /* rows of an item (adaln_projection: timesteps); keys of attention */
    h3_call call;
    void *areas[PROBLEM_AREAS];
    int area_count;
    uint64_t random;
} problem;

/* What stands beside the rows that are looked at: they are item `position` of `items`, and rows [offset, offset + rows) of the base. Neighbours hold the base's
 * rows turned by `turn` and more. */
typedef struct company {
    int64_t items, position, rows, offset, turn;
} company;

#define CALL_TENSORS (H3_MAX_IN * 2 + H3_MAX_PARAM * 2 + H3_MAX_SAVED + H3_ROW_GRADS + 4)

/* Every tensor of a call, always in the same order, and whether a direction writes it (bit 0 forward, bit 1 backward). */
void call_tensors(h3_call *call, h3_tensor *list[CALL_TENSORS], int written[CALL_TENSORS]);

bool starts(const char *text, const char *prefix);
bool node_is_linear(const char *node);
int64_t tensor_bytes(const h3_tensor *tensor);

void problem_new(problem *out, const char *node, const dims *size);
void problem_in_company(problem *out, const problem *base, const company *who);
void problem_free(problem *p);

/* The first row of the company's outputs that differs from the base's, forward or backward; -1 when none. Weight gradients, the table's, temb's and
 * those of attention's keys sum over rows and are left out. */
int64_t first_different_row(const problem *base, const problem *other, const company *who, bool backward);

#endif
