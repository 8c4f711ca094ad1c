/* What a generation leaves in the run: one artifact a seed, generate-<side>.json, and while it runs the state to resume from. */
#ifndef H3_QUALIFY_GENERATION_STORE_H
#define H3_QUALIFY_GENERATION_STORE_H

#include "qualify/generation.h"
#include "store/run.h"

#define H3_GENERATION_SCHEMA "h3-generation-v1"

/* Who generates what with which operators: all that the outputs say beside the numbers. Nothing is owned. */
typedef struct h3_generation_record {
    const char *side; /* "provider" or "candidate" */
    const char *run_folder;
    const h3_plan *plan;
    const h3_generation *generation;
    const cJSON *model;                   /* as the manifest has it */
    const h3_library *provider;
    const h3_bindings *bindings;          /* NULL: the provider's own operators */
    const h3_operator *const *operators;  /* [H3_NODE_COUNT], those that ran */
    int repeat;
    const cJSON *decoders;                /* h3_decoders_identity; NULL: generation ends with latents */
    const struct h3_generation_media *media; /* all seeds done, for h3_generation_publish; NULL without decoders */
} h3_generation_record;

/* "generate-<side>.json" and "data/generate/<side>/seed<N>.h5", relative to the run. */
void h3_generation_report_path(char out[64], const char *side);
void h3_generation_artifact_path(char out[96], const char *side, int64_t seed);

/*
 * Publishes the artifacts of all seeds, then the report, and declares them as outputs of `run`. Datasets of an artifact:
 * condition_rows (absent without keyframes), video_rows0, audio_rows0, velocity.video [steps,rows,row], velocity.audio,
 * video_rows, audio_rows; rows are target rows. With decoders the frames and the sound of every seed are outputs too, and the report has their hashes and
 * who decoded them. The report holds no times and is the same for any number of ranks.
 */
h3_status h3_generation_publish(const h3_generation_record *record, const h3_sampling *sampling, h3_run *run);

/* H3_ENVIRONMENT unless the run's file system has room for the artifacts, the state, and frames and sound (`shape`; NULL without decoders). */
h3_status h3_generation_check_space(const h3_generation *generation, const h3_generation_inputs *inputs, const h3_media_shape *shape,
                                    const char *run_folder);

/* The contract as the run keeps it: written by the first stage, so that both sides of the generation and the comparison go by
 * the same. */
#define H3_CONTRACT_COPY "generation-contract.json"
/* Publishes the bytes of the contract that the plan names, and declares them an output. Nothing for a plan without generation. */
h3_status h3_contract_keep(const h3_plan *plan, h3_run *run);
/* H3_INTEGRITY when the run keeps a contract and the plan's is another one, whatever else is wrong with it as long as it can be
 * read. */
h3_status h3_contract_expect(const h3_plan *plan, const char *run_folder);

/* H3_INTEGRITY unless the operator libraries of a gate.json ("libraries": [{"file","sha256",...}], "provider": {"sha256",...})
 * are exactly those that this generation has loaded. */
h3_status h3_generation_check_gate(const cJSON *gate, const h3_bindings *bindings, const h3_library *provider, const char *where);

/*
 * The state of an unfinished generation, in data/generate/<side>/resume/: for every safe point one artifact with the velocities
 * since the one before and the rows reached, and state.json, written last, which lists them. Safe points are every safe_steps steps, the step at which a signal
 * stops, and before decoding the last one. Then also a record of every seed whose media are done (generation_media.h).
 */
typedef struct h3_resume {
    char folder[H3_PATH_MAX];
    char relative[64];              /* of the folder, in the run */
    const char *run_folder;
    char plan_sha256[H3_SHA256_HEX];
    char key[H3_SHA256_HEX];        /* of all that decides the bytes: plan, contract, inputs, program, libraries, machine */
    cJSON *files;                   /* of state.json */
    int64_t saved;                  /* steps in them */
} h3_resume;

/* `inputs` of `run` have been verified and belong to the key. */
h3_status h3_resume_open(h3_resume *out, const h3_generation_record *record, const h3_run *run);
void h3_resume_close(h3_resume *resume);
/* For h3_sampling.save; `resume` is the user. */
h3_status h3_resume_save(void *resume, const h3_sampling *sampling, int64_t step);
/* Brings the flows of a new sampling to the saved step. *step is 0, with a line for people in *note, when there is no state or
 * when it is of another plan or build. H3_INTEGRITY, naming the file, for a damaged state. */
h3_status h3_resume_load(h3_resume *resume, h3_sampling *sampling, int64_t *step, const char **note);
/* Forgets the state. */
h3_status h3_resume_remove(h3_resume *resume);

#endif
