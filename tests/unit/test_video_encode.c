/* Frames to latents, against the published implementation's results. */
#include "video_golden.h"

static const double BOUND = 1e-4;

static void assert_golden(const char *key, const h3_tensor *x)
{
    h3_tensor golden = video_golden(key);
    const double error = video_error(x, &golden);
    printf("# %s: error %.3g, bound %.3g\n", key, error, BOUND);
    if (!(error <= BOUND)) fail_msg("%s: error %g", key, error);
    h3_tensor_free(&golden);
}

static void tiled_picture(void **state)
{
    (void)state;
    h3_tensor moments = video_moments("image", &SMALL_TILES, 0), sample;
    h3_tensor mean = video_moment(&moments, 0), log_variance = video_moment(&moments, 1);
    assert_golden("image.mean", &mean);
    assert_golden("image.logvar", &log_variance);
    assert_good(h3_video_sample(&sample, &moments, 42));
    assert_golden("image.sample42", &sample);
    h3_tensor_free(&sample);
    h3_tensor_free(&moments);
}

static void clip(void **state)
{
    (void)state;
    h3_tensor moments = video_moments("clip", &H3_VIDEO_TILING, 0), mean = video_moment(&moments, 0);
    assert_golden("clip.mean", &mean);
    h3_tensor_free(&moments);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(tiled_picture), cmocka_unit_test(clip)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
