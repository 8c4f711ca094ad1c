/* What the operations of every device share: checks of their tensors, and the order of a transposed convolution's weights. */
#include "media/audio_ops.h"

#include "media/audio_ops_cuda.h"

h3_status h3_audio_ops_for(const h3_audio_ops **out, const h3_device *device)
{
    *out = h3_audio_ops_cpu();
    return device->kind == H3_DEVICE_CPU ? H3_OK : h3_audio_ops_cuda(out, device);
}

h3_audio_phase h3_audio_phase_of(int64_t kernel, int64_t rate, int64_t r)
{
    int64_t padding = (kernel - rate) / 2, first = (r + padding) % rate;
    return (h3_audio_phase){first, (kernel - first + rate - 1) / rate, (r + padding - first) / rate};
}

static h3_status refuse(const char *what) { return h3_error(H3_INTEGRITY, "audio operation: %s; the decoder was built wrongly", what); }

static int is_dense(const h3_tensor *t, int32_t rank)
{
    int good = t->data != NULL && t->dtype == H3_F32 && t->rank == rank;
    for (int32_t i = 0; good && i < rank; i++) good = t->shape[i] > 0;
    return good;
}

static int has_shape(const h3_tensor *t, int64_t a, int64_t b, int64_t c) { return is_dense(t, 3) && t->shape[0] == a && t->shape[1] == b && t->shape[2] == c; }

static h3_status check_bias(const h3_tensor *bias, int64_t channels)
{
    if (bias->data == NULL) return H3_OK;
    return is_dense(bias, 1) && bias->shape[0] == channels ? H3_OK : refuse("the bias does not fit the output channels");
}

h3_status h3_audio_check_convolve(h3_audio_sizes *sizes, const h3_tensor *out, const h3_tensor *x, const h3_tensor *weight, const h3_tensor *bias, int64_t dilation,
                                  const h3_tensor *residual)
{
    if (!is_dense(x, 3) || !is_dense(weight, 3)) return refuse("input and weight must be F32 of three dimensions");
    *sizes = (h3_audio_sizes){x->shape[0], x->shape[1], weight->shape[0], x->shape[2], weight->shape[2]};
    if (weight->shape[1] != sizes->in || sizes->kernel % 2 == 0 || dilation < 1) return refuse("the weight does not fit the input");
    if (!has_shape(out, sizes->batch, sizes->out, sizes->length) || out->data == x->data) return refuse("the output does not fit the convolution");
    if (residual != NULL && !has_shape(residual, sizes->batch, sizes->out, sizes->length)) return refuse("the residual does not fit the output");
    return check_bias(bias, sizes->out);
}

h3_status h3_audio_check_convolve_up(h3_audio_sizes *sizes, const h3_tensor *out, const h3_tensor *x, const h3_tensor *phases, const h3_tensor *bias, int64_t rate)
{
    if (!is_dense(x, 3) || !is_dense(phases, 3)) return refuse("input and weight must be F32 of three dimensions");
    *sizes = (h3_audio_sizes){x->shape[0], x->shape[1], phases->shape[1], x->shape[2], phases->shape[2]};
    if (phases->shape[0] != sizes->in || rate < 1 || sizes->kernel < rate || (sizes->kernel - rate) % 2 != 0) return refuse("the transposed weight does not fit the input");
    if (!has_shape(out, sizes->batch, sizes->out, sizes->length * rate) || out->data == x->data) return refuse("the output does not fit the transposed convolution");
    return check_bias(bias, sizes->out);
}

h3_status h3_audio_check_activate(h3_audio_sizes *sizes, const h3_tensor *out, const h3_tensor *x, const h3_tensor *filter, const h3_tensor *curve)
{
    if (!is_dense(x, 3) || !has_shape(out, x->shape[0], x->shape[1], x->shape[2]) || out->data == x->data) return refuse("the output does not fit the activation");
    *sizes = (h3_audio_sizes){x->shape[0], x->shape[1], x->shape[1], x->shape[2], H3_AUDIO_TAPS};
    if (!is_dense(filter, 1) || filter->shape[0] != H3_AUDIO_TAPS) return refuse("the filter must have 12 taps");
    if (!is_dense(curve, 2) || curve->shape[0] != 2 || curve->shape[1] != sizes->in) return refuse("the curve does not fit the channels");
    return H3_OK;
}

h3_status h3_audio_check_mean(const h3_tensor *out, const h3_tensor *const *x, int64_t count)
{
    if (count < 1 || !is_dense(out, 3)) return refuse("a mean of nothing");
    for (int64_t i = 0; i < count; i++)
        if (!has_shape(x[i], out->shape[0], out->shape[1], out->shape[2])) return refuse("the tensors of a mean have different shapes");
    return H3_OK;
}

h3_status h3_audio_phases(h3_tensor *out, const h3_tensor *w, int64_t rate)
{
    *out = (h3_tensor){0};
    if (!is_dense(w, 3) || rate < 1 || w->shape[2] < rate || (w->shape[2] - rate) % 2 != 0) return refuse("a transposed weight that does not fit its rate");
    int64_t in = w->shape[0], channels = w->shape[1], kernel = w->shape[2];
    H3_TRY(h3_tensor_new(out, H3_F32, 3, w->shape));
    const float *from = w->data;
    float *to = out->data;
    for (int64_t r = 0; r < rate; r++) {
        h3_audio_phase phase = h3_audio_phase_of(kernel, rate, r);
        for (int64_t o = 0; o < channels; o++)
            for (int64_t c = 0; c < in; c++)
                for (int64_t j = 0; j < phase.taps; j++) *to++ = from[(c * channels + o) * kernel + phase.first + j * rate];
    }
    return H3_OK;
}
