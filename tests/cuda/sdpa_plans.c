/*
 * The plans that cuDNN makes for the attention of the provider and of the video decoder, without a GPU: graph, heuristics, engine and plan for the
 * properties of an H200, by the very code that both run with a handle (src/cudnn/sdpa_graph.c).
 *
 *   sdpa_plans
 *
 * cuDNN compiles the kernel and then hands it to libcuda; tests/system/test_cudnn.sh puts one there that says yes to that. Prints TAP.
 */
#include <stdio.h>
#include <string.h>
#include <xmmintrin.h>

#include "cudnn/sdpa.h"

#ifdef H3_CUDNN

#include "cudnn/sdpa_graph.h"

/* What cuDNN 9.19 wants to know; the values are an H200's. */
static const char h200[] =
    "{\"deviceVer\":900,\"driverVer\":13000,\"cudaDeviceId\":0,\"deviceName\":\"NVIDIA H200\",\"schemaVersion\":1,\"smVersion\":900,\"totalGlobalMem\":2000000000,"
    "\"multiProcessorCount\":132,\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],\"regsPerBlock\":65536,\"warpSize\":32,"
    "\"maxSharedMemoryPerBlock\":49152,\"maxSharedMemoryPerBlockOptin\":232448,\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,"
    "\"maxCtasPerSM\":32,\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,\"pciDeviceId\":0,\"isTccDriver\":0,\"supportCoopLaunch\":1,"
    "\"smClockRateKHz\":1980000,\"memClockRateKHz\":3201000,\"l2CacheSize\":62914560}";

/* items 0: dense BF16 with log-sum-exp, as the provider asks. Else F16, q, k and v views of [items,rows,3,heads,head_dim], as the video decoder asks. */
static const struct {
    int64_t items, queries, keys, heads, head_dim;
    int taken;
} cases[] = {
    {0, 264, 264, 56, 128, 1}, {0, 925, 925, 56, 128, 1}, {0, 3160, 3160, 56, 128, 1}, {0, 39230, 39230, 56, 128, 1}, {0, 1, 264, 56, 128, 1},
    {0, 29, 29, 2, 32, 1},     {0, 30, 30, 4, 16, 1},     {0, 3, 5, 2, 8, 1},          {0, 16, 16, 2, 12, 0},         {0, 16, 16, 3, 21, 0},
    {28, 1797, 1797, 32, 64, 1}, {1, 1797, 1797, 32, 64, 1}, {2, 19, 19, 2, 16, 1},    {1, 40, 40, 1, 20, 0},
};

static h3_sdpa_shape shape_of(size_t i)
{
    const int64_t items = cases[i].items, rows = cases[i].queries, heads = cases[i].heads, dim = cases[i].head_dim;
    return items > 0 ? h3_sdpa_joined(items, rows, heads, dim) : h3_sdpa_dense(rows, cases[i].keys, heads, dim);
}

static int failures, number;

static void result(int good, const char *what, const h3_sdpa_shape *shape, const h3_sdpa *sdpa)
{
    failures += !good;
    printf("%sok %d - %s for %lld x %lld queries, %lld keys, %lld x %lld%s\n", good ? "" : "not ", ++number, what, (long long)shape->items, (long long)shape->queries,
           (long long)shape->keys, (long long)shape->heads, (long long)shape->head_dim, shape->dtype == H3_F16 ? ", F16" : "");
    if (sdpa->plan != NULL) printf("# %s, workspace %zu\n", sdpa->name, sdpa->workspace);
    else printf("# no plan: %d %s\n", sdpa->status, cudnnGetErrorString((cudnnStatus_t)sdpa->status));
}

static int whole(const h3_sdpa *sdpa, const h3_sdpa_parts *parts)
{
    const int named = strncmp(sdpa->name, "cudnn-", 6) == 0 && strstr(sdpa->name, "-eng") != NULL && strstr(sdpa->name, "-eng-1") == NULL;
    if (sdpa->plan == NULL) return sdpa->status / 1000 == 3 && sdpa->name[0] == 0 && sdpa->workspace == 0 && parts->count == 0;
    return sdpa->status == CUDNN_STATUS_SUCCESS && named && sdpa->workspace < ((size_t)1 << 30) && parts->count > 0;
}

/* Twice the same, and as expected. */
static void try_case(size_t i, cudnnBackendDescriptor_t properties)
{
    const h3_sdpa_shape made = shape_of(i), *shape = &made;
    h3_sdpa first, second;
    h3_sdpa_parts first_parts, second_parts;
    h3_sdpa_build(&first, &first_parts, shape, NULL, properties);
    h3_sdpa_build(&second, &second_parts, shape, NULL, properties);
    result(whole(&first, &first_parts) && (first.plan != NULL) == cases[i].taken, cases[i].taken ? "a plan" : "no plan", shape, &first);
    result(whole(&second, &second_parts) && strcmp(first.name, second.name) == 0 && first.workspace == second.workspace && first.status == second.status,
           "the same again", shape, &second);
    h3_sdpa_parts_free(&first_parts);
    h3_sdpa_parts_free(&second_parts);
}

int main(void)
{
    enum { CONTROL = 0xffc0 }; /* without the flags that say what has happened */
    const unsigned before = _mm_getcsr() & CONTROL;
    cudnnBackendDescriptor_t properties = NULL;
    cudnnStatus_t status = cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &properties);
    if (status == CUDNN_STATUS_SUCCESS)
        status = cudnnBackendSetAttribute(properties, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, (int64_t)strlen(h200), h200);
    if (status == CUDNN_STATUS_SUCCESS) status = cudnnBackendFinalize(properties);
    if (status != CUDNN_STATUS_SUCCESS) {
        char detail[200] = "";
        cudnnGetLastErrorString(detail, sizeof detail);
        printf("not ok 1 - cuDNN %zu takes the properties of a GPU: %s %s\n1..1\n", cudnnGetVersion(), cudnnGetErrorString(status), detail);
        return 1;
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) try_case(i, properties);
    cudnnBackendDestroyDescriptor(properties);
    const unsigned after = _mm_getcsr() & CONTROL;
    failures += before != after;
    printf("%sok %d - the libraries that were loaded leave the floating-point control state alone (%#x, %#x)\n1..%d\n", before == after ? "" : "not ",
           number + 1, before, after, number + 1);
    return failures != 0;
}

#else

int main(void)
{
    printf("1..1\nok 1 - plans of cuDNN # SKIP no GPU libraries: this build has no cuDNN\n");
    return 0;
}

#endif
