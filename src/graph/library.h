/* Operator libraries: loading them without letting them touch the process, and which operator serves which node. */
#ifndef H3_GRAPH_LIBRARY_H
#define H3_GRAPH_LIBRARY_H

#include <cJSON.h>

#include "base/error.h"
#include "base/text.h"
#include "graph/nodes.h"
#include "h3/operator.h"

typedef struct h3_library {
    void *handle;
    const h3_operator_library *table;
    char path[H3_PATH_MAX];
    char sha256[H3_SHA256_HEX];
} h3_library;

/*
 * Loads `path`, or, when it holds no '/', the file of that name in one of $H3_LIB's folders (separated by ':') or else in ../lib/h3 beside the running program.
 * The floating-point control state is the same afterwards, whatever a constructor did.
 *   H3_FAILED   missing or unloadable file; built with fast math; changed the floating-point control state at load
 *   H3_USAGE    no entry point, another interface version, a malformed table
 */
h3_status h3_library_open(h3_library *out, const char *path);
void h3_library_close(h3_library *library);

/* The library's operator for `node`; with `name` NULL the first one. H3_FAILED when it has none ("unavailable"), H3_USAGE when the library
 * serves the node but has no operator of this name. */
h3_status h3_library_find(const h3_operator **out, const h3_library *library, const char *node, const char *name);

/* Build identity for manifests and verdicts: name, revision, dirty, compiler, flags, architectures, sha256. Caller deletes. */
h3_status h3_library_identity(const h3_library *library, cJSON **out);

enum { H3_MAX_LIBRARIES = 16 };

/* One operator for each node of a block, from one or several libraries. */
typedef struct h3_bindings {
    int32_t library_count;
    h3_library libraries[H3_MAX_LIBRARIES];
    const h3_operator *operators[H3_NODE_COUNT]; /* NULL: unavailable (only after h3_bindings_open_available) */
    int32_t library_of[H3_NODE_COUNT];
} h3_bindings;

/* H3_USAGE unless the object binds every node of a block, and nothing else, to {"library", "operator"?}. Loads nothing. */
h3_status h3_bindings_check(const cJSON *json, const char *where);
/* From JSON: {"<node>": {"library": "...", "operator": "..."}, ..., "*": {"library": "..."}}; "*" serves all nodes not named. */
h3_status h3_bindings_open(h3_bindings *out, const cJSON *json, const char *where);
/* The same, but a node whose operator is unavailable stays NULL; h3_error_text() then says why the first one is, and names all. */
h3_status h3_bindings_open_available(h3_bindings *out, const cJSON *json, const char *where);
/* Puts the device's name where the bindings' library names say {device}: "libmine_{device}.so". */
void h3_bindings_for_device(const cJSON *json, const char *device);
void h3_text_for_device(char *text, const char *device);
/* H3_USAGE unless the library, or every library of the bindings, is for devices of this kind (H3_DEVICE_*). */
h3_status h3_library_require(const h3_library *library, int32_t device);
h3_status h3_bindings_require(const h3_bindings *bindings, int32_t device);
/* All nodes from one library, first operator each. */
h3_status h3_bindings_single(h3_bindings *out, const char *library);
void h3_bindings_close(h3_bindings *bindings);

/* The floating-point control state (rounding, flush-to-zero, masks) as one word, and putting it back. */
uint64_t h3_fp_state(void);
void h3_fp_restore(uint64_t state);

#endif
