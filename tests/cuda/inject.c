/*
 * CUDA errors on demand, for a program that is started with this library in LD_PRELOAD:
 *
 *   H3_INJECT=FUNCTION:N    from its Nth call on FUNCTION (cudaMalloc, cudaMemcpyAsync, cudaStreamSynchronize, cudaGetLastError) fails
 *
 * cudaMalloc: the GPU is full. Any other: an illegal access, which the real runtime repeats at every later call, and so do these four.
 */
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MALLOC, COPY, SYNCHRONIZE, LAST_ERROR, FUNCTIONS };
static const char *const names[FUNCTIONS] = {"cudaMalloc", "cudaMemcpyAsync", "cudaStreamSynchronize", "cudaGetLastError"};

typedef cudaError_t (*malloc_fn)(void **, size_t);
typedef cudaError_t (*copy_fn)(void *, const void *, size_t, enum cudaMemcpyKind, cudaStream_t);
typedef cudaError_t (*synchronize_fn)(cudaStream_t);
typedef cudaError_t (*last_error_fn)(void);

static int wanted = -1, broken;
static long first_bad;

/* A wrong H3_INJECT must not look like a program that survives. */
static void read_wish(void)
{
    const char *wish = getenv("H3_INJECT");
    char name[32];
    if (wanted >= 0) return;
    if (wish != NULL && sscanf(wish, "%31[^:]:%ld", name, &first_bad) == 2 && first_bad > 0)
        for (int i = 0; i < FUNCTIONS; i++)
            if (strcmp(name, names[i]) == 0) wanted = i;
    if (wanted >= 0) return;
    fprintf(stderr, "H3_INJECT must be FUNCTION:N\n");
    abort();
}

/* What this call of `function` shall return. */
static cudaError_t injected(int function)
{
    read_wish();
    if (function == wanted && --first_bad <= 0) broken = 1;
    if (!broken) return cudaSuccess;
    if (wanted == MALLOC) return function == MALLOC ? cudaErrorMemoryAllocation : cudaSuccess;
    return cudaErrorIllegalAddress;
}

/* Copies the address of the real function to the pointer at `to`. */
static void find_real(int function, void *to)
{
    void *symbol = dlsym(RTLD_NEXT, names[function]);
    if (symbol == NULL) {
        fprintf(stderr, "no real %s: %s\n", names[function], dlerror());
        abort();
    }
    memcpy(to, &symbol, sizeof symbol);
}

cudaError_t cudaMalloc(void **out, size_t bytes)
{
    malloc_fn real;
    cudaError_t error = injected(MALLOC);
    if (error != cudaSuccess) return error;
    find_real(MALLOC, &real);
    return real(out, bytes);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    copy_fn real;
    cudaError_t error = injected(COPY);
    if (error != cudaSuccess) return error;
    find_real(COPY, &real);
    return real(to, from, bytes, kind, stream);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    synchronize_fn real;
    cudaError_t error = injected(SYNCHRONIZE);
    if (error != cudaSuccess) return error;
    find_real(SYNCHRONIZE, &real);
    return real(stream);
}

cudaError_t cudaGetLastError(void)
{
    last_error_fn real;
    cudaError_t error = injected(LAST_ERROR);
    if (error != cudaSuccess) return error;
    find_real(LAST_ERROR, &real);
    return real();
}
