/*
 * The sampling loop. All flows (seeds and repeats) are under way at once, so that ranks do not wait: while the last rank works
 * on flow 0, the first one embeds flow 1. A flow's velocities are taken back just before its next step.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "qualify/generation.h"
#include "qualify/metrics.h"

enum { VIDEO, AUDIO, MODALITIES };
enum { SAFE_POINTS = 12 }; /* in a whole run, about */

static const int velocity_tags[MODALITIES] = {10, 11}; /* of messages from the last rank to the first */
static const char *const velocity_names[MODALITIES] = {"velocity.video", "velocity.audio"};
static const char *const row_names[MODALITIES] = {"video_rows", "audio_rows"};

static int rank_of(const h3_sampling *s) { return s->ranks != NULL ? s->ranks->rank : 0; }
static int last_rank(const h3_sampling *s) { return s->ranks != NULL ? s->ranks->count - 1 : 0; }
static int is_first(const h3_sampling *s) { return rank_of(s) == 0; }

/* A failure that the other ranks cannot know of: they wait for a tensor that will not come. */
static h3_status alone(h3_sampling *s, h3_status status)
{
    if (status != H3_OK && last_rank(s) > 0) h3_ranks_abort(s->ranks, s->program, status);
    return status;
}

static h3_status agree(h3_sampling *s, h3_status status) { return s->ranks != NULL ? h3_ranks_agree(s->ranks, status) : status; }

/* Target rows of one modality of a flow: the rows behind the conditions. */
static float *target_rows(const h3_sampling *s, const h3_flow *flow, int modality, int64_t *count)
{
    const h3_layout *layout = &s->inputs->layout;
    if (modality == AUDIO) {
        *count = layout->audio_rows * s->inputs->audio_row;
        return flow->audio.data;
    }
    *count = layout->target_rows * s->inputs->video_row;
    return (float *)flow->video.data + layout->condition_rows * s->inputs->video_row;
}

/* Where the velocity of a step is kept. */
static float *velocity_of(const h3_flow *flow, int modality, int64_t step, int64_t count)
{
    const h3_tensor *store = modality == VIDEO ? &flow->velocity_video : &flow->velocity_audio;
    return (float *)store->data + (flow->repeat ? 0 : step * count);
}

static h3_status check_rows(const h3_flow *flow, const float *data, int64_t count, int64_t step, const char *name)
{
    h3_tensor view = h3_tensor_view((void *)(uintptr_t)data, H3_F32, 1, &count);
    if (h3_all_finite(&view)) return H3_OK;
    return h3_error(H3_FAILED, "seed %lld step %lld: %s is not finite; look at the operators with h3_candidate_gate",
                    (long long)flow->seed, (long long)step, name);
}

static h3_status digest_velocity(h3_sampling *s, h3_flow *flow, int modality, const float *velocity, int64_t count)
{
    int64_t step = flow->finished;
    char *digest = flow->digests[step][modality];
    H3_TRY(h3_digest(digest, velocity, (size_t)count * sizeof *velocity));
    if (!flow->repeat || strcmp(digest, s->flows[flow->original].digests[step][modality]) == 0) return H3_OK;
    return h3_error(
        H3_FAILED,
        "seed %lld step %lld: the repeat gives another %s (digest %.12s..., first %.12s...); an operator does not repeat itself",
        (long long)flow->seed, (long long)step, velocity_names[modality], digest,
        s->flows[flow->original].digests[step][modality]);
}

/* Takes the velocities that are due from the last rank. */
static h3_status take(h3_sampling *s, h3_flow *flow)
{
    for (int m = 0; m < MODALITIES && last_rank(s) > 0; m++) {
        int64_t count;
        target_rows(s, flow, m, &count);
        float *velocity = velocity_of(flow, m, flow->finished, count);
        H3_TRY(h3_ranks_receive(s->ranks, last_rank(s), velocity_tags[m], velocity, (size_t)count * sizeof *velocity));
    }
    return H3_OK;
}

/* The Euler step with the velocities taken. Video steps by its schedule, audio by its own. */
static h3_status advance(h3_sampling *s, h3_flow *flow)
{
    int64_t step = flow->finished;
    for (int m = 0; m < MODALITIES; m++) {
        int64_t count;
        float *rows = target_rows(s, flow, m, &count), *velocity = velocity_of(flow, m, step, count);
        H3_TRY(check_rows(flow, velocity, count, step, velocity_names[m]));
        H3_TRY(digest_velocity(s, flow, m, velocity, count));
        h3_schedule_step(m == VIDEO ? &s->inputs->video : &s->inputs->audio, step, rows, velocity, count);
        H3_TRY(check_rows(flow, rows, count, step, row_names[m]));
    }
    flow->finished++;
    h3_progress_add(&s->progress, 1);
    return H3_OK;
}

static h3_status settle(h3_sampling *s, h3_flow *flow, int64_t step)
{
    if (!is_first(s) || flow->finished == step) return H3_OK;
    H3_TRY(take(s, flow));
    return advance(s, flow);
}

/* Settles all flows. All velocities are taken also when one is bad: nothing may be left in the line when the ranks part. */
static h3_status settle_all(h3_sampling *s, int64_t step)
{
    h3_status status = H3_OK;
    for (size_t i = 0; is_first(s) && i < s->flow_count; i++) {
        if (s->flows[i].finished == step) continue;
        H3_TRY(alone(s, take(s, &s->flows[i])));
        if (status == H3_OK) status = advance(s, &s->flows[i]);
    }
    return status;
}

/* Brings one velocity's target rows to the first rank. */
static h3_status deliver(h3_sampling *s, const h3_flow *flow, int modality, const h3_tensor *output)
{
    int64_t count;
    h3_tensor host = {0};
    target_rows(s, flow, modality, &count);
    int64_t skipped = modality == VIDEO ? s->inputs->layout.condition_rows * s->inputs->video_row : 0;
    H3_TRY(h3_device_download(&host, s->model->engine.device, output));
    const float *velocity = (const float *)host.data + skipped;
    h3_status status = H3_OK;
    if (is_first(s)) memcpy(velocity_of(flow, modality, flow->finished, count), velocity, (size_t)count * sizeof *velocity);
    else status = h3_ranks_send(s->ranks, 0, velocity_tags[modality], velocity, (size_t)count * sizeof *velocity);
    h3_tensor_free(&host);
    return status;
}

typedef struct call_watch {
    const h3_flow *flow;
    int64_t step;
} call_watch;

/* After every call of a block's operator: no fallback goes unnoticed. */
static h3_status watch_call(void *user, const h3_tap_event *event)
{
    const call_watch *watch = user;
    if (!event->report->fallback) return H3_OK;
    return h3_error(H3_FAILED, "seed %lld step %lld: block %lld node %s fell back to %s instead of running operator %s",
                    (long long)watch->flow->seed, (long long)watch->step, (long long)event->block, h3_nodes[event->node].name,
                    event->report->kernel, event->op->name);
}

/* This rank's part of one evaluation. */
static h3_status evaluate(h3_sampling *s, h3_flow *flow, int64_t step)
{
    const h3_device *device = s->model->engine.device;
    call_watch watch = {flow, step};
    h3_sink sink = {.call = watch_call, .user = &watch};
    h3_tensor video = {0}, audio = {0};
    s->sequence.video = flow->video;
    s->sequence.audio = flow->audio;
    h3_status status = h3_model_forward(s->model, &s->sequence, &sink, NULL, &video, &audio);
    if (status == H3_OK && s->model->is_last) status = deliver(s, flow, VIDEO, &video);
    if (status == H3_OK && s->model->is_last) status = deliver(s, flow, AUDIO, &audio);
    h3_device_free(&video, device);
    h3_device_free(&audio, device);
    return status;
}

static h3_status set_times(h3_sampling *s, int64_t step)
{
    const h3_generation_inputs *inputs = s->inputs;
    return h3_timestep_plan(&inputs->layout, inputs->video.timestep[step], inputs->audio.timestep[step], inputs->condition_time,
                            s->timestep, &s->sequence.timestep_count, s->timestep_indices);
}

static int is_safe_point(const h3_sampling *s, int64_t step) { return step > s->first_step && step % s->safe_steps == 0; }

/* All flows stand after `step` steps, also while the next evaluation of each is under way: rows change when it is taken. */
static h3_status save(h3_sampling *s, int64_t step) { return is_first(s) && s->save != NULL ? s->save(s->user, s, step) : H3_OK; }

/* A signal has come: what is under way is finished, and saved. */
static h3_status stop_here(h3_sampling *s, int64_t step)
{
    h3_status status = settle_all(s, step);
    if (status == H3_OK) status = save(s, step);
    H3_TRY(agree(s, status));
    return h3_error(H3_STOPPED, "stopped by a signal after step %lld of %lld; run again with --resume", (long long)step, (long long)s->steps);
}

static h3_status run_flows(h3_sampling *s, int64_t step)
{
    H3_TRY(set_times(s, step));
    for (size_t i = 0; i < s->flow_count; i++) {
        H3_TRY(settle(s, &s->flows[i], step));
        H3_TRY(evaluate(s, &s->flows[i], step));
    }
    return is_safe_point(s, step) ? save(s, step) : H3_OK;
}

/* One step of all flows. Signals are asked about ahead of it and heard of behind it, so that no rank waits for another: when the first rank has taken the last
 * flow's velocities, all have asked. */
static h3_status run_step(h3_sampling *s, int64_t step, int *stop)
{
    int heard = 0;
    if (s->ranks == NULL) return run_flows(s, step);
    H3_TRY(h3_ranks_stop_ask(s->ranks));
    h3_status status = alone(s, run_flows(s, step)), answer = h3_ranks_stop_hear(s->ranks, &heard);
    *stop |= heard;
    return status != H3_OK ? status : answer;
}

static h3_status run_steps(h3_sampling *s)
{
    int stop = 0;
    for (int64_t step = s->first_step; step < s->steps; step++) {
        if (stop) return stop_here(s, step);
        H3_TRY(run_step(s, step, &stop));
    }
    return agree(s, settle_all(s, s->steps));
}

h3_status h3_sampling_run(h3_sampling *sampling)
{
    int64_t flows = (int64_t)sampling->flow_count;
    h3_progress_start(&sampling->progress, sampling->title, "steps", flows * sampling->steps);
    h3_progress_resume(&sampling->progress, flows * sampling->first_step);
    H3_TRY(run_steps(sampling));
    h3_progress_end(&sampling->progress);
    return H3_OK;
}

/* Memory for what the first rank keeps of a flow. */
static h3_status new_store(h3_sampling *s, h3_flow *flow)
{
    const h3_layout *layout = &s->inputs->layout;
    int64_t kept = flow->repeat ? 1 : s->steps;
    void *digests;
    H3_TRY(h3_alloc(&digests, (size_t)s->steps, sizeof *flow->digests, "velocity digests"));
    flow->digests = digests;
    H3_TRY(h3_tensor_new(&flow->velocity_video, H3_F32, 3, H3_SHAPE(kept, layout->target_rows, s->inputs->video_row)));
    H3_TRY(h3_tensor_new(&flow->velocity_audio, H3_F32, 3, H3_SHAPE(kept, layout->audio_rows, s->inputs->audio_row)));
    H3_TRY(h3_generation_start(&flow->video, &flow->audio, s->inputs, flow->seed));
    if (flow->repeat) return H3_OK;
    H3_TRY(h3_tensor_convert(&flow->start_video, &flow->video, H3_F32));
    return h3_tensor_convert(&flow->start_audio, &flow->audio, H3_F32);
}

static h3_status new_flows(h3_sampling *s, const h3_generation *generation)
{
    const h3_layout *layout = &s->inputs->layout;
    void *memory;
    H3_TRY(h3_alloc(&memory, s->flow_count, sizeof *s->flows, "flows"));
    s->flows = memory;
    for (size_t i = 0; i < s->flow_count; i++) {
        h3_flow *flow = &s->flows[i];
        flow->original = i % generation->seed_count;
        flow->repeat = i >= generation->seed_count;
        flow->seed = generation->seeds[flow->original];
        if (is_first(s)) {
            H3_TRY(new_store(s, flow));
        } else {
            H3_TRY(h3_tensor_new(&flow->video, H3_F32, 2, H3_SHAPE(layout->video_rows, s->inputs->video_row)));
            H3_TRY(h3_tensor_new(&flow->audio, H3_F32, 2, H3_SHAPE(layout->audio_rows, s->inputs->audio_row)));
        }
    }
    return H3_OK;
}

static h3_status fill_sampling(h3_sampling *s, const h3_generation *generation)
{
    void *memory;
    s->steps = s->inputs->video.points - 1;
    s->safe_steps = s->steps / SAFE_POINTS > 1 ? s->steps / SAFE_POINTS : 1;
    H3_TRY(h3_alloc(&memory, (size_t)s->inputs->layout.rows, sizeof *s->timestep_indices, "timestep indices"));
    s->timestep_indices = memory;
    h3_sequence_layout(&s->sequence, &s->inputs->layout);
    s->sequence.timestep = s->timestep;
    s->sequence.timestep_indices = s->timestep_indices;
    s->sequence.text = s->inputs->text;
    return new_flows(s, generation);
}

h3_status h3_sampling_new(h3_sampling *out, const h3_generation *generation, const h3_generation_inputs *inputs, h3_model *model,
                          h3_ranks *ranks, int repeat)
{
    memset(out, 0, sizeof *out);
    out->inputs = inputs;
    out->model = model;
    out->ranks = ranks;
    out->program = "h3_generate";
    out->title = "generation";
    out->flow_count = generation->seed_count * (repeat ? 2 : 1);
    h3_status status = fill_sampling(out, generation);
    if (status != H3_OK) h3_sampling_free(out);
    return status;
}

void h3_sampling_free(h3_sampling *sampling)
{
    for (size_t i = 0; sampling->flows != NULL && i < sampling->flow_count; i++) {
        h3_flow *flow = &sampling->flows[i];
        h3_tensor *tensors[] = {&flow->video,       &flow->audio,          &flow->start_video,
                                &flow->start_audio, &flow->velocity_video, &flow->velocity_audio};
        for (size_t k = 0; k < sizeof tensors / sizeof *tensors; k++) h3_tensor_free(tensors[k]);
        free(flow->digests);
    }
    free(sampling->flows);
    free(sampling->timestep_indices);
    memset(sampling, 0, sizeof *sampling);
}
