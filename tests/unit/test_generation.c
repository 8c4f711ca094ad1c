/* The sampling loop: noise, velocities and latents against torch's; repeats, failures and what the loop must leave alone. */
#include "generation_nano.h"

#include "qualify/metrics.h"

static double distance(const float *x, const h3_tensor *golden)
{
    h3_figures figures;
    h3_tensor view = h3_tensor_view((void *)(uintptr_t)x, H3_F32, golden->rank, golden->shape);
    assert_good(h3_figures_of(&figures, &view, golden, 1, 1));
    return figures.error;
}

static h3_tensor golden_of(const h3_safetensors *file, const char *precision, int64_t seed, const char *what)
{
    char name[96];
    h3_tensor tensor;
    snprintf(name, sizeof name, "%s%sseed%lld.%s", precision, precision[0] ? "." : "", (long long)seed, what);
    assert_good(h3_safetensors_read(&tensor, file, name, H3_F32, 0, NULL));
    return tensor;
}

/* --- noise ------------------------------------------------------------------------------------------------------------- */

static int same_rows(const h3_safetensors *file, int64_t seed, const char *what, const float *rows, int64_t count)
{
    h3_tensor golden = golden_of(file, "", seed, what);
    assert_int_equal(h3_tensor_count(&golden), count);
    int same = memcmp(golden.data, rows, (size_t)count * sizeof *rows) == 0;
    h3_tensor_free(&golden);
    return same;
}

static int starts_like(const h3_safetensors *file, const h3_generation_inputs *inputs, int64_t seed, int64_t golden_seed)
{
    h3_tensor video, audio;
    const h3_layout *layout = &inputs->layout;
    int64_t conditions = layout->condition_rows * inputs->video_row;
    assert_good(h3_generation_start(&video, &audio, inputs, seed));
    int same =
        same_rows(file, golden_seed, "condition_rows", video.data, conditions) &&
        same_rows(file, golden_seed, "video_rows0", (float *)video.data + conditions, layout->target_rows * inputs->video_row) &&
        same_rows(file, golden_seed, "audio_rows0", audio.data, layout->audio_rows * inputs->audio_row);
    h3_tensor_free(&video);
    h3_tensor_free(&audio);
    return same;
}

static void noise_and_conditions_are_torchs(void **state)
{
    h3_config config;
    h3_generation generation;
    h3_generation_inputs inputs;
    h3_safetensors file = golden_tensors("generation/nano.safetensors");
    (void)state;
    nano_config(&config);
    nano_settings(&generation, 50, 3);
    assert_good(h3_generation_inputs_new(&inputs, &generation, &config));
    assert_int_equal(inputs.layout.rows, 239);
    for (int64_t seed = 42; seed <= 44; seed++) assert_true(starts_like(&file, &inputs, seed, seed));
    assert_false(starts_like(&file, &inputs, 43, 42));
    h3_generation_inputs_free(&inputs);
    generation.conditioning_seed = 8;
    assert_good(h3_generation_inputs_new(&inputs, &generation, &config));
    assert_false(starts_like(&file, &inputs, 42, 42));
    h3_generation_inputs_free(&inputs);
    h3_safetensors_close(&file);
}

/* The released channels, where the large golden is at hand: only the start is cheap enough here. */
static void released_noise_is_torchs(void **state)
{
    h3_config config;
    h3_generation generation;
    h3_generation_inputs inputs;
    h3_safetensors file;
    const char *path = shared_golden_path("generation/released.safetensors");
    (void)state;
    if (path == NULL) return; /* nano's golden covers the same code */
    assert_good(h3_safetensors_open(&file, path));
    nano_config(&config);
    config.in_channels = 24;
    config.audio_in_channels = 32;
    nano_settings(&generation, 50, 1);
    generation.layout.text = 30;
    generation.layout.vision_rows = 6;
    assert_good(h3_generation_inputs_new(&inputs, &generation, &config));
    assert_int_equal(inputs.layout.rows, 264);
    assert_true(starts_like(&file, &inputs, 42, 42));
    assert_false(starts_like(&file, &inputs, 43, 42));
    h3_generation_inputs_free(&inputs);
    h3_safetensors_close(&file);
}

/* --- the loop against torch -------------------------------------------------------------------------------------------- */

/* One tensor's distance to float64, beside the distance that the golden BF16 run has. */
typedef struct judged {
    double worst_fp32, worst_bf16_ratio;
    int count, failed;
} judged;

static void judge(judged *out, const h3_safetensors *file, int32_t precision, int64_t seed, const char *what, const float *values)
{
    h3_tensor exact = golden_of(file, "fp64", seed, what), rounded = golden_of(file, "bf16", seed, what);
    double error = distance(values, &exact), own = distance(rounded.data, &exact),
           bound = precision == H3_F32 ? 5e-6 : 1.25 * own + 1e-3;
    if (precision == H3_F32 && error > out->worst_fp32) out->worst_fp32 = error;
    if (precision == H3_BF16 && error / bound > out->worst_bf16_ratio) out->worst_bf16_ratio = error / bound;
    out->count++;
    out->failed += !(error <= bound);
    h3_tensor_free(&exact);
    h3_tensor_free(&rounded);
}

static judged judge_all(const h3_sampling *s, const h3_safetensors *file, int32_t precision)
{
    static const int64_t steps[] = {0, 24, 48};
    const h3_layout *layout = &s->inputs->layout;
    int64_t video = layout->target_rows * s->inputs->video_row, audio = layout->audio_rows * s->inputs->audio_row;
    judged result = {0};
    for (size_t f = 0; f < s->flow_count; f++) {
        const h3_flow *flow = &s->flows[f];
        for (int i = 0; i < 3; i++) {
            char what[32];
            snprintf(what, sizeof what, "velocity%lld.video", (long long)steps[i]);
            judge(&result, file, precision, flow->seed, what, (const float *)flow->velocity_video.data + steps[i] * video);
            snprintf(what, sizeof what, "velocity%lld.audio", (long long)steps[i]);
            judge(&result, file, precision, flow->seed, what, (const float *)flow->velocity_audio.data + steps[i] * audio);
        }
        judge(&result, file, precision, flow->seed, "video_rows49",
              (const float *)flow->video.data + layout->condition_rows * s->inputs->video_row);
        judge(&result, file, precision, flow->seed, "audio_rows49", flow->audio.data);
    }
    return result;
}

static void conditions_unchanged(const h3_sampling *s)
{
    for (size_t f = 0; f < s->flow_count; f++) {
        size_t bytes = (size_t)(s->inputs->layout.condition_rows * s->inputs->video_row) * sizeof(float);
        assert_true(bytes > 0);
        assert_memory_equal(s->flows[f].video.data, s->flows[f].start_video.data, bytes);
    }
}

static void matches_torch(int32_t precision)
{
    nano n;
    h3_sampling s;
    h3_safetensors file = golden_tensors("generation/nano.safetensors");
    nano_open(&n, precision, 50, 3, NULL);
    assert_good(h3_sampling_new(&s, &n.generation, &n.inputs, &n.model, NULL, 0));
    assert_good(h3_sampling_run(&s));
    judged result = judge_all(&s, &file, precision);
    if (precision == H3_F32) print_message("# fp32: worst error %.3g of 5e-06\n", result.worst_fp32);
    else print_message("# bf16: worst error %.3g of its bound\n", result.worst_bf16_ratio);
    assert_int_equal(result.count, 3 * 8);
    assert_int_equal(result.failed, 0);
    conditions_unchanged(&s);
    /* The check bites: values of another seed. */
    int64_t seed = s.flows[0].seed;
    s.flows[0].seed = s.flows[1].seed;
    assert_int_equal(judge_all(&s, &file, precision).failed, 8);
    s.flows[0].seed = seed;
    h3_sampling_free(&s);
    nano_close(&n);
    h3_safetensors_close(&file);
}

static void fp32_matches_torch(void **state)
{
    (void)state;
    matches_torch(H3_F32);
}
static void bf16_matches_torch(void **state)
{
    (void)state;
    matches_torch(H3_BF16);
}

/* Seeds side by side do not touch each other: alone, a seed gives the same bytes. */
static void seeds_are_independent(void **state)
{
    nano n;
    h3_sampling all, one;
    (void)state;
    nano_open(&n, H3_BF16, 5, 3, NULL);
    assert_good(h3_sampling_new(&all, &n.generation, &n.inputs, &n.model, NULL, 0));
    assert_good(h3_sampling_run(&all));
    n.generation.seed_count = 1;
    n.generation.seeds[0] = 44;
    assert_good(h3_sampling_new(&one, &n.generation, &n.inputs, &n.model, NULL, 0));
    assert_good(h3_sampling_run(&one));
    assert_int_equal(one.steps, 4);
    assert_memory_equal(one.flows[0].digests, all.flows[2].digests, 4 * sizeof *one.flows[0].digests);
    assert_memory_equal(one.flows[0].video.data, all.flows[2].video.data, h3_tensor_bytes(&one.flows[0].video));
    assert_string_not_equal(one.flows[0].digests[3][0], all.flows[0].digests[3][0]);
    h3_sampling_free(&all);
    h3_sampling_free(&one);
    nano_close(&n);
}

/* --- operators that misbehave ------------------------------------------------------------------------------------------ */

static const h3_operator *sound; /* the provider's swiglu */
static int calls, bad_call, how; /* what the bad one does in its call number `bad_call` */
enum { NAN_IN_ONE, ONE_BIT, FALLBACK };

static int bad_forward(h3_call *call)
{
    int code = sound->forward(call);
    if (calls++ != bad_call) return code;
    uint16_t *first = call->out.data;
    if (how == NAN_IN_ONE) *first = 0x7fc0;
    if (how == ONE_BIT) *first ^= 0x4000;
    if (how == FALLBACK) {
        call->report.fallback = 1;
        snprintf(call->report.kernel, sizeof call->report.kernel, "slow_path");
    }
    return code;
}

/* Runs 4 steps of 3 seeds; call = (step * flows + flow) * 2 blocks + block. */
static h3_status run_bad(int kind, int call, int repeat)
{
    nano n;
    h3_sampling s;
    h3_library provider;
    const h3_operator *operators[H3_NODE_COUNT];
    assert_good(h3_library_open(&provider, "libh3_provider_cpu.so"));
    for (int32_t node = 0; node < H3_NODE_COUNT; node++)
        assert_good(h3_library_find(&operators[node], &provider, h3_nodes[node].name, NULL));
    sound = operators[H3_NODE_SWIGLU];
    h3_operator bad = *sound;
    bad.name = "bad_swiglu";
    bad.forward = bad_forward;
    operators[H3_NODE_SWIGLU] = &bad;
    calls = 0;
    bad_call = call;
    how = kind;
    nano_open(&n, H3_BF16, 5, 3, operators);
    assert_good(h3_sampling_new(&s, &n.generation, &n.inputs, &n.model, NULL, repeat));
    h3_status status = h3_sampling_run(&s);
    h3_sampling_free(&s);
    nano_close(&n);
    h3_library_close(&provider);
    return status;
}

static void a_repeat_is_checked(void **state)
{
    (void)state;
    assert_good(run_bad(ONE_BIT, -1, 1));
    assert_int_equal(calls, 4 * 6 * 2);
    /* Step 2, flow 4: the repeat of seed 43. */
    assert_fails(run_bad(ONE_BIT, (2 * 6 + 4) * 2, 1), H3_FAILED, "seed 43 step 2: the repeat gives another velocity.video");
    /* Nobody asked for a repeat. */
    assert_good(run_bad(ONE_BIT, (2 * 3 + 1) * 2, 0));
}

static void a_nan_is_named(void **state)
{
    (void)state;
    assert_fails(run_bad(NAN_IN_ONE, (1 * 3 + 2) * 2, 0), H3_FAILED, "seed 44 step 1: velocity.video is not finite");
    assert_fails(run_bad(NAN_IN_ONE, (3 * 3 + 0) * 2, 0), H3_FAILED, "seed 42 step 3: velocity.video is not finite");
}

static void a_fallback_is_named(void **state)
{
    (void)state;
    assert_fails(run_bad(FALLBACK, (0 * 3 + 1) * 2 + 1, 0), H3_FAILED,
                 "seed 43 step 0: block 1 node swiglu fell back to slow_path instead of running operator bad_swiglu");
}

/* --- stopping ---------------------------------------------------------------------------------------------------------- */

static int64_t saved_at[64];
static int saves;

static h3_status note_save(void *user, const h3_sampling *sampling, int64_t step)
{
    (void)user;
    for (size_t f = 0; f < sampling->flow_count; f++) assert_int_equal(sampling->flows[f].finished, step);
    saved_at[saves++] = step;
    return saves == 3 ? h3_error(H3_ENVIRONMENT, "no space") : H3_OK;
}

static void safe_points_come_regularly(void **state)
{
    nano n;
    h3_sampling s;
    (void)state;
    nano_open(&n, H3_BF16, 50, 2, NULL);
    assert_good(h3_sampling_new(&s, &n.generation, &n.inputs, &n.model, NULL, 0));
    s.save = note_save;
    saves = 0;
    assert_fails(h3_sampling_run(&s), H3_ENVIRONMENT, "no space");
    assert_int_equal(saves, 3);
    for (int i = 0; i < 3; i++) assert_int_equal(saved_at[i], (i + 1) * 4);
    h3_sampling_free(&s);
    nano_close(&n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(noise_and_conditions_are_torchs),
        cmocka_unit_test(released_noise_is_torchs),
        cmocka_unit_test(fp32_matches_torch),
        cmocka_unit_test(bf16_matches_torch),
        cmocka_unit_test(seeds_are_independent),
        cmocka_unit_test(a_repeat_is_checked),
        cmocka_unit_test(a_nan_is_named),
        cmocka_unit_test(a_fallback_is_named),
        cmocka_unit_test(safe_points_come_regularly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
