#include "dist/attach.h"

static void beat(void *user, const char *where, int64_t block) { h3_ranks_beat(user, where, block); }

void h3_ranks_watch(h3_ranks *ranks, h3_engine *engine)
{
    engine->beat = ranks != NULL ? beat : NULL;
    engine->beat_user = ranks;
}

void h3_ranks_attach(h3_ranks *ranks, h3_model *model)
{
    model->link = h3_ranks_link(ranks, model->engine.device);
    h3_ranks_watch(ranks, &model->engine);
}
