/* Pictures and sound of one seed, the candidate's beside the provider's: metrics of media.md, judged by the contract's limits; sound apart from pictures. */
#ifndef H3_QUALIFY_COMPARE_MEDIA_H
#define H3_QUALIFY_COMPARE_MEDIA_H

#include "qualify/contract.h"
#include "qualify/media_evidence.h"

/* A figure beside its limit. Identical pictures or sounds have an infinite PSNR or SNR: `identical`, null in JSON, and within every limit. */
typedef struct h3_judged {
    double value;  /* INFINITY when identical; NaN when there is none, which holds no limit */
    double limit, margin;
    int identical, ok;
} h3_judged;

/* The limits on what is seen and heard, in this order from H3_LIMIT_PSNR_GLOBAL on. */
enum { H3_MEDIA_LIMITS = H3_LIMIT_LATENT_ERROR };
/* "picture" or "sound". */
const char *h3_media_limit_subject(int limit);

typedef struct h3_compare_media {
    h3_judged judged[H3_MEDIA_LIMITS];
    int picture_ok, sound_ok;
    int repeated;         /* the reference was made twice, and ended with the same latents */
    char sha256[2][2][H3_SHA256_HEX]; /* [reference, candidate][pictures, sound], decoded */
    cJSON *video, *audio; /* the whole reports (media.md section 7); owned */
} h3_compare_media;

/*
 * H3_INTEGRITY when size, length, channels or rate differ: then there is no figure. H3_FAILED when there is nothing to compare, when a sample is no number, or
 * when the metrics find a difference between the reference and itself (the first self-control). A figure beyond its limit, or a NaN, is no error here.
 * `facts` are those of the reference and of the candidate.
 */
h3_status h3_compare_media_run(h3_compare_media *out, const h3_media *reference, const h3_media *candidate, const h3_media_facts facts[2],
                               const h3_acceptance *acceptance);
void h3_compare_media_free(h3_compare_media *media);

/* The second self-control: in the provider's report, its repeat of `seed` ended with the very latents that were decoded. *repeated: there is a repeat. H3_FAILED when
 * it ended with others. */
h3_status h3_compare_media_repeat(int *repeated, const cJSON *provider, int index);

/* {"psnr_global_db": {"value","identical","limit","margin","ok"},...}; caller deletes. */
h3_status h3_judged_json(cJSON **out, const h3_judged judged[H3_MEDIA_LIMITS]);
/* {"reference_itself": {...}, "reference_repeat": {...} or null} */
h3_status h3_compare_controls_json(cJSON **out, const h3_compare_media *media);

#endif
