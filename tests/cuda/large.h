/* Sizes beyond 2^31 elements and the release's sequence length: only on a GPU with much memory. */
#ifndef H3_TESTS_CUDA_LARGE_H
#define H3_TESTS_CUDA_LARGE_H

#include "run.h"

/* Forward of every node at 80,000 rows (attention: 39,230): the last rows must equal the same rows alone. Returns the failures. */
int check_large(const h3_operator_library *library, int *run);

#endif
