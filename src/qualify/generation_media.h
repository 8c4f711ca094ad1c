/* The last part of a generation: latents of every seed to pictures and sound, as files. */
#ifndef H3_QUALIFY_GENERATION_MEDIA_H
#define H3_QUALIFY_GENERATION_MEDIA_H

#include "qualify/generation_store.h"
#include "qualify/media_evidence.h"

/* Of one seed, when it is done. */
typedef struct h3_seed_media {
    int done;
    h3_media_facts facts;
    h3_run_files files; /* owned */
} h3_seed_media;

typedef struct h3_generation_media {
    const h3_generation *generation;
    const h3_sampling *sampling;       /* on the first rank: its flows have finished */
    const h3_decoder_weights *weights;
    const h3_device *device;
    h3_ranks *ranks;                   /* NULL: alone */
    const char *program, *run_folder, *side;
    const h3_resume *resume;           /* on the first rank: where records of finished seeds are kept; NULL: nowhere */
    h3_media_shape shape;
    size_t count;
    struct { /* of this rank, for people */
        int seeds;
        double open, video, sound, files; /* seconds; files are written beside the rest */
    } spent;
    h3_seed_media *seeds;              /* [count], in the order of generation->seeds; complete on the first rank after h3_generation_media_run */
} h3_generation_media;

h3_status h3_generation_media_new(h3_generation_media *media, size_t count);
void h3_generation_media_free(h3_generation_media *media);

/*
 * Takes up what an interrupted run had finished: seeds whose record is this generation's and whose files are all there, every byte. Others are
 * forgotten. First rank. *taken is how many. H3_INTEGRITY for a record that is damaged.
 */
h3_status h3_generation_media_resume(h3_generation_media *media, size_t *taken);

/*
 * Collective. Decodes and writes the seeds that are not done: seed i of them on rank i mod N, with every decoder on that rank's device. Frames are encoded and written
 * by threads of their own while the rank decodes on. The bytes are the same for any number of ranks and threads. A finished seed leaves its record
 * beside the resumable state.
 *   H3_FAILED   something decoded is not finite
 *   H3_STOPPED  a signal came; the seeds that are done stay done
 */
h3_status h3_generation_media_run(h3_generation_media *media);

/* z of one seed: target rows back to latents [C,F,h,w], and audio rows to [channels, latent channels, A], both denormalised. New host tensors. */
h3_status h3_media_video_latents(h3_tensor *z, const h3_generation_inputs *inputs, const h3_video_config *config, const float *target_rows);
h3_status h3_media_audio_latents(h3_tensor *z, const h3_generation_inputs *inputs, const h3_audio_config *config, const float *rows);

#endif
