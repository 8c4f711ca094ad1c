#include "qualify/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "model/synth.h"
#include "qualify/plan_internal.h"

enum { PLAN_LIMIT = 4 << 20, LAYOUT_LIMIT = 64 };

static h3_status read_anchors(int32_t *out, const cJSON *json, const char *where)
{
    const cJSON *anchors, *item;
    H3_TRY(h3_json_array(&anchors, json, "anchors", where, H3_USAGE));
    *out = 0;
    cJSON_ArrayForEach(item, anchors) {
        int32_t bit = !cJSON_IsString(item) ? 0 : strcmp(item->valuestring, "first") == 0 ? H3_ANCHOR_FIRST : strcmp(item->valuestring, "last") == 0 ? H3_ANCHOR_LAST : 0;
        if (bit == 0 || (*out & bit) != 0) return h3_error(H3_USAGE, "%s: anchors may hold \"first\" and \"last\", each once", where);
        *out |= bit;
    }
    return H3_OK;
}

h3_status h3_plan_layout_args(h3_layout_args *out, const cJSON *json, const char *where)
{
    enum { MOST = 1 << 20 };
    *out = (h3_layout_args){.patch_h = 2, .patch_w = 2};
    H3_TRY(h3_json_integer(&out->text, json, "text", 1, MOST, where, H3_USAGE));
    H3_TRY(h3_json_integer(&out->frames, json, "frames", 1, MOST, where, H3_USAGE));
    H3_TRY(h3_json_integer(&out->height, json, "h", 1, MOST, where, H3_USAGE));
    H3_TRY(h3_json_integer(&out->width, json, "w", 1, MOST, where, H3_USAGE));
    H3_TRY(h3_json_integer(&out->audio, json, "audio", 1, MOST, where, H3_USAGE));
    H3_TRY(h3_json_integer(&out->vision_rows, json, "vision_rows", 0, MOST, where, H3_USAGE));
    return read_anchors(&out->anchors, json, where);
}

/* Names become parts of file and dataset names. */
static int good_name(const char *name)
{
    if (name[0] == 0 || strlen(name) > 40) return 0;
    return strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == strlen(name);
}

static h3_status read_time(double *out, const cJSON *json, const char *key, const char *where)
{
    H3_TRY(h3_json_number(out, json, key, where, H3_USAGE));
    if (!(*out >= 0.0 && *out <= 1.0)) return h3_error(H3_USAGE, "%s: %s is %g but must be 0 to 1", where, key, *out);
    return H3_OK;
}

static h3_status read_layout(h3_plan_layout *out, const cJSON *json, const char *path)
{
    static const char *const keys[] = {"name", "text", "frames", "h", "w", "audio", "anchors", "vision_rows", "timesteps", "input_seed", NULL};
    static const char *const times[] = {"video", "audio", "condition", NULL};
    const char *name;
    const cJSON *timesteps;
    int64_t seed;
    char where[H3_PATH_MAX + 64];
    H3_TRY(h3_json_string(&name, json, "name", path, H3_USAGE));
    if (!good_name(name)) return h3_error(H3_USAGE, "%s: a layout name may hold letters, digits, - and _ (1 to 40)", path);
    snprintf(where, sizeof where, "%.4000s: layout %s", path, name);
    snprintf(out->name, sizeof out->name, "%s", name);
    H3_TRY(h3_json_only_keys(json, keys, where, H3_USAGE));
    H3_TRY(h3_plan_layout_args(&out->args, json, where));
    H3_TRY(h3_json_integer(&seed, json, "input_seed", 0, INT64_MAX, where, H3_USAGE));
    out->input_seed = (uint64_t)seed;
    H3_TRY(h3_json_object(&timesteps, json, "timesteps", where, H3_USAGE));
    strcat(where, ": timesteps");
    H3_TRY(h3_json_only_keys(timesteps, times, where, H3_USAGE));
    H3_TRY(read_time(&out->video_time, timesteps, "video", where));
    H3_TRY(read_time(&out->audio_time, timesteps, "audio", where));
    return read_time(&out->condition_time, timesteps, "condition", where);
}

static h3_status read_layouts(h3_plan *plan)
{
    const cJSON *layouts, *item;
    void *memory;
    H3_TRY(h3_json_array(&layouts, plan->json, "layouts", plan->path, H3_USAGE));
    int count = cJSON_GetArraySize(layouts);
    if (count < 1 || count > LAYOUT_LIMIT) return h3_error(H3_USAGE, "%s: layouts must hold 1 to %d layouts", plan->path, LAYOUT_LIMIT);
    H3_TRY(h3_alloc(&memory, (size_t)count, sizeof *plan->layouts, "a plan's layouts"));
    plan->layouts = memory;
    cJSON_ArrayForEach(item, layouts) {
        H3_TRY(read_layout(&plan->layouts[plan->layout_count], item, plan->path));
        for (size_t i = 0; i < plan->layout_count; i++)
            if (strcmp(plan->layouts[i].name, plan->layouts[plan->layout_count].name) == 0)
                return h3_error(H3_USAGE, "%s: two layouts are named %s; rename one", plan->path, plan->layouts[i].name);
        plan->layout_count++;
    }
    return H3_OK;
}

static h3_status read_pins(h3_plan *plan)
{
    const cJSON *pins = cJSON_GetObjectItemCaseSensitive(plan->json, "pins");
    const char *path;
    if (pins == NULL) return H3_OK;
    H3_TRY(h3_json_object(&pins, plan->json, "pins", plan->path, H3_USAGE));
    H3_TRY(h3_json_only_keys(pins, (const char *const[]){"manifest", "thresholds", NULL}, plan->path, H3_USAGE));
    if (cJSON_GetObjectItemCaseSensitive(pins, "manifest") != NULL) {
        H3_TRY(h3_json_string(&path, pins, "manifest", plan->path, H3_USAGE));
        H3_TRY(h3_plan_path(plan->pinned_manifest, plan, path));
    }
    if (cJSON_GetObjectItemCaseSensitive(pins, "thresholds") != NULL) {
        H3_TRY(h3_json_string(&path, pins, "thresholds", plan->path, H3_USAGE));
        H3_TRY(h3_plan_path(plan->pinned_thresholds, plan, path));
    }
    return H3_OK;
}

/* Values of which this version knows a few are written out in the plan, so that it says what it means. `which` (or NULL): the word's number. */
static h3_status expect_word(const h3_plan *plan, const char *key, const char *const *words, int *which)
{
    const char *value;
    char known[128] = "";
    size_t used = 0;
    H3_TRY(h3_json_string(&value, plan->json, key, plan->path, H3_USAGE));
    for (int i = 0; words[i] != NULL; i++) {
        if (which != NULL) *which = i;
        if (strcmp(words[i], value) == 0) return H3_OK;
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i == 0 ? "" : " or ", words[i]);
    }
    return h3_error(H3_USAGE, "%s: %s is \"%s\"; use %s", plan->path, key, value, known);
}

static h3_status read_fields(h3_plan *plan)
{
    static const char *const keys[] = {"schema", "name", "about", "checkpoint", "layouts", "artifacts", "provider", "candidate", "generation", "decoders", "acceptance", "pins", "preview", NULL};
    const char *name, *about;
    H3_TRY(h3_json_only_keys(plan->json, keys, plan->path, H3_USAGE));
    H3_TRY(expect_word(plan, "schema", (const char *const[]){"h3-plan-v1", NULL}, NULL));
    H3_TRY(h3_json_string(&name, plan->json, "name", plan->path, H3_USAGE));
    if (!good_name(name)) return h3_error(H3_USAGE, "%s: name may hold letters, digits, - and _ (1 to 40)", plan->path);
    snprintf(plan->name, sizeof plan->name, "%s", name);
    H3_TRY(expect_word(plan, "artifacts", (const char *const[]){"full", "recompute", NULL}, &plan->recompute));
    H3_TRY(expect_word(plan, "preview", (const char *const[]){"off", "if-available", "required", NULL}, &plan->preview));
    if (cJSON_GetObjectItemCaseSensitive(plan->json, "about") != NULL) H3_TRY(h3_json_string(&about, plan->json, "about", plan->path, H3_USAGE));
    H3_TRY(h3_plan_read_checkpoint(plan));
    H3_TRY(read_layouts(plan));
    H3_TRY(h3_json_string(&plan->provider, plan->json, "provider", plan->path, H3_USAGE));
    if (plan->provider[0] == 0) return h3_error(H3_USAGE, "%s: provider has no name; use libh3_provider_cpu.so", plan->path);
    H3_TRY(h3_json_object(&plan->candidate, plan->json, "candidate", plan->path, H3_USAGE));
    H3_TRY(h3_bindings_check(plan->candidate, plan->path));
    if (cJSON_GetObjectItemCaseSensitive(plan->json, "generation") != NULL)
        H3_TRY(h3_json_object(&plan->generation, plan->json, "generation", plan->path, H3_USAGE));
    if (cJSON_GetObjectItemCaseSensitive(plan->json, "decoders") != NULL)
        H3_TRY(h3_json_object(&plan->decoders, plan->json, "decoders", plan->path, H3_USAGE));
    if (cJSON_GetObjectItemCaseSensitive(plan->json, "acceptance") != NULL)
        H3_TRY(h3_json_object(&plan->acceptance, plan->json, "acceptance", plan->path, H3_USAGE));
    if (plan->acceptance != NULL && plan->generation == NULL)
        return h3_error(H3_USAGE, "%s: \"acceptance\" has nothing to limit without \"generation\"; add that, or remove it", plan->path);
    return read_pins(plan);
}

/* A pinned manifest names the plan that made it, so what pins it must not be part of that name; nor is where a site keeps its checkpoint and decoders. */
static h3_status identify(h3_plan *plan)
{
    char *text;
    cJSON *copy = cJSON_Duplicate(plan->json, 1);
    if (copy == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for plan %s", plan->path);
    cJSON_DeleteItemFromObjectCaseSensitive(copy, "pins");
    cJSON_DeleteItemFromObjectCaseSensitive(copy, "about");
    cJSON_DeleteItemFromObjectCaseSensitive(cJSON_GetObjectItemCaseSensitive(copy, "checkpoint"), "folder");
    cJSON *decoder;
    cJSON_ArrayForEach(decoder, cJSON_GetObjectItemCaseSensitive(copy, "decoders")) cJSON_DeleteItemFromObjectCaseSensitive(decoder, "folder");
    h3_status status = h3_json_print(&text, copy);
    cJSON_Delete(copy);
    H3_TRY(status);
    status = h3_sha256(plan->identity, text, strlen(text));
    free(text);
    return status;
}

h3_status h3_plan_read(h3_plan *plan, const char *path)
{
    memset(plan, 0, sizeof *plan);
    h3_status status = h3_path(plan->path, "%s", path);
    if (status == H3_OK) status = h3_file_read(&plan->text, &plan->text_size, path, PLAN_LIMIT, H3_USAGE);
    if (status == H3_OK) status = h3_json_parse(&plan->json, plan->text, plan->text_size, path, H3_USAGE);
    if (status == H3_OK) status = h3_sha256(plan->sha256, plan->text, plan->text_size);
    if (status == H3_OK && !cJSON_IsObject(plan->json)) status = h3_error(H3_USAGE, "%s: a plan is a JSON object; see docs/plan.md", path);
    if (status == H3_OK) status = read_fields(plan);
    if (status == H3_OK) status = identify(plan);
    if (status != H3_OK) h3_plan_free(plan);
    return status;
}

void h3_plan_for_device(h3_plan *plan, const char *device)
{
    h3_text_for_device(cJSON_GetObjectItemCaseSensitive(plan->json, "provider")->valuestring, device);
    h3_bindings_for_device(plan->candidate, device);
}

void h3_plan_free(h3_plan *plan)
{
    free(plan->text);
    free(plan->layouts);
    cJSON_Delete(plan->json);
    memset(plan, 0, sizeof *plan);
}

h3_status h3_plan_path(char out[H3_PATH_MAX], const h3_plan *plan, const char *path)
{
    char folder[H3_PATH_MAX];
    if (path[0] == '/') return h3_path(out, "%s", path);
    H3_TRY(h3_path(folder, "%s", plan->path));
    char *slash = strrchr(folder, '/');
    if (slash == NULL) return h3_path(out, "%s", path);
    *slash = 0;
    char *last = strrchr(folder, '/');
    last = last == NULL ? folder : last + 1;
    if (strcmp(last, "plans") != 0) return h3_path(out, "%s/%s", folder, path);
    if (last == folder) return h3_path(out, "./%s", path); /* ".../plans/x.json" means the project's root */
    *last = 0;
    return h3_path(out, "%s%s", folder, path);
}

static h3_status seeded_inputs(h3_plan_inputs *out, uint64_t seed, const h3_config *config)
{
    h3_sequence *sequence = &out->sequence;
    int64_t video[2] = {sequence->video_rows, h3_config_video_row(config)}, audio[2] = {sequence->audio_rows, config->audio_in_channels};
    int64_t text[2] = {sequence->text_rows, config->text_dim};
    H3_TRY(h3_synth_input(&sequence->video, seed, "input.video", H3_F32, 2, video));
    H3_TRY(h3_synth_input(&sequence->audio, seed, "input.audio", H3_F32, 2, audio));
    H3_TRY(h3_synth_input(&sequence->text, seed, "input.text", H3_BF16, 2, text));
    H3_TRY(h3_synth_input(&sequence->cot_video, seed, "cotangent.video", H3_F32, 2, video));
    return h3_synth_input(&sequence->cot_audio, seed, "cotangent.audio", H3_F32, 2, audio);
}

static h3_status fill_inputs(h3_plan_inputs *out, const h3_plan_layout *layout, const h3_config *config)
{
    h3_layout_args args = layout->args;
    void *memory;
    args.patch_h = config->patch_size[1];
    args.patch_w = config->patch_size[2];
    H3_TRY(h3_layout_new(&out->layout, &args));
    H3_TRY(h3_alloc(&memory, (size_t)out->layout.rows, sizeof *out->timestep_indices, "timestep indices"));
    out->timestep_indices = memory;
    H3_TRY(h3_timestep_plan(&out->layout, (float)layout->video_time, (float)layout->audio_time, layout->condition_time, out->timestep, &out->sequence.timestep_count,
                            out->timestep_indices));
    h3_sequence_layout(&out->sequence, &out->layout);
    out->sequence.timestep = out->timestep;
    out->sequence.timestep_indices = out->timestep_indices;
    return seeded_inputs(out, layout->input_seed, config);
}

h3_status h3_plan_inputs_new(h3_plan_inputs *out, const h3_plan_layout *layout, const h3_config *config)
{
    memset(out, 0, sizeof *out);
    h3_status status = fill_inputs(out, layout, config);
    if (status != H3_OK) {
        h3_error_context(status, "layout %s", layout->name);
        h3_plan_inputs_free(out);
    }
    return status;
}

void h3_plan_inputs_free(h3_plan_inputs *inputs)
{
    h3_layout_free(&inputs->layout);
    free(inputs->timestep_indices);
    h3_tensor_free(&inputs->sequence.video);
    h3_tensor_free(&inputs->sequence.audio);
    h3_tensor_free(&inputs->sequence.text);
    h3_tensor_free(&inputs->sequence.cot_video);
    h3_tensor_free(&inputs->sequence.cot_audio);
    memset(inputs, 0, sizeof *inputs);
}
