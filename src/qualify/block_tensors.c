#include "qualify/block_tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dist/attach.h"
#include "qualify/inputs.h"

typedef struct named {
    char name[H3_ARTIFACT_NAME_SIZE];
    h3_tensor tensor; /* on the device; of an artifact: once it was asked for */
    const h3_tensor *host; /* of an artifact */
    h3_digest_job *job;
} named;

struct h3_block_tensors {
    h3_tensor_source *source;
    const char *layout;
    int32_t precision;
    int64_t block;
    h3_kept *seen[3]; /* artifacts in use */
    int seen_count;
    size_t count, capacity;
    named *items;
    const h3_tensor *x, *dout, *dtemb; /* the ends of what is made: on the host, in the source's artifacts */
    int received;
    int wanted; /* the sink keeps what comes now */
};

void h3_tensor_source_close(h3_tensor_source *source)
{
    for (int i = 0; i < H3_KEPT; i++) h3_artifact_close(&source->kept[i].artifact);
}

static h3_status add(h3_block_tensors *t, const char *name, named **out)
{
    if (t->count == t->capacity) {
        size_t capacity = t->capacity ? 2 * t->capacity : 64;
        void *larger = realloc(t->items, capacity * sizeof *t->items);
        if (larger == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for a block's tensors");
        t->items = larger;
        t->capacity = capacity;
    }
    named *item = &t->items[t->count++];
    memset(item, 0, sizeof *item);
    snprintf(item->name, sizeof item->name, "%s", name);
    *out = item;
    return H3_OK;
}

/* --- artifacts ------------------------------------------------------------------------------------------------------ */

static h3_kept *find_kept(h3_tensor_source *source, const char *path)
{
    for (int i = 0; i < H3_KEPT; i++)
        if (source->kept[i].artifact.count > 0 && strcmp(source->kept[i].artifact.path, path) == 0) return &source->kept[i];
    return NULL;
}

/* A free place, or the one that was filled longest ago and that nobody looks at. */
static h3_kept *free_place(h3_tensor_source *source)
{
    for (int tries = 0; tries < H3_KEPT; tries++) {
        h3_kept *place = &source->kept[source->turn];
        source->turn = (source->turn + 1) % H3_KEPT;
        if (place->users > 0 || place->stays) continue;
        h3_artifact_close(&place->artifact);
        return place;
    }
    return NULL;
}

static h3_status look_at(h3_block_tensors *t, int64_t block, const h3_artifact **out)
{
    h3_tensor_source *source = t->source;
    char relative[200], path[H3_PATH_MAX];
    H3_TRY(h3_reference_path(relative, t->layout, t->precision, block));
    H3_TRY(h3_run_locate(path, source->run_folder, relative));
    h3_kept *place = find_kept(source, path);
    if (place == NULL) {
        place = free_place(source);
        if (place == NULL) return h3_error(H3_ENVIRONMENT, "more than %d artifacts are needed at once", H3_KEPT);
        H3_TRY(h3_inputs_artifact(&place->artifact, source->manifest, source->run_folder, t->layout, t->precision, block));
        place->stays = block == 0 && t->precision == H3_F32;
    }
    place->users++;
    t->seen[t->seen_count++] = place;
    *out = &place->artifact;
    return H3_OK;
}

/* --- read ----------------------------------------------------------------------------------------------------------- */

static h3_status list_file(h3_block_tensors *t, const h3_artifact *own)
{
    named *item;
    for (size_t i = 0; i < own->count; i++) {
        H3_TRY(add(t, own->entries[i].name, &item));
        item->host = &own->entries[i].tensor;
    }
    return H3_OK;
}

static int has_samples(const h3_artifact *artifact)
{
    for (size_t i = 0; i < artifact->count; i++)
        if (strncmp(artifact->entries[i].name, H3_SAMPLES, strlen(H3_SAMPLES)) == 0) return 1;
    return 0;
}

/* --- made again ----------------------------------------------------------------------------------------------------- */

static h3_status find_block_ends(h3_block_tensors *t, const h3_artifact *own)
{
    char name[64];
    const h3_artifact *before;
    snprintf(name, sizeof name, "dnode.block%lld.residual_mlp", (long long)t->block);
    H3_TRY(h3_artifact_need(&t->dout, own, name));
    H3_TRY(look_at(t, t->block - 1, &before));
    snprintf(name, sizeof name, "node.block%lld.residual_mlp", (long long)(t->block - 1));
    return h3_artifact_need(&t->x, before, name);
}

static h3_status find_input_ends(h3_block_tensors *t, const h3_artifact *own)
{
    const h3_artifact *behind;
    H3_TRY(h3_artifact_need(&t->dtemb, own, "dboundary.temb"));
    H3_TRY(look_at(t, 0, &behind));
    return h3_artifact_need(&t->dout, behind, "dinput.block0.x");
}

static h3_status find_output_ends(h3_block_tensors *t)
{
    char name[64];
    const h3_artifact *before;
    const int64_t last = h3_weights_config(t->source->weights)->num_layers - 1;
    H3_TRY(look_at(t, last, &before));
    snprintf(name, sizeof name, "node.block%lld.residual_mlp", (long long)last);
    return h3_artifact_need(&t->x, before, name);
}

static h3_status find_ends(h3_block_tensors *t, const h3_artifact *own)
{
    if (t->block == H3_INPUT_SIDE) return find_input_ends(t, own);
    return t->block == H3_OUTPUT_SIDE ? find_output_ends(t) : find_block_ends(t, own);
}

static h3_status give(void *user, int from_previous, h3_tensor *tensor)
{
    h3_block_tensors *t = user;
    const h3_device *device = t->source->device;
    const h3_tensor *host = from_previous ? t->x : t->dout;
    if (!from_previous && t->received++ > 0) return device->fill(tensor->data, 0, h3_tensor_bytes(tensor)); /* temb's gradient of the blocks behind */
    if (tensor->dtype != host->dtype || h3_tensor_count(tensor) != h3_tensor_count(host))
        return h3_error(H3_INTEGRITY, "what block %lld starts from has another type or size in the artifacts; rerun h3_reference_pass", (long long)t->block);
    return device->from_host(tensor->data, host->data, h3_tensor_bytes(host));
}

static h3_status drop(void *user, int to_next, const h3_tensor *tensor)
{
    (void)user;
    (void)to_next;
    (void)tensor;
    return H3_OK;
}

static h3_status keep(void *user, int64_t block, const char *name, const h3_tensor *tensor)
{
    h3_block_tensors *t = user;
    named *item;
    if (!t->wanted || block != t->block) return H3_OK;
    H3_TRY(add(t, name, &item));
    H3_TRY(h3_device_digest_start(&item->job, t->source->device, tensor));
    return h3_device_duplicate(&item->tensor, t->source->device, tensor);
}

static h3_status require_digests(h3_block_tensors *t)
{
    for (size_t i = 0; i < t->count; i++) {
        named *item = &t->items[i];
        char full[240], digest[H3_SHA256_HEX];
        h3_digest_job *job = item->job;
        snprintf(full, sizeof full, "%s/%s/%s", t->layout, h3_precision_name(t->precision), item->name);
        const h3_manifest_tensor *listed = h3_manifest_find(t->source->manifest, full);
        item->job = NULL;
        H3_TRY(h3_digest_job_wait(job, digest));
        if (listed == NULL || strcmp(listed->digest, digest) != 0)
            return h3_error(H3_INTEGRITY, "the provider does not reproduce tensor %s of reference-manifest.json; its library or the machine has changed, rerun h3_reference_pass",
                            full);
    }
    return H3_OK;
}

/* The block by itself, between its stored ends. */
static h3_status run_block(h3_block_tensors *t, h3_model *model, const h3_sink *sink, const h3_sequence *sequence, int parts)
{
    h3_pass *pass = NULL;
    model->is_first = model->is_last = 0;
    model->link = (h3_link){drop, give, t};
    t->wanted = (parts & H3_PART_FORWARD) != 0;
    h3_status status = h3_model_forward(model, sequence, sink, &pass, NULL, NULL);
    t->wanted = 1;
    if (status == H3_OK && (parts & H3_PART_BACKWARD) != 0) status = h3_model_backward(model, pass, sink);
    h3_pass_free(pass, model);
    return status;
}

static h3_status run_boundary(h3_block_tensors *t, h3_model *model, const h3_sink *sink, const h3_sequence *sequence)
{
    const h3_device *device = t->source->device;
    h3_tensor first = {0}, second = {0};
    h3_status status;
    t->wanted = 1;
    H3_GOTO(h3_device_upload(&first, device, t->block == H3_INPUT_SIDE ? t->dout : t->x), done);
    if (t->block == H3_INPUT_SIDE) H3_GOTO(h3_device_upload(&second, device, t->dtemb), done);
    status = t->block == H3_INPUT_SIDE ? h3_model_input_side(model, sequence, sink, &first, &second) : h3_model_output_side(model, sequence, sink, &first);
done:
    h3_device_free(&first, device);
    h3_device_free(&second, device);
    return status;
}

static h3_status run_again(h3_block_tensors *t, const h3_plan_inputs *inputs, int parts)
{
    h3_model model;
    h3_sink sink = {keep, NULL, t};
    const int64_t last = h3_weights_config(t->source->weights)->num_layers - 1;
    const int64_t block = t->block == H3_INPUT_SIDE ? 0 : t->block == H3_OUTPUT_SIDE ? last : t->block;
    H3_TRY(h3_model_open(&model, t->source->weights, t->source->device, t->precision, t->source->provider, NULL, block, 1));
    h3_ranks_watch(t->source->ranks, &model.engine);
    h3_status status = t->block >= 0 ? run_block(t, &model, &sink, &inputs->sequence, parts) : run_boundary(t, &model, &sink, &inputs->sequence);
    h3_model_close(&model);
    return status;
}

static h3_status make(h3_block_tensors *t, const h3_artifact *own, const h3_plan_inputs *inputs, int parts)
{
    H3_TRY(find_ends(t, own));
    H3_TRY(run_again(t, inputs, parts));
    return require_digests(t);
}

/* --- both ----------------------------------------------------------------------------------------------------------- */

static h3_status open_block(h3_block_tensors *t, const h3_plan_inputs *inputs, int parts)
{
    const h3_artifact *own;
    H3_TRY(look_at(t, t->block, &own));
    return has_samples(own) ? make(t, own, inputs, parts) : list_file(t, own);
}

h3_status h3_block_tensors_open(h3_block_tensors **out, h3_tensor_source *source, const char *layout, const h3_plan_inputs *inputs, int32_t precision,
                                int64_t block, int parts)
{
    h3_block_tensors *t = calloc(1, sizeof *t);
    *out = NULL;
    if (t == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for a block's tensors");
    t->source = source;
    t->layout = layout;
    t->precision = precision;
    t->block = block;
    h3_status status = open_block(t, inputs, parts);
    if (status == H3_OK) *out = t;
    else h3_block_tensors_close(t);
    return status;
}

void h3_block_tensors_close(h3_block_tensors *t)
{
    if (t == NULL) return;
    for (size_t i = 0; i < t->count; i++) {
        h3_digest_job_wait(t->items[i].job, NULL);
        h3_device_free(&t->items[i].tensor, t->source->device);
    }
    for (int i = 0; i < t->seen_count; i++) t->seen[i]->users--;
    free(t->items);
    free(t);
}

size_t h3_block_tensors_count(const h3_block_tensors *t) { return t->count; }
const char *h3_block_tensors_name(const h3_block_tensors *t, size_t i) { return t->items[i].name; }

h3_status h3_block_tensors_need(const h3_tensor **out, h3_block_tensors *t, const char *name)
{
    char relative[200];
    for (size_t i = 0; i < t->count; i++) {
        named *item = &t->items[i];
        if (strcmp(item->name, name) != 0) continue;
        if (item->tensor.data == NULL && item->host != NULL) H3_TRY(h3_device_upload(&item->tensor, t->source->device, item->host));
        *out = &item->tensor;
        return H3_OK;
    }
    H3_TRY(h3_reference_path(relative, t->layout, t->precision, t->block));
    return h3_error(H3_INTEGRITY, "%s does not give tensor %s; rerun h3_reference_pass", relative, name);
}
