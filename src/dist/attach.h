/* Ties a model or an engine to its ranks: hidden states go along the chain, every operator call is a sign of life. */
#ifndef H3_DIST_ATTACH_H
#define H3_DIST_ATTACH_H

#include "dist/ranks.h"

void h3_ranks_attach(h3_ranks *ranks, h3_model *model);
/* Only the signs of life; `ranks` NULL (a process of its own) is fine. */
void h3_ranks_watch(h3_ranks *ranks, h3_engine *engine);

#endif
