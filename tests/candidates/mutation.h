/* What is wrong on purpose in libwrong.so, and the roundings that the mutations change. */
#ifndef H3_TESTS_MUTATION_H
#define H3_TESTS_MUTATION_H

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "h3/operator.h"

/* Mutations of the arithmetic: the node runs the loops of these headers instead of the shipped kernel. */
typedef enum {
    NOT_ARITHMETIC,
    CONTROL,    /* nothing wrong: the loops themselves pass every check */
    EPSILON,    /* 1e-3 in a norm */
    SCALE,      /* 1.001 times the result, before its last rounding */
    PARTIAL,    /* running sums rounded to BF16 after every 64 terms */
    EXTRA,      /* a product's output rounded once more before what follows it */
    FUSED,      /* an inner rounding left out */
    TRUNCATED,  /* the last rounding cuts instead of rounding to nearest */
    ORDER,      /* sums descend in calls of more than 64 rows */
    ORDER_EACH, /* sums descend in every eighth row of the call */
    CHUNK,      /* the wrong modulation chunk, or two of them swapped */
    ALPHA,      /* attention's scale 1 / sqrt(D + 1) */
    MASK,       /* attention forgets the last key row */
    NORMALISED, /* attention rounds normalised probabilities to BF16 */
    CHANNEL,    /* rotary: the angle of the next channel; SwiGLU: the two halves swapped */
    SIGN,       /* rotary turns the other way round */
    DROPPED,    /* a row's contribution to a gradient, or a row gradient, is left out */
    TRANSPOSED  /* dW holds one element at the transposed place */
} mutation;

static const char *const mutation_names[] = {"",          "control",    "eps",  "scale",      "partial", "extra", "fused",   "truncated", "order",
                                             "order_row", "chunk",      "alpha", "mask",      "normalised", "channel", "sign", "dropped", "transposed"};

/* The mutation that the running call has; CONTROL where nothing is wrong. */
static mutation active = CONTROL;

static float bf(float value) { return h3_bf16_to_f32(h3_f32_to_bf16(value)); }

/* The last step of a result. */
static uint16_t result(float value)
{
    uint32_t bits;
    if (active == SCALE) value *= 1.001f;
    if (active != TRUNCATED) return h3_f32_to_bf16(value);
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)(bits >> 16);
}

/* A running sum after `done` of `all` terms. */
static float running(float sum, int64_t done, int64_t all)
{
    if (active == PARTIAL && all >= 128 && done % 64 == 0) return bf(sum);
    return active == EXTRA && done == all / 2 ? bf(sum) : sum;
}

static bool descends(int64_t row, int64_t rows)
{
    return (active == ORDER && rows > 64) || (active == ORDER_EACH && row % 8 == 7);
}

static const uint16_t *halves(const h3_tensor *tensor) { return tensor->data; }
static uint16_t *wanted(const h3_tensor *tensor) { return tensor->rank > 0 ? tensor->data : NULL; }
static int64_t width_of(const h3_tensor *tensor) { return tensor->shape[tensor->rank - 1]; }
static int64_t rows_of(const h3_tensor *tensor) { return h3_tensor_count(tensor) / width_of(tensor); }
static float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

#endif
