/* Latents to frames, against the published implementation's results. */
#include "video_golden.h"

static const double FP32_BOUND = 1e-4, HALF_BOUND = 2e-3;

static void assert_decodes(const char *name, const char *suffix, int32_t dtype, const h3_video_tiling *tiling, double bound)
{
    char key[40];
    snprintf(key, sizeof key, "%s.decoded%s", name, suffix);
    h3_tensor video = video_decoded(name, dtype, tiling, 1);
    assert_near_golden(key, &video, bound);
    h3_tensor_free(&video);
}

static void plain(void **state)
{
    (void)state;
    assert_decodes("plain", "", H3_F32, &H3_VIDEO_TILING, FP32_BOUND);
}

static void tiled(void **state)
{
    (void)state;
    assert_decodes("tiled", "", H3_F32, &SMALL_TILES, FP32_BOUND);
}

static void half_precision(void **state)
{
    (void)state;
    assert_decodes("plain", "_fp16", H3_F16, &H3_VIDEO_TILING, HALF_BOUND);
    assert_decodes("tiled", "_fp16", H3_F16, &SMALL_TILES, HALF_BOUND);
}

/* --- the same bits --------------------------------------------------------------------------------------------------- */

static h3_tensor decode_as(const void *dtype, int64_t tiles) { return video_decoded("tiled", *(const int32_t *)dtype, &SMALL_TILES, tiles); }

static void any_number_of_threads_and_tiles(void **state)
{
    static const video_how HOW[] = {{1, 1}, {2, 1}, {3, 5}, {7, 0}};
    static const int32_t DTYPES[] = {H3_F32, H3_F16};
    (void)state;
    for (int k = 0; k < 2; k++) assert_same_bytes(decode_as, &DTYPES[k], HOW, sizeof HOW / sizeof *HOW);
}

/* --- a decoder that is a little wrong is seen ------------------------------------------------------------------------ */

static h3_status shifted_seam(const h3_device *device, h3_tensor *out, const h3_tensor *rows, const h3_video_join *geometry)
{
    h3_video_join g = *geometry;
    g.columns.overlap[1] -= 1; /* the neighbour's pixels come from one column to the right */
    return h3_video_ops_cpu()->join(device, out, rows, &g);
}

static h3_status seamless_time(const h3_device *device, h3_tensor *out, const h3_tensor *rows, const h3_video_join *geometry)
{
    h3_video_join g = *geometry;
    g.blend_frames = 0;
    return h3_video_ops_cpu()->join(device, out, rows, &g);
}

static h3_status wrong_frame(const h3_device *device, h3_tensor *out, const h3_tensor *rows, const h3_video_join *geometry)
{
    h3_video_join g = *geometry;
    g.source_frame -= 1;
    return h3_video_ops_cpu()->join(device, out, rows, &g);
}

static h3_status wrong_tile(const h3_device *device, h3_tensor *out, const h3_tensor *x, const h3_video_window *window)
{
    h3_video_window w = *window;
    w.columns.start[1]++;
    return h3_video_ops_cpu()->cut(device, out, x, &w);
}

static h3_status no_registers(const h3_device *device, h3_tensor *out, const h3_tensor *tokens, const h3_tensor *registers)
{
    (void)registers;
    return h3_video_ops_cpu()->embed(device, out, tokens, &(h3_tensor){0});
}

static h3_status not_rotated(const h3_device *device, h3_tensor *qkv, const h3_tensor *x, const h3_tensor *weight, const h3_tensor *bias, const h3_tensor *cosine,
                             const h3_tensor *sine, float epsilon)
{
    h3_tensor none;
    assert_good(h3_tensor_new(&none, H3_F32, 2, sine->shape));
    h3_status status = h3_video_ops_cpu()->project_heads(device, qkv, x, weight, bias, cosine, &none, epsilon);
    h3_tensor_free(&none);
    return status;
}

static double error_with(const h3_video_ops *ops)
{
    h3_video_weights weights = video_weights();
    h3_video_decoder *decoder;
    h3_tensor z = video_golden("tiled.z"), golden = video_golden("tiled.decoded"), video;
    assert_good(h3_video_decoder_open(&decoder, &weights, h3_device_cpu(), ops, H3_F32, &SMALL_TILES, 0));
    assert_good(h3_video_decode(&video, decoder, &z));
    h3_tensor turned = video_colours_first(&video);
    const double error = video_error(&turned, &golden);
    h3_tensor_free(&turned);
    h3_tensor_free(&z);
    h3_tensor_free(&golden);
    h3_video_decoder_close(decoder);
    h3_video_weights_close(&weights);
    return error;
}

static void wrong_decoders_are_seen(void **state)
{
    (void)state;
    h3_video_ops ops[7];
    for (int i = 0; i < 7; i++) ops[i] = *h3_video_ops_cpu();
    ops[0].join = shifted_seam;
    ops[1].join = seamless_time;
    ops[2].join = wrong_frame;
    ops[3].cut = wrong_tile;
    ops[4].embed = no_registers;
    ops[5].project_heads = not_rotated;
    for (int i = 0; i < 6; i++) {
        const double error = error_with(&ops[i]);
        printf("# wrong decoder %d: error %.3g\n", i, error);
        assert_true(error > 10 * FP32_BOUND);
    }
    assert_true(error_with(&ops[6]) <= FP32_BOUND); /* as it should be */
}

static int64_t attended[2];

static h3_status watched_attention(const h3_device *device, h3_tensor *out, const h3_tensor *qkv)
{
    attended[0] = qkv->shape[0];
    attended[1] = qkv->shape[1];
    return h3_video_ops_cpu()->attention(device, out, qkv);
}

/* What is said before is what a decode of all tiles together runs. */
static void the_transformers_work_is_known(void **state)
{
    (void)state;
    h3_video_ops ops = *h3_video_ops_cpu();
    h3_video_weights weights = video_weights();
    h3_tensor z = video_golden("tiled.z");
    int64_t tiles, tokens;
    ops.attention = watched_attention;
    assert_true(error_with(&ops) <= FP32_BOUND);
    assert_good(h3_video_decoder_tokens(&tiles, &tokens, &weights.config, &SMALL_TILES, z.shape[2], z.shape[3]));
    assert_true(tiles > 1 && tiles == attended[0] && tokens == attended[1]);
    assert_fails(h3_video_decoder_tokens(&tiles, &tokens, &weights.config, &SMALL_TILES, 0, 1), H3_USAGE, "0 pixels");
    h3_tensor_free(&z);
    h3_video_weights_close(&weights);
}

static void swapped_colours_are_seen(void **state)
{
    (void)state;
    h3_tensor golden = video_golden("plain.decoded"), video = video_decoded("plain", H3_F32, &H3_VIDEO_TILING, 0);
    assert_true(video_error(&video, &golden) <= FP32_BOUND);
    video_swap_colours(&video);
    assert_true(video_error(&video, &golden) > 0.1);
    ((float *)video.data)[5] = NAN;
    assert_false(video_error(&video, &golden) <= 1e9);
    video.shape[1]--;
    assert_true(isnan(video_error(&video, &golden)));
    h3_tensor_free(&video);
    h3_tensor_free(&golden);
}

/* The half-precision profile is another one than FP32 rounded at the end. */
static void profiles_differ(void **state)
{
    (void)state;
    h3_tensor golden = video_golden("tiled.decoded_fp16"), half = video_decoded("tiled", H3_F16, &SMALL_TILES, 0), wide = video_decoded("tiled", H3_F32, &SMALL_TILES, 0);
    assert_true(video_error(&half, &golden) < 0.6 * video_error(&wide, &golden));
    h3_tensor_free(&golden);
    h3_tensor_free(&half);
    h3_tensor_free(&wide);
}

/* --- input that does not go ------------------------------------------------------------------------------------------ */

static void refused_input(void **state)
{
    (void)state;
    h3_video_weights weights = video_weights();
    h3_video_decoder *decoder;
    h3_tensor z, video;
    assert_fails(h3_video_decoder_open(&decoder, &weights, h3_device_cpu(), h3_video_ops_cpu(), H3_BF16, &H3_VIDEO_TILING, 0), H3_USAGE, "F32 or F16");
    assert_null(decoder);
    assert_good(h3_video_decoder_open(&decoder, &weights, h3_device_cpu(), h3_video_ops_cpu(), H3_F32, &H3_VIDEO_TILING, 0));
    assert_good(h3_tensor_new(&z, H3_F32, 4, H3_SHAPE(4, 2, 4, 4)));
    assert_fails(h3_video_decode(&video, decoder, &z), H3_USAGE, "2 latent frames cannot be decoded");
    z.shape[1] = 0;
    assert_fails(h3_video_decode(&video, decoder, &z), H3_USAGE, "0 latent frames");
    z.shape[0] = 5;
    assert_fails(h3_video_decode(&video, decoder, &z), H3_USAGE, "[4, frames, rows, columns]");
    z.shape[0] = 4;
    z.shape[1] = 3;
    z.shape[2] = 0;
    assert_fails(h3_video_decode(&video, decoder, &z), H3_USAGE, "0 pixels");
    z.shape[2] = INT64_MAX / 8;
    assert_fails(h3_video_decode(&video, decoder, &z), H3_USAGE, "too large");
    assert_null(video.data);
    z.dtype = H3_F64;
    assert_fails(h3_video_decode(&video, decoder, &z), H3_USAGE, "F32");
    h3_tensor_free(&z);
    h3_video_decoder_close(decoder);
    for (int i = 0; i < 3; i++) {
        const h3_video_tiling tilings[] = {{0, 0}, {16, 16}, {18, 8}};
        h3_tensor latents = video_golden("tiled.z");
        assert_good(h3_video_decoder_open(&decoder, &weights, h3_device_cpu(), h3_video_ops_cpu(), H3_F32, &tilings[i], 0));
        assert_fails(h3_video_decode(&video, decoder, &latents), H3_USAGE, "do not fit latents");
        h3_video_decoder_close(decoder);
        h3_tensor_free(&latents);
    }
    h3_video_weights_close(&weights);
}

/* --- pixels ---------------------------------------------------------------------------------------------------------- */

/* The code of one value in the rule's words: FP32 steps, nearest code, ties to even. */
static int code_of(float v, int c)
{
    const float s = v * h3_video_pixel_std[c], p = s + h3_video_pixel_mean[c];
    if (!(p > 0.0f)) return 0;
    if (p >= 1.0f) return 255;
    const float scaled = p * 255.0f, low = floorf(scaled), rest = scaled - low;
    const int code = (int)low;
    return rest > 0.5f || (!(rest < 0.5f) && code % 2 == 1) ? code + 1 : code;
}

static void pixel_codes(void **state)
{
    enum { FRAMES = 2, ROWS = 3, COLUMNS = 50, PLANE = ROWS * COLUMNS };
    (void)state;
    for (int k = 0; k < 2; k++) {
        h3_video_weights weights = video_weights();
        h3_video_decoder *decoder;
        h3_tensor video;
        unsigned char *rgb;
        assert_good(h3_video_decoder_open(&decoder, &weights, h3_device_cpu(), h3_video_ops_cpu(), k ? H3_F16 : H3_F32, &H3_VIDEO_TILING, 0));
        assert_good(h3_tensor_new(&video, k ? H3_F16 : H3_F32, 4, H3_SHAPE(FRAMES, 3, ROWS, COLUMNS)));
        for (int64_t i = 0; i < FRAMES * 3 * PLANE; i++) {
            const float value = h3_round_f16(-3.0f + 6.0f * (float)(i % 449) / 448.0f);
            if (k) ((uint16_t *)video.data)[i] = h3_f32_to_f16(value);
            else ((float *)video.data)[i] = value;
        }
        assert_good(h3_video_frames(&rgb, decoder, &video));
        int seen[256] = {0};
        for (int64_t i = 0; i < FRAMES * 3 * PLANE; i++) {
            const int c = (int)(i / PLANE % 3), expected = code_of(h3_round_f16(-3.0f + 6.0f * (float)(i % 449) / 448.0f), c);
            const unsigned char got = rgb[(i / PLANE / 3 * PLANE + i % PLANE) * 3 + c];
            assert_int_equal(got, expected);
            seen[got]++;
        }
        assert_true(seen[0] > 0 && seen[255] > 0 && seen[128] > 0);
        free(rgb);
        for (int bad = 0; bad < 2; bad++) {
            if (k) ((uint16_t *)video.data)[7] = bad ? 0x7e00 : 0x7c00;
            else ((float *)video.data)[7] = bad ? NAN : INFINITY;
            assert_fails(h3_video_frames(&rgb, decoder, &video), H3_FAILED, "1 values that are no finite");
            assert_null(rgb);
        }
        h3_tensor_free(&video);
        h3_video_decoder_close(decoder);
        h3_video_weights_close(&weights);
    }
}

static void denormalized(void **state)
{
    (void)state;
    h3_video_weights weights = video_weights();
    h3_tensor z;
    assert_good(h3_tensor_new(&z, H3_F32, 4, H3_SHAPE(4, 1, 1, 2)));
    for (int i = 0; i < 8; i++) ((float *)z.data)[i] = (float)i;
    h3_video_denormalize(&z, &weights.config); /* mean 0.25 -0.5 0.125 0, deviation 1.5 1.25 0.75 1 */
    const float expected[] = {0.25f, 1.75f, 2.0f, 3.25f, 3.125f, 3.875f, 6.0f, 7.0f};
    assert_memory_equal(z.data, expected, sizeof expected);
    h3_tensor_free(&z);
    h3_video_weights_close(&weights);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain), cmocka_unit_test(tiled), cmocka_unit_test(half_precision), cmocka_unit_test(any_number_of_threads_and_tiles),
        cmocka_unit_test(wrong_decoders_are_seen), cmocka_unit_test(the_transformers_work_is_known),
        cmocka_unit_test(swapped_colours_are_seen), cmocka_unit_test(profiles_differ),
        cmocka_unit_test(refused_input), cmocka_unit_test(pixel_codes), cmocka_unit_test(denormalized),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
