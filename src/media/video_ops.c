/* The video autoencoder's row-wise layers on the CPU, and the table of all its operations. Sums are in double, elements in ascending order. */
#include "media/video_cpu.h"

const float h3_video_pixel_mean[H3_VIDEO_COLOURS] = {0.485f, 0.456f, 0.406f}, h3_video_pixel_std[H3_VIDEO_COLOURS] = {0.229f, 0.224f, 0.225f};

static h3_status embed(const h3_device *device, h3_tensor *out, const h3_tensor *tokens, const h3_tensor *registers)
{
    const int64_t all = out->shape[1], width = out->shape[2], own = tokens->shape[1], given = registers->data == NULL ? 0 : registers->shape[0];
    (void)device;
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < out->shape[0] * all; row++) {
        const int64_t item = row / all, token = row % all;
        for (int64_t i = 0; i < width; i++) {
            float value = 0.0f;
            if (token < own) value = h3_load(tokens, (item * own + token) * width + i);
            else if (token < own + given) value = h3_load(registers, (token - own) * width + i);
            h3_store(out, row * width + i, value);
        }
    }
    return H3_OK;
}

/* 1 / sqrt(mean of squares + epsilon) of one row. */
static float inverse_rms(const h3_tensor *x, int64_t start, int64_t width, float epsilon)
{
    double sum = 0.0;
    for (int64_t i = 0; i < width; i++) {
        const double value = (double)h3_load(x, start + i);
        sum += value * value;
    }
    return 1.0f / sqrtf((float)(sum / (double)width) + epsilon);
}

static h3_status rms_norm(const h3_device *device, h3_tensor *out, const h3_tensor *x, const h3_tensor *weight, float epsilon)
{
    const int64_t width = weight->shape[0], rows = h3_tensor_count(x) / width;
    (void)device;
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        const float inverse = inverse_rms(x, row * width, width, epsilon);
        for (int64_t i = 0; i < width; i++) h3_store(out, row * width + i, h3_load(x, row * width + i) * inverse * h3_load(weight, i));
    }
    return H3_OK;
}

static void rotate_head(h3_tensor *qkv, int64_t start, int64_t dim, const float *cosine, const float *sine, int64_t pairs, float epsilon)
{
    const int32_t dtype = qkv->dtype;
    const float inverse = inverse_rms(qkv, start, dim, epsilon);
    for (int64_t i = 0; i < dim; i++) h3_store(qkv, start + i, h3_load(qkv, start + i) * inverse);
    for (int64_t d = 0; d < pairs; d++) {
        const float a = h3_load(qkv, start + d), b = h3_load(qkv, start + pairs + d);
        h3_store(qkv, start + d, h3_rounded(dtype, a * cosine[d]) + h3_rounded(dtype, -b * sine[d]));
        h3_store(qkv, start + pairs + d, h3_rounded(dtype, b * cosine[d]) + h3_rounded(dtype, a * sine[d]));
    }
}

static h3_status rotate(const h3_device *device, h3_tensor *qkv, const h3_tensor *cosine, const h3_tensor *sine, float epsilon)
{
    const int64_t tokens = qkv->shape[1], heads = qkv->shape[3], dim = qkv->shape[4], pairs = cosine->shape[1];
    (void)device;
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < qkv->shape[0] * tokens; row++) {
        const int64_t angle = row % tokens * pairs;
        for (int64_t head = 0; head < 2 * heads; head++) /* q, then k */
            rotate_head(qkv, (row * 3 * heads + head) * dim, dim, (const float *)cosine->data + angle, (const float *)sine->data + angle, pairs, epsilon);
    }
    return H3_OK;
}

static h3_status swiglu(const h3_device *device, h3_tensor *out, const h3_tensor *x)
{
    const int64_t width = out->shape[out->rank - 1], rows = h3_tensor_count(out) / width;
    (void)device;
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < width; i++) {
            const float value = h3_load(x, 2 * row * width + i), gate = h3_load(x, (2 * row + 1) * width + i);
            h3_store(out, row * width + i, value * h3_rounded(out->dtype, h3_silu_f32(gate)));
        }
    return H3_OK;
}

static h3_status add_norm(const h3_device *device, h3_tensor *out, h3_tensor *x, const h3_tensor *branch, const h3_tensor *scale, const h3_tensor *weight,
                          float epsilon)
{
    const int64_t width = scale->shape[0], count = h3_tensor_count(x);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < count; i++) {
        const float product = h3_load(branch, i) * h3_load(scale, i % width);
        h3_store(x, i, h3_load(x, i) + product);
    }
    if (out->data != NULL) return rms_norm(device, out, x, weight, epsilon);
    return H3_OK;
}

/* --- a product and what follows it ----------------------------------------------------------------------------------- */

h3_status h3_video_heads_apart(const h3_video_ops *ops, const h3_device *device, h3_tensor *qkv, const h3_tensor *x, const h3_tensor *weight, const h3_tensor *bias,
                               const h3_tensor *cosine, const h3_tensor *sine, float epsilon)
{
    H3_TRY(ops->linear(device, qkv, x, weight, bias, 0));
    return ops->rotate(device, qkv, cosine, sine, epsilon);
}

h3_status h3_video_gated_apart(const h3_video_ops *ops, const h3_device *device, h3_tensor *out, const h3_tensor *x, const h3_tensor *weight, const h3_tensor *bias)
{
    const int64_t columns = weight->shape[0];
    h3_tensor both;
    H3_TRY(h3_device_tensor(&both, device, out->dtype, 2, H3_SHAPE(2 * h3_tensor_count(out) / columns, columns)));
    h3_status status = ops->linear(device, &both, x, weight, bias, 0);
    if (status == H3_OK) status = ops->swiglu(device, out, &both);
    h3_device_free(&both, device); /* on a GPU to the pool, which the stream orders */
    return status;
}

h3_status h3_video_added_apart(const h3_video_ops *ops, const h3_device *device, h3_tensor *out, h3_tensor *x, const h3_tensor *branch, const h3_tensor *weight,
                               const h3_tensor *bias, const h3_tensor *scale, const h3_tensor *norm, float epsilon)
{
    h3_tensor sum;
    H3_TRY(h3_device_tensor(&sum, device, branch->dtype, x->rank, x->shape));
    h3_status status = ops->linear(device, &sum, branch, weight, bias, 0);
    if (status == H3_OK) status = ops->add_norm(device, out, x, &sum, scale, norm, epsilon);
    h3_device_free(&sum, device);
    return status;
}

static h3_status project_heads(const h3_device *device, h3_tensor *qkv, const h3_tensor *x, const h3_tensor *weight, const h3_tensor *bias, const h3_tensor *cosine,
                               const h3_tensor *sine, float epsilon)
{
    return h3_video_heads_apart(h3_video_ops_cpu(), device, qkv, x, weight, bias, cosine, sine, epsilon);
}

static h3_status project_gated(const h3_device *device, h3_tensor *out, const h3_tensor *x, const h3_tensor *weight, const h3_tensor *bias)
{
    return h3_video_gated_apart(h3_video_ops_cpu(), device, out, x, weight, bias);
}

static h3_status project_added(const h3_device *device, h3_tensor *out, h3_tensor *x, const h3_tensor *branch, const h3_tensor *weight, const h3_tensor *bias,
                               const h3_tensor *scale, const h3_tensor *norm, float epsilon)
{
    return h3_video_added_apart(h3_video_ops_cpu(), device, out, x, branch, weight, bias, scale, norm, epsilon);
}

static h3_status layer_norm(const h3_device *device, h3_tensor *out, const h3_tensor *x, const h3_tensor *weight, const h3_tensor *bias, float epsilon)
{
    const int64_t kept = out->shape[1], all = x->shape[1], width = x->shape[2];
    (void)device;
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < out->shape[0] * kept; row++) {
        const int64_t from = (row / kept * all + row % kept) * width;
        double sum = 0.0, squares = 0.0;
        for (int64_t i = 0; i < width; i++) sum += (double)h3_load(x, from + i);
        const double mean = sum / (double)width;
        for (int64_t i = 0; i < width; i++) squares += ((double)h3_load(x, from + i) - mean) * ((double)h3_load(x, from + i) - mean);
        const float inverse = 1.0f / sqrtf((float)(squares / (double)width) + epsilon);
        for (int64_t i = 0; i < width; i++)
            h3_store(out, row * width + i, (h3_load(x, from + i) - (float)mean) * inverse * h3_load(weight, i) + h3_load(bias, i));
    }
    return H3_OK;
}

/* Mean and 1 / sqrt(variance + epsilon) of channels first .. first + count - 1 of all pixels of a frame. */
static void group_statistics(const float *frame, int64_t pixels, int64_t channels, int64_t first, int64_t count, float epsilon, float *mean, float *inverse)
{
    double sum = 0.0, squares = 0.0;
    const double size = (double)(pixels * count);
    for (int64_t p = 0; p < pixels; p++)
        for (int64_t c = first; c < first + count; c++) sum += (double)frame[p * channels + c];
    const double middle = sum / size;
    for (int64_t p = 0; p < pixels; p++)
        for (int64_t c = first; c < first + count; c++) {
            const double d = (double)frame[p * channels + c] - middle;
            squares += d * d;
        }
    *mean = (float)middle;
    *inverse = 1.0f / sqrtf((float)(squares / size) + epsilon);
}

static h3_status group_norm_silu(const h3_device *device, h3_tensor *out, const h3_tensor *x, const h3_tensor *weight, const h3_tensor *bias, int64_t groups,
                                 float epsilon)
{
    const int64_t channels = x->shape[4], pixels = x->shape[2] * x->shape[3], count = channels / groups;
    const float *w = weight->data, *b = bias->data;
    (void)device;
#pragma omp parallel for schedule(static)
    for (int64_t task = 0; task < x->shape[0] * x->shape[1] * groups; task++) {
        const int64_t start = task / groups * pixels * channels, first = task % groups * count;
        const float *from = (const float *)x->data + start;
        float *to = (float *)out->data + start, mean, inverse;
        group_statistics(from, pixels, channels, first, count, epsilon, &mean, &inverse);
        for (int64_t p = 0; p < pixels; p++)
            for (int64_t c = first; c < first + count; c++) to[p * channels + c] = h3_silu_f32((from[p * channels + c] - mean) * inverse * w[c] + b[c]);
    }
    return H3_OK;
}

static h3_status round_to_half(const h3_device *device, h3_tensor *out, const h3_tensor *x)
{
    const int64_t count = h3_tensor_count(x);
    const float *from = x->data;
    uint16_t *to = out->data;
    (void)device;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < count; i++) to[i] = h3_f32_to_f16(from[i]);
    return H3_OK;
}

static h3_status add(const h3_device *device, h3_tensor *x, const h3_tensor *y)
{
    const int64_t count = h3_tensor_count(x);
    float *to = x->data;
    const float *from = y->data;
    (void)device;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < count; i++) to[i] += from[i];
    return H3_OK;
}

const h3_video_ops *h3_video_ops_cpu(void)
{
    static const h3_video_ops ops = {
        .name = "cpu",
        .linear = h3_video_cpu_linear,
        .conv = h3_video_cpu_conv,
        .attention = h3_video_cpu_attention,
        .round = round_to_half,
        .embed = embed,
        .rms_norm = rms_norm,
        .rotate = rotate,
        .swiglu = swiglu,
        .add_norm = add_norm,
        .project_heads = project_heads,
        .project_gated = project_gated,
        .project_added = project_added,
        .layer_norm = layer_norm,
        .group_norm_silu = group_norm_silu,
        .add = add,
        .cut = h3_video_cpu_cut,
        .join = h3_video_cpu_join,
        .to_rgb = h3_video_cpu_to_rgb,
    };
    return &ops;
}
