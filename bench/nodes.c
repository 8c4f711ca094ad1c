/* Time per node on this CPU, provider beside candidate, forward and backward, on tiny's dimensions. Medians of rounds in which the
 * two sides take turns; times in microseconds, the ratio is candidate over provider (below 1: the candidate is faster). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "graph/boundary.h"
#include "graph/walk.h"
#include "model/synth.h"
#include "qualify/plan.h"

enum { ROUNDS = 15 };

static const char config_text[] =
    "{\"num_attention_heads\":2,\"attention_head_dim\":128,\"hidden_size\":160,\"num_layers\":1,\"num_refiner_layers\":0,\"ffn_dim\":320,"
    "\"in_channels\":24,\"audio_in_channels\":32,\"patch_size\":[1,2,2],\"text_dim\":96,\"freq_dim\":64,\"time_embed_hidden_dim\":128,"
    "\"time_embed_dim\":64,\"rope_freq_dim\":16}";

static const h3_plan_layout layouts[] = {
    {"s78", {12, 7, 4, 6, 9, 3, H3_ANCHOR_FIRST, 2, 2}, 0.25, 0.5625, 0.999, 7},
    {"s264", {30, 7, 8, 10, 37, 6, H3_ANCHOR_FIRST, 2, 2}, 0.25, 0.5625, 0.999, 7},
    {"s925", {83, 7, 16, 24, 37, 20, H3_ANCHOR_FIRST, 2, 2}, 0.25, 0.5625, 0.999, 7},
};

typedef struct side {
    const h3_operator *operators[H3_NODE_COUNT];
    double time[2][H3_NODE_COUNT][ROUNDS];
} side;

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

static double median(const double *times)
{
    double sorted[ROUNDS];
    memcpy(sorted, times, sizeof sorted);
    qsort(sorted, ROUNDS, sizeof *sorted, ascending);
    return 1e6 * sorted[ROUNDS / 2];
}

/* One isolated call of every node on the source's values, timed. */
static void round_of(side *s, h3_engine *engine, const h3_block_params *params, const h3_block_state *source, int number)
{
    h3_block_state state = {.batch = 1};
    h3_walk walk = {engine, s->operators, params, &state, source, NULL};
    memcpy(&state.value[H3_NODE_COUNT], &source->value[H3_NODE_COUNT], (H3_VALUE_COUNT - H3_NODE_COUNT) * sizeof *state.value);
    for (int32_t node = 0; node < H3_NODE_COUNT; node++) {
        double start = h3_clock();
        must(h3_walk_node_forward(&walk, node));
        double middle = h3_clock();
        must(h3_walk_node_backward(&walk, node));
        if (number >= 0) s->time[H3_FORWARD][node][number] = middle - start;
        if (number >= 0) s->time[H3_BACKWARD][node][number] = h3_clock() - middle;
    }
    h3_block_state_free(&state, engine->device);
}

static void print(const char *layout, int64_t rows, side *provider, side *candidate)
{
    double total[4] = {0};
    printf("%s, %lld rows, microseconds (median of %d)\n", layout, (long long)rows, ROUNDS);
    printf("  %-18s %10s %10s %7s   %10s %10s %7s\n", "node", "provider", "candidate", "ratio", "provider", "candidate", "ratio");
    for (int32_t node = 0; node < H3_NODE_COUNT; node++) {
        double t[4] = {median(provider->time[0][node]), median(candidate->time[0][node]), median(provider->time[1][node]), median(candidate->time[1][node])};
        for (int i = 0; i < 4; i++) total[i] += t[i];
        printf("  %-18s %10.1f %10.1f %7.2f   %10.1f %10.1f %7.2f\n", h3_nodes[node].name, t[0], t[1], t[1] / t[0], t[2], t[3], t[3] / t[2]);
    }
    printf("  %-18s %10.1f %10.1f %7.2f   %10.1f %10.1f %7.2f\n\n", "block", total[0], total[1], total[1] / total[0], total[2], total[3], total[3] / total[2]);
}

static void bench_layout(const h3_plan_layout *layout, const h3_config *config, const h3_weights *weights, const h3_library *provider_library, side *provider,
                         side *candidate)
{
    h3_plan_inputs inputs;
    h3_model model;
    h3_pass *pass;
    h3_block_state source = {0};
    must(h3_plan_inputs_new(&inputs, layout, config));
    must(h3_model_open(&model, weights, NULL, H3_BF16, provider_library, NULL, 0, 1));
    must(h3_model_forward(&model, &inputs.sequence, NULL, &pass, NULL, NULL));
    h3_pass_values(pass, &source);
    source.value[H3_VALUE_X] = *h3_pass_block_input(pass, &model, 0);
    h3_walk walk = {&model.engine, provider->operators, &model.blocks[0], &source, NULL, NULL};
    must(h3_walk_forward(&walk));
    h3_tensor gradient;
    must(h3_synth_input(&gradient, 7, "cotangent.block", H3_BF16, 2, source.value[H3_VALUE_X].shape));
    source.grad[H3_NODE_RESIDUAL_MLP] = gradient;
    must(h3_walk_backward(&walk));
    for (int number = -2; number < ROUNDS; number++) { /* two rounds to warm up */
        round_of(provider, &model.engine, &model.blocks[0], &source, number);
        round_of(candidate, &model.engine, &model.blocks[0], &source, number);
    }
    print(layout->name, inputs.layout.rows, provider, candidate);
    h3_block_state_free(&source, model.engine.device);
    h3_pass_free(pass, &model);
    h3_model_close(&model);
    h3_plan_inputs_free(&inputs);
}

int main(void)
{
    h3_config config;
    h3_weights *weights;
    h3_library provider_library;
    h3_bindings bindings;
    side *provider = calloc(1, sizeof *provider), *candidate = calloc(1, sizeof *candidate);
    if (provider == NULL || candidate == NULL) return (int)H3_ENVIRONMENT;
    must(h3_config_parse(&config, config_text, sizeof config_text - 1, "the benchmark's configuration"));
    must(h3_weights_synthetic(&weights, &config, 0));
    must(h3_library_open(&provider_library, "libh3_provider_cpu.so"));
    must(h3_bindings_single(&bindings, "libh3_candidate_cpu.so"));
    memcpy(candidate->operators, bindings.operators, sizeof candidate->operators);
    for (int32_t node = 0; node < H3_NODE_COUNT; node++) must(h3_library_find(&provider->operators[node], &provider_library, h3_nodes[node].name, NULL));
    printf("provider %s, one thread; candidate %s, OMP_NUM_THREADS threads; left forward, right backward\n\n", provider_library.table->architectures,
           bindings.libraries[0].table->architectures);
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) bench_layout(&layouts[i], &config, weights, &provider_library, provider, candidate);
    h3_bindings_close(&bindings);
    h3_library_close(&provider_library);
    h3_weights_free(weights);
    free(provider);
    free(candidate);
    return 0;
}
