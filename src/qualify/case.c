#include "qualify/case.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "model/safetensors.h"
#include "qualify/metrics.h"
#include "store/artifact.h"

static h3_status read_all(h3_case *out, const h3_safetensors *file)
{
    const struct {
        const char *name;
        h3_tensor *tensor;
        int32_t dtype;
    } wanted[] = {
        {"layout.timestep", &out->timestep, H3_F32},           {"layout.timestep_indices", &out->timestep_indices, H3_I64},
        {"layout.token_tags", &out->token_tags, H3_I64},       {"layout.position_ids", &out->position_ids, H3_F64},
        {"layout.video_indices", &out->video_indices, H3_I64}, {"layout.audio_indices", &out->audio_indices, H3_I64},
        {"layout.text_indices", &out->text_indices, H3_I64},   {"input.video", &out->video, H3_F32},
        {"input.audio", &out->audio, H3_F32},                  {"input.text", &out->text, H3_BF16},
        {"input.cot_video", &out->cot_video, H3_F32},          {"input.cot_audio", &out->cot_audio, H3_F32},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        H3_TRY(h3_safetensors_read(wanted[i].tensor, file, wanted[i].name, wanted[i].dtype, 0, NULL));
    return H3_OK;
}

/* Positions become FP32 angles: what is no finite FP32 number is no position. */
static h3_status check_finite(const h3_case *item, const char *path)
{
    const double *position = item->position_ids.data;
    const struct {
        const char *name;
        const h3_tensor *tensor;
    } reals[] = {{"layout.timestep", &item->timestep},  {"input.video", &item->video},
                 {"input.audio", &item->audio},         {"input.text", &item->text},
                 {"input.cot_video", &item->cot_video}, {"input.cot_audio", &item->cot_audio}};
    for (int64_t i = 0; i < h3_tensor_count(&item->position_ids); i++)
        if (!(fabs(position[i]) <= (double)FLT_MAX))
            return h3_error(H3_INTEGRITY, "%s: layout.position_ids has values that are not finite", path);
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++)
        if (!h3_all_finite(reals[i].tensor))
            return h3_error(H3_INTEGRITY, "%s: %s has values that are not finite", path, reals[i].name);
    return H3_OK;
}

/* Drops a leading batch dimension of 1. */
static void drop_batch(h3_tensor *tensor)
{
    if (tensor->rank == 3 && tensor->shape[0] == 1) *tensor = h3_tensor_view(tensor->data, tensor->dtype, 2, &tensor->shape[1]);
}

static h3_status connect(h3_case *item, const char *path)
{
    const h3_tensor *position = &item->position_ids;
    const h3_tensor *vectors[] = {&item->timestep,      &item->timestep_indices, &item->token_tags,
                                  &item->video_indices, &item->audio_indices,    &item->text_indices};
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++)
        if (vectors[i]->rank != 1)
            return h3_error(H3_INTEGRITY, "%s: a layout vector has %d dimensions; 1 is needed", path, vectors[i]->rank);
    int64_t rows = item->timestep_indices.shape[0];
    if (position->rank != 2 || position->shape[0] != rows || position->shape[1] != 3 || item->token_tags.shape[0] != rows)
        return h3_error(H3_INTEGRITY, "%s: position_ids must be [S,3], token_tags and timestep_indices [S]", path);
    drop_batch(&item->video);
    drop_batch(&item->audio);
    drop_batch(&item->text);
    drop_batch(&item->cot_video);
    drop_batch(&item->cot_audio);
    item->sequence = (h3_sequence){.rows = rows,
                                   .text_rows = item->text_indices.shape[0],
                                   .video_rows = item->video_indices.shape[0],
                                   .audio_rows = item->audio_indices.shape[0],
                                   .timestep_count = item->timestep.shape[0],
                                   .position_ids = position->data,
                                   .token_tags = item->token_tags.data,
                                   .timestep_indices = item->timestep_indices.data,
                                   .video_indices = item->video_indices.data,
                                   .audio_indices = item->audio_indices.data,
                                   .text_indices = item->text_indices.data,
                                   .timestep = item->timestep.data,
                                   .video = item->video,
                                   .audio = item->audio,
                                   .text = item->text,
                                   .cot_video = item->cot_video,
                                   .cot_audio = item->cot_audio};
    return H3_OK;
}

h3_status h3_case_read(h3_case *out, const char *path)
{
    h3_safetensors file;
    memset(out, 0, sizeof *out);
    H3_TRY(h3_safetensors_open(&file, path));
    h3_status status = read_all(out, &file);
    h3_safetensors_close(&file);
    if (status == H3_OK) status = connect(out, path);
    if (status == H3_OK) status = check_finite(out, path);
    if (status != H3_OK) h3_case_free(out);
    return status;
}

void h3_case_free(h3_case *item)
{
    h3_tensor *tensors[] = {
        &item->timestep,      &item->timestep_indices, &item->token_tags, &item->position_ids, &item->video_indices,
        &item->audio_indices, &item->text_indices,     &item->video,      &item->audio,        &item->text,
        &item->cot_video,     &item->cot_audio};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) h3_tensor_free(tensors[i]);
}

/* Where a case's tensors go. */
typedef struct case_store {
    const h3_device *device;
    h3_artifact_writer *writer;
} case_store;

static h3_status store(void *user, int64_t block, const char *name, const h3_tensor *tensor)
{
    const case_store *to = user;
    char digest[H3_SHA256_HEX];
    h3_tensor host;
    (void)block;
    H3_TRY(h3_device_borrow(&host, to->device, tensor));
    h3_status status = h3_all_finite(&host) ? h3_artifact_add(to->writer, name, &host, digest) : h3_error(H3_FAILED, "tensor %s is not finite", name);
    h3_device_return(&host, to->device);
    return status;
}

h3_status h3_case_run(h3_model *model, const h3_case *item, const char *path)
{
    case_store to = {.device = model->engine.device};
    h3_pass *pass = NULL;
    char sha256[H3_SHA256_HEX];
    int64_t size;
    H3_TRY(h3_artifact_create(&to.writer, "h3_reference_pass case"));
    h3_sink sink = {store, NULL, &to};
    h3_status status = h3_model_forward(model, &item->sequence, &sink, &pass, NULL, NULL);
    if (status == H3_OK) status = h3_model_backward(model, pass, &sink);
    h3_pass_free(pass, model);
    if (status == H3_OK) return h3_artifact_publish(to.writer, path, &size, sha256);
    h3_artifact_discard(to.writer);
    return status;
}
