/* What the three files of a report are made from. */
#ifndef H3_REPORT_DATA_H
#define H3_REPORT_DATA_H

#include <cJSON.h>

#include "qualify/plan.h"
#include "report/markup.h"
#include "store/run_view.h"

enum { H3_REPORT_CLOSEST = 10, H3_REPORT_STAGE_GATE = 3, H3_REPORT_STAGE_COMPARE = 5 };

/* A number beside its bound. */
typedef struct h3_figure {
    char name[300];   /* of the check or tensor, as in gate.json and compare.json; "" for none */
    char words[300];  /* the same in plain words */
    char detail[600];
    double value, bound; /* NaN where there is no number */
    double provider;     /* the provider's own figure under the same bound; NaN when it is not known */
    double used;         /* value / bound; where at least the bound is wanted, the share of the error that it leaves */
    int at_least;        /* the bound is a least value, not a most */
} h3_figure;

typedef struct h3_report_data {
    h3_run_view view;
    h3_plan plan;
    cJSON *manifest, *thresholds, *gate, *compare, *provider,
        *candidate;                                          /* stage outputs; NULL when the stage is missing or stale */
    int needed[H3_RUN_STAGES];                               /* 1: the plan wants this stage */
    int usable[H3_RUN_STAGES];                               /* 1: finished and fresh */
    char verdict[16], sentence[600];
    h3_figure decided;                                       /* what failed, or what came closest to its bound */
    size_t closest_count;
    h3_figure closest[H3_REPORT_CLOSEST];                    /* highest `used` first, of what the candidate computed */
} h3_report_data;

/* Reads and checks; free in every case. */
h3_status h3_report_gather(h3_report_data *out, const char *run_folder);
void h3_report_data_free(h3_report_data *data);

/* Fills verdict, sentence, decided and closest. */
void h3_report_judge(h3_report_data *data);

h3_status h3_report_json(char **out, const h3_report_data *data);
h3_status h3_report_html(char **out, const h3_report_data *data);
h3_status h3_report_junit(char **out, const h3_report_data *data);
/* Inline pictures. */
void h3_report_picture_nodes(h3_markup *out, const h3_report_data *data);
void h3_report_picture_blocks(h3_markup *out, const h3_report_data *data);
void h3_report_picture_steps(h3_markup *out, const h3_report_data *data);
void h3_report_picture_frames(h3_markup *out, const h3_report_data *data);

/* A figure of pictures or sound: {"value","identical","limit","ok"} under the name of a limit in the contract. */
void h3_report_media_figure(h3_figure *out, const char *name, int64_t seed, const cJSON *judged);

/* Fields of JSON that somebody else may have written: "" or NaN where there is none. */
const char *h3_text_of(const cJSON *object, const char *key);
double h3_number_of(const cJSON *object, const char *key);
const cJSON *h3_item_of(const cJSON *object, const char *key);
int64_t h3_count_of(const cJSON *object, const char *key); /* 0 */

/* "first_failure" is "first failure", stage names likewise. */
void h3_words_of(char *out, size_t size, const char *name);
/* The checks of a node in words: "error" is "isolated error". */
const char *h3_check_words(const char *kind);

/* "<layout>/node.block12.attention": the block, -1 for none. */
int64_t h3_block_of(const char *tensor);

#endif
