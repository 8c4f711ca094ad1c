/* A shared object without the entry point of an operator library. */
#include "h3/operator.h"

H3_EXPORT int h3_not_an_operator_library(void);

int h3_not_an_operator_library(void) { return H3_OPERATOR_INTERFACE; }
