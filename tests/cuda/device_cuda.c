/* The GPU's work on tensors beside the host's, byte for byte: sums, comparison, synthetic values, widening, samples, digests. One line a check; exit 1 when one fails. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "graph/device.h"
#include "model/synth.h"

static int passed, failed;

static void result(int good, const char *what, long long a, long long b)
{
    printf("%s %s %lld %lld\n", good ? "ok    " : "not ok", what, a, b);
    if (good) passed++;
    else failed++;
}

static void must(h3_status status)
{
    if (status == H3_OK) return;
    fprintf(stderr, "device_cuda: %s\n", h3_error_text());
    exit(4);
}

/* One stream in one type on both sides, compared as bytes; the host's and the GPU's tensor. */
static void synth_pair(const h3_device *gpu, int32_t dtype, int64_t rows, int64_t width, int through, const char *name, h3_tensor *host, h3_tensor *device)
{
    uint32_t key[2];
    h3_tensor back;
    must(h3_synth_key(key, 7, name));
    must(h3_tensor_new(host, dtype, 2, H3_SHAPE(rows, width)));
    must(h3_device_tensor(device, gpu, dtype, 2, H3_SHAPE(rows, width)));
    must(h3_device_cpu()->synth(host, key, 0.25f, 1.7f, through));
    must(gpu->synth(device, key, 0.25f, 1.7f, through));
    must(h3_device_download(&back, gpu, device));
    result(memcmp(back.data, host->data, h3_tensor_bytes(host)) == 0, dtype == H3_BF16 ? "synth bf16" : through ? "synth f32 through bf16" : "synth f32", rows, width);
    h3_tensor_free(&back);
}

static void check_sums(const h3_device *gpu, const h3_tensor host[2], const h3_tensor device[2], int64_t rows, int64_t group)
{
    h3_row_sum *ours = calloc((size_t)rows, sizeof *ours), *theirs = calloc((size_t)rows, sizeof *theirs);
    if (ours == NULL || theirs == NULL) exit(4);
    must(h3_device_row_sums(ours, h3_device_cpu(), &host[0], &host[1], rows, group));
    must(h3_device_row_sums(theirs, gpu, &device[0], &device[1], rows, group));
    result(memcmp(ours, theirs, (size_t)rows * sizeof *ours) == 0, "row sums", rows, group);
    free(ours);
    free(theirs);
}

static void check_rest(const h3_device *gpu, const h3_tensor *host, const h3_tensor *device)
{
    char ours[H3_SHA256_HEX], theirs[H3_SHA256_HEX];
    h3_tensor a, b, copy;
    int equal;
    h3_digest_job *job;
    must(h3_device_digest(ours, h3_device_cpu(), host));
    must(h3_device_digest_start(&job, gpu, device));
    must(h3_device_duplicate(&copy, gpu, device));
    must(h3_device_equal(&equal, gpu, device, &copy));
    result(equal, "equal bytes", h3_tensor_count(host), 0);
    must(gpu->fill((char *)copy.data + h3_tensor_bytes(&copy) - 1, 0x55, 1));
    must(h3_device_equal(&equal, gpu, device, &copy));
    result(!equal, "last byte differs", h3_tensor_count(host), 0);
    must(h3_digest_job_wait(job, theirs));
    result(strcmp(ours, theirs) == 0, "digest", h3_tensor_count(host), 0);
    must(h3_device_samples(&a, h3_device_cpu(), host, 512));
    must(h3_device_samples(&b, gpu, device, 512));
    result(h3_tensor_bytes(&a) == h3_tensor_bytes(&b) && memcmp(a.data, b.data, h3_tensor_bytes(&a)) == 0, "samples", h3_tensor_count(&a), 0);
    h3_tensor_free(&a);
    h3_tensor_free(&b);
    h3_device_free(&copy, gpu);
}

static void check_widen(const h3_device *gpu, const h3_tensor *host, const h3_tensor *device)
{
    h3_tensor ours, theirs, back;
    must(h3_tensor_new(&ours, H3_F32, 2, host->shape));
    must(h3_device_tensor(&theirs, gpu, H3_F32, 2, host->shape));
    must(h3_device_cpu()->widen(&ours, host));
    must(gpu->widen(&theirs, device));
    must(h3_device_download(&back, gpu, &theirs));
    result(memcmp(ours.data, back.data, h3_tensor_bytes(&ours)) == 0, "widen", h3_tensor_count(host), 0);
    h3_tensor_free(&ours);
    h3_tensor_free(&back);
    h3_device_free(&theirs, gpu);
}

/* More than the staging buffers hold, from an odd address. */
static void check_upload(const h3_device *gpu, size_t bytes)
{
    char *host = malloc(bytes + 1), *back = malloc(bytes);
    void *device;
    if (host == NULL || back == NULL) exit(4);
    for (size_t i = 0; i < bytes; i++) host[i + 1] = (char)(i * 31 + i / 4093);
    must(gpu->allocate(&device, bytes));
    must(gpu->from_host(device, host + 1, bytes));
    must(gpu->to_host(back, device, bytes));
    result(memcmp(host + 1, back, bytes) == 0, "upload", (long long)bytes, 0);
    gpu->release(device);
    free(host);
    free(back);
}

static void check_shape(const h3_device *gpu, int64_t rows, int64_t width, int64_t group)
{
    h3_tensor host[3], device[3];
    synth_pair(gpu, H3_BF16, rows, width, 0, "x", &host[0], &device[0]);
    synth_pair(gpu, H3_F32, rows, width, 1, "x", &host[1], &device[1]);
    synth_pair(gpu, H3_F32, rows, width, 0, "g", &host[2], &device[2]);
    check_sums(gpu, &host[0], &device[0], rows, group);
    check_sums(gpu, &host[1], &device[1], rows, 1);
    for (int i = 0; i < 3; i += 2) check_rest(gpu, &host[i], &device[i]);
    check_widen(gpu, &host[0], &device[0]);
    for (int i = 0; i < 3; i++) {
        h3_tensor_free(&host[i]);
        h3_device_free(&device[i], gpu);
    }
}

/* More spans than are kept on their way. A pause within the first is its time, also when all the others have come since; one between two is nobody's. */
static void check_spans(const h3_device *gpu)
{
    enum { COUNT = 2500 };
    h3_tensor t;
    h3_device_work work;
    uint32_t key[2] = {1, 2};
    const struct timespec pause = {.tv_nsec = 200000000};
    must(h3_device_tensor(&t, gpu, H3_F32, 1, H3_SHAPE(4096)));
    must(gpu->span_take(&work));
    result(work.busy <= work.window, "spans of operators' kind so far", work.spans, 0);
    for (int i = 0; i < COUNT; i++) {
        must(gpu->span_begin());
        if (i == 0) nanosleep(&pause, NULL);
        if (i == 0) must(gpu->synth(&t, key, 0.0f, 1.0f, 0));
        must(gpu->span_end());
        if (i == COUNT / 2) nanosleep(&pause, NULL);
    }
    must(gpu->span_begin()); /* not ended: counts nothing */
    must(gpu->span_take(&work));
    result(work.spans == COUNT && work.busy >= 0.19 && work.busy <= work.window - 0.19 && work.window < 60, "spans", work.spans, (long long)(1e6 * work.busy));
    must(gpu->span_take(&work));
    result(work.spans == 0 && work.busy == 0 && work.window == 0, "spans begin anew", work.spans, 0);
    h3_device_free(&t, gpu);
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* GB/s of what moves all reference tensors: digests, plain copies to the host, uploads, sums. Reported, no check. */
static void report_rates(const h3_device *gpu)
{
    const int64_t count = (int64_t)1 << 30;
    h3_tensor device, host;
    char digest[H3_SHA256_HEX];
    h3_row_sum *sums = calloc(1 << 16, sizeof *sums);
    uint32_t key[2] = {1, 2};
    int equal;
    if (sums == NULL) exit(4);
    must(h3_device_tensor(&device, gpu, H3_F32, 1, &count));
    must(gpu->synth(&device, key, 0.0f, 1.0f, 0));
    must(gpu->health());
    const double bytes = 4.0 * (double)count;
    double start = seconds();
    must(gpu->synth(&device, key, 0.0f, 1.0f, 0));
    must(gpu->health());
    printf("rate   synthetic values     %8.2f GB/s\n", bytes / (seconds() - start) * 1e-9);
    must(h3_device_digest(digest, gpu, &device)); /* the first call starts threads and pins memory */
    start = seconds();
    must(h3_device_digest(digest, gpu, &device));
    printf("rate   digest               %8.2f GB/s\n", bytes / (seconds() - start) * 1e-9);
    start = seconds();
    must(h3_device_row_sums(sums, gpu, &device, &device, 1 << 16, 1));
    printf("rate   row sums, two reads  %8.2f GB/s\n", 2.0 * bytes / (seconds() - start) * 1e-9);
    start = seconds();
    must(gpu->equal(&equal, device.data, (char *)device.data + 2 * count, (size_t)(2 * count)));
    printf("rate   comparison           %8.2f GB/s\n", bytes / (seconds() - start) * 1e-9);
    start = seconds();
    must(h3_device_download(&host, gpu, &device));
    printf("rate   download             %8.2f GB/s\n", bytes / (seconds() - start) * 1e-9);
    start = seconds();
    must(gpu->from_host(device.data, host.data, (size_t)bytes));
    must(gpu->health());
    printf("rate   upload               %8.2f GB/s\n", bytes / (seconds() - start) * 1e-9);
    start = seconds();
    must(h3_digest(digest, host.data, (size_t)bytes));
    printf("rate   digest of host bytes %8.2f GB/s\n", bytes / (seconds() - start) * 1e-9);
    h3_tensor_free(&host);
    h3_device_free(&device, gpu);
    free(sums);
}

int main(int argc, char **argv)
{
    const h3_device *gpu;
    must(h3_device_open("cuda", 0, &gpu));
    check_shape(gpu, 1, 1, 1);
    check_shape(gpu, 3, 257, 1);
    check_shape(gpu, 5, 768, 128);
    check_shape(gpu, 33, 1001, 7);
    if (argc > 1 && strcmp(argv[1], "large") == 0) {
        check_shape(gpu, 925, 28672, 128);
        check_shape(gpu, 5376, 14336, 1);
        check_upload(gpu, ((size_t)200 << 20) + 12345);
        report_rates(gpu);
    }
    check_upload(gpu, ((size_t)1 << 20) + 3);
    check_upload(gpu, 100);
    check_spans(gpu);
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
