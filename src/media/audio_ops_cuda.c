#include "media/audio_ops_cuda.h"

#ifndef H3_CUDA
h3_status h3_audio_ops_cuda(const h3_audio_ops **out, const h3_device *device)
{
    (void)out;
    return h3_error(H3_ENVIRONMENT, "this build has no audio decoder for the device \"%s\"; build with make CUDA=1", h3_device_name(device->kind));
}
#endif
