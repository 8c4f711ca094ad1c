#include "graph/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/boundary.h"
#include "graph/parameters.h"

void h3_sequence_layout(h3_sequence *sequence, const h3_layout *layout)
{
    sequence->rows = layout->rows;
    sequence->text_rows = layout->args.text;
    sequence->video_rows = layout->video_rows;
    sequence->audio_rows = layout->audio_rows;
    sequence->position_ids = layout->position_ids;
    sequence->token_tags = layout->token_tags;
    sequence->video_indices = layout->video_indices;
    sequence->audio_indices = layout->audio_indices;
    sequence->text_indices = layout->text_indices;
}

static h3_status check_rows(const h3_tensor *tensor, int32_t dtype, int64_t rows, int64_t width, const char *what)
{
    if (rows == 0) return H3_OK;
    if (tensor->data == NULL || tensor->dtype != dtype || tensor->rank != 2 || tensor->shape[0] != rows || tensor->shape[1] != width)
        return h3_error(H3_INTEGRITY, "%s must be [%lld,%lld] of the model's type; check the inputs against the layout and the configuration", what,
                        (long long)rows, (long long)width);
    return H3_OK;
}

static h3_status mark_rows(unsigned char *seen, const int64_t *index, int64_t count, int64_t rows, const char *what)
{
    for (int64_t i = 0; i < count; i++) {
        if (index[i] < 0 || index[i] >= rows || seen[index[i]])
            return h3_error(H3_INTEGRITY, "%s_indices[%lld] = %lld is out of range or taken twice; the layout is damaged", what, (long long)i, (long long)index[i]);
        seen[index[i]] = 1;
    }
    return H3_OK;
}

static h3_status check_indices(const h3_sequence *sequence)
{
    void *seen;
    h3_status status;
    if (sequence->rows < 1 || sequence->text_rows + sequence->video_rows + sequence->audio_rows != sequence->rows)
        return h3_error(H3_INTEGRITY, "text, video and audio rows do not add up to the %lld packed rows", (long long)sequence->rows);
    H3_TRY(h3_alloc(&seen, (size_t)sequence->rows, 1, "a row map"));
    H3_GOTO(mark_rows(seen, sequence->text_indices, sequence->text_rows, sequence->rows, "text"), done);
    H3_GOTO(mark_rows(seen, sequence->video_indices, sequence->video_rows, sequence->rows, "video"), done);
    H3_GOTO(mark_rows(seen, sequence->audio_indices, sequence->audio_rows, sequence->rows, "audio"), done);
done:
    free(seen);
    return status;
}

h3_status h3_sequence_check(const h3_sequence *sequence, const h3_config *config)
{
    H3_TRY(check_indices(sequence));
    if (sequence->timestep_count < 1 || sequence->timestep_count > H3_MAX_TIMESTEPS)
        return h3_error(H3_INTEGRITY, "%lld distinct timesteps; 1 to %d are possible", (long long)sequence->timestep_count, H3_MAX_TIMESTEPS);
    for (int64_t i = 0; i < sequence->rows; i++) {
        if (sequence->timestep_indices[i] < 0 || sequence->timestep_indices[i] >= sequence->timestep_count || sequence->token_tags[i] < 0 || sequence->token_tags[i] > 2)
            return h3_error(H3_INTEGRITY, "packed row %lld has timestep index %lld and tag %lld; the layout is damaged", (long long)i,
                            (long long)sequence->timestep_indices[i], (long long)sequence->token_tags[i]);
    }
    H3_TRY(check_rows(&sequence->video, H3_F32, sequence->video_rows, h3_config_video_row(config), "input.video"));
    H3_TRY(check_rows(&sequence->audio, H3_F32, sequence->audio_rows, config->audio_in_channels, "input.audio"));
    H3_TRY(check_rows(&sequence->text, H3_BF16, sequence->text_rows, config->text_dim, "input.text"));
    if (sequence->cot_video.data != NULL || sequence->cot_audio.data != NULL) {
        H3_TRY(check_rows(&sequence->cot_video, H3_F32, sequence->video_rows, h3_config_video_row(config), "input.cot_video"));
        H3_TRY(check_rows(&sequence->cot_audio, H3_F32, sequence->audio_rows, config->audio_in_channels, "input.cot_audio"));
    }
    return H3_OK;
}

/* float32 boundary parameters stay float32 in every precision; the others take the activations' type. */
static h3_status load_boundary(h3_model *model, int parameter)
{
    const char *name = h3_boundary_names[parameter];
    const h3_parameter *stored = h3_inventory_find(h3_weights_inventory(model->weights), name);
    if (stored == NULL) return h3_error(H3_USAGE, "the model has no parameter \"%s\"", name);
    return h3_parameter_load(&model->boundary[parameter], model->engine.device, model->weights, name, stored->dtype == H3_F32 ? H3_F32 : model->precision);
}

static int needs_boundary(const h3_model *model, int parameter)
{
    if (parameter >= H3_P_TIME1 && parameter <= H3_P_TIME2_BIAS) return 1;
    return parameter <= H3_P_FINAL_NORM ? model->is_first : model->is_last;
}

/* Bytes of the range's block parameters in the model's precision. */
static size_t block_bytes(const h3_model *model)
{
    const h3_inventory *inventory = h3_weights_inventory(model->weights);
    size_t elements = 0;
    for (int32_t node = 0; node < H3_NODE_COUNT; node++) {
        for (int32_t i = 0; i < 2 && h3_nodes[node].param[i].suffix != NULL; i++) {
            char name[96];
            h3_node_param_name(name, node, i, model->first_block, 0);
            const h3_parameter *parameter = h3_inventory_find(inventory, name);
            if (parameter != NULL) elements += (size_t)parameter->shape[0] * (size_t)(parameter->rank == 2 ? parameter->shape[1] : 1);
        }
    }
    return elements * h3_dtype_size(model->precision) * (size_t)model->block_count;
}

/* All blocks stay on the device when that leaves nearly half of what is free for everything else. */
static h3_status choose_residence(h3_model *model)
{
    size_t available, total;
    H3_TRY(model->engine.device->memory(&available, &total));
    model->resident = block_bytes(model) <= available / 100 * 55;
    return H3_OK;
}

/* Before a block is walked, for the first time or always: signs of life go on while a large checkpoint is read. */
static h3_status load_block(h3_model *model, int64_t i)
{
    if (model->blocks[i].param[H3_NODE_Q_PROJ][0].data != NULL) return H3_OK;
    return h3_block_params_load(&model->blocks[i], model->engine.device, model->weights, model->first_block + i, 0, model->precision);
}

static void leave_block(h3_model *model, int64_t i)
{
    if (!model->resident) h3_block_params_free(&model->blocks[i], model->engine.device);
}

void h3_model_stream(h3_model *model)
{
    model->resident = 0;
    for (int64_t i = 0; i < model->block_count; i++) leave_block(model, i);
}

static h3_status load_parameters(h3_model *model)
{
    const h3_config *config = model->engine.config;
    void *memory;
    for (int i = 0; i < H3_BOUNDARY_PARAMS; i++)
        if (needs_boundary(model, i)) H3_TRY(load_boundary(model, i));
    H3_TRY(h3_alloc(&memory, (size_t)model->block_count, sizeof *model->blocks, "block parameters"));
    model->blocks = memory;
    H3_TRY(choose_residence(model));
    if (!model->is_first || config->num_refiner_layers == 0) return H3_OK;
    H3_TRY(h3_alloc(&memory, (size_t)config->num_refiner_layers, sizeof *model->refiners, "refiner parameters"));
    model->refiners = memory;
    for (int64_t i = 0; i < config->num_refiner_layers; i++)
        H3_TRY(h3_block_params_load(&model->refiners[i], model->engine.device, model->weights, i, 1, model->precision));
    return H3_OK;
}

h3_status h3_model_open(h3_model *model, const h3_weights *weights, const h3_device *device, int32_t precision, const h3_library *provider,
                        const h3_operator *const *operators, int64_t first_block, int64_t block_count)
{
    const h3_config *config = h3_weights_config(weights);
    memset(model, 0, sizeof *model);
    h3_engine_init(&model->engine, config, device != NULL ? device : h3_device_cpu(), provider);
    model->weights = weights;
    model->precision = precision;
    model->first_block = first_block;
    model->block_count = block_count;
    model->is_first = first_block == 0;
    model->is_last = first_block + block_count == config->num_layers;
    for (int32_t node = 0; node < H3_NODE_COUNT; node++) H3_TRY(h3_library_find(&model->provider[node], provider, h3_nodes[node].name, NULL));
    model->operators = operators != NULL ? operators : model->provider;
    model->operators_end = config->num_layers;
    h3_status status = load_parameters(model);
    if (status != H3_OK) h3_model_close(model);
    return status;
}

void h3_model_close(h3_model *model)
{
    const h3_device *device = model->engine.device;
    if (device == NULL) return;
    for (int i = 0; i < H3_BOUNDARY_PARAMS; i++) h3_device_free(&model->boundary[i], device);
    for (int64_t i = 0; model->blocks != NULL && i < model->block_count; i++) h3_block_params_free(&model->blocks[i], device);
    for (int64_t i = 0; model->refiners != NULL && i < model->engine.config->num_refiner_layers; i++) h3_block_params_free(&model->refiners[i], device);
    free(model->blocks);
    free(model->refiners);
    h3_engine_free(&model->engine);
    memset(model, 0, sizeof *model);
}

void h3_pass_free(h3_pass *pass, h3_model *model)
{
    const h3_device *device = model->engine.device;
    if (pass == NULL) return;
    h3_tensor *tensors[] = {&pass->timestep, &pass->temb, &pass->time_saved[0], &pass->time_saved[1], &pass->rotary, &pass->modulation_index,
                            &pass->timestep_index, &pass->video_index, &pass->audio_index, &pass->text_index, &pass->video, &pass->audio, &pass->text,
                            &pass->text_rows, &pass->hidden, &pass->y32, &pass->head_video, &pass->head_audio};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) h3_device_free(tensors[i], device);
    for (int64_t i = 0; pass->refiner_states != NULL && i < model->engine.config->num_refiner_layers; i++)
        h3_block_state_free(&pass->refiner_states[i], device);
    for (int64_t i = 0; pass->block_inputs != NULL && i < model->block_count; i++) h3_device_free(&pass->block_inputs[i], device);
    h3_node_result_free(&pass->final_norm, device);
    h3_node_result_free(&pass->norm_out, device);
    free(pass->refiner_states);
    free(pass->block_inputs);
    free(pass);
}

static h3_status new_pass(h3_model *model, const h3_sequence *sequence, h3_pass **out)
{
    void *memory;
    H3_TRY(h3_alloc(&memory, 1, sizeof(h3_pass), "a pass"));
    h3_pass *pass = memory;
    *out = pass;
    pass->sequence = sequence;
    H3_TRY(h3_alloc(&memory, (size_t)model->engine.config->num_refiner_layers, sizeof *pass->refiner_states, "refiner states"));
    pass->refiner_states = memory;
    H3_TRY(h3_alloc(&memory, (size_t)model->block_count, sizeof *pass->block_inputs, "block inputs"));
    pass->block_inputs = memory;
    return H3_OK;
}

void h3_pass_values(const h3_pass *pass, h3_block_state *state)
{
    const h3_tensor *rotary = &pass->rotary;
    int64_t rows = rotary->shape[1], angles = rotary->shape[2];
    state->batch = 1;
    state->value[H3_VALUE_TEMB] = pass->temb;
    state->value[H3_VALUE_INDEX] = pass->modulation_index;
    state->value[H3_VALUE_COS] = h3_tensor_view(rotary->data, rotary->dtype, 2, H3_SHAPE(rows, angles));
    char *sines = (char *)rotary->data + (size_t)(rows * angles) * h3_dtype_size(rotary->dtype);
    state->value[H3_VALUE_SIN] = h3_tensor_view(sines, rotary->dtype, 2, H3_SHAPE(rows, angles));
}

const h3_tensor *h3_pass_block_input(const h3_pass *pass, const h3_model *model, int64_t block) { return &pass->block_inputs[block - model->first_block]; }

static const h3_operator *const *operators_of(const h3_model *model, int64_t i)
{
    return model->first_block + i < model->operators_end ? model->operators : model->provider;
}

/* Runs block i forward and moves its output to `out`. */
static h3_status block_forward(h3_model *model, h3_pass *pass, int64_t i, const h3_sink *sink, h3_tensor *out)
{
    h3_sink_tap tap;
    h3_block_state state = {0};
    H3_TRY(load_block(model, i));
    h3_pass_values(pass, &state);
    state.value[H3_VALUE_X] = pass->block_inputs[i];
    h3_walk walk = {&model->engine, operators_of(model, i), &model->blocks[i], &state, NULL, h3_sink_as_tap(&tap, sink)};
    h3_status status = h3_walk_forward(&walk);
    if (status == H3_OK) {
        *out = state.node[H3_NODE_RESIDUAL_MLP].out;
        state.node[H3_NODE_RESIDUAL_MLP].out = (h3_tensor){0};
    }
    h3_block_state_free(&state, model->engine.device);
    leave_block(model, i);
    return status;
}

static h3_status forward(h3_model *model, h3_pass *pass, const h3_sink *sink, h3_tensor *out_video, h3_tensor *out_audio)
{
    const h3_sequence *sequence = pass->sequence;
    H3_TRY(h3_boundary_prepare(model, pass, sink));
    if (model->is_first) {
        H3_TRY(h3_boundary_input(model, pass, sink));
    } else {
        H3_TRY(h3_device_tensor(&pass->block_inputs[0], model->engine.device, model->precision, 2, H3_SHAPE(sequence->rows, model->engine.config->hidden_size)));
        H3_TRY(model->link.receive(model->link.user, 1, &pass->block_inputs[0]));
    }
    for (int64_t i = 0; i < model->block_count; i++)
        H3_TRY(block_forward(model, pass, i, sink, i + 1 < model->block_count ? &pass->block_inputs[i + 1] : &pass->hidden));
    if (model->is_last) return h3_boundary_output(model, pass, sink, out_video, out_audio);
    return model->link.send(model->link.user, 1, &pass->hidden);
}

h3_status h3_model_forward(h3_model *model, const h3_sequence *sequence, const h3_sink *sink, h3_pass **pass, h3_tensor *out_video, h3_tensor *out_audio)
{
    h3_pass *own = NULL;
    h3_status status = h3_sequence_check(sequence, model->engine.config);
    if (status == H3_OK) status = new_pass(model, sequence, &own);
    if (status == H3_OK) status = forward(model, own, sink, out_video, out_audio);
    if (status == H3_OK && pass != NULL) *pass = own;
    else h3_pass_free(own, model);
    return status;
}

h3_status h3_model_input_side(h3_model *model, const h3_sequence *sequence, const h3_sink *sink, const h3_tensor *dhidden, const h3_tensor *dtemb)
{
    h3_pass *pass = NULL;
    h3_status status = h3_sequence_check(sequence, model->engine.config);
    if (status == H3_OK) status = new_pass(model, sequence, &pass);
    if (status == H3_OK) status = h3_boundary_prepare(model, pass, sink);
    if (status == H3_OK) status = h3_boundary_input(model, pass, sink);
    if (status == H3_OK) status = h3_boundary_input_backward(model, pass, sink, dhidden, dtemb);
    h3_pass_free(pass, model);
    return status;
}

h3_status h3_model_output_side(h3_model *model, const h3_sequence *sequence, const h3_sink *sink, const h3_tensor *hidden)
{
    h3_pass *pass = NULL;
    h3_tensor dhidden = {0}, dtemb = {0};
    h3_status status = h3_sequence_check(sequence, model->engine.config);
    if (status == H3_OK) status = new_pass(model, sequence, &pass);
    if (status == H3_OK) status = h3_boundary_prepare(model, pass, NULL);
    if (status == H3_OK) status = h3_device_duplicate(&pass->hidden, model->engine.device, hidden);
    if (status == H3_OK) status = h3_boundary_output(model, pass, sink, NULL, NULL);
    if (status == H3_OK) status = h3_boundary_output_backward(model, pass, sink, &dhidden, &dtemb);
    h3_device_free(&dhidden, model->engine.device);
    h3_device_free(&dtemb, model->engine.device);
    h3_pass_free(pass, model);
    return status;
}

/* Recomputes block i's forward silently, then walks back; dhidden is replaced by the gradient of the block's input. */
static h3_status block_backward(h3_model *model, h3_pass *pass, int64_t i, const h3_sink *sink, h3_tensor *dhidden, h3_tensor *dtemb)
{
    h3_sink_tap tap;
    h3_block_state state = {0};
    H3_TRY(load_block(model, i));
    h3_pass_values(pass, &state);
    state.value[H3_VALUE_X] = pass->block_inputs[i];
    h3_walk walk = {&model->engine, operators_of(model, i), &model->blocks[i], &state, NULL, NULL};
    h3_status status = h3_walk_forward(&walk);
    state.grad[H3_NODE_RESIDUAL_MLP] = *dhidden;
    *dhidden = (h3_tensor){0};
    walk.tap = h3_sink_as_tap(&tap, sink);
    if (status == H3_OK) status = h3_walk_backward(&walk);
    if (status == H3_OK) status = h3_engine_add(&model->engine, dtemb, dtemb, &state.grad[H3_VALUE_TEMB]);
    if (status == H3_OK) {
        *dhidden = state.grad[H3_VALUE_X];
        state.grad[H3_VALUE_X] = (h3_tensor){0};
    }
    h3_block_state_free(&state, model->engine.device);
    leave_block(model, i);
    return status;
}

static h3_status backward(h3_model *model, h3_pass *pass, const h3_sink *sink, h3_tensor *dhidden, h3_tensor *dtemb)
{
    const h3_device *device = model->engine.device;
    if (model->is_last) {
        H3_TRY(h3_boundary_output_backward(model, pass, sink, dhidden, dtemb));
    } else {
        H3_TRY(h3_device_tensor(dhidden, device, model->precision, 2, pass->hidden.shape));
        H3_TRY(h3_device_tensor(dtemb, device, H3_F32, 2, pass->temb.shape));
        H3_TRY(model->link.receive(model->link.user, 0, dhidden));
        H3_TRY(model->link.receive(model->link.user, 0, dtemb));
    }
    for (int64_t i = model->block_count - 1; i >= 0; i--) H3_TRY(block_backward(model, pass, i, sink, dhidden, dtemb));
    if (model->is_first) return h3_boundary_input_backward(model, pass, sink, dhidden, dtemb);
    H3_TRY(model->link.send(model->link.user, 0, dhidden));
    return model->link.send(model->link.user, 0, dtemb);
}

h3_status h3_model_backward(h3_model *model, h3_pass *pass, const h3_sink *sink)
{
    h3_tensor dhidden = {0}, dtemb = {0};
    if (pass->sequence->cot_video.data == NULL && pass->sequence->cot_audio.data == NULL)
        return h3_error(H3_USAGE, "a backward pass needs cotangents for the outputs");
    h3_status status = backward(model, pass, sink, &dhidden, &dtemb);
    h3_device_free(&dhidden, model->engine.device);
    h3_device_free(&dtemb, model->engine.device);
    return status;
}

void h3_event_name(char out[160], const h3_tap_event *event)
{
    const char *kind = event->refiner ? "refiner" : "block", *node = h3_nodes[event->node].name;
    long long block = (long long)event->block;
    out[0] = 0;
    if (event->kind == H3_TAP_OUTPUT) snprintf(out, 160, "node.%s%lld.%s", kind, block, node);
    if (event->kind == H3_TAP_GRADIENT) snprintf(out, 160, "dnode.%s%lld.%s", kind, block, node);
    if (event->kind == H3_TAP_INPUT) snprintf(out, 160, "dinput.%s%lld.%s", kind, block, event->index == 0 ? "x" : "temb");
    if (event->kind == H3_TAP_PARAM) {
        char parameter[96];
        h3_node_param_name(parameter, event->node, event->index, event->block, event->refiner);
        snprintf(out, 160, "grad.%s", parameter);
    }
}

h3_tensor h3_event_view(const h3_tap_event *event)
{
    const h3_tensor *tensor = event->tensor;
    if (event->node == H3_NODE_ADALN && tensor->rank == 3)
        return h3_tensor_view(tensor->data, tensor->dtype, 2, H3_SHAPE(tensor->shape[0] / 3, 18 * tensor->shape[2]));
    if (tensor->rank == 4 && tensor->shape[0] == 1) return h3_tensor_view(tensor->data, tensor->dtype, 3, &tensor->shape[1]);
    return *tensor;
}
