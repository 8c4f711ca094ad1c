#include "model/synth.h"

#include <inttypes.h>
#include <math.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

enum { LANES = 64 }; /* Philox blocks computed side by side, so that the compiler can use vector instructions */

static const uint32_t MULTIPLIER_0 = 0xd2511f53u, MULTIPLIER_1 = 0xcd9e8d57u, WEYL_0 = 0x9e3779b9u, WEYL_1 = 0xbb67ae85u;
enum { ROUNDS = 10 };

void h3_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c[4] = {counter[0], counter[1], counter[2], counter[3]}, k[2] = {key[0], key[1]};
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t p0 = (uint64_t)MULTIPLIER_0 * c[0], p1 = (uint64_t)MULTIPLIER_1 * c[2];
        c[0] = (uint32_t)(p1 >> 32) ^ c[1] ^ k[0];
        c[1] = (uint32_t)p1;
        c[2] = (uint32_t)(p0 >> 32) ^ c[3] ^ k[1];
        c[3] = (uint32_t)p0;
        k[0] += WEYL_0;
        k[1] += WEYL_1;
    }
    memcpy(out, c, sizeof c);
}

h3_status h3_synth_key(uint32_t key[2], uint64_t seed, const char *name)
{
    char *text;
    unsigned char hash[EVP_MAX_MD_SIZE];
    H3_TRY(h3_format(&text, "h3synth-v1:%" PRIu64 ":%s", seed, name));
    int hashed = EVP_Digest(text, strlen(text), hash, NULL, EVP_sha256(), NULL);
    free(text);
    if (!hashed) return h3_error(H3_ENVIRONMENT, "SHA-256 is not available; check the installation of OpenSSL");
    for (int i = 0; i < 2; i++)
        key[i] = (uint32_t)hash[4 * i] | (uint32_t)hash[4 * i + 1] << 8 | (uint32_t)hash[4 * i + 2] << 16 |
                 (uint32_t)hash[4 * i + 3] << 24;
    return H3_OK;
}

static inline float to_value(uint32_t word, float base, float amp)
{
    float u = (float)(int32_t)word * 0x1p-31f;
    float scaled = amp * u;
    return base + scaled;
}

/* Elements 4 * first .. 4 * (first + LANES) - 1 of a stream: LANES blocks, then the words as values. The rounds run over lanes
 * side by side, which the compiler turns into vector instructions. */
static void make_run(float values[4 * LANES], uint64_t first, const uint32_t key[2], float base, float amp)
{
    uint32_t c0[LANES], c1[LANES], c2[LANES], c3[LANES], k0 = key[0], k1 = key[1];
    for (uint32_t i = 0; i < LANES; i++) {
        c0[i] = (uint32_t)(first + i);
        c1[i] = (uint32_t)((first + i) >> 32);
        c2[i] = c3[i] = 0;
    }
    for (int round = 0; round < ROUNDS; round++, k0 += WEYL_0, k1 += WEYL_1) {
        for (int i = 0; i < LANES; i++) {
            uint64_t p0 = (uint64_t)MULTIPLIER_0 * c0[i], p1 = (uint64_t)MULTIPLIER_1 * c2[i];
            c0[i] = (uint32_t)(p1 >> 32) ^ c1[i] ^ k0;
            c1[i] = (uint32_t)p1;
            c2[i] = (uint32_t)(p0 >> 32) ^ c3[i] ^ k1;
            c3[i] = (uint32_t)p0;
        }
    }
    for (int i = 0; i < LANES; i++) {
        values[4 * i] = to_value(c0[i], base, amp);
        values[4 * i + 1] = to_value(c1[i], base, amp);
        values[4 * i + 2] = to_value(c2[i], base, amp);
        values[4 * i + 3] = to_value(c3[i], base, amp);
    }
}

void h3_synth_values(h3_tensor *tensor, const uint32_t key[2], float base, float amp, int through_bf16)
{
    int64_t count = h3_tensor_count(tensor);
    size_t size = h3_dtype_size(tensor->dtype);
    for (int64_t start = 0; start < count; start += 4 * LANES) {
        float values[4 * LANES];
        uint16_t rounded[4 * LANES];
        size_t left = (size_t)(count - start < 4 * LANES ? count - start : 4 * LANES);
        make_run(values, (uint64_t)(start / 4), key, base, amp);
        for (int i = 0; i < 4 * LANES; i++) rounded[i] = h3_f32_to_bf16(values[i]);
        for (int i = 0; through_bf16 && i < 4 * LANES; i++) values[i] = h3_bf16_to_f32(rounded[i]);
        memcpy((char *)tensor->data + (size_t)start * size, tensor->dtype == H3_F32 ? (const void *)values : rounded,
               left * size);
    }
}

h3_status h3_synth_fill(h3_tensor *tensor, uint64_t seed, const char *name, float base, float amp)
{
    uint32_t key[2] = {0};
    if (tensor->dtype != H3_F32 && tensor->dtype != H3_BF16)
        return h3_error(H3_INTEGRITY, "synthetic values exist as F32 and BF16, not as dtype %d", tensor->dtype);
    H3_TRY(h3_synth_key(key, seed, name));
    h3_synth_values(tensor, key, base, amp, 0);
    return H3_OK;
}

static int ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

void h3_synth_parameter_scale(const h3_parameter *parameter, float *base, float *amp)
{
    *base = 0;
    if (ends_with(parameter->name, ".bias")) {
        *amp = 0.1f;
    } else if (parameter->rank == 1) { /* every one-dimensional weight is a norm's */
        *base = 1;
        *amp = 0.25f;
    } else {
        double scale = sqrt(3.0 / (double)parameter->shape[1]);
        int modulates =
            ends_with(parameter->name, "adaln_proj.linear.weight") || ends_with(parameter->name, "norm_out.linear.weight");
        *amp = (float)(modulates ? 0.5 * scale : scale);
    }
}

h3_status h3_synth_input(h3_tensor *out, uint64_t seed, const char *name, int32_t dtype, int32_t rank, const int64_t *shape)
{
    h3_tensor tensor;
    *out = (h3_tensor){0};
    H3_TRY(h3_tensor_new(&tensor, dtype, rank, shape));
    h3_status status = h3_synth_fill(&tensor, seed, name, 0, (float)sqrt(3.0));
    if (status != H3_OK) h3_tensor_free(&tensor);
    else *out = tensor;
    return status;
}
