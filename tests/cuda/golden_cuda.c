/*
 * The golden cases on a device, as a table: nano, tiny and edge as in test_golden.c, block 0 at the released dimensions (released.c), and the whole model
 * at the released dimensions (whole.h).
 *
 *   golden_cuda [--device cpu|cuda] [--modes LIST] [--cases LIST]
 *   golden_cuda --probe
 *
 * Modes are fp32, bf16 and candidate, all by default. Cases are nano, tiny, edge, s264, s925, rows48 (these by default), deep, full-s264, full-s925,
 * full-release, generation. A case runs in the modes that its golden is for. --probe only says whether there is a device.
 *
 * Needs no test library, so that it can be built where there is a GPU and little else. H3_GOLDEN_SHARED names the folder of the large
 * goldens. Exit code 0 when all that was asked for holds, 1 when something does not, 2 for a wrong command line, 4 without a device.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "golden.h"
#include "released.h"
#include "whole.h"

typedef struct request {
    const char *device, *modes, *cases;
    int probe, failed, run;
} request;

/* Whether a word is in a list with commas. */
static int listed(const char *list, const char *word)
{
    size_t length = strlen(word);
    for (const char *place = list; (place = strstr(place, word)) != NULL; place += length)
        if ((place == list || place[-1] == ',') && (place[length] == ',' || place[length] == 0)) return 1;
    return 0;
}

static void say(request *r, const char *name, const char *mode, h3_status status, const golden_result *result, double start)
{
    int good = status == H3_OK && result->failed == 0 && result->compared > 0 && result->compared == result->expected;
    r->failed |= !good;
    r->run++;
    if (status != H3_OK) printf("%-12s %-10s FAILED  %s\n", name, mode, h3_error_text());
    else
        printf("%-12s %-10s %-7s %4d of %4d tensors, %d beyond their bound, worst %.2f of its bound: %s %.3g / %.3g  %.1f s\n", name, mode,
               good ? "ok" : "FAILED", result->compared, result->expected, result->failed, result->worst, result->worst_name, result->worst_error,
               result->worst_bound, h3_clock() - start);
    fflush(stdout);
}

static void run_small(request *r, const h3_device *device)
{
    static const char *const names[] = {"nano", "tiny", "edge"};
    for (int i = 0; i < 3; i++) {
        int edge = strcmp(names[i], "edge") == 0; /* its BF16 errors are large by nature */
        for (golden_mode mode = GOLDEN_FP32; mode <= GOLDEN_CANDIDATE; mode++) {
            golden_result result = {0};
            double start = h3_clock();
            if (!listed(r->cases, names[i]) || !listed(r->modes, golden_mode_names[mode]) || (edge && mode != GOLDEN_FP32)) continue;
            h3_status status = golden_run_on(&result, device, names[i], mode, edge ? 1e-4 : 1e-5, "");
            say(r, names[i], golden_mode_names[mode], status, &result, start);
        }
    }
}

static void run_released(request *r, const h3_device *device)
{
    static const char *const names[] = {"s264", "s925"};
    released *block;
    int wanted = listed(r->cases, "rows48");
    for (int i = 0; i < 2; i++) wanted |= listed(r->cases, names[i]);
    if (!wanted) return;
    h3_status opened = released_open(&block, device);
    for (int i = 0; i < 2; i++) {
        for (golden_mode mode = GOLDEN_FP32; mode <= GOLDEN_CANDIDATE; mode++) {
            golden_result result = {0};
            double start = h3_clock();
            if (!listed(r->cases, names[i]) || !listed(r->modes, golden_mode_names[mode])) continue;
            h3_status status = opened == H3_OK ? released_block(&result, block, names[i], mode, "") : opened;
            say(r, names[i], golden_mode_names[mode], status, &result, start);
        }
    }
    for (golden_mode mode = GOLDEN_BF16; mode <= GOLDEN_CANDIDATE && listed(r->cases, "rows48"); mode++) {
        golden_result result = {0};
        double start = h3_clock();
        if (!listed(r->modes, golden_mode_names[mode])) continue;
        h3_status status = opened == H3_OK ? released_rows48(&result, block, mode) : opened;
        say(r, "rows48", golden_mode_names[mode], status, &result, start);
    }
    released_close(block);
}

static h3_status run_one(golden_result *result, whole *w, const char *name, golden_mode mode)
{
    if (strcmp(name, "deep") == 0) return whole_deep(result, w, mode, "");
    if (strcmp(name, "generation") == 0) return whole_generation(result, w, mode, "");
    return whole_full(result, w, name + strlen("full-"), mode, "");
}

static void run_whole(request *r, const h3_device *device)
{
    static const char *const names[] = {"deep", "full-s264", "full-s925", "generation", "full-release"};
    whole w;
    h3_status opened = H3_FAILED;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        for (golden_mode mode = i == 0 ? GOLDEN_FP32 : GOLDEN_BF16; mode <= GOLDEN_CANDIDATE; mode++) {
            golden_result result = {0};
            double start = h3_clock();
            if (!listed(r->cases, names[i]) || !listed(r->modes, golden_mode_names[mode])) continue;
            if (opened != H3_OK) opened = whole_open(&w, device, NULL);
            h3_status status = opened == H3_OK ? run_one(&result, &w, names[i], mode) : opened;
            say(r, names[i], golden_mode_names[mode], status, &result, start);
        }
    }
    if (opened == H3_OK) whole_close(&w);
}

/* Whether every word of a list with commas is known, and there is one. */
static int known(const char *list, const char *words)
{
    for (const char *at = list;; at++) {
        char word[32];
        size_t length = strcspn(at, ",");
        if (length == 0 || length >= sizeof word) return 0;
        memcpy(word, at, length);
        word[length] = 0;
        if (!listed(words, word)) return 0;
        at += length;
        if (*at == 0) return 1;
    }
}

static int read_options(request *r, int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--probe") == 0) return r->probe = 1;
    for (int i = 1; i + 1 < argc; i += 2) {
        const char **value = strcmp(argv[i], "--device") == 0 ? &r->device : strcmp(argv[i], "--modes") == 0 ? &r->modes : strcmp(argv[i], "--cases") == 0 ? &r->cases : NULL;
        if (value == NULL) return 0;
        *value = argv[i + 1];
    }
    return argc % 2 == 1 && known(r->modes, "fp32,bf16,candidate") &&
           known(r->cases, "nano,tiny,edge,s264,s925,rows48,deep,full-s264,full-s925,full-release,generation");
}

int main(int argc, char **argv)
{
    request r = {.device = "cuda", .modes = "fp32,bf16,candidate", .cases = "nano,tiny,edge,rows48,s264,s925"};
    const h3_device *device;
    if (!read_options(&r, argc, argv)) {
        fprintf(stderr, "usage: golden_cuda [--device cpu|cuda] [--modes fp32,bf16,candidate]\n"
                        "       [--cases nano,tiny,edge,s264,s925,rows48,deep,full-s264,full-s925,full-release,generation] | --probe\n");
        return 2;
    }
    if (h3_device_open(r.device, 0, &device) != H3_OK) {
        fprintf(stderr, "golden_cuda: %s\n", h3_error_text());
        return 4;
    }
    if (r.probe) {
        printf("%s: %d there\n", r.device, h3_device_count(r.device));
        return 0;
    }
    run_small(&r, device);
    run_released(&r, device);
    run_whole(&r, device);
    if (r.run == 0) printf("no case of %s is for %s\n", r.cases, r.modes);
    printf("goldens on %s: %s\n", r.device, r.failed || r.run == 0 ? "FAILED" : "ok");
    return r.failed || r.run == 0;
}
