#include "media/audio_ops_cuda.h"

#ifdef H3_CUDA
#include <cuda_runtime_api.h>

#include "media/audio_kernels.h"

static h3_status started(const h3_audio_ops *ops, int code, const char *what)
{
    if (code == cudaSuccess) return H3_OK;
    return h3_error(H3_ENVIRONMENT, "GPU %d: audio decoder, %s: %s; look at the GPU with nvidia-smi and run again", ops->device->index, what, cudaGetErrorString((cudaError_t)code));
}

static h3_audio_convolution describe(const h3_audio_sizes *sizes, const h3_tensor *out, const h3_tensor *x, const h3_tensor *weight, const h3_tensor *bias)
{
    return (h3_audio_convolution){.x = x->data, .weight = weight->data, .bias = bias->data, .out = out->data, .batch = sizes->batch, .in = sizes->in,
                                  .out_channels = sizes->out, .length = sizes->length, .out_length = out->shape[2]};
}

static h3_status convolve(const h3_audio_ops *ops, const h3_tensor *out, const h3_tensor *x, const h3_tensor *weight, const h3_tensor *bias, int64_t dilation,
                          const h3_tensor *residual)
{
    h3_audio_sizes sizes;
    H3_TRY(h3_audio_check_convolve(&sizes, out, x, weight, bias, dilation, residual));
    h3_audio_convolution v = describe(&sizes, out, x, weight, bias);
    v.residual = residual != NULL ? residual->data : NULL;
    v.taps = sizes.kernel;
    v.step = dilation;
    v.offset = -dilation * (sizes.kernel / 2);
    v.stride = 1;
    return started(ops, h3_audio_start_convolve(&v, ops->device->stream), "convolution");
}

static h3_status convolve_up(const h3_audio_ops *ops, const h3_tensor *out, const h3_tensor *x, const h3_tensor *phases, const h3_tensor *bias, int64_t rate)
{
    h3_audio_sizes sizes;
    H3_TRY(h3_audio_check_convolve_up(&sizes, out, x, phases, bias, rate));
    h3_audio_convolution v = describe(&sizes, out, x, phases, bias);
    v.step = -1;
    v.stride = rate;
    for (int64_t r = 0; r < rate; r++) {
        h3_audio_phase phase = h3_audio_phase_of(sizes.kernel, rate, r);
        v.taps = phase.taps;
        v.offset = phase.shift;
        v.first = r;
        H3_TRY(started(ops, h3_audio_start_convolve(&v, ops->device->stream), "transposed convolution"));
        v.weight += sizes.out * sizes.in * phase.taps;
    }
    return H3_OK;
}

static h3_status activate(const h3_audio_ops *ops, const h3_tensor *out, const h3_tensor *x, const h3_tensor *filter, const h3_tensor *curve)
{
    h3_audio_sizes sizes;
    H3_TRY(h3_audio_check_activate(&sizes, out, x, filter, curve));
    return started(ops, h3_audio_start_activate(out->data, x->data, filter->data, curve->data, sizes.batch, sizes.in, sizes.length, ops->device->stream), "activation");
}

static h3_status mean(const h3_audio_ops *ops, const h3_tensor *out, const h3_tensor *const *x, int64_t count)
{
    H3_TRY(h3_audio_check_mean(out, x, count));
    if (count > H3_AUDIO_MEAN_OF) return h3_error(H3_INTEGRITY, "a mean of %lld tensors; at most %d are possible on a GPU", (long long)count, H3_AUDIO_MEAN_OF);
    h3_audio_mean v = {.out = out->data, .count = count, .elements = h3_tensor_count(out)};
    for (int64_t i = 0; i < count; i++) v.x[i] = x[i]->data;
    return started(ops, h3_audio_start_mean(&v, ops->device->stream), "mean");
}

h3_status h3_audio_ops_cuda(const h3_audio_ops **out, const h3_device *device)
{
    static h3_audio_ops ops = {NULL, convolve, convolve_up, activate, mean};
    ops.device = device;
    *out = &ops;
    return H3_OK;
}

#else

h3_status h3_audio_ops_cuda(const h3_audio_ops **out, const h3_device *device)
{
    (void)out;
    return h3_error(H3_ENVIRONMENT, "this build has no audio decoder for the device \"%s\"; build with make CUDA=1", h3_device_name(device->kind));
}

#endif
