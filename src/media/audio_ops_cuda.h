/* The audio decoder's operations on a GPU. */
#ifndef H3_MEDIA_AUDIO_OPS_CUDA_H
#define H3_MEDIA_AUDIO_OPS_CUDA_H

#include "media/audio_ops.h"

/* Built with -DH3_CUDA; without it H3_ENVIRONMENT. `device` is the process's open GPU. Work is queued on its stream; a kernel that cannot start is
 * H3_ENVIRONMENT, one that fails later shows in device->health. */
h3_status h3_audio_ops_cuda(const h3_audio_ops **out, const h3_device *device);

#endif
