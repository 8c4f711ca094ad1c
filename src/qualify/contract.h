/*
 * generation-contract.json: what both sides of the generation must do, and when their results count as equal (qualification.md
 * section 7). Its SHA-256 stands in every output.
 */
#ifndef H3_QUALIFY_CONTRACT_H
#define H3_QUALIFY_CONTRACT_H

#include <cJSON.h>

#include "base/error.h"
#include "base/text.h"

enum { H3_MAX_SEEDS = 64 };

/* The figures that acceptance limits. */
enum { H3_LIMIT_PSNR_GLOBAL, H3_LIMIT_SSIM_MEAN, H3_LIMIT_AUDIO_SNR, H3_LIMIT_AUDIO_LSD, H3_LIMIT_LATENT_ERROR, H3_LIMIT_COUNT };

typedef struct h3_limit_spec {
    const char *name; /* the field of "acceptance" */
    int at_least;     /* 1: value >= limit holds; 0: value <= limit */
} h3_limit_spec;
extern const h3_limit_spec h3_limits[H3_LIMIT_COUNT];

typedef struct h3_acceptance {
    double limit[H3_LIMIT_COUNT];
} h3_acceptance;

/* Room left before the limit is broken: negative when it is, NaN for a NaN. The limit holds when the margin is >= 0, so NaN
 * fails. */
double h3_limit_margin(const h3_acceptance *acceptance, int limit, double value);
int h3_limit_holds(const h3_acceptance *acceptance, int limit, double value);

/* Replaces the limits that the object `json` names. H3_USAGE for an unknown name or a limit that is no finite number >= 0. */
h3_status h3_acceptance_read(h3_acceptance *acceptance, const cJSON *json, const char *where);

typedef struct h3_contract {
    char path[H3_PATH_MAX], sha256[H3_SHA256_HEX]; /* of the file's bytes */
    char repository[128], revision[64], variant[16];
    char config_sha256[H3_SHA256_HEX], index_sha256[H3_SHA256_HEX];
    /* "" where the contract says null: the conditioning file brings these, and a run records that file's hash */
    char prompt_sha256[H3_SHA256_HEX], reference_image_sha256[H3_SHA256_HEX], conditioning_sha256[H3_SHA256_HEX];
    int32_t anchors;         /* H3_ANCHOR_* bits */
    double condition_time;   /* level of keyframe conditions */
    size_t seed_count;
    int64_t seeds[H3_MAX_SEEDS];
    int64_t frames, width, height; /* pixels */
    int64_t points;
    double video_shift, audio_shift;
    h3_acceptance acceptance;
} h3_contract;

/* Reads and checks the file. H3_USAGE, naming file and field, for whatever is missing, unknown or not possible: what only one
 * value can mean (24 fps, 32 kHz stereo, torch's CPU generator) must have that value. */
h3_status h3_contract_read(h3_contract *out, const char *path);

/* A list of 1 to H3_MAX_SEEDS different integers in [0, 2^32), the seeds that torch's generator tells apart. Else H3_USAGE. */
h3_status h3_seeds_read(int64_t seeds[H3_MAX_SEEDS], size_t *count, const cJSON *json, const char *where);
/* A list of "first" and "last", each at most once, as H3_ANCHOR_* bits. */
h3_status h3_anchors_read(int32_t *anchors, const cJSON *json, const char *where);

#endif
