/*
 * The node table and the walker: every parameter belongs to one node or to the boundary, a chained walk and an isolated one on its values
 * give the same bytes, items of a batch are apart. H3_LIB finds the libraries; nano's configuration is the golden's.
 */
#include "generation_nano.h"

#include "base/memory.h"
#include "graph/boundary.h"
#include "model/synth.h"

enum { ROWS = 10, TIMES = 2 };

/* A block of nano, its inputs and a gradient for its output. */
typedef struct bench {
    h3_config config;
    h3_weights *weights;
    h3_library provider, candidate;
    h3_engine engine;
    h3_block_params params;
    h3_tensor x, temb, index, cosines, sines, gradient;
    const h3_operator *provider_operators[H3_NODE_COUNT], *candidate_operators[H3_NODE_COUNT];
} bench;

static void make_input(h3_tensor *out, const char *name, int32_t dtype, int64_t rows, int64_t width)
{
    assert_good(h3_synth_input(out, 3, name, dtype, 2, H3_SHAPE(rows, width)));
}

static void open_bench(bench *b, int64_t items)
{
    memset(b, 0, sizeof *b);
    nano_config(&b->config);
    assert_good(h3_weights_synthetic(&b->weights, &b->config, 0));
    assert_good(h3_library_open(&b->provider, "libh3_provider_cpu.so"));
    assert_good(h3_library_open(&b->candidate, "libh3_candidate_cpu.so"));
    h3_engine_init(&b->engine, &b->config, h3_device_cpu(), &b->provider);
    for (int32_t node = 0; node < H3_NODE_COUNT; node++) {
        assert_good(h3_library_find(&b->provider_operators[node], &b->provider, h3_nodes[node].name, NULL));
        assert_good(h3_library_find(&b->candidate_operators[node], &b->candidate, h3_nodes[node].name, NULL));
    }
    assert_good(h3_block_params_load(&b->params, h3_device_cpu(), b->weights, 1, 0, H3_BF16));
    make_input(&b->x, "x", H3_BF16, items * ROWS, b->config.hidden_size);
    make_input(&b->gradient, "gradient", H3_BF16, items * ROWS, b->config.hidden_size);
    make_input(&b->temb, "temb", H3_F32, TIMES, b->config.time_embed_dim);
    make_input(&b->cosines, "cosines", H3_BF16, items * ROWS, 3 * b->config.rope_freq_dim);
    make_input(&b->sines, "sines", H3_BF16, items * ROWS, 3 * b->config.rope_freq_dim);
    assert_good(h3_tensor_new(&b->index, H3_I32, 1, H3_SHAPE(items * ROWS)));
    for (int64_t i = 0; i < items * ROWS; i++) ((int32_t *)b->index.data)[i] = (int32_t)(i * 5 % (3 * TIMES));
}

static void close_bench(bench *b)
{
    h3_tensor *owned[] = {&b->x, &b->temb, &b->index, &b->cosines, &b->sines, &b->gradient};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) h3_tensor_free(owned[i]);
    h3_block_params_free(&b->params, h3_device_cpu());
    h3_engine_free(&b->engine);
    h3_library_close(&b->candidate);
    h3_library_close(&b->provider);
    h3_weights_free(b->weights);
}

/* Rows [first, first + rows) of a tensor. */
static h3_tensor slice(const h3_tensor *tensor, int64_t first, int64_t rows)
{
    int64_t shape[H3_MAX_RANK];
    memcpy(shape, tensor->shape, sizeof shape);
    size_t bytes = h3_tensor_bytes(tensor) / (size_t)shape[0];
    shape[0] = rows;
    return h3_tensor_view((char *)tensor->data + (size_t)first * bytes, tensor->dtype, tensor->rank, shape);
}

/* A chained walk, forward and backward, over items [first, first + items) of ROWS rows. */
static void chain(bench *b, const h3_operator *const *operators, h3_block_state *state, int64_t first, int64_t items, const h3_tap *tap)
{
    memset(state, 0, sizeof *state);
    state->batch = items;
    state->value[H3_VALUE_X] = slice(&b->x, first * ROWS, items * ROWS);
    state->value[H3_VALUE_INDEX] = slice(&b->index, first * ROWS, items * ROWS);
    state->value[H3_VALUE_COS] = slice(&b->cosines, first * ROWS, items * ROWS);
    state->value[H3_VALUE_SIN] = slice(&b->sines, first * ROWS, items * ROWS);
    state->value[H3_VALUE_TEMB] = b->temb;
    h3_walk walk = {&b->engine, operators, &b->params, state, NULL, tap};
    h3_tensor gradient = slice(&b->gradient, first * ROWS, items * ROWS);
    assert_good(h3_walk_forward(&walk));
    assert_good(h3_tensor_convert(&state->grad[H3_NODE_RESIDUAL_MLP], &gradient, H3_BF16));
    assert_good(h3_walk_backward(&walk));
}

static void assert_same(const h3_tensor *a, const h3_tensor *b, int32_t node, const char *what)
{
    if (a->data == NULL || b->data == NULL || h3_tensor_bytes(a) != h3_tensor_bytes(b) || memcmp(a->data, b->data, h3_tensor_bytes(a)) != 0)
        fail_msg("%s of node %s differs", what, h3_nodes[node].name);
}

/* ---- the table ---- */

static int owners(const char *name, const h3_config *config)
{
    int count = 0;
    char own[96];
    for (int64_t refiner = 0; refiner < 2; refiner++) {
        for (int64_t block = 0; block < (refiner ? config->num_refiner_layers : config->num_layers); block++) {
            for (int32_t node = 0; node < H3_NODE_COUNT; node++) {
                for (int32_t i = 0; i < 2 && h3_nodes[node].param[i].suffix != NULL && h3_walk_has((int)refiner, node); i++) {
                    h3_node_param_name(own, node, i, block, (int)refiner);
                    count += strcmp(own, name) == 0;
                }
            }
        }
    }
    for (int i = 0; i < H3_BOUNDARY_PARAMS; i++) count += strcmp(h3_boundary_names[i], name) == 0;
    return count;
}

static void test_every_parameter_has_one_owner(void **state)
{
    (void)state;
    h3_config config;
    h3_inventory inventory;
    size_t named = H3_BOUNDARY_PARAMS;
    nano_config(&config);
    assert_good(h3_inventory_new(&inventory, &config));
    for (size_t i = 0; i < inventory.count; i++)
        if (owners(inventory.items[i].name, &config) != 1) fail_msg("%d owners of %s", owners(inventory.items[i].name, &config), inventory.items[i].name);
    for (int32_t node = 0; node < H3_NODE_COUNT; node++)
        for (int i = 0; i < 2; i++)
            if (h3_nodes[node].param[i].suffix != NULL) named += (size_t)(config.num_layers + (h3_walk_has(1, node) ? config.num_refiner_layers : 0));
    assert_int_equal(named, inventory.count); /* and no node names one that is not there */
    assert_int_equal(owners("transformer_blocks.0.norm3.weight", &config), 0);
    h3_inventory_free(&inventory);
}

static void test_table_order_and_wiring(void **state)
{
    (void)state;
    static const char *const names[H3_NODE_COUNT] = {"adaln_projection", "norm1",  "q_proj",        "k_proj", "v_proj",      "q_norm", "k_norm",   "rope_q",      "rope_k",
                                                     "attention",        "o_proj", "residual_attn", "norm2",  "ffn_gate_up", "swiglu", "ffn_down", "residual_mlp"};
    static const char *const bitwise[] = {"norm1", "norm2", "q_norm", "k_norm", "rope_q", "rope_k", "residual_attn", "residual_mlp"};
    int promised = 0;
    for (int32_t node = 0; node < H3_NODE_COUNT; node++) {
        assert_string_equal(h3_nodes[node].name, names[node]);
        assert_int_equal(h3_node_find(names[node]), node);
        promised += h3_nodes[node].bitwise_cpu;
        for (int i = 0; i < H3_MAX_IN; i++) { /* inputs come from nodes before, or from outside */
            int32_t value = h3_nodes[node].in[i];
            assert_true(value == H3_VALUE_NONE || value < node || (value >= H3_NODE_COUNT && value < H3_VALUE_COUNT));
        }
    }
    for (size_t i = 0; i < sizeof bitwise / sizeof *bitwise; i++) assert_true(h3_nodes[h3_node_find(bitwise[i])].bitwise_cpu);
    assert_int_equal(promised, sizeof bitwise / sizeof *bitwise);
    assert_int_equal(h3_node_find("norm3"), -1);
}

/* ---- the walker ---- */

static void test_isolated_equals_chained(void **state)
{
    (void)state;
    bench b;
    h3_block_state chained, isolated = {0};
    open_bench(&b, 1);
    chain(&b, b.provider_operators, &chained, 0, 1, NULL);
    isolated.batch = 1;
    h3_walk walk = {&b.engine, b.provider_operators, &b.params, &isolated, &chained, NULL};
    assert_good(h3_walk_forward(&walk));
    assert_good(h3_walk_backward(&walk));
    for (int32_t node = 0; node < H3_NODE_COUNT; node++) {
        const h3_node_spec *spec = &h3_nodes[node];
        const h3_node_result *alone = &isolated.node[node];
        assert_same(&alone->out, &chained.node[node].out, node, "output");
        assert_same(&alone->out, &chained.value[node], node, "value");
        assert_null(isolated.grad[node].data);
        for (int i = 0; i < 2; i++)
            if (spec->param[i].suffix != NULL) assert_same(&alone->dparam[i], &chained.node[node].dparam[i], node, "parameter gradient");
        for (int i = 0; i < spec->row_grads; i++) assert_same(&alone->row_grad[i], &chained.row_grad[spec->chunk + i], node, "row gradient");
    }
    assert_same(&isolated.node[H3_NODE_ADALN].dtable, &chained.grad[H3_NODE_ADALN], H3_NODE_ADALN, "table gradient");
    /* values with one consumer have its gradient; the three projections share theirs */
    assert_same(&isolated.node[H3_NODE_SWIGLU].din[0], &chained.grad[H3_NODE_FFN_GATE_UP], H3_NODE_SWIGLU, "input gradient");
    for (int i = 0; i < 2; i++) assert_same(&isolated.node[H3_NODE_ATTENTION].din[i], &chained.grad[H3_NODE_ROPE_Q + i], H3_NODE_ATTENTION, "input gradient");
    assert_same(&isolated.node[H3_NODE_ATTENTION].din[2], &chained.grad[H3_NODE_V_PROJ], H3_NODE_ATTENTION, "value gradient");
    assert_same(&isolated.node[H3_NODE_ADALN].din[0], &chained.grad[H3_VALUE_TEMB], H3_NODE_ADALN, "time gradient");
    h3_block_state_free(&isolated, h3_device_cpu());
    h3_block_state_free(&chained, h3_device_cpu());
    close_bench(&b);
}

/* What several consumers send back is added in this order, each sum rounded: (v + k) + q; the block's input has the residual's pass-through. */
static void test_sums_of_gradients(void **state)
{
    (void)state;
    bench b;
    h3_block_state chained, isolated = {0};
    open_bench(&b, 1);
    chain(&b, b.provider_operators, &chained, 0, 1, NULL);
    isolated.batch = 1;
    h3_walk walk = {&b.engine, b.provider_operators, &b.params, &isolated, &chained, NULL};
    assert_good(h3_walk_forward(&walk));
    assert_good(h3_walk_backward(&walk));
    const uint16_t *v = isolated.node[H3_NODE_V_PROJ].din[0].data, *k = isolated.node[H3_NODE_K_PROJ].din[0].data, *q = isolated.node[H3_NODE_Q_PROJ].din[0].data;
    const uint16_t *total = chained.grad[H3_NODE_NORM1].data, *dx = chained.grad[H3_VALUE_X].data;
    const uint16_t *pass = chained.grad[H3_NODE_RESIDUAL_ATTN].data, *norm = isolated.node[H3_NODE_NORM1].din[0].data;
    for (int64_t i = 0; i < ROWS * b.config.hidden_size; i++) {
        const uint16_t vk = h3_f32_to_bf16(h3_bf16_to_f32(v[i]) + h3_bf16_to_f32(k[i]));
        assert_int_equal(total[i], h3_f32_to_bf16(h3_bf16_to_f32(vk) + h3_bf16_to_f32(q[i])));
        assert_int_equal(dx[i], h3_f32_to_bf16(h3_bf16_to_f32(pass[i]) + h3_bf16_to_f32(norm[i])));
    }
    h3_block_state_free(&isolated, h3_device_cpu());
    h3_block_state_free(&chained, h3_device_cpu());
    close_bench(&b);
}

/* The candidate keeps a row's bits in any company, so a batch of two is two batches of one. */
static void test_batch_of_two_is_two_singles(void **state)
{
    (void)state;
    bench b;
    h3_block_state both, one;
    open_bench(&b, 2);
    chain(&b, b.candidate_operators, &both, 0, 2, NULL);
    for (int64_t item = 0; item < 2; item++) {
        chain(&b, b.candidate_operators, &one, item, 1, NULL);
        for (int32_t node = 0; node < H3_NODE_COUNT; node++) {
            if (node == H3_NODE_ADALN) continue;
            const int64_t rows = both.value[node].rank == 4 ? 1 : ROWS; /* items are the first dimension of attention */
            h3_tensor out = slice(&both.value[node], item * rows, rows);
            h3_tensor gradient = slice(&both.grad[node], item * (both.grad[node].rank == 4 ? 1 : ROWS), both.grad[node].rank == 4 ? 1 : ROWS);
            assert_same(&out, &one.value[node], node, "output");
            assert_same(&gradient, &one.grad[node], node, "gradient");
        }
        h3_tensor dx = slice(&both.grad[H3_VALUE_X], item * ROWS, ROWS);
        assert_same(&dx, &one.grad[H3_VALUE_X], H3_NODE_NORM1, "gradient of the block input");
        h3_block_state_free(&one, h3_device_cpu());
    }
    h3_tensor first = slice(&both.value[H3_NODE_NORM1], 0, ROWS), second = slice(&both.value[H3_NODE_NORM1], ROWS, ROWS);
    assert_memory_not_equal(first.data, second.data, h3_tensor_bytes(&first)); /* the items are not the same by chance */
    h3_block_state_free(&both, h3_device_cpu());
    close_bench(&b);
}

/* An isolated walk in FP32 takes the BF16 values exactly, and makes FP32 ones. */
static void test_isolated_walk_in_fp32(void **state)
{
    (void)state;
    bench b;
    h3_block_state chained, golden = {0};
    h3_block_params wide;
    open_bench(&b, 1);
    chain(&b, b.provider_operators, &chained, 0, 1, NULL);
    assert_good(h3_block_params_load(&wide, h3_device_cpu(), b.weights, 1, 0, H3_F32));
    golden.batch = 1;
    h3_walk walk = {&b.engine, b.provider_operators, &wide, &golden, &chained, NULL};
    assert_good(h3_walk_forward(&walk));
    assert_good(h3_walk_backward(&walk));
    for (int32_t node = 0; node < H3_NODE_COUNT; node++) {
        const h3_tensor *out = &golden.node[node].out, *narrow = &chained.value[node];
        assert_int_equal(out->dtype, H3_F32);
        assert_int_equal(narrow->dtype, H3_BF16);
        for (int64_t i = 0; i < h3_tensor_count(out); i++) { /* within a few roundings of the BF16 node, and seldom equal to it */
            const double a = (double)((float *)out->data)[i], p = (double)h3_bf16_to_f32(((uint16_t *)narrow->data)[i]);
            assert_true(a - p < 0.05 * (1.0 + (a < 0 ? -a : a)) && p - a < 0.05 * (1.0 + (a < 0 ? -a : a)));
        }
    }
    h3_block_state_free(&golden, h3_device_cpu());
    h3_block_params_free(&wide, h3_device_cpu());
    h3_block_state_free(&chained, h3_device_cpu());
    close_bench(&b);
}

/* ---- taps ---- */

typedef struct seen {
    char text[8192];
} seen;

static h3_status note(void *user, const h3_tap_event *event)
{
    static const char *const kinds[] = {"call", "output", "gradient", "param", "input"};
    seen *s = user;
    size_t used = strlen(s->text);
    if (event->kind != H3_TAP_CALL) assert_non_null(event->tensor->data);
    else assert_true(event->report->kernel[0] != 0);
    snprintf(s->text + used, sizeof s->text - used, "%s %s %d\n", kinds[event->kind], h3_nodes[event->node].name, event->index);
    return H3_OK;
}

static void test_taps_see_everything_in_order(void **state)
{
    (void)state;
    bench b;
    h3_block_state chained;
    seen s = {""};
    char wanted[8192] = "";
    size_t used = 0;
    h3_tap tap = {note, &s};
    open_bench(&b, 1);
    chain(&b, b.provider_operators, &chained, 0, 1, &tap);
    for (int32_t node = 0; node < H3_NODE_COUNT; node++)
        used += (size_t)snprintf(wanted + used, sizeof wanted - used, "call %s 0\noutput %s 0\n", h3_nodes[node].name, h3_nodes[node].name);
    for (int32_t node = H3_NODE_COUNT - 1; node >= 0; node--) {
        const char *name = h3_nodes[node].name;
        used += (size_t)snprintf(wanted + used, sizeof wanted - used, node == H3_NODE_ADALN ? "call %s 0\ngradient %s 0\n" : "gradient %s 0\ncall %s 0\n", name, name);
        for (int i = 0; i < 2; i++)
            if (h3_nodes[node].param[i].suffix != NULL) used += (size_t)snprintf(wanted + used, sizeof wanted - used, "param %s %d\n", name, i);
    }
    snprintf(wanted + used, sizeof wanted - used, "input norm1 0\ninput adaln_projection 1\n");
    assert_string_equal(s.text, wanted);
    h3_block_state_free(&chained, h3_device_cpu());
    close_bench(&b);
}

static void test_node_without_operator(void **state)
{
    (void)state;
    bench b;
    h3_block_state one = {0};
    open_bench(&b, 1);
    chain(&b, b.provider_operators, &one, 0, 1, NULL);
    b.candidate_operators[H3_NODE_SWIGLU] = NULL;
    h3_block_state isolated = {.batch = 1};
    h3_walk walk = {&b.engine, b.candidate_operators, &b.params, &isolated, &one, NULL};
    assert_fails(h3_walk_forward(&walk), H3_FAILED, "node swiglu is unavailable");
    h3_block_state_free(&isolated, h3_device_cpu());
    h3_block_state_free(&one, h3_device_cpu());
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_parameter_has_one_owner), cmocka_unit_test(test_table_order_and_wiring), cmocka_unit_test(test_isolated_equals_chained),
        cmocka_unit_test(test_sums_of_gradients), cmocka_unit_test(test_batch_of_two_is_two_singles), cmocka_unit_test(test_isolated_walk_in_fp32),
        cmocka_unit_test(test_taps_see_everything_in_order), cmocka_unit_test(test_node_without_operator),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
