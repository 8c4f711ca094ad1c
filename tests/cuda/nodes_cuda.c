/*
 * Every node of the CUDA candidate, forward and backward, on one GPU: against the CPU candidate, against the model of the tensor
 * core, against itself (repeats, row counts, batch populations), and against a provider's bytes where they are promised.
 *
 *   nodes_cuda [--dims nano,tiny,odd,wide,d32,d64,released] [--rows N] [--node PREFIXES] [--time REPEATS] [--large] [--digests FILE] [--quick]
 *              [--provider LIBRARY.so] CANDIDATE_CUDA.so CANDIDATE_CPU.so
 *
 * One line a node: sizes, OK or FAIL, which kernels ran, what was found, times; with a provider on the GPU the ratio to its times, taken in turns. --digests writes the
 * SHA-256 of every node's results, forward and backward, so that two processes can be compared; --quick checks nothing else. Exit code 0: all is well; 1: a check failed; 2: usage; 4: no GPU or memory.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <cuda_runtime_api.h>

#include "base/error.h"
#include "base/text.h"
#include "check.h"
#include "large.h"
#include "turns.h"

static const char *const nodes[] = {"adaln_projection", "norm1", "norm1/plain", "q_proj", "k_proj", "v_proj", "q_norm", "k_norm", "rope_q", "rope_k",
                                    "attention", "attention/cold", "o_proj", "residual_attn", "residual_attn/plain", "norm2", "ffn_gate_up", "swiglu", "ffn_down",
                                    "residual_mlp"};

/*      name        rows  hidden heads head_dim ffn embed timesteps freq */
static const dims sizes[] = {
    {"nano", 264, 24, 2, 16, 32, 16, 2, 2},         {"tiny", 264, 160, 2, 128, 320, 96, 3, 16}, {"odd", 264, 37, 3, 21, 13, 11, 3, 3},
    {"wide", 264, 6150, 1, 48, 72, 40, 7, 8},       {"d32", 264, 72, 3, 32, 40, 24, 1, 5},      {"d64", 264, 136, 2, 64, 104, 56, 2, 8},
    {"released", 264, 5376, 56, 128, 14336, 2688, 3, 16},
};

typedef struct options {
    const char *dims, *node, *provider, *candidate_cuda, *candidate_cpu, *digests;
    FILE *digest_file;
    int64_t rows;
    int repeats;
    bool large, quick;
} options;

typedef struct libraries {
    const h3_operator_library *gpu, *cpu, *provider;
    bool hopper; /* the model speaks about this GPU */
} libraries;

static bool run_both(verdict *v, gpu_problem *g, const h3_operator *op, bool backward)
{
    for (int direction = 0; direction <= (backward ? 1 : 0); direction++) {
        if (gpu_run(g, op, direction)) {
            complain(v, g->host, "%s failed: %s", direction ? "backward" : "forward", g->call.message);
            return false;
        }
        note(v, "  %s", g->call.report.kernel);
        gpu_download(g, direction);
    }
    return true;
}

static void check_cpu(verdict *v, const problem *base, const h3_operator *op)
{
    problem twin;
    problem_twin(&twin, base);
    for (int direction = 0; direction < 2; direction++) {
        if (host_run(&twin, op, direction)) complain(v, base, "the CPU candidate failed: %s", twin.call.message);
        else check_against_cpu(v, base, &twin, direction);
    }
    problem_free(&twin);
}

static void check_repeat(verdict *v, const problem *base, const gpu_problem *uploaded, const h3_operator *op)
{
    problem twin;
    gpu_problem g;
    problem_twin(&twin, base);
    gpu_upload(&g, &twin, uploaded);
    if (run_both(v, &g, op, true)) {
        for (int direction = 0; direction < 2; direction++)
            if (!same_results(base, &twin, direction)) complain(v, base, "a repeat of the %s gives other bytes", direction ? "backward" : "forward");
    }
    gpu_free(&g);
    problem_free(&twin);
}

/* The same rows beside others; adaln_projection has timesteps for rows and no backward by rows. */
static bool same_in_company(verdict *v, const problem *base, const gpu_problem *uploaded, const h3_operator *op, const company *who)
{
    problem other;
    gpu_problem g;
    const bool backward = !starts(base->node, "adaln");
    bool same = true;
    problem_in_company(&other, base, who);
    gpu_upload(&g, &other, uploaded);
    if (run_both(v, &g, op, backward)) {
        for (int direction = 0; direction <= backward; direction++) {
            const int64_t row = first_different_row(base, &other, who, direction);
            if (row < 0) continue;
            same = false;
            complain(v, base, "%s: row %lld changes as item %lld of %lld with %lld rows from %lld on", direction ? "backward" : "forward", (long long)row,
                     (long long)who->position, (long long)who->items, (long long)who->rows, (long long)who->offset);
        }
    }
    gpu_free(&g);
    problem_free(&other);
    return same;
}

/* What the gate promises of a row (qualification.md, "batch row"): row counts at tile edges, populations, positions in the batch, other neighbours. */
static void check_rows(verdict *v, const problem *base, const gpu_problem *uploaded, const h3_operator *op)
{
    static const int64_t counts[] = {1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 257};
    static const struct {
        int64_t items, position, turn;
    } batches[] = {{2, 1, 7}, {2, 1, 11}, {3, 1, 7}, {5, 4, 7}, {8, 0, 7}, {17, 8, 7}, {45, 44, 7}, {45, 0, 11}};
    int right = 0, all = 0;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        const company who = {1, 0, counts[i], i % 2 ? (base->rows - counts[i]) / 2 : 0, 7};
        if (counts[i] > base->rows) continue;
        all++;
        right += same_in_company(v, base, uploaded, op, &who);
    }
    for (size_t i = 0; i < sizeof batches / sizeof *batches; i++) {
        const company who = {batches[i].items, batches[i].position, base->rows < 65 ? base->rows : 65, 0, batches[i].turn};
        all++;
        right += same_in_company(v, base, uploaded, op, &who);
    }
    note(v, " company=%d/%d", right, all);
}

/* "bytes", or the error of a result against the provider's. */
static void note_result(verdict *v, const char *name, const h3_tensor *a, const h3_tensor *b)
{
    if (a->rank == 0) return;
    if (!memcmp(a->data, b->data, (size_t)tensor_bytes(a))) note(v, " %s=bytes", name);
    else note(v, " %s=%.1e", name, relative_error(a, b));
}

/* Forward bytes of the promised nodes; the rest, dX and dW among it, is compared and reported. A provider on the CPU has its own products, those are not
 * compared. */
static void check_provider(verdict *v, const problem *base, const libraries *l, const h3_operator *own)
{
    const h3_operator *op = library_operator(l->provider, base->node);
    const bool on_gpu = l->provider->device == H3_DEVICE_CUDA, promised = own->promises & H3_PROMISE_ISOLATED_BITWISE;
    problem twin;
    gpu_problem g;
    int status = 0;
    if (!op) {
        complain(v, base, "the provider does not serve it");
        return;
    }
    problem_twin(&twin, base);
    if (on_gpu) {
        gpu_upload(&g, &twin, NULL);
        for (int direction = 0; direction < 2 && !status; direction++) {
            status = gpu_run(&g, op, direction);
            gpu_download(&g, direction);
        }
        gpu_free(&g);
    } else {
        for (int direction = 0; direction < 2 && !status; direction++) status = host_run(&twin, op, direction);
    }
    const bool forward = same_results(base, &twin, false);
    if (status) complain(v, base, "the provider failed");
    else if (promised && !forward && (on_gpu || !(node_is_linear(base->node) || starts(base->node, "adaln"))))
        complain(v, base, "out differs from the provider's bytes, error %.2e", relative_error(&base->call.out, &twin.call.out));
    note(v, " provider:");
    note_result(v, "out", &base->call.out, &twin.call.out);
    note_result(v, "dX", &base->call.din[0], &twin.call.din[0]);
    note_result(v, "dW", &base->call.dparam[0], &twin.call.dparam[0]);
    problem_free(&twin);
}

/* The bytes of all results, for another process to compare with. */
static void write_digests(verdict *v, const problem *base, FILE *file)
{
    for (int direction = 0; direction < 2; direction++) {
        char digest[H3_SHA256_HEX];
        if (!digest_of(base, direction, digest)) complain(v, base, "no digest of the %s: %s", direction ? "backward" : "forward", h3_error_text());
        else if (fprintf(file, "%s %s %lld %s %s\n", base->size.name, base->node, (long long)base->size.rows, direction ? "backward" : "forward", digest) < 0)
            complain(v, base, "the digests cannot be written");
    }
}

/* Multiply-adds of the forward, times two; 0: a node that moves bytes. */
static double forward_work(const problem *p)
{
    const h3_call *c = &p->call;
    if (starts(p->node, "attention")) return 4.0 * (double)h3_tensor_count(&c->in[0]) * (double)c->in[1].shape[1];
    if (!node_is_linear(p->node) && !starts(p->node, "adaln")) return 0;
    return 2.0 * (double)c->in[0].shape[0] * (double)c->param[0].shape[0] * (double)c->param[0].shape[1];
}

static double moved_bytes(const problem *p, bool backward)
{
    h3_tensor *list[CALL_TENSORS];
    int written[CALL_TENSORS];
    h3_call c = p->call;
    double bytes = 0;
    call_tensors(&c, list, written);
    for (int i = 0; i < CALL_TENSORS; i++)
        if (list[i]->rank > 0 && (backward || written[i] != 2) && !(list[i] == &c.dout && !backward)) bytes += (double)tensor_bytes(list[i]);
    return bytes;
}

/* What is measured: an operator, and a provider's or NULL. */
typedef struct measured {
    gpu_problem *g;
    const h3_operator *own, *provider;
    int direction, repeats;
} measured;

/* A backward pass reads what its own forward pass has left. */
static double timed(const void *what, int own)
{
    const measured *m = what;
    const h3_operator *op = own ? m->own : m->provider;
    if (op == NULL) return 0;
    if (m->direction && gpu_run(m->g, op, false)) return NAN;
    return (double)gpu_time(m->g, op, m->direction, m->repeats);
}

static void measure(verdict *v, const problem *base, measured m)
{
    const double work = forward_work(base), factor = starts(base->node, "attention") ? 2.5 : 2;
    for (m.direction = 0; m.direction < 2; m.direction++) {
        const turns t = take_turns(5, timed, &m);
        note(v, "  %s %.4f ms", m.direction ? "bwd" : "fwd", t.own);
        if (work > 0) note(v, " %.0f GFLOP/s", work * (m.direction ? factor : 1) / t.own / 1e6);
        else note(v, " %.0f GB/s", moved_bytes(base, m.direction) / t.own / 1e6);
        if (m.provider) note(v, " %.3f of the provider's", t.ratio);
    }
}

/* Tensors may be refused, never misread. */
static void check_refusals(verdict *v, const problem *base, const gpu_problem *g, const h3_operator *op)
{
    const struct {
        const char *what;
        int device, no_input, wrong_type, no_workspace;
    } cases[] = {{"a host call", 1, 0, 0, 0}, {"an absent input", 0, 1, 0, 0}, {"an FP64 input", 0, 0, 1, 0}, {"a workspace of no bytes", 0, 0, 0, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        h3_call call = g->call;
        h3_call_plan plan;
        memset(&plan, 0, sizeof plan);
        if (op->plan(&call, &plan)) complain(v, base, "no plan for a good call");
        if (cases[i].device) call.device = H3_DEVICE_CPU;
        if (cases[i].no_input) call.in[0] = (h3_tensor){0};
        if (cases[i].wrong_type) call.in[0].dtype = H3_F64;
        for (int direction = 0; direction < 2; direction++) {
            if (cases[i].no_workspace && (direction ? plan.backward_workspace : plan.forward_workspace) == 0) continue;
            call.workspace_bytes = 0;
            call.message[0] = 0;
            if ((direction ? op->backward(&call) : op->forward(&call)) == 0 || call.message[0] == 0)
                complain(v, base, "%s accepts %s", direction ? "backward" : "forward", cases[i].what);
        }
    }
}

static void check_all(verdict *v, const problem *base, gpu_problem *g, const libraries *l, const h3_operator *op, const h3_operator *cpu)
{
    check_cpu(v, base, cpu);
    for (int direction = 0; direction < 2 && l->hopper; direction++) check_against_model(v, base, direction, 64);
    if (!l->hopper) note(v, " model=of another GPU");
    check_repeat(v, base, g, op);
    check_rows(v, base, g, op);
    check_refusals(v, base, g, op);
    if (l->provider) check_provider(v, base, l, op);
}

static int check_node(const libraries *l, const options *o, const char *node, const dims *size)
{
    const h3_operator *op = library_operator(l->gpu, node), *cpu = library_operator(l->cpu, node);
    problem base;
    gpu_problem g;
    verdict v = {0};
    problem_new(&base, node, size);
    gpu_upload(&g, &base, NULL);
    if (!op || !cpu) {
        complain(&v, &base, "a library does not serve it");
    } else if (run_both(&v, &g, op, true)) {
        if (o->digest_file) write_digests(&v, &base, o->digest_file);
        if (!o->quick) check_all(&v, &base, &g, l, op, cpu);
        const h3_operator *provider = l->provider && l->provider->device == H3_DEVICE_CUDA ? library_operator(l->provider, node) : NULL;
        if (o->repeats > 0) measure(&v, &base, (measured){&g, op, provider, 0, o->repeats});
    }
    printf("%-9s %-20s %-4s rows=%lld%s\n", size->name, node, v.failures ? "FAIL" : "OK", (long long)size->rows, v.line);
    fflush(stdout);
    gpu_free(&g);
    problem_free(&base);
    return v.failures;
}

static bool listed(const char *list, const char *name)
{
    const size_t length = strlen(name);
    for (const char *at = list; at && *at; at += strcspn(at, ","), at += *at == ',')
        if (strcspn(at, ",") == length && !strncmp(at, name, length)) return true;
    return false;
}

/* Whether a name starts like one in a list with commas; the empty list means all. */
static bool starts_any(const char *name, const char *list)
{
    if (*list == 0) return true;
    for (const char *at = list; *at; at += strcspn(at, ","), at += *at == ',') {
        const size_t length = strcspn(at, ",");
        if (length > 0 && !strncmp(at, name, length)) return true;
    }
    return false;
}

static int usage(void)
{
    fprintf(stderr, "usage: nodes_cuda [--dims LIST] [--rows N] [--node PREFIXES] [--time REPEATS] [--large] [--digests FILE] [--quick] [--provider LIBRARY.so] "
                    "CANDIDATE_CUDA.so CANDIDATE_CPU.so\n");
    return 2;
}

static bool read_options(options *o, int count, char **words)
{
    *o = (options){.dims = "nano,tiny,odd,wide,d32,d64,released", .node = ""};
    for (int i = 1; i < count; i++) {
        const char *value = i + 1 < count ? words[i + 1] : NULL;
        if (!strcmp(words[i], "--large")) o->large = true;
        else if (!strcmp(words[i], "--quick")) o->quick = true;
        else if (words[i][0] == '-' && !value) return false;
        else if (!strcmp(words[i], "--digests")) o->digests = words[++i];
        else if (!strcmp(words[i], "--dims")) o->dims = words[++i];
        else if (!strcmp(words[i], "--node")) o->node = words[++i];
        else if (!strcmp(words[i], "--rows")) o->rows = atoll(words[++i]);
        else if (!strcmp(words[i], "--time")) o->repeats = atoi(words[++i]);
        else if (!strcmp(words[i], "--provider")) o->provider = words[++i];
        else if (words[i][0] == '-') return false;
        else if (!o->candidate_cuda) o->candidate_cuda = words[i];
        else if (!o->candidate_cpu) o->candidate_cpu = words[i];
        else return false;
    }
    return o->candidate_cpu != NULL && (!o->quick || o->digests != NULL);
}

int main(int count, char **words)
{
    options o;
    if (!read_options(&o, count, words)) return usage();
    int device = 0, major = 0, failures = 0, run = 0;
    cuda_need(cudaGetDevice(&device), "cudaGetDevice");
    cuda_need(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "cudaDeviceGetAttribute");
    const libraries l = {library_load(o.candidate_cuda), library_load(o.candidate_cpu), o.provider ? library_load(o.provider) : NULL, major == 9};
    printf("%s %s, %s, %s\n", l.gpu->name, l.gpu->revision, l.gpu->compiler, l.gpu->architectures);
    if (o.digests && !(o.digest_file = fopen(o.digests, "w"))) {
        fprintf(stderr, "%s cannot be written\n", o.digests);
        return 4;
    }
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        dims size = sizes[s];
        if (o.rows > 0) size.rows = o.rows;
        for (size_t n = 0; n < sizeof nodes / sizeof *nodes; n++) {
            if (!listed(o.dims, size.name) || !starts_any(nodes[n], o.node)) continue;
            failures += check_node(&l, &o, nodes[n], &size) != 0;
            run++;
        }
    }
    if (o.large) failures += check_large(l.gpu, &run);
    if (o.digest_file && fclose(o.digest_file)) {
        fprintf(stderr, "%s cannot be written\n", o.digests);
        return 4;
    }
    if (run == 0) return usage();
    printf("%d checked, %d failed\n", run, failures);
    return failures ? 1 : 0;
}
