/* Frames to latents, against the published implementation's results; the seeded sample; the keyframe. */
#include "video_golden.h"

static const double BOUND = 1e-4;

static void tiled_picture(void **state)
{
    (void)state;
    h3_tensor moments = video_moments("image", &SMALL_TILES, 0), sample;
    h3_tensor mean = video_moment(&moments, 0), log_variance = video_moment(&moments, 1);
    assert_near_golden("image.mean", &mean, BOUND);
    assert_near_golden("image.logvar", &log_variance, BOUND);
    assert_good(h3_video_sample(&sample, &moments, 42));
    assert_near_golden("image.sample42", &sample, BOUND);
    h3_tensor_free(&sample);
    assert_good(h3_video_sample(&sample, &moments, 43));
    h3_tensor golden = video_golden("image.sample42");
    assert_true(video_error(&sample, &golden) > 0.1);
    h3_tensor_free(&golden);
    h3_tensor_free(&sample);
    h3_tensor_free(&moments);
}

static void clip(void **state)
{
    (void)state;
    h3_tensor moments = video_moments("clip", &H3_VIDEO_TILING, 0), mean = video_moment(&moments, 0);
    assert_near_golden("clip.mean", &mean, BOUND);
    h3_tensor_free(&moments);
}

typedef struct frames {
    const char *name;
    h3_video_tiling tiling;
} frames;

static h3_tensor encode_as(const void *what, int64_t tiles)
{
    const frames *x = what;
    return video_moments(x->name, &x->tiling, tiles);
}

static void any_number_of_threads_and_tiles(void **state)
{
    static const video_how HOW[] = {{1, 1}, {2, 5}, {3, 0}, {7, 2}};
    static const frames WHAT[] = {{"image", {16, 8}}, {"clip", {256, 64}}};
    (void)state;
    for (int k = 0; k < 2; k++) assert_same_bytes(encode_as, &WHAT[k], HOW, sizeof HOW / sizeof *HOW);
}

/* --- an encoder that is a little wrong is seen ----------------------------------------------------------------------- */

static h3_status shifted_seam(const h3_device *device, h3_tensor *out, const h3_tensor *rows, const h3_video_join *geometry)
{
    h3_video_join g = *geometry;
    g.rows.overlap[0] -= 1;
    return h3_video_ops_cpu()->join(device, out, rows, &g);
}

/* Padded on all sides where the published encoder pads at the bottom and right: the picture moves by a pixel. */
static h3_status moved_down(const h3_device *device, h3_tensor *out, const h3_tensor *x, const h3_tensor *weight, const h3_tensor *bias, const h3_video_conv *geometry)
{
    h3_status status = h3_video_ops_cpu()->conv(device, out, x, weight, bias, geometry);
    if (geometry->spatial_stride == 1 || status != H3_OK) return status;
    const int64_t row = out->shape[3] * out->shape[4];
    memmove((float *)out->data + row, out->data, (size_t)((out->shape[2] - 1) * row) * sizeof(float));
    return status;
}

static h3_status loose_groups(const h3_device *device, h3_tensor *out, const h3_tensor *x, const h3_tensor *weight, const h3_tensor *bias, int64_t groups, float epsilon)
{
    return h3_video_ops_cpu()->group_norm_silu(device, out, x, weight, bias, groups / 2, epsilon);
}

static double error_with(const h3_video_ops *ops, const h3_tensor *x)
{
    h3_video_weights weights = video_weights();
    h3_video_encoder *encoder;
    h3_tensor golden = video_golden("image.mean"), moments;
    assert_good(h3_video_encoder_open(&encoder, &weights, h3_device_cpu(), ops, &SMALL_TILES, 0));
    assert_good(h3_video_encode(&moments, encoder, x));
    h3_tensor mean = video_moment(&moments, 0);
    const double error = video_error(&mean, &golden);
    h3_tensor_free(&moments);
    h3_tensor_free(&golden);
    h3_video_encoder_close(encoder);
    h3_video_weights_close(&weights);
    return error;
}

static void wrong_encoders_are_seen(void **state)
{
    (void)state;
    h3_video_ops ops[4];
    h3_tensor x = video_golden("image.x");
    for (int i = 0; i < 4; i++) ops[i] = *h3_video_ops_cpu();
    ops[0].join = shifted_seam;
    ops[1].conv = moved_down;
    ops[2].group_norm_silu = loose_groups;
    for (int i = 0; i < 3; i++) assert_true(error_with(&ops[i], &x) > 10 * BOUND);
    assert_true(error_with(&ops[3], &x) <= BOUND);
    video_swap_colours(&x);
    assert_true(error_with(&ops[3], &x) > 10 * BOUND);
    h3_tensor_free(&x);
}

/* --- sample and keyframe --------------------------------------------------------------------------------------------- */

/* Log-variances are clamped to -30 and 20; the noise is torch's for that seed (its first values are in the specification). */
static void sample_by_hand(void **state)
{
    (void)state;
    h3_tensor moments, z;
    assert_good(h3_tensor_new(&moments, H3_F32, 4, H3_SHAPE(2, 1, 4, 4)));
    float *mean = moments.data, *log_variance = mean + 16;
    for (int i = 0; i < 16; i++) mean[i] = 10.0f * (float)i;
    log_variance[0] = 2.0f * logf(3.0f);
    log_variance[1] = 50.0f;
    log_variance[2] = -300.0f;
    assert_good(h3_video_sample(&z, &moments, 0));
    const float *v = z.data;
    assert_float_equal(v[0], 3.0f * -1.1258398f, 1e-5f);
    assert_float_equal(v[1] / expf(10.0f), -1.1523602f, 1e-3f);
    assert_true(fabsf(v[2] - 20.0f) < 1e-5f);
    assert_float_equal(v[3], 30.0f - 0.4338788f, 1e-5f);
    h3_tensor_free(&z);
    log_variance[5] = NAN;
    assert_fails(h3_video_sample(&z, &moments, 0), H3_FAILED, "no finite");
    assert_null(z.data);
    log_variance[5] = 0;
    mean[15] = INFINITY;
    assert_fails(h3_video_sample(&z, &moments, 0), H3_FAILED, "no finite");
    h3_tensor_free(&moments);
}

/* From bytes: the colours' normalisation, the sample of seed 42, half precision, the latents' normalisation. */
static void keyframe(void **state)
{
    enum { ROWS = 40, COLUMNS = 24, PLANE = ROWS * COLUMNS };
    (void)state;
    h3_video_weights weights = video_weights();
    h3_video_encoder *encoder;
    unsigned char rgb[PLANE * 3];
    h3_tensor x, moments, z, latents;
    for (int i = 0; i < PLANE * 3; i++) rgb[i] = (unsigned char)(i * 7919 % 256);
    assert_good(h3_tensor_new(&x, H3_F32, 4, H3_SHAPE(3, 1, ROWS, COLUMNS)));
    for (int i = 0; i < PLANE * 3; i++) {
        static const double MEAN[] = {0.485, 0.456, 0.406}, STD[] = {0.229, 0.224, 0.225};
        ((float *)x.data)[i % 3 * PLANE + i / 3] = (float)((rgb[i] / 255.0 - MEAN[i % 3]) / STD[i % 3]);
    }
    assert_good(h3_video_encoder_open(&encoder, &weights, h3_device_cpu(), h3_video_ops_cpu(), &SMALL_TILES, 0));
    assert_good(h3_video_encode(&moments, encoder, &x));
    assert_good(h3_video_sample(&z, &moments, 42));
    assert_good(h3_video_keyframe(&latents, encoder, rgb, ROWS, COLUMNS));
    assert_int_equal(latents.rank, 5);
    assert_int_equal(h3_tensor_count(&latents), 4 * 10 * 6);
    int half = 1;
    for (int i = 0; i < 240; i++) {
        static const double MEAN[] = {0.25, -0.5, 0.125, 0.0}, STD[] = {1.5, 1.25, 0.75, 1.0};
        const double got = (double)((float *)latents.data)[i] * STD[i / 60] + MEAN[i / 60], wanted = (double)((float *)z.data)[i];
        assert_true(fabs(got - wanted) <= fabs(wanted) * 0x1p-10 + 1e-5);
        const float back = (float)got;
        half = half && fabsf(back - h3_round_f16(back)) <= 2e-7f * fabsf(back) + 1e-7f;
    }
    assert_true(half);
    h3_tensor_free(&latents);
    assert_fails(h3_video_keyframe(&latents, encoder, rgb, 0, 3), H3_USAGE, "keyframe of 3 x 0");
    assert_null(latents.data);
    h3_tensor_free(&x);
    h3_tensor_free(&moments);
    h3_tensor_free(&z);
    h3_video_encoder_close(encoder);
    h3_video_weights_close(&weights);
}

static void refused_input(void **state)
{
    (void)state;
    h3_video_weights weights = video_weights();
    h3_video_encoder *encoder;
    h3_tensor x, moments;
    assert_good(h3_video_encoder_open(&encoder, &weights, h3_device_cpu(), h3_video_ops_cpu(), &SMALL_TILES, 0));
    assert_good(h3_tensor_new(&x, H3_F32, 4, H3_SHAPE(3, 1, 8, 8)));
    assert_good(h3_video_encode(&moments, encoder, &x));
    h3_tensor_free(&moments);
    x.shape[2] = 4;
    assert_fails(h3_video_encode(&moments, encoder, &x), H3_USAGE, "too small");
    x.shape[2] = 9;
    assert_fails(h3_video_encode(&moments, encoder, &x), H3_USAGE, "multiple of 4");
    x.shape[2] = 8;
    x.shape[1] = 0;
    assert_fails(h3_video_encode(&moments, encoder, &x), H3_USAGE, "0 frames");
    x.shape[0] = 4;
    assert_fails(h3_video_encode(&moments, encoder, &x), H3_USAGE, "[3, frames");
    assert_null(moments.data);
    h3_tensor_free(&x);
    h3_video_encoder_close(encoder);
    h3_video_weights_close(&weights);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiled_picture), cmocka_unit_test(clip), cmocka_unit_test(any_number_of_threads_and_tiles),
        cmocka_unit_test(wrong_encoders_are_seen), cmocka_unit_test(sample_by_hand), cmocka_unit_test(keyframe), cmocka_unit_test(refused_input),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
