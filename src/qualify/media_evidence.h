/* The lossless evidence of one seed: PNG frames and a WAV file, and the hashes over decoded samples that make them comparable (media.md section 2). */
#ifndef H3_QUALIFY_MEDIA_EVIDENCE_H
#define H3_QUALIFY_MEDIA_EVIDENCE_H

#include <cJSON.h>

#include "media/sound.h"
#include "qualify/decoders.h"
#include "store/run.h"

/* "data/generate/<side>/seed<N>", and below it "frames/frame_<5 digits>.png" and "audio.wav"; relative to the run. */
void h3_media_folder(char out[96], const char *side, int64_t seed);
void h3_media_frame_path(char out[160], const char *folder, int64_t frame);
void h3_media_sound_path(char out[160], const char *folder);

/* What a report says of a seed's media. */
typedef struct h3_media_facts {
    h3_media_shape shape;
    char rgb_sha256[H3_SHA256_HEX];   /* of the codes, frame after frame, contiguous RGB */
    char sound_sha256[H3_SHA256_HEX]; /* of the samples, channel after channel, little-endian float32 */
} h3_media_facts;

/* {"folder", "video": {"frames","height","width","fps","pixel_format","sha256"}, "audio": {"channels","samples","rate","sample_format","sha256"}}; caller
 * deletes. */
h3_status h3_media_facts_json(cJSON **out, const h3_media_facts *facts, const char *folder);
/* The same read back; H3_INTEGRITY naming the field. `where` names the report. */
h3_status h3_media_facts_read(h3_media_facts *out, const cJSON *json, const char *where);

/* A seed's pictures and sound in memory. */
typedef struct h3_media {
    unsigned char *rgb; /* [frames][height][width][3], owned */
    int64_t frames, height, width;
    h3_sound sound;     /* owned */
} h3_media;
void h3_media_free(h3_media *media);

/* Told of every file that is done: signs of life. */
typedef struct h3_media_beat {
    void (*beat)(void *user);
    void *user;
} h3_media_beat;

/*
 * Publishes frames and sound below `folder` of the run and lists them in `files` with size and SHA-256 of the very bytes, in the order of their numbers, sound
 * last. As many frames at once as OpenMP has threads. The caller gives the folder room: what is there under these names is replaced.
 */
h3_status h3_media_write_frames(h3_run_files *files, const char *run_folder, const char *folder, const h3_media *media, const h3_media_beat *beat);
h3_status h3_media_write_sound(h3_run_files *files, const char *run_folder, const char *folder, const h3_sound *sound);

/*
 * Reads a seed's evidence: every file must be among `listed` with the bytes that were listed (each is read once, hashed and decoded from that memory), and
 * what was decoded must have shape and hashes of `facts`. H3_INTEGRITY naming the file, or what does not agree.
 */
h3_status h3_media_read(h3_media *out, const char *run_folder, const char *folder, const h3_run_files *listed, const h3_media_facts *facts, const h3_media_beat *beat);

/* H3_OK when all files are there as listed (every byte). */
h3_status h3_media_verify(const char *run_folder, const h3_run_files *files, const h3_media_beat *beat);

#endif
