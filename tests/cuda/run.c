#include "run.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include <cuda_runtime_api.h>

void cuda_need(int error, const char *what)
{
    if (error == cudaSuccess) return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString((cudaError_t)error));
    exit(4);
}

const h3_operator_library *library_load(const char *path)
{
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void *symbol = handle ? dlsym(handle, H3_OPERATOR_LIBRARY_SYMBOL) : NULL;
    const h3_operator_library *library = NULL;
    if (symbol) {
        h3_operator_library_get_fn get;
        memcpy(&get, &symbol, sizeof get);
        library = get();
    }
    if (!library || library->interface_version != H3_OPERATOR_INTERFACE || library->size != sizeof *library) {
        fprintf(stderr, "%s is no operator library for this program: %s\n", path, handle ? "wrong interface" : dlerror());
        exit(4);
    }
    return library;
}

const h3_operator *library_operator(const h3_operator_library *library, const char *node)
{
    const size_t length = strcspn(node, "/");
    for (uint32_t i = 0; i < library->operator_count; i++) {
        const h3_operator *op = &library->operators[i];
        if (strlen(op->node) == length && !strncmp(op->node, node, length)) return op;
    }
    return NULL;
}

static void *gpu_memory(int64_t bytes)
{
    void *memory = NULL;
    cuda_need(cudaMalloc(&memory, bytes > 0 ? (size_t)bytes : 1), "cudaMalloc");
    return memory;
}

static void *shared_memory_of(const gpu_problem *shared, const void *host)
{
    h3_tensor *list[CALL_TENSORS], *gpu[CALL_TENSORS];
    int written[CALL_TENSORS];
    if (!shared) return NULL;
    h3_call there = shared->call;
    call_tensors(&shared->host->call, list, written);
    call_tensors(&there, gpu, written);
    for (int i = 0; i < CALL_TENSORS; i++)
        if (list[i]->rank > 0 && list[i]->data == host && !written[i]) return gpu[i]->data;
    return NULL;
}

void gpu_upload(gpu_problem *out, problem *host, const gpu_problem *shared)
{
    h3_tensor *list[CALL_TENSORS];
    int written[CALL_TENSORS];
    memset(out, 0, sizeof *out);
    out->host = host;
    out->call = host->call;
    out->call.device = H3_DEVICE_CUDA;
    call_tensors(&out->call, list, written);
    for (int i = 0; i < CALL_TENSORS; i++) {
        if (list[i]->rank == 0) continue;
        const void *from = list[i]->data;
        list[i]->data = written[i] ? NULL : shared_memory_of(shared, from);
        if (list[i]->data) continue;
        out->own[i] = true;
        list[i]->data = gpu_memory(tensor_bytes(list[i]));
        if (!written[i]) cuda_need(cudaMemcpy(list[i]->data, from, (size_t)tensor_bytes(list[i]), cudaMemcpyHostToDevice), "upload");
    }
}

void gpu_free(gpu_problem *g)
{
    h3_tensor *list[CALL_TENSORS];
    int written[CALL_TENSORS];
    call_tensors(&g->call, list, written);
    for (int i = 0; i < CALL_TENSORS; i++)
        if (g->own[i]) cuda_need(cudaFree(list[i]->data), "cudaFree");
}

static void plan_workspace(h3_call *call, const h3_operator *op, bool backward)
{
    h3_call_plan plan;
    memset(&plan, 0, sizeof plan);
    if (op->plan(call, &plan)) {
        fprintf(stderr, "%s: no plan: %s\n", op->name, call->message);
        exit(1);
    }
    call->workspace_bytes = backward ? plan.backward_workspace : plan.forward_workspace;
}

static void gpu_start(gpu_problem *g, const h3_operator *op, bool backward)
{
    plan_workspace(&g->call, op, backward);
    g->call.workspace = gpu_memory((int64_t)g->call.workspace_bytes);
    cuda_need(cudaMemsetAsync(g->call.workspace, 0xff, g->call.workspace_bytes, NULL), "cudaMemset");
}

static void gpu_end(gpu_problem *g, const char *what)
{
    cuda_need(cudaStreamSynchronize(NULL), what);
    cuda_need(cudaFree(g->call.workspace), "cudaFree");
    g->call.workspace = NULL;
}

int gpu_run(gpu_problem *g, const h3_operator *op, bool backward)
{
    h3_tensor *list[CALL_TENSORS];
    int written[CALL_TENSORS];
    call_tensors(&g->call, list, written);
    for (int i = 0; i < CALL_TENSORS; i++)
        if (g->own[i] && written[i] == (backward ? 2 : 1)) cuda_need(cudaMemsetAsync(list[i]->data, 0xff, (size_t)tensor_bytes(list[i]), NULL), "cudaMemset");
    gpu_start(g, op, backward);
    const int status = backward ? op->backward(&g->call) : op->forward(&g->call);
    gpu_end(g, op->name);
    return status;
}

float gpu_time(gpu_problem *g, const h3_operator *op, bool backward, int repeats)
{
    cudaEvent_t start, end;
    float total = 0;
    cuda_need(cudaEventCreate(&start), "cudaEventCreate");
    cuda_need(cudaEventCreate(&end), "cudaEventCreate");
    gpu_start(g, op, backward);
    for (int i = -1; i < repeats; i++) {
        if (i == 0) cuda_need(cudaEventRecord(start, NULL), "cudaEventRecord");
        if (backward ? op->backward(&g->call) : op->forward(&g->call)) fprintf(stderr, "%s: %s\n", op->name, g->call.message);
    }
    cuda_need(cudaEventRecord(end, NULL), "cudaEventRecord");
    cuda_need(cudaEventSynchronize(end), op->name);
    cuda_need(cudaEventElapsedTime(&total, start, end), "cudaEventElapsedTime");
    gpu_end(g, op->name);
    cuda_need(cudaEventDestroy(start), "cudaEventDestroy");
    cuda_need(cudaEventDestroy(end), "cudaEventDestroy");
    return total / (float)repeats;
}

void gpu_download(gpu_problem *g, bool backward)
{
    h3_tensor *list[CALL_TENSORS], *host[CALL_TENSORS];
    int written[CALL_TENSORS];
    call_tensors(&g->host->call, host, written);
    call_tensors(&g->call, list, written);
    for (int i = 0; i < CALL_TENSORS; i++) {
        if (written[i] != (backward ? 2 : 1) || list[i]->rank == 0) continue;
        cuda_need(cudaMemcpy(host[i]->data, list[i]->data, (size_t)tensor_bytes(list[i]), cudaMemcpyDeviceToHost), "download");
    }
}

int host_run(problem *p, const h3_operator *op, bool backward)
{
    void *memory = NULL;
    p->call.device = H3_DEVICE_CPU;
    plan_workspace(&p->call, op, backward);
    if (posix_memalign(&memory, 64, p->call.workspace_bytes + 64)) exit(4);
    p->call.workspace = memory;
    const int status = backward ? op->backward(&p->call) : op->forward(&p->call);
    free(memory);
    p->call.workspace = NULL;
    return status;
}
