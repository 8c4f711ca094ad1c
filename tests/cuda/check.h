/* What nodes_cuda checks of one node; each check says what is wrong on stdout and counts it. */
#ifndef H3_TESTS_CUDA_CHECK_H
#define H3_TESTS_CUDA_CHECK_H

#include "base/text.h"
#include "run.h"

typedef struct verdict {
    int failures;
    char line[1024]; /* what was found, for the node's line */
} verdict;

void note(verdict *v, const char *format, ...) __attribute__((format(printf, 2, 3)));
void complain(verdict *v, const problem *p, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* ||a - b|| / ||b|| over two tensors of one shape; NaN when either holds one. */
double relative_error(const h3_tensor *a, const h3_tensor *b);

/* A problem with the same inputs and results of its own. */
void problem_twin(problem *out, const problem *base);

/* Results of one direction against the CPU candidate's: bytes where the arithmetic is the same, else a bound on the error. */
void check_against_cpu(verdict *v, const problem *gpu, const problem *cpu, bool backward);

/* Sampled results of the seven products against the tensor core's model, byte for byte. */
void check_against_model(verdict *v, const problem *p, bool backward, int samples);

/* Bytes of two runs of one direction. */
bool same_results(const problem *a, const problem *b, bool backward);

/* SHA-256 of everything that one direction wrote. False, with h3_error_text, when it cannot be made. */
bool digest_of(const problem *p, bool backward, char out[H3_SHA256_HEX]);

#endif
