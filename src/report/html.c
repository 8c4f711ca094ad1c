/* report.html: one file, readable without a network, a script or this project. First the verdict, the figure that decided it,
 * what was qualified and a picture; everything else below or one click away. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/grouped.h"
#include "report/html.h"

static const char style[] =
    "body{margin:0;background:#fff;color:#1f2328;font:16px/1.5 system-ui,-apple-system,\"Segoe UI\",\"DejaVu Sans\",sans-serif}"
    "main{max-width:1040px;margin:0 auto;padding:0 24px 48px}"
    "header{border-top:8px solid var(--c);padding:28px 0 8px}"
    ".valid{--c:#1a7f37;--l:#dafbe1}.invalid{--c:#cf222e;--l:#ffebe9}.partial,.incomplete{--c:#9a6700;--l:#fff8c5}"
    ".word{display:inline-block;background:var(--l);color:var(--c);font-weight:700;letter-spacing:.06em;padding:2px "
    "12px;border-radius:99px;font-size:15px}"
    "h1{font-size:25px;line-height:1.3;font-weight:600;margin:10px 0 4px}h2{font-size:18px;margin:34px 0 "
    "4px}h3{font-size:15px;margin:18px 0 4px}"
    ".name{margin:0;font-weight:600}.sub,.note{color:#57606a;font-size:14px;margin:2px 0}"
    ".top{display:grid;grid-template-columns:1fr "
    "1fr;gap:28px;margin-top:20px}@media(max-width:760px){.top{grid-template-columns:1fr}}"
    ".card{border:1px solid #d0d7de;border-radius:8px;padding:14px 18px}.card h2{margin:0 0 "
    "4px;font-size:14px;color:#57606a;font-weight:600}"
    ".big{font-size:30px;font-weight:600;font-variant-numeric:tabular-nums}.big "
    "small{font-size:16px;color:#57606a;font-weight:400}"
    ".gauge{position:relative;height:12px;background:#eaeef2;border-radius:6px;margin:10px 0 6px}"
    ".gauge i{position:absolute;left:0;top:0;bottom:0;border-radius:6px;background:var(--c)}.gauge "
    "b{position:absolute;top:-4px;bottom:-4px;width:2px;background:#1f2328}"
    ".gauge u{position:absolute;top:-2px;bottom:-2px;width:2px;background:#8c959f}"
    "dl{display:grid;grid-template-columns:max-content 1fr;gap:2px "
    "14px;margin:0;font-size:14px}dt{color:#57606a}dd{margin:0;overflow-wrap:anywhere}"
    "table{border-collapse:collapse;font-size:13.5px;width:100%;margin:6px "
    "0}th{text-align:left;font-weight:600;color:#57606a;border-bottom:1px solid #d0d7de}"
    "th,td{padding:3px 8px 3px 0;vertical-align:top}td.r,th.r{text-align:right;font-variant-numeric:tabular-nums}tr.f "
    "td{background:#ffebe9}td{border-bottom:1px solid #eaeef2}"
    "code,.m{font-family:ui-monospace,\"DejaVu Sans Mono\",monospace;font-size:12.5px;overflow-wrap:anywhere}"
    "details{border-top:1px solid #d0d7de;padding:8px 0}details:last-of-type{border-bottom:1px solid "
    "#d0d7de}summary{cursor:pointer;font-weight:600;padding:4px 0}"
    ".wide{overflow-x:auto}td.k{white-space:nowrap;font-family:ui-monospace,\"DejaVu Sans "
    "Mono\",monospace;font-size:12px}.bad{color:#cf222e;font-weight:600}.good{color:#1a7f37}.dim{color:#8c959f}"
    ".box{background:var(--l);border-radius:8px;padding:10px 16px;margin-top:18px;font-size:14px}"
    "svg{width:100%;height:auto;display:block;margin-top:8px}svg text{font:12px system-ui,\"DejaVu "
    "Sans\",sans-serif;fill:#1f2328}svg text.s{font-size:11px;fill:#57606a}"
    "svg text.t{font-weight:600;font-size:13px}svg text.n{font-size:12.5px}svg .a{stroke:#8c959f}svg .g,svg "
    ".h{stroke:#eaeef2}svg .b{stroke:#1f2328;stroke-width:1.4}"
    "svg .p{stroke:#8c959f;stroke-width:1.6}@media print{details{break-inside:avoid}}";

/* --- top ---------------------------------------------------------------------------------------------------------- */

static void header(h3_markup *out, const h3_report_data *data)
{
    h3_markup_add(out, "<header><span class=\"word\">%s</span>", data->verdict); /* one of our words */
    h3_markup_element(out, "h1", NULL, data->sentence);
    h3_markup_add(out, "<p class=\"sub\">Qualification <b>");
    h3_markup_text(out, data->plan.name);
    h3_markup_add(out, "</b>");
    const char *about = h3_text_of(data->plan.json, "about");
    if (about[0] != 0) h3_markup_add(out, " &middot; ");
    h3_markup_text(out, about);
    h3_markup_add(out, "</p></header>\n");
}

static double percent(double share) { return share > 1.25 ? 100.0 : share / 1.25 * 100.0; }

/* A bar to the value, a mark for the bound, a thin one for the provider. */
static void gauge(h3_markup *out, const h3_figure *f)
{
    if (!(f->used >= 0.0)) return;
    h3_markup_add(out, "<div class=\"gauge\"><i style=\"width:%.1f%%\"></i><b style=\"left:80%%\"></b>", percent(f->used));
    if (f->provider >= 0.0) h3_markup_add(out, "<u style=\"left:%.1f%%\"></u>", percent(f->provider / f->bound));
    h3_markup_add(out, "</div><p class=\"note\">");
    if (f->used <= 1.0) h3_markup_add(out, "%.0f %% of the bound used", 100.0 * f->used);
    else if (f->used < 1e6) h3_markup_add(out, "%.3g times the bound", f->used);
    else h3_markup_add(out, "far beyond the bound");
    if (f->provider >= 0.0) h3_markup_add(out, "; the provider itself has %.4g", f->provider);
    h3_markup_add(out, "</p>");
}

static void decided(h3_markup *out, const h3_report_data *data)
{
    const h3_figure *f = &data->decided;
    int failed = strcmp(data->verdict, "INVALID") == 0;
    h3_markup_add(out, "<div class=\"card\">");
    h3_markup_element(out, "h2", NULL, failed ? "What failed first" : "What came closest to its bound");
    if (f->name[0] == 0) h3_markup_add(out, "<p class=\"note\">%s</p>", "There is no figure of a candidate yet.");
    else h3_markup_element(out, "p", "name", f->words);
    if (!isnan(f->value) && !isnan(f->bound) && (f->value != 0.0 || f->bound != 0.0))
        h3_markup_add(out, "<div class=\"big\">%.4g <small>%s %.4g</small></div>", f->value,
                      f->at_least ? (f->value >= f->bound ? "at least" : "below") : f->value <= f->bound ? "within" : "beyond", f->bound);
    else if (f->name[0] != 0 && f->bound > 0.0)
        h3_markup_add(out, "<div class=\"big\">not a number <small>bound %.4g</small></div>", f->bound);
    else if (f->name[0] != 0)
        h3_markup_add(out, "<div class=\"big\">%s</div>", failed ? "fails" : "holds");
    gauge(out, f);
    if (f->detail[0] != 0) {
        h3_markup_add(out, "<p class=\"note\">%s", strchr(f->detail, ' ') == NULL ? "in tensor " : "");
        h3_markup_text(out, f->detail);
        h3_markup_add(out, "</p>");
    }
    h3_markup_add(out, "</div>\n");
}

static void row(h3_markup *out, const char *title) { h3_markup_add(out, "<dt>%s</dt><dd>", title); }
static void end_row(h3_markup *out) { h3_markup_add(out, "</dd>"); }

static void model_row(h3_markup *out, const h3_report_data *data)
{
    const cJSON *model = h3_item_of(data->manifest, "model"), *config = h3_item_of(model, "config");
    row(out, "model");
    if (model == NULL) {
        h3_markup_add(out, "<span class=\"dim\">no reference yet</span>");
    } else if (strcmp(h3_text_of(model, "kind"), "synthetic") == 0) {
        h3_markup_add(out, "synthetic weights, %lld blocks, width %lld, %lld heads", (long long)h3_count_of(config, "num_layers"),
                      (long long)h3_count_of(config, "hidden_size"), (long long)h3_count_of(config, "num_attention_heads"));
    } else {
        h3_markup_add(out, "checkpoint, config <code>");
        h3_markup_text(out, h3_text_of(model, "config_sha256"));
        h3_markup_add(out, "</code>");
    }
    end_row(out);
}

static void layouts_row(h3_markup *out, const h3_report_data *data)
{
    const cJSON *ran;
    row(out, "layouts");
    for (size_t i = 0; i < data->plan.layout_count; i++) {
        h3_markup_add(out, "%s", i > 0 ? ", " : "");
        h3_markup_text(out, data->plan.layouts[i].name);
        cJSON_ArrayForEach(
            ran, h3_item_of(data->gate, "block0")) if (strcmp(h3_text_of(ran, "layout"), data->plan.layouts[i].name) == 0)
            h3_markup_add(out, " (%lld rows)", (long long)h3_count_of(ran, "rows"));
    }
    end_row(out);
}

static void library_text(h3_markup *out, const cJSON *library)
{
    const char *file = h3_text_of(library, "file");
    h3_markup_text(out, file[0] != 0 ? file : h3_text_of(library, "name"));
    h3_markup_add(out, ", revision ");
    h3_markup_text(out, h3_text_of(library, "revision"));
    if (cJSON_IsTrue(h3_item_of(library, "dirty"))) h3_markup_add(out, " <span class=\"bad\">uncommitted</span>");
}

static void candidate_rows(h3_markup *out, const h3_report_data *data)
{
    static const char *const labels[] = {"row", "interim", "reference"};
    const cJSON *library, *binding;
    cJSON_ArrayForEach(library, h3_item_of(data->gate, "libraries")) {
        row(out, "candidate");
        library_text(out, library);
        end_row(out);
    }
    if (cJSON_GetArraySize(h3_item_of(data->gate, "bindings")) == 0) return;
    row(out, "operators");
    for (int i = 0, any = 0; i < 3; i++) {
        int count = 0;
        cJSON_ArrayForEach(binding, h3_item_of(data->gate, "bindings")) count +=
            strcmp(h3_text_of(binding, "label"), labels[i]) == 0;
        if (count > 0)
            h3_markup_add(out, "%s%d %s%s", any ? ", " : "", count, labels[i],
                          i == 2 ? " (the provider's replay: no evidence)" : "");
        any |= count > 0;
    }
    end_row(out);
}

/* What was decoded, by whom, and in which arithmetic. */
static void decoders_row(h3_markup *out, const cJSON *side)
{
    const cJSON *decoders = h3_item_of(side, "decoders"), *video = h3_item_of(decoders, "video");
    const cJSON *media = h3_item_of(cJSON_GetArrayItem(h3_item_of(side, "seeds"), 0), "media"), *frames = h3_item_of(media, "video"), *sound = h3_item_of(media, "audio");
    if (decoders == NULL) return;
    row(out, "decoded");
    h3_markup_add(out, "%lld frames of %lldx%lld, %.3g s of sound; ", (long long)h3_count_of(frames, "frames"), (long long)h3_count_of(frames, "width"),
                  (long long)h3_count_of(frames, "height"), (double)h3_count_of(sound, "samples") / (double)h3_count_of(sound, "rate"));
    h3_markup_text(out, strcmp(h3_text_of(video, "kind"), "synthetic") == 0 ? "synthetic decoders" : "decoders from files");
    h3_markup_add(out, ", video in %s, sound in FP32", strcmp(h3_text_of(video, "profile"), "half") == 0 ? "half precision" : "FP32");
    end_row(out);
}

static void generation_row(h3_markup *out, const h3_report_data *data)
{
    const cJSON *side = data->candidate != NULL ? data->candidate : data->provider, *seed;
    if (side == NULL) return;
    row(out, "generation");
    h3_markup_add(out, "seeds");
    cJSON_ArrayForEach(seed, h3_item_of(side, "seeds")) h3_markup_add(out, " %lld", (long long)h3_count_of(seed, "seed"));
    h3_markup_add(out, ", %lld evaluations each", (long long)h3_count_of(h3_item_of(side, "sampling"), "evaluations"));
    end_row(out);
    decoders_row(out, side);
}

static void qualified(h3_markup *out, const h3_report_data *data)
{
    h3_markup_add(out, "<div class=\"card\"><h2>What was qualified</h2><dl>");
    model_row(out, data);
    layouts_row(out, data);
    candidate_rows(out, data);
    if (data->gate != NULL) {
        row(out, "against");
        library_text(out, h3_item_of(data->gate, "provider"));
        end_row(out);
    }
    generation_row(out, data);
    row(out, "plan");
    h3_markup_add(out, "<code>%.16s</code>", data->plan.sha256);
    end_row(out);
    h3_markup_add(out, "</dl></div>\n");
}

static void missing(h3_markup *out, const h3_report_data *data)
{
    int count = 0;
    for (int i = 0; i < H3_RUN_STAGES; i++) count += data->needed[i] && !data->usable[i];
    if (count == 0) return;
    h3_markup_add(out, "<div class=\"box\"><b>Not part of this report</b><ul>");
    for (int i = 0; i < H3_RUN_STAGES; i++) {
        char words[64];
        if (!data->needed[i] || data->usable[i]) continue;
        h3_words_of(words, sizeof words, h3_run_stage_name(i));
        h3_markup_add(out, "<li>%s: ", words);
        h3_markup_text(out, data->view.stages[i].present ? data->view.stages[i].stale : "has not finished");
        h3_markup_add(out, "; next: <code>%s</code></li>", h3_run_stage_program(i));
    }
    h3_markup_add(out, "</ul></div>\n");
}

/* --- pictures ----------------------------------------------------------------------------------------------------- */

static void pictures(h3_markup *out, const h3_report_data *data)
{
    if (cJSON_GetArraySize(h3_item_of(data->gate, "block0")) > 0) {
        h3_markup_add(out, "<h2>Every node of block 0, beside its bound</h2><p class=\"note\">%s</p>",
                      "How much of its bound each figure uses, all layouts. The bounds are the provider&#39;s own errors and "
                      "little more, so a candidate "
                      "that is as exact as the provider stands beside the grey tick; beyond the black line it fails.");
        h3_report_picture_nodes(out, data);
    }
    if (h3_item_of(data->gate, "full_model") != NULL) {
        h3_markup_add(out, "<h2>Along the blocks</h2>");
        h3_report_picture_blocks(out, data);
    }
    if (data->compare != NULL) {
        h3_markup_add(out, "<h2>Step by step</h2><p class=\"note\">%s</p>",
                      "Distance of the candidate&#39;s velocities from the provider&#39;s while both sample the same seeds. "
                      "Reported; the limit is on the final latents.");
        h3_report_picture_steps(out, data);
    }
    if (h3_item_of(data->compare, "worst_media") != NULL) {
        h3_markup_add(out, "<h2>Frame by frame</h2><p class=\"note\">%s</p>",
                      "How far the candidate&#39;s pictures are from the provider&#39;s, both decoded by the same decoder from their own latents.");
        h3_report_picture_frames(out, data);
    }
}

/* ------------------------------------------------------------------------------------------------------------------ */

h3_status h3_report_html(char **out, const h3_report_data *data)
{
    static const char *const classes[][2] = {
        {"VALID", "valid"}, {"INVALID", "invalid"}, {"PARTIAL", "partial"}, {"INCOMPLETE", "incomplete"}};
    h3_markup text = {0};
    const char *class = "incomplete";
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
        if (strcmp(classes[i][0], data->verdict) == 0) class = classes[i][1];
    h3_markup_add(
        &text,
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
        "content=\"width=device-width,initial-scale=1\">"
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\"><title>%s ",
        data->verdict);
    h3_markup_text(&text, data->plan.name);
    h3_markup_add(&text, "</title>\n<style>%s</style></head>\n<body class=\"%s\"><main>\n", style, class);
    header(&text, data);
    h3_markup_add(&text, "<div class=\"top\">\n");
    decided(&text, data);
    qualified(&text, data);
    h3_markup_add(&text, "</div>\n");
    missing(&text, data);
    pictures(&text, data);
    h3_report_details(&text, data);
    h3_markup_add(&text, "</main></body></html>\n");
    return h3_markup_finish(&text, out);
}
