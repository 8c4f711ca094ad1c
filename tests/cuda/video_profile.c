/* Where a decode's time goes. Kinds of operations and the measured ones are in fixed tables: a decode has some thousand operations of a dozen kinds. */
#include "video_profile.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "video_cuda.h"

enum { KINDS = 64, CALLS = 1 << 16 };

typedef struct kind {
    char name[64];
    int64_t calls;
    double seconds;
    double flops, bytes; /* of all calls; products and attention have flops, the others bytes that they must read and write */
} kind;

typedef struct call {
    int kind;
    cudaEvent_t start, end;
} call;

static struct {
    const h3_video_ops *ops;
    const h3_device *device;
    kind kinds[KINDS];
    call calls[CALLS];
    int kind_count, call_count;
} profile;

static void must_cuda(cudaError_t code, const char *what)
{
    if (code == cudaSuccess) return;
    must(h3_error(H3_ENVIRONMENT, "profile, %s: %s", what, cudaGetErrorString(code)));
}

/* The kind of that name, a new one at need; the work of one call is added to it. */
static int kind_of(const char *name, double flops, double bytes)
{
    int k = 0;
    while (k < profile.kind_count && strcmp(profile.kinds[k].name, name) != 0) k++;
    if (k == KINDS) must(h3_error(H3_USAGE, "profile: more than %d kinds of operations", KINDS));
    kind *item = &profile.kinds[k];
    if (k == profile.kind_count) snprintf(profile.kinds[profile.kind_count++].name, sizeof item->name, "%s", name);
    item->calls++;
    item->flops += flops;
    item->bytes += bytes;
    return k;
}

static void begin(const char *name, double flops, double bytes)
{
    if (profile.call_count == CALLS) must(h3_error(H3_USAGE, "profile: more than %d operations; measure a shorter decode", CALLS));
    call *c = &profile.calls[profile.call_count];
    c->kind = kind_of(name, flops, bytes);
    must_cuda(cudaEventCreate(&c->start), "an event");
    must_cuda(cudaEventCreate(&c->end), "an event");
    must_cuda(cudaEventRecord(c->start, profile.device->stream), "an event");
}

static h3_status end(h3_status status)
{
    must_cuda(cudaEventRecord(profile.calls[profile.call_count++].end, profile.device->stream), "an event");
    return status;
}

static double bytes_of(const h3_tensor *t) { return t->data == NULL ? 0.0 : (double)h3_tensor_bytes(t); }

/* --- the operations, measured ---------------------------------------------------------------------------------------- */

static void begin_product(const h3_tensor *x, const h3_tensor *weight, const char *with)
{
    char name[64];
    const int64_t columns = weight->shape[0], channels = h3_tensor_count(weight) / columns;
    snprintf(name, sizeof name, "product %lld to %lld%s", (long long)channels, (long long)columns, with);
    begin(name, 2.0 * (double)h3_tensor_count(x) * (double)columns, 0.0);
}

static h3_status linear(const h3_device *device, h3_tensor *out, const h3_tensor *x, const h3_tensor *weight, const h3_tensor *bias, int separate_bias)
{
    begin_product(x, weight, "");
    return end(profile.ops->linear(device, out, x, weight, bias, separate_bias));
}

static h3_status project_heads(const h3_device *device, h3_tensor *qkv, const h3_tensor *x, const h3_tensor *weight, const h3_tensor *bias, const h3_tensor *cosine,
                               const h3_tensor *sine, float epsilon)
{
    begin_product(x, weight, ", rotated");
    return end(profile.ops->project_heads(device, qkv, x, weight, bias, cosine, sine, epsilon));
}

static h3_status project_gated(const h3_device *device, h3_tensor *out, const h3_tensor *x, const h3_tensor *weight, const h3_tensor *bias)
{
    begin_product(x, weight, ", gated");
    return end(profile.ops->project_gated(device, out, x, weight, bias));
}

static h3_status project_added(const h3_device *device, h3_tensor *out, h3_tensor *x, const h3_tensor *branch, const h3_tensor *weight, const h3_tensor *bias,
                               const h3_tensor *scale, const h3_tensor *norm, float epsilon)
{
    begin_product(branch, weight, ", added, normed");
    return end(profile.ops->project_added(device, out, x, branch, weight, bias, scale, norm, epsilon));
}

static h3_status conv(const h3_device *device, h3_tensor *out, const h3_tensor *x, const h3_tensor *weight, const h3_tensor *bias, const h3_video_conv *geometry)
{
    char name[64];
    snprintf(name, sizeof name, "convolution %lld to %lld, kernel %lld", (long long)weight->shape[1], (long long)weight->shape[0], (long long)weight->shape[2]);
    begin(name, 2.0 * (double)h3_tensor_count(out) * (double)(h3_tensor_count(weight) / weight->shape[0]), 0.0);
    return end(profile.ops->conv(device, out, x, weight, bias, geometry));
}

static h3_status attention(const h3_device *device, h3_tensor *out, const h3_tensor *qkv)
{
    begin("attention", 4.0 * (double)h3_tensor_count(qkv) / 3.0 * (double)qkv->shape[1], 0.0);
    return end(profile.ops->attention(device, out, qkv));
}

static h3_status round_to_half(const h3_device *device, h3_tensor *out, const h3_tensor *x)
{
    begin("rounding", 0.0, bytes_of(out) + bytes_of(x));
    return end(profile.ops->round(device, out, x));
}

static h3_status embed(const h3_device *device, h3_tensor *out, const h3_tensor *tokens, const h3_tensor *registers)
{
    begin("embedding", 0.0, bytes_of(out) + bytes_of(tokens));
    return end(profile.ops->embed(device, out, tokens, registers));
}

static h3_status rms_norm(const h3_device *device, h3_tensor *out, const h3_tensor *x, const h3_tensor *weight, float epsilon)
{
    begin("rms norm", 0.0, bytes_of(out) + bytes_of(x));
    return end(profile.ops->rms_norm(device, out, x, weight, epsilon));
}

static h3_status layer_norm(const h3_device *device, h3_tensor *out, const h3_tensor *x, const h3_tensor *weight, const h3_tensor *bias, float epsilon)
{
    begin("layer norm", 0.0, bytes_of(out) + bytes_of(x));
    return end(profile.ops->layer_norm(device, out, x, weight, bias, epsilon));
}

static h3_status group_norm_silu(const h3_device *device, h3_tensor *out, const h3_tensor *x, const h3_tensor *weight, const h3_tensor *bias, int64_t groups, float epsilon)
{
    begin("group norm", 0.0, bytes_of(out) + 2.0 * bytes_of(x));
    return end(profile.ops->group_norm_silu(device, out, x, weight, bias, groups, epsilon));
}

static h3_status add(const h3_device *device, h3_tensor *x, const h3_tensor *y)
{
    begin("sum", 0.0, 2.0 * bytes_of(x) + bytes_of(y));
    return end(profile.ops->add(device, x, y));
}

static h3_status cut(const h3_device *device, h3_tensor *out, const h3_tensor *x, const h3_video_window *window)
{
    begin("cutting", 0.0, 3.0 * bytes_of(out));
    return end(profile.ops->cut(device, out, x, window));
}

static h3_status join(const h3_device *device, h3_tensor *out, const h3_tensor *rows, const h3_video_join *geometry)
{
    begin("joining", 0.0, 2.0 * bytes_of(out) / (double)out->shape[0] * (double)geometry->frames);
    return end(profile.ops->join(device, out, rows, geometry));
}

static h3_status to_rgb(const h3_device *device, unsigned char *out, const h3_tensor *video, int64_t *bad)
{
    begin("pixels", 0.0, bytes_of(video) + (double)h3_tensor_count(video));
    return end(profile.ops->to_rgb(device, out, video, bad));
}

const h3_video_ops *video_profile_start(const h3_video_ops *ops, const h3_device *device)
{
    static const h3_video_ops measured = {
        .name = "measured", .linear = linear, .conv = conv, .attention = attention, .round = round_to_half, .embed = embed, .rms_norm = rms_norm,
        .project_heads = project_heads, .project_gated = project_gated, .project_added = project_added, .layer_norm = layer_norm, .group_norm_silu = group_norm_silu, .add = add, .cut = cut, .join = join,
        .to_rgb = to_rgb,
    };
    memset(&profile, 0, sizeof profile);
    profile.ops = ops;
    profile.device = device;
    return &measured;
}

/* --- the table ------------------------------------------------------------------------------------------------------- */

static int longest_first(const void *a, const void *b)
{
    const double x = ((const kind *)a)->seconds, y = ((const kind *)b)->seconds;
    return x < y ? 1 : x > y ? -1 : 0;
}

static void print_line(const kind *k, double wall)
{
    printf("       %-36s %7lld %9.4f s %5.1f %%", k->name, (long long)k->calls, k->seconds, 100.0 * k->seconds / wall);
    if (k->flops > 0.0 && k->seconds > 0.0) printf(" %8.1f TFLOP/s", k->flops / k->seconds * 1e-12);
    else if (k->bytes > 0.0 && k->seconds > 0.0) printf(" %8.1f GB/s", k->bytes / k->seconds * 1e-9);
    printf("\n");
}

double video_profile_print(double wall)
{
    double sum = 0.0;
    for (int i = 0; i < profile.call_count; i++) {
        call *c = &profile.calls[i];
        float milliseconds;
        must_cuda(cudaEventSynchronize(c->end), "waiting");
        must_cuda(cudaEventElapsedTime(&milliseconds, c->start, c->end), "a time");
        profile.kinds[c->kind].seconds += (double)milliseconds * 1e-3;
        sum += (double)milliseconds * 1e-3;
        cudaEventDestroy(c->start);
        cudaEventDestroy(c->end);
    }
    qsort(profile.kinds, (size_t)profile.kind_count, sizeof *profile.kinds, longest_first);
    for (int k = 0; k < profile.kind_count; k++) print_line(&profile.kinds[k], wall);
    printf("       %-36s %7s %9.4f s %5.1f %%\n", "outside the operations", "", wall - sum, 100.0 * (wall - sum) / wall);
    printf("       %-36s %7d %9.4f s\n", "whole", profile.call_count, wall);
    fflush(stdout);
    const double seconds = profile.call_count > 0 ? sum : NAN;
    profile.call_count = profile.kind_count = 0;
    return seconds;
}
