#include "qualify/generation_media.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "media/audio_decoder.h"
#include "media/video_ops_cuda.h"
#include "qualify/media_record.h"
#include "store/publish.h"

enum { VIDEO_TAG = 12, AUDIO_TAG = 13 }; /* of the rows that the first rank sends */

h3_status h3_generation_media_new(h3_generation_media *media, size_t count)
{
    void *memory;
    H3_TRY(h3_alloc(&memory, count, sizeof *media->seeds, "the media of seeds"));
    media->seeds = memory;
    media->count = count;
    return H3_OK;
}

void h3_generation_media_free(h3_generation_media *media)
{
    for (size_t i = 0; i < media->count; i++) h3_run_files_free(&media->seeds[i].files);
    free(media->seeds);
    media->seeds = NULL;
    media->count = 0;
}

static int rank_of(const h3_generation_media *m) { return m->ranks != NULL ? m->ranks->rank : 0; }
static int rank_count(const h3_generation_media *m) { return m->ranks != NULL ? m->ranks->count : 1; }
static h3_status agree(const h3_generation_media *m, h3_status status) { return m->ranks != NULL ? h3_ranks_agree(m->ranks, status) : status; }

static void beat(void *user)
{
    const h3_generation_media *m = user;
    if (m->ranks != NULL) h3_ranks_beat(m->ranks, "decoding", -1);
}

/* --- latents ---------------------------------------------------------------------------------------------------------- */

h3_status h3_media_video_latents(h3_tensor *z, const h3_generation_inputs *inputs, const h3_video_config *config, const float *target_rows)
{
    const h3_layout_args *args = &inputs->layout.args;
    H3_TRY(h3_tensor_new(z, H3_F32, 4, H3_SHAPE(inputs->channels, args->frames, args->height, args->width)));
    h3_unpatchify(z->data, target_rows, inputs->channels, args->frames, args->height, args->width, args->patch_h, args->patch_w);
    h3_video_denormalize(z, config);
    return H3_OK;
}

h3_status h3_media_audio_latents(h3_tensor *z, const h3_generation_inputs *inputs, const h3_audio_config *config, const float *rows)
{
    h3_tensor view = h3_tensor_view((void *)(uintptr_t)rows, H3_F32, 2, H3_SHAPE(inputs->layout.audio_rows, inputs->audio_row));
    return h3_audio_denormalise(z, config, &view, H3_MEDIA_CHANNELS);
}

/* --- one rank's decoders, and the seed that its writer has --------------------------------------------------------------- */

typedef struct decoding {
    h3_generation_media *m;
    char key[H3_SHA256_HEX]; /* of records; "" for none */
    char records[64];        /* their folder, in the run */
    h3_video_decoder *video;
    h3_audio_decoder *audio;
    /* the seed whose frames are being written */
    int writing;
    pthread_t thread;
    size_t index;
    char folder[96];
    h3_media media;
    h3_seed_media result;
    h3_run_files sound_files;
    double seconds;          /* of the thread */
    h3_status status;        /* of the thread, with its message */
    char message[1024];
} decoding;

static h3_status open_decoders(decoding *d)
{
    const h3_generation_media *m = d->m;
    const h3_decoders *decoders = &m->generation->decoders;
    const h3_video_ops *video_ops;
    const h3_audio_ops *audio_ops;
    const int is_cpu = m->device->kind == H3_DEVICE_CPU;
    H3_TRY(h3_video_ops_for(&video_ops, m->device));
    H3_TRY(h3_audio_ops_for(&audio_ops, m->device));
    /* a tile at a time needs little memory; a GPU has enough for a whole clip, and is faster so */
    H3_TRY(h3_video_decoder_open(&d->video, &m->weights->video, m->device, video_ops, h3_decoders_dtype(decoders, m->device->kind), &decoders->tiling, is_cpu ? 1 : 0));
    H3_TRY(h3_audio_decoder_open(&d->audio, &m->weights->audio, audio_ops));
    h3_video_decoder_watch(d->video, beat, d->m);
    h3_audio_decoder_watch(d->audio, beat, d->m);
    return H3_OK;
}

/* The thread beside: hashes and writes the frames. */
static h3_status write_frames(decoding *d)
{
    const h3_media_beat alive = {beat, d->m};
    const h3_media *media = &d->media;
    H3_TRY(h3_sha256(d->result.facts.rgb_sha256, media->rgb, (size_t)(media->frames * media->height * media->width) * H3_VIDEO_COLOURS));
    beat(d->m);
    return h3_media_write_frames(&d->result.files, d->m->run_folder, d->folder, media, &alive);
}

static void *run_writer(void *user)
{
    decoding *d = user;
    const double start = h3_clock();
    d->status = write_frames(d);
    d->seconds = h3_clock() - start;
    if (d->status != H3_OK) snprintf(d->message, sizeof d->message, "%s", h3_error_text());
    return NULL;
}

static h3_status save_record(const decoding *d)
{
    char relative[128], path[H3_PATH_MAX];
    const int64_t seed = d->m->generation->seeds[d->index];
    if (d->key[0] == 0) return H3_OK;
    snprintf(relative, sizeof relative, "%s/media-seed%lld.json", d->records, (long long)seed);
    H3_TRY(h3_run_place(path, d->m->run_folder, relative));
    return h3_media_record_save(path, d->key, &d->result, seed, d->folder);
}

static h3_status close_seed(decoding *d, h3_status status)
{
    if (status == H3_OK && d->status != H3_OK) status = h3_error(d->status, "%s", d->message);
    for (size_t i = 0; i < d->sound_files.count && status == H3_OK; i++)
        status = h3_run_files_add(&d->result.files, d->sound_files.items[i].path, d->sound_files.items[i].size, d->sound_files.items[i].sha256);
    d->result.done = 1;
    return status == H3_OK ? save_record(d) : status;
}

/* Waits for the writer, and makes its seed a finished one. `status`: of what this rank did meanwhile. */
static h3_status finish_writer(decoding *d, h3_status status)
{
    if (!d->writing) return status;
    pthread_join(d->thread, NULL);
    d->writing = 0;
    d->m->spent.files += d->seconds;
    status = close_seed(d, status);
    if (status == H3_OK) d->m->seeds[d->index] = d->result;
    else h3_run_files_free(&d->result.files);
    h3_run_files_free(&d->sound_files);
    h3_media_free(&d->media);
    d->result = (h3_seed_media){0};
    return status;
}

static h3_status start_writer(decoding *d, size_t index, unsigned char *rgb)
{
    const h3_generation_media *m = d->m;
    d->index = index;
    d->status = H3_OK;
    d->media = (h3_media){.rgb = rgb, .frames = m->shape.frames, .height = m->shape.height, .width = m->shape.width};
    d->result = (h3_seed_media){.facts.shape = m->shape};
    h3_media_folder(d->folder, m->side, m->generation->seeds[index]);
    if (pthread_create(&d->thread, NULL, run_writer, d) == 0) {
        d->writing = 1;
        return H3_OK;
    }
    h3_media_free(&d->media);
    return h3_error(H3_ENVIRONMENT, "cannot start a thread that writes frames; allow this user more processes");
}

/* --- one seed --------------------------------------------------------------------------------------------------------- */

static h3_status decode_video(unsigned char **rgb, decoding *d, const float *rows)
{
    const h3_generation_media *m = d->m;
    const h3_media_shape *s = &m->shape;
    h3_tensor z = {0}, video = {0};
    h3_status status;
    *rgb = NULL;
    H3_GOTO(h3_media_video_latents(&z, m->sampling->inputs, &m->weights->video.config, rows), done);
    H3_GOTO(h3_video_decode(&video, d->video, &z), done);
    if (video.shape[0] != s->frames || video.shape[2] != s->height || video.shape[3] != s->width)
        H3_GOTO(h3_error(H3_FAILED, "the decoder made %lld frames of %lld x %lld where %lld of %lld x %lld were planned", (long long)video.shape[0],
                         (long long)video.shape[3], (long long)video.shape[2], (long long)s->frames, (long long)s->width, (long long)s->height), done);
    status = h3_video_frames(rgb, d->video, &video);
done:
    h3_device_free(&video, m->device);
    h3_tensor_free(&z);
    return status;
}

/* Beside the writer, which has the frames of the same seed. */
static h3_status decode_audio(decoding *d, const float *rows)
{
    const h3_generation_media *m = d->m;
    h3_tensor z = {0};
    h3_status status;
    H3_GOTO(h3_media_audio_latents(&z, m->sampling->inputs, &m->weights->audio.config, rows), done);
    H3_GOTO(h3_audio_decode(&d->media.sound, d->audio, &z), done);
    H3_GOTO(h3_sound_sha256(d->result.facts.sound_sha256, &d->media.sound), done);
    status = h3_media_write_sound(&d->sound_files, m->run_folder, d->folder, &d->media.sound);
done:
    h3_tensor_free(&z);
    return status;
}

static h3_status decode_seed(decoding *d, size_t index, const float *video_rows, const float *audio_rows)
{
    const long long seed = (long long)d->m->generation->seeds[index];
    unsigned char *rgb = NULL;
    h3_status status = H3_OK;
    double start = h3_clock();
    if (d->video == NULL) status = open_decoders(d);
    d->m->spent.open += h3_clock() - start;
    start = h3_clock();
    if (status == H3_OK) status = decode_video(&rgb, d, video_rows);
    if (status != H3_OK) status = h3_error_context(status, "seed %lld", seed);
    d->m->spent.video += h3_clock() - start;
    status = finish_writer(d, status); /* of the seed before, which its message names */
    if (status != H3_OK) {
        free(rgb);
        return status;
    }
    status = start_writer(d, index, rgb);
    start = h3_clock();
    if (status == H3_OK) status = decode_audio(d, audio_rows);
    d->m->spent.sound += h3_clock() - start;
    d->m->spent.seeds++;
    return status == H3_OK ? H3_OK : h3_error_context(status, "seed %lld", seed);
}

/* --- all seeds over all ranks ------------------------------------------------------------------------------------------- */

/* What the first rank tells the others. */
typedef struct orders {
    char key[H3_SHA256_HEX], records[64];
    unsigned char done[H3_MAX_SEEDS];
} orders;

/* Seeds that are to be made again start from an empty folder: nothing of an attempt that was killed stays among their files. */
static h3_status clear_folders(const h3_generation_media *m)
{
    for (size_t i = 0; i < m->count; i++) {
        char folder[96], path[H3_PATH_MAX];
        if (m->seeds[i].done) continue;
        h3_media_folder(folder, m->side, m->generation->seeds[i]);
        H3_TRY(h3_path(path, "%s/%s", m->run_folder, folder));
        H3_TRY(h3_remove_tree(path));
    }
    return H3_OK;
}

static h3_status share_orders(orders *out, const h3_generation_media *m)
{
    void *data = out;
    size_t size = sizeof *out;
    h3_status status = H3_OK;
    *out = (orders){0};
    if (rank_of(m) == 0) {
        status = clear_folders(m);
        if (m->resume != NULL) memcpy(out->key, m->resume->key, sizeof out->key);
        if (m->resume != NULL) memcpy(out->records, m->resume->relative, sizeof out->records);
        for (size_t i = 0; i < m->count; i++) out->done[i] = (unsigned char)m->seeds[i].done;
    }
    H3_TRY(agree(m, status));
    if (m->ranks == NULL) return H3_OK;
    H3_TRY(h3_ranks_broadcast(m->ranks, 0, &data, &size));
    if (rank_of(m) == 0) return H3_OK;
    memcpy(out, data, sizeof *out);
    free(data);
    return H3_OK;
}

/* A failure that the other ranks cannot know of. */
static h3_status alone(const h3_generation_media *m, h3_status status)
{
    if (status != H3_OK && rank_count(m) > 1) h3_ranks_abort(m->ranks, m->program, status);
    return status;
}

typedef struct seed_rows {
    float *video, *audio;
    size_t video_bytes, audio_bytes;
} seed_rows;

static seed_rows rows_of(const h3_generation_media *m, size_t index)
{
    const h3_generation_inputs *inputs = m->sampling->inputs;
    const h3_flow *flow = &m->sampling->flows[index];
    return (seed_rows){(float *)flow->video.data + inputs->layout.condition_rows * inputs->video_row, flow->audio.data,
                       (size_t)(inputs->layout.target_rows * inputs->video_row) * sizeof(float), (size_t)(inputs->layout.audio_rows * inputs->audio_row) * sizeof(float)};
}

/* The rows of seed `index` are on the first rank, and reach `rank`, where the flow has room for them. */
static h3_status bring_rows(const h3_generation_media *m, size_t index, int rank)
{
    seed_rows rows = rows_of(m, index);
    if (rank == 0) return H3_OK;
    if (rank_of(m) == 0) {
        H3_TRY(h3_ranks_send(m->ranks, rank, VIDEO_TAG, rows.video, rows.video_bytes));
        return h3_ranks_send(m->ranks, rank, AUDIO_TAG, rows.audio, rows.audio_bytes);
    }
    if (rank_of(m) != rank) return H3_OK;
    H3_TRY(h3_ranks_receive(m->ranks, 0, VIDEO_TAG, rows.video, rows.video_bytes));
    return h3_ranks_receive(m->ranks, 0, AUDIO_TAG, rows.audio, rows.audio_bytes);
}

/* Rounds of as many seeds as there are ranks. A rank that has failed still takes part in what all do together. */
static h3_status run_rounds(decoding *d, const orders *told)
{
    h3_generation_media *m = d->m;
    const size_t ranks = (size_t)rank_count(m);
    size_t todo[H3_MAX_SEEDS], count = 0;
    h3_status status = H3_OK, stopped = H3_OK;
    for (size_t i = 0; i < m->count; i++)
        if (!told->done[i]) todo[count++] = i;
    for (size_t first = 0; first < count && stopped == H3_OK; first += ranks) {
        for (size_t i = first; i < count && i < first + ranks; i++) {
            const int rank = (int)(i - first);
            H3_TRY(alone(m, bring_rows(m, todo[i], rank)));
            if (rank != rank_of(m) || status != H3_OK) continue;
            seed_rows rows = rows_of(m, todo[i]);
            status = decode_seed(d, todo[i], rows.video, rows.audio);
        }
        if (m->ranks != NULL && first + ranks < count) stopped = h3_ranks_stop_requested(m->ranks);
    }
    status = agree(m, finish_writer(d, status));
    if (status != H3_OK || stopped == H3_OK) return status;
    return h3_error(H3_STOPPED, "stopped by a signal while decoding; run again with --resume");
}

/* --- what every rank has done reaches the first ---------------------------------------------------------------------------- */

static h3_status print_mine(char **out, const h3_generation_media *m, const orders *told)
{
    cJSON *all = cJSON_CreateArray();
    h3_status status = H3_OK;
    if (all == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for the records of seeds");
    for (size_t i = 0; i < m->count && status == H3_OK; i++) {
        char folder[96];
        cJSON *json;
        if (!m->seeds[i].done || told->done[i]) continue;
        h3_media_folder(folder, m->side, m->generation->seeds[i]);
        status = h3_media_record_json(&json, &m->seeds[i], m->generation->seeds[i], folder);
        if (status == H3_OK) cJSON_AddItemToArray(all, json);
    }
    if (status == H3_OK) status = h3_json_print(out, all);
    cJSON_Delete(all);
    return status;
}

static h3_status take_one(h3_generation_media *m, const cJSON *json)
{
    int64_t number;
    H3_TRY(h3_json_integer(&number, json, "seed", 0, UINT32_MAX, "another rank's record", H3_INTEGRITY));
    for (size_t i = 0; i < m->count; i++) {
        char folder[96];
        if (m->generation->seeds[i] != number || m->seeds[i].done) continue;
        h3_media_folder(folder, m->side, number);
        return h3_media_record_read(&m->seeds[i], &number, json, folder, "another rank's record");
    }
    return H3_OK;
}

static h3_status take_theirs(h3_generation_media *m, const char *text, size_t size)
{
    cJSON *all;
    const cJSON *json;
    H3_TRY(h3_json_parse(&all, text, size, "another rank's records", H3_INTEGRITY));
    h3_status status = H3_OK;
    cJSON_ArrayForEach(json, all) {
        status = take_one(m, json);
        if (status != H3_OK) break;
    }
    cJSON_Delete(all);
    return status;
}

static h3_status gather(h3_generation_media *m, const orders *told)
{
    char *mine = NULL;
    void **all = NULL;
    size_t *sizes = NULL;
    if (m->ranks == NULL) return H3_OK;
    h3_status status = agree(m, print_mine(&mine, m, told));
    if (status == H3_OK) status = h3_ranks_gather(m->ranks, mine, strlen(mine), &all, &sizes);
    free(mine);
    H3_TRY(status);
    for (int r = 0; all != NULL && r < m->ranks->count; r++) {
        if (r > 0 && status == H3_OK) status = take_theirs(m, all[r], sizes[r]);
        free(all[r]);
    }
    free(all);
    free(sizes);
    return agree(m, status);
}

static h3_status check_all_done(const h3_generation_media *m)
{
    for (size_t i = 0; rank_of(m) == 0 && i < m->count; i++)
        if (!m->seeds[i].done)
            return h3_error(H3_FAILED, "seed %lld has not been decoded; this is a mistake of the program", (long long)m->generation->seeds[i]);
    return H3_OK;
}

h3_status h3_generation_media_run(h3_generation_media *media)
{
    decoding d = {.m = media};
    orders told;
    H3_TRY(share_orders(&told, media));
    memcpy(d.key, told.key, sizeof d.key);
    memcpy(d.records, told.records, sizeof d.records);
    h3_status status = run_rounds(&d, &told);
    h3_video_decoder_close(d.video);
    h3_audio_decoder_free(d.audio);
    if (status == H3_OK) status = gather(media, &told);
    return status == H3_OK ? agree(media, check_all_done(media)) : status;
}

/* --- going on ------------------------------------------------------------------------------------------------------------ */

static h3_status resume_seed(h3_generation_media *m, size_t index)
{
    const int64_t seed = m->generation->seeds[index];
    const h3_media_beat alive = {beat, m};
    char folder[96], path[H3_PATH_MAX];
    int foreign;
    h3_media_folder(folder, m->side, seed);
    H3_TRY(h3_path(path, "%s/media-seed%lld.json", m->resume->folder, (long long)seed));
    if (access(path, F_OK) != 0) return H3_OK;
    H3_TRY(h3_media_record_load(&m->seeds[index], &foreign, path, m->resume->key, seed, folder));
    if (!foreign && h3_media_verify(m->run_folder, &m->seeds[index].files, &alive) == H3_OK) return H3_OK;
    h3_run_files_free(&m->seeds[index].files); /* made again */
    m->seeds[index] = (h3_seed_media){0};
    return H3_OK;
}

h3_status h3_generation_media_resume(h3_generation_media *media, size_t *taken)
{
    *taken = 0;
    for (size_t i = 0; i < media->count; i++) {
        H3_TRY(resume_seed(media, i));
        *taken += media->seeds[i].done ? 1 : 0;
    }
    return H3_OK;
}
