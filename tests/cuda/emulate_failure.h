/*
 * Failures of the emulated GPU, chosen by H3_EMULATE_FAIL="RANK CALL NUMBER WHAT": in the process of that rank, CALL fails from its NUMBER-th time
 * on (a call of the CUDA runtime or NCCL by name, "launch" for a kernel, "cublasLtMatmul"). WHAT is a code of CUDA or NCCL, or one of the words
 * below; with a fifth word only programs are meant that have it as an argument. A code of CUDA other than cudaErrorMemoryAllocation means that the GPU is lost: every later call gives it too.
 */
#ifndef H3_TESTS_CUDA_EMULATE_FAILURE_H
#define H3_TESTS_CUDA_EMULATE_FAILURE_H

#include <cuda_runtime_api.h>

enum {
    H3_EMULATED_HANG = 1001,  /* "hang":  never done */
    H3_EMULATED_ASYNC = 1002, /* "async": done, but from then on the communicator's state is an error */
    H3_EMULATED_FLIP = 1003,  /* "flip":  a byte arrives changed */
    H3_EMULATED_STOP = 1004,  /* "stop":  the process stops there for good, without a word */
};

/* 0, or what happens to this call, which is counted. */
int h3_emulated_failure(const char *call);
/* The same for the CUDA runtime: the code to return, which cudaGetLastError then knows too. */
cudaError_t h3_emulated_cuda(const char *call);
/* Memory was refused on demand: there is none left. */
bool h3_emulated_full();
/* The process's rank, 0 when there is only one. */
int h3_emulated_rank();

#endif
