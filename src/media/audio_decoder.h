/* The audio autoencoder's decoder: from latents to sound, in float32 throughout (audio-vae.md). */
#ifndef H3_MEDIA_AUDIO_DECODER_H
#define H3_MEDIA_AUDIO_DECODER_H

#include "media/audio_ops.h"
#include "media/audio_weights.h"
#include "media/sound.h"

typedef struct h3_audio_decoder h3_audio_decoder;

/* Reads the parameters, folds the weight normalisation and puts them on the operations' device. The weights may be freed afterwards. Caller frees with
 * h3_audio_decoder_free. */
h3_status h3_audio_decoder_open(h3_audio_decoder **out, const h3_audio_weights *weights, const h3_audio_ops *ops);
void h3_audio_decoder_free(h3_audio_decoder *decoder);
/* `beat` is called now and then while a sound is decoded: before every block of a stage. For signs of life; NULL: nobody is told. */
void h3_audio_decoder_watch(h3_audio_decoder *decoder, void (*beat)(void *user), void *user);

/* `z`: host F32 [channels, latent_channels, L], after denormalisation (h3_audio_denormalise); the channels of a sound are items of a batch that never mix. `out`
 * gets channels x hop * L samples within [-1,1] (caller frees). The same bits on every device, for any number of threads, whatever else is in the batch.
 * H3_INTEGRITY for another shape, H3_FAILED when z holds, or the decoder makes, anything that is no finite number. */
h3_status h3_audio_decode(h3_sound *out, const h3_audio_decoder *decoder, const h3_tensor *z);

#endif
