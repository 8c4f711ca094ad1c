/* Parameters of an autoencoder: from a folder (one safetensors file, or an index and its shards), or synthetic by h3synth-v1. All are
 * FP32, as released. Nothing here knows which autoencoder it is. */
#ifndef H3_MEDIA_PARAMETERS_H
#define H3_MEDIA_PARAMETERS_H

#include <cJSON.h>

#include "base/hash_many.h"
#include "graph/device.h"
#include "model/safetensors.h"

typedef struct h3_parameter_shape {
    char name[112];
    int32_t rank;
    int64_t shape[H3_MAX_RANK];
    /* What h3synth-v1 does otherwise with this one; h3_parameters_add leaves both out. */
    float factor;       /* not 0: its values are multiplied by this, rounded once more */
    const float *fixed; /* not NULL: it is no stream's but has these values (static) */
} h3_parameter_shape;

/* A growing list; after a failed h3_parameters_add it must still be freed. */
typedef struct h3_parameter_list {
    size_t count, capacity;
    h3_parameter_shape *items;
    const char *const *beside; /* prefixes of tensors that a folder may hold as well, NULL behind the last (static); NULL: it may hold none */
} h3_parameter_list;
h3_status h3_parameters_add(h3_parameter_list *list, int32_t rank, const int64_t *shape, const char *name, ...)
    __attribute__((format(printf, 4, 5)));
void h3_parameters_free(h3_parameter_list *list);

typedef struct h3_parameter_source h3_parameter_source;

/* Opens `folder` (its files may be links, as hub caches keep them), which must hold exactly the listed tensors as F32, and besides only what the list
 * allows: none missing, additional, doubly stored or of another shape.
 * The list is taken over, also on failure. H3_INTEGRITY for whatever is wrong. */
h3_status h3_parameters_open(h3_parameter_source **out, const char *folder, h3_parameter_list *list);
/* The same of one file that is open already; it is taken over too, also on failure. */
h3_status h3_parameters_take(h3_parameter_source **out, h3_safetensors *file, h3_parameter_list *list);
/* h3synth-v1 with stream names "<prefix>.<parameter>" (golden README: two or more dimensions base 0, amplitude
 * sqrt(3 / product of shape[1..]); one dimension: ".weight" 1 and 0.25, ".bias" 0 and 0.1, others 0 and 0.5), but for what the list says otherwise.
 * Takes the list over. */
h3_status h3_parameters_synthetic(h3_parameter_source **out, const char *prefix, uint64_t seed, h3_parameter_list *list);
void h3_parameters_close(h3_parameter_source *source);

/* A new host tensor of the listed shape (caller frees). H3_USAGE for a name that is not in the list. */
h3_status h3_parameters_read(h3_tensor *out, const h3_parameter_source *source, const char *name);
/* The same values into `out`, a dense F32 tensor on `device` with as many elements; synthetic ones are made there. */
h3_status h3_parameters_fill(h3_tensor *out, const h3_parameter_source *source, const h3_device *device, const char *name);
/* Rank and sizes of a parameter; NULL for a name that is not in the list. */
const h3_parameter_shape *h3_parameters_shape(const h3_parameter_source *source, const char *name);
/* All of them, by ascending name. */
const h3_parameter_list *h3_parameters_listed(const h3_parameter_source *source);
/* What the values come from, for manifests (caller deletes): {"kind":"folder","index_sha256" (null for one file),"shards":[{"path","size","sha256"}...]} by
 * ascending name, or {"kind":"synthetic","scheme":"h3synth-v1","prefix","seed"}. All cores hash; `watch` may be NULL. */
h3_status h3_parameters_identity(cJSON **out, const h3_parameter_source *source, const h3_watch *watch);
/* Path of the file that holds a parameter, for messages; the prefix of a synthetic source. */
const char *h3_parameters_path(const h3_parameter_source *source, const char *name);
/* Of a synthetic source; 0 for a folder. */
uint64_t h3_parameters_seed(const h3_parameter_source *source);
/* Elements of all listed parameters. */
int64_t h3_parameters_count(const h3_parameter_source *source);

#endif
