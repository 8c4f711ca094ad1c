#include "released.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "graph/boundary.h"
#include "model/safetensors.h"
#include "model/synth.h"
#include "qualify/metrics.h"
#include "qualify/plan.h"
#include "sampled.h"

enum { WEIGHT_SEED = 0, INPUT_SEED = 7, ROWS48 = 48, OTHER_ELEMENTS = 8 };

static const char config_text[] =
    "{\"num_attention_heads\": 56, \"attention_head_dim\": 128, \"hidden_size\": 5376, \"num_layers\": 50, \"num_refiner_layers\": 2,"
    " \"ffn_dim\": 14336, \"in_channels\": 24, \"audio_in_channels\": 32, \"patch_size\": [1, 2, 2], \"text_dim\": 5120, \"freq_dim\": 256,"
    " \"time_embed_hidden_dim\": 5376, \"time_embed_dim\": 2688, \"rope_freq_dim\": 16}";

struct released {
    const h3_device *device;
    h3_config config;
    h3_weights *weights;
    h3_library provider;
    h3_bindings candidate; /* opened when first needed */
    h3_block_params params[2]; /* BF16, FP32; the second made from the first when needed */
    h3_safetensors samples;
    cJSON *report, *layouts;
};

/* One layout: outside values and gradient of the block's output, on the device. */
typedef struct setting {
    h3_engine engine;
    h3_plan_inputs inputs;
    h3_block_state state;
    h3_tensor x, temb, index, rotary, dx2;
} setting;

static h3_status upload_temb(const released *r, const char *layout, h3_tensor *out)
{
    char key[40];
    h3_tensor host;
    snprintf(key, sizeof key, "%.16s.temb", layout);
    H3_TRY(h3_safetensors_read(&host, &r->samples, key, H3_F32, 0, NULL));
    h3_status status = h3_device_upload(out, r->device, &host);
    h3_tensor_free(&host);
    return status;
}

/* "input.block" or "cotangent.block" in the walk's type. */
static h3_status upload_stream(const released *r, const char *name, int64_t rows, int32_t dtype, h3_tensor *out)
{
    h3_tensor made, host = {0};
    H3_TRY(h3_synth_input(&made, INPUT_SEED, name, H3_BF16, 2, H3_SHAPE(rows, r->config.hidden_size)));
    h3_status status = h3_tensor_convert(&host, &made, dtype);
    if (status == H3_OK) status = h3_device_upload(out, r->device, &host);
    h3_tensor_free(&made);
    h3_tensor_free(&host);
    return status;
}

static h3_status upload_index(const released *r, const h3_sequence *sequence, h3_tensor *out)
{
    h3_tensor host;
    H3_TRY(h3_tensor_new(&host, H3_I32, 1, &sequence->rows));
    for (int64_t i = 0; i < sequence->rows; i++) ((int32_t *)host.data)[i] = (int32_t)(3 * sequence->timestep_indices[i] + sequence->token_tags[i]);
    h3_status status = h3_device_upload(out, r->device, &host);
    h3_tensor_free(&host);
    return status;
}

static h3_status make_setting(released *r, const char *name, int32_t dtype, setting *s)
{
    h3_plan_layout layout = {.video_time = 0.25, .audio_time = 0.5625, .condition_time = 0.999, .input_seed = INPUT_SEED};
    h3_model shell = {.precision = dtype};
    H3_TRY(h3_plan_layout_args(&layout.args, cJSON_GetObjectItemCaseSensitive(r->layouts, name), "layouts.json"));
    H3_TRY(h3_plan_inputs_new(&s->inputs, &layout, &r->config));
    const h3_sequence *sequence = &s->inputs.sequence;
    h3_engine_init(&s->engine, &r->config, r->device, &r->provider);
    shell.engine = s->engine; /* a rotary table needs no workspace */
    H3_TRY(h3_boundary_rotary(&shell, sequence, &s->rotary));
    H3_TRY(upload_temb(r, name, &s->temb));
    H3_TRY(upload_index(r, sequence, &s->index));
    H3_TRY(upload_stream(r, "input.block", sequence->rows, dtype, &s->x));
    H3_TRY(upload_stream(r, "cotangent.block", sequence->rows, dtype, &s->dx2));
    h3_pass view = {.rotary = s->rotary, .temb = s->temb, .modulation_index = s->index};
    h3_pass_values(&view, &s->state);
    s->state.value[H3_VALUE_X] = s->x;
    return H3_OK;
}

static void free_setting(setting *s, const h3_device *device)
{
    h3_tensor *tensors[] = {&s->x, &s->temb, &s->index, &s->rotary, &s->dx2};
    h3_block_state_free(&s->state, device);
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) h3_device_free(tensors[i], device);
    if (s->engine.device != NULL) h3_engine_free(&s->engine);
    h3_plan_inputs_free(&s->inputs);
}

/* FP32 parameters are the stored values widened: made on the device. */
static h3_status need_fp32(released *r)
{
    h3_engine engine;
    h3_status status = H3_OK;
    if (r->params[1].param[H3_NODE_NORM1][0].data != NULL) return H3_OK;
    h3_engine_init(&engine, &r->config, r->device, &r->provider);
    r->params[1].dtype = H3_F32;
    for (int32_t node = 0; node < H3_NODE_COUNT; node++)
        for (int i = 0; i < 2 && status == H3_OK; i++)
            if (r->params[0].param[node][i].data != NULL) status = h3_engine_convert(&engine, &r->params[1].param[node][i], &r->params[0].param[node][i], H3_F32);
    h3_engine_free(&engine);
    return status;
}

/* The block's operators: the provider's, or the candidate's. */
static h3_status operators_for(released *r, golden_mode mode, const h3_operator *out[H3_NODE_COUNT])
{
    char name[] = "libh3_candidate_{device}.so";
    h3_text_for_device(name, h3_device_name(r->device->kind));
    if (mode == GOLDEN_CANDIDATE && r->candidate.library_count == 0) H3_TRY(h3_bindings_single(&r->candidate, name));
    for (int32_t node = 0; node < H3_NODE_COUNT; node++) {
        if (mode == GOLDEN_CANDIDATE) out[node] = r->candidate.operators[node];
        else H3_TRY(h3_library_find(&out[node], &r->provider, h3_nodes[node].name, NULL));
    }
    return H3_OK;
}

/* --- samples of block 0 --------------------------------------------------------------------------------------------- */

typedef struct comparison {
    const released *r;
    golden_result *result;
    const char *layout, *disturb;
    golden_mode mode;
} comparison;

/* The golden's name of an event's tensor. */
static void golden_name(char out[96], const h3_tap_event *event)
{
    const char *node = h3_nodes[event->node].name;
    out[0] = 0;
    if (event->kind == H3_TAP_OUTPUT) snprintf(out, 96, "node.%s", node);
    if (event->kind == H3_TAP_GRADIENT) snprintf(out, 96, "dnode.%s", node);
    if (event->kind == H3_TAP_INPUT) snprintf(out, 96, "grad.%s", event->index == 0 ? "input" : "temb");
    if (event->kind == H3_TAP_PARAM) snprintf(out, 96, "grad.%s", h3_nodes[event->node].param[event->index].suffix);
}

static const h3_tensor *sample(const comparison *c, const char *precision, const char *name)
{
    char key[160];
    snprintf(key, sizeof key, "%.16s.%s.%s", c->layout, precision, name);
    return h3_safetensors_find(&c->r->samples, key);
}

/* The report's entry of a tensor; NULL when it has none. */
static const cJSON *entry_of(const comparison *c, const char *name)
{
    const cJSON *nodes = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(c->r->report, c->layout), "nodes");
    return cJSON_GetObjectItemCaseSensitive(nodes, name);
}

static h3_status compare(const comparison *c, const char *name, const h3_tensor *x)
{
    const h3_tensor *golden = sample(c, "fp32", name), *rounded = sample(c, "bf16", name);
    if (golden == NULL || rounded == NULL) return h3_error(H3_INTEGRITY, "the golden samples have no %s of layout %s", name, c->layout);
    double scale = sampled_scale(entry_of(c, name), h3_tensor_count(x), h3_tensor_count(golden));
    double error = sampled_error(x, golden, scale, strcmp(c->disturb, name) == 0 ? 1.02 : 1.0), p = sampled_distance(rounded, golden, scale);
    double bound = c->mode == GOLDEN_FP32 ? 1e-4 : h3_is_gradient(name) ? 1.5 * p + 5e-3 : 1.25 * p + 1e-3;
    sampled_note(c->result, name, error, bound);
    return H3_OK;
}

static h3_status on_event(void *user, const h3_tap_event *event)
{
    const comparison *c = user;
    char name[96];
    h3_tensor host;
    golden_name(name, event);
    if (name[0] == 0) return H3_OK;
    H3_TRY(h3_device_borrow(&host, c->r->device, event->tensor));
    h3_status status = compare(c, name, &host);
    h3_device_return(&host, c->r->device);
    return status;
}

static int count_expected(const comparison *c)
{
    char prefix[32];
    int count = 0;
    size_t length = (size_t)snprintf(prefix, sizeof prefix, "%.16s.fp32.", c->layout);
    for (size_t i = 0; i < c->r->samples.count; i++) count += strncmp(c->r->samples.entries[i].name, prefix, length) == 0;
    return count;
}

static h3_status walk_block(released *r, comparison *c, setting *s, int32_t dtype)
{
    const h3_operator *operators[H3_NODE_COUNT];
    h3_tap tap = {on_event, c};
    H3_TRY(operators_for(r, c->mode, operators));
    if (dtype == H3_F32) H3_TRY(need_fp32(r));
    H3_TRY(make_setting(r, c->layout, dtype, s));
    h3_walk walk = {&s->engine, operators, &r->params[dtype == H3_F32], &s->state, NULL, &tap};
    H3_TRY(h3_walk_forward(&walk));
    H3_TRY(h3_device_duplicate(&s->state.grad[H3_NODE_RESIDUAL_MLP], r->device, &s->dx2));
    return h3_walk_backward(&walk);
}

h3_status released_block(golden_result *out, released *r, const char *layout, golden_mode mode, const char *disturb)
{
    comparison c = {r, out, layout, disturb, mode};
    setting s = {.engine = {.device = NULL}};
    memset(out, 0, sizeof *out);
    h3_status status = walk_block(r, &c, &s, mode == GOLDEN_FP32 ? H3_F32 : H3_BF16);
    free_setting(&s, r->device);
    out->expected = count_expected(&c);
    return status;
}

/* --- single nodes on 48 golden rows ---------------------------------------------------------------------------------- */

typedef struct rows48_node {
    int32_t node;
    int64_t allowed; /* elements that may differ */
} rows48_node;

static const rows48_node rows48_nodes[] = {
    {H3_NODE_NORM1, OTHER_ELEMENTS}, {H3_NODE_Q_NORM, OTHER_ELEMENTS}, {H3_NODE_ROPE_Q, 0},
    {H3_NODE_RESIDUAL_ATTN, 0},      {H3_NODE_NORM2, OTHER_ELEMENTS},  {H3_NODE_SWIGLU, 0},
};

static h3_status upload_golden(const released *r, const h3_safetensors *file, int32_t node, h3_tensor *out)
{
    char key[64];
    h3_tensor host;
    snprintf(key, sizeof key, "bf16.%s", h3_nodes[node].name);
    H3_TRY(h3_safetensors_read(&host, file, key, H3_BF16, 0, NULL));
    h3_status status = h3_device_upload(out, r->device, &host);
    h3_tensor_free(&host);
    return status;
}

/* The first rows of a value, as a view. */
static h3_tensor first_rows(const h3_tensor *tensor)
{
    h3_tensor view = *tensor;
    view.shape[0] = ROWS48;
    return view;
}

static h3_status compare_node(const released *r, const h3_safetensors *file, const rows48_node *wanted, const h3_tensor *x, golden_result *result)
{
    char key[64];
    h3_tensor golden, host;
    h3_difference difference = {0};
    snprintf(key, sizeof key, "bf16.%s", h3_nodes[wanted->node].name);
    H3_TRY(h3_safetensors_read(&golden, file, key, H3_BF16, 0, NULL));
    h3_status status = h3_device_borrow(&host, r->device, x);
    if (status == H3_OK) {
        status = h3_difference_of(&difference, &host, &golden);
        h3_device_return(&host, r->device);
    }
    h3_tensor_free(&golden);
    sampled_note(result, key, (double)difference.differing, wanted->allowed > 0 ? (double)wanted->allowed : 0.5);
    return status;
}

/* Every node alone, fed with the golden outputs of the nodes before it. */
static h3_status run_nodes(released *r, const h3_safetensors *file, golden_mode mode, setting *s, h3_block_state *source, golden_result *result)
{
    const h3_operator *operators[H3_NODE_COUNT];
    H3_TRY(operators_for(r, mode, operators));
    for (size_t i = 0; i < sizeof rows48_nodes / sizeof *rows48_nodes; i++) {
        int32_t node = rows48_nodes[i].node;
        h3_block_state state = {.batch = 1};
        h3_walk walk = {&s->engine, operators, &r->params[0], &state, source, NULL};
        if (mode == GOLDEN_CANDIDATE && (operators[node]->promises & H3_PROMISE_ISOLATED_BITWISE) == 0) continue;
        result->expected++;
        h3_status status = h3_walk_node_forward(&walk, node);
        if (status == H3_OK) status = compare_node(r, file, &rows48_nodes[i], &state.node[node].out, result);
        h3_block_state_free(&state, r->device);
        H3_TRY(status);
    }
    return H3_OK;
}

static h3_status rows48(released *r, const h3_safetensors *file, golden_mode mode, setting *s, h3_tensor values[H3_NODE_COUNT], golden_result *result)
{
    static const int32_t inputs[] = {H3_NODE_ADALN, H3_NODE_Q_PROJ, H3_NODE_Q_NORM, H3_NODE_O_PROJ, H3_NODE_RESIDUAL_ATTN, H3_NODE_FFN_GATE_UP};
    static const int32_t outside[] = {H3_VALUE_X, H3_VALUE_INDEX, H3_VALUE_COS, H3_VALUE_SIN};
    h3_block_state source = {.batch = 1};
    H3_TRY(make_setting(r, "s264", H3_BF16, s));
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) {
        H3_TRY(upload_golden(r, file, inputs[i], &values[inputs[i]]));
        source.value[inputs[i]] = values[inputs[i]];
    }
    int64_t table_rows = 3 * values[H3_NODE_ADALN].shape[0];
    source.value[H3_NODE_ADALN] = h3_tensor_view(values[H3_NODE_ADALN].data, H3_BF16, 3, H3_SHAPE(table_rows, 6, r->config.hidden_size));
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++) source.value[outside[i]] = first_rows(&s->state.value[outside[i]]);
    return run_nodes(r, file, mode, s, &source, result);
}

h3_status released_rows48(golden_result *out, released *r, golden_mode mode)
{
    char path[H3_PATH_MAX];
    h3_safetensors file = {0};
    setting s = {.engine = {.device = NULL}};
    h3_tensor values[H3_NODE_COUNT] = {{0}};
    memset(out, 0, sizeof *out);
    H3_TRY(h3_safetensors_open(&file, golden_folder(path, "released-dims/block0-s264-rows48.safetensors")));
    h3_status status = rows48(r, &file, mode, &s, values, out);
    for (int32_t node = 0; node < H3_NODE_COUNT; node++) h3_device_free(&values[node], r->device);
    free_setting(&s, r->device);
    h3_safetensors_close(&file);
    return status;
}

/* --- opening -------------------------------------------------------------------------------------------------------- */

h3_status released_config(h3_config *out) { return h3_config_parse(out, config_text, strlen(config_text), "the released configuration"); }

static h3_status open_all(released *r)
{
    char path[H3_PATH_MAX], name[] = "libh3_provider_{device}.so";
    h3_text_for_device(name, h3_device_name(r->device->kind));
    H3_TRY(released_config(&r->config));
    H3_TRY(h3_library_open(&r->provider, name));
    H3_TRY(h3_json_read(&r->layouts, golden_folder(path, "layouts.json"), H3_INTEGRITY));
    H3_TRY(h3_json_read(&r->report, golden_folder(path, "released-dims/block0-report.json"), H3_INTEGRITY));
    H3_TRY(h3_safetensors_open(&r->samples, golden_folder(path, "released-dims/block0-samples.safetensors")));
    H3_TRY(h3_weights_synthetic(&r->weights, &r->config, WEIGHT_SEED));
    return h3_block_params_load(&r->params[0], r->device, r->weights, 0, 0, H3_BF16);
}

h3_status released_open(released **out, const h3_device *device)
{
    *out = calloc(1, sizeof **out);
    if (*out == NULL) return h3_error(H3_ENVIRONMENT, "out of memory");
    (*out)->device = device;
    return open_all(*out);
}

void released_close(released *r)
{
    if (r == NULL) return;
    for (int i = 0; i < 2; i++) h3_block_params_free(&r->params[i], r->device);
    h3_weights_free(r->weights);
    h3_safetensors_close(&r->samples);
    cJSON_Delete(r->report);
    cJSON_Delete(r->layouts);
    h3_bindings_close(&r->candidate);
    h3_library_close(&r->provider);
    free(r);
}
