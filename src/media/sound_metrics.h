/* How far a sound is from a reference (media.md section 5). Float32 samples are read as double; sums run over ascending samples, channel after channel. */
#ifndef H3_MEDIA_SOUND_METRICS_H
#define H3_MEDIA_SOUND_METRICS_H

#include <cJSON.h>

#include "media/sound.h"

/* A figure that may not exist; then `value` is NaN, which no limit accepts. In JSON it is null. */
typedef struct h3_sound_figure {
    int known;
    double value;
} h3_sound_figure;

/* One channel, or all of them together ("pooled": sums over all samples of all channels; lsd_db the mean of the channels'). */
typedef struct h3_sound_distance {
    int identical;               /* no sample differs: snr_db does not exist, it would be infinite */
    int silent_reference;        /* some differ, and the reference is all zeros: snr_db does not exist */
    h3_sound_figure snr_db;      /* 10 log10(sum r^2 / sum (r-c)^2) */
    h3_sound_figure level_diff_db; /* 20 log10(rms c / rms r); unknown when either is 0 */
    h3_sound_figure correlation; /* Pearson's; 1 for identical sounds, otherwise unknown when either is constant */
    double rmse;                 /* sqrt(mean (r-c)^2) */
    double max_abs_diff;         /* of full scale 1 */
    int64_t max_channel, max_frame; /* where; the first one */
    double lsd_db;               /* log-spectral distance: mean over frames of 1024 samples, hop 256 */
    double worst_lsd_db;         /* of one frame */
    int64_t worst_channel, worst_frame;
    double reference_peak, candidate_peak;
    int64_t reference_clipped, candidate_clipped; /* samples at or beyond full scale */
} h3_sound_distance;

typedef struct h3_sound_metrics {
    int64_t channels, frames, rate;
    int64_t spectra; /* frames of the log-spectral distance */
    h3_sound_distance pooled, channel[H3_SOUND_CHANNELS];
} h3_sound_metrics;

/* H3_INTEGRITY with both values when channels, length or rate differ (then nothing is compared: no cutting, no search for a shift); H3_FAILED when either
 * sound is empty or has a sample that is no finite number. A large distance is no error here. */
h3_status h3_sound_compare(h3_sound_metrics *out, const h3_sound *reference, const h3_sound *candidate);

/* Whether the pooled figures keep the limits: identical, or snr_db >= snr_min, and lsd_db <= lsd_max. A figure that is unknown or NaN does not, nor does a
 * limit that is NaN. */
int h3_sound_accepted(const h3_sound_metrics *metrics, double snr_min, double lsd_max);

/* The report's "audio" object (media.md section 7; caller deletes): the pooled figures, "per_channel" with each channel's. */
h3_status h3_sound_metrics_json(cJSON **out, const h3_sound_metrics *metrics);

#endif
