#include "graph/boundary.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const char *const h3_boundary_names[H3_BOUNDARY_PARAMS] = {
    "proj_in.weight", "proj_in.bias", "audio_proj_in.weight", "audio_proj_in.bias", "context_embedder.weight", "context_embedder.bias",
    "time_embedder.linear_1.weight", "time_embedder.linear_1.bias", "time_embedder.linear_2.weight", "time_embedder.linear_2.bias",
    "token_refiner.final_norm.weight", "norm_out.norm.weight", "norm_out.linear.weight", "norm_out.linear.bias", "proj_out.weight",
    "proj_out.bias", "audio_proj_out.weight", "audio_proj_out.bias",
};

h3_status h3_sink_tensor(const h3_sink *sink, int64_t block, const char *name, const h3_tensor *tensor)
{
    return sink != NULL && sink->tensor != NULL ? sink->tensor(sink->user, block, name, tensor) : H3_OK;
}

static h3_status sink_event(void *user, const h3_tap_event *event)
{
    const h3_sink_tap *own = user;
    const h3_sink *sink = own->sink;
    char name[160];
    if (event->kind == H3_TAP_CALL) return sink->call != NULL && !event->refiner ? sink->call(sink->user, event) : H3_OK;
    h3_event_name(name, event);
    h3_tensor view = h3_event_view(event);
    return h3_sink_tensor(sink, event->refiner ? H3_INPUT_SIDE : event->block, name, &view);
}

const h3_tap *h3_sink_as_tap(h3_sink_tap *out, const h3_sink *sink)
{
    if (sink == NULL) return NULL;
    *out = (h3_sink_tap){.sink = sink, .tap = {sink_event, out}};
    return &out->tap;
}

static h3_status provider_operator(const h3_model *model, const char *node, const h3_operator **op)
{
    return h3_library_find(op, model->engine.provider, node, NULL);
}

/* int64 host indices as an i32 device tensor. */
static h3_status upload_index(h3_model *model, h3_tensor *out, const int64_t *index, int64_t count, const int64_t *tags)
{
    h3_tensor host;
    if (count == 0) return H3_OK;
    H3_TRY(h3_tensor_new(&host, H3_I32, 1, &count));
    for (int64_t i = 0; i < count; i++) ((int32_t *)host.data)[i] = (int32_t)(tags == NULL ? index[i] : 3 * index[i] + tags[i]);
    h3_status status = h3_device_upload(out, model->engine.device, &host);
    h3_tensor_free(&host);
    return status;
}

/* Gradients of `count` boundary parameters, from `first` on, go to the sink under the parameters' names. */
static h3_status sink_gradients(const h3_sink *sink, int64_t side, int first, int count, const h3_tensor *gradients)
{
    for (int i = 0; i < count; i++) {
        char name[160];
        snprintf(name, sizeof name, "grad.%s", h3_boundary_names[first + i]);
        H3_TRY(h3_sink_tensor(sink, side, name, &gradients[i]));
    }
    return H3_OK;
}

/* Points a call at `count` boundary parameters and, when `gradients` is given, at new tensors for their gradients. */
static h3_status parameters(h3_model *model, h3_call *call, int first, int count, h3_tensor *gradients)
{
    for (int i = 0; i < count; i++) {
        call->param[i] = model->boundary[first + i];
        if (gradients == NULL) continue;
        H3_TRY(h3_device_tensor(&gradients[i], model->engine.device, call->param[i].dtype, call->param[i].rank, call->param[i].shape));
        call->dparam[i] = gradients[i];
    }
    return H3_OK;
}

static h3_status time_embedding(h3_model *model, h3_pass *pass)
{
    const h3_operator *op;
    const h3_sequence *sequence = pass->sequence;
    float times[H3_MAX_TIMESTEPS];
    memcpy(times, sequence->timestep, (size_t)sequence->timestep_count * sizeof *times);
    h3_tensor host = h3_tensor_view(times, H3_F32, 1, &sequence->timestep_count);
    H3_TRY(h3_device_upload(&pass->timestep, model->engine.device, &host));
    H3_TRY(h3_device_tensor(&pass->temb, model->engine.device, H3_F32, 2, H3_SHAPE(sequence->timestep_count, model->engine.config->time_embed_dim)));
    H3_TRY(provider_operator(model, "time_embedder", &op));
    h3_call call = h3_engine_new_call(&model->engine);
    h3_call_plan plan;
    call.in[0] = pass->timestep;
    H3_TRY(parameters(model, &call, H3_P_TIME1, 4, NULL));
    call.out = pass->temb;
    H3_TRY(h3_engine_plan(&model->engine, op, &call, &plan));
    for (int i = 0; i < plan.saved_count; i++) {
        H3_TRY(h3_device_tensor(&pass->time_saved[i], model->engine.device, plan.saved[i].dtype, plan.saved[i].rank, plan.saved[i].shape));
        call.saved[i] = pass->time_saved[i];
    }
    return h3_engine_call(&model->engine, op, &call, H3_FORWARD);
}

/* Inverse frequencies as correctly rounded power, then correctly rounded reciprocal (transformer.md 4.1). */
h3_status h3_boundary_rotary(h3_model *model, const h3_sequence *sequence, h3_tensor *out)
{
    const h3_operator *op;
    const h3_config *config = model->engine.config;
    const h3_device *device = model->engine.device;
    int64_t frequencies = config->rope_freq_dim;
    h3_tensor positions = {0}, inverse = {0}, device_positions = {0}, device_inverse = {0};
    h3_status status;
    H3_GOTO(h3_tensor_new(&positions, H3_F32, 2, H3_SHAPE(sequence->rows, 3)), done);
    H3_GOTO(h3_tensor_new(&inverse, H3_F32, 1, &frequencies), done);
    for (int64_t i = 0; i < 3 * sequence->rows; i++) ((float *)positions.data)[i] = (float)sequence->position_ids[i];
    for (int64_t k = 0; k < frequencies; k++)
        ((float *)inverse.data)[k] = 1.0f / (float)pow(config->rope_theta, (double)k / (double)frequencies);
    H3_GOTO(h3_device_upload(&device_positions, device, &positions), done);
    H3_GOTO(h3_device_upload(&device_inverse, device, &inverse), done);
    H3_GOTO(h3_device_tensor(out, device, model->precision, 3, H3_SHAPE(2, sequence->rows, 3 * frequencies)), done);
    H3_GOTO(provider_operator(model, "rotary_table", &op), done);
    h3_call call = h3_engine_new_call(&model->engine);
    call.in[0] = device_positions;
    call.in[1] = device_inverse;
    call.out = *out;
    status = h3_engine_call(&model->engine, op, &call, H3_FORWARD);
done:
    h3_tensor_free(&positions);
    h3_tensor_free(&inverse);
    h3_device_free(&device_positions, device);
    h3_device_free(&device_inverse, device);
    return status;
}

h3_status h3_boundary_prepare(h3_model *model, h3_pass *pass, const h3_sink *sink)
{
    const h3_sequence *sequence = pass->sequence;
    H3_TRY(time_embedding(model, pass));
    H3_TRY(h3_boundary_rotary(model, sequence, &pass->rotary));
    H3_TRY(upload_index(model, &pass->modulation_index, sequence->timestep_indices, sequence->rows, sequence->token_tags));
    H3_TRY(upload_index(model, &pass->timestep_index, sequence->timestep_indices, sequence->rows, NULL));
    H3_TRY(upload_index(model, &pass->video_index, sequence->video_indices, sequence->video_rows, NULL));
    H3_TRY(upload_index(model, &pass->audio_index, sequence->audio_indices, sequence->audio_rows, NULL));
    H3_TRY(upload_index(model, &pass->text_index, sequence->text_indices, sequence->text_rows, NULL));
    return model->is_first ? h3_sink_tensor(sink, H3_INPUT_SIDE, "boundary.temb", &pass->temb) : H3_OK;
}

static h3_status linear_bias(h3_model *model, const h3_tensor *x, int parameter, h3_tensor *out)
{
    const h3_operator *op;
    const h3_tensor *weight = &model->boundary[parameter];
    H3_TRY(provider_operator(model, "linear_bias", &op));
    H3_TRY(h3_device_tensor(out, model->engine.device, weight->dtype, 2, H3_SHAPE(x->shape[0], weight->shape[0])));
    h3_call call = h3_engine_new_call(&model->engine);
    call.in[0] = *x;
    H3_TRY(parameters(model, &call, parameter, 2, NULL));
    call.out = *out;
    return h3_engine_call(&model->engine, op, &call, H3_FORWARD);
}

/* Gradients of a linear boundary layer go straight to the sink; `din` may be NULL. */
static h3_status linear_bias_backward(h3_model *model, const h3_tensor *x, int parameter, const h3_tensor *dout, h3_tensor *din, int64_t side,
                                      const h3_sink *sink)
{
    const h3_operator *op;
    const h3_device *device = model->engine.device;
    h3_tensor gradient[2] = {{0}, {0}};
    h3_status status = H3_OK;
    h3_call call = h3_engine_new_call(&model->engine);
    H3_TRY(provider_operator(model, "linear_bias", &op));
    call.in[0] = *x;
    call.dout = *dout;
    H3_GOTO(parameters(model, &call, parameter, 2, gradient), done);
    if (din != NULL) {
        H3_GOTO(h3_device_tensor(din, device, x->dtype, x->rank, x->shape), done);
        call.din[0] = *din;
    }
    H3_GOTO(h3_engine_call(&model->engine, op, &call, H3_BACKWARD), done);
    status = sink_gradients(sink, side, parameter, 2, gradient);
done:
    h3_device_free(&gradient[0], device);
    h3_device_free(&gradient[1], device);
    return status;
}

/* rows <-> packed sequence: forward scatters into `packed`, backward gathers `rows` from it. */
static h3_status move_rows(h3_model *model, const h3_tensor *rows, const h3_tensor *index, const h3_tensor *packed, h3_direction direction)
{
    const h3_operator *op;
    H3_TRY(provider_operator(model, "scatter_rows", &op));
    h3_call call = h3_engine_new_call(&model->engine);
    call.in[0] = *rows;
    call.in[1] = *index;
    call.out = *packed;
    call.dout = *packed;
    call.din[0] = *rows;
    return h3_engine_call(&model->engine, op, &call, direction);
}

static h3_status gather(h3_model *model, const h3_tensor *packed, const h3_tensor *index, h3_tensor *rows)
{
    H3_TRY(h3_device_tensor(rows, model->engine.device, packed->dtype, 2, H3_SHAPE(index->shape[0], packed->shape[1])));
    return move_rows(model, rows, index, packed, H3_BACKWARD);
}

/* Embeds rows in float32, rounds them to the activation's type and puts them at their places. */
static h3_status embed(h3_model *model, const h3_tensor *input, int parameter, const h3_tensor *index, const h3_tensor *packed)
{
    const h3_device *device = model->engine.device;
    h3_tensor embedded = {0}, rounded = {0};
    h3_status status = linear_bias(model, input, parameter, &embedded);
    if (status == H3_OK) status = h3_engine_convert(&model->engine, &rounded, &embedded, model->precision);
    if (status == H3_OK) status = move_rows(model, &rounded, index, packed, H3_FORWARD);
    h3_device_free(&embedded, device);
    h3_device_free(&rounded, device);
    return status;
}

/* final_norm is an unmodulated norm1 with its own weight and eps. */
static h3_call final_norm_call(h3_model *model, h3_pass *pass)
{
    h3_call call = h3_engine_new_call(&model->engine);
    int64_t layers = model->engine.config->num_refiner_layers;
    call.epsilon = (float)model->engine.config->final_norm_eps;
    call.in[0] = layers > 0 ? pass->refiner_states[layers - 1].value[H3_NODE_RESIDUAL_MLP] : pass->text_rows;
    call.param[0] = model->boundary[H3_P_FINAL_NORM];
    call.out = pass->final_norm.out;
    for (int i = 0; i < H3_MAX_SAVED; i++) call.saved[i] = pass->final_norm.saved[i];
    return call;
}

static h3_status text_stream(h3_model *model, h3_pass *pass, const h3_sink *sink)
{
    const h3_device *device = model->engine.device;
    h3_sink_tap tap;
    H3_TRY(linear_bias(model, &pass->text, H3_P_CONTEXT, &pass->text_rows));
    const h3_tensor *x = &pass->text_rows;
    for (int64_t i = 0; i < model->engine.config->num_refiner_layers; i++) {
        h3_block_state *state = &pass->refiner_states[i];
        state->batch = 1;
        state->value[H3_VALUE_X] = *x;
        h3_walk walk = {&model->engine, model->provider, &model->refiners[i], state, NULL, h3_sink_as_tap(&tap, sink)};
        H3_TRY(h3_walk_forward(&walk));
        x = &state->value[H3_NODE_RESIDUAL_MLP];
    }
    h3_call_plan plan;
    H3_TRY(h3_device_tensor(&pass->final_norm.out, device, model->precision, 2, x->shape));
    h3_call call = final_norm_call(model, pass);
    H3_TRY(h3_engine_plan(&model->engine, model->provider[H3_NODE_NORM1], &call, &plan));
    for (int i = 0; i < plan.saved_count; i++)
        H3_TRY(h3_device_tensor(&pass->final_norm.saved[i], device, plan.saved[i].dtype, plan.saved[i].rank, plan.saved[i].shape));
    call = final_norm_call(model, pass);
    return h3_engine_call(&model->engine, model->provider[H3_NODE_NORM1], &call, H3_FORWARD);
}

h3_status h3_boundary_input(h3_model *model, h3_pass *pass, const h3_sink *sink)
{
    const h3_sequence *sequence = pass->sequence;
    const h3_device *device = model->engine.device;
    h3_tensor *packed = &pass->block_inputs[0];
    H3_TRY(h3_device_tensor(packed, device, model->precision, 2, H3_SHAPE(sequence->rows, model->engine.config->hidden_size)));
    if (sequence->text_rows > 0) {
        h3_tensor text;
        H3_TRY(h3_tensor_convert(&text, &sequence->text, model->precision));
        h3_status status = h3_device_upload(&pass->text, device, &text);
        h3_tensor_free(&text);
        H3_TRY(status);
        H3_TRY(text_stream(model, pass, sink));
        H3_TRY(move_rows(model, &pass->final_norm.out, &pass->text_index, packed, H3_FORWARD));
    }
    if (sequence->video_rows > 0) {
        H3_TRY(h3_device_upload(&pass->video, device, &sequence->video));
        H3_TRY(embed(model, &pass->video, H3_P_PROJ_IN, &pass->video_index, packed));
    }
    if (sequence->audio_rows > 0) {
        H3_TRY(h3_device_upload(&pass->audio, device, &sequence->audio));
        H3_TRY(embed(model, &pass->audio, H3_P_AUDIO_IN, &pass->audio_index, packed));
    }
    return h3_sink_tensor(sink, H3_INPUT_SIDE, "boundary.hidden", packed);
}

static h3_call norm_out_call(h3_model *model, h3_pass *pass)
{
    h3_call call = h3_engine_new_call(&model->engine);
    call.epsilon = (float)model->engine.config->final_norm_eps;
    call.in[0] = pass->hidden;
    call.in[1] = pass->temb;
    call.in[2] = pass->timestep_index;
    for (int i = 0; i < 3; i++) call.param[i] = model->boundary[H3_P_OUT_NORM + i];
    call.out = pass->norm_out.out;
    for (int i = 0; i < H3_MAX_SAVED; i++) call.saved[i] = pass->norm_out.saved[i];
    return call;
}

static h3_status head(h3_model *model, h3_pass *pass, const h3_tensor *index, h3_tensor *rows, int parameter, const char *name, const h3_sink *sink,
                      h3_tensor *out)
{
    h3_tensor result = {0};
    if (index->data == NULL) return H3_OK;
    h3_status status = gather(model, &pass->y32, index, rows);
    if (status == H3_OK) status = linear_bias(model, rows, parameter, &result);
    if (status == H3_OK) status = h3_sink_tensor(sink, H3_OUTPUT_SIDE, name, &result);
    if (status == H3_OK && out != NULL) *out = result;
    else h3_device_free(&result, model->engine.device);
    return status;
}

h3_status h3_boundary_output(h3_model *model, h3_pass *pass, const h3_sink *sink, h3_tensor *out_video, h3_tensor *out_audio)
{
    const h3_operator *op;
    const h3_device *device = model->engine.device;
    h3_call_plan plan;
    H3_TRY(provider_operator(model, "norm_out", &op));
    H3_TRY(h3_device_tensor(&pass->norm_out.out, device, model->precision, 2, pass->hidden.shape));
    h3_call call = norm_out_call(model, pass);
    H3_TRY(h3_engine_plan(&model->engine, op, &call, &plan));
    for (int i = 0; i < plan.saved_count; i++)
        H3_TRY(h3_device_tensor(&pass->norm_out.saved[i], device, plan.saved[i].dtype, plan.saved[i].rank, plan.saved[i].shape));
    call = norm_out_call(model, pass);
    H3_TRY(h3_engine_call(&model->engine, op, &call, H3_FORWARD));
    H3_TRY(h3_sink_tensor(sink, H3_OUTPUT_SIDE, "boundary.norm_out", &pass->norm_out.out));
    H3_TRY(h3_engine_convert(&model->engine, &pass->y32, &pass->norm_out.out, H3_F32));
    H3_TRY(head(model, pass, &pass->video_index, &pass->head_video, H3_P_PROJ_OUT, "out.video", sink, out_video));
    return head(model, pass, &pass->audio_index, &pass->head_audio, H3_P_AUDIO_OUT, "out.audio", sink, out_audio);
}

/* One head's gradient, placed at its rows of dy32 (row sets are disjoint, so placing is adding). */
static h3_status head_backward(h3_model *model, const h3_tensor *cotangent, const h3_tensor *rows, const h3_tensor *index, int parameter,
                               const h3_tensor *dy32, const h3_sink *sink)
{
    h3_tensor dout = {0}, drows = {0};
    const h3_device *device = model->engine.device;
    if (index->data == NULL) return H3_OK;
    h3_status status = h3_device_upload(&dout, device, cotangent);
    if (status == H3_OK) status = linear_bias_backward(model, rows, parameter, &dout, &drows, H3_OUTPUT_SIDE, sink);
    if (status == H3_OK) status = move_rows(model, &drows, index, dy32, H3_FORWARD);
    h3_device_free(&dout, device);
    h3_device_free(&drows, device);
    return status;
}

static h3_status norm_out_backward(h3_model *model, h3_pass *pass, const h3_tensor *dy, const h3_sink *sink, h3_tensor *dhidden, h3_tensor *dtemb)
{
    const h3_operator *op;
    const h3_device *device = model->engine.device;
    h3_tensor gradient[3] = {{0}, {0}, {0}};
    h3_status status;
    h3_call call = norm_out_call(model, pass);
    H3_TRY(provider_operator(model, "norm_out", &op));
    H3_TRY(h3_device_tensor(dhidden, device, model->precision, 2, pass->hidden.shape));
    H3_TRY(h3_device_tensor(dtemb, device, H3_F32, 2, pass->temb.shape));
    H3_GOTO(parameters(model, &call, H3_P_OUT_NORM, 3, gradient), done);
    call.dout = *dy;
    call.din[0] = *dhidden;
    call.din[1] = *dtemb;
    H3_GOTO(h3_engine_call(&model->engine, op, &call, H3_BACKWARD), done);
    status = sink_gradients(sink, H3_OUTPUT_SIDE, H3_P_OUT_NORM, 3, gradient);
done:
    for (int i = 0; i < 3; i++) h3_device_free(&gradient[i], device);
    return status;
}

h3_status h3_boundary_output_backward(h3_model *model, h3_pass *pass, const h3_sink *sink, h3_tensor *dhidden, h3_tensor *dtemb)
{
    const h3_device *device = model->engine.device;
    const h3_sequence *sequence = pass->sequence;
    h3_tensor dy32 = {0}, dy = {0};
    h3_status status;
    H3_GOTO(h3_device_zeros(&dy32, device, H3_F32, 2, pass->hidden.shape), done);
    H3_GOTO(head_backward(model, &sequence->cot_video, &pass->head_video, &pass->video_index, H3_P_PROJ_OUT, &dy32, sink), done);
    H3_GOTO(head_backward(model, &sequence->cot_audio, &pass->head_audio, &pass->audio_index, H3_P_AUDIO_OUT, &dy32, sink), done);
    H3_GOTO(h3_engine_convert(&model->engine, &dy, &dy32, model->precision), done);
    H3_GOTO(norm_out_backward(model, pass, &dy, sink, dhidden, dtemb), done);
    H3_GOTO(h3_sink_tensor(sink, H3_OUTPUT_SIDE, "dboundary.hidden", dhidden), done);
done:
    h3_device_free(&dy32, device);
    h3_device_free(&dy, device);
    return status;
}

static h3_status embed_backward(h3_model *model, const h3_tensor *dhidden, const h3_tensor *index, const h3_tensor *input, int parameter, const h3_sink *sink)
{
    const h3_device *device = model->engine.device;
    h3_tensor rows = {0}, rows32 = {0};
    if (index->data == NULL) return H3_OK;
    h3_status status = gather(model, dhidden, index, &rows);
    if (status == H3_OK) status = h3_engine_convert(&model->engine, &rows32, &rows, H3_F32);
    if (status == H3_OK) status = linear_bias_backward(model, input, parameter, &rows32, NULL, H3_INPUT_SIDE, sink);
    h3_device_free(&rows, device);
    h3_device_free(&rows32, device);
    return status;
}

static h3_status final_norm_backward(h3_model *model, h3_pass *pass, const h3_tensor *dout, const h3_sink *sink, h3_tensor *din)
{
    const h3_device *device = model->engine.device;
    h3_tensor gradient = {0};
    h3_call call = final_norm_call(model, pass);
    H3_TRY(h3_device_tensor(din, device, model->precision, 2, dout->shape));
    H3_TRY(h3_device_tensor(&gradient, device, model->precision, 1, call.param[0].shape));
    call.dout = *dout;
    call.din[0] = *din;
    call.dparam[0] = gradient;
    h3_status status = h3_engine_call(&model->engine, model->provider[H3_NODE_NORM1], &call, H3_BACKWARD);
    if (status == H3_OK) status = h3_sink_tensor(sink, H3_INPUT_SIDE, "grad.token_refiner.final_norm.weight", &gradient);
    h3_device_free(&gradient, device);
    return status;
}

static h3_status text_backward(h3_model *model, h3_pass *pass, const h3_tensor *dhidden, const h3_sink *sink)
{
    const h3_device *device = model->engine.device;
    h3_tensor rows = {0}, dx = {0};
    h3_sink_tap tap;
    if (pass->text_index.data == NULL) return H3_OK;
    h3_status status = gather(model, dhidden, &pass->text_index, &rows);
    if (status == H3_OK) status = final_norm_backward(model, pass, &rows, sink, &dx);
    for (int64_t i = model->engine.config->num_refiner_layers - 1; i >= 0 && status == H3_OK; i--) {
        h3_block_state *state = &pass->refiner_states[i];
        state->grad[H3_NODE_RESIDUAL_MLP] = dx;
        dx = (h3_tensor){0};
        h3_walk walk = {&model->engine, model->provider, &model->refiners[i], state, NULL, h3_sink_as_tap(&tap, sink)};
        status = h3_walk_backward(&walk);
        dx = state->grad[H3_VALUE_X];
        state->grad[H3_VALUE_X] = (h3_tensor){0};
    }
    if (status == H3_OK) status = linear_bias_backward(model, &pass->text, H3_P_CONTEXT, &dx, NULL, H3_INPUT_SIDE, sink);
    h3_device_free(&rows, device);
    h3_device_free(&dx, device);
    return status;
}

static h3_status time_backward(h3_model *model, h3_pass *pass, const h3_tensor *dtemb, const h3_sink *sink)
{
    const h3_operator *op;
    const h3_device *device = model->engine.device;
    h3_tensor gradient[4] = {{0}, {0}, {0}, {0}};
    h3_status status;
    H3_TRY(provider_operator(model, "time_embedder", &op));
    h3_call call = h3_engine_new_call(&model->engine);
    call.in[0] = pass->timestep;
    call.out = pass->temb;
    call.dout = *dtemb;
    for (int i = 0; i < H3_MAX_SAVED; i++) call.saved[i] = pass->time_saved[i];
    H3_GOTO(parameters(model, &call, H3_P_TIME1, 4, gradient), done);
    H3_GOTO(h3_engine_call(&model->engine, op, &call, H3_BACKWARD), done);
    status = sink_gradients(sink, H3_INPUT_SIDE, H3_P_TIME1, 4, gradient);
done:
    for (int i = 0; i < 4; i++) h3_device_free(&gradient[i], device);
    return status;
}

h3_status h3_boundary_input_backward(h3_model *model, h3_pass *pass, const h3_sink *sink, const h3_tensor *dhidden, const h3_tensor *dtemb)
{
    H3_TRY(h3_sink_tensor(sink, H3_INPUT_SIDE, "dboundary.temb", dtemb));
    H3_TRY(embed_backward(model, dhidden, &pass->video_index, &pass->video, H3_P_PROJ_IN, sink));
    H3_TRY(embed_backward(model, dhidden, &pass->audio_index, &pass->audio, H3_P_AUDIO_IN, sink));
    H3_TRY(text_backward(model, pass, dhidden, sink));
    return time_backward(model, pass, dtemb, sink);
}
