#include "sampled.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

double sampled_value(const h3_tensor *tensor, int64_t i)
{
    if (tensor->dtype == H3_BF16) {
        uint16_t bits;
        memcpy(&bits, (const char *)tensor->data + 2 * i, sizeof bits);
        return (double)h3_bf16_to_f32(bits);
    }
    float f;
    memcpy(&f, (const char *)tensor->data + 4 * i, sizeof f);
    return (double)f;
}

double sampled_scale(const cJSON *entry, int64_t count, int64_t k)
{
    const cJSON *size, *l2 = cJSON_GetObjectItemCaseSensitive(entry, "l2");
    double expected = 1.0;
    cJSON_ArrayForEach(size, cJSON_GetObjectItemCaseSensitive(entry, "shape")) expected *= size->valuedouble;
    if (!cJSON_IsNumber(l2) || expected != (double)count) return NAN;
    return l2->valuedouble * sqrt((double)k / (double)count);
}

double sampled_error(const h3_tensor *x, const h3_tensor *golden, double scale, double factor)
{
    const int64_t count = h3_tensor_count(x), k = h3_tensor_count(golden);
    double sum = 0.0;
    if (count < 1 || k < 1) return NAN;
    for (int64_t j = 0; j < k; j++) {
        double d = sampled_value(x, (int64_t)(((uint64_t)j * 2654435761u) % (uint64_t)count)) * factor - sampled_value(golden, j);
        sum += d * d;
    }
    return sqrt(sum) / scale;
}

double sampled_distance(const h3_tensor *a, const h3_tensor *b, double scale)
{
    const int64_t k = h3_tensor_count(a);
    double sum = 0.0;
    if (k < 1 || k != h3_tensor_count(b)) return NAN;
    for (int64_t j = 0; j < k; j++) {
        double d = sampled_value(a, j) - sampled_value(b, j);
        sum += d * d;
    }
    return sqrt(sum) / scale;
}

void sampled_note(golden_result *result, const char *name, double error, double bound)
{
    result->compared++;
    if (!(error <= bound)) result->failed++;
    if (isnan(result->worst) || error / bound <= result->worst) return;
    result->worst = error / bound;
    result->worst_error = error;
    result->worst_bound = bound;
    snprintf(result->worst_name, sizeof result->worst_name, "%.159s", name);
}
