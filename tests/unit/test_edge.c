/* edge: sharp attention, zero and subnormal rows. The candidate's isolated, repeat, batch and promise checks on every block. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "golden.h"
#include "qualify/case.h"
#include "qualify/gate_internal.h"

/* What a block needs from a pass of the whole model. */
typedef struct capture {
    int64_t block;
    h3_tensor x, temb, dx2;
} capture;

static h3_status keep(void *user, int64_t block, const char *name, const h3_tensor *tensor)
{
    capture *c = user;
    char input[64], upstream[64];
    (void)block;
    snprintf(input, sizeof input, c->block == 0 ? "boundary.hidden" : "node.block%lld.residual_mlp", (long long)c->block - 1);
    snprintf(upstream, sizeof upstream, "dnode.block%lld.residual_mlp", (long long)c->block);
    h3_tensor *to = strcmp(name, input) == 0 ? &c->x : strcmp(name, upstream) == 0 ? &c->dx2 : strcmp(name, "boundary.temb") == 0 ? &c->temb : NULL;
    return to != NULL ? h3_tensor_convert(to, tensor, tensor->dtype) : H3_OK;
}

typedef struct setting {
    h3_weights *weights;
    h3_library provider;
    h3_bindings candidate;
    h3_case item;
} setting;

static void must(h3_status status)
{
    if (status != H3_OK) fail_msg("%s", h3_error_text());
}

static int open_setting(void **state)
{
    char folder[H3_PATH_MAX], path[H3_PATH_MAX + 32];
    setting *s = calloc(1, sizeof *s);
    golden_folder(folder, "edge");
    snprintf(path, sizeof path, "%s/transformer", folder);
    if (s == NULL || h3_weights_open(&s->weights, path) != H3_OK) return -1;
    snprintf(path, sizeof path, "%s/case.safetensors", folder);
    if (h3_case_read(&s->item, path) != H3_OK || h3_library_open(&s->provider, "libh3_provider_cpu.so") != H3_OK) return -1;
    *state = s;
    return h3_bindings_single(&s->candidate, "libh3_candidate_cpu.so") == H3_OK ? 0 : -1;
}

static int close_setting(void **state)
{
    setting *s = *state;
    h3_bindings_close(&s->candidate);
    h3_library_close(&s->provider);
    h3_case_free(&s->item);
    h3_weights_free(s->weights);
    free(s);
    return 0;
}

static void run_model(setting *s, capture *c)
{
    h3_model model;
    h3_pass *pass;
    h3_sink sink = {keep, NULL, c};
    must(h3_model_open(&model, s->weights, NULL, H3_BF16, &s->provider, NULL, 0, h3_weights_config(s->weights)->num_layers));
    must(h3_model_forward(&model, &s->item.sequence, &sink, &pass, NULL, NULL));
    must(h3_model_backward(&model, pass, &sink));
    h3_pass_free(pass, &model);
    h3_model_close(&model);
}

/* All isolated checks of one block of the case. */
static void run_block(setting *s, int64_t number, h3_layout_record *record)
{
    h3_plan_layout layout = {.name = "edge"};
    h3_gate gate = {.weights = s->weights, .provider = &s->provider, .candidate = &s->candidate};
    h3_gate_block block = {.gate = &gate, .layout = &layout, .record = record, .only_node = -1};
    capture c = {.block = number};
    memset(record, 0, sizeof *record);
    run_model(s, &c);
    h3_engine_init(&block.engine, h3_weights_config(s->weights), h3_device_cpu(), &s->provider);
    for (int32_t node = 0; node < H3_NODE_COUNT; node++) {
        must(h3_library_find(&block.provider_operators[node], &s->provider, h3_nodes[node].name, NULL));
        for (int direction = 0; direction < 2; direction++)
            for (int kind = 0; kind < H3_CHECK_CHAINED; kind++)
                if (h3_check_exists(H3_DEVICE_CPU, node, direction, kind, s->candidate.operators[node])) record->node[node].cell[direction][kind].state = H3_CELL_NOT_RUN;
    }
    block.inputs.sequence = s->item.sequence;
    block.inputs.layout.rows = s->item.sequence.rows;
    block.x = c.x;
    block.temb = c.temb;
    block.dx2 = c.dx2;
    must(h3_block_params_load(&block.bf16, block.engine.device, s->weights, number, 0, H3_BF16));
    must(h3_block_params_load(&block.fp32, block.engine.device, s->weights, number, 0, H3_F32));
    must(h3_gate_run_provider(&block));
    must(h3_gate_run_isolated(&block));
    memset(&block.inputs, 0, sizeof block.inputs); /* the case owns what it points at */
    free(gate.digests);
    h3_gate_block_free(&block);
}

static void all_checks_hold(void **state)
{
    h3_layout_record *record = test_malloc(sizeof *record);
    for (int64_t number = 0; number < 2; number++) {
        int passed = 0;
        run_block(*state, number, record);
        for (int32_t node = 0; node < H3_NODE_COUNT; node++) {
            for (int direction = 0; direction < 2; direction++) {
                for (int kind = 0; kind < H3_CHECK_CHAINED; kind++) {
                    const h3_cell *cell = &record->node[node].cell[direction][kind];
                    if (cell->state == H3_CELL_ABSENT) continue;
                    if (cell->state != H3_CELL_PASSED)
                        fail_msg("block %d %s %s %s: %g over %g %s", (int)number, h3_nodes[node].name, direction ? "backward" : "forward", h3_check_names[kind],
                                 cell->value, cell->bound, cell->detail);
                    passed++;
                }
            }
        }
        print_message("# edge block %d: %d checks hold\n", (int)number, passed);
        assert_true(passed > 200);
    }
    test_free(record);
}

/* The same checks must bite here too. */
static int (*shipped_swiglu)(h3_call *call);
static int louder_swiglu(h3_call *call)
{
    int code = shipped_swiglu(call);
    uint16_t *out = call->out.data;
    for (int64_t i = 0; i < h3_tensor_count(&call->out); i++) out[i] = h3_f32_to_bf16(1.01f * h3_bf16_to_f32(out[i]));
    return code;
}

static void a_louder_swiglu_fails(void **state)
{
    setting *s = *state;
    h3_layout_record *record = test_malloc(sizeof *record);
    const h3_operator *shipped = s->candidate.operators[H3_NODE_SWIGLU];
    h3_operator wrong = *shipped;
    shipped_swiglu = shipped->forward;
    wrong.forward = louder_swiglu;
    s->candidate.operators[H3_NODE_SWIGLU] = &wrong;
    run_block(s, 1, record);
    s->candidate.operators[H3_NODE_SWIGLU] = shipped;
    assert_int_equal(record->node[H3_NODE_SWIGLU].cell[H3_FORWARD][H3_CHECK_ERROR].state, H3_CELL_FAILED);
    assert_int_equal(record->node[H3_NODE_SWIGLU].cell[H3_FORWARD][H3_CHECK_BIAS].state, H3_CELL_FAILED);
    assert_int_equal(h3_gate_first_failing(record), H3_NODE_SWIGLU);
    test_free(record);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_checks_hold), cmocka_unit_test(a_louder_swiglu_fails)};
    return cmocka_run_group_tests(tests, open_setting, close_setting);
}
