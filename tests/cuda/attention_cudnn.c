/*
 * The provider's attention on one GPU: operator "attention" (cuDNN where it takes the shape) beside "attention-chunked".
 *
 *   attention_cudnn [--cases s29,s264,s925,s3160,one,odd,cold] [--rounds N] PROVIDER_CUDA.so
 *
 * Checks which kernel the report names, that a repeat gives the same bytes, that a batch gives each item's own bytes, the output and the
 * log-sum-exp against a reference in double on sampled rows, the backward that reads them against the one that reads the chunked
 * forward's, and that what cannot run is refused. Then times both, taking turns. Exit code 0: all is well; 1: a check failed; 2: usage; 4: no GPU.
 *
 * With EMULATE_CUDA=1 it runs without a GPU (--cases s29,one,odd,cold --rounds 0), and must fail with H3_EMULATE_CUDNN=log2, drift, coarse, refuse
 * (emulate_cudnn.cpp).
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "check.h"

enum { SAMPLES = 48, REPEATS = 10, MOST_ROUNDS = 99 };

/* Bounds for normally sized scores; one rounding of p and one of o to BF16 are 2e-3 together. */
static const double output_bound = 4e-3, log_sum_bound = 1e-3, gradient_bound = 1.2e-2;

static const struct attention_case {
    const char *name, *node;
    int64_t keys, heads, head_dim, queries, items;
    bool fused; /* cuDNN takes it */
    double gradients; /* bound between both paths' gradients; 0: the usual one */
} cases[] = {
    {"s29", "attention", 29, 2, 32, 29, 3, true, 0},       {"s264", "attention", 264, 56, 128, 264, 1, true, 0},
    {"s925", "attention", 925, 56, 128, 925, 1, true, 0},  {"s3160", "attention", 3160, 56, 128, 3160, 1, true, 0},
    {"one", "attention", 264, 56, 128, 1, 1, false, 0},    {"odd", "attention", 31, 3, 21, 31, 2, false, 0},
    /* Even probabilities: dS is what is left of a cancellation, and the two outputs that it starts from differ by a rounding. */
    {"cold", "attention/cold", 264, 2, 128, 264, 1, true, 6e-2},
};

typedef struct operators {
    const h3_operator *fused, *chunked;
    bool cudnn; /* the library has it */
} operators;

/* A problem run with one operator. */
typedef struct run {
    problem host;
    gpu_problem gpu;
    char kernel[2][sizeof((h3_call_report *)NULL)->kernel];
} run;

static void run_new(verdict *v, run *r, const problem *base, const company *who, const h3_operator *op)
{
    problem_in_company(&r->host, base, who);
    gpu_upload(&r->gpu, &r->host, NULL);
    for (int direction = 0; direction < 2; direction++) {
        if (gpu_run(&r->gpu, op, direction)) complain(v, &r->host, "%s %s: %s", op->name, direction ? "backward" : "forward", r->gpu.call.message);
        gpu_download(&r->gpu, direction);
        memcpy(r->kernel[direction], r->gpu.call.report.kernel, sizeof r->kernel[direction]);
    }
}

static void run_free(run *r)
{
    gpu_free(&r->gpu);
    problem_free(&r->host);
}

static double value(const h3_tensor *t, int64_t i)
{
    return t->dtype == H3_F32 ? (double)((const float *)t->data)[i] : (double)h3_bf16_to_f32(((const uint16_t *)t->data)[i]);
}

/* One row of one head in double: o [head_dim]; returns the log-sum-exp. */
static double reference_row(const h3_call *c, int64_t item, int64_t row, int64_t head, double *o)
{
    const int64_t keys = c->in[1].shape[1], heads = c->in[0].shape[2], width = c->in[0].shape[3];
    const int64_t q = ((item * c->in[0].shape[1] + row) * heads + head) * width;
    const double scale = 1.0 / sqrt((double)width);
    double *score = malloc((size_t)keys * sizeof *score), most = -INFINITY, sum = 0;
    if (!score) exit(4);
    for (int64_t j = 0; j < keys; j++) {
        const int64_t k = ((item * keys + j) * heads + head) * width;
        score[j] = 0;
        for (int64_t d = 0; d < width; d++) score[j] += value(&c->in[0], q + d) * value(&c->in[1], k + d);
        score[j] *= scale;
        most = fmax(most, score[j]);
    }
    for (int64_t d = 0; d < width; d++) o[d] = 0;
    for (int64_t j = 0; j < keys; j++) {
        const double p = exp(score[j] - most);
        const int64_t k = ((item * keys + j) * heads + head) * width;
        sum += p;
        for (int64_t d = 0; d < width; d++) o[d] += p * value(&c->in[2], k + d);
    }
    for (int64_t d = 0; d < width; d++) o[d] /= sum;
    free(score);
    return most + log(sum);
}

/* Errors over sampled rows: of o relative to its norm, of the log-sum-exp the largest absolute one. NaN when there is one. */
static void against_reference(const h3_call *c, double *output, double *log_sum)
{
    const int64_t queries = c->in[0].shape[1], heads = c->in[0].shape[2], width = c->in[0].shape[3];
    double *o = malloc((size_t)width * sizeof *o), wrong = 0, power = 0;
    if (!o) exit(4);
    *log_sum = 0;
    for (int64_t s = 0; s < SAMPLES; s++) {
        const int64_t item = s % c->in[0].shape[0], row = s * INT64_C(2654435761) % queries, head = s * 7 % heads;
        const double lse = reference_row(c, item, row, head, o);
        const double off = fabs(value(&c->saved[0], (item * heads + head) * queries + row) - lse);
        if (!(off <= *log_sum)) *log_sum = off; /* a NaN stays */
        for (int64_t d = 0; d < width; d++) {
            const double x = value(&c->out, ((item * queries + row) * heads + head) * width + d);
            wrong += (x - o[d]) * (x - o[d]);
            power += o[d] * o[d];
        }
        if (isnan(*log_sum)) break;
    }
    *output = isnan(*log_sum) ? NAN : sqrt(wrong / power);
    free(o);
}

static void check_errors(verdict *v, const run *r, const char *name)
{
    double output, log_sum;
    against_reference(&r->host.call, &output, &log_sum);
    note(v, "  %s: o %.2e, lse %.1e", name, output, log_sum);
    if (!(output <= output_bound)) complain(v, &r->host, "%s: error of o is %.3e, bound %.1e", name, output, output_bound);
    if (!(log_sum <= log_sum_bound)) complain(v, &r->host, "%s: error of the log-sum-exp is %.3e, bound %.1e", name, log_sum, log_sum_bound);
}

static void check_kernel(verdict *v, const run *r, bool cudnn)
{
    const char *wanted = cudnn ? "cudnn-" : "cublas-chunked";
    if (!starts(r->kernel[0], wanted)) complain(v, &r->host, "the forward says that \"%s\" ran, not %s", r->kernel[0], wanted);
    if (!starts(r->kernel[1], "cublas-chunked")) complain(v, &r->host, "the backward says that \"%s\" ran, not cublas-chunked", r->kernel[1]);
}

static void check_backward(verdict *v, const run *a, const run *b, double bound)
{
    double worst = 0;
    for (int i = 0; i < 3; i++) {
        const double error = relative_error(&a->host.call.din[i], &b->host.call.din[i]);
        if (!(error <= worst)) worst = error;
        if (!(error <= bound)) complain(v, &a->host, "din[%d] is %.3e from the chunked one, bound %.1e", i, error, bound);
    }
    note(v, "  gradients apart %.1e", worst);
}

/* An item of a batch has the bytes that it has alone. */
static void check_item(verdict *v, const problem *base, const run *r, const company *who, const h3_operator *op)
{
    const company alone = {1, 0, who->rows, who->offset, 0}, here = {who->items, who->position, who->rows, 0, 0};
    run single;
    run_new(v, &single, base, &alone, op);
    const int64_t row = first_different_row(&single.host, &r->host, &here, false);
    if (row >= 0) complain(v, &r->host, "row %lld of item %lld of %lld has other bytes alone", (long long)row, (long long)who->position, (long long)who->items);
    run_free(&single);
}

/* What cannot run is refused with words; nothing is launched. */
static void check_refusals(verdict *v, const run *r, const h3_operator *op, bool cudnn)
{
    h3_call_plan plan = {0};
    if (op->plan(&r->gpu.call, &plan)) complain(v, &r->host, "no plan for a good call");
    for (int what = 0; what < 4; what++) {
        h3_call call = r->gpu.call;
        call.workspace = NULL;
        call.workspace_bytes = 0;
        call.message[0] = 0;
        if ((what == 0 && !cudnn) || (what == 3 && plan.forward_workspace == 0)) continue;
        if (what == 0) call.in[1].data = (char *)call.in[1].data + 2;
        if (what == 1) call.in[2].data = NULL;
        if (what == 2) call.saved[0].shape[2]++;
        if (op->forward(&call) == 0 || call.message[0] == 0) complain(v, &r->host, "refusal %d did not come", what);
        else if (what == 0 && !strstr(call.message, "aligned")) complain(v, &r->host, "a misaligned k is refused for another reason: %s", call.message);
    }
}

static int ascending(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void measure(verdict *v, run *fused, run *chunked, const operators *op, int rounds)
{
    float ms[2][MOST_ROUNDS];
    const h3_call *c = &fused->host.call;
    const double work = 4.0 * (double)h3_tensor_count(&c->in[0]) * (double)c->in[1].shape[1];
    for (int i = 0; i < rounds; i++) {
        ms[0][i] = gpu_time(&fused->gpu, op->fused, false, REPEATS);
        ms[1][i] = gpu_time(&chunked->gpu, op->chunked, false, REPEATS);
    }
    for (int side = 0; side < 2 && rounds > 0; side++) {
        qsort(ms[side], (size_t)rounds, sizeof(float), ascending);
        const double median = (double)ms[side][rounds / 2];
        note(v, "  %s %.1f us %.1f TFLOP/s", side ? "chunked" : "attention", 1e3 * median, work / median / 1e9);
    }
}

static int check_case(const struct attention_case *c, const operators *op, int rounds)
{
    const dims size = {c->name, c->keys, 8, c->heads, c->head_dim, 8, 8, 1, 1};
    const company who = {c->items, c->items / 2, c->queries, c->queries < c->keys ? c->keys / 3 : 0, 0};
    const bool cudnn = op->cudnn && c->fused;
    problem base;
    run first, again, chunked;
    verdict v = {0};
    problem_new(&base, c->node, &size);
    run_new(&v, &first, &base, &who, op->fused);
    run_new(&v, &again, &base, &who, op->fused);
    run_new(&v, &chunked, &base, &who, op->chunked);
    check_kernel(&v, &first, cudnn);
    check_kernel(&v, &chunked, false);
    for (int direction = 0; direction < 2; direction++)
        if (!same_results(&first.host, &again.host, direction)) complain(&v, &base, "a repeat of the %s gives other bytes", direction ? "backward" : "forward");
    if (!cudnn && !same_results(&first.host, &chunked.host, false)) complain(&v, &base, "without cuDNN the two operators differ");
    if (strcmp(first.kernel[0], again.kernel[0]) != 0) complain(&v, &base, "a repeat ran \"%s\"", again.kernel[0]);
    check_errors(&v, &first, "attention");
    check_errors(&v, &chunked, "chunked");
    note(&v, "  apart %.1e", relative_error(&first.host.call.out, &chunked.host.call.out));
    check_backward(&v, &first, &chunked, c->gradients > 0 ? c->gradients : gradient_bound);
    check_item(&v, &base, &first, &who, op->fused);
    check_refusals(&v, &first, op->fused, cudnn);
    if (v.failures == 0) measure(&v, &first, &chunked, op, rounds);
    printf("%-6s %lld x %lld queries, %lld keys, %lld x %lld  %s  %s |%s\n", c->name, (long long)c->items, (long long)c->queries, (long long)c->keys,
           (long long)c->heads, (long long)c->head_dim, v.failures ? "FAIL" : "OK", first.kernel[0], v.line);
    fflush(stdout);
    run_free(&first);
    run_free(&again);
    run_free(&chunked);
    problem_free(&base);
    return v.failures;
}

static bool listed(const char *list, const char *word)
{
    const size_t length = strlen(word);
    for (const char *place = list; (place = strstr(place, word)) != NULL; place += length)
        if ((place == list || place[-1] == ',') && (place[length] == ',' || place[length] == 0)) return true;
    return false;
}

static const h3_operator *named(const h3_operator_library *library, const char *name)
{
    for (uint32_t i = 0; i < library->operator_count; i++)
        if (!strcmp(library->operators[i].name, name)) return &library->operators[i];
    fprintf(stderr, "the library has no operator \"%s\"\n", name);
    exit(4);
}

int main(int argc, char **argv)
{
    const char *wanted = "s29,s264,s925,s3160,one,odd,cold", *path = NULL;
    int rounds = 9, failures = 0, ran = 0;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--cases") && i + 1 < argc) wanted = argv[++i];
        else if (!strcmp(argv[i], "--rounds") && i + 1 < argc) rounds = atoi(argv[++i]);
        else if (!path && argv[i][0] != '-') path = argv[i];
        else path = "";
    }
    if (!path || !path[0] || rounds < 0 || rounds > MOST_ROUNDS) {
        fprintf(stderr, "usage: attention_cudnn [--cases LIST] [--rounds 0..%d] PROVIDER_CUDA.so\n", MOST_ROUNDS);
        return 2;
    }
    const h3_operator_library *library = library_load(path);
    const operators op = {named(library, "attention"), named(library, "attention-chunked"), strstr(library->architectures, "cudnn-") != NULL};
    printf("%s; contract %s\n", library->architectures, op.fused->contract);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (!listed(wanted, cases[i].name)) continue;
        failures += check_case(&cases[i], &op, rounds);
        ran++;
    }
    printf("attention: %d cases, %d failures\n", ran, failures);
    return failures != 0 || ran == 0;
}
