/* What plan.c and plan_checkpoint.c share. */
#ifndef H3_QUALIFY_PLAN_INTERNAL_H
#define H3_QUALIFY_PLAN_INTERNAL_H

#include "qualify/plan.h"

/* Reads "checkpoint" of a plan whose path and JSON are set. H3_USAGE. */
h3_status h3_plan_read_checkpoint(h3_plan *plan);

#endif
