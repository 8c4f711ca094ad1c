/* How ranks part after work along the chain, also when one of them could not finish its own. */
#include "dist/internal.h"
#include "dist/link_nccl.h"

int h3_ranks_deserted(const h3_ranks *ranks) { return ranks->outbox->parted[0] || ranks->outbox->parted[1]; }

/* The neighbour on one side: 0 before this rank, 1 after it; -1 when there is none. */
static int neighbour(const h3_ranks *ranks, int side)
{
    int rank = ranks->rank + (side ? 1 : -1);
    return rank >= 0 && rank < ranks->count ? rank : -1;
}

static h3_status say_last(h3_ranks *ranks, int side)
{
    if (ranks->nccl != NULL) return h3_nccl_post_last(ranks->nccl, side);
    return h3_parcel_post_last(ranks, neighbour(ranks, side), side ? H3_TAG_TO_NEXT : H3_TAG_TO_PREVIOUS);
}

static h3_status skip(h3_ranks *ranks, int side)
{
    if (ranks->nccl != NULL) return h3_nccl_skip(ranks->nccl, side);
    return h3_parcel_skip(ranks, neighbour(ranks, side), side ? H3_TAG_TO_PREVIOUS : H3_TAG_TO_NEXT);
}

h3_status h3_ranks_part(h3_ranks *ranks)
{
    /* First say it to both, then listen: nobody waits for a rank that waits. */
    for (int side = 0; side < 2; side++)
        if (neighbour(ranks, side) >= 0) H3_TRY(say_last(ranks, side));
    for (int side = 0; side < 2; side++) {
        while (neighbour(ranks, side) >= 0 && !ranks->outbox->parted[side]) H3_TRY(skip(ranks, side));
        ranks->outbox->parted[side] = 0;
    }
    return h3_outbox_reap(ranks);
}
