/* reference-manifest.json: what the reference pass wrote, tensor by tensor, and on what it ran (qualification.md section 4). */
#ifndef H3_QUALIFY_MANIFEST_H
#define H3_QUALIFY_MANIFEST_H

#include <cJSON.h>

#include "base/text.h"
#include "graph/library.h"
#include "qualify/plan.h"
#include "store/artifact.h"

/* Instruction set class, and versions of the libraries whose bits matter. Caller deletes. Byte equality is promised only within one. */
h3_status h3_fingerprint(cJSON **out, const h3_library *provider);
/* H3_INTEGRITY "not comparable" with the first differing field unless both are equal. */
h3_status h3_fingerprint_require(const cJSON *recorded, const cJSON *current, const char *where);

/* Whether two models (h3_plan_model) have the same content, by their hashes: names of repository and revision prove nothing, and block_tensors
 * says the same again. */
int h3_model_same(const cJSON *a, const cJSON *b);

/* One tensor of a pass: "<layout>/<precision>/<name>", the file that holds it, its digest. Under the policy "recompute" the file has samples of
 * it only, as H3_SAMPLES<name>: whoever needs the tensor runs the provider again and requires the digest. */
typedef struct h3_manifest_tensor {
    char name[240];
    char file[200];
    char digest[H3_SHA256_HEX];
    int samples; /* only samples are stored */
    double norm; /* then: ||tensor|| */
} h3_manifest_tensor;
#define H3_SAMPLES "samples/"
enum { H3_SAMPLE_COUNT = 512 };

typedef struct h3_manifest_file {
    char path[200];
    int64_t size;
    char sha256[H3_SHA256_HEX];
} h3_manifest_file;

typedef struct h3_manifest {
    cJSON *fingerprint, *model; /* owned */
    char plan_identity[H3_SHA256_HEX];
    size_t file_count, tensor_count, file_capacity, tensor_capacity;
    h3_manifest_file *files;     /* sorted by path once read or printed */
    h3_manifest_tensor *tensors; /* sorted by name */
} h3_manifest;

h3_status h3_manifest_add_file(h3_manifest *manifest, const char *path, int64_t size, const char *sha256);
h3_status h3_manifest_add_tensor(h3_manifest *manifest, const char *name, const char *file, const char *digest);
h3_status h3_manifest_add_samples(h3_manifest *manifest, const char *name, const char *file, const char *digest, double norm);
/* Whether an artifact's dataset is what the manifest lists for it: the tensor with its digest, or samples of it. `prefix` is "<layout>/<precision>/".
 * H3_INTEGRITY names `where`. */
h3_status h3_manifest_require_entry(const h3_manifest *manifest, const char *prefix, const char *file, const h3_artifact_entry *entry, const char *where);
/* Deterministic text (caller frees): sorted entries, no times or places. H3_INTEGRITY on a duplicate entry. */
h3_status h3_manifest_print(char **out, h3_manifest *manifest);
/* Strict reading; every damage is H3_INTEGRITY with `where`. */
h3_status h3_manifest_parse(h3_manifest *out, const char *text, size_t size, const char *where);
void h3_manifest_free(h3_manifest *manifest);

const h3_manifest_tensor *h3_manifest_find(const h3_manifest *manifest, const char *name); /* NULL when absent */
const h3_manifest_file *h3_manifest_find_file(const h3_manifest *manifest, const char *path);

/* Requires that `made` equals the pinned manifest within its fingerprint (model, files, tensors): H3_INTEGRITY naming the first tensor that
 * differs, or saying "not comparable" when the fingerprints differ. */
h3_status h3_manifest_require_equal(const h3_manifest *pinned, const h3_manifest *made, const char *where);

/* Names of artifacts, relative to the run directory. block < 0: H3_INPUT_SIDE or H3_OUTPUT_SIDE. */
h3_status h3_reference_path(char out[200], const char *layout, int32_t precision, int64_t block);
const char *h3_precision_name(int32_t precision); /* "fp32" or "bf16" */

#endif
