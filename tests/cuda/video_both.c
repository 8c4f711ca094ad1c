/* Tensors on both sides. */
#include "video_both.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "model/synth.h"

const h3_device *gpu;
const h3_video_ops *cpu_ops, *gpu_ops;

both make(const char *name, int32_t dtype, int32_t rank, const int64_t *shape, float amp)
{
    both b;
    h3_tensor wide;
    must(h3_tensor_new(&wide, H3_F32, rank, shape));
    if (name != NULL) must(h3_synth_fill(&wide, 11, name, 0.0f, amp));
    must(h3_tensor_new(&b.host, dtype, rank, shape));
    if (dtype == H3_F16) must(cpu_ops->round(h3_device_cpu(), &b.host, &wide));
    else memcpy(b.host.data, wide.data, h3_tensor_bytes(&wide));
    must(h3_device_upload(&b.device, gpu, &b.host));
    h3_tensor_free(&wide);
    return b;
}

void release(both *b)
{
    h3_tensor_free(&b->host);
    h3_device_free(&b->device, gpu);
}

static float value(const h3_tensor *t, int64_t i) { return t->dtype == H3_F16 ? h3_f16_to_f32(((const uint16_t *)t->data)[i]) : ((const float *)t->data)[i]; }

double distance(const both *b, int bytes)
{
    h3_tensor got;
    double difference = 0.0, norm = 0.0;
    must(h3_device_download(&got, gpu, &b->device));
    const int same = memcmp(got.data, b->host.data, h3_tensor_bytes(&got)) == 0;
    for (int64_t i = 0; i < h3_tensor_count(&got); i++) {
        const double d = (double)value(&got, i) - (double)value(&b->host, i);
        difference += d * d;
        norm += (double)value(&b->host, i) * (double)value(&b->host, i);
    }
    h3_tensor_free(&got);
    if (bytes) return same ? 0.0 : INFINITY;
    return sqrt(difference) / sqrt(norm);
}

const char *type_name(int32_t dtype) { return dtype == H3_F16 ? "f16" : "f32"; }

char *variable_for_now(const char *name, const char *value)
{
    const char *text = getenv(name);
    char *before = text != NULL ? strdup(text) : NULL;
    setenv(name, value, 1);
    return before;
}

void variable_back(const char *name, char *before)
{
    if (before != NULL) setenv(name, before, 1);
    else unsetenv(name);
    free(before);
}
