#include "model/layout.h"

#include <math.h>
#include <stdlib.h>

#include "base/memory.h"

static const double CLOCK = 5.0 / 3.0; /* positions a latent step of 1 advances */
static const double GRID_SCALE = 32.0;
static const int64_t ROW_LIMIT = (int64_t)1 << 31;

/* Positions that frame f occupies: one latent step for the first of five frames, four for the others. */
static double frame_span(int64_t f) { return CLOCK * (f % 5 == 0 ? 1.0 : 4.0); }

int64_t h3_latent_frames(int64_t frames) { return (frames - 5) / 17 * 5 + 2; }

int64_t h3_audio_latents(int64_t frames) { return (int64_t)rint((double)frames / 24.0 * 40.0); }

/* Sum of the spans of frames first .. first + count - 1, paired as numpy's sum pairs them. */
static double pairwise_spans(int64_t first, int64_t count)
{
    double lane[8], sum;
    int64_t i;
    if (count < 8) {
        sum = -0.0;
        for (i = 0; i < count; i++) sum += frame_span(first + i);
        return sum;
    }
    if (count > 128) {
        int64_t half = count / 2 - count / 2 % 8;
        sum = pairwise_spans(first, half);
        return sum + pairwise_spans(first + half, count - half);
    }
    for (int j = 0; j < 8; j++) lane[j] = frame_span(first + j);
    for (i = 8; i < count - count % 8; i += 8)
        for (int j = 0; j < 8; j++) lane[j] += frame_span(first + i + j);
    sum = ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
    for (; i < count; i++) sum += frame_span(first + i);
    return sum;
}

/* Where point i of an axis of `size` latents lies; `other` is the other axis of the frame. */
static double grid_point(int64_t size, int64_t other, int64_t patch, int64_t i)
{
    double ratio = (double)size / sqrt((double)size * (double)other);
    double left = (1.0 - ratio) / 2.0, stop = left + ratio;
    double step = (stop - left) / (double)(size / patch);
    return ((double)i * step + left) * GRID_SCALE;
}

static h3_status check_args(const h3_layout_args *args)
{
    const struct { const char *name; int64_t value, low; } sizes[] = {
        {"text rows", args->text, 1}, {"latent frames", args->frames, 1}, {"latent height", args->height, 1},
        {"latent width", args->width, 1}, {"audio latents", args->audio, 1}, {"vision rows", args->vision_rows, 0},
        {"patch height", args->patch_h, 1}, {"patch width", args->patch_w, 1},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].value < sizes[i].low || sizes[i].value > ROW_LIMIT)
            return h3_error(H3_USAGE, "a layout with %lld %s; %lld to 2^31 are possible", (long long)sizes[i].value,
                            sizes[i].name, (long long)sizes[i].low);
    if (args->height % args->patch_h != 0 || args->width % args->patch_w != 0)
        return h3_error(H3_USAGE, "latents of %lld x %lld do not divide into patches of %lld x %lld; make h and w multiples of these", (long long)args->height,
                        (long long)args->width, (long long)args->patch_h, (long long)args->patch_w);
    if (args->vision_rows >= args->text)
        return h3_error(H3_USAGE, "%lld vision rows do not fit behind the first of %lld text rows; at most %lld do",
                        (long long)args->vision_rows, (long long)args->text, (long long)args->text - 1);
    if (args->anchors & ~(H3_ANCHOR_FIRST | H3_ANCHOR_LAST))
        return h3_error(H3_USAGE, "unknown keyframe anchors %d", args->anchors);
    return H3_OK;
}

static h3_status count_rows(h3_layout *layout, const h3_layout_args *args)
{
    int anchors = (args->anchors & H3_ANCHOR_FIRST ? 1 : 0) + (args->anchors & H3_ANCHOR_LAST ? 1 : 0);
    int64_t target, rows_per_frame = (args->height / args->patch_h) * (args->width / args->patch_w); /* at most 2^62 */
    if (rows_per_frame > ROW_LIMIT || __builtin_mul_overflow(rows_per_frame, args->frames, &target) || target > ROW_LIMIT)
        return h3_error(H3_USAGE, "a layout of more than 2^31 rows; use fewer frames or a smaller picture");
    *layout = (h3_layout){.args = *args, .rows_per_frame = rows_per_frame, .audio_rows = 2 * args->audio, .target_rows = target};
    layout->condition_rows = anchors * rows_per_frame;
    layout->video_rows = layout->condition_rows + target;
    layout->condition_start = args->text;
    layout->audio_start = layout->condition_start + layout->condition_rows;
    layout->video_start = layout->audio_start + layout->audio_rows;
    layout->rows = layout->video_start + target;
    if (layout->rows > ROW_LIMIT)
        return h3_error(H3_USAGE, "a layout of %lld rows; at most 2^31 are possible", (long long)layout->rows);
    return H3_OK;
}

static h3_status allocate(h3_layout *layout)
{
    void *position;
    H3_TRY(h3_alloc(&position, (size_t)layout->rows, 3 * sizeof(double), "the positions of a layout"));
    layout->position_ids = position;
    int64_t **arrays[] = {&layout->token_tags, &layout->video_indices, &layout->audio_indices, &layout->text_indices};
    int64_t counts[] = {layout->rows, layout->video_rows, layout->audio_rows, layout->args.text};
    for (int i = 0; i < 4; i++) {
        void *array;
        H3_TRY(h3_alloc(&array, (size_t)counts[i], sizeof(int64_t), "the rows of a layout"));
        *arrays[i] = array;
    }
    return H3_OK;
}

/* The rows of one frame at time t, from `row` on. */
static void place_frame(h3_layout *layout, int64_t row, double t)
{
    const h3_layout_args *args = &layout->args;
    for (int64_t y = 0; y < args->height / args->patch_h; y++) {
        double h = grid_point(args->height, args->width, args->patch_h, y);
        for (int64_t x = 0; x < args->width / args->patch_w; x++, row++) {
            layout->position_ids[3 * row] = t;
            layout->position_ids[3 * row + 1] = h;
            layout->position_ids[3 * row + 2] = grid_point(args->width, args->height, args->patch_w, x);
        }
    }
}

static void place_rows(h3_layout *layout)
{
    const h3_layout_args *args = &layout->args;
    double origin = (double)args->text, clock = 0;
    int64_t row = layout->condition_start;
    for (int64_t i = 0; i < args->text; i++) layout->position_ids[3 * i] = (double)i;
    if (args->anchors & H3_ANCHOR_FIRST) {
        place_frame(layout, row, origin);
        row += layout->rows_per_frame;
    }
    if (args->anchors & H3_ANCHOR_LAST) place_frame(layout, row, (origin + pairwise_spans(0, args->frames)) - CLOCK);
    for (int64_t channel = 0; channel < 2; channel++) {
        double side = grid_point(args->width, args->height, args->patch_w, channel == 0 ? 0 : args->width / args->patch_w - 1);
        double *position = layout->position_ids + 3 * (layout->audio_start + channel * args->audio);
        for (int64_t i = 0; i < args->audio; i++) {
            position[3 * i] = origin + (double)i;
            position[3 * i + 2] = side;
        }
    }
    for (int64_t f = 0; f < args->frames; f++) {
        place_frame(layout, layout->video_start + f * layout->rows_per_frame, origin + clock);
        clock += frame_span(f);
    }
}

/* Tags other than the text's, and the index sets; the tag of video rows is the arrays' initial 0. */
static void index_rows(h3_layout *layout)
{
    for (int64_t i = 0; i < layout->args.text; i++) layout->text_indices[i] = i;
    for (int64_t i = 0; i < layout->condition_rows; i++) layout->video_indices[i] = layout->condition_start + i;
    for (int64_t i = 0; i < layout->target_rows; i++) layout->video_indices[layout->condition_rows + i] = layout->video_start + i;
    for (int64_t i = 0; i < layout->audio_rows; i++) {
        layout->audio_indices[i] = layout->audio_start + i;
        layout->token_tags[layout->audio_start + i] = H3_TAG_AUDIO;
    }
}

static h3_status build(h3_layout *out, const h3_layout_args *args, const int64_t *text_tags)
{
    h3_layout layout = {0};
    *out = layout;
    H3_TRY(check_args(args));
    for (int64_t i = 0; text_tags != NULL && i < args->text; i++)
        if (text_tags[i] != H3_TAG_VIDEO && text_tags[i] != H3_TAG_TEXT)
            return h3_error(H3_USAGE, "text row %lld has tag %lld; only 0 and 1 are possible", (long long)i,
                            (long long)text_tags[i]);
    H3_TRY(count_rows(&layout, args));
    h3_status status = allocate(&layout);
    if (status != H3_OK) {
        h3_layout_free(&layout);
        return status;
    }
    place_rows(&layout);
    index_rows(&layout);
    for (int64_t i = 0; i < args->text; i++) {
        int64_t plain_tag = i >= 1 && i <= args->vision_rows ? H3_TAG_VIDEO : H3_TAG_TEXT;
        layout.token_tags[i] = text_tags != NULL ? text_tags[i] : plain_tag;
    }
    *out = layout;
    return H3_OK;
}

h3_status h3_layout_new(h3_layout *out, const h3_layout_args *args) { return build(out, args, NULL); }

h3_status h3_layout_sizes(h3_layout *out, const h3_layout_args *args)
{
    *out = (h3_layout){0};
    H3_TRY(check_args(args));
    return count_rows(out, args);
}

h3_status h3_layout_new_tagged(h3_layout *out, const h3_layout_args *args, const int64_t *text_tags)
{
    return build(out, args, text_tags);
}

void h3_layout_free(h3_layout *layout)
{
    free(layout->position_ids);
    free(layout->token_tags);
    free(layout->video_indices);
    free(layout->audio_indices);
    free(layout->text_indices);
    *layout = (h3_layout){0};
}

static int64_t position_of(float *sorted, int64_t count, float value)
{
    int64_t i = 0;
    while (i < count && sorted[i] != value) i++;
    return i;
}

/* Puts `value` into the ascending list unless it is there. */
static void insert_distinct(float *sorted, int64_t *count, float value)
{
    if (position_of(sorted, *count, value) < *count) return;
    int64_t i = (*count)++;
    for (; i > 0 && sorted[i - 1] > value; i--) sorted[i] = sorted[i - 1];
    sorted[i] = value;
}

h3_status h3_timestep_plan(const h3_layout *layout, float video_time, float audio_time, double condition_time,
                           float timestep[H3_MAX_TIMESTEPS], int64_t *timestep_count, int64_t *timestep_indices)
{
    if (!isfinite(video_time) || !isfinite(audio_time) || !isfinite(condition_time))
        return h3_error(H3_USAGE, "a timestep is not a finite number; check the times of the plan");
    float clean = (float)((double)video_time > condition_time ? (double)video_time : condition_time);
    *timestep_count = 0;
    insert_distinct(timestep, timestep_count, video_time);
    insert_distinct(timestep, timestep_count, audio_time);
    if (layout->condition_rows > 0) insert_distinct(timestep, timestep_count, clean);
    int64_t video = position_of(timestep, *timestep_count, video_time),
            audio = position_of(timestep, *timestep_count, audio_time);
    int64_t condition = position_of(timestep, *timestep_count, clean);
    for (int64_t row = 0; row < layout->rows; row++)
        timestep_indices[row] = row < layout->condition_start ? video
                                : row < layout->audio_start   ? condition
                                : row < layout->video_start   ? audio
                                                              : video;
    return H3_OK;
}

typedef struct patching {
    int64_t channels, frames, height, width, patch_h, patch_w;
} patching;

/* Where the latent keeps feature k = (c * ph + dy) * pw + dx of row r. */
static int64_t latent_offset(const patching *p, int64_t r, int64_t k)
{
    int64_t columns = p->width / p->patch_w, frame_rows = p->height / p->patch_h * columns;
    int64_t c = k / (p->patch_h * p->patch_w), f = r / frame_rows;
    int64_t y = r % frame_rows / columns * p->patch_h + k / p->patch_w % p->patch_h;
    int64_t x = r % columns * p->patch_w + k % p->patch_w;
    return ((c * p->frames + f) * p->height + y) * p->width + x;
}

static int64_t patch_features(const patching *p) { return p->channels * p->patch_h * p->patch_w; }

static int64_t patch_rows(const patching *p) { return p->frames * (p->height / p->patch_h) * (p->width / p->patch_w); }

void h3_patchify(float *rows, const float *latent, int64_t channels, int64_t frames, int64_t height, int64_t width,
                 int64_t patch_h, int64_t patch_w)
{
    patching p = {channels, frames, height, width, patch_h, patch_w};
    int64_t features = patch_features(&p), count = patch_rows(&p);
    for (int64_t r = 0; r < count; r++)
        for (int64_t k = 0; k < features; k++) rows[r * features + k] = latent[latent_offset(&p, r, k)];
}

void h3_unpatchify(float *latent, const float *rows, int64_t channels, int64_t frames, int64_t height, int64_t width,
                   int64_t patch_h, int64_t patch_w)
{
    patching p = {channels, frames, height, width, patch_h, patch_w};
    int64_t features = patch_features(&p), count = patch_rows(&p);
    for (int64_t r = 0; r < count; r++)
        for (int64_t k = 0; k < features; k++) latent[latent_offset(&p, r, k)] = rows[r * features + k];
}
