/* The video decoder's own products on a Hopper GPU: beside the CPU's, beside the library's product with the kernels that follow it, rows by themselves; and how fast. */
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "media/video_kernels.h"
#include "turns.h"
#include "video_both.h"

/* A product of one kind: x [rows][channels] to out. */
typedef struct product {
    int kind;
    int64_t tiles, tokens, channels, columns, heads;
    both x, weight, bias, out, cosine, sine;
    both start, stream, scale, norm; /* what a sum is added to, which it changes, and its norm goes to out */
} product;

static const char *const NAMES[] = {"plain", "gated", "heads", "added"};
static const float EPSILON = 1e-5f;

static int64_t rows_of(const product *p) { return p->tiles * p->tokens; }

static product make_product(int kind, int64_t tiles, int64_t tokens, int64_t channels, int64_t columns)
{
    product p = {.kind = kind, .tiles = tiles, .tokens = tokens, .channels = channels, .columns = columns, .heads = columns / 192};
    p.x = make("x", H3_F16, 2, H3_SHAPE(tiles * tokens, channels), 1.0f);
    p.weight = make("w", H3_F16, 2, H3_SHAPE(columns, channels), 0.3f);
    p.bias = make("bias", H3_F16, 1, H3_SHAPE(columns), 0.5f);
    p.cosine = make("cosine", H3_F32, 2, H3_SHAPE(tokens, 24), 1.0f);
    p.sine = make("sine", H3_F32, 2, H3_SHAPE(tokens, 24), 1.0f);
    if (kind == H3_VIDEO_MATMUL_ADDED) {
        p.start = make("start", H3_F32, 2, H3_SHAPE(tiles * tokens, columns), 2.0f);
        p.stream = make(NULL, H3_F32, 2, H3_SHAPE(tiles * tokens, columns), 0.0f);
        p.scale = make("scale", H3_F32, 1, H3_SHAPE(columns), 1.0f);
        p.norm = make("norm", H3_F32, 1, H3_SHAPE(columns), 1.0f);
    }
    if (kind == H3_VIDEO_MATMUL_HEADS) p.out = make(NULL, H3_F16, 5, H3_SHAPE(tiles, tokens, 3, p.heads, 64), 0.0f);
    else p.out = make(NULL, H3_F16, 2, H3_SHAPE(tiles * tokens, kind == H3_VIDEO_MATMUL_GATED ? columns / 2 : columns), 0.0f);
    return p;
}

static void free_product(product *p)
{
    both *all[] = {&p->x, &p->weight, &p->bias, &p->out, &p->cosine, &p->sine, &p->start, &p->stream, &p->scale, &p->norm};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) release(all[i]);
}

/* The stream as it was before the first sum. */
static void begin_again(const product *p, const h3_device *device, int host)
{
    if (p->kind != H3_VIDEO_MATMUL_ADDED) return;
    must(device->copy(host ? p->stream.host.data : p->stream.device.data, host ? p->start.host.data : p->start.device.data, h3_tensor_bytes(host ? &p->start.host : &p->start.device)));
}

/* x [rows][channels]: rows from `first` of p's */
static void run_ops(const h3_video_ops *ops, const h3_device *device, const product *p, h3_tensor *out, const h3_tensor *x, int64_t first, int host)
{
#define SIDE(field) (host ? &p->field.host : &p->field.device)
    if (p->kind == H3_VIDEO_MATMUL_HEADS) must(ops->project_heads(device, out, x, SIDE(weight), SIDE(bias), SIDE(cosine), SIDE(sine), EPSILON));
    else if (p->kind == H3_VIDEO_MATMUL_GATED) must(ops->project_gated(device, out, x, SIDE(weight), SIDE(bias)));
    else if (p->kind == H3_VIDEO_MATMUL_ADDED) {
        h3_tensor stream = h3_tensor_view((float *)SIDE(stream)->data + first * p->columns, H3_F32, 2, H3_SHAPE(x->shape[0], p->columns));
        must(ops->project_added(device, out, &stream, x, SIDE(weight), SIDE(bias), SIDE(scale), SIDE(norm), EPSILON));
    } else must(ops->linear(device, out, x, SIDE(weight), SIDE(bias), 0));
#undef SIDE
}

/* The same by cublasLt and the kernel that follows it; `scratch` [rows][columns]. */
static void run_library(const product *p, h3_tensor *out, h3_tensor *scratch)
{
    h3_tensor *product_out = p->kind == H3_VIDEO_MATMUL_GATED || p->kind == H3_VIDEO_MATMUL_ADDED ? scratch : out, stream = p->stream.device;
    must(h3_video_cublas_linear(gpu, product_out, &p->x.device, &p->weight.device, &p->bias.device, 0));
    if (p->kind == H3_VIDEO_MATMUL_GATED) must(gpu_ops->swiglu(gpu, out, scratch));
    if (p->kind == H3_VIDEO_MATMUL_ADDED) must(gpu_ops->add_norm(gpu, out, &stream, scratch, &p->scale.device, &p->norm.device, EPSILON));
    if (p->kind == H3_VIDEO_MATMUL_HEADS) must(gpu_ops->rotate(gpu, out, &p->cosine.device, &p->sine.device, EPSILON));
}

static int is_taken(const product *p)
{
    const h3_video_matmul m = {.kind = p->kind, .x = p->x.device.data, .weight = p->weight.device.data, .bias = p->bias.device.data, .out = p->out.device.data,
                               .rows = rows_of(p), .channels = p->channels, .columns = p->columns, .tokens = p->tokens, .heads = p->heads,
                               .cosine = p->cosine.device.data, .sine = p->sine.device.data, .scale = p->scale.device.data};
    return h3_video_matmul_fits(&m);
}

/* The library's tensor cores sum as ours do, on the same GPU; the emulated library (version 0) in an order of its own. */
static double library_bound(void)
{
    int version = 0;
    if (cudaRuntimeGetVersion(&version) != cudaSuccess) return NAN;
    return version > 0 ? 0.0 : 3e-4;
}

/* How far `other` is from the product's result on the GPU: the share of bytes is not told, only equal (0) or not (infinite), or with `bytes` 0 the relative error. */
static double beside(const product *p, const h3_tensor *other, int bytes)
{
    both pair = {.device = *other};
    must(h3_device_download(&pair.host, gpu, &p->out.device));
    const double d = distance(&pair, bytes);
    h3_tensor_free(&pair.host);
    return d;
}

/* Tile `tile` by itself has the bytes that it has among the others. */
static void check_alone(const product *p, int64_t tile)
{
    int64_t shape[H3_MAX_RANK];
    h3_tensor out;
    int equal;
    const size_t in_bytes = (size_t)(p->tokens * p->channels) * 2, out_bytes = h3_tensor_bytes(&p->out.device) / (size_t)p->tiles;
    const h3_tensor x = h3_tensor_view((char *)p->x.device.data + (size_t)tile * in_bytes, H3_F16, 2, H3_SHAPE(p->tokens, p->channels));
    memcpy(shape, p->out.device.shape, sizeof shape);
    shape[0] /= p->tiles;
    const h3_tensor known = h3_tensor_view((char *)p->out.device.data + (size_t)tile * out_bytes, H3_F16, p->out.device.rank, shape);
    must(h3_device_tensor(&out, gpu, H3_F16, known.rank, shape));
    begin_again(p, gpu, 0);
    run_ops(gpu_ops, gpu, p, &out, &x, tile * p->tokens, 0);
    must(h3_device_equal(&equal, gpu, &out, &known));
    check_bound(equal ? 0.0 : INFINITY, 0.0, "own product, %s, tile %lld alone, bytes", NAMES[p->kind], (long long)tile);
    h3_device_free(&out, gpu);
}

static void check_product(int kind, int64_t tiles, int64_t tokens, int64_t channels, int64_t columns)
{
    product p = make_product(kind, tiles, tokens, channels, columns);
    h3_tensor out, scratch;
    const double bound = library_bound();
    must(h3_device_tensor(&out, gpu, H3_F16, p.out.device.rank, p.out.device.shape));
    must(h3_device_tensor(&scratch, gpu, H3_F16, 2, H3_SHAPE(rows_of(&p), columns)));
    check_bound(is_taken(&p) ? 0.0 : INFINITY, 0.0, "own product, %s, takes %lld x %lld to %lld", NAMES[kind], (long long)rows_of(&p), (long long)channels, (long long)columns);
    begin_again(&p, h3_device_cpu(), 1);
    begin_again(&p, gpu, 0);
    run_ops(cpu_ops, h3_device_cpu(), &p, &p.out.host, &p.x.host, 0, 1);
    run_ops(gpu_ops, gpu, &p, &p.out.device, &p.x.device, 0, 0);
    check_bound(distance(&p.out, 0), 3e-4, "own product, %s, beside the CPU's", NAMES[kind]);
    if (kind == H3_VIDEO_MATMUL_ADDED) check_bound(distance(&p.stream, 0), 3e-4, "own product, added, the stream");
    begin_again(&p, gpu, 0);
    run_library(&p, &out, &scratch);
    check_bound(beside(&p, &out, bound == 0.0), bound, "own product, %s, beside the library's%s", NAMES[kind], bound == 0.0 ? ", bytes" : "");
    for (int64_t tile = 0; tile < tiles && tiles > 1; tile++) check_alone(&p, tile);
    h3_device_free(&out, gpu);
    h3_device_free(&scratch, gpu);
    free_product(&p);
}

/* What it does not take goes the other way, to results all the same. */
static void check_others(void)
{
    static const struct {
        int kind;
        int64_t tokens, channels, columns;
    } OTHERS[] = {{H3_VIDEO_MATMUL_PLAIN, 40, 96, 256}, {H3_VIDEO_MATMUL_PLAIN, 40, 64, 128}, {H3_VIDEO_MATMUL_HEADS, 40, 64, 576}, {H3_VIDEO_MATMUL_GATED, 40, 64, 384},
                {H3_VIDEO_MATMUL_ADDED, 40, 32, 256}};
    for (size_t i = 0; i < sizeof OTHERS / sizeof *OTHERS; i++) {
        product p = make_product(OTHERS[i].kind, 1, OTHERS[i].tokens, OTHERS[i].channels, OTHERS[i].columns);
        check_bound(is_taken(&p) ? INFINITY : 0.0, 0.0, "own product, %s, leaves %lld to %lld", NAMES[p.kind], (long long)p.channels, (long long)p.columns);
        begin_again(&p, h3_device_cpu(), 1);
        begin_again(&p, gpu, 0);
        run_ops(cpu_ops, h3_device_cpu(), &p, &p.out.host, &p.x.host, 0, 1);
        run_ops(gpu_ops, gpu, &p, &p.out.device, &p.x.device, 0, 0);
        check_bound(distance(&p.out, 0), 3e-4, "left product, %s", NAMES[p.kind]);
        free_product(&p);
    }
}

/* --- times ------------------------------------------------------------------------------------------------------------ */

/* A product both ways: into p's own result, and into `out` by way of `scratch`. */
typedef struct both_ways {
    const product *p;
    h3_tensor out, scratch;
} both_ways;

static void run_one(const both_ways *ways, int own)
{
    const product *p = ways->p;
    h3_tensor out = own ? p->out.device : ways->out, scratch = ways->scratch;
    if (own) run_ops(gpu_ops, gpu, p, &out, &p->x.device, 0, 0);
    else run_library(p, &out, &scratch);
}

/* Milliseconds of a call, mean of some, after one that is not counted. */
static double time_product(const void *what, int own)
{
    enum { CALLS = 6 };
    double start = 0.0;
    for (int i = 0; i <= CALLS; i++) {
        run_one(what, own);
        if (i > 0) continue;
        must(gpu->health()); /* waits */
        start = h3_clock();
    }
    must(gpu->health());
    return 1e3 * (h3_clock() - start) / CALLS;
}

/* On the GPU `tiles` tiles that are all alike instead of one. */
static void repeat_tile(product *p, int64_t tiles)
{
    both *all[] = {&p->x, &p->out, &p->start, &p->stream};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        int64_t shape[H3_MAX_RANK];
        h3_tensor many;
        const size_t bytes = h3_tensor_bytes(&all[i]->host);
        if (all[i]->host.data == NULL) continue;
        memcpy(shape, all[i]->host.shape, sizeof shape);
        shape[0] *= tiles;
        must(h3_device_tensor(&many, gpu, all[i]->host.dtype, all[i]->host.rank, shape));
        for (int64_t k = 0; k < tiles; k++) must(gpu->copy((char *)many.data + (size_t)k * bytes, all[i]->device.data, bytes));
        h3_device_free(&all[i]->device, gpu);
        all[i]->device = many;
    }
    p->tiles = tiles;
}

static void compare_times(int kind, int64_t tiles, int64_t tokens, int64_t channels, int64_t columns)
{
    product p = make_product(kind, 1, tokens, channels, columns);
    repeat_tile(&p, tiles);
    both_ways ways = {.p = &p};
    const double work = 2.0 * (double)rows_of(&p) * (double)channels * (double)columns;
    must(h3_device_tensor(&ways.out, gpu, H3_F16, p.out.device.rank, p.out.device.shape));
    must(h3_device_tensor(&ways.scratch, gpu, H3_F16, 2, H3_SHAPE(rows_of(&p), columns)));
    const turns t = take_turns(3, time_product, &ways);
    for (int own = 0; own < 2; own++) {
        begin_again(&p, gpu, 0);
        run_one(&ways, own);
    }
    check_bound(beside(&p, &ways.out, 1), library_bound(), "own product, %s, %lld x %lld to %lld, bytes of the library's", NAMES[kind], (long long)rows_of(&p), (long long)channels,
                (long long)columns);
    printf("       product %s %lld to %lld, %lld rows: own %.3f ms, %.0f TFLOP/s; library and what follows %.3f ms; ratio %.3f\n", NAMES[kind], (long long)channels,
           (long long)columns, (long long)rows_of(&p), t.own, work / t.own * 1e-9, t.theirs, t.ratio);
    fflush(stdout);
    h3_device_free(&ways.out, gpu);
    h3_device_free(&ways.scratch, gpu);
    free_product(&p);
}

static void check_names(void)
{
    char released[H3_VIDEO_KERNEL_NAME], small[H3_VIDEO_KERNEL_NAME], full[H3_VIDEO_KERNEL_NAME];
    setenv("H3_VIDEO_KERNELS", "library", 1);
    h3_video_products_name(released, gpu, H3_F16, 2048, 8192);
    check_bound(strncmp(released, "cublaslt-", 9) == 0 ? 0.0 : INFINITY, 0.0, "the library's products where they are asked for, by name: \"%s\"", released);
    unsetenv("H3_VIDEO_KERNELS");
    h3_video_products_name(small, gpu, H3_F16, 2048, 8200);
    h3_video_products_name(full, gpu, H3_F32, 2048, 8192);
    h3_video_products_name(released, gpu, H3_F16, 2048, 8192);
    check_bound(strncmp(released, "gemm-tc-k16-ascending-v1+cublaslt-", 34) == 0 && strncmp(small, "cublaslt-", 9) == 0 && full[0] == 0 ? 0.0 : INFINITY, 0.0, "products by name: \"%s\", \"%s\", \"%s\"",
                released, small, full);
}

/* What the times are taken of, small. */
static void check_repeated(void)
{
    product p = make_product(H3_VIDEO_MATMUL_ADDED, 1, 50, 64, 256);
    repeat_tile(&p, 3);
    begin_again(&p, gpu, 0);
    run_ops(gpu_ops, gpu, &p, &p.out.device, &p.x.device, 0, 0);
    for (int64_t tile = 0; tile < 3; tile++) check_alone(&p, tile);
    free_product(&p);
}

static void check_large(void)
{
    check_product(H3_VIDEO_MATMUL_HEADS, 1, 1797, 2048, 6144);
    compare_times(H3_VIDEO_MATMUL_HEADS, 28, 1797, 2048, 6144);
    compare_times(H3_VIDEO_MATMUL_ADDED, 28, 1797, 2048, 2048);
    compare_times(H3_VIDEO_MATMUL_GATED, 28, 1797, 2048, 16384);
    compare_times(H3_VIDEO_MATMUL_ADDED, 28, 1797, 8192, 2048);
    compare_times(H3_VIDEO_MATMUL_PLAIN, 28, 1797, 2048, 6144);
    compare_times(H3_VIDEO_MATMUL_PLAIN, 28, 1797, 8192, 2048);
}

void check_own_products(int large)
{
    char *before = variable_for_now("H3_VIDEO_KERNELS", "");
    check_names();
    check_product(H3_VIDEO_MATMUL_PLAIN, 2, 131, 192, 256); /* rows that end within a tile */
    check_product(H3_VIDEO_MATMUL_PLAIN, 1, 3, 64, 512);    /* one stage a tile */
    check_product(H3_VIDEO_MATMUL_GATED, 2, 67, 128, 512);
    check_product(H3_VIDEO_MATMUL_HEADS, 3, 43, 256, 768);
    check_product(H3_VIDEO_MATMUL_ADDED, 2, 139, 192, 512);
    check_product(H3_VIDEO_MATMUL_PLAIN, 18, 128, 64, 512); /* more rows of tiles than are neighbours in time */
    check_others();
    check_repeated();
    if (large) check_large();
    variable_back("H3_VIDEO_KERNELS", before);
}
