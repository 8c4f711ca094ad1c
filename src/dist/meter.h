/*
 * How busy each rank's device was between two points that all ranks pass, and how long hidden states were on their way.
 *
 * A device is busy in spans (graph/device.h says what is in them); its share is of one window for all ranks, from where the first device began its first work to
 * where the last one ended its last. Waiting for a neighbour, for files, digests or the host is never work. Ranks start their clocks on leaving a collective
 * call, so windows of different machines agree to what such a call takes.
 *
 * What stages measure: the passes of stage 1; the comparisons of stage 2; block 0, its second process included, and all blocks in stage 3; the sampling
 * loop of a generation, but not its decoders, which run no spans. Opening, hashing and judging are in no window. Hand-offs are
 * those of links; velocities that return to the first rank by message are none.
 */
#ifndef H3_DIST_METER_H
#define H3_DIST_METER_H

#include <cJSON.h>

#include "dist/ranks.h"

/* One rank. Seconds. */
typedef struct h3_rank_work {
    int64_t spans;        /* 0: the device had nothing to do; then what concerns it is 0 */
    double first, last;   /* its first work began, its last ended: after the start */
    double busy;
    h3_received received; /* over its links */
} h3_rank_work;

typedef struct h3_meter {
    h3_ranks *ranks;
    const h3_device *device;
    double start;
    double elsewhere; /* seconds that another process of this rank kept the device busy; added by whoever knows */
    h3_received before;
} h3_meter;

/* To be called on every rank where a collective call has just returned. H3_ENVIRONMENT when the device is lost. */
h3_status h3_meter_start(h3_meter *meter, h3_ranks *ranks, const h3_device *device);
/* Collective. On rank 0 `out` is an array of ranks->count, the caller's to free; NULL elsewhere. */
h3_status h3_meter_stop(h3_meter *meter, h3_rank_work **out);

/* Seconds of the window; 0 when no device had anything to do. */
double h3_work_window(const h3_rank_work *work, int count);
/* "busy 97 %, 94 % of 12.30 s; hand-off 0.21 s, 1.4 GB": shares in the order of ranks; seconds and bytes of all links together, left out when nothing was handed
 * on. A new string, the caller's. */
h3_status h3_work_text(char **out, const h3_rank_work *work, int count);
/* The same with every rank's figures, for site.json; NULL without memory. */
cJSON *h3_work_json(const h3_rank_work *work, int count);

#endif
