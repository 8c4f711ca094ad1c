/*
 * What the audio decoder computes with: four operations on dense F32 tensors of one device, [batch, channels, length] each. The decoder (audio_decoder.h)
 * knows no device by name.
 *
 * Every operation has one order of its sums, whatever the device, the vector width and the number of threads: the bits are the same everywhere.
 */
#ifndef H3_MEDIA_AUDIO_OPS_H
#define H3_MEDIA_AUDIO_OPS_H

#include "graph/device.h"

enum { H3_AUDIO_TAPS = 12 };

typedef struct h3_audio_ops {
    const h3_device *device;
    /* out[b,o,n] = bias[o] + sum over c ascending, k ascending of weight[o,c,k] * x[b, c, n + dilation * (k - (K-1)/2)], one fused step a term, x
     * outside its length read as 0 (such terms take part); then + residual[b,o,n] when there is one, which may be `out` itself. K is odd.
     * weight [O,C,K]; bias [O], or absent: 0. */
    h3_status (*convolve)(const struct h3_audio_ops *ops, const h3_tensor *out, const h3_tensor *x, const h3_tensor *weight, const h3_tensor *bias, int64_t dilation,
                          const h3_tensor *residual);
    /* out[b,o,n] = bias[o] + sum over c ascending, k ascending with k = n + p mod rate, of w[c,o,k] * x[b, c, (n + p - k) / rate], p = (K - rate) / 2, fused
     * and padded likewise. out is `rate` times as long as x. `phases` [C,O,K] holds w's elements as h3_audio_phases puts them. */
    h3_status (*convolve_up)(const struct h3_audio_ops *ops, const h3_tensor *out, const h3_tensor *x, const h3_tensor *phases, const h3_tensor *bias, int64_t rate);
    /* The alias-free activation (audio-vae.md 2.4; order in audio_snake.h). filter [12]. curve [2,C]: e^alpha, 1 / (e^beta + 1e-9). */
    h3_status (*activate)(const struct h3_audio_ops *ops, const h3_tensor *out, const h3_tensor *x, const h3_tensor *filter, const h3_tensor *curve);
    /* out = ((x0 + x1) + ...) / count; `out` may be one of them. */
    h3_status (*mean)(const struct h3_audio_ops *ops, const h3_tensor *out, const h3_tensor *const *x, int64_t count);
} h3_audio_ops;

/* The operations of an open device. H3_ENVIRONMENT when this build has none for it. */
h3_status h3_audio_ops_for(const h3_audio_ops **out, const h3_device *device);
/* The CPU's without vector instructions: the twin that tests compare with. */
const h3_audio_ops *h3_audio_ops_plain(void);
/* The CPU's with the widest instructions that this processor has. */
const h3_audio_ops *h3_audio_ops_cpu(void);

/* A transposed convolution is `rate` ordinary ones, of which number r makes every rate-th sample from r on with the taps k = r + p mod rate. The host
 * tensor w [C,O,K] becomes a new one (caller frees) of the same size: for r ascending, [O][C][taps of r, k ascending]. */
h3_status h3_audio_phases(h3_tensor *out, const h3_tensor *w, int64_t rate);

/* Phase r of a transposed convolution: its first tap, the number of taps, and its first sample's offset: tap j meets x[q + shift - j]. */
typedef struct h3_audio_phase {
    int64_t first, taps, shift;
} h3_audio_phase;
h3_audio_phase h3_audio_phase_of(int64_t kernel, int64_t rate, int64_t r);

/* What every device's operations check first; H3_INTEGRITY for tensors that do not fit together. */
typedef struct h3_audio_sizes {
    int64_t batch, in, out, length, kernel; /* length of x */
} h3_audio_sizes;
h3_status h3_audio_check_convolve(h3_audio_sizes *sizes, const h3_tensor *out, const h3_tensor *x, const h3_tensor *weight, const h3_tensor *bias, int64_t dilation,
                                  const h3_tensor *residual);
h3_status h3_audio_check_convolve_up(h3_audio_sizes *sizes, const h3_tensor *out, const h3_tensor *x, const h3_tensor *phases, const h3_tensor *bias, int64_t rate);
h3_status h3_audio_check_activate(h3_audio_sizes *sizes, const h3_tensor *out, const h3_tensor *x, const h3_tensor *filter, const h3_tensor *curve);
h3_status h3_audio_check_mean(const h3_tensor *out, const h3_tensor *const *x, int64_t count);

#endif
