/* Running a problem through an operator library, on the host or on the GPU. */
#ifndef H3_TESTS_CUDA_RUN_H
#define H3_TESTS_CUDA_RUN_H

#include "problem.h"

const h3_operator_library *library_load(const char *path);                                 /* ends the program when it cannot */
const h3_operator *library_operator(const h3_operator_library *library, const char *node); /* NULL: it does not serve the node */

/* A problem's tensors in GPU memory. */
typedef struct gpu_problem {
    problem *host;
    h3_call call;
    bool own[CALL_TENSORS];
} gpu_problem;

/* Uploads; inputs that lie at the same host address in `shared` (or NULL) are taken from there. */
void gpu_upload(gpu_problem *out, problem *host, const gpu_problem *shared);
/* Runs one direction. Its results start as 0xff bytes (NaN). Returns the operator's status; the message is in g->call. */
int gpu_run(gpu_problem *g, const h3_operator *op, bool backward);
/* Milliseconds of one direction, mean of `repeats` after one run. */
float gpu_time(gpu_problem *g, const h3_operator *op, bool backward, int repeats);
void gpu_download(gpu_problem *g, bool backward);
void gpu_free(gpu_problem *g);

/* The same on the host. */
int host_run(problem *p, const h3_operator *op, bool backward);

/* Ends the program with exit code 4 when a CUDA call failed. */
void cuda_need(int error, const char *what);

#endif
