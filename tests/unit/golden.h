/* The golden cases, compared as the golden README says; shared by the tests of provider and candidate. */
#ifndef H3_TEST_GOLDEN_H
#define H3_TEST_GOLDEN_H

#include <cJSON.h>

#include "base/text.h"
#include "graph/model.h"

typedef enum { GOLDEN_FP32, GOLDEN_BF16, GOLDEN_CANDIDATE } golden_mode;

typedef struct golden_result {
    int compared, failed, expected;
    double worst;          /* largest error over bound */
    char worst_name[160];
    double worst_error, worst_bound;
} golden_result;

/* Where the goldens are: the shared folder when it is there, else the project's copies. */
const char *golden_folder(char out[H3_PATH_MAX], const char *name);

/* 1: blocks hold their parameters only while they are walked. */
extern int golden_stream;

/* Runs one case; `operators` NULL means the provider. `fp32_bound` for GOLDEN_FP32. `disturb` names a tensor whose values are scaled by
 * 1.02 before the comparison ("" for none), to see the check fail. */
h3_status golden_run(golden_result *out, const char *name, golden_mode mode, double fp32_bound, const char *disturb);
/* The same on another device than the CPU, with its libraries. */
h3_status golden_run_on(golden_result *out, const h3_device *device, const char *name, golden_mode mode, double fp32_bound, const char *disturb);

#endif
