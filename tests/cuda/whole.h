/* The whole model at the released dimensions against the sampled goldens (golden README: deep, full, generation/released). */
#ifndef H3_TESTS_CUDA_WHOLE_H
#define H3_TESTS_CUDA_WHOLE_H

#include "golden.h"
#include "qualify/plan.h"

enum { WHOLE_OUTPUTS = 2, WHOLE_LAYOUTS = 3 };

/* What is kept of one layout of `full`: the BF16 provider's own errors p, of video and audio. */
typedef struct whole_layout {
    int known;
    double p[WHOLE_OUTPUTS];
} whole_layout;

/* Device, model and libraries. Weights are synthetic, seed 0, and opened anew for each run. */
typedef struct whole {
    const h3_device *device;
    h3_config config;
    h3_library provider;
    h3_bindings candidate; /* opened when first needed */
    cJSON *layouts;
    whole_layout full[WHOLE_LAYOUTS];
} whole;

/* The model that the goldens are of: `config` NULL means the released one. The files are found by golden_folder. */
h3_status whole_open(whole *out, const h3_device *device, const h3_config *config);
void whole_close(whole *w);

/* One model of this mode's precision and operators, with its first `layers` blocks. The weights' configuration is the model's. */
typedef struct whole_model {
    h3_weights *weights;
    h3_model model;
} whole_model;
h3_status whole_model_open(whole_model *out, whole *w, golden_mode mode, int64_t layers);
void whole_model_close(whole_model *m);

/* The golden inputs of a layout of layouts.json: seed 7, timesteps 0.25, 0.5625, 0.999. */
h3_status whole_inputs(h3_plan_inputs *out, const whole *w, const char *name);
/* 1 and the block's number when a sink's tensor is a block's output. */
int whole_block_output(const char *name, long long *block);

/* One line about a step that took `seconds`; on a GPU with the memory that the process has taken at most so far. */
void whole_say(const whole *w, const char *what, golden_mode mode, double seconds);
extern const char *const golden_mode_names[];

/*
 * deep: forward and backward of the report's number of blocks on layout s264; both outputs, every block's output, the gradients of all parameters.
 * FP32 within 1e-4; else 1.25 p + 1e-3 and for gradients 1.5 p + 5e-3, p being the golden BF16's error on the same samples.
 * `disturb` names one tensor of the golden ("out.video", "block_out.1", "grad.proj_in.bias") that is scaled by 1.02 before it is compared; "" none.
 */
h3_status whole_deep(golden_result *out, whole *w, golden_mode mode, const char *disturb);

/*
 * full: BF16 forward of all blocks, of the provider or the candidate (`mode`), on layout "s264", "s925" or "release". Both outputs' samples: at most
 * 1.5 p + 1e-3 from the golden's, p being the error of our BF16 provider against our FP32 on the same layout (run here when first needed, and no more than
 * 0.1: a wrong FP32 must not loosen the bound), release at most 0.03; the norm of every block's output within 1e-3; on a GPU the release
 * takes at most 141 GB. H3_USAGE for another mode or layout.
 */
h3_status whole_full(golden_result *out, whole *w, const char *layout, golden_mode mode, const char *disturb);

/*
 * generation: the sampling loop of seed 42 in BF16, as the golden file's metadata says. Noise and condition rows are the golden's bytes; the first velocity
 * at most 0.02 from the golden's, the last rows at most 0.05; other velocities are reported, and must be numbers. `disturb`: "velocity0.video", ...
 */
h3_status whole_generation(golden_result *out, whole *w, golden_mode mode, const char *disturb);

#endif
