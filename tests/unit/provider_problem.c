#include "provider_problem.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const h3_operator_library *provider_library(void)
{
    static const h3_operator_library *library;
    char path[4096];
    const char *folder = getenv("H3_LIB");
    h3_operator_library_get_fn get;
    if (library != NULL) return library;
    snprintf(path, sizeof path, "%s/libh3_provider_cpu.so", folder ? folder : "lib/h3");
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) fail_msg("%s", dlerror());
    void *symbol = dlsym(handle, H3_OPERATOR_LIBRARY_SYMBOL);
    if (symbol == NULL) fail_msg("%s exports no %s", path, H3_OPERATOR_LIBRARY_SYMBOL);
    memcpy(&get, &symbol, sizeof get);
    library = get();
    assert_non_null(library);
    return library;
}

const h3_operator *provider_operator(const char *node)
{
    const h3_operator_library *library = provider_library();
    for (uint32_t i = 0; i < library->operator_count; i++) {
        if (strcmp(library->operators[i].node, node) == 0) return &library->operators[i];
    }
    fail_msg("no operator for %s", node);
    return NULL;
}

uint32_t test_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

void *problem_block(problem *p, size_t bytes)
{
    void *block;
    assert_true(p->block_count < PROBLEM_BLOCKS);
    assert_int_equal(h3_alloc(&block, bytes + 1, 1, "a test"), H3_OK);
    p->blocks[p->block_count++] = block;
    return block;
}

h3_tensor problem_tensor_new(problem *p, int32_t dtype, int32_t rank, const int64_t *shape, int offset)
{
    h3_tensor tensor = h3_tensor_view(NULL, dtype, rank, shape);
    size_t size = h3_dtype_size(dtype), bytes = h3_tensor_bytes(&tensor);
    /* The end of the block is the end of the tensor, so that a sanitizer sees a step beyond it. */
    char *block = malloc(bytes + (offset ? size : 0));
    assert_non_null(block);
    assert_true(p->block_count < PROBLEM_BLOCKS);
    p->blocks[p->block_count++] = block;
    tensor.data = block + (offset ? size : 0);
    memset(tensor.data, 0xa5, bytes);
    return tensor;
}

static void set_value(h3_tensor *tensor, int64_t i, double value)
{
    if (tensor->dtype == H3_BF16) ((uint16_t *)tensor->data)[i] = h3_f32_to_bf16((float)value);
    else ((float *)tensor->data)[i] = (float)value;
}

double tensor_value(const h3_tensor *tensor, int64_t i)
{
    return tensor->dtype == H3_BF16 ? (double)h3_bf16_to_f32(((const uint16_t *)tensor->data)[i])
                                    : (double)((const float *)tensor->data)[i];
}

void tensor_nudge(h3_tensor *tensor, int64_t element, double amount)
{
    set_value(tensor, element, tensor_value(tensor, element) + amount);
}

static void fill(h3_tensor *tensor, const problem_tensor *spec, uint64_t *random)
{
    double scale = spec->kind == 'w' ? sqrt(3.0 / (double)spec->shape[spec->rank - 1]) : spec->kind == 'n' ? 0.25 : 1.0;
    for (int64_t i = 0; i < h3_tensor_count(tensor); i++) {
        uint32_t bits = test_random(random);
        if (spec->kind == 'i') ((int32_t *)tensor->data)[i] = (int32_t)(bits % (uint32_t)spec->limit);
        else set_value(tensor, i, (spec->kind == 'n' ? 1.0 : 0.0) + scale * ((double)bits / 1073741824.0 - 1.0));
    }
}

static h3_tensor make(problem *p, const problem_tensor *spec, int offset, uint64_t *random, double **values)
{
    int32_t dtype = spec->kind == 'i' ? H3_I32 : spec->kind == 'f' ? H3_F32 : p->dtype;
    if (spec->kind == 0) return (h3_tensor){0};
    h3_tensor tensor = problem_tensor_new(p, dtype, spec->rank, spec->shape, offset);
    fill(&tensor, spec, random);
    if (spec->kind == 'i') return tensor;
    *values = problem_block(p, (size_t)h3_tensor_count(&tensor) * sizeof **values);
    for (int64_t i = 0; i < h3_tensor_count(&tensor); i++) (*values)[i] = tensor_value(&tensor, i);
    return tensor;
}

/* Row gradients of adaln_projection go in; their sum by table row is the cotangent of the table. */
static void make_row_gradients(problem *p, int offset, uint64_t *random)
{
    const h3_tensor *table = &p->call.out;
    int64_t width = table->shape[2], rows = 11;
    double *unused;
    problem_tensor index = {'i', 1, {rows}, (int)table->shape[0] - 1}, gradient = {'a', 2, {rows, width}, 0};
    p->call.row_index = make(p, &index, offset, random, &unused);
    p->dout_value = problem_block(p, (size_t)h3_tensor_count(table) * sizeof(double));
    for (int c = 0; c < H3_ROW_GRADS; c++) {
        p->call.row_grad[c] = make(p, &gradient, offset, random, &unused);
        for (int64_t i = 0; i < rows * width; i++) {
            int64_t row = ((const int32_t *)p->call.row_index.data)[i / width];
            p->dout_value[(row * H3_ROW_GRADS + c) * width + i % width] += tensor_value(&p->call.row_grad[c], i);
        }
    }
    p->call.dtable = problem_tensor_new(p, table->dtype, 3, table->shape, offset);
}

problem *problem_new(const problem_spec *spec, int32_t dtype, int offset)
{
    uint64_t random = 20260101;
    problem *p = calloc(1, sizeof *p);
    assert_non_null(p);
    *p = (problem){.spec = spec, .op = provider_operator(spec->node), .dtype = dtype};
    p->call = (h3_call){.size = sizeof(h3_call), .device = H3_DEVICE_CPU, .chunk = spec->chunk, .epsilon = 1e-5f};
    for (int i = 0; i < H3_MAX_IN; i++) {
        p->call.in[i] = make(p, &spec->in[i], offset, &random, &p->in_value[i]);
        if (spec->gradient_in[i])
            p->call.din[i] = problem_tensor_new(p, p->call.in[i].dtype, spec->in[i].rank, spec->in[i].shape, offset);
    }
    for (int i = 0; i < H3_MAX_PARAM; i++) {
        p->call.param[i] = make(p, &spec->param[i], offset, &random, &p->param_value[i]);
        if (spec->param[i].kind)
            p->call.dparam[i] = problem_tensor_new(p, p->call.param[i].dtype, spec->param[i].rank, spec->param[i].shape, offset);
    }
    p->call.out = problem_tensor_new(p, spec->out.kind == 'f' ? H3_F32 : dtype, spec->out.rank, spec->out.shape, offset);
    p->out_value = problem_block(p, (size_t)h3_tensor_count(&p->call.out) * sizeof(double));
    if (spec->row_grads < 0) make_row_gradients(p, offset, &random);
    else p->call.dout = make(p, &spec->out, offset, &random, &p->dout_value);
    for (int i = 0; i < spec->row_grads; i++) p->call.row_grad[i] = problem_tensor_new(p, dtype, 2, spec->out.shape, offset);
    h3_call_plan plan;
    assert_int_equal(p->op->plan(&p->call, &plan), 0);
    for (int i = 0; i < plan.saved_count; i++)
        p->call.saved[i] = problem_tensor_new(p, plan.saved[i].dtype, plan.saved[i].rank, plan.saved[i].shape, offset);
    return p;
}

void problem_free(problem *p)
{
    for (int i = 0; i < p->block_count; i++) free(p->blocks[i]);
    free(p);
}

const problem_spec *problem_named(const char *node)
{
    for (int i = 0; i < provider_problem_count; i++) {
        if (strcmp(provider_problems[i].node, node) == 0) return &provider_problems[i];
    }
    fail_msg("no problem for %s", node);
    return NULL;
}

static void run(problem *p, int garbage, size_t workspace, int (*call)(h3_call *), const char *direction)
{
    void *memory = workspace > 0 ? aligned_alloc(64, (workspace + 63) / 64 * 64) : NULL;
    if (memory != NULL) memset(memory, garbage, workspace);
    p->call.workspace = memory;
    p->call.workspace_bytes = workspace;
    int code = call(&p->call);
    free(memory);
    if (code != 0) fail_msg("%s %s: %s", p->spec->node, direction, p->call.message);
    assert_int_equal(p->call.report.fallback, 0);
    assert_true(strlen(p->call.report.kernel) > 0);
    assert_int_equal(strlen(p->call.message), 0);
}

void problem_forward(problem *p, int garbage)
{
    h3_call_plan plan;
    assert_int_equal(p->op->plan(&p->call, &plan), 0);
    run(p, garbage, plan.forward_workspace, p->op->forward, "forward");
}

void problem_backward(problem *p, int garbage)
{
    h3_call_plan plan;
    assert_int_equal(p->op->plan(&p->call, &plan), 0);
    run(p, garbage, plan.backward_workspace, p->op->backward, "backward");
}

double relative_error(const h3_tensor *x, const double *g)
{
    double difference = 0, size = 0;
    for (int64_t i = 0; i < h3_tensor_count(x); i++) {
        double d = tensor_value(x, i) - g[i];
        difference += d * d;
        size += g[i] * g[i];
    }
    return sqrt(difference) / sqrt(size);
}

static double loss(problem *p)
{
    double sum = 0;
    p->spec->reference(p);
    for (int64_t i = 0; i < h3_tensor_count(&p->call.out); i++) sum += p->out_value[i] * p->dout_value[i];
    return sum;
}

double *finite_difference(problem *p, double *values, int64_t count)
{
    const double step = 1e-4;
    double *gradient = problem_block(p, (size_t)count * sizeof *gradient);
    for (int64_t i = 0; i < count; i++) {
        double value = values[i];
        values[i] = value + step;
        double above = loss(p);
        values[i] = value - step;
        double below = loss(p);
        values[i] = value;
        gradient[i] = (above - below) / (2 * step);
    }
    return gradient;
}
