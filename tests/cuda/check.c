#include "check.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "qualify/tensor_core.h"

void note(verdict *v, const char *format, ...)
{
    va_list arguments;
    const size_t used = strlen(v->line);
    va_start(arguments, format);
    vsnprintf(v->line + used, sizeof v->line - used, format, arguments);
    va_end(arguments);
}

void complain(verdict *v, const problem *p, const char *format, ...)
{
    va_list arguments;
    if (v->failures++ >= 8) return; /* enough to see what is wrong */
    printf("  %s %s: ", p->size.name, p->node);
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("\n");
}

static double element(const h3_tensor *t, int64_t i)
{
    return t->dtype == H3_F32 ? (double)((const float *)t->data)[i] : (double)h3_bf16_to_f32(((const uint16_t *)t->data)[i]);
}

double relative_error(const h3_tensor *a, const h3_tensor *b)
{
    double wrong = 0, power = 0;
    for (int64_t i = 0, count = h3_tensor_count(a); i < count; i++) {
        const double x = element(a, i), y = element(b, i);
        wrong += (x - y) * (x - y);
        power += y * y;
    }
    return power > 0 ? sqrt(wrong / power) : sqrt(wrong);
}

void problem_twin(problem *out, const problem *base)
{
    const company alone = {1, 0, base->rows, 0, 0};
    problem_in_company(out, base, &alone);
}

static const char *tensor_name(int index)
{
    static char name[32];
    static const struct {
        const char *name;
        int count;
    } groups[] = {{"in", H3_MAX_IN}, {"param", H3_MAX_PARAM}, {"out", 1}, {"saved", H3_MAX_SAVED}, {"dout", 1}, {"din", H3_MAX_IN},
                  {"dparam", H3_MAX_PARAM}, {"row_grad", H3_ROW_GRADS}, {"row_index", 1}, {"dtable", 1}};
    for (size_t g = 0; g < sizeof groups / sizeof *groups; index -= groups[g++].count) {
        if (index >= groups[g].count) continue;
        snprintf(name, sizeof name, "%s[%d]", groups[g].name, index);
        return name;
    }
    return "?";
}

/* The largest error against the CPU candidate; 0 asks for the same bytes. */
static double bound_of(const problem *p, const char *tensor)
{
    const char *node = p->node;
    const bool short_table = p->size.rows <= 512; /* one block: the CPU's single chain */
    if (!strcmp(node, "attention/cold") && starts(tensor, "din[0]")) return 0.5; /* keys with a common part: the sum of rounded dS shows */
    if (starts(node, "attention")) return starts(tensor, "saved") ? 1e-5 : starts(tensor, "out") ? 6e-3 : 1.2e-2;
    if (starts(node, "adaln")) return starts(tensor, "din") ? 4e-3 : (starts(tensor, "dtable") || starts(tensor, "dparam[1]")) && short_table ? 0 : 1e-3;
    if (starts(node, "swiglu")) return 5e-4;
    if (node_is_linear(node)) return 1e-3;
    return strstr(node, "norm") && starts(tensor, "din") ? 1e-3 : 0; /* dx: the CPU sums over a row in another order */
}

void check_against_cpu(verdict *v, const problem *gpu, const problem *cpu, bool backward)
{
    h3_tensor *left[CALL_TENSORS], *right[CALL_TENSORS];
    int written[CALL_TENSORS];
    h3_call a = gpu->call, b = cpu->call;
    double worst = 0;
    call_tensors(&a, left, written);
    call_tensors(&b, right, written);
    for (int i = 0; i < CALL_TENSORS; i++) {
        if (written[i] != (backward ? 2 : 1) || left[i]->rank == 0) continue;
        const char *name = tensor_name(i);
        const double bound = bound_of(gpu, name), error = relative_error(left[i], right[i]);
        const bool same = !memcmp(left[i]->data, right[i]->data, (size_t)tensor_bytes(left[i]));
        if (bound == 0 && !same) complain(v, gpu, "%s differs from the CPU candidate's bytes (error %.2e)", name, error);
        if (bound > 0 && !(error <= bound)) complain(v, gpu, "%s: error %.3e against the CPU candidate, bound %.1e", name, error, bound);
        if (!(error <= worst)) worst = error;
    }
    if (worst == 0) note(v, " cpu=bytes");
    else note(v, " cpu=%.1e", worst);
}

bool same_results(const problem *a, const problem *b, bool backward)
{
    h3_tensor *left[CALL_TENSORS], *right[CALL_TENSORS];
    int written[CALL_TENSORS];
    h3_call x = a->call, y = b->call;
    call_tensors(&x, left, written);
    call_tensors(&y, right, written);
    for (int i = 0; i < CALL_TENSORS; i++) {
        if (written[i] != (backward ? 2 : 1) || left[i]->rank == 0) continue;
        if (memcmp(left[i]->data, right[i]->data, (size_t)tensor_bytes(left[i]))) return false;
    }
    return true;
}

/* The digest of the digests of the results, in the order of call_tensors. */
bool digest_of(const problem *p, bool backward, char out[H3_SHA256_HEX])
{
    h3_tensor *list[CALL_TENSORS];
    int written[CALL_TENSORS];
    char all[CALL_TENSORS * (H3_SHA256_HEX - 1) + 1];
    size_t used = 0;
    h3_call call = p->call;
    call_tensors(&call, list, written);
    for (int i = 0; i < CALL_TENSORS; i++) {
        if (written[i] != (backward ? 2 : 1) || list[i]->rank == 0) continue;
        if (h3_sha256(all + used, list[i]->data, (size_t)tensor_bytes(list[i])) != H3_OK) return false;
        used += H3_SHA256_HEX - 1;
    }
    return used > 0 && h3_sha256(out, all, used) == H3_OK;
}

/* ---- the model ---- */

/* A product out[m, n] = sum over k of left(m, k) right(n, k) as strides. */
typedef struct product {
    const char *name;
    const uint16_t *left, *right, *bias, *out;
    int64_t rows, columns, depth, left_row, left_k, right_row, right_k;
} product;

static void check_product(verdict *v, const problem *p, const product *g, int samples, int *right)
{
    uint64_t random = 99;
    for (int i = 0; i < samples; i++) {
        random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        int64_t m = (int64_t)((random >> 33) % (uint64_t)g->rows), n = (int64_t)((random >> 13) % (uint64_t)g->columns);
        if (i < 4) { /* the corners */
            m = i % 2 ? g->rows - 1 : 0;
            n = i / 2 ? g->columns - 1 : 0;
        }
        float sum = h3_tensor_core_chain(g->left + m * g->left_row, g->left_k, g->right + n * g->right_row, g->right_k, g->depth, 0.0f);
        if (g->bias) sum += h3_bf16_to_f32(g->bias[n]);
        const uint16_t expected = h3_f32_to_bf16(sum), found = g->out[m * g->columns + n];
        if (expected == found) (*right)++;
        else complain(v, p, "%s[%lld, %lld] is %04x, the model says %04x", g->name, (long long)m, (long long)n, found, expected);
    }
}

static void check_linear(verdict *v, const problem *p, bool backward, int samples, int *right, int *all)
{
    const h3_call *c = &p->call;
    const int64_t rows = c->in[0].shape[0], inputs = c->in[0].shape[1], outputs = c->param[0].shape[0];
    const uint16_t *x = c->in[0].data, *w = c->param[0].data, *dy = c->dout.data;
    const product forward = {"out", x, w, NULL, c->out.data, rows, outputs, inputs, inputs, 1, inputs, 1};
    const product input = {"dX", dy, w, NULL, c->din[0].data, rows, inputs, outputs, outputs, 1, 1, inputs};
    const product weight = {"dW", dy, x, NULL, c->dparam[0].data, outputs, inputs, rows, 1, outputs, 1, inputs};
    if (!backward) check_product(v, p, &forward, samples, right);
    if (backward) check_product(v, p, &input, samples, right);
    if (backward) check_product(v, p, &weight, samples, right);
    *all += backward ? 2 * samples : samples;
}

enum { DU_CHUNK = 2048 }; /* of the contract's du */

static void check_dtemb(verdict *v, const problem *p, int samples, int *right)
{
    const h3_call *c = &p->call;
    const int64_t embed = c->in[0].shape[1], outputs = c->param[0].shape[0], count = h3_tensor_count(&c->in[0]);
    for (int i = 0; i < samples; i++) {
        const int64_t at = (i * INT64_C(7919) + 1) % count, t = at / embed, e = at % embed;
        const uint16_t *dz = (const uint16_t *)c->dtable.data + t * outputs, *w = (const uint16_t *)c->param[0].data + e;
        float du = 0;
        for (int64_t k = 0; k < outputs; k += DU_CHUNK)
            du += h3_tensor_core_chain(dz + k, 1, w + k * embed, embed, outputs - k < DU_CHUNK ? outputs - k : DU_CHUNK, 0.0f);
        const double x = ((const float *)c->in[0].data)[at], s = 1 / (1 + exp(-x));
        const double upstream = (double)h3_bf16_to_f32(h3_f32_to_bf16(du)) * s, turn = x * (1 - s);
        const double expected = upstream * (1 + turn), found = ((const float *)c->din[0].data)[at];
        if (fabs(found - expected) <= 1e-6 * fabs(upstream) * (1 + fabs(turn))) (*right)++; /* exp may differ in its last bit */
        else complain(v, p, "dtemb[%lld, %lld] is %.9g, the model says %.9g", (long long)t, (long long)e, found, expected);
    }
}

static void check_adaln(verdict *v, const problem *p, bool backward, int samples, int *right, int *all)
{
    const h3_call *c = &p->call;
    const int64_t times = c->in[0].shape[0], embed = c->in[0].shape[1], outputs = c->param[0].shape[0];
    uint16_t u[16 * 4096];
    if (times * embed > (int64_t)(sizeof u / sizeof *u)) return;
    for (int64_t i = 0; i < times * embed; i++) {
        const double x = ((const float *)c->in[0].data)[i];
        u[i] = h3_f32_to_bf16((float)(x / (1 + exp(-x))));
    }
    const product forward = {"table", u, c->param[0].data, c->param[1].data, c->out.data, times, outputs, embed, embed, 1, embed, 1};
    const product weight = {"dW", c->dtable.data, u, NULL, c->dparam[0].data, outputs, embed, times, 1, outputs, 1, embed};
    if (!backward) check_product(v, p, &forward, samples, right);
    if (backward) check_product(v, p, &weight, samples, right);
    if (backward) check_dtemb(v, p, samples, right);
    *all += backward ? 2 * samples : samples;
}

void check_against_model(verdict *v, const problem *p, bool backward, int samples)
{
    int right = 0, all = 0;
    if (starts(p->node, "adaln")) check_adaln(v, p, backward, samples, &right, &all);
    else if (node_is_linear(p->node)) check_linear(v, p, backward, samples, &right, &all);
    if (all > 0) note(v, " model=%d/%d", right, all);
    else if (starts(p->node, "adaln") || node_is_linear(p->node)) complain(v, p, "no output was compared with the model");
}
