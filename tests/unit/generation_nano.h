/* nano's whole sampling loop, as in the golden generation/nano.safetensors; for several tests. */
#ifndef H3_TESTS_GENERATION_NANO_H
#define H3_TESTS_GENERATION_NANO_H

#include "golden_files.h"

#include "qualify/generation.h"

typedef struct nano {
    h3_config config;
    h3_weights *weights;
    h3_library provider;
    h3_model model;
    h3_generation generation;
    h3_generation_inputs inputs;
} nano;

static inline void nano_config(h3_config *config)
{
    char *text;
    size_t size;
    assert_good(h3_file_read(&text, &size, golden_path("nano/transformer/config.json"), 1 << 20, H3_INTEGRITY));
    assert_good(h3_config_parse(config, text, size, "nano"));
    free(text);
}

/* The golden's settings; no contract. */
static inline void nano_settings(h3_generation *generation, int64_t points, size_t seed_count)
{
    *generation = (h3_generation){
        .layout = {.text = 5, .frames = 7, .height = 8, .width = 10, .audio = 37, .vision_rows = 2, .anchors = H3_ANCHOR_FIRST},
        .points = points,
        .video_shift = 12,
        .audio_shift = 3,
        .condition_time = 0.999,
        .seed_count = seed_count,
        .seeds = {42, 43, 44},
        .conditioning_seed = 7};
}

/* `operators` NULL: the provider's own. */
static inline void nano_open(nano *n, int32_t precision, int64_t points, size_t seed_count, const h3_operator *const *operators)
{
    memset(n, 0, sizeof *n);
    h3_log_enable(0);
    nano_config(&n->config);
    nano_settings(&n->generation, points, seed_count);
    assert_good(h3_weights_synthetic(&n->weights, &n->config, 0));
    assert_good(h3_library_open(&n->provider, "libh3_provider_cpu.so"));
    assert_good(h3_model_open(&n->model, n->weights, NULL, precision, &n->provider, operators, 0, n->config.num_layers));
    assert_good(h3_generation_inputs_new(&n->inputs, &n->generation, &n->config));
}

static inline void nano_close(nano *n)
{
    h3_generation_inputs_free(&n->inputs);
    h3_model_close(&n->model);
    h3_library_close(&n->provider);
    h3_weights_free(n->weights);
}

#endif
