/* The verdict of a whole run, in a word, in a sentence, and the figure that decided it. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/grouped.h"
#include "qualify/contract.h"
#include "report/data.h"

/* --- figures ------------------------------------------------------------------------------------------------------ */

/* "block0.s78.attention.forward.error" taken apart; 0 when it is something else. */
typedef struct check_name {
    char layout[64], node[40], direction[16], kind[24];
} check_name;

static int split_check(check_name *out, const char *name)
{
    int used = -1;
    if (sscanf(name, "block0.%63[^.].%39[^.].%15[^.].%23[^.]%n", out->layout, out->node, out->direction, out->kind, &used) != 4)
        return 0;
    return used == (int)strlen(name);
}

static void name_figure(h3_figure *out, const char *name)
{
    check_name check;
    const char *tensor;
    snprintf(out->name, sizeof out->name, "%s", name);
    if (split_check(&check, name)) {
        snprintf(out->words, sizeof out->words, "%s of %s, %s, layout %s", h3_check_words(check.kind), check.node,
                 check.direction, check.layout);
    } else if (strcmp(name, "build") == 0) {
        snprintf(out->words, sizeof out->words, "build identity of the candidate");
    } else if (strcmp(name, "full.execution") == 0) {
        snprintf(out->words, sizeof out->words, "execution in the full model");
    } else if (strncmp(name, "full.", 5) == 0 && (tensor = strchr(name, '/')) != NULL) {
        snprintf(out->words, sizeof out->words, "error of %.160s in the full model, layout %.*s", tensor + 1,
                 (int)(tensor - name - 5 < 64 ? tensor - name - 5 : 64), name + 5);
    } else {
        snprintf(out->words, sizeof out->words, "%.250s", name);
    }
}

static void set_numbers(h3_figure *out, double value, double bound, double provider)
{
    out->value = value;
    out->bound = bound;
    out->provider = provider;
    out->used = bound > 0.0 ? value / bound : NAN;
}

/* Keeps the list sorted; of equals the earlier one stands first. */
static void offer(h3_report_data *data, const h3_figure *figure)
{
    size_t at = data->closest_count;
    if (!(figure->used >= 0.0)) return;
    while (at > 0 && figure->used > data->closest[at - 1].used) at--;
    if (at == H3_REPORT_CLOSEST) return;
    if (data->closest_count < H3_REPORT_CLOSEST) data->closest_count++;
    for (size_t i = data->closest_count - 1; i > at; i--) data->closest[i] = data->closest[i - 1];
    data->closest[at] = *figure;
}

static void offer_node(h3_report_data *data, const char *layout, const cJSON *node, const char *direction)
{
    const cJSON *record = h3_item_of(node, direction), *cell;
    if (cJSON_IsTrue(h3_item_of(record, "isolated_bitwise")))
        return; /* the provider's own bytes say nothing about the candidate */
    cJSON_ArrayForEach(cell, h3_item_of(record, "checks")) {
        h3_figure figure = {0};
        char name[300];
        if (h3_item_of(cell, "bound") == NULL || strcmp(cell->string, "chained") == 0)
            continue; /* chained ones come with the full model */
        snprintf(name, sizeof name, "block0.%.60s.%.60s.%s.%.60s", layout, h3_text_of(node, "node"), direction, cell->string);
        name_figure(&figure, name);
        set_numbers(&figure, h3_number_of(cell, "value"), h3_number_of(cell, "bound"), fabs(h3_number_of(cell, "provider")));
        offer(data, &figure);
    }
}

static void offer_gate(h3_report_data *data)
{
    const cJSON *layout, *node, *tensor;
    cJSON_ArrayForEach(layout, h3_item_of(data->gate, "block0")) {
        cJSON_ArrayForEach(node, h3_item_of(layout, "nodes")) {
            offer_node(data, h3_text_of(layout, "layout"), node, "forward");
            offer_node(data, h3_text_of(layout, "layout"), node, "backward");
        }
    }
    cJSON_ArrayForEach(tensor, h3_item_of(h3_item_of(data->gate, "full_model"), "tensors")) {
        h3_figure figure = {0};
        char name[300];
        if (cJSON_IsTrue(h3_item_of(tensor, "bitwise"))) continue;
        snprintf(name, sizeof name, "full.%.250s", h3_text_of(tensor, "tensor"));
        name_figure(&figure, name);
        set_numbers(&figure, h3_number_of(tensor, "error"), h3_number_of(tensor, "bound"), NAN);
        offer(data, &figure);
    }
}

static void latent_figure(h3_figure *out, const cJSON *seed, const char *modality)
{
    const cJSON *latent = h3_item_of(h3_item_of(seed, "latent"), modality);
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "compare.seed%lld.%s.latent_error", (long long)h3_count_of(seed, "seed"), modality);
    snprintf(out->words, sizeof out->words, "distance of the final %s latents of seed %lld from the provider's", modality,
             (long long)h3_count_of(seed, "seed"));
    set_numbers(out, h3_number_of(latent, "error"), h3_number_of(latent, "limit"), NAN);
}

static const char *limit_words(const char *name)
{
    static const char *const words[][2] = {{"psnr_global_db", "peak signal-to-noise ratio of the pictures (dB)"},
                                           {"ssim_mean", "structural similarity of the pictures"},
                                           {"audio_snr_db", "signal-to-noise ratio of the sound (dB)"},
                                           {"audio_lsd_db", "log-spectral distance of the sound (dB)"}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(words[i][0], name) == 0) return words[i][1];
    return name;
}

/* Of a figure that must be at least its limit: how much of the error that the limit leaves is used. Decibels by amplitude; similarity by what is missing to 1. */
static double share_of_error(double value, double limit, int is_similarity)
{
    if (!is_similarity) return pow(10.0, (limit - value) / 20.0);
    return limit < 1.0 ? (1.0 - value) / (1.0 - limit) : NAN;
}

void h3_report_media_figure(h3_figure *out, const char *name, int64_t seed, const cJSON *judged)
{
    double value = h3_number_of(judged, "value"), limit = h3_number_of(judged, "limit");
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "compare.seed%lld.%.60s", (long long)seed, name);
    snprintf(out->words, sizeof out->words, "%.120s of seed %lld", limit_words(name), (long long)seed);
    set_numbers(out, value, limit, NAN);
    for (int i = 0; i < H3_LIMIT_COUNT; i++) out->at_least |= h3_limits[i].at_least && strcmp(h3_limits[i].name, name) == 0;
    if (out->at_least) out->used = share_of_error(value, limit, strcmp(name, h3_limits[H3_LIMIT_SSIM_MEAN].name) == 0);
}

/* What failed of pictures and sound, the farthest beyond its limit; a figure that is no number is the worst. 0 when all hold. */
static int failing_media(h3_figure *out, const cJSON *compare)
{
    const cJSON *judged;
    int found = 0;
    cJSON_ArrayForEach(judged, h3_item_of(compare, "worst_media")) {
        h3_figure figure;
        if (cJSON_IsTrue(h3_item_of(judged, "ok"))) continue;
        h3_report_media_figure(&figure, judged->string, h3_count_of(judged, "seed"), judged);
        if (!found || isnan(figure.used) || figure.used > out->used) *out = figure;
        found = 1;
    }
    return found;
}

static void offer_media(h3_report_data *data)
{
    const cJSON *judged;
    cJSON_ArrayForEach(judged, h3_item_of(data->compare, "worst_media")) {
        h3_figure figure;
        if (cJSON_IsTrue(h3_item_of(judged, "identical"))) continue;
        h3_report_media_figure(&figure, judged->string, h3_count_of(judged, "seed"), judged);
        offer(data, &figure);
    }
}

static void offer_compare(h3_report_data *data)
{
    const cJSON *seed;
    offer_media(data);
    cJSON_ArrayForEach(seed, h3_item_of(data->compare, "seeds")) {
        h3_figure figure;
        latent_figure(&figure, seed, "video");
        offer(data, &figure);
        latent_figure(&figure, seed, "audio");
        offer(data, &figure);
    }
}

/* The provider's own figures: of a tensor of the full model its frozen error, of a check of block 0 what stands in its cell. */
static void find_provider(const h3_report_data *data, h3_figure *figure)
{
    const cJSON *bound;
    if (strncmp(figure->name, "full.", 5) != 0) return;
    cJSON_ArrayForEach(bound, h3_item_of(data->thresholds, "bounds"))
        if (strcmp(h3_text_of(bound, "tensor"), figure->name + 5) == 0) figure->provider = h3_number_of(bound, "provider_error");
}

static void find_failed_provider(const h3_report_data *data, h3_figure *figure)
{
    check_name check;
    const cJSON *layout, *node;
    find_provider(data, figure);
    if (!split_check(&check, figure->name)) return;
    cJSON_ArrayForEach(layout, h3_item_of(data->gate, "block0")) {
        if (strcmp(h3_text_of(layout, "layout"), check.layout) != 0) continue;
        cJSON_ArrayForEach(node, h3_item_of(layout, "nodes")) if (strcmp(h3_text_of(node, "node"), check.node) == 0)
            figure->provider =
            fabs(h3_number_of(h3_item_of(h3_item_of(h3_item_of(node, check.direction), "checks"), check.kind), "provider"));
    }
}

static void decide_by_gate(h3_report_data *data)
{
    name_figure(&data->decided, h3_text_of(data->gate, "first_failed_check"));
    set_numbers(&data->decided, h3_number_of(data->gate, "first_failed_value"), h3_number_of(data->gate, "first_failed_bound"),
                NAN);
    snprintf(data->decided.detail, sizeof data->decided.detail, "%.590s", h3_text_of(data->gate, "first_failed_detail"));
    find_failed_provider(data, &data->decided);
}

/* The worst seed's worse modality; a figure that is no number is the worst. Pictures and sound when the latents hold. */
static void decide_by_compare(h3_report_data *data)
{
    const cJSON *worst = h3_item_of(data->compare, "worst"), *seed;
    if (h3_number_of(worst, "margin") >= 0.0 && failing_media(&data->decided, data->compare)) return;
    cJSON_ArrayForEach(seed, h3_item_of(data->compare, "seeds")) {
        if (h3_count_of(seed, "seed") != h3_count_of(worst, "seed")) continue;
        latent_figure(&data->decided, seed, strcmp(h3_text_of(worst, "modality"), "audio") == 0 ? "audio" : "video");
        return;
    }
}

/* --- verdict ------------------------------------------------------------------------------------------------------ */

static int gate_is(const h3_report_data *data, const char *verdict)
{
    return data->usable[H3_REPORT_STAGE_GATE] && strcmp(data->view.stages[H3_REPORT_STAGE_GATE].verdict, verdict) == 0;
}

static int any(const h3_report_data *data, int usable)
{
    for (int i = 0; i < H3_RUN_STAGES; i++) {
        if (!data->needed[i]) continue;
        if (!usable && !data->usable[i]) return 1;
        if (usable && data->usable[i] && !h3_run_verdict_passes(data->view.stages[i].verdict) && i != H3_REPORT_STAGE_GATE)
            return 1;
    }
    return 0;
}

static void say_valid(h3_report_data *data)
{
    const cJSON *counts = h3_item_of(data->gate, "counts");
    char checks[H3_GROUPED_SIZE], bounds[H3_GROUPED_SIZE], generation[240] = "";
    double worst = h3_number_of(h3_item_of(data->compare, "worst"), "latent_error");
    int judged = cJSON_GetArraySize(h3_item_of(data->compare, "worst_media"));
    if (data->compare != NULL)
        snprintf(generation, sizeof generation, ", and what it generates ends within %.2g of the provider's latents%s", worst,
                 judged > 0 ? "; its pictures and its sound hold every limit of the contract" : "");
    snprintf(data->sentence, sizeof data->sentence,
             "The candidate computes this model: all %s checks and all %s frozen bounds hold%s.",
             h3_grouped(checks, h3_count_of(counts, "checks")), h3_grouped(bounds, h3_count_of(counts, "bounds")), generation);
}

static void say_invalid(h3_report_data *data)
{
    const char *node = h3_text_of(data->gate, "first_failure");
    const h3_figure *f = &data->decided;
    if (!gate_is(data, "INVALID"))
        snprintf(data->sentence, sizeof data->sentence, "The candidate is not qualified: the %s is %s its limit.", f->words,
                 f->at_least ? "below" : "beyond");
    else if (node[0] != 0)
        snprintf(data->sentence, sizeof data->sentence,
                 "The candidate is not qualified: %.60s is the first node that fails (%s).", node, f->words);
    else if (f->name[0] != 0)
        snprintf(data->sentence, sizeof data->sentence, "The candidate is not qualified: it fails the %s.", f->words);
    else
        snprintf(data->sentence, sizeof data->sentence, "The candidate is not qualified: not every check ran.");
}

static void say_partial(h3_report_data *data)
{
    const char *only = h3_text_of(data->gate, "only");
    if (only[0] != 0)
        snprintf(data->sentence, sizeof data->sentence, "No acceptance: nothing failed, but only the checks %.80s ran.", only);
    else
        snprintf(data->sentence, sizeof data->sentence,
                 "No acceptance: nothing failed, but libraries built from uncommitted sources were allowed.");
}

static void say_incomplete(h3_report_data *data)
{
    char list[400] = "";
    size_t used = 0;
    for (int i = 0; i < H3_RUN_STAGES; i++) {
        char name[64];
        if (!data->needed[i] || data->usable[i]) continue;
        h3_words_of(name, sizeof name, h3_run_stage_name(i));
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s%s", used > 0 ? ", " : "", name,
                                 data->view.stages[i].present ? " (stale)" : "");
    }
    snprintf(data->sentence, sizeof data->sentence, "No verdict yet: still to be run: %s.", list);
}

/* Texts were cut to their size, and come from files: one line of UTF-8, whatever is in them. */
static void clean(h3_figure *figure)
{
    h3_markup_clean(figure->name);
    h3_markup_clean(figure->words);
    h3_markup_clean(figure->detail);
}

void h3_report_judge(h3_report_data *data)
{
    offer_gate(data);
    offer_compare(data);
    for (size_t i = 0; i < data->closest_count; i++) find_provider(data, &data->closest[i]);
    set_numbers(&data->decided, NAN, NAN, NAN);
    if (gate_is(data, "INVALID")) {
        decide_by_gate(data);
        strcpy(data->verdict, "INVALID");
        say_invalid(data);
    } else if (any(data, 1)) {
        decide_by_compare(data);
        strcpy(data->verdict, "INVALID");
        say_invalid(data);
    } else {
        int partial = gate_is(data, "PARTIAL"), missing = any(data, 0);
        if (data->closest_count > 0) data->decided = data->closest[0];
        strcpy(data->verdict, partial ? "PARTIAL" : missing ? "INCOMPLETE" : "VALID");
        if (partial) say_partial(data);
        else if (missing) say_incomplete(data);
        else say_valid(data);
    }
    clean(&data->decided);
    for (size_t i = 0; i < data->closest_count; i++) clean(&data->closest[i]);
    h3_markup_clean(data->sentence);
}
