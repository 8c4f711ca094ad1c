/*
 * Generation: from seeds to final latents with one set of operators (qualification.md section 7, packed-layout.md, scheduler.md).
 *
 *   h3_generation         what is to be done: the plan's words against the contract's
 *   h3_generation_inputs  what is the same for all seeds: layout, schedules, conditioning
 *   h3_sampling           the loop itself, over all seeds at once and any number of ranks (generation_loop.c)
 */
#ifndef H3_QUALIFY_GENERATION_H
#define H3_QUALIFY_GENERATION_H

#include <cJSON.h>

#include "base/log.h"
#include "dist/ranks.h"
#include "graph/model.h"
#include "media/picture.h"
#include "media/video.h"
#include "model/scheduler.h"
#include "qualify/contract.h"
#include "qualify/decoders.h"
#include "qualify/plan.h"

typedef struct h3_generation {
    h3_contract contract;
    h3_layout_args layout; /* patch sizes are the model's, set by h3_generation_inputs_new */
    int64_t points;
    double video_shift, audio_shift, condition_time;
    size_t seed_count;
    int64_t seeds[H3_MAX_SEEDS];
    h3_acceptance acceptance;
    uint64_t conditioning_seed;                /* synthetic stand-ins when conditioning_file is "" */
    char conditioning_file[H3_PATH_MAX];
    char conditioning_sha256[H3_SHA256_HEX];   /* that the file must have */
    h3_decoders decoders;                      /* of the plan; points into it */
    cJSON *overrides; /* [{"field","contract","plan"}...]: every place where the plan departs from the contract. Owned */
} h3_generation;

/*
 * Reads plan->generation and the contract it names:
 *   {"contract": FILE, "layout": {"text","frames","h","w","audio","anchors","vision_rows"}, "points"?, "seeds"?,
 *    "conditioning": {"synthetic": {"seed": N}} or {"file": FILE, "sha256": HASH}}
 * points, seeds and the plan's acceptance replace the contract's, and are listed in `overrides` when they differ, as are
 * geometry, conditioning and a synthetic model. H3_USAGE, naming file and field, for anything wrong. On failure `out` is empty.
 */
h3_status h3_generation_read(h3_generation *out, const h3_plan *plan);
void h3_generation_free(h3_generation *generation);
/* Lists the model as an override when it is a folder whose config and index (h3_weights_identity) are not the contract's. */
h3_status h3_generation_model(h3_generation *generation, const cJSON *identity);

typedef struct h3_generation_inputs {
    h3_layout layout;
    h3_schedule video, audio; /* equal numbers of points */
    h3_tensor text;           /* [text, X] bf16 */
    int32_t condition_count;
    h3_tensor condition[2];   /* [1,C,1,h,w] f32, in anchor order; data NULL: still a picture */
    h3_picture picture[2];    /* the keyframes that the conditioning file has as pictures; rgb NULL: latents */
    char canvas_sha256[2][H3_SHA256_HEX]; /* of a picture's RGB bytes on the canvas, once encoded; "" for latents */
    int64_t channels;         /* C */
    int64_t video_row, audio_row; /* elements of a row */
    double condition_time;    /* level of the keyframe conditions: compared as double, noised with as float */
} h3_generation_inputs;

/*
 * Builds layout and schedules and reads or makes the conditioning. A conditioning file holds "text" [Nt,X] bf16, for each anchor
 * either latents "condition.<i>" [1,C,1,h,w] f32 or a picture "image.<i>" [H,W,3] u8 of any size, optionally "text_tags" [Nt] i64 (then
 * vision_rows does not matter), and nothing else; its bytes must have the plan's SHA-256. H3_INTEGRITY for a file that is not
 * that, or not finite. bin/h3_keyframe and scripts/export_conditioning.py make such files.
 */
h3_status h3_generation_inputs_new(h3_generation_inputs *out, const h3_generation *generation, const h3_config *config);
void h3_generation_inputs_free(h3_generation_inputs *inputs);

/* Whether a keyframe is still a picture, so that an encoder is needed (decoders.video of the plan). */
int h3_generation_has_pictures(const h3_generation_inputs *inputs);
/* Pictures become latents: brought to the canvas (the first stretched, the second covering it), encoded in the decoder's tiles with the seeded sample
 * (h3_video_keyframe). Does nothing when there is none. Only the rank that draws the noise needs it. H3_USAGE for an autoencoder that does not fit the model. */
h3_status h3_generation_encode(h3_generation_inputs *inputs, const h3_video_weights *weights, const h3_video_tiling *tiling, const h3_device *device, const h3_video_ops *ops);
/* The same for one picture, for programs: is_first says which rule brings it to the canvas of `height` x `width` pixels. `canvas_sha256` may be NULL. */
h3_status h3_keyframe_encode(h3_tensor *latents, char *canvas_sha256, const h3_picture *picture, int is_first, h3_video_encoder *encoder, int64_t height, int64_t width);

/* A seed's rows before the first step: video [video_rows, row], noised conditions first, and audio [audio_rows, row]. One
 * generator, drawn in the order conditions, video, audio. New tensors. H3_USAGE while a keyframe is still a picture. */
h3_status h3_generation_start(h3_tensor *video, h3_tensor *audio, const h3_generation_inputs *inputs, int64_t seed);

/* SHA-256 of a schedule's float32 sigmas, terminal 0 included, and of its timesteps. */
h3_status h3_schedule_sha256(char sigma[H3_SHA256_HEX], char timestep[H3_SHA256_HEX], const h3_schedule *schedule);

/* One trajectory under way: a seed, or its repeat. Tensors are on the host. */
typedef struct h3_flow {
    int64_t seed;
    int repeat;                  /* must reproduce the digests of flow number `original` */
    size_t original;
    int64_t finished;            /* steps done; the first rank's business, like all below */
    h3_tensor video, audio;      /* rows after `finished` steps, conditions first; other ranks: shapes only */
    h3_tensor start_video, start_audio; /* as drawn; not of repeats */
    h3_tensor velocity_video, velocity_audio; /* [steps, target rows, row]; of a repeat [1, ...], the step that is due */
    char (*digests)[2][H3_SHA256_HEX];        /* [steps]: of the velocities of video, audio */
} h3_flow;

typedef struct h3_sampling h3_sampling;
struct h3_sampling {
    const h3_generation_inputs *inputs;
    h3_model *model;
    h3_ranks *ranks;      /* NULL: alone, without MPI */
    const char *program;  /* speaks when the job has to be aborted */
    const char *title;    /* of the progress line */
    int64_t steps;        /* model evaluations */
    int64_t first_step;   /* steps done before this process (resumed) */
    int64_t safe_steps;   /* a safe point after every so many steps */
    size_t flow_count;
    h3_flow *flows;       /* the seeds in their order, then their repeats */
    float timestep[H3_MAX_TIMESTEPS];
    int64_t *timestep_indices;
    h3_sequence sequence; /* of the step under way */
    h3_progress progress;
    /* Called on the first rank at safe points, when all flows have finished `step` steps and their rows are those; the next evaluations may be under way. May be NULL. */
    h3_status (*save)(void *user, const h3_sampling *sampling, int64_t step);
    void *user;
};

/* Flows for all seeds, and again for their repeats; draws their noise on the first rank. `model` is this rank's range and stays
 * the caller's, as do `inputs` and `ranks`. */
h3_status h3_sampling_new(h3_sampling *out, const h3_generation *generation, const h3_generation_inputs *inputs, h3_model *model,
                          h3_ranks *ranks, int repeat);
void h3_sampling_free(h3_sampling *sampling);

/*
 * Runs all steps. For each step and flow the first rank embeds and hands on, the last evaluates the heads and returns both
 * velocities of the target rows, and the first one digests them and takes the Euler step; condition rows never change. Any
 * number of ranks gives the same bytes.
 *   H3_FAILED   a velocity or row that is not finite, a repeat with another digest, an operator that fails or falls back; the
 *               message names seed, step (from 0) and tensor
 *   H3_STOPPED  a signal came; what `save` wrote last is where to go on
 * Nobody waits at a safe point; after a signal the run ends with this step or the next. At the end all ranks learn the outcome. A failure before
 * it, with more than one rank, ends the job (h3_ranks_abort).
 */
h3_status h3_sampling_run(h3_sampling *sampling);

#endif
