/* Stage 5: the candidate's generation beside the provider's (qualification.md section 7). Every error is ||x - g|| / ||g|| in
 * double, x the candidate's tensor and g the provider's. */
#ifndef H3_QUALIFY_COMPARE_H
#define H3_QUALIFY_COMPARE_H

#include <cJSON.h>

#include "qualify/compare_media.h"
#include "qualify/contract.h"
#include "store/artifact.h"

/* The reports of both sides must agree in everything but the operators: plan, contract and overrides, model, machine, layout,
 * both sigma schedules (by hash), conditioning, seeds, the digests of every seed's noise, and with decoders these and size, length and rate of every
 * seed's pictures and sound. H3_INTEGRITY naming the first field that differs or is missing, H3_FAILED when there is no seed or no step. */
h3_status h3_compare_reports(const cJSON *provider, const cJSON *candidate);

/* One seed of one side. Nothing is owned. */
typedef struct h3_compare_tensors {
    const h3_tensor *condition_rows; /* NULL without keyframes */
    const h3_tensor *video_rows0, *audio_rows0, *velocity_video, *velocity_audio, *video_rows, *audio_rows;
} h3_compare_tensors;

/* Finds the datasets in a seed's artifact; H3_INTEGRITY when one is missing, or when its digest is not the report's. `report` is
 * the seed's entry in generate-<side>.json. */
h3_status h3_compare_tensors_of(h3_compare_tensors *out, const h3_artifact *artifact, const cJSON *report);

/* Figures of one modality of one seed. */
typedef struct h3_compare_figures {
    double latent_error;      /* of the final rows */
    double margin;            /* limit - error */
    int ok;                   /* latent error within the limit, every velocity error a number */
    int64_t steps;
    double *velocity_error;   /* [steps]; owned */
    int64_t worst_step;       /* of the velocities; a NaN is the worst */
} h3_compare_figures;

typedef struct h3_compare_seed {
    int64_t seed;
    h3_compare_figures video, audio;
    double worst;             /* latent error of the worse modality; NaN is the worst */
    int worst_is_audio;
    h3_compare_media *media;  /* NULL without decoders; owned, by free() too */
    int ok;
} h3_compare_seed;

/* H3_INTEGRITY when noise bytes or shapes differ: then there are no figures. H3_FAILED when there is nothing to compare. A figure
 * out of bounds or NaN is no error here: it makes `ok` 0. */
h3_status h3_compare_seed_run(h3_compare_seed *out, int64_t seed, const h3_compare_tensors *provider,
                              const h3_compare_tensors *candidate, const h3_acceptance *acceptance);
void h3_compare_seed_free(h3_compare_seed *seed);
/* Takes the media's figures over (their memory is from h3_alloc); the seed is good only when they are too. */
void h3_compare_seed_media(h3_compare_seed *seed, h3_compare_media *media);

/* Worst first; equal ones keep their order. */
void h3_compare_sort(h3_compare_seed *seeds, size_t count);

/* The worst value of a limit on pictures or sound over the seeds, and the seed that has it: of equals the first. NULL when no seed has media. */
const h3_compare_seed *h3_compare_worst_media(const h3_compare_seed *seeds, size_t count, int limit);

/* "data/compare/seed<N>.json", and what is in it: the report on one seed's media with its figures of every frame (media.md section 7). Caller deletes. */
void h3_compare_seed_path(char out[96], int64_t seed);
h3_status h3_compare_seed_json(cJSON **out, const h3_compare_seed *seed);

/* compare.json. `seeds` are sorted; `report` is one of the two reports, whose plan, contract, overrides and sampling it repeats.
 * Caller deletes. *ok: all seeds are. H3_FAILED for no seeds. */
h3_status h3_compare_json(cJSON **out, int *ok, const h3_compare_seed *seeds, size_t count, const cJSON *report,
                          const h3_acceptance *acceptance);

#endif
