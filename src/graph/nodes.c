#include "graph/nodes.h"

#include <stdio.h>
#include <string.h>

#define NONE H3_VALUE_NONE

const h3_node_spec h3_nodes[H3_NODE_COUNT] = {
    [H3_NODE_ADALN] = {.name = "adaln_projection", .in = {H3_VALUE_TEMB, NONE, NONE, NONE}, .in_form = H3_FORM_TABLE,
                       .out_form = H3_FORM_TABLE, .param = {{"adaln_proj.linear.weight", 2}, {"adaln_proj.linear.bias", 1}},
                       .grad_in = {1}, .bitwise_cuda = 1},
    [H3_NODE_NORM1] = {.name = "norm1", .in = {H3_VALUE_X, H3_NODE_ADALN, H3_VALUE_INDEX, NONE}, .in_form = H3_FORM_ROWS,
                       .out_form = H3_FORM_ROWS, .param = {{"norm1.weight", 1}}, .grad_in = {1}, .chunk = 0, .row_grads = 2,
                       .bitwise_cpu = 1, .bitwise_cuda = 1},
    [H3_NODE_Q_PROJ] = {.name = "q_proj", .in = {H3_NODE_NORM1, NONE, NONE, NONE}, .in_form = H3_FORM_ROWS,
                        .out_form = H3_FORM_ROWS, .param = {{"attn.to_q.weight", 2}}, .grad_in = {1}, .bitwise_cuda = 1},
    [H3_NODE_K_PROJ] = {.name = "k_proj", .in = {H3_NODE_NORM1, NONE, NONE, NONE}, .in_form = H3_FORM_ROWS,
                        .out_form = H3_FORM_ROWS, .param = {{"attn.to_k.weight", 2}}, .grad_in = {1}, .bitwise_cuda = 1},
    [H3_NODE_V_PROJ] = {.name = "v_proj", .in = {H3_NODE_NORM1, NONE, NONE, NONE}, .in_form = H3_FORM_ROWS,
                        .out_form = H3_FORM_ROWS, .param = {{"attn.to_v.weight", 2}}, .grad_in = {1}, .bitwise_cuda = 1},
    [H3_NODE_Q_NORM] = {.name = "q_norm", .in = {H3_NODE_Q_PROJ, NONE, NONE, NONE}, .in_form = H3_FORM_HEADS,
                        .out_form = H3_FORM_HEADS, .param = {{"attn.norm_q.weight", 1}}, .grad_in = {1}, .qk_epsilon = 1,
                        .bitwise_cpu = 1, .bitwise_cuda = 1},
    [H3_NODE_K_NORM] = {.name = "k_norm", .in = {H3_NODE_K_PROJ, NONE, NONE, NONE}, .in_form = H3_FORM_HEADS,
                        .out_form = H3_FORM_HEADS, .param = {{"attn.norm_k.weight", 1}}, .grad_in = {1}, .qk_epsilon = 1,
                        .bitwise_cpu = 1, .bitwise_cuda = 1},
    [H3_NODE_ROPE_Q] = {.name = "rope_q", .in = {H3_NODE_Q_NORM, H3_VALUE_COS, H3_VALUE_SIN, NONE}, .in_form = H3_FORM_HEADS,
                        .out_form = H3_FORM_HEADS, .grad_in = {1}, .bitwise_cpu = 1, .bitwise_cuda = 1},
    [H3_NODE_ROPE_K] = {.name = "rope_k", .in = {H3_NODE_K_NORM, H3_VALUE_COS, H3_VALUE_SIN, NONE}, .in_form = H3_FORM_HEADS,
                        .out_form = H3_FORM_HEADS, .grad_in = {1}, .bitwise_cpu = 1, .bitwise_cuda = 1},
    [H3_NODE_ATTENTION] = {.name = "attention", .in = {H3_NODE_ROPE_Q, H3_NODE_ROPE_K, H3_NODE_V_PROJ, NONE},
                           .in_form = H3_FORM_ITEMS, .out_form = H3_FORM_ITEMS, .grad_in = {1, 1, 1}},
    [H3_NODE_O_PROJ] = {.name = "o_proj", .in = {H3_NODE_ATTENTION, NONE, NONE, NONE}, .in_form = H3_FORM_ROWS,
                        .out_form = H3_FORM_ROWS, .param = {{"attn.to_out.0.weight", 2}}, .grad_in = {1}, .bitwise_cuda = 1},
    [H3_NODE_RESIDUAL_ATTN] = {.name = "residual_attn", .in = {H3_VALUE_X, H3_NODE_O_PROJ, H3_NODE_ADALN, H3_VALUE_INDEX},
                               .in_form = H3_FORM_ROWS, .out_form = H3_FORM_ROWS, .grad_in = {0, 1}, .pass_x = 1, .chunk = 2,
                               .row_grads = 1, .bitwise_cpu = 1, .bitwise_cuda = 1},
    [H3_NODE_NORM2] = {.name = "norm2", .in = {H3_NODE_RESIDUAL_ATTN, H3_NODE_ADALN, H3_VALUE_INDEX, NONE},
                       .in_form = H3_FORM_ROWS, .out_form = H3_FORM_ROWS, .param = {{"norm2.weight", 1}}, .grad_in = {1},
                       .chunk = 3, .row_grads = 2, .bitwise_cpu = 1, .bitwise_cuda = 1},
    [H3_NODE_FFN_GATE_UP] = {.name = "ffn_gate_up", .in = {H3_NODE_NORM2, NONE, NONE, NONE}, .in_form = H3_FORM_ROWS,
                             .out_form = H3_FORM_ROWS, .param = {{"ff.net.0.proj.weight", 2}}, .grad_in = {1},
                             .bitwise_cuda = 1},
    [H3_NODE_SWIGLU] = {.name = "swiglu", .in = {H3_NODE_FFN_GATE_UP, NONE, NONE, NONE}, .in_form = H3_FORM_ROWS,
                        .out_form = H3_FORM_ROWS, .grad_in = {1}},
    [H3_NODE_FFN_DOWN] = {.name = "ffn_down", .in = {H3_NODE_SWIGLU, NONE, NONE, NONE}, .in_form = H3_FORM_ROWS,
                          .out_form = H3_FORM_ROWS, .param = {{"ff.net.2.weight", 2}}, .grad_in = {1}, .bitwise_cuda = 1},
    [H3_NODE_RESIDUAL_MLP] = {.name = "residual_mlp",
                              .in = {H3_NODE_RESIDUAL_ATTN, H3_NODE_FFN_DOWN, H3_NODE_ADALN, H3_VALUE_INDEX},
                              .in_form = H3_FORM_ROWS, .out_form = H3_FORM_ROWS, .grad_in = {0, 1}, .pass_x = 1, .chunk = 5,
                              .row_grads = 1, .bitwise_cpu = 1, .bitwise_cuda = 1},
};

int32_t h3_node_find(const char *name)
{
    for (int32_t node = 0; node < H3_NODE_COUNT; node++)
        if (strcmp(h3_nodes[node].name, name) == 0) return node;
    return -1;
}

int64_t h3_node_width(int32_t node, const h3_config *config)
{
    switch (node) {
    case H3_NODE_ADALN: return 18 * config->hidden_size;
    case H3_NODE_Q_PROJ:
    case H3_NODE_K_PROJ:
    case H3_NODE_V_PROJ:
    case H3_NODE_Q_NORM:
    case H3_NODE_K_NORM:
    case H3_NODE_ROPE_Q:
    case H3_NODE_ROPE_K:
    case H3_NODE_ATTENTION: return h3_config_inner_size(config);
    case H3_NODE_FFN_GATE_UP: return 2 * config->ffn_dim;
    case H3_NODE_SWIGLU: return config->ffn_dim;
    default: return config->hidden_size;
    }
}

void h3_node_param_name(char out[96], int32_t node, int32_t param, int64_t block, int refiner)
{
    snprintf(out, 96, "%s.%lld.%s", refiner ? "token_refiner.refiner_blocks" : "transformer_blocks", (long long)block,
             h3_nodes[node].param[param].suffix);
}
