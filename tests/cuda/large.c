#include "large.h"

#include <stdio.h>
#include <stdlib.h>

#include <cuda_runtime_api.h>

enum { BASE_ROWS = 1000 };

static const dims released = {"large", BASE_ROWS, 5376, 56, 128, 14336, 2688, 3, 16};

/* `rows` rows in GPU memory: the base's, again and again. */
static h3_tensor repeat_rows(const h3_tensor *base, int64_t rows)
{
    h3_tensor t = *base;
    const int which = t.rank == 4 ? 1 : 0;
    t.shape[which] = rows;
    const int64_t row_bytes = tensor_bytes(base) / BASE_ROWS;
    cuda_need(cudaMalloc(&t.data, (size_t)tensor_bytes(&t)), "cudaMalloc");
    for (int64_t row = 0; row < rows; row += BASE_ROWS) {
        const int64_t count = rows - row < BASE_ROWS ? rows - row : BASE_ROWS;
        cuda_need(cudaMemcpy((char *)t.data + row * row_bytes, base->data, (size_t)(count * row_bytes), cudaMemcpyDeviceToDevice), "copy");
    }
    return t;
}

/* Forward over `rows` rows, in milliseconds; the outputs of the last rows go to `tail`, which has room for BASE_ROWS rows. */
static float run_repeated(const gpu_problem *base, const h3_operator *op, int64_t rows, unsigned repeated, char *tail, int *status)
{
    gpu_problem g = *base;
    h3_call *c = &g.call;
    for (int i = 0; i < H3_MAX_IN; i++)
        if (repeated >> i & 1u) c->in[i] = repeat_rows(&base->call.in[i], rows);
    c->out.shape[c->out.rank == 4 ? 1 : 0] = rows;
    cuda_need(cudaMalloc(&c->out.data, (size_t)tensor_bytes(&c->out)), "cudaMalloc");
    if (c->saved[0].rank > 0) {
        c->saved[0].shape[2] = rows;
        cuda_need(cudaMalloc(&c->saved[0].data, (size_t)tensor_bytes(&c->saved[0])), "cudaMalloc");
    }
    const float ms = gpu_time(&g, op, false, 1);
    *status = c->message[0] != 0;
    const int64_t row_bytes = tensor_bytes(&c->out) / rows, first = (rows - 1) / BASE_ROWS * BASE_ROWS;
    cuda_need(cudaMemcpy(tail, (char *)c->out.data + first * row_bytes, (size_t)((rows - first) * row_bytes), cudaMemcpyDeviceToHost), "download");
    for (int i = 0; i < H3_MAX_IN; i++)
        if (repeated >> i & 1u) cuda_need(cudaFree(c->in[i].data), "cudaFree");
    cuda_need(cudaFree(c->out.data), "cudaFree");
    if (c->saved[0].rank > 0) cuda_need(cudaFree(c->saved[0].data), "cudaFree");
    return ms;
}

static int check_one(const h3_operator_library *library, const char *node, int64_t rows, unsigned repeated)
{
    const h3_operator *op = library_operator(library, node);
    problem base;
    gpu_problem g;
    int status = op == NULL;
    problem_new(&base, node, &released);
    gpu_upload(&g, &base, NULL);
    char *tail = malloc((size_t)tensor_bytes(&base.call.out));
    float ms = 0;
    if (!tail) exit(4);
    const bool attention = starts(node, "attention");
    /* Attention's rows see all keys, so what stands alone is one row's repetition: the base has the same keys and fewer queries. */
    if (op && attention) {
        h3_tensor query = g.call.in[0];
        const int64_t keys = rows;
        for (int i = 1; i < 3; i++) g.call.in[i] = repeat_rows(&g.call.in[i], keys);
        g.call.in[0] = query;
    }
    if (!status) status = gpu_run(&g, op, false);
    gpu_download(&g, false);
    if (!status) ms = run_repeated(&g, op, rows, repeated, tail, &status);
    const int64_t last = rows - (rows - 1) / BASE_ROWS * BASE_ROWS, row_bytes = tensor_bytes(&base.call.out) / BASE_ROWS;
    const bool same = !status && !memcmp(tail, base.call.out.data, (size_t)(last * row_bytes));
    printf("%-9s %-20s %-4s rows=%lld %s  fwd %.3f ms\n", released.name, node, same ? "OK" : "FAIL", (long long)rows,
           status ? g.call.message : same ? "last rows as alone" : "last rows differ", (double)ms);
    fflush(stdout);
    if (attention)
        for (int i = 1; i < 3; i++) cuda_need(cudaFree(g.call.in[i].data), "cudaFree");
    for (int i = 1; i < 3 && attention; i++) g.own[i] = false;
    gpu_free(&g);
    free(tail);
    problem_free(&base);
    return !same;
}

int check_large(const h3_operator_library *library, int *run)
{
    static const struct {
        const char *node;
        int64_t rows;
        unsigned repeated; /* inputs that have a row for each packed row */
    } checks[] = {{"ffn_gate_up", 80000, 1}, {"swiglu", 80000, 1}, {"ffn_down", 160000, 1}, {"norm1", 420000, 5}, {"q_norm", 310000, 1},
                  {"rope_q", 310000, 7}, {"residual_mlp", 420000, 11}, {"attention", 39230, 1}};
    int failures = 0;
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++, (*run)++) failures += check_one(library, checks[i].node, checks[i].rows, checks[i].repeated);
    return failures;
}
