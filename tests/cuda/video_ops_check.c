/* Each GPU operation of the video autoencoder beside the CPU's, on made-up values: bytes where the order of sums is shared, else a bound. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "cudnn/sdpa.h"
#include "media/video_kernels.h"
#include "video_both.h"

static void check_linear(int32_t dtype, int64_t rows, int64_t channels, int64_t columns, int separate)
{
    both x = make("x", dtype, 2, H3_SHAPE(rows, channels), 1.0f), w = make("w", dtype, 2, H3_SHAPE(columns, channels), 0.3f);
    both bias = make("bias", dtype, 1, H3_SHAPE(columns), 0.5f), out = make(NULL, dtype, 2, H3_SHAPE(rows, columns), 0);
    must(cpu_ops->linear(h3_device_cpu(), &out.host, &x.host, &w.host, &bias.host, separate));
    must(gpu_ops->linear(gpu, &out.device, &x.device, &w.device, &bias.device, separate));
    const int own = dtype == H3_F32 || channels % 8 != 0 || columns % 8 != 0; /* not cublasLt: the CPU's order */
    check_bound(distance(&out, own), own ? 0.0 : 3e-4, "linear %s %lld x %lld to %lld%s%s", type_name(dtype), (long long)rows, (long long)channels, (long long)columns,
                separate ? ", bias apart" : "", own ? ", bytes" : "");
    release(&x), release(&w), release(&bias), release(&out);
}

static void check_conv(int64_t items, int64_t frames, int64_t height, int64_t width, int64_t channels, int64_t columns, int64_t kernel, int32_t time, int32_t space)
{
    const h3_video_conv geometry = {time, space};
    both x = make("x", H3_F32, 5, H3_SHAPE(items, frames, height, width, channels), 1.0f);
    both w = make("w", H3_F32, 5, H3_SHAPE(columns, channels, kernel, kernel, kernel), 0.3f), bias = make("bias", H3_F32, 1, H3_SHAPE(columns), 0.5f);
    both out = make(NULL, H3_F32, 5, H3_SHAPE(items, (frames - 1) / time + 1, height / space, width / space, columns), 0);
    must(cpu_ops->conv(h3_device_cpu(), &out.host, &x.host, &w.host, &bias.host, &geometry));
    must(gpu_ops->conv(gpu, &out.device, &x.device, &w.device, &bias.device, &geometry));
    check_bound(distance(&out, 1), 0.0, "conv %lld x %lld x %lld x %lld, %lld to %lld, kernel %lld, strides %d %d, bytes", (long long)items, (long long)frames, (long long)height,
                (long long)width, (long long)channels, (long long)columns, (long long)kernel, time, space);
    release(&x), release(&w), release(&bias), release(&out);
}

/* --- attention ------------------------------------------------------------------------------------------------------- */

/* cuDNN where it is, with more than one row and heads that are whole 16 bytes. */
static void check_attention_name(const char *name, int32_t dtype, int64_t tokens, int64_t dim)
{
    const int fused = h3_sdpa_version() != 0 && tokens > 1 && dim % 8 == 0, asked = getenv("H3_VIDEO_ATTENTION") != NULL; /* check_operations asks with "own" */
    const char *wanted = dtype != H3_F16 ? "" : asked && dim == 64 ? "own-wgmma-" : fused && !asked ? "cudnn-" : dim == 64 ? "own-wgmma-" : h3_video_attention_fits(1, dim) ? "own-mma-" : "own-simple-";
    const int good = dtype != H3_F16 ? name[0] == 0 : strncmp(name, wanted, strlen(wanted)) == 0;
    check_bound(good ? 0.0 : INFINITY, 0.0, "attention \"%s\", wanted \"%s\"", name, wanted);
}

/* Our own kernels on the GPU, whichever the operation takes. `simple`: the one for anything. */
static void run_own(h3_tensor *out, const h3_tensor *qkv, int simple)
{
    const int64_t tiles = qkv->shape[0], tokens = qkv->shape[1], heads = qkv->shape[3], dim = qkv->shape[4];
    const int code = simple ? h3_video_start_attention_simple(gpu->stream, out->data, qkv->data, qkv->dtype == H3_F16, tiles, tokens, heads, dim)
                            : h3_video_start_attention(gpu->stream, out->data, qkv->data, tiles, tokens, heads, dim);
    if (code != 0) must(h3_error(H3_ENVIRONMENT, "own attention: CUDA error %d", code));
}

/* The operation once more on items first .. first + count - 1 has the bytes of `out`. */
static void check_attention_again(const h3_tensor *out, const h3_tensor *qkv, int64_t first, int64_t count, const char *what)
{
    int equal;
    h3_tensor again;
    int64_t shape[H3_MAX_RANK];
    const size_t in_bytes = h3_tensor_bytes(qkv) / (size_t)qkv->shape[0], out_bytes = h3_tensor_bytes(out) / (size_t)out->shape[0];
    memcpy(shape, qkv->shape, sizeof shape);
    shape[0] = count;
    const h3_tensor some = h3_tensor_view((char *)qkv->data + (size_t)first * in_bytes, qkv->dtype, 5, shape);
    const h3_tensor known = h3_tensor_view((char *)out->data + (size_t)first * out_bytes, out->dtype, 3, H3_SHAPE(count, out->shape[1], out->shape[2]));
    must(h3_device_tensor(&again, gpu, out->dtype, 3, known.shape));
    must(gpu_ops->attention(gpu, &again, &some));
    must(h3_device_equal(&equal, gpu, &again, &known));
    check_bound(equal ? 0.0 : INFINITY, 0.0, "attention %s, %s, item %lld, bytes", type_name(out->dtype), what, (long long)first);
    h3_device_free(&again, gpu);
}

static void check_attention(int32_t dtype, int64_t tiles, int64_t tokens, int64_t heads, int64_t dim)
{
    enum { REPEATS = 3 };
    char name[H3_VIDEO_KERNEL_NAME];
    const double bound = dtype == H3_F16 ? 1e-3 : 2e-6;
    both qkv = make("qkv", dtype, 5, H3_SHAPE(tiles, tokens, 3, heads, dim), 1.7f), out = make(NULL, dtype, 3, H3_SHAPE(tiles, tokens, heads * dim), 0);
    both own = {.host = out.host};
    must(h3_video_attention_name(name, gpu, dtype, tiles, tokens, heads, dim));
    check_attention_name(name, dtype, tokens, dim);
    must(cpu_ops->attention(h3_device_cpu(), &out.host, &qkv.host));
    must(gpu_ops->attention(gpu, &out.device, &qkv.device));
    check_bound(distance(&out, 0), bound, "attention %s %lld tiles, %lld tokens, %lld heads of %lld, %s", type_name(dtype), (long long)tiles, (long long)tokens, (long long)heads,
                (long long)dim, name[0] != 0 ? name : "own");
    for (int i = 0; i < REPEATS; i++) check_attention_again(&out.device, &qkv.device, 0, tiles, "repeat");
    for (int64_t i = 0; i < tiles && tiles > 1; i++) check_attention_again(&out.device, &qkv.device, i, 1, "alone");
    for (int simple = h3_video_attention_fits(dtype == H3_F16, dim) ? 0 : 1; simple < 2; simple++) {
        must(h3_device_zeros(&own.device, gpu, dtype, 3, out.host.shape));
        run_own(&own.device, &qkv.device, simple);
        check_bound(distance(&own, 0), bound, "attention %s, own %s kernel", type_name(dtype), simple ? "simple" : "mma");
        h3_device_free(&own.device, gpu);
    }
    release(&qkv), release(&out);
}

/* Milliseconds of one call, mean of some. */
static double time_attention(h3_tensor *out, const h3_tensor *qkv, int own)
{
    enum { CALLS = 10 };
    double start = 0.0;
    for (int i = 0; i <= CALLS; i++) {
        if (own) run_own(out, qkv, 0);
        else must(gpu_ops->attention(gpu, out, qkv));
        if (i == 0) {
            must(gpu->health()); /* waits */
            start = h3_clock();
        }
    }
    must(gpu->health());
    return 1e3 * (h3_clock() - start) / CALLS;
}

/* A call of the released decoder: tiles that are all alike. */
static void check_released_attention(int64_t tiles, int64_t tokens, int64_t heads, int64_t dim)
{
    char name[H3_VIDEO_KERNEL_NAME];
    h3_tensor qkv, out;
    both tile = make("qkv", H3_F16, 5, H3_SHAPE(1, tokens, 3, heads, dim), 1.7f), first = make(NULL, H3_F16, 3, H3_SHAPE(1, tokens, heads * dim), 0);
    const size_t bytes = h3_tensor_bytes(&tile.host);
    const double work = 4.0 * (double)tiles * (double)heads * (double)tokens * (double)tokens * (double)dim;
    must(h3_device_tensor(&qkv, gpu, H3_F16, 5, H3_SHAPE(tiles, tokens, 3, heads, dim)));
    must(h3_device_tensor(&out, gpu, H3_F16, 3, H3_SHAPE(tiles, tokens, heads * dim)));
    for (int64_t i = 0; i < tiles; i++) must(gpu->copy((char *)qkv.data + (size_t)i * bytes, tile.device.data, bytes));
    must(h3_video_attention_name(name, gpu, H3_F16, tiles, tokens, heads, dim));
    for (int own = 1; own >= 0; own--) {
        const double ms = time_attention(&out, &qkv, own);
        printf("       attention f16 %lld tiles, %lld tokens, %lld heads of %lld: %.3f ms, %.0f TFLOP/s, %s\n", (long long)tiles, (long long)tokens, (long long)heads, (long long)dim, ms,
               work / ms * 1e-9, own ? "own mma kernel" : name);
    }
    run_own(&first.device, &tile.device, 1);
    must(gpu->to_host(first.host.data, first.device.data, h3_tensor_bytes(&first.host)));
    must(gpu->copy(first.device.data, out.data, h3_tensor_bytes(&first.host)));
    check_bound(distance(&first, 0), 1e-3, "attention f16, released, beside the simple kernel");
    check_attention_again(&out, &qkv, 0, tiles, "released, repeat");
    check_attention_again(&out, &qkv, tiles - 1, 1, "released, alone");
    h3_device_free(&qkv, gpu);
    h3_device_free(&out, gpu);
    release(&tile), release(&first);
}

/* --- layers ---------------------------------------------------------------------------------------------------------- */

static void check_layers(int32_t dtype, int64_t tiles, int64_t own, int64_t given, int64_t heads, int64_t dim)
{
    const int64_t all = own + given + 1, width = heads * dim, pairs = dim / 8 * 3;
    const double bound = dtype == H3_F16 ? 2e-4 : 1e-6;
    both tokens = make("tokens", dtype, 3, H3_SHAPE(tiles, own, width), 1.0f), registers = make("registers", H3_F32, 2, H3_SHAPE(given, width), 1.0f);
    both stream = make("stream", H3_F32, 3, H3_SHAPE(tiles, all, width), 2.0f), weight = make("weight", H3_F32, 1, H3_SHAPE(width), 1.0f);
    both bias = make("bias", H3_F32, 1, H3_SHAPE(width), 1.0f), a = make(NULL, dtype, 3, H3_SHAPE(tiles, all, width), 0), kept = make(NULL, dtype, 3, H3_SHAPE(tiles, own, width), 0);
    must(cpu_ops->rms_norm(h3_device_cpu(), &a.host, &stream.host, &weight.host, 1e-5f));
    must(gpu_ops->rms_norm(gpu, &a.device, &stream.device, &weight.device, 1e-5f));
    check_bound(distance(&a, 0), bound, "rms norm %s, width %lld", type_name(dtype), (long long)width);
    must(cpu_ops->layer_norm(h3_device_cpu(), &kept.host, &stream.host, &weight.host, &bias.host, 1e-5f));
    must(gpu_ops->layer_norm(gpu, &kept.device, &stream.device, &weight.device, &bias.device, 1e-5f));
    check_bound(distance(&kept, 0), bound, "layer norm %s, width %lld", type_name(dtype), (long long)width);
    must(gpu->from_host(a.device.data, a.host.data, h3_tensor_bytes(&a.host))); /* the same branch on both sides */
    for (int k = 0; k < 2; k++) { /* with a norm behind it, and without */
        both sum = make(k ? NULL : "stream", dtype, 3, H3_SHAPE(tiles, all, width), 2.0f);
        h3_tensor none = {0};
        must(cpu_ops->add_norm(h3_device_cpu(), k ? &none : &sum.host, &stream.host, &a.host, &weight.host, &bias.host, 1e-5f));
        must(gpu_ops->add_norm(gpu, k ? &none : &sum.device, &stream.device, &a.device, &weight.device, &bias.device, 1e-5f));
        if (k == 0) check_bound(distance(&sum, 0), bound, "norm of a scaled sum %s, width %lld", type_name(dtype), (long long)width);
        check_bound(distance(&stream, 1), 0.0, "scaled sum %s, width %lld, bytes", type_name(dtype), (long long)width);
        release(&sum);
    }
    must(cpu_ops->embed(h3_device_cpu(), &stream.host, &tokens.host, &registers.host));
    must(gpu_ops->embed(gpu, &stream.device, &tokens.device, &registers.device));
    check_bound(distance(&stream, 1), 0.0, "embedding %s, bytes", type_name(dtype));
    both qkv = make("qkv", dtype, 5, H3_SHAPE(tiles, all, 3, heads, dim), 2.0f), cosine = make("cosine", H3_F32, 2, H3_SHAPE(all, pairs), 1.0f);
    both sine = make("sine", H3_F32, 2, H3_SHAPE(all, pairs), 1.0f);
    must(cpu_ops->rotate(h3_device_cpu(), &qkv.host, &cosine.host, &sine.host, 1e-5f));
    must(gpu_ops->rotate(gpu, &qkv.device, &cosine.device, &sine.device, 1e-5f));
    check_bound(distance(&qkv, 0), bound, "rotation %s, %lld heads of %lld", type_name(dtype), (long long)heads, (long long)dim);
    both gu = make("gu", dtype, 2, H3_SHAPE(37, 2 * width), 4.0f), gated = make(NULL, dtype, 2, H3_SHAPE(37, width), 0);
    must(cpu_ops->swiglu(h3_device_cpu(), &gated.host, &gu.host));
    must(gpu_ops->swiglu(gpu, &gated.device, &gu.device));
    check_bound(distance(&gated, 0), bound, "swiglu %s, width %lld", type_name(dtype), (long long)width);
    release(&tokens), release(&registers), release(&stream), release(&weight), release(&bias), release(&a), release(&kept), release(&qkv), release(&cosine);
    release(&sine), release(&gu), release(&gated);
}

static void check_group_norm(int64_t items, int64_t frames, int64_t side, int64_t channels, int64_t groups)
{
    both x = make("x", H3_F32, 5, H3_SHAPE(items, frames, side, side, channels), 2.0f), weight = make("weight", H3_F32, 1, H3_SHAPE(channels), 1.0f);
    both bias = make("bias", H3_F32, 1, H3_SHAPE(channels), 1.0f);
    must(cpu_ops->group_norm_silu(h3_device_cpu(), &x.host, &x.host, &weight.host, &bias.host, groups, 1e-6f));
    must(gpu_ops->group_norm_silu(gpu, &x.device, &x.device, &weight.device, &bias.device, groups, 1e-6f));
    check_bound(distance(&x, 0), 1e-6, "group norm, %lld channels, %lld groups", (long long)channels, (long long)groups);
    must(cpu_ops->add(h3_device_cpu(), &x.host, &x.host));
    must(gpu->from_host(x.device.data, x.host.data, h3_tensor_bytes(&x.host)));
    must(cpu_ops->add(h3_device_cpu(), &x.host, &x.host));
    must(gpu_ops->add(gpu, &x.device, &x.device));
    check_bound(distance(&x, 1), 0.0, "sum, bytes");
    release(&x), release(&weight), release(&bias);
}

static void check_planes(int32_t dtype)
{
    h3_video_window window = {.tile = 1, .frame = 2};
    h3_video_join join = {.channels = 3, .patch_frames = 2, .patch_side = 4, .token_frames = 3, .token_rows = 4, .token_columns = 4, .source_frame = 1, .frames = 4,
                          .target_frame = 1, .blend_frames = 2};
    must(h3_video_axis_plan(&join.rows, 40, 16, 8, 4));
    must(h3_video_axis_plan(&join.columns, 36, 16, 8, 4));
    window.rows = h3_video_axis_shrink(&join.rows, 4);
    window.columns = h3_video_axis_shrink(&join.columns, 4);
    both z = make("z", H3_F32, 4, H3_SHAPE(5, 4, 10, 9), 1.0f), cut = make(NULL, dtype, 5, H3_SHAPE(6, 3, 4, 4, 5), 0);
    must(cpu_ops->cut(h3_device_cpu(), &cut.host, &z.host, &window));
    must(gpu_ops->cut(gpu, &cut.device, &z.device, &window));
    check_bound(distance(&cut, 1), 0.0, "cut %s, bytes", type_name(dtype));
    both rows = make("rows", dtype, 3, H3_SHAPE((int64_t)join.rows.count * join.columns.count, 48, 96), 2.0f), video = make("video", dtype, 4, H3_SHAPE(6, 3, 40, 36), 2.0f);
    must(cpu_ops->join(h3_device_cpu(), &video.host, &rows.host, &join));
    must(gpu_ops->join(gpu, &video.device, &rows.device, &join));
    check_bound(distance(&video, 1), 0.0, "join %s, bytes", type_name(dtype));
    const size_t bytes = (size_t)h3_tensor_count(&video.host);
    unsigned char *ours = malloc(bytes), *theirs = malloc(bytes);
    void *codes;
    int64_t bad = -1, bad_here = -1;
    must(gpu->allocate(&codes, bytes));
    for (int k = 0; k < 2; k++) {
        must(cpu_ops->to_rgb(h3_device_cpu(), ours, &video.host, &bad_here));
        must(gpu_ops->to_rgb(gpu, codes, &video.device, &bad));
        must(gpu->to_host(theirs, codes, bytes));
        check_bound(bad == bad_here && bad == 2 * k && (k == 1 || memcmp(ours, theirs, bytes) == 0) ? 0.0 : INFINITY, 0.0, "pixels %s, %d bad, bytes", type_name(dtype), 2 * k);
        if (dtype == H3_F16) ((uint16_t *)video.host.data)[7] = 0x7c00, ((uint16_t *)video.host.data)[9] = 0x7e01;
        else ((float *)video.host.data)[7] = -INFINITY, ((float *)video.host.data)[9] = NAN;
        must(gpu->from_host(video.device.data, video.host.data, h3_tensor_bytes(&video.host)));
    }
    gpu->release(codes);
    free(ours);
    free(theirs);
    release(&z), release(&cut), release(&rows), release(&video);
}

void check_operations(const h3_device *device, const h3_video_ops *ops, int large)
{
    gpu = device;
    gpu_ops = ops;
    cpu_ops = h3_video_ops_cpu();
    static const int32_t TYPES[] = {H3_F32, H3_F16};
    for (int k = 0; k < 2; k++) {
        check_linear(TYPES[k], 37, 24, 70, 0);
        check_linear(TYPES[k], 130, 5, 3, 1);
        check_linear(TYPES[k], 65, 64, 96, 0);
        check_linear(TYPES[k], 65, 64, 96, 1);
        check_attention(TYPES[k], 3, 19, 2, 16);
        check_attention(TYPES[k], 2, 1, 2, 16);
        check_attention(TYPES[k], 1, 131, 1, 16);
        check_attention(TYPES[k], 1, 257, 2, 32);
        check_attention(TYPES[k], 1, 193, 1, 64);
        check_attention(TYPES[k], 1, 40, 1, 24);
        check_attention(TYPES[k], 2, 40, 1, 20);
        check_layers(TYPES[k], 2, 21, 3, 2, 16);
        check_layers(TYPES[k], 1, 6, 1, 3, 9);
        check_layers(TYPES[k], 1, 3, 2, 3, 64);   /* heads as released, and not four of them for each warp */
        check_layers(TYPES[k], 1, 2, 1, 19, 108); /* more than a block holds of a row */
        check_planes(TYPES[k]);
    }
    check_own_products(large);
    char *before = variable_for_now("H3_VIDEO_ATTENTION", "own"); /* the one for Hopper GPUs */
    check_attention(H3_F16, 2, 200, 2, 64);
    check_attention(H3_F16, 1, 96, 1, 64); /* one tile of keys */
    check_attention(H3_F16, 3, 5, 2, 64);
    check_attention(H3_F16, 1, 700, 1, 64); /* more tiles than places */
    check_attention(H3_F16, 1, 40, 1, 24); /* which it does not take */
    if (large) check_released_attention(28, 1797, 32, 64);
    variable_back("H3_VIDEO_ATTENTION", before);
    check_conv(1, 1, 12, 10, 3, 16, 3, 1, 1);
    check_conv(2, 3, 6, 8, 16, 20, 3, 1, 1);
    check_conv(1, 5, 8, 8, 12, 70, 3, 2, 2);
    check_conv(1, 1, 8, 6, 9, 5, 3, 1, 2);
    check_conv(2, 2, 4, 4, 8, 12, 1, 1, 1);
    check_group_norm(2, 2, 6, 16, 8);
    if (!large) return;
    check_linear(H3_F16, 1797, 2048, 6144, 0);
    check_linear(H3_F16, 1797, 8192, 2048, 0);
    check_attention(H3_F16, 1, 1797, 4, 64);
    check_released_attention(28, 1797, 32, 64);
    check_layers(H3_F16, 1, 1792, 4, 32, 64);
    check_conv(1, 1, 64, 64, 128, 256, 3, 1, 1);
    check_group_norm(1, 1, 64, 256, 32);
}
