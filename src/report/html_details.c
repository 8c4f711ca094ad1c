/* The folded tables of report.html. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/grouped.h"
#include "report/html.h"

static void open_details(h3_markup *out, const char *title, const char *note)
{
    h3_markup_add(out, "<details><summary>%s</summary>", title);
    if (note != NULL) h3_markup_add(out, "<p class=\"note\">%s</p>", note);
    h3_markup_add(out, "<div class=\"wide\">");
}

static void close_details(h3_markup *out) { h3_markup_add(out, "</table></div></details>\n"); }

static void number_cell(h3_markup *out, double value)
{
    h3_markup_add(out, "<td class=\"r\">");
    if (!isnan(value)) h3_markup_number(out, value);
    h3_markup_add(out, "</td>");
}

/* --- stages ------------------------------------------------------------------------------------------------------- */

static void stages(h3_markup *out, const h3_report_data *data)
{
    open_details(out, "Stages and their files",
                 "Each stage lists its inputs and outputs with their SHA-256 in stages/&lt;stage&gt;/stage.json.");
    h3_markup_add(out, "<table><tr><th>stage<th>state<th class=\"r\">files<th class=\"r\">bytes<th>SHA-256 of stage.json</tr>");
    for (int i = 0; i < H3_RUN_STAGES; i++) {
        const h3_run_stage_view *stage = &data->view.stages[i];
        char words[64], bytes[H3_GROUPED_SIZE];
        int64_t total = 0;
        if (!data->needed[i] && !stage->present) continue;
        for (size_t k = 0; k < stage->outputs.count; k++) total += stage->outputs.items[k].size;
        h3_words_of(words, sizeof words, h3_run_stage_name(i));
        int good = stage->present && stage->fresh && h3_run_verdict_passes(stage->verdict);
        const char *state = !stage->present ? "missing" : !stage->fresh ? "stale" : stage->verdict;
        h3_markup_add(out, "<tr><td>%s<td class=\"%s\">%s<td class=\"r\">%zu<td class=\"r\">%s<td><code>%s</code></tr>", words,
                      good ? "good" : "bad", state, stage->outputs.count, h3_grouped(bytes, total), stage->sha256);
    }
    close_details(out);
}

/* --- nodes -------------------------------------------------------------------------------------------------------- */

/* "0.0017 / 0.0021" or the state. */
static void cell(h3_markup *out, const cJSON *checks, const char *kind)
{
    const cJSON *item = h3_item_of(checks, kind);
    const char *state = h3_text_of(item, "state");
    double value = h3_number_of(item, "value"), bound = h3_number_of(item, "bound");
    int failed = strcmp(state, "failed") == 0;
    h3_markup_add(out, "<td class=\"r%s\">", failed ? " bad" : "");
    if (item == NULL) h3_markup_add(out, "<span class=\"dim\">-</span>");
    else if (!isnan(value) && !isnan(bound)) h3_markup_add(out, "%.3g&nbsp;/&nbsp;%.3g%s", value, bound, failed ? " FAIL" : "");
    else if (strcmp(state, "passed") == 0) h3_markup_add(out, "<span class=\"good\">=</span>");
    else h3_markup_text(out, failed ? "FAIL" : state);
    h3_markup_add(out, "</td>");
}

static int has_failed(const cJSON *checks)
{
    const cJSON *check;
    cJSON_ArrayForEach(check, checks)
        if (strcmp(h3_text_of(check, "state"), "failed") == 0) return 1;
    return 0;
}

static void node_row(h3_markup *out, const cJSON *node, const char *direction)
{
    static const char *const kinds[] = {"error", "bias",    "worst_row", "chained",  "repeat",
                                        "batch", "promise", "process",   "execution"};
    const cJSON *record = h3_item_of(node, direction), *checks = h3_item_of(record, "checks"), *check;
    h3_markup_add(out, "<tr%s>", has_failed(checks) ? " class=\"f\"" : "");
    h3_markup_element(out, "td", NULL, h3_text_of(node, "node"));
    h3_markup_add(out, "<td>%s</td>", direction);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) cell(out, checks, kinds[i]);
    h3_markup_element(out, "td", "k", h3_text_of(record, "kernel"));
    h3_markup_add(out, "</tr>");
    cJSON_ArrayForEach(check, checks) {
        if (strcmp(h3_text_of(check, "state"), "failed") != 0 || h3_text_of(check, "detail")[0] == 0) continue;
        h3_markup_add(out, "<tr class=\"f\"><td></td><td></td><td colspan=\"10\">%s%s", h3_check_words(check->string),
                      strchr(h3_text_of(check, "detail"), ' ') == NULL ? ": tensor " : ": ");
        h3_markup_text(out, h3_text_of(check, "detail"));
        h3_markup_add(out, "</td></tr>");
    }
}

static void nodes(h3_markup *out, const h3_report_data *data)
{
    const cJSON *layout, *node;
    cJSON_ArrayForEach(layout, h3_item_of(data->gate, "block0")) {
        h3_markup_add(out, "<details%s><summary>Block 0, node by node: layout ",
                      strcmp(data->verdict, "INVALID") == 0 ? " open" : "");
        h3_markup_text(out, h3_text_of(layout, "layout"));
        h3_markup_add(out,
                      "</summary><p class=\"note\">figure / bound; = holds bit for bit; permuting the packed rows changes %lld "
                      "of %lld (a control, promised by nobody)</p><div class=\"wide\">",
                      (long long)h3_count_of(h3_item_of(layout, "permutation_control"), "rows_changed"),
                      (long long)h3_count_of(layout, "rows"));
        h3_markup_add(
            out, "<table><tr><th>node<th><th class=\"r\">isolated error<th class=\"r\">bias<th class=\"r\">worst row<th "
                 "class=\"r\">chained<th class=\"r\">repeat"
                 "<th class=\"r\">batch row<th class=\"r\">promise<th class=\"r\">process<th class=\"r\">ran<th>kernel</tr>");
        cJSON_ArrayForEach(node, h3_item_of(layout, "nodes")) node_row(out, node, "forward");
        cJSON_ArrayForEach(node, h3_item_of(layout, "nodes")) node_row(out, node, "backward");
        close_details(out);
    }
}

/* --- operators and libraries -------------------------------------------------------------------------------------- */

static void operators(h3_markup *out, const h3_report_data *data)
{
    const cJSON *binding;
    if (cJSON_GetArraySize(h3_item_of(data->gate, "bindings")) == 0) return;
    open_details(out, "Operators",
                 "label: row = the operator of the row that owns the arithmetic; interim = a deterministic stand-in; reference = "
                 "the provider&#39;s own replay, no evidence");
    h3_markup_add(out, "<table><tr><th>node<th>operator<th>label<th>row<th>reduction contract<th>library</tr>");
    cJSON_ArrayForEach(binding, h3_item_of(data->gate, "bindings")) {
        static const char *const keys[] = {"node", "operator", "label", "row", "contract", "library"};
        h3_markup_add(out, "<tr>");
        for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
            h3_markup_element(out, "td", i == 1 || i >= 3 ? "m" : NULL, h3_text_of(binding, keys[i]));
        h3_markup_add(out, "</tr>");
    }
    close_details(out);
}

static void library_rows(h3_markup *out, const cJSON *library, const char *role)
{
    static const char *const keys[] = {"name", "revision", "compiler", "flags", "architectures", "sha256"};
    if (library == NULL) return;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        h3_markup_add(out, "<tr><td>%s</td><td>%s</td>", i == 0 ? role : "", keys[i]);
        h3_markup_element(out, "td", "m", h3_text_of(library, keys[i]));
        h3_markup_add(out, "</tr>");
    }
}

static void identities(h3_markup *out, const h3_report_data *data)
{
    const cJSON *library, *item, *model = h3_item_of(data->manifest, "model");
    open_details(out, "Builds, machine class and identities", "Byte equality is promised within one machine class only.");
    h3_markup_add(out, "<table>");
    cJSON_ArrayForEach(library, h3_item_of(data->gate, "libraries")) library_rows(out, library, "candidate");
    library_rows(out, h3_item_of(data->gate, "provider"), "provider");
    cJSON_ArrayForEach(item, h3_item_of(data->manifest, "fingerprint")) {
        h3_markup_add(out, "<tr><td>machine class</td><td>");
        h3_markup_text(out, item->string);
        h3_markup_add(out, "</td>");
        h3_markup_element(out, "td", "m", cJSON_IsString(item) ? item->valuestring : "");
        h3_markup_add(out, "</tr>");
    }
    cJSON_ArrayForEach(item, model) {
        if (!cJSON_IsString(item)) continue;
        h3_markup_add(out, "<tr><td>model</td><td>");
        h3_markup_text(out, item->string);
        h3_markup_add(out, "</td>");
        h3_markup_element(out, "td", "m", item->valuestring);
        h3_markup_add(out, "</tr>");
    }
    h3_markup_add(out, "<tr><td>plan</td><td>sha256</td><td class=\"m\">%s</td></tr>", data->plan.sha256);
    close_details(out);
}

/* --- figures ------------------------------------------------------------------------------------------------------ */

static void closest(h3_markup *out, const h3_report_data *data)
{
    if (data->closest_count == 0) return;
    open_details(out, "The figures closest to their bounds",
                 "Of what the candidate computed; tensors that have the provider&#39;s own bytes are left out.");
    h3_markup_add(
        out,
        "<table><tr><th>figure<th class=\"r\">candidate<th class=\"r\">bound<th class=\"r\">provider<th class=\"r\">used</tr>");
    for (size_t i = 0; i < data->closest_count; i++) {
        const h3_figure *f = &data->closest[i];
        h3_markup_add(out, "<tr%s>", f->used <= 1.0 ? "" : " class=\"f\"");
        h3_markup_element(out, "td", NULL, f->words);
        number_cell(out, f->value);
        number_cell(out, f->bound);
        number_cell(out, f->provider);
        h3_markup_add(out, "<td class=\"r\">%.1f&nbsp;%%</td></tr>", 100.0 * f->used);
    }
    close_details(out);
}

static void beyond(h3_markup *out, const h3_report_data *data)
{
    const cJSON *tensor;
    enum { MOST = 40 };
    int shown = 0;
    cJSON_ArrayForEach(tensor, h3_item_of(h3_item_of(data->gate, "full_model"), "tensors")) {
        double error = h3_number_of(tensor, "error"), bound = h3_number_of(tensor, "bound");
        if (error <= bound || shown == MOST) continue;
        if (shown++ == 0) {
            h3_markup_add(out,
                          "<details open><summary>Tensors beyond their bound, in execution order</summary><p class=\"note\">at "
                          "most %d are shown; gate.json has all</p><div class=\"wide\">",
                          MOST);
            h3_markup_add(out, "<table><tr><th>tensor<th class=\"r\">error<th class=\"r\">bound</tr>");
        }
        h3_markup_add(out, "<tr class=\"f\">");
        h3_markup_element(out, "td", "m", h3_text_of(tensor, "tensor"));
        h3_markup_add(out, "<td class=\"r\">");
        h3_markup_number(out, error);
        h3_markup_add(out, "</td>");
        number_cell(out, bound);
        h3_markup_add(out, "</tr>");
    }
    if (shown > 0) close_details(out);
}

static void drifts(h3_markup *out, const h3_report_data *data)
{
    static const char *const keys[][2] = {
        {"first_failure", "first node that fails a check of its own"},
        {"first_drift", "information: first node whose chained output is not the provider&#39;s bytes"},
        {"first_isolated_drift", "information: the same on the provider&#39;s inputs"},
        {"first_repeat_drift", "a failure"},
        {"first_batch_drift", "a failure"},
        {"first_grad_repeat_drift", "a failure"},
        {"first_grad_batch_drift", "a failure"}};
    if (data->gate == NULL) return;
    open_details(out, "First drift and sections of the gate", NULL);
    h3_markup_add(out, "<table>");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *node = h3_text_of(data->gate, keys[i][0]);
        h3_markup_add(out, "<tr><td class=\"m\">%s</td>", keys[i][0]);
        h3_markup_element(out, "td", NULL, node[0] != 0 ? node : "none");
        h3_markup_add(out, "<td class=\"dim\">%s</td></tr>", keys[i][1]);
    }
    const cJSON *section;
    cJSON_ArrayForEach(section, h3_item_of(data->gate, "sections")) {
        h3_markup_add(out, "<tr><td class=\"m\">section ");
        h3_markup_text(out, section->string);
        h3_markup_add(out, "</td>");
        h3_markup_element(out, "td", NULL, cJSON_IsString(section) ? section->valuestring : "");
        h3_markup_add(out, "<td></td></tr>");
    }
    close_details(out);
}

/* --- comparison --------------------------------------------------------------------------------------------------- */

static void comparison_rows(h3_markup *out, const cJSON *seed, const char *modality)
{
    const cJSON *latent = h3_item_of(h3_item_of(seed, "latent"), modality),
                *velocity = h3_item_of(h3_item_of(seed, "velocity"), modality);
    double error = h3_number_of(latent, "error"), limit = h3_number_of(latent, "limit");
    h3_markup_add(out, "<tr%s><td>%lld<td>%s<td class=\"r\">", error <= limit ? "" : " class=\"f\"",
                  (long long)h3_count_of(seed, "seed"), modality);
    h3_markup_number(out, error);
    h3_markup_add(out, "</td>");
    number_cell(out, limit);
    number_cell(out, h3_number_of(latent, "margin"));
    h3_markup_add(out, "<td class=\"r\">");
    h3_markup_number(out, h3_number_of(velocity, "worst_error"));
    h3_markup_add(out, "</td><td class=\"r\">%lld</td></tr>", (long long)h3_count_of(velocity, "worst_step"));
}

/* Every limit on pictures and sound, seed by seed; what is merely measured below. */
static void media(h3_markup *out, const h3_report_data *data)
{
    const cJSON *seed, *judged, *figure;
    int failed = 0;
    if (h3_item_of(data->compare, "worst_media") == NULL) return;
    cJSON_ArrayForEach(judged, h3_item_of(data->compare, "worst_media")) failed |= !cJSON_IsTrue(h3_item_of(judged, "ok"));
    h3_markup_add(out, "<details%s><summary>Pictures and sound, seed by seed</summary><p class=\"note\">%s</p><div class=\"wide\"><table><tr><th>seed<th>figure<th "
                       "class=\"r\">value<th class=\"r\">limit<th class=\"r\">margin</tr>", failed ? " open" : "",
                  "The decoders are the same on both sides. Sound is judged apart from pictures. The reference beside itself shows no difference, which is checked.");
    cJSON_ArrayForEach(seed, h3_item_of(data->compare, "seeds")) {
        cJSON_ArrayForEach(judged, h3_item_of(h3_item_of(seed, "media"), "judged")) {
            h3_figure f;
            h3_report_media_figure(&f, judged->string, h3_count_of(seed, "seed"), judged);
            h3_markup_add(out, "<tr%s><td>%lld</td>", cJSON_IsTrue(h3_item_of(judged, "ok")) ? "" : " class=\"f\"", (long long)h3_count_of(seed, "seed"));
            h3_markup_element(out, "td", "m", judged->string);
            h3_markup_add(out, "<td class=\"r\">");
            if (cJSON_IsTrue(h3_item_of(judged, "identical"))) h3_markup_add(out, "identical");
            else h3_markup_number(out, f.value);
            h3_markup_add(out, "</td><td class=\"r\">at %s %.4g</td>", f.at_least ? "least" : "most", f.bound);
            number_cell(out, h3_number_of(judged, "margin"));
            h3_markup_add(out, "</tr>");
        }
    }
    close_details(out);
    open_details(out, "Pictures and sound: the worst of every figure", NULL);
    h3_markup_add(out, "<table><tr><th>figure<th class=\"r\">value<th>seed</tr>");
    cJSON_ArrayForEach(figure, h3_item_of(data->compare, "worst_figures")) {
        h3_markup_add(out, "<tr>");
        h3_markup_element(out, "td", "m", figure->string);
        h3_markup_add(out, "<td class=\"r\">");
        if (cJSON_IsTrue(h3_item_of(figure, "identical"))) h3_markup_add(out, "identical");
        else h3_markup_number(out, h3_number_of(figure, "value"));
        h3_markup_add(out, "</td><td>%lld</td></tr>", (long long)h3_count_of(figure, "seed"));
    }
    close_details(out);
}

static void overrides(h3_markup *out, const h3_report_data *data)
{
    const cJSON *list = h3_item_of(data->candidate != NULL ? data->candidate : data->provider, "overrides"), *item;
    if (cJSON_GetArraySize(list) == 0) return;
    open_details(out, "Where the plan departs from the generation contract", NULL);
    h3_markup_add(out, "<table><tr><th>field<th>contract<th>plan</tr>");
    cJSON_ArrayForEach(item, list) {
        h3_markup_add(out, "<tr>");
        h3_markup_element(out, "td", NULL, h3_text_of(item, "field"));
        for (int i = 0; i < 2; i++) {
            char *text = cJSON_PrintUnformatted(h3_item_of(item, i == 0 ? "contract" : "plan"));
            h3_markup_element(out, "td", "m", text);
            cJSON_free(text);
        }
        h3_markup_add(out, "</tr>");
    }
    close_details(out);
}

static void comparison(h3_markup *out, const h3_report_data *data)
{
    const cJSON *seed, *name, *unjudged = h3_item_of(data->compare, "not_judged");
    if (data->compare == NULL) return;
    h3_markup_add(out,
                  "<details%s><summary>Generation, seed by seed</summary><p class=\"note\">Noise, sigma schedules and shapes are "
                  "identical on both sides.",
                  strcmp(h3_text_of(data->compare, "verdict"), "passed") == 0 ? "" : " open");
    if (cJSON_GetArraySize(unjudged) > 0) h3_markup_add(out, " Not judged here:");
    cJSON_ArrayForEach(name, unjudged) {
        h3_markup_add(out, " ");
        h3_markup_text(out, cJSON_IsString(name) ? name->valuestring : "");
    }
    h3_markup_add(out, "</p><div class=\"wide\"><table><tr><th>seed<th>modality<th class=\"r\">final latents<th "
                       "class=\"r\">limit<th class=\"r\">margin"
                       "<th class=\"r\">worst velocity<th class=\"r\">at step</tr>");
    cJSON_ArrayForEach(seed, h3_item_of(data->compare, "seeds")) {
        comparison_rows(out, seed, "video");
        comparison_rows(out, seed, "audio");
    }
    close_details(out);
}

void h3_report_details(h3_markup *out, const h3_report_data *data)
{
    h3_markup_add(out, "<h2>Details</h2>\n");
    beyond(out, data);
    closest(out, data);
    nodes(out, data);
    comparison(out, data);
    media(out, data);
    overrides(out, data);
    drifts(out, data);
    operators(out, data);
    identities(out, data);
    stages(out, data);
}
