/* Hash rate beside `openssl speed`, and the rate at which artifacts are written beside a plain copy of the same bytes. Medians. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/log.h"
#include "store/artifact.h"

enum { ROUNDS = 5, MEGABYTES = 128 };

static void must(h3_status status)
{
    if (status == H3_OK) return;
    h3_complain("bench", h3_error_text());
    exit((int)status);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median rate in GB/s of `run` over `bytes`. */
static double rate(void (*run)(const h3_tensor *tensor), const h3_tensor *tensor)
{
    double seconds[ROUNDS];
    run(tensor);
    for (int i = 0; i < ROUNDS; i++) {
        double start = h3_clock();
        run(tensor);
        seconds[i] = h3_clock() - start;
    }
    qsort(seconds, ROUNDS, sizeof *seconds, ascending);
    return 1e-9 * (double)h3_tensor_bytes(tensor) / seconds[ROUNDS / 2];
}

static char folder[] = "/tmp/h3-bench-XXXXXX";

static void run_digest(const h3_tensor *tensor)
{
    char digest[H3_SHA256_HEX];
    must(h3_digest(digest, tensor->data, h3_tensor_bytes(tensor)));
}

static void run_sha256(const h3_tensor *tensor)
{
    char digest[H3_SHA256_HEX];
    must(h3_sha256(digest, tensor->data, h3_tensor_bytes(tensor)));
}

static void run_artifact(const h3_tensor *tensor)
{
    h3_artifact_writer *writer;
    char path[64], digest[H3_SHA256_HEX];
    int64_t size;
    snprintf(path, sizeof path, "%s/artifact.h5", folder);
    must(h3_artifact_create(&writer, "bench"));
    must(h3_artifact_add(writer, "tensor", tensor, digest));
    must(h3_artifact_publish(writer, path, &size, digest));
}

static void run_plain(const h3_tensor *tensor)
{
    char path[64];
    size_t done = 0, bytes = h3_tensor_bytes(tensor);
    snprintf(path, sizeof path, "%s/plain", folder);
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    while (file >= 0 && done < bytes) {
        ssize_t written = write(file, (const char *)tensor->data + done, bytes - done);
        if (written <= 0) break;
        done += (size_t)written;
    }
    if (file < 0 || done < bytes || fsync(file) != 0) must(h3_error(H3_ENVIRONMENT, "cannot write %s", path));
    close(file);
}

/* What `openssl speed` reaches here in one process, in GB/s. */
static double openssl_rate(void)
{
    double thousands = 0.0;
    char line[512];
    FILE *output = popen("openssl speed -seconds 1 -bytes 1048576 -evp sha256 2>/dev/null", "r");
    while (output != NULL && fgets(line, sizeof line, output) != NULL)
        if (strncasecmp(line, "sha256", 6) == 0) sscanf(line + 6, "%lf", &thousands);
    if (output != NULL) pclose(output);
    return thousands * 1e-6;
}

int main(void)
{
    int64_t count = (int64_t)MEGABYTES << 18;
    h3_tensor tensor;
    char command[96];
    if (mkdtemp(folder) == NULL) must(h3_error(H3_ENVIRONMENT, "no temporary folder in /tmp"));
    must(h3_tensor_new(&tensor, H3_F32, 1, &count));
    for (int64_t i = 0; i < count; i++) ((float *)tensor.data)[i] = (float)i;
    double openssl = openssl_rate(), sha = rate(run_sha256, &tensor), digest = rate(run_digest, &tensor);
    double plain = rate(run_plain, &tensor), artifact = rate(run_artifact, &tensor);
    printf("rates over %d MiB, GB/s (median of %d)\n", MEGABYTES, ROUNDS);
    printf("  %-34s %6.2f\n", "openssl speed sha256, one process", openssl);
    printf("  %-34s %6.2f   ratio to openssl %.2f\n", "file hash (plain SHA-256)", sha, sha / openssl);
    printf("  %-34s %6.2f   ratio to openssl %.2f\n", "tensor digest (4 MiB pieces)", digest, digest / openssl);
    printf("  %-34s %6.2f\n", "plain write and fsync", plain);
    printf("  %-34s %6.2f   ratio to plain %.2f (hashes twice, builds HDF5 in memory)\n", "artifact, digest to rename", artifact, artifact / plain);
    h3_tensor_free(&tensor);
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command) == 0 && openssl > 0.0 ? 0 : 1;
}
