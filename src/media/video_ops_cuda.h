/* The video autoencoder's operations on a GPU. */
#ifndef H3_MEDIA_VIDEO_OPS_CUDA_H
#define H3_MEDIA_VIDEO_OPS_CUDA_H

#include "media/video_ops.h"

/* Built with -DH3_CUDA; without it H3_ENVIRONMENT. Work is queued on the device's stream; what cannot start is H3_ENVIRONMENT, what fails later shows
 * in device->health. FP32 products have the CPU's bits. F16 products and attention are our own kernels' on a Hopper GPU where those take the shape (video_kernels.h); else, and with
 * H3_VIDEO_KERNELS=library in the environment, products are cublasLt's (no split-K, FP32 accumulators, the algorithm that its heuristic puts first for a shape) and attention is cuDNN's
 * where that takes the shape (cudnn/sdpa.h), else another of our own. All of them repeat on one kind of GPU and library. */
h3_status h3_video_ops_cuda(const h3_video_ops **out);

/* The linear operation in F16 by cublasLt, whichever the operation takes: to compare with. */
h3_status h3_video_cublas_linear(const h3_device *device, h3_tensor *out, const h3_tensor *x, const h3_tensor *weight, const h3_tensor *bias, int separate_bias);

enum { H3_VIDEO_KERNEL_NAME = 80 };
/* Which kernel the operation `attention` takes for qkv [tiles,tokens,3,heads,dim] on a GPU, "" where there is only one (a CPU, or F32). What cuDNN's name
 * says, library version, engine and its knobs, decides the bits. May compile for a good part of a second, once a process and shape. */
h3_status h3_video_attention_name(char out[H3_VIDEO_KERNEL_NAME], const h3_device *device, int32_t dtype, int64_t tiles, int64_t tokens, int64_t heads, int64_t dim);

/* Which kernels the decoder's products take on a GPU: the library and its version, before them the contract of our own kernel's sums and "+" where that takes all of the blocks' products (width
 * to 3 width and to width, width to 2 ffn, ffn to width), so that the library is left with those before and behind the blocks; "" where there is only one. */
void h3_video_products_name(char out[H3_VIDEO_KERNEL_NAME], const h3_device *device, int32_t dtype, int64_t width, int64_t ffn);

/* The CPU's, or a GPU's. */
h3_status h3_video_ops_for(const h3_video_ops **out, const h3_device *device);

#endif
