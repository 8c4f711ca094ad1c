/*
 * A call of one provider operator on small random tensors, with the same numbers in double precision beside it, so that tests
 * can compare it with a plain evaluation of the formulas (provider_reference.c) and with finite differences of that.
 */
#ifndef H3_TESTS_PROVIDER_PROBLEM_H
#define H3_TESTS_PROVIDER_PROBLEM_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "base/memory.h"
#include "h3/operator.h"

enum { PROBLEM_BLOCKS = 96 };

/* One tensor of a problem. `kind`: 'a' activation type, 'f' float32, both uniform in [-1, 1]; 'n' norm weight in the activation
 * type, around 1; 'w' a weight matrix, scaled by sqrt(3 / columns); 'i' indices below `limit`; 0 absent. */
typedef struct problem_tensor {
    char kind;
    int rank;
    int64_t shape[4];
    int limit;
} problem_tensor;

typedef struct problem problem;

typedef struct problem_spec {
    const char *node;
    int32_t chunk;
    problem_tensor in[H3_MAX_IN], param[H3_MAX_PARAM], out;
    int gradient_in[H3_MAX_IN]; /* which inputs have a gradient */
    int row_grads;              /* outputs for norms and residuals: how many; -1: the six inputs of adaln_projection */
    int table;                  /* the input that row_grads are gathered from (its index follows) */
    int fp32_only;
    void (*reference)(problem *p); /* out_value from in_value and param_value */
} problem_spec;

struct problem {
    const problem_spec *spec;
    const h3_operator *op;
    int32_t dtype;
    h3_call call;
    double *in_value[H3_MAX_IN], *param_value[H3_MAX_PARAM], *out_value, *dout_value;
    void *blocks[PROBLEM_BLOCKS];
    int block_count;
};

extern const problem_spec provider_problems[];
extern const int provider_problem_count;

/* The library under test: H3_LIB (default lib/h3) /libh3_provider_cpu.so, loaded once. */
const h3_operator_library *provider_library(void);
const h3_operator *provider_operator(const char *node);

/* Everything allocated, outputs full of garbage. `offset` moves tensors off their natural alignment by one element. */
problem *problem_new(const problem_spec *spec, int32_t dtype, int offset);
void problem_free(problem *p);
const problem_spec *problem_named(const char *node);

/* Plan and run; the workspace is exactly what the plan asks for, filled with `garbage`. Fails the test on an error. */
void problem_forward(problem *p, int garbage);
void problem_backward(problem *p, int garbage);

/* Adds `amount` to one element of a tensor. */
void tensor_nudge(h3_tensor *tensor, int64_t element, double amount);
double tensor_value(const h3_tensor *tensor, int64_t element);

/* ||x - g|| / ||g||. */
double relative_error(const h3_tensor *x, const double *g);

/* Gradient of sum(out * dout) in the double evaluation with respect to `count` values, by central differences. */
double *finite_difference(problem *p, double *values, int64_t count);

/* A new dense tensor of garbage; freed with the problem. */
h3_tensor problem_tensor_new(problem *p, int32_t dtype, int32_t rank, const int64_t *shape, int offset);
void *problem_block(problem *p, size_t bytes);

uint32_t test_random(uint64_t *state);

#endif
