#include "qualify/reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "dist/attach.h"
#include "qualify/metrics.h"
#include "store/artifact.h"
#include "store/run.h"

/* A tensor that the pass made; its digest comes when the job is done. */
typedef struct recorded {
    h3_manifest_tensor listed;
    h3_digest_job *job;
} recorded;

/* One layout in one precision: what its sink writes to, or what it must repeat. */
typedef struct recorder {
    h3_reference *reference;
    h3_publication *publishing; /* the block before, on its way to the disk */
    char published[200];        /* its path in the run */
    const h3_plan_layout *layout;
    int32_t precision;
    int64_t first_block, block_count;
    h3_artifact_writer **blocks; /* [block_count] */
    h3_artifact_writer *input, *output;
    struct recorder *repeats; /* not NULL: compare with what that one recorded, store nothing */
    size_t count, capacity, settled;
    recorded *tensors; /* in the order of the pass; digests are there up to `settled` */
} recorder;

/* A pass in flight. */
typedef struct flow {
    recorder record;
    h3_sink sink;
    h3_plan_inputs inputs;
    h3_pass *pass;
} flow;

static h3_artifact_writer *writer_of(const recorder *record, int64_t block)
{
    if (block == H3_INPUT_SIDE) return record->input;
    if (block == H3_OUTPUT_SIDE) return record->output;
    return record->blocks[block - record->first_block];
}

static h3_status remember(recorder *record, const char *name, int64_t block, recorded **out)
{
    if (record->count == record->capacity) {
        size_t capacity = record->capacity ? 2 * record->capacity : 256;
        void *larger = realloc(record->tensors, capacity * sizeof *record->tensors);
        if (larger == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for %zu tensor records", capacity);
        record->tensors = larger;
        record->capacity = capacity;
    }
    recorded *made = &record->tensors[record->count];
    memset(made, 0, sizeof *made);
    snprintf(made->listed.name, sizeof made->listed.name, "%s/%s/%s", record->layout->name, h3_precision_name(record->precision), name);
    H3_TRY(h3_reference_path(made->listed.file, record->layout->name, record->precision, block));
    record->count++;
    *out = made;
    return H3_OK;
}

static h3_status compare_repeat(const recorder *record, size_t i)
{
    const recorder *first = record->repeats;
    const h3_manifest_tensor *again = &record->tensors[i].listed;
    if (i >= first->count || strcmp(first->tensors[i].listed.name, again->name) != 0)
        return h3_error(H3_FAILED, "the repeat of the BF16 pass made tensor %s out of order", again->name);
    if (strcmp(first->tensors[i].listed.digest, again->digest) != 0)
        return h3_error(H3_FAILED, "the repeat of the BF16 pass differs in tensor %s; the provider is not repeatable here", again->name);
    return H3_OK;
}

/* Brings the digests that are still on their way. */
static h3_status settle(recorder *record)
{
    if (record->repeats != NULL) H3_TRY(settle(record->repeats));
    for (; record->settled < record->count; record->settled++) {
        recorded *made = &record->tensors[record->settled];
        h3_digest_job *job = made->job;
        made->job = NULL;
        if (job != NULL) H3_TRY(h3_digest_job_wait(job, made->listed.digest));
        if (record->repeats != NULL) H3_TRY(compare_repeat(record, record->settled));
    }
    return H3_OK;
}

/* What a block or a boundary needs to be run again, and all of block 0, is stored whole under every policy; of the boundaries also everything that is
 * no parameter's gradient. */
static int stored_whole(const recorder *record, int64_t block, const char *name)
{
    static const char *const ends[] = {".residual_mlp", ".x", ".temb"};
    if (!record->reference->plan->recompute || block == 0) return 1;
    if (block < 0) return strncmp(name, "grad.", 5) != 0;
    if (strncmp(name, "grad.", 5) == 0) return 0;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        size_t length = strlen(name), tail = strlen(ends[i]);
        if (length > tail && strcmp(name + length - tail, ends[i]) == 0) return 1;
    }
    return 0;
}

static h3_status store_whole(recorder *record, recorded *made, int64_t block, const char *name, const h3_tensor *tensor)
{
    h3_tensor host;
    H3_TRY(h3_device_borrow(&host, record->reference->device, tensor));
    h3_status status = h3_artifact_add(writer_of(record, block), name, &host, made->listed.digest);
    h3_device_return(&host, record->reference->device);
    return status;
}

static h3_status store_samples(recorder *record, recorded *made, int64_t block, const char *name, const h3_tensor *tensor)
{
    char dataset[240], digest[H3_SHA256_HEX];
    h3_tensor samples;
    made->listed.samples = 1;
    snprintf(dataset, sizeof dataset, H3_SAMPLES "%s", name);
    H3_TRY(h3_device_samples(&samples, record->reference->device, tensor, H3_SAMPLE_COUNT));
    h3_status status = h3_artifact_add(writer_of(record, block), dataset, &samples, digest);
    h3_tensor_free(&samples);
    if (status != H3_OK) return status;
    return h3_device_digest_start(&made->job, record->reference->device, tensor);
}

/* Waits for the file that is being written, if one is. */
static h3_status published(recorder *record)
{
    char sha256[H3_SHA256_HEX];
    int64_t size;
    h3_publication *publication = record->publishing;
    record->publishing = NULL;
    if (publication == NULL) return H3_OK;
    H3_TRY(h3_publication_wait(publication, &size, sha256));
    return h3_manifest_add_file(record->reference->made, record->published, size, sha256);
}

/* One file at a time is written while the pass goes on. */
static h3_status publish_one(recorder *record, h3_artifact_writer **writer, int64_t block)
{
    char path[H3_PATH_MAX];
    h3_artifact_writer *complete = *writer;
    if (complete == NULL) return H3_OK;
    H3_TRY(published(record));
    H3_TRY(h3_reference_path(record->published, record->layout->name, record->precision, block));
    H3_TRY(h3_run_place(path, record->reference->run_folder, record->published));
    *writer = NULL;
    return h3_artifact_publish_start(&record->publishing, complete, path);
}

static h3_status on_tensor(void *user, int64_t block, const char *name, const h3_tensor *tensor)
{
    recorder *record = user;
    recorded *made = NULL;
    const h3_device *device = record->reference->device;
    if (record->count - record->settled >= 512) H3_TRY(settle(record));
    H3_TRY(remember(record, name, block, &made));
    if (record->repeats != NULL) return h3_device_digest_start(&made->job, device, tensor);
    H3_TRY(h3_norm_on(&made->listed.norm, device, tensor));
    if (!isfinite(made->listed.norm))
        return h3_error(H3_FAILED, "layout %s, %s: tensor %s is not finite", record->layout->name, h3_precision_name(record->precision), name);
    H3_TRY(stored_whole(record, block, name) ? store_whole(record, made, block, name, tensor) : store_samples(record, made, block, name, tensor));
    /* The gradient of temb is the last that a block gives. */
    const int complete = block >= 0 && strncmp(name, "dinput.block", 12) == 0 && strcmp(name + strlen(name) - 5, ".temb") == 0;
    return complete ? publish_one(record, &record->blocks[block - record->first_block], block) : H3_OK;
}

static void recorder_free(recorder *record)
{
    published(record);
    for (int64_t i = 0; record->blocks != NULL && i < record->block_count; i++)
        if (record->blocks[i] != NULL) h3_artifact_discard(record->blocks[i]);
    if (record->input != NULL) h3_artifact_discard(record->input);
    if (record->output != NULL) h3_artifact_discard(record->output);
    for (size_t i = record->settled; i < record->count; i++) h3_digest_job_wait(record->tensors[i].job, NULL);
    free(record->blocks);
    free(record->tensors);
}

static h3_status recorder_open(recorder *record, const h3_model *model)
{
    char producer[64];
    void *memory;
    if (record->repeats != NULL) return H3_OK;
    snprintf(producer, sizeof producer, "h3_reference_pass %s", h3_precision_name(record->precision));
    record->first_block = model->first_block;
    record->block_count = model->block_count;
    H3_TRY(h3_alloc(&memory, (size_t)model->block_count, sizeof *record->blocks, "artifact writers"));
    record->blocks = memory;
    for (int64_t i = 0; i < model->block_count; i++) H3_TRY(h3_artifact_create(&record->blocks[i], producer));
    if (model->is_first) H3_TRY(h3_artifact_create(&record->input, producer));
    if (model->is_last) H3_TRY(h3_artifact_create(&record->output, producer));
    return H3_OK;
}

static h3_status recorder_publish(recorder *record)
{
    H3_TRY(settle(record));
    if (record->repeats != NULL) {
        if (record->count == record->repeats->count && record->count > 0) return H3_OK;
        return h3_error(H3_FAILED, "the repeat of layout %s made %zu of %zu tensors", record->layout->name, record->count, record->repeats->count);
    }
    H3_TRY(publish_one(record, &record->input, H3_INPUT_SIDE));
    for (int64_t i = 0; i < record->block_count; i++) H3_TRY(publish_one(record, &record->blocks[i], record->first_block + i));
    H3_TRY(publish_one(record, &record->output, H3_OUTPUT_SIDE));
    H3_TRY(published(record));
    for (size_t i = 0; i < record->count; i++) {
        const h3_manifest_tensor *t = &record->tensors[i].listed;
        if (t->samples) H3_TRY(h3_manifest_add_samples(record->reference->made, t->name, t->file, t->digest, t->norm));
        else H3_TRY(h3_manifest_add_tensor(record->reference->made, t->name, t->file, t->digest));
    }
    return H3_OK;
}

/* All forwards first, then all backwards: while one rank works on a layout, its neighbour has the next. */
static h3_status run_flows(h3_reference *reference, h3_model *model, flow *flows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        H3_TRY(h3_model_forward(model, &flows[i].inputs.sequence, &flows[i].sink, &flows[i].pass, NULL, NULL));
        h3_progress_add(reference->progress, model->block_count);
    }
    for (size_t i = 0; i < count; i++) {
        H3_TRY(h3_model_backward(model, flows[i].pass, &flows[i].sink));
        h3_pass_free(flows[i].pass, model);
        flows[i].pass = NULL;
        h3_progress_add(reference->progress, model->block_count);
    }
    return H3_OK;
}

static h3_status prepare_flows(h3_reference *reference, h3_model *model, int32_t precision, flow *flows, size_t count)
{
    size_t layouts = reference->plan->layout_count;
    for (size_t i = 0; i < count; i++) {
        flow *f = &flows[i];
        f->record = (recorder){.reference = reference, .layout = &reference->plan->layouts[i % layouts], .precision = precision,
                               .repeats = i >= layouts ? &flows[i - layouts].record : NULL};
        f->sink = (h3_sink){.tensor = on_tensor, .user = &f->record};
        H3_TRY(h3_plan_inputs_new(&f->inputs, f->record.layout, h3_weights_config(reference->weights)));
        H3_TRY(recorder_open(&f->record, model));
    }
    return H3_OK;
}

static h3_status one_precision(h3_reference *reference, int32_t precision, int repeats, int64_t first, int64_t blocks)
{
    h3_model model;
    void *memory;
    size_t count = reference->plan->layout_count * (size_t)(1 + repeats);
    H3_TRY(h3_alloc(&memory, count, sizeof(flow), "passes"));
    flow *flows = memory;
    h3_status status = h3_model_open(&model, reference->weights, reference->device, precision, reference->provider, NULL, first, blocks);
    if (status == H3_OK) {
        h3_ranks_attach(reference->ranks, &model);
        status = prepare_flows(reference, &model, precision, flows, count);
    }
    if (status == H3_OK) status = run_flows(reference, &model, flows, count);
    for (size_t i = 0; i < count && status == H3_OK; i++) status = recorder_publish(&flows[i].record);
    for (size_t i = 0; i < count; i++) {
        h3_pass_free(flows[i].pass, &model);
        h3_plan_inputs_free(&flows[i].inputs);
        recorder_free(&flows[i].record);
    }
    h3_model_close(&model);
    free(flows);
    return status;
}

int64_t h3_reference_steps(const h3_reference *reference)
{
    int64_t first, blocks;
    if (h3_block_range(reference->ranks->rank, reference->ranks->count, h3_weights_config(reference->weights)->num_layers, &first, &blocks) != H3_OK) return 0;
    return blocks * 2 * 3 * (int64_t)reference->plan->layout_count;
}

h3_status h3_reference_run(h3_reference *reference)
{
    int64_t first, blocks;
    H3_TRY(h3_block_range(reference->ranks->rank, reference->ranks->count, h3_weights_config(reference->weights)->num_layers, &first, &blocks));
    H3_TRY(one_precision(reference, H3_F32, 0, first, blocks));
    return one_precision(reference, H3_BF16, 1, first, blocks);
}

static h3_status pack(const h3_manifest *made, char **text, size_t *size)
{
    FILE *stream = open_memstream(text, size);
    if (stream == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for manifest entries");
    for (size_t i = 0; i < made->file_count; i++)
        fprintf(stream, "F %s %lld %s\n", made->files[i].path, (long long)made->files[i].size, made->files[i].sha256);
    for (size_t i = 0; i < made->tensor_count; i++) {
        const h3_manifest_tensor *t = &made->tensors[i];
        if (t->samples) fprintf(stream, "S %s %s %s %a\n", t->name, t->file, t->digest, t->norm);
        else fprintf(stream, "T %s %s %s\n", t->name, t->file, t->digest);
    }
    return fclose(stream) == 0 ? H3_OK : h3_error(H3_ENVIRONMENT, "out of memory for manifest entries");
}

static h3_status unpack(h3_manifest *made, char *text)
{
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        char name[240], file[200], hash[H3_SHA256_HEX];
        long long size;
        double norm;
        if (sscanf(line, "F %199s %lld %64s", file, &size, hash) == 3) H3_TRY(h3_manifest_add_file(made, file, size, hash));
        else if (sscanf(line, "T %239s %199s %64s", name, file, hash) == 3) H3_TRY(h3_manifest_add_tensor(made, name, file, hash));
        else if (sscanf(line, "S %239s %199s %64s %la", name, file, hash, &norm) == 4) H3_TRY(h3_manifest_add_samples(made, name, file, hash, norm));
        else return h3_error(H3_ENVIRONMENT, "a rank sent a malformed manifest entry: %.80s", line);
    }
    return H3_OK;
}

h3_status h3_reference_gather(h3_ranks *ranks, h3_manifest *made)
{
    char *text = NULL;
    size_t size = 0, *sizes = NULL;
    void **all = NULL;
    h3_status status = pack(made, &text, &size);
    H3_TRY(h3_ranks_agree(ranks, status));
    status = h3_ranks_gather(ranks, text, size, &all, &sizes);
    free(text);
    for (int i = 0; all != NULL && i < ranks->count; i++) {
        if (i > 0 && status == H3_OK && sizes[i] > 0) {
            char *copy = strndup(all[i], sizes[i]);
            status = copy == NULL ? h3_error(H3_ENVIRONMENT, "out of memory for manifest entries") : unpack(made, copy);
            free(copy);
        }
        free(all[i]);
    }
    free(all);
    free(sizes);
    return h3_ranks_agree(ranks, status);
}
