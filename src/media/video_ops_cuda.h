/* The video autoencoder's operations on a GPU. */
#ifndef H3_MEDIA_VIDEO_OPS_CUDA_H
#define H3_MEDIA_VIDEO_OPS_CUDA_H

#include "media/video_ops.h"

/* Built with -DH3_CUDA; without it H3_ENVIRONMENT. Work is queued on the device's stream; what cannot start is H3_ENVIRONMENT, what fails later shows
 * in device->health. FP32 products have the CPU's bits; F16 products are cublasLt's (no split-K, FP32 accumulators, the algorithm that its heuristic puts
 * first for a shape), so that they repeat on one kind of GPU and library. */
h3_status h3_video_ops_cuda(const h3_video_ops **out);

/* The CPU's, or a GPU's. */
h3_status h3_video_ops_for(const h3_video_ops **out, const h3_device *device);

#endif
