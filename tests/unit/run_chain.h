/* A small chain of stages in a scratch run, for the tests of the run directory. */
#ifndef H3_TESTS_RUN_CHAIN_H
#define H3_TESTS_RUN_CHAIN_H

#include "store_files.h"

#include "base/json.h"
#include "store/run.h"

static const char chain_plan[] = "{\"plan\": \"one\"}\n";

/* Who needs whom, with which verdict, and what each writes and reads. */
static const struct chain_link {
    const char *stage, *verdict, *outputs[3], *needs[3], *needed_verdicts[3];
} chain[] = {
    {"reference_pass", "passed", {"data/reference/block0.h5", "data/reference/block1.h5", "reference-manifest.json"}, {0}, {0}},
    {"threshold_freeze", "passed", {"thresholds.json"}, {"reference_pass"}, {0}},
    {"generate_provider", "passed", {"data/provider/latents.h5"}, {"reference_pass"}, {0}},
    {"candidate_gate", "VALID", {"data/gate/digests.json", "gate.json"}, {"reference_pass", "threshold_freeze"}, {0}},
    {"generate_candidate", "passed", {"data/candidate/latents.h5"}, {"reference_pass", "candidate_gate"}, {NULL, "VALID"}},
    {"compare", "passed", {"comparison.json"}, {"generate_provider", "generate_candidate"}, {0}},
};
enum { CHAIN_LENGTH = sizeof chain / sizeof *chain };

static inline const char *run_folder(void) { return in_scratch("run"); }

static inline const struct chain_link *find_link(const char *stage)
{
    for (size_t i = 0; i < CHAIN_LENGTH; i++)
        if (strcmp(chain[i].stage, stage) == 0) return &chain[i];
    fail_msg("%s is not in the chain", stage);
    return NULL;
}

static inline h3_status put_output(h3_run *run, const char *path, const char *text)
{
    char full[H3_PATH_MAX], sha256[H3_SHA256_HEX];
    H3_TRY(h3_run_place(full, run->folder, path));
    H3_TRY(h3_publish(full, text, strlen(text)));
    H3_TRY(h3_sha256(sha256, text, strlen(text)));
    return h3_run_output(run, path, (int64_t)strlen(text), sha256);
}

static inline h3_status read_needs(h3_run *run, const struct chain_link *link)
{
    for (int i = 0; i < 3 && link->needs[i] != NULL; i++) {
        h3_run_files listed;
        H3_TRY(h3_run_need(run, link->needs[i], link->needed_verdicts[i], &listed));
        h3_status status = h3_run_verify_all(run, &listed, "");
        h3_run_files_free(&listed);
        H3_TRY(status);
    }
    return H3_OK;
}

static inline h3_status work(h3_run *run, const struct chain_link *link, const char *text, const char *verdict)
{
    char content[256];
    H3_TRY(read_needs(run, link));
    H3_TRY(h3_run_begin(run));
    for (int i = 0; i < 3 && link->outputs[i] != NULL; i++) {
        snprintf(content, sizeof content, "%s of %s\n", text, link->outputs[i]);
        H3_TRY(put_output(run, link->outputs[i], content));
    }
    cJSON *build = cJSON_CreateObject();
    cJSON_AddStringToObject(build, "revision", "abc");
    return h3_run_finish(run, verdict, build);
}

/* Runs one stage whose outputs contain `text`; verdict NULL: the one that the chain expects. */
static inline h3_status run_stage(const char *stage, const char *text, const char *verdict)
{
    h3_run run;
    const struct chain_link *link = find_link(stage);
    H3_TRY(h3_run_open(&run, run_folder(), stage, chain_plan, sizeof chain_plan - 1));
    h3_status status = work(&run, link, text, verdict ? verdict : link->verdict);
    h3_run_close(&run);
    return status;
}

/* Writes a stage.json that somebody else made as a stage would have: printed, and with the SHA-256 of its text. */
static inline void write_sealed(const char *path, const char *text)
{
    cJSON *json;
    char *printed, seal[H3_SHA256_HEX];
    assert_good(h3_json_parse(&json, text, strlen(text), path, H3_INTEGRITY));
    cJSON_DeleteItemFromObjectCaseSensitive(json, "sha256");
    assert_good(h3_json_print(&printed, json));
    assert_good(h3_sha256(seal, printed, strlen(printed)));
    cJSON_AddStringToObject(json, "sha256", seal);
    assert_good(h3_publish_json(path, json, NULL, NULL));
    free(printed);
    cJSON_Delete(json);
}

/* The first `count` stages, each passing. */
static inline void run_chain(size_t count)
{
    for (size_t i = 0; i < count; i++) assert_good(run_stage(chain[i].stage, "first", NULL));
}

/* Asks only whether `predecessor` can be used by `stage`. */
static inline h3_status needs(const char *stage, const char *predecessor, const char *verdict)
{
    h3_run run;
    h3_run_files listed;
    H3_TRY(h3_run_open(&run, run_folder(), stage, chain_plan, sizeof chain_plan - 1));
    h3_status status = h3_run_need(&run, predecessor, verdict, &listed);
    h3_run_files_free(&listed);
    h3_run_close(&run);
    return status;
}

static inline const char *in_run(const char *path)
{
    char name[512];
    snprintf(name, sizeof name, "run/%.500s", path);
    return in_scratch(name);
}

#endif
