#include "dist/meter.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/log.h"
#include "base/memory.h"

h3_status h3_meter_start(h3_meter *meter, h3_ranks *ranks, const h3_device *device)
{
    h3_device_work earlier;
    H3_TRY(device->span_take(&earlier));
    *meter = (h3_meter){.ranks = ranks, .device = device, .start = h3_clock(), .before = ranks->received};
    return H3_OK;
}

static h3_status measure(h3_rank_work *out, const h3_meter *meter)
{
    h3_device_work work;
    const h3_received *now = &meter->ranks->received, *before = &meter->before;
    H3_TRY(meter->device->span_take(&work));
    *out = (h3_rank_work){.received = {now->waited - before->waited, now->handing - before->handing, now->bytes - before->bytes}};
    if (work.spans == 0) return H3_OK;
    out->spans = work.spans;
    out->first = work.start - meter->start;
    out->last = out->first + work.window;
    out->busy = work.busy + meter->elsewhere;
    return H3_OK;
}

h3_status h3_meter_stop(h3_meter *meter, h3_rank_work **out)
{
    h3_rank_work mine;
    h3_ranks *ranks = meter->ranks;
    void **all = NULL, *memory = NULL;
    size_t *sizes = NULL;
    *out = NULL;
    h3_status status = measure(&mine, meter);
    if (status == H3_OK && ranks->rank == 0) status = h3_alloc(&memory, (size_t)ranks->count, sizeof mine, "the ranks' times");
    *out = memory;
    H3_TRY(h3_ranks_agree(ranks, status));
    status = h3_ranks_gather(ranks, &mine, sizeof mine, &all, &sizes);
    for (int rank = 0; all != NULL && rank < ranks->count; rank++) {
        memcpy(&(*out)[rank], all[rank], sizeof mine);
        free(all[rank]);
    }
    free(all);
    free(sizes);
    return status;
}

double h3_work_window(const h3_rank_work *work, int count)
{
    double first = 0, last = 0;
    int any = 0;
    for (int i = 0; i < count; i++) {
        if (work[i].spans == 0) continue;
        if (!any || work[i].first < first) first = work[i].first;
        if (!any || work[i].last > last) last = work[i].last;
        any = 1;
    }
    return last - first;
}

static double share(double seconds, double window) { return window > 0 ? seconds / window : 0; }

static h3_received sum_of(const h3_rank_work *work, int count)
{
    h3_received sum = {0};
    for (int i = 0; i < count; i++) {
        sum.handing += work[i].received.handing;
        sum.bytes += work[i].received.bytes;
    }
    return sum;
}

static void say_bytes(FILE *stream, double bytes)
{
    if (bytes >= 1e9) fprintf(stream, "%.1f GB", bytes * 1e-9);
    else if (bytes >= 1e6) fprintf(stream, "%.1f MB", bytes * 1e-6);
    else fprintf(stream, "%.1f kB", bytes * 1e-3);
}

h3_status h3_work_text(char **out, const h3_rank_work *work, int count)
{
    size_t size;
    double window = h3_work_window(work, count);
    h3_received sum = sum_of(work, count);
    FILE *stream = open_memstream(out, &size);
    if (stream == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for the ranks' times");
    for (int i = 0; i < count; i++) fprintf(stream, "%s%.0f %%", i == 0 ? "busy " : ", ", 100 * share(work[i].busy, window));
    fprintf(stream, " of %.2f s", window);
    if (sum.bytes > 0) fprintf(stream, "; hand-off %.2f s, ", sum.handing);
    if (sum.bytes > 0) say_bytes(stream, (double)sum.bytes);
    return fclose(stream) == 0 ? H3_OK : h3_error(H3_ENVIRONMENT, "out of memory for the ranks' times");
}

cJSON *h3_work_json(const h3_rank_work *work, int count)
{
    double window = h3_work_window(work, count);
    cJSON *json = cJSON_CreateObject();
    cJSON_AddNumberToObject(json, "seconds", window);
    cJSON *ranks = cJSON_AddArrayToObject(json, "ranks");
    for (int i = 0; i < count; i++) {
        cJSON *rank = cJSON_CreateObject();
        cJSON_AddNumberToObject(rank, "busy_share", share(work[i].busy, window));
        cJSON_AddNumberToObject(rank, "busy_seconds", work[i].busy);
        cJSON_AddNumberToObject(rank, "waited_seconds", work[i].received.waited);
        cJSON_AddNumberToObject(rank, "hand_off_seconds", work[i].received.handing);
        h3_json_add_integer(rank, "hand_off_bytes", work[i].received.bytes);
        cJSON_AddItemToArray(ranks, rank);
    }
    return json;
}
