/* Latents to frames, against the published implementation's results. */
#include "video_golden.h"

#include <omp.h>

static const double FP32_BOUND = 1e-4, HALF_BOUND = 2e-3;

static void assert_decodes(const char *name, const char *suffix, int32_t dtype, const h3_video_tiling *tiling, double bound)
{
    char key[40];
    snprintf(key, sizeof key, "%s.decoded%s", name, suffix);
    h3_tensor golden = video_golden(key), video = video_decoded(name, dtype, tiling, 1);
    const double error = video_error(&video, &golden);
    printf("# %s: error %.3g, bound %.3g\n", key, error, bound);
    if (!(error <= bound)) fail_msg("%s: error %g", key, error);
    h3_tensor_free(&golden);
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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(plain), cmocka_unit_test(tiled), cmocka_unit_test(half_precision)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
